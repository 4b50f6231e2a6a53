"""The rows of many keys as frames and back, a column at a time: no Python object per row or value.

The body of a frame has the key, then its rows, column after column; a column has, one after another,

- one byte per value: 1, or 0 for a null;
- numbers, dates, timestamps, decimals, booleans: the values;
- strings, binaries: four bytes of length per value, then all characters;
- arrays, maps: four bytes of length per value, then the elements as a column;
- structs: the fields as columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.arrays import whole
from lookupcache.cache.keys import KeyBatch, Mask, Positions
from lookupcache.store.frames import HEADER_BYTES, Bytes, Floats, Frames, padded, read_frames, seal

_MOST_BYTES = 2**31 - 1


@dataclass(frozen=True)
class StoredRows:
    """The rows of some keys of a batch: ``positions`` of the keys, ``rows`` in their order, ``counts`` per key.

    ``written`` is when each key's rows were fetched, in seconds by the clock of the store.
    """

    positions: Positions
    rows: pa.Table
    counts: Positions
    written: Floats

    def take(self, kept: Positions) -> StoredRows:
        """Return the rows of some of these keys, in order."""
        if len(kept) == len(self.positions):
            return self
        mask = np.zeros(len(self.positions), np.bool_)
        mask[kept] = True
        rows = self.rows.take(pa.array(np.flatnonzero(np.repeat(mask, self.counts))))
        return StoredRows(self.positions[kept], rows, self.counts[kept], self.written[kept])


class _DamagedError(Exception):
    """Some frames end before their columns do; ``which`` are their numbers."""

    def __init__(self, which: Positions) -> None:
        self.which = which


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────


def to_frames(keys: KeyBatch, rows: pa.Table, counts: Positions, written: float, schema: int) -> list[bytes]:
    """Return a frame for each key.

    None of the keys is null; rows are in their order. They were fetched at ``written``, by the store's clock;
    ``schema`` is the hash of their schema.
    """
    one_each = np.arange(len(keys) + 1)
    ends = np.concatenate([[0], np.cumsum(counts)])
    parts = [part for column in keys.columns for part in _parts(column, one_each)]
    parts += [part for column in rows.columns for part in _parts(whole(column), ends)]
    return join_parts(parts, counts, written, schema)


def join_parts(parts: Sequence[tuple[Bytes, Positions]], counts: Positions, written: float, schema: int) -> list[bytes]:
    """Return a frame for each key; of the bytes of each part, its bounds say where those of each key begin."""
    sizes = HEADER_BYTES + sum((np.diff(bounds) for _, bounds in parts), np.zeros(len(counts), np.int64))
    ends = np.cumsum(padded(sizes))
    starts = ends - padded(sizes)
    frames = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    cursor = starts + HEADER_BYTES
    for data, bounds in parts:
        lengths = np.diff(bounds)
        frames[_spans(cursor, lengths)] = data[bounds[0] : bounds[-1]]
        cursor = cursor + lengths
    seal(frames, starts, counts, written, schema)
    whole = frames.tobytes()
    return [whole[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _parts(array: pa.Array, bounds: Positions) -> Iterator[tuple[Bytes, Positions]]:
    """Yield the parts of a column: bytes, and which of them are each key's; ``bounds`` are the keys' first values."""
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))
    type_, buffers = array.type, array.buffers()
    valid = np.asarray(array.is_valid()).astype(np.uint8)
    yield valid, bounds
    if pa.types.is_struct(type_):
        for number in range(type_.num_fields):
            yield from _parts(array.field(number), bounds)
    elif pa.types.is_nested(type_) or pa.types.is_string(type_) or pa.types.is_binary(type_):
        offsets = np.frombuffer(buffers[1], np.int32, len(array) + 1) if len(array) else np.zeros(1, np.int32)
        yield np.diff(offsets).astype("<u4").view(np.uint8), bounds * 4
        if pa.types.is_nested(type_):
            yield from _parts(_elements(array), offsets[bounds].astype(np.int64))
        else:
            yield _as_bytes(buffers[2]), offsets[bounds].astype(np.int64)
    else:
        yield _fixed(array, valid), bounds * _width(type_)


def _elements(array: pa.Array) -> pa.Array:
    if not pa.types.is_map(array.type):
        return array.values
    return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])


def _fixed(array: pa.Array, valid: Bytes) -> Bytes:
    if pa.types.is_boolean(array.type):
        return np.asarray(array.fill_null(False)).astype(np.uint8)
    width = _width(array.type)
    data = _as_bytes(array.buffers()[1])[: len(array) * width]
    if array.null_count:
        # Below a null there may be anything that was in memory before.
        data = (data.reshape(-1, width) * valid[:, None]).reshape(-1)
    return data


def _as_bytes(buffer: pa.Buffer | None) -> Bytes:
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _width(type_: pa.DataType) -> int:
    return 1 if pa.types.is_boolean(type_) else type_.bit_width // 8


def _spans(starts: Positions, lengths: Positions) -> Positions:
    """Return the positions of bytes that lie in spans, one span after another."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(int(ends[-1]) if len(ends) else 0)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────


