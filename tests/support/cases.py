"""Hypothesis strategies for joins: schemas, rows, conditions, options. Plain data, independent of Spark.

The left side is `o`, the lookup table `t`. Keys are `k0`, `k1`, … on the left and `b0`, `b1`, … on the right
(or `k0`, `k1`, … on both); `v` and `w` are small numbers, `s` and `u` strings, `x` and `y` of any comparable types.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property

import pyarrow as pa
from hypothesis import strategies as st
from pairwise import covering
from session_settings import DRAWN, in_parts

from lookupcache.schema import parse_type, quote

HOWS = ("inner", "left", "semi", "anti")
SOURCES = (
    "memory", "superset", "filtering", "async", "sql", "memory", "superset", "filtering", "async", "sql",
    "function", "function async", "functions", "functions async",
)  # fmt: skip
"""The sources: connectors, and functions for one key or for many keys."""


@dataclass(frozen=True)
class Session:
    """Settings of a Spark session; cases with equal settings share a job."""

    ansi: bool = True
    zone: str = "UTC"
    arrow_rows: int = 10_000
    partitions: int = 1
    others: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Side:
    """Rows with their schema."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple, ...]

    @cached_property
    def text(self) -> str:
        return repr(self)

    @property
    def ddl(self) -> str:
        """What TIMESTAMP is, is for a setting to say."""
        names = {"timestamp": "TIMESTAMP_LTZ"}
        return ", ".join(f"{quote(name)} {names.get(type_, type_).upper()}" for name, type_ in self.columns)

    def table(self) -> pa.Table:
        """Return the rows as Arrow; floats are rounded explicitly, which Arrow does not do by default."""
        types = [parse_type(type_) for _, type_ in self.columns]
        values = zip(*self.rows, strict=True) if self.rows else [()] * len(types)
        arrays = [_array(list(column), type_) for column, type_ in zip(values, types, strict=True)]
        return pa.table(arrays, names=[name for name, _ in self.columns])


def _array(values: list, type_: pa.DataType) -> pa.Array:
    if type_ == pa.float32():
        return pa.array(values, pa.float64()).cast(type_, safe=False)
    return pa.array(values, type_)


@dataclass(frozen=True)
class AsOf:
    """The time of an as-of join, a left column, and the columns of the table's version or of its period."""

    time: str
    columns: tuple[str, ...]

    @property
    def options(self) -> dict[str, str]:
        kind = "version" if len(self.columns) == 1 else "period"
        return {f"lookup.as-of.{kind}": ", ".join(self.columns)}


@dataclass(frozen=True)
class Case:
    """One complete join; its `repr` is sufficient to run it again."""

    left: Side
    right: Side
    on: str | tuple[str, ...]
    how: str
    select: tuple[str, ...] | None
    where: str | None
    source: str
    options: tuple[tuple[str, str], ...]
    spread: str
    session: Session
    as_of: AsOf | None = None
    sets: int = 1
    """Of how many sets the rows are, each of which is joined for itself."""

    @cached_property
    def text(self) -> str:
        return repr(self)

    def in_own_case(self) -> Case:
        """Return a case whose result names columns as they are written, where the session tells cases apart."""
        if self.select is None or ("spark.sql.caseSensitive", "true") not in self.session.others:
            return self
        return replace(self, select=tuple(re.sub(r"\b[OSV]\b", lambda name: name[0].lower(), i) for i in self.select))

    def with_names(self, names: Mapping[str, str]) -> Case:
        """Return a case with other names of some columns, which are qualified wherever it reads them."""

        def text(sql: str) -> str:
            return re.sub(r"\b([ot])\.(\w+)", lambda f: f"{f[1]}.{quote(names[f[2]])}" if f[2] in names else f[0], sql)

        left, right = (
            replace(side, columns=tuple((names.get(name, name), type_) for name, type_ in side.columns))
            for side in (self.left, self.right)
        )
        select = self.select and tuple(map(text, self.select))
        return replace(
            self, left=left, right=right, on=text(self.on), select=select, where=self.where and text(self.where)
        )

    @property
    def table_options(self) -> dict[str, str]:
        """The options of the lookup table, also those that say which rows are of a time; without its connector's."""
        return dict(self.options) | ({} if self.as_of is None else self.as_of.options)


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────

NAN, INF = float("nan"), math.inf


def _moments(*texts: str) -> list[dt.datetime]:
    return [dt.datetime.fromisoformat(text) for text in texts]


