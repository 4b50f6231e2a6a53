"""A folder as a store: what it promises on each kind of file system, alone and with other processes."""

from __future__ import annotations

import math
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from drawing import examples
from folder_stores import KINDS, MINE, YOURS, ClockedFolder, entry, files_of, get, name_of, new_store, put, token
from hypothesis import given, settings
from hypothesis import strategies as st
from time_limit import LIMIT

from lookupcache.config import LookupConfig
from lookupcache.host.folder import HostUnavailableError
from lookupcache.store import object_files
from lookupcache.store.contract import CLAIMED
from lookupcache.store.folder_entries import FEW, choose_segments
from lookupcache.store.folder_store import _flush_stores
from lookupcache.store.locations import entries_of
from lookupcache.store.object_files import ObjectFiles
from lookupcache.store.writer import Writer, flush_writers

# ── one contract on every file system ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_found_by_others_and_in_the_next_run(stores, kind):
    store = stores(kind)
    assert put(store, range(9)) == 9
    assert get(store, 3, 20, 1) == [entry(3), None, entry(1)]
    store.close()
    other = stores(kind)
    assert get(other, 3, 20, 1) == [entry(3), None, entry(1)]
    [content] = other.contents()
    assert (content.identity, content.entries) == ("i", 9)
    assert content.nbytes > 9 * 48
    assert other.clear("j") == other.clear("../i") == 0
    assert (other.clear("i"), other.contents(), get(other, 3)) == (9, [], [None])


@pytest.mark.parametrize("kind", KINDS)
def test_an_identity_keeps_its_first_description(stores, kind):
    one, other = stores(kind), stores(kind)
    assert one.describe("i", {"schema": "a"}) == {"schema": "a"}
    assert other.describe("i", {"schema": "b"}) == {"schema": "a"}
    assert other.describe("j", {"schema": "b"}) == {"schema": "b"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_invalidation_also_reaches_what_is_being_fetched(stores, kind, monkeypatch):
    monkeypatch.setattr(ObjectFiles, "list_seconds", 1e-9)
    one, other = stores(kind), stores(kind)
    names = [name_of(number) for number in range(3)]
    one.claim(names, MINE, 60)
    other.invalidate(names[:1])
    one.put(names, [b"old"] * 3, [math.inf] * 3, MINE)
    one.close()
    assert get(other, 0, 1, 2) == [None, b"old", b"old"]
    other.clear()
    assert get(other, 0, 1, 2) == get(one, 0, 1, 2) == [None] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_is_not_found_after_its_end(stores, kind):
    store = stores(kind)
    put(store, [1], seconds=0.0)
    put(store, [2], seconds=600.0)
    assert get(store, 1, 2) == [None, entry(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_was_claimed_is_written_and_once(stores, kind):
    """Processes do not see each other's claims; a token is worth what was claimed with it."""
    one, other = stores(kind), stores(kind)
    names = [name_of(number) for number in range(4)]
    assert one.claim(names[:3], MINE, 60)[0] == other.claim(names, YOURS, 60)[0][:3] == [CLAIMED] * 3
    one.release(names[:1], MINE)
    assert one.put(names, [b"-"] * 4, [60.0] * 4, token(b"mine", 1)) == 0
    assert one.put(names, [b"-"] * 4, [60.0] * 4, MINE) == 2
    assert one.put(names, [b"-"] * 4, [60.0] * 4, MINE) == 0
    assert other.put(names, [b"-"] * 4, [60.0] * 4, YOURS) == 4


def test_an_invalidation_is_later_than_claims_of_the_same_moment(tmp_path):
    folder = ClockedFolder(tmp_path / "store")
    one, other, names = folder.new_store(), folder.new_store(), [name_of(1)]
    other.invalidate(names)
    one.claim(names, MINE, 60)
    other.invalidate(names)
    assert one.put(names, [b"old"], [60.0], MINE) == 0
    folder.close()


def test_an_invalidated_key_can_be_claimed_and_written_at_once(stores):
    one, other = stores(), stores()
    for number in range(20):
        one.claim([name_of(1)], token(b"mine", number), 60)
        other.invalidate([name_of(1)])
        other.claim([name_of(1)], token(b"yours", number), 60)
        assert other.put([name_of(1)], [entry(number)], [60.0], token(b"yours", number)) == 1
        assert one.put([name_of(1)], [b"old"], [60.0], token(b"mine", number)) == 0
        assert get(one, 1) == [entry(number)]


STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["put", "get", "invalidate"]), st.sets(st.integers(0, 5), min_size=1))
    | st.tuples(st.integers(0, 1), st.sampled_from(["clear", "compact", "again"]), st.just(frozenset())),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS, st.sampled_from(KINDS))
