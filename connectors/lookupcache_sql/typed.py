"""Databases with typed columns: one query for all keys, built once per join.

described columns ─► `Stored`, one each ─► text of the query ─► raw columns ─► Arrow in Spark's types
"""

from __future__ import annotations

import datetime as dt
import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.connector import LookupRequest
from lookupcache.expr import Column, Expr, literal
from lookupcache.formats.json_text import parse_json
from lookupcache.formats.json_values import array_maker
from lookupcache.schema import shown_type
from lookupcache.source_options import AnswerLimit
from lookupcache_sql.database import MISFITS, Database, column_names, first_misfit, inferred_schema, misfit, unreadable
from lookupcache_sql.dialects import Dialect
from lookupcache_sql.filters import accepts_filter, filter_text

Send = Callable[[pa.Array], pa.Array]
Decode = Callable[[Any, pa.DataType], Any]


@dataclass(frozen=True)
class Described:
    """A column as the database describes it.

    ``kind`` is the connector's name of its type, such as ``integer`` or ``text``, or empty; ``native`` is the
    database's. ``type`` is the column's type in Spark if no schema is set; ``detail`` is for the database's class.
    """

    name: str
    kind: str
    native: str
    type: pa.DataType | None
    detail: Any = None


def cast(column: Any, type_: pa.DataType) -> Any:
    """Cast a column from a wider type; raises one of `MISFITS` for a value that does not fit."""
    if pa.types.is_decimal(type_) and not _has_room(column, type_.precision - type_.scale, type_.scale):
        raise ValueError
    if pa.types.is_decimal(type_) and pa.types.is_string(column.type):
        # Arrow reads 1 with 45 zeros behind the point as 0.
        column = pc.replace_substring_regex(column, rf"^(-?)0*(\d+(?:\.\d{{0,{type_.scale}}})?)0*$", r"\1\2")
    return column.cast(type_)


def _has_room(column: Any, digits: int, scale: int) -> bool:
    """Return whether a decimal type can represent all values; Arrow's cast silently changes some that it cannot."""
    if pa.types.is_string(column.type):
        fits = pc.match_substring_regex(column, rf"^-?0*\d{{0,{digits}}}(\.\d{{0,{scale}}}0*)?$")
    elif pa.types.is_decimal(column.type) and column.type.precision - column.type.scale > digits:
        fits = pc.less(pc.abs(column), pa.scalar(Decimal(10) ** digits, column.type))
    else:
        return True
    return pc.all(fits, min_count=0).as_py() is not False


def in_range(column: Any, type_: pa.DataType) -> Any:
    """Read dates and timestamps, also nested ones; infinite ones are far outside of the range and are errors."""
    read = cast(column, type_)
    for chunk in read.chunks if isinstance(read, pa.ChunkedArray) else [read]:
        _check_range(chunk)
    return read


def _check_range(column: pa.Array) -> None:
    if pa.types.is_map(column.type):
        inner = [column.keys, column.items]
    elif pa.types.is_list(column.type):
        inner = [column.flatten()]
    elif pa.types.is_struct(column.type):
        inner = column.flatten()
    else:
        inner = []
    for part in inner:
        _check_range(part)
    if pa.types.is_temporal(column.type):
        ends = pc.min_max(column)
        least, last = _RANGES[pa.types.is_date(column.type)]
        if ends["min"].is_valid and not least <= ends["min"].value <= ends["max"].value <= last:
            raise ValueError


MICROS_PER_DAY = 86_400_000_000
_DAYS = dt.date(1, 1, 1).toordinal() - dt.date(1970, 1, 1).toordinal(), dt.date.max.toordinal() - 719_163
_RANGES = (_DAYS[0] * MICROS_PER_DAY, (_DAYS[1] + 1) * MICROS_PER_DAY - 1), _DAYS
"""The moments, and the days, from the year 1 to 9999, counted from 1970."""


def read_json(column: Any, type_: pa.DataType) -> pa.Array:
    """Read JSON texts as arrays, structs and maps."""
    return array_maker(type_)([None if text is None else parse_json(text) for text in column.to_pylist()])


@dataclass(frozen=True)
class Stored:
    """How a column is read and compared, in SQL where ``{c}`` is the column and ``{k}`` a key.

    ``read`` is fetched, and `decode` converts it to the column's type; filters use ``tested``, by default ``read``.
    ``compared`` is compared with ``key``, by an equality that may be looser than Spark's but never stricter.
    ``recheck`` makes it as strict if otherwise a row would be returned for each of several equal keys. ``sent`` is the
    type of the keys in the query, and `send` converts keys to it, null for one that the database cannot represent.
    """

    read: str = "{c}"
    tested: str = ""
    compared: str = "{c}"
    key: str = "{k}"
    recheck: str = ""
    sent: str = ""
    send: Send = lambda column: column
    decode: Decode = cast


