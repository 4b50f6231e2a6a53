"""Schemas as DDL text, as Arrow and as Spark's types."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from needs import needs_spark, needs_sqlglot
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import from_arrow_type

from lookupcache.errors import SchemaError
from lookupcache.planner.naming import struct_fields
from lookupcache.schema import (
    TIMESTAMP,
    TIMESTAMP_NTZ,
    as_schema,
    parse_ddl,
    parse_type,
    spark_type_name,
    to_ddl,
    type_name,
)

has_collations = needs_spark("4.0", "texts have collations since Spark 4.0")

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
PLAIN = st.sampled_from(
    [
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.date32(), TIMESTAMP, TIMESTAMP_NTZ),
    ]
)
DECIMALS = st.integers(1, 38).flatmap(lambda p: st.builds(pa.decimal128, st.just(p), st.integers(0, p)))
TYPES = st.recursive(
    PLAIN | DECIMALS,
    lambda inner: (
        st.builds(pa.list_, inner)
        | st.builds(pa.map_, inner, inner)
        | st.lists(st.tuples(NAMES, inner), min_size=1, max_size=3).map(pa.struct)
    ),
    max_leaves=5,
)
SCHEMAS = st.lists(
    st.builds(pa.field, NAMES, TYPES, st.booleans()), min_size=1, max_size=5, unique_by=lambda field: field.name.lower()
).map(pa.schema)


@pytest.mark.extended
@given(SCHEMAS)
def test_a_schema_goes_through_text_unchanged(schema):
    assert parse_ddl(to_ddl(schema)) == schema
    assert as_schema(schema) == schema


@given(TYPES)
def test_a_type_goes_through_its_name_unchanged(type_):
    assert parse_type(type_name(type_)) == type_
    assert spark_type_name(from_arrow_type(type_, prefer_timestamp_ntz=True)) == type_name(type_)
    if pa.types.is_struct(type_):
        assert struct_fields(type_name(pa.list_(type_))) == [field.name for field in type_]


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("LONG", pa.int64()),
        ("INTEGER", pa.int32()),
        ("SMALLINT", pa.int16()),
        ("BYTE", pa.int8()),
        ("REAL", pa.float32()),
        ("VARCHAR(20)", pa.string()),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("NUMERIC(3)", pa.decimal128(3, 0)),
        ("TIMESTAMP", TIMESTAMP),
        ("TIMESTAMP_LTZ", TIMESTAMP),
        ("TIMESTAMP_NTZ", TIMESTAMP_NTZ),
        ("STRUCT<`a b`: INT NOT NULL>", pa.struct([("a b", pa.int32())])),
    ],
)
def test_the_types_as_people_write_them(text, type_):
    assert parse_ddl(f"c {text}") == pa.schema([("c", type_)])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no columns"),
        ("id", "'id' is not a column with a type"),
        ("id BIGINT, PRIMARY KEY (id)", "PRIMARY KEY"),
        ("id BIGINT PRIMARY KEY", "'id': only NOT NULL"),
        ("id BIGINT); DROP TABLE t", "in the schema is not a column with a type"),
        ("id INTERVAL DAY", "INTERVAL DAY is not supported"),
        ("id CHAR(3)", r"CHAR\(3\) is not supported"),
        ("id DECIMAL(39,1)", r"DECIMAL\(39,1\)"),
        ("id DECIMAL(2,3)", r"DECIMAL\(2,3\)"),
        ("id DECIMAL(0)", r"DECIMAL\(0,0\)"),
        ("id INT, Id INT", "'id' and 'Id'"),
    ],
)
def test_text_that_is_not_a_schema(text, named):
    with pytest.raises(SchemaError, match=named):
        parse_ddl(text)


def test_types_that_spark_does_not_have():
    for type_ in (pa.uint8(), pa.null(), pa.time32("s"), pa.decimal256(50, 2)):
        with pytest.raises(SchemaError):
            as_schema(pa.schema([("c", type_)]))
    with pytest.raises(SchemaError, match=r"INTERVAL.* is not supported"):
        parse_type("interval day to second")
    with pytest.raises(SchemaError, match="'nonsense' is not a type"):
        parse_type("nonsense")


def test_arrow_types_become_those_of_this_package():
    given_ = pa.schema(
        [("at", pa.timestamp("ns", "Europe/Paris")), ("s", pa.large_string()), ("l", pa.large_list(pa.int8()))]
    )
    assert as_schema(given_).types == [TIMESTAMP, pa.string(), pa.list_(pa.int8())]


def test_a_struct_type_of_spark():
    inner = spark_types.StructType([spark_types.StructField("odd `name", spark_types.DecimalType(4, 2))])
    members = {"s": inner, "l": spark_types.ArrayType(inner), "m": spark_types.MapType(spark_types.StringType(), inner)}
    schema = spark_types.StructType([spark_types.StructField(name, type_, False) for name, type_ in members.items()])
    struct = pa.struct([("odd `name", pa.decimal128(4, 2))])
    assert as_schema(schema).types == [struct, pa.list_(struct), pa.map_(pa.string(), struct)]
    assert not any(field.nullable for field in as_schema(schema))


@pytest.mark.parametrize("name", ["gap", pytest.param("name", marks=has_collations)])
def test_a_column_of_spark_with_another_type_is_named(name):
    type_ = spark_types.DayTimeIntervalType() if name == "gap" else spark_types.StringType("UTF8_LCASE")
    with pytest.raises(SchemaError, match=rf"Column '{name}' is of type {type_.simpleString()}(.|\n)*Hint: "):
        as_schema(spark_types.StructType([spark_types.StructField(name, type_)]))


def test_values_that_are_not_a_schema():
    with pytest.raises(SchemaError, match="not dict"):
        as_schema({"id": "BIGINT"})


@pytest.mark.parametrize(
    "text",
    ["id INT) USING csv --", "a INT) AS SELECT (1", "id INT) LIKE (x", "a IN INT", "a DECIMAL(x)",
     "a DECIMAL(\u0668,1)",
     ",a\x97{id1e..999}", "id INT; DROP TABLE x"],
)  # fmt: skip
def test_text_that_is_more_or_less_than_a_list_of_columns(text):
    with pytest.raises(SchemaError):
        parse_ddl(text)


def test_a_collated_text_is_no_type_of_ours():
    with pytest.raises(SchemaError, match="string collate UTF8_LCASE is not supported"):
        parse_type("string collate UTF8_LCASE")


@pytest.mark.parametrize("name", [
    "current_user", "current_date", "current_timestamp", "session_user", "user", "true", "FALSE", "null", "any", "case",
    "comment", "set", "interval", "date",
])  # fmt: skip
def test_a_column_may_have_the_name_of_a_value(name: str) -> None:
    assert parse_ddl(f"{name} INT").names == [name]
    assert parse_ddl(f"a INT NOT NULL, {name} STRING COMMENT 'x', s STRUCT<{name}: INT>").names == ["a", name, "s"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a INT, k INTT, b INT", r"'k INTT' in the schema is not a column with a type(?s:.*)Known types: BOOLEAN"),
        ("m MAP<STRING, INT>, k VOID", "'k VOID' in the schema"),
        ("k INT v", "'k INT v' in the schema"),
        ("k INT,, v INT", "a comma without a column before it"),
        pytest.param(
            "a.b INT",
            "'a.b' is no name of a column(?s:.*)backticks",
            marks=needs_sqlglot("30.27", "sqlglot reads a column with a dot in its name since 30.27"),
        ),
        ("@x INT", "'@x' is no name of a column"),
        ("`` INT", "is no name of a column"),
        ("a INT, k UUID", "Column 'k': Type UUID is not supported(?s:.*)Known types: BOOLEAN"),
        ("k ARRAY<DATETIME>", "Column 'k': Type DATETIME is not supported"),
        ("k INT NULL NOT NULL", "Column 'k' is both NULL and NOT NULL"),
        ("k TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP WITHOUT TIME ZONE is not supported(?s:.*)TIMESTAMP_NTZ"),
        (", k INT", "a comma without a column before it"),
        ("k 'INT", "is not a list of columns"),
    ],
)
def test_a_column_that_cannot_be_read_is_named(text, said):
    with pytest.raises(SchemaError, match=said):
        parse_ddl(text)


def test_a_column_may_say_that_it_is_nullable():
    schema = parse_ddl("a INT NULL, b STRING NULL COMMENT 'x', c INT NOT NULL, d INT")
    assert [field.nullable for field in schema] == [True, True, False, True]


def test_words_of_a_name_or_comment_are_no_type():
    schema = parse_ddl("`TIMESTAMP WITHOUT TIME ZONE` INT COMMENT 'TIMESTAMP WITHOUT TIME ZONE'")
    assert schema.names == ["TIMESTAMP WITHOUT TIME ZONE"]


def test_commas_in_names_comments_and_types_separate_no_columns():
    schema = parse_ddl("`a,,b` INT COMMENT ',,' /* , , */, d DECIMAL(4,2), m MAP<STRING,ARRAY<ARRAY<INT>>>, c INT,")
    assert schema.names == ["a,,b", "d", "m", "c"]


@pytest.mark.parametrize("comment", ["-- c", "-- it's (", "/* c */", "-- c\n", "-- c, d"])
def test_a_comment_may_end_a_schema(comment):
    assert parse_ddl(f"a INT {comment}\n, b STRING {comment}").names == ["a", "b"]
