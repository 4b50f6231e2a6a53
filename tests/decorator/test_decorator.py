"""The decorator on plain functions: one suite over sync, async, batch and async batch."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import threading
import time
import traceback
import weakref
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from time_limit import LIMIT

from lookupcache.config import LookupConfig
from lookupcache.decorator import cached
from lookupcache.errors import LookupRefusedError, LookupTimeoutError, OptionError, SourceError

ROWS = {1: [{"id": 1, "name": "ann"}], 2: [{"id": 2, "name": "bob"}, {"id": 2, "name": "rob"}]}
LRU = LookupConfig(cache="LRU", max_rows=100, retry_delay=0.0001)


class Source:
    """Answers from ROWS; remembers the requests; fails as often as is set."""

    def __init__(self, fails: int = 0, error: Exception | None = None) -> None:
        self.requested: list[Any] = []
        self.fails = fails
        self.error = error or ConnectionError("down")

    def one(self, key):
        self.requested.append(key)
        if self.fails:
            self.fails -= 1
            raise self.error
        return ROWS.get(key, [])

    def many(self, keys):
        self.one(tuple(keys))
        return [ROWS.get(key, []) for key in keys]


def sync_one(source: Source, config: LookupConfig, **more: Any) -> Callable[[int], Any]:
    def lookup(key):
        return source.one(key)

    return cached(config, **more)(lookup)


def pooled_one(source: Source, config: LookupConfig, **more: Any) -> Callable[[int], Any]:
    return sync_one(source, replace(config, async_=True), **more)


def pooled_many(source: Source, config: LookupConfig, **more: Any) -> Any:
    return sync_many(source, replace(config, async_=True), **more)


def sync_many(source: Source, config: LookupConfig, **more: Any) -> Any:
    function = cached(config, batch=True, **more)(lambda keys: source.many(keys))
    return _equip(lambda key: function([key])[0], function)


def async_one(source: Source, config: LookupConfig, **more: Any) -> Any:
    @cached(config, **more)
    async def lookup(key):
        await asyncio.sleep(0)
        return source.one(key)

    return _equip(lambda key: asyncio.run(lookup(key)), lookup)


def async_many(source: Source, config: LookupConfig, **more: Any) -> Any:
    @cached(config, batch=True, **more)
    async def lookup(keys):
        await asyncio.sleep(0)
        return source.many(keys)

    return _equip(lambda key: asyncio.run(lookup([key]))[0], lookup)


def _equip(wrapper, function):
    wrapper.metrics, wrapper.invalidate, wrapper.clear = function.metrics, function.invalidate, function.clear
    return wrapper


KINDS = [sync_one, sync_many, pooled_one, pooled_many, async_one, async_many]


@pytest.fixture(params=KINDS, ids=lambda make: make.__name__)
def decorate(request):
    return request.param


def test_asks_once_and_returns_the_same_rows(decorate):
    source = Source()
    lookup = decorate(source, LRU)
    assert [lookup(key) for key in (1, 2, 1, 2)] == [ROWS[1], ROWS[2], ROWS[1], ROWS[2]]
    assert len(source.requested) == 2
    assert (lookup.metrics().hits, lookup.metrics().misses, lookup.metrics().calls) == (2, 2, 2)


def test_remembers_that_a_key_has_no_rows(decorate):
    source = Source()
    lookup = decorate(source, LRU)
    assert (lookup(9), lookup(9), len(source.requested)) == ([], [], 1)


def test_every_hit_returns_the_same_object(decorate):
    lookup = decorate(Source(), LRU)
    assert lookup(1) is lookup(1)


def test_rows_expire_by_the_clock(decorate):
    source, now = Source(), [0.0]
    config = LookupConfig(cache="TTL", expire_after_write="10 s")
    lookup = decorate(source, config, clock=lambda: now[0])
    for now[0] in (0.0, 10.0, 10.1):
        lookup(1)
    assert (len(source.requested), lookup.metrics().expirations) == (2, 1)


def test_counts_rows_against_the_limit(decorate):
    source = Source()
    lookup = decorate(source, LookupConfig(cache="LRU", max_rows=2))
    for key in (1, 2, 1):
        lookup(key)
    assert (len(source.requested), lookup.metrics().evictions, lookup.metrics().cached_rows) == (3, 2, 1)


def test_retries_inside_the_cache(decorate):
    source = Source(fails=2)
    lookup = decorate(source, LRU)
    assert (lookup(1), lookup(1)) == (ROWS[1], ROWS[1])
    assert (len(source.requested), lookup.metrics().retries, lookup.metrics().errors) == (3, 2, 2)


def test_an_error_reaches_the_caller_and_is_not_kept(decorate):
    source = Source(fails=1, error=ValueError("no such thing"))
    lookup = decorate(source, LRU)
    with pytest.raises(ValueError, match="no such thing"):
        lookup(1)
    assert lookup(1) == ROWS[1]
    assert len(source.requested) == 2


def test_without_a_cache_it_asks_every_time(decorate):
    source = Source()
    lookup = decorate(source, LookupConfig())
    assert (lookup(1), lookup(1), len(source.requested)) == (ROWS[1], ROWS[1], 2)


def test_invalidate_and_clear_forget(decorate):
    source = Source()
    lookup = decorate(source, LRU)
    lookup(1), lookup(2)
    lookup.invalidate(1)
    lookup(1), lookup(2)
    lookup.clear()
    lookup(2)
    assert len(source.requested) == 4


def test_a_batch_asks_only_for_what_is_missing_each_key_once():
    source = Source()
    lookup = cached(LRU, batch=True)(source.many)
    lookup([1, 9])
    assert lookup([9, 2, 2, 1]) == [[], ROWS[2], ROWS[2], ROWS[1]]
    assert source.requested == [(1, 9), (2,)]


def test_a_batch_that_answers_short_is_an_error():
    lookup = cached(LRU, batch=True)(lambda keys: [[]])
    with pytest.raises(SourceError, match="returned 1 values for 2 keys"):
        lookup([1, 2])


def test_a_key_of_several_arguments():
    calls = []

    @cached(LRU)
    def lookup(a, b):
        calls.append((a, b))
        return [a + b]

    assert (lookup(1, 2), lookup(1, 2), lookup((1, 2), (3,))) == ([3], [3], [(1, 2, 3)])
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        lookup.invalidate((1, 2))
    assert (lookup.invalidate(1, 2), lookup.invalidate(b=2, a=1)) == (True, False)
    lookup(1, 2)
    assert calls == [(1, 2), ((1, 2), (3,)), (1, 2)]


def test_a_call_goes_on_after_its_only_caller_was_cancelled():
    calls = []

    @cached(LRU)
    async def lookup(key):
        calls.append(key)
        await ended.wait()
        return [key]

    async def main():
        only = asyncio.ensure_future(lookup(7))
        await asyncio.sleep(0)
        only.cancel()
        await asyncio.gather(only, return_exceptions=True)
        ended.set()
        return await lookup(7)

    ended = asyncio.Event()
    assert (asyncio.run(main()), calls) == ([7], [7])


def test_an_async_lookup_that_hangs_runs_out_of_time():
    @cached(LookupConfig(cache="LRU", timeout="10 ms"))
    async def lookup(key):
        await asyncio.Event().wait()

    with pytest.raises(LookupTimeoutError, match=r"within 0\.01 s"):
        asyncio.run(lookup(1))


def test_an_async_lookup_that_ignores_cancellation_is_abandoned(monkeypatch):
    monkeypatch.setattr("lookupcache.executor.task_slots.CANCEL_SECONDS", 0.01)

    @cached(LookupConfig(cache="LRU", timeout="10 ms", async_capacity=1))
    async def lookup(key):
        while key == 1 and not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return key

    async def main():
        found = await asyncio.gather(lookup(1), lookup(2), return_exceptions=True)
        released.set()
        return [*found, await lookup(3)]

    released = asyncio.Event()
    first, *others = asyncio.run(main())
    assert (type(first), others, lookup.metrics().timeouts) == (LookupTimeoutError, [2, 3], 1)


@pytest.mark.parametrize("ends", ["answered", "cancelled", "timed out"])
def test_an_event_loop_that_has_ended_is_not_kept(ends):
    @cached(timeout="10 ms" if ends == "timed out" else "1 h")
    async def lookup(key):
        if ends != "answered":
            await asyncio.Event().wait()
        return key

    async def main():
        caller = asyncio.gather(lookup(1), return_exceptions=True)
        await (asyncio.sleep(0) if ends == "cancelled" else caller)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(main())
    gc.collect()
    assert loop() is None


NEEDS_MORE = {
    "ALL": {"cache": "ALL"},
    "dead-letter": {"on_error": "dead-letter", "dead_letter_path": "left"},
    "age-column": {"age_column": "age"},
    "allow-unordered": {"output_mode": "allow-unordered"},
    "shuffle": {"shuffle": True},
    "batch.max-size": {"batch_max_size": 10},
}


@pytest.mark.parametrize("named", NEEDS_MORE)
def test_refuses_options_that_need_a_table_a_join_or_a_batch(named):
    with pytest.raises(OptionError, match=named):
        cached(LookupConfig(**NEEDS_MORE[named]))


def test_an_async_function_cannot_be_called_sync():
    async def lookup(key): ...

    with pytest.raises(OptionError, match=r"lookup\.async"):
        cached(LookupConfig(async_=False))(lookup)


def test_max_bytes_bounds_python_rows():
    lookup = cached(LookupConfig(cache="LRU", max_bytes="20 kb"))(lambda key: [{"id": key, "text": "x" * 100}])
    for key in range(500):
        lookup(key)
    assert 0 < lookup.metrics().cached_bytes <= 20 * 1024


def gathered(lookup: Any, keys: list[Any]) -> list[Any]:
    async def main():
        return await asyncio.gather(*map(lookup, keys))

    return asyncio.run(main())


# ── kinds of function ────────────────────────────────────────────────────────────────────────────────────


class Shop:
    """A source that is an object; it notes what happens to it."""

    notes: list[str] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.notes = Shop.notes

    def open(self):
        self.notes.append("open")

    def close(self):
        self.notes.append("close")

    def __call__(self, key):
        self.notes.append("call")
        return [key]


class AsyncShop(Shop):
    async def open(self):
        super().open()

    async def close(self):
        super().close()

    async def __call__(self, key):
        await asyncio.sleep(0)
        return super().__call__(key)


class SlowShop(Shop):
    def open(self):
        Shop.open(self)
        if len(self.notes) == 1:
            raise ConnectionError("not yet")


class SlowAsyncShop(AsyncShop):
    async def open(self):
        await asyncio.sleep(0)
        SlowShop.open(self)


@pytest.mark.parametrize("make", [lambda shop: shop, lambda shop: shop()], ids=["class", "object"])
def test_an_object_is_opened_once_and_closed(make):
    Shop.notes = []
    with closing(cached(LRU)(make(Shop))) as lookup:
        assert (list(Shop.notes), lookup(1), lookup(2), lookup(1)) == ([], [1], [2], [1])
        assert lookup.__doc__ == Shop.__doc__
    assert Shop.notes == ["open", "call", "call", "close"]


@pytest.mark.parametrize("make", [lambda shop: shop, lambda shop: shop()], ids=["class", "object"])
def test_an_async_object_is_opened_once_and_closed(make):
    async def main():
        async with aclosing(cached(LRU)(make(AsyncShop))) as lookup:
            return await asyncio.gather(lookup(1), lookup(2), lookup(1))

    Shop.notes = []
    assert asyncio.run(main()) == [[1], [2], [1]]
    assert Shop.notes == ["open", "call", "call", "close"]


def test_a_sync_object_cannot_be_opened_async():
    class Mixed(Shop):
        async def open(self): ...

    with pytest.raises(OptionError, match="its open is async"):
        cached(LRU)(Mixed)


def test_an_open_that_fails_is_tried_again():
    Shop.notes = []
    assert cached(LRU)(SlowShop)(1) == [1]
    assert Shop.notes == ["open", "open", "call"]


def test_an_async_open_that_fails_is_tried_again():
    Shop.notes = []
    assert gathered(cached(LRU)(SlowAsyncShop), [1, 2]) == [[1], [2]]
    assert Shop.notes == ["open", "open", "call", "call"]


async def one_row(key): ...


async def items(key):
    yield key


Pair = namedtuple("Pair", "id name")


WRONG = {
    "a coroutine": (False, lambda key: one_row(key), "returned coroutine, which can be used only once"),
    "async items": (False, lambda key: items(key), "returned async_generator, which can be used only once"),
    "an open file": (False, lambda key: io.StringIO("rows"), "returned StringIO, which can be used only once"),
    "no batch at all": (True, lambda keys: None, "returned NoneType for its keys, not a list"),
    "a batch without order": (True, lambda keys: {1, 2}, "returned set for its keys, not a list"),
    "a text for a batch": (True, lambda keys: "1", "returned str for its keys, not a list"),
    "one row for a batch": (True, lambda keys: Pair(1, "ann"), "returned Pair for its keys, not a list"),
    "columns for a batch": (True, lambda keys: pa.table({"id": [1]}), "returned Table for its keys, not a list"),
    "a batch of other keys": (True, lambda keys: {"1": []}, "a value for '1', which is not one of its keys"),
    "a short batch": (True, lambda keys: [], "returned 0 values for 1 keys"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_answer_that_cannot_be_kept_is_an_error(case):
    batch, function, said = WRONG[case]
    with pytest.raises(SourceError, match=said):
        cached(LRU, batch=batch)(function)([1] if batch else 1)


# ── batches, and how many at a time ──────────────────────────────────────────────────────────────────────


def test_a_callers_own_keys_are_split():
    source = Source()
    lookup = cached(LookupConfig(batch_max_size=2), batch=True)(source.many)
    assert lookup([1, 2, 3, 1]) == [ROWS[1], ROWS[2], [], ROWS[1]]
    assert source.requested == [(1, 2), (3,)]


LONG = LookupConfig(cache="LRU", batch_max_size=3, batch_max_delay="1 h")


def test_coroutines_fill_a_call_together():
    source = Source()

    @cached(LONG, batch=True)
    async def lookup(keys):
        return source.many(keys)

    assert gathered(lookup, [[1], [2, 1], [3]]) == [[ROWS[1]], [ROWS[2], ROWS[1]], [[]]]
    assert source.requested == [(1, 2, 3)]


@pytest.mark.parametrize("pooled", [False, True])
def test_threads_fill_a_call_together(pooled):
    source = Source()
    lookup = cached(replace(LONG, async_=pooled), batch=True)(source.many)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lookup, [[1], [2], [3]]))
    assert answers == [[ROWS[1]], [ROWS[2]], [[]]]
    assert [sorted(keys) for keys in source.requested] == [[1, 2, 3]]


@pytest.mark.parametrize("make", [sync_many, pooled_many, async_many])
def test_a_call_that_is_old_enough_does_not_wait_to_be_full(make):
    lookup = make(Source(), LookupConfig(batch_max_size=3, batch_max_delay="1 ms"))
    assert lookup(1) == ROWS[1]


def test_no_more_coroutines_call_than_there_is_room_for():
    calling, most = set(), []

    @cached(LookupConfig(async_capacity=3))
    async def lookup(key):
        calling.add(key)
        most.append(len(calling))
        await asyncio.sleep(0)
        calling.remove(key)
        return [key]

    assert gathered(lookup, list(range(20))) == [[key] for key in range(20)]
    assert max(most) == 3


def test_no_more_threads_call_than_there_is_room_for():
    all_or_nothing = threading.Barrier(3)

    @cached(LookupConfig(async_=True, async_capacity=3, batch_max_size=1), batch=True)
    def lookup(keys):
        all_or_nothing.wait(LIMIT)
        return [[threading.current_thread().name, *keys] for _ in keys]

    answers = lookup(list(range(9)))
    assert [key for _, key in answers] == list(range(9))


def test_a_call_sees_the_context_of_its_caller(decorate):
    """In whichever thread it runs, and whoever ran there before; what it sets is not its caller's."""
    user = ContextVar("user", default="nobody")
    seen = []

    class Watched(Source):
        def one(self, key):
            seen.append(user.get())
            user.set("the call")
            return super().one(key)

    lookup = decorate(Watched(), replace(LRU, async_capacity=1))
    for name in ("ann", "bob", "cem"):
        user.set(name)
        lookup(name)
        assert decorate in (sync_one, sync_many) or user.get() == name
    assert seen == ["ann", "bob", "cem"]


