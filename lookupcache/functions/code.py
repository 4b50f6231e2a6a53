"""What code means, as a hash: the same in all processes that run the same code, another one after a change of it.

    function ─► bytecode, defaults, closure, attributes, and the globals that it reads
    class    ─► its bases, methods, properties, attributes, and the classes in it
    object   ─► its class, and its attributes

Functions and classes that are reached are listed in the order in which they are met, and referred to by number, so that
code which refers to itself comes to an end. Installed packages and Python's own modules are only named: to follow them
would take long, and what they do rarely changes.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import functools
import hashlib
import json
import operator
import pathlib
import re
import sys
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from itertools import chain
from typing import Any

from lookupcache.functions.bytecode import Bytecode
from lookupcache.functions.object_state import BASES, has_own_state, is_of_class, members_of_enum, plain, state_of
from lookupcache.functions.own_modules import (
    Module,
    attribute_of_module,
    imported_modules,
    is_own_module,
    module_of,
    module_of_file,
)
from lookupcache.redaction import is_secret

Token = Any
"""JSON data that stands for a value."""


@dataclasses.dataclass(frozen=True)
class CodeIdentity:
    """The identity of some code.

    - ``digest``: a hash, as 64 hexadecimal digits.
    - ``unknown``: the types of the objects in defaults, closures and arguments that are bound whose values it misses.
    """

    digest: str
    unknown: tuple[str, ...] = ()


def identify_code(root: Any, *, with_globals: bool = True) -> CodeIdentity:
    """Return the identity of a function, class or object: of its code, and of all that it uses and can be known.

    The same code has another identity in another minor version of Python. No value is shown, and no ``repr`` of an
    object of a class is used, which could have its address.

    Args:
        root: A function, a method, a ``functools.partial``, a class, or an object.
        with_globals: Whether globals that functions read are part of it.

    >>> def scaled(factor): return lambda n: factor * n
    >>> identify_code(scaled(2)) == identify_code(scaled(2)), identify_code(scaled(2)) == identify_code(scaled(3))
    (True, False)
    """
    mutated: set[_State] = set()
    while True:
        walk = _Walk(root, mutated, with_globals)
        text = json.dumps([sys.version_info[:2], walk.run(root)], separators=(",", ":"))
        # What a function reads, another one that is met after it may change.
        found = walk.states & walk.constants
        if not found:
            return CodeIdentity(_hash(text), tuple(dict.fromkeys(walk.unknown)))
        mutated |= found


_State = tuple[str, int, str]
"""What code changes, so that its value is no constant: a global that it assigns, a global or attribute that it fills.

