"""WHERE cut into conjuncts: each goes to the first lookup join that can judge it, the rest stays behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from lookupcache.planner.clauses import conjunct_spans, tokens, unwrapped
from lookupcache.sql.dialect import span_of
from lookupcache.sql.lookups import Lookup
from lookupcache.sql.query import Query
from lookupcache.sql.scope import Reference, Scope, references
from lookupcache.sql.spelling import Spelling
from lookupcache.sql.text import Span


@dataclass
class Part:
    """A conjunct of WHERE: its place, the columns that it reads, whether a lookup join has taken it.

    One that is ``closed`` holds a query, which only Spark can judge.
    """

    span: Span
    references: Sequence[Reference]
    closed: bool
    taken: bool = False


class Where:
    """The WHERE of one SELECT."""

    def __init__(self, query: Query, scope: Scope, spelling: Spelling, select: exp.Select) -> None:
        self.scope = scope
        self.spelling = spelling
        where = select.args.get("where")
        self.parts = [] if where is None else list(_parts(query, where))

    def take(self, lookup: Lookup) -> list[str]:
        """Take the conjuncts that this join can judge, and return them as SQL over its two sides.

        Those that read its table are none of a semi or an anti join's, nor of a scalar sub-query's.
        """
        if lookup.scalar or lookup.how in ("semi", "anti"):
            lookup.source.visible = False
        return [self._take(lookup, part) for part in self.parts if self._judged(lookup, part)]

    def _judged(self, lookup: Lookup, part: Part) -> bool:
        """Return whether a conjunct has no place yet, and reads columns only that are there before or in the join."""
        if part.taken or part.closed or not part.references:
            return False
        found = [self.scope.find(reference) for reference in part.references]
        return all(one and not (one.source is lookup.source and one.name in lookup.marks) for one in found)

    def _take(self, lookup: Lookup, part: Part) -> str:
        part.taken = True
        return self.spelling.condition(lookup, part.span, part.references, lookup.how == "left")


def _parts(query: Query, where: exp.Expr) -> Iterator[Part]:
    found = references(where)
    inner = [span_of(one) for one in (*where.find_all(exp.Subquery), *where.find_all(exp.Exists))]
    whole = span_of(where.this)
    for start, end in conjunct_spans(query.statement[whole]):
        span = Span(whole.start + start, whole.start + end)
        inside = [reference for reference in found if span.start <= reference.position < span.end]
        closed = any(span.start <= one.start < span.end for one in inner)
        yield Part(span, inside, closed=closed or any(reference.nested for reference in inside))


def grouped(text: str) -> str:
    """Return a conjunct so that it can stand between others.

    >>> grouped("a OR b"), grouped("(a OR b)"), grouped("a AND b")
    ('(a OR b)', '(a OR b)', 'a AND b')
    """
    words = [token.text for token in tokens(text) if token.kind == "word" and token.depth == 0]
    return f"({text})" if "OR" in words and unwrapped(text) == text else text
