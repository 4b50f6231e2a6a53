"""A table's schema in three notations: DDL text, Arrow, and Spark's type names.

Arrow is the one the rest of the package uses; text is for people, plans and Spark.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from lookupcache.errors import SchemaError

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

_TYPES: dict[Any, pa.DataType] = {
    exp.DataType.Type.BOOLEAN: pa.bool_(),
    exp.DataType.Type.TINYINT: pa.int8(),
    exp.DataType.Type.SMALLINT: pa.int16(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.FLOAT: pa.float32(),
    exp.DataType.Type.DOUBLE: pa.float64(),
    exp.DataType.Type.TEXT: pa.string(),
    exp.DataType.Type.VARCHAR: pa.string(),
    exp.DataType.Type.BINARY: pa.binary(),
    exp.DataType.Type.VARBINARY: pa.binary(),
    exp.DataType.Type.DATE: pa.date32(),
    exp.DataType.Type.TIMESTAMP: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPTZ: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPLTZ: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}

_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
}


def parse_ddl(text: str) -> pa.Schema:
    """Read ``"id BIGINT, name STRING"`` into an Arrow schema.

    A column that may not be null is written with ``NOT NULL``. Raises SchemaError for text that is not a list of
    columns, for a type without an Arrow counterpart, and for a repeated column.

    >>> parse_ddl("id BIGINT NOT NULL, tags ARRAY<STRING>").types
    [DataType(int64), ListType(list<item: string>)]
    """
    try:
        tree = sqlglot.parse_one(f"CREATE TABLE t ({text})", read="spark")
    except SqlglotError as error:
        raise SchemaError(
            f"The schema {text!r} is not a list of columns.",
            hint="Write it as in CREATE TABLE: 'id BIGINT, name STRING'.",
        ) from error
    table = tree.find(exp.Schema)
    if table is None or not table.expressions:
        raise SchemaError("The schema has no columns.", hint="Write it as in CREATE TABLE: 'id BIGINT, name STRING'.")
    return check_names(pa.schema([_field(definition) for definition in table.expressions]))


def check_names(schema: pa.Schema) -> pa.Schema:
    """Return the schema, or raise SchemaError if two columns have names that are equal for Spark."""
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:
            raise SchemaError(
                f"The schema has two columns named {seen[name.lower()]!r} and {name!r}.",
                hint="Give each column a different name; names are not case-sensitive.",
            )
        seen[name.lower()] = name
    return schema


def parse_type(text: str) -> pa.DataType:
    """Read one type name, as Spark writes it, into an Arrow type.

    >>> parse_type("decimal(10,2)")
    Decimal128Type(decimal128(10, 2))
    """
    try:
        return _arrow(exp.DataType.build(text, dialect="spark"))
    except SchemaError:
        raise
    except (SqlglotError, ValueError) as error:
        if isinstance(error.__context__, RecursionError):  # Called near the recursion limit: the type may be valid.
            raise error.__context__ from None
        raise SchemaError(f"{text!r} is not a type.") from error


def type_name(type_: pa.DataType) -> str:
    """Return Spark's name of an Arrow type; the opposite of `parse_type`.

    >>> type_name(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]))
    'struct<`a`:int,`b`:array<string>>'
    """
    if type_ in _NAMES:
        return _NAMES[type_]
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    if pa.types.is_large_string(type_):
        return "string"
    if pa.types.is_large_binary(type_):
        return "binary"
    if pa.types.is_map(type_):
        return f"map<{type_name(type_.key_type)},{type_name(type_.item_type)}>"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"array<{type_name(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{quote(f.name)}:{type_name(f.type)}' for f in type_)}>"
    raise SchemaError(f"Spark has no type for Arrow's {type_}.", hint="Cast the column before it reaches the join.")


def shown_type(type_: pa.DataType) -> str:
    """Return Spark's name of an Arrow type for errors: in upper case, except for names in a struct.

    >>> shown_type(pa.struct([("Town", pa.list_(pa.string()))]))
    'STRUCT<`Town`:ARRAY<STRING>>'
    """
    return upper_but_names(type_name(type_))


def upper_but_names(text: str) -> str:
    """Return a type's name in upper case, with quoted text unchanged.

    >>> upper_but_names("enum('a','B')")
    "ENUM('a','B')"
    """
    return re.sub(_UNQUOTED, lambda found: found[0].upper() if found[0][0] not in "`'\"" else found[0], text)


_UNQUOTED = r"`(?:[^`]|``)*`|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[^`'\"]+|."


def to_ddl(schema: pa.Schema) -> str:
    """Write an Arrow schema as DDL text; the opposite of `parse_ddl`."""
    return ", ".join(f"{quote(f.name)} {type_name(f.type)}{'' if f.nullable else ' NOT NULL'}" for f in schema)


def quote(name: str) -> str:
    """Quote an identifier as Spark SQL does.

    >>> quote("odd`name")
    '`odd``name`'
    """
    return "`" + name.replace("`", "``") + "`"


def as_schema(schema: str | pa.Schema | Any) -> pa.Schema:
    """Accept DDL text, an Arrow schema or a Spark StructType; return Arrow with this module's types.

    >>> as_schema(pa.schema([("at", pa.timestamp("ms", "Europe/Paris"))])).types
    [TimestampType(timestamp[us, tz=UTC])]
    """
    if isinstance(schema, str):
        return parse_ddl(schema)
    if isinstance(schema, pa.Schema):
        return check_names(pa.schema([f.with_type(parse_type(type_name(f.type))) for f in schema]))
    if hasattr(schema, "fields"):
        return check_names(pa.schema([pa.field(f.name, _from_spark(f.dataType), f.nullable) for f in schema.fields]))
    raise SchemaError(
        f"A schema is DDL text, a pyarrow.Schema or a StructType, not {type(schema).__name__}.",
        hint="Write it as text: 'id BIGINT, name STRING'.",
    )


def _field(definition: exp.Expression) -> pa.Field:
    if not isinstance(definition, exp.ColumnDef) or definition.args.get("kind") is None:
        raise SchemaError(
            f"{definition.sql(dialect='spark')!r} is not a column with a type.",
            hint="Write each column as NAME TYPE.",
        )
    kinds = {type(constraint.kind) for constraint in definition.constraints}
    refused = kinds - {exp.NotNullColumnConstraint, exp.CommentColumnConstraint}
    if refused:
        raise SchemaError(f"Column {definition.name!r}: only NOT NULL and COMMENT may follow the type.")
    return pa.field(definition.name, _arrow(definition.args["kind"]), exp.NotNullColumnConstraint not in kinds)


def _from_spark(type_: Any) -> pa.DataType:
    """Read a pyspark DataType; its own text does not quote the names in a struct."""
    if hasattr(type_, "fields"):
        return pa.struct([(member.name, _from_spark(member.dataType)) for member in type_.fields])
    if hasattr(type_, "keyType"):
        return pa.map_(_from_spark(type_.keyType), _from_spark(type_.valueType))
    if hasattr(type_, "elementType"):
        return pa.list_(_from_spark(type_.elementType))
    return parse_type(type_.simpleString())


def _arrow(kind: exp.DataType) -> pa.DataType:
    this, inner = kind.this, kind.expressions
    if this in _TYPES:
        return _TYPES[this]
    if this == exp.DataType.Type.DECIMAL:
        return _decimal(*(int(parameter.name) for parameter in inner))
    if this == exp.DataType.Type.ARRAY and inner:
        return pa.list_(_arrow(inner[0]))
    if this == exp.DataType.Type.MAP and len(inner) == 2:
        return pa.map_(_arrow(inner[0]), _arrow(inner[1]))
    if this == exp.DataType.Type.STRUCT and inner:
        return pa.struct([_field(member).with_nullable(True) for member in inner])
    raise SchemaError(
        f"Type {kind.sql(dialect='spark')} is not supported.",
        hint="Known types: BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, "
        "BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, ARRAY<…>, MAP<…>, STRUCT<…>.",
    )


def _decimal(precision: int = 10, scale: int = 0) -> pa.DataType:
    if not 0 <= scale <= precision <= 38 or not precision:
        raise SchemaError(
            f"Type DECIMAL({precision},{scale}) is not supported.",
            hint="The precision is from 1 to 38, and the scale from 0 to the precision.",
        )
    return pa.decimal128(precision, scale)
