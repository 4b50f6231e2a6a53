"""One call to the source with circuit breaker, rate limit, retries, and a deadline for all of them.

breaker ─► rate limit ─► call ──error──► retry policy ─► wait ─► breaker …

A call that hangs is ended by the slot that it runs in (see `executor`), with the error that `timeout_error` returns.

No library's retry loop is used: a retry shares its deadline with the rate limit, and checks the breaker first.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

from lookupcache.config import LookupConfig
from lookupcache.connector import is_retryable
from lookupcache.errors import LookupRefusedError, LookupRuntimeError, LookupTimeoutError
from lookupcache.metrics import Counters
from lookupcache.resilience.breaker import Breaker
from lookupcache.resilience.rate_limit import RateLimit
from lookupcache.resilience.retry import RetryPolicy, retry_after_of
from lookupcache.resilience.runtime import ASYNC, SYNC, Runtime, StopIterationError, awaitable, run_sync

T = TypeVar("T")
K = TypeVar("K")
A = TypeVar("A")


@dataclass(frozen=True)
class Permit:
    """Permission for one call, which has to wait some ``seconds`` for its time.

    ``is_granted`` is False if there is no time before the timeout; ``has_waited`` says whether the call was delayed.
    """

    seconds: float = 0.0
    is_granted: bool = True
    has_waited: bool = False


class ClusterRate(Protocol):
    """A rate that holds for all workers of all hosts together: `lookupcache.store.cluster_rate` counts it."""

    async def throttle(self, within: float, runtime: Runtime) -> Permit:
        """Reserve a time for a call, at most this many seconds from now."""

    def reset_after_fork(self) -> None:
        """Forget the permits of the parent process."""

    def close(self) -> None:
        """Disconnect."""


class AttemptsExhaustedError(Exception):
    """A call failed and is not repeated.

    ``error`` is the error of the last attempt, ``attempts`` the number of attempts. The caller, who knows the table and
    the keys, turns it into a LookupFailedError.
    """

    def __init__(self, error: Exception, attempts: int) -> None:
        super().__init__(error, attempts)
        self.error = error
        self.attempts = attempts


class ResiliencePolicy:
    """Makes calls to one source under the options; all threads and coroutines of a worker share one policy object.

    ``retryable`` says which errors are retried, unless ``lookup.retry.on`` does, and ``retry_after`` how many seconds
    the source requires before that. Without ``limiter``, ``lookup.rate-limit`` applies to this object alone.

    >>> answers = iter([OSError("down"), 42])
    >>> def attempt():
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> resilience = ResiliencePolicy(LookupConfig(retry_delay="1 ms"))
    >>> resilience.call_sync(attempt), resilience.counters["calls"], resilience.counters["retries"]
    (42, 2, 1)
    """

    def __init__(
        self,
        config: LookupConfig,
        *,
        retryable: Callable[[Exception], bool] = is_retryable,
        retry_after: Callable[[Exception], float | None] = retry_after_of,
        counters: Counters | None = None,
        limiter: RateLimit | None = None,
        cluster: ClusterRate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.counters = Counters() if counters is None else counters
        self._policy = RetryPolicy(config, retryable, retry_after)
        self._breaker = Breaker(config.breaker_failures, config.breaker_delay, clock)
        if limiter is None and config.rate_limit is not None and config.rate_limit_scope == "executor":
            limiter = RateLimit(config.rate_limit, clock=clock)
        self._limiter = limiter
        self.cluster = cluster
        self._clock = clock

    def reset_after_fork(self) -> None:
        """Drop locks that threads of the parent process may hold."""
        self._breaker.reset_after_fork()
        if self._limiter is not None:
            self._limiter.reset_after_fork()
        if self.cluster is not None:
            self.cluster.reset_after_fork()

    def close(self) -> None:
        """Disconnect from where the rate of the cluster is counted."""
        if self.cluster is not None:
            self.cluster.close()

    def call(self, attempt: Callable[[], Awaitable[T]], runtime: Runtime = ASYNC) -> Coroutine[Any, Any, T]:
        """Return the result of ``attempt``, or raise its last error after the retries.

        Raises AttemptsExhaustedError when the last attempt failed, LookupRefusedError while the circuit breaker is
        open, and LookupTimeoutError if the rate limit has no slot before ``lookup.timeout``. Other BaseExceptions pass.
        """
        return self._call(attempt, runtime, self._clock() + self.config.timeout)

    def call_sync(self, attempt: Callable[[], T], runtime: Runtime = SYNC) -> T:
        """Do the same for a sync function, in this thread."""
        return run_sync(self.call(awaitable(attempt), runtime))

    async def connect(self, connect: Callable[[], Awaitable[None]]) -> None:
        """Connect to the source like a call, but without counting it and without the rate limit."""
        await self._call(connect, ASYNC, self._clock() + self.config.timeout, connects=True)

    def connect_sync(self, connect: Callable[[], None]) -> None:
        """Do the same for a sync function, in this thread."""
        run_sync(self._call(awaitable(connect), SYNC, self._clock() + self.config.timeout, connects=True))

    async def until_found(
        self, attempt: Callable[[K], Awaitable[A]], keys: K, without_rows: Callable[[K, A], K | None],
        runtime: Runtime = ASYNC,
    ) -> list[tuple[K, A]]:  # fmt: skip
        """Request keys, and after a delay again those without a row; return the keys and the result of each attempt.

        Keys are requested up to ``lookup.retry.on-miss.max-attempts`` times more, ``lookup.retry.on-miss.delay`` apart,
        as long as ``lookup.timeout`` allows. ``without_rows`` returns those of the keys that have no row in a result,
        or None. Raises as `call` does.
        """
        ends = self._clock() + self.config.timeout
        found = [(keys, await self._call(partial(attempt, keys), runtime, ends))]
        for _ in range(self.config.on_miss_max_attempts):
            missing = without_rows(*found[-1])
            if missing is None or self._clock() + self.config.on_miss_delay >= ends:
                break
            await runtime.sleep(self.config.on_miss_delay)
            self.counters.add("miss_retries")
            found.append((missing, await self._call(partial(attempt, missing), runtime, ends)))
        return found

    def until_found_sync(
        self, attempt: Callable[[K], A], keys: K, without_rows: Callable[[K, A], K | None], runtime: Runtime = SYNC
    ) -> list[tuple[K, A]]:
        """Do the same for a sync function, in this thread."""
        return run_sync(self.until_found(awaitable(attempt), keys, without_rows, runtime))

    def timeout_error(self) -> LookupTimeoutError:
        """Return the error of a lookup that ``lookup.timeout`` ended; count it, also as a failure for the breaker."""
        self.counters.add("timeouts")
        self._breaker.record_failure()
        return LookupTimeoutError(
            f"The source did not answer within {self.config.timeout:g} s.",
            hint="Raise 'lookup.timeout', or request fewer keys per call with 'lookup.batch.max-size'.",
        )

    async def _call(
        self, attempt: Callable[[], Awaitable[T]], runtime: Runtime, ends: float, connects: bool = False
    ) -> T:
        permit = await self._enter(runtime, ends, connects)
        try:
            return await self._attempt(attempt, permit, connects)
        except Exception as error:
            first = _original_error(error)
        return await self._retry(first, attempt, runtime, ends, connects)

    async def _enter(self, runtime: Runtime, ends: float, connects: bool) -> int:
        """Wait until a call may be made; return the breaker's permit."""
        try:
            permit = self._breaker.acquire()
        except LookupRefusedError:
            self.counters.add("refused")
            raise
        if connects:
            return permit
        try:
            if self.cluster is not None:
                await self._wait_for_cluster_rate(self.cluster, runtime, ends)
            if self._limiter is not None:
                await self._throttle(self._limiter, runtime, ends)
        except BaseException:
            self._breaker.release(permit)
            raise
        return permit

    async def _wait_for_cluster_rate(self, cluster: ClusterRate, runtime: Runtime, ends: float) -> None:
        left, before = max(ends - self._clock(), 0.0), self._clock()
        permit = await cluster.throttle(left, runtime)
        if not permit.is_granted:
            self._refuse_late(self.config.rate_limit or 0.0, permit.seconds, left)
        if permit.seconds > 0:
            await runtime.sleep(permit.seconds)
        if permit.has_waited:
            self.counters.add("throttled_seconds", self._clock() - before)

    async def _throttle(self, limiter: RateLimit, runtime: Runtime, ends: float) -> None:
        left = max(ends - self._clock(), 0.0)
        wait = limiter.reserve(left)
        if wait > left:
            self._refuse_late(limiter.rate, wait, left)
        if wait > 0:
            self.counters.add("throttled_seconds", wait)
            await runtime.sleep(wait)

    def _refuse_late(self, rate: float, wait: float, left: float) -> NoReturn:
        self.counters.add("timeouts")
        raise LookupTimeoutError(
            f"The rate limit has no slot before the timeout: at {rate:g} calls per second, "
            f"the next slot is in {wait:.3g} s. The lookup has {left:.3g} s left.",
            hint="Raise 'lookup.rate-limit' or 'lookup.timeout', or request more keys per call.",
        )

    async def _attempt(self, attempt: Callable[[], Awaitable[T]], permit: int, connects: bool) -> T:
        if not connects:
            self.counters.add("calls")
        try:
            answer = await attempt()
        except BaseException as error:
            self._breaker.release(permit)
            if isinstance(error, Exception):
                self.counters.add("errors")
                if self._policy.should_retry(_original_error(error)):
                    self._breaker.record_failure(permit)
            raise
        self._breaker.record_success(permit)
        return answer

    async def _retry(
        self, error: Exception, attempt: Callable[[], Awaitable[T]], runtime: Runtime, ends: float, connects: bool
    ) -> T:
        """Repeat a call whose first attempt failed with ``error``, as long as the retry policy and the time allow."""
        attempts = 1
        while True:
            try:
                delay = self._delay_before_retry(error, attempts, ends)
            except Exception as broken:
                # ``retryable`` and ``retry_after`` are the connector's code, which may fail too.
                error = broken
                break
            if delay is None:
                break
            await runtime.sleep(delay)
            try:
                permit = await self._enter(runtime, ends, connects)
            except LookupRuntimeError as refusal:
                _note(error, f"Not retried: {refusal.fact}")
                break
            self.counters.add("retries")
            attempts += 1
            try:
                return await self._attempt(attempt, permit, connects)
            except Exception as next_error:
                error = _original_error(next_error)
        raise AttemptsExhaustedError(error, attempts) from error

    def _delay_before_retry(self, error: Exception, attempts: int, ends: float) -> float | None:
        """Return the seconds until the next attempt, or None after the last."""
        if not self._policy.should_retry(error) or attempts > self.config.max_retries:
            return None
        delay, left = self._policy.wait(error, attempts), ends - self._clock()
        if delay < left:
            # While the breaker stays open for longer than the delay, another attempt would only be refused.
            return None if self._breaker.open_for() > delay else delay
        _note(
            error,
            f"Not retried: the source or 'lookup.retry.delay' requires a delay of {delay:.3g} s, "
            f"and 'lookup.timeout' leaves {max(left, 0):.3g} s.",
        )
        return None


def _note(error: BaseException, text: str) -> None:
    """Add a note to an error that takes one, once: a source may raise the same object again and again."""
    with suppress(Exception):
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)


def _original_error(error: Exception) -> Exception:
    """Return the error that the call itself raised."""
    return error.error if isinstance(error, StopIterationError) else error
