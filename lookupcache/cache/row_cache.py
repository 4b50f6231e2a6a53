"""`RowCache`: Python rows by key, one key at a time, on cachetools."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cachetools

from lookupcache.cache.limits import Limits


@dataclass
class _Entry:
    rows: Sequence[Any]
    weight: int
    nbytes: int
    deadline: float
    idle_deadline: float


class RowCache:
    """Python rows by hashable key; the least recently used goes first.

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
        self._entries: cachetools.LRUCache[Hashable, _Entry] = cachetools.LRUCache(math.inf)
        self._next_sweep = -math.inf

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, now: float) -> Sequence[Any] | None:
        """Return the rows of a key, or None where it is not here or too old; a hit makes it recent."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now > min(entry.deadline, entry.idle_deadline):
            self.remove(key)
            self.expirations += 1
            return None
        entry.idle_deadline = now + self.limits.access_seconds
        return entry.rows

    def put(self, key: Hashable, rows: Sequence[Any], now: float) -> None:
        """Keep the rows of a key, as far as the limits let it."""
        self.remove(key)
        if not self.limits.remembers or not (rows or self.limits.misses):
            return
        nbytes = _size((key, rows)) if self.limits.bytes < math.inf else 0
        idle = now + self.limits.access_seconds
        entry = _Entry(rows, max(len(rows), 1), nbytes, self.limits.deadline(now, len(rows)), idle)
        self._entries[key] = entry
        self._count(entry, 1)
        self._sweep(now)
        while self._entries and (self.rows > self.limits.rows or self.nbytes > self.limits.bytes):
            self._count(self._entries.popitem()[1], -1)
            self.evictions += 1

    def remove(self, key: Hashable) -> None:
        """Forget a key."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._count(entry, -1)

    def clear(self) -> None:
        """Forget every key."""
        self._entries.clear()
        self.rows = self.nbytes = 0

    def _count(self, entry: _Entry, sign: int) -> None:
        self.rows += sign * entry.weight
        self.nbytes += sign * entry.nbytes

    def _sweep(self, now: float) -> None:
        """Forget what nobody asks for any more and is too old, once per shortest lifetime."""
        if not self.limits.expire or now < self._next_sweep:
            return
        limits = self.limits
        self._next_sweep = now + min(limits.write_seconds, limits.miss_seconds, limits.access_seconds)
        # LRUCache's own access would make every entry recent.
        entries = [(key, cachetools.Cache.__getitem__(self._entries, key)) for key in self._entries]
        old = [key for key, entry in entries if now > min(entry.deadline, entry.idle_deadline)]
        for key in old:
            self.remove(key)
        self.expirations += len(old)


def _size(value: Any) -> int:
    """Return the bytes of a key or of rows made of plain Python values."""
    inner: Iterator[Any] = iter(())
    if isinstance(value, Mapping):
        inner = (item for pair in value.items() for item in pair)
    elif isinstance(value, list | tuple | set | frozenset):
        inner = iter(value)
    return sys.getsizeof(value) + sum(_size(item) for item in inner)
