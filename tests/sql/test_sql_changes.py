"""MERGE, UPDATE, DELETE and INSERT with lookups as their source, against the same statements of Spark's over views.

The tables are of a catalog in Java that supports these statements; what it holds after each statement is compared.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_world import make_worlds
from pyspark.errors import AnalysisException, ArithmeticException, PySparkException
from sql_statements import NOW, PERIODS

from lookupcache import LookupCacheError

pytestmark = pytest.mark.spark

SOURCE = Path(__file__).parent.parent / "support" / "java" / "RowCatalog.java"
ROWS = "VALUES (1, 1L, 'one'), (2, 2L, 'two'), (3, CAST(NULL AS BIGINT), 'three'), (9, 9L, NULL)"

JOINED = f"o JOIN cust {NOW} AS c ON o.k = c.id"

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
    f"WITH w AS (SELECT max(c.name) AS m FROM {JOINED}) UPDATE {{}} SET name = (SELECT m FROM w) WHERE id = 1",
    f"""MERGE INTO {{}} AS t USING (FROM o |> JOIN cust {NOW} AS c ON o.k = c.id |> SELECT DISTINCT o.k, c.name) AS s
        ON t.k = s.k WHEN MATCHED THEN UPDATE SET name = s.name""",
    *(
        pytest.param(text, marks=pytest.mark.nightly)
        for text in (
            f"WITH w AS (SELECT o.id FROM {JOINED}) DELETE FROM {{}} WHERE id IN (SELECT id FROM w)",
            f"""WITH w AS (SELECT DISTINCT o.k, c.name FROM {JOINED}) MERGE INTO {{}} AS t USING w ON t.k = w.k
                WHEN MATCHED THEN UPDATE SET name = w.name""",
            "MERGE INTO {} AS t USING (TABLE cust) AS s ON t.id = s.id WHEN MATCHED THEN DELETE",
            f"""MERGE INTO {{}} AS t USING ((SELECT DISTINCT o.k, c.name FROM {JOINED})) AS s ON t.k = s.k
                WHEN MATCHED THEN UPDATE SET name = s.name""",
            "MERGE INTO {} AS t USING IDENTIFIER('cust') AS c ON t.id = c.id WHEN MATCHED THEN DELETE",
            """MERGE INTO {} AS t USING (SELECT * FROM cust) s ON t.id = s.id
                WHEN MATCHED AND s.k > 1 THEN UPDATE SET t.name = s.label WHEN MATCHED THEN DELETE
                WHEN NOT MATCHED AND s.id < 100 THEN INSERT (id, name) VALUES (s.id, s.c)""",
            f"""MERGE INTO {{}} AS cust USING (SELECT DISTINCT o.k, c.name FROM {JOINED}) AS s ON cust.k = s.k
                WHEN MATCHED THEN UPDATE SET name = s.name""",
            "MERGE INTO {} USING cust ON {}.id = cust.id WHEN MATCHED THEN UPDATE SET name = upper(cust.name)",
            """MERGE INTO {} AS t USING CUST c ON t.id = c.id WHEN NOT MATCHED BY SOURCE AND t.name = '{{x}}'
                THEN DELETE WHEN NOT MATCHED BY SOURCE THEN UPDATE SET name = '{{y}}'""",
            f"""MERGE INTO {{}} AS t USING (SELECT id, name FROM cust WHERE id IN (SELECT c.id FROM {JOINED})) AS s
                ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = concat(s.name, '{{{{x}}}}')""",
            f"""MERGE INTO {{}} AS t USING (SELECT 1 AS id UNION SELECT c.id FROM {JOINED}) AS s ON t.id = s.id
                WHEN MATCHED THEN DELETE""",
            f"""MERGE INTO {{}} t USING (SELECT c.id, c.k, c.name FROM t JOIN cust {NOW} AS c
                ON t.k = c.id AND c.id = 2) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *""",
            """MERGE /* x */ INTO {} -- AS cust
                AS t USING cust -- c
                ON t.id = cust.id WHEN MATCHED THEN DELETE""",
            "DELETE FROM {} AS cust WHERE cust.id = 1",
            f"DELETE FROM {{}} WHERE name = 'cust' OR id NOT IN (SELECT o.id FROM {JOINED} -- )\n )",
            f"DELETE FROM {{}} WHERE EXISTS (SELECT 1 FROM {JOINED} WHERE c.id = 3)",
            f"DELETE FROM {{}} WHERE NOT EXISTS (SELECT 1 FROM {JOINED} WHERE c.id = 7)",
            "DELETE FROM {} WHERE id = (SELECT k FROM cust WHERE id = 1)",
            f"DELETE FROM {{}} WHERE (id, k) IN (SELECT o.id, c.id FROM {JOINED})",
            f"DELETE FROM {{}} WHERE id IN (SELECT o.id FROM o LEFT ANTI JOIN cust {NOW} AS c ON o.k = c.id)",
            f"DELETE FROM {{}} WHERE id IN (SELECT c.id FROM {JOINED} WHERE c.id = session.var_n)",
            f"""DELETE FROM {{}} WHERE id IN (SELECT o.id FROM {JOINED})
                AND k IN (SELECT m.id FROM o JOIN many {NOW} AS m USING (id))""",
            """UPDATE {} SET name = (SELECT name FROM cust WHERE id = 2), k = (SELECT k FROM cust WHERE id = 2)
                WHERE id = 1""",
            "UPDATE {} SET k = 5 WHERE id IN (SELECT id FROM cust) OR name IN (SELECT label FROM cust)",
            f"UPDATE {{}} AS c SET c.name = 'cust' WHERE c.id IN (SELECT c.id FROM {JOINED})",
            f"UPDATE {{}} SET name = CASE WHEN k IN (SELECT c.id FROM {JOINED}) THEN 'in' ELSE 'out' END",
            f"UPDATE {{}} SET name = (SELECT string(count(*)) FROM many m LEFT JOIN cust {NOW} AS c USING (id))",
            f"UPDATE {{}} SET name = IDENTIFIER('na' || 'me') WHERE id IN (SELECT c.id FROM {JOINED})",
            f"INSERT INTO {{}} BY NAME SELECT c.name, o.id FROM {JOINED}",
            f"INSERT INTO {{}} (name, id) SELECT c.name, o.id FROM {JOINED}",
            f"EXECUTE IMMEDIATE 'DELETE FROM {{}} WHERE id IN (SELECT o.id FROM {JOINED})'",
            f"""BEGIN DECLARE n INT DEFAULT 2; DELETE FROM {{}} WHERE id IN (SELECT o.id FROM {JOINED} WHERE c.id < n);
                UPDATE {{}} SET name = (SELECT max(c.name) FROM {JOINED}) WHERE id = 9; END""",
        )
    ),
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


QUERY = f"SELECT c.id FROM {JOINED}"
REFUSED = {
    f"DELETE FROM cust WHERE id IN ({QUERY})": "is a lookup table, which does not support DELETE FROM",
    f"DELETE FROM {{}} AS t WHERE EXISTS ({QUERY} WHERE o.id = t.id)": r"no column 't.id'. .* run before the statement",
    # Session variables of the names of columns, which come first, would become other values without a word.
    f"DELETE FROM {{}} WHERE EXISTS ({QUERY} WHERE c.id = var_n)": "run before the statement",
    f"UPDATE {{}} SET text = (SELECT max(c.name) FROM {JOINED} WHERE c.name = text)": "run before the statement",
    "UPDATE {} SET text = (SELECT name FROM cust WHERE id = var_n)": "run before the statement",
    "WITH cust AS (SELECT 1 AS id) DELETE FROM {} WHERE id IN (SELECT id FROM cust)": "name of a lookup table",
    f"MERGE INTO {{}} AS t USING cust {NOW} AS c ON t.id = c.id WHEN MATCHED THEN DELETE": "reads .* completely",
}


def test_changes_that_are_refused(sessions):
    session, _ = sessions
    unsupported = f"MERGE INTO o AS t USING ({QUERY}) AS s ON t.id = s.id WHEN MATCHED THEN DELETE"
    with pytest.raises(PySparkException, match="does not support MERGE INTO TABLE"):
        session.sql(unsupported.replace(NOW, PERIODS[0]))
    session.sql("DROP TABLE IF EXISTS rows.named")
    session.sql("CREATE TABLE rows.named (id INT, var_n BIGINT, text STRING)")
    for text, error in REFUSED.items():
        with pytest.raises(LookupCacheError, match=error):
            session.sql(text.replace("{}", "rows.named").replace(NOW, PERIODS[0]))


def test_a_change_is_explained_and_not_made(sessions):
    session, _ = sessions
    fill(session, "rows.shown")
    joined = QUERY.replace(NOW, PERIODS[0])
    [[shown]] = session.sql(f"EXPLAIN DELETE FROM rows.shown WHERE id IN ({joined})").collect()
    assert shown.startswith("Lookup join: inner, table c")
    assert shown.index("== Spark SQL ==") < shown.index("== Physical Plan ==")
    assert session.sql("SELECT * FROM rows.shown").count() == 4


def test_an_error_of_a_change_is_about_the_users_text(sessions):
    session, _ = sessions
    fill(session, "rows.shown")
    source = QUERY.replace(NOW, PERIODS[0])
    with pytest.raises(LookupCacheError, match="ambiguous") as refused:
        session.sql(f"MERGE INTO rows.shown AS t USING ({source}) AS s ON id = s.id WHEN MATCHED THEN DELETE")
    assert refused.value.position.text[refused.value.position.column - 1 :].startswith("id = s.id")
    with pytest.raises(LookupCacheError, match="IN_SUBQUERY_DATA_TYPE_MISMATCH") as refused:
        session.sql(f"DELETE FROM rows.shown WHERE array(id) IN ({source})")
    assert "_pyspark_" not in str(refused.value)


FAILING = {
    "DELETE FROM {} WHERE 1 / (id - 1) > (SELECT max(q.id) FROM ({source}) AS q)": "1 / (id - 1)",
    "MERGE INTO {} AS t USING ({source}) AS s\n ON t.id = s.id AND\n   10 / (t.id - 1) > 2 WHEN MATCHED THEN DELETE":
        "10 / (t.id - 1)",
    "MERGE INTO {} AS t USING (SELECT 9 / (o.id - o.id) AS id FROM o JOIN cust {now} AS c ON o.k = c.id) AS s "
    "ON t.id = s.id WHEN MATCHED THEN DELETE": "9 / (o.id - o.id)",
    "UPDATE {} SET name = 7 / (id - (SELECT min(o.id) FROM o JOIN cust {now} AS c ON o.k = c.id))":
        "7 / (id - (SELECT min(o.id) FROM o JOIN cust {now} AS c ON o.k = c.id))",
}  # fmt: skip


@pytest.mark.parametrize(("text", "about"), FAILING.items())
def test_an_error_of_a_row_shows_the_users_text(sessions, text, about):
    session, theirs = sessions
    now = PERIODS[0]
    about = about.replace("{now}", now)
    for one, name in ((session, "rows.failing"), (theirs, "rows.failing_too")):
        fill(one, name)
    statement = text.replace("{}", "rows.failing").replace("{source}", QUERY).replace(NOW, now).replace("{now}", now)
    plain = text.replace("{}", "rows.failing_too").replace("{source}", QUERY).replace(NOW, "").replace("{now}", "")
    with pytest.raises(ArithmeticException) as expected:
        theirs.sql(plain)
    with pytest.raises(ArithmeticException) as failed:
        session.sql(statement)
    shown = str(failed.value)
    assert "_pyspark_" not in shown
    [header, line, carets] = shown[shown.index("== SQL") :].splitlines()[:3]
    start = statement.index(about)
    row = statement.count("\n", 0, start) + 1
    assert header == f"== SQL (line {row}, position {start - statement.rfind(chr(10), 0, start)}) =="
    first = carets.index("^")
    assert line[first : first + carets.count("^")].startswith(about[:10])
    assert carets.strip() == "^" * len(about)
    for method in ("getCondition", "getSqlState", "getMessageParameters"):
        assert getattr(failed.value, method)() == getattr(expected.value, method)()
