"""In-flight calls to the source: `CallGroup`, and `Executor`, the base class of both executors.

The worker starts groups of calls and collects those that have completed; what a call does is decided elsewhere. The
threads, or the event loop, outlive tasks and micro-batches, with the clients that were opened there.

    start(group) ─► a job for each call ─► a slot runs it ─► last answer: the group has completed
"""

from __future__ import annotations

import inspect
import math
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import cache
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from lookupcache.executor.job import Job
from lookupcache.thread_start import start_thread

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


@dataclass(eq=False)
class CallGroup:
    """Calls that were started together, and the result of each, or the exception that it ended with.

    ``number`` is the caller's name for it. With ``all_or_nothing``, one call that fails makes the group fail: the
    others are then not made, or cancelled, and end with the same exception. The calls run in ``context``, if given.
    ``deadline`` is a time of `time.monotonic` when they time out at the latest. It holds only where there are slots for
    all of them at once: while calls wait for a slot, their source is not late. ``is_queued`` says that some of them had
    to wait, for a slot or for another process. Nobody waits for a ``background`` group.
    """

    calls: list[Any]
    number: int = 0
    all_or_nothing: bool = False
    context: Context | None = None
    deadline: float = math.inf
    background: bool = False
    answers: list[Any] = field(init=False)
    remaining: int = field(init=False)
    started: bool = False
    is_queued: bool = False
    cancelled: bool = False
    broken: bool = False

    def __post_init__(self) -> None:
        self.answers = [None] * len(self.calls)
        self.remaining = len(self.calls)

    @property
    def over(self) -> bool:
        """Whether no further calls of the group will be made."""
        return self.cancelled or self.broken


class GroupCall(Job):
    """One call of a group."""

    def __init__(self, executor: Executor, group: CallGroup, number: int) -> None:
        self.executor = executor
        self.group = group
        self.number = number
        self.context = group.context

    def run(self) -> Any:
        return self.executor._make_call(self)

    def end(self, answer: Any) -> None:
        self.executor._store_answer(self.group, self.number, answer)

    def timeout_error(self) -> BaseException:
        return self.executor._call_timeout_error()


