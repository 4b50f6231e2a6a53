"""`StreamSource`: the stream behind a lookup table whose rows are the latest values of each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from lookupcache.config import LookupConfig
from lookupcache.config.values import parse_count, parse_duration
from lookupcache.connector import Connector, LookupRequest
from lookupcache.errors import OptionError, PlanError, SchemaError, nearest
from lookupcache.latest.load import LoadPhase
from lookupcache.schema import upper_but_names

OPTIONS = ("lookup.age-column", "lookup.metrics")
"""The options that a table of latest values has; all others are about a cache or about calls to a source."""

ONE_PER_QUERY, SEVERAL_PER_QUERY = OPERATORS = ("applyInPandasWithState", "transformWithState")
"""Spark's operators with a state: of the first, which works with any state store, a query may have one."""

KEYED_BUCKETS, UNKEYED_BUCKETS = 32, 8


class StreamSource(Connector):
    """The rows of a stream, of which the last of each key is the table's.

    It is a connector only to the planner: no worker calls it. ``schema`` has the columns of ``rows``, the stream, or in
    a batch query the table. `LookupTable.from_stream` explains the other arguments.
    """

    needs_key: ClassVar[bool] = False

    def __init__(
        self,
        rows: Any,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        order_by: Sequence[str] = (),
        ttl: Any = None,
        delete_when: str | None = None,
        buckets: int | None = None,
        load: LoadPhase | None = None,
        left_order_by: Sequence[str] = (),
        operator: str | None = None,
    ) -> None:
        super().__init__(schema, {})
        self.rows = rows
        self.key = tuple(dict.fromkeys(_column(schema, name, "key") for name in key))
        self.order_by = tuple(_column(schema, name, "order_by") for name in order_by)
        self.left_order_by = tuple(left_order_by)
        _check_left_order(self.left_order_by, self.order_by)
        for name in self.key:
            _refuse_nested(name, schema.field(name).type)
        for name in self.order_by:
            _refuse_unordered(name, schema.field(name).type)
        self.ttl = None if ttl is None else _parsed("ttl", parse_duration, ttl)
        if delete_when is not None:
            _check_condition(rows, delete_when)
        self.delete_when = delete_when
        default = KEYED_BUCKETS if key else UNKEYED_BUCKETS
        self.buckets = default if buckets is None else _parsed("buckets", parse_count, buckets)
        if load is not None:
            _check_load(schema, load)
        self.load = load
        if operator is not None and operator not in OPERATORS:
            raise OptionError(f"'operator' is {operator!r}.", hint=f"It is one of {', '.join(OPERATORS)}.")
        self.operator = operator

    @property
    def deletes(self) -> str:
        """SQL that is true for a row that deletes its key, else false."""
        return "false" if self.delete_when is None else f"coalesce({_whole(self.delete_when)}, false)"

    def with_changes(self, **changes: Any) -> StreamSource:
        """Return the same stream with some arguments replaced."""
        names = ("key", "order_by", "ttl", "buckets", "load", "left_order_by", "operator")
        made = StreamSource(self.rows, self.schema, **{name: vars(self)[name] for name in names} | changes)
        made.delete_when = self.delete_when  # Spark has checked it.
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the stream, which cannot leave the driver."""
        return {name: value for name, value in super().__getstate__().items() if name != "rows"}

    def may_be_key(self, column: str) -> bool:
        """Return whether values are stored by this column; equalities with others are filters."""
        return column in self.key

    def check(self, request: LookupRequest) -> None:
        """Raise PlanError for a join that does not say the value of each key column."""
        present = {*request.key_columns, *request.constants}
        missing = [name for name in self.key if name not in present]
        if missing:
            raise PlanError(
                f"Table {request.table!r} has a latest row for each {', '.join(self.key)}; "
                f"the join's condition has no equality with {missing[0]!r}.",
                hint=f"Add one, or leave {missing[0]!r} out of 'key'.",
            )

    def check_config(self, config: LookupConfig) -> None:
        """Raise OptionError for options that have no meaning for latest values."""
        other = [name for name in config.to_json() if name not in OPTIONS]
        if other:
            raise OptionError(
                f"Option {other[0]!r} has no meaning for a table of the latest values of a stream.",
                hint=f"It has the options {' and '.join(OPTIONS)}; an age limit is the argument 'ttl'.",
            )

    def identity(self) -> Mapping[str, Any]:
        """Return the arguments that distinguish the table from others of the same columns."""
        own = {"key": self.key, "order_by": self.order_by, "ttl": self.ttl, "delete_when": self.delete_when}
        more = {"load": repr(self.load) if self.load else None, "left_order_by": self.left_order_by}
        return own | {name: value for name, value in more.items() if value}

    def show_options(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the arguments, and the options as they are shown."""
        own = {name: _shown(value) for name, value in self.identity().items() if value}
        return own | {name: str(value) for name, value in options.items()}

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Raise PlanError: the values are in the state of a query."""
        raise PlanError(
            f"Table {request.table!r} is the latest value of a stream, which only a lookup join can read.",
            hint="Use lookup_join, or SQL through a LookupSession.",
        )


def _shown(value: Any) -> str:
    """Return an argument as a text.

    >>> _shown(("ccy", "day")), _shown(2)
    ('ccy, day', '2')
    """
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _parsed(argument: str, parse: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise OptionError(f"{argument!r} is {value!r}.", hint=f"It is {error}.") from None


def _check_left_order(left: Sequence[str], right: Sequence[str]) -> None:
    """Raise OptionError where the order columns of both sides are not pairs."""
    if left and len(left) != len(right):
        raise OptionError(
            f"'left_order_by' is {', '.join(left)!r}, and 'order_by' is {', '.join(right)!r}.",
            hint="Name a left column for each column of 'order_by', in the same order.",
        )


def _check_condition(rows: Any, sql: str) -> None:
    """Raise OptionError where 'delete_when' is no condition on a stream's columns."""
    from pyspark.errors import PySparkException  # Here, since the package is loaded without Spark too.

    hint = f"It is SQL whose value is a BOOLEAN, over these bare names: {', '.join(rows.columns)}."
    try:
        found = rows.selectExpr(_whole(sql)).schema[0].dataType.simpleString()
        if found == "boolean":
            _ = rows.where(_whole(sql)).schema  # Which has no aggregates, and no window functions.
            _check_deterministic(rows, sql)
    except PySparkException as error:
        fact = str(error).partition(" SQLSTATE")[0].splitlines()[0]
        raise OptionError(f"'delete_when' is {sql!r}. {fact}", hint=hint) from None
    if found != "boolean":
        raise OptionError(f"'delete_when' is {sql!r}, whose value is a {upper_but_names(found)}.", hint=hint)


