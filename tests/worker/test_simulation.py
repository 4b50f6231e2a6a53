"""A simulated worker: runs that take turns, a source with faults, and a clock that only the simulation moves.

The source is called by coroutines on a simulated event loop, or by simulated threads. Everything is drawn from one
seed, which a failure names; ``LOOKUPCACHE_SEED=17`` replays the simulation of seed 17 first. What each row may show is
decided by `test_failures.Verdict`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import test_failures
from simulation import SimulatedLoop, simulate_loop, simulate_seeds
from test_failures import RAISED, SPOILT, Case, Join, Run, Script
from thread_simulation import ThreadSimulation, simulate_threads

from lookupcache.cache import ColumnCache
from lookupcache.executor.thread_slots import ThreadSlots

STEPS = 15_000
"""How many steps of the loop or the threads, and of the runs, each test simulates.

With those of `cached` they are 50,000, and a million with ``LOOKUPCACHE_SCALE=20``.
"""
COROUTINES = ["connector async", "one async", "many async"]
THREADS = ["connector", "one", "many"]
World = SimulatedLoop | ThreadSimulation

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

    def __init__(self, keys: dict[Any, int], random: Random, world: World, seen: Counter[str]) -> None:
        self.world, self.random, self.seen = world, random, seen
        self.dead_until = 0.0
        super().__init__(keys, {})

    @property
    def now(self) -> float:
        return self.world.now

    @now.setter
    def now(self, value: float) -> None:
        """Time is the simulation's."""

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
            return self.end(keys, outcome, spoilt)
        finally:
            self.ended()

    def answer(self, keys: list) -> Any:
        outcome, _, spoilt = self.begin(keys)
        try:
            if outcome != "right":
                self.world.advance(self.random.choice(DELAYS))
            if outcome == "hangs":
                self.released.wait()
            return self.end(keys, outcome, spoilt)
        finally:
            self.ended()

    def end(self, keys: list, outcome: str, spoilt: list) -> Any:
        if outcome == "limited":
            self.failed.update(keys)
            raise Limited
        if outcome == "hangs":
            # Nobody waits for this answer any more.
            self.failed.update(keys)
            return None
        return super().end(keys, outcome, spoilt)


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
    """A join whose source, clock, and loop or threads are simulated."""

    def __init__(self, random: Random, world: World, seen: Counter[str], kinds: list[str]) -> None:
        self.random, self.world, self.seen = random, world, seen
        pick = random.choice
        kind, keys, how = (
            pick(kinds),
            pick(["int", "text", "colliding"]),
            pick(["inner", "left", "semi", "anti"]),
        )
        options = options_of(random)
        if kinds is THREADS:
            options["async_"] = pick([None, True, True])
        super().__init__(Case(kind, keys, how, options, {}, []))

    def new_source(self) -> Any:
        numbers = {key: number for number, key in enumerate(self.values)}
        self.script = SimulatedScript(numbers, self.random, self.world, self.seen)
        return super().new_source()

    def drawn_run(self) -> Run:
        """Draw a run of some batches, which may be stopped early."""
        numbers = [0, 1, 2, 3, 4, 1, 2, None]
        batches = [
            (0, [self.random.choice(numbers) for _ in range(self.random.randint(0, 5))])
            for _ in range(self.random.randint(1, 8))
        ]
        return Run(self, batches, self.random.choice([None, None, 1, 2]))


def simulate_coroutines(seed: int, seen: Counter[str]) -> int:
    """Simulate one worker whose source is async; return how many steps that took."""
    with simulate_loop(seed) as loop:
        return play(Random(seed), loop, seen, COROUTINES) + loop.steps


def simulate_in_threads(seed: int, seen: Counter[str]) -> int:
    """Simulate one worker that calls its source in threads; return how many steps that took."""
    with simulate_threads(seed, test_failures) as threads:
        turns = play(Random(seed), threads, seen, THREADS)
    return turns + threads.steps


def play(random: Random, world: World, seen: Counter[str], kinds: list[str]) -> int:
    """Let a worker's runs go on in turns until all have ended, and judge them; return how many turns that took."""
    join, turns = SimulatedJoin(random, world, seen, kinds), 0
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
            world.advance(random.choice(DELAYS))
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
    return turns


SIMULATIONS = pytest.mark.parametrize("simulate", [simulate_coroutines, simulate_in_threads])


@SIMULATIONS
@pytest.mark.slow
def test_a_simulated_worker_shows_no_row_that_it_may_not(simulate, capsys):
    name = "workers" if simulate is simulate_coroutines else "workers with threads"
    seen = simulate_seeds(simulate, STEPS, name, capsys)
    assert set(FAULTS) <= set(seen)
    assert all(seen[f"a run {end}"] for end in ("complete", "failed", "closed"))


@SIMULATIONS
def test_a_seed_replays_a_simulation(simulate):
    def trace(seed: int) -> tuple[int, Counter[str]]:
        seen: Counter[str] = Counter()
        return simulate(seed, seen), seen

    assert [trace(seed) for seed in range(5)] == [trace(seed) for seed in range(5)]


@SIMULATIONS
def test_a_simulation_sees_rows_of_another_key(simulate, monkeypatch):
    """What the simulation is for: an entry that has the rows of another key does not pass."""
    original = ColumnCache.starts
    monkeypatch.setattr(ColumnCache, "starts", lambda self, entries: original(self, entries[::-1].copy()))
    with pytest.raises((AssertionError, IndexError, KeyError)):
        simulate_all(simulate, 30)


def test_a_simulation_sees_an_answer_to_a_call_that_was_abandoned(monkeypatch):
    """A race that only an order of threads shows: between the check and the lock, the call may have timed out."""

    def run(self, job):
        try:
            answer = job.run()
        except BaseException as error:
            answer = error
        abandoned = job.abandoned
        with self._lock:
            self._running.discard(job)
            self._notify_waiting()
        if not abandoned:
            job.end(answer)
        return not abandoned

    monkeypatch.setattr(ThreadSlots, "_run", run)
    with pytest.raises(AssertionError):
        simulate_all(simulate_in_threads, 200)


def simulate_all(simulate: Callable[[int, Counter[str]], int], count: int) -> None:
    for seed in range(count):
        simulate(seed, Counter())
