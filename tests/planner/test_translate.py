"""What the worker evaluates means what Spark means, on values that like to tell engines apart."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from needs import needs_sqlglot
from pyspark.errors import PySparkException
from recorded import assert_recorded

from lookupcache import expr
from lookupcache.planner.clauses import substitute
from lookupcache.planner.constant_keys import moment
from lookupcache.planner.literals import read_literal
from lookupcache.planner.naming import Fragment, LeftColumn, VisibleColumns
from lookupcache.planner.settings import ANSI, TIMESTAMP_TYPE, Settings
from lookupcache.planner.translate import translate
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ, quote, type_name

NAN, INF = float("nan"), float("inf")
DAY, NIGHT = datetime(2020, 2, 29), datetime(1969, 12, 31, 23, 59, 59, 999999)
ROWS = pa.table(
    {
        "b": pa.array([True, False, None, True, False, None, True, True], pa.bool_()),
        "y": pa.array([0, 1, -1, 127, -128, None, 10, 3], pa.int8()),
        "h": pa.array([0, 1, -1, 100, -100, None, 10, 3], pa.int16()),
        "i": pa.array([0, 1, -1, 2**31 - 1, -(2**31), None, 10, 3], pa.int32()),
        "g": pa.array([0, 1, -1, 2**63 - 1, -(2**63), None, 2**53 + 1, 3], pa.int64()),
        "f": pa.array([0.0, -0.0, NAN, INF, -INF, None, 16777216.0, 0.1], pa.float32()),
        "d": pa.array([-0.0, 0.0, NAN, -INF, 1e308, None, 9007199254740992.0, 0.1], pa.float64()),
        "p": pa.array([Decimal(x) if x else None for x in ("0", "1.50", "-1.5", "999.99", "", "10", "0.05", "3")],
                      pa.decimal128(5, 2)),
        "q": pa.array([Decimal(x) if x else None for x in ("0", "1.5", "-1.5", "", "9999999999999999.9999", "10",
                       "0.05", "9007199254740993")], pa.decimal128(20, 4)),
        "s": pa.array(["", "a", "A", "a ", None, "é\U0001f600", "a%b", "\uffff"], pa.string()),
        "x": pa.array([b"", b"a", b"\x00", b"\xff", None, b"ab", b"\x7f", b"\x80"], pa.binary()),
        "t": pa.array([date(1, 1, 1), date(9999, 12, 31), None, date(2020, 2, 29), date(1969, 12, 31)] * 2,
                      pa.date32()).slice(0, 8),
        "z": pa.array([DAY, NIGHT, None, datetime(1970, 1, 1)] * 2, pa.timestamp("us")).cast(TIMESTAMP),
        "n": pa.array([DAY, NIGHT, None, datetime(1970, 1, 1)] * 2, TIMESTAMP_NTZ),
    }
)  # fmt: skip
LEFT = [LeftColumn(name, type_name(ROWS.schema.field(name).type)) for name in ROWS.column_names]
SCOPE = VisibleColumns(LEFT, "c", ROWS.schema)
reads_decimals = needs_sqlglot("30.27", "sqlglot reads the type of 1.5BD since 30.27; with older ones Spark does")

NUMBERS = [
    "0", "1", "-1", "10", "127", "128", "-128", "2147483648", "-9223372036854775808", "1.5", "10.50", "-0.05", "1e3",
    "1.5e0", "-0.0e0", "1L", "2S", "3Y", "1.5BD", "2.5D", "1.5F", "99999999999999999999", "0.1", "1.10", "NULL",
    "999.99",
    "0.1D", "9007199254740993", "16777217", "CAST(3 AS BIGINT)", "(7)",
    "CAST(NULL AS INT)", "CAST(NULL AS DOUBLE)", "9223372036854775808", "-1::SMALLINT",
]  # fmt: skip
STRINGS = [
    "''",
    "'a'",
    "'A'",
    "'a '",
    r"'it\'s'",
    "'é'",
    r"'a\\b'",
    "'a%b'",
    "NULL",
    "CAST(NULL AS STRING)",
    '"a"',
    "'\uffff'",
]
PATTERNS = ["'a%'", "'%a'", "'%a%'", "'a'", "'%'", "''", "'%%'", "'%é%'", "'_'", "NULL", r"'a\%%'", "'a%b'"]
WRITTEN = {
    "b": ["TRUE", "FALSE", "NULL"],
    "s": STRINGS,
    "x": ["X'61'", "X''", "X'FF'", "NULL"],
    "t": ["DATE'2020-02-29'", "'2020-02-29'", "DATE '0001-01-01'", "NULL", "CAST('1969-12-31' AS DATE)"],
    "z": ["TIMESTAMP'2020-02-29 00:00:00'", "'1970-01-01 00:00:00'", "TIMESTAMP_LTZ '2020-02-29 00:00:00Z'", "NULL"],
    "n": ["TIMESTAMP_NTZ'2020-02-29 00:00:00'", "'1970-01-01'", "NULL"],
}
GROUPS = [*(name for name in "yhigfdpq"), *"yhigfdpq", *"bsxtzn"]


def condition(dice: random.Random, depth: int = 2) -> str:
    """Draw a condition that Spark accepts."""
    kind = dice.choice(["atom"] * 3 + ["and", "or", "not", "loose"]) if depth else "atom"
    if kind == "loose":
        return _loose(dice)
    if kind == "not":
        return f"NOT ({condition(dice, depth - 1)})"
    if kind != "atom":
        return f"({condition(dice, depth - 1)}) {kind.upper()} ({condition(dice, depth - 1)})"
    column = dice.choice(GROUPS)
    return dice.choice([_compare, _compare, _compare, _null, _between, _in, _like, _bare])(dice, column)


def _loose(dice: random.Random) -> str:
    """Draw booleans with operators between them that the grammar alone binds."""
    text = dice.choice(["", "NOT ", "! "]) + _operand(dice, "b")
    for _ in range(dice.randrange(1, 5)):
        operator = dice.choice(["=", "<>", "<", "<=", ">", ">=", "<=>", "!>", "!<", "AND", "OR", "AND NOT", "OR !"])
        text += f" {operator} {_operand(dice, 'b')}"
        if dice.random() < 0.3:
            predicates = ["IS NULL", "IS NOT TRUE", "IN (TRUE, NULL)", "NOT IN (FALSE)", "BETWEEN FALSE AND TRUE"]
            text += f" {dice.choice(predicates)} {dice.choice(['AND', 'OR'])} {_operand(dice, 'b')}"
    return text


def _side(dice: random.Random) -> str:
    return dice.choice(["c.", "o."])


def _operand(dice: random.Random, group: str) -> str:
    if group in "yhigfdpq":
        kind = dice.randrange(4)
        if kind == 0:
            return dice.choice(NUMBERS)
        if kind == 1:
            return f"({_side(dice)}h {dice.choice('+-*')} {dice.choice(['o.h', '3', '2L', '1.5e0', 'c.f', 'c.d'])})"
        return _side(dice) + dice.choice("yhigfdpq")
    return dice.choice([*WRITTEN[group], _side(dice) + group, _side(dice) + group])


def _compare(dice: random.Random, group: str) -> str:
    operator = dice.choice(["=", "<>", "<", "<=", ">", ">=", "<=>", "!=", "=="])
    return f"{_side(dice)}{group} {operator} {_operand(dice, group)}"


def _null(dice: random.Random, group: str) -> str:
    return f"{_side(dice)}{group} IS {dice.choice(['', 'NOT '])}NULL"


def _between(dice: random.Random, group: str) -> str:
    return (
        f"{_side(dice)}{group} {dice.choice(['', 'NOT '])}BETWEEN {_operand(dice, group)} AND {_operand(dice, group)}"
    )


def _in(dice: random.Random, group: str) -> str:
    values = [dice.choice(WRITTEN.get(group, NUMBERS)) for _ in range(dice.randrange(1, 4))]
    return f"{_side(dice)}{group} {dice.choice(['', 'NOT '])}IN ({', '.join(values)})"


def _like(dice: random.Random, _group: str) -> str:
    if dice.random() < 0.3:
        value = dice.choice(["c.s", "c.s", "c.s", *STRINGS])
        return f"{dice.choice(['startswith', 'endswith', 'contains'])}({value}, {dice.choice(STRINGS)})"
    return f"c.s {dice.choice(['', 'NOT '])}LIKE {dice.choice(PATTERNS)}"


def _bare(dice: random.Random, _group: str) -> str:
    return dice.choice(["c.b", "o.b", "NOT c.b", "c.b IS TRUE", "c.b IS NOT FALSE", "TRUE", "NULL"])


class Session:
    """Spark as the planner asks it."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def types(self, expressions: list[str]) -> list[str]:
        return [self.spark.sql(f"SELECT {sql} AS v").schema[0].dataType.simpleString() for sql in expressions]

    def fold(self, expressions: list[str]) -> list[Any]:
        return [self.spark.sql(f"SELECT {sql} AS v").first()[0] for sql in expressions]


