"""Workers of several hosts with one store: one request per key, true ages, and what happens when the store fails."""

from __future__ import annotations

import dataclasses
import math
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from drawing import examples
from folder_stores import ClockedFolder
from host_processes import in_processes
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import URL, MemoryStore, separate_tokens
from servers import until
from test_host_lookup import Logged
from test_invalidation import ReportsChanges
from test_lookup import Feed, Gated, Names, all_names, batch, names, runner
from time_limit import LIMIT

from lookupcache import expr
from lookupcache.cache.keys import KeyBatch
from lookupcache.errors import ConnectorError, LookupFailedError, OptionError, SourceError, WrongRowsError
from lookupcache.flow.waiting import HOST_POLL_SECONDS
from lookupcache.plan import ConstantKey, FieldKey, LookupPlan
from lookupcache.store.answer_time import most_seconds
from lookupcache.store.names import identity_of
from lookupcache.table import LookupTable
from lookupcache.testing import FakeClock
from lookupcache.worker.host_lookup import HostCacheLookup
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source


@pytest.fixture(autouse=True)
def processes(monkeypatch):
    separate_tokens(monkeypatch)


@pytest.fixture
def server(redis_server):
    """Return an empty Redis server."""
    with redis_server.client() as client:
        client.flushall()
    redis_server.lookups = []
    yield redis_server
    for lookup in redis_server.lookups:
        lookup.disconnect()


@pytest.fixture
def memory(monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr("lookupcache.store.row_store.open_store", lambda *given: store)
    return store


def worker(source, server, **config) -> Runner:
    """Return a worker of a host of its own; it waits for a busy machine longer than by default."""
    join = runner(source, **{"store": server.url, "store_timeout": 10, **config})
    server.lookups.append(join.lookup)
    return join


def counts(join, *wanted) -> tuple[float, ...]:
    return tuple(join.lookup.counters[f"store_{name}"] for name in wanted)


def stored(server) -> list[bytes]:
    with server.client() as client:
        return sorted(name for name in client.scan_iter() if not name.endswith(b"about"))


def finish(lookup, pending) -> None:
    """Wait until a batch is ready, and close it."""
    while not pending.ready:
        lookup.wait()
    lookup.close(pending)


def ids(*values) -> KeyBatch:
    return KeyBatch.of([pa.array(values, pa.int64())], [pa.int64()])


# ── sharing ──────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_of_one_host_are_found_by_another(server):
    source = Names()
    one, two = worker(source, server), worker(source, server)
    assert all_names(one, batch(1, 2, 2_000, 1)) == ["n1", "n2", None, "n1"]
    assert all_names(two, batch(2, 2_000, 3, None)) == ["n2", None, "n3", None]
    assert source.requested == [[1, 2, 2_000], [3]]
    assert counts(two, "hits", "waits", "failures", "dropped", "unstored") == (2, 0, 0, 0, 0)
    assert two.lookup.counters["requested_keys"] == 1


def test_a_key_that_another_host_requests_is_awaited(server):
    source = Gated()
    one, two = worker(source, server, async_capacity=5), worker(source, server, async_capacity=5)
    pending = one.lookup.open(ids(1, 2))
    others = two.lookup.open(ids(2, 3))
    source.open_gates(1, 3)
    for lookup, waiting in ((one.lookup, pending), (two.lookup, others)):
        while not waiting.ready:
            lookup.wait()
        lookup.close(waiting)
        lookup.source.flush()
    assert sorted(source.requested) == [[1, 2], [3]]
    assert counts(two, "hits", "waits") == (1, 1)
    assert not any(name.endswith(b"c") for name in stored(server))


def test_two_lookups_of_one_process_do_not_wait_for_each_other(server, monkeypatch):
    """One thread serves both: while the second waited, nobody would read the answer of the first."""
    monkeypatch.setattr("lookupcache.store.guard.process_token", lambda process: b"one token")
    source = Gated()
    one, two = worker(source, server, async_capacity=5), worker(source, server, async_capacity=5, max_rows=7)
    pending = one.lookup.open(ids(1))
    source.open_gates(1)
    source.gates.clear()
    others = two.lookup.open(ids(1))
    source.open_gates(1)
    while not others.ready:
        two.lookup.wait()
    assert (source.requested, counts(two, "waits")) == ([[1], [1]], (0,))
    one.lookup.abandon([pending])
    two.lookup.close(others)


@pytest.mark.slow
def test_the_claim_of_a_dead_worker_lapses(server):
    source = Names()
    join = worker(source, server)
    with server.client() as client:
        [name] = join.lookup.source.store.names(ids(1))
        client.set(name + b"c", b"somebody who has died", px=1_000)
        assert all_names(join, batch(1, 2)) == ["n1", "n2"]
        assert counts(join, "waits") == (1,)
        assert sorted(source.requested) == [[1], [2]]


def test_the_wait_for_a_stuck_claim_leaves_time_for_a_call(server, monkeypatch):
    source = Names()
    lookup = worker(source, server).lookup
    with server.client() as client:
        [name] = lookup.source.store.names(ids(1))
        client.set(name + b"c", b"somebody who hangs")
        pending = lookup.open(ids(1))
        assert source.requested == []
        monkeypatch.setattr("lookupcache.flow.flow.time", SimpleNamespace(monotonic=lambda: math.inf))
        finish(lookup, pending)
        assert source.requested == [[1]]
        assert client.get(name) is None


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "lasts"])
@pytest.mark.parametrize(("timeout", "waits"), [(180, 175), (6, 3)])
def test_waiting_for_another_claim_and_calling_have_one_timeout(memory, monkeypatch, timeout, waits, ends):
    """Unless the claim lasts for longer than a call may take: who holds it has many calls, and the source may be well.

    What another process does not fetch in time is requested while there is time left for a call.
    """
    started = time.monotonic()
    clock = FakeClock(started)
    for module in ("flow.flow", "worker.store_source"):
        monkeypatch.setattr(f"lookupcache.{module}.time", SimpleNamespace(monotonic=clock))
    source = Gated()
    lookup = runner(source, store=URL, timeout=timeout).lookup
    executor = lookup.source.executor
    [name] = lookup.source.store.names(ids(1))
    memory.claims[name] = (b"another process, which hangs", math.inf)
    pending = lookup.open(ids(1, 2))
    [at_once] = executor._source_groups
    assert at_once.deadline == math.inf, "the timeout of a call begins when it has a slot"
    source.open_gates(2)
    until(lambda: lookup.poll() or not executor._source_groups)
    clock.now += waits - 1
    lookup.poll()
    assert not executor._source_groups
    if ends:
        del memory.claims[name]
    clock.now += 0.5 if ends else 1
    lookup.poll()
    [after_wait] = executor._source_groups
    assert after_wait.deadline == (started + timeout if ends else math.inf)
    source.open_gates(1)
    finish(lookup, pending)
    assert sorted(source.requested) == [[1], [2]]
    lookup.disconnect()
    if not ends:
        assert memory.claimed == [name], "it is still of the other process"


