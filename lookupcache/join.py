"""The driver's side: from a left DataFrame, a lookup table and a condition to the joined DataFrame.

left ─► filter · key expressions (Spark) ─► mapInArrow (runner) ─► what only Spark can judge ─► select
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from lookupcache import expr
from lookupcache.errors import ConnectorError
from lookupcache.metrics import LookupMetrics
from lookupcache.plan import Matches
from lookupcache.planner import LeftColumn, explain, plan_join, substitute
from lookupcache.planner.column import column_sql
from lookupcache.planner.constants import literal_sql
from lookupcache.planner.naming import column_name
from lookupcache.report import Channel, channel_of
from lookupcache.schema import quote
from lookupcache.table import LookupTable
from lookupcache.worker.dead_letters import located
from lookupcache.worker.runner import ERROR, MATCHES, Layout, too_many_rows
from lookupcache.worker.task import Task

Condition = str | Sequence[str] | Column

_AGE, _ERROR = "age", "error"
_SURVIVES = f"{_ERROR} IS NOT NULL"


def lookup_join(
    left: DataFrame,
    table: LookupTable,
    on: Condition,
    how: str = "inner",
    select: Sequence[str] | None = None,
    *,
    where: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Join a DataFrame, batch or streaming, with the rows that a lookup table has for its keys.

    ``on`` is SQL text, a list of column names that both sides have, or a Column; in it the table's name
    qualifies the table's columns. ``how`` is inner, left, semi or anti. ``select`` lists columns or SQL
    expressions over both sides; by default all left columns, then all of the table's. ``where`` is SQL
    text that filters the result. ``options`` override those of the table.

    The result is what ``left.join(right)`` would give over the table's rows at the time of the lookup. Raises
    PlanError, SchemaError or OptionError for what cannot be joined as written, before any job.

    A lookup that fails, after its retries, is never a missing row. ``lookup.on-error`` says what it is: ``fail``
    ends the job with an error that names the table, how many keys were asked for, and how often. With ``null`` each
    left row whose lookup failed stands in the result once, whatever ``how``, ``on`` and ``where`` ask of a row
    of the table: its columns of the table are null, and ``lookup.error-column`` holds the error. With
    ``dead-letter`` those left rows are not in the result but in Parquet files under ``lookup.dead-letter.path``,
    written once the task is through; a task that a ``limit`` stops early leaves none.

    >>> names = {1: "ann", 2: "bob"}
    >>> people = LookupTable.from_function("p", "id BIGINT, name STRING", key=["id"],
    ...     function=lambda i: [(i, names[i])] if i in names else [])
    >>> visits = spark.range(1, 4)
    >>> lookup_join(visits, people, on=["id"], how="left", select=["left.id", "p.name"]).collect()
    [Row(id=1, name='ann'), Row(id=2, name='bob'), Row(id=3, name=None)]
    """
    return LookupJoin(left, table, on, how, select, where=where, options=options).df


