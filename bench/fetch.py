"""Fetches a batch of keys through a connector and directly by a driver; measures time and network traffic."""

from __future__ import annotations

import statistics
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from bench.source import PAYLOAD
from bench.wire import count_traffic
from lookupcache.connector import Connector, LookupRequest
from lookupcache.expr import Call, Column, Literal

MORE = tuple(f"more{number}" for number in range(16))
"""Additional columns, of 16 bytes each, that the join does not request."""

ONE_COUNTRY = Call("=", (Column("right", "country", pa.string()), Literal("c07", pa.string())))
"""A filter that keeps one row in fifty."""

Bare = Callable[[pa.RecordBatch], pa.Table]


@dataclass(frozen=True)
class Fetch:
    """One source; ``make`` creates its connector for a URL, ``bare`` contains functions that use only the driver."""

    name: str
    url: str
    make: Callable[[str], Connector]
    bare: Mapping[str, Bare]
    columns: tuple[str, ...] = PAYLOAD

    def measure_times(self, keys: pa.RecordBatch, rounds: int) -> dict[str, float]:
        """Return the median seconds of each variant, lookupcache first; check that all return the same rows."""
        connector = self.make(self.url)
        connector.open()
        variants = {"lookupcache": lambda keys: connector.lookup(request(self.columns), keys), **self.bare}
        expected = _sort_rows(variants["lookupcache"](keys))
        for name, variant in variants.items():
            assert _sort_rows(variant(keys)).equals(expected), name
        taken: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, variant in variants.items():
                taken[name].append(_measure_seconds(variant, keys))
        connector.close()
        return {name: statistics.median(seconds) for name, seconds in taken.items()}

    def measure_traffic(self, keys: pa.RecordBatch) -> dict[str, dict[str, int]]:
        """Return the traffic of a batch: all columns, the requested columns, and these with a pushed filter."""
        parts = urllib.parse.urlsplit(self.url)
        with count_traffic(parts.port or 0) as (port, wire):
            connector = self.make(self.url.replace(f":{parts.port}", f":{port}"))
            connector.open()
            seen = {}
            for name, wanted in _requests(connector, self.columns).items():
                connector.lookup(wanted, keys)
                wire.clear()
                connector.lookup(wanted, keys)
                seen[name] = {"sent": wire.sent, "received": wire.received, "turns": wire.turns}
            connector.close()
        return seen


def request(columns: tuple[str, ...], filters: tuple[Call, ...] = ()) -> LookupRequest:
    """Return the request of a join."""
    return LookupRequest(table="t", key_columns=("id",), columns=columns, filters=filters)


def _requests(connector: Connector, columns: tuple[str, ...]) -> dict[str, LookupRequest]:
    requests = {"all columns": request((*columns, *(name for name in MORE if name in connector.schema.names)))}
    requests["requested columns"] = request(columns)
    if connector.accept([ONE_COUNTRY]):
        requests["with a pushed filter"] = request(columns, (ONE_COUNTRY,))
    return requests


def _sort_rows(table: pa.Table) -> pa.Table:
    return table.sort_by("id").combine_chunks()


def _measure_seconds(variant: Bare, keys: pa.RecordBatch) -> float:
    started = time.perf_counter()
    variant(keys)
    return time.perf_counter() - started
