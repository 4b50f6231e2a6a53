"""A `LookupPlan` in a compiled plan: which of its fields stand there, under which names, in which order.

The names are those of the format, not those of Python's attributes. A field that is renamed in the code keeps its name
in plans. Fields that depend on the table or the session, `DERIVED`, are not in the plan but found when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import pyarrow as pa

from lookupcache import expr, plan
from lookupcache.compiled.reading import PlanReader
from lookupcache.plan import ConstantKey, FieldKey, How, LookupPlan, Matches, Output, PlacedConjunct
from lookupcache.schema import parse_type, quote, type_name, upper_but_names

DERIVED = ("table", "connector", "source", "code_unknown", "schema", "config")
"""Fields of `LookupPlan` that are not among `FIELDS`: the table's, and the options, which stand as configuration."""

OPERATOR_VERSIONS: Mapping[str, int] = dict.fromkeys((*expr.OPERATORS, "cast"), 1)
"""The meaning of each operator that workers and sources evaluate; a new meaning is a new version."""


@dataclass(frozen=True)
class Field:
    """A field: the attribute of `LookupPlan`, and how its value is written and read."""

    attribute: str
    write: Callable[[Any], Any]
    read: Callable[[PlanReader], Any]


Format = tuple[Callable[[Any], Any], Callable[[PlanReader], Any]]
"""How a value is written as JSON data, and read."""


def _texts(reader: PlanReader) -> tuple[str, ...]:
    return tuple(item.text() for item in reader.items())


def read_by_name(reader: PlanReader) -> dict[str, str]:
    """Return texts by name."""
    return {name: one.text() for name, one in reader.entries().items()}


TEXT: Format = str, PlanReader.text
FLAG: Format = bool, PlanReader.flag
NUMBER: Format = int, PlanReader.number
TEXTS: Format = list, _texts
TEXTS_BY_NAME: Format = dict, read_by_name
NUMBERS_BY_NAME: Format = dict, lambda reader: {name: one.number() for name, one in reader.entries().items()}


def or_none(write: Callable[[Any], Any], read: Callable[[PlanReader], Any]) -> Format:
    """Return a format in which null stands for None."""
    return (
        lambda value: None if value is None else write(value),
        lambda reader: None if reader.data is None else read(reader),
    )


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


def _expressions(reader: PlanReader) -> tuple[expr.Expr, ...]:
    return tuple(read_expression(item) for item in reader.items())


def _write_expressions(expressions: tuple[expr.Expr, ...]) -> list[Any]:
    return [expr.to_json(one) for one in expressions]


def _read_constant(reader: PlanReader) -> ConstantKey:
    reader.only(["column", "value"])
    value = read_expression(reader.entry("value"))
    if not isinstance(value, expr.Literal):
        raise reader.entry("value").wrong("it is not a literal.")
    return ConstantKey(column=reader.entry("column").text(), value=value)


def _read_conjunct(reader: PlanReader) -> PlacedConjunct:
    reader.only(["text", "stage", "evaluator"])
    stage = reader.entry("stage").one_of(get_args(plan.Stage), "stage")
    evaluator = reader.entry("evaluator").one_of(get_args(plan.Evaluator), "evaluator")
    return PlacedConjunct(text=reader.entry("text").text(), stage=stage, evaluator=evaluator)  # type: ignore[arg-type]


def _pairs(first: str, second: str, kind: Any) -> Format:
    """Return how a tuple of objects with two texts is written and read."""

    def write(values: Any) -> list[Any]:
        return [{first: getattr(value, first), second: getattr(value, second)} for value in values]

    def read_one(reader: PlanReader) -> Any:
        reader.only([first, second])
        return kind(**{first: reader.entry(first).text(), second: reader.entry(second).text()})

    return write, lambda reader: tuple(read_one(item) for item in reader.items())


FIELDS: dict[str, Field] = {
    "joinType": Field("how", str, lambda reader: reader.one_of(get_args(How), "join type")),
    "matches": Field("matches", str, lambda reader: reader.one_of(get_args(Matches), "kind of matches")),
    "keys": Field("keys", *_pairs("column", "sql", FieldKey)),
    "constants": Field(
        "constants",
        lambda values: [{"column": one.column, "value": expr.to_json(one.value)} for one in values],
        lambda reader: tuple(_read_constant(item) for item in reader.items()),
    ),
    "neverMatches": Field("never", *FLAG),
    "leftFilter": Field("left_filter", *TEXTS),
    "preFilter": Field("pre_filter", *TEXTS),
    "pushedFilters": Field("pushed", _write_expressions, _expressions),
    "calc": Field("calc", _write_expressions, _expressions),
    "cachedColumns": Field("columns", *TEXTS),
    "residual": Field("residual", _write_expressions, _expressions),
    "residualSql": Field("residual_sql", *TEXTS),
    "sparkResidual": Field("spark_residual", *TEXTS),
    "filterAfter": Field("filter_after", *TEXTS),
    "leftColumns": Field("left_columns", *TEXTS),
    "select": Field("output", *_pairs("name", "sql", Output)),
    "conditions": Field(
        "conjuncts",
        lambda values: [{"text": c.text, "stage": c.stage, "evaluator": c.evaluator} for c in values],
        lambda reader: tuple(_read_conjunct(item) for item in reader.items()),
    ),
}
"""The fields of a lookup by their names in a plan; each stands in every plan, also where it is empty."""

AS_OF_FIELDS: dict[str, Field] = {**FIELDS, "latestVersion": Field("latest", *TEXT)}
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


def _write_columns(columns: Columns) -> list[dict[str, str]]:
    return [{"name": name, "type": type_} for name, type_ in columns]


def _read_columns(reader: PlanReader) -> Columns:
    return tuple(_read_column(item) for item in reader.items())


def _read_column(reader: PlanReader) -> tuple[str, str]:
    reader.only(["name", "type"])
    return reader.entry("name").text(), reader.entry("type").text()


COLUMNS: Format = _write_columns, _read_columns


def columns_of_schema(schema: pa.Schema) -> Columns:
    """Return the columns of an Arrow schema."""
    return tuple((f.name, type_name(f.type)) for f in schema)


def write_schema(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return an Arrow schema as JSON data: a column's name, its type as text, and whether it is never null."""
    return [{"name": f.name, "type": type_name(f.type)} | ({} if f.nullable else {"nullable": False}) for f in schema]


def read_schema(reader: PlanReader) -> pa.Schema:
    """Return the Arrow schema that `write_schema` wrote."""
    fields = []
    for item in reader.items():
        item.only(["name", "type", "nullable"])
        nullable = item.optional("nullable")
        type_ = item.entry("type").read(parse_type)
        fields.append(pa.field(item.entry("name").text(), type_, nullable is None or nullable.flag()))
    return pa.schema(fields)


SCHEMA: Format = write_schema, read_schema


def columns_text(columns: Columns) -> str:
    """Return columns with their types as an error shows them.

    >>> columns_text((("id", "bigint"), ("a b", "struct<myId:int>")))
    'id BIGINT, `a b` STRUCT<myId:INT>'
    """
    named = (f"{n if n.isidentifier() else quote(n)} {upper_but_names(t)}" for n, t in columns)
    return ", ".join(named) or "(none)"
