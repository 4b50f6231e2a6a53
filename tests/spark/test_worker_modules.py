"""Which modules a fresh worker has loaded after its first batch, by kind of source, and with our daemon before it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import RedisServer
from worker_functions import identity, list_modules, squares_of, squares_of_async

from lookupcache import LookupTable, lookup_join
from lookupcache.spark.doctor import DAEMON

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True, scope="module")
def sparks_own_daemon(spark):
    """Let new workers be forked by Spark's own daemon, which imports nothing for them."""
    settings = spark.sparkContext._jsc.sc().conf()
    ours = settings.get(DAEMON)
    settings.set(DAEMON, "pyspark.daemon")
    yield
    settings.set(DAEMON, ours)


ROWS = [(n, n * n) for n in range(10)]
SCHEMA = "n BIGINT, square BIGINT"

_WORKER = """
    arrays cache cache.age cache.column_cache cache.entry_columns cache.entry_numbers cache.entry_rows
    cache.entry_table cache.expiry cache.hash_index cache.in_flight
    cache.key_lookup cache.key_queues cache.keys cache.limits cache.policy
    cache.policy_queues cache.row_cache cache.appended_rows cache.size config config.contradictions
    config.flink config.lookup_config config.values connector error_text errors executor executor.call_group
    executor.job executor.latch executor.nesting executor.thread_slots executor.threads expr functions
    functions.adapter functions.answers functions.connector functions.rows metrics plan redaction report resilience
    resilience.breaker resilience.policy resilience.rate_limit resilience.retry
    resilience.runtime schema secrets shared_error source_options lazy thread_start worker worker.answers
    worker.calls worker.connection worker.error_naming worker.full_cache worker.lookup worker.pandas_import
    worker.partial_cache worker.prefetched worker.runner worker.shared worker.source worker.task
"""
ASYNC = ["executor.coroutines", "executor.task_slots"]
JSON = ["formats", "formats.floats", "formats.json_text", "formats.json_values"]
REDIS = ["redis", "redis.address", "redis.clients", "redis.commands", "redis.errors", "redis.replies"]

SLOW = {"asyncio", "concurrent", "difflib", "email", "html", "secrets", "ssl"}
"""Modules of Python's that take long to import, and that sync sources do without."""

MASKED = "numpy.ma"
"""A part of numpy's that takes long to import; many of numpy's and pyarrow's functions do, where ours are used."""


def in_module(package, *names):
    """Return the modules of a package of a connector."""
    return {package, *(f"{package}.{name}" for name in names)}


def sqlite_table(folder: Path) -> LookupTable:
    with sqlite3.connect(folder / "s.db") as connection:
        connection.execute("CREATE TABLE s (n INTEGER PRIMARY KEY, square INTEGER)")
        connection.executemany("INSERT INTO s VALUES (?, ?)", ROWS)
    return LookupTable("s", SCHEMA, {"connector": "sql", "url": f"sqlite:///{folder}/s.db", "table": "s"})


def files_table(folder: Path) -> LookupTable:
    n, square = zip(*ROWS, strict=True)
    pq.write_table(pa.table({"n": n, "square": square}), folder / "s.parquet")
    return LookupTable("s", SCHEMA, {"connector": "files", "path": str(folder / "s.parquet")})


def postgres_table(request) -> LookupTable:
    from adbc_driver_postgresql import dbapi

    server = request.getfixturevalue("postgres_server")
    with dbapi.connect(server.url) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS squares_of_modules")
        cursor.execute("CREATE TABLE squares_of_modules AS SELECT n, n * n AS square FROM generate_series(0, 9) AS n")
        connection.commit()
    options = {"connector": "sql", "url": server.url, "table": "squares_of_modules"}
    return LookupTable("s", SCHEMA, options)


