"""The cache of a host evicts nearly as one cache of a worker does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from host_processes import keys_of, new_cache
from option_values import EVICTIONS

from lookupcache.cache import ColumnCache, Limits

SCHEMA = pa.schema([("v", pa.int64())])
ROWS, BATCH, COUNT = 300, 200, 10_000
BYTES = 100_000.0
DATA = Path(__file__).parents[1] / "data"


def drawn() -> list[int]:
    """Return keys of which few are frequent, and which of them are changes slowly."""
    draw = np.random.default_rng(1)
    ranks = np.minimum(draw.zipf(1.2, COUNT), 5_000)
    return ((ranks * 7919 + np.arange(COUNT) // 3_000 * (ranks % 3 == 0)) % 5_003).tolist()


def recorded(name: str) -> list[int]:
    """Return the first keys of a recorded trace, as numbers."""
    keys = pq.read_table(DATA / f"{name}.parquet").column(0).combine_chunks()[:COUNT]
    return keys.dictionary_encode().indices.to_pylist()


REQUESTS = {
    "drawn": drawn,
    "flights": lambda: recorded("flights_tailnum_100k"),
    "pages": lambda: recorded("web12_product_pages"),
}


def batches_of(keys: list[int]) -> list[list[int]]:
    return [keys[start : start + BATCH] for start in range(0, len(keys), BATCH)]


def misses_of_one_cache(eviction: str, keys: list[int], rows: int = ROWS) -> int:
    cache, misses = ColumnCache(SCHEMA, [pa.int64()], Limits(rows=rows, eviction=eviction)), 0
    for batch in batches_of(keys):
        keys = keys_of(batch)
        lease = cache.find(keys, 0)
        missing = keys.take(np.flatnonzero(lease.entries < 0))
        distinct = missing.distinct()
        values = pa.table([np.zeros(len(distinct.first), np.int64)], schema=SCHEMA)
        new = cache.put(missing.take(distinct.first), values, np.ones(len(distinct.first), np.int64), 0)
        lease.entries[lease.entries < 0] = new[distinct.code]
        cache.touch(lease)
        cache.release(lease)
        cache.enforce_limits(0)
        misses += len(distinct.first)
    return misses


def misses_of_a_host(eviction: str, keys: list[int], path, **limits: float) -> tuple[int, int]:
    """Return how many keys were missed, and how many rows the cache has at last."""
    now, misses = 0.0, 0
    cache = new_cache(path, clock=lambda: now, eviction=eviction, **limits)
    for batch in batches_of(keys):
        now += 1
        distinct = np.array(list(dict.fromkeys(batch)))
        missing = np.delete(distinct, cache.find(keys_of(distinct)).positions)
        rows = pa.table({"id": missing.astype(str), "match": missing})
        cache.publish(keys_of(missing), rows, np.ones(len(missing), np.int64), now, cache.position)
        misses += len(missing)
    held = len(cache.find(keys_of(np.unique(keys))).positions)
    cache.close()
    return misses, held


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_hit_ratios_differ_by_less_than_two_points(eviction, name, tmp_path):
    keys = REQUESTS[name]()
    one, (host, _) = misses_of_one_cache(eviction, keys), misses_of_a_host(eviction, keys, tmp_path, rows=float(ROWS))
    assert abs(one - host) / len(keys) < 0.02, (one, host)
    assert one < 0.9 * len(keys), "the keys do not repeat"


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_a_limit_of_bytes_hits_as_one_of_as_many_rows(name, tmp_path):
    keys = REQUESTS[name]()
    host, held = misses_of_a_host("lru", keys, tmp_path, bytes=BYTES)
    one = misses_of_one_cache("lru", keys, held)
    assert abs(one - host) / len(keys) < 0.02, (one, host, held)
    assert held < len(set(keys)), "nothing is evicted"