def test_a_call_after_waiting_for_a_claim_has_the_remaining_time(memory, tmp_path):
    source = Gated()
    one, two = (runner(source, store=URL, scope="host", cache_path=str(tmp_path)).lookup for _ in range(2))
    first, second = one.open(ids(1)), two.open(ids(1))
    [awaited] = two._awaited.values()
    source.open_gates(1)
    source.gates.clear()
    one.abandon([first])
    until(lambda: two.poll() or two._requests)
    assert [group.deadline for group in two.source.executor._source_groups] == [awaited.wait.until]
    source.open_gates(1)
    finish(two, second)
    for lookup in (one, two):
        lookup.disconnect()


def test_the_next_batch_is_claimed_while_all_slots_are_busy(memory):
    """So a slot that gets free does not wait for the store."""
    source, seen = Gated(), []
    join = runner(source, store=URL, async_capacity=1)
    first, second = join.lookup.source.store.names(ids(1, 2))
    feed = Feed(batch(1), batch(2), batch(3))

    def open_gates():
        until(lambda: len(memory.claims) == 2 and source.gates)
        seen.append((set(memory.claims), feed.taken, [*source.requested]))
        for key in (1, 2, 3):
            source.open_gates(key)

    opener = threading.Thread(target=open_gates)
    opener.start()
    assert all_names(join, feed) == ["n1", "n2", "n3"]
    opener.join()
    assert seen == [({first, second}, 2, [[1]])]
    assert source.most == 1
    join.lookup.disconnect()


@pytest.mark.slow
def test_processes_of_two_hosts_request_each_key_once(server, tmp_path):
    """Each host has a cache of its own; several batches are open at a time."""

    def work(number):
        draw = random.Random(number)
        host = {"scope": "host", "cache_path": str(tmp_path / f"host{number % 2}")}
        join = worker(Logged(tmp_path / "log"), server, max_rows=10_000, **host)
        assert isinstance(join.lookup, HostCacheLookup)
        keys = [draw.sample(range(1_200), 100) for _ in range(15)]
        expected = [[f"n{key}" if key < 1_000 else None for key in part] for part in keys]
        assert [names(one) for one in join.run(batch(*part) for part in keys)] == expected
        join.lookup.disconnect()

    in_processes(4, work)
    requested = Counter((tmp_path / "log").read_text().split())
    assert len(requested) > 900
    assert max(requested.values()) == 1


