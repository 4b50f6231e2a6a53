"""The latest value of a stream: ways to join with it, side by side, and a soak with restarts.

    python3 .ci/dev.py bench latest                   100,000 keys, 50,000 left rows per micro-batch, and without a key
    python3 .ci/dev.py bench latest --ways ours store --batches 6
    python3 .ci/dev.py bench latest --minutes 60      a query that is killed with SIGKILL again and again, then checked

The ways: `ours` is LookupTable.from_stream (state in the checkpoint, by bucket, as Arrow); `pandas` and `rows` are
Spark's transformWithStateInPandas and transformWithState with the last value of each key in a ValueState; `store` is a
query whose micro-batch folds the right rows into a keyed store in Parquet, and joins with it in foreachBatch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.session import session

UPDATES = 1_000
"""Right rows per micro-batch, after the first, which has a row of each key."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LEFT = "id BIGINT, k BIGINT, a DOUBLE, b STRING, c BIGINT, d STRING"
RIGHT = "k BIGINT, rate DOUBLE, at BIGINT"


def main() -> int:
    """Compare the ways, or run the soak."""
    parser = argparse.ArgumentParser(prog="bench latest")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--buckets", type=int, default=None)
    parser.add_argument("--ways", nargs="*", default=["ours", "store", "pandas", "rows"])
    parser.add_argument("--keyed", choices=["yes", "no", "both"], default="both")
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--folder", type=Path, help="where the soak leaves its measurements; by default nowhere")
    options = parser.parse_args()
    if options.minutes:
        from bench.latest_soak import soak

        folder = options.folder or Path(tempfile.mkdtemp(prefix="latest-"))
        folder.mkdir(parents=True, exist_ok=True)
        failed = soak(options.minutes * 60, folder)
        if not failed and options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        return failed
    compare(options)
    return 0


# ── the ways, side by side ───────────────────────────────────────────────────────────────────────────────────


def compare(options: argparse.Namespace) -> None:
    """Print seconds per micro-batch of each way, by key and without one."""
    spark = session(options.cores, {"spark.sql.streaming.stateStore.providerClass": ROCKSDB})
    folder = Path(tempfile.mkdtemp(prefix="latest-"))
    kinds = {"yes": [True], "no": [False], "both": [True, False]}[options.keyed]
    try:
        write_streams(folder, options)
        for keyed in kinds:
            for way in options.ways:
                seconds = run_way(spark, folder, WAYS[way], keyed, options)
                first, rest = seconds[0], statistics.median(seconds[1:] or seconds)
                key = f"{options.keys:,} keys" if keyed else "no key"
                rate = options.rows / rest
                print(
                    f"{key:14} {way:8} first {first:7.2f} s   then {rest:7.2f} s   {rate:10,.0f} left rows/s",
                    flush=True,
                )
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def write_streams(folder: Path, options: argparse.Namespace) -> None:
    """Write a file for each micro-batch of both streams."""
    draw = np.random.default_rng(7)
    for name in ("left", "right"):
        (folder / name).mkdir()
    for number in range(options.batches):
        keys = np.arange(options.keys) if number == 0 else draw.choice(options.keys, UPDATES, replace=False)
        rates = {"k": keys, "rate": draw.random(len(keys)), "at": np.full(len(keys), number)}
        ids = np.arange(options.rows) + number * options.rows
        text = pa.array([f"text {n}" for n in ids])
        orders = {"id": ids, "k": draw.integers(0, options.keys, options.rows), "a": draw.random(options.rows)}
        orders |= {"b": text, "c": ids, "d": text}
        for name, columns in (("right", rates), ("left", orders)):
            pq.write_table(pa.table(columns), folder / name / f"{number:03}.parquet")
            os.utime(folder / name / f"{number:03}.parquet", (1_000_000 + number, 1_000_000 + number))


