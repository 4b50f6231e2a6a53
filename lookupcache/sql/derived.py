"""Queries over one lookup table that `FOR SYSTEM_TIME AS OF` reads: views, names of WITH, and queries in parentheses.

    JOIN (SELECT id, upper(name) AS n FROM customers WHERE country = 'AT') FOR SYSTEM_TIME AS OF PROCTIME() AS c

is a lookup in `customers`, whose conditions are those of the query too, and whose columns are those that it selects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from lookupcache.errors import LookupCacheError, PlanError, SchemaError, nearest
from lookupcache.schema import quote, quote_path
from lookupcache.spark.variables import is_session_variable
from lookupcache.sql.catalog import SqlTable, empty_table
from lookupcache.sql.conditions import Conjunct, conjuncts_of, is_call
from lookupcache.sql.dialect import OF_A_QUERY, name_span, span_of
from lookupcache.sql.from_clause import stored_column
from lookupcache.sql.hints import table_options
from lookupcache.sql.lookups import is_present, is_temporal, relation_of
from lookupcache.sql.masks import pipes_of
from lookupcache.sql.query import Query, query_of
from lookupcache.sql.scope import Name, Relation, Scope, names_in, naming_edits, part_of_rows
from lookupcache.sql.text import Edit, Span, Statement, with_spark_time

_READ = {"expressions", "from_", "where", "with_", "hint", "order", "sort", "cluster", "distribute", "kind"}
"""The parts of a query over one table that keep it a lookup; an order of rows means nothing in a relation."""
_CALLED = {"group": "GROUP BY", "laterals": "LATERAL VIEW", "pivots": "PIVOT", "sample": "TABLESAMPLE"}


def add_derived(query: Query) -> None:
    """Find the queries over one lookup table that are looked up; from now on they are lookup tables of the query.

    Raises PlanError for one that does more than filter and select.
    """
    for node in query.find(exp.Table):
        if not is_temporal(node) or query.table_of(node) is not None or not isinstance(node.this, exp.Identifier):
            continue
        with query.statement.located(span_of(node)):
            found = _table_of(query, node)
        if found is not None:
            query.stand_ins[name_span(node.this).start] = found


def _table_of(query: Query, node: exp.Table) -> SqlTable | None:
    """Return the lookup table behind a view, a name of WITH or a query; None where it reads no lookup table."""
    named = query.relations.get(name_span(node.this).start)
    if named is not None and named.query is not None:
        if pipes_of(named.query.tokens):
            raise _refusal("it has pipes")
        inner = query_of(query.context, named.query, args=query.args)
        inner.put_inside(query, node)
        found = table_of_query(inner, inner.tree)
        if found is None:
            raise _refusal("it reads no lookup table")
        _analyze(inner)
        return found
    known = query.definition_of(node)
    if known is not None:
        own, cte = known
        if any(cte is one for one in _ancestors(node)):  # a recursive one
            return None
        return table_of_query(own, cte.this, [column.name for column in cte.args["alias"].columns])
    return None if node.args.get("db") else query.context.catalog.view(query.context.spark, node.name)


def _analyze(query: Query) -> None:
    """Raise Spark's error about a query behind FOR SYSTEM_TIME AS OF, of which it never gets the text otherwise."""
    for node in query.nodes:
        if isinstance(node, exp.Table):
            known = query.definition_of(node)
            is_outside = known is not None and known[0] is not query
            table = _table_of(query, node) if is_outside else query.table_of(node)
            if table is not None:
                alias = "" if node.alias else f" AS {quote(node.name)}"
                query.analysis.replace(name_span(node.this), f"({empty_table(table)}){alias}")
        elif isinstance(node, exp.Anonymous) and node.name.upper() == "PROCTIME" and is_present(node):
            query.analysis.replace(span_of(node), "current_timestamp()")
    for span in _table_hints(query.statement):
        query.analysis.replace(span, "")
    _ = query.schema


