"""Identities of code: whether two applications mean the same by a function or connector, so that they share its rows.

    function ─► the text of its module and of the modules that this imports, and the values that it binds and reads
    class    ─► the same text, and the values of its attributes
    object   ─► its class, and its attributes

Installed packages and Python's own modules count by their names. Where a value has no stable text, or a module no
text, there is no identity: nothing is shared by guess.
"""

from __future__ import annotations

import collections
import contextvars
import datetime as dt
import dis
import enum
import functools
import hashlib
import inspect
import json
import logging
import operator
import pathlib
import re
import sys
import threading
import types
import uuid
import zoneinfo
from collections import _tuplegetter as _TupleGetter  # type: ignore[attr-defined]  # noqa: N812
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from lookupcache.errors import OptionError
from lookupcache.functions.adapter import name_of
from lookupcache.functions.source_text import imported_modules, is_own_module, text_of_module
from lookupcache.plan import digest
from lookupcache.redaction import is_secret
from lookupcache.source_options import SHIPPED

_VERSION = 2
"""Of the identities, which changes with what is part of them."""

Token = Any
"""JSON data that stands for a value."""


@dataclass(frozen=True)
class CodeIdentity:
    """The identity of code: ``digest`` is the same wherever the code is; ``unknown`` says why nobody can tell.

    One of them is None.
    """

    digest: str | None
    unknown: str | None = None


def identity_of_code(root: Any) -> CodeIdentity:
    """Return the identity of a function, a bound method, a partial, a class, or an object that is called.

    No value is shown, and no ``repr`` of an object of a class is used, which could have its address.

    >>> identity_of_code(json.dumps).digest == identity_of_code(json.loads).digest
    False
    >>> identity_of_code(functools.partial(json.dumps, default=object())).unknown
    "an argument of a partial is an object of 'object'"
    """
    walk = _Walk(_package_of(root))
    try:
        token = walk.value(root, "it")
        texts = walk.texts()
    except _UnknownError as error:
        return CodeIdentity(None, str(error))
    except Exception as error:  # Nested too deeply, or by a class that answers for itself.
        return CodeIdentity(None, f"its values cannot be read: {type(error).__name__}")
    text = json.dumps([_VERSION, token, texts], separators=(",", ":"))
    return CodeIdentity(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())


def identity_of_class(kind: type) -> CodeIdentity | None:
    """Return the identity of a connector's class; None if lookupcache comes with it.

    >>> identity_of_class(OptionError) is None
    True
    """
    if all(one.__module__.partition(".")[0] in SHIPPED for one in kind.__mro__):
        return None
    return identity_of_code(kind)


def stored_identity(function: Any, version: str | None) -> str:
    """Return the identity of a function's values: its name, and its code, or the version of it that is stated.

    Raises OptionError for a function without an identity.

    >>> stored_identity(json.dumps, "2") == stored_identity(json.loads, "2")
    False
    """
    if version is None:
        code = identity_of_code(function)
        if code.digest is None:
            raise OptionError(
                f"The values of {name_of(function)} cannot be stored: whether another process means the same by it is "
                f"not known, since {code.unknown}.",
                hint="State a version with 'lookup.cache.version', as in cached(version='1'), and another one when the "
                "function changes.",
            )
        version = code.digest
    return digest([_VERSION, name_of(function), version])


class _UnknownError(Exception):
    """Something has no stable text."""


_BY_REPR = frozenset(
    (type(None), bool, float, complex, str, bytes, bytearray, type(...), range, Decimal, uuid.UUID, dt.date,
     dt.timedelta, dt.timezone)
)  # fmt: skip
_ZONES = {type(None), dt.timezone, zoneinfo.ZoneInfo}
_SEQUENCES = (list, tuple, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict, types.MappingProxyType)
_PARTS = {
    types.MethodType: ("__func__", "__self__"),
    functools.partial: ("func", "args", "keywords"),
    functools.partialmethod: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    re.Pattern: ("pattern", "flags"),
}
"""What decides the meaning of objects of Python's own classes."""
_CALLERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_BUILT_IN = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType,
             types.MethodDescriptorType, types.ClassMethodDescriptorType)  # fmt: skip
_WITHOUT_VALUE = (
    logging.Logger, logging.LoggerAdapter, type(threading.Lock()), type(threading.RLock()), threading.Condition,
    threading.Event, threading.Semaphore, threading.local, contextvars.ContextVar, types.GenericAlias, types.UnionType,
)  # fmt: skip
"""What says nothing of the rows that code returns."""
_ATTRIBUTES = (types.MemberDescriptorType, types.GetSetDescriptorType, _TupleGetter)
"""How a class has the attributes of its objects."""
_WRITTEN = (types.FunctionType, staticmethod, classmethod)