@contextmanager
def mode(spark: Any, *, ansi: bool) -> Iterator[None]:
    """Run with or without ANSI, then as before."""
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    try:
        yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


def column(side: expr.Side, name: str) -> expr.Column:
    return expr.Column(side, name, ROWS.schema.field(name).type)


def worker(node: expr.Expr) -> list[Any]:
    found = expr.evaluate(node, lambda column: ROWS.column(column.name))
    return [found.as_py()] * ROWS.num_rows if isinstance(found, pa.Scalar) else found.to_pylist()


def answers(spark: Any, fragments: list[Fragment]) -> list[list[Any]]:
    rows = spark.createDataFrame(ROWS)
    columns = [substitute(fragment.sql, lambda _side, name: quote(name)) for fragment in fragments]
    table = rows.selectExpr(*(f"{sql} AS v{number}" for number, sql in enumerate(columns))).toArrow()
    return [column.to_pylist() for column in table.columns]


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_worker_answers_as_spark_does(spark: Any, seed: int, ansi: bool) -> None:
    dice = random.Random(seed)
    with mode(spark, ansi=ansi):
        session = Session(spark)
        known: dict[tuple[str, str], expr.Literal | None] = {}

        def at(text: str, type_: pa.DataType) -> expr.Literal | None:
            key = text, str(type_)
            if key not in known:
                known[key] = moment(session, text, type_)
            return known[key]

        own = Settings({ANSI: str(ansi)}.get)
        fragments = [SCOPE.read(condition(dice)) for _ in range(300)]
        translated = [translate(fragment, column, moment=at, settings=own) for fragment in fragments]
        pairs = [(f, node) for f, node in zip(fragments, translated, strict=True) if node is not None]
        expected = answers(spark, [fragment for fragment, _ in pairs])
    wrong = [
        (fragment.text, expr.to_text(node), theirs, worker(node))
        for (fragment, node), theirs in zip(pairs, expected, strict=True)
        if theirs != worker(node)
    ]
    assert not wrong, wrong[0]
    assert len(pairs) > 150


