"""`cached`: everything that goes before a lookup function, without Spark.

    key ─► cache ─► one call for all who want it ─► batch ─► capacity ─► timeout ─► retries, breaker, rate ─► function

Single flight: while one caller asks for a key, all others who want it wait for that answer, whether they
are threads or coroutines, of one event loop or of many; an error reaches all of them and is not kept.
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from lookupcache.batching import Batches, Call
from lookupcache.cache import Limits, RowCache
from lookupcache.callee import AsyncCallee, Key, Rows, SyncCallee, is_async
from lookupcache.config import LookupConfig
from lookupcache.connector import worth_a_retry
from lookupcache.errors import OptionError
from lookupcache.guard import GaveUp, Guard
from lookupcache.metrics import LookupMetrics, Tally
from lookupcache.pool import DaemonPool
from lookupcache.rate import RateLimit
from lookupcache.retry import wait_hint

Answers = dict[Key, Rows]


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


@dataclass(slots=True)
class _Wanted:
    """What a caller has, and the calls that bring the rest; ``opened`` and ``refreshing`` are its own to make."""

    found: dict[Key, Sequence[Any] | None] = field(default_factory=dict)
    calls: dict[Call, list[Key]] = field(default_factory=dict)
    opened: list[Call] = field(default_factory=list)
    refreshing: list[Call] = field(default_factory=list)

    def rows(self, keys: Sequence[Key]) -> list[Any]:
        """Return a list of rows per key that is the caller's own, or None where there is an error instead."""
        found = self.found
        return [None if (rows := found[key]) is None else list(rows) for key in keys]


