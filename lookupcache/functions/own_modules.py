"""Which modules are a user's own, so that their code is followed, and the code of their files."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import pathlib
import sys
import types
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from lookupcache.functions.bytecode import Bytecode
from lookupcache.source_options import SHIPPED


def is_own_module(module: str, package: str) -> bool:
    """Return whether a module is of a package, or is neither installed nor one of Python's or lookupcache's.

    >>> is_own_module("json", "jobs"), is_own_module("jobs.prices", "jobs"), is_own_module("lookupcache.table", "jobs")
    (False, True, False)
    """
    top = module.partition(".")[0]
    if top in SHIPPED or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    if top == package:
        return True
    return not _is_installed(attribute_of_module(module, "__file__"), module, package)


def attribute_of_module(module: str, name: str) -> Any:
    """Return what an imported module has by a name, without its ``__getattr__``; None if there is none."""
    found = sys.modules.get(module)
    return vars(found).get(name) if issubclass(type(found), types.ModuleType) else None


def _is_installed(file: str | None, module: str, package: str) -> bool:
    if file is None or module.partition(".")[0] == package:
        return False
    return not {"site-packages", "dist-packages"}.isdisjoint(pathlib.PurePath(file).parts)


@dataclasses.dataclass(frozen=True)
class Module:
    """The code of a module's file, and the full names of the modules that it imports."""

    name: str
    code: Bytecode
    imports: list[str]


def module_of_file(name: str, package: str) -> Module | None:
    """Return the code of a module's file; None if there is none, or it is installed."""
    try:
        spec = _spec_of(name)
        if spec is None or spec.origin is None or _is_installed(spec.origin, name, package):
            return None  # Or a package without a file.
        compiled = spec.loader.get_code(name)  # type: ignore[union-attr]
    except Exception:  # Whatever a loader raises.
        return None
    if not isinstance(compiled, types.CodeType):
        return None
    code = Bytecode.of(compiled)
    parent = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    return Module(name, code, imported_modules(code, parent))


def imported_modules(code: Bytecode, package: str) -> list[str]:
    """Return the full names of the modules that code imports, with the packages that they are in."""
    found = set()
    for level, name, taken in code.imports:
        try:
            full = importlib.util.resolve_name("." * level + name, package)
        except ImportError:
            continue
        found |= {full, *(f"{full}.{one}" for one in taken)}
        found.update(full[:at] for at, letter in enumerate(full) if letter == ".")
    return sorted(found)


def _spec_of(name: str) -> ModuleSpec | None:
    """Return where a module is, without importing the packages that it is in; None if it is not found."""
    spec: ModuleSpec | None = attribute_of_module(name, "__spec__")
    if spec is not None:
        return spec
    path = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), path)
        if spec is None or (end < len(parts) and spec.submodule_search_locations is None):
            return None
        path = spec.submodule_search_locations
    return spec


def module_of(value: Any) -> str:
    """Return the name of the module of a function, a class, or an object's class; empty if it has none."""
    while issubclass(type(value), functools.partial | types.MethodType):
        value = value.func if issubclass(type(value), functools.partial) else value.__func__
    named = value if issubclass(type(value), type | types.FunctionType) else type(value)
    try:
        return str(named.__module__)
    except Exception:  # Of a metaclass.
        return ""
