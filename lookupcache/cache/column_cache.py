"""`ColumnCache`: Arrow rows by key, a batch of keys at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.arrays import distinct
from lookupcache.cache.age import Times
from lookupcache.cache.entry_columns import AnyEntries, Numbers
from lookupcache.cache.entry_numbers import Lease
from lookupcache.cache.entry_table import EntryTable
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import PROCESS_SEED, KeyBatch, Mask
from lookupcache.cache.limits import Limits


class ColumnCache:
    """Arrow rows by key, a batch of keys at a time.

    An entry is a key with its rows; entries are numbered. `find` leases the entries of a batch of keys until
    `release`; then `enforce_limits` removes entries that are too old or too many. Several batches may be open at a
    time. Recency is by row of the batch: of two keys in one batch, the later is the more recent.

    A key that is being fetched has an entry too: `reserve` makes it, marked with the number of the in-flight call
    group that fetches it. `fill` writes its rows, `fail` removes it. A batch that looks for the key in the meantime
    finds which group to wait for.

    >>> cache = ColumnCache(pa.schema([("name", pa.string())]), [pa.int64()], Limits(rows=2))
    >>> keys = KeyBatch.of([pa.array([7, 8])], [pa.int64()])
    >>> cache.put(keys, pa.table({"name": ["ann", "bob"]}), np.array([2, 0]), now=0)
    array([0, 1], dtype=int32)
    >>> lease = cache.find(KeyBatch.of([pa.array([8, 9, 7])], [pa.int64()]), now=0)
    >>> lease.entries, cache.counts(lease.entries)
    (array([ 1, -1,  0], dtype=int32), array([0, 0, 2]))
    """

    def __init__(
        self, schema: pa.Schema, key_types: Sequence[pa.DataType], limits: Limits, *, seed: int = PROCESS_SEED
    ) -> None:
        self.limits = limits
        self.key_types = tuple(key_types)
        self._seed = seed
        self._table = EntryTable(schema, self.key_types, limits)
        self.evictions = self.expirations = 0

    def __len__(self) -> int:
        return len(self._table)

    @property
    def rows(self) -> int:
        """The weight cached: rows, and one for each known miss."""
        return self._table.weight

    @property
    def nbytes(self) -> int:
        """Bytes used: rows, keys, index, and the columns of entries."""
        return self._table.nbytes

    @property
    def unique(self) -> bool:
        return self._table.rows.unique

    def find(self, keys: KeyBatch, now: float) -> Lease:
        """Lease the entry of each key, -1 if it is not cached, too old or null."""
        table = self._table
        table.recover()
        if not len(table):
            return table.numbers.lease(np.full(len(keys), -1, dtype=np.int32))
        lease = Lease(table.keys.find(keys.with_seed(self._seed)))
        if table.expiry.is_tracked:
            too_old = table.expiry.check(lease, table.in_flight, now)
            if too_old.any():
                self._expire(distinct(lease.entries[too_old]))
                lease.entries[too_old] = -1
        table.numbers.leases.append(lease)
        return lease

    def touch(self, lease: Lease) -> int:
        """Record that a batch uses its entries, in the order of its rows; return the number of distinct entries."""
        entries, unlisted = lease.entries, self._table.numbers.unlisted
        if not unlisted.size:
            return self._table.policy.touch(entries)
        # The policy must not know entries that are not listed: it would choose them for eviction.
        mask = np.zeros(self._table.numbers.size + 1, dtype=np.bool_)
        mask[unlisted] = True
        is_unlisted = mask.take(entries, mode="wrap")
        mask[:] = False
        mask[entries[is_unlisted]] = True
        return self._table.policy.touch(np.where(is_unlisted, -1, entries)) + int(np.count_nonzero(mask))

    def reserve(self, keys: KeyBatch, group: int, now: float) -> Entries:
        """Make entries for distinct keys that are not cached and are now being fetched.

        None of the keys is null. ``group``, above 0, is the call group that fetches them: batches that find them wait
        for it.
        """
        self._table.recover()
        return self._table.add(keys.with_seed(self._seed), group, now)

    def request_again(self, entries: Entries, group: int, *, wait: bool) -> None:
        """Record that cached entries are being fetched again, and whether a batch that finds them must wait."""
        self._table.in_flight.start(entries, group if wait else -group)

    def waits(self, lease: Lease) -> set[int]:
        """Return the call groups that a batch has to wait for."""
        return self._table.in_flight.waits(lease.entries)

    def hand_over(self, entries: Entries, group: int) -> None:
        """Record that another call group now fetches entries that are being fetched."""
        self._table.in_flight.hand_over(entries, group)

    def fill(
        self,
        entries: Entries,
        rows: pa.Table | pa.RecordBatch,
        counts: Numbers,
        now: float | Times,
        deadline: Times | None = None,
    ) -> None:
        """Write the rows of entries that were being fetched.

        Rows that may not be cached are still there for the batches that lease the entries. Rows are in the order of the
        entries, and ``counts`` says how many each has. ``now`` is when they were fetched, all or each. ``deadline`` is
        when each entry expires; if None, the limits say so.
        """
        # Another number of rows would give entries the rows of others.
        assert not rows.num_columns or rows.num_rows == counts.sum(), "rows that belong to no entry"
        self._table.recover()
        listed = self._table.fill(entries, rows, counts, now, deadline)
        uncached = listed if not self.limits.remembers else listed & (counts == 0) & (not self.limits.misses)
        if uncached.any():
            self._table.unlist(entries[uncached])
        too_large = listed & ~uncached & self._is_oversized(rows, counts)
        if too_large.any():
            self._refuse(entries[too_large])

    def fail(self, entries: Entries, now: float) -> Mask:
        """Record that fetching entries has failed; return which have no stale rows to serve, and are removed."""
        table = self._table
        table.recover()
        # If this fails itself, no entry may stay listed that has neither rows nor a call.
        with table.changing():
            lost = table.expiry.is_too_stale(entries, now)
            table.unlist(entries[lost & table.numbers.is_listed(entries)])
            table.in_flight.finish(entries)
        return lost

    def unlist(self, entries: Entries) -> None:
        """Stop finding those of these entries that are not being fetched; batches that lease them have their rows."""
        table = self._table
        table.recover()
        settled = entries[table.in_flight.of(entries) == 0]
        table.unlist(settled[table.numbers.is_listed(settled)])

    def put(self, keys: KeyBatch, rows: pa.Table | pa.RecordBatch, counts: Numbers, now: float) -> Entries:
        """Add the rows of distinct keys that are not cached; return their entries.

        None of the keys is null; rows are in their order, and ``counts`` says how many each has.
        """
        entries = self.reserve(keys, 1, now)
        self.fill(entries, rows, counts, now)
        return entries

    def lease(self, entries: Entries) -> Lease:
        return self._table.numbers.lease(entries)

    def invalidate(self, keys: KeyBatch | None) -> int:
        """Remove keys, or with None all of them; return how many were cached.

        Batches that lease them still have their rows. Rows that are being fetched for them are not cached when they
        arrive: the source may have read them before the change.
        """
        table = self._table
        table.recover()
        # If this fails, all keys are removed, so that no removed key is found again.
        with table.changing():
            entries = (
                table.numbers.listed_entries()
                if keys is None
                else distinct(table.keys.find(keys.with_seed(self._seed)))
            )
            entries = entries[entries >= 0]
            if entries.size:
                table.drop(entries)
        return len(entries)

    def release(self, lease: Lease) -> None:
        self._table.numbers.release(lease)

    def age(self, entries: AnyEntries, now: float) -> npt.NDArray[np.float64]:
        return self._table.expiry.age(entries, now)

    def is_usable(self, entries: Entries, now: float) -> Mask:
        """Return which of these entries, listed or not, are being fetched, or young enough without a fetch."""
        return self._table.expiry.is_usable(entries, self._table.in_flight, now)

    def count_stale(self, entries: Entries, now: float) -> int:
        """Return how many of these entries are past their deadline."""
        return self._table.expiry.count_stale(entries, now)

    def counts(self, entries: AnyEntries) -> Numbers:
        return self._table.rows.counts(entries)

    def starts(self, entries: AnyEntries) -> Numbers:
        return self._table.rows.starts(entries)

    def gather(self, rows: Numbers) -> list[pa.Array]:
        return self._table.rows.gather(rows)

    @property
    def runs(self) -> list[pa.RecordBatch]:
        return self._table.rows.runs

    def enforce_limits(self, now: float) -> None:
        """End a batch: remove entries that may not stay, or exceed the limits; leased entries keep their rows."""
        self._table.recover()
        if self.limits.remembers or self._leases:
            self._enforce(now)
        else:
            self.clear()

    def clear(self) -> None:
        self._table.clear()

    # ── limits ───────────────────────────────────────────────────────────────────────────────────────────

    def _enforce(self, now: float) -> None:
        """Remove entries that are too old, then those above the limit of rows, then of bytes."""
        # In this order: expired entries need not be evicted, and bytes count only what compaction leaves.
        self._table.free_unlisted()
        self._sweep(now)
        if self._table.weight > self.limits.rows:
            self._evict(self._table.weight - self.limits.rows)
        if self._table.is_sparse:
            self._table.compact()
        if self.limits.bytes < math.inf:
            self._enforce_bytes()

    def _is_oversized(self, rows: pa.Table | pa.RecordBatch, counts: Numbers) -> Mask:
        """Return which entries are larger than the limits on their own; ``rows`` are in the order of the entries.

        Evicting others would not make enough space for these, and would empty the cache.
        """
        too_large = counts > max(self.limits.rows, 1)
        if rows.nbytes > self.limits.bytes:
            self._mark_large(too_large, rows, np.concatenate([[0], np.cumsum(counts)]), 0, len(counts))
        return too_large

    def _refuse(self, entries: Entries) -> None:
        """Evict entries whose rows have just arrived; batches that lease them still have the rows."""
        self._table.unlist(entries)
        self.evictions += len(entries)

    def _expire(self, entries: Entries) -> None:
        """Remove entries that are too old."""
        self._table.drop(entries)
        self.expirations += len(entries)

    def _mark_large(
        self, too_large: Mask, rows: pa.Table | pa.RecordBatch, ends: Numbers, first: int, last: int
    ) -> None:
        """Mark the entries of a part that exceed the limit of bytes; halve parts in which there may be some."""
        first_row, last_row = int(ends[first]), int(ends[last])
        if rows.slice(first_row, last_row - first_row).nbytes <= self.limits.bytes:
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
                self._expire(expired)

    def _enforce_bytes(self) -> None:
        """Evict entries until the bytes are within the limit, a tenth more than needed each time.

        Bytes are known only after compaction, which copies all rows: the tenth makes it rare. The bytes of a single
        entry are not known either, so the same share of the weight is evicted, and again until it suffices.
        """
        if self._table.rows.dead and self._table.nbytes > self.limits.bytes:
            self._table.compact()
        while (used := self._table.nbytes) > self.limits.bytes and len(self._table):
            excess = 1 - 0.9 * self.limits.bytes / used
            self._evict(max(1, math.ceil(self._table.weight * excess)))
            self._table.compact()

    def _evict(self, weight: float) -> None:
        self.evictions += self._table.evict(weight)

    # ── state that tests check after a run ───────────────────────────────────────────────────────────────

    @property
    def _leases(self) -> list[Lease]:
        return self._table.numbers.leases

    @property
    def _pending(self) -> int:
        return self._table.in_flight.pending

    def _live(self) -> Entries:
        return self._table.numbers.listed_entries()
