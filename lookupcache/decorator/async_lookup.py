"""`AsyncLookup`: calls made in separate tasks, so that a cancelled caller does not fail the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from lookupcache.decorator.arguments import Key
from lookupcache.decorator.batching import BatchedCall
from lookupcache.decorator.single_flight import Answers, CallerKeys, CallJob, SingleFlight, without_rows
from lookupcache.decorator.values import Values
from lookupcache.executor.nesting import is_within, refuse_close_within, set_current_call, waiting_for
from lookupcache.executor.task_slots import TaskSlots
from lookupcache.functions.adapter import POLL_SECONDS
from lookupcache.lazy import cached_property
from lookupcache.resilience.runtime import ASYNC, Runtime


class AsyncLookup(SingleFlight):
    """An async function with the cache; it can be used by several event loops, in several threads, at the same time.

    Each event loop has its own slots: ``lookup.async.capacity`` applies to each.
    """

    def _start_without_calls(self) -> None:
        super()._start_without_calls()
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, TaskSlots] = WeakKeyDictionary()

    async def close(self) -> None:
        """Cancel the calls of this event loop, and the callers that wait for them; close the function's object."""
        refuse_close_within(self)
        slots = self._slots_here()
        for job in slots.jobs():
            self._record_failure(cast(CallJob, job).call, asyncio.CancelledError("The decorated function was closed."))
        await slots.cancel(lambda job: True)
        await self.function.adapter.close()
        self._close_tiers()
        if self.resilience.cluster is not None:
            await asyncio.to_thread(self.resilience.close)

    async def find(self, keys: list[Key]) -> dict[Key, Any]:
        """Return the value of each key, from the cache or by a call."""
        pending = self._want(keys)
        self._make_opened(pending)
        while pending.calls:
            call = next(iter(pending.calls))
            self._take(pending, call, await self._wait_for(call))
            self._make_opened(pending)
        return pending.found

    def _make_opened(self, pending: CallerKeys) -> None:
        opened, pending.opened, pending.refreshing = pending.opened + pending.refreshing, [], []
        if opened:
            self._slots_here().submit([call.job for call in opened if call.job is not None])

    async def run_job(self, job: CallJob) -> Values:
        started = time.perf_counter()
        try:
            await self.batches.wait_closed_async(job.call)
            started = self._begin(job.call, waits=True)
            set_current_call(job.call)
            return await self._answers(job.call, partial(self._request_keys, job), ASYNC, self._files)
        finally:
            self.counters.add("source_seconds", time.perf_counter() - started)

    def end_job(self, job: CallJob, answer: Any) -> None:
        call = job.call
        try:
            if isinstance(answer, BaseException):
                self._record_failure(call, answer)
            else:
                self._record_answers(call, answer)
        except BaseException as error:
            # Measuring or comparing a value runs code of its class, which may fail.
            self._record_failure(call, error)
        # The context holds the call in which this one was opened: calls that start each other would form a chain.
        call.job = None

    async def _request_keys(self, job: CallJob, keys: list[Key]) -> list[tuple[list[Key], Answers]]:
        if self.tiers:
            # Only now the function has its timeout: the call may have waited for other processes.
            self._begin(job.call)
        if not job.is_timed:
            job.is_timed = True
            self._slots_here().start_timeout(job, job.call.until)
        return await self.resilience.until_found(self._request, keys, without_rows)

    @cached_property
    def _files(self) -> Runtime:
        """Waits for work on the host's files, which a thread of its own does."""
        shared = self.shared
        if shared is None:
            return ASYNC

        async def work_in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
            return await asyncio.wrap_future(shared.submit(work, *arguments))

        return replace(ASYNC, block=work_in_thread, start=shared.finish)

    async def _request(self, keys: list[Key]) -> Answers:
        self._count_requests(keys)
        return self.function.values(keys, await self.function.adapter.call(keys))

    async def _wait_for(self, call: BatchedCall) -> BaseException | None:
        """Wait for a call and return its error; it may run on another event loop, and may hang."""
        if call.ended.is_open:
            return call.take_error()
        with waiting_for(call):
            if call.loop is not self._loop():
                return await self._wait_for_other_loop(call)
            if is_within(self) and (job := call.job) is not None:
                self._slots_here().run_now(job)
            await call.ended.wait_async()
            return call.take_error()

    async def _wait_for_other_loop(self, call: BatchedCall) -> BaseException | None:
        while not await call.ended.wait_async(self._seconds_to_poll(call)):
            if not self._is_lost(call):
                continue
            with self._lock:
                self._abandon(call)
            if call.loop is None or not call.loop.is_running():
                return None
            return call.take_error() if call.ended.is_open else self.resilience.timeout_error()
        return call.take_error()

    def _seconds_to_poll(self, call: BatchedCall) -> float:
        return min(max(call.deadline - time.monotonic(), 0.0), self.config.timeout, POLL_SECONDS)

    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _slots_here(self) -> TaskSlots:
        """Return the slots of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._slots:
                self._slots[loop] = TaskSlots(self.config.async_capacity, self.config.timeout, own_loop=False)
            return self._slots[loop]
