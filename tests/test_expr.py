"""Expressions on Arrow columns against Spark's semantics written in plain Python."""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache.compiled.lookup_fields import read_expression
from lookupcache.compiled.plan_reader import PlanReader
from lookupcache.expr import (
    OPERATORS,
    VALUE_OPERATORS,
    Call,
    Column,
    Literal,
    can_fail,
    columns_of,
    evaluate,
    keep,
    literal,
    literal_text,
    python_value,
    to_json,
    to_text,
)
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ

NAN = math.nan

# Values of each type; among them some that Spark holds equal and a naive comparison does not, or the reverse.
POOLS = {
    pa.int8(): [0, 1, -128, 127],
    pa.int64(): [0, 1, -(2**63), 2**53, 2**53 + 1, 2**63 - 1],
    pa.float32(): [0.0, -0.0, 1.5, NAN, math.inf],
    pa.float64(): [0.0, -0.0, 1.5, -1.5, NAN, math.inf, -math.inf, 5e-324],
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "A", "a ", "b", "é", "e\u0301", "\uffff", "😀", "a\0"],
    pa.binary(): [b"", b"a", b"a\0", b"\xff", b"\x7f"],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    TIMESTAMP: [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(2013, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)],
    TIMESTAMP_NTZ: [dt.datetime(1, 1, 1), dt.datetime(2013, 1, 1, 0, 0, 0, 1)],
    pa.decimal128(4, 2): [Decimal("1.50"), Decimal("-1.50"), Decimal("0.00")],
    pa.decimal128(38, 0): [Decimal(10**37), Decimal(-1)],
}
NAMES = {type_: f"c{number}" for number, type_ in enumerate(POOLS)}


