"""Simulated callers of a `cached` coroutine: they come together, and are cancelled at any await; the source has faults.

One seed draws everything and replays it; ``LOOKUPCACHE_SEED`` is the first one.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from simulation import SimulatedLoop, simulate_loop, simulate_seeds

from lookupcache import cached
from lookupcache.cache import Limits
from lookupcache.errors import LookupRefusedError, LookupTimeoutError

STEPS = 50_000
FAULTS = ["right"] * 12 + ["down", "fatal", "odd", "hangs", "stubborn"]
DELAYS = [0, 0, 0, 0.001, 0.01, 0.3, 1, 2.5]
EXPECTED = (ConnectionError, ValueError, LookupRefusedError, LookupTimeoutError)


@dataclass
class Landing:
    """What a call of the source ended with for a key: the number of its value, or None for an error."""

    begun: float
    ended: float
    value: int | None


class Simulation:
    def __init__(self, seed: int, loop: SimulatedLoop, seen: Counter[str]) -> None:
        self.random, self.loop, self.seen = Random(seed), loop, seen
        self.landings: dict[int, list[Landing]] = {key: [] for key in range(6)}
        self.flying: Counter[int] = Counter()
        self.values = self.requested = 0
        self.options = self.drawn()
        self.function = cached(**self.options, clock=loop.time)(self.batch if self.options["batch"] else self.one)

    def drawn(self) -> dict[str, Any]:
        pick = self.random.choice
        write = pick([None, 2, 4])
        return {
            "batch": (batch := pick([False, True])),
            "batch_max_size": pick([None, 1, 2]) if batch else None,
            "batch_max_delay": pick([None, 0.2]) if batch else None,
            "max_rows": pick([None, 1, 3]),
            "eviction": pick(["lru", "s3-fifo", "sieve"]),
            "expire_after_write": write,
            "refresh_after_write": pick([None, 1]) if write else None,
            "stale_if_error": pick([None, 7]) if write else None,
            "async_capacity": pick([1, 2, 9]),
            "max_retries": pick([0, 1, 2]),
            "retry_delay": pick([0, 0.1]),
            "breaker_failures": pick([None, None, 3]),
            "breaker_delay": 2,
            "timeout": pick([1, 5]),
            "on_error": pick(["fail", "null"]),
        }

    async def one(self, key: int) -> Any:
        return (await self.batch([key]))[0]

    async def batch(self, keys: list[int]) -> list[Any]:
        fault, begun = self.random.choice(FAULTS), self.loop.time()
        self.seen[fault] += 1
        self.flying.update(keys)
        try:
            await asyncio.sleep(self.random.choice(DELAYS))
            if fault == "hangs":
                await asyncio.get_running_loop().create_future()
            if fault == "stubborn":
                await self.ignore_one_cancellation()
            if fault == "down":
                raise ConnectionError("down")
            if fault == "fatal":
                raise ValueError("never")
            if fault == "odd":
                raise LookupTimeoutError("a timeout of its own")
        except BaseException:
            for key in keys:
                self.landings[key].append(Landing(begun, self.loop.time(), None))
            raise
        finally:
            self.flying.subtract(keys)
        first, self.values = self.values, self.values + len(keys)
        for number, key in enumerate(keys):
            self.landings[key].append(Landing(begun, self.loop.time(), first + number))
        return [(key, first + number) for number, key in enumerate(keys)]

    async def ignore_one_cancellation(self) -> None:
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            self.seen["a cancellation ignored"] += 1

    async def caller(self, keys: list[int]) -> None:
        begun = self.loop.time()
        self.requested += len(keys)
        try:
            found = await (self.function(keys) if self.options["batch"] else self.function(keys[0]))
        except EXPECTED:
            assert self.options["on_error"] == "fail"
            assert any(self.may_fail(key, begun) for key in keys), f"{keys} failed, and no call for them did."
            self.seen["an error"] += 1
            return
        for key, value in zip(keys, found if self.options["batch"] else [found], strict=True):
            self.check(key, value, begun)

    def may_fail(self, key: int, begun: float) -> bool:
        """A call for the key has failed since, or hangs, or the circuit breaker is open."""
        failed = any(landing.value is None and landing.ended >= begun for landing in self.landings[key])
        return failed or self.flying[key] > 0 or self.options["breaker_failures"] is not None or self.waited(begun)

    def waited(self, begun: float) -> bool:
        """A call may time out before it is made, where all slots are taken by calls that hang."""
        return self.loop.time() - begun >= self.options["timeout"]

    def check(self, key: int, value: Any, begun: float) -> None:
        if value is None:
            assert self.options["on_error"] == "null"
            assert self.may_fail(key, begun), f"{key} is None, and no call for it failed."
            self.seen["a None"] += 1
            return
        assert value[0] == key
        [landing] = [one for one in self.landings[key] if one.value == value[1]]
        self.seen["a value"] += 1
        if landing.ended >= begun:
            return
        age, longest = begun - landing.ended, self.options["expire_after_write"] or math.inf
        stale = self.options["stale_if_error"] or 0
        # A value that replaces an error is checked when its own lookup fails; other keys may take longer.
        assert age <= longest or (self.may_fail(key, begun) and age <= stale)

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
                key = self.random.randrange(6)
                self.function.invalidate(key)
            else:
                size = self.random.randint(1, 4) if self.options["batch"] else 1
                keys = [self.random.randrange(6) for _ in range(size)]
                tasks.append(asyncio.ensure_future(self.caller(keys)))
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 1_000)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end
        await self.function.close()
        metrics = self.function.metrics()
        assert (metrics.rows, metrics.hits + metrics.misses) == (self.requested, self.requested)
        assert metrics.cached_rows <= (self.options["max_rows"] or math.inf)
        await asyncio.sleep(10)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "A task is left."


def simulate(seed: int, seen: Counter[str]) -> int:
    with simulate_loop(seed) as loop:
        loop.run_until_complete(Simulation(seed, loop, seen).run())
        return loop.steps


@pytest.mark.slow
def test_simulated_callers_get_no_value_that_they_may_not(capsys):
    seen = simulate_seeds(simulate, STEPS, "functions", capsys)
    assert {*FAULTS, "a value", "an error", "a None", "a cancellation"} <= set(seen)


def test_a_seed_replays_a_simulation():
    def trace(seed: int) -> tuple[int, Counter[str]]:
        seen: Counter[str] = Counter()
        return simulate(seed, seen), seen

    assert [trace(seed) for seed in range(5)] == [trace(seed) for seed in range(5)]


@pytest.mark.leaves("later than its age limit allows")
def test_a_simulation_sees_values_that_are_too_old(monkeypatch):
    monkeypatch.setattr(Limits, "deadline", lambda self, now, rows: math.inf)
    with pytest.raises(AssertionError):
        simulate_all(100)


def simulate_all(count: int) -> None:
    for seed in range(count):
        simulate(seed, Counter())
