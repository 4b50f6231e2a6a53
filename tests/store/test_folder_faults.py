"""A folder whose files are damaged, foreign, in the way or gone, and processes that are killed at every step."""

from __future__ import annotations

import errno
import math
import os
import secrets
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from drawing import examples
from folder_stores import (
    KINDS,
    MINE,
    YOURS,
    ClockedFolder,
    entry,
    files_of,
    get,
    make_read_only,
    name_of,
    new_store,
    put,
    token,
)
from host_processes import in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import SCALE
from time_limit import LIMIT

from lookupcache.metrics import Counters
from lookupcache.store import Store, StoreFullError
from lookupcache.store.contract import CLAIMED
from lookupcache.store.folder_entries import FolderEntries
from lookupcache.store.folder_files import LocalFiles, OpenFile
from lookupcache.store.folder_segment import FolderSegment
from lookupcache.store.folder_store import FolderStore
from lookupcache.store.guard import GuardedStore
from lookupcache.store.object_files import ObjectFiles
from lookupcache.store.timed_store import TimedStore


def guarded(store: Store) -> GuardedStore:
    return GuardedStore(store, Counters(), "Test", str, 60, 1)


# ── killed processes ─────────────────────────────────────────────────────────────────────────────────────────


def work_put(store):
    put(store, range(3), token(b"dead"), version=b" new")


def work_invalidate(store):
    store.invalidate([name_of(1)])


def work_clear(store):
    store.clear()


def work_compact(store):
    for number in range(8):
        put(store, range(3), token(b"dead", number), version=b" new")
    [one] = store._known.values()
    one.is_to_compact = True
    store._work()


@pytest.mark.parametrize("work", [work_put, work_invalidate, work_clear, work_compact])
def test_a_process_killed_at_any_step_leaves_no_damage(work, tmp_path, monkeypatch):
    """Others find what was there, or what it has written, and go on at once."""
    monkeypatch.setattr("lookupcache.store.folder_store.FolderStore._run_soon", lambda *_: None)
    stride = max(round((9 if work is work_compact else 3) / SCALE), 1)
    step, killed, total = -secrets.randbelow(stride), True, 0
    while killed:
        step += stride
        path = tmp_path / str(step)
        before = new_store("local", path)
        put(before, range(3))
        before.close()

        def run(path=path) -> None:
            store = new_store("local", path)
            work(store)
            store.close()

        killed, total = in_child(run, max(step, 1))
        after = new_store("local", path)
        for number, found in enumerate(get(after, 0, 1, 2)):
            allowed = {entry(number), entry(number) + b" new"}
            if work in (work_clear, work_invalidate) and (work is work_clear or number == 1):
                allowed.add(None)
            assert found in allowed, step
        after.invalidate([name_of(number) for number in range(3)])
        assert put(after, range(3), YOURS, version=b" last") == 3, step
        assert get(after, 0, 1, 2) == [entry(number) + b" last" for number in range(3)], step
        assert after.clear("i") == 3
        FolderEntries("i", after._files, lambda: 9e9).compact()
        left = {path.name for path in files_of(path, "")}
        assert all(name.endswith(".inv") for name in left), (step, left)
        after.close()
    assert total > 5


