"""The sql connector through the dialect of Firebird, on the server that LOOKUPCACHE_FIREBIRD names.

As in ``firebird+firebird://sysdba:…@localhost//var/lib/firebird/3.0/data/test.fdb?charset=UTF8``, an empty database.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from databases import Tables
from sqlalchemy import create_engine

from lookupcache.testing import ConnectorSuite


class FirebirdTables(Tables):
    """Tables in Firebird; values are sent as parameters, since an INSERT has one row there."""

    scheme = "firebird+firebird"
    nested = "varchar(8000)"
    numbers: ClassVar[Any] = itertools.count()
    native: ClassVar[dict[str, str]] = {
        "tinyint": "smallint", "int": "integer", "double": "double precision", "string": "varchar(8000)",
        "binary": "blob", "timestamp_ntz": "timestamp",
    }  # fmt: skip

    def __init__(self, url):
        super().__init__()
        self.url = url

    def options(self, table):
        return {"url": self.url, "table": table}

    def of(self, rows, key=()):
        name = f"t{next(self.numbers)}"
        columns = ", ".join(f"{self.quote(field.name)} {self.type_of(field, False)}" for field in rows.schema)
        self.run(f"RECREATE TABLE {name} ({columns})")
        if rows.num_rows:
            marks = ", ".join("?" * rows.num_columns)
            self.run(f"INSERT INTO {name} VALUES ({marks})", list(zip(*self._sent(rows), strict=True)))
        return self.options(name)

    def _sent(self, rows):
        for field, column in zip(rows.schema, rows.columns, strict=True):
            is_nested = pa.types.is_nested(field.type)
            yield [self._value(one, field.type) if is_nested and one is not None else one for one in column.to_pylist()]

    def literal(self, value, type_):
        return value

    def run(self, statement, *rows):
        engine = create_engine(self.url)
        with engine.connect() as connection:
            connection.exec_driver_sql(statement, *rows)
            connection.commit()
        engine.dispose()


# The driver forgets a statement twice, in a callback of the garbage collection.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestFirebird(ConnectorSuite):
    tables = FirebirdTables
    connector = "sql"
    unsupported: ClassVar = {
        "timestamp": "Firebird 3 has no zones",
        "timestamp_ntz": "it has ten-thousandths of a second",
        "decimal(38,18)": "Firebird 3 has 18 digits",
        "decimal(38,0)": "Firebird 3 has 18 digits",
        "long string": "a VARCHAR has 8,191 characters",
    }
    can_scan = True
    test_filters = None  # The kit's names have more letters than Firebird 3 allows; nothing is pushed.

    @pytest.fixture
    def load(self):
        return self.tables(os.environ["LOOKUPCACHE_FIREBIRD"]).of
