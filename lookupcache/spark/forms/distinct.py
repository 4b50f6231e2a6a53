"""The form `distinct`: only the distinct keys go through Python; Spark joins the left side with their rows.

left ─► keys, each once ─► as many partitions as cores ─► mapInArrow (runner) ─► looked up ─┐
  │                          └─► nothing, once the keys are there ─┐                         │
  └─────────────────────────────────────────────────────────► left ┴─► Spark's join ◄────────┘ ─► select

The left side is read twice. Each distinct key has a row among those looked up, with or without a match. So a left row
whose key has no such row is new: the left side returned other rows the second time.

The left side of the join waits for the keys. Once they are there, Spark knows their number and, if they are few,
broadcasts their rows instead of sorting the left side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from lookupcache.config import LookupConfig
from lookupcache.errors import SchemaError
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.report import parallelism
from lookupcache.spark.forms.filters import join_lists, keep_rows, select_output
from lookupcache.spark.forms.join_context import AGE, ERROR, JoinContext, map_in_workers, unusable_time
from lookupcache.worker.runner import MATCHES, Layout
from lookupcache.worker.task import LetterTask, Task

FOUND = "found"
"""Whether a key has a match, where the join type needs it; null in a left row without a key."""

_ROWS, _KEYED = "n", "m"
"""The number of left rows, and of those with a key, that a row among the keys counts."""

NOT_LOOKED_UP = (
    "The left side of a lookup join returned a row at its second reading that was not there at the first. So its key "
    "was not looked up. The form 'distinct' reads the left side twice.\n\n"
    "Hint: Persist the left side before the join, with left.persist(), or set 'lookup.form' to 'worker', which reads "
    "it once."
)


def by_distinct_keys(context: JoinContext) -> DataFrame:
    """Return the join, made by Spark with the rows of the distinct keys.

    Raises SchemaError for a left column that the session cannot use in this form.
    """
    if (name := unusable_time(context.left)) is not None:
        raise SchemaError(
            f"Left column {name!r} has type TIME, which this session refuses in the form 'distinct'.",
            hint="Set spark.sql.timeType.enabled to true, or 'lookup.form' to 'worker'.",
        )
    left, keys = context.keyed_rows()
    lookup = _KeyLookup.of(context, len(keys))
    distinct_keys = _distinct_keys(context, left, keys, lookup)
    looked_up = _look_up(context, left, distinct_keys, keys, lookup)
    # The union with an empty relation makes Spark compute the keys before adaptive execution chooses the join.
    waiting = left.unionAll(_no_rows_after(distinct_keys, left.schema))
    same = [F.col(key) == F.col(name) for key, name in zip(keys, lookup.keys, strict=True)]
    rows = _check_and_filter(context, waiting.join(looked_up, same, "left"), keys, lookup)
    if context.letters is not None:
        rows = _write_dead_letters(context, rows)
    return select_output(context, _apply_residual(context, rows, lookup))


# ── looking up ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class _KeyLookup:
    """The lookup of the keys as a separate join: one row per key, or per match, and no residual.

    ``lists`` says that each key has its matches in a list, since Spark evaluates the residual for each left row.
    ``found`` that each row says whether its key has a match.
    """

    plan: LookupPlan
    keys: tuple[str, ...]
    lists: bool
    found: bool
    residual: tuple[str, ...]

    @classmethod
    def of(cls, context: JoinContext, keys: int) -> _KeyLookup:
        plan, names = context.plan, tuple(f"a{number}" for number in range(keys))
        residual = (*plan.residual_sql, *plan.spark_residual)
        lists = bool(residual) and (plan.how != "inner" or plan.latest is not None)
        plan_of_keys = replace(
            plan,
            how=plan.how if plan.how in ("semi", "anti") and not lists else "left",
            keys=tuple(FieldKey(column=k.column, sql=name) for k, name in zip(plan.keys, names, strict=True)),
            left_columns=(*names, _ROWS, _KEYED),
            residual=(),
            spark_residual=residual if lists else (),
            config=plan.config if context.letters is None else _with_error_column(plan),
        )
        return cls(plan_of_keys, names, lists, not _keeps_all(plan), residual)

    @property
    def marks(self) -> list[str]:
        """The columns for age and error that the worker gives."""
        config = self.plan.config
        return [mark for mark, name in ((AGE, config.age_column), (ERROR, config.error_column)) if name is not None]

    def layout(self, *, letters: bool) -> Layout:
        """Return the positions of columns: keys and row counts in, keys and their rows out."""
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


def _with_error_column(plan: LookupPlan) -> LookupConfig:
    """Return options under which keys whose lookup failed are marked: their left rows become dead letters later."""
    return replace(plan.config, on_error="null", error_column=ERROR, dead_letter_path=None)


def _distinct_keys(context: JoinContext, left: DataFrame, keys: Sequence[str], lookup: _KeyLookup) -> DataFrame:
    """Return each distinct key once, null for rows without one, and how many left rows there are, for the counts."""
    complete = " AND ".join(f"{key} IS NOT NULL" for key in keys)
    expressions = [key if len(keys) == 1 else f"CASE WHEN {complete} THEN {key} END" for key in keys]
    rows = left.select(*(F.expr(sql).alias(name) for sql, name in zip(expressions, lookup.keys, strict=True)))
    config = context.plan.config
    total = config.on_error == "fail" and (context.counts or config.metrics == "off")
    counted = rows.groupBy(*lookup.keys).agg(*_counts(lookup))
    distinct_keys = _with_total_count(rows, lookup, context.counts) if total else counted
    tasks = parallelism(context.spark)
    # By a separate hash: Spark treats a second partitioning by the same columns as redundant, and leaves it out.
    return distinct_keys if tasks is None else distinct_keys.repartition(tasks, F.xxhash64(*lookup.keys))


def _counts(lookup: _KeyLookup) -> list[Column]:
    return [F.count(F.lit(1)).alias(_ROWS), F.count(F.col(lookup.keys[0])).alias(_KEYED)]


def _with_total_count(rows: DataFrame, lookup: _KeyLookup, counted: bool) -> DataFrame:
    """Return distinct keys that count no left row, and one row without a key that counts all of them.

    Spark takes twice as long to count by key as to find the distinct ones; a count of all costs next to nothing.
    """
    none = F.lit(0).cast("bigint")
    distinct = rows.distinct().select("*", none.alias(_ROWS), none.alias(_KEYED))
    if not counted:
        return distinct
    no_key = (F.lit(None).cast(rows.schema[name].dataType).alias(name) for name in lookup.keys)
    return distinct.unionAll(rows.agg(*_counts(lookup)).select(*no_key, _ROWS, _KEYED))


def _no_rows_after(distinct_keys: DataFrame, columns: T.StructType) -> DataFrame:
    """Return no row, of columns of which some are NOT NULL, once the keys are there.

    Spark cannot know that a count is never below zero. It reads all of ``distinct_keys``, so that the keys are computed
    once for both that read them. And since it is empty once it has run, Spark drops it from the plan before the join.
    """
    counts = distinct_keys.agg(F.sum(_ROWS).alias(_ROWS), F.sum(_KEYED).alias(_KEYED)).where(f"{_ROWS} + {_KEYED} < 0")
    none = F.lit(None).cast(T.ArrayType(columns, containsNull=False))
    return counts.select(F.inline(none)).repartition(1)


def _look_up(
    context: JoinContext, left: DataFrame, distinct_keys: DataFrame, keys: Sequence[str], lookup: _KeyLookup
) -> DataFrame:
    right = [] if lookup.plan.how in ("semi", "anti") else context.fields(context.right_names)
    if lookup.lists:
        right = [T.StructField(MATCHES, T.ArrayType(T.StructType(right)))]
    fields = [
        *(T.StructField(name, left.schema[key].dataType) for name, key in zip(lookup.keys, keys, strict=True)),
        *right,
        *context.fields(lookup.marks),
        *([T.StructField(FOUND, T.BooleanType())] if lookup.found else []),
    ]
    task = Task(lookup.plan, context.connector, lookup.layout(letters=context.letters is not None), context.channel)
    channel = context.channel
    return channel.observe_reports(map_in_workers(distinct_keys, task, fields, channel.fields()))


# ── joining ──────────────────────────────────────────────────────────────────────────────────────────────


def _check_and_filter(context: JoinContext, rows: DataFrame, keys: Sequence[str], lookup: _KeyLookup) -> DataFrame:
    """Keep the rows that the join type keeps; stop the job at a key that was not looked up."""
    missing = F.expr(" AND ".join([f"{lookup.keys[0]} IS NULL", *(f"{key} IS NOT NULL" for key in keys)]))
    stop = F.raise_error(F.lit(NOT_LOOKED_UP)).cast("boolean")
    return rows.where(F.when(missing, stop).otherwise(_is_kept(context)))


def _is_kept(context: JoinContext) -> Column:
    plan = context.plan
    if _keeps_all(plan):
        return F.lit(True)
    found = F.coalesce(F.col(FOUND), F.lit(False))
    kept = ~found if plan.how == "anti" else found
    return kept if plan.config.on_error == "fail" else kept | F.col(ERROR).isNotNull()


def _keeps_all(plan: LookupPlan) -> bool:
    """Return whether the join keeps each left row for now: for good, or until Spark has evaluated the residual."""
    return plan.how == "left" or (plan.how != "inner" and bool(plan.residual or plan.spark_residual))


def _apply_residual(context: JoinContext, rows: DataFrame, lookup: _KeyLookup) -> DataFrame:
    if lookup.lists:
        return join_lists(context, rows, lookup.residual)
    residual: Sequence[str] = lookup.residual
    if FOUND in rows.columns:  # Spark would evaluate them first, also for rows without a match, where they may fail.
        residual = [f"CASE WHEN {FOUND} THEN {condition} END" for condition in residual]
    return keep_rows(context, rows, residual)


def _write_dead_letters(context: JoinContext, rows: DataFrame) -> DataFrame:
    """Write the left rows whose lookup failed as dead letters; return the others.

    These rows, and with them all others, go through Python once more.
    """
    assert context.letters is not None
    right = [name for name in rows.columns if name in {*context.right_names, MATCHES, AGE}]
    passed = rows.select(*context.carried_columns, *right, ERROR)
    task = LetterTask(context.letters, context.plan.table, context.plan.left_columns)
    return map_in_workers(passed, task, passed.schema.fields[:-1])
