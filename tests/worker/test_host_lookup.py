"""Several workers of one host: one request per key, true ages, failures, invalidations."""

from __future__ import annotations

import math
import random
import shutil
import time
import warnings
from collections import Counter

import pyarrow as pa
import pytest
from host_processes import in_processes
from host_workers import host_workers, values_of
from test_invalidation import ReportsChanges
from test_lookup import Gated, Names, all_names, batch, names, runner
from time_limit import LIMIT

from lookupcache.cache.keys import KeyBatch
from lookupcache.errors import LookupAdvice, LookupFailedError
from lookupcache.host import host_cache
from lookupcache.metrics import LookupMetrics
from lookupcache.testing import FakeClock
from lookupcache.worker.host_lookup import HostCacheLookup


def ids(*values) -> KeyBatch:
    return KeyBatch.of([pa.array(values, pa.int64())], [pa.int64()])


@pytest.fixture
def clock(monkeypatch):
    ticks = FakeClock(1_000)
    monkeypatch.setattr("lookupcache.host.host_cache.host_now", ticks)
    return ticks


@pytest.fixture
def workers(tmp_path):
    with host_workers(runner, HostCacheLookup, tmp_path) as new:
        yield new


def wait_for(lookup, pending):
    while not pending.ready:
        lookup.wait()


def open_next_gate(source, lookup):
    """Answer the second call for key 1, when a worker has made it."""
    source.gates.clear()
    while not lookup._requests:
        lookup.wait()
    assert source.began.acquire(timeout=LIMIT)
    source.open_gates(1)


def test_rows_of_one_worker_are_found_by_another(workers):
    source = Names()
    one, two = workers(source), workers(source)
    assert all_names(one, batch(1, 2, 2_000, 1)) == ["n1", "n2", None, "n1"]
    assert all_names(two, batch(2, 2_000, 3, None)) == ["n2", None, "n3", None]
    assert source.requested == [[1, 2, 2_000], [3]]
    assert two.lookup.counters["host_hits"] == 2
    assert (two.lookup.counters["misses"], two.lookup.counters["hits"]) == (1, 2)
    all_names(two, batch(1, 3, 3, 9))
    counts = LookupMetrics.of(two.lookup.counters)
    assert (counts.worker_hits, counts.host_hits, counts.host_waits, counts.requested_keys) == (0, 4, 0, 2)


DEFAULT_KEYS = 30_000


