"""The text of errors that leave a worker: readable, without secrets, and such that it can be sent.

An error leaves a worker as text, for Spark's driver, for a column of the result or for a file. `errors.text_of` reads
the text of any error, `presentable` makes an error that can be shown with everything that led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from lookupcache import errors
from lookupcache.errors import LookupCacheError, text_of

Ours = TypeVar("Ours", bound=LookupCacheError)


def shown_with(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and every other that its traceback shows: what it came of, and the members of groups."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting.append(one.__cause__ if one.__suppress_context__ else one.__context__)
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def is_presentable(error: BaseException, hide: Callable[[str], str]) -> bool:
    """Return whether an error can be shown as it is, with all that led to it: ``hide`` leaves its texts unchanged."""
    return all(hide(text) == text for one in shown_with(error) for text in (text_of(one), *_notes(one)))


def presentable(error: Exception, hide: Callable[[str], str]) -> Exception:
    """Return an error that can be shown: itself, or one like it, without what led to it.

    What is none of lookupcache's becomes a RuntimeError.
    """
    if is_presentable(error, hide):
        return error
    if isinstance(error, LookupCacheError):
        return shown_as(error, hide).with_traceback(error.__traceback__)
    return RuntimeError(f"{type(error).__name__}: {hide(text_of(error))}").with_traceback(error.__traceback__)


def rebuilt(error: Ours, fact: str, hint: str | None) -> Ours:
    """Return an error of the same kind of ours, with another text; a class of others' may take other arguments."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    made: Ours = kind(fact, hint=hint)
    return made


def shown_as(error: Ours, hide: Callable[[str], str]) -> Ours:
    """Return an error of the same kind of ours, with its texts as ``hide`` leaves them, and nothing that led to it."""
    shown = rebuilt(error, hide(error.fact), None if error.hint is None else hide(error.hint))
    shown.__cause__ = None
    return shown


def _notes(error: BaseException) -> list[str]:
    notes: list[str] = []
    with suppress(Exception):
        notes += map(str, getattr(error, "__notes__", ()))
    return notes