def order(value):
    """Return what Spark orders a value by: NaN above all, text by its UTF-8 bytes."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def strict(function):
    return lambda a, b: None if a is None or b is None else function(order(a), order(b))


def and_(a, b):
    return False if a is False or b is False else None if a is None or b is None else True


def or_(a, b):
    return True if a is True or b is True else None if a is None or b is None else False


MODEL = {
    "=": strict(lambda a, b: a == b),
    "<": strict(lambda a, b: a < b),
    "<=": strict(lambda a, b: a <= b),
    ">": strict(lambda a, b: a > b),
    ">=": strict(lambda a, b: a >= b),
    "<=>": lambda a, b: (a is None) == (b is None) and (a is None or order(a) == order(b)),
    "and": and_,
    "or": or_,
    "not": lambda a: None if a is None else not a,
    "is null": lambda a: a is None,
    "starts with": strict(lambda a, b: a.startswith(b)),
    "ends with": strict(lambda a, b: a.endswith(b)),
    "contains": strict(lambda a, b: b in a),
}
COMPARISONS = ["=", "<", "<=", ">", ">=", "<=>"]


def model(node, row):
    """Return the value that Spark gives a node for one row."""
    if isinstance(node, Column):
        return row[node.name]
    if isinstance(node, Literal):
        return python_value(node)
    return MODEL[node.op](*(model(argument, row) for argument in node.args))


def operand(type_):
    values = st.sampled_from([None, *POOLS[type_]]).map(functools.partial(literal, type_=type_))
    return st.sampled_from([Column("right", f"{NAMES[type_]}{side}", type_) for side in "ab"]) | values


def comparisons(type_):
    found = st.builds(Call, st.sampled_from(COMPARISONS), st.tuples(operand(type_), operand(type_)))
    found |= st.builds(Call, st.just("is null"), st.tuples(operand(type_)))
    if type_ == pa.string():
        pattern = st.sampled_from(POOLS[type_]).map(lambda text: Literal(text, pa.string()))
        column = st.just(Column("right", f"{NAMES[type_]}a", type_))
        found |= st.builds(Call, st.sampled_from(["starts with", "ends with", "contains"]), st.tuples(column, pattern))
    return found


CONDITIONS = st.recursive(
    st.sampled_from(list(POOLS)).flatmap(comparisons) | operand(pa.bool_()),
    lambda inner: (
        st.builds(Call, st.sampled_from(["and", "or", "=", "<=>"]), st.tuples(inner, inner))
        | st.builds(Call, st.sampled_from(["not", "is null"]), st.tuples(inner))
    ),
    max_leaves=5,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {f"{NAMES[type_]}{side}": st.sampled_from([None, *pool]) for type_, pool in POOLS.items() for side in "ab"}
    ),
    max_size=6,
)
SCHEMA = pa.schema([(f"{NAMES[type_]}{side}", type_) for type_ in POOLS for side in "ab"])


@pytest.mark.extended
@settings(max_examples=examples(500))
@given(CONDITIONS, ROWS)
def test_a_condition_means_what_it_means_in_spark(condition, rows):
    table = pa.Table.from_pylist(rows, SCHEMA)
    answer = evaluate(condition, lambda column: table.column(column.name))
    values = [answer.as_py()] * len(rows) if isinstance(answer, pa.Scalar) else answer.to_pylist()
    assert values == [model(condition, row) for row in rows]


@pytest.mark.extended
@given(st.lists(CONDITIONS, max_size=3), ROWS)
def test_keep_returns_the_rows_for_which_every_conjunct_is_true(conjuncts, rows):
    table = pa.Table.from_pylist(rows, SCHEMA).append_column("n", pa.array(range(len(rows)), pa.int64()))
    expected = [n for n, row in enumerate(rows) if all(model(conjunct, row) is True for conjunct in conjuncts)]
    assert keep(table, conjuncts).column("n").to_pylist() == expected


def from_json(data: list[Any]) -> Any:
    """Return the expression in a compiled plan."""
    return read_expression(PlanReader(data, "", ""))


@given(CONDITIONS)
def test_an_expression_goes_through_json_and_pickle_unchanged(condition):
    assert from_json(json.loads(json.dumps(to_json(condition), allow_nan=False))) == condition
    assert pickle.loads(pickle.dumps(condition)) == condition
    assert all(isinstance(column, Column) for column in columns_of(condition))
    assert to_text(condition)


@pytest.mark.parametrize("type_", POOLS, ids=str)
def test_a_literal_gives_its_value_back(type_):
    for value in [None, *POOLS[type_]]:
        assert repr(python_value(from_json(to_json(literal(value, type_))))) == repr(value)


def test_nan_is_above_all_numbers_even_for_integers_and_nulls():
    column = Column("right", "n", pa.int64())
    below = Call("<=", (column, literal(NAN, pa.float64())))
    assert evaluate(below, lambda _: pa.array([1, None])).to_pylist() == [True, None]


INT = Column("right", "n", pa.int64())
DOUBLE = Column("right", "d", pa.float64())


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        (Call("+", (INT, Literal(1, pa.int64())), pa.int64()), [1, None], [2, None]),
        (Call("-", (INT, Literal(1, pa.int64())), pa.int64()), [1, None], [0, None]),
        (Call("*", (INT, Literal(3, pa.int64())), pa.int64()), [-2], [-6]),
        (Call("*", (DOUBLE, Literal("inf", pa.float64())), pa.float64()), [-1.0, 2.0], [-math.inf, math.inf]),
        (Call("+", (DOUBLE, Literal(1e308, pa.float64())), pa.float64()), [1e308], [math.inf]),
        (Call("cast", (INT,), pa.float64()), [2**53 + 1, None], [2.0**53, None]),
    ],
)
def test_arithmetic(expression, values, expected):
    column = next(columns_of(expression))
    assert evaluate(expression, lambda _: pa.array(values, column.type)).to_pylist() == expected


@pytest.mark.parametrize(("op", "value"), [("+", 1), ("-", -1), ("*", 2)])
def test_an_overflow_of_integers_is_an_error_as_in_spark(op, value):
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        evaluate(Call(op, (INT, Literal(value, pa.int64())), pa.int64()), lambda _: pa.array([2**63 - 1]))


TINY = [Column("right", name, pa.int8()) for name in "ab"]
NUMBERS = st.recursive(
    st.sampled_from(TINY),
    lambda inner: st.builds(Call, st.sampled_from(["+", "-", "*"]), st.tuples(inner, inner), st.just(pa.int8())),
    max_leaves=5,
)


def number(node, row):
    """Return the value that Spark gives arithmetic; raises OverflowError."""
    if not isinstance(node, Call):
        return model(node, row)
    values = []
    for argument in sorted(node.args, key=can_fail):
        values.append(number(argument, row))
        if values[-1] is None:
            return None
    a, b = (number(argument, row) for argument in node.args)
    found = {"+": a + b, "-": a - b, "*": a * b}[node.op] if node.op in "+-*" else a < b
    if node.op in "+-*" and not -128 <= found < 128:
        raise OverflowError
    return found


@pytest.mark.extended
@settings(max_examples=examples(500))
@given(
    st.builds(Call, st.just("<"), st.tuples(NUMBERS, NUMBERS)),
    st.lists(st.sampled_from([None, 1, 127]), min_size=2, max_size=2),
)
def test_what_may_overflow_is_computed_where_the_result_is_not_null_anyway(condition, values):
    row = dict(zip("ab", values, strict=True))
    try:
        expected = number(condition, row)
    except OverflowError:
        expected = "an overflow"
    try:
        found = evaluate(condition, lambda column: pa.array([row[column.name]], pa.int8()))
        answer = found.as_py() if isinstance(found, pa.Scalar) else found[0].as_py()
    except pa.ArrowInvalid:
        answer = "an overflow"
    assert answer == expected


AGE = Call(">", (INT, Literal(18, pa.int64())))
TEXTS = [
    (Column("left", "odd name", pa.int64()), "left.`odd name`"),
    (Call("and", (AGE, Call("or", (AGE, AGE)))), "n > 18 AND (n > 18 OR n > 18)"),
    (Call("not", (AGE,)), "NOT n > 18"),
    (Call("is null", (INT,)), "n IS NULL"),
    (Call("is null", (AGE,)), "(n > 18) IS NULL"),
    (Call("<=>", (AGE, Literal(True, pa.bool_()))), "(n > 18) <=> TRUE"),
    (Call("*", (Call("+", (INT, INT), pa.int64()), INT), pa.int64()), "(n + n) * n"),
    (Call("cast", (INT,), pa.decimal128(4, 2)), "CAST(n AS DECIMAL(4,2))"),
    (Call("starts with", (Column("right", "s", pa.string()), Literal("a", pa.string()))), "s STARTS WITH 'a'"),
]


@pytest.mark.parametrize(("expression", "text"), TEXTS)
def test_an_expression_as_a_person_writes_it(expression, text):
    assert to_text(expression) == text


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        (None, pa.int64(), "NULL"),
        (True, pa.bool_(), "TRUE"),
        (-1, pa.int64(), "-1"),
        (b"\xff", pa.binary(), "X'FF'"),
        (Decimal("1.50"), pa.decimal128(4, 2), "1.50"),
        (dt.datetime(2013, 1, 1, 5), TIMESTAMP_NTZ, "TIMESTAMP '2013-01-01 05:00:00'"),
        (NAN, pa.float64(), "nan"),
    ],
)
def test_a_literal_as_a_person_writes_it(value, type_, text):
    assert literal_text(literal(value, type_)) == text


TEXT, FLAG = Column("left", "t", pa.string()), Column("left", "f", pa.bool_())
BIG = Column("left", "b", pa.int64())
VALUES = {
    "coalesce": (
        Call("coalesce", (TEXT, Literal("x", pa.string())), pa.string()), ["a", "x", ""], "coalesce(left.t, 'x')"
    ),
    "concat": (
        Call("concat", (TEXT, Literal("-", pa.string()), TEXT), pa.string()), ["a-a", None, "-"],
        "concat(left.t, '-', left.t)",
    ),
    "if": (
        Call("if", (FLAG, BIG, Literal(None, pa.int64())), pa.int64()), [1, None, None], "if(left.f, left.b, NULL)"
    ),
    "try_cast": (Call("try_cast", (BIG,), pa.int8()), [1, None, -128], "TRY_CAST(left.b AS TINYINT)"),
}  # fmt: skip


@pytest.mark.parametrize("op", VALUES)
def test_an_operator_of_computed_columns(op):
    columns = {"t": pa.array(["a", None, ""]), "f": pa.array([True, None, False]), "b": pa.array([1, 2**40, -128])}
    expression, expected, text = VALUES[op]
    values = evaluate(expression, lambda column: columns[column.name])
    assert (values.to_pylist(), values.type) == (expected, expression.type)
    again = pickle.loads(pickle.dumps(expression))
    assert (again, hash(again)) == (expression, hash(expression))
    assert to_text(expression) == text


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_an_integer_that_does_not_fit_is_null(bits):
    most = 2 ** (bits - 1)
    numbers = [-(2**63), -most - 1, -most, 0, most - 1, most, 2**63 - 1]
    narrow = pa.int8() if bits == 8 else pa.int16() if bits == 16 else pa.int32()
    found = evaluate(Call("try_cast", (BIG,), narrow), lambda column: pa.array(numbers))
    assert found.to_pylist() == [number if -most <= number < most else None for number in numbers]


def test_every_operator_is_tried_here():
    assert set(OPERATORS) == set(MODEL) | {"+", "-", "*"}
    assert {*VALUE_OPERATORS, "try_cast"} == set(VALUES)


@pytest.mark.parametrize(("value", "count"), [(True, 3), (False, 0), (None, 0)])
def test_keep_with_a_constant_keeps_all_rows_or_none(value, count):
    table = pa.table({"n": [1, 2, 3]})
    assert keep(table, [Literal(value, pa.bool_())]).num_rows == count


def test_a_timestamp_is_counted_from_1970():
    moment = dt.datetime(1970, 1, 2, tzinfo=dt.UTC)
    assert literal(moment, pa.timestamp("us", "UTC")) == Literal(86_400_000_000, pa.timestamp("us", "UTC"))
    assert python_value(Literal(0, pa.timestamp("us"))) == dt.datetime(1970, 1, 1)
