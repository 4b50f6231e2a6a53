"""Drawn statements with lookups against the same statements of Spark's over views: columns, types and rows.

``LOOKUPCACHE_CASES`` draws more of them; a statement is drawn from its number, so that one that fails can be repeated.
"""

from __future__ import annotations

import os
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from sources import options_of
from sql_statements import SETTINGS, Drawing
from sql_world import once, united

from lookupcache import LookupCacheError, LookupSession, LookupTable

pytestmark = pytest.mark.spark

CASES = int(os.environ.get("LOOKUPCACHE_CASES", "40"))
AT_ONCE = 15
S = pa.struct([("id", pa.int32()), ("name", pa.string())])
ROWS = {
    "o": ("id INT, k BIGINT, name STRING, s STRUCT<id: INT, name: STRING>, v STRING",
          [(1, 1, "a", (1, "a"), "a"), (2, 2, "b", (3, None), "-- a"), (3, None, None, None, "z"),
           (4, 9, "A", (2, "b"), None), (2, 1, "/* b", (1, "x"), "b")]),
    "t": ("id INT, k BIGINT, name STRING, c STRING", [(1, 2, "a", "x"), (2, 1, None, "a"), (5, None, "b", "b")]),
    "cust": ("id BIGINT, k INT, name STRING, c STRING", [(1, 1, "a", "b"), (2, 3, "b", None), (3, None, None, "a")]),
    "many": ("id BIGINT, k INT, name STRING, s STRUCT<id: INT, name: STRING>",
             [(1, 1, "a", (1, "a")), (1, 2, "b", None), (2, 2, None, (2, "q")), (4, 1, "x", (None, "a"))]),
}  # fmt: skip


@pytest.fixture(scope="module")
def worlds(spark):
    """Return a session with lookup tables, and one of Spark's with views of the same rows."""
    ours, theirs = spark.newSession(), spark.newSession()
    session = LookupSession(ours)
    for name, (schema, rows) in ROWS.items():
        frame = theirs.createDataFrame(rows, schema).coalesce(1)
        frame = frame.selectExpr("*", "upper(name) AS label") if name == "cust" else frame
        frame.createOrReplaceTempView(name)
        if name in ("o", "t"):
            ours.createDataFrame(rows, schema).coalesce(1).createOrReplaceTempView(name)
        else:
            table = ours.createDataFrame(rows, schema).toArrow()
            session.register_table(LookupTable(name, schema, {"connector": "sources:Memory", **options_of(table)}))
    options = ", ".join(
        f"'{key}' = '{value}'" for key, value in session._setting.catalog.tables["cust"].table.options.items()
    )
    session.sql(f"CREATE OR REPLACE TABLE cust ({ROWS['cust'][0]}, label AS upper(name)) WITH ({options})")
    return session, theirs


def test_drawn_statements_give_what_spark_gives(worlds):
    session, theirs = worlds
    refused, pairs, wrong = Counter(), {}, {}
    for seed in range(CASES):
        drawn = Drawing(seed).statement()
        with_settings(session.spark, theirs, drawn.settings)
        ours, expected = result_of(session, drawn.lookup), result_of(theirs, drawn.plain)
        both_refuse = isinstance(ours, str) and isinstance(expected, str)
        if both_refuse:
            refused["by both"] += 1
        elif isinstance(ours, str):
            refused[ours.splitlines()[0]] += 1
        elif isinstance(expected, str):
            wrong[seed] = f"Spark refuses: {expected}"
        elif ours.dtypes != expected.dtypes:
            wrong[seed] = f"{ours.dtypes} in place of {expected.dtypes}"
        else:
            pairs[seed] = ours, expected, drawn.ordered_by
    with_settings(session.spark, theirs, dict.fromkeys(SETTINGS))
    wrong |= different(pairs)
    told = {seed: (why, Drawing(seed).statement()) for seed, why in wrong.items()}
    assert not told, "\n\n".join(
        f"{seed}: {why}\n{drawn.lookup!r} {drawn.settings}" for seed, (why, drawn) in told.items()
    )
    ours_alone = sum(refused.values()) - refused["by both"]
    assert ours_alone <= 0.03 * CASES, refused
    assert refused["by both"] < 0.3 * CASES, refused


def with_settings(ours, theirs, settings):
    for session in (ours, theirs):
        for name, value in settings.items():
            session.conf.unset(name) if value is None else session.conf.set(name, value)


def result_of(session, text):
    """Return a DataFrame, or the text of the error."""
    try:
        return session.sql(text)
    except (LookupCacheError, PySparkException) as error:
        return str(error)


def different(pairs):
    """Return the numbers of statements whose rows differ, with what differs."""
    found = {}
    for start in range(0, len(pairs), AT_ONCE):
        part = dict(list(pairs.items())[start : start + AT_ONCE])
        rows = [read(part, side) for side in (0, 1)]
        for seed in part:
            if rows[0][seed] != rows[1][seed]:
                found[seed] = f"{rows[0][seed]} in place of {rows[1][seed]}"
    return found


def read(pairs, side):
    """Read the rows of some statements in one job."""
    marked = [numbered(seed, pair[side], pair[2]) for seed, pair in pairs.items()]
    rows = {seed: (Counter(), []) for seed in pairs}
    for row in sorted(once(united(marked)), key=lambda row: row.at) if marked else ():
        rows[row.seed][0][row.row] += 1
        rows[row.seed][1].append(row.key)
    return rows


def numbered(seed, df, ordered_by):
    """Return the rows as JSON, with their order where they are ordered: their numbers and the column of ORDER BY."""
    key = df.columns.index(ordered_by) if df.columns.count(ordered_by) == 1 else None
    order = ("0", "''") if key is None else ("monotonically_increasing_id()", f"string(c{key})")
    renamed = df.toDF(*(f"c{n}" for n in range(len(df.columns))))
    return renamed.selectExpr(f"{seed} AS seed", "to_json(struct(*)) AS row", f"{order[0]} AS at", f"{order[1]} AS key")
