"""SHOW and DESCRIBE: tables and functions of the session and of Spark in one list."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from lookupcache.errors import SchemaError, nearest
from lookupcache.functions.table_function import TableFunction
from lookupcache.schema import quote, shown_type
from lookupcache.sql.analysis import empty_table
from lookupcache.sql.catalog import MODEL, SqlTable
from lookupcache.sql.hints import unquote
from lookupcache.sql.query import Args, Run, Setting
from lookupcache.sql.statement_target import TableName, TokenReader
from lookupcache.sql.text import Statement


def read_listing(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return a function that runs SHOW or DESCRIBE for lookup tables or functions; names with a schema are Spark's."""
    reader = TokenReader(statement.words)
    if reader.take("SHOW"):
        return _show(setting, statement, reader)
    if reader.take("DESCRIBE") or reader.take("DESC"):
        return _describe_reader(setting, reader)
    return None


def _show(setting: Setting, statement: Statement, reader: TokenReader) -> Run | None:
    catalog, words = setting.catalog, reader.words
    if words[:1] == ["TABLES"] and not {"IN", "FROM"} & set(words):
        tables = [("", name, True) for name in catalog.tables if not name.startswith(MODEL)]
        return partial(_with_ours, setting, statement, tables, 1)
    if (words[:1] == ["FUNCTIONS"] or words[:2] == ["USER", "FUNCTIONS"]) and list(catalog.functions):
        return partial(_with_ours, setting, statement, [(name,) for name in catalog.functions], 0)
    creates = reader.take("CREATE", "TABLE")
    if not creates and not (reader.take("COLUMNS", "IN") or reader.take("COLUMNS", "FROM")):
        return None
    name = reader.name()
    if name is None or name.plain not in catalog.tables or reader.rest:
        return None
    table = catalog.tables[name.parts[0]]
    return partial(_create_table, setting, name.parts[0], table) if creates else partial(_columns, setting, table)


def _describe_reader(setting: Setting, reader: TokenReader) -> Run | None:
    function = reader.take("FUNCTION")
    if not function:
        reader.take("TABLE")
    extended = reader.take("EXTENDED") or reader.take("FORMATTED")
    name = reader.name()
    if name is None or name.plain not in (setting.catalog.functions if function else setting.catalog.tables):
        return None
    column = None if function else reader.name()
    if reader.rest:
        return None
    if function:
        return partial(_function, setting, setting.catalog.functions[name.parts[0]])
    table = setting.catalog.tables[name.parts[0]]
    return partial(_describe, setting, table, extended) if column is None else partial(_one, setting, table, column)


def _one(setting: Setting, table: SqlTable, column: TableName) -> DataFrame:
    """Describe one column as Spark does."""
    types = table.types | dict(_computed_rows(setting, table))
    name = next((known for known in types if known.lower() == column.parts[-1].lower()), None)
    if name is None:
        hint = nearest(column.parts[-1], types, what="columns")
        raise SchemaError(f"Table {table.table.name!r} has no column {column.parts[-1]!r}.", hint=hint)
    rows = [("col_name", name), ("data_type", types[name]), ("comment", table.comments.get(name) or "NULL")]
    return setting.spark.createDataFrame(rows, "info_name STRING, info_value STRING")


def _with_ours(setting: Setting, statement: Statement, ours: Sequence[tuple[Any, ...]], name: int) -> DataFrame:
    """Return Spark's rows, and those of our objects whose names match: | separates patterns, and * is any text."""
    patterns = [unquote(token.text) for token in statement.words if token.kind == "string"] or ["*"]
    shapes = [one.strip().lower().replace("%", "*") for one in patterns[0].split("|")]
    rows = [row for row in ours if any(fnmatch.fnmatch(row[name].lower(), shape) for shape in shapes)]
    theirs = setting.spark.sql(statement.sql)
    return theirs.union(setting.spark.createDataFrame(rows, theirs.schema)) if rows else theirs


def _columns(setting: Setting, table: SqlTable) -> DataFrame:
    names = [*table.table.schema.names, *table.computed]
    return setting.spark.createDataFrame([(name,) for name in names], "col_name STRING")


def _describe(setting: Setting, table: SqlTable, extended: bool) -> DataFrame:
    """List columns as Spark's DESCRIBE does; extended, key and options too, without secrets."""
    rows = [(name, type_, table.comments.get(name)) for name, type_ in table.types.items()]
    rows += [(name, type_, table.comments.get(name)) for name, type_ in _computed_rows(setting, table)]
    if extended:
        rows += [("", "", None), ("# Lookup table", "", None), ("Name", table.table.name, None)]
        rows += [("Comment", table.comment, None)] if table.comment is not None else []
        rows += [("Primary key", ", ".join(table.key), None)] if table.key else []
        rows += [(key, value, None) for key, value in _options(table).items()]
    return setting.spark.createDataFrame(rows, "col_name STRING, data_type STRING, comment STRING")


def _computed_rows(setting: Setting, table: SqlTable) -> list[tuple[str, str]]:
    if not table.computed:
        return []
    return [(name, type_) for name, type_ in setting.spark.sql(empty_table(table)).dtypes if name in table.computed]


def _options(table: SqlTable) -> dict[str, str]:
    return table.table.connector.show_options(table.table.options)


def _create_table(setting: Setting, name: str, table: SqlTable) -> DataFrame:
    """Return the statement that creates a table, with secrets masked."""
    types = table.types
    parts = [f"  {quote(f.name)} {types[f.name]}{'' if f.nullable else ' NOT NULL'}" for f in table.table.schema]
    parts += [f"  {quote(name)} AS {sql}" for name, sql in table.computed.items()]
    if table.key:
        parts.append(f"  PRIMARY KEY ({', '.join(map(quote, table.key))}) NOT ENFORCED")
    options = ",\n".join(f"  '{key}' = '{_escape(value)}'" for key, value in _options(table).items())
    columns = ",\n".join(parts)
    comment = "" if table.comment is None else f" COMMENT '{_escape(table.comment)}'"
    text = f"CREATE TEMPORARY TABLE {quote(name)} (\n{columns}\n){comment} WITH (\n{options}\n)"
    return setting.spark.createDataFrame([(text,)], "createtab_stmt STRING")


def _escape(value: Any) -> str:
    return str(value).replace("'", "''")


def _function(setting: Setting, function: TableFunction) -> DataFrame:
    returned = ", ".join(f"{f.name} {shown_type(f.type)}" for f in function.columns())
    lines = [f"Function: {function.name}", f"Returns: {returned}", f"Batch: {str(function.batch).lower()}"]
    return setting.spark.createDataFrame([(line,) for line in lines], "function_desc STRING")