# ── damaged files ────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=examples(80), deadline=None)
@given(st.data(), st.sampled_from(KINDS))
def test_damaged_files_are_no_worse_than_missing_ones(data, kind):
    """Any byte of any file: an entry is as it was written but for its own bytes, which have their own checksum."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectFiles, "list_seconds", 1e-9)
        path = Path(name)
        kind = "moved" if kind == "put" else kind
        store = new_store(kind, path)
        store.describe("i", {"schema": "a"})
        put(store, range(4))
        put(store, [4, 5], YOURS)
        store.invalidate([name_of(9)])
        store.close()
        root = path / ("bucket" if kind == "moved" else ".")
        files = [file for file in root.glob("lookupcache-1/i/*") if file.suffix in (".seg", ".inv", ".json")]
        files.sort(key=lambda file: (file.suffix, file.stat().st_size))
        assert len(files) >= 3  # On a slow machine the collected entries may be two files.
        file = data.draw(st.sampled_from(files))
        written = file.read_bytes()
        content, frames_at = bytearray(written), 0
        if file.suffix == ".seg":
            with closing(OpenFile(os.open(file, os.O_RDONLY))) as opened:
                frames_at = int(FolderSegment("i", file.name, opened).offsets[0])
        at = int(data.draw(st.floats(0, 1, exclude_max=True)) * len(content))
        match data.draw(st.sampled_from(["flip", "cut", "longer", "empty", "zeros", "other"])):
            case "flip":
                content[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del content[at:]
            case "longer":
                content += bytes(9)
            case "empty":
                content.clear()
            case "zeros":
                content[at:] = bytes(len(content) - at)
            case "other":
                content[:] = data.draw(st.sampled_from(files)).read_bytes()
        file.write_bytes(content)
        after = guarded(new_store(kind, path))
        reading = after.get([name_of(number) for number in range(7)])
        assert after.describe("i", {"schema": "a"}) is not None
        assert after.counters["store_failures"] == 0
        for number, found in enumerate(reading.entries):
            assert found is None or len(found) == len(entry(number))
            if found is not None and (file.suffix != ".seg" or content[:frames_at] != written[:frames_at]):
                assert found == entry(number)
        assert reading.entries[6] is None
        put(after._store, [1], token(b"next"))
        after.close()


def test_a_file_that_shrinks_while_it_is_open_ends_no_process(stores, tmp_path):
    store = stores()
    put(store, range(200))
    assert get(store, 1) == [entry(1)]
    [file] = files_of(tmp_path / "store", ".seg")
    os.truncate(file, 300)
    found = get(store, *range(200))
    assert all(entry(number).startswith(one or b"") for number, one in enumerate(found))
    os.truncate(file, 0)
    assert not any(get(store, *range(200)))


def test_an_invalidation_that_cannot_be_read_stands_for_all_keys(stores, tmp_path):
    one, other = stores(), stores()
    put(one, [1, 2])
    one.invalidate([name_of(9)])
    [file] = files_of(tmp_path / "store", ".inv")
    file.write_bytes(b"garbage")
    assert get(other, 1, 2) == [None, None]
    assert other.get([name_of(1)]).dropped == 0  # counted once
    assert put(other, [1], YOURS) == 1
    assert get(other, 1) == [entry(1)]


# ── foreign files ────────────────────────────────────────────────────────────────────────────────────────────


def exchange_symlink(path: Path) -> None:
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)


def exchange_writable(path: Path) -> None:
    path.chmod(0o777)


def exchange_foreign(path: Path) -> None:
    os.chown(path, 4_711, 4_711)


@pytest.mark.parametrize("exchange", [exchange_symlink, exchange_writable, exchange_foreign])
@pytest.mark.parametrize("which", ["lookupcache-1", "lookupcache-1/i"])
def test_a_folder_that_others_can_write_to_is_not_used(exchange, which, tmp_path):
    if exchange is exchange_foreign and os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    store = new_store("local", tmp_path)
    put(store, [1])
    store.close()
    exchange(tmp_path / which)
    after = new_store("local", tmp_path)
    with pytest.raises(OSError):
        get(after, 1)
    with pytest.raises(OSError):
        put(after, [2])
    after.close()


@pytest.mark.parametrize("exchange", [exchange_symlink, exchange_writable, exchange_foreign, None])
def test_a_segment_of_others_is_dropped_and_counted(exchange, tmp_path):
    if exchange is exchange_foreign and os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    store = new_store("local", tmp_path)
    put(store, [1])
    store.close()
    [file] = files_of(tmp_path, ".seg")
    if exchange is None:
        file.unlink()
        os.mkfifo(file)  # Opening it would wait for a writer.
    else:
        exchange(file)
    after = new_store("local", tmp_path)
    reading = after.get([name_of(1)])
    assert (reading.entries, reading.dropped) == ([None], 1)
    assert put(after, [1], YOURS) == 1
    assert get(after, 1) == [entry(1)]
    after.close()


def test_no_identity_leads_out_of_the_folder(tmp_path):
    outside, store = tmp_path / "outside", new_store("local", tmp_path / "store")
    outside.mkdir()
    for identity in ("../../outside", "/etc", "..", ".", "a/b", "a\0b", "Ä", "%2E%2E"):
        assert store.clear(identity) == 0
        names = [name_of(1, identity)]
        store.claim(names, MINE, 60)
        assert store.put(names, [b"-"], [60.0], MINE) == 1
    assert list(outside.iterdir()) == []
    assert len(store._files.identities()) == 8
    assert {file.parent.parent.name for file in files_of(tmp_path / "store", ".seg")} == {"lookupcache-1"}
    with pytest.raises(OSError, match="no identity"):
        store.get([name_of(1, "x" * 300)])
    store.close()


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("i"), lambda path: path.mkdir(0o777)])
def test_a_foreign_file_or_folder_hides_no_cache(make, stores, tmp_path):
    store = stores()
    put(store, [1])
    [folder] = (tmp_path / "store").iterdir()
    make(folder / "other")
    if (folder / "other").is_dir() and not (folder / "other").is_symlink():
        (folder / "other").chmod(0o777)
    assert [one.identity for one in store.contents()] == ["i"]
    assert (store.clear("other"), store.clear()) == (0, 1)


def test_files_are_for_this_user_alone(tmp_path):
    store = new_store("local", tmp_path / "store")
    store.describe("i", {})
    put(store, [1])
    store.invalidate([name_of(1)])
    for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    store.close()


# ── no space, no answer, no folder ───────────────────────────────────────────────────────────────────────────


def test_a_full_disk_is_read_from_and_not_written_to(tmp_path):
    folder = ClockedFolder(tmp_path)
    store = folder.new_store()
    put(store, [1])
    folder.full = True
    assert get(store, 1) == [entry(1)]
    for action in (lambda: put(store, [2]), lambda: store.invalidate([name_of(1)])):
        with pytest.raises(StoreFullError):
            action()
    folder.full = False
    assert put(store, [2]) == 1
    assert not list(tmp_path.rglob("*.tmp"))
    folder.close()


def test_a_folder_that_is_removed_is_made_again(stores, tmp_path):
    import shutil

    store = stores()
    put(store, [1])
    shutil.rmtree(tmp_path / "store")
    assert get(store, 1) == [None]
    assert put(store, [1]) == 1
    assert get(store, 1) == [entry(1)]


def test_a_folder_that_cannot_be_written_is_read(tmp_path, monkeypatch):
    store = new_store("local", tmp_path)
    put(store, [1], seconds=3_600.0)
    store.close()

    make_read_only(monkeypatch)
    after = new_store("local", tmp_path)
    assert after.describe("i", {"schema": "a"}) == {"schema": "a"}
    states, reading = after.claim([name_of(1), name_of(2)], MINE, 60)
    assert (states, reading.entries) == ([CLAIMED] * 2, [entry(1), None])
    for action in (lambda: after.put([name_of(2)], [b"-"], [60.0], MINE), lambda: after.clear("i")):
        with pytest.raises(StoreFullError, match="Read-only"):
            action()
    after.close()


def test_collected_entries_that_cannot_be_written_are_reported(stores, monkeypatch):
    store = stores("put")
    put(store, [1])
    monkeypatch.setattr(ObjectFiles, "write", lambda *_: 1 / 0)
    store._work()
    with pytest.raises(ZeroDivisionError):
        put(store, [2])
    monkeypatch.undo()
    assert put(store, [2]) == 1


class Slow(Store):
    """Answers when its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.is_closed = False

    def get(self, names):
        self.gate.wait(LIMIT)
        return names

    def close(self) -> None:
        self.is_closed = True

    claim = renew = put = release = invalidate = describe = contents = clear = get


