"""Pipes: ``FROM o |> JOIN … |> WHERE …``, of which the joins that follow FROM are read as those of a FROM."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql.text import Span, Statement

_JOINS = {"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "SEMI", "ANTI"}


def pipes_of(found: Sequence[Token]) -> list[Token]:
    """Return the first letter of each ``|>``."""
    return [a for a, b in pairwise(found) if a.text == "|" and b.text == ">" and a.end == b.start]


def without_pipes(statement: Statement) -> tuple[Statement, int | None]:
    """Return a query without the pipes before joins that follow FROM, and where its first other pipe stands.

    >>> query, pipe = without_pipes(Statement.of("FROM a |> JOIN b USING (c) |> LIMIT 1"))
    >>> query.sql, pipe
    ('FROM a    JOIN b USING (c) |> LIMIT 1', 27)
    """
    found, joins = list(tokens(statement.sql)), list[Span]()
    for pipe in pipes_of(found):
        after = next((token.text for token in found if token.start >= pipe.end + 1), "")
        start = statement.span.start + pipe.start
        if pipe.depth:
            continue
        if found[0].text != "FROM" or after not in _JOINS:
            return statement.with_blanks(joins), start
        joins.append(Span(start, start + 2))
    return (statement.with_blanks(joins) if joins else statement), None