_NTZ = _moments(
    "1970-01-01", "2020-03-29", "2020-03-29 02:30:00", "2020-10-25 02:30:00", "2020-10-25 01:30:00.000001",
    "0001-01-03", "9999-12-30 23:59:59.999999", "1582-10-15", "2020-03-28 23:00:00", "2020-03-29 04:00:00",
)  # fmt: skip
VALUES: dict[str, list] = {
    "tinyint": [0, 1, 2, -1, 127, -128],
    "smallint": [0, 1, 2, -1, 127, 128, -128, 256, 257, 2**15 - 1, -(2**15)],
    "int": [0, 1, 2, -1, 127, 128, 256, 257, 65536, 65537, 2**24 + 1, 2**31 - 1, -(2**31)],
    "bigint": [0, 1, 2, -1, 127, 128, 256, 65536, 2**32, 2**32 + 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)],
    "float": [0.0, -0.0, 1.0, 2.0, -1.0, 1.5, 0.1, 127.0, 16777216.0, NAN, INF, -INF, NAN, -0.0, 1e-45, 3.4028234e38],
    "double": [0.0, -0.0, 1.0, 2.0, -1.0, 1.5, 0.1, 0.10000000149011612, 127.0, 16777217.0, 2147483647.0,
               NAN, INF, -INF, NAN, -0.0, 5e-324, 1.7976931348623157e308],
    "decimal(4,1)": [Decimal(n) for n in ("0.0", "1.0", "2.0", "1.5", "-1.0", "127.0", "999.9", "-999.9")],
    "decimal(10,2)": [Decimal(n) for n in ("0.00", "1.00", "2.00", "1.50", "1.55", "-1.00", "127.00", "99999999.99")],
    "decimal(20,0)": [Decimal(n) for n in ("0", "1", "2", "-1", "127", "128", "9223372036854775807", "9" * 20)],
    "decimal(38,0)": [Decimal(n) for n in ("0", "1", "2", "-1", "9223372036854775808", "9" * 38, "-" + "9" * 38)],
    "decimal(38,18)": [Decimal(n) for n in ("0", "1", "2", "1.5", "-1", "1.000000000000000001", "9" * 20)],
    "string": ["", "a", "a ", "A", "ab", "b", "é", "e\u0301", "ß", "a\0", "1", "NaN", "null", "it's", "its", "a_b",
               "a%", "\\", "\U0001f600", "\ufffd", " a", "2020-03-29", "x" * 300],
    "binary": [b"", b"a", b"a\0", b"\xff", b"\xff" * 9, b"\x00"],
    "boolean": [True, False],
    "date": [dt.date(1970, 1, 1), dt.date(2020, 3, 29), dt.date(2020, 10, 25), dt.date(1582, 10, 15), dt.date(1, 1, 3),
             dt.date(9999, 12, 30)],
    "timestamp": [moment.replace(tzinfo=dt.UTC) for moment in _NTZ],
    "timestamp_ntz": _NTZ,
}  # fmt: skip
INTEGERS = ("tinyint", "smallint", "int", "bigint")
DECIMALS = ("decimal(4,1)", "decimal(10,2)", "decimal(20,0)", "decimal(38,0)", "decimal(38,18)")
MOMENTS = ("date", "timestamp", "timestamp_ntz")
PAIRS: list[tuple[str, str]] = [
    *((type_, type_) for type_ in VALUES),
    *((a, b) for a in INTEGERS for b in INTEGERS if a != b),
    *((a, b) for a in MOMENTS for b in MOMENTS if a != b),
    ("int", "decimal(10,2)"), ("tinyint", "decimal(4,1)"), ("bigint", "decimal(20,0)"), ("bigint", "decimal(38,0)"),
    ("smallint", "decimal(4,1)"), ("decimal(4,1)", "int"), ("decimal(10,2)", "bigint"), ("decimal(20,0)", "bigint"),
    ("decimal(20,0)", "tinyint"), ("decimal(4,1)", "decimal(10,2)"), ("decimal(10,2)", "decimal(4,1)"),
    ("decimal(20,0)", "decimal(10,2)"), ("decimal(38,18)", "decimal(10,2)"), ("decimal(20,0)", "decimal(38,0)"),
    ("int", "double"), ("tinyint", "double"), ("smallint", "float"), ("double", "int"), ("double", "smallint"),
    ("float", "tinyint"), ("float", "double"), ("double", "float"), ("tinyint", "float"),
]  # fmt: skip
LOSSY = [("bigint", "double"), ("int", "float"), ("decimal(10,2)", "double"), ("string", "int"), ("date", "string")]
"""Pairs of types that a lookup refuses as keys although Spark would compare them."""


def alike(a, b) -> bool:
    """Return whether two values may be equal after a cast to a common type; dates and times by their day."""
    if isinstance(a, dt.date) and isinstance(b, dt.date):
        return (a.year, a.month, a.day) == (b.year, b.month, b.day)
    return a == b or (a != a and b != b)


@functools.cache
def shared_values(type_: str, other: str) -> list:
    """Return the values of a type that have an equal one in another type."""
    return [value for value in VALUES[type_] if any(alike(value, one) for one in VALUES[other])]


