"""Every two values of the options that Spark's side of a join reads, and of the kinds of joins: rows are Spark's own.

The cases come from a pairwise product of options, conditions, sources, left sides and places in a chain. They are run
as the drawn joins are, several in a job; one group of them by day.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from cases import AGE, ERROR, AsOf, Case, Session, Side
from option_pairs import JOIN, KEYS, NOT_OF_A_JOIN, OF_SPARK, WITHOUT_EFFECT, clash_of
from pairwise import Covering, covering
from pyspark.sql import functions as F  # noqa: N812
from sources import Rows, options_of
from test_properties import Judge, Pair, Verdict, spark_join

from lookupcache import LookupJoin, LookupTable
from lookupcache.config import LookupConfig

pytestmark = pytest.mark.spark

VALUES: dict[str, list[Any]] = {
    **OF_SPARK,
    **WITHOUT_EFFECT,
    **JOIN,
    "scope": ["auto", "worker", "host"],
    "error_column": [None, ERROR],
    "age_column": [None, AGE],
    "as_of_period": [None, "w, y"],
    "as_of_version": [None, "w"],
    "cache": ["LRU", "NONE", "TTL", "ALL"],
    "cache_path": [None, "cache"],
    "store": [None, "store"],
    "store_timeout": [0.2, "1 min"],
    "expire_after_write": [None, "1 h"],
    "max_rows": [None, 2],
    "missing_key": [True, False],
    "async_": [None, True],
    "batch_max_size": [None, 2],
    "on_miss_max_attempts": [0, 1],
    "on_miss_delay": [0],
    "max_retries": [0],
    "source": ["memory", "filtering", "async", "sql", "functions async", "failing"],
    "how": ["left", "inner", "semi", "anti"],
    "more": ["", "o.v >= 1", "t.u <> 'a'", "o.v < t.w", "length(o.s) >= length(t.u)"],
    "select": [None, ("o.s", "o.v % 9"), ("t.u AS text", "o.k0", "o.v % 9 + t.w AS sum"), ("1 AS one",)],
    "where": [None, "o.v IS NULL OR o.v < 2", "t.w IS NULL OR t.w > 0"],
    "chain": ["alone", "first", "second"],
    "spread": ["", "repartition", "persisted"],
}
STRICT = Session(others=(("spark.sql.ansi.enforceReservedKeywords", "true"),))
"""The SQL that is generated for an option must not have a reserved word as a name."""
FAILS = 2
"""The key for which the source ``failing`` raises."""


def clash(case: dict[str, Any]) -> set[str]:
    """Return what contradicts: options, and kinds of joins that there are not."""
    found = clash_of(case)
    is_function = case["source"] in ("functions async", "failing")
    has_right = case["how"] in ("left", "inner")
    contradictions = [
        ({"source", "cache"}, is_function and case["cache"] == "ALL"),
        ({"source", "on_error"}, case["source"] == "failing" and case["on_error"] == "fail"),
        ({"how", "select"}, not has_right and "t." in str(case["select"])),
        ({"how", "where"}, not has_right and "t." in str(case["where"])),
        ({"chain", "select"}, case["chain"] == "first" and case["select"] is not None),
    ]
    return found.union(*(names for names, is_there in contradictions if is_there))


@functools.cache
def covered() -> Covering:
    """Return the cases; to find them takes seconds, which the collection of the tests must not."""
    return covering(VALUES, clash)


GROUPS = 8


def test_the_product_has_every_pair_of_every_option(capsys):
    with capsys.disabled():
        print(f"\nOptions of Spark's side: {covered()}.")
    assert set(NOT_OF_A_JOIN) <= set(VALUES)
    assert all(reasons & set(pair) for pair, reasons in covered().excluded)
    assert covered().pairs > 3_000


@pytest.mark.nightly(keep_one_in=GROUPS)
@pytest.mark.parametrize("group", range(GROUPS))
def test_rows_errors_and_counts_are_right(spark, tmp_path, capsys, group):
    judge = OptionJudge(spark, tmp_path)
    numbers = range(group, len(covered().cases), GROUPS)
    drawn = {number: judge.case_of(number) for number in numbers}
    try:
        judge.judge(list(drawn.values()))
    finally:
        for df in judge.persisted:
            df.unpersist()
    verdicts = {number: judge(case) for number, case in drawn.items()}
    forms = Counter(join.choice.form for join in judge.joins.values())
    with capsys.disabled():
        print(f"\n{len(numbers)} of {len(covered().cases)} cases: {dict(forms)}")
    wrong = {
        number: (verdict.reason, drawn[number]) for number, verdict in verdicts.items() if verdict.word != "joined"
    }
    assert not wrong
    for number, case in drawn.items():
        check_counts(covered().cases[number], case, judge.joins[case.text])


def check_counts(options: dict[str, Any], case: OptionCase, join: LookupJoin) -> None:
    """Compare the counts of a join, and its dead letters, with its left rows."""
    is_counted = options["metrics"] != "off" and case.chain == "alone" and not case.where and case.as_of is None
    failing = sum(row[0] == FAILS for row in case.left.rows) if case.source == "failing" else 0
    if is_counted and not options["more"]:
        metrics = join.metrics()
        expected = len(case.left.rows), failing if options["on_error"] == "null" else 0
        assert (metrics.rows, metrics.failed_rows) == expected, options
    if options["dead_letter_path"] is not None and is_counted and not options["more"]:
        folder = Path(join.plan.config.dead_letter_path)
        found = pyarrow.dataset.dataset(str(folder)).count_rows() if folder.exists() else 0
        assert found == failing, options


# ── the cases ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class OptionCase(Case):
    """A join with its place in a chain of two; ``persisted`` is its left side."""

    chain: str = "alone"
    persisted: bool = False


@dataclass(frozen=True)
class Joined:
    """A DataFrame that has our join in it."""

    join: LookupJoin
    df: Any

    @property
    def plan(self) -> Any:
        return self.join.plan

    def explain(self) -> str:
        return self.join.explain()


class Failing(Rows):
    """Raises for one key."""

    def __call__(self, key):
        if key == FAILS:
            raise ConnectionError("no route")
        return Rows.__call__(self, key)


NAMES = [(1, "a"), (2, "b"), (3, None)]
"""The rows of the other table of a chain, which is joined by ``v``."""


@dataclass
class OptionJudge(Judge):
    """Judges joins with the form that their options name; ``joins`` are ours by the text of their cases."""

    joins: dict[str, LookupJoin] = field(default_factory=dict)
    persisted: list[Any] = field(default_factory=list)

    def case_of(self, number: int) -> OptionCase:
        """Return the join of a case of the product, over rows that depend on its number."""
        values, draw = covered().cases[number], random.Random(number)
        options = {name: value for name, value in values.items() if name in KEYS.values()}
        for name in ("cache_path", "store", "dead_letter_path"):
            if options[name] is not None:
                # Joins may share a cache and a store.
                own = f"letters{number}" if name == "dead_letter_path" else options[name]
                options[name] = str(self.folder / own)
        config = LookupConfig(**options).to_json()
        period, version = (config.pop(f"lookup.as-of.{kind}", None) for kind in ("period", "version"))
        as_of = AsOf("o.v", tuple((period or version).split(", "))) if period or version else None
        pools = [[1, 2, 3, None, 9], [0, 1, 2, None], ["a", "b", "", None], [0, 1, 2, 3, None]]
        return OptionCase(
            left=Side(_LEFT, _rows(draw, pools, 12)),
            right=Side(_RIGHT, _rows(draw, pools, 8)),
            on=" AND ".join(filter(None, ["o.k0 = t.b0", values["more"]])),
            how=values["how"],
            select=values["select"],
            where=values["where"],
            source=values["source"],
            options=tuple(config.items()),
            spread=values["spread"] if values["spread"] != "persisted" else "",
            session=STRICT,
            as_of=as_of,
            chain=values["chain"],
            persisted=values["spread"] == "persisted",
        )

    def planned(self, case: Case) -> Any:
        assert isinstance(case, OptionCase)
        theirs = self.left(case)
        ours = theirs.persist() if case.persisted else theirs
        self.persisted += [ours] if case.persisted else []
        if case.chain == "second":
            ours, theirs = self.with_name(ours), self.with_name_by_spark(theirs)
        join = self.joins[case.text] = self.lookup_join(case, ours, "")
        ours, theirs = join.df, self.of_spark(case, theirs)
        if case.chain == "first":
            ours, theirs = self.with_name(ours), self.with_name_by_spark(theirs)
        ours, theirs = marks_last(ours), marks_last(theirs)
        if ERROR in ours.columns:
            # The message is not compared.
            ours = ours.withColumn(ERROR, F.expr(f"if({ERROR} IS NULL, NULL, named_struct('message', 'failed'))"))
        if (dtypes := ours.drop(AGE, ERROR).dtypes) != theirs.drop(ERROR).dtypes:
            return Verdict("wrong", f"{dtypes} is not {theirs.dtypes}")
        return Pair({"": Joined(join, ours)}, theirs)

    def of_spark(self, case: Case, left: Any) -> Any:
        """Return Spark's join; rows whose lookup fails are those of no match, marked, or none."""
        right = self.spark.createDataFrame(case.right.table(), case.right.ddl)
        if case.source != "failing":
            return spark_join(case, left, right)
        looked_up = ["o.v >= 1"] if "o.v >= 1" in case.on else []
        looked_up += ["o.v IS NOT NULL"] if case.as_of is not None else []
        # A condition of WHERE on the left side alone is applied before the lookup, to the same effect.
        failing = " AND ".join([f"o.k0 <=> {FAILS}", *looked_up])
        left = left.alias("o")
        found = spark_join(case, left.where(f"NOT coalesce({failing}, false)"), right)
        if dict(case.options)["lookup.on-error"] == "dead-letter":
            return found
        how = case.how if case.how == "left" else "left" if case.how == "inner" else "anti"
        failed = left.where(failing).join(right.where("false").alias("t"), F.expr("o.k0 = t.b0"), how)
        failed = failed if case.where is None else failed.where(case.where)
        failed = failed if case.select is None else failed.selectExpr(*case.select)
        mark = "named_struct('message', 'failed')"
        return found.withColumn(ERROR, F.expr(f"if(true, NULL, {mark})")).union(failed.withColumn(ERROR, F.expr(mark)))

    def lookup_join(self, case: Case, left: Any, form: str) -> LookupJoin:
        as_of = None if case.as_of is None else case.as_of.time
        return LookupJoin(left, self.lookup_table(case), case.on, case.how, case.select, where=case.where, as_of=as_of)

    def lookup_table(self, case: Case) -> LookupTable:
        if case.source != "failing":
            return super().lookup_table(case)
        function = Failing(case.right.table())
        return LookupTable.from_function("t", case.right.ddl, key=["b0"], function=function, options=case.table_options)

    def store_options(self, case: Case) -> dict[str, str]:
        """Return none: the store is one of the case's options."""
        return {}

    def with_name(self, left: Any) -> Any:
        """Return the other lookup join of a chain."""
        names = pyarrow.table({"id": [key for key, _ in NAMES], "label": [name for _, name in NAMES]})
        table = LookupTable("f", "id BIGINT, label STRING", {"connector": "sources:Memory", **options_of(names)})
        return LookupJoin(left, table, "v = f.id", "left", ["*"]).df.drop("id")

    def with_name_by_spark(self, left: Any) -> Any:
        names = self.spark.createDataFrame(NAMES, "id BIGINT, label STRING").alias("f")
        return left.alias("o").join(names, F.expr("o.v = f.id"), "left").selectExpr("o.*", "f.label")


def marks_last(df: Any) -> Any:
    marks = [name for name in (AGE, ERROR) if name in df.columns]
    return df.select(*(name for name in df.columns if name not in marks), *marks)


_LEFT = (("k0", "int"), ("v", "int"), ("s", "string"), ("x", "int"))
_RIGHT = (("b0", "bigint"), ("w", "smallint"), ("u", "string"), ("y", "int"))


def _rows(draw: random.Random, pools: list[list[Any]], most: int) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(draw.choice(pool) for pool in pools) for _ in range(draw.randint(most // 2, most)))
