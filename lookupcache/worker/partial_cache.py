"""`PartialCacheLookup`: a cache of part of a source, for batches of keys; several batches are open at a time.

keys ─► open: find ─► missing keys, each once ─► calls ──┐
                                                          │ poll, wait: fill, or fail
entries ◄─ close: enforce limits ◄─ (join) ◄─ ready ◄─────┘
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.cache import ColumnCache, Limits
from lookupcache.cache.entry_columns import AnyEntries, Readable
from lookupcache.cache.entry_numbers import Lease
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import KeyBatch, Positions, match
from lookupcache.errors import LookupRuntimeError
from lookupcache.executor.call_group import CallGroup
from lookupcache.metrics import Counters, counting_context, counting_into, counting_part
from lookupcache.worker.answers import Fetched
from lookupcache.worker.calls import Calls
from lookupcache.worker.prefetched import Prefetched
from lookupcache.worker.source import Source

Clock = Callable[[], float]
Numbers = npt.NDArray[np.int64]


@dataclass(eq=False)
class PendingKeys:
    """An open batch of keys: its entries in what is ``stored``, and the call groups that it waits for.

    ``errors`` are the errors of its failed lookups; ``error_of`` is for each row the number of its error, counted from
    1, or 0. ``broken`` is an error that is not the source's, such as a wrong schema, and ends the run.
    ``prefetched`` is not None if the batch itself arrives later.
    """

    lease: Lease
    stored: Readable
    waits: set[int] = field(default_factory=set)
    errors: list[LookupRuntimeError] = field(default_factory=list)
    error_of: npt.NDArray[np.int32] | None = None
    broken: BaseException | None = None
    prefetched: Prefetched | None = None

    @property
    def ready(self) -> bool:
        """Whether every row has its entry, or its error."""
        return not self.waits

    def resolve(self) -> tuple[Readable, AnyEntries]:
        """Return where the rows are stored, and the entry of each key there, -1 for none."""
        return self.stored, self.lease.entries

    def counts(self) -> Numbers:
        """Return how many rows each key has."""
        stored, entries = self.resolve()
        return stored.counts(entries)

    def arriving(self) -> AbstractContextManager[None]:
        """Return a context in which the batches that are opened are this one, which was prefetched, or parts of it."""
        return nullcontext() if self.prefetched is None else self.prefetched.arriving()

    def fail(self, entries: Entries, number: Numbers, errors: list[LookupRuntimeError]) -> None:
        """Set the errors of the rows that have these entries, and remove their entries.

        ``number`` says which of ``errors`` each entry failed with.
        """
        order = np.argsort(entries)
        position = np.searchsorted(entries[order], self.lease.entries)
        # An entry above all others has no position; 0 is one that it is not equal to.
        position[position == len(entries)] = 0
        rows = np.flatnonzero(entries[order][position] == self.lease.entries)
        if not rows.size:
            return
        if self.error_of is None:
            self.error_of = np.zeros(len(self.lease.entries), dtype=np.int32)
        self.error_of[rows] = number[order][position[rows]] + 1 + len(self.errors)
        self.errors += errors
        self.lease.entries[rows] = -1

    def fail_rows(self, rows: npt.NDArray[np.bool_], error: LookupRuntimeError) -> None:
        """Set one error for all of these rows."""
        self.errors = [error]
        self.error_of = rows.astype(np.int32)


@dataclass(eq=False)
class SourceRequest:
    """Keys that are requested from the source together; for a ``background`` request, no batch waits."""

    number: int
    keys: KeyBatch
    lease: Lease
    calls: Calls
    group: CallGroup
    background: bool = False
    part: Counters | None = field(default_factory=counting_part)


@dataclass(eq=False)
class _WaitingCall:
    """The keys of a call that is not full, which waits for more until a time of `time.monotonic`."""

    request: SourceRequest
    until: float


class PartialCacheLookup:
    """Finds the entries of batches of keys, and requests missing keys from the source.

    `open` a batch; when it is `ready`, after `poll` or `wait`, use its entries; then `close` it. A key that an
    open batch waits for is not requested again by the next. The strategies LRU, TTL and NONE differ only in the
    `Limits` of the cache; ALL is `FullCacheLookup`. ``clock`` returns seconds that never run backwards.
    """

    def __init__(self, source: Source, clock: Clock = time.monotonic) -> None:
        self.source = source
        self.clock = clock
        self.counters = source.counters
        self.cache = self._new_cache()
        self._open: list[PendingKeys] = []
        self._requests: dict[int, SourceRequest] = {}
        config = source.plan.config
        self._all_or_nothing = config.on_error == "fail" and config.stale_if_error is None
        self._last = 0
        self._waiting: _WaitingCall | None = None
        self._counted = (0, 0)

    def open(self, keys: KeyBatch) -> PendingKeys:
        """Find the entries of keys, and request those that are missing; a key with a null has none."""
        pending, requested = self._request(keys)
        try:
            used = self._touch(pending)
        except BaseException:
            self.abandon([pending])
            raise
        self.counters["rows"] += len(keys)
        self.counters["keys"] += used
        self.counters["misses"] += requested
        self.counters["hits"] += count_non_null(keys) - requested
        for _, one in self._prefetched():
            one.note_hits(count_non_null(keys) - requested)
        return pending

    def prefetch(self, keys: KeyBatch) -> PendingKeys:
        """Request missing keys that a later `open` will need, which finds them until this batch is closed.

        A key that is requested here counts as a miss. What `open` then counts as a hit for it, while the batch is
        said to be `arriving`, `close` takes back.
        """
        pending, requested = self._request(keys)
        pending.prefetched = Prefetched(keys)
        pending.prefetched.count_requested(requested, self.counters)
        return pending

    def _prefetched(self) -> Iterator[tuple[PendingKeys, Prefetched]]:
        """Yield the batches that were prefetched, the first one first."""
        for pending in self._open:
            if pending.prefetched is not None:
                yield pending, pending.prefetched

    def _request(self, keys: KeyBatch) -> tuple[PendingKeys, int]:
        """Find the entries of keys, request those that are missing, and return how many keys that are."""
        now = self.clock()
        self._invalidate()
        pending = self._new_pending(self.cache.find(keys, now))
        try:
            requested = self._request_missing(keys, pending, now)
            pending.waits = self.cache.waits(pending.lease)
        except BaseException:
            self.cache.release(pending.lease)
            raise
        self._open.append(pending)
        return pending, requested

    def _new_pending(self, lease: Lease) -> PendingKeys:
        return PendingKeys(lease, self.cache)

    def _touch(self, pending: PendingKeys) -> int:
        """Record the use of a batch's entries; return how many different ones there are."""
        return self.cache.touch(pending.lease)

    def _invalidate(self) -> None:
        """Remove the keys that the source reports as changed."""
        if self.source.reports_changes:
            self._remove_changed(self.source.changed())

    def _remove_changed(self, keys: KeyBatch | None) -> None:
        """Remove keys, or with None all of them, from what later batches find."""
        self.counters["invalidations"] += self.cache.invalidate(keys)
        for _, prefetched in self._prefetched():
            prefetched.forget(keys)

    def find(self, keys: KeyBatch) -> PendingKeys:
        """Open a batch and wait until it is ready; raises the error of a lookup that failed."""
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
        """Store the results of the call groups that have completed."""
        if self._requests:
            self._complete_groups(self.source.executor.take_completed(wait=False))

    def wait(self, *, room: bool = False) -> None:
        """Wait for a call group, or with ``room`` until another call may be made; store results."""
        with self.counters.timed("source_seconds"):
            self._complete_groups(self.source.executor.take_completed(wait=True, room=room))

    def hurry(self) -> None:
        """Start the call that waits for more keys, since no more will arrive."""
        if self._waiting is not None:
            self.source.executor.start(self._waiting.request.group)
            self._waiting = None

    def close(self, pending: PendingKeys) -> None:
        """End a batch: its entry numbers are no longer valid, and the cache's limits are enforced."""
        self._end(pending)
        self._enforce_limits()

    def _end(self, pending: PendingKeys) -> None:
        if pending.prefetched is not None:
            pending.prefetched.end(self.counters)
        self._open.remove(pending)
        self.cache.release(pending.lease)

    def abandon(self, batches: Iterable[PendingKeys]) -> None:
        """Give up open batches, and cancel the calls that no other batch waits for."""
        for pending in batches:
            self._end(pending)
        awaited = {number for pending in self._open for number in pending.waits}
        requests = list(self._requests.values())
        for request in [one for one in requests if not one.background and one.number not in awaited]:
            self.source.executor.cancel(request.group)
            self._end_request(request)
            self._release(request)
            self.cache.fail(request.lease.entries, self.clock())
        self._enforce_limits()

    def disconnect(self) -> None:
        """Close what is open: the source's connection and files."""
        self.source.close()

    def _enforce_limits(self) -> None:
        """Keep the cache within its limits; count what was removed since the last time, also by finds and fills."""
        self.cache.enforce_limits(self.clock())
        self.counters["evictions"] += self.cache.evictions - self._counted[0]
        self.counters["expirations"] += self.cache.expirations - self._counted[1]
        self._counted = (self.cache.evictions, self.cache.expirations)

    def content(self) -> tuple[int, int, int]:
        """Return the rows, bytes and keys that this worker has cached."""
        return self.cache.rows, self.cache.nbytes, len(self.cache)

    @property
    def in_flight(self) -> int:
        """How many calls to the source are unanswered."""
        return self.source.executor.in_flight if self._requests else 0

    @property
    def capacity(self) -> int:
        """The maximum number of concurrent calls."""
        return self.source.executor.capacity

    # ── requesting ──────────────────────────────────────────────────────────────────────────────────────

    def _request_missing(self, keys: KeyBatch, pending: PendingKeys, now: float) -> int:
        """Request keys without entry, or with one that is too old; return how many they are."""
        lease, entries, requested = pending.lease, pending.lease.entries, 0
        missing = np.flatnonzero(entries < 0 if keys.valid is None else (entries < 0) & keys.valid)
        if missing.size:
            requested = self._find_missing(keys, pending, missing, now)
        if lease.expired.size:
            requested += self._fetch_again(keys.take(lease.expired), entries[lease.expired], now, wait=True)
        if lease.aging.size:
            refreshes = self._fetch_again(keys.take(lease.aging), entries[lease.aging], now, wait=False)
            self.counters["refreshes"] += refreshes
        return requested

    def _find_missing(self, keys: KeyBatch, pending: PendingKeys, rows: Positions, now: float) -> int:
        """Find keys without entry elsewhere, or request them; return how many are requested."""
        entries = pending.lease.entries
        for one, prefetched in self._prefetched():
            entries[rows] = prefetched.find(keys.take(rows), one.lease.entries, self.cache, now)
            rows = rows[entries[rows] < 0]
            if not rows.size:
                return 0
        return self._fetch_missing(keys, entries, rows, now)

    def _fetch_missing(self, keys: KeyBatch, entries: Entries, rows: Positions, now: float) -> int:
        """Write the entries of some of the keys that had none; return how many keys are requested for them."""
        missing = keys.take(rows)
        distinct = missing.distinct()
        new, requested = self._fetch_new(missing.take(distinct.first), now)
        entries[rows] = new[distinct.code]
        return requested

    def _fetch_new(self, keys: KeyBatch, now: float) -> tuple[Entries, int]:
        """Return the entries of distinct keys that had none, and how many keys are requested for them."""
        return self._request_new(keys, now), len(keys)

    def _fetch_again(self, keys: KeyBatch, entries: Entries, now: float, *, wait: bool) -> int:
        """Fetch entries again, for which batches have to ``wait`` or not; return how many keys are requested."""
        self._request_again(keys, entries, wait=wait)
        return len(keys)

    def _request_new(self, keys: KeyBatch, now: float) -> Entries:
        """Request keys that have no entry; with ``lookup.batch.max-delay``, a call that is not full waits for more."""
        delay, most = self.source.plan.config.batch_max_delay, self.source.max_keys
        if delay is None or most == 1:
            return self._request_together(keys, now)
        if self._waiting is not None and (match(self._waiting.request.keys.columns, keys.columns) >= 0).any():
            # A waiting key's entry may have been evicted, so the key is requested again; but a call has each key once.
            self.hurry()
        waiting = self._take_back()
        before = 0 if waiting is None else len(waiting.request.keys)
        over = int((before + len(keys)) % most)
        if over == before + len(keys):
            until = time.monotonic() + delay if waiting is None else waiting.until
            return self._request_together(keys, now, waiting, until=until)
        last = len(keys) - over
        entries = self._request_together(keys.take(np.arange(last)), now, waiting)
        if not over:
            return entries
        rest = keys.take(np.arange(last, len(keys)))
        return np.concatenate([entries, self._request_together(rest, now, until=time.monotonic() + delay)])

    def _take_back(self) -> _WaitingCall | None:
        """Return the waiting call, unless it has started in the meantime."""
        waiting, self._waiting = self._waiting, None
        return waiting if waiting is not None and self.source.executor.withdraw(waiting.request.group) else None

    def _request_together(
        self, keys: KeyBatch, now: float, waiting: _WaitingCall | None = None, until: float | None = None
    ) -> Entries:
        """Request new keys, with those of a waiting call; start at once, or with ``until`` later."""
        number = self._next_number() if waiting is None else waiting.request.number
        try:
            # Before any entry is reserved: if the keys cannot be split, no batch may wait for them.
            calls = self.source.split(keys if waiting is None else waiting.request.keys.concat_with(keys))
            entries = self.cache.reserve(keys, number, now)
        except BaseException:
            if waiting is not None:
                # It was withdrawn: without this, its call would never be made, and others would wait for it.
                self._send(number, waiting.request.calls, waiting.request.lease)
            raise
        lease = self.cache.lease(entries)
        if waiting is not None:
            self.cache.release(waiting.request.lease)
            lease.entries = np.concatenate([waiting.request.lease.entries, entries])
        self._send(number, calls, lease, until=until)
        return entries

    def _request_again(self, keys: KeyBatch, entries: Entries, *, wait: bool) -> None:
        number = self._next_number()
        calls = self.source.split(keys)
        self.cache.request_again(entries, number, wait=wait)
        self._send(number, calls, self.cache.lease(entries), background=not wait)

    def _send(
        self,
        number: int,
        calls: Calls,
        lease: Lease,
        *,
        background: bool = False,
        until: float | None = None,
        deadline: float = math.inf,
    ) -> None:
        all_or_nothing = self._all_or_nothing and not background
        group = CallGroup(calls.arguments, number, all_or_nothing, counting_context(), deadline, background)
        request = self._requests[number] = SourceRequest(number, calls.keys, lease, calls, group, background)
        try:
            if until is None:
                self.source.executor.start(group)
            else:
                self._waiting = _WaitingCall(request, until)
                self.source.executor.start_later(group, until - time.monotonic())
        except BaseException:
            # As where no thread could be started: no batch may wait for these keys.
            self.source.executor.cancel(group)
            self._end_request(request)
            self._release(request)
            self.cache.fail(lease.entries, math.inf)
            raise

    def _next_number(self) -> int:
        self._last = self._last % (2**31 - 1) + 1
        return self._last

    # ── completing ───────────────────────────────────────────────────────────────────────────────────────

    def _complete_groups(self, groups: Iterable[CallGroup]) -> None:
        """Store the results of all groups, then raise the first error that is not the source's.

        A group is returned by the executor only once, and other batches may wait for the rest of the groups.
        """
        errors: list[BaseException] = []
        for group in groups:
            try:
                self._complete_group(group)
            except BaseException as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _complete_group(self, group: CallGroup) -> None:
        request = self._requests[group.number]
        waited = self._end_request(request)
        try:
            # Another join of the same lookup may be the one that polls.
            with counting_into(request.part):
                self._store(request, waited)
        except BaseException as error:
            for pending in waited:
                pending.broken = error
            # None of its entries may stay without rows and without a call: it would look like a key without rows.
            self.cache.fail(request.lease.entries, math.inf)
            raise
        finally:
            self._release(request)

    def _release(self, request: SourceRequest) -> None:
        """End the claims of a request, in a subclass that claims keys."""

    def _store(self, request: SourceRequest, waited: list[PendingKeys]) -> None:
        """Cache what a call group has fetched, and report its errors to the batches that waited."""
        entries, now = request.lease.entries, self.clock()
        fetched = self._read_answers(request)
        failed = fetched.failed
        written = now if fetched.written is None else np.minimum(fetched.written[~failed], now)
        self.cache.fill(entries[~failed], fetched.rows, fetched.counts[~failed], written)
        self._publish_fetched(request, fetched)
        if fetched.errors:
            self._fail(entries[failed], fetched, now, waited)

    def _publish_fetched(self, request: SourceRequest, fetched: Fetched) -> None:
        """Share fetched rows with other workers, in a subclass that does."""

    def _end_request(self, request: SourceRequest) -> list[PendingKeys]:
        """Remove a request; return the batches that waited for it, and no longer do."""
        if self._waiting is not None and self._waiting.request is request:
            self._waiting = None
        del self._requests[request.number]
        self.cache.release(request.lease)
        waited = [pending for pending in self._open if request.number in pending.waits]
        for pending in waited:
            pending.waits.remove(request.number)
        return waited

    def _read_answers(self, request: SourceRequest) -> Fetched:
        """Read the answers; if they cannot be read together, all of them have failed."""
        try:
            return self.source.read_answers(request.calls, request.group.answers)
        except LookupRuntimeError as error:
            nothing = pa.schema([]).empty_table()
            return Fetched(
                nothing, np.zeros(len(request.keys), np.int64), {0: error}, np.zeros(len(request.keys), np.int64)
            )

    def _fail(self, entries: Entries, fetched: Fetched, now: float, waited: list[PendingKeys]) -> None:
        """Serve stale entries where that is allowed; the others have failed for the batches that waited.

        A batch that leases such an entry without waiting found it fresh enough, and keeps it.
        """
        assert fetched.call_of is not None
        lost = self.cache.fail(entries, now)
        self.counters["stale"] += self.cache.count_stale(entries[~lost], now)
        if lost.any():
            numbers = {call: number for number, call in enumerate(fetched.errors)}
            number = np.array([numbers[call] for call in fetched.call_of[fetched.failed][lost].tolist()])
            for pending in waited:
                pending.fail(entries[lost], number, list(fetched.errors.values()))

    def _new_cache(self, limits: Limits | None = None) -> ColumnCache:
        source = self.source
        schema, types = source.plan.columns_schema, source.reader.key_types
        return ColumnCache(schema, types, limits or self._limits(), seed=source.hash_seed)

    def _limits(self) -> Limits:
        return Limits.of(self.source.plan.config)


def count_non_null(keys: KeyBatch) -> int:
    """Return how many of the keys are not null."""
    return len(keys) if keys.valid is None else int(np.count_nonzero(keys.valid))
