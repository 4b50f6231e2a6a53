"""Scope host in Spark: each key is requested once by all workers of the machine, across tasks, jobs and workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import host_application
import pytest

from lookupcache import LookupTable, lookup_join

pytestmark = pytest.mark.spark
KEYS = 500


def logged(path: str):
    """Return a function of one key that notes in a file for which keys it was called, and by whom."""

    def name_of(number: int) -> list[tuple[int, str]]:
        with open(path, "a") as log:
            log.write(f"{number}\n")
        return [(number, f"n{number}")] if number % 5 else []

    return name_of


def test_all_workers_request_each_key_once(spark, tmp_path):
    path = str(tmp_path / "log")
    table = LookupTable.from_function(
        "names", "id BIGINT, name STRING", key=["id"], function=logged(path),
        options={"lookup.cache": "LRU"},
    )  # fmt: skip
    left = spark.range(4 * KEYS, numPartitions=4).selectExpr(f"id % {KEYS} AS k")
    joined = lookup_join(left, table, on="k = names.id", how="left", select=["k", "name"])
    for _ in range(2):
        wrong = joined.where("name IS DISTINCT FROM IF(k % 5 = 0, NULL, concat('n', k))")
        assert (joined.count(), wrong.count()) == (4 * KEYS, 0)
    requested = Path(path).read_text().split()
    assert len(requested) == len(set(requested)) == KEYS


def test_a_path_outlives_the_workers(spark, tmp_path):
    path, cache = str(tmp_path / "log"), str(tmp_path / "cache")
    table = LookupTable.from_function(
        "names", "id BIGINT, name STRING", key=["id"], function=logged(path),
        options={"lookup.cache": "LRU", "lookup.cache.scope": "host", "lookup.cache.path": cache},
    )  # fmt: skip
    reuse = spark.conf.get("spark.python.worker.reuse", None)
    assert reuse in (None, "true")
    left = spark.range(100, numPartitions=2).selectExpr("id AS k")
    for _ in range(2):
        joined = lookup_join(left, table, on="k = names.id", select=["k", "name"], how="left")
        assert joined.count() == 100
    [folder] = Path(cache).iterdir()
    assert any(folder.glob("*.seg"))
    assert len(Path(path).read_text().split()) == 100


@pytest.mark.parametrize(("path", "place"), [("kept", "job/kept"), ("~/kept", "home/kept")])
def test_a_relative_path_starts_where_the_driver_plans(spark, monkeypatch, tmp_path, path, place):
    """The workers of this session have started elsewhere."""
    (tmp_path / "job").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    table = LookupTable.from_function(
        "names", "id BIGINT, name STRING", key=["id"], function=logged(str(tmp_path / "log")),
        options={"lookup.cache": "LRU", "lookup.cache.path": path},
    )  # fmt: skip
    monkeypatch.chdir(tmp_path / "job")
    joined = lookup_join(spark.range(9), table, on=["id"], how="left")
    monkeypatch.chdir(tmp_path)
    assert joined.count() == 9
    [folder] = (tmp_path / place).iterdir()
    assert any(folder.glob("*.seg"))


@pytest.fixture(scope="module")
def applications(spark, tmp_path_factory):
    """Return the folder of two applications that have shared a cache; the workers of one of them end with each task."""
    folder = tmp_path_factory.mktemp("applications")
    command = [sys.executable, host_application.__file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "ready\n"
            other.stdin.write("go\n")
            other.stdin.flush()
            counted = host_application.batch(spark, folder)
            other.communicate(timeout=300)
        finally:
            other.kill()
    assert other.returncode == 0
    return folder, counted, json.loads((folder / "counts.json").read_text())


ALL_RIGHT = [4 * host_application.KEYS, 0]


@pytest.mark.nightly
def test_two_applications_with_one_path_request_each_key_once(applications):
    folder, ours, theirs = applications
    assert [list(ours), theirs["batch"]] == [ALL_RIGHT, ALL_RIGHT]
    requested = (folder / "batch.log").read_text().split()
    assert len(requested) == len(set(requested)) == host_application.KEYS


@pytest.mark.nightly
def test_micro_batches_whose_workers_end_request_each_key_once(applications):
    folder, _, theirs = applications
    counts, keys = theirs["stream"], host_application.KEYS
    assert counts["counted"] == [3 * keys, 0]
    assert (counts["rows"], counts["requested_keys"]) == ([keys] * 3, [keys, 0, 0])
    assert (counts["hits"], counts["host_hits"]) == ([0, keys, keys], [0, keys, keys])
    assert len((folder / "stream.log").read_text().split()) == keys


JOB = """
import sys
from pyspark.sql import SparkSession
from lookupcache import LookupTable, lookup_join
from lookupcache.java import local_spark_environment
import rates

