"""Compares chains of lookup joins with the upper limit of one Python stage: `python -m bench.chain`.

In one run, alternately, with warm caches, for 1, 3 and 6 lookups on 3 and 18 left columns, each lookup with three
columns: `mapInArrow` that returns its input, and the same with the chain's columns ready made (the limit). Against them
run the chain in one Python stage, the chain with a stage per lookup, and Spark's own broadcast joins. With Spark's
default settings, then with pipelined Python functions, which are new in Spark 4.3. ``--quick`` has half the rows and
two runs of each.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Iterator
from operator import truediv
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench import source
from bench.join import Variant, run_alternately
from bench.session import session
from lookupcache.spark.join import lookup_join
from lookupcache.table import LookupTable

KEYS = 100_000
PAYLOAD = ("name", "salary", "age")
TYPES = ("STRING", "DOUBLE", "INT")
NAMES = ("identity", "limit", "fused", "unfused", "broadcast")


class ReadyColumns:
    """Returns its input with three precomputed columns for each lookup."""

    def __init__(self, lookups: int) -> None:
        self.lookups = lookups

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the columns to each batch."""
        ready = source.rows(np.arange(65_536) * 7919 % 1000, PAYLOAD).combine_chunks()
        columns = [column.chunk(0) for column in ready.columns] * self.lookups
        for batch in batches:
            added = [column.slice(0, batch.num_rows) for column in columns]
            names = [*batch.schema.names, *(f"r{number}" for number in range(len(added)))]
            yield pa.RecordBatch.from_arrays([*batch.columns, *added], names)


def left_side(spark: Any, rows: int, columns: int, lookups: int, *, every_key: bool = False) -> Any:
    """Return left rows with a key for each lookup, as far as there are columns, and further columns.

    Args:
        spark: The Spark session.
        rows: The number of rows if keys are random.
        columns: The number of columns in all.
        lookups: The number of lookups.
        every_key: Whether to return each key once.
    """
    n = "id" if every_key else "(xxhash64(id, {0}) & 9223372036854775807) % {1}"
    keys = [f"({n.format(number, KEYS)}) * 7 + 13 AS k{number}" for number in range(min(lookups, columns))]
    others = ["id AS v0", "concat('text ', id % 1000) AS v1", "id * 0.5D AS v2"] * 6
    more = [f"{sql.split(' AS ')[0]} AS v{number}" for number, sql in enumerate(others)][: columns - len(keys)]
    return spark.range(KEYS if every_key else rows).selectExpr(*keys, *more)


def tables(lookups: int, fuse: str) -> list[LookupTable]:
    """Return the lookup tables of a chain."""
    options = {
        "connector": "bench.source:Customers", "keys": str(KEYS), "lookup.cache": "LRU",
        "lookup.cache.max-rows": "100000000", "lookup.fuse": fuse, "lookup.form": "worker",
    }  # fmt: skip
    return [LookupTable(f"t{number}", source.SCHEMA, options) for number in range(lookups)]


def key_of(number: int, columns: int) -> str:
    """Return the left column that a lookup is joined on; several lookups share one where columns are few."""
    return f"k{number % columns}"


def chain(left: Any, lookups: int, fuse: str) -> Any:
    """Return the left side with the columns of each lookup."""
    width = len(left.columns)
    for number, table in enumerate(tables(lookups, fuse)):
        columns = [f"left.{name}" for name in left.columns]
        added = [f"t{number}.{name} AS {name}{number}" for name in PAYLOAD]
        left = lookup_join(left, table, f"left.{key_of(number, width)} = t{number}.id", "left", [*columns, *added])
    return left


def broadcast(spark: Any, left: Any, lookups: int) -> Any:
    """Return the same by Spark's broadcast joins."""
    from pyspark.sql import functions as F  # noqa: N812

    width = len(left.columns)
    for number in range(lookups):
        key = key_of(number, width)
        columns = [f"{source.SQL['id']} AS {key}", *(f"{source.SQL[name]} AS {name}{number}" for name in PAYLOAD)]
        right = spark.range(KEYS).selectExpr("id AS n").selectExpr(*columns)
        left = left.join(F.broadcast(right), [key], "left")
    return left


def variants(spark: Any, rows: int, columns: int, lookups: int) -> list[Variant]:
    """Return all variants of a chain, with warm caches."""
    left = left_side(spark, rows, columns, lookups)
    schema = [f"{field.name} {field.dataType.simpleString()}" for field in left.schema]
    ready = [f"r{number} {TYPES[number % 3]}" for number in range(3 * lookups)]
    found = {
        "identity": left.mapInArrow(ReadyColumns(0), ", ".join(schema)),
        "limit": left.mapInArrow(ReadyColumns(lookups), ", ".join([*schema, *ready])),
        "fused": chain(left, lookups, "auto"),
        "unfused": chain(left, lookups, "off"),
        "broadcast": broadcast(spark, left, lookups),
    }
    for fuse in ("auto", "off"):
        warm = chain(left_side(spark, rows, columns, lookups, every_key=True), lookups, fuse)
        Variant("warm", warm, KEYS).seconds()
    return [Variant(name, found[name], rows) for name in NAMES]


@click.command()
@click.option("--rows", default=600_000, show_default=True, help="Left rows per run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each variant.")
@click.option("--quick", is_flag=True, help="300,000 rows and 2 rounds, a few minutes in all.")
@click.option("--lookups", default="1,3,6", show_default=True, help="Numbers of lookups.")
@click.option("--columns", default="3,18", show_default=True, help="Numbers of left columns.")
@click.option("--pipelined", default="false,true", show_default=True, help="spark.python.udf.pipelined.enabled")
@click.option("--cores", default=1, show_default=True, help="Number of cores of the local Spark.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(
    rows: int, rounds: int, quick: bool, lookups: str, columns: str, pipelined: str, cores: int, out: Path
) -> None:
    """Measure, print a table, and write chain.json."""
    console = Console()
    console.width = max(console.width, 110)
    rows, rounds = (300_000, 2) if quick else (rows, rounds)
    table = Table(title="ns per left row (speed relative to the limit: one Python stage with ready columns)")
    for heading in ("pipelined", "columns", "lookups", *NAMES, "fused / unfused"):
        table.add_column(heading, justify="right")
    results = []
    for setting in pipelined.split(","):
        spark = session(cores, {"spark.python.udf.pipelined.enabled": setting})
        for width, count in itertools.product(map(int, columns.split(",")), map(int, lookups.split(","))):
            times = run_alternately(variants(spark, rows, width, count), rounds, lambda _: None)
            table.add_row(setting, str(width), str(count), *cells(times))
            results.append({"pipelined": setting, "columns": width, "lookups": count, "ns per row": times})
        spark.stop()
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    (out / "chain.json").write_text(json.dumps(results, indent=1))


def cells(times: dict[str, list[float]]) -> list[str]:
    """Return medians, each with its ratio to the limit, and how much faster one stage is than several."""
    ratios = {name: statistics.median(map(truediv, times["limit"], times[name])) for name in NAMES}
    gain = statistics.median(map(truediv, times["unfused"], times["fused"]))
    return [*(f"{statistics.median(times[name]):.0f} ({ratios[name]:.2f})" for name in NAMES), f"{gain:.2f}"]


if __name__ == "__main__":
    main()