Slow.__abstractmethods__ = frozenset()


def test_calls_behind_a_timed_out_call_fail_at_once():
    slow = Slow()
    store = TimedStore(slow, 0.01)
    with pytest.raises(TimeoutError, match="longer than"):
        store.get([b"a"])
    with pytest.raises(TimeoutError, match="has not ended"):
        store.get([b"b"])
    late = store._late
    slow.gate.set()
    assert late.result(LIMIT) == [b"a"]
    store._timeout = 60
    assert store.get([b"c"]) == [b"c"]
    store.close()
    assert (slow.is_closed, store._background.has_thread) == (True, False)
    assert store.get([b"d"]) == [b"d"]
    store.close()


def test_a_call_that_times_out_in_the_queue_is_not_made_later():
    """As behind the entries that another thread writes; what it claimed, nobody would know."""
    slow, began = Slow(), threading.Event()
    store = TimedStore(slow, 60)
    slow.put = lambda names, *_: (began.set(), slow.gate.wait(LIMIT), names)[-1]
    slow.claim = lambda *_: pytest.fail("called")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(store.put, [b"a"], [b""], [1.0], MINE)
        assert began.wait(LIMIT)
        store._timeout = 0.001
        with pytest.raises(TimeoutError, match="other calls"):
            store.claim([b"b"], MINE, 5)
        store._timeout = 60
        slow.gate.set()
        assert first.result(LIMIT) == [b"a"]
    assert store.get([b"c"]) == [b"c"]
    store.close()


