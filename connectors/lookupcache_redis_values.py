"""Values of Redis as Arrow columns: texts of every Spark type, and JSON.

`read_text` reads fields of hashes and plain strings, `read_json` members of JSON documents. What does not fit raises
one of `MISFITS`, whose text may hold the value and is never shown.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MISFITS = (TypeError, ValueError, ArithmeticError, RecursionError, pa.ArrowException)
"""What reading a value that does not fit its column raises."""

_ZONE = r"(Z|[+-]\d\d(:?\d\d)?)$"
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def read_text(values: Sequence[bytes | None], type_: pa.DataType) -> pa.Array:
    """Return texts as values of a type, None as null; raises one of `MISFITS`.

    Numbers are decimal, booleans ``true``, ``false``, ``1`` or ``0``, dates and moments as in ISO 8601, a moment
    without a zone being UTC; strings are UTF-8, binaries any bytes, and arrays, structs and maps JSON.

    >>> read_text([b"2013-01-01T05:00:00-05:00", None], pa.timestamp("us", "UTC")).cast(pa.string()).to_pylist()
    ['2013-01-01 10:00:00.000000Z', None]
    """
    raw = pa.array(values, pa.binary())
    if pa.types.is_binary(type_):
        return raw
    if pa.types.is_nested(type_):
        parse = _or_none(json_parser(type_))
        return read_json([parse(value) for value in values], type_)
    texts = raw.cast(pa.string())
    if pa.types.is_integer(type_) and pc.any(pc.match_substring(texts, "0x", ignore_case=True)).as_py():
        raise ValueError("hexadecimal")
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return _read_moments(texts, type_)
    if pa.types.is_floating(type_):
        return _rounded(texts.cast(pa.float64()), type_)
    return texts.cast(type_)


def json_parser(type_: pa.DataType) -> Callable[[bytes], Any]:
    """Return what parses a JSON text for a type, with exact fractions where there are decimals in it."""
    decode = json.JSONDecoder(parse_float=Decimal if _holds_decimals(type_) else None).decode
    return lambda text: decode(text.decode())


def read_json(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return parsed JSON as values of a type, None as null; raises one of `MISFITS`.

    Dates, moments and NaN are strings as in `read_text`, binaries base64, decimals numbers or strings, structs and
    maps objects; of a struct, a member that is not there is null.

    >>> read_json([{"a": [1, 2]}, {}], pa.struct([("a", pa.list_(pa.int32()))])).to_pylist()
    [{'a': [1, 2]}, {'a': None}]
    """
    if set(map(type, values)) <= _AS_THEY_ARE.get(type_, frozenset()):
        return pa.array(values, type_)
    convert = _converter(type_)
    return pa.array([None if value is None else convert(value) for value in values], type_)


def _read_moments(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    zoned = pc.match_substring_regex(pc.utf8_slice_codeunits(texts, 10), _ZONE)
    if not pc.any(zoned).as_py():
        return texts.cast(pa.timestamp("us")).cast(type_)
    return pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", "")).cast(type_)


def _rounded(doubles: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return doubles as the type's floats; one beyond their range is no such value."""
    floats = doubles.cast(type_)
    if pc.any(pc.and_(pc.is_finite(doubles), pc.is_inf(floats))).as_py():
        raise OverflowError("beyond the range of a FLOAT")
    return floats


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────

_NONE = type(None)
_AS_THEY_ARE: dict[pa.DataType, frozenset[type]] = {
    pa.bool_(): frozenset({bool, _NONE}),
    pa.int8(): frozenset({int, _NONE}),
    pa.int16(): frozenset({int, _NONE}),
    pa.int32(): frozenset({int, _NONE}),
    pa.int64(): frozenset({int, _NONE}),
    pa.float64(): frozenset({float, _NONE}),
    pa.string(): frozenset({str, _NONE}),
}


def _holds_decimals(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return _holds_decimals(type_.key_type) or _holds_decimals(type_.item_type)
    if pa.types.is_nested(type_):
        return any(_holds_decimals(type_.field(number).type) for number in range(type_.num_fields))
    return pa.types.is_decimal(type_)


@functools.cache
def _converter(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return what makes of a JSON value, not null, one that Arrow takes for the type."""
    if pa.types.is_map(type_):
        return functools.partial(_map, type_.key_type, _or_none(_converter(type_.item_type)))
    if pa.types.is_struct(type_):
        return functools.partial(_struct, {field.name: _or_none(_converter(field.type)) for field in type_})
    if pa.types.is_list(type_):
        return functools.partial(_list, _or_none(_converter(type_.value_type)))
    for is_type, convert in _CONVERTERS.items():
        if is_type(type_):
            return convert
    return _timestamp if type_.tz else _timestamp_ntz


def _or_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _list(item: Callable[[Any], Any], value: Any) -> list[Any]:
    return [item(one) for one in _only(list, value)]


def _struct(members: dict[str, Callable[[Any], Any]], value: Any) -> dict[str, Any]:
    given = _only(dict, value)
    return {name: convert(given.get(name)) for name, convert in members.items()}


def _map(key_type: pa.DataType, item: Callable[[Any], Any], value: Any) -> list[tuple[Any, Any]]:
    given = _only(dict, value)
    keys = read_text([key.encode() for key in given], key_type).to_pylist()
    return list(zip(keys, map(item, given.values()), strict=True))


def _only(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"not a {kind.__name__}")
    return value


def _integer(value: Any) -> int:
    whole = int(value) if isinstance(value, float | Decimal) else _only(int, value)
    if whole != value:
        raise ValueError("not whole")
    return whole


def _float(value: Any) -> float:
    if value in _NOT_FINITE and isinstance(value, str):
        return float(value)
    return float(value if isinstance(value, float | Decimal) else _only(int, value))


def _float32(value: Any) -> float:
    return _rounded(pa.array([_float(value)]), pa.float32())[0].as_py()


def _decimal(value: Any) -> Decimal:
    number = Decimal(value if isinstance(value, Decimal | str) else _only(int, value))
    return number if number.is_finite() else _only(int, value)


def _date(value: Any) -> dt.date:
    return dt.date.fromisoformat(_only(str, value))


def _timestamp(value: Any) -> dt.datetime:
    moment = dt.datetime.fromisoformat(_only(str, value))
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)


def _timestamp_ntz(value: Any) -> dt.datetime:
    moment = dt.datetime.fromisoformat(_only(str, value))
    if moment.tzinfo is not None:
        raise ValueError("a moment with a zone")
    return moment


def _binary(value: Any) -> bytes:
    return base64.b64decode(_only(str, value), validate=True)


_CONVERTERS: dict[Callable[[pa.DataType], bool], Callable[[Any], Any]] = {
    pa.types.is_boolean: functools.partial(_only, bool),
    pa.types.is_integer: _integer,
    pa.types.is_float32: _float32,
    pa.types.is_float64: _float,
    pa.types.is_decimal: _decimal,
    pa.types.is_string: functools.partial(_only, str),
    pa.types.is_binary: _binary,
    pa.types.is_date32: _date,
}
