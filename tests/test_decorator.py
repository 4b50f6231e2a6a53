"""The decorator on plain functions: one suite over sync, async, batch and async batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lookupcache.config import LookupConfig
from lookupcache.decorator import cached
from lookupcache.errors import LookupTimeout, OptionError, SourceError

ROWS = {1: [{"id": 1, "name": "ann"}], 2: [{"id": 2, "name": "bob"}, {"id": 2, "name": "rob"}]}
LRU = LookupConfig(cache="LRU", max_rows=100, retry_delay=0.0001)


class Source:
    """Answers from ROWS; remembers what it was asked; fails as often as it is told to."""

    def __init__(self, fails: int = 0, error: Exception | None = None) -> None:
        self.asked: list[Any] = []
        self.fails = fails
        self.error = error or ConnectionError("down")

    def one(self, key):
        self.asked.append(key)
        if self.fails:
            self.fails -= 1
            raise self.error
        return ROWS.get(key)

    def many(self, keys):
        self.one(tuple(keys))
        return [ROWS.get(key, []) for key in keys]


def sync_one(source: Source, config: LookupConfig, **more: Any) -> Callable[[int], Any]:
    def lookup(key):
        return source.one(key)

    return cached(config, **more)(lookup)


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


@pytest.fixture(params=[sync_one, sync_many, async_one, async_many], ids=lambda make: make.__name__)
def decorate(request):
    return request.param


def test_asks_once_and_returns_the_same_rows(decorate):
    source = Source()
    lookup = decorate(source, LRU)
    assert [lookup(key) for key in (1, 2, 1, 2)] == [ROWS[1], ROWS[2], ROWS[1], ROWS[2]]
    assert len(source.asked) == 2
    assert (lookup.metrics().hits, lookup.metrics().misses, lookup.metrics().calls) == (2, 2, 2)


def test_remembers_that_a_key_has_no_rows(decorate):
    source = Source()
    lookup = decorate(source, LRU)
    assert (lookup(9), lookup(9), len(source.asked)) == ([], [], 1)


def test_a_caller_that_changes_its_rows_changes_no_one_elses(decorate):
    lookup = decorate(Source(), LRU)
    lookup(1).clear()
    assert lookup(1) == ROWS[1]


def test_rows_expire_by_the_clock(decorate):
    source, now = Source(), [0.0]
    config = LookupConfig(cache="TTL", expire_after_write="10 s")
    lookup = decorate(source, config, clock=lambda: now[0])
    for now[0] in (0.0, 10.0, 10.1):
        lookup(1)
    assert (len(source.asked), lookup.metrics().expirations) == (2, 1)


def test_counts_rows_against_the_limit(decorate):
    source = Source()
    lookup = decorate(source, LookupConfig(cache="LRU", max_rows=2))
    for key in (1, 2, 1):
        lookup(key)
    assert (len(source.asked), lookup.metrics().evictions, lookup.metrics().cached_rows) == (3, 2, 1)


def test_retries_inside_the_cache(decorate):
    source = Source(fails=2)
    lookup = decorate(source, LRU)
    assert (lookup(1), lookup(1)) == (ROWS[1], ROWS[1])
    assert (len(source.asked), lookup.metrics().retries, lookup.metrics().errors) == (3, 2, 2)


def test_an_error_reaches_the_caller_and_is_not_kept(decorate):
    source = Source(fails=1, error=ValueError("no such thing"))
    lookup = decorate(source, LRU)
    with pytest.raises(ValueError, match="no such thing"):
        lookup(1)
    assert lookup(1) == ROWS[1]
    assert len(source.asked) == 2


def test_without_a_cache_it_asks_every_time(decorate):
    source = Source()
    lookup = decorate(source, LookupConfig())
    assert (lookup(1), lookup(1), len(source.asked)) == (ROWS[1], ROWS[1], 2)


def test_invalidate_and_clear_forget(decorate):
    source = Source()
    lookup = decorate(source, LRU)
    lookup(1), lookup(2)
    lookup.invalidate(1)
    lookup(1), lookup(2)
    lookup.clear()
    lookup(2)
    assert len(source.asked) == 4


def test_a_batch_asks_only_for_what_is_missing_each_key_once():
    source = Source()
    lookup = cached(LRU, batch=True)(source.many)
    lookup([1, 9])
    assert lookup([9, 2, 2, 1]) == [[], ROWS[2], ROWS[2], ROWS[1]]
    assert source.asked == [(1, 9), (2,)]


def test_a_batch_that_answers_short_is_an_error():
    lookup = cached(LRU, batch=True)(lambda keys: [[]])
    with pytest.raises(SourceError, match="returned 1 lists for 2 keys"):
        lookup([1, 2])


def test_a_key_of_several_arguments():
    calls = []

    @cached(LRU)
    def lookup(a, b):
        calls.append((a, b))
        return [a + b]

    assert (lookup(1, 2), lookup(1, 2), lookup((1, 2), (3,))) == ([3], [3], [(1, 2, 3)])
    lookup.invalidate((1, 2))
    lookup(1, 2)
    assert calls == [(1, 2), ((1, 2), (3,)), (1, 2)]


def test_many_threads_that_want_a_cold_key_make_one_call():
    started, go, calls = threading.Barrier(21), threading.Event(), []

    @cached(LRU)
    def lookup(key):
        calls.append(key)
        go.wait(10)
        return [key]

    def want(_):
        started.wait(10)
        return lookup(7)

    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(want, n) for n in range(20)]
        started.wait(10)
        go.set()
        assert {tuple(answer.result(10)) for answer in answers} == {(7,)}
    assert calls == [7]


def test_many_coroutines_that_want_a_cold_key_make_one_call():
    calls = []

    async def main():
        go = asyncio.Event()

        @cached(LRU)
        async def lookup(key):
            calls.append(key)
            await go.wait()
            return [key]

        wanted = [asyncio.ensure_future(lookup(7)) for _ in range(50)]
        await asyncio.sleep(0)
        wanted[0].cancel()
        go.set()
        return await asyncio.gather(*wanted, return_exceptions=True)

    answers = asyncio.run(main())
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [[7]] * 49
    assert calls == [7]


def test_a_failed_call_fails_all_who_wait():
    async def main():
        go = asyncio.Event()

        @cached(LookupConfig(cache="LRU", max_retries=0))
        async def lookup(key):
            await go.wait()
            raise ConnectionError("down")

        wanted = [asyncio.ensure_future(lookup(7)) for _ in range(5)]
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*wanted, return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(main())] == [ConnectionError] * 5


def test_an_async_lookup_that_hangs_runs_out_of_time():
    @cached(LookupConfig(cache="LRU", timeout="10 ms"))
    async def lookup(key):
        await asyncio.Event().wait()

    with pytest.raises(LookupTimeout, match=r"within 0\.01 s"):
        asyncio.run(lookup(1))


def test_all_needs_a_table():
    with pytest.raises(OptionError, match="ALL"):
        cached(LookupConfig(cache="ALL"))(lambda key: [])


def test_max_bytes_bounds_python_rows():
    lookup = cached(LookupConfig(cache="LRU", max_bytes="20 kb"))(lambda key: [{"id": key, "text": "x" * 100}])
    for key in range(500):
        lookup(key)
    assert 0 < lookup.metrics().cached_bytes <= 20 * 1024
