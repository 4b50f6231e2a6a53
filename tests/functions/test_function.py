"""Plain functions as connectors."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import io
import math
import pickle
import sqlite3
import threading
from collections import Counter, namedtuple
from collections.abc import Callable as CallableType
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from lookupcache.connector import LookupRequest
from lookupcache.errors import (
    ConnectorError,
    LookupRuntimeError,
    OptionError,
    PlanError,
    SchemaError,
    SourceError,
    WrongRowsError,
)
from lookupcache.functions.connector import FunctionConnector
from lookupcache.planner import LeftColumn, plan_join
from lookupcache.schema import parse_ddl
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted

SCHEMA = parse_ddl("id BIGINT, name STRING")
BY_ID = LookupRequest(table="t", key_columns=("id",), columns=("name",))
NAMES = {1: ["ann"], 2: ["bob", "rob"]}


def one(key):
    return [(key, name) for name in NAMES.get(key, [])]


def one_as_dicts(key):
    return [{"name": name} for name in NAMES.get(key, [])]


def one_as_generator(key):
    yield from one(key)


def one_or_none(key):
    return one(key) or None


def many(keys):
    return [one(key) for key in keys]


async def one_async(key):
    await asyncio.sleep(0)
    return one(key)


async def many_async(keys):
    return many(keys)


class Callable:
    async def __call__(self, key):
        return one(key)


def connector(function, key=("id",), batch=False, schema=SCHEMA):
    return FunctionConnector(schema, key=key, function=function, batch=batch)


def answer(requested, request=BY_ID, **keys):
    batch = pa.record_batch(keys or {"id": [1, 2, 3]})
    table = (
        asyncio.run(requested.lookup_async(request, batch)) if requested.is_async else requested.lookup(request, batch)
    )
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("function", [one, one_as_dicts, one_as_generator, one_or_none, one_async, Callable()])
def test_one_key_at_a_time(function):
    assert answer(connector(function)) == [(1, "ann"), (2, "bob"), (2, "rob")]


@pytest.mark.parametrize("function", [many, many_async, functools.partial(many), functools.partial(many_async)])
def test_many_keys_at_a_time(function):
    assert answer(connector(function, batch=True)) == [(1, "ann"), (2, "bob"), (2, "rob")]


@pytest.mark.parametrize(
    ("function", "is_async"),
    [(one, False), (one_async, True), (functools.partial(one_async), True), (Callable(), True)],
)
def test_an_async_function_is_known_as_one(function, is_async):
    made = connector(function)
    assert (made.is_async, made.runs_async(None)) == (is_async, is_async)


def test_the_keys_come_in_the_functions_order_whatever_the_joins():
    schema = parse_ddl("a BIGINT, b STRING, c BIGINT")
    requested = connector(lambda b, a: [(a, b, a + len(b))], key=("b", "a"), schema=schema)
    request = LookupRequest(table="t", key_columns=("a", "b"), columns=("c",))
    assert answer(requested, request, a=[1], b=["xy"]) == [(1, "xy", 3)]


def test_a_constant_may_be_one_of_the_keys():
    requested = connector(lambda name, key: [(key, name)], key=("name", "id"))
    request = LookupRequest(table="t", key_columns=("id",), columns=("name",), constants={"name": "ann"})
    assert answer(requested, request, id=[7]) == [(7, "ann")]


def test_a_function_is_called_once_for_each_key():
    calls = Counter()

    def counted(key):
        calls[key] += 1
        return one(key)

    request = LookupRequest(table="t", key_columns=("id", "name"))
    answer(connector(counted), request, id=[1, 1, 2], name=["ann", "x", "bob"])
    assert calls == {1: 1, 2: 1}


def test_planning_refuses_a_join_without_a_key_of_the_function():
    refused = pytest.raises(PlanError, match=r"has no 'id'(?s:.*)Join by id")
    with refused:
        answer(connector(one), LookupRequest(table="t", key_columns=("name",)), name=["ann"])
    table, left = LookupTable.from_function("t", SCHEMA, key=["id"], function=one), [LeftColumn("n", "string")]
    with refused:
        plan_join(left, table, on="n = t.name", analyst=None)
    assert plan_join(left, table, on="n = t.name AND t.id = 1", analyst=None).keys


@pytest.mark.parametrize("key", [(), ("nothing",)])
def test_a_key_that_is_no_column(key):
    with pytest.raises(SchemaError):
        connector(one, key=key)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("STRUCT<a: INT, b: INT>", (1.5, 2)), ("STRUCT<a: INT, b: INT>", [("a", 1.5), ("b", 2)]),
        ("STRUCT<a: DATE>", (dt.datetime(2020, 1, 1, 23),)), ("STRUCT<a: TIMESTAMP>", [("a", 5)]),
        ("ARRAY<STRUCT<a: INT>>", [(1.5,)]), ("MAP<STRING, STRUCT<a: INT>>", {"k": (1.5,)}),
        ("STRUCT<a: STRUCT<b: INT>>", ({"b": 1.5},)), ("ARRAY<STRING>", "abc"), ("ARRAY<INT>", b"abc"),
        ("FLOAT", 1e300), ("ARRAY<FLOAT>", [math.inf, -1e39]), ("STRUCT<a: MAP<FLOAT, INT>>", ({1e39: 1},)),
        ("ARRAY<STRUCT<a: ARRAY<FLOAT>>>", [([1.0, 1e39],)]), ("ARRAY<DATE>", [np.int64(5)]),
        ("ARRAY<ARRAY<STRING>>", ["ab"]),
    ],
)  # fmt: skip
def test_nested_values_are_never_changed(type_, value):
    table = LookupTable.from_function("t", f"id INT, v {type_}", key=["id"], function=lambda _: [(1, value)])
    with (
        LocalJoin(table, Wanted(key=("id",))) as join,
        pytest.raises(LookupRuntimeError, match=r"would become|no list"),
    ):
        join.rows([(1,)])


@pytest.mark.parametrize(
    ("type_", "value", "kept"),
    [
        ("STRUCT<a: INT, b: STRING>", (1, "x"), {"a": 1, "b": "x"}), ("ARRAY<STRING>", ["a", None], ["a", None]),
        ("STRUCT<a: INT, b: STRING>", [("a", 1), ("b", "x")], {"a": 1, "b": "x"}), ("ARRAY<STRING>", ("a",), ["a"]),
        ("ARRAY<FLOAT>", [0.5, math.inf, None], [0.5, math.inf, None]), ("FLOAT", -math.inf, -math.inf),
        ("ARRAY<STRUCT<a: INT>>", [(1,), None], [{"a": 1}, None]), ("ARRAY<STRING>", np.array(["a"]), ["a"]),
    ],
)  # fmt: skip
def test_nested_values_may_be_tuples_pairs_and_arrays(type_, value, kept):
    table = LookupTable.from_function("t", f"id INT, v {type_}", key=["id"], function=lambda _: [(1, value)])
    with LocalJoin(table, Wanted(key=("id",))) as join:
        assert join.rows([(1,)]) == [(1, kept)]


def test_a_function_may_change_the_list_of_its_keys():
    def popping(keys):
        return [[(keys.pop(0), "x")] for _ in range(len(keys))]

    table = LookupTable.from_function("t", "id INT, v STRING", key=["id"], function=popping, batch=True)
    with LocalJoin(table, Wanted(key=("id",))) as join:
        assert sorted(join.rows([(1,), (2,), (3,)])) == [(1, "x"), (2, "x"), (3, "x")]


class Counting:
    """Has its answers once it is opened."""

    def open(self):
        self.lock, self.names = threading.Lock(), NAMES

    def __call__(self, key):
        return self.names.get(key)


async def one_async(key):
    return one(key)


def named(function, example, *, batch=False, schema="id BIGINT, name STRING", key="id"):
    return LookupTable.from_function("t", schema, key=key, function=function, batch=batch, example=example)


@pytest.mark.parametrize(
    ("function", "batch"), [(one, False), (one_async, False), (many, True), (Counting, False), (Counting(), False)]
)
def test_an_example_calls_the_function_as_a_worker_would(function, batch):
    table = named(function, 1, batch=batch)
    with pytest.raises(SourceError, match=r"no row of the example 9\.(?s:.*)Give a key that has a row"):
        named(function, 9, batch=batch)
    assert not hasattr(function, "lock")
    with LocalJoin(table, Wanted(key=("id",))) as join:
        assert join.rows([(1,)]) == [(1, "ann")]


@pytest.mark.parametrize(
    ("function", "example", "error", "says"),
    [
        (lambda key: [5], 1, SourceError, "'name': the function's values are not STRING(?s:.*)declare 'name' with"),
        (lambda key: {"nam": "ann"}, 1, SourceError, "a column 'nam'(?s:.*)Did you mean 'name'"),
        (lambda key: ("a", "b", "c"), 1, SourceError, "a tuple of 3 values"),
        (lambda key: {"id": 7, "name": "ann"}, 1, SourceError, "no row of the example 1"),
        (lambda: "ann", 1, SourceError, "'.*' failed for the example 1: TypeError: (?s:.*)It is called with id"),
        (lambda key: "ann", "x", OptionError, "Key column 'id': the example 'x' is no BIGINT"),
        (lambda key: "ann", 1.5, OptionError, "1.5 would become 1"),
    ],
)
def test_an_example_key_checks_a_table_when_it_is_declared(function, example, error, says):
    with pytest.raises(error, match=says):
        named(function, example)


def test_an_example_has_a_value_of_each_key_column():
    both = {"schema": "a INT, b STRING, c INT", "key": ["a", "b"]}
    assert named(lambda a, b: a + len(b), (1, "x"), **both).schema.names == ["a", "b", "c"]
    for wrong in (1, (1,), "ab"):
        with pytest.raises(OptionError, match=r"is no key of a, b(?s:.*)tuple"):
            named(lambda a, b: 1, wrong, **both)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([7], "'name': the function's values are not STRING"),
        ([(1, 2, 3)], "returned tuple of 3 values as a row(?s:.*)a value of 'name'(?s:.*)id may be left out"),
        ([{"nam": "ann"}], "a column 'nam'(?s:.*)Did you mean 'name'"),
        ([("one", "ann")], "'id': the function's values are not BIGINT"),
        ([(1, 5)], "'name': the function's values are not STRING"),
        ([(1.5, "ann")], "'id'.*1.5 would become 1"),
        ([(float("nan"), "ann")], "'id'"),
    ],
)
def test_rows_that_are_none(rows, named):
    with pytest.raises(SourceError, match=named):
        answer(connector(lambda key: rows))


ROWS = st.sampled_from(["right", "none", "dict", "wrong", "odd", "no row", "error", "of another", "unhashable"])


def answered(kind, key, keys):
    return {
        "right": [(key, f"n{key}")], "none": None, "dict": [{"name": f"n{key}"}, (key, f"n{key}")], "wrong": [(key, 7)],
        "odd": [7], "no row": 7, "error": OSError("not this one"), "of another": [(max(keys) + key + 1, "x")],
        "unhashable": [([key], "x")],
    }[kind]  # fmt: skip


WRONG = {"wrong", "odd", "no row", "error", "unhashable"}
NUMBER_OF_ROWS = {"right": 1, "dict": 2, "of another": 1}


@pytest.mark.extended
@given(st.lists(ROWS, min_size=1, max_size=12))
def test_only_the_keys_with_wrong_rows_fail(kinds):
    keys = list(range(len(kinds)))
    requested = connector(lambda keys: [answered(kind, key, keys) for key, kind in enumerate(kinds)], batch=True)
    wrong = [key for key, kind in enumerate(kinds) if kind in WRONG]
    rows, failed = [], []
    try:
        rows = [row[0] for row in answer(requested, id=keys)]
    except WrongRowsError as error:
        rows, failed = error.table.column("id").to_pylist(), sorted(error.wrong)
    assert failed == wrong
    borne = {key: max(keys) + key + 1 if kind == "of another" else key for key, kind in enumerate(kinds)}
    assert rows == [borne[key] for key, kind in enumerate(kinds) for _ in range(NUMBER_OF_ROWS.get(kind, 0))]


@pytest.mark.extended
@given(st.lists(ROWS, min_size=1, max_size=5), st.data(), st.booleans())
def test_a_failed_function_key_fails_all_join_keys_that_use_it(kinds, data, is_async):
    requested = data.draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=12))

    def function(keys):
        return [answered(kinds[key], key, range(len(kinds))) for key in keys]

    async def function_later(keys):
        return function(keys)

    made = connector(function_later if is_async else function, batch=True)
    failed = []
    try:
        answer(
            made,
            LookupRequest(table="t", key_columns=("id", "name")),
            id=requested,
            name=[str(i) for i, _ in enumerate(requested)],
        )
    except WrongRowsError as error:
        failed = sorted(error.wrong)
    assert failed == [place for place, key in enumerate(requested) if kinds[key] in WRONG]


def test_rows_that_are_made_as_they_are_read_are_read_once():
    requested = connector(lambda keys: [one_as_generator(1), iter([7]), one_as_generator(2)], batch=True)
    with pytest.raises(WrongRowsError) as raised:
        answer(requested, id=[1, 9, 2])
    assert (list(raised.value.wrong), raised.value.table.num_rows) == ([1], 3)


def test_lists_in_another_order_than_the_keys_fail_the_batch():
    requested = connector(lambda keys: [one(2), [7], one(1)], batch=True)
    with pytest.raises(SourceError, match="in the list of another") as raised:
        answer(requested)
    assert not isinstance(raised.value, WrongRowsError)


ROW = namedtuple("ROW", "id name")


@dataclass
class Person:
    name: str
    columns: int = 0


def database_row(columns):
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute(f"SELECT {columns}").fetchone()


WIDE = parse_ddl("id BIGINT, name STRING, columns INT")
OF_ONE_COLUMN = [
    "ann", ("ann",), (1, "ann"), {"name": "ann"}, ROW(1, "ann"), Row(name="ann"), database_row("'ann' AS name"),
    pd.Series({"id": 1, "name": "ann"}), pa.scalar({"name": "ann"}), pa.scalar("ann"),
]  # fmt: skip
OF_TWO_COLUMNS = [("ann", 0), (1, "ann", 0), {"name": "ann", "columns": 0}, Person("ann")]
ROWS_OF_ANN = [(SCHEMA, row) for row in OF_ONE_COLUMN] + [(WIDE, row) for row in OF_TWO_COLUMNS]


@pytest.mark.parametrize(("schema", "row"), ROWS_OF_ANN, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    ("wrap", "count"), [(lambda row: row, 1), (lambda row: [row, row], 2), (lambda row: iter([row]), 1)]
)
def test_rows_may_come_alone_or_in_lists_with_or_without_keys(schema, row, wrap, count):
    for batch in (False, True):
        function = (lambda keys: [wrap(row)]) if batch else (lambda key: wrap(row))
        assert answer(connector(function, batch=batch, schema=schema), id=[1]) == [(1, "ann")] * count


FORMS = {
    "all": lambda key, name, n: (key, name, n),
    "without the key": lambda key, name, n: (name, n),
    "by name": lambda key, name, n: {"id": key, "name": name, "columns": n},
    "by name, in another order": lambda key, name, n: {"columns": n, "name": name, "id": key},
    "by name, without the key": lambda key, name, n: {"name": name, "columns": n},
    "an object": lambda key, name, n: Person(name, n),
    "values of Arrow": lambda key, name, n: pa.scalar({"name": name, "columns": n}),
}


@pytest.mark.extended
@given(st.lists(st.lists(st.sampled_from(list(FORMS)), max_size=2), min_size=1, max_size=4), st.data())
def test_rows_of_several_forms_mix_in_a_batch(forms, data):
    """And a batch of one form has the same rows."""
    if data.draw(st.booleans()):
        form = data.draw(st.sampled_from(list(FORMS)))
        forms = [[form] * len(of_key) for of_key in forms]
    rows, wanted = [], []
    for key, of_key in enumerate(forms):
        values = [data.draw(st.tuples(st.sampled_from(["ann", None]), st.sampled_from([1, None]))) for _ in of_key]
        made = [FORMS[form](key, *row) for form, row in zip(of_key, values, strict=True)]
        rows.append(data.draw(st.sampled_from([made, made[0]] if len(made) == 1 else [made, made or None])))
        wanted += [(key, *row) for row in values]
    request = LookupRequest(table="t", key_columns=("id",), columns=("name", "columns"))
    assert answer(connector(lambda keys: rows, batch=True, schema=WIDE), request, id=range(len(forms))) == wanted
    of_one = connector(lambda key: rows[key], schema=WIDE)
    assert answer(of_one, request, id=range(len(forms))) == wanted


@pytest.mark.parametrize(
    ("schema", "row", "wrong"),
    [
        (SCHEMA, {}, "an empty row(?s:.*)Return None"),
        (SCHEMA, pa.table({}), "Table for a key, not a row or a list of rows"),
        (SCHEMA, ("ann", "bob"), "a tuple of 2 values for a key(?s:.*)a list of the values of 'name'"),
        (SCHEMA, Person("ann"), "a column 'columns'"),
        (SCHEMA, Row(id=1), "a Row without column 'name'"),
        (WIDE, ROW(1, "ann"), "a ROW without column 'columns'"),
        (WIDE, "ann", "str for a key, not a row or a list of rows(?s:.*)a tuple of id, name, columns, where id may be"),
        (WIDE, ("ann", "bob"), "'columns': the function's values are not INT"),
    ],
    ids=repr,
)
def test_a_row_that_does_not_fit_is_refused_with_a_cure(schema, row, wrong):
    for function, batch in ((lambda key: row, False), (lambda keys: [row], True)):
        request = LookupRequest(table="t", key_columns=("id",), columns=tuple(schema.names[1:]))
        with pytest.raises(SourceError, match=wrong):
            answer(connector(function, batch=batch, schema=schema), request, id=[1])


async def _never_awaited():
    return []


# What a function returned for key 1, and what is wrong with it; None where it is the row (1, "ann").
ANSWERS: dict[str, tuple[CallableType[[], Any], str | None]] = {
    "file": (lambda: io.StringIO("ann"), "StringIO, which can be used only once"),
    "empty file": (lambda: io.BytesIO(), "BytesIO, which can be used only once"),
    "coroutine": (_never_awaited, "coroutine, which can be used only once"),
    "class": (lambda: int, "type for a key, not a row"),
    "frame": (lambda: pd.DataFrame({"id": [1], "name": ["ann"]}), "DataFrame for a key, not a row or a list of rows"),
    "dict view": ({1: (1, "ann")}.values, None),
    "series of rows": (lambda: pd.Series([(1, "ann")], index=[7]), None),
    "set": (lambda: {(1, "ann")}, None),
    "Arrow list": (lambda: pa.scalar([{"id": 1, "name": "ann"}]), None),
    "Arrow array": (lambda: pa.array([{"id": 1, "name": "ann"}]), None),
    "Arrow values": (lambda: [(pa.scalar(1), pa.scalar("ann"))], None),
    "Arrow rows": (lambda: [pa.scalar({"id": 1, "name": "ann"})], None),
}


@pytest.mark.parametrize("batch", [False, True], ids=["key", "batch"])
@pytest.mark.parametrize("name", ANSWERS)
def test_any_answer_is_rows_or_an_error_with_a_cure(name, batch):
    make, wrong = ANSWERS[name]
    made = connector((lambda keys: [make()]) if batch else (lambda key: make()), batch=batch)
    if wrong is None:
        assert answer(made, id=[1]) == [(1, "ann")]
        return
    with pytest.raises(SourceError, match=rf"[Ff]unction .* returned {wrong}(?s:.*)Hint: "):
        answer(made, id=[1])


@pytest.mark.parametrize("index", [None, [2, 1]], ids=["positions", "labels"])
def test_a_series_of_answers_counts_by_position_only(index):
    made = connector(lambda keys: pd.Series([one(key) for key in keys], index=index), batch=True)
    if index is None:
        assert answer(made, id=[1, 2]) == [(1, "ann"), (2, "bob"), (2, "rob")]
        return
    with pytest.raises(SourceError, match=r"Series with an index that is not that of its keys(?s:.*)tolist\(\)"):
        answer(made, id=[1, 2])


class OnlyOnTheDriver:
    """As a broadcast of Spark, which a worker cannot pickle again."""

    def __init__(self, sent=False):
        self.sent = sent

    def __reduce__(self):
        if self.sent:
            raise TypeError("can only be serialized in driver")
        return OnlyOnTheDriver, (True,)

    def __call__(self, id):
        return [{"id": id, "name": "ann"}]


def test_a_function_is_pickled_once_by_the_driver():
    table = LookupTable.from_function("t", "id BIGINT, name STRING", key="id", function=OnlyOnTheDriver())
    sent = pickle.loads(pickle.dumps(table.connector))
    with LocalJoin(table, Wanted(key=("id",), columns=("name",)), sent) as join:
        assert join.rows([(1,)]) == [("ann",)]


def test_a_function_that_cannot_be_pickled_is_named():
    lock = threading.Lock()
    with pytest.raises(ConnectorError, match=r"needs_lock' cannot be pickled(?s:.*)'open'"):
        _ = connector(functools.partial(needs_lock, lock)).pickled


def needs_lock(lock, key):
    return []


@pytest.mark.parametrize("answers", [{1: [(1, "ann")]}, {((1, "ann"),)}, "a", None, 7], ids=repr)
def test_a_batch_without_order_is_refused(answers):
    with pytest.raises(SourceError, match="for its keys, not a list"):
        connector(lambda keys: answers, batch=True).lookup(BY_ID, pa.record_batch({"id": pa.array([1])}))


def test_a_time_of_day_is_not_dropped():
    schema = parse_ddl("id BIGINT, day DATE")
    request = LookupRequest(table="t", key_columns=("id",), columns=("day",))
    day = dt.date(2013, 1, 1)
    assert answer(connector(lambda key: [(key, day)], schema=schema), request, id=[1]) == [(1, day)]
    with pytest.raises(SourceError, match="'day'"):
        answer(connector(lambda key: [(key, dt.datetime(2013, 1, 1, 5))], schema=schema), request, id=[1])


AWARE = dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5)))


@pytest.mark.parametrize(
    ("type_", "right", "wrong"),
    [
        ("ARRAY<INT>", [1, 2.0, None], [1.5]),
        ("ARRAY<ARRAY<INT>>", [[1], None], [[1], [1.5]]),
        ("ARRAY<DATE>", [dt.date(2024, 1, 1)], [dt.datetime(2024, 1, 1, 5)]),
        ("STRUCT<a: INT>", {"a": 1}, {"a": 1.5}),
        ("STRUCT<a: INT>", {"a": None}, {"A": 1}),
        ("STRUCT<a: INT, b: STRING>", {"a": 1}, {"a": 1, "c": "x"}),
        ("MAP<STRING, INT>", [("a", 1)], {"a": 1.5}),
        ("TIMESTAMP_NTZ", dt.datetime(2024, 1, 1), AWARE),
        ("ARRAY<TIMESTAMP_NTZ>", [dt.datetime(2024, 1, 1)], [AWARE]),
        ("TIMESTAMP", AWARE, 5),
        ("DATE", None, dt.datetime(2024, 1, 1, 5)),
        ("INT", np.int64(3), Decimal("1.5")),
        ("MAP<STRING, INT>", {}, [("a", Decimal("1.5"))]),
        ("ARRAY<STRUCT<t: TIMESTAMP_NTZ>>", [{"t": dt.datetime(2024, 1, 1)}, None, {}], [{"t": AWARE}]),
    ],
)
def test_a_value_that_would_change_is_refused_however_deep(type_, right, wrong):
    schema = parse_ddl(f"id BIGINT, v {type_}")
    request = LookupRequest(table="t", key_columns=("id",), columns=("v",))
    assert len(answer(connector(lambda key: [(key, right)], schema=schema), request, id=[1])) == 1
    with pytest.raises(SourceError, match="column 'v'"):
        answer(connector(lambda key: [(key, wrong)], schema=schema), request, id=[1])


def test_numbers_of_numpy_and_whole_floats_fit():
    assert answer(connector(lambda key: [(np.int64(key), None), (float(key), "x")]), id=[1]) == [(1, None), (1, "x")]


def test_one_list_per_key():
    with pytest.raises(SourceError, match="returned 1 lists for 3 keys"):
        answer(connector(lambda keys: [[]], batch=True))


def test_an_error_of_the_function_comes_through():
    with pytest.raises(ZeroDivisionError):
        answer(connector(lambda key: key / 0))


def test_a_function_travels_by_value():
    names = {1: "ann"}
    copy = pickle.loads(pickle.dumps(connector(lambda key: [(key, names.get(key))])))
    assert answer(copy, id=[1]) == [(1, "ann")]


def test_a_batch_in_another_order_is_refused():
    with pytest.raises(SourceError, match="a row of one key in the list of another"):
        answer(connector(lambda keys: many(reversed(keys)), batch=True))


def test_rows_that_a_single_call_did_not_request_are_dropped():
    def more(key):
        return [*one(1), *one(2), *one(9), (None, "none")]

    assert answer(connector(more), id=[1, 2]) == [(1, "ann"), (None, "none"), (2, "bob"), (2, "rob"), (None, "none")]


@pytest.mark.parametrize("kind", ["one", "one async", "many", "many async"])
def test_keys_that_differ_only_in_other_columns_are_called_once(kind):
    asked: list[float] = []

    def rows_of(keys):
        asked.extend(keys)
        return [[{"name": "ann"}] for _ in keys]

    async def rows_of_async(keys):
        return rows_of(keys)

    async def rows_of_one_async(key):
        return rows_of([key])[0]

    functions = {
        "one": lambda key: rows_of([key])[0], "one async": rows_of_one_async,
        "many": rows_of, "many async": rows_of_async,
    }  # fmt: skip
    schema = parse_ddl("x DOUBLE, n BIGINT, name STRING")
    made = FunctionConnector(schema, key=("x",), function=functions[kind], batch="many" in kind)
    request = LookupRequest(table="t", key_columns=("n", "x"), columns=("name",))
    answer(made, request, n=[1, 2, 3, 4], x=[float("nan"), 0.5, float("nan"), 0.5])
    assert [str(key) for key in asked] == ["nan", "0.5"]


def test_a_row_of_nan_in_the_list_of_another_key_is_refused():
    nan = float("nan")
    schema = parse_ddl("x DOUBLE, name STRING")
    made = FunctionConnector(
        schema, key=("x",), function=lambda keys: [[(nan, "a")], [(float("nan"), "b")]], batch=True
    )
    request = LookupRequest(table="t", key_columns=("x",), columns=("name",))
    with pytest.raises(SourceError, match="in the list of another"):
        answer(made, request, x=[1.0, nan])


def test_a_constant_of_minus_zero_is_passed_as_zero_like_a_key():
    asked: list[float] = []
    table = LookupTable.from_function(
        "t", "x DOUBLE, n BIGINT, name STRING", key=["x"], function=lambda x: asked.append(x) or [{"n": 1, "name": "a"}]
    )
    with LocalJoin(table, Wanted(key=("n",), constants={"x": -0.0})) as join:
        assert len(join.rows([(1,)])) == 1
    assert [str(x) for x in asked] == ["0.0"]


ALIKE = {
    "FLOAT": (0.1, 0.25, float),
    "DOUBLE": (float("nan"), 1.0, np.float32),
    "STRING": ("a", "b", str.encode),
    "BINARY": (b"a", b"b", bytearray),
    "BIGINT": (1, 2, Decimal),
    "DATE": (dt.date(2020, 1, 1), dt.date(2020, 1, 2), pa.scalar),
    "TIMESTAMP": (
        dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
        lambda value: value.replace(tzinfo=None),
    ),
}  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("type_", ALIKE)
def test_a_row_has_the_key_that_its_value_becomes_in_the_schema(type_, batch):
    *values, convert = ALIKE[type_]
    everything = [(convert(value), f"n{number}") for number, value in enumerate(values)]
    if type_ == "FLOAT":
        # The doubles of which the keys are the nearest FLOATs.
        assert everything[0][0] != pa.scalar(0.1, pa.float32()).as_py()
    # A function of one key may return the rows of all of them.
    function = (lambda keys: [[row] for row in everything]) if batch else (lambda key: everything)
    table = LookupTable.from_function("t", f"k {type_}, name STRING", key=["k"], function=function, batch=batch)
    with LocalJoin(table, Wanted(key=("k",), columns=("name",))) as join:
        assert join.rows([(value,) for value in values]) == [("n0",), ("n1",)]


FAR = {"DATE": pa.array([18262, 2932897, -719529], pa.int32()).cast(pa.date32())}
FAR["TIMESTAMP"] = FAR["DATE"].cast(pa.timestamp("s")).cast(pa.timestamp("us", "UTC"))


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize("kind", ["one", "one async", "many", "many async"])
@pytest.mark.parametrize("extra", ["", "v"])
@pytest.mark.parametrize("type_", FAR)
def test_a_date_outside_of_pythons_range_fails_only_its_key(type_, extra, kind):
    asked = []

    def rows_of(keys):
        asked.extend(keys)
        return [[{"name": "ann", **({} if extra else {"v": 3})}] for _ in keys]

    async def rows_of_async(keys):
        return rows_of(keys)

    async def rows_of_one_async(*key):
        return rows_of([key])[0]

    functions = {
        "one": lambda *key: rows_of([key])[0], "one async": rows_of_one_async,
        "many": rows_of, "many async": rows_of_async,
    }  # fmt: skip
    table = LookupTable.from_function(
        "t", f"k {type_}, v INT, name STRING", key=["k", "v"] if extra else ["k"],
        function=functions[kind], batch="many" in kind,
    )  # fmt: skip
    request = LookupRequest(table="t", key_columns=("k", "v"), columns=("name",))
    keys = {"k": FAR[type_], "v": pa.array([3, 3, 3], pa.int32())}
    with pytest.raises(WrongRowsError, match=r"cannot be given a key's 'k': Python's dates have the years 1 to") as one:
        answer(table.connector, request, **keys)
    assert list(one.value.wrong) == [1, 2]
    assert one.value.table.column("name").to_pylist() == ["ann"]
    assert len(asked) == 1

    options = {"lookup.on-error": "null", "lookup.error-column": "problem", "lookup.breaker.failures": "1"}
    with LocalJoin(table.with_options(options), Wanted(key=("k", "v"), columns=("name",))) as join:
        found = join.join(pa.record_batch(keys))
        assert found.column("name").to_pylist() == ["ann", None, None]
        problems = found.column("problem").combine_chunks()
        assert problems.field("code").to_pylist() == [None, "LOOKUP_ERROR", "LOOKUP_ERROR"]
        assert join.source.counters["retries"] == 0
