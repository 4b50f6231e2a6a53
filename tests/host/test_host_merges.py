"""When segments are merged, how often an entry is copied, and what others find meanwhile."""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from host_processes import keys_of, look_up, new_cache, right, store

from lookupcache.host.control import Control
from lookupcache.host.folder import Folder
from lookupcache.host.host_cache import QUIET_LOOKUPS
from lookupcache.host.key_index import KeyIndex
from lookupcache.host.maintenance import _MOST_SEGMENTS, LARGE_LOCK, quiet_run
from lookupcache.host.segment import SegmentRange
from lookupcache.host.segments import Segments


def look_up_until_quiet(cache, keys) -> None:
    for _ in range(QUIET_LOOKUPS + 1):
        assert look_up(cache, keys) == right(keys)


def test_lookups_merge_segments_after_the_last_publication(tmp_path):
    now = 100.0
    cache = new_cache(tmp_path, clock=lambda: now)
    for start in (0, 10, 20):
        store(cache, range(start, start + 10))
    cache._segments.refresh()
    assert len(cache._segments.newest) == 3
    look_up_until_quiet(cache, range(30))
    assert len(cache._segments.newest) == 1
    store(cache, range(30, 40))
    look_up_until_quiet(cache, range(40))
    assert len(cache._segments.newest) == 2, "not again so soon"
    now = 200.0
    store(cache, [40])
    look_up_until_quiet(cache, range(41))
    assert len(cache._segments.newest) == 1
    cache._control.set_time("quiet_until", 1e9)  # Written before the machine started again.
    store(cache, [41])
    look_up_until_quiet(cache, range(42))
    assert len(cache._segments.newest) == 1
    cache.close()


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [([5, 5], [0, 1]), ([95, 9, 9], [1, 2]), ([9, 95, 9], []), ([60, 30, 30, 30], [0, 1]), ([90], [])],
)
def test_quiet_merges_take_the_newest_that_fit_into_one(sizes, merged):
    segments = [
        SimpleNamespace(range=SegmentRange(n, n, n), nbytes=size) for n, size in zip((9, 8, 7, 6), sizes, strict=False)
    ]
    run = quiet_run(segments, 100, merging=0)
    assert [segments.index(one) for one in run if len(run) > 1] == merged


def test_an_entry_is_copied_a_few_times(tmp_path):
    cache, size, draw = new_cache(tmp_path), 2_000, np.random.default_rng(1)
    numbers = draw.permutation(64 * size)
    for part in np.array_split(numbers, 64):
        rows = pa.table({"id": part.astype(str), "match": part})
        cache.publish(keys_of(part), rows, np.ones(size, np.int64), cache.clock(), cache.position)
        cache._maintenance.wait()
        assert len(cache._segments.newest) <= _MOST_SEGMENTS
    cache._segments.refresh()
    assert sum(map(len, cache._segments.newest)) == len(numbers)
    # Eight of a size into one, and these again: two copies.
    assert cache._control["merged_bytes"] <= 2.2 * cache._segments.nbytes
    cache.close()


@pytest.mark.extended
def test_no_small_segment_is_left_between_large_ones(tmp_path):
    """Each would stay for good, and a lookup takes longer for each segment."""
    cache = new_cache(tmp_path)
    for start in range(0, 200):
        store(cache, range(start * 400, start * 400 + 400))
        cache._maintenance.wait()
    cache._segments.refresh()
    sizes = [len(segment) for segment in cache._segments.newest]
    large = [at for at, size in enumerate(sizes) if size > 400]
    assert len(large) >= 2
    assert large == list(range(large[0], len(sizes))), sizes
    cache.close()


def test_only_lookups_in_many_segments_cause_merges(tmp_path):
    """Publications alone do not."""
    cache = new_cache(tmp_path)
    for start in range(0, 200, 10):
        store(cache, range(start, start + 10))
    assert (cache._control["merges"], cache._segments.most_parts) == (0, 0)
    assert look_up(cache, range(200)) == right(range(200))
    assert cache._segments.most_parts == 20
    store(cache, [200])
    assert cache._control["merges"] == 1
    cache.close()


def test_changes_of_keys_that_nobody_requests_leave_few_files(caches):
    cache, behind, late = caches(), caches(), caches()
    store(cache, range(20))
    seen, most = behind.position, 0
    for number in range(200):
        if number == 190:
            assert look_up(late, range(20)) == right(range(20))
        cache.invalidate(keys_of([1_000 + number]))
        most = max(most, sum(name.endswith(".inv") for name in os.listdir(cache._path)))
    assert most <= 130
    assert len(late.invalidations_since(late.position)) == 10
    assert behind.invalidations_since(seen) == [None]
    assert look_up(cache, range(20)) == right(range(20))


def test_lookups_that_have_all_their_keys_do_not_read_the_folder(caches, monkeypatch):
    cache, other = caches(), caches()
    store(cache, range(20))
    assert look_up(other, range(20)) == right(range(20))
    reads, names = [], Folder.names
    monkeypatch.setattr(Folder, "names", lambda folder: reads.append(folder) or names(folder))
    for start in range(20, 60, 10):
        store(cache, range(start, start + 10))
        reads.clear()
        assert look_up(other, range(20)) == right(range(20))
        assert reads == []
    assert look_up(other, range(60)) == right(range(60)), "new keys are found where the folder has them"
    store(cache, range(5, 15), version="new ")
    assert look_up(other, range(20)) == right(range(20)) | right(range(5, 15), "new ")


