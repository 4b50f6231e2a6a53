"""Writes keys and values of `cached` as JSON, for other processes: data only, and nothing that is executed when read.

The cache of a host and the store of all hosts share it.

What JSON does not have is an object with one member, whose name says the type: ``{"$bytes": "AAE="}``.
"""

from __future__ import annotations

import base64
import copyreg
import dataclasses
import datetime as dt
import functools
import json
import typing
import uuid
import zoneinfo
from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

SUPPORTED = (
    "None, bool, int, float, str, bytes, date, datetime, timedelta, Decimal, UUID, and list, tuple and dict of "
    "these, or dataclasses that the return annotation names"
)
"""The values that can be written, for hints."""

FORM = 1
"""The number of the form of written keys and values; it changes when an older value would be read differently."""

_PLAIN = (type(None), bool, int, float, str)


class UnsupportedValueError(Exception):
    """A value cannot be written; the text names its type."""


class ValueCodec:
    """Writes values and reads them again, equal and of the same types.

    >>> codec = ValueCodec()
    >>> codec.read(codec.write({"id": 7, "at": dt.date(2024, 2, 29), "raw": b"x", 1: (Decimal("1.50"), [None])}))
    {'id': 7, 'at': datetime.date(2024, 2, 29), 'raw': b'x', 1: (Decimal('1.50'), [None])}
    """

    def __init__(self, classes: Mapping[str, type] | None = None) -> None:
        self._classes = dict(classes or {})
        self._names = {kind: name for name, kind in self._classes.items()}

    def write(self, value: Any) -> bytes:
        """Return a value as JSON; raises UnsupportedValueError."""
        try:
            return json.dumps(self._to_json(value), separators=(",", ":")).encode()
        except RecursionError:
            raise UnsupportedValueError("a value that contains itself, or is nested too deeply") from None
        except ValueError as error:
            raise UnsupportedValueError(f"a number that has no text ({error})") from None

    def write_key(self, values: tuple[Any, ...]) -> bytes:
        """Return arguments as JSON that is the same for all that are one key of a dict; raises UnsupportedValueError.

        The types of the arguments themselves tell keys apart, those of values inside of them do not.

        >>> codec = ValueCodec()
        >>> codec.write_key((Decimal("1.0"), -0.0, (True,))) == codec.write_key((Decimal("1.00"), 0.0, (1.0,)))
        True
        >>> codec.write_key((1,)) == codec.write_key((1.0,))
        False
        """
        try:
            return self.write(tuple(map(_common_form, values)))
        except RecursionError:
            raise UnsupportedValueError("a value that contains itself, or is nested too deeply") from None

    def read(self, data: bytes) -> Any:
        """Return the value of some JSON; raises ValueError for what `write` does not write, or what is too deep."""
        try:
            return self._from_json(json.loads(data))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"not a value: {error}") from None

    def _to_json(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            return [self._to_json(each) for each in value]
        if kind is dict:
            return self._dict_to_json(value)
        if kind is tuple:
            return {"$tuple": [self._to_json(each) for each in value]}
        if kind in _WRITERS:
            return _WRITERS[kind](value)
        if kind in self._names:
            # By name: the reader may have the fields in another order.
            names = [field.name for field in dataclasses.fields(value)]
            if missing := [name for name in names if not hasattr(value, name)]:
                raise UnsupportedValueError(f"{kind.__qualname__} without a value of its field {missing[0]!r}")
            fields = {name: self._to_json(getattr(value, name)) for name in names}
            more = {name: self._to_json(each) for name, each in _more_attributes(value, fields)}
            return {"$object": [self._names[kind], fields, *([more] if more else [])]}
        raise UnsupportedValueError(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))

    def _dict_to_json(self, value: dict[Any, Any]) -> Any:
        if all(type(name) is str and not name.startswith("$") for name in value):
            return {name: self._to_json(each) for name, each in value.items()}
        return {"$dict": [[self._to_json(name), self._to_json(each)] for name, each in value.items()]}

    def _from_json(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self._from_json(each) for each in data]
        if not isinstance(data, dict):
            return data
        if len(data) == 1:
            [(name, content)] = data.items()
            if name.startswith("$"):
                return self._typed_from_json(name, content)
        return {name: self._from_json(each) for name, each in data.items()}

    def _typed_from_json(self, name: str, content: Any) -> Any:
        if name == "$tuple":
            return tuple(self._from_json(each) for each in content)
        if name == "$dict":
            return {self._from_json(key): self._from_json(each) for key, each in content}
        if name == "$object":
            kind, (fields, *more) = self._classes[content[0]], content[1:]
            if {field.name for field in dataclasses.fields(kind)} != fields.keys():
                raise ValueError(f"{kind.__name__} has other fields")
            attributes = {name: each for part in (fields, *more) for name, each in part.items()}
            return _new_object(kind, {name: self._from_json(each) for name, each in attributes.items()})
        return _READERS[name](content)


_UNROUNDED = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_MOST_DIGITS = 300


