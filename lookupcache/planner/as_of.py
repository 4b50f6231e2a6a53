"""As-of joins: the conditions by which a left row meets the rows of a table that were valid at its time.

    validity   (valid_from <= time OR valid_from IS NULL) AND (valid_to > time OR valid_to IS NULL)   ─► residual
    version    version <= time   ─► residual, then of each left row's matches those with the greatest version

A time that is null matches nothing. The time is no part of the key: an entry of the cache has all versions of its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from sqlglot import exp

from lookupcache.config import LookupConfig
from lookupcache.errors import PlanError
from lookupcache.expr import Side
from lookupcache.planner.clauses import tokens, without_comments
from lookupcache.planner.coercion import cast_hint, common_type
from lookupcache.planner.constant_keys import refuse_chance
from lookupcache.planner.naming import Fragment, VisibleColumns, column_name
from lookupcache.schema import column_names, shown_type, type_name, upper_but_names
from lookupcache.table import LookupTable

AsOf = str | Fragment
"""The time of a left row: SQL over the left side, or a tree whose names are bound already."""


@dataclass(frozen=True, eq=False)
class AsOfCondition:
    """A condition of an as-of join, and the text that shows it to people."""

    fragment: Fragment
    shown: str


def refuse_without_history(table: LookupTable) -> None:
    """Raise PlanError for a table that has no rows of former times, or does not say which column has their time."""
    config = table.config
    if table.stream is not None:
        raise PlanError(
            f"as_of is not possible with table {table.name!r}: it has only the latest values of a stream.",
            hint="Leave as_of out; or look up a table that keeps all versions.",
        )
    if config.as_of_period is None and config.as_of_version is None:
        raise PlanError(
            f"as_of needs a table with a validity or a version, and {table.name!r} declares neither.",
            hint="Set 'lookup.as-of.period' to the columns of the validity, as in 'valid_from, valid_to', or "
            "'lookup.as-of.version' to the column of the version. In CREATE TABLE, write "
            "PERIOD FOR SYSTEM_TIME (valid_from, valid_to).",
        )
    if table.connector.one_row_per_key:
        raise PlanError(
            f"as_of is not possible with table {table.name!r}: connector {table.connector_name!r} has one row per "
            "key, and so no versions.",
            hint="Look up a table that has several rows per key, or leave as_of out.",
        )


def read_moment(scope: VisibleColumns, as_of: AsOf) -> Fragment:
    """Return the time of a left row as a tree; raises PlanError if it is not a time of the left side."""
    moment = as_of if isinstance(as_of, Fragment) else _read_text(scope, as_of)
    if "right" in moment.sides:
        raise PlanError(
            f"as_of reads {scope.table}.{min(moment.names('right'))}, a column of the table.",
            hint="Name the time of the left rows, as in as_of='o.ts'.",
        )
    refuse_chance(moment, "as_of")
    return moment


def _read_text(scope: VisibleColumns, text: str) -> Fragment:
    text = without_comments(scope.settings.readable(text))
    names = list(tokens(text))
    if not names:
        raise PlanError("as_of is empty.", hint="Name the time of the left rows, as in as_of='o.ts'.")
    # A column that is named alone is the left side's, also where the table has one of that name.
    if len(names) == 1 and names[0].kind in ("word", "quoted") and scope.has_left(names[0].name):
        return scope.left_column(names[0].name)
    found = scope.read(text)
    if isinstance(found.tree, exp.Alias):
        raise PlanError(f"as_of={text!r} is no single value.", hint="Name the time without AS, as in as_of='o.ts'.")
    return found


def as_of_conditions(scope: VisibleColumns, config: LookupConfig, moment: Fragment, type_: str) -> list[AsOfCondition]:
    """Return the conditions of an as-of join, true for rows of the table that a left row of that time may match.

    ``type_`` is Spark's name of the time's type.
    """
    condition = partial(_condition, scope, moment)
    found = [condition("{time} IS NOT NULL")]
    if config.as_of_version is not None:
        version = scope.of_right(config.as_of_version)
        _refuse_unordered(scope, version)
        _refuse_other_type(scope, moment, type_, version)
        return [*found, condition("{column} <= {time}", version)]
    assert config.as_of_period is not None
    start, end = map(scope.of_right, column_names(config.as_of_period))
    if start == end:
        raise PlanError(
            f"as_of finds no row of {scope.table!r}: its validity begins and ends with the same column, {start!r}.",
            hint="Set 'lookup.as-of.period' to two columns, as in 'valid_from, valid_to'.",
        )
    for column in (start, end):
        _refuse_other_type(scope, moment, type_, column)
    return [
        *found,
        condition("{column} <= {time} OR {column} IS NULL", start),
        condition("{column} > {time} OR {column} IS NULL", end),
    ]


def implied_bounds(
    scope: VisibleColumns, config: LookupConfig, moment: Fragment, type_: str, conjuncts: Iterable[Fragment]
) -> list[AsOfCondition]:
    """Return conditions on the table alone that follow from comparisons of the time with constants.

    From ``version <= time`` and ``time <= DATE '2024-06-01'`` follows ``version <= DATE '2024-06-01'``: no left row
    that is looked up has a later time. So no history that is cached lacks a version. Only values of one type are
    compared: the order of two types need not be that of a third.
    """
    period = None if config.as_of_period is None else tuple(map(scope.of_right, column_names(config.as_of_period)))
    start = scope.of_right(str(config.as_of_version)) if period is None else period[0]
    or_null = "" if period is None else " OR {column} IS NULL"
    found = []
    for op, value in (bound for fragment in conjuncts for bound in _bounds(moment, fragment)):
        column = start if op in ("<", "<=") else None if period is None else period[1]
        if column is not None and type_name(scope.right.field(column).type) == type_:
            sign = op if column == start and op in ("<", "<=") else ">"
            text = value.replace("{", "{{").replace("}", "}}")
            found.append(_condition(scope, moment, f"{{column}} {sign} {text}{or_null}", column))
    return found


def _bounds(moment: Fragment, fragment: Fragment) -> Iterator[tuple[str, str]]:
    """Yield the comparisons of the time with a constant in a conjunct over the left side."""
    if moment.column is None or fragment.sides != {"left"} or fragment.doubtful:
        return

    def is_moment(node: exp.Expr) -> bool:
        found = fragment.reference(node.unnest())
        return found is not None and (found.name, found.fields) == (moment.column.name, ())  # type: ignore[union-attr]

    tree = fragment.tree.unnest()
    if isinstance(tree, exp.Between) and not tree.args.get("symmetric") and is_moment(tree.this):
        pairs = [(">=", tree.args["low"]), ("<=", tree.args["high"])]
    elif type(tree) in _COMPARISONS and is_moment(tree.this):
        pairs = [(op, tree.expression) for op in _COMPARISONS[type(tree)]]
    elif type(tree) in _COMPARISONS and is_moment(tree.expression):
        pairs = [(_FLIPPED[op], tree.this) for op in _COMPARISONS[type(tree)]]
    else:
        return
    yield from ((op, value.sql("spark")) for op, value in pairs if _is_constant(value))


_COMPARISONS: dict[type[exp.Expr], tuple[str, ...]] = {
    exp.LT: ("<",), exp.LTE: ("<=",), exp.GT: (">",), exp.GTE: (">=",), exp.EQ: ("<=", ">="),
}  # fmt: skip
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _is_constant(node: exp.Expr) -> bool:
    """Return whether a node is an integer, or a date or timestamp as a literal."""
    if isinstance(node, exp.Cast) and type(node) is exp.Cast and isinstance(node.this, exp.Literal):
        return node.this.is_string and bool(re.fullmatch(r"[\d :.T+-]+", node.this.name))
    return isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit()


def _condition(scope: VisibleColumns, moment: Fragment, template: str, column: str = "") -> AsOfCondition:
    """Return a condition whose text is ``template`` with the column of the table and the time."""
    names: dict[tuple[str, ...], tuple[Side, str, int]] = {
        ("l", one.name, *one.fields): ("left", one.name, 1) for one in moment.references.values()
    }
    names["r", column] = "right", column, 1
    sql = moment.sql if moment.column else f"({moment.sql})"
    fragment = scope.with_names(names).read(template.format(column=column_name("right", column), time=sql))
    return AsOfCondition(fragment, template.format(column=f"{scope.table}.{column}", time=moment.text))


def _refuse_unordered(scope: VisibleColumns, version: str) -> None:
    """Raise PlanError for a version whose type may have no single greatest value, as with NaN."""
    type_ = scope.right.field(version).type
    is_exact = pa.types.is_integer(type_) or pa.types.is_decimal(type_)
    if not (is_exact or pa.types.is_date(type_) or pa.types.is_timestamp(type_)):
        raise PlanError(
            f"{scope.table}.{version} is {shown_type(type_)}, which cannot be a version.",
            hint="'lookup.as-of.version' takes a column of an integer, DECIMAL, DATE or TIMESTAMP type.",
        )


def _refuse_other_type(scope: VisibleColumns, moment: Fragment, left: str, column: str) -> None:
    type_ = scope.right.field(column).type
    if common_type(left, type_name(type_)) is None:
        raise PlanError(
            f"as_of={moment.text!r} is {upper_but_names(left)} and {scope.table}.{column} is {shown_type(type_)}: they "
            "cannot be compared without a lossy or surprising cast.",
            hint=cast_hint(f"as_of='CAST({moment.text} AS {shown_type(type_)})'"),
        )
