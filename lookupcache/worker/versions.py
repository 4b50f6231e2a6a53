"""The latest version among the matches of each left row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.arrays import to_numpy


def greatest_of_each(owner: npt.NDArray[np.int64], versions: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which pairs have the greatest version of their left row; several have where they are equal.

    ``owner`` is the left row of each pair, in ascending order; there is at least one pair, and no null.

    >>> greatest_of_each(np.array([0, 0, 2, 2, 2]), pa.array([5, 3, 1, 4, 4])).tolist()
    [True, False, False, True, True]
    """
    starts = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    if len(starts) == len(owner):
        return np.ones(len(owner), dtype=np.bool_)
    order = _in_order(versions)
    greatest = np.maximum.reduceat(order, starts)
    return order == np.repeat(greatest, np.diff(starts, append=len(owner)))


def _in_order(versions: pa.Array) -> npt.NDArray[np.int64]:
    """Return integers in the order of the versions."""
    type_ = versions.type
    if pa.types.is_decimal(type_):
        # Decimals have more digits than an integer: their ranks take their place.
        import pyarrow.compute as pc

        return np.asarray(to_numpy(pc.rank(versions, tiebreaker="dense").cast(pa.int64())))
    if pa.types.is_date(type_):
        versions = versions.cast(pa.int32())
    return np.asarray(to_numpy(versions.cast(pa.int64())))
