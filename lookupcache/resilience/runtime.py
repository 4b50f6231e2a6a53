"""`Runtime`: how a coroutine waits in a thread (`SYNC`) and on an event loop (`ASYNC`), so that one serves both.

A coroutine that awaits nothing but a runtime's functions is driven by `run_sync` without an event loop. With `STEPPED`
the caller of its ``send`` gets what it waits for, seconds or a result; it goes on with the next call.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from types import coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    # A worker whose source is sync does without this module, which takes long to import.
    from concurrent.futures import Future

T = TypeVar("T")


@dataclass(frozen=True)
class Runtime:
    """How to wait: for some seconds, for what is completed elsewhere, as a future, and for a function that blocks.

    ``start`` calls such a function without waiting for it.
    """

    sleep: Callable[[float], Awaitable[None]]
    result: Callable[[Any], Awaitable[Any]]
    block: Callable[..., Awaitable[Any]]
    start: Callable[[Callable[[], object]], object]


class StopIterationError(Exception):
    """Wraps a StopIteration that a sync function raised: a coroutine would turn it into a RuntimeError."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__(error)
        self.error = error


def awaitable(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """Return an async function that calls a sync one, in this thread."""

    async def answer(*arguments: Any) -> T:
        try:
            return function(*arguments)
        except StopIteration as error:
            raise StopIterationError(error) from error

    return answer


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for an event loop, because it awaits sync functions only."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("The work waits for an event loop.")


async def _sleep(seconds: float) -> None:
    """Wait on the running event loop; asyncio takes long to import, and a worker whose source is sync has no loop."""
    import asyncio

    await asyncio.sleep(seconds)


async def _result(future: Future[T]) -> T:
    import asyncio

    return await asyncio.wrap_future(future)


async def _block(work: Callable[..., T], *arguments: Any) -> T:
    import asyncio

    return await asyncio.to_thread(work, *arguments)


def _call(work: Callable[..., T], *arguments: Any) -> T:
    return work(*arguments)


def _start(work: Callable[[], object]) -> None:
    """Call a function in a thread of the running event loop; without a loop, in this thread."""
    import asyncio

    try:
        asyncio.get_running_loop().run_in_executor(None, work)
    except RuntimeError:
        work()


@coroutine
def _give(wait: T) -> Generator[T, None, None]:
    """Give the caller that steps the coroutine what it waits for."""
    yield wait


def _start_nothing(work: Callable[[], object]) -> None:
    """Do nothing: the caller steps the coroutine, which may be garbage collected at any time."""


SYNC = Runtime(
    awaitable(lambda seconds: time.sleep(seconds)), awaitable(lambda future: future.result()), awaitable(_call), _call
)
ASYNC = Runtime(_sleep, _result, _block, _start)
STEPPED = Runtime(_give, _give, awaitable(_call), _start_nothing)
