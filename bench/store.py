"""What a store costs and saves: `python -m bench.store [PART …]`, with a Redis server and a folder, without Spark.

- hits: 5,000 keys from the store by batch, alongside decoding them alone, and the bare driver's MGET of the same bytes
  (for a folder, reading its files);
- misses: batches of keys that neither cache nor store has, with and without a store, for a source that takes a while;
  until all rows are stored: in a join, which reads ahead, and a batch after the other;
- again: the second run of a job over a function of 50 ms.

It prints a table of what was measured and of the targets.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import pyarrow as pa

from lookupcache.cache.keys import KeyBatch
from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.functions.connector import FunctionConnector
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.store.folder_files import OpenFile
from lookupcache.store.folder_segment import FolderSegment
from lookupcache.store.names import schema_hash
from lookupcache.store.row_store import Known, RowStore
from lookupcache.store.rows import from_frames
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.partial_cache import PartialCacheLookup
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

KEYS = 5_000
ROUNDS = 15
BATCHES = 5
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])


class Named(Connector):
    """Returns a row for each key after ``seconds``."""

    seconds = 0.0

    def lookup(self, request, keys):  # type: ignore[no-untyped-def]
        time.sleep(self.seconds)
        ids = keys.column("id")
        names = pa.array([f"customer number {number}" for number in ids.to_pylist()])
        table = pa.table([ids, names, ids.cast(pa.float64())], schema=SCHEMA)
        return table.select(request.fields)


def slow(key: int) -> list[tuple[int, str, float]]:
    """Return a row after 50 ms."""
    time.sleep(0.05)
    return [(key, f"customer number {key}", float(key))]


def new_lookup(connector: Connector, url: str | None, **options: object) -> PartialCacheLookup:
    """Return the lookup of a new worker."""
    store = {} if url is None else {"store": url, "store_timeout": 10, "store_name": "bench"}
    config = LookupConfig(**{"cache": "LRU", "max_rows": 1_000_000, **store, **options})  # type: ignore[arg-type]
    plan = LookupPlan(
        table="t", connector="bench", source="-", schema=SCHEMA, how="left", config=config,
        keys=(FieldKey(column="id", sql=""),), columns=("name", "score"),
    )  # fmt: skip
    return lookup_of(Source(plan, connector))


def find(lookup: PartialCacheLookup, keys: range) -> float:
    """Look keys up, and return the seconds that it took."""
    batch = KeyBatch.of([pa.array(keys, pa.int64())], [pa.int64()])
    started = time.perf_counter()
    lookup.close(lookup.find(batch))
    return time.perf_counter() - started


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    measured: float
    target: float | None

    def __str__(self) -> str:
        target = "" if self.target is None else f"{self.target:.2f}"
        met = "" if self.target is None else "yes" if self.measured <= self.target else "no"
        return f"{target:>6}  {self.measured:8.2f}  {met:3}  {self.what}"


def measure_hits(url: str) -> Iterator[Row]:
    """Compare reads of the store with the bare driver's."""
    filling = new_lookup(Named(SCHEMA, {}), url)
    find(filling, range(KEYS))
    filling.disconnect()
    batch = KeyBatch.of([pa.array(range(KEYS), pa.int64())], [pa.int64()])
    read, what = _bare_reader(url)
    times: dict[str, list[float]] = {"store": [], "lookup": [], "mget": [], "decode": []}
    for _ in range(ROUNDS):
        lookup = new_lookup(Named(SCHEMA, {}), url)
        store = lookup.source.store  # type: ignore[attr-defined]
        _known(store, batch.take(np.arange(1)))  # Connects.
        names = store.names(batch)
        times["store"].append(_timed(lambda s=store: len(_known(s, batch).positions)))
        times["lookup"].append(find(lookup, range(KEYS)))
        entries: list[bytes] = []
        times["mget"].append(_timed(lambda n=names, into=entries: into.extend(read(n))))
        schema, hashed = SCHEMA.remove(0), schema_hash(store._codec.columns)
        times["decode"].append(
            _timed(lambda e=entries, c=schema, h=hashed: len(from_frames(e, batch, [pa.int64()], c, h).counts))
        )
        lookup.disconnect()
    middle = {name: statistics.median(some) * 1e3 for name, some in times.items()}
    bare = middle["mget"] + middle["decode"]
    shown = f"{what} {middle['mget']:.1f} ms + decoding {middle['decode']:.1f} ms"
    yield Row(f"{KEYS:,} keys from the store ÷ {shown}", middle["store"] / bare, 1.3)
    yield Row("  with the lookup that fills its cache", middle["lookup"] / bare, None)


