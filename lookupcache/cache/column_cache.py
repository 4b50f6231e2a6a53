"""`ColumnCache`: Arrow rows by key, a batch of keys at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.cache.hash_index import Entries, HashIndex
from lookupcache.cache.keys import Hashes, KeyBatch, Mask, is_exact
from lookupcache.cache.limits import Limits
from lookupcache.cache.row_store import RowStore

Numbers = npt.NDArray[np.int64]


class ColumnCache:
    """Arrow rows by key, a batch of keys at a time.

    An entry is a key with its rows, which lie one after the other in a `RowStore`; entries are numbered.
    `find` and `put` give entry numbers, valid until `settle`, which the caller calls when a batch is done:
    only then are entries evicted and dead rows cleared away, so a batch always finds what it has loaded.
    Recency is by row of the batch: of two keys in one batch, the later is the more recent.

    ``schema`` is that of the rows, ``key_types`` are those of the key columns. ``found`` is how many
    different entries the last find gave.

    >>> cache = ColumnCache(pa.schema([("name", pa.string())]), [pa.int64()], Limits(rows=2))
    >>> keys = KeyBatch.of([pa.array([7, 8])], [pa.int64()])
    >>> cache.put(keys, pa.table({"name": ["ann", "bob"]}), np.array([2, 0]), now=0)
    array([0, 1], dtype=int32)
    >>> entries = cache.find(KeyBatch.of([pa.array([8, 9, 7])], [pa.int64()]), now=0)
    >>> entries, cache.counts(entries)
    (array([ 1, -1,  0], dtype=int32), array([0, 0, 2]))
    """

    def __init__(self, schema: pa.Schema, key_types: Sequence[pa.DataType], limits: Limits) -> None:
        self.limits = limits
        self.key_types = tuple(key_types)
        self.evictions = 0
        self.expirations = 0
        self.found = 0
        self._rows = RowStore(schema)
        self._keys = None if is_exact(key_types) else RowStore(_key_schema(key_types))
        self._index = HashIndex()
        self._reset()

    def _reset(self) -> None:
        self.unique = True
        self._clock = 0
        self._next_sweep = -math.inf
        self._weight = 0
        self._dead_rows = 0
        self._size = 0
        self._transient = self._free = np.empty(0, dtype=np.int32)
        self._start = np.full(1, -1, dtype=np.int32)
        self._count = np.zeros(1, dtype=np.int32)
        self._key_row = np.full(1, -1, dtype=np.int32)
        self._used = np.zeros(1, dtype=np.int64)
        self._deadline = np.full(1, math.inf)
        self._idle_deadline = np.full(1, math.inf)
        self._oldest = np.empty(0, dtype=np.int32)
        self._oldest_used = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def rows(self) -> int:
        """The weight held: rows, and one for each known miss."""
        return self._weight

    @property
    def nbytes(self) -> int:
        """Bytes held: rows, keys, index, and what is kept per entry."""
        stores = self._rows.nbytes + (self._keys.nbytes if self._keys else 0) + self._index.nbytes
        queues = self._free.nbytes + self._oldest.nbytes + self._oldest_used.nbytes
        return stores + queues + sum(array.nbytes for array in self._entry_arrays().values())

    def find(self, keys: KeyBatch, now: float) -> Entries:
        """Return the entry of each key, -1 where it is not here, too old or null; hits become recent."""
        entries = self._index.find(keys.hashes)
        if keys.valid is not None:
            entries[~keys.valid] = -1
        if self._keys is not None:
            entries = self._verified(entries, keys)
        if self.limits.expire:
            entries = self._fresh(entries, now)
        self.found = self._touch(entries)
        return entries

    def put(self, keys: KeyBatch, rows: pa.Table, counts: Numbers, now: float) -> Entries:
        """Keep the rows of distinct keys that are not here; return their entries.

        ``rows`` are in the order of the keys, ``counts`` says how many each key has.
        """
        entries = self._new_entries(len(keys))
        first = self._rows.append(rows)
        self._count[entries] = counts
        self._start[entries] = np.where(counts > 0, first + np.cumsum(counts) - counts, -1)
        if self._keys is not None:
            self._key_row[entries] = self._keys.append(_key_table(keys, self._keys.schema)) + np.arange(len(keys))
        if self.limits.expire:
            ages = np.where(counts > 0, self.limits.write_seconds, self.limits.miss_seconds)
            self._deadline[entries] = now + ages
        if self.limits.access_seconds < math.inf:
            self._idle_deadline[entries] = now + self.limits.access_seconds
        self.unique = self.unique and bool((counts <= 1).all())
        self._remember(entries, keys.hashes, self._kept(keys.hashes, counts))
        self._touch(entries)
        return entries

    def counts(self, entries: Entries) -> Numbers:
        """Return the number of rows of each entry, 0 for -1."""
        return self._count.take(entries, mode="wrap").astype(np.int64)

    def starts(self, entries: Entries) -> Numbers:
        """Return the number of the first row of each entry, -1 where it has none."""
        return self._start.take(entries, mode="wrap").astype(np.int64)

    def gather(self, rows: Numbers) -> list[pa.Array]:
        """Return the columns of rows by their numbers; -1 gives nulls."""
        return self._rows.gather(rows)

    def settle(self, now: float) -> None:
        """End a batch: drop what may not be kept, then the least recently used until the limits hold."""
        if not self.limits.remembers:
            return self.clear()
        if self._transient.size:
            self._release(self._transient)
            self._transient = np.empty(0, dtype=np.int32)
        self._sweep(now)
        if self._weight > self.limits.rows:
            self._evict(self._weight - self.limits.rows)
        self._tidy()
        while self.nbytes > self.limits.bytes and len(self._index):
            self._evict_bytes()
        return None

    def clear(self) -> None:
        """Forget every key."""
        self._rows.clear()
        if self._keys is not None:
            self._keys.clear()
        self._index.clear()
        self._reset()

    # ── finding ──────────────────────────────────────────────────────────────────────────────────────────

    def _verified(self, entries: Entries, keys: KeyBatch) -> Entries:
        """Drop entries whose key has the same hash as the one wanted, but is another key."""
        assert self._keys is not None
        stored = self._keys.gather(self._key_row.take(entries, mode="wrap").astype(np.int64))
        for column, wanted in zip(stored, keys.columns, strict=True):
            same = pc.equal(_comparable(column), _comparable(wanted))
            if same.null_count < len(same) and not pc.all(same).as_py():
                entries[~same.fill_null(True).to_numpy(zero_copy_only=False)] = -1
        return entries

    def _fresh(self, entries: Entries, now: float) -> Entries:
        """Drop and forget entries that have grown too old."""
        old = now > self._deadline.take(entries, mode="wrap")
        if self.limits.access_seconds < math.inf:
            old |= now > self._idle_deadline.take(entries, mode="wrap")
            self._idle_deadline[entries] = now + self.limits.access_seconds
            self._idle_deadline[-1] = math.inf
        if old.any():
            self._forget(np.unique(entries[old]))
            entries[old] = -1
        return entries

    def _touch(self, entries: Entries) -> int:
        """Make entries recent in the order of their rows; return how many different ones there are.

        Of a row's writes to one place numpy lets the last win, so each entry bears the number of one row.
        """
        numbers = np.arange(self._clock, self._clock + len(entries))
        self._clock += len(entries)
        self._used[entries] = numbers
        last = np.count_nonzero(self._used.take(entries, mode="wrap") == numbers)
        return int(last) - bool(len(entries) and entries.min() < 0)

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────────────

    def _entry_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is held per entry, by attribute."""
        names = ["_start", "_count", "_used"]
        names += ["_key_row"] if self._keys is not None else []
        names += ["_deadline"] if self.limits.expire else []
        names += ["_idle_deadline"] if self.limits.access_seconds < math.inf else []
        return {name: getattr(self, name) for name in names}

    def _new_entries(self, count: int) -> Entries:
        """Take free entry numbers, and make new ones where there are too few.

        The last place of every array belongs to no entry. It answers for entry -1: no rows, never too old.
        """
        fresh = max(count - len(self._free), 0)
        needed = self._size + fresh + 1
        if needed > len(self._start):
            grown = max(needed, len(self._start) * 5 // 4, 64)
            for name, array in self._entry_arrays().items():
                setattr(self, name, np.concatenate([array[:-1], np.full(grown - len(array) + 1, array[-1])]))
        numbers = np.arange(self._size, self._size + fresh, dtype=np.int32)
        entries = np.concatenate([self._free[:count], numbers])
        self._free = self._free[count:].copy()
        self._size += fresh
        return entries

    def _kept(self, hashes: Hashes, counts: Numbers) -> Mask:
        """Return which new entries may outlive the batch: of keys with equal hashes, only the first."""
        if not self.limits.remembers:
            return np.zeros(len(hashes), dtype=np.bool_)
        kept = np.ones(len(hashes), dtype=np.bool_) if self.limits.misses else counts > 0
        if self._keys is not None:
            kept &= self._index.find(hashes) < 0
            first = np.zeros(len(hashes), dtype=np.bool_)
            first[np.unique(hashes, return_index=True)[1]] = True
            kept &= first
        return kept

    def _remember(self, entries: Entries, hashes: Hashes, kept: Mask) -> None:
        self._index.insert(hashes[kept], entries[kept])
        self._weight += self._weigh(entries[kept])
        self._transient = np.concatenate([self._transient, entries[~kept]])

    def _weigh(self, entries: Entries) -> int:
        return int(np.maximum(self._count[entries], 1).sum())

    # ── forgetting ───────────────────────────────────────────────────────────────────────────────────────

    def _forget(self, entries: Entries) -> None:
        """Forget entries that have grown too old."""
        self.expirations += len(entries)
        self._drop(entries)

    def _drop(self, entries: Entries) -> None:
        self._index.remove(entries)
        self._weight -= self._weigh(entries)
        self._release(entries)

    def _release(self, entries: Entries) -> None:
        self._used[entries] = -1
        self._dead_rows += int(self._count[entries].sum())
        self._free = np.concatenate([self._free, entries])

    def _live(self) -> Entries:
        live = np.ones(self._size, dtype=np.bool_)
        live[self._free] = False
        return np.flatnonzero(live).astype(np.int32)

    def _sweep(self, now: float) -> None:
        """Forget what nobody asks for any more and is too old, once per shortest lifetime."""
        if not self.limits.expire or now < self._next_sweep or not self._size:
            return
        limits = self.limits
        self._next_sweep = now + min(limits.write_seconds, limits.miss_seconds, limits.access_seconds)
        live = self._live()
        idle = self._idle_deadline[live] if limits.access_seconds < math.inf else math.inf
        old = live[now > np.minimum(self._deadline[live], idle)]
        if old.size:
            self._forget(old)

    def _evict(self, weight: float) -> None:
        """Forget the least recently used entries that weigh at least ``weight`` together."""
        while weight > 0 and len(self._index):
            entries = self._next_oldest(weight)
            weights = np.maximum(self._count[entries], 1)
            enough = int(np.searchsorted(np.cumsum(weights), weight)) + 1
            entries, rest = entries[:enough], entries[enough:]
            self._put_back(rest)
            weight -= float(weights[:enough].sum())
            self.evictions += len(entries)
            self._drop(entries)

    def _next_oldest(self, weight: float) -> Entries:
        """Return some of the least recently used entries, oldest first.

        They come from a queue in order of use. An entry used since it was queued has another time of use
        and is passed over; whatever is not in the queue is more recent than all that is.
        """
        while True:
            if not self._oldest.size:
                self._queue_oldest(weight)
            size = int(min(len(self._oldest), max(2 * weight, 16)))
            entries, used = self._oldest[:size], self._oldest_used[:size]
            self._oldest, self._oldest_used = self._oldest[size:], self._oldest_used[size:]
            still = self._used[entries] == used
            if still.any():
                return entries[still]

    def _queue_oldest(self, weight: float) -> None:
        live = self._live()
        size = int(min(len(live), max(4 * weight, len(live) // 8, 64)))
        if size < len(live):
            live = live[np.argpartition(self._used[live], size - 1)[:size]]
        order = np.argsort(self._used[live])
        self._oldest = live[order]
        self._oldest_used = self._used[self._oldest]

    def _put_back(self, entries: Entries) -> None:
        self._oldest = np.concatenate([entries, self._oldest])
        self._oldest_used = np.concatenate([self._used[entries], self._oldest_used])

    def _evict_bytes(self) -> None:
        """Forget a tenth more than what is too much, then give the memory back."""
        excess = 1 - 0.9 * self.limits.bytes / self.nbytes
        self._evict(max(1, math.ceil(self._weight * excess)))
        self._compact()

    def _tidy(self) -> None:
        """Clear dead rows and keys away when they are over a quarter of all."""
        dead_keys = len(self._keys) - len(self._index) if self._keys is not None else 0
        if 4 * self._dead_rows > len(self._rows) + 64 or 4 * dead_keys > len(self._index) + 64:
            self._compact()

    def _compact(self) -> None:
        """Number entries and rows anew, so that the stores and arrays hold nothing dead."""
        live = self._live()
        live = live[np.argsort(self._used[live])]
        counts = self._count[live].astype(np.int64)
        starts = np.cumsum(counts) - counts
        self._rows.keep(np.repeat(self._start[live] - starts, counts) + np.arange(int(counts.sum())))
        self._dead_rows = 0
        if self._keys is not None:
            self._keys.keep(self._key_row[live].astype(np.int64))
        places = np.append(live, -1)
        for name, array in self._entry_arrays().items():
            setattr(self, name, array[places])
        self._start[:-1] = np.where(counts > 0, starts, -1)
        self._key_row = np.append(np.arange(len(live), dtype=np.int32), np.int32(-1))
        self._size, self._free = len(live), np.empty(0, dtype=np.int32)
        self._oldest, self._oldest_used = self._oldest[:0].copy(), self._oldest_used[:0].copy()
        words = self._index.words[live]
        self._index.clear()
        self._index.insert(words, np.arange(self._size, dtype=np.int32))
        self.unique = bool((counts <= 1).all())


def _comparable(column: pa.Array) -> pa.Array:
    """Return floats as their bits: keys are normalised, and Arrow holds no NaN equal to another."""
    return column.view(f"int{column.type.bit_width}") if pa.types.is_floating(column.type) else column


def _key_schema(types: Sequence[pa.DataType]) -> pa.Schema:
    return pa.schema([(f"key{number}", type_) for number, type_ in enumerate(types)])


def _key_table(keys: KeyBatch, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays(list(keys.columns), schema=schema)
