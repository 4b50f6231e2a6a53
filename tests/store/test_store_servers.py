"""The store in a cluster, on a server that does not answer, and behind sentinels whose server is lost."""

from __future__ import annotations

import itertools
import math
import threading
import time

import numpy as np
import pytest
from servers import RedisCluster, RedisSentinel, RedisServer, TlsRelay, until
from time_limit import LIMIT

from lookupcache import LookupConfig, cached
from lookupcache.metrics import Counters
from lookupcache.store import open_store
from lookupcache.store.contract import CLAIMED, OTHERS, OWN, THERE
from lookupcache.store.guard import GuardedStore

pytestmark = pytest.mark.slow


def doubled(number):
    return [number, number * 2]


def new_functions(url):
    """Return the function as two processes decorate it."""
    return [cached(LookupConfig(cache="LRU", store=url, store_timeout=10))(doubled) for _ in range(2)]


@pytest.fixture(scope="module")
def started():
    servers = RedisCluster()
    try:
        yield servers.start()
    finally:
        servers.close()


@pytest.fixture
def servers(started):
    """Return an empty cluster."""
    store = open_store(started.url, 10)
    store.clear()
    store.close()
    return started


@pytest.mark.extended
def test_a_cluster(servers):
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
    store.release(names, yours)
    with servers.client() as client:
        client.rpush(names[8], "garbage")
        assert store.get(names).entries == [b"entry"] * 5 + [None] * 4
        client.delete(names[8])
    states, reading = store.claim_missing(names, again, 60)
    assert (states, reading.entries) == ([THERE] * 5 + [CLAIMED] * 4, [b"entry"] * 5 + [None] * 4)
    assert store.clear("x") == 5
    assert store.clear() == 19
    assert store.contents() == []
    store.close()
    one.close(), other.close()


def calls_of_scripts(servers):
    """Return how many scripts each server has run."""
    found = []
    for server in servers.servers:
        with server.client() as client:
            found.append(client.info("commandstats").get("cmdstat_eval", {"calls": 0})["calls"])
    return np.array(found)


NAMES = [b"lookupcache:1:x:{%d}" % number for number in range(300)]


def test_each_server_of_a_cluster_runs_one_script_for_its_names(servers):
    store, token, before = open_store(servers.url, 10), b"mine" + bytes(8), calls_of_scripts(servers)
    assert store.claim_missing(NAMES, token, 60)[0] == [CLAIMED] * 300
    store.renew(NAMES, token, 60)
    assert (
        store.put(NAMES, [name * 2 for name in NAMES], [60.0 if at % 2 else math.inf for at in range(300)], token)
        == 300
    )
    assert store.get(NAMES).entries == [name * 2 for name in NAMES]
    store.release(NAMES, token)
    store.invalidate(NAMES[::2])
    # Entries with an expiry are written apart from those without one.
    assert (calls_of_scripts(servers) - before).tolist() == [7] * 3
    assert store.get(NAMES).entries == [name * 2 if at % 2 else None for at, name in enumerate(NAMES)]
    store.close()


@pytest.mark.extended
def test_names_are_read_one_by_one_while_a_slot_moves(servers):
    """A server refuses a script for several slots then, where a name has left for another server."""
    store, token = open_store(servers.url, 10), b"mine" + bytes(8)
    with servers.client() as client:
        source = client.get_node_from_key(NAMES[-1])
        target = next(node for node in client.get_primaries() if node != source)
        ids = {node: client.execute_command("CLUSTER MYID", target_nodes=node).decode() for node in (source, target)}
        slot = client.keyslot(NAMES[-1])
        others = [name for name in NAMES if client.keyslot(name) != slot]
        client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source], target_nodes=target)
        client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target], target_nodes=source)
        try:
            assert store.get(NAMES).entries == [None] * 300
            before = calls_of_scripts(servers).sum()
            assert store.claim_missing(others, token, 60)[0] == [CLAIMED] * len(others)
            assert calls_of_scripts(servers).sum() - before == len(others)
        finally:
            for node in (target, source):
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target], target_nodes=node)
    store.close()


