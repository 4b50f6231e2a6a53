"""Runs statements about the catalog of lookups: CREATE TABLE, CREATE FUNCTION and DROP."""

from __future__ import annotations

from functools import partial
from typing import Any

from lookupcache.sql.catalog import Names
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.functions import create_function
from lookupcache.sql.query import Args, Run, Setting
from lookupcache.sql.statement_target import TokenReader, words_of
from lookupcache.sql.text import Statement


def read_create_table(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return what creates a lookup table; raises StatementError for a definition that is broken."""
    made = CreateTable(statement, setting.catalog)
    made.refuse_broken()
    return made.run if made.is_ours() else None


def read_create_function(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return what creates a table function of Python."""
    words, strings = words_of(statement.words), [token.text for token in statement.words if token.kind == "string"]
    if words[:1] != ["CREATE"] or "FUNCTION" not in words[:6] or ":" not in "".join(strings[:1]):
        return None
    return lambda: create_function(setting.catalog, statement)


def read_drop(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return what drops a lookup table or a table function."""
    reader = TokenReader(statement.words)
    if not reader.take("DROP"):
        return None
    reader.skip("TEMPORARY", "TEMP", "SYSTEM")
    catalogs: dict[str, Names[Any]] = {"TABLE": setting.catalog.tables, "FUNCTION": setting.catalog.functions}
    names = catalogs.get("".join(reader.words[:1]))
    reader.skip("TABLE", "FUNCTION")
    reader.take("IF", "EXISTS")
    name = reader.name()
    if names is None or name is None or name.plain not in names or reader.words not in ([], ["PURGE"]):
        return None
    return partial(names.drop, name.parts[0], missing_ok=False)
