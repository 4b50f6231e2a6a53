"""Columns that SQLAlchemy reads: what is selected and compared, which filters are pushed, and values as Arrow."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, and_, cast, collate, func, literal, literal_column, not_, or_, type_coerce
from sqlalchemy import types as sql
from sqlalchemy.dialects.mysql import CHAR

from lookupcache.errors import SchemaError
from lookupcache.expr import Call, Column, Expr, Literal, python_value
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ, shown_type
from lookupcache_sql.database import MISFITS, first_misfit, misfit
from lookupcache_sql.filters import time_text
from lookupcache_sql.typed import family, read_json

Type: TypeAlias = sql.TypeEngine[Any]
Element: TypeAlias = ColumnElement[Any]

MYSQL = ("mysql", "mariadb")
_CLICKHOUSE = ("clickhousedb", "clickhouse")
_NONE = type(None)


@dataclass(frozen=True)
class ReadColumn:
    """A column of the schema: what is selected for it, what keys are compared with, and how its values are read.

    ``is_single`` says that the database has it with the precision of a float; ``is_utc`` that a timestamp without a
    zone is in UTC.
    """

    field: pa.Field
    selected: Element
    compared: Element
    is_single: bool
    is_utc: bool

    def decode(self, table: str, values: Sequence[Any]) -> pa.Array:
        """Return fetched values in the column's type; raises SourceError for a value that does not fit."""
        try:
            return self._read(values)
        except MISFITS as error:
            wrong = first_misfit(values, lambda value: self._read([value]))
            raise misfit(table, self.field, wrong) from error

    def _read(self, values: Sequence[Any]) -> pa.Array:
        type_ = self.field.type
        if pa.types.is_float64(type_) and self.is_single:
            return _read_floats(values, pa.float32()).cast(type_)
        if type_ == TIMESTAMP and self.is_utc:
            return _read_moments(values, TIMESTAMP_NTZ).cast(type_)
        return _READERS.get(family(type_), _read_nested)(values, type_)


# ── values of Python ─────────────────────────────────────────────────────────────────────────────────────────


