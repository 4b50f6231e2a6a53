"""PostgreSQL, through its ADBC driver: keys are sent as an array per key column, rows are received as Arrow."""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lookupcache.connector import LookupRequest
from lookupcache.errors import ConnectorError, OptionError
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ
from lookupcache.tls import TlsOptions
from lookupcache_sql.database import unknown_table
from lookupcache_sql.dialects import Dialect
from lookupcache_sql.query import POSTGRES
from lookupcache_sql.server import (
    POSTGRES_SESSION,
    DatabaseServer,
    connect_seconds,
    is_on_this_machine,
    refused,
    statement_timeout,
    tls_options,
    unreachable,
    url_query,
)
from lookupcache_sql.typed import (
    MICROS_PER_DAY,
    Described,
    ReadColumn,
    Stored,
    TypedDatabase,
    cast,
    family,
    in_range,
    only_between,
    only_uuids,
    read_json,
    without_nul,
)

_PASSING_STATES = ("08", "40", "53", "55", "57", "58")
_REFUSED = re.compile(r"password authentication failed|authentication failed|does not exist|no pg_hba|not permitted"
                      r"|permission denied|no password supplied|invalid percent|invalid .* value|certificate"
                      r"|SSL(?! SYSCALL| connection has been closed| error: unexpected eof)"
                      r"|missing \"=\"|unsupported|root\.crt|definition of service|service file"
                      r"|invalid URI query parameter")  # fmt: skip
_OF_ANY_SIZE = ("string", "binary", "decimal", "nested")
_ROW_BYTES = 32
"""The bytes that a row counts in addition to its texts and binaries."""
_VIA = " via "
"""The text between the type that keys are compared in and the type that they are sent in."""


class PostgresDialect(Dialect):
    """PostgreSQL's values."""

    binary = "CAST('\\x{}' AS BYTEA)"

    @classmethod
    def holds(cls, value: Any) -> bool:
        return not (isinstance(value, str) and "\0" in value)

    @classmethod
    def by_bytes(cls, text: str) -> str:
        return f'CAST({text} AS TEXT) COLLATE "C"'

    @classmethod
    def cast_value(cls, value: str, type_: str) -> str:
        return f"CAST({value} AS {type_.partition(_VIA)[0]})"


