"""The sql connector on SQLite, checked by the suite that every connector has."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lookupcache.testing import ConnectorSuite


class TestSqlite(ConnectorSuite):
    connector = "sql"
    unsupported = {  # noqa: RUF012
        "array": "SQLite has no nested types",
        "struct": "SQLite has no nested types",
        "map": "SQLite has no nested types",
        "nan": "SQLite has no NaN",
        "negative zero": "SQLite stores 0",
    }
    pushes_filters = True
    can_scan = True

    @pytest.fixture
    def load(self, tmp_path):
        numbers = iter(range(1_000))

        def load(rows, key):
            path = tmp_path / f"{next(numbers)}.db"
            columns = ", ".join(map(quoted, rows.column_names))
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute(f"CREATE TABLE t ({columns})")
                connection.execute(f"CREATE INDEX i ON t ({', '.join(map(quoted, key))})")
                marks = ", ".join("?" * rows.num_columns)
                stored = zip(*map(stored_values, rows.columns), strict=True)
                connection.executemany(f"INSERT INTO t VALUES ({marks})", stored)
            return {"url": f"sqlite:///{path}", "table": "t"}

        return load


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def stored_values(column):
    """Return a column's values as SQLite's users store them."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us")).cast(pa.string()).to_pylist()
    if pa.types.is_decimal(column.type) or pa.types.is_date(column.type):
        return column.cast(pa.string()).to_pylist() if pa.types.is_date(column.type) else texts(column)
    if pa.types.is_boolean(column.type):
        return pc.cast(column, pa.int8()).to_pylist()
    return column.to_pylist()


def texts(column):
    return [None if value is None else format(value, "f") for value in column.to_pylist()]
