"""The functions that Spark runs in its Python workers for the latest values of a stream.

left rows  ─► LeftPacker  ─┐ (bucket, right?, payload)
                           ├─► by bucket: BucketJoin, with the bucket's values in Spark's state ─► Unpacker ─► rows
right rows ─► RightPacker ─┘
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache import expr
from lookupcache.errors import LookupRuntimeError
from lookupcache.latest.load import Loading, LoadRule, Signal
from lookupcache.latest.payload import (
    PayloadBuffer,
    by_bucket,
    gather_tables,
    in_settled_types,
    payloads,
    read_payload,
    read_payloads,
    to_payload,
)
from lookupcache.latest.values import (
    ALIVE,
    ARRIVED,
    ORIGIN,
    POSITION,
    BucketLayout,
    LatestValues,
    Moments,
    fold,
    without_expired,
)
from lookupcache.metrics import Counters
from lookupcache.plan import LookupPlan
from lookupcache.report import Channel
from lookupcache.worker.task import send_errors

if TYPE_CHECKING:
    import pandas as pd

FOUND, AGE = "found", "age"
BUCKET, DELETED, FILE, EVENT = "bucket", "deleted", "file", "event"
COUNTS = ("rows", "hits", "misses", "cached_keys", "cached_bytes", "waiting_rows")
_VERSION = 2
_MOST_OUT_ROWS = 10_000


@dataclass(frozen=True)
class LatestPlan:
    """A planned join with latest values, as far as the workers need it.

    ``layout`` are the columns of the state, and ``inputs`` the right columns that are read, by their names there.
    ``carried`` is the number of left columns that pass. ``rules`` is a hash from `rules_of`, and ``load`` says how long
    left rows wait, if they do. ``has_left_order`` says that left rows have order columns too, ``counts_all`` that all
    values are counted in each micro-batch.
    """

    plan: LookupPlan
    layout: BucketLayout
    inputs: dict[str, pa.DataType]
    buckets: int
    carried: int
    rules: str
    load: LoadRule | None = None
    has_left_order: bool = False
    counts_all: bool = False

    @property
    def row_names(self) -> list[str]:
        """The columns of right rows, in the order in which they reach the workers; a bucket may follow."""
        layout = self.layout
        own = [EVENT] if self.load is not None and self.load.has_event_time else []
        return [*layout.keys, *self.inputs, *layout.orders, DELETED, FILE, *own]

    @property
    def keeps(self) -> str:
        """Which left rows leave the state's operator: ``found``, ``not found`` or ``all``."""
        if self.plan.how in ("inner", "semi"):
            return "found"
        residual = self.plan.residual_sql or self.plan.spark_residual
        return "not found" if self.plan.how == "anti" and not residual else "all"

    @property
    def marks(self) -> bytes:
        """The properties that must be equal in a state that an earlier run of the query has written."""
        marks = {"version": _VERSION, "buckets": self.buckets, "key": self.layout.key_names, "rules": self.rules}
        marks |= {"order_by": [name.removeprefix("o:") for name in self.layout.orders], "load": self.load is not None}
        return json.dumps(marks).encode()

    def signal(self, rows: int = 0, event: int | None = None) -> list[tuple[int, bytes]]:
        """Return the signals that a task with rows sends to buckets besides them.

        One bucket always takes part, so that a changed definition is found though no other has a state yet. With a
        load phase all do, and where all values are counted.
        """
        payload, all_take_part = Signal(rows, event).to_payload(), self.load is not None or self.counts_all
        return [(number, payload) for number in range(self.buckets if all_take_part else 1)]


def rules_of(plan: LookupPlan, *more: Any) -> str:
    """Return a hash of the rules by which a row is a value, which may not change between runs of a query."""
    calc = [expr.to_json(conjunct) for conjunct in plan.calc]
    return hashlib.sha256(json.dumps([calc, *more]).encode()).hexdigest()[:16]


