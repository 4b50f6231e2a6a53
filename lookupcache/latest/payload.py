"""Rows as Arrow IPC in a binary column, so that they pass Spark's stateful operator as a few values of bytes.

That operator hands rows to Python through pandas, which makes an object of each value and a float of an integer column
with nulls. A payload is opaque to it: the rows in it stay Arrow columns from end to end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from lookupcache.arrays import to_numpy

PAYLOAD_BYTES = 64 << 10
"""About how large a payload is: Spark puts up to 10,000 of them into one batch, which must stay below 2 GB."""

_TOGETHER_ROWS, _TOGETHER_BYTES = 1 << 16, 8 << 20
_IN_MEMORY = 64 << 20


def gather_tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches as tables of up to 64 K rows or 8 MB, so that each bucket's part of one is not tiny."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _TOGETHER_ROWS or size >= _TOGETHER_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def in_settled_types(table: pa.Table) -> pa.Table:
    """Return rows in types that are the same in every run of a query: timestamps in UTC, all columns nullable.

    Spark gives timestamps the session's time zone. Rows of several runs come together where left rows wait.

    >>> vienna = pa.timestamp("us", "Europe/Vienna")
    >>> in_settled_types(pa.table({"at": pa.array([0], vienna), "all": pa.array([[0]], pa.list_(vienna))})).schema
    at: timestamp[us, tz=UTC]
    all: list<item: timestamp[us, tz=UTC]>
      child 0, item: timestamp[us, tz=UTC]
    """
    settled = pa.schema([_settled(field) for field in table.schema])
    return table if table.schema.equals(settled) else table.cast(settled)


def _settled(field: pa.Field) -> pa.Field:
    return field.with_nullable(True).with_type(_settled_type(field.type))


def _settled_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_):
        return type_ if type_.tz is None else pa.timestamp(type_.unit, "UTC")
    if pa.types.is_struct(type_):
        return pa.struct([_settled(field) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_settled_type(type_.key_type), _settled(type_.item_field))
    if pa.types.is_large_list(type_):
        return pa.large_list(_settled(type_.value_field))
    return pa.list_(_settled(type_.value_field)) if pa.types.is_list(type_) else type_


def payloads(table: pa.Table) -> Iterator[bytes]:
    """Yield the rows of a table as payloads.

    >>> [read_payload(payload).num_rows for payload in payloads(pa.table({"a": range(40_000)}))]
    [8192, 8192, 8192, 8192, 7232]
    """
    step = max(1, PAYLOAD_BYTES * table.num_rows // max(table.nbytes, 1))
    for start in range(0, table.num_rows, step):
        yield to_payload(table.slice(start, step))


def to_payload(table: pa.Table) -> bytes:
    """Return all rows of a table as one payload."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def read_payload(payload: bytes) -> pa.Table:
    """Return the rows of a payload."""
    with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
        return reader.read_all()


def read_payloads(payloads: Iterable[bytes], columns: int | None = None) -> Iterator[pa.Table]:
    """Yield the rows of payloads, those of several together; if ``columns`` is given, only that many first columns."""
    tables = (read_payload(payload) for payload in payloads)
    wanted = (one.select(one.column_names[:columns]) for one in tables)
    return gather_tables(batch for one in wanted for batch in one.to_batches())


def by_bucket(table: pa.Table, bucket: str) -> Iterator[tuple[int, pa.Table]]:
    """Yield each bucket that the column ``bucket`` names, and its rows in their order, without that column.

    >>> [(n, rows["a"].to_pylist()) for n, rows in by_bucket(pa.table({"a": [1, 2, 3], "b": [7, 5, 7]}), "b")]
    [(5, [2]), (7, [1, 3])]
    """
    buckets = to_numpy(table.column(bucket))
    order = np.argsort(buckets, kind="stable")
    rows = table.drop_columns([bucket]).take(pa.array(order))
    sorted_buckets = buckets[order]
    starts = np.flatnonzero(np.r_[True, sorted_buckets[1:] != sorted_buckets[:-1]])
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield int(sorted_buckets[start]), rows.slice(start, end - start)


class PayloadBuffer:
    """Payloads that wait until they are read once, in a temporary file where they are many.

    >>> with PayloadBuffer() as buffer:
    ...     buffer.append(to_payload(pa.table({"a": [1]})))
    ...     buffer.append(to_payload(pa.table({"a": [2]})))
    ...     [table["a"].to_pylist() for table in buffer.tables()]
    [[1, 2]]
    """

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115 - closed by __exit__
        self._sizes: list[int] = []

    def __enter__(self) -> PayloadBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def append(self, payload: bytes) -> None:
        """Add a payload."""
        self._file.write(payload)
        self._sizes.append(len(payload))

    def payloads(self) -> Iterator[bytes]:
        """Yield all payloads."""
        self._file.seek(0)
        return (self._file.read(size) for size in self._sizes)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows of all payloads, those of several together."""
        return read_payloads(self.payloads())
