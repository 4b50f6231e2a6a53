"""`Coroutines`: groups of calls on the event loop of the worker, many at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

from lookupcache.executor.call_group import CallGroup, Executor, GroupCall, event_loop, run_async
from lookupcache.executor.task_slots import CANCEL_SECONDS, TaskSlots


class Coroutines(Executor):
    """Makes calls in `TaskSlots` on the event loop of the worker, with one connector.

    A call is cancelled with its group, and after its timeout. A call that ignores its cancellation is abandoned, and
    another takes its slot. What ``call_source`` raises is the answer; after its timeout, what ``timed_out`` returns.
    The connector is opened before the first call.
    """

    def __init__(
        self,
        capacity: int,
        call_source: Callable[[Any], Awaitable[Any]],
        open_connector: Callable[[], Awaitable[None]],
        close_connector: Callable[[], Awaitable[None]],
        timeout: float,
        timed_out: Callable[[], Exception],
    ) -> None:
        super().__init__(capacity, timeout, timed_out)
        self._call_source = call_source
        self._open_connector = open_connector
        self._close_connector = close_connector
        self._opening: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._slots = TaskSlots(capacity, timeout, own_loop=True)

    def close(self) -> None:
        super().close()
        run_async(self._disconnect())

    def cancel(self, group: CallGroup) -> None:
        """Cancel the calls of a group, and wait until they have ended.

        In the event loop's own thread, where the garbage collector may end a run that was not closed, it does not wait.
        """
        super().cancel(group)
        if _is_in_event_loop():
            self._end(self._end_calls(group))
        else:
            run_async(self._end_calls(group))

    def _abort(self, group: CallGroup) -> None:
        # At once, not in the task: no other call of the group may start meanwhile.
        ending = self._slots.cancel(lambda call: cast(GroupCall, call).group is group)

        async def end() -> None:
            await ending
            self._completed.put(group)

        self._end(end())

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        """Let a task end calls, to which the event loop itself has no reference."""
        task = event_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_calls(self, group: CallGroup) -> None:
        await self._slots.cancel(lambda call: cast(GroupCall, call).group is group)

    async def _disconnect(self) -> None:
        await self._slots.cancel(lambda call: True)
        opening, self._opening = self._opening, None
        if opening is not None:
            if not opening.done():
                opening.cancel()
                await asyncio.wait([opening], timeout=CANCEL_SECONDS)
            await self._close_connector()

    def _submit(self, calls: Sequence[GroupCall]) -> None:
        event_loop().call_soon_threadsafe(self._slots.submit, calls)

    async def _make_call(self, call: GroupCall) -> Any:
        if call.group.over:
            return None
        if call.group.deadline <= time.monotonic():
            raise self._timed_out()
        self._slots.start_timeout(call, call.group.deadline)
        await self._ensure_open()
        return await self._call_source(call.group.calls[call.number])

    def _call_timeout_error(self) -> BaseException:
        """Return the answer of a call that took too long; a connection attempt that hangs is abandoned."""
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            self._opening = None
        return super()._call_timeout_error()

    async def _ensure_open(self) -> None:
        """Open the connector once; after a failure, the next call tries again."""
        if self._opening is None or _has_failed(self._opening):
            self._opening = asyncio.ensure_future(self._open_connector())
        if not self._opening.done() or _has_failed(self._opening):
            await asyncio.shield(self._opening)


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _is_in_event_loop() -> bool:
    """Return whether this is the thread of the event loop, which cannot wait for itself."""
    try:
        return asyncio.get_running_loop() is event_loop()
    except RuntimeError:
        return False
