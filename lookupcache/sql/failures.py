"""Converts Spark's errors about a statement to errors of lookupcache, with the position in the user's text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

from lookupcache.errors import LookupCacheError, SchemaError, StatementError, nearest
from lookupcache.planner.clauses import Token, closing_of
from lookupcache.spark.refusals import spark_message
from lookupcache.sql.text import Span, Statement
from lookupcache.sql.token_reader import is_relation
from lookupcache.versions import condition_of, query_context

_OURS = re.compile(r"`?\b(?:lookup_\d+|_pyspark_\w+)`?\.")
_NAME = "`(?:[^`]|``)*`"
_PATH = re.compile(rf"{_NAME}(?:\.{_NAME})*")

_DEFAULT = (
    "DEFAULT has no value here: the query of an INSERT that is compiled, or reads lookup tables, is planned without "
    "its table."
)
_WITHOUT_DEFAULT = "Leave the column out, as in INSERT INTO t (id) VALUES (1), or write its value."


def failure(
    statement: Statement, error: PySparkException, original: Callable[[int], int] | None = None
) -> LookupCacheError:
    """Return Spark's error as an error of lookupcache.

    ``original`` maps positions of the text that Spark was given to those of the statement. Without it, the piece of
    text that Spark names is searched for.
    """
    span = _span(statement, error, original)
    made = _failure(statement, error, span).at(None if span is None else statement.position(span))
    made.refusal = None if original is None else error  # Spark was given the user's text, not one that we made
    return made


def _failure(statement: Statement, error: PySparkException, span: Span | None) -> LookupCacheError:
    kind = str(condition_of(error) or "")
    parameters = error.getMessageParameters() or {}
    if kind.startswith("UNRESOLVED_COLUMN") and "objectName" in parameters and not statement.hidden:
        names = _names(parameters["objectName"])
        return _computed_name(statement, span, names) or _unknown_column(
            statement, span, names, parameters.get("proposal", "")
        )
    if kind == "AMBIGUOUS_REFERENCE" and not statement.hidden:
        return _ambiguous(parameters)
    if kind == "PARSE_SYNTAX_ERROR":
        for comma, after in pairwise(statement.tokens):
            if (comma.text, after.text, after.kind) == (",", "FROM", "word"):  # before a query in place of a table
                return StatementError(_TRAILING, position=statement.position_of(comma), hint="Remove it.")
    is_window = kind == "UNRESOLVED_ROUTINE" and _WINDOWS.search(str(parameters.get("routineName")))
    return StatementError(fact_of(error), hint=_WINDOW_HINT if is_window else _HINTS.get(kind))


_TRAILING = "[TRAILING_COMMA_IN_SELECT] A comma is before FROM."
_WINDOWS = re.compile(r"`(?:TUMBLE|HOP|SESSION)(?:_START|_END|_ROWTIME|_PROCTIME)?`", re.IGNORECASE)
_WINDOW_HINT = (
    "Write GROUP BY window(ts, '10 minutes'), with the slide behind the size, or session_window(ts, '10 minutes'); "
    "window.start and window.end are its bounds."
)
_HINTS = {
    "PARSE_SYNTAX_ERROR": "Correct the statement there; a name that is a keyword stands in backticks.",
    "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION": "In a query of a pipeline, write the join as "
    "lookup_join(…, left_schema='id BIGINT, name STRING'), which Spark need not analyze.",
    "INVALID_SUBQUERY_EXPRESSION.STREAMING_QUERY": "Read the latest row of a streaming view by a scalar "
    "sub-query (SELECT … FROM view WHERE view.key = …). In place of IN or EXISTS, write LEFT SEMI JOIN or LEFT ANTI "
    "JOIN view FOR SYSTEM_TIME AS OF PROCTIME() ON ….",
}


_NOT_PLANNED = "Error occurred during query planning:"
"""The beginning of EXPLAIN's rows for a statement that Spark refuses."""


def refusal_in(explained: DataFrame) -> AnalysisException | None:
    """Return Spark's error about a statement from the result of its EXPLAIN, None where Spark accepts it."""
    shown = "\n".join(row[0] for row in explained.collect())
    refused = shown.startswith(_NOT_PLANNED)
    return AnalysisException(shown.removeprefix(_NOT_PLANNED).strip()) if refused else None