class LookupJoin:
    """A planned lookup join: its ``plan``, its result ``df``, its `explain` and its `metrics`.

    Takes what `lookup_join` takes. Use it where you want to see what went where, or to count. ``matches`` bounds
    what a left join gives a left row: ``all`` its matches, the ``first``, or a ``single`` one, where a second
    raises TooManyRows, as in a scalar sub-query.

    >>> squares = LookupTable.from_function("s", "n BIGINT, square BIGINT", key=["n"],
    ...     function=lambda n: [(n, n * n)])
    >>> join = LookupJoin(spark.range(3), squares, on="id = s.n", select=["s.square"])
    >>> sorted(row.square for row in join.df.collect())
    [0, 1, 4]
    >>> join.metrics().misses
    3
    """

    def __init__(
        self,
        left: DataFrame,
        table: LookupTable,
        on: Condition,
        how: str = "inner",
        select: Sequence[str] | None = None,
        *,
        where: str | None = None,
        options: Mapping[str, Any] | None = None,
        matches: Matches = "all",
    ) -> None:
        self.left = left
        self.table = table.with_options(options) if options else table
        self.spark: SparkSession = left.sparkSession
        self.plan = plan_join(
            [LeftColumn(field.name, field.dataType.simpleString()) for field in left.schema.fields],
            self.table,
            on=_condition(on),
            how=how,
            where=where,
            select=select,
            matches=matches,
            analyst=_Analyst(self),
            case_sensitive=self._setting("spark.sql.caseSensitive") == "true",
            ansi=self._setting("spark.sql.ansi.enabled") == "true",
        )
        self._channel: Channel = channel_of(self.plan, self.spark, streaming=left.isStreaming)

    @cached_property
    def _numbered(self) -> DataFrame:
        """The left side, its columns named by their numbers, which are unique."""
        return self.left.toDF(*(f"l{number}" for number in range(len(self.left.columns))))

    @cached_property
    def df(self) -> DataFrame:
        """The result, lazy as any DataFrame."""
        looked_up = self._looked_up()
        return looked_up if self._ready is not None else self._output(self._judged(self._channel.observed(looked_up)))

    def explain(self) -> str:
        """Return where each part of the condition went, what is pushed and cached, and the cache's identity."""
        return explain(self.plan)

    def metrics(self) -> LookupMetrics:
        """Return the counts of all that has run so far; with ``observe``, of the first action, once it has ended."""
        return self._channel.metrics()

    def metrics_in(self, progress: Any) -> LookupMetrics:
        """Return the counts of one micro-batch from its StreamingQueryProgress; needs ``observe``."""
        return self._channel.metrics_in(progress)

    # ── the way of the data ──────────────────────────────────────────────────────────────────────────────

    def _looked_up(self) -> DataFrame:
        filters, keys = self._keys()
        left, spelled = self._left()
        for condition in (*self.plan.left_filter, *filters):
            left = left.where(spelled(condition))
        carried = self._carried()
        added = [sql for sql in keys if self._sql(sql) not in carried]
        items = [
            f"{spelled(column_name('left', name))} AS {self._column('l', name)}" for name in self.plan.left_columns
        ]
        given = left.selectExpr(*items, *(f"({spelled(sql)}) AS k{n}" for n, sql in enumerate(added)))
        if self.plan.config.shuffle:
            places = [f"k{added.index(sql)}" if sql in added else self._sql(sql) for sql in keys]
            given = given.repartition(*(F.expr(place) for place in places))
        layout = Layout(
            left=self.plan.left_columns,
            keys=tuple(len(carried) + added.index(s) if s in added else carried.index(self._sql(s)) for s in keys),
            output=None if self._ready is None else tuple(self._worker_columns().index(name) for name in self._ready),
        )
        task = Task(self.plan, pickled(self.table), layout, self._channel, self._letters())
        return given.mapInArrow(task, self._schema())

    @cached_property
    def _ready(self) -> list[str] | None:
        """The columns of the result, where it is nothing but columns that the worker has.

        It then gives them in their order under their names, which spares Spark a copy of every row.
        """
        if self.plan.spark_residual or self.plan.filter_after or self._channel.fields():
            return None
        sides = {"l": self.plan.left_columns, "r": self.plan.columns}
        names = {f"{s}.{quote(name)}": self._column(s, name) for s, columns in sides.items() for name in columns}
        if any(output.sql not in names for output in self.plan.output):
            return None
        return [*(names[output.sql] for output in self.plan.output), *self._marks]

    def _keys(self) -> tuple[Sequence[str], list[str]]:
        """Return the filters to apply before the lookup, and the key expressions, as the plan spells them.

        A row that fails the pre-filter has no match: it goes, or where the join keeps it, loses its key.
        """
        keys = [key.sql for key in self.plan.keys]
        if self.plan.how in ("inner", "semi") or not self.plan.pre_filter:
            return self.plan.pre_filter, keys
        condition = " AND ".join(f"({sql})" for sql in self.plan.pre_filter)
        return (), [f"CASE WHEN {condition} THEN {keys[0]} END", *keys[1:]]

    def _left(self) -> tuple[DataFrame, Callable[[str], str]]:
        """Return the left side, and what spells a plan's SQL over it: its own names, where no two are alike."""
        if len({name.lower() for name in self.left.columns}) < len(self.left.columns):
            return self._numbered, self._sql
        return self.left, lambda sql: substitute(sql, lambda _, name: quote(name))

    def _judged(self, df: DataFrame) -> DataFrame:
        """Apply what only Spark can evaluate: to joined rows, or to each left row's list of matches.

        A row whose lookup failed is kept: what it would be matched with is not known.
        """
        if not self.plan.spark_residual:
            return df
        if self.plan.how == "inner":
            return self._where(df, self.plan.spark_residual)
        true = " AND ".join(f"({self._sql(sql, 'lookup_row.')})" for sql in self.plan.spark_residual)
        if self.plan.how == "left":
            kept = F.expr(f"explode_outer({self._limited(f'filter({MATCHES}, lookup_row -> {true})')})").alias("m")
            rows = df.select(*(c for c in df.columns if c != MATCHES), kept)
            return rows.select("*", *(F.col(f"m.{name}").alias(name) for name in self._right_names())).drop("m")
        exists = f"exists({MATCHES}, lookup_row -> coalesce({true}, false))"
        return df.where(self._or_failed(exists if self.plan.how == "semi" else f"NOT {exists}"))

    def _limited(self, matches: str) -> str:
        """Return SQL for as many of a left row's matches as the plan wants."""
        if self.plan.matches == "single":
            error = f"raise_error({literal_sql(expr.Literal(too_many_rows(self.plan.table), pa.string()))})"
            return f"transform({matches}, (m, n) -> if(n = 0, m, {error}))"
        return matches if self.plan.matches == "all" else f"slice({matches}, 1, 1)"

    def _output(self, df: DataFrame) -> DataFrame:
        rows = self._where(df, self.plan.filter_after)
        selected = [F.expr(self._sql(output.sql)).alias(output.name) for output in self.plan.output]
        return rows.select(*selected, *(F.col(mark).alias(name) for mark, name in self._marks.items()))

    def _where(self, df: DataFrame, conditions: Iterable[str]) -> DataFrame:
        for condition in conditions:
            df = df.where(self._or_failed(self._sql(condition)))
        return df

    def _or_failed(self, condition: str) -> str:
        """Return the condition, or where failed rows are among the others, one that keeps them too."""
        return f"({condition}) OR {_SURVIVES}" if _ERROR in self._marks else condition

    # ── names and types ──────────────────────────────────────────────────────────────────────────────────

    def _sql(self, sql: str, right: str = "") -> str:
        return substitute(sql, lambda side, name: right * (side == "r") + self._column(side, name))

    def _column(self, side: str, name: str) -> str:
        """Return a column's name inside the job: a letter for its side, and its number there."""
        names = self.left.columns if side == "l" else self.plan.schema.names
        return f"{side}{names.index(name)}"

    def _carried(self) -> list[str]:
        return [self._column("l", name) for name in self.plan.left_columns]

    def _right_names(self) -> list[str]:
        return [self._column("r", name) for name in self.plan.columns]

    @cached_property
    def _marks(self) -> dict[str, str]:
        """The columns for age and error, where they are wanted: their names inside the job, and in the result."""
        names = {_AGE: self.plan.config.age_column, _ERROR: self.plan.config.error_column}
        return {mark: name for mark, name in names.items() if name is not None}

    def _worker_columns(self) -> list[str]:
        """Return the columns that the worker has where it gives rows as they are in the result."""
        right = [] if self.plan.how in ("semi", "anti") else self._right_names()
        return [*self._carried(), *right, *self._marks]

    def _letters(self) -> str | None:
        """Return where dead letters go: a path that is relative counts from the driver's directory."""
        path = self.table.config.dead_letter_path
        return None if path is None else located(path)

    def _schema(self) -> T.StructType:
        """Return the types of what the worker gives."""
        left = [T.StructField(name, self._types[name]) for name in self._carried()]
        right = [T.StructField(name, self._types[name]) for name in self._right_names()]
        if self._ready is not None:
            names = [*(output.name for output in self.plan.output), *self._marks.values()]
            columns = zip(names, self._ready, strict=True)
            return T.StructType([T.StructField(name, self._types[column]) for name, column in columns])
        if self.plan.spark_residual and self.plan.how != "inner":
            right = [T.StructField(MATCHES, T.ArrayType(T.StructType(right)))]
        elif self.plan.how in ("semi", "anti"):
            right = []
        marks = [T.StructField(mark, self._types[mark]) for mark in self._marks]
        return T.StructType([*left, *right, *marks, *self._channel.fields()])

    @cached_property
    def _types(self) -> dict[str, T.DataType]:
        """The Spark types of the columns of both sides, by their names inside the job."""
        left = {f"l{number}": field.dataType for number, field in enumerate(self.left.schema)}
        right = {f"r{number}": spark_type(field.type) for number, field in enumerate(self.plan.schema)}
        return left | right | {_AGE: T.DoubleType(), _ERROR: spark_type(ERROR)}

    def _setting(self, name: str) -> str:
        return str(self.spark.conf.get(name)).lower()