class PostgresDatabase(TypedDatabase):
    """A PostgreSQL server; the session is read-only."""

    driver = "adbc_driver_postgresql"
    dialect = PostgresDialect
    grammar = POSTGRES

    def __init__(self, schema: pa.Schema, settings: Mapping[str, str]) -> None:
        super().__init__(schema, settings)
        self._cursor: Any = None

    @classmethod
    def check(cls, settings: Mapping[str, str], schema: pa.Schema) -> None:
        _ = DatabaseServer.of(settings, 5432), _tls_options(settings)

    @classmethod
    def environment(cls, settings: Mapping[str, str]) -> Mapping[str, Any] | None:
        from lookupcache.environment import libpq_settings, login, real_sockets  # Most workers do without.

        query, server = url_query(settings["url"]), DatabaseServer.of(settings, 5432)
        found: dict[str, Any] = {"sockets": real_sockets(server.host, query.get("port") or str(server.port))}
        if not (server.user or query.get("user")):
            found["login"] = login()
        if service := query.get("service") or os.environ.get("PGSERVICE"):
            found["service"] = _service(service, query.get("servicefile"))
        if found.get("service") == []:
            return None
        of_service = dict(line.split("=", 1) for lines in found.get("service", [])[:1] for line in lines)
        path = settings.get("tls.certificate") or query.get("sslcert") or of_service.get("sslcert")
        return {name: value for name, value in found.items() if value} | libpq_settings(path)

    def open(self) -> None:
        from adbc_driver_postgresql import dbapi

        try:
            self._connection = dbapi.connect(_address(self.settings), autocommit=True)
        except dbapi.Error as error:
            raise self._connection_error(error) from None
        self._cursor = self._connection.cursor()
        for setting in self._session():
            self._cursor.execute(setting)
        if self._answer("SELECT current_setting('quote_all_identifiers')")[0].to_pylist() != ["off"]:
            # The driver reads the names of types when it connects, and then finds none.
            raise ConnectorError(
                "Option 'url': the role or database has the setting quote_all_identifiers, with which PostgreSQL's "
                "driver reads all values as bytes.",
                hint="ALTER ROLE … SET quote_all_identifiers = off, or add '?options=-c%20quote_all_identifiers%3Doff' "
                "to the URL.",
            )

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._cursor.close()
        self._cursor = None
        super().close()

    def interrupt(self) -> None:
        """Cancel the query over another connection."""
        with contextlib.suppress(Exception):
            self._connection.adbc_cancel()

    @classmethod
    def retryable(cls, error: Exception) -> bool | None:
        """Return whether the server was unreachable, or the query too slow or in conflict with another."""
        if not type(error).__module__.startswith("adbc_driver_manager"):
            return None
        state = getattr(error, "sqlstate", None)
        return type(error).__name__ == "OperationalError" if state is None else state.startswith(_PASSING_STATES)

    def describe_columns(self) -> list[Described]:
        from adbc_driver_postgresql import dbapi

        with self.describing(dbapi.Error, _first_line):
            self._cursor.execute(f"SELECT * FROM {self._relation_name()} LIMIT 0")
        fields = list(self._cursor.fetch_arrow_table().schema)
        catalogued = self._read_catalog({_native(field) for field in fields} - set(_KINDS))
        return [_describe_column(field, catalogued.get(_native(field))) for field in fields]

    def without_index(self, key_columns: Sequence[str]) -> bool:
        if self.source.query is not None:
            return False
        text = (
            "SELECT c.relkind, a.attname FROM pg_class c LEFT JOIN pg_index i "
            "ON i.indrelid = c.oid AND i.indpred IS NULL AND i.indisvalid "
            "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0] "
            f"WHERE c.oid = {self.dialect.text(self.relation.removesuffix(' AS t'))}::regclass"
        )
        kinds, first = (column.to_pylist() for column in self._answer(text))
        columns = {self.read_columns[name].sql for name in key_columns}
        return kinds[0] in ("r", "p") and not columns & {f"t.{self.dialect.quote(name)}" for name in first if name}

    def key_query(self, selected: str, keys: Sequence[ReadColumn]) -> str:
        compared = [key.stored.compared.format(c=key.sql) for key in keys]
        if len(keys) == 1:
            return f"SELECT {selected} FROM {self.relation} WHERE {compared[0]} = ANY({_array(1, keys[0])})"
        arrays = ", ".join(_array(number, key) for number, key in enumerate(keys, 1))
        # A semi-join, so that a row is returned once even if its collation equates several keys.
        return (
            f"SELECT {selected} FROM {self.relation} WHERE ({', '.join(compared)}) IN (SELECT * FROM unnest({arrays}))"
        )

    def bound(self, text: str, request: LookupRequest) -> str:
        """Return a query that ends with the first row beyond the limit, and marks it in a further column.

        The driver reads all rows of a query with parameters before it returns the first, so the server has to count.
        """
        names = [f"c{number}" for number in range(len(request.fields))]
        sized = [name for name, field in zip(names, request.fields, strict=True)
                 if family(self.schema.field(field).type) in _OF_ANY_SIZE]  # fmt: skip
        size = " + ".join([str(_ROW_BYTES), *(f"coalesce(octet_length({name}), 0)" for name in sized)])
        rows = f"{text} LIMIT {self.most_bytes // _ROW_BYTES + 1}"
        sizes = f"SELECT q.*, {size} AS size FROM ({rows}) AS q({', '.join(names)})"
        totals = f"SELECT s.*, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total FROM ({sizes}) AS s"
        mark = f"CASE WHEN total > {self.most_bytes} THEN true END"
        return f"SELECT {', '.join(names)}, {mark} FROM ({totals}) AS t WHERE total - size <= {self.most_bytes}"

    def fetch_columns(self, text: str, sent: Sequence[pa.Array], keys: Sequence[ReadColumn]) -> Sequence[Any]:
        lists = [pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column) for column in sent]
        self._cursor.execute(text, pa.RecordBatch.from_arrays(lists, names=[f"k{n}" for n in range(len(lists))]))
        *columns, marks = self._cursor.fetch_arrow_table().columns
        if marks.null_count < len(marks):
            raise self.limit.error()
        return [_plain(column) for column in columns]

    def stream_columns(self, text: str) -> Iterator[Sequence[Any]]:
        with self._connection.cursor() as cursor:
            cursor.execute(text)
            for batch in cursor.fetch_record_batch():
                yield [_plain(pa.chunked_array([column])) for column in batch.columns]

    @classmethod
    def storage_for(cls, described: Described, type_: pa.DataType) -> Stored | None:
        words = described.kind, family(type_)
        if words == ("list", "nested") and pa.types.is_list(type_) and pa.types.is_string(type_.value_type):
            return Stored(read="to_json({c}::text[])::text", decode=read_json)
        if words[1] == "nested" and described.kind in ("json", "list", "other"):
            return Stored(read="to_json({c})::text", decode=read_json)
        if words[1] == "string" and described.kind in ("as text", "json", "list", "other"):
            return _AS_TEXT
        return _STORED.get(words)

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────

    def _session(self) -> Iterator[str]:
        yield from POSTGRES_SESSION
        # Just-in-time compilation pays off for long queries only, and is repeated for each query.
        yield "SET jit = off"
        yield from statement_timeout(self.settings, "postgresql")

    def _connection_error(self, error: Exception) -> Exception:
        server = DatabaseServer.of(self.settings, 5432)
        reason = server.without_password(_reason(error))
        if _REFUSED.search(reason):
            return refused(server, reason, self.settings)
        return unreachable(server, reason)

    def _relation_name(self) -> str:
        """Return the relation in SQL; raises ConnectorError with the nearest name if it does not exist."""
        table, namespace = self.source.table, self.source.namespace
        if table is None:
            return self.relation
        schema = f"= {self.dialect.text(namespace)}" if namespace else "= ANY(current_schemas(true))"
        [names] = self._answer(
            "SELECT DISTINCT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') AND n.nspname {schema}"
        )
        if table not in names.to_pylist():
            raise unknown_table(table, namespace, [name for name in names.to_pylist() if not name.startswith("pg_")])
        return self.relation

    def _read_catalog(self, natives: set[str]) -> dict[str, _Catalogued]:
        """Return the catalog's entries of types, by their names, or by their numbers if the driver has no name."""
        if not natives:
            return {}
        numbers = {int(found[1]): native for native in natives if (found := _UNNAMED.fullmatch(native))}
        texts = ", ".join(map(self.dialect.text, sorted(natives)))
        columns = self._answer(
            "SELECT t.oid::int8, t.typname::text, format_type(t.oid, NULL), t.typtype::text, "
            "t.typnamespace = 'pg_catalog'::regnamespace, coalesce(e.typname::text, ''), coalesce(e.typtype::text, '') "
            "FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' "
            f"WHERE t.typname IN ({texts}) OR t.oid IN ({', '.join(map(str, [0, *numbers]))}) "
            "ORDER BY pg_type_is_visible(t.oid)"
        )
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return {numbers.get(oid, name): _Catalogued(*rest) for oid, name, *rest in rows}

    def _answer(self, text: str) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetch_arrow_table().columns)


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────


