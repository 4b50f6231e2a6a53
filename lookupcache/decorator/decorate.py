"""`cached`: everything that goes before a lookup function, without Spark.

    key ─► cache ─► one call for all who want it ─► batch ─► capacity ─► timeout ─► retries, breaker, rate ─► function

What comes before the call is in `single_flight`; here are the options, and how sync and async calls are made.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from lookupcache.calls.guard import Guard
from lookupcache.calls.rate import RateLimit
from lookupcache.calls.retry import wait_hint
from lookupcache.config import LookupConfig
from lookupcache.connector import worth_a_retry
from lookupcache.decorator.batching import Call
from lookupcache.decorator.callee import AsyncCallee, Key, SyncCallee, is_async
from lookupcache.decorator.pool import DaemonPool
from lookupcache.decorator.single_flight import Answers, SingleFlight, Wanted, without_rows
from lookupcache.errors import OptionError
from lookupcache.metrics import Tally


def cached(
    config: LookupConfig | None = None,
    *,
    batch: bool = False,
    clock: Callable[[], float] = time.monotonic,
    retryable: Callable[[Exception], bool] = worth_a_retry,
    retry_after: Callable[[Exception], float | None] = wait_hint,
) -> Callable[[Callable[..., Any]], Any]:
    """Cache a lookup function: sync or async, one key at a time or, with ``batch=True``, many.

    One key at a time, ``function(*key)`` returns an iterable of rows, or None for no rows; the decorated
    function returns a list. With ``batch=True``, ``function(keys)`` takes a list of keys and returns one
    iterable of rows per key in the same order; it is called with those keys only that are not in the cache,
    each once. Keys must be hashable; rows can be anything. In place of a function there may be an object
    with ``__call__``, or a class, of which one is made: its ``open()``, where it has one, is called before the
    first lookup.

    The decorated function has ``metrics()``, ``invalidate(*keys)``, ``clear()``, and ``close()``, which calls the
    object's; where the function is async it is awaited, and called ``aclose`` too.

    ``lookup.timeout`` ends an async lookup, and with ``lookup.async`` a sync one, which then runs in a thread of
    a pool. Without it a sync function runs in its caller's thread: there the timeout ends only its retries, and the
    waiting of others who want the same key. ``lookup.on-error`` ``null`` returns None in the place of a key's
    list, which tells an error from a key without rows; ``lookup.error-column`` then names nothing. ``clock`` gives
    seconds; ``retryable`` says which errors are worth a retry, ``retry_after`` how many seconds the source
    wants to be left alone.

    Raises OptionError for options that need a table or a join, and SourceError where the function returns
    something else than lists of rows; else what the function raised last.

    >>> @cached(LookupConfig(cache="LRU", max_rows=100))
    ... def rows_of(customer_id):
    ...     return [{"id": customer_id, "country": "NL"}]
    >>> rows_of(7), rows_of(7) == rows_of(7), rows_of.metrics().hits
    ([{'id': 7, 'country': 'NL'}], True, 2)
    """
    config = LookupConfig(cache="LRU") if config is None else config
    _refuse_what_needs_more(config, batch)

    def decorate(function: Callable[..., Any]) -> Any:
        tally = Tally()
        limiter = None if config.rate_limit is None else RateLimit.of_executor(config.rate_limit, _name(function))
        guard = Guard(config, retryable=retryable, retry_after=retry_after, tally=tally, limiter=limiter, clock=clock)
        if not is_async(function):
            return _SyncLookup(SyncCallee(function, batch), config, guard, clock).decorated()
        if config.async_ is False:
            raise OptionError("'lookup.async' = 'false' does not fit an async function.", hint="Leave the option out.")
        return _AsyncLookup(AsyncCallee(function, batch), config, guard, clock).decorated()

    return decorate


def _refuse_what_needs_more(config: LookupConfig, batch: bool) -> None:
    if config.cache == "ALL":
        raise OptionError("'lookup.cache' = 'ALL' needs a table that can be read whole.", hint="Use LRU or TTL.")
    given = {
        "'lookup.on-error' = 'dead-letter'": config.on_error == "dead-letter",
        "'lookup.age-column'": config.age_column is not None,
        "'lookup.async.output-mode' = 'allow-unordered'": config.output_mode != "ordered",
        "'lookup.shuffle'": config.shuffle,
    }
    for option in (option for option, is_given in given.items() if is_given):
        raise OptionError(f"{option} needs a join; a decorated function has none.", hint="Leave the option out.")
    if not batch and (config.batch_max_size is not None or config.batch_max_delay is not None):
        raise OptionError(
            "'lookup.batch.max-size' and 'lookup.batch.max-delay' mean nothing to a function of one key.",
            hint="Write it for many keys, with batch=True, or leave the option out.",
        )


def _name(function: Any) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


class _SyncLookup(SingleFlight):
    """Calls are made in the thread of who opened them, or in a pool: with ``lookup.async``, and to refresh."""

    def __init__(self, callee: SyncCallee, config: LookupConfig, guard: Guard, clock: Callable[[], float]) -> None:
        super().__init__(callee, config, guard, clock)
        self.callee = callee
        self.pool = DaemonPool(config.async_capacity)
        self._fails_at_once = config.on_error == "fail" and config.stale_if_error is None

    def decorated(self) -> Any:
        """Return the function that takes the place of the wrapped one."""

        def one(*key: Any) -> Any:
            rows = self._held(key)
            return self._many([key])[0] if rows is None else rows

        wrapper: Any = (lambda keys: self._many(list(keys))) if self.batch else one
        wrapper.close = self.close
        return self._equipped(wrapper)

    def close(self) -> None:
        """Wait for the calls in the pool, at most ``lookup.timeout``, and close the function's object."""
        self.pool.join(self.config.timeout)
        self.callee.close()

    def _many(self, keys: list[Key]) -> list[Any]:
        wanted = self._want(keys)
        self._make(wanted)
        while wanted.calls:
            call = next(iter(wanted.calls))
            self._take(wanted, call, self._awaited(call))
            self._make(wanted)
        return wanted.rows(keys)

    def _make(self, wanted: Wanted) -> None:
        """Make the caller's calls, or have them made."""
        opened, refreshing, wanted.opened, wanted.refreshing = wanted.opened, wanted.refreshing, [], []
        for call in refreshing + (opened if self.config.async_ else []):
            call.carrier = self.pool.start(partial(self._carry_in_pool, call))
        if opened and not self.config.async_:
            self._carry_all(opened)

    def _carry_all(self, calls: list[Call]) -> None:
        for call in calls:
            self._begin(call)
        try:
            for call in calls:
                self._carry(call)
                if call.error is not None and self._fails_at_once:
                    break
        finally:
            for call in calls:
                self._failed(call, None)

    def _carry(self, call: Call) -> None:
        started = time.perf_counter()
        try:
            self.batches.wait_closed(call)
            started = self._begin(call)
            self._answered(call, self.guard.until_found_now(self._ask, call.keys, without_rows))
        except Exception as error:
            self._failed(call, error)
        finally:
            self.tally.add("source_seconds", time.perf_counter() - started)

    def _carry_in_pool(self, call: Call) -> None:
        try:
            self._carry(call)
        except BaseException as error:
            self._failed(call, error)

    def _ask(self, keys: list[Key]) -> Answers:
        self._count_asked(keys)
        return self.callee.ask(keys)

    def _awaited(self, call: Call) -> BaseException | None:
        """Wait for a call and return its error; it may be another caller's, and hang."""
        while not call.ended.wait(min(max(call.deadline - time.monotonic(), 0.0), self.config.timeout)):
            if not self._lost(call):
                continue
            with self._lock:
                self._give_up(call)
            if not call.ended.is_open:
                return self.guard.timed_out()
        return call.error

    def _give_up(self, call: Call) -> None:
        super()._give_up(call)
        if call.carrier is not None and not call.ended.is_open:
            self.pool.give_up(call.carrier)
            call.end(error=self.guard.timed_out())


