"""Text that a statement computes, by Spark: EXECUTE IMMEDIATE, and IDENTIFIER of an expression."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.errors import PySparkException
from sqlglot import exp

from lookupcache.planner.clauses import Token, tokens
from lookupcache.planner.settings import SUBSTITUTE
from lookupcache.sql.dialect import name_span
from lookupcache.sql.query import Setting
from lookupcache.sql.text import Edit, Span, Statement, name_parameters, without_comments

Prepared = tuple[Statement, list[Token]]

_VARIABLE = re.compile(r"\$\{(?:(\w+?):)?(\S+?)\}", re.ASCII)
_SETTINGS = {None, "spark", "sparkconf", "hivevar", "hiveconf"}
_PATH = re.compile(r"(?:\w+|`(?:[^`]|``)+`)(?:\.(?:\w+|`(?:[^`]|``)+`))*")


@dataclass(frozen=True)
class Immediate:
    """An EXECUTE IMMEDIATE: the statement to run, the values of its parameters, and the variables that it sets."""

    text: str
    args: dict[str, Any] | None
    variables: str


def immediate_of(setting: Setting, statement: Statement, found: Sequence[Token]) -> Immediate | None:
    """Return an EXECUTE IMMEDIATE; None for another statement, or one that Spark has to refuse."""
    if [token.text for token in found[:2]] != ["EXECUTE", "IMMEDIATE"] or len(found) < 3:
        return None
    words = {token.text: n for n, token in enumerate(found) if token.text in ("INTO", "USING") and not token.depth}
    cuts = sorted([*words.values(), len(found)])
    into, using = (_piece(statement, found, words.get(word), cuts) for word in ("INTO", "USING"))
    try:
        text = _text(setting, statement, found[2 : cuts[0]])
        if text is None:
            return None
        if not using:
            return Immediate(text, None, into)
        [row] = _values(setting, using)
        names = _names(using)
    except (PySparkException, ValueError):
        return None
    if any(names):
        return Immediate(text, dict(zip(names, row, strict=True)), into)
    text, args = name_parameters(text, list(row))
    return Immediate(text, args, into)


def _text(setting: Setting, statement: Statement, found: Sequence[Token]) -> str | None:
    """Return the text that is to be run; of a literal, which may hold secrets, without Spark."""
    if len(found) == 1 and found[0].kind == "string":
        text = literal_value(found[0].written)
    else:
        [[text]] = _values(setting, _slice(statement, found, 0, len(found)))
    return setting.settings.readable(text) if isinstance(text, str) else None


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


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[01][0-7]{2}|.)", re.DOTALL)
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "r": "\r", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def literal_value(written: str) -> str:
    r"""Return the value of a string literal by the rules of Spark's lexer; WITH and hints have those of Flink.

    >>> print(literal_value(r"'a\nb \'c'' \u0041'"), literal_value(r"R'\n'"))
    a
    b 'c' A \n
    """
    quote = written[-1]
    start = written.index(quote) + 1
    if start > 1:
        return written[start:-1]
    return quote.join(_ESCAPE.sub(_unescape, part) for part in written[start:-1].split(quote * 2))


def _unescape(match: re.Match[str]) -> str:
    said = match[1]
    if len(said) > 1:
        return chr(int(said[1:], 16) if said[0] in "uU" else int(said, 8))
    return _ESCAPED.get(said, said)


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
            closing = next((t for t in found[number + 2 :] if t.text == ")" and t.depth == opening.depth), None)
            if closing is not None:
                yield word.start, closing.end


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


def _piece(statement: Statement, found: Sequence[Token], start: int | None, cuts: Sequence[int]) -> str:
    """Return the text behind a keyword, up to the next."""
    return "" if start is None else _slice(statement, found, start + 1, next(cut for cut in cuts if cut > start))


def _slice(statement: Statement, found: Sequence[Token], start: int, end: int) -> str:
    return statement.sql[found[start].start : found[end - 1].end] if start < end else ""


def _names(using: str) -> list[str]:
    """Return the names that USING gives its values, empty ones where it gives none."""
    items: list[list[Token]] = [[]]
    for token in tokens(using):
        if token.text == "," and not token.depth:
            items.append([])
        else:
            items[-1].append(token)
    return [item[-1].name if len(item) > 2 and item[-2].text == "AS" else "" for item in items]


def _values(setting: Setting, expressions: str, args: dict[str, Any] | None = None) -> list[Any]:
    sql = setting.spark.sql
    return (sql(f"SELECT {expressions}") if args is None else sql(f"SELECT {expressions}", args)).collect()
