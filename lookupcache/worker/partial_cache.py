"""`PartialCacheLookup`: a cache of part of a source, for batches of keys, several of them on their way at a time.

keys ─► open: find ─► what is missing, each key once ─► calls ──┐
                                                                 │ poll, wait: fill, or fail
entries ◄─ close: settle ◄─ (the runner joins) ◄─ ready ◄────────┘
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.cache import ColumnCache, Limits
from lookupcache.cache.column_cache import Lease
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import KeyBatch, match
from lookupcache.errors import LookupRuntimeError
from lookupcache.executor.call_group import CallGroup
from lookupcache.worker.answers import Fetched
from lookupcache.worker.source import Calls, Source

Clock = Callable[[], float]
Numbers = npt.NDArray[np.int64]

_NO_ENTRIES = np.empty(0, dtype=np.int32)


@dataclass(eq=False)
class PendingKeys:
    """A batch of keys that is open: its entries, and the call groups that it waits for.

    ``errors`` are the troubles of its failed lookups; ``error_of`` gives for each row the number of its
    trouble, counted from 1, or 0. ``broken`` is an error that is no trouble of the source, and ends the run.
    """

    lease: Lease
    waits: set[int] = field(default_factory=set)
    errors: list[LookupRuntimeError] = field(default_factory=list)
    error_of: npt.NDArray[np.int32] | None = None
    broken: BaseException | None = None

    @property
    def ready(self) -> bool:
        """Whether every row has its entry, or its error."""
        return not self.waits

    @property
    def entries(self) -> Entries:
        """The entry of each row, -1 for none."""
        return self.lease.entries

    def fail(self, entries: Entries, number: Numbers, errors: list[LookupRuntimeError]) -> None:
        """Take entries away from the rows that have them, and give those their error.

        ``number`` says which of ``errors`` each entry failed with.
        """
        order = np.argsort(entries)
        place = np.searchsorted(entries[order], self.lease.entries)
        place[place == len(entries)] = 0
        rows = np.flatnonzero(entries[order][place] == self.lease.entries)
        if not rows.size:
            return
        if self.error_of is None:
            self.error_of = np.zeros(len(self.lease.entries), dtype=np.int32)
        self.error_of[rows] = number[order][place[rows]] + 1 + len(self.errors)
        self.errors += errors
        self.lease.entries[rows] = -1

    def fail_rows(self, rows: npt.NDArray[np.bool_], error: LookupRuntimeError) -> None:
        """Give rows an error."""
        self.errors = [error]
        self.error_of = rows.astype(np.int32)


@dataclass(eq=False)
class _Asked:
    """Keys that the source is being asked for together; ``background`` where nobody waits for them."""

    number: int
    keys: KeyBatch
    lease: Lease
    calls: Calls
    group: CallGroup
    background: bool = False


@dataclass(eq=False)
class _Held:
    """Keys of a call that is not full yet, and until when it waits for more."""

    asked: _Asked
    until: float


class PartialCacheLookup:
    """Finds the entries of batches of keys, asking the source for those that are missing.

    `open` a batch; when it is `ready`, after `poll` or `wait`, use its entries; then `close` it. A key that an
    open batch is waiting for is not asked for again by the next. Strategies differ in the `Limits` of the cache alone,
    but for ALL, which is `FullCacheLookup`. ``clock`` gives seconds that never run backwards.
    """

    def __init__(self, source: Source, clock: Clock = time.monotonic) -> None:
        self.source = source
        self.clock = clock
        self.counters = source.counters
        self.cache = self._new_cache()
        self._open: list[PendingKeys] = []
        self._asked: dict[int, _Asked] = {}
        config = source.plan.config
        self._all_or_nothing = config.on_error == "fail" and config.stale_if_error is None
        self._last = 0
        self._counted = (0, 0)
        self._held: _Held | None = None

    def open(self, keys: KeyBatch) -> PendingKeys:
        """Find the entries of keys, null where any of its columns is, and ask for those that are missing."""
        now = self.clock()
        if self.source.tells_changes:
            self.counters["invalidations"] += self.cache.invalidate(self.source.changed())
        pending = PendingKeys(self.cache.find(keys, now))
        try:
            asked = self._ask_missing(keys, pending.lease, now)
        except BaseException:
            self.cache.release(pending.lease)
            raise
        pending.waits = self.cache.waits(pending.lease)
        self._open.append(pending)
        self.counters["rows"] += len(keys)
        self.counters["keys"] += self.cache.touch(pending.lease)
        self.counters["misses"] += asked
        self.counters["hits"] += count_non_null(keys) - asked
        return pending

    def find(self, keys: KeyBatch) -> PendingKeys:
        """Open a batch and wait until it is ready; raises the trouble of a lookup that failed."""
        pending = self.open(keys)
        try:
            self.hurry()
            while not pending.ready:
                self.wait()
            if error := pending.broken or next(iter(pending.errors), None):
                raise error
        except BaseException:
            self.abandon([pending])
            raise
        return pending

    def poll(self) -> None:
        """Take in the call groups that have completed."""
        if self._asked:
            self._take_in(self.source.executor.completed(wait=False))

    def wait(self, *, room: bool = False) -> None:
        """Wait for a call group, or with ``room`` until another call may be made; take in what has completed."""
        started = time.perf_counter()
        try:
            self._take_in(self.source.executor.completed(wait=True, room=room))
        finally:
            self.counters.spend("source_seconds", started)

    def hurry(self) -> None:
        """Start a call that waits for more keys: no more will come."""
        if self._held is not None:
            self.source.executor.start(self._held.asked.group)
            self._held = None

    def close(self, pending: PendingKeys) -> None:
        """End a batch: its entry numbers are no longer valid, and the limits hold again."""
        self._open.remove(pending)
        self.cache.release(pending.lease)
        self._enforce_limits()

    def abandon(self, batches: Iterable[PendingKeys]) -> None:
        """Give up open batches, and the calls that nobody else waits for."""
        for pending in batches:
            self._open.remove(pending)
            self.cache.release(pending.lease)
        awaited = {number for pending in self._open for number in pending.waits}
        for asked in [a for a in self._asked.values() if not a.background and a.number not in awaited]:
            self.source.executor.cancel(asked.group)
            self._completed(asked)
            self.cache.fail(asked.lease.entries, self.clock())
        self._enforce_limits()

    def _enforce_limits(self) -> None:
        """Keep the cache within its limits; count what was removed since the last time, also by finds and fills."""
        self.cache.enforce_limits(self.clock())
        self.counters["evictions"] += self.cache.evictions - self._counted[0]
        self.counters["expirations"] += self.cache.expirations - self._counted[1]
        self._counted = (self.cache.evictions, self.cache.expirations)

    @property
    def in_flight(self) -> int:
        """How many calls to the source are unanswered."""
        return self.source.executor.in_flight if self._asked else 0

    @property
    def capacity(self) -> int:
        """How many calls the source is given at a time."""
        return self.source.executor.capacity

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────

    def _ask_missing(self, keys: KeyBatch, lease: Lease, now: float) -> int:
        """Ask for what has no entry, or one too old; return how many keys that are."""
        entries, asked = lease.entries, 0
        missing = entries < 0 if keys.valid is None else (entries < 0) & keys.valid
        if missing.any():
            pending = keys.take(np.flatnonzero(missing))
            distinct = pending.distinct()
            entries[missing] = self._ask_new(pending.take(distinct.first), now)[distinct.code]
            asked += len(distinct.first)
        if lease.expired.size:
            self._ask_again(keys.take(lease.expired), entries[lease.expired], wait=True)
            asked += len(lease.expired)
        if lease.aging.size:
            self._ask_again(keys.take(lease.aging), entries[lease.aging], wait=False)
            self.counters["refreshes"] += len(lease.aging)
        return asked

    def _ask_new(self, keys: KeyBatch, now: float) -> Entries:
        """Ask for keys that are not here; with ``lookup.batch.max-delay``, those of a call that is not full wait."""
        delay, most = self.source.plan.config.batch_max_delay, self.source.max_keys
        if delay is None or most == 1:
            return self._ask_together(keys, now)
        if self._held is not None and (match(self._held.asked.keys.columns, keys.columns) >= 0).any():
            # A key's entry may have gone for want of room; but a call has each key once.
            self.hurry()
        held = self._take_back()
        before = 0 if held is None else len(held.asked.keys)
        over = int((before + len(keys)) % most)
        if over == before + len(keys):
            return self._ask_together(keys, now, held, until=time.monotonic() + delay if held is None else held.until)
        last = len(keys) - over
        entries = self._ask_together(keys.take(np.arange(last)), now, held)
        if not over:
            return entries
        rest = keys.take(np.arange(last, len(keys)))
        return np.concatenate([entries, self._ask_together(rest, now, until=time.monotonic() + delay)])

    def _take_back(self) -> _Held | None:
        """Return the call that is not full, unless it has started meanwhile."""
        held, self._held = self._held, None
        return held if held is not None and self.source.executor.withdraw(held.asked.group) else None

    def _ask_together(
        self, keys: KeyBatch, now: float, held: _Held | None = None, until: float | None = None
    ) -> Entries:
        """Ask for new keys, with those of a held call; start at once, or later."""
        number = self._next_number() if held is None else held.asked.number
        # Before anything is reserved: what cannot be asked for must not be waited for.
        calls = self.source.calls(keys if held is None else held.asked.keys.joined(keys))
        entries = self.cache.reserve(keys, number, now)
        lease = self.cache.hold(entries)
        if held is not None:
            self.cache.release(held.asked.lease)
            lease.entries = np.concatenate([held.asked.lease.entries, entries])
        self._send(number, calls, lease, until=until)
        return entries

    def _ask_again(self, keys: KeyBatch, entries: Entries, *, wait: bool) -> None:
        number = self._next_number()
        calls = self.source.calls(keys)
        self.cache.ask_again(entries, number, wait=wait)
        self._send(number, calls, self.cache.hold(entries), background=not wait)

    def _send(
        self, number: int, calls: Calls, lease: Lease, *, background: bool = False, until: float | None = None
    ) -> None:
        group = CallGroup(calls.arguments, number, all_or_nothing=self._all_or_nothing and not background)
        asked = self._asked[number] = _Asked(number, calls.keys, lease, calls, group, background)
        try:
            if until is None:
                self.source.executor.start(group)
            else:
                self._held = _Held(asked, until)
                self.source.executor.start_later(group, until - time.monotonic())
        except BaseException:
            # No thread could be started, for one: nobody may wait for these keys.
            self.source.executor.cancel(group)
            self._completed(asked)
            self.cache.fail(lease.entries, math.inf)
            raise

    def _next_number(self) -> int:
        self._last = self._last % (2**31 - 1) + 1
        return self._last

    # ── taking in ────────────────────────────────────────────────────────────────────────────────────────

    def _take_in(self, groups: Iterable[CallGroup]) -> None:
        """Take in all call groups, since each completes only once; then raise the first error that is not the source's.

        Such an error breaks the run of who took them in, but others may be waiting for them too.
        """
        errors: list[BaseException] = []
        for group in groups:
            try:
                self._take_one(group)
            except BaseException as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _take_one(self, group: CallGroup) -> None:
        asked = self._asked[group.number]
        waited = self._completed(asked)
        try:
            self._store(asked, waited)
        except BaseException as error:
            # None of its entries may stay without rows and without a call: it would look like a key without rows.
            self.cache.fail(asked.lease.entries, math.inf)
            for pending in waited:
                pending.broken = error
            raise

    def _store(self, asked: _Asked, waited: list[PendingKeys]) -> None:
        """Cache what a call group has fetched, and report its errors to those who waited."""
        entries, now = asked.lease.entries, self.clock()
        fetched = self._fetched(asked)
        failed = fetched.failed
        self.cache.fill(entries[~failed], fetched.rows, fetched.counts[~failed], now)
        if fetched.errors:
            self._fail(entries[failed], fetched, now, waited)

    def _completed(self, asked: _Asked) -> list[PendingKeys]:
        """Note that nobody waits for this any more; return who did."""
        if self._held is not None and self._held.asked is asked:
            self._held = None
        del self._asked[asked.number]
        self.cache.release(asked.lease)
        waited = [pending for pending in self._open if asked.number in pending.waits]
        for pending in waited:
            pending.waits.remove(asked.number)
        return waited

    def _fetched(self, asked: _Asked) -> Fetched:
        """Read the answers; where they cannot be read together, all of them have failed."""
        try:
            return self.source.fetched(asked.calls, asked.group.answers)
        except LookupRuntimeError as error:
            nothing = pa.schema([]).empty_table()
            return Fetched(
                nothing, np.zeros(len(asked.keys), np.int64), {0: error}, np.zeros(len(asked.keys), np.int64)
            )

    def _fail(self, entries: Entries, fetched: Fetched, now: float, waited: list[PendingKeys]) -> None:
        """Serve what is stale, as far as it may be; all else has failed for those who waited.

        A batch that only holds such an entry found it young enough, and keeps it.
        """
        assert fetched.call_of is not None
        lost = self.cache.fail(entries, now)
        self.counters["stale"] += self.cache.stale(entries[~lost], now)
        if lost.any():
            numbers = {call: number for number, call in enumerate(fetched.errors)}
            number = np.array([numbers[call] for call in fetched.call_of[fetched.failed][lost].tolist()])
            for pending in waited:
                pending.fail(entries[lost], number, list(fetched.errors.values()))

    def _new_cache(self, limits: Limits | None = None) -> ColumnCache:
        plan = self.source.plan
        schema = pa.schema([pa.field(name, plan.schema.field(name).type) for name in plan.columns])
        return ColumnCache(schema, self.source.reader.key_types, limits or Limits.of(plan.config))


def count_non_null(keys: KeyBatch) -> int:
    """Return how many of the keys are not null."""
    return len(keys) if keys.valid is None else int(np.count_nonzero(keys.valid))
