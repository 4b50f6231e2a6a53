"""Converts the arguments of a call to a key, by the function's parameters, and a key to arguments.

    f(1, b=2) ─► bind ─► (1, 2) ─► typed ─► key ─► arguments ─► f(1, b=2)

A method's key begins with the `Instance` it was called on, in place of ``self``.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import date
from decimal import Decimal
from inspect import Parameter
from types import FunctionType
from typing import Any, cast

from lookupcache.errors import OptionError

Key = tuple[Any, ...]


class Instance:
    """Represents an object in the keys of its methods, by identity, without keeping it alive."""

    __slots__ = ("ref",)

    def __init__(self, ref: Callable[[], Any]) -> None:
        self.ref = ref


class HeldInstance(Instance):
    """Represents an object without weak references, by identity, and keeps it alive as long as a key has this."""

    __slots__ = ("owner",)

    def __init__(self, owner: Any) -> None:
        super().__init__(lambda: owner)
        self.owner = owner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeldInstance) and other.owner is self.owner

    def __hash__(self) -> int:
        return id(self.owner)


class Instances:
    """The objects that a method was called on, as long as they exist.

    ``dead`` are those that have been freed; entries for them may be removed.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Instance] = {}
        self.dead: deque[Instance] = deque()
        self._lock = threading.RLock()

    def of(self, owner: Any) -> Any:
        """Return the representation of an object in keys."""
        with self._lock:
            instance = self.by_id.get(id(owner))
            if instance is not None and instance.ref() is owner:
                return instance
            try:
                weakref.ref(owner)
            except TypeError:
                return HeldInstance(owner)
            return self._new(owner)

    def reset_after_fork(self) -> None:
        """Replace a lock that a thread of the parent process may hold."""
        self._lock = threading.RLock()

    def _new(self, owner: Any) -> Instance:
        number = id(owner)

        # No lock here: it is called when an object is freed, which may happen while this thread has the lock.
        def drop(_: object) -> None:
            if self.by_id.get(number) is instance:
                del self.by_id[number]
            self.dead.append(instance)

        instance = Instance(weakref.ref(owner, drop))
        self.by_id[number] = instance
        return instance


class GivenKey(tuple[Any, ...]):
    """A key that the user's function returned: it equals that value, and has the call's arguments beside it.

    The arguments are those of a `GivenParameters`; a key in the cache has only its `Instance`.
    """

    key: Any

    @classmethod
    def of(cls, values: Iterable[Any], key: Any) -> GivenKey:
        """Return the key with these arguments."""
        made = cls(values)
        made.key = key
        return made

    def __eq__(self, other: object) -> bool:
        return bool(self.key == (other.key if isinstance(other, GivenKey) else other))

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.key)

    def __reduce__(self) -> Any:
        return GivenKey.of, (tuple(self), self.key)


def stored_key(key: Key) -> Key:
    """Return a key as it is cached: a `GivenKey` without the arguments, which may be large objects."""
    return GivenKey.of(key[:1] if isinstance(key[0], Instance) else (), key.key) if type(key) is GivenKey else key


_TYPED = object()
"""The first item of a key that distinguishes types; the values follow, then their types."""

SIMPLE = frozenset({int, str, bytes, type(None), Instance})
"""Types that C code compares, and whose values equal no value of another of these types."""

_PLAIN = SIMPLE | {tuple}
"""Types whose values equal no value of another of them: a key of such values needs no types."""

COMPARED_IN_C = SIMPLE | {float, bool, complex, date, Decimal}
"""Types that C code compares."""


def typed_key(values: Key) -> Key:
    """Return the key of some arguments; 1, 1.0 and True have different keys.

    >>> typed_key((1, "a")), typed_key((1.0,)) == typed_key((True,))
    ((1, 'a'), False)
    """
    kinds = tuple(map(type, values))
    return values if _PLAIN.issuperset(kinds) else with_kinds(values, kinds)


def with_kinds(values: Key, kinds: Key) -> Key:
    """Return a key that distinguishes these types; one with a NaN equals no other.

    >>> key = typed_key((math.nan,))
    >>> key == key, key == typed_key((math.nan,))
    (True, False)
    """
    if float in kinds and not all(value == value for value in values if type(value) is float):
        # A tuple takes the same object for equal, which would make it matter where a NaN comes from.
        values = tuple(float("nan") if type(value) is float and value != value else value for value in values)
    return (_TYPED, values, kinds)


def equal_arguments(values: Key) -> list[Key]:
    """Return all arguments that equal these, in every combination of the types of numbers.

    Other processes may have called a function with any of them. If there are too many combinations, only the given
    arguments are tried.

    >>> equal_arguments((2, "a"))
    [(2, 'a'), (2.0, 'a'), (Decimal('2'), 'a')]
    """
    equal = [_equal_numbers(value) for value in values]
    return list(itertools.product(*equal)) if math.prod(map(len, equal)) <= _MOST_COMBINATIONS else [values]


