"""Simulated workers of several hosts that share a store: each in a thread of its own, and the store fails at times.

What each row may show is decided as for one worker, by what its lookup has read; and what that has read of the store
must be what some worker has fetched, as old as it says, and young enough. ``LOOKUPCACHE_SEED`` is the first seed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any
from unittest import mock

import memory_store
import numpy as np
import pytest
import test_failures
from memory_store import URL, MemoryStore
from simulation import simulate_all, simulate_seeds
from test_failures import CallResult, check_text, connector_of, limit_of
from test_simulation import DELAYS, THREADS, SimulatedJoin, options_of, play
from thread_simulation import ThreadSimulation, simulate_threads

from lookupcache.store import writer
from lookupcache.store.row_store import RowStore
from lookupcache.worker.source import Source

STEPS = 4_000
CLOCK_ERROR = 0.001
"""So many seconds an age may differ by, as the store's clock is another."""


class SimulatedStore(MemoryStore):
    """A store that is slow, and that is down for a while now and then."""

    def __init__(self, random: Random, world: ThreadSimulation, seen: Counter[str]) -> None:
        self.random, self.world, self.seen = random, world, seen
        self.down_until = 0.0
        super().__init__()

    @property
    def clock(self) -> float:
        return 1_000_000.0 + self.world.now

    @clock.setter
    def clock(self, value: float) -> None:
        """Time is the simulation's."""

    def _check(self, writes: bool = False) -> None:
        if self.random.random() < 0.1:
            self.world.sleep(self.random.choice(DELAYS))
        if self.random.random() < 0.03:
            self.down_until = self.world.now + self.random.choice([0.5, 3])
        if self.world.now < self.down_until:
            self.seen["the store is down"] += 1
            raise ConnectionError("the store is down")


class Shared:
    """What the workers share: the source, the store, and what was fetched."""

    def __init__(self, seed: int, world: ThreadSimulation, seen: Counter[str]) -> None:
        self.random, self.world, self.seen = Random(seed), world, seen
        self.store = SimulatedStore(self.random, world, seen)
        self.answered: dict[Any, list[list[tuple]]] = defaultdict(list)
        self.fetched: dict[Any, list[tuple[float, list[tuple]]]] = defaultdict(list)
        options = options_of(self.random)
        while options["cache"] == "NONE":
            options = options_of(self.random)
        self.options = options | {"store": URL, "async_": self.random.choice([None, True, True])}
        self.keys = self.random.choice(["int", "text", "colliding"])
        self.kind = self.random.choice(THREADS)

    def noting(self, read: Any) -> Any:
        """Note what any worker has fetched from the source, and when."""

        def noting_read(source: Source, calls: Any, answers: Any) -> Any:
            fetched = read(source, calls, answers)
            for key, rows in by_key(calls.keys, fetched.rows, fetched.counts):
                self.fetched[key].append((self.world.now, rows))
            return fetched

        return noting_read


def by_key(keys: Any, rows: Any, counts: Any) -> Iterator[tuple[Any, list[tuple]]]:
    """Yield each key with its rows."""
    values = iter(tuple(row.values()) for row in rows.to_pylist())
    for key, count in zip(keys.columns[0].to_pylist(), counts.tolist(), strict=True):
        yield key, list(itertools.islice(values, count))


class Worker(SimulatedJoin):
    """A worker with a cache of its own before the store."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        super().__init__(Random(shared.random.random()), shared.world, shared.seen, [shared.kind])
        self.source = self.lookup.source
        self.source.numbers, self.source.results = itertools.count(), defaultdict(list)
        self.sent: dict[int, float] = {}
        self.lookup._send = self.sending(self.lookup._send)
        self.lookup._read_answers = self.reading(self.lookup._read_answers)

    def drawn_options(self) -> dict[str, Any]:
        return self.shared.options

    def drawn_keys(self) -> str:
        return self.shared.keys

    def new_source(self) -> Any:
        super().new_source()
        self.script.answered = self.shared.answered
        return Source(self.plan, connector_of(self.case.kind, self.plan.schema, self.script))

    def sending(self, send: Any) -> Any:
        def sent(number: int, *args: Any, **options: Any) -> None:
            self.sent[number] = self.world.now
            send(number, *args, **options)

        return sent

    def reading(self, read: Any) -> Any:
        """Note what was read of a request, and check what of it came from the store."""

        def noting(request: Any) -> Any:
            fetched, now = read(request), self.world.now
            written = np.full(len(request.keys), np.inf) if fetched.written is None else fetched.written
            for place, (key, rows) in enumerate(by_key(request.keys, fetched.rows, fetched.counts)):
                number, time = next(self.source.numbers), float(written[place])
                if fetched.failed[place]:
                    error = fetched.errors[fetched.call_of[place]]
                    check_text(error)
                    self.source.results[key].append(CallResult(number, now, None, error.code))
                    continue
                assert rows in self.script.answered[key]
                result = CallResult(number, min(time, now), rows)
                self.source.results[key].append(result)
                if time < math.inf:
                    self.check_age(key, result, self.sent[request.number])
            return fetched

        return noting

    def check_age(self, key: Any, result: CallResult, sent: float) -> None:
        """Rows that were not fetched now are as old as is said, and not too old when they were asked for."""
        self.seen["rows from the store"] += result.time < sent
        fetched = [time for time, rows in self.shared.fetched[key] if rows == result.rows]
        # An age is counted from before a request to the store, which may take long.
        assert any(result.time < time + CLOCK_ERROR for time in fetched), f"{key!r}: {result} is none of {fetched}."
        assert sent - result.time <= limit_of(self.config, result) + CLOCK_ERROR


def simulate(seed: int, seen: Counter[str]) -> int:
    """Simulate workers with a store; return how many steps that took."""
    tokens = (number.to_bytes(16, "little") for number in itertools.count())
    with simulate_threads(seed, test_failures, memory_store) as world, mock.patch.object(writer, "_all", {}):
        shared = Shared(seed, world, seen)
        turns: list[int] = []
        with (
            mock.patch.object(Source, "read_answers", shared.noting(Source.read_answers)),
            mock.patch("lookupcache.store.row_store.open_store", return_value=shared.store),
            mock.patch("lookupcache.store.guard.process_token", side_effect=lambda process: next(tokens)),
        ):
            workers = [Worker(shared) for _ in range(shared.random.randint(1, 3))]
            for one in workers:
                world.run_thread("a worker", lambda one=one: turns.append(play(one)))
            world.finish()
    return world.steps + sum(turns)


@pytest.mark.slow
def test_simulated_workers_with_a_store_show_only_allowed_rows(capsys):
    seen = simulate_seeds(simulate, STEPS, "workers with a store", capsys)
    assert seen["rows from the store"]
    assert seen["the store is down"]


def test_a_simulation_sees_rows_of_the_store_that_are_too_old(monkeypatch):
    original = RowStore.known

    def known(self, keys, reading, before, is_refreshed=None):
        found = original(self, keys, reading, before, is_refreshed)
        found.written[:] = before
        return found

    monkeypatch.setattr(RowStore, "known", known)
    with pytest.raises(AssertionError):
        simulate_all(simulate, 100)
