"""Tables for the sql connector's tests in real databases, each made of rows as its users would store them.

Values are written as literals, so that nothing of the connector's own binding is trusted.
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
from lookupcache_http_json import json_text
from servers import MariaServer, PostgresServer

from lookupcache.schema import type_name
from lookupcache.testing.samples import JSON

ROWS_IN_A_STATEMENT = 1_000


class Tables:
    """Makes tables in a database; ``native`` says by which of its types Spark's are held."""

    native: ClassVar[dict[str, str]]
    nested = "json"
    mark = '"'

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def options(self, table: str) -> dict[str, str]:
        """Return the connector's options for a table."""
        raise NotImplementedError

    def run(self, *statements: str) -> None:
        """Run statements."""
        raise NotImplementedError

    def literal(self, value: Any, type_: pa.DataType) -> str:
        """Return a value as SQL."""
        raise NotImplementedError

    def of(self, rows: pa.Table, key: Sequence[str] = ()) -> dict[str, str]:
        """Make a table of these rows, its key indexed where it can be; return the connector's options for it."""
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
        """Return the type that a column is held by."""
        if field.metadata == JSON or pa.types.is_nested(field.type):
            return self.nested
        name = type_name(field.type)
        return self.native.get(name, name)

    def nearest(self, value: Any) -> Any:
        """Return the value, or where the database has none such, one that it has."""
        return value

    def quote(self, name: str) -> str:
        """Return an identifier as SQL."""
        return self.mark + name.replace(self.mark, self.mark * 2) + self.mark

    def _inserts(self, name: str, rows: pa.Table) -> Iterator[str]:
        columns = [[self._value(value, field.type) for value in rows.column(n).to_pylist()]
                   for n, field in enumerate(rows.schema)]  # fmt: skip
        texts = [f"({', '.join(row)})" for row in zip(*columns, strict=True)]
        for start in range(0, len(texts), ROWS_IN_A_STATEMENT):
            yield f"INSERT INTO {name} VALUES {', '.join(texts[start : start + ROWS_IN_A_STATEMENT])}"

    def _value(self, value: Any, type_: pa.DataType) -> str:
        if value is None:
            return "NULL"
        return self.literal(json_text(_plain(value, type_)) if pa.types.is_nested(type_) else value, type_)


def _plain(value: Any, type_: pa.DataType) -> Any:
    """Return a nested value with its maps as dicts."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        return {key: _plain(item, type_.item_type) for key, item in value}
    if pa.types.is_list(type_):
        return [_plain(item, type_.value_type) for item in value]
    if pa.types.is_struct(type_):
        return {member.name: _plain(value[member.name], member.type) for member in type_}
    return value


def _text(value: Any) -> str:
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else str(value)


class PostgresTables(Tables):
    """Tables of PostgreSQL's."""

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
        text = f"\\x{value.hex()}" if isinstance(value, bytes) else _text(value)
        return "'" + text.replace("'", "''") + "'"


class MariaTables(Tables):
    """Tables of MariaDB's."""

    mark = "`"
    native: ClassVar[dict[str, str]] = {
        "int": "int", "string": "longtext", "binary": "longblob", "timestamp": "datetime(6)",
        "timestamp_ntz": "datetime(6)", "boolean": "boolean",
    }  # fmt: skip

    def __init__(self, server: MariaServer) -> None:
        super().__init__()
        self.server = server

    def options(self, table: str) -> dict[str, str]:
        return {"url": self.server.url, "table": table}

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
        # An index wants a length; TIMESTAMP is never null unless it says so.
        return {"longblob": "varbinary(700)"}.get(type_, type_) if is_key else f"{type_} NULL"

    def literal(self, value: Any, type_: pa.DataType) -> str:
        if isinstance(value, bytes):
            return f"x'{value.hex()}'"
        if isinstance(value, bool):
            return str(int(value))
        text = _text(value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value)
        return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"


class DuckTables(Tables):
    """Tables of DuckDB's, in a file."""

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
        return "'" + _text(value).replace("'", "''") + "'"


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
        return "'" + _text(value).replace("'", "''") + "'"


def sent_to(connector: Any) -> Callable[[], int]:
    """Return what counts the queries that a connector has sent since."""
    database = connector._pool._free[0]
    counted: list[str] = []
    fetched = database.fetched

    def counting(text: str, *rest: Any) -> Any:
        counted.append(text)
        return fetched(text, *rest)

    database.fetched = counting
    return lambda: len(counted)
