"""`SingleFlight`: the cache, and the calls in flight for missing keys: one call per key for all callers.

While one caller requests a key, all others wait for that answer: threads, and coroutines of any event loop. An error
reaches all of them and is not cached. How calls are made is decided in `sync_lookup` and `async_lookup`.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from lookupcache.cache import Limits, RowCache
from lookupcache.cache.given_cache import GivenCache
from lookupcache.cache.row_cache import Entry, rows_in
from lookupcache.config import LookupConfig
from lookupcache.decorator.arguments import (
    COMPARED_IN_C,
    SIMPLE,
    Instances,
    Key,
    equal_arguments,
    instance_of,
    is_of,
    kinds_of,
    owner_of,
    stored_key,
    with_kinds,
)
from lookupcache.decorator.batching import BatchedCall, Batches
from lookupcache.decorator.keyed_function import KeyedFunction
from lookupcache.decorator.values import Values, fetch_values
from lookupcache.errors import OptionError
from lookupcache.executor.job import Job
from lookupcache.executor.nesting import open_call
from lookupcache.metrics import LookupMetrics
from lookupcache.resilience.policy import AttemptsExhaustedError, ResiliencePolicy
from lookupcache.resilience.runtime import Runtime

if TYPE_CHECKING:
    from lookupcache.decorator.shared_cache import SharedCache
    from lookupcache.decorator.stored_values import ValueStore

Answers = dict[Key, Any]
RequestKeys = Callable[[list[Key]], Awaitable[list[tuple[list[Key], Answers]]]]

_FOREVER = math.inf

_KINDS_ALLOWED = 32
"""The number of combinations of argument types that are kept before unused ones are dropped."""

_all: WeakSet[SingleFlight] = WeakSet()


@dataclass(slots=True)
class CallerKeys:
    """The cached values of a caller's keys, and the calls for the others; it makes ``opened`` and ``refreshing``."""

    found: dict[Key, Any] = field(default_factory=dict)
    calls: dict[BatchedCall, list[Key]] = field(default_factory=dict)
    opened: list[BatchedCall] = field(default_factory=list)
    refreshing: list[BatchedCall] = field(default_factory=list)


