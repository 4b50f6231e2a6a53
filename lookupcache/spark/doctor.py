"""Finds settings of a Spark session that slow lookup joins, and says why: `lookupcache doctor`.

It reads settings, Java, packages and drivers on the driver, and the plan of a query if one is passed. In one small job,
workers try whether they can share their caches. It changes nothing.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

import lookupcache
from lookupcache.connector import connector_class, connector_names
from lookupcache.errors import LookupCacheError
from lookupcache.java import parse_version, supported_java, usable
from lookupcache.latest.tasks import BucketJoin
from lookupcache.opening import OpeningCheck
from lookupcache.report import is_classic
from lookupcache.spark.join import pickle_connector
from lookupcache.spark.latest import PROVIDER, ROCKSDB
from lookupcache.spark.worker_python import CURE, problem_of_workers
from lookupcache.table import LookupTable
from lookupcache.versions import minor, package_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Finding:
    """A setting that was checked: its value, the value it should have (None if it is correct), and why.

    ``must`` says that joins do not run, or break a promise, with this value. ``limit`` says that no setting lets such a
    session do it; then ``wanted`` is the alternative.
    """

    name: str
    found: str
    wanted: str | None
    why: str
    must: bool = False
    limit: bool = False


@dataclass(frozen=True)
class _Rule:
    """A setting: its default in Spark, whether a value is well, what to set, and why."""

    key: str
    default: str
    well: Callable[[str], bool]
    wanted: str
    why: str
    must: bool = False


def _is_true(value: str) -> bool:
    return value.lower() == "true"


def _is_false(value: str) -> bool:
    return value.lower() == "false"


RULES = (
    _Rule(
        "spark.python.udf.pipelined.enabled", "false", _is_true, "true",
        "workers read the next rows while Spark takes in the last ones: joins by workers are a fifth faster or more",
    ),
    _Rule(
        "spark.python.worker.reuse", "true", _is_true, "true",
        "a worker that ends with its task takes its cache and its connections with it", must=True,
    ),
    _Rule(
        "spark.sql.execution.arrow.maxRecordsPerBatch", "10000", lambda rows: 2_000 <= int(rows) <= 50_000, "10000",
        "smaller batches pay the price of each more often, larger ones no longer fit the processor's cache",
    ),
    _Rule(
        "spark.sql.adaptive.enabled", "true", _is_true, "true",
        "the form 'distinct' lets Spark broadcast what was looked up, or sort, by how many keys there turn out to be",
    ),
    _Rule(
        "spark.sql.exchange.reuse", "true", _is_true, "true",
        "the form 'distinct' would find the distinct keys twice",
    ),
    _Rule(
        "spark.sql.autoBroadcastJoinThreshold", "10MB", lambda size: size != "-1", "10MB or more",
        "the form 'distinct' sorts the left side where Spark may not broadcast what was looked up",
    ),
    _Rule(
        "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled", "false", _is_false, "false",
        "the traceback of a failed task would print local variables, and with them what is secret", must=True,
    ),
    _Rule(
        "spark.speculation", "false", _is_false, "false",
        "a task that runs twice calls the source twice",
    ),
)  # fmt: skip


def examine(spark: SparkSession, query: DataFrame | None = None, tables: Sequence[LookupTable] = ()) -> list[Finding]:
    """Look at a session, classic or Spark Connect; return all that was looked at.

    With a ``query``, settings that a stream of its plan needs are checked. The connectors of ``tables`` are opened in
    the workers. Limits of a session on Spark Connect, on serverless compute or in real-time mode are listed too.

    >>> [finding.found for finding in examine(spark) if finding.name == "spark.sql.adaptive.enabled"]
    ['true']
    """
    return [
        *_versions(spark),
        *(_check_rule(spark, rule) for rule in RULES),
        idle_pool(setting(spark, POOL, ""), tasks_at_a_time(spark)),
        daemon(setting(spark, DAEMON, ""), setting(spark, "spark.python.use.daemon", "true")),
        *_cache_folders(spark),
        *(finding for table in tables for finding in _opened_tables(spark, table)),
        *_state_store(spark, query),
        *_limits(spark, query),
        *_packages(),
        *_drivers(),
    ]


POOL = "spark.python.factory.idleWorkerMaxPoolSize"


def idle_pool(size: str, tasks: int | None) -> Finding:
    """Check how many idle workers an executor keeps, ``""`` for all; ``tasks`` is how many it runs at a time.

    >>> idle_pool("", 2).wanted, idle_pool("2", 2).wanted
    (None, 'not set, or 2 tasks × the Python stages of each')
    """
    wanted = f"not set, or {'the tasks at a time' if tasks is None else f'{tasks} tasks'} × the Python stages of each"
    return Finding(POOL, size or "not set", wanted if size else None, _WHY_POOL)


_WHY_POOL = (
    "each Python stage of a task, as each lookup of several in a row, has its own worker; those for which the pool has "
    "no space end with every task, and with them their caches and connections"
)


DAEMON = "spark.python.daemon.module"
_OUR_DAEMON = "lookupcache.daemon"


def daemon(module: str, used: str = "true") -> Finding:
    """Check the module that forks the workers, ``""`` for Spark's, and whether Spark uses one at all.

    >>> daemon("lookupcache.daemon").wanted, daemon("").wanted, daemon("lookupcache.demon").must
    (None, 'lookupcache.daemon', True)
    """
    found = module or "not set"
    if not _is_true(used):
        return Finding("spark.python.use.daemon", used, "true", "without a daemon each worker starts a new Python")
    if not _is_importable(module or _OUR_DAEMON):
        return Finding(DAEMON, found, _OUR_DAEMON, "there is no such module, so no Python worker can start", must=True)
    return Finding(DAEMON, found, None if module == _OUR_DAEMON else _OUR_DAEMON, _WHY_DAEMON)


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


_WHY_DAEMON = (
    "a fresh worker has its modules at once instead of importing them; set it when the session starts, and only where "
    "lookupcache is installed for the executors' Python"
)


def tasks_at_a_time(spark: SparkSession) -> int | None:
    """Return how many tasks run at a time where Python workers are shared: in an executor; None if it does not show."""
    cores = _cores(setting(spark, "spark.master", ""), setting(spark, "spark.executor.cores", ""))
    return None if cores is None else max(cores // int(setting(spark, "spark.task.cpus", "1")), 1)


def _cores(master: str, executor: str) -> int | None:
    """Return the cores of an executor.

    >>> _cores("local", ""), _cores("local[4, 2]", ""), _cores("local-cluster[2, 3, 1024]", ""), _cores("yarn", "8")
    (1, 4, 3, 8)
    """
    if master == "local":
        return 1
    if local := re.fullmatch(r"local\[(\d+|\*).*\]|local-cluster\[ *\d+ *, *(\d+).*\]", master):
        cores = local[1] or local[2]
        return os.cpu_count() if cores == "*" else int(cores)
    return int(executor) if executor else None


def _check_rule(spark: SparkSession, rule: _Rule) -> Finding:
    value = setting(spark, rule.key, rule.default)
    return Finding(rule.key, value or "not set", None if rule.well(value) else rule.wanted, rule.why, rule.must)


def setting(spark: SparkSession, key: str, default: str) -> str:
    """Return a setting's value, or the default where Spark Connect does not show those of the cluster."""
    value = _shown(spark, key)
    if value is None and is_classic(spark):
        value = spark.sparkContext.getConf().get(key)
    return default if value is None else str(value)


