"""Test values that sources often get wrong: for each Spark type its limits, its special values, and similar values.

A value that some sources cannot store has a trait that names why, such as ``nan`` or ``year 1``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ

JSON = {b"lookupcache.type": b"json"}
"""Metadata of a STRING field with JSON texts, which are equal if their parsed values are."""


@dataclass(frozen=True)
class Odd:
    """A value with the trait that a source must support to store it."""

    trait: str
    value: Any


def _moments(zone: dt.tzinfo | None) -> list[Any]:
    def at(*parts: int) -> dt.datetime:
        return dt.datetime(*parts, tzinfo=zone)  # type: ignore[misc, arg-type]

    return [
        at(1970, 1, 1), at(1969, 12, 31, 23, 59, 59, 999_999), at(2020, 3, 29, 2, 30), at(2020, 10, 25, 1, 30, 0, 1),
        at(2013, 1, 1, 5, 0, 0, 120_000), at(2038, 1, 19, 3, 14, 8), at(1900, 1, 1),
        at(9999, 12, 31, 23, 59, 59, 999_999), Odd("year 1", at(1, 1, 1)), Odd("year 1", at(1582, 10, 10, 12)),
    ]  # fmt: skip


HOSTILE_TEXTS = (
    "'", '"', "`", "''", "a'; DROP TABLE t; --", 'a" OR "1"="1', "' OR 1=1 --", "?", ":a", "$1", "%s", "%(a)s", "%",
    "_", "{id}", "{0}", "${id}", "{{id}}", "#{1+1}", "\\", "\\'", "\\0", "\n", "\r\n", "\t", "*", "[a]", "a:b", "a,b",
    "a/b", "../a", "..", ".", "?x=1", "#f", "a&b=c", "%2F", "+", "NULL", "null", "None", "true", "0", "\u202e",
    "\ufeff", "\uffff", "<a>&amp;</a>", "$(id)", "`id`", "*\r\n$1\r\n", Odd("nul", "\0"), Odd("nul", "a\0b"),
    Odd("long string", "long" * 5_000),
)  # fmt: skip
"""Strings that end a literal, a template, a path or a protocol's line if they are inserted unquoted."""

_INTEGERS = {
    "tinyint": (pa.int8(), 7),
    "smallint": (pa.int16(), 15),
    "int": (pa.int32(), 31),
    "bigint": (pa.int64(), 63),
}
_INF = float("inf")
_FRACTIONS = [0.0, 1.0, 1.5, -1.5, 0.25, Odd("negative zero", -0.0), Odd("infinity", _INF), Odd("infinity", -_INF),
              Odd("nan", float("nan"))]  # fmt: skip
_STRINGS = [
    "a", "A", "b", "é", "e\u0301", "ß", "ss", "😀", "中文", "007", "7", "1.0", "true", "2020-03-29", "it's", '"', "\\",
    Odd("empty string", ""), Odd("blank string", " "), Odd("blank string", "a "), Odd("blank string", " a"),
    Odd("blank string", "\t\n"), Odd("nul", "a\0b"), Odd("long string", "x" * 10_000),
]  # fmt: skip

