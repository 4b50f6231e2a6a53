"""The audit that runs after other tests finds each kind of damage: here each one is done on purpose."""

from __future__ import annotations

import asyncio
import os
import socket
import threading

import audit
import numpy as np
import pyarrow as pa
import pytest
from audit_host import audit_host
from host_processes import keys_of, look_up, new_cache, store
from option_values import EVICTIONS

from lookupcache import cached
from lookupcache.cache import ColumnCache, Limits, RowCache
from lookupcache.cache.keys import KeyBatch
from lookupcache.config import LookupConfig
from lookupcache.flow.held_claims import HeldClaims
from lookupcache.host.claims import Claims
from lookupcache.host.key_index import _TAG
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted
from lookupcache.worker.dead_letters import DeadLetters
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

SCHEMA = pa.schema([("v", pa.int64())])
ONE = np.array([1], np.int32)


def key_batch(values, type_=None) -> KeyBatch:
    type_ = type_ or pa.int64()
    return KeyBatch.of([pa.array(map(str, values) if type_ == pa.string() else values, type_)], [type_])


def columns(eviction="lru", type_=None, **limits) -> ColumnCache:
    """Return a cache of 20 keys with one or two rows each, of which some were removed and some are leased."""
    type_ = type_ or pa.int64()
    limits = {"rows": 40, "write_seconds": 10, "miss_seconds": 10, **limits}
    cache = ColumnCache(SCHEMA, [type_], Limits(eviction=eviction, **limits))
    counts = np.array([1, 2] * 10)
    cache.put(key_batch(range(20), type_), pa.table({"v": range(30)}), counts, 0)
    lease = cache.find(key_batch([3, 4, 5, 99], type_), 0)
    cache.touch(lease)
    cache.invalidate(key_batch([5, 6], type_))
    cache.lease(cache.reserve(key_batch([50], type_), 7, 0))
    for first in (100, 120, 140):
        keys = key_batch(range(first, first + 15), type_)
        cache.put(keys, pa.table({"v": range(15)}), np.ones(15, np.int64), 0)
        used = cache.find(keys, 0)
        cache.touch(used)
        cache.release(used)
        cache.enforce_limits(0)
    return cache


def rows(eviction="lru") -> RowCache:
    cache = RowCache(Limits(rows=10, bytes=50_000, write_seconds=10, miss_seconds=10, eviction=eviction))
    for key in range(20):
        cache.put(key, [key], 0)
        cache.get(key // 2, 0)
    return cache


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_sound_cache_passes(eviction):
    for type_ in (pa.int64(), pa.string()):
        cache = columns(eviction, type_)
        assert (audit.audit_columns(cache), audit.audit_limits(cache)) == ([], [])
    assert audit.audit_rows(rows(eviction)) == []


# ── damage to a cache of columns ─────────────────────────────────────────────────────────────────────────


def listed(cache):
    return cache._table.numbers.listed_entries()


def free_a_listed_entry(cache):
    cache._table.numbers._free = np.append(cache._table.numbers._free, cache._table.numbers.unlisted[:1])


def free_a_leased_entry(cache):
    cache._leases[0].entries = np.array([cache._table.numbers._free[0]], np.int32)


def list_an_entry_twice(cache):
    index = cache._table.keys._index
    index._slots[np.flatnonzero(index._slots < 0)[0]] = listed(cache)[0]


def exchange_words(cache):
    index, (one, two) = cache._table.keys._index, listed(cache)[:2]
    index.words[[one, two]] = index.words[[two, one]]


def store_equal_keys(cache):
    keys, (one, two) = cache._table.keys, listed(cache)[:2]
    same = np.arange(len(keys._keys))
    same[keys._key_row[one]] = keys._key_row[two]
    keys._keys = keys._keys.kept(same)


def miscount_weight(cache):
    cache._table.weight += 1


def share_a_row(cache):
    table, full = cache._table, listed(cache)[:2]
    table.rows._start[full[0]] = table.rows._start[full[1]]


def mark_a_free_entry(cache):
    cache._table.in_flight._group[cache._table.numbers._free[0]] = 7
    cache._table.in_flight.pending += 1


def extend_a_deadline(cache):
    cache._table.expiry._deadline[listed(cache)[0]] = 11


def forget_use(cache):
    cache._table.policy.used[listed(cache)[0]] = -1


def shift_the_rows(cache):
    cache._table.rows._store._starts = cache._table.rows._store._starts + 1


LRU = [
    (free_a_listed_entry, "free or unlisted twice"),
    (free_a_leased_entry, "a lease has the number"),
    (list_an_entry_twice, "does not have the listed entries"),
    (exchange_words, "does not find entries by their words"),
    (share_a_row, "share a row"),
    (mark_a_free_entry, "a free entry is in flight"),
    (extend_a_deadline, "later than its age limit"),
    (forget_use, "the policy does not have exactly"),
    (shift_the_rows, "stored rows are not where"),
]
STRINGS = [
    (store_equal_keys, "equal keys"),
]


def name_of(value):
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("damage", "text"), LRU, ids=name_of)
def test_damage_to_a_cache_of_columns_is_found(damage, text):
    check_columns(columns(), damage, text)


