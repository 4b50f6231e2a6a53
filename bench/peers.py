"""Compares a lookup join with what else people use, over a real PostgreSQL: `python -m bench.peers`.

All of them join the same left rows, whose keys are skewed, with the same table. Sums show that their rows are the same.
In one run, alternately:

- the lookup join, as the first job of a machine and as a second one that finds the first one's cache,
- `mapPartitions` with a dict, which requests one key after the other,
- `mapInArrow` with a dict, which requests the new keys of each batch at once,
- a UDF with a cache of cachetools, which requests one key after the other,
- Beam's Enrichment on its local runner, where `--beam` names a Python that has Beam, psycopg and pyarrow; it gets fewer
  rows (`--beam-rows`), so compare the rows per second,
- Spark's own join, after the table has been read in full,
- Spark's read of the table by JDBC with a broadcast join, where `--jdbc` is the jar of PostgreSQL's JDBC driver,
- Flink's lookup join with its LRU cache on its local runner, with as many slots as Spark has cores, where `--flink`
  is the class path of Flink 2's jars and of PostgreSQL's JDBC driver. Flink's own JDBC connector is not among its jars:
  FlinkLookup.java requests a key at a time, as that connector does.

Last, the lookup join and Flink's are compared with a table whose rows are computed in the process.

The server runs on the same machine, so that a request takes as little time as it can: the more a network adds, the
more each request counts, which are shown beside the seconds.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import click
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.table import Table

from bench import databases
from bench.session import session
from lookupcache.spark.join import LookupJoin
from lookupcache.table import LookupTable

FOUND = ("name", "age")
RESULT = "id BIGINT, v BIGINT, name STRING, age INT"
QUERY = f"SELECT id, {', '.join(FOUND)} FROM t WHERE id"
SUMS = ("count(*)", "sum(id % 1009 * (coalesce(age, -1) + 2))", "sum(v % 1009 * length(coalesce(name, '')))")
"""What is added up of a join's rows; bench/beam_enrichment.py adds up the same."""


@dataclass
class Run:
    """One run of a variant: its seconds, the requests that it sent, the keys in them, and sums of its rows.

    The first sum is the number of rows.
    """

    seconds: float
    requests: int
    keys: int
    sums: tuple[int, ...]


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
    [row] = joined.selectExpr(*SUMS).collect()
    seconds = time.perf_counter() - started
    requests, keys = (after - first for after, first in zip(counts(), before, strict=True))
    return Run(seconds, requests, keys, tuple(row))


class LookupJoins:
    """The lookup join; each pair of runs shares a folder that the first one finds empty."""

    def __init__(self, left: Any, url: str, table_rows: int, folder: Path) -> None:
        self.left = left
        self.url = url
        self.table_rows = table_rows
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
        return self._join(LookupTable("t", databases.SCHEMA, options))

    def computed(self) -> Run:
        """Run with an empty cache and a function that computes the rows."""
        self.number += 1
        path, rows = str(self.folder / str(self.number)), self.table_rows

        def people(ids: list[int]) -> list[Any]:
            return [(n, f"name {n % 1000}", n % 80) if n < rows else None for n in ids]

        options = {"lookup.cache": "LRU", "lookup.cache.path": path}
        schema = f"id BIGINT, {FOUND[0]} STRING, {FOUND[1]} INT"
        return self._join(
            LookupTable.from_function("t", schema, key=["id"], function=people, batch=True, options=options)
        )

    def _join(self, table: LookupTable) -> Run:
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

    def in_a_udf(self) -> Run:
        """Run a UDF that keeps the rows of its keys in a cache of cachetools, in each worker."""
        url, requests = self.url, self.requests

        @F.udf("name STRING, age INT")
        def person(key: int) -> tuple[Any, ...]:
            import cachetools
            import psycopg

            state = vars(sys)  # A UDF is unpickled for each task; its worker outlives the task.
            if "people_of_bench" not in state:
                state["people_of_bench"] = cachetools.LRUCache(1_000_000), psycopg.connect(url, autocommit=True)
            known, connection = state["people_of_bench"]
            if key not in known:
                found = connection.execute(f"{QUERY} = %s", [key], prepare=True).fetchone()
                known[key] = (None, None) if found is None else found[1:]
                requests.add(1)
            row: tuple[Any, ...] = known[key]
            return row

        joined = self.left.select("id", "v", person("id").alias("p")).select("id", "v", "p.name", "p.age")
        return run(joined, lambda: (self.requests.value, self.requests.value))


