"""A stream with five lookups over real servers that are killed, hung and restarted, for as long as one likes.

    python3 .ci/dev.py bench soak --minutes 60

Every 20 seconds one thing fails: PostgreSQL, Valkey or the HTTP service is killed, hung or restarted, the file is taken
away, or a Python worker is killed with SIGKILL. Every five minutes the query is killed and starts again from its
checkpoint. Afterwards each row is checked: no row is lost or doubled, and each looked up value is right, or the row is
marked with an error. Memory, threads, sockets and files of Spark and its workers are written each second to soak.csv,
and plotted to soak.png, in ``--folder``; the run fails if one of them grows between two starts of the query.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import hung  # noqa: E402

KEYS = 500
ROWS_PER_SECOND = 100
SECONDS_BETWEEN_FAULTS = 20.0
SECONDS_HUNG = 6.0
LEAST_ROWS, MOST_MARKED = 0.6, 0.25
"""What share of the rows must have arrived when it ends, and may be marked with an error in one of the lookups."""
SECONDS_TO_START = 240.0
"""How long the query may take for its first batch; after that it counts as standing still."""
LINES_SHOWN = 400
"""How much is printed of what the stream printed, if a row is wrong or missing."""
NAMES = ("pg", "fresh", "kv", "web", "parquet")
KINDS = ("java", "worker", "driver")


def main() -> int:
    """Run the soak, or one of its parts in a separate process."""
    parser = argparse.ArgumentParser(prog="bench soak")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--restart-seconds", type=float, default=300.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("LOOKUPCACHE_SEED", "0")))
    parser.add_argument("--part", choices=["stream", "check"])
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    if options.part == "stream":
        run_stream(folder)
        return 0
    if options.part == "check":
        return check(folder)
    return soak(folder, options.minutes * 60, options.restart_seconds, random.Random(options.seed))


# ── servers and faults ───────────────────────────────────────────────────────────────────────────────────────


def soak(folder: Path, seconds: float, restart_seconds: float, draw: random.Random) -> int:
    """Run the stream, with a fault every 20 seconds; then check its rows."""
    from servers import PostgresServer, RedisServer
    from service import Service

    with ExitStack() as stack:
        # Written at once, so that a server that was killed has the same rows when it starts again.
        redis = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
        postgres, service = PostgresServer().start(), Service()
        for end in (postgres.remove, redis.close, service.kill):
            stack.callback(end)
        service.start()
        fill(postgres, redis, service, folder)
        stream = Stream(folder)
        stack.callback(stream.kill)
        faults = faults_of(postgres, redis, service, stream, folder / "t.parquet", draw)
        write_samples(folder, stream, faults, seconds, restart_seconds)
        stream.stop()
        plot(folder)
        grown = report_growth(folder)
        return max(subprocess.run([*part("check", folder)]).returncode, int(grown))


def fill(postgres: Any, redis: Any, service: Any, folder: Path) -> None:
    """Store a value for each key in each source, and the tables' options."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    postgres.run(f"CREATE TABLE t AS SELECT n AS id, 'v' || n AS name FROM generate_series(0, {KEYS - 1}) AS n",
                 "ALTER TABLE t ADD PRIMARY KEY (id)")  # fmt: skip
    fill_redis(redis)
    service.set_rows({key: [{"name": f"v{key}"}] for key in range(KEYS)})
    pq.write_table(pa.table({"id": range(KEYS), "name": [f"v{key}" for key in range(KEYS)]}), folder / "t.parquet")
    sql = {"connector": "sql", "url": postgres.url, "table": "t"}
    tables = {
        "pg": {**sql, "lookup.cache": "LRU", "lookup.cache.max-rows": "200"},
        "fresh": {**sql, "lookup.cache": "TTL", "lookup.cache.expire-after-write": "2 s", "lookup.async": "true"},
        "kv": {"connector": "redis", "url": redis.url, "key": "c:{id}", "lookup.cache": "TTL",
               "lookup.cache.expire-after-write": "1 s"},
        "web": {"connector": "http", "url": service.url + "/rows/{id}", "lookup.cache": "TTL",
                "lookup.cache.expire-after-write": "3 s"},
        "parquet": {"connector": "files", "path": str(folder / "t.parquet"), "lookup.cache": "ALL",
                    "lookup.cache.reload-interval": "10 s", "lookup.form": "worker"},
    }  # fmt: skip
    (folder / "tables.json").write_text(json.dumps(tables))


