"""The two sides of a join inside its job: what their columns are called there, and SQL over them.

Left columns are ``lookup_l0``, ``lookup_l1``, … and those of the table ``lookup_r0``, ``lookup_r1``, …, by their places
in the schemas, so that no name of either side can meet another, nor a lambda's variable hide one: the planner refuses
variables whose names begin so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from lookupcache.plan import LookupPlan
from lookupcache.planner import substitute
from lookupcache.planner.clauses import own_name
from lookupcache.planner.settings import REGEX_COLUMNS
from lookupcache.report import Channel
from lookupcache.schema import quote
from lookupcache.spark.char_types import CHAR_TYPE
from lookupcache.spark.declared import known_names
from lookupcache.worker.runner import ERROR as ERROR_TYPE

_EVENT_TIME = "spark.watermarkDelayMs"
"""The metadata by which Spark knows the column of a watermark."""
_KEPT = (_EVENT_TIME, CHAR_TYPE)

AGE, ERROR = "age", "error"
"""The columns for age and error inside the job."""

_FIELD = re.compile(r"`\s*\.")
"""The end of a struct's name before that of its field; names of columns are quoted, the letter of the side is not."""


@dataclass(frozen=True, eq=False)
class JoinContext:
    """A planned join and all that a form needs to run it.

    ``left`` is the left side as it was given, ``connector`` the pickled connector, ``letters`` where dead letters go;
    ``again`` says that the left side may be read once more, to count its rows.
    """

    plan: LookupPlan
    left: DataFrame
    connector: bytes = field(repr=False)
    channel: Channel
    letters: str | None = field(default=None, repr=False)
    again: bool = False

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self.left.sparkSession

    # ── names and types ──────────────────────────────────────────────────────────────────────────────────

    def sql(self, sql: str, right: str = "") -> str:
        """Return a plan's SQL in the job's names; ``right`` stands before each column of the table."""
        return substitute(sql, lambda side, name: right * (side == "r") + self.column(side, name))

    def column(self, side: str, name: str) -> str:
        """Return a column's name inside the job: a letter for its side, and its number there."""
        names = self.left.columns if side == "l" else self.plan.schema.names
        return own_name(side, names.index(name))

    @property
    def carried_columns(self) -> list[str]:
        """The left columns that the rest of the join reads."""
        return [self.column("l", name) for name in self.plan.left_columns]

    @property
    def right_names(self) -> list[str]:
        """The columns of the table that the rest of the join reads."""
        return [self.column("r", name) for name in self.plan.columns]

    @cached_property
    def marks(self) -> dict[str, str]:
        """The columns for age and error, where they are wanted: their names inside the job, and in the result."""
        names = {AGE: self.plan.config.age_column, ERROR: self.plan.config.error_column}
        return {mark: name for mark, name in names.items() if name is not None}

    @cached_property
    def types(self) -> dict[str, T.DataType]:
        """The Spark types of the columns of both sides, and of the marks, by their names inside the job."""
        left = {own_name("l", number): field.dataType for number, field in enumerate(self.left.schema)}
        right = {own_name("r", number): spark_type(field.type) for number, field in enumerate(self.plan.schema)}
        return left | right | {AGE: T.DoubleType(), ERROR: spark_type(ERROR_TYPE)}

    @cached_property
    def _metadata(self) -> dict[str, dict[str, Any]]:
        """What Spark has to know of left columns besides their type, by their names inside the job."""
        fields = {own_name("l", number): field.metadata or {} for number, field in enumerate(self.left.schema)}
        return {name: {key: found[key] for key in _KEPT if key in found} for name, found in fields.items()}

    def output_field(self, name: str, column: str) -> T.StructField:
        """Return a column of the job with its type under a name; a watermark and a type CHAR stay on their column."""
        return T.StructField(name, self.types[column], metadata=self._metadata.get(column) or None)

    def fields(self, names: Sequence[str]) -> list[T.StructField]:
        """Return columns of the job with their types."""
        return [self.output_field(name, name) for name in names]

    # ── the left side ────────────────────────────────────────────────────────────────────────────────────

    def keys(self) -> tuple[Sequence[str], list[str]]:
        """Return the filters to apply before the lookup, and the key expressions, as the plan writes them.

        A row that fails the pre-filter has no match: it is removed, or if the join keeps it, loses its key.
        """
        keys = [key.sql for key in self.plan.keys]
        if self.plan.how in ("inner", "semi") or not self.plan.pre_filter:
            return self.plan.pre_filter, keys
        return (), [f"CASE WHEN {conjunction(self.plan.pre_filter)} THEN {keys[0]} END", *keys[1:]]

    def rows(self, filters: Sequence[str], named: Mapping[str, str]) -> DataFrame:
        """Return the left rows that pass WHERE and these filters: what the join carries, and expressions by name."""
        carried = {self.column("l", name): f"l.{quote(name)}" for name in self.plan.left_columns}
        return self.select((*self.plan.left_filter, *filters), carried | dict(named))

    def select(self, filters: Sequence[str], named: Mapping[str, str]) -> DataFrame:
        """Return the left rows that pass these filters: expressions in the plan's SQL, by name."""
        if self.is_clear([*filters, *named.values()]):
            left, column = self.left, _own
        else:
            left, column = number_columns(self.left), self.column
        if filters:
            left = left.where(substitute(conjunction(filters), column))
        selected = left.selectExpr(*(f"({substitute(sql, column)}) AS {name}" for name, sql in named.items()))
        return known_names(selected, self.left, list(named))

    def is_clear(self, expressions: Sequence[str]) -> bool:
        """Return whether left columns may go by their own names, which are quoted.

        All differ, no lambda has a variable of such a name, and the session takes none for a pattern. No field of a
        struct is read: Spark would take the struct's name for that of a relation, where the left side has one.
        """
        names = {name.casefold() for name in self.left.columns}
        clear = len(names) == len(self.left.columns)
        clear = clear and not any("->" in sql or _FIELD.search(sql) for sql in expressions)
        return clear and self.spark.conf.get(REGEX_COLUMNS, "false") != "true"

    def keyed_rows(self) -> tuple[DataFrame, list[str]]:
        """Return the left rows that reach the lookup, with their keys, and the names of those."""
        filters, keys = self.keys()
        named = {f"k{number}": sql for number, sql in enumerate(keys)}
        return self.rows(filters, named), list(named)

    @property
    def counts(self) -> bool:
        """Whether left rows are counted by reading them once more."""
        return self.again and self.plan.config.metrics != "off"


def conjunction(conditions: Sequence[str]) -> str:
    """Return SQL that is true where all conditions are; one that is NULL and nothing more is a condition to AND only.

    >>> conjunction(["a OR b", "NULL"]), conjunction(["NULL"])
    ('(a OR b) AND (NULL)', '(NULL) AND TRUE')
    """
    alone = ["TRUE"] if len(conditions) < 2 else []
    return " AND ".join([*(f"({condition})" for condition in conditions), *alone])


def _own(side: str, name: str) -> str:
    return quote(name)


def number_columns(left: DataFrame) -> DataFrame:
    """Return a left side with its columns under the names that they have inside the job."""
    return left.toDF(*(own_name("l", number) for number in range(len(left.columns))))


def spark_type(type_: pa.DataType) -> T.DataType:
    """Return the Spark type of an Arrow type.

    >>> spark_type(pa.list_(pa.timestamp("us", "UTC")))
    ArrayType(TimestampType(), True)
    """
    return from_arrow_type(type_, prefer_timestamp_ntz=True)
