"""`cached` in several processes of a host: one call per key, true ages, clear errors, and no event loop that waits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import gc
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Generic, TypeVar
from zoneinfo import ZoneInfo

import cloudpickle
import pyarrow as pa
import pytest
from click.testing import CliRunner
from host_processes import in_processes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import until
from time_limit import LIMIT

from lookupcache import LookupConfig, OptionError, cached
from lookupcache.cache.keys import KeyBatch
from lookupcache.cli.commands import main
from lookupcache.decorator import shared_cache
from lookupcache.decorator.arguments import typed_key
from lookupcache.decorator.shared_cache import SharedCache
from lookupcache.errors import LookupTimeoutError
from lookupcache.functions.value_codec import UnsupportedValueError, ValueCodec, dataclasses_of
from lookupcache.testing import FakeClock

FOREVER = 60
PATHS = os.pathsep.join(filter(None, sys.path))


@dataclasses.dataclass(frozen=True)
class City:
    name: str
    people: int


class Source:
    """What the functions of this module read: it logs each call, waits for ``gate``, and fails when ``down``."""

    def __init__(self) -> None:
        self.log: Path | None = None
        self.calls: list[object] = []
        self.version = 0
        self.down = False
        self.gate: threading.Event | None = None
        self.began = threading.Event()

    def read(self, key):
        self.calls.append(key)
        if self.log is not None:
            with self.log.open("a") as log:
                log.write(f"{key}\n")
        gate = self.gate
        self.began.set()
        if gate is not None:
            assert gate.wait(FOREVER)
        if self.down:
            raise ConnectionError("the source is down")
        return self.version


source = Source()


@pytest.fixture(autouse=True)
def new_source():
    source.__init__()


def number_of(key):
    return [key, source.read(key)]


async def number_later(key):
    return [key, source.read(key)]


async def number_when_open(key):
    source.calls.append(key)
    while source.gate is not None and not source.gate.is_set():
        await asyncio.sleep(0.001)
    return [key, 0]


def numbers_of(keys):
    return {key: [source.read(key)] for key in keys if key % 5}


def city_of(name: str) -> list[City]:
    return [City(name, 7)]


@dataclasses.dataclass(frozen=True)
class Checked:
    number: int

    def __hash__(self):
        assert not source.down
        return self.number


def checked_of(one: Checked) -> list[Checked]:
    return [Checked(one.number + source.version)]


def nothing_of(key):
    source.read(key)
    return [] if key % 2 else None


def nested(depth):
    source.read(depth)
    return functools.reduce(lambda inner, _: (inner,), range(depth), ())


def a_set(key):
    return {key}


class Sized:
    @cached(cache="LRU", scope="worker")
    def one(self, key):
        return key


@pytest.fixture
def shared(tmp_path):
    """Return a function that decorates one as another process of this host would."""
    made = []

    def new(function, **options):
        found = cached(**{"scope": "host", "cache_path": str(tmp_path / "cache"), "version": "1", **options})(function)
        made.append(found)
        return found

    yield new
    for one in made:
        cache = one.lookup.shared
        cache.close()


def test_a_value_of_one_process_is_found_by_another(shared):
    one, two = shared(number_of), shared(number_of)
    assert [one(1), two(1), two(2), one(2), one(1)] == [[1, 0], [1, 0], [2, 0], [2, 0], [1, 0]]
    assert source.calls == [1, 2]
    assert (two.metrics().host_hits, two.metrics().hits, two.metrics().misses) == (1, 1, 1)


def test_a_dataclass_is_shared_where_the_annotation_names_it(shared):
    one, two = shared(city_of), shared(city_of)
    assert one("Rome") == two("Rome") == [City("Rome", 7)]
    assert two.metrics().requested_keys == 0


@pytest.mark.extended
@pytest.mark.slow
def test_16_processes_make_one_call_per_key(shared, tmp_path):
    one = shared(number_of)
    source.log = tmp_path / "log"

    def work(number):
        assert [one((number + key) % 20) for key in range(20)] == [[(number + key) % 20, 0] for key in range(20)]

    in_processes(16, work)
    called = source.log.read_text().split()
    assert len(called) == len(set(called)) == 20


def test_a_batch_asks_only_for_what_no_process_has(shared):
    one, two = shared(numbers_of, batch=True), shared(numbers_of, batch=True)
    assert one([1, 2, 5]) == [[0], [0], None]
    assert two([1, 2, 3, 5]) == [[0], [0], [0], None]
    assert (source.calls, two.metrics().requested_keys) == ([1, 2, 3], 1)


def test_a_call_of_another_process_is_waited_for(shared):
    source.gate = threading.Event()
    one, two = shared(number_of), shared(number_of)
    found = {}
    threads = [threading.Thread(target=lambda f=f, n=n: found.__setitem__(n, f(1))) for n, f in enumerate((one, two))]
    threads[0].start()
    assert source.began.wait(FOREVER)
    threads[1].start()
    while two.lookup.shared._host is None or not two.lookup._calls:
        assert threads[1].is_alive()
    source.gate.set()
    for thread in threads:
        thread.join(FOREVER)
    assert (found, source.calls) == ({0: [1, 0], 1: [1, 0]}, [1])


@contextlib.contextmanager
def claimed(function, key):
    """Claim a key as a process would that calls the function for a minute."""
    shared = function.lookup.shared
    shared.open(function.lookup._drop)
    keys = KeyBatch.of([pa.array([shared.encode_key((key,))], pa.binary())], [pa.binary()])
    assert shared._host.claim(keys, 60).all()
    yield
    shared._host.release(keys)


@pytest.mark.parametrize("is_async", [True, False], ids=["coroutine", "thread"])
def test_a_call_that_waits_for_another_process_has_one_timeout(shared, is_async):
    function, options = (number_later, {}) if is_async else (number_of, {"async_": True})
    one, two = (shared(function, timeout=0.2, **options) for _ in range(2))
    with claimed(one, 1), pytest.raises(LookupTimeoutError):
        asyncio.run(two(1)) if is_async else two(1)
    assert source.calls == []


@pytest.mark.slow
def test_a_hanging_call_gives_up_its_claim_after_a_while(shared):
    source.gate = gate = threading.Event()
    one, two = (shared(number_of, timeout=0.6, async_=True) for _ in range(2))
    with pytest.raises(LookupTimeoutError):
        one(1)
    assert source.began.wait(FOREVER)
    source.gate = None
    for _ in range(2):
        with contextlib.suppress(LookupTimeoutError):
            two(1)
    assert two(1) == [1, 0]
    gate.set()


def test_a_call_after_a_wait_runs_in_its_callers_thread(shared):
    """It has no timeout there."""
    one, two = (shared(number_of, timeout=0.2) for _ in range(2))
    with claimed(one, 1):
        assert two(1) == [1, 0]


def test_an_event_loop_runs_while_another_process_is_waited_for(shared):
    source.gate = threading.Event()
    one, two = shared(number_when_open), shared(number_when_open)

    async def scenario():
        first = asyncio.create_task(one(1))
        while not source.calls:
            await asyncio.sleep(0)
        second = asyncio.create_task(two(1))
        steps = 0
        while steps < 100 or not two.lookup._calls:
            await asyncio.sleep(0)
            steps += 1
        assert not second.done()
        source.gate.set()
        return await asyncio.gather(first, second)

    assert asyncio.run(scenario()) == [[1, 0], [1, 0]]
    assert source.calls == [1]


def test_an_event_loop_runs_while_a_thread_works_on_files(shared):
    one = shared(number_later)
    asyncio.run(one(1))
    inside, leave, left = threading.Event(), threading.Event(), []

    def work():
        with one.lookup.shared.lock:
            inside.set()
            left.append(leave.wait(LIMIT))

    async def scenario():
        task = asyncio.create_task(one(2))
        for _ in range(100):
            await asyncio.sleep(0)
        leave.set()
        return await task

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(FOREVER)
    assert (asyncio.run(scenario()), left) == ([2, 0], [True])
    thread.join()


def test_a_call_goes_on_when_another_loop_closes_the_function(shared):
    source.gate = threading.Event()
    one, found = shared(number_when_open), []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(one(1))))
    thread.start()
    while not source.calls:
        assert thread.is_alive()
    asyncio.run(one.close())
    source.gate.set()
    thread.join(FOREVER)
    assert found == [[1, 0]]


def test_a_cancelled_call_leaves_no_claim(shared):
    source.gate = threading.Event()
    one, two = shared(number_when_open, timeout=30), shared(number_later, timeout=30)

    async def cancel():
        task = asyncio.create_task(one(1))
        while not source.calls:
            await asyncio.sleep(0)
        await one.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert two.lookup.shared.name != one.lookup.shared.name
    again = shared(number_when_open, timeout=30)
    source.gate.set()
    assert asyncio.run(again(1)) == [1, 0]
    assert again.metrics().host_waits == 0


def test_an_error_is_not_shared_and_frees_the_key(shared):
    one, two = (shared(number_of, max_retries=0) for _ in range(2))
    source.down = True
    with pytest.raises(ConnectionError):
        one(1)
    source.down = False
    assert (two(1), source.calls) == ([1, 0], [1, 1])


def test_ages_are_those_of_the_first_call(shared):
    clock = FakeClock(1_000)
    options = {"clock": clock, "expire_after_write": 60, "max_rows": 100}
    one, two = shared(number_of, **options), shared(number_of, **options)
    one(1)
    clock.now += 59
    assert two(1) == [1, 0]
    clock.now += 2
    source.version = 1
    assert two(1) == [1, 1]


@pytest.mark.parametrize("key", [1, 2])
def test_known_misses_have_their_own_age_limit(shared, key):
    clock = FakeClock(1_000)
    options = {"clock": clock, "expire_after_write": 60, "missing_key_expire_after_write": 10, "max_rows": 100}
    one, two = shared(nothing_of, **options), shared(nothing_of, **options)
    assert one(key) == two(key)
    assert type(two(key)) is type(one(key))
    clock.now += 11
    two(key)
    assert source.calls == [key, key]


def test_stale_values_of_another_process_are_served_for_errors(shared):
    clock = FakeClock(1_000)
    options = {"clock": clock, "expire_after_write": 10, "stale_if_error": 60, "max_rows": 100, "max_retries": 0}
    one, two = shared(number_of, **options), shared(number_of, **options)
    one(1)
    clock.now += 20
    source.down = True
    assert two(1) == [1, 0]
    assert two.metrics().stale == 1
    clock.now += 60
    with pytest.raises(ConnectionError):
        two(1)


def test_one_process_refreshes(shared):
    clock = FakeClock(1_000)
    options = {"clock": clock, "refresh_after_write": 10, "expire_after_write": 60, "max_rows": 100}
    one, two = shared(number_of, **options), shared(number_of, **options)
    assert one(1) == two(1) == [1, 0]
    clock.now += 11
    source.version = 1
    assert one(1) == [1, 0]
    one.lookup.slots.join(FOREVER)
    assert two(1) == [1, 0]
    two.lookup.slots.join(FOREVER)
    assert (one(1), two(1), source.calls) == ([1, 1], [1, 1], [1, 1])


def test_an_invalidation_reaches_all_processes(shared):
    one, two = shared(number_of), shared(number_of)
    assert one(1) == two(1) == [1, 0]
    source.version = 1
    one.invalidate(1)
    for keys in two.lookup.shared.news():
        two.lookup._drop(keys)
    assert two(1) == [1, 1]
    one.clear()
    for keys in two.lookup.shared.news():
        two.lookup._drop(keys)
    assert (two(1), source.calls) == ([1, 1], [1, 1, 1])


def test_invalidations_are_heard_after_a_key_has_failed(shared):
    one, two, keys = shared(checked_of), shared(checked_of), [Checked(1), Checked(2)]
    assert [one(key) for key in keys] == [two(key) for key in keys] == [[key] for key in keys]
    source.down = True
    one.lookup.shared.invalidate([(keys[0],)])
    until(lambda: two.lookup.shared._seen == one.lookup.shared._host.position, 10)
    time.sleep(0.1)
    source.down = False
    one.lookup.shared.invalidate([(keys[1],)])
    until(lambda: two.metrics().cached_keys == 1, 10)


@pytest.mark.parametrize("opened_again", [True, False])
def test_what_others_invalidate_after_close_is_not_served(shared, opened_again):
    one, two = shared(number_of), shared(number_of)
    assert one(1) == two(1) == [1, 0]
    one.close()
    if opened_again:
        one(2)
    source.version = 1
    two.invalidate(1)
    until(lambda: one(1) == [1, 1], 10)


def test_the_claim_of_a_killed_process_is_not_waited_for(shared):
    one = shared(number_of, timeout=30)
    child = os.fork()
    if not child:
        one.lookup.shared.open(one.lookup._drop)
        one.lookup.shared.call([(1,)], refresh=False, most=math.inf).step(False)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert one(1) == [1, 0]
    assert one.metrics().host_waits == 0


def test_a_call_from_before_an_invalidation_leaves_later_claims_alone(shared):
    one = shared(number_of, timeout=30)
    assert one.lookup.shared.open(one.lookup._drop)
    before, after = (one.lookup.shared.call([(1,)], refresh=False, most=math.inf) for _ in range(2))
    assert before.step(False).tolist() == [0]
    one.lookup.shared.invalidate([(1,)])
    assert after.step(False).tolist() == [0]
    before.release()
    assert after.host.claim_states(after.keys).claimants.tolist() == [after.host._claims.number]
    after.release()


def test_a_function_that_is_freed_closes_its_files(tmp_path):
    one = cached(cache_path=str(tmp_path / "cache"), version="1")(number_of)
    one(1)
    host = one.lookup.shared._host
    del one
    while not host.is_lost:
        gc.collect()


def test_a_relative_path_starts_where_the_function_is_decorated(shared, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    one = shared(number_of, cache_path="kept")
    monkeypatch.chdir("elsewhere")
    copy = pickle.loads(cloudpickle.dumps(one))
    assert [one(1), copy(1)] == [[1, 0], [1, 0]]
    copy.lookup.shared.close()
    assert source.calls == [1]
    assert (tmp_path / "kept").is_dir()


APPLICATION = """
import os, sys
from lookupcache import cached

