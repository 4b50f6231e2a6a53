"""Each kind of statement: what is ours is done here, and the rest goes to Spark as it is.

A statement's kind is told by its first words. Of INSERT and CREATE … AS only the query is read; their heads go to
Spark unread.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses
from sqlglot import exp

from lookupcache.errors import LookupCacheError, Place, StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.sql import listing
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.dialect import span_of
from lookupcache.sql.explain import explained, mode_of
from lookupcache.sql.functions import create_function
from lookupcache.sql.hiding import STARS
from lookupcache.sql.laterals import refuse_unknown
from lookupcache.sql.lookups import is_present, is_temporal, refuse_strangers
from lookupcache.sql.query import Query, Setting, query_of, selects
from lookupcache.sql.scalars import scalars_of
from lookupcache.sql.select import SelectRewriting
from lookupcache.sql.text import Span, Statement

_QUERIES = {"SELECT", "WITH", "FROM", "VALUES"}
_BY_CHANCE = 3
_MARKS = {"SYSTEM_TIME", "PROCTIME", "LOOKUP", "ASYNC_TABLE_FUNC"}


def run(setting: Setting, statement: Statement) -> DataFrame:
    """Run a statement, or return the DataFrame that it is."""
    found = list(tokens(statement.sql))
    while found and found[-1].text == ";":
        statement = statement.part(statement.span.start, statement.span.start + found.pop().start)
    for begin, do in _KINDS.items():
        if begin(found, setting, statement):
            return do(setting, statement, found)
    return _queried(setting, statement, found)


def nothing(setting: Setting) -> DataFrame:
    """Return what a statement gives that gives nothing."""
    return setting.spark.createDataFrame([], T.StructType([]))


# ── queries ──────────────────────────────────────────────────────────────────────────────────────────────


def rewritten(setting: Setting, statement: Statement, found: Sequence[Token]) -> Query:
    """Return a statement's query with its lookups joined; of other statements the query that they hold."""
    start = _body(found)
    query = query_of(setting, statement.part(statement.span.start + start))
    refuse_strangers(query, query.tree)
    refuse_unknown(query, query.tree)
    scalars = scalars_of(query, query.tree)
    inner = {id(scalar.select) for scalar in scalars}
    _read_whole(query, {id(scalar.select.args["from_"].this) for scalar in scalars})
    for call in query.tree.find_all(exp.Anonymous):
        if call.name.upper() == "PROCTIME" and is_present(call) and call.find_ancestor(exp.Version) is None:
            query.edits.replace(span_of(call), "current_timestamp()")
    for select in selects(query.tree):
        if id(select) not in inner:
            own = [scalar for scalar in scalars if scalar.node.find_ancestor(exp.Select) is select]
            SelectRewriting(query, select, own).run()
    return query


def _read_whole(query: Query, looked_up: set[int]) -> None:
    for node in query.tree.find_all(exp.Table):
        table = query.table_of(node)
        if table is None or is_temporal(node) or id(node) in looked_up:
            continue
        try:
            query.read_whole(node, table)
        except LookupCacheError as error:
            raise error.at(query.statement.place(span_of(node))) from None


def _queried(setting: Setting, statement: Statement, found: Sequence[Token]) -> DataFrame:
    """Run a query, or a statement that holds one; without anything of ours in it, as it is."""
    if not concerns(setting, found) or _words(found)[:1] == ["ALTER"]:
        return _as_it_is(setting, statement)
    query = rewritten(setting, statement, found)
    if not query.edits.made:
        return _as_it_is(setting, statement)
    head = statement[Span(statement.span.start, query.statement.span.start)]
    return _given(query, head)


def _as_it_is(setting: Setting, statement: Statement) -> DataFrame:
    """Give a statement to Spark; where its error would show what must not be shown, raise StatementError instead."""
    shown: PySparkException
    try:
        return setting.spark.sql(statement.sql)
    except PySparkException as error:
        if not _shows(statement, str(error)):
            raise
        shown = error
    raise StatementError(f"Spark refuses the statement: {_fact(statement, shown)}", place=_blamed(statement, shown))


def _shows(statement: Statement, text: str) -> bool:
    """Return whether an error of Spark's has something in it that must not be shown."""
    return bool(statement.hidden) and ("== SQL" in text or any(piece in text for piece in _pieces(statement)))


def _pieces(statement: Statement) -> list[str]:
    """Return what must not be shown, the longest first; what is shorter stands in any text by chance."""
    pieces = {statement[Span(*piece)] for piece in statement.hidden}
    return sorted((piece for piece in pieces if len(piece) > _BY_CHANCE), key=len, reverse=True)


