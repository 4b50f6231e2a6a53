"""What the doctor finds in a session, and how the command tells it."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
import sqlglot
from needs import needs_spark
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from python_stages import python_stages

import lookupcache
from lookupcache import LookupTable, lookup_join
from lookupcache.demo import flights
from lookupcache.demo.run import SETTINGS, chain
from lookupcache.spark.doctor import (
    DAEMON,
    POOL,
    RULES,
    _cache_folders,
    _versions,
    daemon,
    examine,
    idle_pool,
    tasks_at_a_time,
)

pytestmark = pytest.mark.spark

ILL = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.exchange.reuse": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled": "true",
}


@pytest.fixture
def ill(spark):
    """Return a session of its own with settings that do not help."""
    session = spark.newSession()
    for key, value in ILL.items():
        session.conf.set(key, value)
    return session


@pytest.mark.extended
def test_settings_that_do_not_help_are_named_with_a_cure(ill):
    found = {finding.name: finding for finding in examine(ill)}
    assert [key for key in ILL if found[key].wanted is None or found[key].found != ILL[key]] == []
    assert found["spark.python.udf.pipelined.enabled"].wanted == "true"
    assert found["spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled"].must


@pytest.mark.extended
def test_correct_settings_are_reported_too(spark):
    well = {finding.name for finding in examine(spark) if finding.wanted is None}
    assert {"spark.python.worker.reuse", "spark.sql.adaptive.enabled", "Java", "package pyarrow"} <= well


def test_all_versions_are_listed(spark):
    found = {finding.name: finding.found for finding in examine(spark)}
    assert (found["Spark"], found["lookupcache"]) == (spark.version, lookupcache.__version__)
    assert found["Python"] == platform.python_version()
    assert (found["package pyarrow"], found["package sqlglot"]) == (pa.__version__, sqlglot.__version__)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
def test_the_demo_sets_what_helps(rule):
    assert rule.well(SETTINGS.get(rule.key, rule.default))


def test_workers_try_the_folder_of_their_caches(spark):
    [found] = _cache_folders(spark)
    assert (found.found, found.wanted) == ("usable on 1 host", None)


def test_why_workers_share_no_cache_is_told(spark, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    # Defined here, it is pickled with what it does, and tries another folder in the workers.
    monkeypatch.setattr("lookupcache.worker.host_scope.check_folder", check_in(str(tmp_path / "file" / "blockmgr")))
    [found] = _cache_folders(spark)
    assert "file" in found.why
    assert found.wanted is not None


def check_in(path):
    """Return a check of another local directory."""

    def check(batches):
        import os

        from lookupcache.worker.host_scope import check_folder

        before, os.environ["SPARK_LOCAL_DIRS"] = os.environ["SPARK_LOCAL_DIRS"], path
        yield from check_folder(batches)
        os.environ["SPARK_LOCAL_DIRS"] = before

    return check


def test_the_connector_of_a_table_is_opened_in_the_workers(spark, tmp_path, monkeypatch):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE people (id INTEGER PRIMARY KEY)")
    options = {"connector": "sql", "url": f"sqlite:///{tmp_path}/shop.db", "table": "people"}
    tables = [
        LookupTable("there", "id BIGINT", options),
        LookupTable("gone", "id BIGINT", {**options, "url": f"sqlite:///{tmp_path}/no.db"}),
        LookupTable("unset", "id BIGINT", {**options, "url": "env:NO_SUCH_URL"}),
    ]
    found = {one.name: one for one in examine(spark, tables=tables) if one.name.startswith("table ")}
    assert (found["table there"].found, found["table there"].wanted) == ("opened on 1 host", None)
    assert found["table gone"].must
    assert "there is no database file" in found["table gone"].why
    assert "NO_SUCH_URL" in found["table unset"].why


def test_another_python_of_the_workers_is_named(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "no-such-python")
    [found] = [one for one in _versions(spark) if one.name == "Python of the workers"]
    assert (found.must, "no-such-python" in found.why, "PYSPARK_PYTHON" in found.wanted) == (True, True, True)


def limits_of(spark, query=None) -> set[str]:
    return {finding.name for finding in examine(spark, query) if finding.limit}


@pytest.mark.extended
def test_real_time_mode_is_a_limit_of_streams(spark):
    stream = spark.readStream.format("rate").load().selectExpr("value AS id")
    assert limits_of(spark) == limits_of(spark, looked_up(stream, "a")) == {"real-time mode"}
    assert limits_of(spark, rows(spark)) == set()


@needs_spark("4.3", "real-time mode takes queries without state since Spark 4.3")
def test_spark_refuses_a_lookup_in_real_time_mode(spark, tmp_path):
    stream = looked_up(real_time_source(spark), "a")
    writer = stream.writeStream.format("console").outputMode("update").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(realTime="5 minutes").start()
    try:
        with pytest.raises(StreamingQueryException, match=r"MapInArrowExec.* not in the operator allowlist"):
            query.awaitTermination(60)
    finally:
        query.stop()


def real_time_source(spark):
    """Return a stream of a source that real-time mode accepts: Spark looks at the operators above such a one only."""
    jvm = spark._jvm
    numbers = jvm.org.apache.spark.sql.Encoders.LONG()
    source = jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream.singlePartition(
        spark._jsparkSession, numbers
    )
    return DataFrame(source.toDF(), spark).selectExpr("value AS id")


# ── idle workers ─────────────────────────────────────────────────────────────────────────────────────────


def worker_of(key):
    """Return, as the row of a key, the process that looks it up."""
    return [(key, os.getpid())]


def looked_up(left, *names):
    """Join with a number of lookups in a row; each adds a column with its worker's process."""
    for name in names:
        options = {"lookup.form": "worker", "lookup.fuse": "off"}
        table = LookupTable.from_function(name, f"id BIGINT, {name} BIGINT", key=["id"], function=worker_of,
                                          options=options)  # fmt: skip
        left = lookup_join(left, table, on=["id"], select=[*(f"l.{old}" for old in left.columns), f"{name}.{name}"])
    return left


