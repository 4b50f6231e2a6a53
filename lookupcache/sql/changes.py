"""Runs MERGE, UPDATE, DELETE and SET VARIABLE with lookups in their sources and sub-queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from lookupcache.planner.clauses import Token, tokens
from lookupcache.schema import quote
from lookupcache.sql.detection import concerns
from lookupcache.sql.passthrough import run_unchanged
from lookupcache.sql.query import Args, Setting
from lookupcache.sql.read_only import refuse_target
from lookupcache.sql.rewrite import rewrite_query
from lookupcache.sql.statement_target import QUERIES, words_of
from lookupcache.sql.text import Edits, Span, Statement


def is_change(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    """Return whether a statement is MERGE, UPDATE, DELETE or SET VARIABLE, and may use lookups."""
    sets = words_of(found)[:2] in (["SET", "VAR"], ["SET", "VARIABLE"])
    return (sets or words_of(found)[:1] in (["MERGE"], ["UPDATE"], ["DELETE"])) and concerns(setting, found)


def run_change(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run MERGE, UPDATE, DELETE or SET VARIABLE, with sources and sub-queries that use lookups replaced by views."""
    refuse_target(setting, statement, found)
    edits = Edits(statement.code)
    views: dict[str, DataFrame] = {}
    for start, end in _sources(found):
        words = [token for token in found if start <= token.start < end]
        if concerns(setting, words):
            part = statement.part(*statement.span_within(start, end))
            query = rewrite_query(
                setting, part, [replace(t, start=t.start - start, end=t.end - start) for t in words], args
            )
            name = f"lookup_source_{len(views)}"
            views[name] = query.df()
            edits.replace(part.span, f"SELECT * FROM {{{name}}}")
    for token in _using(found):
        if token.name in setting.catalog.tables:
            name = f"lookup_source_{len(views)}"
            views[name] = _full_table(setting, token.name)
            alias = "" if _is_aliased(found, token) else f" AS {quote(token.name)}"
            edits.replace(statement.span_within(token.start, token.end), f"{{{name}}}{alias}")
    if not views:
        return run_unchanged(setting, statement, args)
    return setting.spark.sql(_double_braces(statement, edits), args, **views)


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
        if token.text == "(" and token.start > closed and after.kind == "word" and after.text in QUERIES[:4]:
            last = next((t for t in found[number + 1 :] if t.text == ")" and t.depth == token.depth), None)
            if last is not None:
                closed = last.start
                yield after.start, last.start


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
