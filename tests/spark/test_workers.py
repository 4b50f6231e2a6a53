"""What a worker keeps from task to task, and what a job does whose source dies under it, on Spark."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter

import pytest
from clients import async_many, async_one, sync_many, sync_one
from pyspark.errors import PythonException

from lookupcache import LookupJoin, LookupTable

pytestmark = pytest.mark.spark

WORKER = "id BIGINT, pid BIGINT, loop BIGINT, opened BIGINT"
KINDS = {"sync": sync_one, "sync batch": sync_many, "async": async_one, "async batch": async_many}


class Client:
    """Says in which process and on which event loop it answers, and how often it was opened."""

    opened = 0

    async def open(self):
        Client.opened += 1
        self.loop = asyncio.get_running_loop()

    async def __call__(self, key):
        assert asyncio.get_running_loop() is self.loop
        return [(key, os.getpid(), id(self.loop), Client.opened)]


@pytest.mark.extended
def test_a_worker_keeps_its_loop_and_client_across_micro_batches(spark, tmp_path):
    for start in range(0, 60, 10):
        spark.range(start, start + 10, 1, 2).write.mode("append").parquet(str(tmp_path / "in"))
    table = LookupTable.from_function("w", WORKER, key=["id"], function=Client)
    stream = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
    join = LookupJoin(stream, table, "left.id = w.id", select=["left.id", "w.pid", "w.loop", "w.opened"])
    writer = join.df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert query.lastProgress["batchId"] >= 5
    assert len(rows) == 60
    assert {row.opened for row in rows} == {1}
    assert len({(row.pid, row.loop) for row in rows}) == len({row.pid for row in rows})


def orders(spark, partitions=2):
    return spark.range(0, 40, 1, partitions)


def names(service) -> None:
    service.set_rows({key: [{"id": key, "name": f"n{key}"}] for key in range(0, 40, 2)})


def table(service, kind: str, **options) -> LookupTable:
    given = {"lookup.cache": "LRU", "lookup.retry.delay": "1 ms", "lookup.max-retries": "2", **options}
    function, batch = KINDS[kind](service.url), "batch" in kind
    size = {"lookup.batch.max-size": "1"} if batch else {}
    return LookupTable.from_function(
        "t", "id BIGINT, name STRING", key=["id"], function=function, batch=batch, options={**size, **given}
    )


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_dies_is_retried_and_gives_a_clear_error(spark, service, kind):
    names(service)
    service.hang()
    # Of several tasks one could live on, and ask for its keys in the next test.
    left = orders(spark, partitions=1)
    join = LookupJoin(left, table(service, kind), "left.id = t.id", "left", ["left.id", "t.name"])
    killer = threading.Thread(target=lambda: (service.wait_came(1), service.kill()))
    killer.start()
    with pytest.raises(PythonException, match=r"Table 't' .*: the lookup of 1 key failed after 3 attempts"):
        join.df.collect()
    killer.join()


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_dies_leaves_right_rows_and_marked_rows(spark, service, kind):
    names(service)
    options = {"lookup.on-error": "null", "lookup.error-column": "error", "lookup.async.capacity": "2"}
    join = LookupJoin(orders(spark), table(service, kind, **options), "left.id = t.id", "left", ["left.id", "t.name"])
    killer = threading.Thread(target=lambda: (service.wait_came(10), service.kill()))
    killer.start()
    rows = join.df.collect()
    killer.join()
    assert sorted(row.id for row in rows) == list(range(40))
    assert all(row.name == (f"n{row.id}" if row.id % 2 == 0 else None) for row in rows if row.error is None)
    assert all(row.name is None for row in rows if row.error is not None)
    assert {row.error.code for row in rows if row.error is not None} == {"LOOKUP_FAILED"}
    marked = Counter(row.error is None for row in rows)
    assert marked[True] >= 8
    assert marked[False] >= 1
    assert join.metrics().failed_rows == marked[False]