@st.composite
def _pools(draw, pair: tuple[str, str]):
    """Draw a few values for a column of each side, so that rows match."""
    left, right = shared_values(*pair), shared_values(*reversed(pair))
    few = draw(st.lists(st.sampled_from(left), min_size=1, max_size=2)) if left else []
    met = [b for b in right if any(alike(a, b) for a in few)]
    return (_column(pair[0], few), _column(pair[1], met))


def _column(type_: str, few: list) -> st.SearchStrategy:
    often = st.sampled_from(few or VALUES[type_])
    return st.one_of(*[often] * 9, st.sampled_from([*VALUES[type_], None]))


# ── conditions ───────────────────────────────────────────────────────────────────────────────────────────

_NUMBERS = ["0", "1", "2", "-1", "1L", "1.0", "1.5", "1.50", "127", "128", "0.1", "1e0", "0.1D", "NULL",
            "CAST(1 AS TINYINT)", "2147483648", "1 + 1", "abs(-1)"]  # fmt: skip
_DECIMAL_LITERALS = ["0", "1", "1.5", "1.50", "1.555", "-1", "2.00", "CAST(1.5 AS DECIMAL(4,1))", "NULL", "1.0 + 0.5"]
_FLOATS = ["0", "1", "1.5", "0.1D", "CAST(0.1 AS FLOAT)", "CAST('NaN' AS DOUBLE)", "-0.0D", "0.0D", "1e0", "NULL",
           "1.5F", "CAST('Infinity' AS DOUBLE)", "float('NaN')", "1.0D / 2"]  # fmt: skip
LITERALS: dict[str, Sequence[str]] = {
    **dict.fromkeys(INTEGERS, _NUMBERS),
    **dict.fromkeys(DECIMALS, _DECIMAL_LITERALS),
    "float": _FLOATS,
    "double": _FLOATS,
    "string": ["''", "'a'", "'a '", "'A'", "'é'", '"a"', "'it\\'s'", "'it''s'", "'\\\\'", "'1'", "'NaN'", "NULL",
               "'a_b'", "'b'", "upper('a')", "r'\\'", "'a' || 'b'", "'\\u0061'", "'\\0'"],
    "binary": ["X'61'", "X''", "X'FF'", "NULL", "CAST('a' AS BINARY)", "X'6100'"],
    "boolean": ["true", "false", "NULL", "NOT true", "1 = 1"],
    "date": ["DATE'2020-03-29'", "'2020-03-29'", "'2020-3-29'", "DATE '1970-01-01'", "NULL",
             "date_add(DATE'2020-03-28', 1)", "TIMESTAMP'2020-03-29 00:00:00'", "TIMESTAMP_NTZ'2020-03-29 00:00:00'",
             "'1970-01-01 00:00:00'"],
    "timestamp": ["TIMESTAMP'2020-03-29 00:00:00'", "TIMESTAMP'2020-03-29 02:30:00'", "'2020-03-29'", "NULL",
                  "'2020-03-29 00:00:00Z'", "DATE'2020-03-29'", "TIMESTAMP_NTZ'2020-10-25 02:30:00'",
                  "'2020-10-25 02:30:00'", "timestamp_micros(0)", "TIMESTAMP_LTZ'1970-01-01 00:00:00Z'"],
    "timestamp_ntz": ["TIMESTAMP_NTZ'2020-03-29 02:30:00'", "TIMESTAMP'2020-03-29 00:00:00'", "'2020-03-29'", "NULL",
                      "DATE'2020-03-29'", "'2020-10-25 02:30:00'", "CAST('1970-01-01' AS TIMESTAMP_NTZ)"],
}  # fmt: skip
_OPERATORS = ["=", "<>", "!=", "<", "<=", ">", ">=", "<=>", "=="]
_OF_ANY = ["{c} IS NOT NULL", "{c} IS NULL", "NOT ({c} IS NULL)", "{c} <=> NULL", "{c} = {c}", "NOT ({c} <=> NULL)",
           "crc32(to_json(struct({c}, 1))) % 2 = 0", "crc32(typeof(({c}, {c}))) % 2 = 0"]  # fmt: skip
_OF_TEXT = ["{c} LIKE 'a%'", "{c} LIKE '%a'", "{c} LIKE '%a%'", "{c} LIKE 'a'", "{c} NOT LIKE 'a%'", "{c} LIKE ''",
            "{c} LIKE '%'", "startswith({c}, 'a')", "contains({c}, 'a')", "endswith({c}, ' ')",
            "{c} LIKE 'a\\\\_%'", "{c} LIKE '_'", "startswith({c}, CAST(NULL AS STRING))",
            "NOT contains(CAST(NULL AS STRING), {c})", "{c} LIKE CAST(NULL AS STRING)", "{c} NOT LIKE NULL",
            "endswith({c}, NULL) IS NULL"]  # fmt: skip
