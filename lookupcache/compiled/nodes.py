"""The nodes of a compiled plan: the fields of each type, and how they are written and read.

A type is a name and a version, as in ``lookup-join_1``. A version is never changed: a node with another meaning or a
further field is a new version next to the old one. `NODE_TYPES` lists all that this lookupcache can run.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

import pyarrow as pa

from lookupcache import expr
from lookupcache.compiled import lookup_fields
from lookupcache.compiled.lookup_fields import Columns
from lookupcache.compiled.reading import PlanReader
from lookupcache.config import LookupConfig
from lookupcache.config.lookup_config import REMOVED, Form
from lookupcache.functions.table_function import Argument, KeyColumn
from lookupcache.functions.table_function import Form as ArgumentForm
from lookupcache.plan import LookupPlan
from lookupcache.schema import parse_type, type_name


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


@dataclass(frozen=True, kw_only=True)
class LeftSideNode:
    """The left side of a lookup join of the DataFrame API, which is given when the plan runs."""

    TYPE: ClassVar[str] = "left-side_1"
    output: Columns


@dataclass(frozen=True, kw_only=True)
class SparkQuery:
    """A text that Spark runs; in it, names of ``views`` in braces are results of other nodes.

    ``names`` are the names that its columns get, where they are not Spark's own.
    """

    TYPE: ClassVar[str] = "spark-query_1"
    text: str
    views: Mapping[str, int]
    names: tuple[str, ...] | None
    streaming: bool
    output: Columns


@dataclass(frozen=True, kw_only=True)
class LookupNode:
    """A lookup join; ``lookup`` has the schema ``reads`` and no config: both are found when the plan runs.

    ``stage`` are the lookup joins before it whose Python stage it shares.
    """

    TYPE: ClassVar[str] = "lookup-join_1"
    FIELDS: ClassVar[Mapping[str, lookup_fields.Field]] = lookup_fields.FIELDS
    use: TableUse | CallUse
    alias: str
    input: int
    reads: pa.Schema
    lookup: LookupPlan
    form: str
    stage: tuple[int, ...]
    configuration: Mapping[str, Any]
    output: Columns


@dataclass(frozen=True, kw_only=True)
class AsOfLookupNode(LookupNode):
    """A lookup join with the latest version of each key at a time of the left row."""

    TYPE: ClassVar[str] = "lookup-join_2"
    FIELDS: ClassVar[Mapping[str, lookup_fields.Field]] = lookup_fields.AS_OF_FIELDS


def lookup_kind(lookup: LookupPlan) -> type[LookupNode]:
    """Return the class of the node of a lookup: the first version that has all of it."""
    return LookupNode if lookup.latest is None else AsOfLookupNode


@dataclass(frozen=True, kw_only=True)
class FullScanNode:
    """A lookup table that is read completely, with its computed columns as SQL."""

    TYPE: ClassVar[str] = "full-scan_1"
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
    head: str
    sink: tuple[str, ...] | None
    sink_columns: Columns | None
    input: int
    query_name: str
    output: Columns = ()


Node = LeftSideNode | SparkQuery | LookupNode | AsOfLookupNode | FullScanNode | InsertNode


def inputs_of(node: Node) -> tuple[int, ...]:
    """Return the numbers of the nodes that a node reads."""
    if isinstance(node, SparkQuery):
        return tuple(node.views.values())
    return (node.input,) if isinstance(node, LookupNode | InsertNode) else ()


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


def write_node(number: int, node: Node, description: str) -> dict[str, Any]:
    """Return a node as JSON data."""
    own = _WRITERS[type(node)](node)
    output = {"output": lookup_fields.write_columns(node.output)}
    return {"id": number, "type": node.TYPE, "description": description, **own, **output}


def _write_query(node: SparkQuery) -> dict[str, Any]:
    names = None if node.names is None else list(node.names)
    return {"text": node.text, "views": dict(node.views), "names": names, "streaming": node.streaming}


def _write_lookup(node: LookupNode) -> dict[str, Any]:
    return {
        "use": _write_use(node.use),
        "alias": node.alias,
        "input": node.input,
        "reads": lookup_fields.write_schema(node.reads),
        **lookup_fields.write_lookup(node.lookup, node.FIELDS),
        "operators": lookup_fields.operators_of(node.lookup),
        "form": node.form,
        "stage": list(node.stage),
        "configuration": dict(node.configuration),
    }


def _write_scan(node: FullScanNode) -> dict[str, Any]:
    computed, configuration = dict(node.computed), dict(node.configuration)
    return {"use": _write_use(node.use), "computed": computed, "configuration": configuration}


def _write_insert(node: InsertNode) -> dict[str, Any]:
    return {
        "head": node.head,
        "sink": None if node.sink is None else list(node.sink),
        "sinkColumns": None if node.sink_columns is None else lookup_fields.write_columns(node.sink_columns),
        "input": node.input,
        "queryName": node.query_name,
    }


_WRITERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    LeftSideNode: lambda node: {},
    SparkQuery: _write_query,
    LookupNode: _write_lookup,
    AsOfLookupNode: _write_lookup,
    FullScanNode: _write_scan,
    InsertNode: _write_insert,
}


def _write_use(use: TableUse | CallUse) -> dict[str, Any]:
    if isinstance(use, TableUse):
        return {"table": use.table, "hints": dict(use.hints)}
    arguments = [
        {
            "columns": [{"name": column.name, "type": type_name(column.type)} for column in argument.columns],
            "form": _write_form(argument.form),
        }
        for argument in use.arguments
    ]
    return {"function": use.function, "columns": list(use.columns), "arguments": arguments}


def _write_form(form: ArgumentForm) -> dict[str, Any]:
    fields = [{"name": name, "form": _write_form(inner)} for name, inner in form.fields]
    return {"value": form.value, "fields": fields, "null": form.null}


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


COMMON = ("id", "type", "description", "output")
"""The fields of a node of any type."""


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
    names, read = NODE_TYPES[type_]
    reader.only([*COMMON, *names])
    _ = reader.entry("description").text()
    return read(reader, defaults)


def read_columns(reader: PlanReader) -> Columns:
    """Return columns with their types."""
    return tuple(_read_column(item) for item in reader.items())


def _read_column(reader: PlanReader) -> tuple[str, str]:
    reader.only(["name", "type"])
    return reader.entry("name").text(), reader.entry("type").text()


def _read_left(reader: PlanReader, _: Mapping[str, Any]) -> LeftSideNode:
    return LeftSideNode(output=read_columns(reader.entry("output")))


def _read_query(reader: PlanReader, _: Mapping[str, Any]) -> SparkQuery:
    names = reader.optional("names")
    return SparkQuery(
        text=reader.entry("text").text(),
        views={name: view.number() for name, view in reader.entry("views").entries().items()},
        names=None if names is None else tuple(item.text() for item in names.items()),
        streaming=reader.entry("streaming").flag(),
        output=read_columns(reader.entry("output")),
    )


def _read_lookup(kind: type[LookupNode], reader: PlanReader, defaults: Mapping[str, Any]) -> LookupNode:
    reads = lookup_fields.read_schema(reader.entry("reads"))
    lookup = lookup_fields.read_lookup(reader, reads, kind.FIELDS)
    _check_operators(reader, lookup)
    if not lookup.keys:
        raise reader.entry("keys").wrong("a lookup has a key.")
    configuration = read_configuration(reader.entry("configuration"), defaults)
    if unknown := [name for name in lookup_fields.columns_needed(lookup) if name not in reads.names]:
        raise reader.entry("reads").wrong(f"column {unknown[0]!r} is missing.")
    return kind(
        use=_read_use(reader.entry("use")),
        alias=reader.entry("alias").text(),
        input=reader.entry("input").number(),
        reads=reads,
        lookup=lookup,
        form=reader.entry("form").one_of([form for form in get_args(Form) if form != "auto"], "form"),
        stage=tuple(item.number() for item in reader.entry("stage").items()),
        configuration=configuration,
        output=read_columns(reader.entry("output")),
    )


def _check_operators(reader: PlanReader, lookup: LookupPlan) -> None:
    """Refuse operators of another version: they have another meaning here than when the plan was made."""
    versions = {name: version.number() for name, version in reader.entry("operators").entries().items()}
    known = lookup_fields.operators_of(lookup)
    if set(versions) != set(known):
        raise reader.entry("operators").wrong(f"they are {sorted(versions)}, and its expressions have {sorted(known)}.")
    for name, version in versions.items():
        if version != known[name]:
            raise reader.entry("operators").wrong(
                f"operator {name!r} has version {version}, here it has version {known[name]}.",
                "Run the plan with a lookupcache that has this version, or compile the statement again.",
            )


def read_configuration(reader: PlanReader, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a node; raises an error for one that is not known, or has a wrong value."""
    own = {name: option.data for name, option in reader.entries().items()}
    reader.read(lambda _: config_of(own, defaults))
    return own


