"""Under each session setting that may give a condition another meaning, joins are Spark's own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cases import ALLOWED
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F  # noqa: N812
from session_settings import MEANING
from sources import options_of

from lookupcache import LookupJoin, LookupTable, PlanError, expr
from lookupcache.plan import LookupPlan
from lookupcache.planner import substitute
from lookupcache.planner.constant_keys import literal_sql
from lookupcache.spark.forms.join_context import conjunction

pytestmark = pytest.mark.spark

CONDITIONS = [
    r"c.s = 'a\\b'", r"c.s > 'a\\'", r"c.s IN ('a\\b', 'x')", r"c.s LIKE 'a\\%'", r"c.s = r'a\b'", r"c.s = 'it\'s'",
    "c.s = 'it''s'", "c.s > 'it''s'", 'c.s = "s"', 'c.s > "s"', '"o"."n" = c."n"', "c.s = '${spark.app.name}'",
    "c.s > '${spark.app.name}'", "c.m = 1e0", "c.m > 1e0", "c.n < 1e0", "c.m = 1", "c.m > 1", "c.w = 1", "c.w > 1",
    "c.n IN (0, 1e0)", "c.n BETWEEN 0 AND 1.5", "c.n + 1 > 1", "o.n = c.n", "o.n = c.m", "o.h = c.f", "c.f = 0.1",
    "c.f > 0.1", "c.f = 1.5F", "c.ts = TIMESTAMP '2020-01-01 00:00:00'", "c.ts > TIMESTAMP '2020-01-01 00:00:00'",
    "c.ts > CAST('2020-01-01 00:00:00+02:00' AS TIMESTAMP)", "c.ts > TIMESTAMP '2020-01-01 00:00:00+02:00'",
    "c.tn = TIMESTAMP '2020-01-01 00:00:00'", "c.ts > '2020-01-01'", "c.ts = '2020-01-01'", "c.tn >= '2020-01-01'",
    "c.d = '2020-1-1'", "c.d > '2020-01-01'", "c.d = 'epoch'", "c.d > 'epoch'", "o.d = c.ts", "o.d = c.tn",
    "o.d = c.d", "o.ts = c.d", "o.ts = c.ts", "o.ts = c.tn", "c.ts > o.d", "user = 'a'", "USER = 'a'",
    "C.S = 'a'", "c.S > 'a'", "c.s || o.s = 'aa'", "c.b = X'61'", "c.b > X'61'", "NULL", "c.s <=> NULL", "c.s IN ('a')",
    "CAST(c.n AS STRING) = '1'", "c.n = CAST('1' AS INT)", "c.s = 'a' 'b'", "c.s ! IN ('a')", "c.n !> 1",
    "CAST(c.s AS VARCHAR(9)) = 'a'", "c.s = CAST('ab' AS CHAR(9))", "c.bo = o.bo IS NULL", "`c`.`n` = `o`.`n`",
    "c.s = r'it''s'", "c.s > 'a' r'b'", "c.s IN ('b', 'a' r'\\' 'b')",
]  # fmt: skip
COLUMNS = (
    "id BIGINT, s STRING, n INT, h SMALLINT, m DECIMAL(10,2), w DECIMAL(38,18), f FLOAT, d DATE, ts TIMESTAMP, "
    "tn TIMESTAMP_NTZ, b BINARY, bo BOOLEAN"
)
DAYS = [dt.datetime.fromisoformat(day) for day in ("2020-01-01", "1970-01-01", "2020-06-01", "2019-12-31")]
ROWS = [
    (None,) * 12,
    *(
        (1, text, n, n, Decimal(n), Decimal(f), f, day.date(), day.replace(tzinfo=dt.UTC), day, binary, n > 1)
        for text, n, f, day, binary in [
            ("a\\b", 1, 1.5, DAYS[0], b"a"), ("a\\\\b", 0, 0.0, DAYS[1], b""), ("it's", 2, 10.0, DAYS[2], b"b"),
            ("its", 10, 0.1, DAYS[3], b"a"), ("a", 1, 1.0, DAYS[0], b"aa"), ("ab", 0, -1.0, DAYS[0], b"a"),
        ]
    ),
]  # fmt: skip


@contextmanager
def set_to(spark: Any, values: dict[str, str]) -> Iterator[None]:
    """Run with some settings changed."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.fixture(scope="module")
