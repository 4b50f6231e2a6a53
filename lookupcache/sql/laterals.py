"""Table functions in a FROM: ``LATERAL TABLE(f(x)) AS T(a, b)``, and Spark's ``LATERAL f(x)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program uses
from sqlglot import exp

from lookupcache.compiled.nodes import CallUse, TableUse
from lookupcache.errors import LookupCacheError, PlanError, SchemaError, StatementError, nearest
from lookupcache.functions.table_function import NO_ARGUMENT, Argument, argument
from lookupcache.planner.clauses import Token, closing_of, functions, split_arguments, tokens
from lookupcache.planner.constant_keys import NONDETERMINISTIC
from lookupcache.schema import as_schema, quote, type_name
from lookupcache.sql.catalog import SqlTable
from lookupcache.sql.conditions import part_of, pieces_for_spark
from lookupcache.sql.dialect import span_of
from lookupcache.sql.from_clause import Frame, computed_sql
from lookupcache.sql.hints import Hints
from lookupcache.sql.lookups import Lookup, relation_of
from lookupcache.sql.model_calls import CALL, PREDICT, answers_of, config_of, model_named, unreadable
from lookupcache.sql.query import Query
from lookupcache.sql.scope import Relation, Scope, naming_edits
from lookupcache.sql.text import Span
from lookupcache.sql.token_reader import unquote


def called_function(query: Query, node: exp.Expr) -> str | None:
    """Return the name of the registered table function that a relation calls, or None."""
    if not isinstance(node, exp.Lateral) or node.args.get("view") or isinstance(node.this, exp.Query):
        return None
    name = query.statement[call_of(node)[1]].partition("(")[0].strip(" `")
    if name.upper() == PREDICT:
        return PREDICT
    return name if name in query.context.catalog.functions else None


def returned_types(query: Query, node: exp.Expr) -> dict[str, str]:
    """Return the types of the columns that a call returns."""
    name = called_function(query, node)
    if name == PREDICT:
        source = _prediction(query, node).source
        return {shown: source.types[stored] for shown, stored in zip(source.names, answers_of(source), strict=True)}
    found = query.context.catalog.functions[str(name)].columns(_names_of(node))
    return {f.name: type_name(f.type) for f in found}


def _names_of(node: exp.Expr) -> list[str]:
    """Return the names that an alias gives to the columns of a call."""
    alias = node.args.get("alias")
    return [column.name for column in (alias.columns if alias else [])]


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
    """Return the spans of a call's arguments, or of parts of them, that only Spark can evaluate: each with a star is.

    Raises PlanError for an argument that is a star.
    """
    call, span = call_of(join.this)
    scope = Scope([frame.relations], query.fold)
    is_predicted = called_function(query, join.this) == PREDICT
    spans = _prediction(query, join.this).arguments if is_predicted else _argument_spans(query, span)
    parts = [part_of(query, call, one) for one in spans]
    stars = [(part, name) for part in parts for name in part.names if name.is_star and not name.nested]
    for part, name in stars:
        if name.start == part.span.start:
            raise PlanError(
                "An argument of a table function cannot be a star.",
                hint="Write the columns; or pass one struct of them, as in struct(t.*).",
                position=query.statement.position(part.span),
            )
    whole = [part for part, _ in stars]
    parts = [part for part in parts if part not in whole]
    pieces = [part.span for part in whole] + [piece for part in parts for piece in pieces_for_spark(part, scope)]
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
    if name == PREDICT:
        return _predict(query, hints, join, frame, pieces)
    given = [(one, _argument_over_left(query, frame, call, one, pieces)) for one in _argument_spans(query, span)]
    function = query.context.catalog.functions[name]
    with query.statement.located(span_of(node)):
        arguments = _arguments(query, frame.df, given)
        columns, qualifier = _names_of(node), node.alias or name
        table = function.table(qualifier, columns, arguments)
        options = hints.options("ASYNC_TABLE_FUNC", [name]) | hints.options("LOOKUP", [qualifier])
        table = table.with_options(options) if options else table
    returned = returned_types(query, node)
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
    edit = naming_edits(query.statement, span)
    edits = [edit(one, f"left.{quote(column)}") for one, column in pieces.items() if span.holds(one)]
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
        edits.append(edit(bound.span, sql))
    return query.edits.text(span, edits)


def _argument_spans(query: Query, span: Span) -> list[Span]:
    """Return the spans of a call's arguments."""
    return _spans_of(_argument_tokens(query, span), span)


