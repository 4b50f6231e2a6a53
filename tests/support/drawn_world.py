"""The tables of drawn statements: lookup tables in a session, and as views with the same rows for Spark's own joins."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from sources import options_of
from sql_statements import SETTINGS, VIEW_OF, Drawing
from sql_world import read_once, union_all

from lookupcache import LookupCacheError, LookupSession, LookupTable
from lookupcache.schema import parse_ddl, quote

AT_ONCE = 30
NULLS = "map('ignoreNullFields', 'false')"
"""Columns of one name stay apart in JSON only if none is left out."""


def struct(number, name):
    return {"id": number, "name": name}


ROWS = {
    "o": ("id INT, k BIGINT, name STRING, s STRUCT<id: INT, name: STRING>, v STRING",
          [(1, 1, "a", struct(1, "a"), "a"), (2, 2, "b", struct(3, None), "-- a"), (3, None, None, None, "z"),
           (4, 9, "A", struct(2, "b"), None), (2, 1, "/* b", struct(1, "x"), "b")]),
    "t": ("id INT, k BIGINT, name STRING, c STRING", [(1, 2, "a", "x"), (2, 1, None, "a"), (5, None, "b", "b")]),
    "cust": ("id BIGINT, k INT, name STRING, c STRING", [(1, 1, "a", "b"), (2, 3, "b", None), (3, None, None, "a")]),
    "many": ("id BIGINT, k INT, name STRING, s STRUCT<id: INT, name: STRING>",
             [(1, 1, "a", struct(1, "a")), (1, 2, "b", None), (2, 2, None, struct(2, "q")),
              (4, 1, "x", struct(None, "a"))]),
    "odd": ("lookup_1 INT, id INT, lookup_x0_0 INT, lookup_2 STRING, k BIGINT", [(7, 1, 8, "a", 2), (2, 2, 2, "b", 1)]),
}  # fmt: skip
LEFT = ("o", "t", "odd")
"""The left sides; columns of the last have names that a rewritten statement may have."""
SCANNED = {"cust_all": "cust", "many_all": "many"}
"""Tables with the rows of others that are read completely where they cannot be looked up."""
SMALL = {"spark.sql.shuffle.partitions": "1", "spark.sql.leafNodeDefaultParallelism": "1",
         "spark.sql.autoBroadcastJoinThreshold": "-1"}  # fmt: skip
"""Settings for few rows: one task for each stage, and no job of its own for one side of a join."""
VARIABLES = {"var_n": "INT DEFAULT 2", "k": "BIGINT DEFAULT 1", "text": "STRING DEFAULT 'a'"}
"""Session variables; a column of the same name comes first."""


def table_of(name):
    """Return the rows of a table."""
    schema, rows = ROWS[name]
    types = pa.schema(parse_ddl(schema))
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(values, field.type) for values, field in zip(columns, types, strict=True)], types)


def make_worlds(spark):
    """Return a session with lookup tables, and one of Spark's with views of the same rows."""
    ours, theirs = make_views(spark)
    session = LookupSession(ours)
    for name in ("cust", "many"):
        options = {"connector": "sources:Memory", **options_of(table_of(name))}
        session.register_table(LookupTable(name, ROWS[name][0], options))
    options = ", ".join(
        f"'{key}' = '{value}'" for key, value in session._context.catalog.tables["cust"].table.options.items()
    )
    session.sql(f"CREATE OR REPLACE TABLE cust ({ROWS['cust'][0]}, label AS upper(name)) WITH ({options})")
    for name, like in SCANNED.items():
        session.sql(f"CREATE OR REPLACE TABLE {name} WITH ('lookup.full-scan' = 'true') LIKE {like}")
    for name, query in VIEW_OF.items():
        for one in (session, theirs):
            one.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}")
    return session, theirs


def make_views(spark):
    """Return two sessions of Spark's with views: one of the left sides, and one of all tables."""
    ours, theirs = spark.newSession(), spark.newSession()
    with_settings(ours, theirs, SMALL)
    for session in (ours, theirs):
        for name, type_ in VARIABLES.items():
            session.sql(f"DECLARE OR REPLACE VARIABLE {name} {type_}")
    for name, (schema, _) in ROWS.items():
        # From Arrow, so that Spark has the rows itself, and needs no Python to read them.
        frame = theirs.createDataFrame(table_of(name), schema).coalesce(1)
        frame = frame.selectExpr("*", "upper(name) AS label") if name == "cust" else frame
        frame.createOrReplaceTempView(name)
        if name in LEFT:
            ours.createDataFrame(table_of(name), schema).coalesce(1).createOrReplaceTempView(name)
    for name, like in SCANNED.items():
        theirs.table(like).createOrReplaceTempView(name)
    return ours, theirs


def with_settings(ours, theirs, settings):
    for session in (ours, theirs):
        for name, value in settings.items():
            session.conf.unset(name) if value is None else session.conf.set(name, value)


