"""The two sides of a join inside its job: the names of their columns there, and SQL over them.

Left columns are ``lookup_l0_id``, ``lookup_l1_v``, … and those of the table ``lookup_r0_id``, …, by their places in the
schemas. So no name of either side can meet another, nor can a lambda's variable hide one: the planner refuses variables
whose names begin so. Their own names follow for those that read Spark's errors and plans.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from lookupcache.errors import SchemaError
from lookupcache.plan import LookupPlan, own_name
from lookupcache.planner import LeftColumn, substitute
from lookupcache.planner.settings import REGEX_COLUMNS
from lookupcache.report import Channel, is_classic
from lookupcache.schema import quote, spark_type_name, upper_but_names
from lookupcache.spark.declared import known_names
from lookupcache.worker.runner import ERROR as ERROR_TYPE
from lookupcache.worker.task import NamedBatches

AGE, ERROR = "age", "error"
"""The columns for age and error inside the job."""

_FIELD = re.compile(r"`\s*\.")
"""The end of a struct's name before that of its field; names of columns are quoted, the letter of the side is not."""


@dataclass(frozen=True, eq=False)
class JoinContext:
    """A planned join and all that a form needs to run it.

    ``left`` is the left side as it was given, ``connector`` the pickled connector, ``letters`` where dead letters go.
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
        return own_name(side, names.index(name), name)

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
        left = {name: field.dataType for name, field in self._left_fields.items()}
        right = {self.column("r", field.name): spark_type(field.type) for field in self.plan.schema}
        return left | right | {AGE: T.DoubleType(), ERROR: spark_type(ERROR_TYPE)}

    @cached_property
    def _left_fields(self) -> dict[str, T.StructField]:
        """The left columns, by their names inside the job."""
        return {own_name("l", number, field.name): field for number, field in enumerate(self.left.schema)}

    def output_field(self, name: str, column: str) -> T.StructField:
        """Return a column of the job under a name; one of the left side keeps its metadata and its NOT NULL."""
        field = self._left_fields.get(column)
        if field is None:
            return T.StructField(name, self.types[column])
        kept = {key: value for key, value in (field.metadata or {}).items() if key == CHAR_TYPE or key[:2] != "__"}
        return T.StructField(name, _carried_type(field), field.nullable, kept or None)

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
        """Return the left rows that pass WHERE and these filters: the carried columns, and expressions by name."""
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

        All differ, no lambda has a variable of such a name, and the session takes none for a pattern or a variable.
        No field of a struct is read: Spark would take the struct's name for that of a relation, where the left side
        has one.
        """
        names = {name.casefold() for name in self.left.columns}
        clear = len(names) == len(self.left.columns) and not any("${" in name for name in names)
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
    return left.toDF(*(own_name("l", number, name) for number, name in enumerate(left.columns)))


def _carried_type(field: T.StructField) -> T.DataType:
    """Return the type of a left column that goes through Python; raises SchemaError for one that PySpark lacks."""
    try:
        arrow_type(field.dataType)
    except (PySparkException, ValueError):  # Arrow's types have no VOID that is NOT NULL, as the items of array().
        raise SchemaError(
            f"Left column {field.name!r} has type {upper_but_names(field.dataType.simpleString())}, which Spark does "
            "not exchange with Python.",
            hint="Cast the column to STRING before the join, or leave it out of 'select'. Or set 'lookup.form' to "
            "'distinct', which sends only keys there, if no condition calls a Python function.",
        ) from None
    return field.dataType


def unusable_time(left: DataFrame) -> str | None:
    """Return the name of a column of type TIME, if the session refuses all but to select such columns; else None."""
    names = [f.name for f in left.schema if f.dataType.simpleString().startswith("time(")]
    if not names:
        return None
    try:
        # With a default, Spark returns that instead of its own.
        return names[0] if left.sparkSession.conf.get("spark.sql.timeType.enabled") == "false" else None
    except PySparkException:  # This Spark has no such setting.
        return None


def arrow_type(type_: T.DataType) -> pa.DataType:
    """Return the type as which Spark reads a column of a worker."""
    try:
        return to_arrow_type(type_, timezone="UTC")
    except TypeError:  # Before Spark 4.2, timestamps are in UTC without being told.
        return to_arrow_type(type_)


def map_in_workers(
    rows: DataFrame, task: Any, fields: Sequence[T.StructField], reports: Sequence[T.StructField] = ()
) -> DataFrame:
    """Return the columns that a task makes of rows in the Python workers, then those of a channel's ``reports``."""
    schema = T.StructType([*fields, *reports])
    columns = tuple((field.name, field.nullable) for field in schema)
    sent = schema if is_classic(rows.sparkSession) else _without_default_collation(schema)
    return rows.mapInArrow(NamedBatches(task, columns), sent)


def _without_default_collation(schema: T.StructType) -> T.StructType:
    """Return a schema whose strings name no collation: by the default's name, Connect makes another type of it.

    That type is the same to Spark, but ``typeof`` shows it as ``string collate UTF8_BINARY``.
    """
    found = copy.deepcopy(schema)
    left: list[Any] = [found]
    while left:
        one = left.pop()
        if isinstance(one, T.StringType) and hasattr(one, "collation") and one.isUTF8BinaryCollation():
            one.collation = ""
        parts = getattr(one, "fields", None) or vars(one).values()
        left += [part for part in parts if isinstance(part, T.DataType | T.StructField)]
    return found


def spark_type(type_: pa.DataType) -> T.DataType:
    """Return the Spark type of an Arrow type.

    >>> spark_type(pa.list_(pa.timestamp("us", "UTC")))
    ArrayType(TimestampType(), True)
    """
    return from_arrow_type(type_, prefer_timestamp_ntz=True)


CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata in which Spark keeps the declared type of a column."""

_CHAR = re.compile(r"char\(\d+\)", re.IGNORECASE)


def left_column(field: T.StructField) -> LeftColumn:
    """Return a column of a left side for the planner, with the type ``char(n)`` where it was declared so.

    Workers evaluate no expression of that type, since Spark pads the values that it compares with such a column.

    >>> left_column(T.StructField("code", T.StringType(), metadata={CHAR_TYPE: "char(5)"}))
    LeftColumn(name='code', type='char(5)')
    """
    declared = str((field.metadata or {}).get(CHAR_TYPE, ""))
    return LeftColumn(field.name, declared if _CHAR.fullmatch(declared) else spark_type_name(field.dataType))
