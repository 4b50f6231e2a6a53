"""Calls that wait for other calls: which call this code runs in, and that none waits for itself.

A function may call its own decorated self. `carrying` says which call is being made here, `waiting_for` which other it
waits for; who would wait for a call that waits for him is told at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from lookupcache.decorator.arguments import shown
from lookupcache.decorator.batching import Call

_making: ContextVar[Call | None] = ContextVar("lookupcache_making", default=None)
# Reentrant: a coroutine that is garbage collected leaves `waiting_for` in a thread that may be in it too.
_lock = threading.RLock()


def outer_call() -> Call | None:
    """Return the call that this code runs in, if any."""
    return _making.get()


def is_within(maker: Any) -> bool:
    """Return whether this code runs in a call of this maker, or in one that such a call waits for."""
    call = _making.get()
    while call is not None:
        if call.maker is maker and not call.ended.is_open:
            return True
        call = call.outer
    return False


@contextmanager
def carrying(call: Call) -> Iterator[None]:
    """Say that a call is made by what runs inside."""
    token = _making.set(call)
    try:
        yield
    finally:
        _making.reset(token)


def carry_in_context(call: Call) -> None:
    """Say that a call is made by all that follows in this context, which is the call's own."""
    _making.set(call)


@contextmanager
def waiting_for(call: Call | None) -> Iterator[None]:
    """Say that the call that this code runs in, if any, waits for another, if that is one.

    Raises RecursionError where the other waits for it, which would be for ever.
    """
    waiting = _making.get()
    if waiting is None or call is None:
        yield
        return
    with _lock:
        if _waits_for(call, waiting):
            raise _endless(call)
        waiting.waits_for.append(call)
    try:
        yield
    finally:
        with _lock:
            waiting.waits_for.remove(call)


def _waits_for(call: Call, other: Call) -> bool:
    found, seen = [call], {call}
    while found:
        one = found.pop()
        if one is other:
            return True
        waits_for = tuple(one.waits_for)
        found += [each for each in waits_for if each not in seen]
        seen.update(waits_for)
    return False


def _endless(call: Call) -> RecursionError:
    return RecursionError(
        f"The call for {', '.join(map(shown, call.keys[:3]))} waits for itself: the function, or its 'open', asks, "
        "directly or through others, for what it is being asked for.\n\nHint: Give the recursion an end, or call the "
        "undecorated function, '__wrapped__'."
    )


def reset_after_fork() -> None:
    """Replace a lock that a thread of the parent process may hold."""
    global _lock
    _lock = threading.RLock()
