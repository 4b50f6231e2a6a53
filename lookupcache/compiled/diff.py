"""The differences of two plans, and the meaning of each for a job that runs the second in place of the first.

A difference may affect the *result*, the *cache identity*, the *stream state* and the *source load*.
With the same cache identity, the second plan can use rows that were cached for the first. With the same stream state, a
stream can go on from its checkpoint. It is incompatible if result or stream state change, unknown if they may, and
otherwise compatible.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any
from typing import Literal as OneOf

from lookupcache.compiled.document import Document, to_json
from lookupcache.compiled.nodes import (
    AsOfLookupNode,
    CallUse,
    FullScanNode,
    InsertNode,
    LeftSideNode,
    LookupNode,
    Node,
    SparkQuery,
)
from lookupcache.config import LookupConfig

Verdict = OneOf["compatible", "unknown", "incompatible"]
Change = OneOf["may change", "changes"]

RESULT, CACHE, STATE, LOAD = "result", "cache identity", "stream state", "source load"

_MOST_LETTERS = 160


@dataclass(frozen=True)
class Difference:
    """A difference: its place in the plan, both values, its effects and the reason."""

    path: str
    before: Any
    after: Any
    effects: Mapping[str, Change]
    why: str

    @property
    def verdict(self) -> Verdict:
        """Whether the second plan can run in place of the first."""
        found = [self.effects[one] for one in (RESULT, STATE) if one in self.effects]
        return "incompatible" if "changes" in found else "unknown" if found else "compatible"

    def __str__(self) -> str:
        effects = "; ".join(f"{what} {change}" for what, change in self.effects.items()) or "nothing changes"
        values = f"    - {_short(self.before)}\n    + {_short(self.after)}"
        return f"{self.verdict:<12}  {self.path}: {self.why} ({effects})\n{values}"


@dataclass(frozen=True)
class Rule:
    """The meaning of a difference in a field."""

    why: str
    effects: Mapping[str, Change] = field(default_factory=dict)


def verdict_of(differences: Sequence[Difference]) -> Verdict:
    """Return the worst verdict of some differences; compatible without a difference."""
    found = {one.verdict for one in differences}
    return "incompatible" if "incompatible" in found else "unknown" if "unknown" in found else "compatible"


# ── rules of the fields ──────────────────────────────────────────────────────────────────────────────────

_LOOKED_UP: dict[str, Change] = {RESULT: "changes", CACHE: "changes", LOAD: "may change"}
_KEPT_ROWS: dict[str, Change] = {RESULT: "changes"}
_TEXT: dict[str, Change] = {RESULT: "may change"}
_INPUT: dict[str, Change] = {RESULT: "may change", STATE: "may change"}

RULES: dict[tuple[str, str], Rule] = {
    (LeftSideNode.TYPE, "output"): Rule("the left side has other columns", {RESULT: "changes", STATE: "may change"}),
    (SparkQuery.TYPE, "text"): Rule("Spark runs another text, which may mean the same", _INPUT),
    (SparkQuery.TYPE, "views"): Rule("the text reads the results of other nodes", _INPUT),
    (SparkQuery.TYPE, "names"): Rule("columns are named otherwise", {RESULT: "changes"}),
    (SparkQuery.TYPE, "streaming"): Rule("a stream is no batch", {RESULT: "changes", STATE: "changes"}),
    (SparkQuery.TYPE, "output"): Rule("the columns are others", {RESULT: "changes", STATE: "changes"}),
    (LookupNode.TYPE, "use"): Rule(
        "another table, function or hint is looked up", {**_LOOKED_UP, RESULT: "may change"}
    ),
    (LookupNode.TYPE, "alias"): Rule("the table has another name in the statement"),
    (LookupNode.TYPE, "input"): Rule("the left side is another node", _INPUT),
    (LookupNode.TYPE, "reads"): Rule("other columns of the table are read", {CACHE: "changes", LOAD: "may change"}),
    (LookupNode.TYPE, "joinType"): Rule("another kind of join keeps other rows", _KEPT_ROWS),
    (LookupNode.TYPE, "matches"): Rule("a left row is given other matches", _KEPT_ROWS),
    (LookupNode.TYPE, "keys"): Rule("rows are looked up by another key", _LOOKED_UP),
    (LookupNode.TYPE, "constants"): Rule("rows are looked up by another constant", _LOOKED_UP),
    (LookupNode.TYPE, "neverMatches"): Rule("whether anything can match", _LOOKED_UP),
    (LookupNode.TYPE, "leftFilter"): Rule("left rows pass another filter, which may mean the same", _TEXT),
    (LookupNode.TYPE, "preFilter"): Rule("rows are looked up by another filter, which may mean the same", _TEXT),
    (LookupNode.TYPE, "pushedFilters"): Rule("other filters are pushed", _LOOKED_UP),
    (LookupNode.TYPE, "calc"): Rule("other filters are applied before the cache", _LOOKED_UP),
    (LookupNode.TYPE, "cachedColumns"): Rule("other columns are cached", {CACHE: "changes", LOAD: "may change"}),
    (LookupNode.TYPE, "residual"): Rule("pairs of rows pass another filter", _KEPT_ROWS),
    (LookupNode.TYPE, "residualSql"): Rule("pairs of rows pass another filter, which may mean the same", _TEXT),
    (LookupNode.TYPE, "sparkResidual"): Rule("pairs of rows pass another filter, which may mean the same", _TEXT),
    (LookupNode.TYPE, "filterAfter"): Rule("joined rows pass another filter, which may mean the same", _TEXT),
    (LookupNode.TYPE, "leftColumns"): Rule("other left columns pass through the worker"),
    (LookupNode.TYPE, "select"): Rule("the columns of the join are others", {RESULT: "may change"}),
    (LookupNode.TYPE, "conditions"): Rule("the condition is written otherwise, or was planned otherwise"),
    (LookupNode.TYPE, "operators"): Rule("other operators, or other versions of them", {RESULT: "may change"}),
    (LookupNode.TYPE, "form"): Rule("another form gives the same rows", {LOAD: "may change"}),
    (LookupNode.TYPE, "stage"): Rule("joins share a Python stage, or no longer; the rows are the same"),
    (LookupNode.TYPE, "output"): Rule("the columns of the join are others", {RESULT: "may change"}),
    (AsOfLookupNode.TYPE, "latestVersion"): Rule("another column says which version is the latest", _KEPT_ROWS),
    (FullScanNode.TYPE, "use"): Rule("another table is read", {RESULT: "may change", LOAD: "may change"}),
    (FullScanNode.TYPE, "computed"): Rule("computed columns are written otherwise", _TEXT),
    (FullScanNode.TYPE, "output"): Rule("the columns are others", {RESULT: "may change"}),
    (InsertNode.TYPE, "head"): Rule("it writes otherwise", {RESULT: "changes"}),
    (InsertNode.TYPE, "sink"): Rule("it writes to another table", {RESULT: "changes", STATE: "changes"}),
    (InsertNode.TYPE, "sinkColumns"): Rule("the table that it writes to has other columns", {RESULT: "may change"}),
    (InsertNode.TYPE, "input"): Rule("it writes the result of another node", _INPUT),
    (InsertNode.TYPE, "queryName"): Rule("the checkpoint of the stream is in another folder", {STATE: "changes"}),
    (InsertNode.TYPE, "output"): Rule("the columns are others", {RESULT: "changes", STATE: "changes"}),
}
"""The rules of the fields of nodes; options have `OPTION_RULES`. A filter that only moves changes no result."""

RULES |= {(AsOfLookupNode.TYPE, name): rule for (type_, name), rule in RULES.items() if type_ == LookupNode.TYPE}

_CHANGES: dict[str, Rule] = {
    "age": Rule("rows may be older or newer", {RESULT: "may change", CACHE: "changes", LOAD: "changes"}),
    "cache": Rule("less or more is cached", {CACHE: "changes", LOAD: "changes"}),
    "calls": Rule("calls are made otherwise; the rows are the same", {CACHE: "changes", LOAD: "may change"}),
    "failures": Rule(
        "lookups fail, or are tried again, in other cases", {RESULT: "may change", CACHE: "changes", LOAD: "may change"}
    ),
    "columns": Rule("columns are added or named otherwise", {RESULT: "changes", CACHE: "changes", STATE: "may change"}),
    "versions": Rule(
        "other columns say when a row is valid; the conditions of the plan do not change", {CACHE: "changes"}
    ),
    "form": Rule("rows pass another way; they are the same", {CACHE: "changes"}),
    "order": Rule("the order of rows", {RESULT: "may change", CACHE: "changes"}),
    "failed rows": Rule("rows whose lookup failed", {RESULT: "changes", CACHE: "changes"}),
    "dead letters": Rule("dead letters are written elsewhere", {RESULT: "may change", CACHE: "changes"}),
}
OPTION_RULES: dict[str, Rule] = {
    option.metadata["key"]: _CHANGES[option.metadata["change"]] for option in dataclasses.fields(LookupConfig)
}
"""The rules of options; every option changes the identity of the cache."""

_UNKNOWN_OPTION = Rule("an option that is not known here", {RESULT: "may change", CACHE: "changes"})


# ── comparing ────────────────────────────────────────────────────────────────────────────────────────────


def differences(before: Document, after: Document) -> list[Difference]:
    """Return the differences of two plans, the outermost first."""
    return [*_of_top(before, after), *_of_nodes(before, after)]


def _of_top(before: Document, after: Document) -> Iterator[Difference]:
    a, b = to_json(before), to_json(after)
    rules = {
        "lookupcache": Rule("compiled by another version, which the plan does not depend on"),
        "catalogObjects": Rule("other parts of tables and functions are in the plan"),
    }
    for name, rule in rules.items():
        if a[name] != b[name]:
            yield Difference(name, a[name], b[name], rule.effects, rule.why)
    yield from _of_entries("settings", a, b, Rule("a setting changes what texts mean", {RESULT: "may change"}))
    yield from _of_entries("parameters", a, b, Rule("a parameter has another value", {RESULT: "changes"}))
    for name in ("tables", "functions"):
        for one in sorted({*a[name], *b[name]}):
            yield from _of_definition(f"{name}.{one}", a[name].get(one, {}), b[name].get(one, {}))


def _of_entries(name: str, a: Mapping[str, Any], b: Mapping[str, Any], rule: Rule) -> Iterator[Difference]:
    for key in sorted({*a[name], *b[name]}):
        if a[name].get(key) != b[name].get(key):
            yield Difference(f"{name}.{key}", a[name].get(key), b[name].get(key), rule.effects, rule.why)


_DEFINITIONS = {
    "columns": Rule("the table has other columns", {RESULT: "may change", CACHE: "changes"}),
    "options": Rule("another source, or the same reached otherwise", {**_LOOKED_UP, RESULT: "may change"}),
    "function": Rule("another function is called", {**_LOOKED_UP, RESULT: "may change"}),
    "key": Rule("the function is called with other columns", {**_LOOKED_UP, RESULT: "may change"}),
    "batch": Rule("the function is called otherwise", _LOOKED_UP),
    "inline": Rule("the table is the join's own, or the catalog's", {RESULT: "may change"}),
}


def _of_definition(path: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for name, rule in _DEFINITIONS.items():
        if a.get(name) == b.get(name):
            continue
        if name == "options" and name in a and name in b:
            for key in sorted(k for k in {*a[name], *b[name]} if a[name].get(k) != b[name].get(k)):
                values = a[name].get(key), b[name].get(key)
                yield Difference(f"{path}.options.{key}", *values, rule.effects, rule.why)
        else:
            yield Difference(f"{path}.{name}", a.get(name), b.get(name), rule.effects, rule.why)


def _of_nodes(before: Document, after: Document) -> Iterator[Difference]:
    """Compare nodes that correspond, in the order of the plans; others were added or removed."""
    a, b = [_signature(node) for node in before.nodes], [_signature(node) for node in after.nodes]
    matched: dict[int, int] = {}
    steps = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    for kind, a_start, a_end, b_start, _ in steps:
        if kind == "equal":
            matched |= {a_start + n + 1: b_start + n + 1 for n in range(a_end - a_start)}
    for number, node in before.numbered_nodes:
        if number not in matched:
            yield _of_one(number, node, "removed")
    for number, node in after.numbered_nodes:
        if number not in matched.values():
            yield _of_one(number, node, "added")
    texts = to_json(before)["nodes"], to_json(after)["nodes"]
    for first, second in matched.items():
        yield from _of_pair(
            _Pair(before, after, before.node(first), texts[0][first - 1], texts[1][second - 1], matched)
        )


def _signature(node: Node) -> tuple[Any, ...]:
    if isinstance(node, LookupNode):
        return (node.TYPE, node.use.function if isinstance(node.use, CallUse) else node.use.table)
    return (node.TYPE, node.sink) if isinstance(node, InsertNode) else (node.TYPE,)


def _of_one(number: int, node: Node, what: str) -> Difference:
    effects, why = _INPUT, f"a node was {what}"
    if isinstance(node, LookupNode):
        effects = {RESULT: "may change", CACHE: "changes", LOAD: "changes"}
        why = f"a lookup was {what}; it has no state"
    if isinstance(node, InsertNode):
        effects, why = {RESULT: "changes"}, f"a statement was {what}"
    text = _signature(node)
    return Difference(
        f"node {number}", text if what == "removed" else None, text if what == "added" else None, effects, why
    )


@dataclass(frozen=True)
class _Pair:
    """Two nodes that correspond, as data and as JSON, and which nodes correspond to which."""

    before: Document
    after: Document
    node: Node
    a: Mapping[str, Any]
    b: Mapping[str, Any]
    matched: Mapping[int, int]

    def renumber_field(self, name: str, value: Any) -> Any:
        """Return a field of the first node with ids of the second plan."""
        if name in ("input", "stage", "views"):
            ids = self.matched
            if isinstance(value, Mapping):
                return {key: ids.get(one, f"removed {one}") for key, one in value.items()}
            return [ids.get(one, f"removed {one}") for one in value] if isinstance(value, list) else ids.get(value)
        return value


def _of_pair(pair: _Pair) -> Iterator[Difference]:
    where = f"node {pair.a['id']} ({pair.node.TYPE})"
    moved = _filters(pair.a) == _filters(pair.b)
    for name in pair.a:
        a, b = pair.renumber_field(name, pair.a[name]), pair.b.get(name)
        if name in ("id", "type", "description") or a == b or _blanks(name, a) == _blanks(name, b):
            continue
        if name == "configuration":
            yield from _of_options(where, pair)
            continue
        rule = RULES[pair.node.TYPE, name]
        if moved and name in ("pushedFilters", "calc", "residual", "residualSql"):
            rule = Rule("the same filters are applied elsewhere", {CACHE: "changes", LOAD: "may change"})
        yield Difference(f"{where}.{name}", a, b, rule.effects, rule.why)
    if "configuration" in pair.a and pair.a["configuration"] == pair.b["configuration"]:
        yield from _of_options(where, pair)  # defaults may differ


def _filters(node: Mapping[str, Any]) -> list[str]:
    """Return all filters of a lookup whose expressions are known, wherever they are applied."""
    found = [one for name in ("pushedFilters", "calc", "residual") for one in node.get(name, ())]
    return sorted(json.dumps(one) for one in found)


def _blanks(name: str, value: Any) -> Any:
    return " ".join(value.split()) if name in ("text", "head") and isinstance(value, str) else value


def _of_options(where: str, pair: _Pair) -> Iterator[Difference]:
    """Compare the options of two nodes, with the defaults of the lookupcache that made each plan."""
    a = {**pair.before.defaults, **pair.a["configuration"]}
    b = {**pair.after.defaults, **pair.b["configuration"]}
    for key in sorted({*a, *b}):
        if a.get(key) == b.get(key):
            continue
        if (key in a) != (key in b) and key not in pair.a["configuration"] and key not in pair.b["configuration"]:
            continue  # an option that one of them did not have, with its default in the other
        rule = OPTION_RULES.get(key, _UNKNOWN_OPTION)
        yield Difference(f"{where}.configuration.{key}", a.get(key), b.get(key), rule.effects, rule.why)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
