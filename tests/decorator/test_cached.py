"""`cached` as people use it: any kind of function, whatever it returns, any option; methods, pickling, types."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import itertools
import math
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest
from time_limit import LIMIT

from lookupcache.config import LookupConfig
from lookupcache.decorator import cached
from lookupcache.decorator.arguments import equal_arguments
from lookupcache.errors import LookupAdvice, LookupTimeoutError, OptionError, SourceError

# ── every kind × every value × every option ──────────────────────────────────────────────────────────────


@dataclass
class Customer:
    id: int
    name: str


ROOT = Path(__file__).parent.parent.parent
Pair = namedtuple("Pair", "id name")

VALUES: dict[str, Any] = {
    "rows": [{"id": 1}, {"id": 2}],
    "no rows": [],
    "None": None,
    "number": 0,
    "text": "",
    "bytes": b"x",
    "tuple": (1, "ann"),
    "namedtuple": Pair(1, "ann"),
    "dict": {"id": 1},
    "dataclass": Customer(1, "ann"),
    "set": {1},
    "frame": pd.DataFrame({"id": [1]}),
    "array": np.arange(3),
    "class": Customer,
    "function": len,
}


class ReceivedRequest:
    """Counts calls, and answers them all with one value."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.calls = 0

    def __call__(self, key: int) -> Any:
        self.calls += 1
        return self.value


def plain(requested: ReceivedRequest, decorate: Any) -> Any:
    return decorate(lambda key: requested(key))


def coroutine_function(requested: ReceivedRequest, decorate: Any) -> Any:
    @decorate
    async def function(key):
        await asyncio.sleep(0)
        return requested(key)

    return function


def partial(requested: ReceivedRequest, decorate: Any) -> Any:
    return decorate(functools.partial(lambda requested, key: requested(key), requested))


def partial_coroutine(requested: ReceivedRequest, decorate: Any) -> Any:
    async def function(requested, key):
        return requested(key)

    return decorate(functools.partial(function, requested))


def callable_object(requested: ReceivedRequest, decorate: Any) -> Any:
    return decorate(requested)


def callable_class(requested: ReceivedRequest, decorate: Any) -> Any:
    class Shop:
        def __call__(self, key):
            return requested(key)

    return decorate(Shop)


def async_object(requested: ReceivedRequest, decorate: Any) -> Any:
    class Shop:
        async def __call__(self, key):
            return requested(key)

    return decorate(Shop())


def method(requested: ReceivedRequest, decorate: Any) -> Any:
    return _shop(requested, decorate).method


def unhashable_method(requested: ReceivedRequest, decorate: Any) -> Any:
    shop = _shop(requested, decorate)
    type(shop).__hash__ = None
    return shop.method


def async_method(requested: ReceivedRequest, decorate: Any) -> Any:
    return _shop(requested, decorate).async_method


def class_method(requested: ReceivedRequest, decorate: Any) -> Any:
    return _shop(requested, decorate).class_method


def outer_class_method(requested: ReceivedRequest, decorate: Any) -> Any:
    return _shop(requested, decorate).outer_class_method


def static_method(requested: ReceivedRequest, decorate: Any) -> Any:
    return _shop(requested, decorate).static_method


def bound_method(requested: ReceivedRequest, decorate: Any) -> Any:
    return decorate(requested.__call__)


def _shop(requested: ReceivedRequest, decorate: Any) -> Any:
    class Shop:
        @decorate
        def method(self, key):
            return requested(key)

        @decorate
        async def async_method(self, key):
            return requested(key)

        @classmethod
        @decorate
        def class_method(cls, key):
            return requested(key)

        @decorate
        @classmethod
        def outer_class_method(cls, key):
            return requested(key)

        @staticmethod
        @decorate
        def static_method(key):
            return requested(key)

    return Shop()


def in_list(requested: ReceivedRequest, decorate: Any) -> Any:
    return _one_of(decorate(lambda keys: [requested(key) for key in keys], batch=True))


def in_dict(requested: ReceivedRequest, decorate: Any) -> Any:
    return _one_of(decorate(lambda keys: {key: requested(key) for key in keys}, batch=True))


def in_generator(requested: ReceivedRequest, decorate: Any) -> Any:
    def function(keys):
        yield from map(requested, keys)

    return _one_of(decorate(function, batch=True))


