"""Text that a statement computes, by Spark: the values of ``${name}``, and IDENTIFIER of an expression."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pyspark.errors import PySparkException
from sqlglot import exp

from lookupcache.planner.clauses import Token, closing_of, tokens
from lookupcache.planner.settings import SUBSTITUTE
from lookupcache.sql.dialect import name_span
from lookupcache.sql.query import Setting
from lookupcache.sql.text import Edit, Span, Statement, without_comments

Prepared = tuple[Statement, list[Token]]

_VARIABLE = re.compile(r"\$\{(?:(\w+?):)?(\S+?)\}", re.ASCII)
_SETTINGS = {None, "spark", "sparkconf", "hivevar", "hiveconf"}
_PATH = re.compile(r"(?:\w+|`(?:[^`]|``)+`)(?:\.(?:\w+|`(?:[^`]|``)+`))*")


def with_variables(setting: Setting, statement: Statement) -> Statement:
    """Return a statement with the values of ``${name}``, which are text of it: a name, or several conditions.

    Those of ``${env:NAME}`` and ``${system:NAME}``, which only Spark knows, are left to Spark.
    """
    if "${" not in statement.sql or not setting.settings.on(SUBSTITUTE):
        return statement
    return Statement.of(_substituted(setting, statement.written, frozenset()))


def _substituted(setting: Setting, text: str, used: frozenset[str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] not in _SETTINGS or found[0] in used:
            return found[0]
        return _substituted(setting, setting.spark.conf.get(found[2], "") or "", used | {found[0]})

    return _VARIABLE.sub(value, text)


def prepare_statement(setting: Setting, statement: Statement, args: dict[str, Any] | None) -> Prepared:
    """Return a statement without semicolons at its end, with the names that it computes, and its tokens."""
    found = list(statement.words)
    while found and found[-1].text == ";":
        statement = statement.part(statement.span.start, statement.span.start + found.pop().start)
    if any(a.text == "IDENTIFIER" and b.text == "(" for a, b in pairwise(found)):
        statement = with_identifiers(setting, statement, args)
        found = list(tokens(statement.sql))
    return statement, found


def with_identifiers(setting: Setting, statement: Statement, args: dict[str, Any] | None) -> Statement:
    """Return a statement with IDENTIFIER(expression) replaced by the name that the expression gives.

    A literal has been replaced before. An expression that Spark does not compute by itself stays as it is.
    """
    found = list(tokens(statement.sql))
    calls = list(_identifier_calls(found))
    pieces, done, code = [], 0, statement.sql
    for start, end in calls:
        inside = code[code.index("(", start) + 1 : end - 1]
        if any(token.text == "SELECT" for token in tokens(inside)):
            continue  # Spark refuses sub-queries there
        try:
            [[name]] = _values(setting, inside, args)
        except (PySparkException, ValueError):
            continue
        if isinstance(name, str) and _PATH.fullmatch(name):
            pieces += [code[done:start], name.ljust(end - start)]
            done = end
    if not pieces:
        return statement
    changed = "".join([*pieces, code[done:]])
    if len(changed) != len(code):  # a name that is longer than the call: positions are those of the changed text
        return Statement.of(changed)
    return statement.with_code(statement.code[: statement.span.start] + changed + statement.code[statement.span.end :])


def _identifier_calls(found: Sequence[Token]) -> Iterator[tuple[int, int]]:
    for number, (word, opening) in enumerate(pairwise(found)):
        if word.kind == "word" and word.text == "IDENTIFIER" and opening.text == "(":
            closing = closing_of(found, number + 1)
            if closing is not None:
                yield word.start, found[closing].end


def columns_called(statement: Statement, tree: exp.Expr) -> Iterator[Edit]:
    """Yield the calls of IDENTIFIER that name columns as they were written: Spark names fields of structs by them."""
    if "IDENTIFIER" not in statement.text.upper():
        return
    for column in tree.find_all(exp.Column):
        first = column.parts[0]
        start = name_span(first).start if isinstance(first, exp.Identifier) and "start" in first.meta else 0
        written = without_comments(statement.text[start : statement.span.end]) if start else ""
        if statement.code[start : start + 10].upper() != "IDENTIFIER" and written[:10].upper() == "IDENTIFIER":
            calls = _identifier_calls(list(tokens(written)))
            end = next((end for begin, end in calls if not begin), 0)
            if end:
                yield Edit(Span(start, start + end), written[:end])


def _values(setting: Setting, expressions: str, args: dict[str, Any] | None = None) -> list[Any]:
    sql = setting.spark.sql
    return (sql(f"SELECT {expressions}") if args is None else sql(f"SELECT {expressions}", args)).collect()
