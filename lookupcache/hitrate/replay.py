"""Requests replayed under another eviction policy, key by key.

The classes make the same decisions as those of `lookupcache.cache.policy` and `policy_queues`, entry by entry, but use
Python lists: numpy evicts thousands of entries with a few array operations, but for single entries these cost a hundred
times as much as the decision. Every key weighs one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookupcache.cache.policy_queues import GHOST_PART, LEAST_AHEAD, PROMOTED, SMALL_PART

_EVICTED = -1
_NEVER = -(1 << 62)
_SHORTEST = 64


@dataclass(frozen=True)
class Replay:
    """Hits of one policy at one size."""

    eviction: str
    size: int
    requests: int
    hits: int

    @property
    def ratio(self) -> float:
        """The hit ratio."""
        return self.hits / max(self.requests, 1)


def replay(ids: npt.NDArray[np.int32], eviction: str, size: int, batch: int) -> Replay:
    """Replay requests for keys in batches through a cache.

    Args:
        ids: The key of each request, numbered from 0.
        eviction: The eviction policy.
        size: The size of the cache, in rows.
        batch: Requests per batch.

    >>> replay(np.array([0, 1, 0, 2, 0, 1], np.int32), "lru", size=2, batch=1).hits
    2
    """
    return Replay(eviction, size, len(ids), len(ids) - sum(misses(ids, eviction, size, batch)))


def misses(ids: npt.NDArray[np.int32], eviction: str, size: int, batch: int) -> Iterator[int]:
    """Yield for each batch how many of its keys were missing.

    As in the worker, a batch finds cached keys and requests each missing key once; then entries are evicted if there
    are too many.

    Args:
        ids: The number of each row's key.
        eviction: The name of the policy.
        size: The number of keys that the cache may have.
        batch: The number of rows of a batch.
    """
    cache = _CACHES[eviction](int(ids.max(initial=-1)) + 1, size)
    keys = ids.tolist()
    return (cache.look_up(keys[start : start + batch]) for start in range(0, len(keys), batch))


class _Lru:
    """LRU: the least recently used key is evicted first."""

    def __init__(self, keys: int, size: int) -> None:
        self._size = size
        self._cached: OrderedDict[int, None] = OrderedDict()

    def look_up(self, keys: Sequence[int]) -> int:
        """Look up a batch of keys; return how many were missing."""
        before = len(self._cached)
        for key in keys:
            self._cached[key] = None
            self._cached.move_to_end(key)
        missing = len(self._cached) - before
        while len(self._cached) > self._size:
            self._cached.popitem(last=False)
        return missing


class _S3Fifo:
    """S3-FIFO, as `policy_queues.S3Fifo`; a batch that finds a key increases its mark by one, up to ``most``."""

    most = 3

    def __init__(self, keys: int, size: int) -> None:
        self.marks = [_EVICTED] * keys
        self._size = size
        self._cached = 0
        self._short, self._long = _Queue(), _Queue()
        self._small = max(int(SMALL_PART * size), 1)
        self._ghosts = int(GHOST_PART * size)
        self._ghost: dict[int, int] = {}
        self._evicted = 0
        self._full_before = False

    def look_up(self, keys: Sequence[int]) -> int:
        """Look up a batch of keys; return how many were missing."""
        marks, most, missing = self.marks, self.most, []
        for key in keys if len(keys) == 1 else dict.fromkeys(keys):
            mark = marks[key]
            if mark < 0:
                missing.append(key)
            elif mark < most:
                marks[key] = mark + 1
        if missing:
            self._fetch(missing)
        return len(missing)

    def _fetch(self, keys: list[int]) -> None:
        for key in keys:
            self.marks[key] = 0
        self._admit(keys)
        self._cached += len(keys)
        if self._cached > self._size:
            self._evict(self._cached - self._size)
            self._cached = self._size

    def _admit(self, keys: list[int]) -> None:
        known_from = self._evicted - self._ghosts
        known = [self._ghost.pop(key, _NEVER) >= known_from for key in keys]
        self._short.defer([key for key, is_known in zip(keys, known, strict=True) if not is_known])
        self._long.defer([key for key, is_known in zip(keys, known, strict=True) if is_known])

    def _evict(self, count: int) -> None:
        if not self._full_before:
            self._full_before = True
            self._fill_long()
        while count:
            if not self._short.live + self._long.live:
                self._append_deferred()
            over = self._long.live - (max(self._size - self._small, 0) if self._short.live else 0)
            count -= self._from_long(count, over) if over > 0 else self._from_short(count)
        self._append_deferred()

    def _append_deferred(self) -> None:
        self._short.append_deferred()
        self._long.append_deferred()

    def _fill_long(self) -> None:
        """Move all but the first keys to the long queue: before the cache was full, all were added to the short."""
        every = self._short.slots
        self._short.slots, later = every[: self._small], every[self._small :]
        # Moved keys leave gaps, as evicted ones do.
        self._short.slots += [_EVICTED] * len(later)
        self._short.live -= len(later)
        self._long.append(later)

    def _from_short(self, count: int) -> int:
        evicted, promoted = self._pass(self._short, count, PROMOTED)
        for key in promoted:
            self.marks[key] = 0
        self._long.append(promoted)
        self._ghost.update(zip(evicted, range(self._evicted, self._evicted + len(evicted)), strict=True))
        self._evicted += len(evicted)
        return len(evicted)

    def _from_long(self, count: int, over: int) -> int:
        evicted, kept = self._pass(self._long, min(count, over), 1)
        for key in kept:
            self.marks[key] -= 1
        self._long.append(kept)
        return len(evicted)

    def _pass(self, queue: _Queue, count: int, enough: int) -> tuple[list[int], list[int]]:
        """Move the hand past ``count`` keys with too few marks; return them, and the passed keys with enough."""
        slots, marks = queue.slots, self.marks
        position, end = queue.hand, queue.peek(count)
        evicted: list[int] = []
        marked: list[int] = []
        while position < end:
            key = slots[position]
            if key >= 0:
                if marks[key] >= enough:
                    marked.append(key)
                elif len(evicted) == count:
                    break
                else:
                    evicted.append(key)
                    marks[key] = _EVICTED
                slots[position] = _EVICTED
            position += 1
        queue.hand = position
        queue.live -= len(evicted) + len(marked)
        return evicted, marked


class _Queue:
    """Keys in the order of insertion, with gaps, as in `lookupcache.cache.eviction_queue.EvictionQueue`."""

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.live = 0
        self.hand = 0
        self._capacity = _SHORTEST
        self._deferred: list[int] = []

    def peek(self, count: int) -> int:
        """Return the position up to which keys to evict are searched."""
        return min(self.hand + max(2 * count, LEAST_AHEAD), len(self.slots))

    def defer(self, keys: list[int]) -> None:
        """Append the keys that were deferred before, and defer these."""
        self.append_deferred()
        self._deferred = keys

    def append_deferred(self) -> None:
        """Append the deferred keys."""
        self.append(self._deferred)
        self._deferred = []

    def append(self, keys: list[int]) -> None:
        """Append keys."""
        if len(self.slots) + len(keys) > self._capacity:
            self._close_up(len(keys))
        self.slots += keys
        self.live += len(keys)

    def _close_up(self, more: int) -> None:
        self.hand = sum(key >= 0 for key in self.slots[: self.hand])
        self.slots = [key for key in self.slots if key >= 0]
        self._capacity = max((len(self.slots) + more) * 3 // 2, _SHORTEST)


_CACHES: dict[str, type[_Lru] | type[_S3Fifo]] = {"lru": _Lru, "s3-fifo": _S3Fifo}
