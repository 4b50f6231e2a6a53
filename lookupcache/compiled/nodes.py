"""The nodes of a compiled plan: the fields of each type, and how they are written and read.

A type is a name and a version, as in ``lookup-join_1``. A version is never changed: a node with another meaning or a
further field is a new version next to the old one. `NODE_TYPES` lists all that this lookupcache can run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, get_args

import pyarrow as pa

from lookupcache import expr
from lookupcache.compiled import lookup_fields
from lookupcache.compiled.lookup_fields import COLUMNS, SCHEMA, TYPE, Columns, columns_needed, operators_of
from lookupcache.compiled.plan_reader import (
    ANY,
    FLAG,
    NUMBER,
    TEXT,
    Field,
    Format,
    PlanReader,
    by_name,
    list_of,
    one_of,
    or_none,
    pair,
    record,
)
from lookupcache.config import LookupConfig
from lookupcache.config.lookup_config import REMOVED, Form
from lookupcache.functions.table_function import Argument, KeyColumn
from lookupcache.functions.table_function import Form as ArgumentForm
from lookupcache.plan import LookupPlan


@dataclass(frozen=True, kw_only=True)
class TableUse:
    """The table that a node reads: its name in the catalog, and options of a hint that are the connector's."""

    table: str
    hints: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CallUse:
    """The table function that a node calls: its name in the catalog, and how its arguments are made of key columns."""

    function: str
    columns: tuple[str, ...] = ()
    arguments: tuple[Argument, ...] = ()


_ARGUMENT_FORM = Format(lambda form: _FORM_FIELDS.write(form), lambda reader: _FORM_FIELDS.read(reader))
"""A form, which has forms of fields in it."""
_FORM_FIELDS: Format = record(
    ArgumentForm, value=NUMBER, fields=list_of(pair("name", TEXT, "form", _ARGUMENT_FORM)), null=NUMBER
)
_KEY_COLUMN = record(partial(KeyColumn, sql=""), name=TEXT, type=TYPE)
_ARGUMENTS = list_of(record(Argument, columns=list_of(_KEY_COLUMN), form=_ARGUMENT_FORM))
_TABLE = record(TableUse, table=TEXT, hints=by_name(TEXT))
_CALL = record(CallUse, function=TEXT, columns=list_of(TEXT), arguments=_ARGUMENTS)

_USE = Field("use", Format(
    lambda use: (_TABLE if isinstance(use, TableUse) else _CALL).write(use),
    lambda reader: (_TABLE if "table" in reader.entries() else _CALL).read(reader),
))  # fmt: skip
_OUTPUT = Field("output", COLUMNS)
_CONFIGURATION = Field("configuration", by_name(ANY))


# ── the types ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class LeftSideNode:
    """The left side of a lookup join of the DataFrame API, which is given when the plan runs."""

    TYPE: ClassVar[str] = "left-side_1"
    FIELDS: ClassVar[Mapping[str, Field]] = {"output": _OUTPUT}
    output: Columns


@dataclass(frozen=True, kw_only=True)
class SparkQuery:
    """A text that Spark runs; in it, names of ``views`` in braces are results of other nodes.

    ``names`` are the names that its columns get, where they are not Spark's own.
    """

    TYPE: ClassVar[str] = "spark-query_1"
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "text": Field("text", TEXT),
        "views": Field("views", by_name(NUMBER)),
        "names": Field("names", or_none(list_of(TEXT))),
        "streaming": Field("streaming", FLAG),
        "output": _OUTPUT,
    }
    text: str
    views: Mapping[str, int]
    names: tuple[str, ...] | None
    streaming: bool
    output: Columns


