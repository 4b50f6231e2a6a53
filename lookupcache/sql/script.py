"""Runs the statements of a file, such as a Flink job's; each is checked before the first of them runs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from lookupcache.connector import connector_names
from lookupcache.errors import LookupCacheError, Position, StatementError
from lookupcache.planner.clauses import Token, tokens
from lookupcache.report import is_classic
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.latest import read_stream
from lookupcache.sql.queries import start_stream
from lookupcache.sql.query import Run, SqlContext
from lookupcache.sql.redaction import find_secrets
from lookupcache.sql.statements import run
from lookupcache.sql.text import Span, Statement, put
from lookupcache.sql.token_reader import TokenReader, insert_target, query_start, unquote, words_of

_log = logging.getLogger("lookupcache.sql")

_CATALOG, _DATABASE = "default_catalog", "default_database"
SETTINGS = {
    "table.local-time-zone": "spark.sql.session.timeZone",
    "parallelism.default": "spark.sql.shuffle.partitions",
    "table.exec.resource.default-parallelism": "spark.sql.shuffle.partitions",
    "execution.checkpointing.dir": "spark.sql.streaming.checkpointLocation",
    "state.checkpoints.dir": "spark.sql.streaming.checkpointLocation",
    "pipeline.name": "spark.job.description",
}
"""Flink's settings, and those of Spark's with the same meaning."""
_FOREIGN = {
    ("CREATE", "CATALOG"): "Leave it out: Spark's catalogs are settings of its session, spark.sql.catalog.NAME.",
    ("CREATE", "MATERIALIZED", "TABLE"): "Write CREATE TABLE … AS, or INSERT INTO.",
    ("LOAD", "MODULE"): "Leave it out: Spark's functions are all there.",
    ("UNLOAD", "MODULE"): "Leave it out.",
    ("USE", "MODULES"): "Leave it out.",
    ("SHOW", "JOBS"): "Use spark.streams.active.",
    ("STOP", "JOB"): "Use the stop method of a query of spark.streams.active.",
}
"""Statements of Flink that Spark lacks, and the cure for each."""
_MATCH = "Spark has no patterns over rows: use lag and lead, or a stateful operator in Python."
_READ_BY_US = {"SYSTEM_TIME", "LATERAL", "DESCRIPTOR", "STATEMENT", "PLAN", "SNAPSHOT", "MODEL", "ML_PREDICT"}
"""Words of statements that Spark's parser need not understand."""


@dataclass
class Step:
    """A statement of a file, and the function that runs it; ``problem`` says why it cannot run, and the cure.

    ``unknown`` is a setting of Flink's without a meaning in Spark.
    """

    statement: Statement
    run: Run | None = None
    problem: tuple[str, str] | None = None
    unknown: str | None = None


@dataclass
class _Names:
    """The names that the statements before one define: lookup tables, and relations of Spark's.

    ``sparks`` are names that a statement of the file defines, for which Spark must have a relation.
    """

    tables: set[str]
    sparks: set[str]
    relations: set[str] = field(default_factory=set)


def run_script(context: SqlContext, text: str) -> list[DataFrame]:
    """Run the statements of a text; return their results.

    Raises StatementError, before the first of them runs, with the line of each that cannot run on Spark.
    """
    steps = list(_steps(context, text))
    wrong = [step for step in steps if step.problem is not None]
    if wrong:
        raise _refusal(wrong)
    unknown = [step.unknown for step in steps if step.unknown is not None]
    if unknown:
        _log.warning("These settings have no meaning here, and change nothing: %s", ", ".join(dict.fromkeys(unknown)))
    results = [step.run() for step in steps if step.run is not None]
    return [df for df in results if df is not None]


def _refusal(wrong: Sequence[Step]) -> StatementError:
    facts, hints = [], dict[str, None]()
    for step in wrong:
        assert step.problem is not None
        fact, hint = step.problem
        facts.append(f"line {_position(step).line}: {fact}")
        hints[hint] = None
    count = "A statement" if len(wrong) == 1 else f"{len(wrong)} statements"
    return StatementError(
        f"{count} of the file cannot run on Spark, so none was run:\n  " + "\n  ".join(facts),
        hint="\n      ".join(hints),
        position=_position(wrong[0]),
    )


def _position(step: Step) -> Position:
    return step.statement.position_of(step.statement.tokens[0])


# ── statements ───────────────────────────────────────────────────────────────────────────────────────────


