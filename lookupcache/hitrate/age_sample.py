"""Hits under an age limit, estimated from a sample of the keys.

The sampled keys represent all keys that are not hot. For hot keys the gaps are counted, which gives their hits after
access. After write, one request is fetched per average number of requests within the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lookupcache.hitrate.ageing import Ages
from lookupcache.hitrate.reuse import NEVER, Numbers
from lookupcache.hitrate.shards import MIDDLES, Chosen, Sample


@dataclass(frozen=True, eq=False)
class AgeSample:
    """A sample of a plain cache's requests; ``seconds`` is the duration of all requests, if known."""

    sample: Sample
    chosen: Chosen
    seconds: float | None

    @classmethod
    def of(cls, sample: Sample, seconds: float | None) -> AgeSample:
        """Find the distances in a sample.

        >>> from lookupcache.hitrate.shards import SampledKeys
        >>> words = np.random.default_rng(1).integers(0, 20_000, 200_000).astype(np.uint64)
        >>> sample = Sample(SampledKeys(0.5, words[:0]))
        >>> sample.add(words)
        >>> ages = AgeSample.of(sample, None)
        >>> round(ages.after_access(20_000), 1), round(ages.after_write(20_000), 1)
        (0.6, 0.5)
        """
        return cls(sample, Chosen.of(sample), seconds)

    def after_access(self, limit: int, size: float = np.inf, *, by_time: bool = False) -> float:
        """Return the hit ratio under a limit since the last request, in requests or microseconds."""
        cold = self._ages(size, by_time).after_access(limit) / max(len(self.chosen.ids), 1)
        return self._with_hot(cold, self._hot(self._in_requests(limit, by_time), size))

    def after_write(self, limit: int, size: float = np.inf, *, by_time: bool = False) -> float:
        """Return the hit ratio under a limit since the key was fetched, in requests or microseconds."""
        length, requested = self._in_requests(limit, by_time), self.sample.requested.astype(np.float64)
        fetched = requested / (1 + length * requested / max(self.sample.requests, 1))
        spared = self._hot(np.inf, size) / max(self._hot(np.inf, np.inf), 1)
        cold = self._ages(size, by_time).after_write(limit) / max(len(self.chosen.ids), 1)
        return self._with_hot(cold, float((requested - fetched).sum()) * spared)

    def _ages(self, size: float, by_time: bool) -> Ages:
        times = np.concatenate(self.sample.times) if by_time else self.chosen.positions
        needed: Numbers = np.minimum(np.ceil(self.chosen.needed), float(1 << 62)).astype(np.int64)
        needed[np.isinf(self.chosen.needed)] = NEVER
        return Ages.of(self.chosen.before, times, needed, size)

    def _in_requests(self, limit: int, by_time: bool) -> float:
        return limit * self.sample.requests / ((self.seconds or 1) * 1_000_000) if by_time else float(limit)

    def _hot(self, length: float, size: float) -> float:
        """Return how many requests of hot keys follow within a length and fit the size."""
        return float(self.sample.gaps[(length >= MIDDLES) & (self.chosen.hot_needed <= size)].sum())

    def _with_hot(self, cold: float, hot_hits: float) -> float:
        rest = self.sample.requests - self.sample.hot_requests
        return (cold * rest + hot_hits) / max(self.sample.requests, 1)
