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
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    parser.add_argument("--part", type=Path)
    options = parser.parse_args()
    if options.part is not None:
        run_soaked_query(options.part)
        return 0
    if options.minutes:
        return soak(options.minutes * 60, Path(tempfile.mkdtemp(prefix="latest-")))
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


# ── the soak ─────────────────────────────────────────────────────────────────────────────────────────────────

SOAK_KEYS, SOAK_TTL = 200, 20
"""Keys that rows have at a time, of which old ones do not come back; seconds for which a value is used."""


def soak(seconds: float, folder: Path) -> int:
    """Let rows arrive for a time while the driver and Python workers are killed; then check each row."""
    for name in ("left", "right"):
        (folder / name).mkdir()
    draw, number, kills, sizes = random.Random(7), 0, {"driver": 0, "worker": 0}, list[Sizes]()
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        query = start_query(folder, once=False)
        until = min(began + seconds, time.monotonic() + draw.uniform(30, 60))
        while time.monotonic() < until and query.poll() is None:
            number += 1
            arrive(folder, draw, number)
            time.sleep(0.2)
            if draw.random() < 0.01:
                kills["worker"] += kill_worker(query.pid, draw)
            if number % 25 == 0:
                sizes.append(measure(query.pid, folder))
        kills["driver"] += query.poll() is None
        stop(query)
    if start_query(folder, once=True).wait() != 0:
        print(f"The last run failed: see {folder}/log.txt")
        return 1
    wrong, rows = check(folder)
    found = f"{time.monotonic() - began:.0f} s, {rows:,} rows of {number} files, kills {kills}"
    print(f"{found}: {len(wrong)} wrong {wrong[:3]}; {number * SOAK_KEYS // 100:,} keys had values")
    report_sizes(sizes)
    shutil.rmtree(folder, ignore_errors=True)
    return bool(wrong)


def stop(query: subprocess.Popen[bytes]) -> None:
    """Kill a query and its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(query.pid, signal.SIGKILL)
    query.wait()


class Sizes(NamedTuple):
    """Bytes: the resident memory of all Python workers and of the driver with Spark's JVM, and of the state."""

    workers: int
    driver: int
    state: int


def report_sizes(sizes: Sequence[Sizes]) -> None:
    """Print how large memory and state were in each quarter of the time."""
    step = max(len(sizes) // 4, 1)
    for start in range(0, step * 4, step):
        part = sizes[start : start + step]
        if part:
            shown = [f"{name} {max(getattr(one, name) for one in part) / 1e6:,.1f} MB" for name in Sizes._fields]
            print(f"quarter {start // step + 1}, most at a time: {', '.join(shown)}")


def processes(group: int) -> dict[int, tuple[int, str, int]]:
    """Return parent, command and resident bytes of each process of a group."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(status[2]) == group:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(folder.name)] = int(status[1]), command, int(status[21]) * os.sysconf("SC_PAGE_SIZE")
    return found


def kill_worker(group: int, draw: random.Random) -> int:
    """Kill one Python worker of a query, a child of Spark's daemon; return how many there were to kill."""
    found = processes(group)
    daemons = {pid for pid, (_, command, _) in found.items() if "pyspark.daemon" in command}
    workers = [pid for pid, (parent, _, _) in found.items() if parent in daemons]
    if not workers:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(workers), signal.SIGKILL)
    return 1


def measure(group: int, folder: Path) -> Sizes:
    """Return the sizes of a running query."""
    found = processes(group).values()
    workers = sum(size for _, command, size in found if "pyspark.daemon" in command)
    return Sizes(workers, sum(size for _, _, size in found) - workers, state_bytes(folder))


def arrive(folder: Path, draw: random.Random, number: int) -> None:
    """Write a file of one stream, or of both; the keys move on, so that only the age limit bounds the values."""
    for name in draw.choice([["left"], ["right"], ["left", "right"]]):
        first = number * SOAK_KEYS // 100
        keys = [first + draw.randrange(SOAK_KEYS) for _ in range(draw.randrange(1, 50))]
        rows = [{"k": key, "n": number * 1000 + n} for n, key in enumerate(keys)]
        hidden = folder / f".{name}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(folder / name / f"{number:06}.json")


