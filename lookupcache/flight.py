"""Calls on their way to the source: many at a time, in coroutines or in threads, each under `lookup.timeout`.

The worker starts flights and takes in those that have landed; what a call does is not decided here. A thread
or the event loop outlives tasks and micro-batches, with the clients that were opened on it.

    start(flight) ─► calls wait in a queue ─► a lane takes the next ─► ask ─► last answer: the flight has landed
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import cache
from operator import methodcaller
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from lookupcache.connector import Connector

T = TypeVar("T")

_PATIENCE = 1.0


@dataclass(eq=False)
class Flight:
    """Calls that were started together, and the answer of each, or the exception that it ended with.

    ``number`` is the caller's name for it. ``together`` says that all is lost where one call fails: the others
    are then not made, or cancelled, and end with the same exception.
    """

    calls: list[Any]
    number: int = 0
    together: bool = False
    answers: list[Any] = field(init=False)
    remaining: int = field(init=False)
    started: bool = False
    cancelled: bool = False
    broken: bool = False

    def __post_init__(self) -> None:
        self.answers = [None] * len(self.calls)
        self.remaining = len(self.calls)

    @property
    def over(self) -> bool:
        """Whether no more calls of it are to be made."""
        return self.cancelled or self.broken


class Dispatcher:
    """What both ways to make calls have in common.

    ``most`` is how many calls are made at a time, ``in_flight`` how many are started and unanswered.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._queue: deque[tuple[Flight, int]] = deque()
        self._flying: set[Flight] = set()
        self._landed: SimpleQueue[Flight | None] = SimpleQueue()
        self._changing = threading.Lock()
        self._wants_room = False
        self.in_flight = 0

    def start(self, flight: Flight) -> None:
        """Let the calls of a flight be made, as soon as there is room."""
        with self._changing:
            if flight.started or flight.cancelled:
                return
            flight.started = True
            self._flying.add(flight)
            self.in_flight += flight.remaining
        self._queue.extend((flight, number) for number in range(len(flight.calls)))
        self._staff()

    def start_later(self, flight: Flight, seconds: float) -> None:
        """Start a flight when so much time has passed, unless it is started or cancelled before."""
        loop = event_loop()
        loop.call_soon_threadsafe(loop.call_later, seconds, self.start, flight)

    def withdraw(self, flight: Flight) -> bool:
        """Keep a flight from starting; return False where it has started."""
        with self._changing:
            flight.cancelled = flight.cancelled or not flight.started
            return flight.cancelled

    def landed(self, *, wait: bool, room: bool = False) -> list[Flight]:
        """Return the flights that have landed since they were last asked for, at least one with ``wait``.

        With ``room`` it waits no longer than until another call could be made.
        """
        found: list[Flight | None] = []
        if wait and self._must_wait(room):
            found.append(self._next_landed())
        while not self._landed.empty():
            found.append(self._landed.get())
        flights = [flight for flight in found if flight is not None]
        self._flying.difference_update(flights)
        return [flight for flight in flights if not flight.cancelled]

    def _must_wait(self, room: bool) -> bool:
        with self._changing:
            self._wants_room = room and self.in_flight >= self.most
            return self._wants_room or not room

    def cancel(self, flight: Flight) -> None:
        """End the calls of a flight, or where that is impossible, forget them."""
        with self._changing:
            if flight.started and not flight.cancelled:
                self.in_flight -= flight.remaining
            flight.cancelled = True
        self._flying.discard(flight)

    def close(self) -> None:
        """End all that is under way, and disconnect."""
        for flight in list(self._flying):
            self.cancel(flight)

    def _next_landed(self) -> Flight | None:
        """Wait for a flight, or for None where there is room for another call."""
        return self._landed.get()

    def _staff(self) -> None:
        raise NotImplementedError

    def _answered(self, flight: Flight, number: int, answer: Any) -> None:
        """Note the answer of a call; called where the call was made."""
        with self._changing:
            if flight.over:
                return
            flight.answers[number] = answer
            answered = 1
            if flight.together and isinstance(answer, BaseException):
                answered = flight.remaining
                flight.broken = answered > 1
                flight.answers = [answer] * len(flight.calls)
            flight.remaining -= answered
            self.in_flight -= answered
            landed = not flight.remaining
            room, self._wants_room = self._wants_room, self._wants_room and self.in_flight >= self.most
        if flight.broken:
            self._break_off(flight)
        elif landed:
            self._landed.put(flight)
        elif room and not self._wants_room:
            self._landed.put(None)

    def _break_off(self, flight: Flight) -> None:
        """End the calls that are being made for a flight of which one has failed; then it has landed."""
        raise NotImplementedError


