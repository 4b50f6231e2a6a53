"""Processes that are killed at every step, damaged files, full disks: never a wrong row, never an invented miss."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shutil
import threading
import time
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from host_processes import in_child, in_processes, keys_of, look_up, new_cache, right, rows_of, store
from scale import SCALE
from small_disk import on_small_disk
from time_limit import LIMIT

from lookupcache.errors import LookupAdvice
from lookupcache.host import HostUnavailableError, claims, control, host_cache, maintenance
from lookupcache.host.folder import Folder, file_system_of, why_unusable
from lookupcache.host.host_cache import QUIET_LOOKUPS
from lookupcache.host.segment import SegmentRange, use_name, write_segment

KEYS = list(range(40))
LOCKS = (claims.LOCK, control.PUBLISH_LOCK, host_cache.WRITE_LOCK, maintenance.SMALL_LOCK, maintenance.LARGE_LOCK)

# What a process that is killed, or a file that is lost, leaves out of the count is added by the next eviction.
pytestmark = pytest.mark.leaves("is counted")


def publish_some(path):
    cache = new_cache(path)
    cache.claim(keys_of(KEYS[20:30]), 60)
    store(cache, KEYS[20:30])
    cache.release(keys_of(KEYS[20:30]))


def publish_again(path):
    cache = new_cache(path)
    store(cache, KEYS[:10])


def merge(path):
    maintenance._LEAST_RUN = 4
    cache = new_cache(path)
    for start in (10, 15, 20, 25):
        store(cache, KEYS[start : start + 5])
    cache.close()


def merge_in_a_thread(path):
    maintenance._SMALL_ENTRIES = 0
    merge(path)


def merge_and_drop(path):
    """The entries that are kept get other numbers in the index."""
    maintenance._LEAST_RUN = 4
    cache = new_cache(path)
    for start in (10, 15, 20):
        store(cache, KEYS[start : start + 5])
    cache.invalidate(keys_of([12, 21]))
    store(cache, KEYS[13:16])
    cache.close()


def build_index(path):
    cache = new_cache(path)
    for start in (10, 20, 30):
        cache._control["used_slots"] = 1 << 20
        store(cache, KEYS[start : start + 5])
    cache._control["used_slots"] = 1 << 20
    cache.invalidate(keys_of([34]))


def merge_what_is_left(path):
    cache = new_cache(path)
    for _ in range(QUIET_LOOKUPS + 1):
        look_up(cache, KEYS[:10])
    assert len(cache._segments.newest) == 1


def evict(path):
    cache = new_cache(path, rows=30)
    store(cache, KEYS[20:40])


def invalidate(path):
    cache = new_cache(path)
    cache.invalidate(keys_of(KEYS[:5]))


def claim_and_hold(path):
    cache = new_cache(path)
    cache.claim(keys_of(KEYS[30:35]), 60)


def start(path):
    new_cache(path)


def write_within_bytes(path):
    cache = new_cache(path, bytes=400_000)
    store(cache, KEYS[20:40])


WORK = {
    work.__name__: work
    for work in (
        publish_some,
        publish_again,
        merge,
        merge_in_a_thread,
        merge_and_drop,
        build_index,
        merge_what_is_left,
        evict,
        invalidate,
        claim_and_hold,
        start,
        write_within_bytes,
    )
}


EACH = {
    "publish_some": 4, "publish_again": 4, "merge": 12, "merge_in_a_thread": 16, "merge_and_drop": 16,
    "build_index": 14, "merge_what_is_left": 8, "evict": 6, "invalidate": 6,
    "claim_and_hold": 3, "start": 3, "write_within_bytes": 8,
}  # fmt: skip
"""Every few steps one is tried, from a random one on; all of them with `LOOKUPCACHE_SCALE` = 8."""


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize("name", WORK)
def test_a_process_killed_at_any_step_leaves_no_damage(name, tmp_path):
    """What others find is right; what is lost can be claimed, requested and stored again, at once."""
    made = tmp_path / "made"
    before = new_cache(made)
    for at in range(0, 10, 5):
        store(before, KEYS[at : at + 5])
    before.close()
    stride = max(int(EACH.get(name, 1) / SCALE), 1)
    step, killed = -secrets.randbelow(stride), True
    while killed:
        step += stride
        path = tmp_path / "cache"
        shutil.copytree(made, path)
        with closing(new_cache(path)) as live:
            look_up(live, KEYS)
            killed, _ = in_child(lambda path=path: WORK[name](path), step)
            check_after_kill(path, live, name, step)
        shutil.rmtree(path)
    assert step > 10 or stride > 1, "the steps were not counted"


@pytest.mark.extended
@pytest.mark.slow
def test_a_process_killed_while_making_a_folder_leaves_no_files(tmp_path):
    stride = max(int(3 / SCALE), 1)
    step, killed = -secrets.randbelow(stride), True
    while killed:
        step += stride
        path = tmp_path / str(step)
        killed, _ = in_child(lambda path=path: new_cache(path).close(), step)
        cache = new_cache(path)
        store(cache, KEYS)
        assert look_up(cache, KEYS) == right(KEYS)
        assert not [name for name in os.listdir(cache._path) if name.endswith((".new", ".tmp"))], step
        cache.close()
        shutil.rmtree(path)
    assert step > 10, "the steps were not counted"


def check_after_kill(path, live, name, step):
    after = new_cache(path)
    try:
        found = look_up(after, KEYS)
        assert found.items() <= right(KEYS).items(), (name, step)
        if name not in ("evict", "invalidate"):
            assert found.items() >= right(KEYS[:10]).items(), (name, step)
        found = check_invalidation(live, after, None if secrets.randbelow(2) else KEYS[5:25])
        missing = [key for key in KEYS if key not in found]
        assert after.claim(keys_of(missing), 60).all(), (name, step)
        store(after, KEYS, version="new ")
        after.release(keys_of(missing))
        assert look_up(after, KEYS) == right(KEYS, "new "), (name, step)
        for key in range(6):
            store(after, [key, key + 6], version="newer ")
        again = new_cache(path)
        again.close()
        left = [one for one in os.listdir(after._path) if one.endswith(".tmp")]
        assert not left, (name, step, left)
        assert after.counters["host_failures"] == after.counters["host_dropped_files"] == 0, (name, step)
    finally:
        after.close()


def check_invalidation(live, after, keys):
    """A process that was there before invalidates keys: they do not come back. Return what is found afterwards."""
    look_up(live, KEYS)
    live.invalidate(None if keys is None else keys_of(keys))
    left = [key for key in KEYS if keys is not None and key not in keys]
    for number in range(2):
        for cache in (live, after):
            found = look_up(cache, KEYS)
            assert found.items() <= right(left).items()
        live._control["used_slots"] = 1 << 20  # The next one builds the index again.
        store(live, [100 + number])
    return found


# ── damaged and foreign files ────────────────────────────────────────────────────────────────────────────


def segment_files(cache):
    """Return the paths of the segments, the newest first."""
    cache._segments.refresh()
    return [os.path.join(cache._path, segment.name) for segment in cache._segments.newest]


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_files_of_a_killed_process_do_not_disturb_its_successor(caches):
    """Others are at work, so that leftovers are not swept."""
    other, killed = caches(), caches()
    number = killed._claims.number
    killed.close()
    for name in (f"{number}-0.seg.tmp", f"{number}-1.use.tmp", f"{number}-2.inv.tmp"):
        other._folder.write(name, [b"left"])
    with other._folder.lock(maintenance.SMALL_LOCK):
        cache = caches()
        assert cache._claims.number == number
        store(cache, KEYS[:20])
        store(cache, KEYS[20:])
        cache.invalidate(keys_of([100]))
    assert look_up(other, KEYS) == right(KEYS)
    assert cache.counters["host_failures"] == 0


def test_a_start_removes_what_killed_processes_have_left_and_no_more(caches):
    cache = caches()
    store(cache, KEYS)
    left, kept = {"4000-0.seg.tmp", "odd.tmp", "index-77", "1.use"}, {f"{cache._claims.number}-9.seg.tmp", "1.txt"}
    for name in left | kept:
        cache._folder.write(name, [b"left"])
    with cache._folder.lock(maintenance.LARGE_LOCK):
        caches()
        assert left | kept <= set(os.listdir(cache._path)), "the process that merges may be at work on them"
    assert look_up(caches(), KEYS) == right(KEYS)
    assert (left | kept) & set(os.listdir(cache._path)) == kept


@pytest.mark.extended
def test_a_flipped_byte_anywhere_is_noticed(caches, tmp_path):
    cache = caches()
    store(cache, KEYS)
    [path] = segment_files(cache)
    size = os.path.getsize(path)
    for at in np.linspace(0, size - 1, 60).astype(int).tolist():
        flip(path, at)
        again = caches()
        assert look_up(again, KEYS) == {}, at
        assert again.counters["host_dropped_files"] == 1
        again.close()
        store(cache, KEYS)
        [path] = segment_files(caches())


def index_file(cache):
    [name] = [name for name in os.listdir(cache._path) if name.startswith("index-")]
    return os.path.join(cache._path, name)


@pytest.mark.leaves("in the index", "the index does not find")
def test_a_flipped_byte_in_the_index_causes_at_most_a_miss(caches):
    cache = caches()
    for start in range(0, 40, 10):
        store(cache, KEYS[start : start + 10])
    used = np.flatnonzero(np.frombuffer(Path(index_file(cache)).read_bytes(), np.uint8))
    for at in used[:: max(len(used) // 30, 1)].tolist():
        flip(index_file(cache), at)
        again = caches()
        found = look_up(again, KEYS)
        assert found.items() <= right(KEYS).items(), at
        store(again, KEYS, version="new ")
        assert look_up(cache, KEYS) == look_up(again, KEYS) == right(KEYS, "new "), at
        store(cache, KEYS)
        assert look_up(again, KEYS) == right(KEYS), at
        again.close()


@pytest.mark.parametrize("damage", [None, b"", b"x" * 8256, b"LKCIDX" + bytes(8250)])
def test_an_index_that_cannot_be_read_is_built_again(caches, damage):
    cache = caches()
    store(cache, KEYS[:20])
    path = index_file(cache)
    os.remove(path)
    if damage is not None:
        Path(path).write_bytes(damage)
    again = caches()
    assert look_up(again, KEYS) == {}
    store(again, KEYS[20:])
    assert look_up(again, KEYS) == right(KEYS)
    assert look_up(cache, KEYS) == right(KEYS)


def test_an_older_version_does_not_come_back_with_a_new_index(caches):
    """As after a process that was killed between the rename of its segment and its write to the index."""
    cache = caches()
    store(cache, KEYS)
    cache._control["is_indexing"] = 1
    data = cache._new_data(keys_of(KEYS[:10]), *rows_of(KEYS[:10], "new "), cache.clock())
    number = cache._control["next"] + 1
    cache._control["next"] = cache._control["generation"] = number
    name = str(SegmentRange(number, number, number, cache._segments.take_ids(10)))
    write_segment(cache._folder, name, data, cache._plan)
    again = caches()
    store(again, [100])
    assert look_up(again, KEYS) == right(KEYS[:10], "new ") | right(KEYS[10:])
    again.invalidate(keys_of(KEYS[:10]))
    again._control["is_indexing"] = 1
    store(again, [101])
    assert look_up(again, KEYS) == right(KEYS[10:])


def test_large_segments_are_verified_when_they_have_changed(caches, monkeypatch):
    monkeypatch.setattr("lookupcache.host.segment._VERIFIED_EACH_TIME", 0)
    cache = caches()
    store(cache, KEYS)
    [path] = segment_files(cache)
    with monkeypatch.context() as patch:
        patch.setattr("lookupcache.host.segment.Segment.verify", None)
        assert look_up(caches(), KEYS) == right(KEYS), "it was verified when it was written"
    flip(path, os.path.getsize(path) - 100)
    assert look_up(caches(), KEYS) == {}


@pytest.mark.parametrize("size", [0, 1, 100, 255, -1])
@pytest.mark.parametrize("suffix", [".seg", ".use"])
def test_a_truncated_file_is_dropped(caches, size, suffix):
    cache = caches()
    store(cache, KEYS)
    [path] = segment_files(cache)
    path = path.replace(".seg", suffix)
    keep = Path(path).read_bytes()[:size]
    os.remove(path)  # Not truncated in place: a process that has mapped it would end.
    with open(path, "wb") as file:
        file.write(keep)
    again = caches()
    assert look_up(again, KEYS) == {}
    assert again.counters["host_dropped_files"] == 1
    store(again, KEYS)
    assert look_up(caches(), KEYS) == right(KEYS)


@pytest.mark.parametrize("damage", [os.remove, lambda path: flip(path, 0)], ids=["missing", "of another version"])
def test_a_file_without_its_use_file_is_dropped(caches, damage):
    cache = caches()
    store(cache, KEYS)
    damage(segment_files(cache)[0].replace(".seg", ".use"))
    assert look_up(caches(), KEYS) == {}


@pytest.mark.parametrize("field", ["version", "plan", "schema"])
def test_a_segment_of_another_kind_is_dropped(caches, tmp_path, monkeypatch, field):
    cache, other = caches(), new_cache(tmp_path / "other")
    rows, counts = rows_of(KEYS)
    store(cache, [100])
    if field == "version":
        monkeypatch.setattr("lookupcache.host.segment.FORMAT", 99)
    if field == "plan":
        other._plan = b"x" * 16
    if field == "schema":
        rows = rows.rename_columns(["id", "other"])
        other._segments._schema = rows.schema
    data = other._new_data(keys_of(KEYS), rows, counts, other.clock())
    name = str(SegmentRange(7, 7, 7))
    write_segment(other._folder, name, data, other._plan)
    monkeypatch.undo()
    for one in (name, use_name(name)):
        shutil.copy(os.path.join(other._path, one), os.path.join(cache._path, one))
    other.close()
    again = caches()
    assert look_up(again, KEYS) == {}
    assert again.counters["host_dropped_files"] == 1


@pytest.mark.parametrize("name", ["notes.txt", "notes.seg"])
def test_other_files_in_the_folder_are_left_alone(caches, name):
    cache = caches()
    path = os.path.join(cache._path, name)
    with open(path, "w") as file:
        file.write("mine")
    store(cache, KEYS)
    assert look_up(caches(), KEYS) == right(KEYS)
    assert Path(path).read_text() == "mine"


@pytest.mark.parametrize("damage", [b"", b"x" * 4096, b"LKCCTL\r\n" + b"\x63" * 4088])
def test_a_damaged_control_page_is_replaced(caches, damage):
    cache = caches()
    store(cache, KEYS)
    path = os.path.join(cache._path, "control")
    os.remove(path)
    with open(path, "wb") as file:
        file.write(damage)
    again = caches()
    assert look_up(again, KEYS) == {}, "the hashes and numbers of its segments mean nothing any more"
    store(again, KEYS, version="new ")
    assert look_up(again, KEYS) == right(KEYS, "new ")
    cache.invalidate(keys_of(KEYS))
    assert look_up(again, KEYS) == {}, "it uses the new page too"


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:10], lambda data: data[:-1] + b"?"])
def test_an_invalidation_that_is_damaged_stands_for_all_keys(caches, damage):
    cache, other = caches(), caches()
    store(cache, KEYS)
    look_up(other, KEYS)
    seen = other.position
    cache.invalidate(keys_of(KEYS[:5]))
    [path] = Path(cache._path).glob("*.inv")
    path.write_bytes(damage(path.read_bytes()))
    assert other.invalidations_since(seen) == [None]
    assert look_up(other, KEYS) == right(KEYS[5:])


def test_where_changes_cannot_be_read_any_key_may_have_changed(caches, monkeypatch):
    cache, other = caches(), caches()
    store(cache, KEYS)
    look_up(other, KEYS)
    seen = other.position
    cache.invalidate(keys_of(KEYS[:5]))

    def refuse(*arguments, **named):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert other.invalidations_since(seen) == [None]
    [changed] = other.invalidations_since(seen)
    assert changed.columns[0].to_pylist() == KEYS[:5]


@pytest.mark.parametrize("pattern", ["*", "control"])
def test_invalidations_after_a_clean_up_reach_older_processes(caches, monkeypatch, pattern):
    """Old temporary files are removed, and the folder stays."""
    monkeypatch.setattr(host_cache, "_LOOK_SECONDS", 0)
    running = caches()
    store(running, KEYS)
    seen = running.position
    for path in Path(running._path).glob(pattern):
        path.unlink()
    late = caches()
    store(late, KEYS[:5], version="new ")
    assert running.has_news or running.position != seen
    assert running.invalidations_since(seen) == [None], "it does not know what was invalidated before it looked"
    assert look_up(running, KEYS) == right(KEYS[:5], "new ")
    seen = running.position
    late.invalidate(keys_of(KEYS[:1]))
    [changed] = running.invalidations_since(seen)
    assert changed.columns[0].to_pylist() == KEYS[:1]


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    new_cache(tmp_path / "cache").close()
    [folder] = (tmp_path / "cache").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o750)
    with pytest.raises(HostUnavailableError, match="mode 0700"):
        new_cache(tmp_path / "cache")


OTHER_USER = 54_321


def give_away(path, monkeypatch):
    """Let a file or folder belong to another user; only root can, so without root the kernel's answer is changed."""
    if not os.geteuid():
        os.chown(path, OTHER_USER, -1)
        return
    inode, plain = os.stat(path).st_ino, os.fstat

    def fstat(fd):
        found = plain(fd)
        return os.stat_result((*found[:4], OTHER_USER, *found[5:10])) if found.st_ino == inode else found

    monkeypatch.setattr(os, "fstat", fstat)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    new_cache(tmp_path / "cache").close()
    [folder] = (tmp_path / "cache").iterdir()
    give_away(folder, monkeypatch)
    with pytest.raises(HostUnavailableError, match="another user"):
        new_cache(tmp_path / "cache")


