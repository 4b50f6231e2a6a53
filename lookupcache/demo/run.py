"""The demo: flights joined with three small tables, as a batch job or as a stream, and orders with a large table.

It checks its results against Spark's own joins, and reports what each lookup join did, read and took.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lookupcache.config import LookupConfig
from lookupcache.demo import flights
from lookupcache.demo.comparison import Comparison, Way, as_svg, difference
from lookupcache.demo.customers import CUSTOMERS, Customers
from lookupcache.demo.report import JoinReport, Outcome, print_outcome
from lookupcache.errors import LookupCacheError, OptionError
from lookupcache.hitrate.width import left_names, measure_width
from lookupcache.java import local_spark_environment
from lookupcache.spark.join import LookupJoin
from lookupcache.table import LookupTable
from lookupcache.versions import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTS = 16
STEPS = 8
"""In how many steps the stream's files arrive."""

SETTINGS: dict[str, Any] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.files.minPartitionNum": str(STEPS),
    "spark.sql.streaming.metricsEnabled": "false",
    # What `lookupcache doctor` would ask for.
    "spark.python.udf.pipelined.enabled": "true",
    "spark.python.daemon.module": "lookupcache.daemon",
}


@dataclass(frozen=True)
class DemoJoin:
    """One join of the demo; ``alias`` names its table in ``on`` and ``columns``, and ``f`` the flights."""

    table: str
    alias: str
    how: str
    on: str
    columns: Sequence[str]

    @property
    def sql(self) -> str:
        """The same join in Spark's own words."""
        return f"{self.how.upper()} JOIN {self.table} AS {self.alias} ON {self.on}"

    def lookup_table(self, database: Path, options: Mapping[str, str]) -> LookupTable:
        [schema] = [table.schema for table in flights.TABLES if table.name == self.table]
        where = {"connector": "sql", "url": f"sqlite:///{database}", "table": self.table}
        return LookupTable(self.alias, schema, {**where, **options})


JOINS = (
    DemoJoin(
        "planes",
        "p",
        "left",
        "f.tailnum = p.tailnum AND p.year <= f.year",
        ["p.manufacturer", "p.model", "p.seats"],
    ),
    DemoJoin(
        "airports",
        "a",
        "inner",
        "f.dest = a.faa AND a.tzone = 'America/New_York'",
        ["a.name AS airport", "a.alt AS altitude"],
    ),
    DemoJoin(
        "weather",
        "w",
        "inner",
        "f.origin = w.origin AND f.year = w.year AND f.month = w.month AND f.day = w.day AND f.hour = w.hour "
        "AND w.wind_speed > 10",
        ["w.wind_speed", "w.wind_dir", "w.visib"],
    ),
)


@dataclass(frozen=True)
class Demo:
    """What to run: how many flights (None: all), whether as a stream, under which lookup options; how many customers.

    ``picture`` is the file into which the last table is drawn, as SVG.
    """

    rows: int | None = None
    stream: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    customers: int = CUSTOMERS
    picture: Path | None = None


def run(demo: Demo, console: Console | None = None, spark: SparkSession | None = None) -> Outcome:
    """Run the demo and print what it did; a session that it starts itself ends with it."""
    console = console or Console()
    LookupConfig.from_options(demo.options)
    if demo.picture and not demo.picture.parent.is_dir():
        raise OptionError(
            f"There is no folder {str(demo.picture.parent)!r}.", hint="Name a picture in one that exists."
        )
    with tempfile.TemporaryDirectory(prefix="lookupcache-demo-") as folder, _progress(console) as progress:
        outcome = _Stage(demo, Path(folder), progress).play(spark)
    print_outcome(console, outcome)
    if demo.picture:
        demo.picture.write_text(as_svg(outcome.comparisons), encoding="utf-8")
    return outcome