def _number(dice: random.Random, depth: int) -> str:
    """Draw arithmetic that overflows for some rows."""
    if not depth or dice.random() < 0.3:
        return dice.choice(["c.i", "c.j", "o.i", "o.j", "3"])
    return f"({_number(dice, depth - 1)} {dice.choice('+-*')} {_number(dice, depth - 1)})"


def _overflowing(dice: random.Random) -> str:
    a, b, c = (_number(dice, 2) for _ in range(3))
    comparison = f"{a} {dice.choice(['=', '<>', '<', '<=', '>', '>=', '<=>'])} {b}"
    return dice.choice([comparison, comparison, f"{a} BETWEEN {b} AND {c}", f"{comparison} AND {c} > 0"])


@pytest.mark.extended
@pytest.mark.spark
def test_a_worker_answers_where_spark_does(spark: Any) -> None:
    """Spark computes no operand that an overflow would end if the other one is null, or an AND is false already."""
    dice, answered = random.Random(0), 0
    schema = pa.schema([("i", pa.int32()), ("j", pa.int32())])
    left = [LeftColumn(name, "int") for name in schema.names]
    scope = VisibleColumns(left, "c", schema)
    with mode(spark, ansi=True):
        for _ in range(200):
            fragment = scope.read(_overflowing(dice))
            row = pa.table([[dice.choice([None, 1, 2**31 - 1, -(2**31)])] for _ in schema], schema)
            node = translate(fragment, lambda side, name: expr.Column(side, name, pa.int32()))
            sql = substitute(fragment.sql, lambda _side, name: quote(name))
            try:
                theirs = spark.createDataFrame(row).selectExpr(sql).first()[0]
            except PySparkException:
                continue
            answered += node is not None
            if node is not None:
                ours = expr.evaluate(node, lambda column: row.column(column.name))  # noqa: B023
                assert (theirs, fragment.text, row.to_pylist()) == (ours[0].as_py(), fragment.text, row.to_pylist())
    assert answered > 50


