"""Creates tables in real databases for the sql connector's tests, with the types that users of the database would use.

Values are written as literals, so that the tests do not depend on the connector's parameter binding.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from servers import MariaServer, PostgresServer

from lookupcache.formats.json_text import json_text
from lookupcache.schema import type_name
from lookupcache.testing.samples import JSON

ROWS_PER_STATEMENT = 1_000


class Tables:
    """Creates tables in a database; ``native`` maps Spark's types to the database's types."""

    native: ClassVar[dict[str, str]]
    nested = "json"
    mark = '"'

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def options(self, table: str) -> dict[str, str]:
        """Return the connector's options for a table."""
        raise NotImplementedError

    def run(self, *statements: str) -> None:
        """Execute statements."""
        raise NotImplementedError

    def literal(self, value: Any, type_: pa.DataType) -> str:
        """Return a value as an SQL literal."""
        raise NotImplementedError

    def of(self, rows: pa.Table, key: Sequence[str] = ()) -> dict[str, str]:
        """Create a table with these rows, and an index on the key if possible; return the connector's options."""
        name = f"t{next(self._numbers)}"
        columns = ", ".join(
            f"{self.quote(field.name)} {self.type_of(field, field.name in key)}" for field in rows.schema
        )
        indexed = [self.quote(c) for c in key if not pa.types.is_string(rows.schema.field(c).type)]
        self.run(f"DROP TABLE IF EXISTS {name}", f"CREATE TABLE {name} ({columns})", *self._inserts(name, rows))
        if indexed and len(indexed) == len(key):
            self.run(f"CREATE INDEX i{name} ON {name} ({', '.join(indexed)})")
        return self.options(name)

    def type_of(self, field: pa.Field, is_key: bool) -> str:
        """Return the database type of a column."""
        if field.metadata == JSON or pa.types.is_nested(field.type):
            return self.nested
        name = type_name(field.type)
        return self.native.get(name, name)

    def nearest(self, value: Any) -> Any:
        """Return the value, or a similar one if the database cannot store it."""
        return value

    def quote(self, name: str) -> str:
        """Return a quoted identifier."""
        return self.mark + name.replace(self.mark, self.mark * 2) + self.mark

    def _inserts(self, name: str, rows: pa.Table) -> Iterator[str]:
        columns = [[self._value(value, field.type) for value in rows.column(n).to_pylist()]
                   for n, field in enumerate(rows.schema)]  # fmt: skip
        texts = [f"({', '.join(row)})" for row in zip(*columns, strict=True)]
        for start in range(0, len(texts), ROWS_PER_STATEMENT):
            yield f"INSERT INTO {name} VALUES {', '.join(texts[start : start + ROWS_PER_STATEMENT])}"

    def _value(self, value: Any, type_: pa.DataType) -> str:
        if value is None:
            return "NULL"
        return self.literal(json_text(_maps_to_dicts(value, type_)) if pa.types.is_nested(type_) else value, type_)