class _Stage:
    """One run of the demo: its folder, and the progress it shows."""

    def __init__(self, demo: Demo, folder: Path, progress: Progress) -> None:
        self.demo = demo
        self.folder = folder
        self.progress = progress
        self.database = folder / "flights.db"
        self.rows = 0

    def play(self, given: SparkSession | None) -> Outcome:
        with self._step("Reading the flights"):
            rows = flights.read_flights(self.demo.rows)
            self.rows = rows.num_rows
            parts = flights.write_parts(rows, self.folder / "flights", PARTS)
        with self._step("Filling the SQLite database"):
            tables = flights.fill_database(self.database)
        with self._step("Starting Spark"):
            spark = given or start_spark(self.folder)
        try:
            joins, flights_compared = self._join(spark, parts, tables)
            customers = Customers(spark, self.folder, self.demo.customers).compare(self._step)
            return Outcome(joins, (customers, flights_compared))
        finally:
            if given is None:
                spark.stop()

    def _join(
        self, spark: SparkSession, parts: Sequence[Path], tables: Mapping[str, pa.Table]
    ) -> tuple[Sequence[JoinReport], Comparison]:
        left = spark_views(spark, str(self.folder / "flights"), tables)
        with self._step("Warming up, both kinds of joins"):
            self._warm_up(spark, spark.read.parquet(str(parts[0])))
        joins: list[LookupJoin] = []

        def lookups(left: DataFrame) -> DataFrame:
            joins.extend(chain(left, self.database, self.demo.options))
            return joins[-1].df

        result, seconds = self._write(left, lookups, parts, "Joining flights with lookupcache")
        alone = lambda left: spark_join(spark, left)[-1]  # noqa: E731
        theirs, spark_seconds = self._write(left, alone, parts, "Joining flights with Spark alone")
        with self._step("Comparing the results"):
            wrong = difference(result, theirs)
        with self._step("Measuring caches with and without filters"):
            before = spark_join(spark, left)
            reports = [self._report(step, join, left) for step, join, left in zip(JOINS, joins, before, strict=False)]
        counts = [join.metrics() for join in joins]
        lookup = Way(sum(each.fetched_rows for each in counts), sum(each.calls for each in counts), seconds)
        spark_way = Way(sum(table.num_rows for table in tables.values()), 0, spark_seconds)
        stream = " as a stream" if self.demo.stream else ""
        title = f"{self.rows:,} flights{stream}, with tables of planes, airports and weather"
        return reports, Comparison(title, result.count(), wrong, lookup, spark_way)

    def _warm_up(self, spark: SparkSession, left: DataFrame) -> None:
        """Run both kinds of joins over a part, so that neither includes what Spark does once; no cache is filled."""
        for name, df in (
            ("lookup", chain(left, self.database, {"lookup.cache": "NONE"})[-1].df),
            ("spark", spark_join(spark, left)[-1]),
        ):
            df.write.parquet(str(self.folder / f"warm-{name}"))

    # ── the job ──────────────────────────────────────────────────────────────────────────────────────────

    def _write(
        self,
        left: DataFrame,
        join: Callable[[DataFrame], DataFrame],
        parts: Sequence[Path],
        text: str,
    ) -> tuple[DataFrame, float]:
        """Join the flights and write the result as Parquet files; return it, and the seconds that took."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        started = time.perf_counter()
        with self._step(f"{text}, as a {'stream' if self.demo.stream else 'batch'}"):
            if self.demo.stream:
                self._stream(left, join, parts, folder)
            else:
                join(left).write.parquet(str(folder / "out"))
        seconds = time.perf_counter() - started
        return left.sparkSession.read.parquet(str(folder / "out")), seconds

    def _stream(
        self, left: DataFrame, join: Callable[[DataFrame], DataFrame], parts: Sequence[Path], folder: Path
    ) -> None:
        """Let the files arrive in steps; each is one micro-batch or more."""
        inbox = folder / "inbox"
        inbox.mkdir()
        df = join(left.sparkSession.readStream.schema(left.schema).parquet(str(inbox)))
        writer = df.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.format("parquet").start(str(folder / "out"))
        try:
            size = -(-len(parts) // STEPS)
            for start in range(0, len(parts), size):
                for part in parts[start : start + size]:
                    os.link(part, inbox / part.name)
                query.processAllAvailable()
        finally:
            query.stop()

    # ── what it did ──────────────────────────────────────────────────────────────────────────────────────

    def _report(self, step: DemoJoin, join: LookupJoin, left: DataFrame) -> JoinReport:
        """Report a join; ``left`` are the rows that it was given."""
        keys = to_arrow(left.select(*left_names(join.plan)).dropna().distinct())
        return JoinReport(
            title=step.sql,
            table=step.table,
            plan=join.plan,
            metrics=join.metrics(),
            keys=keys.num_rows,
            width=measure_width(join.plan, step.lookup_table(self.database, {}), keys),
        )

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _step(self, text: str) -> Iterator[None]:
        task = self.progress.add_task(text, total=None)
        yield
        self.progress.update(task, total=1, completed=1)


def start_spark(folder: Path) -> SparkSession:
    """Start a local session; the output of the JVM is written to a file in ``folder``, unless it does not start."""
    local_spark_environment()
    from pyspark.sql import SparkSession

    log = folder / "spark.log"
    places = {"spark.local.dir": str(folder / "spark"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    try:
        with _stderr_to(log):
            builder = SparkSession.builder.master("local[*]").appName("lookupcache demo")
            spark = builder.config(map=SETTINGS | places).getOrCreate()
            spark.sparkContext.setLogLevel("ERROR")
    except Exception as error:
        raise LookupCacheError(f"Spark did not start: {error}\n\n{log.read_text()}") from error
    return spark


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send the standard error of this process, and of the processes it starts meanwhile, to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def chain(left: DataFrame, database: Path, options: Mapping[str, str]) -> list[LookupJoin]:
    """Plan the three joins, each on the result of the one before."""
    joins: list[LookupJoin] = []
    for step in JOINS:
        table = step.lookup_table(database, options)
        select = [*(f"f.{name}" for name in left.columns), *step.columns]
        joins.append(LookupJoin(left, table, on=step.on, how=step.how, select=select))
        left = joins[-1].result
    return joins


def spark_views(spark: SparkSession, folder: str, tables: Mapping[str, pa.Table]) -> DataFrame:
    """Make a temporary view of each of the database's tables; return the flights."""
    for name, table in tables.items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    return spark.read.parquet(folder)


def spark_join(spark: SparkSession, left: DataFrame) -> list[DataFrame]:
    """Return the flights, and what Spark's own joins make of them, one join after the other."""
    frames = [left]
    for step in JOINS:
        frames[-1].createOrReplaceTempView("f")
        frames.append(spark.sql(f"SELECT f.*, {', '.join(step.columns)} FROM f {step.sql}"))
    return frames


def _progress(console: Console) -> Progress:
    mark = SpinnerColumn(finished_text="[green]✓")
    return Progress(mark, TextColumn("{task.description}"), BarColumn(16), TimeElapsedColumn(), console=console)
