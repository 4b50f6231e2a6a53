"""Columns of type CHAR: refused in lookup tables, and left of lookups as Spark gives them, which it compares padded."""

from __future__ import annotations

import sqlite3

import pytest

from lookupcache import LookupSession, SchemaError

pytestmark = pytest.mark.spark

NOW = "FOR SYSTEM_TIME AS OF PROCTIME()"
ROWS = [(1, "ab"), (2, "abc"), (3, "ab "), (4, "é"), (5, "ab   "), (6, "abc"), (7, ""), (8, "x"), (2, "cd"), (2, None)]
LEFT = "VALUES (1, 'ab', 'ab'), (2, 'ab   ', 'ab'), (3, 'abc', 'abc'), (4, 'é', 'x'), (6, '', 'abcde')"


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    """Return a session of ours; the column ``o.code`` left of its lookups is a CHAR(4)."""
    folder = tmp_path_factory.mktemp("char")
    with sqlite3.connect(folder / "codes.db") as db:
        db.execute("CREATE TABLE codes (id INTEGER, v TEXT)")
        db.executemany("INSERT INTO codes VALUES (?, ?)", ROWS)
    spark.createDataFrame(ROWS, "id INT, v STRING").createOrReplaceTempView("codes")
    spark.sql(f"{LEFT} AS t (id, code, v)").write.parquet(str(folder / "o"))
    spark.sql(f"CREATE TABLE o (id INT, code CHAR(4), v STRING) USING parquet LOCATION '{folder / 'o'}'")
    session = LookupSession(spark)
    session.options = f"'connector' = 'sql', 'url' = 'sqlite:///{folder / 'codes.db'}', 'table' = 'codes'"
    yield session
    spark.sql("DROP VIEW codes")
    spark.sql("DROP TABLE o")


@pytest.mark.parametrize("type_", ["CHAR(5)", "CHARACTER(5)", "CHAR", "ARRAY<CHAR(5)>"])
def test_a_lookup_table_with_a_column_of_type_char_is_refused(session, type_):
    with pytest.raises(SchemaError, match=r"Type CHAR.* is not supported") as refused:
        session.sql(f"CREATE TABLE refused (id INT, code {type_}) WITH ({session.options})")
    assert refused.value.hint.startswith("Write STRING")


def rows_of(df):
    return sorted(map(repr, df.collect()))


@pytest.mark.extended
@pytest.mark.parametrize("form", ["worker", "distinct", "broadcast"])
def test_a_left_char_column_is_compared_padded_in_every_form(session, spark, form):
    session.sql(
        f"CREATE OR REPLACE TABLE plain (id INT, v STRING) WITH ({session.options}, 'lookup.form' = '{form}', "
        "'lookup.cache' = 'ALL')"
    )
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW plain AS SELECT id, v FROM codes")
    text = f"""SELECT o.code, o.code = 'ab' AS b, p.v FROM o {{}} JOIN plain {NOW} AS p
        ON p.id = o.id AND (o.code = 'ab' OR p.v = 'x') WHERE o.code = 'ab' OR o.code = 'é' OR p.v = 'abc'"""
    for kind in ("", "LEFT"):
        ours, theirs = session.sql(text.format(kind)), spark.sql(text.format(kind).replace(NOW, ""))
        assert rows_of(ours) == rows_of(theirs)
        assert [f.metadata for f in ours.schema] == [f.metadata for f in theirs.schema]