def start_query(folder: Path, *, once: bool) -> subprocess.Popen[bytes]:
    """Start the query in a process group of its own."""
    (folder / "once").write_text(str(once))
    with (folder / "log.txt").open("ab") as log:
        command = [sys.executable, "-W", "ignore", "-m", "bench.latest", "--part", str(folder)]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def run_soaked_query(folder: Path) -> None:
    """Run the query until it is killed, or once over all that has arrived."""
    from lookupcache import LookupTable, lookup_join

    settings = {"spark.local.dir": str(folder / "spark"), "spark.sql.streaming.minBatchesToRetain": "1000000"}
    spark = session(2, settings)

    def stream(name: str) -> Any:
        return spark.readStream.schema("k INT, n BIGINT").json(str(folder / name))

    table = LookupTable.from_stream("r", stream("right"), key=["k"], order_by=["n"], ttl=SOAK_TTL)
    df = lookup_join(stream("left"), table, on="left.k = r.k", how="left", select=["left.k", "left.n", "r.n AS rate"])
    writer = df.writeStream.format("parquet").option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    once = (folder / "once").read_text() == "True"
    writer.trigger(**({"availableNow": True} if once else {"processingTime": "0 seconds"})).start().awaitTermination()


def check(folder: Path) -> tuple[list[Any], int]:
    """Return rows that are wrong, missing or doubled, and how many there must be, by Spark's log of micro-batches."""
    spark = session(1, {})
    written = sorted(tuple(row) for row in spark.read.parquet(str(folder / "out")).collect())
    spark.stop()
    latest: dict[int, tuple[int, int]] = {}
    expected = []
    for number, files in sorted(micro_batches(folder).items()):
        now = batch_time(folder, number)
        latest = {key: one for key, one in latest.items() if now - one[1] < SOAK_TTL * 1000}
        for row in rows_of(files, "right"):
            if row["n"] >= latest.get(row["k"], (-1, 0))[0]:
                latest[row["k"]] = row["n"], now
        expected += [(row["k"], row["n"], latest.get(row["k"], (None, 0))[0]) for row in rows_of(files, "left")]
    expected.sort(key=repr)
    written.sort(key=repr)
    return sorted(set(written) ^ set(expected), key=repr) + ([] if len(written) == len(expected) else ["count"]), len(
        expected
    )


def batch_time(folder: Path, number: int) -> int:
    """Return when a micro-batch began, in milliseconds."""
    lines = (folder / "checkpoint" / "offsets" / str(number)).read_text().splitlines()
    return int(json.loads(lines[1])["batchTimestampMs"])


def micro_batches(folder: Path) -> dict[int, set[Path]]:
    """Return the files of each micro-batch, as the checkpoint has them."""
    found: dict[int, set[Path]] = {}
    for log in (folder / "checkpoint" / "sources").glob("*/*"):
        if log.name.startswith("."):
            continue
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            found.setdefault(entry["batchId"], set()).add(Path(entry["path"].removeprefix("file://")))
    return found


def rows_of(files: set[Path], side: str) -> Iterator[dict[str, int]]:
    """Yield the rows of the files of one stream."""
    for file in sorted(files):
        if file.parent.name == side:
            yield from map(json.loads, file.read_text().splitlines())


def state_bytes(folder: Path) -> int:
    """Return the size of the newest snapshot of each partition of the state."""
    newest: dict[Path, tuple[int, Path]] = {}
    for file in (folder / "checkpoint" / "state").rglob("*.snapshot"):
        newest[file.parent] = max(newest.get(file.parent, (-1, file)), (int(file.name.split(".")[0]), file))
    total = 0
    for _, file in newest.values():
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


if __name__ == "__main__":
    sys.exit(main())
