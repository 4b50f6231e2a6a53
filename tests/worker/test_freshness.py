"""How old the rows may be that `cached` serves: expiry, refresh ahead, and old rows in the place of an error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from time_limit import LIMIT

from lookupcache.cache import Limits, RowCache
from lookupcache.config import LookupConfig
from lookupcache.decorator import cached
from lookupcache.errors import LookupTimeoutError

# ── the cache ────────────────────────────────────────────────────────────────────────────────────────────


def test_an_expired_entry_is_counted_once_and_stays_for_errors():
    cache = RowCache(Limits(write_seconds=10, miss_seconds=10, stale_seconds=60))
    cache.put(1, ["a"], 0)
    assert [cache.get(1, now) for now in (10, 11, 12)] == [["a"], None, None]
    assert [cache.find_stale(1, now).value for now in (12, 60)] == [["a"], ["a"]]
    assert cache.find_stale(1, 61) is None
    assert (cache.expirations, cache.rows) == (1, 1)


def test_rows_too_old_to_be_served_for_errors_are_swept():
    cache = RowCache(Limits(write_seconds=10, miss_seconds=10, stale_seconds=60))
    for key in range(100):
        cache.put(key, ["a"], 0)
    cache.put(1000, ["a"], 20)
    assert (len(cache), cache.expirations) == (101, 100)
    cache.put(1001, ["a"], 70)
    assert (len(cache), cache.expirations) == (2, 101)


def test_nothing_is_served_for_an_error_by_default():
    cache = RowCache(Limits())
    cache.put(1, ["a"], 0)
    assert (cache.find_stale(1, 0), cache.find_stale(2, 0)) == (None, None)


def test_jitter_takes_a_part_off_each_age_limit():
    cache = RowCache(Limits(write_seconds=10, jitter=0.5))
    for key in range(200):
        cache.put(key, ["a"], 0)
    ages = {sum(cache.get(key, now) is not None for key in range(200)) for now in (5, 6, 8, 9, 10.1)}
    assert max(ages) == 200
    assert min(ages) == 0
    assert len(ages) == 5


# ── the decorator, at one moment after the other ─────────────────────────────────────────────────────────


class Source:
    """A source whose rows change, and that can be down; it knows what it answered, and the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rows: list[Any] = ["old"]
        self.down = False
        self.calls = 0

    def clock(self) -> float:
        return self.now

    def answer(self, key: Any) -> list[Any]:
        self.calls += 1
        if self.down:
            raise ConnectionError("down")
        return list(self.rows)


Ask = Callable[[Any], Any]


def sync_one(source: Source, config: LookupConfig, runner: asyncio.Runner) -> tuple[Ask, Any]:
    lookup = cached(config, clock=source.clock)(source.answer)

    def look_up(key):
        try:
            return lookup(key)
        finally:
            lookup.close()

    return look_up, lookup


def sync_many(source: Source, config: LookupConfig, runner: asyncio.Runner) -> tuple[Ask, Any]:
    lookup = cached(config, clock=source.clock, batch=True)(lambda keys: [source.answer(key) for key in keys])

    def look_up(key):
        try:
            return lookup([key])[0]
        finally:
            lookup.close()

    return look_up, lookup


def async_one(source: Source, config: LookupConfig, runner: asyncio.Runner) -> tuple[Ask, Any]:
    @cached(config, clock=source.clock)
    async def lookup(key):
        await asyncio.sleep(0)
        return source.answer(key)

    async def look_up(key):
        try:
            return await lookup(key)
        finally:
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    return lambda key: runner.run(look_up(key)), lookup


KINDS = {make.__name__: make for make in (sync_one, sync_many, async_one)}


@pytest.fixture(params=KINDS)
def start(request):
    """Return a function that decorates a new source; it asks, and waits for what goes on in the background."""
    with asyncio.Runner() as runner:

        def start(**options: Any) -> tuple[Source, Ask, Any]:
            source = Source()
            return source, *KINDS[request.param](source, LookupConfig(cache="LRU", max_retries=0, **options), runner)

        yield start


