"""CREATE FUNCTION: a table function from the import path of a Python function."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from lookupcache.errors import OptionError, StatementError
from lookupcache.functions.table_function import TableFunction
from lookupcache.planner.clauses import Token
from lookupcache.sql.catalog import Catalog
from lookupcache.sql.hints import unquote
from lookupcache.sql.text import Statement


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
        with statement.located(statement.span_within(path.start, path.end)):
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
