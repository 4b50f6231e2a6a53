"""`fetch`: the way of missing keys through a tier that other processes share, such as a host's files or a store.

keys ─► found in the tier ─────────────────────────────────────────────────► values, with their true age
          │ not: claim, look again ──mine──► request ─► publish, claims end ─► values
          └────────another process's───────► pause, and look again; at the end of the time, request without a claim
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from lookupcache.cache.keys import Positions
from lookupcache.flow.waiting import Pauses
from lookupcache.metrics import Counters
from lookupcache.resilience.runtime import Runtime

V = TypeVar("V")

NO_KEYS: Positions = np.empty(0, np.int64)


@dataclass(frozen=True)
class Requested(Generic[V]):
    """What was requested for some of a call's keys; infinite ``written`` is just now, else it is by the own clock."""

    positions: Positions
    values: V
    written: float


class TierSearch(ABC):
    """A search for keys in a tier, in several looks; the positions ``left`` are neither found nor requested."""

    waits: str
    """The count of keys that other processes were requesting."""
    is_source_asked: bool
    """Whether the source itself takes as long as the keys are waited for, so that one timeout is for both."""
    left: Positions

    def step(self, is_over: bool) -> Positions:
        """Look for the keys that are left, or claim them; return those to request now, all if the time is over."""
        return self.look(is_over) if self.left.size else NO_KEYS

    @abstractmethod
    def look(self, is_over: bool) -> Positions:
        """Take the values that the tier has of the keys that are left, and claim the rest; return those to request."""


class Wait:
    """How long keys are waited for that other processes request: until a time of `time.monotonic`.

    There is one look at least; after that, keys are waited for ``timeout`` seconds, at most ``until`` a time.
    """

    def __init__(self, search: TierSearch, counters: Counters, timeout: float, until: float = math.inf) -> None:
        self.until = min(until, time.monotonic() + timeout)
        self.has_begun = False
        self._search = search
        self._counters = counters
        self._has_looked = False

    def step(self) -> Positions:
        """Look for the keys that are left, or claim them; return those to request now."""
        requested = self._search.step(self._has_looked and time.monotonic() >= self.until)
        if not self._has_looked:
            self._counters.add(self._search.waits, len(self._search.left))
        self._has_looked = True
        return requested

    @property
    def deadline(self) -> float:
        """When a request must have ended that is made now: wait and request have one timeout."""
        return self.until if self.has_begun and self._search.is_source_asked else math.inf


class TierCall(TierSearch, Generic[V]):
    """The keys of one call in a tier. Apart from `end`, all methods may block.

    Keys at the positions ``alone`` are requested, but not shared.
    """

    def __init__(self, count: int, clock: Callable[[], float], pauses: Pauses, alone: Positions = NO_KEYS) -> None:
        self.left = np.setdiff1d(np.arange(count), alone) if alone.size else np.arange(count)
        self._alone = alone
        self.clock = clock
        self.pauses = pauses
        self._has_ended = False

    @property
    def is_complete(self) -> bool:
        """Whether all keys were found, or given to the caller to request."""
        return not self.left.size and not self._alone.size

    def step(self, is_over: bool) -> Positions:
        requested, self._alone = self._alone, NO_KEYS
        requested = np.concatenate([requested, super().step(is_over)])
        if self._has_ended:
            # A caller that was cancelled meanwhile has not seen these claims.
            self.release()
        return requested

    @abstractmethod
    def publish(self, positions: Positions, new: V) -> None:
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


async def fetch(
    call: TierCall[V], request: Callable[[Positions, float], Awaitable[V]], runtime: Runtime, counters: Counters,
    timeout: float, until: float = math.inf,
) -> list[Requested[V]]:  # fmt: skip
    """Return what was requested; what the tier had is in the call.

    Other processes are waited for ``timeout`` seconds, at most ``until`` a time of `time.monotonic`. ``request``
    requests keys from what lies below; it gets the time until which it may wait for other processes.
    """
    requested = []
    wait = Wait(call, counters, timeout, until)
    try:
        while not call.is_complete:
            mine = await runtime.block(wait.step)
            if mine.size:
                new = await request(mine, wait.deadline)
                # The caller gets them when the others are there, and would take them for new.
                requested.append(Requested(mine, new, call.clock() if call.left.size else math.inf))
                await runtime.block(call.publish, mine, new)
            elif call.left.size:
                wait.has_begun = True
                await runtime.sleep(call.pauses.take())
    except Exception:
        await runtime.block(call.find_stale)
        raise
    finally:
        call.end(runtime.start)
    return requested
