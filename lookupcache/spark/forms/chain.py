"""Several lookups in one Python stage: a join whose left side is the result of another lookup join.

left ─► filters · key expressions (Spark) ─► mapInArrow( first join ─► second join ─► … ) ─► Spark's residual

In one select, Spark computes all that the joins of the chain read of the first left side. Each join passes on the
columns of later ones. `attributes` says where each column of a chain comes from.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lookupcache import expr
from lookupcache.expr import Expr
from lookupcache.planner import substitute
from lookupcache.planner.sql_reader import is_repeatable
from lookupcache.report import Channel, ChannelChain, is_classic
from lookupcache.schema import quote
from lookupcache.spark.forms.attributes import (
    Attribute,
    Attributes,
    ComputedStep,
    Link,
    NotFusedError,
    drops_rows,
    is_plain_key,
)
from lookupcache.spark.forms.between import with_columns
from lookupcache.spark.forms.join_context import JoinContext
from lookupcache.versions import settings_text
from lookupcache.worker.chain import Between, ChainTask
from lookupcache.worker.runner import Layout
from lookupcache.worker.task import Task

ROW = "row"
"""A column of the left side where the stage would return none: in Spark, a batch without columns has no rows."""


def is_bare(context: JoinContext) -> bool:
    """Return whether the last stage would return rows without a column."""
    right = () if context.plan.how in ("semi", "anti") and not context.plan.spark_residual else context.plan.columns
    return not (context.plan.left_columns or right or context.marks)


def result_columns(context: JoinContext) -> list[str] | None:
    """Return the columns of the result by their names inside the job, or None if Spark has to compute any.

    The worker then returns them in their order, which saves Spark a copy of every row.
    """
    plan = context.plan
    if plan.spark_residual or plan.filter_after:
        return None
    both = {"l": plan.left_columns, "r": plan.columns}
    names = {f"{s}.{quote(name)}": context.column(s, name) for s, columns in both.items() for name in columns}
    if any(output.sql not in names for output in plan.output):
        return None
    return [*(names[output.sql] for output in plan.output), *context.marks]


def added_columns(context: JoinContext) -> list[str]:
    """Return the columns that a join adds in the worker."""
    right = [] if context.plan.how in ("semi", "anti") else context.right_names
    return [*right, *context.marks]


class Chain:
    """The joins of one stage, first to last; a join alone is a chain of one.

    Raises NotFusedError where one of them has to wait for Spark.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = links
        self.contexts = [link.context for link in links]
        self.attributes = Attributes(links)
        self._keys = self.attributes.keys
        if not all(step.is_plain for step in self.attributes.steps) and not self.contexts[0].is_clear(self._before):
            raise NotFusedError("the first left side has columns whose names are not clear")

    def extend(self, link: Link) -> Chain:
        """Return the chain with another join at its end; raises NotFusedError."""
        is_made = "settings" in vars(self)
        if is_made and self.settings is not None and self.settings != settings_text(link.context.spark):
            raise NotFusedError("the session's settings have changed since a join before that computes keys or filters")
        chain = Chain([*self.links, link])
        if self._calls_unknown_function(link):
            if not Chain(self.links).rows.sameSemantics(self.rows):
                raise NotFusedError("a function has been defined again since a join before that calls it")
            _ = chain.rows  # The functions of now count.
        return chain

    @property
    def _before(self) -> list[str]:
        """The SQL that Spark evaluates before the stage."""
        entering = [one.name for one in self._entering]
        return [*(step.sql for step in self.attributes.steps if step.sql is not None), *entering]

    @cached_property
    def settings(self) -> str | None:
        """The session's settings when the stage was made, if they may change the meaning of its expressions."""
        keys = [one.name for keys in self._keys for one in keys if one.join < 0]
        plain = all(map(is_plain_key, keys)) and all(result_columns(context) for context in self.contexts)
        return None if plain and not self.attributes.steps else settings_text(self.contexts[0].spark)

    def _calls_unknown_function(self, link: Link) -> bool:
        """Return whether Spark calls a function before the stage that a user may define again before the next join.

        On Spark Connect each action takes the functions of its time, also without a chain.
        """
        settings = {self.links[0].reader.settings, link.reader.settings}
        settled = all(is_repeatable(sql, one) for sql in self._before for one in settings)
        return not settled and is_classic(self.contexts[0].spark)

    # ── the stage ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def last(self) -> JoinContext:
        """The last join."""
        return self.contexts[-1]

    @cached_property
    def rows(self) -> DataFrame:
        """Return the columns that enter the stage, computed by Spark from the first left side."""
        first, steps = self.contexts[0], self.attributes.steps
        filters = [step.sql for step in steps if step.sql is not None]
        if not all(step.is_plain for step in steps):
            first, filters = functools.reduce(_apply, steps, first), []
        rows = first.select(filters, {f"s{number}": one.name for number, one in enumerate(self._entering)})
        if first.plan.config.shuffle:
            rows = rows.repartition(*(f"s{self._entering.index(one)}" for one in self._keys[0]))
        return rows

    @property
    def _entering(self) -> list[Attribute]:
        return [*self._left_in[0], *self._keys_in[0]]

    def task(self, output: Sequence[str] | None, channel: Channel) -> Task | ChainTask:
        """Return the worker's task; ``output`` are the columns that it returns; None for all columns."""
        tasks = [self._task(number, output) for number in range(len(self.links))]
        _ = [task.plan.fingerprint for task in tasks]  # It travels with the plan.
        if not isinstance(channel, ChannelChain):
            return tasks[0]
        between = tuple(self._between(number) for number in range(len(tasks) - 1))
        return ChainTask(tuple(tasks), channel, tuple(self._ahead()), between)

    def _ahead(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the later joins whose keys are known from the start, where requesting all of them costs no extra call.

        An earlier join that drops rows would spare calls. An error that does not end the job would be requested
        twice, as would all keys of a join without a cache.
        """
        entering = self._entering
        for number, context in enumerate(self.contexts):
            config, keys = context.plan.config, self._keys[number]
            if self.attributes.filters[number]:
                return
            known = config.cache in ("LRU", "TTL") and config.missing_key and config.on_error == "fail"
            if number and known and keys and not context.plan.never and all(one in entering for one in keys):
                yield number, tuple(entering.index(one) for one in keys)
            if drops_rows(context):
                return

    def _task(self, number: int, output: Sequence[str] | None) -> Task:
        context = self.contexts[number]
        left, keys = self._left_in[number], [*self._left_in[number], *self._keys_in[number]]
        own = self._own(number)
        layout = Layout(
            left=(*own, *(f"{ROW}{position}" for position in range(len(own), len(left)))),
            keys=tuple(keys.index(one) for one in self._keys[number]),
            output=self._output(number, output),
        )
        return Task(context.plan, context.connector, layout, context.channel, context.letters)

    def _output(self, number: int, output: Sequence[str] | None) -> tuple[int, ...] | None:
        if number == len(self.links) - 1:
            columns = [*self.last.carried_columns, *added_columns(self.last)]
            return None if output is None else tuple(columns.index(name) for name in output)
        added = (Attribute(number, name) for name in added_columns(self.contexts[number]))
        available = [*self._left_in[number], *added]
        return tuple(available.index(one) for one in self._columns_passed_on(number))

    def _following(self, number: int) -> list[Attribute]:
        """Return the columns of the batches of the join after this one."""
        return [*self._left_in[number + 1], *self._keys_in[number + 1]]

    def _columns_passed_on(self, number: int) -> list[Attribute]:
        """Return the columns that a join passes on: those of the next, and the inputs of computed ones."""
        following = self._following(number)
        found = [one for one in following if not _is_computed(one, number)]
        read = [one for one in self._inputs(number) if one not in found]
        return [*found, *dict.fromkeys(read)]

    def _inputs(self, number: int) -> Iterator[Attribute]:
        """Yield the attributes that the worker reads between a join and the next."""
        for expression in self.attributes.filters[number + 1]:
            yield from self._read_by(expression)
        for attribute in self._following(number):
            if _is_computed(attribute, number):
                yield from self._read_by(attribute.expression)

    def _read_by(self, expression: Expr | None) -> Iterator[Attribute]:
        if expression is not None:
            yield from (self.attributes.by_key[column.name] for column in expr.columns_of(expression))

    def _between(self, number: int) -> Between | None:
        """Return the worker's step between a join and the next, None without one."""
        following, passed = self._following(number), self._columns_passed_on(number)
        if following == passed and not self.attributes.filters[number + 1]:
            return None
        position = {one.key: str(index) for index, one in enumerate(passed)}

        def by_position(expression: Expr) -> Expr:
            return with_columns(expression, lambda column: replace(column, name=position[column.name]))

        columns = [
            by_position(one.expression) if one.expression and _is_computed(one, number) else passed.index(one)
            for one in following
        ]
        return Between(tuple(map(by_position, self.attributes.filters[number + 1])), tuple(columns))

    @cached_property
    def _left_in(self) -> list[list[Attribute]]:
        """For each join the attributes that it passes on: its own left columns, then those that later joins read."""
        found = []
        for number in range(len(self.links)):
            own = [self.attributes.left[number](name) for name in self._own(number)]
            later = dict.fromkeys(one for one in self._read_after(number) if one.join < number)
            found.append([*own, *(one for one in later if one not in own)])
        if is_bare(self.last):
            row = Attribute(-1, "TRUE")
            found = [[*(one for one in attributes if one != row), row] for attributes in found]
        return found

    @cached_property
    def _keys_in(self) -> list[list[Attribute]]:
        """For each join the key attributes that it does not pass on."""
        pairs = zip(self._keys, self._left_in, strict=True)
        return [list(dict.fromkeys(one for one in keys if one not in left)) for keys, left in pairs]

    def _own(self, number: int) -> Sequence[str]:
        """Return the left columns that a join needs for itself: the last for its result."""
        context = self.contexts[number]
        if number == len(self.links) - 1 or context.letters is not None:
            return context.plan.left_columns
        return [name for name in context.plan.left_columns if name in residual_columns(context)]

    def _read_after(self, number: int) -> Iterator[Attribute]:
        """Yield the attributes that are read after a join; for those that the worker computes then, their inputs."""
        for later in range(number + 1, len(self.links)):
            attributes = [self.attributes.left[later](name) for name in self.contexts[later].plan.left_columns]
            for attribute in (*attributes, *self._keys[later]):
                computed = attribute.expression is not None and attribute.join >= number
                yield from self._read_by(attribute.expression) if computed else [attribute]
            for expression in self.attributes.filters[later]:
                yield from self._read_by(expression)


def _apply(first: JoinContext, step: ComputedStep) -> JoinContext:
    """Return the first join with another left side."""
    left, sql = first.left, step.sql
    column = F.expr(substitute(sql, lambda _, name: quote(name))) if sql is not None else step.column(left)
    left = left.where(column) if step.name is None else left.select("*", column.alias(step.name))
    return replace(first, left=left)


def _is_computed(attribute: Attribute, number: int) -> bool:
    """Return whether the worker computes an attribute right after a join."""
    return attribute.expression is not None and attribute.join == number


def residual_columns(context: JoinContext) -> set[str]:
    """Return the left columns that the conditions read which the worker evaluates after the lookup."""
    columns = (column for conjunct in context.plan.residual for column in expr.columns_of(conjunct))
    return {column.name for column in columns if column.side == "left"}
