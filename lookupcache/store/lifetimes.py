"""Which entries of a store may be used, how long they are stored, and what time it is there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lookupcache.cache.keys import Mask, Positions
from lookupcache.cache.limits import Limits
from lookupcache.config import LookupConfig
from lookupcache.store.frames import Floats

_DRIFT = 0.001


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

    def allow(self, ages: Floats, counts: Positions, is_refreshed: Mask) -> Mask:
        """Return which entries may be used; one that is due for a refresh is fetched again instead.

        ``is_refreshed`` says which are being fetched elsewhere: these are used until they expire.
        """
        young = (ages <= np.where(counts > 0, self.rows, self.misses)) & ((ages < self.refresh) | is_refreshed)
        return young & (ages >= 0) & (self.stores_misses | (counts > 0))


class StoreClock:
    """Tells the time of a store between two readings of its clock, rather too early than too late.

    So an entry that is dated by it seems older than it is, and never younger.

    >>> clock = StoreClock()
    >>> clock.read(1_000.0, 5.0)
    >>> clock.now(15.0)
    1009.99
    """

    def __init__(self) -> None:
        self._read: tuple[float, float] | None = None

    def read(self, now: float, at: float) -> None:
        """Note the store's clock; ``at`` is the own clock after it was read."""
        self._read = (now, at)

    def now(self, at: float) -> float | None:
        """Return the store's time; None if it was never read."""
        if self._read is None:
            return None
        # The two clocks may not run at the same speed: an entry of the future would not be used.
        return self._read[0] + max(at - self._read[1], 0.0) * (1 - _DRIFT)
