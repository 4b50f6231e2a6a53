"""Simulated callers of a `cached` function: they come together, coroutines are cancelled at any await, sources fail.

The callers are coroutines on a simulated event loop, or simulated threads. One seed draws everything and replays it;
``LOOKUPCACHE_SEED`` is the first one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from option_values import EVICTIONS
from simulation import lanes_of, simulate_all, simulate_loop, simulate_seeds
from thread_simulation import ThreadSimulation, simulate_threads

from lookupcache import cached
from lookupcache.cache import Limits
from lookupcache.decorator.single_flight import SingleFlight
from lookupcache.decorator.sync_lookup import SyncLookup
from lookupcache.errors import LookupRefusedError, LookupTimeoutError, SourceError

# Some calls hang, and `close` waits for them for at most `lookup.timeout`.
pytestmark = pytest.mark.leaves("SyncLookup was closed, and its ThreadSlots is open")

STEPS = 10_000
"""How many steps of the loop or of the threads each test simulates; see the simulated workers."""
FAULTS = ["right"] * 12 + ["down", "fatal", "odd", "limited", "half", "broken", "garbage", "hangs", "stubborn"]
DELAYS = [0, 0, 0, 0.001, 0.01, 0.3, 1, 2.5]
EXPECTED = (ConnectionError, ValueError, LookupRefusedError, LookupTimeoutError, SourceError)
ABSENT = -1
"""The value of a key that the source does not have."""


class Limited(ConnectionError):
    """The source wants to be left alone for a while."""

    retry_after = 0.4


RAISED = {
    "down": lambda: ConnectionError("down"),
    "fatal": lambda: ValueError("never"),
    "odd": lambda: LookupTimeoutError("a timeout of its own"),
    "limited": lambda: Limited("429 Too Many Requests"),
    "hangs": lambda: ConnectionError("it was closed"),
}


@dataclass(frozen=True)
class Moment:
    """When something happened, by the clock and by number."""

    time: float
    number: int


@dataclass(frozen=True)
class Landing:
    """What a call of the source ended with for a key: the number of its value, or None for an error."""

    begun: Moment
    ended: float
    value: int | None


@dataclass(frozen=True)
class Asked:
    """A key that a caller asks for: when, and the number of its last invalidation that had ended by then."""

    key: int
    at: float
    invalidated: int


class Simulation:
    """A source with faults behind a cached function, and what its callers may get."""

    sync_options: tuple[Any, ...] = (None,)

    def __init__(self, seed: int, world: Any, seen: Counter[str]) -> None:
        self.random, self.world, self.seen = Random(seed), world, seen
        self.landings: dict[int, list[Landing]] = {key: [] for key in range(6)}
        self.flying: dict[int, list[Moment]] = {key: [] for key in range(6)}
        self.invalidated: dict[int, int] = {}
        self.invalidating: dict[int, float] = {}
        self.numbers = itertools.count()
        self.asked_at: dict[int, list[float]] = {key: [] for key in range(6)}
        self.two_calls: list[int] = []
        self.dead_until = 0.0
        self.values = self.requested = 0
        self.options = self.drawn()
        self.function = cached(**self.options, clock=world.time)(self.batch if self.options["batch"] else self.one)

    def drawn(self) -> dict[str, Any]:
        pick = self.random.choice
        write = pick([None, 2, 4])
        return {
            "batch": (batch := pick([False, True])),
            "batch_max_size": pick([None, 1, 2]) if batch else None,
            "batch_max_delay": pick([None, 0.2]) if batch else None,
            "max_rows": pick([None, 1, 3]),
            "eviction": pick(EVICTIONS),
            "expire_after_write": write,
            "refresh_after_write": pick([None, 1]) if write else None,
            "stale_if_error": pick([None, 7]) if write else None,
            "async_": pick(self.sync_options),
            "async_capacity": pick([1, 2, 9]),
            "max_retries": pick([0, 1, 2]),
            "retry_delay": pick([0, 0.1]),
            "breaker_failures": pick([None, None, 3]),
            "breaker_delay": 2,
            "rate_limit": pick([None, None, 20]),
            "timeout": pick([1, 5]),
            "on_error": pick(["fail", "null"]),
        }

    def one(self, key: int) -> Any:
        raise NotImplementedError

    def batch(self, keys: list[int]) -> Any:
        raise NotImplementedError

    # ── the source ───────────────────────────────────────────────────────────────────────────────────────

    def moment(self) -> Moment:
        return Moment(self.world.time(), next(self.numbers))

    def begin(self, keys: list[int]) -> tuple[str, Moment]:
        """Draw what becomes of a call."""
        if self.random.random() < 0.02:
            self.dead_until = self.world.time() + self.random.choice([1, 5])
        is_dead = self.world.time() < self.dead_until
        fault = "down" if is_dead else self.random.choice(FAULTS)
        self.seen["dead" if is_dead else fault] += 1
        begun = self.moment()
        for key in keys:
            self.two_calls += [key for other in self.flying[key] if not self.is_lost(key, other)]
            self.flying[key].append(begun)
        return fault, begun

    def end(self, keys: list[int], begun: Moment) -> None:
        for key in keys:
            self.flying[key].remove(begun)

    def is_lost(self, key: int, call: Moment) -> bool:
        """Return whether a key may be requested again during a call: it is too late, or its value out of date."""
        # Before and between its attempts a call may wait.
        waits = any(self.options[name] for name in ("max_retries", "rate_limit", "batch_max_size"))
        is_late = self.world.time() - call.time > self.options["timeout"] - 1e-6
        # A call is requested before it begins: in the same moment, or up to a timeout before if it waits for a slot.
        before = self.options["timeout"] if self.options["async_capacity"] < 9 else 0
        invalidated = self.invalidating.get(key, -math.inf)
        return waits or is_late or invalidated >= call.time - before

    def land(self, keys: list[int], begun: Moment, values: list[int | None]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.landings[key].append(Landing(begun, self.world.time(), value))

    def answer(self, keys: list[int], fault: str, begun: Moment) -> Any:
        """Return what the batch function returns; the function of one key returns the first of it."""
        if fault in RAISED:
            raise RAISED[fault]()
        if fault in ("broken", "garbage"):
            self.land(keys, begun, [None] * len(keys))
            return broken(keys) if fault == "broken" else self.garbage(keys)
        first, self.values = self.values, self.values + len(keys)
        numbers: list[int | None] = list(range(first, self.values))
        if fault == "half":
            numbers[self.random.randrange(len(keys))] = ABSENT
        self.land(keys, begun, numbers)
        found = {key: (key, number) for key, number in zip(keys, numbers, strict=True) if number != ABSENT}
        return found if fault == "half" else [found[key] for key in keys]

    def garbage(self, keys: list[int]) -> Any:
        return self.random.choice(["text", 7, [(key, 0) for key in keys] * 2, [], object()])

    def of_one(self, key: int, answer: Any) -> Any:
        """Return what the function of one key returns, where that of several returns this."""
        if isinstance(answer, dict):
            return answer.get(key)
        is_right = type(answer) is list and len(answer) == 1
        return answer[0] if is_right else answer if isinstance(answer, Iterator) else asyncio.sleep(0)

    # ── the callers ──────────────────────────────────────────────────────────────────────────────────────

    def drawn_keys(self) -> list[int]:
        size = self.random.randint(1, 4) if self.options["batch"] else 1
        return [self.random.randrange(6) for _ in range(size)]

    def invalidate(self) -> None:
        key, now = self.random.randrange(6), self.moment()
        self.invalidating[key] = now.time
        self.function.invalidate(key)
        self.invalidated[key] = now.number

    def asking(self, keys: list[int]) -> list[Asked]:
        """Note that a caller asks for keys now."""
        self.requested += len(keys)
        now = self.world.time()
        for key in keys:
            self.asked_at[key].append(now)
        return [Asked(key, now, self.invalidated.get(key, -1)) for key in keys]

    def settle(self, asked: list[Asked], found: Any) -> None:
        """Check what a caller got."""
        for one, value in zip(asked, found if self.options["batch"] else [found], strict=True):
            self.check(one, value)

    def check_error(self, asked: list[Asked]) -> None:
        assert self.options["on_error"] == "fail"
        assert any(map(self.may_fail, asked)), f"{asked} failed, and no call for them did."
        self.seen["an error"] += 1

    def may_fail(self, asked: Asked) -> bool:
        """A call for the key has failed since, or hangs, or is not made now because of the source's other calls."""
        landings = self.landings[asked.key]
        failed = any(self.has_failed(landing) for landing in landings if landing.ended >= asked.at)
        not_made = self.options["breaker_failures"] is not None or self.options["rate_limit"] is not None
        return failed or bool(self.flying[asked.key]) or not_made or self.waited(asked)

    def has_failed(self, landing: Landing) -> bool:
        """A call may also have been given up, at last at the moment in which it is answered."""
        seconds = landing.ended - landing.begun.time
        is_retry = self.options["max_retries"] > 0 and landing.ended == self.world.time()
        return landing.value is None or is_retry or seconds > self.options["timeout"] - 1e-6

    def waited(self, asked: Asked) -> bool:
        """A call may time out before it is made, where others hang; another caller may have requested it before."""
        timeout = self.options["timeout"]
        requested = [at for at in self.asked_at[asked.key] if asked.at - timeout < at <= asked.at]
        return self.world.time() - min(requested) >= timeout

    def check(self, asked: Asked, value: Any) -> None:
        if value is None:
            self.check_none(asked)
            return
        assert value[0] == asked.key
        [landing] = [one for one in self.landings[asked.key] if one.value == value[1]]
        self.seen["a value"] += 1
        assert self.may_serve(landing, asked), f"{landing} is too old for {asked}."

    def check_none(self, asked: Asked) -> None:
        if any(one.value == ABSENT and self.may_serve(one, asked) for one in self.landings[asked.key]):
            self.seen["no value"] += 1
            return
        assert self.options["on_error"] == "null"
        assert self.may_fail(asked), f"{asked} has got None, and no call for it failed."
        self.seen["a None"] += 1

    def may_serve(self, landing: Landing, asked: Asked) -> bool:
        age, longest = asked.at - landing.ended, self.options["expire_after_write"] or math.inf
        stale = self.options["stale_if_error"] or 0
        # A value that replaces an error is checked when its own lookup fails; other keys may take longer.
        is_young = age <= longest or (self.may_fail(asked) and age <= stale)
        return is_young and landing.begun.number > asked.invalidated

    def check_counts(self) -> None:
        assert not self.two_calls, "A key was requested twice at a time."
        metrics = self.function.metrics()
        assert (metrics.rows, metrics.hits + metrics.misses) == (self.requested, self.requested)
        assert metrics.cached_rows <= (self.options["max_rows"] or math.inf)