def _reader(*classes: type, convert: Callable[[Any], Any] | None = None) -> Callable[[Sequence[Any], pa.DataType], Any]:
    """Return what reads values of these classes, and others after ``convert``, which raises one of `MISFITS`."""
    known = {*classes, _NONE}

    def read(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
        if not known.issuperset(map(type, values)):
            if convert is None:
                raise TypeError
            values = [value if type(value) in known else convert(value) for value in values]
        return pa.array(values, type_)

    return read


def _as_whole(value: Any) -> int:
    if not isinstance(value, Decimal | float) or value != int(value):
        raise ValueError
    return int(value)


def _as_double(value: Any) -> float:
    if type(value) is not int or int(float(value)) != value:
        raise ValueError
    return float(value)


def _as_boolean(value: Any) -> bool:
    if type(value) is not int or value not in (0, 1):
        raise ValueError
    return value == 1


def _read_floats(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    doubles = _read_doubles(values, pa.float64())
    floats = doubles.cast(type_)
    if pc.any(pc.and_(pc.is_finite(doubles), pc.is_inf(floats))).as_py():
        raise OverflowError
    return floats


def _read_moments(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if any(value is not None and (value.tzinfo is None) != (type_.tz is None) for value in values):
        raise ValueError
    return _read_times(values, type_)


def _read_nested(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    return read_json(_read_texts(values, pa.string()), type_)


_read_doubles = _reader(float, convert=_as_double)
_read_times = _reader(dt.datetime)
_read_texts = _reader(str)
_READERS: Mapping[str, Callable[[Sequence[Any], pa.DataType], Any]] = {
    "integer": _reader(int, convert=_as_whole),
    "float": _read_floats,
    "double": _read_doubles,
    "decimal": _reader(Decimal, int),
    "string": _read_texts,
    "binary": _reader(bytes, convert=lambda value: bytes(memoryview(value))),
    "boolean": _reader(bool, convert=_as_boolean),
    "date": _reader(dt.date),
    "timestamp": _read_moments,
    "timestamp_ntz": _read_moments,
}


# ── types of the database ────────────────────────────────────────────────────────────────────────────────────


def read_column(field: pa.Field, column: Element, type_: Type, dialect: str) -> ReadColumn:
    """Return how a column of a reflected type is read; raises SchemaError for a type that cannot be read exactly.

    Values are fetched as the driver returns them: SQLAlchemy's own conversions would round some.
    """
    word = family(field.type)
    if not _fits(type_, word) or (dialect == "sqlite" and word in _NOT_OF_SQLITE):
        fact = f"Column {field.name!r} is {_shown(type_)} in the database, and cannot be read as"
        raise SchemaError(f"{fact} {shown_type(field.type)}.", hint=_better(type_, dialect))
    single = _is_single(type_, dialect)
    compared: Element = type_coerce(column, _bound(field.type, type_, dialect))
    selected: Element = type_coerce(column, sql.NullType())
    if dialect == "postgresql" and isinstance(type_, sql.CHAR):
        selected = cast(column, sql.Text())  # It is padded; the connector's own driver reads it without blanks too.
    elif dialect in MYSQL and word == "string" and isinstance(type_, sql.NullType):
        compared = cast(column, CHAR(charset="utf8mb4"))
    elif isinstance(type_, sql.JSON) or (word == "string" and not _has_texts(type_)):
        selected = compared = cast(column, sql.Text())
    elif single and dialect in MYSQL:
        # A FLOAT is printed with six digits, unless it is converted to a DOUBLE.
        selected = type_coerce(column, sql.Double()) + literal_column("0e0", sql.NullType())
    return ReadColumn(field, selected, compared, single, dialect in MYSQL)


def spark_type(name: str, type_: Type, dialect: str) -> pa.DataType:
    """Return Spark's type for a reflected one, which has all of its values; raises SchemaError if there is none."""
    found = next((make(type_, dialect) for kind, make in _INFERRED.items() if isinstance(type_, kind)), None)
    if found is None and _has_texts(type_) and not isinstance(type_, sql.NullType):
        found = pa.string()
    if found is None or (dialect == "sqlite" and family(found) in _NOT_OF_SQLITE):
        fact = f"Column {name!r} is {_shown(type_)} in the database, for which Spark has no type."
        raise SchemaError(fact, hint=_better(type_, dialect))
    return found


def _shown(type_: Type) -> str:
    return "of an unknown type" if isinstance(type_, sql.NullType) else repr(type_)


def _better(type_: Type, dialect: str) -> str:
    if isinstance(type_, sql.NullType):
        return "Give the table a schema: neither a query nor every dialect describes its columns."
    if dialect == "sqlite":
        return "SQLite has no such type. The connector's own driver reads its texts and numbers: 'sqlite:///…'."
    declare = "Declare it STRING, leave it out" if _fits(type_, "string") else "Leave it out of the schema"
    return f"{declare}, or use the option 'query' to cast it."


_NOT_OF_SQLITE = ("date", "timestamp", "timestamp_ntz", "decimal", "float")
_FITTING: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (sql.Boolean, ("boolean",)),
    (sql.Integer, ("integer", "decimal", "boolean")),
    (sql.Double, ("double",)),
    (sql.Float, ("float", "double")),
    (sql.Numeric, ("decimal", "integer")),
    (sql.JSON, ("string", "nested")),
    (sql._Binary, ("binary",)),
    (sql.DateTime, ("timestamp", "timestamp_ntz")),
    (sql.Date, ("date",)),
)
"""The families of Spark's types that a reflected type can be read as; the first that matches counts."""


def _fits(type_: Type, word: str) -> bool:
    """Return whether a type can be read as one of a family; any other than these is STRING, by the database's text."""
    if _has_texts(type_):
        return word in ("string", "nested") or isinstance(type_, sql.NullType)
    return word in next((words for kind, words in _FITTING if isinstance(type_, kind)), ("string",))


def _has_texts(type_: Type) -> bool:
    """Return whether the driver has texts of a type, or its values decide."""
    # The texts of ClickHouse have a class of their own.
    is_text = isinstance(type_, sql.String | sql.NullType) or type(type_).__name__ == "String"
    return is_text and not isinstance(type_, sql.Enum)


def _is_single(type_: Type, dialect: str) -> bool:
    """Return whether a type has the precision of a float."""
    if isinstance(type_, sql.Double) or not isinstance(type_, sql.Float) or dialect == "sqlite":
        return False
    if dialect in MYSQL:
        return type(type_).__name__ == "FLOAT"
    return isinstance(type_, sql.REAL)


def _integer(type_: Type, dialect: str) -> pa.DataType:
    word = type(type_).__name__
    if word == "TINYINT" and dialect in MYSQL and getattr(type_, "display_width", None) == 1:
        return pa.bool_()
    sizes = [pa.int16(), pa.int32(), pa.int64(), pa.decimal128(20, 0)]
    if isinstance(type_, sql.SmallInteger) or word == "TINYINT":
        size = 0
    else:
        size = 1 if word in ("INTEGER", "MEDIUMINT") and dialect != "sqlite" else 2
    return sizes[size + bool(getattr(type_, "unsigned", False))]


def _decimal(type_: Any, dialect: str) -> pa.DataType | None:
    precision, scale = type_.precision, type_.scale or 0
    return pa.decimal128(precision, scale) if precision is not None and 0 <= scale <= precision <= 38 else None


_INFERRED: Mapping[Any, Callable[[Any, str], pa.DataType | None]] = {
    sql.Boolean: lambda *_: pa.bool_(),
    sql.Integer: _integer,
    sql.Float: lambda type_, dialect: pa.float32() if _is_single(type_, dialect) else pa.float64(),
    sql.Numeric: _decimal,
    (sql.String, sql.JSON, sql.Uuid, sql.Time, sql.Interval): lambda *_: pa.string(),
    sql._Binary: lambda *_: pa.binary(),
    sql.DateTime: lambda type_, _: TIMESTAMP if type_.timezone else TIMESTAMP_NTZ,
    sql.Date: lambda *_: pa.date32(),
}


# ── keys and filters ─────────────────────────────────────────────────────────────────────────────────────────


class CollatedText(sql.TypeDecorator[str]):
    """Texts of MariaDB or MySQL in the character set of a column.

    With a key that the column's set lacks, IN would be an error, or not find other keys.
    """

    impl = sql.String
    cache_ok = True

    def __init__(self, charset: str, collation: str) -> None:
        super().__init__()
        self.charset, self.collation = charset, collation

    def bind_expression(self, bindparam: Element) -> Element:
        return collate(cast(bindparam, CHAR(charset=self.charset)), self.collation)


class ClickHouseText(sql.TypeDecorator[Any]):
    """Decimals and timestamps as texts: the driver would write a double, and leave out fractions of a second."""

    impl = sql.String
    cache_ok = True

    def __init__(self, function: str, digits: int) -> None:
        super().__init__()
        self.function, self.digits = function, digits

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return format(value, "f") if isinstance(value, Decimal) else time_text(value)

    def bind_expression(self, bindparam: Element) -> Element:
        return getattr(func, self.function)(bindparam, self.digits)


def _bound(type_: pa.DataType, reflected: Type, dialect: str) -> Type:
    """Return the type that keys are sent as: wide enough for each of them, so that none is rejected.

    Texts are sent as the column's own type, so that an index on it is used, and a padded one is compared as such.
    """
    word = family(type_)
    if word == "string":
        charset, collation = (getattr(reflected, name, None) for name in ("charset", "collation"))
        is_other = dialect in MYSQL and charset and collation and charset != "utf8mb4"
        return CollatedText(charset, collation) if is_other else reflected  # type: ignore[arg-type]
    if dialect in _CLICKHOUSE and word == "decimal":
        return ClickHouseText("toDecimal128", type_.scale)
    if dialect in _CLICKHOUSE and word == "timestamp_ntz":
        return ClickHouseText("toDateTime64", 6)
    if word == "decimal":
        return sql.Numeric(type_.precision, type_.scale)
    return _BOUND[word]() if word in _BOUND else sql.NullType()


_BOUND: Mapping[str, Callable[[], Type]] = {
    "integer": sql.BigInteger,
    "float": sql.Double,
    "double": sql.Double,
    "binary": sql.LargeBinary,
    "boolean": sql.Boolean,
    "date": sql.Date,
    "timestamp": lambda: sql.DateTime(timezone=True),
    "timestamp_ntz": sql.DateTime,
}


def accepts_filter(expr: Expr) -> bool:
    """Return whether a filter means the same in any database: comparisons of whole numbers, decimals and dates.

    Texts are compared by collations, and floats have NaN, so they stay local; IS NULL may be of any column.
    """
    if not isinstance(expr, Call):
        return False
    if expr.op in ("and", "or", "not"):
        return all(map(accepts_filter, expr.args))
    if expr.op == "is null":
        return (
            isinstance(expr.args[0], Column) and expr.args[0].side == "right" and family(expr.args[0].type) != "nested"
        )
    return expr.op in _COMPARED and _are_comparable(expr.args)


def _are_comparable(sides: Sequence[Expr]) -> bool:
    columns = [side for side in sides if isinstance(side, Column)]
    values = [side for side in sides if isinstance(side, Literal) and side.value is not None]
    return (
        bool(columns)
        and len(columns) + len(values) == len(sides)
        and all(column.side == "right" for column in columns)
        and len({side.type for side in sides}) == 1
        and family(columns[0].type) in ("integer", "decimal", "date")
    )


_COMPARED: Mapping[str, Callable[[Any, Any], Element]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "<=>": lambda left, right: left.is_not_distinct_from(right),
}
_JOINED: Mapping[str, Callable[..., Element]] = {"and": and_, "or": or_, "not": not_}


def condition_of(expr: Expr, columns: Mapping[str, ReadColumn]) -> Element:
    """Return an accepted filter for SQLAlchemy."""
    if isinstance(expr, Column):
        return columns[expr.name].compared
    if isinstance(expr, Literal):
        return literal(python_value(expr), _bound(expr.type, sql.NullType(), ""))
    assert isinstance(expr, Call)
    arguments = [condition_of(argument, columns) for argument in expr.args]
    if expr.op == "is null":
        return arguments[0].is_(None)
    return {**_JOINED, **_COMPARED}[expr.op](*arguments)
