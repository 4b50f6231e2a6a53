"""The columns and conditions between two lookup joins, over the result of the first.

Each has two forms. One is an expression that a worker evaluates with exactly Spark's meaning, the other Spark's own
over the first left side of the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql import Column, DataFrame

from lookupcache.expr import Call, Expr, can_fail
from lookupcache.expr import Column as ExprColumn
from lookupcache.planner import substitute
from lookupcache.planner.clauses import columns_in
from lookupcache.planner.sql_reader import SqlReader, is_repeatable
from lookupcache.schema import quote

SparkColumn = Callable[[DataFrame, Mapping[str, str]], Column]
"""Returns a Column over a DataFrame, given the name there of each column that it reads."""


@dataclass(frozen=True, eq=False)
class KeyedValue:
    """A column or a condition over columns that have keys.

    - ``text``: as `explain` shows it; ``reads``: the keys of the columns that it reads.
    - ``expression``: the worker's expression, its columns named by key; None where only Spark can evaluate it.
    - ``spark``: Spark's own: SQL in which a column is ``l.`key```, or a function that returns a Column. None where it
      cannot be evaluated elsewhere, as a sub-query.
    - ``deterministic``: it is known to give one row one value, and the same value when it is evaluated twice.
    - ``total``: evaluating it never ends in an error, whatever the row.
    """

    text: str
    reads: frozenset[str]
    expression: Expr | None
    spark: str | SparkColumn | None
    deterministic: bool = True
    total: bool = False

    @cached_property
    def column(self) -> str | None:
        """The key of the column that it is, if it is nothing else."""
        return next(iter(self.reads)) if self.spark in {f"l.{quote(key)}" for key in self.reads} else None


@dataclass(frozen=True, eq=False)
class Selection:
    """A selection from a join's result: the rows for which all filters are true, and columns.

    ``column`` returns one by its name. The keys of the values are positions in that result, as text.
    """

    filters: tuple[KeyedValue, ...]
    column: Callable[[str], KeyedValue]


def plain_column(key: str, name: str | None = None) -> KeyedValue:
    """Return a column as it is, shown by its name, by default its key."""
    return KeyedValue(name or key, frozenset([key]), None, f"l.{quote(key)}", total=True)


def value_of_sql(sql: str, reader: SqlReader, key: Callable[[str, str], str], *, alone: bool = False) -> KeyedValue:
    """Return an expression in a plan's SQL, which ``reader`` reads; if it is ``alone``, no worker will evaluate it.

    ``key`` returns the key of a column, by its side and its name there.
    """
    expression = None if alone else reader.expression(sql)
    reads = frozenset(key(side, name) for side, name in columns_in(sql))
    spark = substitute(sql, lambda side, name: f"l.{quote(key(side, name))}")
    renamed = expression and with_columns(expression, lambda c: replace(c, side="left", name=key(c.side[0], c.name)))
    total = renamed is not None and not can_fail(renamed)
    return KeyedValue(sql, reads, renamed, spark, deterministic=is_repeatable(sql, reader.settings), total=total)


def with_columns(expression: Expr, column: Callable[[ExprColumn], Expr]) -> Expr:
    """Return an expression with each column replaced."""
    if isinstance(expression, ExprColumn):
        return column(expression)
    if isinstance(expression, Call):
        return replace(expression, args=tuple(with_columns(argument, column) for argument in expression.args))
    return expression