def statements_of(text: str) -> Iterator[Statement]:
    """Yield the statements of a text; one of several in BEGIN … END is part of that.

    >>> text = "SET 'a' = ';'; BEGIN STATEMENT SET; INSERT CASE b WHEN 1 THEN 2 END; END; -- that is all;"
    >>> [one.sql for one in statements_of(text)]
    ["SET 'a' = ';'", 'BEGIN STATEMENT SET; INSERT CASE b WHEN 1 THEN 2 END; END']
    """
    whole = Statement.of(without_catalog(text))
    first: Token | None = None
    last, opened = 0, list[str]()
    for token in whole.tokens:
        if token.text == ";" and not opened:
            if first is not None:
                yield whole.part(first.start, last)
            first = None
            continue
        first = token if first is None else first
        if token.kind == "word" and token.text in ("BEGIN", "CASE"):
            opened.append(token.text)
        elif token.kind == "word" and token.text == "END" and opened:
            opened.pop()
        last = token.end
    if first is not None:
        yield whole.part(first.start, last)


def without_catalog(text: str) -> str:
    """Return a text of the same length, with blanks in place of the names of Flink's default catalog and database.

    >>> without_catalog("FROM default_catalog.default_database.t").split()
    ['FROM', 't']
    """
    names = (
        Span(name.start, dot.end)
        for name, dot in pairwise(tokens(text))
        if name.name in (_CATALOG, _DATABASE) and dot.text == "." and name.kind in ("word", "quoted")
    )
    return put(text, ((span, "") for span in names))


def _steps(context: SqlContext, text: str) -> Iterator[Step]:
    statements = list(statements_of(text))
    written = {name.lower() for one in statements for name in _sinks(one.tokens)}
    sparks = {name for one in statements if (name := _sparks(context, one, written)) is not None}
    names = _Names({name.lower() for name in context.catalog.tables}, sparks)
    # Of each statement on its own: SET 'key' = 'value' of one would hide all others, as options outside of WITH do.
    secrets = [one.span_within(start, end) for one in statements for start, end in find_secrets(one.written)]
    for statement in statements:
        statement.__dict__["hidden"] = secrets
        step = _step(context, statement, names)
        if step is not None:
            yield step


def _step(context: SqlContext, statement: Statement, names: _Names) -> Step | None:
    """Return a step for a statement of a file, None for one without a meaning in Spark."""
    found, words = statement.tokens, words_of(statement.tokens)
    if words[0] in ("SET", "RESET") and len(found) > 1 and found[1].kind == "string":
        return _setting_step(context, statement, found)
    if words[0] == "USE" and found[-1].name in (_CATALOG, _DATABASE):
        return None
    foreign = next((begin for begin in _FOREIGN if tuple(words[: len(begin)]) == begin), None)
    if foreign is not None:
        return Step(statement, problem=(f"{' '.join(foreign)} is Flink's.", _FOREIGN[foreign]))
    if _creates_table(words):
        return _create_table(context, statement, names)
    if words[:2] == ["DROP", "TABLE"] and found[-1].name.lower() in names.sparks:
        return None  # as its definition is left out
    if "MATCH_RECOGNIZE" in words:
        return Step(statement, problem=("MATCH_RECOGNIZE is Flink's.", _MATCH))
    problem = _written(found, names) or _unread(context.spark, statement)
    if problem is not None:
        return Step(statement, problem=problem)
    if words[0] == "CREATE" and "VIEW" in words[:4]:
        return Step(statement, lambda: run(context, _temporary(context, statement)))
    if words[0] == "INSERT":
        return Step(statement, lambda: _insert(context, statement) or run(context, statement))
    return Step(statement, partial(run, context, statement))


def _insert(context: SqlContext, statement: Statement) -> DataFrame | None:
    """Start a stream for an INSERT of a streaming view's rows, as Flink does; None for any other INSERT."""
    sink, start = insert_target(statement.tokens), query_start(statement.tokens)
    rows = None if start is None else read_stream(context, statement.sql[start:], None)
    return None if rows is None or sink is None else start_stream(rows, sink, statement.tokens)


def _setting_step(context: SqlContext, statement: Statement, found: Sequence[Token]) -> Step:
    """Return the step of SET 'key' = 'value', or RESET 'key'."""
    key, value = unquote(found[1].text), unquote(found[3].text) if len(found) > 3 else None
    name = SETTINGS.get(key, key if key.startswith("spark.") else None)

    def change() -> None:
        if name is not None and found[0].text == "SET" and value is not None:
            context.spark.conf.set(name, value)
        elif name is not None:
            context.spark.conf.unset(name)

    return Step(statement, change, unknown=key if name is None and found[0].text == "SET" else None)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────


