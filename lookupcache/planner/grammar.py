"""Which operand belongs to which operator in Spark's grammar.

In Spark all comparisons have the same precedence, and IS, IN, LIKE and BETWEEN a lower one: ``a = b IN (c)`` is
``(a = b) IN (c)``. The precedence in sqlglot differs. So a text is parsed here by Spark's grammar (SqlBaseParser.g4),
and passed to sqlglot with parentheses around operators that are operands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from sqlglot.dialects.spark import Spark

from lookupcache.ddl import SparkTokenizer
from lookupcache.planner import clauses
from lookupcache.planner.clauses import Token, tokens

_RANKS = {
    "*": 7, "/": 7, "%": 7, "DIV": 7, "+": 6, "-": 6, "||": 6, "<<": 5, ">>": 5, ">>>": 5, "&": 4, "^": 3, "|": 2,
    "=": 1, "==": 1, "<=>": 1, "<>": 1, "!=": 1, "<": 1, "<=": 1, "!>": 1, ">": 1, ">=": 1, "!<": 1,
}  # fmt: skip
"""Operators between two values, by how closely they bind."""

_CLOSEST = max(_RANKS.values())
_OR, _AND, _NOT = 1, 2, 3
_SHOWN_AS = {"!>": "<=", "!<": ">=", ">>>": ">> "}
"""Replacements, of the same length, for operators that sqlglot does not know."""

_SHOWN_PLUS = "~"
"""The replacement for a + before an operand: sqlglot drops it, and in Spark it makes a number of a string."""
_NO_FIELDS = "  "
"""The replacement for the operator as which sqlglot reads the end of the type ``STRUCT<>``."""

_KEYWORDS = frozenset(SparkTokenizer.KEYWORDS) | frozenset(Spark.parser_class.NO_PAREN_FUNCTION_PARSERS)
"""Words that sqlglot may take for keywords where Spark reads a name."""

_VALUES = ("TRUE", "FALSE", "NULL")

_PATTERNS = ("LIKE", "ILIKE", "RLIKE", "REGEXP")
_NO_OPERAND = {"AND", "OR", "NOT", "BETWEEN", "IN", "IS", "THEN", "WHEN", "ELSE", "END", "AS", "FROM", "ESCAPE", "DIV",
               "ON", "USING", "WHERE", *_PATTERNS}  # fmt: skip
_QUERIES = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
_STRUCT = "struct()"
"""A call whose arguments need parentheses: in one without, sqlglot takes ``a.b = c`` for a field b with the value c."""

_UNITS = ("NANOSECOND", "MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR")


@dataclass(frozen=True)
class SparkNode:
    """An operator with its operands, or a leaf: a column, a literal, a call.

    ``operator`` is in upper case, "()" for parentheses, "" for a leaf; its ``parts`` are the
    expressions inside of it. ``start`` and ``end`` are positions in the text.
    """

    operator: str
    parts: tuple[SparkNode, ...]
    start: int
    end: int

    @property
    def is_operator(self) -> bool:
        """Whether it needs parentheses as an operand."""
        return self.operator not in ("", "()", _STRUCT)


@dataclass(frozen=True)
class Parenthesised:
    """A text with additional parentheses; ``added`` are their positions in the original text."""

    text: str
    added: tuple[int, ...] = ()

    def original(self, position: int) -> int:
        """Return the position in the original text of a position in this one; of an added bracket, that before it."""
        return position - bisect_right(self._shifted_positions, position)

    def original_start(self, position: int) -> int:
        """Return the position in the original text of a position in this one, also of an added bracket."""
        return position - bisect_left(self._shifted_positions, position)

    @cached_property
    def _shifted_positions(self) -> list[int]:
        return [position + number for number, position in enumerate(self.added)]


@dataclass(frozen=True)
class _Changes:
    """Parts that sqlglot reads otherwise than Spark: signs with the text to show in their place, and names.

    A name is given by its start and end: it is no keyword, though it is spelt as one. Of ``literals`` that Spark
    concatenates, where one is raw, the starts are given, and the end of the last one.
    """

    signs: tuple[tuple[int, str], ...] = ()
    names: tuple[tuple[int, int], ...] = ()
    literals: tuple[tuple[int, ...], ...] = ()


class _UnknownSyntaxError(Exception):
    """The text has syntax that this parser does not know, or that Spark rejects."""


def read(sql: str) -> SparkNode | None:
    """Parse an expression, which an alias may follow, as Spark does; None if its syntax is unknown.

    >>> found = read("a = b IS NULL")
    >>> found.operator, [part.operator for part in found.parts]
    ('IS NULL', ['='])
    >>> read("a = NOT b") is None
    True
    """
    return _read(sql)[0]


def split_names(sql: str) -> tuple[str, tuple[str, ...]]:
    """Split an expression of known syntax from its alias, or from the aliases of several columns.

    >>> split_names("a + 1 b"), split_names("a AS `b c`"), split_names("inline(a) AS (b, c)")
    (('a + 1', ('b',)), ('a', ('b c',)), ('inline(a)', ('b', 'c')))
    >>> split_names("CAST(a AS INT)"), split_names("f(x AS y).z")
    (('CAST(a AS INT)', ()), ('f(x AS y).z', ()))
    """
    reader = _ExpressionReader(sql)
    try:
        reader.boolean(_OR)
        end = reader.position
        reader.skip_alias()
        reader.finish()
    except _UnknownSyntaxError:
        return sql, ()
    behind = reader.found[end:]
    names = [token.name for token in behind[len(behind) > 1 :] if token.kind != "symbol"]  # Of several, one is AS.
    return (sql[: reader.found[end - 1].end] if names else sql), tuple(names)


@lru_cache(maxsize=512)
def _read(sql: str) -> tuple[SparkNode | None, _Changes]:
    """Parse an expression as Spark does; return it with the parts that sqlglot must be shown in another form."""
    reader = _ExpressionReader(sql)
    try:
        node = reader.boolean(_OR)
        reader.skip_alias()
        reader.finish()
    except _UnknownSyntaxError:
        return None, _Changes()
    return node, _Changes(tuple(reader.signs), tuple(reader.names), tuple(reader.literals))


@lru_cache(maxsize=512)
def prepare_for_sqlglot(sql: str) -> Parenthesised:
    """Return the text for sqlglot; it is unchanged if its syntax is unknown.

    >>> prepare_for_sqlglot("a + 1 !> b").text
    '(a + 1) <= b'
    >>> prepare_for_sqlglot("comment = set.k").text
    '`comment` = `set`.k'
    >>> prepare_for_sqlglot("v = r'it''s'").text
    "v = (r'it'||'s')"
    """
    node, changes = _read(sql)
    names = [*_keyword_names(sql), *changes.names]
    for position, sign in changes.signs:
        sql = sql[:position] + sign + sql[position + len(sign) :]
    operands = [*([] if node is None else operands_of(node)), *((first, end) for first, *_, end in changes.literals)]
    return add_brackets(sql, operands, names, [start for _, *starts, _ in changes.literals for start in starts])


def _keyword_names(sql: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of words after a dot that are names in Spark, but keywords in sqlglot."""
    found = list(tokens(sql))
    for number, token in enumerate(found):
        call = number + 1 < len(found) and found[number + 1].text == "("
        if token.kind == "quoted" and token.written[:1] != "`" and token.text.upper() in _KEYWORDS and not call:
            yield token.start, token.end