def fill_redis(redis: Any) -> None:
    """Store a value for each key in Redis."""
    with redis.client() as client:
        pipe = client.pipeline()
        for key in range(KEYS):
            pipe.hset(f"c:{key}", "name", f"v{key}")
        pipe.execute()


def faults_of(
    postgres: Any, redis: Any, service: Any, stream: Stream, file: Path, draw: random.Random
) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """Yield the name of a fault, what makes it, and what ends it."""

    def nothing() -> None:
        """Nothing is to be ended."""

    away = file.with_suffix(".away")
    kinds = [
        ("PostgreSQL killed", postgres.kill, postgres.start),
        ("PostgreSQL restarted", lambda: (postgres.kill(), postgres.start()), nothing),
        ("PostgreSQL hung", lambda: send(postgres, signal.SIGSTOP), lambda: send(postgres, signal.SIGCONT)),
        ("Valkey killed", redis.kill, redis.start),
        ("Valkey hung", redis.stop, redis.go_on),
        ("HTTP service killed", service.kill, service.start),
        ("HTTP service hung", service.hang, lambda: (service.heal(), service.release())),
        ("file away", lambda: file.rename(away), lambda: away.rename(file)),
        ("worker killed", stream.kill_worker, nothing),
    ]
    while True:
        draw.shuffle(kinds)
        yield from kinds  # type: ignore[misc]


