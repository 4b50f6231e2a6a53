"""The cost of a lookup with a cold cache, for every kind of function: `python -m bench.cold`.

In one run, alternately, against a service with a fixed latency in its own process: single keys in sequence, threads,
coroutines, batches, and batches in coroutines, each also with all keys in the cache. They are compared with the client
without lookupcache, which is the limit. Then: few concurrent calls of 100 ms; concurrent requests for one cold key; a
hot key that expires under load; and keys without rows.

All joins run as in a worker, from Arrow batches to Arrow batches, without Spark. Figures are medians over the rounds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench import negative_cache
from bench.service import SCHEMA, AsyncClient, Service, SyncClient, value_of
from lookupcache.config import LookupConfig
from lookupcache.config.values import parse_duration
from lookupcache.decorator import cached
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.table import LookupTable
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.partial_cache import PartialCacheLookup
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

BARE = "bare client"
ONE_BY_ONE = "sync one by one"
ASYNC = "async one by one"
ASYNC_SMALL = "async, 100-row batches"
ASYNC_BATCHED = "async batched"
FULL = (ASYNC, ASYNC_SMALL, BARE)
"""The variants that should use the full capacity of concurrent calls."""


@dataclass(frozen=True)
class Taken:
    """The wall-clock and CPU seconds of a pass, and its number of keys."""

    seconds: float
    cpu: float
    keys: int


@dataclass(frozen=True)
class Variant:
    """A kind of function with options.

    ``share`` is the fraction of the keys that it looks up, ``rows`` the maximum number of rows of an Arrow batch.
    """

    name: str
    function: Callable[..., Any]
    options: dict[str, str]
    batch: bool = False
    share: float = 1.0
    rows: int = 1_000_000

    def passes(self, keys: int, rows: int) -> tuple[Taken, Taken]:
        """Join batches of ``rows`` distinct keys twice: first with a cold cache, then with all keys cached."""
        keys = max(int(keys * self.share), 20)
        rows = min(rows, self.rows)
        lookup = self._lookup(keys)
        left = pa.array(np.random.default_rng(keys).permutation(keys))
        batches = [pa.record_batch({"id": left.slice(start, rows)}) for start in range(0, keys, rows)]
        runner = Runner(lookup.source.plan, Layout(("id",), (0,)), lookup)
        try:
            return _run_pass(runner, batches, keys), _run_pass(runner, batches, keys)
        finally:
            lookup.source.close()

    def _lookup(self, keys: int) -> PartialCacheLookup:
        options = {"lookup.cache": "LRU", "lookup.cache.max-rows": str(2 * keys), **self.options}
        table = LookupTable.from_function(
            "s", SCHEMA, key=["id"], function=self.function, batch=self.batch, options=options
        )
        key = FieldKey(column="id", sql="l.`id`")
        plan = LookupPlan(
            table="s", connector="function", source=self.name, schema=table.schema, how="left", keys=(key,),
            columns=("value",), left_columns=("id",), config=table.config,
        )  # fmt: skip
        return lookup_of(Source(plan, table.connector))


def _run_pass(runner: Runner, batches: list[pa.RecordBatch], keys: int) -> Taken:
    started, cpu = time.perf_counter(), time.process_time()
    joined = list(runner.run(batches))
    taken = Taken(time.perf_counter() - started, time.process_time() - cpu, keys)
    for batch in joined:
        ids, values = batch.column(0).to_numpy(), batch.column(1).to_numpy()
        assert (value_of(ids) == values).all()
    assert sum(batch.num_rows for batch in joined) == keys
    return taken


def variants(path: str, capacity: int) -> list[Variant]:
    """Return the variants to compare."""
    sync, coroutines = SyncClient(path), AsyncClient(path)
    in_flight = {"lookup.async": "true", "lookup.async.capacity": str(capacity)}
    full = {"lookup.batch.max-size": "100"}
    return [
        Variant(ONE_BY_ONE, sync.one, {"lookup.async": "false"}, share=0.05),
        Variant("threads", sync.one, in_flight),
        Variant(ASYNC, coroutines.one, in_flight),
        Variant(ASYNC_SMALL, coroutines.one, in_flight, rows=100),
        Variant("batched", sync.many, {"lookup.async": "false", **full}, batch=True),
        Variant(ASYNC_BATCHED, coroutines.many, {**in_flight, **full}, batch=True, share=10),
    ]


def bare(path: str, keys: int, capacity: int) -> Taken:
    """Request the keys with the async client only, ``capacity`` concurrently, which is the lower bound of the time."""

    async def request_all() -> Taken:
        client, remaining = AsyncClient(path), iter(range(keys))
        await client.one(0)

        async def request() -> None:
            for key in remaining:
                await client.one(key)

        started, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(request() for _ in range(capacity)))
        return Taken(time.perf_counter() - started, time.process_time() - cpu, keys)

    return asyncio.run(request_all())


def measure_latency(path: str, calls: int) -> float:
    """Return the median seconds of sequential calls of the sync client."""
    client, seconds = SyncClient(path), []
    for key in range(calls):
        started = time.perf_counter()
        client.one(key)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


@dataclass(frozen=True)
class Settings:
    """The options of the command line."""

    keys: int
    latency: float
    capacity: int
    rounds: int
    batch_rows: int
    storm_rows: int
    console: Console = field(repr=False)

    def run_alternately(self, name: str, runs: dict[str, Callable[[], Any]]) -> dict[str, list[Any]]:
        """Run the variants alternately, after one round to warm up; return their results."""
        found: dict[str, list[Any]] = {variant: [] for variant in runs}
        for number in range(self.rounds + 1):
            for variant, run in runs.items():
                result = run()
                if number:
                    found[variant].append(result)
            self.console.print(f"  {name}: {number}/{self.rounds}", style="dim")
        return found


def _median(values: Any) -> float:
    return statistics.median(list(values))


# ── cold and cached ──────────────────────────────────────────────────────────────────────────────────────


def cold(setting: Settings) -> dict[str, Any]:
    """Measure every variant with a cold and a warm cache, and the client without lookupcache."""
    with Service(setting.latency) as service:
        compared = variants(service.path, setting.capacity)
        runs: dict[str, Callable[[], Any]] = {
            variant.name: partial(variant.passes, setting.keys, setting.batch_rows) for variant in compared
        }
        runs[BARE] = lambda: (bare(service.path, setting.keys, setting.capacity), None)
        taken = setting.run_alternately("cold", runs)
        latency = measure_latency(service.path, 200)
    least = setting.keys / setting.capacity
    return {
        "nominal latency": setting.latency,
        "measured latency": latency,
        "ways": {name: _figures(pairs) for name, pairs in taken.items()},
        "of keys ÷ capacity × nominal latency": {
            name: _median(pair[0].seconds for pair in taken[name]) / (least * setting.latency) for name in FULL
        },
        "of keys ÷ capacity × measured latency": {
            name: _median(pair[0].seconds for pair in taken[name]) / (least * latency) for name in FULL
        },
        "async batched ÷ async one by one": _keys_per_second(taken[ASYNC_BATCHED]) / _keys_per_second(taken[ASYNC]),
    }


def _keys_per_second(pairs: list[tuple[Taken, Any]]) -> float:
    return _median(pair[0].keys / pair[0].seconds for pair in pairs)


def _figures(pairs: list[tuple[Taken, Taken | None]]) -> dict[str, Any]:
    keys = pairs[0][0].keys
    warm = [pair[1].seconds for pair in pairs if pair[1] is not None]
    return {
        "keys": keys,
        "cold seconds": _median(pair[0].seconds for pair in pairs),
        "cold CPU µs per key": _median(pair[0].cpu / keys * 1e6 for pair in pairs),
        "cached seconds": _median(warm) if warm else None,
        "all cold seconds": [pair[0].seconds for pair in pairs],
    }


# ── few concurrent calls ─────────────────────────────────────────────────────────────────────────────────


def in_flight(setting: Settings, keys: int = 20) -> dict[str, Any]:
    """Compare 2 and 10 concurrent calls of 100 ms, in threads and in coroutines, with sequential calls."""
    with Service(0.1) as service:
        sync, coroutines = SyncClient(service.path), AsyncClient(service.path)
        compared = [Variant("one by one", sync.one, {"lookup.async": "false"})]
        for number in (2, 10):
            options = {"lookup.async": "true", "lookup.async.capacity": str(number)}
            compared.append(Variant(f"{number} threads", sync.one, options))
            compared.append(Variant(f"{number} coroutines", coroutines.one, options))
        taken = setting.run_alternately(
            "calls of 100 ms", {one.name: partial(one.passes, keys, keys) for one in compared}
        )
    times = {name: [first.seconds for first, _ in passes] for name, passes in taken.items()}
    alone = times["one by one"]
    return {
        name: {
            "seconds": _median(seconds),
            "times as fast": _median(a / b for a, b in zip(alone, seconds, strict=True)),
        }
        for name, seconds in times.items()
    }


# ── decorated functions ──────────────────────────────────────────────────────────────────────────────────


def single_flight(setting: Settings, requests: int = 50) -> dict[str, int]:
    """Count the calls when many coroutines, or threads, request a cold key at the same time."""
    with Service(setting.latency) as service:
        coroutines = cached(LookupConfig(cache="LRU"))(AsyncClient(service.path).one)

        async def request_all() -> None:
            await asyncio.gather(*(coroutines(7) for _ in range(requests)))

        asyncio.run(request_all())
        threads = cached(LookupConfig(cache="LRU"))(SyncClient(service.path).one)
        with ThreadPoolExecutor(requests) as pool:
            list(pool.map(threads, itertools.repeat(7, requests)))
    return {"coroutines": coroutines.metrics().calls, "threads": threads.metrics().calls}


HOT = {
    "plain hit": {},
    "refresh ahead": {"expire_after_write": "50 ms", "refresh_after_write": "25 ms"},
    "expiry alone": {"expire_after_write": "50 ms"},
}


def hot_key(setting: Settings) -> dict[str, Any]:
    """Measure the latency of requests for one hot key, 20 per millisecond, while its entry expires every 50 ms."""
    with Service(setting.latency) as service:
        configs = {name: LookupConfig(cache="LRU", **options) for name, options in HOT.items()}
        runs = {name: partial(_request_hot_key, service.path, config, 2_000) for name, config in configs.items()}
        taken = setting.run_alternately("hot key", runs)
    figures = {
        name: {
            "p50 µs": _median(np.percentile(seconds, 50) for seconds in found) * 1e6,
            "p99 µs": _median(np.percentile(seconds, 99) for seconds in found) * 1e6,
        }
        for name, found in taken.items()
    }
    pairs = zip(taken["refresh ahead"], taken["plain hit"], strict=True)
    ratio = _median(np.percentile(a, 99) / np.percentile(b, 99) for a, b in pairs)
    return {**figures, "p99 with refresh ahead ÷ plain hit": ratio}


def _request_hot_key(path: str, config: LookupConfig, ticks: int, each: int = 20) -> list[float]:
    """Return the seconds that each request took; requests do not wait for earlier ones."""

    async def run() -> list[float]:
        look_up, seconds, tasks = cached(config)(AsyncClient(path).one), [], set()
        await look_up(7)

        async def request() -> None:
            started = time.perf_counter()
            await look_up(7)
            seconds.append(time.perf_counter() - started)

        for _ in range(ticks):
            for _ in range(each):
                task = asyncio.create_task(request())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        return seconds

    return asyncio.run(run())


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────


def show(found: dict[str, Any], setting: Settings) -> None:
    """Print the tables, and compare the results with the targets."""
    say, cold = setting.console.print, found["cold"]
    say(_variants_table(cold, setting))
    nominal = cold["of keys ÷ capacity × nominal latency"]
    measured = cold["of keys ÷ capacity × measured latency"]
    say(
        f"a single call takes {cold['measured latency'] * 1e3:.3f} ms; keys ÷ capacity × latency, nominal and measured:"
    )
    for name in FULL:
        target = "" if name == BARE else " (target: at most 1.15)"
        say(f"  {name}: {nominal[name]:.3f} ×{target}, {measured[name]:.3f} ×")
    say(f"async batched: {cold['async batched ÷ async one by one']:.1f} × async one by one (target: 10)")
    for name, figures in found["calls of 100 ms"].items():
        target = f" (target: {name.split()[0]})" if name[0].isdigit() else ""
        say(f"100 ms calls, {name}: {figures['seconds']:.3f} s, {figures['times as fast']:.2f} ×{target}")
    calls = found["calls for a cold key that 50 want"]
    say(
        ", ".join(f"50 {name} that request a cold key: {count} call(s)" for name, count in calls.items())
        + " (target: 1)"
    )
    hot = found["hot key"]
    say(", ".join(f"{name}: p50 {hot[name]['p50 µs']:.0f} µs, p99 {hot[name]['p99 µs']:.0f} µs" for name in HOT))
    say(f"refresh ahead: p99 {hot['p99 with refresh ahead ÷ plain hit']:.2f} × that of a plain hit (target: at most 2)")
    say(negative_cache.table(found["storm"]))


def _variants_table(cold: dict[str, Any], setting: Settings) -> Table:
    title = f"{setting.latency * 1e3:g} ms a call, capacity {setting.capacity}, medians of {setting.rounds} rounds"
    table = Table("", title=title)
    for column in ("keys", "cold ms", "keys/s", "CPU µs/key", "cached ms", "cached keys/s"):
        table.add_column(column, justify="right")
    for name, row in cold["ways"].items():
        cells = [f"{row['keys']:,}", f"{row['cold seconds'] * 1e3:,.0f}", f"{row['keys'] / row['cold seconds']:,.0f}"]
        warm = row["cached seconds"]
        cached_cells = ["–", "–"] if warm is None else [f"{warm * 1e3:.2f}", f"{row['keys'] / warm:,.0f}"]
        table.add_row(name, *cells, f"{row['cold CPU µs per key']:.1f}", *cached_cells)
    return table


def plot(found: dict[str, Any], path: Path) -> None:
    """Plot keys per second of the variants, the hot key's p99, and keys without rows."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 5), layout="constrained", width_ratios=[3, 1.4, 2])
    rows = found["cold"]["ways"]
    positions = np.arange(len(rows))
    left.bar(positions - 0.2, [row["keys"] / row["cold seconds"] for row in rows.values()], 0.4, label="cold")
    warm = [row["keys"] / row["cached seconds"] if row["cached seconds"] else 0 for row in rows.values()]
    left.bar(positions + 0.2, warm, 0.4, label="cached")
    left.set_xticks(positions, [name.replace(" ", "\n", 1) for name in rows], fontsize=8)
    left.set_yscale("log")
    left.set_title(f"keys per second, {found['cold']['nominal latency'] * 1e3:g} ms a call (log)")
    left.legend()
    middle.bar(list(HOT), [found["hot key"][name]["p99 µs"] for name in HOT], 0.6)
    middle.set_yscale("log")
    middle.tick_params(axis="x", labelsize=8)
    middle.set_title("hot key that expires: p99 in µs (log)")
    negative_cache.plot(found["storm"], right)
    figure.savefig(path, dpi=120)


