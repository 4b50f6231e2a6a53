"""The lookups of a SELECT: which of its joins they are, and what each asks of which table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from lookupcache.errors import LookupCacheError, OptionError, PlanError, SchemaError, StatementError, nearest
from lookupcache.plan import How, Matches
from lookupcache.planner.clauses import conjunct_spans
from lookupcache.schema import type_name
from lookupcache.sql.catalog import SqlTable
from lookupcache.sql.dialect import name_span, span_of
from lookupcache.sql.hints import Hints, table_options
from lookupcache.sql.query import Query
from lookupcache.sql.scope import Scope, Source
from lookupcache.sql.text import Span
from lookupcache.table import LookupTable

_NOW = (exp.CurrentTimestamp, exp.Localtimestamp)
_CALLED_NOW = ("PROCTIME", "NOW", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP")
_SIDES = {
    "RIGHT": "Swap the sides, so that the lookup table stands right of a LEFT JOIN.",
    "FULL": "A lookup sees only rows that are asked for: use LEFT JOIN, or read the table whole, without FOR "
    "SYSTEM_TIME AS OF.",
}


@dataclass
class Lookup:
    """A lookup as the text asks for it.

    ``on`` are the conjuncts of its condition, as pieces of the text; ``keys`` further conjuncts, already as SQL over
    the left DataFrame and the table; ``using`` names columns that both sides have. In a ``scalar`` sub-query a name is
    first the table's own. ``wants_witness`` says that rows which were found must be told from padding.
    """

    span: Span
    source: Source
    table: LookupTable
    how: How = "inner"
    on: Sequence[Span] = ()
    on_node: exp.Expr | None = None
    using: Sequence[str] = ()
    keys: Sequence[str] = ()
    matches: Matches = "all"
    scalar: bool = False
    wants_witness: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)


def source_of(alias: str, table: SqlTable) -> Source:
    """Return a lookup table as a relation of FROM; its columns have their names in the result once it is joined."""
    types = {f.name: type_name(f.type) for f in table.table.schema} | table.marks
    return Source((alias,), dict.fromkeys(types, ""), types, computed=table.computed)


def table_lookup(query: Query, hints: Hints, scope: Scope, join: exp.Join, table: SqlTable) -> Lookup:
    """Return the lookup that a join with ``FOR SYSTEM_TIME AS OF`` is; raises with the place what cannot be."""
    node, span = join.this, span_of(join)
    _refuse_more(query, node)
    refuse_period(query, scope, node.args["version"])
    how = _how(query, join)
    alias = node.alias or node.name
    using = [name.name for name in join.args.get("using") or []]
    source = source_of(alias, table)
    source.hidden = frozenset(n for n in source.columns if scope.fold(n) in map(scope.fold, using))
    return Lookup(
        span=span,
        source=source,
        table=with_hints(query, hints, node, alias, table.table),
        how=how,
        on=condition(join.args.get("on"), query),
        on_node=join.args.get("on"),
        using=using,
        marks=table.marks,
    )


def _refuse_more(query: Query, node: exp.Expr) -> None:
    """Refuse what a relation of Spark's may have behind it, and a lookup table may not."""
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
                place=query.statement.place(span_of(node)),
            )


def with_hints(query: Query, hints: Hints, node: exp.Expr, alias: str, table: LookupTable) -> LookupTable:
    """Return a table under its alias, with the options that hints give it."""
    options: dict[str, str] = {}
    hint = table_options(query.statement, span_of(node))
    if hint is not None:
        options |= hint.options()
    options |= hints.of_table([alias, node.name])
    try:
        return table.renamed(alias).with_options(options) if options else table.renamed(alias)
    except LookupCacheError as error:
        ours = [h for h in hints.ours if h.target in (alias, node.name)]
        raise error.at(query.statement.place(_blamed(error, [*([hint] if hint else []), *ours], node))) from None


