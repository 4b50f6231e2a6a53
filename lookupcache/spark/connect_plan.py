"""The selection from a join's result on Spark Connect, by the plan that the client keeps for a DataFrame.

Nothing of it is resolved: names are those of the columns below, and types follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from lookupcache.errors import PlanError, SchemaError
from lookupcache.expr import Column, Expr, can_fail, columns_of
from lookupcache.planner import LeftColumn, substitute
from lookupcache.planner.clauses import conjuncts, without_comments
from lookupcache.planner.column import column_sql
from lookupcache.planner.naming import VisibleColumns
from lookupcache.planner.output import split_alias
from lookupcache.planner.reading import SqlReader, is_settled
from lookupcache.planner.settings import CASE_SENSITIVE, ESCAPED_STRINGS
from lookupcache.planner.translate import is_too_deep
from lookupcache.schema import spark_type_name, type_name
from lookupcache.spark.char_types import left_column
from lookupcache.spark.forms.between import KeyedValue, Selection, plain_column, with_columns
from lookupcache.versions import frame_of, is_spark_3

_SELECTIONS = ("Project", "Filter", "SubqueryAlias", "Hint", "WithColumns", "WithColumnsRenamed", "Drop", "ToDF")
_SHOWN = {
    "Limit": "a limit", "Offset": "an offset", "Sort": "a sort", "Deduplicate": "a distinct",
    "Repartition": "a shuffle", "RepartitionByExpression": "a shuffle", "SetOperation": "a set operation",
    "Join": "a join", "Sample": "a sample", "Aggregate": "an aggregate", "WithWatermark": "a watermark",
    "CollectMetrics": "an observation", "NAFill": "fillna", "NADrop": "dropna",
}  # fmt: skip


_PARTITIONING_HINTS = ("coalesce", "rebalance", "repartition", "repartition_by_range")


class _UnreadableError(Exception):
    """The plan has something of which only the server knows the meaning."""


@dataclass(frozen=True, eq=False)
class _Column:
    """A column of a plan; ``name`` is None where only the server knows it, and ``type`` is Spark's name."""

    name: str | None
    type: str
    value: KeyedValue


