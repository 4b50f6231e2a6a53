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
    """Return a plan as text: what it needs from outside, then each node with what it does."""
    parts = [f"Plan {document.source}, compiled by lookupcache {document.version}", *_needs(document)]
    parts += [_node(number, node) for number, node in document.numbered_nodes]
    return "\n\n".join(parts) + "\n"


def _needs(document: Document) -> Iterator[str]:
    """Yield what a plan has of tables, functions, parameters and settings."""
    for what, definitions in (("Tables", document.tables), ("Table functions", document.functions)):
        if definitions:
            rows = [f"{name}: {_definition(one)}" for name, one in definitions.items()]
            yield _section(f"{what} ({document.keeps})", rows)
    if document.parameters:
        yield _section("Parameters", [f"{name} = {value}" for name, value in document.parameters.items()])
    settings = [f"{name} = {value}" for name, value in document.settings.items() if value is not None]
    if settings:
        yield _section("Settings of the session, with which it runs", settings)


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


def _node(number: int, node: Node) -> str:
    return _section(f"{number}  {node.TYPE}: {describe(node)}", list(_facts(node)))


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


def _section(title: str, rows: list[str]) -> str:
    return "\n".join([title, *(f"  {row}" for row in rows)])