def rows(spark):
    return spark.range(20, numPartitions=1)


def test_an_idle_pool_that_is_set_is_pointed_out(spark):
    [pool] = [finding for finding in examine(spark) if finding.name == POOL]
    assert (pool.found, pool.wanted) == ("not set", None)
    assert idle_pool("2", None).wanted == "not set, or the tasks at a time × the Python stages of each"


def test_a_daemon_that_cannot_be_imported_must_be_changed(spark):
    [found] = [finding for finding in examine(spark) if finding.name == DAEMON]
    assert (found.wanted, found.must) == (None, False)
    assert daemon(SETTINGS[DAEMON]).wanted is None
    assert (daemon("").wanted, daemon("").must) == ("lookupcache.daemon", False)
    for module in ("lookupcache.demon", "no_such_package.daemon", ".daemon"):
        assert daemon(module).must
    assert daemon("pyspark.daemon", used="false").name == "spark.python.use.daemon"


def test_the_tests_session_runs_two_tasks_at_a_time(spark):
    assert tasks_at_a_time(spark) == 2


def test_the_demo_keeps_its_workers(spark, tmp_path):
    flights.fill_database(tmp_path / "flights.db")
    flights.write_parts(flights.read_flights(100), tmp_path / "flights", 2)
    [*_, last] = chain(spark.read.parquet(str(tmp_path / "flights")), tmp_path / "flights.db", {})
    assert python_stages(last.df) == 1, "the three joins share a stage"
    assert POOL not in SETTINGS


RUN_TWICE = """
import json, sys
from lookupcache.spark.doctor import POOL
from lookupcache.java import local_spark_environment
local_spark_environment()
from pyspark.sql import SparkSession
from test_doctor import looked_up, rows

reported = []
for pool in json.loads(sys.argv[1]):
    settings = {"spark.ui.enabled": "false", POOL: pool} if pool else {"spark.ui.enabled": "false"}
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    df = looked_up(rows(spark), "a", "b", "c")
    same = [sorted({value for row in df.collect() for value in row[1:]}) for _ in range(2)]
    reported.append(same[0] == same[1])
    spark.stop()
print(json.dumps(reported))
"""


@pytest.mark.nightly
@pytest.mark.nightly
def test_workers_outlive_tasks_only_with_a_sufficient_idle_pool():
    """One task at a time has three Python stages."""
    paths = [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", RUN_TWICE, json.dumps(["", "3", "1"])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True, False]


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly
def test_the_command_examines_a_separate_session():
    command = [sys.executable, "-m", "lookupcache", "doctor", "--conf", "spark.python.worker.reuse=false"]
    command += ["--conf", "spark.master=local[1]"]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert result.returncode == 1, result.stdout + result.stderr
    words = " ".join(result.stdout.split())
    assert "required spark.python.worker.reuse = false" in words
    assert "takes its cache and its connections with it" in words