RATE = {rate}

@cached(cache_path=sys.argv[1]{options})
def price(item):
    print("asked")
    return item * RATE, os.environ["TENANT"]

print(*price(2), *map(cached(cache_path=sys.argv[1]{options})(lambda item: -item), [2]))
"""


@pytest.mark.slow
def test_applications_of_equal_code_and_environment_share_a_path(tmp_path):
    def run(rate, tenant, options=""):
        (tmp_path / "job.py").write_text(APPLICATION.format(rate=rate, options=options))
        environment = {**os.environ, "PYTHONPATH": PATHS, "TENANT": tenant}
        command = [sys.executable, tmp_path / "job.py", tmp_path / "kept"]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()

    assert run(10, "ann") == ["asked", "20", "ann", "-2"]
    assert run(11, "ann") == ["asked", "22", "ann", "-2"]
    assert run(10, "bob") == ["asked", "20", "bob", "-2"]
    assert run(10, "ann") == ["20", "ann", "-2"]
    assert run(10, "ann", ", version='1', max_retries=1") == ["asked", "20", "ann", "-2"]
    assert run(11, "bob", ", version='1', timeout=7") == ["20", "ann", "-2"]


AT_EXIT = """
import asyncio, atexit, sys
from lookupcache import cached

@cached(scope="host", cache_path=sys.argv[1])
def twice(number): return 2 * number

