"""PostgreSQL, through its ADBC driver: keys go as arrays, one parameter for each key column, rows come as Arrow."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lookupcache_sql_database import Unreachable, seconds, unknown_table
from lookupcache_sql_filters import Operands, number_text, time_text
from lookupcache_sql_server import Server, tls_mode
from lookupcache_sql_typed import (
    Described,
    Held,
    Stored,
    TypedDatabase,
    cast,
    family,
    only_uuids,
    read_json,
    without_nul,
)

from lookupcache.errors import ConnectorError
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ

_PASSING_STATES = ("08", "40", "53", "55", "57", "58")
_REFUSED = re.compile(r"password authentication failed|authentication failed|does not exist|no pg_hba|not permitted"
                      r"|permission denied|no password supplied|invalid percent|invalid .* value|SSL|certificate"
                      r"|could not translate host|missing \"=\"|unsupported|root\.crt")  # fmt: skip
_VIA = " via "
"""Between the type that keys are compared in, and that in which they are sent."""

_LEAST_DAY, _LAST_DAY = dt.date(1, 1, 1), dt.date(9999, 12, 31)


class PostgresOperands(Operands):
    """PostgreSQL's values."""

    dialect = "postgres"

    @classmethod
    def holds(cls, value: Any) -> bool:
        return not (isinstance(value, str) and "\0" in value)

    @classmethod
    def plain(cls, value: Any, type_: pa.DataType) -> str:
        if isinstance(value, float):
            return f"CAST('{value!r}' AS DOUBLE PRECISION)"
        if isinstance(value, int | Decimal):
            return number_text(value)
        if isinstance(value, bytes):
            return f"CAST('\\x{value.hex()}' AS BYTEA)"
        if isinstance(value, dt.datetime):
            return (
                f"CAST('{time_text(value)}+00' AS TIMESTAMPTZ)"
                if type_.tz
                else f"CAST('{time_text(value)}' AS TIMESTAMP)"
            )
        return f"CAST('{value.isoformat()}' AS DATE)"

    @classmethod
    def by_bytes(cls, text: str) -> str:
        return f'CAST({text} AS TEXT) COLLATE "C"'

    @classmethod
    def typed(cls, value: str, type_: str) -> str:
        return f"CAST({value} AS {type_.partition(_VIA)[0]})"


