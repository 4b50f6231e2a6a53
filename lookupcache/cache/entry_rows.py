"""`EntryRows`: the rows of each entry, one after the other in a `AppendedRows`."""

from __future__ import annotations

from copy import copy

import numpy as np
import pyarrow as pa

from lookupcache.cache.appended_rows import AppendedRows
from lookupcache.cache.entry_columns import AnyEntries, Numbers, grow_column, renumber_column
from lookupcache.cache.hash_index import Entries


class EntryRows:
    """Which rows each entry has: the number of its first one and how many follow it.

    ``unique`` says that no entry has more than one row, so a join need not repeat rows. ``dead`` counts the stored
    rows that belong to no entry any more, because the entry was written again or freed.

    >>> rows = EntryRows(pa.schema([("name", pa.string())]))
    >>> rows.grow(2)
    >>> rows.write(np.array([1, 0], np.int32), pa.table({"name": ["ann", "bob", "cy"]}), np.array([1, 2]))
    >>> rows.starts(np.array([0, 1, -1])), rows.counts(np.array([0, 1, -1])), rows.unique
    (array([ 1,  0, -1]), array([2, 1, 0]), False)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.unique = True
        self.dead = 0
        self._store = AppendedRows(schema)
        self._start = np.full(1, -1, dtype=np.int32)
        self._count = np.zeros(1, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._store)

    @property
    def nbytes(self) -> int:
        return self._store.nbytes + self._start.nbytes + self._count.nbytes

    @property
    def capacity(self) -> int:
        """How many entries there is space for, that of entry -1 included."""
        return len(self._count)

    def grow(self, size: int) -> None:
        self._start, self._count = grow_column(self._start, size, -1), grow_column(self._count, size, 0)

    def reserve(self, entries: Entries) -> None:
        """Note new entries that have no rows yet: their numbers may have been another entry's before."""
        self._start[entries] = -1
        self._count[entries] = 0

    def write(self, entries: Entries, rows: pa.Table | pa.RecordBatch, counts: Numbers) -> None:
        """Replace the rows of entries; ``rows`` are in the order of the entries, ``counts`` says how many each has."""
        unique = self.unique and bool((counts <= 1).all())
        starts = np.where(counts > 0, len(self._store) + np.cumsum(counts) - counts, -1)
        dead = self._count_stored(entries)
        self._store.append(rows, int(counts.sum()))
        # The steps from here on need no memory: an entry with its new count and its old start would have others' rows.
        self._count[entries], self._start[entries] = counts, starts
        self.dead, self.unique = self.dead + dead, unique

    @property
    def runs(self) -> list[pa.RecordBatch]:
        return self._store.runs

    def mark_dead(self, entries: Entries) -> None:
        """Count the rows of entries as dead."""
        self.dead += self._count_stored(entries)

    def recount_dead(self, live: Entries) -> None:
        """Count the rows that belong to none of these entries as dead, instead of the count before."""
        self.dead = len(self._store) - self._count_stored(live)

    def counts(self, entries: AnyEntries) -> Numbers:
        return self._count.take(entries, mode="wrap").astype(np.int64)

    def starts(self, entries: AnyEntries) -> Numbers:
        return self._start.take(entries, mode="wrap").astype(np.int64)

    def weights(self, entries: Entries) -> Numbers:
        """Return the weight of each entry: its rows, or one for a known miss."""
        return np.maximum(self._count[entries], 1).astype(np.int64)

    def gather(self, rows: Numbers) -> list[pa.Array]:
        return self._store.gather(rows)

    def renumbered(self, live: Entries) -> EntryRows:
        """Return the rows of the entries ``live`` alone, numbered 0, 1, 2 … in this order, rows in the same order."""
        rows, counts = copy(self), self._count[live].astype(np.int64)
        starts = np.cumsum(counts) - counts
        # Row i of the new store belongs to an entry that begins at its new start. The distance from there is the
        # same in the old store, so the old row is the old start plus i minus the new start.
        rows._store = self._store.kept(np.repeat(self._start[live] - starts, counts) + np.arange(int(counts.sum())))
        rows._start, rows._count = renumber_column(self._start, live), renumber_column(self._count, live)
        rows._start[:-1] = np.where(counts > 0, starts, -1)
        rows.dead, rows.unique = 0, bool((counts <= 1).all())
        return rows

    def _count_stored(self, entries: Entries) -> int:
        return int(self._count[entries].sum())