def redis_table(server: RedisServer) -> LookupTable:
    with server.client() as client:
        for n, square in ROWS:
            client.hset(f"modules:{n}", mapping={"square": square})
    return LookupTable("s", SCHEMA, {"connector": "redis", "url": server.url, "key": "modules:{n}"})


def http_table(request) -> LookupTable:
    service = request.getfixturevalue("service")
    service.set_rows({n: [{"n": n, "square": square}] for n, square in ROWS})
    options = {"connector": "http", "url": service.url + "/rows/{n}"}
    return LookupTable("s", SCHEMA, options)


def function_table(function) -> LookupTable:
    return LookupTable.from_function("s", SCHEMA, key=["n"], function=function)


def modules_of_a_fresh_worker(spark, name, df):
    """Run a job in a fresh worker; return the modules that it has loaded then."""
    # Workers of another environment are of another daemon.
    environment = spark.sparkContext.environment
    environment["LOOKUPCACHE_TEST"] = name
    try:
        rows = df().collect()
        loaded = spark.range(0, 1, 1, 1).mapInArrow(list_modules, "name STRING").collect()
    finally:
        del environment["LOOKUPCACHE_TEST"]
    return rows, {row.name for row in loaded}


@pytest.fixture(scope="module")
def of_identity(spark):
    """Return the modules of a worker whose function returns its input."""
    left = spark.range(0, 10, 1, 1)
    return modules_of_a_fresh_worker(spark, "identity", lambda: left.mapInArrow(identity, "id BIGINT"))[1]


@pytest.fixture
def loaded(spark, of_identity):
    """Return what a worker has loaded after its first batch, beyond an identity: our modules, and others' packages."""

    def modules(name, table):
        left = spark.range(0, 10, 1, 1)
        rows, found = modules_of_a_fresh_worker(
            spark, name, lambda: lookup_join(left, table, "id = s.n", select=["id", "square"])
        )
        assert sorted(map(tuple, rows)) == ROWS
        assert "lookupcache.worker.task" in found, "the list is that of another worker"
        new = found - of_identity
        assert MASKED not in new
        own = {module for module in new if module.partition(".")[0].startswith("lookupcache")}
        return own, {module.partition(".")[0] for module in new - own}

    return modules


def ours(*names):
    return {"lookupcache", *(f"lookupcache.{name}" for name in (*_WORKER.split(), *names))}


def packages(names):
    """Return the packages that are not Python's own."""
    return {name for name in names if name not in sys.stdlib_module_names and not name.startswith("_")}


HOST = """
    environment flow flow.flow flow.waiting host host.claims host.clock host.control host.eviction host.folder
    host.host_cache host.host_search host.joined_rows host.key_index host.maintenance host.mapped_rows host.merge
    host.segment host.segments worker.host_lookup worker.host_scope worker.host_table worker.source_identity
"""


@pytest.mark.extended
def test_of_a_cache_that_workers_share(loaded):
    options = {"lookup.cache": "LRU"}
    table = LookupTable.from_function("s", SCHEMA, key=["n"], function=squares_of, options=options)
    own, others = loaded("host", table)
    assert own == ours(*HOST.split())
    assert not SLOW & others


@pytest.mark.extended
def test_of_a_function(loaded):
    own, others = loaded("function", function_table(squares_of))
    assert own == ours()
    assert packages(others) == {"numpy", "pyarrow"}
    assert not others & SLOW


@pytest.mark.nightly
def test_of_an_async_function(loaded):
    own, others = loaded("async function", function_table(squares_of_async))
    assert own == ours(*ASYNC)
    assert packages(others) == {"numpy", "pyarrow"}


@pytest.mark.extended
def test_of_sqlite(loaded, tmp_path):
    own, others = loaded("sqlite", sqlite_table(tmp_path))
    sqlite = ("sqlite", "sqlite_filters", "sqlite_values")
    files = ("connector", "database", "dialects", "file", "filters", "pool", "query", *sqlite)
    assert own == ours("tls") | in_module("lookupcache_sql", *files)
    assert packages(others) == {"numpy", "pyarrow"}
    assert not others & SLOW