class _Walk:
    """Follows what a function, class or object uses; each function, class and object once, by its number."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._modules: set[str] = set()
        self._numbers: dict[int, int] = {}
        # Numbers are by address, so nothing that was met may go.
        self._kept: list[Any] = []
        self._open: list[int] = []

    def texts(self) -> Token:
        """Return the texts of all own modules that were met, and of those that they import."""
        found, left = {}, set(self._modules)
        while left:
            name = left.pop()
            text = text_of_module(name)
            if text is None:
                raise _UnknownError(f"the source of module {name!r} cannot be read")
            found[name] = text.digest
            left |= {one for one in imported_modules(name, text) if self._is_own(one)} - found.keys()
        return sorted(found.items())

    def value(self, value: Any, where: str) -> Token:
        """Return the token of a value; raises _UnknownError if it has none, and says where it is."""
        kind = type(value)
        if kind in _BY_REPR:
            return [kind.__name__, repr(value)]
        if kind is int:
            return ["int", hex(value)]
        if kind in (*_SEQUENCES, *_MAPPINGS, set, frozenset):
            return self._container(value, kind, where)
        if kind is types.FunctionType:
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if kind is types.ModuleType:
            return self._module(value, set(), where)
        if isinstance(value, enum.Enum):
            return ["enum", self._class(kind), value._name_]
        return self._of_python(value, kind, where) or self._object(value, kind, where)

    def _container(self, value: Any, kind: type, where: str) -> Token:
        if id(value) in self._open:
            return ["cycle", len(self._open) - self._open.index(id(value))]
        self._open.append(id(value))
        met = len(self._kept)
        if kind in _SEQUENCES:
            found = [self.value(one, where) for one in value]
        elif kind in _MAPPINGS:
            found = [[self.value(name, where), self.value(of, where)] for name, of in list(value.items())]
            found.append(self.value(getattr(value, "default_factory", None), where))
        else:
            found = sorted((self.value(one, where) for one in value), key=json.dumps)
            if len(self._kept) > met:  # Its order is another in each process, and so would be their numbers.
                raise _UnknownError(f"{where} has a set of more than plain values")
        self._open.pop()
        return [kind.__name__, found]

    def _of_python(self, value: Any, kind: type, where: str) -> Token | None:
        """Return the token of an object of Python's own classes; None of another."""
        for base, names in _PARTS.items():
            if kind is base or (base is functools.partial and issubclass(kind, base)):
                where = "an argument of a partial" if base is functools.partial else where
                return [base.__name__, *(self.value(getattr(value, name), where) for name in names)]
        if issubclass(kind, _BUILT_IN):
            of = getattr(value, "__self__", None)
            bound = None if isinstance(of, types.ModuleType) else self.value(of, where)
            return ["built in", getattr(value, "__module__", None), value.__qualname__, bound]
        if kind in (dt.datetime, dt.time) and type(value.tzinfo) in _ZONES:
            return [kind.__name__, repr(value)]
        if kind is zoneinfo.ZoneInfo and value.key:
            return ["zone", value.key]
        if kind in _CALLERS:
            return [kind.__name__, self.value(value.__reduce__()[1:], where)]
        if issubclass(kind, pathlib.PurePath) and kind.__module__.startswith("pathlib"):
            return ["path", str(value)]
        return ["no value"] if isinstance(value, _WITHOUT_VALUE) or kind.__module__ == "typing" else None

    def _is_own(self, module: str) -> bool:
        return is_own_module(module, self._package)

    def _seen(self, value: Any) -> Token | None:
        """Return the number of what was met before, and give one to what was not."""
        number = self._numbers.setdefault(id(value), len(self._kept))
        if number < len(self._kept):
            return ["seen", number]
        self._kept.append(value)
        return None

    # ── functions and modules ────────────────────────────────────────────────────────────────────────────

    def _function(self, function: types.FunctionType) -> Token:
        if seen := self._seen(function):
            return seen
        module, name = str(function.__globals__.get("__name__")), function.__qualname__
        of = f"of {name!r}"
        cells = [self._cell(cell, f"the closure {of}") for cell in function.__closure__ or ()]
        bound = [cells, self._attributes(vars(function), f"an attribute {of}")]
        if not self._is_own(module):
            return ["function", module, name, bound]
        defaults = [self.value(one, f"a default {of}") for one in (function.__defaults__, function.__kwdefaults__)]
        codes = list(_codes_in(function.__code__))
        names = {name for code in codes for name in code.co_names}
        read = {step.argval for code in codes for step in dis.get_instructions(code)
                if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}  # fmt: skip
        values = self._members(function.__globals__, read, names, of)
        return ["function", module, self._place(module, function), bound, defaults, values]

    def _place(self, module: str, function: types.FunctionType) -> int:
        """Return which function of its module a function is, by comparing its code with that of the text.

        So a file that was edited after it was loaded is noticed, and a function that is in no file.
        """
        text = text_of_module(module)
        if text is None or function.__code__ not in text.codes:
            raise _UnknownError(f"the source of {function.__qualname__!r} cannot be read, or was edited since")
        self._modules.add(module)
        return text.codes.index(function.__code__)

    def _cell(self, cell: types.CellType, where: str) -> Token:
        try:
            value = cell.cell_contents
        except ValueError:
            return "empty"
        return self.value(value, where)

    def _members(self, values: Mapping[str, Any], read: set[str], names: set[str], of: str) -> Token:
        """Return the tokens of the globals that code reads; ``names`` are those that it may read of modules."""
        found = []
        for name in sorted(one for one in read & values.keys() if not one.startswith("__")):
            value, where = values[name], f"the global {name!r} {of}"
            is_module = isinstance(value, types.ModuleType)
            found.append([name, self._module(value, names, of) if is_module else self._named(name, value, where)])
        return found

    def _module(self, module: types.ModuleType, names: set[str], of: str) -> Token:
        """Return the token of a module: its text, and the values of it that code may read."""
        name = module.__name__
        if not self._is_own(name) or self._seen(module):
            return ["module", name]
        self._modules.add(name)
        return ["module", name, self._members(vars(module), names, names, of)]

    # ── classes and objects ──────────────────────────────────────────────────────────────────────────────

    def _class(self, kind: type) -> Token:
        if not self._is_own(kind.__module__):
            return ["class", kind.__module__, kind.__qualname__]
        if seen := self._seen(kind):
            return seen
        self._modules.add(kind.__module__)
        bases = [self._class(one) for one in (*kind.__bases__, type(kind))]
        of = f"of class {kind.__qualname__!r}"
        members = [[name, self._named(name, one, f"the attribute {name!r} {of}")] for name, one in _members_of(kind)]
        return ["class", kind.__module__, kind.__qualname__, bases, members]

    def _object(self, value: Any, kind: type, where: str) -> Token:
        if seen := self._seen(value):
            return seen
        if called := _table_function(value):
            return ["table function", *(self.value(one, where) for one in called)]
        state = _state_of(value)
        is_own = kind is types.SimpleNamespace or self._is_own(kind.__module__)
        if not is_own and "__wrapped__" in state:  # As by functools.lru_cache, and by cached.
            return ["wrapper", self._class(kind), self.value(state["__wrapped__"], where)]
        content = next((one for one in kind.__mro__ if one.__module__ == "builtins"), object)
        if not is_own or content not in (object, tuple):
            raise _UnknownError(f"{where} is an object of {kind.__qualname__!r}")
        items = list(tuple.__iter__(value)) if content is tuple else []
        attributes = self._attributes(state, f"an attribute of {where}")
        return ["object", self._class(kind), self.value(items, where), attributes]

    def _attributes(self, values: Mapping[str, Any], where: str) -> Token:
        return [[name, self._named(name, value, where)] for name, value in sorted(values.items())]

    def _named(self, name: str, value: Any, where: str) -> Token:
        return "secret" if is_secret(name) and isinstance(value, str | bytes) else self.value(value, where)