def test_the_folders_of_other_users_are_left_alone(tmp_path):
    """As another user; without root, the folders are those of root."""
    new_cache(tmp_path / "cache").close()
    [folder] = (tmp_path / "cache").iterdir()

    def open_it(number):
        if not os.geteuid():
            os.setgroups([])
            os.setresgid(OTHER_USER, OTHER_USER, OTHER_USER)
            os.setresuid(OTHER_USER, OTHER_USER, OTHER_USER)
            assert "Permission denied" in why_unusable(folder)
        assert "belongs to another user" in why_unusable("/usr")

    in_processes(1, open_it)
    assert not any(name.startswith("try-") for name in os.listdir(folder))


@pytest.mark.parametrize("suffix", [".seg", ".use"])
def test_a_file_of_another_user_is_dropped(caches, monkeypatch, suffix):
    cache = caches()
    store(cache, KEYS)
    [path] = segment_files(cache)
    with monkeypatch.context() as patch:
        give_away(path.replace(".seg", suffix), patch)
        again = caches()
        assert look_up(again, KEYS) == {}
        assert again.counters["host_dropped_files"] == 1
    store(again, KEYS)
    assert look_up(caches(), KEYS) == right(KEYS)


@pytest.mark.parametrize("name", ["control", claims.NAME, claims.LOCK, control.PUBLISH_LOCK])
def test_with_files_of_another_user_the_cache_is_unavailable(caches, monkeypatch, name):
    cache = caches()
    store(cache, KEYS)
    give_away(os.path.join(cache._path, name), monkeypatch)
    with pytest.raises(HostUnavailableError, match="not a regular file of this user"):
        caches()


