"""Calls on their way to the source: `Flight`, and what all that make calls have in common, `Dispatcher`.

The worker starts flights and takes in those that have landed; what a call does is not decided here. The
threads, or the event loop, outlive tasks and micro-batches, with the clients that were opened there.

    start(flight) ─► calls wait in a queue ─► a lane takes the next ─► ask ─► last answer: the flight has landed
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


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
            landed, broken = not flight.remaining, flight.broken
            room, self._wants_room = self._wants_room, self._wants_room and self.in_flight >= self.most
        if broken:
            self._break_off(flight)
        elif landed:
            self._landed.put(flight)
        elif room and not self._wants_room:
            self._landed.put(None)

    def _break_off(self, flight: Flight) -> None:
        """End the calls that are being made for a flight of which one has failed; then it has landed."""
        raise NotImplementedError


# ── the event loop ───────────────────────────────────────────────────────────────────────────────────────


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the worker's event loop, which runs in a thread of its own as long as the process lives."""
    return _loop_of(os.getpid())


@cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:
    """Make the loop of a process; a forked one inherits no threads, and so no loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run_loop, args=(loop,), name="lookupcache-loop", daemon=True).start()
    return loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop on and on: a task that ends with SystemExit or KeyboardInterrupt stops it for all others."""
    while not loop.is_closed():
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the worker's event loop and wait for it."""
    return asyncio.run_coroutine_threadsafe(work, event_loop()).result()
