"""The functions that Spark runs in its Python workers for the latest values of a stream.

left rows  ─► LeftPacker  ─┐ (bucket, right?, payload)
                           ├─► by bucket: BucketJoin, with the bucket's values in Spark's state ─► Unpacker ─► rows
right rows ─► RightPacker ─┘
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache import expr
from lookupcache.errors import LookupRuntimeError
from lookupcache.latest.payload import (
    PayloadBuffer,
    by_bucket,
    gather_tables,
    payloads,
    read_payload,
    to_payload,
)
from lookupcache.latest.values import ALIVE, ARRIVED, ORIGIN, POSITION, Layout, find, fold, without_expired
from lookupcache.metrics import Counters
from lookupcache.plan import LookupPlan
from lookupcache.report import Channel
from lookupcache.worker.task import send_errors

if TYPE_CHECKING:
    import pandas as pd

FOUND, AGE = "found", "age"
BUCKET, DELETED, FILE = "bucket", "deleted", "file"
COUNTS = ("rows", "hits", "misses", "cached_keys", "cached_bytes")
_VERSION = 1
_MOST_OUT_ROWS = 10_000


@dataclass(frozen=True)
class LatestPlan:
    """A planned join with latest values, as far as the workers need it.

    ``layout`` are the columns of the state; ``inputs`` the right columns that are read, by their names there;
    ``carried`` is the number of left columns that pass; ``rules`` a hash from `rules_of`.
    """

    plan: LookupPlan
    layout: Layout
    inputs: dict[str, pa.DataType]
    buckets: int
    carried: int
    rules: str

    @property
    def keeps(self) -> str:
        """Which left rows leave the state's operator: ``found``, ``not found`` or ``all``."""
        if self.plan.how in ("inner", "semi"):
            return "found"
        residual = self.plan.residual_sql or self.plan.spark_residual
        return "not found" if self.plan.how == "anti" and not residual else "all"

    @property
    def marks(self) -> bytes:
        """What must be equal in a state that an earlier run of the query has written."""
        return json.dumps({"version": _VERSION, "buckets": self.buckets, "rules": self.rules}).encode()


def rules_of(plan: LookupPlan, *more: Any) -> str:
    """Return a hash of what decides whether a row is a value, which may not change between runs of a query."""
    calc = [expr.to_json(conjunct) for conjunct in plan.calc]
    return hashlib.sha256(json.dumps([calc, *more]).encode()).hexdigest()[:16]


# ── packing ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LeftPacker:
    """Packs left rows by bucket: columns that pass, keys, and the bucket as the last column."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield bucket, side and payload."""
        return send_errors(self._pack(batches))

    def _pack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in gather_tables(batches):
            parts = [(number, part) for number, rows in by_bucket(table, BUCKET) for part in payloads(rows)]
            yield _pack_parts(parts, right=False)


@dataclass(frozen=True)
class RightPacker:
    """Packs right rows by bucket, after constants and calc; without a key, for every bucket.

    Columns that come in: keys, inputs, orders, whether the row deletes, a number of its file, the bucket.
    """

    latest: LatestPlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield bucket, side and payload."""
        return send_errors(self._pack(batches))

    def _pack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, position = partition_id(), 0
        for table in gather_tables(batches):
            rows = self.rows(table, partition, position)
            position += table.num_rows
            if table.column(BUCKET).null_count:
                parts = [(number, part) for part in payloads(rows) for number in range(self.latest.buckets)]
            else:
                keyed = rows.append_column(BUCKET, table.column(BUCKET))
                parts = [(number, part) for number, own in by_bucket(keyed, BUCKET) for part in payloads(own)]
            yield _pack_parts(parts, right=True)

    def rows(self, table: pa.Table, partition: int, position: int) -> pa.Table:
        """Return rows as `values.fold` takes them."""
        layout = self.latest.layout
        alive = self.alive(table)
        columns = {name: table.column(name).cast(type_) for name, type_ in layout.keys.items()}
        for name, type_ in layout.values.items():
            column = table.column(name).cast(type_)
            # What a row that is no value has in its columns is never read, so it is not stored.
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
        """Yield the rows that are values."""
        return send_errors(self._filter(batches))

    def _filter(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        alive = RightPacker(self.latest).alive
        for batch in batches:
            yield batch.filter(alive(pa.Table.from_batches([batch])))


def partition_id() -> int:
    """Return the number of the task's partition."""
    from pyspark import TaskContext  # In a worker it is loaded anyway.

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _is_flat(type_: pa.DataType) -> bool:
    return not pa.types.is_nested(type_)


def _pack_parts(parts: list[tuple[int, bytes]], *, right: bool) -> pa.RecordBatch:
    buckets = pa.array([bucket for bucket, _ in parts], pa.int32())
    sides = pa.array([right] * len(parts), pa.bool_())
    return pa.RecordBatch.from_arrays(
        [buckets, sides, pa.array([payload for _, payload in parts], pa.binary())], ["bucket", "is_right", "payload"]
    )


