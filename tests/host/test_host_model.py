"""Drawn operations of three processes, compared with a dict: what is stored and not too old is found, and only that."""

from __future__ import annotations

import random

import numpy as np
import pytest
from host_processes import KINDS, keys_of, look_up, new_cache, rows_of
from scale import SEED, scale_up

from lookupcache.host import host_cache, maintenance

KEYS = 60
LIMITS = {"write_seconds": 10.0, "miss_seconds": 4.0, "stale_seconds": 0.0}


class Model:
    """What the host should have: the version and time of each key."""

    def __init__(self, path, kind: str, seed: int) -> None:
        self.draw, self.kind, self.now = random.Random(seed), kind, 1_000.0
        self.caches = [new_cache(path, kind, clock=lambda: self.now, **LIMITS) for _ in range(3)]
        self.stored: dict[int, tuple[str, float]] = {}
        self.version = 0
        self.path = path

    def step(self) -> None:
        operation = self.draw.choice([self.store, self.store, self.look, self.look, self.wait, self.change, self.late])
        operation(self.draw.choice(self.caches), self.draw.sample(range(KEYS), self.draw.randint(1, 12)))
        if self.draw.random() < 0.05:
            self.restart()

    def store(self, cache, keys) -> None:
        self.version += 1
        rows, counts = rows_of(keys, f"v{self.version} ")
        cache.publish(keys_of(keys, self.kind), rows, counts, self.now, self.newest())
        self.stored |= dict.fromkeys(keys, (f"v{self.version} ", self.now))

    def late(self, cache, keys) -> None:
        """Publish rows that were requested before some of the keys changed."""
        since = self.newest()
        changed = keys[: len(keys) // 2]
        self.draw.choice(self.caches).invalidate(keys_of(changed, self.kind))
        self.version += 1
        rows, counts = rows_of(keys, f"v{self.version} ")
        cache.publish(keys_of(keys, self.kind), rows, counts, self.now, since)
        for key in keys:
            if key in changed:
                self.stored.pop(key, None)
            else:
                self.stored[key] = (f"v{self.version} ", self.now)

    def newest(self) -> int:
        """Return the position of a process that has just looked."""
        cache = self.draw.choice(self.caches)
        cache.find(keys_of([0], self.kind))
        return cache.position

    def change(self, cache, keys) -> None:
        everything = self.draw.random() < 0.2
        cache.invalidate(None if everything else keys_of(keys, self.kind))
        for key in list(self.stored) if everything else keys:
            self.stored.pop(key, None)

    def wait(self, cache, keys) -> None:
        self.now += self.draw.choice([0.5, 2.0, 3.0])

    def restart(self) -> None:
        """End a process, and start another."""
        number = self.draw.randrange(len(self.caches))
        self.caches[number].close()
        self.caches[number] = new_cache(self.path, self.kind, clock=lambda: self.now, **LIMITS)

    def look(self, cache, keys) -> None:
        expected = {}
        for key in keys:
            version, written = self.stored.get(key, ("", -np.inf))
            if self.now - written <= (LIMITS["write_seconds"] if key % 3 else LIMITS["miss_seconds"]):
                expected[key] = [f"{version}{key}"] * (key % 3)
        assert look_up(cache, keys, self.kind) == expected


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(scale_up(4)))
def test_processes_find_what_was_stored_and_is_not_too_old(kind, number, tmp_path, monkeypatch):
    # Merges of few segments, and often when nothing is published for a moment.
    monkeypatch.setattr(maintenance, "_LEAST_RUN", (2, 4, 8)[number % 3])
    monkeypatch.setattr(host_cache, "QUIET_LOOKUPS", 2)
    monkeypatch.setattr(maintenance, "_QUIET_SECONDS", 1.0)
    # All merges in a thread, or only large ones.
    monkeypatch.setattr(maintenance, "_SMALL_ENTRIES", (0, maintenance._SMALL_ENTRIES)[number % 2])
    model = Model(tmp_path, kind, SEED + number)
    try:
        for _ in range(150):
            model.step()
        for cache in model.caches:
            model.look(cache, list(range(KEYS)))
            assert cache.counters["host_failures"] == cache.counters["host_dropped_files"] == 0
    finally:
        for cache in model.caches:
            cache.close()