@dataclass(frozen=True, eq=False)
class _Relation:
    """The columns of a plan over a join's result, the filters so far, and the plans whose columns mean these.

    ``types`` returns the types of the plan's columns from the server.
    """

    reader: SqlReader
    columns: Sequence[_Column]
    filters: tuple[KeyedValue, ...] = ()
    plans: frozenset[int] = frozenset()

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────

    def after(self, plan: Any, types: Callable[[], Sequence[str]]) -> _Relation:
        """Return the relation of a plan on top of this one."""
        kind = type(plan).__name__
        if kind == "Filter":
            texts = conjuncts(without_comments(self._text(plan.filter)))
            filters = (*self.filters, *(self._value(text) for text in texts))
            return replace(self, filters=filters, plans=self.plans | {plan._plan_id})
        if kind in ("SubqueryAlias", "Hint"):
            return replace(self, plans=self.plans | {plan._plan_id})
        columns: list[_Column] = list(getattr(self, f"_{kind.lower()}")(plan))
        if any(not column.type for column in columns):
            known = types()
            columns = [replace(column, type=type_) for column, type_ in zip(columns, known, strict=True)]
        return replace(self, columns=columns, plans=frozenset([plan._plan_id]))

    def _project(self, plan: Any) -> Iterator[_Column]:
        for column in plan._columns:
            expression, name = column._expr, None
            if type(expression).__name__ == "UnresolvedStar" and expression._unparsed_target is None:
                yield from self.columns
                continue
            if type(expression).__name__ == "ColumnAlias" and len(expression._alias) == 1:
                name = expression._alias[0]
            text = self._text(column)
            if text.strip(" ()") == "*":
                yield from self.columns
                continue
            if type(expression).__name__ == "SQLExpression":
                written = without_comments(self.reader.settings.readable(expression._expr))
                text, name = split_alias(self._scope, written)
            yield self._column(text, name)

    def _withcolumns(self, plan: Any) -> Iterator[_Column]:
        new = {
            name: self._column(self._text(column), name)
            for name, column in zip(plan._columnNames, plan._columns, strict=True)
        }
        for column in self.columns:
            name = next((name for name in new if self._scope.same(name, column.name or "")), None)
            yield column if name is None else new.pop(name)
        yield from new.values()

    def _withcolumnsrenamed(self, plan: Any) -> Iterator[_Column]:
        renamed = plan._colsMap
        if len(renamed) > 1 and any(self._scope.same(old, new) for old in renamed for new in renamed.values()):
            raise _UnreadableError
        for column in self.columns:
            names = [new for old, new in renamed.items() if self._scope.same(old, column.name or "")]
            yield replace(column, name=names[0]) if names else column

    def _drop(self, plan: Any) -> Iterator[_Column]:
        names = [one if isinstance(one, str) else self._of(self._text(one)) for one in plan._columns]
        yield from (c for c in self.columns if not any(self._scope.same(name, c.name or "") for name in names))

    def _todf(self, plan: Any) -> Iterator[_Column]:
        for column, name in zip(self.columns, plan._cols, strict=True):
            yield replace(column, name=name)

    # ── expressions ──────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _by_name(self) -> dict[str, _Column]:
        return {column.name: column for column in self.columns if column.name is not None}

    @cached_property
    def _left_columns(self) -> list[LeftColumn]:
        return [LeftColumn(column.name, column.type) for column in self.columns if column.name is not None]

    @cached_property
    def _scope(self) -> VisibleColumns:
        settings = self.reader.settings
        is_case_sensitive, star = settings.on(CASE_SENSITIVE), _unknown_qualifier
        columns, none = self._left_columns, pa.schema([])
        return VisibleColumns(columns, "", none, case_sensitive=is_case_sensitive, settings=settings, star=star)

    def _text(self, column: Any) -> str:
        """Return a Column as SQL; raises for a column of a plan whose names mean others here."""

        def check(node: Any) -> None:
            plan = getattr(node, "_plan_id", None)
            if (plan is not None and plan not in self.plans) or getattr(node, "_is_metadata_column", False):
                raise _UnreadableError

        column._expr.foreach(check)
        settings = self.reader.settings
        text = column_sql(column, escapes=not settings.on(ESCAPED_STRINGS), null_in_nothing=settings.null_in_nothing)
        return settings.readable(text)

    def _of(self, text: str) -> str:
        """Return the name of the column that an expression is."""
        reference = self._scope.read(text).column
        if reference is None:
            raise _UnreadableError
        return reference.name

    def _column(self, text: str, name: str | None) -> _Column:
        fragment = self._scope.read(text)
        if fragment.column is not None:
            found = self._by_name[fragment.column.name]
            return replace(found, name=name or found.name)
        value = self._value(text)
        if not value.deterministic and value.expression is None:
            raise _UnreadableError  # It may be a generator or an aggregate, and count even where it is not read.
        type_ = "" if value.expression is None else type_name(value.expression.type)
        return _Column(name, type_, value)

    def _value(self, text: str) -> KeyedValue:
        """Return an expression as a value over the join's result."""
        sql = self._scope.read(text).sql
        read: list[KeyedValue] = []

        def spell(_: str, name: str) -> str:
            read.append(self._by_name[name].value)
            return f"({read[-1].spark})" if read[-1].column is None else str(read[-1].spark)

        spark = substitute(sql, spell)
        expression = self._expression(sql)
        return KeyedValue(
            text,
            frozenset(key for one in read for key in one.reads),
            expression,
            spark,
            deterministic=is_settled(sql, self.reader.settings) and all(one.deterministic for one in read),
            total=expression is not None and not can_fail(expression),
        )

    def _expression(self, sql: str) -> Expr | None:
        """Return the worker's expression over the join's result; None where only Spark can evaluate it."""
        found = replace(self.reader, left=self._left_columns, right=pa.schema([])).expression(sql)
        values = {c.name: self._by_name[c.name].value for c in columns_of(found)} if found is not None else {}
        if found is None or any(value.expression is None and value.column is None for value in values.values()):
            return None

        def inline(column: Column) -> Expr:
            value = values[column.name]
            return value.expression or replace(column, name=str(value.column))

        whole = with_columns(found, inline)
        return None if is_too_deep(whole) else whole