def broken(keys: list[int]) -> Iterator[Any]:
    """Yield one value, and break off."""
    yield keys[0], 0
    raise ConnectionError("broken off")


class Coroutines(Simulation):
    """Callers and source are coroutines of one event loop."""

    async def one(self, key: int) -> Any:
        return self.of_one(key, await self.batch([key]))

    async def batch(self, keys: list[int]) -> Any:
        fault, begun = self.begin(keys)
        try:
            await asyncio.sleep(self.random.choice(DELAYS))
            if fault == "hangs":
                await asyncio.get_running_loop().create_future()
            if fault == "stubborn":
                await self.ignore_one_cancellation()
            return self.answer(keys, fault, begun)
        except BaseException:
            self.land(keys, begun, [None] * len(keys))
            raise
        finally:
            self.end(keys, begun)

    async def ignore_one_cancellation(self) -> None:
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            self.seen["a cancellation ignored"] += 1

    async def caller(self, keys: list[int]) -> None:
        asked = self.asking(keys)
        try:
            found = await (self.function(keys) if self.options["batch"] else self.function(keys[0]))
        except EXPECTED:
            self.check_error(asked)
        else:
            self.settle(asked, found)

    async def run(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        for _ in range(self.random.randint(5, 40)):
            await asyncio.sleep(self.random.choice(DELAYS))
            action = self.random.random()
            live = [task for task in tasks if not task.done()]
            if action < 0.2 and live:
                cancelled = self.random.choice(live)
                cancelled.cancel()
                self.seen["a cancellation"] += 1
            elif action < 0.25:
                self.invalidate()
            else:
                tasks.append(asyncio.ensure_future(self.caller(self.drawn_keys())))
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 1_000)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end
        await self.function.close()
        self.check_counts()
        await asyncio.sleep(10)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "A task is left."