class PostgresDatabase(TypedDatabase):
    """A PostgreSQL server; the session is read-only."""

    driver = "adbc_driver_postgresql"
    extra = "postgres"
    dialect = "postgres"
    operands = PostgresOperands

    def __init__(self, schema: pa.Schema, settings: Mapping[str, str]) -> None:
        super().__init__(schema, settings)
        self._connection: Any = None
        self._cursor: Any = None

    @classmethod
    def check(cls, settings: Mapping[str, str], schema: pa.Schema) -> None:
        _ = Server.of(settings, 5432), tls_mode(settings)

    def open(self) -> None:
        from adbc_driver_postgresql import dbapi

        try:
            self._connection = dbapi.connect(_address(self.settings), autocommit=True)
        except dbapi.Error as error:
            raise self._not_connected(error) from None
        self._cursor = self._connection.cursor()
        for setting in self._session():
            self._cursor.execute(setting)

    def close(self) -> None:
        for part in (self._cursor, self._connection):
            with contextlib.suppress(Exception):
                if part is not None:
                    part.close()
        self._connection = self._cursor = None

    def interrupt(self) -> None:
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.adbc_cancel()

    @classmethod
    def retryable(cls, error: Exception) -> bool | None:
        """Return whether the server was away or shutting down, or the query took too long or was in another's way."""
        if not type(error).__module__.startswith("adbc_driver_manager"):
            return None
        state = getattr(error, "sqlstate", None)
        return type(error).__name__ == "OperationalError" if state is None else state.startswith(_PASSING_STATES)

    def described(self) -> list[Described]:
        from adbc_driver_postgresql import dbapi

        try:
            self._cursor.execute(f"SELECT * FROM {self._named()} LIMIT 0")
        except dbapi.ProgrammingError as error:
            if self.place.query is None:
                raise
            raise ConnectorError(f"Option 'query' is refused: {_first_line(error)}") from None
        return [_described(field) for field in self._cursor.fetch_arrow_table().schema]

    def without_index(self, key_columns: Sequence[str]) -> bool:
        if self.place.query is not None:
            return False
        text = (
            "SELECT c.relkind, a.attname FROM pg_class c LEFT JOIN pg_index i "
            "ON i.indrelid = c.oid AND i.indpred IS NULL AND i.indisvalid "
            "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0] "
            f"WHERE c.oid = {self.text(self.relation.removesuffix(' AS t'))}::regclass"
        )
        kinds, first = (column.to_pylist() for column in self._answer(text))
        columns = {self.held[name].sql for name in key_columns}
        return kinds[0] in ("r", "p") and not columns & {f"t.{self.quote(name)}" for name in first if name}

    def keyed(self, selected: str, keys: Sequence[Held]) -> str:
        compared = [key.stored.compared.format(c=key.sql) for key in keys]
        if len(keys) == 1:
            return f"SELECT {selected} FROM {self.relation} WHERE {compared[0]} = ANY({_array(1, keys[0])})"
        arrays = ", ".join(_array(number, key) for number, key in enumerate(keys, 1))
        # A semi-join, so that a row comes once however many keys its collation holds equal.
        return (
            f"SELECT {selected} FROM {self.relation} WHERE ({', '.join(compared)}) IN (SELECT * FROM unnest({arrays}))"
        )

    def fetched(self, text: str, sent: Sequence[pa.Array], keys: Sequence[Held]) -> Sequence[Any]:
        lists = [_in_one_row(column) for column in sent]
        self._cursor.execute(text, pa.RecordBatch.from_arrays(lists, names=[f"k{n}" for n in range(len(lists))]))
        return [_plain(column) for column in self._cursor.fetch_arrow_table().columns]

    def streamed(self, text: str) -> Iterator[Sequence[Any]]:
        with self._connection.cursor() as cursor:
            cursor.execute(text)
            for batch in cursor.fetch_record_batch():
                yield [_plain(pa.chunked_array([column])) for column in batch.columns]

    @classmethod
    def stored(cls, described: Described, type_: pa.DataType) -> Stored | None:
        words = described.kind, family(type_)
        if words[1] == "nested" and described.kind in ("json", "list", "struct", "other"):
            return Stored(read="to_json({c})::text", decode=read_json)
        if words[1] == "string" and described.kind == "other" and described.detail == "enum":
            return _AS_TEXT
        return _STORED.get(words)

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────

    def _session(self) -> Iterator[str]:
        yield "SET default_transaction_read_only = on"
        yield "SET standard_conforming_strings = on"
        # Its plans pay for long queries alone, and are made again for each.
        yield "SET jit = off"
        timeout = seconds(self.settings, "statement.timeout")
        if timeout is not None:
            yield f"SET statement_timeout = {max(1, round(timeout * 1000))}"

    def _not_connected(self, error: Exception) -> Exception:
        server = Server.of(self.settings, 5432)
        reason = server.cleaned(_reason(error))
        if _REFUSED.search(reason):
            return ConnectorError(f"Option 'url': {server} refuses: {reason}.")
        return Unreachable(f"Option 'url': {server} cannot be reached: {reason}.")

    def _named(self) -> str:
        """Return the place in SQL, once it is known to be there; raises ConnectorError with the nearest name."""
        table, namespace = self.place.table, self.place.namespace
        if table is None:
            return self.relation
        schema = f"n.nspname = {self.text(namespace)}" if namespace else "n.nspname = ANY(current_schemas(true))"
        [names] = self._answer(
            "SELECT DISTINCT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') AND {schema}"
        )
        if table not in names.to_pylist():
            raise unknown_table(table, namespace, [name for name in names.to_pylist() if not name.startswith("pg_")])
        return self.relation

    def _answer(self, text: str) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetch_arrow_table().columns)


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_one_row(column: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)


def _array(number: int, key: Held) -> str:
    """Return a parameter as an array of the type that the column is compared in."""
    first, *rest = key.stored.sent.split(_VIA)
    through = "".join(f"::{step}[]" for step in rest)
    return f"${number}{through}::{first}[]"


def _plain(column: Any) -> Any:
    """Return a column without the extension types that name PostgreSQL's own."""
    if isinstance(column.type, pa.BaseExtensionType):
        return column.cast(column.type.storage_type)
    return column


def _checked(least: Any, last: Any) -> Any:
    """Return what reads moments; the infinite ones come as moments far away."""

    def read(column: Any, type_: pa.DataType) -> Any:
        ends = pc.min_max(column)
        if ends["min"].is_valid and not least <= ends["min"].value <= ends["max"].value <= last:
            raise ValueError
        return column.cast(type_)

    return read


def _micros(value: dt.datetime) -> int:
    return int((value - dt.datetime(1970, 1, 1)) / dt.timedelta(microseconds=1))


_EPOCH = dt.date(1970, 1, 1)
_read_dates = _checked((_LEAST_DAY - _EPOCH).days, (_LAST_DAY - _EPOCH).days)
_read_times = _checked(_micros(dt.datetime(1, 1, 1)), _micros(dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)))


def _wide(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64())


def _doubles(column: pa.Array) -> pa.Array:
    return column.cast(pa.float64())