@pytest.mark.nightly
def test_of_files(loaded, tmp_path):
    own, others = loaded("files", files_table(tmp_path))
    assert own == ours() | in_module("lookupcache_files", "connector", "partitions")
    assert packages(others) == {"numpy", "pyarrow"}


@pytest.mark.extended
def test_of_postgres(loaded, request):
    own, others = loaded("postgres", postgres_table(request))
    files = ("connector", "database", "dialects", "filters", "pool", "postgres", "query", "server", "typed")
    assert own == ours("tls", *JSON) | in_module("lookupcache_sql", *files)
    assert packages(others) == {"adbc_driver_manager", "adbc_driver_postgresql", "numpy", "pyarrow"}


@pytest.mark.nightly
def test_of_redis(loaded):
    server = RedisServer().start()
    try:
        own, others = loaded("redis", redis_table(server))
    finally:
        server.close()
    files = ("connector", "keys", "push", "rows", "values")
    assert own == ours("tls", *JSON, *REDIS) | in_module("lookupcache_redis", *files)
    assert packages(others) >= {"numpy", "pyarrow", "redis"}
    assert not others & {"pandas", "sqlglot"}


@pytest.mark.extended
def test_of_http(loaded, request):
    own, others = loaded("http", http_table(request))
    files = ("connector", "rows", "service", "template")
    shared = ("tls", "formats.json_path", "http", "http.client", "http.coding")
    assert own == ours(*shared, *ASYNC, *JSON) | in_module("lookupcache_http", *files)
    assert packages(others) >= {"aiohttp", "numpy", "pyarrow"}
    assert not others & {"pandas", "sqlglot"}


# ── pandas ───────────────────────────────────────────────────────────────────────────────────────────────

DEFERRED = """
import importlib.util, pickle, sys
import numpy as np, pyarrow as pa
from lookupcache.worker.pandas_import import defer_pandas
defer_pandas()
defer_pandas()
pa.array(np.arange(3)), pa.array([1, None], pa.int64()), pa.scalar(1, pa.int64())
import pyarrow.dataset, pyarrow.parquet
importlib.util.find_spec("pandas")
before = "pandas" in sys.modules
import pandas as pd
series = pa.array(pd.Series([1.0, np.nan]))
listed = pa.array([pd.NaT, pd.NA, pd.Timestamp("2013-01-01")], from_pandas=True)
pickle.loads(pickle.dumps(pd.__spec__))
print(before, series.null_count, listed.null_count, listed.type, len(pa.table({"a": [1]}).to_pandas()))
assert not [one for one in sys.meta_path if "lookupcache" in type(one).__module__]
"""


def test_pyarrow_knows_the_types_of_pandas_once_it_is_imported():
    done = subprocess.run([sys.executable, "-c", DEFERRED], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "1", "2", "timestamp[us]", "1"], done.stdout + done.stderr


UNNOTICED = {
    "found by another finder": """
import importlib.machinery
class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path) if name == "pandas" else None
sys.meta_path.insert(0, Finder())
""",
    "our finder removed": "sys.meta_path[:] = before",
}


@pytest.mark.extended
@pytest.mark.parametrize("how", UNNOTICED)
@pytest.mark.parametrize("report", ["defer_pandas", "report_pandas"])
def test_pyarrow_learns_of_pandas_that_was_imported_unnoticed(how, report):
    program = f"""
import pickle, sys
import numpy as np, pyarrow as pa
from lookupcache.worker.pandas_import import defer_pandas, report_pandas
before = list(sys.meta_path)
defer_pandas()
{UNNOTICED[how]}
import pandas as pd
{report}()
print(pa.array(pd.Series([1.0, np.nan])).null_count)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["1"], done.stdout + done.stderr


# ── the daemon ───────────────────────────────────────────────────────────────────────────────────────────


HARMFUL = {
    "exits": "raise SystemExit(3)",
    "interrupts": "raise KeyboardInterrupt",
    "raises": "class E(BaseException): pass\nraise E",
    "closes": "import sys; sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
    "replaces": "import io, sys; sys.stdout = io.StringIO(); sys.stdin = None",
    "removes": "import sys; sys.stdout = sys.stderr = None",
    "reads": "import sys; assert sys.stdin.read() == ''; import os; assert os.read(0, 1) == b''; print('printed')",
    "__main__": None,
}


@pytest.mark.nightly
def test_a_harmful_module_does_not_stop_the_daemon(tmp_path):
    for name, code in HARMFUL.items():
        if code is not None:
            (tmp_path / f"{name}.py").write_text(code)
    program = f"""
