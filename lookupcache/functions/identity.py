"""Identities of functions and connectors: whether two processes mean the same by one, so that they share its rows."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

from lookupcache.errors import OptionError
from lookupcache.plan import digest
from lookupcache.source_options import SHIPPED

if TYPE_CHECKING:
    from lookupcache.functions.code import CodeIdentity

_VERSION = 1
"""Of the identities, which changes with what is part of them."""


def source_identity(function: Any, source: str) -> str:
    """Return the identity of a function, or of a class or object with ``__call__``, that is the source of a join.

    ``source`` is the hash of its pickled form. That differs between two runs of a script, for a class or a set in it,
    so it is only used where there are objects whose values `identify_code` does not know.
    """
    table_functions = sys.modules.get("lookupcache.functions.table_function")
    if table_functions is not None and isinstance(function, table_functions.KeyFunction):
        # By the function inside of it; its name in SQL does not matter.
        calls = repr(replace(function.calls, name=""))
        return digest([_VERSION, "table function", calls, source_identity(function.table_function, source)])
    code = _code_of(function)
    return _digest(function, code, source if code.unknown else "")


def class_identity(kind: type) -> str | None:
    """Return the identity of the code of a connector's class; None if lookupcache comes with it.

    >>> class_identity(OptionError) is None
    True
    """
    if all(one.__module__.partition(".")[0] in SHIPPED for one in kind.__mro__):
        return None
    return digest([_VERSION, "class", _code_of(kind).digest])


def function_identity(function: Any, *, with_globals: bool = True) -> str:
    """Return the identity of a function's values: its name, and its code with all that this uses.

    Raises OptionError for what is no function of Python, and for a default or closure with objects whose values are
    not known.

    >>> def double(n): return 2 * n
    >>> def triple(n): return 3 * n
    >>> function_identity(double) == function_identity(double), function_identity(double) == function_identity(triple)
    (True, False)

    Args:
        function: The function.
        with_globals: Whether the globals that it reads are part of it.
    """
    if not isinstance(function, FunctionType):
        raise _without_identity(f"{type(function).__qualname__!r} is no function that is written in Python")
    code = _code_of(function, with_globals)
    if code.unknown:
        raise _without_identity(
            f"function {function.__qualname__!r} has a default or a closure that is more than a plain value, "
            f"an object of {code.unknown[0]}"
        )
    return _digest(function, code)


def _code_of(function: Any, with_globals: bool = True) -> CodeIdentity:
    from lookupcache.functions.code import identify_code  # Most workers have a connector of ours, and do without.

    return identify_code(function, with_globals=with_globals)


def _digest(function: Any, code: CodeIdentity, pickled: str = "") -> str:
    while isinstance(function, functools.partial):
        function = function.func
    names = [_text_of(function, name) for name in ("__module__", "__qualname__")]
    return digest([_VERSION, "function", *names, code.digest, pickled])


def _text_of(function: Any, name: str) -> str:
    """Return the name of a function or class, or for an object that of its class."""
    try:
        found = getattr(function, name) if hasattr(function, "__qualname__") else None
        return found if isinstance(found, str) else str(getattr(type(function), name))
    except Exception:  # Its own code may raise anything, or answer with an object that is no name.
        return ""


def _without_identity(fact: str) -> OptionError:
    return OptionError(
        f"'lookup.cache.store' cannot know whether another process means the same: {fact}.",
        hint="Name its values with 'lookup.cache.store.name', and change the name when the function changes.",
    )
