"""Rows in Redis, by kind of value, and functions that fetch them into Arrow with redis-py only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from bench.fetch import MORE, Fetch
from bench.source import PAYLOAD, rows
from lookupcache.connector import Connector, build_connector
from lookupcache.schema import parse_ddl, to_ddl

KINDS = {"hash": PAYLOAD, "string": ("salary",), "json": PAYLOAD}


def fetches(url: str, count: int) -> list[Fetch]:
    """Write rows to a server, after deleting all its data; return a fetch for each kind of value."""
    import redis

    client = redis.Redis.from_url(url)
    fill(client, count)
    bare = {"hash": hashes, "string": strings, "json": documents}
    return [
        Fetch(f"Redis, {kind}", url, partial(connector, kind), {"redis-py": partial(bare[kind], client)}, columns)
        for kind, columns in KINDS.items()
    ]


def fill(client: Any, count: int) -> None:
    """Delete all data of the server, and write the rows once for each kind."""
    client.flushall()
    table = rows(np.arange(count), PAYLOAD).to_pylist()
    more = dict.fromkeys(MORE, "x" * 16)
    for start in range(0, count, 10_000):
        with client.pipeline(transaction=False) as pipeline:
            for number, row in enumerate(table[start : start + 10_000], start):
                pipeline.hset(f"hash:{number}", mapping={**row, **more})
                pipeline.set(f"string:{number}", str(row["salary"]))
                pipeline.set(f"json:{number}", json.dumps(row))
            pipeline.execute()


def connector(kind: str, url: str) -> Connector:
    """Return the connector of lookupcache for a kind of value."""
    more = ", ".join(f"{name} STRING" for name in MORE)
    schema = f"id BIGINT, {to_ddl(rows(np.arange(1), KINDS[kind]).schema)}{f', {more}' if kind == 'hash' else ''}"
    return build_connector("redis", parse_ddl(schema), {"url": url, "key": f"{kind}:{{id}}", "type": kind})


def hashes(client: Any, keys: pa.RecordBatch) -> pa.Table:
    """Fetch with a pipeline of HMGET commands without a transaction."""
    pipeline = client.pipeline(transaction=False)
    for key in keys.column("id").to_pylist():
        pipeline.hmget(f"hash:{key}", PAYLOAD)
    columns = zip(*pipeline.execute(), strict=True)
    return _table(keys, {column: _cast(column, values) for column, values in zip(PAYLOAD, columns, strict=True)})


def strings(client: Any, keys: pa.RecordBatch) -> pa.Table:
    """Fetch with one MGET."""
    names = [f"string:{key}" for key in keys.column("id").to_pylist()]
    return _table(keys, {"salary": _cast("salary", client.mget(names))})


def documents(client: Any, keys: pa.RecordBatch) -> pa.Table:
    """Fetch with one MGET, and parse JSON with Python's parser."""
    objects = [json.loads(text) for text in client.mget([f"json:{key}" for key in keys.column("id").to_pylist()])]
    return _table(keys, {name: pa.array([o[name] for o in objects], TYPES.field(name).type) for name in PAYLOAD})


TYPES = rows(np.arange(1), PAYLOAD).schema


def _cast(column: str, values: Sequence[bytes]) -> pa.Array:
    return pa.array(values, pa.binary()).cast(pa.string()).cast(TYPES.field(column).type)


def _table(keys: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.Table:
    return pa.table({"id": keys.column("id"), **columns})