def _spans_of(parts: Sequence[Sequence[Token]], span: Span) -> list[Span]:
    """Return the spans of tokens within a span."""
    return [Span(span.start + part[0].start, span.start + part[-1].end) for part in parts]


def _argument_tokens(query: Query, span: Span) -> list[list[Token]]:
    """Return the tokens of a call's arguments, whose positions are those within the span."""
    found = list(tokens(query.statement[span]))
    opening = next(number for number, token in enumerate(found) if token.text == "(")
    return [part for part in split_arguments(found[opening + 1 : closing_of(found, opening)], has_types=True) if part]


# ── calls of models ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Prediction:
    """A call of ML_PREDICT with a model: its name in the catalog, its table, the arguments, and options."""

    name: str
    source: SqlTable
    arguments: Sequence[Span]
    options: Mapping[str, str]


def _prediction(query: Query, node: exp.Expr) -> _Prediction:
    """Return what a call of ML_PREDICT names; raises errors with the position."""
    statement, (_, span) = query.statement, call_of(node)
    parts = _argument_tokens(query, span)
    spans = _spans_of(parts, span)
    with statement.located(span):
        if not parts or len(parts[0]) > 1 or parts[0][0].kind != "string":
            raise StatementError(
                f"LATERAL with a table in {PREDICT} joins each row with the predictions of all rows.",
                hint=f"Write FROM {CALL} alone, or FROM t, LATERAL TABLE({PREDICT}('m', t.column)).",
            )
        options: Mapping[str, str] = {}
        if parts[-1][0].text == "MAP":
            with statement.located(spans[-1]):
                options = config_of(parts.pop())
        with statement.located(spans[0]):
            name, table = model_named(query.context.catalog, unquote(parts[0][0].written).split(".")[-1].strip("`"))
        answers, names = answers_of(table), _names_of(node)
        if len(parts) != 1 + len(table.key) or (names and len(names) != len(answers)):
            raise unreadable()
    shown = tuple(names or answers)
    computed = {new: quote(old) for new, old in zip(shown, answers, strict=True) if new != old}
    source = replace(table, shown=shown, computed=computed, base=name)
    return _Prediction(name, source, spans[1 : len(parts)], options)


def _predict(query: Query, hints: Hints, join: exp.Join, frame: Frame, pieces: Mapping[Span, str]) -> Lookup:
    """Return the lookup of a model; rows whose arguments are null have no prediction, and stay."""
    node, on = join.this, join.args.get("on")
    found, qualifier = _prediction(query, node), node.alias or PREDICT
    call = call_of(node)[0]
    if join.side != "LEFT" and on is not None and not (isinstance(on.unnest(), exp.Boolean) and on.unnest().this):
        raise PlanError(
            f"A join with {PREDICT} has the condition ON TRUE.",
            hint="Write the condition in WHERE, or LEFT JOIN.",
            position=query.statement.position(span_of(on)),
        )
    given = [(one, _argument_over_left(query, frame, call, one, pieces)) for one in found.arguments]
    schema = _schema(query, frame.df.alias("left"), given)
    for (span, _), key, field in zip(given, found.source.key, schema, strict=True):
        declared, passed = found.source.types[key], field.dataType.simpleString()
        if (declared == "string") != (passed in ("string", "void")):
            shown, type_ = passed if "<" in passed else passed.upper(), declared.upper()
            raise PlanError(
                f"The argument is {shown}, and the model's input {key!r} is {type_}.",
                hint=f"Write CAST({query.statement[span]} AS {type_}), or to_json(…) of a struct, map or array.",
                position=query.statement.position(span),
            )
    options = {**found.options, **hints.options("LOOKUP", [qualifier])}
    with query.statement.located(span_of(node)):
        table = found.source.table.renamed(qualifier)
        table = table.with_options(options) if options else table
    pairs = zip(given, found.source.key, strict=True)
    return Lookup(
        span=span_of(join),
        relation=relation_of(qualifier, found.source, query.fold),
        table=table,
        how="left",
        on_node=on,
        keys=[f"({sql}) = {quote(qualifier)}.{quote(key)}" for (_, sql), key in pairs],
        marks=found.source.marks,
        use=TableUse(table=found.name),
        source=found.source,
    )


