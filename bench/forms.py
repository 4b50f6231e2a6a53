"""Compares the cost of the physical forms of a join with Spark's own broadcast join: `python -m bench.forms`.

In one run, alternating: Spark's broadcast join with the table from Parquet, and the lookup join in each form, with a
left side of 3 and of 18 columns; with Spark's default settings, then with pipelined Python functions. Then how many
calls a form makes, with 8 partitions on 2 cores. `bench.scale` runs each form over more and more rows. Ratios are
medians over the rounds, each of one round's times: the machine may be noisy. CPU and memory are those of driver, JVM
and workers together.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench import source
from bench.process import measure_usage
from bench.session import session
from lookupcache.spark.join import LookupJoin
from lookupcache.table import LookupTable

SPARKS = "Spark's broadcast"
FORMS = ("worker", "distinct", "broadcast")
TARGETS = {(3, "distinct"): 0.65, (18, "distinct"): 0.85, (3, "broadcast"): 0.95, (18, "broadcast"): 0.95}


@dataclass(frozen=True)
class Taken:
    """The wall-clock and CPU seconds of a run, and its maximum of bytes in memory."""

    seconds: float
    cpu: float
    peak: int


def run(df: Any) -> Taken:
    """Run a DataFrame and discard its rows."""
    started = time.perf_counter()
    with measure_usage() as usage:
        df.write.format("noop").mode("overwrite").save()
    return Taken(time.perf_counter() - started, usage.cpu, usage.peak)


def left_side(spark: Any, rows: int, keys: int, columns: int, partitions: int | None = None) -> Any:
    """Return a left side of 3 columns or more: the key, two numbers, and texts."""
    key = f"(xxhash64(id) & 9223372036854775807) % {keys} * 7 + 13 AS id"
    texts = [f"concat('column {n} ', cast(id % {997 + n} AS STRING)) AS s{n}" for n in range(columns - 3)]
    return spark.range(0, rows, 1, partitions).selectExpr(key, "id AS v", "id % 1000 AS w", *texts)


def table(form: str, keys: int) -> LookupTable:
    """Return the generated table as a lookup table with the options of a form."""
    options = {"connector": "bench.source:Customers", "keys": str(keys), "lookup.form": form}
    options["lookup.cache"] = "ALL" if form == "broadcast" else "LRU"
    return LookupTable("c", source.SCHEMA, options if form == "broadcast" else {**options, **UNBOUNDED})


UNBOUNDED = {"lookup.cache.max-rows": "100000000"}


def join_in_form(left: Any, form: str, keys: int, payload: Iterable[str] = source.PAYLOAD) -> LookupJoin:
    """Return the lookup join in a form."""
    select = [*(f"l.{name}" for name in left.columns), *(f"c.{name}" for name in payload)]
    return LookupJoin(left, table(form, keys), "l.id = c.id", "left", select)


def sparks_own(spark: Any, left: Any, keys: int, folder: Path) -> Any:
    """Return Spark's broadcast join with the same table, from Parquet."""
    from pyspark.sql import functions as F  # noqa: N812

    path = str(folder / f"table-{keys}")
    if not Path(path).exists():
        columns = [f"{source.SQL[name]} AS {name}" for name in ("id", *source.PAYLOAD)]
        spark.range(keys).selectExpr("id AS n").selectExpr(*columns).write.parquet(path)
    return left.join(F.broadcast(spark.read.parquet(path)), ["id"], "left")


def alternate(ways: dict[str, Any], rounds: int, note: Callable[[int], None]) -> dict[str, list[Taken]]:
    """Run the variants alternately, after one round to warm up."""
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, df in ways.items():
            one = run(df)
            if number:
                taken[name].append(one)
        note(number)
    return taken


def compare_variants(
    spark: Any, rows: int, columns: int, rounds: int, folder: Path, note: Callable[[int], None]
) -> Any:
    """Measure every variant with a left side of ``columns`` columns; return figures by variant."""
    keys = 100_000
    left = left_side(spark, rows, keys, columns)
    ways = {SPARKS: sparks_own(spark, left, keys, folder)} | {form: join_in_form(left, form, keys).df for form in FORMS}
    taken = alternate(ways, rounds, note)
    return {name: _figures(found, taken[SPARKS], rows) for name, found in taken.items()}


