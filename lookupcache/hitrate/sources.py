"""Files and tables of keys, as batches of the required columns, in which no type is guessed.

Parquet · CSV · folders ─► a column as its file has it; in a CSV, and in names of folders, a text ─┐
pandas · Arrow ─► a column as it is ───────────────────────────────────────────────────────────────┴─► Source.batches
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.dataset as ds
from pyarrow import fs

from lookupcache.errors import SchemaError

if TYPE_CHECKING:
    import pandas as pd

_ROWS_AT_A_TIME = 1 << 18
_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".gz": "csv"}
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_PARQUET = ds.ParquetFileFormat()
# As in Spark, an empty field is a null and "" is a text; a text that is no UTF-8 is a key too.
_CSV = ds.CsvFileFormat(
    parse_options=csv.ParseOptions(newlines_in_values=True),
    convert_options=csv.ConvertOptions(
        null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False, check_utf8=False
    ),
)
_STATE_TYPE = "State a type that holds all of its values, as in schema='id DECIMAL(20,0)' or 'id STRING'."


@dataclass(frozen=True)
class KeySource:
    """Where keys come from.

    - ``name``: the beginning of a sentence about it.
    - ``columns``: the names of its columns.
    - ``rows``: the number of its rows, None if that is not known.
    - ``batches``: returns the rows of some columns, those for which a type is stated in that; each column has one type
      in all batches.
    """

    name: str
    columns: Sequence[str]
    rows: int | None
    batches: Callable[[Sequence[str], Mapping[str, pa.DataType]], Iterator[pa.RecordBatch]]


def as_type(column: pa.Array, type_: pa.DataType | None, name: str) -> pa.Array:
    """Return a column in a type, its own if none is stated; raises SchemaError for a value that is not of the type.

    >>> as_type(pa.array(["007"]), pa.int64(), "id").to_pylist()
    [7]
    """
    if type_ is None or column.type == type_:
        return column
    try:
        if pa.types.is_string(column.type) and pa.types.is_integer(type_):
            # Arrow reads 0x10 as 16, Spark does not.
            wrong = column.filter(pc.match_substring(column, "x", ignore_case=True))
            if len(wrong):
                raise pa.ArrowInvalid(f"{wrong[0].as_py()!r} is no whole number")
        return column.cast(type_)
    except pa.ArrowException as error:
        raise SchemaError(f"Key column {name!r} cannot be read as {type_}: {error}.", hint=_STATE_TYPE) from error


def open_source(source: Any) -> KeySource:
    """Return a path, a table or a pandas DataFrame as a source; raises SchemaError."""
    pandas = sys.modules.get("pandas")  # A DataFrame of it exists only where it was imported.
    if pandas is not None and isinstance(source, pandas.DataFrame):
        return _of_pandas(source)
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        table = source

        return _in_memory(table.schema.names, table.num_rows, lambda name: table.column(name))
    if not isinstance(source, (str, os.PathLike)):
        raise SchemaError(
            f"Keys cannot be read from {type(source).__name__}.",
            hint="Give a path, or a DataFrame or an Arrow table with a column of keys: pa.table({'id': keys}).",
        )
    return _of_files(Path(source))


def _in_memory(names: Sequence[str], rows: int, column: Callable[[str], pa.Array | pa.ChunkedArray]) -> KeySource:
    def batches(columns: Sequence[str], stated: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        for batch in pa.table({name: column(name) for name in columns}).to_batches(max_chunksize=_ROWS_AT_A_TIME):
            arrays = [as_type(batch.column(name), stated.get(name), name) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    return KeySource("The table", names, rows, batches)


# ── pandas ───────────────────────────────────────────────────────────────────────────────────────────────────


def _of_pandas(frame: pd.DataFrame) -> KeySource:
    labels = {str(label): label for label in frame.columns}
    return _in_memory(list(labels), len(frame), lambda name: _of_series(frame[labels[name]], name))


def _of_series(column: pd.Series[Any], name: str) -> pa.Array:
    """Return a column of pandas; whole numbers beyond 64 bits are texts. Raises SchemaError for a mixture of types."""
    try:
        found = pa.Array.from_pandas(column)
    except (pa.ArrowException, OverflowError) as error:
        import pandas as pd  # It is there, since the column is of it.

        values = [None if pd.isna(value) else value for value in column]
        if not all(type(value) in (int, type(None)) for value in values):
            raise _mixed(name, str(error)) from error
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    is_rounded = column.dtype == object and pa.types.is_floating(found.type)
    if is_rounded and any(type(value) is int and float(value) != value for value in column):
        raise _mixed(name, "whole numbers would be rounded")
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _mixed(name: str, why: str) -> SchemaError:
    return SchemaError(
        f"Column {name!r} of pandas has values that are not of one type: {why}.",
        hint=f"Convert them before, as in frame.astype({{{name!r}: str}}).",
    )


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_files(path: Path) -> KeySource:
    if not path.exists():
        raise SchemaError(f"There is no file {str(path)!r}.", hint="Give a Parquet or CSV file, or a folder of them.")
    paths = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if _is_data(file, path)]
    formats = {_FORMATS.get(file.suffix) for file in paths}
    if len(formats) != 1 or None in formats:
        raise SchemaError(f"{str(path)!r} is neither Parquet nor CSV.", hint="Its name should end in .parquet or .csv.")
    is_csv = formats == {"csv"}

    def read(columns: Sequence[str], stated: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        with _naming(path):
            types = {name: stated.get(name) or _common_type(name, files) for name in columns}
            for file in files:
                yield from file.batches(types)

    with _naming(path):
        files = [_KeyFile.of(one, path if path.is_dir() else path.parent, is_csv=is_csv) for one in paths]
        names = list(dict.fromkeys(name for file in files for name in file.types))
        rows = None if is_csv else sum(file.data.count_rows() for file in files)
    return KeySource(repr(str(path)), names, rows, read)


def _is_data(file: Path, root: Path) -> bool:
    """Return whether a file in a folder has the name of a format, and is not hidden, as those of Spark's are."""
    hidden = any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in file.relative_to(root).parts)
    return not hidden and file.suffix in _FORMATS and file.is_file()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(f"{str(path)!r} cannot be read: {error}.", hint="Look at the file that is named.") from error