def test_old_rows_are_served_while_one_call_fetches_new_ones(start):
    source, look_up, lookup = start(refresh_after_write=10)
    look_up(1)
    source.now, source.rows = 10.0, ["new"]
    assert (look_up(1), look_up(1), source.calls) == (["old"], ["new"], 2)
    assert (lookup.metrics().refreshes, lookup.metrics().hits, lookup.metrics().misses) == (1, 2, 1)


def test_a_failed_refresh_keeps_the_old_rows_and_is_retried(start):
    source, look_up, lookup = start(refresh_after_write=10)
    look_up(1)
    source.now, source.rows, source.down = 10.0, ["new"], True
    assert (look_up(1), lookup.metrics().errors) == (["old"], 1)
    source.down = False
    assert (look_up(1), look_up(1)) == (["old"], ["new"])
    assert (lookup.metrics().refreshes, lookup.metrics().stale) == (2, 0)


def test_old_rows_stand_in_for_an_error_until_they_are_too_old(start):
    source, look_up, lookup = start(expire_after_write=10, stale_if_error=60)
    look_up(1)
    source.now, source.down = 60.0, True
    assert (look_up(1), look_up(1), source.calls) == (["old"], ["old"], 3)
    source.now = 60.1
    with pytest.raises(ConnectionError):
        look_up(1)
    assert (lookup.metrics().stale, lookup.metrics().expirations, lookup.metrics().errors) == (2, 1, 3)


def test_a_known_miss_has_a_separate_age_limit(start):
    source, look_up, _ = start(expire_after_write=10, missing_key_expire_after_write=2)
    source.rows = []
    look_up(1)
    source.now, source.rows = 2.1, ["new"]
    assert (look_up(1), source.calls) == (["new"], 2)


def test_invalidated_rows_are_not_served_for_an_error(start):
    source, look_up, lookup = start(expire_after_write=10, stale_if_error=60)
    look_up(1)
    lookup.invalidate(1)
    source.down = True
    with pytest.raises(ConnectionError):
        look_up(1)


def test_while_a_refresh_is_under_way_no_other_begins():
    source, begun, end = Source(), threading.Event(), threading.Event()

    @cached(LookupConfig(cache="LRU", refresh_after_write=10), clock=source.clock)
    def lookup(key):
        if source.now:
            begun.set()
            end.wait(LIMIT)
        return source.answer(key)

    lookup(1)
    source.now, source.rows = 10.0, ["new"]
    assert [lookup(1) for _ in range(5)] == [["old"]] * 5
    begun.wait(LIMIT)
    end.set()
    lookup.close()
    assert (lookup(1), source.calls) == (["new"], 2)


