"""The lookup function itself, of whatever kind: sync or async, one key or many, a function, an object or a class.

An object may have `open` and `close`; a class is made an object, without arguments, when it is first wanted.
What the function answers becomes one list of rows per key here, or an error that says why it cannot.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

from lookupcache.decorator.latch import Latch
from lookupcache.errors import OptionError, SourceError

Key = Hashable
Rows = list[Any]

_UNORDERED = (Mapping, set, frozenset, str, bytes)


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling it gives something to await.

    >>> async def rows_of(key): ...
    >>> is_async(rows_of), is_async(print)
    (True, False)
    """
    kind = function if isinstance(function, type) else type(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(kind.__call__)


class _Callee:
    """What sync and async functions share: the object behind a class, arguments, and answers."""

    def __init__(self, function: Callable[..., Any], batch: bool) -> None:
        self.function = function
        self.batch = batch
        self._target: Any = None
        self._lock = threading.Lock()

    def _made(self) -> Any:
        return self.function() if isinstance(self.function, type) else self.function

    def _arguments(self, keys: Sequence[Key]) -> tuple[Any, ...]:
        return (list(keys),) if self.batch else cast(tuple[Any, ...], keys[0])

    def _rows(self, keys: Sequence[Key], answer: Any) -> dict[Key, Rows]:
        if not self.batch:
            return {keys[0]: _listed(answer)}
        lists = [_listed(rows) for rows in _in_order(answer)]
        if len(lists) != len(keys):
            raise SourceError(
                f"The batch function returned {len(lists)} lists for {len(keys)} keys.",
                hint="Return one list of rows per key, in the order of the keys.",
            )
        return dict(zip(keys, lists, strict=True))


class SyncCallee(_Callee):
    """A sync function, which threads may call at the same time.

    >>> SyncCallee(lambda keys: [[key, -key] for key in keys], batch=True).ask([1, 2])
    {1: [1, -1], 2: [2, -2]}
    """

    def __init__(self, function: Callable[..., Any], batch: bool) -> None:
        super().__init__(function, batch)
        for method in ("open", "close"):
            if inspect.iscoroutinefunction(getattr(function, method, None)):
                raise OptionError(
                    f"The function of {_kind(function).__name__} is sync, but its {method} is async.",
                    hint="Write both the same way.",
                )

    def ask(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Call the function and return the rows of each key; raises SourceError for what are no lists of rows."""
        target = self._target
        if target is None:
            target = self._opened()
        return self._rows(keys, target(*self._arguments(keys)))

    def close(self) -> None:
        """Close the object, if it is open; the next call opens it again."""
        with self._lock:
            target, self._target = self._target, None
        if target is not None:
            getattr(target, "close", _nothing)()

    def _opened(self) -> Any:
        with self._lock:
            if self._target is None:
                target = self._made()
                getattr(target, "open", _nothing)()
                self._target = target
            return self._target


class AsyncCallee(_Callee):
    """An async function; its `open` and `close` may be sync too.

    It is opened on the event loop of the first call, and callers on other loops wait for that.
    """

    _opening: Latch | None = None

    async def ask(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Await the function and return the rows of each key; raises SourceError for what are no lists of rows."""
        target = self._target
        if target is None:
            target = await self._opened()
        return self._rows(keys, await target(*self._arguments(keys)))

    async def close(self) -> None:
        """Close the object, if it is open; the next call opens it again."""
        with self._lock:
            target, self._target = self._target, None
        if target is not None:
            await _done(getattr(target, "close", _nothing)())

    async def _opened(self) -> Any:
        while self._target is None:
            with self._lock:
                others, mine = self._opening, Latch()
                if others is None:
                    self._opening = mine
            if others is None:
                await self._open(mine)
            else:
                await others.wait_async()
        return self._target

    async def _open(self, turn: Latch) -> None:
        """Open in this caller's turn; where it fails or is cancelled, the next who waits tries."""
        try:
            target = self._made()
            await _done(getattr(target, "open", _nothing)())
            self._target = target
        finally:
            self._opening = None
            turn.open()


def _in_order(answer: Any) -> Iterable[Any]:
    if isinstance(answer, _UNORDERED) or not isinstance(answer, Iterable):
        _discard(answer)
        raise SourceError(
            f"The batch function returned {type(answer).__name__}, not a list.",
            hint="Return one list of rows per key, in the order of the keys.",
        )
    return answer


def _listed(rows: Any) -> Rows:
    if rows is None:
        return []
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
        _discard(rows)
        raise SourceError(
            f"The function returned {type(rows).__name__} for a key, not a list of rows.",
            hint="Return a list, also where there is one row; what returns an awaitable is written 'async def'.",
        )
    return list(rows)


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