def send(server: Any, number: signal.Signals) -> None:
    """Send a signal to all processes of a database server."""
    for pid in family(server.process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def family(root: int) -> list[int]:
    """Return a process and all below it."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        found.append(pid)
    return found


# ── the stream, in a separate process ──────────────────────────────────────────────────────────────────────


def part(name: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "bench.soak", "--part", name, "--folder", str(folder)]


class Stream:
    """The process that runs the query."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starts = 0
        self.batches = 0
        self.start()

    def start(self) -> None:
        """Start the query, from its checkpoint if there is one."""
        self.starts += 1
        self.batches = self.committed()
        log = (self.folder / "stream.log").open("ab")
        self.process = subprocess.Popen(part("stream", self.folder), cwd=ROOT, stdout=log, stderr=log,
                                        start_new_session=True,
                                        env={**os.environ, "PYTHONFAULTHANDLER": "1"})  # fmt: skip

    def kill(self) -> None:
        """Kill Spark and its workers; if they have not committed a batch, stream.log has their stacks before."""
        if self.process.poll() is None and self.committed() == self.batches:
            hung.show_stacks(self.process.pid)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid, _ in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Let the current batch end."""
        (self.folder / "stop").touch()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.kill()

    def committed(self) -> int:
        """Return the number of the last batch that Spark has committed, or -1."""
        logs = self.folder.glob("check/commits/[0-9]*")
        return max((int(log.name.partition(".")[0]) for log in logs), default=-1)

    def wait_for_rows(self) -> None:
        """Wait until the second batch since the start has been committed, for a few minutes at most.

        The first one has no rows.
        """
        until = time.monotonic() + SECONDS_TO_START
        while self.process.poll() is None and self.committed() < self.batches + 2 and time.monotonic() < until:
            time.sleep(0.2)

    def kill_worker(self) -> None:
        """Kill a Python worker of Spark with SIGKILL."""
        workers = [pid for pid, kind in self.processes() if kind == "worker"]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(workers[-1], signal.SIGKILL)

    def processes(self) -> list[tuple[int, str]]:
        """Return the processes of Spark: the driver, Java and the workers."""
        found = []
        for pid in family(self.process.pid):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text()
                found.append((pid, "worker" if "pyspark.daemon" in words or "pyspark/daemon" in words
                              else "java" if "java" in words.split("\0")[0] else "driver"))  # fmt: skip
        return found


def run_stream(folder: Path) -> None:
    """Run the query until the file ``stop`` appears."""
    from lookupcache import LookupJoin, LookupTable
    from lookupcache.java import local_spark_environment

    local_spark_environment()
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "700m",
        "spark.sql.streaming.minBatchesToRetain": "5", "spark.sql.streaming.fileSource.log.deletion": "true",
    }  # fmt: skip
    spark = SparkSession.builder.master("local[2, 20]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    df = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).option("numPartitions", 2).load()
    df = df.selectExpr("value AS number", f"(value * 7919) % {KEYS} AS k")
    more = {"lookup.on-error": "null", "lookup.max-retries": "1", "lookup.timeout": "3 s"}
    for name, options in json.loads((folder / "tables.json").read_text()).items():
        own = {**options, **more, "lookup.error-column": f"{name}_error"}
        left = [f"`{column}`" for column in df.columns]
        table = LookupTable(name, "id BIGINT, name STRING", own)
        df = LookupJoin(df, table, f"k = {name}.id", "left", select=[*left, f"{name}.name AS {name}"]).df
    columns = [f"{name}_error.message AS {name}_error" for name in NAMES]
    writer = df.selectExpr("number", "k", *NAMES, *columns).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "check")).trigger(processingTime="2 seconds")
    query = writer.start(str(folder / "out"))
    while query.isActive and not (folder / "stop").exists():
        time.sleep(0.5)
    query.stop()


def check(folder: Path) -> int:
    """Check each row of the result, print what was counted, and return 1 if a row is wrong.

    A query that stood still, or a lookup that never recovered, is wrong too, though each row of it may be right.
    """
    import pyarrow.dataset as ds

    # The files that Spark has committed; a compacted log has all files before it.
    files: dict[str, None] = {}
    logs = [path for path in (folder / "out" / "_spark_metadata").iterdir() if not path.name.startswith(".")]
    for path in logs:
        for line in path.read_text().splitlines()[1:]:
            files[json.loads(line)["path"].removeprefix("file://")] = None
    rows = ds.dataset(list(files)).to_table().to_pylist()
    numbers = sorted(row["number"] for row in rows)
    problems = [] if numbers == list(range(len(numbers))) else ["rows are lost or doubled"]
    marked = dict.fromkeys(NAMES, 0)
    for row, name in itertools.product(rows, NAMES):
        right = row[name] == f"v{row['k']}" and row[f"{name}_error"] is None
        is_marked = row[name] is None and row[f"{name}_error"] is not None
        marked[name] += is_marked
        if not (right or is_marked) and len(problems) < 20:
            problems.append(f"row {row['number']}: {name} is {row[name]!r}, its error {row[f'{name}_error']!r}")
    with (folder / "soak.csv").open() as file:
        seconds = max(float(sample["second"]) for sample in csv.DictReader(file))
    if len(rows) < LEAST_ROWS * ROWS_PER_SECOND * seconds:
        problems.append(f"only {len(rows)} rows in {seconds:.0f} s of {ROWS_PER_SECOND} rows each")
    problems += [f"{count} of {len(rows)} rows have an error in {name}" for name, count in marked.items()
                 if count > MOST_MARKED * len(rows)]  # fmt: skip
    print(f"{len(rows)} rows, {len(rows) * len(NAMES)} lookups; marked with an error: {marked}")
    print("\n".join(problems) or "Every row is there once, and right or marked.")
    if problems:
        print(*(folder / "stream.log").read_text(errors="replace").splitlines()[-LINES_SHOWN:], sep="\n")
    return bool(problems)


# ── what is measured ─────────────────────────────────────────────────────────────────────────────────────────


def write_samples(folder: Path, stream: Stream, faults: Any, seconds: float, restart_seconds: float) -> None:
    """Make the faults, and write memory, threads, sockets and files of all processes each second.

    While the query starts, which takes long on a busy machine, time does not count.
    """
    stream.wait_for_rows()
    started = time.monotonic()
    next_fault, next_restart, end_fault = started + 20.0, started + restart_seconds, None
    with (folder / "soak.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["second", "event", *(f"{kind} {what}" for kind in KINDS for what in MEASURES)])
        while (now := time.monotonic()) - started < seconds:
            event = ""
            if end_fault is not None and now >= end_fault[0]:
                end_fault[1]()
                end_fault = None
            if now >= next_restart and end_fault is None:
                event = "query restarted"
                stream.kill()
                stream.start()
                stream.wait_for_rows()
                waited = time.monotonic() - now
                started, now = started + waited, now + waited
                next_restart, next_fault = now + restart_seconds, next_fault + waited
            elif now >= next_fault and seconds - (now - started) > 20 and end_fault is None:
                event, make, end = next(faults)
                make()
                end_fault, next_fault = (now + SECONDS_HUNG, end), now + SECONDS_BETWEEN_FAULTS
            if event:
                print(f"{now - started:7.0f} s  {event}", flush=True)
            writer.writerow([round(now - started, 1), event, *measures(stream)])
            file.flush()
            time.sleep(1.0)
    if end_fault is not None:
        end_fault[1]()


MEASURES = ("MiB", "threads", "sockets", "files")


def measures(stream: Stream) -> list[float]:
    """Return memory, threads, sockets and files of each kind of process, added up."""
    found = {kind: [0.0] * len(MEASURES) for kind in KINDS}
    for pid, kind in stream.processes():
        with suppress(OSError, IndexError):
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            opened = [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()]
            sockets = sum(one.startswith("socket:") for one in opened)
            own = [
                int(status.get("VmRSS", "0").split()[0]) / 1024,
                int(status["Threads"]),
                sockets,
                len(opened) - sockets,
            ]
            found[kind] = [a + b for a, b in zip(found[kind], own, strict=True)]
    return [round(value, 1) for kind in KINDS for value in found[kind]]


GROWTH = 1.5
"""How much larger a measure may be at the end of a stretch without a restart than after its first third."""
STRETCH = 120.0
"""Seconds; in shorter stretches, caches and Java are still filling their memory."""


def report_growth(folder: Path) -> bool:
    """Print how each measure grew between two starts of the query, and return whether one grew too much."""
    with (folder / "soak.csv").open() as file:
        rows = list(csv.DictReader(file))
    stretches: list[list[dict[str, str]]] = [[]]
    for row in rows:
        if "query" in row["event"]:
            stretches.append([])
        stretches[-1].append(row)
    long = [one for one in stretches if float(one[-1]["second"]) - float(one[0]["second"]) >= STRETCH]
    if not long:
        print(f"No stretch of {STRETCH:.0f} s without a restart: growth is not judged.")
        return False
    worst: dict[str, float] = {}
    for stretch, kind, what in itertools.product(long, KINDS, MEASURES):
        values = [float(row[f"{kind} {what}"]) for row in stretch]
        third = len(values) // 3
        # A few threads or files more are no growth.
        early, late = (median(part) + 10 for part in (values[third : 2 * third], values[2 * third :]))
        worst[f"{kind} {what}"] = max(worst.get(f"{kind} {what}", 0.0), late / early)
    print("growth, of the last third over the second:", {name: round(value, 2) for name, value in worst.items()})
    return max(worst.values()) > GROWTH


def plot(folder: Path) -> None:
    """Plot what was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with (folder / "soak.csv").open() as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(len(MEASURES), 1, figsize=(10, 10), sharex=True)
    for axis, what in zip(axes, MEASURES, strict=True):
        for kind in KINDS:
            axis.plot(
                [float(row["second"]) for row in rows], [float(row[f"{kind} {what}"]) for row in rows], label=kind
            )
        for row in rows:
            if row["event"]:
                axis.axvline(float(row["second"]), color="red" if "query" in row["event"] else "lightgray", lw=0.7)
        axis.set_ylabel(what)
    axes[0].legend(loc="upper left")
    axes[-1].set_xlabel("seconds; gray: a fault, red: the query starts again")
    figure.savefig(folder / "soak.png", dpi=80)
    print(f"Plotted to {folder / 'soak.png'}.")


if __name__ == "__main__":
    sys.exit(main())
