"""What one process sees of the cache that it shares: its part, what is fresh, and nothing where the folder is lost."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from host_processes import keys_of, look_up, new_cache, right, rows_of, store

from lookupcache.host import HostUnavailableError, claims, host_cache, maintenance
from lookupcache.host.key_index import MOST_IDS

KEYS = range(40)


def test_the_shares_of_all_processes_are_what_is_stored(caches):
    one, other, reader = (caches() for _ in range(3))
    store(one, KEYS[:10])
    store(other, KEYS[10:])
    rows, size, keys = zip(*(cache.share() for cache in (one, other, reader)), strict=True)
    assert (sum(rows), keys) == (sum(max(key % 3, 1) for key in KEYS), (10, 30, 0))
    assert abs(sum(size) - other._segments.nbytes) <= 1


def test_an_entry_is_fresh_until_it_is_too_old_or_unused_for_too_long(caches):
    now = 1_000.0
    one, other = (caches(clock=lambda: now, write_seconds=60.0, access_seconds=most) for most in (20.0, np.inf))
    store(one, [1, 2])
    [(segment, _, entries)] = one.locate(keys_of([1, 2]))
    for now, fresh, by_age in [
        (1_015.0, [True, True], True), (1_030.0, [True, False], True), (1_045.0, [True, False], True),
        (1_060.0, [True, False], True), (1_061.0, [False, False], False),
    ]:  # fmt: skip
        assert one.is_fresh(segment, entries).tolist() == fresh, now
        assert other.is_fresh(segment, entries).tolist() == [by_age] * 2, now
        look_up(one, [1])


def test_a_cache_whose_folder_cannot_be_made_again_looks_empty(caches, monkeypatch):
    monkeypatch.setattr(host_cache, "_LOOK_SECONDS", 0)
    cache, keys, (rows, counts) = caches(), keys_of(KEYS), rows_of(KEYS)
    store(cache, KEYS)
    path = Path(cache._path).parent
    shutil.rmtree(path)
    path.write_text("a file")
    assert look_up(cache, KEYS) == {}
    assert (cache.is_lost, cache.counters["host_failures"]) == (True, 1)
    assert cache.claim(keys, 60).all()
    assert not cache.claim_states(keys).claimants.any()
    assert not cache.publish(keys, rows, counts, cache.clock(), cache.position)
    assert not cache.publish_table(keys, rows, counts, cache.clock())
    cache.invalidate(keys)
    assert (cache.table(), cache.share(), cache.invalidations_since(0)) == (None, (0, 0, 0), [])
    path.unlink()
    cache.invalidate(keys)
    assert look_up(cache, KEYS) == {}
    store(cache, KEYS)
    assert look_up(cache, KEYS) == right(KEYS), "invalidations look for the folder again"


def test_where_no_clock_counts_from_boot_the_cache_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    with pytest.raises(HostUnavailableError, match="no clock that counts from boot"):
        new_cache(tmp_path)


def test_a_process_too_many_has_no_cache(caches, monkeypatch):
    monkeypatch.setattr(claims, "_MOST_CLAIMANTS", 3)
    caches(), caches()
    with pytest.raises(HostUnavailableError, match="too many processes"):
        caches()


def test_rows_of_keys_that_change_while_they_are_written_are_not_stored(caches, monkeypatch):
    cache, other, write = caches(), caches(), host_cache.write_segment

    def write_late(*arguments):
        monkeypatch.setattr(host_cache, "write_segment", write)
        other.invalidate(keys_of([1, 2]))
        return write(*arguments)

    monkeypatch.setattr(host_cache, "write_segment", write_late)
    rows, counts = rows_of(KEYS)
    assert not cache.publish(keys_of(KEYS), rows, counts, cache.clock(), cache.position)
    assert look_up(other, KEYS) == right([0, *KEYS[3:]])


def test_nothing_is_stored_in_a_folder_that_another_process_has_replaced(caches, monkeypatch):
    running = caches()
    store(running, KEYS)
    monkeypatch.setattr(host_cache, "_LOOK_SECONDS", 1e9)
    running._rejoin_if_removed(at_once=True)
    (Path(running._path) / "control").unlink()
    late = caches()
    store(running, KEYS)
    assert look_up(late, KEYS) == {}, "it does not know what was invalidated in the new folder"
    look_up(running, KEYS)
    store(running, KEYS, version="new ")
    assert look_up(late, KEYS) == right(KEYS, "new ")


def test_the_limit_of_bytes_holds_while_another_process_evicts(caches):
    cache, batches = caches(bytes=1 << 19), [range(start, start + 200) for start in range(0, 20_000, 200)]
    with cache._folder.lock(maintenance.SMALL_LOCK):
        for batch in batches:
            store(cache, batch)
        assert cache.counters["host_unstored"] > 0
        assert cache._maintenance._used_bytes() <= 1 << 19
    store(cache, batches[-1])
    assert look_up(cache, batches[-1]) == right(batches[-1])


def test_without_numbers_for_entries_nothing_is_stored_and_a_warning_says_so(caches):
    cache = caches()
    store(cache, KEYS[:10])
    cache._control["ids"] = MOST_IDS
    with pytest.warns(match="numbers of entries are used up; clear the cache"):
        store(cache, KEYS[10:])
    assert look_up(cache, KEYS) == right(KEYS[:10])