_LOOSE = ["{c} = {c} IS NULL", "NOT {c} <> {c} IS NOT NULL", "{c} IS NULL OR TRUE AND {c} = {c} IN (TRUE)",
          "TRUE = {c} = {c}", "NOT {c} = {c} IS NULL AND NULL OR {c} <=> {c} BETWEEN TRUE AND TRUE",
          "{c} < {c} = FALSE", "! {c} <=> NULL"]  # fmt: skip
"""Without parentheses: all that binds them is the grammar."""
ODD_NAMES = ["a.b", "a b", "a`b", "it's", 'a"', "é", "select", "--", "x -> y", "lookup_l0", "lookup_r1_w", "found",
             "matches", "a0", "s0", "row", "latest", "lookup_row", "*"]  # fmt: skip
"""Names that SQL writes in quotes, and those of columns inside the job."""
_ALONE = [
    "TRUE",
    "NULL",
    "NULL OR TRUE",
    "FALSE",
    "NOT FALSE",
    "1 = 1 IS TRUE",
    "NOT NULL",
    "TRUE = TRUE",
    "o.v",
    "t.w IN (1) IS TRUE",
    "explode(array(t.w)) = o.v",
]
_OF_NUMBERS = [
    "{c} + 1 > 1",
    "{c} * 2 <= 2",
    "1 - {c} < 1",
    "{c} BETWEEN 0 AND 1.5",
    "-{c} < 0",
    "{c} + CAST(NULL AS INT) > 1",
    "{c} BETWEEN NULL AND 1",
    "NOT ({c} IN (1, NULL))",
]
_FOR_SPARK: dict[str, Sequence[str]] = {
    **dict.fromkeys(INTEGERS, ("{c} % 2 = 0", "CAST({c} AS STRING) LIKE '1%'", "{c} DIV 2 = 0", "{c} <> 7")),
    **dict.fromkeys(DECIMALS, ("round({c}) = 1", "CAST({c} AS STRING) LIKE '1%'", "coalesce({c}, 1) >= 1")),
    **dict.fromkeys(("float", "double"), ("isnan({c})", "nanvl({c}, 1) = 1", "CAST({c} AS STRING) = '-0.0'",
                                          "abs({c}) < 2")),
    "string": ["length({c}) > 1", "upper({c}) = 'A'", "{c} RLIKE '^a'", "trim({c}) = 'a'", "{c} || 'b' = 'ab'",
               "{c} ILIKE 'A%'"],
    "binary": ["hex({c}) = '61'", "length({c}) = 1"],
    "boolean": ["if({c}, 1, 2) = 1", "coalesce({c}, true)"],
    **dict.fromkeys(MOMENTS, ("year({c}) = 2020", "CAST({c} AS STRING) LIKE '2020%'", "date_trunc('YEAR', {c}) < {c}")),
}  # fmt: skip
_BOTH_FOR_SPARK = ["substring(o.s, 1, 1) < substring(t.u, 1, 1)", "o.v % 2 = t.w % 2", "concat(o.s, t.u) LIKE '%a%'",
                   "coalesce(o.v, t.w) = 1", "length(o.s) >= length(t.u)", "o.v IN (t.w, 1)", "greatest(o.v, t.w) > 1",
                   "CASE WHEN o.v > 1 THEN t.w > 1 ELSE t.u IS NULL END",
                   "to_json(struct(t.w, V)) LIKE '%\"w\":1,\"V\":1%'", "crc32(to_json((t.u, o.n.a, o.v))) % 2 = 0",
                   "to_json(arrays_zip(array(o.v), array(t.w), o.n.b)) <> to_json(arrays_zip(array(o.v), o.n.b))",
                   "exists(array(o.v), one -> crc32(to_json(struct(one, (t.w), w, `s`))) % 2 = 0)",
                   *(f"exists(array(o.v, 1), {name} -> {name} > t.w AND o.v = 1)"
                     for name in ("r0", "r1", "r2", "r3", "l0", "l1", "k0", "age", "error", "m", "n"))]  # fmt: skip
_BOTH = ["o.v < t.w", "o.v <> t.w", "o.v <=> t.w", "o.s <= t.u", "o.v + 1 < t.w + 2", "o.x <=> t.y", "o.x < t.y",
         "NOT (o.x = t.y)", "o.v = 1 OR t.w = 1", "o.s = 'a' OR t.u LIKE 'a%'", "o.v BETWEEN t.w AND 2",
         "o.v IS NULL OR t.w IS NOT NULL", "t.w = o.v OR false", "o.x >= t.y", "o.s <=> t.u"]  # fmt: skip
