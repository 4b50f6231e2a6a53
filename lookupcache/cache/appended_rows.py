"""`AppendedRows`: rows in Arrow columns, appended in batches, gathered by number."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.arrays import from_numpy, whole
from lookupcache.cache.keys import Positions

_MOST_BYTES_IN_A_RUN = 1 << 30
"""Offsets of Arrow strings have 32 bits, so a column of a run must stay well below 2 GiB."""

_MOST_ROWS = 2**31 - 1
"""Numbers of rows have 32 bits where they are stored."""

_IDLE_GATHERS = 8
"""After this many gathers without an append, the rows are taken as complete, and their runs are merged."""


class AppendedRows:
    """Rows numbered from 0 in the order in which they were appended.

    Each append adds a run, which is one Arrow batch. Merging it at once with all rows before would copy the full store
    each time; a run per append would make gathers slow. So a run is merged with the one before it when that is at most
    twice as long, as in a log-structured merge tree. There are only a few runs, and a row is copied a logarithmic
    number of times. A store that no longer grows merges all of them, and a gather is then one ``take`` per column.

    >>> store = AppendedRows(pa.schema([("name", pa.string())]))
    >>> store.append(pa.table({"name": ["ann", "bob"]})), store.append(pa.table({"name": ["cy"]}))
    (0, 2)
    >>> [column.to_pylist() for column in store.gather(np.array([2, -1, 0]))]
    [['cy', None, 'ann']]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.runs: list[pa.RecordBatch] = []
        """The batches that have the rows, which are numbered through all of them."""
        self._starts = np.zeros(1, dtype=np.int64)
        self._idle = 0

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def nbytes(self) -> int:
        """Bytes used, including those of rows that no entry refers to any more."""
        return sum(run.nbytes for run in self.runs)

    def append(self, rows: pa.Table | pa.RecordBatch, count: int | None = None) -> int:
        """Add rows; return the number of the first. ``count`` is how many there are, where they have no columns.

        A batch is kept as it is, so it must not be a slice of a larger one; the rows of a table are copied.
        """
        first = len(self)
        if not len(self.schema):
            # A join may need no columns of the table, and Arrow forgets how long a table without columns is.
            self._starts = np.array([0, first + (rows.num_rows if count is None else count)])
        elif rows.num_rows:
            runs = [*self.runs, rows if isinstance(rows, pa.RecordBatch) else _copy_rows(rows)]
            while len(runs) > 1 and 2 * runs[-1].num_rows >= runs[-2].num_rows and self._merge_two(runs):
                pass
            self._set_runs(runs)
        return first

    def gather(self, numbers: Positions) -> list[pa.Array]:
        """Return the columns of these rows; -1 gives a row of nulls."""
        if not len(self.schema):
            return []
        self._merge_when_idle()
        return gather_rows(self.runs or [_empty(self.schema)], self._starts, numbers)

    def kept(self, numbers: Positions) -> AppendedRows:
        """Return a store of only these rows, numbered from 0 in this order; this store stays as it is."""
        store = AppendedRows(self.schema)
        if len(numbers):
            columns = self.gather(numbers)
            store.runs = [pa.RecordBatch.from_arrays(columns, schema=self.schema)] if columns else []
            store._starts = np.array([0, len(numbers)])
        return store

    def _merge_when_idle(self) -> None:
        """Merge all runs after some gathers without an append."""
        self._idle += 1
        if self._idle == _IDLE_GATHERS:
            runs = list(self.runs)
            while len(runs) > 1 and self._merge_two(runs):
                pass
            self._set_runs(runs)

    def _merge_two(self, runs: list[pa.RecordBatch]) -> bool:
        left, right = runs[-2:]
        if left.nbytes + right.nbytes > _MOST_BYTES_IN_A_RUN:
            return False
        columns = [pa.concat_arrays(pair) for pair in zip(left.columns, right.columns, strict=True)]
        runs[-2:] = [pa.RecordBatch.from_arrays(columns, schema=self.schema)]
        return True

    def _set_runs(self, runs: list[pa.RecordBatch]) -> None:
        # Both or none: the steps that need memory come before the first of them changes.
        starts = np.cumsum([0, *(run.num_rows for run in runs)])
        self.runs, self._starts, self._idle = runs, starts, 0