class Coroutines(Dispatcher):
    """Makes calls on the event loop of the worker, with one connector.

    ``ask`` answers a call; it is cancelled when its flight is, and after ``timeout`` seconds, when the answer is
    what ``timed_out`` returns.
    """

    def __init__(
        self,
        most: int,
        ask: Callable[[Any], Awaitable[Any]],
        opened: Callable[[], Awaitable[None]],
        closed: Callable[[], Awaitable[None]],
        timeout: float,
        timed_out: Callable[[], Exception],
    ) -> None:
        super().__init__(most)
        self._timeout = timeout
        self._timed_out = timed_out
        self._ask = ask
        self._open = opened
        self._close = closed
        self._opening: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._lanes: dict[asyncio.Task[None], _Job | None] = {}
        self._overdue: deque[_Job] = deque()
        self._watch: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Cancel all that is under way, and disconnect."""
        super().close()
        run_async(self._closed())

    def cancel(self, flight: Flight) -> None:
        """Cancel the calls of a flight, and wait until they have ended."""
        super().cancel(flight)
        run_async(self._end_lanes(flight))

    def _break_off(self, flight: Flight) -> None:
        async def end() -> None:
            await self._end_lanes(flight)
            self._landed.put(flight)

        task = event_loop().create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_lanes(self, flight: Flight) -> None:
        """Cancel the lanes that serve a flight; one that does not heed it is not waited for."""
        lanes = [lane for lane, job in self._lanes.items() if job is not None and job.flight is flight]
        for lane in lanes:
            lane.cancel()
        if lanes:
            await asyncio.wait(lanes, timeout=_PATIENCE)

    async def _closed(self) -> None:
        for flight in {job.flight for job in self._lanes.values() if job is not None}:
            await self._end_lanes(flight)
        if self._opening is not None:
            self._opening = None
            await self._close()

    def _staff(self) -> None:
        event_loop().call_soon_threadsafe(self._staff_lanes)

    def _staff_lanes(self) -> None:
        for _ in range(min(self.most - len(self._lanes), len(self._queue))):
            lane = event_loop().create_task(self._lane())
            self._lanes[lane] = None
            lane.add_done_callback(self._ended)

    def _ended(self, lane: asyncio.Task[None]) -> None:
        del self._lanes[lane]
        if self._queue:
            self._staff_lanes()

    async def _lane(self) -> None:
        lane: Any = asyncio.current_task()
        while self._queue:
            flight, number = self._queue.popleft()
            if flight.over:
                continue
            self._lanes[lane] = job = _Job(lane, flight, event_loop().time() + self._timeout)
            self._expect(job)
            try:
                await self._ensure_open()
                answer = await self._ask(flight.calls[number])
            except asyncio.CancelledError as error:
                if not job.late and (flight.over or lane.cancelling()):
                    raise
                answer = self._given_up(lane) if job.late else error
            except Exception as error:
                answer = error
            self._lanes[lane] = None
            job.lane = None
            self._answered(flight, number, answer)

    def _given_up(self, lane: asyncio.Task[None]) -> Exception:
        """Return the answer of a call that took too long; a connection that hangs is not waited for any more."""
        lane.uncancel()
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            self._opening = None
        return self._timed_out()

    def _expect(self, job: _Job) -> None:
        """Watch over a call. All have the same time, so the one that began first is overdue first."""
        if len(self._overdue) > 4 * self.most:
            self._overdue = deque(job for job in self._overdue if job.lane is not None)
        self._overdue.append(job)
        if self._watch is None:
            self._watch = event_loop().call_at(job.overdue, self._end_overdue)

    def _end_overdue(self) -> None:
        """Cancel the calls that are overdue, then watch over the next."""
        now = event_loop().time()
        while self._overdue and (self._overdue[0].lane is None or self._overdue[0].overdue <= now):
            job = self._overdue.popleft()
            if job.lane is not None:
                job.late = True
                job.lane.cancel()
        self._watch = event_loop().call_at(self._overdue[0].overdue, self._end_overdue) if self._overdue else None

    async def _ensure_open(self) -> None:
        """Open the connector once; after a failure, the next call tries again."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(self._open())
        if not self._opening.done() or self._opening.exception() is not None:
            await asyncio.shield(self._opening)


@dataclass(eq=False)
class _Job:
    """A call that a coroutine is busy with, until when it may be, and whether it took longer."""

    lane: asyncio.Task[None] | None
    flight: Flight
    overdue: float
    late: bool = False


