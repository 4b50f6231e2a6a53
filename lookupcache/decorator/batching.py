"""Which keys go to the source in one call: a call closes when it is full, or old enough.

    add(keys) ─► a call that is still open, or a new one ─► closed by size or by age ─► its opener makes it

Who opens a call sees it through; all others wait until it has ended. Nothing here knows what a call does.
"""

from __future__ import annotations

import math
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Hashable, Sequence
from typing import Any

from lookupcache.decorator.latch import Latch

Key = Hashable


class Call:
    """Keys that go to the source together; when it has ended, ``answers`` by key, or ``error``.

    With neither, its opener gave it up, and who waits for it asks again. ``home`` is the event loop that it is
    made on, None for threads; ``deadline``, by `time.monotonic`, is when it counts as hung; ``carrier`` is the
    task or the thread's job that makes it, None for the opener's own thread. ``maker`` makes it, for a method of
    ``owner``; ``outer`` is the call in whose course it was opened, and ``waits_for`` those that it waits for itself.
    """

    def __init__(self, home: AbstractEventLoop | None = None, owner: Any = None) -> None:
        self.home = home
        self.owner = owner
        self.maker: Any = None
        self.outer: Call | None = None
        self.waits_for: list[Call] = []
        self.keys: list[Any] = []
        self.opened = time.monotonic()
        self.closed = False
        self.full: Latch | None = None
        self.ended = Latch()
        self.answers: dict[Any, Any] | None = None
        self.error: BaseException | None = None
        self.deadline = math.inf
        self.carrier: Any = None

    def end(self, answers: dict[Any, Any] | None = None, error: BaseException | None = None) -> None:
        """Let go all who wait, once; by one thread at a time."""
        if not self.ended.is_open:
            self.answers, self.error = answers, error
            self.ended.open()


class Batches:
    """Puts keys into calls of at most ``size`` keys, which wait at most ``delay`` seconds for more.

    Without ``delay``, a caller's keys wait for nobody, and share a call with nobody else's. Threads, and the
    coroutines of one event loop, fill calls together.

    >>> calls, opened = Batches(size=2).add([1, 2, 3])
    >>> [call.keys for call in opened], calls[0] is calls[1]
    ([[1, 2], [3]], True)
    """

    def __init__(self, size: float = math.inf, delay: float = 0.0) -> None:
        self.size = size
        self.delay = delay
        self._filling: dict[Any, Call] = {}
        self._lock = threading.Lock()

    def add(
        self, keys: Sequence[Key], home: AbstractEventLoop | None = None, owner: Any = None
    ) -> tuple[list[Call], list[Call]]:
        """Return the call that each key goes into, and those calls that were opened for it.

        The caller has to make the latter, when `wait_closed` says so. Keys for methods of different owners do not
        share a call.
        """
        opened: list[Call] = []
        with self._lock:
            calls = [self._enter(key, home, owner, opened) for key in keys]
            if not self.delay and (home, id(owner)) in self._filling:
                self._close(self._filling[home, id(owner)])
        return calls, opened

    def wait_closed(self, call: Call) -> None:
        """Wait until the call is full or old enough."""
        if call.full is not None:
            call.full.wait(self._left(call))
            self.close(call)

    async def wait_closed_async(self, call: Call) -> None:
        """Do the same on the call's event loop."""
        if call.full is not None:
            await call.full.wait_async(self._left(call))
            self.close(call)

    def close(self, call: Call) -> None:
        """Let no more keys into a call."""
        with self._lock:
            if not call.closed:
                self._close(call)

    def _left(self, call: Call) -> float:
        return max(call.opened + self.delay - time.monotonic(), 0.0)

    def _enter(self, key: Key, home: AbstractEventLoop | None, owner: Any, opened: list[Call]) -> Call:
        call = self._filling.get((home, id(owner)))
        if call is None:
            call = self._filling[home, id(owner)] = Call(home, owner)
            call.full = Latch() if self.delay else None
            opened.append(call)
        call.keys.append(key)
        if len(call.keys) >= self.size:
            self._close(call)
        return call

    def _close(self, call: Call) -> None:
        del self._filling[call.home, id(call.owner)]
        call.closed = True
        if call.full is not None:
            call.full.open()
