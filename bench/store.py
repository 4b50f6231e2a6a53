"""What a store costs and saves: `python -m bench.store [PART …]`, with a Redis server and a folder, without Spark.

- hits: 5,000 keys from the store by batch, alongside the bare driver's MGET of the same bytes (for a folder, reading
  its files), and decoding them alone;
- misses: batches of keys that neither cache nor store has, with and without a store, for a source that takes a while;
- again: the second run of a job over a function of 50 ms.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
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
from lookupcache.store.folder_format import read_index
from lookupcache.store.rows import from_frames
from lookupcache.worker.lookup import PartialCacheLookup, lookup_of
from lookupcache.worker.source import Source

KEYS = 5_000
ROUNDS = 15
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


def measure_hits(url: str) -> None:
    """Compare reads of the store with the bare driver's."""
    find(new_lookup(Named(SCHEMA, {}), url), range(KEYS))
    batch = KeyBatch.of([pa.array(range(KEYS), pa.int64())], [pa.int64()])
    read, what = _bare_reader(url)
    times: dict[str, list[float]] = {"store": [], "lookup": [], "mget": [], "decode": []}
    for _ in range(ROUNDS):
        lookup = new_lookup(Named(SCHEMA, {}), url)
        store = lookup.source.store  # type: ignore[attr-defined]
        store.find(batch.take(np.arange(1)), store.names(batch.take(np.arange(1))))  # Connects.
        names = store.names(batch)
        times["store"].append(_timed(lambda s=store: len(s.find(batch, s.names(batch)).positions)))
        times["lookup"].append(find(lookup, range(KEYS)))
        entries: list[bytes] = []
        times["mget"].append(_timed(lambda n=names, into=entries: into.extend(read(n))))
        schema = SCHEMA.remove(0)
        times["decode"].append(
            _timed(lambda s=store, e=entries, c=schema: len(from_frames(e, batch, [pa.int64()], c, s._hash)[0].counts))
        )
        lookup.disconnect()
    middle = {name: statistics.median(some) * 1e3 for name, some in times.items()}
    bare = middle["mget"] + middle["decode"]
    click.echo(
        f"hits: {KEYS:,} keys from the store {middle['store']:.1f} ms, by a lookup into its cache "
        f"{middle['lookup']:.1f} ms; {what} {middle['mget']:.1f} ms + decoding {middle['decode']:.1f} ms = {bare:.1f} "
        f"ms: {middle['store'] / bare:.2f} x, lookup {middle['lookup'] / bare:.2f} x (target 1.3)"
    )


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
            offsets = read_index("bench", len(data), lambda at, count, of=data: of[at : at + count]).offsets.tolist()
            frames += [data[start:end] for start, end in pairwise(offsets)]
        assert len(frames) == len(names)
        found = dict(zip(sorted(names, key=_first_word), frames, strict=True))
        return [found[name] for name in names]

    return read, "reading files"


def _first_word(name: bytes) -> int:
    return int.from_bytes(bytes.fromhex(name[-33:-17].decode()), "little")


def measure_misses(url: str) -> None:
    """Compare misses with and without a store, for batches of 1,000 keys."""
    for seconds in (0.0, 0.01, 0.05):
        connector = Named(SCHEMA, {})
        connector.seconds = seconds
        times: dict[bool, list[float]] = {False: [], True: []}
        lookups = {is_stored: new_lookup(connector, url if is_stored else None) for is_stored in times}
        for round_ in range(ROUNDS):
            for is_stored, lookup in lookups.items():
                start = 1_000_000 + 1_000 * (round_ + 100 * int(seconds * 1_000))
                times[is_stored].append(find(lookup, range(start, start + 1_000)))
        for name, of in (("median", statistics.median), ("least", min)):
            without, with_ = (of(times[is_stored][1:]) * 1e3 for is_stored in (False, True))
            click.echo(
                f"misses, {name}: 1,000 keys in a call of {seconds * 1e3:.0f} ms: {without:.1f} ms without a store, "
                f"{with_:.1f} ms with one: {with_ / without:.2f} x (target 1.1)"
            )


def measure_again(url: str) -> None:
    """Run a job twice over a function that takes 50 ms a key, with 100 keys at a time in threads."""
    times = []
    for _ in range(2):
        connector = FunctionConnector(SCHEMA, key=("id",), function=slow, batch=False)
        lookup = new_lookup(connector, url, async_=True, async_capacity=50)
        times.append(find(lookup, range(5_000_000, 5_000_400)))
        calls = lookup.counters["calls"]
        lookup.disconnect()
    click.echo(f"again: 400 keys of 50 ms: first run {times[0]:.2f} s, second {times[1]:.3f} s with {calls} calls")


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


PARTS: dict[str, Callable[[str], None]] = {"hits": measure_hits, "misses": measure_misses, "again": measure_again}


@click.command()
@click.argument("parts", nargs=-1)
def main(parts: tuple[str, ...]) -> None:
    """Measure, and print a line each."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    from servers import RedisServer

    server = RedisServer().start()
    try:
        for name in parts or PARTS:
            with tempfile.TemporaryDirectory() as folder:
                for kind, url in (("redis", server.url), ("folder", folder)):
                    click.echo(f"{kind}: ", nl=False)
                    PARTS[name](url)
    finally:
        server.close()


if __name__ == "__main__":
    main()
