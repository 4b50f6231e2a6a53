"""The origin of each column of a chain: Spark computes it before the stage, a join adds it, or the worker computes it
between joins.

A column on its way through the chain is an *attribute*, as in a plan of Spark's. An expression that Spark computes
before the stage must not fail for a row that an earlier join or filter drops. The worker's expressions have exactly
Spark's meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from lookupcache import expr
from lookupcache.expr import Call, Expr
from lookupcache.planner import substitute
from lookupcache.planner.clauses import columns_in
from lookupcache.planner.sql_reader import SqlReader
from lookupcache.planner.translate import is_too_deep
from lookupcache.schema import quote
from lookupcache.spark.forms.between import KeyedValue, Selection, SparkColumn, plain_column, value_of_sql, with_columns
from lookupcache.spark.forms.join_context import ERROR, JoinContext
from lookupcache.worker.runner import ERROR as ERROR_TYPE

_COLUMN = re.compile(r"l\.`(?:[^`]|``)*`")
_INTEGER_CAST = re.compile(r"CAST\((l\.`(?:[^`]|``)*`) AS (SMALLINT|INT|BIGINT)\)")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_BEFORE, _WORKER = "by Spark, before the stage", "by the worker, between the joins"


class NotFusedError(Exception):
    """Why a join needs a separate Python stage; `explain` shows the text."""


@dataclass(frozen=True)
class Attribute:
    """A column on its way through the chain.

    ``join`` is the number of the join that adds it, and ``name`` its name there, inside the job. ``join`` is -1 for a
    column that Spark computes before the stage: its ``name`` is SQL over the first left side. With an ``expression``
    the worker computes it after that join; columns in it are named by the keys of their attributes.
    """

    join: int
    name: str
    expression: Expr | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        """The attribute's name in expressions."""
        return f"{self.join} {self.name}"


AttributeOf = Callable[[str], Attribute]
"""Returns the attribute of a column by its key; raises NotFusedError where a join has to wait for Spark."""


@dataclass(frozen=True, eq=False)
class Link:
    """One join of a chain, and the selection from the result of the join before; ``reader`` reads its plan."""

    context: JoinContext
    reader: SqlReader
    selection: Selection | None = None
    _known: dict[tuple[str, bool], KeyedValue] = field(default_factory=dict, repr=False)

    def value(self, sql: str, *, alone: bool) -> KeyedValue:
        """Return an expression of the plan, over the columns inside the job; each longer chain reads it again."""
        if (sql, alone) not in self._known:
            self._known[sql, alone] = value_of_sql(sql, self.reader, self.context.column, alone=alone)
        return self._known[sql, alone]


@dataclass(frozen=True, eq=False)
class ComputedStep:
    """A filter on the first left side, or a column with a ``name`` that is added to it.

    ``spark`` is SQL over that side, or a function, which gets the ``names`` there of the columns that it reads.
    """

    spark: str | SparkColumn
    names: Mapping[str, str]
    name: str | None = None

    @property
    def sql(self) -> str | None:
        """The filter or column in a plan's SQL, None where only a function builds it."""
        return self.spark if isinstance(self.spark, str) else None

    @property
    def is_plain(self) -> bool:
        """Whether it is a filter in SQL."""
        return self.sql is not None and self.name is None

    def column(self, left: DataFrame) -> Column:
        """Return the Column over the left side."""
        assert not isinstance(self.spark, str)
        return self.spark(left, self.names)