_OF_STARS = "crc32(to_json(struct(t.* EXCEPT (w), o.v))) % 3 <> 0 AND hash(t.*, o.s) IS NOT NULL"
_OF_FUNCTIONS = ["measured(t.u) > o.v", "o.v = 1 OR measured(t.u) < 2", "measured(t.u) <> 1"]
"""Conditions with a Python function over the table; Spark's join calls none over both sides."""
_GUARDED = ["t.w % 100 = t.w AND t.w * 300S <> 0", "t.w % 100 = t.w AND o.v <= t.w * 300S",
            "o.v <= t.w * 300S AND t.w % 100 = t.w"]  # fmt: skip
"""Products that overflow only where a condition that Spark evaluates before is false."""
_KEYS_OF_TEXT = ["upper({c})", "trim({c})", "concat({c}, '')", "nullif({c}, 'a')", "substring({c}, 1, 1)"]
_KEYS_OF_NUMBERS = ["{c} + 0", "-{c}", "abs({c})", "{c} * 1", "CAST({c} AS DECIMAL(20,0))", "{c} % 100"]
_EQUALITIES = ["{0} = {1}", "{1} = {0}", "({0} == {1})"] * 3 + [
    "NOT ({0} <> {1})", "({0} = {1}) IS TRUE", "{1} IN ({0})", "({0} = {1}) = TRUE", "{1} BETWEEN {0} AND {0}",
    "{0} = {1} = TRUE", "({0} <> {1}) != TRUE", "NOT ({0} = {1} = FALSE)",
]  # fmt: skip
_KEYS_OF_ANY = [
    "coalesce({c}, {l})",
    "CASE WHEN o.v > 1 THEN {c} END",
    "nullif({c}, {l})",
    "if(o.v IS NULL, NULL, {c})",
]


_KINDS = [*["left", "right", "right", "right", "pair", "pair", "both", "both", "constant", "constant"] * 2,
          *["again", "nested", "loose", "guarded"] * 2, "alone", "function"]  # fmt: skip
"""Kinds of conjuncts in addition to the keys."""

rarely = st.sampled_from([False] * 20 + [True] + [False] * 19)
seldom = st.sampled_from([False, False, True, False, False])


def _is_number(type_: str) -> bool:
    return type_ in INTEGERS or type_ in DECIMALS or type_ in ("float", "double")


def _comparable(a: str, b: str) -> bool:
    return a == b or (_is_number(a) and _is_number(b)) or (a in MOMENTS and b in MOMENTS)


@st.composite
def _tests(draw, column: str, type_: str) -> str:
    """Draw a condition on one column, mostly one that a worker can evaluate."""
    literals = st.sampled_from(LITERALS[type_])
    kind = draw(st.sampled_from(["compare", "compare", "any", "in", "between", "own", "own", "spark", "flipped"]))
    if kind == "compare":
        return f"{column} {draw(st.sampled_from(_OPERATORS))} {draw(literals)}"
    if kind == "flipped":
        return f"{draw(literals)} {draw(st.sampled_from(_OPERATORS))} {column}"
    if kind == "in":
        items = ", ".join(draw(st.lists(literals, min_size=1, max_size=3)))
        return f"{column} {draw(st.sampled_from(['IN', 'NOT IN']))} ({items})"
    if kind == "between":
        return f"{column} {draw(st.sampled_from(['', 'NOT ']))}BETWEEN {draw(literals)} AND {draw(literals)}"
    return draw(st.sampled_from(_templates(kind, type_))).format(c=column)


def _templates(kind: str, type_: str) -> Sequence[str]:
    if kind == "spark":
        return _FOR_SPARK[type_]
    if kind == "own" and type_ == "string":
        return _OF_TEXT
    if kind == "own" and type_ == "boolean":
        return ["{c}", "NOT {c}", "{c} IS TRUE", "{c} IS NOT FALSE"]
    return _OF_NUMBERS if kind == "own" and type_ in ("smallint", "double") else _OF_ANY


@st.composite
def _filters(draw, columns) -> str:
    """Draw a condition on the columns of one side, with one or two comparisons, rarely with more."""
    tests = [draw(_tests(*draw(st.sampled_from(columns)))) for _ in range(draw(st.sampled_from([1] * 6 + [2, 2, 5])))]
    if len(tests) > 2:
        return f"NOT ({draw(st.sampled_from([' OR ', ' AND '])).join(f'({test})' for test in tests)})"
    if len(tests) == 1:
        return draw(st.sampled_from(["{}", "{}", "NOT ({})", "({})"])).format(*tests)
    return draw(st.sampled_from(["({} OR {})", "{} AND {}", "NOT ({} AND {})", "NOT ({} OR {})"])).format(*tests)


