"""The lookup that a plan's cache strategy asks for: of a part of the table, or of all of it."""

from __future__ import annotations

import time

from lookupcache.worker.full import LoadedLookup
from lookupcache.worker.partial import CachedLookup, Clock, Wanted, given
from lookupcache.worker.source import Source

__all__ = ["CachedLookup", "Clock", "LoadedLookup", "Wanted", "given", "lookup_of"]


def lookup_of(source: Source, clock: Clock = time.monotonic) -> CachedLookup:
    """Return the lookup that the plan's cache strategy asks for."""
    kind = LoadedLookup if source.plan.config.cache == "ALL" else CachedLookup
    return kind(source, clock)
