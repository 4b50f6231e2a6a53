"""Statements into compiled plans, and out of them.

INSERT … ─► Query, with all lookups joined ─► a node for each text, lookup join and full scan that it reads
nodes ─► the same texts and joins again, nothing planned ─► Spark
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from lookupcache import expr
from lookupcache.compiled.catalog_objects import (
    Objects,
    define_function,
    define_table,
    differs,
    hints_of,
    refuse_secret_path,
)
from lookupcache.compiled.document import Document, KeptDefinition
from lookupcache.compiled.lookup_fields import LITERAL, Columns, columns_text
from lookupcache.compiled.nodes import (
    AsOfLookupNode,
    CallUse,
    FullScanNode,
    InsertNode,
    LookupNode,
    Node,
    SparkQuery,
    TableUse,
    defaults_now,
)
from lookupcache.compiled.plan_reader import PlanReader
from lookupcache.compiled.settings import close_clone, session_of, settings_of
from lookupcache.errors import CompiledPlanError, LookupCacheError
from lookupcache.planner.clauses import tokens
from lookupcache.redaction import hide_userinfo, is_secret
from lookupcache.schema import quote_path
from lookupcache.spark.freezing import columns_of, lookup_node, refuse_stream
from lookupcache.spark.join import LookupJoin
from lookupcache.spark.scan import read_full_table
from lookupcache.sql.catalog import MODEL, computed_columns
from lookupcache.sql.failures import fact_of
from lookupcache.sql.query import Query, SqlContext
from lookupcache.sql.redaction import find_secrets
from lookupcache.sql.stream_inserts import StreamInsert
from lookupcache.sql.token_reader import QUERIES, TableName, insert_target, query_start

# ── into a plan ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Compiler:
    """Collects the nodes of a plan, statement by statement; ``keeps`` names the parts of catalog objects in it."""

    context: SqlContext
    keeps: str = "ALL"
    nodes: list[Node] = field(default_factory=list)
    tables: dict[str, KeptDefinition] = field(default_factory=dict)
    functions: dict[str, KeptDefinition] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)

    def document(self) -> Document:
        """Return the plan of the nodes that were added."""
        return Document(
            keeps=self.keeps,
            settings=settings_of(self.context.spark),
            defaults=defaults_now(),
            parameters=self.parameters,
            tables=self.tables,
            functions=self.functions,
            nodes=tuple(self.nodes),
        )

    def add_insert(self, query: Query, sink: TableName | None) -> None:
        """Add an INSERT, of which ``query`` is the query."""
        _refuse_secrets(query.prefix)
        self.parameters |= {name: _write_value(name, value) for name, value in (query.args or {}).items()}
        rows = query.df()
        result = _QueryNodes(self, query).number_of(rows)
        parts = None if sink is None else sink.parts
        columns = None if parts is None else sink_columns(self.context.spark, parts)
        if sink is not None and rows.isStreaming:
            StreamInsert.of(sink, query.inserted)  # refuses what a stream cannot do
        if parts is not None and columns is None and not rows.isStreaming:
            raise CompiledPlanError(
                f"There is no table {'.'.join(parts)!r}, to which the statement writes.", hint="Create it first."
            )
        self.add(
            InsertNode(
                head=query.prefix,
                sink=parts,
                sink_columns=columns,
                input=result,
                query_name=self._query_name(parts),
            )
        )

    def _query_name(self, sink: tuple[str, ...] | None) -> str:
        """Return a name for the stream that is unique in the plan, and fit for a folder."""
        name = re.sub(r"[^\w.-]|^(?=[.-])", "_", ".".join(sink or ("files",)))
        taken = {node.query_name for node in self.nodes if isinstance(node, InsertNode)}
        return next(one for one in (name, *(f"{name}_{n}" for n in range(2, 10_000))) if one not in taken)

    def add(self, node: Node) -> int:
        """Add a node; return its id."""
        self.nodes.append(node)
        return len(self.nodes)

    def define_table(self, name: str) -> str:
        """Note a table of the catalog; return its name as it was registered."""
        found = self.context.catalog.tables
        known = found.registered_name(name)
        if known not in self.tables:
            self.tables[known] = define_table(known.removeprefix(MODEL), found[known].table, self.keeps)
        return known

    def define_function(self, name: str) -> str:
        """Note a table function of the catalog; return its name as it was registered."""
        found = self.context.catalog.functions
        known = found.registered_name(name)
        if known not in self.functions:
            self.functions[known] = define_function(known, found[known], self.keeps)
        return known


@dataclass
class _QueryNodes:
    """The nodes of one query."""

    compiler: Compiler
    query: Query
    numbers: dict[int, int] = field(default_factory=dict)

    def number_of(self, df: DataFrame) -> int:
        """Return the node of a DataFrame of the query; it, and those that it reads, are added if they are missing."""
        join = next((n for n, one in enumerate(self.query.joins) if _is_result(df, one)), None)
        key = id(df) if join is None else -1 - join
        if key not in self.numbers:
            self.numbers[key] = self.compiler.add(self._node(df) if join is None else self._lookup(join))
        return self.numbers[key]

    def _node(self, df: DataFrame) -> Node:
        for view, (name, table) in self.query.scans.items():
            if self.query.views[view] is df:
                known = self.compiler.define_table(name)
                config = table.table.config
                refuse_secret_path(config, f"Table {known!r}")
                use, computed = TableUse(table=known), dict(table.computed)
                return FullScanNode(use=use, computed=computed, configuration=config.to_json(), output=columns_of(df))
        return self._text(df)

    def _lookup(self, number: int) -> LookupNode:
        join, use = self.query.joins[number], self.query.uses[number]
        refuse_stream(join)
        left = self.number_of(join.left)
        if isinstance(use, CallUse):
            name = self.compiler.define_function(use.function)
            own: TableUse | CallUse = CallUse(function=name, columns=use.columns, arguments=use.arguments)
        else:
            name = self.compiler.define_table(use.table)
            base = self.compiler.context.catalog.tables[name].table
            own = TableUse(table=name, hints=hints_of(join.table, base))
        return lookup_node(join, own, left, self._stage(join))

    def _stage(self, join: LookupJoin) -> tuple[int, ...]:
        """Return the nodes of the joins before a join that run in its Python stage."""
        before = {id(one) for one in join.chain.contexts[:-1]}
        return tuple(self.number_of(one.df) for one in self.query.joins if id(one._context) in before)

    def _text(self, df: DataFrame) -> SparkQuery:
        found = self.query.text_of(df)
        _refuse_secrets(found.text)
        _refuse_variables(found.text)
        refuse_commands(found.text, "The statement")
        return SparkQuery(
            text=found.text,
            views={name: self.number_of(self.query.views[name]) for name in found.views},
            names=found.names,
            streaming=df.isStreaming,
            output=columns_of(df),
        )


_HINT_WITHOUT_TEXTS = re.compile(r"/\*\+[^'\"*]*\*/")
"""A hint of Spark's, such as BROADCAST(t)."""