class Executor:
    """Base class of the two ways to make calls.

    ``capacity`` is the maximum number of concurrent calls, ``in_flight`` the number of started calls without an answer.
    While that is below ``most_in_flight``, callers may start calls, which wait for a slot where there are more of them
    than ``capacity``.
    The answer of a call that takes longer than ``timeout`` seconds is the result of ``timed_out``.
    """

    def __init__(self, capacity: int, timeout: float, timed_out: Callable[[], Exception]) -> None:
        self.capacity = self.most_in_flight = capacity
        self._timeout = timeout
        self._timed_out = timed_out
        self._active: set[CallGroup] = set()
        self._completed: SimpleQueue[CallGroup | None] = SimpleQueue()
        # Reentrant: a coroutine that is garbage collected ends its call in a thread that may hold the lock.
        self._changing = threading.RLock()
        self._wants_room = False
        self.in_flight = 0

    def start(self, group: CallGroup) -> None:
        """Start the calls of a group as soon as there is capacity."""
        with self._changing:
            if group.started or group.cancelled:
                return
            group.started = True
            self._active.add(group)
            self.in_flight += group.remaining
            if self.in_flight > self.capacity:
                group.deadline, group.is_queued = math.inf, True
        self._submit([GroupCall(self, group, number) for number in range(len(group.calls))])

    def start_later(self, group: CallGroup, seconds: float) -> None:
        """Start a group after this many seconds, unless it is started or cancelled before."""
        loop = event_loop()
        loop.call_soon_threadsafe(loop.call_later, seconds, self._start_late, group)

    def _start_late(self, group: CallGroup) -> None:
        try:
            self.start(group)
        except RuntimeError as error:
            # No thread could be started. Whoever waits for the group gets the error as its answers.
            for number in range(len(group.calls)):
                self._store_answer(group, number, error)

    def withdraw(self, group: CallGroup) -> bool:
        """Withdraw a group that has not started; return False if it has."""
        with self._changing:
            group.cancelled = group.cancelled or not group.started
            return group.cancelled

    def take_completed(self, *, wait: bool, room: bool = False, timeout: float | None = None) -> list[CallGroup]:
        """Return the groups that have completed since the last call of this method, at least one with ``wait``.

        With ``room``, it waits at most until another call can be made; in any case at most ``timeout`` seconds.
        """
        found: list[CallGroup | None] = []
        if wait and self._must_wait(room):
            found.append(self._next_completed(timeout))
        while not self._completed.empty():
            found.append(self._completed.get())
        groups = [group for group in found if group is not None]
        self._active.difference_update(groups)
        return [group for group in groups if not group.cancelled]

    def _must_wait(self, room: bool) -> bool:
        with self._changing:
            self._wants_room = room and self.in_flight >= self.most_in_flight
            return self._wants_room or not room

    def cancel(self, group: CallGroup) -> None:
        """Cancel the calls of a group, or if that is impossible, ignore their answers."""
        with self._changing:
            # Under the lock: an answer that arrives at the same time would be subtracted twice. Afterwards the group is
            # over, and `_store_answer` ignores what is still to arrive.
            if group.started and not group.cancelled:
                self.in_flight -= group.remaining
            group.cancelled = True
        self._active.discard(group)

    def close(self) -> None:
        """Cancel all calls, and disconnect."""
        for group in list(self._active):
            self.cancel(group)

    def _next_completed(self, timeout: float | None) -> CallGroup | None:
        """Wait for a completed group; None if another call may be made, or when the time is over."""
        with suppress(Empty):
            return take(self._completed, timeout)
        return None

    def _submit(self, calls: Sequence[GroupCall]) -> None:
        """Queue calls for the slots."""
        raise NotImplementedError

    def _make_call(self, call: GroupCall) -> Any:
        """Make a call in a slot and return its answer; on an event loop, return the coroutine that does."""
        raise NotImplementedError

    def _call_timeout_error(self) -> BaseException:
        """Return the answer of a call that took too long."""
        return self._timed_out()

    def _store_answer(self, group: CallGroup, number: int, answer: Any) -> None:
        """Store the answer of a call; called in the thread that made it."""
        with self._changing:
            if group.over:
                return
            group.answers[number] = answer
            answered = 1
            if group.all_or_nothing and isinstance(answer, BaseException):
                answered = group.remaining
                group.broken = answered > 1
                group.answers = [answer] * len(group.calls)
            group.remaining -= answered
            self.in_flight -= answered
            completed, broken = not group.remaining, group.broken
            room, self._wants_room = self._wants_room, self._wants_room and self.in_flight >= self.most_in_flight
            if completed and not broken:
                self._completed.put(group)
            elif room and not self._wants_room and not broken:
                # No group has completed, but `take_completed` waits for capacity: None wakes it.
                self._completed.put(None)
        if broken:
            self._abort(group)

    def _abort(self, group: CallGroup) -> None:
        """Cancel the other calls of a group in which one has failed, which completes the group."""
        raise NotImplementedError


def take(queue: SimpleQueue[T], timeout: float | None) -> T:
    """Return the first item of a queue that only this thread reads; raises `Empty` when the time is over.

    Before Python 3.13, the wait of `SimpleQueue.get` never ends if its timeout is over before it begins, after a short
    stop of the process. An attempt without waiting prevents that: if it fails, the queue's lock stays taken, so that
    the wait begins with the full timeout.

    >>> take(SimpleQueue(), 1e-9)
    Traceback (most recent call last):
    _queue.Empty
    """
    if timeout is not None:
        with suppress(Empty):
            return queue.get(block=False)
    return queue.get(timeout=timeout)


# ── the event loop ───────────────────────────────────────────────────────────────────────────────────────


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the worker's event loop, which runs in its own thread until the process ends."""
    return _loop_of(os.getpid())


@cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:
    """Create the event loop of a process; a forked process has no threads of its parent, and so no loop."""
    import asyncio  # Here, since a worker whose source is sync does without, and it takes long to import.

    loop = asyncio.new_event_loop()
    start_thread(threading.Thread(target=_run_loop, args=(loop,), name="lookupcache-loop", daemon=True))
    return loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop forever; restart it after a task that ends with SystemExit or KeyboardInterrupt, which stops it."""
    while not loop.is_closed():
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


async def await_call(function: Callable[[], Any]) -> None:
    """Call a function that may be async, and wait until it has ended."""
    result = function()
    if inspect.isawaitable(result):
        await result


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the worker's event loop and wait for it."""
    import asyncio

    return asyncio.run_coroutine_threadsafe(work, event_loop()).result()
