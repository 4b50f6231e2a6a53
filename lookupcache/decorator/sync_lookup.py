"""`SyncLookup`: calls made in the thread that opened them, or in slots: with ``lookup.async``, and to refresh."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, cast

from lookupcache.decorator.arguments import Key
from lookupcache.decorator.batching import BatchedCall
from lookupcache.decorator.single_flight import Answers, CallerKeys, CallJob, SingleFlight, without_rows
from lookupcache.executor.nesting import is_within, refuse_close_within, run_within, waiting_for
from lookupcache.executor.thread_slots import ThreadSlots
from lookupcache.resilience.runtime import SYNC, run_sync


class SyncLookup(SingleFlight):
    """A sync function with the cache; thread-safe."""

    def _start_without_calls(self) -> None:
        super()._start_without_calls()
        self.slots = ThreadSlots(self.config.async_capacity)
        self.uses_jobs = bool(self.config.async_)
        self._stops_at_error = self.config.on_error == "fail" and self.config.stale_if_error is None

    def close(self) -> None:
        """Wait for the calls in slots, at most ``lookup.timeout``, and close the function's object."""
        refuse_close_within(self)
        self.slots.join(self.config.timeout)
        self.function.adapter.close()
        self._close_tiers()
        self.resilience.close()

    def find(self, keys: list[Key]) -> dict[Key, Any]:
        """Return the value of each key, from the cache or by a call."""
        pending = self._want(keys)
        self._make_opened(pending)
        while pending.calls:
            call = next(iter(pending.calls))
            self._take(pending, call, self._wait_for(call))
            self._make_opened(pending)
        return pending.found

    def _make_opened(self, pending: CallerKeys) -> None:
        """Make the calls that the caller opened, or submit them to slots."""
        opened, refreshing, pending.opened, pending.refreshing = pending.opened, pending.refreshing, [], []
        in_slots = refreshing + (opened if self.config.async_ else [])
        if in_slots:
            try:
                self.slots.submit([call.job for call in in_slots if call.job is not None])
            except RuntimeError:
                for call in in_slots:
                    self._record_failure(call, None)
                raise
        if opened and not self.config.async_:
            self._make_here(opened)

    def _make_here(self, calls: list[BatchedCall]) -> None:
        for call in calls:
            self._begin(call, waits=True)
        try:
            for call in calls:
                with waiting_for(call):
                    self._make_call(call)
                if call.error is not None and self._stops_at_error:
                    break
        finally:
            # Calls that were not made: other callers may wait for them, and then request the keys themselves.
            for call in calls:
                self._record_failure(call, None)

    def _make_call(self, call: BatchedCall) -> None:
        started = time.perf_counter()
        try:
            self.batches.wait_closed(call)
            started = self._begin(call, waits=True)
            with run_within(call):
                request = partial(self._request_keys, call)
                self._record_answers(call, run_sync(self._answers(call, request, SYNC, SYNC)))
        except Exception as error:
            self._record_failure(call, error)
        finally:
            self.counters.add("source_seconds", time.perf_counter() - started)

    def run_job(self, job: CallJob) -> None:
        # Not kept: it holds the call in which this one was opened, and calls that start each other would form a chain.
        context, job.context = job.context, None
        if context is not None:
            context.run(self._make_call, job.call)

    def end_job(self, job: CallJob, answer: BaseException | None) -> None:
        """End a call that no thread runs, or that more than an Exception ended; any other has ended already."""
        if answer is not None:
            self._record_failure(job.call, answer)

    def _begin(self, call: BatchedCall, *, waits: bool = False) -> float:
        started = super()._begin(call, waits=waits)
        if call.job is not None:
            call.job.deadline = call.deadline
        return started

    async def _request_keys(self, call: BatchedCall, keys: list[Key]) -> list[tuple[list[Key], Answers]]:
        if self.tiers:
            # Only now the function has its timeout: the call may have waited for other processes.
            self._begin(call)
        return self.resilience.until_found_sync(self._request, keys, without_rows)

    def _request(self, keys: list[Key]) -> Answers:
        self._count_requests(keys)
        return self.function.values(keys, self.function.adapter.call(keys))

    def _wait_for(self, call: BatchedCall) -> BaseException | None:
        """Wait for a call and return its error; another caller may make it, and it may hang."""
        if call.ended.is_open:
            return call.take_error()
        with waiting_for(call):
            if call.job is not None and is_within(self):
                self.slots.run_inline(call.job)
            while not call.ended.wait(self._seconds_to_deadline(call)):
                self._abandon_overdue()
                if self._is_lost(call) and not call.ended.is_open:
                    with self._lock:
                        self._forget(call)
                    return self.resilience.timeout_error()
        return call.take_error()

    def _seconds_to_deadline(self, call: BatchedCall) -> float:
        """Return how long to wait until a call is overdue: this one, or one whose slot this one needs."""
        first = min(call.deadline, self.slots.first_deadline())
        return min(max(first - time.monotonic(), 0.0), self.config.timeout)

    def _abandon_overdue(self) -> None:
        """Abandon the calls in slots that took too long, whether or not any caller waits for them."""
        for job in self.slots.abandon_overdue():
            with self._lock:
                self._abandon(cast(CallJob, job).call)

    def _abandon(self, call: BatchedCall) -> None:
        super()._abandon(call)
        if call.job is not None and not call.ended.is_open:
            self.slots.abandon(call.job)
            call.end(error=self.resilience.timeout_error())
