"""Compares the lookup join with the upper limit of `mapInArrow`: `python -m bench.join`.

In one run, alternately, with a warm cache: the limit, Spark's own broadcast join, a Python UDF with a dict, and the
lookup join with LRU, TTL and ALL. The limit is `mapInArrow` with a function that returns its input and four precomputed
columns.
Ratios are computed per round, and their medians are shown, because the speed of the machine may vary between rounds.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench import source
from bench.session import session
from lookupcache.spark.join import lookup_join
from lookupcache.table import LookupTable

KEYS = {"int": ["id"], "string": ["code"], "int, string": ["id", "code"]}
CACHES = {
    "LRU": {"lookup.cache": "LRU", "lookup.cache.max-rows": "100000000"},
    "TTL": {"lookup.cache": "TTL", "lookup.cache.expire-after-write": "1 h"},
    "ALL": {"lookup.cache": "ALL"},
}
TARGETS = {"int": 0.9, "string": 0.8, "int, string": 0.75}


@dataclass(frozen=True)
class Workload:
    """A left side of ``rows`` rows with ``keys`` distinct keys of a kind, each with ``matches`` matching rows."""

    kind: str
    keys: int
    matches: int
    rows: int

    @property
    def name(self) -> str:
        """The name in the report."""
        size = f"{self.keys // 1000:,} k" if self.keys < 1_000_000 else f"{self.keys // 1_000_000} M"
        return f"{self.kind} · {size} keys · {self.matches} row{'s' if self.matches > 1 else ''}"


@dataclass(frozen=True)
class Variant:
    """One implementation of the same join; ``rows`` is the number of left rows."""

    name: str
    df: Any
    rows: int

    def seconds(self) -> float:
        """Run the join once without writing the result; return the seconds."""
        started = time.perf_counter()
        self.df.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started


def left_side(spark: Any, work: Workload, rows: int, *, every_key: bool = False) -> Any:
    """Return the left rows, with key columns and a number; keys are random, or all keys once each.

    Args:
        spark: The Spark session.
        work: The workload.
        rows: The number of rows if keys are random.
        every_key: Whether to return each key once.
    """
    n = "id" if every_key else f"(xxhash64(id) & 9223372036854775807) % {work.keys}"
    numbered = spark.range(work.keys if every_key else rows).selectExpr(f"{n} AS n", "id AS v")
    keys = [f"{source.SQL[name]} AS {name}" for name in KEYS[work.kind]]
    return numbered.selectExpr(*keys, "v", *(["n AS w"] if len(keys) == 1 else []))


class PrecomputedColumns:
    """Returns its input with four precomputed columns: the fastest that a worker can be."""

    def __init__(self) -> None:
        self.columns: list[pa.Array] = []

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the columns to each batch."""
        names = [*source.PAYLOAD]
        precomputed = source.rows(np.arange(65_536) * 7919 % 1000, source.PAYLOAD).combine_chunks()
        columns = [column.chunk(0) for column in precomputed.columns]
        for batch in batches:
            added = [column.slice(0, batch.num_rows) for column in columns]
            yield pa.RecordBatch.from_arrays([*batch.columns, *added], [*batch.schema.names, *names])


def limit(spark: Any, work: Workload) -> Variant:
    """The limit of the worker path."""
    left = left_side(spark, work, work.rows)
    types = "name STRING, country STRING, salary DOUBLE, age INT"
    schema = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in left.schema) + ", " + types
    return Variant("limit", left.mapInArrow(PrecomputedColumns(), schema), work.rows)


def broadcast(spark: Any, work: Workload) -> Variant:
    """Spark's own broadcast join."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = [f"{source.SQL[name]} AS {name}" for name in (*KEYS[work.kind], *source.PAYLOAD)]
    right = spark.range(work.keys * work.matches).selectExpr(f"id % {work.keys} AS n").selectExpr(*columns)
    joined = left_side(spark, work, work.rows).join(F.broadcast(right), KEYS[work.kind], "left")
    return Variant("broadcast", joined, work.rows)


def plain_udf(spark: Any, work: Workload) -> Variant:
    """The usual manual solution: a Python UDF that looks up a dict, one row at a time."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = source.rows(np.arange(work.keys), (*KEYS[work.kind], *source.PAYLOAD)).to_pylist()
    size = len(KEYS[work.kind])
    data = {(v[:size] if size > 1 else v[0]): v[size:] for v in (tuple(row.values()) for row in rows)}
    shared = spark.sparkContext.broadcast(data)

    def look_up(*key: Any) -> Any:
        return shared.value.get(key if len(key) > 1 else key[0])

    function = F.udf(look_up, "struct<name:string,country:string,salary:double,age:int>")
    left = left_side(spark, work, work.rows)
    joined = left.select("*", function(*KEYS[work.kind]).alias("m")).select("*", "m.*").drop("m")
    return Variant("plain UDF", joined, work.rows)


