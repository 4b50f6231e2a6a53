"""`fetch`: the way of missing keys through a tier that other processes share, such as a host's files or a store.

keys ─► found in the tier ─────────────────────────────────────────────────► values, with their true age
          │ not: claim, look again ──mine──► request ─► publish, claims end ─► values
          └────────another process's───────► pause, and look again; at the end of the time, request without a claim
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lookupcache.flow.waiting import Pauses
from lookupcache.metrics import Counters
from lookupcache.resilience.runtime import Runtime

K = TypeVar("K")


@dataclass(eq=False)
class Values(Generic[K]):
    """Values by key; ``written`` is when they were fetched, by the own cache's clock, where that was not just now."""

    values: dict[K, Any] = field(default_factory=dict)
    written: dict[K, float] = field(default_factory=dict)

    def add(self, other: Values[K]) -> None:
        """Add other values."""
        self.values.update(other.values)
        self.written.update(other.written)

    def date(self, now: float) -> None:
        """Note that what has no date was fetched at this time."""
        self.written = dict.fromkeys(self.values, now) | self.written


class TierCall(ABC, Generic[K]):
    """The keys of one call in a tier: ``left`` are neither found nor requested, ``found`` is what the tier has.

    Keys that are written like others, such as two NaN, are requested, but not shared. Apart from `end`, all methods may
    block.

    Args:
        keys: Distinct keys.
        encode: Returns a key as other processes write it.
        clock: The clock of the own cache.
        pauses: How long to wait between two looks.
    """

    waits: str
    """The count of keys that other processes were requesting."""
    is_source_asked: bool
    """Whether the source itself takes as long as the keys are waited for, so that one timeout is for both."""

    def __init__(
        self, keys: Sequence[K], encode: Callable[[K], bytes], clock: Callable[[], float], pauses: Pauses
    ) -> None:
        self.encoded = {key: encode(key) for key in keys}
        first = {data: key for key, data in reversed(self.encoded.items())}
        self.left = [key for key, data in self.encoded.items() if first[data] is key]
        self._alone = [key for key, data in self.encoded.items() if first[data] is not key]
        self.found: Values[K] = Values()
        self.clock = clock
        self.pauses = pauses
        self._has_ended = False

    @property
    def is_complete(self) -> bool:
        """Whether all keys were found, or given to the caller to request."""
        return not self.left and not self._alone

    def step(self, is_over: bool) -> list[K]:
        """Look for the keys that are left, or claim them; return those to request now, all if the time is over."""
        alone, self._alone = self._alone, []
        requested = self.look(is_over) if self.left else []
        gone = self.found.values.keys() | requested
        self.left = [key for key in self.left if key not in gone]
        if self._has_ended:
            # A caller that was cancelled meanwhile has not seen these claims.
            self.release()
        return alone + requested

    @abstractmethod
    def look(self, is_over: bool) -> list[K]:
        """Add what the tier has of the keys that are left to ``found``; claim the rest, return which to request."""

    @abstractmethod
    def publish(self, new: Values[K]) -> None:
        """Store the values of keys that were requested, and end their claims."""

    @abstractmethod
    def release(self) -> None:
        """End the claims that are left."""

    def find_stale(self) -> None:
        """Find old values that may be used for keys whose request has failed; most tiers have none."""

    @property
    @abstractmethod
    def has_claims(self) -> bool:
        """Whether claims are left."""

    def end(self, start: Callable[[Callable[[], object]], object]) -> None:
        """End the call, and ``start`` to end its claims; a thread may be claiming just now, and releases by itself."""
        self._has_ended = True
        if self.has_claims:
            start(self.release)


Request = Callable[[list[K], float], Awaitable[Values[K]]]
"""Requests keys from what lies below; other processes are waited for until a time of `time.monotonic`."""


async def fetch(
    call: TierCall[K], request: Request[K], runtime: Runtime, counters: Counters, timeout: float,
    until: float = math.inf,
) -> Values[K]:  # fmt: skip
    """Return the values of the keys that were requested; those that the tier had are in ``call.found``.

    Args:
        call: The keys.
        request: Requests keys of which the tier has nothing.
        runtime: How to wait.
        counters: Where keys that are waited for are counted.
        timeout: How long to wait for other processes, in seconds.
        until: The time of `time.monotonic` until which to wait at most.
    """
    requested: Values[K] = Values()
    until = min(until, time.monotonic() + timeout)
    looks, has_waited = 0, False
    try:
        while not call.is_complete:
            mine = await runtime.block(call.step, looks > 0 and time.monotonic() >= until)
            if not looks:
                counters.add(call.waits, len(call.left))
            looks += 1
            if mine:
                new = await request(mine, until if has_waited and call.is_source_asked else math.inf)
                await runtime.block(call.publish, new)
                if call.left:
                    # The caller gets them when the others are there, and would take them for new.
                    new.date(call.clock())
                requested.add(new)
            elif call.left:
                has_waited = True
                await runtime.sleep(call.pauses.take())
    except Exception:
        await runtime.block(call.find_stale)
        raise
    finally:
        call.end(runtime.start)
    return requested
