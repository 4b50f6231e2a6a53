"""Lets Spark analyze a statement before it is rewritten, with empty relations in place of lookup tables.

Spark applies its own rules for scopes, stars and names, and reports whether the statement is valid, and the names and
types of its columns.
"""

from __future__ import annotations

from sqlglot import exp

from lookupcache.planner.coercion import type_of_any_session
from lookupcache.schema import quote, type_name
from lookupcache.sql.catalog import SqlTable
from lookupcache.sql.dialect import name_span, span_of
from lookupcache.sql.laterals import called_function, refuse_side
from lookupcache.sql.lookups import is_present, is_temporal, refuse_more
from lookupcache.sql.query import Query
from lookupcache.sql.text import Edit, Span


def add_analysis_edits(query: Query) -> None:
    """Add the edits that replace lookup tables and table functions by empty relations."""
    for node in query.nodes:
        if isinstance(node, exp.Table) and (table := query.table_of(node)) is not None:
            _replace_table(query, node, table)
        elif (name := called_function(query, node)) is not None:
            _replace_call(query, node, name)
        elif isinstance(node, exp.Anonymous) and node.name.upper() == "PROCTIME" and is_present(node):
            query.analysis.replace(span_of(node), "current_timestamp()")
        elif isinstance(node, exp.Hint):
            query.analysis.replace(span_of(node), "")


def _replace_table(query: Query, node: exp.Table, table: SqlTable) -> None:
    name, span = name_span(node.this), span_of(node)
    query.analysis.replace(*empty_relation(node, table))
    if is_temporal(node):
        refuse_more(query, node)
        query.analysis.replace(span_of(node.args["version"]), _own_alias(node))
    start = query.statement.code.find("/*+", name.end, span.end)
    if start >= 0:
        query.analysis.replace(Span(start, query.statement.code.index("*/", start) + 2), "")


def empty_relation(node: exp.Table, table: SqlTable) -> Edit:
    """Return the edit that puts an empty relation for the name of a lookup table; a period stands before its alias."""
    return Edit(name_span(node.this), f"({empty_table(table)})" + ("" if is_temporal(node) else _own_alias(node)))


def _own_alias(node: exp.Table) -> str:
    return "" if node.alias else f" AS {quote(node.name)}"


def empty_table(table: SqlTable) -> str:
    """Return a query with the columns of a table; its values do not matter, since it is never executed."""
    computed = "".join(f", {sql} AS {quote(name)}" for name, sql in table.computed.items())
    columns = _nulls(table.types | table.marks)
    if table.shown is not None:
        items = (f"{table.computed.get(name, quote(name))} AS {quote(name)}" for name in table.shown)
        return f"SELECT {', '.join(items)} FROM (SELECT {columns})"
    return f"SELECT {columns}" if not computed else f"SELECT *{computed} FROM (SELECT {columns})"


def _nulls(types: dict[str, str]) -> str:
    return ", ".join(f"CAST(NULL AS {type_of_any_session(type_)}) AS {quote(name)}" for name, type_ in types.items())


def _replace_call(query: Query, node: exp.Expr, name: str) -> None:
    """Replace a call by a lateral sub-query with its columns; its arguments are checked when it is planned."""
    if isinstance(node.parent, exp.Join):
        refuse_side(query, node.parent)
    alias, whole = node.args.get("alias"), span_of(node)
    with query.statement.located(whole):
        columns = query.setting.catalog.functions[name].columns(
            [column.name for column in alias.columns] if alias else ()
        )
    nulls = _nulls({f.name: type_name(f.type) for f in columns})
    qualifier = quote((alias.name if alias else "") or name)
    query.analysis.replace(whole, f"LATERAL (SELECT {nulls}) AS {qualifier}")