@st.composite
def _key(draw, pair: tuple[str, str], left: str, right: str) -> str:
    """Draw an equality of a left expression, mostly a column, and a key column."""
    expression = left
    if draw(seldom):
        own = _KEYS_OF_TEXT if pair[0] == "string" else _KEYS_OF_NUMBERS if _is_number(pair[0]) else []
        form = draw(st.sampled_from([*own, *_KEYS_OF_ANY]))
        expression = form.format(c=left, l=draw(st.sampled_from(LITERALS[pair[0]])))
    return draw(st.sampled_from(_EQUALITIES)).format(expression, right)


@st.composite
def _conditions(draw, pairs, left, right, right_keys) -> str:
    """Draw an ON condition: keys and other conjuncts, in any order."""
    parts = [draw(_key(pair, f"o.k{n}", f"t.{right_keys[n]}")) for n, pair in enumerate(pairs)]
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 1, 1, 2, 3]))):
        kind = draw(st.sampled_from(_KINDS))
        part = draw(_part(kind, left, right, right_keys))
        parts.append(f"({part})" if " OR " in part else part)
    if draw(rarely):
        parts = parts[len(pairs) :] or parts
    return draw(st.sampled_from([" AND ", " and ", "\n  AND "])).join(draw(st.permutations(parts)))


@st.composite
def _part(draw, kind: str, left, right, right_keys) -> str:
    if kind == "left":
        return draw(_filters(left))
    if kind == "right":
        return draw(_filters(right))
    if kind == "alone":
        return draw(st.sampled_from(_ALONE))
    if kind == "loose":
        return draw(st.sampled_from(_LOOSE)).format(c=draw(st.sampled_from(right))[0])
    if kind == "both":
        return draw(st.sampled_from([*_BOTH, *_BOTH_FOR_SPARK]))
    if kind == "guarded":
        return draw(st.sampled_from(_GUARDED))
    if kind == "function":
        return draw(st.sampled_from(_OF_FUNCTIONS))
    if kind == "nested":
        return draw(st.sampled_from(["o.n.a = t.w", "o.n.b[0] = t.u", "size(o.n.b) > 0", "t.w = o.n.a + 0"]))
    column, type_ = draw(st.sampled_from(right))
    if kind == "constant":
        return f"{column} = {draw(st.sampled_from(LITERALS[type_]))}"
    keys = range(len(right_keys) if kind == "again" else len(right))
    comparing = [(a, b) for a in keys for b in keys if _comparable(left[a][1], right[b][1])]
    a, b = draw(st.sampled_from(comparing or [(0, 0)]))
    if kind == "pair":
        return f"{left[a][0]} {draw(st.sampled_from(_OPERATORS))} {right[b][0]}"
    return f"o.k{a} = t.{right_keys[b]}"


# ── results and options ──────────────────────────────────────────────────────────────────────────────────

_SELECTED = ["o.k0", "o.v", "s", "o.v % 9 + t.w AS sum", "upper(t.u) AS upper", "coalesce(t.w, -1) AS w_or", "t.y",
             "t.w", "t.u AS text", "o.x", "n.a AS a", "n", "concat(o.s, t.u) AS together",
             "t.w <=> CAST(NULL AS VOID) AS select", "O.V % 9", "o.v IS NULL", "n.b[0]", "upper(S)",
             "struct(V, t.w AS from) AS pair", "struct(s, n.a)", "to_json((t.u, o.v, S)) AS json",
             "typeof(struct(o.x, t.y))", "struct(*) AS every", "struct(t.* EXCEPT (u), o.v) AS few",
             "to_json(struct(t.*)) AS text_of_t", "hash(t.*)", "named_struct('a', V).a", "array(o.n)[0].a",
             "struct(o.*) AS lefts", "struct(CAST(t.u AS STRING COLLATE UTF8_LCASE) = 'A', "
             "parse_json(to_json((o.v, t.w))):v::INT) AS of_spark_4",
             "arrays_zip(n.b, array(t.u)) AS zipped", "transform(n.b, i -> struct(i, t.w, v)) AS each"]  # fmt: skip