def _of_lookup(lookup: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields of a lookup join, of which these are the fields of its plan."""
    return {
        "use": _USE,
        "alias": Field("alias", TEXT),
        "input": Field("input", NUMBER),
        "reads": Field("reads", SCHEMA),
        **{name: replace(one, attribute=f"lookup.{one.attribute}") for name, one in lookup.items()},
        "operators": Field("operators", by_name(NUMBER)),
        "form": Field("form", one_of([form for form in get_args(Form) if form != "auto"], "form")),
        "stage": Field("stage", list_of(NUMBER)),
        "configuration": _CONFIGURATION,
        "output": _OUTPUT,
    }


@dataclass(frozen=True, kw_only=True)
class LookupNode:
    """A lookup join; ``lookup`` has the schema ``reads`` and no config: both are found when the plan runs.

    ``stage`` are the lookup joins before it whose Python stage it shares.
    """

    TYPE: ClassVar[str] = "lookup-join_1"
    FIELDS: ClassVar[Mapping[str, Field]] = _of_lookup(lookup_fields.FIELDS)
    use: TableUse | CallUse
    alias: str
    input: int
    reads: pa.Schema
    lookup: LookupPlan
    form: str
    stage: tuple[int, ...]
    configuration: Mapping[str, Any]
    output: Columns

    @property
    def operators(self) -> dict[str, int]:
        """The operators of its expressions, with their versions."""
        return operators_of(self.lookup)


@dataclass(frozen=True, kw_only=True)
class AsOfLookupNode(LookupNode):
    """A lookup join with the latest version of each key at a time of the left row."""

    TYPE: ClassVar[str] = "lookup-join_2"
    FIELDS: ClassVar[Mapping[str, Field]] = _of_lookup(lookup_fields.AS_OF_FIELDS)


def lookup_kind(lookup: LookupPlan) -> type[LookupNode]:
    """Return the class of the node of a lookup: the first version that has all of it."""
    return LookupNode if lookup.latest is None else AsOfLookupNode


@dataclass(frozen=True, kw_only=True)
class FullScanNode:
    """A lookup table that is read completely, with its computed columns as SQL."""

    TYPE: ClassVar[str] = "full-scan_1"
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "use": _USE,
        "computed": Field("computed", by_name(TEXT)),
        "configuration": _CONFIGURATION,
        "output": _OUTPUT,
    }
    use: TableUse
    computed: Mapping[str, str]
    configuration: Mapping[str, Any]
    output: Columns


@dataclass(frozen=True, kw_only=True)
class InsertNode:
    """A statement that writes the rows of a query: ``head`` is its text before the query.

    ``sink`` are the parts of the table's name, None for files; ``sink_columns`` are its columns, None where it is
    made by the first run. ``query_name`` is the name of the stream, from which Spark derives where its checkpoint is.
    """

    TYPE: ClassVar[str] = "insert_1"
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "head": Field("head", TEXT),
        "sink": Field("sink", or_none(list_of(TEXT))),
        "sinkColumns": Field("sink_columns", or_none(COLUMNS)),
        "input": Field("input", NUMBER),
        "queryName": Field("query_name", TEXT),
        "output": _OUTPUT,
    }
    head: str
    sink: tuple[str, ...] | None
    sink_columns: Columns | None
    input: int
    query_name: str
    output: Columns = ()


Node = LeftSideNode | SparkQuery | LookupNode | AsOfLookupNode | FullScanNode | InsertNode
NODE_TYPES: Mapping[str, type[Node]] = {kind.TYPE: kind for kind in get_args(Node)}
"""The types of nodes that can be read."""


def inputs_of(node: Node) -> tuple[int, ...]:
    """Return the numbers of the nodes that a node reads."""
    if isinstance(node, SparkQuery):
        return tuple(node.views.values())
    return (node.input,) if isinstance(node, LookupNode | InsertNode) else ()


# ── writing and reading ──────────────────────────────────────────────────────────────────────────────────


def write_node(number: int, node: Node, description: str) -> dict[str, Any]:
    """Return a node as JSON data."""
    own = {name: one.write(node) for name, one in node.FIELDS.items()}
    return {"id": number, "type": node.TYPE, "description": description, **own}


def read_node(reader: PlanReader, defaults: Mapping[str, Any]) -> Node:
    """Return a node; ``defaults`` are the defaults of options when the plan was made."""
    type_ = reader.entry("type").text()
    if type_ not in NODE_TYPES:
        name, _, version = type_.rpartition("_")
        raise reader.entry("type").wrong(
            f"nodes of type {type_!r} are not known here.",
            f"Known types: {', '.join(NODE_TYPES)}. A newer lookupcache wrote the plan: upgrade, or compile again."
            if any(known.startswith(f"{name}_") for known in NODE_TYPES) and version.isdigit()
            else f"Known types: {', '.join(NODE_TYPES)}.",
        )
    kind = NODE_TYPES[type_]
    reader.only(["id", "type", "description", *kind.FIELDS])
    _ = reader.entry("description").text()
    values = {one.attribute: one.format.read(reader.entry(name)) for name, one in kind.FIELDS.items()}
    if "configuration" in values:
        reader.entry("configuration").read(lambda _: config_of(values["configuration"], defaults))
    if issubclass(kind, LookupNode):
        return _made_lookup(kind, reader, values)
    node = kind(**values)
    if isinstance(node, FullScanNode) and not isinstance(node.use, TableUse):
        raise reader.entry("use").wrong("only a table can be read completely.")
    if isinstance(node, InsertNode):
        _check_insert(reader, node)
    return node


def _made_lookup(kind: type[LookupNode], reader: PlanReader, values: dict[str, Any]) -> LookupNode:
    """Return the node of these fields; the config of its lookup is that of no options."""
    versions, reads = values.pop("operators"), values["reads"]
    own = {name.removeprefix("lookup."): values.pop(name) for name in list(values) if name.startswith("lookup.")}
    lookup = LookupPlan(table="", connector="", source="", schema=reads, config=LookupConfig(), **own)
    _check_operators(reader.entry("operators"), versions, operators_of(lookup))
    if not lookup.keys:
        raise reader.entry("keys").wrong("a lookup has a key.")
    if unknown := [name for name in columns_needed(lookup) if name not in reads.names]:
        raise reader.entry("reads").wrong(f"column {unknown[0]!r} is missing.")
    return kind(lookup=lookup, **values)


def _check_operators(reader: PlanReader, versions: Mapping[str, int], known: Mapping[str, int]) -> None:
    """Refuse operators of another version: they have another meaning here than when the plan was made."""
    if set(versions) != set(known):
        raise reader.wrong(f"they are {sorted(versions)}, and its expressions have {sorted(known)}.")
    for name, version in versions.items():
        if version != known[name]:
            raise reader.wrong(
                f"operator {name!r} has version {version}, here it has version {known[name]}.",
                "Run the plan with a lookupcache that has this version, or compile the statement again.",
            )


def _check_insert(reader: PlanReader, node: InsertNode) -> None:
    if node.output:
        raise reader.entry("output").wrong("an INSERT has no result.")
    if not re.fullmatch(r"\w[\w.-]*", node.query_name):  # it is the name of a folder
        raise reader.entry("queryName").wrong(f"{node.query_name!r} is not the name of a stream.")


def config_of(configuration: Mapping[str, Any], defaults: Mapping[str, Any]) -> LookupConfig:
    """Return the config of a node: its options over the defaults of the lookupcache that made the plan.

    An option that there is no more is refused where the plan sets it, not where it had its default.
    """
    known = {key: value for key, value in defaults.items() if key not in REMOVED}
    return LookupConfig.from_options({**known, **configuration})


def defaults_now() -> dict[str, Any]:
    """Return the defaults of all options, by option key."""
    return {option.metadata["key"]: option.default for option in dataclasses.fields(LookupConfig)}


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────


def describe(node: Node) -> str:
    """Return a sentence about a node, as a person reads it in a review."""
    if isinstance(node, LeftSideNode):
        return "The left side, given when the plan runs"
    if isinstance(node, SparkQuery):
        of = f" over {', '.join(f'{name} (node {view})' for name, view in node.views.items())}" if node.views else ""
        return f"Spark runs a query{of}{' on a stream' if node.streaming else ''}"
    if isinstance(node, FullScanNode):
        return f"All rows of {node.use.table}"
    if isinstance(node, InsertNode):
        return " ".join(node.head.split())
    return _describe_lookup(node)


def _describe_lookup(node: LookupNode) -> str:
    lookup = node.lookup
    name = node.use.table if isinstance(node.use, TableUse) else f"{node.use.function}(…)"
    known = f" AS {node.alias}" if node.alias != name else ""
    parts = [f"{lookup.how} lookup of {name}{known} by {', '.join(f'{k.column} = {k.sql}' for k in lookup.keys)}"]
    constants = [f"{one.column} = {expr.literal_text(one.value)}" for one in lookup.constants]
    parts += [f"constant {', '.join(constants)}"] if constants else []
    for what, expressions in (("pushed", lookup.pushed), ("calc", lookup.calc), ("residual", lookup.residual)):
        parts += [f"{what} {' AND '.join(map(expr.to_text, expressions))}"] if expressions else []
    parts += [f"the greatest {lookup.latest}"] if lookup.latest is not None else []
    parts += [f"caches {', '.join(lookup.columns)}"] if lookup.columns else []
    return "; ".join(parts) + f"; form {node.form}"
