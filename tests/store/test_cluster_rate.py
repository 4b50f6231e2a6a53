"""A rate for all workers of all hosts: what the server grants, processes that share it, and what they do without it."""

from __future__ import annotations

import heapq
import itertools
import json
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
from lookupcache.store import cluster_rate
from lookupcache.store.cluster_rate import HORIZON_SECONDS, StoredRate, _PermitRequest, open_rate
from lookupcache.store.guard import Guard
from lookupcache.store.redis_rate import RedisRate, Times

_sources = map("source {}".format, itertools.count())


@pytest.fixture(scope="module")
def server(redis_server):
    return redis_server


def new_rate(server, source) -> RedisRate:
    return RedisRate(server.url, 10, source)


def config_of(server, **options) -> LookupConfig:
    return LookupConfig(**{"cache": "LRU", "store": server.url, "store_timeout": 10, **options})


# ── what the server grants ───────────────────────────────────────────────────────────────────────────────


@settings(max_examples=examples(15), deadline=None)
@given(st.floats(1, 1e5), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=12))
@example(6.0, [(0, 7)])  # The seventh time is the horizon, but for the microseconds' fractions.
def test_times_are_as_far_apart_as_the_rate_says_whoever_asks(server, rate, requests):
    source, granted = next(_sources), 0
    members = [new_rate(server, source) for _ in range(3)]
    began = time.monotonic()
    for number, calls in requests:
        before = time.monotonic()
        took = members[number].take_times(calls, rate, HORIZON_SECONDS, b"%d" % number)
        after = time.monotonic()
        assert 0 <= took.granted <= calls
        assert took.granted == calls or took.free > HORIZON_SECONDS - 1e-5
        # The k-th time is never before the first and k intervals.
        assert after + took.first >= began + granted / rate - 1e-4
        granted += took.granted
        assert after + took.free >= began + granted / rate - 1e-4
        assert took.free <= max(after - before, 0) + granted / rate + 1e-4
    assert took.members == len({number for number, _ in requests})
    for one in members:
        one.close()


def test_a_lower_rate_of_before_does_not_hold_calls_up(server):
    limits = new_rate(server, next(_sources))
    assert limits.take_times(1, 1e-4, HORIZON_SECONDS, b"m").free > 1_000
    took = limits.take_times(2, 10, HORIZON_SECONDS, b"m")
    assert (took.granted, took.first) == (0, pytest.approx(HORIZON_SECONDS + 0.1, abs=1e-3))
    limits.close()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_changed_clock_neither_stops_nor_floods_calls(server, hours):
    """The names hold times of another clock, as after it was set."""
    source = next(_sources)
    limits = new_rate(server, source)
    assert limits.take_times(99, 10, HORIZON_SECONDS, b"m").granted == 11
    with server.client() as client:
        for field in ("free", "at"):
            client.hset(limits.names[0], field, f"{float(client.hget(limits.names[0], field)) - hours * 3.6e9:.0f}")
        took = limits.take_times(99, 10, HORIZON_SECONDS, b"m")
        assert took.granted == (0 if hours < 0 else 11)
        assert took.free <= 2.5
    limits.close()


def test_foreign_values_under_the_names_are_replaced_and_expire(server):
    limits = new_rate(server, next(_sources))
    with server.client() as client:
        for name in limits.names:
            client.rpush(name, "wrong")
        assert limits.take_times(1, 10, 1, b"m").granted == 1
        assert all(0 < client.pttl(name) <= 120_000 for name in limits.names)
    limits.close()


def test_a_store_that_is_no_server_is_refused():
    with pytest.raises(OptionError, match=r"'/data/store', which cannot count(?s:.*)'lookup\.rate-limit\.scope'"):
        open_rate("/data/store", 1, "x")


# ── simulated executors ──────────────────────────────────────────────────────────────────────────────────


class World:
    """A server and executors in simulated time; ``starts`` has when calls have started."""

    def __init__(self, rate: float, executors: int) -> None:
        self.now, self.shift, self.away = 1_000.0, 0.0, False
        self.rate, self.free, self.at = rate, 0.0, 0.0
        self.starts: list[tuple[float, int]] = []
        self.executors = [self._executor(number) for number in range(executors)]

    def _executor(self, number: int) -> StoredRate:
        config = LookupConfig(cache="LRU", store="redis://h", rate_limit=self.rate, rate_limit_scope="cluster")
        found = StoredRate(config, "s", Counters(), "x")
        found._server, found._guard = self, Guard(Counters(), "x", "x", str, lambda: self.now)
        found._guard._has_warned = True
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
        waiting = [[_PermitRequest(ends + 1e9) for _ in range(4)] for _ in self.executors]
        while queue and queue[0][0] < ends:
            self.now, kind, number, act = heapq.heappop(queue)
            if kind == 0:
                act(self)
                continue
            again = self.executors[number]._serve(waiting[number])
            for one in [one for one in waiting[number] if one.future.done()]:
                self.starts.append((self.now + one.future.result().seconds, number))
                waiting[number].remove(one)
                waiting[number].append(_PermitRequest(ends + 1e9))
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
        patch.setattr(cluster_rate.time, "monotonic", lambda: world.now)
        patch.setattr(cluster_rate.random, "uniform", random.Random(0).uniform)
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
    limits = StoredRate(config, source, Counters(), "test")
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


@pytest.mark.slow
def test_processes_keep_to_the_rate_also_after_one_is_killed(server, tmp_path):
    path, source, rate = tmp_path / "log", next(_sources), 200
    options = {"rate_limit": rate, "rate_limit_scope": "cluster"}
    began = time.monotonic()
    hanging = _fork(lambda: make_calls(server, path, source, 0.001, 10_000, **options))
    others = [_fork(lambda: make_calls(server, path, source, 0.005, 12, **options)) for _ in range(2)]
    until(lambda: path.exists() and {one[0] for one in read(path)} == {hanging, *others})
    os.kill(hanging, signal.SIGKILL)
    assert [os.waitpid(one, 0)[1] for one in (hanging, *others)] == [signal.SIGKILL, 0, 0]
    calls = read(path)
    assert sum(one[0] != hanging for one in calls) == 96
    assert all(at >= began + number / rate for number, (_, at, _) in enumerate(calls))


@pytest.mark.slow
def test_each_process_keeps_its_share_while_the_server_is_away(tmp_path):
    path, rate = tmp_path / "log", 100
    server = RedisServer().start()
    try:
        options = {"rate_limit": rate, "rate_limit_scope": "cluster", "store_timeout": "50 ms"}
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


def test_a_permit_beyond_the_deadline_is_refused_at_once(server):
    limits = StoredRate(config_of(server, rate_limit=2, rate_limit_scope="cluster"), next(_sources), Counters(), "test")
    queue = limits._queue
    assert queue.add(time.monotonic() + 60).result().is_granted
    late = queue.add(time.monotonic() + 0.2).result()
    assert (late.is_granted, late.seconds > 0.2) == (False, True)
    # The time of the call that was refused is the next one's.
    assert 0 < queue.add(time.monotonic() + 60).result().seconds <= 1
    limits.close()


def test_an_error_in_the_thread_reaches_the_callers(server, monkeypatch):
    limits = StoredRate(config_of(server, rate_limit=2, rate_limit_scope="cluster"), next(_sources), Counters(), "test")
    monkeypatch.setattr(limits._guard, "call", lambda make: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        limits._queue.add(time.monotonic() + 60).result()
    limits.close()
