"""`Background`: work that a thread does when it is due; the thread ends when it has had nothing to do for a while."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from lookupcache.thread_start import start_thread

LINGER_SECONDS = 1.0
"""How long a thread waits for more work: to start one takes longer than most of what these threads do."""


class Background:
    """Calls a function in a daemon thread when it is due; thread-safe.

    The ``work`` returns in how many seconds to call it again, or None if only after the next `wake`; its errors are
    ignored. A forked process has no thread of its parent, nor the parent's work: make another where `is_own` is False.

    >>> done = threading.Event()
    >>> background = Background(done.set, "lookupcache-example")
    >>> background.wake()
    >>> done.wait(10)
    True
    """

    def __init__(self, work: Callable[[], float | None], name: str) -> None:
        self._work = work
        self._name = name
        self._process = os.getpid()
        self._due = math.inf
        self._is_closing = self._drops = False
        self.changed = threading.Condition(threading.RLock())
        """Guards what the work and its callers share; notified when the thread ends."""
        self.has_thread = False

    @property
    def is_own(self) -> bool:
        """Whether this is the process that made it."""
        return self._process == os.getpid()

    def wake(self, seconds: float = 0.0) -> None:
        """Do the work this many seconds from now, or earlier if it is due earlier.

        Raises RuntimeError where no thread can be started, as when the interpreter exits.
        """
        with self.changed:
            due, self._is_closing, self._drops = time.monotonic() + seconds, False, False
            if not self.has_thread:
                self._due = due
                start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
                self.has_thread = True
            elif due < self._due:
                self._due = due
                self.changed.notify_all()

    def close(self, seconds: float | None = 0.0, *, drop: bool = False) -> None:
        """Let the thread end when nothing is due, and wait at most ``seconds``; the next `wake` starts another.

        With ``drop``, work that is due is not begun.
        """
        if self.is_own:
            with self.changed:
                self._is_closing, self._drops = True, drop
                self._due = math.inf if drop else self._due
                self.changed.notify_all()
                self.changed.wait_for(lambda: not self.has_thread, seconds)

    def _run(self) -> None:
        while self._wait():
            again = None
            with suppress(BaseException):  # After any error, the thread goes on.
                again = self._work()
            with self.changed:
                if again is not None and not self._drops:
                    self._due = min(self._due, time.monotonic() + again)

    def _wait(self) -> bool:
        """Wait until the work is due; return False if the thread is to end instead."""
        with self.changed:
            while self._is_woken():
                pass
            is_due, self._due = self._due < math.inf, math.inf
            if not is_due:
                self.has_thread = False
                self.changed.notify_all()
            return is_due

    def _is_woken(self) -> bool:
        """Wait until the work is due, or as long as a thread lingers; return whether another time was set meanwhile."""
        due = self._due
        if due == math.inf:
            self.changed.wait_for(lambda: self._due < due or self._is_closing, LINGER_SECONDS)
            return self._due < due
        seconds = due - time.monotonic()
        return seconds > 0 and self.changed.wait_for(lambda: self._due != due, seconds)
