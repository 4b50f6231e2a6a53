"""A fetch of a batch of keys: through a connector, and by a driver alone; timed in turn, and watched on the wire."""

from __future__ import annotations

import statistics
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from bench.source import PAYLOAD
from bench.wire import counted
from lookupcache.connector import Connector, LookupRequest
from lookupcache.expr import Call, Column, Literal

MORE = tuple(f"more{number}" for number in range(16))
"""Further columns, of 16 bytes each, that no join wants."""

ONE_COUNTRY = Call("=", (Column("right", "country", pa.string()), Literal("c07", pa.string())))
"""A filter that one row in fifty passes."""

Bare = Callable[[pa.RecordBatch], pa.Table]


@dataclass(frozen=True)
class Fetch:
    """One way to hold rows; ``make`` builds the connector for a URL, not opened, ``bare`` are drivers alone."""

    name: str
    url: str
    make: Callable[[str], Connector]
    bare: Mapping[str, Bare]
    columns: tuple[str, ...] = PAYLOAD

    def timed(self, keys: pa.RecordBatch, rounds: int) -> dict[str, float]:
        """Return the median seconds of each way, ours first, all measured in turn; all give the same rows."""
        connector = self.make(self.url)
        connector.open()
        ways = {"lookupcache": lambda keys: connector.lookup(request(self.columns), keys), **self.bare}
        expected = _sorted(ways["lookupcache"](keys))
        for name, way in ways.items():
            assert _sorted(way(keys)).equals(expected), name
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                taken[name].append(_seconds(way, keys))
        connector.close()
        return {name: statistics.median(seconds) for name, seconds in taken.items()}

    def on_the_wire(self, keys: pa.RecordBatch) -> dict[str, dict[str, int]]:
        """Return bytes each way and turns of a batch: whole rows, wanted columns, and wanted rows of these."""
        parts = urllib.parse.urlsplit(self.url)
        with counted(parts.port or 0) as (port, wire):
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
    """Return what a join asks for."""
    return LookupRequest(table="t", key_columns=("id",), columns=columns, filters=filters)


def _requests(connector: Connector, columns: tuple[str, ...]) -> dict[str, LookupRequest]:
    requests = {"all columns": request((*columns, *(name for name in MORE if name in connector.schema.names)))}
    requests["wanted columns"] = request(columns)
    if connector.accept([ONE_COUNTRY]):
        requests["and one row in fifty"] = request(columns, (ONE_COUNTRY,))
    return requests


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by("id").combine_chunks()


def _seconds(way: Bare, keys: pa.RecordBatch) -> float:
    started = time.perf_counter()
    way(keys)
    return time.perf_counter() - started
