"""`Job`: a unit of work for a thread or a coroutine."""

from __future__ import annotations

import math
from contextvars import Context
from typing import Any


class Job:
    """Work for a slot; subclasses define the work and the receiver of its answer.

    A queued job can be removed. A running job ends, or is abandoned: then its slot is free, and its answer is
    ignored. ``deadline`` is when a running job counts as hung, by
    `time.monotonic` or its event loop's clock; ``context`` is what a coroutine runs in.
    """

    context: Context | None = None
    deadline = math.inf
    started = False
    abandoned = False
    inline = False
    cancelled = False
    expired = False

    def run(self) -> Any:
        """Do the work and return the answer; in `TaskSlots`, a coroutine that does."""
        raise NotImplementedError

    def end(self, answer: Any) -> None:
        """Receive the answer, or the exception that `run` raised; called once, and never after it was abandoned."""

    def timeout_error(self) -> BaseException:
        """Return the answer of a job that its timeout ended."""
        from asyncio import CancelledError  # Threads need no asyncio, which takes long to import.

        return CancelledError()

    def drop(self) -> None:
        """Called if the job will not run, because its event loop is being closed."""
