"""A function of any kind, called in one way: by `cached`, by a lookup table, by a table function."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
from collections import Counter

import pyarrow as pa
import pytest

from lookupcache import cached
from lookupcache.connector import LookupRequest
from lookupcache.errors import OptionError, SourceError
from lookupcache.functions.adapter import adapter_of
from lookupcache.functions.answers import BatchShape
from lookupcache.functions.connector import FunctionConnector
from lookupcache.functions.table_function import Argument, Form, KeyColumn, TableFunction
from lookupcache.schema import parse_ddl

COUNTS: Counter = Counter()


class Opened:
    """Counts how often it is made, opened and closed; it has rows only while it is open."""

    def __init__(self):
        COUNTS["made"] += 1
        self.is_open = False

    def open(self):
        COUNTS["opened"] += 1
        self.is_open = True

    def close(self):
        COUNTS["closed"] += 1
        self.is_open = False


def rows(key):
    return [(key, f"n{key}")]


class One(Opened):
    def __call__(self, key):
        assert self.is_open
        return rows(key)


class Many(Opened):
    def __call__(self, keys):
        assert self.is_open
        return [rows(key) for key in keys]


class OneLater(Opened):
    async def __call__(self, key):
        assert self.is_open
        return rows(key)


class ManyLater(Opened):
    async def __call__(self, keys):
        assert self.is_open
        return [rows(key) for key in keys]


async def one_later(key):
    return rows(key)


async def many_later(keys):
    return [rows(key) for key in keys]


async def each_later(key):
    for row in rows(key):
        yield row


FUNCTIONS = {
    "function": (rows, False), "batch function": (lambda keys: list(map(rows, keys)), True),
    "partial": (functools.partial(rows), False), "async function": (one_later, False),
    "async batch function": (many_later, True), "async generator": (each_later, False),
    **{f"{kind.__name__} object": (kind(), "Many" in kind.__name__) for kind in (One, Many, OneLater, ManyLater)},
    **{f"{kind.__name__} class": (kind, "Many" in kind.__name__) for kind in (One, Many, OneLater, ManyLater)},
}  # fmt: skip


async def done(answer):
    return await answer if inspect.isawaitable(answer) else answer


def as_cached(function, batch):
    if function is each_later:
        with pytest.raises(OptionError, match="async generator"):
            cached(function)
        return None
    lookup = cached(batch=batch)(function)
    return (lambda: lookup([1] if batch else 1)), lookup.close


def as_table(function, batch):
    connector = FunctionConnector(parse_ddl("id BIGINT, name STRING"), key=("id",), function=function, batch=batch)
    return _looked_up(pickle.loads(pickle.dumps(connector)), "id", ("name",))


def as_table_function(function, batch):
    returns = parse_ddl("id BIGINT, name STRING")
    number = Argument((KeyColumn("arg1", pa.int64(), "x"),), Form(value=0))
    table = TableFunction.of("f", function, returns=returns, batch=batch).table("f", (), [number])
    return _looked_up(table.connector, "arg1", ("id", "name"))


def _looked_up(connector, key, columns):
    request = LookupRequest(table="t", key_columns=(key,), columns=columns)
    keys = pa.record_batch({key: [1]})

    async def look_up():
        ask = connector.lookup_async if connector.is_async else connector.lookup
        table = await done(ask(request, keys))
        return [tuple(row.values())[-2:] for row in table.to_pylist()]

    return look_up, connector.close


@pytest.mark.parametrize("use", [as_cached, as_table, as_table_function])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_every_kind_of_function_is_called_and_opened_alike(kind, use):
    function, batch = FUNCTIONS[kind]
    COUNTS.clear()
    if (used := use(function, batch)) is None:
        return
    look_up, close = used

    async def main():
        found = await done(look_up())
        assert found in ([(1, "n1")], [[(1, "n1")]])
        await done(close())
        await done(close())

    asyncio.run(main())
    has_open = isinstance(function, Opened) or (isinstance(function, type) and issubclass(function, Opened))
    assert (COUNTS["opened"], COUNTS["closed"]) == ((1, 1) if has_open else (0, 0))
    assert COUNTS["made"] == (1 if isinstance(function, type) else 0)


def test_a_closed_object_is_opened_again_by_the_next_call():
    COUNTS.clear()
    adapter = adapter_of(One, lambda keys: (keys, {}))
    for _ in range(2):
        assert adapter.call([1]) == rows(1)
        adapter.close()
    assert COUNTS == {"made": 2, "opened": 2, "closed": 2}


def test_a_sync_function_with_an_async_open_is_refused_by_all():
    class Mixed:
        async def open(self): ...

        def __call__(self, key): ...

    for use in (as_cached, as_table, as_table_function):
        with pytest.raises(OptionError, match="Mixed is sync, but its open is async"):
            use(Mixed(), False)


NO_BATCHES = [{1, 2}, "ab", b"ab", None, 7, pa.table({"a": [1, 2]}), one_later]


@pytest.mark.parametrize("returned", NO_BATCHES, ids=lambda returned: type(returned).__name__)
def test_unordered_answers_to_a_batch_are_refused(returned):
    returned = returned(1) if returned is one_later else returned
    with pytest.raises(SourceError, match=f"It returned {type(returned).__name__} for its keys, not a list"):
        BatchShape("It").in_order(returned, [1, 2])


def test_a_batch_by_key_is_put_in_order_where_that_is_allowed():
    assert BatchShape("It").in_order({2: "b"}, [1, 2]) == [None, "b"]
    with pytest.raises(SourceError, match="a value for 3, which is not one of its keys"):
        BatchShape("It").in_order({3: "c"}, [1, 2])
    with pytest.raises(SourceError, match="returned dict for its keys, not a list"):
        BatchShape("It", by_key=False).in_order({1: "a", 2: "b"}, [1, 2])
