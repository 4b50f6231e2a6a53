"""Runs statements about the catalog of lookups: CREATE TABLE, CREATE FUNCTION, DROP, SHOW and DESCRIBE."""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from lookupcache.errors import OptionError, StatementError
from lookupcache.functions.table_function import TableFunction
from lookupcache.planner.clauses import Token
from lookupcache.schema import quote
from lookupcache.sql.catalog import MODEL, Catalog, Names, SqlTable, empty_table
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.query import Args, Run, SqlContext
from lookupcache.sql.text import Statement
from lookupcache.sql.token_reader import TokenReader, unquote, words_of


def read_create_table(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    """Return a function that creates a lookup table; raises StatementError for a broken definition."""
    made = CreateTable(statement, context.catalog)
    made.refuse_broken()
    return made.run if made.is_ours() else None


def read_create_function(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    """Return a function that creates a table function of Python."""
    words, strings = words_of(statement.tokens), [token.text for token in statement.tokens if token.kind == "string"]
    if words[:1] != ["CREATE"] or "FUNCTION" not in words[:6] or ":" not in "".join(strings[:1]):
        return None
    return lambda: create_function(context.catalog, statement)


def read_drop(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    """Return a function that drops a lookup table or a table function."""
    reader = TokenReader(statement.tokens)
    if not reader.take("DROP"):
        return None
    reader.skip("TEMPORARY", "TEMP", "SYSTEM")
    catalogs: dict[str, Names[Any]] = {"TABLE": context.catalog.tables, "FUNCTION": context.catalog.functions}
    names = catalogs.get("".join(reader.words[:1]))
    reader.skip("TABLE", "FUNCTION")
    reader.take("IF", "EXISTS")
    name = reader.name()
    if names is None or name is None or name.plain not in names or reader.words not in ([], ["PURGE"]):
        return None
    return partial(names.drop, name.parts[0], missing_ok=False)


# ── functions ───────────────────────────────────────────────────────────────────────────────────────────────


def create_function(catalog: Catalog, statement: Statement) -> None:
    """Run ``CREATE [OR REPLACE] [TEMPORARY] FUNCTION [IF NOT EXISTS] f AS 'module:name' [WITH (…)]``.

    WITH may give ``returns``, ``batch`` and the ``lookup.*`` options. Raises errors with the position.
    """
    found, words = statement.tokens, [token.text for token in statement.tokens]
    start = words.index("FUNCTION") + 1
    keep = words[start : start + 3] == ["IF", "NOT", "EXISTS"]
    name = found[start + 3 * keep]
    path = next(token for token in found if token.kind == "string")

    def build() -> TableFunction:
        with statement.located(statement.span_of(path)):
            function = import_function(unquote(path.text))
            options = _options(found[found.index(path) + 1 :])
            made = TableFunction.of(
                name.name,
                function,
                returns=options.pop("returns", None),
                batch={"true": True, "false": False}.get(options.pop("batch", "").lower()),
                options=options,
            )
            made.table(name.name, (), ())
        return made

    with statement.located(statement.span_of(name)):
        catalog.functions.create(name.name, build, replace="REPLACE" in words[:3], keep=keep)


def import_function(path: str) -> Any:
    """Import ``module:name``; raises StatementError if it does not exist.

    >>> import_function("math:sqrt").__name__
    'sqrt'
    """
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise StatementError(
            f"The function {path!r} cannot be imported: {error}.",
            hint="A path is 'module:name', and the module must be importable on driver and workers.",
        ) from error
    if not callable(found):
        raise StatementError(f"{path!r} is no function.", hint="Name a function, or a class with __call__.")
    return found


def _options(found: Sequence[Token]) -> dict[str, str]:
    strings = [unquote(token.text) for token in found if token.kind == "string"]
    if len(strings) % 2:
        raise OptionError("The function's options cannot be read.", hint="Write WITH ('key' = 'value', …).")
    return dict(zip(strings[::2], strings[1::2], strict=True))


# ── SHOW and DESCRIBE ───────────────────────────────────────────────────────────────────────────────────────


def read_listing(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    """Return a function that runs SHOW or DESCRIBE for lookup tables; names with a schema are Spark's."""
    reader, tables = TokenReader(statement.tokens), context.catalog.tables
    if reader.take("SHOW", "TABLES"):
        return None if {"IN", "FROM"} & set(reader.words) else partial(_with_ours, context, statement)
    creates, extended = reader.take("SHOW", "CREATE", "TABLE"), False
    if not creates:
        if not (reader.take("DESCRIBE") or reader.take("DESC")):
            return None
        reader.take("TABLE")
        extended = reader.take("EXTENDED") or reader.take("FORMATTED")
    name = reader.name()
    if name is None or name.plain not in tables or reader.rest:
        return None
    table = tables[name.parts[0]]
    if creates:
        return partial(_create_table, context, name.parts[0], table)
    return partial(_describe, context, table, extended)


def _with_ours(context: SqlContext, statement: Statement) -> DataFrame:
    """Return Spark's tables, and lookup tables whose names match: | separates patterns, and * is any text."""
    patterns = [unquote(token.text) for token in statement.tokens if token.kind == "string"] or ["*"]
    shapes = [one.strip().lower().replace("%", "*") for one in patterns[0].split("|")]
    names = [name for name in context.catalog.tables if not name.startswith(MODEL)]
    rows = [("", name, True) for name in names if any(fnmatch.fnmatch(name.lower(), shape) for shape in shapes)]
    theirs = context.spark.sql(statement.sql)
    return theirs.union(context.spark.createDataFrame(rows, theirs.schema)) if rows else theirs


def _describe(context: SqlContext, table: SqlTable, extended: bool) -> DataFrame:
    """List columns as Spark's DESCRIBE does; extended, key and options too, without secrets."""
    types = dict(context.spark.sql(empty_table(table)).dtypes)
    shown = [name for name in table.names if name not in table.marks]
    rows = [(name, types[name], table.comments.get(name)) for name in shown]
    if extended:
        rows += [("", "", None), ("# Lookup table", "", None), ("Name", table.table.name, None)]
        rows += [("Comment", table.comment, None)] if table.comment is not None else []
        rows += [("Primary key", ", ".join(table.key), None)] if table.key else []
        rows += [(key, value, None) for key, value in _shown_options(table).items()]
    return context.spark.createDataFrame(rows, "col_name STRING, data_type STRING, comment STRING")


def _shown_options(table: SqlTable) -> dict[str, str]:
    return table.table.connector.show_options(table.table.options)


def _create_table(context: SqlContext, name: str, table: SqlTable) -> DataFrame:
    """Return the statement that creates a table, with secrets masked."""
    types = table.types
    stored = {f.name: f"{types[f.name]}{'' if f.nullable else ' NOT NULL'}" for f in table.table.schema}
    every = stored | {name: f"AS {sql}" for name, sql in table.computed.items()}
    parts = [f"  {quote(name)} {every[name]}" for name in table.names if name not in table.marks]
    if table.key:
        parts.append(f"  PRIMARY KEY ({', '.join(map(quote, table.key))}) NOT ENFORCED")
    options = ",\n".join(f"  '{key}' = '{_escape(value)}'" for key, value in _shown_options(table).items())
    columns = ",\n".join(parts)
    comment = "" if table.comment is None else f" COMMENT '{_escape(table.comment)}'"
    text = f"CREATE TEMPORARY TABLE {quote(name)} (\n{columns}\n){comment} WITH (\n{options}\n)"
    return context.spark.createDataFrame([(text,)], "createtab_stmt STRING")


def _escape(value: Any) -> str:
    return str(value).replace("'", "''")