def _table_hints(statement: Statement) -> Iterator[Span]:
    """Yield the OPTIONS hints behind tables, where Spark has none."""
    found, length = statement.tokens, statement.span.end - statement.span.start
    for before, start in zip(found, [*(token.start for token in found[1:]), length], strict=True):
        gap = statement.span_within(before.end, start)
        for hint in re.finditer(r"/\*\+\s*OPTIONS\b.*?\*/", statement[gap], re.DOTALL | re.IGNORECASE):
            yield Span(gap.start + hint.start(), gap.start + hint.end())


def table_of_query(query: Query, tree: exp.Expr, names: Sequence[str] = ()) -> SqlTable | None:
    """Return the lookup table behind a query, with other names for its columns; None where it reads no lookup table.

    Raises PlanError for a query that joins, aggregates or computes rows.
    """
    while isinstance(tree, exp.Subquery) and not any(value for name, value in tree.args.items() if name != "this"):
        tree = tree.this
    first = tree.args.get("from_") if isinstance(tree, exp.Select) else None
    source = None if first is None else _source(query, first.this)
    if source is None:
        if any(query.table_of(table) is not None for table in tree.find_all(exp.Table)):
            raise _refusal("it does more than select from one table")
        return None
    _refuse_more(query, tree)
    return _Reading(query, *source).table(tree, names)


def _source(query: Query, node: exp.Expr) -> tuple[str, SqlTable] | None:
    """Return alias and lookup table of a query's first relation; None for another relation."""
    if isinstance(node, exp.Subquery):
        found = table_of_query(query, node.this)
        _refuse_clauses(node, {"this", "alias"})
    elif isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
        found = query.table_of(node)
        base = node.name if found is not None and found.base is None else None
        found = _table_of(query, node) if found is None else replace(found, base=base or found.base)
        if found is not None:
            _refuse_clauses(node, {"this", "alias"})
            hint = table_options(query.statement, span_of(node))
            found = found if hint is None else replace(found, table=found.table.with_options(hint.options()))
    else:
        return None
    alias = node.args.get("alias")
    if found is not None and alias is not None and alias.columns:
        raise _refusal("it has other names for the table's columns")
    return None if found is None else (node.alias or node.name, found)


def _refuse_clauses(node: exp.Expr, known: set[str]) -> None:
    more = next((name for name, value in node.args.items() if value and name not in known), None)
    if more is not None:
        raise _refusal(f"it has {_CALLED.get(more, more.strip('_').upper())}")


def _refuse_more(query: Query, tree: exp.Expr) -> None:
    _refuse_clauses(tree, _READ)
    items = tree.args["expressions"]
    if found := part_of_rows(items):
        raise _refusal(f"it has {found}")
    if any(call.name.upper() == "IDENTIFIER" for item in items for call in item.find_all(exp.Anonymous)):
        raise _refusal("IDENTIFIER computes the name of a column; write the name")
    around = tree.parent  # whose span includes the text behind a pipe
    if query.unread_in(query.statement.span if around is None else span_of(around)):
        raise _refusal("it has a pipe, or an expression that is not supported here")


def _refusal(why: str) -> PlanError:
    return PlanError(f"FOR SYSTEM_TIME AS OF cannot look rows up in this query: {why}.", hint=OF_A_QUERY)


