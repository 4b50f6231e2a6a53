"""Attributes of DynamoDB: keys as it stores them, and its items as Arrow."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from lookupcache.errors import SchemaError, SourceError
from lookupcache.formats.json_values import MismatchError, json_array
from lookupcache.schema import shown_type

Attribute: TypeAlias = Mapping[str, Any]
"""A value with its type, as in ``{"N": "7"}``."""

_LONGEST = (2_048, 1_024)
"""The maximum bytes of a partition key and of a sort key."""


def check_key(field: pa.Field) -> None:
    """Raise SchemaError for a column of a type that no key has, or of which one value has several spellings."""
    if not any(is_it(field.type) for is_it in _KEYS):
        raise SchemaError(
            f"Column {field.name!r} is {shown_type(field.type)}, which cannot be a key of DynamoDB.",
            hint="Keys are integers, DECIMAL, STRING, BINARY and DATE; declare it as it is stored.",
        )


def key_of(values: Sequence[Any], fields: Sequence[pa.Field]) -> dict[str, Attribute] | None:
    """Return a primary key; None for one that DynamoDB refuses, as for an empty text: no item has it.

    >>> key_of([7, "a"], [pa.field("id", pa.int64()), pa.field("part", pa.string())])
    {'id': {'N': '7'}, 'part': {'S': 'a'}}
    """
    key = {field.name: _key_attribute(value, field.type) for value, field in zip(values, fields, strict=True)}
    for attribute, longest in zip(key.values(), _LONGEST, strict=False):
        [(kind, value)] = attribute.items()
        if kind != "N" and not 0 < len(value.encode() if kind == "S" else value) <= longest:
            return None
    return key


def _key_attribute(value: Any, type_: pa.DataType) -> Attribute:
    return next(make(value) for is_it, make in _KEYS.items() if is_it(type_))


_KEYS: Mapping[Callable[[pa.DataType], bool], Callable[[Any], Attribute]] = {
    pa.types.is_integer: lambda value: {"N": str(value)},
    pa.types.is_decimal: lambda value: {"N": format(value, "f")},
    pa.types.is_string: lambda value: {"S": value},
    pa.types.is_binary: lambda value: {"B": value},
    pa.types.is_date32: lambda value: {"S": value.isoformat()},
}


def table_of(items: Sequence[Mapping[str, Attribute]], fields: Sequence[pa.Field], table: str) -> pa.Table:
    """Return items as rows; an attribute that an item lacks is null.

    Raises SourceError for a value that does not fit, which it does not show.
    """
    columns = [_column([item.get(field.name) for item in items], field, table) for field in fields]
    return pa.table(columns, names=[field.name for field in fields])


def _column(attributes: Sequence[Attribute | None], field: pa.Field, table: str) -> pa.Array:
    if pa.types.is_binary(field.type):
        # Not by way of JSON, where the text "YQ==" is a binary too.
        misfit = next((one for one in attributes if one is not None and not one.keys() <= {"B", "NULL"}), None)
        if misfit is None:
            return pa.array([one and one.get("B") for one in attributes], pa.binary())
        raise _misfit(misfit, field, table)
    try:
        return json_array([None if one is None else _json(one) for one in attributes], field.type)
    except MismatchError:
        raise _misfit(next(filter(lambda one: _is_misfit(one, field), attributes)), field, table) from None


def _is_misfit(attribute: Attribute | None, field: pa.Field) -> bool:
    try:
        json_array([None if attribute is None else _json(attribute)], field.type)
    except MismatchError:
        return True
    return False


def _misfit(attribute: Attribute | None, field: pa.Field, table: str) -> SourceError:
    [kind] = attribute or {"NULL": True}
    return SourceError(
        f"Table {table!r}, column {field.name!r}: DynamoDB has a value of type {kind} that is no "
        f"{shown_type(field.type)}.",
        hint="Give the column another type in the table's schema.",
    )


def _json(attribute: Attribute) -> Any:
    """Return a value as `json_array` reads it."""
    [(kind, value)] = attribute.items()
    return _AS_JSON[kind](value)


def _base64(value: Any) -> str:
    return base64.b64encode(bytes(value)).decode()


_AS_JSON: Mapping[str, Callable[[Any], Any]] = {
    "S": lambda value: value,
    "N": Decimal,
    "B": _base64,
    "BOOL": lambda value: value,
    "NULL": lambda _: None,
    "L": lambda value: list(map(_json, value)),
    "M": lambda value: {name: _json(member) for name, member in value.items()},
    "SS": sorted,
    "NS": lambda value: sorted(map(Decimal, value)),
    "BS": lambda value: list(map(_base64, sorted(map(bytes, value)))),
}