def test_calls_on_one_loop_run_in_their_callers_contexts():
    user = ContextVar("user", default="nobody")

    @cached(LookupConfig(async_capacity=1))
    async def lookup(key):
        await asyncio.sleep(0)
        return [user.get()]

    async def as_user(name):
        user.set(name)
        return await lookup(name)

    assert gathered(as_user, ["ann", "bob", "cem"]) == [["ann"], ["bob"], ["cem"]]


# ── threads and event loops ──────────────────────────────────────────────────────────────────────────────


def test_many_event_loops_that_want_a_cold_key_make_one_call():
    started, wanting, calls = threading.Barrier(50), threading.Semaphore(0), []

    @cached(LRU)
    async def lookup(key):
        calls.append(key)
        await asyncio.to_thread(lambda: [wanting.acquire(timeout=LIMIT) for _ in range(50)])
        return [key]

    async def want():
        requested = asyncio.ensure_future(lookup(7))
        await asyncio.sleep(0)
        wanting.release()
        return await requested

    def run(_):
        started.wait(LIMIT)
        return asyncio.run(want())

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(run, range(50))) == [[7]] * 50
    assert calls == [7]
    assert (lookup.metrics().misses, lookup.metrics().hits) == (1, 49)


def test_a_waiting_caller_repeats_a_call_whose_loop_has_ended():
    calls, begun, joined = [], threading.Event(), threading.Event()

    @cached(LRU)
    async def lookup(key):
        calls.append(threading.current_thread())
        if len(calls) == 1:
            begun.set()
            await asyncio.Event().wait()
        return [key]

    async def leave_when_joined():
        requested = asyncio.ensure_future(lookup(7))
        await asyncio.to_thread(joined.wait, 10)
        assert not requested.done()

    async def join():
        requested = asyncio.ensure_future(lookup(7))
        await asyncio.sleep(0)
        joined.set()
        return await requested

    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(asyncio.run, leave_when_joined())
        begun.wait(LIMIT)
        assert asyncio.run(join()) == [7]
        leaving.result(LIMIT)
    assert len(set(calls)) == 2