class Fetch:
    def __init__(self, log):
        self.log = log
    def __call__(self, id):
        with open(self.log, "a") as log:
            log.write(f"{id}\\n")
        return [(id, id * rates.RATE)]

class Plain:
    def __call__(self, id):
        return Fetch("object.log")(id)

local_spark_environment()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
left = spark.range(40).selectExpr("id % 20 AS k")
for name, function in {"object": Fetch("object.log"), "kind": Plain, "method": Fetch("method.log").__call__}.items():
    table = LookupTable.from_function(name, "id BIGINT, v BIGINT", key="id", function=function,
                                      options={"lookup.cache": "LRU", "lookup.cache.path": "cache"})
    print(name, lookup_join(left, table, on=f"k = {name}.id", how="left", select=["v"]).selectExpr("sum(v)").first()[0])
"""


@pytest.mark.extended
def test_a_second_application_over_a_kept_path_asks_nothing(tmp_path):
    """With callable objects, classes and bound methods of a script, which workers get without their source.

    The code may read any variable of Spark, but those of one application say nothing of the rows.
    """
    (tmp_path / "job.py").write_text(JOB)
    reads = "def of(name): return [os.environ[one + name] for one in ('SPARK_', 'PYSPARK_', 'PYTHON_')]"
    (tmp_path / "rates.py").write_text(f"import os\nRATE = 1\n{reads}\n")

    def run():
        logs = [tmp_path / f"{name}.log" for name in ("object", "method")]
        for log in logs:
            log.write_text("")
        told = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, check=True, capture_output=True, text=True)
        return told.stdout.split(), [len(log.read_text().split()) for log in logs]

    rows = ["object", "380", "kind", "380", "method", "380"]
    assert run() == (rows, [40, 20])
    assert run() == (rows, [0, 0])


EDITED_JOB = """
import importlib, os, sys
from pyspark.sql import SparkSession
from lookupcache import LookupTable, lookup_join
from lookupcache.java import local_spark_environment
import prices

def rows(name, options):
    table = LookupTable.from_function(name, "id BIGINT, v STRING", key="id", function=prices.price, options=options)
    joined = lookup_join(spark.range(2), table, on="id", select=["v"])
    return joined if name == "t" else joined.collect()

local_spark_environment()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
mode, kept = sys.argv[1:]
if mode == "reloaded":
    rows("other", {})  # The worker, which the next join uses again, loads the module.
    os.replace("later.py", "prices.py")
    importlib.invalidate_caches()
    importlib.reload(prices)
joined = rows("t", {"lookup.cache": "LRU", kept: os.path.abspath("kept")})
if mode == "edited":
    os.replace("later.py", "prices.py")
print(*sorted({row.v for row in joined.collect()}))
"""
PRICES = "VALUE = %r\ndef price(id):\n    open('calls.log', 'a').write(f'{id} ')\n    return [(id, VALUE)]\n"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("mode", "kept", "read"),
    [("edited", "path", "new"), ("edited", "store", "new"), ("reloaded", "path", "old"), ("unchanged", "path", "old")],
)
def test_rows_of_another_code_than_the_drivers_are_not_kept(tmp_path, mode, kept, read):
    """A worker imports the module itself: later than the driver, or, if it is used again, before the driver did."""
    (tmp_path / "job.py").write_text(EDITED_JOB)
    (tmp_path / "prices.py").write_text(PRICES % "old")
    (tmp_path / "later.py").write_text("# Edited.\n" + PRICES % "new")
    log = tmp_path / "calls.log"

    def run(mode):
        log.write_text("")
        command = [sys.executable, "job.py", mode, f"lookup.cache.{kept}"]
        told = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return told.stdout.split(), len(log.read_text().split()), "Start the application again" in told.stderr

    is_changed = mode != "unchanged"
    assert run(mode) == ([read], 4 if mode == "reloaded" else 2, is_changed)
    if mode == "edited":
        (tmp_path / "prices.py").write_text(PRICES % "old")
    now = "new" if mode == "reloaded" else "old"
    assert run("unchanged") == ([now], 2 if is_changed else 0, False)