def _texts(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


_AS_TEXT = Stored(read="{c}::text", compared="{c}::text", sent="text", send=without_nul)
_INTEGER = Stored(sent="int8", send=_wide)
_NUMERIC = Stored(read="{c}::text", tested="{c}", sent="numeric", decode=cast)
_STORED: dict[tuple[str, str], Stored] = {
    ("integer", "integer"): _INTEGER,
    ("float", "float"): Stored(sent="float8", send=_doubles),
    ("float", "double"): Stored(sent="float8"),
    ("double", "double"): Stored(sent="float8"),
    ("numeric", "decimal"): _NUMERIC,
    ("integer", "decimal"): _NUMERIC,
    ("numeric", "integer"): Stored(read="{c}::text", tested="{c}", sent="numeric via int8", send=_wide),
    ("text", "string"): Stored(sent="text", send=without_nul),
    # Blanks at the end are not part of such a value; as text it has none.
    ("bpchar", "string"): Stored(read="{c}::text", sent="bpchar via text", send=without_nul),
    ("uuid", "string"): Stored(read="{c}::text", sent="uuid via text", send=only_uuids),
    ("json", "string"): _AS_TEXT,
    ("as text", "string"): _AS_TEXT,
    ("bytea", "binary"): Stored(sent="bytea"),
    ("bool", "boolean"): Stored(sent="bool"),
    ("date", "date"): Stored(sent="date", decode=_read_dates),
    ("timestamptz", "timestamp"): Stored(sent="timestamptz", decode=_read_times),
    ("timestamp", "timestamp_ntz"): Stored(sent="timestamp", decode=_read_times),
}
_KINDS: dict[str, tuple[str, pa.DataType | None]] = {
    "int2": ("integer", pa.int16()),
    "int4": ("integer", pa.int32()),
    "int8": ("integer", pa.int64()),
    "oid": ("integer", pa.int64()),
    "float4": ("float", pa.float32()),
    "float8": ("double", pa.float64()),
    "text": ("text", pa.string()),
    "varchar": ("text", pa.string()),
    "name": ("as text", pa.string()),
    "citext": ("as text", pa.string()),
    "bpchar": ("bpchar", pa.string()),
    "uuid": ("uuid", pa.string()),
    "json": ("json", pa.string()),
    "jsonb": ("json", pa.string()),
    "inet": ("as text", pa.string()),
    "cidr": ("as text", pa.string()),
    "macaddr": ("as text", pa.string()),
    "xml": ("as text", pa.string()),
    "time": ("as text", pa.string()),
    "interval": ("as text", pa.string()),
    "bytea": ("bytea", pa.binary()),
    "bool": ("bool", pa.bool_()),
    "date": ("date", pa.date32()),
    "timestamptz": ("timestamptz", TIMESTAMP),
    "timestamp": ("timestamp", TIMESTAMP_NTZ),
}


def _described(field: pa.Field) -> Described:
    metadata = field.metadata or {}
    native = metadata.get(b"POSTGRESQL:type", b"").decode()
    if native == "numeric":
        return Described(field.name, "numeric", native, _numeric(int(metadata.get(b"POSTGRESQL:typmod", b"-1"))))
    if native in _KINDS:
        kind, type_ = _KINDS[native]
        return Described(field.name, kind, native, type_)
    if native.startswith("_"):
        item = _KINDS.get(native[1:], ("", None))[1]
        return Described(field.name, "list", f"{native[1:]}[]", None if item is None else pa.list_(item))
    detail = "enum" if pa.types.is_string(field.type) else None
    return Described(field.name, "other", native, pa.string() if detail else None, detail)


def _numeric(typmod: int) -> pa.DataType:
    """Return a numeric's type; without precision that of Spark's JDBC source."""
    if typmod < 4:
        return pa.decimal128(38, 18)
    precision, scale = (typmod - 4) >> 16, (typmod - 4) & 0x7FF
    scale = scale - 2048 if scale > 1023 else scale
    if not 0 <= scale <= precision <= 38:
        return pa.decimal128(38, min(max(scale, 0), 38))
    return pa.decimal128(precision, scale)


# ── where ────────────────────────────────────────────────────────────────────────────────────────────────────


def _address(settings: Mapping[str, str]) -> str:
    """Return the URL with what the options add to it, which overrules it."""
    rest = settings["url"].partition("://")[2]
    added = {
        "user": settings.get("user"),
        "password": settings.get("password"),
        "sslmode": settings.get("tls") and tls_mode(settings),
        "sslrootcert": settings.get("tls.ca") or ("system" if settings.get("tls") == "verify-full" else None),
        "sslcert": settings.get("tls.certificate"),
        "sslkey": settings.get("tls.key"),
        "connect_timeout": _whole_seconds(settings),
        "application_name": "lookupcache",
    }
    words = {name: value for name, value in added.items() if value}
    mark = "&" if "?" in rest else "?"
    return f"postgresql://{rest}{mark}{urllib.parse.urlencode(words, quote_via=urllib.parse.quote)}"


def _whole_seconds(settings: Mapping[str, str]) -> str:
    given = seconds(settings, "connect.timeout")
    return str(10 if given is None else max(1, int(np.ceil(given))))


def _reason(error: Exception) -> str:
    text = str(error).partition("Failed to connect: ")[2] or str(error)
    return " ".join(text.split()).rstrip(".")


def _first_line(error: Exception) -> str:
    return str(error).partition("ERROR:")[2].strip().partition("\n")[0] + "."
