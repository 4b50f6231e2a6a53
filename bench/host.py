"""What a cache costs that all workers of a host share: `python -m bench.host [--quick] [PART …]`, without Spark.

At the end, a table compares what was measured with the targets. ``--quick`` leaves out eviction, and measures up to
1 M keys instead of 10 M (or `LOOKUPCACHE_BENCH_KEYS`).

- warm: ns per row of warm batches, scope worker and scope host in turns: kinds of keys, uniform and skewed draws, one
  segment and several, and a writer beside the reader; nothing is cleared between batches;
- first: rows per second of each of the first batches of a fresh worker on a warm host;
- misses: what a key costs more that a worker is the first to request on the host, and what it costs to open the host's
  files of a table;
- cached: what a call of `cached` costs, for a key that no process has called, and for one that another has;
- memory: what a worker on a warm host has of its own;
- dilution: requests per key over the number of short-lived workers, with worker scope and host scope; drawn into the
  file `LOOKUPCACHE_BENCH_PLOT`, if that is set;
- large: time of a probe, part of the time that merges take, and bytes per key, up to 10 M keys and 1 GB of rows;
- mixed: rows per second of readers alone, and alongside writers;
- eviction: hit ratios on recorded keys of one cache, of the host's alone, and of two workers that share it.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lookupcache import cached
from lookupcache.cache.keys import KeyBatch
from lookupcache.cache.limits import Limits
from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.hitrate.plot import draw_dilution
from lookupcache.hitrate.prediction import DilutionRow
from lookupcache.host import HostCache, maintenance
from lookupcache.host.segments import Segments
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

DARK = (
    "@media (prefers-color-scheme:dark){g{fill:#e3e6f0} [style*='fill: #ffffff']{fill:#16181f!important} "
    "[style*='stroke: #000000']{stroke:#a9b0c6!important}}"
)
"""A drawing of matplotlib follows the browser's scheme."""
BATCH = 10_000
KEYS = 100_000
WARM_KEYS = (5_000, 20_000, 100_000, 1_000_000)
MANY_KEYS = 10_000_000
"""With 1 GB of rows; measured if `LOOKUPCACHE_BENCH_WARM_KEYS` has at least as many."""
SKEW = 1.2
DATA = Path(__file__).parents[1] / "tests" / "data"
TYPES = {"int": [pa.int64()], "string": [pa.string()], "pair": [pa.int64(), pa.string()]}


TABLE: list[tuple[str, str, str, bool]] = []
"""What was measured, its target, the figure, and whether it is met."""


def compare(what: str, figure: float, least: float = -math.inf, most: float = math.inf, unit: str = "") -> None:
    """Add a line to the table."""
    target = f"≥ {least:g}" if least > -math.inf else f"≤ {most:g}"
    TABLE.append((what, f"{target}{unit}", f"{figure:.2f}{unit}", least <= figure <= most))


class Numbered(Connector):
    """Returns for each key a row with a text and two numbers; counts the requested keys."""

    thread_safe = True

    def __init__(self, schema: pa.Schema, text_size: int = 24) -> None:
        super().__init__(schema, {})
        self.requested = 0
        self._texts = pa.array([f"a text of some length {number:02}".ljust(text_size) for number in range(100)])

    def lookup(self, request: Any, keys: pa.RecordBatch) -> pa.Table:
        self.requested += keys.num_rows
        columns = [*keys.columns, *self.columns_of(keys.num_rows).values()]
        return pa.table(columns, schema=self.schema).select(request.fields)

    def columns_of(self, count: int) -> dict[str, pa.Array]:
        """Return the columns of ``count`` rows."""
        numbers = np.arange(count)
        texts = self._texts.take(pa.array(numbers % 100))
        return {"text": texts, "n": pa.array(numbers), "x": pa.array(numbers * 0.5)}


def key_columns(numbers: Any, kind: str) -> list[pa.Array]:
    ints = pa.array(numbers)
    texts = pa.array(np.char.add("key-", numbers.astype("U9")).tolist()) if kind != "int" else ints
    return {"int": [ints], "string": [texts], "pair": [ints, texts]}[kind]


def new_runner(kind: str, path: str | None, text_size: int = 24, **options: Any) -> Runner:
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
    return Runner(
        plan, Layout(tuple(names), tuple(range(len(names)))), lookup_of(Source(plan, Numbered(schema, text_size)))
    )


