"""Bytecode of a function without what does not change its meaning, and the names in it: what it reads and changes."""

from __future__ import annotations

import dis
import json
import sys
from dataclasses import dataclass
from types import CodeType
from typing import Any

_UNUSED_IN_CLASSES = {"__doc__", "__firstlineno__", "__static_attributes__", "__module__", "__qualname__"}
_CACHE, _EXTENDED_ARG, _STORE_NAME = dis.opmap.get("CACHE", -1), dis.EXTENDED_ARG, dis.opmap["STORE_NAME"]
_CONSTANT = frozenset(dis.hasconst)
_READS_GLOBAL = frozenset(
    dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)
_IMPORT_NAME, _LOAD_SMALL_INT = dis.opmap["IMPORT_NAME"], dis.opmap.get("LOAD_SMALL_INT", -1)
_LOAD_GLOBAL, _STORE_ATTR = dis.opmap["LOAD_GLOBAL"], dis.opmap["STORE_ATTR"]
_WRITES_GLOBAL = frozenset((dis.opmap["STORE_GLOBAL"], dis.opmap["DELETE_GLOBAL"]))
_NAMED = dict.fromkeys(dis.hasname, 0) | {_LOAD_GLOBAL: 1}
"""By how many bits the number of a name is shifted."""
if sys.version_info >= (3, 12):
    _NAMED |= {dis.opmap["LOAD_ATTR"]: 1, dis.opmap["LOAD_SUPER_ATTR"]: 2}
_KINDS = 0x0004 | 0x0008 | 0x0020 | 0x0080 | 0x0200  # *args, **kwargs, generators, coroutines, async generators

_MUTATING = frozenset(
    (
        "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
        "setdefault", "update",
    )
)  # fmt: skip
_WRITES_ITEM = frozenset((dis.opmap["STORE_SUBSCR"], dis.opmap["DELETE_SUBSCR"]))


@dataclass
class Bytecode:
    """Bytecode as JSON data, and the names in it, those of code inside of it too.

    - ``reads``, ``assigns``: globals; ``stores``: attributes.
    - ``imports``: modules: by how many levels they are relative, their name, and the names that are taken from them.
    - ``fills_globals``, ``fills_attributes``: what has items assigned, or a method called that adds or removes some.
    """

    token: Any
    names: set[str]
    reads: set[str]
    assigns: set[str]
    stores: set[str]
    imports: set[tuple[int, str, tuple[str, ...]]]
    fills_globals: set[str]
    fills_attributes: set[str]

    @classmethod
    def of(cls, code: CodeType) -> Bytecode:
        reads: set[str] = set()
        assigns: set[str] = set()
        stores: set[str] = set()
        imports: set[tuple[int, str, tuple[str, ...]]] = set()
        loaded: list[Any] = []  # Constants, of which the last two are the arguments of an import.
        steps: list[Any] = []
        inner: list[Bytecode] = []
        more, writes_item = 0, False
        raw, names = code.co_code, code.co_names
        for op, low in zip(raw[::2], raw[1::2], strict=True):
            if op == _CACHE:
                continue
            argument = more | low
            if op == _EXTENDED_ARG:
                more = argument << 8
                continue
            more = 0
            if op in _CONSTANT:
                constant = code.co_consts[argument]
                loaded.append(constant)
                if isinstance(constant, CodeType):
                    inner.append(cls.of(constant))
                    steps.append([op, inner[-1].token])
                else:
                    steps.append([op, _constant(constant)])
                continue
            if op not in _NAMED:
                writes_item |= op in _WRITES_ITEM
                if op == _LOAD_SMALL_INT:
                    loaded.append(argument)
                steps.append([op, argument])
                continue
            # By name: a docstring of a class changes the numbers of the others.
            name, flags = names[argument >> _NAMED[op]], argument & ((1 << _NAMED[op]) - 1)
            if op == _STORE_NAME and name in _UNUSED_IN_CLASSES:
                steps.pop()  # Its value, such as a docstring, or the number of a line.
                continue
            if op in _READS_GLOBAL:
                reads.add(name)
            elif op in _WRITES_GLOBAL:
                assigns.add(name)
            elif op == _STORE_ATTR:
                stores.add(name)
            elif op == _IMPORT_NAME:
                imports.add((loaded[-2], name, loaded[-1] or ()))
            steps.append([op, name, flags])
        token = [
            steps, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags & _KINDS,
            [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount], code.co_exceptiontable.hex(),
        ]  # fmt: skip
        fills_globals, fills_attributes = _filled(code) if writes_item or _MUTATING.intersection(names) else ((), ())
        return cls(
            token,
            set(names).union(*(one.names for one in inner)),
            reads.union(*(one.reads for one in inner)),
            assigns.union(*(one.assigns for one in inner)),
            stores.union(*(one.stores for one in inner)),
            imports.union(*(one.imports for one in inner)),
            set(fills_globals).union(*(one.fills_globals for one in inner)),
            set(fills_attributes).union(*(one.fills_attributes for one in inner)),
        )


def _constant(value: Any) -> Any:
    if type(value) is tuple:
        return ["tuple", *map(_constant, value)]
    if type(value) is frozenset:
        # The order in which a set shows its items is another in each process.
        return ["frozenset", *sorted(map(_constant, value), key=json.dumps)]
    return [type(value).__name__, hex(value) if type(value) is int else repr(value)]


def _filled(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names of the globals and of the attributes whose items are assigned, or whose ``append`` is called."""
    steps = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "EXTENDED_ARG")]
    found: tuple[set[str], set[str]] = (set(), set())
    for number, step in enumerate(steps):
        at = -1
        if step.opcode in _WRITES_ITEM:
            at = _before(steps, number)
        elif step.opname.startswith("BINARY_") and [one.opname for one in steps[max(number - 2, 0) : number]] == [
            "COPY", "COPY",
        ]:  # fmt: skip
            at = _before(steps, number - 2)  # As in x[key] += 1.
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in _MUTATING:
            at = number - 1
        if at >= 0 and steps[at].opname == "LOAD_GLOBAL":
            found[0].add(steps[at].argval)
        elif at >= 0 and steps[at].opname == "LOAD_ATTR":
            found[1].add(steps[at].argval)
    return found


def _before(steps: list[dis.Instruction], end: int) -> int:
    """Return the position of the step before those that computed the last value; -1 if they are not in a line."""
    pushed = 0
    for at in range(end - 1, -1, -1):
        step = steps[at]
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            return -1
        pushed += dis.stack_effect(step.opcode, step.arg if step.opcode >= dis.HAVE_ARGUMENT else None)
        if pushed == 1:
            return at - 1
    return -1
