"""Requests for keys, read from files, tables and DataFrames: one word for each row, in order, and its time.

    Parquet · CSV · pandas · Arrow ─► batches of the required columns ─► words (a hash of the key) · times ─► Requests

A row with a null in its key requests nothing and is left out, as in a lookup join.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lookupcache.cache.keys import Hashes, KeyBatch
from lookupcache.errors import SchemaError, nearest

Progress = Callable[[str, int, int | None], None]
"""Called with what is done, how much of it, and of how much, if that is known."""

Numbers = npt.NDArray[np.int64]

_ROWS_AT_A_TIME = 1 << 18
_LONGEST_HASHED = 256
_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".gz": "csv"}
_SECOND = 1_000_000


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
        return pd.factorize(self.words)[0].astype(np.int32)

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
    source: Any, keys: Sequence[str] | None = None, time: str | None = None, progress: Progress | None = None
) -> Requests:
    """Read the requests of a file or folder (Parquet, CSV), or of an Arrow table or pandas DataFrame.

    Raises SchemaError for columns that do not exist or cannot be keys or times, for input without rows, and for times
    that decrease.

    Args:
        source: A path, an Arrow table or a pandas DataFrame.
        keys: The key columns; optional if there is no other column.
        time: The column with the times: timestamps, dates, or seconds as numbers.
        progress: Called with a step's name, how much of it is done, and of how much.

    >>> requests = read_requests(pa.table({"id": [7, None, 8, 7], "s": [0.0, 1.0, 1.5, 2.0]}), ["id"], "s")
    >>> requests.ids.tolist(), requests.nulls, requests.seconds
    ([0, 1, 0], 1, 2.0)
    """
    name, schema, rows, batches = _open_source(source)
    keys = key_columns(name, schema.names, keys, time)
    words, times, nulls, done = [], [], 0, 0
    for batch in batches([*keys, *([time] if time else [])]):
        found, valid = words_of([batch.column(key) for key in keys], keys)
        words.append(found[valid])
        nulls += len(found) - int(np.count_nonzero(valid))
        if time:
            times.append(microseconds(batch.column(time), time)[valid])
        done += batch.num_rows
        if progress is not None:
            progress("Reading rows", done, rows)
    every = np.concatenate(words) if words else np.empty(0, np.uint64)
    if not len(every):
        raise SchemaError(f"{name} holds no keys.", hint=_why_empty(nulls))
    return Requests(every, _in_order(np.concatenate(times), str(time)) if time else None, nulls)


def first_keys(source: Any, names: Sequence[str], most: int = 10_000) -> pa.Table:
    """Return the first distinct keys of a file, table or DataFrame, without nulls: up to ``most`` of them.

    >>> first_keys(pa.table({"id": [7, None, 8, 7]}), ["id"]).column("id").to_pylist()
    [7, 8]
    """
    if hasattr(source, "sparkSession"):
        key_columns("The DataFrame", source.columns, names, None)
        return source.select(*names).dropna().distinct().limit(most).toArrow()
    name, schema, _, batches = _open_source(source)
    key_columns(name, schema.names, names, None)
    found = pa.table({column: pa.array([], schema.field(column).type) for column in names})
    for batch in batches(list(names)):
        more = pa.concat_tables([found, pa.Table.from_batches([batch]).select(names).drop_null()])
        found = more.group_by(names, use_threads=False).aggregate([]).select(names)
        if found.num_rows >= most:
            break
    return found.slice(0, most)


def key_columns(name: str, there: Sequence[str], keys: Sequence[str] | None, time: str | None) -> list[str]:
    """Return the key columns, by default the only column; raises SchemaError for one that does not exist.

    Args:
        name: What has the columns, as the beginning of the sentence.
        there: The names of its columns.
        keys: The names of the key columns; None or empty for the only column.
        time: The name of the column with the time of a request, which is no key; None if there is none.
    """
    wanted = list(keys) if keys else [column for column in there if column != time]
    if not keys and len(wanted) != 1:
        listed = ", ".join(repr(column) for column in there)
        raise SchemaError(f"{name} has {len(wanted)} columns that may be the key.", hint=f"Name the key's: {listed}.")
    for column in [*wanted, *([time] if time else [])]:
        if column not in there:
            raise SchemaError(f"{name} has no column {column!r}.", hint=nearest(column, there, what="columns"))
    return wanted


def words_of(columns: Sequence[pa.Array], names: Sequence[str]) -> tuple[Hashes, npt.NDArray[np.bool_]]:
    """Return a word for each key, and whether it is valid: not if a column is null."""
    plain = [_plain(column, name) for column, name in zip(columns, names, strict=True)]
    batch = KeyBatch.of(plain, [column.type for column in plain])
    return batch.hashes, batch.mask()


def microseconds(column: pa.Array, name: str) -> Numbers:
    """Return times as microseconds; numbers are seconds."""
    type_ = column.type
    if column.null_count:
        raise SchemaError(f"Time column {name!r} holds nulls.", hint="Leave those rows out, or do without times.")
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        stamps = column.cast(pa.timestamp("us", getattr(type_, "tz", None)), safe=False)
        return np.asarray(stamps.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=np.int64)
    if pa.types.is_integer(type_):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64) * _SECOND
    if pa.types.is_floating(type_):
        return np.round(column.to_numpy(zero_copy_only=False) * _SECOND).astype(np.int64)
    raise SchemaError(f"Column {name!r} is {type_}, which is no time.", hint="Give a timestamp, a date, or seconds.")


def refuse_backwards(times: Numbers, name: str, before: int = 0) -> None:
    """Raise SchemaError if a time is earlier than the one before it."""
    back = np.flatnonzero(np.diff(times) < 0)
    if back.size:
        raise SchemaError(
            f"Times run backwards: {name!r} falls by {-np.diff(times)[back[0]] / _SECOND:g} s "
            f"at row {before + int(back[0]) + 2:,}.",
            hint=f"Sort the rows by {name!r}, or leave the time column out.",
        )


def _in_order(times: Numbers, name: str) -> Numbers:
    refuse_backwards(times, name)
    return times


def _why_empty(nulls: int) -> str:
    return f"All {nulls:,} rows have a null in their key." if nulls else "It has no rows."


def _open_source(source: Any) -> tuple[str, pa.Schema, int | None, Callable[[list[str]], Iterable[pa.RecordBatch]]]:
    """Return the source's name, its columns, its number of rows if known, and a function that reads it."""
    if isinstance(source, pd.DataFrame):
        source = pa.Table.from_pandas(source, preserve_index=False)
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        table = source

        def in_memory(columns: list[str]) -> Iterator[pa.RecordBatch]:
            yield from table.select(columns).to_batches(max_chunksize=_ROWS_AT_A_TIME)

        return "The table", table.schema, table.num_rows, in_memory
    return _open_file(Path(source))