def beam_variant(python: str, left: Any, url: str, folder: Path, rows: int) -> tuple[Variant, Run]:
    """Return a run of Beam's Enrichment with the first left rows, and Spark's own sums of them."""
    import pyarrow.parquet as pq

    some = left.where(f"v < {rows}")
    pq.write_table(some.toArrow(), folder / "left.parquet")

    def enrich() -> Run:
        counts = folder / "requests"
        counts.unlink(missing_ok=True)
        program = Path(__file__).with_name("beam_enrichment.py")
        command = [python, program, folder / "left.parquet", url, counts]
        done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
        said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("sums ", "seconds ")))
        keys = [int(line) for line in counts.read_text().split()]
        return Run(float(said["seconds"]), len(keys), sum(keys), tuple(json.loads(said["sums"])))

    reader = spark_reader(left.sparkSession, url)
    return enrich, run(some.join(reader, "id", "left").select("id", "v", *FOUND), lambda: (0, 0))


def flink_variant(program: list[str], left: Path, table_rows: int, url: str, cores: int) -> Variant:
    """Return a run of Flink's lookup join; rows are computed where the URL is empty."""

    def join() -> Run:
        command = [*program, str(left), str(table_rows), jdbc_url(url), str(cores)]
        done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
        said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        requests = int(said["requests"])
        return Run(float(said["seconds"]), requests, requests, tuple(json.loads(said["sums"])))

    return join


def compile_flink(class_path: str, folder: Path) -> list[str]:
    """Compile FlinkLookup.java; return the command that runs it."""
    program = Path(__file__).with_name("FlinkLookup.java")
    subprocess.run(["javac", "-d", folder, "-cp", class_path, program], check=True)
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util")]
    return ["java", "-Xmx4g", *opened, "-cp", os.pathsep.join([str(folder), class_path]), program.stem]


def jdbc_url(url: str) -> str:
    """Return the address of PostgreSQL for JDBC; empty stays empty.

    >>> jdbc_url("postgresql://me:word@127.0.0.1:5432/shop")
    'jdbc:postgresql://127.0.0.1:5432/shop?user=me&password=word'
    """
    if not url:
        return ""
    parts = urlsplit(url)
    login = urlencode({"user": parts.username or "", "password": parts.password or ""})
    return f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}?{login}"


def spark_reader(spark: Any, url: str) -> Any:
    """Return the whole table, read in full."""
    reader = spark.read.format("lookupcache").schema(f"id BIGINT, {FOUND[0]} STRING, {FOUND[1]} INT")
    return reader.options(connector="sql", url=url, table="t").load()


def whole_table(spark: Any, left: Any, url: str, rows: int) -> Variant:
    """Return a run of Spark's own join with the whole table, which is read again each time."""

    def join() -> Run:
        right = spark_reader(spark, url)
        taken = run(left.join(right, "id", "left").select("id", "v", *FOUND), lambda: (0, 0))
        return replace(taken, requests=1, keys=rows)

    return join


def jdbc_read(spark: Any, left: Any, url: str, rows: int) -> Variant:
    """Return a run of Spark's broadcast join with the table as its JDBC source reads it."""

    def join() -> Run:
        reader = spark.read.format("jdbc").option("driver", "org.postgresql.Driver")
        right = reader.option("url", jdbc_url(url)).option("dbtable", "t").load().select("id", *FOUND)
        joined = left.join(F.broadcast(right), "id", "left").select("id", "v", *FOUND)
        return replace(run(joined, lambda: (0, 0)), requests=1, keys=rows)

    return join