@cached(scope="host", cache_path=sys.argv[1])
async def thrice(number): return 3 * number

atexit.register(lambda: print(twice(1), asyncio.run(thrice(1))))
"""


@pytest.mark.slow
def test_functions_are_called_while_the_interpreter_exits(tmp_path):
    """Then no thread begins, and none takes work."""
    (tmp_path / "job.py").write_text(AT_EXIT)
    command = [sys.executable, tmp_path / "job.py", tmp_path / "kept"]
    told = subprocess.run(command, env={**os.environ, "PYTHONPATH": PATHS}, check=True, capture_output=True)
    assert (told.stdout, told.stderr) == (b"2 3\n", b"")


def test_what_is_freed_at_exit_waits_for_no_lock(shared, monkeypatch):
    """A thread that renews claims may have been ended with the lock."""
    one = shared(number_of)
    one(1)
    cache = one.lookup.shared
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    with ThreadPoolExecutor(1) as threads, cache.claims._background.changed:
        threads.submit(shared_cache._close, cache._host, cache.claims, cache._keeper).result(timeout=10)
    monkeypatch.undo()


def test_a_forked_process_is_a_separate_claimant(shared):
    one = shared(number_of)
    one(1)

    def work(number):
        assert one(number + 2) == [number + 2, 0]
        assert one.lookup.shared._host._claims.number != parent

    parent = one.lookup.shared._host._claims.number
    in_processes(2, work)
    assert (one(2), one(3), source.calls) == ([2, 0], [3, 0], [1])


def test_the_command_shows_what_is_shared(shared, tmp_path):
    shared(number_of)(1)
    shown = CliRunner().invoke(main, ["cache", "ls", str(tmp_path / "cache")], env={"COLUMNS": "200"})
    assert "test_shared.number_of" in shown.output


def test_a_folder_that_is_deleted_is_done_without(shared, tmp_path):
    one = shared(number_of)
    one(1)
    shutil.rmtree(tmp_path / "cache")
    assert [one(1), one(2), one(2)] == [[1, 0], [2, 0], [2, 0]]
    assert source.calls == [1, 2]


def test_each_process_has_its_own_cache_if_the_folder_fails(shared, tmp_path):
    (tmp_path / "file").write_text("")
    one = shared(number_of, cache_path=str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="each process has its own cache"):
        assert one(1) == [1, 0]
    assert one(1) == [1, 0]


def test_calls_that_cannot_be_shared_are_refused_with_the_cure(shared, tmp_path):
    with pytest.raises(OptionError, match=r"a_set returned a value .* share: set") as error:
        shared(a_set)(1)
    assert "scope" in error.value.hint
    with pytest.raises(OptionError, match=r"number_of is called with .*: object"):
        shared(number_of)(object())
    with pytest.raises(OptionError, match=r"number_of cannot be stored: .* not known") as error:
        shared(number_of, version=None)(1)
    assert "lookup.cache.version" in error.value.hint
    with pytest.raises(OptionError, match="needs a folder"):
        cached(scope="host")(number_of)
    config = LookupConfig(cache="LRU", scope="host", cache_path=str(tmp_path))
    Sized.two = cached(config)(Sized.__dict__["one"].__wrapped__)
    with pytest.raises(OptionError, match="is a method"):
        Sized().two(1)
    Sized.two.lookup.shared.close()


def test_without_a_path_nothing_is_shared_and_nothing_imported(shared):
    assert cached(number_of).lookup.shared is None
    assert cached(scope="worker")(number_of).lookup.shared is None
    assert isinstance(shared(number_of).lookup.shared, SharedCache)


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.dates()
    | st.datetimes(timezones=st.none() | st.just(dt.UTC) | st.just(ZoneInfo("Europe/Rome"))) | st.timedeltas()
    | st.decimals(allow_nan=False) | st.uuids() | st.builds(City, st.text(), st.integers())
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values)
def test_values_are_read_as_they_were_written(value):
    codec = ValueCodec({"City": City})
    found = codec.read(codec.write(value))
    assert (found, repr(found)) == (value, repr(value))


ROME = ZoneInfo("Europe/Rome")
similar = st.sampled_from(
    [
        *(0, False, 0.0, -0.0, Decimal(0), Decimal("-0E3"), 1, True, 1.0, Decimal("1.0"), Decimal(1), "1", b"1", None),
        *(
            0.5,
            Decimal("0.50"),
            0.1,
            Decimal("0.1"),
            Decimal.from_float(0.1),
            100,
            Decimal("1E2"),
            math.inf,
            Decimal("inf"),
        ),
        *(dt.date(2024, 7, 1), dt.datetime(2024, 7, 1), dt.datetime(2024, 7, 1, fold=1)),
        *(dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC), dt.datetime(2024, 7, 1, 14, tzinfo=ROME)),
        *(dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC), dt.datetime(2024, 10, 27, 2, 30, tzinfo=ROME)),
        *(dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))), (), ((),)),
    ]
)


@settings(deadline=None)
@given(*[st.lists(similar | st.tuples(similar) | st.tuples(st.tuples(similar)), max_size=2).map(tuple)] * 2)
def test_arguments_that_are_one_key_here_are_written_alike(one, two):
    codec = ValueCodec()
    assert (typed_key(one) == typed_key(two)) == (codec.write_key(one) == codec.write_key(two))
    assert codec.read(codec.write_key(one)) == one


@pytest.mark.parametrize(("key", "equal"), [(Decimal("1.0"), Decimal("1.00")), (0.0, -0.0), ((1,), (True,))])
def test_a_key_is_requested_again_if_an_equal_one_is_invalidated(shared, key, equal):
    one, two = shared(number_of), shared(number_of)
    one(key)
    one.invalidate(equal)
    source.version = 1
    assert one(key) == two(equal) == [key, 1]
    assert source.calls == [key, key]


@pytest.fixture
def usual_recursion():
    """Some tests, and libraries under test, let Python recurse deeper."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("usual_recursion")