def add_brackets(
    sql: str, operands: list[tuple[int, int]], names: list[tuple[int, int]], joined: Sequence[int] = ()
) -> Parenthesised:
    """Return the text with parentheses around operands, backquotes around names, and ``||`` where two are joined."""
    added = sorted([
        *((end, 0, "`") for _, end in names), *((end, 1, ")") for _, end in operands),
        *((start, 2, "(") for start, _ in operands), *((start, 3, "`") for start, _ in names),
        *((start, 4, "|") for start in joined for _ in "||"),
    ])  # fmt: skip
    text = clauses.splice(sql, ((position, position, bracket) for position, _, bracket in added))
    return Parenthesised(text, tuple(position for position, _, _ in added))


def operands_of(node: SparkNode) -> Iterator[tuple[int, int]]:
    """Yield the positions of operators that are operands of others."""
    for part in node.parts:
        if part.is_operator and (node.is_operator or node.operator == _STRUCT):
            yield part.start, part.end
        yield from operands_of(part)


# ── the meaning of a condition ────────────────────────────────────────────────────────────────────────────────


def equality(sql: str) -> tuple[str, str] | None:
    """Return two sides that are equal if and only if the condition is true.

    >>> equality("o.id = (c.id)"), equality("NOT (a <> b)"), equality("a <= b")
    (('o.id', 'c.id'), ('a', 'b'), None)
    >>> equality("(a = b) IS TRUE"), equality("a IN (b)"), equality("a = b IS NULL"), equality("a = TRUE")
    (('a', 'b'), ('a', 'b'), None, ('a', 'TRUE'))
    >>> equality("a = b = TRUE"), equality("a = b = c")
    (('a', 'b'), None)
    """
    node = read(sql)
    if node is None:
        return clauses.equality(sql)
    sides = _equal(node, sql, True)
    return sides and (clauses.unwrap(sides[0]), clauses.unwrap(sides[1]))


