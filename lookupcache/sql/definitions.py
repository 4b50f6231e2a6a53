"""Runs statements about the catalog of lookups: CREATE TABLE, CREATE FUNCTION and DROP."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from lookupcache.errors import OptionError, StatementError
from lookupcache.functions.table_function import TableFunction
from lookupcache.planner.clauses import Token
from lookupcache.sql.catalog import Catalog, Names
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.hints import unquote
from lookupcache.sql.query import Args, Run, Setting
from lookupcache.sql.statement_target import TokenReader, words_of
from lookupcache.sql.text import Statement


def read_create_table(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return a function that creates a lookup table; raises StatementError for a broken definition."""
    made = CreateTable(statement, setting.catalog)
    made.refuse_broken()
    return made.run if made.is_ours() else None


def read_create_function(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return a function that creates a table function of Python."""
    words, strings = words_of(statement.words), [token.text for token in statement.words if token.kind == "string"]
    if words[:1] != ["CREATE"] or "FUNCTION" not in words[:6] or ":" not in "".join(strings[:1]):
        return None
    return lambda: create_function(setting.catalog, statement)


def read_drop(setting: Setting, statement: Statement, args: Args) -> Run | None:
    """Return a function that drops a lookup table or a table function."""
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


# ── functions ───────────────────────────────────────────────────────────────────────────────────────────────


def create_function(catalog: Catalog, statement: Statement) -> None:
    """Run ``CREATE [OR REPLACE] [TEMPORARY] FUNCTION [IF NOT EXISTS] f AS 'module:name' [WITH (…)]``.

    WITH may give ``returns``, ``batch`` and the ``lookup.*`` options. Raises errors with the position.
    """
    found, words = statement.words, [token.text for token in statement.words]
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

    with statement.located(statement.span_within(name.start, name.end)):
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
