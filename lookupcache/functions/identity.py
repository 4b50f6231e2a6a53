"""Identities of code: whether two applications mean the same by a function or connector, so that they share its rows.

    function ─► the text of its module and of the modules that this imports, and the values that it binds and reads
    class    ─► the same text, and the values of its attributes
    object   ─► its class, and its attributes

Installed packages and Python's own modules count by their names. Where a value has no stable text, or a module no
text, there is no identity: nothing is shared by guess.
"""

from __future__ import annotations

import builtins
import collections
import datetime as dt
import dis
import enum
import functools
import itertools
import json
import logging
import operator
import os
import pathlib
import re
import struct
import sys
import threading
import types
import uuid
import zoneinfo
from collections import _tuplegetter as _TupleGetter  # type: ignore[attr-defined]  # noqa: N812
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from lookupcache.connector import PROCESS
from lookupcache.environment import named_variables
from lookupcache.errors import OptionError
from lookupcache.functions.adapter import module_name, name_of
from lookupcache.functions.reached_code import computing_unit
from lookupcache.functions.source_text import (
    ModuleText,
    absolute,
    codes_in,
    hidden_reads,
    imported_modules,
    imports_by_text,
    imports_in,
    is_own_module,
    modules_named,
    packages_of,
    text_of_module,
)
from lookupcache.functions.variables_read import may_read_variables, runs_text, variables_in
from lookupcache.plan import digest
from lookupcache.redaction import hide_address, is_secret
from lookupcache.source_options import SHIPPED, is_shipped

if TYPE_CHECKING:
    from lookupcache.connector import Connector

_VERSION = 7
"""Of the identities, which changes with what is part of them."""

Token = Any
"""JSON data that stands for a value."""


@dataclass(frozen=True)
class CodeIdentity:
    """The identity of code: ``digest`` is the same wherever the code is; ``unknown`` says why there is no digest.

    One of them is None. ``variables`` are names of the environment variables that the code reads, or their beginnings;
    what they are counts where the code runs. ``texts`` has of each module that workers import its name, and its hashes
    ``exact`` and ``digest`` (see `ModuleText`). ``process`` is the `PROCESS` where the identity was taken.
    """

    digest: str | None
    unknown: str | None = None
    variables: tuple[str, ...] = field(default=(), compare=False)
    texts: tuple[tuple[str, str, str], ...] = field(default=(), compare=False, repr=False)
    process: str = field(default=PROCESS, compare=False, repr=False)


def identity_of_code(root: Any) -> CodeIdentity:
    """Return the identity of a function, a bound method, a partial, a class, or an object that is called.

    No value is shown, and no ``repr`` of an object of a class is used, which could have its address.

    >>> identity_of_code(json.dumps).digest == identity_of_code(json.loads).digest
    False
    >>> identity_of_code(functools.partial(json.dumps, default=object())).unknown
    "an argument of a partial is an object of 'object'"
    """
    return _identity(_name_of(root), lambda walk: walk.value(root, "it"))


def _identity(name: str, token_of: Callable[[_Walk], Token]) -> CodeIdentity:
    walk = _Walk(packages_of(name))
    try:
        token = token_of(walk)
        texts = walk.texts()
    except _NoStableTextError as error:
        return CodeIdentity(None, str(error))
    except Exception as error:  # Nested too deeply, or by a class that answers for itself.
        return CodeIdentity(None, f"its values cannot be read: {type(error).__name__}")
    found = computing_unit({one: text.units for one, text in texts.items()}, walk.called)
    if found is None and any(runs_text(code) for code in walk.called) and any(map(may_read_variables, walk.held)):
        found = "eval"
    if found is not None:
        return CodeIdentity(None, f"{found!r} may read environment variables by names that it computes")
    digests = sorted((name, one.digest) for name, one in texts.items())
    optimized = [sys.flags.optimize] if sys.flags.optimize else []  # Without assertions, and __debug__ is false.
    digested = digest([_VERSION, token, digests, *optimized], secret=walk.may_have_secrets)
    variables = walk.variables.union(*(one.variables or () for one in texts.values()))
    imported = [(name, one.exact, one.digest) for name, one in texts.items() if not _is_sent_by_value(name)]
    return CodeIdentity(digested, None, tuple(sorted(variables)), tuple(sorted(imported)))


