"""The CPU time of the Python workers alone for the latest value of a stream, without Spark.

    python3 .ci/dev.py bench latest_workers     seconds per micro-batch of 50,000 left rows, 100,000 keys, 1,000 updates

`ours` is all that LookupTable.from_stream runs in Python: packing both sides, the state's operator, unpacking. `pandas`
and `rows` are processors for Spark's transformWithState with a group per key, run by Spark's TwsTester: what Spark adds
to them, as a message to the JVM for each access to the state, comes on top.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from bench.latest_processors import LastInPandas, LastInRows
from lookupcache import LookupTable
from lookupcache.latest.tasks import BUCKET, BucketJoin, LatestPlan, LeftPacker, RightPacker, Unpacker
from lookupcache.latest.values import BucketLayout
from lookupcache.planner import LeftColumn, plan_join
from lookupcache.report import Channel

LEFT = {"id": "bigint", "k": "bigint", "a": "double", "b": "string", "c": "bigint", "d": "string"}
RIGHT = pa.schema([("k", pa.int64()), ("rate", pa.float64()), ("at", pa.int64())])
UPDATES, BATCHES = 1_000, 4


@dataclass
class Columns:
    """What `LookupTable.from_stream` needs of a DataFrame."""

    schema: pa.Schema


@dataclass
class State:
    """The state of a bucket, as Spark gives it."""

    get: tuple[bytes] | None = None

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        return self.get is not None

    def update(self, value: tuple[bytes]) -> None:
        """Replace it."""
        self.get = value


def main() -> None:
    """Print the CPU seconds of a micro-batch by number of buckets, and those of a group per key."""
    parser = argparse.ArgumentParser(prog="bench latest_workers")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--buckets", type=int, nargs="*", default=[8, 16, 32, 64, 256])
    parser.add_argument("--sample", type=int, default=2_000, help="left rows of pandas and rows; the time is scaled")
    parser.add_argument("--left-order", action="store_true", help="left rows have an order too")
    options = parser.parse_args()
    for buckets in options.buckets:
        first, *rest = ours(options.keys, options.rows, buckets, left_order=options.left_order)
        print(f"ours, {buckets:4} buckets   first {first:6.2f} s   then {min(rest):6.2f} s", flush=True)
    for name, processor in (("pandas", LastInPandas()), ("rows", LastInRows())):
        seconds = by_key(processor, name == "pandas", options) * options.rows / options.sample
        print(f"{name:6}, group per key   {seconds:6.2f} s", flush=True)


def ours(keys: int, rows: int, buckets: int, *, left_order: bool = False) -> Iterator[float]:
    """Yield the CPU seconds of each micro-batch; the first has a row of each key."""
    draw, latest = np.random.default_rng(7), plan_of(buckets, left_order=left_order)
    states: dict[int, State] = {}
    for number in range(BATCHES):
        left = left_rows(draw, keys, rows, buckets)
        if left_order:
            left = left.add_column(left.num_columns - 1, "o0", pa.array(draw.integers(0, BATCHES, rows)))
        fresh = np.arange(keys) if number == 0 else draw.choice(keys, UPDATES, replace=False)
        right = right_rows(draw, fresh, number, buckets)
        started = time.process_time()
        packed = [*RightPacker(latest)(right.to_batches(10_000)), *LeftPacker(latest)(left.to_batches(10_000))]
        seconds = time.process_time() - started
        frame = pa.Table.from_batches(packed).to_pandas().assign(now=number)
        groups = [(int(bucket), group) for bucket, group in frame.groupby("bucket")]
        started = time.process_time()
        joined: list[Any] = []
        for bucket, group in groups:
            joined += BucketJoin(latest)((bucket,), iter([group]), states.setdefault(bucket, State()))
        batches = [pa.RecordBatch.from_pandas(one, preserve_index=False) for one in joined]
        written = sum(batch.num_rows for batch in Unpacker(Channel(), pa.schema([]))(batches))
        assert written == rows
        yield seconds + time.process_time() - started


def plan_of(buckets: int, *, left_order: bool = False) -> LatestPlan:
    """Return the workers' part of the join."""
    table = LookupTable.from_stream("r", Columns(RIGHT), key=["k"], order_by=["at"])
    left = [LeftColumn(name, type_) for name, type_ in LEFT.items()]
    select = ["id", "left.k", "a", "b", "c", "d", "rate"]
    plan = plan_join(left, table, on="left.k = r.k", how="left", select=select, analyst=None)  # type: ignore[arg-type]
    layout = BucketLayout("r", {"k0": pa.int64()}, {"v:rate": pa.float64()}, {"o:at": pa.int64()}, ("k",))
    return LatestPlan(plan, layout, {"v:rate": pa.float64()}, buckets, len(LEFT), "", has_left_order=left_order)


def bucket_of(keys: Any, buckets: int) -> pa.Array:
    """Return the bucket of each key."""
    hashes = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    return pa.array((hashes % np.uint64(buckets)).astype(np.int32))


def left_rows(draw: Any, keys: int, rows: int, buckets: int) -> pa.Table:
    """Return left rows as they are packed: columns, key, bucket."""
    key, ids, text = draw.integers(0, keys, rows), np.arange(rows), pa.array([f"text {n}" for n in range(rows)])
    columns = {"l0": ids, "l1": key, "l2": draw.random(rows), "l3": text, "l4": ids, "l5": text, "k0": key}
    return pa.table({**columns, BUCKET: bucket_of(key, buckets)})


def right_rows(draw: Any, key: Any, at: int, buckets: int) -> pa.Table:
    """Return right rows as they are packed."""
    none = np.zeros(len(key), np.int64)
    columns = {"k0": key, "v:rate": draw.random(len(key)), "o:at": none + at, "deleted": none > 0, "file": none}
    return pa.table({**columns, BUCKET: bucket_of(key, buckets)})


def by_key(processor: Any, in_pandas: bool, options: argparse.Namespace) -> float:
    """Return the CPU seconds of a sample of left rows, whose keys all have a value."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.tws_tester import TwsTester

    draw, tester = np.random.default_rng(7), TwsTester(processor)
    keys = draw.integers(0, options.keys, options.sample)
    frame = pd.DataFrame({"k": keys, "id": keys, "a": 1.0, "b": "text", "c": keys, "d": "text", "rate": 0.0})
    frame["is_right"] = False
    groups = [(key, group) for key, group in frame.groupby("k")]
    for key, _ in groups:
        tester.updateValueState("last", key, (1.5,))
    as_rows = [(key, [Row(**row) for row in group.to_dict("records")]) for key, group in groups]
    started = time.process_time()
    for (key, group), (_, rows) in zip(groups, as_rows, strict=True):
        _ = tester.testInPandas(key, group) if in_pandas else tester.test(key, rows)
    return time.process_time() - started


if __name__ == "__main__":
    main()
