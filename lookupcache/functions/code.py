"""The code of a function as a hash: what distinguishes it, in another process, from one of the same name."""

from __future__ import annotations

import functools
import hashlib
import inspect
from types import CodeType, FunctionType
from typing import Any


def code_hash(function: Any) -> str:
    """Return a hash of the code of a function, or of all methods of a class or of an object's class.

    Functions that it calls and globals are not part of it. The same code has another hash in another version of Python.

    >>> code_hash(lambda n: 2 * n) == code_hash(lambda n: 2 * n), code_hash(lambda n: 2 * n) == code_hash(lambda n: n)
    (True, False)
    """
    return hashlib.sha256(repr(_codes(function)).encode()).hexdigest()


def _codes(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    if isinstance(function, FunctionType):
        return _code(function.__code__)
    kind = function if isinstance(function, type) else type(function)
    own = [vars(one) for one in kind.__mro__ if one.__module__ != "builtins"]
    methods = [(name, getattr(value, "__func__", value)) for members in own for name, value in members.items()]
    return [(name, _code(method.__code__)) for name, method in methods if isinstance(method, FunctionType)]


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts)
    return code.co_code.hex(), code.co_names, code.co_varnames, constants


def _constant(value: Any) -> str:
    # The order in which a set shows its items is another in each process.
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
