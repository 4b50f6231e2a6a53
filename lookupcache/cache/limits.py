"""`Limits`: what bounds a cache, read out of the options."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from lookupcache.config import Eviction, LookupConfig


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What bounds a cache: rows, bytes, and seconds; infinity is no bound.

    ``jitter`` is the part of an age limit that chance may take off. From ``refresh_seconds`` on an entry is
    served and fetched anew; until ``stale_seconds`` it may be served where fetching it anew failed (0: never);
    both count from when it was written, which ``ages`` says is remembered for its own sake too. ``remembers``
    is False where nothing may outlive its batch; ``misses`` says whether keys without rows are remembered.
    ``eviction`` says which entries go first where there are too many.
    """

    rows: float = math.inf
    bytes: float = math.inf
    write_seconds: float = math.inf
    miss_seconds: float = math.inf
    access_seconds: float = math.inf
    jitter: float = 0.0
    refresh_seconds: float = math.inf
    stale_seconds: float = 0.0
    ages: bool = False
    remembers: bool = True
    misses: bool = True
    eviction: Eviction = "lru"

    @classmethod
    def of(cls, config: LookupConfig) -> Limits:
        """Read the limits out of a config.

        >>> Limits.of(LookupConfig(cache="TTL", expire_after_write="1 min")).write_seconds
        60.0
        """
        write = _or_infinity(config.expire_after_write)
        miss = config.missing_key_expire_after_write
        return cls(
            rows=_or_infinity(config.max_rows),
            bytes=_or_infinity(config.max_bytes),
            write_seconds=write,
            miss_seconds=write if miss is None else miss,
            access_seconds=_or_infinity(config.expire_after_access),
            jitter=config.jitter,
            refresh_seconds=_or_infinity(config.refresh_after_write),
            stale_seconds=config.stale_if_error or 0.0,
            ages=config.age_column is not None,
            remembers=config.cache != "NONE",
            misses=config.missing_key,
            eviction=config.eviction,
        )

    @property
    def expire(self) -> bool:
        """Whether entries grow too old at all."""
        return min(self.write_seconds, self.miss_seconds, self.access_seconds) < math.inf

    @property
    def dated(self) -> bool:
        """Whether it matters when an entry was written, other than for its age limit."""
        return self.refresh_seconds < math.inf or self.stale_seconds > 0 or self.ages

    def deadline(self, now: float, rows: int) -> float:
        """Return when an entry written now is too old, by its number of rows."""
        seconds = self.write_seconds if rows else self.miss_seconds
        return now + seconds * (1 - self.jitter * random.random())


def _or_infinity(value: float | None) -> float:
    return math.inf if value is None else value