def _fact(statement: Statement, error: PySparkException) -> str:
    """Return what Spark says of a statement but for its text, and starred where it repeats what is hidden."""
    fact = re.split(r"\n+== SQL|;?\s*\(?line \d+,? pos \d+\)?|JVM stacktrace", str(error))[0].strip()
    return functools.reduce(lambda text, piece: text.replace(piece, STARS), _pieces(statement), fact)


def _blamed(statement: Statement, error: PySparkException) -> Place:
    """Return the place that Spark names, or the whole statement's."""
    found = re.search(r"line (\d+),? pos (\d+)", str(error))
    if found is None:
        return statement.place(statement.span)
    lines = statement.sql.splitlines(keepends=True)
    start = statement.span.start + sum(map(len, lines[: int(found[1]) - 1])) + int(found[2])
    return statement.place(Span(start, start + 1))


def _given(query: Query, head: str) -> DataFrame:
    try:
        return query.sql(head + query.edits.text(query.statement.span))
    except AnalysisException as error:
        raise query.failed(error) from None


def concerns(setting: Setting, found: Sequence[Token]) -> bool:
    """Return whether a statement may have anything of ours in it: a table, a function, a word."""
    names = {token.name.lower() for token in found if token.kind in ("word", "quoted")}
    known = {name.lower() for name in (*setting.catalog.tables, *setting.catalog.functions)}
    words = [token.text for token in found]
    return bool(names & known or _MARKS & set(words)) or ("LATERAL", "TABLE") in pairwise(words)


def _body(found: Sequence[Token]) -> int:
    """Return where the query of a statement begins."""
    words = [token.text for token in found[:1]]
    if not words or words[0] not in ("INSERT", "CREATE", "CACHE", "REPLACE"):
        return 0
    inner = [token for token in found[1:] if token.kind == "word" and not token.depth and token.text in _QUERIES]
    return inner[0].start if inner else 0


# ── statements that hold a query ─────────────────────────────────────────────────────────────────────────


