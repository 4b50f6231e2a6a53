"""`StoredSource`: a source behind a store that all hosts share; the caches before it need not know.

    missing keys ─► store: MGET ──found──► rows, with their true age
                        │ missing
                        ▼
                    claim ──mine──► calls to the source ─► store ─► claim ends
                        └─another's─► polled: rows, or its claim has ended or lapsed: claim

A cache starts a group of one call with all keys that it misses, and reads one answer: `StoreRequest`. The calls to the
source are groups of their own. All of it happens in the worker's own thread, apart from the calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lookupcache.arrays import from_numpy
from lookupcache.cache.keys import KeyBatch, Positions
from lookupcache.errors import LookupRuntimeError
from lookupcache.executor.call_group import CallGroup, Executor
from lookupcache.flow.waiting import CLAIM_SECONDS, Pauses
from lookupcache.functions.connector import FunctionConnector
from lookupcache.lazy import cached_property
from lookupcache.resilience.cluster import ClusterRate
from lookupcache.store.row_store import Attempt, Known, RowStore
from lookupcache.worker.answers import Fetched
from lookupcache.worker.calls import Calls
from lookupcache.worker.source import Source

_FULL_POLL_SECONDS = 0.5
_SAMPLE = 16
"""So many of the keys that others request are looked for again and again, and all of them only now and then."""

Clock = Callable[[], float]


@dataclass(eq=False)
class SourceCalls:
    """Calls to the source for some of a request's keys; ``is_claimed`` says whose rows may be stored, by ``token``.

    When they have ended, ``fetched`` has what they returned, or ``error`` what reading that has raised; ``written`` is
    then the time, by the clock of the cache, if the request still waits for other keys.
    """

    positions: Positions
    is_claimed: np.ndarray[Any, np.dtype[np.bool_]]
    calls: Calls
    group: CallGroup
    token: bytes
    fetched: Fetched | None = None
    written: float = math.inf
    error: BaseException | None = None


@dataclass(eq=False)
class StoreRequest:
    """Keys that a cache misses: what the store has of them, the calls for others, and those that others request.

    ``until`` is when to wait for others no longer, ``deadline`` when calls for keys that were waited for time out,
    ``next_poll`` when to look again, by `time.monotonic`.
    """

    group: CallGroup
    keys: KeyBatch
    names: list[bytes]
    until: float
    deadline: float
    known: list[Known] = field(default_factory=list)
    known_at: list[Positions] = field(default_factory=list)
    calls: list[SourceCalls] = field(default_factory=list)
    open_groups: set[CallGroup] = field(default_factory=set)
    awaited: Positions = field(default_factory=lambda: np.zeros(0, np.int64))
    pauses: Pauses = field(default_factory=Pauses.of_store)
    next_poll: float = math.inf
    next_full_poll: float = math.inf
    has_waited: bool = False
    polls: int = 0
    damaged: set[int] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        """Whether every key has rows, or its call has ended."""
        return not self.open_groups and not self.awaited.size

    def keys_at(self, positions: Positions) -> KeyBatch:
        """Return the keys at positions."""
        return self.keys if len(positions) == len(self.keys) else self.keys.take(positions)

    def names_at(self, positions: Positions) -> list[bytes]:
        """Return the names of some keys."""
        return [self.names[position] for position in positions.tolist()]

    def add_known(self, known: Known, positions: Positions) -> int:
        """Add rows from the store; return how many keys have a damaged entry that was not seen before.

        ``positions`` are those of the keys that were looked for: a damaged entry is read again when its key is claimed.
        """
        if len(known.positions):
            self.known.append(known)
            self.known_at.append(positions[known.positions])
        before = len(self.damaged)
        self.damaged.update(positions[known.damaged].tolist())
        return len(self.damaged) - before


class StoreExecutor(Executor):
    """Runs groups of one call, for a batch of keys, by the store and by an executor for the source.

    Args:
        inner: What calls the source.
        store: The store.
        split: Divides keys into calls to the source.
        read: Reads what calls have returned, and stores it.
        timeout: How long to wait for the calls of others and then to call, in seconds.
    """

    def __init__(
        self,
        inner: Executor,
        store: RowStore,
        split: Callable[[KeyBatch], Calls],
        read: Callable[[StoreRequest, SourceCalls], None],
        timeout: float,
    ) -> None:
        # One call more than there are slots: while they are busy, the next batch is looked up and claimed, so that a
        # slot does not wait for the store.
        inner.most_in_flight = inner.capacity + 1
        super().__init__(inner.most_in_flight, timeout, inner._timed_out)
        self._inner = inner
        self._store = store
        self._split = split
        self._read = read
        self._requests: dict[CallGroup, StoreRequest] = {}
        self._waiting: dict[CallGroup, float] = {}
        self._source_groups: dict[CallGroup, StoreRequest] = {}
        self._done: list[CallGroup] = []

    def open_ahead(self) -> None:
        """Connect to the source before there is a call."""
        self._inner.open_ahead()

    def start(self, group: CallGroup) -> None:
        """Look the keys of a group up in the store, and request the others, or wait for who requests them."""
        if group.started or group.cancelled:
            return
        group.started = True
        self._waiting.pop(group, None)
        keys = group.calls[0]
        now = time.monotonic()
        deadline = min(now + self._timeout, group.deadline)
        until = deadline - _seconds_to_call(deadline - now)
        request = StoreRequest(group, keys, self._store.names(keys), until, deadline)
        self._requests[group] = request
        attempt, every = self._store.find_or_claim(keys, request.names), np.arange(len(keys))
        self._take_attempt(request, every, attempt)
        self._claim(request, attempt.unusable)
        self._end_if_complete(request)

    def start_later(self, group: CallGroup, seconds: float) -> None:
        """Start a group after so many seconds, when `take_completed` is called, unless it is started before."""
        self._waiting[group] = time.monotonic() + seconds

    def withdraw(self, group: CallGroup) -> bool:
        """Withdraw a group that has not started; return False if it has."""
        group.cancelled = group.cancelled or not group.started
        self._waiting.pop(group, None)
        return group.cancelled

    def cancel(self, group: CallGroup) -> None:
        """Cancel the calls to the source for a group, and end its claims."""
        group.cancelled = True
        self._waiting.pop(group, None)
        request = self._requests.pop(group, None)
        if request is not None:
            self._cancel_calls(request)
            for made in request.calls:
                self._release(request, made)
        self._count_in_flight()

    def leave_refreshes(self) -> None:
        """End the claims of refreshes under way, after taking answers that are there: nobody may look at them again.

        Their rows are then for the cache before this source only.
        """
        self._take_completed(self._inner.take_completed(wait=False))
        for request in self._requests.values():
            if request.group.background:
                for made in [one for one in request.calls if one.group in request.open_groups]:
                    self._release(request, made)
                    made.is_claimed = np.zeros(len(made.positions), np.bool_)

    def close(self) -> None:
        """Cancel all calls, and disconnect from the source and the store."""
        for group in list(self._requests):
            self.cancel(group)
        self._inner.close()
        self._store.close()

    def take_completed(self, *, wait: bool, room: bool = False, timeout: float | None = None) -> list[CallGroup]:
        """Return the groups that have completed, at least one with ``wait``; see `Executor.take_completed`."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._start_waiting()
            self._poll()
            self._take_completed(self._inner.take_completed(wait=False))
            self._count_in_flight()
            if self._done or not wait or time.monotonic() >= until or (room and self.in_flight < self.capacity):
                break
            event = self._next_event()
            if event == math.inf and not self._source_groups:
                break
            self._wait_for_source(room, min(until, event) - time.monotonic())
        done, self._done = self._done, []
        self._count_in_flight()
        return [group for group in done if not group.cancelled]

    # ── the keys of a request ────────────────────────────────────────────────────────────────────────────

    def _claim(self, request: StoreRequest, positions: Positions) -> None:
        """Claim keys that have no entry which could be used."""
        if positions.size:
            # A batch does not wait for another process to refresh an entry; a refresh does.
            waits = request.group.background
            self._take_attempt(request, positions, self._store.claim(*self._at(request, positions), waits=waits))

    def _take_attempt(self, request: StoreRequest, positions: Positions, attempt: Attempt) -> None:
        """Request the keys that are claimed here, and wait for those that others have claimed."""
        self._store.counters["store_dropped"] += request.add_known(attempt.known, positions)
        if attempt.others.size:
            request.group.is_queued = True
            request.awaited = np.concatenate([request.awaited, positions[attempt.others]])
            request.next_poll = time.monotonic() + request.pauses.take()
            request.next_full_poll = min(request.next_full_poll, time.monotonic() + _FULL_POLL_SECONDS)
            if not request.has_waited:
                self._store.counters["store_waits"] += len(attempt.others)
        if attempt.to_request.size:
            self._request(request, positions[attempt.to_request], attempt.is_claimed, attempt.token)

    def _at(self, request: StoreRequest, positions: Positions) -> tuple[KeyBatch, list[bytes]]:
        """Return the keys at positions, and their names."""
        return request.keys_at(positions), request.names_at(positions)

    def _request(self, request: StoreRequest, positions: Positions, is_claimed: Any, token: bytes) -> None:
        """Request keys from the source."""
        keys = request.keys_at(positions)
        try:
            calls = self._split(keys)
            outer = request.group
            # One timeout for both, the wait for a claim, here or of the host, and the call.
            deadline = request.deadline if request.has_waited else outer.deadline
            group = CallGroup(calls.arguments, outer.number, outer.all_or_nothing, outer.context, deadline)
            request.calls.append(SourceCalls(positions, is_claimed, calls, group, token))
        except BaseException:
            self._store.release(request.names_at(positions[is_claimed]), token)
            raise
        request.open_groups.add(group)
        self._source_groups[group] = request
        self._inner.start(group)
        outer.is_queued |= group.is_queued

    def _poll(self) -> None:
        """Look for the keys that others request, if it is time."""
        now = time.monotonic()
        for request in [one for one in self._requests.values() if one.next_poll <= now]:
            awaited, request.awaited = request.awaited, np.zeros(0, np.int64)
            request.next_poll, request.has_waited = math.inf, True
            if now >= request.until:
                # Who requests them takes longer than any call may, so has many to make: the source may be well.
                request.deadline = math.inf
                self._request(request, awaited, np.zeros(len(awaited), np.bool_), b"")
            elif self._may_have_ended(request, awaited, now):
                attempt = self._store.claim_missing(*self._at(request, awaited))
                self._take_attempt(request, awaited, attempt)
                self._claim(request, awaited[attempt.unusable])
            else:
                request.awaited, request.next_poll = awaited, now + request.pauses.take()
            self._end_if_complete(request)

    def _may_have_ended(self, request: StoreRequest, awaited: Positions, now: float) -> bool:
        """Return whether to look for all keys: some of many have entries now, or it is long since that was done.

        Who requests keys writes those of a call together; to look for all takes the server as long as to claim them.
        """
        if len(awaited) > _SAMPLE and now < request.next_full_poll:
            # Others each time: the calls of a few keys, too, are seen soon.
            request.polls += 1
            few = np.arange(_SAMPLE) * len(awaited) // _SAMPLE + request.polls
            sample = awaited[few % len(awaited)]
            if not self._store.has_any(request.names_at(sample)):
                return False
        request.next_full_poll = now + _FULL_POLL_SECONDS
        return True

    def _start_waiting(self) -> None:
        now = time.monotonic()
        for group in [group for group, at in self._waiting.items() if at <= now]:
            self.start(group)

    # ── how a request ends ───────────────────────────────────────────────────────────────────────────────

    def _take_completed(self, groups: Sequence[CallGroup]) -> None:
        for group in groups:
            request = self._source_groups.pop(group, None)
            if request is not None:
                request.open_groups.discard(group)
                # At once: others wait for these keys, and this request may wait for theirs.
                self._read(request, next(made for made in request.calls if made.group is group))
                if group.all_or_nothing and any(isinstance(answer, BaseException) for answer in group.answers):
                    self._drop_open_calls(request)
                self._end_if_complete(request)

    def _drop_open_calls(self, request: StoreRequest) -> None:
        """Cancel the other calls of a request that has failed, and end their claims; their keys have no answer."""
        for made in [made for made in request.calls if made.group in request.open_groups]:
            self._release(request, made)
            request.calls.remove(made)
        self._cancel_calls(request)

    def _release(self, request: StoreRequest, made: SourceCalls) -> None:
        self._store.release(request.names_at(made.positions[made.is_claimed]), made.token)

    def _cancel_calls(self, request: StoreRequest) -> None:
        """Cancel the calls that have not ended, and wait for nobody: the request has failed, or is not needed."""
        for group in list(request.open_groups):
            self._source_groups.pop(group, None)
            self._inner.cancel(group)
        request.open_groups.clear()
        request.awaited, request.next_poll = np.zeros(0, np.int64), math.inf

    def _end_if_complete(self, request: StoreRequest) -> None:
        if request.is_complete and self._requests.pop(request.group, None) is not None:
            request.group.answers, request.group.remaining = [request], 0
            self._done.append(request.group)
        self._count_in_flight()

    def _wait_for_source(self, room: bool, seconds: float) -> None:
        """Wait for a call to the source to end, at most so long."""
        timeout = None if seconds == math.inf else max(seconds, 0.0)
        self._store.write_now()
        if self._source_groups:
            room = room and self._inner.in_flight >= self._inner.most_in_flight
            self._take_completed(self._inner.take_completed(wait=True, room=room, timeout=timeout))
        elif timeout:
            time.sleep(timeout)

    def _next_event(self) -> float:
        polls = [request.next_poll for request in self._requests.values()]
        return min([*polls, *self._waiting.values()], default=math.inf)

    def _count_in_flight(self) -> None:
        """Count a request that waits for others as one call: who reads ahead must not open batches without end."""
        waiting = [one for one in self._requests.values() if one.awaited.size and not one.group.background]
        self.in_flight = self._inner.in_flight + len(waiting)


