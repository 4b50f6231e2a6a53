"""DuckDB, in the worker's process: keys are passed as an Arrow table, rows are returned as Arrow."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.errors import ConnectorError, OptionError
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ
from lookupcache_sql.database import SCAN_ROWS, unknown_table
from lookupcache_sql.dialects import Dialect
from lookupcache_sql.file import FileDatabase, path_of, real_path
from lookupcache_sql.query import POSTGRES
from lookupcache_sql.typed import (
    Described,
    ReadColumn,
    Stored,
    TypedDatabase,
    cast,
    family,
    in_range,
    read_json,
    without,
)

_KEYS = "lookup_keys"
_ROWS_AT_ONCE = 2_048
"""Rows between two looks at the size of an answer."""


class DuckDialect(Dialect):
    """DuckDB's values."""

    double = "CAST('{!r}' AS DOUBLE)"
    binary = "UNHEX('{}')"

    @classmethod
    def number(cls, value: Any, type_: pa.DataType) -> str:
        if isinstance(value, Decimal):
            return f"CAST('{value:f}' AS DECIMAL({type_.precision}, {type_.scale}))"
        return super().number(value, type_)

    @classmethod
    def by_bytes(cls, text: str) -> str:
        return f"ENCODE({text})"


class DuckDatabase(FileDatabase, TypedDatabase):
    """A DuckDB file, opened read-only; only a process that ignores locks can change it."""

    notices_writes = True
    driver = "duckdb"
    dialect = DuckDialect
    grammar = POSTGRES

    @classmethod
    def check(cls, settings: Mapping[str, str], schema: pa.Schema) -> None:
        path_of(settings["url"])
        if settings.get("statement.timeout"):
            raise OptionError("Option 'statement.timeout': DuckDB has none.", hint="Use 'lookup.timeout'.")

    @classmethod
    def environment(cls, settings: Mapping[str, str]) -> Mapping[str, Any] | None:
        from lookupcache.environment import cloud_settings, libpq_settings, variables  # Most workers do without.

        file, query = {"file": real_path(settings["url"])}, settings.get("query")
        views = _views_of(Path(file["file"]))
        if not query and views is not None and str(settings["table"]).lower() not in views:
            return file
        found = {**variables("DUCKDB_", "MYSQL_"), "libpq": libpq_settings()}
        texts = "\n".join([query or "", *(views or {}).values()])
        is_of_service = re.search("postgres(.|\n)*service", texts, re.IGNORECASE) or "PGSERVICE" in os.environ
        if is_of_service or _has_secrets():
            return None  # Servers and logins in files of other forms.
        # It may read further files, by relative paths, from the home, or from object stores, and other databases.
        read = {"cloud": cloud_settings(), "duckdb": found}
        return {**file, **read, "folder": os.getcwd(), "home": os.path.expanduser("~")}

    def open(self) -> None:
        import duckdb

        self.find_file()
        try:
            self._connection = _connect_file(self.path, self.stamp)
            self._connection.execute("SET TimeZone = 'UTC'; SET python_enable_replacements = false")
        except duckdb.Error as error:
            if self.retryable(error):
                raise
            raise ConnectorError(f"Option 'url': {str(self.path)!r} cannot be read: {error}.") from error

    def interrupt(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    @classmethod
    def retryable(cls, error: Exception) -> bool | None:
        """Return whether another process was writing, or the call was interrupted."""
        import duckdb

        if not isinstance(error, duckdb.Error):
            return None
        passing = isinstance(error, duckdb.IOException | duckdb.TransactionException)
        return passing or type(error).__name__ == "InterruptException"

    def describe_columns(self) -> list[Described]:
        import duckdb

        if self.source.table is not None:
            self._check_table(self.source.table, self.source.namespace)
        with self.describing(duckdb.Error, lambda error: str(error).partition("\n")[0]):
            found = self._connection.sql(f"SELECT * FROM {self.relation} LIMIT 0")
        return [_describe_column(name, type_) for name, type_ in zip(found.columns, found.types, strict=True)]

    def without_index(self, key_columns: Sequence[str]) -> bool:
        """Return False: DuckDB scans columns fast, and has no index that a join would use."""
        return False

    def key_query(self, selected: str, keys: Sequence[ReadColumn]) -> str:
        matches = " AND ".join(key.equals(f"k.k{number}") for number, key in enumerate(keys))
        return f"SELECT {selected} FROM {self.relation} SEMI JOIN {_KEYS} AS k ON {matches} WHERE 1 = 1"

    def fetch_columns(self, text: str, sent: Sequence[pa.Array], keys: Sequence[ReadColumn]) -> Sequence[Any]:
        self._connection.register(_KEYS, pa.table(list(sent), names=[f"k{number}" for number in range(len(sent))]))
        reader = self._connection.sql(text).to_arrow_reader(_ROWS_AT_ONCE)
        return list(pa.Table.from_batches(self.limit.batches(reader), reader.schema).columns)

    def stream_columns(self, text: str) -> Iterator[Sequence[Any]]:
        for batch in self._connection.sql(text).to_arrow_reader(SCAN_ROWS):
            yield [pa.chunked_array([column]) for column in batch.columns]

    @classmethod
    def storage_for(cls, described: Described, type_: pa.DataType) -> Stored | None:
        if described.kind == "nested" and family(type_) == "nested" and _fits(described.type, type_):
            cast_to = described.detail.replace("{", "{{").replace("}", "}}")
            return Stored(read=f"CAST({{c}} AS {cast_to})", decode=in_range)
        if described.kind in _TEXTS and family(type_) == "string":
            return _AS_TEXT
        if described.kind in ("json", "text") and family(type_) == "nested":
            return Stored(decode=read_json)
        return _STORED.get((described.kind, family(type_)))

    def _check_table(self, table: str, namespace: str | None) -> None:
        schema = "= ?" if namespace else "IN (SELECT unnest(current_schemas(true)))"
        rows = self._connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_catalog = current_database() "
            f"AND table_schema {schema}",
            [namespace] if namespace else [],
        ).fetchall()
        known = [name for [name] in rows]
        if table.lower() not in {name.lower() for name in known}:
            raise unknown_table(table, namespace, known)


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────

