"""What a lookup join did, counted: `LookupMetrics` is the value, `Tally` collects it in a worker."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LookupMetrics:
    """Counts of one join, as one immutable value; add two for the counts of both.

    - ``rows``: left rows that reached the lookup; ``keys``: distinct keys of each batch, added up.
      Where Spark joins with a whole table (the form ``broadcast``), it counts them by reading the left side once more,
      and does not where that might cost much or is not safe: rows and hits are 0 then.
    - ``hits``: rows whose key was in the cache, or was being asked for by an earlier row.
    - ``misses``: distinct keys of a batch that the cache did not hold, or held too long, and that nobody was asking
      for. Rows with a null key are neither.
    - ``calls``: calls to the source, retries included; ``asked_keys``: keys in them.
    - ``errors``: calls that failed; ``retries``: calls made again after an error; ``miss_retries``: calls made again
      because the source had no row; ``timeouts``: lookups that ``lookup.timeout`` ended; ``refused``: lookups that the
      circuit breaker ended before a call.
    - ``invalidations``: keys that left the cache because the source said that they changed, or could not say so.
    - ``refreshes``: keys fetched anew while their old rows were served; ``stale``: keys whose old rows were served
      because fetching them anew failed, a table that is held whole (ALL) counted as one.
    - ``failed_rows``: left rows marked with an error; ``dead_letters``: left rows written as dead letters.
    - ``fetched_rows``, ``fetched_bytes``: what the source returned, as Arrow, before calc.
    - ``cached_rows``, ``cached_bytes``, ``cached_keys``: what the workers' caches held when last heard of.
    - ``evictions``, ``expirations``: keys that went for want of room, or for their age.
    - ``reloads``, ``reload_failures``: loads of a whole table (ALL) after the first.
    - ``source_seconds``: time spent waiting for the source; ``lookup_seconds``: time spent in the join's
      worker code, that wait included; ``throttled_seconds``: time that calls were held back by ``lookup.rate-limit``.

    >>> (LookupMetrics(rows=10, hits=6, misses=2) + LookupMetrics(rows=5, hits=5)).hit_rate
    0.8461538461538461
    """

    rows: int = 0
    keys: int = 0
    hits: int = 0
    misses: int = 0
    calls: int = 0
    asked_keys: int = 0
    errors: int = 0
    retries: int = 0
    miss_retries: int = 0
    timeouts: int = 0
    refused: int = 0
    fetched_rows: int = 0
    fetched_bytes: int = 0
    cached_rows: int = 0
    cached_bytes: int = 0
    cached_keys: int = 0
    evictions: int = 0
    expirations: int = 0
    invalidations: int = 0
    refreshes: int = 0
    stale: int = 0
    failed_rows: int = 0
    dead_letters: int = 0
    reloads: int = 0
    reload_failures: int = 0
    source_seconds: float = 0.0
    lookup_seconds: float = 0.0
    throttled_seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Hits ÷ (hits + misses); 0 where there were none."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    def __add__(self, other: LookupMetrics) -> LookupMetrics:
        names = [field.name for field in dataclasses.fields(self)]
        return LookupMetrics(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @classmethod
    def of(cls, counts: Mapping[str, float]) -> LookupMetrics:
        """Build the value from counts by name; names that are not counts of ours are passed over."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in counts.items() if name in names})  # type: ignore[arg-type]


_counting = threading.Lock()


def _reset_after_fork() -> None:
    """Replace a lock that a thread of the parent process may hold."""
    global _counting
    _counting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)

HELD = ("cached_rows", "cached_bytes", "cached_keys")
"""Counts that say what is held at a moment; they are not added up over time."""


class Tally(Counter[str]):
    """Running counts of a worker, by the names of `LookupMetrics`; seconds are floats.

    A count belongs to one thread, but for those that only `add` moves.
    """

    def add(self, name: str, amount: float = 1) -> None:
        """Raise a count that several threads move.

        >>> tally = Tally()
        >>> tally.add("calls"), tally.add("throttled_seconds", 0.5), dict(tally)
        (None, None, {'calls': 1, 'throttled_seconds': 0.5})
        """
        with _counting:
            self[name] = self[name] + amount  # type: ignore[assignment]

    def spend(self, name: str, started: float) -> None:
        """Add the seconds that have passed since ``started``, a reading of `time.perf_counter`."""
        self[name] = self[name] + time.perf_counter() - started  # type: ignore[assignment]

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        """Return what was counted after ``before`` was copied from this tally.

        >>> tally = Tally(calls=2)
        >>> before = tally.copy()
        >>> tally["calls"] += 3
        >>> tally.since(before)
        {'calls': 3}
        """
        return {name: value - before.get(name, 0) for name, value in self.items() if value != before.get(name, 0)}
