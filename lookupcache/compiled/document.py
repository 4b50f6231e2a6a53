"""`Document`: a compiled plan as data, and its text: versioned JSON in a fixed order, with a checksum per part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import lookupcache
from lookupcache.compiled.lookup_fields import LITERAL, SCHEMA
from lookupcache.compiled.nodes import (
    InsertNode,
    LeftSideNode,
    Node,
    SparkQuery,
    describe,
    inputs_of,
    read_node,
    write_node,
)
from lookupcache.compiled.plan_reader import ANY, FLAG, TEXT, Field, Format, PlanReader, by_name, list_of, or_none
from lookupcache.errors import CompiledPlanError

FORMAT = 1
"""The version of the format that is written; all from 1 to this one are read."""

KEEPS = ("ALL", "SCHEMA", "IDENTIFIER")
"""The parts of tables and functions that a plan may have: values of ``table.plan.compile.catalog-objects``."""

_TOP = ("format", "lookupcache", "catalogObjects", "settings", "defaults", "parameters", "tables", "functions",
        "nodes", "edges", "checksums")  # fmt: skip
_MOST_LETTERS = 64 << 20


@dataclass(frozen=True, kw_only=True)
class KeptDefinition:
    """A plan's definition of a table or table function: complete, only its columns, or only its name.

    ``inline`` tables are of the DataFrame API: they are always complete, and no catalog has them. ``function`` is
    ``module:name``; ``key`` is that of a table made of a function; ``batch`` says how the function is called.
    """

    columns: Any = None
    options: Mapping[str, str] | None = None
    function: str | None = None
    key: tuple[str, ...] = ()
    batch: bool = False
    inline: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether it needs no part of the catalog."""
        return self.options is not None or self.function is not None


@dataclass(frozen=True, kw_only=True)
class Document:
    """A compiled plan.

    ``keeps`` says which parts of catalog objects it has. ``settings`` are those of the session that change the meaning
    of a text. ``defaults`` are the defaults of options when it was made, and ``parameters`` the values of the
    statement's. ``nodes`` come after those that they read, and are numbered from 1 on.
    """

    keeps: str = "ALL"
    settings: Mapping[str, str | None] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, KeptDefinition] = field(default_factory=dict)
    functions: Mapping[str, KeptDefinition] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    version: str = lookupcache.__version__
    source: str = "(in memory)"

    @property
    def numbered_nodes(self) -> list[tuple[int, Node]]:
        """The nodes with their ids."""
        return list(enumerate(self.nodes, start=1))

    @property
    def inserts(self) -> list[tuple[int, InsertNode]]:
        """The statements that the plan runs."""
        return [(number, node) for number, node in self.numbered_nodes if isinstance(node, InsertNode)]

    @property
    def is_join(self) -> bool:
        """Whether it is a lookup join of the DataFrame API, which needs a left side."""
        return any(isinstance(node, LeftSideNode) for node in self.nodes)

    @property
    def has_streams(self) -> bool:
        """Whether a statement of it reads a stream."""
        return any(isinstance(node, SparkQuery) and node.streaming for node in self.nodes)

    def node(self, number: int) -> Node:
        """Return a node by its id."""
        return self.nodes[number - 1]


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


def write(document: Document) -> str:
    """Return a plan's text: the same for the same plan, byte for byte."""
    data = to_json(document)
    return _text(data | {"checksums": checksums(data)}, "") + "\n"


_WIDTH = 100


def _text(data: Any, indent: str) -> str:
    """Return JSON with a line for each part that is short, so that a plan and its changes can be reviewed."""
    line = json.dumps(data, ensure_ascii=False, allow_nan=False)
    if not isinstance(data, dict | list) or not data or (indent and len(indent) + len(line) <= _WIDTH):
        return line
    inner = indent + "  "
    if isinstance(data, dict):
        parts = [f"{json.dumps(name, ensure_ascii=False)}: {_text(value, inner)}" for name, value in data.items()]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _text(value, inner) for value in data) + f"\n{indent}]"


def to_json(document: Document) -> dict[str, Any]:
    """Return a plan as JSON data, without checksums."""
    nodes = [write_node(number, node, describe(node)) for number, node in document.numbered_nodes]
    return {
        "format": FORMAT,
        "lookupcache": document.version,
        "catalogObjects": document.keeps,
        "settings": dict(sorted(document.settings.items())),
        "defaults": dict(sorted(document.defaults.items())),
        "parameters": dict(sorted(document.parameters.items())),
        "tables": {name: _write_definition(one) for name, one in sorted(document.tables.items())},
        "functions": {name: _write_definition(one) for name, one in sorted(document.functions.items())},
        "nodes": nodes,
        "edges": _edges(document),
    }


def _edges(document: Document) -> list[dict[str, int]]:
    return [{"source": s, "target": n} for n, node in document.numbered_nodes for s in dict.fromkeys(inputs_of(node))]


def _write_definition(one: KeptDefinition) -> dict[str, Any]:
    return {name: part.write(one) for name, part in _DEFINITION.items() if _is_written(name, one)}


def _is_written(name: str, one: KeptDefinition) -> bool:
    return one.function is not None if name == "batch" else getattr(one, name) not in (None, (), False)