def _unknown_qualifier(_: str) -> None:
    """Refuse a name that is an alias or a struct: only the server knows the aliases of a plan."""
    raise _UnreadableError


def selection_on_connect(df: Any, reader: SqlReader, result: Any) -> Selection | None:
    """Return the selection of a DataFrame from the result of a join, None where only the server knows it."""
    if is_spark_3():  # Its plans have other names for what they are made of.
        return None
    *plans, _ = _path(df._plan, {id(result._plan)})
    names = [left_column(field) for field in result.schema.fields]
    columns = [_Column(one.name, one.type, plain_column(str(number), one.name)) for number, one in enumerate(names)]
    relation = _Relation(reader, columns, plans=frozenset([result._plan._plan_id]))
    try:
        for plan in reversed(plans):
            if plan._references:
                return None
            relation = relation.after(plan, partial(_types, df, plan))
    except (_UnreadableError, PlanError, SchemaError):
        return None
    if len(relation.columns) != len(df.columns):
        return None
    found = dict(zip(df.columns, relation.columns, strict=True))
    return Selection(relation.filters, lambda name: found[name].value)


def result_below(plan: Any, results: Mapping[int, Any]) -> Any | None:
    """Return the join whose result a plan has selected from; ``results`` are joins by the identity of their plans."""
    *_, last = _path(plan, results)
    return results.get(id(last))


def frames_down(df: Any, results: Mapping[int, Any]) -> Iterator[Any]:
    """Yield a DataFrame and those that it was selected from, down to the result of a join."""
    return (frame_of(type(df), plan, df.sparkSession) for plan in _path(df._plan, results))


def obstacle_on_connect(plan: Any, results: Mapping[int, Any]) -> str | None:
    """Return the operation between a plan and a join's result below it, None without a join there."""
    obstacle = "an expression or name that only Spark can resolve"
    plans = [(plan, "")]
    while plans:
        plan, above = plans.pop()
        if id(plan) in results:
            return f"{_SHOWN.get(above, above) or obstacle} stands between the two joins"
        kind = _kind(plan)
        above = above or ("" if kind in _SELECTIONS else kind)
        plans += [(child, above) for child in _children(plan)]
    return None


def plan_ids(plan: Any) -> Iterator[int]:
    """Yield the numbers of a plan and of all below it, by which a Column says which DataFrame it was taken from."""
    plans = [plan]
    while plans:
        plan = plans.pop()
        yield plan._plan_id
        plans += _children(plan)


def _children(plan: Any) -> list[Any]:
    from pyspark.sql.connect.plan import LogicalPlan

    found = [one for value in vars(plan).values() for one in (value if isinstance(value, list | tuple) else [value])]
    return [one for one in found if isinstance(one, LogicalPlan)]


def _path(plan: Any, results: Container[int]) -> Iterator[Any]:
    """Yield a plan and those below it, down to one of the results, or to one that does more than select."""
    while id(plan) not in results and _kind(plan) in _SELECTIONS:
        yield plan
        plan = plan._child
    yield plan


def _kind(plan: Any) -> str:
    """Return the kind of a plan; some hints are a shuffle."""
    kind = type(plan).__name__
    return "Repartition" if kind == "Hint" and str(getattr(plan, "_name", "")).lower() in _PARTITIONING_HINTS else kind


def _types(df: Any, plan: Any) -> list[str]:
    """Ask the server for the types of a plan's columns."""
    return [spark_type_name(field.dataType) for field in frame_of(type(df), plan, df.sparkSession).schema.fields]