def test_a_call_that_was_overtaken_by_invalidate_is_not_kept():
    async def main():
        source, go = Source(), asyncio.Event()

        @cached(LookupConfig(cache="LRU"))
        async def lookup(key):
            rows = source.answer(key)
            await go.wait()
            return rows

        first = asyncio.ensure_future(lookup(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        lookup.invalidate(1)
        source.rows = ["new"]
        go.set()
        return await asyncio.gather(first, lookup(1)), await lookup(1)

    assert asyncio.run(main()) == ([["old"], ["new"]], ["new"])


def test_a_refresh_that_hangs_is_abandoned():
    source, begun, end = Source(), threading.Event(), threading.Event()

    @cached(LookupConfig(cache="LRU", refresh_after_write=10, timeout="1 ms"), clock=source.clock)
    def lookup(key):
        if source.now and not begun.is_set():
            begun.set()
            end.wait(LIMIT)
        return source.answer(key)

    lookup(1)
    source.now, source.rows = 10.0, ["new"]
    while lookup(1) == ["old"]:
        begun.wait(LIMIT)
    end.set()
    assert lookup.metrics().timeouts >= 1


# ── any course of events ─────────────────────────────────────────────────────────────────────────────────


class Model:
    """What one key's answer has to be: the last rows fetched and their age, by the options alone."""

    def __init__(self, source: Source, options: dict[str, Any]) -> None:
        self.source = source
        self.options = options
        self.stored: list[Any] | None = None
        self.written = self.used = 0.0
        self.calls = 0

    def limit(self, option: str, default: float = float("inf")) -> float:
        value = self.options.get(option)
        return default if value is None else value

    def answer(self) -> list[Any] | type[Exception]:
        age, now = self.source.now - self.written, self.source.now
        expires = self.limit("expire_after_write")
        if self.stored == []:
            expires = self.limit("missing_key_expire_after_write", expires)
        if self.stored is not None and age <= expires and now - self.used <= self.limit("expire_after_access"):
            served, self.used = self.stored, now
            if age >= self.limit("refresh_after_write"):
                self.fetch()
            return served
        if self.fetch():
            return self.source.rows
        if self.stored is not None and age <= self.limit("stale_if_error", -1.0):
            return self.stored
        return ConnectionError

    def fetch(self) -> bool:
        self.calls += 1
        if self.source.down:
            return False
        kept = self.source.rows or self.options.get("missing_key", True)
        self.stored = self.source.rows if kept else None
        self.written = self.used = self.source.now
        return True


EVENTS = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, 6)),
    st.tuples(st.just("down"), st.booleans()),
    st.tuples(st.just("rows"), st.lists(st.integers(0, 3), max_size=2)),
    st.tuples(st.just("ask"), st.integers(0, 1)),
    st.tuples(st.just("ask"), st.integers(0, 1)),
)
OPTIONS = st.fixed_dictionaries(
    {"expire_after_write": st.just(5.0)},
    optional={
        "refresh_after_write": st.sampled_from([2.0, 4.0]),
        "stale_if_error": st.sampled_from([6.0, 9.0, 20.0]),
        "missing_key_expire_after_write": st.sampled_from([1.0, 3.0]),
        "expire_after_access": st.sampled_from([2.0, 4.0]),
    },
) | st.fixed_dictionaries(
    {"missing_key": st.booleans()}, optional={"refresh_after_write": st.just(2.0), "expire_after_access": st.just(4.0)}
)


@pytest.mark.extended
@settings(max_examples=examples(150), deadline=None)
@given(options=OPTIONS, events=st.lists(EVENTS, max_size=40))
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_from_the_source_within_the_allowed_age(kind, options, events):
    source = Source()
    models = [Model(source, options), Model(source, options)]
    with asyncio.Runner() as runner:
        look_up, _ = KINDS[kind](source, LookupConfig(cache="LRU", max_retries=0, **options), runner)
        for event, value in events:
            if event == "wait":
                source.now += value
            elif event == "ask":
                assert answered(look_up, value) == models[value].answer()
                assert source.calls == sum(model.calls for model in models)
            else:
                setattr(source, event, value)


def answered(look_up: Ask, key: Any) -> Any:
    try:
        return look_up(key)
    except Exception as error:
        return type(error)


COMES = {"right": None, "fails": ConnectionError, "hangs": LookupTimeoutError, "cancels": asyncio.CancelledError}
WANTS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=examples(100), deadline=None)
@given(wants=WANTS, course=st.lists(st.sampled_from(sorted(COMES)), max_size=8), capacity=st.integers(1, 4))
@pytest.mark.parametrize("batch", [False, True])
def test_an_error_timeout_or_cancellation_is_never_a_miss(batch, wants, course, capacity):
    config = LookupConfig(cache="LRU", timeout="2 ms", retry_delay="0 s", max_retries=1, async_capacity=capacity)
    coming = iter(course)

    async def one(key):
        return (await many([key]))[0]

    async def many(keys):
        come = next(coming, "right")
        await (asyncio.Event().wait() if come == "hangs" else asyncio.sleep(0))
        if error := COMES[come]:
            raise error(come)
        return [[key, "row"] for key in keys]

    async def main():
        lookup = cached(config, batch=batch)(many if batch else one)
        tasks = [asyncio.ensure_future(lookup([key] if batch else key)) for key, _ in wants]
        await asyncio.sleep(0)
        for task, (_, cancelled) in zip(tasks, wants, strict=True):
            if cancelled:
                task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    # A machine that is busy may let the time pass though nothing hangs.
    errors = {LookupTimeoutError, *(COMES[come] for come in course)}
    for answer, (key, cancelled) in zip(asyncio.run(main()), wants, strict=True):
        if answer != ([[key, "row"]] if batch else [key, "row"]):
            assert type(answer) in errors or (cancelled and type(answer) is asyncio.CancelledError)
