"""The interface of a database: one connection, and the rules of its kind of database."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.connector import LookupRequest
from lookupcache.errors import ConnectorError, LookupAdvice, OptionError, SchemaError, SourceError, nearest
from lookupcache.expr import Expr
from lookupcache.schema import shown_type
from lookupcache.source_options import MAX_BYTES, AnswerLimit, whole_number
from lookupcache_sql.query import Grammar, bare

T = TypeVar("T")

SCAN_ROWS = 50_000
"""Rows in a batch of a scan, about."""

MISFITS = (TypeError, ValueError, OverflowError, ArithmeticError, pa.ArrowException)
"""The errors of reading a value that does not fit its column's type."""

_LONGEST_SHOWN = 40


class UnreachableError(ConnectionError):
    """The database does not accept a connection now, but may later."""


@dataclass(frozen=True)
class TableOrQuery:
    """The source of rows: a table or view in ``namespace`` (a database's schema), or the result of ``query``."""

    table: str | None
    namespace: str | None
    query: str | None

    @classmethod
    def of(cls, settings: Mapping[str, str], grammar: Grammar | None = None) -> TableOrQuery:
        """Read the options; raises OptionError if they name none or two, or an invalid query."""
        table, namespace, query = (settings.get(name) or None for name in ("table", "schema", "query"))
        if (table is None) == (query is None):
            wrong = "neither 'table' nor 'query'" if table is None else "both 'table' and 'query'"
            raise OptionError(f"Connector 'sql' has {wrong}.", hint="Give one: 'table' for a table or view.")
        if query is not None and namespace is not None:
            raise OptionError("Option 'schema' requires 'table'.", hint="Write the schema into the 'query'.")
        return cls(table, namespace, bare(query, grammar) if query and grammar else query)

    @property
    def subquery(self) -> str:
        """The query in parentheses, with a line break, since a comment may end it."""
        return f"({self.query}\n)"

    def __str__(self) -> str:
        if self.table is None:
            return "the option 'query'"
        return f"table {self.table!r}{f' of schema {self.namespace!r}' if self.namespace else ''}"


class Database(ABC):
    """One connection to a database of some kind.

    Built where it is opened. Errors of the driver are not changed, so that `retryable` can classify them. Errors that a
    retry cannot fix, such as a wrong password, an unknown table or column, are raised as ConnectorError or SchemaError.
    """

    driver: ClassVar[str | None] = None
    """The module that must be installed."""

    grammar: ClassVar[Grammar]
    """How its texts and comments are written."""

    def __init__(self, schema: pa.Schema, settings: Mapping[str, str]) -> None:
        self.schema = schema
        self.settings = settings
        self.source = TableOrQuery.of(settings, self.grammar_of(settings))
        self.most_bytes = whole_number(settings, "max-bytes", MAX_BYTES)
        self.limit = AnswerLimit("", self.most_bytes)
        """Of the current call."""

    @classmethod
    def grammar_of(cls, settings: Mapping[str, str]) -> Grammar:
        """Return the grammar of the URL's database."""
        return cls.grammar

    @classmethod
    @abstractmethod
    def check(cls, settings: Mapping[str, str], schema: pa.Schema) -> None:
        """Raise OptionError or SchemaError for errors that can be found without a connection."""

    @classmethod
    def opener(
        cls, schema: pa.Schema, settings: Mapping[str, str], most: int, connected: Callable[[], object]
    ) -> Callable[[], Database]:
        """Return a function that opens a database for each concurrent call, of which ``most`` are expected.

        ``connected`` is called after each connection was made; its errors end that.
        """

        def another() -> Database:
            database = cls(schema, settings)
            try:
                database.connect()
                connected()
            except BaseException:
                database.close()
                raise
            return database

        return another

    @classmethod
    @abstractmethod
    def environment(cls, settings: Mapping[str, str]) -> Mapping[str, Any] | None:
        """Return the same as `Connector.environment`, without references."""

    @classmethod
    @abstractmethod
    def accepts(cls, conjunct: Expr, settings: Mapping[str, str]) -> bool:
        """Return whether the database evaluates a filter with Spark's semantics, for any stored value."""

    @abstractmethod
    def connect(self) -> None:
        """Connect, and check the table and its columns."""

    def is_stale(self) -> bool:
        """Return whether the connection reads a database that was replaced; cheap, since each call checks it."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Disconnect; never raises."""

    @abstractmethod
    def interrupt(self) -> None:
        """Cancel a running query, from another thread, which may wait for the server; databases may ignore it."""

    @abstractmethod
    def columns(self) -> pa.Schema:
        """Return all columns in Spark's types; raises SchemaError for a column without one."""

    @abstractmethod
    def without_index(self, key_columns: Sequence[str]) -> bool:
        """Return whether the database must read the full table to find a key."""

    @abstractmethod
    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key, each once, with one query."""

    @abstractmethod
    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with constants and filters applied."""

    @contextmanager
    def describing(self, kind: type[Exception], reason: Callable[[Exception], str] = str) -> Iterator[None]:
        """Raise ConnectorError in place of an error of the driver about the query, unless a retry may succeed."""
        try:
            yield
        except kind as error:
            if self.source.query is None or self.retryable(error):
                raise
            raise query_error(reason(error)) from None

    @classmethod
    @abstractmethod
    def retryable(cls, error: Exception) -> bool | None:
        """Return whether a retry may succeed; None for errors that are not the driver's."""


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────


