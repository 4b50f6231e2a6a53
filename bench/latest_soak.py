"""A soak of the join with latest values: `python3 .ci/dev.py bench latest --minutes 60`.

Rows of two streams arrive without a pause, with late values, deletes and null keys, while drivers and Python workers
are killed with SIGKILL. In the end a model computes the result from the micro-batches in Spark's checkpoint, and each
written row is compared with it. The sizes of memory and state in the last quarter are compared with those in the
second. Mistakes are put into the result to see that the comparison finds them. With ``--folder``, what was measured
stays there as sizes.csv, and as a plot in sizes.png.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.session import session

KEYS, TTL = 200, 20
"""Keys that rows have at a time, of which old ones do not come back; seconds for which a value is used."""
GROWTH = 1.5
"""How many times as large memory may be in the last quarter as in the second."""
SMALL = {"workers": 500e6, "driver": 1.5e9}
"""Bytes that are no growth: on a busy machine most of the time may go into starts."""

Joined = tuple[Any, ...]


def soak(seconds: float, folder: Path) -> int:
    """Let rows arrive for a time while the driver and Python workers are killed; then check each row."""
    for name in ("left", "right"):
        (folder / name).mkdir()
    draw, number, kills, sizes = random.Random(7), 0, {"driver": 0, "worker": 0}, list[Sizes]()
    restarts: list[float] = []
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        query, committed = start_query(folder, once=False), commits(folder)
        restarts.append(time.time())
        # Long lives too: memory that grows is not seen in a process that is soon killed.
        life, until = draw.choice([1, 20, 40, 60, seconds / 8]), float("inf")
        while time.monotonic() < min(until, began + seconds) and query.poll() is None:
            if until == float("inf") and commits(folder) > committed:  # On a busy machine a start takes a minute.
                until = time.monotonic() + life
            number += 1
            arrive(folder, draw, number)
            time.sleep(0.2)
            if draw.random() < 0.02:
                kills["worker"] += kill_worker(query.pid, draw)
            if number % 10 == 0:
                sizes.append(measure(query.pid, folder))
        kills["driver"] += query.poll() is None
        stop(query)
    if start_query(folder, once=True).wait() != 0:
        print(f"The last run failed: see {folder}/log.txt")
        return 1
    print(f"{time.monotonic() - began:.0f} s, {number} files, kills {kills}")
    young = young_keys(folder)
    write_sizes(folder, sizes, young, restarts)
    failures = [*check(folder), *check_sizes(sizes, max(young.values()))]
    print("\n".join(failures) or "all rows are right, memory and state do not grow", flush=True)
    return bool(failures)


def commits(folder: Path) -> int:
    """Return how many micro-batches are committed."""
    return len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))


def stop(query: subprocess.Popen[bytes]) -> None:
    """Kill a query and its workers, all at once."""
    for process in [query.pid, *processes(query.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    query.wait()


# ── the streams ──────────────────────────────────────────────────────────────────────────────────────────────


def arrive(folder: Path, draw: random.Random, number: int) -> None:
    """Write a file of one stream, or of both; the keys move on, so that only the age limit bounds the values."""
    for name in draw.choice([["left"], ["right"], ["left", "right"]]):
        first = number * KEYS // 100
        keys = [draw.choice([first + draw.randrange(KEYS)] * 30 + [None]) for _ in range(draw.randrange(1, 50))]
        rows = [{"k": key, "n": number * 1000 + n} for n, key in enumerate(keys)]
        if name == "right":
            rows = [right_row(row, draw) for row in rows]
        hidden = folder / f".{name}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(folder / name / f"{number:06}.json")


def right_row(row: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return a row with its order, which may be that of some files before, and may say that it deletes."""
    late = draw.random() < 0.2
    return {**row, "at": row["n"] - 5_500 * late, "gone": draw.random() < 0.1}


# ── the query ────────────────────────────────────────────────────────────────────────────────────────────────


def start_query(folder: Path, *, once: bool) -> subprocess.Popen[bytes]:
    """Start the query in a session of its own."""
    (folder / "once").write_text(str(once))
    with (folder / "log.txt").open("ab") as log:
        command = [sys.executable, "-W", "ignore", "-m", "bench.latest_soak", str(folder)]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def run_query(folder: Path) -> None:
    """Run the query until it is killed, or once over all that has arrived; write its progress to a file."""
    from lookupcache import LookupJoin, LookupTable

    settings = {
        "spark.local.dir": str(folder / "spark"),
        "spark.driver.memory": "1g",
        "spark.sql.streaming.minBatchesToRetain": "1000000",
        "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
    }
    # Some runs get over a killed worker by running its task again, others fail and go on from the checkpoint.
    spark = session(random.choice(["2", "2, 3"]), settings)

    def stream(name: str, columns: str) -> Any:
        return spark.readStream.schema(columns).json(str(folder / name))

    table = LookupTable.from_stream(
        "r", stream("right", "k INT, n BIGINT, at BIGINT, gone BOOLEAN"), key=["k"], order_by=["at"], ttl=TTL,
        delete_when="gone", options={"lookup.metrics": "observe"},
    )  # fmt: skip
    left = stream("left", "k INT, n BIGINT")
    join = LookupJoin(left, table, "left.k = r.k", "left", ["left.k", "left.n", "r.n AS rate"])
    writer = join.df.writeStream.format("parquet").option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    once = (folder / "once").read_text() == "True"
    query = writer.trigger(**({"availableNow": True} if once else {"processingTime": "0 seconds"})).start()
    while not query.awaitTermination(2):
        progress = query.lastProgress
        if progress is not None and progress["stateOperators"] and progress["observedMetrics"]:
            [state] = progress["stateOperators"]
            found = {"bytes": state["memoryUsedBytes"], "keys": join.metrics_in(progress).cached_keys}
            (folder / ".progress").write_text(json.dumps(found))
            (folder / ".progress").rename(folder / "progress")


