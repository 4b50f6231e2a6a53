"""Runs each kind of statement: the first keywords determine it, and the module of its kind runs it.

A statement of no kind here is a query, or is passed to Spark unchanged.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from lookupcache.planner.clauses import tokens
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
from lookupcache.sql.read_only import is_read_only, refuse_target
from lookupcache.sql.refused import is_refused, refuse
from lookupcache.sql.text import Statement
from lookupcache.sql.views import create_view, is_view


def run(setting: Setting, statement: Statement, args: Args = None) -> DataFrame:
    """Run a statement; return its result as a DataFrame."""
    if "${" in statement.sql and not _has_options(setting, statement):
        statement = with_variables(setting, statement)
    statement, found = prepare_statement(setting, statement, args)
    if has_predictions(found):
        statement = with_predictions(setting, statement)
        found = list(statement.words)
    for begin, do in _KINDS.items():
        if begin(found, setting, statement):
            return do(setting, statement, found, args)
    return run_query(setting, statement, found, args)


def _has_options(setting: Setting, statement: Statement) -> bool:
    """Return whether a statement has options of a connector, in which ``${…}`` may mean something else."""
    found = list(tokens(statement.sql))
    return is_create_table(found, setting, statement) or is_create_function(found)


_KINDS: dict[Any, Any] = {
    is_explain: run_explain,
    is_describe_query: describe_query,
    is_statement_set: run_statement_set,
    is_model: run_model,
    is_create_table: create_table,
    is_create_function: run_create_function,
    is_drop: run_drop,
    is_listing: run_listing,
    is_read_only: refuse_target,
    is_refused: refuse,
    is_view: create_view,
    is_insert: run_insert,
    is_query_before_insert: run_inserts_behind,
}
