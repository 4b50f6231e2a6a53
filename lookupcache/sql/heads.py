"""The words before a statement's query: what a statement does, and to which table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lookupcache.planner.clauses import Token

QUERIES = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
"""Words that begin a query."""


@dataclass(frozen=True)
class TableName:
    """A table's name where it stands: its parts, and the positions of first and last letter."""

    parts: tuple[str, ...]
    start: int
    end: int

    @property
    def plain(self) -> str | None:
        """The name, where it has no schema before it."""
        return self.parts[0] if len(self.parts) == 1 else None


class Head:
    """Reads a statement's tokens from the left.

    >>> from lookupcache.planner.clauses import tokens
    >>> head = Head(list(tokens("DROP TABLE IF EXISTS db.`t` PURGE")))
    >>> head.take("DROP", "TABLE"), head.take("IF", "EXISTS"), head.name().parts, head.words
    (True, True, ('db', 't'), ['PURGE'])
    """

    def __init__(self, found: Sequence[Token]) -> None:
        self.found = list(found)
        self.position = 0

    @property
    def rest(self) -> list[Token]:
        """The tokens that have not been read."""
        return self.found[self.position :]

    @property
    def words(self) -> list[str]:
        """The words that come next, in upper case; a token that is no word is an empty one."""
        return [token.text if token.kind == "word" else "" for token in self.rest]

    def take(self, *words: str) -> bool:
        """Read these words where they come next."""
        if self.words[: len(words)] != list(words):
            return False
        self.position += len(words)
        return True

    def skip(self, *words: str) -> None:
        """Read any of these words, as long as one comes next."""
        while any(self.take(word) for word in words):
            pass

    def name(self) -> TableName | None:
        """Read a name with its schema; None where none comes next."""
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


@dataclass(frozen=True)
class Target:
    """What a statement does to which table."""

    verb: str
    name: TableName


_TARGETS = (
    (("TRUNCATE", "TABLE"), ()), (("ALTER", "TABLE"), ()), (("ALTER", "VIEW"), ()), (("ANALYZE", "TABLE"), ()),
    (("REFRESH", "TABLE"), ()), (("REFRESH",), ()), (("CACHE", "LAZY", "TABLE"), ()), (("CACHE", "TABLE"), ()),
    (("UNCACHE", "TABLE"), ("IF", "EXISTS")), (("MSCK", "REPAIR", "TABLE"), ()), (("REPAIR", "TABLE"), ()),
    (("COMMENT", "ON", "TABLE"), ()), (("COMMENT", "ON", "VIEW"), ()), (("DROP", "VIEW"), ("IF", "EXISTS")),
    (("DELETE", "FROM"), ()), (("UPDATE",), ()), (("MERGE", "WITH", "SCHEMA", "EVOLUTION", "INTO"), ()),
    (("MERGE", "INTO"), ()), (("SHOW", "PARTITIONS"), ()), (("SHOW", "TBLPROPERTIES"), ()),
)  # fmt: skip
"""The words of statements about a table, and those that may follow them."""


def target_of(found: Sequence[Token]) -> Target | None:
    """Return what a statement other than INSERT, CREATE and a query changes or describes.

    >>> from lookupcache.planner.clauses import tokens
    >>> target = target_of(list(tokens("truncate table cust PARTITION (a = 1)")))
    >>> target.verb, target.name.plain
    ('TRUNCATE TABLE', 'cust')
    """
    for words, more in _TARGETS:
        head = Head(found)
        if head.take(*words):
            if more:
                head.take(*more)
            name = head.name()
            return None if name is None else Target(" ".join(words), name)
    return None


def insert_target(found: Sequence[Token]) -> TableName | None:
    """Return the table that an INSERT writes to; None for files, and for any other statement."""
    head = Head(found)
    if not head.take("INSERT") or not (head.take("INTO") or head.take("OVERWRITE")):
        return None
    if head.words[:1] == ["DIRECTORY"] or head.words[:2] == ["LOCAL", "DIRECTORY"]:
        return None
    head.take("TABLE")
    return head.name()


def query_start(found: Sequence[Token]) -> int | None:
    """Return where the query of INSERT, CREATE … AS, REPLACE … AS or CACHE … AS begins; None where there is none.

    >>> from lookupcache.planner.clauses import tokens
    >>> query_start(list(tokens("INSERT INTO t (a, b) (SELECT 1, 2)")))
    21
    """
    if not found or found[0].text not in ("INSERT", "CREATE", "CACHE", "REPLACE"):
        return 0
    target = insert_target(found)
    behind = 1 if target is None else sum(token.start < target.end for token in found)
    for token, after in zip(found[behind:], [*found[behind + 1 :], None], strict=True):
        if not token.depth and (_begins(token, after) or (token.text == "(" and after and _begins(after, None))):
            return token.start
    return None


def _begins(token: Token, after: Token | None) -> bool:
    """Return whether a word begins a query; WITH also stands before options."""
    if token.kind != "word" or token.text not in QUERIES[:4] or (after is not None and after.text in (",", ")", ".")):
        return False
    return token.text != "WITH" or after is None or after.kind in ("word", "quoted")