def test_a_host_publishes_what_came_from_the_store(server, tmp_path):
    source = Names()
    hosts = [{"scope": "host", "cache_path": str(tmp_path / name)} for name in ("one", "two", "two")]
    one, two, three = (worker(source, server, **host) for host in hosts)
    assert all_names(one, batch(1, 2)) == ["n1", "n2"]
    assert all_names(two, batch(1, 2, 3)) == ["n1", "n2", "n3"]
    assert all_names(three, batch(1, 2, 3)) == ["n1", "n2", "n3"]
    assert source.requested == [[1, 2], [3]]
    assert (three.lookup.counters["host_hits"], counts(three, "hits")) == (3, (0,))
    for join in (one, two, three):
        join.lookup.disconnect()


def test_a_wait_for_a_worker_of_the_host_uses_no_processor(memory, tmp_path):
    source, host = Gated(), {"store": URL, "scope": "host", "cache_path": str(tmp_path)}
    one, two = (runner(source, **host).lookup for _ in range(2))
    first, second = one.open(ids(1)), two.open(ids(1))
    began = time.monotonic()
    for _ in range(10):
        two.wait()
    assert time.monotonic() - began >= 10 * HOST_POLL_SECONDS
    source.open_gates(1)
    finish(one, first)
    finish(two, second)
    assert source.requested == [[1]]
    one.disconnect()
    two.disconnect()


def test_a_worker_waiting_for_its_store_keeps_its_host_claims(memory, tmp_path, monkeypatch):
    source, host = Names(), {"store": URL, "scope": "host", "cache_path": str(tmp_path)}
    now, batches, claim = [1_000.0], [], memory.claim_missing
    monkeypatch.setattr("lookupcache.host.host_cache.host_now", lambda: now[0])
    one, two = (runner(source, **host).lookup for _ in range(2))

    def claim_slowly(*given):
        now[0] += most_seconds(one.source.plan.config)
        batches.append(two.open(ids(1)))
        two.poll()
        return claim(*given)

    monkeypatch.setattr(memory, "claim_missing", claim_slowly)
    one.source.store.finds_most = False
    one.close(one.find(ids(1)))
    finish(two, *batches)
    assert source.requested == [[1]]
    assert two.impatient_until < time.monotonic()
    one.disconnect()
    two.disconnect()


def test_fetched_keys_are_stored_while_others_are_awaited(server):
    """Else two hosts that have fetched what the other one waits for would wait until the timeout."""
    source = Gated()
    join = worker(source, server, async_capacity=5)
    fetched, awaited = join.lookup.source.store.names(ids(1, 2))
    with server.client() as client:
        client.set(awaited + b"c", b"another host")
        pending = join.lookup.open(ids(1, 2))
        source.open_gates(1)
        until(lambda: join.lookup.poll() or client.exists(fetched))
        assert not pending.ready
        client.delete(awaited + b"c")
    until(lambda: join.lookup.poll() or 2 in source.gates)
    source.open_gates(2)
    while not pending.ready:
        join.lookup.wait()
    join.lookup.close(pending)
    assert source.requested == [[1], [2]]


def test_a_call_that_is_not_full_waits_for_more_keys(server):
    source = Names()
    join = worker(source, server, batch_max_size=3, batch_max_delay="1 h")
    assert all_names(join, [batch(1), batch(2), batch(3), batch(4)]) == ["n1", "n2", "n3", "n4"]
    assert source.requested == [[1, 2, 3], [4]]


@pytest.mark.parametrize("ending", [b"c", b""])
def test_a_list_under_the_name_of_a_claim_or_an_entry_is_neither(server, ending):
    source = Names()
    join = worker(source, server)
    with server.client() as client:
        client.rpush(join.lookup.source.store.names(ids(1))[0] + ending, "wrong")
    assert all_names(join, batch(1, 2)) == ["n1", "n2"]
    assert all_names(worker(source, server), batch(1, 2)) == ["n1", "n2"]
    assert source.requested == [[1, 2]]
    assert counts(join, "failures", "unstored") == (0, 0)


def test_a_server_that_fills_up_after_a_claim_keeps_no_claim(server):
    """Others would wait for it until it lapses."""

    class Fills(Names):
        def lookup(self, request, keys):
            with server.client() as client:
                assert [name for name in client.keys("lookupcache:1:*") if name.endswith(b"}c")]
                client.config_set("maxmemory", "1")
            return super().lookup(request, keys)

    join = worker(Fills(), server)
    try:
        assert all_names(join, batch(1, 2)) == ["n1", "n2"]
        join.lookup.source.flush()
        with server.client() as client:
            assert [name for name in client.keys("lookupcache:1:*") if not name.endswith(b":about")] == []
    finally:
        with server.client() as client:
            client.config_set("maxmemory", "0")
    assert counts(join, "failures", "unstored") == (0, 2)


