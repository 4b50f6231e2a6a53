"""The function itself, of whatever kind: sync or async, one key or many, a function, an object or a class.

An object may have `open` and `close`; a class is made an object, without arguments, when it is first wanted.
What the function returns becomes one value per key here, as it is, or an error that says why it cannot be kept.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import io
import math
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from lookupcache.decorator.arguments import Key, Parameters, values_of
from lookupcache.decorator.batching import Call
from lookupcache.decorator.latch import Latch
from lookupcache.decorator.nesting import outer_call, waiting_for
from lookupcache.errors import OptionError, SourceError


class Stopped(Exception):
    """Carries a StopIteration of the function, which would end the coroutine that makes the call."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__(str(error))
        self.error = error


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling it gives something to await.

    >>> async def rows_of(key): ...
    >>> is_async(rows_of), is_async(functools.partial(rows_of, 1)), is_async(print)
    (True, True, False)
    """
    while isinstance(function, functools.partial):
        function = function.func
    kind = function if isinstance(function, type) else type(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(kind.__call__)


class _Opening:
    """That the object is being opened: until when that may take, in which call, and on which event loop, if on one."""

    def __init__(self, timeout: float, home: asyncio.AbstractEventLoop | None = None) -> None:
        self.deadline = time.monotonic() + timeout
        self.home = home
        self.call: Call | None = outer_call()
        self.ended = Latch()

    def left(self) -> float:
        """Return how long to wait for it; 0 where that is in vain."""
        gone = self.home is not None and not self.home.is_running()
        return 0.0 if gone else max(self.deadline - time.monotonic(), 0.0)


class _Callee:
    """What sync and async functions share: the object behind a class, arguments, and values."""

    def __init__(self, function: Callable[..., Any], batch: bool, timeout: float = math.inf) -> None:
        self.function = function
        self.batch = batch
        self.timeout = timeout
        self.parameters = Parameters(function, batch)
        self._target: Any = None
        self._opening: _Opening | None = None
        # Reentrant: a coroutine that is garbage collected ends its opening in a thread that may hold the lock.
        self._lock = threading.RLock()
        self._inherited: list[Any] = []

    def reset_after_fork(self) -> None:
        """Let go of what the parent process opened: two processes cannot use one connection."""
        self._lock = threading.RLock()
        self._opening = None
        if hasattr(self._target, "open"):
            # Kept, because its end might close the parent's connection.
            self._inherited.append(self._target)
            self._target = None

    def _made(self) -> Any:
        return self.function() if isinstance(self.function, type) else self.function

    def _turn(self, home: asyncio.AbstractEventLoop | None = None) -> tuple[_Opening, bool]:
        """Return the opening that is under way, or a new one and True: the caller is to do it."""
        with self._lock:
            opening = self._opening
            if opening is not None and opening.left() > 0:
                return opening, False
            self._opening = _Opening(self.timeout, home)
            return self._opening, True

    def _opened_by(self, opening: _Opening, target: Any) -> bool:
        """End an opening, target None where it failed; return whether the target is the one to use."""
        with self._lock:
            counts = self._opening is opening
            if counts:
                self._target, self._opening = target, None
        opening.ended.open()
        return counts or target is self.function

    def _call(self, target: Any, keys: Sequence[Key]) -> Any:
        values = values_of(keys[0])
        if self.batch:
            return target(*values[:-1], [values_of(key)[-1] for key in keys])
        return self.parameters.call_with(values, target)

    def _values(self, keys: Sequence[Key], answer: Any) -> dict[Key, Any]:
        if not self.batch:
            return {keys[0]: _kept(answer)}
        if isinstance(answer, Mapping):
            return _by_key(keys, answer)
        values = [_kept(value) for value in _in_order(answer)]
        if len(values) != len(keys):
            raise SourceError(
                f"The batch function returned {len(values)} values for {len(keys)} keys.",
                hint="Return one value per key, in the order of the keys, or a dict of values by key.",
            )
        return dict(zip(keys, values, strict=True))


class SyncCallee(_Callee):
    """A sync function, which threads may call at the same time.

    >>> SyncCallee(lambda keys: [[key, -key] for key in keys], batch=True).ask([(1,), (2,)])
    {(1,): [1, -1], (2,): [2, -2]}
    """

    def __init__(self, function: Callable[..., Any], batch: bool, timeout: float = math.inf) -> None:
        super().__init__(function, batch, timeout)
        for method in ("open", "close"):
            if inspect.iscoroutinefunction(getattr(function, method, None)):
                raise OptionError(
                    f"The function of {_kind(function).__name__} is sync, but its {method} is async.",
                    hint="Write both the same way.",
                )

    def ask(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Call the function and return the value of each key; raises SourceError for what cannot be kept."""
        target = self._target
        if target is None:
            target = self._opened()
        try:
            return self._values(keys, self._call(target, keys))
        except StopIteration as error:
            raise Stopped(error) from error

    def close(self) -> None:
        """Close the object, if it is open; the next call opens it again."""
        with self._lock:
            target, self._target = self._target, None
        if target is not None:
            getattr(target, "close", _nothing)()

    def _opened(self) -> Any:
        while (target := self._target) is None:
            opening, mine = self._turn()
            if mine:
                return self._open(opening)
            with waiting_for(opening.call):
                opening.ended.wait(opening.left())
        return target

    def _open(self, opening: _Opening) -> Any:
        """Open in this caller's turn; where that fails or takes too long, the next who wants it tries."""
        target = None
        try:
            target = made = self._made()
            getattr(target, "open", _nothing)()
        except BaseException:
            self._opened_by(opening, None)
            raise
        if not self._opened_by(opening, target):
            # Late: another is in use, or will be.
            getattr(made, "close", _nothing)()
            return self._opened()
        return target


