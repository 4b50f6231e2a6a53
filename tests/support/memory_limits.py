"""The limits of a cluster in memory, instead of in a Redis server."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from lookupcache.store.redis_limits import Times


class MemoryLimits:
    """Grants what the server grants to its only worker; counts the times and the leases."""

    def __init__(self) -> None:
        self.times = self.granted = 0
        self.leases: set[bytes] = set()
        self._lock = threading.Lock()

    def open(self, url: str, timeout: float, source: str) -> MemoryLimits:
        """Return these limits, for whatever source."""
        return self

    def take_times(self, calls: int, rate: float, horizon: float, member: bytes) -> Times:
        """Return times at once: the rates of the tests are above what they call."""
        with self._lock:
            self.times += calls
        return Times(calls, 0.0, 0.0, 1)

    def take_leases(
        self,
        wanted: Sequence[bytes],
        capacity: int,
        seconds: float,
        member: bytes,
        ended: Sequence[bytes] = (),
        held: Sequence[bytes] = (),
    ) -> tuple[int, int]:
        """End leases and take new ones, as many as are free."""
        with self._lock:
            self.leases -= set(ended)
            names = wanted[: max(capacity - len(self.leases), 0)]
            self.leases |= set(names)
            self.granted += len(names)
            return len(names), 1

    def close(self) -> None:
        """Do nothing."""
