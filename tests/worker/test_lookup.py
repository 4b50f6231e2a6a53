"""Batches on their way: read ahead, single flight, full calls, freshness, and what is left when a task stops early."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
import time
import traceback
from collections import Counter
from unittest.mock import Mock
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import until
from time_limit import LIMIT

from lookupcache.cache.keys import KeyBatch
from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.errors import LookupFailedError, LookupTimeoutError, PlanError, SourceError
from lookupcache.executor.call_group import run_async
from lookupcache.functions.connector import FunctionConnector
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.testing import FakeClock
from lookupcache.worker.full_cache import FullCacheLookup, seconds_until
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Names(Connector):
    """Knows the name of every key below a thousand: what `name` says. Remembers the requests."""

    name = "n"
    down = False

    def __init__(self) -> None:
        super().__init__(SCHEMA, {})
        self.requested: list[list[int]] = []
        self.began = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def lookup(self, request, keys):
        ids = keys.column("id").to_pylist()
        self.requested.append(ids)
        self.began.release()
        self.gate.wait(LIMIT)
        if self.down:
            raise ConnectionError("down")
        known = [key for key in ids if key < 1_000]
        return pa.table({"id": known, "name": [f"{self.name}{key}" for key in known]}, SCHEMA).select(request.fields)

    def scan(self, request):
        self.began.release()
        if self.down:
            raise ConnectionError("down")
        yield from pa.table({"id": [1, 2], "name": [f"{self.name}1", f"{self.name}2"]}, SCHEMA).to_batches()


class Gated(Names):
    """Answers a call when the test opens the gate for one of its keys."""

    lookup = Connector.lookup

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[int, asyncio.Event] = {}
        self.in_flight = self.most = 0

    async def lookup_async(self, request, keys):
        gate = asyncio.Event()
        self.gates |= dict.fromkeys(keys.column("id").to_pylist(), gate)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            answer = Names.lookup(self, request, keys)
            await gate.wait()
            return answer
        finally:
            self.in_flight -= 1

    def open_gates(self, *keys: int) -> None:
        """Let the calls for these keys be answered, in this order, when they have all been made."""

        async def open_them():
            while not self.gates.keys() >= set(keys):
                await asyncio.sleep(0)
            for key in keys:
                self.gates[key].set()

        run_async(open_them())


def runner(connector: Connector, clock=None, **config) -> Runner:
    given = LookupConfig(**{"cache": "LRU", "max_rows": 1_000, "retry_delay": 0, "max_retries": 0, **config})
    plan = LookupPlan(
        table="t", connector="test", source="-", schema=SCHEMA, how="left", config=given,
        keys=(FieldKey(column="id", sql=""),), columns=("name",), left_columns=("id",),
    )  # fmt: skip
    lookup = lookup_of(Source(plan, connector), **({} if clock is None else {"clock": clock}))
    return Runner(plan, Layout(("id",), (0,)), lookup)


def batch(*keys) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(keys, pa.int64())})


def names(joined: pa.RecordBatch) -> list[str | None]:
    return joined.column(1).to_pylist()


def all_names(join: Runner, feed) -> list[str | None]:
    """Return what the names column of a join holds; a single batch does for a feed."""
    batches = [feed] if isinstance(feed, pa.RecordBatch) else feed
    return [name for joined in join.run(batches) for name in names(joined)]


class Feed:
    """Gives batches one by one, says how many were taken, and does something when they have all been opened."""

    def __init__(self, *batches, then=lambda: None) -> None:
        self.batches, self.taken, self.then = batches, 0, then

    def __iter__(self):
        for one in self.batches:
            self.taken += 1
            yield one
        self.then()


# ── reading ahead ────────────────────────────────────────────────────────────────────────────────────────


def test_the_next_batches_are_requested_while_the_first_waits():
    source = Gated()
    feed = Feed(batch(1), batch(2), batch(3), then=lambda: source.open_gates(3, 2, 1))
    assert all_names(runner(source, async_capacity=4), feed) == ["n1", "n2", "n3"]
    assert sorted(source.requested) == [[1], [2], [3]]  # while it connects, calls may overtake each other


def test_no_more_is_read_ahead_than_may_be_requested():
    source = Gated()
    feed = Feed(*(batch(key) for key in range(4)))
    taken = []

    def open_gates():
        wait_for(source, 2)
        taken.append(feed.taken)
        source.open_gates(0, 1)
        source.open_gates(2, 3)

    opener = threading.Thread(target=open_gates)
    opener.start()
    assert all_names(runner(source, async_capacity=2), feed) == ["n0", "n1", "n2", "n3"]
    opener.join()
    assert (taken, source.most) == ([2], 2)


def test_unordered_output_lets_go_what_is_ready_first():
    source = Gated()
    join = runner(source, async_capacity=3, output_mode="allow-unordered")
    joined = join.run(Feed(batch(1), batch(2), then=lambda: source.open_gates(2)))
    assert names(next(joined)) == ["n2"]
    source.open_gates(1)
    assert names(next(joined)) == ["n1"]


def test_a_batch_of_hits_does_not_overtake_one_that_waits():
    source = Gated()
    join = runner(source, async_capacity=5)
    assert all_names(join, Feed(batch(7), then=lambda: source.open_gates(7))) == ["n7"]
    feed = Feed(batch(1), batch(7), batch(7), then=lambda: source.open_gates(1))
    assert all_names(join, feed) == ["n1", "n7", "n7"]


def test_two_runs_that_share_a_lookup_take_turns():
    """The second takes in what the first waits for; the first looks again before it waits."""
    source = Gated()
    first = runner(source, async_capacity=4)
    second = Runner(first.plan, first.layout, first.lookup)
    one = first.run(Feed(batch(1), batch(2), then=lambda: source.open_gates(1)))
    assert names(next(one)) == ["n1"]
    other = second.run(Feed(batch(2), batch(3), then=lambda: source.open_gates(2, 3)))
    assert [name for joined in other for name in names(joined)] == ["n2", "n3"]
    assert first.lookup.in_flight == 0
    assert [name for joined in one for name in names(joined)] == ["n2"]
    assert sorted(source.requested) == [[1], [2], [3]]


# ── single flight ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cache", ["NONE", "LRU"])
def test_a_key_in_flight_is_not_requested_again(cache):
    source = Gated()
    join = runner(source, async_capacity=5, cache=cache, max_rows=None if cache == "NONE" else 10)
    feed = Feed(batch(1, 2), batch(2, 3), batch(1, 3), then=lambda: source.open_gates(3, 1))
    assert all_names(join, feed) == ["n1", "n2", "n2", "n3", "n1", "n3"]
    assert sorted(source.requested) == [[1, 2], [3]]  # while it connects, calls may overtake each other
    assert (join.lookup.counters["hits"], join.lookup.counters["misses"]) == (3, 3)


def test_a_failure_reaches_all_who_wait_and_is_not_kept():
    source = Gated()
    join = runner(source, async_capacity=5, on_error="null", error_column="error")
    source.down = True
    both = list(join.run([batch(1), batch(1)]))
    assert [one.column(2)[0].as_py()["code"] for one in both] == ["LOOKUP_FAILED"] * 2
    source.down = False
    assert all_names(join, Feed(batch(1), then=lambda: source.open_gates(1))) == ["n1"]


# ── full calls ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_call_waits_for_keys_of_the_next_batches_until_full():
    source = Names()
    join = runner(source, batch_max_size=3, batch_max_delay="1 h")
    assert all_names(join, [batch(1, 2), batch(3, 4), batch(5, 6)]) == ["n1", "n2", "n3", "n4", "n5", "n6"]
    assert source.requested == [[1, 2, 3], [4, 5, 6]]


def test_a_call_that_is_not_full_starts_after_the_delay():
    source = Names()
    join = runner(source, batch_max_size=10, batch_max_delay="1 ms")
    feed = Feed(batch(1), batch(2), then=lambda: wait_for(source, 1))
    assert all_names(join, feed) == ["n1", "n2"]


def test_the_last_call_does_not_wait():
    assert all_names(runner(Names(), batch_max_size=10, batch_max_delay="1 h"), batch(1)) == ["n1"]


@pytest.mark.parametrize("part", ["split", "reserve"])
def test_a_waiting_call_is_made_if_the_next_keys_cannot_join_it(part, monkeypatch):
    source = Names()
    lookup = runner(source, batch_max_size=3, batch_max_delay="1 h").lookup
    first, second = (KeyBatch.of([pa.array([number])], [pa.int64()]) for number in (1, 2))
    waits = lookup.open(first)
    with monkeypatch.context() as broken:
        broken.setattr(lookup.source if part == "split" else lookup.cache, part, Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            lookup.open(second)
    wait_for(source, 1)
    lookup.wait()
    assert (waits.ready, source.requested) == (True, [[1]])
    lookup.close(waits)
    lookup.close(lookup.find(second))
    assert lookup.cache.rows == 2


def wait_for(source: Names, calls: int) -> None:
    for _ in range(calls):
        assert source.began.acquire(timeout=LIMIT)


# ── threads ──────────────────────────────────────────────────────────────────────────────────────────────


class Meeting(Names):
    """Answers when as many calls as the test wants have met."""

    thread_safe = True

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.meeting = threading.Barrier(parties)

    def lookup(self, request, keys):
        self.meeting.wait(LIMIT)
        return super().lookup(request, keys)


def test_a_sync_connector_runs_in_threads_with_async():
    source = Meeting(4)
    join = runner(source, async_=True, async_capacity=4, batch_max_size=1)
    assert all_names(join, batch(1, 2, 3, 4)) == ["n1", "n2", "n3", "n4"]


def test_a_hanging_sync_call_times_out_and_frees_its_slot():
    source = Names()
    source.gate.clear()
    join = runner(source, timeout="20 ms")
    with pytest.raises(LookupTimeoutError, match=r"Table 't': The source did not answer within 0\.02 s"):
        all_names(join, batch(1))
    source.gate.set()
    assert all_names(join, batch(1)) == ["n1"]


# ── stopping early ───────────────────────────────────────────────────────────────────────────────────────


def test_stopping_early_cancels_calls_that_the_next_task_repeats():
    source = Gated()
    join = runner(source, async_capacity=4)
    joined = join.run(Feed(batch(1), batch(2), batch(3), then=lambda: source.open_gates(1)))
    assert names(next(joined)) == ["n1"]
    joined.close()
    assert (source.in_flight, join.lookup.in_flight, len(join.lookup.cache)) == (0, 0, 1)
    source.gates.clear()
    assert all_names(join, Feed(batch(1, 2), then=lambda: source.open_gates(2))) == ["n1", "n2"]


# ── retry on a miss ──────────────────────────────────────────────────────────────────────────────────────


class Late(Names):
    """Has a row for key 5 only from the third request on."""

    def lookup(self, request, keys):
        answer = super().lookup(request, keys)
        requested = sum(5 in ids for ids in self.requested)
        return answer if requested >= 3 else answer.filter(pa.array([key != 5 for key in answer["id"].to_pylist()]))


@pytest.mark.parametrize(("attempts", "found"), [(0, None), (1, None), (2, "n5")])
def test_looks_again_for_keys_that_have_no_row_yet(attempts, found):
    source = Late()
    join = runner(source, on_miss_max_attempts=attempts, on_miss_delay=0)
    assert all_names(join, batch(1, 5)) == ["n1", found]
    assert source.requested == [[1, 5], *[[5]] * attempts]
    assert join.lookup.counters["miss_retries"] == attempts


# ── freshness ────────────────────────────────────────────────────────────────────────────────────────────


def test_an_old_entry_is_served_while_one_call_refreshes_it():
    source, clock = Names(), FakeClock()
    join = runner(source, clock, expire_after_write=100, refresh_after_write=10)
    assert all_names(join, batch(1)) == ["n1"]
    source.name, clock.now = "m", 10.0
    source.gate.clear()
    assert all_names(join, [batch(1, 1), batch(1)]) == ["n1", "n1", "n1"]
    source.gate.set()
    settled(join)
    assert all_names(join, batch(1)) == ["m1"]
    assert (source.requested, join.lookup.counters["refreshes"]) == ([[1], [1]], 1)


def settled(join: Runner) -> None:
    """Take in what is fetched in the background."""
    while join.lookup.in_flight:
        join.lookup.wait()


def test_a_failed_refresh_keeps_the_old_rows_until_they_expire():
    source, clock = Names(), FakeClock()
    join = runner(source, clock, expire_after_write=100, refresh_after_write=10)
    all_names(join, batch(1))
    source.down, clock.now = True, 10.0
    assert all_names(join, batch(1)) == ["n1"]
    settled(join)
    assert all_names(join, batch(1)) == ["n1"]
    clock.now = 100.1
    with pytest.raises(LookupFailedError):
        all_names(join, batch(1))


def test_stale_rows_are_served_until_too_old_if_the_source_fails():
    source, clock = Names(), FakeClock()
    join = runner(source, clock, expire_after_write=10, stale_if_error=60)
    all_names(join, batch(1))
    source.down, clock.now = True, 11.0
    assert all_names(join, batch(1, 1)) == ["n1", "n1"]
    assert (join.lookup.counters["stale"], join.lookup.counters["expirations"]) == (1, 0)
    source.down, source.name = False, "m"
    assert all_names(join, batch(1)) == ["m1"]
    source.down, clock.now = True, 71.1
    with pytest.raises(LookupFailedError):
        all_names(join, batch(1))


def test_unrequested_rows_become_stale_too():
    source, clock = Names(), FakeClock()
    join = runner(source, clock, expire_after_write=100, expire_after_access=10, stale_if_error=200)
    all_names(join, batch(1))
    source.down, clock.now = True, 11.0
    assert [all_names(join, batch(1)), all_names(join, batch(1))] == [["n1"], ["n1"]]
    assert (len(source.requested), join.lookup.counters["stale"]) == (3, 2)


def test_the_age_column_is_the_age_of_the_result():
    source, clock = Names(), FakeClock()
    join = runner(source, clock, age_column="age")
    all_names(join, batch(1, 2_000))
    clock.now = 5.5
    [joined] = join.run([batch(1, 2_000, None, 2)])
    assert joined.column(2).to_pylist() == [5.5, 5.5, None, 0.0]


def test_jitter_spreads_the_expiry_of_what_was_fetched_together():
    source, clock = Names(), FakeClock()
    join = runner(source, clock, cache="TTL", expire_after_write=100, jitter=0.5, max_rows=None)
    all_names(join, batch(*range(1_000)))
    missed = []
    for clock.now in (49.0, 75.0, 100.1):
        before = join.lookup.counters["misses"]
        all_names(join, batch(*range(1_000)))
        missed.append(join.lookup.counters["misses"] - before)
    assert missed[0] == 0
    assert 350 < missed[1] < 650


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────


class Moody(Names):
    """Fails for keys that are a multiple of ten."""

    def lookup(self, request, keys):
        if any(key % 10 == 0 for key in keys.column("id").to_pylist()):
            raise ConnectionError("not this one")
        return super().lookup(request, keys)


def test_a_failed_row_is_marked_and_a_miss_is_not():
    join = runner(Moody(), on_error="null", error_column="error", batch_max_size=1)
    [joined] = join.run([batch(1, 10, 2_001, 20, None, 10)])
    assert names(joined) == ["n1", None, None, None, None, None]
    codes = [error and error["code"] for error in joined.column(2).to_pylist()]
    assert codes == [None, "LOOKUP_FAILED", None, "LOOKUP_FAILED", None, "LOOKUP_FAILED"]
    assert "the lookup of 1 key failed after 1 attempt: ConnectionError" in joined.column(2)[1].as_py()["message"]
    assert join.lookup.counters["failed_rows"] == 3


class Letters:
    """Stands in the place of the files."""

    def __init__(self) -> None:
        self.written: list[tuple] = []
        self.complete: list[bool] = []

    def write(self, rows, errors) -> None:
        self.written += zip(rows.column(0).to_pylist(), errors.to_pylist(), strict=True)

    def close(self, complete) -> None:
        self.complete.append(complete)


def test_failed_rows_become_dead_letters_and_others_are_joined():
    join, letters = runner(Moody(), on_error="dead-letter", dead_letter_path="x", batch_max_size=1), Letters()
    join.letters = letters
    assert all_names(join, [batch(1, 10), batch(20, 3)]) == ["n1", "n3"]
    assert [key for key, _ in letters.written] == [10, 20]
    assert {error["code"] for _, error in letters.written} == {"LOOKUP_FAILED"}
    assert (join.lookup.counters["dead_letters"], letters.complete) == (2, [True])


def test_the_breaker_leaves_a_dead_source_alone():
    source = Names()
    source.down = True
    join = runner(source, on_error="null", error_column="e", batch_max_size=1, breaker_failures=2, breaker_delay="1 h")
    [joined] = join.run([batch(1, 2, 3, 4)])
    assert Counter(error["code"] for error in joined.column(2).to_pylist()) == {"LOOKUP_FAILED": 2, "LOOKUP_REFUSED": 2}
    assert len(source.requested) == 2
    assert joined.column(2)[3].as_py()["message"].startswith("Table 't': The circuit breaker is open")


# ── the whole table ──────────────────────────────────────────────────────────────────────────────────────


def loaded(source: Names, clock: FakeClock, **config) -> Runner:
    return runner(source, clock, cache="ALL", max_rows=None, **config)


def completed(join: Runner) -> None:
    """Wait until the load that is under way has ended; the next batch takes it in."""
    executor = join.lookup.source.executor
    until(lambda: not in_flight(executor))


def in_flight(executor) -> int:
    """Return the number of calls without an answer; the answers of the others can be taken."""
    with executor._changing:
        return executor.in_flight


def test_lookups_continue_while_the_table_is_reloaded():
    source, clock = Names(), FakeClock()
    join = loaded(source, clock, reload_interval=10)
    assert all_names(join, batch(1, 3)) == ["n1", None]
    source.name, clock.now = "m", 10.0
    first = all_names(join, batch(1, 2))
    assert first in (["n1", "n2"], ["m1", "m2"])
    completed(join)
    assert all_names(join, batch(1, 2)) == ["m1", "m2"]
    assert join.lookup.counters["reloads"] == 1


def test_lookups_wait_for_a_table_twice_as_old_as_its_interval():
    source, clock = Names(), FakeClock()
    join = loaded(source, clock, reload_interval=10)
    all_names(join, batch(1))
    source.name, clock.now = "m", 20.0
    assert all_names(join, batch(1)) == ["m1"]


@pytest.mark.parametrize(("mode", "loads"), [("fixed-delay", 2), ("fixed-rate", 3)])
def test_the_interval_runs_from_the_end_or_the_start_of_a_load(mode, loads):
    source, clock = Names(), FakeClock()
    scan = source.scan

    def slow(request):
        clock.now += 4.0
        return scan(request)

    source.scan = slow
    join = loaded(source, clock, reload_interval=10, reload_mode=mode)
    all_names(join, batch(1))
    for clock.now in (24.0, 36.0):
        all_names(join, batch(1))
        completed(join)
    assert source.began._value == loads


def test_a_table_is_loaded_again_at_a_time_of_day():
    source, clock = Names(), FakeClock()
    join = loaded(source, clock, reload_at="03:00Z")
    plan_source = join.lookup.source
    join.lookup = FullCacheLookup(plan_source, clock, wall=lambda: dt.datetime(2026, 5, 1, 2, 59, tzinfo=dt.UTC))
    all_names(join, batch(1))
    for clock.now, reloads in ((59.0, 0), (60.0, 1), (61.0, 1)):
        all_names(join, batch(1))
        completed(join)
        assert join.lookup.counters["reloads"] == reloads


def test_a_failed_reload_keeps_the_old_table_as_long_as_it_may():
    source, clock = Names(), FakeClock()
    join = loaded(source, clock, reload_interval=10, stale_if_error=25)
    all_names(join, batch(1))
    source.down, clock.now = True, 20.0
    assert all_names(join, batch(1)) == ["n1"]
    assert (join.lookup.counters["reload_failures"], join.lookup.counters["stale"]) == (1, 1)
    clock.now = 25.1
    lines = set()
    for _ in range(3):
        with pytest.raises(LookupFailedError, match="reading the full table failed") as raised:
            all_names(join, batch(1))
        lines.add(len(traceback.extract_tb(raised.value.__traceback__)))
    assert len(lines) == 1
    source.down, source.name, clock.now = False, "m", 40.0
    assert all_names(join, batch(1)) == ["m1"]


@pytest.mark.parametrize("allowed", [False, True])
def test_an_empty_table_replaces_another_only_if_allowed(allowed):
    source, clock = Names(), FakeClock()
    join = loaded(source, clock, reload_interval=10, reload_allow_empty=allowed)
    all_names(join, batch(1))
    source.scan, clock.now = lambda request: iter(()), 20.0
    assert all_names(join, batch(1)) == [None if allowed else "n1"]
    assert join.lookup.counters["reload_failures"] == (not allowed)


def test_a_failed_first_load_marks_its_rows_and_is_retried():
    source, clock = Names(), FakeClock()
    source.down = True
    join = loaded(source, clock, on_error="null", error_column="error")
    [joined] = join.run([batch(1, None)])
    assert [error and error["code"] for error in joined.column(2).to_pylist()] == ["LOOKUP_FAILED", None]
    source.down = False
    assert all_names(join, batch(1)) == ["n1"]


def test_time_until_a_time_of_day():
    evening = dt.datetime(2026, 5, 1, 22, 0, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert seconds_until("23:30:00+02:00", evening) == 5_400
    assert seconds_until("21:00:00+02:00", evening) == 82_800
    assert seconds_until("21:00:00+00:00", evening) == 3_600


@pytest.fixture(params=["Europe/Vienna", "America/St_Johns", "Australia/Lord_Howe", "Asia/Tokyo"])
def zone(request, monkeypatch):
    """Let this process be in another zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield ZoneInfo(request.param)
    monkeypatch.undo()
    time.tzset()


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.times().map(lambda at: at.replace(microsecond=0)),
    now=st.datetimes(dt.datetime(2026, 1, 1), dt.datetime(2027, 1, 1), timezones=st.just(dt.UTC)),
)
def test_a_time_of_day_occurs_once_a_day_in_its_zone(zone, at, now):
    """Or, where it is left out, as long after the change as it would have been."""
    then = now + dt.timedelta(seconds=seconds_until(at.isoformat(), now))
    there = then.astimezone(zone)
    left_out = dt.datetime.combine(there.date(), at, zone).astimezone(dt.UTC).astimezone(zone).time() != at
    assert left_out or (there.time(), there.fold) == (at, 0)
    days = (there.date() - now.astimezone(zone).date()).days
    assert now < then
    assert days in (0, 1)
    assert days == 0 or now >= dt.datetime.combine(now.astimezone(zone).date(), at, zone)