@pytest.mark.parametrize(("damage", "text"), STRINGS, ids=name_of)
def test_damage_to_stored_keys_is_found(damage, text):
    check_columns(columns(type_=pa.string()), damage, text)


def check_columns(cache, damage, text):
    damage(cache)
    with np.errstate(all="ignore"):
        try:
            found = audit.audit_columns(cache)
        except IndexError as error:  # `Auditor.note` reports what an audit itself fails with
            found = [f"the columns have space for fewer: {error}"]
    assert any(text in violation for violation in found), found


# ── damage to the eviction queues ────────────────────────────────────────────────────────────────────────


def queue_of(cache):
    policy = cache._table.policy
    return policy._queue if hasattr(policy, "_queue") else policy._long


def queue_an_entry_twice(cache):
    queue = queue_of(cache)
    queue._slots[np.flatnonzero(queue._slots[: queue._end] >= 0)[0]] = queue.all()[-1]


def lose_a_ghost(cache):
    ghost = cache._table.policy._ghost
    ghost._is_used[np.flatnonzero(ghost._is_used)[0]] = False


QUEUES = [
    (queue_an_entry_twice, "do not have exactly the listed entries"),
    (lose_a_ghost, "does not have the listed evicted keys"),
]


@pytest.mark.parametrize(("damage", "text"), QUEUES, ids=name_of)
def test_damage_to_eviction_queues_is_found(damage, text):
    check_columns(columns("s3-fifo"), damage, text)


# ── limits and ages ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("limits", "text"),
    [(Limits(rows=3), "the limit is 3"), (Limits(bytes=10), "the limit is 10"), (Limits(remembers=False), "are left")],
)
def test_an_exceeded_limit_is_found(limits, text):
    cache = columns()
    cache._table.numbers.leases.clear()
    cache.limits = limits
    assert any(text in violation for violation in audit.audit_limits(cache))


def test_an_entry_that_is_too_old_is_found():
    cache = columns(write_seconds=10, miss_seconds=10, stale_seconds=20)
    lease = cache.find(key_batch([140]), 5)
    assert audit.audit_found(cache, lease, 5) == []
    assert audit.audit_found(cache, lease, 10.5) == ["an entry of age 10.5 s was found, which is above its limit"]
    late = cache.find(key_batch([140]), 15)
    assert (len(late.expired), audit.audit_found(cache, late, 15)) == (1, [])
    assert audit.audit_found(cache, late, 21) == ["an entry that is too old to stand in for an error was found"]


def test_a_value_that_is_too_old_is_found():
    cache = rows()
    entry = cache.find(19, 5)
    assert audit.audit_entry(cache, entry, 5) == []
    assert audit.audit_entry(cache, entry, 11) == ["an expired entry was found"]
    entry.deadline = 12
    assert audit.audit_put(cache, 19, 0) == ["an entry's deadline is later than its age limit allows"]


# ── damage to a cache of single keys ─────────────────────────────────────────────────────────────────────


def any_entry(cache):
    return next(iter(cache.entries.values()))


def miscount_bytes(cache):
    cache.nbytes -= 1


def queue_twice(cache):
    cache.entries._long[next(iter(cache.entries))] = cache.entries._short[next(iter(cache.entries))] = None


def hide_from_the_policy(cache):
    key = next(iter(cache.entries))
    for queue in (cache.entries._short, cache.entries._long, cache.entries._newest):
        queue.pop(key, None)


ROWS = [
    ("lru", miscount_bytes, "the cache says"),
    ("s3-fifo", queue_twice, "in several"),
    ("s3-fifo", hide_from_the_policy, "in no queue"),
]


@pytest.mark.parametrize(("eviction", "damage", "text"), ROWS, ids=name_of)
def test_damage_to_a_cache_of_single_keys_is_found(eviction, damage, text):
    cache = rows(eviction)
    damage(cache)
    assert any(text in violation for violation in audit.audit_rows(cache))


# ── damage to the files of a host's cache ────────────────────────────────────────────────────────────────


def first_segment(cache):
    return cache._segments.newest[0]


def slots_of(cache):
    return cache._segments._current_index()._slots


