"""The suite of all connectors on the databases of the sql connector, by whatever driver ``tables`` are created for."""

from __future__ import annotations

from typing import ClassVar

import pytest
from databases import DuckTables, MariaTables, PostgresTables

from lookupcache.testing import ConnectorSuite


class SqlSuite(ConnectorSuite):
    connector = "sql"
    pushes_filters = True
    can_scan = True


class PostgresSuite(SqlSuite):
    tables: ClassVar[type[PostgresTables]] = PostgresTables
    unsupported: ClassVar = {"nul": "its texts end there"}

    @pytest.fixture
    def load(self, postgres_server):
        return self.tables(postgres_server).of

    @pytest.fixture
    def restart(self, postgres_server):
        return postgres_server.kill, postgres_server.start


class MariaSuite(SqlSuite):
    tables: ClassVar[type[MariaTables]] = MariaTables
    unsupported: ClassVar = {"nan": "it has none", "infinity": "it has none", "negative zero": "it stores 0"}

    @pytest.fixture
    def load(self, maria_server):
        return self.tables(maria_server).of

    @pytest.fixture
    def restart(self, maria_server):
        return maria_server.kill, maria_server.start


class DuckSuite(SqlSuite):
    tables: ClassVar[type[DuckTables]] = DuckTables

    @pytest.fixture
    def load(self, tmp_path):
        return self.tables(tmp_path / "t.duckdb").of
