"""`CachedLookup`: the cache before a source, for a batch of keys at a time.

keys ─► find ─► what is missing, each key once ─► fetch ─► put ─► entries ─► gather
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from lookupcache.cache import ColumnCache, Limits
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import KeyBatch, Mask
from lookupcache.errors import LookupCacheError
from lookupcache.source import Source

Clock = Callable[[], float]


class CachedLookup:
    """Finds the entries of a batch of keys, asking the source for those that are missing.

    Strategies differ in the `Limits` of the cache alone, but for ALL, which is `LoadedLookup`. ``clock``
    gives seconds that never run backwards.
    """

    def __init__(self, source: Source, clock: Clock = time.monotonic) -> None:
        self.source = source
        self.clock = clock
        self.tally = source.tally
        self.cache = self._new_cache()

    def find(self, keys: KeyBatch) -> Entries:
        """Return the entry of each key, -1 for a null key; call `settle` when the batch is done."""
        now = self.clock()
        entries = self.cache.find(keys, now)
        missing = entries < 0 if keys.valid is None else (entries < 0) & keys.valid
        asked = self._ask(keys.take(np.flatnonzero(missing)), entries, missing, now) if missing.any() else 0
        self.tally["rows"] += len(keys)
        self.tally["keys"] += self.cache.found + asked
        self.tally["misses"] += asked
        self.tally["hits"] += self._wanted(keys) - asked
        return entries

    def settle(self) -> None:
        """End a batch: entry numbers are no longer valid, and the limits hold again."""
        evictions, expirations = self.cache.evictions, self.cache.expirations
        self.cache.settle(self.clock())
        self.tally["evictions"] += self.cache.evictions - evictions
        self.tally["expirations"] += self.cache.expirations - expirations

    def _ask(self, wanted: KeyBatch, entries: Entries, missing: Mask, now: float) -> int:
        distinct = wanted.distinct()
        keys = wanted.take(distinct.first)
        fetched = self.source.fetch(keys)
        entries[missing] = self.cache.put(keys, fetched.rows, fetched.counts, now)[distinct.code]
        return len(keys)

    def _wanted(self, keys: KeyBatch) -> int:
        return len(keys) if keys.valid is None else int(np.count_nonzero(keys.valid))

    def _new_cache(self, limits: Limits | None = None) -> ColumnCache:
        plan = self.source.plan
        schema = pa.schema([pa.field(name, plan.schema.field(name).type) for name in plan.columns])
        return ColumnCache(schema, self.source.key_types, limits or Limits.of(plan.config))


class LoadedLookup(CachedLookup):
    """ALL: the whole table, after constants and calc, in memory; a key that is not there has no rows.

    The first load blocks. When ``lookup.cache.reload-interval`` has passed, the next batch loads again and
    swaps the tables; a load that fails leaves the old one, and is counted.
    """

    def __init__(self, source: Source, clock: Clock = time.monotonic) -> None:
        super().__init__(source, clock)
        self._loaded_at: float | None = None

    def find(self, keys: KeyBatch) -> Entries:
        """Return the entry of each key, -1 for one that has no rows."""
        now = self.clock()
        self._ensure_loaded(now)
        entries = self.cache.find(keys, now)
        self.tally["rows"] += len(keys)
        self.tally["keys"] += self.cache.found
        self.tally["hits"] += self._wanted(keys)
        return entries

    def _ensure_loaded(self, now: float) -> None:
        interval = self.source.plan.config.reload_interval
        if self._loaded_at is None:
            self.cache = self._load(now)
        elif interval is not None and now - self._loaded_at >= interval:
            self._reload(now)
        else:
            return
        self._loaded_at = now

    def _reload(self, now: float) -> None:
        self.tally["reloads"] += 1
        try:
            self.cache = self._load(now)
        except LookupCacheError:
            self.tally["reload_failures"] += 1

    def _load(self, now: float) -> ColumnCache:
        keys, fetched = self.source.load()
        cache = self._new_cache(Limits())
        cache.put(keys, fetched.rows, fetched.counts, now)
        return cache


def lookup_of(source: Source, clock: Clock = time.monotonic) -> CachedLookup:
    """Return the lookup that the plan's cache strategy asks for."""
    kind = LoadedLookup if source.plan.config.cache == "ALL" else CachedLookup
    return kind(source, clock)
