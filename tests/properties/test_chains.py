"""Chains of one to four lookups, drawn, against Spark's own joins over the same rows; with and without fusion.

``LOOKUPCACHE_CASES`` says how many, an eighth of it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812
from sources import Rows, RowsLater, RowsOfMany

from lookupcache import LookupJoin, LookupTable
from lookupcache.schema import parse_ddl

pytestmark = pytest.mark.spark

CASES = max(int(os.environ.get("LOOKUPCACHE_CASES", "150")) // 8, 15)
FIRST = int(os.environ.get("LOOKUPCACHE_FIRST_CASE", "0"))

TYPES = {"t0": ("BIGINT", "INT"), "t1": ("INT", "STRING"), "t2": ("STRING", "BIGINT"), "t3": ("BIGINT", "BIGINT")}
"""For each table the types of its key and of its column ``f``, which a later table's key may be joined with."""

OPTIONS = [
    {"lookup.cache": "LRU"},
    {"lookup.cache": "NONE", "lookup.form": "worker"},
    {"lookup.cache": "LRU", "lookup.cache.max-rows": 2},
    {"lookup.cache": "TTL", "lookup.cache.expire-after-write": "1 h", "lookup.age-column": "age{}"},
    {"lookup.cache": "LRU", "lookup.on-error": "null", "lookup.error-column": "error{}"},
    {"lookup.cache": "LRU", "lookup.batch.max-size": 3, "lookup.async.capacity": 2},
    {"lookup.cache": "LRU", "lookup.metrics": "off"},
]


def values(draw: random.Random, type_: str, count: int) -> list:
    pool = ["a", "b", "1", "2", "", None] if type_ == "STRING" else [0, 1, 2, 3, -1, None]
    return [draw.choice(pool) for _ in range(count)]


@dataclass
class Chain:
    """The joins of a case, as functions from a left DataFrame to the result: ours, and Spark's own."""

    spark: object
    draw: random.Random
    tables: dict[str, object]
    fuse: str
    fused: int = 0

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
                           " AND w > 0"])  # fmt: skip
        how = draw.choice(["left", "left", "inner", "inner", "semi", "anti"])
        right = [f"{name}.f AS f{number}", f"{name}.v AS v{number}"] if how in ("left", "inner") else []
        kept = [c for c in own.columns if c in ("w", column) or draw.random() < 0.8]
        draw.shuffle(right)
        select = [*(f"left.{c}" for c in kept), *right]
        marks = {k: str(v).format(number) for k, v in draw.choice(OPTIONS).items()}
        join = LookupJoin(ours, self.tables[name][0], on, how, select, options={**marks, "lookup.fuse": self.fuse})
        self.fused += "in one Python stage with" in join.explain()
        result = join.df.select(*join.df.columns[: len(select)])
        sides = own.alias("left").join(self.tables[name][1].alias(name), F.expr(on), how)
        return result, sides.selectExpr(*select)

    @staticmethod
    def fits(kind: str, key_type: str) -> bool:
        return (kind == "string") == (key_type == "STRING") and kind in ("string", "int", "bigint", "smallint")


@pytest.fixture(scope="module")
def tables(spark):
    """Return each lookup table with a DataFrame of the same rows."""
    draw, kinds, found = random.Random(7), [Rows, RowsLater, RowsOfMany, Rows], {}
    for (name, (key, other)), kind in zip(TYPES.items(), kinds, strict=True):
        count = 9
        rows = list(zip(values(draw, key, count), values(draw, other, count), values(draw, "INT", count), strict=True))
        ddl = f"id {key}, f {other}, v INT"
        own = spark.createDataFrame(rows, ddl)
        columns = zip(parse_ddl(ddl), zip(*rows, strict=True), strict=True)
        source = kind(pa.table({field.name: pa.array(column, field.type) for field, column in columns}))
        batch = kind is RowsOfMany
        table = LookupTable.from_function(name, ddl, key=["id"], function=source, batch=batch)
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
        counts["cases"] += 1
        counts["fused"] += chain.fused
        ours, own = (Counter(map(tuple, df.collect())) for df in pair)
        if ours != own or pair[0].dtypes != pair[1].dtypes:
            wrong.append((number, ours - own, own - ours, pair[0].dtypes, pair[1].dtypes))
    return counts, wrong


def test_every_chain_is_sparks_own(outcomes):
    assert outcomes[1] == []


def test_many_joins_are_fused(outcomes):
    assert outcomes[0]["fused"] >= outcomes[0]["cases"] / 4
