"""The audit that runs after other tests finds damage of each kind: here it is done on purpose.

That it finds nothing in what is sound, every other test of its folders shows.
"""

from __future__ import annotations

import asyncio
import socket
import threading

import audit
import numpy as np
import pyarrow as pa
import pytest
from audit_host import audit_host
from host_processes import keys_of, new_cache, store

from lookupcache import cached
from lookupcache.cache import ColumnCache, Limits, RowCache
from lookupcache.cache.keys import KeyBatch
from lookupcache.config import LookupConfig
from lookupcache.flow.held_claims import HeldClaims
from lookupcache.host.claims import Claims
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted
from lookupcache.worker.dead_letters import DeadLetters
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

SCHEMA = pa.schema([("v", pa.int64())])


def key_batch(values) -> KeyBatch:
    return KeyBatch.of([pa.array(values, pa.int64())], [pa.int64()])


def columns(eviction="lru", **limits) -> ColumnCache:
    """Return a cache of ten keys, of which one was removed and some are leased."""
    limits = {"rows": 10, "write_seconds": 10, "miss_seconds": 10, **limits}
    cache = ColumnCache(SCHEMA, [pa.int64()], Limits(eviction=eviction, **limits))
    for first in (0, 10, 20):
        keys = key_batch(range(first, first + 10))
        cache.put(keys, pa.table({"v": range(10)}), np.ones(10, np.int64), 0)
        cache.enforce_limits(0)
    cache.find(keys, 0)
    cache.invalidate(key_batch([25]))
    return cache


def listed(cache):
    return cache._table.numbers.listed_entries()


def exchange_words(cache):
    index, (one, two) = cache._table.keys.index, listed(cache)[:2]
    index.words[[one, two]] = index.words[[two, one]]


def share_a_row(cache):
    one, two = listed(cache)[:2]
    cache._table.rows._start[one] = cache._table.rows._start[two]


def extend_a_deadline(cache):
    cache._table.expiry._deadline[listed(cache)[0]] = 11


def free_a_leased_entry(cache):
    cache._leases[0].entries = np.array([cache._table.numbers._free[0]], np.int32)


def queue_an_entry_twice(cache):
    queue = cache._table.policy._short
    queue._slots[np.flatnonzero(queue._slots[: queue._end] >= 0)[0]] = queue.all()[-1]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (free_a_leased_entry, "a lease has the number"),
        (exchange_words, "does not find entries by their words"),
        (share_a_row, "share a row"),
        (extend_a_deadline, "later than its age limit"),
        (queue_an_entry_twice, "do not have exactly the listed entries"),
    ],
)
def test_damage_to_a_cache_of_columns_is_found(damage, text):
    cache = columns("s3-fifo" if damage is queue_an_entry_twice else "lru")
    damage(cache)
    found = audit.audit_columns(cache)
    assert any(text in violation for violation in found), found


def test_limits_and_ages_that_do_not_hold_are_found():
    cache = columns(stale_seconds=20)
    lease = cache.find(key_batch([20]), 10)
    assert audit.audit_found(cache, lease, 10.5) == ["an entry of age 10.5 s was found, which is above its limit"]
    cache.limits = Limits(rows=3)
    assert audit.audit_limits(cache) == ["9 rows are cached, and the limit is 3"]
    kept = RowCache(Limits(write_seconds=10))
    kept.put(1, [1], 0)
    kept.nbytes -= 1
    assert "the cache says" in audit.audit_rows(kept)[0]
    assert audit.audit_entry(kept, kept.find(1, 5), 11) == ["an expired entry was found"]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda cache: cache._control.__setitem__("weight", 1), "the entries weigh 26, and 1 is counted"),
        (lambda cache: cache._segments._current_index()._slots.__setitem__(slice(None), 0), "0 slots of the index"),
        (lambda cache: setattr(cache, "limits", Limits(write_seconds=5)), "later than its age limit allows"),
    ],
)
def test_damage_to_the_files_of_a_host_is_found(damage, text, tmp_path):
    cache = new_cache(tmp_path, write_seconds=60.0, miss_seconds=60.0, bytes=1 << 24)
    try:
        store(cache, range(20))
        damage(cache)
        assert any(text in one for one in audit_host(cache)), audit_host(cache)
    finally:
        cache.close()


def test_a_claim_that_is_left_when_its_cache_is_closed_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(Claims, "_remove_claims_of", lambda self, number: None)
    with audit.watching() as auditor:
        cache = new_cache(tmp_path)
        cache.claim(keys_of([1, 2]), 60.0)
        cache.close()
        assert auditor.violations == ["a cache was closed, and 2 of its claims are left"]


# ── lookups ──────────────────────────────────────────────────────────────────────────────────────────────


def new_lookup(function=lambda key: [(key,)], **options):
    table = LookupTable.from_function("t", "id BIGINT", key=["id"], function=function)
    config = LookupConfig(**{"cache": "LRU", "max_retries": 0, "expire_after_write": 5, **options})
    plan = LookupPlan(
        table="t", connector="function", source="-", schema=table.schema, how="left", config=config,
        keys=(FieldKey(column="id", sql=""),), columns=("id",), left_columns=("id",),
    )  # fmt: skip
    return lookup_of(Source(plan, table.connector), lambda: 0.0)


