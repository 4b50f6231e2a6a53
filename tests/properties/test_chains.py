"""Chains of one to four lookups, drawn, against Spark's own joins over the same rows; with and without fusion.

Between the joins rows are filtered, and columns computed, renamed, swapped and dropped; results are persisted, put
together with themselves, numbered, read by SQL over a view, and given hints, checkpoints and random columns, and ANSI
mode is switched; the same table may stand there twice.

``LOOKUPCACHE_CASES`` says how many, a fifteenth of it, ``LOOKUPCACHE_FIRST_CASE`` the number of the first.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812
from sources import Rows, RowsLater, RowsOfMany, options_of
from test_properties import FIRST

from lookupcache import LookupJoin, LookupTable
from lookupcache.schema import parse_ddl

pytestmark = pytest.mark.spark

CASES = max(int(os.environ.get("LOOKUPCACHE_CASES", "150")) // 15, 10)

TYPES = {
    "t0": ("BIGINT", "INT"),
    "t1": ("INT", "STRING"),
    "t2": ("STRING", "BIGINT"),
    "t3": ("BIGINT", "BIGINT"),
    "t4": ("INT", "BOOLEAN"),
}
"""For each table the types of its key and of its column ``f``, which a later table's key may be joined with."""

ANSI = "spark.sql.ansi.enabled"

OPTIONS = [
    {"lookup.cache": "LRU"},
    {"lookup.cache": "NONE", "lookup.form": "worker"},
    {"lookup.cache": "LRU", "lookup.cache.max-rows": 2},
    {"lookup.cache": "TTL", "lookup.cache.expire-after-write": "1 h", "lookup.age-column": "age{}"},
    {"lookup.cache": "LRU", "lookup.on-error": "null", "lookup.error-column": "error{}"},
    {"lookup.cache": "LRU", "lookup.batch.max-size": 3, "lookup.async.capacity": 2},
    {"lookup.cache": "LRU", "lookup.metrics": "off"},
    {"lookup.cache": "LRU"},
    {"lookup.cache": "LRU", "lookup.form": "distinct"},
    {"lookup.cache": "ALL"},
]

CONDITIONS = {
    "int": [
        "{0} > 0", "{0} IS NOT NULL", "NOT {0} <=> {1}", "{0} + 1 > {1}", "{0} IN (1, 2, NULL)", "abs({0}) < 3",
        "{0} BETWEEN 0 AND 2 OR {1} IS NULL", "hash({0}, {1}) % 2 = 0", "coalesce({0}, {1}, 1) <> 0", "{0} * 1.5 < 4",
    ],
    "boolean": ["{0}", "NOT {0}", "{0} OR {1}", "coalesce({0}, {1})", "{0} IS NOT TRUE", "{0} <=> {1}"],
    "string": ["{0} <> ''", "{0} LIKE '1%'", "length({0}) = 1 OR {0} IS NULL", "{0} IN ('a', '1')", "{0} >= {1}",
               "crc32(to_json(({0}, 1))) % 2 = 0"],
}  # fmt: skip
VALUES = {
    "int": ["{0} + 1", "coalesce({0}, 2)", "CASE WHEN {0} > 0 THEN {1} ELSE {0} END", "abs({0})", "CAST({0} AS BIGINT)",
            "if({0} IS NULL, 1, {0})", "crc32(to_json(struct({0}, {1})))",
            "TRY_CAST({0} AS SMALLINT)"],
    "boolean": ["NOT {0}", "CAST({0} AS INT)", "if({0}, 1, 2)", "coalesce({0}, false)"],
    "string": ["concat({0}, '1')", "coalesce({0}, 'a')", "upper({0})", "if({0} = {1}, {0}, '1')", "concat({0}, {1})"],
}  # fmt: skip
"""Filters and computed columns over columns of the same type: some for Spark alone, some for the worker too."""


def values(draw: random.Random, type_: str, count: int) -> list:
    pool = {"STRING": ["a", "b", "1", "2", "", None], "BOOLEAN": [True, False, None]}.get(type_, [0, 1, 2, 3, -1, None])
    return [draw.choice(pool) for _ in range(count)]


def through_view(df, name: str, operands: list[str]):
    """Return what SQL reads from a view that another query replaces then."""
    df.createOrReplaceTempView("between_joins")
    found = df.sparkSession.sql("FROM between_joins |> WHERE true |> AS j")
    df.sparkSession.range(1).createOrReplaceTempView("between_joins")
    return found