_DEFINITION = {
    "columns": Field("columns", SCHEMA),
    "function": Field("function", TEXT),
    "batch": Field("batch", FLAG),
    "key": Field("key", list_of(TEXT)),
    "options": Field("options", Format(lambda options: dict(sorted(options.items())), by_name(TEXT).read)),
    "inline": Field("inline", FLAG),
}
"""The fields of a definition, of which a plan has those that say something."""


def checksums(data: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of each part of a plan, which does not depend on blanks or the order of names."""
    parts = {name: data[name] for name in _TOP[:-1] if name in data and name not in ("nodes", "lookupcache")}
    nodes = data.get("nodes")
    parts |= {f"nodes[{number}]": node for number, node in enumerate(nodes if isinstance(nodes, list) else [])}
    return {name: _hash(part) for name, part in parts.items()}


def _hash(part: Any) -> str:
    canonical = json.dumps(part, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


def read(text: str, source: str = "(in memory)") -> Document:
    """Return the plan of a text; raises CompiledPlanError, with the place, for a damaged, altered or newer one."""
    reader = PlanReader(_parse_json(text, source), "", source)
    _check_version(reader)
    reader.only(_TOP)
    _check_sums(reader)
    defaults = by_name(ANY).read(reader.entry("defaults"))
    nodes = tuple(read_node(item, defaults) for item in reader.entry("nodes").items())
    keeps = reader.entry("catalogObjects").one_of(KEEPS, "value")
    document = Document(
        keeps=keeps,
        settings=by_name(or_none(TEXT)).read(reader.entry("settings")),
        defaults=defaults,
        parameters=_read_parameters(reader.entry("parameters")),
        tables={name: _read_definition(one) for name, one in reader.entry("tables").entries().items()},
        functions={name: _read_definition(one) for name, one in reader.entry("functions").entries().items()},
        nodes=nodes,
        version=reader.entry("lookupcache").text(),
        source=source,
    )
    _check_graph(reader, document)
    return document


def _parse_json(text: str, source: str) -> Any:
    if len(text) > _MOST_LETTERS:
        raise PlanReader(None, "", source).wrong("it is too large to be a plan.")
    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique_fields)
        # Numbers that are too large became infinite, and escapes may be half of a letter: neither can be written.
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        return data
    except json.JSONDecodeError as error:
        ended = " The file ends too early." if error.pos >= len(text.rstrip()) else ""
        raise CompiledPlanError(
            f"Compiled plan {source}, line {error.lineno}, column {error.colno}: it is not JSON: {error.msg}.{ended}",
            hint="Compile the statement again, or restore the file from a copy.",
        ) from None
    except (RecursionError, ValueError) as error:
        raise PlanReader(None, "", source).wrong(f"it is not JSON: {error}.") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has the name {next(n for n in names if names.count(n) > 1)!r} twice")
    return found


def _check_version(reader: PlanReader) -> None:
    version = reader.entry("format").number()
    if not 1 <= version <= FORMAT:
        writer = reader.optional("lookupcache")
        by = f" by lookupcache {writer.data}" if writer is not None else ""
        raise reader.wrong(
            f"its format is {version}, written{by}; lookupcache {lookupcache.__version__} reads formats 1 to {FORMAT}.",
            "Run it with a lookupcache at least as new as the one that wrote it, or compile the statement again.",
        )


def _check_sums(reader: PlanReader) -> None:
    """Refuse a plan with a part that was altered after it was written, and so is not the tested one."""
    expected = {name: one.text() for name, one in reader.entry("checksums").entries().items()}
    found = checksums(reader.data)
    if set(expected) != set(found):
        raise reader.wrong(f"parts are missing or were added: {', '.join(sorted(set(expected) ^ set(found)))}.")
    altered = [name for name in found if found[name] != expected[name]]
    if altered:
        raise reader.wrong(f"{', '.join(altered)} was altered after the plan was compiled.")


def _read_parameters(reader: PlanReader) -> dict[str, Any]:
    """Return parameters by name as data, each null or a literal."""
    _ = by_name(or_none(LITERAL)).read(reader)
    return dict(by_name(ANY).read(reader))


def _read_definition(reader: PlanReader) -> KeptDefinition:
    reader.only(list(_DEFINITION))
    found = {name: reader.optional(name) for name in _DEFINITION}
    return KeptDefinition(**{n: _DEFINITION[n].format.read(one) for n, one in found.items() if one is not None})


def _check_graph(reader: PlanReader, document: Document) -> None:
    """Check that nodes are numbered, read only nodes before them, and name tables and functions that are there."""
    for (number, node), item in zip(document.numbered_nodes, reader.entry("nodes").items(), strict=True):
        if item.entry("id").number() != number:
            raise item.entry("id").wrong(f"it is not {number}.")
        for before in inputs_of(node):
            if not 1 <= before < number or isinstance(document.node(before), InsertNode):
                raise item.wrong(f"it reads node {before}, which is not a query before it.")
        for before in getattr(node, "stage", ()):
            if not 1 <= before < number:
                raise item.wrong(f"it shares its Python stage with node {before}, which is not before it.")
        use = getattr(node, "use", None)
        for name, known in (("table", document.tables), ("function", document.functions)):
            if hasattr(use, name) and getattr(use, name) not in known:
                raise item.entry("use").wrong(f"{name} {getattr(use, name)!r} is not in the plan.")
    if reader.entry("edges").data != _edges(document):
        raise reader.entry("edges").wrong("they are not those of the nodes.")
    if not document.inserts and not document.is_join:
        raise reader.entry("nodes").wrong("there is neither a statement nor a join to run.")
