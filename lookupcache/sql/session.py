"""`LookupSession`: SQL with lookups in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lookupcache.compiled import CompiledPlan, PlanReference
from lookupcache.errors import StatementError, UnsupportedVersionError
from lookupcache.functions.table_function import TableFunction
from lookupcache.plan import LookupPlan
from lookupcache.report import is_classic
from lookupcache.sql.catalog import Catalog, SqlTable
from lookupcache.sql.detection import concerns
from lookupcache.sql.models import predicting
from lookupcache.sql.plan_runs import execute
from lookupcache.sql.plan_statements import compile_statement, restore
from lookupcache.sql.query import Args, Query, SqlContext
from lookupcache.sql.rewrite import rewrite_query
from lookupcache.sql.script import run_script
from lookupcache.sql.statements import run
from lookupcache.sql.text import QuestionMarks, Statement
from lookupcache.sql.variables import with_variables
from lookupcache.table import LookupTable
from lookupcache.versions import is_spark_3, refuse_unsupported_session


class LookupSession:
    """Runs SQL in Flink's and Spark's syntax over a Spark session and lookup tables.

    Tables and functions belong to the session. ``time_columns`` are the columns that FOR SYSTEM_TIME AS OF may name
    for the time of the lookup; they need not exist. A statement without a lookup is passed to Spark unchanged.

    >>> session = LookupSession(spark)
    >>> session.register_table(LookupTable.from_function("squares", "n BIGINT, square BIGINT", key=["n"],
    ...     function=lambda n: [(n, n * n)]))
    >>> session.sql('''
    ...     SELECT r.id, s.square FROM range(3) AS r
    ...     JOIN squares FOR SYSTEM_TIME AS OF PROCTIME() AS s ON r.id = s.n ORDER BY r.id
    ... ''').collect()
    [Row(id=0, square=0), Row(id=1, square=1), Row(id=2, square=4)]
    """

    def __init__(self, spark: SparkSession, *, time_columns: Sequence[str] = ("proc_time", "proctime")) -> None:
        refuse_unsupported_session(spark)
        if is_spark_3() and not is_classic(spark):
            raise UnsupportedVersionError(
                "LookupSession needs Spark 4.0 on Spark Connect, whose client of 3.5 passes no DataFrames to SQL.",
                hint="Join with lookup_join; or use LookupSession on a classic session.",
            )
        self.spark = spark
        self._context = SqlContext(spark, Catalog(), tuple(time_columns))

    def sql(self, text: str, args: Mapping[str, Any] | Sequence[Any] | None = None, **kwargs: Any) -> DataFrame:
        """Return the result of a query, or run any other statement.

        ``args`` has the values of parameters, as in `SparkSession.sql`: a mapping for names such as ``:country``, a
        sequence for question marks. ``kwargs`` are DataFrames, columns and literals that stand in the text by their
        names in braces, as in ``FROM {orders} AS o``; braces of its own are then written twice.

        Raises errors of lookupcache, each with line, column and the marked text, also where Spark refuses a query with
        lookups. A statement without lookups raises Spark's own error, unless that would show values of options, which
        may be secret.
        """
        if not kwargs:
            return self._run(*self._read(text, args))
        with self._formatted(text, kwargs) as (written, are_views):
            statement, values = self._read(written, args)
            if are_views:
                return self._run(statement, values)
            if not concerns(self._context, statement.tokens):
                return self.spark.sql(text, args, **kwargs)  # type: ignore[arg-type]
            raise StatementError(
                "On Spark Connect, a statement with lookups takes no DataFrames by name.",
                hint="Make a view of each, df.createOrReplaceTempView('name'), and write the view's name.",
                position=statement.position(statement.span),
            )

    def run(self, text: str) -> list[DataFrame]:
        """Run the statements of a text, such as a Flink job's file; return the result of each.

        Flink's settings with the same meaning in Spark are set, and others are named in a warning. Names of its default
        catalog and database are left out. A view that reads lookups is temporary. A table of another connector is
        Spark's table of that name.

        Raises StatementError, before anything runs, with the line of each statement that cannot run on Spark.
        """
        return run_script(self._context, self._readable(text))

    def compile_plan_sql(self, text: str, args: Mapping[str, Any] | Sequence[Any] | None = None) -> CompiledPlan:
        """Return the compiled plan of an INSERT or a statement set, and run nothing.

        Raises CompiledPlanError for secrets that are not references and for functions without a name, which a plan
        cannot have; StatementError for statements of other kinds.
        """
        statement, values = self._read(text, args)
        with _as_written(values):
            return CompiledPlan(compile_statement(self._context, statement, values).document, self.execute_plan)

    def load_plan(self, reference: PlanReference) -> CompiledPlan:
        """Return the plan of a file or a text; raises CompiledPlanError where it is damaged, altered or newer."""
        return CompiledPlan(reference.load(), self.execute_plan)

    def execute_plan(self, plan: CompiledPlan | PlanReference) -> DataFrame:
        """Run the statements of a plan as they were planned.

        Returns a row per stream that was started, otherwise nothing. Raises CompiledPlanError, before anything runs,
        where tables, columns, settings or connectors have changed.
        """
        found = plan if isinstance(plan, CompiledPlan) else self.load_plan(plan)
        return execute(restore(self._context, found))

    def plans(self, text: str) -> list[LookupPlan]:
        """Return the lookup plans of a query, in the order of their joins, and run nothing."""
        return [join.plan for join in self.query(text).joins]

    def query(self, text: str) -> Query:
        """Return a query as rewritten: its lookup joins, and the remaining Spark SQL."""
        statement = with_variables(self._context, Statement.of(self._readable(text)))
        with predicting(self._context, statement) as statement:
            return rewrite_query(self._context, statement)

    def _read(self, text: str, args: Mapping[str, Any] | Sequence[Any] | None) -> tuple[Statement, Args]:
        """Return a text as a statement, and the values of its parameters by name."""
        text = self._readable(text)
        if args is not None and not isinstance(args, Mapping):
            named, values = QuestionMarks.named(text, args)
            return Statement.of(named), values
        return Statement.of(text), None if args is None else dict(args)

    def _run(self, statement: Statement, args: Args) -> DataFrame:
        with _as_written(args):
            return run(self._context, statement, args)

    @contextmanager
    def _formatted(self, text: str, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
        """Yield a text with values in place of their names, and whether its DataFrames are views.

        On Spark Connect, they are not: a result there is analyzed when it is used, so its views could never be dropped.
        """
        if is_classic(self.spark):
            from pyspark.sql.sql_formatter import SQLStringFormatter as Formatter
        else:
            from pyspark.sql.connect.sql_formatter import SQLStringFormatter as Formatter  # type: ignore[assignment]
        formatter = Formatter(self.spark)
        try:
            written = formatter.format(text, **kwargs)
            yield written, is_classic(self.spark) or not formatter._temp_views
        finally:
            formatter.clear()

    def _readable(self, text: str) -> str:
        """Return a text with names in backquotes, if the session treats double quotes as those of a name."""
        return self._context.settings.readable(text)

    def register_table(self, table: LookupTable, name: str | None = None) -> None:
        """Register a lookup table under a name, by default its own; a table of that name is replaced."""
        self._context.catalog.tables[name or table.name] = SqlTable(table)

    def register_function(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        returns: Any = None,
        batch: bool | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Register a table function; a function of that name is replaced.

        Args:
            name: Its name in SQL.
            function: Takes the arguments of a call and returns its rows: sync, async or an async generator, or an
                object or class with ``__call__``.
            returns: The columns as DDL text; by default those of the function's annotation.
            batch: Whether the function takes a list of argument tuples (of bare values if there is one argument) and
                returns a list of lists of rows.
            options: The ``lookup.*`` options of its calls.
        """
        made = TableFunction.of(name, function, returns=returns, batch=batch, options=options)
        made.columns()
        self._context.catalog.functions[name] = made


def _as_written(args: Args) -> AbstractContextManager[None]:
    """Return a context in which the errors of lookupcache have the question marks that the user wrote."""
    return args.located() if isinstance(args, QuestionMarks) else nullcontext()
