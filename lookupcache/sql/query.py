"""A query with lookups, from the user's text to Spark SQL.

statement ─► tree ─► analysis: Spark checks it with empty relations for lookup tables, and returns its columns
     ─► each SELECT, the innermost first: lookup joins, and a FROM over their results
     ─► the text, rendered once; its columns must be those of the analysis
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses
from sqlglot import exp

from lookupcache.compiled.nodes import CallUse, TableUse
from lookupcache.errors import ConnectorError, LookupCacheError, PlanError, StatementError
from lookupcache.planner.clauses import Token, string_sql, tokens
from lookupcache.planner.coercion import type_of_any_session
from lookupcache.planner.settings import CASE_SENSITIVE, REGEX_COLUMNS, Settings
from lookupcache.schema import quote
from lookupcache.spark.join import LookupJoin, planner_settings
from lookupcache.spark.planned import resolve_pending
from lookupcache.spark.scan import read_full_table
from lookupcache.sql.catalog import Catalog, SqlTable
from lookupcache.sql.dialect import name_span, span_of
from lookupcache.sql.failures import failure, refusal_in
from lookupcache.sql.masks import parse_masked
from lookupcache.sql.stream_relations import StreamRelation
from lookupcache.sql.text import Edits, Span, Statement
from lookupcache.versions import condition_of

Args = dict[str, Any] | None
"""The values of a statement's parameters."""
Kind = TypeVar("Kind", bound=exp.Expr)
Run = Callable[[], DataFrame | None]
"""Runs a statement; returns its result, None where it has none."""
_OPEN, _CLOSE = "\ue000", "\ue001"
"""Delimiters of a view's name until the text is passed to Spark: private-use characters, which no statement has."""

"""The beginning of EXPLAIN's text for a statement that Spark refuses."""


@dataclass(frozen=True)
class SqlContext:
    """Shared by the queries of a session: Spark, the catalog, and the names of processing-time columns."""

    spark: SparkSession
    catalog: Catalog
    time_columns: Sequence[str] = ("proc_time", "proctime")
    plan_options: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """The session's settings as they are now."""
        return Settings(lambda name: self.spark.conf.get(name, None))


@dataclass(frozen=True)
class FullScan:
    """A table that is read completely: its position in the statement, its name, and why it is not a lookup."""

    start: int
    table: str
    reason: str


@dataclass(frozen=True, eq=False)
class SparkText:
    """A text that Spark was given, its DataFrame, the views that it uses, and new names for its columns, if any."""

    df: DataFrame
    text: str
    views: tuple[str, ...]
    names: tuple[str, ...] | None = None