def test_an_error_of_the_store_is_that_of_the_call():
    store = TimedStore(Slow(), 60)
    store._store.get = lambda names: 1 / 0
    with pytest.raises(ZeroDivisionError):
        store.get([b"a"])
    store.close()


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.floats(-29, 29), st.floats(-29, 29), st.floats(0, 100))
@settings(max_examples=examples(60), deadline=None)
def test_rows_from_before_an_invalidation_are_not_used_whatever_the_clocks_say(one, other, passed):
    """The clocks of hosts may differ by a minute; one that is later takes no row for newer than a change."""
    with tempfile.TemporaryDirectory() as path:
        true = [time.time() - 1_000]
        files = LocalFiles(path)
        writer, changer = (FolderStore(files, clock=lambda by=by: true[0] + by) for by in (one, other))
        writer.claim([name_of(1)], MINE, 60)
        true[0] += passed
        changer.invalidate([name_of(1)])
        assert writer.put([name_of(1)], [b"old"], [math.inf], MINE) == 0
        assert put(writer, [1], YOURS) == 1
        assert get(changer, 1) == get(writer, 1) == [entry(1)]
        writer.close()
        changer.close()


def test_a_segment_that_is_dated_later_than_its_file_is_not_used(tmp_path):
    """Its writer's clock and the folder's disagree, so nobody knows how old it is."""
    folder = ClockedFolder(tmp_path)
    store = folder.new_store()
    put(store, [1])
    store.close()
    [file] = files_of(tmp_path, ".seg")
    os.utime(file, (folder.clock - 3_600, folder.clock - 3_600))
    reading = folder.new_store().get([name_of(1)])
    assert (reading.entries, reading.dropped) == ([None], 1)
    folder.close()


# ── files that cannot be opened ──────────────────────────────────────────────────────────────────────────────


def test_a_segment_compacted_while_it_is_opened_is_found(stores, monkeypatch):
    monkeypatch.setattr("lookupcache.store.folder_entries.FEW", 2)
    writer, reader = stores(), stores()
    monkeypatch.setattr(writer, "_run_soon", lambda seconds: None)
    for number in range(3):
        put(writer, [number], token(b"mine", number))
    assert get(reader, 9) == [None]
    [one], [other] = reader._known.values(), writer._known.values()
    put(writer, [3], token(b"mine", 3))
    names = reader._files.names

    def listed_before(identity) -> list[str]:
        found = names(identity)
        other.is_to_compact = True
        writer._work()
        return found

    reader._files.names = listed_before
    one.refresh(now=True)
    assert get(reader, *range(4)) == [entry(number) for number in range(4)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_a_segment_that_cannot_be_reached_for_a_while_is_kept(stores, kind, code):
    """Too many files are open, or the network fails: others may need it, and this process soon."""
    writer, reader = stores(kind), stores(kind)
    put(writer, [1])
    writer.flush()

    def fail(identity, name):
        raise OSError(code, "for a while")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader._files, "open", fail)
        for _ in range(2):
            with pytest.raises(OSError, match="for a while"):
                get(reader, 1)
        with pytest.raises(OSError, match="for a while"):
            FolderEntries("i", reader._files, lambda: 9e9).compact()
    assert get(reader, 1) == [entry(1)]


def test_the_newest_entry_is_found_after_a_listing_that_failed(stores, tmp_path):
    writer, reader = stores(), stores()
    for number in range(6):
        put(writer, [1], token(b"mine", number), version=b" of %d" % number)
    before = set(files_of(tmp_path / "store", ".seg"))
    put(writer, [2])
    [last] = set(files_of(tmp_path / "store", ".seg")) - before
    opened = reader._files.open

    def fail(identity, name):
        if name == last.name:
            raise OSError(errno.EIO, "for a while")
        return opened(identity, name)

    reader._files.open = fail
    with pytest.raises(OSError, match="for a while"):
        get(reader, 1)
    last.unlink()
    assert get(reader, 1, 2) == [entry(1) + b" of 5", None]
