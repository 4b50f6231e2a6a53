"""`SyncLookup`: calls made in the thread of who opened them, or in a pool: with ``lookup.async``, and to refresh."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from lookupcache.config import LookupConfig
from lookupcache.decorator.arguments import Key
from lookupcache.decorator.batching import Call
from lookupcache.decorator.callee import SyncCallee
from lookupcache.decorator.nesting import carrying, is_within, waiting_for
from lookupcache.decorator.pool import DaemonPool, Job
from lookupcache.decorator.single_flight import Answers, PendingKeys, SingleFlight, without_rows
from lookupcache.resilience.policy import ResiliencePolicy


class SyncLookup(SingleFlight):
    """A sync function behind the cache; threads may use it at the same time."""

    callee: SyncCallee

    def __init__(
        self, callee: SyncCallee, config: LookupConfig, resilience: ResiliencePolicy, clock: Callable[[], float]
    ) -> None:
        super().__init__(callee, config, resilience, clock)
        self._fails_at_once = config.on_error == "fail" and config.stale_if_error is None

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self.pool = DaemonPool(self.config.async_capacity)
        self._in_pool: set[Call] = set()

    def close(self) -> None:
        """Wait for the calls in the pool, at most ``lookup.timeout``, and close the function's object."""
        self.pool.join(self.config.timeout)
        self.callee.close()

    def one(self, key: Key) -> Any:
        """Return the value of a key that the cache may not have."""
        return self._found([key])[key]

    def many(self, keys: list[Key]) -> list[Any]:
        """Return the value of each key."""
        found = self._found(keys)
        return [found[key] for key in keys]

    def _found(self, keys: list[Key]) -> dict[Key, Any]:
        wanted = self._want(keys)
        self._make(wanted)
        while wanted.calls:
            call = next(iter(wanted.calls))
            self._take(wanted, call, self._awaited(call))
            self._make(wanted)
        return wanted.found

    def _make(self, wanted: PendingKeys) -> None:
        """Make the caller's calls, or have them made."""
        opened, refreshing, wanted.opened, wanted.refreshing = wanted.opened, wanted.refreshing, [], []
        for call in refreshing + (opened if self.config.async_ else []):
            self.pool.start_job(call.carrier)
        if opened and not self.config.async_:
            self._carry_all(opened)

    def _carrier(self, call: Call, beside: bool) -> Job | None:
        """There is a job as soon as others can wait for the call: one of them may have to do it."""
        return Job(partial(self._carry_in_pool, call)) if beside or self.config.async_ else None

    def _carry_all(self, calls: list[Call]) -> None:
        for call in calls:
            self._begin(call)
        try:
            for call in calls:
                with waiting_for(call):
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
            with carrying(call):
                self._answered(call, self.resilience.until_found_sync(self._ask, call.keys, without_rows))
        except Exception as error:
            self._failed(call, error)
        finally:
            self.counters.add("source_seconds", time.perf_counter() - started)

    def _carry_in_pool(self, call: Call) -> None:
        with self._lock:
            self._in_pool.add(call)
        try:
            self._carry(call)
        except BaseException as error:
            self._failed(call, error)
        finally:
            with self._lock:
                self._in_pool.discard(call)

    def _ask(self, keys: list[Key]) -> Answers:
        self._count_asked(keys)
        return self.callee.ask(keys)

    def _awaited(self, call: Call) -> BaseException | None:
        """Wait for a call and return its error; it may be another caller's, and hang."""
        if call.ended.is_open:
            return call.error
        with waiting_for(call):
            if call.carrier is not None and is_within(self):
                self.pool.run_here(call.carrier)
            while not call.ended.wait(self._patience(call)):
                self._end_overdue()
                if self._lost(call) and not call.ended.is_open:
                    with self._lock:
                        self._forget(call)
                    return self.resilience.timed_out()
        return call.error

    def _patience(self, call: Call) -> float:
        """Return how long to wait until a call is overdue: this one, or one whose place in the pool this one needs."""
        with self._lock:
            first = min((one.deadline for one in (call, *self._in_pool)), default=call.deadline)
        return min(max(first - time.monotonic(), 0.0), self.config.timeout)

    def _end_overdue(self) -> None:
        """Give up the calls in the pool that took too long, whether anybody waits for them or not."""
        with self._lock:
            for call in [call for call in self._in_pool if self._lost(call)]:
                self._give_up(call)

    def _give_up(self, call: Call) -> None:
        super()._give_up(call)
        if call.carrier is not None and not call.ended.is_open:
            self.pool.give_up(call.carrier)
            call.end(error=self.resilience.timed_out())
        self._in_pool.discard(call)