@dataclass
class Query:
    """A statement's query: its tree, the edits to its text, and the views and lookup joins that the edits use.

    ``prefix`` is the text before the query, as in INSERT INTO; ``args`` are the values of its parameters. ``analysis``
    are the edits that replace lookup tables by empty relations. Compiled plans need the table or function of each
    join (``uses``), the views that are full tables (``scans``) and the SQL that Spark ran (``texts``).

    ``around`` is the query that this one is a part of, and where it stands there.
    """

    context: SqlContext
    statement: Statement
    tree: exp.Expr
    edits: Edits
    analysis: Edits
    prefix: str = ""
    args: Args = None
    views: dict[str, DataFrame] = field(default_factory=dict)
    joins: list[LookupJoin] = field(default_factory=list)
    uses: list[TableUse | CallUse] = field(default_factory=list)
    scans: dict[str, tuple[str, SqlTable]] = field(default_factory=dict)
    texts: list[SparkText] = field(default_factory=list)
    full_scans: list[FullScan] = field(default_factory=list)
    stand_ins: dict[int, SqlTable] = field(default_factory=dict)
    """What other names stand for, by their positions: streaming views, and queries over one lookup table."""
    relations: dict[int, StreamRelation] = field(default_factory=dict)
    """Queries and calls of SNAPSHOT that stand for streams, by the position of the name that stands for them."""
    masked: list[Span] = field(default_factory=list)
    """The pieces of the text that the parser has not read."""
    around: tuple[Query, exp.Expr] | None = None
    is_looked_up: bool = False
    """Whether the query is a view that can be looked up, so that its table need not be scannable."""
    left_orders: frozenset[str] = frozenset()
    """Left columns that no text names: those of ``left_order_by`` of its tables of latest values."""

    @cached_property
    def settings(self) -> Settings:
        """The session's settings, each read once."""
        return planner_settings(self.context.spark)

    @cached_property
    def fold(self) -> Callable[[str], str]:
        """Normalizes a name, so that names that are equal for Spark become equal strings."""
        return str if self.settings.on(CASE_SENSITIVE) else str.lower

    @property
    def spark_sql(self) -> str:
        """The SQL for Spark, with views in braces as in `SparkSession.sql`."""
        return show_views(self.edited)

    @property
    def edited(self) -> str:
        """The text of the query as edited so far."""
        return self.edits.text(self.statement.span)

    @cached_property
    def nodes(self) -> list[exp.Expr]:
        """The parts of the tree, the outer ones first."""
        return list(self.tree.walk())

    def find(self, kind: type[Kind]) -> list[Kind]:
        """Return the parts of a kind."""
        return [node for node in self.nodes if isinstance(node, kind)]

    def replace(self, span: Span, new: str) -> None:
        """Replace a span of the text that Spark runs, and of the one that it analyzes."""
        self.edits.replace(span, new)
        self.analysis.replace(span, new)

    # ── results ──────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def schema(self) -> T.StructType:
        """The columns of the result by Spark's analysis; Spark's errors are raised as errors of lookupcache."""
        span = self.statement.span
        try:
            return self.context.spark.sql(self.analysis.text(span), self._args).schema
        except AnalysisException as error:
            raise failure(self.statement, error, lambda offset: self.analysis.original(span, offset)) from None

    @property
    def inserted(self) -> Sequence[Token]:
        """The tokens of the statement up to the query: those of INSERT INTO."""
        return list(tokens(self.prefix))

    def df(self) -> DataFrame:
        """Return the result of the query, with Spark's column names."""
        df = self.sql(self.edited)
        expected = self.schema
        found = df.schema
        names = [[self.fold(name) for name in one.names] for one in (found, expected)]
        moved = names[0] != names[1] and sorted(names[0]) == sorted(names[1])
        if moved or [_kind(f) for f in found] != [_kind(f) for f in expected]:
            raise PlanError(
                f"The query would return {found.simpleString()} instead of {expected.simpleString()}.",
                hint="Put the lookups in a sub-query that names its columns, and select from that.",
                position=self.statement.position(self.statement.span),
            )
        return df if found.names == expected.names else self.rename_columns(df, expected.names)

    def run(self) -> DataFrame:
        """Return the result of the query, or execute the statement that contains it."""
        return self.sql(self.prefix + self.edited) if self.prefix.strip() else self.df()

    def check(self) -> None:
        """Raise Spark's error about the statement that contains the query, such as an unknown sink; run nothing."""
        refusal = refusal_in(self.sql(f"EXPLAIN {self.prefix}{self.edited}"))
        if refusal is not None:
            raise failure(self.statement, refusal)

    @property
    def _args(self) -> dict[str, Any]:
        return self.args or {}  # For None, PySpark sends the JVM four messages instead of one.

    def sql(self, text: str) -> DataFrame:
        """Run Spark SQL with the views that it uses; raises errors about the statement."""
        names = set(re.findall(f"{_OPEN}(.*?){_CLOSE}", text))
        try:
            if names:
                text = show_views(text.replace("{", "{{").replace("}", "}}"))
            views = {name: resolve_pending(self.views[name]) for name in sorted(names)}
            df = self.context.spark.sql(text, self._args, **views)
        except AnalysisException as error:
            raise self.error_of(error) from None
        self.texts.append(SparkText(df, text, tuple(views)))
        return df

    def rename_columns(self, df: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return a DataFrame that Spark returned for a text with other names for its columns."""
        made = df.toDF(*names)
        self.texts.append(replace(self.text_of(df), df=made, names=tuple(names)))
        return made

    def text_of(self, df: DataFrame) -> SparkText:
        """Return the text that Spark was given for a DataFrame."""
        return next(one for one in self.texts if one.df is df)

    def error_of(self, error: PySparkException) -> LookupCacheError:
        """Return Spark's error about text that we made as one about the statement."""
        if condition_of(error) == "INVALID_USAGE_OF_STAR_OR_REGEX" and self.settings.on(REGEX_COLUMNS):
            return StatementError(
                f"With {REGEX_COLUMNS}, names in backticks are patterns, which a statement with lookups cannot have.",
                hint=f"SET {REGEX_COLUMNS} = false.",
                position=self.statement.position(self.statement.span),
            )
        return failure(self.statement, error)

    def unused(self, name: str, columns: Sequence[str]) -> str:
        """Return a name, changed where the statement or one of these columns has it."""
        while self._has(name, columns):
            name += "_"
        return name

    def view(self, df: DataFrame, columns: Sequence[str] = ()) -> str:
        """Give a DataFrame a name that nothing else in the statement has, nor one of these columns, and return it."""
        number = len(self.views) + 1
        while self._has(f"lookup_{number}", columns):
            number += 1000
        name = f"lookup_{number}"
        self.views[name] = df
        return name

    def _has(self, name: str, columns: Sequence[str]) -> bool:
        """Return whether a name is in the statement's text, or in the name of a column, which a star may read."""
        return any(name in text.lower() for text in (self.statement.text, *columns))

    # ── queries inside ───────────────────────────────────────────────────────────────────────────────────

    def put_inside(self, around: Query, node: exp.Expr) -> None:
        """Make this query a part of another query, whose views and joins it shares."""
        self.around = (around, node)
        self.views, self.scans, self.full_scans = around.views, around.scans, around.full_scans
        self.joins, self.uses, self.texts = around.joins, around.uses, around.texts

    def unread_in(self, span: Span) -> list[Span]:
        """Return the pieces of a span that the parser has not read."""
        return [masked for masked in self.masked if span.holds(masked)]

    def _relations_in(self, node: exp.Expr) -> set[str]:
        """Return the names of the relations in a part of the query."""
        here = span_of(node)
        unread = [token for span in self.unread_in(here) for token in tokens(self.statement[span])]
        tables = [table for table in node.find_all(exp.Table) if not table.args.get("db")]
        return {self.fold(name) for name in (*(token.name for token in unread), *(table.name for table in tables))}

    # ── common table expressions ─────────────────────────────────────────────────────────────────────────

    def within(self, node: exp.Expr, sql: str, only: Sequence[exp.CTE] | None = None) -> str:
        """Return a query with the WITH clauses that a part of the statement sees, as edited so far.

        An outer clause stands around an inner one, so that Spark finds each name as in the statement. Of the names in
        them, ``only`` some may be wanted.
        """
        inner = sql
        for clause, ctes, query in self._withs(node):
            wanted = [cte for cte in ctes if only is None or any(cte is one for one in only)]
            if wanted:
                texts = ", ".join(query.edits.text(span_of(cte)) for cte in wanted)
                around = sql if sql is inner else f"SELECT * FROM ({sql})"
                sql = f"WITH {'RECURSIVE ' if clause.args.get('recursive') else ''}{texts} {around}"
        return sql

    def _withs(self, node: exp.Expr) -> Iterator[tuple[exp.With, Sequence[exp.CTE], Query]]:
        """Yield the WITH clauses that a part of the statement sees, the nearest first, with their visible names."""
        yield from ((with_, ctes, self) for with_, ctes in _withs(node))
        if self.around is not None:
            yield from self.around[0]._withs(self.around[1])

    def needed(self, node: exp.Table) -> list[exp.CTE]:
        """Return a relation's common table expression, and those that it reads, directly or not."""
        needed, found = list[exp.CTE](), [self.definition_of(node)]
        while found:
            one = found.pop()
            if one is not None and not any(one[1] is cte for cte in needed):
                query, cte = one
                needed.append(cte)
                found += [query._definition_of(name, cte) for name in sorted(query._relations_in(cte))]
        return needed

    def table_of(self, node: exp.Expr) -> SqlTable | None:
        """Return a relation's lookup table, unless another relation of the name hides it."""
        if not isinstance(node, exp.Table) or node.args.get("db") or not isinstance(node.this, exp.Identifier):
            return None
        own = self.stand_ins.get(name_span(node.this).start)
        if own is not None:
            return own
        if node.name not in self.context.catalog.tables:
            return None
        return None if self.is_hidden(node) else self.context.catalog.tables[node.name]

    def is_hidden(self, node: exp.Table) -> bool:
        """Return whether a common table expression has the name of a relation."""
        return self.definition_of(node) is not None

    def definition_of(self, node: exp.Table) -> tuple[Query, exp.CTE] | None:
        """Return a relation's common table expression, with the query that defines it."""
        return self._definition_of(self.fold(node.name), node)

    def _definition_of(self, name: str, node: exp.Expr) -> tuple[Query, exp.CTE] | None:
        for _, ctes in _withs(node, itself=True):
            for cte in ctes:
                if self.fold(cte.alias) == name:
                    return self, cte
        return None if self.around is None else self.around[0]._definition_of(name, self.around[1])

    # ── tables read in full ────────────────────────────────────────────────────────────────────────────────

    def scan_table(self, node: exp.Table, table: SqlTable) -> None:
        """Put a view of a lookup table's rows for its name."""
        try:
            df = read_full_table(self.context.spark, table.table)
        except ConnectorError as error:
            if not self.is_looked_up:
                raise
            df = _refusing_rows(self.context.spark, table, f"{error.fact} A lookup can read this view.")
        name = self.view(df := table.with_computed(df))
        self.scans[name] = node.name, table
        alias = "" if node.alias else f" AS {quote(node.name)}"
        self.edits.replace(name_span(node.this), f"{view_marker(name)}{alias}")


def nothing(context: SqlContext) -> DataFrame:
    """Return the empty DataFrame of a statement without a result."""
    return context.spark.createDataFrame([], T.StructType([]))


def no_query(statement: Statement, span: Span) -> StatementError:
    """Return the error of a statement in which lookups have no meaning, or of several statements."""
    return second_statement(statement) or StatementError(
        "A statement of this kind cannot contain lookups.",
        hint="Write SELECT … FROM … JOIN … as a separate statement, or as a temporary view that this one reads.",
        position=statement.position(span),
    )


def second_statement(statement: Statement) -> StatementError | None:
    """Return the error of a text with several statements; None for one with a single one."""
    end = next((token for token in statement.tokens if token.text == ";"), None)
    if end is None:
        return None
    return StatementError(
        "LookupSession.sql takes one statement, and a second one follows this semicolon.",
        hint="Pass each statement on its own, or all of them to LookupSession.run.",
        position=statement.position_of(end),
    )


def _refusing_rows(spark: SparkSession, table: SqlTable, fact: str) -> DataFrame:
    """Return the columns of a table that cannot be scanned; an error is raised when rows are read."""
    error = f"raise_error({string_sql(fact)})"  # in each column too, since Spark drops a filter behind a constant one
    columns = (f"CAST({error} AS {type_of_any_session(type_)}) AS {quote(name)}" for name, type_ in table.types.items())
    return spark.range(1).where(f"{error} IS NULL").selectExpr(*columns)


def _kind(column: T.StructField) -> str:
    return column.dataType.simpleString()


def query_of(
    context: SqlContext,
    statement: Statement,
    prefix: str = "",
    args: Args = None,
    parsed: Statement | None = None,
    may_mask: Callable[[Span], bool] = lambda span: False,
) -> Query:
    """Read a query, without rewriting it yet.

    In ``parsed``, names and blanks replace the pieces that the parser cannot read. ``may_mask`` returns whether a
    further piece may be replaced.
    """
    tree, masked = parse_masked(parsed or statement, may_mask)
    query = Query(context, statement, tree, Edits(statement.code), Edits(statement.code), prefix, args)
    query.masked = masked
    for start in statement.unnested:  # lateral in standard SQL, but not in Spark
        query.replace(Span(start, start), "LATERAL ")
    for span in statement.tables:  # TABLE takes the name of a table only
        query.replace(span, "SELECT * FROM")
    return query


def view_marker(view: str) -> str:
    """Return a view's name as it stands in edited text."""
    return f"{_OPEN}{view}{_CLOSE}"


def show_views(text: str) -> str:
    """Return edited text with its views in braces."""
    return text.replace(_OPEN, "{").replace(_CLOSE, "}")


def selects(node: exp.Expr) -> Iterator[exp.Select]:
    """Yield every SELECT of a tree, inner ones first, in the order of the text."""
    parts = [found for inner in node.iter_expressions() if (found := list(selects(inner)))]
    for part in sorted(parts, key=lambda part: span_of(part[0]).start):
        yield from part
    if isinstance(node, exp.Select):
        yield node


def _withs(node: exp.Expr, *, itself: bool = False) -> Iterator[tuple[exp.With, list[exp.CTE]]]:
    """Yield the WITH clauses above a node, the nearest first, with the names that are visible to the node.

    The name of a recursive query in which the node stands is among them if ``itself``.
    """
    own = node.args.get("with_")
    if own is not None:
        yield own, list(own.expressions)
    below: exp.Expr | None = node
    while below is not None:
        above = below.parent
        with_ = above.args.get("with_") if above is not None else None
        if isinstance(below, exp.With):
            with_ = None
        if isinstance(above, exp.With):
            number = [id(cte) for cte in above.expressions].index(id(below))
            yield above, above.expressions[: number + (itself and bool(above.args.get("recursive")))]
        elif with_ is not None:
            yield with_, list(with_.expressions)
        below = above
