"""Joins that cannot be lookups, as FULL JOIN: where a table's option permits it, they read the full table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from lookupcache.connector import offers
from lookupcache.errors import PlanError
from lookupcache.sql.dialect import span_of
from lookupcache.sql.hints import table_options
from lookupcache.sql.lookups import is_as_of, is_temporal
from lookupcache.sql.query import Query
from lookupcache.sql.text import Span

OPTION = "lookup.full-scan"
_log = logging.getLogger("lookupcache.sql")


@dataclass(frozen=True)
class FullScan:
    """A table that is read completely: its position in the statement, its name, and why it is not a lookup."""

    start: int
    table: str
    reason: str


def with_full_scans(query: Query, rewrite: Callable[[Query], Query], again: Callable[[], Query]) -> Query:
    """Return a query as rewritten; where that raises PlanError, read ``again`` with as few full tables as possible."""
    try:
        return rewrite(query)
    except PlanError as error:
        allowed = [FullScan(span_of(node).start, node.name, error.fact) for node in _scannable_tables(again())]
        for scans in [*((one,) for one in allowed), *([tuple(allowed)] if len(allowed) > 1 else [])]:
            changed = again()
            read_completely(changed, scans)
            try:
                changed = rewrite(changed)
            except PlanError:
                continue
            for scan in scans:
                _log.warning("Table %r is read completely instead of looked up: %s", scan.table, scan.reason)
            return changed
        raise


def _scannable_tables(query: Query) -> Iterator[exp.Table]:
    """Yield the lookup tables whose options permit a full scan, and which can be scanned."""
    for node in query.tree.find_all(exp.Table):
        table = query.table_of(node)
        if (
            table is None
            or table.shown is not None
            or table.marks
            or not offers(table.table.connector, "scan")
            or is_as_of(query, node)
        ):
            continue
        hint = table_options(query.statement, span_of(node))
        options = {} if hint is None else hint.options()
        if table.table.config.full_scan if OPTION not in options else options[OPTION].lower() == "true":
            yield node


def read_completely(query: Query, scans: tuple[FullScan, ...]) -> None:
    """Change a query so that some of its lookup tables are ordinary relations."""
    for node in list(_scannable_tables(query)):
        scan = next((one for one in scans if one.start == span_of(node).start), None)
        if scan is None:
            continue
        query.full_scans.append(scan)
        if is_temporal(node):
            _blank(query, span_of(node.args["version"]))
            node.set("version", None)
        hint = table_options(query.statement, span_of(node))
        if hint is not None:
            _blank(query, hint.span)


def _blank(query: Query, span: Span) -> None:
    query.edits.replace(span, "")
    query.analysis.replace(span, "")