def test_a_suspended_server_of_a_cluster_is_waited_for_briefly(servers):
    store = open_store(servers.url, 2)
    assert store.get(NAMES).entries == [None] * 300
    servers.servers[2].stop()
    try:
        began = time.monotonic()
        with pytest.raises(Exception, match=r"(?i)time"):
            store.get(NAMES)
        assert time.monotonic() - began < 60  # Once for each name, it would be minutes.
    finally:
        servers.servers[2].go_on()
        store.close()


def test_a_slot_that_moves_while_keys_are_requested(servers):
    """The store is in the way of no lookup, and later ones find what was stored after the move."""
    one, other = new_functions(servers.url)
    moved, numbers = threading.Event(), itertools.count()

    def look_up() -> None:
        while not moved.is_set():
            number = next(numbers)
            assert one(number) == [number, 2 * number]

    threads = [threading.Thread(target=look_up) for _ in range(2)]
    for thread in threads:
        thread.start()
    with servers.client() as client:
        until(lambda: len(list(client.scan_iter("*}"))) > 50)
        name = next(client.scan_iter("*}"))
        slot = client.keyslot(name)
        servers.move(slot, client.get_node_from_key(name).port, [name])
    began = next(numbers)
    until(lambda: next(numbers) > began + 50)
    moved.set()
    for thread in threads:
        thread.join()
    assert all(other(number) == [number, 2 * number] for number in range(began))
    metrics = other.metrics()
    # Only what was written or read just then is missing; the number of each thread was skipped twice.
    assert metrics.store_hits >= 0.8 * began
    assert metrics.store_failures <= 1
    one.close(), other.close()


def test_over_tls(authority, monkeypatch):
    """The server's certificate is verified by the system's authorities, which here are those of a file."""
    server = RedisServer().start()
    relay = TlsRelay(server.port, authority / "server.pem")
    url = f"rediss://127.0.0.1:{relay.port}"
    try:
        untrusted, _ = new_functions(url)
        assert untrusted(1) == [1, 2]
        assert untrusted.metrics().store_failures
        monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
        one, other = new_functions(url)
        assert one(1) == other(1) == [1, 2]
        assert (other.metrics().store_hits, other.metrics().store_failures) == (1, 0)
        limited = cached(LookupConfig(cache="LRU", store=url, store_timeout=10, rate_limit=99,
                                      rate_limit_scope="cluster"))(doubled)  # fmt: skip
        assert limited(2) == [2, 4]
        assert limited.metrics().cluster_limit_failures == 0
        for function in (untrusted, one, other, limited):
            function.close()
    finally:
        relay.close()
        server.close()


@pytest.mark.parametrize("step", ["claim", "release"])
def test_claims_in_a_suspended_server_do_not_stay(monkeypatch, step):
    """It executes what it was sent when it goes on; or it was left alone, and sent nothing."""
    monkeypatch.setattr("lookupcache.store.guard.CLAIM_SECONDS", 1_000.0)
    server, names = RedisServer().start(), [b"lookupcache:1:x:{%d}" % number for number in range(3)]
    store = GuardedStore(open_store(server.url, 1), Counters(), "A test", str, 600.0, 1)
    try:
        before = store.claim(names) if step == "release" else store.get(names)
        assert before is not None
        server.stop()
        for _ in range(3):
            assert store.claim(names).reading is None
        if step == "release":
            store.release(names, before.token)
        server.go_on()
        with server.client() as client:
            until(lambda: client.info("commandstats").get("cmdstat_eval", {"calls": 0})["calls"] > 0)
            until(lambda: not client.exists(*[name + b"c" for name in names]))
    finally:
        store.close()
        server.close()


def test_an_answer_of_a_server_with_a_queue_is_waited_for():
    server, name = RedisServer().start(), [b"lookupcache:1:x:{0}"]
    brief, connected, new = (open_store(server.url, 1, most) for most in (None, LIMIT, LIMIT))
    try:
        assert brief.get(name).entries == connected.get(name).entries == [None]
        with server.client() as client:
            client.client_pause(5_000)  # It reads commands, and answers none.
        with pytest.raises(Exception, match="Timeout reading"):
            brief.get(name)
        assert connected.get(name).entries == new.get(name).entries == [None]
    finally:
        for store in (brief, connected, new):
            store.close()
        server.close()


@pytest.mark.extended
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
