"""One SELECT: its lookups joined one after the other, and its text rewritten over what they gave.

FROM … JOIN … ─► relation ─► lookup ─► relation ─► lookup ─► … ─► SELECT … FROM the last one's view …
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from sqlglot import exp

from lookupcache.errors import LookupCacheError, PlanError
from lookupcache.planner.clauses import equality
from lookupcache.schema import quote
from lookupcache.spark.join import LookupJoin
from lookupcache.sql.dialect import span_of
from lookupcache.sql.hints import Hints
from lookupcache.sql.laterals import call_lookup, called
from lookupcache.sql.lookups import Lookup, is_temporal, table_lookup
from lookupcache.sql.naming import spark_names
from lookupcache.sql.query import Query
from lookupcache.sql.relation import Relation, fresh_of, refuse_loose_ends
from lookupcache.sql.scalars import Scalar, scalar_lookup
from lookupcache.sql.scope import Reference, Scope, Source, references
from lookupcache.sql.spelling import Spelling, columns_of
from lookupcache.sql.text import Span
from lookupcache.sql.where import Where, grouped


class SelectRewriting:
    """Rewrites one SELECT of a query, which has the lookups ``scalars``, or some in its FROM."""

    def __init__(self, query: Query, select: exp.Select, scalars: Sequence[Scalar]) -> None:
        self.query = query
        self.select = select
        self.scalars = list(scalars)
        self.statement = query.statement
        self.scope = Scope(query.statement, query.fold)
        self.joins: list[exp.Join] = list(select.args.get("joins") or [])
        self.hints = Hints(query.statement, select)
        self.relation = Relation(query, self.scope, query.with_text(select))
        self.spelling = Spelling(query, self.scope, select)
        self.where = Where(query, self.scope, self.spelling, select)
        self.looked_up: list[Lookup] = []
        self.functions: list[str] = []
        self.texts: dict[str, Span] = {}
        self.done: list[tuple[Scalar, Source]] = []

    def run(self) -> None:
        """Join what is to be joined, and edit the text."""
        if not self.scalars and not any(self._is_lookup(join) for join in self.joins):
            self._refuse_first()
            return
        self._refuse_first()
        self._refuse_pivot()
        self._begin()
        for number, join in enumerate(self.joins):
            self._joined(number, join)
        for number, scalar in enumerate(self.scalars):
            self._scalar(scalar, self.scalars[number + 1 :])
        self._finish()

    # ── the joins in their order ─────────────────────────────────────────────────────────────────────────

    def _is_lookup(self, join: exp.Join) -> bool:
        return self._table(join.this) is not None or called(self.query, join.this) is not None

    def _table(self, node: exp.Expr) -> Any:
        return self.query.table_of(node) if is_temporal(node) else None

    def _refuse_first(self) -> None:
        """Refuse a lookup that has nothing on its left, or that stands in parentheses with other joins."""
        relations = [join.this for join in self.joins]
        first = self.select.args.get("from_")
        for node in [*([first.this] if first else []), *relations]:
            inner = [join.this for join in node.args.get("joins") or []]
            if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
                inner += [node.this, *(join.this for join in node.this.args.get("joins") or [])]
            if first is not None and node is first.this:
                inner.append(node)
            for one in inner:
                if self._table(one) is not None or (called(self.query, one) is not None):
                    raise PlanError(
                        "A lookup needs a relation on its left.",
                        hint="Write it as a join behind another relation: FROM orders AS o JOIN … ON …. Without FOR "
                        "SYSTEM_TIME AS OF a table is read whole.",
                        place=self.statement.place(span_of(one)),
                    )

    def _refuse_pivot(self) -> None:
        """Refuse PIVOT, which reads columns that it does not name."""
        pivots = [pivot for pivot in self.select.find_all(exp.Pivot) if pivot.find_ancestor(exp.Select) is self.select]
        if pivots:
            raise PlanError(
                "PIVOT and UNPIVOT cannot stand in a SELECT with lookups.",
                hint="Put the lookups in a sub-query: SELECT … FROM (SELECT … JOIN …) PIVOT (…).",
                place=self.statement.place(span_of(self.joins[-1]) if self.joins else span_of(self.select)),
            )

    def _begin(self) -> None:
        first = self.select.args.get("from_")
        if first is not None:
            self.relation.text = self.query.edits.text(span_of(first.this))
            self.relation.fresh = list(fresh_of(first.this))

    def _joined(self, number: int, join: exp.Join) -> None:
        if not self._is_lookup(join):
            self._beside(join)
            return
        frame = self._frame()
        table = self._table(join.this)
        if table is not None:
            lookup = table_lookup(self.query, self.hints, self.scope, join, table)
        else:
            lookup = call_lookup(self.query, self.hints, self.scope, join, frame, self.spelling.left)
            self.functions.append(str(called(self.query, join.this)))
        self._look_up(frame, lookup, self.joins[: number + 1], self.scalars)

    def _beside(self, join: exp.Join) -> None:
        """Leave a join to Spark, over what has been joined before."""
        refuse_loose_ends(self.query, join)
        found = references(join, [join.this] if not isinstance(join.this, exp.Lateral) else [])
        self.relation.text += f" {self.query.edits.text(span_of(join), self.spelling.edits(found))}"
        self.relation.fresh += fresh_of(join.this, join)

    def _scalar(self, scalar: Scalar, others: Sequence[Scalar]) -> None:
        frame = self._frame()
        lookup = scalar_lookup(self.query, self.hints, scalar)
        self._look_up(frame, lookup, self.joins, [scalar, *others], scalar)
        self.done.append((scalar, lookup.source))

    def _frame(self) -> DataFrame:
        try:
            return self.relation.frame()
        except AnalysisException as error:
            raise self.query.failed(error) from None

    # ── one lookup join ──────────────────────────────────────────────────────────────────────────────────

    def _look_up(
        self,
        frame: DataFrame,
        lookup: Lookup,
        done: Sequence[exp.Expr],
        scalars: Sequence[Scalar],
        scalar: Scalar | None = None,
    ) -> None:
        self.scope.sources.append(lookup.source)
        lookup.source.visible = not lookup.scalar
        on = [self.spelling.on(lookup, span) for span in lookup.on]
        self.texts = dict(zip(on, lookup.on, strict=True))
        where = [] if self._made_up_later(done, scalar) else self.where.take(lookup)
        lookup.source.visible = lookup.how in ("inner", "left") and not lookup.scalar
        used = self._used(lookup, done, scalar)
        select = self._output(lookup, frame, used)
        if lookup.how == "inner" and not on and not lookup.keys and not lookup.using:
            on, where = where, []
        self._refuse_keyless(lookup, on)
        condition: Any = list(lookup.using) or " AND ".join([*lookup.keys, *map(grouped, on)])
        try:
            join = LookupJoin(
                frame,
                lookup.table,
                condition,
                lookup.how,
                select,
                where=" AND ".join(map(grouped, where)) or None,
                matches=lookup.matches,
            )
            df = join.df
        except AnalysisException as error:
            raise self.query.failed(error) from None
        except LookupCacheError as error:
            raise error.at(self.statement.place(self._blamed(lookup, error))) from None
        self.query.joins.append(join)
        self.relation.joined(self.query.view(df))
        self.spelling.view = self.relation.view
        self.looked_up.append(lookup)

    def _refuse_keyless(self, lookup: Lookup, on: Sequence[str]) -> None:
        if not on and not lookup.keys and not lookup.using:
            alias, column = lookup.table.name, lookup.table.schema.names[0]
            raise PlanError(
                f"The lookup gives no key for table {alias!r}: no column of it must equal anything.",
                hint=f"Add an equality, as in ON o.customer_id = {alias}.{column}.",
                place=self.statement.place(lookup.span),
            )

    def _blamed(self, lookup: Lookup, error: LookupCacheError) -> Span:
        """Return the conjunct that an error is about, else the condition, else the whole join."""
        spans = self.texts | {self.statement[part.span]: part.span for part in self.where.parts if part.taken}
        if error.about in spans:
            return spans[error.about]
        return Span(lookup.on[0].start, lookup.on[-1].end) if lookup.on else lookup.span

    def _used(self, lookup: Lookup, done: Sequence[exp.Expr], scalar: Scalar | None) -> list[tuple[Source, str]]:
        """Return the columns that the rest of the SELECT reads, in the order of the text."""
        first = self.select.args.get("from_")
        ended = [one.node for one, _ in self.done] + ([scalar.node] if scalar is not None else [])
        skipped = [*([first] if first is not None else []), *done, *ended]
        taken = [part.span for part in self.where.parts if part.taken]
        found: dict[tuple[int, str], tuple[Source, str]] = {}
        for reference in references(self.select, skipped):
            if any(span.start <= reference.position < span.end for span in taken):
                continue
            for source, name in self._meant(reference):
                found[id(source), name] = source, name
        if any(isinstance(item, exp.Star) for item in self.select.expressions):
            found |= {(id(source), name): (source, name) for source, name in self._starred()}
        for one, source in [*self.done, *([(scalar, lookup.source)] if scalar is not None else [])]:
            found |= {(id(source), name): (source, name) for name in one.columns}
        return list(found.values())

    def _meant(self, reference: Reference) -> list[tuple[Source, str]]:
        if reference.is_star:
            source = self.scope.stars(reference)
            return [(source, name) for name in source.names] if source is not None else []
        found = self.scope.find(reference)
        return [] if found is None else [(found.source, found.name)]

    def _starred(self) -> list[tuple[Source, str]]:
        """Return what * means: the columns that USING joins by, then those of each source."""
        visible = [source for source in self.scope.sources if source.visible]
        hidden = {self.scope.fold(name) for source in visible for name in source.hidden}
        first = [(s, n) for s in visible for n in s.names if self.scope.fold(n) in hidden and n not in s.hidden]
        rest = [(s, n) for s in visible for n in s.names if n not in s.hidden]
        return [*first, *(one for one in rest if one not in first)]

    def _output(self, lookup: Lookup, frame: DataFrame, used: Sequence[tuple[Source, str]]) -> list[str]:
        """Return the join's select list, and note the columns' names in its result."""
        wanted = list(self._physical(lookup, used))
        fold = self.scope.fold
        counts: dict[str, int] = {fold(mark): 1 for mark in lookup.marks}
        for _, name in wanted:
            counts[fold(name)] = counts.get(fold(name), 0) + 1
        select: list[str] = []
        names: dict[tuple[int, str], str] = {}
        for source, name in wanted:
            new = name if counts[fold(name)] == 1 else f"{source.alias}.{name}"
            while new in names.values():
                new += "'"
            names[id(source), name] = new
            right = source is lookup.source
            here = f"{quote(source.alias)}.{quote(name)}" if right else f"left.{quote(source.columns[name])}"
            select.append(here if (name if right else source.columns[name]) == new else f"{here} AS {quote(new)}")
        for source in self.scope.sources:
            marks = lookup.marks if source is lookup.source else {}
            source.columns = {n: n if n in marks else names.get((id(source), n), "") for n in source.columns}
        return select or [f"left.{quote(frame.columns[0])}"]

    def _physical(self, lookup: Lookup, used: Iterable[tuple[Source, str]]) -> Iterator[tuple[Source, str]]:
        """Yield the columns that are to be fetched or carried, each once: of computed ones those that they read."""
        seen = set()
        for source, name in (*used, *self._witnesses(lookup, used)):
            read = [name] if name in source.columns else self._read_by(source, name)
            for column in read:
                mark = source is lookup.source and column in lookup.marks
                if (id(source), column) not in seen and not mark:
                    seen.add((id(source), column))
                    yield source, column

    def _read_by(self, source: Source, name: str) -> list[str]:
        read = columns_of(source.computed[name])
        return [known for column in read if (known := self.scope.column(source, column.name)) is not None]

    def _witnesses(self, lookup: Lookup, used: Iterable[tuple[Source, str]]) -> list[tuple[Source, str]]:
        """Return the columns that tell a row that was found from one that an outer join made up."""
        computed = any(source is lookup.source and name in source.computed for source, name in used)
        padded = lookup.how == "left" or any(join.side in ("RIGHT", "FULL") for join in self.joins)
        if lookup.wants_witness or (computed and padded):
            lookup.source.witness = self._key_column(lookup)
        every = [(source, source.witness) for source in self.scope.sources if source.witness is not None]
        return [(source, name) for source, name in every if source is lookup.source or source.columns[name]]

    def _key_column(self, lookup: Lookup) -> str | None:
        """Return a column of the table that an equality of the condition keeps from being null."""
        for span in lookup.on:
            for side in equality(self.statement[span]) or ():
                name = side.split(".")[-1].strip("` ")
                if (column := self.scope.column(lookup.source, name)) in lookup.table.schema.names:
                    return column
        return lookup.using[0] if lookup.using else None

    def _made_up_later(self, done: Sequence[exp.Expr], scalar: Scalar | None) -> bool:
        """Return whether a join that follows makes rows up, which WHERE must see."""
        later = [] if scalar is not None else self.joins[len(done) :]
        return any(join.side in ("RIGHT", "FULL") for join in later)

    # ── what remains ─────────────────────────────────────────────────────────────────────────────────────

    def _finish(self) -> None:
        tables = [name for lookup in self.looked_up for name in (lookup.table.name,)]
        self.hints.refuse_unused(tables, self.functions)
        if self.hints.ours and self.hints.span is not None:
            self.query.edits.replace(self.hints.span, f"/*+ {self.hints.others} */" if self.hints.others else "")
        for scalar, source in self.done:
            self.query.edits.replace(span_of(scalar.node), self._scalar_text(scalar, source))
        self._finish_from()
        self._finish_where()
        self._finish_items()
        first = self.select.args.get("from_")
        skipped = [*([first] if first is not None else []), *self.joins, *(scalar.node for scalar in self.scalars)]
        for edit in self.spelling.edits(references(self.select, skipped)):
            self.query.edits.replace(*edit)

    def _finish_from(self) -> None:
        first = self.select.args.get("from_")
        if first is None:
            end = max(span_of(item).end for item in self.select.expressions)
            self.query.edits.replace(Span(end, end), f" FROM {self.relation.text}")
            return
        last = self.joins[-1] if self.joins else first
        self.query.edits.replace(Span(span_of(first).start, span_of(last).end), f"FROM {self.relation.text}")

    def _finish_where(self) -> None:
        where = self.select.args.get("where")
        if where is None or not any(part.taken for part in self.where.parts):
            return
        rest = [part for part in self.where.parts if not part.taken]
        found = [edit for part in rest for edit in self.spelling.edits(references(where)) if part.span.holds(edit.span)]
        texts = [self.query.edits.text(part.span, found) for part in rest]
        self.query.edits.replace(span_of(where), f"WHERE {' AND '.join(map(grouped, texts))}" if texts else "")

    def _finish_items(self) -> None:
        """Spell stars out, and give columns that have another name now the one that they had."""
        for item in self.select.expressions:
            span = span_of(item)
            if isinstance(item, exp.Star):
                self.query.edits.replace(span, self._star_text(self._starred(), item))
            elif isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
                source = self.scope.stars(Reference(item, False, frozenset()))
                if source is not None:
                    self.query.edits.replace(span, self._star_text([(source, n) for n in source.names], item.this))
            elif (name := self._lost_name(item)) is not None:
                self.query.edits.replace(Span(span.end, span.end), f" AS {quote(name)}")
        self._name_expressions()

    def _name_expressions(self) -> None:
        """Name expressions over columns that have another name now as Spark would have named them."""
        found = [item for item in self.select.expressions if not isinstance(item, exp.Alias | exp.Column | exp.Star)]
        items = [item for item in found if not item.find(exp.Query) and self._renames(item)]
        names = spark_names(self.query, self.scope.sources, [self.statement[span_of(item)] for item in items])
        for item, name in zip(items, names, strict=False):
            self.query.edits.replace(Span(span_of(item).end, span_of(item).end), f" AS {quote(name)}")

    def _renames(self, item: exp.Expr) -> bool:
        found = [one for reference in references(item) if (one := self.scope.find(reference)) is not None]
        return any(self.scope.fold(one.source.columns.get(one.name, "")) != self.scope.fold(one.name) for one in found)

    def _star_text(self, columns: Sequence[tuple[Source, str]], star: exp.Expr) -> str:
        without = {self.scope.fold(name.name) for name in star.args.get("except_") or star.args.get("except") or []}
        kept = [(source, name) for source, name in columns if self.scope.fold(name) not in without]
        items = [self.spelling.item(source, name) for source, name in kept]
        fresh = [
            f"{quote(one.path[-1])}.*" for one in self.relation.fresh if one.visible and star.parent is self.select
        ]
        return ", ".join([*items, *fresh])

    def _lost_name(self, item: exp.Expr) -> str | None:
        """Return the name of an item that Spark would name otherwise now."""
        if isinstance(item, exp.Alias):
            return None
        scalars = [scalar for scalar in self.scalars if scalar.node is item]
        if scalars:
            return scalars[0].spark_name
        if not isinstance(item, exp.Column):
            return None
        found = self.scope.find(Reference(item, False, frozenset()))
        if found is None or len(item.parts) > 1 + (found.qualifier is not None):
            return None
        here = found.source.columns.get(found.name)
        return None if here is not None and self.scope.fold(here) == self.scope.fold(found.name) else item.name

    def _scalar_text(self, scalar: Scalar, source: Source) -> str:
        view = str(self.relation.view)

        def column(known: str) -> str:
            if known in source.computed:
                return self.spelling.computed(source, known, column, padded=False)
            return f"{view}.{quote(source.columns[known])}"

        text = scalar.text(self.query, column)
        whole = text if scalar.plain else f"(CASE WHEN {column(str(source.witness))} IS NOT NULL THEN {text} END)"
        return f"any_value({whole})" if self._grouped_item(scalar) else whole

    def _grouped_item(self, scalar: Scalar) -> bool:
        """Return whether a sub-query stands outside of aggregates where rows are grouped."""
        aggregates = self.select.find_all(exp.AggFunc)
        own = any(one.find_ancestor(exp.Select) is self.select for one in aggregates)
        if self.select.args.get("group") is None and not own:
            return False
        where = self.select.args.get("where")
        inside = scalar.node.find_ancestor(exp.AggFunc, exp.Group, exp.Where, exp.Select)
        return not isinstance(inside, exp.AggFunc | exp.Group | exp.Where) and inside is not where
