"""Finds the lookups among the joins of a SELECT, with the table, the condition and the options of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from lookupcache.compiled.nodes import CallUse, TableUse
from lookupcache.errors import LookupCacheError, OptionError, PlanError, SchemaError, StatementError, nearest
from lookupcache.plan import How, Matches
from lookupcache.planner.clauses import tokens
from lookupcache.sql.catalog import SqlTable
from lookupcache.sql.dialect import OF_A_QUERY, name_span, span_of
from lookupcache.sql.hints import Hint, Hints, table_options
from lookupcache.sql.query import Query
from lookupcache.sql.scope import Fold, Relation, Scope, names_in, star_columns
from lookupcache.sql.text import Span
from lookupcache.table import LookupTable

_NOW = (exp.CurrentTimestamp, exp.Localtimestamp)
_WORDS_FOR_NOW = ("CURRENT_TIMESTAMP", "LOCALTIMESTAMP")
_CALLED_NOW = ("PROCTIME", "NOW", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP")
_SIDES = {
    "RIGHT": "Swap the sides, so that the lookup table stands right of a LEFT JOIN.",
    "FULL": "A lookup reads only the rows of the requested keys: use LEFT JOIN, or read the full table, without "
    "FOR SYSTEM_TIME AS OF.",
}


@dataclass(frozen=True, eq=False)
class Lookup:
    """A lookup as the text requests it.

    ``on_node`` is its condition; ``keys`` are further conjuncts, already as SQL over the left DataFrame and the table;
    ``using`` names columns that both sides have. In a ``scalar`` sub-query a name is first resolved in the table.
    ``match_column`` is a column of the table that is null only in rows without a match, which an outer join adds.
    ``needs_match_column`` says whether such rows must be told from matches. ``use`` says which table or function of the
    catalog it reads. ``as_of`` is the time of an as-of join. ``source`` is the table as SQL defines it; of a query over
    one table, it has that query's conditions. ``computed`` columns of the left DataFrame, by name, are SQL over the
    relations before the lookup, which ``keys`` read.
    """

    span: Span
    relation: Relation
    table: LookupTable
    use: TableUse | CallUse
    how: How = "inner"
    on_node: exp.Expr | None = None
    using: Sequence[str] = ()
    keys: Sequence[str] = ()
    matches: Matches = "all"
    scalar: bool = False
    needs_match_column: bool = False
    match_column: str | None = None
    marks: Mapping[str, str] = field(default_factory=dict)
    as_of: exp.Version | None = None
    source: SqlTable | None = None
    computed: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_versions(self) -> bool:
        """Whether ON chooses among the versions of a row: WHERE then filters the latest, and is no condition of it."""
        return self.as_of is not None and self.table.config.as_of_version is not None


def relation_of(alias: str, table: SqlTable, fold: Fold, merged: Sequence[str] = ()) -> Relation:
    """Return a lookup table as a relation of a FROM; ``fold`` is the session's rule for names."""
    columns = tuple((table.types | table.marks).items())
    return Relation((alias,), columns, tuple(merged), table.computed, tuple(table.names), fold, table.outside)


def table_lookup(query: Query, hints: Hints, left: Sequence[Relation], join: exp.Join, table: SqlTable) -> Lookup:
    """Return the lookup of a join with ``FOR SYSTEM_TIME AS OF``; raises errors with the position."""
    node = join.this
    alias = node.alias or node.name
    looked_up = with_hints(query, hints, node, alias, table.table)
    as_of = time_of(query, left, node.args["version"], looked_up)
    using = _using(query, left, join, table)
    return Lookup(
        span=span_of(join),
        relation=relation_of(alias, table, query.fold, [query.fold(name) for name in using]),
        table=looked_up,
        how=_how(query, join),
        on_node=join.args.get("on"),
        using=using,
        marks=table.marks,
        use=TableUse(table=table.base or node.name),
        as_of=as_of,
        source=table,
    )


def _using(query: Query, left: Sequence[Relation], join: exp.Join, table: SqlTable) -> list[str]:
    """Return the columns that USING or NATURAL joins on."""
    if join.method != "NATURAL":
        return [name.name for name in join.args.get("using") or []]
    own = relation_of("", table, query.fold)
    names: dict[str, str] = {}
    for _, name in star_columns(left, query.fold):
        names.setdefault(query.fold(name), name)  # of several left columns of a name, Spark joins on the first
    return [name for name in names.values() if own.column(name, query.fold) is not None]


