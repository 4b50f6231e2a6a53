"""The memory that a full cache really takes, as Arrow and NumPy report it, is within a tenth of its limit."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from option_values import EVICTIONS

from lookupcache.cache import ColumnCache, Limits
from lookupcache.cache.keys import KeyBatch

SCHEMA = pa.schema([("text", pa.string()), ("number", pa.int64())])
TYPES = {"int": pa.int64(), "string": pa.string()}


def allocated() -> int:
    """Return the bytes that Arrow and Python, with NumPy, have allocated."""
    return pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0]


def fill_cache(cache: ColumnCache, key: str, batches: int) -> int:
    """Put batches of drawn keys; return the most that was allocated at the end of a batch, over what was before."""
    before, most, draw = allocated(), 0, np.random.default_rng(1)
    for _ in range(batches):
        ids = np.unique(draw.zipf(1.2, 1_000) % 400_000)
        keys = KeyBatch.of([pa.array(ids if key == "int" else [f"key {n}" for n in ids])], [TYPES[key]])
        lease = cache.find(keys, 0)
        missing = np.flatnonzero(lease.entries < 0)
        rows = pa.table({"text": ["x" * int(n % 400) for n in ids[missing]], "number": ids[missing]}, SCHEMA)
        cache.put(keys.take(missing), rows, np.ones(len(missing), np.int64), 0)
        cache.release(lease)
        lease = cache.find(keys, 0)
        cache.touch(lease)
        cache.release(lease)
        cache.enforce_limits(0)
        del ids, keys, lease, missing, rows
        most = max(most, allocated() - before)
    return most


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("key", TYPES)
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_full_cache_takes_at_most_a_tenth_more_than_its_limit(eviction, key):
    limit = 4 << 20
    fill_cache(ColumnCache(SCHEMA, [TYPES[key]], Limits(bytes=limit, eviction=eviction)), key, 2)
    gc.collect()
    tracemalloc.start()
    try:
        cache = ColumnCache(SCHEMA, [TYPES[key]], Limits(bytes=limit, eviction=eviction))
        most = fill_cache(cache, key, 100)
    finally:
        tracemalloc.stop()
    assert cache.nbytes > 0.8 * limit, "the cache was full"
    assert 0.8 * limit < most < 1.1 * limit
