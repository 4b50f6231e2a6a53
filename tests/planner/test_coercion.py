"""A key is right where it is null or equal exactly as Spark's own comparison says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest

from lookupcache.planner.coercion import common_type, is_exact, is_key_type, key_sql, key_type, mismatch

VALUES = {
    "boolean": "true false NULL",
    "tinyint": "0 1 -1 127 -128 10 NULL",
    "smallint": "0 1 -1 127 128 32767 10 NULL",
    "int": "0 1 -1 127 16777217 2147483647 -2147483648 NULL",
    "bigint": "0 1 -1 2147483648 9007199254740993 9223372036854775807 -9223372036854775808 NULL",
    "float": "0 -0.0 1 0.1 NaN Infinity 16777216 1.5 NULL",
    "double": "0 -0.0 1 0.1 NaN -Infinity 16777217 1.5 1e308 9007199254740992 NULL",
    "decimal(5,2)": "0 1 1.5 -1.5 0.1 999.99 127 NULL",
    "decimal(20,4)": "0 1 1.5 -1.5 0.1 0.1001 9007199254740993 9999999999999999 NULL",
    "decimal(38,30)": "0 1 1.5 0.1 12345678 NULL",
    "string": "0 1 a A NULL",
    "binary": "a A NULL",
    "date": "2011-12-30 2011-12-31 2020-03-08 1970-01-01 0001-01-01 NULL",
    "timestamp": "2011-12-31T00:00 2020-03-08T02:30 2020-03-08T03:30 2020-03-08T00:00 1970-01-01T00:00:00.000001 NULL",
    "timestamp_ntz": "2011-12-30T00:00 2011-12-31T00:00 2020-03-08T02:30 2020-03-08T03:30 2020-11-01T01:30 NULL",
}
NUMBERS = ["tinyint", "smallint", "int", "bigint"]
ZONES = ["UTC", "America/New_York", "Pacific/Apia"]


@contextmanager
def settings(spark: Any, **values: str) -> Iterator[None]:
    """Set some of the session's settings for a while; two underscores stand for a dot."""
    before = {name: spark.conf.get(name.replace("__", ".")) for name in values}
    for name, value in values.items():
        spark.conf.set(name.replace("__", "."), value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name.replace("__", "."), value)


def rows(spark: Any, side: str) -> Any:
    """Return a table whose column n holds nasty values of the n-th type."""
    longest = max(len(text.split()) for text in VALUES.values())
    table = []
    for number in range(longest):
        cells = [text.split()[number] if number < len(text.split()) else "NULL" for text in VALUES.values()]
        table.append("(" + ", ".join("NULL" if cell == "NULL" else f"'{cell}'" for cell in cells) + ")")
    names = [f"{side}{number}" for number in range(len(VALUES))]
    casts = [f"CAST({name} AS {type_}) AS {name}" for name, type_ in zip(names, VALUES, strict=True)]
    return spark.sql(f"SELECT {', '.join(casts)} FROM VALUES {', '.join(table)} AS t({', '.join(names)})")


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.parametrize("zone", ZONES)
def test_a_key_finds_what_spark_finds(spark: Any, zone: str, ansi: bool) -> None:
    types = list(VALUES)
    allowed = [
        (a, b, common)
        for a, b in product(range(len(types)), repeat=2)
        if (common := key_type(types[a], types[b], zone=zone, ansi=ansi))
    ]
    with settings(spark, spark__sql__session__timeZone=zone, spark__sql__ansi__enabled=str(ansi).lower()):
        both = rows(spark, "l").crossJoin(rows(spark, "r"))
        theirs = [f"coalesce(l{a} = r{b}, false)" for a, b, _ in allowed]
        ours = [f"coalesce(({key_sql(f'l{a}', types[a], types[b], c)}) = r{b}, false)" for a, b, c in allowed]
        keyed = [key_sql(f"l{a}", types[a], types[b], c) for a, b, c in allowed]
        assert [f.dataType.simpleString() for f in both.selectExpr(*keyed).schema] == [types[b] for _, b, _ in allowed]
        differ = [f"count_if({x} <> {y}) AS v{n}" for n, (x, y) in enumerate(zip(theirs, ours, strict=True))]
        counts = both.selectExpr(*differ).first()
    wrong = [(types[a], types[b]) for (a, b, _), count in zip(allowed, counts, strict=True) if count]
    assert not wrong
    assert len(allowed) > 60


