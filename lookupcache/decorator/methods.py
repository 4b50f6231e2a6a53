"""Whether a function is a method of a class, although its caller is not its own `__get__`.

Shop.price(shop) · property(price) · cached_property(price) · partialmethod(price) · a decorator around it
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary


class Owners:
    """The classes that have a function as a method, itself or inside of another descriptor.

    >>> def name(shop): ...
    >>> def rank(shop): ...
    >>> class Shop:
    ...     title = property(name)
    ...     other = staticmethod(rank)
    >>> Owners(name).include(Shop()), Owners(rank).include(Shop()), Owners(name).include("text")
    (True, False, False)
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._known: WeakKeyDictionary[type, bool] = WeakKeyDictionary()

    def include(self, owner: Any) -> bool:
        """Return whether the function is a method of an object's class, or a class method of a class."""
        return self._has_method(type(owner)) or (isinstance(owner, type) and self._has_method(owner))

    def _has_method(self, kind: type) -> bool:
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = any(map(self._is_method_of, kind.__mro__))
        return found

    def _is_method_of(self, kind: type) -> bool:
        for attribute in vars(kind).values():
            if _holds(attribute, self._function):
                return not isinstance(attribute, staticmethod)
        # Other decorators around it may hold it in any way.
        function = self._function
        within, _, _ = getattr(function, "__qualname__", "").rpartition(".")
        return (function.__module__, within) == (kind.__module__, kind.__qualname__)


def _holds(attribute: Any, function: Any) -> bool:
    for _ in range(_MOST_DESCRIPTORS):
        if attribute is function:
            return True
        attribute = _inside(attribute)
    return False


_MOST_DESCRIPTORS = 10


def _inside(attribute: Any) -> Any:
    """Return the function in a descriptor; other objects are not asked, since their attributes may run code."""
    if isinstance(attribute, property):
        return attribute.fget
    if isinstance(attribute, classmethod | staticmethod):
        return attribute.__func__
    if isinstance(attribute, functools.cached_property | functools.partialmethod):
        return attribute.func
    return getattr(attribute, "__dict__", {}).get("__wrapped__")