def _is_result(df: DataFrame, join: LookupJoin) -> bool:
    """Return whether a DataFrame is the result of a join, analyzed by Spark or not yet."""
    return df is vars(join).get("result") or df is join.df


def _refuse_secrets(text: str) -> None:
    if find_secrets(_HINT_WITHOUT_TEXTS.sub(" ", text)):
        raise CompiledPlanError(
            "The statement has a secret, or options, in its text, which would be written into the plan.",
            hint="Keep secrets in options of tables, as references such as 'env:NAME'.",
        )


_COMMANDS = {"INSERT", "UPDATE", "DELETE", "MERGE"}
"""Words that make a command of a text that begins as a query."""


def refuse_commands(text: str, what: str) -> None:
    """Raise CompiledPlanError for a text that is not a query: Spark would run it, and only its columns are needed."""
    words = [token.text for token in tokens(text) if not token.depth and token.kind == "word"]
    start = text.lstrip()[:1]
    found = next((word for word in words if word in _COMMANDS), None)
    if found is not None or not (start == "(" or (words[:1] and words[0] in QUERIES)):
        raise CompiledPlanError(
            f"{what} has {found or text.lstrip()[:20]!r} where a query is expected.",
            hint="Put a name that is a word of SQL in backquotes.",
        )


def _refuse_variables(text: str) -> None:
    if "${" in text:
        raise CompiledPlanError(
            "The statement has a variable ${…}, whose value would not be in the plan.",
            hint="Write the value, or a parameter such as :name with args={'name': value}.",
        )