def in_async_batch(requested: ReceivedRequest, decorate: Any) -> Any:
    async def function(keys):
        return [requested(key) for key in keys]

    return _one_of(decorate(function, batch=True))


def in_method(requested: ReceivedRequest, decorate: Any) -> Any:
    class Shop:
        @functools.partial(decorate, batch=True)
        def many(self, keys):
            return [requested(key) for key in keys]

    return _one_of(Shop().many)


def _one_of(function: Any) -> Any:
    def one(key):
        return _answer(function([key]))[0]

    one.invalidate, one.metrics = function.invalidate, function.metrics
    return one


def _answer(answer: Any) -> Any:
    async def awaited():
        return await answer

    return asyncio.run(awaited()) if inspect.isawaitable(answer) else answer


KINDS = {
    kind.__name__: kind
    for kind in (
        plain, coroutine_function, partial, partial_coroutine, callable_object, callable_class, async_object,
        method, unhashable_method, async_method, class_method, outer_class_method, static_method, bound_method,
        in_list, in_dict, in_generator, in_async_batch, in_method,
    )
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "ttl": {"cache": "TTL", "expire_after_write": "1 h"},
    "idle": {"expire_after_access": "1 h"},
    "refresh": {"refresh_after_write": "1 h"},
    "bytes": {"max_bytes": "1 mb"},
    "s3-fifo": {"eviction": "s3-fifo"},
}


@pytest.mark.extended
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_of_function_keeps_any_value_as_it_is(kind, options):
    for value in VALUES.values():
        requested = ReceivedRequest(value)
        function = KINDS[kind](requested, functools.partial(_decorate, OPTIONS[options]))
        assert [_answer(function(1)) is value for _ in range(3)] == [True] * 3
        assert (requested.calls, function.metrics().hits, function.metrics().misses) == (1, 2, 1)
        assert (function.invalidate(1), function.invalidate(1), function.invalidate(2)) == (True, False, False)
        assert (_answer(function(1)) is value, requested.calls) == (True, 2)


@pytest.mark.parametrize("kind", ["plain", "method", "in_list"])
def test_a_sync_function_of_any_kind_can_run_in_a_pool(kind):
    requested = ReceivedRequest("value")
    function = KINDS[kind](requested, functools.partial(_decorate, {"async_": True}))
    assert ([function(1), function(1)], requested.calls) == (["value"] * 2, 1)


def _decorate(options: dict[str, Any], function: Any, batch: bool = False) -> Any:
    return cached(batch=batch, **options)(function)


@pytest.mark.parametrize("value", [None, []])
def test_a_miss_is_kept_unless_it_is_not_to_be(value):
    requested = ReceivedRequest(value)
    function = cached(missing_key=False)(requested)
    assert ([function(1), function(1)], requested.calls) == ([value] * 2, 2)


@pytest.mark.parametrize("make", [lambda: iter([1, 2]), lambda: map(int, "12"), lambda: (n for n in (1, 2))])
def test_an_iterator_becomes_a_list(make):
    function = cached(lambda key: make())
    assert (function(1), function(1) is function(1)) == ([1, 2], True)


def test_rows_are_counted_where_the_value_is_a_list():
    function = cached(max_rows=4)(lambda key: [key] * 3 if key == "list" else (key,) * 3)
    function("list"), function("a")
    assert function.cache_info() == (0, 2, 4, 4)
    function("b")
    assert function.cache_info() == (0, 3, 4, 2)


# ── how it is written ────────────────────────────────────────────────────────────────────────────────────