_CONSTANT = ["1 AS one", "'x'", "NULL AS nothing", "1 + 1"]
"""A result that reads no column of either side; some have no name of their own."""
_OPTIONS: list[dict[str, str]] = [
    {},
    {"lookup.cache": "LRU"},
    {"lookup.cache": "LRU", "lookup.cache.max-rows": "1"},
    {"lookup.cache": "LRU", "lookup.cache.max-rows": "3", "lookup.cache.missing-key": "false"},
    {"lookup.cache": "LRU", "lookup.cache.max-bytes": "4kb"},
    {"lookup.cache": "LRU", "lookup.cache.max-rows": "3", "lookup.cache.eviction": "s3-fifo"},
    {"lookup.cache": "LRU", "lookup.cache.max-rows": "2", "lookup.cache.eviction": "s3-fifo",
    "lookup.cache.expire-after-write": "1 ms"},
    {"lookup.cache": "TTL", "lookup.cache.expire-after-write": "1 ms"},
    {"lookup.cache": "TTL", "lookup.cache.expire-after-write": "2 ms", "lookup.cache.jitter": "0.9"},
    {"lookup.cache": "LRU", "lookup.cache.refresh-after-write": "0 ms"},
    {"lookup.cache": "LRU", "lookup.cache.max-rows": "2", "lookup.cache.refresh-after-write": "0 ms"},
    {"lookup.cache": "TTL", "lookup.cache.expire-after-write": "1 ms", "lookup.cache.stale-if-error": "1 h"},
    {"lookup.cache": "TTL", "lookup.cache.expire-after-access": "1 h",
    "lookup.cache.missing-key.expire-after-write": "1 ms"},
    {"lookup.cache": "ALL"},
    {"lookup.cache": "ALL", "lookup.age-column": "lookup_age"},
    {"lookup.cache": "ALL", "lookup.cache.reload-interval": "1 ms"},
]  # fmt: skip


ALLOWED = re.compile(
    "without a lossy or surprising cast|(has|is) no key for table|the join has no|is a function of"
    "|Spark cannot compute the constant|out of the years"
)
"""Why a join may be refused that Spark would make."""

AGE, ERROR = "lookup_age", "lookup_error"
"""The result columns that some options add."""

_MARKS: list[dict[str, str]] = [
    {"lookup.age-column": AGE},
    {"lookup.on-error": "null", "lookup.error-column": ERROR},
    {"lookup.on-error": "null", "lookup.error-column": ERROR, "lookup.age-column": AGE},
]
_LOOKS_AGAIN = {"lookup.retry.on-miss.max-attempts": "1", "lookup.retry.on-miss.delay": "0 s"}


@st.composite
def _asking(draw) -> dict[str, str]:
    """Draw how the source is called: concurrent calls, keys per call, and the order of results."""
    options = {}
    if draw(st.booleans()):
        options["lookup.batch.max-size"] = draw(st.sampled_from(["1", "2", "3"]))
    if draw(st.booleans()):
        options["lookup.async"] = "true"
        options["lookup.async.capacity"] = draw(st.sampled_from(["2", "3", "4"]))
    if draw(seldom):
        options["lookup.async.output-mode"] = "allow-unordered"
    if draw(seldom):
        options["lookup.batch.max-delay"] = "1 ms"
    return options


@st.composite
def _all_options(draw, source: str) -> tuple[tuple[str, str], ...]:
    options = dict(draw(st.sampled_from(_OPTIONS)))
    if source.startswith("function") and options.get("lookup.cache") == "ALL":
        options = {}
    options |= draw(_asking())
    if draw(seldom):
        options |= draw(st.sampled_from(_MARKS))
    if draw(seldom) and options.get("lookup.cache") != "ALL":
        options |= _LOOKS_AGAIN
    if draw(seldom):
        options["lookup.shuffle"] = "true"
    options["lookup.metrics"] = draw(st.sampled_from(["auto", "auto", "observe", "off"]))
    return tuple(options.items())


@st.composite
def _selects(draw, how: str, shared_names: bool):
    if not shared_names and draw(st.booleans()):
        return None
    if draw(seldom):
        return tuple(draw(st.lists(st.sampled_from(_CONSTANT), min_size=1, max_size=2, unique=True)))
    items = draw(st.lists(st.sampled_from(_SELECTED), min_size=1, max_size=6, unique=True))
    if how in ("semi", "anti"):
        items = [item for item in items if "t." not in item]
    return tuple(items) or ("o.k0",)


# ── a whole case ─────────────────────────────────────────────────────────────────────────────────────────


def in_sqlite(value):
    """Return a value, or a replacement where SQLite cannot store it: it has no NaN, and stores -0.0 as 0."""
    is_stored = not isinstance(value, float) or (value == value and (value != 0 or math.copysign(1, value) > 0))
    return value if is_stored else 0.5


