"""A source whose openings fail or hang by a list."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from time_limit import LIMIT


class ListedOpenings:
    """Its openings do what is listed, an error or "hang", and then succeed; counts what was opened and closed."""

    def __init__(self, *openings: BaseException | str) -> None:
        self.openings = list(openings)
        self.opened = self.closed = 0
        self.begun, self.release, self.ended = threading.Event(), threading.Event(), threading.Event()

    def open(self) -> Any:
        if self._next_step() == "hang":
            assert self.release.wait(LIMIT)
        self.opened += 1
        return self

    def close(self, _: Any = None) -> None:
        self.closed += 1
        self.ended.set()

    async def open_async(self) -> None:
        if self._next_step() == "hang":
            await asyncio.Event().wait()
        self.opened += 1

    async def close_async(self) -> None:
        self.close()

    def _next_step(self) -> str | None:
        self.begun.set()
        step = self.openings.pop(0) if self.openings else None
        if isinstance(step, BaseException):
            raise step
        return step