@pytest.mark.parametrize("text", [
    "sqrt(c.d) > 2", "c.s > 1", "c.i = '1'", "c.p + 1 > 2", "c.d > c.q", "c.z > c.t", "c.z = c.n", "c.s LIKE 'a_'",
    r"c.s LIKE 'a\%'", "c.s ILIKE 'a%'", "c.s || 'a' = 'ab'", "CASE WHEN c.b THEN c.b END", "c.i % 2 = 0",
    "c.i / 2 = 1", "c.s RLIKE 'a'", r"c.s = 'a\nb'", "c.t > '2020-1-1'", "c.t = DATE'today'", "c.b AND c.i + 1 > 2",
    "c.i IN (1, '2')",
    "c.i IN (1, o.i)", "c.t = '2020-02-30'", "now() > c.z", "c.b = 1", "c.s COLLATE UTF8_LCASE = 'a'", "-c.f = 1",
    "CAST(c.s AS STRING COLLATE UTF8_LCASE) = 'a'", "c.s = CAST('a' AS STRING COLLATE UTF8_LCASE)",
    "CAST(c.d AS FLOAT) = 1.5F", "startswith(c.s, c.s)", "contains(c.i, '1')",
    "coalesce(c.b, TRUE)", "current_date = c.t", "c.i", "c.d + c.p > 1", "c.f > 1e400", "c.i LIKE '1%'",
])  # fmt: skip
def test_conditions_that_might_differ_are_left_to_spark(text: str) -> None:
    assert translate(SCOPE.read(text), column) is None


@pytest.mark.parametrize(("text", "found"), [
    ("c.g > -5.5", "CAST(g AS DECIMAL(21,1)) > -5.5"), ("c.g > 5.5", "CAST(g AS DECIMAL(21,1)) > 5.5"),
    ("c.g > -9223372036854775809.5", None), ("c.g <= 9223372036854775808.0", None),
])  # fmt: skip
def test_decimals_that_a_bigint_can_reach_are_compared(text: str, found: str | None) -> None:
    node = translate(SCOPE.read(text), column)
    assert (None if node is None else expr.to_text(node)) == found


@pytest.mark.extended
@reads_decimals
@pytest.mark.parametrize("ansi", [True, False])
def test_conditions_are_translated_as_recorded_with_spark(ansi: bool) -> None:
    """The same conditions are compared with Spark above; this needs no Spark, so that changes are found early."""
    dice, lines = random.Random(0), []
    for _ in range(400):
        text = condition(dice)
        node = translate(SCOPE.read(text), column, settings=Settings({ANSI: str(ansi)}.get))
        lines.append(f"{text}\t{None if node is None else expr.to_text(node)}")
    assert_recorded(f"conditions_{'ansi' if ansi else 'not_ansi'}.txt", lines)


@pytest.mark.parametrize(("text", "found"), [
    ("startswith(c.s, 'a')", "starts with"), ("contains(c.s, 'a')", "contains"), ("endswith(c.s, 'a')", "ends with"),
])  # fmt: skip
def test_parts_of_texts_are_compared_in_workers(text: str, found: str) -> None:
    node = translate(SCOPE.read(text), column)
    assert isinstance(node, expr.Call)
    assert (node.op, [type(argument) for argument in node.args]) == (found, [expr.Column, expr.Literal])
    assert any(value for value in worker(node))


def test_arithmetic_is_left_to_spark_without_ansi() -> None:
    fragment = SCOPE.read("c.i + 1 > 2")
    assert translate(fragment, column) is not None
    assert translate(fragment, column, settings=Settings({ANSI: "false"}.get)) is None


def test_an_overflow_is_an_error_as_under_ansi() -> None:
    node = translate(SCOPE.read("c.i + 1 > 2"), column)
    assert node is not None
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        worker(node)


