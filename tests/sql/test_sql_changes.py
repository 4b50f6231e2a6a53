"""MERGE, UPDATE, DELETE and INSERT with lookups as their source, against the same statements of Spark's over views.

The tables are of a catalog in Java that supports these statements; what it holds after each statement is compared.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_world import make_worlds
from pyspark.errors import AnalysisException, PySparkException
from sql_statements import NOW, PERIODS

from lookupcache import LookupCacheError

pytestmark = pytest.mark.spark

SOURCE = Path(__file__).parent.parent / "support" / "java" / "RowCatalog.java"
ROWS = "VALUES (1, 1L, 'one'), (2, 2L, 'two'), (3, CAST(NULL AS BIGINT), 'three'), (9, 9L, NULL)"

# A table of the catalog stands as {}, so that each session changes its own.
STATEMENTS = [
    f"""MERGE INTO {{}} AS t USING (SELECT o.id, max(c.name) AS name FROM o JOIN cust {NOW} AS c ON o.k = c.id
        GROUP BY 1) AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name""",
    f"""MERGE INTO {{}} t USING (SELECT DISTINCT o.k, c.name FROM o LEFT JOIN many {NOW} AS c ON o.k = c.id AND c.k = 1
        WHERE o.k IS NOT NULL) AS s ON t.k = s.k AND s.name IS NOT NULL
        WHEN MATCHED AND t.name = 'two' THEN DELETE WHEN MATCHED THEN UPDATE SET name = s.name
        WHEN NOT MATCHED THEN INSERT (id, k, name) VALUES (100, s.k, concat('{{x}}', s.name))
        WHEN NOT MATCHED BY SOURCE AND t.id = 9 THEN DELETE""",
    """MERGE INTO {} AS t USING cust ON t.id = cust.id WHEN MATCHED THEN UPDATE SET name = cust.label
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET name = 'none'""",
    "MERGE INTO {} AS t USING cust AS c ON t.k = c.id WHEN MATCHED AND c.k > 1 THEN DELETE",
    f"""MERGE INTO {{}} AS t USING (WITH w AS (SELECT DISTINCT o.id, c.k FROM o JOIN cust {NOW} AS c ON c.id = o.id)
        SELECT * FROM w) AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET k = s.k -- the lookup's
        WHEN NOT MATCHED THEN INSERT (id, k, name) VALUES (s.id, s.k, 'new')""",
    f"DELETE FROM {{}} WHERE id IN (SELECT o.id FROM o JOIN cust {NOW} AS c ON o.k = c.id WHERE c.name = 'a')",
    f"DELETE FROM {{}} WHERE id NOT IN (SELECT o.id FROM o JOIN many {NOW} AS c ON o.k = c.id)",
    "DELETE FROM {} WHERE k > (SELECT min(k) FROM cust)",
    f"UPDATE {{}} SET name = '-- FROM cust' WHERE id IN (SELECT o.id FROM o JOIN cust {NOW} AS c ON o.k = c.id)",
    f"UPDATE {{}} SET k = k + 1, name = (SELECT max(c.name) FROM o JOIN cust {NOW} AS c ON o.k = c.id) WHERE k < 3",
    f"UPDATE {{}} AS t SET name = 'q' WHERE (SELECT count(*) FROM o LEFT JOIN many {NOW} AS c ON o.k = c.id) > t.id",
    f"INSERT INTO {{}} SELECT o.id, o.k, c.label FROM o JOIN cust {NOW} AS c ON o.k = c.id",
]
"""Statements with their source: sub-queries that look up, and lookup tables that are read completely."""


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


def run(session, table, text):
    """Run a statement on a table of these rows; return the rows after it, or the kind of Spark's error."""
    fill(session, table)
    try:
        session.sql(text.replace("{}", table).replace("{{", "{").replace("}}", "}"))
    except AnalysisException as error:
        return error.getCondition()
    return sorted(map(tuple, session.sql(f"SELECT * FROM {table}").collect()), key=str)


@pytest.mark.parametrize("text", STATEMENTS)
def test_changes_with_lookups_are_sparks(sessions, text):
    session, theirs = sessions
    expected = run(theirs, "rows.theirs", text.replace(NOW, ""))
    ours = run(session, "rows.ours", text.replace(NOW, PERIODS[0]))
    assert isinstance(expected, list), expected
    assert ours == expected


def test_changes_that_are_refused(sessions):
    session, _ = sessions
    query = f"SELECT c.id FROM o JOIN cust {PERIODS[0]} AS c ON o.k = c.id"
    with pytest.raises(PySparkException, match="does not support MERGE INTO TABLE"):
        session.sql(f"MERGE INTO o AS t USING ({query}) AS s ON t.id = s.id WHEN MATCHED THEN DELETE")
    with pytest.raises(LookupCacheError, match="is a lookup table, which does not support DELETE FROM"):
        session.sql(f"DELETE FROM cust WHERE id IN ({query})")
    fill(session, "rows.ours")
    with pytest.raises(LookupCacheError, match=r"There is no column 't.id'"):
        session.sql(f"DELETE FROM rows.ours AS t WHERE EXISTS ({query} WHERE o.id = t.id)")
