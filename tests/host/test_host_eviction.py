"""The cache of a host evicts nearly as one cache of a worker does."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from host_processes import keys_of, new_cache

from lookupcache.cache import ColumnCache, Limits

SCHEMA = pa.schema([("v", pa.int64())])
ROWS, BATCH = 300, 200


def requests() -> list[list[int]]:
    """Return batches of keys: few of them are frequent, and which of them are changes slowly."""
    draw = np.random.default_rng(1)
    ranks = np.minimum(draw.zipf(1.2, 12_000), 5_000)
    numbers = (ranks * 7919 + np.arange(12_000) // 3_000 * (ranks % 3 == 0)) % 5_003
    return [numbers[start : start + BATCH].tolist() for start in range(0, len(numbers), BATCH)]


def misses_of_one_cache(eviction: str) -> int:
    cache, misses = ColumnCache(SCHEMA, [pa.int64()], Limits(rows=ROWS, eviction=eviction)), 0
    for batch in requests():
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


def misses_of_a_host(eviction: str, path) -> int:
    now, misses = 0.0, 0
    cache = new_cache(path, clock=lambda: now, rows=float(ROWS), eviction=eviction)
    for batch in requests():
        now += 1
        distinct = np.array(list(dict.fromkeys(batch)))
        missing = np.delete(distinct, cache.find(keys_of(distinct)).positions)
        rows = pa.table({"id": missing.astype(str), "match": missing})
        cache.publish(keys_of(missing), rows, np.ones(len(missing), np.int64), now, cache.position)
        misses += len(missing)
    cache.close()
    return misses


@pytest.mark.parametrize("eviction", ["lru", "s3-fifo", "sieve"])
def test_hit_ratios_differ_by_less_than_two_points(eviction, tmp_path):
    one, host = misses_of_one_cache(eviction), misses_of_a_host(eviction, tmp_path)
    assert abs(one - host) / 12_000 < 0.02, (one, host)
    assert one < 9_000, "the keys do not repeat"
