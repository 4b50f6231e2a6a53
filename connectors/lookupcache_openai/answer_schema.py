"""JSON Schemas of columns, which the service must follow, and the check that it has.

Arrow schema ─► `object_schema` ─► request; response ─► `mismatch`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lookupcache.errors import SchemaError
from lookupcache.formats.json_text import shorten
from lookupcache.schema import shown_type

JsonSchema = Mapping[str, Any]

_NOT_ZONED = "Date and time without a time zone, as in 2024-05-01T12:00:00."


def object_schema(columns: pa.Schema) -> dict[str, Any]:
    """Return the schema of an object with these columns; raises SchemaError for a type without a counterpart.

    >>> object_schema(pa.schema([("score", pa.int32()), pa.field("label", pa.string(), nullable=False)]))["properties"]
    {'score': {'type': ['integer', 'null']}, 'label': {'type': 'string'}}
    """
    return _object({field.name: _field_schema(field, field.name) for field in columns})


def list_schema(rows: JsonSchema) -> dict[str, Any]:
    """Return the schema of an object with a list of rows, as the document itself must be an object."""
    return _object({"rows": {"type": "array", "items": rows}})


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    # Services that enforce a schema require both: all properties, and no others.
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _field_schema(field: pa.Field, column: str) -> dict[str, Any]:
    schema = _type_schema(field.type, column)
    return schema | {"type": [schema["type"], "null"]} if field.nullable else schema


def _type_schema(type_: pa.DataType, column: str) -> dict[str, Any]:
    if pa.types.is_list(type_):
        return {"type": "array", "items": _field_schema(type_.value_field, column)}
    if pa.types.is_struct(type_):
        return _object({member.name: _field_schema(member, column) for member in type_})
    if pa.types.is_decimal(type_) or pa.types.is_floating(type_):
        return {"type": "number"}
    if pa.types.is_timestamp(type_):
        return {"type": "string", "format": "date-time"} if type_.tz else {"type": "string", "description": _NOT_ZONED}
    for is_type, schema in _SCALARS:
        if is_type(type_):
            return dict(schema)
    raise SchemaError(
        f"Column {column!r}: a model cannot answer with {shown_type(type_)}.",
        hint="Use numbers, STRING, BOOLEAN, DATE, TIMESTAMP, or ARRAY and STRUCT of them.",
    )


_SCALARS = (
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_integer, {"type": "integer"}),
    (pa.types.is_string, {"type": "string"}),
    (pa.types.is_date, {"type": "string", "format": "date"}),
)


def mismatch(value: Any, schema: JsonSchema, path: str = "$") -> str | None:
    """Return how a value of `parse_json` differs from its schema, or None; ``format`` is checked when it is converted.

    >>> mismatch({"n": "7"}, object_schema(pa.schema([("n", pa.int32())])))
    '$.n is "7", not integer or null'
    """
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_IS[kind](value) for kind in kinds):
        return f"{path} is {shorten(value)}, not {' or '.join(kinds)}"
    if isinstance(value, list):
        found = (mismatch(item, schema["items"], f"{path}[{number}]") for number, item in enumerate(value))
        return next(filter(None, found), None)
    return _member_mismatch(value, schema, path) if isinstance(value, dict) else None


def _member_mismatch(value: Mapping[str, Any], schema: JsonSchema, path: str) -> str | None:
    members = schema["properties"]
    for name in members:
        if name not in value:
            return f"{path} has no {name!r}"
    for name, inner in value.items():
        if name not in members:
            return f"{path} has {name!r}, which the schema does not have"
        if found := mismatch(inner, members[name], f"{path}.{name}"):
            return found
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or value == value.to_integral_value())


_IS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