def _equal_numbers(value: Any) -> list[Any]:
    if type(value) not in _NUMBERS:
        return [value]
    found = [value]
    kinds = _NUMBERS
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() > _MOST_DIGITS:
        kinds = ()  # such integers have no text, and take very long to build
    for kind in kinds:
        with suppress(ArithmeticError, ValueError):
            if type(value) is not kind and kind(value) == value:
                found.append(kind(value))
    return found


def all_simple(values: Iterable[Any]) -> bool:
    """Return whether the types of all values are `SIMPLE`."""
    return SIMPLE.issuperset(map(type, values))


_NUMBERS: tuple[Any, ...] = (bool, int, float, Decimal)
_MOST_COMBINATIONS = 4**6
_MOST_DIGITS = 4_000


def kinds_of(key: Key) -> Key | None:
    """Return the types that a key has in addition to its values, if any."""
    return key[2] if key and key[0] is _TYPED else None


def instance_of(key: Key) -> Any:
    """Return the first argument of a key: for a method, its `Instance`."""
    values = arguments_of(key)
    return values[0] if values else None


def is_of(key: Key, instance: Instance) -> bool:
    """Return whether a key is of a method of the object that an `Instance` represents."""
    first = instance_of(key)
    return first is instance or (type(first) is HeldInstance and first == instance)


def arguments_of(key: Key) -> Key:
    """Return the arguments of a key, with its `Instance`."""
    return cast(Key, key[1]) if key and key[0] is _TYPED else key


def values_of(key: Key) -> Key:
    """Return the arguments of a key, with the object instead of its `Instance`."""
    values = arguments_of(key)
    return (owner, *values[1:]) if (owner := owner_of(key)) is not None else values


def owner_of(key: Key) -> Any:
    """Return the object of a method's key, or None."""
    first = instance_of(key)
    return first.ref() if isinstance(first, Instance) else None


def key_text(key: Key) -> str:
    """Return the arguments of a key as text for an error."""
    return repr(key) if type(key) is GivenKey else f"({', '.join(map(repr, values_of(key)))})"


class Parameters:
    """The parameters of a function, by which arguments become keys.

    ``count`` is the number of positional arguments that are a key without binding; -1 if there is no such number.

    >>> def rows_of(a, b=2, *more, c=3): ...
    >>> parameters = Parameters(rows_of)
    >>> parameters.bind(1, c=4), parameters.bind(1, 2, 7, 8)
    ((1, 2, 4), (1, 2, 7, 8, 3))
    >>> parameters.arguments((1, 2, 7, 8, 3))
    ((1, 2, 7, 8), {'c': 3})
    """

    def __init__(self, function: Callable[..., Any], batch: bool = False) -> None:
        try:
            found = _parameters_of(function)
        except (TypeError, ValueError):  # some builtins have no signature
            found = [Parameter("arguments", Parameter.VAR_POSITIONAL)]
        parameters = found
        if batch:
            parameters = _keys_only(parameters)
            _refuse_more_than_keys(parameters, function)
        else:
            _refuse_defaults_without_hash(parameters)
        kinds = [p.kind for p in parameters]
        self._positional = sum(kind in _POSITIONAL for kind in kinds)
        self._named = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
        self._takes_more = Parameter.VAR_KEYWORD in kinds
        self.count = self._positional if all(kind in _POSITIONAL for kind in kinds) else -1
        self.bind = _binder(parameters, getattr(function, "__qualname__", type(function).__qualname__))

    def arguments(self, values: Key) -> tuple[Key, dict[str, Any]]:
        """Return the positional and keyword arguments of a key."""
        if self.count >= 0:
            return values, {}
        named = [*self._named]
        if self._takes_more:
            *values, more = values  # type: ignore[assignment]
            named += more
        first = len(values) - len(named)
        return values[:first], dict(zip(named, values[first:], strict=True))


class GivenParameters:
    """The parameters of a function with ``key``, a function that makes a key of a call's arguments.

    >>> parameters = GivenParameters(lambda session, number, **more: number)
    >>> key = parameters.bind("a session", 7, at="noon")
    >>> key, parameters.arguments(key)
    (7, (('a session', 7), {'at': 'noon'}))
    """

    count = -1

    def __init__(self, key: Callable[..., Any]) -> None:
        self._key = key

    def bind(self, /, *values: Any, **named: Any) -> GivenKey:
        """Return the key of a call; in that of a method, its object is an `Instance`, to separate the objects."""
        owner = values[0].ref() if values and isinstance(values[0], Instance) else None
        if owner is None:
            return GivenKey.of((*values, named), self._key(*values, **named))
        key = self._key(owner, *values[1:], **named)
        if isinstance(key, tuple):
            key = tuple(values[0] if item is owner else item for item in key)  # The cache would keep the object alive.
        return GivenKey.of((*values, named), (values[0], key))

    def arguments(self, values: Key) -> tuple[Key, dict[str, Any]]:
        """Return the positional and keyword arguments of a key."""
        *positional, named = values
        return tuple(positional), named


