"""Hit ratios from a sample of the keys: SHARDS, with the hottest keys counted in full, and its error.

Keys are chosen by a hash, so that all requests of a key are in the sample or none. Distances among them are scaled up
(Waldspurger et al., FAST 2015). Whether a very frequent key is sampled would decide the result. So the hottest keys are
not sampled: for each, only the gaps between its requests are counted. The size that a gap needs is the average number
of distinct keys in a window of that length (Xiang et al., ASPLOS 2013). The total number of requests for the other keys
is known, which corrects the estimate by regression.

    words ─► Sample.add, on any machine ─► Sample (small) ─► joined ─► estimate ─► Curve with its error
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lookupcache.cache.keys import Hashes
from lookupcache.hitrate.curve import Curve, Floats
from lookupcache.hitrate.reuse import NEVER, Numbers, Positions, distances, previous

LEAST_KEYS = 8_000
"""With fewer keys in the sample than these, exact figures are worth their time."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MOST_HOT = 512
_FINE = 1 << 12
_PER_DOUBLING = 64


def _edges() -> Floats:
    """Return the lower bounds of the bins of gaps: one per small gap, then a fixed number for each doubling."""
    doublings = np.arange(_PER_DOUBLING * 40) / _PER_DOUBLING
    return np.concatenate([np.arange(_FINE), _FINE * 2.0**doublings])


_EDGES = _edges()
_MIDDLES = np.concatenate([_EDGES[:_FINE], np.sqrt(_EDGES[_FINE:-1] * _EDGES[_FINE + 1 :]), _EDGES[-1:]])


@dataclass(frozen=True)
class SampledKeys:
    """Which keys are in a sample: ``hot`` ones (sorted words), and of the others the part ``rate``.

    With ``batch``, a cache looks up that many requests at once: of a key's requests in one batch only the first
    can miss.
    """

    rate: float
    hot: Hashes
    batch: int = 1

    @classmethod
    def of(cls, some: Hashes, rate: float, batch: int = 1) -> SampledKeys:
        """Find the hot keys among some requests: those with at least a two-thousandth of them."""
        words, counts = np.unique(some, return_counts=True)
        order = np.argsort(counts)[::-1][:_MOST_HOT]
        hot = words[order[counts[order] >= max(len(some) / 2_000, 8)]]
        return cls(rate, np.sort(hot), batch)

    def hot_numbers(self, words: Hashes) -> npt.NDArray[np.int16]:
        """Return the position of each word among the hot ones, -1 for others."""
        if not len(self.hot):
            return np.full(len(words), -1, dtype=np.int16)
        place = np.searchsorted(self.hot, words)
        place[place == len(self.hot)] = 0
        return np.where(self.hot[place] == words, place, -1).astype(np.int16)

    def choose(self, words: Hashes) -> npt.NDArray[np.bool_]:
        """Return which words are sampled."""
        mixed = words * _ODD
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        return (mixed >> np.uint64(11)).astype(np.float64) < self.rate * 2.0**53


@dataclass
class Sample:
    """The record of requests that follow each other: positions and words of the chosen keys, gaps of the hot ones.

    ``gaps`` counts the gaps of hot keys by their bin. ``first`` and ``last`` are the first and last position of each,
    or -1.
    """

    choice: SampledKeys
    requests: int = 0
    positions: list[Numbers] = field(default_factory=list)
    words: list[Hashes] = field(default_factory=list)
    hot_requests: int = 0
    gaps: Numbers = field(default_factory=lambda: np.zeros(len(_EDGES), dtype=np.int64))
    first: Numbers = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    last: Numbers = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if not len(self.first):
            self.first = np.full(len(self.choice.hot), -1, dtype=np.int64)
            self.last = self.first.copy()

    def add(self, words: Hashes) -> None:
        """Add the requests that follow."""
        hot = self.choice.hot_numbers(words)
        chosen = np.flatnonzero(self.choice.choose(words) & (hot < 0))
        self.positions.append(chosen + self.requests)
        self.words.append(words[chosen])
        self._add_hot(hot)
        self.requests += len(words)

    def _add_hot(self, hot: npt.NDArray[np.int16]) -> None:
        there = np.flatnonzero(hot >= 0)
        if not there.size:
            return
        order = there[np.argsort(hot[there], kind="stable")]
        number, position = hot[order], order + self.requests
        begins = np.flatnonzero(np.diff(number, prepend=-1) != 0)
        ends = np.append(begins[1:], len(number)) - 1
        before = np.empty_like(position)
        before[1:] = position[:-1]
        before[begins] = self.last[number[begins]]
        self.last[number[ends]] = position[ends]
        new = begins[self.first[number[begins]] < 0]
        self.first[number[new]] = position[new]
        self._count(before[before >= 0], position[before >= 0])
        self.hot_requests += len(position)

    def _count(self, before: Numbers, position: Numbers) -> None:
        """Count gaps; those within a batch need no cache, others extend to the start of the batch."""
        begin = position // self.choice.batch * self.choice.batch
        gap = np.where(before >= begin, 0, begin - before) if self.choice.batch > 1 else position - before
        self.gaps += np.bincount(_bins(gap), minlength=len(_EDGES))

    def concat_with(self, other: Sample) -> Sample:
        """Return the sample of these requests and, after them, the others."""
        both = (self.last >= 0) & (other.first >= 0)
        sample = Sample(
            self.choice,
            self.requests + other.requests,
            [*self.positions, *(part + self.requests for part in other.positions)],
            [*self.words, *other.words],
            self.hot_requests + other.hot_requests,
            self.gaps + other.gaps,
            np.where(self.first >= 0, self.first, _shift_positions(other.first, self.requests)),
            np.where(other.last >= 0, _shift_positions(other.last, self.requests), self.last),
        )
        sample._count(self.last[both], other.first[both] + self.requests)
        return sample

    @property
    def keys(self) -> int:
        """The number of sampled keys."""
        return len(np.unique(np.concatenate(self.words))) if self.words else 0