def test_a_link_instead_of_a_folder_is_refused(tmp_path):
    new_cache(tmp_path / "cache").close()
    [folder] = (tmp_path / "cache").iterdir()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostUnavailableError):
        new_cache(tmp_path / "cache")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("lookupcache.host.folder.file_system_of", lambda path: kind)
    with pytest.raises(HostUnavailableError, match="network file system"):
        new_cache(tmp_path / "cache")


# ── disks, forks ─────────────────────────────────────────────────────────────────────────────────────────


class FullDisk:
    """Every function that needs space fails from the n-th call on."""

    def __init__(self, monkeypatch, at):
        self.left = at
        for name in ("write", "posix_fallocate", "rename"):
            monkeypatch.setattr(os, name, self.limited(getattr(os, name)))

    def limited(self, function):
        def call(*arguments, **named):
            self.left -= 1
            if self.left < 0:
                raise OSError(28, "No space left on device")
            return function(*arguments, **named)

        return call


@pytest.mark.parametrize("at", range(8))
def test_on_a_full_disk_nothing_is_stored_and_nothing_fails(caches, monkeypatch, at):
    cache, other = caches(), caches()
    store(cache, KEYS[:10])

    def write():
        for one in (cache, other):
            store(one, KEYS[10:])
            one.invalidate(keys_of([]))

    with monkeypatch.context() as patch:
        FullDisk(patch, at)
        with pytest.warns(LookupAdvice, match="the disk is full") as caught:
            write()
    assert cache.counters["host_failures"] + other.counters["host_failures"] >= 1
    assert not cache.is_lost
    again = caches()
    assert len(caught) == 1, "one warning for all workers of the host"
    assert right(KEYS[:10]).items() <= look_up(again, KEYS).items() <= right(KEYS).items()
    look_up(cache, KEYS)  # What was requested before the other one's invalidation is not stored.
    store(cache, KEYS)
    assert look_up(again, KEYS) == right(KEYS)