def test_two_processes_see_what_a_dictionary_would_have(steps, kind):
    """Drawn histories on each kind of file system; on object stores, with a listing for each call."""
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectFiles, "list_seconds", 1e-9)
        patch.setattr("lookupcache.store.folder_entries.FEW", 2)
        processes = [new_store(kind, Path(path)) for _ in range(2)]
        expected: dict[int, bytes] = {}
        for number, (process, what, keys) in enumerate(steps):
            store = processes[process]
            if what == "put":
                written = put(store, sorted(keys), token(b"%d" % process, number), version=b" of %d" % number)
                assert written == len(keys)
                store._background.close(None, drop=True)
                store.flush()
                expected |= {key: entry(key) + b" of %d" % number for key in keys}
            elif what == "get":
                assert get(store, *keys) == [expected.get(key) for key in keys]
            elif what == "invalidate":
                store.invalidate([name_of(key) for key in keys])
                expected = {key: value for key, value in expected.items() if key not in keys}
            elif what == "clear":
                store.clear()
                expected = {}
            elif what == "again":
                store.close()
                processes[process] = new_store(kind, Path(path))
            else:
                compact_all(store)
        for store in processes:
            assert get(store, *range(6)) == [expected.get(key) for key in range(6)]
            store.close()


def compact_all(store) -> None:
    store._background.close(None, drop=True)
    for one in store._known.values():
        one.is_to_compact = True
    store._work()


def test_collected_entries_are_found_during_and_after_the_write(stores, monkeypatch):
    store = stores("put")
    get(store, 1)
    put(store, [1])
    [one] = store._known.values()
    write, seen = one._write, []
    monkeypatch.setattr(store._background, "wake", lambda seconds: None)

    def slow(*arguments):
        one._write = write
        put(store, [1], YOURS, version=b" new")
        seen.append((get(store, 1), store.is_flushed))
        write(*arguments)

    one._write = slow
    store.flush()
    assert (seen, store.is_flushed) == ([([entry(1) + b" new"], False)], False)
    assert get(stores("put"), 1) == [entry(1)]
    store.flush()
    assert get(store, 1) == [entry(1) + b" new"]
    assert store.is_flushed


def test_entries_left_in_a_writer_are_written_at_exit(stores, monkeypatch):
    store, writer = stores("put"), Writer()
    get(store, 1)
    gate = threading.Event()
    writer.add([b"1"], 1, lambda: (gate.wait(LIMIT), put(store, [1])))
    monkeypatch.setattr("lookupcache.store.folder_store.flush_writers", lambda: (gate.set(), flush_writers()))
    _flush_stores()
    assert store.is_flushed
    assert get(stores("put"), 1) == [entry(1)]


# ── downloads ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def reads(monkeypatch):
    """Return the paths that are read from the object store."""
    paths, info = [], ObjectFiles._info
    monkeypatch.setattr(ObjectFiles, "_info", lambda self, path: (paths.append(path), info(self, path))[1])
    return paths


def test_a_segment_is_downloaded_once_per_host(stores, reads):
    writer = stores("put")
    put(writer, [1, 2])
    writer.close()
    assert [get(stores("put"), 1, 2) for _ in range(3)] == [[entry(1), entry(2)]] * 3
    assert len([path for path in reads if path.endswith(".seg")]) == 1


def test_downloads_have_a_limit_and_what_is_open_stays_readable(stores, reads, monkeypatch):
    monkeypatch.setattr(object_files, "_MOST_DOWNLOADED_BYTES", 200)
    writer, reader = stores("put"), stores("put")
    for number in range(4):
        put(writer, [number], token(b"mine", number))
        writer.flush()
    assert get(reader, *range(4)) == [entry(number) for number in range(4)]
    [folder] = Path(tempfile.gettempdir()).iterdir()
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 200
    assert get(reader, *range(4)) == [entry(number) for number in range(4)]