class _Lookup:
    """What sync and async lookups share: the cache, and which keys are being asked for."""

    def __init__(
        self, callee: SyncCallee | AsyncCallee, config: LookupConfig, guard: Guard, clock: Callable[[], float]
    ) -> None:
        one = None if callee.batch else 1
        self.function = callee.function
        self.batch = callee.batch
        self.config = config
        self.guard = guard
        self.tally = guard.tally
        self.clock = clock
        self.cache = RowCache(Limits.of(config))
        self.batches = Batches(one or config.batch_max_size or math.inf, config.batch_max_delay or 0.0)
        self._calls: dict[Key, Call] = {}
        # One count for three: threads that want hot keys should not wait long for the lock.
        self._plain_hits = 0
        self._lock = threading.Lock()

    def metrics(self) -> LookupMetrics:
        """Return the counts so far."""
        with self._lock:
            cache = self.cache
            held = {"cached_rows": cache.rows, "cached_bytes": cache.nbytes, "cached_keys": len(cache)}
            gone = {"evictions": cache.evictions, "expirations": cache.expirations}
            seen = {name: self.tally[name] + self._plain_hits for name in ("rows", "keys", "hits")}
            return LookupMetrics.of({**self.tally, **seen, **held, **gone})

    def invalidate(self, *keys: Key) -> None:
        """Forget these keys, and what is being fetched for them; a key of several columns is a tuple."""
        with self._lock:
            for given in keys:
                key = given if self.batch or isinstance(given, tuple) else (given,)
                self.cache.remove(key)
                self._disown(key)

    def clear(self) -> None:
        """Forget every key."""
        with self._lock:
            self.cache.clear()
            for key in list(self._calls):
                self._disown(key)

    def _disown(self, key: Key) -> None:
        """Let the call for a key end without effect on the cache, unless it still waits for more keys."""
        if (call := self._calls.get(key)) is not None and call.closed:
            del self._calls[key]

    def _equipped(self, wrapper: Any) -> Any:
        # An object's own attributes, or a class's methods, are not the decorated function's.
        updated = functools.WRAPPER_UPDATES if hasattr(self.function, "__code__") else ()
        functools.update_wrapper(wrapper, self.function, updated=updated)
        wrapper.metrics, wrapper.invalidate, wrapper.clear = self.metrics, self.invalidate, self.clear
        return wrapper

    # ── who answers ──────────────────────────────────────────────────────────────────────────────────────

    def _held(self, key: Key) -> Rows | None:
        """Return the rows of a key where the cache has them and nothing else is to be done."""
        now = self.clock()
        with self._lock:
            entry = self.cache.find(key, now)
            if entry is None or (now >= entry.refresh_at and self._under_way(key) is None):
                return None
            self._plain_hits += 1
        return list(entry.rows)

    def _want(self, keys: Sequence[Key]) -> _Wanted:
        wanted, distinct = _Wanted(), dict.fromkeys(keys)
        with self._lock:
            misses = self._claim(distinct, wanted)
            self.tally["rows"] += len(keys)
            self.tally["keys"] += len(distinct)
            self.tally["misses"] += misses
            self.tally["hits"] += len(keys) - misses
        return wanted

    def _claim(self, keys: Iterable[Key], wanted: _Wanted) -> int:
        """Find for each key what answers: the cache, a call under way, or a new one; return how many want one."""
        now, find, found = self.clock(), self.cache.find, wanted.found
        missing, aging = [], []
        for key in keys:
            entry = find(key, now)
            if entry is not None:
                found[key] = entry.rows
                if now >= entry.refresh_at and self._under_way(key) is None:
                    aging.append(key)
            elif (call := self._under_way(key)) is not None:
                wanted.calls.setdefault(call, []).append(key)
            else:
                missing.append(key)
        if missing:
            wanted.opened = self._ask_for(missing, wanted.calls)
        if aging:
            wanted.refreshing = self._ask_for(aging, {})
            self.tally["refreshes"] += len(aging)
        return len(missing)

    def _ask_for(self, keys: list[Key], waits: dict[Call, list[Key]]) -> list[Call]:
        calls, opened = self.batches.add(keys, self._home())
        for key, call in zip(keys, calls, strict=True):
            self._calls[key] = call
            waits.setdefault(call, []).append(key)
        return opened

    def _under_way(self, key: Key) -> Call | None:
        call = self._calls.get(key)
        if call is None or not self._lost(call):
            return call
        self._give_up(call)
        return None

    def _lost(self, call: Call) -> bool:
        """Return whether no answer is to be hoped for: it is overdue, or its event loop is gone."""
        return time.monotonic() >= call.deadline or (call.home is not None and call.home.is_closed())

    def _give_up(self, call: Call) -> None:
        """Let others ask anew for the keys of a lost call."""
        self._forget(call)
        if call.home is not None and call.home.is_closed():
            call.end()

    def _home(self) -> asyncio.AbstractEventLoop | None:
        return None

    # ── what comes of a call ─────────────────────────────────────────────────────────────────────────────

    def _begin(self, call: Call) -> float:
        call.deadline = time.monotonic() + self.config.timeout
        return time.perf_counter()

    def _answered(self, call: Call, answered: list[tuple[list[Key], Answers]]) -> None:
        answers = {key: rows for _, answer in answered for key, rows in answer.items()}
        with self._lock:
            now = self.clock()
            for key, rows in answers.items():
                if self._calls.get(key) is call:
                    self.cache.put(key, rows, now)
            self.tally["fetched_rows"] += sum(map(len, answers.values()))
            self._end(call, answers)

    def _failed(self, call: Call, error: BaseException | None) -> None:
        """End a call with an error for all who wait, or with None, upon which they ask again."""
        with self._lock:
            if not call.ended.is_open:
                self._end(call, error=error.error if isinstance(error, GaveUp) else error)

    def _end(self, call: Call, answers: Answers | None = None, error: BaseException | None = None) -> None:
        self._forget(call)
        call.end(answers, error)

    def _forget(self, call: Call) -> None:
        self.batches.close(call)
        for key in call.keys:
            if self._calls.get(key) is call:
                del self._calls[key]

    def _take(self, wanted: _Wanted, call: Call, error: BaseException | None) -> None:
        """Give a caller what a call brought, or what stands in for it; ask again where it was given up."""
        keys = wanted.calls.pop(call)
        if error is not None:
            wanted.found.update((key, self._instead(key, error)) for key in keys)
        elif call.answers is not None:
            wanted.found.update((key, call.answers[key]) for key in keys)
        else:
            with self._lock:
                self._claim(keys, wanted)

    def _instead(self, key: Key, error: BaseException) -> Sequence[Any] | None:
        """Return old rows, or None, in the place of an error, where the options allow; else raise it."""
        with self._lock:
            rows = self.cache.stale(key, self.clock()) if isinstance(error, Exception) else None
            if rows is not None:
                self.tally["stale"] += 1
                return rows
        if self.config.on_error == "null" and isinstance(error, Exception):
            self.tally.add("failed_rows")
            return None
        raise error

    def _count_asked(self, keys: Sequence[Key]) -> None:
        self.tally.add("asked_keys", len(keys))


class _SyncLookup(_Lookup):
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

    def _make(self, wanted: _Wanted) -> None:
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
            self._answered(call, self.guard.until_found_now(self._ask, call.keys, _without_rows))
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


class _AsyncLookup(_Lookup):
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

    def _make(self, wanted: _Wanted) -> None:
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
            asking = self.guard.until_found(self._ask, call.keys, _without_rows)
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


def _without_rows(keys: list[Key], answers: Answers) -> list[Key] | None:
    return [key for key in keys if not answers[key]] or None
