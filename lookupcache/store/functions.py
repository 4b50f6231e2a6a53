"""Identities of functions: whether two processes mean the same by a function, so that they share its values."""

from __future__ import annotations

import functools
import hashlib
from contextlib import suppress
from dataclasses import replace
from types import FunctionType
from typing import Any

from lookupcache.errors import OptionError
from lookupcache.functions.code import code_hash
from lookupcache.functions.value_codec import UnsupportedValueError, ValueCodec
from lookupcache.plan import digest
from lookupcache.store.frames import FORMAT_VERSION


def source_identity(function: Any, source: str) -> str:
    """Return the identity of a function, or of a class or object with ``__call__``, that is the source of a join.

    ``source`` is the hash of its pickled form. That differs between two runs of a script, for a class or a set in it,
    so it is only used for what `function_identity` does not know.
    """
    from lookupcache.functions.table_function import KeyFunction  # `cached` does without joins.

    if isinstance(function, KeyFunction):
        # By the function inside of it; its name in SQL does not matter.
        calls = repr(replace(function.calls, name=""))
        return digest([FORMAT_VERSION, "table function", calls, source_identity(function.table_function, source)])
    if isinstance(function, type):
        return digest([FORMAT_VERSION, "class", function.__module__, function.__qualname__, code_hash(function),
                       _constants(function)])  # fmt: skip
    if type(function) is functools.partial:
        with suppress(UnsupportedValueError):
            bound = ValueCodec().write([list(function.args), function.keywords]).hex()
            return digest([FORMAT_VERSION, "partial", bound, source_identity(function.func, source)])
    try:
        return function_identity(function)
    except OptionError:
        return digest([FORMAT_VERSION, "object", source, code_hash(function), _constants(type(function))])


_SHIPPED = {"builtins", "lookupcache", "pyspark_lookupcache"} | {
    f"lookupcache_{name}" for name in ("feast", "files", "http", "openai", "redis", "sql")
}
"""The packages whose code changes with the version of lookupcache; a name that only begins so is another's."""


def class_identity(kind: type) -> str | None:
    """Return the identity of the code of a connector's class; None if lookupcache comes with it.

    >>> class_identity(ValueCodec) is None
    True
    """
    own = [one for one in kind.__mro__ if one.__module__.partition(".")[0] not in _SHIPPED]
    if not own:
        return None
    members = [(name, getattr(value, "__func__", value)) for one in own for name, value in vars(one).items()]
    codes = [(name, code_hash(value)) for name, value in members if isinstance(value, FunctionType)]
    return digest([FORMAT_VERSION, "class", codes, [_constants_of(one) for one in own]])


def _constants(kind: type) -> str:
    """Return the attributes of a class, and of those that it extends, that are plain values."""
    return " ".join(_constants_of(one) for one in kind.__mro__ if one.__module__ != "builtins")


def _constants_of(kind: type) -> str:
    found = []
    for name, value in sorted(vars(kind).items()):
        if not name.startswith("__"):
            with suppress(UnsupportedValueError):
                found.append(ValueCodec().write([name, value]).hex())
    return " ".join(found)


def function_identity(function: Any) -> str:
    """Return the identity of a function's values: its name, code, defaults and closure.

    Functions and constants that it uses by name are not part of it. Raises OptionError for what is no function of
    Python, and for a closure over objects whose values are not known.

    >>> def double(n): return 2 * n
    >>> def triple(n): return 3 * n
    >>> function_identity(double) == function_identity(double), function_identity(double) == function_identity(triple)
    (True, False)
    """
    if not isinstance(function, FunctionType):
        raise _without_identity(f"{type(function).__qualname__!r} is no function that is written in Python")
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        bound = ValueCodec().write([list(function.__defaults__ or ()), function.__kwdefaults__ or {}, cells])
    except (UnsupportedValueError, ValueError):  # ValueError: a cell is empty, as where a function calls itself.
        raise _without_identity(
            f"function {function.__qualname__!r} has a default or a closure that is more than a plain value"
        ) from None
    code = hashlib.sha256(code_hash(function).encode() + bound).hexdigest()
    return digest([FORMAT_VERSION, "function", function.__module__, function.__qualname__, code])


def _without_identity(fact: str) -> OptionError:
    return OptionError(
        f"'lookup.cache.store' cannot know whether another process means the same: {fact}.",
        hint="Name its values with 'lookup.cache.store.name', and change the name when the function changes.",
    )
