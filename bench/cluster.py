"""A cluster of several executors whose caches are cold, or that loses something: `python -m bench.cluster`.

Spark starts eight executors on this machine, each with a local directory of its own, so that each stands for a host.
They join through one store, from a source whose calls take a while, and whose rate is limited for all together. Each
scenario begins with empty caches; when a third of the keys was requested,

- an executor: one of them is killed by SIGKILL;
- a folder: the folder with the cache of one host is removed;
- a store: the server of the store is killed, and stays away.

All must end with the right rows. Shown are the requests per key, and the most calls within any second next to the
limit. The longest wait is from when Spark gives a row to Python to when it is joined.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench import source
from bench.process import process_tree
from bench.scale import Line, checksum
from bench.session import session
from lookupcache.spark.join import LookupJoin
from lookupcache.table import LookupTable

NOW = "CAST(reflect('java.lang.System', 'currentTimeMillis') AS BIGINT)"
KEYS_PER_CALL = 200
RATE = 20


@dataclass(frozen=True)
class Scenario:
    """What happens while a join runs; without a store, the limit is that of each executor."""

    name: str
    has_store: bool = True
    event: Callable[[Cluster], None] = lambda cluster: None


@dataclass(frozen=True)
class Figures:
    """What a scenario has shown."""

    scenario: str
    seconds: float
    calls: int
    per_key: float
    wait: float
    calls_per_second: int
    limit: int


class Cluster:
    """A session with executors, and the server of a store."""

    def __init__(self, executors: int, folder: Path) -> None:
        from servers import RedisServer

        self.executors, self.folder = executors, folder
        self.store = RedisServer().start()
        os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
        path = os.pathsep.join(map(str, sys.path))
        self.spark = session(1, {
            "spark.master": f"local-cluster[{executors},1,1024]", "spark.executorEnv.PYTHONPATH": path,
            "spark.executor.memory": "512m", "spark.cores.max": str(executors), "spark.driver.memory": "1g",
            # All executors must be there before the first task, or the first ones would run all.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.task.maxFailures": "8",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
        })  # fmt: skip

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.spark.stop()
        self.store.close()

    def kill_executor(self) -> None:
        """Kill the executor that was started last."""
        found = [one.pid for one in process_tree() if b"CoarseGrainedExecutorBackend" in one.command_line]
        os.kill(max(found), signal.SIGKILL)

    def remove_folder(self) -> None:
        """Remove the cache of a host."""
        shutil.rmtree(next(iter((self.folder / "local").rglob("lookupcache"))), ignore_errors=True)

    def kill_store(self) -> None:
        """Kill the server of the store."""
        self.store.kill()


SCENARIOS = [
    Scenario("cold, without a store", has_store=False),
    Scenario("cold"),
    Scenario("an executor is killed", event=Cluster.kill_executor),
    Scenario("a host's folder is lost", event=Cluster.remove_folder),
    Scenario("the store is killed", event=Cluster.kill_store),
]


def joined(cluster: Cluster, line: Line, scenario: Scenario, log: Path) -> Any:
    """Return the join, with the time that each row took, in ms."""
    left = line.left(cluster.spark).repartition(4 * cluster.executors).selectExpr("*", f"{NOW} AS began")
    options = {
        "connector": "bench.source:Customers", "keys": str(line.keys), "log": str(log), "seconds": "0.05",
        "lookup.cache": "LRU", "lookup.form": "worker", "lookup.batch.max-size": str(KEYS_PER_CALL),
        "lookup.rate-limit": str(RATE if scenario.has_store else RATE / cluster.executors),
    }  # fmt: skip
    if scenario.has_store:
        options |= {"lookup.cache.store": cluster.store.url}
        options |= {"lookup.rate-limit.scope": "cluster"}
    select = [*(f"l.{name}" for name in left.columns), *(f"c.{name}" for name in source.PAYLOAD)]
    join = LookupJoin(left, LookupTable("c", source.SCHEMA, options), "l.id = c.id", "left", select)
    return join.df.selectExpr("*", f"{NOW} - began AS took").drop("began")


def run(cluster: Cluster, line: Line, scenario: Scenario) -> Figures:
    """Run a scenario; raises ValueError if its rows are not those of the table."""
    log = cluster.folder / f"calls in {scenario.name}"
    happens = threading.Thread(target=once_requested, args=(log, line.keys // 3, scenario.event, cluster), daemon=True)
    happens.start()
    started = time.perf_counter()
    rows = joined(cluster, line, scenario, log).cache()
    [[longest]] = rows.selectExpr("max(took)").collect()
    seconds = time.perf_counter() - started
    happens.join(60)
    if happens.is_alive():
        raise ValueError(f"{scenario.name}: so few keys were requested that nothing has happened.")
    found, expected = checksum(rows.drop("took")), checksum(line.expected(cluster.spark))
    rows.unpersist()
    if found != expected:
        raise ValueError(f"{scenario.name}: {found} instead of {expected}.")
    calls = source.calls_in(log)
    return Figures(
        scenario.name, seconds, len(calls), sum(call.keys for call in calls) / line.keys, longest / 1e3,
        most_within_a_second(call.began for call in calls), RATE,
    )  # fmt: skip


def once_requested(log: Path, keys: int, event: Callable[[Cluster], None], cluster: Cluster) -> None:
    """Let the event happen after ``keys`` keys were requested."""
    while sum(call.keys for call in source.calls_in(log)) < keys:
        time.sleep(0.05)
    event(cluster)


def most_within_a_second(times: Iterable[float]) -> int:
    """Return how many of these times lie within one second, at most.

    >>> most_within_a_second([0.0, 0.5, 0.9, 1.2, 9.0])
    3
    """
    within, most = deque[float](), 0
    for time_ in sorted(times):
        within.append(time_)
        while within[0] <= time_ - 1:
            within.popleft()
        most = max(most, len(within))
    return most


def show(found: list[Figures], console: Console) -> None:
    """Print a table."""
    names = ("scenario", "seconds", "calls", "requests per key", "longest wait, s", "calls within a second", "limit")
    table = Table(*names)
    for one in found:
        numbers = (f"{one.seconds:.1f}", f"{one.calls:,}", f"{one.per_key:.2f}", f"{one.wait:.1f}")
        table.add_row(one.scenario, *numbers, str(one.calls_per_second), str(one.limit))
    console.print(table)


@click.command()
@click.option("--executors", default=8, show_default=True)
@click.option("--rows", default=400_000, show_default=True, help="Left rows.")
@click.option("--keys", default=20_000, show_default=True, help="Keys, all of which occur.")
@click.option("--smallest", is_flag=True, help="Two executors and 4,000 keys, as CI does it.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(executors: int, rows: int, keys: int, smallest: bool, out: Path) -> None:
    """Run all scenarios, print a table, and write cluster.json."""
    # The server is started by a helper of the tests.
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    console = Console()
    console.width = max(console.width, 110)
    if smallest:
        executors, rows, keys = 2, 80_000, 4_000
    found = []
    with tempfile.TemporaryDirectory() as folder, Cluster(executors, Path(folder)) as cluster:
        for scenario in SCENARIOS:
            found.append(run(cluster, Line(rows, keys, "uniform", "LRU", 3), scenario))
            console.print(f"  {found[-1]}", style="dim", highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    (out / "cluster.json").write_text(json.dumps([asdict(one) for one in found], indent=1))
    show(found, console)


if __name__ == "__main__":
    main()
