"""Measures how long a query with lookup joins takes to plan, in addition to Spark's analysis of the same query.

    python3 .ci/dev.py bench planning

Two variants run alternately in one run. `LookupSession.sql` returns when the query with lookup joins is planned;
`SparkSession.sql` returns when the same query with joins of Spark's tables is analyzed. The difference is the cost of
planning; the targets are 25 ms for one join, 60 ms for five. The joins are of one lookup table, or each of another:
those of different tables share a Python stage.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.session import session
from bench.source import SCHEMA

JOINS = (1, 2, 3, 5)
TARGETS_MS = {1: 25, 5: 60}


def query(joins: int, *, lookup: bool, tables: int = 1) -> str:
    """Return a query with this number of joins, each of which adds columns, over one table or over several."""
    period = " FOR SYSTEM_TIME AS OF o.proc_time" if lookup else ""
    names = [f"c{number}" for number in range(joins)]
    columns = ", ".join(f"{name}.country AS country_{name}, {name}.salary * 2 AS twice_{name}" for name in names)
    table = [f"customers{number % tables}" for number in range(joins)]
    texts = [
        f"LEFT JOIN {table[number]}{period} AS {name} ON o.k{number} = {name}.id" for number, name in enumerate(names)
    ]
    return f"SELECT o.n, {columns} FROM orders AS o {' '.join(texts)} WHERE o.n > 10"


def prepare(spark: Any) -> Any:
    """Create the tables of both variants; return the session with the lookup table."""
    from lookupcache import LookupSession, LookupTable

    keys = [f"id % {n + 7} AS k{n}" for n in range(max(JOINS))]
    spark.range(1000).selectExpr("id AS n", *keys).createOrReplaceTempView("orders")
    lookups = LookupSession(spark)
    for number in range(max(JOINS)):
        spark.createDataFrame([], SCHEMA).createOrReplaceTempView(f"customers{number}")
        options = {"connector": "bench.source:Customers", "keys": str(1000 + number), "lookup.cache": "LRU"}
        lookups.register_table(LookupTable(f"customers{number}", SCHEMA, options))
    return lookups


def time_call(work: Callable[[], Any]) -> float:
    """Return the duration in milliseconds."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def measure(spark: Any, lookups: Any, joins: int, tables: int, rounds: int, console: Console) -> dict[str, Any]:
    """Time both variants alternately; return the medians without the first third, which warms up the JVM.

    Args:
        spark: The Spark session.
        lookups: The session with the lookup table.
        joins: The number of joins in the query.
        tables: The number of lookup tables; those of different tables share a Python stage.
        rounds: The number of runs of each variant.
        console: Shows the progress.
    """
    ours: list[float] = []
    theirs: list[float] = []
    plan = lookups.query(query(joins, lookup=True, tables=tables)).joins
    assert len(plan) == joins
    for _ in track(range(rounds), description=f"{joins} joins", console=console, transient=True):
        ours.append(time_call(lambda: lookups.sql(query(joins, lookup=True, tables=tables))))
        theirs.append(time_call(lambda: spark.sql(query(joins, lookup=False, tables=tables))))
    warmup = rounds // 3
    pairs = list(zip(ours[warmup:], theirs[warmup:], strict=True))
    return {
        "joins": joins,
        "tables": tables,
        "lookup joins ms": round(statistics.median(a for a, _ in pairs), 1),
        "Spark's analysis ms": round(statistics.median(b for _, b in pairs), 1),
        "beyond ms": round(statistics.median(a - b for a, b in pairs), 1),
    }


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Plot both variants against the number of joins."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    results = [result for result in results if result["tables"] == result["joins"]]
    joins = [result["joins"] for result in results]
    for name in ("lookup joins ms", "Spark's analysis ms", "beyond ms"):
        axes.plot(joins, [result[name] for result in results], marker="o", label=name)
    axes.plot(list(TARGETS_MS), list(TARGETS_MS.values()), marker="_", linestyle=":", color="grey", label="target")
    axes.set_xlabel("joins in the query")
    axes.set_ylabel("ms")
    axes.set_title("Planning a query with lookup joins")
    axes.legend()
    figure.savefig(path, dpi=120)


@click.command()
@click.option("--rounds", default=60, show_default=True, help="Runs of each variant; the first third warms up.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(rounds: int, out: Path) -> None:
    """Measure, print a table, and write planning.json and planning.png."""
    console = Console()
    spark = session(1, {})
    lookups = prepare(spark)
    for _ in range(rounds):
        lookups.sql(query(max(JOINS), lookup=True, tables=max(JOINS)))
    counts = [(joins, tables) for joins in JOINS for tables in sorted({1, joins})]
    results = [measure(spark, lookups, joins, tables, rounds, console) for joins, tables in counts]
    out.mkdir(parents=True, exist_ok=True)
    (out / "planning.json").write_text(json.dumps(results, indent=1))
    plot(results, out / "planning.png")
    table = Table(title="Planning, medians")
    for column in results[0]:
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(*map(str, result.values()))
    console.print(table)
    for result in results:
        if target := TARGETS_MS.get(result["joins"]):
            text = f"{result['joins']} lookup joins of {result['tables']} tables: {result['beyond ms']} ms"
            console.print(f"{text} more than Spark's analysis (target: {target}).")
    console.print(f"Wrote {out / 'planning.json'} and {out / 'planning.png'}.")


if __name__ == "__main__":
    main()
