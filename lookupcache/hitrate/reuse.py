"""How large an LRU cache a request would need to hit: exact stack distances, for all requests at once.

A request is a hit if the keys used since its key was last requested, and the key itself, fit the cache. That weight
does not depend on the cache's size, so one pass gives the hits at every size (Mattson et al., 1970). The keys used
since then are counted by merging: the earlier requests that follow an older request of the same key than this one's.
All of it is done level by level over full arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int32]

NEVER = np.iinfo(np.int64).max
"""The distance of a request that hits at no size: the first of its key."""


def previous(ids: npt.NDArray[np.integer]) -> Positions:
    """Return for each request the position of the one before it with the same key, -1 for none.

    >>> previous(np.array([5, 6, 5, 5]))
    array([-1, -1,  0,  2], dtype=int32)
    """
    # Sorting numbers that are all different is several times as fast as a stable order.
    tagged = ids.astype(np.int64) * len(ids) + np.arange(len(ids))
    tagged.sort()
    order = (tagged % max(len(ids), 1)).astype(np.int32)
    before = np.full(len(ids), -1, dtype=np.int32)
    same = ids[order[1:]] == ids[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def distances(
    before: Positions, weights: Numbers | None = None, batches: npt.NDArray[np.integer] | None = None
) -> Numbers:
    """Return for each request the smallest cache, by weight, in which it is a hit; `NEVER` for the first of its key.

    ``before`` is `previous`; ``weights`` are those of each request's key, 1 by default. ``batches`` has a
    number for each request, which never falls: a cache looks up a full batch at once, and evicts only after it. Then
    repeats in a batch need no cache.

    >>> distances(previous(np.array([1, 2, 3, 1, 1]))).tolist()[3:]
    [3, 1]
    """
    needed = np.full(len(before), NEVER, dtype=np.int64)
    again = np.flatnonzero(before >= 0)
    if not again.size:
        return needed
    own = np.ones(len(before), dtype=np.int64) if weights is None else weights
    older = before[again]
    ends = again if batches is None else np.searchsorted(batches, batches[again], side="left")
    first = np.concatenate([[0], np.cumsum(np.where(before < 0, own, 0))])
    every = np.concatenate([[0], np.cumsum(own)])
    heavy = None if weights is None else weights[again]
    seen = _older_before(older, heavy, None if batches is None else batches[again])
    needed[again] = first[ends] + seen - every[older + 1] + own[again]
    if batches is not None:
        needed[again[older >= ends]] = 0
    return needed


def _older_before(older: Positions, weights: Numbers | None, batches: npt.NDArray[np.integer] | None) -> Numbers:
    """Return for each request the total weight of earlier requests with a smaller ``older``.

    With batches, only those of earlier batches count: in a batch the requests are sorted the other way round.
    """
    rank = _ranks(older)
    if batches is None:
        return smaller_before(rank, weights)
    order = np.argsort(batches.astype(np.int64) * len(rank) - rank)
    seen = np.empty(len(rank), dtype=np.int64)
    seen[order] = smaller_before(rank[order], None if weights is None else weights[order])
    return seen


def _ranks(distinct: Positions) -> Positions:
    marks = np.zeros(int(distinct.max(initial=0)) + 1, dtype=np.int32)
    marks[distinct] = 1
    return (np.cumsum(marks, dtype=np.int32) - 1)[distinct]


def smaller_before(values: Positions, weights: Numbers | None = None) -> Numbers:
    """Return for each position the weight of the smaller values before it; ``values`` are 0, 1, 2 … in any order.

    A radix sort of the positions, which start in the order of their values, from the highest bit to the lowest. Each
    step splits every block of positions into a lower and an upper half. A position of the upper half comes after all of
    the lower half. So the lower ones before it in the block are smaller values at earlier positions. No later step
    compares the two again: each pair is counted once.

    >>> smaller_before(np.array([1, 3, 0, 2], np.int32)).tolist()
    [0, 1, 0, 2]
    """
    count = len(values)
    kind = np.int32 if weights is None else np.int64
    total: npt.NDArray[Any] = np.zeros(count, dtype=kind)
    positions = np.empty(count, dtype=np.int32)
    positions[values] = np.arange(count, dtype=np.int32)
    index = np.arange(count, dtype=np.int32)
    for bit in range(max(count - 1, 0).bit_length() - 1, -1, -1):
        upper = ((positions >> bit) & 1).astype(np.bool_)
        # Blocks start at multiples of their size, since positions are 0, 1, 2 … and all higher bits are sorted.
        starts = (index >> (bit + 1)) << (bit + 1)
        through = np.cumsum(upper, dtype=np.int32)
        uppers = through - upper - (through - upper)[starts]
        lowers = index - starts - uppers
        counted = lowers if weights is None else _weigh_lower(positions, upper, starts, weights)
        total[positions[upper]] += counted[upper]
        target = starts + np.where(upper, np.int32(1 << bit) + uppers, lowers)
        split = np.empty_like(positions)
        split[target] = positions
        positions = split
    return total.astype(np.int64)


def _weigh_lower(positions: Positions, upper: npt.NDArray[np.bool_], starts: Positions, weights: Numbers) -> Numbers:
    """Return for each element the weight of the lower ones before it in its block."""
    lower = np.where(upper, 0, weights[positions])
    before = np.cumsum(lower) - lower
    return before - before[starts]