def _maps_to_dicts(value: Any, type_: pa.DataType) -> Any:
    """Return a nested value with maps as dicts."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        return {key: _maps_to_dicts(item, type_.item_type) for key, item in value}
    if pa.types.is_list(type_):
        return [_maps_to_dicts(item, type_.value_type) for item in value]
    if pa.types.is_struct(type_):
        return {member.name: _maps_to_dicts(value[member.name], member.type) for member in type_}
    return value


def _to_text(value: Any) -> str:
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else str(value)


class PostgresTables(Tables):
    """Tables in PostgreSQL."""

    nested = "jsonb"
    native: ClassVar[dict[str, str]] = {
        "tinyint": "smallint", "int": "integer", "float": "real", "double": "double precision", "string": "text",
        "binary": "bytea", "timestamp": "timestamptz", "timestamp_ntz": "timestamp",
    }  # fmt: skip

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self.server = server

    def options(self, table: str) -> dict[str, str]:
        return {"url": self.server.url, "table": table}

    def run(self, *statements: str) -> None:
        self.server.run(*statements)

    def nearest(self, value: Any) -> Any:
        return value.replace("\0", "0") if isinstance(value, str) else value

    def literal(self, value: Any, type_: pa.DataType) -> str:
        text = f"\\x{value.hex()}" if isinstance(value, bytes) else _to_text(value)
        return "'" + text.replace("'", "''") + "'"


class MariaTables(Tables):
    """Tables in MariaDB."""

    mark = "`"
    native: ClassVar[dict[str, str]] = {
        "int": "int", "string": "longtext", "binary": "longblob", "timestamp": "datetime(6)",
        "timestamp_ntz": "datetime(6)", "boolean": "boolean",
    }  # fmt: skip

    def __init__(self, server: MariaServer) -> None:
        super().__init__()
        self.server = server

    def options(self, table: str) -> dict[str, str]:
        # Without TLS: PyMySQL would read the system's authorities for each connection, though it checks none.
        return {"url": self.server.url, "table": table, "tls.mode": "disable"}

    def run(self, *statements: str) -> None:
        self.server.run(*statements)

    def nearest(self, value: Any) -> Any:
        return (
            value + 0.0
            if isinstance(value, float) and math.isfinite(value)
            else None
            if isinstance(value, float)
            else value
        )

    def type_of(self, field: pa.Field, is_key: bool) -> str:
        type_ = super().type_of(field, is_key)
        # An index needs a length; TIMESTAMP columns are NOT NULL by default.
        return {"longblob": "varbinary(700)"}.get(type_, type_) if is_key else f"{type_} NULL"

    def literal(self, value: Any, type_: pa.DataType) -> str:
        if isinstance(value, bytes):
            return f"x'{value.hex()}'"
        if isinstance(value, bool):
            return str(int(value))
        text = _to_text(value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value)
        return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"


class DuckTables(Tables):
    """Tables in a DuckDB file."""

    native: ClassVar[dict[str, str]] = {
        "float": "float", "string": "varchar", "binary": "blob", "timestamp": "timestamptz",
        "timestamp_ntz": "timestamp", "int": "integer",
    }  # fmt: skip

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def options(self, table: str) -> dict[str, str]:
        return {"url": f"duckdb:///{self.path}", "table": table}

    def run(self, *statements: str) -> None:
        import duckdb

        with closing(duckdb.connect(self.path)) as connection:
            for statement in statements:
                connection.execute(statement)

    def literal(self, value: Any, type_: pa.DataType) -> str:
        if isinstance(value, bytes):
            return f"unhex('{value.hex()}')"
        return "'" + _to_text(value).replace("'", "''") + "'"


class SqliteTables(Tables):
    """Tables of SQLite's, in a file."""

    native: ClassVar[dict[str, str]] = {}

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def options(self, table: str) -> dict[str, str]:
        return {"url": f"sqlite:///{self.path}", "table": table}

    def run(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def literal(self, value: Any, type_: pa.DataType) -> str:
        return "'" + _to_text(value).replace("'", "''") + "'"


# ── the same through dialects of SQLAlchemy ──────────────────────────────────────────────────────────────────


def through(scheme: str, options: dict[str, str]) -> dict[str, str]:
    """Return options for the sql connector with a URL that names a dialect and a driver."""
    own = {name: value for name, value in options.items() if not name.startswith("tls.")}
    return {**own, "url": f"{scheme}:{own['url'].partition(':')[2]}"}


class PsycopgTables(PostgresTables):
    """Tables in PostgreSQL, read by psycopg."""

    scheme = "postgresql+psycopg"

    def options(self, table: str) -> dict[str, str]:
        return through(self.scheme, super().options(table))


class PyMysqlTables(MariaTables):
    """Tables in MariaDB, read by PyMySQL."""

    scheme = "mariadb+pymysql"

    def options(self, table: str) -> dict[str, str]:
        return through(self.scheme, super().options(table))


class DuckEngineTables(DuckTables):
    """Tables in DuckDB, read through duckdb-engine; nested values are texts, as it does not tell which are JSON."""

    scheme = "duckdb+duckdb_engine"
    nested = "varchar"

    def options(self, table: str) -> dict[str, str]:
        return through(self.scheme, super().options(table))


class PysqliteTables(SqliteTables):
    """Tables in SQLite, with the types by which SQLAlchemy knows columns."""

    scheme = "sqlite+pysqlite"
    native: ClassVar[dict[str, str]] = {"string": "text", "binary": "blob", "tinyint": "smallint"}

    def options(self, table: str) -> dict[str, str]:
        return through(self.scheme, super().options(table))

    def literal(self, value: Any, type_: pa.DataType) -> str:
        if isinstance(value, bytes):
            return f"x'{value.hex()}'"
        if isinstance(value, bool | float):
            return {"INF": "9e999", "-INF": "-9e999"}.get(repr(value).upper(), repr(value).upper())
        return f"CAST(x'{value.encode().hex()}' AS TEXT)" if "\0" in str(value) else super().literal(value, type_)


def sent_to(connector: Any) -> Callable[[], int]:
    """Return a function that returns how many queries a connector has sent since then."""
    database = connector._pool._free[0]
    queries: list[str] = []
    fetched = database.fetch_columns

    def record(text: str, *rest: Any) -> Any:
        queries.append(text)
        return fetched(text, *rest)

    database.fetch_columns = record
    return lambda: len(queries)