def _shown(spark: SparkSession, key: str) -> str | None:
    try:
        value = spark.conf.get(key, None)
    except PySparkException:
        # Serverless compute refuses to show most settings, even with a default.
        return None
    return None if value is None else str(value)


_FOLDER = "cache folder of the workers"
_JOB_SECONDS = 60.0
_IMPORTABLE = "workers that can import lookupcache: install it there, or ship it with addArtifact(…, pyfile=True)"


def _cache_folders(spark: SparkSession) -> list[Finding]:
    """Let workers try their cache folder; one finding for each reason why they share no cache, or one that they do."""
    try:
        checks = _check_in_workers(spark)
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        return [Finding(_FOLDER, "unknown", _IMPORTABLE, f"the job that checks it failed: {text}")]
    hosts = len({host for host, _ in checks})
    problems = [(host, problem) for host, problem in checks if problem]
    if not problems:
        return [Finding(_FOLDER, f"usable on {hosts} host{'s' * (hosts != 1)}", None, "")]
    return [
        Finding(
            _FOLDER, f"not usable on {host}", "a local directory (spark.local.dir) that may be written",
            f"each worker there has its own cache, with 'lookup.cache.scope' auto or host: {problem}",
        )
        for host, problem in problems
    ]  # fmt: skip


def _check_in_workers(spark: SparkSession) -> list[tuple[str, str | None]]:
    """Return hosts, and for each why its workers cannot share caches."""
    from lookupcache.worker.host_scope import check_folder

    return _checked_in_workers(spark, check_folder)


