"""Requests replayed by the policies of `lookupcache.cache`: key by key as `cached` makes them, or batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from lookupcache.cache.key_queues import evicting_dict
from lookupcache.cache.policy import OneEach
from lookupcache.cache.policy_queues import policy_of

Keys = npt.NDArray[np.int32]
"""The keys of requests, numbered from 0."""

_FEW = 50
"""Batches of fewer rows are replayed key by key, which is faster then."""


def replay(ids: Keys, eviction: str, size: int, batch: int) -> int:
    """Return the hits of requests, in batches of ``batch``, in a cache of ``size`` rows.

    >>> replay(np.array([0, 1, 0, 2, 0, 1], np.int32), "lru", size=2, batch=1)
    2
    """
    return len(ids) - sum(misses(ids, eviction, size, batch))


def misses(ids: Keys, eviction: str, size: int, batch: int) -> Iterator[int]:
    """Yield for each batch how many of its keys were missing.

    As in the worker, a batch finds cached keys and requests each missing key once; then entries are evicted if there
    are too many. Every key weighs one.
    """
    if batch < _FEW:
        return _misses_of_keys(ids, eviction, size, batch)
    batches = (ids[start : start + batch] for start in range(0, len(ids), batch))
    return map(len, missing_keys(batches, eviction, size, int(ids.max(initial=-1)) + 1))


def _misses_of_keys(ids: Keys, eviction: str, size: int, batch: int) -> Iterator[int]:
    cached, keys = evicting_dict(eviction), ids.tolist()
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


def missing_keys(batches: Iterable[Keys], eviction: str, size: int, count: int) -> Iterator[Keys]:
    """Yield the missing keys of each batch, of ``count`` keys in all; keys are the numbers of their entries."""
    policy = policy_of(eviction)
    policy.grow(count)
    is_cached, listed = np.zeros(count, np.bool_), 0
    for keys in batches:
        missing = keys[~is_cached[keys]]
        missing = missing[np.sort(np.unique(missing, return_index=True)[1])]
        policy.admit(missing, missing.astype(np.uint64))
        policy.touch(keys)
        is_cached[missing], listed = True, listed + len(missing)
        if listed > size:
            victims = policy.victims(listed - size, listed, OneEach())
            is_cached[victims], listed = False, listed - len(victims)
        yield missing


def in_turns(
    ids: npt.NDArray[np.integer], worker: npt.NDArray[np.integer], turn: npt.NDArray[np.integer]
) -> list[Keys]:
    """Return the batches of workers that take turns; ``turn`` is the number of each row's batch among its worker's.

    >>> in_turns(np.array([4, 5, 6]), worker=np.array([1, 0, 1]), turn=np.array([0, 0, 0]))
    [array([5], dtype=int32), array([4, 6], dtype=int32)]
    """
    order = np.lexsort((worker, turn))
    ends = np.flatnonzero(np.diff(turn[order]) | np.diff(worker[order])) + 1
    return [ids[rows].astype(np.int32) for rows in np.split(order, ends) if len(rows)]
