"""Which entries of a host's cache are evicted, by the policies of `lookupcache.cache` or an approximation of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lookupcache.cache.keys import Mask
from lookupcache.host.control import Control
from lookupcache.host.segment import Segment

Rows = npt.NDArray[Any]


def choose_victims(
    eviction: str,
    control: Control,
    segments: Sequence[Segment],
    live: Sequence[Rows],
    weights: Sequence[Rows],
    excess: float,
) -> list[Mask]:
    """Return for each segment which of its live entries to evict.

    Args:
        eviction: The policy's name.
        control: The page on which a policy keeps its state.
        segments: The segments.
        live: The entries of each segment that are not removed.
        weights: What these weigh.
        excess: What the chosen entries have to weigh together at least.
    """
    used = np.concatenate([segment.used[rows] for segment, rows in zip(segments, live, strict=True)])
    weight = np.concatenate(weights)
    chosen = np.zeros(len(used), dtype=np.bool_)
    chosen[_least_recent(used, weight, excess)] = True
    return np.split(chosen, np.cumsum([len(rows) for rows in live])[:-1])


def _least_recent(used: Rows, weight: Rows, excess: float) -> Rows:
    """Return the least recently used entries that weigh enough; ties go by position."""
    size = int(min(len(used), max(excess, 1)))
    # Each entry weighs one or more, so as many entries as the excess are enough; only these are sorted.
    oldest = np.argpartition(used, size - 1)[:size] if size < len(used) else np.arange(len(used))
    oldest = oldest[np.argsort(used[oldest], kind="stable")]
    enough = int(np.searchsorted(np.cumsum(weight[oldest]), excess)) + 1
    return oldest[:enough]
