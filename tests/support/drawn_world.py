"""The tables of drawn statements: lookup tables in a session, and as views with the same rows for Spark's own joins."""

from __future__ import annotations

from collections import Counter

from sources import options_of
from sql_world import once, united
from test_sql_generated import ROWS

from lookupcache import LookupSession, LookupTable

AT_ONCE = 15


def make_worlds(spark):
    """Return a session with lookup tables, and one of Spark's with views of the same rows."""
    ours, theirs = make_views(spark)
    session = LookupSession(ours)
    for name in ("cust", "many"):
        schema, rows = ROWS[name]
        table = ours.createDataFrame(rows, schema).toArrow()
        session.register_table(LookupTable(name, schema, {"connector": "sources:Memory", **options_of(table)}))
    options = ", ".join(
        f"'{key}' = '{value}'" for key, value in session._setting.catalog.tables["cust"].table.options.items()
    )
    session.sql(f"CREATE OR REPLACE TABLE cust ({ROWS['cust'][0]}, label AS upper(name)) WITH ({options})")
    return session, theirs


def make_views(spark):
    """Return two sessions of Spark's with views: one of the left sides, and one of all tables."""
    ours, theirs = spark.newSession(), spark.newSession()
    for name, (schema, rows) in ROWS.items():
        frame = theirs.createDataFrame(rows, schema).coalesce(1)
        frame = frame.selectExpr("*", "upper(name) AS label") if name == "cust" else frame
        frame.createOrReplaceTempView(name)
        if name in ("o", "t"):
            ours.createDataFrame(rows, schema).coalesce(1).createOrReplaceTempView(name)
    return ours, theirs


def with_settings(ours, theirs, settings):
    for session in (ours, theirs):
        for name, value in settings.items():
            session.conf.unset(name) if value is None else session.conf.set(name, value)


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
    marked = [
        pair[side].toDF(*(f"c{n}" for n in range(len(pair[side].columns)))).selectExpr(
            f"{seed} AS seed", "to_json(struct(*)) AS row"
        )
        for seed, pair in pairs.items()
    ]  # fmt: skip
    rows = {seed: Counter() for seed in pairs}
    for row in once(united(marked)) if marked else ():
        rows[row.seed][row.row] += 1
    return rows