def test_damage_to_the_books_of_a_lookup_is_found():
    lookup, keys = new_lookup(), key_batch([1, 2, 2, None])
    before = lookup.counters.copy()
    pending = lookup.find(keys)
    pending.waits.add(99)
    lookup.counters["hits"] += 1
    assert "a batch waits for a call that nobody makes" in audit.audit_lookup(lookup)
    assert "are counted as" in audit.audit_opened(before, lookup, keys)[0]
    pending.waits.clear()
    lookup.close(pending)
    lookup.cache.find(keys, 0)
    assert "1 leases are held, and 0 are in use" in audit.audit_lookup(lookup)
    lookup.source.close()


# ── what is left behind, and the hooks ───────────────────────────────────────────────────────────────────


def test_caches_are_audited_while_a_test_runs():
    with audit.watching() as auditor:
        cache = ColumnCache(SCHEMA, [pa.int64()], Limits(rows=2))
        cache.put(key_batch([1]), pa.table({"v": [1]}), np.ones(1, np.int64), 0)
        cache._table.weight += 1
        cache.enforce_limits(0)
        cache._table.weight -= 1
        broken = ColumnCache(SCHEMA, [pa.int64()], Limits(rows=2))
        broken._table.rows._count = None
        found = auditor.finish()
    assert found[0] == "the entries weigh 1, and the cache says 2"
    assert "an audit ended with" in found[1]
    assert len(found) == 2


class Hung:
    begun, ends = threading.Event(), threading.Event()


def hang(key):
    Hung.begun.set()
    Hung.ends.wait()
    return []


@pytest.fixture
def hung():
    Hung.begun.clear()
    Hung.ends.clear()
    yield
    Hung.ends.set()


def test_threads_tasks_files_and_sockets_that_are_left_are_found(hung, tmp_path, monkeypatch):
    from lookupcache.executor.call_group import event_loop

    monkeypatch.setattr(audit._until_empty, "__defaults__", (0.05,))
    loop = event_loop()
    with audit.watching() as auditor:
        new_lookup(hang).open(key_batch([1]))
        Hung.begun.wait()
        task = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), loop)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        with open(tmp_path / "left", "w"), socket.socket():
            found = auditor.finish()
    task.cancel()
    assert "a thread is left: lookupcache-slot" in found
    assert f"a file or socket is left open: {tmp_path}/left" in found
    assert any(text.startswith("a file or socket is left open: socket:") for text in found)
    assert any(text.startswith("a task is left: <coroutine object Event.wait") for text in found)


def release_only(lookup):
    def abandon(batches):
        for pending in batches:
            lookup._open.remove(pending)
            lookup.cache.release(pending.lease)

    return abandon


@pytest.mark.parametrize(
    ("abandon", "text"),
    [
        (lambda lookup: lambda batches: None, "a run has ended, and a batch of it is open"),
        (release_only, "a run has ended, and a call is under way that no batch waits for"),
    ],
)
def test_batches_and_calls_that_a_run_leaves_are_found(hung, abandon, text):
    with audit.watching() as auditor:
        # The first batch is not done before the call for the second one has begun.
        lookup = new_lookup(lambda key: hang(key) if key == 2 else Hung.begun.wait() and [(key,)], async_=True)
        runner = Runner(lookup.source.plan, Layout(("id",), (0,)), lookup)
        own, lookup.abandon = lookup.abandon, abandon(lookup)
        run = runner.run(pa.record_batch({"id": [number]}) for number in (1, 2, 3))
        next(run)
        run.close()
        assert auditor.violations == [text]
        lookup.abandon = own
        Hung.ends.set()
        lookup.abandon(list(lookup._open))
        lookup.source.close()


def test_dead_letters_that_a_failed_run_leaves_are_found(tmp_path):
    def rows():
        yield pa.record_batch({"id": [1]})
        raise ZeroDivisionError

    def fail(key):
        raise OSError("down")

    with audit.watching() as auditor:
        lookup = new_lookup(fail, on_error="dead-letter", dead_letter_path=str(tmp_path))
        letters = DeadLetters(str(tmp_path), "t")
        own, letters.close = letters.close, lambda complete: None
        runner = Runner(lookup.source.plan, Layout(("id",), (0,)), lookup, letters)
        with pytest.raises(ZeroDivisionError):
            list(runner.run(rows()))
        assert auditor.violations == ["a run has ended, and its file of dead letters is open"]
        own(False)
        lookup.source.close()


def test_resources_that_closed_objects_leave_are_found():
    table = LookupTable.from_function("t", "id BIGINT", key=["id"], function=lambda key: [(key,)])
    with audit.watching() as auditor:
        join = LocalJoin(table.with_options({"lookup.async": "true"}), Wanted(key=("id",)))
        assert join.rows([(1,)]) == [(1,)]
        decorated = cached(LookupConfig(cache="LRU", async_=True))(lambda key: [key])
        assert decorated(1) == [1]
        decorated.lookup.held = HeldClaims(lambda names: None, 60)
        decorated.lookup.held.add([b"name"], b"token")
        join._lookup.disconnect = lambda: None
        join.close()
        decorated.close()
        left = {text.replace("ThreadSlots", "Threads") for text in auditor.violations}
        assert left == {
            "LocalJoin was closed, and its Threads is open", "SyncLookup was closed, and its HeldClaims is open",
        }  # fmt: skip
        decorated.lookup.held.close()
        join.source.close()
