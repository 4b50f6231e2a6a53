"""Spark's errors about the expressions of a join, in the user's names.

Inside the job, columns have other names, and conditions are parts of longer ones. So after an error, Spark analyzes
each expression again, alone, over both sides under the user's names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from lookupcache.errors import PlanError
from lookupcache.plan import LookupPlan
from lookupcache.planner import substitute
from lookupcache.planner.argument_names import unnamed_sql
from lookupcache.planner.naming import left_qualifier
from lookupcache.schema import quote
from lookupcache.spark.declared import refuses_analysis
from lookupcache.spark.error_log import muted_error_log
from lookupcache.spark.forms.join_context import conjunction, spark_type
from lookupcache.table import LookupTable

_NOT_THE_FACT = re.compile(r"\n+== SQL|;?\s*\(?line \d+,? pos \d+\)?|\n'|JVM stacktrace|\s*SQLSTATE: \w+")
_NUMBER = re.compile(r"#\d+L?\b")
"""Spark's number of a column."""
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def spark_message(error: PySparkException) -> str:
    """Return Spark's message, without the text and the plan that it is about."""
    return _NOT_THE_FACT.split(str(error))[0].strip()


@dataclass(frozen=True, eq=False)
class BothSides:
    """The left side and the columns of the lookup table, over which Spark analyzes expressions."""

    left: DataFrame
    table: LookupTable

    def named(self, left: str, right: str) -> DataFrame:
        """Return both, without rows of the table, under these names."""
        return self.left.alias(left).crossJoin(self._no_rows.alias(right))

    def name_of(self, column: Any) -> str | None:
        """Return the name that Spark gives a Column over both; None where Spark does not know what it reads."""
        left = set(map(str.lower, self.left.columns))
        common = tuple(name for name in self.table.schema.names if name.lower() in left)
        for merged in dict.fromkeys([(), common]):
            with suppress(Exception), muted_error_log():  # An error is raised for its text.
                names = self._merging(merged).select(column).columns
                return names[0] if len(names) == 1 else None
        return None

    def _merging(self, names: Sequence[str]) -> DataFrame:
        """Return both under the user's names; of these columns, which both have, a bare name is that of the left."""
        right = self._no_rows.alias(self.table.name)
        return self.left.join(right, list(names), "left") if names else self.left.crossJoin(right)

    @cached_property
    def _no_rows(self) -> DataFrame:
        columns = T.StructType([T.StructField(f.name, spark_type(f.type)) for f in self.table.schema])
        return self.left.sparkSession.createDataFrame([], columns)

    def refusal_of(self, plan: LookupPlan, error: AnalysisException) -> Exception:
        """Return `refusal` of the expressions of a plan."""
        conditions = (*plan.left_filter, *plan.pre_filter, *plan.residual_sql, *plan.spark_residual, *plan.filter_after)
        return self.refusal(error, [*(key.sql for key in plan.keys), *(one.sql for one in plan.output)], conditions)

    def refusal(self, error: AnalysisException, values: Sequence[str], conditions: Sequence[str] = ()) -> Exception:
        """Return a PlanError with the first expression that Spark refuses, or Spark's error if it refuses none alone.

        The expressions are written as in a plan; of conditions, the value has to be true or false.
        """
        if refuses_analysis(error):
            return error
        for number, sql in enumerate([*values, *conditions]):
            text = self._text(sql)
            refused = self._refused(text) if number < len(values) else self._refused_condition(text)
            if refused is not None:
                return PlanError(
                    f"Spark refuses {text!r}: {_NUMBER.sub('', spark_message(refused))}",
                    hint="Correct it: Spark's own join would refuse it too.",
                )
        return error

    def _refused_condition(self, text: str) -> AnalysisException | None:
        error = self._refused(conjunction([text]))
        return error and (self._refused(text, condition=True) or error)

    def _refused(self, text: str, *, condition: bool = False) -> AnalysisException | None:
        try:
            _ = (self._rows.where(text) if condition else self._rows.selectExpr(text)).schema
        except AnalysisException as error:
            return error
        return None

    @cached_property
    def _left_name(self) -> str:
        return left_qualifier([self.table.name, *self.left.columns, *self.table.schema.names])

    @cached_property
    def _rows(self) -> DataFrame:
        return self.named(self._left_name, self.table.name)

    def _text(self, sql: str) -> str:
        """Return a plan's SQL with the columns under the names of their sides."""
        sides = {"l": self._left_name, "r": self.table.name}
        return substitute(unnamed_sql(sql), lambda side, name: f"{_shown(sides[side])}.{_shown(name)}")


def _shown(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quote(name)
