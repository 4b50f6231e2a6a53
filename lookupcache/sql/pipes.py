"""Pipes (``|>``): a query may have lookups before its first pipe; the rest is Spark's, and the parser never sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token
from lookupcache.sql.masks import Mask, mask_of_query
from lookupcache.sql.text import Span, Statement, put


def pipes_of(found: Sequence[Token]) -> list[Token]:
    """Return the first letter of each ``|>``."""
    return [a for a, b in pairwise(found) if a.text == "|" and b.text == ">" and a.end == b.start]


def without_pipes(
    statement: Statement, concerns: Callable[[Sequence[Token]], bool]
) -> tuple[Statement, Span | None, list[Mask]]:
    """Return a query up to its first pipe, the span of the rest, and a mask for each query with pipes in parentheses.

    Raises StatementError where ``concerns`` finds a lookup behind a pipe, or in such parentheses.

    >>> query, rest, masks = without_pipes(Statement.of("FROM (FROM a |> LIMIT 1) |> WHERE x"), lambda found: False)
    >>> query.sql.rstrip(), rest, [mask.span for mask in masks]
    ('FROM (FROM a |> LIMIT 1)', Span(start=25, end=35), [Span(start=6, end=23)])
    """
    found, masks = statement.words, list[Mask]()
    for pipe in pipes_of(found):
        if not pipe.depth:
            start = statement.span.start + pipe.start
            if concerns([token for token in found if token.start > pipe.start]):
                raise _refusal(statement, pipe)
            rest = Span(start, statement.span.end)
            return statement.with_code(put(statement.code, [(rest, "")])), rest, masks
        if any(mask.span.holds(statement.span_within(pipe.start, pipe.end)) for mask in masks):
            continue
        mask = mask_of_query(statement, pipe)
        if mask is None or concerns(statement.part(*mask.span).words):
            raise _refusal(statement, pipe)
        masks.append(mask)
    return statement, None, masks


def _refusal(statement: Statement, pipe: Token) -> StatementError:
    return StatementError(
        "A lookup cannot stand behind a pipe, nor in or beside a query with pipes in ON or LATERAL.",
        hint="Join in FROM of a sub-query, then pipe its result: FROM (SELECT … FROM … JOIN …) AS q |> ….",
        position=statement.position(statement.span_within(pipe.start, pipe.end + 1)),
    )