class Threads(Simulation):
    """Callers are threads, and the source is called in theirs or in others."""

    sync_options = (None, True, True)

    def __init__(self, seed: int, world: ThreadSimulation, seen: Counter[str]) -> None:
        super().__init__(seed, world, seen)
        self.released = threading.Event()
        if self.options["expire_after_write"]:
            # The age counts from when a thread stores what it has received.
            world.slow = 0.0

    def one(self, key: int) -> Any:
        return self.of_one(key, self.batch([key]))

    def batch(self, keys: list[int]) -> Any:
        fault, begun = self.begin(keys)
        try:
            self.world.sleep(self.random.choice(DELAYS))
            if fault in ("hangs", "stubborn"):
                self.released.wait(None if fault == "hangs" else 3)
            return self.answer(keys, fault, begun)
        except BaseException:
            self.land(keys, begun, [None] * len(keys))
            raise
        finally:
            self.end(keys, begun)

    def may_fail(self, asked: Asked) -> bool:
        # A caller makes its calls one after the other, and they time out together for those who wait for them.
        is_late = self.options["batch_max_size"] is not None and not self.options["async_"]
        return (is_late and any(self.flying.values())) or super().may_fail(asked)

    def caller(self, keys: list[int]) -> None:
        asked = self.asking(keys)
        try:
            found = self.function(keys) if self.options["batch"] else self.function(keys[0])
        except EXPECTED:
            self.check_error(asked)
        else:
            self.settle(asked, found)

    def run(self) -> None:
        callers: list[threading.Thread] = []
        for _ in range(self.random.randint(5, 40)):
            self.world.sleep(self.random.choice(DELAYS))
            action = self.random.random()
            if action < 0.05:
                self.invalidate()
            elif action < 0.07:
                self.function.close()
            else:
                callers.append(threading.Thread(target=self.caller, args=(self.drawn_keys(),), name="a caller"))
                callers[-1].start()
        self.world.sleep(2 * self.options["timeout"])
        self.released.set()
        for caller in callers:
            caller.join()
        self.function.close()
        self.check_counts()