def _array(number: int, key: ReadColumn) -> str:
    """Return a parameter as an array of the type that the column is compared in."""
    first, *rest = key.stored.sent.split(_VIA)
    through = "".join(f"::{step}[]" for step in rest)
    return f"${number}{through}::{first}[]"


def _plain(column: Any) -> Any:
    """Return a column without the extension types that name PostgreSQL's own."""
    if isinstance(column.type, pa.BaseExtensionType):
        return column.cast(column.type.storage_type)
    return column


def _widen(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64())


def _oids(column: pa.Array) -> pa.Array:
    return only_between(_widen(column), pa.int64(), 0, 2**32 - 1)


_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
"""24 November 4714 BC, where days begin to count, and the last day of the year 5874897; counted from 1970."""


def _dates(column: pa.Array) -> pa.Array:
    return only_between(column, pa.int32(), _FIRST_DAY, _LAST_DAY)


def _moments(column: pa.Array) -> pa.Array:
    # Its last moment is after the last of an int64.
    return only_between(column, pa.int64(), _FIRST_DAY * MICROS_PER_DAY, 2**63 - 1)


_AS_TEXT = Stored(read="{c}::text", compared="{c}::text", sent="text", send=without_nul)
_INTEGER = Stored(sent="int8", send=_widen)
_NUMERIC = Stored(read="{c}::text", tested="{c}", sent="numeric", decode=cast)
_STORED: dict[tuple[str, str], Stored] = {
    ("integer", "integer"): _INTEGER,
    ("float", "float"): Stored(sent="float8", send=lambda column: column.cast(pa.float64())),
    ("float", "double"): Stored(sent="float8"),
    ("double", "double"): Stored(sent="float8"),
    ("numeric", "decimal"): _NUMERIC,
    ("integer", "decimal"): _NUMERIC,
    ("numeric", "integer"): Stored(read="{c}::text", tested="{c}", sent="numeric via int8", send=_widen),
    ("text", "string"): Stored(sent="text", send=without_nul),
    # Trailing blanks are not part of a CHAR value; cast to text it has none.
    ("bpchar", "string"): Stored(read="{c}::text", sent="bpchar via text", send=without_nul),
    ("uuid", "string"): Stored(read="{c}::text", sent="uuid via text", send=only_uuids),
    ("oid", "integer"): Stored(read="{c}::int8", sent="oid via int8", send=_oids),
    ("oid", "decimal"): Stored(read="{c}::text", tested="{c}::int8", compared="{c}::int8", sent="numeric"),
    ("bytea", "binary"): Stored(sent="bytea"),
    ("bool", "boolean"): Stored(sent="bool"),
    ("date", "date"): Stored(sent="date", send=_dates, decode=in_range),
    ("timestamptz", "timestamp"): Stored(sent="timestamptz", send=_moments, decode=in_range),
    ("timestamp", "timestamp_ntz"): Stored(sent="timestamp", send=_moments, decode=in_range),
}
_SPELLED_KINDS = (
    "name", "char", "citext", "inet", "cidr", "macaddr", "macaddr8", "xml", "time", "timetz", "interval", "money",
    "bit", "varbit", "pg_lsn", "xid8", "jsonpath", "tsvector", "tsquery", "pg_snapshot", "txid_snapshot",
)  # fmt: skip
"""Types of which Spark has none, read by their texts."""
_KINDS: dict[str, tuple[str, pa.DataType | None]] = {
    "int2": ("integer", pa.int16()),
    "int4": ("integer", pa.int32()),
    "int8": ("integer", pa.int64()),
    "oid": ("oid", pa.int64()),
    "float4": ("float", pa.float32()),
    "float8": ("double", pa.float64()),
    "text": ("text", pa.string()),
    "varchar": ("text", pa.string()),
    "bpchar": ("bpchar", pa.string()),
    "uuid": ("uuid", pa.string()),
    "json": ("json", pa.string()),
    "jsonb": ("json", pa.string()),
    **dict.fromkeys(_SPELLED_KINDS, ("as text", pa.string())),
    "bytea": ("bytea", pa.binary()),
    "bool": ("bool", pa.bool_()),
    "date": ("date", pa.date32()),
    "timestamptz": ("timestamptz", TIMESTAMP),
    "timestamp": ("timestamp", TIMESTAMP_NTZ),
}


