"""The retry policy: which errors are retried, and after how long."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lookupcache.config import LookupConfig
from lookupcache.connector import is_retryable
from lookupcache.errors import LookupCacheError, LookupRuntimeError


def retry_after_of(error: Exception) -> float | None:
    """Return the seconds that the source requires before a retry, or None if the error has none.

    They are in an attribute ``retry_after`` (seconds or a timedelta). Else they are in the header Retry-After (seconds
    or a date) in ``headers`` of the error or its ``response``, as in requests, httpx and aiohttp.

    >>> error = OSError("429 Too Many Requests")
    >>> error.headers = {"Retry-After": "120"}
    >>> retry_after_of(error), retry_after_of(OSError("down"))
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
    # Here, since most sources send no dates, and it takes long to import.
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(text)
        # A date in the zone "-0000" is parsed without a zone; it is in UTC too.
        return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    except (ValueError, ArithmeticError):
        # A zone or year out of range overflows. An invalid header must not prevent the retries.
        return None


@dataclass(frozen=True)
class RetryPolicy:
    """Which errors are retried, and after which wait.

    ``retryable`` is the connector's classification of an error, which ``lookup.retry.on`` overrides; ``retry_after``
    returns the delay that the source requires.

    >>> policy = RetryPolicy(LookupConfig(retry_delay="1 s", retry_jitter=0, retry_on="OSError"))
    >>> policy.should_retry(ConnectionError("refused")), policy.should_retry(KeyError("id"))
    (True, False)
    >>> [policy.wait(OSError("down"), attempt) for attempt in (1, 2, 3, 9)]
    [1.0, 2.0, 4.0, 10.0]
    """

    config: LookupConfig
    retryable: Callable[[Exception], bool] = is_retryable
    retry_after: Callable[[Exception], float | None] = retry_after_of

    def should_retry(self, error: BaseException) -> bool:
        """Return whether the same call may succeed later."""
        if not isinstance(error, Exception):
            return False
        if self.config.retry_on is not None:
            return any(_is_named(error, name) for name in self.config.retry_on.split(", "))
        return not _is_usage_error(error) and self.retryable(error)

    def wait(self, error: BaseException, attempt: int) -> float:
        """Return the seconds between an attempt, the first being 1, and the next."""
        delay = self.config.retry_delay
        if self.config.retry_strategy == "exponential":
            # Two to the power of the attempts would overflow a float at some time.
            delay = min(delay * 2.0 ** min(attempt - 1, 64), self.config.retry_max_delay)
        delay *= 1 + random.random() * self.config.retry_jitter
        requested = self.retry_after(error) if isinstance(error, Exception) else None
        return delay if requested is None else max(delay, requested)


def _is_usage_error(error: Exception) -> bool:
    """Return whether the error is a mistake in the program or its options, which a retry cannot fix."""
    return isinstance(error, LookupCacheError) and not isinstance(error, LookupRuntimeError)


def _is_named(error: Exception, name: str) -> bool:
    """Return whether a name, with or without its module, is that of the error's class or of a base class."""
    ours = _is_usage_error(error)
    if name == "*":
        return not ours
    kinds = [kind for kind in type(error).__mro__ if not ours or issubclass(kind, LookupCacheError)]
    module, _, bare = name.rpartition(".")
    if not module:
        return any(kind.__name__ == bare for kind in kinds)
    # `aiohttp.ClientError` and `asyncio.TimeoutError` are defined elsewhere: look the name up in the named module.
    meant = getattr(sys.modules.get(module), bare, None)
    return any(kind is meant or f"{kind.__module__}.{kind.__qualname__}" == name for kind in kinds)
