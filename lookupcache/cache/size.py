"""`size_of`: the approximate number of bytes of a cache entry, including all that it refers to."""

from __future__ import annotations

import gc
import io
import sys
import weakref
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

_NOT_COUNTED = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType, weakref.ref)
"""Types of objects that belong to the program instead of a value."""


def size_of(*values: Any) -> int:
    """Return the bytes of values and of all objects that they refer to, each counted once.

    The buffers of numpy, pandas, polars and pyarrow count in full, even if a value is a slice of one. Objects with
    memory outside of Python count with their ``nbytes`` or ``__sizeof__``.

    >>> page = bytes(1000)
    >>> size_of([page, page]) - size_of([page]) < 100
    True
    """
    # Values are kept, not just their ids: another object could get the id of one that was deleted.
    seen: dict[int, Any] = {}
    total, waiting = 0, list(values)
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _NOT_COUNTED):
            continue
        seen[id(value)] = value
        if type(value) in _LEAVES:
            total += sys.getsizeof(value)
            continue
        size, inner = _measure(value)
        total += size
        waiting.extend(inner)
    return total


_LEAVES = frozenset({int, float, complex, bool, str, bytes, bytearray, type(None)})


def _measure(value: Any) -> tuple[int, Iterable[Any]]:
    """Return a value's own bytes, and the objects that it refers to."""
    if isinstance(value, np.ndarray):
        return _array(value)
    measure = _LIBRARIES.get(type(value).__module__.partition(".")[0])
    size = measure(value) if measure is not None else None
    if size is not None:
        return size, ()
    inner = gc.get_referents(value)
    if isinstance(value, io.BytesIO):
        # From Python 3.13 on it also refers to its buffer, which its own size contains.
        inner = [one for one in inner if type(one) is not bytes]
    return max(_shallow(value), _nbytes(value)), inner


def _array(array: npt.NDArray[Any]) -> tuple[int, Iterable[Any]]:
    """A view counts as the array it refers to; an array of objects includes the objects."""
    inner = list(array.flat) if array.dtype.hasobject else []
    return sys.getsizeof(array), inner if array.base is None else [*inner, array.base]


def _pandas(value: Any) -> int | None:
    usage = getattr(value, "memory_usage", None)
    if usage is None:
        return None
    used = usage(deep=True)
    return int(getattr(used, "sum", lambda: used)())


def _arrow(value: Any) -> int | None:
    total = getattr(value, "get_total_buffer_size", None)
    if total is None:
        # A buffer, or an object without one.
        return int(value.size) if hasattr(value, "address") else None
    return int(total()) + object.__sizeof__(value)


def _polars(value: Any) -> int | None:
    estimated = getattr(value, "estimated_size", None)
    return None if estimated is None else int(estimated())


_LIBRARIES: dict[str, Callable[[Any], int | None]] = {"pandas": _pandas, "pyarrow": _arrow, "polars": _polars}


def _shallow(value: Any) -> int:
    try:
        return sys.getsizeof(value)
    except Exception:  # an object's own `__sizeof__` may do anything
        return object.__sizeof__(value)


def _nbytes(value: Any) -> int:
    """Return the bytes that an object says it has, as tensors do."""
    if isinstance(value, memoryview):
        return 0  # they are those of the array that it refers to
    try:
        found = getattr(value, "nbytes", 0)
    except Exception:
        return 0
    return found if type(found) is int else 0