@st.composite
def _rows(draw, columns: list[st.SearchStrategy], most: int) -> tuple[tuple, ...]:
    return tuple(
        draw(st.lists(st.tuples(*columns), min_size=draw(st.sampled_from([most // 2, most // 2, 0])), max_size=most))
    )


MANY = int(os.environ.get("LOOKUPCACHE_CASES", "0")) >= 1_000
"""Whether more is drawn than by day: few draws are the same in each run."""
_STARS = st.sampled_from([None, None, ("*",), ("o.*",)])
_ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo"]
_OLD = in_parts({name: value for name, value in DRAWN.items() if ".legacy." in name}, 2)
_NEW = in_parts({name: value for name, value in DRAWN.items() if ".legacy." not in name}, 2)


def _sessions_with_every_pair() -> list[Session]:
    """Return sessions such that every two settings are there together, with each other's defaults, and apart."""
    values: dict[str, list] = {name: [None, value] for name, value in DRAWN.items()}
    kinds = {"ansi": [True, False], "zone": _ZONES, "partitions": [1, 2, 3]}
    return [
        Session(
            case["ansi"], case["zone"], [10_000, 1, 2, 3][number % 4], case["partitions"],
            tuple((name, case[name]) for name in DRAWN if case[name] is not None),
        )
        for number, case in enumerate(covering(values | kinds, lambda case: set()).cases)
    ]  # fmt: skip


SESSIONS = [
    Session(True, "UTC", 10_000, 1),
    Session(True, "Europe/Berlin", 1, 1),
    Session(True, "America/New_York", 3, 1, _NEW[0]),
    Session(True, "UTC", 3, 2, _NEW[1]),
    Session(False, "Europe/Berlin", 10_000, 1, _OLD[0]),
    Session(False, "UTC", 2, 3, _OLD[1]),
]
"""By day each setting is in one of a few sessions, for cases of one session share jobs; legacy rules without ANSI's."""
if MANY:
    SESSIONS = 2 * SESSIONS + _sessions_with_every_pair()


@st.composite
def cases(draw) -> Case:
    """Draw one join."""
    rare = draw(rarely)
    count = draw(st.sampled_from([1, 1, 1, 2, 2, 3]))
    pairs = [draw(st.sampled_from(LOSSY if rare and n == 0 else PAIRS)) for n in range(count)]
    other = draw(st.sampled_from(PAIRS))
    same_names = draw(seldom)
    right_keys = [f"{'k' if same_names else 'b'}{n}" for n in range(count)]
    source, how = draw(st.sampled_from(SOURCES)), draw(st.sampled_from(HOWS))
    kinds = [*pairs, ("int", "smallint"), ("string", "string"), other]
    pools = [draw(_pools(pair)) for pair in kinds]
    names = [f"k{n}" for n in range(count)] + ["v", "s", "x"], [*right_keys, "w", "u", "y"]
    left, right = ([(name, kind[side]) for name, kind in zip(names[side], kinds, strict=True)] for side in (0, 1))
    rights = [pool[1].map(in_sqlite) if source == "sql" else pool[1] for pool in pools]
    of_left, of_right = ([(f"{q}.{name}", type_) for name, type_ in side] for q, side in (("o", left), ("t", right)))
    using = same_names and draw(st.booleans())
    case = Case(
        left=Side(tuple(left), draw(_rows([pool[0] for pool in pools], 12))),
        right=Side(tuple(right), draw(_rows(rights, 8))),
        on=tuple(right_keys) if using else draw(_conditions(pairs, of_left, of_right, right_keys)),
        how=how,
        select=(draw(_STARS) if MANY else None) if using else draw(_selects(how, same_names)),
        where=draw(_wheres(how, of_left, of_right)) if not using and draw(seldom) else None,
        source=source,
        options=draw(_all_options(source)),
        spread=draw(st.sampled_from(["", "", "", "coalesce", "repartition"])),
        session=draw(st.sampled_from(SESSIONS)),
        as_of=None if using else draw(_as_ofs(other)),
    ).in_own_case()
    patterns = "spark.sql.parser.quotedRegexColumnNames" in dict(case.session.others)
    if using or patterns or case.as_of is not None or not draw(seldom):
        return case
    names = ("x", "y", "k0", "b0")
    odd = draw(st.lists(st.sampled_from(ODD_NAMES), min_size=len(names), max_size=len(names), unique=True))
    return case.with_names(dict(zip(names, odd, strict=True)))


_TIMES = {"date", "timestamp", "timestamp_ntz"}
_EXACT = {"tinyint", "smallint", "int", "bigint"}


def _as_ofs(other: tuple[str, str]) -> st.SearchStrategy[AsOf | None]:
    """Draw an as-of join over columns whose types compare: those of integers, or the last ones of both sides."""
    found = [AsOf("o.v", ("w",))]
    if other[1] in _EXACT:
        found.append(AsOf("o.v", ("w", "y")))
    if set(other) <= _TIMES or set(other) <= _EXACT:
        found.append(AsOf("o.x", ("y",)))
    return st.sampled_from([None] * (2 * len(found)) + found)


def _wheres(how: str, left, right) -> st.SearchStrategy[str]:
    if how in ("semi", "anti"):
        return _filters(left)
    return st.one_of(_filters(left), _filters(right), st.sampled_from([*_BOTH, *_BOTH_FOR_SPARK, _OF_STARS]))
