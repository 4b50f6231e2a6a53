"""Requests replayed by the policies of `lookupcache.cache`: key by key as `cached` makes them, or batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookupcache.cache.key_queues import ordered_dict
from lookupcache.cache.policy import OneEach
from lookupcache.cache.policy_queues import policy_of

_FEW = 50
"""Batches of fewer rows are replayed key by key, which is faster then."""


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
    """Replay requests for keys, numbered from 0, in batches of ``batch`` through a cache of ``size`` rows.

    >>> replay(np.array([0, 1, 0, 2, 0, 1], np.int32), "lru", size=2, batch=1).hits
    2
    """
    return Replay(eviction, size, len(ids), len(ids) - sum(misses(ids, eviction, size, batch)))


def misses(ids: npt.NDArray[np.int32], eviction: str, size: int, batch: int) -> Iterator[int]:
    """Yield for each batch how many of its keys were missing.

    As in the worker, a batch finds cached keys and requests each missing key once; then entries are evicted if there
    are too many. Every key weighs one.
    """
    return (_misses_of_keys if batch < _FEW else _misses_of_batches)(ids, eviction, size, batch)


def _misses_of_keys(ids: npt.NDArray[np.int32], eviction: str, size: int, batch: int) -> Iterator[int]:
    cached, keys = ordered_dict(eviction), ids.tolist()
    use, evict = cached.move_to_end, cached.popitem
    for start in range(0, len(keys), batch):
        before = len(cached)
        # In the order of their last rows, which are their uses.
        for key in reversed(dict.fromkeys(reversed(keys[start : start + batch]))) if batch > 1 else (keys[start],):
            if key in cached:
                use(key)
            else:
                cached[key] = None
        yield len(cached) - before
        while len(cached) > size:
            evict(last=False)


def _misses_of_batches(ids: npt.NDArray[np.int32], eviction: str, size: int, batch: int) -> Iterator[int]:
    """Replay batches with keys as the numbers of their entries."""
    policy, count = policy_of(eviction), int(ids.max(initial=-1)) + 1
    policy.grow(count)
    is_cached, listed = np.zeros(count, np.bool_), 0
    for start in range(0, len(ids), batch):
        keys = ids[start : start + batch]
        missing = keys[~is_cached[keys]]
        missing = missing[np.sort(np.unique(missing, return_index=True)[1])]
        policy.admit(missing, missing.astype(np.uint64))
        policy.touch(keys)
        is_cached[missing], listed = True, listed + len(missing)
        if listed > size:
            victims = policy.victims(listed - size, listed, OneEach())
            is_cached[victims], listed = False, listed - len(victims)
        yield len(missing)