def _known(store: RowStore, keys: KeyBatch) -> Known:
    """Return what a store has of keys."""
    return store.known(keys, store.guarded.get(store.names(keys)), store.clock())


def _bare_reader(url: str) -> tuple[Callable[[list[bytes]], list[bytes]], str]:
    """Return what reads the bytes of names without this library, and what it is called."""
    if url.startswith("redis"):
        import redis

        return redis.Redis.from_url(url).mget, "MGET"

    def read(names: list[bytes]) -> list[bytes]:
        size, frames = 0, []
        for path in Path(url).rglob("*.seg"):
            data = path.read_bytes()
            size += len(data)
            offsets = FolderSegment("bench", path.name, OpenFile(os.open(path, os.O_RDONLY))).offsets.tolist()
            frames += [data[start:end] for start, end in pairwise(offsets)]
        assert len(frames) == len(names)
        found = dict(zip(sorted(names, key=_first_word), frames, strict=True))
        return [found[name] for name in names]

    return read, "reading files"


def _first_word(name: bytes) -> int:
    return int.from_bytes(bytes.fromhex(name[-33:-17].decode()), "little", signed=True)


def measure_misses(url: str) -> Iterator[Row]:
    """Compare misses with and without a store, for batches of 1,000 keys, until all is stored."""
    for number, (find_all, how) in enumerate([(_join_all, "in a join"), (_find_all, "without reading ahead")]):
        for seconds in (0.0, 0.01, 0.05):
            connector = Named(SCHEMA, {})
            connector.seconds = seconds
            times: dict[bool, list[float]] = {False: [], True: []}
            lookups = {is_stored: new_lookup(connector, url if is_stored else None) for is_stored in times}
            first = 10_000_000 * (1 + 100 * number + int(seconds * 1_000))
            for round_ in range(ROUNDS if seconds < 0.05 else ROUNDS // 2):
                for is_stored, lookup in lookups.items():
                    starts = range(first + 1_000 * BATCHES * round_, first + 1_000 * BATCHES * (round_ + 1), 1_000)
                    work = partial(find_all, lookup, starts)
                    times[is_stored].append(_timed(work))
            for lookup in lookups.values():
                lookup.disconnect()
            without, with_ = (min(times[is_stored][1:]) * 1e3 / BATCHES for is_stored in (False, True))
            call = f"1,000 new keys in a call of {seconds * 1e3:.0f} ms, {how}"
            yield Row(f"{call}: {with_:.1f} ms with ÷ {without:.1f} ms without a store, at best", with_ / without, 1.1)
            ratios = [b / a for a, b in zip(times[False][1:], times[True][1:], strict=True)]
            yield Row("  in the median of rounds", statistics.median(ratios), None)


def _join_all(lookup: PartialCacheLookup, starts: range) -> None:
    """Join batches as a worker does, with both lookups alike."""
    batches = (pa.record_batch({"id": pa.array(range(start, start + 1_000), pa.int64())}) for start in starts)
    plan = dataclasses.replace(lookup.source.plan, left_columns=("id",))
    rows = sum(joined.num_rows for joined in Runner(plan, Layout(("id",), (0,)), lookup).run(batches))
    lookup.source.flush()
    assert rows == 1_000 * len(starts)


def _find_all(lookup: PartialCacheLookup, starts: range) -> None:
    for start in starts:
        find(lookup, range(start, start + 1_000))
    lookup.source.flush()


def measure_again(url: str) -> Iterator[Row]:
    """Run a job twice over a function that takes 50 ms a key, with 50 keys at a time in threads."""
    for run, target in (("first", None), ("second", 0.0)):
        connector = FunctionConnector(SCHEMA, key=("id",), function=slow, batch=False)
        lookup = new_lookup(connector, url, async_=True, async_capacity=50)
        seconds = find(lookup, range(5_000_000, 5_000_400))
        calls = lookup.counters["calls"]
        lookup.disconnect()
        yield Row(f"calls of 50 ms in the {run} run over 400 keys, {seconds * 1e3:.0f} ms", calls, target)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


PARTS: dict[str, Callable[[str], Iterator[Row]]] = {
    "hits": measure_hits,
    "misses": measure_misses,
    "again": measure_again,
}


@click.command()
@click.argument("parts", nargs=-1)
def main(parts: tuple[str, ...]) -> None:
    """Measure, and print a table."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    from servers import RedisServer

    server = RedisServer().start()
    click.echo("target  measured  met")
    try:
        for name in parts or PARTS:
            with tempfile.TemporaryDirectory() as folder:
                for kind, url in (("redis", server.url), ("folder", folder)):
                    for row in PARTS[name](url):
                        click.echo(f"{row}  [{kind}]")
    finally:
        server.close()


if __name__ == "__main__":
    main()
