"""The catalog of a session: lookup tables as SQL defines them, and table functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lookupcache.errors import LookupCacheError, OptionError, StatementError, nearest
from lookupcache.functions.table_function import TableFunction
from lookupcache.planner.clauses import with_words
from lookupcache.planner.coercion import type_of_any_session
from lookupcache.schema import quote, type_name
from lookupcache.table import LookupTable

Item = TypeVar("Item")
MODEL = "lookup_model_"
"""The beginning of the names of models' lookup tables."""


@dataclass(frozen=True)
class SqlTable:
    """A lookup table as SQL defines it: SQL of ``computed`` columns, ``key``, ``comments`` of columns and its own.

    ``declared`` are the columns in the order of CREATE TABLE, where some are computed. A query over one lookup table is
    one too: ``shown`` are its columns in their order, ``conditions`` those of its WHERE, as SQL over the table's
    columns, and ``base`` is the table's name. Names in ``outside`` stand for SQL in the conditions and computed columns
    that reads no column: parameters and session variables.
    """

    table: LookupTable
    computed: Mapping[str, str] = field(default_factory=dict)
    declared: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    comments: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    shown: tuple[str, ...] | None = None
    conditions: tuple[str, ...] = ()
    outside: Mapping[str, str] = field(default_factory=dict)
    base: str | None = None

    @property
    def marks(self) -> dict[str, str]:
        """The age and error columns that its options name, with their types; raises OptionError for a taken name."""
        marks = self.table.config.marks
        taken = {name.lower() for name in (*self.types, *self.computed)} if self.shown is None else set()
        for option, name in marks.items():
            if name.lower() in taken:
                raise OptionError(
                    f"Option {option!r} names {name!r}, which is another column of table {self.table.name!r}.",
                    hint="Give it a name that no column has.",
                )
        types = {"lookup.age-column": "double", "lookup.error-column": "struct<code:string,message:string>"}
        return {name: types[option] for option, name in marks.items()}

    @property
    def types(self) -> dict[str, str]:
        """The declared types of its columns, without computed ones."""
        return {column.name: type_name(column.type) for column in self.table.schema}

    @property
    def names(self) -> list[str]:
        """The names of its columns in their order, with computed columns, age and error."""
        names = self.shown if self.shown is not None else (*(self.declared or self.types), *self.marks)
        return list(names)

    def with_computed(self, df: DataFrame) -> DataFrame:
        """Return the rows of a table, which has no age or error column, with its computed columns."""
        return computed_columns(df, self.computed, self.names)


def empty_table(table: SqlTable) -> str:
    """Return a query with the columns of a table; its values do not matter, since it is never executed."""
    plain = {name: with_words(sql, table.outside) for name, sql in table.computed.items()}
    columns = null_columns(table.types | table.marks)
    if not plain and table.shown is None:
        return f"SELECT {columns}"
    items = (f"{plain.get(name, quote(name))} AS {quote(name)}" for name in table.names)
    return f"SELECT {', '.join(items)} FROM (SELECT {columns})"


def computed_columns(df: DataFrame, computed: Mapping[str, str], names: Sequence[str]) -> DataFrame:
    """Return rows with computed columns, SQL by name; ``names`` are the columns in their order."""
    if not computed:
        return df
    return df.selectExpr("*", *(f"{sql} AS {quote(name)}" for name, sql in computed.items())).select(*map(quote, names))


def null_columns(types: Mapping[str, str]) -> str:
    """Return columns of these types, without values, as SQL."""
    return ", ".join(f"CAST(NULL AS {type_of_any_session(type_)}) AS {quote(name)}" for name, type_ in types.items())


@dataclass(frozen=True)
class LookupView:
    """A temporary view over one lookup table: the table that it stands for, or why for no table, and its rows."""

    table: SqlTable | LookupCacheError
    rows: DataFrame


class Names(Generic[Item]):
    """Objects by name; names are case-insensitive.

    >>> tables = Names("lookup table")
    >>> tables["Customers"] = 1
    >>> tables["CUSTOMERS"], "orders" in tables
    (1, False)
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._items: dict[str, tuple[str, Item]] = {}

    def __contains__(self, name: str | None) -> bool:
        return name is not None and name.lower() in self._items

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items.values())

    def __getitem__(self, name: str) -> Item:
        if name not in self:
            raise StatementError(f"There is no {self.what} {name!r}.", hint=nearest(name, self, what=f"{self.what}s"))
        return self._items[name.lower()][1]

    def __setitem__(self, name: str, item: Item) -> None:
        self._items[name.lower()] = name, item

    def get(self, name: str) -> Item | None:
        """Return the object of a name, or None."""
        found = self._items.get(name.lower())
        return None if found is None else found[1]

    def registered_name(self, name: str) -> str:
        """Return a name as it was registered; raises StatementError for an unknown name."""
        _ = self[name]
        return self._items[name.lower()][0]

    def create(self, name: str, item: Callable[[], Item], *, replace: bool, keep: bool) -> None:
        """Add an object; if there is one of the name, replace it, keep it, or raise StatementError."""
        if name in self and keep:
            return
        if name in self and not replace:
            raise StatementError(
                f"There is a {self.what} {name!r} already.", hint="Write CREATE OR REPLACE, or drop it first."
            )
        self[name] = item()

    def drop(self, name: str, *, missing_ok: bool) -> None:
        """Remove an object; raises StatementError for an unknown name, unless ``missing_ok``."""
        if missing_ok and name not in self:
            return
        _ = self[name]
        del self._items[name.lower()]


class Catalog:
    """The lookup tables and table functions of a session."""

    def __init__(self) -> None:
        self.tables: Names[SqlTable] = Names("lookup table")
        self.functions: Names[TableFunction] = Names("table function")
        self.views: Names[LookupView] = Names("view")

    def view(self, spark: SparkSession, name: str) -> SqlTable | None:
        """Return the lookup table of a temporary view; None where Spark has another relation of the name.

        Raises PlanError for a view that does more than select from a lookup table.
        """
        view = self.views.get(name)
        if view is None or not _is_same(spark, name, view.rows):
            return None
        if isinstance(view.table, LookupCacheError):
            raise view.table
        return view.table


def _is_same(spark: SparkSession, name: str, rows: DataFrame) -> bool:
    try:
        return spark.table(quote(name)).sameSemantics(rows)
    except PySparkException:
        return False
