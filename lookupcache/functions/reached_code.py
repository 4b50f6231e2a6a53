"""Which code of a project runs if a function is called, as far as names say: all that may, so that none is missed."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lookupcache.functions.variables_read import variables_in

_USES = ("IMPORT_FROM", "LOAD_ATTR", "LOAD_DEREF", "LOAD_FAST", "LOAD_FROM", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_NAME")


@dataclass(frozen=True)
class Unit:
    """A function of a module, or code that runs when the module is imported: its body, or that of a class.

    ``uses`` are the names by which it may call functions. ``variables`` are those that it reads; None if it may read
    others. Functions within a function belong to its unit, and so do lambdas.
    """

    name: str
    runs_at_import: bool
    uses: frozenset[str]
    variables: frozenset[str] | None


def units_of(module: types.CodeType) -> tuple[Unit, ...]:
    """Return the units of a module's code; a module's body has an empty name."""
    found: list[Unit] = []
    _add_units(module, found)
    return tuple(found)


def _add_units(code: types.CodeType, found: list[Unit]) -> None:
    is_body = not code.co_flags & inspect.CO_OPTIMIZED
    own, left = [code], [one for one in code.co_consts if isinstance(one, types.CodeType)]
    while left:
        one = left.pop()
        if is_body and not one.co_name.startswith("<"):
            _add_units(one, found)
        else:
            own.append(one)
            left += [inner for inner in one.co_consts if isinstance(inner, types.CodeType)]
    read = [variables_in(one) for one in own]
    variables = None if None in read else frozenset[str]().union(*filter(None, read))
    uses = {name for one in own for name in (*one.co_names, *one.co_varnames, *one.co_freevars, *one.co_cellvars)}
    if is_body:  # It stores the names of the functions that it defines.
        steps = [step for one in own for step in dis.get_instructions(one)]
        uses = {str(step.argval) for step in steps if step.opname.startswith(_USES)}
    name = code.co_name
    is_hook = name.startswith("_") and name.endswith("_") and not name.startswith("__")  # Which the class Enum calls.
    found.append(Unit(code.co_qualname.removeprefix("<module>"), is_body or is_hook, frozenset(uses), variables))


_ANY_FUNCTION = frozenset(("getattr", "globals", "eval", "exec", "vars", "__dict__", "attrgetter", "methodcaller"))
"""Names by which code may call any function."""


def computing_unit(modules: Mapping[str, Iterable[Unit]], called: Iterable[types.CodeType]) -> str | None:
    """Return the name of a unit that reads variables by computed names, and that imports or calls may reach, else None.

    ``called`` is the code of functions that are called. A unit is reached if a unit that runs uses its name.
    """
    called, left = list(called), [(module, unit) for module, units in modules.items() for unit in units]
    if found := next((code.co_qualname for code in called if variables_in(code) is None), None):
        return found
    names = {name for code in called for name in (code.co_name, *code.co_names, *code.co_varnames, *code.co_freevars)}
    while True:
        reached = [(module, unit) for module, unit in left if unit.runs_at_import or _is_named(unit, names)]
        if found := next((f"{module}.{unit.name}" for module, unit in reached if unit.variables is None), None):
            return found.rstrip(".")  # The body of a module has no name.
        if not reached:
            return None
        met = {id(unit) for _, unit in reached}
        left = [(module, unit) for module, unit in left if id(unit) not in met]
        names = names.union(*(unit.uses for _, unit in reached))


def _is_named(unit: Unit, names: Collection[str]) -> bool:
    """Return whether code that uses some names may call a unit: by its name, or as a method by that of its class.

    Python calls methods such as ``__init__``, and libraries those that a class overrides.
    """
    within, _, name = unit.name.rpartition(".")
    of_class = within.rpartition(".")[2]
    return name in names or (of_class != "" and of_class in names) or not _ANY_FUNCTION.isdisjoint(names)
