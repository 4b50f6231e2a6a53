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

from lookupcache.connector import Connector
from lookupcache.executor.call_group import CallGroup, Executor


@dataclass(eq=False)
class _Slot:
    """A thread, and when the call that it is busy with is overdue."""

    job: tuple[CallGroup, int] | None = None
    overdue: float = math.inf
    given_up: bool = False


class Threads(Executor):
    """Makes calls in threads of its own, which are started when they are wanted.

    Each thread has a connector from ``opened``, and gives it to ``closed`` in the end. A call
    that takes longer than ``timeout`` seconds is answered with what ``timed_out`` returns; a new thread takes
    the place of the one that hangs, whose answer will not count.
    """

    def __init__(
        self,
        capacity: int,
        ask: Callable[[Connector, Any], Any],
        opened: Callable[[], Connector],
        timeout: float,
        timed_out: Callable[[], Exception],
        closed: Callable[[Connector], None] = methodcaller("close"),
    ) -> None:
        super().__init__(capacity)
        self._ask = ask
        self._opened = opened
        self._disconnect = closed
        self._timeout = timeout
        self._timed_out = timed_out
        self._slots: set[_Slot] = set()
        self._idle = 0
        self._wake = threading.Condition()
        self._closed = False

    def close(self) -> None:
        """Let the threads end, each disconnecting."""
        super().close()
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def cancel(self, group: CallGroup) -> None:
        """Forget the calls of a group; a thread that is busy with one ends when the call does."""
        super().cancel(group)
        self._give_up_flight(group)

    def _abort(self, group: CallGroup) -> None:
        self._give_up_flight(group)
        self._completed.put(group)

    def _give_up_flight(self, group: CallGroup) -> None:
        with self._wake:
            self._give_up([slot for slot in self._slots if slot.job and slot.job[0] is group])

    def _ensure_slots(self) -> None:
        with self._wake:
            self._closed = False
            self._start_slots()
            self._wake.notify(len(self._queue))

    def _start_slots(self) -> None:
        for _ in range(min(self.capacity - len(self._slots), len(self._queue) - self._idle)):
            slot = _Slot()
            self._slots.add(slot)
            threading.Thread(target=self._run, args=(slot,), name="lookupcache-slot", daemon=True).start()

    def _run(self, slot: _Slot) -> None:
        connector = None
        while (job := self._next_job(slot)) is not None:
            group, number = job
            answer: Any
            try:
                connector = self._opened() if connector is None else connector
                answer = self._ask(connector, group.calls[number])
            except BaseException as error:
                answer = error
            with self._wake:
                counts, slot.job, slot.overdue = not slot.given_up, None, math.inf
            if counts:
                self._answered(group, number, answer)
        if connector is not None:
            self._disconnect(connector)

    def _next_job(self, slot: _Slot) -> tuple[CallGroup, int] | None:
        """Wait for the next call; None where the thread is to end."""
        with self._wake:
            while not slot.given_up:
                if self._queue:
                    slot.job = self._queue.popleft()
                    if not slot.job[0].over:
                        slot.overdue = time.monotonic() + self._timeout
                        return slot.job
                elif self._closed:
                    break
                else:
                    slot.job = None
                    self._idle += 1
                    self._wake.wait()
                    self._idle -= 1
            self._slots.discard(slot)
            return None

    def _next_completed(self) -> CallGroup | None:
        while True:
            try:
                return self._completed.get(timeout=self._patience())
            except Empty:
                self._end_overdue()

    def _patience(self) -> float | None:
        """Return how long to wait until a call is overdue."""
        with self._wake:
            first = min((slot.overdue for slot in self._slots), default=math.inf)
        # A call may be taken up while we wait; none is overdue before the timeout is over.
        seconds = min(max(first - time.monotonic(), 0.0), self._timeout)
        return None if seconds == math.inf else min(seconds, threading.TIMEOUT_MAX)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        with self._wake:
            overdue = [slot for slot in self._slots if slot.overdue <= now]
            jobs = [slot.job for slot in overdue]
            self._give_up(overdue)
        for job in jobs:
            if job is not None:
                self._answered(*job, self._timed_out())

    def _give_up(self, slots: list[_Slot]) -> None:
        """Abandon slots that are busy; others replace them if calls are waiting."""
        for slot in slots:
            slot.given_up = True
            self._slots.discard(slot)
        self._start_slots()
