"""`Prefetched`: keys that were requested before the batch that needs them arrives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from lookupcache.cache import ColumnCache
from lookupcache.cache.entry_columns import AnyEntries
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.key_lookup import KeyLookup
from lookupcache.cache.keys import KeyBatch, Positions
from lookupcache.lazy import cached_property
from lookupcache.metrics import Counters, counting_part


class Prefetched:
    """The keys of a batch that is opened later, and what of them is counted.

    Their entries stay leased until then, but a small cache evicts them: other batches are opened and closed before.
    `find` finds them all the same, so that no key is requested twice.
    """

    def __init__(self, keys: KeyBatch) -> None:
        self._keys = keys
        self._part = counting_part()
        self._requested = 0
        self._hits = 0
        self._is_arriving = False
        self._changed: list[KeyBatch | None] = []

    @cached_property
    def _positions(self) -> KeyLookup:
        """The position of each key, which are needed only if the cache has lost one."""
        rows = np.flatnonzero(self._keys.mask())
        distinct = self._keys.take(rows)
        rows = rows[distinct.distinct().first]
        lookup = KeyLookup([column.type for column in self._keys.columns])
        lookup.grow(len(self._keys))
        lookup.insert(self._keys.take(rows), rows.astype(np.int32))
        return lookup

    def find(self, keys: KeyBatch, leased: Entries, cache: ColumnCache, now: float) -> Entries:
        """Return the entries of keys that may be used: -1 for those that are too old, or have changed in the source.

        None of the keys is null; ``leased`` are the entries that are leased for the prefetched keys, in their order.
        """
        entries = self.entries_of(keys, np.arange(len(leased)), leased)
        found = np.flatnonzero(entries >= 0)
        entries[found[~cache.is_usable(entries[found], now)]] = -1
        return entries

    def entries_of(self, keys: KeyBatch, positions: Positions, entries: AnyEntries) -> Entries:
        """Return the entries of keys, -1 for none, and for those that have changed in the source.

        None of the keys is null; ``entries`` are those of the prefetched keys at ``positions``.
        """
        known = np.full(len(self._keys) + 1, -1, dtype=np.int32)
        known[positions] = entries
        known = known.take(self._positions.find(keys.with_seed(self._keys.seed)), mode="wrap")
        for changed in self._changed:
            known[slice(None) if changed is None else np.isin(keys.hashes, changed.with_seed(keys.seed).hashes)] = -1
        return known

    def forget(self, changed: KeyBatch | None) -> None:
        """Do not find keys any more, or with None none of them: they have changed in the source."""
        self._changed.append(changed)

    # ── counts ───────────────────────────────────────────────────────────────────────────────────────────

    def count_requested(self, requested: int, counters: Counters) -> None:
        """Count keys that were requested here as misses."""
        counters["misses"] += requested
        self._requested = requested

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Within this context, batches that the same join opens are the one that was prefetched, or parts of it."""
        self._is_arriving = True
        try:
            yield
        finally:
            self._is_arriving = False

    def note_hits(self, hits: int) -> None:
        """Note the hits of a batch that was opened, if it is this one that has arrived."""
        if self._is_arriving and self._part is counting_part():
            self._hits += hits

    def end(self, counters: Counters) -> None:
        """Subtract hits that the prefetch has already counted as misses; a key that was requested again was no hit."""
        counters["hits"] -= min(self._requested, self._hits)
