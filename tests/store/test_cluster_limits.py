"""Limits for all workers of all hosts: what the server grants, processes that share it, and what they do without it."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import os
import random
import signal
import threading
import time

import pytest
from drawing import examples
from host_processes import _fork
from hypothesis import example, given, settings
from hypothesis import strategies as st
from servers import RedisServer, until

from lookupcache import LookupConfig, OptionError
from lookupcache.metrics import Counters
from lookupcache.resilience.policy import ResiliencePolicy
from lookupcache.resilience.rate_limit import RateLimit
from lookupcache.store import cluster_limits, redis_limits
from lookupcache.store.cluster_limits import HORIZON_SECONDS, StoredLimits, _Rate, _Slots, _Waiting, open_limits
from lookupcache.store.guard import Guard
from lookupcache.store.redis_limits import FORGOTTEN, RedisLimits, Times

_sources = map("source {}".format, itertools.count())


@pytest.fixture(scope="module")
def server(redis_server):
    return redis_server


def new_limits(server, source) -> RedisLimits:
    return RedisLimits(server.url, 10, source)


def config_of(server, **options) -> LookupConfig:
    return LookupConfig(**{"cache": "LRU", "store": server.url, "store_timeout": 10, **options})


# ── what the server grants ───────────────────────────────────────────────────────────────────────────────


@settings(max_examples=examples(15), deadline=None)
@given(st.floats(1, 1e5), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=12))
def test_times_are_as_far_apart_as_the_rate_says_whoever_asks(server, rate, requests):
    source, granted = next(_sources), 0
    members = [new_limits(server, source) for _ in range(3)]
    began = time.monotonic()
    for number, calls in requests:
        before = time.monotonic()
        took = members[number].take_times(calls, rate, HORIZON_SECONDS, b"%d" % number)
        after = time.monotonic()
        assert 0 <= took.granted <= calls
        assert took.granted == calls or took.free > HORIZON_SECONDS
        # The k-th time is never before the first and k intervals.
        assert after + took.first >= began + granted / rate - 1e-4
        granted += took.granted
        assert after + took.free >= began + granted / rate - 1e-4
        assert took.free <= max(after - before, 0) + granted / rate + 1e-4
    assert took.members == len({number for number, _ in requests})
    for one in members:
        one.close()


def test_a_lower_rate_of_before_does_not_hold_calls_up(server):
    limits = new_limits(server, next(_sources))
    assert limits.take_times(1, 1e-4, HORIZON_SECONDS, b"m").free > 1_000
    took = limits.take_times(2, 10, HORIZON_SECONDS, b"m")
    assert (took.granted, took.first) == (0, pytest.approx(HORIZON_SECONDS + 0.1, abs=1e-3))
    limits.close()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_was_set_neither_stops_calls_nor_frees_more_than_a_second(server, hours):
    """The names hold times of another clock, as after it was set; leases, too."""
    source = next(_sources)
    limits = new_limits(server, source)
    assert limits.take_times(99, 10, HORIZON_SECONDS, b"m").granted == 11
    assert limits.take_leases([b"a", b"b"], 2, 5, b"m") == (2, 1)
    with server.client() as client:
        rate, calls = limits._prefix + b"rate", limits._prefix + b"calls"
        for field in ("free", "at"):
            client.hset(rate, field, f"{float(client.hget(rate, field)) - hours * 3.6e9:.0f}")
        for name, score in client.zrange(calls, 0, -1, withscores=True):
            client.zadd(calls, {name: score - hours * 3.6e9})
        took = limits.take_times(99, 10, HORIZON_SECONDS, b"m")
        assert took.granted == (0 if hours < 0 else 11)
        assert took.free <= 2.5
        # A clock set back keeps leases for their time at most; set forward, they lapse and their owner prolongs them.
        assert limits.take_leases([b"c"], 2, 5, b"m", (), [b"a"])[0] == (0 if hours < 0 else 1)
        assert all(client.zscore(calls, name) <= (time.time() + 6) * 1e6 for name in client.zrange(calls, 0, -1))
    limits.close()


def test_a_worker_that_waits_is_not_passed_over_for_ever(server):
    limits = new_limits(server, next(_sources))
    assert limits.take_leases([b"0"], 1, 60, b"m") == (1, 1)
    for number in itertools.count():
        # The first worker has its next call at once, again and again.
        if limits.take_leases([b"n"], 1, 60, b"n")[0]:
            break
        limits.take_leases([b"%d" % (number + 1)], 1, 60, b"m", [b"%d" % number])
        assert number < 100_000
    assert limits.take_leases([b"x"], 1, 60, b"m")[0] == 0
    # One that asks no more keeps nobody waiting.
    limits.take_leases([b"o"], 1, 60, b"o")
    limits.take_leases([], 1, 60, b"n", [b"n"])
    until(lambda: limits.take_leases([b"y"], 1, 60, b"m")[0])
    limits.close()


def test_leases_lapse_end_and_are_prolonged(server):
    limits = new_limits(server, next(_sources))
    assert limits.take_leases([b"a", b"b", b"c"], 2, 60, b"m") == (2, 1)
    assert limits.take_leases([b"c"], 2, 60, b"n", [b"a"]) == (1, 2)
    assert limits.take_leases([], 2, 0.001, b"n", [], [b"b", b"c"]) == (0, 2)
    until(lambda: limits.take_leases([b"d"], 2, 60, b"n")[0] == 1)
    # One that has lapsed while its server was away is there again.
    limits.take_leases([], 2, 60, b"n", [], [b"b", b"c"])
    assert limits.take_leases([b"e"], 3, 60, b"n")[0] == 0
    limits.close()


@pytest.mark.parametrize("is_away", [False, True])
def test_a_server_that_has_lost_its_data_counts_the_leases_that_it_has_not_been_told_of(server, monkeypatch, is_away):
    monkeypatch.setattr(redis_limits, "DELAY_SECONDS", 1.0)
    source, lease = next(_sources), 0.5
    first, other = (new_limits(server, source) for _ in range(2))
    assert first.take_leases([b"a", b"b", b"c"], 4, lease, b"m") == (3, 1)
    assert other.take_leases([b"d", b"e"], 4, lease, b"n") == (1, 2)
    with server.client() as client:
        client.flushall()
    assert other.take_leases([b"e"], 4, lease, b"n") == (FORGOTTEN, 2)
    lost = time.monotonic()
    assert other.take_leases([b"e"], 4, lease, b"n", (), [b"d"])[0] == 0
    assert other.take_leases([b"e"], 4, lease, b"n")[0] == 0
    if is_away:
        # What the first worker had has lapsed; then its share is kept for it, for as long as it may stay away.
        until(lambda: other.take_leases([b"e", b"f"], 4, lease, b"n", (), [b"d"])[0])
        assert time.monotonic() - lost >= lease - 0.05
        with server.client() as client:
            assert client.zcard(other._prefix + b"calls") == 2
        until(lambda: other.take_leases([b"g", b"h"], 4, lease, b"n", (), [b"d", b"e"])[0] == 2)
        assert time.monotonic() - lost >= lease + 1.0 - 0.05
    else:
        assert first.take_leases([], 4, 60, b"m", (), [b"a"])[0] == FORGOTTEN
        assert first.take_leases([], 4, 60, b"m", (), [b"a", b"b", b"c"]) == (0, 2)
        assert other.take_leases([b"e"], 4, 60, b"n", (), [b"d"])[0] == 0
        assert first.take_leases([], 4, 60, b"m", [b"a"])[0] == 0
        assert other.take_leases([b"e", b"f"], 4, 60, b"n")[0] == 1
    first.close(), other.close()


def test_a_server_that_loses_its_data_twice_still_waits_for_those_who_have_not_called_in_between(server):
    source = next(_sources)
    first, other = (new_limits(server, source) for _ in range(2))
    assert first.take_leases([b"a", b"b", b"c"], 3, 60, b"m") == (3, 1)
    assert other.take_leases([b"d"], 3, 60, b"n") == (0, 2)
    for _ in range(3):
        with server.client() as client:
            client.flushall()
        assert other.take_leases([b"d"], 3, 60, b"n")[0] == FORGOTTEN
        assert other.take_leases([b"d"], 3, 60, b"n") == (0, 2)
    assert first.take_leases([], 3, 60, b"m", (), [b"a"])[0] == FORGOTTEN
    assert first.take_leases([], 3, 60, b"m", [b"c"], [b"a", b"b"]) == (0, 2)
    assert other.take_leases([b"d", b"e"], 3, 60, b"n") == (1, 2)
    first.close(), other.close()


def test_a_worker_that_is_alone_need_not_wait_where_the_data_was_lost(server):
    limits = new_limits(server, next(_sources))
    assert limits.take_leases([b"a"], 2, 60, b"m") == (1, 1)
    with server.client() as client:
        client.flushall()
    assert limits.take_leases([b"b"], 2, 60, b"m")[0] == FORGOTTEN
    assert limits.take_leases([b"b", b"c"], 2, 60, b"m", (), [b"a"]) == (1, 1)
    limits.close()


def test_what_others_have_put_under_the_names_is_replaced_and_all_names_expire(server):
    limits = new_limits(server, next(_sources))
    names = [limits._prefix + name for name in (b"rate", b"executors", b"calls", b"workers")]
    with server.client() as client:
        for name in names:
            client.rpush(name, "wrong")
        assert limits.take_times(1, 10, 1, b"m").granted == 1
        assert limits.take_leases([b"a"], 2, 60, b"m") == (1, 1)
        assert all(0 < client.pttl(name) <= 120_000 for name in names)
    limits.close()


def test_a_store_that_is_no_server_is_refused():
    with pytest.raises(OptionError, match=r"'/data/store', which cannot count(?s:.*)'lookup\.rate-limit\.scope'"):
        open_limits("/data/store", 1, "x")


# ── simulated executors ──────────────────────────────────────────────────────────────────────────────────


class World:
    """A server and executors in simulated time; ``starts`` has when calls have started."""

    def __init__(self, rate: float, executors: int) -> None:
        self.now, self.shift, self.away = 1_000.0, 0.0, False
        self.rate, self.free, self.at = rate, 0.0, 0.0
        self.starts: list[tuple[float, int]] = []
        self.executors = [self._executor(number) for number in range(executors)]

    def _executor(self, number: int) -> _Rate:
        config = LookupConfig(cache="LRU", store="redis://h", rate_limit=self.rate, rate_limit_scope="cluster")
        guard = Guard(Counters(), "x", "x", str, lambda: self.now)
        guard._has_warned = True
        found = _Rate(config, "s", self, guard)
        found._members = len(self.executors) if hasattr(self, "executors") else 1
        found._note_members = lambda members: setattr(found, "_members", members)
        share = {}
        found._share = lambda members: share.setdefault(members, RateLimit(self.rate / members, clock=lambda: self.now))
        return found

    def take_times(self, calls: int, rate: float, horizon: float, member: bytes) -> Times:
        """Do what the script does."""
        if self.away:
            raise ConnectionError("away")
        now, every = self.now + self.shift, 1 / rate
        self.free = max(self.free - max(self.at - now, 0.0), now)
        first = self.free - now
        granted = min(calls, int((horizon - first) / every) + 1) if first <= horizon else 0
        self.free, self.at = self.free + granted * every, now
        return Times(granted, first, self.free - now, len(self.executors))

    def run(self, seconds: float, events: list) -> None:
        """Let each executor make calls without a pause, four at a time, while events happen."""
        ends = self.now + seconds
        queue = [(self.now + at, 0, number, act) for number, (at, act) in enumerate(events)]
        queue += [(self.now + 0.001 * number, 1, number, None) for number in range(len(self.executors))]
        heapq.heapify(queue)
        waiting = [[_Waiting(ends + 1e9) for _ in range(4)] for _ in self.executors]
        while queue and queue[0][0] < ends:
            self.now, kind, number, act = heapq.heappop(queue)
            if kind == 0:
                act(self)
                continue
            again = self.executors[number]._serve(waiting[number])
            for one in [one for one in waiting[number] if one.future.done()]:
                self.starts.append((self.now + one.future.result().seconds, number))
                waiting[number].remove(one)
                waiting[number].append(_Waiting(ends + 1e9))
            heapq.heappush(queue, (self.now + (again or 0.01), 1, number, None))

    def most_beyond(self) -> float:
        """Return by how many calls the rate was exceeded, in the window where that was most."""
        starts = sorted(at for at, _ in self.starts)
        least, most = float("inf"), 0.0
        for number, at in enumerate(starts):
            least = min(least, number - at * self.rate)
            most = max(most, number + 1 - at * self.rate - least)
        return most


def act(kind: str, size: float):
    def change(world: World) -> None:
        if kind == "step":
            world.shift += size
        else:
            world.away = kind == "away"

    return change


@example(40.0, 3, [(2.0, "away", 0)])
@example(40.0, 3, [(2.0, "away", 0), (9.0, "back", 0), (14.0, "step", 50), (18.0, "step", -50)])
@settings(max_examples=examples(15), deadline=None)
@given(
    st.sampled_from([5.0, 40.0]),
    st.integers(1, 4),
    st.lists(st.tuples(st.floats(0, 20), st.sampled_from(["away", "back", "step"]), st.sampled_from([-50, -2, 2, 50]))),
)
def test_the_rate_holds_in_every_window_and_never_none_is_left(rate, executors, changes):
    with pytest.MonkeyPatch.context() as patch:
        world = World(rate, executors)
        for one in world.executors:
            one._members = executors
        patch.setattr(cluster_limits.time, "monotonic", lambda: world.now)
        patch.setattr(cluster_limits.random, "uniform", random.Random(0).uniform)
        world.run(25, [(at, act(kind, size)) for at, kind, size in changes])
    # Each change may give out the times of one horizon twice, and a share begins with a call of each executor.
    beyond = len(changes) * (rate * HORIZON_SECONDS + 1 + executors)
    assert world.most_beyond() <= 1 + beyond + 1e-6
    for number in range(executors):
        own = [1_000.0, *sorted(at for at, one in world.starts if one == number), 1_025.0]
        # Who waits gets a call now and then: the breaker leaves the server alone for at most ten seconds.
        assert max(b - a for a, b in itertools.pairwise(own)) <= 6 * executors / rate + 4 + 2 * len(changes)


# ── processes over one server ────────────────────────────────────────────────────────────────────────────


def make_calls(server, path, source, seconds: float, calls: int, **options) -> None:
    """Make calls in four threads; write the times of each."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    config = config_of(server, max_retries=0, **options)
    limits = StoredLimits(config, source, Counters(), "test")
    policy = ResiliencePolicy(config, cluster=limits)

    def call() -> None:
        began = time.monotonic()
        time.sleep(seconds)
        os.write(log, json.dumps([os.getpid(), began, time.monotonic()]).encode() + b"\n")

    threads = [threading.Thread(target=lambda: [policy.call_sync(call) for _ in range(calls)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    policy.close()


def read(path) -> list[list[float]]:
    return sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda one: one[1])


def most_at_once(calls) -> int:
    changes = sorted([(began, 1) for _, began, _ in calls] + [(ended, -1) for _, _, ended in calls])
    return max(itertools.accumulate(change for _, change in changes))


@pytest.mark.slow
def test_processes_keep_to_both_limits_and_the_leases_of_a_killed_one_lapse(server, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_limits, "LEASE_SECONDS", 0.5)
    path, source, rate = tmp_path / "log", next(_sources), 200
    options = {"rate_limit": rate, "rate_limit_scope": "cluster", "async_capacity_cluster": 3}
    began = time.monotonic()
    hanging = _fork(lambda: make_calls(server, path, source, 3_600, 1, **options))
    prefix = new_limits(server, source)._prefix
    with server.client() as client:
        until(lambda: client.zcard(prefix + b"calls") == 3)
        others = [_fork(lambda: make_calls(server, path, source, 0.005, 12, **options)) for _ in range(2)]
        until(lambda: client.zcard(prefix + b"workers") == 3)
        assert not path.read_text()  # All slots are taken, and prolonged.
        os.kill(hanging, signal.SIGKILL)
        assert [os.waitpid(one, 0)[1] for one in (hanging, *others)] == [signal.SIGKILL, 0, 0]
        assert client.zcard(prefix + b"calls") == 0
    calls = read(path)
    assert len(calls) == 96
    assert most_at_once(calls) <= 3
    assert all(at >= began + number / rate for number, (_, at, _) in enumerate(calls))


@pytest.mark.slow
def test_processes_keep_to_the_capacity_while_the_server_loses_its_data(server, tmp_path):
    path, source, emptied = tmp_path / "log", next(_sources), 0
    children = [_fork(lambda: make_calls(server, path, source, 0.005, 80, async_capacity_cluster=3)) for _ in range(2)]
    with server.client() as client:
        until(lambda: path.exists() and {one[0] for one in read(path)} == set(children))
        # Both of them still run: a worker that has ended would be waited for.
        while len(path.read_text().splitlines()) < 300:
            client.flushall()
            emptied += 1
            done = len(path.read_text().splitlines())
            until(lambda done=done: len(path.read_text().splitlines()) >= done + 5)
    assert [os.waitpid(one, 0)[1] for one in children] == [0, 0]
    assert len(read(path)) == 640
    assert emptied > 5
    assert most_at_once(read(path)) <= 3


@pytest.mark.slow
def test_while_the_server_is_away_each_process_keeps_to_its_share(tmp_path):
    path, rate = tmp_path / "log", 100
    server = RedisServer().start()
    try:
        options = {"rate_limit": rate, "rate_limit_scope": "cluster", "async_capacity_cluster": 4,
                   "store_timeout": "50 ms"}  # fmt: skip
        children = [_fork(lambda: make_calls(server, path, "shared", 0.001, 35, **options)) for _ in range(2)]
        until(lambda: path.exists() and {one[0] for one in read(path)} == set(children))
        server.stop()
        stopped = time.monotonic()
        until(lambda: all(sum(at > stopped and p == one for p, at, _ in read(path)) > 15 for one in children))
        server.go_on()
        assert [os.waitpid(one, 0)[1] for one in children] == [0, 0]
    finally:
        server.close()
    calls = read(path)
    assert len(calls) == 280
    # Half of the rate each, and what was granted before.
    first = calls[0][1]
    assert all(
        at >= first + (number - 2 * rate * HORIZON_SECONDS - 4) / rate for number, (_, at, _) in enumerate(calls)
    )


# ── in one process ───────────────────────────────────────────────────────────────────────────────────────


def test_a_permit_that_nobody_waits_for_any_more_is_given_back(server):
    limits = StoredLimits(config_of(server, async_capacity_cluster=1), next(_sources), Counters(), "test")
    queue, slots = limits._slots.queue, limits._slots
    held = queue.add(time.monotonic() + 60).result()
    waiting, late = queue.add(time.monotonic() + 60), queue.add(time.monotonic() + 0.02)
    assert not late.result().is_granted
    assert waiting.cancel()
    slots.leave(held)
    again = queue.add(time.monotonic() + 60).result()
    assert again.is_granted
    slots.leave(again)
    limits.close()
    assert (slots._held, slots.queue._has_thread) == ({}, False)


def test_a_time_that_is_later_than_a_call_can_wait_is_refused_at_once(server):
    limits = StoredLimits(
        config_of(server, rate_limit=2, rate_limit_scope="cluster"), next(_sources), Counters(), "test"
    )
    queue = limits._rate.queue
    assert queue.add(time.monotonic() + 60).result().is_granted
    late = queue.add(time.monotonic() + 0.2).result()
    assert (late.is_granted, late.seconds > 0.2) == (False, True)
    # The time of the call that was refused is the next one's.
    assert 0 < queue.add(time.monotonic() + 60).result().seconds <= 1
    limits.close()


def test_the_end_of_a_lease_is_said_again_if_the_server_did_not_hear_it(server):
    source = next(_sources)
    config, limits = config_of(server, async_capacity_cluster=1), new_limits(server, source)
    heard, fails = [], [False, True, False]

    class Deaf:
        def take_leases(self, wanted, capacity, seconds, member, ended, held):
            heard.append(list(ended))
            if fails.pop(0):
                raise TimeoutError
            return limits.take_leases(wanted, capacity, seconds, member, ended, held)

    slots = _Slots(config, Deaf(), Guard(Counters(), "failures", "Test", str))
    slots.queue.wake = lambda: None
    first = _Waiting(math.inf)
    slots._serve([first])
    name = first.future.result(0).name
    slots.leave(first.future.result(0))
    assert slots._serve([]) is not None
    assert slots._serve([]) is None
    assert heard == [[], [name], [name]]
    assert limits.take_leases([b"another"], 1, 5, b"m") == (1, 2)
    limits.close()


def test_what_fails_in_the_thread_reaches_the_callers(server, monkeypatch):
    limits = StoredLimits(config_of(server, async_capacity_cluster=1), next(_sources), Counters(), "test")
    monkeypatch.setattr(limits._slots, "_exchange", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        limits._slots.queue.add(time.monotonic() + 60).result()
    limits.close()
