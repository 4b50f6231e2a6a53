"""What is in one path with a host's cache, or comes after it: ended workers, failed reloads, ALL, older versions."""

from __future__ import annotations

import errno
import os
import signal

import pytest
from host_workers import host_workers
from test_host_table import Table
from test_lookup import Names, all_names, batch, runner
from time_limit import LIMIT

from lookupcache.host.folder import Folder
from lookupcache.host.key_index import KeyIndex
from lookupcache.host.segment import FORMAT
from lookupcache.testing import FakeClock
from lookupcache.worker.host_lookup import HostCacheLookup
from lookupcache.worker.host_table import HostFullCacheLookup


@pytest.fixture
def workers(tmp_path):
    with host_workers(runner, HostCacheLookup, tmp_path) as new:
        yield new


@pytest.fixture
def tables(tmp_path):
    with host_workers(runner, HostFullCacheLookup, tmp_path, cache="ALL", max_rows=None) as new:
        yield new


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "exit", "closed"])
def test_entries_outlive_all_workers(workers, end):
    """As those that Spark ends when they have been idle: no process has the folder open then."""
    child = os.fork()
    if not child:
        join = workers(Names())
        all_names(join, batch(1, 2, 2_000))
        if end == "closed":
            join.lookup.disconnect()
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)
    source = Names()
    assert all_names(workers(source), batch(1, 2, 2_000, 3)) == ["n1", "n2", None, "n3"]
    assert source.requested == [[3]]


def test_a_reload_that_fails_is_repeated_by_one_worker_at_a_time(tables):
    source, clock = Table(), FakeClock(1_000)
    joins = [tables(source, clock, reload_interval=60.0) for _ in range(4)]
    for join in joins:
        assert all_names(join, batch(1)) == ["n1"]
    assert source.began.acquire(timeout=LIMIT)
    clock.now += 61
    source.name, source.down = "m", True
    source.gate.clear()
    for turn in range(3):
        for join in joins:
            assert all_names(join, batch(1)) == ["n1"], "all go on with the old table"
        assert source.began.acquire(timeout=LIMIT)
        loading = [join for join in joins if join.lookup._loading is not None]
        assert (source.scans, len(loading)) == (2 + turn, 1)
        source.down = turn < 2
        source.gate.set()
        while loading[0].lookup._loading is not None:
            # No others are asked meanwhile, who would load again.
            all_names(loading[0], batch(1))
        if turn < 2:
            source.gate.clear()
    for join in joins:
        assert all_names(join, batch(1)) == ["m1"]
    assert source.scans == 4
    assert sum(join.lookup.counters["reload_failures"] for join in joins) == 2


def test_a_first_load_that_fails_is_each_workers_own_error(tables):
    source = Table()
    source.down = True
    options = {"on_error": "null", "error_column": "e"}
    joins = [tables(source, **options) for _ in range(3)]
    for number, join in enumerate(joins):
        assert all_names(join, batch(1)) == [None]
        assert source.scans == number + 1, "no worker takes the error of another one for its own"
    source.down = False
    assert [all_names(join, batch(1)) for join in joins] == [["n1"]] * 3
    assert source.scans == len(joins) + 1


def test_a_table_and_single_keys_of_one_source_share_a_path(workers, tables):
    source = Table()
    for _ in range(2):
        assert all_names(workers(source), batch(1, 2, 3)) == ["n1", "n2", "n3"]
        assert all_names(tables(source), batch(1, 2, 3)) == ["n1", "n2", None]
    assert (source.scans, source.requested) == (1, [[1, 2, 3]])


def test_folders_of_another_version_are_left_alone(workers, tmp_path):
    source = Names()
    join = workers(source)
    all_names(join, batch(1, 2))
    path = join.lookup.host._path
    join.lookup.disconnect()
    older = path.replace(f"v{FORMAT}-", f"v{FORMAT - 1}-")
    os.rename(path, older)
    before = sorted((name, os.stat(os.path.join(older, name)).st_mtime_ns) for name in os.listdir(older))
    source.name = "m"
    for _ in range(2):
        assert all_names(workers(source), batch(1, 2)) == ["m1", "m2"]
    assert sorted((name, os.stat(os.path.join(older, name)).st_mtime_ns) for name in os.listdir(older)) == before


@pytest.mark.leaves("is counted")  # The next eviction counts again.
@pytest.mark.parametrize("step", ["replace", "insert", "rename"])
def test_an_error_during_an_index_change_leaves_no_wrong_row(workers, monkeypatch, step):
    """As on a file system that reports a full disk late; the index is built again by the next publication."""
    source, clock = Names(), FakeClock(1_000)
    monkeypatch.setattr("lookupcache.host.host_cache.host_now", clock)
    one, two = (workers(source, expire_after_write=60.0) for _ in range(2))
    all_names(one, batch(*range(20)))
    source.name = "m"
    clock.now += 61
    holder, name = (Folder, "rename") if step == "rename" else (KeyIndex, step)
    plain, failed = getattr(holder, name), []

    def fail_halfway(self, *arguments):
        if failed:
            return plain(self, *arguments)
        if step == "rename" and not arguments[1].endswith(".seg"):
            return plain(self, *arguments)
        failed.append(1)
        if step != "rename":
            plain(self, *(values[: len(values) // 2] for values in arguments))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(holder, name, fail_halfway)
    for _ in range(2):
        for join in (one, two, workers(source, expire_after_write=60.0)):
            assert all_names(join, batch(*range(25))) == [f"m{key}" for key in range(25)]
    assert failed
