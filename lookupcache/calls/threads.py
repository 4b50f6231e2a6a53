"""`Threads`: calls in threads, each with a connector of its own, and none that hangs for ever."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from queue import Empty
from typing import Any

from lookupcache.calls.flight import Dispatcher, Flight
from lookupcache.connector import Connector


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
            self._start_lanes()
            self._wake.notify(len(self._queue))

    def _start_lanes(self) -> None:
        for _ in range(min(self.most - len(self._lanes), len(self._queue) - self._idle)):
            lane = _Lane()
            self._lanes.add(lane)
            threading.Thread(target=self._run, args=(lane,), name="lookupcache-lane", daemon=True).start()

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

    def _give_up(self, lanes: list[_Lane]) -> None:
        """Leave lanes to their calls; others take their places where calls are waiting."""
        for lane in lanes:
            lane.given_up = True
            self._lanes.discard(lane)
        self._start_lanes()
