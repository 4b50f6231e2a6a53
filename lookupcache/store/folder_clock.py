"""`FolderClock`: the time of a folder, read from the times that its file system gives to files.

So the clocks of the hosts do not matter. The time is only known to within two bounds. Rows that are read count their
age from the later one; rows that are written are dated by the earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

SKEW_SECONDS = 60.0
"""How much the clock of a host may differ from the folder's where the folder cannot be asked, since it is read-only."""

_DRIFT = 0.001
_TICK_SECONDS = 0.01
"""How long a local file system may lag behind: it reads the clock once per tick of the kernel."""
_COARSE_TICK_SECONDS = 2.0
"""The same for one whose times have no fraction, as those of object stores."""
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True)
class Moment:
    """The earliest and the latest that it may be, in seconds."""

    least: float
    most: float


def elapsed() -> float:
    """Return seconds that also count while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK)


class FolderClock:
    """Tells the time of a folder.

    >>> clock = FolderClock(lambda: 1_000.5, 10.0, own=lambda: 3.0)
    >>> clock.now()
    Moment(least=1000.5, most=1000.51)

    ``touch`` writes a file, and returns the time that it got, or None; a reading is used for ``interval`` seconds.
    ``own`` is a clock that is never set.
    """

    def __init__(self, touch: Callable[[], float | None], interval: float, own: Callable[[], float] = elapsed) -> None:
        self._touch = touch
        self._interval = interval
        self._own = own
        self._reading: tuple[float, float, float] | None = None
        self._read_at: float | None = None

    def now(self) -> Moment:
        """Return the time; it is read from the folder if the last reading is too old."""
        if self._read_at is None or self._own() - self._read_at > self._interval:
            before = self._own()
            found = self._touch()
            self._read_at = self._own()
            self._reading = None if found is None else (found, before, self._read_at)
        if self._reading is None:
            # The folder cannot be written.
            return Moment(time.time() - SKEW_SECONDS, time.time() + SKEW_SECONDS)
        found, before, after = self._reading
        tick, now = _COARSE_TICK_SECONDS if found == int(found) else _TICK_SECONDS, self._own()
        return Moment(found + (now - after) * (1 - _DRIFT), found + tick + (now - before) * (1 + _DRIFT))