def use_full_disk(disk):
    """With any number of free pages, every change of files fails at another step, or not."""
    assert file_system_of(disk.path) == "tmpfs" or not disk.is_real
    for free in range(0, 28 * 4096, 4096):
        path = disk.path / str(free)
        with closing(new_cache(path, bytes=4e6)) as cache, closing(new_cache(path, bytes=4e6)) as other:
            store(cache, KEYS[:10])
            look_up(other, KEYS)
            seen = other.position
            with disk.full(free), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                cache._control["used_slots"] = 1 << 20  # A new index is needed, too.
                store(cache, KEYS[10:])
                assert right(KEYS[:10]).items() <= look_up(other, KEYS).items() <= right(KEYS).items()
                other.invalidate(keys_of(KEYS[:5]))
                cache.claim(keys_of(KEYS), 60)
                assert look_up(cache, KEYS).items() <= right(KEYS[5:]).items()
                failures = cache.counters["host_failures"] + other.counters["host_failures"]
                assert failures or free
                if disk.is_real:
                    assert sum("the disk is full" in str(one.message) for one in caught) == (failures > 0)
                    if not free:
                        with pytest.raises(HostUnavailableError, match="No space left"):
                            new_cache(disk.path / "new")
                        assert "No space left" in why_unusable(disk.path / "other")
            assert (cache.is_lost, other.is_lost) == (False, False)
            changes = other.invalidations_since(seen)
            assert any(one is None or set(KEYS[:5]) <= set(one.columns[0].to_pylist()) for one in changes)
            look_up(cache, KEYS)
            store(cache, KEYS)
            assert look_up(other, KEYS) == right(KEYS)
        shutil.rmtree(path)


