"""Sources that tell of changes: what has changed leaves the cache, also where it is on its way."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_lookup import SCHEMA, Names, batch, names, runner
from time_limit import LIMIT

from lookupcache.cache import ColumnCache, Limits
from lookupcache.cache.keys import KeyBatch


class ReportsChanges(Names):
    """Reports the keys in ``changes`` as changed; None is all keys."""

    changes: tuple[int, ...] | None = ()

    def changed(self, request):
        changes, self.changes = self.changes, ()
        return None if changes is None else pa.record_batch({"id": pa.array(changes, pa.int64())})


def joined(join, *keys):
    [answer] = join.run([batch(*keys)])
    return names(answer)


@pytest.mark.parametrize("cache", [{"cache": "LRU"}, {"cache": "TTL", "expire_after_write": 60.0}])
def test_a_changed_key_is_requested_again(cache):
    source = ReportsChanges()
    join = runner(source, **cache)
    joined(join, 1, 2, 3)
    source.name, source.changes = "m", (2, 7)
    assert joined(join, 1, 2, 3) == ["n1", "m2", "n3"]
    assert source.requested == [[1, 2, 3], [2]]
    assert join.lookup.counters["invalidations"] == 1


def test_if_anything_may_have_changed_the_cache_is_cleared():
    source = ReportsChanges()
    join = runner(source)
    joined(join, 1, 2)
    source.name, source.changes = "m", None
    assert joined(join, 1, 2) == ["m1", "m2"]
    assert (join.lookup.counters["invalidations"], join.lookup.cache.rows) == (2, 2)


def test_a_key_without_rows_that_has_one_now():
    source = ReportsChanges()
    join = runner(source)
    joined(join, 1_000)
    source.changes = (1_000,)
    joined(join, 1_000)
    assert source.requested == [[1_000], [1_000]]


@pytest.mark.parametrize("changes", [(1,), None])
def test_a_key_that_changes_while_fetched_is_fetched_again(changes):
    source = ReportsChanges()
    source.gate.clear()
    lookup = runner(source).lookup
    before = lookup.open(KeyBatch.of([pa.array([1])], [pa.int64()]))
    assert source.began.acquire(timeout=LIMIT)
    source.changes = changes
    after = lookup.open(KeyBatch.of([pa.array([1])], [pa.int64()]))
    source.gate.set()
    while not (before.ready and after.ready):
        lookup.wait()
    lookup.close(before)
    lookup.close(after)
    assert source.requested == [[1], [1]]
    assert lookup.cache.rows == 1


def test_a_refresh_under_way_does_not_bring_an_old_row_back():
    clock = [0.0]
    source = ReportsChanges()
    join = runner(source, clock=lambda: clock[0], refresh_after_write=10.0)
    joined(join, 1)
    clock[0] = 11.0
    source.gate.clear()
    joined(join, 1)
    source.name, source.changes = "m", (1,)
    source.gate.set()
    assert joined(join, 1) == ["m1"]


def test_changes_of_a_source_that_reports_none_are_not_requested():
    assert not runner(Names()).lookup.source.reports_changes


keys = st.integers(0, 6)
courses = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sets(keys)),
        st.tuples(st.just("drop"), st.one_of(st.none(), st.sets(keys))),
        st.tuples(st.just("hold"), st.sets(keys)),
        st.tuples(st.just("release"), st.none()),
    ),
    max_size=30,
)


@pytest.mark.extended
@pytest.mark.parametrize("key_type", [pa.int64(), pa.string()])
@given(courses)
def test_the_cache_has_exactly_the_keys_that_are_not_invalidated(key_type, course):
    cache, model, leases = ColumnCache(SCHEMA, [key_type], Limits(rows=100)), {}, []
    for version, (word, some) in enumerate(course):
        if word == "put" and (new := sorted(some - model.keys())):
            rows = pa.table({"id": new, "name": [str(version)] * len(new)}, SCHEMA)
            cache.put(keys_of(new, key_type), rows, np.ones(len(new), np.int64), 0.0)
            model |= dict.fromkeys(new, str(version))
        elif word == "drop":
            gone = model.keys() & (model if some is None else some)
            assert cache.invalidate(None if some is None else keys_of(sorted(some), key_type)) == len(gone)
            model = {key: value for key, value in model.items() if key not in gone}
        elif word == "hold":
            wanted = sorted(some)
            leases.append((cache.find(keys_of(wanted, key_type), 0.0), [model.get(key) for key in wanted]))
        elif word == "release" and leases:
            cache.release(leases.pop(0)[0])
        cache.enforce_limits(0.0)
        assert cache.rows == len(cache) == len(model)
        for lease, expected in leases:
            assert cache.gather(cache.starts(lease.entries))[1].to_pylist() == expected


def keys_of(some, key_type):
    return KeyBatch.of([pa.array(some, pa.int64()).cast(key_type)], [key_type])
