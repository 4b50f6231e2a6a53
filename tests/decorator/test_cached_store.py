"""`cached` with a store: values that processes share, and a store that fails."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from types import SimpleNamespace

import cloudpickle
import pytest
from memory_store import URL, MemoryStore, separate_tokens
from servers import RedisServer
from time_limit import LIMIT

from lookupcache import LookupConfig, LookupTimeoutError, OptionError, cached
from lookupcache.cli.commands import main
from lookupcache.store.names import names_of_bytes
from lookupcache.testing import FakeClock

from click.testing import CliRunner  # isort: skip


PATHS = os.pathsep.join(filter(None, sys.path))


@pytest.fixture(autouse=True)
def processes(monkeypatch):
    separate_tokens(monkeypatch)


@pytest.fixture
def memory(monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr("lookupcache.store.row_store.open_store", lambda *given: store)
    return store


ASKED: list = []


def price(item, country="NL"):
    ASKED.append(item)
    if item == "wrong":
        raise KeyError(item)
    return None if item == "none" else {"item": item, "price": Decimal("1.50"), "in": [country]}


def two(function, memory, **options):
    """Decorate a function as two processes do, whose clocks differ; a version, since `ASKED` changes meanwhile."""
    ASKED.clear()
    config = LookupConfig(**{"cache": "LRU", "store": URL, "version": "1", **options})
    clocks = [FakeClock(5.0), FakeClock(7e6)]
    return [cached(config, clock=clock)(function) for clock in clocks], clocks


def test_a_value_of_one_process_is_found_by_another(memory):
    (one, other), _ = two(price, memory)
    assert one("a") == other("a") == {"item": "a", "price": Decimal("1.50"), "in": ["NL"]}
    assert (one("none"), other("none")) == (None, None)
    assert other("a", country="DE")["in"] == ["DE"]
    assert ASKED == ["a", "none", "a"]
    assert (other.metrics().store_hits, other.metrics().requested_keys) == (2, 1)
    assert other("a") is other("a")


def test_values_in_another_form_are_not_read(memory, monkeypatch):
    """That of a later version, which would read them as other ones."""
    (one, other), _ = two(price, memory)
    one("a")
    monkeypatch.setattr("lookupcache.functions.value_codec.FORM", 2)
    assert other("a")["item"] == "a"
    assert ASKED == ["a", "a"]


def test_a_pickled_function_keeps_the_identity_of_its_values(memory):
    (one, _), _ = two(price, memory)
    one("a")
    copied = cloudpickle.loads(cloudpickle.dumps(one))
    assert copied is not one
    assert (copied("a")["item"], ASKED, copied.metrics().store_hits) == ("a", ["a"], 1)


@pytest.mark.parametrize("place", ["store", "cache_path"])
def test_each_pickle_has_the_values_of_its_time(memory, tmp_path, place):
    """A copy that is pickled has those that it was given."""

    def name(key):
        return tenant

    config = LookupConfig(cache="LRU", **{place: URL if place == "store" else str(tmp_path)})
    function, pickles = cached(config, clock=FakeClock(5.0))(name), []
    for one in ("ann", "bob", "ann"):
        tenant = one
        pickles.append(cloudpickle.dumps(function))
    copies = [cloudpickle.loads(one) for one in pickles]
    copies.append(cloudpickle.loads(cloudpickle.dumps(copies[1])))
    found = [(copied(1), copied.metrics().requested_keys) for copied in copies]
    assert found == [("ann", 1), ("bob", 1), ("ann", 0), ("bob", 0)]
    for copied in copies:
        copied.close()


def test_an_error_is_not_stored(memory):
    (one, _), _ = two(price, memory, max_retries=0)
    with pytest.raises(KeyError):
        one("wrong")
    assert (memory.entries, memory.claims) == ({}, {})


def test_invalidating_and_clearing_reach_all_processes(memory):
    (one, other), _ = two(price, memory)
    one("a"), one("b")
    assert one.invalidate("a")
    other("a"), other("b")
    assert ASKED == ["a", "b", "a"]
    other.clear()
    other("b")
    assert ASKED == ["a", "b", "a", "b"]


@pytest.mark.extended
@pytest.mark.parametrize("given", [1, 1.0, True, Decimal("1.0"), math.inf, Decimal("Infinity"), 2.5, Decimal("2.50")])
def test_an_invalidation_reaches_equal_keys_of_other_types(memory, tmp_path, given):
    """In the store, and in the host's cache."""
    equals = [
        value for value in (1, 1.0, True, Decimal(1), math.inf, Decimal("inf"), 2.5, Decimal("2.5")) if value == given
    ]
    shared = {"scope": "host", "cache_path": str(tmp_path)}
    (one, other), _ = two(price, memory, **shared)
    [(alone, _), _] = two(price, memory)
    for value in equals:
        one(value, "NL"), alone(value, "NL")
    other.invalidate(given)
    one.lookup.cache.clear(), alone.lookup.cache.clear(), ASKED.clear()
    for value in equals:
        one(value, "NL"), alone(value, "NL")
    assert equals == ASKED
    one.close(), other.close()


