"""The sql connector on real servers, checked by the suite that every connector has."""

from __future__ import annotations

import pytest
from databases import DuckTables, MariaTables, PostgresTables
from servers import MariaServer, PostgresServer

from lookupcache.testing import ConnectorSuite

pytestmark = pytest.mark.filterwarnings("ignore::lookupcache_sql_database.MissingIndex")


@pytest.fixture(scope="module")
def postgres():
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture(scope="module")
def maria():
    server = MariaServer()
    try:
        yield server.start()
    finally:
        server.remove()


class TestPostgres(ConnectorSuite):
    connector = "sql"
    unsupported = {"nul": "its texts end there"}  # noqa: RUF012
    pushes_filters = True
    can_scan = True

    @pytest.fixture
    def load(self, postgres):
        return PostgresTables(postgres).of

    @pytest.fixture
    def restart(self, postgres):
        return postgres.kill, postgres.start


class TestMaria(ConnectorSuite):
    connector = "sql"
    unsupported = {"nan": "it has none", "infinity": "it has none", "negative zero": "it stores 0"}  # noqa: RUF012
    pushes_filters = True
    can_scan = True

    @pytest.fixture
    def load(self, maria):
        return MariaTables(maria).of

    @pytest.fixture
    def restart(self, maria):
        return maria.kill, maria.start


class TestDuckDb(ConnectorSuite):
    connector = "sql"
    pushes_filters = True
    can_scan = True

    @pytest.fixture
    def load(self, tmp_path):
        return DuckTables(tmp_path / "t.duckdb").of