def _is_sent_by_value(name: str) -> bool:
    """Return whether workers get the code of a module with the pickle, and do not import it."""
    sent = cloudpickle.list_registry_pickle_by_value() | {"__main__"}
    return any(name == one or name.startswith(f"{one}.") for one in sent)


def identity_of_connector(connector: Connector) -> CodeIdentity | None:
    """Return the identity of a connector's class and of its own attributes; None if it comes with lookupcache."""
    kind = type(connector)
    if is_shipped(kind):
        return None
    own = {name: value for name, value in vars(connector).items() if name not in _OF_CONNECTORS}
    return _identity(
        _name_of(kind), lambda walk: [walk.value(kind, "it"), walk.attributes(own, "an attribute of the connector")]
    )


def stored_identity(function: Any, version: str | None, code: CodeIdentity | None = None) -> str:
    """Return the identity of a function's values: its name, and its code, or the version of it that is stated.

    ``code`` is the identity of the code where another process has taken it; variables are read in this one. Raises
    OptionError for a function without an identity.

    >>> stored_identity(json.dumps, "2") == stored_identity(json.loads, "2")
    False
    """
    if version is None:
        code = code or identity_of_code(function)
        if code.digest is None:
            raise OptionError(
                f"The values of {name_of(function)} cannot be stored: whether another process means the same by it is "
                f"not known, since {code.unknown}.",
                hint="State a version with 'lookup.cache.version', as in cached(version='1'), and change it when the "
                "function changes.",
            )
        version = code.digest
        if read := named_variables(code.variables):
            version += digest(read, secret=True)
    return digest([_VERSION, name_of(function), version])


class _NoStableTextError(Exception):
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
    functools.partialmethod: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    property: ("fget", "fset", "fdel"),
    slice: ("start", "stop", "step"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    re.Pattern: ("pattern", "flags"),
}
"""What decides the meaning of objects of Python's own classes."""
_CALLERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_BUILT_IN = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType,
             types.MethodDescriptorType, types.ClassMethodDescriptorType)  # fmt: skip
_WITHOUT_VALUE: dict[type, frozenset[str]] = {
    type(one): frozenset(getattr(one, "__dict__", ())) - {"extra"}
    for one in (
        logging.Logger(""), logging.LoggerAdapter(logging.Logger("")), os.environ, threading.Lock(), threading.RLock(),
        threading.Condition(), threading.Event(), threading.Semaphore(), threading.BoundedSemaphore(),
    )
}  # fmt: skip
"""What says nothing of the rows that code returns, and the attributes that these classes set by themselves.

Variables of the environment count where the code runs.
"""
_ATTRIBUTES = (types.MemberDescriptorType, types.GetSetDescriptorType, _TupleGetter)
"""How a class has the attributes of its objects."""
_WRITTEN = (types.FunctionType, staticmethod, classmethod)
_LRU_CACHE = type(functools.lru_cache(len))
_DISPATCHER = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
_OF_DISPATCHERS = frozenset(vars(functools.singledispatch(len)))
_OF_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
"""Flags of classes: Py_TPFLAGS_HEAPTYPE, Py_TPFLAGS_IMMUTABLETYPE."""
_OF_WRAPPERS = frozenset(functools.WRAPPER_ASSIGNMENTS) | {"__wrapped__", "__type_params__", "cache_parameters"}
_OF_MODULES = frozenset(vars(types.ModuleType(""))) - {"__doc__"} | {
    "__file__", "__cached__", "__builtins__", "__path__", "__annotations__", "__annotate__",
    "__conditional_annotations__", "__warningregistry__",
}  # fmt: skip
_OF_CLASSES = frozenset((
    "__module__", "__qualname__", "__dict__", "__weakref__", "__slots__", "__slotnames__", "__hash__",
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__abstractmethods__", "_abc_impl",
    "__orig_bases__", "__parameters__", "__type_params__", "__static_attributes__", "__firstlineno__",
    "__dataclass_fields__", "__dataclass_params__", "__attrs_attrs__", "__attrs_props__",
))  # fmt: skip
"""What Python and the makers of classes write into modules and classes, beside what an author does."""
_FLAGS_OF_FIELDS = ("init", "repr", "hash", "compare", "kw_only", "eq", "order")
_OF_CONNECTORS = ("settings", "_given", "_counters", "code_variables", "code_texts")
"""Attributes that each connector has, which its options say."""
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTE_OF = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")
_READS_ALL = frozenset(("globals", "eval", "exec"))
"""Functions by which code may read any global."""
_READS_MODULES = frozenset(("getattr", "vars", "attrgetter", "__dict__"))
"""Names by which code may read any global of a module."""


