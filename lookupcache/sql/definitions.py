"""Runs statements about the catalog of lookups: CREATE TABLE, CREATE FUNCTION, DROP, and SHOW and DESCRIBE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from lookupcache.planner.clauses import Token
from lookupcache.sql import listing
from lookupcache.sql.catalog import Names
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.functions import create_function
from lookupcache.sql.query import Args, Setting, nothing
from lookupcache.sql.statement_target import TokenReader, words_of
from lookupcache.sql.text import Statement


def is_create_table(_: Sequence[Token], setting: Setting, statement: Statement) -> bool:
    """Return whether a statement creates a lookup table; raises StatementError for one that is broken."""
    made = CreateTable(statement, setting.catalog)
    made.refuse_broken()
    return made.is_ours()


def create_table(setting: Setting, statement: Statement, _: Sequence[Token], args: Args = None) -> DataFrame:
    """Run CREATE TABLE … WITH."""
    CreateTable(statement, setting.catalog).run()
    return nothing(setting)


def is_create_function(found: Sequence[Token], _: Setting, __: Statement) -> bool:
    """Return whether a statement creates a table function of Python."""
    words = words_of(found)
    if words[:1] != ["CREATE"] or "FUNCTION" not in words[:6]:
        return False
    strings = [token.text for token in found if token.kind == "string"]
    return bool(strings) and ":" in strings[0]


def run_create_function(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run CREATE FUNCTION."""
    create_function(setting.catalog, statement, found)
    return nothing(setting)


def is_drop(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    """Return whether a statement drops a lookup table or a table function."""
    return _drop_target(found, setting) is not None


def _drop_target(found: Sequence[Token], setting: Setting) -> tuple[Names[Any], str] | None:
    """Return the catalog and the name that a DROP removes, if it is a lookup table or a table function."""
    reader = TokenReader(found)
    if not reader.take("DROP"):
        return None
    reader.skip("TEMPORARY", "TEMP", "SYSTEM")
    if not (reader.words[:1] and reader.words[0] in ("TABLE", "FUNCTION")):
        return None
    names: Names[Any] = setting.catalog.tables if reader.words[0] == "TABLE" else setting.catalog.functions
    reader.skip("TABLE", "FUNCTION")
    reader.take("IF", "EXISTS")
    name = reader.name()
    if name is None or name.plain is None or name.plain not in names or reader.words not in ([], ["PURGE"]):
        return None
    return names, name.plain


def run_drop(setting: Setting, _: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run DROP."""
    dropped = _drop_target(found, setting)
    assert dropped is not None
    names, name = dropped
    names.drop(name, missing_ok=False)
    return nothing(setting)


def is_listing(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    """Return whether a statement shows or describes lookup tables or table functions."""
    return listing.reader(setting, found) is not None


def run_listing(setting: Setting, _: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run SHOW or DESCRIBE."""
    read = listing.reader(setting, found)
    assert read is not None
    return read()
