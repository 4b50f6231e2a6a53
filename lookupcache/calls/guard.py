"""One call to the source, made safe: breaker → rate limit → call, and again after errors that are worth it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import tenacity

from lookupcache.calls.breaker import Breaker
from lookupcache.calls.rate import RateLimit
from lookupcache.calls.retry import RetryPolicy, error_of, wait_hint
from lookupcache.config import LookupConfig
from lookupcache.connector import worth_a_retry
from lookupcache.errors import LookupRefused, LookupTimeout, SourceTrouble
from lookupcache.metrics import Tally

T = TypeVar("T")
K = TypeVar("K")
A = TypeVar("A")

Sleep = Callable[[float], Awaitable[None]]


class GaveUp(Exception):
    """The source failed, and was not, or will not be, asked again.

    ``error`` is what it failed with last, ``attempts`` how often it was asked. It is for those who know the
    table and the keys to turn this into a LookupFailed.
    """

    def __init__(self, error: Exception, attempts: int) -> None:
        super().__init__(error, attempts)
        self.error = error
        self.attempts = attempts


class _Barred(BaseException):
    """A further attempt was not let out, which is what ``why`` says; no Exception, for those may be worth a retry."""

    def __init__(self, why: SourceTrouble) -> None:
        super().__init__(why)
        self.why = why


class Guard:
    """Makes calls to one source, as the options say; one guard serves all threads and coroutines of a worker.

    ``retryable`` says which errors are worth a retry, unless ``lookup.retry.on`` does, and ``retry_after`` how many
    seconds the source wants to be left alone. ``clock`` gives seconds. Without a ``limiter``,
    ``lookup.rate-limit`` holds for this guard alone.

    >>> answers = iter([OSError("down"), 42])
    >>> def ask():
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> guard = Guard(LookupConfig(retry_delay="1 ms"))
    >>> guard.call_now(ask), guard.tally["calls"], guard.tally["retries"]
    (42, 2, 1)
    """

    def __init__(
        self,
        config: LookupConfig,
        *,
        retryable: Callable[[Exception], bool] = worth_a_retry,
        retry_after: Callable[[Exception], float | None] = wait_hint,
        tally: Tally | None = None,
        limiter: RateLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.tally = Tally() if tally is None else tally
        self._policy = RetryPolicy(config, retryable, retry_after)
        self._breaker = Breaker(config.breaker_failures, config.breaker_delay, clock)
        if limiter is None and config.rate_limit is not None:
            limiter = RateLimit(config.rate_limit, clock=clock)
        self._limiter = limiter
        self._clock = clock

    def reset_after_fork(self) -> None:
        """Let go of what threads of the parent process may hold."""
        self._breaker.reset_after_fork()
        if self._limiter is not None:
            self._limiter.reset_after_fork()

    async def call(self, ask: Callable[[], Awaitable[T]], sleep: Sleep = asyncio.sleep) -> T:
        """Return what ``ask`` answers, at the latest when the retries are used up.

        Raises GaveUp when the last attempt failed, LookupRefused while the breaker leaves the source alone, and
        LookupTimeout where the rate limit has no slot before ``lookup.timeout``. What is no Exception passes.
        """
        return await self._call(ask, sleep, self._clock() + self.config.timeout)

    def call_now(self, ask: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
        """Do the same for a plain function, in this thread."""
        return _run(self.call(_awaitable(ask), _awaitable(sleep)))

    async def connect(self, connect: Callable[[], Awaitable[None]], sleep: Sleep = asyncio.sleep) -> None:
        """Connect to the source: a call as any, except that it is neither counted nor held back by the rate limit."""
        await self._call(connect, sleep, self._clock() + self.config.timeout, connects=True)

    def connect_now(self, connect: Callable[[], None], sleep: Callable[[float], None] = time.sleep) -> None:
        """Do the same for a plain function, in this thread."""
        _run(self.connect(_awaitable(connect), _awaitable(sleep)))

    async def until_found(
        self,
        ask: Callable[[K], Awaitable[A]],
        keys: K,
        without_rows: Callable[[K, A], K | None],
        sleep: Sleep = asyncio.sleep,
    ) -> list[tuple[K, A]]:
        """Ask for keys, and after a wait again for those that have no row yet; return what was asked and answered.

        ``without_rows`` gives of some keys and their answer those without a row, or None. They are asked for up to
        ``lookup.retry.on-miss.max-attempts`` times more, ``lookup.retry.on-miss.delay`` apart, as long as
        ``lookup.timeout`` allows. Raises as `call` does.
        """
        ends = self._clock() + self.config.timeout
        found = [(keys, await self._call(partial(ask, keys), sleep, ends))]
        for _ in range(self.config.on_miss_max_attempts):
            missing = without_rows(*found[-1])
            if missing is None or self._clock() + self.config.on_miss_delay >= ends:
                break
            await sleep(self.config.on_miss_delay)
            self.tally.add("miss_retries")
            found.append((missing, await self._call(partial(ask, missing), sleep, ends)))
        return found

    def until_found_now(
        self,
        ask: Callable[[K], A],
        keys: K,
        without_rows: Callable[[K, A], K | None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> list[tuple[K, A]]:
        """Do the same for a plain function, in this thread."""
        return _run(self.until_found(_awaitable(ask), keys, without_rows, _awaitable(sleep)))

    async def within(self, work: Awaitable[T]) -> T:
        """Return what the work returns; raises LookupTimeout, the work cancelled, when ``lookup.timeout`` is over."""
        try:
            async with asyncio.timeout(self.config.timeout) as limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self.timed_out() from error

    def timed_out(self) -> LookupTimeout:
        """Return the error of a lookup that ``lookup.timeout`` ended, counted, and held against the source."""
        self.tally.add("timeouts")
        self._breaker.failed()
        return LookupTimeout(
            f"The source did not answer within {self.config.timeout:g} s.",
            hint="Raise 'lookup.timeout', or ask for fewer keys at a time with 'lookup.batch.max-size'.",
        )

    async def _call(self, ask: Callable[[], Awaitable[T]], sleep: Sleep, ends: float, connects: bool = False) -> T:
        place = await self._enter(sleep, ends, connects)
        try:
            return await self._ask(ask, place, connects)
        except Exception as error:
            first = error
        return await self._again(first, ask, sleep, ends, connects)

    async def _enter(self, sleep: Sleep, ends: float, connects: bool) -> int:
        """Wait until a call may go out; return its place with the breaker."""
        try:
            place = self._breaker.admit()
        except LookupRefused:
            self.tally.add("refused")
            raise
        if self._limiter is not None and not connects:
            try:
                await self._throttle(self._limiter, sleep, ends)
            except BaseException:
                self._breaker.gave_back(place)
                raise
        return place

    async def _throttle(self, limiter: RateLimit, sleep: Sleep, ends: float) -> None:
        left = max(ends - self._clock(), 0.0)
        wait = limiter.reserve(left)
        if wait > left:
            self.tally.add("timeouts")
            raise LookupTimeout(
                f"The source was not asked: at {limiter.rate:g} calls per second the next is due in {wait:.3g} s, "
                f"and the lookup has {left:.3g} s left.",
                hint="Raise 'lookup.rate-limit' or 'lookup.timeout', or ask for more keys at a time.",
            )
        if wait > 0:
            self.tally.add("throttled_seconds", wait)
            await sleep(wait)

    async def _ask(self, ask: Callable[[], Awaitable[T]], place: int, connects: bool) -> T:
        if not connects:
            self.tally.add("calls")
        try:
            answer = await ask()
        except BaseException as error:
            self._breaker.gave_back(place)
            if isinstance(error, Exception):
                self.tally.add("errors")
                if self._policy.worth_it(error):
                    self._breaker.failed(place)
            raise
        self._breaker.succeeded(place)
        return answer

    async def _again(
        self, first: Exception, ask: Callable[[], Awaitable[T]], sleep: Sleep, ends: float, connects: bool
    ) -> T:
        """Go on after a failed first attempt, which tenacity is shown anew."""
        last, attempts = first, 0

        async def attempt() -> T:
            nonlocal last, attempts
            attempts += 1
            if attempts == 1:
                raise first
            try:
                place = await self._enter(sleep, ends, connects)
            except SourceTrouble as bar:
                attempts -= 1
                raise _Barred(bar) from last
            self.tally.add("retries")
            try:
                return await self._ask(ask, place, connects)
            except Exception as error:
                last = error
                raise

        try:
            return await self._policy.retrying(partial(self._over, ends), sleep)(attempt)
        except _Barred as bar:
            _note(last, f"Not tried again: {bar.why.fact}")
        except Exception as error:
            last = error
        raise GaveUp(last, attempts) from last

    def _over(self, ends: float, state: tenacity.RetryCallState) -> bool:
        """Return whether no further attempt follows: none is left, or it could not go out when it is due."""
        if state.attempt_number > self.config.max_retries:
            return True
        wait, left = state.upcoming_sleep, ends - self._clock()
        if wait < left:
            return self._breaker.refuses_for() > wait
        _note(
            error_of(state),
            f"Not tried again: the next attempt is due in {wait:.3g} s, as the source or 'lookup.retry.delay' has it, "
            f"and 'lookup.timeout' leaves {max(left, 0):.3g} s.",
        )
        return True


def _note(error: BaseException, text: str) -> None:
    """Add a note to an error that takes one, once: a source may raise the same object again and again."""
    with suppress(Exception):
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)


def _awaitable(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    async def answer(*arguments: Any) -> T:
        return function(*arguments)

    return answer


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for an event loop, because all that it awaits are plain functions."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("The work waits for an event loop.")