def estimate(sample: Sample, sizes: Sequence[int], hits_of: HitsOf | None = None) -> Curve:
    """Estimate the hit ratio of all requests at some sizes, with the standard error.

    ``hits_of`` returns the function that gives the hits of each sampled key at a size, where they are not those of one
    LRU cache.

    >>> words = np.random.default_rng(1).integers(0, 20_000, 200_000).astype(np.uint64)
    >>> sample = Sample(SampledKeys.of(words[:10_000], rate=0.5))
    >>> sample.add(words)
    >>> curve = estimate(sample, [2_000, 10_000])
    >>> bool(abs(curve.ratio([2_000])[0] - 0.1) < 0.01), bool(curve.error_at([2_000])[0] < 0.01)
    (True, True)
    """
    chosen = Chosen.of(sample)
    rate, ids, keys = sample.choice.rate, chosen.ids, chosen.keys
    requested = np.bincount(ids, minlength=keys)
    cold = sample.requests - sample.hot_requests
    at = hits_of(chosen) if hits_of else lambda size: np.bincount(ids[chosen.needed <= size], minlength=keys)
    hits, errors = [], []
    for size in sizes:
        found = at(size)
        hit, error = _regress(found, requested, cold, rate)
        hits.append(hit + float(sample.gaps[chosen.hot_needed <= size].sum()))
        errors.append(error / sample.requests)
    rising = np.maximum.accumulate(np.array(hits))
    return Curve(np.array(sizes, dtype=np.int64), rising, float(sample.requests), np.array(errors))


@dataclass(frozen=True, eq=False)
class Chosen:
    """The sampled requests: keys by number, the position of the previous request, and the size needed for a hit.

    ``hot_needed`` is the size that a gap of each bin needs.
    """

    ids: Numbers
    keys: int
    before: Positions
    positions: Numbers
    needed: Floats
    hot_needed: Floats

    @classmethod
    def of(cls, sample: Sample) -> Chosen:
        """Find the distances in a sample and scale them up."""
        rate, batch, positions = sample.choice.rate, sample.choice.batch, np.concatenate(sample.positions)
        keys, ids = np.unique(np.concatenate(sample.words), return_inverse=True)
        before = previous(ids)
        needed = distances(before, batches=positions // batch if batch > 1 else None)
        hot, every = _footprints(sample, before, positions, len(keys))
        scaled = np.where(needed == NEVER, np.inf, np.where(needed > 0, (needed - 1) / rate + 1, 0.0))
        again = (needed != NEVER) & (needed > 0)
        scaled[again] += np.interp(positions[again] - positions[before[again]], _MIDDLES, hot)
        return cls(ids, len(keys), before, positions, scaled, every * (_MIDDLES > 0))


HitsOf = Callable[[Chosen], Callable[[int], Numbers]]


def _regress(hits: Numbers, requested: Numbers, requests: int, rate: float) -> tuple[float, float]:
    """Return the number of hits of all cold keys, and its standard error.

    The sample's requests, scaled up, are more or fewer than there are. The difference is taken to hit as often as keys
    of the sample do, weighted by their requests.
    """
    squares = float((requested.astype(np.float64) ** 2).sum())
    slope = float((requested * hits).sum()) / squares if squares else 0.0
    guess = float(hits.sum()) / rate + slope * (requests - float(requested.sum()) / rate)
    rest = hits - slope * requested
    error = np.sqrt(max(1 - rate, 0) * float((rest**2).sum())) / rate
    return float(np.clip(guess, 0, requests)), float(error)


def _footprints(sample: Sample, before: Positions, positions: Numbers, keys: int) -> tuple[Floats, Floats]:
    """Return the average number of distinct hot keys, and of all, in windows as long as the middles of the bins."""
    n = sample.requests
    there = sample.first[sample.first >= 0]
    ends = n - 1 - sample.last[sample.last >= 0]
    counts = np.concatenate([sample.gaps, np.ones(2 * len(there))])
    hot_absent = _windows_without(np.concatenate([_MIDDLES, there, ends]), counts)
    again = before >= 0
    between = positions[again] - positions[before[again]]
    last = np.ones(len(before), dtype=np.bool_)
    last[before[again]] = False
    edges = np.concatenate([between, positions[~again], n - 1 - positions[last]]).astype(np.float64)
    cold_absent = _windows_without(edges, np.ones(len(edges)))
    windows = np.maximum(n - _MIDDLES + 1, 1)
    hot = len(there) - hot_absent / windows
    cold = (keys - cold_absent / windows) / sample.choice.rate
    hot, cold = (np.maximum.accumulate(np.maximum(part, 0)) for part in (hot, cold))
    return hot, hot + cold


def _windows_without(gaps: Floats, counts: Floats) -> Floats:
    """Return for each length of windows how many have none of the keys with these gaps, summed over the keys."""
    order = np.argsort(gaps)
    later = np.append(np.cumsum(counts[order][::-1])[::-1], 0.0)
    sums = np.append(np.cumsum((counts[order] * gaps[order])[::-1])[::-1], 0.0)
    at = np.searchsorted(gaps[order], _MIDDLES, side="right")
    return sums[at] - _MIDDLES * later[at]


def _shift_positions(places: Numbers, by: int) -> Numbers:
    return np.where(places >= 0, places + by, -1)


def _bins(gaps: Numbers) -> Numbers:
    bins = np.minimum(gaps, _FINE)
    wide = gaps >= _FINE
    bins[wide] = np.searchsorted(_EDGES, gaps[wide], side="right") - 1
    return bins
