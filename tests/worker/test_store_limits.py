"""Limits for the whole cluster on every path by which calls are made: in threads, on a loop, in joins and `cached`."""

from __future__ import annotations

import asyncio
import time

import pytest
from servers import RedisServer
from test_lookup import Names, all_names, batch, runner

from lookupcache import LookupConfig, LookupTimeoutError, cached


@pytest.fixture(scope="module")
def server(redis_server):
    return redis_server


def options(server, **others):
    return {"cache": "LRU", "store": server.url, "store_timeout": 10, **others}


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


def test_a_call_without_a_permit_in_time_names_the_limit(server):
    slow = runner(Names(), **options(server, rate_limit=0.01, rate_limit_scope="cluster", timeout="1 s", max_rows=3))
    all_names(slow, batch(101))
    with pytest.raises(LookupTimeoutError, match=r"at 0\.01 calls per second(?s:.*)'lookup\.rate-limit'"):
        all_names(slow, batch(102))
    slow.lookup.disconnect()


@pytest.mark.parametrize("is_async", [True, False])
def test_cached_keeps_to_the_rate_of_the_cluster(server, is_async):
    """Two decorated copies of the function stand for two hosts."""
    config = LookupConfig(**options(server, rate_limit=100, rate_limit_scope="cluster", async_=True,
                                    store_name=f"rate{is_async}"))  # fmt: skip

    async def later(key):
        return key

    one, other = (cached(config)(later if is_async else lambda key: key) for _ in range(2))
    began = time.monotonic()

    async def both():
        found = await asyncio.gather(*(function(key) for key in range(8) for function in (one, other)))
        await one.close(), await other.close()
        return found

    if is_async:
        assert asyncio.run(both()) == [key for key in range(8) for _ in range(2)]
    else:
        assert [function(key) for function in (one, other) for key in range(8)] == [*range(8), *range(8)]
        one.close(), other.close()
    metrics = one.metrics() + other.metrics()
    assert time.monotonic() - began >= (metrics.calls - 1) / 100
    assert metrics.cluster_limit_failures == 0
    if is_async:  # On a busy machine, calls one after the other may be slower than the limit.
        assert metrics.throttled_seconds > 0


def test_without_the_server_each_keeps_to_its_share(server):
    one = RedisServer()  # It is not started.
    source = Names()
    config = {"cache": "LRU", "store": one.url, "rate_limit": 1_000, "rate_limit_scope": "cluster",
              "batch_max_size": 1}  # fmt: skip
    join = runner(source, **config)
    assert all_names(join, batch(1, 2, 3, 4)) == ["n1", "n2", "n3", "n4"]
    assert join.lookup.counters["cluster_limit_failures"] >= 2
    join.lookup.disconnect()
    one.close()