The number is the id of the module's dict; attributes are known by name alone.
"""


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────

_BY_REPR = frozenset(
    (type(None), bool, float, complex, str, bytes, bytearray, type(...), range, Decimal, uuid.UUID, dt.date,
     dt.timedelta, dt.timezone)
)  # fmt: skip
_OF_REPR = _BY_REPR | {int}
_LARGE, _LONG = {str, bytes, bytearray}, 10_000
_SEQUENCES = (list, tuple, collections.deque)
_SETS = (set, frozenset)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter, types.MappingProxyType)
_CONTAINERS = (*_SEQUENCES, *_SETS, *_MAPPINGS)
_CALLERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_BUILT_IN = (
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
)  # fmt: skip
_NAMES_OF_MODULES = {
    "__annotations__", "__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__name__", "__package__",
    "__path__", "__spec__",
}  # fmt: skip
_WITHOUT_VALUE = {
    "_abc_impl", "_is_protocol", "_is_runtime_protocol", "__abstractmethods__", "__classcell__",
    "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__", "__hash__",
    "__module__", "__non_callable_proto_members__", "__orig_bases__", "__parameters__", "__protocol_attrs__",
    "__qualname__", "__slots__", "__static_attributes__", "__type_params__", "__weakref__", "__wrapped__",
}  # fmt: skip
"""Of classes: what says nothing of their meaning, follows from the rest, or changes by use."""
_IN_ORDER = {dict, list, tuple}
_MOST_LEVELS = 6
_MOST_PLAIN = 20_000_000
_DEEPEST = 100
_MOST_NODES = 500


class _Walk:
    """Follows what a function, class or object uses.

    The defaults, closure and bound objects of the root, and of the functions in these, are strict: if a value is not
    known, that is said.
    """

    def __init__(self, root: Any, known: set[_State], with_globals: bool) -> None:
        self.states: set[_State] = set()
        """What the code changes."""
        self.constants: set[_State] = set()
        """What was taken for constant, and would not have been if the code were known to change it."""
        self.unknown: list[str] = []
        self._known = known
        self._with_globals = with_globals
        self._root = root
        self._package = module_of(root).partition(".")[0]
        self._is_own_module: dict[str, bool] = {}
        self._modules: dict[str, Module | None] = {}
        self._nodes: list[tuple[str, Any, bool]] = []
        self._numbers: dict[tuple[str, int, bool], int] = {}
        self._contents: dict[tuple[int, bool], str] = {}
        self._open: list[int] = []
        # Numbers are by address, so nothing that was met may go.
        self._kept: list[Any] = []

    def run(self, root: Any) -> Token:
        """Return the token of a value, followed by those of the functions, classes and objects that it refers to."""
        found = [self._value(root, True)]
        describe: dict[str, Callable[[Any, bool], Token]] = {
            "function": self._function, "class": self._class, "object": self._object, "calls": self._calls,
            "module": self._module,
        }  # fmt: skip
        for kind, value, strict in self._nodes:  # They become more.
            found.append(describe[kind](value, strict))
        return found

    def _refer(self, kind: str, value: Any, strict: bool = False) -> Token:
        key = (kind, id(value), strict)
        number = self._numbers.get(key)
        if number is None:
            if len(self._nodes) >= _MOST_NODES:
                if strict:
                    self.unknown.append("what many others refer to")
                return [kind, module_of(value), getattr(value, "__qualname__", "")]
            number = self._numbers[key] = len(self._nodes)
            self._nodes.append((kind, value, strict))
        return [kind, number]

    def _value(self, value: Any, strict: bool) -> Token:
        opened = len(self._open)
        try:
            return self._token(value, strict)
        except Exception:  # A metaclass may answer with anything, and a value may be nested too deeply.
            del self._open[opened:]
            if strict:
                self.unknown.append("a class that answers for itself")
            return "unknown"

    def _token(self, value: Any, strict: bool) -> Token:
        kind = type(value)
        if kind in _LARGE and len(value) > _LONG:
            content = value.encode("utf-8", "surrogatepass") if kind is str else value
            return [kind.__name__, len(value), hashlib.sha256(content).hexdigest()]
        if kind in _BY_REPR:
            return [kind.__name__, repr(value)]
        if kind is int:
            return ["int", hex(value)]
        if kind in _CONTAINERS:
            return self._container(value, strict)
        if issubclass(type(value), type):
            return self._type(value)
        if kind is types.FunctionType:
            return self._refer("function", value, strict)
        found = self._part(value, kind, strict)
        return self._instance(value, kind, strict) if found is None else found

    def _type(self, kind: type) -> Token:
        if kind is self._root or self._is_own(kind.__module__):
            return self._refer("class", kind)
        return ["name", kind.__module__, kind.__qualname__]

    def _part(self, value: Any, kind: type, strict: bool) -> Token | None:
        """Return the token of a value of Python's own types that hold others; None if it is of no such type."""
        if kind is types.MethodType or issubclass(kind, functools.partial):
            return self._refer("calls", value, strict)
        if issubclass(kind, _BUILT_IN):
            of = getattr(value, "__self__", None)
            bound = None if of is None or issubclass(type(of), types.ModuleType) else self._value(of, strict)
            return ["name", getattr(value, "__module__", None), value.__qualname__, bound]
        if issubclass(kind, functools.partialmethod):
            return ["partial", *(self._value(one, strict) for one in (value.func, value.args, value.keywords))]
        if issubclass(kind, property):
            functions = [self._value(one, strict) for one in (value.fget, value.fset, value.fdel)]
            return ["property", *functions, *self._extended(value, property, strict)]
        if issubclass(kind, functools.cached_property):
            extended = self._extended(value, functools.cached_property, strict)
            return ["cached_property", self._value(value.func, strict), *extended]
        if issubclass(kind, staticmethod | classmethod):
            return [kind.__name__, self._value(value.__func__, strict)]
        if kind is functools.singledispatchmethod:
            registry = dict(value.dispatcher.registry)
            return ["singledispatchmethod", self._value(value.func, strict), self._value(registry, strict)]
        if kind is types.ModuleType:
            return self._refer_module(str(vars(value).get("__name__")))
        if kind is slice:
            return ["slice", *(self._value(one, strict) for one in (value.start, value.stop, value.step))]
        if kind is re.Pattern:
            return ["pattern", self._value(value.pattern, strict), value.flags]
        if kind in _CALLERS:
            return [kind.__name__, self._value(value.__reduce__()[1:], strict)]
        if kind is dt.datetime or kind is dt.time:
            return [kind.__name__, repr(value.replace(tzinfo=None)), value.fold, self._value(value.tzinfo, strict)]
        if kind is zoneinfo.ZoneInfo and value.key:
            return ["zone", value.key]
        if issubclass(kind, pathlib.PurePath):
            return ["path", str(value)]
        if issubclass(type(value), enum.Enum):
            return [
                "enum",
                self._type(kind),
                str(vars(value).get("_name_")),
                self._value(vars(value).get("_value_"), strict),
            ]
        return None

    def _extended(self, value: Any, base: type, strict: bool) -> Iterable[Token]:
        """Return the tokens of what an object has by a class that extends one of Python's own."""
        if type(value) is base:
            return []
        state = {name: of for name, of in (state_of(value) or {}).items() if name not in ("func", "attrname", "lock")}
        return [self._type(type(value)), self._attributes(state, strict)]

    def _container(self, value: Any, strict: bool) -> Token:
        if id(value) in self._open:
            return ["cycle", len(self._open) - self._open.index(id(value))]
        if len(self._open) > _DEEPEST:
            return self._no_value(value, strict)
        key = (id(value), strict)
        if key not in self._contents:
            self._open.append(id(value))
            try:
                # As a hash: a value that is in another one many times would be written as often.
                found = _hash_of_plain(value)
                self._contents[key] = found or _hash(json.dumps([*self._items(value, strict)]))
            finally:
                self._open.pop()
            self._kept.append(value)
        return [type(value).__name__, self._contents[key]]

    def _items(self, given: Any, strict: bool) -> Iterable[Token]:
        try:
            value: Any = given.copy() if issubclass(type(given), _MAPPINGS) else list(given)
        except RuntimeError:  # Another thread changes it.
            return [self._no_value(given, strict)]
        if issubclass(type(value), list) and issubclass(type(given), _SETS):
            return sorted((self._value(one, strict) for one in value), key=json.dumps)
        if issubclass(type(value), dict):
            extra = (
                [self._value(value.default_factory, strict)] if issubclass(type(value), collections.defaultdict) else []
            )
            if _OF_REPR.issuperset(map(type, value)) and _OF_REPR.issuperset(map(type, value.values())):
                with suppress(ValueError):  # An integer of thousands of digits.
                    return [*extra, _hash(repr(dict(value)))]
            return [*extra, *([self._value(name, strict), self._value(of, strict)] for name, of in value.items())]
        if _OF_REPR.issuperset(map(type, value)) and len(value) > 8:
            with suppress(ValueError):
                return [_hash(repr(value))]
        return [self._value(one, strict) for one in value]

    def _no_value(self, value: Any, strict: bool) -> Token:
        kind = type(value)
        if strict:
            self.unknown.append(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
        return ["object", self._type(kind)]

    # ── functions ────────────────────────────────────────────────────────────────────────────────────────

    def _function(self, function: types.FunctionType, strict: bool) -> Token:
        module = str(function.__globals__.get("__name__"))
        is_own = function is self._root or self._is_own(module)
        cells = [self._cell(cell, strict) for cell in function.__closure__ or ()]
        wrapped = vars(function).get("__wrapped__")
        found = [cells, None if wrapped is None else self._value(wrapped, False)]
        if not is_own:
            return [module, function.__qualname__, *found]
        code = Bytecode.of(function.__code__)
        self._note_mutated(function, code)
        defaults = [self._value(one, strict) for one in function.__defaults__ or ()]
        named = [[name, self._value(one, strict)] for name, one in sorted((function.__kwdefaults__ or {}).items())]
        read = code.names - code.stores
        attributes = self._attributes({name: of for name, of in vars(function).items() if name in read}, False)
        read_globals = self._globals(function.__globals__, code)
        return [code.token, defaults, named, *found, attributes, read_globals, self._imports(function, code)]

    def _cell(self, cell: types.CellType, strict: bool) -> Token:
        try:
            return self._value(cell.cell_contents, strict)
        except ValueError:
            return "empty"

    def _note_mutated(self, function: types.FunctionType, code: Bytecode) -> None:
        of = id(function.__globals__)
        self.states |= {("assigned", of, name) for name in code.assigns}
        self.states |= {("filled", of, name) for name in code.fills_globals}
        self.states |= {("attribute", 0, name) for name in code.fills_attributes}

    def _is_state(self, value: Any, *possible: _State) -> bool:
        """Return whether it is known that the code changes a value."""
        if not issubclass(type(value), _CONTAINERS):
            possible = possible[:-1]  # Only containers are filled.
        self.constants.update(one for one in possible if one not in self._known)
        return any(one in self._known for one in possible)

    def _globals(self, names: Mapping[str, Any], code: Bytecode) -> Token:
        """Return the tokens of the globals that code reads; those that are assigned or filled are no constants."""
        if not self._with_globals:
            return []
        found = []
        for name in sorted(code.reads):
            if name not in names or name in _NAMES_OF_MODULES:
                continue
            value = names[name]
            is_state = self._is_state(value, ("assigned", id(names), name), ("filled", id(names), name))
            found.append([name, "state" if is_state else self._named(name, value, code)])
        return found

    def _imports(self, function: types.FunctionType, code: Bytecode) -> Token:
        """Return the tokens of the modules that a function imports when it runs."""
        if not self._with_globals:
            return []
        names = function.__globals__
        package = names.get("__package__") or str(names.get("__name__")).rpartition(".")[0]
        return [self._imported(name, code) for name in imported_modules(code, str(package))]

    def _imported(self, name: str, code: Bytecode) -> Token:
        if name not in sys.modules or attribute_of_module(name, "__spec__") is not None:
            return self._refer_module(name)
        return self._named(name, sys.modules[name], code)  # Without a file.

    def _refer_module(self, name: str) -> Token:
        """Return the token of a module by all of its code, where it is followed.

        By its file: it may be imported or not, and to import it would run its code.
        """
        if name not in self._modules:
            self._modules[name] = module_of_file(name, self._package) if is_own_module(name, "") else None
        found = self._modules[name]
        return ["module", name] if found is None else self._refer("module", found)

    def _module(self, found: Module, strict: bool) -> Token:
        return [found.name, found.code.token, [self._refer_module(one) for one in found.imports]]

    def _named(self, name: str, value: Any, code: Bytecode) -> Token:
        """Return the token of a global, or of what a module has of the names in the code."""
        if is_secret(name) and issubclass(type(value), str | bytes):
            return "secret"
        if not issubclass(type(value), types.ModuleType):
            return self._value(value, False)
        module = str(vars(value).get("__name__"))
        if not self._is_own(module) or id(value) in self._open:
            return ["module", module]
        self._open.append(id(value))
        try:
            members = [
                [one, self._named(one, vars(value)[one], code)]
                for one in sorted(code.names.intersection(vars(value)))
                if one not in _NAMES_OF_MODULES
            ]
        finally:
            self._open.pop()
        return ["module", module, members]

    # ── classes and objects ──────────────────────────────────────────────────────────────────────────────

    def _class(self, kind: type, strict: bool) -> Token:
        members = dict(vars(kind))
        if issubclass(kind, enum.Enum):
            members = members_of_enum(kind, members)
        fields = members.get("__dataclass_fields__", {})
        found = []
        for name, value in sorted(members.items()):
            if issubclass(type(value), types.MemberDescriptorType | types.GetSetDescriptorType):
                continue
            if (name in _WITHOUT_VALUE and not issubclass(type(value), types.FunctionType)) or "__annot" in name:
                continue
            if (
                fields
                and issubclass(type(value), types.FunctionType)
                and value.__code__.co_qualname.startswith("__create_fn__.")
            ):
                continue  # Generated from the fields.
            if self._is_state(value, ("attribute", 0, name)):
                found.append([name, "state"])
            else:
                found.append([name, *self._attributes({name: value}, False)])
        bases = [self._value(one, False) for one in kind.__bases__]
        return [bases, self._value(type(kind), False), found, *self._dataclass(vars(kind))]

    def _dataclass(self, members: Mapping[str, Any]) -> Iterable[Token]:
        """Return the tokens of what a dataclass's methods are generated from, if they are."""
        if "__dataclass_fields__" in members and "__dataclass_params__" in members:
            params = members["__dataclass_params__"]
            flags = [getattr(params, name) for name in ("init", "repr", "eq", "order", "unsafe_hash", "frozen")]
            yield [[self._field(one) for one in members["__dataclass_fields__"].values()], flags]

    def _field(self, field: dataclasses.Field[Any]) -> Token:
        values = [self._value(one, False) for one in (field.default, field.default_factory)]
        return [field.name, *values, field.init, bool(field.kw_only), bool(field.compare), bool(field.hash)]

    def _instance(self, value: Any, kind: type, strict: bool) -> Token:
        """Return the token of an object of any class."""
        self._kept.append(value)
        state = state_of(value)
        if state is None or has_own_state(kind):
            return self._no_value(value, strict)
        if "__wrapped__" in state:
            return self._refer("calls", value, strict)
        if kind is types.SimpleNamespace or issubclass(kind, tuple) or dataclasses.is_dataclass(kind):
            return self._refer("object", value, strict)
        found = self._no_value(value, strict)
        # What methods have written there so far may be more than what determines the values.
        return self._refer("object", value, False) if self._is_own(kind.__module__) else found

    def _calls(self, value: Any, strict: bool) -> Token:
        """Return the token of what calls another: a method, a partial, an object of a decorator."""
        if issubclass(type(value), types.MethodType):
            # By name where the class has it: in a pickle, it may be another copy of the same function.
            parts = [value.__func__.__name__ if is_of_class(value) else value.__func__, value.__self__]
        elif issubclass(type(value), functools.partial):
            parts = [value.func, value.args, value.keywords]
        else:
            parts = [(state_of(value) or {})["__wrapped__"]]
        return [self._type(type(value)), *(self._value(one, strict) for one in parts)]

    def _object(self, value: Any, strict: bool) -> Token:
        kind = type(value)
        base = next((one for one in BASES if issubclass(type(value), one)), None)
        content = None if base is None else self._value(plain(base, value), strict)
        return [self._type(kind), content, self._attributes(state_of(value) or {}, strict)]

    def _attributes(self, values: Mapping[str, Any], strict: bool) -> Token:
        return [
            [name, "secret" if is_secret(name) and issubclass(type(value), str | bytes) else self._value(value, strict)]
            for name, value in sorted(values.items(), key=lambda item: str(item[0]))
            if issubclass(type(name), str)
        ]

    def _is_own(self, module: str | None) -> bool:
        """Return whether the code of a module is followed: that of the root's package, and what is not installed."""
        found = self._is_own_module.get(str(module))
        if found is None:
            found = self._is_own_module[str(module)] = is_own_module(str(module), self._package)
        return found


def _hash_of_plain(value: Any) -> str | None:
    """Return the hash of a large container of plain values, or of plain containers of these; None for any other.

    Level by level, without a turn of the interpreter for each of a table's rows.
    """
    if len(value) <= 8:
        return None
    try:
        if type(value) in _SETS:
            kinds = set(map(type, value))
            # Sorted as text, since the order of a set is another one in each process.
            return _hash(repr(sorted(map(repr, value)))) if _OF_REPR.issuperset(kinds) else None
        level, total = [value], 0
        for _ in range(_MOST_LEVELS):
            kinds = set(map(type, level))
            if not kinds <= _OF_REPR | _IN_ORDER:
                return None
            if not kinds & _IN_ORDER:
                return _hash(repr(value))
            nested = level if kinds <= _IN_ORDER else [one for one in level if type(one) in _IN_ORDER]
            total += sum(map(len, nested))
            if total > _MOST_PLAIN:  # One that is in another many times counts as often.
                return None
            dicts = [one for one in nested if type(one) is dict] if dict in kinds else []
            level = [*chain.from_iterable(nested), *chain.from_iterable(one.values() for one in dicts)]
    except (RuntimeError, ValueError):  # Another thread changes it; an integer of thousands of digits.
        pass
    return None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
