"""`Values`: the values of keys, and the way of a call's keys through a tier that other processes share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lookupcache.cache.keys import Positions
from lookupcache.decorator.arguments import Key
from lookupcache.flow.flow import TierCall, fetch
from lookupcache.metrics import Counters
from lookupcache.resilience.runtime import Runtime


@dataclass(eq=False)
class Values:
    """Values by key; ``written`` has the times of those that were fetched earlier, by the own cache's clock."""

    values: dict[Key, Any] = field(default_factory=dict)
    written: dict[Key, float] = field(default_factory=dict)

    def add(self, other: Values, written: float = math.inf) -> None:
        """Add other values; ``written`` is the time of those without one."""
        self.values.update(other.values)
        if written < math.inf:
            self.written.update(dict.fromkeys(other.values, written))
        self.written.update(other.written)


Drop = Callable[[Sequence[Key] | None], None]
"""Removes keys that another process has invalidated, or with None all."""


class Tier(ABC):
    """Values that processes share: in the files of a host, or in a store of all hosts."""

    @abstractmethod
    def open(self, drop: Drop) -> bool:
        """Make it ready; return whether it can be used. If it hears of changes, it calls ``drop`` in another thread."""

    @abstractmethod
    def call(self, keys: Sequence[Key], *, refresh: bool, most: float) -> TierCall[Values]:
        """Return the work of a call for these keys, for `fetch_values`.

        With ``refresh``, the old values of the keys are served meanwhile. A call that hangs for longer than ``most``
        seconds is abandoned.
        """

    @abstractmethod
    def invalidate(self, keys: Sequence[Key] | None) -> None:
        """Remove keys, or with None all, for all processes; answers under way are not stored."""

    @abstractmethod
    def reset_after_fork(self) -> None:
        """Drop the threads and calls of the parent process, which do not exist in this process."""

    @abstractmethod
    def close(self) -> None:
        """Release the claims of this process, and disconnect; the next call connects again."""


Ask = Callable[[list[Key], float], Awaitable[Values]]
"""Returns the values of keys; other processes are waited for until a time of `time.monotonic`."""


async def fetch_values(
    call: TierCall[Values], keys: Sequence[Key], ask: Ask, runtime: Runtime, counters: Counters, timeout: float,
    until: float = math.inf,
) -> Values:  # fmt: skip
    """Return the values of the keys that a tier lacks; see `fetch`."""
    values = Values()
    request = lambda positions, until: ask(at(keys, positions), until)  # noqa: E731
    for part in await fetch(call, request, runtime, counters, timeout, until):
        values.add(part.values, part.written)
    return values


def at(keys: Sequence[Key], positions: Positions) -> list[Key]:
    return [keys[position] for position in positions.tolist()]


def repeated(encoded: Sequence[bytes]) -> Positions:
    """Return the positions of keys that are written like earlier ones, such as two NaN.

    >>> repeated([b"a", b"b", b"a"]).tolist()
    [2]
    """
    first = {data: position for position, data in reversed(list(enumerate(encoded)))}
    return np.array([position for position, data in enumerate(encoded) if first[data] != position], np.int64)
