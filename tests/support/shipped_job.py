"""A program that joins on a cluster whose executors have lookupcache only if it was shipped to them.

    python shipped_job.py LOG [FILE…]    ships the files with addArtifact, and prints what it found as JSON

The variable SETTINGS has settings of the session, as JSON. The table has the connector of `shipped_connector.py`, which
notes in LOG what is requested of it, and by whom.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

KEYS = 200


def where(batches):
    """Yield where a worker has lookupcache from, and its executor's local directory."""
    import os

    import pyarrow as pa

    import lookupcache

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"file": [lookupcache.__file__], "local": [os.environ["SPARK_LOCAL_DIRS"]]})


def main(log: str, *artifacts: str) -> None:
    """Ship, look where lookupcache is, join twice, and print what was found."""
    spark = SparkSession.builder.config(map=json.loads(os.environ.get("SETTINGS", "{}"))).getOrCreate()
    if artifacts:
        spark.addArtifact(*artifacts, pyfile=True)
    from lookupcache import LookupTable, lookup_join

    places = spark.range(0, 16, 1, 16).mapInArrow(where, "file STRING, local STRING").collect()
    options = {"connector": "shipped_connector:Noting", "log": log, "lookup.cache": "LRU", "lookup.form": "worker"}
    table = LookupTable("t", "id BIGINT, name STRING", options)
    # Each task has a key of its own, so that each executor requests one, however fast the others are.
    key = f"IF(id % {KEYS} = 0, {KEYS} + id DIV {KEYS}, id % {KEYS}) AS k"
    left = spark.range(0, 16 * KEYS, 1, 16).selectExpr(key)
    joined = lookup_join(left, table, on="k = t.id", how="left", select=["k", "name"])
    wrong = [joined.where("name IS DISTINCT FROM IF(k % 5 = 0, NULL, concat('n', k))").count() for _ in range(2)]
    found = {
        "files": sorted({row.file for row in places}), "executors": sorted({row.local for row in places}),
        "rows": joined.count(), "wrong": wrong, "session": type(spark).__module__,
    }  # fmt: skip
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
