"""Columns of CREATE TABLE: names that are words of SQL, Flink's types, computed columns that read others."""

from __future__ import annotations

import random
import re
import sqlite3

import pyarrow as pa
import pytest
from sources import options_of

from lookupcache import LookupCacheError, LookupSession, OptionError, SchemaError, StatementError
from lookupcache.schema import quote
from lookupcache.sql.catalog import Catalog
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.text import Statement

MEMORY = "'connector' = 'sources:Memory', 'rows' = ''"
NAMES = ("bytes", "Bytes", "metadata", "watermark", "primary", "key", "constraint", "comment", "row", "timestamp",
         "period", "varbinary", "timestamp_ltz", "struct", "with", "without", "virtual", "enforced", "sent bytes",
         "row<", "timestamp(3)", "a,b", "it's", "case")  # fmt: skip
TYPES = {
    "BYTES": "binary", "VARBINARY(9)": "binary", "TIMESTAMP(3)": "timestamp_ntz", "TIMESTAMP": "timestamp",
    "TIMESTAMP (6) WITHOUT TIME ZONE": "timestamp_ntz", "TIMESTAMP WITHOUT TIME ZONE": "timestamp_ntz",
    "TIMESTAMP(3) WITH LOCAL TIME ZONE": "timestamp", "TIMESTAMP WITH LOCAL TIME ZONE": "timestamp",
    "TIMESTAMP_LTZ(3)": "timestamp", "DECIMAL(10, 2)": "decimal(10,2)", "STRING": "string",
}  # fmt: skip
PLACES = (
    "{}",
    "{} NOT NULL",
    "{} COMMENT 'bytes METADATA'",
    "{} PRIMARY KEY NOT ENFORCED",
    "{} NULL COMMENT '(old), x,'",
    "{} COMMENT 'it, (''s) PRIMARY KEY'",
)


def table_of(columns):
    catalog = Catalog()
    CreateTable(Statement.of(f"CREATE TABLE t ({columns}) WITH ({MEMORY})"), catalog).run()
    return catalog.tables["t"]


def type_of(draw, depth=0):
    """Return a type as Flink or Spark spells it, and Spark's name of it."""
    kind = draw.choice(["plain", "plain", "array", "map", "struct", "row"] if depth < 3 else ["plain"])
    if kind == "plain":
        return draw.choice(list(TYPES.items()))
    inner, inside = type_of(draw, depth + 1)
    if kind == "array":
        return f"ARRAY<{inner}{draw.choice(['', ' NOT NULL'])}>", f"array<{inside}>"
    if kind == "map":
        return f"MAP<STRING{draw.choice(['', ' NOT NULL'])}, {inner}>", f"map<string,{inside}>"
    names = [name for name in draw.sample(NAMES, 2) if name.lower() != "bytes"] or ["x"]
    written = [f"{spelled(draw, name)}{draw.choice([' ', ': '])}{inner}" for name in names]
    opening, closing = "<>" if kind == "struct" else draw.choice(["<>", "()"])
    if kind == "row" and opening == "(":
        written = [one.replace(": ", " ", 1) for one in written]
    word = "STRUCT" if kind == "struct" else draw.choice(["ROW", "row "])
    fields = ",".join(f"{quote(name)}:{inside}" for name in names)
    return f"{word}{opening}{', '.join(written)}{closing}", f"struct<{fields}>"


def spelled(draw, name):
    is_word = name.replace("_", "").isalnum() and name != "with"
    return draw.choice([name, quote(name)]) if is_word else quote(name)


@pytest.mark.parametrize("seed", range(300))
def test_names_and_types_are_read_whatever_words_they_are(seed):
    draw = random.Random(seed)
    names = {name.lower(): name for name in draw.sample(NAMES, 4)}.values()
    wanted, columns, keys = {}, [], 0
    for name in names:
        written, wanted[name] = type_of(draw)
        place = draw.choice(PLACES)
        keys += "KEY" in place
        columns.append(f"{spelled(draw, name)} {(place if keys < 2 else '{}').format(written)}")
    assert table_of(", ".join(columns)).types == wanted, columns