@pytest.mark.parametrize("is_broken_off", [False, True])
def test_changes_after_a_merge_reach_readers_of_older_files(caches, monkeypatch, is_broken_off):
    cache, other = caches(), caches()
    for start in (0, 10, 20):
        store(cache, range(start, start + 10))
    assert look_up(other, range(30)) == right(range(30))
    cache._segments.refresh()

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) if is_broken_off else nullcontext():
        if is_broken_off:
            patch.setattr(Folder, "remove", interrupt)
        cache._maintenance._merge(cache._segments, cache._segments.newest, cache.clock())
    caches().invalidate(keys_of([5]))
    assert look_up(other, range(30)) == right(one for one in range(30) if one != 5)


@pytest.mark.parametrize("builds", [False, True], ids=["numbers change", "index is built"])
def test_a_lookup_during_a_merge_finds_all(caches, monkeypatch, builds):
    """Between its look at the folder and its search of the index."""
    cache, other = caches(), caches()
    for start in (0, 10, 20, 30):
        store(cache, range(start, start + 11))
    look_up(other, range(41))
    search = other._segments._search

    def search_late(*arguments):
        monkeypatch.setattr(other._segments, "_search", search)
        cache._segments.refresh()
        cache._maintenance._merge(cache._segments, cache._segments.newest, cache.clock())
        if builds:
            cache._segments._build_index(0)
        return search(*arguments)

    monkeypatch.setattr(other._segments, "_search", search_late)
    assert look_up(other, range(41)) == right(range(41))
    assert len(other._segments.newest) == 1


class AtStep:
    """Runs something at the n-th of many steps, which are calls of some functions; the steps within it do not count."""

    def __init__(self, monkeypatch, at, work, *functions):
        self.left, self.work = at, work
        for owner, name in functions:
            monkeypatch.setattr(owner, name, self.stepping(getattr(owner, name)))

    def stepping(self, function):
        def call(*arguments, **named):
            found = function(*arguments, **named)
            self.left -= 1
            if self.left == 0:
                self.work()
            return found

        return call


def publish_old_and_new(cache):
    store(cache, range(5, 30), version="new ")


def publish_with_a_new_index(cache):
    cache._control["used_slots"] = 1 << 20
    store(cache, range(5, 30), version="new ")


def merge_all(cache):
    cache._segments.refresh()
    cache._maintenance._merge(cache._segments, cache._segments.newest, cache.clock())


def publish_and_merge(cache):
    publish_old_and_new(cache)
    merge_all(cache)
    publish_old_and_new(cache)


CHANGES = (publish_old_and_new, publish_with_a_new_index, merge_all, publish_and_merge)
WRITES = ((Control, "__setitem__"), (KeyIndex, "_write"), (Folder, "rename"), (Folder, "remove"))
READS = ((KeyIndex, "search"), (Segments, "_search"), (Segments, "refresh"), (Segments, "locate"))


def assert_all_found(cache):
    found = look_up(cache, range(20))
    assert len(found) == 20
    assert {key: [one.removeprefix("new ") for one in rows] for key, rows in found.items()} == right(range(20))


@pytest.mark.extended
@pytest.mark.parametrize("change", CHANGES)
def test_a_lookup_at_any_step_of_a_change_finds_all(caches, monkeypatch, change):
    at, is_last = 0, False
    while not is_last:
        at += 1
        cache, other = caches(), caches()
        for start in (0, 9):  # The merge drops what the second one has published again.
            store(cache, range(start, start + 11))
        assert_all_found(other)
        with monkeypatch.context() as patch:
            steps = AtStep(patch, at, lambda other=other: assert_all_found(other), *WRITES)
            change(cache)
        is_last = steps.left > 0
    assert at > 10, "the steps were not counted"


@pytest.mark.extended
@pytest.mark.parametrize("change", CHANGES)
def test_a_lookup_finds_all_keys_despite_a_change_at_any_step(caches, monkeypatch, change):
    at, is_last = 0, False
    while not is_last:
        at += 1
        cache, other = caches(), caches()
        for start in (0, 9):
            store(cache, range(start, start + 11))
        assert_all_found(other)
        with monkeypatch.context() as patch:
            steps = AtStep(patch, at, lambda cache=cache: change(cache), *READS)
            assert_all_found(other)
        is_last = steps.left > 0
    assert at > 3, "the steps were not counted"


def test_segments_merged_by_another_process_are_not_merged_again(caches):
    """A merge in a thread may end after another process has chosen what to merge."""
    cache, other = caches(), caches()
    for start in (0, 10, 20):
        store(cache, range(start, start + 10))
    other._segments.refresh()
    run = other._segments.newest
    merge_all(cache)
    cache.invalidate(keys_of(range(10)))
    merge_all(cache)
    other._maintenance._merge(other._segments, run, other.clock())
    assert look_up(cache, range(30)) == look_up(other, range(30)) == right(range(10, 30))
    assert sum(map(len, other._segments.newest)) == 20


@pytest.mark.parametrize("is_stopped", [False, True], ids=["killed", "stopped"])
def test_segments_of_a_merge_that_hangs_give_their_bytes_back(tmp_path, is_stopped):
    cache = new_cache(tmp_path, bytes=1 << 19)
    for start in range(0, 6_000, 200):
        store(cache, range(start, start + 200))
    # As a process leaves it that was merging the newest of them: all that are older lie below its number, too.
    cache._control["merging"] = cache._segments.newest[0].range.high
    cache._control.set_time("merging_since", cache.clock() - 61)
    lock = cache._folder.try_lock(LARGE_LOCK) if is_stopped else None
    before = cache.counters["host_unstored"]
    for start in range(20_000, 23_000, 200):
        store(cache, range(start, start + 200))
    assert cache.counters["host_unstored"] == before
    newest = range(22_800, 23_000)
    assert look_up(cache, newest) == right(newest)
    if lock is not None:
        cache._folder.unlock(lock)
    cache.close()