def lookup_variant(spark: Any, work: Workload, cache: str, metrics: str = "auto") -> tuple[Variant, Callable[[], None]]:
    """Return the lookup join, and a function that warms its cache.

    Args:
        spark: The Spark session.
        work: The workload.
        cache: The name of the caching strategy in `CACHES`.
        metrics: The value of ``lookup.metrics``.
    """
    options = {"connector": "bench.source:Customers", "keys": str(work.keys), "rows": str(work.matches)}
    table = LookupTable("c", source.SCHEMA, {**options, **CACHES[cache], "lookup.metrics": metrics})
    condition = " AND ".join(f"l.{name} = c.{name}" for name in KEYS[work.kind])

    def join(left: Any) -> Any:
        selected = [f"l.{name}" for name in left.columns]
        return lookup_join(left, table, condition, "left", [*selected, *(f"c.{name}" for name in source.PAYLOAD)])

    warm = Variant("warm", join(left_side(spark, work, work.rows, every_key=True)), work.keys)
    name = cache if metrics == "auto" else metrics
    return Variant(name, join(left_side(spark, work, work.rows)), work.rows), lambda: _ignore(warm.seconds())


def _ignore(_: object) -> None:
    return None


def run_alternately(variants: list[Variant], rounds: int, note: Callable[[int], None]) -> dict[str, list[float]]:
    """Run the variants alternately, after one round to warm up; return ns per left row."""
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for number in range(rounds + 1):
        for variant in variants:
            taken = variant.seconds() / variant.rows * 1e9
            if number:
                times[variant.name].append(taken)
        note(number)
    return times


def cost_of_counting(spark: Any, rows: int, rounds: int, progress: Console) -> dict[str, float]:
    """Return the cost of each channel of metrics, as a fraction of the time without metrics.

    Args:
        spark: The Spark session.
        rows: The number of left rows.
        rounds: The number of runs of each channel.
        progress: Shows the progress.
    """
    work = Workload("int", 100_000, 1, rows)
    lookups = [lookup_variant(spark, work, "LRU", channel) for channel in ("off", "accumulator", "observe")]
    for _, warm in lookups:
        warm()
    variants = [variant for variant, _ in lookups]
    times = run_alternately(
        variants, rounds, lambda number: progress.print(f"  metrics: {number}/{rounds}", style="dim")
    )
    return {
        name: round(statistics.median(a / b - 1 for a, b in zip(taken, times["off"], strict=True)), 3)
        for name, taken in times.items()
        if name != "off"
    }


def measure(spark: Any, work: Workload, rounds: int, progress: Console) -> dict[str, Any]:
    """Run all variants alternately; return medians of ns per left row, and of the ratios to the limit.

    Args:
        spark: The Spark session.
        work: The workload.
        rounds: The number of runs of each variant.
        progress: Shows the progress.
    """
    lookups = [lookup_variant(spark, work, cache) for cache in CACHES]
    variants = [limit(spark, work), broadcast(spark, work), *(variant for variant, _ in lookups)]
    variants += [plain_udf(spark, work)] if work.matches == 1 else []
    for _, warm in lookups:
        warm()
    times = run_alternately(
        variants, rounds, lambda number: progress.print(f"  {work.name}: {number}/{rounds}", style="dim")
    )
    pairs = {name: [a / b for a, b in zip(times["limit"], taken, strict=True)] for name, taken in times.items()}
    return {
        "workload": {"key": work.kind, "keys": work.keys, "rows per key": work.matches, "left rows": work.rows},
        "ns per row": {name: round(statistics.median(taken), 1) for name, taken in times.items()},
        "ratio to limit": {name: round(statistics.median(ratios), 3) for name, ratios in pairs.items()},
        "all ns per row": {name: [round(t, 1) for t in taken] for name, taken in times.items()},
    }


