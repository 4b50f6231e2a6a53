"""Arrow arrays as numpy arrays, without the pandas that pyarrow's own conversion imports."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def to_numpy(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an array of numbers or booleans without nulls; numbers are not copied.

    `pyarrow.Array.to_numpy` imports pandas, which takes longer than all that a worker needs besides.

    >>> to_numpy(pa.array([1.5, 2.5, 3.5])[1:]).tolist(), to_numpy(pa.array([True, False, True])[1:]).tolist()
    ([2.5, 3.5], [False, True])
    >>> to_numpy(pa.array([False] * 9 + [True, False])[9:]).tolist()
    [True, False]
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    assert not column.null_count, "a null has no value"
    data, type_ = column.buffers()[1], column.type
    if pa.types.is_boolean(type_):
        if not len(column):
            return np.empty(0, np.bool_)
        first, skipped = divmod(column.offset, 8)
        bits = np.frombuffer(data, np.uint8, offset=first)
        return np.unpackbits(bits, count=skipped + len(column), bitorder="little")[skipped:].view(np.bool_)
    kind = "f" if pa.types.is_floating(type_) else "u" if pa.types.is_unsigned_integer(type_) else "i"
    dtype = np.dtype(f"{kind}{type_.bit_width // 8}")
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)