def _common_form(value: Any) -> Any:
    """Return the same value for all that are equal and of the same type."""
    kind = type(value)
    if kind is float:
        return value + 0.0
    if kind is Decimal and value.is_finite():
        return value.normalize(_UNROUNDED) if value else Decimal(0)
    if kind is dt.datetime:
        return _common_time(value)
    if kind is tuple:
        return tuple(_common_form(_common_number(each)) for each in value)
    return value


def _common_number(value: Any) -> Any:
    """Return the same number for all that are equal, of any type."""
    kind = type(value)
    if kind is bool or (kind is float and value.is_integer()):
        return int(value)
    if kind is Decimal and value.is_infinite():
        return float(value)
    if kind is Decimal and value.is_finite() and abs(value.adjusted()) < _MOST_DIGITS:
        if value == value.to_integral_value():
            return int(value)
        return float(value) if Decimal(float(value)) == value else value
    return value


def _common_time(value: dt.datetime) -> dt.datetime:
    if value.tzinfo is None:
        return value.replace(fold=0)
    if value.utcoffset() != value.replace(fold=1 - value.fold).utcoffset():
        return value  # When clocks are changed, a time equals none of another zone.
    try:
        return value.astimezone(dt.UTC)
    except OverflowError:
        return value


def _more_attributes(value: Any, fields: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are no fields, as ``__post_init__`` sets them, without those computed on first use."""
    kind = type(value)
    names = [*getattr(value, "__dict__", ()), *copyreg._slotnames(kind)]  # type: ignore[attr-defined]
    for name in names:
        is_computed = isinstance(getattr(kind, name, None), functools.cached_property) or name == "__orig_class__"
        if name not in fields and not is_computed and hasattr(value, name):
            yield name, getattr(value, name)


def _new_object(kind: type, values: dict[str, Any]) -> Any:
    """Return an object of a dataclass with these attributes, without its ``__init__``, as it was written."""
    value: Any = object.__new__(kind)
    for name, each in values.items():
        object.__setattr__(value, name, each)
    return value


def dataclasses_of(function: Any) -> dict[str, type]:
    """Return the dataclasses that a function's annotation says it returns, and those of their fields, by name.

    >>> @dataclasses.dataclass
    ... class City:
    ...     name: str
    >>> def cities_of(country: str) -> list[City] | None: ...
    >>> cities_of.__annotations__["return"] = list[City] | None
    >>> list(dataclasses_of(cities_of))
    ['City']
    """
    found: dict[str, type] = {}
    for kind in _annotation_of(function, "return"):
        _add_dataclasses(kind, found)
    return found


def _add_dataclasses(annotation: Any, found: dict[str, type]) -> None:
    for argument in typing.get_args(annotation):
        _add_dataclasses(argument, found)
    annotation = typing.get_origin(annotation) or annotation  # Of a generic one.
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) and annotation not in found.values():
        name = annotation.__qualname__
        found[f"{annotation.__module__}.{name}" if name in found else name] = annotation
        for field in dataclasses.fields(annotation):
            for kind in _annotation_of(annotation, field.name):
                _add_dataclasses(kind, found)


def _annotation_of(annotated: Any, name: str) -> Iterator[Any]:
    """Yield an annotation; none, if a name in it is not defined."""
    try:
        hints = typing.get_type_hints(annotated)
    except (NameError, TypeError, AttributeError):
        return
    if name in hints:
        yield hints[name]


def _datetime_to_json(value: dt.datetime) -> Any:
    zone = value.tzinfo
    if zone is None:
        return {"$datetime": [value.isoformat(), value.fold]}
    if type(zone) is zoneinfo.ZoneInfo and zone.key:
        return {"$datetime": [value.replace(tzinfo=None).isoformat(), value.fold, zone.key]}
    if type(zone) is dt.timezone and repr(zone) in ("datetime.timezone.utc", repr(dt.timezone(zone.utcoffset(None)))):
        offset = zone.utcoffset(None)
        return {"$datetime": [value.replace(tzinfo=None).isoformat(), value.fold, offset.total_seconds()]}
    raise UnsupportedValueError(f"datetime with a time zone of type {type(zone).__qualname__}")


def _datetime_from_json(content: list[Any]) -> dt.datetime:
    text, fold, *zones = content
    value = dt.datetime.fromisoformat(text).replace(fold=fold)
    if not zones:
        return value
    [zone] = zones
    is_name = isinstance(zone, str)
    return value.replace(tzinfo=zoneinfo.ZoneInfo(zone) if is_name else dt.timezone(dt.timedelta(seconds=zone)))


_WRITERS: dict[type, Callable[[Any], Any]] = {
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode()},
    dt.date: lambda value: {"$date": value.isoformat()},
    dt.datetime: _datetime_to_json,
    dt.timedelta: lambda value: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    Decimal: lambda value: {"$decimal": str(value)},
    uuid.UUID: lambda value: {"$uuid": value.hex},
}

_READERS: dict[str, Callable[[Any], Any]] = {
    "$bytes": base64.b64decode,
    "$date": dt.date.fromisoformat,
    "$datetime": _datetime_from_json,
    "$timedelta": lambda content: dt.timedelta(*content),
    "$decimal": Decimal,
    "$uuid": lambda text: uuid.UUID(hex=text),
}
