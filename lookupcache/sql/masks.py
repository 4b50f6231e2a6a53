"""Reads a statement with clauses that sqlglot cannot read: a simple text replaces each of them.

Only the parser sees a mask. Spark gets the clause as it was written, and says whether it is valid. A mask covers no
lookup, and in ON and WHERE only whole operands of AND; a column that is named in one counts as read. The parser never
sees the text behind a pipe (``|>``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from sqlglot import exp

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, conjunct_spans
from lookupcache.sql.dialect import UnreadableError, parse
from lookupcache.sql.text import Edit, Span, Statement, put
from lookupcache.sql.token_reader import QUERIES

_BY = ("GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE")
_MASKED = (*_BY, "HAVING", "QUALIFY", "LIMIT", "OFFSET")
"""Words of clauses whose content can be masked."""
_SET_OPERATIONS = ("UNION", "EXCEPT", "INTERSECT", "MINUS")
_KINDS_OF_JOINS = {"LEFT", "RIGHT", "FULL", "OUTER", "INNER", "CROSS", "SEMI", "ANTI", "NATURAL"}
_CLAUSES = {*_MASKED, *_SET_OPERATIONS, "WITH", "SELECT", "FROM", "WHERE", "WINDOW", "ON"}


def parse_masked(statement: Statement, may_mask: Callable[[Span], bool]) -> tuple[exp.Expr, list[Span]]:
    """Return the tree of a statement, and the pieces that are masked in it; raises StatementError as `parse` does.

    ``may_mask`` says whether a piece may be masked: it has no lookups.

    >>> tree, masked = parse_masked(Statement.of("SELECT 1 FROM o GROUP BY window(ts, '1 hour'), a"), lambda span: True)
    >>> tree.sql(), masked
    ('SELECT 1 FROM o GROUP BY NULL', [Span(start=25, end=48)])
    >>> found = parse_masked(Statement.of("FROM o JOIN t ON a AND drop > 1 CROSS JOIN p WHERE b AND if > 2"), bool)
    >>> found[0].sql()
    'SELECT * FROM o JOIN t ON a AND (NULL) CROSS JOIN p WHERE b AND (NULL)'
    """
    masks: list[Edit] = []
    first: UnreadableError | None = None
    while True:
        try:
            return parse(statement.with_masks(masks)), [mask.span for mask in masks]
        except UnreadableError as error:
            first = first or error
            found = [] if error.offset is None else _around(statement, error.offset)
            new = (
                mask for mask in found if not any(old.span.holds(mask.span) for old in masks) and may_mask(mask.span)
            )
            mask = next(new, None)
            if mask is None:
                raise first from None
            masks = [*(old for old in masks if not mask.span.holds(old.span)), mask]


def _around(statement: Statement, offset: int) -> Iterator[Edit]:
    """Yield the pieces around an offset of the text that may be masked, the innermost first."""
    found, here = list(statement.tokens), offset - statement.span.start
    number = next((n for n, token in enumerate(found) if token.end > here), len(found) - 1)
    if number < 0:
        return
    groups = [_group_of(found, number, depth) for depth in range(found[number].depth, -1, -1)]
    masks = [mask for group in groups for mask in (_clause(statement, found, group, here), _query(found, group))]
    if number > 1 and found[number - 1].text == ")":  # as after (VALUES (1) AS t(a)), whose names the parser refuses
        masks.insert(0, _query(found, _group_of(found, number - 2, found[number - 1].depth + 1)))
    for mask in masks:
        if mask is not None and mask[1] - mask[0] >= len(mask[2]):
            yield Edit(statement.span_within(mask[0], mask[1]), mask[2])


def _group_of(found: Sequence[Token], number: int, depth: int) -> range:
    """Return which tokens stand in the same parentheses of a depth as one of them."""
    start = next((n + 1 for n in range(number - 1, -1, -1) if found[n].depth < depth), 0)
    end = next((n for n in range(number, len(found)) if found[n].depth < depth), len(found))
    return range(start, end)


def _clause(statement: Statement, found: Sequence[Token], group: range, here: int) -> tuple[int, int, str] | None:
    """Return the content of the clause around an offset, and the text that the parser sees instead."""
    top = [n for n in group if found[n].depth == found[group.start].depth] if group else []
    starts = [n for n in top if _begins_clause(found, n)]
    begin = next((n for n in reversed(starts) if found[n].start < here), None)
    if begin is None:
        return None
    end = next((n for n in starts if n > begin), group.stop)
    word = found[begin].text
    if word == "WITH":
        return _head_of_name(found, [n for n in top if begin < n < end], here)
    first = begin + 1 + (word in _BY)
    inside = [n for n in top if first <= n < end]
    if word == "SELECT":
        return _item(found, inside, here)
    if word in ("ON", "WHERE"):
        stop = next((n for n in inside if found[n].text in ("JOIN", ",")), end)
        while found[stop - 1].text in _KINDS_OF_JOINS:
            stop -= 1
        return _operand(statement, found[first].start, found[stop - 1].end, here) if first < stop else None
    last = next((n for n in inside if found[n].text in ("|", ";")), end) - 1
    return (found[first].start, found[last].end, "NULL") if word in _MASKED and first <= last else None


def _operand(statement: Statement, start: int, end: int, here: int) -> tuple[int, int, str]:
    """Return the operand of AND around an offset of a condition, and parentheses as long as it."""
    spans = conjunct_spans(statement.sql[start:end])
    found = next((one for one in spans if here - start < one[1]), spans[-1])
    text = f"({'NULL'.ljust(found[1] - found[0] - 2)})"
    return start + found[0], start + found[1], text


def _begins_clause(found: Sequence[Token], number: int) -> bool:
    """Return whether a token is the keyword of a clause."""
    word, after = found[number], found[number + 1].text if number + 1 < len(found) else ""
    if word.kind != "word" or word.text not in _CLAUSES or (number and found[number - 1].text == "."):
        return False
    return after == "BY" if word.text in _BY else not (word.text == "WINDOW" and after == "(")


def _item(found: Sequence[Token], inside: Sequence[int], here: int) -> tuple[int, int, str] | None:
    """Return the item of SELECT in which an offset is."""
    inside = [n for n in inside if not (n == inside[0] and found[n].text in ("DISTINCT", "ALL"))]
    commas = [n for n in inside if found[n].text == ","]
    if not inside:
        return None
    first = max((n + 1 for n in commas if found[n].start < here), default=inside[0])
    last = min((n - 1 for n in commas if found[n].start >= here), default=inside[-1])
    return (found[first].start, found[last].end, "NULL") if first <= last else None


def _head_of_name(found: Sequence[Token], inside: Sequence[int], here: int) -> tuple[int, int, str] | None:
    """Return the words between a name of WITH, or its columns, and AS, such as MAX RECURSION LEVEL."""
    begin = max((n for n in inside if found[n].text in ("RECURSIVE", ",") and found[n].start < here), default=-1)
    names = [n for n in inside if n > begin and found[n].start <= here]
    end = next((n for n in inside if n > begin and found[n].text == "AS" and found[n].end > here), None)
    if not names or end is None:
        return None
    closing = next((n for n in inside if names[0] < n < end and found[n].text == ")"), names[0])
    return (found[closing].end, found[end].start, "") if found[closing].end <= here else None


def _query(found: Sequence[Token], group: range) -> tuple[int, int, str] | None:
    """Return the query in parentheses, unless it stands in ON, or reads relations beside it by LATERAL."""
    if not group or not group.start or group.stop == len(found) or found[group.start].text not in QUERIES:
        return None
    outside = found[group.start - 1]
    before = [n for n in _group_of(found, group.start - 1, outside.depth) if n < group.start - 1]
    clause = next(
        (found[n].text for n in reversed(before) if found[n].depth == outside.depth and _begins_clause(found, n)), ""
    )
    is_lateral = group.start > 1 and found[group.start - 2].text == "LATERAL"
    if clause == "ON" or is_lateral:
        return None
    return found[group.start].start, found[group.stop - 1].end, "SELECT NULL"


# ── pipes ───────────────────────────────────────────────────────────────────────────────────────────────────


def pipes_of(found: Sequence[Token]) -> list[Token]:
    """Return the first letter of each ``|>``."""
    return [a for a, b in pairwise(found) if a.text == "|" and b.text == ">" and a.end == b.start]


def without_pipes(statement: Statement, concerns: Callable[[Sequence[Token]], bool]) -> tuple[Statement, list[Span]]:
    """Return a query without the text behind pipes, up to the end of their parentheses, and the spans of that text.

    Raises StatementError where ``concerns`` finds a lookup behind a pipe.

    >>> query, behind = without_pipes(Statement.of("FROM (FROM a |> LIMIT 1) |> WHERE x"), lambda found: False)
    >>> query.sql.rstrip(), behind
    ('FROM (FROM a           )', [Span(start=13, end=23), Span(start=25, end=35)])
    """
    found, behind = statement.tokens, list[Span]()
    for pipe in pipes_of(found):
        if behind and pipe.start + statement.span.start < behind[-1].end:
            continue
        rest = [found[n] for n in _group_of(found, found.index(pipe), pipe.depth) if found[n].start >= pipe.start]
        if concerns(rest):
            raise StatementError(
                "A lookup cannot stand behind a pipe.",
                hint="Join in FROM of a sub-query, then pipe its result: FROM (SELECT … FROM … JOIN …) AS q |> ….",
                position=statement.position(statement.span_within(pipe.start, pipe.end + 1)),
            )
        behind.append(statement.span_of(pipe, rest[-1]))
    return statement.with_code(put(statement.code, ((span, "") for span in behind))) if behind else statement, behind