@dataclass(slots=True)
class _Lanes:
    """The calls of one event loop: those that are being made, and those that wait for room."""

    busy: dict[asyncio.Task[None], Call] = field(default_factory=dict)
    queue: deque[tuple[Call, Context]] = field(default_factory=deque)


class _AsyncLookup(SingleFlight):
    """Calls are made in tasks of their own, so that a caller who is cancelled does not fail the others."""

    def __init__(self, callee: AsyncCallee, config: LookupConfig, guard: Guard, clock: Callable[[], float]) -> None:
        super().__init__(callee, config, guard, clock)
        self.callee = callee
        self._lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lanes] = WeakKeyDictionary()

    def decorated(self) -> Any:
        """Return the function that takes the place of the wrapped one."""

        async def many(keys: Iterable[Key]) -> list[Any]:
            return await self._many(list(keys))

        async def one(*key: Any) -> Any:
            rows = self._held(key)
            return (await self._many([key]))[0] if rows is None else rows

        wrapper: Any = many if self.batch else one
        wrapper.close = wrapper.aclose = self.close
        return self._equipped(wrapper)

    async def close(self) -> None:
        """Cancel the calls of this event loop, and those who wait for them; close the function's object."""
        lanes = self._lanes_here()
        tasks = list(lanes.busy)
        for call in [*lanes.busy.values(), *(call for call, _ in lanes.queue)]:
            self._failed(call, asyncio.CancelledError("The decorated function was closed."))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.callee.close()

    async def _many(self, keys: list[Key]) -> list[Any]:
        wanted = self._want(keys)
        self._make(wanted)
        while wanted.calls:
            call = next(iter(wanted.calls))
            self._take(wanted, call, await self._awaited(call))
            self._make(wanted)
        return wanted.rows(keys)

    def _make(self, wanted: Wanted) -> None:
        opened, wanted.opened, wanted.refreshing = wanted.opened + wanted.refreshing, [], []
        if opened:
            lanes = self._lanes_here()
            lanes.queue.extend((call, copy_context()) for call in opened)
            self._staff(lanes)

    def _staff(self, lanes: _Lanes) -> None:
        """Make calls as far as there is room, in the order and the contexts in which they were opened."""
        while lanes.queue and len(lanes.busy) < self.config.async_capacity:
            call, context = lanes.queue.popleft()
            task = asyncio.get_running_loop().create_task(self._carry_in(lanes, call), context=context)
            lanes.busy[task] = call
            task.add_done_callback(partial(self._ended, lanes))

    async def _carry_in(self, lanes: _Lanes, call: Call) -> None:
        """Make a call, and see that the next is made: by this task, which ends before the loop does, or with it."""
        await self._carry(call)
        this: Any = asyncio.current_task()
        del lanes.busy[this]
        self._staff(lanes)

    def _ended(self, lanes: _Lanes, task: asyncio.Task[None]) -> None:
        """Give up the call of a task that was cancelled, maybe before its first step, and those that wait for room.

        Whoever cancels tasks of ours is ending the event loop.
        """
        if task in lanes.busy:
            undone = [lanes.busy.pop(task), *(call for call, _ in lanes.queue)]
            lanes.queue.clear()
            for call in undone:
                self._failed(call, None)

    async def _carry(self, call: Call) -> None:
        started = time.perf_counter()
        try:
            await self.batches.wait_closed_async(call)
            started = self._begin(call)
            asking = self.guard.until_found(self._ask, call.keys, without_rows)
            self._answered(call, await self.guard.within(asking))
        except Exception as error:
            self._failed(call, error)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            self._failed(call, error)
        finally:
            self.tally.add("source_seconds", time.perf_counter() - started)

    async def _ask(self, keys: list[Key]) -> Answers:
        self._count_asked(keys)
        return await self.callee.ask(keys)

    async def _awaited(self, call: Call) -> BaseException | None:
        """Wait for a call and return its error; it may be on another event loop, and hang."""
        if call.home is self._home():
            await call.ended.wait_async()
            return call.error
        while not await call.ended.wait_async(min(max(call.deadline - time.monotonic(), 0.0), self.config.timeout)):
            if not self._lost(call):
                continue
            with self._lock:
                self._give_up(call)
            if not call.ended.is_open:
                return self.guard.timed_out()
        return call.error

    def _home(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _lanes_here(self) -> _Lanes:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._lanes:
                self._lanes[loop] = _Lanes()
            return self._lanes[loop]


def _is_cancelled() -> bool:
    """Return whether it is this task that is cancelled, rather than something that it awaits."""
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())