@pytest.mark.parametrize("is_away", [False, True])
def test_a_call_from_before_an_invalidation_is_not_stored(memory, is_away):
    """The old call ends while the new one has the claim, in the same process; or the store has not heard of it."""
    version, began, gate = [1], [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def read(key):
        found = version[0]
        if key == "a":
            began[found - 1].set()
            assert gate[found - 1].wait(LIMIT)
        return found

    config = LookupConfig(cache="LRU", store=URL, store_name="versions")
    one, other = (cached(config, clock=FakeClock(5.0))(read) for _ in range(2))
    with ThreadPoolExecutor(2) as threads:
        old = threads.submit(one, "a")
        assert began[0].wait(LIMIT)
        version[0] = 2
        memory.error = ConnectionError("no route") if is_away else None
        one.invalidate("a")
        memory.error = None
        new = threads.submit(one, "a")
        assert began[1].wait(LIMIT)
        gate[0].set()
        assert old.result() == 1
        gate[1].set()
        assert new.result() == 2
    assert (other("a"), other.metrics().store_hits, memory.claims) == (2, 0 if is_away else 1, {})


def test_an_invalidated_value_does_not_come_back(memory, monkeypatch):
    (one, _), _ = two(price, memory)
    one("a")
    remove = memory.invalidate
    monkeypatch.setattr(memory, "invalidate", lambda names: (one("a"), remove(names)))  # as another thread may
    one.invalidate("a"), one("a")
    assert ASKED == ["a", "a"]
    for invalidate in (lambda: one.invalidate("a"), one.clear):
        memory.error = ConnectionError("no route")
        invalidate()
        memory.error = None
        ASKED.clear(), one("a")
        assert ASKED == ["a"]


def test_with_a_host_cache_before_it(memory, tmp_path):
    """Two hosts of two processes each: ages and invalidations are true through both."""
    ASKED.clear()
    clocks = [FakeClock(5.0), FakeClock(7e6)]
    one, two, three, four = every = [
        cached(LookupConfig(cache="LRU", store=URL, version="1", expire_after_write=10,
                            cache_path=str(tmp_path / str(host))), clock=clocks[host])(price) for host in (0, 0, 1, 1)
    ]  # fmt: skip

    def pass_time(seconds):
        memory.clock += seconds
        for clock in clocks:
            clock.now += seconds

    assert [function("none") for function in every] == [None] * 4
    one("a")
    pass_time(6)
    assert two("a") == three("a") == four("a")
    assert ASKED == ["none", "a"]
    assert [(f.metrics().host_hits, f.metrics().store_hits) for f in every] == [(0, 0), (2, 0), (0, 2), (2, 0)]
    pass_time(5)
    three("a"), four("a"), one("a")
    assert ASKED == ["none", "a", "a"]
    assert three.invalidate("a")
    four.lookup.cache.clear(), four("a")
    assert ASKED == ["none", "a", "a", "a"]
    with pytest.raises(KeyError):
        four("wrong")
    assert memory.claims == {}
    for function in every:
        function.close()


def test_a_value_is_never_older_than_its_limit(memory):
    (one, other), clocks = two(price, memory, expire_after_write=10)
    one("a")
    for passed, requested in ((6, 1), (5, 2)):
        memory.clock += passed
        for clock in clocks:
            clock.now += passed
        other("a"), other("a")
        assert len(ASKED) == requested


def test_a_value_is_used_while_another_process_refreshes_it(memory):
    version, began, gate = [1], threading.Event(), threading.Event()

    def read(key):
        if version[0] == 2:
            began.set()
            assert gate.wait(LIMIT)
        return version[0]

    config = LookupConfig(cache="LRU", store=URL, store_name="versions", expire_after_write=100, refresh_after_write=10)
    clock = FakeClock(5.0)
    one, other = cached(config, clock=clock)(read), cached(config, clock=FakeClock(7e6))(read)
    assert one("a") == 1
    clock.now += 20
    memory.clock += 20
    version[0] = 2
    assert one("a") == 1
    assert began.wait(LIMIT)
    with ThreadPoolExecutor(1) as thread:
        try:
            assert thread.submit(other, "a").result(timeout=LIMIT) == 1, "it waits for the refresh of the other process"
        finally:
            gate.set()
    while memory.claims:
        threading.Event().wait(0.01)
    assert one("a") == 2


def doubled(item):
    return [f"one of {one}" for one in item] if isinstance(item, list) else f"only {item}"


def test_values_for_a_key_and_for_a_list_are_told_apart(memory):
    config = LookupConfig(cache="LRU", store=URL)
    one, many = (cached(config, batch=batch, clock=FakeClock(5.0))(doubled) for batch in (False, True))
    assert (one(1), many([1])) == ("only 1", ["one of 1"])


def test_async_functions_and_batches_share_keys_in_flight(memory):
    started, gate, requested = threading.Event(), threading.Event(), []

    async def prices(keys):
        requested.append(keys)
        started.set()
        await asyncio.to_thread(gate.wait, 60)
        return [key * 2 for key in keys]

    config = LookupConfig(cache="LRU", store=URL, store_name="prices")
    one, other = (cached(config, batch=True, clock=FakeClock(5.0))(prices) for _ in range(2))

    async def both():
        first = asyncio.create_task(one([1, 2]))
        await asyncio.to_thread(started.wait, 60)
        second = asyncio.create_task(other([2, 3]))
        while other.metrics().store_waits == 0:
            await asyncio.sleep(0)
        gate.set()
        return await first, await second

    assert asyncio.run(both()) == ([2, 4], [4, 6])
    assert requested == [[1, 2], [3]]
    assert memory.claims == {}


@pytest.mark.parametrize("is_async", [True, False])
def test_a_wait_for_another_process_leaves_a_call_its_timeout(memory, is_async):
    """The other process has claimed the key and never answers: it is waited for as long as a call may take."""

    async def value(key):
        return key * 2

    config = LookupConfig(cache="LRU", store=URL, store_name="waited", timeout="60 ms", async_=True)
    function = cached(config)(value if is_async else lambda key: key * 2)
    [name] = names_of_bytes("waited", [function.lookup.store.encode_key(function._key((1,), {}))])
    memory.claims[name] = (b"another process" + bytes(9), math.inf)
    assert (asyncio.run(function(1)) if is_async else function(1)) == 2
    assert (function.metrics().store_waits, function.metrics().timeouts) == (1, 0)


@pytest.mark.parametrize("is_async", [True, False])
def test_waits_for_a_process_and_another_host_share_one_timeout(memory, tmp_path, monkeypatch, is_async):
    config = LookupConfig(
        cache="LRU", store=URL, store_name="waited", cache_path=str(tmp_path), timeout=60, async_=is_async
    )
    one, two = (cached(config)(price) for _ in range(2))
    key, looks, claim = two._key(("a",), {}), [], two.lookup.store.entries.guarded.claim_missing
    [name] = names_of_bytes("waited", [two.lookup.store.encode_key(key)])
    memory.claims[name] = (b"another host" + bytes(9), math.inf)
    assert one.lookup.shared.open(one.lookup._drop)
    assert one.lookup.shared.call([key], refresh=False, most=math.inf).step(False).tolist() == [0]

    guarded = two.lookup.store.entries.guarded
    monkeypatch.setattr(guarded, "claim_missing", lambda names: looks.append(names) or claim(names))
    # Ten seconds pass between two looks at the host's files, or into the store.
    passed = SimpleNamespace(monotonic=itertools.count(time.monotonic(), 10.0).__next__)
    monkeypatch.setattr("lookupcache.flow.flow.time", passed)
    assert two("a") == price("a")
    assert len(looks) == 2, "one when the time is over, so that nothing is requested that is there by now"
    for function in (one, two):
        function.close()


@pytest.mark.parametrize("tier", ["host", "store"])
def test_early_answers_age_while_the_call_waits_for_other_keys(memory, tmp_path, monkeypatch, tier):
    shared = {"cache_path": str(tmp_path), "version": "1"} if tier == "host" else {"store": URL, "store_name": "waited"}
    clock, requested = FakeClock(5.0), []

    def prices(keys):
        requested.append((keys, clock.now))
        return keys

    def pass_time():
        clock.now += 4
        memory.clock += 4
        return clock.now

    prices.__qualname__ = "prices"  # A name by which other processes know it.
    config = LookupConfig(cache="LRU", expire_after_write=100, timeout=60, **shared)
    one, two = (cached(config, batch=True, clock=clock)(prices) for _ in range(2))
    if tier == "host":
        assert one.lookup.shared.open(one.lookup._drop)
        assert one.lookup.shared.call([one._key((2,), {})], refresh=False, most=math.inf).step(False).size
    else:
        [name] = names_of_bytes("waited", [two.lookup.store.encode_key(two._key((2,), {}))])
        memory.claims[name] = (b"another host" + bytes(9), math.inf)
    monkeypatch.setattr("lookupcache.flow.flow.time", SimpleNamespace(monotonic=pass_time))
    assert two([1, 2]) == [1, 2]
    [(first, at), (second, _)] = requested
    clock.now = at + 99
    two([1, 2])
    assert (first, second, len(requested)) == ([1], [2], 2)
    clock.now += 2
    memory.clock += 100
    two([1, 2])
    assert [keys for keys, _ in requested] == [[1], [2], [1]]
    for function in (one, two):
        function.close()


def test_a_cancelled_call_ends_its_claim(memory):
    async def never(key):
        await asyncio.sleep(3_600)

    slow = cached(LookupConfig(cache="LRU", store=URL, store_name="slow", timeout="50 ms", max_retries=0))(never)
    with pytest.raises((TimeoutError, LookupTimeoutError)):
        asyncio.run(slow(1))
    assert memory.claims == {}


def test_a_call_that_is_cancelled_while_it_claims_ends_its_claim(memory, monkeypatch):
    began, gate, claim = threading.Event(), threading.Event(), memory.claim
    monkeypatch.setattr(memory, "claim", lambda *given: (began.set(), gate.wait(LIMIT), claim(*given))[2])

    async def value(key):
        return key

    async def call():
        slow = cached(LookupConfig(cache="LRU", store=URL, store_name="slow", max_retries=0))(value)
        waiting = asyncio.create_task(slow(1))
        await asyncio.to_thread(began.wait, 60)
        await slow.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()

    asyncio.run(call())  # It waits for its threads.
    assert memory.claims == {}


def test_an_event_loop_does_not_wait_for_the_end_of_claims(memory, monkeypatch):
    gate, release, released = threading.Event(), memory.release, threading.Event()

    def release_late(*given):
        assert gate.wait(LIMIT)
        release(*given)
        released.set()

    async def fails(item):
        raise KeyError(item)

    monkeypatch.setattr(memory, "release", release_late)
    one = cached(LookupConfig(cache="LRU", store=URL, version="1"))(fails)

    async def call():
        with pytest.raises(KeyError):
            await one("a")
        gate.set()

    asyncio.run(call())
    assert released.is_set()


def test_without_the_store_calls_go_on(memory):
    (one, _), _ = two(price, memory)
    memory.error = ConnectionError("no route")
    assert [one(key)["item"] for key in "abcdef"] == list("abcdef")
    assert (one.metrics().store_failures, one.metrics().store_hits) == (3, 0)


def test_entries_of_others_under_the_same_name_are_not_taken(memory):
    (one, other), _ = two(price, memory, store_name="mine")
    one("a")
    memory.entries = {name: (entry[:-8] + b"damaged!", until) for name, (entry, until) in memory.entries.items()}
    assert other("a")["item"] == "a"
    assert other.metrics().store_dropped == 1
    memory.abouts["mine"] = {"schema": "garbage"}
    [(third, _), _] = two(price, memory, store_name="mine")
    assert third("a")["item"] == "a"
    memory.abouts["rows"] = {"schema": "0123456789abcdef", "columns": "id BIGINT -> name STRING"}
    wrong = cached(LookupConfig(cache="LRU", store=URL, store_name="rows"))(price)
    with pytest.raises(OptionError, match=r"entries in the store named 'rows' have other columns: id BIGINT"):
        wrong("a")


class Shop:
    @cached(LookupConfig(cache="LRU", store="redis://nowhere:1"))
    def price(self, item):
        return item

    def __call__(self, item):
        return item


def test_calls_that_cannot_be_stored_are_refused(memory):
    with pytest.raises(OptionError, match=r"Shop\.price is a method"):
        Shop().price(1)
    (one, _), _ = two(lambda key: {key}, memory)
    with pytest.raises(OptionError, match=r"returned a value that .* cannot share: set"):
        one(1)
    with pytest.raises(OptionError, match=r"is called with a value that .* cannot share: frozenset"):
        one(frozenset())
    assert memory.claims == {}


APPLICATION = """
import os, sys
from lookupcache import cached

STORE, VERSION = sys.argv[1], sys.argv[2] or None

class Fetch:
    def __init__(self, rate):
        self.rate = rate
    def __call__(self, key):
        print("called", key)
        return key * self.rate

@cached(store=STORE, store_timeout=20, version=VERSION)
def twice(key):
    print("called", key)
    return helper(key)

def helper(key):
    return key * 2

both = [twice, cached(store=STORE, store_timeout=20, version=VERSION)(Fetch(3))]
for function in both:
    print(function(1), function(2))
    function.close()
"""


@pytest.mark.slow
def test_a_second_application_uses_stored_values_until_an_edit(tmp_path):
    """Under a stated version, it uses them despite an edit."""

    def run(text, version=""):
        (tmp_path / "job.py").write_text(text)
        environment = {**os.environ, "PYTHONPATH": PATHS}
        command = [sys.executable, "job.py", str(tmp_path / "store"), version]
        told = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        lines = told.stdout.splitlines()
        return lines.count("called 1") + lines.count("called 2"), [line for line in lines if line[0] != "c"]

    edited = APPLICATION.replace("key * 2", "key * 4")
    assert run(APPLICATION) == (4, ["2 4", "3 6"])
    assert run(APPLICATION) == run(f"# The same.\n{APPLICATION}") == (0, ["2 4", "3 6"])
    assert run(edited) == (4, ["4 8", "3 6"])
    assert run(edited, "1") == (4, ["4 8", "3 6"])
    assert run(APPLICATION, "1") == (0, ["4 8", "3 6"])


PICKLED = """
import os, pickle, sys
import cloudpickle
from lookupcache import cached

@cached(store=sys.argv[1])
def tenant(n):
    return os.environ["TENANT"] + " " + REGION

if __name__ == "__main__":
    pickles = []
    for REGION in ("north", "south"):
        pickles.append(cloudpickle.dumps(tenant))
    pickle.dump(pickles, sys.stdout.buffer)
"""
UNPICKLED_ONE = "import pickle, sys\nf = pickle.load(sys.stdin.buffer)\nprint(f(1))\nf.close()"
UNPICKLED = "import pickle, sys\nfor one in pickle.load(sys.stdin.buffer): print(pickle.loads(one)(1))"


@pytest.mark.slow
def test_a_pickled_function_reads_the_callers_environment(tmp_path):
    """It has no source there, and the driver's environment may be another; a global is that of each pickle."""
    (tmp_path / "driver.py").write_text(PICKLED)

    def run(tenant, *command, **given):
        environment = {**os.environ, "PYTHONPATH": PATHS, "TENANT": tenant}
        return subprocess.run([sys.executable, *command], env=environment, check=True, capture_output=True, **given)

    pickled = run("driver", tmp_path / "driver.py", tmp_path / "store").stdout
    found = [run(tenant, "-c", UNPICKLED, input=pickled).stdout for tenant in ("ann", "bob")]
    assert found == [b"ann north\nann south\n", b"bob north\nbob south\n"]
    [kept] = (tmp_path / "store").iterdir()
    assert len(list(kept.iterdir())) == 4


CALLS_ANOTHER = """
import sys
import cloudpickle
import rates_of_test
from lookupcache import cached

@cached(**{sys.argv[1]: sys.argv[2]})
def price(n):
    return rates_of_test.price(n)

if __name__ == "__main__":
    sys.stdout.buffer.write(cloudpickle.dumps(price))
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["store", "cache_path"])
def test_a_process_with_other_modules_than_the_pickle_shares_no_values(tmp_path, place):
    (tmp_path / "driver.py").write_text(CALLS_ANOTHER)

    def run(rate, *command, **given):
        (tmp_path / "rates_of_test.py").write_text(f"def price(n):\n    print('asked')\n    return n * {rate}")
        paths = os.pathsep.join([str(tmp_path), PATHS])
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, *command], env=environment, check=True, capture_output=True, **given)

    pickled = run(1, tmp_path / "driver.py", place, tmp_path / "kept").stdout
    told = [run(rate, "-c", UNPICKLED_ONE, input=pickled) for rate in (2, 1, 2, 1)]
    assert [one.stdout.split() for one in told] == [[b"asked", b"2"], [b"asked", b"1"], [b"asked", b"2"], [b"1"]]
    assert [b"'rates_of_test' is not the one" in one.stderr for one in told] == [True, False, True, False]


def test_a_function_that_binds_objects_is_refused_when_called(memory):
    @cached(LookupConfig(cache="LRU", store=URL))
    def price(item):
        return shop

    shop = object()
    with pytest.raises(
        OptionError, match=r"price cannot be stored: .* the closure of .*\n\nHint: .*lookup.cache.version"
    ):
        price(1)


def test_a_local_function_that_calls_itself_is_stored(memory):
    @cached(LookupConfig(cache="LRU", store=URL))
    def count(number):
        return number and 1 + count(number - 1)

    assert count(3) == 3
    assert len(memory.entries) == 4


def test_the_command_lists_and_clears_stores():
    def command(*arguments) -> str:
        told = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["cache", *arguments])
        assert told.exit_code == 0, told.output
        return told.output

    server = RedisServer().start()
    try:
        for name in ("one", "two"):
            function = cached(LookupConfig(cache="LRU", store=server.url, store_name=name, store_timeout=10))(price)
            function("a"), function("b")
        with server.client() as client:
            client.set("mine", "untouched")
        listed = command("ls", server.url)
        assert [line.split()[2:4] for line in listed.splitlines()[1:]] == [["one", "2"], ["two", "2"]]
        assert "Python values" in command("show", server.url)
        assert "Removed 0 keys" in command("clear", server.url, "*", "--yes")
        assert "Removed 2 keys" in command("clear", server.url, "one", "--yes")
        assert [line.split()[2] for line in command("ls", server.url).splitlines()[1:]] == ["two"]
        command("clear", server.url, "--yes")
        with server.client() as client:
            assert client.keys() == [b"mine"]
            assert client.info("commandstats").get("cmdstat_keys", {"calls": 1})["calls"] == 1
        server.kill()
        told = CliRunner().invoke(main, ["cache", "ls", server.url])
        assert (told.exit_code, "The store does not answer" in told.output) == (1, True)
    finally:
        server.close()


def test_a_value_stored_between_read_and_claim_is_used(memory, monkeypatch):
    """As where a store that has no script for both waits for its lock; the clock goes on meanwhile."""
    (one, other), clocks = two(price, memory)
    one("b"), other("b")
    read = memory.get

    def get(names):
        found = read(names)
        monkeypatch.setattr(memory, "get", read)
        memory.clock += 1
        clocks[0].now += 1
        one("a")
        memory.clock += 1
        return found

    monkeypatch.setattr(memory, "get", get)
    other("a")
    assert ASKED == ["b", "a"]
