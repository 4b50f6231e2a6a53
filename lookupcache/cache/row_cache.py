"""`RowCache`: Python values by key, one key at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from lookupcache.cache.key_queues import EvictingDict, evicting_dict
from lookupcache.cache.limits import Limits
from lookupcache.cache.size import size_of

_INDEX_BYTES = 400
"""The approximate size of an entry, its dates and its slot in the index."""

_SWEPT_CHEAPLY = 250
"""The maximum number of entries that a single `put` examines."""


@dataclass(slots=True)
class Entry:
    """The value of a key, and its times, by the clock of the caller of `put`.

    Before ``simple_until`` there is nothing to a hit but to `RowCache.touch` the entry.
    """

    value: Any
    simple_until: float
    weight: int
    nbytes: int
    deadline: float
    idle_deadline: float
    refresh_at: float
    stale_until: float
    expired: bool = False


class RowCache:
    """Python values by hashable key; evicts the least recently used key first, or as `Limits.eviction` says.

    A list counts as its rows, any other value as one; None and an empty list are known misses. The cache never loads:
    an expired entry is None to `get`, and `find_stale` returns it as long as the limits allow. ``now`` is in seconds.

    ``entries`` contains all entries, also expired ones, and ``touch`` makes one the most recent. Finding and touching
    an entry are atomic if keys are compared without Python code, so simple hits need no lock.

    >>> cache = RowCache(Limits(rows=2))
    >>> for key in "abc":
    ...     cache.put(key, [key.upper()], now=0)
    >>> cache.get("a", now=0), cache.get("c", now=0), len(cache), cache.evictions
    (None, ['C'], 2, 1)
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.evictions = 0
        self.expirations = 0
        self.rows = 0
        self.nbytes = 0
        self.entries: EvictingDict[Entry] = evicting_dict(limits.eviction)
        self.touch: Callable[[Hashable], None] = self.entries.move_to_end
        # A thread may touch an OrderedDict without a lock.
        self._has_simple_hits = limits.eviction == "lru" and limits.access_seconds == math.inf
        self._next_sweep = self._full_sweep = -math.inf
        self._until_sweep = 0

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, key: Hashable, now: float) -> Any:
        """Return the value of a key, or None if it is not cached or expired; a hit makes it the most recent."""
        entry = self.find(key, now)
        return None if entry is None else entry.value

    def find(self, key: Hashable, now: float) -> Entry | None:
        """Return the entry of the value that `get` returns; from ``refresh_at`` on, it is due for a refresh."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        self.touch(key)
        if now > entry.deadline or now > entry.idle_deadline:
            self._expire(key, entry, now)
            return None
        entry.idle_deadline = now + self.limits.access_seconds
        return entry

    def find_stale(self, key: Hashable, now: float) -> Entry | None:
        """Return the entry of a key, expired or not, if it may be served after a failed fetch."""
        entry = self.entries.get(key)
        return None if entry is None or now > entry.stale_until else entry

    def put(self, key: Hashable, value: Any, now: float) -> None:
        """Cache the value of a key, if the limits allow it."""
        self.remove(key)
        if not self.limits.remembers or not (self.limits.misses or rows_in(value)):
            return
        entry = self._entry(key, value, now)
        if entry.weight > self.limits.rows or entry.nbytes > self.limits.bytes:
            # This entry can never fit, and evicting others for it would only empty the cache.
            self.evictions += 1
            self._sweep(now)
            return
        try:
            self.entries[key] = entry
            self._count(entry, 1)
            self._sweep(now)
            while self.entries and (self.rows > self.limits.rows or self.nbytes > self.limits.bytes):
                self._count(self.entries.popitem(last=False)[1], -1)
                self.evictions += 1
        except BaseException:
            # For lack of memory, for one: a policy that was stopped in the middle may not know some entries any more.
            self.clear()
            raise

    def remove(self, key: Hashable) -> bool:
        """Remove a key; return whether it was cached."""
        try:
            entry = self.entries.pop(key, None)
        except BaseException:
            self.clear()
            raise
        if entry is None:
            return False
        self._count(entry, -1)
        return True

    def remove_all(self, unwanted: Callable[[Hashable], bool]) -> None:
        """Remove every key for which ``unwanted`` returns true; it is called with all of them."""
        for key in [key for key in self.entries if unwanted(key)]:
            self.remove(key)

    def clear(self) -> None:
        """Remove every key."""
        # Freed at the end: a destructor may use this cache. An OrderedDict's own items would hash the keys, which fails
        # where a hash has failed just now.
        removed = list(dict.items(self.entries))
        self.entries.clear()
        self.rows = self.nbytes = 0
        del removed

    def _entry(self, key: Hashable, value: Any, now: float) -> Entry:
        limits, rows = self.limits, rows_in(value)
        deadline, refresh_at = limits.deadline(now, rows), now + limits.refresh_seconds
        return Entry(
            value,
            simple_until=min(deadline, refresh_at) if self._has_simple_hits else -math.inf,
            weight=max(rows, 1),
            nbytes=size_of(key, value) + _INDEX_BYTES if limits.bytes < math.inf else 0,
            deadline=deadline,
            idle_deadline=now + limits.access_seconds,
            refresh_at=refresh_at,
            stale_until=now + limits.stale_seconds if limits.stale_seconds else -math.inf,
        )

    def _count(self, entry: Entry, sign: int) -> None:
        self.rows += sign * entry.weight
        self.nbytes += sign * entry.nbytes

    def _expire(self, key: Hashable, entry: Entry, now: float) -> None:
        """Count an entry as expired, once; remove it, unless it may still be served for an error."""
        self.expirations += not entry.expired
        entry.expired = True
        if now > entry.stale_until:
            self.remove(key)

    def _sweep(self, now: float) -> None:
        """Remove expired entries that are no longer requested.

        This looks at every entry. So it waits for the shortest lifetime, and then for as many puts as entries were left
        by the sweep before. It waits no longer than the longest lifetime, when all of those are too old or were used.
        """
        self._until_sweep -= 1
        if now < self._next_sweep or (self._until_sweep > 0 and now < self._full_sweep):
            return
        for key, entry in list(self.entries.items()):
            if now > entry.deadline or now > entry.idle_deadline:
                self._expire(key, entry, now)
        self._next_sweep, self._full_sweep = now + self.limits.shortest_seconds, now + self.limits.longest_seconds
        self._until_sweep = len(self.entries) - _SWEPT_CHEAPLY


def rows_in(value: Any) -> int:
    """Return the number of rows of a value; 0 is a known miss.

    >>> rows_in(["a", "b"]), rows_in("text"), rows_in(("a", "b")), rows_in([]), rows_in(None)
    (2, 1, 1, 0, 0)
    """
    return len(value) if isinstance(value, list) else int(value is not None)
