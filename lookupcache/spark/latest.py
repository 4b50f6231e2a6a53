"""The form `latest`: a join with the latest values of a stream, by Spark's own state.

    left  ─► keys, bucket ─► mapInArrow(LeftPacker)  ─┐
                                                      ├─ union ─► by bucket: applyInPandasWithState(BucketJoin)
    right ─► keys, bucket ─► mapInArrow(RightPacker) ─┘              ─► mapInArrow(Unpacker) ─► residual ─► select

A batch query has no state: Spark joins the left side with the last row of each key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql import types as T  # noqa: N812

from lookupcache.connector import request_of
from lookupcache.errors import PlanError, SchemaError, nearest
from lookupcache.expr import Literal
from lookupcache.latest.load import LoadRule
from lookupcache.latest.source import ONE_PER_QUERY, SEVERAL_PER_QUERY, StreamSource
from lookupcache.latest.tasks import (
    AGE,
    BUCKET,
    COUNTS,
    DELETED,
    EVENT,
    FILE,
    FOUND,
    BucketJoin,
    LatestPlan,
    LeftPacker,
    RightPacker,
    Unpacker,
    ValueFilter,
    rules_of,
)
from lookupcache.latest.values import BucketLayout
from lookupcache.plan import LookupPlan
from lookupcache.planner.clauses import without_comments
from lookupcache.planner.constant_keys import literal_sql
from lookupcache.schema import quote, upper_but_names
from lookupcache.spark.forms.broadcast import pair_conditions
from lookupcache.spark.forms.filters import select_output
from lookupcache.spark.forms.join_context import JoinContext, arrow_type, conjunction, map_in_workers
from lookupcache.spark.plan_tree import PlanNode, analyzed_plan
from lookupcache.versions import is_spark_3

_PACKED = "bucket INT, is_right BOOLEAN, payload BINARY"
_JOINED = ", ".join(["joined BINARY", *(f"{name} BIGINT" for name in COUNTS)])
_ORDERED = {
    "Project", "Filter", "SubqueryAlias", "View", "EventTimeWatermark",
}  # fmt: skip
"""Plan nodes that keep rows in the order of the source."""
_SOURCES = {"StreamingRelation", "StreamingRelationV2", "StreamingExecutionRelation"}


def by_latest(context: JoinContext, source: StreamSource) -> DataFrame:
    """Return the join of a left side with the latest values of a stream, or in a batch with the last rows.

    Raises PlanError where one side is a stream and the other is not, and where nothing orders the rows of a key.
    """
    join = _LatestJoin(context, source)
    _check(context.plan.table, context.left, source)
    rows = join.join_streams() if source.rows.isStreaming else join.join_batches()
    return select_output(context, _apply_residual(context, rows))


def describe(source: StreamSource, left: DataFrame) -> tuple[str, str]:
    """Return the way that the join takes and why, for `explain`."""
    if not left.isStreaming:
        return "latest", "a batch: Spark joins with the last row of each key"
    key = ", ".join(source.key) or "no key: copies of one row"
    operator = SEVERAL_PER_QUERY if _needs_processor(left, source) else ONE_PER_QUERY
    where = f"in the query's state, which its checkpoint has, by {operator}"
    return "latest", f"values {where}, in {source.buckets} buckets ({key})"


def state_lines(source: StreamSource, left: DataFrame) -> list[tuple[str, str]]:
    """Return the lines of `explain` about the values: their key, their order, their age limit."""
    by_order = ", ".join(source.order_by)
    lines = [
        ("one latest row per", ", ".join(source.key) or "table"),
        ("latest is", f"the greatest {by_order}" if by_order else "the last to arrive, in the order of the source"),
        ("deleted when", without_comments(source.delete_when or "never")),
    ]
    if left.isStreaming:
        limit = "never" if source.ttl is None else f"{source.ttl:g} s after it arrived"
        pairs = [
            f"{right} is not above {left}" for right, left in zip(source.order_by, source.left_order_by, strict=False)
        ]
        within = f"right rows whose {', '.join(pairs)} before a left row" if pairs else "right rows before left rows"
        lines += [("within a micro-batch", within), ("expires", limit)]
        if source.load is not None:
            lines.append(("left rows wait", _describe_load(source, _event_time(source))))
    return lines


def _check(table: str, left: DataFrame, source: StreamSource) -> None:
    if left.isStreaming and not source.rows.isStreaming:
        raise PlanError(
            f"Table {table!r} has the latest values of a stream, but its rows are a batch and the left side is a "
            "stream.",
            hint="Read the rows with spark.readStream; or join with a batch with DataFrame.join.",
        )
    if source.rows.isStreaming and not left.isStreaming:
        raise PlanError(
            f"Table {table!r} has the latest values of a stream, and the left side is a batch.",
            hint="Read both with spark.readStream, or both with spark.read.",
        )
    if source.left_order_by and not source.rows.isStreaming:
        raise PlanError(
            f"Table {table!r} has 'left_order_by', which orders both sides within a micro-batch, and the query is a "
            "batch.",
            hint="Leave it out: in a batch each left row gets the last row of its key.",
        )
    if source.order_by:
        return
    if not source.rows.isStreaming:
        raise PlanError(
            f"Nothing says which row of table {table!r} is the latest of its key: a batch has no order.",
            hint="Pass order_by=[…] to LookupTable.from_stream, or on_time => DESCRIPTOR(column) to SNAPSHOT.",
        )
    if not is_in_source_order(source.rows):
        raise PlanError(
            f"Nothing says which row of table {table!r} is the latest of its key: its stream is not in the order of "
            "a source.",
            hint="Pass order_by=[…] to LookupTable.from_stream. Only filters, selects and a watermark may stand "
            "between the source and the table without it.",
        )


def is_in_source_order(rows: DataFrame) -> bool:
    """Return whether rows of a stream are in the order of one source, as far as it can be told."""
    node = analyzed_plan(rows)
    while node.kind in _ORDERED and len(node.children) == 1:
        node = node.children[0]
    return node.kind in _SOURCES


def needs_several_states(left: DataFrame, source: StreamSource) -> bool:
    """Return whether one of the sides has a state already, as that of another join with latest values."""
    sides = [side for side in (left, source.rows) if side.isStreaming]
    return any(_has_state(node) for side in sides for node in analyzed_plan(side).walk())


def _has_state(node: PlanNode) -> bool:
    streaming = [child.is_streaming for child in node.children]
    return node.kind in _STATEFUL and any(streaming) and (node.kind != "Join" or all(streaming))


_STATEFUL = {
    "FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark", "FlatMapGroupsWithState", "TransformWithState",
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Join",
}  # fmt: skip


def _needs_processor(left: DataFrame, source: StreamSource) -> bool:
    """Return whether the join needs the operator of which Spark allows several, and which has lists."""
    if source.operator == SEVERAL_PER_QUERY or source.load is not None:
        return True
    return source.operator is None and needs_several_states(left, source)


def _by_processor(spark: SparkSession, groups: GroupedData, join: BucketJoin, table: str) -> DataFrame:
    """Return the joined payloads by the operator of which Spark allows several; it needs RocksDB and protobuf."""
    provider, load = spark.conf.get(PROVIDER, ""), join.latest.load
    if not hasattr(groups, "transformWithStateInPandas"):
        raise PlanError(
            f"The join with the latest values of {table!r} needs the operator transformWithState, which Spark "
            "has since 4.0, and Spark Connect since 4.1.",
            hint="Use a newer Spark or a classic session; or leave out what needs it: a load phase, another state.",
        )
    if not str(provider).endswith("RocksDBStateStoreProvider") or find_spec("google.protobuf") is None:
        why = "left rows wait during its load phase, which needs a list in the state"
        if load is None:
            why = "the query has another state, and Spark allows one operator per query that works with any state store"
        raise PlanError(
            f"The join with the latest values of {table!r} needs the state store RocksDB: {why}.",
            hint=f"Set '{PROVIDER}' to '{ROCKSDB}' before the query starts, and install protobuf.",
        )
    from lookupcache.latest.processor import BucketProcessor  # Here, since it needs protobuf.

    joined: DataFrame = groups.transformWithStateInPandas(BucketProcessor(join), _JOINED, "append", "none")
    return joined


# ── the load phase ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _EventTime:
    """A stream's event time: its column, None where it has none, and the delay of its watermark in milliseconds."""

    column: str | None
    delay: int = 0