@pytest.mark.spark
@pytest.mark.parametrize("ansi", [True, False])
def test_the_common_type_is_sparks(spark: Any, ansi: bool) -> None:
    types = [type_ for type_ in VALUES if type_ not in ("string", "binary", "boolean")]
    pairs = [(a, b, c) for a, b in product(types, repeat=2) if (c := common_type(a, b, ansi=ansi))]
    with settings(spark, spark__sql__ansi__enabled=str(ansi).lower()):
        columns = [f"coalesce(CAST(NULL AS {a}), CAST(NULL AS {b})) AS v{n}" for n, (a, b, _) in enumerate(pairs)]
        spark_types = [field.dataType.simpleString() for field in spark.range(1).selectExpr(*columns).schema]
    assert spark_types == [common for _, _, common in pairs]


@pytest.mark.parametrize(("left", "right", "common"), [
    ("int", "bigint", "bigint"), ("bigint", "int", "bigint"), ("int", "double", "double"), ("float", "int", "double"),
    ("smallint", "float", "double"), ("float", "double", "double"), ("double", "float", "double"),
    ("decimal(10,2)", "int", "decimal(12,2)"), ("int", "decimal(10,2)", "decimal(12,2)"),
    ("decimal(10,2)", "decimal(12,4)", "decimal(12,4)"), ("varchar(5)", "string", "string"),
    ("char(3)", "string", "string"),
    ("date", "timestamp", "timestamp"), ("timestamp", "date", "timestamp"), ("date", "timestamp_ntz", "timestamp_ntz"),
    ("timestamp_ntz", "timestamp", "timestamp"), ("void", "bigint", "bigint"), ("binary", "binary", "binary"),
])  # fmt: skip
def test_types_that_meet_exactly(left: str, right: str, common: str) -> None:
    assert key_type(left, right) == common


@pytest.mark.parametrize(("left", "right"), [
    ("string", "int"), ("int", "string"), ("bigint", "double"), ("double", "bigint"), ("bigint", "float"),
    ("decimal(5,2)", "double"), ("double", "decimal(5,2)"), ("string", "date"), ("date", "string"),
    ("string", "binary"),
    ("boolean", "int"), ("string collate UTF8_LCASE", "string"), ("array<int>", "array<int>"), ("int", "date"),
    ("decimal(38,0)", "decimal(38,30)"), ("bigint", "decimal(38,30)"), ("interval day to second", "bigint"),
    ("string", "boolean"), ("struct<a:int>", "struct<a:int>"), ("timestamp", "timestamp_ntz"), ("time(6)", "timestamp"),
])  # fmt: skip
def test_types_that_would_need_a_lossy_cast_are_refused(left: str, right: str) -> None:
    assert key_type(left, right) is None


@pytest.mark.parametrize(("right", "zone", "allowed"), [
    ("timestamp_ntz", "UTC", True), ("timestamp_ntz", "Europe/Paris", False), ("date", "Europe/Paris", True),
    ("date", "Pacific/Apia", False),
])  # fmt: skip
def test_a_timestamp_may_have_one_counterpart_in_some_zones_only(right: str, zone: str, allowed: bool) -> None:
    assert (key_type("timestamp", right, zone=zone) is not None) == allowed


def test_a_key_of_the_right_type_is_left_alone() -> None:
    assert key_sql("l.`a` + 1", "int", "int", "int") == "l.`a` + 1"
    assert key_sql("l.`a`", "varchar(5)", "string", "string") == "l.`a`"


def test_widening_chains_are_exact() -> None:
    assert [is_exact(a, b) for a in NUMBERS for b in NUMBERS] == [
        NUMBERS.index(a) <= NUMBERS.index(b) for a in NUMBERS for b in NUMBERS
    ]


def test_nested_types_are_no_keys() -> None:
    assert not any(is_key_type(type_) for type_ in ("array<int>", "struct<a:int>", "map<int,int>", "interval month"))


def test_the_refusal_names_both_columns_and_the_cure() -> None:
    error = mismatch("o.id", "string", "c.id", "int")
    assert str(error).startswith("o.id is STRING and c.id is INT")
    assert error.hint == (
        "Cast it to the column's type, as in CAST(o.id AS INT) = c.id. Where Spark casts the column instead, its join "
        "may match other rows."
    )
