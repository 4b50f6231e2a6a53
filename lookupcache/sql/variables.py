"""The values of ``${name}`` in a statement."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext

from lookupcache.planner.settings import SUBSTITUTE
from lookupcache.spark.variables import naming_unset
from lookupcache.sql.query import SqlContext
from lookupcache.sql.text import Statement

_VARIABLE = re.compile(r"\$\{(?:(\w+?):)?(\S+?)\}", re.ASCII)
_SETTINGS = {None, "spark", "sparkconf", "hivevar", "hiveconf"}


def with_variables(context: SqlContext, statement: Statement) -> Statement:
    """Return a statement with the values of ``${name}``, which are text of it: a name, or several conditions.

    Those of ``${env:NAME}`` and ``${system:NAME}``, which only Spark knows, are left to Spark.
    """
    if "${" not in statement.sql or not context.settings.on(SUBSTITUTE):
        return statement
    return Statement.of(_substituted(context, statement.written, frozenset()))


def unset_in(context: SqlContext, statement: Statement) -> AbstractContextManager[None]:
    """Return a context whose errors name the variables of a statement that have no value."""
    if "${" not in statement.sql or not context.settings.on(SUBSTITUTE):
        return nullcontext()
    return naming_unset(statement.sql, lambda variable: _substituted(context, variable, frozenset()))


def _substituted(context: SqlContext, text: str, used: frozenset[str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] not in _SETTINGS or found[0] in used:
            return found[0]
        return _substituted(context, context.spark.conf.get(found[2], "") or "", used | {found[0]})

    return _VARIABLE.sub(value, text)