def sink_columns(spark: SparkSession, parts: Sequence[str]) -> Columns | None:
    """Return the columns of a table that is written to, None where it is not there."""
    try:
        return columns_of(spark.table(quote_path(parts)))
    except AnalysisException as error:
        if "TABLE_OR_VIEW_NOT_FOUND" in str(error):
            return None
        raise CompiledPlanError(
            f"The sink {'.'.join(parts)!r} cannot be read: {fact_of(error)}",
            hint="Mend the table, until spark.table(…) of its name returns its columns.",
        ) from None


_VALUES = (bool, int, float, str, bytes, decimal.Decimal, datetime.date, datetime.datetime)


def _write_value(name: str, value: Any) -> Any:
    """Return a parameter's value as JSON data."""
    if value is None:
        return None
    if type(value) not in _VALUES:
        raise CompiledPlanError(
            f"Parameter {name!r} is a value of type {type(value).__name__}, which a plan cannot have.",
            hint="Pass a number, text, date, timestamp, decimal, binary or truth value.",
        )
    if is_secret(name) or (isinstance(value, str) and hide_userinfo(value) != value):
        raise CompiledPlanError(
            f"Parameter {name!r} is a secret, whose value would stand in the plan.",
            hint="Keep secrets in options of tables, as references such as 'env:NAME'.",
        )
    return expr.to_json(expr.literal(value, pa.scalar(value).type))


def _read_value(data: Any, source: str) -> Any:
    return None if data is None else expr.python_value(LITERAL.read(PlanReader(data, "parameters", source)))