def test_without_a_place_for_downloads_the_store_fails(stores, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    writer = stores("put")
    put(writer, [1])
    writer.close()
    with pytest.raises(HostUnavailableError, match="file"):
        get(stores("put"), 1)


def test_small_segments_are_merged_and_expired_ones_are_removed(tmp_path):
    folder = ClockedFolder(tmp_path)
    store = folder.new_store()
    for number in range(20):
        put(store, [number, 0], token(b"mine", number), seconds=100.0 + number, version=b" of %d" % number)
        if choose_segments(next(iter(store._known.values())).segments):
            compact_all(store)
    assert len(files_of(tmp_path, ".seg")) <= FEW + 2
    assert get(store, 0, 3) == [entry(0) + b" of 19", entry(3) + b" of 3"]
    store.invalidate([name_of(7)])
    assert get(folder.new_store(), 0, 3, 7) == [entry(0) + b" of 19", entry(3) + b" of 3", None]
    folder.clock += 2 * 24 * 3_600
    for _ in range(2):
        compact_all(store)
    assert (files_of(tmp_path, ".seg"), files_of(tmp_path, ".inv")) == ([], [])
    folder.close()


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_compact_at_the_same_time_lose_nothing(stores, kind, monkeypatch):
    """They begin together, since each of them sees that there are many segments; another goes on writing."""
    monkeypatch.setattr(ObjectFiles, "list_seconds", 1e-9)
    processes = [stores(kind) for _ in range(4)]
    for number in range(2 * FEW):
        put(processes[0], [number, 0], token(b"mine", number), version=b" of %d" % number)
        processes[0].flush()
    for store in processes:
        get(store, 0)
    barrier = threading.Barrier(len(processes))

    def work(number):
        barrier.wait(60)
        if number:
            compact_all(processes[number])
        else:
            put(processes[0], [100], token(b"late"))
            processes[0].flush()

    with ThreadPoolExecutor(len(processes)) as threads:
        list(threads.map(work, range(len(processes))))
    last = 2 * FEW - 1
    expected = [entry(number) + b" of %d" % (number or last) for number in range(2 * FEW)]
    for store in [*processes, stores(kind)]:
        assert get(store, *range(2 * FEW), 100) == [*expected, entry(100)]


def test_sizes_of_segments_double():
    segments = []
    for number in range(2_000):
        segments.insert(0, SimpleNamespace(file=SimpleNamespace(size=1), name=number))
        chosen = choose_segments(segments)
        if chosen:
            size = sum(one.file.size for one in chosen)
            segments[: len(chosen)] = [SimpleNamespace(file=SimpleNamespace(size=size), name=number)]
    assert len(segments) < FEW + math.log2(2_000)


def test_of_a_large_store_the_newest_segments_are_read(stores, monkeypatch):
    monkeypatch.setattr("lookupcache.store.folder_entries._MOST_OPEN", 2)
    writer, reader = stores(), stores()
    for number in range(4):
        put(writer, [number], token(b"mine", number))
    before = len(os.listdir("/proc/self/fd"))
    assert get(reader, *range(4)) == [None, None, entry(2), entry(3)]
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    compact_all(reader)
    assert len(files_of(Path(reader._files._path), ".seg")) == 4


@pytest.mark.parametrize(
    ("store", "is_other"), {"s3://bucket/cache": True, "/mnt/cache": False, "redis://h/0": False}.items()
)
def test_an_object_store_of_another_endpoint_is_another_store(store, is_other, monkeypatch):
    config, found = LookupConfig(cache="LRU", store=store), []
    for name, value in (("AWS_ENDPOINT_URL", "http://a"), ("AWS_ENDPOINT_URL", "http://b"), ("AWS_SESSION_TOKEN", "x")):
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", "http://a")
            patch.setenv(name, value)
            found.append(entries_of(config))
    assert found[0] == found[2]
    assert (found[0] != found[1]) == is_other
