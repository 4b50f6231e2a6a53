"""Hypothesis strategies for filters, in the forms in which a plan passes them to a connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from lookupcache.expr import Call, Column, Expr, literal

_COMPARISONS = ("=", "<", "<=", ">", ">=", "<=>")
_STRING_TESTS = ("starts with", "ends with", "contains")
_NESTED = (pa.types.is_list, pa.types.is_struct, pa.types.is_map)


def filters_of(schema: pa.Schema, values: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[Expr]:
    """Draw filters on a table's columns; ``values`` contains for each column the values to compare it with.

    They are comparisons of columns with values and with each other, null tests, tests of strings, arithmetic on
    doubles, and integers cast to double. They are combined by AND, OR and NOT with boolean columns.
    """
    columns = [Column("right", field.name, field.type) for field in schema]
    plain = [column for column in columns if not any(is_nested(column.type) for is_nested in _NESTED)]
    tests = [_null_tests(columns), _comparisons(plain, values)]
    for of_type, draw_tests in _TYPED_TESTS:
        if chosen := [column for column in plain if of_type(column.type)]:
            tests.append(draw_tests(chosen, values))
    return st.recursive(st.one_of(tests), _combine, max_leaves=4)


def _combine(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pairs = st.builds(lambda op, a, b: Call(op, (a, b)), st.sampled_from(["and", "or"]), inner, inner)
    return st.one_of(pairs, inner.map(lambda one: Call("not", (one,))))


def _null_tests(columns: Sequence[Column]) -> st.SearchStrategy[Expr]:
    return st.sampled_from(columns).map(lambda column: Call("is null", (column,)))


@st.composite
def _comparisons(draw: st.DrawFn, columns: Sequence[Column], values: Mapping[str, Sequence[Any]]) -> Expr:
    column = draw(st.sampled_from(columns))
    alike = [other for other in columns if other.type == column.type]
    literals = [literal(value, column.type) for value in (*values[column.name], None)]
    sides = (column, draw(st.one_of(st.sampled_from(literals), st.sampled_from(alike))))
    return Call(draw(st.sampled_from(_COMPARISONS)), sides if draw(st.booleans()) else sides[::-1])


@st.composite
def _string_tests(draw: st.DrawFn, columns: Sequence[Column], values: Mapping[str, Sequence[Any]]) -> Expr:
    column = draw(st.sampled_from(columns))
    text = draw(st.sampled_from([value for value in values[column.name] if value is not None] or ["a"]))
    part = text[: draw(st.integers(0, 3))] if draw(st.booleans()) else text
    return Call(draw(st.sampled_from(_STRING_TESTS)), (column, literal(part, column.type)))


@st.composite
def _arithmetic(draw: st.DrawFn, columns: Sequence[Column], values: Mapping[str, Sequence[Any]]) -> Expr:
    column = draw(st.sampled_from(columns))
    one, other = (literal(draw(st.sampled_from([0.0, 1.0, 1.5, -2.0])), column.type) for _ in range(2))
    result = Call(draw(st.sampled_from(["+", "-", "*"])), (column, one), column.type)
    return Call(draw(st.sampled_from(_COMPARISONS)), (result, other))


@st.composite
def _casts(draw: st.DrawFn, columns: Sequence[Column], values: Mapping[str, Sequence[Any]]) -> Expr:
    double = Call("cast", (draw(st.sampled_from(columns)),), pa.float64())
    return Call(
        draw(st.sampled_from(_COMPARISONS)), (double, literal(draw(st.sampled_from([0.0, 1.5, 7.0])), pa.float64()))
    )


def _boolean_columns(columns: Sequence[Column], values: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[Expr]:
    return st.sampled_from(columns)


_TYPED_TESTS: list[tuple[Any, Any]] = [
    (pa.types.is_string, _string_tests),
    (pa.types.is_float64, _arithmetic),
    (pa.types.is_integer, _casts),
    (pa.types.is_boolean, _boolean_columns),
]