def swapped(df, name: str, operands: list[str]):
    """Return the rows with the values of two columns of the same type exchanged."""
    one, other = operands
    return df.withColumns({one: F.col(other), other: F.col(one)}) if "w" not in operands else df


APART = {
    "hint": lambda df, name, operands: df.hint("rebalance").hint("broadcast"),
    "view": through_view,
    "swap": swapped,
    "rank": lambda df, name, operands: df.withColumn(name, F.row_number().over(Window.orderBy(*sorted(df.columns)))),
    # The value is the same each time, which Spark does not know.
    "random": lambda df, name, operands: df.withColumn(name, F.floor(F.rand()).cast("bigint") + 2),
    "one partition": lambda df, name, operands: df.coalesce(1).sortWithinPartitions(*operands),
    "checkpoint": lambda df, name, operands: df.localCheckpoint(eager=False),
}
"""Steps for both sides: most end a Python stage. They get a name for a new column, and two columns."""


@dataclass
class Chain:
    """The joins of a case, as functions from a left DataFrame to the result: ours, and Spark's own."""

    spark: object
    draw: random.Random
    tables: dict[str, object]
    fuse: str
    fused: int = 0
    between: int = 0

    def select(self, pair, number: int):
        """Return both sides with a filter, a computed column, a new name, or nothing of these."""
        draw, (_, own) = self.draw, pair
        kind = draw.choice(["int", "int", "string", "boolean"])
        names = [name for name, type_ in own.dtypes if self.kind_of(type_) == kind and name[0] in "kfvw"]
        if not names:
            return pair
        operands = [draw.choice(names), draw.choice(names)]
        step = draw.choice(
            [*["filter", "column"] * 6, *["rename", "drop"] * 3, "star", "names", "union", "persist", "ansi", *APART]
        )
        self.between += 1
        if step == "star":
            return tuple(df.alias("j").select(F.lit(7).cast("bigint").alias(f"k{number}s"), "j.*") for df in pair)
        if step == "names":
            return tuple(df.toDF(*(c if c == "w" else f"{c}n" for c in own.columns)) for df in pair)
        if step == "union":
            return tuple(df.union(df) for df in pair)
        if step == "persist":
            return pair[0].persist(), own
        if step == "ansi":
            self.spark.conf.set(ANSI, draw.choice(["true", "false"]))
            return pair
        if step in APART:
            return tuple(APART[step](df, f"k{number}{step[0]}", operands) for df in pair)
        if step == "filter":
            condition = draw.choice(CONDITIONS[kind]).format(*operands)
            return tuple(df.where(condition) for df in pair)
        if step == "column":
            name, sql = draw.choice([f"k{number}c", operands[0]]), draw.choice(VALUES[kind]).format(*operands)
            return tuple(df.withColumn(name, F.expr(sql)) for df in pair) if name != "w" else pair
        if step == "rename":
            return (
                tuple(df.withColumnRenamed(operands[0], f"k{number}r") for df in pair) if operands[0] != "w" else pair
            )
        return tuple(df.drop(operands[0]) for df in pair) if operands[0] != "w" and len(own.columns) > 3 else pair

    def run(self, left, number: int):
        """Add the lookup with this number to both sides; ``left`` is a pair of ours and Spark's own."""
        ours, own = left
        draw = self.draw
        name = draw.choice(list(TYPES))
        key_type, _ = TYPES[name]
        kinds = dict(own.dtypes)
        joinable = [c for c in own.columns if c[0] in "kf" and self.fits(kinds[c], key_type)]
        if not joinable:
            return None
        column = draw.choice(joinable)
        on = f"{column} = {name}.id"
        if draw.random() < 0.2 and kinds[column] != "string":
            on = f"abs({column}) = {name}.id"
        on += draw.choice(["", "", f" AND {name}.v > 1", f" AND {name}.v >= w", f" AND hash({name}.v, w) > 0",
                           f" AND crc32(to_json(struct({column}, {name}.v))) % 2 = 0", " AND w > 0"])  # fmt: skip
        how = draw.choice(["left", "left", "inner", "inner", "semi", "anti"])
        right = [f"{name}.f AS f{number}", f"{name}.v AS v{number}"] if how in ("left", "inner") else []
        kept = [c for c in own.columns if c in ("w", column) or draw.random() < 0.8]
        draw.shuffle(right)
        select = [*(f"left.{c}" for c in kept), *right]
        sides = own.alias("left")
        if draw.random() < 0.15:  # a left side of two relations, of which the star of one is selected
            other = self.spark.range(1).selectExpr("1 AS u").alias("t")
            ours, sides = (df.alias("s").crossJoin(other) for df in left)
            select = ["s.*", *right]
        marks = {k: str(v).format(number) for k, v in draw.choice(OPTIONS).items()}
        if marks["lookup.cache"] == "ALL" and self.tables[name][0].connector_name == "function":
            marks["lookup.cache"] = "LRU"
        join = LookupJoin(ours, self.tables[name][0], on, how, select, options={**marks, "lookup.fuse": self.fuse})
        self.fused += "in one Python stage with" in join.explain()
        result = join.df.drop(f"age{number}", f"error{number}")
        sides = sides.join(self.tables[name][1].alias(name), F.expr(on), how)
        return result, sides.selectExpr(*select)

    @staticmethod
    def kind_of(type_: str) -> str:
        return type_ if type_ in ("string", "boolean") else "int"

    @staticmethod
    def fits(kind: str, key_type: str) -> bool:
        return (kind == "string") == (key_type == "STRING") and kind in ("string", "int", "bigint", "smallint")


