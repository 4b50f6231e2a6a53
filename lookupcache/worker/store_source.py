"""`StoredSource`: a source behind a store that all hosts share; the caches before it need not know.

A cache starts a group of one call with all keys that it misses, and reads one answer. Between the two, `fetch` brings
the keys through the store; the calls to the source are groups of their own. All of it happens in the worker's own
thread, which goes on with a request whenever it looks for completed groups, apart from the calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lookupcache.arrays import from_numpy
from lookupcache.cache.keys import KeyBatch, Positions
from lookupcache.errors import LookupRuntimeError
from lookupcache.executor.call_group import CallGroup, Executor
from lookupcache.flow.flow import NO_KEYS, Requested, fetch
from lookupcache.flow.waiting import seconds_to_call
from lookupcache.lazy import cached_property
from lookupcache.resilience.policy import ClusterRate
from lookupcache.resilience.runtime import STEPPED
from lookupcache.store.answer_time import most_seconds
from lookupcache.store.row_store import RowStore
from lookupcache.store.store_call import StoreCall
from lookupcache.worker.answers import Fetched
from lookupcache.worker.calls import Calls
from lookupcache.worker.source import Source

Clock = Callable[[], float]


class StoreRequest(StoreCall[Fetched]):
    """A group's keys on their way through the store: ``work`` waits for ``calls`` to the source, or until ``wake``."""

    is_source_asked = True
    reads_first = True
    work: Coroutine[Any, None, list[Requested[Fetched]]]
    calls: CallGroup | None = None
    wake = math.inf

    def __init__(self, store: RowStore, group: CallGroup) -> None:
        # A batch does not wait for another process to refresh an entry; a refresh does.
        super().__init__(store, group.calls[0], waits_for_refreshes=group.background)
        self.group = group

    def publish(self, positions: Positions, new: Fetched) -> None:
        self.put(positions, new.rows, new.counts, ~new.failed)