def run_way(spark: Any, folder: Path, way: Callable[..., Any], keyed: bool, options: argparse.Namespace) -> list[float]:
    """Return the seconds of each micro-batch."""
    place = Path(tempfile.mkdtemp(dir=folder))

    def stream(name: str, columns: str) -> Any:
        reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", "1")
        return reader.parquet(str(folder / name))

    writer = way(stream("left", LEFT), stream("right", RIGHT), keyed, place, options)
    query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    return [one["durationMs"]["triggerExecution"] / 1000 for one in progress]


def ours(left: Any, right: Any, keyed: bool, place: Path, options: argparse.Namespace) -> Any:
    """LookupTable.from_stream."""
    from lookupcache import LookupTable, lookup_join

    key = ["k"] if keyed else []
    table = LookupTable.from_stream("r", right, key=key, order_by=["at"], buckets=options.buckets)
    return lookup_join(left, table, on="left.k = r.k" if keyed else "true", how="left",
                       select=["id", "left.k", "a", "b", "c", "d", "rate"]).writeStream.format("noop")  # fmt: skip


def tagged(left: Any, right: Any, keyed: bool) -> Any:
    """Return both streams as one."""
    key = "k" if keyed else "0L AS k"
    ours = [key, "id", "a", "b", "c", "d", "CAST(NULL AS DOUBLE) AS rate", "false AS is_right"]
    theirs = [key, "0L AS id", "0D AS a", "'' AS b", "0L AS c", "'' AS d", "rate", "true AS is_right"]
    return right.selectExpr(*theirs).unionAll(left.selectExpr(*ours)).groupBy("k")


TAGGED = "k BIGINT, id BIGINT, a DOUBLE, b STRING, c BIGINT, d STRING, rate DOUBLE"


def in_pandas(left: Any, right: Any, keyed: bool, place: Path, options: argparse.Namespace) -> Any:
    """Spark's transformWithStateInPandas, a group per key."""
    from bench.latest_processors import LastInPandas

    joined = tagged(left, right, keyed).transformWithStateInPandas(LastInPandas(), TAGGED, "append", "none")
    return joined.writeStream.format("noop")


def in_rows(left: Any, right: Any, keyed: bool, place: Path, options: argparse.Namespace) -> Any:
    """Spark's transformWithState, a group per key, rows as objects."""
    from bench.latest_processors import LastInRows

    joined = tagged(left, right, keyed).transformWithState(LastInRows(), TAGGED, "append", "none")
    return joined.writeStream.format("noop")


def store(left: Any, right: Any, keyed: bool, place: Path, options: argparse.Namespace) -> Any:
    """A keyed store in Parquet, a version per micro-batch, written before the left rows are joined with it."""
    from pyspark.sql import functions as F  # noqa: N812

    key = "k" if keyed else "0L AS k"
    empty = ["0L AS id", "0D AS a", "'' AS b", "0L AS c", "'' AS d"]
    both = right.selectExpr(key, *empty, "rate", "at", "true AS is_right").unionAll(
        left.selectExpr(key, "id", "a", "b", "c", "d", "0D AS rate", "0L AS at", "false AS is_right")
    )

    def fold(batch: Any, number: int) -> None:
        batch.persist()
        rates = batch.where("is_right").groupBy("k").agg(F.max_by("rate", "at").alias("rate"))
        if number:
            before = batch.sparkSession.read.parquet(str(place / f"v{number - 1}"))
            rates = before.join(rates, "k", "left_anti").unionAll(rates)
        rates.write.mode("overwrite").parquet(str(place / f"v{number}"))
        now = batch.sparkSession.read.parquet(str(place / f"v{number}"))
        joined = batch.where("NOT is_right").drop("rate", "at").join(F.broadcast(now), "k", "left")
        joined.write.format("noop").mode("overwrite").save()
        batch.unpersist()

    return both.writeStream.foreachBatch(fold)


WAYS: Mapping[str, Callable[..., Any]] = {"ours": ours, "store": store, "pandas": in_pandas, "rows": in_rows}


if __name__ == "__main__":
    sys.exit(main())