def test_one_function_serves_one_event_loop_after_the_other():
    lookup = async_one(Source(), LookupConfig())
    assert [lookup(1), lookup(1)] == [ROWS[1]] * 2


def test_an_abandoned_event_loop_does_not_keep_its_keys():
    begun = []

    @cached(LRU)
    async def lookup(key):
        begun.append(key)
        await (asyncio.Event().wait() if len(begun) == 1 else asyncio.sleep(0))
        return [key]

    loop = asyncio.new_event_loop()
    left = loop.create_task(lookup(7))
    loop.run_until_complete(asyncio.sleep(0.0))
    loop.close()
    left._log_destroy_pending = False
    assert asyncio.run(lookup(7)) == [7]


def test_a_function_that_cancels_itself_fails_its_callers():
    @cached(LRU)
    async def lookup(key):
        raise asyncio.CancelledError("by its client")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(lookup(1))


def test_closing_ends_what_is_under_way():
    async def main():
        @cached(LRU)
        async def lookup(key):
            await asyncio.Event().wait()

        requested = asyncio.ensure_future(lookup(7))
        await asyncio.sleep(0)
        await lookup.close()
        return await asyncio.gather(requested, return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(main())] == [asyncio.CancelledError]


# ── what hangs ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_hanging_thread_is_abandoned_and_its_slot_is_freed():
    hangs, end, ended = threading.Event(), threading.Event(), []

    @cached(LookupConfig(cache="LRU", async_=True, async_capacity=1, timeout="20 ms"))
    def lookup(key):
        if not hangs.is_set():
            hangs.set()
            ended.append(end.wait(LIMIT))
        return [key]

    with pytest.raises(LookupTimeoutError, match=r"within 0\.02 s"):
        lookup(1)
    assert (lookup(1), lookup(2), lookup.metrics().timeouts, ended) == ([1], [2], 1, [])
    end.set()
    assert (lookup(1), lookup.metrics().calls) == ([1], 3)


