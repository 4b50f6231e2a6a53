"""Runs each kind of statement: the first keywords determine it, and the module of its kind runs it.

A statement of no kind here is a query, or is passed to Spark unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame

from lookupcache.planner.clauses import Token
from lookupcache.sql.definitions import (
    create_table,
    is_create_function,
    is_create_table,
    is_drop,
    is_listing,
    run_create_function,
    run_drop,
    run_listing,
)
from lookupcache.sql.dynamic import prepare_statement, with_variables
from lookupcache.sql.explain import is_explain, run_explain
from lookupcache.sql.inserts import (
    is_insert,
    is_query_before_insert,
    is_statement_set,
    run_insert,
    run_inserts_behind,
    run_statement_set,
)
from lookupcache.sql.models import has_predictions, is_model, run_model, with_predictions
from lookupcache.sql.queries import describe_query, is_describe_query, run_query
from lookupcache.sql.query import Args, Setting
from lookupcache.sql.refused import is_refused, refuse
from lookupcache.sql.text import Statement
from lookupcache.sql.views import create_view, is_view


def run(setting: Setting, statement: Statement, args: Args = None) -> DataFrame:
    """Run a statement; return its result as a DataFrame."""
    if "${" in statement.sql and not _has_options(setting, statement):
        statement = with_variables(setting, statement)
    statement = prepare_statement(statement)
    found = list(statement.words)
    if has_predictions(found):
        statement = with_predictions(setting, statement)
        found = list(statement.words)
    runs = next((kind.run for kind in _KINDS if kind.is_of(found, setting, statement)), run_query)
    return runs(setting, statement, found, args)


def _has_options(setting: Setting, statement: Statement) -> bool:
    """Return whether a statement has options of a connector, in which ``${…}`` may mean something else."""
    return any(is_of(statement.words, setting, statement) for is_of in (is_create_table, is_create_function))


class _Kind(NamedTuple):
    """A kind of statement: whether a statement is of it, and what runs it."""

    is_of: Callable[[Sequence[Token], Setting, Statement], bool]
    run: Callable[[Setting, Statement, Sequence[Token], Args], DataFrame]


_KINDS = (
    _Kind(is_explain, run_explain),
    _Kind(is_describe_query, describe_query),
    _Kind(is_statement_set, run_statement_set),
    _Kind(is_model, run_model),
    _Kind(is_create_table, create_table),
    _Kind(is_create_function, run_create_function),
    _Kind(is_drop, run_drop),
    _Kind(is_listing, run_listing),
    _Kind(is_refused, refuse),
    _Kind(is_view, create_view),
    _Kind(is_insert, run_insert),
    _Kind(is_query_before_insert, run_inserts_behind),
)
