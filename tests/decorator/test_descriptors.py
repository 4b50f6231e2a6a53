"""`cached` below and above the descriptors of Python: entries per object, which are not kept alive."""

from __future__ import annotations

import abc
import asyncio
import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from lookupcache import cached


class Equal:
    """Objects that are all equal, and have a value that differs."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 1


class OtherDescriptor:
    """A descriptor of another package, which holds its function under a name of its own."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self.work(owner)


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


def value_of(self, plus=0):
    return self.value + plus


async def value_later(self, plus=0):
    return self.value + plus


def read(owner: Any) -> Any:
    return owner.of


def call(owner: Any) -> Any:
    return owner.of()


def call_on_class(owner: Any) -> Any:
    return type(owner).of(owner)


def by_name(owner: Any) -> Any:
    return type(owner).of(self=owner)


STACKS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "method": (lambda function: function, call),
    "method on its class": (lambda function: function, call_on_class),
    "method by name": (lambda function: function, by_name),
    "property": (property, read),
    "property of a property": (lambda function: property(property(function).fget), read),
    "cached_property": (functools.cached_property, read),
    "partialmethod": (lambda function: functools.partialmethod(function, 0), call),
    "partialmethod on its class": (lambda function: functools.partialmethod(function, 0), call_on_class),
    "abstract property": (lambda function: property(abc.abstractmethod(function)), read),
    "decorator": (logged, call),
    "property of a decorator": (lambda function: property(logged(function)), read),
    "cached_property of a decorator": (lambda function: functools.cached_property(logged(function)), read),
}


# A coroutine can be awaited once, so no `cached_property` can hold it.
CASES = [(stack, value_of) for stack in STACKS] + [(stack, value_later) for stack in STACKS if "cached" not in stack]


@pytest.mark.parametrize(("stack", "function"), CASES)
def test_equal_objects_have_entries_of_their_own_and_are_freed(stack, function):
    descriptor, ask = STACKS[stack]
    lookup = cached(function)
    owner = type("Owner", (Equal,), {"of": descriptor(lookup)})
    objects = [owner(10), owner(20)]

    def values():
        found = [ask(one) for one in objects]
        return [asyncio.run(each) for each in found] if function is value_later else found

    assert [values(), values(), lookup.metrics().misses] == [[10, 20], [10, 20], 2]
    freed = [weakref.ref(one) for one in objects]
    del objects[:]
    gc.collect()
    assert ([one() for one in freed], lookup.metrics().cached_keys) == ([None, None], 0)


def test_a_function_in_a_class_is_a_method_in_any_descriptor():
    class Owner(Equal):
        @OtherDescriptor
        @cached
        def of(self):
            return self.value

        @staticmethod
        @cached
        def same(other):
            return other.value

    class Heir(Owner):
        pass

    assert [Owner(1).of, Owner(2).of, Heir(3).of] == [1, 2, 3]
    # A static function has no object: its argument is a key like any other.
    assert [Owner.same(Owner(1)), Heir(3).same(Owner(2))] == [1, 1]


@pytest.mark.parametrize("order", [(classmethod, cached), (cached, classmethod)])
def test_classes_have_entries_of_their_own_and_are_freed(order):
    calls = []

    def of(cls):
        calls.append(cls.__name__)
        return cls.__name__

    outer, inner = order
    lookup = outer(inner(of))
    first, second = (type(name, (), {"of": lookup}) for name in ("First", "Second"))
    assert [first.of(), second.of(), first().of(), first.of()] == ["First", "Second", "First", "First"]
    assert calls == ["First", "Second"]
    freed = weakref.ref(first)
    del first
    gc.collect()
    assert freed() is None


@pytest.mark.parametrize("order", [(staticmethod, cached), (cached, staticmethod)])
def test_static_functions_have_one_entry_for_equal_keys(order):
    outer, inner = order
    lookup = outer(inner(lambda key: key.value))
    owner = type("Owner", (Equal,), {"of": lookup})
    assert [owner.of(owner(1)), owner(5).of(owner(2))] == [1, 1]


def test_a_plain_function_has_one_entry_for_equal_keys():
    lookup = cached(value_of)
    assert [lookup(Equal(1)), lookup(Equal(2)), lookup.invalidate(Equal(3))] == [1, 1, True]
