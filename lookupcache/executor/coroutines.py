"""`Coroutines`: calls on the event loop of the worker, many at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from lookupcache.executor.call_group import CallGroup, Executor, event_loop, run_async

_PATIENCE = 1.0
"""Seconds that a cancelled call has to end."""


@dataclass(eq=False)
class _Job:
    """A call that a coroutine is busy with, until when it may be, and whether it took longer.

    ``slot`` is None when the call has ended, or is not waited for any more.
    """

    slot: asyncio.Task[None] | None
    group: CallGroup
    number: int
    overdue: float
    late: bool = False


class Coroutines(Executor):
    """Makes calls on the event loop of the worker, with one connector.

    ``ask`` answers a call; whatever it raises is the answer too. It is cancelled when its group is, and after
    ``timeout`` seconds, when the answer is what ``timed_out`` returns. A call that goes on in spite of that is
    left to itself, and another takes its place.
    """

    def __init__(
        self,
        capacity: int,
        ask: Callable[[Any], Awaitable[Any]],
        opened: Callable[[], Awaitable[None]],
        closed: Callable[[], Awaitable[None]],
        timeout: float,
        timed_out: Callable[[], Exception],
    ) -> None:
        super().__init__(capacity)
        self._timeout = timeout
        self._timed_out = timed_out
        self._ask = ask
        self._open = opened
        self._close = closed
        self._opening: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._slots: dict[asyncio.Task[None], _Job | None] = {}
        self._overdue: deque[_Job] = deque()
        self._watch: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Cancel all that is under way, and disconnect."""
        super().close()
        run_async(self._closed())

    def cancel(self, group: CallGroup) -> None:
        """Cancel the calls of a group, and wait until they have ended."""
        super().cancel(group)
        run_async(self._end_lanes(group))

    def _abort(self, group: CallGroup) -> None:
        async def end() -> None:
            await self._end_lanes(group)
            self._completed.put(group)

        task = event_loop().create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_lanes(self, group: CallGroup) -> None:
        """Cancel the slots that make calls of a group; one that ignores it is not waited for."""
        jobs = [job for job in self._slots.values() if job is not None and job.group is group]
        slots = [job.slot for job in jobs if job.slot is not None]
        for slot in slots:
            slot.cancel()
        if slots:
            await asyncio.wait(slots, timeout=_PATIENCE)
        for job in jobs:
            self._leave(job)

    async def _closed(self) -> None:
        for group in {job.group for job in self._slots.values() if job is not None}:
            await self._end_lanes(group)
        if self._opening is not None:
            self._opening = None
            await self._close()

    def _ensure_slots(self) -> None:
        event_loop().call_soon_threadsafe(self._start_slots)

    def _start_slots(self) -> None:
        for _ in range(min(self.capacity - len(self._slots), len(self._queue))):
            slot = event_loop().create_task(self._lane())
            self._slots[slot] = None
            slot.add_done_callback(self._ended)

    def _ended(self, slot: asyncio.Task[None]) -> None:
        self._slots.pop(slot, None)
        if self._queue:
            self._start_slots()

    async def _lane(self) -> None:
        slot: Any = asyncio.current_task()
        # Who was cancelled during a call makes no other: a cancellation that came late would hit that one.
        while self._queue and not slot.cancelling():
            group, number = self._queue.popleft()
            if group.over:
                continue
            self._slots[slot] = job = _Job(slot, group, number, event_loop().time() + self._timeout)
            self._expect(job)
            try:
                await self._ensure_open()
                answer = await self._ask(group.calls[number])
            except Exception as error:
                answer = error
            except BaseException as error:
                # A GeneratorExit may be the end of this coroutine, which then must not wait for anything again.
                self._end(job, error)
                return
            self._end(job, answer)

    def _end(self, job: _Job, answer: Any) -> None:
        """Note a call's answer, unless it has been left."""
        if job.slot is None:
            return
        self._slots[job.slot] = None
        job.slot = None
        if job.late and isinstance(answer, BaseException):
            answer = self._given_up()
        self._answered(job.group, job.number, answer)

    def _leave(self, job: _Job) -> None:
        """Abandon a call that ignores its cancellation; another slot replaces its own."""
        if (slot := job.slot) is not None:
            self._end(job, asyncio.CancelledError())
            del self._slots[slot]
            self._start_slots()

    def _given_up(self) -> Exception:
        """Return the answer of a call that took too long; a connection that hangs is not waited for any more."""
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            self._opening = None
        return self._timed_out()

    def _expect(self, job: _Job) -> None:
        """Watch over a call. All have the same time, so the one that began first is overdue first."""
        if len(self._overdue) > 4 * self.capacity:
            self._overdue = deque(job for job in self._overdue if job.slot is not None)
        self._overdue.append(job)
        if self._watch is None:
            self._watch = event_loop().call_at(job.overdue, self._end_overdue)

    def _end_overdue(self) -> None:
        """Cancel the calls that are overdue, then watch over the next."""
        now = event_loop().time()
        while self._overdue and (self._overdue[0].slot is None or self._overdue[0].overdue <= now):
            job = self._overdue.popleft()
            if job.slot is not None:
                job.late = True
                job.slot.cancel()
                event_loop().call_later(_PATIENCE, self._leave, job)
        self._watch = event_loop().call_at(self._overdue[0].overdue, self._end_overdue) if self._overdue else None

    async def _ensure_open(self) -> None:
        """Open the connector once; after a failure, the next call tries again."""
        if self._opening is None or _has_failed(self._opening):
            self._opening = asyncio.ensure_future(self._open())
        if not self._opening.done() or _has_failed(self._opening):
            await asyncio.shield(self._opening)


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
