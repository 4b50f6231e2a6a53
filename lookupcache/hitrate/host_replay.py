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
    turn = np.empty(len(ids), np.int64)
    for number in np.unique(worker):
        own = np.flatnonzero(worker == number)
        turn[own] = np.arange(len(own)) // batch
    replay = HostReplay(ids, worker, turn)
    ordered = sorted(set(sizes))
    misses = [replay.misses(size).sum() for size in ordered]
    return Curve(np.array(ordered), len(ids) - np.array(misses, dtype=np.float64), float(len(ids)))


class HostReplay:
    """Replays requests at one size after the other.

    Args:
        ids: The number of each row's key.
        worker: The worker of each row.
        turn: The number of each row's batch among those of its worker; batches of the same number take turns.
    """

    def __init__(
        self, ids: npt.NDArray[np.integer], worker: npt.NDArray[np.integer], turn: npt.NDArray[np.integer]
    ) -> None:
        self.keys = int(ids.max(initial=-1)) + 1
        self.workers = int(worker.max(initial=0)) + 1
        self._batches = list(_batches(ids.astype(np.int64), worker, turn))

    def misses(self, size: int, *, hot: int = 0, rate: float = 1.0) -> Numbers:
        """Return how often each key is requested from the source, with so many keys in the host's cache.

        Args:
            size: The size of the host's cache; a worker's own is a part of it.
            hot: How many more keys the caches have, which are always there.
            rate: Which part these keys are of all others, for which the caches are the same part of their size.
        """
        sizes = (size, int(own_limits(Limits(rows=size)).rows))
        host, own = (max(round((keys - hot) * rate), 1) for keys in sizes)
        return _misses(self._batches, self.keys, self.workers, host, own)


def _batches(
    ids: Numbers, worker: npt.NDArray[np.integer], turn: npt.NDArray[np.integer]
) -> Iterator[tuple[int, Numbers]]:
    """Yield the worker and the distinct keys of each batch, in the order of their first rows."""
    order = np.lexsort((worker, turn))
    ends = np.flatnonzero(np.diff(turn[order]) | np.diff(worker[order])) + 1
    for rows in np.split(order, ends):
        keys, first = np.unique(ids[rows], return_index=True)
        if len(keys):
            yield int(worker[rows[0]]), keys[np.argsort(first)]


def _misses(batches: list[tuple[int, Numbers]], keys: int, workers: int, host_size: int, own_size: int) -> Numbers:
    host = _Recency(keys, host_size)
    own = [_Recency(keys, own_size) for _ in range(workers)]
    # A worker's own cache admits a key that it finds on the host for the second time (`lookupcache.host.admission`).
    seen = np.zeros((workers, keys), dtype=np.bool_)
    misses = np.zeros(keys, np.int64)
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
        misses[requested] += 1
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