@click.command()
@click.option("--keys", default=10_000, show_default=True, help="Distinct keys.")
@click.option("--latency", default="5ms", show_default=True, help="Latency of the service.")
@click.option("--capacity", default=100, show_default=True, help="Maximum number of concurrent calls.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each variant.")
@click.option("--batch-rows", default=1_000, show_default=True, help="Rows of an Arrow batch.")
@click.option("--storm-rows", default=2_000_000, show_default=True, help="Left rows of the benchmark of missing keys.")
@click.option("--quick", is_flag=True, help="One round, 2,000 keys, and 100,000 missing keys.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(
    keys: int, latency: str, capacity: int, rounds: int, batch_rows: int, storm_rows: int, quick: bool, out: Path
) -> None:
    """Measure, print tables, and write cold.json and cold.png."""
    console = Console()
    console.width = max(console.width, 110)
    if quick:
        keys, rounds, storm_rows = min(keys, 2_000), 1, min(storm_rows, 100_000)
    setting = Settings(keys, parse_duration(latency), capacity, rounds, batch_rows, storm_rows, console)
    found = {
        "cold": cold(setting),
        "calls of 100 ms": in_flight(setting),
        "calls for a cold key that 50 want": single_flight(setting),
        "hot key": hot_key(setting),
        "storm": negative_cache.measure(setting.storm_rows, setting.run_alternately),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "cold.json").write_text(json.dumps(found, indent=1, ensure_ascii=False))
    plot(found, out / "cold.png")
    show(found, setting)
    console.print(f"Wrote {out / 'cold.json'} and {out / 'cold.png'}.")


if __name__ == "__main__":
    main()