def workloads(rows: int, *, quick: bool) -> list[Workload]:
    """Return the workloads: all kinds of keys with 100 k keys, more and fewer keys, and several rows per key."""
    works = [Workload(kind, 100_000, 1, rows) for kind in KEYS]
    if quick:
        return works
    works += [Workload(kind, keys, 1, rows) for kind in KEYS for keys in (1_000, 1_000_000)]
    return [*works, *(Workload(kind, 100_000, 3, rows // 3) for kind in ("int", "string"))]


def show(results: list[dict[str, Any]], costs: dict[str, float], console: Console) -> None:
    """Print the table, and compare the results with the targets."""
    table = Table(title="ns per left row (speed relative to the limit)")
    names = ["limit", "broadcast", *CACHES, "plain UDF"]
    for column in ("key", "keys", "rows/key", *names):
        table.add_column(column, justify="left" if column == "key" else "right")
    for result in results:
        work, times, ratios = result["workload"], result["ns per row"], result["ratio to limit"]
        cells = [f"{times[name]:.0f} ({ratios[name]:.2f})" if name in times else "–" for name in names]
        table.add_row(work["key"], f"{work['keys']:,}", str(work["rows per key"]), *cells)
    console.print(table)
    for result in results:
        work, times = result["workload"], result["ns per row"]
        if work["keys"] == 100_000 and work["rows per key"] == 1:
            reached, target = result["ratio to limit"]["LRU"], TARGETS[work["key"]]
            faster = times["plain UDF"] / times["LRU"]
            console.print(
                f"{work['key']}: LRU {reached:.2f} of the limit (target: {target}), "
                f"{faster:.1f} × the plain UDF (target: 4)"
            )
    for channel, cost in costs.items():
        console.print(f"metrics by {channel}: {cost:+.1%} of the time without")


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Plot ns per row, with a group of bars per workload."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = ["limit", "broadcast", *CACHES, "plain UDF"]
    figure, axes = plt.subplots(figsize=(12, 6), layout="constrained")
    for number, name in enumerate(names):
        bars = [result["ns per row"].get(name, 0) for result in results]
        axes.bar(np.arange(len(results)) + number * 0.14, bars, 0.13, label=name)
    labels = [
        f"{w['key']}\n{w['keys']:,} keys\n{w['rows per key']} row(s)"
        for w in (result["workload"] for result in results)
    ]
    axes.set_xticks(np.arange(len(results)) + 0.35, labels, fontsize=8)
    axes.set_ylabel("ns per left row (log)")
    axes.set_yscale("log")
    axes.set_title("Lookup join with a warm cache, compared with alternatives")
    axes.legend(ncols=len(names))
    figure.savefig(path, dpi=120)


@click.command()
@click.option("--rows", default=2_000_000, show_default=True, help="Left rows per run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each variant.")
@click.option("--quick", is_flag=True, help="Only 100 k keys with one row each.")
@click.option("--pipelined", is_flag=True, help="Set spark.python.udf.pipelined.enabled, new in Spark 4.3.")
@click.option("--cores", default=1, show_default=True, help="Number of cores of the local Spark.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(rows: int, rounds: int, quick: bool, pipelined: bool, cores: int, out: Path) -> None:
    """Measure, print a table, and write join.json and join.png."""
    console = Console()
    console.width = max(console.width, 110)
    spark = session(cores, {"spark.python.udf.pipelined.enabled": str(pipelined).lower()})
    results = [measure(spark, work, rounds, console) for work in workloads(rows, quick=quick)]
    costs = cost_of_counting(spark, rows, 2 * rounds, console)
    out.mkdir(parents=True, exist_ok=True)
    (out / "join.json").write_text(json.dumps({"workloads": results, "cost of metrics": costs}, indent=1))
    plot(results, out / "join.png")
    show(results, costs, console)
    console.print(f"Wrote {out / 'join.json'} and {out / 'join.png'}.")


if __name__ == "__main__":
    main()
