"""Runs each kind of statement: statements about lookups here, all others are passed to Spark unchanged.

The first keywords of a statement determine its kind. Of INSERT and CREATE … AS only the query is parsed; the text
before it is passed to Spark unparsed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses
from sqlglot import exp

from lookupcache.errors import LookupCacheError, PlanError, Position, StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.schema import quote
from lookupcache.sql import listing
from lookupcache.sql.analysis import add_analysis_edits
from lookupcache.sql.catalog import Names
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.dialect import span_of
from lookupcache.sql.dynamic import columns_called, immediate_of, prepare_statement
from lookupcache.sql.explain import explain_query, mode_of
from lookupcache.sql.full_scans import with_full_scans
from lookupcache.sql.functions import create_function
from lookupcache.sql.hints import unquote
from lookupcache.sql.inserts import inserts_of
from lookupcache.sql.laterals import refuse_unknown
from lookupcache.sql.latest import add_streams, read_stream, reads_streams
from lookupcache.sql.lookups import is_present, is_temporal, refuse_strangers
from lookupcache.sql.outer import reads_outside
from lookupcache.sql.pipes import Part, part_of, pipes_of, without_pipes
from lookupcache.sql.query import Query, Setting, query_of, selects, view_marker
from lookupcache.sql.redaction import STARS
from lookupcache.sql.scalars import scalars_of
from lookupcache.sql.scripts import immediate_texts, is_script, run_script
from lookupcache.sql.select import rewrite_select
from lookupcache.sql.statement_target import QUERIES, TokenReader, insert_target, query_start, target_of
from lookupcache.sql.stream_relations import name_stream_relations
from lookupcache.sql.text import Edits, Span, Statement

Args = dict[str, Any] | None
"""The values of a statement's parameters."""
_BY_CHANCE = 3
_LATERALS = {("LATERAL", "TABLE"), ("LATERAL", "SNAPSHOT")}
_MARKS = {"SYSTEM_TIME", "PROCTIME", "LOOKUP", "ASYNC_TABLE_FUNC"}


def run(setting: Setting, statement: Statement, args: Args = None) -> DataFrame:
    """Run a statement; return its result as a DataFrame."""
    statement, found = prepare_statement(setting, statement, args)
    for begin, do in _KINDS.items():
        if begin(found, setting, statement):
            return do(setting, statement, found, args)
    return _run_query(setting, statement, found, args)


def nothing(setting: Setting) -> DataFrame:
    """Return the empty DataFrame of a statement without a result."""
    return setting.spark.createDataFrame([], T.StructType([]))


# ── queries ──────────────────────────────────────────────────────────────────────────────────────────────


def rewrite_query(
    setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None, prefix: str = "", views: str = ""
) -> Query:
    """Return the query of a statement, rewritten so that its lookups are joined.

    Args:
        setting: The session, its catalog and its settings.
        statement: The statement.
        found: The tokens of the query.
        args: The values of parameters by name.
        prefix: Text before the query when it is run, such as that of an INSERT.
        views: How the names of its views begin.
    """
    changed, relations = name_stream_relations(statement, found, lambda text: read_stream(setting, text, args))
    words = list(tokens(changed.sql)) if relations else found

    def read() -> Query:
        query = _query(setting, changed, words, args, prefix)
        query.view_prefix, query.relations = views, relations
        return query

    return with_full_scans(read(), _with_lookups, read)


def _with_lookups(query: Query) -> Query:
    """Return a query with its lookups joined; Spark's errors, and ours, are raised."""
    add_streams(query)
    refuse_strangers(query, query.tree)
    refuse_unknown(query, query.tree)
    add_analysis_edits(query)
    _ = query.schema  # Spark reports its errors before any lookup is planned
    scalars = scalars_of(query, query.tree)
    inner = {id(scalar.select) for scalar in scalars}
    _scan_tables(query, {id(scalar.select.args["from_"].this) for scalar in scalars})
    for call in query.tree.find_all(exp.Anonymous):
        if call.name.upper() == "PROCTIME" and is_present(call) and call.find_ancestor(exp.Version) is None:
            query.edits.replace(span_of(call), "current_timestamp()")
    for select in selects(query.tree):
        if id(select) not in inner:
            own = [scalar for scalar in scalars if scalar.node.find_ancestor(exp.Select) is select]
            rewrite_select(query, select, own)
    for edit in columns_called(query.statement, query.tree):
        if not any(one.span.start <= edit.span.end and one.span.end >= edit.span.start for one in query.edits.made):
            query.edits.replace(*edit)
    return query