def simulate_coroutines(seed: int, seen: Counter[str]) -> int:
    with simulate_loop(seed) as loop:
        loop.run_until_complete(Coroutines(seed, loop, seen).run())
        return loop.steps


def simulate_in_threads(seed: int, seen: Counter[str]) -> int:
    with simulate_threads(seed, sys.modules[__name__]) as world:
        Threads(seed, world, seen).run()
    return world.steps


SIMULATIONS = pytest.mark.parametrize("simulate", [simulate_coroutines, simulate_in_threads])


@SIMULATIONS
@lanes_of(STEPS)
def test_simulated_callers_get_no_value_that_they_may_not(simulate, steps, capsys):
    name = "functions" if simulate is simulate_coroutines else "functions with threads"
    seen = simulate_seeds(simulate, steps, name, capsys)
    if steps == STEPS:
        assert {*FAULTS, "dead", "a value", "no value", "an error", "a None"} <= set(seen)
        assert simulate is simulate_in_threads or seen["a cancellation"]


@SIMULATIONS
@pytest.mark.leaves("later than its age limit allows")
def test_a_simulation_sees_values_that_are_too_old(simulate, monkeypatch):
    monkeypatch.setattr(Limits, "deadline", lambda self, now, rows: math.inf)
    with pytest.raises(AssertionError):
        simulate_all(simulate, 100)


@pytest.mark.extended
@SIMULATIONS
def test_a_simulation_sees_values_from_before_an_invalidation(simulate, monkeypatch):
    monkeypatch.setattr(SingleFlight, "_disown", lambda self, key: False)
    with pytest.raises(AssertionError):
        simulate_all(simulate, 200)


@pytest.mark.extended
def test_a_simulation_sees_two_calls_for_a_key(monkeypatch):
    """A race that only an order of threads shows: without the lock, two callers find that nobody requests a key."""
    original = SyncLookup._start_without_calls

    def start(self):
        original(self)
        self._lock = contextlib.nullcontext()

    monkeypatch.setattr(SyncLookup, "_start_without_calls", start)
    with pytest.raises(AssertionError):
        simulate_all(simulate_in_threads, 200)
