"""`AnswerTime`: how long to wait for an answer of a store, which may be busy or may hang."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from lookupcache.config import LookupConfig

BUSY_SECONDS = 60.0
"""How long after its start, or after a slow answer, a store may have a long queue."""

_MOST_SECONDS = 30.0


def most_seconds(config: LookupConfig) -> float:
    """Return how long an answer of a store with a queue may take, in seconds.

    >>> most_seconds(LookupConfig()), most_seconds(LookupConfig(timeout=3.0))
    (30.0, 0.5)
    """
    return max(config.store_timeout, min(config.timeout / 6, _MOST_SECONDS))


class AnswerTime:
    """How long to wait for the next answer: long while the store may have a queue, else briefly.

    All workers of a cluster that starts ask the store at once, and a store with a queue looks like one that hangs.
    So an answer may take ``most`` seconds in the first minute, and for a minute after each slow answer. Once none came
    within that time, the store hangs: an answer may take ``least`` seconds, until slow ones come again.

    >>> time = AnswerTime(0.2, 30.0)
    >>> before = time.limit()
    >>> time.ran_out()
    >>> before, time.limit()
    (30.0, 0.2)
    """

    def __init__(self, least: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._least, self._most = least, most
        self._clock = clock
        self._busy_until: float | None = None

    def limit(self) -> float:
        """Return how long the next answer may take, in seconds; the first minute begins with the first call."""
        if self._busy_until is None:
            self._busy_until = self._clock() + BUSY_SECONDS
        return self._most if self._clock() < self._busy_until else self._least

    def answered(self, seconds: float) -> None:
        """Note how long an answer took."""
        if seconds > self._least / 2:
            self._busy_until = self._clock() + BUSY_SECONDS

    def ran_out(self) -> None:
        """Note that there was no answer in time."""
        self._busy_until = -math.inf
