"""`Latch`: an event that happens once, for threads and coroutines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Latch:
    """Like `threading.Event`, but it cannot be reset, and coroutines of any event loop can wait for it.

    It takes no lock. A coroutine that is garbage collected leaves `wait_async` in the thread that runs the collector.
    That may be in the middle of a method of this class, and would then wait for its own lock.

    >>> import asyncio
    >>> latch = Latch()
    >>> latch.wait(timeout=0), latch.open(), latch.wait(), asyncio.run(latch.wait_async())
    (False, None, True, True)
    """

    __slots__ = ("_wakers", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        # By the wakers' ids: a dict of integers is changed without running any Python code.
        self._wakers: dict[int, Callable[[], object]] = {}

    def open(self) -> None:
        """Wake all waiters."""
        self.is_open = True
        for number in list(self._wakers):
            if (wake := self._wakers.pop(number, None)) is not None:
                wake()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait in this thread, at most this many seconds; return whether it has happened."""
        if self.is_open:
            return True
        event = threading.Event()
        wake = event.set
        if self._add_waker(wake):
            event.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
            self._remove_waker(wake)
        return self.is_open

    async def wait_async(self, timeout: float | None = None) -> bool:
        if self.is_open:
            return True
        import asyncio  # Here, since threads wait without it, and it takes long to import.

        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        wake = partial(_wake, loop, woken)
        if self._add_waker(wake):
            try:
                await (woken if timeout is None else asyncio.wait([woken], timeout=timeout))
            finally:
                self._remove_waker(wake)
        return self.is_open

    def _add_waker(self, wake: Callable[[], object]) -> bool:
        """Have ``wake`` called when the latch opens; return False if it is open already."""
        self._wakers[id(wake)] = wake
        # After adding the waker: `open` sets the flag and then reads the wakers, so one of the two sees the other.
        if self.is_open:
            self._remove_waker(wake)
        return not self.is_open

    def _remove_waker(self, wake: Callable[[], object]) -> None:
        self._wakers.pop(id(wake), None)


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    import asyncio

    if asyncio._get_running_loop() is loop:
        _set(woken)
        return
    with suppress(RuntimeError):  # The loop was closed, so no task waits on it.
        loop.call_soon_threadsafe(_set, woken)


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
