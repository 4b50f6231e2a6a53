"""Tracks which call waits for which, so that no call waits for itself.

A function may call its own decorated self. `run_within` records the call that is being made here,
`waiting_for` the other call that it waits for. A wait for a call that waits for this one raises RecursionError.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from lookupcache.executor.latch import Latch


class NestedCall:
    """A call that other calls may wait for.

    ``maker`` makes it; ``outer`` is the call in which it was opened, and ``waits_for`` those that it waits for.
    """

    def __init__(self) -> None:
        self.maker: object = None
        self.outer: NestedCall | None = None
        self.waits_for: list[NestedCall] = []
        self.ended = Latch()

    def describe(self) -> str:
        """Return a description of the call for errors."""
        raise NotImplementedError


_current: ContextVar[NestedCall | None] = ContextVar("lookupcache_current_call", default=None)
# Reentrant: a coroutine that is garbage collected leaves `waiting_for` in a thread that may be in it too.
_lock = threading.RLock()


def current_call() -> NestedCall | None:
    """Return the call that this code runs in, if any."""
    return _current.get()


def open_call() -> NestedCall | None:
    """Return the innermost call that this code runs in and that has not ended: a task may outlive the call it began in.

    Ended calls are skipped, so that calls which start each other do not keep each other's answers alive.
    """
    call = _current.get()
    while call is not None and call.ended.is_open:
        call = call.outer
    return call


def is_within(maker: object) -> bool:
    """Return whether this code runs in a call of this maker, or in one that such a call waits for."""
    call = _current.get()
    while call is not None:
        if call.maker is maker and not call.ended.is_open:
            return True
        call = call.outer
    return False


def refuse_close_within(maker: object) -> None:
    """Raise RuntimeError if this code runs in a call of this maker: closing would wait for itself."""
    if is_within(maker):
        raise RuntimeError(
            "'close' was called inside a call of the function that it closes.\n\n"
            "Hint: Call it after the call has returned."
        )


@contextmanager
def run_within(call: NestedCall) -> Iterator[None]:
    """Record that a call is made by the code inside the block."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


def set_current_call(call: NestedCall) -> None:
    """Record that a call is made by all following code in this context, which belongs to the call."""
    _current.set(call)


@contextmanager
def waiting_for(call: NestedCall | None) -> Iterator[None]:
    """Record that the current call, if any, waits for another call.

    Raises RecursionError if the other waits for this one: neither would ever end.
    """
    waiting = _current.get()
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


def _waits_for(call: NestedCall, other: NestedCall) -> bool:
    found, seen = [call], {call}
    while found:
        one = found.pop()
        if one is other:
            return True
        waits_for = tuple(one.waits_for)
        found += [each for each in waits_for if each not in seen]
        seen.update(waits_for)
    return False


def _endless(call: NestedCall) -> RecursionError:
    return RecursionError(
        f"The call for {call.describe()} waits for itself: the function, or its 'open', calls, "
        "directly or through others, for the key that it is computing.\n\nHint: End the recursion, or call the "
        "undecorated function, '__wrapped__'."
    )


def _reset_after_fork() -> None:
    """Replace a lock that a thread of the parent process may hold."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