@dataclass(frozen=True)
class _Catalogued:
    """A type in the catalog: its name in SQL, its letter for enums and ranges, and those of its items."""

    native: str
    letter: str
    is_ours: bool
    item: str
    item_letter: str


_UNNAMED = re.compile(r"unnamed<oid:(\d+)>")
_SPELLED = ("e", "r", "m")
"""Enums, ranges and multiranges are texts to Spark."""


def _native(field: pa.Field) -> str:
    """Return the driver's name for a column's type."""
    return str((field.metadata or {}).get(b"POSTGRESQL:type", b"").decode())


def _describe_column(field: pa.Field, found: _Catalogued | None) -> Described:
    """Return a column; ``found`` is its type's catalog entry, if `_KINDS` does not contain it."""
    native = _native(field)
    typmod = int((field.metadata or {}).get(b"POSTGRESQL:typmod", b"-1"))
    if native == "numeric":
        return Described(field.name, "numeric", "NUMERIC", _numeric(typmod))
    if native in _KINDS:
        kind, type_ = _KINDS[native]
        return Described(field.name, kind, native.upper(), type_)
    if found is None:
        return Described(field.name, "other", native, None)
    shown = found.native.upper() if found.is_ours else found.native
    if found.item and native.startswith("_"):
        item = _item(found, typmod)
        return Described(field.name, "list", shown, None if item is None else pa.list_(item))
    if found.letter in _SPELLED:
        return Described(field.name, "as text", shown, pa.string())
    return Described(field.name, "other", shown, None)