@dataclass(frozen=True)
class ReadColumn:
    """A column of the schema: its field, its name in SQL, and how it is read and compared."""

    field: pa.Field
    sql: str
    stored: Stored

    @property
    def read(self) -> str:
        """The expression that is fetched, in SQL."""
        return self.stored.read.format(c=self.sql)

    def equals(self, key: str) -> str:
        """Return the SQL that is true for the rows of a key."""
        names = {"c": self.sql, "k": key}
        again = f" AND {self.stored.recheck.format(**names)}" if self.stored.recheck else ""
        return f"{self.stored.compared.format(**names)} = {self.stored.key.format(**names)}{again}"

    def decode(self, table: str, raw: Any) -> pa.Array:
        """Return fetched values in the column's type; raises SourceError for a value that does not fit."""
        try:
            return self.stored.decode(raw, self.field.type)
        except MISFITS as error:
            raise misfit(table, self.field, self._misfit(raw)) from error

    def _misfit(self, raw: Any) -> Any:
        ones = [raw.slice(row, 1) for row in range(len(raw))]
        wrong = first_misfit(ones, lambda one: self.stored.decode(one, self.field.type))
        return "a value" if wrong is None else python_value(wrong)


def python_value(one: Any) -> Any:
    """Return the only value of a column in Python, or as text if Python has no such value."""
    try:
        return one.to_pylist()[0]
    except MISFITS:
        return " ".join(str(one.cast(_COUNTS.get(one.type.id, one.type))).split()).strip("[] ")


_COUNTS = {pa.date32().id: pa.int32(), pa.timestamp("us").id: pa.int64()}