# ── the stateful operator ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BucketJoin:
    """Folds the right rows of a bucket into its values, then joins its left rows with them.

    Spark calls it once per bucket and micro-batch, with the state that the last committed micro-batch left; what it
    returns and what it writes to the state are committed together.
    """

    latest: LatestPlan

    def __call__(self, key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        """Yield payloads of joined rows, with counts."""
        return send_errors(self._join(frames, state))

    def _join(self, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        with PayloadBuffer() as left:
            right: list[pa.Table] = []
            now = 0
            for frame in frames:
                now = int(frame["now"].iloc[0])
                for is_right, payload in zip(frame["is_right"], frame["payload"], strict=True):
                    if is_right:
                        right.append(read_payload(payload))
                    else:
                        left.append(payload)
            values = self._update_values(state, right, now)
            alive = values.filter(values.column(ALIVE)) if values.num_rows else values
            stored = alive.num_rows, alive.nbytes
            for table in left.tables():
                yield self._output(table, alive, now, stored)
                stored = 0, 0  # Counted with the first of them.

    def _update_values(self, state: Any, right: list[pa.Table], now: int) -> pa.Table:
        """Return the bucket's values after a micro-batch, and store them if they changed."""
        stored = self._read(state)
        values = without_expired(self.latest.layout, stored, now)
        if right:
            values = fold(self.latest.layout, values, pa.concat_tables(right), now)
        if values is not stored:
            self._write(state, values)
        return values

    def _write(self, state: Any, values: pa.Table) -> None:
        if values.num_rows:
            state.update((to_payload(values.replace_schema_metadata({b"lookup": self.latest.marks})),))
        elif state.exists:
            state.remove()

    def _read(self, state: Any) -> pa.Table:
        if not state.exists:
            return self.latest.layout.schema.empty_table()
        stored = read_payload(bytes(state.get[0]))
        return adapt_state(self.latest, stored)

    def _output(self, table: pa.Table, alive: pa.Table, now: int, stored: tuple[int, int]) -> pd.DataFrame:
        layout, carried = self.latest.layout, self.latest.carried
        keys = [table.column(carried + number).combine_chunks() for number in range(len(layout.keys))]
        positions = find(layout, alive, keys)
        found = positions >= 0
        counts = (table.num_rows, int(found.sum()), int((~found).sum()), *stored)
        joined = _columns(self.latest, table, alive, positions, now)
        if self.latest.keeps != "all":
            joined = joined.filter(pa.array(found if self.latest.keeps == "found" else ~found))
        return _frame(list(payloads(joined)), counts)


def adapt_state(latest: LatestPlan, stored: pa.Table) -> pa.Table:
    """Return a state's table in the columns of this query; raises LookupRuntimeError where another one has written it.

    A query may read fewer columns than before, and may get an order later: older values then come first in it.
    """
    layout = latest.layout
    marks = json.loads((stored.schema.metadata or {}).get(b"lookup", b"{}"))
    mine = json.loads(latest.marks)
    changed = [name for name in mine if marks.get(name) != mine[name]]
    types = {field.name: field.type for field in stored.schema}
    columns = {}
    for field in layout.schema:
        if types.get(field.name) == field.type:
            columns[field.name] = stored.column(field.name)
        elif field.name in layout.orders and field.name not in types:
            columns[field.name] = pa.nulls(stored.num_rows, field.type)
        else:
            changed.append(f"column {field.name.removeprefix('v:')}")
    if changed:
        raise _state_error(layout.table, changed[0])
    return pa.table(columns, schema=layout.schema)


def _state_error(table: str, what: str) -> LookupRuntimeError:
    what = {"rules": "conditions on its columns, or 'delete_when'", "version": "lookupcache"}.get(what, what)
    return LookupRuntimeError(
        f"The checkpoint has values of table {table!r} that another query has written: it differs in {what}.",
        hint="Go on with the query that started the checkpoint, or start with a new checkpoint.",
    )


def _columns(latest: LatestPlan, table: pa.Table, alive: pa.Table, positions: Any, now: int) -> pa.Table:
    """Return left columns, the values that were found, whether there is one, and its age in seconds."""
    index = pa.array(positions, mask=positions < 0)
    columns = [table.column(number) for number in range(latest.carried)]
    columns += [alive.column(name).take(index) for name in latest.layout.values]
    arrived = alive.column(ARRIVED).take(index)
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
    """Yields the rows of joined payloads, and reports what was counted."""

    channel: Channel

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield joined rows."""
        return send_errors(self._unpack(batches))

    def _unpack(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts: dict[str, Any] = dict(Counters())
        # The values of a partition of the state are counted where it is, whichever worker has it this time.
        counts["worker"] = f"state partition {partition_id()}"
        yield from self.channel.reporting(_rows(batches, counts), counts)


def _rows(batches: Iterable[pa.RecordBatch], counts: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for name in COUNTS:
            counts[name] = counts.get(name, 0) + (pc.sum(batch.column(name)).as_py() or 0)
        packed = [read_payload(payload.as_buffer()) for payload in batch.column("joined") if payload.is_valid]
        for table in gather_tables(one for rows in packed for one in rows.to_batches()):
            yield from table.combine_chunks().to_batches(max_chunksize=_MOST_OUT_ROWS)
