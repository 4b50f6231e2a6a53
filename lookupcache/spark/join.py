"""The driver's side: from a left DataFrame, a lookup table and a condition to the joined DataFrame.

left, table, condition ─► plan (planner) ─► form (forms.choice) ─► the joined DataFrame (forms)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import cloudpickle
import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql import types as T  # noqa: N812

from lookupcache.compiled import CompiledPlan
from lookupcache.compiled.catalog_objects import Objects, differs, planned_lookup
from lookupcache.compiled.nodes import LookupNode
from lookupcache.compiled.settings import refuse_other_settings
from lookupcache.errors import CompiledPlanError, ConnectorError, LookupCacheError, OptionError
from lookupcache.metrics import LookupMetrics
from lookupcache.notebook import as_html
from lookupcache.plan import Matches, own_name
from lookupcache.planner import LeftColumn, explain, plan_join, substitute
from lookupcache.planner.as_of import AsOf
from lookupcache.planner.condition import BoundCondition
from lookupcache.planner.explain import parts_of, title_of
from lookupcache.planner.naming import left_qualifier
from lookupcache.planner.settings import Settings
from lookupcache.planner.sql_reader import SqlReader
from lookupcache.report import Channel, channel_of, is_classic
from lookupcache.schema import quote
from lookupcache.spark.alias import alias_of, under_alias
from lookupcache.spark.arguments import ColumnTexts, refuse_misplaced, refuse_other_table
from lookupcache.spark.declared import as_left, declare, explain_refusal, is_declared
from lookupcache.spark.error_log import muted_error_log
from lookupcache.spark.forms import FORMS, JoinContext, choose
from lookupcache.spark.forms.attributes import Link, NotFusedError
from lookupcache.spark.forms.chain import Chain
from lookupcache.spark.forms.choice import as_compiled
from lookupcache.spark.forms.join_context import left_column, number_columns
from lookupcache.spark.forms.worker import by_worker, result_schema
from lookupcache.spark.freezing import columns_of, join_document, refuse_stream
from lookupcache.spark.latest import by_latest, describe, state_lines
from lookupcache.spark.lineage import foreign_to, identity, is_persisted, obstacle_of, origin_of, remember
from lookupcache.spark.planned import FormChoice, PendingResult
from lookupcache.spark.refusals import BothSides
from lookupcache.spark.registry import JOINS
from lookupcache.spark.user_functions import shadowing_functions
from lookupcache.spark.variables import naming_session_variables, unset_in_join, with_variables
from lookupcache.spark.worker_python import refuse_other_python
from lookupcache.table import LookupTable
from lookupcache.versions import is_column, refuse_unsupported_session
from lookupcache.worker.dead_letters import absolute_path
from lookupcache.worker.source_identity import shares_nothing

Condition = str | Sequence[str] | Sequence[Column] | Column
Selection = Sequence[str | Column]


def lookup_join(
    left: DataFrame,
    table: LookupTable,
    on: Condition,
    how: str = "inner",
    select: Selection | None = None,
    *,
    where: str | Column | None = None,
    as_of: str | Column | None = None,
    matches: Matches = "all",
    options: Mapping[str, Any] | None = None,
    left_schema: str | pa.Schema | T.StructType | None = None,
) -> DataFrame:
    """Join a DataFrame, batch or streaming, with the rows that a lookup table has for its keys.

    The result is that of ``left.join(right)`` over the table's rows at the time of the lookup. Raises PlanError,
    SchemaError or OptionError for a join that cannot be planned, before any job.

    A lookup that fails, after its retries, is never a miss. ``lookup.on-error`` sets the result: ``fail`` ends the job
    with an error that names the table, the number of keys, and the number of attempts. With ``null`` each left row
    whose lookup failed is in the result once, whatever ``how``, ``on`` and ``where`` require of a row of the table. Its
    columns of the table are null, and ``lookup.error-column`` contains the error. With ``dead-letter`` those left rows
    are not in the result but in Parquet files under ``lookup.dead-letter.path``. They are written when the task is
    complete; a task that a ``limit`` stops early leaves none.

    Args:
        left: The left side, batch or streaming.
        table: The lookup table.
        on: SQL text, the name or names of columns that both sides have, or a Column or several, which must all be true.
            The table's name qualifies its columns.
        how: ``inner``, ``left``, ``semi`` or ``anti``.
        select: SQL expressions or Columns over both sides. By default all of both sides, as in Spark's join. Those of a
            list in ``on`` come first, and once; their bare names are those of the left side. The left side's alias may
            qualify its columns in the result.
        where: SQL text, or a Column, that filters the result.
        as_of: The time of the left rows, a column or SQL, as in ``"o.ts"``. Each is joined with the rows that were
            valid then, by the table's ``lookup.as-of.period``, or with the latest version, by ``lookup.as-of.version``.
        matches: The matches of each left row in a left join: ``all``, the ``first``, or a ``single`` one. With
            ``single``, a second match raises TooManyRowsError, as in a scalar sub-query.
        options: Options that override those of the table.
        left_schema: The columns of the left side, as DDL text, Arrow or Spark schema; only for queries of declarative
            pipelines, where Spark refuses to analyze. Others are not passed on.

    >>> names = {1: "ann", 2: "bob"}
    >>> people = LookupTable.from_function("p", "id BIGINT, name STRING", key=["id"],
    ...     function=lambda i: [(i, names[i])] if i in names else [])
    >>> visits = spark.range(1, 4)
    >>> lookup_join(visits, people, on=["id"], how="left", select=["left.id", "p.name"]).collect()
    [Row(id=1, name='ann'), Row(id=2, name='bob'), Row(id=3, name=None)]
    """
    given: dict[str, Any] = {"where": where, "as_of": as_of, "matches": matches, "options": options}
    return LookupJoin(left, table, on, how, select, left_schema=left_schema, **given).df


def lookup(
    table: LookupTable,
    on: Condition,
    how: str = "inner",
    select: Selection | None = None,
    *,
    where: str | Column | None = None,
    as_of: str | Column | None = None,
    matches: Matches = "all",
    options: Mapping[str, Any] | None = None,
    left_schema: str | pa.Schema | T.StructType | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return `lookup_join` as a function of the left side, for `DataFrame.transform`; it takes the same arguments.

    >>> squares = LookupTable.from_function("s", "n BIGINT, square BIGINT", key=["n"],
    ...     function=lambda n: [(n, n * n)])
    >>> spark.range(2, 4).transform(lookup(squares, on="id = s.n", select=["s.square"])).collect()
    [Row(square=4), Row(square=9)]
    """
    refuse_other_table(table)
    given: dict[str, Any] = {"where": where, "as_of": as_of, "matches": matches, "options": options}
    return lambda left: lookup_join(left, table, on, how, select, left_schema=left_schema, **given)