def test_a_wait_for_the_call_of_another_thread_times_out():
    begun, end = threading.Event(), threading.Event()

    @cached(LookupConfig(cache="LRU", timeout="300 ms"))
    def lookup(key):
        begun.set()
        end.wait(LIMIT)
        return [key]

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lookup, 1)
        begun.wait(LIMIT)
        with pytest.raises(LookupTimeoutError):
            lookup(1)
        end.set()
        assert first.result(LIMIT) == [1]


def test_a_queued_call_runs_although_a_refresh_hangs_before_it():
    now, hangs, end, calls = [0.0], threading.Event(), threading.Event(), []
    options = {"async_": True, "async_capacity": 1, "timeout": "100 ms", "refresh_after_write": "10 s"}

    @cached(clock=lambda: now[0], **options)
    def lookup(key):
        calls.append(key)
        if key == 1 and calls.count(1) == 2:
            hangs.set()
            end.wait(LIMIT)
        return key

    lookup(1)
    now[0] = 11.0
    assert (lookup(1), hangs.wait(LIMIT)) == (1, True)
    assert (lookup(2), lookup.metrics().timeouts) == (2, 1)
    end.set()


def test_a_queued_call_runs_if_the_caller_before_it_has_left():
    hangs, end = threading.Event(), threading.Event()

    @cached(async_=True, async_capacity=1, timeout="100 ms")
    def lookup(key):
        if key == 1:
            hangs.set()
            end.wait(LIMIT)
        return key

    # The caller waiting for key 1 has stopped, as after Ctrl-C: nothing but the queue notices that it takes too long.
    group = lookup.lookup
    group._make_opened(group._want([(1,)]))
    assert hangs.wait(LIMIT)
    assert [lookup(2), lookup(3), lookup.metrics().timeouts] == [2, 3, 1]
    end.set()


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("make", [lambda shop: shop, lambda shop: shop()], ids=["class", "object"])
def test_a_hanging_open_delays_calls_by_the_timeout_at_most(make, pooled):
    hangs, end, closed = threading.Event(), threading.Event(), threading.Event()

    class Hanging:
        def open(self):
            if not hangs.is_set():
                hangs.set()
                end.wait(LIMIT)

        def close(self):
            closed.set()

        def __call__(self, key):
            return key

    lookup = cached(timeout="100 ms", async_=pooled, max_retries=0)(make(Hanging))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lookup, 1)
        assert hangs.wait(LIMIT)
        if pooled:
            assert isinstance(first.exception(LIMIT), LookupTimeoutError)
        assert lookup(2) == 2
        end.set()
        if not pooled:
            assert first.result(LIMIT) == 1
        assert closed.wait(LIMIT) if make(Hanging) is Hanging else not closed.is_set()