@pytest.mark.extended
def test_a_disk_that_is_full_loses_no_row_and_no_change(tmp_path):
    on_small_disk(tmp_path / "a dïsk\\\n", use_full_disk)


@pytest.mark.filterwarnings("ignore::lookupcache.errors.LookupAdvice")
@pytest.mark.parametrize("is_behind", [False, True], ids=["", "index to be built"])
@pytest.mark.parametrize("at", range(4))
def test_on_a_full_disk_keys_are_invalidated(caches, monkeypatch, at, is_behind):
    cache, other = caches(), caches()
    store(cache, KEYS)
    look_up(other, KEYS)
    seen = other.position
    cache._control["is_indexing"] = int(is_behind)
    with monkeypatch.context() as patch:
        FullDisk(patch, at)
        cache.invalidate(keys_of(KEYS[:5]))
    [changed] = other.invalidations_since(seen)
    assert changed is None or changed.columns[0].to_pylist() == KEYS[:5]
    assert look_up(other, KEYS).items() <= right(KEYS[5:]).items()
    store(cache, KEYS[5:], version="late ", since=0)
    assert look_up(other, KEYS[:5]) == {}


@pytest.mark.filterwarnings("ignore::lookupcache.errors.LookupAdvice")
@pytest.mark.parametrize("at", range(5))
def test_no_invalidation_is_lost_with_too_many_open_files(caches, monkeypatch, at):
    """A process that cannot note a change closes the folder for all."""
    cache, other = caches(), caches()
    store(cache, KEYS)
    look_up(other, KEYS)
    seen, opened, counted = other.position, os.open, itertools.count()

    def open_some(path, flags, mode=0o777, *, dir_fd=None):
        if next(counted) >= at:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return opened(path, flags, mode, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_some)
        cache.invalidate(keys_of(KEYS[:5]))
    assert look_up(caches(), KEYS).items() <= right(KEYS[5:]).items()
    assert other.has_news
    [changed] = other.invalidations_since(seen)
    assert changed is None or changed.columns[0].to_pylist() == KEYS[:5]
    assert look_up(other, KEYS).items() <= right(KEYS[5:]).items()


