"""Statements other than queries, what is refused and where, hints, and streams."""

from __future__ import annotations

import logging
import random
import traceback

import pyarrow as pa
import pytest
from needs import needs_spark
from pyspark.errors import AnalysisException, PySparkException
from sources import options_of
from sql_world import VIEWS, make_world, rows_of, sparks_own

from lookupcache import (
    ConnectorError,
    LookupCacheError,
    LookupSession,
    LookupTable,
    OptionError,
    PlanError,
    SchemaError,
    StatementError,
)
from lookupcache.planner.clauses import tokens

pytestmark = pytest.mark.spark

JOIN = "JOIN customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id"


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    yield make_world(spark, tmp_path_factory.mktemp("shop"))
    for view in VIEWS:
        spark.catalog.dropTempView(view)


# ── refused, with the position ──────────────────────────────────────────────────────────────────────────────

OF = "JOIN customers FOR SYSTEM_TIME AS OF {} AS c ON o.customer_id = c.id"
ON = "JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON {}"
REFUSED = {
    "a column of no table": ("c.nme", JOIN, SchemaError, "nme", "Did you mean 'name'?"),
    "a column of no table, in ON": ("1", ON.format("o.custmer_id = c.id"), SchemaError, "custmer_id", "customer_id"),
    "a column of no relation": ("1", ON.format("x.customer_id = c.id"), SchemaError, "x.customer_id", "o.customer_id"),
    "an ambiguous column": ("id", f"JOIN tags AS t ON t.id = o.order_id {JOIN}", SchemaError, "id", "t.id or c.id"),
    "a right join": ("1", f"RIGHT {JOIN}", PlanError, f"RIGHT {JOIN}", "LEFT JOIN"),
    "a full join": ("1", f"FULL {JOIN}", PlanError, f"FULL {JOIN}", "LEFT JOIN"),
    "no equality": ("1", ON.format("o.customer_id > c.id"), PlanError, "o.customer_id > c.id", "Add an equality"),
    "nothing to join by": ("1", "CROSS " + ON.split(" ON ")[0], PlanError, "CROSS " + ON.split(" ON ")[0], "equality"),
    "an as-of column": ("1", OF.format("o.order_time"), PlanError, "o.order_time", "PROCTIME()"),
    "an as-of time": ("1", OF.format("TIMESTAMP '2020-01-01'"), PlanError,
                      "FOR SYSTEM_TIME AS OF TIMESTAMP '2020-01-01'", "PROCTIME()"),
    "a period of no relation": ("1", OF.format("x.proc_time"), SchemaError, "x", "'o'"),
    "types that do not compare": ("1", ON.format("o.customer_id = c.id AND o.order_id = c.name"), PlanError,
                                  "o.order_id = c.name", "CAST"),
    "an unknown table": ("1", JOIN.replace("customers", "custommers"), StatementError, "custommers", "customers"),
    "a hint for no table": ("/*+ LOOKUP('table'='x', 'async'='true') */ 1", JOIN, OptionError, "'table'='x'", "'c'"),
    "a hint's unknown key": ("/*+ LOOKUP('table'='c', 'asinc'='true') */ 1", JOIN, OptionError,
                    "'asinc'='true'", "async"),
    "a hint's bad value": ("/*+ LOOKUP('table'='c', 'capacity'='many') */ 1", JOIN, OptionError,
                           "'capacity'='many'", "a whole number"),
    "a retry in parts": ("/*+ LOOKUP('table'='c', 'max-attempts'='3') */ 1", JOIN, OptionError,
                         "LOOKUP('table'='c', 'max-attempts'='3')", "retry-predicate"),
    "a retry on an unknown predicate": ("/*+ LOOKUP('table'='c', 'retry-predicate'='error') */ 1", JOIN, OptionError,
                                "'retry-predicate'='error'", "lookup_miss"),
    "a table's unknown option": ("1", JOIN.replace("customers", "customers /*+ OPTIONS('lookup.cash'='LRU') */"),
                                 OptionError, "'lookup.cash'='LRU'", "lookup.cache"),
    "a sample of a lookup table": ("1", ON.format("TRUE").replace(" AS c", " TABLESAMPLE (10 ROWS) AS c"), PlanError,
                                   "customers FOR SYSTEM_TIME AS OF PROCTIME() TABLESAMPLE (10 ROWS) AS c", "alias"),
    "names for a lookup table's columns": ("1", ON.format("a = 1").replace(" AS c", " AS c(a, b)"), PlanError,
                                           "customers FOR SYSTEM_TIME AS OF PROCTIME() AS c(a, b)", "SELECT"),
    "what Spark refuses": ("nothing(c.id)", JOIN, StatementError, "nothing(c.id)", None),
    "what cannot be read": ("c.id +", JOIN, StatementError, "AS", "backticks"),
    "a scalar with a window": ("(SELECT max(name) OVER () FROM customers WHERE id = o.order_id)", "", PlanError,
                               "max(name) OVER ()", "LEFT JOIN"),
    "an aggregate": ("(SELECT max(name) FROM customers WHERE id = o.order_id)", "", PlanError, "max(name)", "GROUP BY"),
    "joins in parentheses": ("1", f"JOIN (tags AS t {JOIN.replace('o.customer_id', 't.id')}) ON t.id = o.order_id",
                             PlanError, "customers FOR SYSTEM_TIME AS OF o.proc_time AS c", "sub-query"),
    "a lookup in EXISTS": ("1", "WHERE EXISTS (SELECT 1 FROM customers FOR SYSTEM_TIME AS OF PROCTIME() AS c)",
                           PlanError, "customers FOR SYSTEM_TIME AS OF PROCTIME() AS c", "LEFT SEMI JOIN"),
    "a sub-query in ON": ("1", f"LEFT {JOIN} AND o.total > (SELECT 1)", PlanError, "o.total > (SELECT 1)", "before"),
    "a scalar without a key": ("(SELECT name FROM customers WHERE id > o.order_id)", "", PlanError,
                               "id > o.order_id", "equality"),
    "a table that cannot be scanned": ("1", "JOIN answers AS a ON a.id = o.order_id", ConnectorError,
                    "answers AS a", "key"),
}  # fmt: skip


@pytest.mark.parametrize(("item", "join", "kind", "marked", "hint"), REFUSED.values(), ids=REFUSED)
def test_an_error_names_its_position(session, item, join, kind, marked, hint):
    session.register_table(LookupTable.from_function("answers", "id BIGINT, a INT", key=["id"], function=print))
    with pytest.raises(LookupCacheError) as raised:
        session.sql(f"SELECT\n  {item}\nFROM orders AS o\n{join}")
    assert (type(raised.value), raised.value.position.marked) == (kind, marked)
    assert hint is None or hint in raised.value.hint
    assert f"Line {raised.value.position.line}, column {raised.value.position.column}:" in str(raised.value)


def test_a_second_row_of_a_scalar_sub_query_is_an_error(session):
    for price in ("price", "price + 0 * length(string(price))"):
        more = " AND length(string(price)) >= o.total - 100" if price != "price" else ""
        sql = f"SELECT (SELECT {price} FROM prices WHERE item = o.order_id{more}) FROM orders AS o"
        with pytest.raises(Exception, match="found more than one row"):
            session.sql(sql).collect()
        assert len(session.sql(" LIMIT 1) FROM orders".join(sql.rsplit(") FROM orders", 1))).collect()) == 7


