"""`AsyncLookup`: calls made in tasks of their own, so that a caller who is cancelled does not fail the others."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from lookupcache.config import LookupConfig
from lookupcache.decorator.arguments import Key
from lookupcache.decorator.batching import Call
from lookupcache.decorator.callee import POLL_SECONDS, AsyncCallee
from lookupcache.decorator.nesting import carry_in_context, is_within, waiting_for
from lookupcache.decorator.single_flight import Answers, PendingKeys, SingleFlight, without_rows
from lookupcache.resilience.policy import ResiliencePolicy


@dataclass(slots=True)
class _Slots:
    """The calls of one event loop: those that are being made, and those that wait for room."""

    busy: dict[asyncio.Task[None], Call] = field(default_factory=dict)
    queue: deque[tuple[Call, Context]] = field(default_factory=deque)


class AsyncLookup(SingleFlight):
    """An async function behind the cache; event loops, and threads with theirs, may use it at the same time."""

    callee: AsyncCallee

    def __init__(
        self, callee: AsyncCallee, config: LookupConfig, resilience: ResiliencePolicy, clock: Callable[[], float]
    ) -> None:
        super().__init__(callee, config, resilience, clock)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slots] = WeakKeyDictionary()

    async def close(self) -> None:
        """Cancel the calls of this event loop, and those who wait for them; close the function's object."""
        slots = self._lanes_here()
        tasks = list(slots.busy)
        for call in [*slots.busy.values(), *(call for call, _ in slots.queue)]:
            self._failed(call, asyncio.CancelledError("The decorated function was closed."))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.callee.close()

    async def one(self, key: Key) -> Any:
        """Return the value of a key that the cache may not have."""
        return (await self._found([key]))[key]

    async def many(self, keys: list[Key]) -> list[Any]:
        """Return the value of each key."""
        found = await self._found(keys)
        return [found[key] for key in keys]

    async def _found(self, keys: list[Key]) -> dict[Key, Any]:
        wanted = self._want(keys)
        self._make(wanted)
        while wanted.calls:
            call = next(iter(wanted.calls))
            self._take(wanted, call, await self._awaited(call))
            self._make(wanted)
        return wanted.found

    def _make(self, wanted: PendingKeys) -> None:
        opened, wanted.opened, wanted.refreshing = wanted.opened + wanted.refreshing, [], []
        if opened:
            slots = self._lanes_here()
            slots.queue.extend((call, copy_context()) for call in opened)
            self._ensure_slots(slots)

    def _ensure_slots(self, slots: _Slots) -> None:
        """Make calls as far as there is room, in the order and the contexts in which they were opened."""
        while slots.queue and len(slots.busy) < self.config.async_capacity:
            self._start(slots, *slots.queue.popleft())

    def _start(self, slots: _Slots, call: Call, context: Context) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_in(slots, call), context=context)
        slots.busy[task] = call
        task.add_done_callback(partial(self._ended, slots))

    def _start_now(self, wanted: Call) -> None:
        """Start a call that waits for room, if it does: one that is being made needs it, and waits in its place."""
        slots = self._lanes_here()
        for entry in [entry for entry in slots.queue if entry[0] is wanted]:
            slots.queue.remove(entry)
            self._start(slots, *entry)

    async def _carry_in(self, slots: _Slots, call: Call) -> None:
        """Make a call, and see that the next is made: by this task, which ends before the loop does, or with it."""
        await self._carry(call)
        this: Any = asyncio.current_task()
        del slots.busy[this]
        self._ensure_slots(slots)

    def _ended(self, slots: _Slots, task: asyncio.Task[None]) -> None:
        """Give up the call of a task that was cancelled, maybe before its first step, and those that wait for room.

        Whoever cancels tasks of ours is ending the event loop.
        """
        if task in slots.busy:
            undone = [slots.busy.pop(task), *(call for call, _ in slots.queue)]
            slots.queue.clear()
            for call in undone:
                self._failed(call, None)

    async def _carry(self, call: Call) -> None:
        started, this = time.perf_counter(), asyncio.current_task()
        try:
            await self.batches.wait_closed_async(call)
            started = self._begin(call)
            carry_in_context(call)
            asking = self.resilience.until_found(self._ask, call.keys, without_rows)
            self._answered(call, await self.resilience.within(asking))
        except Exception as error:
            self._failed(call, error)
        except GeneratorExit as error:
            if not _is_running(this):
                # The task is being discarded, its event loop gone; here may be any thread, which may hold our lock.
                raise
            self._failed(call, error)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            self._failed(call, error)
        except (KeyboardInterrupt, SystemExit):
            # They end the event loop, and this task with it.
            self._failed(call, None)
            raise
        except BaseException as error:
            self._failed(call, error)
        finally:
            self.counters.add("source_seconds", time.perf_counter() - started)

    async def _ask(self, keys: list[Key]) -> Answers:
        self._count_asked(keys)
        return await self.callee.ask(keys)

    async def _awaited(self, call: Call) -> BaseException | None:
        """Wait for a call and return its error; it may be on another event loop, and hang."""
        if call.ended.is_open:
            return call.error
        with waiting_for(call):
            if call.home is self._home():
                if is_within(self):
                    self._start_now(call)
                await call.ended.wait_async()
                return call.error
            return await self._awaited_elsewhere(call)

    async def _awaited_elsewhere(self, call: Call) -> BaseException | None:
        while not await call.ended.wait_async(self._patience(call)):
            if not self._lost(call):
                continue
            with self._lock:
                self._give_up(call)
            if call.home is None or not call.home.is_running():
                return None
            return call.error if call.ended.is_open else self.resilience.timed_out()
        return call.error

    def _patience(self, call: Call) -> float:
        return min(max(call.deadline - time.monotonic(), 0.0), self.config.timeout, POLL_SECONDS)

    def _home(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _lanes_here(self) -> _Slots:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._slots:
                self._slots[loop] = _Slots()
            return self._slots[loop]


def _is_running(task: asyncio.Task[Any] | None) -> bool:
    """Return whether this code runs in a step of that task; not where Python closes the task's coroutine."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs here
        return False


def _is_cancelled() -> bool:
    """Return whether it is this task that is cancelled, rather than something that it awaits."""
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())