@pytest.fixture(scope="module")
def tables(spark):
    """Return each lookup table with a DataFrame of the same rows."""
    draw, kinds, found = random.Random(7), [Rows, RowsLater, RowsOfMany, Rows, RowsLater], {}
    for (name, (key, other)), kind in zip(TYPES.items(), kinds, strict=True):
        count = 9
        rows = list(zip(values(draw, key, count), values(draw, other, count), values(draw, "INT", count), strict=True))
        ddl = f"id {key}, f {other}, v INT"
        own = spark.createDataFrame(rows, ddl)
        columns = zip(parse_ddl(ddl), zip(*rows, strict=True), strict=True)
        source = kind(pa.table({field.name: pa.array(column, field.type) for field, column in columns}))
        batch = kind is RowsOfMany
        table = LookupTable.from_function(name, ddl, key=["id"], function=source, batch=batch)
        if name == "t3":
            table = LookupTable(name, ddl, {"connector": "sources:Memory", **options_of(own.toArrow())})
        found[name] = (table, own)
    return found


def left_side(spark, draw: random.Random):
    count = draw.choice([0, 1, 20])
    columns = {"k0": "BIGINT", "k1": "INT", "k2": "STRING", "k3": "SMALLINT"}
    data = [values(draw, type_, count) for type_ in columns.values()]
    rows = list(zip(*data, values(draw, "INT", count), strict=True)) if count else []
    ddl = ", ".join(f"{name} {type_}" for name, type_ in columns.items()) + ", w INT"
    return spark.createDataFrame(rows, ddl).repartition(draw.choice([1, 2]))


@pytest.fixture(scope="module")
def outcomes(spark, tables):
    """Run all cases; return what was fused, refused and different."""
    counts: Counter[str] = Counter()
    wrong = []
    for number in range(FIRST, FIRST + CASES):
        draw = random.Random(number)
        chain = Chain(spark, draw, tables, draw.choice(["auto", "auto", "auto", "off"]))
        left = left_side(spark, draw)
        pair = (left, left)
        for join in range(draw.randint(1, 4)):
            following = chain.run(pair, join)
            pair = following or pair
            for step in range(draw.choice([0, 0, 1, 2])):
                pair = chain.select(pair, 10 * join + step)
        counts["cases"] += 1
        counts["fused"] += chain.fused
        counts["between"] += chain.between
        ours, own = (Counter(map(tuple, df.collect())) for df in pair)
        if ours != own or pair[0].dtypes != pair[1].dtypes:
            wrong.append((number, ours - own, own - ours, pair[0].dtypes, pair[1].dtypes))
        spark.conf.set(ANSI, "true")
        spark.catalog.clearCache()
    return counts, wrong


def test_every_chain_is_sparks_own(outcomes, capsys):
    with capsys.disabled():
        print(f"\n{CASES} chains from number {FIRST} on: {dict(outcomes[0])}")
    assert outcomes[1] == []


def test_many_joins_are_fused(outcomes):
    assert outcomes[0]["fused"] >= outcomes[0]["cases"] / 5
    assert outcomes[0]["between"] >= outcomes[0]["cases"] / 5