def config_of(configuration: Mapping[str, Any], defaults: Mapping[str, Any]) -> LookupConfig:
    """Return the config of a node: its options over the defaults of the lookupcache that made the plan.

    An option that there is no more is refused where the plan sets it, not where it had its default.
    """
    known = {key: value for key, value in defaults.items() if key not in REMOVED}
    return LookupConfig.from_options({**known, **configuration})


def defaults_now() -> dict[str, Any]:
    """Return the defaults of all options, by option key."""
    return {option.metadata["key"]: option.default for option in dataclasses.fields(LookupConfig)}


def _read_scan(reader: PlanReader, defaults: Mapping[str, Any]) -> FullScanNode:
    use = _read_use(reader.entry("use"))
    if not isinstance(use, TableUse):
        raise reader.entry("use").wrong("only a table can be read completely.")
    return FullScanNode(
        use=use,
        computed={name: item.text() for name, item in reader.entry("computed").entries().items()},
        configuration=read_configuration(reader.entry("configuration"), defaults),
        output=read_columns(reader.entry("output")),
    )


def _read_insert(reader: PlanReader, _: Mapping[str, Any]) -> InsertNode:
    sink, columns = reader.optional("sink"), reader.optional("sinkColumns")
    if reader.entry("output").items():
        raise reader.entry("output").wrong("an INSERT has no result.")
    name = reader.entry("queryName")
    if not re.fullmatch(r"\w[\w.-]*", name.text()):  # it is the name of a folder
        raise name.wrong(f"{name.data!r} is not the name of a stream.")
    return InsertNode(
        head=reader.entry("head").text(),
        sink=None if sink is None else tuple(item.text() for item in sink.items()),
        sink_columns=None if columns is None else read_columns(columns),
        input=reader.entry("input").number(),
        query_name=name.text(),
    )


