"""Arrow arrays as numpy arrays and back, without what pyarrow's own conversions import: pandas, `numpy.ma`; and which
of their rows Spark takes for equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


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


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def from_numpy(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers or booleans as an Arrow array, null where ``mask`` is true; numbers are not copied.

    `pyarrow.array` imports `numpy.ma`, which takes 8 ms in a fresh worker.

    >>> from_numpy(np.array([7, 8, 9])[::2], np.array([True, False])).to_pylist()
    [None, 9]
    >>> from_numpy(np.array([True, False, True])).to_pylist()
    [True, False, True]
    """
    type_ = pa.from_numpy_dtype(values.dtype)
    data = _packed(values) if values.dtype == np.bool_ else np.ascontiguousarray(values)
    validity = None if mask is None else pa.py_buffer(_packed(~mask))
    return pa.Array.from_buffers(type_, len(values), [validity, pa.py_buffer(data)])


def _packed(values: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(values, bitorder="little")


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the distinct integers in order; `numpy.unique` imports `numpy.ma` too.

    >>> distinct(np.array([3, 1, 3])).tolist(), distinct(np.array([], np.int64)).tolist()
    ([1, 3], [])
    """
    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


_GROUPS = 1 << 16


_MOST_MARKS = 1 << 18


def count_distinct(numbers: npt.NDArray[np.integer], most: int | None = None) -> int:
    """Return how many different numbers there are; none is negative, and all are below ``most``, if that is given.

    Where ``most`` is not large, a mark is set for each. Else a table that several numbers of an array share rarely is
    written and read back: numpy keeps the last write. This takes a fifth of the time of sorting.

    >>> count_distinct(np.array([7, 7 + 2 ** 16, 5, 7]))
    3
    """
    if most is not None and most <= _MOST_MARKS:
        marks = np.zeros(most, dtype=np.bool_)
        marks[numbers] = True
        return int(np.count_nonzero(marks))
    rows = np.arange(len(numbers), dtype=np.int32)
    slot = numbers & (_GROUPS - 1)
    # Not cleared: only elements that were just written are read.
    table = np.empty(_GROUPS, dtype=np.int32)
    table[slot] = rows
    chosen = table.take(slot)
    other = numbers[numbers.take(chosen) != numbers]
    return int(np.count_nonzero(chosen == rows)) + (len(distinct(other)) if other.size else 0)


def normalized(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return a column in a type, with one value for all that Spark takes for equal: -0.0 is 0.0, every NaN the same.

    >>> normalized(pa.array([-0.0, 0.0]), pa.float64()).to_pylist()
    [0.0, 0.0]
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type != type_:
        column = column.cast(type_)
    if not pa.types.is_floating(type_):
        return column
    values = pc.add(column, pa.scalar(0.0, type_))
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), type_), values)


@dataclass(frozen=True)
class Distinct:
    """``first``: the first row of each key, in order of appearance; ``code``: the key of each row, -1 for null."""

    first: npt.NDArray[np.int64]
    code: npt.NDArray[np.int64]


def distinct_rows(columns: Sequence[pa.Array]) -> Distinct:
    """Return which rows are the first of those with their values, which are `normalized`; rows with a null have none.

    >>> distinct_rows([pa.array([7, 8, 7, None]), pa.array(["a", "b", "a", "a"])])
    Distinct(first=array([0, 1]), code=array([ 0,  1,  0, -1]))
    """
    codes = encode(columns)
    count = int(codes.max(initial=-1)) + 1
    first = np.empty(count, dtype=np.int64)
    rows = np.flatnonzero(codes >= 0)[::-1]
    first[codes[rows]] = rows
    return Distinct(first, codes)


def encode(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Number the distinct tuples of the columns by first appearance; -1 where any column is null.

    >>> encode([pa.array([7, 8, 7, None]), pa.array(["a", "b", "a", "a"])])
    array([ 0,  1,  0, -1])
    """
    codes = _codes(columns[0])
    for column in columns[1:]:
        right = _codes(column)
        both = np.where((codes < 0) | (right < 0), -1, codes * (int(right.max(initial=0)) + 1) + right)
        codes = _codes(from_numpy(both, both < 0))
    return codes


def _codes(column: pa.Array) -> npt.NDArray[np.int64]:
    indices = column.dictionary_encode().indices
    return to_numpy(indices.fill_null(-1)).astype(np.int64)