_ATTACHING = threading.Lock()
_RESERVED = ("memory", "temp", "system", "main")


def _connect_file(path: Path, stamp: tuple[int, ...] | None) -> Any:
    """Return a connection to a file.

    Connections to one file share its memory, but not the tables that `register` adds to one of them. If a path is open
    already, DuckDB connects to the open file without checking the path, so that a replaced file would not be noticed.
    Therefore the file is attached to a database in memory, under a name that identifies this file.
    """
    import duckdb

    name = path.name.partition(".")[0]
    name = f"{name}_db" if name.lower() in _RESERVED else name
    quoted = DuckDialect.quote(name)
    connection = duckdb.connect(f":memory:lookupcache {hashlib.sha256(repr((path, stamp)).encode()).hexdigest()}")
    try:
        with _ATTACHING:
            connection.execute(f"ATTACH IF NOT EXISTS {DuckDialect.text(str(path))} AS {quoted} (READ_ONLY)")
        connection.execute(f"USE {quoted}")
    except BaseException:
        connection.close()
        raise
    return connection


_VIEWS: dict[Path, tuple[tuple[int, ...], dict[str, str]]] = {}
"""Of each file, as it was when it was read last."""


def _views_of(path: Path) -> dict[str, str] | None:
    """Return the views in a file, by their names in lower case; None if it cannot be read.

    While another process writes the file, they are those of before.
    """
    import duckdb

    try:
        found = os.stat(path)
    except OSError:
        return {}  # To connect fails, too.
    stamp, known = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns), _VIEWS.get(path)
    if known is None or known[0] != stamp:
        try:
            with _connect_file(path, stamp) as connection:
                rows = connection.execute("SELECT lower(view_name), sql FROM duckdb_views() WHERE NOT internal")
                _VIEWS[path] = known = stamp, dict(rows.fetchall())
        except duckdb.Error:
            pass
    return None if known is None else known[1]


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────


def _decimals_as_integers(column: pa.Array) -> pa.Array:
    """Send decimals as integers, null for one with a fraction."""
    wrong = pc.not_equal(pc.trunc(column), column)
    return without(column, wrong).cast(pa.decimal128(38, 0))


def _huge(native: str) -> Stored:
    """Return how 128-bit integers are read: as decimals, Arrow would change those of 38 digits or more."""
    return Stored(
        read="CAST({c} AS VARCHAR)", tested="{c}", key=f"TRY_CAST({{k}} AS {native})", send=_decimals_as_integers
    )


_NATURAL = Stored()
_IN_RANGE = Stored(decode=in_range)
_AS_TEXT = Stored(read="CAST({c} AS VARCHAR)", compared="CAST({c} AS VARCHAR)")
_STORED: dict[tuple[str, str], Stored] = {
    **{(word, word): _NATURAL for word in ("float", "double", "decimal", "binary", "boolean")},
    ("integer", "integer"): Stored(send=lambda column: column.cast(pa.int64())),
    ("integer", "decimal"): Stored(
        key="TRY_CAST({k} AS HUGEINT)",
        send=_decimals_as_integers,
        decode=lambda column, type_: cast(column.cast(pa.decimal128(20, 0)), type_),  # 64 bits have at most 20 digits
    ),
    ("hugeint", "decimal"): _huge("HUGEINT"),
    ("uhugeint", "decimal"): _huge("UHUGEINT"),
    ("float", "double"): _NATURAL,
    ("text", "string"): _NATURAL,
    ("date", "date"): _IN_RANGE,
    ("timestamptz", "timestamp"): _IN_RANGE,
    ("timestamp", "timestamp_ntz"): _IN_RANGE,
}
_TEXTS = ("as text", "json", "nested", "hugeint", "uhugeint", "other")
"""Types that are read as STRING, by DuckDB's own text."""