def test_a_lookup_that_fails_has_its_columns_in_the_query(session):
    session.sql("CREATE TEMPORARY TABLE broken (id BIGINT, name STRING) WITH ('connector' = 'sources:Guarded', "
                "'phrase' = 'x', 'url' = 'x', 'lookup.on-error' = 'null', 'lookup.error-column' = 'trouble', "
                "'lookup.max-retries' = '0')")  # fmt: skip
    sql = """SELECT o.order_id, b.trouble.code FROM orders AS o
             LEFT JOIN broken FOR SYSTEM_TIME AS OF PROCTIME() AS b ON o.order_id = b.id
             WHERE b.trouble IS NOT NULL AND o.order_id = 10"""
    assert rows_of(session.sql(sql)) == {(10, "LOOKUP_FAILED"): 1}


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────

FLINK = """
CREATE TABLE IF NOT EXISTS moved (
  id INT PRIMARY KEY NOT ENFORCED,
  `at` TIMESTAMP(3), `on` TIMESTAMP WITHOUT TIME ZONE NULL,
  ltz TIMESTAMP_LTZ(3), bytes BYTES, price DECIMAL(10, 2), who ROW<a INT, b STRING>,
  proc_time AS PROCTIME(),
  WATERMARK FOR `at` AS `at` - INTERVAL '5' SECOND
) WITH (
  'connector' = 'sources:Memory', 'rows' = '',
  'lookup.cache' = 'PARTIAL', 'lookup.partial-cache.max-rows' = '500',
  'lookup.partial-cache.expire-after-write' = '1 h'
)
"""


def test_describe_shows_types_as_spark_does(session, spark):
    columns = "id BIGINT, s STRUCT<a: STRING, `b c`: ARRAY<DECIMAL(4,2)>>, m MAP<STRING, TIMESTAMP_NTZ>, d DATE"
    url = "'connector' = 'http', 'url' = 'http://127.0.0.1:1/{id}'"
    session.sql(f"CREATE OR REPLACE TABLE described ({columns}, x AS struct(s.a, d)) WITH ({url})")
    spark.createDataFrame([], columns).selectExpr("*", "struct(s.a, d) AS x").createOrReplaceTempView(
        "described_by_spark"
    )
    found = [session.sql(f"DESCRIBE {name}").collect() for name in ("described", "described_by_spark")]
    assert [[row[:2] for row in rows] for rows in found] == [[row[:2] for row in found[1]]] * 2


def test_a_flink_tables_definition_moves_over_unchanged(session):
    session.sql(FLINK)
    session.sql(FLINK)
    described = {row.col_name: row.data_type for row in session.sql("DESCRIBE EXTENDED moved").collect()}
    assert described["at"] == described["on"] == "timestamp_ntz"
    assert described["who"] == "struct<a:int,b:string>"
    assert described["Primary key"] == "id"
    assert session._context.catalog.tables["moved"].table.config.max_rows == 500


def test_a_table_may_be_like_another(session):
    session.sql("CREATE TEMPORARY TABLE copy WITH ('lookup.cache' = 'NONE') LIKE customers")
    rows = rows_of(session.sql("SELECT o.order_id, c.label FROM orders AS o " + JOIN.replace("customers", "copy")))
    assert rows[10, "ANN"] == 1
    session.sql("CREATE OR REPLACE TABLE copy (x INT) WITH ('connector' = 'sources:Memory', 'rows' = '') "
                "LIKE customers (EXCLUDING OPTIONS EXCLUDING GENERATED)")  # fmt: skip
    assert session.sql("DESCRIBE copy").collect()[-1].col_name == "x"


def test_tables_are_listed_shown_and_dropped(session):
    session.sql(
        "CREATE TABLE gone (id BIGINT, name STRING) WITH ('connector' = 'redis', 'url' = 'redis://u:secret@h', "
        "'key' = 'c:{id}')"
    )
    assert {"gone", "customers"} <= {row.tableName for row in session.sql("SHOW TABLES").collect()}
    assert "customers" not in {row.tableName for row in session.sql("SHOW TABLES LIKE 'g*'").collect()}
    [[text]] = session.sql("SHOW CREATE TABLE gone").collect()
    assert "'connector' = 'redis'" in text
    assert "secret" not in text
    session.sql("DROP TEMPORARY TABLE IF EXISTS gone;")
    with pytest.raises(StatementError, match="no lookup table 'gone'"):
        session.sql("SELECT 1 FROM orders AS o JOIN gone FOR SYSTEM_TIME AS OF PROCTIME() AS g ON o.order_id = g.id")


