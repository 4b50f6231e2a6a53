"""`RowStore`: rows in Arrow columns, appended in batches, gathered by number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lookupcache.cache.keys import Positions

_MOST_BYTES_IN_A_RUN = 1 << 30
"""Offsets of Arrow strings have 32 bits, so a column of a run must stay well below 2 GiB."""

_IDLE_GATHERS = 8
"""After so many gathers without an append the store is taken as complete, and its runs are merged."""


class RowStore:
    """Rows numbered from 0 in the order in which they were appended.

    Each append adds a run, which is one Arrow batch. Merging it at once with all rows before would copy the full
    store each time; a run per append would make gathers slow. So a run is merged with the one before it when that is
    at most twice as long, as in a log-structured merge tree: there are only a few runs, and a row is copied a
    logarithmic number of times. A store that no longer grows merges all of them, and a gather is then one ``take``
    per column.

    >>> store = RowStore(pa.schema([("name", pa.string())]))
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

    def __len__(self) -> int:
        return int(self._starts[-1])

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
            self._runs.append(rows if isinstance(rows, pa.RecordBatch) else _copy_rows(rows))
            while len(self._runs) > 1 and 2 * self._runs[-1].num_rows >= self._runs[-2].num_rows and self._merge_two():
                pass
            self._number()
        return first

    def gather(self, numbers: Positions) -> list[pa.Array]:
        """Return the columns of these rows; -1 gives a row of nulls."""
        if not len(self.schema):
            return []
        self._merge_when_idle()
        if len(self._runs) <= 1 or not len(numbers):
            return self._gather_run(self._runs[0] if self._runs else _empty(self.schema), numbers)
        run_of = np.searchsorted(self._starts, numbers, side="right") - 1
        runs = np.unique(run_of)
        if len(runs) == 1:
            return self._gather_part(int(runs[0]), numbers)
        # One take per run; then the rows are put back into the order of the request.
        order = np.argsort(run_of, kind="stable")
        pieces = [self._gather_part(int(run), numbers[run_of == run]) for run in runs]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return [pa.concat_arrays(column).take(pa.array(back)) for column in zip(*pieces, strict=True)]

    def keep(self, numbers: Positions) -> None:
        """Keep only these rows, numbered from 0 in this order."""
        columns = self.gather(numbers)
        self._runs = [pa.RecordBatch.from_arrays(columns, schema=self.schema)] if len(numbers) and columns else []
        self._starts = np.array([0, len(numbers)])

    def clear(self) -> None:
        """Remove all rows."""
        self._runs, self._starts = [], np.zeros(1, dtype=np.int64)

    def _gather_part(self, run: int, numbers: Positions) -> list[pa.Array]:
        """Gather rows of one run; run -1 stands for rows of number -1, which are null in any run."""
        return self._gather_run(self._runs[max(run, 0)], numbers - self._starts[run] if run >= 0 else numbers)

    def _gather_run(self, run: pa.RecordBatch, numbers: Positions) -> list[pa.Array]:
        missing = numbers < 0
        index = pa.array(numbers, mask=missing) if missing.any() else pa.array(numbers)
        return [column.take(index) for column in run.columns]

    def _merge_when_idle(self) -> None:
        """Merge all runs after some gathers without an append."""
        self._idle += 1
        if self._idle == _IDLE_GATHERS:
            while len(self._runs) > 1 and self._merge_two():
                pass
            self._number()

    def _merge_two(self) -> bool:
        right, left = self._runs.pop(), self._runs.pop()
        if left.nbytes + right.nbytes > _MOST_BYTES_IN_A_RUN:
            self._runs += [left, right]
            return False
        columns = [pa.concat_arrays(pair) for pair in zip(left.columns, right.columns, strict=True)]
        self._runs.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        return True

    def _number(self) -> None:
        self._idle = 0
        self._starts = np.cumsum([0, *(run.num_rows for run in self._runs)])


def _copy_rows(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows as one batch with its own buffers: a slice would keep those of the full table alive."""
    everything = pa.array(np.arange(rows.num_rows))
    columns = [_flat(column).take(everything) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    flat = column.combine_chunks()
    return pa.concat_arrays(flat.chunks) if isinstance(flat, pa.ChunkedArray) else flat


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
