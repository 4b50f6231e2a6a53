"""The store in a cluster, and behind sentinels whose server is lost."""

from __future__ import annotations

import pytest
from servers import RedisCluster, RedisSentinel, until

from lookupcache import LookupConfig, cached
from lookupcache.store import open_store
from lookupcache.store.contract import OTHERS, OWN

pytestmark = pytest.mark.slow


def doubled(number):
    return [number, number * 2]


def new_functions(url):
    """Return the function as two processes decorate it."""
    return [cached(LookupConfig(cache="LRU", store=url, store_timeout=10))(doubled) for _ in range(2)]


def test_a_cluster():
    servers = RedisCluster()
    try:
        servers.start()
        one, other = new_functions(servers.url)
        for number in range(20):
            assert one(number) == other(number) == [number, 2 * number]
        metrics = other.metrics()
        assert (metrics.store_hits, metrics.requested_keys, metrics.store_failures) == (20, 0, 0)
        assert one.invalidate(3)
        store = open_store(servers.url, 10)
        assert [content.entries for content in store.contents()] == [19]
        names = [b"lookupcache:1:x:{%d}" % number for number in range(9)]
        mine, yours, again = b"mine" + bytes(8), b"yours" + bytes(8), b"mine" + b"\1" * 8
        assert store.claim(names, mine, 60)[0] == [True] * 9
        store.renew(names[:3], yours, 60)
        assert store.claim(names, yours, 60)[0] == [OTHERS] * 9
        assert store.claim(names, again, 60)[0] == [OWN] * 9
        assert store.put(names[:5], [b"entry"] * 5, [60.0] * 5, again) == 0
        assert store.put(names[:5], [b"entry"] * 5, [60.0] * 5, yours) == 0
        assert store.put(names[:5], [b"entry"] * 5, [60.0] * 5, mine) == 5
        store.release(names, mine)
        states, reading = store.claim(names, yours, 60)
        assert (states, reading.entries) == ([True] * 9, [b"entry"] * 5 + [None] * 4)
        assert store.clear("x") == 5
        assert store.clear() == 19
        assert store.contents() == []
        store.close()
        one.close(), other.close()
    finally:
        servers.close()


def test_sentinels_name_another_server():
    servers = RedisSentinel()
    try:
        servers.start()
        one, _ = new_functions(servers.url)
        assert one(1) == [1, 2]
        with servers.replica.client() as replica:
            until(lambda: list(replica.scan_iter("*}")))
            servers.master.kill()
            assert one(2) == [2, 4]
        assert one.metrics().store_failures

        def is_found() -> bool:
            _, other = new_functions(servers.url)
            assert other(1) == [1, 2]
            other.close()
            return other.metrics().store_hits == 1

        until(is_found)
        one.close()
    finally:
        servers.close()
