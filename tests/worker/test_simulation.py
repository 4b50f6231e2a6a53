"""A simulated worker: runs that take turns, a source with faults, and a clock that only the simulation moves.

Everything is drawn from one seed, which a failure names; ``LOOKUPCACHE_SEED=17`` replays the simulation of seed 17
first. What each row may show is decided by `test_failures.Verdict`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from random import Random
from typing import Any

import pytest
from simulation import SimulatedLoop, simulate_loop, simulate_seeds
from test_failures import RAISED, SPOILT, Case, Join, Run, Script

from lookupcache.cache import ColumnCache

STEPS = 50_000
"""How many steps of the loop and of the runs are simulated: a million with ``LOOKUPCACHE_SCALE=20``."""

FAULTS = (
    ["right"] * 12
    + ["late"] * 6
    + ["down", "limited", "fatal", "odd", SPOILT, "hangs", "cancelled", "timeout of its own"]
)
DELAYS = [0, 0, 0, 0.001, 0.01, 0.3, 1, 2.5]


class Limited(ConnectionError):
    """The source wants to be left alone for a while."""

    def __init__(self) -> None:
        super().__init__("429 Too Many Requests")
        self.retry_after = 0.4


class SimulatedScript(Script):
    """A source whose answers come when and how the seed says; there are times in which it is down."""

    def __init__(self, keys: dict[Any, int], random: Random, loop: SimulatedLoop, seen: Counter[str]) -> None:
        self.loop, self.random, self.seen = loop, random, seen
        self.dead_until = 0.0
        super().__init__(keys, {})

    @property
    def now(self) -> float:
        return self.loop.now

    @now.setter
    def now(self, value: float) -> None:
        """Time is the loop's."""

    def begin(self, keys: list) -> tuple[str, int, list]:
        self.in_flight += 1
        if self.random.random() < 0.02:
            self.dead_until = self.now + self.random.choice([1, 5])
        outcome = "down" if self.now < self.dead_until else self.random.choice(FAULTS)
        self.seen["dead" if self.now < self.dead_until else outcome] += 1
        spoilt = self.random.sample(keys, 1) if outcome == SPOILT else []
        return outcome, self.batches, spoilt

    async def answer_async(self, keys: list) -> Any:
        outcome, _, spoilt = self.begin(keys)
        try:
            if outcome != "right":
                await asyncio.sleep(self.random.choice(DELAYS))
            if outcome == "hangs":
                await asyncio.get_running_loop().create_future()
            if outcome == "limited":
                self.failed.update(keys)
                raise Limited
            return self.end(keys, outcome, spoilt)
        finally:
            self.ended()


assert {"down", "fatal", "cancelled", "timeout of its own"} <= set(RAISED)


def options_of(random: Random) -> dict[str, Any]:
    """Draw options as `test_failures.cases` does, from the seed."""
    pick = random.choice
    cache = pick(["NONE", "LRU", "LRU", "TTL", "TTL"])
    options: dict[str, Any] = {
        "cache": cache,
        "async_capacity": random.randint(1, 4),
        "output_mode": pick(["ordered", "allow-unordered"]),
        "batch_max_size": pick([None, 1, 2, 3]),
        "batch_max_delay": pick([None, None, 0.2]),
        "on_miss_max_attempts": pick([0, 0, 1]),
        "on_miss_delay": pick([0, 0.5]),
        "max_retries": random.randint(0, 2),
        "retry_delay": pick([0, 0.1]),
        "breaker_failures": pick([None, None, 2]),
        "breaker_delay": pick([0, 3]),
        "rate_limit": pick([None, None, 20]),
        "timeout": pick([1, 4]),
        "on_error": pick(["fail", "null", "null", "dead-letter"]),
        "age_column": pick([None, "age"]),
    }
    options["error_column"] = "error" if options["on_error"] == "null" else None
    options["dead_letter_path"] = "letters" if options["on_error"] == "dead-letter" else None
    if cache == "NONE":
        return options
    options |= {"max_rows": pick([None, 1, 2, 4]), "max_bytes": pick([None, None, 6_000])}
    options["eviction"] = pick(["lru", "s3-fifo", "sieve"])
    write = pick([None, 2, 5]) if cache == "LRU" else pick([2, 5])
    options["expire_after_write"] = write
    if write:
        options["stale_if_error"] = pick([None, write + 3])
        options["missing_key_expire_after_write"] = pick([None, 1])
        options["refresh_after_write"] = pick([None, 0, 1])
    if options.get("missing_key_expire_after_write") is None:
        options["missing_key"] = pick([True, False])
    options["expire_after_access"] = pick([None, None, 3])
    return options