class AsyncCallee(_Callee):
    """An async function; its `open` and `close` may be sync too.

    It is opened on the event loop of the first call, and callers on other loops wait for that.
    """

    async def ask(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Await the function and return the value of each key; raises SourceError for what cannot be kept."""
        target = self._target
        if target is None:
            target = await self._opened()
        return self._values(keys, await self._call(target, keys))

    async def close(self) -> None:
        """Close the object, if it is open; the next call opens it again."""
        with self._lock:
            target, self._target = self._target, None
        if target is not None:
            await _done(getattr(target, "close", _nothing)())

    async def _opened(self) -> Any:
        while (target := self._target) is None:
            opening, mine = self._turn(asyncio.get_running_loop())
            if mine:
                return await self._open(opening)
            with waiting_for(opening.call):
                await opening.ended.wait_async(min(opening.left(), POLL_SECONDS))
        return target

    async def _open(self, opening: _Opening) -> Any:
        """Open in this caller's turn; where that fails or is cancelled, the next who waits tries."""
        try:
            target = self._made()
            await _done(getattr(target, "open", _nothing)())
        except BaseException:
            self._opened_by(opening, None)
            raise
        if not self._opened_by(opening, target):
            await _done(getattr(target, "close", _nothing)())
            return await self._opened()
        return target


POLL_SECONDS = 0.25
"""How often who waits for another event loop looks whether that still runs: nothing tells of its end."""


def _in_order(answer: Any) -> Iterable[Any]:
    """Return the values of a batch, where their order is that of the keys beyond doubt."""
    unordered = isinstance(answer, set | frozenset | str | bytes) or hasattr(answer, "_fields")
    if unordered or hasattr(answer, "columns") or not isinstance(answer, Iterable):
        _discard(answer)
        raise SourceError(
            f"The batch function returned {type(answer).__name__}, not a list.",
            hint="Return a list of one value per key, in the order of the keys, or a dict of values by key.",
        )
    return answer


def _by_key(keys: Sequence[Key], answer: Mapping[Any, Any]) -> dict[Key, Any]:
    """Return the values of a batch that bear their keys; None for a key that has none."""
    asked = [values_of(key)[-1] for key in keys]
    if len(answer) > len(asked) or any(key not in answer for key in asked):
        known = set(asked)
        for key in answer:
            if key not in known:
                raise SourceError(
                    f"The batch function returned a value for {key!r}, which it was not asked for.",
                    hint="Return the keys as they were given, of the same type.",
                )
    return {key: _kept(answer.get(name)) for key, name in zip(keys, asked, strict=True)}


def _kept(value: Any) -> Any:
    """Return a value that can be given to many: itself, or a list of what could be read only once."""
    if hasattr(type(value), "__next__"):
        if not isinstance(value, io.IOBase):
            return list(value)
    elif not (inspect.isawaitable(value) or isinstance(value, AsyncGenerator)):
        return value
    _discard(value)
    raise SourceError(
        f"The function returned {type(value).__name__}, which can be used only once.",
        hint="Return what it gives: read the file, collect the items in a list; what awaits is written 'async def'.",
    )


def _discard(answer: Any) -> None:
    """Close a coroutine that nobody will await, which would be a warning."""
    if inspect.iscoroutine(answer):
        answer.close()


def _kind(function: Any) -> type:
    return function if isinstance(function, type) else type(function)


def _nothing() -> None:
    return None


async def _done(result: Any) -> None:
    if isinstance(result, Awaitable):
        await result
