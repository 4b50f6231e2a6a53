"""`Latch`: something that happens once, and for which threads and coroutines wait alike."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for


class Latch:
    """Like `threading.Event`, but it opens for good, and coroutines of any event loop can wait for it.

    >>> latch = Latch()
    >>> latch.wait(timeout=0), latch.open(), latch.wait(), asyncio.run(latch.wait_async())
    (False, None, True, True)
    """

    def __init__(self) -> None:
        self._future: Future[None] = Future()
        # A running future cannot be cancelled, so no waiter takes the others down with it.
        self._future.set_running_or_notify_cancel()

    @property
    def is_open(self) -> bool:
        """Whether it has happened."""
        return self._future.done()

    def open(self) -> None:
        """Let go all who wait; by one thread at a time."""
        if not self._future.done():
            self._future.set_result(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait in this thread, at most so many seconds; return whether it has happened."""
        wait_for([self._future], timeout=None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        return self._future.done()

    async def wait_async(self, timeout: float | None = None) -> bool:
        """Do the same in a coroutine."""
        mine = asyncio.wrap_future(self._future)
        try:
            await asyncio.wait([mine], timeout=timeout)
        finally:
            # What is not cancelled would later wake a loop that may be closed by then.
            mine.cancel()
        return self._future.done()