class Attributes:
    """The attributes of the joins of a chain, first to last; raises NotFusedError where one has to wait for Spark.

    - ``steps``: Spark's filters and columns over the first left side before the stage, in order.
    - ``left``: for each join the attributes of its left columns by name, ``keys``: those of its keys, in order.
    - ``filters``: for each join the filters that the worker applies before it.
    - ``notes``: for each join, the texts of the expressions between it and the join before, and their evaluators.
    - ``by_key``: the attributes that expressions read.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = links
        self.contexts = [link.context for link in links]
        self.steps: list[ComputedStep] = []
        self.left: list[AttributeOf] = []
        self.keys: list[list[Attribute]] = []
        self.filters: list[list[Expr]] = []
        self.notes: list[dict[str, str]] = []
        self.by_key: dict[str, Attribute] = {}
        self._drops = False
        for number in range(len(links)):
            self._add(number)

    def _add(self, number: int) -> None:
        """Find the attributes of the next join."""
        context = self.contexts[number]
        self.filters.append([])
        self.notes.append({})
        self.left.append(self._left_attributes(number))
        filters, keys = context.keys()
        own = self._after(number)
        for sql in (*context.plan.left_filter, *filters):
            self._filter(number, self._read(number, sql), own)
        self.keys.append([self._key(number, sql) for sql in keys])
        for name in context.plan.left_columns:
            self.left[number](name)
        self._drops |= drops_rows(context)

    # ── the columns that a join can read ─────────────────────────────────────────────────────────────────

    def _left_attributes(self, number: int) -> AttributeOf:
        """Return the attributes of a join's left columns, by name."""
        if number == 0:
            return lambda name: Attribute(-1, f"l.{quote(name)}")
        selection, result = self.links[number].selection, self._result_attributes(number - 1)
        assert selection is not None
        for condition in selection.filters:
            self._filter(number, condition, result)
        return cache(lambda name: self._attribute(number, selection.column(name), result, f"column {name}"))

    def _result_attributes(self, number: int) -> AttributeOf:
        """Return the attributes of a join's result by position; its later filters come before the next join."""
        context, columns = self.contexts[number], self._after(number)
        plan = context.plan
        if plan.spark_residual:
            raise NotFusedError(f"Spark evaluates conditions after the lookup of {plan.table}")
        for sql in plan.filter_after:
            self._filter(number + 1, _with_failed_rows(context, self._read(number, sql)), columns)
        values = [self._read(number, output.sql) for output in plan.output] + [plain_column(m) for m in context.marks]
        what = f"result column of {plan.table}"
        for value in values:
            if not value.deterministic and value.expression is None:
                # A generator or an aggregate changes the number of rows, also where its column is not read.
                raise NotFusedError(self._obstacle(value, {}, what))
        return cache(lambda position: self._attribute(number + 1, values[int(position)], columns, what))

    def _after(self, number: int) -> AttributeOf:
        """Return the attributes of the columns of both sides of a join, by their names inside the job."""
        context = self.contexts[number]
        left = {context.column("l", name): name for name in context.left.columns}
        return lambda key: self.left[number](left[key]) if key in left else Attribute(number, key)

    def _read(self, number: int, sql: str) -> KeyedValue:
        """Return an expression of a join's plan, over the columns inside its job."""
        return self.links[number].value(sql, alone=len(self.links) == 1)

    # ── which side computes each column ────────────────────────────────────────────────────────────────

    def _key(self, number: int, sql: str) -> Attribute:
        """Return the attribute of a key; the worker widens an integer to the key's type."""
        found = _INTEGER_CAST.fullmatch(sql)
        value = self._read(number, found[1] if found else sql)
        if number and found and value.column and _is_wider(self.contexts[number], value.column, found[2]):
            return self._after(number)(value.column)
        return self._attribute(number, self._read(number, sql), self._after(number), f"key {sql}")

    def _attribute(self, number: int, value: KeyedValue, columns: AttributeOf, what: str) -> Attribute:
        """Return the attribute of a value that a join with this number reads."""
        if value.column is not None:
            return columns(value.column)
        attributes = {key: columns(key) for key in sorted(value.reads)}
        if self._may_precede(number, value, attributes):
            found = self._compute_before(value, attributes)
        elif value.expression is not None:
            expression = self._inline(number, value.expression, columns)
            # By its content: another column may have the same text, over columns that have got new names.
            found = Attribute(number - 1, repr(expression), expression)
        else:
            raise NotFusedError(self._obstacle(value, attributes, what))
        if number:
            self.notes[number][value.text] = _BEFORE if found.join < 0 else _WORKER
        return found

    def _filter(self, number: int, value: KeyedValue, columns: AttributeOf) -> None:
        """Apply a filter before a join."""
        if value.column is not None and value.expression is None:
            value = replace(value, expression=expr.Column("left", value.column, pa.bool_()))
        attributes = {key: columns(key) for key in sorted(value.reads)}
        reports = any(map(_needs_all_rows, self.contexts[:number]))
        if not reports and self._may_precede(number, value, attributes):
            self.steps.append(self._step(value, attributes))
            self.notes[number][value.text] = _BEFORE
        elif value.expression is not None:
            self.filters[number].append(self._inline(number, value.expression, columns))
            self._drops = True
            self.notes[number][value.text] = _WORKER
        elif reports:
            raise NotFusedError(f"the filter {value.text} would keep rows from a join before that reports on each")
        else:
            raise NotFusedError(self._obstacle(value, attributes, "filter"))

    def _may_precede(self, number: int, value: KeyedValue, attributes: Mapping[str, Attribute]) -> bool:
        """Return whether Spark may evaluate a value before the stage."""
        if number == 0:
            return True
        early = value.spark is not None and value.deterministic and all(one.join < 0 for one in attributes.values())
        return early and (value.total or not self._drops)

    def _obstacle(self, value: KeyedValue, attributes: Mapping[str, Attribute], what: str) -> str:
        """Return why a join has to wait for Spark to evaluate a value."""
        shown = what if value.text in what else f"{what} {value.text}"
        if value.spark is None:
            return f"the {shown} has a sub-query"
        if not value.deterministic:
            return f"the {shown} calls a function that is not known, or whose value changes from call to call"
        late = next((one for one in attributes.values() if one.join >= 0), None)
        if late is not None:
            return f"the {shown} is computed by Spark from a column of {self.contexts[late.join].plan.table}"
        # It might end in an error for a row that never gets there.
        return f"the {shown} is computed by Spark, and a join before drops rows"

    def _inline(self, number: int, expression: Expr, columns: AttributeOf) -> Expr:
        """Return an expression over attributes; expressions that the worker computes at the same place become parts."""

        def column(read: expr.Column) -> Expr:
            attribute = columns(read.name)
            if attribute.expression is not None and attribute.join == number - 1:
                return attribute.expression
            self.by_key[attribute.key] = attribute
            return expr.Column("left", attribute.key, read.type)

        found = with_columns(expression, column)
        if is_too_deep(found):
            raise NotFusedError("an expression between the joins is nested too deeply for the worker")
        return found

    # ── before the stage ─────────────────────────────────────────────────────────────────────────────────

    def _compute_before(self, value: KeyedValue, attributes: Mapping[str, Attribute]) -> Attribute:
        step = self._step(value, attributes)
        return Attribute(-1, step.sql) if step.sql is not None else self._name_step(step)

    def _step(self, value: KeyedValue, attributes: Mapping[str, Attribute]) -> ComputedStep:
        """Return a value as a step over the first left side."""
        assert value.spark is not None
        if isinstance(value.spark, str):
            return ComputedStep(substitute(value.spark, lambda _, key: _in_parentheses(attributes[key].name)), {})
        return ComputedStep(value.spark, {key: self._name(one) for key, one in attributes.items()})

    def _name(self, attribute: Attribute) -> str:
        """Return a column of the first left side for an attribute; an expression becomes one."""
        if not _COLUMN.fullmatch(attribute.name):
            attribute = self._name_step(ComputedStep(attribute.name, {}))
        [(_, name)] = columns_in(attribute.name)
        return name

    def _name_step(self, step: ComputedStep) -> Attribute:
        taken = {*self.contexts[0].left.columns, *(step.name for step in self.steps)}
        name = next(name for name in map("lookup_b{}".format, range(len(taken) + 1)) if name not in taken)
        self.steps.append(replace(step, name=name))
        return Attribute(-1, f"l.{quote(name)}")


