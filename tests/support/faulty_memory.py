"""Memory that cannot be allocated: every allocation of NumPy's arrays is counted, and may be refused.

NumPy lets a program replace its allocator, for the present context, by a structure of C functions. Those of this module
are Python's, so that the n-th allocation can return nothing, as at the end of the memory: NumPy then raises MemoryError
where it stands, also within an expression.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import audit
import numpy as np

from lookupcache.cache import appended_rows

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
# Called with the interpreter's lock: NumPy's own functions release it.
_MALLOC = ctypes.PYFUNCTYPE(_POINTER, _POINTER, _SIZE)
_CALLOC = ctypes.PYFUNCTYPE(_POINTER, _POINTER, _SIZE, _SIZE)
_REALLOC = ctypes.PYFUNCTYPE(_POINTER, _POINTER, _POINTER, _SIZE)
_FREE = ctypes.PYFUNCTYPE(None, _POINTER, _POINTER, _SIZE)
_SET_HANDLER, _GET_HANDLER = 304, 305
"""The numbers of ``PyDataMem_SetHandler`` and ``PyDataMem_GetHandler`` in NumPy's table of C functions, which stay."""


class _Handler(ctypes.Structure):
    """NumPy's ``PyDataMem_Handler``."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", _POINTER),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", _FREE),
    )


def _c_function(result: Any, name: str, *arguments: Any) -> Any:
    function = getattr(ctypes.pythonapi, name)
    function.restype, function.argtypes = result, arguments
    return function


_passing: list[Callable[[], bool]] = []


def _may_allocate() -> bool:
    return not _passing or _passing[-1]()


_pointer_in = _c_function(_POINTER, "PyCapsule_GetPointer", ctypes.py_object, ctypes.c_char_p)
_FUNCTIONS = ctypes.cast(_pointer_in(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(_POINTER))
_set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_FUNCTIONS[_SET_HANDLER])
_get_handler = ctypes.PYFUNCTYPE(ctypes.py_object)(_FUNCTIONS[_GET_HANDLER])
# The capsules refer to this name without a copy.
_NAME = ctypes.create_string_buffer(b"mem_handler")
_own = _Handler.from_address(_pointer_in(_get_handler(), _NAME.value))


@_MALLOC
def _malloc(context: Any, size: int) -> Any:
    return _own.malloc(context, size) if _may_allocate() else None


@_CALLOC
def _calloc(context: Any, count: int, size: int) -> Any:
    return _own.calloc(context, count, size) if _may_allocate() else None


@_REALLOC
def _realloc(context: Any, pointer: Any, size: int) -> Any:
    return _own.realloc(context, pointer, size) if _may_allocate() else None


# Freeing stays NumPy's own: arrays are also freed while an exception is raised, where no Python code may run. All of
# this lives as long as the process, since arrays are freed by the handler that allocated them.
_HANDLER = _Handler(b"faulty", 1, _own.context, _malloc, _calloc, _realloc, _own.free)
_CAPSULE = _c_function(ctypes.py_object, "PyCapsule_New", _POINTER, ctypes.c_char_p, _POINTER)(
    ctypes.addressof(_HANDLER), ctypes.cast(_NAME, ctypes.c_char_p), None
)


@contextmanager
def _refusing(may_allocate: Callable[[], bool]) -> Iterator[None]:
    """Ask before each allocation of an array in this block whether it may succeed."""
    _passing.append(may_allocate)
    before = _set_handler(_CAPSULE)
    try:
        yield
    finally:
        _set_handler(before)
        _passing.pop()


_ARROW = [
    (appended_rows, "_take"),
    (appended_rows, "_copy_rows"),
    (appended_rows, "gather_runs"),
    (appended_rows.AppendedRows, "_merge_two"),
]
"""What allocates memory of Arrow in a cache."""


def _note_nothing(*_: Any) -> None:
    pass


class Memory:
    """Counts allocations; the n-th fails, and with ``lasting`` all after it."""

    def __init__(self, failing: float = math.inf, lasting: bool = False) -> None:
        self.count, self.failing, self.lasting = 0, failing, lasting

    def may_allocate(self) -> bool:
        self.count += 1
        return not (self.count == self.failing or (self.lasting and self.count > self.failing))

    def _checked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            if not self.may_allocate():
                raise MemoryError
            return function(*args)

        return called

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Let allocations of NumPy fail in this block, and the operations of Arrow that allocate."""
        with ExitStack() as stack:
            for owner, name in _ARROW:
                stack.enter_context(mock.patch.object(owner, name, self._checked(getattr(owner, name))))
            # The audits after operations would take the faults.
            stack.enter_context(mock.patch.object(audit.Auditor, "note", _note_nothing))
            stack.enter_context(_refusing(self.may_allocate))
            yield
