"""Compares a lookup join with what is written by hand today, over a real PostgreSQL: `python -m bench.alternatives`.

All of them join the same left rows, whose keys are skewed, with the same table, and give the same rows, which is
checked. In one run, alternately:

- the lookup join, as the first job of a machine and as a second one that finds the first one's cache,
- `mapPartitions` with a dict, which requests one key after the other,
- `mapInArrow` with a dict, which requests the new keys of each batch at once,
- Spark's own join, after the table has been read in full.

The server runs on the same machine, so that a request takes as little time as it can: the more a network adds, the
more each request counts, which are shown beside the seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench import databases
from bench.session import session
from lookupcache.spark.join import LookupJoin
from lookupcache.table import LookupTable

FOUND = ("name", "age")
RESULT = "id BIGINT, v BIGINT, name STRING, age INT"
QUERY = f"SELECT id, {', '.join(FOUND)} FROM t WHERE id"


@dataclass
class Run:
    """One run of a variant: its seconds, the requests that it sent and the keys in them, and a sum of its rows."""

    seconds: float
    requests: int
    keys: int
    checksum: Any


Variant = Callable[[], Run]


def left_side(spark: Any, rows: int, keys: int, tasks: int) -> Any:
    """Return left rows with a key and a number; a tenth of the keys has about half of the rows."""
    share = "(xxhash64(id) & 1048575) / 1048576D"
    return spark.range(0, rows, 1, tasks).selectExpr(
        f"CAST(floor({keys} * pow({share}, 3.3)) AS BIGINT) AS id", "id AS v"
    )


def run(joined: Any, counts: Callable[[], tuple[int, int]]) -> Run:
    """Run a join once: its rows are added up, which reads all columns."""
    before = counts()
    started = time.perf_counter()
    [row] = joined.selectExpr("count(*)", "sum(xxhash64(id, v, name, age) % 1000003)").collect()
    seconds = time.perf_counter() - started
    requests, keys = (after - first for after, first in zip(counts(), before, strict=True))
    return Run(seconds, requests, keys, tuple(row))


class LookupJoins:
    """The lookup join; each pair of runs shares a folder that the first one finds empty."""

    def __init__(self, spark: Any, left: Any, url: str, folder: Path) -> None:
        self.left = left
        self.url = url
        self.folder = folder
        self.number = 0

    def first(self) -> Run:
        """Run with an empty cache."""
        self.number += 1
        return self.second()

    def second(self) -> Run:
        """Run with the cache that the last run has left."""
        path = str(self.folder / str(self.number))
        options = {"connector": "sql", "url": self.url, "table": "t", "lookup.cache": "LRU", "lookup.cache.path": path}
        table = LookupTable("t", databases.SCHEMA, options)
        select = ["left.id", "left.v", *(f"t.{name}" for name in FOUND)]
        join = LookupJoin(self.left, table, ["id"], "left", select)
        return run(join.df, lambda: (join.metrics().calls, join.metrics().requested_keys))


class ByHand:
    """Functions for `mapPartitions` and `mapInArrow`, with a dict in each task."""

    def __init__(self, spark: Any, left: Any, url: str) -> None:
        self.spark = spark
        self.left = left
        self.url = url
        self.requests = spark.sparkContext.accumulator(0)
        self.keys = spark.sparkContext.accumulator(0)

    def counts(self) -> tuple[int, int]:
        """Return the requests so far, and the keys in them."""
        return self.requests.value, self.keys.value

    def key_by_key(self) -> Run:
        """Run `mapPartitions` with a request per key that the task has not seen."""
        url, requests = self.url, self.requests

        def enrich(rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
            import psycopg

            known: dict[int, tuple[Any, ...]] = {}
            with psycopg.connect(url, autocommit=True) as connection:
                for row in rows:
                    if row.id not in known:
                        found = connection.execute(f"{QUERY} = %s", [row.id], prepare=True).fetchone()
                        known[row.id] = (None, None) if found is None else found[1:]
                        requests.add(1)
                    yield (row.id, row.v, *known[row.id])

        joined = self.spark.createDataFrame(self.left.rdd.mapPartitions(enrich), RESULT)
        return run(joined, lambda: (self.requests.value, self.requests.value))

    def batch_by_batch(self) -> Run:
        """Run `mapInArrow` with a request for the keys of each batch that the task has not seen."""
        url, requests, keys = self.url, self.requests, self.keys

        def enrich(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import psycopg

            known: dict[int, tuple[Any, ...]] = {}
            with psycopg.connect(url, autocommit=True) as connection:
                for batch in batches:
                    wanted = batch.column("id").to_pylist()
                    new = list({key for key in wanted if key not in known})
                    if new:
                        answer = connection.execute(f"{QUERY} = ANY(%s)", [new], prepare=True).fetchall()
                        known.update(dict.fromkeys(new, (None, None)))
                        known.update({row[0]: row[1:] for row in answer})
                        requests.add(1)
                        keys.add(len(new))
                    found = [known[key] for key in wanted]
                    columns = [
                        pa.array([row[0] for row in found], pa.string()),
                        pa.array([row[1] for row in found], pa.int32()),
                    ]
                    yield pa.RecordBatch.from_arrays([*batch.columns, *columns], ["id", "v", *FOUND])

        return run(self.left.mapInArrow(enrich, RESULT), self.counts)


def whole_table(spark: Any, left: Any, url: str, rows: int) -> Variant:
    """Return a run of Spark's own join with the whole table, which is read again each time."""

    def join() -> Run:
        reader = spark.read.format("lookupcache").schema(f"id BIGINT, {FOUND[0]} STRING, {FOUND[1]} INT")
        right = reader.options(connector="sql", url=url, table="t").load()
        taken = run(left.join(right, "id", "left").select("id", "v", *FOUND), lambda: (0, 0))
        return Run(taken.seconds, 1, rows, taken.checksum)

    return join


