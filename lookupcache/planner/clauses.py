"""Splits SQL text at WHERE, at AND, and into the sides of an equality.

Conditions are passed to Spark as the user wrote them, except for the names of columns, so they are split as text.
The scanner knows only strings, quoted names, comments, words and parentheses.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|--(?:\\\n|[^\r\n])*)+)
    |(?P<comment>/\*)
    |(?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<number>(?:\d+\.?\d*|(?<![\w`])\.\d+)(?:[eE][+-]?\d+)?(?:[bB][dD]|[lLsSyYdDfF])?(?!\w))
    |(?P<word>\w+)
    |(?P<symbol><=>|->|=>|==|<=|>=|<>|!=|\|\||::|.)""",
    re.DOTALL | re.VERBOSE,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
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


def end_of_comment(sql: str, start: int) -> int | None:
    """Return the end of the bracketed comment that begins at ``start``, with those inside of it; None if it is open.

    >>> end_of_comment("a /* b /* c */ */ d", 2), end_of_comment("/* /* */", 0)
    (17, None)
    """
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, start):
        depth += 1 if edge.group() == "/*" else -1
        if not depth:
            return edge.end()
    return None


def _pieces(sql: str) -> Iterator[tuple[str, int, int]]:
    """Yield kind, start and end of each piece of a text; adjacent blanks and comments are one piece.

    A comment that is not closed is one symbol, to the end of the text.
    """
    position = blank = 0
    while match := _TOKEN.match(sql, position):
        kind, start, position = str(match.lastgroup), position, match.end()
        if kind == "comment":
            closed = end_of_comment(sql, start)
            kind, position = ("symbol", len(sql)) if closed is None else ("space", closed)
        if kind == "space":
            continue
        if blank < start:
            yield "space", blank, start
        yield kind, start, position
        blank = position
    if blank < position:
        yield "space", blank, position


_SHORT = 500
"""The maximum length of texts whose tokens are kept: conditions and items, which a plan reads again and again.

Texts with literals are not kept, since those of a statement's options may be secrets.
"""


def tokens(sql: str) -> Iterator[Token]:
    """Yield the tokens except blanks and comments; CASE … END counts as parentheses, a word after a dot as a name.

    >>> [token.text for token in tokens("a.end = 'x''y' -- why")]
    ['A', '.', 'end', '=', "'x'", "'y'"]
    >>> [(token.text, token.depth) for token in tokens("case, CASE a WHEN end THEN 1 END, end")][2:9]
    [('CASE', 0), ('A', 1), ('WHEN', 1), ('END', 1), ('THEN', 1), ('1', 1), ('END', 0)]
    """
    is_kept = len(sql) <= _SHORT and "'" not in sql and '"' not in sql
    return iter(_short_tokens(sql)) if is_kept else _tokens(sql)


@functools.lru_cache(maxsize=1024)
def _short_tokens(sql: str) -> tuple[Token, ...]:
    return tuple(_tokens(sql))


def _tokens(sql: str) -> Iterator[Token]:
    depth, after_dot = 0, False
    cases = _cases(sql) if "case" in sql.lower() else frozenset()
    for kind, start, end in _pieces(sql):
        if kind == "space":
            continue
        text = sql[start:end]
        if kind == "word" and after_dot:
            kind = "quoted"
        written = text
        text = text.upper() if kind == "word" else text
        depth -= text in (")", "]") or (text == "END" and start in cases)
        yield Token(kind, text, start, end, depth, written)
        depth += text in ("(", "[") or (text == "CASE" and start in cases)
        after_dot = text == "."


_BEFORE_OPERANDS = frozenset(
    ("AND", "BETWEEN", "BY", "CASE", "DISTINCT", "DIV", "ELSE", "ESCAPE", "HAVING", "ILIKE", "IN", "LIKE", "NOT", "ON",
     "OR", "REGEXP", "RLIKE", "SELECT", "THEN", "WHEN", "WHERE")
)  # fmt: skip
"""Words behind which an operand begins, so that END is a name there."""


def _cases(sql: str) -> frozenset[int]:
    """Return where CASE and END stand that belong together; others are names."""
    opened, found = list[tuple[str, int]](), set[int]()
    is_path = ends_operand = False
    for kind, start, end in _pieces(sql):
        if kind == "space":
            continue
        text = sql[start:end].upper() if kind in ("word", "symbol") else ""
        if text in ("(", "[") or (text == "CASE" and not is_path):
            opened.append((text, start))
        elif text in (")", "]"):
            while opened and opened.pop()[0] == "CASE":
                pass
        elif text == ",":
            while opened and opened[-1][0] == "CASE":
                opened.pop()
        elif text == "END" and ends_operand and opened and opened[-1][0] == "CASE":
            found |= {opened.pop()[1], start}
        ends_operand = text in (")", "]") or (kind != "symbol" and (is_path or text not in _BEFORE_OPERANDS))
        is_path = text == "."
    return frozenset(found)


