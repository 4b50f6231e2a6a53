"""Columns that SQLAlchemy reads: their expressions in SELECT and in comparisons, pushed filters, and values as
Arrow."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from sqlalchemy import ColumnElement, and_, cast, collate, func, literal, literal_column, not_, or_, type_coerce
from sqlalchemy import types as sql
from sqlalchemy.dialects.mysql import CHAR
from sqlalchemy.dialects.postgresql import DOMAIN

from lookupcache.expr import Call, Column, Expr, Literal, python_value
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ
from lookupcache_sql.database import read_fitting, read_singles, unreadable
from lookupcache_sql.dialects import Dialect, time_text
from lookupcache_sql.typed import family, read_json

Type: TypeAlias = sql.TypeEngine[Any]
Element: TypeAlias = ColumnElement[Any]

MYSQL = ("mysql", "mariadb")
_CLICKHOUSE = ("clickhousedb", "clickhouse")
_NONE = type(None)


@dataclass(frozen=True)
class AlchemyColumn:
    """A column of the schema: its expression in SELECT, the one that keys are compared with, and how its values are
    read.

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
        return read_fitting(table, self.field, values, self._read)

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
            return read_singles(values).cast(type_)
        return pa.array(values, type_)


# ── values of Python ─────────────────────────────────────────────────────────────────────────────────────────


def _from(*kinds: type, to: Callable[[Any], Any] = lambda value: value) -> Callable[[Any], Any]:
    """Return a function that converts a value of another class exactly, or raises one of `MISFITS`."""

    def convert(value: Any) -> Any:
        if type(value) not in kinds or to(value) != value:
            raise ValueError
        return to(value)

    return convert


def _whole(value: Any) -> int:
    """Return a number as an integer; raise ValueError for a double that databases find equal to several."""
    if type(value) is float and abs(value) >= 2**53:
        raise ValueError
    whole: int = _from(Decimal, float, to=int)(value)
    return whole


_FAMILIES: Mapping[str, tuple[set[type], Callable[[Any], Any], Callable[[], Type]]] = {
    "integer": ({int}, _whole, sql.BigInteger),
    "float": ({float}, _from(int, to=float), sql.Double),
    "double": ({float}, _from(int, to=float), sql.Double),
    "decimal": ({Decimal, int}, _from(), sql.Numeric),
    "string": ({str}, _from(), sql.String),
    "binary": ({bytes}, _from(bytearray, memoryview, to=bytes), sql.LargeBinary),
    "boolean": ({bool}, _from(int, to=bool), sql.Boolean),
    "date": ({dt.date}, _from(), sql.Date),
    "timestamp": ({dt.datetime}, _from(), lambda: sql.DateTime(timezone=True)),
    "timestamp_ntz": ({dt.datetime}, _from(), sql.DateTime),
    "nested": ({str}, _from(), sql.NullType),
}
"""Of each family: the classes that Arrow reads exactly, a function that converts others or raises one of `MISFITS`, and
the type of keys in statements."""