def test_a_lock_is_done_without_where_no_thread_can_wait_for_it(tmp_path, monkeypatch):
    """As where there are too many of them, or the interpreter ends."""

    def fail(self):
        raise RuntimeError("can't start new thread")

    one, other = Folder(tmp_path / "f"), Folder(tmp_path / "f")
    with one.lock("a.lock"):
        opened = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            with pytest.raises(TimeoutError), other.lock("a.lock"):
                pass
        assert len(os.listdir("/proc/self/fd")) == opened
    with other.lock("a.lock") as is_held:
        assert is_held
    for folder in (one, other):
        folder.close()


def test_a_lock_once_held_too_long_is_waited_for_behind_others(tmp_path, monkeypatch):
    """When it gets free, each of them has it for a moment: that is no reason to do without it once more."""
    one, other = Folder(tmp_path / "f"), Folder(tmp_path / "f", lock_seconds=0.01)
    held, sleep = [one.try_lock("a.lock")], time.sleep
    with pytest.raises(TimeoutError), other.lock("a.lock"):
        pass

    def release(seconds):
        while held:
            one.unlock(held.pop())
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", release)
    with other.lock("a.lock") as is_held:
        assert is_held
    for folder in (one, other):
        folder.close()


@pytest.mark.parametrize("at", range(4))
def test_a_cache_that_opens_on_a_full_disk_is_unavailable(tmp_path, monkeypatch, at):
    FullDisk(monkeypatch, at)
    with pytest.raises(HostUnavailableError, match="No space left"):
        new_cache(tmp_path / "cache")


