"""DuckDB, in the worker's own process: keys are an Arrow table to it, rows come as Arrow."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from lookupcache_sql_database import SCAN_ROWS, unknown_table
from lookupcache_sql_filters import Operands, number_text, time_text
from lookupcache_sql_sqlite import path_of
from lookupcache_sql_typed import Described, Held, Stored, TypedDatabase, family, read_json

from lookupcache.errors import ConnectorError, OptionError
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ

_KEYS = "lookup_keys"


class DuckOperands(Operands):
    """DuckDB's values."""

    dialect = "duckdb"

    @classmethod
    def plain(cls, value: Any, type_: pa.DataType) -> str:
        if isinstance(value, float):
            return f"CAST('{value!r}' AS DOUBLE)"
        if isinstance(value, Decimal):
            return f"CAST('{value:f}' AS DECIMAL({type_.precision}, {type_.scale}))"
        if isinstance(value, int):
            return number_text(value)
        if isinstance(value, bytes):
            return f"UNHEX('{value.hex()}')"
        if isinstance(value, dt.datetime):
            zone = ("+00", "TIMESTAMPTZ") if type_.tz else ("", "TIMESTAMP")
            return f"CAST('{time_text(value)}{zone[0]}' AS {zone[1]})"
        return f"CAST('{value.isoformat()}' AS DATE)"

    @classmethod
    def by_bytes(cls, text: str) -> str:
        return f"ENCODE({text})"

    @classmethod
    def typed(cls, value: str, type_: str) -> str:
        return value


class DuckDatabase(TypedDatabase):
    """A DuckDB file, opened read-only."""

    driver = "duckdb"
    extra = "duckdb"
    dialect = "duckdb"
    operands = DuckOperands

    def __init__(self, schema: pa.Schema, settings: Mapping[str, str]) -> None:
        super().__init__(schema, settings)
        self.path = path_of(settings["url"])
        self._connection: Any = None

    @classmethod
    def check(cls, settings: Mapping[str, str], schema: pa.Schema) -> None:
        path_of(settings["url"])
        if settings.get("statement.timeout"):
            raise OptionError("Option 'statement.timeout': DuckDB has none.", hint="Use 'lookup.timeout'.")

    def open(self) -> None:
        import duckdb

        if not self.path.is_file():
            raise ConnectorError(f"Option 'url': there is no database file {str(self.path)!r}.")
        try:
            # Connections to one file share what it has in memory, but not what `register` tells one of them.
            self._connection = duckdb.connect(self.path, read_only=True)
            self._connection.execute("SET TimeZone = 'UTC'; SET python_enable_replacements = false")
        except duckdb.Error as error:
            if self.retryable(error):
                raise
            raise ConnectorError(f"Option 'url': {str(self.path)!r} cannot be read: {error}.") from error

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None

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

    def described(self) -> list[Described]:
        import duckdb

        if self.place.table is not None:
            self._check_table(self.place.table, self.place.namespace)
        try:
            rows = self._connection.execute(f"DESCRIBE SELECT * FROM {self.relation}").fetchall()
        except duckdb.ProgrammingError as error:
            raise ConnectorError(f"Option 'query' is refused: {str(error).partition(chr(10))[0]}.") from None
        sample = self._connection.sql(f"SELECT * FROM {self.relation} LIMIT 0").to_arrow_table().schema
        return [_described(name, native, field.type) for (name, native, *_), field in zip(rows, sample, strict=True)]

    def without_index(self, key_columns: Sequence[str]) -> bool:
        """Return False: it reads whole columns fast, and has no index that a join would use."""
        return False

    def keyed(self, selected: str, keys: Sequence[Held]) -> str:
        pairs = [
            f"{key.stored.compared.format(c=key.sql)} = {key.stored.key.format(k=f'k.k{number}')}"
            for number, key in enumerate(keys)
        ]
        matches = " AND ".join(pairs)
        return f"SELECT {selected} FROM {self.relation} SEMI JOIN {_KEYS} AS k ON {matches} WHERE 1 = 1"

    def fetched(self, text: str, sent: Sequence[pa.Array], keys: Sequence[Held]) -> Sequence[Any]:
        self._connection.register(_KEYS, pa.table(list(sent), names=[f"k{number}" for number in range(len(sent))]))
        return list(self._connection.sql(text).to_arrow_table().columns)

    def streamed(self, text: str) -> Iterator[Sequence[Any]]:
        for batch in self._connection.sql(text).to_arrow_reader(SCAN_ROWS):
            yield [pa.chunked_array([column]) for column in batch.columns]

    @classmethod
    def stored(cls, described: Described, type_: pa.DataType) -> Stored | None:
        if described.kind == "nested" and family(type_) == "nested":
            return _NATURAL
        if described.kind in ("json", "text") and family(type_) == "nested":
            return Stored(decode=read_json)
        return _STORED.get((described.kind, family(type_)))

    def _check_table(self, table: str, namespace: str | None) -> None:
        schema = "= ?" if namespace else "IN (SELECT unnest(current_schemas(true)))"
        rows = self._connection.execute(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema {schema}",
            [namespace] if namespace else [],
        ).fetchall()
        known = [name for [name] in rows]
        if table.lower() not in {name.lower() for name in known}:
            raise unknown_table(table, namespace, known)


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────


def _canonical(column: Any, type_: pa.DataType) -> Any:
    return column.cast(type_)


_NATURAL = Stored()
_AS_TEXT = Stored(read="CAST({c} AS VARCHAR)", compared="CAST({c} AS VARCHAR)")
_STORED: dict[tuple[str, str], Stored] = {
    **{(word, word): _NATURAL for word in ("float", "double", "decimal", "binary", "boolean", "date")},
    ("integer", "integer"): Stored(send=lambda column: column.cast(pa.int64())),
    ("float", "double"): _NATURAL,
    ("text", "string"): _NATURAL,
    ("json", "string"): _AS_TEXT,
    ("as text", "string"): _AS_TEXT,
    ("timestamptz", "timestamp"): _NATURAL,
    ("timestamp", "timestamp_ntz"): _NATURAL,
}
_AS_TEXTS = ("UUID", "TIME", "INTERVAL", "ENUM", "BIT", "TIME WITH TIME ZONE")


def _described(name: str, native: str, type_: pa.DataType) -> Described:
    kind, ours = _kind(native, type_)
    return Described(name, kind, native, ours)


def _kind(native: str, type_: pa.DataType) -> tuple[str, pa.DataType | None]:
    """Return the word for a type of DuckDB's, and Spark's type for it."""
    if native == "JSON":
        return "json", pa.string()
    if native.startswith(_AS_TEXTS) and not native.startswith("TIMESTAMP"):
        return "as text", pa.string()
    if pa.types.is_timestamp(type_):
        return ("timestamptz", TIMESTAMP) if type_.tz else ("timestamp", TIMESTAMP_NTZ)
    if pa.types.is_integer(type_):
        return "integer", _INTEGERS.get(type_, type_)
    if pa.types.is_string(type_):
        return "text", pa.string()
    if pa.types.is_nested(type_):
        return "nested", type_
    word = family(type_)
    return (word, type_) if word != "nested" else ("", None)


_INTEGERS = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}
