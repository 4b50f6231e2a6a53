"""Converts JSON values to Arrow columns without loss; a value that does not fit the column's type is an error."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import functools
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lookupcache.formats.floats import read_floats
from lookupcache.formats.json_text import NOT_FINITE, json_text, shorten

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d(?::\d\d(?::\d\d(?:[.,](\d+))?)?)?)(Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)?)?", re.ASCII
)
_EXACT = decimal.Context(prec=100)
_MOST_DIGITS = 40


class MismatchError(ValueError):
    """A JSON ``value`` that is not a value of the column's type; the text shows it."""

    def __init__(self, value: Any) -> None:
        super().__init__(shorten(value))
        self.value = value


def json_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return values of a document as an array; raises `MismatchError` for a value that does not fit the type.

    | type | in JSON |
    |---|---|
    | TINYINT to BIGINT | a number without fraction, or its text |
    | FLOAT, DOUBLE | a number, its text, or NaN, Infinity, -Infinity, bare or as text |
    | DECIMAL | a number, or its text, that fits without rounding |
    | BOOLEAN | true, false |
    | STRING | text; an object or array becomes its JSON text |
    | BINARY | text in base64 |
    | DATE | text ``YYYY-MM-DD`` |
    | TIMESTAMP | text, ISO 8601, cut to microseconds as by Spark's CAST; without a zone it is UTC |
    | TIMESTAMP_NTZ | the same without a zone |
    | ARRAY, STRUCT, MAP | an array; an object; an object, its names the map's keys |

    >>> json_array(["2024-05-01", None], pa.date32()).to_pylist()
    [datetime.date(2024, 5, 1), None]
    """
    return array_maker(type_)(values)


def array_maker(type_: pa.DataType) -> Callable[[Sequence[Any]], pa.Array]:
    """Return what makes arrays of a type as `json_array` does, without looking at the type each time."""
    return functools.partial(_array, type_, _AS_THEY_ARE.get(type_, frozenset()), _reader(type_))


def _array(
    type_: pa.DataType, as_they_are: frozenset[type], read: Callable[[Any], Any], values: Sequence[Any]
) -> pa.Array:
    if as_they_are.issuperset(map(type, values)):
        try:
            return _floats(values, type_) if pa.types.is_floating(type_) else pa.array(values, type_)
        except (pa.ArrowException, ValueError, OverflowError):
            pass
    return pa.array([_read(read, value) for value in values], type_)


def _floats(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    texts = pa.array([None if value is None else str(value) for value in values], pa.string())
    return read_floats(texts, type_)


_NONE = type(None)
_AS_THEY_ARE: dict[pa.DataType, frozenset[type]] = {
    **{whole: frozenset[type]({int, _NONE}) for whole in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **dict.fromkeys((pa.float32(), pa.float64()), frozenset[type]({Decimal, int, float, _NONE})),
    pa.string(): frozenset[type]({str, _NONE}),
    pa.bool_(): frozenset[type]({bool, _NONE}),
}


def _read(read: Callable[[Any], Any], value: Any) -> Any:
    if value is None:
        return None
    try:
        return read(value)
    except MismatchError:
        raise
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise MismatchError(value) from error


@functools.cache
def _reader(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return what makes a Python value of a JSON value; it raises TypeError, ValueError or ArithmeticError."""
    if pa.types.is_list(type_):
        if pa.types.is_floating(type_.value_type):
            return functools.partial(_list_of_floats, array_maker(type_.value_type))
        return functools.partial(_list, _reader(type_.value_type))
    if pa.types.is_struct(type_):
        return functools.partial(_struct, {member.name: _reader(member.type) for member in type_})
    if pa.types.is_map(type_):
        key = _boolean_name if pa.types.is_boolean(type_.key_type) else _reader(type_.key_type)
        return functools.partial(_map, key, _reader(type_.item_type))
    if pa.types.is_integer(type_):
        return functools.partial(_integer, 2 ** (type_.bit_width - 1))
    if pa.types.is_floating(type_):
        return functools.partial(_floating, type_)
    if pa.types.is_decimal(type_):
        return functools.partial(_decimal, type_.scale, 10 ** (type_.precision - type_.scale))
    if pa.types.is_timestamp(type_):
        return _moment if type_.tz else _moment_without_zone
    return _READERS[type_]


