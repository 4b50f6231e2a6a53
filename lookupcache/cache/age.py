"""`Age`: how old entries may be: when they expire, are due for a refresh, and may no longer be served for an error.

All storages of columns decide by it: a worker's own cache, and the files that the workers of a host share.
"""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import numpy.typing as npt

from lookupcache.cache.entry_columns import Numbers
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Mask
from lookupcache.cache.limits import Limits

Times = npt.NDArray[np.float64]


@cache
def random_of(process: int) -> np.random.Generator:
    """Return a process's random numbers; forked workers that shared them would let their entries expire together."""
    return np.random.default_rng()


class Age:
    """The age limits of entries; times are seconds of any clock.

    >>> age = Age(Limits(write_seconds=10, miss_seconds=4, refresh_seconds=6, stale_seconds=60))
    >>> deadline = age.deadline(100.0, np.array([1, 0]))
    >>> deadline, age.last(np.array([100.0, 100.0]), deadline), age.is_due(np.array([100.0, 103.0]), now=106.0)
    (array([110., 104.]), array([160., 160.]), array([ True, False]))
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def deadline(self, written: float | Times, counts: Numbers | Entries) -> Times:
        """Return when entries expire; a known miss, which has no rows, has an age limit of its own."""
        limits = self._limits
        seconds = np.where(counts > 0, limits.write_seconds, limits.miss_seconds)
        if limits.jitter:
            seconds = limits.spread(seconds, random_of(os.getpid()).random(len(counts)))
        deadline: Times = written + seconds
        return deadline

    def last(self, written: Times, deadline: Times) -> Times:
        """Return the ends of use: a stale entry is used after its deadline, if fetching it has failed."""
        return np.maximum(deadline, written + self._limits.stale_seconds) if self._limits.stale_seconds else deadline

    def is_due(self, written: Times, now: float) -> Mask:
        """Return which entries are due for a refresh, unless they have expired."""
        due: Mask = now - written >= self._limits.refresh_seconds
        return due

    def is_old(self, written: Times, deadline: Times, now: float) -> Mask:
        """Return which entries are to be fetched again: they have expired, or are due for a refresh."""
        old: Mask = self.is_due(written, now) | (deadline < now)
        return old
