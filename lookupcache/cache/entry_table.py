"""`EntryTable`: the entries of a `ColumnCache`: their numbers, keys, rows, times and order of eviction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from lookupcache.cache.age import Times
from lookupcache.cache.entry_columns import EntryColumns, Numbers
from lookupcache.cache.entry_numbers import EntryNumbers
from lookupcache.cache.entry_rows import EntryRows
from lookupcache.cache.expiry import Expiry
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.in_flight import InFlight
from lookupcache.cache.key_lookup import KeyLookup
from lookupcache.cache.keys import Hashes, KeyBatch, Mask
from lookupcache.cache.limits import Limits
from lookupcache.cache.policy import Policy
from lookupcache.cache.policy_queues import policy_of


class EntryTable:
    """Adds, fills, removes and renumbers entries in all parts at once, so that the parts need not know each other.

    An entry is listed from `add` until `unlist`, `drop` or `evict`: it can be found, the policy knows it, and it
    counts in ``weight``. After that only its number and its rows are left, until no lease uses them.
    Its callers decide which entries are removed.
    """

    def __init__(self, schema: pa.Schema, key_types: Sequence[pa.DataType], limits: Limits) -> None:
        self._schema = schema
        self._key_types = key_types
        self._limits = limits
        self.clear()

    def clear(self) -> None:
        """Remove everything, and give the memory back."""
        keys = KeyLookup(self._key_types)
        columns = (EntryRows(self._schema), InFlight(), Expiry(self._limits), policy_of(self._limits.eviction))
        self.weight, self.numbers, self._interrupted = 0, EntryNumbers(), False
        self._set_parts(keys, *columns)

    def _set_parts(self, keys: KeyLookup, rows: EntryRows, in_flight: InFlight, expiry: Expiry, policy: Policy) -> None:
        self.keys, self.rows, self.in_flight, self.expiry, self.policy = keys, rows, in_flight, expiry, policy

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def _columns(self) -> tuple[EntryColumns, ...]:
        return self.rows, self.in_flight, self.expiry, self.policy

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes + self.keys.nbytes + sum(columns.nbytes for columns in self._columns)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change several parts: if that fails in the middle, `recover` has to be called before the next operation."""
        try:
            yield
        except BaseException:
            self._interrupted = True
            raise

    def recover(self) -> None:
        """After a change that failed in the middle, as for lack of memory, unlist all entries.

        Numbers and rows are always right, so that open batches keep theirs. Index, policy and counts may be half
        changed, and are made anew. If that fails too, the next operation tries again.
        """
        if not self._interrupted:
            return
        keys, policy = self.keys.emptied(), policy_of(self._limits.eviction)
        policy.grow(self.rows.capacity - 1)
        self.numbers.unlist_all()
        self.rows.recount_dead(self.numbers.unlisted)
        self.in_flight.recount()
        self.keys, self.policy, self.weight, self._interrupted = keys, policy, 0, False

    def add(self, keys: KeyBatch, group: int, now: float) -> Entries:
        """List entries without rows for distinct keys that are not listed and are being fetched."""
        # The steps that need much memory come first: if one fails, no entry in use has changed.
        with self.numbers.allocating(len(keys)) as entries:
            self._make_space()
            words = self.keys.prepare(keys, entries)
            self.rows.reserve(entries)
            self.expiry.reserve(entries, now)
        with self.changing():
            self.keys.insert_words(words, entries)
            self.weight += len(entries)
            self.policy.admit(entries, words)
            self.in_flight.start(entries, group)
        return entries

    def fill(
        self,
        entries: Entries,
        rows: pa.Table | pa.RecordBatch,
        counts: Numbers,
        written: float | Times,
        deadline: Times | None = None,
    ) -> Mask:
        """Write the rows of entries that were being fetched; return which are listed.

        Entries that were removed while they were being fetched are not, and do not count in ``weight``. Rows are in the
        order of the entries, and ``counts`` says how many each has. Without ``deadline``, they expire by the age
        limits.
        """
        listed = self.numbers.is_listed(entries)
        before = self._weigh(entries[listed])
        # First, since it needs memory: if it fails, the entries must not look as if they had no rows.
        self.rows.write(entries, rows, counts)
        with self.changing():
            self.weight += self._weigh(entries[listed]) - before
            self.expiry.write(entries, counts, written, deadline)
            self.in_flight.finish(entries)
        return listed

    def unlist(self, entries: Entries) -> None:
        """Remove listed entries whose numbers the caller still uses: they stay valid until `free_unlisted`."""
        with self.changing():
            self._delist(entries)
            self.numbers.unlist(entries)

    def drop(self, entries: Entries) -> None:
        """Remove listed entries; their numbers are free at once, those of leased entries later."""
        with self.changing():
            self._delist(entries)
            self._free(entries)

    def evict(self, weight: float) -> int:
        """Remove listed entries that weigh at least ``weight`` together, by the policy; return how many."""
        with self.changing():
            # The policy has already forgotten the entries that it returns, so they must not go through `_delist`.
            entries = self.policy.victims(weight, self.weight, self)
            self._end_listing(entries)
            self._free(entries)
        return len(entries)

    def free_unlisted(self) -> None:
        """Free the numbers of unlisted entries that are no longer leased."""
        if self.numbers.unlisted.size:
            with self.changing():
                freed = self.numbers.free_unlisted()
                # These belong to a call whose failure could not be noted, for lack of memory.
                self.in_flight.finish(freed)
                self.rows.mark_dead(freed)

    def weights(self, entries: Entries) -> Numbers:
        """Return the weight of each entry; the policy calls it."""
        return self.rows.weights(entries)

    def words(self, entries: Entries) -> Hashes:
        """Return the word that stands for the key of each entry; the policy calls it."""
        return self.keys.words(entries)

    @property
    def is_sparse(self) -> bool:
        """Whether over a quarter of the stored rows are dead, or a quarter as many keys as there are entries."""
        dead_keys = self.keys.count_dead(len(self.numbers.unlisted))
        return 4 * self.rows.dead > len(self.rows) + 64 or 4 * dead_keys > len(self.keys) + 64

    def compact(self) -> None:
        """Renumber entries and rows so that no part stores anything dead.

        Listed entries come first, the least recently used before the others, so that rows that were used together
        lie together. Unlisted entries follow: a lease still reads their rows. Every part takes the same order,
        and open leases get the new numbers. If memory is short, everything stays as it was.
        """
        listed = self.numbers.listed_entries()
        listed = listed[np.argsort(self.policy.used[listed])]
        live = np.concatenate([listed, self.numbers.unlisted])
        # All new parts first, which needs memory; the numbers, which do the same on their own, then decide.
        keys, rows = self.keys.renumbered(live, len(listed)), self.rows.renumbered(live)
        in_flight, expiry = self.in_flight.renumbered(live), self.expiry.renumbered(live)
        policy = self.policy.renumbered(live)
        self.numbers.renumber(live)
        self._set_parts(keys, rows, in_flight, expiry, policy)

    def _make_space(self) -> None:
        """Grow the columns when there are more numbers than they have space for, by a quarter at least."""
        needed, capacity = self.numbers.size + 1, self.rows.capacity
        if needed > capacity:
            size = max(needed, capacity * 5 // 4, 64) - 1
            self.keys.grow(size)
            # The rows last, whose capacity decides: if one part cannot grow, the next call lets all of them try again.
            for columns in reversed(self._columns):
                columns.grow(size)

    def _delist(self, entries: Entries) -> None:
        self.policy.forget(entries)
        self._end_listing(entries)

    def _end_listing(self, entries: Entries) -> None:
        """Stop finding and counting entries."""
        self.keys.remove(entries)
        self.weight -= self._weigh(entries)

    def _free(self, entries: Entries) -> None:
        self.rows.mark_dead(self.numbers.free(entries))

    def _weigh(self, entries: Entries) -> int:
        return int(self.rows.weights(entries).sum())