def _arguments(query: Query, frame: DataFrame, given: list[tuple[Span, str]]) -> list[Argument]:
    """Return the key columns of the arguments, with the types that Spark resolves."""
    if not given:
        return []
    arguments = list[Argument]()
    schema = _schema(query, frame.alias("left"), given)
    for number, ((span, sql), field) in enumerate(zip(given, schema, strict=True), start=1):
        first = sum(len(one.columns) for one in arguments)
        with query.statement.located(span):
            name = f"argument {number}"
            type_ = _type_of(name.capitalize(), field)
            arguments.append(argument(f"({sql})", type_, name, nullable=field.nullable, first=first))
    return arguments


def _schema(query: Query, left: DataFrame, given: Sequence[tuple[Span, str]]) -> T.StructType:
    """Return a column for each argument, as Spark resolves it; raise errors with the position of the argument."""
    called = [f"isnull({sql})" for _, sql in given if "(" in sql]
    is_resolved = False
    try:
        schema = left.selectExpr(*(f"({sql}) AS a{n}" for n, (_, sql) in enumerate(given))).schema
        is_resolved = True
        _ = left.where(" AND ".join(called)).schema if called else None  # Spark refuses aggregates in WHERE.
    except AnalysisException as error:
        for one in given if len(given) > 1 else ():
            _schema(query, left, [one])
        [span, _] = given[0]
        with query.statement.located(span):
            raise _error_of_argument(query, error, is_resolved=is_resolved) from None
    for span, sql in given:
        chance = sorted(functions(sql) & NONDETERMINISTIC)
        if chance:
            raise PlanError(
                f"The argument calls {chance[0]}, whose value differs in each call.",
                hint=_COMPUTE_LEFT,
                position=query.statement.position(span),
            )
    return schema


_COMPUTE_LEFT = (
    "Compute it as a column of a sub-query left of the call: FROM (SELECT *, … AS x FROM t) AS t, LATERAL …."
)


def _error_of_argument(query: Query, error: AnalysisException, *, is_resolved: bool) -> LookupCacheError:
    if isinstance(error, ParseException):
        return StatementError(
            "This argument of a table function is no expression.",
            hint="Write expressions in the order of the function's arguments, without names or aliases.",
        )
    if is_resolved:
        return PlanError("The argument is computed from several rows, or makes several of one.", hint=_COMPUTE_LEFT)
    return query.error_of(error)


def _type_of(what: str, field: T.StructField) -> pa.DataType:
    """Return the type of an argument; raise SchemaError for one that a key cannot have."""
    try:
        return as_schema(T.StructType([field])).field(0).type
    except SchemaError:
        name = field.dataType.simpleString()
        cure = {"void": "Give it a type, as in CAST(NULL AS STRING).", "variant": "Pass it as text, as in to_json(…)."}
        hint = cure.get(name, "Pass it as STRING, as in CAST(… AS STRING) or to_json(…).")
        shown = name if "<" in name else name.upper()
        raise SchemaError(f"{what} is {shown}, which a lookup key cannot be.", hint=hint) from None


def refuse_side(query: Query, join: exp.Join) -> None:
    """Raise PlanError for an unsupported kind of join with a call."""
    if join.side in ("RIGHT", "FULL") or join.kind in ("SEMI", "ANTI"):
        raise PlanError(
            f"A table function cannot be joined with {join.side or join.kind} JOIN.",
            hint="Write JOIN LATERAL or LEFT JOIN LATERAL … ON TRUE.",
            position=query.statement.position(span_of(join)),
        )
