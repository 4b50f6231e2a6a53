"""Chooses the lookup for a plan's cache strategy: one that caches part of the table, or the full table."""

from __future__ import annotations

import time

from lookupcache.worker.full_cache import FullCacheLookup
from lookupcache.worker.partial_cache import Clock, PartialCacheLookup
from lookupcache.worker.source import Source


def lookup_of(source: Source, clock: Clock = time.monotonic) -> PartialCacheLookup:
    """Return the lookup for the plan's cache strategy, scope and store.

    With scope host, the clock is by default the one that all processes of the machine share.
    """
    plan = source.plan
    is_full = plan.config.cache == "ALL"
    has_store = False
    if plan.config.store is not None and not plan.never:
        from lookupcache.worker.store_source import StoredSource, limited, may_use_store

        has_store = may_use_store(source)
        source = source if has_store else limited(source)
    if plan.config.is_host_scope and not plan.never:
        # A worker imports these modules only if it uses them.
        from lookupcache.worker.host_lookup import HostCacheLookup
        from lookupcache.worker.host_scope import host_cache_of
        from lookupcache.worker.host_table import HostFullCacheLookup

        host = host_cache_of(source, None if clock is time.monotonic else clock)
        if host is not None and has_store:
            return HostCacheLookup(StoredSource(source, host.clock), host)
        if host is not None:
            return HostFullCacheLookup(source, host) if is_full else HostCacheLookup(source, host)
    if has_store:
        return PartialCacheLookup(StoredSource(source, clock), clock)
    return FullCacheLookup(source, clock) if is_full else PartialCacheLookup(source, clock)