@dataclass(frozen=True)
class _Reading:
    """Reads a SELECT over one lookup table, which has an alias in it."""

    query: Query
    alias: str
    source: SqlTable

    @property
    def relation(self) -> Relation:
        return relation_of(self.alias, self.source, self.query.fold)

    @property
    def scope(self) -> Scope:
        return Scope([[self.relation]], self.query.fold)

    def table(self, select: exp.Expr, names: Sequence[str]) -> SqlTable:
        every, outside = select.args["expressions"], _Outside(self.query, self.source)
        items = [item for number, one in enumerate(every) for item in self._items(one, every[:number], outside)]
        named = self._named(items, names)
        folded = [self.query.fold(name) for name, _ in named]
        if len(set(folded)) < len(folded):
            raise _refusal("two of its columns have the same name")
        where = select.args.get("where")
        conditions = self._conditions([] if where is None else conjuncts_of(self.query, where.this), outside)
        stored = self.source.table.schema.names
        return replace(
            self.source,
            shown=tuple(name for name, _ in named),
            computed={name: sql for name, sql in named if not (name in stored and sql == quote(name))},
            conditions=(*self.source.conditions, *conditions),
            outside=outside.sql,
            key=(),
        )

    # ── columns ──────────────────────────────────────────────────────────────────────────────────────────

    def _items(
        self, item: exp.Expr, before: Sequence[exp.Expr], outside: _Outside
    ) -> Iterator[tuple[str | None, exp.Expr | None, str]]:
        """Yield the columns of an item: the name, None where Spark gives one, the expression, and its SQL.

        The names of items ``before`` it are no session variables.
        """
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            star, parts = (item, []) if isinstance(item, exp.Star) else (item.this, item.parts)
            qualifier = [one.name for one in parts if isinstance(one, exp.Identifier)]
            left_out = star.args.get("except_") or []
            is_of_table = not qualifier or self.relation.is_named(qualifier, self.query.fold)
            if not is_of_table or any(len(one.parts) > 1 for one in left_out):
                raise _refusal("its star means fields of a struct; write the fields")
            without = {self.query.fold(one.name) for one in left_out}
            shown = (one for one in self.relation.column_names if self.query.fold(one) not in without)
            yield from ((one, None, self._column(one)) for one in shown)
            return
        plain = item.unalias()
        name = item.alias or (plain.name if isinstance(plain, exp.Column) else None)
        names, taken = names_in(plain, self.query.fold), {self.query.fold(one.alias) for one in before if one.alias}
        for one in names:
            if one.parts and self.scope.bind(one) is None and self.query.fold(one.parts[0]) in taken:
                raise _refusal(f"it reads {one.parts[0]!r}, the name that another of its columns gets")
        given = list(plain.find_all(exp.Placeholder, exp.Parameter))
        yield name, plain, self._text(span_of(plain), names, given, outside)

    def _column(self, name: str) -> str:
        stored = stored_column(self.relation, name)
        return f"({self.source.computed[name]})" if stored is None else quote(stored)

    def _text(self, span: Span, names: Sequence[Name], given: Sequence[exp.Expr], outside: _Outside) -> str:
        """Return an expression with the given parameters as SQL over the lookup table and names of ``outside``."""
        return with_spark_time(self.query.edits.text(span, self._edits(span, names, given, outside)))

    def _edits(self, span: Span, names: Sequence[Name], given: Sequence[exp.Expr], outside: _Outside) -> Iterator[Edit]:
        edit = naming_edits(self.query.statement, span)
        for one in given:
            yield edit(span_of(one), outside.name(self.query.statement[span_of(one)]))
        for name in names:
            bound = self.scope.bind(name)
            if bound is not None:
                yield edit(bound.span, self._column(bound.column))
            elif name.is_star:
                raise _refusal("it has a star within an expression; write the columns")
            elif not is_call(name):
                yield edit(name.span, outside.name(self._variable(name)))

    def _named(
        self, items: Sequence[tuple[str | None, exp.Expr | None, str]], names: Sequence[str]
    ) -> list[tuple[str, str]]:
        """Return the columns with their names; Spark names those without an alias, and knows which compute rows."""
        nodes = [node for _, node, _ in items]
        written = [quote(str(name)) if node is None else self._written(node) for name, node, _ in items]
        called = [sql for sql, node in zip(written, nodes, strict=True) if node and node.find(exp.Func)]
        if called or (not names and any(name is None for name, _, _ in items)):
            text = f"SELECT {', '.join(written)} FROM ({empty_table(self.source)})"
            found = self.query.sql(text).columns
            self._refuse_rows(text, called)
            items = [(name or known, node, sql) for (name, node, sql), known in zip(items, found, strict=True)]
        if names and len(names) != len(items):
            raise _refusal("it has another number of columns than names for them")
        given = names or [str(name) for name, _, _ in items]
        return [(name, sql) for name, (_, _, sql) in zip(given, items, strict=True)]

    def _refuse_rows(self, text: str, called: Sequence[str]) -> None:
        """Raise PlanError for calls of aggregates and generators, which Spark does not allow in WHERE."""
        if called:
            try:
                self.query.sql(f"{text} WHERE {' AND '.join(f'({sql}) IS NULL' for sql in called)}")
            except LookupCacheError:
                raise _refusal("it aggregates rows, or makes several of one") from None

    def _written(self, node: exp.Expr) -> str:
        """Return an expression as the user wrote it, but for the qualifiers of the table's columns."""
        span, edits = span_of(node), []
        for name in names_in(node, self.query.fold):
            bound = self.scope.bind(name)
            if bound is not None:
                own = next(part for part, one in zip(name.parts, name.spans, strict=True) if one.end == bound.span.end)
                edits.append(Edit(bound.span, quote(own)))
        return with_spark_time(self.query.edits.text(span, edits))

    # ── conditions ───────────────────────────────────────────────────────────────────────────────────────

    def _conditions(self, parts: Sequence[Conjunct], outside: _Outside) -> list[str]:
        """Return conditions as SQL over the table's columns and names of ``outside``."""
        texts = []
        for part in parts:
            if part.has_query or any(not isinstance(one, exp.Placeholder | exp.Parameter) for one in part.foreign):
                raise _refusal("its condition has a sub-query, or the path of a variant")
            texts.append(f"({self._text(part.span, part.names, part.foreign, outside)})")
        return texts

    def _variable(self, name: Name) -> str:
        """Return the name of a session variable, or of a field of one, with its schema: it cannot mean a column."""
        qualifiers = ["system", "session"]
        parts = [part.lower() for part in name.parts[:-1]]
        start = next((n for n in (2, 1) if parts[:n] == qualifiers[-n:]), 0)
        sql = f"system.session.{quote_path(name.parts[start:])}"
        hidden = self.relation.column("system", str.lower) is not None  # It would be a field of that column.
        if hidden or not is_session_variable(self.query.context.spark, sql):
            raise SchemaError(
                f"{'.'.join(name.parts)!r} is no column of {self.alias!r}.",
                hint=nearest(name.parts[-1], self.relation.column_names, what="columns"),
                position=self.query.statement.position(name.span),
            )
        return sql


