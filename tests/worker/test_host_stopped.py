"""A process that is stopped while it holds a lock of the host's cache: the others go on, and no row is wrong."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from host_workers import host_workers
from servers import until
from test_host_lookup import ids, wait_for
from test_invalidation import ReportsChanges
from test_lookup import Names, all_names, batch, runner

from lookupcache.host import folder, maintenance
from lookupcache.host.claims import LOCK as CLAIMS_LOCK
from lookupcache.host.control import PUBLISH_LOCK
from lookupcache.host.folder import Folder
from lookupcache.host.maintenance import LARGE_LOCK, SMALL_LOCK
from lookupcache.host.segments import Segments
from lookupcache.worker.host_lookup import HostCacheLookup
from lookupcache.worker.host_table import HostFullCacheLookup

pytestmark = pytest.mark.slow

TIMEOUT = 2.0
"""A lock is waited for during a tenth of it."""


@contextmanager
def stopped(work: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Run something in a forked process that stops itself; yields a function that lets it go on, to its end."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    ended = []

    def go_on() -> None:
        os.kill(child, signal.SIGCONT)
        ended.append(os.waitpid(child, 0)[1])

    try:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        yield go_on
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert ended in ([], [0])


def stop_with(path: str, *locks: str) -> None:
    opened = Folder(path)
    for name in locks:
        opened.try_lock(name)
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture
def workers(tmp_path):
    with host_workers(runner, HostCacheLookup, tmp_path, timeout=TIMEOUT) as new:
        yield new


@pytest.mark.extended
@pytest.mark.parametrize(
    "locks", [[PUBLISH_LOCK], [CLAIMS_LOCK], [PUBLISH_LOCK, CLAIMS_LOCK, "small.lock", "large.lock", "write.lock"]]
)
@pytest.mark.parametrize("limits", [{}, {"max_bytes": 10_000_000}], ids=str)
def test_others_go_on_without_the_host(workers, locks, limits):
    source = Names()
    one, two = workers(source, **limits), workers(source, **limits)
    assert all_names(one, batch(1)) == ["n1"]
    with stopped(lambda: stop_with(one.lookup.host._path, *locks)) as go_on:
        for join in (one, two):
            assert all_names(join, batch(1, 2, 2_000)) == ["n1", "n2", None]
        assert one.lookup.counters["host_failures"] > 0
        three = workers(source, **limits)  # It opens the folder meanwhile.
        assert all_names(three, batch(1, 3)) == ["n1", "n3"]
        go_on()
    before = one.lookup.counters["host_failures"]
    assert all_names(one, batch(4)) == ["n4"]
    source.name = "m"
    assert all_names(two, batch(4)) == ["n4"], "they share again"
    assert one.lookup.counters["host_failures"] == before


def test_each_lock_is_waited_for_once_until_it_is_free(workers, monkeypatch):
    one = workers(Names())
    all_names(one, batch(1))
    waits, wait = [], folder._lock_within
    monkeypatch.setattr(folder, "_lock_within", lambda fd, most: waits.append((wait(fd, most), most)) or waits[-1][0])
    with stopped(lambda: stop_with(one.lookup.host._path, PUBLISH_LOCK)):
        for key in (2, 3, 4):
            all_names(one, batch(key))
        assert [most > folder._SOON_SECONDS for is_held, most in waits if not is_held].count(True) == 1


def test_the_limit_of_rows_holds_while_nobody_can_evict(workers):
    source = Names()
    one = workers(source, max_rows=50)
    all_names(one, batch(1))
    control = one.lookup.host._control
    with stopped(lambda: stop_with(one.lookup.host._path, SMALL_LOCK)) as go_on:
        for start in range(100, 400, 30):
            assert all_names(one, batch(*range(start, start + 30)))[0] == f"n{start}"
        assert 50 < control["weight"] <= 2 * 50 + 30
        go_on()
    keys = itertools.count(500)
    # The process that goes on first has to release the lock.
    until(lambda: all_names(one, batch(next(keys))) and control["weight"] <= 50)


@pytest.mark.parametrize("is_new", [False, True], ids=["for a minute", "just now"])
def test_segments_stay_few_while_the_merging_process_is_stopped(workers, monkeypatch, is_new):
    monkeypatch.setattr(maintenance, "_SMALL_ENTRIES", 30)
    one = workers(Names(), max_rows=400)
    all_names(one, batch(1))
    host = one.lookup.host
    with stopped(lambda: stop_with(host._path, LARGE_LOCK)):
        host._control.set_time("merging_since", host.clock() - (0 if is_new else 61))
        for start in range(0, 800, 10):
            all_names(one, batch(*range(start, start + 10)))
        assert (len(host._segments.newest) > 60) is is_new, "for a moment, they are left to it"
    assert host._control["weight"] <= 400


def test_a_table_is_loaded_by_each_worker(tmp_path):
    with host_workers(runner, HostFullCacheLookup, tmp_path, cache="ALL", max_rows=None, timeout=TIMEOUT) as new:
        source = Scanned()
        one = new(source)
        with stopped(lambda: stop_with(one.lookup.host._path, PUBLISH_LOCK, CLAIMS_LOCK)):
            assert all_names(one, batch(1, 9)) == ["n1", None]


class Scanned(Names):
    """A table of two rows."""

    def scan(self, request):
        import pyarrow as pa

        yield pa.record_batch({"id": pa.array([1, 2], pa.int64()), "name": ["n1", "n2"]})


@pytest.mark.parametrize("changes", [(1,), None])
def test_a_change_reaches_a_process_stopped_while_it_publishes(workers, changes):
    """It has compared its keys with the changes already, and stores rows from before the change when it goes on."""
    other_source, late_source = ReportsChanges(), ReportsChanges()
    other, late = workers(other_source), workers(late_source)
    for join in (other, late):
        all_names(join, batch(7, 1))

    def publish() -> None:
        take = Segments.take_ids

        def stop_first(*arguments):
            os.kill(os.getpid(), signal.SIGSTOP)
            return take(*arguments)

        Segments.take_ids = stop_first  # type: ignore[method-assign]
        join = runner(ReportsChanges(), scope="host", cache_path=os.path.dirname(path), timeout=TIMEOUT)
        pending = join.lookup.open(ids(2, 3))
        wait_for(join.lookup, pending)

    path = other.lookup.host._path
    with stopped(publish) as go_on:
        other_source.name = late_source.name = "m"
        other_source.changes = (2,) if changes else None
        assert all_names(other, batch(2)) == ["m2"]
        assert all_names(late, batch(2)) == ["m2"]
        go_on()
    started_later = Names()
    started_later.name = "m"
    for join in (workers(started_later), other, late):
        assert all_names(join, batch(2)) == ["m2"]
    assert all_names(workers(Names()), batch(2)) == ["m2"], "those that start now share a new cache"
