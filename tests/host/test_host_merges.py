"""When segments are merged, how often an entry is copied, and what others find meanwhile."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from host_processes import KINDS, keys_of, look_up, new_cache, right, store
from test_host_faults import FullDisk

from lookupcache.host import host_cache, maintenance
from lookupcache.host.control import Control
from lookupcache.host.folder import Folder
from lookupcache.host.host_cache import QUIET_LOOKUPS
from lookupcache.host.key_index import KeyIndex
from lookupcache.host.maintenance import _MOST_SEGMENTS, LARGE_LOCK, SMALL_LOCK, choose_run, quiet_run
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


def test_a_large_quiet_merge_runs_in_a_thread_and_may_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(maintenance, "_SMALL_ENTRIES", 0)
    now = 100.0
    cache = new_cache(tmp_path, clock=lambda: now)
    for start in (0, 10, 20):
        store(cache, range(start, start + 10))
    with cache._folder.lock(SMALL_LOCK):  # As while another process evicts.
        look_up_until_quiet(cache, range(30))
    assert (cache._control["merges"], cache._control["merging"], cache.counters["host_failures"]) == (0, 0, 0)
    with monkeypatch.context() as patch:
        FullDisk(patch, 0)
        look_up_until_quiet(cache, range(30))
        cache._maintenance.wait()
    assert (cache._control["merges"], cache._control["merging"], cache.counters["host_failures"]) == (0, 0, 1)
    now = 200.0
    look_up_until_quiet(cache, range(30))
    cache._maintenance.wait()
    assert look_up(cache, range(30)) == right(range(30))
    assert len(cache._segments.newest) == cache._control["merges"] == 1
    cache.close()


@dataclass(eq=False)
class Sized:
    """What a choice of segments to merge looks at."""

    range: SegmentRange
    nbytes: int
    removed: np.ndarray

    def __len__(self):
        return 100


def segments_of(sizes, removed=()):
    """Return segments of these sizes, the newest first, and of how many of its entries each has lost."""
    lost = [*removed, *[0] * (len(sizes) - len(removed))]
    numbers = range(len(sizes), 0, -1)
    return [
        Sized(SegmentRange(n, n, n), size, np.arange(100) < gone)
        for n, size, gone in zip(numbers, sizes, lost, strict=True)
    ]


@pytest.mark.parametrize(
    ("sizes", "merging", "merged"),
    [
        ([5, 5], 0, [0, 1]), ([95, 9, 9], 0, [1, 2]), ([9, 95, 9], 0, []), ([60, 30, 30, 30], 0, [0, 1]), ([90], 0, []),
        ([5, 5, 5, 5], 2, [0, 1]), ([5, 5], 1, []),
    ],
)  # fmt: skip
def test_quiet_merges_take_the_newest_that_fit_into_one(sizes, merging, merged):
    segments = segments_of(sizes)
    run = quiet_run(segments, 100, merging)
    assert [segments.index(one) for one in run if len(run) > 1] == merged


@pytest.mark.parametrize(
    ("sizes", "removed", "must", "merged"),
    [
        ([60, 60, 60], (1, 5, 2), False, []), ([60, 60, 60], (1, 5, 2), True, [1]), ([60, 60], (), True, []),
        ([60, 60], (5, 60), False, [1]),
        ([60] * 50 + [30, 45] + [60] * 45, (), False, [50, 51]), ([60] * 50 + [30, 45] + [60] * 44, (), False, []),
        ([60] * 97, (), False, []),
    ],
    ids=["few removed", "space needed", "none removed", "many removed", "too many", "not too many", "none fit"],
)  # fmt: skip
def test_segments_of_which_no_many_fit_into_one_are_merged_if_there_is_a_reason(sizes, removed, must, merged):
    segments = segments_of(sizes, removed)
    assert [segments.index(one) for one in choose_run(segments, 100, 0, must=must)] == merged


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


def test_segments_merged_after_their_names_were_read_are_found_in_the_new_one(caches, monkeypatch):
    cache, other, names = caches(), caches(), Folder.names
    for start in (0, 10, 20):
        store(cache, range(start, start + 10))

    def names_early(folder):
        found = names(folder)
        monkeypatch.setattr(Folder, "names", names)
        merge_all(cache)
        return found

    monkeypatch.setattr(Folder, "names", names_early)
    assert look_up(other, range(30)) == right(range(30))
    assert (len(other._segments.newest), other.counters["host_dropped_files"]) == (1, 0)


@pytest.mark.leaves("is counted")  # The next eviction counts again.
@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_keeps_the_newest_version_of_each_key(tmp_path, monkeypatch, kind):
    """A process that is killed while it publishes may leave older ones that are not marked as removed."""
    cache = new_cache(tmp_path, kind)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    store(cache, range(20), kind)
    with monkeypatch.context() as patch:
        patch.setattr(host_cache, "_supersede", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store(cache, range(5, 30), kind, "new ")
    merge_all(cache)
    assert [len(segment) for segment in cache._segments.newest] == [30]
    assert look_up(cache, range(30), kind) == right(range(5)) | right(range(5, 30), "new ")
    cache.close()


def test_keys_with_equal_hashes_are_kept_apart(tmp_path):
    caches = [new_cache(tmp_path, "text") for _ in range(2)]
    for cache, hash_keys in [(cache, cache._hash_keys) for cache in caches]:
        cache._hash_keys = lambda keys, of=hash_keys: replace(of(keys), hashes=of(keys).hashes % np.uint64(4))
    cache, other = caches
    for start in (0, 20):
        store(cache, range(start, start + 20), "text")
        store(cache, range(start + 5, start + 10), "text", "new ")
        newest = right(range(start + 20)) | right([*range(5, 10), *range(start + 5, start + 10)], "new ")
        assert look_up(other, range(50), "text") == newest
        merge_all(cache)
        assert look_up(other, range(50), "text") == newest
    for one in caches:
        one.close()


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