def test_a_batch_of_new_keys_takes_one_round_trip(server):
    """Its rows are written in the background."""
    source = Names()
    join = worker(source, server)
    all_names(join, batch(99))  # Connects, and writes what describes the identity.
    with server.client() as client:
        before = client.info("commandstats")["cmdstat_eval"]["calls"]
        pending = join.lookup.open(ids(1, 2, 3))
        while not pending.ready:
            join.lookup.wait()
        join.lookup.close(pending)
        join.lookup.source.flush()
        assert client.info("commandstats")["cmdstat_eval"]["calls"] - before == 2
    assert len(stored(server)) == 4


def test_a_lookup_waits_for_unwritten_rows_of_its_own_process(memory, monkeypatch):
    """It would take the claim for one of its own thread, and request the key again."""
    monkeypatch.setattr("lookupcache.store.guard.process_token", lambda process: b"one process")
    gate, put = threading.Event(), memory.put
    monkeypatch.setattr(memory, "put", lambda *given: (gate.wait(LIMIT), put(*given))[1])
    source = Names()
    one, two = (runner(source, FakeClock(5.0), store=URL, store_timeout=60, max_rows=most) for most in (5, 6))
    pending = one.lookup.open(ids(1))
    while not pending.ready:
        one.lookup.wait()
    one.lookup.close(pending)
    assert memory.entries == {}
    threading.Timer(0.02, gate.set).start()
    assert all_names(two, batch(1)) == ["n1"]
    assert source.requested == [[1]]
    for join in (one, two):
        join.lookup.disconnect()


# ── identity ─────────────────────────────────────────────────────────────────────────────────────────────


def test_options_of_the_cache_are_not_in_the_identity(server):
    source = Names()
    identities = [
        worker(source, server, **config).lookup.source.store.identity
        for config in ({}, {"max_rows": 5}, {"cache": "TTL", "expire_after_write": 60}, {"store_name": "mine"})
    ]
    assert identities[:3] == [identities[0]] * 3
    assert identities[3] == "mine"


def test_the_identity_has_all_that_determines_the_rows_of_a_key(server):
    plan = worker(Names(), server).plan
    column = expr.Column("r", "name", pa.string())
    filters = [(expr.Call("=", (column, expr.Literal(value, pa.string()))),) for value in ("n1", "n2")]
    narrow = pa.schema([("id", pa.int32()), ("name", pa.string())])
    wide = pa.schema([("id", pa.int64()), ("name", pa.string()), ("other", pa.string())])
    changes = [
        {}, {"source": "other options"}, {"connector": "other"}, {"schema": narrow}, {"columns": ()},
        {"schema": wide, "columns": ("name", "other")}, {"schema": wide, "columns": ("other",)},
        *({stage: filter_} for stage in ("pushed", "calc") for filter_ in filters),
        *({"constants": (ConstantKey(column="name", value=expr.Literal(value, pa.string())),)} for value in "ab"),
    ]  # fmt: skip
    assert len({identity_of(dataclasses.replace(plan, **change)) for change in changes}) == len(changes)
    both = [one for filter_ in filters for one in filter_]
    for stage in ("pushed", "calc"):
        spelled = [dataclasses.replace(plan, **{stage: tuple(some)}) for some in (both, both[::-1])]
        assert len({(identity_of(one), one.fingerprint) for one in spelled}) == 1


def minus(x, y):
    return [(x, y, x - y, "third", "fourth")]


def test_how_a_function_is_called_is_part_of_the_identity(server):
    """The same function, of the same columns: the order of its key is another, or that of the columns of its tuples."""

    def difference(key, *columns):
        ddl = ", ".join(["x BIGINT", "y BIGINT", "d BIGINT", *(f"{name} STRING" for name in columns)])
        options = {"lookup.cache": "LRU", "lookup.cache.store": server.url, "lookup.cache.store.timeout": "10 s"}
        table = LookupTable.from_function("t", ddl, key=key, function=minus, options=options)
        keys = tuple(FieldKey(column=name, sql=f"l.{name}") for name in "xy")
        plan = LookupPlan(table="t", connector="function", source=table.source, schema=table.schema, how="left",
                          keys=keys, columns=("d", "a"), config=table.config)  # fmt: skip
        join = Runner(plan, Layout(("x", "y"), (0, 1)), lookup_of(Source(plan, table.connector)))
        server.lookups.append(join.lookup)
        [joined] = join.run([pa.record_batch({"x": [5], "y": [3]})])
        join.lookup.source.flush()
        return [column[0].as_py() for column in joined.columns[2:]], plan.fingerprint

    found = [difference(["x", "y"], "a", "b"), difference(["y", "x"], "a", "b"), difference(["x", "y"], "b", "a")]
    assert [rows for rows, _ in found] == [[2, "third"], [None, None], [2, "fourth"]]
    assert len({fingerprint for _, fingerprint in found}) == 3


