"""Requests for keys, read from files, tables and DataFrames: one word for each row, in order, and its time.

    sources: batches of the required columns ─► words (a hash of the key) · times ─► Requests

A row with a null in its key requests nothing and is left out, as in a lookup join.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.arrays import to_numpy
from lookupcache.cache.keys import Hashes, KeyBatch
from lookupcache.errors import SchemaError, nearest
from lookupcache.hitrate.reuse import Numbers
from lookupcache.hitrate.sources import open_source
from lookupcache.versions import to_arrow

Progress = Callable[[str, int, int | None], None]
"""Called with a step's name, how much of it is done, and of how much, if that is known."""

_LONGEST_HASHED = 256
_SECOND = 1_000_000
_MOST_FIRST = 10_000


@dataclass(frozen=True, eq=False)
class Requests:
    """The requested keys, in order: a word for each, and its time in microseconds, if there is one.

    ``nulls`` is how many rows were left out.
    """

    words: Hashes
    times: Numbers | None = None
    nulls: int = 0

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> npt.NDArray[np.int32]:
        """The keys as numbers from 0, in the order of their first occurrence."""
        return to_numpy(pa.array(self.words).dictionary_encode().indices)

    @cached_property
    def keys(self) -> int:
        """The number of distinct keys."""
        return int(self.ids.max(initial=-1)) + 1

    @property
    def seconds(self) -> float | None:
        """The duration of the requests, if known."""
        if self.times is None or self.times[-1] == self.times[0]:
            return None
        return float(self.times[-1] - self.times[0]) / _SECOND


def read_requests(
    source: Any,
    keys: Sequence[str] | None = None,
    time: str | None = None,
    progress: Progress | None = None,
    schema: pa.Schema | None = None,
) -> Requests:
    """Read the requests of a file or folder (Parquet, CSV), or of an Arrow table or pandas DataFrame.

    Keys of a CSV, and those in names of folders, are texts as they are written, unless ``schema`` states a type. The
    key columns need not be named if there is no other column. Times are timestamps, dates, or seconds as numbers.

    Raises SchemaError for columns that do not exist or cannot be keys or times, for input without rows, and for times
    that decrease.

    >>> requests = read_requests(pa.table({"id": [7, None, 8, 7], "s": [0.0, 1.0, 1.5, 2.0]}), ["id"], "s")
    >>> requests.ids.tolist(), requests.nulls, requests.seconds
    ([0, 1, 0], 1, 2.0)
    """
    opened = open_source(source)
    keys = key_columns(opened.name, opened.columns, keys, time)
    stated = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
    _refuse_others(stated, keys)
    words, times, nulls, done = [], [], 0, 0
    for batch in opened.batches([*keys, *([time] if time else [])], stated):
        found, valid = words_of([batch.column(key) for key in keys], keys)
        words.append(found[valid])
        nulls += len(found) - int(np.count_nonzero(valid))
        if time:
            times.append(microseconds(batch.column(time), time)[valid])
        done += batch.num_rows
        if progress is not None:
            progress("Reading rows", done, opened.rows)
    every = np.concatenate(words) if words else np.empty(0, np.uint64)
    if not len(every):
        why = f"All {nulls:,} rows have a null in their key." if nulls else "It has no rows."
        raise SchemaError(f"{opened.name} holds no keys.", hint=why)
    moments = np.concatenate(times) if time else None
    if moments is not None:
        refuse_backwards(moments, str(time))
    return Requests(every, moments, nulls)


def first_keys(source: Any, names: Sequence[str]) -> pa.Table:
    """Return the first distinct keys of a file, table or DataFrame, without nulls: up to ten thousand of them.

    >>> first_keys(pa.table({"id": [7, None, 8, 7]}), ["id"]).column("id").to_pylist()
    [7, 8]
    """
    if hasattr(source, "sparkSession"):
        key_columns("The DataFrame", source.columns, names, None)
        return to_arrow(source.select(*names).dropna().distinct().limit(_MOST_FIRST))
    opened = open_source(source)
    key_columns(opened.name, opened.columns, names, None)
    found = pa.table({column: pa.nulls(0) for column in names})
    for batch in opened.batches(list(dict.fromkeys(names)), {}):
        rows = pa.Table.from_batches([batch]).select(names).drop_null()
        more = pa.concat_tables([found.cast(rows.schema), rows])
        found = more.group_by(names, use_threads=False).aggregate([]).select(names)
        if found.num_rows >= _MOST_FIRST:
            break
    return found.slice(0, _MOST_FIRST)