class TypedDatabase(Database):
    """A database whose columns have types."""

    dialect: ClassVar[type[Dialect]]

    def __init__(self, schema: pa.Schema, settings: Mapping[str, str]) -> None:
        super().__init__(schema, settings)
        self._connection: Any = None
        self.read_columns: dict[str, ReadColumn] = {}
        self._ready: tuple[LookupRequest, bool, str] | None = None

    @classmethod
    def accepts(cls, conjunct: Expr, settings: Mapping[str, str]) -> bool:
        return accepts_filter(conjunct, cls.dialect)

    def connect(self) -> None:
        self.open()
        described = {column.name: column for column in self.describe_columns()}
        names = column_names(self.schema, list(described), self.source)
        self.read_columns = {
            field.name: self._read_column(field, described[names[field.name]]) for field in self.schema
        }

    def close(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None

    def columns(self) -> pa.Schema:
        described = [(column.name, column) for column in self.describe_columns()]
        return inferred_schema(described, lambda _, column: self._type_of(column))

    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        self.limit = AnswerLimit(request.table, self.most_bytes)
        sent = [self.read_columns[name].stored.send(keys.column(name)) for name in request.key_columns]
        return self._decode_table(
            request, self.fetch_columns(self._text(request, keyed=True), sent, self._keys(request))
        )

    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        for raw in self.stream_columns(self._text(request, keyed=False)):
            yield from self._decode_table(request, raw).to_batches()

    # ── methods of a database ────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def open(self) -> None:
        """Connect."""

    @abstractmethod
    def describe_columns(self) -> list[Described]:
        """Return the columns of the relation; raises ConnectorError if it does not exist."""

    @classmethod
    @abstractmethod
    def storage_for(cls, described: Described, type_: pa.DataType) -> Stored | None:
        """Return how a column is read as a type, or None if that is impossible."""

    @abstractmethod
    def key_query(self, selected: str, keys: Sequence[ReadColumn]) -> str:
        """Return the text of a query for the rows of keys, to which further conditions are appended with AND."""

    @abstractmethod
    def fetch_columns(self, text: str, sent: Sequence[pa.Array], keys: Sequence[ReadColumn]) -> Sequence[Any]:
        """Return the columns of a query's result for these keys; raises the error of `limit` if it is too large."""

    @abstractmethod
    def stream_columns(self, text: str) -> Iterator[Sequence[Any]]:
        """Yield the columns of a query's result in parts."""

    def bound(self, text: str, request: LookupRequest) -> str:
        """Return a query for the rows of keys whose answer the database limits; by default the driver can do so."""
        return text

    # ── the query ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def relation(self) -> str:
        """The relation in SQL, with the alias t."""
        if self.source.query is not None:
            return f"{self.source.subquery} AS t"
        names = [name for name in (self.source.namespace, self.source.table) if name is not None]
        return f"{'.'.join(map(self.dialect.quote, names))} AS t"

    def _text(self, request: LookupRequest, *, keyed: bool) -> str:
        """Return the text of a request's query; it is the same for every call of a join."""
        if self._ready is None or self._ready[0] is not request or self._ready[1] != keyed:
            selected = ", ".join(self.read_columns[name].read for name in request.fields)
            start = f"SELECT {selected} FROM {self.relation} WHERE 1 = 1"
            start = self.key_query(selected, self._keys(request)) if keyed else start
            conditions = [*self._constants(request), *self._filters(request)]
            text = "".join([start, *(f" AND {condition}" for condition in conditions)])
            self._ready = request, keyed, self.bound(text, request) if keyed else text
        return self._ready[2]

    def _constants(self, request: LookupRequest) -> Iterator[str]:
        for name, value in request.constants.items():
            read_column = self.read_columns[name]
            sent = read_column.stored.send(pa.array([value], read_column.field.type))
            value = self.dialect.literal(literal(sent[0].as_py(), sent.type))
            yield read_column.equals(self.dialect.cast_value(value, read_column.stored.sent))

    def _filters(self, request: LookupRequest) -> Iterator[str]:
        for conjunct in request.filters:
            yield filter_text(conjunct, self.dialect, self._operand, self.dialect.literal)

    def _operand(self, column: Column) -> str:
        read_column = self.read_columns[column.name]
        return (read_column.stored.tested or read_column.stored.read).format(c=read_column.sql)

    def _keys(self, request: LookupRequest) -> list[ReadColumn]:
        return [self.read_columns[name] for name in request.key_columns]

    def _read_column(self, field: pa.Field, described: Described) -> ReadColumn:
        stored = self.storage_for(described, field.type)
        if stored is None:
            raise unreadable(field.name, described.native, field.type, self._better(described))
        return ReadColumn(field, f"t.{self.dialect.quote(described.name)}", stored)

    def _type_of(self, column: Described) -> pa.DataType:
        if column.type is None:
            declare = "Give the table a schema that declares it STRING or leaves it out"
            declare = declare if self._is_text(column) else "Give the table a schema without it"
            raise unreadable(column.name, column.native, None, f"{declare}, or use the option 'query' to cast it.")
        return column.type

    def _better(self, column: Described) -> str:
        if column.type is not None:
            return f"Declare it {shown_type(column.type)}, or use the option 'query' to cast it."
        declare = ", declare it STRING" if self._is_text(column) else ""
        return f"Leave the column out of the schema{declare}, or use the option 'query' to cast it."

    def _is_text(self, column: Described) -> bool:
        return self.storage_for(column, pa.string()) is not None

    def _decode_table(self, request: LookupRequest, raw: Sequence[Any]) -> pa.Table:
        columns = [
            self.read_columns[name].decode(request.table, values)
            for name, values in zip(request.fields, raw, strict=True)
        ]
        return pa.table(columns, names=list(request.fields))


# ── words for types ──────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def family(type_: pa.DataType) -> str:
    """Return the family of a Spark type, by which `Stored` is chosen."""
    return next((word for word, is_it in _FAMILIES.items() if is_it(type_)), "nested")


_FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "integer": pa.types.is_integer,
    "float": pa.types.is_float32,
    "double": pa.types.is_float64,
    "decimal": pa.types.is_decimal,
    "string": pa.types.is_string,
    "binary": pa.types.is_binary,
    "boolean": pa.types.is_boolean,
    "date": pa.types.is_date32,
    "timestamp": lambda type_: pa.types.is_timestamp(type_) and type_.tz is not None,
    "timestamp_ntz": lambda type_: pa.types.is_timestamp(type_) and type_.tz is None,
}


# ── keys that a database cannot hold ─────────────────────────────────────────────────────────────────────────


def without(column: pa.Array, wrong: Any) -> pa.Array:
    """Return keys with null where the mask is true; a null key matches no row."""
    return pc.if_else(wrong, pa.scalar(None, column.type), column)


def without_nul(column: pa.Array) -> pa.Array:
    """Return texts with null for those that contain NUL, which many databases do not support."""
    return without(column, pc.match_substring(column, "\0"))


def only_finite(column: pa.Array) -> pa.Array:
    """Return floats with null for NaN and the infinities."""
    return without(column, pc.invert(pc.is_finite(column)))


def only_between(column: pa.Array, numbers: pa.DataType, first: int, last: int) -> pa.Array:
    """Return dates or timestamps with null for those whose numbers, of this type, are not between two."""
    number = column.view(numbers)
    outside = pc.or_(pc.less(number, pa.scalar(first, numbers)), pc.greater(number, pa.scalar(last, numbers)))
    return without(column, outside)


def only_uuids(column: pa.Array) -> pa.Array:
    """Return texts with null for those that are not UUIDs in canonical form."""
    return without(column, pc.invert(pc.match_substring_regex(column, _UUID)))


_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