class LookupJoin:
    """A planned lookup join: its ``plan``, its result ``df``, its `explain` and its `metrics`.

    It takes the arguments of `lookup_join`.

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
        on: Condition | BoundCondition,
        how: str = "inner",
        select: Selection | None = None,
        *,
        where: str | Column | BoundCondition | None = None,
        as_of: AsOf | Column | None = None,
        options: Mapping[str, Any] | None = None,
        left_schema: str | pa.Schema | T.StructType | None = None,
        matches: Matches = "all",
    ) -> None:
        refuse_misplaced(left, table, on=on, how=how, select=select, where=where, as_of=as_of, options=options)
        self.left = left = left if left_schema is None else declare(left, left_schema)
        self.spark: SparkSession = left.sparkSession
        refuse_unsupported_session(self.spark)
        refuse_other_python(self.spark)
        self.table = (table.with_options(options) if options else table).in_session(self.spark.conf.get)
        of_statement = _settings_read_with(on, where)
        settings = of_statement or planner_settings(self.spark)
        columns = _left_columns(left)
        names = {*left.columns, *self.table.schema.names}
        variables = str if of_statement is not None else partial(with_variables, self.spark, settings)
        texts = ColumnTexts(settings, left_qualifier([self.table.name, *names]), foreign_to(left), variables)
        both, selected = BothSides(left, self.table), cast(Any, select)
        with naming_session_variables(self.spark), unset_in_join(self.spark, settings, on, where, select, as_of):
            self.plan = plan_join(
                columns,
                self.table,
                on=on if isinstance(on, str) and on in names else texts.expression(on),
                how=how,
                where=texts.expression(where),
                select=texts.select(select),
                matches=matches,
                as_of=texts.expression(as_of),
                analyst=_Analyst(self),
                settings=settings,
                name_of=lambda number: both.name_of(selected[number]) if is_column(selected[number]) else None,
            )
        self._channel: Channel = _channel(self)
        self.reader = SqlReader(columns, self.table.schema, _Analyst(self), settings)
        self._restored: LookupNode | None = None
        self.alias = alias_of(left) if of_statement is None else None
        _ = self._context  # The connector, before values change that its identity in the plan has.
        JOINS.track(self, self._channel)

    # ── compiled plans ───────────────────────────────────────────────────────────────────────────────────

    @explain_refusal("the columns of the join", "Compile it outside of the functions of the pipeline.")
    def compile(self) -> CompiledPlan:
        """Return the join as a compiled plan, which `from_plan` applies to a left side of the same columns.

        The plan has the table completely. Raises CompiledPlanError for a function without a name, and for secrets in
        options that are not references.
        """
        refuse_stream(self)
        return CompiledPlan(join_document(self))

    @classmethod
    @explain_refusal(
        "whether the left side has the plan's columns", "Write the join as lookup_join(…, left_schema='id BIGINT')."
    )
    def from_plan(cls, left: DataFrame, plan: CompiledPlan) -> LookupJoin:
        """Return the join of a compiled plan over a left side; nothing is planned again.

        Raises CompiledPlanError where the left side has other columns, the session other settings, or the table is
        not what it was.
        """
        document = plan.document
        if not document.is_join or len(document.nodes) != 2:
            raise CompiledPlanError(
                f"Compiled plan {document.source} is one of statements, not of a lookup join.",
                hint="Run it with session.execute_plan(plan).",
            )
        refuse_other_settings(document, left.sparkSession)
        side, node = document.nodes
        assert isinstance(node, LookupNode)
        if columns_of(left) != side.output:
            raise differs("The columns of the left side", side.output, columns_of(left), document.source)
        return cls.from_node(left, node, Objects(document), keeps_alias=True)

    @classmethod
    def from_node(cls, left: DataFrame, node: LookupNode, objects: Objects, *, keeps_alias: bool = False) -> LookupJoin:
        """Return the join of a node of a compiled plan; raises CompiledPlanError if it has changed."""
        source = objects.document.source
        join = cls.__new__(cls)
        join.left, join.spark, join._restored = left, left.sparkSession, node
        refuse_other_python(join.spark)
        join.table = objects.lookup_table(node).in_session(join.spark.conf.get)
        join.plan = planned_lookup(node, join.table, source)
        join.alias = alias_of(left) if keeps_alias else None
        settings = planner_settings(join.spark)
        join.reader = SqlReader(_left_columns(left), join.table.schema, _Analyst(join), settings)
        join._channel = channel_of(join.plan, join.spark, streaming=left.isStreaming)
        if left.isStreaming and node.form != "worker":
            raise CompiledPlanError(
                f"Compiled plan {source} looks {node.alias!r} up in the form {node.form}, which a stream cannot take.",
                hint="The left side was a batch when the plan was compiled: compile the statement over the stream.",
            )
        try:
            result = columns_of(join.df)
        except (PySparkException, ValueError, KeyError) as error:
            if isinstance(error, LookupCacheError):
                raise
            raise CompiledPlanError(
                f"Compiled plan {source} looks {node.alias!r} up in a way that is not possible here: {error}",
                hint="Compile the statement again; a plan is not edited by hand.",
            ) from None
        if result != node.output:
            raise differs(f"The columns of the join with {node.alias!r}", node.output, result, source)
        JOINS.track(join, join._channel)
        return join

    @cached_property
    def df(self) -> DataFrame:
        """The result, lazy as any DataFrame; the left side's alias qualifies the columns of that side."""
        try:
            joined = self._joined()
            if self.alias is None:
                result = joined
            else:
                result = under_alias(joined, self.alias, self.plan, _Analyst(self).star(quote(self.alias)))
            result = as_left(result, self.left, joined)
        except AnalysisException as error:
            raise BothSides(self.left, self.table).refusal_of(self.plan, error) from None
        remember(result, self)
        return result

    def _joined(self) -> DataFrame:
        context = replace(self._context, again=self.choice.again)
        form = self.choice.form
        if self.table.stream is not None:
            return by_latest(context, self.table.stream)
        _ = self.chain.settings  # Those of now count.
        return by_worker(context, self.chain) if form == "worker" else FORMS[form](context)

    @cached_property
    def plan_identity(self) -> int | None:
        """An identifier of Spark's analyzed plan of the result."""
        return identity(self.df)

    @cached_property
    def result(self) -> DataFrame:
        """The result as the left side of another join; Spark analyzes it only if that needs more than its columns."""
        schema = result_schema(self._context) if self.choice.form == "worker" else None
        if schema is None:
            return self.df
        return cast(DataFrame, PendingResult(self, schema))

    @property
    def chain(self) -> Chain:
        """The joins that run in the Python stage of this one, which is the last."""
        return self._fusion[0]

    @property
    def shares_stage(self) -> bool:
        """Whether joins before it run in its Python stage."""
        return len(self.chain.links) > 1

    @cached_property
    def _fusion(self) -> tuple[Chain, str | None]:
        """The joins of the stage, and why an earlier join that gave the left side is not among them."""
        origin, obstacle = origin_of(self.left), None
        if origin is not None:
            try:
                if self._restored is not None and not self._restored.stage:
                    raise NotFusedError("the compiled plan gives the join a separate stage")
                first = cast(LookupJoin, origin.join)
                _refuse_to_fuse(first, self)
                return first.chain.extend(Link(self._context, self.reader, origin.selection)), None
            except NotFusedError as error:
                obstacle = str(error)
        return Chain([Link(self._context, self.reader)]), obstacle

    @cached_property
    def choice(self) -> FormChoice:
        """The physical form of the join, and why it was chosen."""
        if self.table.stream is not None:
            return FormChoice(*describe(self.table.stream, self.left))
        if self._restored is not None:
            return as_compiled(self._restored.form, self.left)
        return choose(self._context)

    @cached_property
    def _context(self) -> JoinContext:
        return JoinContext(self.plan, self.left, pickle_connector(self.table), self._channel, self._letters())

    def explain(self) -> str:
        """Return where each part of the condition went, the pushed filters, the cached columns, and the form."""
        return explain(self.plan, **self._explained())

    def _explained(self) -> dict[str, Any]:
        """Return the lines that `explain` shows beside the plan."""
        form = [(self.choice.form, self.choice.reason)]
        if self.table.stream is not None:
            return {"form": form, "state": state_lines(self.table.stream, self.left)}
        return {"form": [*form, *self._stage()], "shared": not shares_nothing(self.plan, self.table.connector)}

    def __repr__(self) -> str:
        title = title_of(self.plan).removeprefix("Lookup join: ")
        return f"<LookupJoin: {title}; explain() shows the plan, df has the rows>"

    def _repr_html_(self) -> str:
        return as_html(title_of(self.plan), parts_of(self.plan, **self._explained()))

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Print the first rows of the result, as `DataFrame.show` does.

        Args:
            n: The number of rows.
            truncate: Whether to cut texts to 20 characters, or the number of characters.
            vertical: Whether to print a line per value.
        """
        self.df.show(n, truncate, vertical)

    def metrics(self) -> LookupMetrics:
        """Return the counts of all that has run so far; with ``observe``, of the first action, once it has ended."""
        if is_declared(self.left):
            raise OptionError(
                "A join with left_schema has no metrics.", hint="Nothing could read them from a pipeline."
            )
        return self._channel.metrics()

    def metrics_in(self, progress: Any) -> LookupMetrics:
        """Return the counts of one micro-batch from its StreamingQueryProgress; not with ``accumulator``.

        All are 0 in a progress without a micro-batch: the query waits for data.
        """
        return self._channel.metrics_in(progress)

    def _stage(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of `explain` about the Python stage of the join."""
        if self.plan.config.shuffle and self.choice.form == "worker":
            yield "partitioned", "the left side, by key (lookup.shuffle)"
        chain, obstacle = self._fusion
        if len(chain.links) == 1 and obstacle is None:
            obstacle = obstacle_of(self.left)
        if obstacle is not None:
            yield "not fused", f"{obstacle}: a separate Python stage"
        elif len(chain.links) > 1 and self.choice.form == "worker":
            tables = ", ".join(context.plan.table for context in chain.contexts[:-1])
            yield "fused", f"in one Python stage with the lookups of {tables}"
            yield from chain.attributes.notes[-1].items()

    def _letters(self) -> str | None:
        """Return where dead letters go: a path that is relative counts from the driver's directory."""
        path = self.table.config.dead_letter_path
        return None if path is None else absolute_path(path)