def forget_slot(cache):
    slots = slots_of(cache)
    slots[np.flatnonzero(slots)[0]] = 0


def exchange_numbers(cache):
    slots = slots_of(cache)
    used = np.flatnonzero(slots)
    numbers = slots[used] & ~_TAG
    slots[used] = (slots[used] & _TAG) | np.roll(numbers, 1)


def add(field, number):
    return lambda cache: cache._control.__setitem__(field, cache._control[field] + number)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (add("weight", 1), "the entries weigh 26, and 27 is counted"),
        (add("used_slots", 1), "20 slots of the index are used, and 21 are counted"),
        (add("ids", -5), "an entry has the number 25, and the last that was taken is 20"),
        (forget_slot, "the index does not find an entry by its key"),
        (exchange_numbers, "an entry is not in the index, or under another key's hash"),
        (lambda cache: setattr(cache, "limits", Limits(write_seconds=5)), "later than its age limit allows"),
        (lambda cache: setattr(cache, "limits", Limits(miss_seconds=5)), "later than its age limit allows"),
        (lambda cache: setattr(cache._maintenance, "_used_bytes", lambda: 10**9), "1000000000 bytes, and the limit is"),
    ],
)
def test_damage_to_the_files_of_a_host_is_found(damage, text, tmp_path):
    cache = new_cache(tmp_path, write_seconds=60.0, miss_seconds=60.0, bytes=1 << 24)
    try:
        # Of the first five of the twenty keys, an older entry is marked as removed.
        store(cache, range(20))
        store(cache, range(5), version="new ")
        look_up(cache, range(20))
        assert audit_host(cache) == []
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


def lease_and_forget(lookup):
    lookup.cache.find(key_batch([1]), 0)


def wait_for_nobody(lookup):
    lookup.find(key_batch([1])).waits.add(99)


def evict_without_a_count(lookup):
    lookup.cache._enforcer.evictions += 1


LOOKUPS = [
    (lease_and_forget, "leases are held"),
    (wait_for_nobody, "a call that nobody makes"),
    (evict_without_a_count, "evictions and expirations"),
]


@pytest.mark.parametrize(("damage", "text"), LOOKUPS, ids=name_of)
def test_damage_to_the_books_of_a_lookup_is_found(damage, text):
    lookup = new_lookup()
    lookup.close(lookup.find(key_batch([1, 2, 2, None])))
    assert audit.audit_lookup(lookup) == []
    damage(lookup)
    assert any(text in violation for violation in audit.audit_lookup(lookup))
    lookup.source.close()


COUNTS = [({"rows": 1}, "are counted as"), ({"hits": 1}, "are counted as"), ({"misses": 9, "hits": -9}, "more than")]


@pytest.mark.parametrize(("wrong", "text"), [*COUNTS, ({"keys": 9}, "more than"), ({"refreshes": 9}, "refreshes")])
def test_counts_that_do_not_add_up_are_found(wrong, text):
    lookup, keys = new_lookup(), key_batch([1, 2, 2, None])
    before = lookup.counters.copy()
    pending = lookup.find(keys)
    assert audit.audit_opened(before, lookup, keys) == []
    for name, count in wrong.items():
        lookup.counters[name] += count
    assert any(text in violation for violation in audit.audit_opened(before, lookup, keys))
    lookup.close(pending)
    lookup.source.close()


# ── what is left behind, and the hooks ───────────────────────────────────────────────────────────────────


def test_caches_and_lookups_are_audited_while_a_test_runs():
    with audit.watching() as auditor:
        cache = ColumnCache(SCHEMA, [pa.int64()], Limits(rows=2))
        cache.put(key_batch([1]), pa.table({"v": [1]}), np.ones(1, np.int64), 0)
        cache._table.weight += 1
        cache.enforce_limits(0)
        cache._table.weight -= 1
        kept = RowCache(Limits())
        kept.put(1, [1], 0)
        kept.rows += 1
        lookup = new_lookup()
        lookup.close(lookup.find(key_batch([1])))
        found = auditor.finish()
    assert found == ["the entries weigh 1, and the cache says 2"] * len(found)
    assert len(found) == 1
    assert auditor.audits > 5


def test_a_failing_audit_is_reported_and_not_raised():
    with audit.watching() as auditor:
        cache = ColumnCache(SCHEMA, [pa.int64()], Limits(rows=2))
        cache._table.rows._count = None
        cache.enforce_limits(0)
        del cache
        assert "an audit ended with" in auditor.finish()[0]


class Hung:
    begun, ends = threading.Event(), threading.Event()


def hang(key):
    Hung.begun.set()
    Hung.ends.wait()
    return []