# ── memory and state ─────────────────────────────────────────────────────────────────────────────────────────


class Sizes(NamedTuple):
    """When, bytes of all Python workers, of the driver with Spark's JVM, of the state in memory; keys with a value."""

    at: float
    workers: int
    driver: int
    state: int
    keys: int


def check_sizes(sizes: Sequence[Sizes], most: int) -> Iterator[str]:
    """Print how large memory and state were in each quarter of the time; yield what has grown, or is too large.

    ``most`` is how many keys may have a value at a time, by their age.
    """
    step = max(len(sizes) // 4, 1)
    quarters = [Sizes(*map(max, zip(*sizes[n * step : (n + 1) * step], strict=True))) for n in range(4)]
    for number, one in enumerate(quarters, 1):
        print(f"quarter {number}, most at a time: workers {one.workers / 1e6:,.0f} MB, driver with JVM "
              f"{one.driver / 1e6:,.0f} MB, state {one.state / 1e6:,.2f} MB, {one.keys} keys")  # fmt: skip
    for name, small in SMALL.items():
        before, after = getattr(quarters[1], name), getattr(quarters[3], name)
        if after > max(GROWTH * before, small):
            yield f"memory of {name} has grown from {before:,} to {after:,}"
    keys, state = max(one.keys for one in sizes), max(one.state for one in sizes)
    print(f"{most:,} keys at most are younger than the age limit")
    if keys > most or state > 1e6 + 1e3 * most:
        yield f"the state has {keys:,} keys and {state:,} bytes"


def processes(session: int) -> dict[int, tuple[int, str, int]]:
    """Return parent, command and resident bytes of each process of a session.

    Spark's daemon has a process group of its own, but is of the session of the query.
    """
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(status[3]) == session:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(folder.name)] = int(status[1]), command, int(status[21]) * os.sysconf("SC_PAGE_SIZE")
    return found


def kill_worker(session: int, draw: random.Random) -> int:
    """Kill one Python worker of a query, a child of Spark's daemon; return how many there were to kill."""
    found = processes(session)
    daemons = {pid for pid, (_, command, _) in found.items() if "pyspark.daemon" in command}
    workers = [pid for pid, (parent, _, _) in found.items() if parent in daemons]
    if not workers:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(workers), signal.SIGKILL)
    return 1


def measure(session: int, folder: Path) -> Sizes:
    """Return the sizes of a running query, and what it last reported of its state."""
    found = processes(session).values()
    workers = sum(size for _, command, size in found if "pyspark.daemon" in command)
    progress = {"bytes": 0, "keys": 0}
    with contextlib.suppress(FileNotFoundError):
        progress = json.loads((folder / "progress").read_text())
    return Sizes(time.time(), workers, sum(size for _, _, size in found) - workers, progress["bytes"], progress["keys"])


# ── what the rows must be ────────────────────────────────────────────────────────────────────────────────────