def _event_time(source: StreamSource) -> _EventTime:
    assert source.load is not None
    name, fields = source.load.event_time, source.rows.schema.fields
    delays = {field.name: field.metadata[_DELAY] for field in fields if _DELAY in (field.metadata or {})}
    if name is None:
        times = [one for one in source.order_by if pa.types.is_timestamp(source.schema.field(one).type)]
        name = next(iter([*delays, *times[:1]]), None)
    return _EventTime(name, int(delays.get(str(name), 0)))


_DELAY = "spark.watermarkDelayMs"


def _describe_load(source: StreamSource, event: _EventTime) -> str:
    load = source.load
    assert load is not None
    reached = [] if event.column is None else [f"{event.column} reaches {load.completed_time}"]
    idle = [] if load.idle_seconds is None else [f"no progress for {load.idle_seconds:g} s"]
    return f"until {' or '.join([*reached, *idle])}"


def _micros(spark: SparkSession, text: str) -> int | None:
    """Return the microseconds of a time, in the session's time zone where the text has none."""
    text = literal_sql(Literal(text, pa.string()))
    row = spark.sql(f"SELECT unix_micros(TRY_CAST({text} AS TIMESTAMP))").head()
    return None if row is None else row[0]


def _load_rule(table: str, source: StreamSource, left: Any) -> LoadRule | None:
    """Return when left rows no longer wait; raises PlanError where that would be never."""
    load = source.load
    if load is None or not source.rows.isStreaming:
        return None
    event, idle = _event_time(source), load.idle_seconds
    if event.column is None and idle is None:
        raise PlanError(
            f"The load phase of table {table!r} would never end: its stream has no event time.",
            hint="Name its column with LoadPhase(event_time=…), give the stream a watermark, or set idle_timeout.",
        )
    at = load.completed_micros(lambda text: _micros(source.rows.sparkSession, text))
    until = int(datetime.now(UTC).timestamp() * 1e6) if at is None else at
    own = hashlib.sha256(repr(left).encode()).hexdigest()[:16]
    idle_micros = None if idle is None else int(idle * 1e6)
    return LoadRule(until, at is None, idle_micros, event.column is not None, own)


PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class _LatestJoin:
    """Both sides of the join, as the workers and Spark need them."""

    def __init__(self, context: JoinContext, source: StreamSource) -> None:
        self.context, self.source, self.plan = context, source, context.plan
        self.schema = _check_schema(self.plan.table, source)
        self.names = [f"k{number}" for number in range(max(len(source.key), 1))]
        inputs = request_of(self.plan).fields
        needed = [name for name in self.schema.names if name in {*inputs, *self.plan.columns}]
        self.latest = LatestPlan(
            plan=self.plan,
            layout=BucketLayout(
                table=self.plan.table,
                keys=dict(zip(self.names, self._key_types(), strict=True)),
                values={f"v:{name}": self._type(name) for name in self.plan.columns},
                orders={f"o:{name}": _order_type(self._type(name)) for name in source.order_by},
                key_names=source.key,
                ttl=None if source.ttl is None else int(source.ttl * 1e6),
            ),
            inputs={f"v:{name}": self._type(name) for name in needed},
            buckets=source.buckets,
            carried=len(context.carried_columns),
            rules=rules_of(self.plan, source.delete_when),
            load=_load_rule(self.plan.table, source, self._left_columns()),
            has_left_order=bool(source.left_order_by),
            counts_all=self.plan.config.metrics == "observe",
        )

    def _left_columns(self) -> list[tuple[str, str]]:
        types = {field.name: field.dataType.simpleString() for field in self.context.left.schema}
        return [(name, types[name]) for name in self.plan.left_columns]

    def _type(self, name: str) -> pa.DataType:
        return self.schema.field(name).type

    def _key_types(self) -> list[pa.DataType]:
        return [self._type(name) for name in self.source.key] or [pa.int32()]

    # ── a stream ─────────────────────────────────────────────────────────────────────────────────────────

    def join_streams(self) -> DataFrame:
        """Return left rows with the values that they found, as a stream."""
        if is_spark_3():
            raise PlanError(
                f"The join of a stream with the latest values of {self.plan.table!r} needs Spark 4.0: PySpark "
                "3.5 fails in applyInPandasWithState with newer versions of pyarrow.",
                hint="Use Spark 4.0 or later; a batch is joined with the last row of each key on Spark 3.5 too.",
            )
        groups = self._pack_right().unionAll(self._pack_left()).withColumn("now", F.expr(_NOW)).groupBy(BUCKET)
        join = BucketJoin(self.latest)
        if _needs_processor(self.context.left, self.source):
            joined = _by_processor(self.context.spark, groups, join, self.plan.table)
        else:
            joined = groups.applyInPandasWithState(join, _JOINED, "table BINARY", "append", "NoTimeout")
        channel = self.context.channel
        fields = self._joined_fields()
        unpacker = Unpacker(channel, pa.schema([(field.name, arrow_type(field.dataType)) for field in fields]))
        return channel.observe_reports(map_in_workers(joined, unpacker, fields, channel.fields()))

    def _pack_left(self) -> DataFrame:
        rows = self.left_rows()
        keyed = " AND ".join(f"{name} IS NOT NULL" for name in self.names)
        spread = _bucket(_hashable(rows), self.source.buckets)
        bucket = spread
        if self.source.key:
            bucket = f"CASE WHEN {keyed} THEN {_bucket(self.names, self.source.buckets)} ELSE {spread} END"
        return rows.selectExpr("*", f"{bucket} AS {BUCKET}").mapInArrow(LeftPacker(self.latest), _PACKED)

    def _pack_right(self) -> DataFrame:
        keys = [self._own(name) for name in self.names]
        bucket = _bucket(keys, self.source.buckets) if self.source.key else "CAST(NULL AS INT)"
        rows = self.right_rows().selectExpr("*", f"{bucket} AS {BUCKET}")
        return rows.mapInArrow(RightPacker(self.latest), _PACKED)

    def left_rows(self) -> DataFrame:
        """Return the left columns that the join reads, and the keys; null where a row can have no value."""
        plan = self.plan
        drops = plan.how in ("inner", "semi")
        by_column = {key.column: key.sql for key in plan.keys}
        by_column |= {constant.column: literal_sql(constant.value) for constant in plan.constants}
        keys = [by_column[name] for name in self.source.key] or ["1"]
        if plan.pre_filter and not drops:
            keys[0] = f"CASE WHEN {conjunction(plan.pre_filter)} THEN {keys[0]} END"
        if plan.never:
            keys[0] = f"nullif({keys[0]}, {keys[0]})"
        named = dict(zip(self.names, keys, strict=True)) | self._left_orders()
        return self.context.rows(plan.pre_filter if drops else (), named)

    def _left_orders(self) -> dict[str, str]:
        """Return SQL for the left order columns, by name."""
        pairs = zip(self.source.left_order_by, self.source.order_by, strict=False)
        types = [self._type(name) for name in self.source.order_by]
        columns = [_left_order(self.plan.table, self.context.left, self.source, *pair) for pair in pairs]
        named = zip(columns, types, strict=False)
        return {f"o{number}": _order_sql(column, type_) for number, (column, type_) in enumerate(named)}

    def right_rows(self) -> DataFrame:
        """Return the stream's rows that have a key, with all that decides which is the latest."""
        source = self.source
        keys = [quote(name) for name in source.key] or ["1"]
        columns = dict(zip(self.names, keys, strict=True))
        columns |= {name: quote(name.removeprefix("v:")) for name in self.latest.inputs}
        columns |= {f"o:{name}": _order_sql(quote(name), self._type(name)) for name in source.order_by}
        columns[DELETED] = source.deletes
        in_order = not source.order_by and source.rows.isStreaming
        columns[FILE] = "xxhash64(input_file_name())" if in_order else "0L"
        if self.latest.load is not None and self.latest.load.has_event_time:
            event = _event_time(source)
            columns[EVENT] = f"unix_micros(CAST({quote(str(event.column))} AS TIMESTAMP)) - {event.delay * 1000}L"
        # Numbered: PySpark reads the name of a column that goes to a worker as that of a field, if it has a dot.
        rows = source.rows.selectExpr(*(f"({columns[name]}) AS {self._own(name)}" for name in self.latest.row_names))
        if self.latest.load is not None:
            return rows  # A row without a key tells how far the table is loaded.
        return rows.where(" AND ".join(f"{self._own(name)} IS NOT NULL" for name in self.names))

    def _own(self, name: str) -> str:
        """Return the name of a column of `right_rows`."""
        return f"c{self.latest.row_names.index(name)}"

    def _joined_fields(self) -> list[T.StructField]:
        context = self.context
        own = [T.StructField(FOUND, T.BooleanType()), T.StructField(AGE, T.DoubleType())]
        passed = [*context.fields(context.carried_columns), *context.fields(context.right_names)]
        return [*map(_without_watermark, passed), *own]

    # ── a batch ──────────────────────────────────────────────────────────────────────────────────────────

    def join_batches(self) -> DataFrame:
        """Return left rows with the last row of their key, by Spark's join."""
        last = self._last_rows()
        right = {name: f"a{number}" for number, name in enumerate(self.names)}
        right |= {f"v:{name}": self.context.column("r", name) for name in self.plan.columns}
        values = last.selectExpr(*(f"{self._own(old)} AS {new}" for old, new in right.items()), f"true AS {FOUND}")
        same = conjunction([f"{name} = {right[name]}" for name in self.names])
        rows = self.left_rows().join(values, F.expr(same), "left")
        found = f"coalesce({FOUND}, false) AS {FOUND}"
        return rows.selectExpr(
            *self.context.carried_columns, *self.context.right_names, found, f"CAST(NULL AS DOUBLE) AS {AGE}"
        )

    def _last_rows(self) -> DataFrame:
        order = [F.col(self._own(name)).desc_nulls_last() for name in self.latest.layout.orders]
        numbered = F.row_number().over(Window.partitionBy(*map(self._own, self.names)).orderBy(*order))
        last = f"number = 1 AND NOT {self._own(DELETED)}"
        rows = self.right_rows().withColumn("number", numbered).where(last).drop("number")
        return rows.mapInArrow(ValueFilter(self.latest), rows.schema) if self.plan.calc else rows