@pytest.mark.parametrize("kind", ["store", "host"])
def test_the_identity_has_values_of_references_but_no_secrets(server, monkeypatch, tmp_path, kind):
    """Two environments of one job share a store, or a host's folder, but no rows; a new password is no other source."""

    class Named(Names):
        def lookup(self, request, keys):
            self.name = f"{self.settings['url']} "
            return super().lookup(request, keys)

    def found(url, password, **options):
        monkeypatch.setenv("SHOP_URL", url)
        monkeypatch.setenv("SHOP_PASSWORD", password)
        source = Named()
        source.settings = {"url": "env:SHOP_URL", "password": "env:SHOP_PASSWORD", **options}
        if kind == "store":
            return all_names(worker(source, server), batch(1)), source.requested
        join = runner(source, scope="host", cache_path=str(tmp_path))
        server.lookups.append(join.lookup)
        return all_names(join, batch(1)), source.requested

    assert found("db://ann:kx7@one", "a") == (["db://ann:kx7@one 1"], [[1]])
    assert found("db://ann:kx7@two", "a") == (["db://ann:kx7@two 1"], [[1]])
    assert found("db://ann:kx8@one", "b") == (["db://ann:kx7@one 1"], [])
    with pytest.raises(ConnectorError, match="NO_SUCH"):
        found("db://one", "a", schema="env:NO_SUCH")


def test_a_pinned_name_is_refused_where_it_would_mix_schemas(server):
    all_names(worker(Names(), server, store_name="mine"), batch(1))
    other = worker(Names(), server, store_name="mine")
    plan = other.plan
    changed = pa.schema([("id", pa.int64()), ("name", pa.binary())])
    with pytest.raises(OptionError, match="named 'mine' have other columns"):
        all_names(_with_plan(other, schema=changed), batch(1))
    assert plan.schema != changed


def _with_plan(join: Runner, **fields) -> Runner:
    plan = dataclasses.replace(join.plan, **fields)
    return Runner(plan, Layout(("id",), (0,)), lookup_of(Source(plan, join.lookup.source.connector)))


def test_a_reference_to_the_store_is_read_in_the_worker(server, monkeypatch):
    with pytest.raises(ConnectorError, match=r"'lookup.cache.store' is 'env:NO_STORE', which is not set"):
        runner(Names(), store="env:NO_STORE")
    monkeypatch.setenv("MY_STORE", server.url)
    all_names(runner(Names(), store="env:MY_STORE", store_timeout=10), batch(1))
    assert len(stored(server)) == 1


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_error_of_the_source_is_not_stored_and_ends_the_claim(server):
    source = Names()
    source.down = True
    join = worker(source, server, on_error="null", error_column="problem")
    assert all_names(join, batch(1, 2)) == [None, None]
    assert stored(server) == []
    with pytest.raises(LookupFailedError):
        all_names(worker(source, server), batch(1, 2))
    assert stored(server) == []
    source.down = False
    assert all_names(worker(source, server), batch(1, 2)) == ["n1", "n2"]


def test_stopping_early_ends_the_claims(server):
    source = Gated()
    join = worker(source, server, async_capacity=4)
    joined = join.run([batch(1), batch(2)])
    pending = join.lookup.open(ids(1))
    assert len(stored(server)) == 1
    join.lookup.abandon([pending])
    assert (stored(server), join.lookup.in_flight) == ([], 0)
    joined.close()


def test_without_a_server_lookups_go_on_and_find_it_again(memory):
    source = Names()
    join = runner(source, FakeClock(5.0), store=URL)
    memory.error = ConnectionError("no route")
    assert all_names(join, [batch(key) for key in range(10)]) == [f"n{key}" for key in range(10)]
    assert counts(join, "failures", "hits", "unstored") == (3, 0, 0)  # then its own breaker is open
    memory.error = None
    assert all_names(runner(source, FakeClock(5.0), store=URL), batch(20)) == ["n20"]
    assert all_names(runner(source, FakeClock(7.0), store=URL), batch(20)) == ["n20"]
    assert len(source.requested) == 11