def batches(kind: str, count: int, keys: int = KEYS, seed: int = 0, draw: str = "uniform") -> list[pa.RecordBatch]:
    """Return batches of random keys; with draw ``zipf``, few of them are most of the rows."""
    random = np.random.default_rng(seed)
    order = random.permutation(keys) if draw == "zipf" else np.empty(0)
    feed = []
    for _ in range(count):
        numbers = random.integers(0, keys, BATCH) if draw == "uniform" else order[(random.zipf(SKEW, BATCH) - 1) % keys]
        feed.append(pa.record_batch(key_columns(numbers, kind), NAMES[kind]))
    return feed


NAMES = {"int": ["a"], "string": ["a"], "pair": ["a", "b"]}


def all_keys(kind: str, count: int, first: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield batches that have each key once."""
    for start in range(first, first + count, BATCH):
        numbers = np.arange(start, min(start + BATCH, first + count))
        yield pa.record_batch(key_columns(numbers, kind), NAMES[kind])


def warm_up(runner: Runner, kind: str, keys: int = KEYS) -> None:
    for batch in all_keys(kind, keys):
        consume(runner, [batch])
    if (host := getattr(runner.lookup, "host", None)) is not None:
        host._maintenance.wait()


def consume(runner: Runner, feed: list[pa.RecordBatch]) -> float:
    """Return the CPU seconds of a join, which other programs on the machine change little."""
    started = time.process_time()
    for _ in runner.run(iter(feed)):
        pass
    return time.process_time() - started


def measure_warm(folder: str) -> None:
    """What a job does: batches after each other, of keys that are all cached, `lookup.cache.max-rows` = 2 x keys.

    The worker on the host is a fresh one, which finds what another has stored: in several segments, until nothing is
    published any more. A new worker of worker scope requests the keys itself first. Both see the same batches in turns.
    """
    for keys, kind, draw in itertools.product(WARM_KEYS, TYPES, ("uniform", "zipf")):
        if keys <= warm_keys():
            _measure_warm(f"{folder}/warm-{keys}-{kind}-{draw}", keys, kind, draw)
    if warm_keys() >= MANY_KEYS:
        for draw in ("uniform", "zipf"):
            _measure_warm(f"{folder}/warm-many-{draw}", MANY_KEYS, "int", draw, least=0.7, text_size=80)


def warm_keys() -> int:
    return int(os.environ.get("LOOKUPCACHE_BENCH_WARM_KEYS", "1_000_000"))


def _measure_warm(path: str, keys: int, kind: str, draw: str, least: float = 0.85, text_size: int = 24) -> None:
    worker, stored = (new_runner(kind, one, text_size, max_rows=2 * keys) for one in (None, path))
    for one in (worker, stored):
        warm_up(one, kind, keys)
    host = new_runner(kind, path, text_size, max_rows=2 * keys)
    for name in ("several segments", "quiet", "a writer beside"):
        feed = batches(kind, 31, keys, seed=len(name), draw=draw)
        if name == "quiet":
            cache = host.lookup.host
            cache._maintenance.merge_quiet(cache.clock())
            cache._maintenance.wait()
        own, shared = [], []
        for number, one in enumerate(feed):
            if name == "a writer beside":
                for new in all_keys(kind, BATCH // 100, 2 * keys + number * BATCH):
                    consume(stored, [new])
                stored.lookup.host._maintenance.wait()
            own.append(consume(worker, [one]))
            shared.append(consume(host, [one]))
        a, b = (1e9 * statistics.median(times) / BATCH for times in (own, shared))
        count = len(host.lookup.host._segments.newest)
        compare(f"warm {keys:,} {kind} keys, {draw}, {name}: worker over host", a / b, least=least, unit=" x")
        click.echo(
            f"warm {keys:9,} {kind:7}{draw:8}{name:17} worker {a:5.0f} ns/row   host {b:5.0f} ns/row   {a / b:.2f} x"
            f"   ({count} segments)"
        )
    assert host.lookup.source.connector.requested == 0
    for one in (stored, host):
        one.lookup.disconnect()
    shutil.rmtree(path)


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
        settled = float(np.median(medians[-5:]))
        compare(f"first {kind} keys, second batch over the 26th to 30th", medians[2] / settled, most=1.25, unit=" x")
        rest = ", ".join(f"{one:.1f}" for one in medians[1:6])
        click.echo(f"first {kind:7} open {medians[0]:.1f} ms, batches {rest} … {np.median(medians[-5:]):.1f} ms")


def measure_misses(folder: str) -> None:
    """Compare batches of keys that no cache has, with scope host and with scope worker, in turns."""
    for kind in TYPES:
        opened, added = [], []
        for number in range(5):
            path = f"{folder}/misses-{kind}-{number}"
            worker = new_runner(kind, None)
            started = time.process_time()
            host = new_runner(kind, path)
            consume(host, list(all_keys(kind, 1, first=10 * KEYS)))
            opened.append(time.process_time() - started)
            for one in all_keys(kind, KEYS):
                own, shared = consume(worker, [one]), consume(host, [one])
                added.append((shared - own) / one.num_rows)
            for one in (worker, host):
                one.lookup.disconnect()
        compare(f"misses {kind} keys: µs of a key more than with scope worker", 1e6 * statistics.median(added), most=2)
        click.echo(f"misses {kind:7} first row {1e3 * statistics.median(opened):.1f} ms")


def measure_cached(folder: str) -> None:
    """Call a function, and a copy of it as another process has it, one key at a time."""
    config = LookupConfig(cache="LRU", scope="host", cache_path=f"{folder}/cached", max_rows=KEYS)
    alone = cached(LookupConfig(cache="LRU", max_rows=KEYS))(lambda key: [key])
    one, other = (cached(config, version="1")(lambda key: [key]) for _ in range(2))
    seconds = []
    for function in (alone, one, other):
        function(-1)  # The first call opens the files.
        started = time.process_time()
        for key in range(1_000):
            function(key)
        seconds.append(time.process_time() - started)
        time.sleep(1)  # Merges end, so that they are not counted for the next function.
    for what, total in zip(("alone", "a miss", "a value of another process"), seconds, strict=True):
        click.echo(f"cached {what}: {total:.2f} ms per call")


def measure_memory(folder: str) -> None:
    """Compare the own memory of a process after 60 batches of a warm host with that after one batch of an empty one.

    Mapped files are not in it: all processes share them.
    """
    keys = 1_000_000
    path = f"{folder}/memory"

    def fill(_: int) -> float:
        runner = new_runner("int", path, max_rows=2 * keys)
        warm_up(runner, "int", keys)
        runner.lookup.disconnect()
        return 0.0

    def growth(_: int) -> float:
        feed = batches("int", 60, keys, seed=1)
        consume(new_runner("int", f"{folder}/empty", max_rows=2 * keys), feed[:1])
        before = own_memory()
        consume(new_runner("int", path, max_rows=2 * keys), feed)
        return (own_memory() - before) / 1e6

    in_processes(1, fill)
    [grown] = in_processes(1, growth)
    compare("MB of a worker on a warm host of 1,000,000 keys, beyond one on an empty host", grown, most=30)


def own_memory() -> int:
    """Return the bytes of this process that are no file's."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def in_processes(count: int, work: Callable[[int], float], at_once: int = 2) -> list[float]:
    """Run work in forked processes, some at a time; return what each returns."""
    results, running, waiting = [], {}, list(range(count))
    while waiting or running:
        while waiting and len(running) < at_once:
            number, (read, write) = waiting.pop(0), os.pipe()
            child = os.fork()
            if not child:
                os.write(write, repr(work(number)).encode())
                os._exit(0)
            os.close(write)
            running[child] = read
        child, status = os.wait()
        with os.fdopen(running.pop(child)) as output:
            results.append(float(output.read()))
        assert status == 0
    return results


def measure_dilution(folder: str) -> None:
    """Workers of ten batches each, two at a time, over the same 20,000 keys."""
    keys = 20_000

    def requested(number: int, path: str | None) -> float:
        runner = new_runner("int", path)
        consume(runner, batches("int", 10, keys, seed=number))
        count = runner.lookup.source.connector.requested
        runner.lookup.disconnect()
        return float(count)

    rows = []
    for workers in (1, 2, 4, 8, 16):
        seen = len(np.unique(np.concatenate([b.column(0).to_numpy() for n in range(workers)
                                              for b in batches("int", 10, keys, seed=n)])))  # fmt: skip
        path = f"{folder}/dilution-{workers}"
        own, shared = (sum(in_processes(workers, lambda n, p=p: requested(n, p))) / seen for p in (None, path))
        if workers == 16:
            compare("requests per key, 16 short-lived workers", shared, most=1.004)
        click.echo(f"dilution {workers:3} workers: requests per key {own:5.2f} worker scope, {shared:5.2f} host scope")
        rows.append(DilutionRow(workers, own, shared))
    if path := os.environ.get("LOOKUPCACHE_BENCH_PLOT"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 3.5), layout="constrained")
        axes = figure.subplots()
        draw_dilution(rows, axes)
        axes.set_title(f"{keys:,} keys, ten batches of {BATCH:,} rows a worker, counted", fontsize=9)
        figure.savefig(path, dpi=120)
        if path.endswith(".svg"):
            Path(path).write_text(Path(path).read_text().replace("</style>", f"\n{DARK}</style>", 1))


