"""`RowCache`: Python rows by key, one key at a time, on cachetools."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cachetools
import numpy as np
import numpy.typing as npt

from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Hashes
from lookupcache.cache.limits import Limits
from lookupcache.cache.policies import policy_of
from lookupcache.cache.policy import Policy


@dataclass(slots=True)
class Entry:
    """The rows of a key, and the moments that matter to them, by the clock of who put them."""

    rows: Sequence[Any]
    weight: int
    nbytes: int
    deadline: float
    idle_deadline: float
    refresh_at: float
    stale_until: float
    expired: bool = False


class RowCache:
    """Python rows by hashable key; the least recently used goes first, or whom `Limits.eviction` chooses.

    It never loads: what is too old is None to `get`, and who loads may find it with `stale` for as long as
    the limits allow. ``now`` is in seconds.

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
        self._entries: cachetools.Cache[Hashable, Entry] = _storage(limits)
        self._next_sweep = -math.inf

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, now: float) -> Sequence[Any] | None:
        """Return the rows of a key, or None where it is not here or too old; a hit makes it recent."""
        entry = self.find(key, now)
        return None if entry is None else entry.rows

    def find(self, key: Hashable, now: float) -> Entry | None:
        """Return what `get` does, with its dates; from ``refresh_at`` on it wants to be fetched anew."""
        try:
            entry: Entry = self._entries[key]
        except KeyError:
            return None
        if now > entry.deadline or now > entry.idle_deadline:
            self._expire(key, entry, now)
            return None
        entry.idle_deadline = now + self.limits.access_seconds
        return entry

    def stale(self, key: Hashable, now: float) -> Sequence[Any] | None:
        """Return the rows of a key, expired or not, that may be served where fetching them anew failed.

        >>> cache = RowCache(Limits(write_seconds=10, stale_seconds=60))
        >>> cache.put("a", [1], now=0)
        >>> cache.get("a", now=20), cache.stale("a", now=20), cache.stale("a", now=61)
        (None, [1], None)
        """
        entry: Entry | None = self._entries.get(key)
        return None if entry is None or now > entry.stale_until else entry.rows

    def put(self, key: Hashable, rows: Sequence[Any], now: float) -> None:
        """Keep the rows of a key, as far as the limits let it."""
        self.remove(key)
        if not self.limits.remembers or not (rows or self.limits.misses):
            return
        entry = self._entry(key, rows, now)
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

    def _entry(self, key: Hashable, rows: Sequence[Any], now: float) -> Entry:
        limits = self.limits
        return Entry(
            rows,
            weight=max(len(rows), 1),
            nbytes=_size((key, rows)) if limits.bytes < math.inf else 0,
            deadline=limits.deadline(now, len(rows)),
            idle_deadline=now + limits.access_seconds,
            refresh_at=now + limits.refresh_seconds,
            stale_until=now + limits.stale_seconds if limits.stale_seconds else -math.inf,
        )

    def _count(self, entry: Entry, sign: int) -> None:
        self.rows += sign * entry.weight
        self.nbytes += sign * entry.nbytes

    def _expire(self, key: Hashable, entry: Entry, now: float) -> None:
        """Count an entry as too old, once; forget it, unless it may still stand in for an error."""
        self.expirations += not entry.expired
        entry.expired = True
        if now > entry.stale_until:
            self.remove(key)

    def _sweep(self, now: float) -> None:
        """Forget what nobody asks for any more and is too old, once per shortest lifetime."""
        if not self.limits.expire or now < self._next_sweep:
            return
        limits = self.limits
        self._next_sweep = now + min(limits.write_seconds, limits.miss_seconds, limits.access_seconds)
        # The storage's own access would make every entry recent.
        entries = [(key, cachetools.Cache.__getitem__(self._entries, key)) for key in self._entries]
        for key, entry in entries:
            if now > min(entry.deadline, entry.idle_deadline):
                self._expire(key, entry, now)


class PolicyStorage(cachetools.Cache[Hashable, Entry]):
    """A cachetools cache whose `popitem` takes whom a policy chooses."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(math.inf)
        self._policy = policy
        self._number: dict[Hashable, int] = {}
        self._key: list[Hashable] = []
        self._free: list[int] = []

    def __getitem__(self, key: Hashable) -> Entry:
        entry: Entry = super().__getitem__(key)
        self._policy.touch(self._one(self._number[key]))
        return entry

    def __setitem__(self, key: Hashable, entry: Entry) -> None:
        self._delist(key)
        super().__setitem__(key, entry)
        number = self._free.pop() if self._free else self._new_number()
        self._number[key], self._key[number] = number, key
        one = self._one(number)
        self._policy.admit(one, self.words(one))
        self._policy.touch(one)

    def __delitem__(self, key: Hashable) -> None:
        super().__delitem__(key)
        self._delist(key)

    def popitem(self) -> tuple[Hashable, Entry]:
        """Remove and return the entry that the policy chooses, with its key."""
        number = int(self._policy.victims(1, len(self), self)[0])
        key = self._key[number]
        entry: Entry = super().__getitem__(key)
        super().__delitem__(key)
        self._set_free(key)
        return key, entry

    def weights(self, entries: Entries) -> npt.NDArray[np.int64]:
        """Return ones: entries leave one at a time."""
        return np.ones(len(entries), dtype=np.int64)

    def words(self, entries: Entries) -> Hashes:
        """Return the hashes of the entries' keys."""
        return np.array([hash(self._key[number]) for number in entries.tolist()], np.int64).view(np.uint64)

    def _delist(self, key: Hashable) -> None:
        if key in self._number:
            self._policy.forget(self._one(self._number[key]))
            self._set_free(key)

    def _set_free(self, key: Hashable) -> None:
        number = self._number.pop(key)
        self._key[number] = None
        self._free.append(number)

    def _new_number(self) -> int:
        self._key.append(None)
        self._policy.grow(len(self._key) * 5 // 4 + 64 if len(self._key) >= len(self._policy.used) else len(self._key))
        return len(self._key) - 1

    def _one(self, number: int) -> Entries:
        return np.array([number], dtype=np.int32)


def _storage(limits: Limits) -> cachetools.Cache[Hashable, Entry]:
    if limits.eviction == "lru":
        return cachetools.LRUCache(math.inf)
    return PolicyStorage(policy_of(limits.eviction))


def _size(value: Any) -> int:
    """Return the bytes of a key or of rows made of plain Python values."""
    inner: Iterator[Any] = iter(())
    if isinstance(value, Mapping):
        inner = (item for pair in value.items() for item in pair)
    elif isinstance(value, list | tuple | set | frozenset):
        inner = iter(value)
    return sys.getsizeof(value) + sum(_size(item) for item in inner)
