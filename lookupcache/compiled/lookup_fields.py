"""A `LookupPlan` in a compiled plan: which of its fields stand there, under which names, in which order.

The names are those of the format, not those of Python's attributes. A field that is renamed in the code keeps its name
in plans. Fields that depend on the table or the session, `DERIVED`, are not in the plan but found when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pyarrow as pa

from lookupcache import expr, plan
from lookupcache.compiled.plan_reader import FLAG, TEXT, Field, Format, PlanReader, list_of, one_of, pair, record
from lookupcache.plan import ConstantKey, FieldKey, How, LookupPlan, Matches, Output, PlacedConjunct
from lookupcache.schema import parse_type, quote, type_name, upper_but_names

DERIVED = ("table", "connector", "source", "code_unknown", "schema", "config")
"""Fields of `LookupPlan` that are not among `FIELDS`: the table's, and the options, which stand as configuration."""

OPERATOR_VERSIONS: Mapping[str, int] = dict.fromkeys((*expr.OPERATORS, "cast"), 1)
"""The meaning of each operator that workers and sources evaluate; a new meaning is a new version."""


def read_expression(reader: PlanReader) -> expr.Expr:
    """Return an expression; raises an error for one that is not as `expr.to_json` writes it."""
    parts = reader.items()
    if len(parts) < 2:
        raise reader.wrong("it is not an expression.")
    head = parts[0].text()
    if head in ("left", "right", "literal") and len(parts) != 3:
        raise reader.wrong(f"{head!r} has {len(parts) - 1} parts in place of two.")
    if head in ("left", "right"):
        return expr.Column("left" if head == "left" else "right", parts[1].text(), parts[2].read(parse_type))
    if head == "literal":
        return _read_literal(parts[1].read(parse_type), parts[2])
    if head not in OPERATOR_VERSIONS:
        raise reader.wrong(f"there is no operator {head!r}.")
    if len(parts) - 2 != (1 if head in _OF_ONE else 2):
        raise reader.wrong(f"operator {head!r} has {len(parts) - 2} arguments.")
    return expr.Call(head, tuple(map(read_expression, parts[2:])), parts[1].read(parse_type))


_OF_ONE = ("not", "is null", "cast")
"""The operators of one argument; all others have two."""


def _read_literal(type_: pa.DataType, reader: PlanReader) -> expr.Literal:
    if isinstance(reader.data, list | dict):
        raise reader.wrong("it is not a value.")
    found = expr.Literal(reader.data, type_)
    reader.read(lambda _: pa.scalar(expr.python_value(found), type_))
    return found


def _calls(node: Any) -> list[expr.Call]:
    if not isinstance(node, expr.Call):
        return []
    return [node, *(call for argument in node.args for call in _calls(argument))]


def _read_literal_expression(reader: PlanReader) -> expr.Literal:
    found = read_expression(reader)
    if not isinstance(found, expr.Literal):
        raise reader.wrong("it is not a literal.")
    return found


LITERAL = Format(expr.to_json, _read_literal_expression)
_EXPRESSIONS = list_of(Format(expr.to_json, read_expression))
_TEXTS = list_of(TEXT)
_STAGE = one_of(get_args(plan.Stage), "stage")
_EVALUATOR = one_of(get_args(plan.Evaluator), "evaluator")

FIELDS: dict[str, Field] = {
    "joinType": Field("how", one_of(get_args(How), "join type")),
    "matches": Field("matches", one_of(get_args(Matches), "kind of matches")),
    "keys": Field("keys", list_of(record(FieldKey, column=TEXT, sql=TEXT))),
    "constants": Field("constants", list_of(record(ConstantKey, column=TEXT, value=LITERAL))),
    "neverMatches": Field("never", FLAG),
    "leftFilter": Field("left_filter", _TEXTS),
    "preFilter": Field("pre_filter", _TEXTS),
    "pushedFilters": Field("pushed", _EXPRESSIONS),
    "calc": Field("calc", _EXPRESSIONS),
    "cachedColumns": Field("columns", _TEXTS),
    "residual": Field("residual", _EXPRESSIONS),
    "residualSql": Field("residual_sql", _TEXTS),
    "sparkResidual": Field("spark_residual", _TEXTS),
    "filterAfter": Field("filter_after", _TEXTS),
    "leftColumns": Field("left_columns", _TEXTS),
    "select": Field("output", list_of(record(Output, name=TEXT, sql=TEXT))),
    "conditions": Field("conjuncts", list_of(record(PlacedConjunct, text=TEXT, stage=_STAGE, evaluator=_EVALUATOR))),
}
"""The fields of a lookup by their names in a plan; each stands in every plan, also where it is empty."""

AS_OF_FIELDS: dict[str, Field] = {**FIELDS, "latestVersion": Field("latest", TEXT)}
"""The fields of a lookup that joins the latest version of each key."""


def operators_of(lookup: LookupPlan) -> dict[str, int]:
    """Return the operators of a lookup's expressions, whose meaning is lookupcache's, with their versions."""
    calls = [call for one in (*lookup.pushed, *lookup.calc, *lookup.residual) for call in _calls(one)]
    return {call: OPERATOR_VERSIONS[call] for call in sorted({call.op for call in calls})}


def columns_read(lookup: LookupPlan) -> pa.Schema:
    """Return the columns of the table that a lookup reads, in the table's order."""
    names = set(columns_needed(lookup))
    return pa.schema([f for f in lookup.schema if f.name in names])


def columns_needed(lookup: LookupPlan) -> list[str]:
    """Return the names of the columns of the table that a lookup reads."""
    expressions = (*lookup.pushed, *lookup.calc, *lookup.residual)
    found = [c.name for one in expressions for c in expr.columns_of(one) if c.side == "right"]
    latest = [] if lookup.latest is None else [lookup.latest]
    return [*lookup.key_columns, *lookup.columns, *(one.column for one in lookup.constants), *found, *latest]


# ── types as text ────────────────────────────────────────────────────────────────────────────────────────


Columns = tuple[tuple[str, str], ...]
"""Columns: the name of each, which several may have, and Spark's name of its type."""


TYPE = Format(type_name, lambda reader: reader.read(parse_type))
COLUMNS = list_of(pair("name", TEXT, "type", TEXT))


def columns_of_schema(schema: pa.Schema) -> Columns:
    """Return the columns of an Arrow schema."""
    return tuple((f.name, type_name(f.type)) for f in schema)


def _write_schema(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return an Arrow schema as JSON data: a column's name, its type as text, and whether it is never null."""
    return [{"name": f.name, "type": type_name(f.type)} | ({} if f.nullable else {"nullable": False}) for f in schema]


def _read_schema(reader: PlanReader) -> pa.Schema:
    fields = []
    for item in reader.items():
        item.only(["name", "type", "nullable"])
        nullable = item.optional("nullable")
        type_ = item.entry("type").read(parse_type)
        fields.append(pa.field(item.entry("name").text(), type_, nullable is None or nullable.flag()))
    return pa.schema(fields)


SCHEMA = Format(_write_schema, _read_schema)


def columns_text(columns: Columns) -> str:
    """Return columns with their types as an error shows them.

    >>> columns_text((("id", "bigint"), ("a b", "struct<myId:int>")))
    'id BIGINT, `a b` STRUCT<myId:INT>'
    """
    named = (f"{n if n.isidentifier() else quote(n)} {upper_but_names(t)}" for n, t in columns)
    return ", ".join(named) or "(none)"
