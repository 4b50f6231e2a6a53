"""`AppendedRows`: rows in Arrow columns, appended in batches, gathered by number."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.arrays import distinct, from_numpy
from lookupcache.cache.keys import Positions

_MOST_BYTES_IN_A_RUN = 1 << 30
"""Offsets of Arrow strings have 32 bits, so a column of a run must stay well below 2 GiB."""

_MOST_ROWS = 2**31 - 1
"""Numbers of rows have 32 bits where they are stored."""

_IDLE_GATHERS = 8
"""After this many gathers without an append, the rows are taken as complete, and their runs are merged."""


class AppendedRows:
    """Rows numbered from 0 in the order in which they were appended.

    Each append adds a run, which is one Arrow batch. Merging it at once with all rows before would copy the full
    store each time; a run per append would make gathers slow. So a run is merged with the one before it when that is
    at most twice as long, as in a log-structured merge tree: there are only a few runs, and a row is copied a
    logarithmic number of times. A store that no longer grows merges all of them, and a gather is then one ``take``
    per column.

    >>> store = AppendedRows(pa.schema([("name", pa.string())]))
    >>> store.append(pa.table({"name": ["ann", "bob"]})), store.append(pa.table({"name": ["cy"]}))
    (0, 2)
    >>> [column.to_pylist() for column in store.gather(np.array([2, -1, 0]))]
    [['cy', None, 'ann']]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._runs: list[pa.RecordBatch] = []
        self._starts = np.zeros(1, dtype=np.int64)
        self._idle = 0
        self._borrow: list[pa.RecordBatch] = []
        self._lent_starts: list[int] = []
        self.first_lent = _MOST_ROWS

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def has_lent(self) -> bool:
        """Whether there are rows that are stored elsewhere; their numbers are those from `first_lent` on."""
        return bool(self._borrow)

    @property
    def nbytes(self) -> int:
        """Bytes used, including those of rows that no entry refers to any more."""
        return sum(run.nbytes for run in self._runs)

    def append(self, rows: pa.Table | pa.RecordBatch, count: int | None = None) -> int:
        """Add rows; return the number of the first. ``count`` is how many there are, where they have no columns.

        A batch is kept as it is, so it must not be a slice of a larger one; the rows of a table are copied.
        """
        first = len(self)
        if not len(self.schema):
            # A join may need no columns of the table, and Arrow forgets how long a table without columns is.
            self._starts = np.array([0, first + (rows.num_rows if count is None else count)])
        elif rows.num_rows:
            runs = [*self._runs, rows if isinstance(rows, pa.RecordBatch) else _copy_rows(rows)]
            while len(runs) > 1 and 2 * runs[-1].num_rows >= runs[-2].num_rows and self._merge_two(runs):
                pass
            self._set_runs(runs)
        return first

    def may_lend(self, count: int) -> bool:
        """Return whether ``count`` rows that are stored elsewhere can still be numbered."""
        # Half of the numbers stay free for rows that are appended while these are in use.
        return self.first_lent - count > max(len(self), _MOST_ROWS // 2)

    def lend(self, rows: pa.RecordBatch, count: int) -> int:
        """Make rows that are stored elsewhere part of this store, until `return_lent`; return the number of the first.

        They are numbered downwards from the largest number, so that they take no numbers of appended rows.
        """
        for number, one in zip(self._lent_starts, self._borrow, strict=True):
            if one is rows:
                return number
        self.first_lent -= count
        self._borrow.insert(0, rows)
        self._lent_starts.insert(0, self.first_lent)
        return self.first_lent

    def return_lent(self, numbers: Positions | None = None) -> None:
        """Forget the rows that are stored elsewhere, but for the batches that have these of them."""
        if numbers is None or not len(numbers):
            self._borrow, self._lent_starts, self.first_lent = [], [], _MOST_ROWS
            return
        used = distinct(np.searchsorted(self._lent_starts, numbers, side="right") - 1)
        if len(used) < len(self._borrow):
            self._borrow = [self._borrow[number] for number in used]
            self._lent_starts = [self._lent_starts[number] for number in used]
            self.first_lent = self._lent_starts[0]

    def gather(self, numbers: Positions) -> list[pa.Array]:
        """Return the columns of these rows; -1 gives a row of nulls."""
        if not len(self.schema):
            return []
        self._merge_when_idle()
        batches = [*self._runs, *self._borrow]
        if (len(batches) <= 1 and not self._borrow) or not len(numbers):
            return _take(batches[0] if batches else _empty(self.schema), numbers)
        starts = np.array([*self._starts[:-1], *self._lent_starts])
        present = numbers if numbers.min() >= 0 else numbers[numbers >= 0]
        least, most = np.searchsorted(starts, [present.min(initial=_MOST_ROWS), present.max(initial=-1)], "right") - 1
        if least >= most:
            return _take(batches[most], numbers - starts[most])
        # Few different values of 16 bits: numpy sorts these by radix.
        run_of = (np.searchsorted(starts, numbers, side="right") - 1).astype(np.int16)
        order = np.argsort(run_of, kind="stable")
        return _gather_runs(batches, starts, numbers[order], run_of[order], order)

    def kept(self, numbers: Positions) -> AppendedRows:
        """Return a store of only these rows, numbered from 0 in this order; rows that are stored elsewhere are copied.

        This store stays as it is.
        """
        store = AppendedRows(self.schema)
        if len(numbers):
            columns = self.gather(numbers)
            store._runs = [pa.RecordBatch.from_arrays(columns, schema=self.schema)] if columns else []
            # One start for each run, none if nothing is kept: rows that are stored elsewhere are counted after them.
            store._starts = np.array([0, len(numbers)])
        return store

    def _merge_when_idle(self) -> None:
        """Merge all runs after some gathers without an append."""
        self._idle += 1
        if self._idle == _IDLE_GATHERS:
            runs = list(self._runs)
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
        # Both or none: what needs memory comes before the first of them changes.
        starts = np.cumsum([0, *(run.num_rows for run in runs)])
        self._runs, self._starts, self._idle = runs, starts, 0


def _take(batch: pa.RecordBatch, numbers: Positions) -> list[pa.Array]:
    missing = numbers < 0
    index = from_numpy(numbers, missing if missing.any() else None)
    return [column.take(index) for column in batch.columns]


def _gather_runs(
    batches: list[pa.RecordBatch],
    starts: Positions,
    numbers: Positions,
    run_of: npt.NDArray[np.int16],
    order: Positions,
) -> list[pa.Array]:
    """Take the rows of each run, which are adjacent; then put them back into the order of the request.

    Run -1 stands for rows of number -1, which are null in any run.
    """
    bounds = [0, *(np.flatnonzero(np.diff(run_of)) + 1).tolist(), len(numbers)]
    pieces = []
    for first, last in itertools.pairwise(bounds):
        run = int(run_of[first])
        part = numbers[first:last]
        pieces.append(_take(batches[max(run, 0)], part - starts[run] if run >= 0 else part))
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return [pa.concat_arrays(column).take(from_numpy(back)) for column in zip(*pieces, strict=True)]


def _copy_rows(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows as one batch with its own buffers: a slice would keep those of the full table alive."""
    everything = from_numpy(np.arange(rows.num_rows))
    columns = [_flat(column).take(everything) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    flat = column.combine_chunks()
    return pa.concat_arrays(flat.chunks) if isinstance(flat, pa.ChunkedArray) else flat


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
