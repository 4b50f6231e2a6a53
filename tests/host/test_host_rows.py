"""Rows of merged segments: written from several batches as one, whatever their types."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from drawing import examples
from host_processes import KINDS, PLAN, keys_of
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache.cache.limits import Limits
from lookupcache.host import HostCache
from lookupcache.host.joined_rows import ipc_parts

VALUES = {
    pa.int8(): st.integers(-9, 9),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.bool_(): st.booleans(),
    pa.decimal128(9, 2): st.decimals(-99, 99, places=2),
    pa.list_(pa.int32()): st.lists(st.integers(0, 9), max_size=2),
    pa.struct([("a", pa.string())]): st.fixed_dictionaries({"a": st.text(max_size=2)}),
}


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize("type_", VALUES, ids=str)
@pytest.mark.parametrize("has_nulls", [False, True])
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_batches_are_written_as_one(type_, has_nulls, data):
    value = st.none() | VALUES[type_] if has_nulls else VALUES[type_]
    lists = data.draw(st.lists(st.tuples(st.lists(value, max_size=9), st.integers(0, 2)), min_size=1, max_size=4))
    batches = [pa.record_batch({"a": pa.array(values, type_)}).slice(start) for values, start in lists]
    content = b"".join(map(bytes, ipc_parts(batches)))
    read = pa.ipc.open_stream(content).read_next_batch()
    read.validate(full=True)
    assert read.to_pylist() == [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_nothing_but_its_key_has_counts_of_rows(tmp_path, kind):
    cache = HostCache(tmp_path, PLAN, KINDS[kind], pa.schema([]), Limits())
    for numbers in (range(10), range(5, 20), range(20, 30)):
        rows, counts = pa.table({}), np.array([number % 3 for number in numbers])
        assert cache.publish(keys_of(numbers, kind), rows, counts, cache.clock(), cache.position)
    for _ in range(2):
        found = cache.find(keys_of(range(40), kind))
        assert dict(zip(found.positions.tolist(), found.counts.tolist(), strict=True)) == {n: n % 3 for n in range(30)}
        cache._maintenance._merge(cache._segments, cache._segments.newest, cache.clock())
    assert len(cache._segments.newest) == 1
    cache.close()