def closing_of(found: Sequence[Token], opening: int) -> int | None:
    """Return the position of the closing parenthesis for an opening one, or None.

    >>> closing_of(list(tokens("f(g(1), 2) + (3)")), 1)
    8
    """
    depth = found[opening].depth
    return next((n for n in range(opening + 1, len(found)) if found[n].text == ")" and found[n].depth == depth), None)


_NESTED = ("ARRAY", "MAP", "STRUCT", "ROW", "MULTISET")
"""Types with others in angle brackets."""


def split_arguments(inside: Sequence[Token], *, has_types: bool = False) -> list[list[Token]]:
    """Return the arguments of a call, from the tokens between its parentheses.

    With ``has_types``, as among columns, commas in ``ARRAY<…>`` do not separate arguments.

    >>> [[token.text for token in part] for part in split_arguments(list(tokens("1, g(2, 3)")))]
    [['1'], ['G', '(', '2', ',', '3', ')']]
    >>> len(split_arguments(list(tokens("a MAP<INT, ARRAY<INT>>, b AS a > 1, c AS a < 2, d INT")), has_types=True))
    4
    """
    parts: list[list[Token]] = [[]]
    depth, angle = min((token.depth for token in inside), default=0), 0
    for before, token in zip([None, *inside], inside, strict=False):
        if has_types and token.kind == "symbol":
            opens = token.text == "<" and before is not None and before.text in _NESTED
            angle += opens - (token.text == ">" and angle > 0)
        if token.text == "," and token.depth == depth and not angle:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def without_comments(sql: str) -> str:
    """Return the text with each comment and each run of white space replaced by one blank.

    >>> without_comments("a = b -- of course" + chr(10) + " AND c")
    'a = b AND c'
    """
    return "".join(" " if kind == "space" else sql[start:end] for kind, start, end in _pieces(sql)).strip()


def with_backquotes(sql: str) -> str:
    """Return the text with names in double quotes rewritten in backquotes.

    >>> with_backquotes('"two words" = "a""`b"')
    '`two words` = `a"``b`'
    """
    pieces = [(kind, sql[start:end]) for kind, start, end in _pieces(sql)]
    names = [text[1:-1].replace("`", "``") if kind == "string" and text[0] == '"' else None for kind, text in pieces]
    found: list[str] = []
    for number, (name, (_, text)) in enumerate(zip(names, pieces, strict=True)):
        if name is not None and number and names[number - 1] is not None:  # "" in a name is one quote of it
            found[-1] = f'{found[-1][:-1]}"{name}`'
        else:
            found.append(text if name is None else f"`{name}`")
    return "".join(found)


def string_sql(text: str) -> str:
    r"""Return the SQL of a string that does not depend on the session's rule for escapes.

    >>> string_sql("a b"), string_sql("'"), string_sql("$"), string_sql("\\")
    ("'a b'", "CAST(X'27' AS STRING)", "CAST(X'24' AS STRING)", "CAST(X'5C' AS STRING)")
    """
    plain = text.isprintable() and not set(text) & set("'\\$")
    return f"'{text}'" if plain else f"CAST(X'{text.encode().hex().upper()}' AS STRING)"


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
    groups = _Groups(list(tokens(sql)))
    spans, rest = [], [groups.all_of(sql)]
    while rest:
        part = groups.unwrap(rest.pop())
        cuts = groups.cuts(part)
        if cuts:
            rest += reversed(list(groups.split(part, cuts)))
        else:
            spans.append(_strip(sql, part))
    return spans


_NEVER_TRUE = ("NULL", "FALSE")


