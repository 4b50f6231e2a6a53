"""Ages on a host: the clock counts while the machine sleeps, and no step, back or forth, makes an entry too old."""

from __future__ import annotations

import time

import numpy as np
import pytest
from host_processes import keys_of, look_up, new_cache, right, store
from scale import SEED, scale_up
from test_host_model import KEYS, LIMITS, Model

from lookupcache.host.clock import host_now


class SteppedClock(Model):
    """Its clock also steps back, as that of a machine that was restored may; entries may then be lost."""

    def wait(self, cache, keys) -> None:
        self.now += self.draw.choice([-300.0, -8.0, -3.0, -0.5, 0.5, 3.0, 8.0, 300.0])

    def look(self, cache, keys) -> None:
        for key, rows in look_up(cache, keys, self.kind).items():
            version, written = self.stored[key]
            assert rows == [f"{version}{key}"] * (key % 3)
            assert 0 <= self.now - written <= (LIMITS["write_seconds"] if key % 3 else LIMITS["miss_seconds"])


@pytest.mark.extended
@pytest.mark.parametrize("number", range(scale_up(3)))
def test_steps_of_the_clock_make_no_entry_too_old(number, tmp_path):
    model = SteppedClock(tmp_path, "int", SEED + number)
    try:
        for _ in range(150):
            model.step()
        assert all(cache.counters["host_failures"] == 0 for cache in model.caches)
    finally:
        for cache in model.caches:
            cache.close()


def test_the_clock_counts_while_the_machine_sleeps(tmp_path, monkeypatch):
    real, asleep = time.clock_gettime, 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + asleep * (clock == time.CLOCK_BOOTTIME))
    cache, other = (new_cache(tmp_path, write_seconds=3_600.0, miss_seconds=3_600.0) for _ in range(2))
    store(cache, range(KEYS))
    assert cache.claim(keys_of([KEYS]), 60).all()
    assert look_up(other, range(KEYS)) == right(range(KEYS))
    asleep, before = 3_601.0, host_now()
    assert host_now() >= before
    assert look_up(other, range(KEYS)) == {}
    assert other.claim(keys_of([KEYS]), 60).all(), "the claim of before has lapsed"
    for one in (cache, other):
        one.close()


def test_jitter_shortens_the_age_limit_and_never_extends_it(tmp_path):
    times, numbers = [0.0], [number for number in range(3_000) if number % 3]
    cache = new_cache(tmp_path, clock=lambda: times[-1], write_seconds=100.0, jitter=0.5)
    store(cache, numbers)
    left = []
    for now in (0.0, 50.0, 60.0, 75.0, 90.0, 100.0, 100.001, 1e6):
        times.append(now)
        left.append(len(look_up(cache, numbers)) / len(numbers))
    assert left[:2] == [1.0, 1.0]
    assert np.allclose(left[2:5], [0.8, 0.5, 0.2], atol=0.06)
    assert left[5] <= 0.02
    assert left[6:] == [0.0, 0.0]
    cache.close()
