"""A SELECT that groups by the bounds of Flink's window, as one that groups by Spark's window:

    SELECT window_start, k, count(*) FROM … GROUP BY window_start, window_end, k
─►  SELECT CAST(lookup_w.start AS TIMESTAMP_NTZ) AS window_start, k, count(*) FROM … GROUP BY lookup_w, k
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from lookupcache.planner.clauses import Token, closing_of
from lookupcache.sql.masks import SET_OPERATIONS, begins_clause, group_of
from lookupcache.sql.statement_target import QUERIES, arguments_of
from lookupcache.sql.text import Span, Statement

WINDOW = "lookup_w"
"""The name of the column with the window."""
_BOUNDS = {
    "window_start": f"CAST({WINDOW}.start AS TIMESTAMP_NTZ)",
    "window_end": f"CAST({WINDOW}.end AS TIMESTAMP_NTZ)",
    "window_time": f"({WINDOW}.end - INTERVAL '0.001' SECOND)",
}


class _Bound(NamedTuple):
    """A name of a window's bound: the numbers of its first and last token, and which bound it is."""

    first: int
    last: int
    name: str


def group_by_window(
    statement: Statement, found: Sequence[Token], first: int, last: int, keys: Sequence[str] | None
) -> list[tuple[Span, str]] | None:
    """Return the edits of the SELECT that groups by the bounds of a window; None where it does not, or has joins.

    Args:
        statement: The statement. found: Its tokens. first: The number of the window's first token. last: That of its
        last one. keys: The keys of a session, which must be those of GROUP BY, without a WHERE that leaves rows out of
        sessions. None for other windows.
    """
    clauses = _clauses(found, first, last)
    if clauses is None or "GROUP" not in clauses or "WITH" in clauses or (keys is not None and "WHERE" in clauses):
        return None
    grouping = clauses.pop("GROUP")
    items = arguments_of([found[n] for n in grouping[1:]])
    bounds = [bound.name for item in items if (bound := _only_bound(item)) is not None]
    others = [item for item in items if _only_bound(item) is None]
    is_plain = keys is None or sorted(item[-1].name.lower() for item in others) == sorted(map(str.lower, keys))
    has_sets = any(item[0].text in _SETS for item in others)
    if not {"window_start", "window_end"} <= set(bounds) or not is_plain or has_sets:
        return None
    texts = [statement[statement.span_within(item[0].start, item[-1].end)] for item in others]
    edits = [(_span(statement, found, grouping[1], grouping[-1]), ", ".join([WINDOW, *texts]))]
    for word in ("SELECT", "WHERE", "HAVING"):
        for bound in _bounds(found, clauses.get(word, range(0))):
            is_item = word == "SELECT" and _is_item(found, bound, found[first].depth)
            alias = f" AS {bound.name}" if is_item else ""
            edits.append((_span(statement, found, bound.first, bound.last), _BOUNDS[bound.name] + alias))
    return edits


_SETS = ("GROUPING", "CUBE", "ROLLUP")


def _clauses(found: Sequence[Token], first: int, last: int) -> dict[str, range] | None:
    """Return which tokens each clause of a SELECT has behind its keyword; None if it has not just one relation."""
    group, depth = group_of(found, first, found[first].depth), found[first].depth
    starts = [n for n in group if found[n].depth == depth and begins_clause(found, n)]
    before = [n for n in starts if n < first]
    if [found[n].text for n in before[-2:]] != ["SELECT", "FROM"] or before[-1] != first - 1:
        return None
    after = [n for n in starts if n > last]
    stop = next((n for n in after if found[n].text in SET_OPERATIONS), group.stop)
    after = [n for n in after if n < stop]
    end = after[0] if after else stop
    alias = [token.text for token in found[last + 1 : end] if token.text != "AS"]
    if len(alias) > 1:
        return None
    edges = [*after, stop]
    clauses = {found[start].text: range(start + 1, stop) for start, stop in pairwise(edges)}
    return clauses | {"SELECT": range(before[-2] + 1, before[-1])}


def _bounds(found: Sequence[Token], inside: range) -> Iterator[_Bound]:
    """Yield the names of bounds in a clause, without those in sub-queries."""
    skipped = 0
    for n in inside:
        if n < skipped:
            continue
        if found[n].text == "(" and found[n + 1].text in QUERIES:
            skipped = closing_of(found, n) or inside.stop
        texts = [found[n - 1].text, found[n + 1].text if n + 1 < len(found) else ""]
        if found[n].name.lower() in _BOUNDS and texts[0] != "AS" and texts[1] not in (".", "("):
            yield _Bound(n - 2 if texts[0] == "." else n, n, found[n].name.lower())


def _only_bound(item: Sequence[Token]) -> _Bound | None:
    """Return the bound that an item of GROUP BY is."""
    bound = next(_bounds([*item[:1], *item], range(1, len(item) + 1)), None)
    return bound if bound is not None and (bound.first, bound.last) == (1, len(item)) else None


def _is_item(found: Sequence[Token], bound: _Bound, depth: int) -> bool:
    """Return whether a name is all of an item of SELECT, which then has this name."""
    before, after = found[bound.first - 1], found[bound.last + 1]
    is_whole = before.text in ("SELECT", "DISTINCT", "ALL", ",") and after.text in (",", "FROM")
    return is_whole and found[bound.first].depth == depth


def _span(statement: Statement, found: Sequence[Token], first: int, last: int) -> Span:
    return statement.span_within(found[first].start, found[last].end)