_ITEM = pa.struct([("a", pa.int32()), ("b", pa.string())])
_DEEP = pa.struct(
    [("at", TIMESTAMP), ("many", pa.list_(pa.decimal128(10, 2))), ("named", pa.map_(pa.string(), pa.float64()))]
)

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{
        name: (type_, [0, 1, -1, 7, 10, 2**bits - 1, -(2**bits)])
        for name, (type_, bits) in _INTEGERS.items()
    },
    "float": (pa.float32(), [*_FRACTIONS, 0.10000000149011612, 3.4028234663852886e38, 16777216.0,
                             Odd("subnormal", 1.401298464324817e-45)]),
    "double": (pa.float64(), [*_FRACTIONS, 0.1, 0.30000000000000004, 1.7976931348623157e308, 9007199254740993.0, 1e23,
                              Odd("subnormal", 5e-324)]),
    "decimal(38,18)": (pa.decimal128(38, 18), [Decimal(text) for text in (
        "0", "1", "-1", "0.000000000000000001", "12345678901234567890.123456789012345678", "1.5", "-0.1")]),
    "decimal(38,0)": (pa.decimal128(38, 0), [Decimal(text) for text in ("0", "1", "9" * 38, "-" + "9" * 38, "10")]),
    "decimal(10,2)": (pa.decimal128(10, 2), [Decimal(text) for text in ("0", "1.5", "-0.01", "99999999.99", "100")]),
    "string": (pa.string(), _STRINGS),
    "binary": (pa.binary(), [b"a", b"\xff\xfe", bytes(range(256)), b"\x80", b"'\"\\", b"\0a", b"a\0",
                             Odd("empty binary", b"")]),
    "boolean": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2000, 2, 29), dt.date(2020, 3, 29),
                           dt.date(9999, 12, 31), Odd("year 1", dt.date(1, 1, 1)),
                           Odd("year 1", dt.date(1582, 10, 10))]),
    "timestamp": (TIMESTAMP, _moments(dt.UTC)),
    "timestamp_ntz": (TIMESTAMP_NTZ, _moments(None)),
    "array<string>": (pa.list_(pa.string()), [["a", "b"], [], [None], ["a", None, "it's, {}"], ["b", "a"]]),
    "array<int>": (pa.list_(pa.int32()), [[1, 2, 2], [], [None, -1]]),
    "struct<a:int,b:string>": (_ITEM, [{"a": 1, "b": "x"}, {"a": None, "b": "it's"}, {"a": None, "b": None}]),
    "map<string,int>": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], [], [("it's", -1), ("é", 2)]]),
    "array<struct<a:int,b:string>>": (pa.list_(_ITEM), [[{"a": 1, "b": "x"}, None], [], [{"a": None, "b": ""}]]),
    "struct<at:timestamp,many:array<decimal(10,2)>,named:map<string,double>>": (_DEEP, [
        {"at": dt.datetime(2020, 3, 29, 1, 2, 3, 4, tzinfo=dt.UTC), "many": [Decimal("1.50")], "named": [("a", 0.1)]},
        {"at": None, "many": [], "named": None}]),
    "json": (pa.string(), ['{"a": [1, 2.5, null], "b": "é", "c": {"d": true}}', "[]", "{}", '"x"', "17",
                           '{"it\'s": "\\u0041\\n"}']),
}  # fmt: skip
"""The types by their Spark names, and ``json`` for JSON texts in a STRING column, each with its values."""

KEY_TYPES = tuple(name for name in TYPES if "<" not in name and name != "json")
"""Types that keys can have."""


@dataclass(frozen=True)
class Supported:
    """The types and values that a source can store; ``unsupported`` names those it cannot, each with the reason.

    >>> supported = Supported({"map": "no such type", "nan": "no such number"})
    >>> supported.reason_unsupported("map<string,int>"), supported.reason_unsupported("struct<a:int,b:string>")
    ('no such type', None)
    >>> float("inf") in supported.values("double"), any(value != value for value in supported.values("double"))
    (True, False)
    """

    unsupported: Mapping[str, str]

    def reason_unsupported(self, type_: str) -> str | None:
        """Return why the source cannot store this type, or None."""
        names = (type_, type_.partition("(")[0].partition("<")[0])
        return next((self.unsupported[name] for name in names if name in self.unsupported), None)

    def values(self, type_: str) -> list[Any]:
        """Return the values of a type that the source can store."""
        return list(self.select(TYPES[type_][1]))

    @property
    def null(self) -> list[None]:
        """A null, if the source can store one."""
        return [] if "null" in self.unsupported else [None]

    def select(self, values: Any) -> Iterator[Any]:
        """Yield the values that the source can store."""
        for value in values:
            if not isinstance(value, Odd):
                yield value
            elif value.trait not in self.unsupported:
                yield value.value

    def types(self, names: Any = TYPES) -> list[str]:
        """Return the types that the source can store."""
        return [name for name in names if self.reason_unsupported(name) is None]


TRAITS = frozenset(
    value.trait for values in (HOSTILE_TEXTS, *(values for _, values in TYPES.values())) for value in values
    if isinstance(value, Odd)
)  # fmt: skip
"""The traits that ``unsupported`` may name, in addition to types."""


def field_of(name: str, type_: str) -> pa.Field:
    """Return a column of a type of `TYPES`."""
    return pa.field(name, TYPES[type_][0], metadata=JSON if type_ == "json" else None)