@pytest.mark.parametrize(("text", "type_", "value"), [
    ("10", pa.int32(), 10), ("-2147483648", pa.int32(), -(2**31)), ("3000000000", pa.int64(), 3000000000),
    ("10.50", pa.decimal128(4, 2), "10.50"), ("0.05", pa.decimal128(2, 2), "0.05"), ("1e3", pa.float64(), 1000.0),
    ("99999999999999999999", pa.decimal128(20, 0), "99999999999999999999"), ("1.0D", pa.float64(), 1.0),
    ("5L", pa.int64(), 5), ("X'4'", pa.binary(), "BA=="),
    ("-1.5D", pa.float64(), -1.5), ("-1.5e-3D", pa.float64(), -0.0015), ("-3Y", pa.int8(), -3),
    ("-2::SMALLINT", pa.int16(), -2), ("-CAST('1.5' AS DECIMAL(3, 2))", pa.decimal128(3, 2), "-1.50"),
    ("'a'", pa.string(), "a"), ("CAST('1.5' AS DECIMAL(38, 2))", pa.decimal128(38, 2), "1.50"),
    ("CAST('0.5' AS DECIMAL(38, 38))", pa.decimal128(38, 38), f"0.{5 * 10**37}"),
    ("DATE'2020-02-29'", pa.date32(), "2020-02-29"), ("TRUE", pa.bool_(), True), ("NULL", pa.null(), None),
    pytest.param("1.5BD", pa.decimal128(2, 1), "1.5", marks=reads_decimals),
    (f"CAST('{'1234567890' * 3}.5' AS DECIMAL(38, 2))", pa.decimal128(38, 2), f"{'1234567890' * 3}.50"),
    pytest.param("9" * 38 + "BD", pa.decimal128(38, 0), "9" * 38, marks=reads_decimals),
    pytest.param("-5BD", pa.decimal128(1, 0), "-5", marks=reads_decimals),
    pytest.param("-0BD", pa.decimal128(1, 0), "0", marks=reads_decimals),
])  # fmt: skip
def test_literals_have_sparks_types(text: str, type_: pa.DataType, value: object) -> None:
    assert read_literal(SCOPE.read(text).tree, text) == expr.Literal(value, type_)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1" * 5_000, "-" + "1" * 5_000, "1e" + "1" * 5_000, "0." + "1" * 5_000])
def test_a_number_that_is_too_long_for_python_is_left_to_spark(text: str) -> None:
    assert read_literal(SCOPE.read(text).tree, text) is None


def test_a_timestamp_needs_the_session() -> None:
    fragment = SCOPE.read("c.z > TIMESTAMP'2020-02-29 00:00:00'")
    assert translate(fragment, column) is None
    assert translate(fragment, column, moment=lambda _text, type_: expr.Literal(0, type_)) is not None


def test_a_number_is_no_written_timestamp() -> None:
    asked: list[str] = []
    translate(SCOPE.read("c.z > CAST(2020 AS TIMESTAMP)"), column, moment=lambda text, _type: asked.append(text))
    assert asked == []


@pytest.mark.parametrize("text", ["2020-02-29\\u0020", "2020\\-02-29"])
def test_a_timestamp_whose_text_is_ambiguous_is_left_to_spark(text: str) -> None:
    fragment = SCOPE.read(f"c.z > TIMESTAMP'{text}'")
    assert translate(fragment, column, moment=lambda _text, type_: expr.Literal(0, type_)) is None


@pytest.mark.parametrize(("value", "without_zone"), [("timestamp_ntz", True), ("TIMESTAMP_LTZ", False), (None, False)])
def test_a_setting_says_whether_a_timestamp_has_a_zone(value: str | None, without_zone: bool) -> None:
    assert Settings({TIMESTAMP_TYPE: value}.get).without_zone == without_zone


@pytest.mark.parametrize("text", ["CAST('0' AS DECIMAL(0, 0))", "CAST('0' AS DECIMAL(9, 39))"])
def test_a_type_that_arrow_does_not_have_is_left_to_spark(text: str) -> None:
    assert read_literal(SCOPE.read(text).tree, text) is None


@pytest.mark.parametrize(("text", "is_asked"), [("now", False), ("12:30", False), ("2020-02-29", True)])
def test_only_moments_that_stay_the_same_are_computed(text: str, is_asked: bool) -> None:
    asked: list[list[str]] = []

    class NoTypes:
        def types(self, expressions: list[str]) -> list[str]:
            asked.append(expressions)
            return [""]

    assert moment(NoTypes(), text, pa.timestamp("us", "UTC")) is None  # type: ignore[arg-type]
    assert bool(asked) == is_asked


@pytest.mark.parametrize(("number", "is_beyond"), [
    pytest.param("9223372036854775807BD", False, marks=reads_decimals),
    ("-9223372036854775808.0", False), ("-100.5", False), ("9223372036854775808", True), ("-9223372036854775809", True),
])  # fmt: skip
def test_a_number_beyond_all_of_a_columns_is_left_to_spark(number: str, is_beyond: bool) -> None:
    assert (translate(SCOPE.read(f"c.h > {number}"), column) is None) == is_beyond
