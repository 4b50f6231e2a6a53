"""Fixtures shared by all tests: a Spark session, servers and an HTTP service; and in CI, no test may be skipped."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import class_archive
import drawing
import hung
import hypothesis
import lanes
import pytest
import trustme
from arrivals import Arrivals
from audit import watching
from servers import MariaServer, PostgresServer, RedisServer
from service import Service

from lookupcache.java import local_spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Must run before pyspark is imported. Without SPARK_TESTING, a second Spark Connect server fails on its fixed port.
local_spark_environment()
os.environ["SPARK_TESTING"] = "1"
os.environ.setdefault("SPARK_SUBMIT_OPTS", class_archive.jvm_options())
# A process that is aborted prints where it stands.
os.environ.setdefault("PYTHONFAULTHANDLER", "1")
# Workers import functions and connectors of the tests by name.
HERE = Path(__file__).parent
FOLDERS = sorted({str(path.parent) for path in [Path(__file__), *HERE.glob("*/*.py")]} - {str(HERE / "stranger")})
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*FOLDERS, os.environ.get("PYTHONPATH")]))

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
# A separate package, which test_stranger.py installs and tests.
collect_ignore = ["stranger"]
if importlib.util.find_spec("chdb") is None:
    # 500 MB: pip install '.[clickhouse]'.
    collect_ignore.append("connectors/test_connector_sql_clickhouse.py")
if "LOOKUPCACHE_FIREBIRD" not in os.environ:
    # Debian's firebird3.0-server, pip install sqlalchemy-firebird firebird-driver, and the URL of an empty database.
    collect_ignore.append("connectors/test_connector_sql_firebird.py")
if "LOOKUPCACHE_SPARK_FILES" not in os.environ:
    # A folder of Spark's sources, which are no part of this project.
    collect_ignore.append("sql/test_spark_files.py")
if "LOOKUPCACHE_FLINK_JOBS" not in os.environ:
    collect_ignore.append("sql/test_flink_jobs.py")

IN_CI = os.environ.get("CI", "") not in ("", "false")


AUDITED_FOLDERS = {"cache", "worker", "executor", "decorator", "host"}


@pytest.fixture(autouse=True)
def audited(request: pytest.FixtureRequest) -> Iterator[None]:
    """Audit every cache and lookup of a test of these folders; the marker ``leaves`` names what a test may leave."""
    if request.path.parent.name not in AUDITED_FOLDERS:
        yield
        return
    with watching() as auditor:
        yield
        allowed = [part for marker in request.node.iter_markers("leaves") for part in marker.args]
        violations = [text for text in auditor.finish() if not any(part in text for part in allowed)]
    assert not violations, "The audit found:\n" + "\n".join(violations)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a classic session with two cores and two attempts per task; it is shared, so restore changed settings."""
    from pyspark.sql import SparkSession
    from spark3 import add_names_of_spark_4

    add_names_of_spark_4(tmp_path_factory.mktemp("tables"))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        # Compiling a query of a few rows takes longer than running it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Spark checks its own rules where it takes a process for a test of its own.
        "spark.sql.analyzer.singlePassResolver.dualRunWithLegacy": "false",
        "spark.sql.planChangeValidation": "false",
        # Workers give batches with exactly the columns that Spark was told of.
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
        "spark.sql.lightweightPlanChangeValidation": "false",
        "spark.default.parallelism": "2",
        # The default of Spark 4: files of Arrow have the dates that they say.
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        # What Spark keeps of a thousand queries for its pages fills a gigabyte, and each collection of it takes longer.
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.driver.memory": "3g",
        # A job that fails ends its Python workers, and the next ones would import everything again.
        "spark.python.daemon.module": "lookupcache.daemon",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    builder = SparkSession.builder.master("local[2, 2]").appName("lookupcache tests")
    with pytest.MonkeyPatch.context() as patch:
        if os.environ["SPARK_SUBMIT_OPTS"] == class_archive.jvm_options():
            patch.setenv("SPARK_SUBMIT_OPTS", class_archive.jvm_options(class_archive.LARGE))
        session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def arrivals(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Arrivals]]:
    """Return a function from a join of two streams, orders and rates, to their arrivals."""
    made: list[Arrivals] = []

    def make(joined: Callable[..., Any], sink: str = "foreachBatch", **options: str) -> Arrivals:
        made.append(Arrivals(spark, tmp_path, joined, options=options, sink=sink))
        return made[-1]

    partitions = str(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield make
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    for one in made:
        one.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Return a PostgreSQL server; a test that kills it starts it again."""
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture(scope="session")
def maria_server() -> Iterator[MariaServer]:
    """Return a MariaDB server; a test that kills it starts it again."""
    server = MariaServer()
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    """Return a Redis server, of a module; a test that kills it starts it again."""
    server = RedisServer()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the certificates of an authority, a server, another host and a client."""
    folder, made = tmp_path_factory.mktemp("tls"), trustme.CA()
    made.cert_pem.write_to_path(folder / "ca.pem")
    for name, whose in {"server": "127.0.0.1", "elsewhere": "elsewhere.test", "client": "client"}.items():
        made.issue_cert(whose).private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
    return folder


@pytest.fixture(scope="session")
def running_service() -> Iterator[Service]:
    """Return the HTTP service's process, which all tests share; tests use the fixture `service`."""
    service = Service()
    try:
        service.start()
        yield service
    finally:
        service.kill()


@pytest.fixture
def service(running_service: Service) -> Service:
    """Return a real HTTP service without rows and faults; a test may inject faults and kill it."""
    running_service.reset()
    return running_service


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the shorter and the longer lane."""
    parser.addoption(
        "--fast", action="store_true", help="only tests without Spark, servers and other processes, with few examples"
    )
    parser.addoption("--all", action="store_true", help="all tests that run by day")
    parser.addoption(
        "--sample", type=int, help="run one of this number of tests that only --all runs, others with each commit"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw few examples with `--fast`, and in both shorter lanes the same ones in every run."""
    is_short = lanes.chosen_lane(config) <= lanes.Lane.STANDARD
    # No deadline: on a busy machine an example may take any time.
    hypothesis.settings.register_profile("own", deadline=None, derandomize=is_short)
    hypothesis.settings.register_profile("fast", parent=hypothesis.settings.get_profile("own"),
                                         max_examples=drawing.FAST_EXAMPLES)  # fmt: skip
    hypothesis.settings.load_profile("own")
    if version("pyspark").startswith("3."):
        # PySpark 3.5 leaves the sockets of its results and of its accumulators to the garbage collector.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
        config.addinivalue_line("filterwarnings", "ignore:Exception ignored in. <socket")
    if config.getoption("--fast"):
        hypothesis.settings.load_profile("fast")
        drawing.draw_few()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--fast`, do not even import tests that are left out: importing Spark takes a second."""
    omitted = collection_path.name in lanes.SLOW_FOLDERS + lanes.SLOW_FILES
    return True if config.getoption("--fast") and omitted else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of longer lanes; run the longest file first, so that the test processes end together."""
    lanes.deselect(config, items)
    items.sort(key=lambda item: item.path.name != "test_properties.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Replace a test process that ends, so that the other tests go on."""
    from replacing import ReplacingScheduling

    return ReplacingScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Keep modules and tests, a million objects, out of the collections of garbage that follow."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs; where its thread cannot be interrupted, pytest ends the process, which is replaced."""
    limit = float(item.config.getini("faulthandler_timeout") or 0)
    with hung.watched(limit / 2) if limit else nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, report a skipped test as failed: it tested nothing."""
    return _fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, report a skipped module as failed too."""
    return _fail_if_skipped((yield))


def _fail_if_skipped(report: Report) -> Report:
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"Skipped in CI: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show which files take the longest, all their tests together."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    shown = 4 * (terminalreporter.config.getoption("durations") or 3)
    if sum(seconds.values()) > 60:
        terminalreporter.section("slowest files, in seconds")
        for name, total in seconds.most_common(shown):
            terminalreporter.write_line(f"{total:8.1f} {name}")