def common_spans(sql: str, fold: Callable[[str], str] = str) -> list[tuple[int, int]]:
    """Return start and end of each conjunct that all operands of an OR have, where it stands first; none without an OR.

    ``fold`` makes names that are the same for Spark equal strings. The sides of an equality may be swapped.

    >>> text = "(a = b AND c) OR (d AND (`b`  = a))"
    >>> [text[start:end] for start, end in common_spans(text)]
    ['a = b']
    >>> [text[start:end] for text in ["(a = b) OR NULL OR (FALSE)"] for start, end in common_spans(text)]
    ['a = b']
    """
    groups = _Groups(list(tokens(sql)))
    whole = groups.unwrap(groups.all_of(sql))
    cuts = groups.cuts(whole, "OR")
    operands = [_strip(sql, groups.unwrap(part)) for part in groups.split(whole, cuts)] if cuts else []
    operands = [(start, end) for start, end in operands if sql[start:end].upper() not in _NEVER_TRUE]
    parts = [[(s + start, e + start) for s, e in conjunct_spans(sql[start:end])] for start, end in operands]
    written = [[_written(sql[start:end], fold) for start, end in spans] for spans in parts]
    first = zip(parts[0], written[0], strict=True) if parts else ()
    return [span for span, text in first if all(text in other for other in written[1:])]


def _written(sql: str, fold: Callable[[str], str]) -> tuple[tuple[str, ...], ...]:
    """Return a conjunct in one spelling: its text, or the sides of an equality in either order."""
    return tuple(sorted(_words(side, fold) for side in equality(sql) or (sql,)))