@dataclass(frozen=True)
class _KeyFile:
    """A file: the types of its columns, and the texts of those that are in names of its folders."""

    data: ds.Fragment
    types: Mapping[str, pa.DataType]
    folders: Mapping[str, str | None]

    @classmethod
    def of(cls, path: Path, root: Path, *, is_csv: bool) -> _KeyFile:
        """Open a file in a folder."""
        data = (_CSV if is_csv else _PARQUET).make_fragment(str(path), fs.LocalFileSystem())
        parts = [part.partition("=") for part in path.relative_to(root).parts[:-1]]
        folders = {
            unquote(name): None if text == _NULL_FOLDER else unquote(text) for name, equals, text in parts if equals
        }
        own = {field.name: pa.string() if is_csv else field.type for field in data.physical_schema}
        return cls(data, {**own, **dict.fromkeys(folders, pa.string())}, folders)

    def batches(self, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Yield columns in these types; one that the file does not have is null."""
        schema = pa.schema([(name, type_) for name, type_ in self.types.items() if name not in self.folders])
        own = [name for name in types if name in schema.names]
        for batch in self.data.to_batches(schema=schema, columns=own, batch_size=_ROWS_AT_A_TIME):
            arrays = [
                as_type(batch.column(name), type_, name)
                if name in own
                else pa.repeat(pa.scalar(self.folders.get(name), pa.string()), batch.num_rows).cast(type_)
                for name, type_ in types.items()
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(types))


def _common_type(name: str, files: Sequence[_KeyFile]) -> pa.DataType:
    """Return a type that holds a column's values of all files; raises SchemaError."""
    types = [file.types[name] for file in files if name in file.types]
    plain = {type_.value_type if pa.types.is_dictionary(type_) else type_ for type_ in types}
    try:
        found = pa.unify_schemas([pa.schema([(name, type_)]) for type_ in plain], promote_options="permissive")
    except pa.ArrowException as error:
        raise _differing(name, plain) from error
    common = found.field(0).type
    if pa.types.is_floating(common) and not all(map(pa.types.is_floating, plain)):
        raise _differing(name, plain)
    # For BIGINT and a decimal, Arrow takes a decimal that is too narrow.
    return pa.decimal128(38, common.scale) if pa.types.is_decimal128(common) and len(plain) > 1 else common


def _differing(name: str, types: Iterable[pa.DataType]) -> SchemaError:
    return SchemaError(
        f"Column {name!r} is {' and '.join(sorted(map(str, types)))} in the files of the folder.",
        hint=_STATE_TYPE,
    )
