"""Hits of a cache whose entries expire: by requests or by time, after write or after access, with and without a size.

An expired entry stays in the cache until it is requested again or evicted. After access, a request is a hit if the
previous one is not older than the limit, so the gaps form a curve. After write, the age since the last fetch counts,
which depends on the limit. So the fetches of all keys are found one after the other, in parallel.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookupcache.hitrate.curve import Curve
from lookupcache.hitrate.reuse import NEVER, Numbers, Positions

_FEW = 64


@dataclass(frozen=True, eq=False)
class Ages:
    """The requests sorted by key, with their times.

    ``order`` are positions; ``begins`` says where a key begins, or what was kept of it was evicted: there nothing can
    be found. ``times`` are in the order of ``order``.
    """

    order: Numbers
    times: Numbers
    begins: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, before: Positions, times: Numbers, needed: Numbers | None = None, size: float = np.inf) -> Ages:
        """Sort requests by key.

        Args:
            before: For each request, the position of the request of the same key before it, or -1.
            times: The time of each request.
            needed: The size of a cache in which each request would hit, by `distances`.
            size: The size of the cache, in which requests that need a larger one miss.
        """
        return cls.sorted(_by_key(before), before, times, needed, size)

    @classmethod
    def sorted(
        cls, order: Numbers, before: Positions, times: Numbers, needed: Numbers | None = None, size: float = np.inf
    ) -> Ages:
        """Do the same as `of`, with the order of other ages of these requests.

        Args:
            order: The positions of the requests, by key.
            before: As for `of`.
            times: As for `of`.
            needed: As for `of`.
            size: As for `of`.
        """
        begins = before[order] < 0
        if needed is not None and size < np.inf:
            begins |= needed[order] > size
        return cls(order, times[order], begins)

    def after_access(self) -> Curve:
        """Return hits against the limit, by time since the last request."""
        gaps = np.diff(self.times, prepend=self.times[:1])
        return Curve.of(np.where(self.begins, NEVER, gaps))

    def hits_after_access(self, limit: int) -> int:
        """Return the hits under one limit, by time since the last request."""
        gaps = np.diff(self.times, prepend=self.times[:1])
        return int(np.count_nonzero((gaps <= limit) & ~self.begins))

    def after_write(self, limit: int) -> int:
        """Return the hits under one limit, by time since the key was fetched."""
        gaps = np.diff(self.times, prepend=self.times[:1])
        fetched = np.flatnonzero(self.begins | (gaps > limit))
        ends = np.append(fetched[1:], len(self.times))
        misses = len(fetched)
        while len(fetched) > _FEW:
            fetched = self._first_later(fetched, ends, limit)
            there = fetched < ends
            fetched, ends = fetched[there], ends[there]
            misses += len(fetched)
        return len(self.times) - misses - sum(map(self._fetches, fetched.tolist(), ends.tolist(), [limit] * len(ends)))

    def _first_later(self, fetched: Numbers, ends: Numbers, limit: int) -> Numbers:
        """Return for each fetch the first later request after the limit, or the end."""
        low, high, latest = fetched + 1, ends.copy(), self.times[fetched] + limit
        while (open_ := low < high).any():
            middle = (low + high) // 2
            late = self.times[np.minimum(middle, len(self.times) - 1)] > latest
            high = np.where(open_ & late, middle, high)
            low = np.where(open_ & ~late, middle + 1, low)
        return low

    def _fetches(self, fetched: int, end: int, limit: int) -> int:
        """Return how often a key with few requests is fetched again."""
        times = self.times[fetched:end].tolist()
        at, count = 0, 0
        while (at := bisect_right(times, times[at] + limit, at + 1)) < len(times):
            count += 1
        return count


def _by_key(before: Positions) -> Numbers:
    """Return the positions sorted by key, those of each key in order."""
    first = np.arange(len(before))
    again = before >= 0
    # The first of a key is found by following its requests back, twice as far each time.
    first[again] = before[again]
    while not np.array_equal(further := first[first], first):
        first = further
    return np.argsort(first, kind="stable")
