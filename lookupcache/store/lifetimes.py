"""`Lifetimes`: which entries of a store may be used, and how long they are stored."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lookupcache.cache.keys import Mask, Positions
from lookupcache.cache.limits import Limits
from lookupcache.config import LookupConfig
from lookupcache.store.frames import Floats


@dataclass(frozen=True)
class Lifetimes:
    """Which entries may be used, by their age in seconds, and for how long new ones are stored."""

    rows: float
    misses: float
    refresh: float
    stores_misses: bool

    @classmethod
    def of(cls, config: LookupConfig) -> Lifetimes:
        """Read the limits of the cache, and of the store itself.

        >>> config = LookupConfig(cache="TTL", expire_after_write=60, store="redis://h", store_expire_after_write=5)
        >>> Lifetimes.of(config)
        Lifetimes(rows=5.0, misses=5.0, refresh=inf, stores_misses=True)
        """
        limits = Limits.of(config)
        own = math.inf if config.store_expire_after_write is None else config.store_expire_after_write
        return cls(min(limits.write_seconds, own), min(limits.miss_seconds, own), limits.refresh_seconds, limits.misses)

    def allow(self, ages: Floats, counts: Positions) -> Mask:
        """Return which entries may be used; one that is due for a refresh is fetched again instead."""
        young = (ages <= np.where(counts > 0, self.rows, self.misses)) & (ages < self.refresh)
        return young & (ages >= 0) & (self.stores_misses | (counts > 0))