@pytest.mark.parametrize(("columns", "fact"), {
    "a INT, A AS a + 1": "two columns named 'a' and 'A'", "a INT, b AS a + 1, b INT": "two columns named 'b' and 'b'",
    "a INT, b AS a, B AS a": "two columns named 'b' and 'B'", "a INT, a INT": "two columns named 'a' and 'a'",
}.items())  # fmt: skip
def test_a_second_column_of_a_name_is_refused(columns, fact):
    with pytest.raises(SchemaError, match=fact):
        table_of(columns)


@pytest.mark.parametrize("column", ["b AS", "b AS COMMENT 'x'"])
def test_a_computed_column_without_an_expression_is_refused(column):
    with pytest.raises(StatementError, match="'b' has no expression") as raised:
        table_of(f"a INT, {column}")
    assert raised.value.position.marked == column


@pytest.mark.parametrize("item", ["struct(*)", "to_json(struct(t.*))", "hash(id, *)"])
def test_a_star_in_a_computed_column_is_refused(item):
    with pytest.raises(StatementError, match="'b' has a star") as raised:
        table_of(f"id INT, m AS id * 2, b AS {item}")
    assert raised.value.position.marked == item


OF_ROWS = {
    "row_number() OVER (ORDER BY k)": "a window",
    "sum(m) + 1": "an aggregate",
    "count(*)": "an aggregate",
    "explode(array(k))": "a generator",
    "(SELECT max(id) FROM o)": "a sub-query",
    "k IN (SELECT id FROM o)": "a sub-query",
}


@pytest.mark.parametrize(("item", "what"), OF_ROWS.items())
def test_a_computed_column_over_several_rows_is_refused(item, what):
    with pytest.raises(StatementError, match=rf"(?s)'b' has {what}\..*one row of the table") as raised:
        table_of(f"id INT, k INT, m AS id * 2, b AS {item}")
    assert raised.value.position.marked == item


@pytest.mark.parametrize("item", ["id + ${unset}", "'${unset}'", "concat(k, ${unset})"])
def test_a_variable_in_a_computed_column_is_refused(item):
    with pytest.raises(StatementError, match="'b' has a variable") as raised:
        table_of(f"id INT, k STRING, b AS {item}")
    assert raised.value.position.marked == item


def test_case_and_end_are_names_where_they_are_no_expression():
    made = table_of("case STRING, id INT, x AS CASE WHEN id > 1 THEN 1 END, end INT, y AS (CASE id WHEN 1 THEN 2 END)")
    assert made.types == {"case": "string", "id": "int", "end": "int"}
    assert list(made.computed) == ["x", "y"]


def test_a_multiset_is_refused():
    with pytest.raises(StatementError, match=r"(?s)MULTISET.*MAP<element, count>"):
        table_of("id INT, k ARRAY<MULTISET<INT>> NOT NULL, multiset STRING")
    assert table_of("id INT, multiset STRING").types == {"id": "int", "multiset": "string"}


READ = {
    "day": ("id + 1", "concat('day', k, 'PROCTIME()')"),
    "d": ("id + 1", "date_format(DATE '2024-01-02', 'd')"),
    "a": ("upper(k)", "get_json_object('{\"a\":1}', '$.a') || a || `A`"),
    "i": ("id + 1", "to_json(struct(i, k, I + 1))"),
    "i2": ("id", "to_json(arrays_zip(array(i2), array(k)))"),
    "s": ("struct(id, k)", "to_json(struct(s.id, s, s.k AS id2))"),
    "x": ("id + 1", "transform(array(id), x -> x * 2)[0] + x"),
    "b": ("id + 1", "named_struct('b', id).b + b"),
    "month": ("id + 1", "extract(month FROM DATE '2024-05-02') + month"),
    "int": ("id + 1", "cast(k AS string) || cast(1 AS int) || int"),
    "upper": ("k || 'f'", "upper(upper)"),
    "current_date": ("id + 1", "current_date * 2 + `current_date`"),
    "user": ("k || 'u'", "user || upper(user)"),
    "c d": ("concat(k, ', ', k)", "split(`c d`, ',')"),
}


