"""A planned join as the modules below `join` know it, so that none of them imports the one that imports them.

Spark has not seen the result of one that is pending: its columns are known, so that another join can follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from lookupcache.plan import LookupPlan
from lookupcache.planner.sql_reader import SqlReader
from lookupcache.table import LookupTable


@dataclass(frozen=True)
class FormChoice:
    """A form and why it was chosen; ``again`` says that the left side may be read once more, to count its rows."""

    form: str
    reason: str
    again: bool = False


class PlannedJoin(Protocol):
    """A lookup join; `LookupJoin` is the only one."""

    plan: LookupPlan
    left: DataFrame
    table: LookupTable
    spark: SparkSession
    reader: SqlReader
    alias: str | None

    @property
    def df(self) -> DataFrame: ...

    @property
    def choice(self) -> FormChoice: ...

    @property
    def plan_identity(self) -> int | None: ...

    @property
    def shares_stage(self) -> bool: ...


class PendingResult:
    """Stands for the DataFrame of a join: becomes one when anything but its columns is requested.

    Where several joins run in one Python stage, Spark only has to analyze the result of the last.
    """

    def __init__(self, join: PlannedJoin, schema: T.StructType) -> None:
        self._lookupcache_join = join
        self.schema = schema

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self.schema.names

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802 - PySpark's name
        """The session of the join."""
        return self._lookupcache_join.spark

    @cached_property
    def isStreaming(self) -> bool:  # noqa: N802 - PySpark's name
        """Whether the left side is a stream."""
        return self._lookupcache_join.left.isStreaming

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lookupcache_join.df, name)


def resolve_pending(df: DataFrame | PendingResult) -> DataFrame:
    """Return the DataFrame that a pending result stands for; any other as it is."""
    return df._lookupcache_join.df if isinstance(df, PendingResult) else df