class StoredSource(Source):
    """A source behind the store that the plan's options name; ``clock`` is that of the cache before it."""

    def __init__(self, source: Source, clock: Clock) -> None:
        super().__init__(source.plan, source.connector, source.counters, _cluster_rate(source))
        self.store = RowStore.of_plan(self.plan, self.reader.key_types, self.counters, clock, source.identity.content)
        if self.reports_changes:
            self.store.distrust()

    @cached_property
    def executor(self) -> StoreExecutor:
        """What looks keys up in the store, and calls the source for the others."""
        inner = Source.executor.func(self)  # type: ignore[attr-defined]
        return StoreExecutor(inner, self.store, super().split, self._read_calls, self.plan.config.timeout)

    def flush(self) -> None:
        """Wait until the store has what was fetched, if it is not slow: nobody tells a worker that its process ends."""
        if "executor" in self.__dict__:
            self.executor.leave_refreshes()
        self.store.flush()

    def split(self, keys: KeyBatch) -> Calls:
        """Return one call with all keys: which of them the source is called for, the store decides."""
        return Calls(keys, [keys], np.zeros(len(keys), np.int64))

    def changed(self) -> KeyBatch | None:
        """Return the keys that the source reports as changed; they are removed from the store too."""
        keys = super().changed()
        self.store.invalidate(keys)
        return keys

    def read_answers(self, calls: Calls, answers: Sequence[Any]) -> Fetched:
        """Return the rows of the keys, from the store and from the source."""
        [request] = answers
        assert isinstance(request, StoreRequest)
        parts = [Fetched(known.rows, known.counts) for known in request.known]
        positions = list(request.known_at)
        written = [known.written for known in request.known]
        for made in request.calls:
            if made.fetched is None:
                assert made.error is not None
                raise made.error
            parts.append(made.fetched)
            positions.append(made.positions)
            written.append(np.full(len(made.positions), made.written))
        return _merge_parts(len(request.keys), self._none(), parts, positions, written)

    def _read_calls(self, request: StoreRequest, made: SourceCalls) -> None:
        """Read what calls have returned, and store it; an error is raised when the request is read."""
        try:
            made.fetched = super().read_answers(made.calls, made.group.answers)
            if not request.is_complete:
                made.written = self.store.clock()
            self._put(request, made, made.fetched)
        except Exception as error:
            made.fetched, made.error = None, error
            self.store.release(request.names_at(made.positions[made.is_claimed]), made.token)

    def _put(self, request: StoreRequest, made: SourceCalls, fetched: Fetched) -> None:
        """Store what was fetched for keys that are claimed here, and end the other claims."""
        kept = made.is_claimed & ~fetched.failed
        rows = np.flatnonzero(kept)
        if rows.size:
            table, keys = fetched.rows, made.calls.keys
            if len(rows) < len(kept):
                table = table.take(from_numpy(np.flatnonzero(np.repeat(kept, fetched.counts))))
                keys = keys.take(rows)
            self.store.put(keys, request.names_at(made.positions[rows]), table, fetched.counts[rows], made.token)
        # Afterwards: rows are dated when they are put, and the store may be slow.
        self.store.release(request.names_at(made.positions[made.is_claimed & ~kept]), made.token)

    def _none(self) -> pa.Table:
        return pa.schema([self.plan.schema.field(name) for name in self.plan.columns]).empty_table()


