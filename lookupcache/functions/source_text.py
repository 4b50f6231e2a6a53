"""The source text of modules: a hash that comments do not change, what a module imports, and its functions in order."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import io
import itertools
import os
import pathlib
import pkgutil
import re
import sys
import tokenize
import types
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from typing import Any

from lookupcache.functions.reached_code import Unit, units_of
from lookupcache.functions.variables_read import reads_unknown, variables_of_clients
from lookupcache.source_options import SHIPPED

_INSTALLED = SHIPPED | {"py4j", "pyspark"}
"""Packages that count by their names wherever they lie; Spark brings its own outside of ``site-packages``."""
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
"""The folder of Python's own modules."""
_SITES = frozenset(("site-packages", "dist-packages"))
"""Names of the folders where installers put packages."""
_IMPORTERS = frozenset(("import_module", "__import__", "resolve_name", "run_module"))
_MAKING, _MAKING_OPERATORS = ("BUILD_STRING", "CONVERT_VALUE", "FORMAT_"), frozenset(("+", "%", "+=", "%="))
_MAKING_NAMES = frozenset(("__name__", "format", "format_map", "join", "replace"))
"""Instructions, operators, methods and attributes that make a text."""
_LOADS = ("LOAD_ATTR", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_NAME")
_HIDING = frozenset(("__globals__", "__subclasses__", "f_globals", "getmodule", "iter_modules", "walk_packages"))
"""Names by which code may reach what nothing in its text leads to."""
_IMPORT = re.compile(r"\b(?:import|__import__)\b")
_MODULE_NAME = re.compile(r"(\.*)([A-Za-z_][\w.]*)(?::[\w.]*)?")
"""A module, and what is taken of it, as in ``shop.prices:price``."""
_TEXT_STARTS, _TEXT_ENDS = (
    {getattr(tokenize, f"{kind}_{end}", None) for kind in ("FSTRING", "TSTRING")} for end in ("START", "END")
)
"""Since Python 3.12 a formatted text is several tokens, between which blanks count, as in ``f"{n = }"``."""


Import = tuple[int, str, tuple[str, ...]]


@dataclass(frozen=True)
class ModuleText:
    """What the text of a module says.

    - ``digest``: a hash of its tokens, without comments and layout.
    - ``exact``: a hash of the whole text.
    - ``codes``: the code of its functions, class bodies and lambdas, in order.
    - ``imports``: per import its level, the module, and the names that are taken.
    - ``units``: its functions and bodies, with the environment variables that they read.
    - ``variables``: names of the variables that it reads, or their beginnings; None if a library of it reads any.
    """

    digest: str
    exact: str
    codes: tuple[types.CodeType, ...]
    imports: tuple[Import, ...]
    units: tuple[Unit, ...]
    variables: frozenset[str] | None


def is_own_module(name: str, packages: Collection[str] = ()) -> bool:
    """Return whether a module is of these packages, or is neither installed nor one of Python's or lookupcache's.

    >>> [is_own_module(name, {"jobs"}) for name in ("json", "jobs.prices", "lookupcache.table")]
    [False, True, False]
    """
    top = name.partition(".")[0]
    if top in _INSTALLED:
        return False
    file = _file_of(name)
    if top in sys.stdlib_module_names and top != "__main__":
        # A project may have a module of the same name as one of Python's, which is then imported in its place.
        return file.endswith(".py") and not file.startswith(_LIBRARY) and not _is_installed(file, top)
    return top in packages or not _is_installed(file, top)


def packages_of(name: str) -> frozenset[str]:
    """Return the package that a module is in, and the main script if that is of the same package.

    The script may be a module of an installed package, as by ``python -m shop.job``.

    >>> packages_of("shop.prices")
    frozenset({'shop'})
    """
    top = name.partition(".")[0]
    of_script = frozenset(filter(None, ("__main__", _package_with(_file_of("__main__")))))
    return of_script if top in of_script else frozenset((top,))


def _package_with(file: str) -> str | None:
    """Return the name of the installed package that a file is in, None if there is none."""
    folders = pathlib.PurePath(file).parents
    return next((one.name for one in folders if one.name and _is_top(one)), None)


def _is_top(folder: pathlib.PurePath) -> bool:
    """Return whether a folder is that of an installed package."""
    return folder.parent.name in _SITES or folder.name in _installed_in(str(folder.parent))


@functools.lru_cache(maxsize=1024)
def _is_installed(file: str, top: str) -> bool:
    """Return whether a file lies where installers put packages, or belongs to one that was installed into its folder.

    The latter is usual in images, archives and layers, by ``pip install --target``.
    """
    path = pathlib.PurePath(file)
    folder = next((one.parent for one in path.parents if one.name == top), path.parent)
    return not _SITES.isdisjoint(path.parts) or top in _installed_in(str(folder))


@functools.lru_cache(maxsize=256)
def _installed_in(folder: str) -> frozenset[str]:
    """Return the names of the folders and modules that were installed into a folder, or a zip file.

    ``RECORD`` has them, but not those of an editable installation; an ``egg-info`` is beside a checkout, too.
    """
    import importlib.metadata  # Here, since many applications have no module outside of site-packages.

    records = (one.read_text("RECORD") for one in importlib.metadata.distributions(path=[folder]))
    lines = itertools.chain.from_iterable(text.splitlines() for text in records if text)
    return frozenset(re.split("[/.,]", line, maxsplit=1)[0] for line in lines)


def text_of_module(name: str) -> ModuleText | None:
    """Return what the text of a module says; None if it cannot be read."""
    try:
        text = source_of(name)
        return None if text is None else _parsed(text)
    except Exception:  # A file that is no Python.
        return None


def source_of(name: str) -> str | None:
    """Return the text of a module as it is now, from its file or by its loader; None if it cannot be read."""
    try:
        file = _file_of(name)
        if pathlib.Path(file).is_file():
            with tokenize.open(file) as opened:
                return opened.read()
        spec = _spec_of(name)
        text: str | None = spec.loader.get_source(spec.name)  # type: ignore[union-attr]
        return text
    except Exception:  # Whatever a loader raises; a file that is no Python.
        return None


def exact_hash(text: str) -> str:
    """Return a hash of a whole text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def token_hash(text: str) -> str:
    """Return a hash of the tokens of a text, without comments and layout."""
    return hashlib.sha256(repr(list(_tokens(text))).encode("utf-8", "surrogatepass")).hexdigest()


def imported_modules(name: str, text: ModuleText) -> list[str]:
    """Return the full names of the modules that a module imports, with the packages that they are in."""
    package = getattr(sys.modules.get(name), "__package__", None)
    if package is None:
        spec = _spec_of(name)
        is_package = spec is not None and spec.submodule_search_locations is not None
        package = name if is_package else name.rpartition(".")[0]
    found = set()
    for full, taken in absolute(text.imports, package):
        found |= {full, *(f"{full}.{one}" for one in taken if one != "*")}
        found.update(full[:at] for at, letter in enumerate(full) if letter == ".")
    return sorted(one for one in found if _file_of(one))


def absolute(imports: Iterable[Import], package: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the full name of the module of each import, and the names that are taken; none from above the package."""
    for level, module, taken in imports:
        with suppress(ImportError):
            yield importlib.util.resolve_name("." * level + module, package), taken


@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> ModuleText:
    # No syntax tree: in Python 3.11, threads that make trees at the same time raise SystemError in each other.
    module = compile(text, "", "exec", dont_inherit=True)
    all_codes = tuple(codes_in(module))
    texts = frozenset(text for code in all_codes for text in _texts_in(code.co_consts))
    imports = [one for code in all_codes for one in imports_in(code)]
    if any(map(imports_by_text, all_codes)):  # A name is often in another function than what imports it.
        imports += _imports_named(texts)
    modules, units = [module for _, module, _ in imports], units_of(module)
    read = variables_of_clients(one.partition(".")[0] for one in modules).union(*(one.variables or () for one in units))
    hashes = token_hash(text), exact_hash(text)
    return ModuleText(*hashes, all_codes[1:], tuple(imports), units, None if reads_unknown(modules) else read)


def _tokens(text: str) -> Iterator[tuple[int, str, int, int]]:
    """Yield type and text of each token but for comments and layout, and the blanks before it in a formatted text."""
    depth, end = 0, (1, 0)
    for one in tokenize.generate_tokens(io.StringIO(text).readline):
        lines, blanks = (one.start[0] - end[0], one.start[1] - end[1]) if depth else (0, 0)
        depth += (one.type in _TEXT_STARTS) - (one.type in _TEXT_ENDS)
        end = one.end
        if one.type not in (tokenize.COMMENT, tokenize.NL):
            is_layout = one.type in (tokenize.NEWLINE, tokenize.INDENT)
            yield one.type, "" if is_layout else one.string, lines, blanks


@functools.lru_cache(maxsize=2048)
def imports_in(code: types.CodeType) -> tuple[Import, ...]:
    """Return each import, also those that call ``import_module`` with a text; those of functions within are not in it.

    The two instructions before a statement's own load the level and the names.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    found = [
        (level.argval, step.argval, taken.argval or ())
        for level, taken, step in zip(steps, steps[1:], steps[2:], strict=False)
        if step.opname == "IMPORT_NAME"
    ]
    named = _imports_named(_texts_in(code.co_consts)) if imports_by_text(code) else ()
    return (*found, *named)


@functools.lru_cache(maxsize=2048)
def hidden_reads(code: types.CodeType) -> str | None:
    """Return what code reads that its text does not lead to, None if nothing; functions within are not in it."""
    if found := _HIDING.intersection((*code.co_names, *_texts_in(code.co_consts))):
        return repr(min(found))
    if {"eval", "exec"} & {*code.co_names} and any(map(_IMPORT.search, _texts_in(code.co_consts))):
        return "a module that a text imports"
    if not {*code.co_names, *code.co_varnames, *code.co_freevars} & (_IMPORTERS | {"modules"}):
        return None
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    if any(one.argval == "sys" and after.argval == "modules" for one, after in itertools.pairwise(steps)):
        return "'sys.modules'"
    if any(_names(step) & _IMPORTERS for step in steps) and any(map(_makes_text, steps)):
        return "a module by a computed name"
    return None


def _makes_text(step: dis.Instruction) -> bool:
    """Return whether an instruction makes a text, or loads the method that makes it."""
    return (
        step.opname.startswith(_MAKING)
        or step.argrepr in _MAKING_OPERATORS
        or not _MAKING_NAMES.isdisjoint(_names(step))
    )


def _names(step: dis.Instruction) -> frozenset[str]:
    """Return the names of the variables or the attribute that an instruction loads."""
    return frozenset(_texts_in([step.argval]) if step.opname.startswith(_LOADS) else ())


def imports_by_text(code: types.CodeType) -> bool:
    """Return whether code imports modules whose names are values."""
    return not _IMPORTERS.isdisjoint(code.co_names)


def modules_named(texts: Iterable[str]) -> set[str]:
    """Return those of some texts that may be full names of modules, or paths to what is in them."""
    return {module for level, module, _ in _imports_named(texts) if not level and _file_of(module)}


def _imports_named(texts: Iterable[str]) -> Iterator[Import]:
    for match in filter(None, map(_MODULE_NAME.fullmatch, texts)):
        yield len(match[1]), match[2], ()


def _texts_in(constants: Iterable[Any]) -> Iterator[str]:
    """Yield the texts among constants of code, also those in tuples and sets, and bytes as texts."""
    for one in constants:
        if isinstance(one, str | bytes):
            yield one if isinstance(one, str) else one.decode("latin-1")
        elif isinstance(one, tuple | frozenset):
            yield from _texts_in(one)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code and those of the functions, class bodies and lambdas in it, in order."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from codes_in(one)


def _file_of(name: str) -> str:
    """Return the file of a module; empty if it has none, or there is no such module."""
    module = sys.modules.get(name)
    if isinstance(module, types.ModuleType):
        # While the interpreter exits, a script has no '__file__' any more.
        return str(vars(module).get("__file__") or getattr(vars(module).get("__loader__"), "path", ""))
    if module is not None:
        return ""
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
    package, _, _ = name.rpartition(".")
    if not package:
        return importlib.util.find_spec(name)
    above = _spec_of(package)
    return None if above is None else _submodule(name, above.submodule_search_locations or ())


def _submodule(name: str, folders: Iterable[str]) -> ModuleSpec | None:
    """Return where a module of a package is; Python's own search asks for loaded packages, where they have no file."""
    finders = filter(None, map(pkgutil.get_importer, folders))
    found = [spec for spec in (finder.find_spec(name) for finder in finders) if spec is not None]
    for spec in found:
        if spec.loader is not None:
            return spec
    if not found:
        return None
    without_file = ModuleSpec(name, None, is_package=True)
    without_file.submodule_search_locations = [one for spec in found for one in spec.submodule_search_locations or ()]
    return without_file
