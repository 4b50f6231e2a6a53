"""A cache of cachetools as the storage of `cached`: it decides what is kept; calls are made as with any other."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import cachetools
import pytest
from time_limit import LIMIT

from lookupcache import LookupConfig, cached
from lookupcache.cache import Limits
from lookupcache.cache.given_cache import GivenCache
from lookupcache.decorator.options import CachedOptions
from lookupcache.errors import OptionError

CACHES = [cachetools.Cache, cachetools.FIFOCache, cachetools.LFUCache, cachetools.LRUCache, cachetools.RRCache]


def counted(*given, batch=False, **options):
    """Return a cached function that returns its key, and the keys that it was called with."""
    calls = []

    def function(keys):
        calls.extend(keys if batch else [keys])
        return keys

    return cached(*given, batch=batch, **options)(function), calls


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("by_name", [False, True])
def test_an_empty_cache_of_any_kind_is_the_storage(kind, by_name):
    cache = kind(2)
    lookup, calls = counted(cache=cache) if by_name else counted(cache)
    assert [lookup(key) for key in (1, 1, 2, 3, 4)] == [1, 1, 2, 3, 4]
    assert (calls, len(cache), lookup.cache_info()) == ([1, 2, 3, 4], 2, (1, 4, 2, 2))
    lookup.cache_clear()
    assert (len(cache), lookup(4), calls[-1]) == (0, 4, 4)


def test_a_value_that_its_cache_has_dropped_is_not_found():
    cache = GivenCache({}, Limits())
    assert (cache.find(1, 0.0), cache.find_stale(1, 0.0), cache.remove(1)) == (None, None, False)
    assert (cache.nbytes, cache.evictions, cache.expirations) == (0, 0, 0)


def test_the_parameters_are_those_of_functools():
    of_functools = functools.lru_cache(maxsize=7, typed=True)(lambda key: key).cache_parameters()
    found = [cached(**{name: value})(lambda key: key) for name, value in
             [("max_rows", 7), ("cache", cachetools.LRUCache(7))]]  # fmt: skip
    assert [lookup.cache_parameters() for lookup in found] == [of_functools] * 2


def test_values_expire_by_the_clock_of_the_cache():
    now = [0.0]
    lookup, calls = counted(cachetools.TTLCache(10, 60, timer=lambda: now[0]))
    for now[0] in (0.0, 59.0, 60.0):
        lookup(1)
    assert (calls, lookup.invalidate(1), lookup.invalidate(1)) == ([1, 1], True, False)


def test_a_value_larger_than_the_cache_is_not_cached():
    lookup, calls = counted(cachetools.LRUCache(5, getsizeof=len))
    assert [lookup(key) for key in ("abc", "abcdef", "abcdef", "abc")] == ["abc", "abcdef", "abcdef", "abc"]
    assert (calls, lookup.cache_info().currsize) == (["abc", "abcdef", "abcdef"], 3)


def test_known_misses_are_kept_only_if_wanted():
    for wanted, times in ((True, 1), (False, 2)):
        calls = []
        lookup = cached(cachetools.LRUCache(10), missing_key=wanted)(calls.append)
        assert [lookup(1), lookup(1), calls] == [None, None, [1] * times]


def test_values_are_refreshed_in_the_background():
    now = [0.0]
    lookup, calls = counted(cachetools.LRUCache(10), refresh_after_write=10, clock=lambda: now[0])
    for now[0] in (0.0, 9.0, 10.0):
        lookup(1)
    lookup.close()
    assert (calls, lookup.metrics().refreshes) == ([1, 1], 1)


def test_the_times_of_refreshes_do_not_outlive_their_keys():
    lookup, _ = counted(cachetools.LRUCache(10), refresh_after_write=10)
    for key in range(1_000):
        lookup(key)
    assert len(lookup.lookup.cache._refresh_at) < 100


def test_many_threads_make_one_call():
    waiting = threading.Barrier(20)
    lookup, calls = counted(cachetools.TTLCache(10, 60), async_=True)

    def call(_):
        waiting.wait(LIMIT)
        return lookup(1)

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(call, range(20))) == [1] * 20
    assert calls == [1]


def test_batches_and_coroutines_use_it_too():
    lookup, calls = counted(cachetools.LRUCache(10), batch=True)
    assert (lookup([1, 2]), lookup([2, 3]), calls) == ([1, 2], [2, 3], [1, 2, 3])
    cache = cachetools.LRUCache(10)

    @cached(cache)
    async def later(key):
        return -key

    async def main():
        return await asyncio.gather(later(1), later(1))

    assert (asyncio.run(main()), dict(cache)) == ([-1, -1], {(1,): -1})


def test_the_entries_of_a_freed_object_are_removed():
    class Shop:
        @cached(cachetools.LRUCache(10))
        def name(self):
            return "a"

    shop = Shop()
    shop.name()
    freed = weakref.ref(shop)
    del shop
    gc.collect()
    assert (freed(), Shop.name.metrics().cached_keys) == (None, 0)


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_rows", 5), ("max_bytes", 500), ("expire_after_write", 5), ("stale_if_error", 5), ("ttl", 5),
     ("cache_path", "folder"), ("store", "redis://h"), ("store_name", "a"), ("eviction", "sieve"), ("scope", "host")],
)  # fmt: skip
def test_options_that_limit_an_own_cache_are_refused(option, value):
    with pytest.raises(OptionError, match=f"'{option}' does not fit a TTLCache"):
        cached(cachetools.TTLCache(10, 60), **{option: value})


@pytest.mark.parametrize("config", [LookupConfig(cache="LRU"), {"max_rows": 5}])
def test_a_config_beside_the_cache_is_refused(config):
    with pytest.raises(OptionError, match="either a TTLCache as cache, or a config"):
        cached(config, cache=cachetools.TTLCache(10, 60))


# ── keys of the user ─────────────────────────────────────────────────────────────────────────────────────


def total(values, *, scale=1):
    return sum(values) * scale


async def total_later(values, *, scale=1):
    await asyncio.sleep(0)
    return total(values, scale=scale)


def of_key(*args, **named):
    return (tuple(args[0]), *sorted(named.items()))


@pytest.mark.parametrize("given", [True, False], ids=["cachetools", "own"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_of_the_arguments_makes_the_key(given, is_async):
    cache = {"cache": cachetools.LRUCache(10)} if given else {}
    function = cached(key=of_key, **cache)(total_later if is_async else total)

    def call(*args, **named):
        return asyncio.run(function(*args, **named)) if is_async else function(*args, **named)

    assert [call([1, 2]), call((1, 2)), call({1: 0, 2: 0}), call([1, 2], scale=3)] == [3, 3, 3, 9]
    assert function.cache_info()[:2] == (2, 2)
    assert function.cache_key([1, 2]) == of_key([1, 2]) == ((1, 2),)
    assert (function.invalidate([1, 2]), function.invalidate([1, 2]), call([1, 2])) == (True, False, 3)


@pytest.mark.parametrize("key", [cachetools.keys.hashkey, cachetools.keys.typedkey, None])
def test_keys_are_used_as_with_cachetools(key):
    cache = cachetools.LRUCache(10)
    lookup, calls = counted(cache, key=key)
    assert [lookup(1), lookup(1), lookup(2)] == [1, 1, 2]
    with lookup.cache_lock:
        assert lookup.cache is cache
        assert lookup.cache.pop(lookup.cache_key(1)) == 1
    assert (lookup(1.0), lookup(1), lookup(2)) == (1, 1, 2)
    assert len(calls) == (3 if key is cachetools.keys.hashkey else 4)
    if key is not None:
        assert cache[key(2)] == 2


@pytest.mark.parametrize("key", [cachetools.keys.methodkey, cachetools.keys.hashkey, lambda shop, item: item])
def test_a_method_caches_per_object_without_keeping_it_alive(key):
    class Shop:
        calls = 0

        @cached(key=key)
        def price(self, item):
            self.calls += 1
            return self, item

        @cached(key=key)
        def name(self, item):
            self.calls += 1
            return item

    one, other = Shop(), Shop()
    assert [one.price(1)[0], other.price(1)[0], one.price(1)[0]] == [one, other, one]
    assert (one.calls, other.calls) == (1, 1)
    assert (one.name(1), one.name.cache_key(1) in Shop.name.lookup.cache.entries) == (1, True)
    assert (one.name.invalidate(1), Shop.name.invalidate(one, 1), one.name(1), one.calls) == (True, False, 1, 3)
    last = Shop()
    last.name(1)
    gone = weakref.ref(last)
    del last
    gc.collect()
    assert gone() is None
    assert Shop.name.metrics().cached_keys == 1


def test_arguments_beside_the_key_are_not_kept_by_the_cache():
    """A refresh uses those of the last call."""

    class Session:
        pass

    now = [0.0]
    sessions = []

    @cached(key=lambda session, number: number, refresh_after_write=10, clock=lambda: now[0])
    def row(session, number):
        sessions.append(weakref.ref(session))
        return number

    for now[0] in (0.0, 11.0):
        session = Session()
        assert row(session, 1) == 1
        row.lookup.slots.join(LIMIT)
        assert sessions[-1]() is session
        del session
        gc.collect()
        assert sessions[-1]() is None
    assert len(sessions) == 2


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"key": 5}, "'key' is int 5, not a function"),
        ({"key": len, "batch": True}, "'key' does not fit batch=True"),
        ({"key": len, "store": "/mnt/store"}, "'key' does not fit store"),
        ({"key": len, "cache_path": "/tmp/x"}, "'key' does not fit cache_path"),
        ({"cache": {}}, "'cache' is of type dict(?s:.*)max_rows"),
        ({"typed": True}, "(?s:.*)types of arguments always differ"),
        ({"lock": None}, "(?s:.*)'cache_lock'"),
        ({"info": True}, "(?s:.*)cache_info"),
        ({"maxsize": 5}, "(?s:.*)'max_rows'"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_cure(options, wrong):
    with pytest.raises(OptionError, match=wrong):
        cached(**options)(lambda key: key)


def test_a_key_without_a_hash_is_named():
    with pytest.raises(TypeError, match="given a list, which has no hash"):
        cached(key=lambda values: values)(total)([1])


def test_typed_options_are_the_config_fields_that_need_no_join():
    used = {one.name for one in dataclasses.fields(LookupConfig) if one.metadata["cached"] == "used"}
    assert set(CachedOptions.__annotations__) == used