def sides(spark: Any) -> tuple[Any, Any]:
    """Return rows for either side."""
    right = spark.createDataFrame(ROWS, COLUMNS.replace("TIMESTAMP,", "TIMESTAMP_LTZ,"))
    return right.withColumn("user", F.lit("a")), right


def lookup_table(arrow: Any) -> LookupTable:
    return LookupTable("c", COLUMNS, {"connector": "sources:Memory", **options_of(arrow)})


def readable(both: Any, condition: str) -> bool:
    """Return whether Spark takes a condition."""
    try:
        both.selectExpr(condition)
    except (AnalysisException, ParseException):
        return False
    return True


def planned(left: Any, table: LookupTable, on: str) -> LookupPlan | str:
    """Return a join's plan, or the error."""
    try:
        return LookupJoin(left, table, on, select=["o.id"]).plan
    except PlanError as error:
        return str(error)


def by_plan(plan: LookupPlan, pairs: pa.Table, by_spark: pa.ChunkedArray) -> list[bool]:
    """Return for which pairs of rows a plan's condition is true; ``by_spark`` says what Spark evaluates of it."""
    kept = np.array(by_spark.fill_null(False)) & (not plan.never)
    for part in (*plan.pushed, *plan.calc, *plan.residual):
        found = expr.evaluate(part, lambda column: pairs.column(f"{column.side[0]}_{column.name}"))
        kept &= bool(found.as_py()) if isinstance(found, pa.Scalar) else np.array(found.fill_null(False))
    return kept.tolist()


def sql_of(plan: LookupPlan) -> str:
    """Return what is Spark's of a plan's condition, as SQL over both sides."""
    keys = [f"({key.sql}) = r.`{key.column}`" for key in plan.keys]
    constants = [f"r.`{constant.column}` = {literal_sql(constant.value)}" for constant in plan.constants]
    whole = conjunction([*keys, *constants, *plan.pre_filter, *plan.spark_residual])
    return substitute(whole, lambda side, name: f"{'o' if side == 'l' else 'c'}.{name}")


GROUPS = 4
"""How many sessions the settings share, to save time."""


@pytest.mark.nightly(keep_one_in=2)
@pytest.mark.extended(keep_one_in=4)
@pytest.mark.parametrize(
    ("group", "ansi"),
    [(group, ["true", "false"][(group + turn) % 2]) for group in range(GROUPS) for turn in (0, 1)],
)
def test_a_condition_means_what_it_means_to_spark(spark: Any, sides: tuple[Any, Any], group: int, ansi: str) -> None:
    left, right = sides
    table = lookup_table(right.toArrow())
    both = left.alias("o").crossJoin(right.alias("c"))
    pairs = [f"{side}.{column} AS {at}_{column}" for side, at in (("o", "l"), ("c", "r")) for column in right.columns]
    values = {name: MEANING[name] for name in list(MEANING)[group::GROUPS]} | {"spark.sql.ansi.enabled": ansi}
    with set_to(spark, values):
        taken = [condition for condition in CONDITIONS if readable(both, f"o.id = c.id AND {condition}")]
        found_plans = {condition: planned(left, table, f"o.id = c.id AND {condition}") for condition in taken}
        plans = {condition: plan for condition, plan in found_plans.items() if isinstance(plan, LookupPlan)}
        theirs = [f"o.id = c.id AND {condition} AS t{n}" for n, condition in enumerate(plans)]
        ours = [f"{sql_of(plan)} AS p{n}" for n, plan in enumerate(plans.values())]
        found = both.selectExpr(*pairs, *theirs, *ours).toArrow()
    refused = {condition: plan for condition, plan in found_plans.items() if isinstance(plan, str)}
    assert {condition: why for condition, why in refused.items() if not ALLOWED.search(why)} == {}
    assert len(plans) > 40
    for n, (condition, plan) in enumerate(plans.items()):
        wanted = found.column(f"t{n}").fill_null(False).to_pylist()
        assert by_plan(plan, found, found.column(f"p{n}")) == wanted, (condition, plan.conjuncts)


def test_all_of_them_are_sparks(spark: Any) -> None:
    known = spark._jvm.java.lang.Class.forName("org.apache.spark.sql.internal.SQLConf$").getField("MODULE$").get(None)
    assert [name for name in MEANING if not known.containsConfigKey(name)] == []