class StoreExecutor(Executor):
    """Runs groups of one call, for a batch of keys, by the store and by an executor for the source.

    ``split`` divides keys into calls to the source, and ``read`` reads what these have returned. ``timeout`` is the
    time in seconds to wait for the calls of others and then to call.
    """

    def __init__(
        self,
        inner: Executor,
        store: RowStore,
        split: Callable[[KeyBatch], Calls],
        read: Callable[[Calls, Sequence[Any]], Fetched],
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

    def start(self, group: CallGroup) -> None:
        """Look the keys of a group up in the store; request the others, or wait for the process that does."""
        if group.started or group.cancelled:
            return
        group.started = True
        self._waiting.pop(group, None)
        request = self._requests[group] = StoreRequest(self._store, group)
        request.work = self._fetch(request)
        try:
            self._step(request)
        except BaseException:
            self._drop(request)
            raise

    def start_later(self, group: CallGroup, seconds: float) -> None:
        """Start a group after this many seconds, when `take_completed` is called, unless it is started before."""
        self._waiting[group] = time.monotonic() + seconds

    def withdraw(self, group: CallGroup) -> bool:
        group.cancelled = group.cancelled or not group.started
        self._waiting.pop(group, None)
        return group.cancelled

    def cancel(self, group: CallGroup) -> None:
        """Cancel the calls to the source for a group, and end its claims."""
        group.cancelled = True
        self._waiting.pop(group, None)
        if (request := self._requests.get(group)) is not None:
            self._drop(request)

    def leave_refreshes(self) -> None:
        """End the claims of refreshes under way, after taking answers that are there: no batch may look at them again.

        Their rows are then for the cache before this source only.
        """
        self._take_completed(self._inner.take_completed(wait=False))
        for request in self._requests.values():
            if request.group.background:
                request.release()

    def close(self) -> None:
        for group in list(self._requests):
            self.cancel(group)
        self._inner.close()
        self._store.guarded.close()

    def take_completed(self, *, wait: bool, room: bool = False, timeout: float | None = None) -> list[CallGroup]:
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._wake()
            self._take_completed(self._inner.take_completed(wait=False))
            self._count_in_flight()
            if self._done or not wait or time.monotonic() >= until or (room and self.in_flight < self.capacity):
                break
            event = min(self._next_event(), until)
            if event == math.inf and not self._source_groups:
                break
            self._wait_for_source(room, event - time.monotonic())
        done, self._done = self._done, []
        self._count_in_flight()
        return [group for group in done if not group.cancelled]

    # ── the way of a request ─────────────────────────────────────────────────────────────────────────────

    async def _fetch(self, request: StoreRequest) -> list[Requested[Fetched]]:
        """Return what the source was called for; what the store has is in the request."""
        now, group = time.monotonic(), request.group
        deadline = min(now + self._timeout, group.deadline)

        async def call_source(positions: Positions, until: float) -> Fetched:
            if until == math.inf:
                return await self._call_source(request, positions, group.deadline)
            # One timeout for both, the wait for a claim, here or of the host, and the call. A process that requests
            # keys for longer than one call may take has many calls to make: the source may be well.
            is_over = time.monotonic() >= until
            return await self._call_source(request, positions, math.inf if is_over else deadline)

        until = deadline - seconds_to_call(deadline - now)
        return await fetch(request, call_source, STEPPED, self._store.counters, math.inf, until)

    async def _call_source(self, request: StoreRequest, positions: Positions, deadline: float) -> Fetched:
        group, calls = request.group, self._split(request.keys_at(positions))
        made = CallGroup(calls.arguments, group.number, group.all_or_nothing, group.context, deadline)
        try:
            self._inner.start(made)
        except BaseException:
            self._inner.cancel(made)
            raise
        await STEPPED.result(made)
        if group.all_or_nothing and any(isinstance(answer, BaseException) for answer in made.answers):
            # The request has failed: the keys that others request fail with it.
            request.left = NO_KEYS
        return self._read(calls, made.answers)

    def _step(self, request: StoreRequest) -> None:
        """Go on with a request until it waits, or has ended."""
        request.calls, request.wake = None, math.inf
        try:
            waits_for = request.work.send(None)
        except StopIteration as done:
            self._end(request, (request.known, done.value))
        else:
            request.group.is_queued |= bool(request.left.size)
            if isinstance(waits_for, CallGroup):
                request.calls, self._source_groups[waits_for] = waits_for, request
                request.group.is_queued |= waits_for.is_queued
            else:
                request.wake = time.monotonic() + waits_for
        self._count_in_flight()

    def _go_on(self, request: StoreRequest) -> None:
        """Go on with a request that has waited; an error becomes its answer."""
        try:
            self._step(request)
        except BaseException as error:
            self._end(request, error)

    def _end(self, request: StoreRequest, answer: Any) -> None:
        self._drop(request)
        request.group.answers, request.group.remaining = [answer], 0
        self._done.append(request.group)

    def _drop(self, request: StoreRequest) -> None:
        """Forget a request, cancel its calls, and end its claims.

        Not in the coroutine itself: where it is garbage collected, the store may be in use.
        """
        self._requests.pop(request.group, None)
        if request.calls is not None:
            self._source_groups.pop(request.calls, None)
            self._inner.cancel(request.calls)
        request.work.close()
        request.release()
        self._count_in_flight()

    def _wake(self) -> None:
        """Start the groups, and go on with the requests, whose time has come."""
        now = time.monotonic()
        for group in [group for group, at in self._waiting.items() if at <= now]:
            self.start(group)
        for request in [one for one in self._requests.values() if one.wake <= now]:
            self._go_on(request)

    def _take_completed(self, groups: Sequence[CallGroup]) -> None:
        for group in groups:
            if (request := self._source_groups.pop(group, None)) is not None:
                # At once: others wait for these keys, and this request may wait for theirs.
                self._go_on(request)

    def _wait_for_source(self, room: bool, seconds: float) -> None:
        """Wait for a call to the source to end, at most so long."""
        timeout = None if seconds == math.inf else max(seconds, 0.0)
        self._store.guarded.write_now()
        if self._source_groups:
            room = room and self._inner.in_flight >= self._inner.most_in_flight
            self._take_completed(self._inner.take_completed(wait=True, room=room, timeout=timeout))
        elif timeout:
            time.sleep(timeout)

    def _next_event(self) -> float:
        pauses = [request.wake for request in self._requests.values()]
        return min([*pauses, *self._waiting.values()], default=math.inf)

    def _count_in_flight(self) -> None:
        """Count a request that waits for others as one call, so that not all batches are read ahead."""
        waiting = [one for one in self._requests.values() if one.wake < math.inf and not one.group.background]
        self.in_flight = self._inner.in_flight + len(waiting)


class StoredSource(Source):
    """A source behind the store that the plan's options name; ``clock`` is that of the cache before it."""

    def __init__(self, source: Source, clock: Clock) -> None:
        super().__init__(source.plan, source.connector, source.counters, _cluster_rate(source))
        self.take_identity(source)
        self.store = RowStore.of_plan(self.plan, self.reader.key_types, self.counters, clock, source.identity.content)
        self.blocked_seconds = most_seconds(self.plan.config)
        if self.reports_changes:
            self.store.distrust()

    @cached_property
    def executor(self) -> StoreExecutor:
        """What looks keys up in the store, and calls the source for the others."""
        inner = Source.executor.func(self)  # type: ignore[attr-defined]
        timeout = self.plan.config.timeout
        return StoreExecutor(inner, self.store, super().split, super().read_answers, timeout)

    def flush(self) -> None:
        """Wait until the store has what was fetched, if it is not slow: no worker knows when its process ends."""
        if "executor" in self.__dict__:
            self.executor.leave_refreshes()
        self.store.guarded.flush()

    def split(self, keys: KeyBatch) -> Calls:
        """Return one call with all keys: which of them the source is called for, the store decides."""
        return Calls(keys, [keys], np.zeros(len(keys), np.int64))

    def changed(self) -> KeyBatch | None:
        """Return the keys that the source reports as changed; they are removed from the store too."""
        keys = super().changed()
        self.store.invalidate(keys)
        return keys

    def read_answers(self, calls: Calls, answers: Sequence[Any]) -> Fetched:
        [answer] = answers
        if isinstance(answer, BaseException):
            raise answer
        found, requested = answer
        parts = [Fetched(known.rows, known.counts) for _, known in found] + [one.values for one in requested]
        positions = [at for at, _ in found] + [one.positions for one in requested]
        written = [known.written for _, known in found]
        written += [np.full(len(one.positions), one.written) for one in requested]
        none = self.plan.columns_schema.empty_table()
        return _merge_parts(len(calls.keys), none, parts, positions, written)


def may_use_store(source: Source) -> bool:
    """Return whether it is known which rows of the store are those of a source, or a name says so."""
    return source.plan.config.store_name is not None or source.identity.is_known


def limited(source: Source) -> Source:
    """Return a source that does without the store, but for its limit of calls."""
    without = Source(source.plan, source.connector, source.counters, _cluster_rate(source))
    without.take_identity(source)
    return without


def _cluster_rate(source: Source) -> ClusterRate | None:
    """Return the rate that the plan's options set for all workers of all hosts, if any."""
    plan = source.plan
    if plan.config.rate_limit_scope == "executor":
        return None
    # Most workers do without.
    from lookupcache.store.cluster_rate import StoredRate

    return StoredRate(plan.config, source.identity.called, source.counters, f"Table {plan.table!r}")


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
    if len(parts) > 1 or (np.diff(positions[0]) < 0).any():
        owner = np.concatenate([np.repeat(at, part.counts) for part, at in zip(parts, positions, strict=True)])
        rows = pa.concat_tables([part.rows for part in parts]).take(from_numpy(np.argsort(owner, kind="stable")))
    return Fetched(rows, counts, errors, call_of, times)
