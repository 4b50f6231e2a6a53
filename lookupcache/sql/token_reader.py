"""Reads a statement from its tokens: the command, the table that it writes, names, texts and relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from lookupcache.planner.clauses import Token

QUERIES = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
"""Keywords that begin a query."""


@dataclass(frozen=True)
class TableName:
    """A table's name in a statement: its parts, and the positions where it starts and ends."""

    parts: tuple[str, ...]
    start: int
    end: int

    @property
    def plain(self) -> str | None:
        """The name, if it has no schema; else None."""
        return self.parts[0] if len(self.parts) == 1 else None


class TokenReader:
    """Reads the tokens of a statement from left to right.

    >>> from lookupcache.planner.clauses import tokens
    >>> reader = TokenReader(list(tokens("DROP TABLE IF EXISTS db.`t` PURGE")))
    >>> reader.take("DROP", "TABLE"), reader.take("IF", "EXISTS"), reader.name().parts, reader.words
    (True, True, ('db', 't'), ['PURGE'])
    """

    def __init__(self, found: Sequence[Token]) -> None:
        self.found = list(found)
        self.position = 0

    @property
    def rest(self) -> list[Token]:
        """The tokens that are not read yet."""
        return self.found[self.position :]

    @property
    def words(self) -> list[str]:
        """The next tokens as upper-case words; a token that is not a word is an empty string."""
        return [token.text if token.kind == "word" else "" for token in self.rest]

    def take(self, *words: str) -> bool:
        """Read these words if they are next; return whether they were."""
        if self.words[: len(words)] != list(words):
            return False
        self.position += len(words)
        return True

    def skip(self, *words: str) -> None:
        """Read any of these words as long as one is next."""
        while any(self.take(word) for word in words):
            pass

    def name(self) -> TableName | None:
        """Read a name with its schema; None if the next token is no name."""
        parts: list[str] = []
        first = self.position
        while self.rest and self.rest[0].kind in ("word", "quoted"):
            parts.append(self.rest[0].name)
            self.position += 1
            if not (self.rest and self.rest[0].text == "." and len(self.rest) > 1):
                break
            self.position += 1
        if not parts:
            return None
        return TableName(tuple(parts), self.found[first].start, self.found[self.position - 1].end)

    def literal(self) -> str | None:
        """Read a text, which is several tokens if quotes in it are doubled; return None if there is no text."""
        pieces: list[Token] = []
        while self.rest and self.rest[0].kind == "string" and (not pieces or self.rest[0].start == pieces[-1].end):
            pieces.append(self.rest[0])
            self.position += 1
        return unquote("".join(piece.written for piece in pieces)) if pieces else None


def unquote(text: str) -> str:
    """Return the value of a string literal.

    >>> unquote("'it''s'")
    "it's"
    """
    return text[1:-1].replace(text[0] * 2, text[0]).replace("\\'", "'").replace("\\\\", "\\")


def insert_target(found: Sequence[Token]) -> TableName | None:
    """Return the table that an INSERT writes to; None for files, IDENTIFIER(…), and any other statement."""
    reader = TokenReader(found)
    if not reader.take("INSERT") or not (reader.take("INTO") or reader.take("OVERWRITE")):
        return None
    if reader.words[:1] == ["DIRECTORY"] or reader.words[:2] == ["LOCAL", "DIRECTORY"]:
        return None
    reader.take("TABLE")
    return None if [token.text for token in reader.rest[:2]] == ["IDENTIFIER", "("] else reader.name()


def query_start(found: Sequence[Token]) -> int | None:
    """Return the start of the query in INSERT, CREATE … AS, REPLACE … AS or CACHE … AS; None for a statement without a
    query.

    >>> from lookupcache.planner.clauses import tokens
    >>> query_start(list(tokens("INSERT INTO t (a, b) (SELECT 1, 2)")))
    21
    """
    if not found or found[0].text not in ("INSERT", "CREATE", "CACHE", "REPLACE"):
        return 0
    target = insert_target(found)
    behind = 1 if target is None else sum(token.start < target.end for token in found)
    for before, token, after in zip(found[behind - 1 :], found[behind:], [*found[behind + 1 :], None], strict=False):
        begins = after if token.text == "(" else token
        if not token.depth and before.text == "AS" and begins is not None and begins.text == "TABLE" and after:
            return token.start
        if not token.depth and (_begins(token, after) or (token.text == "(" and after and _begins(after, None))):
            return token.start
        if target is not None and not token.depth and token.kind == "word" and token.text == "TABLE":
            return token.start
    return None


def _begins(token: Token, after: Token | None) -> bool:
    """Return whether a word begins a query; WITH may also begin options."""
    if token.kind != "word" or token.text not in QUERIES[:4] or (after is not None and after.text in (",", ")", ".")):
        return False
    return token.text != "WITH" or after is None or after.kind in ("word", "quoted")


def words_of(found: Sequence[Token]) -> list[str]:
    """Return the texts of tokens, words in upper case."""
    return [token.text for token in found]


_RELATIONS = {"FROM", "JOIN", "USING", "TABLE", "INTO"}
"""Words before a relation."""
_CLAUSES = _RELATIONS | {"SELECT", "WHERE", "SET", "BY", "HAVING", "|"}


def named_argument(part: Sequence[Token]) -> tuple[str, list[Token]]:
    """Return the name of an argument, in lower case, and its value; the name is empty where there is none.

    >>> from lookupcache.planner.clauses import tokens
    >>> name, value = named_argument(list(tokens("Size => 10")))
    >>> name, [token.text for token in value]
    ('size', ['10'])
    """
    has_name = len(part) > 2 and part[1].text == "=>"
    return (part[0].name.lower(), list(part[2:])) if has_name else ("", list(part))


def described_column(value: Sequence[Token]) -> str | None:
    """Return the column of ``DESCRIPTOR(column)``, None for another value of an argument."""
    is_one = [token.text.upper() for token in value[:2]] == ["DESCRIPTOR", "("] and len(value) == 4
    return value[2].name if is_one else None


def is_relation(before: Sequence[Token]) -> bool:
    """Return whether a relation follows these tokens: behind FROM or JOIN, or a comma of FROM.

    >>> from lookupcache.planner.clauses import tokens
    >>> [is_relation(list(tokens(text))) for text in ("DELETE FROM", "SELECT a FROM b,", "SELECT a,", "SET a = 1,")]
    [True, True, False, False]
    >>> [is_relation(list(tokens(text))) for text in ("FROM b JOIN c ON x IN (1),", "FROM (FROM b) SELECT f(a,")]
    [True, False]
    """
    if not before or before[-1].text != ",":
        return bool(before) and before[-1].text in _RELATIONS
    depth = before[-1].depth
    beside = takewhile(lambda token: token.depth >= depth, reversed(before))
    clauses = (token.text for token in beside if token.depth == depth and token.text in _CLAUSES)
    return next(clauses, "") in _RELATIONS


def may_be_relation(found: Sequence[Token], number: int) -> bool:
    """Return whether a name in a query may be that of a relation, perhaps in parentheses.

    >>> from lookupcache.planner.clauses import tokens
    >>> found = [list(tokens(text)) for text in ("FROM a", "FROM b, (a", "JOIN b USING (a", "|> SET b = 1, a")]
    >>> [may_be_relation(one, len(one) - 1) for one in found]
    [True, True, False, False]
    """
    first = next((n for n in range(number, 0, -1) if found[n - 1].text != "("), 0)
    return is_relation(found[:first]) and (first == number or found[first - 1].text != "USING")
