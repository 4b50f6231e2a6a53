"""`SyncFunction` and `AsyncFunction`: one interface for functions, objects and classes.

    function, object or class ─► object, opened once ─► arguments of some keys ─► call ─► result

An object may have ``open`` and ``close``; a class is instantiated, without arguments, when it is opened. The object
is opened by the first call, or by `open` before; other callers wait for that. `adapter_of` chooses the adapter.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lookupcache.errors import OptionError
from lookupcache.executor.latch import Latch
from lookupcache.executor.nesting import NestedCall, current_call, waiting_for

if TYPE_CHECKING:
    import asyncio

Arguments = tuple[Sequence[Any], Mapping[str, Any]]

POLL_SECONDS = 0.25
"""How often a caller that waits for another event loop checks whether that still runs: nothing reports its end."""


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or an object or class with ``__call__``, is async or an async generator.

    >>> async def rows_of(key): ...
    >>> is_async(rows_of), is_async(functools.partial(rows_of, 1)), is_async(print)
    (True, True, False)
    """
    return is_async_generator(function) or any(map(inspect.iscoroutinefunction, _unwrap_partial(function)))


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Return whether a function, or an object or class with ``__call__``, is an async generator."""
    return any(map(inspect.isasyncgenfunction, _unwrap_partial(function)))


def refuse_uncallable(function: Any) -> None:
    """Raise OptionError for an object that cannot be called, or a class that makes no such objects.

    >>> refuse_uncallable(int)
    Traceback (most recent call last):
    lookupcache.errors.OptionError: Class int has no '__call__', so its objects cannot be called with a key.
    <BLANKLINE>
    Hint: Pass a function that calls the class, such as lambda key: int(key).
    """
    name = getattr(function, "__name__", type(function).__name__)
    by_function = f"Pass a function that calls the class, such as lambda key: {name}(key)."
    if isinstance(function, functools.partial) and isinstance(function.func, type):
        raise OptionError(
            f"A functools.partial of class {function.func.__name__} is not a function of a key.",
            hint="Pass an object of the class, or a function that calls the class.",
        )
    if not callable(function):
        raise OptionError(f"An object of type {name!r} cannot be called.", hint="Pass a function.")
    if not isinstance(function, type):
        return
    if not any("__call__" in vars(kind) for kind in function.__mro__):
        raise OptionError(
            f"Class {name} has no '__call__', so its objects cannot be called with a key.", hint=by_function
        )
    if missing := _required_arguments(function):
        raise OptionError(
            f"Class {name} cannot be instantiated without arguments: it requires {missing[0]!r}.",
            hint=f"Pass an object, as in {name}({missing[0]}=…), or give the parameter a default.",
        )


def named_object(function: Any) -> Any:
    """Return the function or class that has a name: what a partial calls, an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if isinstance(getattr(function, "__qualname__", None), str) else type(function)


def name_of(function: Any) -> str:
    """Return the module and name of a function or class, or of an object's class.

    >>> name_of(functools.partial(inspect.unwrap)), name_of(Latch()), name_of(str.upper)
    ('inspect.unwrap', 'lookupcache.executor.latch.Latch', 'builtins.str.upper')
    """
    named = named_object(function)
    module = getattr(named, "__module__", None) or getattr(named, "__objclass__", type(None)).__module__
    return f"{module_name(module)}.{named.__qualname__}"


def module_name(name: str) -> str:
    """Return the name of a module, for the main script also in a process that multiprocessing has spawned.

    >>> module_name("__mp_main__"), module_name("shop.prices")
    ('__main__', 'shop.prices')
    """
    return "__main__" if name == "__mp_main__" else name


