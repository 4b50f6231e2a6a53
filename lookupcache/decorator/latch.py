"""`Latch`: something that happens once, and for which threads and coroutines wait alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

_changing = threading.Lock()


class Latch:
    """Like `threading.Event`, but it opens for good, and coroutines of any event loop can wait for it.

    >>> latch = Latch()
    >>> latch.wait(timeout=0), latch.open(), latch.wait(), asyncio.run(latch.wait_async())
    (False, None, True, True)
    """

    __slots__ = ("_wakers", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._wakers: list[Callable[[], object]] = []

    def open(self) -> None:
        """Let go all who wait."""
        with _changing:
            self.is_open = True
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait in this thread, at most so many seconds; return whether it has happened."""
        if self.is_open:
            return True
        event = threading.Event()
        if self._tell(event.set):
            event.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
            self._forget(event.set)
        return self.is_open

    async def wait_async(self, timeout: float | None = None) -> bool:
        """Do the same in a coroutine."""
        if self.is_open:
            return True
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        wake = partial(_wake, loop, woken)
        if self._tell(wake):
            try:
                await (woken if timeout is None else asyncio.wait([woken], timeout=timeout))
            finally:
                self._forget(wake)
        return self.is_open

    def _tell(self, wake: Callable[[], object]) -> bool:
        """Have somebody woken; return False where there is nothing left to wait for."""
        with _changing:
            if not self.is_open:
                self._wakers.append(wake)
            return not self.is_open

    def _forget(self, wake: Callable[[], object]) -> None:
        with _changing, suppress(ValueError):
            self._wakers.remove(wake)


def reset_after_fork() -> None:
    """Replace a lock that a thread of the parent process may hold."""
    global _changing
    _changing = threading.Lock()


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    if asyncio._get_running_loop() is loop:
        _set(woken)
        return
    with suppress(RuntimeError):  # the loop was closed, and nobody waits on it any more
        loop.call_soon_threadsafe(_set, woken)


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
