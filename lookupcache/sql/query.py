"""A query with lookups becomes lookup joins and Spark SQL.

statement ─► tree ─► each SELECT, the innermost first:
    what stands left of a lookup ─► Spark SQL ─► DataFrame ─► LookupJoin ─► a view with a name of its own
    what remains                 ─► the text, with the view in place of what was joined
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from lookupcache.errors import Place, StatementError
from lookupcache.schema import quote
from lookupcache.spark.join import LookupJoin
from lookupcache.spark.scan import read_whole
from lookupcache.sql.catalog import Catalog, SqlTable
from lookupcache.sql.dialect import name_span, parse, span_of
from lookupcache.sql.text import Edits, Span, Statement

_OPEN, _CLOSE = "\ue000", "\ue001"
"""What encloses a view's name in text until it goes to Spark; private letters, which no statement has."""


@dataclass(frozen=True)
class Setting:
    """What a session's queries share: Spark, what is known by name, and the columns that mean the present."""

    spark: SparkSession
    catalog: Catalog
    time_columns: Sequence[str] = ("proc_time", "proctime")

    def folding(self) -> Callable[[str], str]:
        """Return what makes two names equal where Spark says so; Spark is asked once."""
        sensitive = str(self.spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
        return str if sensitive else str.lower


@dataclass
class Query:
    """A statement's queries on their way to Spark: the edits so far, the views, the lookup joins."""

    setting: Setting
    statement: Statement
    tree: exp.Expr
    edits: Edits
    views: dict[str, DataFrame] = field(default_factory=dict)
    joins: list[LookupJoin] = field(default_factory=list)

    @cached_property
    def fold(self) -> Callable[[str], str]:
        """What makes two names equal where Spark says so."""
        return self.setting.folding()

    @property
    def spark_sql(self) -> str:
        """What goes to Spark, with views in braces as `SparkSession.sql` has them."""
        return shown(self.edits.text(self.statement.span))

    def df(self) -> DataFrame:
        """Return the statement's result; runs it where it is a command."""
        return self.sql(self.edits.text(self.statement.span))

    def sql(self, text: str) -> DataFrame:
        """Give Spark SQL to Spark, with the views that it names; its errors are raised as they are."""
        names = set(re.findall(f"{_OPEN}(.*?){_CLOSE}", text))
        if not names:
            return self.setting.spark.sql(text)
        escaped = shown(text.replace("{", "{{").replace("}", "}}"))
        return self.setting.spark.sql(escaped, args=None, **{name: self.views[name] for name in names})

    def view(self, df: DataFrame) -> str:
        """Give a DataFrame a name that nothing else in the statement has, and return it."""
        number = len(self.views) + 1
        while f"lookup_{number}" in self.statement.text.lower():
            number += 1000
        self.views[f"lookup_{number}"] = df
        return f"lookup_{number}"

    def failed(self, error: AnalysisException) -> StatementError:
        """Return Spark's error about edited text as one about the statement."""
        fact = re.split(r"\n+== SQL|;?\s*\(?line \d+,? pos \d+\)?|\n'|JVM stacktrace", str(error))[0].strip()
        return StatementError(re.sub(r"`?lookup_\d+`?\.", "", fact), place=self._blamed(error))

    def _blamed(self, error: AnalysisException) -> Place | None:
        """Return where the piece that Spark blames stands in the statement, where that is clear."""
        for context in error.getQueryContext() or []:
            parts = [re.escape(part) for part in re.split(r"`?\blookup_\d+`?\.", context.fragment())]
            piece = r"([`\w]+\.)?".join(parts)
            found = re.search(rf"(?<!\w){piece}(?!\w)", self.statement.sql)
            if context.fragment() and found:
                start = self.statement.span.start
                return self.statement.place(Span(start + found.start(), start + found.end()))
        near = re.search(r"at or near '(.+?)'", str(error))
        found = near and re.search(rf"(?<!\w){re.escape(near[1])}(?!\w)", self.statement.sql)
        start = self.statement.span.start
        return self.statement.place(Span(start + found.start(), start + found.end())) if found else None

    # ── common table expressions ─────────────────────────────────────────────────────────────────────────

    def with_text(self, node: exp.Expr) -> str:
        """Return ``WITH …`` for the names that a part of the statement sees, as edited so far."""
        visible: dict[str, str] = {}
        recursive = False
        for with_, ctes in reversed(list(_withs(node))):
            recursive |= bool(with_.args.get("recursive"))
            visible |= {cte.alias.lower(): self.edits.text(span_of(cte)) for cte in ctes}
        if not visible:
            return ""
        return f"WITH {'RECURSIVE ' if recursive else ''}{', '.join(visible.values())} "

    def table_of(self, node: exp.Expr) -> SqlTable | None:
        """Return the lookup table that a relation is, unless another relation of the name hides it."""
        if not isinstance(node, exp.Table) or node.args.get("db") or not isinstance(node.this, exp.Identifier):
            return None
        if node.name not in self.setting.catalog.tables:
            return None
        hidden = any(cte.alias.lower() == node.name.lower() for _, ctes in _withs(node) for cte in ctes)
        return None if hidden else self.setting.catalog.tables[node.name]

    # ── tables read whole ────────────────────────────────────────────────────────────────────────────────

    def read_whole(self, node: exp.Table, table: SqlTable) -> None:
        """Put a view of a lookup table's rows in the place of its name."""
        df = read_whole(self.setting.spark, table.table)
        if table.computed:
            df = df.selectExpr("*", *(f"{sql} AS {quote(name)}" for name, sql in table.computed.items()))
        view = marked(self.view(df))
        self.edits.replace(name_span(node.this), view if node.alias else f"{view} AS {quote(node.name)}")


def query_of(setting: Setting, statement: Statement) -> Query:
    """Read a statement; nothing of it is rewritten yet."""
    return Query(setting, statement, parse(statement), Edits(statement.text))


def marked(view: str) -> str:
    """Return a view's name as it stands in edited text."""
    return f"{_OPEN}{view}{_CLOSE}"


def shown(text: str) -> str:
    """Return edited text with its views in braces."""
    return text.replace(_OPEN, "{").replace(_CLOSE, "}")


def selects(node: exp.Expr) -> Iterator[exp.Select]:
    """Yield every SELECT of a tree, after those inside of it, in the order of the text."""
    for inner in sorted(node.iter_expressions(), key=lambda inner: span_of(inner).start):
        yield from selects(inner)
    if isinstance(node, exp.Select):
        yield node


def _withs(node: exp.Expr) -> Iterator[tuple[exp.With, list[exp.CTE]]]:
    """Yield what WITH clauses a node is below, the nearest first, and which of their names it sees."""
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
            before = [cte for cte in above.expressions if cte is not below]
            earlier = above.expressions[: [id(cte) for cte in above.expressions].index(id(below))]
            yield above, (before if above.args.get("recursive") else earlier)
        elif with_ is not None:
            yield with_, list(with_.expressions)
        below = above
