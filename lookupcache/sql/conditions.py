"""Conditions of lookups: the conjuncts of ON and WHERE as SQL for the planner.

A conjunct reaches the planner as it was written where the planner binds each of its names as Spark does. Where it would
not, every name is qualified: ``left.`x` `` for a column of the left DataFrame, the table's name for one of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from lookupcache.errors import LookupCacheError
from lookupcache.planner import LeftColumn
from lookupcache.planner.clauses import WORD_CALLS, conjunct_spans, tokens, unwrap
from lookupcache.planner.naming import Scope as ConditionScope
from lookupcache.schema import quote
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import Frame, computed_sql
from lookupcache.sql.lookups import Lookup
from lookupcache.sql.query import Query
from lookupcache.sql.scope import Bound, Name, Relation, Scope, names_in
from lookupcache.sql.text import Edit, Span


@dataclass(frozen=True, eq=False)
class Conjunct:
    """A conjunct of a condition: its text, the names in it, and its parts that only Spark can evaluate.

    ``foreign`` parts are sub-queries, parameters and variant paths; ``is_closed`` says that it has a query that is no
    operand.
    """

    span: Span
    names: Sequence[Name]
    foreign: Sequence[exp.Expr] = ()
    is_closed: bool = False


def conjuncts_of(query: Query, node: exp.Expr | None) -> list[Conjunct]:
    """Return the conjuncts of a condition."""
    if node is None or isinstance(node, exp.Boolean):  # the parser adds TRUE, which stands nowhere
        return []
    span, names = span_of(node), names_in(node)
    foreign = list(_foreign(node))
    closed = [span_of(one).start for one in node.find_all(exp.Exists, exp.In) if one.find(exp.Query)]
    found = []
    for start, end in conjunct_spans(query.statement[span]):
        part = Span(span.start + start, span.start + end)
        inside = [name for name in names if part.start <= name.start < part.end]
        own = [one for one in foreign if part.holds(span_of(one))]
        # A query that is no operand, as of EXISTS and IN, has no separate span.
        queries = [one for one in node.find_all(exp.Select) if part.start <= span_of(one).start < part.end]
        covered = all(any(span_of(o).holds(span_of(q)) for o in own) for q in queries)
        is_closed = not covered or any(part.start <= start < part.end for start in closed)
        found.append(Conjunct(part, inside, own, is_closed))
    return found


def _foreign(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the outermost scalar sub-queries, parameters and variant paths of an expression."""
    if isinstance(node, exp.Subquery | exp.Placeholder | exp.Parameter | exp.JSONExtract):
        yield node
        return
    for inner in node.iter_expressions():
        yield from _foreign(inner)


def in_parentheses(text: str) -> str:
    """Return a conjunct that can be combined with others by AND.

    >>> in_parentheses("a OR b"), in_parentheses("(a OR b)"), in_parentheses("a AND b")
    ('(a OR b)', '(a OR b)', 'a AND b')
    """
    words = [token.text for token in tokens(text) if token.kind == "word" and token.depth == 0]
    return f"({text})" if "OR" in words and unwrap(text) == text else text


