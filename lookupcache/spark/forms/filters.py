"""The part of a join that Spark evaluates after the lookup: residuals, filters, the selected columns.

All of them keep a row whose lookup failed: its matches are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from lookupcache.expr import Literal
from lookupcache.planner.catalyst_column import elements, kind_of
from lookupcache.planner.clauses import columns_in, functions
from lookupcache.planner.constant_keys import literal_sql
from lookupcache.planner.sql_reader import is_repeatable
from lookupcache.report import is_classic
from lookupcache.schema import quote
from lookupcache.spark.declared import is_declared
from lookupcache.spark.error_log import muted_error_log
from lookupcache.spark.forms.join_context import ERROR, JoinContext, conjunction, map_in_workers, number_columns
from lookupcache.versions import condition_of, is_spark_3
from lookupcache.worker.runner import MATCHES, too_many_rows
from lookupcache.worker.spooled import RegroupTask, SpoolTask

LATEST = "latest"
"""The greatest version of a left row's matches, where Spark evaluates conditions."""


def select_output(context: JoinContext, rows: DataFrame) -> DataFrame:
    """Return the result's columns of joined rows that pass WHERE."""
    rows = keep_rows(context, rows, context.plan.filter_after)
    columns = [(f"({context.sql(output.sql)})", output.name) for output in context.plan.output]
    columns += context.marks.items()
    if any("${" in name for _, name in columns):  # In SQL, Spark would replace a variable in the name.
        return rows.select(*(F.expr(sql).alias(name) for sql, name in columns))
    return rows.selectExpr(*(f"{sql} AS {quote(name)}" for sql, name in columns))


def keep_rows(context: JoinContext, rows: DataFrame, conditions: Iterable[str]) -> DataFrame:
    """Return the joined rows that pass conditions over both sides."""
    found = [context.sql(condition) for condition in conditions]
    return rows.where(_with_failed_rows(context, conjunction(found))) if found else rows


def join_lists(context: JoinContext, rows: DataFrame, conditions: Sequence[str]) -> DataFrame:
    """Join left rows with those in their lists of matches for which all conditions are true."""
    calling = [sql for sql in conditions if calls_functions(context, sql)]
    if not calling:
        return _join_lists(context, rows, conditions)
    others = [sql for sql in conditions if sql not in calling]
    if others:  # Spark then calls the functions for fewer matches.
        rows = rows.withColumn(MATCHES, F.expr(_passing_matches(context, others)))
    return _join_lists(context, _filter_lists(context, rows, calling), ("true",))


_FUNCTION_IN_LAMBDA = "UNSUPPORTED_FEATURE.LAMBDA_FUNCTION_WITH_"


def calls_functions(context: JoinContext, condition: str) -> bool:
    """Return whether Spark refuses to evaluate a condition for the items of a list: it calls a Python or SQL function.

    Only an analysis tells. Where Spark refuses that too, any function that is not known may be one.
    """
    if not functions(condition) or (not is_classic(context.spark) and is_repeatable(condition)):
        return False
    if is_declared(context.left):
        return not is_repeatable(condition)
    matches = F.lit(None).cast(_lists_of_matches(context))
    try:
        with muted_error_log():
            rows = number_columns(context.left).select("*", matches.alias(MATCHES))
            tested = rows.select(F.expr(_passing_matches(context, [condition])))
            _ = tested.schema
    except AnalysisException as error:
        if not (condition_of(error) or "").startswith(_FUNCTION_IN_LAMBDA):
            raise
        return True
    # Spark 3.5 notices it only when the query runs.
    return is_spark_3() and _calls_python(tested)


def _lists_of_matches(context: JoinContext) -> T.ArrayType:
    fields = context.fields(context.right_names) or [T.StructField("none", T.BooleanType())]
    return T.ArrayType(T.StructType(fields))