def _required_arguments(kind: type) -> list[str]:
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _unwrap_partial(function: Any) -> tuple[Any, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function, _kind(function).__call__


def _kind(function: Any) -> Any:
    return function if isinstance(function, type) else type(function)


def adapter_of(
    function: Callable[..., Any],
    arguments: Callable[[Sequence[Any]], Arguments],
    timeout: float = math.inf,
) -> SyncFunction | AsyncFunction:
    """Return the adapter of a function.

    ``arguments`` returns those of a call for some keys. Others wait ``timeout`` seconds for an ``open`` that hangs,
    before one of them tries again.
    """
    refuse_uncallable(function)
    if is_async(function):
        return AsyncFunction(function, arguments, timeout)
    for method in ("open", "close"):
        if inspect.iscoroutinefunction(getattr(function, method, None)):
            raise OptionError(
                f"The function of {_kind(function).__name__} is sync, but its {method} is async.",
                hint="Make both sync, or both async.",
            )
    return SyncFunction(function, arguments, timeout)


class _Opening:
    """An opening in progress: its deadline, its call, and its event loop, if there is one."""

    def __init__(self, timeout: float, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.deadline = time.monotonic() + timeout
        self.loop = loop
        self.call: NestedCall | None = current_call()
        self.ended = Latch()

    def remaining(self) -> float:
        """Return how many seconds to wait for it; 0 if it will not end, or has taken too long."""
        is_lost = self.loop is not None and not self.loop.is_running()
        return 0.0 if is_lost else max(self.deadline - time.monotonic(), 0.0)


class FunctionAdapter:
    """Base class of sync and async functions: the object of a class, and that it is opened once."""

    is_async: bool

    def __init__(
        self, function: Callable[..., Any], arguments: Callable[[Sequence[Any]], Arguments], timeout: float = math.inf
    ) -> None:
        self.function = function
        self._arguments = arguments
        self._timeout = timeout
        self._target: Any = None
        self._opening: _Opening | None = None
        # Reentrant: a coroutine that is garbage collected ends its opening in a thread that may hold the lock.
        self._lock = threading.RLock()
        self._inherited: list[Any] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.function, self._arguments, self._timeout)

    def reset_after_fork(self) -> None:
        """Drop the object that the parent process opened: two processes cannot share a connection."""
        # A thread of the parent may have held the lock, or been opening; neither exists here.
        self._lock = threading.RLock()
        self._opening = None
        if hasattr(self._target, "open"):
            # Not freed: its destructor might close the parent's connection.
            self._inherited.append(self._target)
            self._target = None

    def _make_target(self) -> Any:
        return self.function() if isinstance(self.function, type) else self.function

    def _start_opening(self, loop: asyncio.AbstractEventLoop | None = None) -> tuple[_Opening, bool]:
        """Return the opening in progress, or a new one and True: the caller has to do it."""
        with self._lock:
            opening = self._opening
            if opening is not None and opening.remaining() > 0:
                return opening, False
            self._opening = _Opening(self._timeout, loop)
            return self._opening, True

    def _end_opening(self, opening: _Opening, target: Any) -> bool:
        """End an opening, with target None if it failed; return whether the target is the one to use."""
        with self._lock:
            is_current = self._opening is opening
            if is_current:
                self._target, self._opening = target, None
        opening.ended.open()
        return is_current or target is self.function

    def _take_target(self) -> Any:
        """Return the open object, if there is one, and drop it."""
        with self._lock:
            target, self._target = self._target, None
            return target


class SyncFunction(FunctionAdapter):
    """A sync function; thread-safe.

    >>> SyncFunction(lambda keys: [-key for key in keys], lambda keys: ([keys], {})).call([1, 2])
    [-1, -2]
    """

    is_async = False

    def call(self, keys: Sequence[Any]) -> Any:
        """Call the function with some keys, and return its result."""
        target = self._target
        if target is None:
            target = self._open_target()
        positional, named = self._arguments(keys)
        return target(*positional, **named)

    def open(self) -> None:
        """Create the object, if the function is a class, and open it, unless it is open."""
        self._open_target()

    def close(self) -> None:
        """Close the object, if it is open; the next call opens it again."""
        _call_method(self._take_target(), "close")

    def _open_target(self) -> Any:
        while (target := self._target) is None:
            opening, is_own = self._start_opening()
            if is_own:
                return self._open(opening)
            with waiting_for(opening.call):
                opening.ended.wait(opening.remaining())
        return target

    def _open(self, opening: _Opening) -> Any:
        """Open the object; if that fails or takes too long, the next caller tries again."""
        try:
            target = self._make_target()
            _call_method(target, "open")
        except BaseException:
            self._end_opening(opening, None)
            raise
        if not self._end_opening(opening, target):
            # It took too long: another object is in use, or will be.
            _call_method(target, "close")
            return self._open_target()
        return target


class AsyncFunction(FunctionAdapter):
    """An async function or an async generator; its ``open`` and ``close`` may be sync.

    It is opened on the event loop of the first call, and callers on other loops wait for that.
    """

    is_async = True

    async def call(self, keys: Sequence[Any]) -> Any:
        """Await the function with some keys, and return its result, or a list of the yielded items."""
        target = self._target
        if target is None:
            target = await self._open_target()
        positional, named = self._arguments(keys)
        answer = target(*positional, **named)
        if isinstance(answer, AsyncIterator):
            return [item async for item in answer]
        return await answer

    async def open(self) -> None:
        await self._open_target()

    async def close(self) -> None:
        await _await_method(self._take_target(), "close")

    async def _open_target(self) -> Any:
        import asyncio  # Here, since sync functions do without, and it takes long to import.

        while (target := self._target) is None:
            opening, is_own = self._start_opening(asyncio.get_running_loop())
            if is_own:
                return await self._open(opening)
            with waiting_for(opening.call):
                await opening.ended.wait_async(min(opening.remaining(), POLL_SECONDS))
        return target

    async def _open(self, opening: _Opening) -> Any:
        """Open the object; if that fails or is cancelled, the next waiting caller tries again."""
        try:
            target = self._make_target()
            await _await_method(target, "open")
        except BaseException:
            # Also when the caller is cancelled: others wait for this opening, and must not wait for ever.
            self._end_opening(opening, None)
            raise
        if not self._end_opening(opening, target):
            await _await_method(target, "close")
            return await self._open_target()
        return target


def _call_method(target: Any, name: str) -> Any:
    """Call a method that the object may not have."""
    method = getattr(target, name, None)
    return None if method is None else method()


async def _await_method(target: Any, name: str) -> None:
    """Call a method that the object may not have, and that may be async."""
    result = _call_method(target, name)
    if isinstance(result, Awaitable):
        await result
