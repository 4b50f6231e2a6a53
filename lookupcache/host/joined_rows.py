"""An Arrow IPC stream of the rows of several batches as one, written from their buffers without joining them first.

Joining copies all values into new memory, whose pages the kernel clears: that takes as long as writing the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_OFFSET = np.dtype("<i4")


class _Parts:
    """A file to pyarrow that keeps what is written, without copying buffers."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def write(self, part: Any) -> int:
        self.parts.append(part)
        return len(part)

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _Pieces:
    """Stands for buffers that are written one after the other: a buffer of their size, whose bytes are not read."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[Any]] = {}

    def stand_in(self, pieces: list[Any]) -> Any:
        """Return the buffer that stands for pieces."""
        size = sum(len(piece) for piece in pieces)
        if not size:
            return pa.py_buffer(b"")
        # Address space alone: private pages that are not written are neither allocated nor reserved.
        buffer = pa.py_buffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ))
        self._pieces[buffer.address] = pieces
        return buffer

    def resolve(self, part: Any) -> list[Any]:
        """Return the pieces that a part of a stream stands for, or the part."""
        return self._pieces.get(part.address, [part]) if isinstance(part, pa.Buffer) else [part]


def ipc_parts(batches: Sequence[pa.RecordBatch]) -> list[Any]:
    """Return the parts of an Arrow IPC stream with the rows of all batches as one batch.

    >>> batches = [pa.record_batch({"a": ["x", "yz"], "n": [1, None]}), pa.record_batch({"a": [""], "n": [3]})]
    >>> pa.ipc.open_stream(b"".join(map(bytes, ipc_parts(batches)))).read_next_batch().to_pydict()
    {'a': ['x', 'yz', ''], 'n': [1, None, 3]}
    """
    schema = batches[0].schema
    if not len(schema):
        return []
    pieces = _Pieces()
    columns = [_join_fragments(column, pieces) for column in zip(*(batch.columns for batch in batches), strict=True)]
    sink = _Parts()
    with pa.PythonFile(sink, mode="w") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return [piece for part in sink.parts for piece in pieces.resolve(part)]


def _join_fragments(arrays: Sequence[pa.Array], pieces: _Pieces) -> pa.Array:
    type_ = arrays[0].type
    if len(arrays) == 1:
        return arrays[0]
    if any(array.null_count or array.offset for array in arrays):
        return pa.concat_arrays(arrays)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return _joined_texts(arrays, pieces)
    if pa.types.is_primitive(type_) and type_.bit_width % 8 == 0:
        width = type_.bit_width // 8
        values = pieces.stand_in([array.buffers()[1][: len(array) * width] for array in arrays if len(array)])
        return pa.Array.from_buffers(type_, sum(map(len, arrays)), [None, values])
    return pa.concat_arrays(arrays)


def _joined_texts(arrays: Sequence[pa.Array], pieces: _Pieces) -> pa.Array:
    arrays = [array for array in arrays if len(array)] or [arrays[0]]
    if len(arrays) == 1:
        return arrays[0]
    ends = [np.frombuffer(array.buffers()[1], _OFFSET, len(array) + 1) for array in arrays]
    sizes = [int(one[-1]) - int(one[0]) for one in ends]
    before = np.cumsum([0, *sizes])
    moved = [one[1:] - one[0] + at for one, at in zip(ends, before[:-1].astype(_OFFSET), strict=True)]
    offsets = np.concatenate([np.zeros(1, _OFFSET), *moved])
    data = [
        array.buffers()[2][int(one[0]) : int(one[-1])]
        for array, one in zip(arrays, ends, strict=True)
        if one[-1] > one[0]
    ]
    buffers = [None, pa.py_buffer(offsets), pieces.stand_in(data)]
    return pa.Array.from_buffers(arrays[0].type, sum(map(len, arrays)), buffers)
