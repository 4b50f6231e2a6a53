"""MariaDB and MySQL, through PyMySQL: keys are sent as a JSON document, rows are received as texts, parsed by Arrow."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.errors import OptionError, SourceError
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ, upper_but_names
from lookupcache.source_options import AnswerLimit
from lookupcache_sql.database import SCAN_ROWS, unknown_table
from lookupcache_sql.dialects import Dialect
from lookupcache_sql.mysql_rows import read_columns
from lookupcache_sql.query import MYSQL
from lookupcache_sql.server import DatabaseServer, connect_seconds, refused, statement_timeout, tls_options, unreachable
from lookupcache_sql.typed import (
    MICROS_PER_DAY,
    Described,
    ReadColumn,
    Stored,
    TypedDatabase,
    family,
    only_between,
    only_finite,
    read_json,
)

_PORT = 3306

_REFUSED = {1044, 1045, 1049, 1251, 1698, 2054, 2059, 2061}
"""Wrong user, password or database, or an authentication method that the driver does not support."""

_UNTRUSTED = re.compile("CERTIFICATE_VERIFY_FAILED|SSL is required")

_TEMPORARY = {1021, 1037, 1038, 1040, 1053, 1077, 1129, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1317, 1927,
              1969, 2002, 2003, 2006, 2013, 2014, 2055, 3024, 4031}  # fmt: skip
"""The server is unreachable, shutting down, out of memory or connections, was interrupted or too slow."""


class MysqlDialect(Dialect):
    r"""MariaDB's and MySQL's names, texts and values.

    >>> print(MysqlDialect.text("a\\b"))
    'a\\b'
    """

    mark = "`"
    null_safe_equal = "<=>"
    date = "DATE'{}'"
    moment = local_moment = "TIMESTAMP'{}'"
    escapes: ClassVar[Mapping[str, str]] = {"\\": r"\\", "\0": r"\0", "\n": r"\n", "\r": r"\r", "\x1a": r"\Z"}

    @classmethod
    def holds(cls, value: Any) -> bool:
        return not isinstance(value, float) or abs(value) < float("inf")

    @classmethod
    def number(cls, value: Any, type_: pa.DataType) -> str:
        if isinstance(value, float):
            return f"({value!r}{'' if 'e' in repr(value) else 'e0'})"
        return super().number(value, type_)

    @classmethod
    def by_bytes(cls, text: str) -> str:
        # A collation may ignore case, accents or trailing blanks.
        return f"CAST(CONVERT({text} USING utf8mb4) AS BINARY)"


class MysqlDatabase(TypedDatabase):
    """A MariaDB or MySQL server; the session is read-only and in UTC."""

    driver = "pymysql"
    dialect = MysqlDialect
    grammar = MYSQL

    def __init__(self, schema: pa.Schema, settings: Mapping[str, str]) -> None:
        super().__init__(schema, settings)
        self._most_sent = 0

    @classmethod
    def check(cls, settings: Mapping[str, str], schema: pa.Schema) -> None:
        _ = DatabaseServer.of(settings, _PORT), tls_options(settings)
        if settings.get("schema"):
            raise OptionError("Option 'schema' is not supported: MariaDB and MySQL have no schemas within a database.")

    @classmethod
    def environment(cls, settings: Mapping[str, str]) -> Mapping[str, Any]:
        from lookupcache.environment import login  # Most workers do without.

        server = DatabaseServer.of(settings, _PORT)
        socket_path = {"socket": os.path.realpath(server.host)} if server.host.startswith("/") else {}
        return socket_path if server.user else {**socket_path, "login": login()}

    def open(self) -> None:
        import pymysql

        try:
            self._connection = self._connect()
            with self._connection.cursor() as cursor:
                for setting in self._session():
                    cursor.execute(setting)
                cursor.execute("SELECT @@max_allowed_packet")
                self._most_sent = int(cursor.fetchone()[0])
            # From here on a query may take as long as it likes.
            self._connection._read_timeout = self._connection._write_timeout = None
        except (pymysql.Error, OSError) as error:
            raise self._connection_error(DatabaseServer.of(self.settings, _PORT), error) from None

    def interrupt(self) -> None:
        """Break the connection, so that its thread does not wait, and end its query on the server."""
        connection = self._connection
        sock = getattr(connection, "_sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(2)
            self._end(connection.thread_id())

    def _end(self, thread: int) -> None:
        """End a query over another connection; if the server does not accept one, it has ended the query already."""
        with contextlib.suppress(Exception), contextlib.closing(self._connect()) as other, other.cursor() as cursor:
            cursor.execute(f"KILL {thread}")

    @classmethod
    def retryable(cls, error: Exception) -> bool | None:
        import pymysql

        if not isinstance(error, pymysql.Error):
            return None
        if isinstance(error, pymysql.InterfaceError):
            return True
        return bool(error.args) and error.args[0] in _TEMPORARY

    def describe_columns(self) -> list[Described]:
        import pymysql

        table = self.source.table
        if table is None:
            with self.describing(pymysql.Error, lambda error: str(error.args[-1])), self._connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM {self.relation} LIMIT 0")
                return [_of_result(field) for field in cursor._result.fields]
        rows = self._answer(
            "SELECT column_name, data_type, column_type, numeric_precision, numeric_scale, character_set_name, "
            "collation_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = "
            f"{self.dialect.text(table)} ORDER BY ordinal_position"
        )
        if not rows:
            known = self._answer("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()")
            raise unknown_table(table, None, [name for [name] in known])
        return [_describe_column(*row) for row in rows]

    def without_index(self, key_columns: Sequence[str]) -> bool:
        if self.source.table is None:
            return False
        rows = self._answer(
            "SELECT t.table_type, s.column_name FROM information_schema.tables t "
            "LEFT JOIN information_schema.statistics s "
            "ON s.table_schema = t.table_schema AND s.table_name = t.table_name AND s.seq_in_index = 1 "
            f"WHERE t.table_schema = DATABASE() AND t.table_name = {self.dialect.text(self.source.table)}"
        )
        first = {f"t.{self.dialect.quote(name)}" for _, name in rows if name}
        return rows[0][0] == "BASE TABLE" and not first & {self.read_columns[name].sql for name in key_columns}

    def key_query(self, selected: str, keys: Sequence[ReadColumn]) -> str:
        paths = ["$"] if len(keys) == 1 else [f"$[{number}]" for number in range(len(keys))]
        declared = [
            f"k{n} {key.stored.sent} PATH '{path}'" for n, (key, path) in enumerate(zip(keys, paths, strict=True))
        ]
        pairs = [key.equals(f"k.k{number}") for number, key in enumerate(keys)]
        document = f"JSON_TABLE(%s, '$[*]' COLUMNS ({', '.join(declared)})) AS k"
        return f"SELECT {selected} FROM {document} STRAIGHT_JOIN {self.relation} ON {' AND '.join(pairs)} WHERE 1 = 1"

    def fetch_columns(self, text: str, sent: Sequence[pa.Array], keys: Sequence[ReadColumn]) -> Sequence[Any]:
        parts = [part for query in self._queries(text, sent) for part in self._stream(query, self.limit)]
        return [pa.chunked_array(column) for column in zip(*parts, strict=True)]

    def _queries(self, text: str, sent: Sequence[pa.Array]) -> Iterator[str]:
        """Yield the query for keys, or several if the server takes no text of that size.

        A larger text would break the connection, as if it were lost.
        """
        columns = [column.to_pylist() for column in sent]
        rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        first, _, rest = text.partition("JSON_TABLE(%s")
        document = self._connection.escape(json.dumps(rows, ensure_ascii=False, default=str))
        query = f"{first}JSON_TABLE({document}{rest}"
        # A packet has a byte more, for the command.
        if 4 * len(query) + 1 < self._most_sent or len(query.encode()) + 1 < self._most_sent:
            yield query
            return
        if len(rows) == 1:
            raise SourceError(
                f"Table {self.limit.table!r}: a key is too long for one query: the server's max_allowed_packet is "
                f"{self._most_sent:,} bytes.",
                hint="Raise max_allowed_packet of the server.",
            )
        middle = len(rows) // 2
        yield from self._queries(text, [column[:middle] for column in sent])
        yield from self._queries(text, [column[middle:] for column in sent])

    def stream_columns(self, text: str) -> Iterator[Sequence[Any]]:
        for part in self._stream(text, None, SCAN_ROWS):
            yield [pa.chunked_array([column]) for column in part]

    def _stream(self, query: str, limit: AnswerLimit | None, most: float = math.inf) -> Iterator[list[pa.Array]]:
        from pymysql.cursors import SSCursor

        with self._connection.cursor(SSCursor) as cursor:
            cursor.execute(query)
            yield from read_columns(cursor, limit, most)

    @classmethod
    def storage_for(cls, described: Described, type_: pa.DataType) -> Stored | None:
        words = described.kind, family(type_)
        if words == ("text", "string"):
            return _text(*described.detail)
        if words == ("as text", "string"):
            return _as_text(described.native, *described.detail)
        if words[0] == "text" and words[1] == "nested":
            return Stored(decode=read_json)
        if words[0] in ("integer", "decimal") and words[1] == "decimal":
            sent = f"DECIMAL({type_.precision},{type_.scale})"
            return Stored(tested="{c}", sent=sent, send=lambda column: column.cast(pa.string()))
        return _STORED.get(words)

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────

    def _connect(self) -> Any:
        import pymysql
        from pymysql.converters import encoders

        server = DatabaseServer.of(self.settings, _PORT)
        timeout = connect_seconds(self.settings)
        tls = tls_options(self.settings)
        # For 'prefer', PyMySQL's own default: it encrypts if the server does.
        context = None if tls.mode in ("disable", "prefer") else tls.context(trust_system=False)
        connection = pymysql.connect(
            host=server.host, port=server.port, user=server.user, password=server.password,
            database=server.database, charset="utf8mb4", autocommit=True, conv=encoders, connect_timeout=timeout,
            # The driver's limit for connecting ends when the server has accepted, which one that hangs may still do.
            read_timeout=timeout, write_timeout=timeout, ssl=context, ssl_disabled=tls.mode == "disable",
            defer_connect=True,
        )  # fmt: skip
        # The driver would leak a Unix socket whose path does not exist, so it is opened here.
        connection.connect(_unix_socket(server.host, timeout) if server.is_socket else None)
        return connection

    def _session(self) -> Iterator[str]:
        yield "SET SESSION TRANSACTION READ ONLY"
        yield "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
        # A limit of the server's would end an answer early, and the keys behind it would have no rows.
        yield "SET sql_select_limit = 18446744073709551615"
        is_mariadb = "MariaDB" in self._connection.get_server_info()
        yield from statement_timeout(self.settings, "mariadb" if is_mariadb else "mysql")

    def _connection_error(self, server: DatabaseServer, error: Exception) -> Exception:
        reason = server.without_password(str(error.args[-1] if error.args else error)).rstrip(".")
        if (error.args and error.args[0] in _REFUSED) or _UNTRUSTED.search(reason):
            return refused(server, reason, self.settings)
        return unreachable(server, reason)

    def _answer(self, text: str) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall())


def _unix_socket(path: str, timeout: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(timeout)
        made.connect(path)
        made.settimeout(None)
    except BaseException:
        made.close()
        raise
    return made


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────


def _text(charset: str | None, collation: str | None) -> Stored:
    """Return how a text column is read: compared in its own collation, so that an index is used, then by its bytes."""
    bytes_of = MysqlDialect.by_bytes
    if charset is None or collation is None:
        return Stored(compared=bytes_of("{c}"), key=bytes_of("{k}"), sent=_TEXT)
    key = f"CONVERT({{k}} USING {charset}) COLLATE {collation}"
    return Stored(key=key, recheck=f"{bytes_of('{c}')} = {bytes_of('{k}')}", sent=_TEXT)


def _as_text(native: str, charset: str | None, collation: str | None) -> Stored:
    """Return how a column is read as its text that has a type which Spark lacks.

    A UUID or address is compared as such, so that an index is used, and then as its text, which no other spelling is.
    """
    read, bytes_of = "CAST({c} AS CHAR)", MysqlDialect.by_bytes
    if native in _COMPARED:
        return Stored(read=read, recheck=f"{bytes_of(read)} = {bytes_of('{k}')}", sent=_TEXT)
    return replace(_text(charset, collation), read=read)


_COMPARED = ("UUID", "INET4", "INET6")


def _read_booleans(column: Any, type_: pa.DataType) -> Any:
    if not pc.all(pc.is_in(column.drop_null(), pa.array(["0", "1"], pa.string())), min_count=0).as_py():
        raise ValueError
    return pc.equal(column, pa.scalar("1", pa.string()))


def _hex(column: pa.Array) -> pa.Array:
    return pa.array([value and value.hex() if value is not None else None for value in column.to_pylist()], pa.string())


_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896
"""The first day of the year 0, and the last of 9999; counted from 1970."""


def _dates(column: pa.Array) -> pa.Array:
    return only_between(column, pa.int32(), _FIRST_DAY, _LAST_DAY).cast(pa.string())


def _moments(column: pa.Array) -> pa.Array:
    first, last = _FIRST_DAY * MICROS_PER_DAY, (_LAST_DAY + 1) * MICROS_PER_DAY - 1
    return only_between(column.cast(pa.timestamp("us")), pa.int64(), first, last).cast(pa.string())


def _as_doubles(column: pa.Array) -> pa.Array:
    return only_finite(column.cast(pa.float64()))


def _read_times(column: Any, type_: pa.DataType) -> Any:
    return column.cast(pa.timestamp("us")).cast(type_)


_TEXT = "LONGTEXT CHARACTER SET utf8mb4"
_INTEGER = Stored(sent="BIGINT")
_STORED: dict[tuple[str, str], Stored] = {
    ("integer", "integer"): _INTEGER,
    # A FLOAT is printed with six digits, unless it is converted to a DOUBLE.
    ("float", "float"): Stored(read="({c} + 0e0)", sent="DOUBLE", send=_as_doubles),
    ("float", "double"): Stored(read="({c} + 0e0)", sent="DOUBLE", send=_as_doubles),
    ("double", "double"): Stored(sent="DOUBLE", send=_as_doubles),
    ("integer", "boolean"): Stored(sent="TINYINT", send=lambda column: column.cast(pa.int8()), decode=_read_booleans),
    ("bit", "boolean"): Stored(
        read="({c} + 0)", sent="TINYINT", send=lambda column: column.cast(pa.int8()), decode=_read_booleans
    ),
    ("bits", "integer"): Stored(read="({c} + 0)", sent="BIGINT"),
    ("bits", "decimal"): Stored(read="({c} + 0)", sent="DECIMAL(20,0)", send=lambda column: column.cast(pa.string())),
    ("binary", "binary"): Stored(key="UNHEX({k})", sent=_TEXT, send=_hex),
    ("date", "date"): Stored(sent="DATE", send=_dates),
    ("timestamp", "timestamp"): Stored(sent="DATETIME(6)", send=_moments, decode=_read_times),
    # TIMESTAMP ends in 2038. Therefore, DATETIME columns often have UTC timestamps.
    ("datetime", "timestamp"): Stored(sent="DATETIME(6)", send=_moments, decode=_read_times),
    ("datetime", "timestamp_ntz"): Stored(sent="DATETIME(6)", send=_moments, decode=_read_times),
}
_INTEGERS = {
    "tinyint": pa.int8(), "smallint": pa.int16(), "mediumint": pa.int32(), "int": pa.int32(), "bigint": pa.int64(),
    "year": pa.int16(),
}  # fmt: skip
_UNSIGNED = {"tinyint": pa.int16(), "smallint": pa.int32(), "int": pa.int64(), "bigint": pa.decimal128(20)}
_KINDS: dict[str, tuple[str, pa.DataType | None]] = {
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), ("text", pa.string())),
    **dict.fromkeys(("enum", "set", "time", "json", "uuid", "inet4", "inet6"), ("as text", pa.string())),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), ("binary", pa.binary())),
    "float": ("float", pa.float32()),
    "double": ("double", pa.float64()),
    "bit": ("bit", pa.bool_()),
    "date": ("date", pa.date32()),
    "timestamp": ("timestamp", TIMESTAMP),
    "datetime": ("datetime", TIMESTAMP_NTZ),
}


def _describe_column(
    name: str, kind: str, native: str, precision: str | None, scale: str | None, charset: str, collation: str
) -> Described:
    native = upper_but_names(native)
    if kind in _INTEGERS:
        ours = _UNSIGNED.get(kind, pa.int32()) if "UNSIGNED" in native else _INTEGERS[kind]
        return Described(name, "integer", native, pa.bool_() if native == "TINYINT(1)" else ours)
    if kind == "decimal":
        ours = pa.decimal128(min(int(precision or 10), 38), min(int(scale or 0), 38))
        return Described(name, "decimal", native, ours)
    if kind == "bit" and native != "BIT(1)":
        return Described(name, "bits", native, pa.decimal128(20, 0) if native == "BIT(64)" else pa.int64())
    word, type_ = _KINDS.get(kind, ("", None))
    return Described(name, word, native, type_, (charset, collation))


def _of_result(field: Any) -> Described:
    """Return a column of a query's result, whose collation is unknown."""
    from pymysql.constants import FIELD_TYPE

    # In this order, since the driver has a second name, CHAR, for TINY.
    names = {number: name.lower() for name, number in reversed(vars(FIELD_TYPE).items()) if isinstance(number, int)}
    kind = _RESULT_KINDS.get(names[field.type_code], names[field.type_code])
    binary = field.charsetnr == 63
    if kind == "text":
        kind = "longblob" if binary else "longtext"
    native = f"{kind} unsigned" if field.flags & 32 and kind != "bit" else kind
    if kind == "bit" or (native == "tinyint" and field.length == 1):
        native = f"{kind}({field.length})"
    digits = str(field.length - (field.scale > 0) - (not field.flags & 32))
    return _describe_column(field.name, kind, native, digits, str(field.scale), None, None)  # type: ignore[arg-type]


_RESULT_KINDS = {
    "tiny": "tinyint", "short": "smallint", "int24": "mediumint", "long": "int", "longlong": "bigint",
    "newdecimal": "decimal", "var_string": "text", "string": "text", "varchar": "text", "blob": "text",
    "tiny_blob": "text", "medium_blob": "text", "long_blob": "text", "newdate": "date", "json": "longtext",
}  # fmt: skip
