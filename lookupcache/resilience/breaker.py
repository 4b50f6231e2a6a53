"""A circuit breaker: after repeated failures of the source, no calls are made for a while.

closed ── failures in a row ──► open ── delay over ──► half-open ── the probe succeeds ──► closed
                                 ▲                         │
                                 └──── the probe fails ────┘
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lookupcache.errors import LookupRefusedError


class Breaker:
    """Lets calls through as long as they do not fail ``failures`` times in a row, then one after ``delay`` seconds.

    Every call acquires a permit with `acquire`, and reports its end with it: `record_success`, `record_failure`, or
    `release` if the result says nothing about the source. Thread-safe. ``failures`` None lets all calls through.

    >>> breaker = Breaker(failures=1, delay=30.0, clock=lambda: 0.0)
    >>> breaker.record_failure(breaker.acquire())
    >>> breaker.open_for()
    30.0
    """

    def __init__(self, failures: int | None, delay: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._delay = delay
        self._clock = clock
        # Reentrant: a coroutine that is garbage collected returns its permit in a thread that may hold the lock.
        self._lock = threading.RLock()
        self._failed_in_row = 0
        self._until: float | None = None
        self._probing = False
        # A permit is how often the breaker had opened when it was acquired: reports of older calls are ignored.
        self._opened = 0

    def acquire(self) -> int:
        """Return a permit for one call; raises LookupRefusedError while the breaker is open, or a probe is running."""
        permit = self._opened
        if self._until is None:
            return permit
        with self._lock:
            if self._until is None:
                return self._opened
            left = self._until - self._clock()
            if left > 0 or self._probing:
                raise self._refusal(left)
            self._probing = True
            return self._opened

    def record_success(self, permit: int) -> None:
        """Report that the source answered."""
        if self._failed_in_row == 0 and self._until is None:
            return
        with self._lock:
            if permit == self._opened:
                self._failed_in_row = 0
                self._until = None

    def record_failure(self, permit: int | None = None) -> None:
        """Report that the source failed; without a permit for a call that timed out and may still go on."""
        if self._failures is None:
            return
        with self._lock:
            if permit is not None and permit != self._opened:
                return
            if self._until is None:
                self._failed_in_row += 1
                if self._failed_in_row >= self._failures:
                    self._open()
            elif self._until <= self._clock():
                self._open()

    def release(self, permit: int) -> None:
        """Report that a call ended without a result of the source; a probe is then repeated by the next call."""
        if self._until is not None:
            with self._lock:
                if permit == self._opened:
                    self._probing = False

    def open_for(self) -> float:
        """Return for how many seconds all calls will be rejected; 0 if a call may be made."""
        until = self._until
        return 0.0 if until is None else max(until - self._clock(), 0.0)

    def reset_after_fork(self) -> None:
        """Forget the calls of the parent process: they do not end in this one."""
        self._lock = threading.RLock()
        self._probing = False

    def _open(self) -> None:
        self._until = self._clock() + self._delay
        self._probing = False
        self._opened += 1

    def _refusal(self, left: float) -> LookupRefusedError:
        after = f"for {left:.3g} s more" if left > 0 else "until the trial call in progress has ended"
        return LookupRefusedError(
            f"The circuit breaker is open: the source failed {self._failures} times in a row, "
            f"and is not called {after}.",
            hint="Repair the source, or change 'lookup.breaker.failures' and 'lookup.breaker.delay'.",
        )