def _without_watermark(field: T.StructField) -> T.StructField:
    """Return a column without the mark of a watermark: Spark would take a value, or a row that waited, for late."""
    metadata = {name: value for name, value in (field.metadata or {}).items() if name != _DELAY}
    return T.StructField(field.name, field.dataType, field.nullable, metadata)


_NOW = "unix_micros(current_timestamp())"
"""When a micro-batch began; Spark stores it with the batch, so it is the same when the batch runs again."""


def _apply_residual(context: JoinContext, rows: DataFrame) -> DataFrame:
    """Keep the rows, or the values, for which the conditions on pairs of rows are true."""
    plan: LookupPlan = context.plan
    residual = [context.sql(sql) for sql in pair_conditions(plan)]
    matched = f"({FOUND} AND coalesce({conjunction(residual)}, false))" if residual else FOUND
    if plan.how in ("inner", "semi"):
        return rows.where(matched)
    if plan.how == "anti":
        return rows.where(f"NOT {matched}")
    if not residual:
        return rows
    values: Mapping[str, str] = {name: f"CASE WHEN {matched} THEN {name} END" for name in context.right_names}
    return rows.selectExpr(*(f"{values.get(name, name)} AS {name}" for name in rows.columns))


def _bucket(expressions: list[str], buckets: int) -> str:
    """Return SQL for the bucket of a row; it must not change, since states are by bucket."""
    return f"CAST(pmod(xxhash64({', '.join(expressions)}), {buckets}L) AS INT)" if expressions else "0"