class _Walk:
    """Follows what a function, class or object uses; each function, class and object once, by its number."""

    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages
        self._modules: set[str] = set()
        self.called: list[types.CodeType] = []
        """The code of own functions that were met."""
        self.variables = set[str]()
        """Environment variables that code reads which is in no module's text."""
        self.held: list[str] = []
        """The texts among the values, which may name modules."""
        self.may_have_secrets = False
        """Whether a password may be among the values, which must then be hard to guess from their hash."""
        self._numbers: dict[int, int] = {}
        # Numbers are by address, so nothing that was met may go.
        self._kept: list[Any] = []
        self._open: list[int] = []

    def texts(self) -> dict[str, ModuleText]:
        """Return the texts of all own modules that were met, and of those that they import."""
        found, left = dict[str, ModuleText](), set(self._modules)
        while left:
            name = left.pop()
            text = text_of_module(name)
            if text is None:
                raise _NoStableTextError(f"the source of module {name!r} cannot be read")
            if text.variables is None:
                raise _NoStableTextError(f"module {name!r} may read environment variables by a library")
            found[name] = text
            left |= {one for one in imported_modules(name, text) if self._is_own(one)} - found.keys()
        if any(imports_by_text(code) for one in found.values() for code in one.codes):
            named = {one for one in modules_named(self.held) if self._is_own(one)} - found.keys()
            if named:
                self._modules |= named
                return self.texts()
        return found

    def value(self, value: Any, where: str) -> Token:
        """Return the token of a value; raises _NoStableTextError if it has none, and says where it is."""
        kind = type(value)
        if kind in _BY_REPR:
            return [kind.__name__, repr(self._text(value) if kind is str else value)]
        if kind is int:
            return ["int", hex(value)]
        if kind in (*_SEQUENCES, *_MAPPINGS, set, frozenset):
            return self._container(value, kind, where)
        if kind is types.FunctionType:
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if kind is types.ModuleType:
            return self._module(value)
        if isinstance(value, enum.Enum):  # A combination of flags may have no name.
            return ["enum", self._class(kind), value._value_ if isinstance(value, enum.Flag) else value._name_]
        return self._of_python(value, kind, where) or self._object(value, kind, where)

    def _container(self, value: Any, kind: type, where: str) -> Token:
        if id(value) in self._open:
            return ["cycle", len(self._open) - self._open.index(id(value))]
        self._open.append(id(value))
        met = len(self._kept)
        if kind in _SEQUENCES:
            found = [self.value(one, where) for one in value]
            found += [["at most", value.maxlen]] if kind is collections.deque else []
        elif kind in _MAPPINGS:
            of_names = [(name, name if isinstance(name, str) else "", of) for name, of in list(value.items())]
            found = [[self.value(name, where), self._named(text, of, where)] for name, text, of in of_names]
            found.append(self.value(getattr(value, "default_factory", None), where))
        else:
            found = sorted((self.value(one, where) for one in value), key=json.dumps)
            if len(self._kept) > met:  # Its order is another in each process, and so would be their numbers.
                raise _NoStableTextError(f"{where} has a set of more than plain values")
        self._open.pop()
        return [kind.__name__, found]

    def _of_python(self, value: Any, kind: type, where: str) -> Token | None:
        """Return the token of an object of Python's own classes; None of another."""
        if isinstance(value, functools.partial):
            parts = [value.func, value.args, value.keywords]
            of = [self.value(one, "an argument of a partial") for one in parts]
            return ["partial", self._class(kind), *of, self.attributes(vars(value), f"an attribute of {where}")]
        if kind in _PARTS:
            return [kind.__name__, *(self.value(getattr(value, name), where) for name in _PARTS[kind])]
        if issubclass(kind, _BUILT_IN):
            if value in (eval, exec, globals):
                raise _NoStableTextError(f"{where} is {value.__name__!r}")
            owner, module = getattr(value, "__self__", None), getattr(value, "__module__", None)
            if module is not None and self._is_own(module):
                self._modules.add(module)
            bound = None if isinstance(owner, types.ModuleType) else self.value(owner, where)
            return ["built in", module, value.__qualname__, bound]
        if kind in (dt.datetime, dt.time) and type(value.tzinfo) in _ZONES:
            return [kind.__name__, repr(value)]
        if kind is zoneinfo.ZoneInfo and value.key:
            return ["zone", value.key]
        if kind in _CALLERS:
            return [kind.__name__, self.value(value.__reduce__(), where)]
        if issubclass(kind, pathlib.PurePath) and kind.__module__.startswith("pathlib"):
            return ["path", self._text(str(value))]
        if kind in (types.GenericAlias, types.UnionType) or kind.__module__ == "typing":
            return self._type_hint(value, where)
        if isinstance(value, pa.DataType | pa.Field | pa.Schema):
            text = (
                value.to_string(show_field_metadata=False, show_schema_metadata=False)
                if isinstance(value, pa.Schema)
                else str(value)
            )
            return ["arrow", kind.__name__, text, self.value(_metadata_in(value), where)]
        return self._without_value(value, kind, where) if isinstance(value, tuple(_WITHOUT_VALUE)) else None

    def _without_value(self, value: Any, kind: type, where: str) -> Token:
        """Return the token of a lock, a logger or the like: its class, and the attributes that an own class adds."""
        if not self._is_own(kind.__module__):
            return ["no value", self._class(kind)]
        if seen := self._seen(value):
            return seen
        inherited = {name for base, names in _WITHOUT_VALUE.items() if issubclass(kind, base) for name in names}
        own = {name: one for name, one in _state_of(value).items() if name not in inherited}
        return ["no value", self._class(kind), self.attributes(own, f"an attribute of {where}")]

    def _type_hint(self, value: Any, where: str) -> Token:
        names = [getattr(value, name, None) for name in ("__name__", "_name", "__forward_arg__")]
        of = [getattr(value, name, None) for name in ("__origin__", "__args__", "__metadata__", "__supertype__")]
        return ["type hint", [one for one in names if isinstance(one, str)], [self.value(one, where) for one in of]]

    def _is_own(self, module: str) -> bool:
        return is_own_module(module, self._packages)

    def _seen(self, value: Any) -> Token | None:
        """Return the number of an object, and give one to an object that is new."""
        number = self._numbers.setdefault(id(value), len(self._kept))
        if number < len(self._kept):
            return ["seen", number]
        self._kept.append(value)
        return None

    # ── functions and modules ────────────────────────────────────────────────────────────────────────────

    def _function(self, function: types.FunctionType) -> Token:
        if seen := self._seen(function):
            return seen
        given = str(function.__globals__.get("__name__"))
        module, name = module_name(given), function.__qualname__
        of = f"of {name!r}"
        if function.__code__ is _DISPATCHER:
            own = {one: value for one, value in vars(function).items() if one not in _OF_DISPATCHERS}
            return [
                "dispatcher",
                self.value(vars(function)["registry"], of),
                self.attributes(own, f"an attribute {of}"),
            ]
        code = function.__code__
        self._note((*code.co_varnames, *code.co_freevars))
        cells = [self._cell(cell, f"the closure {of}") for cell in function.__closure__ or ()]
        bound = [cells, self.attributes(vars(function), f"an attribute {of}")]
        is_own = self._is_own(module)
        # Made at run time, as of a formula among the names of a library.
        is_made = not is_own and function.__globals__ is not getattr(sys.modules.get(given), "__dict__", None)
        if not is_own and not is_made and _is_named(function, function.__globals__):
            return ["function", module, name, bound]
        defaults = [self.value(one, f"a default {of}") for one in (function.__defaults__, function.__kwdefaults__)]
        # Within a wrapper; what attrs generates has values among its globals, too.
        is_generated = _is_generated(function) and not code.co_filename.startswith("<attrs ")
        if is_generated or not (is_own or is_made):
            return ["function", module, name, bound, defaults, self._code(code, of)]
        self.called += codes_in(code)
        if hidden := next(filter(None, map(hidden_reads, codes_in(code))), None):
            raise _NoStableTextError(f"the code {of} reads {hidden}")
        values = [self._members(read, of) for read in (self._globals(function), self._imported(function))]
        if is_made:
            return ["function", module, name, bound, defaults, values, self._code(code, of)]
        # Both may be set when the code runs.
        says = [function.__name__, self.value(function.__doc__, f"the docstring {of}")]
        return ["function", module, self._place(module, function), says, bound, defaults, values]

    def _place(self, module: str, function: types.FunctionType) -> int:
        """Return which function of its module a function is, by comparing its code with that of the text.

        So a file that was edited after it was loaded is noticed, and a function that is in no file.
        """
        text = text_of_module(module)
        if text is None or function.__code__ not in text.codes:
            raise _NoStableTextError(f"the source of {function.__qualname__!r} cannot be read, or was edited since")
        self._modules.add(module)
        return text.codes.index(function.__code__)

    def _code(self, code: types.CodeType, of: str) -> Token:
        """Return the token of code that no name leads to: of a lambda, or of a function within another."""
        read = variables_in(code)
        if read is None:
            raise _NoStableTextError(f"the code {of} may read environment variables by names that it computes")
        self.variables |= read
        names = [code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
        constants = [
            self._code(one, of) if isinstance(one, types.CodeType) else self.value(one, f"a constant {of}")
            for one in code.co_consts
        ]
        return [names, code.co_code.hex(), constants]

    def _cell(self, cell: types.CellType, where: str) -> Token:
        try:
            value = cell.cell_contents
        except ValueError:
            return "empty"
        return self.value(value, where)

    def _globals(self, function: types.FunctionType) -> dict[tuple[str, ...], Any]:
        """Return the globals that a function reads, also those of modules that are globals."""
        values = function.__globals__
        found: dict[tuple[str, ...], Any] = {}
        reads_all = any(module == "builtins" for one in codes_in(function.__code__) for _, module, _ in imports_in(one))
        for name, *attributes in _reads_of(function.__code__):
            if name in values and name not in _OF_MODULES:
                path, value = self._reached(name, values[name], attributes)
                found[path] = value
                reads_all |= value is builtins and not _READS_ALL.isdisjoint(attributes[:1])
            else:
                reads_all |= name == "__builtins__" or (name in _READS_ALL and name not in values)
        if reads_all:
            found |= {(one,): value for one, value in values.items() if one not in _OF_MODULES}
        return found

    def _imported(self, function: types.FunctionType) -> dict[tuple[str, ...], Any]:
        """Return what a function may read of the modules that it imports when it runs.

        Of a module that it binds, these are the globals of any name in its code, and all if it may read others.
        """
        codes = list(codes_in(function.__code__))
        names = {name for one in codes for name in one.co_names}
        found, left, bound = dict[tuple[str, ...], Any](), list[Any](), dict[tuple[str, ...], Any]()
        for module, taken in _imports_of(codes, function.__globals__.get("__package__") or ""):
            if taken and not self._is_read(module):  # Its modules depend on what was imported before.
                of_names = {(module.__name__, name): vars(module).get(name) for name in taken}
                found |= {path: of for path, of in of_names.items() if not isinstance(of, types.ModuleType | None)}
                continue
            found |= dict(self._reached(module.__name__, module, [name]) for name in taken)
            left += [] if taken else [module]
        left += found.values()
        while left:
            module = left.pop()
            if not self._is_read(module) or (module.__name__,) in bound:
                continue
            bound[module.__name__,] = module
            read = (names | {"__getattr__"}) & vars(module).keys() - _OF_MODULES
            of_module = dict(self._reached(module.__name__, module, [name]) for name in read)
            found |= of_module
            left += of_module.values()
        if not names.isdisjoint(_READS_MODULES):
            return found | bound
        return {path: value for path, value in found.items() if not self._is_read(value)}

    def _is_read(self, value: Any) -> bool:
        """Return whether a value is a module whose globals count: an own one, or ``sys`` for the script's arguments."""
        return isinstance(value, types.ModuleType) and (value is sys or self._is_own(value.__name__))

    def _reached(self, name: str, value: Any, attributes: Sequence[str]) -> tuple[tuple[str, ...], Any]:
        """Return what code reads by a name and attributes that follow it: of an own module, its attribute."""
        if value is sys and "argv" in attributes[:1]:
            return (name, "argv"), sys.argv
        path = [name]
        for attribute in attributes:
            if not (isinstance(value, types.ModuleType) and self._is_own(value.__name__)) or attribute == "__dict__":
                break
            self._modules.add(value.__name__)
            path.append(attribute)
            kind, value = type(value), vars(value).get(attribute, vars(value).get("__getattr__"))
            if kind is not types.ModuleType and (value is None or hasattr(kind, attribute)):
                value = kind  # whose properties and methods give a module attributes
        return tuple(path), value

    def _members(self, values: Mapping[tuple[str, ...], Any], of: str) -> Token:
        return [
            [path, self._named(path[-1], value, f"the global {'.'.join(path)!r} {of}")]
            for path, value in sorted(values.items(), key=operator.itemgetter(0))
        ]

    def _module(self, module: types.ModuleType) -> Token:
        """Return the token of a module that code has as a value: it may read all of it."""
        name = module.__name__
        if not self._is_own(name) or self._seen(module):
            return ["module", name]
        self._modules.add(name)
        found: dict[tuple[str, ...], Any] = {
            (one,): value for one, value in vars(module).items() if one not in _OF_MODULES
        }
        return ["module", name, self._members(found, f"of module {name!r}")]

    # ── classes and objects ──────────────────────────────────────────────────────────────────────────────

    def _class(self, kind: type) -> Token:
        module = module_name(kind.__module__)
        is_own = self._is_own(module)
        if not is_own and _is_defined_by_name(kind):
            return ["class", module, kind.__qualname__]
        if seen := self._seen(kind):
            return seen
        if is_own:
            self._modules.add(module)
        bases = [self._class(one) for one in (*kind.__bases__, type(kind))]
        of = f"of class {kind.__qualname__!r}"
        members = [[name, self._named(name, one, f"the attribute {name!r} {of}")] for name, one in _members_of(kind)]
        return ["class", module, kind.__qualname__, kind.__name__, bases, members]

    def _object(self, value: Any, kind: type, where: str) -> Token:
        if seen := self._seen(value):
            return seen
        if called := _table_function(value):
            return ["table function", *(self.value(one, where) for one in called)]
        state = _state_of(value)
        is_own = kind is types.SimpleNamespace or self._is_own(kind.__module__) or kind.__module__ == "attr._make"
        is_wrapper = kind is _LRU_CACHE or kind.__module__.partition(".")[0] in SHIPPED
        if is_wrapper and "__wrapped__" in state:  # As by cached.
            own = {name: one for name, one in state.items() if kind is _LRU_CACHE and name not in _OF_WRAPPERS}
            of = self.attributes(own, f"an attribute of {where}")
            key = state.get("_state", {}).get("settings", {}).get("key")  # That `cached` was given.
            keyed = [] if key is None else [self.value(key, f"the key of {where}")]
            return ["wrapper", self._class(kind), self.value(state["__wrapped__"], where), of, *keyed]
        if not is_own or (_has_more_than_attributes(kind) and not isinstance(value, tuple)):
            raise _NoStableTextError(f"{where} is an object of {kind.__qualname__!r}")
        items = list(tuple.__iter__(value)) if isinstance(value, tuple) else []
        self._note(getattr(kind, "_fields", ()))
        attributes = self.attributes(state, f"an attribute of {where}")
        return ["object", self._class(kind), self.value(items, where), attributes]

    def attributes(self, values: Mapping[str, Any], where: str) -> Token:
        """Return the tokens of attributes by their names."""
        return [[name, self._named(name, value, where)] for name, value in sorted(values.items())]

    def _text(self, text: str) -> str:
        self.may_have_secrets |= hide_address(text) != text
        self.held.append(text)
        return text

    def _named(self, name: str, value: Any, where: str) -> Token:
        """Return the token of a global, an attribute or what a dict has."""
        self._note([name])
        return self.value(value, where)

    def _note(self, names: Iterable[Any]) -> None:
        self.may_have_secrets |= any(is_secret(name) for name in names if isinstance(name, str))


def _name_of(root: Any) -> str:
    return name_of(root.__func__ if isinstance(root, types.MethodType) else root)


@functools.lru_cache(maxsize=2048)
def _reads_of(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the names of the globals that code reads, each with the names of the attributes that follow it at once."""
    found = []
    for one in codes_in(code):
        steps = [step for step in dis.get_instructions(one) if step.opname != "EXTENDED_ARG"]
        for at, step in enumerate(steps):
            if step.opname in _READS:
                after = itertools.takewhile(lambda next_: next_.opname in _ATTRIBUTE_OF, steps[at + 1 :])
                found.append((step.argval, *(next_.argval for next_ in after)))
    return tuple(found)


def _imports_of(codes: Iterable[types.CodeType], package: str) -> Iterator[tuple[types.ModuleType, tuple[str, ...]]]:
    """Yield the loaded modules that code imports when it runs, with the names that it takes of them.

    A statement that takes no names binds the package that the module is in.
    """
    for full, taken in absolute(itertools.chain.from_iterable(map(imports_in, codes)), package):
        for name in (full,) if taken else (full, full.partition(".")[0]):
            if isinstance(module := sys.modules.get(name), types.ModuleType):
                yield module, taken


def _is_named(value: Any, found: Any) -> bool:
    """Return whether a function or class is what its name leads to, from the names of its module."""
    for name in value.__qualname__.split("."):
        values = found if isinstance(found, dict) else getattr(found, "__dict__", {})
        found = values.get(name)
        found = getattr(found, "__func__", found)  # Of a static or class method.
    return found is value


def _is_defined_by_name(kind: type) -> bool:
    """Return whether a class is the one that its module has by its name, or is written in C, where names differ."""
    is_of_python = kind.__flags__ & _OF_HEAP and not kind.__flags__ & _IMMUTABLE
    return not is_of_python or _is_named(kind, sys.modules.get(kind.__module__))


def _members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield what the author of a class wrote into it, and the defaults from which methods are generated."""
    members = getattr(kind, "__members__", {}) if issubclass(kind, enum.Enum) else {}
    for name, value in sorted(vars(kind).items()):
        # Names with an underscore at both ends are those of the class Enum, which sets some of them late.
        is_of_enum = issubclass(kind, enum.Enum) and (_has_both_ends(name) or isinstance(value, enum.property))
        if isinstance(value, _WRITTEN):
            if not _is_generated(getattr(value, "__func__", value)):
                yield name, value
        elif name == "__doc__" and "__dataclass_fields__" in vars(kind) and str(value).startswith(f"{kind.__name__}("):
            continue  # Generated, with the addresses of defaults.
        elif not (name in _OF_CLASSES or name in members or is_of_enum or isinstance(value, _ATTRIBUTES)):
            yield name, value
    for name, member in members.items():
        state = {one: value for one, value in vars(member).items() if not _has_both_ends(one)}
        yield name, [member._value_, state] if state else member._value_
    fields = vars(kind).get("__dataclass_fields__", {}).values()
    # What the makers of classes were told, which may be computed when the module is loaded.
    generated = [name for name, value in vars(kind).items() if isinstance(value, _WRITTEN) and _is_generated(value)]
    yield "", [sorted(generated), sorted(getattr(kind, "__abstractmethods__", ())), kind.__hash__ is None]
    if issubclass(kind, enum.Flag):
        yield "_boundary_", str(getattr(kind, "_boundary_", ""))
    if "__attrs_attrs__" in vars(kind):
        yield "__attrs_attrs__", tuple(vars(kind)["__attrs_attrs__"])
    for one in fields:
        yield one.name, [part for part in _FLAGS_OF_FIELDS if getattr(one, part, None) is True]
        for part in ("default", "default_factory", "converter", "validator", "metadata"):
            value = getattr(one, part, MISSING)
            if value is not MISSING and not (part == "metadata" and not value):
                yield one.name, value


def _has_both_ends(name: str) -> bool:
    return name.startswith("_") and name.endswith("_")


def _is_generated(function: Any) -> bool:
    """Return whether a method follows from the fields of its class, as those of a dataclass and a named tuple do.

    A wrapper of such a method does not, except the wrapper that a dataclass has around ``__repr__``.
    """
    if getattr(function, "__globals__", {}).get("__name__") in ("dataclasses", "reprlib"):
        function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    if code is None or not code.co_filename.startswith("<"):
        return False
    is_of_tuple = function.__name__ == "__new__" and code.co_name == "<lambda>"
    return is_of_tuple or code.co_qualname.startswith("__create_fn__.") or code.co_filename.startswith("<attrs ")


def _has_more_than_attributes(kind: type) -> bool:
    """Return whether objects of a class have values that are no attributes, as those of classes written in C have."""
    slots: list[str] = []
    for one in kind.__mro__:
        names = vars(one).get("__slots__", ())
        slots += {names} if isinstance(names, str) else set(names)
    pointers = sum(name not in ("__dict__", "__weakref__") for name in slots)
    pointers += (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return kind.__itemsize__ > 0 or kind.__basicsize__ > object.__basicsize__ + pointers * struct.calcsize("P")


def _state_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, without its own code."""
    state = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType) and name not in ("__dict__", "__weakref__"):
                with suppress(AttributeError):
                    state.setdefault(name, member.__get__(value, kind))
    return state


def _metadata_in(value: pa.DataType | pa.Field | pa.Schema) -> list[Any]:
    """Return the metadata of a schema or field, then of the fields in it; Arrow's own text truncates them."""
    metadata = getattr(value, "metadata", None) or {}
    within = value.type if isinstance(value, pa.Field) else value
    fields = within if isinstance(within, pa.Schema) else map(within.field, range(within.num_fields))
    return [{name.decode(errors="backslashreplace"): of for name, of in metadata.items()}, *map(_metadata_in, fields)]


def _table_function(value: Any) -> tuple[Any, ...]:
    """Return what decides the rows of a table function of SQL; its name in SQL does not matter."""
    table_functions = sys.modules.get("lookupcache.functions.table_function")
    if table_functions is None or not isinstance(value, table_functions.KeyFunction):
        return ()
    return repr(replace(value.calls, name="")), value.table_function
