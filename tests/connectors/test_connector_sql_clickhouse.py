"""The sql connector through the dialect of ClickHouse, whose engine chdb runs in this process."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
from databases import Tables
from sqlalchemy import create_engine

from lookupcache.testing import ConnectorSuite


class ClickHouseTables(Tables):
    """Tables in ClickHouse."""

    scheme = "clickhousedb+connect"
    nested = "String"
    mark = "`"
    numbers: ClassVar[Any] = itertools.count()
    native: ClassVar[dict[str, str]] = {
        "tinyint": "Int8", "smallint": "Int16", "int": "Int32", "bigint": "Int64", "float": "Float32",
        "double": "Float64", "string": "String", "boolean": "Bool", "date": "Date32",
        "timestamp": "DateTime64(6, 'UTC')", "timestamp_ntz": "DateTime64(6)",
    }  # fmt: skip

    def __init__(self, path):
        super().__init__()
        self.url = f"{self.scheme}://localhost/default?interface=chdb&path={path}"

    def options(self, table):
        return {"url": self.url, "table": table}

    def type_of(self, field, is_key):
        return f"Nullable({super().type_of(field, is_key)})"

    def of(self, rows, key=()):
        name = f"t{next(self.numbers)}"
        columns = ", ".join(f"{self.quote(field.name)} {self.type_of(field, False)}" for field in rows.schema)
        self.run(f"CREATE TABLE {name} ({columns}) ENGINE = MergeTree ORDER BY tuple()", *self._inserts(name, rows))
        return self.options(name)

    def run(self, *statements):
        engine = create_engine(self.url)
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        engine.dispose()

    def literal(self, value, type_):
        text = value.isoformat(sep=" ").partition("+")[0] if hasattr(value, "hour") else str(value)
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


class TestClickHouse(ConnectorSuite):
    tables = ClickHouseTables
    connector = "sql"
    unsupported = {  # noqa: RUF012
        "binary": "the driver reads texts",
        "timestamp": "the driver's values have no zone",
        "year 1": "its dates begin in 1900",
    }
    can_scan = True

    @pytest.fixture
    def load(self, tmp_path_factory):
        return self.tables(tmp_path_factory.getbasetemp() / "clickhouse").of
