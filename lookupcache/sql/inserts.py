"""INSERT behind its query: ``WITH … INSERT INTO t SELECT …`` and Hive's ``FROM … INSERT INTO t SELECT … INSERT …``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql.statement_target import query_start
from lookupcache.sql.text import Span, Statement


@dataclass(frozen=True)
class Insert:
    """One of the INSERTs of a statement: its text up to the query, that query without the others, where it begins."""

    prefix: str
    query: Statement
    start: int


def inserts_of(statement: Statement, found: Sequence[Token]) -> list[Insert]:
    """Return the INSERTs that follow the beginning of their query; none in any other statement.

    >>> text = "FROM t INSERT INTO a SELECT x INSERT INTO b SELECT y"
    >>> [(one.prefix, one.query.sql) for one in inserts_of(Statement.of(text), list(tokens(text)))]
    [('INSERT INTO a ', 'FROM t               SELECT x                       '), \
('INSERT INTO b ', 'FROM t                                      SELECT y')]
    """
    words = [token for token in found if token.kind == "word" and not token.depth]
    starts = [token.start for token in words if token.text == "INSERT"]
    if not words or words[0].text not in ("WITH", "FROM") or not starts:
        return []
    made = []
    for start, end in pairwise([*starts, len(statement.sql)]):
        text = statement.sql[start:end]
        begin = query_start(list(tokens(text)))
        if begin is None:
            return []
        others = [span for span in pairwise([*starts, len(statement.sql)]) if span[0] != start]
        offset = statement.span.start
        spans = [Span(offset + first, offset + last) for first, last in (*others, (start, start + begin))]
        made.append(Insert(text[:begin], statement.with_blanks(spans), offset + start))
    return made
