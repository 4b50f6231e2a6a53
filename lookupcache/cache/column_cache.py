"""`ColumnCache`: Arrow rows by key, a batch of keys at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.cache.hash_index import Entries, HashIndex
from lookupcache.cache.keys import Hashes, KeyBatch, Mask, Positions, is_exact
from lookupcache.cache.limits import Limits
from lookupcache.cache.policies import policy_of
from lookupcache.cache.row_store import RowStore

Numbers = npt.NDArray[np.int64]

_NO_ROWS = np.empty(0, dtype=np.int64)
_NO_ENTRIES = np.empty(0, dtype=np.int32)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_chance = np.random.default_rng()


@dataclass(eq=False)
class Lease:
    """Entries that a batch of rows or a call to the source holds, -1 for none.

    They keep their rows until the lease is given back, whatever is evicted meanwhile. Entries may be numbered
    anew; `entries` is then too. ``expired`` and ``aging`` are rows, one for each entry that must be fetched
    anew before it is used, and for each that may be used while it is fetched anew.
    """

    entries: Entries
    expired: Positions = field(default_factory=lambda: _NO_ROWS)
    aging: Positions = field(default_factory=lambda: _NO_ROWS)


class ColumnCache:
    """Arrow rows by key, a batch of keys at a time.

    An entry is a key with its rows, which lie one after the other in a `RowStore`; entries are numbered.
    `find` leases the entries of a batch of keys until they are given back with `release`; then `settle` evicts
    entries that are too many and clears dead rows away. Several batches may be open at a time. Recency is by
    row of the batch: of two keys in one batch, the later is the more recent.

    A key that is being asked for has an entry too: `reserve` makes it, for a flight, which is a number that
    the caller chooses; `fill` gives it its rows, `fail` takes it back. So whoever looks for the key meanwhile
    finds whom to wait for.

    ``schema`` is that of the rows, ``key_types`` are those of the key columns.

    >>> cache = ColumnCache(pa.schema([("name", pa.string())]), [pa.int64()], Limits(rows=2))
    >>> keys = KeyBatch.of([pa.array([7, 8])], [pa.int64()])
    >>> cache.put(keys, pa.table({"name": ["ann", "bob"]}), np.array([2, 0]), now=0)
    array([0, 1], dtype=int32)
    >>> lease = cache.find(KeyBatch.of([pa.array([8, 9, 7])], [pa.int64()]), now=0)
    >>> lease.entries, cache.counts(lease.entries)
    (array([ 1, -1,  0], dtype=int32), array([0, 0, 2]))
    """

    def __init__(self, schema: pa.Schema, key_types: Sequence[pa.DataType], limits: Limits) -> None:
        self.limits = limits
        self.key_types = tuple(key_types)
        self.evictions = 0
        self.expirations = 0
        self._timed = limits.expire or limits.dated
        self._rows = RowStore(schema)
        self._keys = None if is_exact(key_types) else RowStore(_key_schema(key_types))
        self._index = HashIndex()
        self._reset()

    def _reset(self) -> None:
        self.unique = True
        self._leases: list[Lease] = []
        self._pending = 0
        self._policy = policy_of(self.limits.eviction)
        self._next_sweep = -math.inf
        self._weight = 0
        self._furthest = 0
        self._dead_rows = 0
        self._size = 0
        self._leaving = self._free = _NO_ENTRIES
        self._start = np.full(1, -1, dtype=np.int32)
        self._count = np.zeros(1, dtype=np.int32)
        self._key_row = np.full(1, -1, dtype=np.int32)
        self._flight = np.zeros(1, dtype=np.int32)
        self._written = np.full(1, math.nan)
        self._deadline = np.full(1, math.inf)
        self._idle_deadline = np.full(1, math.inf)

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
        return (
            stores
            + self._free.nbytes
            + self._policy.nbytes
            + sum(array.nbytes for array in self._entry_arrays().values())
        )

    def find(self, keys: KeyBatch, now: float) -> Lease:
        """Lease the entry of each key, -1 where it is not here, too old or null."""
        lease = Lease(self._entries_of(keys))
        if self._timed:
            self._judge_ages(lease, now)
        self._leases.append(lease)
        return lease

    def touch(self, lease: Lease) -> int:
        """Note that a batch uses its entries, in the order of its rows; return how many different ones there are."""
        return self._policy.touch(lease.entries)

    def reserve(self, keys: KeyBatch, flight: int, now: float) -> Entries:
        """Make entries for distinct keys that are not here and are now being asked for.

        A batch that finds them waits for ``flight``, a number above 0.
        """
        entries = self._new_entries(len(keys))
        self._count[entries] = 0
        self._start[entries] = -1
        if self._keys is not None:
            self._key_row[entries] = self._keys.append(_key_table(keys, self._keys.schema)) + np.arange(len(keys))
        if self._timed:
            self._deadline[entries] = self._written[entries] = -math.inf
        if self.limits.access_seconds < math.inf:
            self._idle_deadline[entries] = now + self.limits.access_seconds
        words = self._free_words(keys.hashes)
        self._index.insert(words, entries)
        self._weight += len(entries)
        self._policy.admit(entries, words)
        self._depart(entries, flight)
        return entries

    def ask_again(self, entries: Entries, flight: int, *, wait: bool) -> None:
        """Note that entries which are here are being asked for, and whether a batch that finds them must wait."""
        self._depart(entries, flight if wait else -flight)

    def waits(self, lease: Lease) -> set[int]:
        """Return the flights that a batch has to wait for."""
        if not self._pending:
            return set()
        flights = self._flight.take(lease.entries, mode="wrap")
        return set(np.unique(flights[flights > 0]).tolist())

    def fill(self, entries: Entries, rows: pa.Table, counts: Numbers, now: float) -> None:
        """Give entries that were asked for their rows.

        ``rows`` are in the order of the entries, ``counts`` says how many each has. What may not be
        remembered is still there for those who hold it.
        """
        self._land(entries)
        listed = self._is_listed(entries)
        self._dead_rows += int(self._count[entries].sum())
        self._weight -= self._weigh(entries[listed])
        first = self._rows.append(rows)
        self._count[entries] = counts
        self._start[entries] = np.where(counts > 0, first + np.cumsum(counts) - counts, -1)
        self._weight += self._weigh(entries[listed])
        self._date(entries, counts, now)
        self.unique = self.unique and bool((counts <= 1).all())
        unwanted = listed if not self.limits.remembers else listed & (counts == 0) & (not self.limits.misses)
        if unwanted.any():
            self._unlist(entries[unwanted])
            self._leaving = np.concatenate([self._leaving, entries[unwanted]])

    def fail(self, entries: Entries, now: float) -> Mask:
        """Note that asking for entries has failed; return which have nothing left to serve, and are gone."""
        self._land(entries)
        if self._timed:
            lost = now > np.maximum(self._deadline[entries], self._written[entries] + self.limits.stale_seconds)
        else:
            lost = np.ones(len(entries), dtype=np.bool_)
        gone = entries[lost & self._is_listed(entries)]
        self._unlist(gone)
        self._leaving = np.concatenate([self._leaving, gone])
        return lost

    def put(self, keys: KeyBatch, rows: pa.Table, counts: Numbers, now: float) -> Entries:
        """Keep the rows of distinct keys that are not here; return their entries.

        ``rows`` are in the order of the keys, ``counts`` says how many each key has.
        """
        entries = self.reserve(keys, 1, now)
        self.fill(entries, rows, counts, now)
        return entries

    def hold(self, entries: Entries) -> Lease:
        """Lease entries for a call to the source."""
        lease = Lease(entries)
        self._leases.append(lease)
        return lease

    def invalidate(self, keys: KeyBatch | None) -> int:
        """Let keys, or all of them, be found no more; return how many were there.

        Who holds them still has them; what they are being asked for is not remembered when it comes.
        """
        entries = self._live() if keys is None else np.unique(self._entries_of(keys))
        entries = entries[entries >= 0]
        if entries.size:
            self._drop(entries)
        return len(entries)

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        self._leases.remove(lease)

    def age(self, entries: Entries, now: float) -> npt.NDArray[np.float64]:
        """Return how long ago each entry was written, in seconds; NaN for -1."""
        return np.maximum(now - self._written.take(entries, mode="wrap"), 0.0)

    def stale(self, entries: Entries, now: float) -> int:
        """Return how many of these entries are older than they should be."""
        return int(np.count_nonzero(now > self._deadline[entries])) if self._timed else 0

    def counts(self, entries: Entries) -> Numbers:
        """Return the number of rows of each entry, 0 for -1."""
        return self._count.take(entries, mode="wrap").astype(np.int64)

    def starts(self, entries: Entries) -> Numbers:
        """Return the number of the first row of each entry, -1 where it has none."""
        return self._start.take(entries, mode="wrap").astype(np.int64)

    def weights(self, entries: Entries) -> Numbers:
        """Return what each entry weighs: its rows, or one for a known miss."""
        return np.maximum(self._count[entries], 1).astype(np.int64)

    def words(self, entries: Entries) -> Hashes:
        """Return the word under which each entry is found."""
        return self._index.words[entries]

    def gather(self, rows: Numbers) -> list[pa.Array]:
        """Return the columns of rows by their numbers; -1 gives nulls."""
        return self._rows.gather(rows)

    def settle(self, now: float) -> None:
        """End a batch: drop what may not be kept and nobody holds, then those that `Limits.eviction` chooses."""
        if not self.limits.remembers and not self._leases:
            return self.clear()
        if self._leaving.size:
            leaving, self._leaving = self._leaving, _NO_ENTRIES
            self._free_up(leaving)
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

    def _entries_of(self, keys: KeyBatch) -> Entries:
        """Return the entry of each key, -1 where it is not here or null."""
        entries = self._index.find(keys.hashes)
        if keys.valid is not None:
            entries[~keys.valid] = -1
        return entries if self._keys is None else self._verified(entries, keys)

    def _verified(self, entries: Entries, keys: KeyBatch) -> Entries:
        """Drop entries of other keys with the same hash, and look where a key may have given way to another."""
        entries[self._others(entries, keys)] = -1
        if not self._furthest:
            return entries
        rows = np.flatnonzero((entries < 0) & keys.mask())
        words = keys.hashes[rows]
        for _ in range(self._furthest):
            words = _next_words(words)
            found = self._index.find(words)
            found[self._others(found, keys.take(rows))] = -1
            entries[rows] = found
            rows, words = rows[found < 0], words[found < 0]
        return entries

    def _others(self, entries: Entries, keys: KeyBatch) -> Positions:
        """Return the rows whose entry is that of another key."""
        assert self._keys is not None
        stored = self._keys.gather(self._key_row.take(entries, mode="wrap").astype(np.int64))
        other = np.zeros(len(entries), dtype=np.bool_)
        for column, wanted in zip(stored, keys.columns, strict=True):
            same = pc.equal(_comparable(column), _comparable(wanted))
            if same.null_count < len(same) and not pc.all(same).as_py():
                other |= ~same.fill_null(True).to_numpy(zero_copy_only=False)
        return np.flatnonzero(other)

    def _judge_ages(self, lease: Lease, now: float) -> None:
        """Forget entries that have grown too old; note those that are to be fetched anew."""
        entries = lease.entries
        flight = self._flight.take(entries, mode="wrap")
        if self.limits.access_seconds < math.inf:
            self._end_idle(entries, now)
        old = now > self._deadline.take(entries, mode="wrap")
        gone = old & (flight == 0)
        if self.limits.stale_seconds:
            gone &= now > self._written.take(entries, mode="wrap") + self.limits.stale_seconds
        if (late := old & (flight < 0)).any():
            self._flight[entries[late]] *= -1
        # What is gone is asked for as a new key: to note it here as well would be to ask twice.
        there = (flight == 0) & ~gone
        if self.limits.stale_seconds:
            lease.expired = _first_rows(entries, there & old)
        if self.limits.refresh_seconds < math.inf:
            due = now - self._written.take(entries, mode="wrap") >= self.limits.refresh_seconds
            lease.aging = _first_rows(entries, there & due & ~old)
        if gone.any():
            self._forget(np.unique(entries[gone]))
            entries[gone] = -1

    def _end_idle(self, entries: Entries, now: float) -> None:
        """Let the age limit of entries that nobody has used for too long be over, and count anew for the others."""
        idle = now > self._idle_deadline.take(entries, mode="wrap")
        self._deadline[entries[idle]] = -math.inf
        self._idle_deadline[entries] = now + self.limits.access_seconds
        self._idle_deadline[-1] = math.inf

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────────────

    def _entry_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is held per entry, by attribute."""
        names = ["_start", "_count", "_flight"]
        names += ["_key_row"] if self._keys is not None else []
        names += ["_deadline", "_written"] if self._timed else []
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
            self._policy.grow(grown)
        numbers = np.arange(self._size, self._size + fresh, dtype=np.int32)
        entries = np.concatenate([self._free[:count], numbers])
        self._free = self._free[count:].copy()
        self._size += fresh
        return entries

    def _free_words(self, hashes: Hashes) -> Hashes:
        """Return the words under which new keys can be found again: of keys with one hash, all but one give way."""
        if self._keys is None:
            return hashes
        words, taken, steps = hashes, self._taken(hashes), 0
        while taken.any():
            words, steps = np.where(taken, _next_words(words), words), steps + 1
            taken = self._taken(words)
        self._furthest = max(self._furthest, steps)
        return words

    def _taken(self, words: Hashes) -> Mask:
        """Return which words are in use, or are there once more."""
        taken = np.ones(len(words), dtype=np.bool_)
        taken[np.unique(words, return_index=True)[1]] = False
        return taken | (self._index.find(words) >= 0)

    def _is_listed(self, entries: Entries) -> Mask:
        """Return which entries can be found, and count: not those that are only still held."""
        if not self._leaving.size:
            return np.ones(len(entries), dtype=np.bool_)
        return ~np.isin(entries, self._leaving)

    def _date(self, entries: Entries, counts: Numbers, now: float) -> None:
        if not self._timed:
            return
        limits = self.limits
        ages = np.where(counts > 0, limits.write_seconds, limits.miss_seconds)
        if limits.jitter:
            ages = ages * (1 - limits.jitter * _chance.random(len(entries)))
        self._deadline[entries] = now + ages
        self._written[entries] = now

    def _depart(self, entries: Entries, flight: int) -> None:
        self._flight[entries] = flight
        self._pending += len(entries)

    def _land(self, entries: Entries) -> None:
        self._flight[entries] = 0
        self._pending -= len(entries)

    def _weigh(self, entries: Entries) -> int:
        return int(self.weights(entries).sum())

    # ── forgetting ───────────────────────────────────────────────────────────────────────────────────────

    def _forget(self, entries: Entries) -> None:
        """Forget entries that have grown too old."""
        self.expirations += len(entries)
        self._drop(entries)

    def _drop(self, entries: Entries) -> None:
        self._unlist(entries)
        self._free_up(entries)

    def _unlist(self, entries: Entries) -> None:
        """Let entries be found no more, nor count; those who hold them still have them."""
        self._policy.forget(entries)
        self._unfind(entries)

    def _unfind(self, entries: Entries) -> None:
        self._index.remove(entries)
        self._weight -= self._weigh(entries)

    def _free_up(self, entries: Entries) -> None:
        """Let the numbers of unlisted entries be used again, as soon as nobody holds them."""
        held = self._held(entries)
        if held.any():
            self._leaving = np.concatenate([self._leaving, entries[held]])
            entries = entries[~held]
        self._dead_rows += int(self._count[entries].sum())
        self._free = np.concatenate([self._free, entries])

    def _held(self, entries: Entries) -> Mask:
        mask = np.zeros(self._size + 1, dtype=np.bool_)
        for lease in self._leases:
            mask[lease.entries] = True
        return mask[entries]

    def _live(self) -> Entries:
        """Return the entries that can be found."""
        live = np.ones(self._size, dtype=np.bool_)
        live[self._free] = False
        live[self._leaving] = False
        return np.flatnonzero(live).astype(np.int32)

    def _sweep(self, now: float) -> None:
        """Forget what nobody asks for any more and is too old, once per shortest lifetime."""
        if not self.limits.expire or now < self._next_sweep or not self._size:
            return
        limits = self.limits
        self._next_sweep = now + min(limits.write_seconds, limits.miss_seconds, limits.access_seconds)
        live = self._live()
        last = self._deadline[live]
        if limits.access_seconds < math.inf:
            last = np.minimum(last, self._idle_deadline[live])
        if limits.stale_seconds:
            last = np.maximum(last, self._written[live] + limits.stale_seconds)
        old = live[(now > last) & (self._flight[live] == 0)]
        if old.size:
            self._forget(old)

    def _evict(self, weight: float) -> None:
        """Forget entries that weigh at least ``weight`` together."""
        entries = self._policy.victims(weight, self._weight, self)
        self.evictions += len(entries)
        self._unfind(entries)
        self._free_up(entries)

    def _evict_bytes(self) -> None:
        """Forget a tenth more than what is too much, then give the memory back."""
        excess = 1 - 0.9 * self.limits.bytes / self.nbytes
        self._evict(max(1, math.ceil(self._weight * excess)))
        self._compact()

    def _tidy(self) -> None:
        """Clear dead rows and keys away when they are over a quarter of all."""
        dead_keys = len(self._keys) - len(self._index) - len(self._leaving) if self._keys is not None else 0
        if 4 * self._dead_rows > len(self._rows) + 64 or 4 * dead_keys > len(self._index) + 64:
            self._compact()

    def _compact(self) -> None:
        """Number entries and rows anew, so that the stores and arrays hold nothing dead."""
        listed = self._live()
        listed = listed[np.argsort(self._policy.used[listed])]
        words = self._index.words[listed]
        live = np.concatenate([listed, self._leaving])
        counts = self._count[live].astype(np.int64)
        starts = np.cumsum(counts) - counts
        self._rows.keep(np.repeat(self._start[live] - starts, counts) + np.arange(int(counts.sum())))
        self._dead_rows = 0
        if self._keys is not None:
            self._keys.keep(self._key_row[live].astype(np.int64))
        self._renumber(live)
        self._start[:-1] = np.where(counts > 0, starts, -1)
        self._key_row = np.append(np.arange(len(live), dtype=np.int32), np.int32(-1))
        self._index.clear()
        self._index.insert(words, np.arange(len(listed), dtype=np.int32))
        self.unique = bool((counts <= 1).all())

    def _renumber(self, live: Entries) -> None:
        """Let the entries ``live`` be 0, 1, 2 …; leases go with them."""
        number = np.full(self._size + 1, -1, dtype=np.int32)
        number[live] = np.arange(len(live))
        for lease in self._leases:
            lease.entries = number[lease.entries]
        self._leaving = number[self._leaving]
        places = np.append(live, -1)
        for name, array in self._entry_arrays().items():
            setattr(self, name, array[places])
        self._policy.renumber(live)
        self._size, self._free = len(live), _NO_ENTRIES


def _next_words(words: Hashes) -> Hashes:
    """Return for each word another; only after all 2 ** 64 does it come again."""
    return words * _ODD + np.uint64(1)


def _first_rows(entries: Entries, mask: Mask) -> Positions:
    """Return one row for each different entry among those of the mask."""
    rows = np.flatnonzero(mask)
    return rows[np.unique(entries[rows], return_index=True)[1]] if rows.size else _NO_ROWS


def _comparable(column: pa.Array) -> pa.Array:
    """Return floats as their bits: keys are normalised, and Arrow holds no NaN equal to another."""
    return column.view(f"int{column.type.bit_width}") if pa.types.is_floating(column.type) else column


def _key_schema(types: Sequence[pa.DataType]) -> pa.Schema:
    return pa.schema([(f"key{number}", type_) for number, type_ in enumerate(types)])


def _key_table(keys: KeyBatch, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays(list(keys.columns), schema=schema)
