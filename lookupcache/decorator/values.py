"""`Values`: the values of keys, and the way of a call's keys through a tier that other processes share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from lookupcache.cache.keys import Positions
from lookupcache.decorator.arguments import Instance, Key, arguments_of
from lookupcache.errors import OptionError
from lookupcache.flow.flow import TierCall, fetch
from lookupcache.functions.adapter import name_of
from lookupcache.functions.value_codec import SUPPORTED, UnsupportedValueError, ValueCodec, dataclasses_of
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
    """Values of a function that processes share: in the files of a host, or in a store of all hosts."""

    without: ClassVar[str]
    """How to do without it, for errors."""

    def __init__(self, function: Any) -> None:
        self.name = name_of(function)
        self.codec = ValueCodec(dataclasses_of(function))

    def encode_key(self, key: Key) -> bytes:
        """Return a key as other processes write it; raises OptionError for a key that only this process can have."""
        values = arguments_of(key)
        if values and isinstance(values[0], Instance):
            raise OptionError(
                f"{self.name} is a method, whose objects other processes do not have, so they cannot share its values.",
                hint=f"Decorate a function or a static method, or {self.without}.",
            )
        return self.encode(self.codec.write_key, tuple(values), "is called with")

    def encode(self, write: Callable[[Any], bytes], value: Any, does: str) -> bytes:
        """Return what ``write`` makes of a value; raises OptionError for one that other processes cannot read."""
        try:
            return write(value)
        except UnsupportedValueError as error:
            raise OptionError(
                f"{self.name} {does} a value that processes cannot share: {error}.",
                hint=f"Use {SUPPORTED}; or {self.without}.",
            ) from None

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
