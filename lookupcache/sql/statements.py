"""Runs each kind of statement: the first keywords determine it, and the module of its kind runs it.

A statement of no kind here is a query, or is passed to Spark unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from pyspark.sql import DataFrame

from lookupcache.sql.definitions import read_create_function, read_create_table, read_drop, read_listing
from lookupcache.sql.detection import refuse
from lookupcache.sql.models import predicting, read_model
from lookupcache.sql.plan_statements import reader
from lookupcache.sql.queries import read_describe, read_explain, read_insert, read_statement_set, read_view, run_query
from lookupcache.sql.query import Args, Run, SqlContext, nothing, second_statement
from lookupcache.sql.text import Statement
from lookupcache.sql.token_reader import words_of
from lookupcache.sql.variables import unset_in, with_variables

_Read = Callable[[SqlContext, Statement, Args], Run | None]
"""Returns a function that runs a statement of one kind, None for one of another kind."""


def run(context: SqlContext, statement: Statement, args: Args = None) -> DataFrame:
    """Run a statement; return its result as a DataFrame."""
    statement = statement.without_end()
    plans = reader(context, statement, args)
    if plans is not None:
        _refuse_second(statement)
        return plans()
    if "${" not in statement.sql or _has_options(context, statement):
        return _run(context, statement, args)
    with unset_in(context, statement):
        return _run(context, with_variables(context, statement), args)


def _run(context: SqlContext, statement: Statement, args: Args) -> DataFrame:
    with predicting(context, statement) as statement:
        for read in _KINDS:
            do = read(context, statement, args)
            if do is not None:
                _refuse_second(statement)
                result = do()
                return nothing(context) if result is None else result
        return run_query(context, statement, args)


def _refuse_second(statement: Statement) -> None:
    """Raise StatementError for a statement that others follow; a statement set reads its own."""
    error, words = second_statement(statement), words_of(statement.tokens)
    if error is not None and ("STATEMENT", "SET") not in pairwise(words[: words.index(";")]):
        raise error


def _has_options(context: SqlContext, statement: Statement) -> bool:
    """Return whether a statement has options of a connector, in which ``${…}`` may mean something else."""
    kinds = (read_create_table, read_create_function)
    return any(read(context, statement, None) is not None for read in kinds)


def _refuse(context: SqlContext, statement: Statement, args: Args) -> Run | None:
    refuse(context, statement)
    return None


_KINDS: tuple[_Read, ...] = (
    read_explain,
    read_describe,
    read_statement_set,
    read_model,
    read_create_table,
    read_create_function,
    read_drop,
    read_listing,
    _refuse,
    read_view,
    read_insert,
)
