"""`Threads`: groups of calls in threads, each with its own connector; a call that hangs is replaced."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from queue import Empty
from typing import Any

from lookupcache.connector import Connector
from lookupcache.executor.call_group import CallGroup, Executor, GroupCall, take
from lookupcache.executor.thread_slots import ThreadSlots


class Threads(Executor):
    """Makes calls in `ThreadSlots`, with one connector per thread.

    A call that takes longer than its timeout loses its slot to another thread, and its late answer is ignored. What
    ``call_source`` raises is the answer; of an abandoned call, what ``timed_out`` returns. A thread opens its connector
    for its first call, and closes it when it ends.
    """

    def __init__(
        self,
        capacity: int,
        call_source: Callable[[Connector, Any], Any],
        open_connector: Callable[[], Connector],
        timeout: float,
        timed_out: Callable[[], Exception],
        close_connector: Callable[[Connector], None] = methodcaller("close"),
    ) -> None:
        super().__init__(capacity, timeout, timed_out)
        self._call_source = call_source
        self._open_connector = open_connector
        self._close_connector = close_connector
        self._own = threading.local()
        # A thread keeps its connector however long it is idle: connecting may take longer than the calls.
        self._slots = ThreadSlots(capacity, math.inf, self._disconnect)

    def close(self) -> None:
        """Let the threads end, each disconnecting."""
        super().close()
        self._slots.close()

    def cancel(self, group: CallGroup) -> None:
        """Ignore the answers of a group's calls; a thread that is busy with one ends with the call."""
        super().cancel(group)
        self._slots.cancel(lambda job: isinstance(job, GroupCall) and job.group is group)

    def _abort(self, group: CallGroup) -> None:
        self._slots.cancel(lambda job: isinstance(job, GroupCall) and job.group is group)
        self._completed.put(group)

    def _submit(self, calls: Sequence[GroupCall]) -> None:
        self._slots.submit(calls)

    def _make_call(self, call: GroupCall) -> Any:
        if call.group.over:
            return None
        now = time.monotonic()
        call.deadline = min(now + self._timeout, call.group.deadline)
        if call.deadline <= now:
            raise self._timed_out()
        connector = getattr(self._own, "connector", None)
        if connector is None:
            connector = self._own.connector = self._open_connector()
        call_source = partial(self._call_source, connector, call.group.calls[call.number])
        # A copy: two threads cannot run in the same context.
        return call_source() if call.context is None else call.context.copy().run(call_source)

    def _disconnect(self) -> None:
        if (connector := getattr(self._own, "connector", None)) is not None:
            self._close_connector(connector)

    def _next_completed(self, timeout: float | None) -> CallGroup | None:
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            seconds = self._seconds_to_deadline()
            left = max(until - time.monotonic(), 0.0)
            try:
                return take(self._completed, seconds if left == math.inf else min(left, seconds or left))
            except Empty:
                self._end_overdue()
                if time.monotonic() >= until:
                    return None

    def _end_overdue(self) -> None:
        for job in self._slots.abandon_overdue():
            job.end(job.timeout_error())

    def _seconds_to_deadline(self) -> float | None:
        """Return how long to wait until a call is overdue."""
        now = time.monotonic()
        # A call may start while we wait; none is overdue before the timeout is over, or its group's deadline.
        seconds = min(max(self._slots.first_deadline() - now, 0.0), self._timeout)
        seconds = min([seconds, *(one.deadline - now for one in self._active.copy() if one.deadline > now)])
        return None if seconds == math.inf else min(seconds, threading.TIMEOUT_MAX)