def refuse_more(query: Query, node: exp.Expr) -> None:
    """Raise PlanError for clauses after a table's name that Spark allows, but a lookup table does not."""
    alias = node.args.get("alias")
    more = {
        "TABLESAMPLE": node.args.get("sample"),
        "other joins in between": node.args.get("joins"),
        "names for its columns": alias is not None and alias.columns,
    }
    for what, found in more.items():
        if found:
            raise PlanError(
                f"A lookup table cannot have {what}.",
                hint="Write JOIN table FOR SYSTEM_TIME AS OF … AS alias ON …, and name columns in SELECT.",
                position=query.statement.position(span_of(node)),
            )


def with_hints(query: Query, hints: Hints, node: exp.Expr, alias: str, table: LookupTable) -> LookupTable:
    """Return a table under its alias, with the options of the hints of its SELECT, and of its own."""
    options: dict[str, str] = {}
    hint = table_options(query.statement, span_of(node))
    if hint is not None:
        options |= hint.options()
    options |= hints.options("LOOKUP", [alias, node.name])
    try:
        return table.renamed(alias).with_options(options) if options else table.renamed(alias)
    except LookupCacheError as error:
        ours = [h for h in hints.ours if h.target in (alias, node.name)]
        raise error.at(query.statement.position(_error_span(error, [*([hint] if hint else []), *ours], node))) from None


def _error_span(error: LookupCacheError, hints: Sequence[Hint], node: exp.Expr) -> Span:
    """Return the span of the option that an error names."""
    for hint in hints:
        for key, value in hint.given.items():
            if repr(key) in str(error) or (isinstance(error, OptionError) and repr(value.text) in error.fact):
                return value.span
    return hints[0].span if hints else span_of(node)


def _how(query: Query, join: exp.Join) -> How:
    side, kind = join.side, join.kind
    if side in _SIDES:
        raise PlanError(
            f"A {side} JOIN cannot be a lookup join.",
            hint=_SIDES[side],
            position=query.statement.position(span_of(join)),
        )
    if kind in ("SEMI", "ANTI"):
        return "semi" if kind == "SEMI" else "anti"
    return "left" if side == "LEFT" else "inner"


# ── the period ───────────────────────────────────────────────────────────────────────────────────────────


def is_temporal(node: exp.Expr) -> bool:
    """Return whether a relation has FOR SYSTEM_TIME AS OF."""
    version = node.args.get("version")
    return isinstance(version, exp.Version) and version.args.get("kind") == "AS OF"


def is_present(node: exp.Expr) -> bool:
    """Return whether an expression is one of SQL's functions for the current time."""
    if isinstance(node, exp.Column):
        return not node.table and not node.this.quoted and node.name.upper() in _WORDS_FOR_NOW
    return isinstance(node, _NOW) or (isinstance(node, exp.Anonymous) and node.name.upper() in _CALLED_NOW)


def is_processing_time(query: Query, moment: exp.Expr) -> bool:
    """Return whether a time is that of the lookup: a function for it, or a column that stands for it."""
    if isinstance(moment, exp.Column):
        return is_present(moment) or moment.name.lower() in [name.lower() for name in query.context.time_columns]
    return is_present(moment)


def is_as_of(query: Query, node: exp.Expr) -> bool:
    """Return whether a relation has FOR SYSTEM_TIME AS OF another time than that of the lookup."""
    moment = node.args["version"].expression if is_temporal(node) else None
    return moment is not None and not is_processing_time(query, moment.unnest())


def time_of(
    query: Query, left: Sequence[Relation] | None, version: exp.Version, table: LookupTable
) -> exp.Version | None:
    """Return the period of an as-of join, None for the time of the lookup; raises PlanError without versions."""
    moment: exp.Expr | None = version.expression
    has_versions = table.config.as_of_period is not None or table.config.as_of_version is not None
    if moment is None or not has_versions or is_processing_time(query, moment.unnest()):
        _refuse_period(query, left, version, table)
        return None
    return version


def time_span(query: Query, version: exp.Version) -> Span:
    """Return the span of the time in FOR SYSTEM_TIME AS OF; not every expression has one of its own."""
    span = span_of(version)
    before = next(token for token in tokens(query.statement[span]) if token.text == "OF")
    text = query.statement[Span(span.start + before.end, span.end)]
    return Span(span.end - len(text.lstrip()), span.end)