def _open_file(
    path: Path,
) -> tuple[str, pa.Schema, int | None, Callable[[list[str]], Iterable[pa.RecordBatch]]]:
    if not path.exists():
        raise SchemaError(f"There is no file {str(path)!r}.", hint="Give a Parquet or CSV file, or a folder of them.")
    suffixes = [path.suffix] if path.is_file() else sorted({file.suffix for file in path.rglob("*") if file.is_file()})
    formats = {_FORMATS[suffix] for suffix in suffixes if suffix in _FORMATS}
    if len(formats) != 1:
        raise SchemaError(f"{str(path)!r} is neither Parquet nor CSV.", hint="Its name should end in .parquet or .csv.")
    [format_] = formats
    try:
        data = ds.dataset(path, format=format_)
        rows = data.count_rows() if format_ == "parquet" else None
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(f"{str(path)!r} cannot be read as {format_}: {error}.") from error

    def from_file(columns: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            yield from data.to_batches(columns=columns, batch_size=_ROWS_AT_A_TIME)
        except pa.ArrowException as error:
            raise SchemaError(f"{str(path)!r} cannot be read as {format_}: {error}.") from error

    return repr(str(path)), data.schema, rows, from_file


def _plain(column: pa.Array, name: str) -> pa.Array:
    """Return a key column in a type that can be hashed; long texts are replaced by a digest."""
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return _plain(column.dictionary_decode(), name)
    if pa.types.is_large_string(type_) or pa.types.is_string(type_) or pa.types.is_string_view(type_):
        return _shorten(column.cast(pa.string()))
    if pa.types.is_large_binary(type_) or pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return _shorten(column.cast(pa.binary()))
    if pa.types.is_null(type_):
        return column.cast(pa.int64())
    if pa.types.is_nested(type_) or pa.types.is_float16(type_):
        raise SchemaError(f"Column {name!r} is {type_}, which cannot be a key.", hint="Name the fields that are.")
    return column


def _shorten(column: pa.Array) -> pa.Array:
    """Replace long texts by a digest, since hashing reads only the start and the end of them."""
    if (pc.max(pc.binary_length(column)).as_py() or 0) <= _LONGEST_HASHED:
        return column
    texts = column.dictionary_encode()
    short = [_digest(value) for value in texts.dictionary.cast(pa.binary()).to_pylist()]
    return pa.array(short, pa.binary()).take(texts.indices)


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=24).digest() if len(value) > _LONGEST_HASHED else value