def fact_of(error: PySparkException) -> str:
    """Return Spark's message about a statement, without the statement's text."""
    return _OURS.sub("", spark_message(error))


def _unknown_column(statement: Statement, span: Span | None, names: Sequence[str], proposal: str) -> LookupCacheError:
    known = [path for path in map(_names, _PATH.findall(proposal)) if not path[0].startswith("lookup_")]
    own = [path[-1] for path in known if len(names) > 1 and path[:-1] and path[-2].lower() == names[0].lower()]
    if len(names) > 1 and own:
        position = None if span is None else statement.position(_last_name(statement, span))
        fact, hint = f"Table {names[0]!r} has no column {names[1]!r}.", nearest(names[1], own, what="columns")
        return SchemaError(fact, hint=hint, position=position)
    name = ".".join(names)
    if name.upper() == "DEFAULT":
        return SchemaError(_DEFAULT, hint=_WITHOUT_DEFAULT)
    return SchemaError(
        f"There is no column {name!r}.", hint=nearest(name, {".".join(path[-2:]) for path in known}, what="columns")
    )


def _computed_name(statement: Statement, span: Span | None, names: Sequence[str]) -> LookupCacheError | None:
    """Return the error for a name that IDENTIFIER computes, of a column or of the relation, where that is the cause."""
    if span is not None and re.match(r"IDENTIFIER\s*\(", statement[span], re.IGNORECASE):
        return SchemaError(
            f"IDENTIFIER names {'.'.join(names)!r}, but in the condition of a lookup only columns of the left side.",
            hint="Write the name.",
        )
    found = statement.tokens
    for number, word in enumerate(found[1:-1], 1):
        if word.text == "IDENTIFIER" and found[number + 1].text == "(" and is_relation(found[:number]):
            closing = closing_of(found, number + 1)
            after = None if closing is None else next(iter(found[closing + 1 :]), None)
            if closing is not None and len(names) > 1 and (after is None or not _may_be_alias(after)):
                return SchemaError(
                    f"There is no relation {names[0]!r}: Spark alone knows the name that IDENTIFIER computes.",
                    hint=f"Write the name, or give it an alias, as in IDENTIFIER(…) AS {names[0]}.",
                    position=statement.position_of(word, found[closing]),
                )
    return None


def _may_be_alias(token: Token) -> bool:
    joins = ("JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "SEMI", "ANTI", "WHERE", "GROUP", "ORDER")
    return token.text == "AS" or (token.kind in ("word", "quoted") and token.text not in joins)


def _ambiguous(parameters: dict[str, str]) -> LookupCacheError:
    name = ".".join(_names(parameters.get("name", "")))
    paths = map(_names, _PATH.findall(parameters.get("referenceNames", "")))
    found = sorted({".".join(path[-2:]) for path in paths}, reverse=True)
    if len(found) < 2:
        return SchemaError(f"Column {name!r} is ambiguous.", hint="Name the columns apart.")
    either = found[0], found[1]
    return SchemaError(
        f"Column {name!r} is ambiguous: there are {' and '.join(either)}.", hint=f"Write {' or '.join(either)}."
    )


def _names(path: str) -> list[str]:
    return [name[1:-1].replace("``", "`") for name in re.findall(_NAME, path)]


def _last_name(statement: Statement, span: Span) -> Span:
    text = statement[span]
    name = re.search(rf"({_NAME}|\w+)\s*$", text)
    return span if name is None else Span(span.start + name.start(), span.start + name.end(1))


def _span(statement: Statement, error: PySparkException, original: Callable[[int], int] | None) -> Span | None:
    """Return the span that an error is about."""
    for context in query_context(error):
        fragment = _OURS.sub("", context.fragment())
        if original is not None:
            start, end = original(context.startIndex()), original(context.stopIndex()) + 1
            given = Span(start, end)
            if statement[given].strip():
                return given
        if fragment and (found := _search(statement, fragment)):
            return found
    near = re.search(r"at or near '(.+?)'", str(error))
    return _search(statement, near[1]) if near else None


def _search(statement: Statement, piece: str) -> Span | None:
    found = re.search(rf"(?<!\w){re.escape(piece)}(?!\w)", statement.sql)
    if found is None:
        return None
    return Span(statement.span.start + found.start(), statement.span.start + found.end())
