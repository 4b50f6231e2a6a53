"""The sql connector on real servers, checked by the suite that every connector has."""

from __future__ import annotations

import dataclasses

import pytest
from databases import DuckTables, MariaTables, PostgresTables, PsycopgTables, PyMysqlTables
from sql_suites import DuckSuite, MariaSuite, PostgresSuite

from lookupcache import LookupTable


class TestPostgres(PostgresSuite):
    pass


class TestMaria(MariaSuite):
    pass


class TestDuckDb(DuckSuite):
    pass


# ── the whole way ────────────────────────────────────────────────────────────────────────────────────────────


class DuckFiles(DuckTables):
    """A file for each table: nobody can write to one that a worker has open."""

    def of(self, rows, key=()):
        return DuckTables(self.path.with_stem(f"t{next(self._numbers)}")).of(rows, key)


@pytest.fixture
def tables(request, tmp_path):
    """Return the tables of the database that the test names."""
    if request.param is DuckFiles:
        return DuckFiles(tmp_path / "t.duckdb")
    return request.param(
        request.getfixturevalue("postgres_server" if issubclass(request.param, PostgresTables) else "maria_server")
    )


@pytest.mark.spark
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize(
    ("tables", "first"),
    [
        pytest.param(kind, first + 5 * part, marks=marks)
        for kind, first, marks in (
            (PostgresTables, 9_000, ()),
            (DuckFiles, 9_200, ()),
            (MariaTables, 9_100, ()),
            (PsycopgTables, 9_300, pytest.mark.extended),
            (PyMysqlTables, 9_400, pytest.mark.extended),
        )
        for part in range(3)
    ],
    indirect=["tables"],
)
def test_every_join_is_sparks_own(spark, tables, first, tmp_path):
    from test_properties import Judge, case_of

    class DatabaseJudge(Judge):
        def lookup_table(self, case):
            return LookupTable(
                "t", case.right.ddl, {"connector": "sql", **tables.of(case.right.table()), **case.table_options}
            )

    drawn = [stored_by(tables, case_of(number)) for number in range(first, first + 5)]
    DatabaseJudge(spark, tmp_path, every_form=False).check(drawn)


def stored_by(tables, case):
    """Return the case over rows that the database can hold."""
    rows = tuple(tuple(tables.nearest(value) for value in row) for row in case.right.rows)
    return dataclasses.replace(case, right=dataclasses.replace(case.right, rows=rows))
