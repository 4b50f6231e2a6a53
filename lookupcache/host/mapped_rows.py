"""Rows of a batch where they lie: in mapped segments, and next to them in the worker's own cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.arrays import from_numpy
from lookupcache.cache import ColumnCache
from lookupcache.cache.appended_rows import gather_runs
from lookupcache.cache.entry_columns import AnyEntries, Numbers
from lookupcache.cache.hash_index import Entries
from lookupcache.host.segment import Segment, Times
from lookupcache.host.segments import Part

_RUN = 32
"""Above these bits, the number of a row says which segment it is in, counted from 1; 0 is the own cache."""


class SegmentRows:
    """The rows of one segment, by the numbers of its entries."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    @property
    def unique(self) -> bool:
        return self._segment.is_unique

    def counts(self, entries: AnyEntries) -> Numbers:
        if self._segment.is_one_each:
            return (entries >= 0).astype(np.int64)
        return self._column(self._segment.counts, entries, 0)

    def starts(self, entries: AnyEntries) -> Numbers:
        if self._segment.is_one_each:
            return entries.astype(np.int64, copy=False)
        starts = self._column(self._segment.starts, entries, -1)
        starts[self.counts(entries) == 0] = -1
        return starts

    def gather(self, rows: Numbers) -> list[pa.Array]:
        missing = rows < 0
        index = from_numpy(rows, missing if missing.any() else None)
        return [column.take(index) for column in self._segment.columns.columns]

    def age(self, entries: AnyEntries, now: float) -> Times:
        written = self._column(self._segment.written, entries, math.nan, np.float64)
        return np.maximum(now - written, 0.0)

    def _column(self, column: npt.NDArray[Any], entries: AnyEntries, missing: float, type_: Any = np.int64) -> Any:
        return np.where(entries >= 0, column.take(entries, mode="wrap"), missing).astype(type_, copy=False)


class BatchRows:
    """The rows of a batch of keys, in a worker's own cache and in segments; an entry is the position of a key.

    ``own`` has the entry of each key in the worker's cache, -1 for none.
    """

    def __init__(self, cache: ColumnCache, own: Entries, parts: Sequence[Part]) -> None:
        self._cache = cache
        self._own = own
        self._parts = parts
        is_mapped = sum(len(positions) for _, positions, _ in parts) == len(own)
        # One element more, for entry -1.
        self._counts = np.zeros(len(own) + 1, np.int64) if is_mapped else np.append(cache.counts(own), 0)
        self._starts = np.full(len(own) + 1, -1) if is_mapped else np.append(cache.starts(own), -1)
        runs = [run for run in cache.runs if run.num_rows]
        self._ends = np.cumsum([0, *(run.num_rows for run in runs)])
        self._runs = [*runs, *(segment.columns for segment, _, _ in parts)]
        for number, (segment, positions, entries) in enumerate(parts, 1):
            starts, counts = segment.rows_of(entries)
            self._counts[positions] = counts
            first = starts + (np.int64(number) << _RUN)
            self._starts[positions] = first if segment.is_one_each else np.where(counts > 0, first, -1)
        self.unique = all(segment.is_unique for segment, _, _ in parts) and (is_mapped or cache.unique)

    def counts(self, entries: AnyEntries) -> Numbers:
        return self._counts.take(entries, mode="wrap")

    def starts(self, entries: AnyEntries) -> Numbers:
        return self._starts.take(entries, mode="wrap")

    def gather(self, rows: Numbers) -> list[pa.Array]:
        run_of, own = (rows >> _RUN).astype(np.int16), len(self._ends) - 1
        local = rows & ((1 << _RUN) - 1)
        run_of += np.int16(own - 1) * (run_of > 0)
        if (is_own := (rows >= 0) & (rows < 1 << _RUN)).any():
            at = np.searchsorted(self._ends, local[is_own], side="right") - 1
            run_of[is_own] = at
            local[is_own] -= self._ends.take(at)
        return gather_runs(self._runs, run_of, local)

    def age(self, entries: AnyEntries, now: float) -> Times:
        ages = np.append(self._cache.age(self._own, now), math.nan)
        for segment, positions, found in self._parts:
            ages[positions] = SegmentRows(segment).age(found, now)
        return ages.take(entries, mode="wrap")
