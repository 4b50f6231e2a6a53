"""`Threads`: groups of calls in threads, each with its own connector; a call that hangs is replaced."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from operator import methodcaller
from queue import Empty
from typing import Any, cast

from lookupcache.connector import Connector
from lookupcache.executor.call_group import CallGroup, Executor, GroupCall
from lookupcache.executor.thread_slots import ThreadSlots


class Threads(Executor):
    """Makes calls in `ThreadSlots`, with one connector per thread.

    A call that takes longer than its timeout loses its slot to another thread, and its late answer is ignored.

    Args:
        capacity: The maximum number of concurrent calls.
        ask: Makes a call; an exception that it raises is the answer.
        open_connector: Returns the connector of a thread, for its first call.
        timeout: The seconds after which a call is abandoned.
        timed_out: Returns the answer of a call that was abandoned.
        close_connector: Closes the connector of a thread that ends.
    """

    def __init__(
        self,
        capacity: int,
        ask: Callable[[Connector, Any], Any],
        open_connector: Callable[[], Connector],
        timeout: float,
        timed_out: Callable[[], Exception],
        close_connector: Callable[[Connector], None] = methodcaller("close"),
    ) -> None:
        super().__init__(capacity, timeout, timed_out)
        self._ask = ask
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
        self._slots.cancel(lambda call: cast(GroupCall, call).group is group)

    def _abort(self, group: CallGroup) -> None:
        self._slots.cancel(lambda call: cast(GroupCall, call).group is group)
        self._completed.put(group)

    def _submit(self, calls: Sequence[GroupCall]) -> None:
        self._slots.submit(calls)

    def _make_call(self, call: GroupCall) -> Any:
        if call.group.over:
            return None
        call.deadline = time.monotonic() + self._timeout
        connector = getattr(self._own, "connector", None)
        if connector is None:
            connector = self._own.connector = self._open_connector()
        return self._ask(connector, call.group.calls[call.number])

    def _disconnect(self) -> None:
        if (connector := getattr(self._own, "connector", None)) is not None:
            self._close_connector(connector)

    def _next_completed(self) -> CallGroup | None:
        while True:
            try:
                return self._completed.get(timeout=self._seconds_to_deadline())
            except Empty:
                for call in self._slots.abandon_overdue():
                    call.end(call.timed_out())

    def _seconds_to_deadline(self) -> float | None:
        """Return how long to wait until a call is overdue."""
        # A call may start while we wait; none is overdue before the timeout is over.
        seconds = min(max(self._slots.first_deadline() - time.monotonic(), 0.0), self._timeout)
        return None if seconds == math.inf else min(seconds, threading.TIMEOUT_MAX)
