"""A compiled plan as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lookupcache import expr
from lookupcache.compiled.document import Document, KeptDefinition
from lookupcache.compiled.lookup_fields import columns_of_schema, columns_text
from lookupcache.compiled.nodes import FullScanNode, InsertNode, LookupNode, Node, SparkQuery, describe
from lookupcache.redaction import hide_userinfo


def show_plan(document: Document) -> str:
    """Return a plan as text: the parts that it needs from outside, then each node with its work."""
    sections = ["\n".join([title, *(f"  {row}" for row in rows)]) for title, rows in sections_of(document).items()]
    return "\n\n".join([title_of(document), *sections]) + "\n"


def title_of(document: Document) -> str:
    """Return where a plan is from, and which version compiled it."""
    return f"Plan {document.source}, compiled by lookupcache {document.version}"


def sections_of(document: Document) -> dict[str, list[str]]:
    """Return the lines of a plan's text by heading."""
    nodes = {f"{number}  {node.TYPE}: {describe(node)}": list(_facts(node)) for number, node in document.numbered_nodes}
    return dict(_needs(document)) | nodes


def _needs(document: Document) -> Iterator[tuple[str, list[str]]]:
    """Yield the tables, functions, parameters and settings of a plan."""
    for what, definitions in (("Tables", document.tables), ("Table functions", document.functions)):
        if definitions:
            rows = [f"{name}: {_definition(one)}" for name, one in definitions.items()]
            yield f"{what} ({document.keeps})", rows
    if document.parameters:
        yield "Parameters", [f"{name} = {value}" for name, value in document.parameters.items()]
    settings = [f"{name} = {value}" for name, value in document.settings.items() if value is not None]
    if settings:
        yield "Settings of the session, with which it runs", settings


def _definition(one: KeptDefinition) -> str:
    if one.columns is None:
        return "from the catalog"
    columns = columns_text(columns_of_schema(one.columns))
    if one.function is not None:
        return f"{one.function}({', '.join(one.key)}) gives {columns}"
    if one.options is None:
        return f"from the catalog, with the columns {columns}"
    options = ", ".join(f"{name!r} = {hide_userinfo(value)!r}" for name, value in one.options.items())
    return f"{columns} WITH ({options})"


def _facts(node: Node) -> Iterator[str]:
    if isinstance(node, SparkQuery):
        yield from node.text.strip().splitlines()
        if node.names is not None:
            yield f"named {', '.join(node.names)}"
    if isinstance(node, LookupNode):
        yield from _lookup_facts(node)
    if isinstance(node, FullScanNode):
        yield from (f"computed {name} = {sql}" for name, sql in node.computed.items())
    if isinstance(node, LookupNode | FullScanNode):
        yield from _options(node.configuration)
    if isinstance(node, InsertNode):
        columns = "made by the first run" if node.sink_columns is None else columns_text(node.sink_columns)
        yield f"writes node {node.input}; sink: {columns}"
        return
    yield f"gives {columns_text(node.output)}"


def _lookup_facts(node: LookupNode) -> Iterator[str]:
    lookup = node.lookup
    yield f"left side: node {node.input}"
    if node.stage:
        yield f"shares its Python stage with node {', '.join(map(str, node.stage))}"
    texts: Mapping[str, Any] = {
        "before the lookup": (*lookup.left_filter, *lookup.pre_filter),
        "pushed to the source": map(expr.to_text, lookup.pushed),
        "before the cache": map(expr.to_text, lookup.calc),
        "for each pair of rows": (*map(expr.to_text, lookup.residual), *lookup.spark_residual),
        "of each left row's matches": () if lookup.latest is None else (f"the greatest {lookup.latest}",),
        "after the join": lookup.filter_after,
    }
    yield from (f"{where}: {text}" for where, found in texts.items() for text in found)
    yield from (f"select {one.sql} AS {one.name}" for one in lookup.output)


def _options(configuration: Mapping[str, Any]) -> Iterator[str]:
    if configuration:
        yield "options: " + ", ".join(f"{name} = {value}" for name, value in configuration.items())