def _words(sql: str, fold: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(fold(token.name) if token.kind in ("word", "quoted") else token.written for token in tokens(sql))


@dataclass(frozen=True)
class _TextPart:
    """A part of a text: where it starts and ends, and which tokens are in it."""

    start: int
    end: int
    first: int
    last: int


class _Groups:
    """The tokens of a text, read once however deep it is nested, and which of them close which."""

    def __init__(self, found: Sequence[Token]) -> None:
        self.found = found
        self.closing: dict[int, int] = {}
        self.lists: set[int] = set()
        """The parentheses around more than one item."""
        opened: list[int] = []
        depth = 0
        for number, token in enumerate(found):
            if token.depth < depth and opened:
                self.closing[opened.pop()] = number
            if token.text == "," and opened:
                self.lists.add(opened[-1])
            depth = token.depth
            if token.text in ("(", "[") or (token.text == "CASE" and token.kind == "word"):
                opened.append(number)
                depth += 1
        self.closing |= dict.fromkeys(opened, len(found))  # nothing closes those

    def all_of(self, sql: str) -> _TextPart:
        """Return the full text."""
        return _TextPart(0, len(sql), 0, len(self.found))

    def unwrap(self, part: _TextPart) -> _TextPart:
        """Return a part without parentheses around all of it; those of a sub-query belong to it."""
        while (
            part.last - part.first > 2
            and self.found[part.first].text == "("
            and self.found[part.last - 1].text == ")"
            and self.closing[part.first] == part.last - 1
            and part.first not in self.lists
            and not _begins_query(self.found[part.first + 1], self.found[part.first + 2])
        ):
            end = self.found[part.last - 1].start
            part = _TextPart(self.found[part.first].end, end, part.first + 1, part.last - 1)
        return part

    def cuts(self, part: _TextPart, word: str = "AND") -> list[int]:
        """Return which tokens of a part are the ANDs, or ORs, between its operands; no AND if there is an OR."""
        cuts, between, number = [], 0, part.first
        while number < part.last:
            token = self.found[number]
            if token.text in (")", "]") or (token.kind == "word" and token.text == "OR" != word):
                return []
            if token.kind == "word" and token.text == "BETWEEN":
                between += 1
            elif token.kind == "word" and token.text == "AND" and between:
                between -= 1
            elif token.kind == "word" and token.text == word:
                cuts.append(number)
            number = self.closing.get(number, number) + 1
        return cuts

    def split(self, part: _TextPart, cuts: Sequence[int]) -> Iterator[_TextPart]:
        """Yield the text between these tokens of a part."""
        start, first = part.start, part.first
        for cut in cuts:
            yield _TextPart(start, self.found[cut].start, first, cut)
            start, first = self.found[cut].end, cut + 1
        yield _TextPart(start, part.end, first, part.last)


def _begins_query(word: Token, after: Token) -> bool:
    """Return whether a word begins a query, and is no column's name."""
    if word.kind != "word" or word.text not in ("SELECT", "WITH", "FROM", "VALUES", "TABLE"):
        return False
    if after.kind == "symbol":
        return after.text in ("(", "*", "-", "+", ":", "?", "$", "{")
    return after.kind != "word" or after.text not in _PREDICATES - {"NOT", "EXISTS"}


def has_query(sql: str) -> bool:
    """Return whether an expression has a sub-query.

    >>> has_query("a IN (SELECT * FROM t)"), has_query("(table) = 'SELECT 1'")
    (True, False)
    """
    found = list(tokens(sql))
    return any(one.text == "(" and _begins_query(*two) for one, *two in zip(found, found[1:], found[2:], strict=False))


def _strip(sql: str, part: _TextPart) -> tuple[int, int]:
    """Return start and end of a part, without blanks around it."""
    text = sql[part.start : part.end]
    start = part.start + len(text) - len(text.lstrip())
    return start, start + len(text.strip())


def unwrap(sql: str) -> str:
    """Return the text without parentheses around all of it.

    >>> unwrap("((a) + (b))"), unwrap("(a) + (b)"), unwrap("((SELECT a))"), unwrap("(table = 1)")
    ('(a) + (b)', '(a) + (b)', '(SELECT a)', 'table = 1')
    """
    groups = _Groups(list(tokens(sql)))
    start, end = _strip(sql, groups.unwrap(groups.all_of(sql)))
    return sql[start:end]


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


def is_surely_boolean(sql: str) -> bool:
    """Return whether an expression is a comparison or another predicate, and not a value such as NULL.

    >>> is_surely_boolean("a = b"), is_surely_boolean("(NULL)"), is_surely_boolean("NOT a")
    (True, False, True)
    """
    return any(_is_predicate(token) or token.text in ("=", "==") for token in tokens(unwrap(sql)) if not token.depth)


def _is_predicate(token: Token) -> bool:
    return token.text in (_COMPARISONS if token.kind == "symbol" else _PREDICATES if token.kind == "word" else ())


@functools.lru_cache(maxsize=1024)
def functions(sql: str) -> frozenset[str]:
    """Return the names of all called functions, and the keywords that Spark treats as calls, in lower case.

    >>> sorted(functions("upper(a) = `B`(b) AND c IN (1) AND d < current_date"))
    ['b', 'current_date', 'upper']
    """
    found = list(tokens(sql))
    called = {
        a.name.lower()
        for a, b in pairwise(found)
        if b.text == "(" and a.kind in ("word", "quoted") and a.text not in _NO_FUNCTIONS
    }
    return frozenset(called | {t.text.lower() for t in found if t.kind == "word" and t.text.lower() in WORD_CALLS})


WORD_CALLS = {
    "current_date", "current_timestamp", "current_time", "localtimestamp", "current_user", "user", "session_user",
}  # fmt: skip
"""Functions that need no brackets, unless a column has their name."""


def columns_in(sql: str) -> list[tuple[str, str]]:
    """Return the columns that a plan's SQL reads: the letter of the side and the name of each.

    >>> columns_in("l.`a` + r.`b c` > 1")
    [('l', 'a'), ('r', 'b c')]
    """
    return [(side, name) for _, _, side, name in _columns(sql)]


def substitute(sql: str, column: Callable[[str, str], str]) -> str:
    """Return a plan's SQL with each ``l.`x``` and ``r.`x``` replaced by the result of ``column`` for side and name.

    >>> substitute("l.`id` = r.`a``b` AND l.`s` <> 'l.`id`'", lambda side, name: f"<{side} {name}>")
    "<l id> = <r a`b> AND <l s> <> 'l.`id`'"
    >>> substitute("NOT r.`b`", lambda side, name: f"<{side} {name}>")
    'NOT <r b>'
    """
    return splice(sql, ((start, end, column(side, name)) for start, end, side, name in _columns(sql)))


def splice(text: str, pieces: Iterable[tuple[int, int, str]], start: int = 0) -> str:
    """Return a text from a start on, with other text in place of some pieces, which are in order.

    >>> splice("a = b", [(0, 1, "l.a"), (4, 4, "r.")])
    'l.a = r.b'
    """
    parts, done = list[str](), start
    for first, last, new in pieces:
        parts += [text[done:first], new]
        done = last
    return "".join([*parts, text[done:]])


def with_words(sql: str, texts: Mapping[str, str]) -> str:
    """Return SQL with these texts in place of words.

    >>> with_words("a + b.a + `a` + 'a'", {"a": ":p"})
    ":p + b.a + `a` + 'a'"
    """
    found = (token for token in tokens(sql) if token.kind == "word" and token.written in texts)
    return splice(sql, ((token.start, token.end, texts[token.written]) for token in found)) if texts else sql


def _columns(sql: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield start and end of each column in a plan's SQL, the letter of its side, and its name."""
    found = list(tokens(sql))
    for before, side, dot, name in zip([None, *found], found, found[1:], found[2:], strict=False):
        if before is not None and before.text == ":":  # A path into a variant begins.
            continue
        if side.kind == "word" and side.written in ("l", "r") and dot.text == "." and name.written[0] == "`":
            yield side.start, name.end, side.written, name.name