def is_plain_key(sql: str) -> bool:
    """Return whether a key is a left column, whose meaning no setting changes, or one that is widened."""
    return bool(_COLUMN.fullmatch(sql) or _INTEGER_CAST.fullmatch(sql))


def _in_parentheses(sql: str) -> str:
    return sql if _COLUMN.fullmatch(sql) else f"({sql})"


def _is_wider(context: JoinContext, column: str, target: str) -> bool:
    """Return whether a cast of a left column only widens an integer."""
    type_ = context.types[column].simpleString()
    return type_ in _INTEGERS and _INTEGERS.index(type_) < _INTEGERS.index(target.lower())


def _with_failed_rows(context: JoinContext, value: KeyedValue) -> KeyedValue:
    """Return a condition that keeps failed rows too, if they are among the others."""
    if ERROR not in context.marks or value.expression is None:
        return value
    failed = Call("not", (Call("is null", (expr.Column("left", ERROR, ERROR_TYPE),)),))
    either = Call("or", (value.expression, failed), pa.bool_())
    return replace(value, reads=value.reads | {ERROR}, expression=either)


def _needs_all_rows(context: JoinContext) -> bool:
    """Return whether a row that a later filter drops would be missed: as a dead letter, or as an error."""
    return context.plan.config.on_error == "dead-letter" or context.plan.matches == "single"


def drops_rows(context: JoinContext) -> bool:
    """Return whether a join returns nothing for some left rows."""
    return context.plan.how != "left" or context.plan.config.on_error == "dead-letter"