def test_an_lru_without_limits_requests_each_key_once_per_host(workers):
    """Three times as many keys as a worker has in its own cache, by three workers in turns, twice."""
    source = Names()
    made = [workers(source, max_rows=None) for _ in range(3)]
    for number in range(12):
        keys = range(number % 6 * 5_000, number % 6 * 5_000 + 5_000)
        assert all_names(made[number % 3 - number // 6], batch(*keys))[0] == ("n0" if keys[0] == 0 else None)
    assert sum(map(len, source.requested)) == DEFAULT_KEYS
    assert max(len(join.lookup.cache) for join in made) <= 10_000
    assert sum(join.lookup.counters["host_evictions"] for join in made) == 0


def test_an_unlimited_lru_without_a_folder_has_a_workers_limit(tmp_path):
    (tmp_path / "file").write_text("")
    source = Names()
    with pytest.warns(LookupAdvice):
        join = runner(source, scope="host", cache_path=str(tmp_path / "file"), max_rows=None)
    assert not isinstance(join.lookup, HostCacheLookup)
    for start in range(0, DEFAULT_KEYS, 5_000):
        all_names(join, batch(*range(start, start + 5_000)))
    assert len(join.lookup.cache) == 10_000
    assert join.lookup.counters["evictions"] == DEFAULT_KEYS - 10_000


def test_a_key_is_requested_again_only_after_the_host_evicts_it(workers):
    """The limit of rows is that of all workers together; what a worker's own cache evicts is not counted there."""
    source = Names()
    made = [workers(source, max_rows=20) for _ in range(3)]
    draw = random.Random(5)
    for number in range(30):
        keys = draw.sample(range(60), 5)
        assert all_names(made[number % 3], batch(*keys)) == [f"n{key}" for key in keys]
    requested = [key for keys in source.requested for key in keys]
    again = len(requested) - len(set(requested))
    evicted = sum(join.lookup.counters["host_evictions"] for join in made)
    assert evicted == made[0].lookup.host._control["evictions"] == len(requested) - 20
    assert 0 < again <= evicted


def test_rows_that_the_host_has_are_joined_where_they_lie(workers):
    source = Names()
    one, two = workers(source), workers(source)
    all_names(one, batch(1, 2, 2_000))
    for found in (3, 6, 9):
        assert all_names(two, batch(1, 2_000, None, 2, 1)) == ["n1", None, None, "n2", "n1"]
        assert two.lookup.counters["host_hits"] == found
        assert (len(one.lookup.cache), len(two.lookup.cache)) == (0, 0)
    assert source.requested == [[1, 2, 2_000]]
    assert two.lookup.counters["keys"] == 9


def test_a_key_that_another_worker_requests_is_waited_for(workers):
    source = Gated()
    one, two = workers(source).lookup, workers(source).lookup
    first = one.open(ids(1, 2))
    second = two.open(ids(2, 3))
    source.open_gates(1, 2, 3)
    wait_for(one, first)
    wait_for(two, second)
    assert sorted(source.requested) == [[1, 2], [3]]
    assert two.counters["host_waits"] == 1
    assert values_of(second) == ["n2", "n3"]
    one.close(first)
    two.close(second)


def test_when_a_call_fails_those_who_waited_request_the_key(workers):
    source = Gated()
    source.down = True
    one, two = (workers(source, on_error="null", error_column="e").lookup for _ in range(2))
    first, second = one.open(ids(1)), two.open(ids(1))
    wait_for(one, first)
    assert source.began.acquire(timeout=LIMIT)
    source.down = False
    assert len(first.errors) == 1
    open_next_gate(source, two)
    wait_for(two, second)
    assert (second.errors, source.requested) == ([], [[1], [1]])
    one.close(first)
    two.close(second)


def test_a_worker_that_gives_up_releases_its_claims(workers):
    source = Gated()
    one, two = workers(source).lookup, workers(source).lookup
    first, second = one.open(ids(1)), two.open(ids(1))
    assert source.began.acquire(timeout=LIMIT)
    one.abandon([first])
    open_next_gate(source, two)
    wait_for(two, second)
    assert two.counters["misses"] == 1
    two.close(second)


def test_keys_that_are_waited_for_can_be_given_up(workers):
    source = Gated()
    one, two = workers(source).lookup, workers(source).lookup
    first, second = one.open(ids(1)), two.open(ids(1))
    two.abandon([second])
    assert (two._awaited, len(two.cache)) == ({}, 0)
    source.open_gates(1)
    wait_for(one, first)
    one.close(first)


def test_ages_and_deadlines_are_those_of_the_first_fetch(workers, clock):
    source = Names()
    options = {"age_column": "age", "expire_after_write": 60.0}
    one, two = workers(source, **options), workers(source, **options)
    all_names(one, batch(1))
    clock.now += 50
    [joined] = two.run([batch(1)])
    assert joined.column(2).to_pylist() == [50.0]
    clock.now += 11
    [joined] = two.run([batch(1)])
    assert (joined.column(2).to_pylist(), source.requested) == ([0.0], [[1], [1]])


def test_rows_from_several_places_have_each_their_own_age(workers, clock):
    source = Names()
    one, two = (workers(source, age_column="age") for _ in range(2))
    all_names(one, batch(1, 2_000))
    clock.now += 50
    all_names(one, batch(2))
    clock.now += 5
    [joined] = two.run([batch(2, 1, 3, 2_000, None)])
    assert names(joined) == ["n2", "n1", "n3", None, None]
    assert joined.column(2).to_pylist() == [5.0, 55.0, 0.0, 55.0, None]
    assert source.requested == [[1, 2_000], [2], [3]]


def test_claims_are_given_back_where_no_call_is_made(workers, monkeypatch):
    one, two = (workers(Names()) for _ in range(2))

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(one.lookup, "_request_new", interrupt)
        with pytest.raises(KeyboardInterrupt):
            all_names(one, batch(1))
    assert all_names(two, batch(1)) == ["n1"]
    assert two.lookup.counters["host_waits"] == 0


def test_one_worker_refreshes_and_the_others_take_its_rows(workers, clock):
    source = Names()
    joins = [workers(source, refresh_after_write=10.0) for _ in range(3)]
    for join in joins:
        all_names(join, batch(1, 2))
    clock.now += 11
    source.name = "m"
    all_names(joins[0], batch(1, 2))
    while joins[0].lookup._requests:
        joins[0].lookup.wait()
    assert [all_names(join, batch(1, 2)) for join in joins] == [["m1", "m2"]] * 3
    assert source.requested == [[1, 2], [1, 2]]


def test_stale_rows_of_the_host_are_served_when_the_source_fails(workers, clock):
    source = Names()
    options = {"expire_after_write": 10.0, "stale_if_error": 60.0}
    one, two = workers(source, **options), workers(source, **options)
    all_names(one, batch(1))
    clock.now += 30
    source.down = True
    assert all_names(two, batch(1)) == ["n1"]
    assert two.lookup.counters["stale"] == 1
    clock.now += 31
    with pytest.raises(LookupFailedError):
        all_names(workers(source, **options), batch(1))


def test_known_misses_have_their_own_age_limit(workers, clock):
    source = Names()
    options = {"missing_key_expire_after_write": 5.0}
    all_names(workers(source, **options), batch(1, 2_000))
    clock.now += 6
    all_names(workers(source, **options), batch(1, 2_000))
    assert source.requested == [[1, 2_000], [2_000]]


def test_misses_that_are_not_to_be_remembered_stay_away(workers):
    source = Names()
    all_names(workers(source, missing_key=False), batch(1, 2_000))
    all_names(workers(source, missing_key=False), batch(1, 2_000))
    assert source.requested == [[1, 2_000], [2_000]]


def test_an_invalidation_reaches_all_workers_at_their_next_batch(workers):
    one_source, other_source = ReportsChanges(), ReportsChanges()
    one, two = workers(one_source), workers(other_source)
    for join in (one, two):
        all_names(join, batch(7))  # Connects, so that it hears of changes.
    all_names(one, batch(1, 2))
    assert all_names(two, batch(1, 2)) == ["n1", "n2"]
    one_source.name = other_source.name = "m"
    one_source.changes = (2,)
    all_names(one, batch(9))
    assert all_names(two, batch(1, 2)) == ["n1", "m2"]
    one_source.changes = None
    all_names(one, batch(9))
    assert all_names(two, batch(1, 2)) == ["m1", "m2"]


def test_rows_that_were_requested_before_a_change_are_not_shared(workers):
    one_source, other_source = ReportsChanges(), ReportsChanges()
    one, two, three = workers(one_source), workers(other_source), workers(ReportsChanges())
    for join in (one, two, three):
        all_names(join, batch(7))
    one_source.gate.clear()
    one_source.began.acquire()
    pending = one.lookup.open(ids(1))
    assert one_source.began.acquire(timeout=LIMIT)
    other_source.changes = (1,)
    other_source.name = "m"
    assert all_names(two, batch(1)) == ["m1"]
    one_source.gate.set()
    wait_for(one.lookup, pending)
    one.lookup.close(pending)
    assert all_names(two, batch(1)) == ["m1"]
    assert all_names(three, batch(1)) == ["m1"]


def test_a_worker_that_did_not_listen_uses_no_rows_of_others(workers):
    one, late = ReportsChanges(), ReportsChanges()
    all_names(workers(one), batch(1))
    late.name = "m"
    assert all_names(workers(late), batch(1)) == ["m1"]


def test_a_folder_that_is_deleted_is_made_again(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(host_cache, "_LOOK_SECONDS", 0)
    source = Names()
    join = workers(source)
    all_names(join, batch(1))
    shutil.rmtree(tmp_path / "cache")
    assert all_names(join, batch(1, 2, 2_000)) == ["n1", "n2", None]
    assert all_names(join, batch(2, 3)) == ["n2", "n3"]
    assert source.requested == [[1], [1, 2, 2_000], [3]]
    assert all_names(workers(source), batch(1, 2, 3)) == ["n1", "n2", "n3"]
    assert len(source.requested) == 3
    assert join.lookup.counters["host_failures"] >= 1


def test_without_a_folder_each_worker_has_its_own_cache(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(match="workers cannot share one"):
        join = runner(Names(), scope="host", cache_path=str(tmp_path / "file"))
    assert not isinstance(join.lookup, HostCacheLookup)
    assert all_names(join, batch(1)) == ["n1"]


@pytest.mark.parametrize("is_writable", [True, False])
def test_one_worker_of_an_executor_warns(tmp_path, monkeypatch, is_writable):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path if is_writable else tmp_path / "file"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        joins = [runner(Names(), scope="host", cache_path=str(tmp_path / "file" / "cache")) for _ in range(3)]
    assert len([one for one in caught if one.category is LookupAdvice]) == (1 if is_writable else 3)
    assert [join.lookup.counters["host_failures"] for join in joins] == [1, 1, 1]


def test_scope_auto_shares_where_spark_has_a_local_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not isinstance(runner(Names()).lookup, HostCacheLookup)
        monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'blockmgr-1'},{tmp_path / 'other'}")
        join = runner(Names())
    assert isinstance(join.lookup, HostCacheLookup)
    assert [path.name for path in (tmp_path / "blockmgr-1").iterdir()] == ["lookupcache"]
    join.lookup.disconnect()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "file"))
    with pytest.warns(LookupAdvice, match="each worker has its own cache"):
        join = runner(Names())
    assert not isinstance(join.lookup, HostCacheLookup)
    assert join.lookup.counters["host_failures"] == 1


def test_a_claim_that_is_not_renewed_lapses(workers, clock):
    """As that of a process that was stopped, or that Spark keeps from going on."""
    source = Gated()
    one, two = workers(source).lookup, workers(source).lookup
    first = one.open(ids(1))
    assert source.began.acquire(timeout=LIMIT)
    second = two.open(ids(1))
    two.wait()
    assert not two._requests
    clock.now += 6
    open_next_gate(source, two)
    wait_for(two, second)
    assert len(source.requested) == 2
    two.close(second)
    one.abandon([first])


def test_claims_are_renewed_while_a_worker_waits(workers, clock):
    source = Gated()
    one, two = workers(source).lookup, workers(source).lookup
    first, second = one.open(ids(1)), two.open(ids(1))
    for _ in range(5):
        clock.now += 3
        one._renewed = -math.inf
        one.poll()
        two.poll()
    assert not two._requests
    source.open_gates(1)
    wait_for(one, first)
    wait_for(two, second)
    assert source.requested == [[1]]
    one.close(first)
    two.close(second)


def test_waiting_for_a_claim_and_calling_have_one_timeout(workers):
    source = Gated()
    one, two = (workers(source, on_error="null", error_column="e").lookup for _ in range(2))
    pending = [lookup.open(ids(1)) for lookup in (one, two)]
    assert source.began.acquire(timeout=LIMIT)
    [awaited] = two._awaited.values()
    one.abandon(pending[:1])
    open_next_gate(source, two)
    assert [request.group.deadline for request in two._requests.values()] in ([awaited.wait.until], [])
    wait_for(two, pending[1])
    assert pending[1].errors == []
    two.close(pending[1])


@pytest.mark.parametrize("is_over", [False, True], ids=["ended", "held"])
def test_a_lookup_that_waits_ends_within_its_timeout(workers, is_over):
    """The source has been asked for the key all the time, though not by this worker."""
    source = Gated()
    one, two = (workers(source, timeout=60, on_error="null", error_column="e").lookup for _ in range(2))
    pending = [lookup.open(ids(1)) for lookup in (one, two)]
    assert source.began.acquire(timeout=LIMIT)
    [awaited] = two._awaited.values()
    awaited.wait.until = time.monotonic() + (
        0 if is_over else 0.2
    )  # As if the rest of the 60 seconds had been waited for.
    if not is_over:
        one.abandon(pending[:1])
    wait_for(two, pending[1])
    assert time.monotonic() < awaited.wait.until + 30
    [error] = pending[1].errors
    assert "did not answer within 60 s" in str(error)
    two.close(pending[1])
    if is_over:
        one.abandon(pending[:1])


@pytest.mark.parametrize("is_over", [False, True], ids=["ended", "held"])
def test_a_wait_for_a_claim_of_a_queued_call_does_not_count(workers, is_over):
    """That the claimant has many calls to make, all of them in time, says nothing about the source."""
    source = Gated()
    one, two = (workers(source, async_capacity=1, batch_max_size=1).lookup for _ in range(2))
    pending = [lookup.open(ids(*keys)) for lookup, keys in ((one, (1, 2)), (two, (2,)))]
    assert source.began.acquire(timeout=LIMIT)
    one.poll()
    two.poll()
    [awaited] = two._awaited.values()
    assert not awaited.is_source_asked
    awaited.wait.until = 0.0 if is_over else time.monotonic() + 5
    if not is_over:
        one.abandon(pending[:1])
    while not two._requests:
        two.wait()
    assert [request.group.deadline for request in two._requests.values()] == [math.inf]
    assert source.began.acquire(timeout=LIMIT)
    source.open_gates(2)
    wait_for(two, pending[1])
    assert pending[1].errors == []
    two.close(pending[1])
    if is_over:
        again = two.open(ids(1))
        assert not two._requests, "claims are renewed, so they are waited for again"
        two.abandon([again])
        one.abandon(pending[:1])


@pytest.mark.parametrize("has_lapsed", [False, True], ids=["released", "lapsed"])
def test_claims_are_ignored_after_a_living_worker_let_one_lapse(workers, clock, has_lapsed):
    source = Gated()
    one, two = workers(source).lookup, workers(source).lookup
    first, second = one.open(ids(1)), two.open(ids(1))
    assert source.began.acquire(timeout=LIMIT)
    [awaited] = two._awaited.values()
    awaited.wait.until -= 2 * two.claim_seconds  # As if it had been waited for longer than a claim lasts.
    if has_lapsed:
        clock.now += 6
    else:
        one.abandon([first])
    open_next_gate(source, two)
    wait_for(two, second)
    two.close(second)
    third, fourth = one.open(ids(3)), two.open(ids(3))
    assert bool(two._requests) is has_lapsed, "it requests what the other one has claimed"
    for lookup, batches in ((one, [first, third] if has_lapsed else [third]), (two, [fourth])):
        lookup.abandon(batches)


def test_a_key_that_is_used_stays_on_the_host(workers, clock):
    source = Names()
    join = workers(source, expire_after_access=100.0)
    all_names(join, batch(1, 2))
    for _ in range(4):
        clock.now += 60
        all_names(join, batch(1))
    assert all_names(workers(source, expire_after_access=100.0), batch(1, 2)) == ["n1", "n2"]
    assert source.requested == [[1, 2], [2]]


class Logged(Names):
    """Notes in a file which keys were requested."""

    def __init__(self, path) -> None:
        super().__init__()
        self.path = path

    def lookup(self, request, keys):
        with open(self.path, "a") as log:
            log.write("".join(f"{key}\n" for key in keys.column("id").to_pylist()))
        return super().lookup(request, keys)


@pytest.mark.slow
def test_processes_that_read_ahead_request_each_key_once(tmp_path):
    """Several batches are open at a time, so that keys are looked up, claimed and awaited in turns."""

    def work(number):
        draw = random.Random(number)
        join = runner(Logged(tmp_path / "log"), scope="host", cache_path=str(tmp_path / "cache"), max_rows=10_000)
        keys = [draw.sample(range(1_200), 100) for _ in range(30)]
        expected = [[f"n{key}" if key < 1_000 else None for key in part] for part in keys]
        assert [names(one) for one in join.run(batch(*part) for part in keys)] == expected
        join.lookup.disconnect()

    in_processes(4, work)
    counts = Counter((tmp_path / "log").read_text().split())
    assert len(counts) > 1_000
    assert max(counts.values()) == 1


def test_workers_share_rows_although_globals_of_the_code_differ(workers, tmp_path, monkeypatch):
    """Each process has imported the module itself: what it read then, as a time, is no change of the code."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))

    def connector(started):
        class Started(Names):
            started_at = started

        return Started()

    first, second = connector(1.5), connector(2.5)
    joins = [workers(one, cache_path=None) for one in (first, second)]
    assert [all_names(join, batch(1)) for join in joins] == [["n1"], ["n1"]]
    assert second.requested == []