BAD_TABLES = {
    "an unknown connector": ("(id INT) WITH ('connector' = 'sqll')", ConnectorError, "'sqll'"),
    "an unknown option": ("(id INT) WITH ('connector' = 'sql', 'url' = 'sqlite:///x', 'tabel' = 'c')", OptionError,
                    "'tabel'"),
    "a bad value": ("(id INT) WITH ('connector' = 'sources:Memory', 'lookup.cache' = 'LUR')", OptionError, "'LUR'"),
    "an unknown type": ("(id INTT) WITH ('connector' = 'sources:Memory')", SchemaError, "id INTT"),
    "an enforced key": ("(id INT, PRIMARY KEY (id)) WITH ('connector' = 'sources:Memory')", StatementError,
                    "PRIMARY KEY (id)"),
    "a key of no column": ("(id INT, PRIMARY KEY (x) NOT ENFORCED) WITH ('connector' = 'sources:Memory')", SchemaError,
                    "bad"),
    "a computed column of none": ("(id INT, b AS x + 1) WITH ('connector' = 'sources:Memory')", SchemaError, "bad"),
    "like no table": ("WITH ('connector' = 'sources:Memory') LIKE nothing", StatementError, "nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("rest", "kind", "marked"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_definition_that_is_wrong_is_refused_with_its_position(session, rest, kind, marked):
    with pytest.raises(kind) as raised:
        session.sql(f"CREATE TABLE bad {rest}")
    assert raised.value.position.marked == marked


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────

SECRET = "Zq7vK9sesame0123"
HTTP = "'connector' = 'http', 'url' = 'http://h/{{id}}', {0}, 'lookup.cache' = 'LRU'"
COLUMNS = "(id BIGINT, v STRING COMMENT 'its', PRIMARY KEY (id) NOT ENFORCED)"
DEFINITIONS = {
    "in one line": f"CREATE OR REPLACE TABLE s {COLUMNS} WITH ({HTTP})",
    "in lines": f"CREATE OR REPLACE TEMPORARY TABLE s\n{COLUMNS}\nWITH (\n{HTTP},\n'lookup.max-retries'='0')",
    "like another": "CREATE OR REPLACE TABLE s WITH ({0}) LIKE prices",
    "for Spark": "CREATE TABLE s (id BIGINT) USING nothing OPTIONS ({0})",
    "changed": "ALTER TABLE customers SET ({0})",
    "a function": "CREATE OR REPLACE FUNCTION s AS 'math:sqrt' WITH ({0})",
    "a hint": "SELECT c.name FROM orders AS o JOIN customers /*+ OPTIONS({0}) */ FOR SYSTEM_TIME AS OF PROCTIME() AS c "
              "ON o.customer_id = c.id",
    "explained": f"EXPLAIN CREATE TABLE s {COLUMNS} WITH ({HTTP})",
}  # fmt: skip
OPTIONS = {
    "token": "'token' = '{0}'",
    "by a word of no fame": "'header.X-Key' = '{0}'",
    "unknown": "'pasword'='{0}'",
    "double quotes": '"token" = "{0}"',
    "beside others": "'user' = 'bob', 'password' = '{0}'",
    "in a URL": "'proxy' = 'http://bob:{0}@h'",
    "in two lines": "'token' =\n'a\n{0}'",
    "in a comment": "'user' = 'bob' -- 'token' = '{0}'\n",
    "in another comment": "'user' = 'bob' /* {0} = 'token' */",
}
PRODUCT = [(shape, option) for shape in DEFINITIONS for option in OPTIONS]


def said(session, sql, caplog):
    """Run a statement; return all that is to be read of its result or its error."""
    caplog.clear()
    try:
        return str(session.sql(sql).collect()) + caplog.text
    except Exception as error:
        return "".join([*traceback.format_exception(error), repr(error), str(error), caplog.text])


def broken(sql, draw):
    """Yield a statement with one or two letters left out, doubled or replaced, the secret spared."""
    offsets = [n for n in range(len(sql)) if not sql.find(SECRET) <= n < sql.find(SECRET) + len(SECRET)]
    marks = [n for n in offsets if not sql[n].isalnum()]
    yield from (sql[:n] + sql[n + 1 :] for n in draw.sample(marks, min(8, len(marks))))
    for _ in range(6):
        edited = sql
        for n in sorted(draw.sample(offsets, draw.choice([1, 2])), reverse=True):
            edited = edited[:n] + draw.choice(["", edited[n] * 2, "'", '"', "`", "(", ")", "/*", "="]) + edited[n + 1 :]
        yield edited


@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize(("shape", "option"), PRODUCT)
def test_no_secret_of_a_statement_is_ever_shown(session, caplog, shape, option):
    sql = DEFINITIONS[shape].format(OPTIONS[option].format(SECRET))
    wrong = [sql, *broken(sql, random.Random(f"{shape} {option}"))]
    assert [text for text in wrong if SECRET in said(session, text, caplog)] == []


def test_statements_about_a_table_show_no_secrets(session, caplog):
    session.sql(DEFINITIONS["in lines"].format(OPTIONS["token"].format(SECRET)))
    for sql in ("SHOW CREATE TABLE s", "DESCRIBE EXTENDED s", "SHOW TABLES", "CREATE TABLE s2 LIKE s (EXCLUDING ALL)",
                "EXPLAIN SELECT * FROM orders AS o JOIN s FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.order_id = c.id",
                "SELECT * FORM orders AS o JOIN s", "SELECT * FROM s"):  # fmt: skip
        assert SECRET not in said(session, sql, caplog)
    session.sql("DROP TABLE s")


PLACES = {
    "a value": ("WITH ('token' = 'hunter2', 'connector' = 'sqll')", 1, 68, "'sqll'"),
    "a key of the next line": ("WITH ('connector' = 'http', 'url' = 'http://h',\n 'token' = 'hunter2', 'tokn' = 'x')",
                               2, 23, "'tokn'"),
    "no sign between": ("WITH ('connector' = 'http', 'token' 'hunter2')", 1, 55, "'***' '***'"),
    "an open quote": ("WITH ('token' = 'hunter2', 'connector' = 'http)", 1, 54, "***"),
    "an open quote elsewhere": ("COMMENT 'x WITH ('token' = 'hunter2', 'connector' = 'http')", 1, 84, "***"),
    "no WITH": ("('connector' = 'http', 'token' = 'hunter2')", 1, 29, "connector"),
    "an open bracket": ("(id INT, v INT WITH ('connector' = 'http', 'token' = 'hunter2')", 1, 40, "connector"),
}  # fmt: skip


@pytest.mark.parametrize(("rest", "line", "column", "marked"), PLACES.values(), ids=PLACES)
def test_the_position_is_right_where_a_secret_stands_before_it(session, rest, line, column, marked):
    with pytest.raises(LookupCacheError) as raised:
        session.sql(f"CREATE TABLE bad (id INT) {rest}".replace("(id INT) (id", "(id"))
    position = raised.value.position
    assert (position.line, position.column, position.marked) == (line, column, marked)
    shown, carets = str(position).splitlines()[1:]
    assert shown[carets.index("^") : carets.rindex("^") + 1] == marked
    assert "hunter2" not in str(raised.value)


def test_statements_without_lookups_go_to_spark_as_they_are(session):
    assert session.sql("SELECT 1 AS one").collect()[0].one == 1
    assert session.sql("SET spark.sql.ansi.enabled").collect()[0].key == "spark.sql.ansi.enabled"
    assert "plan" in session.sql("EXPLAIN ESTIMATED_COST SELECT 1").columns


def test_a_time_column_may_have_another_name(session):
    other = LookupSession(session.spark, time_columns=["seen_at"])
    other.register_table(session._context.catalog.tables["prices"].table)
    sql = "SELECT price FROM orders AS o JOIN prices FOR SYSTEM_TIME AS OF o.{} AS p ON p.item = o.order_id"
    assert len(other.plans(sql.format("seen_at"))) == 1
    with pytest.raises(PlanError, match="requests the rows of that time"):
        other.plans(sql.format("proc_time"))


# ── explain, insert, views, streams ──────────────────────────────────────────────────────────────────────


def test_explain_shows_the_lookup_plan_above_sparks(session):
    [[text]] = session.sql(f"""
        EXPLAIN ESTIMATED_COST SELECT o.total, c.name FROM orders AS o {JOIN} AND c.country = 'AT' AND o.total > 1
        WHERE c.salary > 1000 AND upper(c.name) = 'X'""").collect()
    lookup, _, spark = text.partition("== Spark SQL ==")
    for line in ("constant key    country = 'AT'", "pushed filter", "cached columns", "strategy", "retries"):
        assert line.split("    ")[0] in lookup
    assert "{lookup_1}" in spark
    assert "sizeInBytes" in spark
    assert "MapInArrow" in spark


def test_insert_writes_to_tables_and_files(session, tmp_path):
    session.sql(f"CREATE TABLE named (order_id BIGINT, name STRING) USING parquet LOCATION '{tmp_path / 'named'}'")
    try:
        session.sql(f"INSERT INTO named SELECT o.order_id, c.name FROM orders AS o {JOIN} WHERE c.country = 'AT'")
        session.sql(f"INSERT OVERWRITE DIRECTORY '{tmp_path / 'files'}' USING parquet "
                    f"SELECT o.order_id, c.name FROM orders AS o LEFT ANTI {JOIN}".replace(", c.name", ""))  # fmt: skip
        assert rows_of(session.sql("SELECT order_id FROM named")) == {(10,): 1, (12,): 1, (14,): 1}
        assert rows_of(session.spark.read.parquet(str(tmp_path / "files"))) == {(13,): 1, (15,): 1}
        with pytest.raises(StatementError, match="read-only") as raised:
            session.sql("INSERT INTO customers SELECT * FROM orders")
        assert raised.value.position.marked == "customers"
    finally:
        session.sql("DROP TABLE named")


def test_a_statement_set_runs_all_or_is_refused_before_the_first(session, tmp_path):
    session.sql(f"CREATE TABLE a (name STRING) USING parquet LOCATION '{tmp_path / 'a'}'")
    session.sql(f"CREATE TABLE b (name STRING) USING parquet LOCATION '{tmp_path / 'b'}'")
    inserts = [f"INSERT INTO {sink} SELECT c.name FROM orders AS o {JOIN} AND o.order_id = {key}"
               for sink, key in (("a", 10), ("b", 11))]  # fmt: skip
    try:
        with pytest.raises(SchemaError) as raised:
            session.sql(f"EXECUTE STATEMENT SET BEGIN {inserts[0]};\n{inserts[1].replace('c.name', 'c.nme')}; END")
        assert (raised.value.position.line, raised.value.position.marked) == (2, "nme")
        assert session.sql("SELECT * FROM a").count() == 0
        session.sql(f"EXECUTE STATEMENT SET BEGIN\n{inserts[0]};\n{inserts[1]};\nEND;")
        assert rows_of(session.sql("SELECT * FROM a UNION ALL SELECT * FROM b")) == {("ann",): 1, ("bob",): 1}
    finally:
        session.sql("DROP TABLE a")
        session.sql("DROP TABLE b")


def test_a_view_may_hold_a_lookup(session):
    session.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW places (id, place) AS SELECT o.order_id, c.country FROM orders AS o {JOIN}"
    )
    sql = """SELECT v.place, r.region FROM places AS v
             JOIN countries FOR SYSTEM_TIME AS OF v.proc_time AS r ON r.code = v.place"""
    assert rows_of(session.sql(sql)) == {("AT", "Alps"): 3, ("BE", "Coast"): 1}
    session.spark.catalog.dropTempView("places")
    with pytest.raises(StatementError, match="can only be temporary"):
        session.sql(f"CREATE VIEW places AS SELECT c.country FROM orders AS o {JOIN}")


def test_a_stream_is_joined_and_inserted(session, spark, tmp_path):
    spark.table("orders").write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(spark.table("orders").schema).parquet(str(tmp_path / "in"))
    stream.createOrReplaceTempView("arrivals")
    joined = session.sql("""
        SELECT s.order_id, c.name FROM arrivals AS s
        JOIN customers FOR SYSTEM_TIME AS OF s.proc_time AS c ON s.customer_id = c.id AND s.total > 1""")
    assert joined.isStreaming
    writer = joined.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    spark.catalog.dropTempView("arrivals")
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == {(10, "ann"): 1, (11, "bob"): 1, (14, "cem"): 1}


# ── statements about tables ──────────────────────────────────────────────────────────────────────────────────

ABOUT_A_TABLE = [
    "TRUNCATE TABLE {}", "ALTER TABLE {} ADD COLUMN x INT", "ALTER VIEW {} RENAME TO y", "REFRESH TABLE {}",
    "ANALYZE TABLE {} COMPUTE STATISTICS", "CACHE TABLE {}", "CACHE LAZY TABLE {}", "UNCACHE TABLE IF EXISTS {}",
    "DROP VIEW IF EXISTS {}", "DELETE FROM {} WHERE id = 1", "UPDATE {} SET id = 1", "MSCK REPAIR TABLE {}",
    "MERGE INTO {} USING orders ON 1 = 1 WHEN MATCHED THEN DELETE", "COMMENT ON TABLE {} IS 'x'",
    "SHOW TBLPROPERTIES {}", "SHOW PARTITIONS {}", "INSERT INTO {} SELECT 1", "INSERT OVERWRITE TABLE {} SELECT 1",
    "ALTER TABLE {} RENAME TO y", "ALTER TABLE {} DROP PARTITION (a = 1)", "ALTER TABLE {} RECOVER PARTITIONS",
    "ALTER TABLE {} SET TBLPROPERTIES ('a' = 'b')", "ALTER VIEW {} AS SELECT 1", "REPAIR TABLE {}", "DROP VIEW {}",
    "ANALYZE TABLE {} COMPUTE STATISTICS FOR ALL COLUMNS", "UNCACHE TABLE {}", "COMMENT ON VIEW {} IS 'x'",
    "INSERT INTO {} (id) VALUES (1)", "INSERT INTO {} TABLE orders", "REFRESH {}",
    "WITH w AS (SELECT 1) INSERT INTO {} SELECT * FROM w", "FROM orders INSERT INTO {} SELECT order_id",
    "ALTER TABLE {} RENAME COLUMN a TO b", "ALTER TABLE {} ALTER COLUMN a TYPE INT", "ALTER TABLE {} CHANGE a b INT",
    "ALTER TABLE {} REPLACE COLUMNS (a INT)", "ALTER TABLE {} DROP COLUMN a", "ALTER TABLE {} ADD PARTITION (a = 1)",
    "ALTER TABLE {} PARTITION (a = 1) RENAME TO PARTITION (a = 2)", "ALTER TABLE {} UNSET TBLPROPERTIES ('a')",
    "ALTER TABLE {} SET SERDE 'x'", "ALTER TABLE {} SET LOCATION 'x'", "ALTER TABLE {} CLUSTER BY (a)",
    "ALTER TABLE {} ADD CONSTRAINT c CHECK (a > 1)", "ALTER TABLE {} DROP CONSTRAINT c", "DESC {} PARTITION (a = 1)",
    "ALTER TABLE {} DEFAULT COLLATION UTF8_BINARY", "ALTER VIEW {} SET TBLPROPERTIES ('a' = 'b')",
    "ALTER VIEW {} WITH SCHEMA BINDING", "INSERT INTO {} REPLACE WHERE id = 1 SELECT 1",
    "SHOW COLUMNS IN {}", "SHOW COLUMNS FROM {} IN default", "DESCRIBE {} name",
    "INSERT INTO {} BY NAME SELECT 1 AS id",
    "INSERT OVERWRITE {} PARTITION (a = 1) SELECT 1", "DESC EXTENDED {} AS JSON",
    "SHOW CREATE TABLE {} AS SERDE", "CACHE TABLE {} AS SELECT 1",
    "CREATE TEMPORARY VIEW {} AS SELECT 1", "CREATE OR REPLACE TEMP VIEW {} AS SELECT 1",
    "CREATE TEMPORARY VIEW {} USING csv OPTIONS (path 'x')", "ALTER TABLE {} SET SERDEPROPERTIES ('a' = 'b')",
    "ALTER TABLE {} TOUCH", "ALTER TABLE {} ARCHIVE PARTITION (a = 1)", "ALTER TABLE {} CONCATENATE",
    "ALTER TABLE {} CLUSTERED BY (a) INTO 2 BUCKETS", "ALTER TABLE {} SET FILEFORMAT PARQUET",
    "ANALYZE TABLE {} PARTITION (a = 1) COMPUTE STATISTICS NOSCAN", "ALTER TABLE {} ADD COLUMNS (x INT FIRST)",
    "MSCK REPAIR TABLE {} SYNC PARTITIONS", "INSERT INTO {} REPLACE USING (id) SELECT 1", "DESC TABLE {} AS JSON",
    "ALTER TABLE {} ALTER COLUMN a DROP DEFAULT", "ALTER TABLE {} UNSET TBLPROPERTIES IF EXISTS ('a')",
]  # fmt: skip

ANSWERED = [
    "DESCRIBE {}", "DESC TABLE EXTENDED {}", "DESCRIBE FORMATTED {}", "DESC QUERY SELECT * FROM {}",
    "DESCRIBE SELECT * FROM {}", "SHOW CREATE TABLE {}", "TABLE {}",
    "EXPLAIN SELECT * FROM {}", "EXPLAIN EXTENDED TABLE {}", "SELECT * FROM {} LIMIT 1", "FROM {}", "VALUES ('{}')",
    "SHOW TABLES LIKE '{}'", "SHOW VIEWS LIKE '{}'", "SHOW TABLE EXTENDED LIKE '{}'", "DROP TABLE IF EXISTS default.{}",
    "SET x.{} = 1", "RESET x.{}", "SHOW FUNCTIONS LIKE '{}'", "EXPLAIN FORMATTED SELECT name FROM {}",
    "CREATE TABLE IF NOT EXISTS {} (a INT) WITH ('connector' = 'sql')",
    "WITH {0} AS (SELECT 1 AS a) SELECT * FROM {0}", "FROM {} |> LIMIT 1", "SELECT 1 AS {}", "LIST FILE '{}'",
    "EXPLAIN CODEGEN SELECT * FROM {}", "SHOW DATABASES LIKE '{}'", "SHOW CATALOGS LIKE '{}'", "CLEAR CACHE",
    "SHOW TABLES FROM default LIKE '{}'", "SHOW COLLATIONS LIKE '{}'", "SET {}.x", "REFRESH '/{}'",
]  # fmt: skip
"""Statements with the name of a lookup table that have a result, by lookupcache or by Spark."""

OF_SPARK = [
    "DROP TABLE default.{}", "DROP FUNCTION {}", "DESCRIBE FUNCTION x.{}", "DESCRIBE DATABASE {}", "USE {}",
    "SHOW TABLES IN {}", "SHOW CREATE TABLE default.{}", "ALTER DATABASE {} SET DBPROPERTIES ('a' = 'b')",
    "COMMENT ON COLUMN {}.name IS 'x'", "DROP TEMPORARY VARIABLE {}", "SHOW PARTITIONS default.{}", "EXPLAIN", "{}",
    "SELECT * FROM default.{}", "REFRESH FUNCTION {}", "CALL {}()", "SELECT {}(1)", "DROP DATABASE {}",
    "SET VAR {} = 1", "ALTER TABLE none RENAME TO {}", "ANALYZE TABLES IN {} COMPUTE STATISTICS", "USE CATALOG {}",
    "REPLACE TABLE {} (a INT) USING parquet", "DESCRIBE PROCEDURE {}", "SHOW PROCEDURES IN {}",
    "SHOW VIEWS IN {}", "SHOW TABLE EXTENDED IN {} LIKE 'x'", "SHOW COLUMNS IN x.{}", "SHOW {}",
    "ALTER DATABASE {} SET LOCATION 'x'", "DROP CATALOG {}", "DESCRIBE CATALOG {}", "DECLARE VARIABLE {} INT DEFAULT z",
]  # fmt: skip
"""Statements with that name that mean something else, which is not there."""


@pytest.mark.parametrize("sql", ABOUT_A_TABLE)
def test_a_statement_for_spark_tables_refuses_a_lookup_table(session, sql):
    with pytest.raises(StatementError, match="lookup table") as raised:
        session.sql(sql.format("`Customers`"))
    assert raised.value.position.marked == "`Customers`"


@pytest.mark.extended
@pytest.mark.parametrize("sql", ANSWERED)
def test_a_statement_with_a_lookup_tables_name_has_a_result(session, sql):
    assert session.sql(sql.format("customers")).columns is not None


@pytest.mark.extended
@pytest.mark.parametrize("sql", OF_SPARK)
def test_a_lookup_name_with_another_meaning_gives_sparks_error(session, sql):
    with pytest.raises((PySparkException, LookupCacheError)) as raised:
        session.sql(sql.format("customers"))
    assert "lookup_" not in str(raised.value).replace("lookupcache", "")


UNREAD = [
    "CREATE FUNCTION f9 () RETURNS BIGINT RETURN (SELECT max(id) FROM {})",
    "CREATE TEMPORARY FUNCTION f9 (n INT) RETURNS BIGINT RETURN (SELECT max(id) FROM {} WHERE id > n)",
    "CREATE TEMPORARY FUNCTION f9 () RETURNS TABLE (a INT) RETURN SELECT 1 FROM {}",
    "SET VAR x9 = 1 + (TABLE {})", "EXPORT TABLE {} TO 'x'", "IMPORT TABLE {} FROM 'x'", "LOCK TABLE {} SHARED",
    "CREATE FLOW f9 AS INSERT INTO x BY NAME SELECT * FROM {}", "CREATE MATERIALIZED VIEW m9 AS SELECT * FROM {}",
    "CREATE STREAMING TABLE s9 AS SELECT * FROM STREAM {}", "ALTER VIEW shown AS SELECT * FROM {}",
    "DECLARE VARIABLE x9 BIGINT DEFAULT (SELECT max(id) FROM {})", "CALL p9((SELECT max(id) FROM {}))",
    "CREATE VIEW v9 AS SELECT * FROM {}", "CREATE GLOBAL TEMP VIEW v9 AS SELECT * FROM {}",
    "CREATE VIEW v9 (a) WITH METRICS LANGUAGE YAML AS $$ source: {} $$", "SHOW COLUMNS {}", "UNLOCK TABLE {}",
]  # fmt: skip
"""Statements in which a lookup table cannot be read."""


@pytest.fixture(scope="module")
def hidden(session):
    """Make a lookup table whose name Spark does not know, and a view that a statement may change."""
    session.sql("CREATE TEMPORARY VIEW shown AS SELECT 1 AS id")
    options = {"connector": "sources:Memory", **options_of(pa.table({"id": pa.array([1])}))}
    session.register_table(LookupTable("only_here", "id BIGINT", options))
    yield "only_here"
    session.sql("DROP TABLE only_here")
    session.sql("DROP VIEW shown")


@pytest.mark.parametrize("sql", UNREAD)
def test_statements_that_cannot_read_a_lookup_table_are_refused(session, hidden, sql):
    with pytest.raises((LookupCacheError, PySparkException)) as raised:
        session.sql(sql.format(hidden))
    assert "NOT_FOUND] The table or view" not in str(raised.value)


def test_a_name_with_a_schema_is_that_of_a_table_of_sparks(session):
    for sql in ("DROP TABLE {}", "DESCRIBE {}", "SHOW CREATE TABLE {}", "TRUNCATE TABLE {}"):
        with pytest.raises(AnalysisException, match="NOT_FOUND"):
            session.sql(sql.format("default.countries"))
    assert [row.col_name for row in session.sql("DESCRIBE countries").collect()] == ["code", "region"]


WHOLE = [
    "EXPLAIN EXTENDED SELECT 1 FROM orders AS o JOIN prices FOR SYSTEM_TIME AS OF PROCTIME() AS p ON p.item = 1",
    "CREATE OR REPLACE TABLE IF NOT EXISTS broken (id INT COMMENT 'x', PRIMARY KEY (id) NOT ENFORCED) COMMENT 'y' "
    "WITH ('connector' = 'sqll') LIKE prices",
    "INSERT INTO nowhere (a) SELECT price FROM prices p", "SHOW COLUMNS IN nothing", "DESCRIBE TABLE EXTENDED none x",
    "DROP TEMPORARY FUNCTION IF NOT f", "CREATE FUNCTION f AS 'a:b' WITH ('x' = 'y')",
    "EXECUTE STATEMENT SET BEGIN INSERT INTO a b; END x", "CREATE TEMP VIEW v (a COMMENT 'b') AS prices",
    "CACHE TABLE p OPTIONS ('a' = 'b') AS SELECT * FROM prices JOIN",
    "WITH w AS (SELECT price FROM prices) INSERT INTO a SELECT * FROM w", "BEGIN SELECT price FROM prices; END",
    "FROM prices |> WHERE price > 1", "MERGE INTO a USING prices AS p ON a.x = p.item WHEN",
]  # fmt: skip


def test_an_incomplete_statement_is_refused_with_a_proper_error(session):
    for sql in WHOLE:
        for token in tokens(sql):
            try:
                session.sql(sql[: token.end])
            except (LookupCacheError, PySparkException):
                continue
    session.spark.catalog.dropTempView("p")


def test_clauses_of_a_lookup_table_are_kept_or_refused(session):
    head = "CREATE OR REPLACE TABLE told (id INT COMMENT 'it''s', x INT)"
    options = "WITH ('connector' = 'sources:Memory', 'rows' = '')"
    session.sql(f"{head} COMMENT 'a ''table' {options}")
    described = {row.col_name: (row.data_type, row.comment) for row in session.sql("DESCRIBE EXTENDED told").collect()}
    assert (described["id"], described["Comment"]) == (("int", "it's"), ("a 'table", None))
    assert "COMMENT 'a ''table' WITH" in session.sql("SHOW CREATE TABLE told").collect()[0][0]
    for clause in ("TBLPROPERTIES ('a' = 'b')", "PARTITIONED BY (x)", "LOCATION 'y'"):
        with pytest.raises(StatementError, match=f"cannot have {clause.split()[0]}"):
            session.sql(f"{head} {clause} {options}")
    with pytest.raises(StatementError, match="not closed"):
        session.sql(f"{head} {options[:-1]}")
    with pytest.raises(StatementError, match="no name"):
        session.sql(f"CREATE TABLE LIKE prices {options}")
    for wrong in (f"(a INT,) {options}", f"(, a INT) {options}", f"(a INT) {options.replace(',', ',,')}"):
        with pytest.raises(StatementError, match="A comma has nothing before or behind it"):
            session.sql(f"CREATE TABLE told {wrong}")


def test_a_query_with_a_lookup_may_be_cached_or_be_a_view(session):
    query = f"SELECT o.order_id, c.name FROM orders AS o {JOIN}"
    session.sql(f"CACHE LAZY TABLE kept AS {query}")
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen (a COMMENT 'AS SELECT', b) COMMENT 'x' AS {query}")
    try:
        assert session.sql("SELECT count(*) AS n FROM kept JOIN seen ON a = order_id").collect()[0].n == 5
        assert [row.comment for row in session.sql("DESCRIBE seen").collect()] == ["AS SELECT", None]
    finally:
        session.sql("UNCACHE TABLE kept")
        for view in ("kept", "seen"):
            session.spark.catalog.dropTempView(view)


def test_parameters_and_variables_stand_anywhere(session):
    session.sql("DECLARE OR REPLACE VARIABLE least DOUBLE DEFAULT 1000")
    sql = f"SELECT o.order_id, :n + 1 AS n FROM orders AS o {JOIN} AND c.salary > least AND c.country = :at"
    try:
        assert rows_of(session.sql(f"{sql} WHERE total > :n", args={"n": 5, "at": "AT"})) == {(14, 6): 1}
        marks = f"{sql} WHERE total > :n".replace(":n", "?").replace(":at", "?")
        assert rows_of(session.sql(marks, args=[5, "AT", 5])) == {(14, 6): 1}
    finally:
        session.sql("DROP TEMPORARY VARIABLE least")


def test_data_frames_and_values_stand_in_braces(session):
    own = session.spark
    few = own.sql("SELECT order_id, customer_id FROM orders WHERE order_id < 12")
    for sql in ("SELECT order_id, '{{x}}' AS x, {n} AS n FROM {few}", "SELECT order_id FROM {few} WHERE :n > 1"):
        given = {"args": {"n": 2}, "few": few, "n": "it's"}
        assert rows_of(session.sql(sql, **given)) == rows_of(own.sql(sql, **given)) != {}
    sql = f"SELECT f.order_id, {{n}}, c.name FROM {{few}} AS f {JOIN.replace('o.', 'f.')} AND c.id < :least"
    found = session.sql(sql, {"least": 9}, few=few, n=1)
    assert rows_of(found) == {(10, 1, "ann"): 1, (11, 1, "bob"): 1}
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen AS {sql}", {"least": 9}, few=few, n=1)
    assert rows_of(session.sql("SELECT * FROM seen")) == rows_of(found)
    assert own.sql("SHOW VIEWS LIKE '_pyspark*'").count() == 0
    own.catalog.dropTempView("seen")


def test_the_name_of_a_column_may_be_computed(session):
    named = f"SELECT IDENTIFIER(:column) FROM IDENTIFIER(:table) AS o {JOIN}"
    args = {"table": "ord" + "ers", "column": "c.name"}
    assert rows_of(session.sql(named, args)) == {("ann",): 2, ("bob",): 1, ("cem",): 1, ("dea",): 1}


def test_a_query_with_lookups_is_described(session):
    found = session.sql(f"DESCRIBE QUERY SELECT c.name AS n, o.total FROM orders AS o {JOIN}").collect()
    assert [(row.col_name, row.data_type) for row in found] == [("n", "string"), ("total", "double")]


OF_FLINK = {
    "'jdbc', 'url' = 'jdbc:oracle:thin:@h:1521/d', 'table-name' = 'c'": r"Write 'oracle\+oracledb://",
    "'jdbc', 'url' = 'jdbc:mysql://h/d', 'table-name' = 'c', 'customSchema' = 'id INT'": "as the table's schema",
}


@pytest.mark.parametrize(("options", "hint"), OF_FLINK.items())
def test_an_option_of_flinks_jdbc_is_refused_with_ours(session, options, hint):
    with pytest.raises(LookupCacheError, match=hint):
        session.sql(f"CREATE TABLE zz (id INT) WITH ('connector' = {options})")


def test_flink_s_types_and_former_options(session):
    memory = "WITH ('connector' = 'sources:Memory', 'rows' = '')"
    session.sql(f"CREATE OR REPLACE TABLE zz (id INT, r ROW(a INT, b ROW(c DECIMAL(4, 2))) COMMENT 'a row') {memory}")
    assert session.sql("DESCRIBE zz").collect()[1].data_type == "struct<a:int,b:struct<c:decimal(4,2)>>"
    session.sql("DROP TABLE zz")
    with pytest.raises(SchemaError, match=r"Type TIME\(3\) is not supported"):
        session.sql(f"CREATE TABLE zz (id INT, t TIME(3)) {memory}")
    with pytest.raises(StatementError, match="have no 'connector'"):
        session.sql("CREATE TABLE zz (id INT) WITH ('connector.type' = 'jdbc', 'connector.url' = 'jdbc:mysql://h/d')")


@pytest.mark.parametrize("schema", ["default_catalog.default_database", "default"])
def test_a_schema_before_a_lookup_table_is_refused_with_the_cure(session, schema):
    with pytest.raises(StatementError, match=r"has no schema(?s:.*)Write customers\.") as raised:
        session.sql(f"SELECT o.order_id FROM orders AS o {JOIN.replace('customers', f'{schema}.customers')}")
    assert raised.value.position.marked == f"{schema}.customers"


def test_unnest_reads_the_relations_before_it(session):
    sql = "SELECT o.order_id, u.x, c.name FROM orders AS o {} UNNEST(array(o.order_id, 0)) AS u (x) " + f"LEFT {JOIN}"
    expected = rows_of(session.sql(sql.format("JOIN LATERAL")))
    assert len(expected) > 0
    assert rows_of(session.sql(sql.format("CROSS JOIN"))) == rows_of(session.sql(sql.format(","))) == expected


def test_a_comparison_by_a_collation_is_no_key(session):
    sql = f"SELECT o.order_id FROM orders AS o {JOIN}"
    with pytest.raises(PlanError, match=r"by a collation(?s:.*)Add another equality"):
        session.sql(sql.replace("o.customer_id = c.id", "c.name = 'ann' COLLATE UTF8_LCASE"))


def test_an_unreadable_clause_with_a_lookup_names_its_position(session):
    sql = f"SELECT 1 FROM orders AS o {JOIN} GROUP BY window(o.ts, '1 day'), (SELECT max(id) FROM customers)"
    with pytest.raises(StatementError, match="cannot be read") as raised:
        session.sql(sql)
    assert raised.value.position.marked == "."


@pytest.mark.parametrize("clause", ["ORDER BY o.order_id !!! 1", "AND o.total !!! 1"])
def test_sparks_error_is_raised_for_a_clause_it_cannot_read(session, clause):
    with pytest.raises(StatementError, match="PARSE_SYNTAX_ERROR"):
        session.sql(f"SELECT o.order_id FROM orders AS o {JOIN} {clause}")


PERIOD = "FOR SYSTEM_TIME AS OF PROCTIME()"
INNER = "SELECT id AS k, upper(name) AS name, coalesce(zip, 'none') AS zip FROM customers AS x WHERE x.country = 'AT'"
OF_QUERIES = {
    "a view": ("", f"at_only {PERIOD}"),
    "a view of a view": ("", f"at_b {PERIOD}"),
    "a common table expression": (f"WITH q (k, name, zip) AS ({INNER}) ", f"q {PERIOD}"),
    "a query": ("", f"({INNER}) {PERIOD}"),
    "a query in a query": ("", f"(SELECT zip, k, name FROM ({INNER}) AS y WHERE k > 0 ORDER BY k) {PERIOD}"),
}
OF_JOINS = (
    "SELECT o.order_id, c.* FROM orders AS o LEFT JOIN {} AS c ON o.customer_id = c.k",
    "SELECT * FROM orders AS o, {} AS c WHERE o.customer_id = c.k AND c.name LIKE 'A%'",
    "SELECT o.order_id FROM orders AS o LEFT ANTI JOIN {} AS c ON c.k = o.customer_id",
    "SELECT * FROM (SELECT *, customer_id AS k FROM orders) AS o LEFT JOIN {} AS c USING (k) "
    "LEFT JOIN {} AS d ON d.k = o.k",
)


@pytest.fixture
def views(session):
    """Return Spark's own session with the views, which the session with lookup tables has as well."""
    theirs = session.spark.newSession()
    for name in ("orders", "customers"):
        theirs.createDataFrame(session.spark.table(name).toArrow()).createOrReplaceTempView(name)
    for one in (session, theirs):
        one.sql(f"CREATE OR REPLACE TEMPORARY VIEW at_only AS {INNER}")
        one.sql(
            "CREATE OR REPLACE TEMPORARY VIEW at_b (k, name, zip) AS SELECT k, name, zip FROM at_only WHERE name > 'B'"
        )
    yield theirs
    for view in ("at_only", "at_b"):
        session.sql(f"DROP VIEW {view}")


@pytest.mark.extended(keep_one_in=3)
@pytest.mark.parametrize(("with_", "relation"), OF_QUERIES.values(), ids=OF_QUERIES)
@pytest.mark.parametrize("join", OF_JOINS)
def test_a_query_over_one_table_is_looked_up(session, views, with_, relation, join):
    sql = with_ + join.replace("{}", relation)
    assert rows_of(session.sql(sql)) == rows_of(views.sql(sparks_own(sql)))
    assert {plan.constants[0].column for plan in session.plans(sql)} == {"country"}


def test_a_looked_up_query_may_read_variables_and_parameters(session):
    session.sql("DECLARE OR REPLACE VARIABLE total STRING DEFAULT 'AT'")  # a column of orders, too
    inner = "SELECT id, name FROM customers WHERE country = total AND id < :n"
    sql = f"WITH q AS ({inner}) SELECT o.order_id, q.name FROM orders AS o JOIN q {PERIOD} ON o.customer_id = q.id"
    try:
        assert rows_of(session.sql(sql, {"n": 3})) == {(10, "ann"): 1, (12, "ann"): 1}
    finally:
        session.sql("DROP TEMPORARY VARIABLE total")


NO_LOOKUPS = {
    "SELECT country AS id, count(*) AS name FROM customers GROUP BY country": "GROUP BY",
    "SELECT DISTINCT id, name FROM customers": "DISTINCT",
    "SELECT id, name FROM customers LIMIT 2": "LIMIT",
    "SELECT id, max(name) OVER () AS name FROM customers": "a window",
    "SELECT explode(array(1, 2)) AS id, name FROM customers": "a generator",
    "SELECT c.id, name FROM customers AS c JOIN prices ON c.id = price": "JOINS",
    "SELECT id, name FROM customers UNION ALL SELECT 1, 'a'": "more than select",
    "SELECT id, name FROM customers WHERE id > (SELECT min(item) FROM prices)": "sub-query",
    "SELECT order_id AS id, 'a' AS name FROM orders": "reads no lookup table",
}


@pytest.mark.parametrize(("inner", "why"), NO_LOOKUPS.items())
def test_a_query_that_does_more_is_no_lookup(session, inner, why):
    sql = f"SELECT c.name FROM orders AS o JOIN ({inner}) {PERIOD} AS c ON o.customer_id = c.id"
    with pytest.raises(PlanError, match=f"{why}(?s:.*)leave FOR SYSTEM_TIME AS OF out"):
        session.sql(sql)


BEHIND_PIPES = [
    f"FROM orders AS o |> {JOIN} |> SELECT o.order_id, c.name",
    f"FROM orders AS o |> WHERE order_id IN (SELECT o.order_id FROM orders AS o {JOIN})",
    f"SELECT * FROM (FROM orders AS o |> WHERE total > 1 |> {JOIN}) AS q",
    f"SELECT c.name FROM orders AS o {JOIN} AND EXISTS (FROM orders |> {JOIN.replace('o.', '')})",
    "FROM tags |> SELECT id |> UNION ALL TABLE customers",
    "FROM tags |> WHERE id IN (SELECT p.order_id FROM orders AS p JOIN tags AS t ON t.id IN (1), (prices))",
]


@pytest.mark.parametrize("sql", BEHIND_PIPES)
def test_a_lookup_behind_a_pipe_is_refused_with_the_cure(session, sql):
    with pytest.raises(StatementError, match=r"behind a pipe(?s:.*)FROM \(SELECT … FROM … JOIN …\) AS q \|>") as raised:
        session.sql(sql)
    assert raised.value.position.marked == "|>"


def test_what_is_joined_before_a_pipe_is_piped(session, views):
    joined = f"SELECT o.order_id, c.name FROM orders AS o {JOIN}"
    for sql in (
        f"FROM ({joined}) AS q |> WHERE q.name > 'a' |> SELECT order_id",
        f"{joined} |> WHERE name > 'a'",
        f"FROM orders AS o {JOIN} |> WHERE c.salary > 1 |> AGGREGATE count(*) AS n GROUP BY c.country",
        f"SELECT o.total, c.name FROM (FROM orders |> WHERE total > (FROM orders |> AGGREGATE min(total))) AS o {JOIN}",
        f"SELECT q.* FROM (FROM orders AS o {JOIN} |> WHERE c.salary > 1 |> SELECT o.order_id, c.name) AS q",
        f"WITH w AS (FROM orders AS o {JOIN} |> WHERE c.salary > 1) SELECT order_id, name FROM w",
        f"SELECT o.order_id FROM orders AS o {JOIN} "
        "AND EXISTS (FROM orders AS p |> WHERE p.customer_id = c.id AND p.total > 1)",
        f"SELECT o.order_id, q.n FROM orders AS o {JOIN} "
        "JOIN LATERAL (FROM orders AS p |> WHERE p.customer_id = c.id |> SELECT p.order_id AS n) AS q",
    ):
        assert rows_of(session.sql(sql)) == rows_of(views.sql(sparks_own(sql))) != {}


def test_a_column_may_have_the_name_of_a_lookup_table(session, views):
    for sql in (
        f"FROM orders AS o {JOIN} |> EXTEND c.name AS prices |> SET prices = upper(prices) |> SELECT order_id, prices",
        f"SELECT prices, count(*) AS n FROM (SELECT customer_id, total AS prices FROM orders) AS o {JOIN} "
        "GROUP BY window(timestamp_seconds(o.customer_id), '1 hour'), prices",
    ):
        assert rows_of(session.sql(sql)) == rows_of(views.sql(sparks_own(sql))) != {}


def test_an_operand_that_only_spark_reads_goes_to_spark(session, views):
    for condition in ("IDENTIFIER('abs')(o.total) > 1", "IDENTIFIER('abs')(c.salary) > 1 AND o.total > 0"):
        for sql in (
            f"SELECT o.order_id, c.name FROM orders AS o {JOIN} AND {condition} JOIN orders AS p ON p.total > 0",
            f"SELECT c.name FROM orders AS o {JOIN} CROSS JOIN orders AS p WHERE {condition} AND c.name > 'a'",
        ):
            assert rows_of(session.sql(sql)) == rows_of(views.sql(sparks_own(sql))) != {}
        with pytest.raises(PlanError, match=r"only Spark reads, is not supported(?s:.*)Write it in WHERE"):
            session.sql(f"SELECT o.order_id FROM orders AS o LEFT {JOIN} AND {condition}")


def test_a_view_of_an_unscannable_table_can_only_be_looked_up(session):
    squares = LookupTable.from_function(
        "squares", "n BIGINT, square BIGINT", key=["n"], function=lambda n: [(n, n * n)]
    )
    session.register_table(squares)
    session.sql(
        "CREATE OR REPLACE TEMPORARY VIEW small AS SELECT n AS k, square + 1 AS s FROM squares WHERE square < 5"
    )
    sql = f"SELECT o.order_id, v.s FROM orders AS o JOIN small {PERIOD} AS v ON v.k = o.customer_id"
    assert rows_of(session.sql(sql)) == {(10, 2): 1, (11, 5): 1, (12, 2): 1}
    for read in ("SELECT count(*) FROM small", "SELECT * FROM small WHERE s < 3"):
        with pytest.raises(PySparkException, match="cannot be read in full"):
            session.sql(read).collect()
    session.spark.sql("CREATE OR REPLACE TEMPORARY VIEW small AS SELECT 1L AS k, 1L AS s")
    with pytest.raises(StatementError, match="another relation of Spark's"):
        session.sql(sql)
    session.sql("DROP TABLE squares")


def test_explain_shows_once_how_a_join_runs(session):
    shuffled = JOIN.replace("customers", "customers /*+ OPTIONS('lookup.shuffle' = 'true') */")
    [[text]] = session.sql(f"EXPLAIN SELECT o.order_id, c.name FROM orders AS o {shuffled}").collect()
    assert text.count("\nForm\n") == 1
    assert "the left side, by key (lookup.shuffle)" in text


BEHIND_A_QUERY = [
    f"WITH w AS (SELECT c.name FROM orders AS o {JOIN}) INSERT INTO kept SELECT * FROM w",
    f"FROM orders AS o {JOIN} INSERT INTO kept SELECT o.order_id INSERT INTO kept SELECT c.id",
]


@pytest.mark.parametrize("sql", BEHIND_A_QUERY)
def test_an_insert_behind_a_query_with_lookups_is_refused(session, sql):
    for prefix in ("", "EXPLAIN ", "EXECUTE STATEMENT SET BEGIN ", "COMPILE PLAN FOR "):
        with pytest.raises(StatementError, match=r"behind a query(?s:.*)INSERT INTO t WITH") as raised:
            session.sql(f"{prefix}{sql}{'; END' * prefix.startswith('EXECUTE')}")
        assert raised.value.position.marked == "customers"


REFUSED = {
    "BEGIN DECLARE n INT DEFAULT 1; SELECT o.order_id FROM orders AS o, customers AS c; END": "customers",
    f"BEGIN SELECT 1; SELECT c.name FROM orders AS o {JOIN}; END": "customers",
    "EXECUTE IMMEDIATE 'SELECT name FROM customers WHERE id = ?' USING 1": "EXECUTE",
    "BEGIN EXECUTE IMMEDIATE 'SELECT ' || R'1 FROM customers'; END": "EXECUTE",
}


@pytest.mark.parametrize(("sql", "marked"), REFUSED.items())
def test_scripts_with_lookups_are_refused_with_the_cure(session, sql, marked):
    with pytest.raises(StatementError, match=r"session\.sql") as raised:
        session.sql(sql)
    assert raised.value.position.marked == marked


OF_NO_LOOKUP = {
    "BEGIN DECLARE customers INT DEFAULT 4; SET customers = customers + 1; SELECT customers; END": [(5,)],
    "EXECUTE IMMEDIATE 'SELECT ? AS customers' USING 'FROM customers'": [("FROM customers",)],
}
"""Statements that run others, in which the name of a lookup table is that of something else."""


@pytest.mark.parametrize(("sql", "rows"), OF_NO_LOOKUP.items())
def test_scripts_without_lookups_are_left_to_spark(session, sql, rows):
    assert list(map(tuple, session.sql(sql).collect())) == rows


@needs_spark("4.0", "PySpark has loggers of its own since Spark 4.0")
def test_an_error_is_sparks_own(session):
    """A logger of PySpark's name that PySpark did not create would not take what PySpark writes to it."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        assert isinstance(logging.getLogger(name), PySparkLogger)
    with pytest.raises((AnalysisException, StatementError), match="no_such_column"):
        session.sql("SELECT no_such_column FROM range(1)")


# ── variables, and INSERTs behind a query ─────────────────────────────────────────────────────────────────

VARIABLES = {
    "test.any": "false OR true",
    "test.table": "customers",
    "test.more": "${test.table}",
    "test.name": "c.name",
}


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT o.order_id FROM orders AS o {JOIN} WHERE c.name = 'none' AND ${{test.any}}",
        f"SELECT o.order_id, ${{test.name}} FROM orders AS o {JOIN}".replace("customers", "${hiveconf:test.more}"),
    ],
    ids=["precedence", "names"],
)
def test_the_value_of_a_variable_is_text_of_the_statement(session, sql):
    written = sql.replace("hiveconf:test.more", "test.table")
    for name, value in VARIABLES.items():
        session.spark.conf.set(name, value)
        written = written.replace(f"${{{name}}}", value)
    try:
        found, expected = session.sql(sql), session.sql(written)
        assert found.columns == expected.columns
        assert rows_of(found) == rows_of(expected) != {}
    finally:
        for name in VARIABLES:
            session.spark.conf.unset(name)


def test_a_variable_that_spark_alone_knows_names_no_relation(session):
    with pytest.raises(StatementError, match="a variable stands for the name of a relation"):
        session.sql(f"SELECT 1 FROM orders AS o {JOIN.replace('customers', '${env:NO_TABLE}')}")


@pytest.mark.parametrize("second", ["INTO no_table SELECT o.order_id", "INTO kept SELECT o.order_id, c.name"])
def test_nothing_is_written_where_spark_refuses_a_later_insert(session, spark, second):
    spark.sql("CREATE TABLE kept (id INT) USING parquet")
    first = "INTO kept SELECT o.order_id"
    source = f"FROM orders AS o {JOIN}"
    try:
        with pytest.raises(StatementError, match=r"no_table|kept"):
            session.sql(f"EXECUTE STATEMENT SET BEGIN INSERT {first} {source}; INSERT {second} {source}; END")
        assert spark.table("kept").count() == 0
    finally:
        spark.sql("DROP TABLE kept")


def test_a_query_may_be_the_name_of_a_table_or_in_parentheses(session, spark):
    columns = session.sql("SELECT * FROM customers").columns
    session.sql("CREATE OR REPLACE TEMPORARY VIEW all_customers AS (TABLE customers)")
    assert spark.table("all_customers").columns == columns
    for query in ("QUERY TABLE customers", "(SELECT * FROM customers)", "QUERY (SELECT * FROM customers)"):
        assert [row.col_name for row in session.sql(f"DESCRIBE {query}").collect()] == columns
    spark.catalog.dropTempView("all_customers")
