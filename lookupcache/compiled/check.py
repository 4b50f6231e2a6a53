"""Whether a plan would run here: connectors, drivers, functions, options and columns, without Spark."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal as OneOf

import pyarrow as pa

from lookupcache.compiled.catalog_objects import Objects, differs, planned_lookup
from lookupcache.compiled.code import is_installed, refuse_name
from lookupcache.compiled.document import Document, KeptDefinition
from lookupcache.compiled.lookup_fields import columns_of_schema
from lookupcache.compiled.nodes import CallUse, LookupNode, TableUse
from lookupcache.connector import offers
from lookupcache.errors import LookupCacheError
from lookupcache.schema import shown_type
from lookupcache.table import LookupTable
from lookupcache.versions import package_version

Kind = OneOf["ok", "missing", "not checked"]


@dataclass(frozen=True)
class CheckResult:
    """The finding about one part that a plan needs."""

    kind: Kind
    what: str
    text: str


def unasked(connect: bool) -> str:
    """Return the parts of a plan that no finding covers, as a sentence."""
    sources = "" if connect else "the sources, whether they can be read and what columns they have (--connect); "
    return f"{sources}Spark's tables, views, texts, settings and sinks (EXPLAIN PLAN in a session)"


def findings(
    document: Document, tables: Mapping[str, LookupTable], restore: str, connect: Callable[[LookupTable], str] | None
) -> Iterator[CheckResult]:
    """Yield whether each part that a plan needs is here.

    ``tables`` are those of the catalog. ``restore`` is the value of ``table.plan.restore.catalog-objects``. ``connect``
    connects to a table and returns its finding; None connects to nothing.
    """
    yield CheckResult("ok", "format", f"compiled by lookupcache {document.version}, and can be read here")
    objects = Objects(document, restore, tables.get)
    for name, definition in document.tables.items():
        yield from _of_table(name, definition, objects)
    for name, definition in document.functions.items():
        yield _of_code(f"table function {name}", definition)
    for number, node in document.numbered_nodes:
        if isinstance(node, LookupNode):
            yield from _of_lookup(number, node, objects, connect)


def _of_table(name: str, definition: KeptDefinition, objects: Objects) -> Iterator[CheckResult]:
    what = f"table {name}"
    if definition.function is not None:
        yield _of_code(what, definition)
        return
    if _is_elsewhere(name, objects):
        yield CheckResult("not checked", what, "it is read from the catalog; give its definition with --table")
        return
    options = definition.options if definition.options is not None else {}
    yield from _of_connector(what, lambda: objects.table(TableUse(table=name)))
    for key, value in options.items():
        if value.startswith("env:") and not value.startswith("env::") and value[4:] not in os.environ:
            yield CheckResult("not checked", what, f"option {key!r} is {value!r}, which is not set here")


def _is_elsewhere(name: str, objects: Objects) -> bool:
    """Return whether a table is read from a catalog that is not here."""
    definition = objects.document.tables[name]
    if definition.inline or objects.restore == "ALL_ENFORCED" or objects.registered_table(name) is not None:
        return False
    return objects.restore == "IDENTIFIER" or not definition.is_complete


def _of_connector(what: str, build: Callable[[], LookupTable]) -> Iterator[CheckResult]:
    try:
        table = build()
        needed = table.connector.needed_drivers()
    except LookupCacheError as error:
        yield CheckResult("missing", what, f"{error.fact} {error.hint or ''}".strip())
        return
    yield CheckResult("ok", what, f"connector {table.connector_name} is installed")
    for module, package in needed.items():
        if importlib.util.find_spec(module) is not None:
            version = package_version(module)
            yield CheckResult("ok", what, f"driver {' '.join(filter(None, [module, version]))} is installed")
        elif len(needed) == 1:
            yield CheckResult("missing", what, f"driver {module} is not installed: pip install {package!r}")
        else:
            text = f"driver {module}, which some sources need, is not installed: pip install {package!r}"
            yield CheckResult("not checked", what, text)


def _of_code(what: str, definition: KeptDefinition) -> CheckResult:
    path = definition.function
    if path is None:
        return CheckResult("not checked", what, "it is read from the catalog")
    if refused := refuse_name(path):
        return CheckResult("missing", what, f"{path}: {refused}")
    if not is_installed(path):
        return CheckResult("missing", what, f"{path} cannot be found; its package is not installed here")
    # Importing it would run code of the plan's choice.
    return CheckResult("not checked", what, f"the package of {path} is here; nothing of it is imported")


def _of_lookup(
    number: int, node: LookupNode, objects: Objects, connect: Callable[[LookupTable], str] | None
) -> Iterator[CheckResult]:
    what = f"node {number}"
    if isinstance(node.use, CallUse) or objects.document.tables[node.use.table].function is not None:
        return
    if _is_elsewhere(node.use.table, objects):
        return
    try:
        table = objects.lookup_table(node)
        planned_lookup(node, table, objects.document.source)
        yield CheckResult("ok", what, f"the lookup of {node.alias} is the one that was planned")
        if connect is not None:
            yield from _compare_source(what, node, table, objects.document.source)
            yield CheckResult("ok", what, connect(table))
    except LookupCacheError as error:
        yield CheckResult("missing", what, f"{error.fact} {error.hint or ''}".strip())


def _compare_source(what: str, node: LookupNode, table: LookupTable, source: str) -> Iterator[CheckResult]:
    """Yield the columns that the lookup reads whose types the source reports otherwise.

    Raises CompiledPlanError for a column that the source does not have, and for one that cannot be converted.
    """
    if not offers(table.connector, "infer_schema") or table.function is not None:
        return
    found = LookupTable(table.name, None, table.options).schema
    here = {field.name.lower(): field.type for field in found}
    kinds = {field.name: _compare_types(here.get(field.name.lower()), field.type) for field in node.reads}
    if "missing" in kinds.values():
        reported = f"The columns that the source of {getattr(node.use, 'table', node.alias)!r} reports"
        raise differs(reported, columns_of_schema(node.reads), columns_of_schema(found), source)
    for field in (field for field in node.reads if kinds[field.name] == "not checked"):
        types = shown_type(here[field.name.lower()]), shown_type(field.type)
        text = f"column {field.name!r} is {types[0]} at the source and {types[1]} in the plan"
        yield CheckResult("not checked", what, f"{text}: a lookup fails for a value that cannot be converted")


def _compare_types(here: pa.DataType | None, planned: pa.DataType) -> Kind:
    """Return whether all, some or none of the values of a source's column can be converted to the plan's type."""
    if here is None:
        return "missing"
    both = (pa.types.is_integer, pa.types.is_floating)
    if here == planned or any(is_(here) and is_(planned) and here.bit_width <= planned.bit_width for is_ in both):
        return "ok"
    try:
        pa.array([], here).cast(planned)
    except (pa.ArrowException, TypeError):
        return "missing"
    return "not checked"