# ── packing ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LeftPacker:
    """Packs left rows by bucket: columns that pass, keys, order columns if any, and the bucket as the last column."""

    latest: LatestPlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return send_errors(self._pack(batches))

    def _pack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for table in gather_tables(batches):
            rows += table.num_rows
            settled = in_settled_types(table)
            parts = [(number, part) for number, own in by_bucket(settled, BUCKET) for part in payloads(own)]
            yield _pack_parts(parts, right=False)
        if rows:
            yield _pack_parts(self.latest.signal(), right=None)


@dataclass(frozen=True)
class RightPacker:
    """Packs right rows by bucket, after constants and calc; without a key, for every bucket.

    Columns that come in, by position: keys, inputs, orders, whether the row deletes, a number of its file, its event
    time, the bucket.
    """

    latest: LatestPlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return send_errors(self._pack(batches))

    def _pack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, position = partition_id(), 0
        events: list[int] = []
        for arrived in gather_tables(batches):
            named = arrived.rename_columns([*self.latest.row_names, BUCKET])
            if EVENT in named.column_names:
                events += [event for event in [pc.max(named.column(EVENT)).as_py()] if event is not None]
            table = _with_keys(named, self.latest.layout)
            if table.num_rows:
                yield self._pack_rows(table, partition, position)
            position += arrived.num_rows
        if position:
            yield _pack_parts(self.latest.signal(position, max(events, default=None)), right=None)

    def _pack_rows(self, table: pa.Table, partition: int, position: int) -> pa.RecordBatch:
        rows = self.rows(table, partition, position)
        if table.column(BUCKET).null_count:
            parts = [(number, part) for part in payloads(rows) for number in range(self.latest.buckets)]
        else:
            keyed = rows.append_column(BUCKET, table.column(BUCKET))
            parts = [(number, part) for number, own in by_bucket(keyed, BUCKET) for part in payloads(own)]
        return _pack_parts(parts, right=True)

    def rows(self, table: pa.Table, partition: int, position: int) -> pa.Table:
        """Return rows as `values.fold` takes them."""
        layout = self.latest.layout
        alive = self.alive(table)
        columns = {name: table.column(name).cast(type_) for name, type_ in layout.keys.items()}
        for name, type_ in layout.values.items():
            column = table.column(name).cast(type_)
            # The columns of a row that is no value are never read, so they are not stored.
            columns[name] = pc.if_else(alive, column, pa.scalar(None, type_)) if _is_flat(type_) else column
        columns |= {name: table.column(name).cast(type_) for name, type_ in layout.orders.items()}
        # A part of the source is a partition of it, or a file in it.
        origin = pc.bit_wise_xor(pc.shift_left(pa.scalar(partition, pa.int64()), 40), table.column(FILE))
        origin = pc.bit_wise_and(origin, pa.scalar((1 << 63) - 1, pa.int64()))
        numbers = pa.array(np.arange(position, position + table.num_rows, dtype=np.int64))
        return pa.table({**columns, ALIVE: alive, ORIGIN: origin, POSITION: numbers}, schema=layout.row_schema)

    def alive(self, table: pa.Table) -> pa.Array:
        """Return which rows are values: they delete none, and constants and calc are true."""
        alive = pc.invert(pc.fill_null(table.column(DELETED), False))
        for conjunct in self.latest.plan.calc:
            alive = pc.and_(alive, pc.fill_null(expr.evaluate(conjunct, self._reader(table)), False))
        return alive.combine_chunks() if isinstance(alive, pa.ChunkedArray) else alive

    def _reader(self, table: pa.Table) -> Callable[[expr.Column], pa.ChunkedArray]:
        types = self.latest.inputs
        return lambda column: table.column(f"v:{column.name}").cast(types[f"v:{column.name}"])