def measure(variants: dict[str, Variant], rounds: int, progress: Console) -> dict[str, list[Run]]:
    """Run the variants alternately, after one round to warm up; raises ValueError if their rows differ."""
    runs: dict[str, list[Run]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        done = {name: variant() for name, variant in variants.items()}
        if len({one.checksum for one in done.values()}) > 1:
            raise ValueError(
                f"The variants give different rows: {[(name, one.checksum) for name, one in done.items()]}"
            )
        if number:
            for name, one in done.items():
                runs[name].append(one)
        progress.print(f"  {number}/{rounds}", style="dim")
    return runs


def show(runs: dict[str, list[Run]], console: Console) -> None:
    """Print medians, and how many times as long as the first variant each takes."""
    table = Table(title="the same left join with a table in PostgreSQL")
    for column in ("", "seconds", "times as long", "requests", "keys requested"):
        table.add_column(column, justify="right" if column else "left")
    first = next(iter(runs.values()))
    for name, taken in runs.items():
        seconds = statistics.median(one.seconds for one in taken)
        ratio = statistics.median(one.seconds / base.seconds for one, base in zip(taken, first, strict=True))
        table.add_row(name, f"{seconds:.2f}", f"{ratio:.2f}", f"{taken[-1].requests:,}", f"{taken[-1].keys:,}")
    console.print(table)


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Left rows.")
@click.option("--keys", default=100_000, show_default=True, help="Keys that the left rows are drawn from.")
@click.option("--table-rows", default=1_000_000, show_default=True, help="Rows of the table.")
@click.option("--tasks", default=8, show_default=True, help="Tasks of each job.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each variant.")
@click.option("--cores", default=2, show_default=True, help="Number of cores of the local Spark.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(rows: int, keys: int, table_rows: int, tasks: int, rounds: int, cores: int, out: Path) -> None:
    """Measure, print a table, and write alternatives.json."""
    # The server is started by a helper of the tests.
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    from servers import PostgresServer

    console = Console()
    console.width = max(console.width, 110)
    server = PostgresServer().start()
    try:
        databases.postgres(server.url, table_rows)
        spark = session(cores, {})
        left = left_side(spark, rows, keys, tasks)
        by_hand = ByHand(spark, left, server.url)
        with tempfile.TemporaryDirectory() as folder:
            joins = LookupJoins(spark, left, server.url, Path(folder))
            runs = measure(
                {
                    "lookup join, first job": joins.first,
                    "lookup join, second job": joins.second,
                    "mapPartitions, a request per key": by_hand.key_by_key,
                    "mapInArrow, a request per batch": by_hand.batch_by_batch,
                    "whole table, Spark's own join": whole_table(spark, left, server.url, table_rows),
                },
                rounds,
                console,
            )
        spark.stop()
    finally:
        server.remove()
    out.mkdir(parents=True, exist_ok=True)
    document = {name: [vars(one) for one in taken] for name, taken in runs.items()}
    (out / "alternatives.json").write_text(json.dumps(document, indent=1))
    show(runs, console)


if __name__ == "__main__":
    main()
