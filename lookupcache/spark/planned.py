"""A planned join as the modules below `join` know it, so that none of them imports the one that imports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from lookupcache.plan import LookupPlan
from lookupcache.planner.reading import SqlReader
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
