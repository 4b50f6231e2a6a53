"""Columns of type CHAR, in lookup tables and left of lookups, against Spark's own tables with the same text.

Spark pads such values when it reads them, and what they are compared with.
"""

from __future__ import annotations

import sqlite3

import pytest

from lookupcache import CompiledPlanError, LookupCacheError, LookupSession, PlanError, SchemaError

pytestmark = pytest.mark.spark

NOW = "FOR SYSTEM_TIME AS OF PROCTIME()"
ROWS = [(1, "ab", "ab"), (2, "ab   ", "abc"), (3, "abcdefg", "ab "), (4, "é", "é"), (5, None, "ab   "),
        (6, "ab ", "abc"), (7, "", ""), (8, "abcde", "x"), (2, "cd", "cd"), (2, None, None)]  # fmt: skip
LEFT = "VALUES (1, 'ab', 'ab'), (2, 'ab   ', 'ab'), (3, 'abc', 'abc'), (4, 'é', 'x'), (6, '', 'abcde')"


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    """Return a session of ours with the lookup table ``codes``, beside Spark's table of that name."""
    folder = tmp_path_factory.mktemp("char")
    with sqlite3.connect(folder / "codes.db") as db:
        db.execute("CREATE TABLE codes (id INTEGER, code TEXT, v TEXT)")
        db.executemany("INSERT INTO codes VALUES (?, ?, ?)", ROWS)
    spark.createDataFrame(ROWS, "id INT, code STRING, v STRING").write.parquet(str(folder / "codes"))
    spark.sql(f"{LEFT} AS t (id, code, v)").write.parquet(str(folder / "o"))
    spark.sql("CREATE DATABASE chars")
    before = spark.catalog.currentDatabase()
    spark.sql("USE chars")
    for name, type_ in (("codes", "CHAR(5)"), ("o", "CHAR(4)")):
        columns = f"id INT, code {type_}, v STRING"
        spark.sql(f"CREATE TABLE {name} ({columns}) USING parquet LOCATION '{folder / name}'")
    session = LookupSession(spark)
    options = f"'connector' = 'sql', 'url' = 'sqlite:///{folder / 'codes.db'}', 'table' = 'codes'"
    session.sql(f"CREATE TABLE codes (id INT, code CHAR(5) COMMENT 'a, b', v STRING) WITH ({options})")
    session.sql("CREATE TABLE scanned WITH ('lookup.full-scan' = 'true') LIKE codes")
    spark.sql("CREATE TEMPORARY VIEW scanned AS SELECT * FROM chars.codes")
    session.options = options
    yield session
    spark.sql("DROP VIEW scanned")
    spark.sql(f"USE {before}")
    spark.sql("DROP DATABASE chars CASCADE")


