"""A constant key stands for the rows that Spark's own comparison with the constant would find."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from test_coercion import VALUES, ZONES, rows, settings
from test_translate import NUMBERS, Session

from lookupcache.errors import PlanError
from lookupcache.expr import Literal
from lookupcache.planner.constant_keys import constant_value, is_settled, literal_sql, moment
from lookupcache.planner.naming import VisibleColumns
from lookupcache.planner.settings import ANSI, MINIMUM_PRECISION, MOMENT_AS_STRING, NULL_IN_NOTHING, Settings
from lookupcache.schema import parse_ddl, parse_type

SCOPE = VisibleColumns([], "c", parse_ddl("x INT"))
CONSTANTS = [
    *NUMBERS, "10 * 1000", "1 + 0.5", "-(1)", "pow(2, 3)", "CAST(16777217 AS FLOAT)", "'2011-12-31'", "'1970-01-01'",
    "DATE'2020-03-08'", "TIMESTAMP'2020-03-08 03:30:00'", "TIMESTAMP_NTZ'2020-03-08 02:30:00'",
    "date_add('2020-03-07', 1)", "X'61'",
    "CAST('today' AS STRING)",
    "unhex('41')", "'a'", "'A'", "upper('a')", "'it''s'", r"'\\'", "TRUE", "(NOT TRUE)", "CAST(NULL AS STRING)",
    "CAST('NaN' AS DOUBLE)", "CAST('Infinity' AS FLOAT)", "to_date('2011-12-30')", "timestamp_micros(1)",
]  # fmt: skip


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.nightly(keep_one_in=6)
@pytest.mark.parametrize(("zone", "part"), list(itertools.product(ZONES[:2], range(3))))
def test_a_constant_finds_what_spark_finds(spark: Any, zone: str, part: int) -> None:
    with settings(spark, spark__sql__session__timeZone=zone):
        session, found = Session(spark), []
        for number, type_ in list(enumerate(VALUES))[part::3]:
            for text in CONSTANTS:
                try:
                    value = constant_value(session, SCOPE.read(text), "c.x", parse_type(type_))
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
        constant_value(Session(spark), SCOPE.read(text), "c.x", parse_type(type_))
    assert message.replace("'no date'", "\"'no date'\"") in str(refused.value) or message in str(refused.value)


@pytest.mark.parametrize("text", [
    "now()", "current_date", "DATE'today'", "TIMESTAMP 'now'", "mystery(1)", "unix_timestamp()", "current_user()",
])  # fmt: skip
def test_an_expression_that_may_change_is_no_constant(text: str) -> None:
    assert not is_settled(SCOPE.read(text))


TODAY = [
    "'now'", "'today'", "'Yesterday'", "' tomorrow '", "'epoch'", "'today UTC'", "'12:30'", "'T12:30:00'",
    "'to' || 'day'",
    "reverse('yadot')", "r'now'", r"'\\u006Eow'", "substring('2020today', 5)", "CAST(unhex('746F646179') AS STRING)",
]  # fmt: skip


@pytest.mark.parametrize("cast", ["CAST({} AS DATE)", "{}::TIMESTAMP", "to_date({})", "date_add({}, 1)", "year({})"])
def test_a_cast_of_a_relative_day_is_no_constant(cast: str) -> None:
    assert [text for text in TODAY if is_settled(SCOPE.read(cast.format(text)))] == []


@pytest.mark.parametrize("form", [
    "{} > make_date(2013, 1, 1)", "int({} - make_date(2013, 1, 1))", "string({} + INTERVAL 1 DAY)",
    "make_date(2013, 1, 1) BETWEEN {} AND '2020-01-01'", "make_date(2013, 1, 1) IN ({})", "{} < timestamp_micros(0)",
    "if({} = make_date(2026, 11, 22), 1, 2)", "make_date(2013, 1, 1) = {}",
])  # fmt: skip
@pytest.mark.parametrize("type_", [None, "boolean", "int", "string"])
def test_a_relative_day_compared_with_a_date_is_no_constant(form: str, type_: str | None) -> None:
    wanted = type_ and parse_type(type_)
    assert [text for text in TODAY if is_settled(SCOPE.read(form.format(text)), wanted)] == []


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
def test_an_expression_that_never_changes_is_a_constant(text: str) -> None:
    assert is_settled(SCOPE.read(text))


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, False), ({ANSI: "false"}, True), ({NULL_IN_NOTHING: "true"}, True),
     ({ANSI: "false", NULL_IN_NOTHING: "false"}, False)],
)  # fmt: skip
def test_null_in_an_empty_list_depends_on_its_setting_or_ansi(given, expected):
    assert Settings(given.get).null_in_nothing == expected


# ── without Spark ────────────────────────────────────────────────────────────────────────────────────────


class Answers:
    """Spark, of which it is known what it says of a few expressions; any other is an error."""

    def __init__(self, types: dict[str, str], values: dict[str, Any]) -> None:
        self.known_types, self.known_values = types, values

    def types(self, expressions: Sequence[str]) -> list[str]:
        return [self.known_types[sql] for sql in expressions]

    def names(self, expressions: Sequence[str]) -> list[list[str]]:
        raise AssertionError

    def fold(self, expressions: Sequence[str]) -> list[Any]:
        return [self.known_values[sql] for sql in expressions]


@pytest.mark.parametrize("text", ["upper('now')", "concat('today', '')", "'12:30' || 'Z'", "coalesce(r'tomorrow')"])
def test_a_relative_day_in_a_string_is_no_constant(text: str) -> None:
    assert not is_settled(SCOPE.read(text))
    assert not is_settled(SCOPE.read(text), parse_type("string"))
    assert is_settled(SCOPE.read(text.replace("now", "knows").replace("today", "2 days").replace("12:30", "12.30")
                                 .replace("tomorrow", "to-morrow")))  # fmt: skip


COMPUTED = [
    ("pow(2, 3)", "double", "double", "pow(2, 3)", 8.0, 8.0),
    ("pow(2, 3)", "float", "double", "CASE WHEN CAST(TRY_CAST(pow(2, 3) AS FLOAT) AS DOUBLE) = (pow(2, 3)) THEN "
     "TRY_CAST(pow(2, 3) AS FLOAT) END", 8.0, 8.0),
    ("10 * 1000", "bigint", "int", "CAST(10 * 1000 AS BIGINT)", 10_000, 10_000),
    ("1 + 1.5", "decimal(14,2)", "decimal(12,1)", "CAST(CAST(1 + 1.5 AS DECIMAL(14,2)) AS STRING)", "2.50", "2.50"),
    ("unhex('41')", "binary", "binary", "base64(unhex('41'))", "QQ==", "QQ=="),
    ("upper('a')", "string", "string", "upper('a')", "A", "A"),
    ("NOT TRUE", "boolean", "boolean", "NOT TRUE", False, False),
    ("make_date(2020, 3, 8)", "date", "date", "CAST(make_date(2020, 3, 8) AS STRING)", "2020-03-08", "2020-03-08"),
    ("timestamp_micros(7)", "timestamp", "timestamp", "unix_micros(timestamp_micros(7))", 7, 7),
    ("TIMESTAMP_NTZ'1970-01-01 00:00:01'", "timestamp_ntz", "timestamp_ntz",
     "CAST(TIMESTAMP_NTZ'1970-01-01 00:00:01' AS STRING)", "1970-01-01 00:00:01", 1_000_000),
    ("'2020-03-08 01:00:00'", "timestamp", "", "unix_micros(CAST('2020-03-08 01:00:00' AS TIMESTAMP_LTZ))", 5, 5),
    ("nullif(1, 1)", "bigint", "int", "CAST(nullif(1, 1) AS BIGINT)", None, None),
    ("nullif(1, 1)", "bigint", "void", "", 1, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "type_", "of_spark", "sql", "value", "found"), COMPUTED)
def test_spark_computes_a_constant_in_the_type_of_its_column(
    text: str, type_: str, of_spark: str, sql: str, value: Any, found: Any
) -> None:
    fragment = SCOPE.read(text)
    constant = constant_value(Answers({text: of_spark}, {sql: value}), fragment, "c.x", parse_type(type_))
    assert (constant.value, constant.type) == (found, parse_type(type_))


@pytest.mark.parametrize(("text", "type_", "of_spark", "message"), [
    ("make_date(2020, 2, 30)", "date", "date",
     "Spark cannot compute the constant 'make_date(2020, 2, 30)': no such day"),
    ("timestamp_micros(9)", "timestamp", "timestamp", "timestamp_micros(9) is outside of the years 1 to 9999, the "
     "range of keys like c.x."),
    ("pow(2, 3)", "bigint", "double", "pow(2, 3) is DOUBLE and c.x is BIGINT: as a key they cannot be compared"),
    ("upper('a')", "int", "string", "upper('a') is STRING and c.x is INT: as a key they cannot be compared"),
    ("TRUE", "int", "", "TRUE is BOOLEAN and c.x is INT: as a key they cannot be compared"),
    ("CAST(NULL AS DATE)", "int", "", "CAST(NULL AS DATE) is DATE and c.x is INT: as a key they cannot be compared"),
])  # fmt: skip
def test_a_constant_without_a_certain_value_is_refused(text: str, type_: str, of_spark: str, message: str) -> None:
    class Refuses(Answers):
        def fold(self, expressions: Sequence[str]) -> list[Any]:
            if "timestamp" in expressions[0]:
                return [10**18]
            raise ValueError("no such day\nJVM stack trace")

    with pytest.raises(PlanError) as refused:
        constant_value(Refuses({text: of_spark}, {}), SCOPE.read(text), "c.x", parse_type(type_))
    assert str(refused.value).startswith(message)
    assert "JVM" not in str(refused.value)


@pytest.mark.parametrize(("text", "type_"), [("NULL", "int"), ("NULL", "date"), ("CAST(NULL AS STRING)", "int"),
                                             ("CAST(NULL AS INT)", "bigint")])  # fmt: skip
def test_a_null_needs_no_spark(text: str, type_: str) -> None:
    assert constant_value(Answers({}, {}), SCOPE.read(text), "c.x", parse_type(type_)) == Literal(
        None, parse_type(type_)
    )


def test_a_literal_without_least_precision_has_that_of_its_type() -> None:
    """Spark then takes 5 for an INT, of which a DECIMAL(38,30) cannot have all ten digits."""
    five, type_ = SCOPE.read("5"), parse_type("decimal(38,30)")
    assert constant_value(Answers({}, {}), five, "c.x", type_).value == "5." + "0" * 30
    kept = Settings({MINIMUM_PRECISION: "false"}.get)
    with pytest.raises(PlanError, match=r"5 is INT and c\.x is DECIMAL"):
        constant_value(Answers({"5": "int"}, {}), five, "c.x", type_, settings=kept)


@pytest.mark.parametrize("ansi", [True, False])
def test_without_ansi_a_setting_has_a_day_compared_as_a_string(ansi: bool) -> None:
    day, settings = SCOPE.read("'2020-01-01'"), Settings({MOMENT_AS_STRING: "true", ANSI: str(ansi)}.get)
    if ansi:
        found = constant_value(Answers({}, {}), day, "c.x", parse_type("date"), settings=settings)
        assert found.value == "2020-01-01"
        return
    with pytest.raises(PlanError, match=r"'2020-01-01' is STRING and c\.x is DATE"):
        constant_value(Answers({}, {}), day, "c.x", parse_type("date"), settings=settings)


@pytest.mark.parametrize(("type_", "value", "found"), [
    ("timestamp", 7, 7), ("timestamp", None, None), ("timestamp", 10**18, None),
    ("timestamp_ntz", "1970-01-01 00:00:01", 1_000_000), ("timestamp_ntz", "+12020-01-01 00:00:00", None),
])  # fmt: skip
def test_a_moment_is_known_where_python_has_it(type_: str, value: Any, found: int | None) -> None:
    sql = f"CAST('2020-01-01' AS {'TIMESTAMP_LTZ' if type_ == 'timestamp' else 'TIMESTAMP_NTZ'})"
    spelt = f"unix_micros({sql})" if type_ == "timestamp" else f"CAST({sql} AS STRING)"
    literal = moment(Answers({sql: type_}, {spelt: value}), "2020-01-01", parse_type(type_))
    assert (literal and literal.value) == found
    assert moment(Answers({sql: "string"}, {}), "2020-01-01", parse_type(type_)) is None


@pytest.mark.parametrize(("value", "type_", "sql"), [
    (None, "int", "CAST(NULL AS INT)"), (True, "boolean", "CAST(TRUE AS BOOLEAN)"),
    (False, "boolean", "CAST(FALSE AS BOOLEAN)"), (-5, "tinyint", "CAST(-5 AS TINYINT)"),
    ("1.50", "decimal(5,2)", "CAST('1.50' AS DECIMAL(5,2))"), (0.5, "double", "CAST('0.5' AS DOUBLE)"),
    ("2020-01-01", "date", "CAST('2020-01-01' AS DATE)"), (7, "timestamp", "timestamp_micros(7)"),
    (1_000_000, "timestamp_ntz", "CAST('1970-01-01 00:00:01' AS TIMESTAMP_NTZ)"),
    ("QQ==", "binary", "unbase64('QQ==')"),
])  # fmt: skip
def test_a_literal_is_written_in_its_own_type(value: Any, type_: str, sql: str) -> None:
    assert literal_sql(Literal(value, parse_type(type_))) == sql