_DECLARE = (
    "For the rows of that time, declare PERIOD FOR SYSTEM_TIME (valid_from, valid_to) in CREATE TABLE, or the option "
    "'lookup.as-of.version'."
)


_OF_A_STREAM = (
    "Write PROCTIME(), for the latest values: a stream's values of an earlier time are not kept. For an order of both "
    "streams within a micro-batch, set left_order_by of LookupTable.from_stream."
)


def _refuse_period(query: Query, left: Sequence[Relation] | None, version: exp.Version, table: LookupTable) -> None:
    """Raise PlanError for a period other than the current time."""
    names = query.context.time_columns
    known = f"Write PROCTIME(), CURRENT_TIMESTAMP, or a column named {' or '.join(names)}."
    if version.expression is None:
        raise StatementError(
            "FOR SYSTEM_TIME AS OF has no time.", hint=known, position=query.statement.position(span_of(version))
        )
    moment = version.expression.unnest()
    if is_present(moment):
        return
    if isinstance(moment, exp.Column) and moment.name.lower() in [name.lower() for name in names]:
        _refuse_unknown_relation(query, left, moment)
        return
    is_column = isinstance(moment, exp.Column)
    asked = query.statement[span_of(moment)] if is_column else "a fixed time"
    others = " LookupSession(…, time_columns=[…]) sets other names." if is_column else ""
    raise PlanError(
        f"FOR SYSTEM_TIME AS OF {asked} requests the rows of that time; a lookup returns the current rows.",
        hint=_OF_A_STREAM if table.stream is not None else f"{known}{others} {_DECLARE}",
        position=query.statement.position(span_of(moment if is_column else version)),
    )


def _refuse_unknown_relation(query: Query, left: Sequence[Relation] | None, moment: exp.Column) -> None:
    """Raise SchemaError for a column of no relation before the lookup; one that a relation lacks means its time."""
    [name] = names_in(moment, query.fold)
    qualifiers = name.parts[:-1]
    if not qualifiers or left is None or Scope([left], query.fold).bind(name) is not None:
        return
    if any(one.is_named(qualifiers[:end], query.fold) for one in left for end in range(1, len(name.parts))):
        return
    raise SchemaError(
        f"There is no relation {qualifiers[0]!r} left of the lookup.",
        hint=nearest(qualifiers[0], [one.alias for one in left], what="relations"),
        position=query.statement.position(name.spans[0]),
    )


def path_of(node: exp.Table) -> Span:
    """Return the span of a relation's name, with its schema."""
    return Span(name_span(node.parts[0]).start, name_span(node.parts[-1]).end)


def _refuse_path(query: Query, node: exp.Table) -> None:
    """Raise StatementError for the name of a lookup table behind that of a schema."""
    if node.args.get("db") and node.name in query.context.catalog.tables:
        path = path_of(node)
        raise StatementError(
            f"A lookup table belongs to the session, and has no schema: {query.statement[path]}.",
            hint=f"Write {node.name}.",
            position=query.statement.position(path),
        )


def refuse_strangers(query: Query) -> None:
    """Raise StatementError for FOR SYSTEM_TIME AS OF on a table that is not a lookup table."""
    for node in query.find(exp.Table):
        if not is_temporal(node) or query.table_of(node) is not None:
            continue
        moment = node.args["version"].expression
        if moment is None:
            continue
        _refuse_path(query, node)
        if not isinstance(node.this, exp.Identifier):
            raise StatementError(
                "FOR SYSTEM_TIME AS OF follows the name of a lookup table.",
                hint="Write the name itself: Spark alone computes that of IDENTIFIER.",
                position=query.statement.position(span_of(node)),
            )
        if isinstance(moment.unnest(), exp.Column) or (isinstance(moment, exp.Anonymous) and is_present(moment)):
            is_relation = query.is_hidden(node) or query.context.spark.catalog.tableExists(
                query.statement[path_of(node)]
            )
            known = query.context.catalog.tables
            raise StatementError(
                f"{node.name!r} is a view, or another relation of Spark's, and no lookup table."
                if is_relation
                else f"There is no lookup table {node.name!r}.",
                hint=OF_A_QUERY if is_relation else nearest(node.name, known, what="lookup tables"),
                position=query.statement.position(name_span(node.this)),
            )