def gather_rows(batches: Sequence[pa.RecordBatch], starts: Positions, numbers: Positions) -> list[pa.Array]:
    """Return the columns of rows that lie in several batches; -1 gives a row of nulls.

    ``starts`` are the numbers of the first row of each batch; they ascend.
    """
    if len(batches) == 1 or not len(numbers):
        return _take(batches[0], numbers)
    starts = starts[: len(batches)]
    present = numbers if numbers.min() >= 0 else numbers[numbers >= 0]
    least, most = np.searchsorted(starts, [present.min(initial=_MOST_ROWS), present.max(initial=-1)], "right") - 1
    if least >= most:
        return _take(batches[most], numbers - starts[most])
    run_of = np.searchsorted(starts, numbers, side="right") - 1
    return gather_runs(batches, run_of.astype(np.int16), numbers - starts.take(run_of, mode="clip"))


def gather_runs(batches: Sequence[pa.RecordBatch], run_of: npt.NDArray[np.int16], rows: Positions) -> list[pa.Array]:
    """Return the columns of rows, each of which is given by the number of its batch and its number in that.

    A row of batch -1 is null.

    >>> runs = [pa.record_batch({"n": [5, 6]}), pa.record_batch({"n": [7]})]
    >>> gather_runs(runs, np.array([1, -1, 0], np.int16), np.array([0, 0, 1]))[0].to_pylist()
    [7, None, 6]
    """
    # Few different values of 16 bits: numpy sorts these by radix.
    order = np.argsort(run_of, kind="stable")
    ends = np.cumsum(np.bincount(run_of + np.int16(1), minlength=1)).tolist()
    spans = [(run, order[start:end]) for run, (start, end) in enumerate(itertools.pairwise(ends)) if start < end]
    local = [(run, at, rows.take(at)) for run, at in spans]
    parts = [(batches[run], at, numbers) for run, at, numbers in local]
    missing = order[: ends[0]]
    back: list[pa.Array] = []
    columns = []
    for number, field in enumerate(batches[0].schema):
        pieces = [(batch.column(number), at, numbers) for batch, at, numbers in parts]
        if not missing.size and _is_plain(field.type) and not any(column.null_count for column, _, _ in pieces):
            columns.append(_gather_plain(field.type, len(rows), pieces))
            continue
        if not back:
            place = np.empty(len(order), dtype=np.int64)
            place[order] = np.arange(len(order))
            back = [from_numpy(place)]
        taken = [column.take(from_numpy(numbers)) for column, _, numbers in pieces]
        columns.append(pa.concat_arrays([pa.nulls(len(missing), field.type), *taken]).take(back[0]))
    return columns


def _is_plain(type_: pa.DataType) -> bool:
    """Return whether values are numbers of whole bytes, which numpy can move."""
    return pa.types.is_primitive(type_) and type_.bit_width in (8, 16, 32, 64)


def _gather_plain(type_: pa.DataType, count: int, pieces: list[tuple[pa.Array, Positions, Positions]]) -> pa.Array:
    """Take values of several arrays to their places in a new one; none is null."""
    dtype = np.dtype(f"u{type_.bit_width // 8}")
    values = np.empty(count, dtype)
    for column, at, rows in pieces:
        stored = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
        values[at] = stored.take(rows)
    return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(values)])


def _take(batch: pa.RecordBatch, numbers: Positions) -> list[pa.Array]:
    missing = numbers < 0
    index = from_numpy(numbers, missing if missing.any() else None)
    return [column.take(index) for column in batch.columns]


def _copy_rows(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows as one batch with its own buffers: a slice would keep those of the full table alive."""
    everything = from_numpy(np.arange(rows.num_rows))
    columns = [whole(column).take(everything) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