def from_frames(
    values: Sequence[bytes | None], keys: KeyBatch, key_types: Sequence[pa.DataType], schema: pa.Schema, hashed: int
) -> StoredRows:
    """Return the rows of the keys whose frames are neither damaged nor of another key.

    ``values`` has a frame for each key, or None; ``hashed`` is the hash of the schema of keys and rows.
    """
    frames = read_frames(values, hashed)
    while True:
        try:
            found, same = _read(frames, keys, key_types, schema)
            return found.take(np.flatnonzero(same))
        except _DamagedError as error:
            frames = _without(frames, error.which)


def _read(
    frames: Frames, keys: KeyBatch, key_types: Sequence[pa.DataType], schema: pa.Schema
) -> tuple[StoredRows, Mask]:
    reader = _FrameReader(frames)
    one_each = np.ones(len(frames.positions), np.int64)
    found = [reader.column(type_, one_each) for type_ in key_types]
    arrays = [reader.column(field.type, frames.rows) for field in schema]
    reader.check_end()
    rows = pa.Table.from_arrays(arrays, schema=schema) if arrays else _without_columns(int(frames.rows.sum()))
    try:
        rows.validate(full=True)
        same = _equal(found, keys, frames.positions)
    except pa.ArrowInvalid:
        # Bytes with a right checksum that are no text: another program has written them.
        raise _DamagedError(np.arange(len(frames.positions))) from None
    return StoredRows(frames.positions, rows, frames.rows, frames.written), same


def _equal(found: Sequence[pa.Array], keys: KeyBatch, positions: Positions) -> Mask:
    """Return which of the keys in frames are those that were requested: two keys may have the same name."""
    same = np.ones(len(positions), np.bool_)
    index = pa.array(positions)
    for own, column in zip(found, keys.columns, strict=True):
        requested = column.take(index)
        own.validate(full=True)
        if pa.types.is_floating(own.type):
            integers = pa.int32() if own.type.bit_width == 32 else pa.int64()
            own, requested = own.view(integers), requested.view(integers)
        same &= np.asarray(pc.equal(own, requested).fill_null(False))
    return same


def _without_columns(rows: int) -> pa.Table:
    """Return a table of ``rows`` rows; a semi join, which only asks whether rows exist, has no columns."""
    return pa.table({"none": pa.nulls(rows)}).select([])


def _without(frames: Frames, which: Positions) -> Frames:
    kept = np.setdiff1d(np.arange(len(frames.positions)), which)
    return Frames(
        frames.positions[kept], frames.rows[kept], frames.written[kept], frames.joined, frames.starts[kept],
        frames.ends[kept],
    )  # fmt: skip


class _FrameReader:
    """Reads the columns of all frames, one after another."""

    def __init__(self, frames: Frames) -> None:
        self._join_fragments = frames.joined
        self._cursor = frames.starts
        self._ends = frames.ends

    def column(self, type_: pa.DataType, counts: Positions) -> pa.Array:
        """Return a column with the given number of values in each frame."""
        valid = self._take(counts) != 0
        number = len(valid)
        bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        if pa.types.is_struct(type_):
            children = [self.column(field.type, counts) for field in type_]
            return pa.Array.from_buffers(type_, number, [bitmap], children=children)
        if pa.types.is_nested(type_) or pa.types.is_string(type_) or pa.types.is_binary(type_):
            offsets, sums = self._lengths(counts)
            if pa.types.is_nested(type_):
                inner = pa.struct([type_.key_field, type_.item_field]) if pa.types.is_map(type_) else type_.value_type
                return pa.Array.from_buffers(type_, number, [bitmap, offsets], children=[self.column(inner, sums)])
            return pa.Array.from_buffers(type_, number, [bitmap, offsets, pa.py_buffer(self._take(sums))])
        data = self._take(counts * _width(type_))
        if pa.types.is_boolean(type_):
            data = np.packbits(data != 0, bitorder="little")
        return pa.Array.from_buffers(type_, number, [bitmap, pa.py_buffer(data)])

    def check_end(self) -> None:
        """Raise if frames are longer than their columns."""
        self._check(self._ends - self._cursor < 8)

    def _lengths(self, counts: Positions) -> tuple[pa.Buffer, Positions]:
        """Return offsets from the lengths of values, and the sum of the lengths in each frame."""
        lengths = self._take(counts * 4).view("<u4").astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ends = np.cumsum(counts)
        sums = offsets[ends] - offsets[ends - counts]
        self._check(sums <= self._ends - self._cursor)
        if offsets[-1] > _MOST_BYTES:
            raise _DamagedError(np.arange(len(counts)))
        return pa.py_buffer(offsets.astype(np.int32)), sums

    def _take(self, sizes: Positions) -> Bytes:
        self._check(sizes <= self._ends - self._cursor)
        taken = self._join_fragments[_spans(self._cursor, sizes)]
        self._cursor = self._cursor + sizes
        return taken

    def _check(self, fits: Mask) -> None:
        if not fits.all():
            raise _DamagedError(np.flatnonzero(~fits))