def _hashable(rows: DataFrame) -> list[str]:
    """Return the columns by which rows without a key are spread.

    Not by a count: a task that runs again may get its rows in another order, and each has to be in the same bucket.
    """
    nested = ("map", "array", "struct", "variant")  # Spark 3.5 has no class for the last.
    return [field.name for field in rows.schema if field.dataType.typeName() not in nested]


def _order_type(type_: pa.DataType) -> pa.DataType:
    return pa.float64() if pa.types.is_floating(type_) else type_


def _left_order(table: str, left: DataFrame, source: StreamSource, name: str, right: str) -> str:
    """Return SQL for a left column that is compared with an order column; raises SchemaError where it cannot be."""
    types = {field.name: field.dataType.simpleString() for field in left.schema}
    if name not in types:
        raise SchemaError(
            f"'left_order_by' of table {table!r} names {name!r}, which is not a column of the left side.",
            hint=nearest(name, list(types), what="columns"),
        )
    wanted = source.rows.schema[right].dataType.simpleString()
    kinds = next((kinds for kinds in _COMPARABLE if wanted in kinds), [wanted])
    if types[name] not in kinds[: kinds.index(wanted) + 1] and not (kinds is _FLOATS and types[name] in kinds):
        raise SchemaError(
            f"'left_order_by' of table {table!r} names {name!r}, a {upper_but_names(types[name])}, which is compared "
            f"with {right!r}, a {upper_but_names(wanted)}.",
            hint=f"Cast the left column to {upper_but_names(wanted)}.",
        )
    column = f"l.{quote(name)}"
    return column if types[name] == wanted or kinds is _FLOATS else f"CAST({column} AS {wanted})"


_FLOATS = ["float", "double"]
_COMPARABLE = (["tinyint", "smallint", "int", "bigint"], _FLOATS)
"""Types that are compared with those before them; both floats are compared as doubles."""


def _order_sql(column: str, type_: pa.DataType) -> str:
    """Return SQL for an order column; NaN, which is the greatest value for Spark, as infinity, as Arrow sorts it."""
    if not pa.types.is_floating(type_):
        return column
    return f"CASE WHEN isnan({column}) THEN double('Infinity') ELSE double({column}) END"


def _check_schema(table: str, source: StreamSource) -> pa.Schema:
    """Return the stream's columns; raises SchemaError for strings with a collation."""
    for name, field in zip(source.schema.names, source.rows.schema.fields, strict=True):
        if "collate" in field.dataType.simpleString():
            raise SchemaError(
                f"Column {name!r} of table {table!r} is a {field.dataType.simpleString()}.",
                hint="Strings are compared by their bytes: cast the column to STRING.",
            )
    return source.schema
