"""`Limits`: the bounds of a cache, read from the options."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, Literal

from lookupcache.config import Eviction, LookupConfig


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a cache; infinity means no limit.

    Names and values are in the identity of a cache in ``lookup.cache.path``: after a name was added or changed, it
    starts empty.

    Args:
        rows: The largest number of rows; a known miss counts as one.
        bytes: The largest number of bytes.
        write_seconds: How long an entry may be used after it was written.
        miss_seconds: The same for a known miss, a key without rows.
        access_seconds: How long an entry may be unused.
        jitter: The part of the lifetime that may be taken off at random, so that not all entries expire together.
        refresh_seconds: The age from which an entry is still used, but fetched again in the background.
        stale_seconds: Until which age an expired entry may be used where fetching it again failed; 0 is never.
        ages: Whether write times are also stored because the output has a column of ages.
        remembers: Whether entries are cached for longer than the batch that fetched them.
        misses: Whether keys without rows are cached.
        eviction: The eviction policy when the cache is full.
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
    def of(cls, config: LookupConfig, scope: Literal["worker", "host"] = "worker") -> Limits:
        """Read from a config the limits of a worker's or process's cache, or of one that those of a host share.

        >>> Limits.of(LookupConfig(cache="TTL", expire_after_write="1 min")).write_seconds
        60.0
        """
        rows, size = config.size_in(scope)
        write = _or_infinity(config.expire_after_write)
        miss = config.missing_key_expire_after_write
        return cls(
            rows=_or_infinity(rows),
            bytes=_or_infinity(size),
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
        """Whether entries expire at all."""
        return self.shortest_seconds < math.inf

    @property
    def shortest_seconds(self) -> float:
        """The age at which the first entries may be too old."""
        return min(self.write_seconds, self.miss_seconds, self.access_seconds)

    @property
    def longest_seconds(self) -> float:
        """The age at which all unused entries are too old, even to be served for an error."""
        return max(min(max(self.write_seconds, self.miss_seconds), self.access_seconds), self.stale_seconds)

    @property
    def needs_write_times(self) -> bool:
        """Whether write times are needed for more than the expiry of entries."""
        return self.refresh_seconds < math.inf or self.stale_seconds > 0 or self.ages

    def deadline(self, now: float, rows: int) -> float:
        """Return when an entry that is written now expires; ``rows`` is its number of rows."""
        deadline: float = now + self.spread(self.write_seconds if rows else self.miss_seconds, random.random())
        return deadline

    def spread(self, seconds: Any, chance: Any) -> Any:
        """Return lifetimes, of which ``jitter`` takes off a part by chance; numbers or arrays of them."""
        return seconds * (1 - self.jitter * chance)


def _or_infinity(value: float | None) -> float:
    return math.inf if value is None else value


_OWN_ROWS = 10_000
_OWN_BYTES = 16 << 20
_OWN_PART = 16


def own_limits(limits: Limits) -> Limits:
    """Return the limits of a worker's own cache, which is smaller than that of the host.

    >>> own_limits(Limits(rows=5_000)).rows, own_limits(Limits(rows=1_000_000)).rows
    (5000, 62500)
    >>> own_limits(Limits()).rows, own_limits(Limits()).bytes == 16 << 20
    (10000, True)
    """
    return replace(limits, rows=_part_of(limits.rows, _OWN_ROWS), bytes=_part_of(limits.bytes, _OWN_BYTES))


def _part_of(limit: float, least: float) -> float:
    """Return a sixteenth of a limit, at least ``least`` and at most the limit; without a limit, ``least``."""
    return least if limit == math.inf else min(limit, max(least, limit // _OWN_PART))
