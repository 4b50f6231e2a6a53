"""Metrics of lookup joins: `LookupMetrics` is the immutable value, `Counters` collects the counts in a worker."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

SOURCE = "source."
"""The start of the names of a connector's own counts among those of a worker."""


_TIERS = {
    "Cached": ("cached",), "Worker's cache": ("evictions", "expirations"), "Host's cache": ("host",),
    "Store": ("store",),
}  # fmt: skip
_OF_SOURCE = (
    "calls", "requested", "errors", "retries", "miss_retries", "timeouts", "refused", "fetched", "source", "throttled",
    "cluster",
)  # fmt: skip


def _tier_of(name: str) -> str:
    """Return where a notebook shows a count."""
    for tier, starts in {**_TIERS, "Source": _OF_SOURCE}.items():
        if name.startswith(starts):
            return tier
    return "Join"


@dataclass(frozen=True, kw_only=True, repr=False)
class LookupMetrics:
    """Metrics of one join, as one immutable value; the sum of two has the metrics of both.

    - ``rows``: left rows that reached the lookup; ``keys``: distinct keys per batch, added up.
      In the form ``broadcast``, where Spark joins with the full table, rows are counted by reading the left side once
      more. Where that might be expensive or is not safe, it is not done, and rows and hits are 0.
    - ``hits``: rows whose key was in the cache, or was already requested for an earlier row.
    - ``misses``: distinct keys of a batch that were not in the cache, or had expired, and were not already requested.
      Rows with a null key are neither hits nor misses.
    - ``host_hits``: distinct keys of a batch that were not in the worker's cache, but in the one that the workers of a
      host share. ``host_waits``: those that another worker was requesting. Both count as hits. The others of ``keys``
      are ``misses``, or ``worker_hits``, which were in the worker's own cache. (With `cached`, the processes of a host
      are its workers.)
    - ``host_failures``: failures to read or write the shared cache, which lookups then do without.
      ``host_dropped_files``: its files that could not be used. ``host_unstored``: keys for which it had no space.
      ``host_evictions``: keys that this worker removed from it because it was full.
    - ``store_hits``: keys among the misses that were not requested from the source, because ``lookup.cache.store`` had
      them; ``store_waits``: those that another process was requesting. ``store_failures``: failures to read or write
      the store, which lookups then do without. ``store_dropped``: its entries that could not be read.
      ``store_unstored``: keys whose rows could not be stored.
    - ``cluster_limit_failures``: failures of the server that counts a rate limit of the cluster, which calls then do
      without.
    - ``calls``: calls to the source, including retries; ``requested_keys``: keys in them.
    - ``errors``: calls that failed. ``retries``: calls repeated after an error. ``miss_retries``: calls repeated
      because the source had no row; ``timeouts``: lookups that exceeded ``lookup.timeout``; ``refused``: lookups that
      the circuit breaker rejected without a call.
    - ``invalidations``: keys removed from the cache because the source reported that they may have changed.
    - ``refreshes``: keys fetched again while their old rows were served. ``stale``: keys whose old rows were served
      because fetching them again failed; a full table (ALL) counts as one key.
    - ``failed_rows``: left rows marked with an error; ``dead_letters``: left rows written as dead letters.
    - ``fetched_rows``, ``fetched_bytes``: what the source returned, as Arrow, before calc.
    - ``cached_rows``, ``cached_bytes``, ``cached_keys``: the content of the workers' caches at their last report. Of a
      cache that the workers of a host share, each reports its part of all that was stored there.
    - ``waiting_rows``: left rows that wait for a table of latest values to be loaded (``LoadPhase``).
    - ``evictions``, ``expirations``: keys removed from the workers' own caches because these were full, or because of
      the age of the keys.
    - ``reloads``, ``reload_failures``: loads of a full table (ALL) after the first, and those that failed.
    - ``source_seconds``: time spent waiting for the source; ``lookup_seconds``: time spent in the join's
      worker code, including that wait. ``throttled_seconds``: time that calls were delayed by ``lookup.rate-limit``.
    - ``source_counts``: what the connector counts itself, by name, such as the tokens of a model; its page says what.

    >>> (LookupMetrics(rows=10, hits=6, misses=2) + LookupMetrics(rows=5, hits=5)).hit_rate
    0.8461538461538461
    """

    rows: int = 0
    keys: int = 0
    hits: int = 0
    misses: int = 0
    calls: int = 0
    requested_keys: int = 0
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
    waiting_rows: int = 0
    evictions: int = 0
    expirations: int = 0
    invalidations: int = 0
    refreshes: int = 0
    stale: int = 0
    host_hits: int = 0
    host_waits: int = 0
    host_failures: int = 0
    host_dropped_files: int = 0
    host_unstored: int = 0
    host_evictions: int = 0
    store_hits: int = 0
    store_waits: int = 0
    store_failures: int = 0
    store_dropped: int = 0
    store_unstored: int = 0
    cluster_limit_failures: int = 0
    failed_rows: int = 0
    dead_letters: int = 0
    reloads: int = 0
    reload_failures: int = 0
    source_seconds: float = 0.0
    lookup_seconds: float = 0.0
    throttled_seconds: float = 0.0
    source_counts: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def hit_rate(self) -> float:
        """Hits ÷ (hits + misses); 0 if there were neither."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    @property
    def worker_hits(self) -> int:
        """Distinct keys of a batch that were in the worker's own cache, or that it was requesting already."""
        return max(self.keys - self.misses - self.host_hits - self.host_waits, 0)

    def __repr__(self) -> str:
        """Return the counts that are not 0, as an expression.

        >>> LookupMetrics(rows=10, hits=6)
        LookupMetrics(rows=10, hits=6)
        """
        counted = ", ".join(f"{name}={value!r}" for name, value in dataclasses.asdict(self).items() if value)
        return f"LookupMetrics({counted})"

    def _repr_html_(self) -> str:
        from lookupcache.notebook import as_html  # Workers, which count, show nothing.

        parts: dict[str, list[tuple[str, str]]] = {}
        for name, value in dataclasses.asdict(self).items():
            if value and name != "source_counts":
                shown = f"{value:,.3g} s" if isinstance(value, float) else f"{value:,}"
                parts.setdefault(_tier_of(name), []).append((name.replace("_", " "), shown))
        if self.hits + self.misses:
            parts.setdefault("Join", []).append(("hit rate", f"{self.hit_rate:.1%}"))
        for name, value in self.source_counts.items():
            parts.setdefault("Source", []).append((name, f"{value:,}"))
        parts = parts or {"Join": [("", "Nothing has been counted yet.")]}
        return as_html("Lookup metrics", {tier: parts[tier] for tier in ("Join", *_TIERS, "Source") if tier in parts})

    def __add__(self, other: LookupMetrics) -> LookupMetrics:
        names = [field.name for field in dataclasses.fields(self) if field.name != "source_counts"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return LookupMetrics(**sums, source_counts=_sum_by_name(self.source_counts, other.source_counts))

    @classmethod
    def of(cls, counts: Mapping[str, float]) -> LookupMetrics:
        """Build the value from counts by name; unknown names are ignored."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in nest_source_counts(counts).items() if name in names})


def nest_source_counts(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return counts with those of the connector together, under ``source_counts``.

    >>> nest_source_counts({"calls": 2, "source.tokens": 7})
    {'calls': 2, 'source_counts': {'tokens': 7}}
    """
    own = {name.removeprefix(SOURCE): value for name, value in counts.items() if name.startswith(SOURCE)}
    rest = {name: value for name, value in counts.items() if not name.startswith(SOURCE)}
    return {**rest, "source_counts": _sum_by_name(rest.get("source_counts") or {}, own)}


def _sum_by_name(some: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    return {name: some.get(name, 0) + others.get(name, 0) for name in {**some, **others}}


# Reentrant: a coroutine that is garbage collected may count in a thread that is counting.
_add_lock = threading.RLock()


def _reset_after_fork() -> None:
    """Replace a lock that a thread of the parent process may hold."""
    global _add_lock
    _add_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)

GAUGES = ("cached_rows", "cached_bytes", "cached_keys", "waiting_rows")
"""Counts of what there is now, as the content of a cache; the last report of a worker replaces earlier ones."""


_part: ContextVar[Counters | None] = ContextVar("part", default=None)
"""Where the counts of a join are counted as well that shares its lookup with another of the same chain."""


@contextmanager
def counting_into(part: Counters | None) -> Iterator[None]:
    """Count all that `SharedCounters` count in this context in ``part`` as well, or with None nowhere else."""
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)


