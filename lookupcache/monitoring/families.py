"""The exported metrics: their names, as Prometheus wants them, and where their values are in `LookupMetrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lookupcache.metrics import LookupMetrics
from lookupcache.monitoring.totals import OTHER, Totals

LABELS = ("table", "join", "query")
"""The labels of every metric; `query` is empty but for the counts that come with a stream's progress."""

_MOST_SOURCE_COUNTS = 32

Values = Mapping[str, float]


@dataclass(frozen=True)
class Family:
    """An exported metric; ``label`` is its additional label, by whose values ``read`` returns the values."""

    name: str
    help: str
    read: Callable[[Totals], Values]
    kind: Literal["counter", "gauge"] = "counter"
    label: str | None = None

    @property
    def samples_name(self) -> str:
        """The name of its values; it has no suffix where `prometheus_client` adds one."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _count(name: str, field: str, help: str) -> Family:
    return Family(f"lookupcache_{name}", help, lambda totals: {"": getattr(totals.metrics, field)})


def _by_tier(name: str, help: str, **fields: Callable[[LookupMetrics], float]) -> Family:
    def read(totals: Totals) -> Values:
        return {tier: value(totals.metrics) for tier, value in fields.items()}

    return Family(f"lookupcache_{name}", help, read, label="tier")


def _gauge(name: str, help: str, value: Callable[[Totals], float]) -> Family:
    return Family(f"lookupcache_{name}", help, lambda totals: {"": value(totals)}, kind="gauge")


def _known(name: str, help: str, value: Callable[[Totals], float]) -> Family:
    """Return a gauge without a value where it would be 0."""
    return Family(f"lookupcache_{name}", help, lambda t: {"": value(t)} if value(t) else {}, kind="gauge")


def _source_counts(totals: Totals) -> Values:
    """Return a connector's counts; names that it makes up without end are added up."""
    counts = totals.metrics.source_counts
    names = list(counts)
    rest = sum(counts[name] for name in names[_MOST_SOURCE_COUNTS:])
    shown = {name: counts[name] for name in names[:_MOST_SOURCE_COUNTS]}
    return shown | ({OTHER: shown.get(OTHER, 0) + rest} if len(names) > _MOST_SOURCE_COUNTS else {})


def _families() -> Iterator[Family]:
    yield _count("rows", "rows", "Left rows that reached the lookup.")
    yield _count("keys", "keys", "Distinct keys per batch, added up.")
    yield _count("hit_rows", "hits", "Left rows whose key was cached, or was already requested.")
    yield _count("misses", "misses", "Distinct keys of a batch that were in no cache of the host.")
    yield _by_tier(
        "hits",
        "Distinct keys of a batch that a cache had, or that were already requested there.",
        worker=lambda m: m.worker_hits,
        host=lambda m: m.host_hits + m.host_waits,
        store=lambda m: m.store_hits + m.store_waits,
    )
    yield _by_tier(
        "waits",
        "Those of lookupcache_hits_total that another process was requesting.",
        host=lambda m: m.host_waits,
        store=lambda m: m.store_waits,
    )
    yield _count("requested_keys", "requested_keys", "Keys in calls to the source.")
    yield _count("source_calls", "calls", "Calls to the source, including retries.")
    yield _count("source_seconds", "source_seconds", "Time spent waiting for the source.")
    yield _count("lookup_seconds", "lookup_seconds", "Time spent in the join's worker code, including that wait.")
    yield _count("throttled_seconds", "throttled_seconds", "Time that calls were delayed by lookup.rate-limit.")
    yield _count(
        "cluster_limit_failures", "cluster_limit_failures", "Failures to count calls for the rate limit of the cluster."
    )
    yield _count("errors", "errors", "Calls to the source that failed.")
    yield _count("retries", "retries", "Calls repeated after an error.")
    yield _count("miss_retries", "miss_retries", "Calls repeated because the source had no row.")
    yield _count("timeouts", "timeouts", "Lookups that exceeded lookup.timeout.")
    yield _count("refused", "refused", "Lookups that the circuit breaker rejected without a call.")
    yield Family(
        "lookupcache_failed_stages",
        "Stages of Spark that an error of a lookup has ended, and their jobs with them.",
        lambda totals: {"": totals.failed_stages},
    )
    yield _count("failed_rows", "failed_rows", "Left rows marked with an error.")
    yield _count("dead_letters", "dead_letters", "Left rows written as dead letters.")
    yield _count("fetched_rows", "fetched_rows", "Rows that the source returned.")
    yield _count("fetched_bytes", "fetched_bytes", "Bytes that the source returned, as Arrow.")
    yield _count("evictions", "evictions", "Keys removed because a worker's own cache was full.")
    yield _count(
        "host_evictions", "host_evictions", "Keys removed because the cache that a host's workers share was full."
    )
    yield _count("expirations", "expirations", "Keys removed because of their age.")
    yield _count("invalidations", "invalidations", "Keys removed because the source reported a change.")
    yield _count("refreshes", "refreshes", "Keys fetched again while their old rows were served.")
    yield _count("stale", "stale", "Keys whose old rows were served because fetching them again failed.")
    yield _count("reloads", "reloads", "Loads of a full table after the first.")
    yield _count("reload_failures", "reload_failures", "Loads of a full table that failed.")
    yield _by_tier(
        "cache_failures",
        "Failures to read or write a shared cache, which lookups then do without.",
        host=lambda m: m.host_failures,
        store=lambda m: m.store_failures,
    )
    yield _by_tier(
        "cache_dropped",
        "Files of the host's cache and entries of the store that could not be read.",
        host=lambda m: m.host_dropped_files,
        store=lambda m: m.store_dropped,
    )
    yield _by_tier(
        "unstored_keys",
        "Keys that a shared cache could not store.",
        host=lambda m: m.host_unstored,
        store=lambda m: m.store_unstored,
    )
    yield Family("lookupcache_connector_counts", "What the connector counts itself.", _source_counts, label="count")
    yield _gauge("cached_rows", "Rows in the workers' caches at their last reports.", lambda t: t.metrics.cached_rows)
    yield _gauge("cached_keys", "Keys in the workers' caches at their last reports.", lambda t: t.metrics.cached_keys)
    yield _gauge("cached_bytes", "Size of the workers' caches at their last reports.", lambda t: t.metrics.cached_bytes)
    yield _gauge(
        "waiting_rows", "Left rows that wait for a stream's table to be loaded.", lambda t: t.metrics.waiting_rows
    )
    yield _known("cache_limit_rows", "The limit of each cache in rows, if any.", lambda t: t.limit_rows)
    yield _known("cache_limit_bytes", "The limit of each cache in bytes, if any.", lambda t: t.limit_bytes)
    yield _known("workers", "Workers that have reported a cache with content, if known.", lambda t: t.workers)
    yield _known("caches", "Caches with content: one per worker or, where they share it, per host.", lambda t: t.caches)
    yield _gauge("joins", "Joins that the driver still refers to.", lambda t: t.joins)
    yield _known(
        "last_report_timestamp_seconds", "When a worker last reported, in seconds since 1970.", lambda t: t.reported
    )


FAMILIES = tuple(_families())
