"""A simulated worker: runs that take turns, a source with faults, and a clock that only the simulation moves.

The source is called by coroutines on a simulated event loop, or by simulated threads. Everything is drawn from one
seed, which a failure names; ``LOOKUPCACHE_SEED=17`` replays the simulation of seed 17 first. What each row may show is
decided by `test_failures.Verdict`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import test_failures
from option_values import EVICTIONS
from simulation import SimulatedLoop, lanes_of, simulate_all, simulate_loop, simulate_seeds
from test_failures import (
    RAISED,
    SPOILT,
    Case,
    Join,
    ObservedLoads,
    Run,
    Script,
    Whole,
    WholeJoin,
    rows_of,
    table_of,
)
from thread_simulation import ThreadSimulation, simulate_threads

from lookupcache.cache import ColumnCache
from lookupcache.executor.thread_slots import ThreadSlots
from lookupcache.functions.rows import RowShape
from lookupcache.worker.source import Source

STEPS = 13_000
"""How many steps of the loop or the threads, and of the runs, each test simulates.

With those of `cached` and of stores they are 50,000, and a million with ``LOOKUPCACHE_SCALE=20``.
"""
COROUTINES = ["connector async", "one async", "many async"]
THREADS = ["connector", "one", "many"]
World = SimulatedLoop | ThreadSimulation

FAULTS = (
    ["right"] * 12
    + ["late"] * 6
    + ["down", "limited", "fatal", "odd", SPOILT, "half", "broken", "hangs", "cancelled", "timeout of its own"]
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

    def drawn_outcome(self, faults: list[str]) -> str:
        """Draw what becomes of a call."""
        if self.random.random() < 0.02:
            self.dead_until = self.now + self.random.choice([1, 5])
        outcome = "down" if self.now < self.dead_until else self.random.choice(faults)
        self.seen["dead" if self.now < self.dead_until else outcome] += 1
        return outcome

    def begin(self, keys: list) -> tuple[str, int, list]:
        self.in_flight += 1
        outcome = self.drawn_outcome(FAULTS)
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
        if outcome in ("half", "broken"):
            return self.part(keys, is_broken=outcome == "broken")
        return super().end(keys, outcome, spoilt)

    def part(self, keys: list, *, is_broken: bool) -> Any:
        """Return an answer that lacks rows of a key, which is no error, or one that breaks off after some of them."""
        with self.changing:
            rows = super().end(keys, "right", [])
            key = self.random.choice(keys)
            self.answered[key].remove(rows[key])
            part = rows[key][: self.random.randint(0, 1)]
            if is_broken:
                self.failed.update(keys)
                return rows | {key: broken_off(part)}
            self.answered[key].append(part)
            return rows | {key: part}


def broken_off(rows: list[tuple]) -> Iterator[tuple]:
    yield from rows
    raise ConnectionError("broken off")


assert {"down", "fatal", "cancelled", "timeout of its own"} <= set(RAISED)


def options_of_errors(random: Random) -> dict[str, Any]:
    pick = random.choice
    on_error = pick(["fail", "null", "null", "dead-letter"])
    return {
        "max_retries": random.randint(0, 2),
        "retry_delay": pick([0, 0.1]),
        "breaker_failures": pick([None, None, 2]),
        "breaker_delay": pick([0, 3]),
        "rate_limit": pick([None, None, 20]),
        "timeout": pick([1, 4]),
        "on_error": on_error,
        "error_column": "error" if on_error == "null" else None,
        "dead_letter_path": "letters" if on_error == "dead-letter" else None,
    }


def options_of(random: Random) -> dict[str, Any]:
    """Draw options as `test_failures.cases` does, from the seed."""
    pick = random.choice
    cache = pick(["NONE", "LRU", "LRU", "TTL", "TTL"])
    options: dict[str, Any] = options_of_errors(random) | {
        "cache": cache,
        "async_capacity": random.randint(1, 4),
        "output_mode": pick(["ordered", "allow-unordered"]),
        "batch_max_size": pick([None, 1, 2, 3]),
        "batch_max_delay": pick([None, None, 0.2]),
        "on_miss_max_attempts": pick([0, 0, 1]),
        "on_miss_delay": pick([0, 0.5]),
        "age_column": pick([None, "age"]),
    }
    if cache == "NONE":
        return options
    options |= {"max_rows": pick([None, 1, 2, 4]), "max_bytes": pick([None, None, 6_000])}
    options["eviction"] = pick(EVICTIONS)
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
        kind, how, options = pick(kinds), pick(["inner", "left", "semi", "anti"]), self.drawn_options()
        if kinds is THREADS:
            options["async_"] = pick([None, True, True])
        super().__init__(Case(kind, self.drawn_keys(), how, options, {}, []))

    def drawn_keys(self) -> str:
        return self.random.choice(["int", "text", "colliding"])

    def drawn_options(self) -> dict[str, Any]:
        return options_of(self.random)

    def new_source(self) -> Any:
        numbers = {key: number for number, key in enumerate(self.values)}
        self.script = SimulatedScript(numbers, self.random, self.world, self.seen)
        return super().new_source()


def drawn_run(join: Join, random: Random) -> Run:
    """Draw a run of some batches, which may be stopped early."""
    numbers = [0, 1, 2, 3, 4, 1, 2, None]
    batches = [(0, [random.choice(numbers) for _ in range(random.randint(0, 5))]) for _ in range(random.randint(1, 8))]
    return Run(join, batches, random.choice([None, None, 1, 2]))


# ── a table that is held whole ───────────────────────────────────────────────────────────────────────────

SCANS = ["right"] * 6 + ["late"] * 3 + ["down", "limited", "fatal", "odd", "empty", "broken", "hangs"]
HUNG_SECONDS = 30
"""How long a source hangs before its connection ends: a scan has no timeout."""


class SimulatedScan(Whole):
    """A table whose scans end when and how the seed says; they come in several batches."""

    script: SimulatedScript

    def __init__(self, schema: pa.Schema, script: SimulatedScript) -> None:
        super().__init__(schema, script, [])

    def scan(self, request: Any) -> Iterator[pa.Table]:
        script = self.script
        outcome, self.began = script.drawn_outcome(SCANS), script.now
        if outcome != "right":
            script.world.advance(script.random.choice(DELAYS))
        if outcome == "hangs":
            script.world.advance(HUNG_SECONDS)
        if outcome == "limited":
            raise Limited
        if outcome in ("down", "fatal", "hangs"):
            raise RAISED["fatal" if outcome == "fatal" else "down"]()
        yield from self.parts(outcome)

    def parts(self, outcome: str) -> Iterator[pa.Table]:
        second = int(self.script.now)
        rows = [row for number, key in enumerate(self.script.keys) for row in rows_of(number, key, second)]
        if outcome == "odd":
            yield pa.table({"second": [1]})
        elif outcome != "empty":
            yield table_of(rows[:2], self.schema)
            self.script.world.advance(self.script.random.choice(DELAYS))
            if outcome == "broken":
                raise RAISED["down"]()
            yield table_of(rows[2:], self.schema)


class SimulatedTable(WholeJoin):
    """A join with a table that is held whole, whose loads are simulated; several runs share it."""

    def __init__(self, random: Random, world: World, seen: Counter[str]) -> None:
        self.random, self.world, self.seen = random, world, seen
        options = options_of_errors(random) | {
            "cache": "ALL",
            "reload_interval": (interval := random.choice([None, 1, 2, 3])),
            "stale_if_error": random.choice([None, None, 2, 4]),
        }
        if interval is not None:
            options["reload_allow_empty"] = random.choice([False, True])
            options["reload_mode"] = random.choice(["fixed-delay", "fixed-rate"])
        keys, how = random.choice(["int", "text", "colliding"]), random.choice(["inner", "left", "semi", "anti"])
        super().__init__(Case("whole", keys, how, options, {}, []), [])
        self.lookup.open = self.noting(self.lookup.open)

    def new_source(self) -> Any:
        numbers = {key: number for number, key in enumerate(self.values)}
        self.script = SimulatedScript(numbers, self.random, self.world, self.seen)
        return ObservedLoads(self.plan, SimulatedScan(self.plan.schema, self.script), self.script)

    def noting(self, open_batch: Callable[..., Any]) -> Callable[..., Any]:
        """Note what the rows of a batch are given when it is opened: other runs have their turns before it leaves."""

        def opening(keys: Any) -> Any:
            pending = open_batch(keys)
            self.note(len(self.opened))
            return pending

        return opening

    def batches(self, drawn: Any, rows: list[int]) -> Iterator[pa.RecordBatch]:
        return Join.batches(self, drawn, rows)

    def check_nothing_awaited(self) -> None:
        assert self.lookup._open == []

    def judge(self, opened: Any, emitted: Any, letter: str | None, complete: bool) -> None:
        if next(row for row, one in self.opened.items() if one is opened) in self.given:
            super().judge(opened, emitted, letter, complete)
        else:
            assert (emitted, letter, complete) == (None, None, False)


# ── playing ──────────────────────────────────────────────────────────────────────────────────────────────


def simulate_coroutines(seed: int, seen: Counter[str]) -> int:
    """Simulate one worker whose source is async; return how many steps that took."""
    with simulate_loop(seed) as loop:
        return play(SimulatedJoin(Random(seed), loop, seen, COROUTINES)) + loop.steps


def simulate_in_threads(seed: int, seen: Counter[str]) -> int:
    """Simulate one worker that calls its source in threads; return how many steps that took."""
    if Random(seed).random() < 0.25:
        return simulate_table(seed, seen)
    with simulate_threads(seed, test_failures) as threads:
        turns = play(SimulatedJoin(Random(seed), threads, seen, THREADS))
    return turns + threads.steps


def simulate_table(seed: int, seen: Counter[str]) -> int:
    """Simulate one worker that holds a table whole, which it loads in a thread; return how many steps that took."""
    with simulate_threads(seed, test_failures) as threads:
        turns = play(SimulatedTable(Random(seed), threads, seen))
    return turns + threads.steps


def play(join: SimulatedJoin | SimulatedTable) -> int:
    """Let a worker's runs go on in turns until all have ended, and judge them; return how many turns that took."""
    random, turns = join.random, 0
    waiting = deque(drawn_run(join, random) for _ in range(random.randint(2, 6)))
    runs: list[Run] = []
    while waiting or any(run.end is None for run in runs):
        live = [run for run in runs if run.end is None]
        if waiting and (not live or (len(live) < 3 and random.random() < 0.3)):
            runs.append(waiting.popleft())
            continue
        action = random.random()
        turns += 1
        if action < 0.25:
            join.world.advance(random.choice(DELAYS))
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
        join.seen[f"a run {run.end}"] += 1
        run.judge()
    join.end()
    return turns