def _opened_tables(spark: SparkSession, table: LookupTable) -> list[Finding]:
    """Let workers open a table's connector; one finding for each host where that fails, or one that it is opened."""
    name = f"table {table.name}"
    try:
        table = table.in_session(spark.conf.get)
        checks = _checked_in_workers(spark, OpeningCheck(pickle_connector(table), table.config.async_))
    except LookupCacheError as error:
        return [Finding(name, "not opened", error.hint or "another definition", error.fact, must=True)]
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        return [Finding(name, "unknown", _IMPORTABLE, f"the job that opens it failed: {text}", must=True)]
    hosts = len({host for host, _ in checks})
    failed = [
        Finding(name, f"not opened on {host}", "a source that the workers can open", problem, must=True)
        for host, problem in checks
        if problem is not None
    ]
    return failed or [Finding(name, f"opened on {hosts} host{'s' * (hosts != 1)}", None, "")]


def _checked_in_workers(spark: SparkSession, check: Callable[..., Any]) -> list[tuple[str, str | None]]:
    """Run a check in as many tasks as an executor runs at a time; return each host with the problem that it has."""
    tasks = tasks_at_a_time(spark) or 2
    with _cancelled_after(spark, _JOB_SECONDS):
        checked = spark.range(0, tasks, 1, tasks).mapInArrow(check, "host string, problem string")
        return sorted({(row.host, row.problem) for row in checked.collect()}, key=str)


@contextmanager
def _cancelled_after(spark: SparkSession, seconds: float) -> Iterator[None]:
    """Cancel the jobs that run inside if they take too long."""
    tag, context = f"lookupcache-doctor-{os.getpid()}", spark.sparkContext if is_classic(spark) else None
    # Classic sessions of Spark 3.5 have no tags, but their context has.
    add, remove, cancel = (
        (spark.addTag, spark.removeTag, spark.interruptTag)
        if context is None
        else (context.addJobTag, context.removeJobTag, context.cancelJobsWithTag)
    )
    timer = threading.Timer(seconds, cancel, [tag])
    add(tag)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        remove(tag)


def _versions(spark: SparkSession) -> Iterator[Finding]:
    """Yield the versions; where Spark or Python is too old, the import of this module is refused."""
    yield Finding("lookupcache", lookupcache.__version__, None, "")
    yield Finding("Spark", spark.version, None, "")
    yield Finding("Python", sys.version.split()[0], None, "")
    yield Finding("platform", platform.platform(), None, "")
    if (problem := problem_of_workers(spark)) is not None:
        yield Finding("Python of the workers", "another", CURE, problem, must=True)
    yield from _java(spark)