class SingleFlight:
    """Base class of sync and async lookups: the cache, and the calls in flight by key.

    Without ``values``, a mapping, values are in a cache with the config's limits.
    """

    uses_jobs = True
    """Whether calls for which a caller waits are made in slots, and not in its own thread."""

    def __init__(
        self,
        function: KeyedFunction,
        config: LookupConfig,
        resilience: ResiliencePolicy,
        clock: Callable[[], float],
        shared: SharedCache | None = None,
        store: ValueStore | None = None,
        values: MutableMapping[Any, Any] | None = None,
    ) -> None:
        self.config = config
        self.shared = shared
        self.store = store
        # The deepest tier first: otherwise another thread could copy an old value from it into the upper one.
        self.tiers = [tier for tier in (store, shared) if tier is not None]
        self.resilience = resilience
        self.counters = resilience.counters
        self.clock = clock
        self.function = function
        limits = Limits.of(config)
        self.cache: RowCache | GivenCache = RowCache(limits) if values is None else GivenCache(values, limits)
        self.maxsize = config.size_in("worker")[0] if values is None else cast(Any, values).maxsize
        self._entries, self._touch = self.cache.entries, self.cache.touch
        self.instances = Instances()
        self._kinds: set[Key] = set()
        self._kinds_allowed = _KINDS_ALLOWED
        # One count for three metrics, to keep the lock short: many threads may request hot keys.
        self._plain_hits = 0
        self._repeated = 0
        self._until_purge = 0
        self._start_without_calls()
        _all.add(self)

    def _start_without_calls(self) -> None:
        """Initialize the state of calls, before the first call."""
        size = (self.config.batch_max_size or math.inf) if self.function.batch else 1
        self.batches = Batches(size, self.config.batch_max_delay or 0.0)
        self._calls: dict[Key, BatchedCall] = {}
        # Reentrant: destructors of cached values, keys' __eq__ and signal handlers run in a thread that may hold it.
        self._lock = threading.RLock()

    def reset_after_fork(self) -> None:
        """Drop the state of threads and event loops of the parent process, which do not exist in this process."""
        if not self._lock.acquire(blocking=False) or self.shared is not None:
            # A thread of the parent was changing the cache, which may be inconsistent. Or hits would hide what other
            # processes invalidate: the thread that notices it starts with the first value that is read from the files.
            self.cache.clear()
        self._start_without_calls()
        self.resilience.reset_after_fork()
        self.function.adapter.reset_after_fork()
        self.instances.reset_after_fork()
        for tier in self.tiers:
            tier.reset_after_fork()

    def metrics(self) -> LookupMetrics:
        """Return the counts so far."""
        with self._lock:
            self._purge()
            cache = self.cache
            cached = {"cached_rows": cache.rows, "cached_bytes": cache.nbytes, "cached_keys": len(cache)}
            removed = {"evictions": cache.evictions, "expirations": cache.expirations}
            seen = {name: self.counters[name] + self._plain_hits for name in ("rows", "keys", "hits")}
            seen["keys"] -= self._repeated
            return LookupMetrics.of({**self.counters, **seen, **cached, **removed})

    def invalidate(self, values: Key) -> bool:
        """Remove a key, and do not cache a call in flight for it; return whether there was either.

        Equal keys of other types are removed too: if key 1 has changed, so has 1.0.
        """
        with self._lock:
            keys = self._of_all_kinds(values)
        self._invalidate_tiers(equal_arguments(values))
        with self._lock:
            found = [self._disown(key) | self.cache.remove(key) for key in keys]
        return any(found)

    def _invalidate_tiers(self, keys: Sequence[Key] | None) -> None:
        for tier in self.tiers:
            if tier.open(self._drop):
                tier.invalidate(keys)

    def _close_tiers(self) -> None:
        for tier in reversed(self.tiers):
            tier.close()
        if self.shared is not None:  # Nothing notices any more what other processes invalidate.
            self._drop(None)

    def _drop(self, keys: Sequence[Key] | None) -> None:
        """Remove keys that another process has invalidated; None stands for all."""
        with self._lock:
            if keys is None:
                self.cache.clear()
                keys = list(self._calls)
            for key in [one for values in keys for one in self._of_all_kinds(values)]:
                self._disown(key)
                self.cache.remove(key)

    def _of_all_kinds(self, values: Key) -> list[Key]:
        """Return the keys that some arguments have with each combination of types that was used."""
        return [values, *(with_kinds(values, kinds) for kinds in self._kinds if len(kinds) == len(values))]

    def clear(self, instance: Any = None) -> None:
        """Remove every key, or those of one object's method."""
        if instance is None:
            self._invalidate_tiers(None)
        with self._lock:
            if instance is None:
                self.cache.clear()
            else:
                self.cache.remove_all(lambda key: is_of(cast(Key, key), instance))
            for key in list(self._calls):
                if instance is None or is_of(key, instance):
                    self._disown(key)
            self._drop_unused_kinds()

    def _disown(self, key: Key) -> bool:
        """Keep the call for a key from changing the cache, unless it still waits for more keys."""
        call = self._calls.get(key)
        if call is not None and call.closed:
            del self._calls[key]
        return call is not None

    def _purge(self) -> None:
        """Remove the entries of freed objects. The sweep visits every key, so it is rare."""
        dead = self.instances.dead
        self._until_purge = len(self.cache) // 4
        if dead:
            lost = {dead.popleft() for _ in range(len(dead))}
            self.cache.remove_all(lambda key: instance_of(cast(Key, key)) in lost)

    # ── cache or call ─────────────────────────────────────────────────────────────────────────────────────

    def find_simple_hit(self, key: Key) -> Entry | None:
        """Return the same as `find_hit` for the values of a call, without the lock, in the usual case; else None.

        No count is lost: CPython does not switch threads inside of the line that adds one.
        """
        for value in key:
            if type(value) not in SIMPLE:
                kinds = tuple(map(type, key))
                if not COMPARED_IN_C.issuperset(kinds):
                    return None
                key = with_kinds(key, kinds)
                break
        try:
            entry = self._entries[key]
            until = entry.simple_until
            if until < _FOREVER and self.clock() >= until:
                return None
            self._touch(key)
        except KeyError:  # not there, or another thread removed it just now
            return None
        self._plain_hits += 1
        return entry

    def find_simple_hits(self, keys: Sequence[Key]) -> list[Any] | None:
        """Return the values of keys of `SIMPLE` types, if all of them are simple hits."""
        now, entries, touch, values = self.clock(), self._entries, self._touch, []
        try:
            for key in keys:
                entry = entries[key]
                if now >= entry.simple_until:
                    return None
                touch(key)
                values.append(entry.value)
        except KeyError:
            return None
        self._plain_hits += len(keys)
        self._repeated += len(keys) - len(set(keys))
        return values

    def find_hit(self, key: Key) -> Entry | None:
        """Return the cached value of a key, if nothing else has to be done."""
        now = self.clock()
        with self._lock:
            entry = self.cache.find(key, now)
            if entry is None or (now >= entry.refresh_at and self._in_flight(key) is None):
                return None
            self._plain_hits += 1
        return entry

    def _want(self, keys: Sequence[Key]) -> CallerKeys:
        pending, distinct = CallerKeys(), dict.fromkeys(keys)
        with self._lock:
            misses = self._claim(distinct, pending)
            self.counters["rows"] += len(keys)
            self.counters["keys"] += len(distinct)
            self.counters["misses"] += misses
            self.counters["hits"] += len(keys) - misses
        return pending

    def _claim(self, keys: Iterable[Key], pending: CallerKeys) -> int:
        """Find each key in the cache or in a call in flight, or open a call; return how many keys opened one."""
        now, find, found = self.clock(), self.cache.find, pending.found
        missing, aging = [], []
        for key in keys:
            entry = find(key, now)
            if entry is not None:
                found[key] = entry.value
                if now >= entry.refresh_at and self._in_flight(key) is None:
                    aging.append(key)
            elif (call := self._in_flight(key)) is not None:
                pending.calls.setdefault(call, []).append(key)
            else:
                missing.append(key)
        if missing:
            pending.opened = self._open_calls(missing, pending.calls)
        if aging:
            pending.refreshing = self._open_calls(aging, {}, in_background=True)
            self.counters["refreshes"] += len(aging)
        return len(missing)

    def _open_calls(
        self, keys: list[Key], waits: dict[BatchedCall, list[Key]], in_background: bool = False
    ) -> list[BatchedCall]:
        """Put keys into calls, and return the new ones, ``in_background`` if their caller does not wait."""
        calls, opened = self.batches.add(keys, self._loop(), owner_of(keys[0]))
        for call in opened:
            call.maker, call.outer, call.refresh = self, open_call(), in_background
            # As soon as others can wait for the call: one of them may have to run the job inline.
            call.job = CallJob(self, call) if in_background or self.uses_jobs else None
        for key, call in zip(keys, calls, strict=True):
            self._calls[key] = call
            waits.setdefault(call, []).append(key)
            if (kinds := kinds_of(key)) is not None:
                self._kinds.add(kinds)
        if len(self._kinds) > self._kinds_allowed:
            self._drop_unused_kinds()
        return opened

    def _drop_unused_kinds(self) -> None:
        """Drop argument types that no key has any more; it visits every key, so only if there are many of them."""
        found = (kinds_of(cast(Key, key)) for keys in (self.cache.entries, self._calls) for key in keys)
        self._kinds = {kinds for kinds in found if kinds is not None}
        self._kinds_allowed = max(2 * len(self._kinds), _KINDS_ALLOWED)

    def run_job(self, job: CallJob) -> Any:
        """Make the call of a job; an async lookup returns a coroutine that does."""
        raise NotImplementedError

    def end_job(self, job: CallJob, answer: Any) -> None:
        """Receive what `run_job` returned or raised."""
        raise NotImplementedError

    def _in_flight(self, key: Key) -> BatchedCall | None:
        call = self._calls.get(key)
        if call is None or not self._is_lost(call):
            return call
        self._abandon(call)
        return None

    def _is_lost(self, call: BatchedCall) -> bool:
        """Return whether no answer can be expected: the call is overdue, or its event loop does not run any more."""
        return time.monotonic() >= call.deadline or not (call.loop is None or call.loop.is_running())

    def _abandon(self, call: BatchedCall) -> None:
        """Let others request the keys of a lost call again."""
        self._forget(call)
        if call.loop is not None and call.loop.is_closed():
            call.end()

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return None

    # ── how a call ends ───────────────────────────────────────────────────────────────────────────────────

    def _begin(self, call: BatchedCall, *, waits: bool = False) -> float:
        """Set a call's deadline; a call that ``waits`` has twice the time, since others may request its keys first."""
        times = 2 if waits and self.tiers else 1
        call.deadline = min(time.monotonic() + times * self.config.timeout, call.until)
        return time.perf_counter()

    # ── the tiers behind the cache ───────────────────────────────────────────────────────────────────────

    async def _answers(self, call: BatchedCall, request: RequestKeys, runtime: Runtime, files: Runtime) -> Values:
        """Return the values of a call's keys: from other processes of the host, from the store, or from the function.

        ``request`` calls the function; ``files`` says how to wait for work on the host's files.
        """

        async def ask_function(keys: list[Key], until: float) -> Values:
            self._limit_time(call, until)
            return Values({key: value for _, some in await request(keys) for key, value in some.items()})

        # One timeout is for other hosts and one for the function; in its caller's thread it has none.
        timeout = self.config.timeout
        most = math.inf if call.job is None else 2 * timeout

        async def ask_store(keys: list[Key], until: float) -> Values:
            if self.store is None:
                return await ask_function(keys, until)
            stored = self.store.call(keys, refresh=call.refresh, most=most)
            values = await fetch_values(stored, keys, ask_function, runtime, self.counters, timeout, until)
            values.add(stored.found)
            return values

        if self.shared is None or not self.shared.open(self._drop):
            return await ask_store(call.keys, math.inf)
        shared = self.shared.call(call.keys, refresh=call.refresh, most=most)
        call.shared = shared.found
        return await fetch_values(shared, call.keys, ask_store, files, self.counters, timeout)

    def _limit_time(self, call: BatchedCall, until: float) -> None:
        """Let a call that has waited for another process end within one timeout; raises LookupTimeoutError after it.

        The function has been called for these keys all the time, though elsewhere. One that runs in its caller's thread
        has no timeout.
        """
        if until < math.inf and call.job is not None:
            call.until = until
            if time.monotonic() >= until:
                raise self.resilience.timeout_error()

    def _record_answers(self, call: BatchedCall, fetched: Values) -> None:
        answers = fetched.values
        with self._lock:
            now = self.clock()
            self.counters["fetched_rows"] += sum(map(rows_in, answers.values()))
            for key, value in answers.items():
                if self._calls.get(key) is call:
                    self.cache.put(stored_key(key), value, fetched.written.get(key, now))
            if call.shared is not None:
                self._put_shared(call, call.shared)
                answers |= call.shared.values
            self._end(call, answers)
            self._until_purge -= len(answers)
            if self._until_purge < 0:
                self._purge()

    def _put_shared(self, call: BatchedCall, shared: Values) -> None:
        """Cache values that other processes have fetched, with their ages."""
        for key, value in shared.values.items():
            if self._calls.get(key) is call:
                self.cache.put(key, value, shared.written[key])
        if not call.refresh:
            self.counters["misses"] -= len(shared.values)
            self.counters["hits"] += len(shared.values)

    def _record_failure(self, call: BatchedCall, error: BaseException | None) -> None:
        """End a call with an error for all waiting callers, or with None: they then request the keys again."""
        with self._lock:
            if not call.ended.is_open:
                if call.shared is not None:
                    self._put_shared(call, call.shared)
                self._end(call, error=_cause(error))

    def _end(self, call: BatchedCall, answers: Answers | None = None, error: BaseException | None = None) -> None:
        self._forget(call)
        call.end(answers, error)

    def _forget(self, call: BatchedCall) -> None:
        self.batches.close(call)
        for key in call.keys:
            if self._calls.get(key) is call:
                del self._calls[key]

    def _take(self, pending: CallerKeys, call: BatchedCall, error: BaseException | None) -> None:
        """Return the values of a call, or their replacement; request the keys again if the call did not end."""
        keys = pending.calls.pop(call)
        if error is not None:
            if call.shared is not None:
                keys = self._take_shared(pending, keys)
            # Not a generator: it would turn a StopIteration into a RuntimeError.
            pending.found.update({key: self._replacement(key, error) for key in keys})
        elif call.answers is not None:
            pending.found.update((key, call.answers[key]) for key in keys)
        else:
            with self._lock:
                self._claim(keys, pending)

    def _take_shared(self, pending: CallerKeys, keys: list[Key]) -> list[Key]:
        """Take the values that other processes had for a call that has failed; return the other keys."""
        with self._lock:
            entries = {key: self.cache.find(key, self.clock()) for key in keys}
        pending.found.update((key, entry.value) for key, entry in entries.items() if entry is not None)
        return [key for key, entry in entries.items() if entry is None]

    def _replacement(self, key: Key, error: BaseException) -> Any:
        """Return a stale value, or None, instead of an error, if the options allow it; else raise the error."""
        with self._lock:
            entry = self.cache.find_stale(key, self.clock()) if isinstance(error, Exception) else None
            if entry is not None:
                self.counters["stale"] += 1
                return entry.value
        if self.config.on_error == "null" and isinstance(error, Exception) and not isinstance(error, OptionError):
            self.counters.add("failed_rows")
            return None
        raise error

    def _count_requests(self, keys: Sequence[Key]) -> None:
        self.counters.add("requested_keys", len(keys))


class CallJob(Job):
    """Makes a call in a slot, in the context of the caller that opened it; the result is stored in the call."""

    def __init__(self, lookup: SingleFlight, call: BatchedCall) -> None:
        self.lookup = lookup
        self.call = call
        self.context = copy_context()
        self.is_timed = False

    def run(self) -> Any:
        return self.lookup.run_job(self)

    def end(self, answer: Any) -> None:
        self.lookup.end_job(self, answer)

    def timeout_error(self) -> BaseException:
        return self.lookup.resilience.timeout_error()

    def drop(self) -> None:
        # The waiters, which may be on other event loops, request the keys again.
        self.lookup._record_failure(self.call, None)


def without_rows(keys: list[Key], answers: Answers) -> list[Key] | None:
    """Return the keys that the source does not know, or None."""
    return [key for key in keys if not rows_in(answers[key])] or None


def _cause(error: BaseException | None) -> BaseException | None:
    """Return the error that the function itself raised."""
    if isinstance(error, AttemptsExhaustedError):
        error = error.error
    return error


def _reset_after_fork() -> None:
    """Drop the state of other threads: a forked process has none of its parent's threads."""
    for lookup in list(_all):
        lookup.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
