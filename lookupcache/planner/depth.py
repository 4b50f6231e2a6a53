"""Room for expressions that are nested deeply: their reading is recursive, some 20 Python frames a level."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FRAMES = 10_000
"""The recursion limit of a second attempt: those are frames of Python code, a few MB of heap and no C stack."""

LEVELS = 250
"""How many levels of nesting that is enough for, whatever they are."""

_lock = threading.Lock()


def deep_recursion(work: Callable[[], T]) -> T:
    """Return what a function returns; where Python's recursion limit stops it, call it once more under a higher one.

    The limit is the process's. So it is raised for the few expressions that need it only, and for one at a time.

    >>> def depth(n):
    ...     return 0 if n == 0 else 1 + depth(n - 1)
    >>> deep_recursion(lambda: depth(2_000))
    2000
    """
    try:
        return work()
    except RecursionError:
        pass
    with _lock:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, FRAMES))
        try:
            return work()
        finally:
            sys.setrecursionlimit(before)