def _java(spark: SparkSession) -> Iterator[Finding]:
    jvm = spark.sparkContext._jvm if is_classic(spark) else None
    if jvm is None:
        return
    version = str(jvm.java.lang.System.getProperty("java.version"))
    wanted = None if usable(parse_version(version), minor(spark.version)) else supported_java(minor(spark.version))
    yield Finding("Java", version, wanted, "Spark runs on no other", must=True)


_CONNECT_LIMITS = (
    Finding(
        "counts by accumulator", "not on Spark Connect", "'lookup.metrics' = 'observe', which is the default here",
        "accumulators need the driver's JVM: a batch is counted at its first action, a stream with each micro-batch",
        limit=True,
    ),
    Finding(
        "choice of a form by size", "not on Spark Connect", "'lookup.form', where another form than 'worker' is faster",
        "the size of the left side is known to the server alone, so 'auto' takes the form 'worker'", limit=True,
    ),
    Finding(
        "check of Java and the state store", "not on Spark Connect", "a look at them on the server",
        "they are in the driver's JVM", limit=True,
    ),
)  # fmt: skip
_NO_SETTINGS = Finding(
    "settings of the cluster",
    "not shown by this server",
    "the settings above, where the service has such",
    "on serverless compute they belong to the service: those above are Spark's defaults, and may be others. "
    "lookupcache.daemon, the idle pool and a local directory for the cache cannot be set; install lookupcache in the "
    "environment of the service, or ship it with addArtifact(…, pyfile=True)",
    limit=True,
)
_REAL_TIME = Finding(
    "real-time mode", "runs no lookup join", "another trigger than realTime, as processingTime or availableNow",
    "Spark runs no Python operator such as mapInArrow in real-time mode, and refuses the query when it starts",
    limit=True,
)  # fmt: skip


def _limits(spark: SparkSession, query: DataFrame | None) -> Iterator[Finding]:
    """Yield the limits of the session: on Spark Connect, on serverless compute, in real-time mode."""
    if not is_classic(spark):
        yield from _CONNECT_LIMITS
        if _shown(spark, "spark.master") is None:
            yield _NO_SETTINGS
    if query is None or query.isStreaming:
        yield _REAL_TIME


def _state_store(spark: SparkSession, query: DataFrame | None) -> Iterator[Finding]:
    """Look at the state store of a stream that joins with latest values, which are in it."""
    if query is None or not query.isStreaming or not is_classic(spark):
        return
    if BucketJoin.__name__ in query._jdf.queryExecution().analyzed().toString():
        provider = setting(spark, PROVIDER, "")
        wanted = None if provider == ROCKSDB else ROCKSDB
        yield Finding(PROVIDER, provider or "not set", wanted, _WHY_ROCKSDB)


_WHY_ROCKSDB = (
    "the default provider keeps the latest values of a stream in the memory of the executors, and a query with several "
    "such joins needs this one; it must be set before the query first starts"
)


def _packages() -> Iterator[Finding]:
    for name in ("pyarrow", "pandas"):
        yield _package(name, name, f"Spark's mapInArrow needs {name} on the driver", must=True)
    for name in ("numpy", "cloudpickle", "sqlglot"):
        yield _package(name, name, f"lookupcache needs {name}", must=True)


def _drivers() -> Iterator[Finding]:
    """Look for the packages that connectors need; workers need them too."""
    for name in connector_names():
        try:
            drivers = connector_class(name).drivers
        except LookupCacheError as error:
            yield Finding(f"connector {name}", "cannot be imported", error.hint or "see why", error.fact)
            continue
        for module, package in drivers.items():
            yield _package(module, package, f"connector {name!r} wants it, for some sources at least; workers too")


def _package(module: str, package: str, why: str, *, must: bool = False) -> Finding:
    missing = importlib.util.find_spec(module) is None
    return Finding(
        f"package {module}",
        "missing" if missing else package_version(module) or "there",
        f"pip install '{package}'" if missing else None,
        why,
        must,
    )
