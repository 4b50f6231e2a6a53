"""The source text of modules: a hash that comments do not change, what a module imports, and its functions in order."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import io
import pathlib
import sys
import tokenize
import types
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder

from lookupcache.source_options import SHIPPED

_INSTALLED = SHIPPED | {"py4j", "pyspark"}
"""Packages that count by their names wherever they lie; Spark brings its own outside of ``site-packages``."""


@dataclass(frozen=True)
class ModuleText:
    """What the text of a module says.

    - ``digest``: a hash of its tokens, without comments and layout.
    - ``codes``: the code of its functions, class bodies and lambdas, in order.
    - ``imports``: per import statement its level, the module, and the names that are taken.
    """

    digest: str
    codes: tuple[types.CodeType, ...]
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]


def is_own_module(name: str, package: str = "") -> bool:
    """Return whether a module is of a package, or is neither installed nor one of Python's or lookupcache's.

    >>> is_own_module("json", "jobs"), is_own_module("jobs.prices", "jobs"), is_own_module("lookupcache.table", "jobs")
    (False, True, False)
    """
    top = name.partition(".")[0]
    if top in _INSTALLED or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    return top == package or {"site-packages", "dist-packages"}.isdisjoint(pathlib.PurePath(_file_of(name)).parts)


def text_of_module(name: str) -> ModuleText | None:
    """Return what the text of a module says; None if it cannot be read."""
    try:
        file = _file_of(name)
        if pathlib.Path(file).is_file():
            with tokenize.open(file) as opened:
                return _parsed(opened.read())
        spec = _spec_of(name)
        text = spec.loader.get_source(spec.name)  # type: ignore[union-attr]
        return _parsed(text)
    except Exception:  # Whatever a loader raises; a file that is no Python.
        return None


def imported_modules(name: str, text: ModuleText) -> list[str]:
    """Return the full names of the modules that a module imports, with the packages that they are in."""
    package = getattr(sys.modules.get(name), "__package__", None)
    if package is None:
        spec = _spec_of(name)
        is_package = spec is not None and spec.submodule_search_locations is not None
        package = name if is_package else name.rpartition(".")[0]
    found = set()
    for level, module, taken in text.imports:
        try:
            full = importlib.util.resolve_name("." * level + module, package)
        except ImportError:
            continue
        found |= {full, *(f"{full}.{one}" for one in taken if one != "*")}
        found.update(full[:at] for at, letter in enumerate(full) if letter == ".")
    return sorted(one for one in found if _file_of(one))


@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> ModuleText:
    # No syntax tree: in Python 3.11, threads that make trees at the same time raise SystemError in each other.
    module = compile(text, "", "exec", dont_inherit=True)
    codes = tuple(_codes_in(module))
    tokens = [
        (one.type, one.string if one.string.strip() else "")
        for one in tokenize.generate_tokens(io.StringIO(text).readline)
        if one.type not in (tokenize.COMMENT, tokenize.NL)
    ]
    imports = tuple(one for code in (module, *codes) for one in _imports_in(code))
    return ModuleText(hashlib.sha256(repr(tokens).encode("utf-8", "surrogatepass")).hexdigest(), codes, imports)


def _imports_in(code: types.CodeType) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the level, module and names of each import; the two instructions before it load the level and the names."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for level, taken, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            yield level.argval, step.argval, taken.argval or ()


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield one
            yield from _codes_in(one)


def _file_of(name: str) -> str:
    """Return the file of a module; empty if it has none, or there is no such module."""
    module = sys.modules.get(name)
    if module is not None:
        return str(vars(module).get("__file__") or "") if isinstance(module, types.ModuleType) else ""
    try:
        spec = _spec_of(name)
    except Exception:  # Whatever a finder raises.
        return ""
    return spec.origin or "" if spec is not None and spec.has_location else ""


def _spec_of(name: str) -> ModuleSpec | None:
    """Return where a module is, without importing the packages that it is in; None if it is not found."""
    spec: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
    if spec is not None or name in sys.modules:
        return spec
    path = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), path)
        if spec is None or (end < len(parts) and spec.submodule_search_locations is None):
            return None
        path = spec.submodule_search_locations
    return spec