SAME = [
    "SELECT o.id, concat('[', c.code, ']'), length(c.code) FROM @",
    "SELECT o.id, c.code = 'ab', c.code = 'ab       ', c.code IN ('ab', 'cd'), c.code <=> 'ab' FROM @",
    "SELECT o.id, c.code = o.code, c.code = o.v, c.code < 'ab ', upper(c.code) = 'AB' FROM @",
    "SELECT o.id, c.code LIKE 'ab', CASE c.code WHEN 'ab' THEN 1 END FROM @",
    "SELECT * FROM @ WHERE c.code = 'ab'",
    "SELECT * FROM @ WHERE c.code = 'ab' OR o.code = 'é'",
    "SELECT o.id FROM @ WHERE c.code = o.code",
    "SELECT o.id FROM @ WHERE c.code <> c.v OR c.v = o.code",
    "SELECT o.id, c.v FROM @ AND (o.code = 'ab' OR c.v = 'x')",
    "SELECT o.id, c.v FROM o {} JOIN codes {now} AS c ON c.v = o.code",
    "SELECT o.id, o.code = 'ab', length(o.code), o.code || '.' FROM @",
    "SELECT * FROM @ JOIN codes {now} AS d ON d.id = c.id AND (c.code = 'ab' OR d.v = 'ab')",
    "SELECT * FROM @ {} JOIN codes {now} AS d ON d.v = c.code",
    "SELECT * FROM (SELECT c.code AS x, c.id FROM @) AS s WHERE s.x = 'ab'",
    "SELECT x, count(*) FROM (SELECT c.code AS x FROM @) GROUP BY x HAVING x IN ('ab', 'cd')",
    "WITH w AS (SELECT c.code FROM @) SELECT a.code FROM w AS a JOIN o ON a.code = o.code",
]
INNER = [
    "SELECT * FROM @ AND c.code = 'ab'",
    "SELECT * FROM @ AND c.code = o.code",
    "SELECT d.v FROM @ AND c.code = 'ab' JOIN codes {now} AS d ON d.id = o.id",
    "SELECT d.v FROM @ AND c.v IN (SELECT v FROM o) JOIN codes {now} AS d ON d.id = o.id",
    "SELECT * FROM @ AND o.v = c.code AND 'x' <> c.code",
    "SELECT * FROM @ AND c.code IN ('ab', o.code) WHERE c.code >= 'ab'",
    "SELECT * FROM o JOIN codes {now} AS c ON (c.id = o.id AND c.code = 'ab') OR (c.id = o.id AND o.v = 'x')",
    "SELECT * FROM @ AND c.code = (SELECT max(v) FROM o WHERE v < 'b' LIMIT 1)",
    "SELECT o.id FROM o WHERE EXISTS (SELECT 1 FROM o AS p JOIN codes {now} AS c ON c.id = p.id WHERE c.code = o.code)",
    "SELECT o.id, (SELECT code FROM codes WHERE id = o.id LIMIT 1) AS x FROM o WHERE o.id <> 2",
    "WITH w AS (SELECT o.id, (SELECT code FROM codes WHERE id = o.id LIMIT 1) AS x FROM o WHERE o.id <> 2) "
    "SELECT id FROM w WHERE x = 'ab'",
    "SELECT o.id FROM o WHERE o.id <> 2 AND (SELECT code FROM codes WHERE id = o.id LIMIT 1) = 'ab'",
    "SELECT o.code = 'ab', (SELECT count(*) FROM codes AS c WHERE c.id = o.id) AS x FROM o WHERE o.code = 'ab'",
    "SELECT x FROM (SELECT c.code AS x, (SELECT count(*) FROM codes AS d WHERE d.id = o.id) AS n FROM @) WHERE x = "
    "'ab'",
    "SELECT * FROM codes WHERE code = 'ab'",
    "SELECT count(*) FROM codes AS c JOIN o ON c.code = o.code",
    "SELECT code FROM codes WHERE code IN (SELECT code FROM o)",
    "SELECT * FROM o LEFT JOIN scanned {now} AS c ON c.id = o.id AND c.code = 'ab'",
    "SELECT * FROM o LEFT SEMI JOIN scanned {now} AS c ON c.id = o.id AND c.code = o.code",
    "SELECT * FROM o LEFT ANTI JOIN scanned {now} AS c ON c.code = o.v",
    "SELECT * FROM o JOIN scanned {now} AS c ON c.code = o.v",
    "SELECT code, c.id, o.id FROM o JOIN scanned {now} AS c USING (code)",
]
JOINED = "o {} JOIN codes {now} AS c ON c.id = o.id"


def statements():
    """Yield the statements: @ stands for the join by ``id``, of the kind that stands for {}."""
    for texts, kinds in ((SAME, ("", "LEFT")), (INNER, ("",))):
        for text in texts:
            yield from (text.replace("@", JOINED).replace("{now}", NOW).replace("{}", kind) for kind in kinds)


def rows_of(df):
    return sorted(map(repr, df.collect()))


@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize("text", list(statements()))
def test_statements_have_sparks_rows(session, spark, text):
    ours, theirs = session.sql(text), spark.sql(text.replace(NOW, ""))
    assert rows_of(ours) == rows_of(theirs)
    assert [(f.name, f.dataType, f.metadata) for f in ours.schema] == [
        (f.name, f.dataType, f.metadata) for f in theirs.schema
    ]


def test_there_are_rows_that_only_padding_finds(spark, session):
    found = session.sql(f"SELECT c.id FROM o JOIN codes {NOW} AS c ON c.id = o.id WHERE c.code = 'ab'")
    assert sorted(row.id for row in found.collect()) == [1, 2, 6]
    assert spark.table("chars.codes").where("rtrim(code) = 'ab' AND length(code) < 5").isEmpty()


@pytest.mark.parametrize(("text", "fact"), [
    (f"SELECT * FROM o JOIN codes {NOW} AS c ON c.code = o.v", "has no key"),
    (f"SELECT * FROM o LEFT JOIN codes {NOW} AS c ON c.id = o.id AND c.code = 'ab'", "column of type CHAR"),
    (f"SELECT * FROM o LEFT ANTI JOIN codes {NOW} AS c ON c.id = o.id AND c.code = o.v", "column of type CHAR"),
    (f"SELECT * FROM o JOIN codes {NOW} AS c USING (code, id)", "USING or NATURAL"),
    (f"SELECT * FROM o NATURAL JOIN codes {NOW} AS c", "USING or NATURAL"),
    ("SELECT (SELECT code = 'ab' FROM codes WHERE id = o.id) FROM o", "cannot compute with a column of type CHAR"),
    ("SELECT (SELECT v FROM codes WHERE code = o.code AND id = o.id) FROM o", "column of type CHAR"),
])  # fmt: skip
def test_what_a_lookup_cannot_compare_is_refused(session, text, fact):
    with pytest.raises(PlanError) as refused:
        session.sql(text)
    assert fact in refused.value.fact
    assert refused.value.position is not None


