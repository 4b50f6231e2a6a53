"""Every two values of options of `cached` that go together, under every kind of function: values, counts, errors.

The cases come from a pairwise product; the function is a dict, the clock is the test's own.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from option_pairs import CACHE, CALLS, clash_of
from pairwise import covering

from lookupcache import cached
from lookupcache.errors import LookupRefusedError

VALUES: dict[str, list[Any]] = {
    **CACHE,
    **CALLS,
    "on_error": ["fail", "null"],
    "sync": [True, False],
    "batch": [False, True],
    "shape": ["function", "object", "class", "method", "generator"],
    "key": ["int", "text", "pair", "mixed"],
    "fault": ["none", "first call", "one key"],
}


def clash(case: dict[str, Any]) -> set[str]:
    found = clash_of(case)
    if not case["batch"]:
        found |= {name for name in ("batch_max_size", "batch_max_delay") if case[name] is not None}
        found |= {"batch"} if found & {"batch_max_size", "batch_max_delay"} else set()
    if not case["sync"] and case["async_"] is False:
        found |= {"sync", "async_"}
    if case["shape"] == "generator" and (case["batch"] or not case["sync"]):
        found |= {"shape", "batch" if case["batch"] else "sync"}
    return found


COVERING = covering(VALUES, clash)
KEYS = {"int": [0, 1, 2, 3, 4], "text": ["", "a", "é", "d" * 40, "e"], "mixed": [1, 1.0, True, 3, None]}
KEYS["pair"] = list(zip(KEYS["int"], KEYS["text"], strict=True))
ROWS = [[], ["a"], ["b", "c"], ["d"], None]
"""The value of each key: a known miss, lists of one and two rows, the key that fails in ``one key``, and None."""


def test_the_product_has_every_pair_of_every_option(capsys):
    with capsys.disabled():
        print(f"\nOptions of a function: {COVERING}.")
    assert all(reasons & set(pair) for pair, reasons in COVERING.excluded)
    assert COVERING.pairs > 3_000


class Source:
    """What a decorated function answers, and how often it was called."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.keys, self.fault, self.calls, self.times = KEYS[case["key"]], case["fault"], 0, 0

    def number(self, key: Any) -> int:
        return next(n for n, own in enumerate(self.keys) if own == key and type(own) is type(key))

    def answer(self, keys: list[Any]) -> list[Any]:
        self.calls += 1
        numbers = [self.number(key) for key in keys]
        if (self.fault == "first call" and self.calls == 1) or (self.fault == "one key" and 3 in numbers):
            raise ConnectionError("the source is down")
        return [None if ROWS[number] is None else list(ROWS[number]) for number in numbers]


def decorated(case: dict[str, Any], source: Source, clock: Any) -> Any:
    """Return what is decorated as the case wants it; it takes a key, or with ``batch`` keys."""
    names = {*CACHE, *CALLS, "on_error", "batch"}
    decorate = cached(**{name: value for name, value in case.items() if name in names}, clock=clock)

    def function(key):
        return source.answer(key) if case["batch"] else source.answer([key])[0]

    def generator(key):
        yield from source.answer([key])[0] or ()

    async def later(key):
        await asyncio.sleep(0)
        return function(key)

    target = function if case["sync"] else later
    if case["shape"] == "function":
        return decorate(target)
    if case["shape"] == "generator":
        return decorate(generator)
    if case["shape"] == "method":
        own = {"sync": lambda self, key: function(key)}

        async def own_later(self, key):
            return await later(key)

        kind = type("Kind", (), {"ask": decorate(own["sync"] if case["sync"] else own_later)})
        case["owner"] = kind()
        return case["owner"].ask

    class Sync:
        def open(self):
            pass

        def __call__(self, key):
            return function(key)

    class Async(Sync):
        async def __call__(self, key):
            return await later(key)

    made = Sync if case["sync"] else Async
    return decorate(made if case["shape"] == "class" else made())


STEPS = [(0, [1, 2, 2, 0]), (0, [3, 1]), (0.5, [4, 4, 0, 1]), (3, [2, 1, 3, 0]), (2.5, [1, 2, 3, 4]), (35, [1, 0, 3])]


@pytest.mark.parametrize("number", range(len(COVERING.cases)))
def test_values_counts_and_errors_are_right(number):
    case = dict(COVERING.cases[number])
    asyncio.run(check(case))


async def check(case: dict[str, Any]) -> None:
    source, now = Source(case), [0.0]
    ask = decorated(case, source, lambda: now[0])
    requested = failed = 0
    values = [[] if case["shape"] == "generator" and rows is None else rows for rows in ROWS]

    async def answer(given: Any) -> Any:
        found = ask(given)
        return await found if inspect.isawaitable(found) else found

    for seconds, numbers in STEPS:
        now[0] += seconds
        calls = [numbers] if case["batch"] else [[number] for number in numbers]
        for wanted in calls:
            keys = [source.keys[number] for number in wanted]
            requested += len(keys)
            try:
                found = await answer(keys if case["batch"] else keys[0])
            except (ConnectionError, LookupRefusedError):
                assert case["on_error"] == "fail", case
                # An error of one of these keys, or a circuit breaker that calls for others have opened.
                assert case["fault"] == "first call" or 3 in wanted or case["breaker_failures"], case
                failed += 1
                continue
            found = found if case["batch"] else [found]
            if case["on_error"] == "fail" or case["fault"] == "none":
                assert found == [values[number] for number in wanted], case
                continue
            # With `null` an error gives None; a value is never another key's.
            assert all(value is None or value == values[number] for value, number in zip(found, wanted, strict=True))
            none = sum(value != values[number] for value, number in zip(found, wanted, strict=True))
            assert not none or case["fault"] == "first call" or 3 in wanted or case["breaker_failures"], case
            failed += none
    assert failed == 0 or case["fault"] != "none", case
    await settled(ask)
    metrics = ask.metrics()
    assert (metrics.rows, metrics.hits + metrics.misses) == (requested, requested), case
    assert metrics.calls == source.calls, case
    assert metrics.misses <= metrics.requested_keys or metrics.refused, case
    assert metrics.cached_rows <= (case["max_rows"] or metrics.cached_rows), case


async def settled(ask: Any) -> None:
    """Wait for refreshes in the background: closing waits for them, or cancels them."""
    closing = ask.close()
    if inspect.isawaitable(closing):
        await closing