def is_plain_equality(sql: str) -> bool:
    """Return whether a condition is written as an equality, and not in an equivalent form.

    >>> is_plain_equality("(a = b)"), is_plain_equality("a IN (b)"), is_plain_equality("(a = b) = TRUE")
    (True, False, False)
    """
    node = read(sql)
    if node is None:
        return True
    node = _without_parentheses(node)
    return node.operator in ("=", "==") and equality(sql) == tuple(_text(part, sql) for part in node.parts)


def null_safe_sides(sql: str) -> tuple[str, str] | None:
    """Return the sides of an equality that is true for two nulls as well, None for any other condition.

    >>> null_safe_sides("(o.id <=> c.id)"), null_safe_sides("a = b")
    (('o.id', 'c.id'), None)
    """
    node = read(sql)
    node = node and _without_parentheses(node)
    if node is None or node.operator not in ("<=>", "IS NOT DISTINCT FROM") or len(node.parts) != 2:
        return None
    return _text(node.parts[0], sql), _text(node.parts[1], sql)


def _without_parentheses(node: SparkNode) -> SparkNode:
    while node.operator == "()":
        node = node.parts[0]
    return node


def _text(node: SparkNode, sql: str) -> str:
    return clauses.unwrap(sql[node.start : node.end])


def _equal(node: SparkNode, sql: str, truth: bool) -> tuple[str, str] | None:
    """Return two sides that are equal if and only if the node is true, or without ``truth``, false."""
    operator, parts = node.operator, node.parts
    if operator == "()":
        return _equal(parts[0], sql, truth)
    if operator == "NOT":
        return _equal(parts[0], sql, not truth)
    if operator in _SAID and _SAID[operator][0] == truth:
        return _equal(parts[0], sql, _SAID[operator][1])
    if operator in _EQUALITIES or operator in _INEQUALITIES:
        return _read_comparison(node, sql, truth)
    texts = [sql[part.start : part.end] for part in parts]
    if operator == ("IN" if truth else "NOT IN") and len(parts) == 2:
        return texts[0], texts[1]
    if operator == ("BETWEEN" if truth else "NOT BETWEEN") and texts[1] == texts[2]:
        return texts[0], texts[1]
    return None


_SAID = {
    "IS TRUE": (True, True), "IS FALSE": (True, False), "IS NOT TRUE": (False, True), "IS NOT FALSE": (False, False),
}  # fmt: skip
"""The meaning of IS for its operand: that it is the second, where it is itself the first."""

_NULL_SAFE = ("<=>", "IS NOT DISTINCT FROM", "IS DISTINCT FROM")
_EQUALITIES = ("=", "==", "<=>", "IS NOT DISTINCT FROM")
_INEQUALITIES = ("<>", "!=", "IS DISTINCT FROM")


def _read_comparison(node: SparkNode, sql: str, truth: bool) -> tuple[str, str] | None:
    """Read ``a = b`` or ``a <> b`` that has this truth; if one side is TRUE or FALSE, return the sides of the other.

    Comparisons have the same precedence: ``a = b = TRUE`` compares the result of ``a = b`` with TRUE.
    """
    same = (node.operator in _EQUALITIES) == truth
    null_safe = node.operator in _NULL_SAFE
    if null_safe and not same:  # It is true for a single null, too.
        return None
    *before, last = node.parts
    first = before[0] if len(before) == 1 else SparkNode(node.operator, tuple(before), node.start, before[-1].end)
    for one, other in ((last, first), (first, last)):
        word = _text(one, sql).upper()
        if word in ("TRUE", "FALSE") and (found := _equal(other, sql, (word == "TRUE") == same)):
            return found
    if null_safe or not same or len(before) > 1:
        return None
    return sql[first.start : first.end], sql[last.start : last.end]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


