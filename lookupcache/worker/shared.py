"""`SharedLookup`: the lookup of a join that a join before it in the same chain uses as well.

Both find what either has fetched. The first counts what the lookup counts, less what the others count for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from lookupcache.cache import ColumnCache
from lookupcache.cache.keys import KeyBatch
from lookupcache.metrics import Counters, counting_into
from lookupcache.worker.partial_cache import Clock, PartialCacheLookup, PendingKeys
from lookupcache.worker.source import Source

T = TypeVar("T")


class SharedLookup:
    """What a runner needs of a lookup; all that it does, and the calls that it causes, count in ``part`` as well.

    ``counters`` has what the runner counts itself, in addition.
    """

    def __init__(self, lookup: PartialCacheLookup) -> None:
        self._lookup = lookup
        self.part = Counters()
        self.counters = Counters()

    @property
    def source(self) -> Source:
        return self._lookup.source

    @property
    def cache(self) -> ColumnCache:
        """The cache; a full table is replaced when it is reloaded."""
        return self._lookup.cache

    def content(self) -> tuple[int, int, int]:
        return self._lookup.content()

    @property
    def clock(self) -> Clock:
        return self._lookup.clock

    @property
    def in_flight(self) -> int:
        return self._lookup.in_flight

    @property
    def capacity(self) -> int:
        return self._lookup.capacity

    def open(self, keys: KeyBatch) -> PendingKeys:
        return self._count(lambda: self._lookup.open(keys))

    def prefetch(self, keys: KeyBatch) -> PendingKeys:
        return self._count(lambda: self._lookup.prefetch(keys))

    def poll(self) -> None:
        self._count(self._lookup.poll)

    def wait(self, *, room: bool = False) -> None:
        self._count(lambda: self._lookup.wait(room=room))

    def hurry(self) -> None:
        self._count(self._lookup.hurry)

    def close(self, pending: PendingKeys) -> None:
        self._count(lambda: self._lookup.close(pending))

    def abandon(self, batches: Iterable[PendingKeys]) -> None:
        self._count(lambda: self._lookup.abandon(batches))

    def _count(self, work: Callable[[], T]) -> T:
        with counting_into(self.part):
            return work()