def _item(found: _Catalogued, typmod: int) -> pa.DataType | None:
    """Return the type of an array's items; None for bytes, which JSON would turn into texts."""
    if found.item == "numeric":
        return _numeric(typmod)
    if found.item_letter in _SPELLED:
        return pa.string()
    return None if found.item == "bytea" else _KINDS.get(found.item, ("", None))[1]


def _numeric(typmod: int) -> pa.DataType:
    """Return a numeric's type; without precision, the one that Spark's JDBC source uses."""
    if typmod < 4:
        return pa.decimal128(38, 18)
    precision, scale = (typmod - 4) >> 16, (typmod - 4) & 0x7FF
    scale = scale - 2048 if scale > 1023 else scale
    if not 0 <= scale <= precision <= 38:
        return pa.decimal128(38, min(max(scale, 0), 38))
    return pa.decimal128(precision, scale)


# ── connection URL ────────────────────────────────────────────────────────────────────────────────────────────


def _address(settings: Mapping[str, str]) -> str:
    """Return the URL with the options, which take precedence over it."""
    rest, tls = _with_login(settings["url"].partition("://")[2]), _tls_options(settings)
    query = url_query(settings["url"])
    # A mode in the URL counts where no option is set, and the driver's own default on this machine.
    is_chosen = settings.get("tls.mode") or ("sslmode" not in query and (tls.ca or not is_on_this_machine(settings)))
    is_verified = is_chosen and tls.mode == "verify-full"
    added = {
        "user": settings.get("user"),
        "password": settings.get("password"),
        "sslmode": tls.mode if is_chosen else None,
        "sslrootcert": tls.ca or ("system" if is_verified and "sslrootcert" not in query else None),
        "sslcert": tls.certificate,
        "sslkey": tls.key or tls.certificate,
        "sslpassword": tls.key_password,
        "connect_timeout": str(math.ceil(connect_seconds(settings))),
        "application_name": "lookupcache",
        # That of a role or database would turn texts into others: the driver's are UTF-8.
        "client_encoding": "UTF8",
    }
    words = {name: value for name, value in added.items() if value}
    mark = "&" if "?" in rest else "?"
    return f"postgresql://{rest}{mark}{urllib.parse.urlencode(words, quote_via=urllib.parse.quote)}"


def _service(name: str, file: str | None) -> list[list[str]]:
    """Return the settings of a service in the files that the driver may read; none if it reads them from elsewhere."""
    from lookupcache.environment import settings_file

    files = [file or os.environ.get("PGSERVICEFILE") or "~/.pg_service.conf"]
    with contextlib.suppress(KeyError):  # A container's user may have no name.
        files.append(f"~{pwd.getpwuid(os.geteuid()).pw_name}/.pg_service.conf")
    files.append(f"{os.environ.get('PGSYSCONFDIR', '')}/pg_service.conf")
    return [found[name] for found in map(settings_file, files) if name in found]


def _with_login(rest: str) -> str:
    """Return a URL without scheme, with '@' in its login escaped: the driver takes the first one for its end.

    >>> _with_login("ann:a@b@db:5432/shop")
    'ann:a%40b@db:5432/shop'
    """
    end = re.search(r"[/?#]|$", rest)
    assert end is not None
    login, at, host = rest[: end.start()].rpartition("@")
    return f"{login.replace('@', '%40')}{at}{host}{rest[end.start() :]}"


def _tls_options(settings: Mapping[str, str]) -> TlsOptions:
    """Return the options ``tls.*``; raises OptionError for options that the driver does not have."""
    tls = tls_options(settings)
    if tls.has_ca_text:
        raise OptionError(
            "Option 'tls.ca' is PEM text, but PostgreSQL's driver needs a file.",
            hint="Set it to the file's path, without 'file:'.",
        )
    return tls


def _reason(error: Exception) -> str:
    text = str(error).partition("Failed to connect: ")[2] or str(error)
    return " ".join(text.split()).rstrip(".")


def _first_line(error: Exception) -> str:
    return (str(error).partition("ERROR:")[2] or str(error)).strip().partition("\n")[0]