def _query(setting: Setting, statement: Statement, found: Sequence[Token], args: Args, prefix: str) -> Query:
    """Parse the query of a statement; raise StatementError where it has none, or more than one."""
    start = query_start(found)
    part = None if start is None else part_of(statement.part(statement.span.start + start), partial(concerns, setting))
    if part is not None:
        return _query_over(setting, statement, part, args, prefix)
    nested = [token for token in pipes_of(found) if token.depth]
    if start is None or nested or (start == 0 and found[:1] and found[0].text not in (*QUERIES, "(")):
        where = nested[0] if nested else found[0]
        raise _no_query(statement, statement.span_within(where.start, where.end + bool(nested)))
    body = statement.part(statement.span.start + start)
    prefix += statement[Span(statement.span.start, body.span.start)]
    body, piped = without_pipes(body)
    later = None if piped is None else Span(piped, body.span.end)
    if later is not None and concerns(setting, list(tokens(body[later]))):
        raise _no_query(statement, Span(later.start, later.start + 2))
    query = query_of(setting, body, prefix, args, body if later is None else body.with_blanks([later]))
    values = isinstance(query.tree, exp.Values) and not concerns(setting, found)
    if not (values or isinstance(query.tree, exp.Query)) or query.tree.find(exp.DML, exp.MultitableInserts):
        raise _no_query(statement, body.span_within(0, found[0].end - found[0].start))
    return query


def _query_over(setting: Setting, statement: Statement, part: Part, args: Args, prefix: str) -> Query:
    """Parse the query of a statement in which a relation stands for a query that is rewritten alone."""
    name = next(name for name in map("_q{}".format, range(1000)) if name not in statement.code)
    code, (start, end) = part.code(name), part.replaced
    if code is None:
        raise _no_query(statement, part.span)
    changed = statement.with_code(statement.code[:start] + code + statement.code[end:])
    query = _query(setting, changed, list(tokens(changed.sql)), args, prefix)
    inner, own = statement.part(*part.span), part.name_span(name)
    words = list(tokens(inner.sql))
    if concerns(setting, words):
        alone = rewrite_query(setting, inner, words, args, views=f"{start}_")
        if part.span == part.replaced and reads_outside(alone, alone.analysis.text(inner.span)):
            raise PlanError(
                "A sub-query with pipes and lookups cannot read a column of the query around it, or a variable.",
                hint="Write the condition in the query around it, or SELECT … FROM … JOIN … in place of the pipes.",
                position=statement.position(part.span),
            )
        query.adopt(alone)
        query.edits.replace(own, view_marker(query.view(alone.df())))
        query.analysis.replace(own, f"({alone.analysis.text(inner.span)})")
    else:
        query.edits.replace(own, f"({inner.sql})")
        query.analysis.replace(own, f"({inner.sql})")
    return query


def _no_query(statement: Statement, span: Span) -> StatementError:
    return StatementError(
        "A statement of this kind cannot contain lookups.",
        hint="Write SELECT … FROM … JOIN … as a separate statement, or as a temporary view that this one reads.",
        position=statement.position(span),
    )


def _scan_tables(query: Query, looked_up: set[int]) -> None:
    for node in query.tree.find_all(exp.Table):
        table = query.table_of(node)
        if table is None or is_temporal(node) or id(node) in looked_up:
            continue
        try:
            query.scan_table(node, table)
        except LookupCacheError as error:
            raise error.at(query.statement.position(span_of(node))) from None