@dataclass
class _Analyst:
    """Asks Spark for types, names and values of expressions."""

    join: LookupJoin

    @explain_refusal(
        "the type of an expression", "Compute it as a column of the left side, and name that in left_schema."
    )
    def types(self, expressions: Sequence[str]) -> list[str]:
        """Return the types of expressions over the left side."""
        names = {name: number for number, name in enumerate(self.join.left.columns)}
        columns = [
            F.expr(substitute(sql, lambda side, name: own_name("l", names[name], name))).alias(f"e{number}")
            for number, sql in enumerate(expressions)
        ]
        with self._naming(expressions):
            found = number_columns(self.join.left).select(*columns).schema
        return [field.dataType.simpleString() for field in found.fields]

    @explain_refusal("how it names a column", "Give the expression a name: select=['… AS name'].")
    def names(self, expressions: Sequence[str]) -> list[list[str]]:
        """Return Spark's names of expressions over both sides, which stand after ``l`` and ``r``."""
        both = BothSides(self.join.left, self.join.table).named("l", "r")
        with self._naming(expressions):
            return [both.selectExpr(sql).columns for sql in expressions]

    def star(self, qualifier: str) -> list[str] | None:
        """Return the left columns that ``qualifier.*`` stands for; None where Spark does not know the qualifier."""
        try:
            with muted_error_log():
                return list(self.join.left.select(f"{qualifier}.*").columns)
        except PySparkException:
            return None

    @explain_refusal("the value of an expression", "Write the value itself, as a literal.")
    def fold(self, expressions: Sequence[str]) -> list[Any]:
        """Return the values of expressions without columns."""
        columns = ", ".join(f"{sql} AS e{number}" for number, sql in enumerate(expressions))
        with self._naming(expressions):
            return list(self.join.spark.sql(f"SELECT {columns}").collect()[0])

    @contextmanager
    def _naming(self, expressions: Sequence[str]) -> Iterator[None]:
        """Raise errors of Spark's analysis as errors that name the expression."""
        try:
            yield
        except AnalysisException as error:
            raise BothSides(self.join.left, self.join.table).refusal(error, expressions) from None


