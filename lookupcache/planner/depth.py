"""Raises Python's recursion limit for deeply nested expressions: parsing takes some 20 Python frames per level."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FRAMES = 10_000
"""The recursion limit of a second attempt: those are frames of Python code, a few MB of heap and no C stack."""

LEVELS = 250
"""The levels of nesting of any kind that fit into this depth."""

_lock = threading.RLock()


def deep_recursion(work: Callable[[], T]) -> T:
    """Call a function and return its result; after a RecursionError, call it once more with a higher limit.

    The limit is that of the process, so it is raised only for the few expressions that need it, one at a time. A call
    inside of a second attempt has no attempt of its own.

    >>> def depth(n):
    ...     return 0 if n == 0 else 1 + depth(n - 1)
    >>> deep_recursion(lambda: depth(2_000))
    2000
    """
    try:
        return work()
    except RecursionError as error:
        first = error
    with _lock:
        before = sys.getrecursionlimit()
        if before >= FRAMES:
            raise first
        sys.setrecursionlimit(FRAMES)
        try:
            return work()
        finally:
            sys.setrecursionlimit(before)