def _whole(sql: str) -> str:
    """Return an expression in parentheses, which a comment at its end does not hide, even one that ends with a \\."""
    return f"({sql}\n\n)"


def _check_deterministic(rows: Any, sql: str) -> None:
    """Raise OptionError where a condition may have another value when it is evaluated again for the same row.

    Spark refuses these in a join, on Spark Connect too.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import expr

    try:
        _ = rows.join(rows.sparkSession.range(1).toDF("lookup one"), expr(_whole(sql)), "left_semi").schema
    except AnalysisException as error:
        if "INVALID_NON_DETERMINISTIC_EXPRESSIONS" in str(error):
            raise OptionError(
                f"'delete_when' is {sql!r}, which may have another value each time it is evaluated.",
                hint="A micro-batch may run again and has to delete the same rows: name columns of the stream alone.",
            ) from None


def _check_load(schema: pa.Schema, load: Any) -> None:
    """Raise OptionError, or SchemaError, where 'load' is no load phase of a stream."""
    if not isinstance(load, LoadPhase):
        raise OptionError(f"'load' is {load!r}.", hint="Pass a lookupcache.LoadPhase(…).")
    if load.event_time is not None:
        _column(schema, load.event_time, "event_time")
        _refuse_timeless(load.event_time, schema.field(load.event_time).type)


def _refuse_timeless(name: str, type_: pa.DataType) -> None:
    if not pa.types.is_timestamp(type_) and not pa.types.is_date(type_):
        raise SchemaError(
            f"'event_time' names {name!r}, whose type {type_} is no time.", hint="Cast the column to TIMESTAMP."
        )


def _column(schema: pa.Schema, name: str, argument: str) -> str:
    if name not in schema.names:
        raise SchemaError(
            f"{argument!r} names {name!r}, which is not a column of the stream.",
            hint=nearest(name, schema.names, what="columns"),
        )
    return name


def _refuse_nested(name: str, type_: pa.DataType) -> None:
    if pa.types.is_nested(type_):
        raise SchemaError(
            f"'key' names {name!r}, whose type {type_} cannot be a key.",
            hint="Select the struct's fields as columns of the stream, and name those.",
        )


def _refuse_unordered(name: str, type_: pa.DataType) -> None:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string, pa.types.is_temporal)
    if not any(kind(type_) for kind in kinds):
        raise SchemaError(
            f"'order_by' names {name!r}, whose type {type_} has no order here.",
            hint="Order by numbers, strings, dates or timestamps.",
        )
