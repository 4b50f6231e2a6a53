"""How a column is spelled: to the planner, over the left DataFrame, over the view of what has been joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import sqlglot
from sqlglot import exp

from lookupcache.errors import LookupCacheError, SchemaError, nearest
from lookupcache.schema import quote
from lookupcache.sql.dialect import name_span, span_of
from lookupcache.sql.lookups import Lookup
from lookupcache.sql.query import Query
from lookupcache.sql.scope import Found, Reference, Scope, Source, references
from lookupcache.sql.text import Edit, Edits, Span


class Spelling:
    """Spells the columns of one SELECT; ``view`` is the result of its lookup joins so far."""

    def __init__(self, query: Query, scope: Scope, select: exp.Select) -> None:
        self.query = query
        self.scope = scope
        self.select = select
        self.view: str | None = None

    # ── to the planner ───────────────────────────────────────────────────────────────────────────────────

    def on(self, lookup: Lookup, span: Span) -> str:
        """Return a conjunct of a lookup's condition as SQL over its two sides."""
        found = references(lookup.on_node) if lookup.on_node is not None else []
        inside = [reference for reference in found if span.start <= reference.position < span.end]
        return self.condition(lookup, span, inside, False)

    def condition(self, lookup: Lookup, span: Span, inside: Sequence[Reference], padded: bool) -> str:
        """Return a conjunct, of a condition or of WHERE, as SQL over a lookup's two sides."""
        edits = []
        for reference in inside:
            found = self._own(lookup, reference) or self.scope.find(reference)
            if found is None:
                raise self._unknown(reference)
            if (text := self._told(lookup, found, padded)) is not None:
                edits.append(Edit(found.span, text))
        return self.query.edits.text(span, edits)

    def _own(self, lookup: Lookup, reference: Reference) -> Found | None:
        """Return the column of a scalar sub-query's own table that a reference in it means."""
        if not lookup.scalar:
            return None
        return Scope(self.query.statement, self.scope.fold, lookup.source).find(reference)

    def _told(self, lookup: Lookup, found: Found, padded: bool) -> str | None:
        """Return how the planner is told a column, None where it understands the text as it is."""
        source, name, fold = found.source, found.name, self.scope.fold
        if name in source.computed:
            if source is lookup.source:
                return self.computed(source, name, lambda n: f"{quote(source.alias)}.{quote(n)}", padded=padded)
            return self.computed(source, name, self._over("left", source), padded=True)
        if source is lookup.source:
            clear = found.qualifier is not None or not any(
                fold(other) == fold(name) for s in self.scope.sources if s is not source for other in s.columns.values()
            )
            return None if clear else f"{quote(source.alias)}.{quote(name)}"
        here = source.columns[name]
        names = {fold(n) for s in self.scope.sources for n in s.columns.values() if s is not lookup.source}
        nested = found.qualifier is not None and fold(self.query.statement[found.qualifier].strip("`")) in names
        bare = found.qualifier is None and self.scope.column(lookup.source, name) is not None
        return None if fold(here) == fold(name) and not nested and not bare else f"left.{quote(here)}"

    def left(self, node: exp.Expr) -> str:
        """Return an expression over the left side, such as a function's argument, as SQL over its DataFrame."""
        edits = []
        for reference in references(node):
            found = self.scope.find(reference)
            if found is None:
                raise self._unknown(reference)
            source, name = found.source, found.name
            if name in source.computed:
                text = self.computed(source, name, self._over("left", source), padded=True)
            else:
                text = f"left.{quote(source.columns[name])}"
            edits.append(Edit(found.span, text))
        return self.query.edits.text(span_of(node), edits)

    # ── over the view ────────────────────────────────────────────────────────────────────────────────────

    def item(self, source: Source, name: str) -> str:
        """Return a column as an item of a select list, under its own name."""
        if name in source.computed:
            return f"{self.computed(source, name, self._over(str(self.view), source), padded=True)} AS {quote(name)}"
        here = source.columns[name]
        return f"{self.view}.{quote(here)}" + ("" if here == name else f" AS {quote(name)}")

    def edits(self, found: Sequence[Reference]) -> list[Edit]:
        """Return what references become over the view that the joins so far gave."""
        edits: list[Edit] = []
        for reference in found if self.view is not None else ():
            if reference.is_star:
                edits += self._star_edits(reference)
                continue
            one = self.scope.find(reference)
            if one is not None and (text := self._over_view(one)) is not None:
                edits.append(Edit(one.span, text))
        return edits

    def _star_edits(self, reference: Reference) -> Iterator[Edit]:
        source = self.scope.stars(reference)
        if source is not None and reference.node.parent is not self.select:
            names = ", ".join(self.item(source, name).split(" AS ")[0] for name in source.names)
            yield Edit(span_of(reference.node), names)

    def _over_view(self, found: Found) -> str | None:
        source, name = found.source, found.name
        if name in source.computed:
            return self.computed(source, name, self._over(str(self.view), source), padded=True)
        here, written = source.columns[name], self.query.statement[found.written]
        same = self.scope.fold(here) == self.scope.fold(name)
        if found.qualifier is None and same:
            return None
        return f"{self.view}.{written if same else quote(here)}"

    # ── computed columns ─────────────────────────────────────────────────────────────────────────────────

    def computed(self, source: Source, name: str, column: Callable[[str], str], *, padded: bool) -> str:
        """Return a computed column over the columns that it reads, which ``column`` spells.

        Where rows may be ``padded``, made up by an outer join, it is null in those.
        """
        sql, read = source.computed[name], columns_of(source.computed[name])
        edits = Edits(sql)
        for part in read:
            if (known := self.scope.column(source, part.name)) is not None:
                edits.replace(name_span(part.this), column(known))
        text = edits.text(Span(0, len(sql)))
        if source.witness is None or not padded:
            return f"({text})"
        return f"(CASE WHEN {column(source.witness)} IS NOT NULL THEN {text} END)"

    def _over(self, relation: str, source: Source) -> Callable[[str], str]:
        return lambda known: f"{relation}.{quote(source.columns[known])}"

    def _unknown(self, reference: Reference) -> LookupCacheError:
        names = [part.name for part in reference.names]
        known = [f"{source.alias}.{name}" for source in self.scope.sources if source.visible for name in source.names]
        span = Span(name_span(reference.names[0]).start, name_span(reference.names[-1]).end)
        return SchemaError(
            f"There is no column {'.'.join(names)!r}.",
            hint=nearest(".".join(names), known, what="columns"),
            place=self.query.statement.place(span),
        )


def columns_of(sql: str) -> list[exp.Column]:
    """Return the columns that an expression reads, in the order of the text.

    >>> [column.name for column in columns_of("upper(name) || zip")]
    ['name', 'zip']
    """
    found = sqlglot.parse_one(sql, read="spark").find_all(exp.Column)
    return sorted(found, key=lambda column: name_span(column.this).start)
