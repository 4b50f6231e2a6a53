"""Every two values of options of `cached` that go together, under every kind of function: values, counts, errors.

The cases come from a pairwise product; the function is a dict, the clock is the test's own.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from pathlib import Path
from typing import Any

import pytest
from memory_rate import MemoryRate
from memory_store import MemoryStore
from option_pairs import CACHE, CALLS, NOT_OF_A_FUNCTION, SHARED, WITHOUT_EFFECT, clash_of, config_of
from pairwise import Covering, covering, named

from lookupcache import LookupConfig, OptionError, cached
from lookupcache.errors import LookupRefusedError

VALUES: dict[str, list[Any]] = {
    **CACHE,
    **CALLS,
    **SHARED,
    **WITHOUT_EFFECT,
    "scope": ["auto", "worker", "host"],
    "on_error": ["fail", "null"],
    "error_column": [None, "error"],
    "sync": [True, False],
    "batch": [False, True],
    "shape": ["function", "object", "class", "method", "generator"],
    "key": ["int", "text", "pair", "mixed"],
    "fault": ["none", "first call", "one key"],
}


def with_placeholder(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case with the column for errors that only a join needs, and `cached` sets itself."""
    is_needed = case["on_error"] == "null" and case["error_column"] is None
    return case | ({"error_column": "error"} if is_needed else {})


def clash(case: dict[str, Any]) -> set[str]:
    found = clash_of(with_placeholder(case))
    found |= clash_of_sharing(case)
    if not case["batch"]:
        found |= {name for name in ("batch_max_size", "batch_max_delay") if case[name] is not None}
        found |= {"batch"} if found & {"batch_max_size", "batch_max_delay"} else set()
    if not case["sync"] and case["async_"] is False:
        found |= {"sync", "async_"}
    if case["shape"] == "generator" and (case["batch"] or not case["sync"]):
        found |= {"shape", "batch" if case["batch"] else "sync"}
    return found


def clash_of_sharing(case: dict[str, Any]) -> set[str]:
    """Return what contradicts that others share the values: they must know the function, by its name or its code."""
    found = set()
    if case["scope"] == "host" and case["cache"] != "NONE" and case["cache_path"] is None:
        found |= {"scope", "cache_path"}
    for option in ("cache_path", "store"):
        if case["shape"] == "method" and case[option] is not None:
            found |= {"shape", option}
    return found


@functools.cache
def covered() -> Covering:
    """Return the cases; to find them takes seconds, which the collection of the tests must not."""
    return covering(VALUES, clash)


PARTS = 30
OPTIONS = set(LookupConfig.__dataclass_fields__) & set(VALUES)
KEYS = {"int": [0, 1, 2, 3, 4], "text": ["", "a", "é", "d" * 40, "e"], "mixed": [1, 1.0, True, 3, None]}
KEYS["pair"] = list(zip(KEYS["int"], KEYS["text"], strict=True))
ROWS = [[], ["a"], ["b", "c"], ["d"], None]
"""The value of each key: a known miss, lists of one and two rows, the key that fails in ``one key``, and None."""


def test_the_product_has_every_pair_of_every_option(capsys):
    with capsys.disabled():
        print(f"\nOptions of a function: {covered()}.")
    assert set(LookupConfig.__dataclass_fields__) - set(VALUES) == set(NOT_OF_A_FUNCTION)
    assert all(NOT_OF_A_FUNCTION.values())
    assert all(reasons & set(pair) for pair, reasons in covered().excluded)
    assert covered().pairs > 5_000


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


CURRENT: list[tuple[dict[str, Any], Source]] = []
"""The case that runs, and its source. The functions are of the module: other processes could not know local ones."""


def function(key):
    case, source = CURRENT[-1]
    return source.answer(key) if case["batch"] else source.answer([key])[0]


def generator(key):
    yield from function(key) or ()


async def later(key):
    await asyncio.sleep(0)
    return function(key)


class Sync:
    def open(self):
        pass

    def __call__(self, key):
        return function(key)