@pytest.mark.parametrize(("name", "value"), [
    ("spark.sql.readSideCharPadding", "false"), ("spark.sql.legacy.charVarcharAsString", "true"),
    ("spark.sql.legacy.noCharPaddingInPredicate", "true"), ("spark.sql.charAsVarchar", "true"),
    ("spark.sql.preserveCharVarcharTypeInfo", "true"),
])  # fmt: skip
def test_settings_that_give_char_another_meaning_are_refused(session, spark, name, value):
    spark.conf.set(name, value)
    try:
        with pytest.raises(LookupCacheError, match="which are not read with"):
            session.sql(f"SELECT c.v FROM o JOIN codes {NOW} AS c ON c.id = o.id")
    finally:
        spark.conf.unset(name)


def test_listings_show_the_declared_type(session):
    assert [tuple(row) for row in session.sql("DESCRIBE scanned").collect()] == [
        ("id", "int", None), ("code", "char(5)", "a, b"), ("v", "string", None)]  # fmt: skip
    assert ("data_type", "char(5)") in map(tuple, session.sql("DESCRIBE codes code").collect())
    [[made]] = session.sql("SHOW CREATE TABLE codes").collect()
    assert "`code` char(5)" in made


@pytest.mark.parametrize(("columns", "fact"), [
    ("id INT, code CHAR(5), up AS upper(code)", "'up' reads a column of type CHAR"),
    ("id INT, a TIMESTAMP, code CHAR(3), PERIOD FOR SYSTEM_TIME (a, code)", "names a column of type CHAR"),
    ("id INT, codes ARRAY<CHAR(5)>", "CHAR"), ("id INT, code CHAR", "CHAR"),
])  # fmt: skip
def test_a_table_whose_char_column_is_read_before_it_is_padded_is_refused(session, columns, fact):
    with pytest.raises(SchemaError, match=fact):
        session.sql(f"CREATE TABLE refused ({columns}) WITH ({session.options})")


def test_a_view_and_a_table_of_the_rows_keep_the_type(session, spark, tmp_path):
    query = f"SELECT c.id, c.code FROM o JOIN codes {NOW} AS c ON c.id = o.id"
    session.sql(f"CREATE TEMPORARY VIEW of_codes AS {query}")
    session.sql(f"CREATE TABLE kept_codes USING parquet LOCATION '{tmp_path}' AS {query}")
    try:
        for name in ("of_codes", "kept_codes"):
            assert sorted(row.id for row in session.sql(f"SELECT id FROM {name} WHERE code = 'ab'").collect()) == [
                1,
                2,
                6,
            ]
        assert ("code", "char(5)") in [tuple(row)[:2] for row in spark.sql("DESCRIBE kept_codes").collect()]
    finally:
        spark.sql("DROP VIEW of_codes")
        spark.sql("DROP TABLE kept_codes")


def test_a_compiled_plan_has_no_columns_of_type_char(session, tmp_path):
    with pytest.raises(CompiledPlanError, match="columns of type CHAR"):
        session.sql(
            f"COMPILE PLAN '{tmp_path}/plan.json' FOR INSERT OVERWRITE DIRECTORY '{tmp_path}/out' "
            f"USING parquet SELECT c.v FROM o JOIN codes {NOW} AS c ON c.id = o.id"
        )


@pytest.mark.parametrize("form", ["worker", "distinct", "broadcast"])
def test_a_char_column_on_the_left_is_compared_padded_in_every_form(session, spark, form):
    session.sql(
        f"CREATE OR REPLACE TABLE plain (id INT, v STRING) WITH ({session.options}, 'lookup.form' = '{form}', "
        "'lookup.cache' = 'ALL')"
    )
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW plain AS SELECT id, v FROM chars.codes")
    text = f"""SELECT o.code, o.code = 'ab' AS b, p.v FROM o {{}} JOIN plain {NOW} AS p
        ON p.id = o.id AND (o.code = 'ab' OR p.v = 'x') WHERE o.code = 'ab' OR o.code = 'é' OR p.v = 'abc'"""
    for kind in ("", "LEFT"):
        ours, theirs = session.sql(text.format(kind)), spark.sql(text.format(kind).replace(NOW, ""))
        assert rows_of(ours) == rows_of(theirs)
        assert [f.metadata for f in ours.schema] == [f.metadata for f in theirs.schema]