@pytest.mark.parametrize("function", ["hangs", "ends"])
def test_threads_that_are_left_are_found(function, monkeypatch):
    monkeypatch.setattr(audit._until_empty, "__defaults__", (0.05 if function == "hangs" else 5.0,))
    Hung.begun.clear()
    Hung.ends.clear()
    with audit.watching() as auditor:
        lookup = new_lookup(hang)
        pending = lookup.open(key_batch([1]))
        Hung.begun.wait()
        if function == "ends":
            Hung.ends.set()
            while not pending.ready:
                lookup.wait()
            lookup.close(pending)
        assert auditor.finish() == (["a thread is left: lookupcache-slot"] if function == "hangs" else [])
    Hung.ends.set()


@pytest.mark.extended
def test_files_and_sockets_that_are_left_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(audit._until_empty, "__defaults__", (0.05,))
    with audit.watching() as auditor:
        file = os.open(tmp_path / "left", os.O_CREAT | os.O_RDWR)
        end = socket.socket()
        found = auditor.finish()
    assert len(found) == 2
    assert f"a file or socket is left open: {tmp_path}/left" in found
    os.close(file)
    end.close()


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
        (lambda lookup: lookup.abandon, None),
    ],
    ids=["a batch", "a call", "nothing"],
)
def test_the_audit_finds_batches_and_calls_that_a_run_leaves(abandon, text):
    Hung.begun.clear()
    Hung.ends.clear()
    with audit.watching() as auditor:
        # The first batch is not done before the call for the second one has begun.
        lookup = new_lookup(lambda key: hang(key) if key == 2 else Hung.begun.wait() and [(key,)], async_=True)
        runner = Runner(lookup.source.plan, Layout(("id",), (0,)), lookup)
        own, lookup.abandon = lookup.abandon, abandon(lookup)
        run = runner.run(pa.record_batch({"id": [number]}) for number in (1, 2, 3))
        next(run)
        run.close()
        assert auditor.violations == ([text] if text else [])
        lookup.abandon = own
        Hung.ends.set()
        lookup.abandon(list(lookup._open))
        lookup.source.close()


def test_the_audit_finds_dead_letters_that_a_failed_run_leaves(tmp_path):
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
        run = runner.run(rows())
        with pytest.raises(ZeroDivisionError):
            for _ in run:
                pass
        assert auditor.violations == ["a run has ended, and its file of dead letters is open"]
        own(False)
        lookup.source.close()


@pytest.mark.parametrize("forgets", [True, False])
def test_the_audit_finds_resources_that_closed_objects_leave(forgets):
    table = LookupTable.from_function("t", "id BIGINT", key=["id"], function=lambda key: [(key,)])
    table = table.with_options({"lookup.async": "true"})
    with audit.watching() as auditor:
        join = LocalJoin(table, Wanted(key=("id",)))
        assert join.rows([(1,)]) == [(1,)]
        decorated = cached(LookupConfig(cache="LRU", async_=True))(lambda key: [key])
        assert decorated(1) == [1]
        decorated.lookup.held = HeldClaims(lambda names: None, 60)
        decorated.lookup.held.add([b"name"], b"token")
        if forgets:
            join._lookup.disconnect = lambda: None
        else:
            decorated.lookup.held.close()
        join.close()
        decorated.close()
        found = {"LocalJoin was closed, and its Threads is open", "SyncLookup was closed, and its HeldClaims is open"}
        left = {text.replace("ThreadSlots", "Threads") for text in auditor.violations}
        assert left == (found if forgets else set())
        decorated.lookup.held.close()
        join.source.close()


@pytest.mark.extended
@pytest.mark.slow
def test_the_audit_ignores_connections_to_spark(spark):
    with audit.watching() as auditor:
        # PySpark frees Java's objects, and makes calls, over a connection per thread.
        thread = threading.Thread(target=spark.sparkContext._jvm.java.util.ArrayList)
        thread.start()
        thread.join()
        parameters = spark.sparkContext._gateway.gateway_parameters
        end = socket.create_connection((parameters.address, parameters.port))
        # The JVM tells the metrics of Python's tasks over one that it opens with the first of them.
        spark.sparkContext.parallelize([1]).count()
        assert auditor.finish() == []
    end.close()


def test_a_task_that_is_left_is_found(monkeypatch):
    from lookupcache.executor.call_group import event_loop

    monkeypatch.setattr(audit._until_empty, "__defaults__", (0.05,))
    loop = event_loop()
    with audit.watching() as auditor:
        left = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), loop)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        [found] = auditor.finish()
    left.cancel()
    assert found.startswith("a task is left: <coroutine object Event.wait")
