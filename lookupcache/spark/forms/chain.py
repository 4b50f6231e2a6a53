"""Several lookups in one Python stage: a join whose left side is the result of another lookup join.

left ─► filters · key expressions (Spark) ─► mapInArrow( first join ─► second join ─► … ) ─► what only Spark evaluates

Spark computes what all joins of the chain read of the first left side, in one select; each join passes on what the
later ones need. A column on its way through the chain is a *slot*: a column of the first left side, an expression over
it, or a column that one of the joins adds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame

from lookupcache import expr
from lookupcache.planner import substitute
from lookupcache.report import Channel, ChannelChain
from lookupcache.schema import quote
from lookupcache.spark.forms.join_context import JoinContext
from lookupcache.worker.chain import ChainTask
from lookupcache.worker.runner import Layout
from lookupcache.worker.task import Task

ROW = "row"
"""A column of the left side where the stage would return none: in Spark, a batch without columns has no rows."""

_COLUMN = re.compile(r"l\.`(?:[^`]|``)*`")
_INTEGER_CAST = re.compile(r"CAST\((l\.`(?:[^`]|``)*`) AS (SMALLINT|INT|BIGINT)\)")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True)
class Slot:
    """A column on its way through the chain.

    ``join`` is the number of the join that adds it and ``name`` its name there, inside the job; -1 for what Spark
    computes before the stage, whose ``name`` is SQL over the first left side.
    """

    join: int
    name: str


@dataclass(frozen=True, eq=False)
class Link:
    """One join of a chain; ``source`` gives the position of each left column in the result of the join before."""

    context: JoinContext
    source: Mapping[str, int]


class NotFusedError(Exception):
    """Why a join needs a Python stage of its own; the text stands in `explain`."""


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


def worker_columns(context: JoinContext) -> list[str]:
    """Return the columns that the worker has after a join, by their names inside the job: first the left ones."""
    return [*context.carried, *added_columns(context)]


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
        self._left: list[dict[str, Slot]] = []
        for number in range(len(links)):
            self._left.append(self._left_slots(number))
        self._keys = [
            [self._key(number, sql) for sql in context.keys()[1]] for number, context in enumerate(self.contexts)
        ]
        self._filters = [sql for number in range(len(links)) for sql in self._filters_of(number)]

    def extended(self, link: Link) -> Chain:
        """Return the chain with another join at its end."""
        return Chain([*self.links, link])

    # ── what each join reads ─────────────────────────────────────────────────────────────────────────────

    def _left_slots(self, number: int) -> dict[str, Slot]:
        """Return the slot of each left column of a join that can be one."""
        context = self.contexts[number]
        if number == 0:
            return {name: Slot(-1, f"l.{quote(name)}") for name in context.left.columns}
        before = self._result_slots(number - 1)
        return {name: before[position] for name, position in self.links[number].source.items()}

    def _result_slots(self, number: int) -> list[Slot]:
        context = self.contexts[number]
        result = result_columns(context)
        if result is None:
            raise NotFusedError(f"Spark computes columns or conditions after the lookup of {context.plan.table}")
        left = {context.column("l", name): self._left[number][name] for name in context.plan.left_columns}
        return [left.get(name) or Slot(number, name) for name in result]

    def _key(self, number: int, sql: str) -> Slot:
        """Return the slot of a key: a column as it is, or an expression that Spark computes before the stage."""
        found = _COLUMN.fullmatch(sql) or _INTEGER_CAST.fullmatch(sql)
        if number and found:
            name = next(columns_in(sql))
            # The worker widens an integer to the key's type; of other casts only Spark knows the meaning.
            if found.re is _COLUMN or _is_wider(self._type(number, name), found[2]):
                return self._left[number][name]
        return Slot(-1, self._before(number, sql, "key"))

    def _filters_of(self, number: int) -> Iterator[str]:
        context = self.contexts[number]
        for sql in (*context.plan.left_filter, *context.keys()[0]):
            yield self._before(number, sql, "filter")

    def _before(self, number: int, sql: str, what: str) -> str:
        """Return an expression over a join's left side as one over the first left side; raises NotFusedError."""
        if number == 0:
            return sql

        def column(_: str, name: str) -> str:
            slot = self._left[number][name]
            if slot.join >= 0:
                table = self.contexts[slot.join].plan.table
                raise NotFusedError(f"the {what} {sql} is computed by Spark from a column of {table}")
            return slot.name

        replaced, earlier = substitute(sql, column), self.contexts[:number]
        if not _COLUMN.fullmatch(replaced) and any(map(_drops_rows, earlier)):
            # It might raise an error for a row that never gets there.
            raise NotFusedError(f"the {what} {sql} is computed by Spark, and a join before drops rows")
        if what == "filter" and any(map(_needs_all_rows, earlier)):
            raise NotFusedError(f"the filter {sql} would keep rows from a join before that reports on each")
        return replaced

    def _type(self, number: int, name: str) -> str:
        return self.contexts[number].types[self.contexts[number].column("l", name)].simpleString()

    @cached_property
    def computes(self) -> bool:
        """Whether Spark computes an expression before the stage, whose meaning may depend on the session's settings."""
        names = [slot.name for keys in self._keys for slot in keys if slot.join < 0]
        plain = all(_COLUMN.fullmatch(name) or _INTEGER_CAST.fullmatch(name) for name in names)
        return bool(self._filters) or not plain

    # ── the stage ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def last(self) -> JoinContext:
        """The last join."""
        return self.contexts[-1]

    def rows(self) -> DataFrame:
        """Return what Spark computes of the first left side: the columns that enter the stage."""
        first = self.contexts[0]
        columns = [*self._left_in[0], *self._keys_in[0]]
        rows = first.select(self._filters, {f"s{number}": slot.name for number, slot in enumerate(columns)})
        if first.plan.config.shuffle:
            rows = rows.repartition(*(f"s{columns.index(slot)}" for slot in self._keys[0]))
        return rows

    def task(self, output: Sequence[str] | None, channel: Channel) -> Task | ChainTask:
        """Return what the worker runs; ``output`` are the columns that it returns, all that it has where it is None."""
        tasks = [self._task(number, output) for number in range(len(self.links))]
        return ChainTask(tuple(tasks), channel, tuple(self._ahead())) if isinstance(channel, ChannelChain) else tasks[0]

    def _ahead(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the later joins whose keys are known from the start, where requesting all of them costs no extra call.

        An earlier join that drops rows would spare calls. An error that does not end the job would be requested
        twice, as would all keys of a join without a cache.
        """
        entering = [*self._left_in[0], *self._keys_in[0]]
        for number, context in enumerate(self.contexts):
            config, keys = context.plan.config, self._keys[number]
            known = config.cache in ("LRU", "TTL") and config.missing_key and config.on_error == "fail"
            if number and known and keys and not context.plan.never and all(slot in entering for slot in keys):
                yield number, tuple(entering.index(slot) for slot in keys)
            if _drops_rows(context):
                return

    def _task(self, number: int, output: Sequence[str] | None) -> Task:
        context = self.contexts[number]
        left, keys = self._left_in[number], [*self._left_in[number], *self._keys_in[number]]
        own = self._own(number)
        layout = Layout(
            left=(*own, *(f"{ROW}{position}" for position in range(len(own), len(left)))),
            keys=tuple(keys.index(slot) for slot in self._keys[number]),
            output=self._output(number, output),
        )
        return Task(context.plan, context.connector, layout, context.channel, context.letters)

    def _output(self, number: int, output: Sequence[str] | None) -> tuple[int, ...] | None:
        if number == len(self.links) - 1:
            columns = worker_columns(self.last)
            return None if output is None else tuple(columns.index(name) for name in output)
        available = [*self._left_in[number], *(Slot(number, name) for name in added_columns(self.contexts[number]))]
        following = [*self._left_in[number + 1], *self._keys_in[number + 1]]
        return tuple(available.index(slot) for slot in following)

    @cached_property
    def _left_in(self) -> list[list[Slot]]:
        """For each join the slots that it passes on: its own left columns, then what only later joins read."""
        found = []
        for number in range(len(self.links)):
            own = [self._left[number][name] for name in self._own(number)]
            later = dict.fromkeys(slot for slot in self._read_after(number) if slot.join < number)
            found.append([*own, *(slot for slot in later if slot not in own)])
        if is_bare(self.last):
            row = Slot(-1, "TRUE")
            found = [[*(slot for slot in slots if slot != row), row] for slots in found]
        return found

    @cached_property
    def _keys_in(self) -> list[list[Slot]]:
        """For each join the key slots that it does not pass on."""
        pairs = zip(self._keys, self._left_in, strict=True)
        return [list(dict.fromkeys(slot for slot in keys if slot not in left)) for keys, left in pairs]

    def _own(self, number: int) -> Sequence[str]:
        """Return the left columns that a join needs for itself: the last for its result."""
        context = self.contexts[number]
        if number == len(self.links) - 1 or context.letters is not None:
            return context.plan.left_columns
        return [name for name in context.plan.left_columns if name in residual_columns(context)]

    def _read_after(self, number: int) -> Iterator[Slot]:
        for later in range(number + 1, len(self.links)):
            yield from (self._left[later][name] for name in self.contexts[later].plan.left_columns)
            yield from self._keys[later]


def _is_wider(type_: str, target: str) -> bool:
    """Return whether a cast from one type to another only widens an integer."""
    return type_ in _INTEGERS and _INTEGERS.index(type_) < _INTEGERS.index(target.lower())


def columns_in(sql: str) -> Iterator[str]:
    """Yield the names of the left columns in a plan's SQL.

    >>> list(columns_in("l.`a` + l.`b c` > 1"))
    ['a', 'b c']
    """
    names: list[str] = []

    def column(_: str, name: str) -> str:
        names.append(name)
        return ""

    substitute(sql, column)
    yield from names


def residual_columns(context: JoinContext) -> set[str]:
    """Return the left columns that the conditions read which the worker evaluates after the lookup."""
    columns = (column for conjunct in context.plan.residual for column in expr.columns_of(conjunct))
    return {column.name for column in columns if column.side == "left"}


def _needs_all_rows(context: JoinContext) -> bool:
    """Return whether a row that a later filter drops would be missed: as a dead letter, or as an error."""
    return context.plan.config.on_error == "dead-letter" or context.plan.matches == "single"


def _drops_rows(context: JoinContext) -> bool:
    return context.plan.how != "left" or context.plan.config.on_error == "dead-letter"
