"""`HostFullCacheLookup`: the full table, loaded by one worker of a host and mapped by all of them."""

from __future__ import annotations

import datetime as dt
import math
import time
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.arrays import count_distinct
from lookupcache.cache import ColumnCache, Limits
from lookupcache.cache.entry_columns import AnyEntries
from lookupcache.cache.entry_numbers import Lease
from lookupcache.cache.keys import KeyBatch
from lookupcache.flow.waiting import LOAD_POLL_SECONDS, host_claim_seconds
from lookupcache.host import HostCache
from lookupcache.host.mapped_rows import SegmentRows
from lookupcache.host.segment import Segment
from lookupcache.worker.answers import Fetched
from lookupcache.worker.full_cache import FullCacheLookup
from lookupcache.worker.source import Source

_CLAIM = KeyBatch((pa.array([0], pa.int64()),), np.ones(1, np.uint64), None)
"""What a worker claims that loads the table."""


class MappedTable(SegmentRows):
    """The rows of a table in a mapped segment, with the methods of `ColumnCache` by which they are read."""

    evictions = expirations = 0

    def __init__(self, host: HostCache, segment: Segment) -> None:
        super().__init__(segment)
        self.limits = Limits()
        self.segment = segment
        self._seed = host.seed
        self._leases: list[Lease] = []

    def __len__(self) -> int:
        return len(self.segment)

    @property
    def rows(self) -> int:
        return int(self.segment.rows)

    @property
    def nbytes(self) -> int:
        """0: all workers share the mapped files."""
        return 0

    def find(self, keys: KeyBatch, now: float) -> Lease:
        """Lease the entry of each key, -1 if the table does not have it."""
        entries = self.segment.find(keys.with_seed(self._seed))
        if keys.valid is not None:
            entries[~keys.valid] = -1
        self._leases.append(Lease(entries))
        return self._leases[-1]

    def release(self, lease: Lease) -> None:
        self._leases = [one for one in self._leases if one is not lease]

    def touch(self, lease: Lease) -> int:
        """Return the number of distinct entries."""
        return count_distinct(lease.entries[lease.entries >= 0])

    def enforce_limits(self, now: float) -> None:
        """Do nothing: all rows stay."""

    def age(self, entries: AnyEntries, now: float) -> npt.NDArray[np.float64]:
        """Return how long ago the table was read, in seconds; NaN for -1."""
        return np.where(entries >= 0, max(now - self.segment.created, 0.0), math.nan)


class HostFullCacheLookup(FullCacheLookup):
    """ALL, shared by the workers of a host: the one that gets the claim loads the table and publishes it."""

    def __init__(self, source: Source, host: HostCache) -> None:
        source.hash_seed = host.seed  # Keys are hashed once, for the mapped table.
        super().__init__(source, host.clock)
        self.host = host
        self._claim_seconds = host_claim_seconds(source.plan.config.timeout)
        self._created = -math.inf

    def _keep_loaded(self, now: float) -> None:
        self._adopt()
        if self._loading is None and now >= self._due:
            self._load_if_unclaimed(now)
        until = time.monotonic() + self.source.plan.config.timeout
        while True:
            must_wait = self._written is None or now >= self._overdue
            if self._loading is not None:
                if self._complete_load(must_wait):
                    return
                self.host.renew(_CLAIM, self._claim_seconds)
            if not must_wait:
                return
            if self._loading is None:
                self.source.executor.take_completed(wait=True, timeout=LOAD_POLL_SECONDS)
                now = self.clock()
                if self._adopt() and now < self._due:
                    return
                # Loads that fail in one worker after the other must not add up for those that wait.
                self._load_if_unclaimed(now, must=time.monotonic() >= until)

    def _load_if_unclaimed(self, now: float, *, must: bool = False) -> None:
        """Load the table, unless another worker does; with ``must`` also then."""
        if not self.host.claim(_CLAIM, self._claim_seconds)[0] and not must:
            return
        if self.host.has_news and self._adopt() and now < self._due:
            self.host.release(_CLAIM)
            return
        self._start_loading(now)

    def _complete_load(self, must_wait: bool) -> bool:
        """Use the loaded table if it is there; return whether the load has ended."""
        for group in self.source.executor.take_completed(wait=must_wait, timeout=self._claim_seconds / 3):
            self._loading = None
            # To store a table may take as long as to read it, and nothing renews the claim meanwhile.
            self.host.renew(_CLAIM, self._claim_seconds + self.clock() - self._started)
            try:
                self._replace_table(group)
            finally:
                self.host.release(_CLAIM)
            return True
        return False

    def _new_table(self, keys: KeyBatch, fetched: Fetched) -> ColumnCache:
        if self.host.publish_table(keys, fetched.rows, fetched.counts, self._started):
            segment = self.host.table()
            if segment is not None and segment.created == self._started:
                self._created = segment.created
                return cast(ColumnCache, MappedTable(self.host, segment))
        return super()._new_table(keys, fetched)

    def _adopt(self) -> bool:
        """Use the table that another worker has published since; return whether there is one."""
        if self._written is not None and not self.host.has_news:
            return False
        segment = self.host.table()
        if segment is None or segment.created <= self._created or segment.created > self.clock():
            return False
        self._created = self._written = segment.created
        self._error = None
        self.cache = cast(ColumnCache, MappedTable(self.host, segment))
        age = dt.timedelta(seconds=self.clock() - segment.created)
        self._schedule(segment.created, segment.created, self._wall() - age)
        return True

    def disconnect(self) -> None:
        super().disconnect()
        self.cache = self._new_cache(Limits())
        self.host.close()