@dataclass(frozen=True)
class ValueFilter:
    """Drops the rows of a batch for which constants and calc are not true."""

    latest: LatestPlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return send_errors(self._filter(batches))

    def _filter(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        alive = RightPacker(self.latest).alive
        for batch in batches:
            named = batch.rename_columns(self.latest.row_names)
            yield batch.filter(alive(pa.Table.from_batches([named])))


def partition_id() -> int:
    """Return the number of the task's partition."""
    from pyspark import TaskContext  # In a worker it is loaded anyway.

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _is_flat(type_: pa.DataType) -> bool:
    return not pa.types.is_nested(type_)


def _with_keys(table: pa.Table, layout: BucketLayout) -> pa.Table:
    """Return the rows whose keys are not null."""
    for name in layout.keys:
        if table.column(name).null_count:
            table = table.filter(table.column(name).is_valid())
    return table


def _pack_parts(parts: list[tuple[int, bytes]], *, right: bool | None) -> pa.RecordBatch:
    """Return payloads with bucket and side; a payload of no side is a signal."""
    buckets = pa.array([bucket for bucket, _ in parts], pa.int32())
    sides = pa.array([right] * len(parts), pa.bool_())
    return pa.RecordBatch.from_arrays(
        [buckets, sides, pa.array([payload for _, payload in parts], pa.binary())], ["bucket", "is_right", "payload"]
    )


# ── the stateful operator ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BucketJoin:
    """Folds the right rows of a bucket into its values, then joins its left rows with them.

    Spark calls it once per bucket and micro-batch, with the state that the last committed micro-batch left. Spark
    commits its result and its changes of the state together.
    """

    latest: LatestPlan

    def __call__(self, key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        """Yield payloads of joined rows, with counts."""
        return send_errors(self._join(int(key[0]), frames, state))

    def _join(self, number: int, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        with PayloadBuffer() as left:
            arrived = receive(frames, left)
            before = self._read(state, arrived.now)
            bucket = self._after(before, arrived)
            # The first bucket has a state though it has no values, and with a load phase all have.
            if bucket != before or not (state.exists or (number and bucket.loading is None)):
                self._write(state, bucket, keeps_empty=not number or bucket.loading is not None)
            values = LatestValues.of(self.latest.layout, bucket.values)
            stored = values.table.num_rows, values.table.nbytes
            if bucket.is_waiting:
                yield _frame([], (0, 0, 0, *stored, state.waiting.append(left.payloads())))
                return
            for table, found in self._to_join(state, left, before, bucket, values, arrived):
                yield self._output(table, found, arrived.now, stored)
                stored = 0, 0  # Counted with the first of them.
            if any(stored):
                yield _frame([], (0, 0, 0, *stored, 0))

    def _to_join(
        self, state: Any, left: PayloadBuffer, before: Bucket, after: Bucket, values: LatestValues, arrived: Arrived
    ) -> Iterator[tuple[pa.Table, LatestValues | Moments]]:
        """Yield the left rows of a bucket, those first that waited, with the values to join them with."""
        if before.is_waiting:
            # Rows of an earlier run may have other order columns behind their keys, which are not read here.
            columns = self.latest.carried + len(self.latest.layout.keys)
            yield from ((table, values) for table in read_payloads(state.waiting.payloads(), columns))
            state.waiting.clear()
        moments = self._moments(before, after, arrived) if self.latest.has_left_order and arrived.right else values
        yield from ((table, moments) for table in left.tables())

    def _moments(self, before: Bucket, after: Bucket, arrived: Arrived) -> Moments:
        stored = self._unexpired(before.values, after.loading, arrived.now)
        return Moments.of(self.latest.layout, stored, pa.concat_tables(arrived.right), after.values, arrived.now)

    def _unexpired(self, values: pa.Table, loading: Loading | None, now: int) -> pa.Table:
        if loading is not None and loading.loaded is None:
            return values
        since = 0 if loading is None else loading.loaded or 0  # Values that are loaded age from the end of the phase.
        return without_expired(self.latest.layout, values, now, since)

    def _after(self, bucket: Bucket, arrived: Arrived) -> Bucket:
        """Return a bucket after a micro-batch; the same object where nothing changed."""
        layout, now, load = self.latest.layout, arrived.now, self.latest.load
        loading = bucket.loading
        if load is not None and loading is not None:
            loading = loading.after(load, arrived.signals, now)
        values = self._unexpired(bucket.values, loading, now)
        if arrived.right:
            values = fold(layout, values, pa.concat_tables(arrived.right), now)
        same = values is bucket.values and loading == bucket.loading
        return bucket if same else Bucket(values, loading)

    def _write(self, state: Any, bucket: Bucket, *, keeps_empty: bool) -> None:
        if bucket.values.num_rows or keeps_empty:
            metadata = {b"lookup": self.latest.marks}
            if bucket.loading is not None:
                metadata[b"load"] = bucket.loading.to_json()
            state.update((to_payload(bucket.values.replace_schema_metadata(metadata)),))
        elif state.exists:
            state.remove()

    def _read(self, state: Any, now: int) -> Bucket:
        load = self.latest.load
        if not state.exists:
            loading = None if load is None else Loading.begin(load, now)
            return Bucket(self.latest.layout.schema.empty_table(), loading)
        stored = read_payload(bytes(state.get[0]))
        values = adapt_state(self.latest, stored)
        loading = None if load is None else Loading.of_json(stored.schema.metadata[b"load"])
        bucket = Bucket(values, loading)
        if load is not None and loading is not None and bucket.is_waiting and loading.left != load.left:
            raise _state_error(self.latest.layout.table, "the left side's columns, while rows of it wait")
        return bucket

    def _output(
        self, table: pa.Table, values: LatestValues | Moments, now: int, stored: tuple[int, int]
    ) -> pd.DataFrame:
        first, keys = self.latest.carried, len(self.latest.layout.keys)
        columns = [table.column(number).combine_chunks() for number in range(first, table.num_columns)]
        positions = values.find(columns[:keys], columns[keys:])
        found = positions >= 0
        counts = (table.num_rows, int(found.sum()), int((~found).sum()), *stored, 0)
        joined = _columns(self.latest, table, values.table, positions, now)
        if self.latest.keeps != "all":
            joined = joined.filter(pa.array(found if self.latest.keeps == "found" else ~found))
        return _frame(list(payloads(joined)), counts)


@dataclass(frozen=True, eq=False)
class Bucket:
    """The state of a bucket: its values, and how far the table is loaded where left rows wait for that."""

    values: pa.Table
    loading: Loading | None

    @property
    def is_waiting(self) -> bool:
        """Whether left rows wait."""
        return self.loading is not None and self.loading.loaded is None


@dataclass(frozen=True)
class Arrived:
    """A bucket's input in a micro-batch besides its left rows, and when that began, in microseconds."""

    right: list[pa.Table]
    signals: list[Signal]
    now: int


def receive(frames: Iterable[pd.DataFrame], left: PayloadBuffer) -> Arrived:
    """Read a bucket's payloads; those of left rows are added to ``left`` unopened."""
    arrived = Arrived([], [], 0)
    for frame in frames:
        if len(frame):
            arrived = replace(arrived, now=int(frame["now"].iloc[0]))
        for is_right, payload in zip(frame["is_right"], frame["payload"], strict=True):
            if is_right is None or is_right != is_right:
                arrived.signals.append(Signal.of_payload(payload))
            elif is_right:
                arrived.right.append(read_payload(payload))
            else:
                left.append(payload)
    return arrived


def adapt_state(latest: LatestPlan, stored: pa.Table) -> pa.Table:
    """Return a state's table in the columns of this query; raises LookupRuntimeError if another query wrote it.

    A query may read fewer columns than before, and may get an order later: older values then come first in it.
    """
    layout = latest.layout
    marks = json.loads((stored.schema.metadata or {}).get(b"lookup", b"{}"))
    mine = json.loads(latest.marks)
    changed = [name for name in mine if marks.get(name) != mine[name]]
    if "order_by" in changed and marks.get("order_by") == []:
        changed.remove("order_by")
    types = {field.name: field.type for field in stored.schema}
    columns = {}
    for field in layout.schema:
        if types.get(field.name) == field.type:
            columns[field.name] = stored.column(field.name)
        elif field.name in layout.orders and field.name not in types:
            columns[field.name] = pa.nulls(stored.num_rows, field.type)
        else:
            changed.append(f"column {_name_in_table(layout, field.name)}")
    if changed:
        raise _state_error(layout.table, changed[0])
    return pa.table(columns, schema=layout.schema)


def _name_in_table(layout: BucketLayout, name: str) -> str:
    """Return the name that a column of the state has in the lookup table."""
    keys = dict(zip(layout.keys, layout.key_names, strict=False))
    return repr(keys.get(name, name.removeprefix("v:").removeprefix("o:")))


def _state_error(table: str, what: str) -> LookupRuntimeError:
    names = {
        "rules": "conditions on its columns, or 'delete_when'", "version": "lookupcache", "buckets": "'buckets'",
        "key": "'key'", "order_by": "'order_by'", "load": "'load'",
    }  # fmt: skip
    what = names.get(what, what)
    return LookupRuntimeError(
        f"The checkpoint has values of table {table!r} that another query has written: it differs in {what}.",
        hint="Go on with the query that started the checkpoint, or start with a new checkpoint.",
    )


def _columns(latest: LatestPlan, table: pa.Table, values: pa.Table, positions: Any, now: int) -> pa.Table:
    """Return left columns, the values that were found, whether there is one, and its age in seconds."""
    index = pa.array(positions, mask=positions < 0)
    columns = [table.column(number) for number in range(latest.carried)]
    columns += [values.column(name).take(index) for name in latest.layout.values]
    arrived = values.column(ARRIVED).take(index)
    age = pc.divide(pc.subtract(pa.scalar(now, pa.int64()), arrived).cast(pa.float64()), 1e6)
    columns += [pa.array(positions >= 0), age]
    return pa.table(columns, names=[str(number) for number in range(len(columns))])


def _frame(parts: list[bytes], counts: tuple[int, ...]) -> pd.DataFrame:
    """Return payloads, the first with the counts; at least one, so that counts without rows arrive."""
    import pandas as pd  # Spark's operator takes nothing else.

    shown: list[bytes | None] = [*parts] or [None]
    zeros = [0] * (len(shown) - 1)
    columns = {name: [count, *zeros] for name, count in zip(COUNTS, counts, strict=True)}
    return pd.DataFrame({"joined": pd.Series(shown, dtype=object), **columns})


# ── unpacking ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Unpacker:
    """Yields the rows of joined payloads, and reports the counts; ``schema`` has the types of their columns."""

    channel: Channel
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield joined rows."""
        return send_errors(self._unpack(batches))

    def _unpack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts: dict[str, Any] = dict(Counters())
        # The values of a partition of the state are counted where it is, whichever worker has it this time.
        counts["worker"] = f"state partition {partition_id()}"
        yield from self.channel.reporting(self._rows(batches, counts), counts)

    def _rows(self, batches: Iterable[pa.RecordBatch], counts: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        is_empty = True
        for batch in _joined_rows(batches, counts):
            is_empty = False
            yield batch
        if is_empty:  # A channel that reports in a row of its own needs a batch that has the columns.
            yield pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in self.schema], schema=self.schema)


def _joined_rows(batches: Iterable[pa.RecordBatch], counts: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for name in COUNTS:
            counts[name] = counts.get(name, 0) + (pc.sum(batch.column(name)).as_py() or 0)
        packed = [read_payload(payload.as_buffer()) for payload in batch.column("joined") if payload.is_valid]
        for table in gather_tables(one for rows in packed for one in rows.to_batches()):
            yield from table.combine_chunks().to_batches(max_chunksize=_MOST_OUT_ROWS)
