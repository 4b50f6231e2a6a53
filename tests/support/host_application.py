"""A Spark application whose workers end with their tasks, and that shares a cache with another one.

    python host_application.py FOLDER    prints ``ready``, waits for a line, and writes FOLDER/counts.json

It joins in a batch with the cache in FOLDER/cache, which the other application uses at the same moment, and in a stream
of three micro-batches with its own.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from worker_functions import logged_name

from lookupcache import LookupJoin, LookupTable
from lookupcache.java import local_spark_environment

KEYS = 300


def join_names(left: DataFrame, log: Path, **options: str) -> LookupJoin:
    """Return the join with the names of the keys in column k; the source notes what is requested of it."""
    table = LookupTable.from_function(
        "names", "id BIGINT, name STRING", key=["id"], function=partial(logged_name, str(log)),
        options={"lookup.cache": "LRU", "lookup.metrics": "observe", **options},
    )  # fmt: skip
    return LookupJoin(left, table, "k = names.id", "left", select=["k", "name"])


def count_rows(joined: DataFrame) -> tuple[int, int]:
    """Return how many rows there are, and how many have a name that they should not have."""
    wrong = F.count_if(F.expr("name IS DISTINCT FROM IF(k % 5 = 0, NULL, concat('n', k))"))
    [row] = joined.agg(F.count(F.lit(1)), wrong).collect()
    return row[0], row[1]


def batch(spark: SparkSession, folder: Path) -> tuple[int, int]:
    """Join with the cache that the applications share; return what `count_rows` does."""
    left = spark.range(4 * KEYS, numPartitions=2).selectExpr(f"id % {KEYS} AS k")
    return count_rows(join_names(left, folder / "batch.log", **{"lookup.cache.path": str(folder / "cache")}).df)


def stream(spark: SparkSession, folder: Path) -> dict[str, int]:
    """Join a stream of three micro-batches with the same keys; return what its progress says of the cache."""
    for _ in range(3):
        spark.range(KEYS).selectExpr("id AS k").coalesce(1).write.mode("append").parquet(str(folder / "in"))
    left = spark.readStream.schema("k BIGINT").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    join = join_names(left, folder / "stream.log")
    writer = join.df.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()
    counts = [join.metrics_in(progress) for progress in query.recentProgress if progress["numInputRows"]]
    found = {name: [getattr(one, name) for one in counts] for name in ("requested_keys", "host_hits", "hits", "rows")}
    return {**found, "counted": count_rows(spark.read.parquet(str(folder / "out")))}


def main(folder: Path) -> None:
    """Run both joins, when the other application is ready too."""
    local_spark_environment()
    settings = {
        "spark.ui.enabled": "false", "spark.python.worker.reuse": "false", "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder / "local"), "spark.sql.codegen.wholeStage": "false",
    }  # fmt: skip
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    print("ready", flush=True)
    sys.stdin.readline()
    counts = {"batch": batch(spark, folder), "stream": stream(spark, folder)}
    (folder / "counts.json").write_text(json.dumps(counts))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
