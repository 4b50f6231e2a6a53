"""`FullCacheLookup`: the full table, after constants and calc, in memory, reloaded while lookups continue."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import cast

import numpy as np
import pyarrow as pa

from lookupcache.arrays import from_numpy
from lookupcache.cache import ColumnCache, Limits
from lookupcache.cache.keys import KeyBatch
from lookupcache.errors import LookupRuntimeError, SourceError
from lookupcache.executor.call_group import CallGroup
from lookupcache.shared_error import SharedError
from lookupcache.worker.answers import Fetched
from lookupcache.worker.partial_cache import Clock, PartialCacheLookup, PendingKeys, count_non_null
from lookupcache.worker.source import Source

_ROWS_OUT = 10_000


def local_now() -> dt.datetime:
    return dt.datetime.now().astimezone()


class FullCacheLookup(PartialCacheLookup):
    """ALL: the full table in memory; a key that it does not contain has no rows.

    The first load blocks. The table is reloaded while lookups continue with the old one; only if that is twice as old
    as the reload interval, they wait. After a load that fails, or finds no row although there were some, the old
    table is kept, and the failure is counted. Lookups fail once the old table is older than
    ``lookup.cache.stale-if-error``. ``wall`` returns the time of day.
    """

    def __init__(
        self, source: Source, clock: Clock = time.monotonic, wall: Callable[[], dt.datetime] = local_now
    ) -> None:
        super().__init__(source, clock)
        self._wall = wall
        self._written: float | None = None
        self._due = self._overdue = -math.inf
        self._loading: CallGroup | None = None
        self._started = 0.0
        self._error: SharedError | None = None

    def open(self, keys: KeyBatch) -> PendingKeys:
        """Find the entries of keys, -1 for one that has no rows."""
        now = self.clock()
        self._keep_loaded(now)
        pending = PendingKeys(self.cache.find(keys, now), self.cache)
        self._open.append(pending)
        self.counters["rows"] += len(keys)
        self.counters["keys"] += self.cache.touch(pending.lease)
        self.counters["hits"] += count_non_null(keys)
        if self._error is not None and self._too_old(now):
            pending.fail_rows(keys.mask(), cast(LookupRuntimeError, self._error.take()))
            pending.lease.entries[:] = -1
        return pending

    def poll(self) -> None:
        """Do nothing: a loaded table is used from the next batch that is opened."""

    @property
    def in_flight(self) -> int:
        """0: no open batch waits for a call."""
        return 0

    def all_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with their age if the options name an age column; raises the error of a failed load."""
        now = self.clock()
        self._keep_loaded(now)
        if self._error is not None and self._too_old(now):
            raise self._error.take()
        for start in range(0, self.cache.rows, _ROWS_OUT):
            numbers = np.arange(start, min(start + _ROWS_OUT, self.cache.rows))
            columns = self.cache.gather(numbers)
            if self.source.plan.config.age_column is not None:
                columns.append(from_numpy(np.full(len(numbers), max(now - self._written_at, 0.0))))
            yield pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])

    @property
    def _written_at(self) -> float:
        assert self._written is not None
        return self._written

    def _keep_loaded(self, now: float) -> None:
        if self._loading is None and now >= self._due:
            self._start_loading(now)
        if self._loading is None:
            return
        wait = self._written is None or now >= self._overdue
        with self.counters.timed("source_seconds") if wait else nullcontext():
            for group in self.source.executor.take_completed(wait=wait):
                self._loading = None
                self._replace_table(group)

    def _start_loading(self, now: float) -> None:
        self._loading, self._started = CallGroup([None]), now
        self.counters["reloads"] += self._written is not None
        self.source.executor.start(self._loading)

    def _replace_table(self, group: CallGroup) -> None:
        """Use the loaded table, or after an error keep the old one."""
        try:
            self.cache, self._written, self._error = self._table(group), self._started, None
        except LookupRuntimeError as error:
            self.counters["reload_failures"] += self._written is not None
            self.counters["stale"] += self._written is not None
            self._error = SharedError(error)
        if self._written is not None:
            now = self.clock()
            is_fixed = self.source.plan.config.reload_mode == "fixed-rate"
            self._schedule(self._started if is_fixed else now, now, self._wall())

    def _table(self, group: CallGroup) -> ColumnCache:
        config = self.source.plan.config
        keys, fetched = self.source.read_table(group.answers[0])
        if not len(keys) and len(self.cache) and not config.reload_allow_empty:
            raise SourceError(
                f"Table {self.source.plan.table!r}: a reload found no rows, although there were {self.cache.rows:,}.",
                hint="If the table may be empty, set 'lookup.cache.reload-allow-empty' to true.",
            )
        return self._new_table(keys, fetched)

    def _new_table(self, keys: KeyBatch, fetched: Fetched) -> ColumnCache:
        cache = self._new_cache(Limits(ages=self.source.plan.config.age_column is not None))
        cache.put(keys, fetched.rows, fetched.counts, self._started)
        return cache

    def _schedule(self, since: float, now: float, wall: dt.datetime) -> None:
        """Set when to reload next, and from when lookups wait for that; an interval begins at ``since``."""
        config = self.source.plan.config
        self._due = self._overdue = math.inf
        if config.reload_interval is not None:
            self._due = since + config.reload_interval
            self._overdue = self._due + config.reload_interval
        if config.reload_at is not None:
            self._due = now + seconds_until(config.reload_at, wall)

    def _too_old(self, now: float) -> bool:
        """Return whether the old table may not be served after a failed load."""
        longest = self.source.plan.config.stale_if_error
        return self._written is None or (longest is not None and now - self._written > longest)


def seconds_until(time_of_day: str, now: dt.datetime) -> float:
    """Return the seconds until the next such time of day, in the zone of this process if it names none.

    There is one a day. If it is that time now, it is a full day from now. On a day when clocks are put back over it, it
    is the first of two. When they are put forward over it, it is as long after the change as it would have been.

    >>> seconds_until("03:00:00+00:00", dt.datetime(2026, 5, 1, 2, 30, tzinfo=dt.UTC))
    1800.0
    >>> seconds_until("03:00:00", dt.datetime(2026, 5, 1, 3, 0).astimezone())
    86400.0
    """
    at = dt.time.fromisoformat(time_of_day)
    today = now.astimezone(at.tzinfo).date()
    # A date and time without a zone are those of this process, whose offset may be another on the next day.
    days = (dt.datetime.combine(today + dt.timedelta(days=number), at).timestamp() for number in range(3))
    return next(then - now.timestamp() for then in days if then > now.timestamp())
