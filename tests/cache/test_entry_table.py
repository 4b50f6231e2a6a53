"""When the tables of a `ColumnCache` grow, and when and how they are compacted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lookupcache.cache import ColumnCache, Limits
from lookupcache.cache.entry_numbers import EntryNumbers
from lookupcache.cache.entry_table import EntryTable
from lookupcache.cache.keys import KeyBatch

SCHEMA = pa.schema([("v", pa.int64())])


def keys(values, type_: pa.DataType) -> KeyBatch:
    return KeyBatch.of([pa.array(values).cast(type_)], [type_])


def table_of(count: int, rows: int, type_: pa.DataType) -> EntryTable:
    """Return a table of keys from 0 on, with the given numbers of rows."""
    table = EntryTable(SCHEMA, [type_], Limits())
    entries = table.add(keys(range(count), type_), 1, 0)
    table.policy.touch(entries)
    table.fill(entries, pa.table({"v": range(count * rows)}), np.full(count, rows), 0)
    return table


@pytest.mark.parametrize(("count", "rows", "type_", "most"), [
    (100, 1, pa.int64(), 41),  # 41 dead rows of 100: as many as (100 + 64) / 4
    (100, 2, pa.int64(), 33),  # 66 dead rows of 200
    (100, 0, pa.string(), 32),  # 32 dead keys, and 68 live ones
    (1_000, 1, pa.string(), 212),
])  # fmt: skip
def test_a_table_is_sparse_when_over_a_quarter_of_it_is_dead(count, rows, type_, most):
    table = table_of(count, rows, type_)
    table.drop(np.arange(most, dtype=np.int32))
    assert not table.is_sparse
    table.drop(np.array([most], np.int32))
    assert table.is_sparse
    table.compact()
    assert not table.is_sparse
    assert table.numbers.size == len(table) == count - most - 1
    assert (len(table.rows), table.rows.dead) == (rows * len(table), 0)


def test_dropping_entries_without_rows_leaves_nothing_to_compact():
    table = table_of(100, 0, pa.int64())
    table.drop(np.arange(100, dtype=np.int32))
    assert (table.is_sparse, table.rows.dead) == (False, 0)


def test_rows_and_keys_that_a_lease_still_has_are_not_dead():
    table = table_of(100, 1, pa.string())
    table.numbers.lease(np.arange(90, dtype=np.int32))
    table.drop(np.arange(90, dtype=np.int32))
    assert (table.is_sparse, table.rows.dead) == (False, 0)
    table.numbers.leases.clear()
    table.free_unlisted()
    assert (table.is_sparse, table.rows.dead) == (True, 90)


def test_columns_grow_by_a_quarter():
    table, capacities = EntryTable(SCHEMA, [pa.string()], Limits(write_seconds=5)), [1]
    for number in range(1_000):
        table.add(keys([number], pa.string()), 1, 0)
        if table.rows.capacity != capacities[-1]:
            capacities.append(table.rows.capacity)
        assert number + 2 <= table.rows.capacity
        # That of entry -1 comes on top: so an entry more than there is space for makes it grow.
        assert capacities[-2] <= number + 1
    assert capacities == [1, 64, 80, 100, 125, 156, 195, 243, 303, 378, 472, 590, 737, 921, 1_151]


def test_compaction_orders_entries_by_their_last_use():
    cache = ColumnCache(SCHEMA, [pa.int64()], Limits())
    cache.put(keys(range(200), pa.int64()), pa.table({"v": range(200)}), np.ones(200, np.int64), 0)
    order = np.random.default_rng(5).permutation(200)
    lease = cache.find(keys(order, pa.int64()), 0)
    cache.touch(lease)
    cache.release(lease)
    cache.invalidate(keys(range(150), pa.int64()))
    cache.enforce_limits(0)
    left = order[order >= 150]
    assert cache.find(keys(left, pa.int64()), 0).entries.tolist() == [*range(50)]
    assert cache.gather(np.arange(50))[0].to_pylist() == left.tolist()


def test_numbers_that_were_freed_come_first():
    numbers = EntryNumbers()
    assert numbers.allocate(4).tolist() == [0, 1, 2, 3]
    numbers.free(np.array([3, 1], np.int32))
    assert (numbers.nbytes, numbers.listed_entries().tolist()) == (8, [0, 2])
    assert numbers.allocate(1).tolist() == [3]
    assert numbers.allocate(3).tolist() == [1, 4, 5]
    assert (numbers.size, numbers.nbytes, numbers.allocate(0).tolist()) == (6, 0, [])


@pytest.mark.parametrize("limit", [150_000, 300_000, 1_000_000])
def test_bytes_are_evicted_to_a_tenth_below_the_limit(limit):
    cache = ColumnCache(SCHEMA, [pa.int64()], Limits(bytes=limit))
    for start in range(0, 30_000, 3_000):
        batch = keys(range(start, start + 3_000), pa.int64())
        before = cache.evictions
        cache.put(batch, pa.table({"v": range(3_000)}), np.ones(3_000, np.int64), 0)
        cache.enforce_limits(0)
        assert cache.nbytes <= limit
        if cache.evictions > before:
            assert cache.nbytes >= 0.55 * limit
    assert cache.evictions + len(cache) == 30_000


def test_rows_of_removed_entries_are_freed_before_any_eviction():
    cache = ColumnCache(pa.schema([("s", pa.string())]), [pa.int64()], Limits(bytes=125_000))
    for batch in (range(100), range(100, 120)):
        texts = pa.table({"s": [f"{number:01000d}" for number in batch]})
        cache.put(keys(batch, pa.int64()), texts, np.ones(len(batch), np.int64), 0)
        assert len(cache) == 100
        if batch.start:
            assert cache.nbytes > 125_000
            assert not cache._table.is_sparse
        cache.enforce_limits(0)
        assert (len(cache), cache.evictions) == (100, 0)
        cache.invalidate(keys(range(20), pa.int64()))
    assert cache.nbytes <= 125_000