class Async(Sync):
    async def __call__(self, key):
        return await later(key)


class Owner:
    def ask(self, key):
        return function(key)

    async def ask_later(self, key):
        return await later(key)


def decorated(case: dict[str, Any], folder: str, clock: Any) -> Any:
    """Return what is decorated as the case wants it; it takes a key, or with ``batch`` keys."""
    options = {option: getattr(config_of(with_placeholder(case), folder), option) for option in OPTIONS}
    if case["error_column"] is None:
        del options["error_column"]
    decorate = cached(**options, batch=case["batch"], clock=clock)
    if case["shape"] == "method":
        kind = type("Kind", (Owner,), {"ask": decorate(Owner.ask if case["sync"] else Owner.ask_later)})
        case["owner"] = kind()
        return case["owner"].ask
    if case["shape"] == "generator":
        return decorate(generator)
    if case["shape"] == "function":
        return decorate(function if case["sync"] else later)
    made = Sync if case["sync"] else Async
    return decorate(made if case["shape"] == "class" else made())


STEPS = [(0, [1, 2, 2, 0]), (0, [3, 1]), (0.5, [4, 4, 0, 1]), (3, [2, 1, 3, 0]), (2.5, [1, 2, 3, 4]), (35, [1, 0, 3])]


@pytest.mark.parametrize("part", range(PARTS))
def test_values_counts_and_errors_are_right(part, tmp_path, monkeypatch):
    for case, folder in covered().part(part, PARTS, tmp_path):
        with named(case):
            check_product(dict(case), folder, monkeypatch)


def check_product(case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, rate = MemoryStore(), MemoryRate()
    monkeypatch.setattr("lookupcache.store.row_store.open_store", lambda *given: memory)
    monkeypatch.setattr("lookupcache.store.cluster_rate.open_rate", rate.open)
    source = Source(case)
    monkeypatch.setattr(f"{__name__}.CURRENT", [(case, source)])
    asyncio.run(check(case, source, memory, str(tmp_path)))
    assert not memory.claimed, case
    assert (tmp_path / "cache").exists() == (case["cache_path"] is not None), case
    if case["rate_limit_scope"] == "cluster":
        assert rate.times >= source.calls, case


@pytest.mark.parametrize(
    ("option", "value"),
    [("cache", "ALL"), ("on_error", "dead-letter"), ("age_column", "age"), ("output_mode", "allow-unordered"),
     ("shuffle", True), ("as_of_period", "a, b"), ("as_of_version", "a")],
)  # fmt: skip
def test_options_that_need_a_join_are_refused(option, value):
    folder = {"dead_letter_path": "letters"} if value == "dead-letter" else {}
    with pytest.raises(OptionError, match=r"needs a (join|table)"):
        cached(**{option: value}, **folder)


async def check(case: dict[str, Any], source: Source, memory: MemoryStore, folder: str) -> None:
    now = [0.0]
    ask = decorated(case, folder, lambda: now[0])
    requested = failed = 0
    values = [[] if case["shape"] == "generator" and rows is None else rows for rows in ROWS]

    async def answer(given: Any) -> Any:
        found = ask(given)
        return await found if inspect.isawaitable(found) else found

    for seconds, numbers in STEPS:
        now[0] += seconds
        memory.clock += seconds
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
    # After a call for some keys of a list has failed, those for the others are not made.
    is_cut_short = failed > 0 and case["batch"] and case["batch_max_size"] is not None
    assert metrics.misses <= metrics.requested_keys + metrics.store_hits or metrics.refused or is_cut_short, case
    assert metrics.store_failures == metrics.cluster_limit_failures == metrics.host_failures == 0, case
    assert metrics.cached_rows <= (case["max_rows"] or metrics.cached_rows), case


async def settled(ask: Any) -> None:
    """Wait for refreshes in the background: closing waits for them, or cancels them."""
    closing = ask.close()
    if inspect.isawaitable(closing):
        await closing