def _figures(found: list[Taken], own: list[Taken], rows: int) -> dict[str, float]:
    pairs = list(zip(own, found, strict=True))
    return {
        "million rows a second": round(rows / statistics.median(one.seconds for one in found) / 1e6, 3),
        "ratio": round(statistics.median(a.seconds / b.seconds for a, b in pairs), 3),
        "ratio of CPU": round(statistics.median(a.cpu / b.cpu for a, b in pairs), 3),
        "CPU seconds per million rows": round(statistics.median(one.cpu for one in found) / rows * 1e6, 3),
        "peak MB": round(max(one.peak for one in found) / 1e6),
    }


def count_calls(spark: Any) -> dict[str, int]:
    """Return how many calls each form makes for 20,000 keys of a function of one key, with 8 partitions."""
    keys, calls = 20_000, {}
    left = left_side(spark, 200_000, keys, 3, partitions=8)
    for form in ("worker", "distinct"):
        options = {"lookup.form": form, "lookup.cache": "LRU", "lookup.cache.max-rows": "100000"}
        squares = LookupTable.from_function(
            "s", "id BIGINT, square BIGINT", key=["id"], function=lambda i: [(i, i * i)], options=options
        )
        join = LookupJoin(left, squares, "l.id = s.id", select=["v", "s.square"])
        run(join.df)
        calls[form] = join.metrics().calls
    return {"distinct keys": left.select("id").distinct().count(), **calls}


# ── showing ──────────────────────────────────────────────────────────────────────────────────────────────


def show(results: dict[str, Any], console: Console) -> None:
    """Print the tables, and the comparison with the targets."""
    names = ["million rows a second", "ratio", "ratio of CPU", "CPU seconds per million rows", "peak MB"]
    for setting, by_columns in results["forms"].items():
        for columns, ways in by_columns.items():
            shown = Table("way", *names, title=f"{columns} columns, {setting}")
            for way, figures in ways.items():
                shown.add_row(way, *(f"{figures[name]:g}" for name in names))
            console.print(shown)
            for (wanted_of, form), wanted in TARGETS.items():
                if wanted_of == int(columns):
                    reached = ways[form]["ratio"]
                    console.print(f"{form}: {reached:.2f} × {SPARKS} join (wanted {wanted})")
    console.print(f"calls: {results['calls']}")


def plot_forms(results: dict[str, Any], path: Path) -> None:
    """Draw rows per second and CPU per form, a panel per setting and width."""
    panels = [(s, c, ways) for s, by in results["forms"].items() for c, ways in by.items()]
    figure, axes = _panels(2, len(panels))
    for place, (setting, columns, ways) in enumerate(panels):
        for row, name in enumerate(("million rows a second", "CPU seconds per million rows")):
            axes[row][place].bar(list(ways), [figures[name] for figures in ways.values()])
            axes[row][place].set_title(f"{name}\n{columns} columns, {setting}", fontsize=9)
            axes[row][place].tick_params(axis="x", labelsize=7)
    figure.savefig(path, dpi=120)


def _panels(rows: int, columns: int) -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.close("all")
    return plt.subplots(rows, columns, figsize=(4 * columns, 3.5 * rows), layout="constrained", squeeze=False)


def compare(rows: int, rounds: int, console: Console) -> dict[str, Any]:
    """Run all but the scale: each setting in a separate session."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for setting, pipelined in (("default", "false"), ("pipelined", "true")):
            spark = session(1, {"spark.python.udf.pipelined.enabled": pipelined})
            found[setting] = {}
            for columns in (3, 18):

                def note(number: int, text: str = f"{columns} columns, {setting}") -> None:
                    console.print(f"  {text}: {number}/{rounds}", style="dim")

                found[setting][str(columns)] = compare_variants(spark, rows, columns, rounds, Path(folder), note)
            spark.stop()
        spark = session(2, {})
        calls = count_calls(spark)
        spark.stop()
    return {"forms": found, "calls": calls, "rows": rows}


@click.command()
@click.option("--rows", default=6_000_000, show_default=True, help="Left rows per run.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each way.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(rows: int, rounds: int, out: Path) -> None:
    """Measure, print a table, and write forms.json and forms.png."""
    console = Console()
    console.width = max(console.width, 120)
    out.mkdir(parents=True, exist_ok=True)
    results = compare(rows, rounds, console)
    (out / "forms.json").write_text(json.dumps(results, indent=1))
    plot_forms(results, out / "forms.png")
    show(results, console)


if __name__ == "__main__":
    main()
