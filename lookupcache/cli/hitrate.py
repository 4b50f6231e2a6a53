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
from lookupcache.hitrate.width import Width, left_names, measured

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILES = (".parquet", ".pq", ".csv", ".gz")


@click.command()
@click.argument("source", metavar="KEYS")
@click.option("--keys", "-k", metavar="COLUMNS", help="Key columns, with commas between; needed if there are others.")
@click.option("--time", "-t", metavar="COLUMN", help="The column of times: a timestamp, a date, or seconds.")
@click.option("--sizes", metavar="ROWS", help="Cache sizes to show, with commas between.")
@click.option("--ttl", "ttls", multiple=True, metavar="LIMIT", help="An age limit: '10 min', or a number of requests.")
@click.option("--batch", default=10_000, show_default=True, help="Rows in a batch; 1 is one after the other.")
@click.option("--workers", default=1, show_default=True, help="Python workers, each with a cache of its own.")
@click.option("--shuffle", is_flag=True, help="Rows come to the workers by key, as with lookup.shuffle.")
@click.option("--rows-per-key", default=1, show_default=True, help="Rows that the source has for a key.")
@click.option("--missing", default="0", help="Part of the keys that the source does not know, as in 10%.")
@click.option("--forget-misses", is_flag=True, help="As with lookup.cache.missing-key = false.")
@click.option("--max-bytes", metavar="SIZE", help="What a worker's cache may hold, as in '64 mb'.")
@click.option("--row-bytes", type=float, help="Bytes of a row with all its columns.")
@click.option("--calc-bytes", type=float, help="Bytes of a row with what calc leaves.")
@click.option("--table", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="TABLE.toml",
              help="Fetch rows of some keys from this table, and weigh them.")  # fmt: skip
@click.option("--on", help="With --table: the join's condition.")
@click.option("--select", metavar="COLUMNS", help="With --table: its columns that the join selects.")
@click.option("--cost", metavar="DURATION", help="What a call to the source takes, as in 5ms.")
@click.option("--target", metavar="RATIO", help="The wanted hit ratio, as in 95%.")
@click.option("--rate", type=float, help="Rows per second, where there are no times.")
@click.option("--sample", default="auto", show_default=True, help="Part of the keys to look at, auto, or no.")
@click.option("--lru-only", is_flag=True, help="Leave the other evictions out, which take the longest.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Draw the curves.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def hitrate(source: str, as_json: bool, plot: Path | None, **given: Any) -> None:
    """Predict a cache's hit rate from the keys that will be asked for.

    KEYS is a Parquet or CSV file, a folder of them, or the name of a Spark table.
    """
    names = None if given["keys"] is None else [name.strip() for name in given["keys"].split(",")]
    with _opened(source) as (keys, console), _progress(console, quiet=as_json) as progress:
        found = hit_rate(
            keys,
            names,
            given["time"],
            sizes=_numbers(given["sizes"]),
            ttls=given["ttls"],
            batch=given["batch"],
            workers=given["workers"],
            spread="key" if given["shuffle"] else "random",
            rows_per_key=given["rows_per_key"],
            missing=_part(given["missing"]),
            remember_misses=not given["forget_misses"],
            max_bytes=given["max_bytes"],
            row_bytes=given["row_bytes"],
            calc_bytes=given["calc_bytes"],
            width=None if given["table"] is None else _width(keys, given["table"], given["on"], given["select"]),
            cost=given["cost"],
            target=given["target"],
            rate=given["rate"],
            sample=given["sample"],
            policies=("lru",) if given["lru_only"] else POLICIES,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        show(found, Console())
    if plot is not None:
        draw(found, plot)


@contextmanager
def _opened(source: str) -> Iterator[tuple[Any, Console]]:
    """Give the path of a file, or the DataFrame of a table in a Spark that ends with it."""
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
        raise OptionError(f"There is no file {name!r}, nor a Spark table of that name.") from error


@contextmanager
def _progress(console: Console, *, quiet: bool) -> Iterator[Report]:
    columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report


def _width(source: Any, definition: Path, on: str | None, select: str | None) -> Width:
    """Weigh the rows of the first keys, as the join on this table would hold them."""
    table = trial.Definition.read(definition).table()
    columns = None if select is None else [name.strip() for name in select.split(",")]
    plan = trial.plan_of(table, on, None, None, columns)
    keys: pa.Table = first_keys(source, left_names(plan))
    return measured(plan, table, keys)


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--sizes {text!r} are no sizes.", hint="Write whole numbers: --sizes 100,1000.") from None


def _part(text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise OptionError(f"--missing {text!r} is no part.", hint="Write it as 10% or 0.1.") from None
