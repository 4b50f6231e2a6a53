"""Keys that are requested before the batch that needs them: it finds them in any cache, and they are counted once."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pytest
from host_workers import values_of
from option_values import EVICTIONS
from test_host_lookup import ids, wait_for
from test_invalidation import ReportsChanges
from test_lookup import Gated, Names, runner

from lookupcache.cache import ColumnCache, Limits
from lookupcache.cache.keys import KeyBatch
from lookupcache.testing import FakeClock
from lookupcache.worker.prefetched import Prefetched

SCOPES = pytest.mark.parametrize("scope", ["worker", "host"])


@pytest.fixture
def lookups(tmp_path):
    """Return a function that makes a lookup; in scope host, all of them share a folder."""
    made = []

    def new(source, scope="worker", clock=None, **config):
        folder = {"scope": "host", "cache_path": str(tmp_path / "cache")} if scope == "host" else {"scope": "worker"}
        made.append(runner(source, clock, **folder, **config).lookup)
        return made[-1]

    yield new
    for lookup in made:
        lookup.disconnect()


def joined(lookup, keys, pending=None) -> list[str | None]:
    """Return the names of a batch that is opened, waited for and closed; ``pending`` if it was prefetched."""
    with nullcontext() if pending is None else pending.arriving():
        opened = lookup.open(keys)
    lookup.hurry()
    wait_for(lookup, opened)
    found = values_of(opened)
    lookup.close(opened)
    return found


def prefetched(lookup, *batches, wait=True):
    pending = [lookup.prefetch(keys) for keys in batches]
    for one in pending if wait else ():
        wait_for(lookup, one)
    return pending


def counts(lookup) -> tuple[int, ...]:
    return tuple(lookup.counters[name] for name in ("rows", "hits", "misses", "requested_keys"))


@pytest.mark.extended(keep_one_in=5)
@SCOPES
@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("most", [{"max_rows": 1}, {"max_rows": 3}])
def test_a_cache_of_few_rows_requests_no_prefetched_key_again(lookups, scope, eviction, most):
    source = Names()
    lookup = lookups(source, scope, eviction=eviction, **most)
    batches = [ids(key, key + 1, None, key) for key in range(0, 20, 2)]
    pending = prefetched(lookup, *batches[:4])
    for number, keys in enumerate(batches):
        assert joined(lookup, keys, pending[0]) == [f"n{2 * number}", f"n{2 * number + 1}", None, f"n{2 * number}"]
        assert min(lookup.counters.values()) >= 0
        lookup.close(pending.pop(0))
        pending += prefetched(lookup, *batches[number + 4 : number + 5])
    assert sorted(key for keys in source.requested for key in keys) == list(range(20))
    assert counts(lookup) == (40, 10, 20, 20)


@SCOPES
def test_a_prefetched_key_evicted_before_its_answer_is_awaited(lookups, scope):
    source = Gated()
    lookup = lookups(source, scope, max_rows=1, async_capacity=9)
    first, second = prefetched(lookup, ids(1, 2), ids(3, 4), wait=False)
    source.open_gates(1)
    assert joined(lookup, ids(2, 1), first) == ["n2", "n1"]
    lookup.close(first)
    with second.arriving():
        opened = lookup.open(ids(4, 3))
    assert opened.waits
    source.open_gates(3)
    wait_for(lookup, opened)
    lookup.close(opened)
    lookup.close(second)
    assert sorted(source.requested) == [[1, 2], [3, 4]]
    assert counts(lookup) == (4, 0, 4, 4)


def test_an_expired_prefetched_key_is_requested_again_as_a_miss(lookups):
    source, clock = Names(), FakeClock(1_000)
    lookup = lookups(source, clock=clock, cache="TTL", expire_after_write=5, max_rows=1)
    [pending] = prefetched(lookup, ids(1, 2))
    clock.now += 6
    source.name = "m"
    assert joined(lookup, ids(1, 2), pending) == ["m1", "m2"]
    lookup.close(pending)
    assert counts(lookup) == (2, 0, 4, 4)


@pytest.mark.parametrize("changed", [(2,), None])
def test_a_prefetched_key_that_has_changed_is_requested_again(lookups, changed):
    source = ReportsChanges()
    lookup = lookups(source, max_rows=1)
    first, second = prefetched(lookup, ids(1), ids(2, 3))
    assert joined(lookup, ids(1)) == ["n1"]
    lookup.close(first)  # Evicts the others, which the cache then cannot remove.
    source.name = "m"
    source.changes = changed
    found = joined(lookup, ids(2, 3))
    assert found == ["m2", "n3" if changed is not None else "m3"]
    lookup.close(second)


def test_an_unopened_prefetched_batch_takes_back_no_hit(lookups):
    lookup = lookups(Names())
    pending = prefetched(lookup, ids(1, 2))
    assert joined(lookup, ids(5)) == ["n5"]
    lookup.abandon(pending)
    assert counts(lookup) == (1, 0, 3, 3)


def test_text_keys_of_several_columns_are_found_by_their_values(lookups):
    types = [pa.int64(), pa.string()]
    lookup = lookups(Names())
    held = Prefetched(KeyBatch.of([pa.array([1, None, 1, 2]), pa.array(["a", "b", "b", None])], types))
    asked = KeyBatch.of([pa.array([1, 2, 1]), pa.array(["b", "b", "a"])], types)
    entries = lookup.cache.put(ids(7, 8), pa.table({"name": ["x", "y"]}), pa.array([1, 1]).to_numpy(), 0.0)
    leased = pa.array([entries[0], -1, entries[1], -1], pa.int32()).to_numpy()
    assert held.find(asked, leased, lookup.cache, 0.0).tolist() == [entries[1], -1, entries[0]]


@pytest.mark.parametrize("types", [[pa.int64()], [pa.string()], [pa.int64(), pa.string()]], ids=str)
def test_keys_are_found_at_their_first_position_after_nulls(types):
    def keys(numbers):
        return KeyBatch.of([pa.array(numbers, pa.int64()).cast(type_) for type_ in types], types)

    cache = ColumnCache(pa.schema([("v", pa.int64())]), types, Limits())
    leased = np.arange(1_050, dtype=np.int32)
    one = Prefetched(keys([None] * 500 + [7] * 500 + [*range(100, 150)]))
    assert one.find(keys([149, 7, 1]), leased, cache, 0.0).tolist() == [1_049, 500, -1]