import sys
from lookupcache import daemon
output = sys.stdout
daemon.import_modules({list(HARMFUL)})
assert sys.stdout.fileno() == 1 and (output.closed or sys.stdout is output)
print(sys.stdin.readline())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    run = {"input": "unread", "capture_output": True, "text": True, "env": environment}
    done = subprocess.run([sys.executable, "-c", program], **run)
    assert (done.returncode, done.stdout.strip()) == (0, "unread"), done.stderr
    reported = [line.split()[1] for line in done.stderr.splitlines() if "cannot be imported" in line]
    assert reported == ["exits", "interrupts", "raises", "__main__"], done.stderr
    assert "printed" in done.stderr


WITH_DAEMON = """
import json, sys
from lookupcache.java import local_spark_environment
local_spark_environment()
from pathlib import Path
from pyspark.sql import SparkSession
from lookupcache import lookup_join
from test_worker_modules import sqlite_table
from worker_functions import list_modules

settings = {"spark.ui.enabled": "false", "spark.python.daemon.module": "lookupcache.daemon"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
spark.sparkContext.environment["LOOKUPCACHE_DAEMON_IMPORTS"] = "prints_when_imported, fails_when_imported"
left = spark.range(0, 10, 1, 2)

started = Path(sys.argv[1], "started")
started.mkdir()

def draw(batches):
    import os, time
    import numpy as np, pyarrow as pa
    tasks = len(os.listdir("/proc/self/task"))
    # Until the other task has its worker, which would else be this one.
    (started / str(os.getpid())).touch()
    until = time.monotonic() + 60
    while len(os.listdir(started)) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"name": [json.dumps([os.getpid(), np.random.random(), tasks])]})

loaded = {row.name for row in spark.range(0, 1, 1, 1).mapInArrow(list_modules, "name STRING").collect()}
drawn = [json.loads(row.name) for row in left.mapInArrow(draw, "name STRING").collect()]
joined = lookup_join(left, sqlite_table(Path(sys.argv[1])), "id = s.n", select=["id", "square"]).collect()
print(json.dumps([sorted(loaded), drawn, sorted(map(list, joined))]))
spark.stop()
"""


@pytest.mark.extended
def test_workers_of_the_daemon_start_with_all_modules_loaded(tmp_path):
    """Each worker draws its own random numbers."""
    (tmp_path / "prints_when_imported.py").write_text("import os; print('hello'); os.write(1, b'hello')")
    (tmp_path / "fails_when_imported.py").write_text("raise SystemError('broken')")
    paths = [str(tmp_path), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-W", "ignore", "-c", WITH_DAEMON, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    loaded, drawn, joined = json.loads(done.stdout.splitlines()[-1])
    wanted = {*ours("worker.chain", *ASYNC), "lookupcache_sql.sqlite", "pandas", "prints_when_imported"}
    assert sorted(wanted - set(loaded)) == []
    assert "fails_when_imported cannot be imported" in done.stderr
    processes, numbers, threads = zip(*drawn, strict=True)
    assert len(set(processes)) == len(set(numbers)) == 2
    assert set(threads) == {1}
    assert sorted(map(tuple, joined)) == ROWS