@pytest.mark.spark
@pytest.mark.parametrize("name", READ)
def test_a_computed_column_reads_an_earlier_one(spark, name):
    first, second = READ[name]
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "k": ["x", "y"]})
    options = f"'connector' = 'sources:Memory', 'rows' = '{options_of(rows)['rows']}'"
    session = LookupSession(spark)
    session.sql(
        f"CREATE TABLE known (id BIGINT, k STRING, {quote(name)} AS {first}, z AS {second} COMMENT '(late)') "
        f"WITH ({options})"
    )
    inner = f"SELECT *, {first} AS {quote(name)} FROM VALUES (1L, 'x'), (2L, 'y') AS t(id, k)"
    join = "SELECT o.n, {} FROM VALUES (1L), (2L) AS o(n) JOIN {} ON o.n = c.id"
    for item in ("c.z", f"to_json(struct(c.z, c.{quote(name)}))", "typeof(struct(z, k))"):
        found = session.sql(join.format(item, "known FOR SYSTEM_TIME AS OF PROCTIME() AS c"))
        of_spark = spark.sql(join.format(item, f"(SELECT *, {second} AS z FROM ({inner})) AS c"))
        assert sorted(found.collect()) == sorted(of_spark.collect())


CAPTURED = {
    "a computed column": ("x AS i + 1, y AS transform(array(1), i -> i + x)", ""),
    "one of two variables": ("x AS i + 1, y AS aggregate(array(1), 0, (a, I) -> a + I + x)", ""),
    "a query": ("x AS 1", "SELECT id, transform(array(1), i -> i + v) AS y FROM (SELECT id, i + 1 AS v FROM inner_of)"),
    "the condition of a query": (
        "x AS 1",
        "SELECT id, v AS y FROM (SELECT id, i + 1 AS v FROM inner_of) WHERE exists(array(1), i -> i + v > 0)",
    ),
}


@pytest.mark.spark
@pytest.mark.parametrize("case", CAPTURED)
def test_a_variable_by_the_name_of_a_column_that_is_read_within_its_lambda_is_refused(spark, case):
    computed, query = CAPTURED[case]
    rows = pa.table({"id": pa.array([1], pa.int64()), "i": pa.array([7], pa.int32())})
    session = LookupSession(spark)
    create = (
        f"CREATE TABLE inner_of (id BIGINT, i INT, {computed}) WITH ('connector' = 'sources:Memory', "
        f"'rows' = '{options_of(rows)['rows']}')"
    )
    join = "SELECT y FROM VALUES (1L) AS o(n) JOIN {} FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.n = c.id"

    def found(create, query):
        session.sql(create)
        return session.sql(join.format(f"({query})" if query else "inner_of")).collect()

    with pytest.raises(StatementError, match="of a lambda has the name of a column") as raised:
        found(create, query)
    assert "Hint: Give the variable another name." in str(raised.value)
    assert raised.value.position is not None
    session.sql("DROP TABLE IF EXISTS inner_of")
    renamed = {"i ->": "j ->", "I)": "j)", "-> i": "-> j", "a + I": "a + j"}
    for old, new in renamed.items():
        create, query = create.replace(old, new), query.replace(old, new)
    [[y]] = found(create, query)
    assert y in ([9], 9, 8)


ORDERED = {
    "a computed column first": ("up AS upper(k), id BIGINT, k STRING", "up id k"),
    "computed columns between": ("id BIGINT, up AS upper(k), `k` STRING COMMENT 'x', n AS id + 1", "id up k n"),
    "behind a key": ("id BIGINT, PRIMARY KEY (id) NOT ENFORCED, up AS upper(k), k STRING", "id up k"),
    "with an age": ("id BIGINT, up AS upper(k), k STRING", "id up k age", "'lookup.age-column' = 'age'"),
    "of another table": ("z AS id * 2", "id up k n z", "", "LIKE other"),
    "of another table, without its computed ones": ("z AS id * 2", "id k z", "", "LIKE other (EXCLUDING GENERATED)"),
}


