"""Keys as columns: normalised to Spark's equality, hashed and distinguished a full batch at a time.

Arrow key columns ─► KeyBatch.of ─► columns (normalised) · hashes (one 64-bit word per row) · valid
                                       │
                                       └─► distinct() ─► the keys to request from a source
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.arrays import Distinct, distinct_rows, encode, from_numpy, normalized, to_numpy

Hashes = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PROCESS_SEED = int.from_bytes(os.urandom(8), "little") | 1
"""The seed of hashes that no other process has to know."""

_PROCESS_WORD = np.uint64(PROCESS_SEED)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_BYTE_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)
_STEPS = 32
_WORDS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class KeyBatch:
    """The keys of a batch of rows.

    ``columns`` hold the key values under Spark's equality (-0.0 is 0.0, every NaN the same NaN).
    ``hashes`` has one word per row; where `is_exact` says so of the types, equal words mean equal keys, else the
    columns decide. ``valid`` is None where no key column holds a null, else False for the rows that have one.
    ``seed`` is that of the hashes, by default one of this process.
    """

    columns: tuple[pa.Array, ...]
    hashes: Hashes
    valid: Mask | None
    seed: int = PROCESS_SEED

    @classmethod
    def of(cls, columns: Sequence[pa.Array], types: Sequence[pa.DataType], seed: int = PROCESS_SEED) -> KeyBatch:
        """Normalise and hash key columns, in the types of the lookup table's key columns.

        >>> KeyBatch.of([pa.array([0.0, -0.0, None])], [pa.float64()]).distinct().first
        array([0])
        """
        normal = tuple(normalized(column, type_) for column, type_ in zip(columns, types, strict=True))
        return cls(normal, hash_keys(normal, np.uint64(seed)), _valid(normal), seed)

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, rows: Positions) -> KeyBatch:
        """Return the keys of these rows."""
        index = from_numpy(rows)
        valid = None if self.valid is None else self.valid[rows]
        return KeyBatch(tuple(column.take(index) for column in self.columns), self.hashes[rows], valid, self.seed)

    def mask(self) -> Mask:
        """Return which rows have a key, one without nulls."""
        return np.ones(len(self), dtype=np.bool_) if self.valid is None else self.valid

    def with_seed(self, seed: int) -> KeyBatch:
        """Return these keys with the hashes that another process gets with the same seed.

        >>> keys = KeyBatch.of([pa.array(["a", "b"])], [pa.string()])
        >>> bool((keys.with_seed(7).hashes == keys.with_seed(7).hashes).all())
        True
        """
        if seed == self.seed or is_exact([column.type for column in self.columns]):
            return self
        return KeyBatch(self.columns, hash_keys(self.columns, np.uint64(seed)), self.valid, seed)

    def concat_with(self, other: KeyBatch) -> KeyBatch:
        """Return these keys and then the others; neither holds a null."""
        columns = tuple(pa.concat_arrays(pair) for pair in zip(self.columns, other.columns, strict=True))
        return KeyBatch(columns, np.concatenate([self.hashes, other.with_seed(self.seed).hashes]), None, self.seed)

    def distinct(self) -> Distinct:
        """Return which rows are the first of their key, and for each row which key it has; nulls have none."""
        return distinct_rows(self.columns)


def hash_keys(columns: Sequence[pa.Array], seed: np.uint64 = _PROCESS_WORD) -> Hashes:
    """Return a 64-bit word for each row of normalised key columns; by default with a seed of this process.

    The seed keeps an attacker from choosing many keys with the same hash.
    """
    words = [word for column in columns for word in _words(column, seed)]
    return words[0] if len(words) == 1 else _combine_hashes(words, seed)


def column_of_words(words: Hashes, type_: pa.DataType) -> pa.Array:
    """Return the keys that such words stand for: they are the values of a single column of numbers.

    >>> column_of_words(np.array([1, 2**64 - 2], np.uint64), pa.int32()).to_pylist()
    [1, -2]
    """
    if pa.types.is_boolean(type_):
        return from_numpy(words != 0)
    if pa.types.is_floating(type_):
        values = words.view(np.float64).astype(np.float32 if type_.bit_width == 32 else np.float64)
    else:
        values = words.view(np.int64).astype(np.dtype(f"i{type_.bit_width // 8}"))
    return pa.Array.from_buffers(type_, len(words), [None, pa.py_buffer(np.ascontiguousarray(values))])


def is_exact(types: Sequence[pa.DataType]) -> bool:
    """Return whether equal hashes of such keys always mean equal keys."""
    return len(types) == 1 and not (
        pa.types.is_string(types[0]) or pa.types.is_binary(types[0]) or pa.types.is_decimal(types[0])
    )


def match(requested: Sequence[pa.Array], returned: Sequence[pa.Array]) -> Positions:
    """Return for each returned key its position among the requested ones, which are distinct, or -1."""
    count = len(requested[0])
    codes = encode([pa.concat_arrays([a, b]) for a, b in zip(requested, returned, strict=True)])[count:]
    # Codes are numbered by first appearance, so the codes of distinct requested keys are their positions.
    return np.where(codes < count, codes, -1)


def _valid(columns: Sequence[pa.Array]) -> Mask | None:
    masks = [to_numpy(column.is_valid()) for column in columns if column.null_count]
    return np.logical_and.reduce(masks) if masks else None


def _words(column: pa.Array, seed: np.uint64) -> list[Hashes]:
    """Return the column as 64-bit words: one, two for a decimal; of a null row, any."""
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return [_hash_column(column, seed)]
    if pa.types.is_decimal(type_):
        pairs = _buffer(column, np.dtype(np.uint64), 2)
        return [np.ascontiguousarray(pairs[0::2]), np.ascontiguousarray(pairs[1::2])]
    if pa.types.is_boolean(type_):
        column = column.cast(pa.uint8())
    raw = _buffer(column, np.dtype(_NUMPY[column.type.bit_width, pa.types.is_floating(type_)]), 1)
    if pa.types.is_floating(type_):
        return [raw.astype(np.float64, copy=False).view(np.uint64)]
    return [raw.astype(np.int64, copy=False).view(np.uint64)]


_NUMPY: dict[tuple[int, bool], Any] = {
    (8, False): np.int8, (16, False): np.int16, (32, False): np.int32, (64, False): np.int64,
    (32, True): np.float32, (64, True): np.float64,
}  # fmt: skip


def _buffer(column: pa.Array, dtype: np.dtype[Any], per_row: int) -> npt.NDArray[Any]:
    """Return the values as they lie in memory, without a copy, also those that the null bitmap marks as null."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(len(column) * per_row, dtype)
    start = column.offset * per_row * dtype.itemsize
    return np.frombuffer(data, dtype, len(column) * per_row, start)