@dataclass(eq=False)
class _Lane:
    """A thread, and when the call that it is busy with is overdue."""

    job: tuple[Flight, int] | None = None
    overdue: float = math.inf
    given_up: bool = False


class Threads(Dispatcher):
    """Makes calls in threads of its own, which are started when they are wanted.

    Each thread has a connector from ``opened``, and gives it to ``closed`` in the end. A call
    that takes longer than ``timeout`` seconds is answered with what ``timed_out`` returns; a new thread takes
    the place of the one that hangs, whose answer will not count.
    """

    def __init__(
        self,
        most: int,
        ask: Callable[[Connector, Any], Any],
        opened: Callable[[], Connector],
        timeout: float,
        timed_out: Callable[[], Exception],
        closed: Callable[[Connector], None] = methodcaller("close"),
    ) -> None:
        super().__init__(most)
        self._ask = ask
        self._opened = opened
        self._disconnect = closed
        self._timeout = timeout
        self._timed_out = timed_out
        self._lanes: set[_Lane] = set()
        self._idle = 0
        self._wake = threading.Condition()
        self._closed = False

    def close(self) -> None:
        """Let the threads end, each disconnecting."""
        super().close()
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def cancel(self, flight: Flight) -> None:
        """Forget the calls of a flight; a thread that is busy with one ends when the call does."""
        super().cancel(flight)
        self._give_up_flight(flight)

    def _break_off(self, flight: Flight) -> None:
        self._give_up_flight(flight)
        self._landed.put(flight)

    def _give_up_flight(self, flight: Flight) -> None:
        with self._wake:
            self._give_up([lane for lane in self._lanes if lane.job and lane.job[0] is flight])

    def _staff(self) -> None:
        with self._wake:
            self._closed = False
            for _ in range(min(self.most - len(self._lanes), len(self._queue) - self._idle)):
                lane = _Lane()
                self._lanes.add(lane)
                threading.Thread(target=self._run, args=(lane,), name="lookupcache-lane", daemon=True).start()
            self._wake.notify(len(self._queue))

    def _run(self, lane: _Lane) -> None:
        connector = None
        while (job := self._next_job(lane)) is not None:
            flight, number = job
            answer: Any
            try:
                connector = self._opened() if connector is None else connector
                answer = self._ask(connector, flight.calls[number])
            except BaseException as error:
                answer = error
            with self._wake:
                counts, lane.job, lane.overdue = not lane.given_up, None, math.inf
            if counts:
                self._answered(flight, number, answer)
        if connector is not None:
            self._disconnect(connector)

    def _next_job(self, lane: _Lane) -> tuple[Flight, int] | None:
        """Wait for the next call; None where the thread is to end."""
        with self._wake:
            while not lane.given_up:
                if self._queue:
                    lane.job = self._queue.popleft()
                    if not lane.job[0].over:
                        lane.overdue = time.monotonic() + self._timeout
                        return lane.job
                elif self._closed:
                    break
                else:
                    lane.job = None
                    self._idle += 1
                    self._wake.wait()
                    self._idle -= 1
            self._lanes.discard(lane)
            return None

    def _next_landed(self) -> Flight | None:
        while True:
            try:
                return self._landed.get(timeout=self._patience())
            except Empty:
                self._end_overdue()

    def _patience(self) -> float | None:
        """Return how long to wait until a call is overdue."""
        with self._wake:
            first = min((lane.overdue for lane in self._lanes), default=math.inf)
        # A call may be taken up while we wait; none is overdue before the timeout is over.
        seconds = min(max(first - time.monotonic(), 0.0), self._timeout)
        return None if seconds == math.inf else min(seconds, threading.TIMEOUT_MAX)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        with self._wake:
            overdue = [lane for lane in self._lanes if lane.overdue <= now]
            jobs = [lane.job for lane in overdue]
            self._give_up(overdue)
        for job in jobs:
            if job is not None:
                self._answered(*job, self._timed_out())
        self._staff()

    def _give_up(self, lanes: list[_Lane]) -> None:
        for lane in lanes:
            lane.given_up = True
            self._lanes.discard(lane)


# ── the event loop ───────────────────────────────────────────────────────────────────────────────────────


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the worker's event loop, which runs in a thread of its own as long as the process lives."""
    return _loop_of(os.getpid())


@cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:
    """Make the loop of a process; a forked one inherits no threads, and so no loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="lookupcache-loop", daemon=True).start()
    return loop


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the worker's event loop and wait for it."""
    return asyncio.run_coroutine_threadsafe(work, event_loop()).result()