def measure(variants: dict[str, Variant], of_beam: Run | None, rounds: int, progress: Console) -> dict[str, list[Run]]:
    """Run the variants alternately, after one round to warm up; raises ValueError if their rows differ."""
    runs: dict[str, list[Run]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        done = {name: variant() for name, variant in variants.items()}
        whole = done[SPARK].sums
        expected = {name: of_beam.sums if name == BEAM and of_beam else whole for name in done}
        wrong = {name: one.sums for name, one in done.items() if one.sums != expected[name]}
        if wrong:
            raise ValueError(f"These variants give other rows than Spark's own join: {wrong}, {expected}")
        if number:
            for name, one in done.items():
                runs[name].append(one)
        progress.print(f"  {number}/{rounds}", style="dim")
    return runs


def show(runs: dict[str, list[Run]], console: Console) -> None:
    """Print medians, the speed relative to the first variant, and how many lines a user writes."""
    table = Table(title="the same left join with a table in PostgreSQL")
    for column in ("", "seconds", "rows per second", "relative", "requests", "keys requested", "lines"):
        table.add_column(column, justify="right" if column else "left")
    first = next(iter(runs.values()))
    for name, taken in runs.items():
        seconds = statistics.median(one.seconds for one in taken)
        speed = statistics.median(one.sums[0] / one.seconds for one in taken)
        ratio = statistics.median(
            (one.sums[0] / one.seconds) / (base.sums[0] / base.seconds) for one, base in zip(taken, first, strict=True)
        )
        table.add_row(
            name, f"{seconds:.2f}", f"{speed:,.0f}", f"{ratio:.2f}", f"{taken[-1].requests:,}", f"{taken[-1].keys:,}",
            str(LINES[name]),
        )  # fmt: skip
    console.print(table)


def lines_of(*parts: Any) -> int:
    """Return the number of lines of functions and classes, without blank ones."""
    return sum(bool(line.strip()) for part in parts for line in inspect.getsource(part).splitlines())


def lines_of_class(text: str, name: str) -> int:
    """Return the number of lines of a class in the text of a module, without blank ones."""
    [part] = [one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == name]
    return sum(bool(line.strip()) for line in text.splitlines()[part.lineno - 1 : part.end_lineno])


FIRST, SECOND = "lookup join, first job", "lookup join, second job"
MAP_PARTITIONS, MAP_IN_ARROW = "mapPartitions, a request per key", "mapInArrow, a request per batch"
UDF, SPARK, BEAM = "UDF with cachetools", "whole table, Spark's own join", "Beam's Enrichment"
JDBC = "Spark's JDBC read, broadcast join"
FLINK, COMPUTED, FLINK_COMPUTED = "Flink's lookup join", "lookup join, rows computed", "Flink's, rows computed"
LINES = {
    FIRST: lines_of(LookupJoins.second, LookupJoins._join) - 4,
    SECOND: lines_of(LookupJoins.second, LookupJoins._join) - 4,
    MAP_PARTITIONS: lines_of(ByHand.key_by_key) - 3,
    MAP_IN_ARROW: lines_of(ByHand.batch_by_batch) - 3,
    UDF: lines_of(ByHand.in_a_udf) - 3,
    SPARK: lines_of(spark_reader),
    JDBC: 3,
    BEAM: lines_of_class(Path(__file__).with_name("beam_enrichment.py").read_text(), "People"),
    # A CREATE TABLE and a SELECT; FlinkLookup.java is what a connector does.
    FLINK: 6,
    COMPUTED: lines_of(LookupJoins.computed, LookupJoins._join) - 5,
    FLINK_COMPUTED: 6,
}
"""Lines that a user writes, without signature, docstring and measuring."""


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Left rows.")
@click.option("--keys", default=100_000, show_default=True, help="Keys that the left rows are drawn from.")
@click.option("--table-rows", default=1_000_000, show_default=True, help="Rows of the table.")
@click.option("--tasks", default=8, show_default=True, help="Tasks of each job.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each variant.")
@click.option("--cores", default=2, show_default=True, help="Number of cores of the local Spark.")
@click.option("--beam", help="A Python that has apache-beam, psycopg and pyarrow.")
@click.option("--beam-rows", default=100_000, show_default=True, help="Left rows of Beam.")
@click.option("--jdbc", help="The jar of PostgreSQL's JDBC driver.")
@click.option("--flink", help="The class path of Flink 2's jars and of PostgreSQL's JDBC driver.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(
    rows: int,
    keys: int,
    table_rows: int,
    tasks: int,
    rounds: int,
    cores: int,
    beam: str | None,
    beam_rows: int,
    jdbc: str | None,
    flink: str | None,
    out: Path,
) -> None:
    """Measure, print a table, and write peers.json."""
    # The server is started by a helper of the tests.
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    from servers import PostgresServer

    console = Console()
    console.width = max(console.width, 110)
    server = PostgresServer().start()
    try:
        databases.postgres(server.url, table_rows)
        spark = session(cores, {} if jdbc is None else {"spark.jars": jdbc})
        left = left_side(spark, rows, keys, tasks)
        by_hand = ByHand(spark, left, server.url)
        with tempfile.TemporaryDirectory() as folder:
            joins = LookupJoins(left, server.url, table_rows, Path(folder))
            variants = {
                FIRST: joins.first,
                SECOND: joins.second,
                MAP_PARTITIONS: by_hand.key_by_key,
                MAP_IN_ARROW: by_hand.batch_by_batch,
                UDF: by_hand.in_a_udf,
                SPARK: whole_table(spark, left, server.url, table_rows),
            }
            if jdbc is not None:
                variants[JDBC] = jdbc_read(spark, left, server.url, table_rows)
            of_beam = None
            if beam is not None:
                variants[BEAM], of_beam = beam_variant(beam, left, server.url, Path(folder), beam_rows)
            if flink is not None:
                program, file = compile_flink(flink, Path(folder)), Path(folder, "left")
                file.write_bytes(left.orderBy("v").toArrow()["id"].to_numpy().astype(">i8").tobytes())
                variants[FLINK] = flink_variant(program, file, table_rows, server.url, cores)
                variants[COMPUTED] = joins.computed
                variants[FLINK_COMPUTED] = flink_variant(program, file, table_rows, "", cores)
            runs = measure(variants, of_beam, rounds, console)
        spark.stop()
    finally:
        server.remove()
    out.mkdir(parents=True, exist_ok=True)
    document = {name: [vars(one) for one in taken] for name, taken in runs.items()}
    (out / "peers.json").write_text(json.dumps(document, indent=1))
    show(runs, console)


if __name__ == "__main__":
    main()
