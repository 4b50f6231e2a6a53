"""Splits SQL text at WHERE, at AND, and into the sides of an equality.

Conditions are passed to Spark as the user wrote them, except for the names of columns, so they are split as text.
The scanner knows only what that requires: strings, quoted names, comments, words and parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_COMMENT = r"/\*(?:[^*/]|\*(?!/)|/(?!\*)|{})*\*/"
_BRACKETED = _COMMENT.format(_COMMENT.format(_COMMENT.format("(?!)")))
"""A comment in brackets; they may be nested."""

_TOKEN = re.compile(
    rf"""(?P<space>(?:\s|--(?:\\\n|[^\r\n])*|{_BRACKETED})+)
    |(?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<number>(?:\d+\.?\d*|(?<![\w`])\.\d+)(?:[eE][+-]?\d+)?(?:[bB][dD]|[lLsSyYdDfF])?(?!\w))
    |(?P<word>\w+)
    |(?P<symbol><=>|->|=>|==|<=|>=|<>|!=|\|\||::|.)""",
    re.DOTALL | re.VERBOSE,
)
_COMPARISONS = {"<=>", "<=", ">=", "<>", "!=", "<", ">", "!"}
_PREDICATES = {"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "IS", "EXISTS"}
_NO_FUNCTIONS = _PREDICATES | {"CASE", "WHEN", "THEN", "ELSE", "ANY", "ALL", "SOME", "AS", "DECIMAL", "CHAR", "VARCHAR"}


@dataclass(frozen=True)
class Token:
    """A token: its kind, its text (words in upper case), its position, and its depth in parentheses.

    ``written`` is the original text.
    """

    kind: str
    text: str
    start: int
    end: int
    depth: int
    written: str = ""

    @property
    def name(self) -> str:
        """The name, without quotes."""
        return self.written[1:-1].replace("``", "`") if self.written[:1] == "`" else self.written


def tokens(sql: str) -> Iterator[Token]:
    """Yield the tokens except blanks and comments; CASE … END counts as parentheses, a word after a dot as a name.

    >>> [token.text for token in tokens("a.end = 'x''y' -- why")]
    ['A', '.', 'end', '=', "'x'", "'y'"]
    """
    depth, after_dot, cases = 0, False, 0
    for match in _TOKEN.finditer(sql):
        kind, text = str(match.lastgroup), match.group()
        if kind == "space":
            continue
        if kind == "word" and after_dot:
            kind = "quoted"
        written = text
        text = text.upper() if kind == "word" else text
        closes = text in (")", "]") or (text == "END" and kind == "word" and cases > 0)
        depth -= closes
        cases += (kind == "word") * ((text == "CASE") - closes)
        yield Token(kind, text, match.start(), match.end(), depth, written)
        depth += text in ("(", "[") or (text == "CASE" and kind == "word")
        after_dot = text == "."


def without_comments(sql: str) -> str:
    """Return the text with each comment and each run of white space replaced by one blank.

    >>> without_comments("a = b -- of course" + chr(10) + " AND c")
    'a = b AND c'
    """
    return "".join(" " if m.lastgroup == "space" else m.group() for m in _TOKEN.finditer(sql)).strip()


def with_backquotes(sql: str) -> str:
    """Return the text with names in double quotes rewritten in backquotes.

    >>> with_backquotes('"two words" = "a""`b"')
    '`two words` = `a"``b`'
    """
    pieces = [(m.lastgroup, m.group()) for m in _TOKEN.finditer(sql)]
    names = [text[1:-1].replace("`", "``") if kind == "string" and text[0] == '"' else None for kind, text in pieces]
    found: list[str] = []
    for number, (name, (_, text)) in enumerate(zip(names, pieces, strict=True)):
        if name is not None and number and names[number - 1] is not None:  # "" in a name is one quote of it
            found[-1] = f'{found[-1][:-1]}"{name}`'
        else:
            found.append(text if name is None else f"`{name}`")
    return "".join(found)


def split_where(sql: str) -> tuple[str, str | None]:
    """Split a condition from the WHERE that may follow it.

    >>> split_where("a.id = b.id WHERE b.salary > 1000")
    ('a.id = b.id', 'b.salary > 1000')
    """
    for token in tokens(sql):
        if token.depth == 0 and token.kind == "word" and token.text == "WHERE":
            return sql[: token.start].strip(), sql[token.end :].strip()
    return sql, None


def conjuncts(sql: str) -> list[str]:
    """Return the operands of AND, without parentheses around them.

    >>> conjuncts("(a = 1 AND (b BETWEEN 1 AND 2)) AND (c OR d AND e)")
    ['a = 1', 'b BETWEEN 1 AND 2', 'c OR d AND e']
    """
    return [sql[start:end] for start, end in conjunct_spans(sql)]


def conjunct_spans(sql: str) -> list[tuple[int, int]]:
    """Return start and end of these operands.

    >>> conjunct_spans("(a = 1) AND b")
    [(1, 6), (12, 13)]
    """
    return _conjunct_spans(sql, 0, len(sql))


def _conjunct_spans(sql: str, start: int, end: int) -> list[tuple[int, int]]:
    start, end = _unwrap_span(sql, start, end)
    cuts, between = [], 0
    for token in tokens(sql[start:end]):
        if token.depth or token.kind != "word":
            continue
        if token.text == "OR":
            return [(start, end)]
        if token.text == "BETWEEN":
            between += 1
        elif token.text == "AND" and between:
            between -= 1
        elif token.text == "AND":
            cuts.append(token)
    if not cuts:
        return [(start, end)]
    starts, ends = [start, *(start + cut.end for cut in cuts)], [*(start + cut.start for cut in cuts), end]
    return [part for one, other in zip(starts, ends, strict=True) for part in _conjunct_spans(sql, one, other)]


def unwrap(sql: str) -> str:
    """Return the text without parentheses around all of it.

    >>> unwrap("((a) + (b))"), unwrap("(a) + (b)")
    ('(a) + (b)', '(a) + (b)')
    """
    start, end = _unwrap_span(sql, 0, len(sql))
    return sql[start:end]


def _unwrap_span(sql: str, start: int, end: int) -> tuple[int, int]:
    while start < end and sql[start].isspace():
        start += 1
    while start < end and sql[end - 1].isspace():
        end -= 1
    found = list(tokens(sql[start:end]))
    whole = len(found) > 2 and found[0].text == "(" and found[-1].text == ")"
    if not whole or any(t.depth == 0 or (t.depth == 1 and t.text == ",") for t in found[1:-1]):
        return start, end
    return _unwrap_span(sql, start + found[0].end, start + found[-1].start)


def equality(sql: str) -> tuple[str, str] | None:
    """Return the two sides if the text is exactly ``side = side``.

    >>> equality("o.id = c.id"), equality("NOT a = b"), equality("a <= b")
    (('o.id', 'c.id'), None, None)
    """
    found = [token for token in tokens(sql) if token.depth == 0]
    signs = [token for token in found if token.text in ("=", "==") and token.kind == "symbol"]
    if len(signs) != 1 or any(_is_predicate(token) for token in found):
        return None
    return unwrap(sql[: signs[0].start]), unwrap(sql[signs[0].end :])


def _is_predicate(token: Token) -> bool:
    return token.text in (_COMPARISONS if token.kind == "symbol" else _PREDICATES if token.kind == "word" else ())


def functions(sql: str) -> frozenset[str]:
    """Return the names of all called functions, and the keywords that Spark treats as calls, in lower case.

    >>> sorted(functions("upper(a) = b AND c IN (1) AND d < current_date"))
    ['current_date', 'upper']
    """
    found = list(tokens(sql))
    called = {
        a.text.lower()
        for a, b in pairwise(found)
        if b.text == "(" and a.kind in ("word", "quoted") and a.text not in _NO_FUNCTIONS
    }
    return frozenset(called | {t.text.lower() for t in found if t.kind == "word" and t.text.lower() in WORD_CALLS})


WORD_CALLS = {
    "current_date", "current_timestamp", "current_time", "localtimestamp", "current_user", "user", "session_user",
}  # fmt: skip
"""Functions that need no brackets, unless a column has their name."""


OWN_PREFIX = "lookup_"
"""What the names of columns and variables inside a join's job begin with; no lambda variable of a user's may."""


def own_name(side: str, number: int) -> str:
    """Return a column's name inside the job: the letter of its side, and its number.

    >>> own_name("r", 2)
    'lookup_r2'
    """
    return f"{OWN_PREFIX}{side}{number}"


def substitute(sql: str, column: Callable[[str, str], str]) -> str:
    """Return a plan's SQL with each ``l.`x``` and ``r.`x``` replaced by the result of ``column`` for side and name.

    >>> substitute("l.`id` = r.`a``b` AND l.`s` <> 'l.`id`'", lambda side, name: f"<{side} {name}>")
    "<l id> = <r a`b> AND <l s> <> 'l.`id`'"
    >>> substitute("NOT r.`b`", lambda side, name: f"<{side} {name}>")
    'NOT <r b>'
    """
    found = list(tokens(sql))
    pieces, done = [], 0
    for side, dot, name in zip(found, found[1:], found[2:], strict=False):
        if side.kind == "word" and sql[side.start : side.end] in ("l", "r") and dot.text == "." and name.text[0] == "`":
            pieces += [sql[done : side.start], column(sql[side.start], name.text[1:-1].replace("``", "`"))]
            done = name.end
    return "".join([*pieces, sql[done:]])
