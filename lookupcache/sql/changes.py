"""Runs MERGE, UPDATE, DELETE and SET VARIABLE with lookups in their sources and sub-queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from lookupcache.errors import PlanError, SchemaError, StatementError
from lookupcache.planner.clauses import Token
from lookupcache.report import is_classic
from lookupcache.schema import quote
from lookupcache.sql.detection import concerns
from lookupcache.sql.failures import failure, show_statement
from lookupcache.sql.outer import reads_outside
from lookupcache.sql.passthrough import run_unchanged
from lookupcache.sql.query import Args, Query, Setting
from lookupcache.sql.read_only import refuse_target
from lookupcache.sql.rewrite import rewrite_query
from lookupcache.sql.statement_target import QUERIES, target_of, words_of
from lookupcache.sql.text import Edits, Span, Statement


def is_change(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    """Return whether a statement is MERGE, UPDATE, DELETE or SET VARIABLE, and may use lookups."""
    sets = words_of(found)[:2] in (["SET", "VAR"], ["SET", "VARIABLE"])
    changes = _main(found).text in ("MERGE", "UPDATE", "DELETE") if found else False
    return (sets or changes) and concerns(setting, found)


def run_change(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run MERGE, UPDATE, DELETE or SET VARIABLE, with sources and sub-queries that use lookups replaced by views."""
    change = _read(setting, statement, found, args)
    return change.run("", args) if change.sources else run_unchanged(setting, statement, args)


def explain_change(
    setting: Setting, statement: Statement, found: Sequence[Token], mode: str, args: Args = None
) -> tuple[list[Query], str]:
    """Return the queries in MERGE, UPDATE or DELETE that use lookups, and Spark's plan of it; nothing is run."""
    change = _read(setting, statement, found, args)
    shown = change.run("EXPLAIN " if mode == "simple" else f"EXPLAIN {mode.upper()} ", args)
    return [source.query for source in change.sources], "\n".join(row[0] for row in shown.collect())


@dataclass(frozen=True, eq=False)
class _Source:
    """A part of a statement that uses lookups: what Spark reads there is ``before``, a view, ``after``."""

    span: Span
    query: Query
    before: str = ""
    after: str = ""


@dataclass(frozen=True, eq=False)
class _Change:
    """A statement whose sources and sub-queries that use lookups are replaced by views."""

    setting: Setting
    statement: Statement
    sources: list[_Source]

    def run(self, prefix: str, args: Args) -> DataFrame:
        """Run the statement behind a prefix; Spark's errors are raised as those about the statement."""
        names = [f"lookup_source_{number}" for number in range(len(self.sources))]
        views = {name: source.query.df() for name, source in zip(names, self.sources, strict=True)}
        edits = self._edits([f"{{{name}}}" for name in names])
        # The user's own braces are doubled, so that only names of views are in single ones.
        for index in (n for n, letter in enumerate(self.statement.code) if letter in "{}"):
            edits.replace(Span(index, index + 1), self.statement.code[index] * 2)
        given, span = self._edits([_named(self.setting.spark)] * len(names)), self.statement.span

        def original(offset: int) -> int:
            return given.original(span, max(offset - len(prefix), 0))

        try:
            return self.setting.spark.sql(prefix + edits.text(span), args, **views)
        except AnalysisException as error:
            raise failure(self.statement, error, original) from None
        except PySparkException as error:  # of a row: it stays Spark's
            show_statement(self.statement, error, original)
            raise

    def _edits(self, names: Sequence[str]) -> Edits:
        edits = Edits(self.statement.code)
        for name, source in zip(names, self.sources, strict=True):
            edits.replace(source.span, f"{source.before}{name}{source.after}")
        return edits


def _named(spark: SparkSession) -> str:
    """Return a name as long as that which PySpark gives a view."""
    return ("_pyspark_" if is_classic(spark) else "_pyspark_connect_temp_view_") + 32 * "_"


def _read(setting: Setting, statement: Statement, found: Sequence[Token], args: Args) -> _Change:
    """Return a statement with its sources; raises errors for those that cannot be run before it."""
    main = _main(found)
    changed = [token for token in found if token.start >= main.start]
    refuse_target(setting, statement, changed)
    _refuse_hidden(setting, statement, [token for token in found if token.start < main.start])
    sources = []
    for start, end in _sources(found):
        words = [token for token in found if start <= token.start < end]
        if concerns(setting, words):
            part = statement.part(*statement.span_within(start, end))
            query = _source(setting, part, changed, args, is_relation=_is_relation(found, start))
            sources.append(_Source(part.span, query, "SELECT * FROM "))
    for token in _using(found):
        if token.name in setting.catalog.tables:
            _refuse_period(statement, found, token)
            alias = "" if _is_aliased(found, token) else f" AS {quote(token.name)}"
            span = statement.span_within(token.start, token.end)
            sources.append(_Source(span, _full_table(setting, token.name), after=alias))
    return _Change(setting, statement, sources)


