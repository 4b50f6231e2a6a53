"""Table functions in a FROM: ``LATERAL TABLE(f(x)) AS T(a, b)``, and Spark's ``LATERAL f(x)``."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from sqlglot import exp

from lookupcache.compiled.nodes import CallUse
from lookupcache.errors import PlanError, StatementError, nearest
from lookupcache.functions.table_function import NO_ARGUMENT, Argument, argument
from lookupcache.planner.clauses import closing_of, split_arguments, tokens
from lookupcache.schema import as_schema, quote, type_name
from lookupcache.sql.conditions import part_of, pieces_for_spark
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import Frame, computed_sql
from lookupcache.sql.hints import Hints
from lookupcache.sql.lookups import Lookup
from lookupcache.sql.query import Query
from lookupcache.sql.scope import Relation, Scope
from lookupcache.sql.text import Edit, Span


def called_function(query: Query, node: exp.Expr) -> str | None:
    """Return the name of the registered table function that a relation calls, or None."""
    if not isinstance(node, exp.Lateral) or node.args.get("view") or isinstance(node.this, exp.Query):
        return None
    name = query.statement[call_of(node)[1]].partition("(")[0].strip(" `")
    return name if name in query.context.catalog.functions else None


def refuse_unknown(query: Query) -> None:
    """Raise StatementError for Flink's LATERAL TABLE with an unknown function."""
    for node in query.find(exp.Lateral):
        if _is_flink(node) and called_function(query, node) is None:
            span = call_of(node)[1]
            name = query.statement[span].partition("(")[0].strip(" `")
            raise StatementError(
                f"There is no table function {name!r}.",
                hint=nearest(name, query.context.catalog.functions, what="table functions"),
                position=query.statement.position(Span(span.start, span.start + len(name))),
            )


def _is_flink(node: exp.Expr) -> bool:
    return (
        isinstance(node.this, exp.Anonymous) and node.this.name.upper() == "TABLE" and len(node.this.expressions) == 1
    )


def call_of(node: exp.Expr) -> tuple[exp.Expr, Span]:
    """Return the call in a lateral relation, and its span."""
    call = node.this.expressions[0] if _is_flink(node) else node.this
    return call, span_of(call)


def pieces_of_call(query: Query, join: exp.Join, frame: Frame) -> list[Span]:
    """Return the spans of a call's arguments, or of parts of them, that only Spark can evaluate."""
    call, span = call_of(join.this)
    scope = Scope([frame.relations], query.fold)
    parts = [part_of(query, call, one) for one in _argument_spans(query, span)]
    pieces = [piece for part in parts for piece in pieces_for_spark(part, scope)]
    bound = [one for part in parts for name in part.names if (one := scope.bind(name)) is not None]
    computed = [(one, one.relation.computed.get(one.column, "")) for one in bound]
    return pieces + [one.span for one, sql in computed if one.relation.read_outside(sql)]


def call_lookup(query: Query, hints: Hints, join: exp.Join, frame: Frame, pieces: Mapping[Span, str]) -> Lookup:
    """Return the lookup of a join with a call; its arguments, expressions over the relations before it, are the key.

    ``pieces`` of the arguments are columns of the left DataFrame.
    """
    node = join.this
    call, span = call_of(node)
    name = str(called_function(query, node))
    given = [(one, _argument_over_left(query, frame, call, one, pieces)) for one in _argument_spans(query, span)]
    function = query.context.catalog.functions[name]
    with query.statement.located(span_of(node)):
        arguments = _arguments(query, frame.df, given)
        alias = node.args.get("alias")
        columns = [column.name for column in (alias.columns if alias else [])]
        qualifier = (alias.name if alias else "") or name
        table = function.table(qualifier, columns, arguments)
        options = hints.options("ASYNC_TABLE_FUNC", [name]) | hints.options("LOOKUP", [qualifier])
        table = table.with_options(options) if options else table
    returned = {f.name: type_name(f.type) for f in function.columns(columns)}
    keys = [f"{key.sql} = {quote(qualifier)}.{quote(key.name)}" for one in arguments for key in one.columns] or [
        f"1 = {quote(qualifier)}.{quote(NO_ARGUMENT)}"
    ]
    return Lookup(
        span=span_of(join),
        relation=Relation((qualifier,), tuple(returned.items())),
        table=table,
        how="left" if join.side == "LEFT" else "inner",
        on_node=join.args.get("on"),
        keys=keys,
        use=CallUse(function=name, columns=tuple(columns), arguments=tuple(arguments)),
    )


def _argument_over_left(query: Query, frame: Frame, call: exp.Expr, span: Span, pieces: Mapping[Span, str]) -> str:
    """Return an argument as SQL over the left DataFrame."""
    scope = Scope([frame.relations], query.fold)
    edits = [Edit(one, f"left.{quote(column)}") for one, column in pieces.items() if span.holds(one)]
    for name in part_of(query, call, span).names:
        bound = None if any(one.holds(name.span) for one in pieces) else scope.bind(name)
        if bound is None:
            continue

        def spell(column: str, relation: Relation = bound.relation) -> str:
            return f"left.{quote(frame.columns[relation, column])}"

        relation = bound.relation
        is_computed = bound.column in relation.computed
        match_column = frame.match_columns.get(relation)
        sql = computed_sql(relation, bound.column, spell, match_column) if is_computed else spell(bound.column)
        edits.append(Edit(bound.span, sql))
    return query.edits.text(span, edits)


def _argument_spans(query: Query, span: Span) -> list[Span]:
    """Return the spans of a call's arguments."""
    found = list(tokens(query.statement[span]))
    opening = next(number for number, token in enumerate(found) if token.text == "(")
    parts = filter(None, split_arguments(found[opening + 1 : closing_of(found, opening)]))
    return [Span(span.start + part[0].start, span.start + part[-1].end) for part in parts]


def _arguments(query: Query, frame: DataFrame, given: list[tuple[Span, str]]) -> list[Argument]:
    """Return the key columns of the arguments, with the types that Spark resolves."""
    if not given:
        return []
    left = frame.alias("left")
    schema = left.selectExpr(*(f"{sql} AS a{n}" for n, (_, sql) in enumerate(given))).schema
    arrow, arguments = as_schema(schema), list[Argument]()
    for number, ((span, sql), field) in enumerate(zip(given, arrow, strict=True), start=1):
        first = sum(len(one.columns) for one in arguments)
        with query.statement.located(span):
            what = f"argument {number}"
            arguments.append(argument(f"({sql})", field.type, what, nullable=field.nullable, first=first))
    return arguments


def refuse_side(query: Query, join: exp.Join) -> None:
    """Raise PlanError for an unsupported kind of join with a call."""
    if join.side in ("RIGHT", "FULL") or join.kind in ("SEMI", "ANTI"):
        raise PlanError(
            f"A table function cannot be joined with {join.side or join.kind} JOIN.",
            hint="Write JOIN LATERAL or LEFT JOIN LATERAL … ON TRUE.",
            position=query.statement.position(span_of(join)),
        )