@pytest.mark.spark
@pytest.mark.parametrize("case", ORDERED)
def test_computed_columns_are_where_the_statement_declares_them(spark, case):
    columns, expected, more, like = (*ORDERED[case], "", "")[:4]
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "k": ["x", "y"]})
    options = f"'connector' = 'sources:Memory', 'rows' = '{options_of(rows)['rows']}'"
    session = LookupSession(spark)
    session.sql(f"CREATE TABLE other ({ORDERED['computed columns between'][0]}) WITH ({options})")
    session.sql(f"CREATE TABLE known ({columns}) WITH ({', '.join(filter(None, [options, more]))}) {like}")
    join = "SELECT {} FROM VALUES (1L) AS o(n) {} JOIN {} FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.n = c.id"
    for kind in ("INNER", "LEFT"):
        for table in ("known", "(SELECT * FROM known)"):
            assert session.sql(join.format("c.*", kind, table)).columns == expected.split()
            assert session.sql(join.format("*", kind, table)).columns == ["n", *expected.split()]
    described = expected.removesuffix(" age").split()
    assert [row[0] for row in session.sql("DESCRIBE known").collect()] == described
    if "age" not in expected:
        assert session.sql("SELECT * FROM known").columns == described
    [[text]] = session.sql("SHOW CREATE TABLE known").collect()
    assert re.findall(r"(?m)^  `(\w+)`", text) == described


@pytest.mark.spark
def test_computed_columns_come_after_inferred_ones(spark, tmp_path):
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, k TEXT)")
    session = LookupSession(spark)
    url = f"sqlite:///{tmp_path}/t.db"
    session.sql(f"CREATE TABLE known (up AS upper(k)) WITH ('connector' = 'sql', 'url' = '{url}', 'table' = 't')")
    assert [row[0] for row in session.sql("DESCRIBE known").collect()] == ["id", "k", "up"]


# ── names and options ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["a -- b", "a /* b", "a */ b", "it's", '5" disk', "'='", "WITH (", "a;b", "/* ' */"])
def test_a_name_in_backquotes_may_have_any_sign(name):
    assert list(table_of(f"id INT, {quote(name)} INT -- {name[:1]}\n, k INT").types) == ["id", name, "k"]


def test_a_quote_in_an_option_is_doubled():
    catalog = Catalog()
    text = "CREATE TABLE t (id INT) COMMENT 'it''s' WITH ('connector' = 'sources:Memory', 'rows' = 'it''s''')"
    CreateTable(Statement.of(text), catalog).run()
    assert (catalog.tables["t"].comment, catalog.tables["t"].table.options["rows"]) == ("it's", "it's'")


@pytest.mark.parametrize("name", ["k", "K", "up", "id"])
@pytest.mark.parametrize("option", ["lookup.age-column", "lookup.error-column"])
def test_an_age_or_error_column_has_a_name_of_its_own(name, option):
    more = "" if option == "lookup.age-column" else ", 'lookup.on-error' = 'null'"
    text = f"CREATE TABLE t (id INT, k INT, up AS k + 1) WITH ({MEMORY}{more}, '{option}' = '{name}')"
    with pytest.raises(OptionError, match=f"'{option}' names '{name}', which is another column of table 't'") as raised:
        CreateTable(Statement.of(text), Catalog()).run()
    assert raised.value.position.marked == f"'{name}'"


@pytest.mark.spark
def test_an_age_column_of_a_hint_has_a_name_of_its_own(spark):
    session = LookupSession(spark)
    rows = pa.table({"id": pa.array([1], pa.int64()), "k": ["x"]})
    session.sql(
        f"CREATE TABLE marked (id BIGINT, k STRING) WITH ('connector' = 'sources:Memory', "
        f"'rows' = '{options_of(rows)['rows']}')"
    )
    join = "SELECT c.k FROM VALUES (1L) AS o(n) JOIN marked /*+ OPTIONS('lookup.age-column' = 'k') */ "
    with pytest.raises(LookupCacheError, match=r"'lookup\.age-column'") as raised:
        session.sql(f"{join} FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.n = c.id")
    assert raised.value.position is not None
