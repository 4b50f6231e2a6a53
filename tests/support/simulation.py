"""An event loop with virtual time, on which the worker's calls run in the thread of the test itself.

`simulate_loop` replaces the worker's own loop, which has a thread, by such a loop: waiting for a call then runs the
loop until the call has completed, and time jumps to the next timer. Nothing depends on the machine, so a seed replays
a run exactly, and a minute of waiting takes no time. If nothing can happen any more, `Deadlock` is raised.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableSet
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from scale import SEED, scale_up

from lookupcache.cache import age, limits
from lookupcache.executor import call_group, coroutines, thread_slots
from lookupcache.resilience import retry
from lookupcache.resilience.policy import ResiliencePolicy
from lookupcache.resilience.rate_limit import RateLimit
from lookupcache.worker import source

# Modules that were imported while the loop is replaced would keep the replacement.
assert coroutines.event_loop is call_group.event_loop


class Deadlock(Exception):
    """Somebody waits, and nothing is under way that could end it."""


class _Selector(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    """Where the loop would sleep, its time goes on instead."""

    loop: SimulatedLoop

    def select(self, timeout: float | None = None) -> Any:
        self.loop.steps += 1
        if timeout is None:
            raise Deadlock("nothing is scheduled")
        if timeout > 0:
            self.loop.now += timeout
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only where it would wait; ``steps`` counts its iterations."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.steps = 0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        # Timers that are due within this time run together; with the machine's own, some would run late.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let so much time pass, and what is due in it run."""
        self.run_until_complete(asyncio.sleep(seconds))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end."""
        return self.run_until_complete(work)


class _Queue:
    """Takes the place of `queue.SimpleQueue`: who waits for an item runs the loop."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._items: deque[Any] = deque()
        self._is_awaited = False

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._is_awaited:
            self._loop.stop()

    def get(self, timeout: float | None = None) -> Any:
        assert timeout is None
        self._is_awaited = True
        try:
            while not self._items:
                self._loop.run_forever()
        finally:
            self._is_awaited = False
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class OrderedSet(MutableSet[Any]):
    """A set in the order of its additions; that of a set of objects goes by where they are in memory."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Any) -> None:
        self._items[item] = None

    def discard(self, item: Any) -> None:
        self._items.pop(item, None)

    def difference_update(self, items: Iterable[Any]) -> None:
        for item in items:
            self.discard(item)

    def copy(self) -> OrderedSet:
        return OrderedSet(self._items)


def without_chance(seed: int) -> list[Any]:
    """Return what makes a simulation the same each time: patches of the numbers drawn, and of the order of sets."""
    numbers = Random(seed)
    draws = np.random.default_rng(seed)
    return [
        mock.patch.object(retry, "random", numbers),
        mock.patch.object(limits, "random", numbers),
        mock.patch.object(age, "random_of", return_value=draws),
        *(mock.patch.object(module, "set", OrderedSet, create=True) for module in (call_group, thread_slots)),
    ]


def library() -> list[Any]:
    """Return the library's modules that have been imported."""
    return [module for name, module in sys.modules.items() if name.startswith("lookupcache") and module]


def own_rate_limits(clock: Callable[[], float]) -> Any:
    """Return the patch that gives each source a rate limit by this clock, without a file that processes share."""
    return mock.patch.object(RateLimit, "of_executor", lambda rate, name: RateLimit(rate, clock=clock))


@contextmanager
def simulate_loop(seed: int) -> Iterator[SimulatedLoop]:
    """Put a simulated loop and its time in the place of the worker's loop and of the clock."""
    loop = SimulatedLoop()
    own = {call_group.event_loop: lambda: loop, call_group.run_async: loop.run}
    policy = functools.partial(ResiliencePolicy, clock=loop.time)
    try:
        with mock.patch.object(time, "monotonic", loop.time):
            patches = [
                mock.patch.object(module, name, own[value])
                for module in library()
                for name, value in list(vars(module).items())
                if name in ("event_loop", "run_async") and value in own
            ]
            patches.append(mock.patch.object(call_group, "SimpleQueue", functools.partial(_Queue, loop)))
            patches.append(mock.patch.object(source, "ResiliencePolicy", policy))
            patches.append(own_rate_limits(loop.time))
            patches += without_chance(seed)
            for patch in patches:
                patch.start()
            try:
                yield loop
            finally:
                for patch in patches:
                    patch.stop()
    finally:
        _end(loop)


def _end(loop: SimulatedLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()


FEW = 1_000
"""The steps of a simulation in the short lanes."""


def lanes_of(steps: int) -> Any:
    """Return the mark of a test with ``steps``: few in the short lanes, this number in the extended one as well."""
    return pytest.mark.parametrize("steps", [FEW, pytest.param(steps, marks=pytest.mark.extended)], ids=["few", "all"])


def simulate_seeds(simulate: Callable[[int, Counter[str]], int], steps: int, name: str, capsys: Any) -> Counter[str]:
    """Simulate one seed after another until so many steps, times the scale, have been made; return what was seen.

    ``simulate`` takes a seed and the counts to add to, and returns its steps. What it raises names the seed.
    """
    seen: Counter[str] = Counter()
    done, seed = 0, SEED
    while done < scale_up(steps):
        try:
            done += simulate(seed, seen)
        except BaseException as error:
            error.add_note(f"Replay it with LOOKUPCACHE_SEED={seed}.")
            raise
        seed += 1
    with capsys.disabled():
        print(f"\n{done} steps of {seed - SEED} simulated {name} from seed {SEED} on: {dict(seen)}")
    return seen


def simulate_all(simulate: Callable[[int, Counter[str]], int], count: int) -> None:
    """Simulate so many seeds, the same each time."""
    for seed in range(count):
        simulate(seed, Counter())
