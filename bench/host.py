"""What a cache costs that all workers of a host share: `python -m bench.host [PART …]`, without Spark.

- warm: hits on the host with an empty cache of the worker, alongside hits in the worker's own cache;
- first: rows per second of each of the first batches of a fresh worker on a warm host;
- dilution: requests per key over the number of short-lived workers, with worker scope and host scope;
- large: time of a probe, part of the time that merges take, and bytes per key, up to 10 M keys and 1 GB of rows;
- mixed: rows per second of readers alone, and alongside writers.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import pyarrow as pa

from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

BATCH = 10_000
KEYS = 100_000
TYPES = {"int": [pa.int64()], "string": [pa.string()], "pair": [pa.int64(), pa.string()]}


class Numbered(Connector):
    """Returns for each key a row with a text and two numbers; counts the keys that it was asked for."""

    thread_safe = True

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema, {})
        self.requested = 0

    def lookup(self, request: Any, keys: pa.RecordBatch) -> pa.Table:
        self.requested += keys.num_rows
        numbers = np.arange(keys.num_rows)
        texts = pa.array([f"a text of some length {number}" for number in range(100)]).take(pa.array(numbers % 100))
        columns = [*keys.columns, texts, pa.array(numbers), pa.array(numbers * 0.5)]
        return pa.table(columns, schema=self.schema).select(request.fields)


def key_columns(numbers: Any, kind: str) -> list[pa.Array]:
    ints = pa.array(numbers)
    texts = pa.array(np.char.add("key-", numbers.astype("U8")).tolist()) if kind != "int" else ints
    return {"int": [ints], "string": [texts], "pair": [ints, texts]}[kind]


def new_runner(kind: str, path: str | None, **options: Any) -> Runner:
    """Return the runner of a new worker, with scope host if there is a path."""
    names = ["a", "b"][: len(TYPES[kind])]
    keys = [pa.field(name, type_) for name, type_ in zip(names, TYPES[kind], strict=True)]
    schema = pa.schema([*keys, ("text", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
    scope = {} if path is None else {"scope": "host", "cache_path": path}
    plan = LookupPlan(
        table="t", connector="bench", source="-", schema=schema, how="left", columns=("text", "n", "x"),
        keys=tuple(FieldKey(column=name, sql="") for name in names), left_columns=tuple(names),
        config=LookupConfig(cache="LRU", **{"max_rows": 10 * KEYS, **scope, **options}),
    )  # fmt: skip
    return Runner(plan, Layout(tuple(names), tuple(range(len(names)))), lookup_of(Source(plan, Numbered(schema))))


def batches(kind: str, count: int, keys: int = KEYS, seed: int = 0) -> list[pa.RecordBatch]:
    """Return batches of random keys."""
    draw = np.random.default_rng(seed)
    names = ["a", "b"][: len(TYPES[kind])]
    return [pa.record_batch(key_columns(draw.integers(0, keys, BATCH), kind), names) for _ in range(count)]


def warm_up(runner: Runner, kind: str) -> None:
    names = ["a", "b"][: len(TYPES[kind])]
    for start in range(0, KEYS, BATCH):
        columns = key_columns(np.arange(start, start + BATCH), kind)
        consume(runner, [pa.record_batch(columns, names)])


def consume(runner: Runner, feed: list[pa.RecordBatch]) -> float:
    """Return the CPU seconds of a join, which other programs on the machine change little."""
    started = time.process_time()
    for _ in runner.run(iter(feed)):
        pass
    return time.process_time() - started


def measure_warm(folder: str) -> None:
    """Each batch on the host meets an empty cache of the worker."""
    for kind in TYPES:
        path = f"{folder}/warm-{kind}"
        worker, host = new_runner(kind, None), new_runner(kind, path)
        warm_up(worker, kind)
        warm_up(host, kind)
        feed = batches(kind, 40)
        own, shared = [], []
        fresh = new_runner(kind, path)
        for one in feed:
            own.append(consume(worker, [one]))
            fresh.lookup.cache.clear()
            shared.append(consume(fresh, [one]))
        assert fresh.lookup.source.connector.requested == 0
        a, b = (BATCH / statistics.median(times) for times in (own, shared))
        click.echo(f"warm {kind:7} worker {a / 1e6:6.2f} M rows/s   host {b / 1e6:6.2f} M rows/s   {b / a:.2f} ×")


def measure_first(folder: str) -> None:
    for kind in TYPES:
        path = f"{folder}/first-{kind}"
        warm_up(new_runner(kind, path), kind)
        feed = batches(kind, 30, seed=1)
        times = []
        for _ in range(7):
            started = time.perf_counter()
            fresh = new_runner(kind, path)
            opened = time.perf_counter() - started
            times.append([opened, *(consume(fresh, [one]) for one in feed)])
            fresh.lookup.disconnect()
        medians = np.median(times, axis=0) * 1e3
        rest = ", ".join(f"{one:.1f}" for one in medians[1:6])
        click.echo(f"first {kind:7} open {medians[0]:.1f} ms, batches {rest} … {np.median(medians[-5:]):.1f} ms")


PARTS: dict[str, Callable[[str], None]] = {"warm": measure_warm, "first": measure_first}


@click.command()
@click.argument("parts", nargs=-1)
def main(parts: tuple[str, ...]) -> None:
    """Measure, and print a table."""
    folder = tempfile.mkdtemp(prefix="bench-host")
    try:
        for name in parts or PARTS:
            PARTS[name](folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
