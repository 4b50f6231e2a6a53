"""A folder as a store in an object store: a server of the S3 protocol, in a process of its own."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import subprocess
import sys
import threading
import warnings

import pytest
from folder_stores import MINE, YOURS, entry, get, name_of, put, token
from pyarrow import fs
from servers import S3Server, until
from time_limit import LIMIT

from lookupcache import LookupConfig, cached
from lookupcache.store.contract import CLAIMED
from lookupcache.store.folder_store import FolderStore
from lookupcache.store.object_files import ObjectFiles

pytestmark = pytest.mark.slow
_paths = itertools.count()


@pytest.fixture(scope="module")
def server():
    started = S3Server().start()
    yield started
    started.kill()


@pytest.fixture
def url(server):
    """Return the URL of an empty path."""
    return server.url(f"cache-{next(_paths)}")


@pytest.fixture
def processes(url, monkeypatch):
    """Return a function that opens the store of another process, which lists the path whenever it reads."""
    monkeypatch.setattr(ObjectFiles, "list_seconds", 1e-9)
    opened = []

    def open_another():
        opened.append(FolderStore(ObjectFiles.at(url)))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


def objects(url: str, ending: str) -> list[str]:
    """Return the paths of the objects with an ending."""
    system, path = fs.FileSystem.from_uri(url)
    found = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return [one.path for one in found if one.path.endswith(ending)]


def test_entries_are_found_listed_and_removed_by_others(processes, url):
    one, other = processes(), processes()
    assert one.describe("i", {"schema": "a"}) == other.describe("i", {"schema": "b"}) == {"schema": "a"}
    assert put(one, range(100)) == 100
    assert get(one, 3) == [entry(3)]
    one.flush()
    assert len(objects(url, ".seg")) == 1
    assert get(other, 3, 200, 99) == [entry(3), None, entry(99)]
    [content] = other.contents()
    assert (content.identity, content.entries) == ("i", 100)
    other.invalidate([name_of(3)])
    assert get(processes(), 3, 4) == [None, entry(4)]
    assert get(one, 3, 4) == [None, entry(4)]
    assert other.clear("i")
    assert get(one, 4) == get(processes(), 4) == [None]
    assert objects(url, ".seg") == []


def test_rows_requested_during_an_invalidation_are_not_used(processes):
    one, other = processes(), processes()
    one.claim([name_of(1), name_of(2)], MINE, 60)
    other.invalidate([name_of(1)])
    one.put([name_of(1), name_of(2)], [b"old"] * 2, [60.0] * 2, MINE)
    one.flush()
    assert get(other, 1, 2) == [None, b"old"]


def test_claims_hold_within_a_process_only(processes):
    """pyarrow offers no conditional put: two processes request the same key, and each stores what it has fetched."""
    one, other = processes(), processes()
    assert [store.claim([name_of(1)], by, 60)[0] for store, by in ((one, MINE), (other, YOURS))] == [[CLAIMED]] * 2
    for store, by in ((one, MINE), (other, YOURS)):
        assert store.put([name_of(1)], [entry(1)], [60.0], by) == 1
        store.flush()
    assert get(processes(), 1) == [entry(1)]


def test_writers_at_the_same_time_lose_nothing(processes, url):
    stores = [processes() for _ in range(4)]

    def write(number):
        for start in range(1_000 * number, 1_000 * number + 90, 30):
            put(stores[number], range(start, start + 30), token(b"writer %d" % number))
            stores[number].flush()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [1_000 * number + at for number in range(4) for at in range(90)]
    assert get(processes(), *numbers) == [entry(number) for number in numbers]
    until(lambda: 0 < len(objects(url, ".seg")) <= 12)  # a merge writes its segment before it deletes those it merged


KILLED = """
import os, signal, sys
from folder_stores import MINE, name_of
from lookupcache.store.folder_store import FolderStore
from lookupcache.store.object_files import ObjectFiles

def put(self, path, data):
    with self._system.open_output_stream(path) as stream:
        stream.write(data[:len(data) // 2])  # More than a part of an upload.
        stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)

store = FolderStore(ObjectFiles.at(sys.argv[1]))
names = [name_of(number) for number in range(4)]
store.claim(names, MINE, 60)
ObjectFiles._put = put
store.put(names, [os.urandom(8 << 20) for _ in names], [60.0] * 4, MINE)
store.flush()
"""


def test_an_object_is_there_as_a_whole_or_not_at_all(processes, url):
    """A process is killed in the middle of an upload."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, url], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert objects(url, ".seg") == []
    store = processes()
    assert get(store, 1) == [None]
    assert put(store, [1]) == 1
    store.flush()
    assert get(processes(), 1) == [entry(1)]


@pytest.mark.extended(keep_one_in=2)
@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_calls_go_on_without_the_server_and_show_no_secret(fault, monkeypatch):
    server = S3Server().start()
    monkeypatch.setenv("STORE", server.url("cache"))
    config = LookupConfig(cache="LRU", store="env:STORE", store_name="n", store_timeout=5.0)
    one = cached(config)(lambda key: [key])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert one(1) == [1]
        one.close()
        assert cached(config)(lambda key: ["another"])(1) == [1]
        monkeypatch.setattr("lookupcache.store.guard._FAILURES", 1)
        late = cached(dataclasses.replace(config, store_name="m", store_timeout=0.2))(lambda key: [key])
        getattr(server, fault)()
        assert [late(key) for key in range(5)] == [[key] for key in range(5)]
        assert late.metrics().store_failures
    server.kill()
    texts = [str(one.message) for one in caught]
    assert any("'lookup.cache.store'" in text for text in texts)
    assert [text for text in texts if "kx7secretq" in text] == []
