"""`LimitEnforcer`: removes entries that are too old or too many, and returns unused memory."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from lookupcache.cache.entry_columns import Numbers
from lookupcache.cache.entry_table import EntryTable
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Mask
from lookupcache.cache.limits import Limits


class LimitEnforcer:
    """Keeps an `EntryTable` within `Limits`; counts the entries that were evicted and those that expired."""

    def __init__(self, table: EntryTable, limits: Limits) -> None:
        self.evictions = 0
        self.expirations = 0
        self._table = table
        self._limits = limits

    def enforce(self, now: float) -> None:
        """Remove entries that are too old, then those above the limit of rows, then of bytes."""
        # In this order: expired entries need not be evicted, and bytes count only what compaction leaves.
        self._table.free_unlisted()
        self._sweep(now)
        if self._table.weight > self._limits.rows:
            self._evict(self._table.weight - self._limits.rows)
        if self._table.is_sparse:
            self._table.compact()
        if self._limits.bytes < math.inf:
            self._enforce_bytes()

    def is_oversized(self, rows: pa.Table | pa.RecordBatch, counts: Numbers) -> Mask:
        """Return which entries are larger than the limits on their own; ``rows`` are in the order of the entries.

        Evicting others would not make enough space for these, and would empty the cache.
        """
        too_large = counts > max(self._limits.rows, 1)
        if rows.nbytes > self._limits.bytes:
            self._mark_large(too_large, rows, np.concatenate([[0], np.cumsum(counts)]), 0, len(counts))
        return too_large

    def refuse(self, entries: Entries) -> None:
        """Evict entries whose rows have just arrived; batches that lease them still have the rows."""
        self._table.unlist(entries)
        self.evictions += len(entries)

    def expire(self, entries: Entries) -> None:
        """Remove entries that are too old."""
        self._table.drop(entries)
        self.expirations += len(entries)

    def _mark_large(
        self, too_large: Mask, rows: pa.Table | pa.RecordBatch, ends: Numbers, first: int, last: int
    ) -> None:
        """Mark the entries of a part that exceed the limit of bytes; halve parts in which there may be some."""
        first_row, last_row = int(ends[first]), int(ends[last])
        if rows.slice(first_row, last_row - first_row).nbytes <= self._limits.bytes:
            return
        if last - first == 1:
            too_large[first] = True
            return
        middle = (first + last) // 2
        self._mark_large(too_large, rows, ends, first, middle)
        self._mark_large(too_large, rows, ends, middle, last)

    def _sweep(self, now: float) -> None:
        table = self._table
        if table.numbers.size and table.expiry.is_sweep_due(now):
            expired = table.expiry.sweep(table.numbers.listed_entries(), table.in_flight, now)
            if expired.size:
                self.expire(expired)

    def _enforce_bytes(self) -> None:
        """Evict entries until the bytes are within the limit, a tenth more than needed each time.

        Bytes are known only after compaction, which copies all rows: the tenth makes it rare. The bytes of a single
        entry are not known either, so the same share of the weight is evicted, and again until it suffices.
        """
        if self._table.rows.dead and self._table.nbytes > self._limits.bytes:
            self._table.compact()
        while (used := self._table.nbytes) > self._limits.bytes and len(self._table):
            excess = 1 - 0.9 * self._limits.bytes / used
            self._evict(max(1, math.ceil(self._table.weight * excess)))
            self._table.compact()

    def _evict(self, weight: float) -> None:
        self.evictions += self._table.evict(weight)