def _is_insert(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    return _words(found)[:1] == ["INSERT"] and concerns(setting, found)


def _insert(setting: Setting, statement: Statement, found: Sequence[Token]) -> DataFrame:
    """Run INSERT INTO; into a lookup table it is refused, from a stream it starts a query."""
    query, head = _planned_insert(setting, statement, found)
    return _run_insert(query, head, found)


def _planned_insert(setting: Setting, statement: Statement, found: Sequence[Token]) -> tuple[Query, str]:
    sink = _sink(found)
    if sink.name in setting.catalog.tables:
        span = Span(statement.span.start + sink.start, statement.span.start + sink.end)
        raise StatementError(
            f"{sink.name!r} is a lookup table, which is only read.",
            hint="Write to a table of Spark's, or to files.",
            place=statement.place(span),
        )
    query = rewritten(setting, statement, found)
    return query, statement[Span(statement.span.start, query.statement.span.start)]


def _run_insert(query: Query, head: str, found: Sequence[Token]) -> DataFrame:
    if not any(view.isStreaming for view in query.views.values()):
        return _given(query, head)
    sink = _sink(found)
    rest = found[found.index(sink) :]
    name = "".join(
        token.written
        for token in rest[: next((n for n, t in enumerate(rest) if t.text in _QUERIES or t.text == "("), 1)]
    )
    started = query.df().writeStream.toTable(name)
    return query.setting.spark.createDataFrame([(name, str(started.id))], "sink STRING, query STRING")


def _sink(found: Sequence[Token]) -> Token:
    return next((t for t in found[1:] if t.text not in ("INTO", "OVERWRITE", "TABLE")), found[0])


def _is_set(found: Sequence[Token], *_: Any) -> bool:
    return _words(found)[:4] == ["EXECUTE", "STATEMENT", "SET", "BEGIN"]


def _run_set(setting: Setting, statement: Statement, found: Sequence[Token]) -> DataFrame:
    """Plan all statements of a set, then run them in their order: a mistake in one is known before the first runs."""
    planned = []
    for part, words in _parts(statement, found):
        if _words(words)[:1] != ["INSERT"]:
            raise StatementError(
                "A statement set holds INSERT statements.",
                hint="Write EXECUTE STATEMENT SET BEGIN INSERT INTO … SELECT …; … END.",
                place=part.place(part.span),
            )
        planned.append((*_planned_insert(setting, part, words), words))
    for query, head, words in planned:
        _run_insert(query, head, words)
    return nothing(setting)


def _parts(statement: Statement, found: Sequence[Token]) -> list[tuple[Statement, list[Token]]]:
    if _words(found)[-1:] != ["END"]:
        raise StatementError(
            "A statement set ends with END.",
            hint="Write EXECUTE STATEMENT SET BEGIN …; …; END.",
            place=statement.place(Span(statement.span.end - 1, statement.span.end)),
        )
    start, cuts = statement.span.start, [found[3], *(t for t in found if t.text == ";"), found[-1]]
    parts = []
    for before, after in pairwise(cuts):
        part = statement.part(start + before.end, start + after.start)
        text = part.sql
        part = part.part(part.span.start + len(text) - len(text.lstrip()), part.span.start + len(text.rstrip()))
        if part.sql:
            parts.append((part, list(tokens(part.sql))))
    return parts


def _is_view(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    words = _words(found)[:6]
    return words[:1] == ["CREATE"] and "VIEW" in words and concerns(setting, found)


def _create_view(setting: Setting, statement: Statement, found: Sequence[Token]) -> DataFrame:
    """Make a temporary view of a query with lookups."""
    query = rewritten(setting, statement, found)
    if not query.views:
        return _given(query, statement[Span(statement.span.start, query.statement.span.start)])
    words = _words(found)
    view = found[words.index("VIEW")]
    if not {"TEMPORARY", "TEMP"} & set(words[: words.index("VIEW")]) or "GLOBAL" in words[:5]:
        span = Span(statement.span.start, statement.span.start + view.end)
        raise StatementError(
            "A view with lookups lives as long as the session.",
            hint="Write CREATE [OR REPLACE] TEMPORARY VIEW.",
            place=statement.place(span),
        )
    after = [token for token in found[found.index(view) + 1 :] if token.text not in ("IF", "NOT", "EXISTS")]
    inside = after[2 : next((n for n, t in enumerate(after) if t.text == ")" and not t.depth), 2)]
    names = [token.name for token in inside if token.text != ","] if after[1].text == "(" else []
    try:
        df = query.df().toDF(*names) if names else query.df()
        df.createOrReplaceTempView(after[0].name) if "REPLACE" in words else df.createTempView(after[0].name)
    except AnalysisException as error:
        raise query.failed(error) from None
    return nothing(setting)


# ── what is known ────────────────────────────────────────────────────────────────────────────────────────


def _is_explain(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    return _words(found)[:1] == ["EXPLAIN"] and _words(found)[1:2] != ["TABLE"]


def _explain(setting: Setting, statement: Statement, found: Sequence[Token]) -> DataFrame:
    mode, skipped = mode_of(found)
    inner = statement.part(statement.span.start + found[skipped].start)
    words = list(tokens(inner.sql))
    if not concerns(setting, words):
        return _as_it_is(setting, Statement.of(f"EXPLAIN {'' if mode == 'simple' else mode.upper()} {inner.sql}"))
    query = rewritten(setting, inner, words)
    try:
        text = explained(query, mode)
    except AnalysisException as error:
        raise query.failed(error) from None
    return setting.spark.createDataFrame([(text,)], "plan STRING")


def _is_create(_: Sequence[Token], setting: Setting, statement: Statement) -> bool:
    made = CreateTable(statement, setting.catalog)
    made.refuse_broken()
    return made.is_ours()


def _create(setting: Setting, statement: Statement, _: Sequence[Token]) -> DataFrame:
    CreateTable(statement, setting.catalog).run()
    return nothing(setting)


def _is_function(found: Sequence[Token], *_: Any) -> bool:
    words = _words(found)
    if words[:1] != ["CREATE"] or "FUNCTION" not in words[:6]:
        return False
    strings = [token.text for token in found if token.kind == "string"]
    return bool(strings) and ":" in strings[0]


def _function(setting: Setting, statement: Statement, found: Sequence[Token]) -> DataFrame:
    create_function(setting.catalog, statement, found)
    return nothing(setting)


def _is_drop(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    words = _words(found)
    if words[:1] != ["DROP"] or not {"TABLE", "FUNCTION"} & set(words[1:3]):
        return False
    return found[-1].name in (setting.catalog.functions if "FUNCTION" in words[1:3] else setting.catalog.tables)


def _drop(setting: Setting, _: Statement, found: Sequence[Token]) -> DataFrame:
    function = "FUNCTION" in _words(found)[1:3]
    names: Any = setting.catalog.functions if function else setting.catalog.tables
    names.drop(found[-1].name, missing_ok=False)
    return nothing(setting)


def _is_listing(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    return listing.reader(setting, found) is not None


def _list(setting: Setting, _: Statement, found: Sequence[Token]) -> DataFrame:
    read = listing.reader(setting, found)
    assert read is not None
    return read()


def _words(found: Sequence[Token]) -> list[str]:
    return [token.text for token in found]


_KINDS: dict[Any, Any] = {
    _is_explain: _explain,
    _is_set: _run_set,
    _is_create: _create,
    _is_function: _function,
    _is_drop: _drop,
    _is_listing: _list,
    _is_view: _create_view,
    _is_insert: _insert,
}
