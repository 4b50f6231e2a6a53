"""`SingleFlight`: the cache, and who asks the source for what it does not hold.

While one caller asks for a key, all others who want it wait for that answer, whether they are threads or
coroutines, of one event loop or of many; an error reaches all of them and is not kept. How calls are made is
for others to say.
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lookupcache.cache import Limits, RowCache
from lookupcache.calls.guard import GaveUp, Guard
from lookupcache.config import LookupConfig
from lookupcache.decorator.batching import Batches, Call
from lookupcache.decorator.callee import AsyncCallee, Key, Rows, SyncCallee
from lookupcache.metrics import LookupMetrics

Answers = dict[Key, Rows]


@dataclass(slots=True)
class Wanted:
    """What a caller has, and the calls that bring the rest; ``opened`` and ``refreshing`` are its own to make."""

    found: dict[Key, Sequence[Any] | None] = field(default_factory=dict)
    calls: dict[Call, list[Key]] = field(default_factory=dict)
    opened: list[Call] = field(default_factory=list)
    refreshing: list[Call] = field(default_factory=list)

    def rows(self, keys: Sequence[Key]) -> list[Any]:
        """Return a list of rows per key that is the caller's own, or None where there is an error instead."""
        found = self.found
        return [None if (rows := found[key]) is None else list(rows) for key in keys]


class SingleFlight:
    """What sync and async lookups share: the cache, and which keys are being asked for, by which calls."""

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

    def _want(self, keys: Sequence[Key]) -> Wanted:
        wanted, distinct = Wanted(), dict.fromkeys(keys)
        with self._lock:
            misses = self._claim(distinct, wanted)
            self.tally["rows"] += len(keys)
            self.tally["keys"] += len(distinct)
            self.tally["misses"] += misses
            self.tally["hits"] += len(keys) - misses
        return wanted

    def _claim(self, keys: Iterable[Key], wanted: Wanted) -> int:
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

    def _take(self, wanted: Wanted, call: Call, error: BaseException | None) -> None:
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


def without_rows(keys: list[Key], answers: Answers) -> list[Key] | None:
    return [key for key in keys if not answers[key]] or None
