"""`RowCache`: the times and bytes of an entry, and when it looks for old ones."""

from __future__ import annotations

import itertools
import math

import pytest
from audit import audit_rows
from option_values import EVICTIONS

from lookupcache.cache import Limits, RowCache
from lookupcache.cache.key_queues import S3FifoDict
from lookupcache.cache.size import size_of

AGED = Limits(write_seconds=10, miss_seconds=5)


@pytest.mark.parametrize(
    ("limits", "value", "times"),
    [
        (Limits(), ["a", "b"], (math.inf, math.inf, math.inf, math.inf, -math.inf)),
        (AGED, ["a", "b"], (110, 110, math.inf, math.inf, -math.inf)),
        (AGED, [], (105, 105, math.inf, math.inf, -math.inf)),
        (AGED, None, (105, 105, math.inf, math.inf, -math.inf)),
        (AGED, "text", (110, 110, math.inf, math.inf, -math.inf)),
        (Limits(write_seconds=10, refresh_seconds=4), [1], (104, 110, math.inf, 104, -math.inf)),
        (Limits(write_seconds=10, refresh_seconds=40), [1], (110, 110, math.inf, 140, -math.inf)),
        (Limits(access_seconds=7), [1], (-math.inf, math.inf, 107, math.inf, -math.inf)),
        (Limits(write_seconds=10, stale_seconds=60), [1], (110, 110, math.inf, math.inf, 160)),
        (Limits(write_seconds=10, eviction="s3-fifo"), [1], (-math.inf, 110, math.inf, math.inf, -math.inf)),
    ],
)
def test_the_times_of_an_entry_follow_from_the_limits(limits, value, times):
    cache = RowCache(limits)
    cache.put("a", value, 100)
    entry = cache.find("a", 100)
    found = (entry.simple_until, entry.deadline, entry.idle_deadline, entry.refresh_at, entry.stale_until)
    assert found == times
    assert (entry.value, entry.nbytes, cache.nbytes) == (value, 0, 0)
    assert entry.weight == cache.rows == (2 if value == ["a", "b"] else 1)


def test_an_entry_is_used_up_to_its_last_moment():
    cache = RowCache(Limits(write_seconds=10, access_seconds=4, stale_seconds=60))
    cache.put("a", [1], 100)
    assert cache.get("a", 104) == [1]
    assert cache.get("a", 108) == [1]
    assert cache.get("a", 110) == [1]
    assert cache.get("a", 110.1) is None
    assert cache.find_stale("a", 160).value == [1]
    assert cache.find_stale("a", 160.1) is None
    assert cache.get("a", 160) is None
    assert (cache.expirations, len(cache)) == (1, 1)
    assert cache.get("a", 160.1) is None
    assert (cache.expirations, len(cache)) == (1, 0)


def test_bytes_are_those_of_the_value_the_key_and_the_entry():
    cache, value = RowCache(Limits(bytes=100_000)), ["x" * 1_000]
    cache.put("key", value, 0)
    assert cache.nbytes == size_of("key", value) + 400
    cache.put("key", [], 0)
    assert cache.nbytes == size_of("key", []) + 400
    assert cache.remove("key")
    assert (cache.nbytes, cache.rows, cache.remove("key")) == (0, 0, False)


@pytest.mark.parametrize("spare", [0, 1])
def test_values_that_fit_exactly_are_cached(spare):
    size = size_of("a", [1]) + 400
    cache = RowCache(Limits(bytes=2 * size - spare, rows=3))
    for key in "ab":
        cache.put(key, [1], 0)
    assert (len(cache), cache.evictions) == (2 - spare, spare)


def test_as_many_rows_as_the_limit_fit_exactly():
    cache = RowCache(Limits(rows=3))
    cache.put("a", [1], 0)
    cache.put("b", [2, 3], 0)
    assert (len(cache), cache.rows, cache.evictions) == (2, 3, 0)
    cache.put("c", [1, 2, 3], 0)
    assert (len(cache), cache.rows, cache.evictions, cache.get("c", 0)) == (1, 3, 2, [1, 2, 3])
    cache.put("d", [1, 2, 3, 4], 0)
    assert (len(cache), cache.rows, cache.evictions, cache.get("d", 0)) == (1, 3, 3, None)


