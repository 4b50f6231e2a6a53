"""The sql connector's option `query`: the user's text, checked so that it can be put in parentheses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lookupcache.errors import OptionError


@dataclass(frozen=True)
class Grammar:
    """A database's syntax of texts, quoted names and comments, as regular expressions.

    ``nests`` says whether comments may be nested.
    """

    quoted: str
    comment: str = r"--[^\n]*"
    nests: bool = False


_TEXT = r"'(?:[^']|'')*'"
_NAME = r'"(?:[^"]|"")*"'
_ESCAPED = r"'(?:[^'\\]|\\.|'')*'"
SQLITE = Grammar(rf"{_TEXT}|{_NAME}|`(?:[^`]|``)*`|\[[^\]]*\]")
POSTGRES = Grammar(rf"[eE]{_ESCAPED}|{_TEXT}|{_NAME}|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$", nests=True)
MYSQL = Grammar(rf'{_ESCAPED}|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`', r"--(?=\s|\Z)[^\n]*|#[^\n]*")


def bare(query: str, grammar: Grammar) -> str:
    """Return a query without the semicolons at its end; a comment may still end it.

    Raises OptionError for a text that cannot be put in parentheses: more than one statement, a quote or comment that is
    not closed, unbalanced parentheses.

    >>> bare("SELECT ';' AS s -- all; of them", SQLITE), bare("SELECT 1; -- one", SQLITE)
    ("SELECT ';' AS s -- all; of them", 'SELECT 1')
    """
    depth, end, empty = 0, len(query), True
    for kind, start in _pieces(query, grammar):
        if kind == ";":
            end = min(end, start)
        elif end < len(query):
            raise _refuse("holds more than one statement", "Give one SELECT.")
        elif kind in "'\"`/":
            raise _refuse(f"has a {'comment' if kind == '/' else 'quote'} that is not closed", "Close it.")
        depth += {"(": 1, ")": -1}.get(kind, 0)
        empty = empty and kind == ";"
        if depth < 0:
            break
    if depth:
        raise _refuse(f"has a bracket that is not {'closed' if depth > 0 else 'opened'}", "Write one full SELECT.")
    if empty:
        raise _refuse("has no statement", "Give one SELECT.")
    return query[:end].rstrip() if end < len(query) else query


def _pieces(query: str, grammar: Grammar) -> Iterator[tuple[str, int]]:
    """Yield the tokens of a query, without blanks and comments: a letter for the kind of each, and its offset.

    The kind of an open quote is the quote, of an open comment ``/``, and of ordinary text ``x``.
    """
    piece = re.compile(
        rf"(?P<blank>\s+|{grammar.comment})|(?P<comment>/\*)|(?P<plain>{grammar.quoted}|[^\W\d][\w$]*|\d+)|(?P<mark>.)",
        re.DOTALL,
    )
    place = 0
    while found := piece.match(query, place):
        start, place = found.span()
        if found["comment"]:
            closed = _after_comment(query, place, grammar)
            if closed is None:
                yield "/", start
                return
            place = closed
        elif not found["blank"]:
            mark = found["mark"] or "x"
            yield (mark if mark in "();'\"`" else "x"), start


def _after_comment(query: str, place: int, grammar: Grammar) -> int | None:
    """Return the end of the comment whose start was read, or None."""
    depth = 1
    for mark in re.compile(r"/\*|\*/").finditer(query, place):
        depth += 1 if mark[0] == "/*" and grammar.nests else -(mark[0] == "*/")
        if not depth:
            return mark.end()
    return None


def _refuse(what: str, cure: str) -> OptionError:
    return OptionError(f"Option 'query' {what}.", hint=cure)