@pytest.mark.extended
@pytest.mark.parametrize("finds_most", [True, False])
def test_a_damaged_entry_counts_once_however_often_it_is_read(memory, finds_most):
    source = Names()
    all_names(runner(source, FakeClock(5.0), store=URL), batch(1, 2, 3))
    memory.spoil()
    join = runner(source, FakeClock(7.0), store=URL)
    store = join.lookup.source.store
    store.finds_most = finds_most
    _, _, name = store.names(ids(1, 2, 3))
    memory.claims[name] = (b"another process", math.inf)
    pending = join.lookup.open(ids(1, 2, 3))
    [request] = join.lookup.source.executor._requests.values()
    until(lambda: join.lookup.poll() or request.wake < math.inf)
    for _ in range(3):
        request.wake = 0.0
        join.lookup.poll()
    memory.claims.pop(name)
    request.wake = 0.0
    finish(join.lookup, pending)
    assert counts(join, "dropped", "hits") == (3, 0)
    assert source.requested == [[1, 2, 3], [1, 2], [3]]


def fault_killed(server, client):
    server.kill()


def fault_paused(server, client):
    server.stop()


def fault_flushed(server, client):
    client.flushall()


def fault_garbage(server, client):
    for number, name in enumerate(client.scan_iter("*}")):
        client.set(name, bytes(number % 50) + b"garbage")


def fault_full(server, client):
    client.config_set("maxmemory", "1")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault_killed, fault_paused, fault_flushed, fault_garbage, fault_full])
def test_rows_are_right_whatever_happens_to_the_server(server, fault):
    """It happens while the first keys are requested; then to a worker that finds their entries, or does not."""

    class Faulty(Names):
        done = False

        def lookup(self, request, keys):
            if not self.done:
                self.done = True
                fault(server, client)
            return super().lookup(request, keys)

    with server.client() as client:
        try:
            all_names(worker(Names(), server, store_name="mine"), batch(100, 101))
            join = worker(Faulty(), server, store_name="mine", store_timeout="100 ms", timeout=6)
            assert all_names(join, [batch(1, 2, 100, 2_000), batch(1, 3, 101)]) == [
                "n1", "n2", "n100", None, "n1", "n3", "n101",
            ]  # fmt: skip
            after = worker(Names(), server, store_name="mine", store_timeout="100 ms", timeout=6)
            assert all_names(after, batch(1, 2, 3, 100, 2_000)) == ["n1", "n2", "n3", "n100", None]
        finally:
            if fault is fault_killed:
                server.start()
            elif fault is fault_paused:
                server.go_on()
            client.config_set("maxmemory", "0")
    failed, dropped, unstored, hits = counts(after, "failures", "dropped", "unstored", "hits")
    if fault is fault_full:
        assert (failed, unstored, hits) == (0, 4, 1)  # its entries are read, though no more can be written
    elif fault is fault_garbage:
        assert dropped
    elif fault is not fault_flushed:
        assert failed
    assert not hits or fault is not fault_killed
    assert not unstored or fault is not fault_flushed


def test_a_flush_while_a_key_is_requested_only_loses_its_entry(server):
    """The claim is lost, and with it the sign that the key was not invalidated in the meantime."""
    source = Gated()
    join = worker(source, server, async_capacity=2)
    pending = join.lookup.open(ids(1))
    with server.client() as client:
        client.flushall()
    source.open_gates(1)
    while not pending.ready:
        join.lookup.wait()
    join.lookup.close(pending)
    join.lookup.source.flush()
    assert counts(join, "unstored", "failures") == (1, 0)
    assert stored(server) == []


# ── invalidation ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_changed_key_is_removed_for_all_hosts_at_any_time(memory):
    source = ReportsChanges()
    clocks = [FakeClock(5.0), FakeClock(7e6)]
    one, two = (runner(source, clock, store=URL) for clock in clocks)
    assert all_names(one, batch(1, 2)) == ["n1", "n2"]
    pass_time(memory, clocks, 1.0)
    assert all_names(two, batch(1)) == ["n1"]
    assert source.requested == [[1, 2], [1]]  # an entry of before the second listened may be old
    pass_time(memory, clocks, 1.0)
    source.name, source.changes = "m", (2,)
    assert all_names(one, batch(1, 2)) == ["n1", "m2"]
    assert all_names(two, batch(2)) == ["m2"]
    assert source.requested == [[1, 2], [1], [2]]


def test_rows_requested_while_any_key_may_change_are_not_stored(memory):
    store, keys = runner(Names(), FakeClock(5.0), store=URL).lookup.source.store, ids(1)
    claimed = store.guarded.claim(store.names(keys))
    store.invalidate(None)
    store.put(keys, store.names(keys), pa.table({"name": ["old"]}), np.ones(1, np.int64), claimed.token)
    store.guarded.flush()
    assert (memory.entries, memory.claimed) == ({}, [])


def test_rows_requested_while_their_key_changes_are_not_stored(memory):
    source = ReportsChanges()
    join = runner(source, store=URL, store_name="mine")

    class Changing(ReportsChanges):
        def lookup(self, request, keys):
            found = super().lookup(request, keys)
            join.lookup.source.store.invalidate(ids(1))
            return found

    assert all_names(runner(Changing(), store=URL, store_name="mine"), batch(1, 2)) == ["n1", "n2"]
    assert len(memory.entries) == 1


