"""`Latch`: an event that happens once, for which threads and coroutines wait alike."""

from __future__ import annotations

import asyncio
import os
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
        """Wake all waiters."""
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
        if self._add_waker(event.set):
            event.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
            self._remove_waker(event.set)
        return self.is_open

    async def wait_async(self, timeout: float | None = None) -> bool:
        """Do the same in a coroutine."""
        if self.is_open:
            return True
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
        """Have a waiter woken when it opens; return False where it is open."""
        with _changing:
            if not self.is_open:
                self._wakers.append(wake)
            return not self.is_open

    def _remove_waker(self, wake: Callable[[], object]) -> None:
        with _changing, suppress(ValueError):
            self._wakers.remove(wake)


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    if asyncio._get_running_loop() is loop:
        _set(woken)
        return
    with suppress(RuntimeError):  # the loop was closed, and nobody waits on it any more
        loop.call_soon_threadsafe(_set, woken)


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _reset_after_fork() -> None:
    """Replace a lock that a thread of the parent process may hold."""
    global _changing
    _changing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
