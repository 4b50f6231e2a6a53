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
        type_, word = self.field.type, family(self.field.type)
        known, convert, _ = _FAMILIES[word]
        if not {*known, _NONE}.issuperset(map(type, values)):
            values = [value if value is None or type(value) in known else convert(value) for value in values]
        if word == "nested":
            return read_json(pa.array(values, pa.string()), type_)
        if word == "timestamp" and self.is_utc:
            return _moments(values, TIMESTAMP_NTZ).cast(type_)
        if word.startswith("timestamp"):
            return _moments(values, type_)
        if word == "float" or (word == "double" and self.is_single):
            return _singles(values).cast(type_)
        return pa.array(values, type_)


# ── values of Python ─────────────────────────────────────────────────────────────────────────────────────────


def _misfit(value: Any) -> Any:
    raise TypeError


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


_FAMILIES: Mapping[str, tuple[set[type], Callable[[Any], Any], Callable[[], Type]]] = {
    "integer": ({int}, _as_whole, sql.BigInteger),
    "float": ({float}, _as_double, sql.Double),
    "double": ({float}, _as_double, sql.Double),
    "decimal": ({Decimal, int}, _misfit, sql.Numeric),
    "string": ({str}, _misfit, sql.String),
    "binary": ({bytes}, lambda value: bytes(memoryview(value)), sql.LargeBinary),
    "boolean": ({bool}, _as_boolean, sql.Boolean),
    "date": ({dt.date}, _misfit, sql.Date),
    "timestamp": ({dt.datetime}, _misfit, lambda: sql.DateTime(timezone=True)),
    "timestamp_ntz": ({dt.datetime}, _misfit, sql.DateTime),
    "nested": ({str}, _misfit, sql.NullType),
}
"""Of each family, the classes that Arrow reads exactly, what converts others or raises one of `MISFITS`, and the type
that keys are sent as."""


def _singles(values: Sequence[Any]) -> pa.Array:
    doubles = pa.array(values, pa.float64())
    floats = doubles.cast(pa.float32())
    if pc.any(pc.and_(pc.is_finite(doubles), pc.is_inf(floats))).as_py():
        raise OverflowError
    return floats


def _moments(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if any(value is not None and (value.tzinfo is None) != (type_.tz is None) for value in values):
        raise ValueError
    return pa.array(values, type_)


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
    found = _known(type_)[1](type_, dialect)
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


def _fits(type_: Type, word: str) -> bool:
    """Return whether a type can be read as one of a family."""
    return word in _known(type_)[0] or isinstance(type_, sql.NullType)


def _has_texts(type_: Type) -> bool:
    """Return whether the driver has texts of a type, or its values decide."""
    return _known(type_) in (_TEXT, _UNKNOWN)


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


_TEXT = ("string", "nested"), lambda *_: pa.string()
_UNKNOWN = (), lambda *_: None
_BY_ITS_TEXT = ("string",), lambda *_: pa.string()
_KNOWN: Mapping[Any, tuple[Sequence[str], Callable[[Any, str], pa.DataType | None]]] = {
    sql.NullType: _UNKNOWN,
    (sql.Enum, sql.Uuid, sql.Time, sql.Interval): _BY_ITS_TEXT,
    sql.Boolean: (("boolean",), lambda *_: pa.bool_()),
    sql.Integer: (("integer", "decimal", "boolean"), _integer),
    sql.Double: (("double",), lambda *_: pa.float64()),
    sql.Float: (("float", "double"), lambda *of: pa.float32() if _is_single(*of) else pa.float64()),
    sql.Numeric: (("decimal", "integer"), _decimal),
    sql.String: _TEXT,
    sql.JSON: _TEXT,
    sql._Binary: (("binary",), lambda *_: pa.binary()),
    sql.DateTime: (("timestamp", "timestamp_ntz"), lambda type_, _: TIMESTAMP if type_.timezone else TIMESTAMP_NTZ),
    sql.Date: (("date",), lambda *_: pa.date32()),
}
"""Of the generic types, the families that they are read as, and the type where no schema is given. The first counts."""


def _known(type_: Type) -> tuple[Sequence[str], Callable[[Any, str], pa.DataType | None]]:
    """Return what is known of a type: any other than the generic ones is STRING, by the database's text."""
    if type(type_).__name__ == "String":  # The texts of ClickHouse have a class of their own.
        return _TEXT
    other = ("string",), lambda *_: None
    return next((known for kind, known in _KNOWN.items() if isinstance(type_, kind)), other)


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
    return sql.Numeric(type_.precision, type_.scale) if word == "decimal" else _FAMILIES[word][2]()


def accepts_filter(expr: Expr) -> bool:
    """Return whether a filter means the same in any database: comparisons of whole numbers, decimals and dates.

    Texts are compared by collations, and floats have NaN, so they stay local; IS NULL may be of any column.
    """
    if not isinstance(expr, Call):
        return False
    if expr.op in _JOINED:
        return all(map(accepts_filter, expr.args))
    columns = [side for side in expr.args if isinstance(side, Column) and side.side == "right"]
    if expr.op == "is null":
        return bool(columns) and family(columns[0].type) != "nested"
    values = [side for side in expr.args if isinstance(side, Literal) and side.value is not None]
    is_comparison = expr.op in _COMPARED and columns and len(columns) + len(values) == len(expr.args)
    types = {side.type for side in expr.args} if is_comparison else set()
    return len(types) == 1 and family(types.pop()) in ("integer", "decimal", "date")


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