def _hash_column(column: pa.Array, seed: np.uint64) -> Hashes:
    """Hash strings eight bytes at a time: the first 256 bytes of all rows at once, then the rest of each long one."""
    starts, lengths, data = _bytes(column)
    words = np.lib.stride_tricks.as_strided(data[:8].view(np.uint64), shape=(data.size - 7,), strides=(1,))
    hashes = lengths.astype(np.uint64) * _ODD ^ seed
    rows: Any = slice(None)
    for number in range(_STEPS):
        left = lengths[rows] - 8 * number
        if not (left > 0).all():
            rows = np.flatnonzero(lengths > 8 * number)
            left = lengths[rows] - 8 * number
            if not rows.size:
                return hashes
        word = words[starts[rows] + 8 * number] & _BYTE_MASKS[np.minimum(left, 8)]
        hashes[rows] = _mix(hashes[rows] ^ word)
    rows = np.flatnonzero(lengths > 8 * _STEPS)
    hashes[rows] = _mix(hashes[rows] ^ _rest(words, starts[rows] + 8 * _STEPS, lengths[rows] - 8 * _STEPS, seed))
    return hashes


def _rest(words: Hashes, starts: Positions, lengths: Positions, seed: np.uint64) -> Hashes:
    """Hash the rest of long strings: the sum of their words, each mixed with its number."""
    sums = np.empty(len(starts), np.uint64)
    counts = (lengths + 7) // 8
    ends = np.cumsum(counts)
    first = 0
    while first < len(starts):
        before = ends[first] - counts[first]
        last = max(int(np.searchsorted(ends, before + _WORDS_AT_ONCE, side="right")), first + 1)
        part = slice(first, last)
        offsets = ends[part] - counts[part] - before
        number = np.arange(ends[last - 1] - before) - np.repeat(offsets, counts[part])
        word = words[np.repeat(starts[part], counts[part]) + 8 * number]
        word[ends[part] - before - 1] &= _BYTE_MASKS[(lengths[part] - 1) % 8 + 1]
        mixed = _mix(_mix(word ^ (number.view(np.uint64) * _ODD) ^ seed))
        sums[part] = np.add.reduceat(mixed, offsets)
        first = last
    return sums


def _bytes(column: pa.Array) -> tuple[Positions, Positions, npt.NDArray[np.uint8]]:
    """Return start, length and bytes of each string; the bytes are padded so that a word can always be read."""
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        nothing = np.zeros(len(column), np.int64)
        return nothing, nothing, np.zeros(16, np.uint8)
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    size = int(ends[-1] - ends[0])
    padded = np.zeros(size + 16, np.uint8)
    if size:
        padded[:size] = np.frombuffer(data, np.uint8, size, int(ends[0]))
    return ends[:-1] - ends[0], np.diff(ends), padded


def _mix(words: Hashes) -> Hashes:
    words = words * _ODD
    return words ^ (words >> _HALF)


def _combine_hashes(words: Sequence[Hashes], seed: np.uint64) -> Hashes:
    hashes = np.full(len(words[0]), seed)
    for word in words:
        hashes = _mix(hashes ^ word)
    return hashes