def _read_use(reader: PlanReader) -> TableUse | CallUse:
    if "table" in reader.entries():
        reader.only(["table", "hints"])
        hints = {name: item.text() for name, item in reader.entry("hints").entries().items()}
        return TableUse(table=reader.entry("table").text(), hints=hints)
    reader.only(["function", "columns", "arguments"])
    return CallUse(
        function=reader.entry("function").text(),
        columns=tuple(item.text() for item in reader.entry("columns").items()),
        arguments=tuple(_read_argument(item) for item in reader.entry("arguments").items()),
    )


def _read_argument(reader: PlanReader) -> Argument:
    reader.only(["columns", "form"])
    columns = []
    for item in reader.entry("columns").items():
        item.only(["name", "type"])
        columns.append(KeyColumn(item.entry("name").text(), item.entry("type").read(parse_type), ""))
    return Argument(tuple(columns), _read_form(reader.entry("form")))


def _read_form(reader: PlanReader) -> ArgumentForm:
    reader.only(["value", "fields", "null"])
    fields = []
    for item in reader.entry("fields").items():
        item.only(["name", "form"])
        fields.append((item.entry("name").text(), _read_form(item.entry("form"))))
    return ArgumentForm(reader.entry("value").number(), tuple(fields), reader.entry("null").number())


NODE_TYPES: dict[str, tuple[tuple[str, ...], Callable[[PlanReader, Mapping[str, Any]], Node]]] = {
    LeftSideNode.TYPE: ((), _read_left),
    SparkQuery.TYPE: (("text", "views", "names", "streaming"), _read_query),
    **{
        kind.TYPE: (
            ("use", "alias", "input", "reads", *kind.FIELDS, "operators", "form", "stage", "configuration"),
            functools.partial(_read_lookup, kind),
        )
        for kind in (LookupNode, AsOfLookupNode)
    },
    FullScanNode.TYPE: (("use", "computed", "configuration"), _read_scan),
    InsertNode.TYPE: (("head", "sink", "sinkColumns", "input", "queryName"), _read_insert),
}
"""The types of nodes that can be read: the names of their fields, and how they are read."""


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
