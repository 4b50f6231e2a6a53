"""Queries that stop early, and queries that start again where they stopped."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from pathlib import Path

import pytest
from multisets import multiset
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812
from sources import PEOPLE, SCHEMA, rows_of

from lookupcache import LookupJoin, LookupTable

pytestmark = pytest.mark.spark


def people(function, **options) -> LookupTable:
    options = {"lookup.cache": "LRU", "lookup.max-retries": "0", **options}
    return LookupTable.from_function("p", SCHEMA, key=["id"], function=function, options=options)


# ── starting again ───────────────────────────────────────────────────────────────────────────────────────


class Stream:
    """A folder of files that a query reads one at a time, its results and its checkpoint."""

    def __init__(self, spark, folder: Path) -> None:
        self.spark = spark
        self.source, self.sink, self.checkpoint = (str(folder / name) for name in ("in", "out", "check"))

    def add(self, *people: int) -> None:
        self.spark.createDataFrame([(id_,) for id_ in people], "person BIGINT").coalesce(1).write.mode(
            "append"
        ).parquet(self.source)

    def run(self, table: LookupTable) -> LookupJoin:
        stream = self.spark.readStream.schema("person BIGINT").option("maxFilesPerTrigger", 1).parquet(self.source)
        join = LookupJoin(stream, table, "person = p.id", "left")
        writer = join.df.writeStream.format("parquet").option("checkpointLocation", self.checkpoint)
        writer.trigger(availableNow=True).start(self.sink).awaitTermination()
        return join

    def check(self) -> None:
        right = self.spark.createDataFrame(PEOPLE, SCHEMA).alias("p")
        theirs = self.spark.read.parquet(self.source).join(right, F.expr("person = p.id"), "left")
        assert multiset(self.spark.read.parquet(self.sink)) == multiset(theirs)


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize("channel", ["accumulator", "observe", "off"])
def test_a_stream_continues_where_it_stopped(spark, tmp_path, channel):
    stream, table = Stream(spark, tmp_path), people(rows_of, **{"lookup.metrics": channel})
    stream.add(1, 2, 3)
    stream.run(table)
    stream.add(2, 7)
    stream.add(3)
    join = stream.run(table)
    stream.check()
    if channel == "accumulator":
        assert join.metrics().rows == 3


def fails_for_two(key):
    if key == 2:
        raise ConnectionError("no route")
    return rows_of(key)


@pytest.mark.extended
def test_a_failed_stream_continues_with_the_failed_batch(spark, tmp_path):
    stream = Stream(spark, tmp_path)
    for person in (1, 3, 2, 9):
        stream.add(person)
    with pytest.raises(StreamingQueryException, match=r"the lookup of 1 key failed after 1 attempt"):
        stream.run(people(fails_for_two))
    stream.run(people(rows_of))
    stream.check()


# ── stopping early ───────────────────────────────────────────────────────────────────────────────────────

TRACE = "id BIGINT, pid INT, threads STRING"


def trace(key):
    return [(key, os.getpid(), ",".join(thread.name for thread in threading.enumerate()))]


async def trace_async(key):
    return trace(key)


def exited(pid: int) -> bool:
    """Return whether the process is gone within ten seconds."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=4)
@pytest.mark.parametrize(
    ("function", "channel"), list(itertools.product([trace, trace_async], ["accumulator", "observe"]))
)
def test_a_limit_gives_right_rows_and_leaves_no_thread_behind(spark, function, channel, monkeypatch):
    # Workers of another environment are new ones, without the threads of other tests' lookups.
    monkeypatch.setitem(spark.sparkContext.environment, "LOOKUPCACHE_TEST", f"stopping {function.__name__} {channel}")
    left = spark.range(0, 200_000, 1, 2)
    options = {"lookup.cache": "LRU", "lookup.metrics": channel}
    table = LookupTable.from_function("t", TRACE, key=["id"], function=function, options=options)
    join = LookupJoin(left, table, "left.id = t.id", select=["left.id", "t.id AS found", "t.pid", "t.threads"])
    few = join.df.limit(5).collect()
    assert [row.found for row in few] == [row.id for row in few]
    assert len(few) == 5
    after = (
        LookupJoin(left.limit(2_000), table, "left.id = t.id", select=["t.pid", "t.threads"]).df.distinct().collect()
    )
    threads = {name for row in [*few, *after] for name in row.threads.split(",")}
    assert threads <= {"MainThread", "lookupcache-loop", "lookupcache-slot"}
    still = {row.pid for row in after}
    assert all(pid in still or exited(pid) for pid in {row.pid for row in few})


@pytest.mark.nightly
def test_a_cancelled_job_makes_no_more_calls(spark, tmp_path):
    seen = tmp_path / "calls"

    def call(key, path=str(seen)):
        with open(path, "a") as file:
            print(os.getpid(), file=file)
        time.sleep(0.05)
        return rows_of(key)

    def join():
        with contextlib.suppress(Py4JJavaError):
            LookupJoin(spark.range(0, 4_000, 1, 2), people(call), "left.id = p.id", select=["p.name"]).df.collect()

    running = threading.Thread(target=join)
    running.start()
    while not seen.exists():
        time.sleep(0.05)
    spark.sparkContext.cancelAllJobs()
    running.join()
    # Spark looks for cancelled tasks every two seconds, and ends their workers two seconds later.
    assert all(exited(pid) for pid in set(map(int, seen.read_text().split())))
