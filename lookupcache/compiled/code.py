"""Functions of the user in a plan: ``module:name``, and never code."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from lookupcache.errors import CompiledPlanError

_CURE = (
    "Define it with def at the top of a module that can be imported here and in the workers. Or set "
    "'table.plan.compile.catalog-objects' to SCHEMA or IDENTIFIER, and register it before the plan is executed."
)


def name_of(function: Any, what: str) -> str:
    """Return ``module:name`` of a function or class; raises CompiledPlanError for one that has no such name.

    >>> from lookupcache.schema import parse_ddl
    >>> name_of(parse_ddl, "Table 't'")
    'lookupcache.schema:parse_ddl'
    >>> name_of(lambda key: [], "Table 't'")
    Traceback (most recent call last):
    lookupcache.errors.CompiledPlanError: Table 't' calls a function without a name that a plan could have: a lambda.
    <BLANKLINE>
    Hint: Define it with def at the top of a module that can be imported here and in the workers. Or set
    'table.plan.compile.catalog-objects' to SCHEMA or IDENTIFIER, and register it before the plan is executed.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    reason = _obstacle(function, module, name)
    if reason is not None:
        fact = f"{what} calls a function without a name that a plan could have: {reason}."
        raise CompiledPlanError(fact, hint=_CURE)
    return f"{module}:{name}"


def _obstacle(function: Any, module: str | None, name: str | None) -> str | None:
    """Return why a function has no name by which another program finds it; None if it has one."""
    if not module or not name:
        return f"an object of class {type(function).__name__}"
    if "<lambda>" in name:
        return "a lambda"
    if "<locals>" in name:
        return f"{name.rpartition('.')[2]!r} is defined inside of a function"
    if module == "__main__":
        return f"{name!r} is defined in __main__, which another program has not"
    if is_of_python(module):
        return f"{module}:{name} is of Python's own library; wrap it in a function of a module of yours"
    try:
        found = _find_attribute(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        return f"{module}:{name} cannot be imported: {error}"
    return None if found is function else f"{module}:{name} is something else"


def import_named(path: str, source: str) -> Any:
    """Return the function or class that a plan names.

    Raises CompiledPlanError if it is missing, is of Python's own library, or is only imported: a plan only runs
    functions that were written for lookups.
    """
    module, _, name = path.partition(":")
    if refused := refuse_name(path):
        raise CompiledPlanError(f"Compiled plan {source} names the function {path!r}: {refused}.", hint=_CURE)
    try:
        found = _find_attribute(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise CompiledPlanError(
            f"The function {path!r} of compiled plan {source} cannot be imported: {error}.",
            hint="The module must be importable here and in the workers; or register the function under the name that "
            "the plan has, and SET 'table.plan.restore.catalog-objects' = 'IDENTIFIER'.",
        ) from None
    if not callable(found) or (getattr(found, "__module__", ""), getattr(found, "__qualname__", "")) != (module, name):
        raise CompiledPlanError(
            f"{path!r} of compiled plan {source} is not a function that is defined in that module.",
            hint="A plan names the module in which a function is defined: compile the statement again.",
        )
    return found


def refuse_name(path: str) -> str | None:
    """Return why a plan may not name a function; None if it may."""
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        return "that is not 'module:name'"
    if is_of_python(module) or module == "__main__":
        return "functions of Python's own library are not called for a plan"
    return None


def is_of_python(module: str) -> bool:
    """Return whether a module is of Python's own library."""
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top in sys.builtin_module_names


def is_installed(path: str) -> bool:
    """Return whether the package of ``module:name`` can be found; nothing is imported."""
    try:
        return importlib.util.find_spec(path.partition(":")[0].partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _find_attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module
