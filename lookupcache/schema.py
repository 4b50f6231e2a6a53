"""A table's schema in three notations: DDL text, Arrow, and Spark's type names.

Arrow is the one the rest of the package uses; text is for people, plans and Spark.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from lookupcache.errors import SchemaError

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

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
    from lookupcache.ddl import read_columns  # Imports sqlglot, which a worker does not need.

    return check_names(pa.schema(read_columns(text)))


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


@functools.lru_cache(maxsize=512)
def parse_type(text: str) -> pa.DataType:
    """Read one type name, as Spark writes it, into an Arrow type.

    >>> parse_type("decimal(10,2)")
    Decimal128Type(decimal128(10, 2))
    """
    from lookupcache.ddl import read_type  # Imports sqlglot, which a worker does not need.

    return read_type(text)


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


def spark_type_name(type_: Any) -> str:
    """Return the name of a pyspark DataType as `type_name` writes it; its own text does not quote names in a struct.

    >>> from pyspark.sql import types as T
    >>> spark_type_name(T.StructType().add("x,y", T.ArrayType(T.LongType())))
    'struct<`x,y`:array<bigint>>'
    """
    if hasattr(type_, "fields"):
        return f"struct<{','.join(f'{quote(f.name)}:{spark_type_name(f.dataType)}' for f in type_.fields)}>"
    if hasattr(type_, "keyType"):
        return f"map<{spark_type_name(type_.keyType)},{spark_type_name(type_.valueType)}>"
    if hasattr(type_, "elementType"):
        return f"array<{spark_type_name(type_.elementType)}>"
    return str(type_.simpleString())


def shown_type(type_: pa.DataType) -> str:
    """Return Spark's name of an Arrow type for errors: in upper case, except for names in a struct.

    >>> shown_type(pa.struct([("Town", pa.list_(pa.string()))]))
    'STRUCT<`Town`:ARRAY<STRING>>'
    """
    return upper_but_names(type_name(type_))


def upper_but_names(text: str) -> str:
    """Return a type's name in upper case, with quoted text and the names of fields unchanged.

    >>> upper_but_names("enum('a','B')"), upper_but_names("struct<myId:int,`b`:array<string>>")
    ("ENUM('a','B')", 'STRUCT<myId:INT,`b`:ARRAY<STRING>>')
    """
    return re.sub(_PIECE, lambda found: found[0].upper() if found[1] else found[0], text)


_PIECE = r"`(?:[^`]|``)*`|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[^`'\"<,:]+:|([^`'\"<,:]+)|."


def to_ddl(schema: pa.Schema) -> str:
    """Write an Arrow schema as DDL text; the opposite of `parse_ddl`."""
    return ", ".join(f"{quote(f.name)} {type_name(f.type)}{'' if f.nullable else ' NOT NULL'}" for f in schema)


def nullable_fields(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Return the schema of some columns, all nullable and without metadata."""
    return pa.schema([(name, schema.field(name).type) for name in names])


def quote(name: str) -> str:
    """Quote an identifier as Spark SQL does.

    >>> quote("odd`name")
    '`odd``name`'
    """
    return "`" + name.replace("`", "``") + "`"


def quote_path(names: Iterable[str]) -> str:
    """Quote a name of several parts, such as that of a table in a schema.

    >>> quote_path(["db", "t"])
    '`db`.`t`'
    """
    return ".".join(map(quote, names))


def unquoted(name: str) -> str:
    """Return a name without the backquotes around it.

    >>> unquoted("`valid ``from`"), unquoted("id"), unquoted("`a`.`b`")
    ('valid `from', 'id', '`a`.`b`')
    """
    return name[1:-1].replace("``", "`") if re.fullmatch(r"`(?:[^`]|``)+`", name) else name


def column_names(text: str) -> list[str]:
    """Return the columns that an option names, separated by commas; a name may be in backquotes.

    >>> column_names("valid_from, `valid, to`")
    ['valid_from', 'valid, to']
    """
    return [unquoted(name.strip()) for name in re.split(r",(?=(?:[^`]*`[^`]*`)*[^`]*$)", text)]


def as_schema(schema: str | pa.Schema | Any) -> pa.Schema:
    """Accept DDL text, an Arrow schema or a Spark StructType; return Arrow with this module's types.

    >>> as_schema(pa.schema([("at", pa.timestamp("ms", "Europe/Paris"))])).types
    [TimestampType(timestamp[us, tz=UTC])]
    """
    if isinstance(schema, str):
        return parse_ddl(schema)
    if isinstance(schema, pa.StructType):
        schema = pa.schema(list(schema))
    if isinstance(schema, pa.Schema):
        return check_names(pa.schema([f.with_type(parse_type(type_name(f.type))) for f in schema]))
    if hasattr(schema, "fields"):
        return check_names(pa.schema([pa.field(f.name, _type_of(f), f.nullable) for f in schema.fields]))
    raise SchemaError(
        f"A schema is DDL text, a pyarrow.Schema or a StructType, not {type(schema).__name__}.",
        hint="Write it as text: 'id BIGINT, name STRING'.",
    )


def _type_of(field: Any) -> pa.DataType:
    """Return the type of a StructField; raises SchemaError with its name."""
    try:
        return _from_spark(field.dataType)
    except SchemaError as error:
        raise SchemaError(
            f"Column {field.name!r} is of type {field.dataType.simpleString()}, which is not supported.",
            hint=error.hint or "Cast it to STRING, which is compared by its bytes.",
        ) from None


def _from_spark(type_: Any) -> pa.DataType:
    """Read a pyspark DataType; its own text does not quote the names in a struct."""
    if hasattr(type_, "fields"):
        return pa.struct([(member.name, _from_spark(member.dataType)) for member in type_.fields])
    if hasattr(type_, "keyType"):
        return pa.map_(_from_spark(type_.keyType), _from_spark(type_.valueType))
    if hasattr(type_, "elementType"):
        return pa.list_(_from_spark(type_.elementType))
    return parse_type(type_.simpleString())
