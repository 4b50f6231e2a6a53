"""Finds secrets in the text of a statement, which are masked wherever the text is shown.

Options are in hints, WITH (…) and similar clauses. Only the names of options are shown, and values of options that
never have secrets. If a quote is not closed, names and values cannot be distinguished, so nothing behind the first
quote is shown. In the rest of a statement, values after a name such as ``token`` or in ``'name' = 'value'``, and
passwords in URLs are masked. An unknown kind of statement is shown without its strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lookupcache.planner.clauses import Token, closing_of, tokens
from lookupcache.redaction import is_secret_setting, url_spans, values_of_secrets, with_stars

_QUERIES = {"SELECT", "WITH", "FROM", "VALUES", "INSERT"}
_BEFORE = {"EXPLAIN", "EXTENDED", "CODEGEN", "COST", "FORMATTED", "ESTIMATED_COST", "CHANGELOG_MODE",
           "JSON_EXECUTION_PLAN", "PLAN", "FOR", ",", "(", "EXECUTE", "STATEMENT", "BEGIN", "END",
           "COMPILE", "AND", "IF", "NOT", "EXISTS"}  # fmt: skip
"""Keywords that may precede a statement, as may SET after STATEMENT, and a path after PLAN."""
_CHANGES = {"CREATE", "ALTER", "REPLACE", "DROP"}
_MODIFIERS = {"OR", "REPLACE", "TEMPORARY", "TEMP", "GLOBAL", "EXTERNAL", "SYSTEM"}
_CHANGED = {"TABLE", "VIEW", "FUNCTION", "DATABASE", "SCHEMA", "NAMESPACE"}
_OTHERS = {"SHOW", "DESCRIBE", "DESC", "USE", "ANALYZE", "REFRESH", "CACHE", "UNCACHE", "TRUNCATE", "MERGE", "UPDATE",
           "DELETE", "TABLE"}  # fmt: skip
"""Statements whose strings are shown, except options; of others, such as CREATE SECRET, no string is shown."""
_OPENING = {"WITH", "OPTIONS", "TBLPROPERTIES", "DBPROPERTIES", "PROPERTIES", "SERDEPROPERTIES", "SET"}
_OPENS = re.compile(rf"\b(?:{'|'.join(_OPENING)})\b", re.IGNORECASE)
_OPENS_IN_QUERY = re.compile(
    rf"\b(?:OPTIONS\b|(?:{'|'.join(_OPENING - {'OPTIONS', 'SET'})})\s*(?:\(\s*)?['\"`])", re.IGNORECASE
)
_BETWEEN = re.compile(rf"^\s*[=,()]|[=,(]\s*$|{_OPENS.pattern}\s*\(", re.IGNORECASE)
"""Syntax between strings; inside of one that touches a word it shows that a quote is not closed."""
_NAME = re.compile(r"[\w.*-]+")
_COMMENT = re.compile(r"--[^\n]*|/\*(?!\+).*?(?:\*/|\Z)", re.DOTALL)
_HINT = re.compile(r"/\*\+(.*?)(?:\*/|\Z)", re.DOTALL)
_HARMLESS = {"connector", "table", "function", "format", "returns", "batch", "async", "output-mode", "capacity",
             "timeout", "retry-predicate", "retry-strategy", "fixed-delay", "max-attempts", "shuffle"}  # fmt: skip
_OPTION_NAMES = {"connector", "password", "token"}
"""Words that are before ``=`` almost only in options."""

_STRING = re.compile(
    r"""(?:\\?['"`\])])*+\s*+(?:=>|==?|:)?\s*+[rR]?(?:'((?:[^'\\]|\\.|'')*+)|"((?:[^"\\]|\\.|"")*+))""", re.DOTALL
)
"""A string behind a name."""
_INSIDE = re.compile(r"""(?:\\?['"])*+\s*+(?:=>|==?|:)\s*+(?:\\?['"])*+([^\s'",;&}]++)""")
"""A value behind a name inside of a string, as in JSON or a connection string."""
_SETTING = re.compile(r"\s*SET\s+([^\s=]+)\s*[=\s]\s*(\S.*)", re.IGNORECASE | re.DOTALL)


class Span(NamedTuple):
    """The offsets from ``start`` to ``end`` (exclusive)."""

    start: int
    end: int

    def holds(self, other: Span) -> bool:
        """Return whether the other span is inside of this one."""
        return self.start <= other.start and other.end <= self.end


def find_secrets(text: str) -> list[Span]:
    """Return the pieces of a statement that must not be shown, in order.

    >>> text = "CREATE TABLE c (id INT) WITH ('connector' = 'http', 'url' = 'http://h/{id}', 'token' = 's3cret')"
    >>> [text[start:end] for start, end in find_secrets(text)]
    ['http://h/{id}', 's3cret']
    """
    found = list(tokens(text))
    return sorted({*_option_spans(text, found), *_other_spans(text, found)})


def mask_piece(text: str, hidden: Sequence[Span], piece: Span) -> str:
    """Return a piece of a text with its hidden parts masked."""
    inside = (Span(max(one.start, piece.start), min(one.end, piece.end)) for one in hidden)
    spans = ((start - piece.start, end - piece.start) for start, end in inside if start < end)
    return with_stars(text[piece.start : piece.end], spans, " \t")


# ── secrets in options ────────────────────────────────────────────────────────────────────────────────────


def _option_spans(text: str, found: Sequence[Token]) -> Iterator[Span]:
    for hint in _HINT.finditer(text):
        yield from _region_spans(text, Span(*hint.span(1)))
    is_query = all(part[0].text in _QUERIES for part in _statements(found))
    if is_query and _OPENS_IN_QUERY.search(text) is None:
        return
    if _is_doubtful(text, found):
        yield Span(_first_doubt(text, found), len(text))
        return
    yield from (
        comment for comment in _comments(text, found) if set("'\"=") & set(text[comment.start + 1 : comment.end])
    )
    groups = [_group(text, found, n) for n in range(len(found)) if _opens(found, n, is_query)]
    bare = next((found[n] for n in range(len(found)) if not is_query and _is_pair(found, n)), None)
    if bare is not None and not any(group.start <= bare.start < group.end for group in groups):
        groups.append(Span(bare.start, len(text)))
    for group in groups:
        yield from _region_spans(text, group)


def _comments(text: str, found: Sequence[Token]) -> Iterator[Span]:
    """Yield the comments of a text: strings, and names in backticks, contain none."""
    ends = [0, *(token.end for token in found if not token.text.startswith("/*"))]
    starts = [*(token.start for token in found if not token.text.startswith("/*")), len(text)]
    for end, start in zip(ends, starts, strict=True):
        if end < start:
            yield from (Span(*comment.span()) for comment in _COMMENT.finditer(text, end, start))


def _statements(found: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the statements, each without the keywords before it."""
    ends = [n for n, token in enumerate(found) if token.text == ";"]
    for start, end in zip([0, *(n + 1 for n in ends)], [*ends, len(found)], strict=True):
        while start < end and _is_before(found, start):
            start += 1
        if start < end:
            yield found[start:end]


def _is_before(found: Sequence[Token], index: int) -> bool:
    word = found[index].text
    if found[index].kind == "string" and "PLAN" in (token.text for token in found[:index]):
        return all(token.kind == "word" or token.kind == "string" for token in found[:index])
    return word in _BEFORE or (word == "SET" and index > 0 and found[index - 1].text == "STATEMENT")


def _is_known(part: Sequence[Token]) -> bool:
    """Return whether the strings of this kind of statement may be shown, except options."""
    first = part[0].text
    if first not in _CHANGES:
        return first in _QUERIES or first in _OTHERS
    return next((token.text for token in part[1:] if token.text not in _MODIFIERS), "") in _CHANGED


def _is_doubtful(text: str, found: Sequence[Token]) -> bool:
    """Return whether a quote or a comment is not closed, or closed where it should not be."""
    return any(
        _is_stray(token)
        or text.startswith("/*", token.start)
        or (token.kind in ("string", "quoted") and _BETWEEN.search(token.written[1:-1]) and _touches(found, number))
        for number, token in enumerate(found)
    )


def _touches(found: Sequence[Token], index: int) -> bool:
    """Return whether a quote stands next to a word, as at the edges of a value after a quote that is not closed."""
    edge = found[index]
    before, after = found[index - 1] if index else None, found[index + 1] if index + 1 < len(found) else None
    texts = ("symbol", "string")  # Two quotes within a text are one that is escaped.
    return (before is not None and before.kind not in texts and before.end == edge.start) or (
        after is not None and after.kind not in texts and after.start == edge.end
    )


def _is_stray(token: Token) -> bool:
    """Return whether a token is a quote, or begins a comment, that is not closed."""
    return token.kind == "symbol" and (token.text in "'\"`" or token.text.startswith("/*"))


def _first_doubt(text: str, found: Sequence[Token]) -> int:
    """Return the position of the first quote or comment."""
    quotes = [token.start for token in found if token.kind in ("string", "quoted") or _is_stray(token)]
    return min([*quotes, *(comment.start() for comment in _COMMENT.finditer(text))])


def _opens(found: Sequence[Token], index: int, is_query: bool) -> bool:
    """Return whether a word begins options; WITH may also begin a query, or be part of a type.

    In a query it may be a name as well, so that a string has to follow.
    """
    word, *after = found[index : index + 3]
    if word.kind != "word" or word.text not in _OPENING or not after:
        return False
    first, second = after[0], after[1] if len(after) > 1 else None
    if is_query and word.text != "OPTIONS":
        return first.text == "(" and second is not None and second.kind == "string"
    if word.text == "WITH":
        is_name = first.kind in ("word", "quoted") and second is not None and second.text in ("AS", "(")
        return first.text not in ("LOCAL", "TIME") and not is_name
    return first.text == "("


def _group(text: str, found: Sequence[Token], index: int) -> Span:
    """Return the parentheses after a word; if there are none, or they are not balanced, the rest of the text."""
    opening = found[index + 1]
    last = (closing_of(found, index + 1) if opening.text == "(" else None) or 0
    after = found[last + 1 : last + 2]
    closed = last and (not after or after[0].kind == "word" or after[0].text == ";")
    return Span(opening.start, found[last].end if closed else len(text))


def _is_pair(found: Sequence[Token], index: int) -> bool:
    key, *after = found[index : index + 2]
    if not after or after[0].text not in ("=", "=="):
        return False
    return key.kind == "string" or key.text.lower() in _OPTION_NAMES


def _region_spans(text: str, region: Span) -> Iterator[Span]:
    """Yield the hidden pieces of options: all if a quote is not closed, else values, and doubtful names."""
    found = list(tokens(text[region.start : region.end]))
    if any(map(_is_stray, found)):
        yield region
        return
    for before, token, after in zip([None, *found], found, [*found[1:], None], strict=False):
        hidden = _inner(token) if token.kind == "string" else Span(token.start, token.end)
        if hidden.start < hidden.end and not _is_shown(found, before, token, after):
            yield Span(region.start + hidden.start, region.start + hidden.end)


def _is_shown(found: Sequence[Token], before: Token | None, token: Token, after: Token | None) -> bool:
    """Return whether a token of options is shown: syntax, the name of an option or a hint, or a harmless value."""
    is_first, behind = before is None or before.text in ("(", ",", ")"), "" if after is None else after.text
    if before is not None and before.text in ("=", "=="):
        index = found.index(before)
        return token.kind == "string" and _may_be_shown(token, found[index - 1] if index > 0 else None)
    if token.kind == "string":
        return is_first and behind in ("=", "==") and _is_name(token)
    is_hint = is_first and behind == "(" and not token.depth
    return token.text in ("(", ")", ",", "=", "==", ";") or (token.kind == "word" and is_hint)


# ── secrets outside of options ──────────────────────────────────────────────────────────────────────────────────


def _other_spans(text: str, found: Sequence[Token]) -> Iterator[Span]:
    yield from (Span(*span) for span in values_of_secrets(_STRING, text, 0, len(text)))
    for start, end in url_spans(text):
        end = start + len(text[start:end].rstrip("'\"`);,"))
        if start < end:
            yield Span(start, end)
    yield from _pair_values(found)
    for token in found:
        if token.kind == "string":
            yield from (Span(*span) for span in values_of_secrets(_INSIDE, text, token.start, token.end))
    for part in _statements(found):
        if not _is_known(part):
            yield from _strings_of_unknown(text, part)


def _pair_values(found: Sequence[Token]) -> Iterator[Span]:
    """Yield the values in ``'name' = 'value'``: only options have a string on both sides."""
    for key, sign, value in zip(found, found[1:], found[2:], strict=False):
        if key.kind == value.kind == "string" and sign.text in ("=", "==", "=>"):
            inner = _inner(value)
            if not _may_be_shown(value, key) and inner.start < inner.end:
                yield inner


def _strings_of_unknown(text: str, part: Sequence[Token]) -> Iterator[Span]:
    strings = part[2:] if part[0].text == "SET" and _is_pair(part, 1) and _is_name(part[1]) else part
    inner = (_inner(token) for token in strings if token.kind == "string")
    yield from (piece for piece in inner if piece.start < piece.end)
    setting = _SETTING.match(text, part[0].start)
    if setting is not None and is_secret_setting(setting[1]):
        yield Span(setting.start(2), len(text.rstrip()))


def _inner(token: Token) -> Span:
    """Return the piece of a string inside of its quotes."""
    return Span(token.start + token.written.index(token.written[-1]) + 1, token.end - 1)


def _is_name(token: Token) -> bool:
    return _NAME.fullmatch(token.written[1:-1]) is not None


def _may_be_shown(value: Token, key: Token | None) -> bool:
    said = value.written[1:-1].lower() in ("true", "false")
    return said or (key is not None and _is_harmless(key.written.strip("'\"")))


def _is_harmless(key: str) -> bool:
    return key in _HARMLESS or (key.startswith(("lookup.", "scan.startup.")) and not key.endswith("path"))
