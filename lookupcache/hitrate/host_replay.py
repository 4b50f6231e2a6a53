"""A replay of requests through the cache that all workers of a host share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lookupcache.hitrate.curve import Curve
from lookupcache.hitrate.reuse import Numbers


def host_curve(
    ids: npt.NDArray[np.integer], worker: npt.NDArray[np.integer], batch: int, sizes: Sequence[int]
) -> Curve:
    """Return the hits at some sizes of the host's cache: rows whose key some worker of the host has requested before.

    ``ids`` and ``worker`` are the key and the worker of each row. Batches of ``batch`` rows of the workers take turns.

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

    ``turn`` is the number of each row's batch among those of its worker; batches of the same number take turns.
    """

    def __init__(
        self, ids: npt.NDArray[np.integer], worker: npt.NDArray[np.integer], turn: npt.NDArray[np.integer]
    ) -> None:
        self.keys = int(ids.max(initial=-1)) + 1
        self._batches = list(_batches(ids.astype(np.int64), worker, turn))

    def misses(self, size: int, *, hot: int = 0, rate: float = 1.0) -> Numbers:
        """Return how often each key is requested from the source, with this many keys in the host's cache.

        Of these, ``hot`` keys are always there. The replayed keys are the part ``rate`` of all others.
        """
        return _misses(self._batches, self.keys, max(round((size - hot) * rate), 1))


def _batches(ids: Numbers, worker: npt.NDArray[np.integer], turn: npt.NDArray[np.integer]) -> Iterator[Numbers]:
    """Yield the distinct keys of each batch, in the order of their first rows."""
    order = np.lexsort((worker, turn))
    ends = np.flatnonzero(np.diff(turn[order]) | np.diff(worker[order])) + 1
    for rows in np.split(order, ends):
        keys, first = np.unique(ids[rows], return_index=True)
        if len(keys):
            yield keys[np.argsort(first)]


def _misses(batches: list[Numbers], keys: int, size: int) -> Numbers:
    host, misses = _Recency(keys, size), np.zeros(keys, np.int64)
    for wanted in batches:
        misses[wanted[host.used[wanted] < 0]] += 1
        host.use(wanted)
        host.evict()
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
