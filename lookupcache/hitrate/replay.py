"""Requests replayed under another eviction policy, key by key.

The classes here decide as those of `lookupcache.cache.policy` and `policy_queues` do, entry for entry, but keep plain
lists: those evict thousands of entries with a few array operations, which for one entry at a time cost a hundred times
as much as the decision. Every key weighs one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookupcache.cache.policy_queues import GHOST_PART, LEAST_AHEAD, PROMOTED, SMALL_PART

_GONE = -1
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
    """Replay requests for keys, numbered from 0, in batches through a cache of ``size`` rows.

    >>> replay(np.array([0, 1, 0, 2, 0, 1], np.int32), "lru", size=2, batch=1).hits
    2
    """
    return Replay(eviction, size, len(ids), len(ids) - sum(misses(ids, eviction, size, batch)))


def misses(ids: npt.NDArray[np.int32], eviction: str, size: int, batch: int) -> Iterator[int]:
    """Yield for each batch how many of its keys were missing.

    As in the worker, a batch finds what it can, asks once for each key that is missing, and then entries that are too
    many are evicted.
    """
    cache = _CACHES[eviction](int(ids.max(initial=-1)) + 1, size)
    keys = ids.tolist()
    return (cache.take(keys[start : start + batch]) for start in range(0, len(keys), batch))


class _Lru:
    """The least recently used go first."""

    def __init__(self, keys: int, size: int) -> None:
        self._size = size
        self._held: OrderedDict[int, None] = OrderedDict()

    def take(self, keys: Sequence[int]) -> int:
        """Ask for a batch of keys; return how many were missing."""
        before = len(self._held)
        for key in keys:
            self._held[key] = None
            self._held.move_to_end(key)
        missing = len(self._held) - before
        while len(self._held) > self._size:
            self._held.popitem(last=False)
        return missing


class _Marked:
    """Each key that is held bears a mark, which a batch that finds it raises by one, up to ``most``."""

    most = 1

    def __init__(self, keys: int, size: int) -> None:
        self.marks = [_GONE] * keys
        self._size = size
        self._held = 0

    def take(self, keys: Sequence[int]) -> int:
        """Ask for a batch of keys; return how many were missing."""
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
        self._held += len(keys)
        if self._held > self._size:
            self._evict(self._held - self._size)
            self._held = self._size

    def _admit(self, keys: list[int]) -> None:
        raise NotImplementedError

    def _evict(self, count: int) -> None:
        raise NotImplementedError


class _Sieve(_Marked):
    """Keys as `policy_queues.Sieve` holds entries."""

    def __init__(self, keys: int, size: int) -> None:
        super().__init__(keys, size)
        self._line = _Line()

    def _admit(self, keys: list[int]) -> None:
        self._line.expect(keys)

    def _evict(self, count: int) -> None:
        while count:
            if not self._line.live:
                self._line.let_in()
            count -= self._pass(count)
        self._line.let_in()

    def _pass(self, count: int) -> int:
        """Let the hand go on to the first unmarked key after ``count`` evicted ones; return how many it evicted."""
        line, slots, marks = self._line, self._line.slots, self.marks
        place, end, evicted = line.hand, line.ahead(count), 0
        while place < end:
            key = slots[place]
            if key >= 0:
                if marks[key]:
                    marks[key] = 0
                elif evicted == count:
                    break
                else:
                    slots[place] = marks[key] = _GONE
                    evicted += 1
            place += 1
        line.live -= evicted
        line.go_on_to(place)
        return evicted


class _S3Fifo(_Marked):
    """Keys as `policy_queues.S3Fifo` holds entries."""

    most = 3

    def __init__(self, keys: int, size: int) -> None:
        super().__init__(keys, size)
        self._short, self._long = _Line(), _Line()
        self._small = max(int(SMALL_PART * size), 1)
        self._ghosts = int(GHOST_PART * size)
        self._left: dict[int, int] = {}
        self._leavers = 0
        self._full_before = False

    def _admit(self, keys: list[int]) -> None:
        known_from = self._leavers - self._ghosts
        back = [self._left.pop(key, _NEVER) >= known_from for key in keys]
        self._short.expect([key for key, known in zip(keys, back, strict=True) if not known])
        self._long.expect([key for key, known in zip(keys, back, strict=True) if known])

    def _evict(self, count: int) -> None:
        if not self._full_before:
            self._full_before = True
            self._share_out()
        while count:
            if not self._short.live + self._long.live:
                self._let_in()
            over = self._long.live - (max(self._size - self._small, 0) if self._short.live else 0)
            count -= self._from_long(count, over) if over > 0 else self._from_short(count)
        self._let_in()

    def _let_in(self) -> None:
        self._short.let_in()
        self._long.let_in()

    def _share_out(self) -> None:
        """Let all but the first stand in the long line: until the cache was full for once, nobody had to go."""
        every = self._short.slots
        self._short.slots, later = every[: self._small], every[self._small :]
        # What left keeps its places.
        self._short.slots += [_GONE] * len(later)
        self._short.live -= len(later)
        self._long.join(later)

    def _from_short(self, count: int) -> int:
        evicted, promoted = self._pass(self._short, count, PROMOTED)
        for key in promoted:
            self.marks[key] = 0
        self._long.join(promoted)
        self._left.update(zip(evicted, range(self._leavers, self._leavers + len(evicted)), strict=True))
        self._leavers += len(evicted)
        return len(evicted)

    def _from_long(self, count: int, over: int) -> int:
        evicted, kept = self._pass(self._long, min(count, over), 1)
        for key in kept:
            self.marks[key] -= 1
        self._long.join(kept)
        return len(evicted)

    def _pass(self, line: _Line, count: int, enough: int) -> tuple[list[int], list[int]]:
        """Let the hand go on to the first with few marks after ``count`` such; return these, and those with enough."""
        slots, marks = line.slots, self.marks
        place, end = line.hand, line.ahead(count)
        evicted: list[int] = []
        marked: list[int] = []
        while place < end:
            key = slots[place]
            if key >= 0:
                if marks[key] >= enough:
                    marked.append(key)
                elif len(evicted) == count:
                    break
                else:
                    evicted.append(key)
                    marks[key] = _GONE
                slots[place] = _GONE
            place += 1
        line.hand = place
        line.live -= len(evicted) + len(marked)
        return evicted, marked


class _Line:
    """Keys in the order of their coming, with gaps, as `lookupcache.cache.line.Line` has them."""

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.live = 0
        self.hand = 0
        self._room = _SHORTEST
        self._coming: list[int] = []

    def ahead(self, count: int) -> int:
        """Return the place up to which one looks for so many to evict."""
        return min(self.hand + max(2 * count, LEAST_AHEAD), len(self.slots))

    def go_on_to(self, place: int) -> None:
        """Move the hand; where nobody stands further on it goes to the beginning."""
        self.hand = place
        while place < len(self.slots) and self.slots[place] < 0:
            place += 1
        if place == len(self.slots):
            self.hand = 0

    def expect(self, keys: list[int]) -> None:
        """Let those in who were expected before, and expect these."""
        self.let_in()
        self._coming = keys

    def let_in(self) -> None:
        """Let those who are expected stand at the end."""
        self.join(self._coming)
        self._coming = []

    def join(self, keys: list[int]) -> None:
        """Let keys stand at the end."""
        if len(self.slots) + len(keys) > self._room:
            self._close_up(len(keys))
        self.slots += keys
        self.live += len(keys)

    def _close_up(self, room: int) -> None:
        self.hand = sum(key >= 0 for key in self.slots[: self.hand])
        self.slots = [key for key in self.slots if key >= 0]
        self._room = max((len(self.slots) + room) * 3 // 2, _SHORTEST)


_CACHES: dict[str, type[_Lru] | type[_Sieve] | type[_S3Fifo]] = {"lru": _Lru, "sieve": _Sieve, "s3-fifo": _S3Fifo}
