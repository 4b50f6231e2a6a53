"""Requests replayed under any policy: the very policies of the cache, over dense key numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Hashes
from lookupcache.cache.policies import policy_of
from lookupcache.hitrate.reuse import Numbers

_BATCHES_IN_A_CACHE = 100


@dataclass(frozen=True)
class Replay:
    """Hits of one policy at one size, of all requests and of their second half."""

    eviction: str
    size: int
    requests: int
    hits: int
    warm_hits: int

    @property
    def ratio(self) -> float:
        """The hit ratio."""
        return self.hits / max(self.requests, 1)


def one_by_one(size: int) -> int:
    """Return how many requests a replay may take at a time and still tell what one after the other would give."""
    return max(size // _BATCHES_IN_A_CACHE, 1)


def replay(ids: npt.NDArray[np.int32], eviction: str, size: int, batch: int, rows: Numbers | None = None) -> Replay:
    """Replay requests in batches through a cache of ``size`` rows; ``rows`` says what each key weighs, 1 by default.

    As in the worker, a batch finds what it can, asks once for each key that is missing, and then entries that are too
    many are evicted.

    >>> replay(np.array([0, 1, 0, 2, 0, 1], np.int32), "lru", size=2, batch=1).hits
    2
    """
    cache = _Cache(ids, eviction, size, batch, rows)
    misses = [cache.take(ids[start : start + batch]) for start in range(0, len(ids), batch)]
    half = len(ids) // 2 // batch
    warm = len(ids) - half * batch - sum(misses[half:])
    return Replay(eviction, size, len(ids), len(ids) - sum(misses), warm)


class _Cache:
    """Which keys are there, and what they weigh; a policy's holder."""

    def __init__(self, ids: npt.NDArray[np.int32], eviction: str, size: int, batch: int, rows: Numbers | None) -> None:
        room = size + batch + 1
        self.size = size
        self.policy = policy_of(eviction)
        self.policy.grow(room)
        self.rows = rows
        self.entry = np.full(int(ids.max(initial=-1)) + 1, -1, dtype=np.int32)
        self.key = np.zeros(room, dtype=np.int32)
        self.free = np.arange(room, dtype=np.int32)
        self.held = 0

    def take(self, keys: npt.NDArray[np.int32]) -> int:
        """Ask for a batch of keys; return how many were missing."""
        entries, missing = self.entry[keys], 0
        if entries.min() < 0:
            missing = self._fetch(_distinct(keys[entries < 0]))
            entries = self.entry[keys]
        self.policy.touch(entries)
        if self.held > self.size:
            self._evict()
        return missing

    def _fetch(self, keys: npt.NDArray[np.int32]) -> int:
        entries, self.free = self.free[: len(keys)], self.free[len(keys) :]
        self.entry[keys], self.key[entries] = entries, keys
        self.policy.admit(entries, keys.astype(np.uint64))
        self.held += int(self.weights(entries).sum())
        return len(keys)

    def _evict(self) -> None:
        gone = self.policy.victims(self.held - self.size, self.held, self)
        self.held -= int(self.weights(gone).sum())
        self.entry[self.key[gone]] = -1
        self.free = np.concatenate([self.free, gone])

    def weights(self, entries: Entries) -> Numbers:
        """Return what each entry weighs."""
        if self.rows is None:
            return np.ones(len(entries), dtype=np.int64)
        return self.rows[self.key[entries]]

    def words(self, entries: Entries) -> Hashes:
        """Return the keys' numbers."""
        return self.key[entries].astype(np.uint64)


def _distinct(keys: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return each key once, in order of appearance."""
    if len(keys) == 1:
        return keys
    first = np.unique(keys, return_index=True)[1]
    return keys[np.sort(first)]
