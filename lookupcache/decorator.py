"""`cached`: the cache and the retries before any lookup function, without Spark.

Single flight: while one caller asks for a key, all others who want it wait for that answer, whether they
are threads or coroutines; an error reaches all of them and is not kept.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

from lookupcache.cache import Limits, RowCache
from lookupcache.config import LookupConfig
from lookupcache.connector import worth_a_retry
from lookupcache.errors import OptionError, SourceError
from lookupcache.metrics import LookupMetrics, Tally
from lookupcache.retry import Retry

Rows = list[Any]
Key = Hashable


def cached(
    config: LookupConfig | None = None,
    *,
    batch: bool = False,
    clock: Callable[[], float] = time.monotonic,
    retryable: Callable[[Exception], bool] = worth_a_retry,
) -> Callable[[Callable[..., Any]], Any]:
    """Cache a lookup function: sync or async, one key at a time or, with ``batch=True``, many.

    One key at a time, ``function(*key)`` returns an iterable of rows, or None for no rows; the decorated
    function returns a list. With ``batch=True``, ``function(keys)`` takes a list of keys and returns one
    iterable of rows per key in the same order; it is called with those keys only that are not in the cache,
    each once. Keys must be hashable; rows can be anything.

    The decorated function has ``metrics()``, ``invalidate(*keys)`` and ``clear()``. ``clock`` gives
    seconds; ``retryable`` says which errors are worth a retry. Raises OptionError for ALL, which needs a
    table that can be read whole, and SourceError where a batch function returns another number of lists.

    >>> @cached(LookupConfig(cache="LRU", max_rows=100))
    ... def rows_of(customer_id):
    ...     return [{"id": customer_id, "country": "NL"}]
    >>> rows_of(7), rows_of(7) == rows_of(7), rows_of.metrics().hits
    ([{'id': 7, 'country': 'NL'}], True, 2)
    """
    config = LookupConfig(cache="LRU") if config is None else config
    if config.cache == "ALL":
        raise OptionError("'lookup.cache' = 'ALL' needs a table that can be read whole.", hint="Use LRU or TTL.")

    def decorate(function: Callable[..., Any]) -> Any:
        kind = _AsyncLookup if _is_async(function) else _SyncLookup
        lookup = kind(function, config, batch, clock, retryable)
        return lookup.decorated()

    return decorate


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


@dataclass
class _Claim:
    """Who answers for the keys of one call: the cache, this caller, or one who asked before."""

    found: dict[Key, Rows] = field(default_factory=dict)
    mine: list[Key] = field(default_factory=list)
    waits: dict[Key, Future[Rows]] = field(default_factory=dict)


class _Lookup:
    """What sync and async lookups share: the cache, and which keys are being asked for."""

    def __init__(
        self,
        function: Callable[..., Any],
        config: LookupConfig,
        batch: bool,
        clock: Callable[[], float],
        retryable: Callable[[Exception], bool],
    ) -> None:
        self.function = function
        self.batch = batch
        self.clock = clock
        self.tally = Tally()
        self.retry = Retry(config, retryable, self.tally)
        self.cache = RowCache(Limits.of(config))
        self._asking: dict[Key, Future[Rows]] = {}
        self._lock = threading.Lock()

    def decorated(self) -> Any:
        """Return the function that takes the place of the wrapped one."""
        raise NotImplementedError

    def metrics(self) -> LookupMetrics:
        """Return the counts so far."""
        with self._lock:
            cache = self.cache
            held = {"cached_rows": cache.rows, "cached_bytes": cache.nbytes, "cached_keys": len(cache)}
            gone = {"evictions": cache.evictions, "expirations": cache.expirations}
            return LookupMetrics.of({**self.tally, **held, **gone})

    def invalidate(self, *keys: Key) -> None:
        """Forget these keys; a key of several columns is a tuple."""
        with self._lock:
            for key in keys:
                self.cache.remove(key if self.batch or isinstance(key, tuple) else (key,))

    def clear(self) -> None:
        """Forget every key."""
        with self._lock:
            self.cache.clear()

    def _equipped(self, wrapper: Any) -> Any:
        functools.update_wrapper(wrapper, self.function)
        wrapper.metrics, wrapper.invalidate, wrapper.clear = self.metrics, self.invalidate, self.clear
        return wrapper

    def _claim(self, keys: Sequence[Key]) -> _Claim:
        claim, now = _Claim(), self.clock()
        with self._lock:
            distinct = dict.fromkeys(keys)
            for key in distinct:
                rows = self.cache.get(key, now)
                if rows is not None:
                    claim.found[key] = list(rows)
                elif key in self._asking:
                    claim.waits[key] = self._asking[key]
                else:
                    claim.mine.append(key)
                    claim.waits[key] = self._asking[key] = Future()
            self.tally["rows"] += len(keys)
            self.tally["keys"] += len(distinct)
            self.tally["misses"] += len(claim.mine)
            self.tally["hits"] += len(keys) - len(claim.mine)
        return claim

    def _answered(self, keys: Sequence[Key], answers: Iterable[Iterable[Any] | None]) -> None:
        rows_of = [[] if answer is None else list(answer) for answer in answers]
        if len(rows_of) != len(keys):
            raise SourceError(
                f"The batch function returned {len(rows_of)} lists for {len(keys)} keys.",
                hint="Return one list of rows per key, in the order of the keys.",
            )
        with self._lock:
            self.tally["fetched_rows"] += sum(map(len, rows_of))
            for key, rows in zip(keys, rows_of, strict=True):
                self.cache.put(key, rows, self.clock())
                self._asking.pop(key).set_result(rows)

    def _failed(self, keys: Sequence[Key], error: BaseException) -> None:
        with self._lock:
            for key in keys:
                if (future := self._asking.pop(key, None)) is not None:
                    future.set_exception(error)

    def _asked(self, keys: Sequence[Key]) -> list[Any]:
        """Count one call and return the arguments that it takes."""
        with self._lock:
            self.tally["calls"] += 1
            self.tally["asked_keys"] += len(keys)
        return [list(keys)] if self.batch else list(cast(tuple[Any, ...], keys[0]))


class _SyncLookup(_Lookup):
    def decorated(self) -> Any:
        if self.batch:
            return self._equipped(lambda keys: self._many(list(keys)))
        return self._equipped(lambda *key: self._many([key])[0])

    def _many(self, keys: list[Key]) -> list[Rows]:
        claim = self._claim(keys)
        if claim.mine:
            self._load(claim.mine)
        for key, future in claim.waits.items():
            claim.found[key] = future.result()
        return [list(claim.found[key]) for key in keys]

    def _load(self, keys: list[Key]) -> None:
        started = time.perf_counter()
        try:
            answer = self.retry.call(lambda: self.function(*self._asked(keys)))
            self._answered(keys, answer if self.batch else [answer])
        except BaseException as error:
            self._failed(keys, error)
            raise
        finally:
            self.tally.spend("source_seconds", started)


class _AsyncLookup(_Lookup):
    def decorated(self) -> Any:
        self._loads: set[asyncio.Task[None]] = set()

        async def many(keys: Iterable[Key]) -> list[Rows]:
            return await self._many(list(keys))

        async def one(*key: Any) -> Rows:
            return (await self._many([key]))[0]

        return self._equipped(many if self.batch else one)

    async def _many(self, keys: list[Key]) -> list[Rows]:
        claim = self._claim(keys)
        if claim.mine:
            await asyncio.shield(self._start(claim.mine))
        for key, future in claim.waits.items():
            claim.found[key] = await asyncio.shield(asyncio.wrap_future(future))
        return [list(claim.found[key]) for key in keys]

    def _start(self, keys: list[Key]) -> asyncio.Task[None]:
        """Load in a task of its own: a caller that is cancelled must not fail the others."""
        task = asyncio.ensure_future(self._load(keys))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
        return task

    async def _load(self, keys: list[Key]) -> None:
        started = time.perf_counter()
        try:
            answer = await self.retry.call_async(lambda: self._call(keys))
            self._answered(keys, answer if self.batch else [answer])
        except BaseException as error:
            self._failed(keys, error)
            raise
        finally:
            self.tally.spend("source_seconds", started)

    def _call(self, keys: list[Key]) -> Awaitable[Any]:
        result: Awaitable[Any] = self.function(*self._asked(keys))
        return result
