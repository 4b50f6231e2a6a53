"""What objects, enums and bound methods hold, without their own code: it might fail, or have effects."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

BASES = (str, int, float, bytes, tuple, list, dict, set, frozenset)
"""Classes of Python's own whose content is known where another class extends them."""

_GETSTATE = getattr(object, "__getstate__", None)


def is_of_class(method: types.MethodType) -> bool:
    """Return whether the class of a method's object has that method under its name."""
    function, owner = method.__func__, method.__self__
    if not issubclass(type(function), types.FunctionType):
        return False
    kinds = (*getattr(owner, "__mro__", ()), *type(owner).__mro__)
    found = next((vars(one)[function.__name__] for one in kinds if function.__name__ in vars(one)), None)
    found = getattr(found, "__func__", found)
    return type(found) is types.FunctionType and found.__code__ == function.__code__


def members_of_enum(kind: type[enum.Enum], members: dict[str, Any]) -> dict[str, Any]:
    """Return what the author of an enum wrote: values by name, and functions."""
    found: dict[str, Any] = {f"{name} =": vars(one).get("_value_") for name, one in kind.__members__.items()}
    for name, value in members.items():
        if issubclass(type(value), types.FunctionType):
            if value.__module__ != "enum":
                found[name] = value
        elif not name.startswith("_") and name not in kind.__members__:
            found[name] = value
    return found


def state_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object, without its own code; None if they are not known."""
    state: dict[str, Any] = {}
    try:
        state |= object.__getattribute__(value, "__dict__")
    except AttributeError:
        pass
    except Exception:
        return None
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType) and name not in ("__dict__", "__weakref__"):
                with suppress(AttributeError):
                    state.setdefault(name, member.__get__(value, kind))
    return state


def has_own_state(kind: type) -> bool:
    """Return whether objects of a class may have a state in addition to their attributes, as those written in C do."""
    built_in = [one for one in kind.__mro__ if one.__module__ == "builtins"]
    if any(one not in (*BASES, object) for one in built_in):
        return True
    # One in Python chooses attributes to be pickled.
    state = getattr(kind, "__getstate__", None)
    return state is not _GETSTATE and type(state) is not types.FunctionType


def plain(base: Callable[[Any], Any], value: Any) -> Any:
    """Return the content of an object whose class extends one of Python's own, not by the methods of that class."""
    if base is int:
        return int.__index__(value)
    if base is float:
        return float.__float__(value)
    if base is str:
        return str.__str__(value)
    if base is bytes:
        return bytes.__getitem__(value, slice(None))
    if base is dict:
        return dict(dict.items(value))
    return base(base.__iter__(value))  # type: ignore[attr-defined]