@pytest.mark.parametrize(
    ("now", "at", "hours"),
    [
        ("2026-03-28T12:00", "03:30", 14.5),
        ("2026-03-28T12:00", "02:30", 14.5),
        ("2026-10-24T12:00", "03:30", 16.5),
        ("2026-10-24T12:00", "02:30", 14.5),
        ("2026-10-25T02:30", "02:30", 25),
    ],
)
def test_a_time_of_day_where_the_clocks_change(monkeypatch, now, at, hours):
    monkeypatch.setenv("TZ", "Europe/Vienna")
    time.tzset()
    try:
        assert seconds_until(at, dt.datetime.fromisoformat(now).astimezone()) == hours * 3_600
    finally:
        monkeypatch.undo()
        time.tzset()


def test_keys_wait_in_one_call_to_be_found():
    join = runner(Names())
    keys = KeyBatch.of([pa.array([1, 1, 9])], [pa.int64()])
    pending = join.lookup.find(keys)
    assert pending.counts().tolist() == [1, 1, 1]
    join.lookup.close(pending)


class Refusing(Names):
    """Finds during a call that an option is wrong, which is no failure of the source."""

    refused: tuple[int, ...] = ()

    def lookup(self, request, keys):
        answer = super().lookup(request, keys)
        if set(self.refused) & set(keys.column("id").to_pylist()):
            raise PlanError("It cannot be called so.")
        return answer