def _create_table(context: SqlContext, statement: Statement, names: _Names) -> Step | None:
    """Return the step of CREATE TABLE: a lookup table, a table of files, or nothing where Spark has the relation."""
    table, connector = _defined(context, statement)
    if connector is None or table is None:
        base = next((b.name for a, b in pairwise(statement.tokens) if a.text == "LIKE" and not a.depth), None)
        if base is not None and base.lower() in names.tables and table is not None:
            names.tables.add(table.lower())
        return Step(statement, partial(run, context, statement))
    if table.lower() not in names.sparks and connector != "filesystem":
        names.tables.add(table.lower())
        return Step(statement, partial(run, context, statement))
    if connector == "filesystem":
        names.relations.add(table.lower())
        return _files(context, statement)
    if table.lower() in names.relations or _exists(context.spark, table):
        _log.info("CREATE TABLE %s is left out: Spark has a relation of that name.", table)
        return None
    return Step(
        statement,
        problem=(
            f"Table {table!r} has Flink's connector {connector!r}.",
            f"Give Spark a table or view {table!r} before: spark.readStream.format(…).load().createOrReplaceTempView"
            f"({table!r}) for a source, CREATE TABLE for a sink. Its definition is then left out.",
        ),
    )


def _creates_table(words: Sequence[str]) -> bool:
    """Return whether words begin CREATE [OR REPLACE] [TEMPORARY] TABLE."""
    return [word for word in words[:5] if word not in ("OR", "REPLACE", "TEMPORARY")][:2] == ["CREATE", "TABLE"]


def _defined(context: SqlContext, statement: Statement) -> tuple[str | None, str | None]:
    """Return the name of a table without a schema, and its connector, as CREATE TABLE names them."""
    reader = TokenReader(statement.tokens)
    reader.skip("CREATE", "OR", "REPLACE", "TEMPORARY", "TABLE")
    reader.take("IF", "NOT", "EXISTS")
    name = reader.name()
    connector = CreateTable(statement, context.catalog).option("connector")
    return None if name is None else name.plain, connector


def _sparks(context: SqlContext, statement: Statement, written: Collection[str]) -> str | None:
    """Return the table of a CREATE TABLE, in whose place a relation of Spark's has to be; None for other statements.

    A table of the connector ``jdbc`` is one where the file writes it, and Spark has the relation.
    """
    if not _creates_table(words_of(statement.tokens)):
        return None
    table, connector = _defined(context, statement)
    if table is None or connector is None or connector == "filesystem" or ":" in connector:
        return None
    if connector == "jdbc":
        return table.lower() if table.lower() in written and _exists(context.spark, table) else None
    return None if connector in connector_names() else table.lower()


def _files(context: SqlContext, statement: Statement) -> Step:
    """Return a function that makes a table of files."""
    try:
        text = CreateTable(statement, context.catalog).spark_files()
    except LookupCacheError as error:
        return Step(statement, problem=(error.fact, error.hint or ""))
    return Step(statement, partial(context.spark.sql, text))


def _exists(spark: SparkSession, name: str) -> bool:
    try:
        return spark.catalog.tableExists(name)
    except PySparkException:
        return False


def _written(found: Sequence[Token], names: _Names) -> tuple[str, str] | None:
    """Return why an INSERT, or one of a statement set, cannot write its table."""
    table = next((one for one in _sinks(found) if one.lower() in names.tables), None)
    if table is None:
        return None
    hint = (
        f"Give Spark a table {table!r} before: CREATE TABLE {table} USING jdbc OPTIONS (…), or for a stream USING "
        "delta. Where the connector is 'jdbc', the definition in the file is then left out."
    )
    return f"Table {table!r} is a lookup table, which is read only.", hint


def _sinks(found: Sequence[Token]) -> Iterator[str]:
    """Yield the tables that an INSERT, or a statement set, writes."""
    for number, token in enumerate(found):
        if token.text == "INSERT" and token.kind == "word":
            sink = insert_target(found[number:])
            if sink is not None and sink.plain is not None:
                yield sink.plain


def _unread(spark: SparkSession, statement: Statement) -> tuple[str, str] | None:
    """Return why Spark's parser cannot read a statement without lookups."""
    words = set(words_of(statement.tokens))
    if words & _READ_BY_US or "/*+" in statement.sql or not is_classic(spark):
        return None
    try:
        spark._jsparkSession.sessionState().sqlParser().parsePlan(statement.sql)
    except ParseException as error:
        fact = str(error).split("\n\n== SQL")[0].strip().replace("\n", " ")
        return f"Spark cannot read the statement: {fact}", "Write it in Spark's SQL."
    return None


def _temporary(context: SqlContext, statement: Statement) -> Statement:
    """Return CREATE VIEW as CREATE TEMPORARY VIEW where it reads relations that a permanent view cannot."""
    words = words_of(statement.tokens)
    if "TEMPORARY" in words[:4] or "TEMP" in words[:4]:
        return statement
    known = {row.viewName.lower() for row in context.spark.sql("SHOW VIEWS").collect() if row.isTemporary}
    known |= {name.lower() for names in (context.catalog.tables, context.catalog.views) for name in names}
    if not any(token.name.lower() in known for token in statement.tokens[2:]):
        return statement
    view = statement.tokens[words.index("VIEW")]
    return statement.rewritten(f"{statement.written[: view.start]}TEMPORARY {statement.written[view.start :]}")