SIMULATIONS = pytest.mark.parametrize("simulate", [simulate_coroutines, simulate_in_threads])


@SIMULATIONS
@lanes_of(STEPS)
def test_a_simulated_worker_shows_no_row_that_it_may_not(simulate, steps, capsys):
    name = "workers" if simulate is simulate_coroutines else "workers with threads"
    seen = simulate_seeds(simulate, steps, name, capsys)
    if steps == STEPS:
        assert {*FAULTS, *(SCANS if simulate is simulate_in_threads else [])} <= set(seen)
        assert all(seen[f"a run {end}"] for end in ("complete", "failed", "closed"))


@SIMULATIONS
def test_a_simulation_sees_rows_of_another_key(simulate, monkeypatch):
    """What the simulation is for: an entry that has the rows of another key does not pass."""
    original = ColumnCache.starts
    monkeypatch.setattr(ColumnCache, "starts", lambda self, entries: original(self, entries[::-1].copy()))
    with pytest.raises((AssertionError, IndexError, KeyError)):
        simulate_all(simulate, 30)


@pytest.mark.extended
def test_a_simulation_detects_an_answer_to_an_abandoned_call(monkeypatch):
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


def up_to_the_error(rows):
    """Return what an iterator yields before it breaks off, as if that were all."""
    found = []
    with contextlib.suppress(ConnectionError):
        found.extend(rows)
    return found


@pytest.mark.extended
@SIMULATIONS
def test_a_simulation_sees_half_an_answer_that_is_taken_for_all(simulate, monkeypatch):
    monkeypatch.setattr(RowShape, "rows", lambda self, answer, key=(): up_to_the_error(answer))
    with pytest.raises(AssertionError):
        simulate_all(simulate, 200)


@pytest.mark.extended
def test_a_simulation_sees_half_a_table_that_is_taken_for_all(monkeypatch):
    def scan(self, connector):
        batches = up_to_the_error(map(self.reader.check, connector.scan(self.reader.request)))
        return pa.concat_tables(batches) if batches else self.reader.schema.empty_table()

    monkeypatch.setattr(Source, "_scan", scan)
    with pytest.raises(AssertionError):
        simulate_all(simulate_table, 100)