class Conditions:
    """Resolves the names in the conditions of a lookup, and writes the conditions as SQL for the planner."""

    def __init__(self, query: Query, frame: Frame, lookup: Lookup) -> None:
        self.query = query
        self.frame = frame
        self.lookup = lookup
        left, right = list(frame.relations), [lookup.relation]
        self.on_scope = Scope([right, left] if lookup.scalar else [[*left, *right]], query.fold)
        keeps = lookup.how in ("inner", "left") and not lookup.scalar
        self.where_scope = Scope([[*left, *right] if keeps else left], query.fold)
        fields = frame.df.schema.fields
        self._left = _left_qualifier(lookup.relation.alias, [field.name for field in fields])
        self._planner = ConditionScope(
            [LeftColumn(field.name, field.dataType.simpleString()) for field in fields],
            lookup.table.name,
            lookup.table.schema,
            case_sensitive=query.fold is str,
            settings=query.settings,
        )

    def on(self, conjunct: Conjunct, replaced: Sequence[Edit] = ()) -> str:
        """Return a conjunct of ON as SQL over the two sides."""
        return self._sql(self.on_scope, conjunct, False, replaced)

    def where(self, conjunct: Conjunct, aliases: Collection[str]) -> str | None:
        """Return a conjunct of WHERE as SQL over the two sides; None if it reads relations that are joined later.

        ``aliases`` are those of all relations of the SELECT: one that is joined later comes before a struct.
        """
        if conjunct.is_closed or conjunct.foreign or not conjunct.names:
            return None
        bound = [self.where_scope.bind(name) for name in conjunct.names]
        later = {self.query.fold(alias) for alias in aliases}
        later -= {self.query.fold(one.alias) for one in self.where_scope.relations}
        if any(len(name.parts) > 1 and self.query.fold(name.parts[0]) in later for name in conjunct.names):
            return None
        right = self.lookup.relation
        if any(one is None or (one.relation is right and one.column in self.lookup.marks) for one in bound):
            return None
        return self._sql(self.where_scope, conjunct, self.lookup.how == "left", ())

    def unknown(self, conjunct: Conjunct) -> list[Name]:
        """Return the names of a conjunct that belong to neither side."""
        inside = [span_of(part) for part in conjunct.foreign]
        own = [n for n in conjunct.names if not any(span.holds(n.spans[0]) for span in inside if n.spans)]
        return [name for name in own if self.on_scope.bind(name) is None and not _is_call(name)]

    def reads_table(self, names: Sequence[Name]) -> bool:
        """Return whether one of these names belongs to the table; names in inner queries do not count."""
        bound = [self.on_scope.bind(name) for name in names if not name.nested]
        return any(one is not None and one.relation is self.lookup.relation for one in bound)

    def left_column(self, name: str) -> str:
        """Return a column of the left DataFrame as SQL for the planner."""
        return f"{self._left}.{quote(name)}"

    def column(self, relation: Relation, name: str) -> str:
        """Return a column of either side, which may be a computed one, as SQL for the planner."""
        return self._spell(Bound(relation, name, Span(0, 0)), False, self._left)

    def _sql(self, scope: Scope, conjunct: Conjunct, padded: bool, replaced: Sequence[Edit]) -> str:
        inside = [edit.span for edit in replaced]
        names = [name for name in conjunct.names if not any(span.holds(name.spans[0]) for span in inside)]
        bound = [one for name in names if (one := scope.bind(name)) is not None]
        written = self.query.edits.text(conjunct.span, replaced)
        if not replaced and self._is_read_alike(written, conjunct.span.start, bound):
            return written
        edits = [Edit(one.span, self._spell(one, padded, self._left)) for one in bound]
        return self.query.edits.text(conjunct.span, [*replaced, *edits])

    def _is_read_alike(self, text: str, start: int, bound: Sequence[Bound]) -> bool:
        """Return whether the planner resolves each name of the text to the same column."""
        if any(one.column in one.relation.computed for one in bound):
            return False
        try:
            found = self._planner.read(text).references.values()
        except LookupCacheError:
            return False
        ours = {(one.span.start - start, one.span.end - start): self._side_and_column(one) for one in bound}
        return ours == {(one.start, one.end): (one.side, one.name) for one in found}

    def _side_and_column(self, bound: Bound) -> tuple[str, str]:
        if bound.relation is self.lookup.relation:
            return "right", bound.column
        return "left", self.frame.columns[bound.relation, bound.column]

    def _spell(self, bound: Bound, padded: bool, left: str) -> str:
        relation, name = bound.relation, bound.column
        own = relation is self.lookup.relation

        def spell(column: str) -> str:
            here = column if own else self.frame.columns[relation, column]
            return f"{quote(relation.alias) if own else left}.{quote(here)}"

        if name not in relation.computed:
            return spell(name)
        match_column = self._match_column(relation) if padded or not own else None
        return computed_sql(relation, name, spell, match_column)

    def _match_column(self, relation: Relation) -> str | None:
        if relation is self.lookup.relation:
            return self.lookup.match_column
        return self.frame.match_columns.get(relation)


def _is_call(name: Name) -> bool:
    """Return whether a name is a keyword that calls a function."""
    return len(name.parts) == 1 and name.parts[0].lower() in WORD_CALLS


def _left_qualifier(alias: str, columns: Sequence[str]) -> str:
    """Return a qualifier for the left side that is neither the table's name nor a column of the left side."""
    taken = {alias.lower(), *(name.lower() for name in columns)}
    return next(name for name in ("left", "lookup_left", "lookup_left_side", "lookup_left_rows") if name not in taken)
