"""`SharedError`: one error for several callers, each of which raises an object of its own."""

from __future__ import annotations

import copy
from contextlib import suppress


class SharedError:
    """An error for several callers: the first takes the error itself, each other one a copy.

    Whoever raises an error adds frames to its traceback, with all local variables, and may add a context and notes. In
    one object, each caller would find those of all others. An error that cannot be copied is shared; its traceback then
    begins again with each caller.

    >>> shared = SharedError(ValueError("down"))
    >>> first, second = shared.take(), shared.take()
    >>> first is second, repr(first) == repr(second)
    (False, True)
    """

    def __init__(self, error: BaseException) -> None:
        self._first = [error]
        self._model, self._traceback = _copy(error), error.__traceback__

    def take(self) -> BaseException:
        """Return the error for one more caller."""
        try:
            return self._first.pop()
        except IndexError:
            return _copy(self._model).with_traceback(self._traceback)


def _copy(error: BaseException) -> BaseException:
    """Return a copy of an error with its causes, notes and traceback; the error itself if it cannot be copied."""
    copied = _new_like(error)
    if copied is None:
        return error
    vars(copied).update(vars(error))
    if hasattr(error, "__notes__"):
        copied.__notes__ = list(error.__notes__)
    copied.__cause__, copied.__context__ = error.__cause__, error.__context__
    copied.__suppress_context__ = error.__suppress_context__
    return copied.with_traceback(error.__traceback__)


def _new_like(error: BaseException) -> BaseException | None:
    """Return a new error of the same class with the same arguments."""
    kind = type(error)
    if any(vars(one).get("__slots__") for one in kind.__mro__):
        return None
    native = next(one for one in kind.__mro__ if not one.__flags__ & _DEFINED_IN_PYTHON)
    # Whatever a class may raise or change: the error that it fails with is not the one to report.
    with suppress(Exception):
        if native.__basicsize__ == BaseException.__basicsize__:
            # Without `__init__`, whose parameters are often others than ``args``.
            return native.__new__(kind, *error.args)
        copied: BaseException = copy.copy(error)
        if type(copied) is kind and copied is not error and list(map(id, copied.args)) == list(map(id, error.args)):
            return copied
    return None


_DEFINED_IN_PYTHON = 1 << 9
"""A flag of classes that are created when the program runs; only others have fields in C."""
