"""The form `distinct`: only the distinct keys go through Python; Spark joins the left side with their rows.

left ─► keys, each once ─► as many partitions as cores ─► mapInArrow (runner) ─► looked up ─┐
  │                          └─► nothing, once the keys are there ─┐                         │
  └─────────────────────────────────────────────────────────► left ┴─► Spark's join ◄────────┘ ─► select

The left side is read twice. Each key that was asked for has a row among those looked up, with or without a match, so
a left row with a key and no such row has a key that nobody asked for: the left side gave other rows the second time.

The left side of the join waits for the keys, for a reason: once they are there, Spark knows how many there are and, if
few, broadcasts what was looked up instead of sorting the left side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from lookupcache.config import LookupConfig
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.report import parallelism
from lookupcache.spark.forms.filters import kept, listed, selected
from lookupcache.spark.forms.join_context import AGE, ERROR, JoinContext
from lookupcache.worker.runner import MATCHES, Layout
from lookupcache.worker.task import LetterTask, Task

FOUND = "found"
"""Whether a key has a match, where the join type needs it; null in a left row without a key."""

_ROWS, _KEYED = "n", "m"
"""Of how many left rows, and of those with a key, a row among the keys tells."""

UNASKED = (
    "The left side of a lookup join gave a row that it had not given before: its key was not looked up, since the "
    "form 'distinct' reads the left side twice.\n\n"
    "Hint: Persist the left side before the join, with left.persist(), or set 'lookup.form' to 'worker', which reads "
    "it once."
)


def by_distinct_keys(context: JoinContext) -> DataFrame:
    """Return the join, made by Spark with what was looked up for the distinct keys."""
    given, keys = context.given()
    ask = _Asking.of(context, len(keys))
    asked = _asked(context, given, keys, ask)
    looked_up = _looked_up(context, given, asked, keys, ask)
    left = given.unionAll(_nothing_after(asked, given))
    same = [F.col(key) == F.col(name) for key, name in zip(keys, ask.keys, strict=True)]
    rows = _refusing_unasked(context, left.join(looked_up, same, "left"), keys, ask)
    if context.letters is not None:
        rows = _without_letters(context, rows, ask)
    return selected(context, _judged(context, rows, ask))


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class _Asking:
    """The lookup of the keys as a join of its own: one row per key, or per match, and no residual.

    ``lists`` says that each key has its matches in a list, since Spark judges them for each left row; ``found`` that
    each row says whether its key has a match.
    """

    plan: LookupPlan
    keys: tuple[str, ...]
    lists: bool
    found: bool
    residual: tuple[str, ...]

    @classmethod
    def of(cls, context: JoinContext, keys: int) -> _Asking:
        plan, names = context.plan, tuple(f"a{number}" for number in range(keys))
        residual = (*plan.residual_sql, *plan.spark_residual)
        lists = bool(residual) and plan.how != "inner"
        alone = replace(
            plan,
            how=plan.how if plan.how in ("semi", "anti") and not lists else "left",
            keys=tuple(FieldKey(column=k.column, sql=name) for k, name in zip(plan.keys, names, strict=True)),
            left_columns=(*names, _ROWS, _KEYED),
            residual=(),
            spark_residual=residual if lists else (),
            config=plan.config if context.letters is None else _marking(plan),
        )
        return cls(alone, names, lists, not _keeps_all(plan), residual)

    @property
    def marks(self) -> list[str]:
        """The columns for age and error that the worker gives."""
        config = self.plan.config
        return [name for name, wanted in ((AGE, config.age_column), (ERROR, config.error_column)) if wanted is not None]

    def layout(self, *, letters: bool) -> Layout:
        """Return where things lie: keys and the number of their rows in, keys and what was found for them out."""
        keys = tuple(range(len(self.keys)))
        flat = 0 if self.plan.how in ("semi", "anti") else len(self.plan.columns)
        added = (1 if self.lists else flat) + len(self.marks) + self.found
        return Layout(
            left=self.plan.left_columns,
            keys=keys,
            output=(*keys, *range(len(keys) + 2, len(keys) + 2 + added)),
            weights=(len(keys), len(keys) + 1),
            found=self.found,
            letters=letters,
        )


def _marking(plan: LookupPlan) -> LookupConfig:
    """Return options under which keys whose lookup failed are marked: their left rows become dead letters later."""
    return replace(plan.config, on_error="null", error_column=ERROR, dead_letter_path=None)


def _asked(context: JoinContext, given: DataFrame, keys: Sequence[str], ask: _Asking) -> DataFrame:
    """Return each distinct key once, null for rows without one, and how many left rows there are, for the counts."""
    whole = " AND ".join(f"{key} IS NOT NULL" for key in keys)
    expressions = [key if len(keys) == 1 else f"CASE WHEN {whole} THEN {key} END" for key in keys]
    wanted = given.select(*(F.expr(sql).alias(name) for sql, name in zip(expressions, ask.keys, strict=True)))
    config = context.plan.config
    total = config.on_error == "fail" and (context.counts or config.metrics == "off")
    asked = _with_total(wanted, ask, context.counts) if total else wanted.groupBy(*ask.keys).agg(*_counts(ask))
    tasks = parallelism(context.spark)
    # By a hash of its own: Spark takes a second partitioning by the same columns for idle, and leaves it out.
    return asked if tasks is None else asked.repartition(tasks, F.xxhash64(*ask.keys))


def _counts(ask: _Asking) -> list[Column]:
    return [F.count(F.lit(1)).alias(_ROWS), F.count(F.col(ask.keys[0])).alias(_KEYED)]


def _with_total(wanted: DataFrame, ask: _Asking, counted: bool) -> DataFrame:
    """Return distinct keys that tell of no left row, and one row without a key that tells of all.

    Spark takes twice as long to count by key as to find the distinct ones; a count of all costs next to nothing.
    """
    none = F.lit(0).cast("bigint")
    distinct = wanted.distinct().select("*", none.alias(_ROWS), none.alias(_KEYED))
    if not counted:
        return distinct
    nobody = (F.lit(None).cast(wanted.schema[name].dataType).alias(name) for name in ask.keys)
    return distinct.unionAll(wanted.agg(*_counts(ask)).select(*nobody, _ROWS, _KEYED))


def _nothing_after(asked: DataFrame, given: DataFrame) -> DataFrame:
    """Return no row, as soon as the keys are there.

    Spark cannot know that a count is never below zero. It reads all that ``asked`` has, so that the keys are found
    once for both who want them; and being empty once it has run, it is gone from the plan before the join starts.
    """
    counts = asked.agg(F.sum(_ROWS).alias(_ROWS), F.sum(_KEYED).alias(_KEYED)).where(f"{_ROWS} + {_KEYED} < 0")
    columns = (F.lit(None).cast(field.dataType).alias(field.name) for field in given.schema)
    return counts.select(*columns).repartition(1)


def _looked_up(
    context: JoinContext, given: DataFrame, asked: DataFrame, keys: Sequence[str], ask: _Asking
) -> DataFrame:
    right = [] if ask.plan.how in ("semi", "anti") else context.fields(context.right_names)
    if ask.lists:
        right = [T.StructField(MATCHES, T.ArrayType(T.StructType(right)))]
    schema = T.StructType(
        [
            *(T.StructField(name, given.schema[key].dataType) for name, key in zip(ask.keys, keys, strict=True)),
            *right,
            *context.fields(ask.marks),
            *([T.StructField(FOUND, T.BooleanType())] if ask.found else []),
            *context.channel.fields(),
        ]
    )
    task = Task(ask.plan, context.connector, ask.layout(letters=context.letters is not None), context.channel)
    return context.channel.observed(asked.mapInArrow(task, schema))


# ── joining ──────────────────────────────────────────────────────────────────────────────────────────────


def _refusing_unasked(context: JoinContext, rows: DataFrame, keys: Sequence[str], ask: _Asking) -> DataFrame:
    """Keep the rows that the join type keeps; stop the job at a key that was not looked up."""
    unasked = F.expr(" AND ".join([f"{ask.keys[0]} IS NULL", *(f"{key} IS NOT NULL" for key in keys)]))
    stop = F.raise_error(F.lit(UNASKED)).cast("boolean")
    return rows.where(F.when(unasked, stop).otherwise(_wanted(context)))


def _wanted(context: JoinContext) -> Column:
    plan = context.plan
    if _keeps_all(plan):
        return F.lit(True)
    found = F.coalesce(F.col(FOUND), F.lit(False))
    wanted = ~found if plan.how == "anti" else found
    return wanted if plan.config.on_error == "fail" else wanted | F.col(ERROR).isNotNull()


def _keeps_all(plan: LookupPlan) -> bool:
    """Whether the join keeps each left row for now: for good, or until Spark has evaluated the residual."""
    return plan.how == "left" or (plan.how != "inner" and bool(plan.residual or plan.spark_residual))


def _judged(context: JoinContext, rows: DataFrame, ask: _Asking) -> DataFrame:
    return listed(context, rows, ask.residual) if ask.lists else kept(context, rows, ask.residual)


def _without_letters(context: JoinContext, rows: DataFrame, ask: _Asking) -> DataFrame:
    """Write the left rows whose lookup failed as dead letters; return the others.

    These rows, and with them all others, go through Python once more.
    """
    assert context.letters is not None
    right = [name for name in rows.columns if name in {*context.right_names, MATCHES, AGE}]
    passed = rows.select(*context.carried, *right, ERROR)
    task = LetterTask(context.letters, context.plan.table, context.plan.left_columns)
    return passed.mapInArrow(task, T.StructType(passed.schema.fields[:-1]))