def query_error(reason: str) -> ConnectorError:
    """Return the error for a query that the database rejects."""
    return ConnectorError(f"Option 'query' is refused: {reason.rstrip('.')}.")


def unknown_table(table: str, namespace: str | None, known: Sequence[str]) -> ConnectorError:
    """Return the error for a table that does not exist."""
    fact = f"Option 'table': the database has no table or view {table!r}"
    before, dot, after = table.partition(".")
    if dot and namespace is None:
        return ConnectorError(f"{fact}.", hint=f"Say 'schema' = {before!r} and 'table' = {after!r}.")
    hint = nearest(table, known, what="tables and views")
    return ConnectorError(f"{fact}{f' in schema {namespace!r}' if namespace else ''}.", hint=hint)


def column_names(schema: pa.Schema, found: Sequence[str], place: TableOrQuery) -> dict[str, str]:
    """Return the database's name of each column: the same, or the only one that differs only in case."""
    return {name: _column_name(name, found, place) for name in schema.names}


def _column_name(name: str, found: Sequence[str], place: TableOrQuery) -> str:
    alike = [name] if name in found else [other for other in found if other.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    what = f"{str(place)[0].upper()}{str(place)[1:]}"
    if alike:
        raise SchemaError(f"{what} has columns {alike[0]!r} and {alike[1]!r}; {name!r} is neither.")
    raise SchemaError(f"{what} has no column {name!r} in the database.", hint=nearest(name, found, what="columns"))


def inferred_schema(columns: Iterable[tuple[str, T]], type_of: Callable[[str, T], pa.DataType]) -> pa.Schema:
    """Return the columns whose type ``type_of`` finds, from their names and the database's description of them.

    For each other one, it warns that the table is read without it. Raises SchemaError if no column is left.
    """
    fields, unknown = list[pa.Field](), list[SchemaError]()
    for name, described in columns:
        try:
            fields.append(pa.field(name, type_of(name, described)))
        except SchemaError as error:
            unknown.append(error)
    if unknown and not fields:
        raise unknown[0]
    for one in unknown:
        warnings.warn(f"{one.fact} The table is read without it.\n\nHint: {one.hint}", LookupAdvice, stacklevel=2)
    return pa.schema(fields)


def unreadable(name: str, native: str, wanted: pa.DataType | None, cure: str) -> SchemaError:
    """Return the error for a column that cannot be read as a type, or for which Spark has none."""
    why = "for which Spark has no type" if wanted is None else f"and cannot be read as {shown_type(wanted)}"
    return SchemaError(f"Column {name!r} is {native} in the database, {why}.", hint=cure)


def misfit(table: str, field: pa.Field, value: Any) -> SourceError:
    """Return the error for a stored value that does not fit the column's type."""
    return SourceError(
        f"Table {table!r}, column {field.name!r}: the database contains {shorten(value)}, "
        f"which is no {shown_type(field.type)}.",
        hint="Give the column another type in the table's schema, or look up through a view that casts it.",
    )


def read_fitting(table: str, field: pa.Field, values: Sequence[Any], read: Callable[[Sequence[Any]], Any]) -> Any:
    """Return stored values in the column's type, as ``read`` returns them.

    Raises SourceError with the first value for which that raises one of `MISFITS`.
    """
    try:
        return read(values)
    except MISFITS as error:
        raise misfit(table, field, first_misfit(values, lambda value: read([value]))) from error


def first_misfit(values: Sequence[Any], read: Callable[[Any], Any]) -> Any:
    """Return the first value that cannot be read."""
    for value in values:
        try:
            read(value)
        except MISFITS:
            return value
    return None


def read_singles(values: Sequence[Any]) -> pa.Array:
    """Return numbers as floats; raises OverflowError for one that is finite, but too large."""
    doubles = pa.array(values, pa.float64())
    floats = doubles.cast(pa.float32())
    if pc.any(pc.and_(pc.is_finite(doubles), pc.is_inf(floats))).as_py():
        raise OverflowError
    return floats


def shorten(value: Any) -> str:
    """Return a value as text for an error."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
