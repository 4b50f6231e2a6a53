"""Trying a call to a source again, by the options; the waiting itself is tenacity's."""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import tenacity

from lookupcache.config import LookupConfig
from lookupcache.connector import worth_a_retry
from lookupcache.errors import LookupCacheError, SourceTrouble


def wait_hint(error: Exception) -> float | None:
    """Return the seconds that the source wants to be left alone, or None where the error does not say.

    That is an attribute ``retry_after`` (seconds or a timedelta), else the header Retry-After (seconds or a date)
    in the ``headers`` of the error or of its ``response``, as requests, httpx, aiohttp and urllib have it.

    >>> error = OSError("429 Too Many Requests")
    >>> error.headers = {"Retry-After": "120"}
    >>> wait_hint(error), wait_hint(OSError("down"))
    (120.0, None)
    """
    named = _seconds(getattr(error, "retry_after", None))
    if named is not None:
        return named
    for holder in (error, getattr(error, "response", None)):
        get = getattr(getattr(holder, "headers", None), "get", None)
        if callable(get):
            found = _seconds(get("Retry-After") or get("retry-after"))
            if found is not None:
                return found
    return None


def _seconds(value: Any) -> float | None:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        value = _header_seconds(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        return None
    return max(float(value), 0.0)


def _header_seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(text)
        # A date in the zone "-0000" comes without one; it is in UTC too.
        return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    except (ValueError, ArithmeticError):
        # A zone or a year beyond all bounds overflows. What cannot be understood must not cost the retries.
        return None


@dataclass(frozen=True)
class RetryPolicy:
    """Which errors are worth another call, and after which wait.

    ``retryable`` is the connector's word on an error, which ``lookup.retry.on`` overrides; ``retry_after`` finds
    the source's own wish for a wait.

    >>> policy = RetryPolicy(LookupConfig(retry_delay="1 s", retry_jitter=0, retry_on="OSError"))
    >>> policy.worth_it(ConnectionError("refused")), policy.worth_it(KeyError("id"))
    (True, False)
    >>> [policy.wait(OSError("down"), attempt) for attempt in (1, 2, 3, 9)]
    [1.0, 2.0, 4.0, 10.0]
    """

    config: LookupConfig
    retryable: Callable[[Exception], bool] = worth_a_retry
    retry_after: Callable[[Exception], float | None] = wait_hint

    def worth_it(self, error: BaseException) -> bool:
        """Return whether the same call may succeed later."""
        if not isinstance(error, Exception):
            return False
        if self.config.retry_on is not None:
            return any(_is_named(error, name) for name in self.config.retry_on.split(", "))
        return not _is_our_verdict(error) and self.retryable(error)

    def wait(self, error: BaseException, attempt: int) -> float:
        """Return the seconds between an attempt, the first being 1, and the next."""
        delay = self.config.retry_delay
        if self.config.retry_strategy == "exponential":
            # Two to the power of the attempts would at some time be more than a float holds.
            delay = min(delay * 2.0 ** min(attempt - 1, 64), self.config.retry_max_delay)
        delay *= 1 + random.random() * self.config.retry_jitter
        wished = self.retry_after(error) if isinstance(error, Exception) else None
        return delay if wished is None else max(delay, wished)

    def retrying(
        self, over: Callable[[tenacity.RetryCallState], bool], sleep: Callable[[float], Awaitable[None]]
    ) -> tenacity.AsyncRetrying:
        """Return a tenacity object for one call, which ends it where ``over`` says so and raises the last error."""
        return tenacity.AsyncRetrying(
            sleep=sleep,
            stop=over,
            wait=lambda state: self.wait(error_of(state), state.attempt_number),
            retry=tenacity.retry_if_exception(self.worth_it),
            reraise=True,
        )


def error_of(state: tenacity.RetryCallState) -> BaseException:
    """Return the error of the attempt that has just failed."""
    error = state.outcome.exception() if state.outcome else None
    assert error is not None
    return error


def _is_our_verdict(error: Exception) -> bool:
    """Return whether the error says that something is written wrongly, which no retry cures."""
    return isinstance(error, LookupCacheError) and not isinstance(error, SourceTrouble)


def _is_named(error: Exception, name: str) -> bool:
    """Return whether a name, bare or behind its module's, is that of the error's class or of one it descends from."""
    ours = _is_our_verdict(error)
    if name == "*":
        return not ours
    kinds = [kind for kind in type(error).__mro__ if not ours or issubclass(kind, LookupCacheError)]
    module, _, bare = name.rpartition(".")
    if not module:
        return any(kind.__name__ == bare for kind in kinds)
    # `aiohttp.ClientError` is of another module, `asyncio.TimeoutError` is a builtin: ask the module that was named.
    meant = getattr(sys.modules.get(module), bare, None)
    return any(kind is meant or f"{kind.__module__}.{kind.__qualname__}" == name for kind in kinds)