class _ExpressionReader:
    """A recursive descent parser; each method reads the construct of its name, and stops after it."""

    def __init__(self, sql: str) -> None:
        self.found = list(tokens(sql))
        self.position = 0
        self.signs: list[tuple[int, str]] = []
        self.names: list[tuple[int, int]] = []
        self.literals: list[tuple[int, ...]] = []

    # ── pieces ───────────────────────────────────────────────────────────────────────────────────────────

    def ahead(self, number: int = 0) -> Token | None:
        return self.found[self.position + number] if self.position + number < len(self.found) else None

    def at(self, *texts: str, number: int = 0) -> bool:
        token = self.ahead(number)
        return token is not None and token.kind in ("word", "symbol") and token.text in texts

    def take(self) -> Token:
        token = self.ahead()
        if token is None:
            raise _UnknownSyntaxError
        self.position += 1
        return token

    def expect(self, *texts: str) -> Token:
        if not self.at(*texts):
            raise _UnknownSyntaxError
        return self.take()

    def take_if(self, *texts: str) -> bool:
        if self.at(*texts):
            self.position += 1
            return True
        return False

    def finish(self) -> None:
        if self.ahead() is not None:
            raise _UnknownSyntaxError

    def node(self, operator: str, start: int, parts: list[SparkNode]) -> SparkNode:
        return SparkNode(operator, tuple(parts), start, self.found[self.position - 1].end)

    def skip_group(self) -> None:
        """Skip to after the parenthesis that closes the one that was just read."""
        depth = self.found[self.position - 1].depth
        while self.take().depth > depth:
            pass

    def skip_alias(self) -> None:
        token = self.ahead()
        if self.take_if("AS"):
            if self.take_if("("):
                self.skip_group()
            else:
                self.mark_keyword(self.name())
        elif token is not None and token.kind in ("word", "quoted"):
            self.mark_keyword(self.name())

    def name(self) -> Token:
        token = self.take()
        if token.kind not in ("word", "quoted"):
            raise _UnknownSyntaxError
        return token

    def mark_keyword(self, name: Token) -> None:
        if name.kind == "word" and name.text in _KEYWORDS:
            self.names.append((name.start, name.end))

    # ── logic ────────────────────────────────────────────────────────────────────────────────────────────

    def boolean(self, rank: int) -> SparkNode:
        token = self.ahead()
        if token is not None and self.at("NOT", "!"):
            self.take()
            left = self.node("NOT", token.start, [self.boolean(_NOT)])
        else:
            left = self.predicate()
        for word, own in (("AND", _AND), ("OR", _OR)):
            parts = [left]
            while rank <= own and self.take_if(word):
                parts.append(self.boolean(own + 1))
            left = self.node(word, left.start, parts) if len(parts) > 1 else left
        return left

    def predicate(self) -> SparkNode:
        value = self.value(0)
        if self.take_if("IS"):
            return self.truth_test(value)
        word = "NOT " if self.at("NOT") and self.at("BETWEEN", "IN", *_PATTERNS, number=1) and self.take() else ""
        if self.take_if("BETWEEN"):
            low = self.value(0)
            self.expect("AND")
            return self.node(f"{word}BETWEEN", value.start, [value, low, self.value(0)])
        if self.take_if("IN"):
            return self.node(f"{word}IN", value.start, [value, *self.list_items()])
        if self.at(*_PATTERNS):
            return self.like(value, word + self.take().text)
        if word:
            raise _UnknownSyntaxError
        return value

    def truth_test(self, value: SparkNode) -> SparkNode:
        word = "IS NOT " if self.take_if("NOT") else "IS "
        if self.take_if("DISTINCT"):
            self.expect("FROM")
            return self.node(f"{word}DISTINCT FROM", value.start, [value, self.value(0)])
        said = self.expect("NULL", "TRUE", "FALSE", "UNKNOWN")
        return self.node(word + said.text, value.start, [value])

    def like(self, value: SparkNode, word: str) -> SparkNode:
        if self.take_if("ANY", "ALL", "SOME"):
            return self.node(word, value.start, [value, *self.list_items()])
        pattern = self.value(0)
        if self.take_if("ESCAPE") and self.take().kind != "string":
            raise _UnknownSyntaxError
        return self.node(word, value.start, [value, pattern])

    def list_items(self) -> list[SparkNode]:
        """Read ``(a, b, …)``; a sub-query has no parts."""
        self.expect("(")
        if self.at(*_QUERIES):
            self.skip_group()
            return []
        items = []
        while not self.take_if(")"):
            items.append(self.boolean(_OR))
            if not self.at(")"):
                self.expect(",")
        return items

    # ── values ───────────────────────────────────────────────────────────────────────────────────────────

    def value(self, rank: int) -> SparkNode:
        """Read operands and the operators between them of a higher precedence than this one."""
        token = self.ahead()
        if token is not None and self.at("-", "+", "~") and not (self.at("-") and self.at_number(1)):
            self.take()
            if token.text == "+" and not self.at_number():
                self.signs.append((token.start, _SHOWN_PLUS))
            left = self.node(f"{token.text} ", token.start, [self.value(_CLOSEST)])
        else:
            left = self.postfix(self.operand())
        while (token := self.ahead()) is not None and _RANKS.get(sign := self.sign(token), 0) > rank:
            self.position += len(sign) if token.kind == "symbol" and sign != token.text else 1
            if sign in _SHOWN_AS:
                self.signs.append((token.start, _SHOWN_AS[sign]))
            right = self.value(_RANKS[sign])
            # One list for a chain, so that a long one makes no deep tree.
            parts = [*left.parts, right] if left.operator == sign else [left, right]
            left = self.node(sign, left.start, parts)
        return left

    def at_number(self, number: int = 0) -> bool:
        token = self.ahead(number)
        return token is not None and token.kind == "number"

    def sign(self, token: Token) -> str:
        """Return the operator that begins here; ``!>``, ``!<``, ``<<``, ``>>`` and ``>>>`` without blanks are one."""
        if token.kind not in ("word", "symbol"):
            return ""
        text, number = token.text, 1
        while (following := self.ahead(number)) is not None and following.start == token.start + number:
            if text + following.text not in ("!>", "!<", "<<", ">>", ">>>"):
                break
            text, number = text + following.text, number + 1
        return text

    def postfix(self, operand: SparkNode) -> SparkNode:
        parts = [operand]
        while True:
            if self.take_if("::"):
                self.skip_type()
            elif self.take_if("["):
                parts.append(self.value(0))
                self.expect("]")
            elif self.take_if(".", "COLLATE", ":"):
                self.name()
            else:
                return (
                    operand if self.found[self.position - 1].end == operand.end else self.node("", operand.start, parts)
                )

    def operand(self) -> SparkNode:
        token = self.take()
        ahead = self.ahead()
        if token.kind == "string":
            joined = [token]
            while (following := self.ahead()) is not None and following.kind == "string":
                joined.append(self.take())
            # sqlglot concatenates literals as Spark does, but no raw ones.
            if len(joined) > 1 and any(one.written[0] in "rR" for one in joined):
                self.literals.append((*(one.start for one in joined), joined[-1].end))
        elif token.text == "-" and ahead is not None and ahead.kind == "number":
            self.take()
        elif token.text == "(":
            return self.group(token)
        elif token.kind == "symbol" and token.text != "*":
            raise _UnknownSyntaxError
        elif token.kind in ("word", "quoted"):
            return self.named_operand(token)
        return self.node("", token.start, [])

    def group(self, first: Token) -> SparkNode:
        """Read the contents of parentheses: an expression, a row, a sub-query, or the variables of a lambda."""
        if self.at(*_QUERIES):
            self.skip_group()
            return self.node("", first.start, [])
        items = []
        while not self.take_if(")"):
            items.append(self.boolean(_OR))
            aliased = not self.at(",", ")")
            self.skip_alias()
            if not self.at(")"):
                self.expect(",")
        if self.take_if("->"):
            return self.node("", first.start, [self.boolean(_OR)])
        single = len(items) == 1 and not aliased
        return self.node("()" if single else "", first.start, items)

    def named_operand(self, first: Token) -> SparkNode:
        """Read an operand that begins with a word: column, call, typed literal, CASE, CAST, INTERVAL, lambda."""
        ahead = self.ahead()
        if first.kind == "word" and first.text in _NO_OPERAND:
            raise _UnknownSyntaxError
        if first.kind == "word" and first.text == "CASE":
            return self.case(first)
        if self.take_if("->"):
            return self.node("", first.start, [self.boolean(_OR)])
        if first.kind == "word" and first.text == "INTERVAL" and self.interval():
            return self.node("", first.start, [])
        if first.kind == "word" and ahead is not None and ahead.kind == "string":
            self.take()
            return self.node("", first.start, [])
        while self.at(".") and (after := self.ahead(1)) is not None and after.text != "*":
            self.take()
            self.name()
        if self.at(".") and self.at("*", number=1):
            self.position += 2
        if self.take_if("("):
            return self.call(first)
        if first.text not in _VALUES:
            self.mark_keyword(first)
        return self.node("", first.start, [])

    def call(self, first: Token) -> SparkNode:
        """Read arguments; those of a function with its own syntax are not parsed, nor is a sub-query."""
        before, names = self.position, len(self.names)
        if first.text in ("CAST", "TRY_CAST") and not self.at(*_QUERIES):
            value = self.boolean(_OR)
            self.expect("AS")
            type_ = self.position
            self.skip_group_from(before)
            self.hide_empty_structs(type_)
            return self.node("", first.start, [value])
        try:
            return self.node(_STRUCT if first.name.upper() == "STRUCT" else "", first.start, self.arguments())
        except _UnknownSyntaxError:
            self.skip_group_from(before)
            del self.names[names:]  # They may be words of its syntax.
            return self.node("", first.start, [])

    def skip_group_from(self, position: int) -> None:
        self.position = position
        self.skip_group()

    def arguments(self) -> list[SparkNode]:
        if self.at(*_QUERIES):
            raise _UnknownSyntaxError
        self.take_if("DISTINCT", "ALL")
        items = []
        while not self.take_if(")"):
            if self.at("=>", number=1):
                self.position += 2
            items.append(self.boolean(_OR))
            if self.at("AS"):
                self.skip_alias()
            if not self.at(")"):
                self.expect(",")
        return items

    def case(self, first: Token) -> SparkNode:
        parts = [] if self.at("WHEN") else [self.boolean(_OR)]
        self.expect("WHEN")
        self.position -= 1
        while self.take_if("WHEN"):
            parts.append(self.boolean(_OR))
            self.expect("THEN")
            parts.append(self.boolean(_OR))
        if self.take_if("ELSE"):
            parts.append(self.boolean(_OR))
        self.expect("END")
        return self.node("", first.start, parts)

    def interval(self) -> bool:
        """Read the rest of a literal after the word INTERVAL; return whether it is one, and not a name."""
        before = self.position
        while self.is_amount():
            self.take_if("-", "+")
            self.take()
            unit = self.take()
            if unit.text.removesuffix("S") not in _UNITS:
                self.position = before
                return False
            if self.take_if("TO"):
                self.name()
        return self.position > before

    def is_amount(self) -> bool:
        token = self.ahead(1 if self.at("-", "+") else 0)
        return token is not None and token.kind in ("string", "number")

    def skip_type(self) -> None:
        first = self.position
        word = self.take()
        if word.text == "INTERVAL":
            self.name()
            if self.take_if("TO"):
                self.name()
        elif self.take_if("("):
            self.skip_group()
        elif word.text in ("ARRAY", "MAP", "STRUCT") and self.at("<", "<>"):
            angle = 0
            while True:
                text = self.take().text
                angle += (text.count("<") - text.count(">")) if set(text) <= set("<>") else 0
                if angle <= 0:
                    break
            self.hide_empty_structs(first)

    def hide_empty_structs(self, first: int) -> None:
        """Show sqlglot no operator in ``STRUCT<>``, within a type that begins at this token and has been read."""
        self.signs += [(token.start, _NO_FIELDS) for token in self.found[first : self.position] if token.text == "<>"]
