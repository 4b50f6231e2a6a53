"""A replay of requests through the caches of a host: one that all workers share, and a smaller one in each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lookupcache.cache.limits import Limits, own_limits
from lookupcache.hitrate.curve import Curve

Numbers = npt.NDArray[np.int64]


def host_curve(
    ids: npt.NDArray[np.integer], worker: npt.NDArray[np.integer], batch: int, sizes: Sequence[int]
) -> Curve:
    """Return the hits at some sizes of the host's cache: rows whose key some worker of the host has requested before.

    Args:
        ids: The number of each row's key.
        worker: The worker of each row.
        batch: The number of rows of a batch.
        sizes: The numbers of keys that the host's cache may have.

    Batches of the workers take turns. That a worker used a key in its own cache is not reported to the host: it is once
    a second, which is rare compared to batches, unless they are slow.

    >>> ids, worker = np.array([1, 2, 1, 2]), np.array([0, 0, 1, 1])
    >>> host_curve(ids, worker, 2, [2]).ratio([2]).tolist()
    [0.5]
    """
    batches = list(_batches(ids.astype(np.int64), worker, batch))
    keys = int(ids.max(initial=-1)) + 1
    workers = int(worker.max(initial=0)) + 1
    ordered = sorted(set(sizes))
    misses = [_misses(batches, keys, workers, size) for size in ordered]
    return Curve(np.array(ordered), len(ids) - np.array(misses, dtype=np.float64), float(len(ids)))


def _batches(ids: Numbers, worker: npt.NDArray[np.integer], batch: int) -> Iterator[tuple[int, Numbers]]:
    """Yield the worker and the distinct keys of each batch, in the order of their first rows."""
    rows = [np.flatnonzero(worker == number) for number in range(int(worker.max(initial=0)) + 1)]
    for start in range(0, max(map(len, rows)), batch):
        for number, own in enumerate(rows):
            keys, first = np.unique(ids[own[start : start + batch]], return_index=True)
            if len(keys):
                yield number, keys[np.argsort(first)]


def _misses(batches: list[tuple[int, Numbers]], keys: int, workers: int, size: int) -> int:
    host = _Recency(keys, size)
    own = [_Recency(keys, int(own_limits(Limits(rows=size)).rows)) for _ in range(workers)]
    # A worker's own cache admits a key that it finds on the host for the second time (`lookupcache.host.admission`).
    seen = np.zeros((workers, keys), dtype=np.bool_)
    misses = 0
    for worker, wanted in batches:
        is_missing = own[worker].used[wanted] < 0
        missing = wanted[is_missing]
        found = host.used[missing] >= 0
        host.use(missing[found])
        requested = missing[~found]
        host.use(requested)
        host.evict()
        admitted = ~is_missing
        admitted[is_missing] = ~found | seen[worker, missing]
        seen[worker, missing[found]] = True
        own[worker].use(wanted[admitted])
        own[worker].evict()
        misses += len(requested)
    return misses


class _Recency:
    """The last use of each key in a cache of a size, -1 for one that it does not have."""

    def __init__(self, keys: int, size: int) -> None:
        self.size = size
        self.used = np.full(keys, -1, dtype=np.int64)
        self._time = 0

    def use(self, keys: Numbers) -> None:
        """Add keys, or make them the most recent."""
        self.used[keys] = self._time
        self._time += 1

    def evict(self) -> None:
        """Remove the least recently used keys that are too many."""
        there = np.flatnonzero(self.used >= 0)
        excess = len(there) - self.size
        if excess > 0:
            self.used[there[np.argpartition(self.used[there], excess - 1)[:excess]]] = -1
