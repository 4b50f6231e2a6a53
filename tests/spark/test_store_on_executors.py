"""Two executors, each with a host folder of its own, and one store: each key is requested once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from servers import RedisServer

JOIN = """
import os, sys, time
from lookupcache.java import local_spark_environment
local_spark_environment()
from pyspark.sql import SparkSession
from lookupcache import LookupTable, lookup_join

store, log, path = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.executorEnv.PYTHONPATH": path,
            # Without the number of cores, Spark would not wait for the second executor before the first task.
            "spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "50"}
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()

def square(keys):
    with open(log, "a") as lines:
        lines.write("".join(f"{os.environ['SPARK_LOCAL_DIRS']} {key}\\n" for key in keys))
    # Both executors request keys at the same time.
    ends = time.monotonic() + 20
    while len({line.split(" ")[0] for line in open(log)}) < 2 and time.monotonic() < ends:
        time.sleep(0.01)
    return [[(key, key * key)] for key in keys]

squares = LookupTable.from_function("s", "n BIGINT, square BIGINT", key=["n"], function=square, batch=True,
                                    options={"lookup.cache": "LRU", "lookup.cache.store": store,
                                             "lookup.cache.store.timeout": "60 s", "lookup.batch.max-size": "20"})
# Each task begins with a key of its own, which no other executor requests, and then with another half of the 500 keys.
key = "IF(id % 1000 = 0, 500 + id DIV 1000, (id + 250 * (id DIV 1000)) % 500) AS k"
for turn in range(2):
    left = spark.range(2_000, numPartitions=2).selectExpr(key)
    joined = lookup_join(left, squares, on="k = s.n", select=["k", "square"])
    print(joined.where("square = k * k").count())
"""


@pytest.mark.nightly
@pytest.mark.spark
def test_two_executors_with_own_folders_request_each_key_once(tmp_path):
    server = RedisServer().start()
    try:
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            JOIN,
            server.url,
            tmp_path / "log",
            os.environ.get("PYTHONPATH", ""),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        server.close()
    assert done.stdout.split() == ["2000", "2000"], done.stderr
    requested = [line.rsplit(" ", 1) for line in (tmp_path / "log").read_text().splitlines()]
    assert len({folder for folder, _ in requested}) == 2, "both executors have requested keys"
    assert Counter(int(key) for _, key in requested) == Counter(range(502))