_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def _keys_only(parameters: list[Parameter]) -> list[Parameter]:
    """Return the parameters of a function of many keys: the keys and, for a method, the object before them."""
    needed = [p for p in parameters if p.kind in _POSITIONAL and p.default is Parameter.empty]
    return needed or [Parameter("keys", Parameter.POSITIONAL_OR_KEYWORD)]


def _refuse_more_than_keys(parameters: list[Parameter], function: Callable[..., Any]) -> None:
    """Raise OptionError for a batch function of several parameters, unless it may be a method."""
    within, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    in_class = bool(within) and not within.endswith("<locals>")
    may_be_method = isinstance(function, FunctionType) and (in_class or parameters[0].name in ("self", "cls"))
    if len(parameters) > 1 + may_be_method:
        names = ", ".join(p.name for p in parameters)
        raise OptionError(
            f"With batch=True a function takes one list of keys, but this one requires {names}.",
            hint="Use tuples as keys, or bind the other parameters with functools.partial.",
        )


def _refuse_defaults_without_hash(parameters: list[Parameter]) -> None:
    for parameter in parameters:
        if parameter.default is not Parameter.empty and (found := without_hash(parameter.default)) is not None:
            raise OptionError(
                f"The default of parameter {parameter.name!r} is or holds a {type(found).__name__}, which has no hash "
                "and cannot be part of a key.",
                hint=f"{hint_without_hash(found)} As a default, use None.",
            )


def without_hash(value: Any) -> Any:
    """Return the unhashable object in a value, itself or inside of tuples; None if the value has a hash.

    >>> without_hash((1, ("a", [2]))), without_hash((1, 2))
    ([2], None)
    """
    try:
        hash(value)
    except TypeError:
        inner = value if isinstance(value, tuple) else ()
        return next((found for each in inner if (found := without_hash(each)) is not None), value)
    return None


def hint_without_hash(value: Any) -> str:
    """Return a hint that names a hashable value to pass instead."""
    kinds = {list: "a tuple", set: "a frozenset", dict: "a tuple of its items", bytearray: "bytes"}
    for kind, instead in kinds.items():
        if isinstance(value, kind):
            return f"Give {instead} instead of the {kind.__name__}."
    return "Give a number, a text, or a tuple of such instead."


def _parameters_of(function: Any) -> list[Parameter]:
    """Return the parameters of a call of a function, of an object, or of an object of a class."""
    if isinstance(function, type):
        call = inspect.getattr_static(function, "__call__")
        if isinstance(call, classmethod | staticmethod):
            # Bound to the class, as it is when an object is called.
            return list(inspect.signature(call.__get__(None, function)).parameters.values())
        return list(inspect.signature(call).parameters.values())[1:]
    return list(inspect.signature(_with_bound_call(function)).parameters.values())


def _with_bound_call(function: Any) -> Any:
    """Return an object's ``__call__`` where it is static: `inspect.signature` would leave out its first parameter."""
    if isinstance(function, functools.partial):
        inner = _with_bound_call(function.func)
        return function if inner is function.func else functools.partial(inner, *function.args, **function.keywords)
    call = inspect.getattr_static(type(function), "__call__", None)
    return function.__call__ if isinstance(call, classmethod | staticmethod) else function


def _binder(parameters: Iterable[Parameter], name: str) -> Callable[..., Key]:
    """Create a function with these parameters that returns their values: Python's own binding is the fastest.

    Any further keywords come last, their names at the very end.
    """
    parameters = list(parameters)
    spelled, values, defaults = [], [], {}
    flat, previous = "_flat_", None
    while any(p.name == flat for p in parameters):
        flat += "_"
    for number, parameter in enumerate(parameters):
        kind = parameter.kind
        if previous is Parameter.POSITIONAL_ONLY and kind is not previous:
            spelled.append("/")
        if kind is Parameter.KEYWORD_ONLY and previous not in (Parameter.KEYWORD_ONLY, Parameter.VAR_POSITIONAL):
            spelled.append("*")
        stars = "*" * (kind is Parameter.VAR_POSITIONAL) + "**" * (kind is Parameter.VAR_KEYWORD)
        default = ""
        if parameter.default is not Parameter.empty:
            defaults[f"_{number}"] = parameter.default
            default = f"=_{number}"
        spelled.append(f"{stars}{parameter.name}{default}")
        values.append(f"*{flat}({parameter.name})" if stars == "**" else f"{stars}{parameter.name}")
        previous = kind
    if previous is Parameter.POSITIONAL_ONLY:
        spelled.append("/")
    source = f"lambda {', '.join(spelled)}: ({', '.join([*values, ''])})"
    bind: Callable[..., Key] = eval(source if values else "lambda: ()", {**defaults, flat: _flat})
    bind.__name__ = bind.__qualname__ = name
    return bind


def _flat(more: Mapping[str, Any]) -> Key:
    names = tuple(sorted(more))
    return (*(more[name] for name in names), names)