@dataclass
class _Analyst:
    """Asks Spark what only Spark knows."""

    join: LookupJoin

    def types(self, expressions: Sequence[str]) -> list[str]:
        """Return the types of expressions over the left side."""
        names = {name: number for number, name in enumerate(self.join.left.columns)}
        columns = [
            F.expr(substitute(sql, lambda side, name: f"l{names[name]}")).alias(f"e{number}")
            for number, sql in enumerate(expressions)
        ]
        return [field.dataType.simpleString() for field in self.join._numbered.select(*columns).schema.fields]

    def fold(self, expressions: Sequence[str]) -> list[Any]:
        """Return the values of expressions without columns."""
        columns = ", ".join(f"{sql} AS e{number}" for number, sql in enumerate(expressions))
        return list(self.join.spark.sql(f"SELECT {columns}").collect()[0])


def pickled(table: LookupTable) -> bytes:
    """Return a table's connector as it travels to the workers; raises ConnectorError where it cannot."""
    try:
        return cloudpickle.dumps(table.connector)
    except Exception as error:
        raise ConnectorError(
            f"Connector {table.connector_name!r} of table {table.name!r} cannot be pickled: {error}.",
            hint="Make clients in open(), which runs in the worker, not in __init__.",
        ) from error


def _condition(on: Condition) -> str | Sequence[str]:
    return column_sql(on) if isinstance(on, Column) else on


def spark_type(type_: pa.DataType) -> T.DataType:
    """Return the Spark type of an Arrow type.

    >>> spark_type(pa.list_(pa.timestamp("us", "UTC")))
    ArrayType(TimestampType(), True)
    """
    return from_arrow_type(type_, prefer_timestamp_ntz=True)
