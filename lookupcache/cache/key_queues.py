"""The eviction policies for keys that come one by one; `policy` and `policy_queues` have them for batches of entries.

numpy evicts thousands of entries with a few array operations. For a single entry these would cost a hundred times as
much as the decision.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from lookupcache.cache.policy_queues import GHOST_PART, PROMOTED, SMALL_PART, S3Fifo

_MOST = int(S3Fifo.most)
V = TypeVar("V")


def evicting_dict(eviction: str) -> EvictingDict[Any]:
    """Return an empty dict whose `popitem` evicts by a policy; `move_to_end` tells it that a key is used.

    A key is added before another is evicted for it, so `popitem` does not choose the newest unless it is the only one.

    >>> type(evicting_dict("lru")).__name__, type(evicting_dict("s3-fifo")).__name__
    ('OrderedDict', 'S3FifoDict')
    """
    return _DICTS[eviction]()


class S3FifoDict(dict[Hashable, V]):
    """A dict whose `popitem` removes the key that S3-FIFO chooses, as that of an `OrderedDict` removes the oldest.

    >>> cached = S3FifoDict[int]()
    >>> cached["a"] = cached["b"] = 1
    >>> cached.popitem()
    ('a', 1)
    >>> cached["a"] = 2  # evicted just now, so it goes into the long queue
    >>> cached.popitem()
    ('b', 1)
    """

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        """Remove all keys, and forget those that were evicted."""
        super().clear()
        self._marks: dict[Hashable, int] = {}
        self._short: OrderedDict[Hashable, None] = OrderedDict()
        self._long: OrderedDict[Hashable, None] = OrderedDict()
        # The newest key enters its queue after the next eviction, which must not choose it.
        self._newest: OrderedDict[Hashable, None] = OrderedDict()
        self._ghost: OrderedDict[int, int] = OrderedDict()
        self._evicted = 0
        self._was_full = False

    def move_to_end(self, key: Hashable) -> None:
        """Mark a key that is used; it moves when it would be evicted otherwise."""
        mark = self._marks[key]
        if mark < _MOST:
            self._marks[key] = mark + 1

    def __setitem__(self, key: Hashable, value: V) -> None:
        self._delist(key)
        super().__setitem__(key, value)
        self._marks[key] = 0
        self._append_newest()
        self._newest[key] = None
        self._is_newest_known = self._ghost.pop(hash(key), None) is not None

    def pop(self, key: Hashable, default: Any = None) -> Any:
        """Remove a key and return its value, or the default."""
        self._delist(key)
        return super().pop(key, default)

    def popitem(self, last: bool = False) -> tuple[Hashable, V]:
        """Remove and return the key that the policy chooses, with its value; ``last`` is ignored."""
        kept = len(self) - 1
        small = max(int(SMALL_PART * kept), 1)
        if not self._was_full:
            self._was_full = True
            # Before the cache was full, all were added to the short queue.
            self._long.update(dict.fromkeys(list(self._short)[small:]))
            for key in self._long:
                self._short.pop(key, None)
        if not self._short and not self._long:
            self._append_newest()
        is_long = len(self._long) > (max(kept - small, 0) if self._short else 0)
        key = self._from_long() if is_long else self._from_short(int(GHOST_PART * kept))
        self._append_newest()
        del self._marks[key]
        return key, super().pop(key)

    def _from_long(self) -> Hashable:
        while True:
            key, _ = self._long.popitem(last=False)
            if not self._marks[key]:
                return key
            self._marks[key] -= 1
            self._long[key] = None

    def _from_short(self, ghosts: int) -> Hashable:
        while self._short:
            key, _ = self._short.popitem(last=False)
            if self._marks[key] < PROMOTED:
                self._remember(key, ghosts)
                return key
            self._marks[key] = 0
            self._long[key] = None
        return self._from_long()

    def _remember(self, key: Hashable, most: int) -> None:
        """Note that a key was evicted; those from before the last ``most`` evictions are forgotten."""
        self._evicted += 1
        self._ghost[hash(key)] = self._evicted
        while self._ghost and next(iter(self._ghost.values())) <= self._evicted - most:
            self._ghost.popitem(last=False)

    def _append_newest(self) -> None:
        if self._newest:
            (self._long if self._is_newest_known else self._short).update(self._newest)
            self._newest.clear()

    def _delist(self, key: Hashable) -> None:
        if self._marks.pop(key, None) is not None:
            for queue in (self._short, self._long, self._newest):
                queue.pop(key, None)


EvictingDict = OrderedDict[Hashable, V] | S3FifoDict[V]
_DICTS: dict[str, Callable[[], EvictingDict[Any]]] = {
    "lru": OrderedDict, "s3-fifo": S3FifoDict,
}  # fmt: skip
"""The dict of each policy."""