def _package_of(root: Any) -> str:
    return name_of(root.__func__ if isinstance(root, types.MethodType) else root).partition(".")[0]


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes_in(one)


def _members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield what the author of a class wrote into it; what is generated follows from that."""
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, _ATTRIBUTES) or name == "_abc_impl":
            continue
        if isinstance(value, _WRITTEN):
            function: Any = getattr(value, "__func__", value)
            if inspect.unwrap(function).__code__.co_filename.startswith("<"):
                continue  # As the methods of a dataclass.
        elif name.startswith("__") and name.endswith("__"):
            continue
        elif issubclass(kind, enum.Enum):
            value = value._value_ if isinstance(value, kind) else value
            if name.startswith("_") or isinstance(value, enum.property):
                continue
        yield name, value


def _state_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, without its own code."""
    state = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType) and name not in ("__dict__", "__weakref__"):
                with suppress(AttributeError):
                    state.setdefault(name, member.__get__(value, kind))
    return state


def _table_function(value: Any) -> tuple[Any, ...]:
    """Return what decides the rows of a table function of SQL; its name in SQL does not matter."""
    table_functions = sys.modules.get("lookupcache.functions.table_function")
    if table_functions is None or not isinstance(value, table_functions.KeyFunction):
        return ()
    return repr(replace(value.calls, name="")), value.table_function
