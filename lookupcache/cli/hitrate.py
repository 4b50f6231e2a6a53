"""The command `lookupcache hitrate`."""

from __future__ import annotations

import importlib.util
import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lookupcache.cli import trial
from lookupcache.errors import OptionError
from lookupcache.hitrate import hit_rate
from lookupcache.hitrate.keys import Progress as Report
from lookupcache.hitrate.keys import first_keys
from lookupcache.hitrate.plot import plot as draw
from lookupcache.hitrate.prediction import POLICIES
from lookupcache.hitrate.report import show
from lookupcache.hitrate.width import Width, left_names, measure_width
from lookupcache.table import LookupTable

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLOTTED_WORKERS = (1, 2, 4, 8, 16)
_FILES = (".parquet", ".pq", ".csv", ".gz")


def _parse_sizes(_context: click.Context, _option: click.Parameter, text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(
            f"--sizes {text!r} is not a list of sizes.", hint="Write whole numbers: --sizes 100,1000."
        ) from None


def _parse_fraction(_context: click.Context, _option: click.Parameter, text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise OptionError(f"--missing {text!r} is not a fraction.", hint="Write it as 10% or 0.1.") from None


@click.command()
@click.argument("source", metavar="KEYS")
@click.option("--keys", "-k", metavar="COLUMNS", help="Key columns, separated by commas; optional if there is one.")
@click.option("--time", "-t", metavar="COLUMN", help="The time column: a timestamp, a date, or seconds.")
@click.option("--schema", metavar="DDL", help="Types of key columns, as in 'id BIGINT'; those of a CSV are texts.")
@click.option("--sizes", metavar="ROWS", callback=_parse_sizes, help="Cache sizes to show, separated by commas.")
@click.option("--ttl", "ttls", multiple=True, metavar="LIMIT", help="A maximum age: '10 min', or a number of requests.")
@click.option("--batch", default=10_000, show_default=True, help="Rows per batch; 1 for single rows.")
@click.option("--workers", default=1, show_default=True, help="Number of Python workers of a host.")
@click.option("--scope", type=click.Choice(["host", "worker"]), default="host", show_default=True,
              help="Whether the workers share a cache, as with lookup.cache.scope.")  # fmt: skip
@click.option("--shuffle", is_flag=True, help="Partition rows by key, as with lookup.shuffle.")
@click.option("--rows-per-key", default=1, show_default=True, help="Number of rows per key at the source.")
@click.option("--missing", default="0", callback=_parse_fraction,
              help="Fraction of the keys without rows at the source, e.g. 10%.")  # fmt: skip
@click.option("--forget-misses", is_flag=True, help="As with lookup.cache.missing-key = false.")
@click.option("--max-bytes", metavar="SIZE", help="Maximum size of a worker's cache, e.g. '64 mb'.")
@click.option("--table", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="TABLE.toml",
              help="Measure the size of some rows of this table.")  # fmt: skip
@click.option("--on", help="With --table: the join's condition.")
@click.option("--select", metavar="COLUMNS", help="With --table: its columns that the join selects.")
@click.option("--cost", metavar="DURATION", help="Duration of a call to the source, e.g. 5ms.")
@click.option("--target", metavar="RATIO", help="The target hit ratio, e.g. 95 or 95%.")
@click.option("--rate", type=float, help="Rows per second, if there is no time column.")
@click.option("--sample", default="auto", show_default=True, help="Fraction of the keys to sample, auto, or no.")
@click.option("--lru-only", is_flag=True, help="Skip the other eviction policies, which take the longest.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Plot the curves, and requests per key by the number of workers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def hitrate(source: str, as_json: bool, plot: Path | None, **flags: Any) -> None:
    """Predict a cache's hit rate from the keys that will be looked up.

    KEYS is a Parquet or CSV file, a folder of them, or the name of a Spark table.
    """
    names = flags.pop("keys")
    with _open_keys(source) as (keys, console), _show_progress(console, quiet=as_json) as progress:
        table, on, select = (flags.pop(name) for name in ("table", "on", "select"))
        found = hit_rate(
            keys,
            None if names is None else [name.strip() for name in names.split(",")],
            spread="key" if flags.pop("shuffle") else "random",
            dilution=() if plot is None else _PLOTTED_WORKERS,
            remember_misses=not flags.pop("forget_misses"),
            width=None if table is None else _measure_width(keys, table, on, select),
            policies=("lru",) if flags.pop("lru_only") else POLICIES,
            progress=progress,
            **flags,
        )
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        show(found, Console())
    if plot is not None:
        draw(found, plot)


@contextmanager
def _open_keys(source: str) -> Iterator[tuple[Any, Console]]:
    """Yield the path of a file, or the DataFrame of a Spark table; a session started for it is stopped at the end."""
    console = Console(stderr=True)
    if Path(source).exists() or source.endswith(_FILES) or "/" in source:
        yield Path(source), console
        return
    if importlib.util.find_spec("pyspark") is None:
        raise OptionError(f"There is no file {source!r}.", hint="For a Spark table, pip install 'lookupcache[spark]'.")
    from pyspark.sql import SparkSession

    from lookupcache.java import local_spark_environment

    active = SparkSession.getActiveSession()
    if active is None:
        local_spark_environment()
    spark = active or SparkSession.builder.appName("lookupcache hitrate").getOrCreate()
    try:
        yield _spark_table(spark, source), console
    finally:
        if active is None:
            spark.stop()


def _spark_table(spark: Any, name: str) -> Any:
    from pyspark.errors import AnalysisException

    try:
        return spark.table(name)
    except AnalysisException as error:
        raise OptionError(f"There is neither a file nor a Spark table {name!r}.") from error


@contextmanager
def _show_progress(console: Console, *, quiet: bool) -> Iterator[Report]:
    columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report


def _measure_width(source: Any, definition: Path, on: str | None, select: str | None) -> Width:
    """Measure the size of the rows of the first keys, as a join with this table would cache them."""
    table = LookupTable.from_toml(definition)
    columns = None if select is None else [name.strip() for name in select.split(",")]
    plan = trial.plan_of(table, on, None, None, columns)
    keys: pa.Table = first_keys(source, left_names(plan))
    return measure_width(plan, table, keys)
