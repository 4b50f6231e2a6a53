"""Limits for the whole cluster on every path by which calls are made: in threads, on a loop, in joins and `cached`."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from servers import RedisServer
from test_lookup import Names, all_names, batch, runner

from lookupcache import LookupConfig, LookupFailedError, LookupTimeoutError, cached
from lookupcache.store.redis_limits import RedisLimits


@pytest.fixture(scope="module")
def server(redis_server):
    return redis_server


class Busy:
    """Counts how many calls are under way at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.lock = threading.Lock()

    def change(self, by: int) -> None:
        with self.lock:
            self.now += by
            self.most = max(self.most, self.now)

    def call(self, key):
        self.change(1)
        time.sleep(0.003)
        self.change(-1)
        return key

    async def call_async(self, key):
        self.change(1)
        await asyncio.sleep(0.003)
        self.change(-1)
        return key


def options(server, **others):
    return {"cache": "LRU", "store": server.url, "store_timeout": 10, **others}


@pytest.mark.parametrize("is_async", [True, False])
def test_cached_keeps_to_the_capacity_of_the_cluster(server, is_async):
    """Two decorated copies of the function stand for two hosts."""
    busy = Busy()
    config = LookupConfig(**options(server, async_=True, async_capacity_cluster=2, store_name=f"busy{is_async}"))
    one, other = (cached(config)(busy.call_async if is_async else busy.call) for _ in range(2))

    async def both():
        calls = [function(key) for key in range(8) for function in (one, other)]
        found = await asyncio.gather(*calls)
        await one.close(), await other.close()
        return found

    if is_async:
        assert asyncio.run(both()) == [key for key in range(8) for _ in range(2)]
    else:
        threads = [threading.Thread(target=f, args=(key,)) for key in range(8) for f in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one.close(), other.close()
    assert busy.most <= 2
    metrics = one.metrics() + other.metrics()
    assert metrics.cluster_waits > 0
    assert metrics.cluster_wait_seconds > 0
    assert metrics.cluster_limit_failures == 0


def test_joins_of_two_workers_share_one_rate(server):
    sources = Names(), Names()
    config = options(server, rate_limit=50, rate_limit_scope="cluster", batch_max_size=1)
    began = time.monotonic()
    joins = [runner(source, **config) for source in sources]
    for number, join in enumerate(joins):
        keys = range(10 * number, 10 * number + 5)
        assert all_names(join, batch(*keys)) == [f"n{key}" for key in keys]
    assert time.monotonic() - began >= 9 / 50
    assert sum(join.lookup.counters["throttled_seconds"] for join in joins) > 0
    for join in joins:
        join.lookup.disconnect()


def test_a_call_without_a_permit_before_its_timeout_says_which_limit_it_is(server):
    slow = runner(Names(), **options(server, rate_limit=0.01, rate_limit_scope="cluster", timeout="1 s", max_rows=3))
    all_names(slow, batch(101))
    with pytest.raises(LookupTimeoutError, match=r"at 0\.01 calls per second(?s:.*)'lookup\.rate-limit'"):
        all_names(slow, batch(102))
    slow.lookup.disconnect()
    full = runner(Names(), **options(server, async_capacity_cluster=1, timeout="100 ms", max_retries=0))
    other = RedisLimits(server.url, 10, full.plan.source)
    assert other.take_leases([b"held"], 1, 60, b"other")[0] == 1
    with pytest.raises((LookupTimeoutError, LookupFailedError), match=r"(?s)capacity\.cluster|did not answer"):
        all_names(full, batch(103))
    other.take_leases([], 1, 60, b"other", [b"held"])
    assert all_names(full, batch(103)) == ["n103"]
    full.lookup.disconnect()
    other.close()


def test_a_cancelled_call_gives_its_slot_back(server):
    busy = Busy()
    config = LookupConfig(**options(server, async_capacity_cluster=1, store_name="cancelled"))
    function = cached(config)(busy.call_async)

    async def work():
        first = [asyncio.create_task(function(key)) for key in range(3)]
        await asyncio.sleep(0)
        await function.close()  # It cancels calls that wait, and the one that is under way.
        await asyncio.gather(*first, return_exceptions=True)
        assert await asyncio.wait_for(function(9), 30) == 9
        await function.close()

    asyncio.run(work())


def test_without_the_server_each_keeps_to_its_share(server):
    one = RedisServer()  # It is not started.
    source = Names()
    config = {"cache": "LRU", "store": one.url, "rate_limit": 1_000, "rate_limit_scope": "cluster",
              "async_capacity_cluster": 2, "batch_max_size": 1}  # fmt: skip
    join = runner(source, **config)
    assert all_names(join, batch(1, 2, 3, 4)) == ["n1", "n2", "n3", "n4"]
    assert join.lookup.counters["cluster_limit_failures"] >= 2
    join.lookup.disconnect()
    one.close()
