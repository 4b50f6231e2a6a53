"""Groups keys into calls: a call is closed when it is full, or old enough.

    add(keys) ─► a call that is still open, or a new one ─► closed by size or by age ─► its opener makes it

The caller that opens a call makes it; all others wait until it has ended.
"""

from __future__ import annotations

import math
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lookupcache.decorator.arguments import Key, key_text
from lookupcache.executor.job import Job
from lookupcache.executor.latch import Latch
from lookupcache.executor.nesting import NestedCall
from lookupcache.shared_error import SharedError

if TYPE_CHECKING:
    from lookupcache.decorator.values import Values


class BatchedCall(NestedCall):
    """Keys that are requested together; when it has ended, ``answers`` by key, or ``error``.

    With neither, it was interrupted, and waiting callers request the keys again. ``loop`` is its event loop, None for
    threads. From ``deadline`` on, by `time.monotonic`, it counts as hung. ``job`` makes it in a slot, None in its
    opener's own thread. It is made for a method of ``owner``, and with ``refresh`` while old values are served.
    ``shared`` are the values that other processes of the host have fetched. ``until`` is when its time is over, by
    `time.monotonic`, since it has waited for other processes to request its keys.
    """

    def __init__(self, loop: AbstractEventLoop | None = None, owner: Any = None) -> None:
        super().__init__()
        self.refresh = False
        self.loop = loop
        self.owner = owner
        self.keys: list[Key] = []
        self.opened = time.monotonic()
        self.closed = False
        self.full: Latch | None = None
        self.answers: dict[Key, Any] | None = None
        self.error: SharedError | None = None
        self.shared: Values | None = None
        self.deadline = self.until = math.inf
        self.job: Job | None = None

    def end(self, answers: dict[Key, Any] | None = None, error: BaseException | None = None) -> None:
        """Wake all waiting callers, once; called by one thread at a time."""
        if not self.ended.is_open:
            self.answers, self.error = answers, None if error is None else SharedError(error)
            self.ended.open()

    def take_error(self) -> BaseException | None:
        """Return the error for one of the callers that waited, if it has failed."""
        return None if self.error is None else self.error.take()

    def describe(self) -> str:
        return ", ".join(map(key_text, self.keys[:3]))


class Batches:
    """Puts keys into calls of at most ``size`` keys, which wait at most ``delay`` seconds for more.

    Without ``delay``, each caller's keys have separate calls, which do not wait. Threads, and the coroutines of
    one event loop, fill calls together.

    >>> calls, opened = Batches(size=2).add([1, 2, 3])
    >>> [call.keys for call in opened], calls[0] is calls[1]
    ([[1, 2], [3]], True)
    """

    def __init__(self, size: float = math.inf, delay: float = 0.0) -> None:
        self.size = size
        self.delay = delay
        self._filling: dict[Any, BatchedCall] = {}
        self._lock = threading.RLock()

    def add(
        self, keys: Sequence[Key], loop: AbstractEventLoop | None = None, owner: Any = None
    ) -> tuple[list[BatchedCall], list[BatchedCall]]:
        """Return the call that contains each key, and those calls that were opened for it.

        The caller has to make the latter, after `wait_closed`. Keys for methods of different owners do not
        share a call.
        """
        opened: list[BatchedCall] = []
        with self._lock:
            calls = [self._enter(key, loop, owner, opened) for key in keys]
            if not self.delay and (loop, id(owner)) in self._filling:
                self._close(self._filling[loop, id(owner)])
        return calls, opened

    def wait_closed(self, call: BatchedCall) -> None:
        """Wait until the call is full or old enough."""
        if call.full is not None:
            call.full.wait(self._seconds_left(call))
            self.close(call)

    async def wait_closed_async(self, call: BatchedCall) -> None:
        if call.full is not None:
            await call.full.wait_async(self._seconds_left(call))
            self.close(call)

    def close(self, call: BatchedCall) -> None:
        """Close a call, so that no more keys are added."""
        with self._lock:
            if not call.closed:
                self._close(call)

    def _seconds_left(self, call: BatchedCall) -> float:
        return max(call.opened + self.delay - time.monotonic(), 0.0)

    def _enter(self, key: Key, loop: AbstractEventLoop | None, owner: Any, opened: list[BatchedCall]) -> BatchedCall:
        call = self._filling.get((loop, id(owner)))
        if call is not None and self.delay and not self._seconds_left(call):
            # Its opener makes another call first; this one may be overdue before it begins.
            self._close(call)
            call = None
        if call is None:
            call = self._filling[loop, id(owner)] = BatchedCall(loop, owner)
            call.full = Latch() if self.delay else None
            opened.append(call)
        call.keys.append(key)
        if len(call.keys) >= self.size:
            self._close(call)
        return call

    def _close(self, call: BatchedCall) -> None:
        del self._filling[call.loop, id(call.owner)]
        call.closed = True
        if call.full is not None:
            call.full.open()