def _moments(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if any(value is not None and (value.tzinfo is None) != (type_.tz is None) for value in values):
        raise ValueError
    return pa.array(values, type_)


# ── types of the database ────────────────────────────────────────────────────────────────────────────────────


def read_column(field: pa.Field, column: Element, type_: Type, dialect: str) -> AlchemyColumn:
    """Return how a column of a reflected type is read; raises SchemaError for a type that cannot be read exactly.

    Values are fetched as the driver returns them: SQLAlchemy's own conversions would round some.
    """
    word = family(field.type)
    families, _ = _known(type_)
    if word not in families or (dialect == "sqlite" and word in _NOT_OF_SQLITE):
        raise unreadable(field.name, _shown(type_), field.type, _better(type_, dialect))
    single = _is_single(type_, dialect)
    is_unknown = word == "string" and isinstance(type_, sql.NullType)
    is_text = word == "string" and "nested" not in families
    compared: Element = type_coerce(column, _bound(field.type, type_, dialect))
    selected: Element = type_coerce(column, sql.NullType())
    if dialect == "postgresql" and isinstance(type_, sql.CHAR):
        selected = cast(column, sql.Text())  # CHAR is padded; the connector's own driver reads it without blanks too.
    elif dialect in MYSQL and is_unknown:
        compared = cast(column, CHAR(charset="utf8mb4"))
    elif isinstance(type_, sql.JSON) or is_text or (dialect == "postgresql" and is_unknown):
        selected = compared = cast(column, sql.Text())
    elif single and dialect in MYSQL:
        # A FLOAT is printed with six digits, unless it is converted to a DOUBLE.
        selected = type_coerce(column, sql.Double()) + literal_column("0e0", sql.NullType())
    return AlchemyColumn(field, selected, compared, single, dialect in MYSQL)


def spark_type(name: str, type_: Type, dialect: str) -> pa.DataType:
    """Return Spark's type for a reflected one, which has all of its values; raises SchemaError if Spark has no such
    type."""
    _, found = _known(type_)
    found = found(type_, dialect) if callable(found) else found
    if found is None or (dialect == "sqlite" and family(found) in _NOT_OF_SQLITE):
        raise unreadable(name, _shown(type_), None, _better(type_, dialect))
    return found


def base_type(type_: Type) -> Type:
    """Return the type that a domain of PostgreSQL restricts, or the type itself."""
    return base_type(type_.data_type) if isinstance(type_, DOMAIN) else type_


def _shown(type_: Type) -> str:
    return "of an unknown type" if isinstance(type_, sql.NullType) else repr(type_)


def _better(type_: Type, dialect: str) -> str:
    if isinstance(type_, sql.NullType):
        return "Give the table a schema: neither a query nor every dialect describes its columns."
    if dialect == "sqlite":
        return "SQLite has no such type. The connector's own driver reads its texts and numbers: 'sqlite:///…'."
    declare = "Declare it STRING, leave it out" if "string" in _known(type_)[0] else "Leave it out of the schema"
    return f"{declare}, or use the option 'query' to cast it."


_NOT_OF_SQLITE = ("date", "timestamp", "timestamp_ntz", "decimal", "float")


def _is_single(type_: Type, dialect: str) -> bool:
    """Return whether a type has the precision of a float."""
    name = type(type_).__name__
    return name == "FLOAT" if dialect in MYSQL else isinstance(type_, sql.REAL) and dialect != "sqlite"


def _integer(type_: Type, dialect: str) -> pa.DataType:
    name = type(type_).__name__
    if name == "TINYINT" and dialect in MYSQL and getattr(type_, "display_width", None) == 1:
        return pa.bool_()
    is_small = isinstance(type_, sql.SmallInteger) or name == "TINYINT"
    size = 0 if is_small else 1 if name in ("INTEGER", "MEDIUMINT") and dialect != "sqlite" else 2
    wider = bool(getattr(type_, "unsigned", False))
    return [pa.int16(), pa.int32(), pa.int64(), pa.decimal128(20, 0)][size + wider]


def _decimal(type_: Any, _: str) -> pa.DataType | None:
    precision, scale = type_.precision, type_.scale or 0
    return pa.decimal128(precision, scale) if precision is not None and 0 <= scale <= precision <= 38 else None


_TEXT = ("string", "nested")
_KNOWN: Sequence[tuple[Any, Sequence[str], pa.DataType | Callable[[Any, str], pa.DataType | None]]] = (
    (sql.NullType, tuple(_FAMILIES), None),
    ((sql.Enum, sql.Uuid, sql.Time, sql.Interval), ("string",), pa.string()),
    (sql.Boolean, ("boolean",), pa.bool_()),
    (sql.Integer, ("integer", "decimal", "boolean"), _integer),
    (sql.Double, ("double",), pa.float64()),
    (sql.Float, ("float", "double"), lambda *of: pa.float32() if _is_single(*of) else pa.float64()),
    (sql.Numeric, ("decimal", "integer"), _decimal),
    ((sql.String, sql.JSON), _TEXT, pa.string()),
    (sql._Binary, ("binary",), pa.binary()),
    (sql.DateTime, ("timestamp", "timestamp_ntz"), lambda type_, _: TIMESTAMP if type_.timezone else TIMESTAMP_NTZ),
    (sql.Date, ("date",), pa.date32()),
    (object, ("string",), None),
)
"""Of the generic types, the families that they are read as, and the type where no schema is given. The first counts;
any other type is STRING, by the text that the database makes of it."""


def _known(type_: Type) -> tuple[Sequence[str], Any]:
    if type(type_).__name__ == "String":  # The texts of ClickHouse have a class of their own.
        return _TEXT, pa.string()
    return next((families, found) for kind, families, found in _KNOWN if isinstance(type_, kind))


# ── keys and filters ─────────────────────────────────────────────────────────────────────────────────────────


class SentText(sql.TypeDecorator[Any]):
    """Keys that are sent as texts, and converted by an expression of the database."""

    impl, cache_ok = sql.String, True

    def __init__(self, convert: Callable[[Element], Element]) -> None:
        super().__init__()
        self.convert = convert

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        if isinstance(value, Decimal):
            return format(value, "f")
        return time_text(value) if isinstance(value, dt.datetime) else value

    def bind_expression(self, bindparam: Element) -> Element:
        return self.convert(bindparam)


def _bound(type_: pa.DataType, reflected: Type, dialect: str) -> Type:
    """Return the type that keys are sent as: wide enough for each of them, so that none is rejected.

    Texts are sent as the column's own type, so that an index on it is used, and a padded one is compared as such.
    """
    word = family(type_)
    if word == "string":
        charset, collation = (getattr(reflected, name, None) for name in ("charset", "collation"))
        if dialect not in MYSQL or not charset or not collation or charset == "utf8mb4":
            return reflected
        # With a key that the column's character set lacks, IN would be an error, or not find other keys.
        return SentText(lambda key: collate(cast(key, CHAR(charset=charset)), collation))
    if dialect in _CLICKHOUSE and word == "decimal":  # The driver would write a double.
        return SentText(lambda key: func.toDecimal128(key, type_.scale))
    if dialect in _CLICKHOUSE and word == "timestamp_ntz":  # The driver would leave out fractions of a second.
        return SentText(lambda key: func.toDateTime64(key, 6))
    return sql.Numeric(type_.precision, type_.scale) if word == "decimal" else _FAMILIES[word][2]()


class AlchemyDialect(Dialect):
    """What filters mean the same in any database: comparisons of whole numbers, decimals and dates, and IS NULL.

    Texts are compared by collations, and floats have NaN, so they stay local.
    """

    @classmethod
    def holds(cls, value: Any) -> bool:
        return value is not None

    @classmethod
    def compares(cls, type_: pa.DataType) -> bool:
        return family(type_) in ("integer", "decimal", "date")


_COMPARED: Mapping[str, Callable[[Any, Any], Element]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "<=>": lambda left, right: left.is_not_distinct_from(right),
}
_JOINED: Mapping[str, Callable[..., Element]] = {"and": and_, "or": or_, "not": not_}


def condition_of(expr: Expr, columns: Mapping[str, AlchemyColumn]) -> Element:
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
