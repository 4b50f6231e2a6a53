"""Compares the physical forms of a chain of lookup joins with Spark's own joins: `python -m bench.chain_forms`.

In one run, alternately, for 1, 2 and 3 lookups of three columns each on a Parquet left side of 3 and 18 columns:
Spark's broadcast joins; the chain in one Python stage (`worker`), with cached keys (LRU) and with cached tables (ALL);
each lookup in the form `distinct`; each in the form `broadcast`. Then the cost of finding the distinct keys of all
tables: with one reading of the left side per table, and with one for all. No key depends on an earlier lookup.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
from operator import truediv
from pathlib import Path
from typing import Any

import click
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.table import Table

from bench import source
from bench.chain import PAYLOAD, key_of
from bench.join import Variant, run_alternately
from bench.session import session
from lookupcache.spark.join import lookup_join
from lookupcache.table import LookupTable

SPARKS = "Spark's broadcast"
WAYS = {
    "worker": {"lookup.cache": "LRU", "lookup.cache.max-rows": "100000000", "lookup.form": "worker"},
    "worker, ALL": {"lookup.cache": "ALL", "lookup.form": "worker"},
    "distinct": {"lookup.cache": "LRU", "lookup.cache.max-rows": "100000000", "lookup.form": "distinct"},
    "broadcast": {"lookup.cache": "ALL", "lookup.form": "broadcast"},
    "auto": {"lookup.cache": "LRU", "lookup.cache.max-rows": "100000000"},
    "auto, ALL": {"lookup.cache": "ALL"},
}
EACH, ONCE = "keys, read per table", "keys, read once"


def left_side(spark: Any, folder: Path, rows: int, columns: int, keys: int) -> Any:
    """Return a Parquet left side with three keys and further columns."""
    path = folder / f"left-{columns}-{keys}"
    if not path.exists():
        found = [f"(xxhash64(id, {n}) & 9223372036854775807) % {keys} * 7 + 13 AS k{n}" for n in range(3)]
        others = ["id AS v{}", "concat('text ', id % 1000) AS v{}", "id * 0.5D AS v{}"]
        found += [others[n % 3].format(n) for n in range(columns - 3)]
        spark.range(0, rows, 1, 1).selectExpr(*found).write.parquet(str(path))
    return spark.read.parquet(str(path))


def chain(left: Any, lookups: int, way: str, keys: int) -> Any:
    """Return the left side with the columns of each lookup, in a form."""
    for number in range(lookups):
        options = {"connector": "bench.source:Customers", "keys": str(keys), **WAYS[way]}
        table = LookupTable(f"t{number}", source.SCHEMA, options)
        added = [f"t{number}.{name} AS {name}{number}" for name in PAYLOAD]
        kept = [f"left.{name}" for name in left.columns]
        left = lookup_join(left, table, f"left.{key_of(number, 3)} = t{number}.id", "left", [*kept, *added])
    return left


def sparks_own(spark: Any, folder: Path, left: Any, lookups: int, keys: int) -> Any:
    """Return the same by Spark's broadcast joins with a Parquet table."""
    path = folder / f"table-{keys}"
    if not path.exists():
        columns = [f"{source.SQL[name]} AS {name}" for name in ("id", *PAYLOAD)]
        spark.range(keys).selectExpr("id AS n").selectExpr(*columns).write.parquet(str(path))
    for number in range(lookups):
        columns = [f"id AS {key_of(number, 3)}", *(f"{name} AS {name}{number}" for name in PAYLOAD)]
        right = spark.read.parquet(str(path)).selectExpr(*columns)
        left = left.join(F.broadcast(right), [key_of(number, 3)], "left")
    return left


def distinct_keys(left: Any, lookups: int, *, once: bool) -> Any:
    """Return the distinct keys of all tables, by one reading of the left side for each, or for all together."""
    pairs = [F.struct(F.lit(n).alias("t"), F.col(key_of(n, 3)).alias("k")) for n in range(lookups)]
    if once:
        return left.select(F.inline(F.array(*pairs))).distinct()
    each = [left.select(F.inline(F.array(pair))).distinct() for pair in pairs]
    found = each[0]
    for other in each[1:]:
        found = found.unionAll(other)
    return found


def compare(spark: Any, folder: Path, rows: int, columns: int, lookups: int, keys: int, rounds: int) -> Any:
    """Return nanoseconds per left row, of each round, of each variant."""
    left = left_side(spark, folder, rows, columns, keys)
    found = {SPARKS: sparks_own(spark, folder, left, lookups, keys)}
    found |= {way: chain(left, lookups, way, keys) for way in WAYS}
    found |= {EACH: distinct_keys(left, lookups, once=False), ONCE: distinct_keys(left, lookups, once=True)}
    return run_alternately([Variant(name, df, rows) for name, df in found.items()], rounds, lambda _: None)


def cells(times: dict[str, list[float]]) -> list[str]:
    """Return medians, each with its speed relative to Spark's own joins."""
    return [
        f"{statistics.median(taken):.0f} ({statistics.median(map(truediv, times[SPARKS], taken)):.2f})"
        for taken in times.values()
    ]


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Left rows per run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each variant.")
@click.option("--lookups", default="1,2,3", show_default=True, help="Numbers of lookups, at most 3.")
@click.option("--columns", default="3,18", show_default=True, help="Numbers of left columns.")
@click.option("--keys", default="1000,100000", show_default=True, help="Numbers of keys of each table.")
@click.option("--cores", default=1, show_default=True, help="Number of cores of the local Spark.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(rows: int, rounds: int, lookups: str, columns: str, keys: str, cores: int, out: Path) -> None:
    """Measure, print a table, and write chain-forms.json."""
    console = Console()
    console.width = max(console.width, 160)
    table = Table(title="ns per left row (speed relative to Spark's own broadcast joins)")
    for heading in ("keys", "columns", "lookups", SPARKS, *WAYS, EACH, ONCE):
        table.add_column(heading, justify="right")
    results = []
    spark = session(cores, {})
    with tempfile.TemporaryDirectory() as folder:
        cases = itertools.product(*(map(int, text.split(",")) for text in (keys, columns, lookups)))
        for number, width, count in cases:
            times = compare(spark, Path(folder), rows, width, count, number, rounds)
            table.add_row(f"{number:,}", str(width), str(count), *cells(times))
            results.append({"keys": number, "columns": width, "lookups": count, "ns per row": times})
    spark.stop()
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    (out / "chain-forms.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