def test_an_error_of_one_call_does_not_lose_others_that_ended():
    source, clock = Refusing(), FakeClock()
    join = runner(source, clock, refresh_after_write=10, on_error="null", error_column="error")
    for refused in ((1, 2), (1,), (2,), ()):
        source.refused = ()
        all_names(join, [batch(1), batch(2)])
        completed(join)
        join.lookup.poll()
        clock.now += 10
        source.refused = refused
        source.gate.clear()
        all_names(join, [batch(1), batch(2)])
        source.gate.set()
        completed(join)
        with pytest.raises(PlanError) if refused else contextlib.nullcontext():
            join.lookup.poll()
        assert (join.lookup._requests, join.lookup.cache._pending) == ({}, 0)


def test_an_error_breaks_all_runs_that_wait_for_the_call():
    source = Refusing()
    join = runner(source, async_=True, output_mode="allow-unordered", on_error="null", error_column="error")
    other = Runner(join.plan, join.layout, join.lookup)
    source.refused = (1,)
    source.gate.clear()
    paused = join.run([batch(1), batch(None)])
    assert names(next(paused)) == [None]
    with pytest.raises(PlanError):
        all_names(other, Feed(batch(1), then=source.gate.set))
    with pytest.raises(PlanError):
        list(paused)
    assert (join.lookup._open, join.lookup.cache._leases) == ([], [])


def test_a_known_miss_may_be_served_for_an_error_as_rows_may():
    source, clock = Names(), FakeClock()
    join = runner(source, clock, expire_after_write=10, stale_if_error=60)
    assert all_names(join, batch(2_000)) == [None]
    source.down, clock.now = True, 11.0
    assert (all_names(join, batch(2_000)), join.lookup.counters["stale"]) == ([None], 1)


def test_a_wrong_answer_marks_its_rows_too():
    source = Names()
    source.lookup = lambda request, keys: pa.table({"id": keys.column("id")})
    join = runner(source, on_error="null", error_column="error")
    [joined] = join.run([batch(1)])
    assert joined.column(2)[0].as_py()["code"] == SourceError.code


def test_a_function_that_answers_for_other_keys_too_adds_no_rows():
    def both(key):
        return [(1, "n1"), (2, "n2"), (key, f"n{key}")] if key > 2 else [(1, "n1"), (2, "n2")]

    source = FunctionConnector(SCHEMA, key=("id",), function=both, batch=False)
    assert all_names(runner(source), batch(1, 2, 3)) == ["n1", "n2", "n3"]