# ── ages ─────────────────────────────────────────────────────────────────────────────────────────────────


class OneWrong(Names):
    """Has wrong rows of key 2."""

    def lookup(self, request, keys):
        table, requested = super().lookup(request, keys), keys.column(0).to_pylist()
        if 2 in requested:
            raise WrongRowsError.of(table, {requested.index(2): SourceError("wrong")})
        return table


def test_a_slow_release_of_claims_does_not_make_rows_younger(memory, monkeypatch):
    now, release = [0.0], memory.release

    def slow_release(names, token):
        now[0] += 3
        memory.clock += 3
        release(names, token)

    monkeypatch.setattr(memory, "release", slow_release)
    source, options = OneWrong(), {"store": URL, "expire_after_write": 2, "on_error": "null", "error_column": "error"}
    one, two = (runner(source, clock=lambda: now[0], **options) for _ in range(2))
    assert all_names(one, batch(1, 2)) == ["n1", None]
    one.lookup.source.flush()
    assert (now[0], len(memory.entries)) == (3, 1)
    assert all_names(two, batch(1)) == ["n1"]
    assert source.requested == [[1, 2], [1]]
    for join in (one, two):
        join.lookup.disconnect()


def pass_time(memory: MemoryStore, clocks: list[FakeClock], seconds: float) -> None:
    memory.clock += seconds
    for clock in clocks:
        clock.now += seconds