def _run_query(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run a query, or a statement that contains one; without a lookup it is passed to Spark unchanged."""
    if not concerns(setting, found) or _words(found)[:1][0] not in (*QUERIES, "CREATE", "REPLACE", "(", "BEGIN"):
        return _run_unchanged(setting, statement, args)
    if _words(found)[0] in ("CREATE", "REPLACE") and (query_start(found) is None or not _creates_table(found)):
        _refuse_lookups(setting, statement, found, args)
        return _run_unchanged(setting, statement, args)
    query = rewrite_query(setting, statement, found, args)
    return query.run() if query.edits.made else _run_unchanged(setting, statement, args)


def _creates_table(found: Sequence[Token]) -> bool:
    reader = TokenReader(found)
    reader.skip("CREATE", "OR", "REPLACE", "EXTERNAL")
    return reader.take("TABLE")


def _refuse_lookups(setting: Setting, statement: Statement, found: Sequence[Token], args: Args) -> None:
    """Raise StatementError for a query with lookups of which Spark would keep the text, as that of a function."""
    if query_start(found) is None:
        return
    for before, token in pairwise(found):
        if before.text == "STREAM" and token.name in setting.catalog.tables:
            raise _no_query(statement, statement.span_within(token.start, token.end))
    query = _query(setting, statement, found, args, "")
    for node in query.tree.find_all(exp.Table):
        if query.table_of(node) is not None:
            raise _no_query(statement, span_of(node))


def _run_unchanged(setting: Setting, statement: Statement, args: Args = None) -> DataFrame:
    """Pass a statement to Spark; raise StatementError in place of an error of Spark's that would show secrets."""
    shown: PySparkException
    try:
        with _suppress_logging(statement):
            return setting.spark.sql(statement.written, args)
    except PySparkException as error:
        _refuse_unread(setting, statement, error)
        if not _shows(statement, str(error)):
            raise
        shown = error
    raise StatementError(
        f"Spark rejects the statement: {_fact(statement, shown)}", position=_error_position(statement, shown)
    )


def _refuse_unread(setting: Setting, statement: Statement, error: PySparkException) -> None:
    """Raise StatementError where Spark does not find a relation that is a lookup table."""
    if error.getCondition() == "UNRESOLVED_ROUTINE" and "PROCTIME" in str(error.getMessageParameters()).upper():
        raise _no_query(statement, statement.span) from None
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return
    name = unquote((error.getMessageParameters() or {}).get("relationName") or "``")
    if name in setting.catalog.tables:
        raise StatementError(
            f"{name!r} is a lookup table, which a statement of this kind cannot read.",
            hint=f"Write CREATE TEMPORARY VIEW … AS SELECT * FROM {name}, and the view's name here.",
            position=_error_position(statement, error),
        ) from None


@contextmanager
def _suppress_logging(statement: Statement) -> Iterator[None]:
    """Keep PySpark from writing its errors about a statement to the log where the statement may hold secrets."""
    # Created by PySpark: an ordinary logger of that name would not take the arguments that PySpark passes.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before = logger.disabled
    logger.disabled = before or bool(statement.hidden)
    try:
        yield
    finally:
        logger.disabled = before


def _shows(statement: Statement, text: str) -> bool:
    """Return whether an error of Spark's contains a secret."""
    return bool(statement.hidden) and ("== SQL" in text or any(piece in text for piece in _pieces(statement)))


def _pieces(statement: Statement) -> list[str]:
    """Return the secrets, the longest first; very short ones occur in any text by chance."""
    whole = {statement.text[piece.start : piece.end] for piece in statement.hidden}
    # Spark repeats a literal without its quotes, and two quotes in it as one.
    pieces = whole | {part for piece in whole for part in re.split(r"['\"`\\]+", piece)}
    return sorted((piece for piece in pieces if len(piece) > _BY_CHANCE), key=len, reverse=True)


def _fact(statement: Statement, error: PySparkException) -> str:
    """Return Spark's message without the statement's text, with secrets masked."""
    fact = re.split(r"\n+== SQL|;?\s*\(?line \d+,? pos \d+\)?|JVM stacktrace", str(error))[0].strip()
    return functools.reduce(lambda text, piece: text.replace(piece, STARS), _pieces(statement), fact)


def _error_position(statement: Statement, error: PySparkException) -> Position:
    """Return the position that Spark names, or that of the full statement."""
    found = re.search(r"line (\d+),? pos (\d+)", str(error))
    if found is None:
        return statement.position(statement.span)
    lines = statement.sql.splitlines(keepends=True)
    start = statement.span.start + sum(map(len, lines[: int(found[1]) - 1])) + int(found[2])
    return statement.position(Span(start, start + 1))


def concerns(setting: Setting, found: Sequence[Token]) -> bool:
    """Return whether a statement may use lookups: a lookup table, a table function, or one of their keywords."""
    names = {token.name.lower() for token in found if token.kind in ("word", "quoted")}
    known = {name.lower() for name in (*setting.catalog.tables, *setting.catalog.functions)}
    words = [token.text for token in found]
    if names & known or _MARKS & set(words) or _LATERALS & set(pairwise(words)):
        return True
    if "=>" in words and ("SNAPSHOT", "(") in pairwise(words):
        return True
    return reads_streams(setting, found)


def _is_describe_query(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    reader = TokenReader(found)
    if not (reader.take("DESCRIBE") or reader.take("DESC")):
        return False
    reader.take("QUERY")
    return bool(reader.words) and reader.words[0] in QUERIES[:4] and concerns(setting, found)


def _describe_query(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    skipped = 2 if found[1].text == "QUERY" else 1
    inner = statement.part(statement.span.start + found[skipped].start)
    schema = rewrite_query(setting, inner, list(tokens(inner.sql)), args).schema
    rows = [(column.name, column.dataType.simpleString(), None) for column in schema]
    return setting.spark.createDataFrame(rows, "col_name STRING, data_type STRING, comment STRING")


def _is_immediate(found: Sequence[Token], setting: Setting, statement: Statement) -> bool:
    immediate = immediate_of(setting, statement, found)
    return immediate is not None and concerns(setting, list(tokens(immediate.text)))


def _run_immediate(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    immediate = immediate_of(setting, statement, found)
    assert immediate is not None
    result = run(setting, Statement.of(immediate.text), immediate.args)
    if not immediate.variables:
        return result
    return setting.spark.sql(f"SET VAR ({immediate.variables}) = (SELECT * FROM {{result}})", result=result)


# ── statements that contain a query ─────────────────────────────────────────────────────────────────────────


def _is_insert(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    sink = insert_target(found)
    refused = sink is not None and sink.plain is not None and sink.plain in setting.catalog.tables
    return refused or (_words(found)[:1] == ["INSERT"] and concerns(setting, found) and query_start(found) is not None)


def _insert(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run INSERT INTO; it is an error for a lookup table, and starts a streaming query for a stream."""
    return _run_insert(_plan_insert(setting, statement, found, args), found)


def _is_query_before_insert(found: Sequence[Token], setting: Setting, statement: Statement) -> bool:
    return concerns(setting, found) and bool(inserts_of(statement, found))


def _insert_behind(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Plan all INSERTs that follow the beginning of their query, then run them in order."""
    for query, words in _plan_behind(setting, statement, found, args):
        _run_insert(query, words)
    return nothing(setting)


def _plan_behind(
    setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None
) -> list[tuple[Query, list[Token]]]:
    planned = []
    for insert in inserts_of(statement, found):
        head = list(tokens(insert.prefix))
        _refuse_sink(setting, statement.part(insert.start), head)
        words = list(tokens(insert.query.sql))
        planned.append((rewrite_query(setting, insert.query, words, args, insert.prefix), head))
    return planned


def _plan_insert(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> Query:
    _refuse_sink(setting, statement, found)
    return rewrite_query(setting, statement, found, args)


def _refuse_sink(setting: Setting, statement: Statement, found: Sequence[Token]) -> None:
    sink = insert_target(found)
    if sink is not None and sink.plain is not None and sink.plain in setting.catalog.tables:
        raise StatementError(
            f"{sink.plain!r} is a lookup table, which is read-only.",
            hint="Write to a table of Spark's, or to files.",
            position=statement.position(statement.span_within(sink.start, sink.end)),
        )


def _run_insert(query: Query, found: Sequence[Token]) -> DataFrame:
    sink = insert_target(found)
    if sink is None or not any(view.isStreaming for view in query.views.values()):
        return query.run()
    name = ".".join(map(quote, sink.parts))
    started = query.df().writeStream.toTable(name)
    return query.setting.spark.createDataFrame([(name, str(started.id))], "sink STRING, query STRING")


def _is_set(found: Sequence[Token], *_: Any) -> bool:
    return _words(found)[:4] == ["EXECUTE", "STATEMENT", "SET", "BEGIN"]


def _run_set(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Plan all statements of a set, then run them in order: an error in one is raised before the first runs."""
    for query, words in plan_inserts(setting, statement, found, args):
        _run_insert(query, words)
    return nothing(setting)


def plan_inserts(
    setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None
) -> list[tuple[Query, list[Token]]]:
    """Return the planned INSERT statements of a statement set, or of a single statement, with their tokens.

    Args:
        setting: The session.
        statement: The statement.
        found: Its tokens.
        args: The parameters.
    """
    if _words(found)[1:3] != ["STATEMENT", "SET"]:
        return _plan_inserts_of_one(setting, statement, found, args)
    planned = []
    for part, words in _parts(statement, found):
        if not has_inserts(part, words):
            raise StatementError(
                "A statement set can only contain INSERT statements.",
                hint="Write EXECUTE STATEMENT SET BEGIN INSERT INTO … SELECT …; … END.",
                position=part.position(part.span),
            )
        planned += _plan_inserts_of_one(setting, part, words, args)
    return planned


def has_inserts(statement: Statement, found: Sequence[Token]) -> bool:
    """Return whether a single statement is one or more INSERTs, before or behind their query."""
    return _words(found)[:1] == ["INSERT"] or bool(inserts_of(statement, found))


def _plan_inserts_of_one(
    setting: Setting, statement: Statement, found: Sequence[Token], args: Args
) -> list[tuple[Query, list[Token]]]:
    if _words(found)[:1] == ["INSERT"]:
        return [(_plan_insert(setting, statement, found, args), list(found))]
    return _plan_behind(setting, statement, found, args)


def _parts(statement: Statement, found: Sequence[Token]) -> list[tuple[Statement, list[Token]]]:
    if _words(found)[-1:] != ["END"]:
        raise StatementError(
            "A statement set ends with END.",
            hint="Write EXECUTE STATEMENT SET BEGIN …; …; END.",
            position=statement.position(Span(statement.span.end - 1, statement.span.end)),
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


def _is_script(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    return is_script(setting, found) and any(concerns(setting, part) for part in (found, *immediate_texts(found)))


def _run_script(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run the statements of a script; return the rows of its last query."""
    result = run_script(setting, statement, found, lambda one: run(setting, one, args))
    return nothing(setting) if result is None else result


def _is_view(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    """Return whether a statement creates a view or caches a table from a query that may use lookups."""
    words = _words(found)[:6]
    kept = (words[:1] == ["CREATE"] and "VIEW" in words) or words[:2] in (["CACHE", "TABLE"], ["CACHE", "LAZY"])
    return kept and concerns(setting, found) and query_start(found) is not None


def _create_view(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Create a temporary view of a query with lookups: Spark keeps its plan, not its text with our internal views."""
    query = rewrite_query(setting, statement, found, args)
    words = _words(found)
    if query.views and words[0] == "CREATE":
        before = words[: words.index("VIEW")]
        if not {"TEMPORARY", "TEMP"} & set(before) or "GLOBAL" in before:
            raise StatementError(
                "A view with lookups can only be temporary.",
                hint="Write CREATE [OR REPLACE] TEMPORARY VIEW.",
                position=statement.position(statement.span_within(0, found[words.index("VIEW")].end)),
            )
    with _keep_plans(setting):
        return query.run()


@contextmanager
def _keep_plans(setting: Setting) -> Iterator[None]:
    name, conf = "spark.sql.legacy.storeAnalyzedPlanForView", setting.spark.conf
    before = conf.get(name, None)
    conf.set(name, "true")
    try:
        yield
    finally:
        conf.set(name, before) if before is not None else conf.unset(name)


# ── MERGE, UPDATE and DELETE ───────────────────────────────────────────────────────────


def _is_change(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    sets = _words(found)[:2] in (["SET", "VAR"], ["SET", "VARIABLE"])
    return (sets or _words(found)[:1] in (["MERGE"], ["UPDATE"], ["DELETE"])) and concerns(setting, found)


def _change(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Run MERGE, UPDATE, DELETE or SET VARIABLE, with sources and sub-queries that use lookups replaced by views."""
    _refuse_target(setting, statement, found)
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
        return _run_unchanged(setting, statement, args)
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


def _is_refused(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    target = target_of(found)
    return target is not None and target.name.plain is not None and target.name.plain in setting.catalog.tables


def _refuse_target(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    """Raise StatementError for a statement about a Spark table that names a lookup table."""
    target = target_of(found)
    if target is not None and target.name.plain is not None and target.name.plain in setting.catalog.tables:
        raise StatementError(
            f"{target.name.plain!r} is a lookup table, which does not support {target.verb}.",
            hint=_cure(target.verb),
            position=statement.position(statement.span_within(target.name.start, target.name.end)),
        )
    return nothing(setting)


def _cure(verb: str) -> str:
    if verb.startswith(("SHOW", "DESC")):
        return "Write SHOW COLUMNS IN name, SHOW CREATE TABLE name, or DESCRIBE [EXTENDED] name [column]."
    if verb.endswith(" VIEW") and verb.startswith("CREATE"):
        return "Choose another name: a lookup table's comes before that of a view."
    default = "A lookup table is read-only; write the schema before the name if you mean a Spark table."
    return _CURES.get(verb, default)


_CURES = {
    "DROP VIEW": "Write DROP TABLE.",
    "ALTER TABLE": "Write CREATE OR REPLACE TABLE.",
    "CACHE TABLE": "Write CACHE TABLE name AS SELECT … FROM …, or set 'lookup.cache' = 'ALL'.",
    "CACHE LAZY TABLE": "Write CACHE LAZY TABLE name AS SELECT … FROM …, or set 'lookup.cache' = 'ALL'.",
}


# ── EXPLAIN, CREATE, DROP, SHOW ──────────────────────────────────────────────────────────────────────────


def _is_explain(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    return _words(found)[:1] == ["EXPLAIN"] and _words(found)[1:2] != ["TABLE"]


def _explain(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    mode, skipped = mode_of(found)
    if skipped >= len(found):
        return _run_unchanged(setting, statement, args)
    inner = statement.part(statement.span.start + found[skipped].start)
    words = list(tokens(inner.sql))
    if not concerns(setting, words):
        mode_word = "" if mode == "simple" else mode.upper()
        return _run_unchanged(setting, Statement.of(f"EXPLAIN {mode_word} {inner.written}"), args)
    text = explain_query(rewrite_query(setting, inner, words, args), mode)
    return setting.spark.createDataFrame([(text,)], "plan STRING")


def _is_create(_: Sequence[Token], setting: Setting, statement: Statement) -> bool:
    made = CreateTable(statement, setting.catalog)
    made.refuse_broken()
    return made.is_ours()


def _create(setting: Setting, statement: Statement, _: Sequence[Token], args: Args = None) -> DataFrame:
    CreateTable(statement, setting.catalog).run()
    return nothing(setting)


def _is_function(found: Sequence[Token], *_: Any) -> bool:
    words = _words(found)
    if words[:1] != ["CREATE"] or "FUNCTION" not in words[:6]:
        return False
    strings = [token.text for token in found if token.kind == "string"]
    return bool(strings) and ":" in strings[0]


def _function(setting: Setting, statement: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    create_function(setting.catalog, statement, found)
    return nothing(setting)


def _is_drop(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    return _drop_target(found, setting) is not None


def _drop_target(found: Sequence[Token], setting: Setting) -> tuple[Names[Any], str] | None:
    """Return the catalog and the name that a DROP removes, if it is a lookup table or a table function."""
    reader = TokenReader(found)
    if not reader.take("DROP"):
        return None
    reader.skip("TEMPORARY", "TEMP", "SYSTEM")
    if not (reader.words[:1] and reader.words[0] in ("TABLE", "FUNCTION")):
        return None
    names: Names[Any] = setting.catalog.tables if reader.words[0] == "TABLE" else setting.catalog.functions
    reader.skip("TABLE", "FUNCTION")
    reader.take("IF", "EXISTS")
    name = reader.name()
    if name is None or name.plain is None or name.plain not in names or reader.words not in ([], ["PURGE"]):
        return None
    return names, name.plain


def _drop(setting: Setting, _: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    dropped = _drop_target(found, setting)
    assert dropped is not None
    names, name = dropped
    names.drop(name, missing_ok=False)
    return nothing(setting)


def _is_listing(found: Sequence[Token], setting: Setting, _: Statement) -> bool:
    return listing.reader(setting, found) is not None


def _list(setting: Setting, _: Statement, found: Sequence[Token], args: Args = None) -> DataFrame:
    read = listing.reader(setting, found)
    assert read is not None
    return read()


def _words(found: Sequence[Token]) -> list[str]:
    return [token.text for token in found]


_KINDS: dict[Any, Any] = {
    _is_explain: _explain,
    _is_immediate: _run_immediate,
    _is_describe_query: _describe_query,
    _is_set: _run_set,
    _is_script: _run_script,
    _is_create: _create,
    _is_function: _function,
    _is_drop: _drop,
    _is_listing: _list,
    _is_refused: _refuse_target,
    _is_view: _create_view,
    _is_change: _change,
    _is_insert: _insert,
    _is_query_before_insert: _insert_behind,
}