def _blamed(error: LookupCacheError, hints: Sequence[object], node: exp.Expr) -> Span:
    """Return the place of the option that an error names."""
    for hint in hints:
        for key, value in getattr(hint, "given", {}).items():
            if repr(key) in str(error) or (isinstance(error, OptionError) and repr(value.text) in error.fact):
                return Span(*value.span)
    return Span(*getattr(hints[0], "span", span_of(node))) if hints else span_of(node)


def _how(query: Query, join: exp.Join) -> How:
    side, kind = join.side, join.kind
    if join.method == "NATURAL":
        raise PlanError(
            "A NATURAL join cannot be a lookup join.",
            hint="Write the equality: ON o.customer_id = c.id.",
            place=query.statement.place(span_of(join)),
        )
    if side in _SIDES:
        raise PlanError(
            f"A {side} JOIN cannot be a lookup join.", hint=_SIDES[side], place=query.statement.place(span_of(join))
        )
    if kind in ("SEMI", "ANTI"):
        return "semi" if kind == "SEMI" else "anti"
    return "left" if side == "LEFT" else "inner"


def condition(node: exp.Expr | None, query: Query) -> list[Span]:
    """Return the conjuncts of a condition as pieces of the text; TRUE is none."""
    if node is None or isinstance(node, exp.Boolean):
        return []
    span = span_of(node)
    spans = [Span(span.start + a, span.start + b) for a, b in conjunct_spans(query.statement[span])]
    return [one for one in spans if query.statement[one].upper() != "TRUE"]


# ── the period ───────────────────────────────────────────────────────────────────────────────────────────


def is_temporal(node: exp.Expr) -> bool:
    """Return whether a relation says FOR SYSTEM_TIME AS OF."""
    version = node.args.get("version")
    return isinstance(version, exp.Version) and version.args.get("kind") == "AS OF"


def is_present(node: exp.Expr) -> bool:
    """Return whether an expression is one of SQL's words for now."""
    return isinstance(node, _NOW) or (isinstance(node, exp.Anonymous) and node.name.upper() in _CALLED_NOW)


def refuse_period(query: Query, scope: Scope | None, version: exp.Version) -> None:
    """Raise PlanError for a period that does not mean the time of the lookup."""
    moment = version.expression.unnest()
    names = query.setting.time_columns
    known = f"Write PROCTIME(), CURRENT_TIMESTAMP, or a column named {' or '.join(names)}."
    if is_present(moment):
        return
    if isinstance(moment, exp.Column):
        if moment.name.lower() not in [name.lower() for name in names]:
            raise PlanError(
                f"FOR SYSTEM_TIME AS OF {query.statement[span_of(moment)]} would promise the rows of that time; "
                "a lookup gives those of now.",
                hint=f"{known} LookupSession(…, time_columns=[…]) takes other names.",
                place=query.statement.place(span_of(moment)),
            )
        if moment.table and scope is not None and scope.qualified([moment.table]) is None:
            known_names = [source.alias for source in scope.sources]
            raise SchemaError(
                f"There is no relation {moment.table!r} left of the lookup.",
                hint=nearest(moment.table, known_names, what="relations"),
                place=query.statement.place(name_span(moment.args["table"])),
            )
        return
    raise PlanError(
        "FOR SYSTEM_TIME AS OF a fixed time would promise the rows of that time; a lookup gives those of now.",
        hint=known,
        place=query.statement.place(span_of(version)),
    )


def refuse_strangers(query: Query, tree: exp.Expr) -> None:
    """Raise StatementError for a lookup in the words of one, of a table that is none."""
    for node in tree.find_all(exp.Table):
        if not is_temporal(node) or query.table_of(node) is not None:
            continue
        moment = node.args["version"].expression
        if isinstance(moment.unnest(), exp.Column) or (isinstance(moment, exp.Anonymous) and is_present(moment)):
            known = query.setting.catalog.tables
            raise StatementError(
                f"There is no lookup table {node.name!r}.",
                hint=nearest(node.name, known, what="lookup tables"),
                place=query.statement.place(name_span(node.this)),
            )