def _expect(value: Any, *kinds: type) -> Any:
    """Return the value if it is of one of these classes; a bool, in Python, is an int too."""
    if type(value) not in kinds:
        raise TypeError
    return value


def _integer(limit: int, value: Any) -> int:
    number = _number(value)
    if isinstance(number, float) or number.adjusted() > _MOST_DIGITS:
        raise ValueError
    whole = int(number)
    if whole != number or not -limit <= whole < limit:
        raise ValueError
    return whole


def _decimal(scale: int, limit: int, value: Any) -> Decimal:
    number = _number(value)
    if isinstance(number, float):
        raise ValueError
    exact = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if exact != number or not -limit < exact < limit:
        raise ValueError
    return exact


def _floating(type_: pa.DataType, value: Any) -> float:
    number: float = _floats([_number(value)], type_)[0].as_py()
    return number


def _number(value: Any) -> Decimal | float:
    """Return a number, or a text's number; an infinity or NaN comes as a float."""
    if _expect(value, int, Decimal, float, str) in NOT_FINITE:
        return NOT_FINITE[value]
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise ValueError
    return value if isinstance(value, float) else Decimal(value)


def _text(value: Any) -> str:
    text = json_text(value) if isinstance(value, dict | list) else _expect(value, str)
    text.encode()
    return text


def _boolean(value: Any) -> bool:
    return _expect(value, bool)


def _boolean_name(value: str) -> bool:
    return {"true": True, "false": False}[value] if value in ("true", "false") else _expect(value, bool)


def _binary(value: Any) -> bytes:
    return base64.b64decode(_expect(value, str), validate=True)


def _date(value: Any) -> dt.date:
    if not _DATE.fullmatch(_expect(value, str)):
        raise ValueError
    return dt.date.fromisoformat(value)


def _moment(value: Any) -> dt.datetime:
    moment = _datetime(value)
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)


def _moment_without_zone(value: Any) -> dt.datetime:
    moment = _datetime(value)
    if moment.tzinfo is not None:
        raise ValueError
    return moment


def _datetime(value: Any) -> dt.datetime:
    match = _MOMENT.fullmatch(_expect(value, str))
    if match is None:
        raise ValueError
    day, time, fraction, zone = match.groups(default="")
    # The digits behind the sixth are cut off, not rounded, as Spark does: so no moment passes into the next second.
    return dt.datetime.fromisoformat(f"{day}T{time[:8] or '00'}{f'.{fraction[:6]:0<6}' if fraction else ''}{zone}")


def _list(read: Callable[[Any], Any], value: Any) -> list[Any]:
    return [_read(read, item) for item in _expect(value, list)]


def _list_of_floats(make: Callable[[Sequence[Any]], pa.Array], value: Any) -> list[float]:
    items: list[float] = make(_expect(value, list)).to_pylist()
    return items


def _struct(members: dict[str, Callable[[Any], Any]], value: Any) -> dict[str, Any]:
    _expect(value, dict)
    return {name: _read(read, value.get(name)) for name, read in members.items()}


def _map(key: Callable[[Any], Any], read: Callable[[Any], Any], value: Any) -> list[tuple[Any, Any]]:
    pairs = [(_read(key, name), _read(read, inner)) for name, inner in _expect(value, dict).items()]
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError  # Two names, such as "1" and "01", are one key.
    return pairs


_READERS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.string(): _text,
    pa.bool_(): _boolean,
    pa.binary(): _binary,
    pa.date32(): _date,
}