@dataclass
class Comparison:
    """What the comparison of drawn statements found: refused ones by reason, and wrong ones by their number."""

    refused: Counter = field(default_factory=Counter)
    wrong: dict = field(default_factory=dict)
    failed_in_spark: dict = field(default_factory=dict)
    """Statements whose plain form ends in an internal error of Spark, so that there are no rows to compare."""
    drawn: int = 0

    def __iadd__(self, other):
        self.refused += other.refused
        self.wrong |= other.wrong
        self.failed_in_spark |= other.failed_in_spark
        self.drawn += other.drawn
        return self

    @property
    def by_ours_alone(self):
        """The number of statements that only the session with lookups refuses."""
        return sum(self.refused.values()) - self.refused["by both"]

    def counts(self):
        """Return the counts as a line of the nightly report."""
        kinds = ", ".join(f"{count} {reason!r}" for reason, count in self.refused.most_common())
        failed = f", internal errors of Spark: {sorted(self.failed_in_spark)}" if self.failed_in_spark else ""
        return f"{self.drawn} statements: {len(self.wrong)} different, refused: {kinds or 'none'}{failed}"

    def report(self):
        """Return the wrong statements, with what is wrong."""
        texts = {seed: Drawing(seed).statement() for seed in self.wrong}
        return "\n\n".join(
            f"{seed}: {why}\n{texts[seed].lookup!r} {texts[seed].settings}" for seed, why in self.wrong.items()
        )


def compare_drawn(session, theirs, seeds):
    """Compare the statements of these seeds in both worlds: columns and types first, then the rows of many at once.

    Statements with the same settings are compared together: Spark Connect resolves names when a query runs.
    """
    found = Comparison()
    for batch in batches(seeds, session.spark, theirs):
        found.drawn += len(batch)
        _compare_batch(session, theirs, batch, found)
    return found


def batches(seeds, *sparks):
    """Yield the statements of some seeds, those with the same settings together, which the sessions have meanwhile."""
    groups = {}
    for seed in seeds:
        drawn = Drawing(seed).statement()
        groups.setdefault(tuple(drawn.settings.items()), []).append((seed, drawn))
    for settings, group in groups.items():
        for spark in sparks:
            with_settings(spark, spark, dict.fromkeys(SETTINGS) | dict(settings))
        for start in range(0, len(group), AT_ONCE):
            yield dict(group[start : start + AT_ONCE])
    for spark in sparks:
        with_settings(spark, spark, dict.fromkeys(SETTINGS))


def _compare_batch(session, theirs, batch, found):
    pairs = {}
    for seed, drawn in batch.items():
        ours, expected = result_of(session, drawn.lookup, drawn.args), result_of(theirs, drawn.plain, drawn.args)
        if isinstance(ours, str) and isinstance(expected, str):
            found.refused["by both"] += 1
        elif isinstance(ours, str):
            found.refused[ours.splitlines()[0]] += 1
        elif isinstance(expected, str):
            found.wrong[seed] = f"Spark refuses: {expected}"
        elif ours.dtypes != expected.dtypes:
            found.wrong[seed] = f"{ours.dtypes} in place of {expected.dtypes}"
        else:
            pairs[seed] = ours, expected, drawn.ordered_by
    for seed, why in different(pairs).items():
        failed = why.endswith("in place of INTERNAL_ERROR")
        (found.failed_in_spark if failed else found.wrong)[seed] = why


def result_of(session, text, args):
    """Return a DataFrame, or the text of the error."""
    try:
        df = session.sql(text, args)
        _ = df.schema  # Spark Connect reports errors here
    except (LookupCacheError, PySparkException) as error:
        return str(error)
    return df


def different(pairs):
    """Return the numbers of statements whose rows, or their order, differ, with what differs.

    Each pair is two DataFrames and the column that orders their rows, or None.
    """
    found = {}
    for start in range(0, len(pairs), AT_ONCE):
        found |= _different(dict(list(pairs.items())[start : start + AT_ONCE]))
    return found


def _different(pairs):
    """Compare in one job; where a statement raises, each half in one, and so on."""
    try:
        rows = [read(pairs, side) for side in (0, 1)]
    except (PySparkException, Py4JJavaError):
        if len(pairs) > 1:
            numbers = list(pairs)
            halves = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
            return {number: why for half in halves for number, why in _different({n: pairs[n] for n in half}).items()}
        rows = [_read_or_raised(pairs, side) for side in (0, 1)]
    return {seed: f"{rows[0][seed]} in place of {rows[1][seed]}" for seed in pairs if rows[0][seed] != rows[1][seed]}


def _read_or_raised(pairs, side):
    """Return the rows of one statement, or for an error what Spark calls it."""
    try:
        return read(pairs, side)
    except (PySparkException, Py4JJavaError) as error:
        condition = re.search(r"\[([A-Z][A-Z_.]+)\]", str(error))
        return dict.fromkeys(pairs, condition[1] if condition else str(error))


def read(pairs, side):
    """Read the rows of some statements in one task: each task would get the plans of all of them."""
    marked = [number_rows(seed, pair[side], pair[2]) for seed, pair in pairs.items()]
    rows = {seed: (Counter(), []) for seed in pairs}
    for row in sorted(read_once(union_all(marked).coalesce(1)), key=lambda row: row.at) if marked else ():
        rows[row.seed][0][row.row] += 1
        rows[row.seed][1].append(row.key)
    return rows


def number_rows(seed, df, ordered_by):
    """Return the rows as JSON, with their order where they are ordered: their numbers and the column of ORDER BY."""
    order = ("0", "''")
    if df.columns.count(ordered_by) == 1:
        order = ("monotonically_increasing_id()", f"string({quote(ordered_by)})")
    row = f"to_json(struct(*), {NULLS}) AS row"
    return df.selectExpr(f"{seed} AS seed", row, f"{order[0]} AS at", f"{order[1]} AS key")