def _seconds_to_call(timeout: float) -> float:
    """Return how much of a timeout is kept for the own call, where another process does not end its claim."""
    return min(timeout / 2, CLAIM_SECONDS)


def may_use_store(source: Source) -> bool:
    """Return whether it is known which rows of the store are those of a source, or a name says so."""
    return source.plan.config.store_name is not None or source.identity.is_known


def limited(source: Source) -> Source:
    """Return a source that does without the store, but for its limit of calls."""
    return Source(source.plan, source.connector, source.counters, _cluster_rate(source))


def _cluster_rate(source: Source) -> ClusterRate | None:
    """Return the rate that the plan's options set for all workers of all hosts, if any."""
    plan, connector = source.plan, source.connector
    if plan.config.rate_limit_scope == "executor":
        return None
    # Most workers do without.
    from lookupcache.store.cluster_rate import StoredRate

    limited = connector.full_name if isinstance(connector, FunctionConnector) else plan.source
    return StoredRate(plan.config, limited, source.counters, f"Table {plan.table!r}")


def _merge_parts(
    count: int, none: pa.Table, parts: Sequence[Fetched], positions: Sequence[Positions], written: Sequence[Any]
) -> Fetched:
    """Return the rows of all parts in the order of the keys; a key that is in no part has failed with the others."""
    counts, times = np.zeros(count, np.int64), np.full(count, -math.inf)
    call_of = np.full(count, -1)
    errors: dict[int, LookupRuntimeError] = {}
    missing = np.ones(count, np.bool_)
    for part, at, when in zip(parts, positions, written, strict=True):
        missing[at] = False
        counts[at], times[at] = part.counts, when
        if part.errors:
            assert part.call_of is not None
            # Above all numbers so far, those of calls that succeeded too: an error's number must be its own.
            shift = max([-1, *errors, int(call_of.max(initial=-1))]) + 1
            call_of[at] = part.call_of + shift
            errors |= {number + shift: error for number, error in part.errors.items()}
    if missing.any():
        assert errors, "a key has neither rows nor an error"
        call_of[missing] = next(iter(errors))
    if not parts:
        return Fetched(none, counts, errors, call_of, times)
    rows = parts[0].rows
    if len(parts) > 1 or not _is_ascending(positions[0]):
        owner = np.concatenate([np.repeat(at, part.counts) for part, at in zip(parts, positions, strict=True)])
        rows = pa.concat_tables([part.rows for part in parts]).take(from_numpy(np.argsort(owner, kind="stable")))
    return Fetched(rows, counts, errors, call_of, times)


def _is_ascending(positions: Positions) -> bool:
    return bool((np.diff(positions) > 0).all())