def most_keys() -> int:
    return int(os.environ.get("LOOKUPCACHE_BENCH_KEYS", "10_000_000"))


def measure_large(folder: str) -> None:
    """A worker joins 10,000 rows at a time with new keys, of 100 bytes of rows each; the merges of all are added up.

    A probe reads one slot and one word per key from anywhere in the index. It cannot be faster than numpy taking as
    many numbers from two arrays of these sizes: the same machine's cost of missing its caches. Probes of all keys and
    of a tenth are measured in turns, since the machine's speed changes meanwhile. The time of merges is compared with
    the worker's CPU time alone (a free source). It is also compared with the time of a source that takes
    10 ms per 5,000 keys, as the fastest databases do, or per 1,000.
    """
    most = most_keys()
    tenth, runner = (new_runner("int", f"{folder}/{name}", max_rows=10 * most, text_size=80) for name in ("a", "b"))
    for number in range(most // 10 // BATCH):
        keys = pa.array(np.arange(number * BATCH, (number + 1) * BATCH))
        consume(tenth, [pa.record_batch([keys], ["a"])])
    cache = runner.lookup.host
    row_bytes = pa.table(runner.lookup.source.connector.columns_of(BATCH)).nbytes / BATCH
    busy, spent = 0.0, _timed_merges()
    for number in range(most // BATCH):
        keys = pa.array(np.arange(number * BATCH, (number + 1) * BATCH))
        started = time.process_time()
        consume(runner, [pa.record_batch([keys], ["a"])])
        cache._maintenance.wait()
        busy += time.process_time() - started
        if (number + 1) * BATCH in (most // 100, most // 10, most // 2, most):
            _show_large(cache, (number + 1) * BATCH, row_bytes, spent[0], busy)
    _compare_large(cache, most, row_bytes, spent[0], busy)
    _compare_probes(tenth.lookup.host, cache, most, "while keys are stored")
    for one in (tenth.lookup.host, cache):
        one._maintenance.merge_quiet(one.clock())
        one._maintenance.wait()
    _compare_probes(tenth.lookup.host, cache, most, "when nothing is published any more")
    for one in (tenth, runner):
        one.lookup.disconnect()


SOURCES = {"a free source": math.inf, "10 ms per 5,000 keys": 5_000, "10 ms per 1,000": 1_000}
"""How many keys a source returns in 10 ms."""


def _timed_merges() -> list[float]:
    """Count the CPU seconds of merges, and of building the index again, without those of the join alongside."""
    spent, merge, build = [0.0], maintenance.merge_segments, Segments._build_index
    depth = threading.local()

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run_timed(*arguments: Any) -> Any:
            # A large merge runs in a thread of its own, and may build the index itself.
            is_inner, depth.is_inner, started = getattr(depth, "is_inner", False), True, time.thread_time()
            try:
                return function(*arguments)
            finally:
                depth.is_inner = is_inner
                spent[0] += 0.0 if is_inner else time.thread_time() - started

        return run_timed

    maintenance.merge_segments = timed(merge)
    Segments._build_index = timed(build)
    return spent


def _compare_large(cache: HostCache, count: int, row_bytes: float, merging: float, busy: float) -> None:
    for what, keys in SOURCES.items():
        part = 100 * merging / (busy + 0.01 * count / keys)
        compare(f"merges and indexing, {what}", part, most=10, unit=" %")
    size = sum(file.stat().st_size for file in Path(cache._path).iterdir())
    compare("bytes over 1.5 x payload + 100 per key", size / (count * (1.5 * row_bytes + 100)), most=1, unit=" x")


def _compare_probes(tenth: HostCache, cache: HostCache, most: int, when: str) -> None:
    (small, small_floor), (large, large_floor) = _probe_times((tenth, most // 10), (cache, most))
    click.echo(
        f"      {when}, in turns: {most // 10:,} keys in {len(tenth._segments.newest)} segments {small:.2f} ms, "
        f"{most:,} in {len(cache._segments.newest)} {large:.2f}; numpy's taking {small_floor:.2f} and {large_floor:.2f}"
    )
    compare(f"probe of {most:,} keys over that of {most // 10:,}, {when}", large / small, most=2, unit=" x")


def _show_large(cache: HostCache, count: int, row_bytes: float, merging: float, busy: float) -> None:
    [(probe, floor)] = _probe_times((cache, count))
    size = sum(file.stat().st_size for file in Path(cache._path).iterdir())
    payload = count * row_bytes
    parts = [merging / (busy + 0.01 * count / keys) for keys in SOURCES.values()]
    click.echo(
        f"large {count:10,} keys: probe {probe:5.2f} ms for 10,000, {probe / floor:.1f} x to take 2 x 10,000 numbers "
        f"from arrays of these sizes, {len(cache._segments.newest)} segments"
    )
    click.echo(
        f"      merges {merging:5.2f} of {busy:5.2f} CPU s: {parts[0]:.1%} where the source is free, {parts[1]:.1%} "
        f"at 10 ms per 5,000 keys, {parts[2]:.1%} at 10 ms per 1,000"
    )
    click.echo(
        f"      {size / payload:.2f} x payload, {(size - payload - 8 * count) / count:.0f} bytes per key besides "
        f"payload and key; each byte is written {1 + cache._control['merged_bytes'] / size:.1f} times"
    )


def _probe_times(*caches: tuple[HostCache, int]) -> list[tuple[float, float]]:
    """Return the milliseconds of a probe, and of taking numbers from arrays of the sizes of its index, in turn.

    Args:
        caches: Caches, and how many keys each has.
    """
    draw = np.random.default_rng(0)
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in caches]
    arrays = []
    for cache, count in caches:
        cache._segments.refresh()
        slots = np.zeros(1 << (5 * count // 2 - 1).bit_length(), np.int32)
        arrays.append((slots, np.arange(count, dtype=np.uint64)))
    for _ in range(101):
        for (cache, count), (slots, words), (probes, floors) in zip(caches, arrays, times, strict=True):
            keys = draw.integers(0, count, BATCH)
            at = draw.integers(0, len(slots), BATCH)
            began = time.process_time()
            cache._segments.locate(KeyBatch.of([pa.array(keys)], [pa.int64()]), live=True)
            middle = time.process_time()
            words.take(slots.take(at) + keys)
            probes.append(middle - began)
            floors.append(time.process_time() - middle)
    return [(statistics.median(probes) * 1e3, statistics.median(floors) * 1e3) for probes, floors in times]


def measure_mixed(folder: str) -> None:
    """One reader over a warm host, alone and alongside one that only finds new keys; wall time."""

    def read(path: str) -> float:
        runner, feed = new_runner("int", path), batches("int", 40)
        started = time.perf_counter()
        for one in feed:
            runner.lookup.cache.clear()
            consume(runner, [one])
        return 40 * BATCH / (time.perf_counter() - started)

    def write(path: str) -> float:
        runner = new_runner("int", path)
        for number in range(40):
            keys = np.arange(BATCH) + (number + 100) * BATCH
            consume(runner, [pa.record_batch([pa.array(keys)], ["a"])])
        return 0.0

    path = f"{folder}/mixed"
    warm_up(new_runner("int", path), "int")
    alone = statistics.median(max(in_processes(2, lambda n: read(path))) for _ in range(3))
    both = statistics.median(max(in_processes(2, lambda n: read(path) if n else write(path))) for _ in range(3))
    compare("mixed, a reader alongside a writer over one alongside a reader", both / alone, least=0.8, unit=" x")
    click.echo(f"mixed: a reader alongside a reader {alone / 1e6:.2f} M rows/s, alongside a writer {both / 1e6:.2f}")


def measure_eviction(folder: str) -> None:
    """Hit ratios in one cache, on the host alone, and with two workers that take turns and have caches of their own."""
    for trace in sorted(DATA.glob("*.parquet")):
        keys = pq.read_table(trace).column(0).combine_chunks().dictionary_encode().indices.cast(pa.int64())
        feed = [pa.record_batch([keys[at : at + 500]], ["a"]) for at in range(0, len(keys), 500)]
        distinct = len(keys.unique())
        for eviction, part in itertools.product(("lru", "s3-fifo"), (0.02, 0.1)):
            rows = int(part * distinct)
            path = f"{folder}/{trace.stem}-{eviction}-{rows}"
            one = [new_runner("int", None, max_rows=rows, eviction=eviction)]
            two = [new_runner("int", path, max_rows=rows, eviction=eviction) for _ in range(2)]
            exact, shared = (_hit_ratio(runners, feed) for runners in (one, two))
            host = _hit_ratio_of_host(f"{path}-alone", feed, Limits(rows=rows, eviction=eviction))
            points = 100 * abs(host - exact)
            compare(f"eviction {trace.stem} {eviction} {rows:,}, points from exact", points, most=2)
            click.echo(
                f"eviction {trace.stem} {eviction:7} {rows:6,} of {distinct:,} keys: one cache {exact:.2%}, the host's "
                f"alone {host:.2%} ({100 * (host - exact):+.2f} points), with the caches of two workers {shared:.2%}"
            )


def _hit_ratio(runners: list[Runner], feed: list[pa.RecordBatch]) -> float:
    for number, batch in enumerate(feed):
        consume(runners[number % len(runners)], [batch])
    for runner in runners:
        runner.lookup.disconnect()
    return 1 - sum(runner.lookup.source.connector.requested for runner in runners) / sum(map(len, feed))


def _hit_ratio_of_host(path: str, feed: list[pa.RecordBatch], limits: Limits) -> float:
    cache, missed = HostCache(path, "ab" * 16, [pa.int64()], pa.schema([("n", pa.int64())]), limits), 0
    for batch in feed:
        keys = KeyBatch.of(batch.columns, [pa.int64()])
        keys = keys.take(np.sort(keys.distinct().first))
        missing = np.setdiff1d(np.arange(len(keys)), cache.find(keys).positions)
        rows = pa.table({"n": missing})
        ones = np.ones(len(missing), np.int64)
        cache.publish(keys.take(missing), rows, ones, cache.clock(), cache.position)
        missed += len(missing)
    cache.close()
    return 1 - missed / sum(map(len, feed))


PARTS: dict[str, Callable[[str], None]] = {
    "warm": measure_warm,
    "first": measure_first,
    "misses": measure_misses,
    "cached": measure_cached,
    "memory": measure_memory,
    "dilution": measure_dilution,
    "large": measure_large,
    "mixed": measure_mixed,
    "eviction": measure_eviction,
}


def show_table() -> None:
    """Print the targets, and whether they are met."""
    width = max((len(what) for what, *_ in TABLE), default=0)
    for what, target, figure, is_met in TABLE:
        click.echo(f"{what:{width}}  target {target:>9}  measured {figure:>9}  {'met' if is_met else 'MISSED'}")


@click.command()
@click.option("--quick", is_flag=True, help="Less than three minutes: fewer keys, no eviction.")
@click.argument("parts", nargs=-1)
def main(parts: tuple[str, ...], quick: bool) -> None:
    """Measure, and print a table."""
    if quick:
        os.environ.setdefault("LOOKUPCACHE_BENCH_KEYS", "1_000_000")
        parts = parts or tuple(name for name in PARTS if name != "eviction")
    folder = tempfile.mkdtemp(prefix="bench-host")
    try:
        for name in parts or PARTS:
            PARTS[name](folder)
    finally:
        shutil.rmtree(folder)
    show_table()


if __name__ == "__main__":
    main()