def pickle_connector(table: LookupTable) -> bytes:
    """Return a table's connector, pickled for the workers; raises ConnectorError if that fails."""
    try:
        return cloudpickle.dumps(table.connector)
    except Exception as error:
        raise ConnectorError(
            f"Connector {table.connector_name!r} of table {table.name!r} cannot be pickled: {error}.",
            hint="Create clients in open(), which runs in the worker, not in __init__.",
        ) from error


def _channel(join: LookupJoin) -> Channel:
    """Return the channel of the join's counts; from a pipeline, no counts can be read."""
    if not is_declared(join.left):
        return channel_of(join.plan, join.spark, streaming=join.left.isStreaming)
    if join.plan.config.metrics in ("observe", "accumulator"):
        raise OptionError(
            f"'lookup.metrics' = {join.plan.config.metrics!r} is not possible with left_schema.",
            hint="Leave the option out; in a pipeline, the join is not counted.",
        )
    return Channel()


def _refuse_to_fuse(first: LookupJoin, second: LookupJoin) -> None:
    """Raise NotFusedError where two joins cannot share a Python stage, whatever they read."""
    if first.choice.form == second.choice.form == "distinct" and second.plan.config.form == "distinct":
        tables = f"{first.plan.table} and {second.plan.table}"
        raise NotFusedError(
            f"the lookups of {tables} take the form distinct: the first is computed again for the keys of the second"
        )
    for join in (first, second):
        table = join.plan.table
        if join.plan.config.fuse == "off":
            raise NotFusedError(f"'lookup.fuse' of {table} is off")
        if join.choice.form != "worker" and not (join is first and _may_be_worker(join)):
            raise NotFusedError(f"the lookup of {table} takes the form {join.choice.form}")
        if join.plan.config.metrics == "observe" and is_classic(join.spark) and not join.left.isStreaming:
            raise NotFusedError(f"'lookup.metrics' of {table} is observe, which Spark attaches to one query only")
    if second.plan.config.shuffle:
        raise NotFusedError(f"'lookup.shuffle' of {second.plan.table} partitions its left side")
    if is_persisted(second.left):
        raise NotFusedError("the left side is persisted")


def _may_be_worker(join: LookupJoin) -> bool:
    """Return whether a join whose form was chosen for it alone takes the form `worker` in a chain.

    The next join sends all left rows to Python anyway. Then one pass is cheaper than Spark's join with distinct keys,
    or with the full table, which needs a separate Python stage.
    """
    return join.choice.form in ("distinct", "broadcast") and join.plan.config.form == "auto"


def planner_settings(spark: SparkSession) -> Settings:
    """Return the settings of a session, and the user's functions that it finds before Spark's own."""
    return Settings(lambda name: spark.conf.get(name, None), lambda: shadowing_functions(spark))


def _settings_read_with(*conditions: Condition | BoundCondition | str | None) -> Settings | None:
    """Return the settings that a bound condition was read with: those of the statement that the join is part of."""
    found = (one.settings for one in conditions if isinstance(one, BoundCondition))
    return next((one for one in found if one is not None), None)


@explain_refusal("the columns of the left side", "Pass them: lookup_join(…, left_schema='id BIGINT, name STRING').")
def _left_columns(left: DataFrame) -> list[LeftColumn]:
    return [left_column(field) for field in left.schema.fields]