def counting_part() -> Counters | None:
    """Return where this context counts as well."""
    return _part.get()


def counting_context() -> Context | None:
    """Return the context in which calls are to be made, None where any will do."""
    return None if _part.get() is None else copy_context()


class Counters(Counter[str]):
    """Running counts of a worker, by the names of `LookupMetrics`; seconds are floats.

    Each count is changed by one thread only, except for those that are always changed through `add`.
    """

    def add(self, name: str, amount: float = 1) -> None:
        """Increase a count that several threads change.

        >>> counters = Counters()
        >>> counters.add("calls"), counters.add("throttled_seconds", 0.5), dict(counters)
        (None, None, {'calls': 1, 'throttled_seconds': 0.5})
        """
        with _add_lock:
            self[name] = self[name] + amount  # type: ignore[assignment]

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds that a block takes, also if it fails."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self[name] = self[name] + time.perf_counter() - started  # type: ignore[assignment]

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        """Return the counts since ``before`` was copied from these counters.

        >>> counters = Counters(calls=2)
        >>> before = counters.copy()
        >>> counters["calls"] += 3
        >>> counters.since(before)
        {'calls': 3}
        """
        counts = dict(self)  # a copy in one step: another thread may add a name while these are compared
        return {name: value - before.get(name, 0) for name, value in counts.items() if value != before.get(name, 0)}


class SharedCounters(Counters):
    """The counts of a lookup that several joins may share; what `counting_into` a part has counted is in both.

    >>> counters, part = SharedCounters(), Counters()
    >>> counters["rows"] += 2
    >>> with counting_into(part):
    ...     counters["rows"] += 3
    >>> counters["rows"], part["rows"]
    (5, 3)
    """

    def __setitem__(self, name: str, value: float) -> None:
        """Set a count."""
        part = _part.get()
        if part is not None:
            part[name] += value - self[name]  # type: ignore[assignment]
        super().__setitem__(name, value)  # type: ignore[assignment]
