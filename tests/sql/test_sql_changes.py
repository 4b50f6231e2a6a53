"""MERGE, UPDATE, DELETE and SET VARIABLE cannot read lookups, but views of lookups; what INSERT writes is Spark's.

The tables are of a catalog in Java that supports these statements; what it holds after each statement is compared.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_world import make_worlds
from sql_statements import NOW, PERIODS

from lookupcache import StatementError

pytestmark = pytest.mark.spark

SOURCE = Path(__file__).parent.parent / "support" / "java" / "RowCatalog.java"
ROWS = "VALUES (1, 1L, 'one'), (2, 2L, 'two'), (3, CAST(NULL AS BIGINT), 'three'), (9, 9L, NULL)"

FOUND = f"(SELECT DISTINCT o.k, c.name FROM o JOIN cust {NOW} AS c ON o.k = c.id)"

# A table of the catalog stands as {}, so that each session changes its own; the query of a lookup as (…).
CHANGES = [
    """MERGE INTO {} AS t USING (…) AS s ON t.k = s.k WHEN MATCHED AND t.name = 'two' THEN DELETE
        WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id, k, name) VALUES (0, s.k, s.name)
        WHEN NOT MATCHED BY SOURCE AND t.id = 9 THEN DELETE""",
    "DELETE FROM {} WHERE k IN (SELECT k FROM (…))",
    "UPDATE {} AS t SET name = (SELECT max(s.name) FROM (…) AS s WHERE s.k = t.k) WHERE id < 3",
    "WITH w AS (SELECT max(name) AS m FROM (…)) UPDATE {} SET name = (SELECT m FROM w) WHERE id = 1",
]
INSERTS = [
    "INSERT INTO {} SELECT o.id, o.k, c.label FROM o JOIN cust NOW AS c ON o.k = c.id",
    "INSERT INTO {} BY NAME SELECT c.name, o.id FROM o JOIN cust NOW AS c ON o.k = c.id",
    "INSERT INTO {} (name, id) SELECT c.name, o.id FROM o JOIN cust NOW AS c ON o.k = c.id",
]


@pytest.fixture(scope="module")
def sessions(spark, tmp_path_factory):
    """Return a session with lookup tables and one with views, both with a catalog whose tables can be changed."""
    classes = tmp_path_factory.mktemp("classes")
    compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(SOURCE.read_text())
    for name, code in compiler.getBytecodes().items():
        file = classes / f"{name.replace('.', '/')}.class"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(code)
    spark._jvm.Thread.currentThread().getContextClassLoader().addURL(spark._jvm.java.net.URL(f"{classes.as_uri()}/"))
    session, theirs = make_worlds(spark)
    for one in (session.spark, theirs):
        one.conf.set("spark.sql.catalog.rows", "lookupcache.tests.RowCatalog")
        one.conf.set("spark.sql.adaptive.enabled", "false")
    return session, theirs


def fill(session, table):
    """Make a table of these rows."""
    session.sql(f"DROP TABLE IF EXISTS {table}")
    session.sql(f"CREATE TABLE {table} (id INT, k BIGINT, name STRING)")
    session.sql(f"INSERT INTO {table} {ROWS}")


def rows_after(session, table, text):
    """Run a statement on a table of these rows; return the rows after it."""
    fill(session, table)
    session.sql(text.replace("{}", table))
    return sorted(map(tuple, session.sql(f"SELECT * FROM {table}").collect()), key=str)


@pytest.mark.parametrize("text", CHANGES)
def test_a_change_with_a_lookup_is_refused_and_its_cure_works(sessions, text):
    session, theirs = sessions
    query = FOUND.replace(NOW, PERIODS[0])
    for prefix in ("", "EXPLAIN "):
        with pytest.raises(StatementError, match=f"{text.split()[0]}|UPDATE cannot use lookup tables") as refused:
            session.sql(prefix + text.replace("{}", "rows.ours").replace("(…)", query))
        assert refused.value.position.marked == "cust"
        assert "CREATE TEMPORARY VIEW name AS SELECT" in refused.value.hint
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW found_rows AS {query}")
    ours = rows_after(session, "rows.ours", text.replace("(…)", "found_rows"))
    assert ours == rows_after(theirs, "rows.theirs", text.replace("(…)", FOUND.replace(NOW, "")))


def test_a_variable_cannot_take_a_lookup_but_a_view_of_one(sessions):
    session, theirs = sessions
    query = FOUND.replace(NOW, PERIODS[0])
    with pytest.raises(StatementError, match="SET VARIABLE cannot use lookup tables"):
        session.sql(f"SET VAR text = (SELECT max(name) FROM {query})")
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW found_rows AS {query}")
    session.sql("SET VAR text = (SELECT max(name) FROM found_rows)")
    expected = theirs.sql(f"SELECT max(name) FROM {FOUND.replace(NOW, '')}").collect()
    try:
        assert session.sql("SELECT session.text").collect()[0][0] == expected[0][0]
    finally:
        session.sql("SET VAR text = 'a'")


def test_a_column_of_the_name_of_a_lookup_table_is_changed(sessions):
    session, _ = sessions
    session.sql("DROP TABLE IF EXISTS rows.named")
    session.sql("CREATE TABLE rows.named (id INT, cust BIGINT)")
    session.sql("INSERT INTO rows.named VALUES (1, 1)")
    session.sql("UPDATE rows.named SET id = 2, cust = cust + 1 WHERE cust IN (0, cust)")
    assert list(map(tuple, session.sql("SELECT * FROM rows.named").collect())) == [(2, 2)]


@pytest.mark.parametrize("text", INSERTS)
def test_insert_writes_the_same_rows_as_spark(sessions, text):
    session, theirs = sessions
    ours = rows_after(session, "rows.ours", text.replace("NOW", PERIODS[0]))
    assert ours == rows_after(theirs, "rows.theirs", text.replace("NOW", ""))