# ── out of a plan ────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Restored:
    """A plan in a session: the DataFrames of its nodes, made when they are needed; `close` it after use."""

    context: SqlContext
    document: Document
    restore: str = "ALL"
    made: dict[int, DataFrame] = field(default_factory=dict)
    joins: dict[int, LookupJoin] = field(default_factory=dict)

    @cached_property
    def spark(self) -> SparkSession:
        """The session in which the plan runs: the user's, or a clone with the settings of the plan."""
        return session_of(self.document, self.context.spark)

    def close(self) -> None:
        """Release the session of the plan, where it has its own."""
        close_clone(vars(self).get("spark", self.context.spark), self.context.spark)

    @cached_property
    def objects(self) -> Objects:
        """The tables and functions of the plan."""
        tables, functions = self.context.catalog.tables, self.context.catalog.functions
        return Objects(
            self.document, self.restore, lambda name: tables[name].table if name in tables else None, functions.get
        )

    @cached_property
    def left_sides(self) -> set[int]:
        """The nodes that lookup joins read."""
        return {node.input for _, node in self.document.numbered_nodes if isinstance(node, LookupNode)}

    @cached_property
    def parameters(self) -> dict[str, Any] | None:
        """The values of the statement's parameters."""
        document = self.document
        return {name: _read_value(data, document.source) for name, data in document.parameters.items()} or None

    def check(self) -> None:
        """Make all DataFrames; raises CompiledPlanError where something has changed."""
        if self.document.is_join:
            raise CompiledPlanError(
                f"Compiled plan {self.document.source} is a lookup join, which needs a left side.",
                hint="Apply it with LookupJoin.from_plan(left, plan).",
            )
        for number, node in self.document.numbered_nodes:
            if isinstance(node, SparkQuery):
                refuse_commands(node.text, f"Node {number} of compiled plan {self.document.source}")
        for _, insert in self.document.inserts:
            self._check_head(insert)
            self._check_sink(insert)
            self.df(insert.input)

    def _check_head(self, insert: InsertNode) -> None:
        """Check that the text before the query is an INSERT into the sink, and has no query in it."""
        found = list(tokens(insert.head))
        sink = insert_target(found)
        parts = None if sink is None else sink.parts
        inserts = not found or (found[0].text == "INSERT" and query_start(found) is None)
        if not inserts or parts != insert.sink:
            raise CompiledPlanError(
                f"Compiled plan {self.document.source} has {insert.head!r} in place of INSERT into its sink.",
                hint="Compile the statement again: a plan is not edited by hand.",
            )

    def _check_sink(self, insert: InsertNode) -> None:
        if insert.sink is None:
            return
        found = sink_columns(self.spark, insert.sink)
        name, source = ".".join(insert.sink), self.document.source
        if found is None and insert.sink_columns is not None:
            raise CompiledPlanError(
                f"There is no table {name!r}, to which compiled plan {source} writes.",
                hint="Create it with the columns that it had: " + columns_text(insert.sink_columns),
            )
        if found is not None and found != (insert.sink_columns or found):
            raise differs(f"The columns of the sink {name!r}", insert.sink_columns or (), found, source)

    def df(self, number: int) -> DataFrame:
        """Return the DataFrame of a node."""
        if number not in self.made:
            node = self.document.node(number)
            made = _MAKERS[type(node)](self, number, node)
            if number in self.left_sides and isinstance(node, SparkQuery) and _reads_relation(node.text):
                made = _without_added(made, node.output)
            found = columns_of(made)
            if found != node.output:
                raise differs(f"The columns of node {number} ({node.TYPE})", node.output, found, self.document.source)
            self.made[number] = made
        return self.made[number]

    def _spark_query(self, number: int, node: SparkQuery) -> DataFrame:
        df = self.spark_sql(number, node.text, node)
        if df.isStreaming != node.streaming:
            kinds = {True: "a stream", False: "a batch"}
            raise CompiledPlanError(
                f"Node {number} of compiled plan {self.document.source} read {kinds[node.streaming]}; here it reads "
                f"{kinds[df.isStreaming]}.",
                hint="Register the relation as it was, or compile the statement again.",
            )
        return df if node.names is None else df.toDF(*node.names)

    def spark_sql(self, number: int, text: str, node: SparkQuery) -> DataFrame:
        """Give a text of a node to Spark, with the results that it reads; a statement that writes then runs."""
        views = {name: self.df(view) for name, view in node.views.items()}
        try:
            return self.spark.sql(text, self.parameters, **views)
        except AnalysisException as error:
            raise CompiledPlanError(
                f"Compiled plan {self.document.source}, node {number}: {fact_of(error)}",
                hint="Spark's tables, views and functions that the text names must be there, as they were.",
            ) from None

    def _lookup_join(self, number: int, node: LookupNode) -> DataFrame:
        try:
            self.joins[number] = LookupJoin.from_node(self.df(node.input), node, self.objects)
        except CompiledPlanError:
            raise
        except LookupCacheError as error:
            fact = f"Compiled plan {self.document.source}, node {number}: {error.fact}"
            raise CompiledPlanError(fact, hint=error.hint) from None
        return self.joins[number].df

    def _full_scan(self, number: int, node: FullScanNode) -> DataFrame:
        df = read_full_table(self.spark, self.objects.with_config(node.use, node.configuration))
        return computed_columns(df, node.computed, [name for name, *_ in node.output])

    def text_of(self, insert: InsertNode) -> tuple[str, SparkQuery]:
        """Return the full statement of an INSERT of a batch, and the node of its query."""
        node = self.document.node(insert.input)
        if not isinstance(node, SparkQuery):
            raise CompiledPlanError(
                f"Compiled plan {self.document.source} has an INSERT without a query.",
                hint="Compile the statement again.",
            )
        head = insert.head.replace("{", "{{").replace("}", "}}") if node.views else insert.head
        return head + node.text, node


def _reads_relation(text: str) -> bool:
    """Return whether a text is ``SELECT * FROM name``, with which the planner reads a relation left of a lookup.

    >>> [_reads_relation(text) for text in ("SELECT * FROM db.o AS o", "SELECT * FROM (SELECT * FROM o) AS o")]
    [True, False]
    """
    found = list(tokens(text))
    names = [token for token in found[3:] if token.text not in (".", "AS")]
    is_star = [token.text for token in found[:3]] == ["SELECT", "*", "FROM"]
    return is_star and 0 < len(names) <= 4 and all(token.kind in ("word", "quoted") for token in names)


def _without_added(df: DataFrame, planned: Columns) -> DataFrame:
    """Return a relation with the columns that it was planned with, where others were added since."""
    added = [name for name, _ in columns_of(df) if name not in dict(planned)]
    return df.drop(*added) if added else df


_MAKERS: Mapping[type, Callable[[Restored, int, Any], DataFrame]] = {
    SparkQuery: Restored._spark_query,
    LookupNode: Restored._lookup_join,
    AsOfLookupNode: Restored._lookup_join,
    FullScanNode: Restored._full_scan,
}