def test_a_value_nested_too_deeply_is_requested_by_each_process(shared):
    one, two = shared(nested), shared(nested)
    assert one(380) == two(380)
    assert source.calls == [380, 380]


@pytest.mark.parametrize("value", [{1}, object(), math, [frozenset()], type("Text", (str,), {})("a"), City("a", 1)])
def test_other_values_are_refused(value):
    with pytest.raises(UnsupportedValueError):
        ValueCodec().write(value)


@given(st.binary() | st.sampled_from([b'{"$object": ["os.system", {"x": 1}]}', b'{"$tuple": 1}', b'{"$uuid": "z"}']))
def test_other_bytes_are_no_values(data):
    codec = ValueCodec()
    with contextlib.suppress(ValueError):
        codec.write(codec.read(data))


Item = TypeVar("Item")


@dataclasses.dataclass
class Place:
    name: str

    def __post_init__(self):
        self.slug = self.name.lower()

    @functools.cached_property
    def upper(self):
        return object()


@dataclasses.dataclass
class Box(Generic[Item]):
    content: Item


Named = dataclasses.make_dataclass("Place", [("number", int)])
Named.__module__ = "elsewhere"


class Tagged:
    __slots__ = ("tag",)


@dataclasses.dataclass
class Town(Tagged):
    name: str
    size: int = dataclasses.field(init=False)

    def __post_init__(self):
        self.tag = self.name.lower()


def boxes_of() -> Box[Place | Named | Town]: ...


def test_dataclasses_have_all_attributes_and_are_told_apart():
    codec = ValueCodec(dataclasses_of(boxes_of))
    place = Place("Wien")
    assert place.upper is not None
    [found, other] = codec.read(codec.write([Box[Place](place), Box(Named(1))]))
    assert (type(found), type(found.content), vars(found.content)) == (Box, Place, {"name": "Wien", "slug": "wien"})
    assert (type(other.content), vars(other.content)) == (Named, {"number": 1})
    town = Town("Graz")
    with pytest.raises(UnsupportedValueError, match="Town without a value of its field 'size'"):
        codec.write(town)
    town.size = 3
    read = codec.read(codec.write(town))
    assert (read.name, read.size, read.tag) == ("Graz", 3, "graz")
    place.slug = object()
    with pytest.raises(UnsupportedValueError, match="object"):
        codec.write(place)


def test_dataclasses_are_found_in_annotations():
    assert dataclasses_of(city_of) == {"City": City}
    assert dataclasses_of(number_of) == {}
    assert ValueCodec().read(b'[1, "a"]') == [1, "a"]
    assert uuid.UUID(int=1) != Decimal(1)
