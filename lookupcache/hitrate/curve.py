"""`Curve`: hits against size, or against age, at every size at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lookupcache.hitrate.reuse import NEVER

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """A step function: from ``steps[i]`` up to the next step, there are ``hits[i]`` hits of ``requests``.

    ``error`` is the standard error of the hit ratio at each step, None if the curve is exact.
    """

    steps: npt.NDArray[np.int64]
    hits: Floats
    requests: float
    error: Floats | None = None

    @classmethod
    def of(cls, needed: npt.NDArray[np.int64]) -> Curve:
        """Make the curve of requests that are hits from these sizes, or ages, upwards.

        >>> Curve.of(np.array([3, 1, NEVER, 3])).ratio([1, 2, 3]).tolist()
        [0.25, 0.25, 0.75]
        """
        steps, counts = _count_values(needed[needed != NEVER])
        return cls(steps, np.cumsum(counts).astype(np.float64), float(len(needed)))

    def ratio(self, sizes: npt.ArrayLike) -> Floats:
        """Return the hit ratio at each size."""
        return self._at(sizes, self.hits) / max(self.requests, 1)

    def error_at(self, sizes: npt.ArrayLike) -> Floats:
        """Return the standard error of the hit ratio at each size, 0 if it is exact."""
        return np.zeros(np.size(sizes)) if self.error is None else self._at(sizes, self.error)

    @property
    def best(self) -> float:
        """The hit ratio of an unlimited cache."""
        return float(self.hits[-1]) / max(self.requests, 1) if len(self.hits) else 0.0

    def smallest(self, target: float) -> int | None:
        """Return the smallest size that reaches a hit ratio, or None.

        >>> Curve.of(np.array([3, 1, NEVER, 3])).smallest(0.5)
        3
        """
        at = int(np.searchsorted(self.hits, target * self.requests - 1e-9))
        return None if at == len(self.hits) else max(int(self.steps[at]), 1)

    def _at(self, sizes: npt.ArrayLike, values: Floats) -> Floats:
        place = np.searchsorted(self.steps, np.asarray(sizes), side="right")
        return np.concatenate([[0.0], values])[place]


def total(curves: list[Curve]) -> Curve:
    """Return the curve of several caches of one size each, with the requests of all."""
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    hits = np.sum([curve._at(steps, curve.hits) for curve in curves], axis=0)
    requests = sum(curve.requests for curve in curves)
    squares = [(curve.error_at(steps) * curve.requests) ** 2 for curve in curves]
    exact = all(curve.error is None for curve in curves)
    return Curve(steps, hits, requests, None if exact else np.sqrt(np.sum(squares, axis=0)) / max(requests, 1))


def sizes_up_to(most: int, count: int = 40) -> list[int]:
    """Return about ``count`` sizes from 1 to ``most``, in a geometric sequence, rounded.

    >>> sizes_up_to(1000, 7)
    [1, 3, 10, 32, 100, 316, 1000]
    """
    return np.unique(np.geomspace(1, max(most, 1), count).round().astype(np.int64)).tolist()


def _count_values(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct values in order, and how often each occurs."""
    if values.size and values.max() <= 4 * len(values):
        counts = np.bincount(values)
        steps = np.flatnonzero(counts)
        return steps, counts[steps]
    return np.unique(values, return_counts=True)
