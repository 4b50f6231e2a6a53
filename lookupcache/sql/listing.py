"""SHOW TABLES, SHOW CREATE TABLE and DESCRIBE: lookup tables beside the tables of Spark."""

from __future__ import annotations

import fnmatch
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from lookupcache.schema import quote
from lookupcache.sql.analysis import empty_table
from lookupcache.sql.catalog import MODEL, SqlTable
from lookupcache.sql.hints import unquote
from lookupcache.sql.query import Args, Run, Setting
from lookupcache.sql.statement_target import TokenReader
from lookupcache.sql.text import Statement


def read_listing(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return a function that runs SHOW or DESCRIBE for lookup tables; names with a schema are Spark's."""
    reader, tables = TokenReader(statement.words), setting.catalog.tables
    if reader.take("SHOW", "TABLES"):
        return None if {"IN", "FROM"} & set(reader.words) else partial(_with_ours, setting, statement)
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
        return partial(_create_table, setting, name.parts[0], table)
    return partial(_describe, setting, table, extended)


def _with_ours(setting: Setting, statement: Statement) -> DataFrame:
    """Return Spark's tables, and lookup tables whose names match: | separates patterns, and * is any text."""
    patterns = [unquote(token.text) for token in statement.words if token.kind == "string"] or ["*"]
    shapes = [one.strip().lower().replace("%", "*") for one in patterns[0].split("|")]
    names = [name for name in setting.catalog.tables if not name.startswith(MODEL)]
    rows = [("", name, True) for name in names if any(fnmatch.fnmatch(name.lower(), shape) for shape in shapes)]
    theirs = setting.spark.sql(statement.sql)
    return theirs.union(setting.spark.createDataFrame(rows, theirs.schema)) if rows else theirs


def _describe(setting: Setting, table: SqlTable, extended: bool) -> DataFrame:
    """List columns as Spark's DESCRIBE does; extended, key and options too, without secrets."""
    rows = [(name, type_, table.comments.get(name)) for name, type_ in table.types.items()]
    computed = setting.spark.sql(empty_table(table)).dtypes if table.computed else ()
    rows += [(name, type_, table.comments.get(name)) for name, type_ in computed if name in table.computed]
    if extended:
        rows += [("", "", None), ("# Lookup table", "", None), ("Name", table.table.name, None)]
        rows += [("Comment", table.comment, None)] if table.comment is not None else []
        rows += [("Primary key", ", ".join(table.key), None)] if table.key else []
        rows += [(key, value, None) for key, value in _options(table).items()]
    return setting.spark.createDataFrame(rows, "col_name STRING, data_type STRING, comment STRING")


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