_KINDS: dict[str, tuple[str, pa.DataType]] = {
    "boolean": ("boolean", pa.bool_()),
    "tinyint": ("integer", pa.int8()),
    "smallint": ("integer", pa.int16()),
    "integer": ("integer", pa.int32()),
    "bigint": ("integer", pa.int64()),
    "utinyint": ("integer", pa.int16()),
    "usmallint": ("integer", pa.int32()),
    "uinteger": ("integer", pa.int64()),
    "ubigint": ("integer", pa.decimal128(20, 0)),
    "hugeint": ("hugeint", pa.decimal128(38, 0)),
    "uhugeint": ("uhugeint", pa.decimal128(38, 0)),
    "float": ("float", pa.float32()),
    "double": ("double", pa.float64()),
    "varchar": ("text", pa.string()),
    "blob": ("binary", pa.binary()),
    "date": ("date", pa.date32()),
    "timestamp with time zone": ("timestamptz", TIMESTAMP),
    **dict.fromkeys(("timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns"), ("timestamp", TIMESTAMP_NTZ)),
    **dict.fromkeys(
        ("uuid", "time", "time with time zone", "time_ns", "interval", "enum", "bit", "bignum", "union"),
        ("as text", pa.string()),
    ),
}


def _describe_column(name: str, native: Any) -> Described:
    if native.id in _NESTED:
        cast, ours = _nested_type(native)
        return Described(name, "nested" if ours is not None else "other", str(native), ours, cast)
    return Described(name, _kind(native)[0], str(native), _kind(native)[1])


def _kind(native: Any) -> tuple[str, pa.DataType | None]:
    """Return the kind of a DuckDB type that is not nested, and Spark's type for it."""
    if str(native) == "JSON":
        return "json", pa.string()
    if native.id == "decimal":
        precision, scale = (value for _, value in native.children)
        return "decimal", pa.decimal128(precision, scale)
    return _KINDS.get(native.id, ("other", None))


_NESTED = ("list", "array", "struct", "map")


def _nested_type(native: Any) -> tuple[str, pa.DataType | None]:
    """Return the type to cast a value to, so that Arrow reads it correctly, and Spark's type, or None."""
    if native.id not in _NESTED:
        kind, ours = _kind(native)
        return ("VARCHAR" if kind in _TEXTS else str(native)), (pa.string() if kind in _TEXTS and ours else ours)
    inner = [(name, *_nested_type(child)) for name, child in native.children if name != "size"]
    casts, types = [cast for _, cast, _ in inner], [ours for _, _, ours in inner]
    if any(ours is None for ours in types):
        return str(native), None
    if native.id == "struct":
        names = [name for name, *_ in inner]
        spelled = ", ".join(f"{DuckDialect.quote(name)} {cast}" for name, cast in zip(names, casts, strict=True))
        return f"STRUCT({spelled})", pa.struct(list(zip(names, types, strict=True)))
    if native.id == "map":
        return f"MAP({', '.join(casts)})", pa.map_(*types)
    return f"{casts[0]}[]", pa.list_(types[0])


def _fits(stored: pa.DataType | None, type_: pa.DataType) -> bool:
    """Return whether a nested type may be read as another: with the same structure and kinds of numbers."""
    if stored is None or (type(stored) is not type(type_) and family(stored) != "integer"):
        return False
    if pa.types.is_struct(stored):
        same = [one.name for one in stored] == [one.name for one in type_]
        return same and all(_fits(one.type, other.type) for one, other in zip(stored, type_, strict=True))
    if pa.types.is_map(stored):
        return _fits(stored.key_type, type_.key_type) and _fits(stored.item_type, type_.item_type)
    if pa.types.is_list(stored):
        return _fits(stored.value_type, type_.value_type)
    if pa.types.is_decimal(stored) and pa.types.is_decimal(type_):
        return stored.scale <= type_.scale and stored.precision - stored.scale <= type_.precision - type_.scale
    return stored == type_ or (stored != pa.string() and (family(stored), family(type_)) in _STORED)


def _has_secrets() -> bool:
    """Return whether DuckDB may have stored secrets; also where the folder cannot be read, or there is no home."""
    try:
        return bool(os.listdir(Path("~/.duckdb/stored_secrets").expanduser()))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, RuntimeError):
        return True