def left_behind(lookup: Any, key: int, close: bool) -> asyncio.AbstractEventLoop:
    """Ask for a key on an event loop that then runs no more."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(lookup(key))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False
    if close:
        for other in asyncio.all_tasks(loop):
            other._log_destroy_pending = False
        loop.close()
    return loop


@pytest.mark.parametrize("close", [True, False], ids=["closed", "stopped"])
@pytest.mark.parametrize("what", ["call", "open"])
def test_nobody_waits_for_an_event_loop_that_does_not_run(what, close):
    begun = []

    class Hanging:
        async def open(self):
            await self.hang("open")

        async def __call__(self, key):
            await self.hang("call")
            return key

        async def hang(self, where):
            if where == what and not begun:
                begun.append(where)
                await asyncio.Event().wait()

    lookup = cached(timeout="1 h")(Hanging)
    loop = left_behind(lookup, 1, close)
    assert (asyncio.run(lookup(1)), asyncio.run(lookup(2)), begun) == (1, 2, [what])
    if not close:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_a_caller_notices_the_end_of_the_event_loop_it_waits_for():
    begun, joined = threading.Event(), threading.Event()

    @cached(timeout="1 h")
    async def lookup(key):
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return key

    def leave():
        loop = asyncio.new_event_loop()
        task = loop.create_task(lookup(7))
        loop.run_until_complete(asyncio.to_thread(joined.wait, 10))
        task._log_destroy_pending = False
        for other in asyncio.all_tasks(loop):
            other._log_destroy_pending = False
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    async def join():
        requested = asyncio.ensure_future(lookup(7))
        await asyncio.sleep(0)
        joined.set()
        return await requested

    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(leave)
        begun.wait(LIMIT)
        assert asyncio.run(join()) == 7
        leaving.result(LIMIT)


# ── functions that ask themselves ────────────────────────────────────────────────────────────────────────

WAYS = {
    "in its thread": {},
    "in a pool": {"async_": True, "async_capacity": 1},
    "in a pool of three": {"async_": True, "async_capacity": 3},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", [False, True])
def test_a_function_may_call_itself_deeper_than_the_capacity(way, batch):
    if batch:
        one = lambda n: n if n < 2 else lookup([n - 1])[0] + lookup([n - 2])[0]  # noqa: E731
        lookup = cached(batch=True, **WAYS[way])(lambda ns: list(map(one, ns)))
        assert (lookup([12]), lookup.metrics().requested_keys) == ([144], 13)
    else:
        fib = cached(**WAYS[way])(lambda n: n if n < 2 else fib(n - 1) + fib(n - 2))
        assert (fib(12), fib.metrics().calls) == (144, 13)


@pytest.mark.parametrize("capacity", [1, 3])
def test_an_async_function_may_recurse_deeper_than_the_capacity(capacity):
    @cached(async_capacity=capacity)
    async def fib(n):
        return n if n < 2 else sum(await asyncio.gather(fib(n - 1), fib(n - 2)))

    async def main():
        return await asyncio.gather(*(fib(n) for n in range(13)))

    assert asyncio.run(main())[12] == 144
    assert fib.metrics().calls == 13


@pytest.mark.parametrize("way", WAYS)
def test_many_threads_may_call_a_function_that_calls_itself(way):
    fib = cached(**WAYS[way])(lambda n: n if n < 2 else fib(n - 1) + fib(n - 2))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fib, range(30))) == [fib(n) for n in range(30)]
    assert fib.metrics().calls == 30


def test_two_functions_may_call_each_other():
    even = cached(async_=True, async_capacity=1)(lambda n: n == 0 or odd(n - 1))
    odd = cached(async_=True, async_capacity=1)(lambda n: n != 0 and even(n - 1))
    assert (even(20), odd(20)) == (True, False)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_function_that_waits_for_itself_fails_at_once(way, length):
    lookup = cached(max_retries=0, timeout="1 h", **WAYS[way])(lambda n: lookup((n + 1) % length))
    with pytest.raises(RecursionError, match=r"(?s)The call for \(\d\) waits for itself.*Hint"):
        lookup(0)


def test_an_async_function_that_waits_for_itself_fails_at_once():
    @cached(max_retries=0, timeout="1 h")
    async def lookup(n):
        return await lookup((n + 1) % 3)

    with pytest.raises(RecursionError, match="waits for itself"):
        asyncio.run(lookup(0))


@pytest.mark.parametrize("way", WAYS)
def test_an_open_that_calls_its_own_object_fails_at_once(way):
    class Asking(Shop):
        def open(self):
            return lookup(0)

    lookup = cached(max_retries=0, timeout="10 s", **WAYS[way])(Asking)
    with pytest.raises(RecursionError, match="waits for itself: the function, or its 'open'"):
        lookup(1)


def test_an_async_open_that_calls_its_own_object_fails_at_once():
    class Asking(AsyncShop):
        async def open(self):
            return await lookup(0)

    lookup = cached(max_retries=0, timeout="10 s")(Asking)
    with pytest.raises(RecursionError, match="waits for itself"):
        asyncio.run(lookup(1))


@pytest.mark.parametrize("way", WAYS)
def test_threads_that_wait_for_each_other_fail_at_once(way):
    both = threading.Barrier(2)

    @cached(max_retries=0, timeout="1 h", **{**WAYS[way], "async_capacity": 2})
    def lookup(n):
        if not both.broken and both.n_waiting < 2 and threading.current_thread() not in seen:
            seen.add(threading.current_thread())
            both.wait(LIMIT)
        return lookup(1 - n)

    seen: set[threading.Thread] = set()
    with ThreadPoolExecutor(2) as pool:
        errors = [requested.exception(LIMIT) for requested in [pool.submit(lookup, n) for n in (0, 1)]]
    assert [type(error) for error in errors] == [RecursionError] * 2


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("waits", [False, True])
def test_an_async_function_raising_generator_exit_runs_once(waits):
    requested = []

    @cached(max_retries=0)
    async def lookup(key):
        requested.append(key)
        if waits:
            await asyncio.sleep(0)
        if len(requested) < 5:
            raise GeneratorExit
        return key

    async def main():
        with pytest.raises(GeneratorExit):
            await lookup(1)

    asyncio.run(main())
    assert requested == [1]


NULL = LookupConfig(cache="LRU", max_retries=0, on_error="null", error_column="error")


def test_null_stands_for_an_error_and_an_empty_list_for_a_miss(decorate):
    lookup = decorate(Source(fails=1), NULL)
    assert [lookup(9), lookup(9), lookup(9)] == [None, [], []]
    assert (lookup.metrics().errors, lookup.metrics().failed_rows) == (1, 1)


def test_only_the_keys_of_a_failed_call_in_a_batch_are_null():
    lookup = cached(replace(NULL, batch_max_size=1), batch=True)(Source(fails=1).many)
    assert lookup([1, 2, 1]) == [None, ROWS[2], None]


def test_an_error_ends_a_batch_and_leaves_no_key_behind():
    source = Source(fails=1)
    lookup = cached(LookupConfig(max_retries=0, batch_max_size=1, timeout="1 s"), batch=True)(source.many)
    with pytest.raises(ConnectionError):
        lookup([1, 2])
    assert (lookup([2]), source.requested) == ([ROWS[2]], [(1,), (2,)])


def test_a_key_without_rows_is_requested_again(decorate):
    source = Source()
    lookup = decorate(source, replace(LRU, on_miss_max_attempts=2, on_miss_delay=0.001))
    assert (lookup(9), lookup(1)) == ([], ROWS[1])
    assert (lookup.metrics().miss_retries, len(source.requested)) == (2, 4)


def test_a_source_that_fails_again_and_again_is_left_alone(decorate):
    source, now = Source(fails=2), [0.0]
    config = LookupConfig(max_retries=0, breaker_failures=2, breaker_delay=30)
    lookup = decorate(source, config, clock=lambda: now[0])
    for error in (ConnectionError, ConnectionError, LookupRefusedError):
        with pytest.raises(error):
            lookup(1)
    now[0] = 31.0
    assert (lookup(1), len(source.requested), lookup.metrics().refused) == (ROWS[1], 3, 1)


def test_waits_as_long_as_the_source_says(decorate):
    said = []
    lookup = decorate(Source(fails=1), LRU, retry_after=lambda error: said.append(str(error)) or 0.001)
    assert (lookup(1), set(said)) == (ROWS[1], {"down"})


def test_calls_are_delayed_by_the_rate_limit(decorate):
    lookup = decorate(Source(), LookupConfig(rate_limit=20))
    assert [lookup(key) for key in (1, 1, 1)] == [ROWS[1]] * 3
    assert lookup.metrics().throttled_seconds > 0


class Odd(BaseException):
    pass


ODD = [Odd("odd"), ValueError("bad"), StopAsyncIteration("end"), TimeoutError("own")]
NOT_OF_COROUTINES = [StopIteration("end"), GeneratorExit()]


@pytest.mark.parametrize(
    ("make", "error"),
    [(make, error) for make in KINDS for error in ODD + NOT_OF_COROUTINES * (make not in (async_one, async_many))],
)
def test_any_error_of_a_function_arrives_as_it_is(make, error):
    source = Source(fails=1, error=error)
    lookup = make(source, LookupConfig(cache="LRU", max_retries=0))
    with pytest.raises(type(error)) as raised:
        lookup(1)
    assert (raised.value is error, lookup(1)) == (True, ROWS[1])


@pytest.mark.parametrize("kind", ["sync", "pooled", "async"])
@pytest.mark.parametrize("batch", [False, True])
def test_no_caller_of_a_failed_call_finds_the_locals_of_another(kind, batch):
    """One error for all would have the frames of all callers in its traceback, and keep them alive."""
    callers, freed = 30, []

    def fail():
        while lookup.metrics().rows < callers:
            time.sleep(0.001)
        raise ValueError("down")

    async def answer_later(key):
        await asyncio.to_thread(fail)

    function = answer_later if kind == "async" else lambda key: fail()
    lookup = cached(max_retries=0, batch=batch, async_=None if kind == "sync" else True)(function)
    argument = [1] if batch else 1

    def owners(error):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return len(frames), {frame.f_locals["request"] for frame in frames if "request" in frame.f_locals}

    def call(request):
        freed.append(weakref.ref(request))
        try:
            lookup(argument)
        except ValueError as error:
            return request, error

    async def call_later(request):
        freed.append(weakref.ref(request))
        try:
            await lookup(argument)
        except ValueError as error:
            return request, error

    async def call_all():
        return await asyncio.gather(*(call_later(Source()) for _ in range(callers)))

    if kind == "async":
        failed = asyncio.run(call_all())
    else:
        with ThreadPoolExecutor(callers) as pool:
            failed = list(pool.map(call, [Source() for _ in range(callers)]))
    assert [owners(error)[1] for _, error in failed] == [{request} for request, _ in failed]
    assert max(owners(error)[0] for _, error in failed) < 25
    assert lookup.metrics().calls == 1
    del failed
    gc.collect()
    assert not any(reference() for reference in freed)


def test_a_key_does_not_join_a_call_that_waits_beyond_its_delay():
    """The first caller makes its calls one after the other: the second call waits, and may be overdue then."""
    begun, goes_on = threading.Event(), threading.Event()
    calls = []

    @cached(cache="LRU", batch=True, batch_max_size=2, batch_max_delay=0.01, timeout=0.3, max_retries=0)
    def values(keys):
        calls.append(list(keys))
        if keys == [1, 2]:
            begun.set()
            goes_on.wait(LIMIT)
        return [(key, key) for key in keys]

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(values, [1, 2, 3])
        begun.wait(LIMIT)
        time.sleep(0.4)  # longer than the timeout, which counts from when the first caller began
        assert values([4]) == [(4, 4)]
        goes_on.set()
        first.exception()
    assert calls[1] == [4]
    values.close()
