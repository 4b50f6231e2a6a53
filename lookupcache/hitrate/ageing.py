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

from lookupcache.hitrate.reuse import Numbers, Positions

_FEW = 64


@dataclass(frozen=True, eq=False)
class Ages:
    """The requests sorted by key, with their times.

    ``order`` are positions; ``begins`` marks the first request of a key, and those after its eviction, which miss.
    ``times`` are in the order of ``order``.
    """

    order: Numbers
    times: Numbers
    begins: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        before: Positions,
        times: Numbers,
        needed: Numbers | None = None,
        size: float = np.inf,
        *,
        order: Numbers | None = None,
    ) -> Ages:
        """Sort requests by key; ``before`` is `previous`, ``order`` that of other ages of these requests.

        In a cache of a ``size``, those requests miss that need a larger one by `distances`.
        """
        order = _by_key(before) if order is None else order
        begins = before[order] < 0
        if needed is not None and size < np.inf:
            begins |= needed[order] > size
        return cls(order, times[order], begins)

    def after_access(self, limit: int) -> int:
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