def _main(found: Sequence[Token]) -> Token:
    """Return the keyword of a statement, behind its WITH."""
    words = [token for token in found if token.kind == "word" and not token.depth]
    if found[0].text != "WITH":
        return found[0]
    kinds = {*QUERIES, "MERGE", "UPDATE", "DELETE"} - {"WITH"}
    return next((token for token in words if token.text in kinds), found[0])


def _source(setting: Setting, part: Statement, changed: Sequence[Token], args: Args, *, is_relation: bool) -> Query:
    """Return the query of a source or sub-query; it is run before the statement, so it must not read the target.

    Raises PlanError where it does, or reads a variable with the name of a column of the target, which comes first.
    """
    try:
        query = rewrite_query(setting, part, part.words, args)
    except SchemaError as error:
        if is_relation:
            raise
        raise PlanError(f"{error.fact} {_ALONE}", hint=_MERGE, position=error.position) from None
    target = target_of(changed)
    if not is_relation and target is not None:
        columns = setting.spark.table(".".join(map(quote, target.name.parts))).columns
        if reads_outside(query, query.analysis.text(part.span), columns):
            raise PlanError(_ALONE, hint=_MERGE, position=part.position(part.span))
    return query


_ALONE = "A sub-query with lookups is run before the statement, and cannot read columns of the table that it changes."
_MERGE = "Write MERGE INTO … USING (SELECT … JOIN …) AS s ON …, or qualify a variable: session.name."


def _refuse_hidden(setting: Setting, statement: Statement, before: Sequence[Token]) -> None:
    """Raise StatementError for a name in WITH that hides a lookup table."""
    for token, after in pairwise(before):
        named = not token.depth and token.kind in ("word", "quoted") and after.text in ("AS", "(")
        if named and token.text != "AS" and token.name in setting.catalog.tables:
            raise StatementError(
                f"{token.name!r} in WITH has the name of a lookup table.",
                hint="Choose another name.",
                position=statement.position(statement.span_within(token.start, token.end)),
            )


def _refuse_period(statement: Statement, found: Sequence[Token], name: Token) -> None:
    after = found[list(found).index(name) + 1 :]
    if [token.text for token in after[:2]] == ["FOR", "SYSTEM_TIME"]:
        raise StatementError(
            "MERGE reads a lookup table after USING completely.",
            hint="Leave FOR SYSTEM_TIME AS OF out, or look rows up: USING (SELECT … FROM … JOIN …) AS name.",
            position=statement.position(statement.span_within(after[0].start, after[1].end)),
        )


def _sources(found: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Yield start and end of the outermost queries in parentheses."""
    closed = -1
    for number, token in enumerate(found[:-1]):
        after = found[number + 1]
        opens = token.text == "(" and token.start > closed and after.kind == "word" and after.text in QUERIES
        if opens and (after.text != "TABLE" or found[min(number + 2, len(found) - 1)].kind in ("word", "quoted")):
            last = next((t for t in found[number + 1 :] if t.text == ")" and t.depth == token.depth), None)
            if last is not None:
                closed = last.start
                yield after.start, last.start


def _is_relation(found: Sequence[Token], start: int) -> bool:
    """Return whether a query in parentheses is a relation, which cannot read the columns of another one."""
    before = [token for token in found if token.start < start]
    while before and before[-1].text == "(":
        before.pop()
    return bool(before) and before[-1].text in ("USING", "AS")


def _using(found: Sequence[Token]) -> list[Token]:
    """Return the name after USING, if it is one word."""
    after = [(a, b, c) for a, b, c in zip(found, found[1:], [*found[2:], None], strict=False) if a.text == "USING"]
    return [b for _, b, c in after if b.kind in ("word", "quoted") and (c is None or c.text != ".")]


def _is_aliased(found: Sequence[Token], name: Token) -> bool:
    after = found[list(found).index(name) + 1 :]
    return bool(after) and after[0].kind in ("word", "quoted") and after[0].text != "ON"


def _full_table(setting: Setting, name: str) -> Query:
    statement = Statement.of(f"SELECT * FROM {quote(name)}")
    return rewrite_query(setting, statement, statement.words)