@dataclass(frozen=True)
class _Outside:
    """The names that stand for parameters and session variables in the SQL of a table, and their SQL."""

    query: Query
    source: SqlTable
    sql: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sql", dict(self.source.outside))

    def name(self, sql: str) -> str:
        """Return the name that stands for SQL, which is added if it has no name yet."""
        known = next((name for name, given in self.sql.items() if given == sql), None)
        name = known or self.query.unused(f"lookup_given{len(self.sql)}", self.source.table.schema.names)
        self.sql[name] = sql
        return name


def unread_definitions(query: Query) -> list[exp.CTE]:
    """Return the names of WITH that are only looked up, whose queries Spark need not run."""
    unread: list[exp.CTE] = []
    every = query.find(exp.CTE)
    while True:
        more = [cte for cte in every if not any(cte is one for one in unread) and not _is_read(query, cte, unread)]
        if not more:
            return unread
        unread += more


def _is_read(query: Query, cte: exp.CTE, unread: Sequence[exp.CTE]) -> bool:
    """Return whether a query reads a name of WITH, apart from lookups and unused names."""
    name, hidden = query.fold(cte.alias), [cte, *unread]
    words = {query.fold(word.name) for span in query.masked for word in query.statement.part(*span).tokens}
    tables = [one for one in query.find(exp.Table) if query.fold(one.name) == name]
    computed = "IDENTIFIER" in query.statement.sql.upper()  # of which Spark alone knows the names
    return computed or name in words or any(_reads(query, one, hidden) for one in tables)


def _reads(query: Query, table: exp.Table, hidden: Sequence[exp.CTE]) -> bool:
    if is_temporal(table) and query.table_of(table) is not None:
        return False
    return not any(one is cte for one in _ancestors(table) for cte in hidden)


def _ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    while (above := node.parent) is not None:
        yield above
        node = above