class Dated(Names):
    """Says of every key when it was asked, by the clock of the store."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self.store = store

    def lookup(self, request, keys):
        if self.down:
            raise ConnectionError("down")
        values = keys.column("id").to_pylist()
        self.requested.append(values)
        known = [key for key in values if key < 1_000]
        return pa.table({"id": known, "name": [str(self.store.clock)] * len(known)}, request_schema(request))


def request_schema(request) -> pa.Schema:
    types = {"id": pa.int64(), "name": pa.string()}
    return pa.schema([(name, types[name]) for name in request.fields])


STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.integers(0, 3), min_size=1, max_size=3))
    | st.floats(0, 40)
    | st.sampled_from(["error", "full", "well", "garbage", "clear"]),
    max_size=12,
)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["memory", "folder"])
@settings(max_examples=examples(60), deadline=None)
@given(STEPS, st.sampled_from([None, 20.0]), st.sampled_from([None, 5.0]), st.sampled_from([None, 30.0]))
def test_no_row_is_older_than_the_limit_whatever_the_clocks_say(kind, steps, own, refresh, miss):
    if kind == "memory":
        check_ages(MemoryStore(), steps, own, refresh, miss)
        return
    with tempfile.TemporaryDirectory() as path:
        folder = ClockedFolder(Path(path))
        check_ages(folder, steps, own, refresh, miss)
        folder.close()


def check_ages(memory, steps, own, refresh, miss):
    source, clocks = Dated(memory), [FakeClock(5.0), FakeClock(7e6)]
    config = {"expire_after_write": 30.0, "store": URL, "store_expire_after_write": own,
              "refresh_after_write": refresh, "missing_key_expire_after_write": miss}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lookupcache.store.row_store.open_store", lambda *given: memory.new_store())
        joins = [runner(source, clock, **config) for clock in clocks]
    for step in steps:
        if isinstance(step, float):
            pass_time(memory, clocks, step)
        elif isinstance(step, tuple):
            number, keys = step
            for found in all_names(joins[number], batch(*keys)):
                assert found is not None
                assert memory.clock - float(found) <= 30.0
        elif step == "garbage":
            memory.spoil()
        elif step == "clear":
            memory.clear()
        else:
            memory.error = OSError("away") if step == "error" else None
            memory.full = step == "full"
    # A refresh whose answer no batch has read yet keeps its claim until then.
    for join in joins:
        join.lookup.source.close()
    if not (memory.error or memory.full or "error" in steps):
        # A thread that was calling the source may end its claim later, and the time may have ended it before.
        until(lambda: not (memory.claimed if isinstance(memory, MemoryStore) else memory.claims), LIMIT)


def test_an_entry_that_is_due_for_a_refresh_is_requested_again(memory):
    source, clock = Dated(memory), FakeClock(5.0)
    join = runner(source, clock, store=URL, expire_after_write=100, refresh_after_write=10)
    all_names(join, batch(1))
    pass_time(memory, [clock], 11)
    all_names(join, batch(1))
    while join.lookup._requests:
        join.lookup.wait()
    assert all_names(join, batch(1)) == [str(memory.clock)]
    assert source.requested == [[1], [1]]


def refreshing(memory, clocks):
    """Return two workers; the first refreshes key 1, in a call that does not return until its gate opens."""
    source = Gated()
    options = {"store": URL, "expire_after_write": 100, "refresh_after_write": 10}
    one, two = (runner(source, clock, **options) for clock in clocks)
    pending = one.lookup.open(ids(1))
    source.open_gates(1)
    finish(one.lookup, pending)
    one.lookup.source.flush()
    del source.gates[1]
    pass_time(memory, clocks, 11)
    finish(one.lookup, one.lookup.open(ids(1)))
    until(lambda: 1 in source.gates)
    return source, one, two


def test_an_entry_refreshed_by_another_host_is_used_until_expiry(memory):
    clocks = [FakeClock(5.0), FakeClock(7e6)]
    source, one, two = refreshing(memory, clocks)
    for _ in range(2):  # The second time it is in the cache, and due for a refresh: by the other host.
        assert all_names(two, batch(1)) == ["n1"]
    assert (source.requested, counts(two, "hits")) == ([[1], [1]], (1,))
    assert two.lookup.in_flight == 0, "a refresh that waits for another keeps no batch from being read ahead"
    source.open_gates(1)
    until(lambda: one.lookup.poll() or not one.lookup._requests)
    one.lookup.source.flush()
    until(lambda: two.lookup.poll() or not two.lookup._requests)
    assert counts(two, "hits") == (2,)
    assert len(source.requested) == 2
    for join in (one, two):
        join.lookup.disconnect()


def test_a_refresh_that_a_task_leaves_behind_is_taken_over(memory):
    clocks = [FakeClock(5.0), FakeClock(7e6)]
    source, one, two = refreshing(memory, clocks)
    assert len(memory.claimed) == 1
    one.lookup.source.flush()
    assert memory.claimed == []
    first = source.gates.pop(1)
    pending = two.lookup.open(ids(1))
    source.open_gates(1)
    finish(two.lookup, pending)
    two.lookup.source.flush()
    written = dict(memory.entries)
    # What the first call returns is for its own cache: somebody else has the claim, or had it.
    source.gates[1] = first
    source.open_gates(1)
    until(lambda: one.lookup.poll() or not one.lookup._requests)
    one.lookup.source.flush()
    assert memory.entries == written
    for join in (one, two):
        join.lookup.disconnect()


def test_an_answered_refresh_is_stored_when_its_task_ends(memory):
    clocks = [FakeClock(5.0), FakeClock(7e6)]
    source, one, two = refreshing(memory, clocks)
    source.open_gates(1)
    until(lambda: not one.lookup.source.executor._inner.in_flight)
    one.lookup.source.flush()
    assert all_names(two, batch(1)) == ["n1"]
    assert (len(source.requested), counts(two, "hits")) == (2, (1,))
    for join in (one, two):
        join.lookup.disconnect()


def test_many_keys_requested_by_another_host_are_polled_by_a_few(memory, monkeypatch):
    read, get = [], memory.get
    monkeypatch.setattr(memory, "get", lambda names: read.append(names) or get(names))
    source, keys = Gated(), range(1, 900)
    one, two = (runner(source, FakeClock(5.0), store=URL).lookup for _ in range(2))
    pending, waiting = one.open(ids(*keys)), two.open(ids(*keys))
    before = len(read)
    until(lambda: two.poll() or len(read) >= before + 4)
    polled = read[before : before + 4]
    assert [len(names) for names in polled] == [16] * 4
    assert len({name for names in polled for name in names}) == 64, "each poll looks at others"
    source.open_gates(1)
    finish(one, pending)
    one.source.flush()
    finish(two, waiting)
    assert (len(source.requested), two.counters["store_hits"]) == (1, 899)
    # Where none of the few gets an entry, as if their calls had failed, all are looked for now and then.
    monkeypatch.setattr("lookupcache.store.store_call.FULL_LOOK_SECONDS", 0.05)
    sample, others = (1_001, 1_002), range(1_003, 1_103)
    pending, waiting = one.open(ids(*sample, *others)), two.open(ids(*sample, *others))
    until(lambda: len(source.requested) == 2)
    one.abandon([pending])
    until(lambda: two.poll() or len(source.requested) == 3)
    source.open_gates(1_001)
    finish(two, waiting)
    for lookup in (one, two):
        lookup.disconnect()


def test_an_entry_expires_in_the_server_too(server):
    all_names(worker(Names(), server, expire_after_write=60, store_expire_after_write="50 s"), batch(1, 2_000))
    with server.client() as client:
        assert all(40_000 < client.pttl(name) <= 50_000 for name in stored(server))
        client.flushall()
        all_names(worker(Names(), server), batch(1))
        assert [client.pttl(name) for name in stored(server)] == [-1]
