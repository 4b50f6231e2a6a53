"""The part of a join that Spark evaluates after the lookup: residuals, filters, the selected columns.

A row whose lookup failed is kept by all of them: what it would be matched with is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lookupcache.errors import PlanError
from lookupcache.expr import Literal
from lookupcache.planner.constant_keys import literal_sql
from lookupcache.planner.reading import is_settled
from lookupcache.report import is_classic
from lookupcache.schema import quote
from lookupcache.spark.declared import is_declared
from lookupcache.spark.forms.join_context import ERROR, JoinContext, conjunction
from lookupcache.worker.runner import MATCHES, too_many_rows

LATEST = "latest"
"""The greatest version of a left row's matches, where Spark evaluates conditions."""


def select_output(context: JoinContext, rows: DataFrame) -> DataFrame:
    """Return the result's columns of joined rows that pass WHERE."""
    rows = keep_rows(context, rows, context.plan.filter_after)
    columns = [f"({context.sql(output.sql)}) AS {quote(output.name)}" for output in context.plan.output]
    return rows.selectExpr(*columns, *(f"{mark} AS {quote(name)}" for mark, name in context.marks.items()))


def keep_rows(context: JoinContext, rows: DataFrame, conditions: Iterable[str]) -> DataFrame:
    """Return the joined rows that pass conditions over both sides."""
    found = [context.sql(condition) for condition in conditions]
    return rows.where(_with_failed_rows(context, conjunction(found))) if found else rows


def join_lists(context: JoinContext, rows: DataFrame, conditions: Sequence[str]) -> DataFrame:
    """Join left rows with those in their lists of matches for which all conditions are true.

    Raises PlanError if one of them calls a Python function: Spark calls none for the items of a list.
    """
    try:
        joined = _join_lists(context, rows, conditions)
        if not is_classic(context.spark) and not is_declared(context.left) and not all(map(is_settled, conditions)):
            _ = joined.schema  # Spark Connect analyzes it only now.
    except AnalysisException as error:
        if error.getCondition() != _PYTHON_IN_LAMBDA:
            raise
        raise _python_function(context) from None
    return joined


_PYTHON_IN_LAMBDA = "UNSUPPORTED_FEATURE.LAMBDA_FUNCTION_WITH_PYTHON_UDF"


def _python_function(context: JoinContext) -> PlanError:
    plan = context.plan
    found = [one.text for one in plan.conjuncts if one.stage == "residual" and not is_settled(one.text)]
    how = f"{plan.how} join" if plan.latest is None else "join with the latest version"
    return PlanError(
        f"{' AND '.join(found)!r} calls a Python function, which Spark cannot call for each match of a left row; the "
        f"{how} needs that.",
        hint="Write it with Spark's functions, or let the source return what it computes as a column; in an inner "
        "join without versions, Python functions are possible.",
    )


def _join_lists(context: JoinContext, rows: DataFrame, conditions: Sequence[str]) -> DataFrame:
    true = conjunction([context.sql(sql, "lookup_row.") for sql in conditions])
    if context.plan.how in ("semi", "anti"):
        exists = f"coalesce(exists({MATCHES}, lookup_row -> coalesce({true}, false)), false)"
        return rows.where(_with_failed_rows(context, exists if context.plan.how == "semi" else f"NOT {exists}"))
    matches = f"filter({MATCHES}, lookup_row -> {true})"
    if context.plan.latest is not None:
        rows, matches = _latest_matches(context, rows, matches)
    if context.plan.how == "inner":
        rows = rows.withColumn(MATCHES, F.expr(matches))
        rows, matches = rows.where(_with_failed_rows(context, f"coalesce(size({MATCHES}) > 0, false)")), MATCHES
    passing = F.expr(f"explode_outer({_limit_matches(context, matches)})").alias("m")
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
        error = f"raise_error({literal_sql(Literal(too_many_rows(plan.table), pa.string()))})"
        return f"transform({matches}, (m, n) -> if(n = 0, m, {error}))"
    return matches if plan.matches == "all" else f"slice({matches}, 1, 1)"


def _with_failed_rows(context: JoinContext, condition: str) -> str:
    """Return the condition, or where failed rows are among the others, one that keeps them too."""
    return f"({condition}) OR {ERROR} IS NOT NULL" if ERROR in context.marks else condition
