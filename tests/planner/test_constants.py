"""A constant key stands for the rows that Spark's own comparison with the constant would find."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from scale import by_day
from test_coercion import VALUES, ZONES, rows, settings
from test_translate import NUMBERS, Session

from lookupcache.errors import PlanError
from lookupcache.planner.constants import constant_value, is_settled, literal_sql
from lookupcache.planner.naming import Scope
from lookupcache.planner.settings import ANSI, NULL_IN_NOTHING, Settings
from lookupcache.schema import parse_ddl, parse_type

SCOPE = Scope([], "c", parse_ddl("x INT"))
CONSTANTS = [
    *NUMBERS, "10 * 1000", "1 + 0.5", "-(1)", "pow(2, 3)", "CAST(16777217 AS FLOAT)", "'2011-12-31'", "'1970-01-01'",
    "DATE'2020-03-08'", "TIMESTAMP'2020-03-08 03:30:00'", "TIMESTAMP_NTZ'2020-03-08 02:30:00'",
    "date_add('2020-03-07', 1)", "X'61'",
    "CAST('today' AS STRING)",
    "unhex('41')", "'a'", "'A'", "upper('a')", "'it''s'", r"'\\'", "TRUE", "(NOT TRUE)", "CAST(NULL AS STRING)",
    "CAST('NaN' AS DOUBLE)", "CAST('Infinity' AS FLOAT)", "to_date('2011-12-30')", "timestamp_micros(1)",
]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize(("zone", "part"), by_day(itertools.product(ZONES[:2], range(3)), 6))
def test_a_constant_finds_what_spark_finds(spark: Any, zone: str, part: int) -> None:
    with settings(spark, spark__sql__session__timeZone=zone):
        session, found = Session(spark), []
        for number, type_ in list(enumerate(VALUES))[part::3]:
            for text in CONSTANTS:
                try:
                    value = constant_value(session, SCOPE.read(text), "c.x", parse_type(type_), ansi=True)
                except PlanError:
                    continue
                found.append((number, type_, text, value))
        theirs = [f"coalesce(r{n} = {text}, false)" for n, _, text, _ in found]
        ours = [f"coalesce(r{n} = {literal_sql(value)}, false)" for n, _, _, value in found]
        differ = [f"count_if({x} <> {y}) AS v{n}" for n, (x, y) in enumerate(zip(theirs, ours, strict=True))]
        counts = rows(spark, "r").selectExpr(*differ).first()
        types = rows(spark, "r").selectExpr(*(literal_sql(value) for *_, value in found)).schema
    assert not [(type_, text) for (_, type_, text, _), count in zip(found, counts, strict=True) if count]
    assert [field.dataType.simpleString() for field in types] == [type_ for _, type_, *_ in found]
    assert len(found) > 40


@pytest.mark.spark
@pytest.mark.parametrize(("type_", "text", "message"), [
    ("date", "'no date'", "cannot compute the constant 'no date'"),
    ("timestamp", "'+20000-01-01 00:00:00'", "outside of the years 1 to 9999"),
    ("int", "'1'", "'1' is STRING and c.x is INT"),
    ("bigint", "1e3", "1e3 is DOUBLE and c.x is BIGINT"),
    ("boolean", "'true'", "'true' is STRING and c.x is BOOLEAN"),
    ("string", "1", "1 is INT and c.x is STRING"),
])  # fmt: skip
def test_a_constant_that_would_surprise_is_refused(spark: Any, type_: str, text: str, message: str) -> None:
    with pytest.raises(PlanError) as refused:
        constant_value(Session(spark), SCOPE.read(text), "c.x", parse_type(type_), ansi=True)
    assert message.replace("'no date'", "\"'no date'\"") in str(refused.value) or message in str(refused.value)


@pytest.mark.parametrize("text", [
    "now()", "current_date", "DATE'today'", "TIMESTAMP 'now'", "mystery(1)", "unix_timestamp()", "current_user()",
])  # fmt: skip
def test_what_may_change_is_no_constant(text: str) -> None:
    assert not is_settled(SCOPE.read(text))


TODAY = [
    "'now'", "'today'", "'Yesterday'", "' tomorrow '", "'epoch'", "'today UTC'", "'12:30'", "'T12:30:00'",
    "'to' || 'day'",
    "reverse('yadot')", "r'now'", r"'\\u006Eow'", "substring('2020today', 5)", "CAST(unhex('746F646179') AS STRING)",
]  # fmt: skip


@pytest.mark.parametrize("text", TODAY)
@pytest.mark.parametrize("cast", ["CAST({} AS DATE)", "{}::TIMESTAMP", "to_date({})", "date_add({}, 1)", "year({})"])
def test_what_is_another_day_tomorrow_is_no_constant(text: str, cast: str) -> None:
    assert not is_settled(SCOPE.read(cast.format(text)))


@pytest.mark.parametrize("text", TODAY)
@pytest.mark.parametrize("form", [
    "{} > make_date(2013, 1, 1)", "int({} - make_date(2013, 1, 1))", "string({} + INTERVAL 1 DAY)",
    "make_date(2013, 1, 1) BETWEEN {} AND '2020-01-01'", "make_date(2013, 1, 1) IN ({})", "{} < timestamp_micros(0)",
    "if({} = make_date(2026, 11, 22), 1, 2)", "make_date(2013, 1, 1) = {}",
])  # fmt: skip
@pytest.mark.parametrize("type_", [None, "boolean", "int", "string"])
def test_what_is_compared_with_a_day_may_be_one(text: str, form: str, type_: str | None) -> None:
    assert not is_settled(SCOPE.read(form.format(text)), type_ and parse_type(type_))


@pytest.mark.parametrize("type_", ["date", "timestamp", "timestamp_ntz"])
def test_a_string_may_be_a_day_where_a_column_is_one(type_: str) -> None:
    for text in TODAY:
        assert not is_settled(SCOPE.read(text), parse_type(type_))
        assert is_settled(SCOPE.read(text), parse_type("string"))
    for text in ("'2020-01-01'", "' 2020-1-1 12:30:00 America/New_York'", "'2020'", "DATE'2020-01-01'"):
        assert is_settled(SCOPE.read(text), parse_type(type_))


@pytest.mark.parametrize(
    "text", ["1 + 2", "DATE'2020-01-01'", "upper('a')", "CAST('1' AS INT)", "date_add('2020-01-01', 1)"]
)
def test_what_stays_is_a_constant(text: str) -> None:
    assert is_settled(SCOPE.read(text))


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, False), ({ANSI: "false"}, True), ({NULL_IN_NOTHING: "true"}, True),
     ({ANSI: "false", NULL_IN_NOTHING: "false"}, False)],
)  # fmt: skip
def test_null_in_an_empty_list_is_null_by_its_setting_and_else_without_ansi(given, expected):
    assert Settings(given.get).null_in_nothing == expected