SPELLINGS = {
    "bare": lambda: cached,
    "called": lambda: cached(),
    "config": lambda: cached(LookupConfig(cache="LRU")),
    "named config": lambda: cached(config=LookupConfig(cache="LRU")),
    "options": lambda: cached(max_retries=5),
    "config and options": lambda: cached(LookupConfig(max_retries=5), cache="LRU"),
    "option keys": lambda: cached({"lookup.max-retries": "5"}),
    "options in a dict": lambda: cached({"max_retries": 5}),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_it_caches_however_it_is_written(spelling):
    requested = ReceivedRequest("value")
    function = SPELLINGS[spelling]()(requested)
    assert ([function(1), function(1)], requested.calls) == (["value"] * 2, 1)


REFUSED = {
    "a number": (lambda: cached(128), r"not int 128\.\s+Hint: .*cached\(max_rows=128"),
    "an unknown option": (lambda: cached(max_row=1), "Did you mean 'max_rows'"),
    "a name from elsewhere": (lambda: cached(ttl=5), "called 'expire_after_write' here"),
    "what is no function": (lambda: cached()(5), "decorates a function, not int"),
    "an async generator": (lambda: cached(agen), "async generator"),
}


async def agen(key):
    yield key


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_arguments_are_refused_with_a_clear_error(case):
    make, said = REFUSED[case]
    with pytest.raises(OptionError, match=f"(?s){said}"):
        make()


def test_a_config_that_keeps_nothing_is_pointed_out():
    with pytest.warns(LookupAdvice, match="has no cache here"):
        cached(LookupConfig(max_retries=5))


@pytest.mark.filterwarnings("error::lookupcache.errors.LookupAdvice")
def test_a_function_without_a_cache_requests_every_call():
    requested = ReceivedRequest("value")
    function = cached(LookupConfig(max_retries=5), cache="NONE")(requested)
    assert ([function(1), function(1)], requested.calls) == (["value"] * 2, 2)


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────


def defaults(a, b=2, /, c=3, *, d=4):
    return a, b, c, d


def variable(a, *more, b=2, **named):
    return a, more, b, named


SAME = {
    "defaults": (defaults, [((1,), {}), ((1, 2), {}), ((1, 2, 3), {"d": 4}), ((1,), {"d": 4, "c": 3})]),
    "more": (variable, [((1, 7, 8), {"x": 1, "y": 2}), ((1, 7, 8), {"y": 2, "b": 2, "x": 1})]),
    "none": (lambda: "value", [((), {}), ((), {})]),
    "no signature": (dict, [(((("a", 1),),), {}), (((("a", 1),),), {})]),
}


@pytest.mark.parametrize("case", SAME)
def test_one_call_however_spelled_is_one_key(case):
    function, calls = SAME[case]
    decorated = cached(lambda *args, **named: function(*args, **named)) if case == "no signature" else cached(function)
    answers = [decorated(*args, **named) for args, named in calls]
    assert answers == [function(*args, **named) for args, named in calls]
    assert decorated.metrics().requested_keys == 1
    assert all(decorated.invalidate(*args, **named) is (n == 0) for n, (args, named) in enumerate(calls))


def test_different_calls_are_different_keys():
    function = cached(variable)
    calls = [((1,), {}), ((1, 2), {}), ((1,), {"b": 3}), ((1,), {"x": 2}), ((1,), {"y": 2}), ((1, 2), {"x": 2})]
    assert [function(*args, **named) for args, named in calls] == [variable(*args, **named) for args, named in calls]
    assert function.metrics().requested_keys == len(calls)


EQUAL = [1, 1.0, True, np.int64(1), 1 + 0j]


@pytest.mark.extended
@pytest.mark.parametrize("order", list(itertools.permutations(EQUAL, 3)))
def test_equal_arguments_of_other_types_are_other_keys(order):
    function = cached(lambda key: type(key))
    many = cached(lambda keys: [type(key) for key in keys], batch=True)
    assert [function(key) for key in order] * 2 == [*map(type, order), *map(type, order)]
    assert many(list(order)) == many(list(order)) == [*map(type, order)]


def test_invalidate_forgets_what_is_equal_whatever_its_type():
    function = cached(lambda key: type(key))
    [function(key) for key in EQUAL]
    assert (function.invalidate(1), function.cache_info().currsize) == (True, 0)


def test_each_call_with_nan_has_a_new_key():
    calls = []
    one = cached(lambda x: calls.append(x) or len(calls))
    many = cached(lambda keys: calls.extend(keys) or [0] * len(keys), batch=True)
    assert [one(math.nan), one(math.nan), one(1.0), one(1.0)] == [1, 2, 3, 3]
    assert many([math.nan, math.nan, 2.0]) == many([math.nan, 2.0, 2.0]) == [0, 0, 0]
    assert str(calls) == "[nan, nan, 1.0, nan, nan, 2.0, nan]"


@pytest.mark.parametrize("number", ["1E+30000", "-1E+999999", "Infinity", "NaN"])
def test_a_huge_or_infinite_decimal_equals_only_itself(number):
    found = equal_arguments((Decimal(number),))
    assert [type(value) for [value] in found if not isinstance(value, float)] == [Decimal]


WRONG = {
    "too few": (lambda f: f(), r"defaults\(\) missing 1 required positional argument: 'a'"),
    "too many": (lambda f: f(1, 2, 3, 4), r"defaults\(\) takes from 1 to 3 positional arguments"),
    "unknown": (lambda f: f(1, x=2), r"unexpected keyword argument 'x'"),
    "unhashable": (lambda f: f([1]), r"<cached defaults> was given a list, which has no hash"),
    "unhashable, to forget": (lambda f: f.invalidate([1]), r"was given a list, which has no hash.*Hint: Give a tuple"),
    "a list in a tuple": (lambda f: f((1, [2])), r"was given a list, which has no hash.*Hint: Give a tuple"),
    "next to a type that is compared": (lambda f: f([1], 2.0), r"was given a list, which"),
    "a dict": (lambda f: f({}), r"was given a dict, which has no hash.*Hint: Give a tuple of its items"),
    "a key of many": (lambda f: cached(lambda keys: keys, batch=True)([[1]]), "was given a list, which"),
    "a key of many, to forget": (
        lambda f: cached(lambda keys: keys, batch=True).invalidate([1]),
        "given a list, which",
    ),
    "a text for many": (lambda f: cached(lambda keys: keys, batch=True)("abc"), "takes a list of keys, not str"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_says_what_is_wrong(case):
    call, said = WRONG[case]
    with pytest.raises(TypeError, match="(?s)" + said):
        call(cached(defaults))


def test_a_batch_method_can_be_called_on_its_class():
    class Store:
        @cached(batch=True)
        def rows_of(self, keys):
            return [(id(self), key) for key in keys]

    one, other = Store(), Store()
    assert Store.rows_of(one, [1, 2]) == one.rows_of([1, 2]) == one.rows_of(keys=[1, 2])
    other.rows_of([1])
    assert (Store.rows_of(one, [1]), Store.rows_of.cache_info().misses) == ([(id(one), 1)], 3)
    assert (Store.rows_of.invalidate(one, 1), one.rows_of.invalidate(1), other.rows_of.invalidate(1)) == (
        True, False, True,
    )  # fmt: skip


def test_the_keys_of_a_batch_can_be_given_by_name():
    async def later(ids):
        return ids

    assert cached(lambda ids: ids, batch=True)(ids=[1]) == [1]
    assert asyncio.run(cached(batch=True)(later)(ids=[1])) == [1]


def test_a_batch_function_of_several_parameters_is_refused():
    def rows_of(country, ids): ...

    with pytest.raises(OptionError, match="takes one list of keys, but this one requires country, ids"):
        cached(batch=True)(rows_of)


@pytest.mark.parametrize("default", [[], (1, []), {}])
def test_a_default_that_cannot_be_a_key_is_refused(default):
    with pytest.raises(OptionError, match=r"The default of parameter 'tags' is or holds a (list|dict)"):
        cached(lambda key, tags=default: key)


def test_a_parameter_may_have_any_name():
    def all_of(_flat_, _flat__=1, **more):
        return _flat_, _flat__, more

    assert cached(all_of)(1, z=2) == (1, 1, {"z": 2})


def test_types_of_arguments_are_not_kept_alive():
    function, kinds = cached(lambda key: None, max_rows=5), []
    for number in range(100):
        kind = type(f"Kind{number}", (), {})
        kinds.append(weakref.ref(kind))
        function(kind())
    del kind
    gc.collect()
    assert sum(kind() is not None for kind in kinds) < 50
    function.clear()
    gc.collect()
    assert not any(kind() for kind in kinds)


@pytest.mark.parametrize("given", [{"on_error": "null"}, {"lookup.on-error": "null"}], ids=["field", "option"])
def test_null_for_an_error_needs_no_column(given):
    assert cached(given)(lambda key: 1 / key)(0) is None


def test_functions_of_one_name_have_rate_limits_of_their_own():
    made = [cached(lambda key: key, rate_limit=1) for _ in range(2)]
    slots = [
        function.lookup.resilience._limiter._memory for function in (*made, cached(made[0].__wrapped__, rate_limit=1))
    ]
    copied = cloudpickle.loads(cloudpickle.dumps(made[1])).lookup.resilience._limiter._memory
    assert (slots[0] is not slots[1], slots[0] is slots[2], slots[1] is copied) == (True, True, True)


# ── methods ──────────────────────────────────────────────────────────────────────────────────────────────


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    @cached
    def rows(self, key, *, times=1):
        return [self.name] * times

    @cached(batch=True)
    def many(self, keys):
        return [(self.name, key) for key in keys]

    @cached(refresh_after_write="1 h")
    async def fetch(self, key):
        return (self.name, key)


def test_each_object_has_its_own_entries():
    Shop.rows.clear(), Shop.many.clear()
    a, b = Shop("a"), Shop("b")
    assert (a.rows(1), b.rows(1), a.rows(1, times=1) is a.rows(1)) == (["a"], ["b"], True)
    assert (a.many([1, 2]), b.many([1])) == ([("a", 1), ("a", 2)], [("b", 1)])
    assert (asyncio.run(a.fetch(1)), asyncio.run(b.fetch(1))) == (("a", 1), ("b", 1))
    assert Shop.rows(a, 1) is a.rows(1)
    assert (a.rows.invalidate(1), b.rows.invalidate(1, times=1), a.many.invalidate(1)) == (True, True, True)
    a.rows(1), b.rows(1)
    a.rows.clear()
    assert (a.rows.invalidate(1), b.rows.invalidate(1)) == (False, True)


def test_an_object_is_not_kept_alive_and_its_entries_go_with_it():
    Shop.rows.clear()
    shop = Shop("a")
    shop.rows(1), asyncio.run(shop.fetch(1))
    gone, rows = weakref.ref(shop), Shop.rows.metrics().cached_keys
    del shop
    gc.collect()
    assert (gone(), rows, Shop.rows.metrics().cached_keys) == (None, 1, 0)


def test_objects_that_come_and_go_never_share_an_entry():
    names = [str(n) for n in range(2_000)]
    assert [Shop(name).rows(1) for name in names] == [[name] for name in names]
    assert Shop.rows.metrics().cached_keys <= 2


class Point(namedtuple("Point", "x")):
    __slots__ = ()


class Money(int):
    """An amount whose currency does not count when it is compared."""

    def __new__(cls, currency):
        money = super().__new__(cls, 5)
        money.currency = currency
        return money


@dataclass(frozen=True, slots=True)
class Account:
    owner: str = field(compare=False)


class Slotted:
    __slots__ = ("name",)
    __hash__ = None

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return True


@pytest.mark.parametrize("base", [Point, Money, Account, Slotted])
@pytest.mark.parametrize("options", [{}, {"key": lambda self, times: times}, {"batch": True}], ids=["", "key", "batch"])
def test_objects_without_weak_references_have_entries_of_their_own(base, options):
    calls = []

    class Derived(base):
        __slots__ = ()

        @cached(**options)
        def found(self, times):
            calls.append(self)
            return [self] * (len(times) if options.get("batch") else times)

    if base is not Money:  # A subclass of int has weak references, or no slots.
        with pytest.raises(TypeError):
            weakref.ref(Derived("a"))
    times = [1] if options.get("batch") else 1
    one, other = Derived("a"), Derived("a")
    for owner in (one, other, one, other):
        [found] = owner.found(times)
        assert found is owner
    assert len(calls) == 2
    assert one.found.invalidate(1)
    one.found(times), other.found(times)
    assert len(calls) == 3
    Derived.found.clear()
    assert Derived.found.metrics().cached_keys == 0


def test_a_method_of_a_derived_class_can_call_its_base():
    class Small(Shop):
        @cached
        def rows(self, key, *, times=1):
            return [*super().rows(key, times=times), "small"]

    assert Small("a").rows(1) == ["a", "small"]


def test_it_has_the_attributes_of_a_function():
    assert (cached(defaults).__name__, cached(defaults).__wrapped__) == ("defaults", defaults)
    assert inspect.signature(cached(defaults)) == inspect.signature(defaults)
    assert str(inspect.signature(Shop("a").rows)) == "(key, *, times=1)"
    assert asyncio.iscoroutinefunction(Shop.fetch)
    assert Shop("a").rows != Shop("a").rows
    assert repr(cached(defaults)) == "<cached defaults>"


# ── pickling ─────────────────────────────────────────────────────────────────────────────────────────────


@cached(LookupConfig(cache="LRU", max_rows=7))
def importable(key):
    return [key]


decorated_under_another_name = cached(max_rows=7)(defaults)
DUMPS = {"pickle": pickle.dumps, "cloudpickle": cloudpickle.dumps}


@pytest.mark.parametrize("dumps", DUMPS)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_an_importable_function_is_pickled_by_its_name(dumps, protocol):
    importable(1)
    assert pickle.loads(DUMPS[dumps](importable, protocol=protocol)) is importable
    assert (copy.copy(importable), copy.deepcopy([importable])) == (importable, [importable])


@pytest.mark.parametrize("dumps", DUMPS)
def test_a_method_of_an_object_is_pickled_with_it(dumps):
    shop = Shop("a")
    assert pickle.loads(DUMPS[dumps](shop.rows))(1) == ["a"]


@pytest.mark.parametrize("dumps", DUMPS)
def test_a_function_under_another_name_unpickles_with_no_entries(dumps):
    decorated_under_another_name(1)
    copied = pickle.loads(DUMPS[dumps](decorated_under_another_name))
    assert (copied(1), copied.cache_info()) == (decorated_under_another_name(1), (0, 1, 7, 1))


MAIN = """
import pickle, sys, asyncio, functools
import cloudpickle
from lookupcache import LookupConfig, cached

@cached(LookupConfig(cache="LRU", max_rows=70))
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

class Shop:
    @cached(max_rows=8)
    def twice(self, n):
        return 2 * n

    @cached(batch=True)
    async def many(self, keys):
        return {key: (key, fib(key)) for key in keys}

def local(a):
    @cached(max_rows=9)
    def again(n):
        return n if n == 0 else a + again(n - 1)
    return again

fib(5), Shop().twice(1)
assert pickle.loads(pickle.dumps(fib)) is fib
sys.stdout.buffer.write(cloudpickle.dumps((fib, Shop, Shop().twice, local(3), cached(functools.partial(max, 2)))))
"""


@pytest.mark.slow
def test_functions_of_main_unpickle_elsewhere_with_no_entries(tmp_path):
    (tmp_path / "main.py").write_text(MAIN)
    written = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, check=True).stdout
    fib, shop, twice, again, most = pickle.loads(written)
    assert (fib.cache_info(), shop.twice.cache_info().maxsize) == ((0, 0, 70, 0), 8)
    assert (fib(20), shop().twice(4), twice(5), again(4), most(1)) == (6765, 8, 10, 12, 2)
    assert asyncio.run(shop().many([10])) == [(10, 55)]
    assert fib.cache_info().misses == 21


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────

TYPED = """
from collections.abc import Iterator
from typing import assert_type
from lookupcache import LookupConfig, cached

@cached
def bare(a: int, b: str = "") -> dict[str, int]:
    return {b: a}

@cached(LookupConfig(cache="LRU"))
async def later(a: int) -> str | None:
    return None

@cached(max_rows=5)
def several(a: int) -> Iterator[str]:
    yield "a"

@cached(batch=True)
def many(keys: list[int]) -> list[str]:
    return []

@cached(batch=True)
async def many_later(keys: list[int]) -> dict[int, str]:
    return {}

class Client:
    @cached
    def get(self, key: int) -> str:
        return ""

    @cached(max_rows=5)
    async def fetch(self, key: int) -> bytes:
        return b""

    @cached(batch=True)
    def all(self, keys: list[int]) -> dict[int, str]:
        return {}

    @classmethod
    @cached
    def make(cls, key: int) -> str:
        return ""

    @cached
    @classmethod
    def made(cls, key: int) -> str:
        return ""

    @classmethod
    @cached(max_rows=5)
    async def make_later(cls, key: int) -> bytes:
        return b""

    @property
    @cached
    def name(self) -> str:
        return ""

    @staticmethod
    @cached
    def twice(key: int) -> int:
        return 2 * key

class Shop:
    def __call__(self, key: int) -> str:
        return ""

@cached(key=lambda session, number: number, expire_after_write="10 min", on_error="null")
def with_session(session: list[str], number: int) -> str:
    return session[number]

shop = cached(Shop)
shop_too = cached(max_rows=5)(Shop())

async def main(client: Client) -> None:
    assert_type(bare(1, b="x"), dict[str, int])
    assert_type(await later(1), str | None)
    assert_type(several(1), list[str])
    assert_type(many([1]), list[str])
    assert_type(await many_later([1]), list[str])
    assert_type(client.get(1), str)
    assert_type(await client.fetch(key=1), bytes)
    assert_type(client.all([1]), list[str])
    assert_type(client.make(1), str)
    assert_type(Client.make(1), str)
    assert_type(Client.made(1), str)
    assert_type(client.made(1), str)
    assert_type(await Client.make_later(1), bytes)
    assert_type(client.name, str)
    assert_type(Client.twice(1), int)
    assert_type(Client.get(client, 1), str)
    assert_type(Client.make.invalidate(1), bool)
    assert_type(with_session(["a"], 0), str)
    assert_type(shop(1), str)
    assert_type(shop_too(1), str)
    assert_type(bare.invalidate(1), bool)
    assert_type(client.get.invalidate(1), bool)
    assert_type(bare.cache_info().hits, int)
    await later.aclose()
"""
WRONG_CALLS = [
    'bare("x")', "bare()", 'client.get("x")', 'many(["x"])', "bare.invalidate()", "later(1).upper()",
    'Client.make("x")', "Client.make(1, 2)", "Client.made(cls=1)", "client.get(key=client)",
    "cached(max_row=5)", 'cached(max_rows="5 rows")', 'cached(eviction="lfu")', 'cached(on_error="dead-letter")',
    "cached(batch=True, key=len)", "cached(key=5)",
]  # fmt: skip


@pytest.mark.extended
@pytest.mark.slow
def test_types_are_preserved(tmp_path):
    if mypy is None:
        pytest.skip("mypy is not installed")
    (tmp_path / "sample.py").write_text(TYPED)
    wrong = "".join(f"    {call}\n" for call in WRONG_CALLS)
    (tmp_path / "wrong.py").write_text(f"from sample import *\ndef wrong(client: Client) -> None:\n{wrong}")
    # With the settings and the cache of the static checks, so that it need not read the whole package again.
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    found, errors, _ = mypy.run([*settings, str(tmp_path / "sample.py"), str(tmp_path / "wrong.py")])
    assert not errors
    reported = [line for line in found.splitlines() if ": error:" in line]
    assert [int(line.split(":")[1]) - 3 for line in reported if "wrong.py" in line] == list(range(len(WRONG_CALLS))), (
        found
    )
    assert not [line for line in reported if "sample.py" in line], found


try:
    import mypy.api as mypy
except ImportError:
    mypy = None  # type: ignore[assignment]


# ── user code that runs inside the cache ─────────────────────────────────────────────────────────────────


class AsksAgain:
    """A value or key whose special methods use the cached function that holds it."""

    def __init__(self, name, use=lambda: None):
        self.name = name
        self.use = use

    def __hash__(self):
        return 1

    def __eq__(self, other):
        self.use()
        return isinstance(other, AsksAgain) and self.name == other.name

    def __sizeof__(self):
        self.use()
        return 100

    def __del__(self):
        self.use()


@pytest.mark.parametrize("options", [{}, {"max_bytes": 10_000}, {"refresh_after_write": "1 h"}])
def test_methods_of_keys_and_values_may_call_the_cached_function(options):
    busy = []

    def use():
        if not busy:  # once is enough, for it would go on for ever
            busy.append(True)
            f.invalidate(AsksAgain("none"))
            f.cache_info()
            f(AsksAgain("other"))
            busy.clear()

    @cached(max_rows=2, **options)
    def f(key):
        return AsksAgain(key.name, use)

    def run():
        for name in "abcabc":
            assert f(AsksAgain(name, use)).name == name
        f.clear()
        done.append(f.cache_info().currsize <= 2)

    done = []
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert done == [True]


def test_parameters_may_be_called_as_those_of_methods_are():
    class Shop:
        @cached
        def price(self, owner, args=1):
            return owner, args

    @cached
    def tags(self, owner):
        return self, owner

    assert Shop().price(owner=3) == (3, 1)
    assert (tags(self=1, owner=2), tags.invalidate(self=1, owner=2), tags(1, owner=2)) == ((1, 2), True, (1, 2))


@pytest.mark.extended
def test_chained_calls_do_not_keep_each_other_alive():
    answers = weakref.WeakSet()

    class Answer:
        pass

    async def main():
        ended = asyncio.Event()

        @cached(max_rows=5)
        async def poll(number):
            if number < 100:
                loop = asyncio.get_running_loop()
                loop.call_soon(lambda: loop.create_task(poll(number + 1)))
            else:
                ended.set()
            answer = Answer()
            answers.add(answer)
            return answer

        await poll(0)
        await ended.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()
        return len(answers)

    assert asyncio.run(main()) <= 10


def test_a_thread_that_fails_to_start_fails_only_its_callers(monkeypatch):
    f = cached(async_=True, timeout="1 h")(lambda key: key)

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            f(1)
    assert (f(1), f(2)) == (1, 2)


def test_a_queued_call_fails_if_no_thread_can_replace_a_hung_one(monkeypatch):
    """The call that hangs times out."""
    release, began = threading.Event(), threading.Event()

    @cached(async_=True, async_capacity=1, timeout="500 ms")
    def f(key):
        began.set()
        return release.wait(LIMIT) if key == 1 else key

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with ThreadPoolExecutor(2) as pool:
        # Both threads are started now.
        list(pool.map(lambda _: time.sleep(0.05), range(2)))
        hung = pool.submit(f, 1)
        assert began.wait(LIMIT)
        queued = pool.submit(f, 2)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            errors = [call.exception(LIMIT) for call in (hung, queued)]
        release.set()
    assert [type(error) for error in errors] == [LookupTimeoutError, RuntimeError]
    assert f(3) == 3


# ── odd callables ────────────────────────────────────────────────────────────────────────────────────────────


class WithStaticCall:
    @staticmethod
    def __call__(key):
        return key + 1


class WithClassCall:
    @classmethod
    def __call__(cls, key):
        return key + 1


class WithRequiredArgument:
    def __init__(self, step):
        self.step = step

    def __call__(self, key):
        return key + self.step


CALLABLES: dict[str, tuple[Any, str | None]] = {
    "class with static call": (WithStaticCall, None),
    "object with static call": (WithStaticCall(), None),
    "class with class call": (WithClassCall, None),
    "object with class call": (WithClassCall(), None),
    "partial of an object": (functools.partial(WithStaticCall()), None),
    "partial of a function": (functools.partial(lambda step, key: key + step, 1), None),
    "object": (WithRequiredArgument(1), None),
    "class with an argument": (WithRequiredArgument, r"requires 'step'(?s:.*)WithRequiredArgument\(step=…\)"),
    "builtin class": (int, r"Class int has no '__call__'(?s:.*)lambda key: int\(key\)"),
    "dataclass": (Customer, r"Class Customer has no '__call__'"),
    "partial of a class": (functools.partial(WithRequiredArgument, 1), r"partial of class WithRequiredArgument"),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_any_callable_works_or_is_refused_with_a_cure(name):
    function, wrong = CALLABLES[name]
    if wrong is None:
        decorated = cached(function)
        assert [decorated(1), decorated(key=1), decorated.cache_info().hits] == [2, 2, 1]
        return
    with pytest.raises(OptionError, match=wrong):
        cached(function)


# ── close within a call ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("in_slots", [False, True], ids=["in the caller's thread", "in a slot"])
def test_close_within_the_functions_own_call_is_refused(in_slots):
    @cached(async_=in_slots or None, max_retries=0, timeout="1 h")
    def close_it(key):
        close_it.close()

    with pytest.raises(RuntimeError, match="inside a call of the function"):
        close_it(1)
    close_it.close()


def test_close_within_an_async_functions_own_call_is_refused():
    @cached(max_retries=0)
    async def close_it(key):
        await close_it.close()

    async def main():
        with pytest.raises(RuntimeError, match="inside a call of the function"):
            await close_it(1)
        await close_it.close()

    asyncio.run(main())


@pytest.mark.parametrize("keys", [[1, True], [2, 2.0, 3], [0, 3, False]])
def test_a_dict_for_keys_that_are_one_key_of_a_dict_is_refused(keys):
    by_key = cached(lambda keys: {key: type(key) for key in keys}, batch=True)
    with pytest.raises(SourceError, match=r"(?s)differ in their type.*Hint: Return a list of one value per key"):
        by_key(keys)
    assert by_key(keys[:1]) == [type(keys[0])]
