"""Conditions of lookups: the conjuncts of ON and WHERE as trees for the planner.

Each name of a conjunct is bound to a relation's column, which is one of the left DataFrame or of the lookup table. The
planner resolves no names. Columns without a name in the statement get a qualifier: inputs of computed
columns, and columns of the left DataFrame that Spark evaluates for the condition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from lookupcache.errors import LookupCacheError
from lookupcache.expr import Side
from lookupcache.planner.clauses import WORD_CALLS, common_spans, conjunct_spans, tokens, unwrap, without_comments
from lookupcache.planner.condition import BoundConjunct, read_nested
from lookupcache.planner.naming import Fragment, Names, VisibleColumns, left_qualifier
from lookupcache.schema import quote
from lookupcache.spark.forms.join_context import left_column
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import Frame, computed_sql
from lookupcache.sql.lookups import Lookup, time_span
from lookupcache.sql.query import Query
from lookupcache.sql.reads import unread_names
from lookupcache.sql.scope import Bound, Name, Relation, Scope, names_in, naming_edits, with_columns
from lookupcache.sql.text import Span
from lookupcache.sql.token_reader import QUERIES


@dataclass(frozen=True, eq=False)
class Conjunct:
    """A conjunct of a condition: its text, the names in it, and its parts that only Spark can evaluate.

    ``foreign`` parts are parameters, variant paths and names that IDENTIFIER computes. ``has_query`` says that it has a
    sub-query, or text that the parser has not read.
    """

    span: Span
    names: Sequence[Name]
    foreign: Sequence[exp.Expr] = ()
    has_query: bool = False


def conjuncts_of(query: Query, node: exp.Expr | None) -> list[Conjunct]:
    """Return the conjuncts of a condition."""
    if node is None or (isinstance(node, exp.Boolean) and node.this):  # the parser adds TRUE, which stands nowhere
        return []
    span = span_of(node)
    unread = query.unread_in(span)
    names = [*names_in(node, query.fold), *(unread_names(query) if unread else ())]
    foreign = list(_foreign(node))
    queries = [one.start for one in (*map(span_of, node.find_all(exp.Query)), *unread)]
    found = []
    for start, end in conjunct_spans(query.statement[span]):
        part = Span(span.start + start, span.start + end)
        inside = [name for name in names if part.start <= name.start < part.end]
        own = [one for one in foreign if part.holds(span_of(one))]
        found.append(Conjunct(part, inside, own, any(part.start <= start < part.end for start in queries)))
    return found


def time_part(query: Query, version: exp.Version) -> Conjunct:
    """Return the time of an as-of join, as a conjunct."""
    return part_of(query, version.expression, time_span(query, version))


def part_of(query: Query, node: exp.Expr, span: Span) -> Conjunct:
    """Return the part of an expression at a span, as a conjunct."""
    names = [name for name in names_in(node, query.fold) if span.holds(name.span)]
    foreign = [one for one in _foreign(node) if span.holds(span_of(one))]
    queries = [one for one in node.find_all(exp.Query) if span.holds(span_of(one))]
    return Conjunct(span, names, foreign, bool(queries or query.unread_in(span)))


def pieces_for_spark(part: Conjunct, scope: Scope) -> list[Span]:
    """Return the spans of an expression over the left side that Spark evaluates before the join.

    Those are parts that only Spark can evaluate, and names that are not in ``scope``, as those of session variables.
    """
    if part.has_query:
        return [part.span]
    return list(dict.fromkeys([*map(span_of, part.foreign), *(name.span for name in unknown_names(part, scope))]))


def unknown_names(part: Conjunct, scope: Scope) -> list[Name]:
    """Return the names of a conjunct that belong to no relation of a scope."""
    inside = [span_of(one) for one in part.foreign]
    own = [name for name in part.names if not any(span.holds(name.spans[0]) for span in inside if name.spans)]
    return [name for name in own if scope.bind(name) is None and not is_call(name)]


def common_conjuncts(query: Query, parts: Sequence[Conjunct]) -> list[Conjunct]:
    """Return the conjuncts that all operands of an OR have, which are true where the OR is: keys may be among them."""
    found = []
    for part in (one for one in parts if not query.unread_in(one.span)):
        for start, end in common_spans(query.statement[part.span], query.fold):
            span = Span(part.span.start + start, part.span.start + end)
            foreign = any(span.holds(span_of(one)) for one in part.foreign)
            words = {token.text for token in tokens(query.statement[span]) if token.kind == "word"}
            if not foreign and not (part.has_query and words & set(QUERIES)):
                found.append(Conjunct(span, [name for name in part.names if span.start <= name.start < span.end]))
    return found


def _foreign(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the outermost parameters, variant paths and calls of IDENTIFIER of an expression."""
    called = isinstance(node, exp.Anonymous) and node.name.upper() == "IDENTIFIER"
    if called or isinstance(node, exp.Placeholder | exp.Parameter | exp.JSONExtract):
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
    """Binds the names in the conditions of a lookup, and returns the conditions as trees for the planner."""

    def __init__(
        self,
        query: Query,
        frame: Frame,
        lookup: Lookup,
        given: Mapping[str, str] | None = None,
        extras: Mapping[Span, str] | None = None,
    ) -> None:
        self.query = query
        self.frame = frame
        self.lookup = lookup
        self._given = given or {}
        """The left columns with the values of parameters and session variables of queries over a table, by SQL."""
        self._extras = extras or {}
        """The columns of the left DataFrame that Spark has computed from parts of the condition and the time."""
        self._computed: dict[str, str] = {}
        """The computed columns of conditions as the statement names them, by the SQL in their place."""
        left, right = list(frame.relations), [lookup.relation]
        self.left_scope = Scope([left], query.fold)
        self.on_scope = Scope([right, left] if lookup.scalar else [[*left, *right]], query.fold)
        keeps = lookup.how in ("inner", "left") and not lookup.scalar
        self.where_scope = Scope([[*left, *right] if keeps else left], query.fold)
        aliases = [lookup.relation.alias, *(one.alias for one in frame.relations)]
        self._left = left_qualifier([*aliases, *(field.name for field in frame.df.schema.fields)])

    def on(self, conjunct: Conjunct) -> BoundConjunct:
        """Return a conjunct of ON."""
        return self._bind(self.on_scope, conjunct, False)

    def where(self, conjunct: Conjunct, aliases: Collection[str]) -> BoundConjunct | None:
        """Return a conjunct of WHERE; None if it reads relations that are joined later.

        ``aliases`` are those of all relations of the SELECT: one that is joined later comes before a struct.
        """
        if conjunct.has_query or conjunct.foreign or not conjunct.names:
            return None
        bound = [self.where_scope.bind(name) for name in conjunct.names]
        later = {self.query.fold(alias) for alias in aliases}
        later -= {self.query.fold(one.alias) for one in self.where_scope.relations}
        if any(len(name.parts) > 1 and self.query.fold(name.parts[0]) in later for name in conjunct.names):
            return None
        right, marks = self.lookup.relation, self.lookup.marks
        if any(one is None or (one.relation is right and one.column in marks) for one in bound):
            return None
        return self._bind(self.where_scope, conjunct, self.lookup.how == "left")

    def pieces_of_time(self, version: exp.Version) -> list[Span]:
        """Return the spans of the time of an as-of join that Spark evaluates; the planner refuses the table's names."""
        known = Scope([*self.left_scope.groups, [self.lookup.relation]], self.query.fold)
        return pieces_for_spark(time_part(self.query, version), known)

    def as_of(self, version: exp.Version) -> Fragment:
        """Return the time of an as-of join, whose names are those of the relations before the lookup."""
        return self._bind(self.left_scope, time_part(self.query, version), False).fragment

    def key(self, sql: str) -> BoundConjunct:
        """Return a conjunct that is SQL over the left DataFrame and the table already."""
        return read_nested(self._visible_columns(), sql)

    def of_source(self) -> list[BoundConjunct]:
        """Return the conditions of the query over one table that is looked up."""
        source, relation = self.lookup.source, self.lookup.relation
        names: dict[tuple[str, ...], tuple[Side, str, int]] = {}

        def spell(name: str) -> str | None:
            if name in relation.outside:
                return self._outside(relation.outside[name], names)
            stored = relation.stored(name)
            if stored is not None:
                names[relation.alias, stored] = "right", stored, 1
            return None if stored is None else f"{quote(relation.alias)}.{quote(stored)}"

        texts = [] if source is None else [with_columns(sql, spell, self.query.fold) for sql in source.conditions]
        return [read_nested(self._visible_columns(names), self.query.settings.readable(text)) for text in texts]

    def pair(self, left: tuple[Relation, str], right: str) -> BoundConjunct:
        """Return the equality of columns of both sides, which may be computed ones."""
        names: dict[tuple[str, ...], tuple[Side, str, int]] = {}
        sides = [self._spell(Bound(*key, Span(0, 0)), False, names) for key in (left, (self.lookup.relation, right))]
        return read_nested(self._visible_columns(names), " = ".join(sides))

    def unknown(self, conjunct: Conjunct) -> list[Name]:
        """Return the names of a conjunct that belong to neither side."""
        return unknown_names(conjunct, self.on_scope)

    def read_outside(self, names: Sequence[Name]) -> list[str]:
        """Return the SQL of the parameters and session variables that columns of these names, and the source, read."""
        fold, source = self.query.fold, self.lookup.source
        read = {fold(part) for part in (*self.lookup.using, *(part for name in names for part in name.parts))}
        texts = [(self.lookup.relation, sql) for sql in (() if source is None else source.conditions)]
        for one in (*self.frame.relations, self.lookup.relation):
            texts += [(one, sql) for name, sql in one.computed.items() if fold(name) in read]
        return list(dict.fromkeys(given for one, sql in texts for given in one.read_outside(sql)))

    def reads_table(self, names: Sequence[Name]) -> bool:
        """Return whether one of these names belongs to the table; names in inner queries do not count."""
        bound = [self.on_scope.bind(name) for name in names if not name.nested]
        return any(one is not None and one.relation is self.lookup.relation for one in bound)

    def left_column(self, name: str) -> str:
        """Return a column of the left DataFrame as SQL for the planner."""
        return f"{self._left}.{quote(name)}"

    def as_written(self, error: LookupCacheError) -> LookupCacheError:
        """Return an error with parameters, session variables and computed columns as the statement has them."""
        texts = dict(self._computed)  # first, since they may read parameters and variables
        texts |= {self.left_column(column): self.query.statement[span] for span, column in self._extras.items()}
        texts |= {self.left_column(column): sql for sql, column in self._given.items()}

        def shown(text: str) -> str:
            for sql, written in texts.items():
                text = text.replace(sql, written)
            return text

        if not texts:
            return error
        return error.rewritten(shown(error.fact), None if error.hint is None else shown(error.hint), error.position)

    # ── trees ────────────────────────────────────────────────────────────────────────────────────────────

    def _visible_columns(self, names: Names | None = None) -> VisibleColumns:
        return VisibleColumns(
            [left_column(field) for field in self.frame.df.schema.fields],
            self.lookup.table.name,
            self.lookup.table.schema,
            settings=self.query.settings,
            bound=names,
        )

    def _bind(self, scope: Scope, conjunct: Conjunct, padded: bool) -> BoundConjunct:
        replaced = {span: column for span, column in self._extras.items() if conjunct.span.holds(span)}
        names: dict[tuple[str, ...], tuple[Side, str, int]] = {
            (self._left, column): ("left", column, 1) for column in replaced.values()
        }
        edit = naming_edits(self.query.statement, conjunct.span)
        edits = [edit(span, self.left_column(column)) for span, column in replaced.items()]
        for name in conjunct.names:
            bound = None if any(span.holds(name.spans[0]) for span in replaced) else scope.bind(name)
            if bound is None:
                continue
            if bound.column in bound.relation.computed:
                sql = self._spell(bound, padded, names)
                self._computed[sql] = self.query.statement[bound.span]
                edits.append(edit(bound.span, sql))
            else:
                position = [span.end for span in name.spans].index(bound.span.end)
                names[name.parts] = *self._side_and_column(bound.relation, bound.column), position
        text = without_comments(self.query.settings.readable(self.query.edits.text(conjunct.span, edits)))
        with self.query.statement.located(conjunct.span):
            return read_nested(self._visible_columns(names), text)

    def _side_and_column(self, relation: Relation, column: str) -> tuple[Side, str]:
        if relation is self.lookup.relation:
            return "right", column
        return "left", self.frame.columns[relation, column]

    def _spell(self, bound: Bound, padded: bool, names: dict[tuple[str, ...], tuple[Side, str, int]]) -> str:
        """Return a column, which may be a computed one, as SQL; add the columns that it names."""
        relation, name = bound.relation, bound.column
        own = relation is self.lookup.relation

        def spell(column: str) -> str:
            side, here = self._side_and_column(relation, column)
            qualifier = relation.alias if own else self._left
            names[qualifier, here] = side, here, 1
            return f"{quote(qualifier)}.{quote(here)}"

        if name not in relation.computed:
            return spell(name)
        match_column = self.lookup.match_column if own else self.frame.match_columns.get(relation)
        match_column = match_column if padded or not own else None
        return computed_sql(relation, name, spell, match_column, lambda sql: self._outside(sql, names))

    def _outside(self, sql: str, names: dict[tuple[str, ...], tuple[Side, str, int]]) -> str:
        """Return a parameter or session variable of a query over a table as SQL; add the column that has its value."""
        column = self._given[sql]
        names[self._left, column] = "left", column, 1
        return self.left_column(column)


def is_call(name: Name) -> bool:
    """Return whether a name is a keyword that calls a function."""
    return len(name.parts) == 1 and name.parts[0].lower() in WORD_CALLS