class SimulatedJoin(Join):
    """A join whose source, clock and loop are simulated."""

    def __init__(self, random: Random, loop: SimulatedLoop, seen: Counter[str]) -> None:
        self.random, self.loop, self.seen = random, loop, seen
        pick = random.choice
        kind, keys, how = (
            pick(["connector async", "one async", "many async"]),
            pick(["int", "text", "colliding"]),
            pick(["inner", "left", "semi", "anti"]),
        )
        super().__init__(Case(kind, keys, how, options_of(random), {}, []))

    def new_source(self) -> Any:
        numbers = {key: number for number, key in enumerate(self.values)}
        self.script = SimulatedScript(numbers, self.random, self.loop, self.seen)
        return super().new_source()

    def drawn_run(self) -> Run:
        """Draw a run of some batches, which may be stopped early."""
        numbers = [0, 1, 2, 3, 4, 1, 2, None]
        batches = [
            (0, [self.random.choice(numbers) for _ in range(self.random.randint(0, 5))])
            for _ in range(self.random.randint(1, 8))
        ]
        return Run(self, batches, self.random.choice([None, None, 1, 2]))


def simulate(seed: int, seen: Counter[str]) -> int:
    """Simulate one worker; return how many steps that took."""
    random = Random(seed)
    with simulate_loop() as loop:
        join, turns = SimulatedJoin(random, loop, seen), 0
        waiting = deque(join.drawn_run() for _ in range(random.randint(2, 6)))
        runs: list[Run] = []
        while waiting or any(run.end is None for run in runs):
            live = [run for run in runs if run.end is None]
            if waiting and (not live or (len(live) < 3 and random.random() < 0.3)):
                runs.append(waiting.popleft())
                continue
            action = random.random()
            turns += 1
            if action < 0.25:
                loop.advance(random.choice(DELAYS))
            elif action < 0.28:
                # A task that is killed closes its run wherever it is.
                run = random.choice(live)
                if run.rows:  # A generator that was never started has nothing to close.
                    run.stream.close()
                    run.end = "closed"
            else:
                random.choice(live).go_on()
        join.check_nothing_awaited()
        for run in runs:
            seen[f"a run {run.end}"] += 1
            run.judge()
        join.end()
        return loop.steps + turns


@pytest.mark.slow
def test_a_simulated_worker_shows_no_row_that_it_may_not(capsys):
    seen = simulate_seeds(simulate, STEPS, "workers", capsys)
    assert set(FAULTS) <= set(seen)
    assert all(seen[f"a run {end}"] for end in ("complete", "failed", "closed"))


def test_a_seed_replays_a_simulation():
    def trace(seed: int) -> tuple[int, Counter[str]]:
        seen: Counter[str] = Counter()
        return simulate(seed, seen), seen

    assert [trace(seed) for seed in range(5)] == [trace(seed) for seed in range(5)]


def test_a_simulation_sees_rows_of_another_key(monkeypatch):
    """What the simulation is for: an entry that has the rows of another key does not pass."""
    original = ColumnCache.starts
    monkeypatch.setattr(ColumnCache, "starts", lambda self, entries: original(self, entries[::-1].copy()))
    with pytest.raises((AssertionError, IndexError, KeyError)):
        simulate_all(30)


def simulate_all(count: int) -> None:
    for seed in range(count):
        simulate(seed, Counter())