def key_columns(name: str, there: Sequence[str], keys: Sequence[str] | None, time: str | None) -> list[str]:
    """Return the key columns, by default the only column besides ``time``; raises SchemaError for an unknown one.

    ``name`` is the source of the columns ``there``, as the beginning of the sentence.
    """
    wanted = list(keys) if keys else [column for column in there if column != time]
    if not keys and len(wanted) != 1:
        listed = ", ".join(repr(column) for column in there)
        raise SchemaError(f"{name} has {len(wanted)} columns that may be the key.", hint=f"Name the key's: {listed}.")
    for column in [*wanted, *([time] if time else [])]:
        if not isinstance(column, str):
            raise SchemaError(f"A key column is a name, not {type(column).__name__}.", hint="Write keys=['id', 'day'].")
        if column not in there:
            raise SchemaError(f"{name} has no column {column!r}.", hint=nearest(column, there, what="columns"))
    return wanted


def _refuse_others(stated: Iterable[str], keys: Sequence[str]) -> None:
    for name in stated:
        if name not in keys:
            raise SchemaError(
                f"The schema states a type for {name!r}, which is no key column.",
                hint=nearest(name, keys, what="key columns"),
            )


def words_of(columns: Sequence[pa.Array], names: Sequence[str]) -> tuple[Hashes, npt.NDArray[np.bool_]]:
    """Return a word for each key, and whether it is valid: not if a column is null."""
    plain = [_plain(column, name) for column, name in zip(columns, names, strict=True)]
    batch = KeyBatch.of(plain, [column.type for column in plain])
    return batch.hashes, batch.mask()


def microseconds(column: pa.Array, name: str) -> Numbers:
    """Return times as microseconds; numbers are seconds, and texts are read as numbers or as timestamps."""
    if column.null_count:
        raise SchemaError(f"Time column {name!r} holds nulls.", hint="Leave those rows out, or do without times.")
    if pa.types.is_string(column.type):
        column = _read_times(column, name)
    type_ = column.type
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        stamps = column.cast(pa.timestamp("us", getattr(type_, "tz", None)), safe=False)
        return np.asarray(stamps.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=np.int64)
    if pa.types.is_integer(type_):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64) * _SECOND
    if pa.types.is_floating(type_):
        return np.round(column.to_numpy(zero_copy_only=False) * _SECOND).astype(np.int64)
    raise SchemaError(f"Column {name!r} is {type_}, which is no time.", hint="Give a timestamp, a date, or seconds.")


def _read_times(column: pa.Array, name: str) -> pa.Array:
    for type_ in (pa.int64(), pa.float64(), pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            return column.cast(type_)
        except pa.ArrowException as error:
            last = error
    raise SchemaError(
        f"Column {name!r} has a text which is no time: {last}.", hint="Give a timestamp, a date, or seconds."
    )


def refuse_backwards(times: Numbers, name: str) -> None:
    """Raise SchemaError if a time is earlier than the one before it."""
    back = np.flatnonzero(np.diff(times) < 0)
    if back.size:
        raise SchemaError(
            f"Times run backwards: {name!r} falls by {-np.diff(times)[back[0]] / _SECOND:g} s "
            f"at row {int(back[0]) + 2:,}.",
            hint=f"Sort the rows by {name!r}, or leave the time column out.",
        )


def _plain(column: pa.Array, name: str) -> pa.Array:
    """Return a key column in a type that can be hashed; long texts are replaced by a digest."""
    type_ = column.type
    if isinstance(type_, pa.BaseExtensionType):
        return _plain(column.storage, name)
    if pa.types.is_dictionary(type_):
        return _plain(column.dictionary_decode(), name)
    if pa.types.is_large_string(type_) or pa.types.is_string(type_) or pa.types.is_string_view(type_):
        return _shorten(column.cast(pa.string()))
    if any(is_it(type_) for is_it in _BINARY):
        return _shorten(column.cast(pa.binary()))
    if pa.types.is_null(type_):
        return column.cast(pa.int64())
    if pa.types.is_decimal(type_):
        # Only those of 128 bits are hashed; the scale is that of the column, so equal numbers are equal texts.
        return column if pa.types.is_decimal128(type_) else column.cast(pa.string())
    if not pa.types.is_primitive(type_) or pa.types.is_float16(type_) or pa.types.is_interval(type_):
        raise not_a_key(name, type_)
    return column


def not_a_key(name: str, type_: Any) -> SchemaError:
    """Return the error for a column of a type that no key has."""
    return SchemaError(f"Column {name!r} is {type_}, which cannot be a key.", hint="Name the fields that are.")


_BINARY = (
    pa.types.is_large_binary, pa.types.is_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view,
)  # fmt: skip


def _shorten(column: pa.Array) -> pa.Array:
    """Replace long texts by a digest, since hashing reads only the start and the end of them."""
    if (pc.max(pc.binary_length(column)).as_py() or 0) <= _LONGEST_HASHED:
        return column
    texts = column.dictionary_encode()
    short = [_digest(value) for value in texts.dictionary.cast(pa.binary()).to_pylist()]
    return pa.array(short, pa.binary()).take(texts.indices)


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=24).digest() if len(value) > _LONGEST_HASHED else value
