"""Whether a worker runs the code that the driver planned with: it imports modules itself, whose files may be edited."""

from __future__ import annotations

import os
import sys
import time
import types
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lookupcache.connector import PROCESS
from lookupcache.errors import LookupAdvice
from lookupcache.functions.source_text import codes_in, exact_hash, is_own_module, source_of, token_hash


def _start_of(process: int) -> float:
    """Return when a process started, by the clock of file systems; now, where the system does not say."""
    now = time.time()
    try:
        ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
        return now - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return now


def _command_of(process: int) -> bytes | None:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return None


_FORKED = [os.getppid()] if _command_of(os.getpid()) == _command_of(os.getppid()) is not None else []
"""The parent, if this process is a fork of it: the daemon that forks workers may have loaded modules before."""
_TICK = 0.02
"""The clocks of processes and of files count in steps."""
STARTED = min(map(_start_of, (os.getpid(), *_FORKED))) + _TICK
"""When this process started, or the one that it is a fork of."""

_same: dict[str, tuple[Any, str]] = {}
"""By module, the load of it (its ``__spec__``) whose text was that of the driver, and the hash of that text."""

_warned = set[str]()
"""The warnings that were given."""


def has_other_code(process: str, texts: Iterable[tuple[str, str, str]], subject: str, used: str) -> bool:
    """Return whether this process has other modules than the process where their texts were read; warns then, once.

    Args:
        process: The `PROCESS` where the texts were read.
        texts: Those of a `CodeIdentity`.
        subject: The beginning of the warning: what shares nothing.
        used: What was done with those modules, as "the driver has planned".
    """
    module = None if process == PROCESS else changed_module(texts)
    advice = (
        f"{subject} with others, because its module {module!r} is not the one with which {used}: the file was edited, "
        "or differs between the machines.\n\nHint: Start the application again after a deployment."
    )
    if module is not None and advice not in _warned:
        _warned.add(advice)
        warnings.warn(advice, LookupAdvice, stacklevel=3)
    return module is not None


def changed_module(texts: Iterable[tuple[str, str, str]]) -> str | None:
    """Return the first module whose text differs here, or may have been edited since it was loaded here, else None.

    ``texts`` is that of a `CodeIdentity`. A module without a text here counts as the same.
    """
    return next((name for name, exact, tokens in texts if _is_changed(name, exact, tokens)), None)


def _is_changed(name: str, exact: str, tokens: str) -> bool:
    text, module = source_of(name), sys.modules.get(name)
    if text is None:
        return False
    if exact_hash(text) != exact:
        try:
            is_other = token_hash(text) != tokens
        except Exception:  # A file that is no Python.
            is_other = True
        if is_other:  # The driver imports more than a worker does, where an installed package may have that name.
            return module is not None or is_own_module(name)
    if not isinstance(module, types.ModuleType):
        return False
    load = getattr(module, "__spec__", None)
    known_load, known = _same.get(name, (None, tokens))
    if load is not None and load is known_load:
        return known != tokens
    if _is_newer(module) or not _is_of_text(module, text):
        return True
    _same[name] = load, tokens
    return False


def _is_newer(module: types.ModuleType) -> bool:
    """Return whether a module's file was changed after this process started, maybe after it loaded the module."""
    try:
        return os.stat(str(module.__file__)).st_ctime > STARTED
    except (AttributeError, OSError):  # It has none, or is in an archive.
        return False


def _is_of_text(module: types.ModuleType, text: str) -> bool:
    """Return whether the functions of a module are those of a text; what has no name in the text is generated."""
    by_name: dict[str, list[types.CodeType]] = {}
    for code in codes_in(compile(text, "", "exec", dont_inherit=True)):
        by_name.setdefault(code.co_qualname, []).append(_without_lines(code))
    codes = [function.__code__ for function in _functions_of(module)]
    return all(_without_lines(one) in by_name[one.co_qualname] for one in codes if one.co_qualname in by_name)


def _without_lines(code: types.CodeType) -> types.CodeType:
    """Return code without its place in the text, which an edited comment changes."""
    constants = tuple(_without_lines(one) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    return code.replace(co_firstlineno=1, co_linetable=b"", co_consts=constants)


def _functions_of(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yield the functions that a module defines, those of its classes, and those in decorators."""
    left, met = list(vars(module).values()), set[int]()
    while left:
        value = left.pop()
        if id(value) in met:
            continue
        met.add(id(value))
        if isinstance(value, type):
            if value.__module__ == module.__name__:
                left += vars(value).values()
        elif isinstance(value, property):
            left += [value.fget, value.fset, value.fdel]
        elif isinstance(value, staticmethod | classmethod):
            left.append(value.__func__)
        else:
            if isinstance(value, types.FunctionType) and value.__globals__ is vars(module):
                yield value
            with suppress(Exception):  # Not by getattr, which loads what a lazy object stands for.
                left.append(object.__getattribute__(value, "__dict__")["__wrapped__"])