def _filter_lists(context: JoinContext, rows: DataFrame, conditions: Sequence[str]) -> DataFrame:
    """Keep the matches in the lists for which Spark finds conditions true, one match after the other."""
    lists = _lists_of_matches(context)
    marks = list(context.marks)
    columns = [*context.carried_columns, MATCHES, *marks]
    true = conjunction([context.sql(sql, "lookup_row.") for sql in conditions])
    read = _left_columns(context, conditions)
    name, position = uuid4().hex, columns.index(MATCHES)
    spool = SpoolTask(name, position, [columns.index(column) for column in read])
    match = T.StructField("lookup_row", lists.elementType)
    pairs = map_in_workers(rows.select(*columns), spool, [*context.fields(read), match])
    passes = pairs.select(F.expr(f"coalesce({true}, false)").alias("passes"))
    fields = [*context.fields(context.carried_columns), T.StructField(MATCHES, lists), *context.fields(marks)]
    return map_in_workers(passes, RegroupTask(name, position), fields)


def _left_columns(context: JoinContext, conditions: Sequence[str]) -> list[str]:
    """Return the left columns that conditions read, by their names inside the job."""
    read = {context.column(side, name) for sql in conditions for side, name in columns_in(sql)}
    return [name for name in context.carried_columns if name in read]


def _passing_matches(context: JoinContext, conditions: Sequence[str]) -> str:
    return f"filter({MATCHES}, lookup_row -> {conjunction([context.sql(sql, 'lookup_row.') for sql in conditions])})"


def _calls_python(joined: DataFrame) -> bool:
    """Return whether a lambda in the last steps of a result calls a Python function."""

    def calls(expression: Any, inside: bool = False) -> bool:
        kind = kind_of(expression)
        inside = inside or kind == "LambdaFunction"
        return (inside and kind == "PythonUDF") or any(calls(one, inside) for one in elements(expression.children()))

    plan = joined._jdf.queryExecution().analyzed() if is_classic(joined.sparkSession) else None
    while plan is not None and kind_of(plan) in ("Project", "Filter", "Generate"):
        if any(map(calls, elements(plan.expressions()))):
            return True
        plan = plan.child()
    return False


def _join_lists(context: JoinContext, rows: DataFrame, conditions: Sequence[str]) -> DataFrame:
    if context.plan.how in ("semi", "anti"):
        true = conjunction([context.sql(sql, "lookup_row.") for sql in conditions])
        exists = f"coalesce(exists({MATCHES}, lookup_row -> coalesce({true}, false)), false)"
        return rows.where(_with_failed_rows(context, exists if context.plan.how == "semi" else f"NOT {exists}"))
    matches = _passing_matches(context, conditions)
    if context.plan.latest is not None:
        rows, matches = _latest_matches(context, rows, matches)
    # In a step of its own: Spark refuses SQL functions in explode_outer.
    rows = rows.withColumn(MATCHES, F.expr(matches))
    if context.plan.how == "inner":
        rows = rows.where(_with_failed_rows(context, f"coalesce(size({MATCHES}) > 0, false)"))
    passing = F.expr(f"explode_outer({_limit_matches(context, MATCHES)})").alias("m")
    rows = rows.select(*(name for name in rows.columns if name not in (MATCHES, LATEST)), passing)
    return rows.select("*", *(F.col(f"m.{name}").alias(name) for name in context.right_names)).drop("m")


def _latest_matches(context: JoinContext, rows: DataFrame, matches: str) -> tuple[DataFrame, str]:
    """Return the rows with their greatest version, and SQL for the matches that have it.

    In steps of their own: within a lambda, Spark would filter all matches again for each of them.
    """
    assert context.plan.latest is not None
    version = context.column("r", context.plan.latest)
    rows = rows.withColumn(MATCHES, F.expr(matches))
    rows = rows.withColumn(LATEST, F.expr(f"array_max(transform({MATCHES}, lookup_row -> lookup_row.{version}))"))
    return rows, f"filter({MATCHES}, lookup_row -> lookup_row.{version} = {LATEST})"


def _limit_matches(context: JoinContext, matches: str) -> str:
    """Return SQL for as many of a left row's matches as the plan wants."""
    plan = context.plan
    if plan.matches == "single":
        error = too_many_rows(plan.table)
        text = literal_sql(Literal(f"{type(error).__name__}: {error}", pa.string()))
        return f"transform({matches}, (m, n) -> if(n = 0, m, raise_error({text})))"
    return matches if plan.matches == "all" else f"slice({matches}, 1, 1)"


def _with_failed_rows(context: JoinContext, condition: str) -> str:
    """Return the condition, or where failed rows are among the others, one that keeps them too."""
    return f"({condition}) OR {ERROR} IS NOT NULL" if ERROR in context.marks else condition