class Sweeps(RowCache):
    """Counts the sweeps that find key 1, which is old."""

    count = 0

    def _expire(self, key, entry, now) -> None:
        self.count += key == 1
        super()._expire(key, entry, now)


def sweeping(limits: Limits, entries: int, now: float) -> Sweeps:
    """Return a cache with a number of entries, put at time 0, that has swept at a later time."""
    cache = Sweeps(limits)
    for key in range(entries):
        cache.put(key, [key], 0)
    cache.put(0, [0], now)
    assert cache.count == 1
    cache.count = 0
    return cache


def test_a_sweep_waits_for_a_put_per_entry_that_it_checks():
    cache = sweeping(Limits(write_seconds=10, miss_seconds=10, stale_seconds=1_000), 1_000, 20)
    looks = []
    for number in range(1_600):
        cache.put(0, [0], 40 if number < 800 else 60)
        looks.append(cache.count)
    # Of 1,000 entries, 250 are cheap enough for any put.
    assert [looks.count(number) for number in range(4)] == [749, 750, 101, 0]


def test_a_small_cache_sweeps_once_per_shortest_life():
    cache = sweeping(Limits(write_seconds=10, miss_seconds=5, stale_seconds=1_000), 250, 20)
    for now, looks in ((24.9, 0), (25, 1), (25, 1), (29.9, 1), (30, 2)):
        cache.put(0, [0], now)
        assert cache.count == looks, now


def test_after_the_longest_life_the_next_put_sweeps():
    cache = sweeping(Limits(write_seconds=10, miss_seconds=5, stale_seconds=60), 1_000, 20)
    for now, looks, left in ((79.9, 0, 1_000), (80, 1, 1)):
        cache.put(0, [0], now)
        assert (cache.count, len(cache)) == (looks, left), now
    assert cache.expirations == 999


def test_s3_fifo_queues_each_key_once_and_limits_its_ghosts():
    cache = RowCache(Limits(rows=100, eviction="s3-fifo"))
    assert isinstance(cache.entries, S3FifoDict)
    for key in range(1_000):
        cache.put(key, [key], 0)
        assert cache.get(key, 0) == [key]
    assert (len(cache.entries._ghost), audit_rows(cache)) == (90, [])
    cache.put(900, [1], 0)
    assert list(cache.entries._long)[-1] == 900  # it was evicted a short time ago
    cache.remove_all(lambda key: key % 2)
    assert audit_rows(cache) == []
    cache.clear()
    assert (len(cache), cache.rows, audit_rows(cache)) == (0, 0, [])


def test_s3_fifo_removes_its_only_key():
    entries = S3FifoDict()
    for value in range(3):
        entries["a"] = value
        assert (entries.popitem(), len(entries)) == (("a", value), 0)


@pytest.mark.parametrize("at", range(1, 5))
def test_a_memory_error_in_a_queue_leaves_the_cache_sound(at, monkeypatch):
    cache, calls, append = RowCache(Limits(rows=10, eviction="s3-fifo")), itertools.count(1), S3FifoDict._append_newest
    for key in range(30):
        cache.put(key, [key], 0)

    def fail(entries):
        if next(calls) == at:
            raise MemoryError
        append(entries)

    with monkeypatch.context() as patch:
        patch.setattr(S3FifoDict, "_append_newest", fail)
        with pytest.raises(MemoryError):
            [cache.put(key, [key], 0) for key in range(40, 60)]
    assert audit_rows(cache) == []
    for key in range(60, 90):
        cache.put(key, [key], 0)
    assert (len(cache), audit_rows(cache)) == (10, [])


class Failing:
    """A key whose hash can fail, as that of an object that asks a server for its id."""

    fails = False

    def __hash__(self) -> int:
        if self.fails:
            raise ConnectionError
        return 1


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_key_whose_hash_fails_at_removal_is_not_found_later(eviction):
    cache, key = RowCache(Limits(eviction=eviction)), Failing()
    cache.put(key, ["old"], 0)
    cache.put("other", ["a"], 0)
    key.fails = True
    with pytest.raises(ConnectionError):
        cache.remove(key)
    key.fails = False
    assert cache.get(key, 0) is None
    assert (len(cache), cache.rows) == (0, 0)
