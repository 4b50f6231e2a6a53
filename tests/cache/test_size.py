"""How many bytes a cached value counts for: all that it keeps in memory, once."""

from __future__ import annotations

import array
import collections
import io
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lookupcache.cache.size import size_of
from lookupcache.decorator import cached

BIG = 100_000


@dataclass
class Row:
    payload: Any


@dataclass(slots=True)
class Slotted:
    payload: Any


class Named(NamedTuple):
    payload: Any


class Derived(Slotted):
    __slots__ = ("more",)


def big() -> bytes:
    return bytes(BIG)


HOLDERS = {
    "bytes": big,
    "text": lambda: "x" * BIG,
    "bytearray": lambda: bytearray(BIG),
    "list": lambda: [big()],
    "tuple": lambda: ((big(),),),
    "dict value": lambda: {"a": {"b": big()}},
    "dict key": lambda: {big(): 1},
    "set": lambda: {big()},
    "frozenset": lambda: frozenset({big()}),
    "deque": lambda: collections.deque([big()]),
    "defaultdict": lambda: collections.defaultdict(list, a=[big()]),
    "dataclass": lambda: [Row(big())],
    "slots": lambda: [Slotted(big())],
    "slots of a base": lambda: Derived(big()),
    "namedtuple": lambda: Named(big()),
    "object in object": lambda: Row(Slotted(Row({"a": big()}))),
    "array": lambda: array.array("b", big()),
    "BytesIO": lambda: io.BytesIO(big()),
    "memoryview": lambda: memoryview(bytearray(BIG)),
    "numpy": lambda: np.zeros(BIG, np.int8),
    "a view of numpy": lambda: np.zeros(BIG, np.int8)[:1],
    "numpy objects": lambda: np.array([big()], dtype=object),
    "pandas": lambda: pd.DataFrame({"a": np.zeros(BIG, np.int8)}),
    "pandas texts": lambda: pd.DataFrame({"a": ["x" * BIG]}),
    "pandas series": lambda: [pd.Series(np.zeros(BIG, np.int8))],
    "pandas index": lambda: pd.Index(["x" * BIG]),
    "arrow table": lambda: pa.table({"a": pa.array(np.zeros(BIG, np.int8))}),
    "arrow array": lambda: [pa.array(np.zeros(BIG, np.int8))],
    "a slice of arrow": lambda: pa.array(np.zeros(BIG, np.int8)).slice(0, 1),
    "arrow buffer": lambda: pa.py_buffer(bytearray(BIG)),
    "bound method": lambda: Row(big()).__eq__,
    "exception": lambda: ValueError(big()),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_objects_inside_a_value_are_counted_once(holder):
    value = HOLDERS[holder]()
    assert BIG <= size_of(value) <= BIG + 10_000
    assert size_of([value, value, value]) <= BIG + 10_100


@pytest.mark.parametrize("value", [Row, len, test_objects_inside_a_value_are_counted_once, pytest, size_of])
def test_classes_functions_and_modules_are_not_counted(value):
    assert size_of([value]) < 200


def test_a_value_of_a_library_that_measures_none_of_its_own_is_counted():
    day = pd.Timestamp("2024-05-01")
    assert size_of(day) >= day.__sizeof__() > 0


def test_a_value_that_holds_itself_is_counted():
    row = Row(big())
    row.payload = [row, big()]
    assert BIG <= size_of(row) <= BIG + 1_000


def test_an_uninspectable_object_is_counted_as_far_as_possible():
    class Odd:
        def __init__(self) -> None:
            self.payload = big()

        def __sizeof__(self) -> int:
            raise RuntimeError("no")

        @property
        def nbytes(self) -> int:
            raise RuntimeError("no")

    assert BIG <= size_of(Odd()) <= BIG + 1_000


@pytest.mark.parametrize("holder", [holder for holder in HOLDERS if holder != "BytesIO"])
def test_max_bytes_bounds_any_value(holder):
    function = cached(max_bytes="1 mb")(lambda key: HOLDERS[holder]())
    for key in range(30):
        function(key)
    assert 1 <= function.metrics().cached_keys <= 10
    assert function.metrics().cached_bytes <= 2**20


def test_a_hit_measures_nothing(monkeypatch):
    function = cached(max_bytes="1 mb")(lambda key: [key])
    function(1)
    monkeypatch.setattr("lookupcache.cache.row_cache.size_of", None)
    assert function(1) == [1]
