"""Trying a call to a source again, by the options; the waiting itself is tenacity's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tenacity

from lookupcache.config import LookupConfig
from lookupcache.errors import LookupTimeout
from lookupcache.metrics import Tally

T = TypeVar("T")


@dataclass(frozen=True)
class Retry:
    """Calls again what failed, as often and after such waits as the config says.

    ``retryable`` says of an error whether it is worth it; the last error is raised as it came.
    """

    config: LookupConfig
    retryable: Callable[[Exception], bool]
    tally: Tally = field(default_factory=Tally)

    def call(self, function: Callable[[], T]) -> T:
        """Return what the function returns, at the latest when the retries are used up.

        >>> answers = iter([OSError("down"), 42])
        >>> def ask():
        ...     answer = next(answers)
        ...     if isinstance(answer, Exception):
        ...         raise answer
        ...     return answer
        >>> retry = Retry(LookupConfig(retry_delay="1 ms"), lambda error: isinstance(error, OSError))
        >>> retry.call(ask), retry.tally["retries"]
        (42, 1)
        """
        return tenacity.Retrying(**self._policy())(function)

    async def call_async(self, function: Callable[[], Awaitable[T]]) -> T:
        """Do the same for an async function; it is cancelled when ``lookup.timeout`` is over."""

        async def attempt() -> T:
            return await function()

        try:
            async with asyncio.timeout(self.config.timeout) as limit:
                return await tenacity.AsyncRetrying(**self._policy())(attempt)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise LookupTimeout(
                f"The source did not answer within {self.config.timeout:g} s.",
                hint="Raise 'lookup.timeout', or ask for fewer keys at a time with 'lookup.batch.max-size'.",
            ) from error

    def _policy(self) -> dict[str, Any]:
        return {
            "stop": tenacity.stop_after_attempt(self.config.max_retries + 1)
            | tenacity.stop_after_delay(self.config.timeout),
            "wait": self._wait,
            "retry": tenacity.retry_if_exception(self._worth_it),
            "before_sleep": self._note_retry,
            "reraise": True,
        }

    def _worth_it(self, error: BaseException) -> bool:
        self.tally["errors"] += 1
        return isinstance(error, Exception) and self.retryable(error)

    def _note_retry(self, state: tenacity.RetryCallState) -> None:
        self.tally["retries"] += 1

    def _wait(self, state: tenacity.RetryCallState) -> float:
        delay = self.config.retry_delay
        if self.config.retry_strategy == "exponential":
            delay = min(delay * 2.0 ** (state.attempt_number - 1), self.config.retry_max_delay)
        return delay * (1 + random.random() * self.config.retry_jitter)