@pytest.mark.parametrize(("error", "reason"), [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only file system")])
def test_a_check_of_a_folder_says_why_it_cannot_be_used(tmp_path, monkeypatch, error, reason):
    assert why_unusable(tmp_path / "cache") is None
    assert list((tmp_path / "cache").iterdir()) == []

    def fail(*arguments):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    assert reason in why_unusable(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_forked_process_is_a_separate_claimant(caches):
    parent = caches()
    store(parent, KEYS[:20])
    assert parent.claim(keys_of([50]), 60).all()

    def child():
        assert look_up(parent, KEYS[:20]) == right(KEYS[:20])
        assert parent.claim(keys_of([50, 51]), 60).tolist() == [False, True]
        store(parent, KEYS[20:])

    assert in_child(child)[0] is False
    assert look_up(parent, KEYS) == right(KEYS)
    assert parent.claim_states(keys_of([50, 51])).claimants.tolist() == [1, 0], "the child's claim ended with it"


def test_a_forked_child_does_not_keep_its_parents_claims_alive(tmp_path, caches):
    """The parent ends while a child of it, which has never used the cache, lives on."""
    read, write = os.pipe()

    def parent():
        cache = new_cache(tmp_path / "cache")
        cache.claim(keys_of([1]), 60)
        if not os.fork():
            os.closerange(3, read)
            os.closerange(read + 1, 256)
            os.read(read, 1)  # Until the test has ended its part.
            os._exit(0)

    try:
        assert in_child(parent)[0] is False
        assert caches().claim(keys_of([1]), 60).all()
    finally:
        os.close(write)
        os.close(read)


@pytest.mark.extended
@pytest.mark.parametrize("name", LOCKS)
def test_a_child_forked_while_a_lock_is_held_does_not_hold_it(caches, name):
    folder, inside, leave = caches()._folder, threading.Event(), threading.Event()

    def hold():
        with folder.lock(name):
            inside.set()
            leave.wait(LIMIT)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(LIMIT)
    (read, write), (began, begin) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.write(begin, b".")
        os.read(read, 1)  # Until the test has ended its part.
        os._exit(0)
    os.read(began, 1)
    leave.set()
    holder.join()
    with folder.lock(name, wait=False) as is_free:
        for end in (write, read, began, begin):
            os.close(end)
        os.waitpid(child, 0)
        assert is_free


def test_a_clock_of_another_boot_makes_ages_unknown(caches, monkeypatch):
    store(caches(), KEYS)
    monkeypatch.setattr("lookupcache.host.segments.clock_identity", lambda: b"another boot....")
    assert look_up(caches(), KEYS) == right(KEYS)
    assert look_up(caches(write_seconds=60.0), KEYS) == {}


@pytest.mark.parametrize("step", [-10_000.0, 10_000.0])
def test_steps_of_the_wall_clock_change_no_age(caches, monkeypatch, step):
    cache = caches(write_seconds=60.0)
    store(cache, KEYS)
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall + step)
    monkeypatch.setattr(time, "time_ns", lambda: int((wall + step) * 1e9))
    assert look_up(cache, KEYS) == look_up(caches(write_seconds=60.0), KEYS) == right(KEYS)
    assert caches().claim(keys_of([100]), 60).all()
    assert not caches().claim(keys_of([100]), 60).any()


def test_an_entry_from_the_future_is_not_believed(caches):
    now = 1_000.0
    cache = caches(clock=lambda: now, write_seconds=60.0)
    store(cache, KEYS)
    now = 900.0
    assert look_up(cache, KEYS) == {}
