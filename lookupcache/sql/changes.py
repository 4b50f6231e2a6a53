"""Runs MERGE, UPDATE, DELETE and SET VARIABLE with lookups in their sources and sub-queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from lookupcache.errors import PlanError, SchemaError, StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.schema import quote
from lookupcache.sql.detection import concerns
from lookupcache.sql.failures import failure
from lookupcache.sql.outer import reads_outside
from lookupcache.sql.passthrough import run_unchanged
from lookupcache.sql.query import Args, Setting
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
    main = _main(found)
    changed = [token for token in found if token.start >= main.start]
    refuse_target(setting, statement, changed)
    _refuse_hidden(setting, statement, [token for token in found if token.start < main.start])
    edits = Edits(statement.code)
    views: dict[str, DataFrame] = {}
    for start, end in _sources(found):
        words = [token for token in found if start <= token.start < end]
        if concerns(setting, words):
            part = statement.part(*statement.span_within(start, end))
            name = f"lookup_source_{len(views)}"
            views[name] = _source(setting, part, changed, args, is_relation=_is_relation(found, start))
            edits.replace(part.span, f"SELECT * FROM {{{name}}}")
    for token in _using(found):
        if token.name in setting.catalog.tables:
            _refuse_period(statement, found, token)
            name = f"lookup_source_{len(views)}"
            views[name] = _full_table(setting, token.name)
            alias = "" if _is_aliased(found, token) else f" AS {quote(token.name)}"
            edits.replace(statement.span_within(token.start, token.end), f"{{{name}}}{alias}")
    if not views:
        return run_unchanged(setting, statement, args)
    try:
        return setting.spark.sql(_double_braces(statement, edits), args, **views)
    except AnalysisException as error:
        raise failure(statement, error) from None


def _main(found: Sequence[Token]) -> Token:
    """Return the keyword of a statement, behind its WITH."""
    words = [token for token in found if token.kind == "word" and not token.depth]
    if found[0].text != "WITH":
        return found[0]
    kinds = {*QUERIES, "MERGE", "UPDATE", "DELETE"} - {"WITH"}
    return next((token for token in words if token.text in kinds), found[0])


def _source(setting: Setting, part: Statement, changed: Sequence[Token], args: Args, *, is_relation: bool) -> DataFrame:
    """Return the rows of a source or sub-query; it is run before the statement, so it must not read the target.

    Raises PlanError where it does, or reads a variable with the name of a column of the target, which comes first.
    """
    try:
        query = rewrite_query(setting, part, list(tokens(part.sql)), args)
    except SchemaError as error:
        if is_relation:
            raise
        raise PlanError(f"{error.fact} {_ALONE}", hint=_MERGE, position=error.position) from None
    target = target_of(changed)
    if not is_relation and target is not None:
        columns = setting.spark.table(".".join(map(quote, target.name.parts))).columns
        if reads_outside(query, query.analysis.text(part.span), columns):
            raise PlanError(_ALONE, hint=_MERGE, position=part.position(part.span))
    return query.df()


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


def _double_braces(statement: Statement, edits: Edits) -> str:
    """Return the edited text with the user's own braces doubled, so that only names of views are in single braces."""
    for index in (n for n, letter in enumerate(statement.code) if letter in "{}"):
        edits.replace(Span(index, index + 1), statement.code[index] * 2)
    return edits.text(statement.span)


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


def _full_table(setting: Setting, name: str) -> DataFrame:
    statement = Statement.of(f"SELECT * FROM {quote(name)}")
    return rewrite_query(setting, statement, list(tokens(statement.sql))).df()
