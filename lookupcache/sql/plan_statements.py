"""COMPILE PLAN, EXECUTE PLAN, COMPILE AND EXECUTE PLAN, EXPLAIN PLAN, and SET for the options of plans."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing

from pyspark.sql import DataFrame

from lookupcache.compiled import CompiledPlan, PlanReference, files
from lookupcache.compiled.catalog_objects import RESTORES
from lookupcache.compiled.document import KEEPS
from lookupcache.errors import LookupCacheError, OptionError, StatementError, nearest
from lookupcache.planner.clauses import Token
from lookupcache.sql.compiled import Compiler, Restored
from lookupcache.sql.detection import refuse
from lookupcache.sql.models import predicting
from lookupcache.sql.plan_runs import check, execute
from lookupcache.sql.queries import plan_inserts
from lookupcache.sql.query import Args, SqlContext, nothing
from lookupcache.sql.text import Statement
from lookupcache.sql.token_reader import TokenReader, insert_target, words_of

KEEP, RESTORE, FORCE = (
    "table.plan.compile.catalog-objects", "table.plan.restore.catalog-objects", "table.plan.force-recompile",
)  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {KEEP: KEEPS, RESTORE: RESTORES, FORCE: ("false", "true")}
"""The options of plans that SET takes, with their values, the default first."""

_SETTING = re.compile(r"""(SET|RESET)\s+(['"`]?)(table\.plan\.[\w.-]*)\2\s*(?:=\s*(.*?)\s*)?""", re.I | re.S)


def option(context: SqlContext, name: str) -> str:
    """Return the value of an option of plans."""
    return context.plan_options.get(name, OPTIONS[name][0])


def reader(context: SqlContext, statement: Statement, args: Args) -> Callable[[], DataFrame] | None:
    """Return a function that runs a statement about plans; None for any other statement."""
    found = list(statement.tokens)
    words = [token.text for token in found[:5]]
    if words[:1] in (["SET"], ["RESET"]) and (match := _SETTING.fullmatch(statement.sql.strip())):
        return lambda: _set(context, statement, match)
    if words[:2] == ["COMPILE", "PLAN"] or words[:4] == ["COMPILE", "AND", "EXECUTE", "PLAN"]:
        return lambda: _compile(context, statement, found, args)
    if words[:2] in (["EXECUTE", "PLAN"], ["EXPLAIN", "PLAN"]) and words[2:3] != ["FOR"]:
        if words[0] == "EXPLAIN" and (len(found) < 3 or found[2].kind != "string"):
            return None  # Flink's former EXPLAIN PLAN FOR, or Spark's error
        return lambda: _run_file(context, statement, found)
    return None


def _set(context: SqlContext, statement: Statement, match: re.Match[str]) -> DataFrame:
    """Set, show or reset an option of plans."""
    verb, _, name, value = match.groups()
    if name not in OPTIONS:
        raise OptionError(
            f"There is no option {name!r}.",
            hint=nearest(name, OPTIONS, what="options of plans"),
            position=statement.position(statement.span),
        )
    if verb.upper() == "RESET":
        context.plan_options.pop(name, None)
    elif value is not None:
        context.plan_options[name] = _checked(name, value.strip("'\"`"), statement)
    row = [(name, option(context, name))]
    return context.spark.createDataFrame(row, "key STRING, value STRING")


def _checked(name: str, value: str, statement: Statement) -> str:
    """Return an option's value in its usual spelling; raises OptionError for an invalid value."""
    known = {one.lower(): one for one in OPTIONS[name]}
    if value.lower() not in known:
        raise OptionError(
            f"Option {name!r} is {value!r}.",
            hint=nearest(value, OPTIONS[name], what="values"),
            position=statement.position(statement.span),
        )
    return known[value.lower()]


# ── compiling ────────────────────────────────────────────────────────────────────────────────────────────


def _compile(context: SqlContext, statement: Statement, found: Sequence[Token], args: Args) -> DataFrame:
    """Run ``COMPILE [AND EXECUTE] PLAN ['path'] [IF NOT EXISTS] FOR inner``."""
    head = TokenReader(found)
    head.take("COMPILE")
    runs = head.take("AND", "EXECUTE")
    head.take("PLAN")
    path = head.literal()
    keep = head.take("IF", "NOT", "EXISTS")
    if (keep and runs) or (path is None and (keep or runs)) or not head.take("FOR") or not head.rest:
        usage = "COMPILE AND EXECUTE PLAN 'path' FOR …" if runs else "COMPILE PLAN ['path' [IF NOT EXISTS]] FOR …"
        raise StatementError(
            "The statement cannot be read.",
            hint=f"Write {usage}, with INSERT … or STATEMENT SET BEGIN …; END.",
            position=statement.position_of((head.rest or found)[0]),
        )
    inner, force = statement.part(statement.span.start + head.rest[0].start), option(context, FORCE) == "true"
    if path is None:
        text = compile_statement(context, inner, args).as_json_string()
        return context.spark.createDataFrame([(text,)], "plan STRING")
    if force or not files.exists(path):
        plan = compile_statement(context, inner, args)
        try:
            plan.write_to_file(path, overwrite=force)
        except files.FileExists:
            # Another program has compiled it meanwhile: that plan runs.
            if not (keep or runs):
                raise
    elif not (keep or runs):
        raise files.existing(path)
    return _execute_file(context, path) if runs else nothing(context)


def compile_statement(context: SqlContext, statement: Statement, args: Args = None) -> CompiledPlan:
    """Return the plan of an INSERT or a statement set; raises StatementError, by name, for any other statement."""
    with predicting(context, statement.without_end()) as statement:
        refuse(context, statement)
        _refuse_other(statement)
        compiler = Compiler(context, option(context, KEEP))
        for query in plan_inserts(context, statement, args):
            compiler.add_insert(query, insert_target(query.inserted))
        return CompiledPlan(compiler.document())


def _refuse_other(statement: Statement) -> None:
    found, words = statement.tokens, words_of(statement.tokens)
    if words[:1] == ["INSERT"] or words[:3] in (["STATEMENT", "SET", "BEGIN"], ["EXECUTE", "STATEMENT", "SET"]):
        return
    name = _name_of(words)
    raise StatementError(
        f"{name} cannot be compiled: a plan writes to a table.",
        hint="Compile INSERT INTO … SELECT …, or STATEMENT SET BEGIN INSERT …; INSERT …; END."
        + (" Create the table first." if name.startswith("CREATE") else ""),
        position=statement.position(statement.span_of(found[0]) if found else statement.span),
    )


def _name_of(words: Sequence[str]) -> str:
    """Return how a statement is called in an error."""
    if words[:1] in (["CREATE"], ["REPLACE"]):
        what = next((word for word in words[1:] if word in ("TABLE", "VIEW", "FUNCTION")), "")
        return f"CREATE {what} AS" if "AS" in words and what != "FUNCTION" else f"CREATE {what}".strip()
    if "INSERT" in words:
        return "INSERT behind a query"
    return "SELECT" if words[:1] in (["SELECT"], ["WITH"], ["FROM"], ["VALUES"], ["("]) else (words or ["Nothing"])[0]


# ── running ──────────────────────────────────────────────────────────────────────────────────────────────


def _run_file(context: SqlContext, statement: Statement, found: Sequence[Token]) -> DataFrame:
    """Run EXECUTE PLAN 'path' or EXPLAIN PLAN 'path'."""
    head = TokenReader(found[2:])
    path = head.literal()
    if path is None or head.rest:
        raise StatementError(
            f"{found[0].text} PLAN takes the path of a plan.",
            hint=f"Write {found[0].text} PLAN 'path'.",
            position=statement.position_of(found[-1]),
        )
    if found[0].text == "EXECUTE":
        return _execute_file(context, path)
    plan = CompiledPlan.of(PlanReference.from_file(path))
    return context.spark.createDataFrame([(plan.explain() + _explain_restore(context, plan),)], "plan STRING")


def _explain_restore(context: SqlContext, plan: CompiledPlan) -> str:
    """Return the line of EXPLAIN PLAN that says whether a plan would run in a session."""
    try:
        with closing(restore(context, plan)) as restored:
            check(restored)
    except LookupCacheError as error:
        return f"\nIt would not run in this session: {error}\n"
    return "\nIt would run in this session.\n"


def _execute_file(context: SqlContext, path: str) -> DataFrame:
    return execute(restore(context, CompiledPlan.of(PlanReference.from_file(path))))


def restore(context: SqlContext, plan: CompiledPlan) -> Restored:
    """Return a plan in a session, by the session's option for catalog objects."""
    return Restored(context, plan.document, option(context, RESTORE))
