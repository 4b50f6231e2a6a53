"""What the sql connector asks of a database: one connection, and the rules of its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from lookupcache.connector import LookupRequest
from lookupcache.errors import ConnectorError, OptionError, SchemaError, SourceError, nearest
from lookupcache.expr import Expr
from lookupcache.schema import shown_type
from lookupcache_sql.query import Grammar, bare

SCAN_ROWS = 50_000
"""Rows in a batch of a scan, about."""

MISFITS = (TypeError, ValueError, OverflowError, ArithmeticError, pa.ArrowException)
"""What reading a value raises that is none of its column's type."""

_LONGEST_SHOWN = 40


class Unreachable(ConnectionError):
    """The database takes no connection; it may later."""


@dataclass(frozen=True)
class Place:
    """Where rows are: a table or view ``table`` in ``namespace`` (a database's schema), or what ``query`` gives."""

    table: str | None
    namespace: str | None
    query: str | None

    @classmethod
    def of(cls, settings: Mapping[str, str], grammar: Grammar | None = None) -> Place:
        """Read the options; raises OptionError where they name no place, or two, or a query that is not one."""
        table, namespace, query = (settings.get(name) or None for name in ("table", "schema", "query"))
        if (table is None) == (query is None):
            wrong = "neither 'table' nor 'query'" if table is None else "both 'table' and 'query'"
            raise OptionError(f"Connector 'sql' has {wrong}.", hint="Give one: 'table' for a table or view.")
        if query is not None and namespace is not None:
            raise OptionError("Option 'schema' goes with 'table'.", hint="Write the schema into the 'query'.")
        return cls(table, namespace, bare(query, grammar) if query and grammar else query)

    @property
    def enclosed(self) -> str:
        """The query in brackets; what may end it is a comment."""
        return f"({self.query}\n)"

    def __str__(self) -> str:
        if self.table is None:
            return "the option 'query'"
        return f"table {self.table!r}{f' of schema {self.namespace!r}' if self.namespace else ''}"


class Database(ABC):
    """One connection to a database of some kind.

    Built where it is opened. Errors of the driver pass through, for `retryable` to judge; what no retry
    can cure, such as a wrong password, an unknown table or column, is raised as ConnectorError or SchemaError.
    """

    driver: ClassVar[str | None] = None
    """The module that must be installed."""

    extra: ClassVar[str] = ""
    """What to install it with."""

    grammar: ClassVar[Grammar]
    """How its texts and comments are written."""

    def __init__(self, schema: pa.Schema, settings: Mapping[str, str]) -> None:
        self.schema = schema
        self.settings = settings
        self.place = Place.of(settings, self.grammar)

    @classmethod
    @abstractmethod
    def check(cls, settings: Mapping[str, str], schema: pa.Schema) -> None:
        """Raise OptionError or SchemaError for what is wrong without a connection."""

    @classmethod
    @abstractmethod
    def accepts(cls, conjunct: Expr) -> bool:
        """Return whether the database evaluates a filter with Spark's meaning, whatever it holds."""

    @abstractmethod
    def connect(self) -> None:
        """Connect, and check the table and its columns."""

    def is_stale(self) -> bool:
        """Return whether the connection reads a database that another has replaced; cheap, as each call asks."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Disconnect; never raises."""

    @abstractmethod
    def interrupt(self) -> None:
        """Let a running query end soon, from another thread; it may be ignored."""

    @abstractmethod
    def columns(self) -> pa.Schema:
        """Return all columns of the place in Spark's types; raises SchemaError for one that has none."""

    @abstractmethod
    def without_index(self, key_columns: Sequence[str]) -> bool:
        """Return whether the database has to read its whole table to find a key."""

    @abstractmethod
    def lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        """Return every row that matches any key, each once, by one query."""

    @abstractmethod
    def scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        """Yield the whole place, constants and filters applied."""

    @classmethod
    @abstractmethod
    def retryable(cls, error: Exception) -> bool | None:
        """Return whether the same may succeed later; None for errors that are not the driver's."""


# ── what is wrong is said ────────────────────────────────────────────────────────────────────────────────────


def refused_query(reason: str) -> ConnectorError:
    """Return the error for a query that a database does not take."""
    return ConnectorError(f"Option 'query' is refused: {reason.rstrip('.')}.")


def unknown_table(table: str, namespace: str | None, known: Sequence[str]) -> ConnectorError:
    """Return the error for a table that is not there."""
    fact = f"Option 'table': the database has no table or view {table!r}"
    before, dot, after = table.partition(".")
    if dot and namespace is None:
        return ConnectorError(f"{fact}.", hint=f"Say 'schema' = {before!r} and 'table' = {after!r}.")
    hint = nearest(table, known, what="tables and views")
    return ConnectorError(f"{fact}{f' in schema {namespace!r}' if namespace else ''}.", hint=hint)


def column_names(schema: pa.Schema, found: Sequence[str], place: Place) -> dict[str, str]:
    """Return the database's name of each column: the same, or else the only one that is the same but for case."""
    return {name: _column_name(name, found, place) for name in schema.names}


def _column_name(name: str, found: Sequence[str], place: Place) -> str:
    alike = [name] if name in found else [other for other in found if other.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    what = f"{str(place)[0].upper()}{str(place)[1:]}"
    if alike:
        raise SchemaError(f"{what} has columns {alike[0]!r} and {alike[1]!r}; {name!r} is neither.")
    raise SchemaError(f"{what} has no column {name!r} in the database.", hint=nearest(name, found, what="columns"))


def misfit(table: str, field: pa.Field, value: Any) -> SourceError:
    """Return the error for a value that the database holds and the column's type does not."""
    return SourceError(
        f"Table {table!r}, column {field.name!r}: the database holds {shortened(value)}, "
        f"which is no {shown_type(field.type)}.",
        hint="Give the column another type in the table's schema, or look up through a view that casts it.",
    )


def first_misfit(values: Sequence[Any], read: Callable[[Any], Any]) -> Any:
    """Return the first value that cannot be read by itself."""
    for value in values:
        try:
            read(value)
        except MISFITS:
            return value
    return None


def shortened(value: Any) -> str:
    """Return a value as text for an error."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