def check(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the rows that were written, and which seeded mistakes the comparison misses."""
    spark = session(1, {})
    written = [tuple(row) for row in spark.read.parquet(str(folder / "out")).collect()]
    spark.stop()
    expected = list(expected_rows(folder))
    values = sum(row[2] is not None for row in expected)
    print(f"{len(written):,} rows, {values:,} of them with a value; {len(micro_batches(folder)):,} micro-batches")
    if not values or values == len(expected):
        yield "the streams test nothing"
    wrong = differences(written, expected)
    if wrong:
        yield f"{len(wrong):,} rows are missing, doubled or wrong, such as {wrong[:3]}"
    for mistake, rows in seeded(written).items():
        if not differences(rows, expected):
            yield f"the comparison does not find a row that is {mistake}"


def differences(written: Sequence[Joined], expected: Sequence[Joined]) -> list[tuple[Joined, int]]:
    """Return the rows that are written more or less often than they must be, and how much more."""
    counts = Counter(written)
    counts.subtract(Counter(expected))
    return [(row, count) for row, count in counts.items() if count]


def seeded(rows: Sequence[Joined]) -> dict[str, list[Joined]]:
    """Return the rows with one mistake each."""
    at = next(number for number, row in enumerate(rows) if row[2] is not None)
    before, (key, order, rate), after = rows[:at], rows[at], rows[at + 1 :]
    return {
        "missing": [*before, *after],
        "doubled": [*before, rows[at], *rows[at:]],
        "with another value": [*before, (key, order, rate + 1), *after],
        "without its value": [*before, (key, order, None), *after],
    }


def expected_rows(folder: Path) -> Iterator[Joined]:
    """Yield the rows that must be written, by the micro-batches in Spark's checkpoint."""
    latest: dict[int, tuple[int, int | None, int]] = {}
    for now, files in micro_batches(folder):
        latest = {key: one for key, one in latest.items() if now - one[2] < TTL * 1000}
        for row in rows_of(files, "right"):
            if row["k"] is not None and row["at"] >= latest.get(row["k"], (-(1 << 62), None, 0))[0]:
                latest[row["k"]] = row["at"], None if row["gone"] else row["n"], now
        for row in rows_of(files, "left"):
            yield row["k"], row["n"], latest.get(row["k"], (0, None, 0))[1]


def young_keys(folder: Path) -> dict[float, int]:
    """Return how many keys are within the age limit when a micro-batch ends, by the time of each."""
    latest: dict[int, int] = {}
    found = {}
    for now, files in micro_batches(folder):
        latest = {key: then for key, then in latest.items() if now - then < TTL * 1000}
        latest |= {row["k"]: now for row in rows_of(files, "right") if row["k"] is not None}
        found[now / 1000] = len(latest)
    return found


def write_sizes(folder: Path, sizes: Sequence[Sizes], young: Mapping[float, int], restarts: Sequence[float]) -> None:
    """Write what was measured to a file, and plot it over the minutes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with (folder / "sizes.csv").open("w") as file:
        csv.writer(file).writerows([Sizes._fields, *sizes])
    began = sizes[0].at

    def minutes(times: Iterable[float]) -> list[float]:
        return [(time - began) / 60 for time in times]

    figure, (memory, state, keys) = plt.subplots(3, 1, figsize=(9, 7), sharex=True, layout="constrained")
    for name, label in (("driver", "driver with JVM"), ("workers", "Python workers")):
        memory.plot(minutes(one.at for one in sizes), [getattr(one, name) / 1e6 for one in sizes], label=label)
    state.plot(minutes(one.at for one in sizes), [one.state / 1e6 for one in sizes], label="state in Spark's memory")
    keys.plot(minutes(young), [*young.values()], color="lightgray", label="keys younger than the age limit")
    keys.plot(minutes(one.at for one in sizes), [one.keys for one in sizes], label="keys held")
    for axis, unit in ((memory, "MB"), (state, "MB"), (keys, "keys")):
        for at in minutes(restarts):
            axis.axvline(at, color="red", lw=0.3)
        axis.set_ylabel(unit)
        axis.set_ylim(bottom=0)
        axis.legend(loc="upper left")
    keys.set_xlabel("minutes; red: the query starts again after SIGKILL")
    figure.savefig(folder / "sizes.png", dpi=80)
    plt.close(figure)


def micro_batches(folder: Path) -> list[tuple[int, list[Path]]]:
    """Return when each micro-batch began, in milliseconds, and its files.

    A source numbers its files apart from the micro-batches: an offset is the last number that a micro-batch has.
    """
    logs = {log.name: of_source(log) for log in sorted((folder / "checkpoint" / "sources").iterdir())}
    found, ends = [], dict.fromkeys(logs, -1)
    offsets = [file for file in (folder / "checkpoint" / "offsets").iterdir() if file.name.isdecimal()]
    for file in sorted(offsets, key=lambda file: int(file.name)):
        _, metadata, *lines = file.read_text().splitlines()
        files = []
        for (name, numbered), line in zip(logs.items(), lines, strict=True):
            end = ends[name] if line == "-" else int(json.loads(line)["logOffset"])
            files += [path for number in range(ends[name] + 1, end + 1) for path in numbered.get(number, ())]
            ends[name] = end
        found.append((int(json.loads(metadata)["batchTimestampMs"]), files))
    return found


def of_source(log: Path) -> dict[int, list[Path]]:
    """Return the files of a source by their number in its log, in which compacted entries are repeated."""
    found: dict[int, dict[Path, None]] = {}
    for file in log.iterdir():
        if file.name.split(".")[0].isdecimal():
            for line in file.read_text().splitlines()[1:]:
                entry = json.loads(line)
                found.setdefault(entry["batchId"], {})[Path(entry["path"].removeprefix("file://"))] = None
    return {number: list(files) for number, files in found.items()}


def rows_of(files: Sequence[Path], side: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the files of one stream."""
    for file in sorted(files):
        if file.parent.name == side:
            yield from map(json.loads, file.read_text().splitlines())


if __name__ == "__main__":
    run_query(Path(sys.argv[1]))
