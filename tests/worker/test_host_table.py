"""ALL with scope host: one worker loads the table, and all others map it."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from types import SimpleNamespace

import pytest
from host_processes import in_child
from host_workers import host_workers
from scale import SCALE
from test_lookup import Names, all_names, batch, runner
from time_limit import LIMIT

from lookupcache.testing import FakeClock
from lookupcache.worker.host_table import _CLAIM, HostFullCacheLookup


class Table(Names):
    """A table of two rows; counts its scans."""

    scans = 0
    rows = 2

    def scan(self, request):
        self.scans += 1
        self.began.release()
        self.gate.wait(LIMIT)
        if self.down:
            raise ConnectionError("down")
        ids = list(range(1, 1 + self.rows))
        yield self.table(ids)

    def table(self, ids):
        import pyarrow as pa

        return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": [f"{self.name}{n}" for n in ids]})


@pytest.fixture
def tables(tmp_path):
    with host_workers(runner, HostFullCacheLookup, tmp_path, cache="ALL", max_rows=None) as new:
        yield new


def test_one_worker_loads_and_the_others_map(tables):
    source = Table()
    for _ in range(3):
        assert all_names(tables(source), batch(1, 2, 3, None, 1)) == ["n1", "n2", None, None, "n1"]
    assert source.scans == 1


def test_a_worker_waits_while_another_loads(tables):
    source = Table()
    source.gate.clear()
    one, two = tables(source), tables(source)
    results = {}
    threads = [
        threading.Thread(target=lambda name=name, join=join: results.update({name: all_names(join, batch(1))}))
        for name, join in {"one": one, "two": two}.items()
    ]
    for thread in threads:
        thread.start()
    assert source.began.acquire(timeout=LIMIT)
    source.gate.set()
    for thread in threads:
        thread.join()
    assert (results, source.scans) == ({"one": ["n1"], "two": ["n1"]}, 1)


def test_after_a_load_that_failed_another_worker_loads(tables):
    source = Table()
    source.down = True
    options = {"on_error": "null", "error_column": "e"}
    assert all_names(tables(source, **options), batch(1)) == [None]
    source.down = False
    assert all_names(tables(source, **options), batch(1)) == ["n1"]


def test_a_worker_waits_for_loads_of_others_within_its_timeout(tables, monkeypatch):
    source = Table()
    one, two = tables(source), tables(source)
    assert one.lookup.host.claim(_CLAIM, 60)[0]
    elapsed, claim = [0.0], two.lookup.host.claim

    def pass_time(*arguments):
        elapsed[0] += 60
        return claim(*arguments)

    monkeypatch.setattr("lookupcache.worker.host_table.time", SimpleNamespace(monotonic=lambda: elapsed[0]))
    monkeypatch.setattr(two.lookup.host, "claim", pass_time)
    two.lookup._keep_loaded(two.lookup.clock())
    assert (source.scans, elapsed[0]) == (1, 300), "180 s, from the first claim on"


def test_a_stopped_workers_claim_lapses_in_a_third_of_a_timeout(tables, monkeypatch):
    source, clock = Table(), FakeClock(1_000)
    monkeypatch.setattr("lookupcache.host.host_cache.host_now", clock)
    one, two = (tables(source, timeout=3) for _ in range(2))
    for join, load in ((one, True), (two, False), (two, True)):
        join.lookup._load_if_unclaimed(clock.now)
        assert (join.lookup._loading is not None) is load
        clock.now += 0.75
    for join in (one, two):
        join.lookup._complete_load(True)
    assert source.scans == 2


def test_a_claim_lasts_while_a_table_that_took_long_to_read_is_stored(tables, monkeypatch):
    source, clock = Table(), FakeClock(1_000)
    monkeypatch.setattr("lookupcache.host.host_cache.host_now", clock)
    one, two = (tables(source, clock) for _ in range(2))
    publish, claimed = one.lookup.host.publish_table, []

    def publish_slowly(*arguments):
        clock.now += 20
        claimed.extend(two.lookup.host.claim(_CLAIM, 60).tolist())
        return publish(*arguments)

    monkeypatch.setattr(one.lookup.host, "publish_table", publish_slowly)
    one.lookup._load_if_unclaimed(clock.now)
    clock.now += 4  # It is renewed while the source is waited for.
    one.lookup.host.renew(_CLAIM, 5)
    one.lookup._started = clock.now - 30
    assert one.lookup._complete_load(True)
    assert (claimed, source.scans) == ([False], 1)


def test_one_worker_reloads_while_the_others_go_on(tables):
    source, clock = Table(), FakeClock(1_000)
    one, two = (tables(source, clock, reload_interval=60.0, age_column="age") for _ in range(2))
    all_names(one, batch(1))
    all_names(two, batch(1))
    clock.now += 61
    source.name = "m"
    source.gate.clear()
    source.began.acquire(timeout=LIMIT)
    assert all_names(one, batch(1)) == ["n1"]
    assert source.began.acquire(timeout=LIMIT)
    [joined] = two.run([batch(1)])
    assert (joined.column(1).to_pylist(), joined.column(2).to_pylist()) == (["n1"], [61.0])
    source.gate.set()
    while one.lookup._loading is not None:
        all_names(one, batch(1))
    assert all_names(two, batch(1)) == ["m1"]
    assert source.scans == 2


def test_a_table_that_is_empty_is_shared_too(tables):
    source = Table()
    source.rows = 0
    for _ in range(2):
        assert all_names(tables(source), batch(1)) == [None]
    assert source.scans == 1


EVERY = 6
"""Every so many steps are tried, from a random one on; all of them with `LOOKUPCACHE_SCALE` = 8."""

RELOADED = {"reload_interval": 60.0}


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("is_reload", [False, True], ids=["load", "reload"])
def test_a_loader_killed_at_any_step_leaves_others_their_table(is_reload, tables, tmp_path):
    made, path = tmp_path / "made", tmp_path / "cache"
    made.mkdir()
    if is_reload:
        names_at(tables, 1_000.0, "n", made)
    stride = max(int(EVERY / SCALE), 1)
    step, killed = -secrets.randbelow(stride), True
    while killed:
        step += stride
        shutil.copytree(made, path)
        other = tables(Table(), at(1_000.0), **RELOADED)
        if is_reload:
            assert all_names(other, batch(1, 3)) == ["n1", None]
        killed, _ = in_child(lambda: names_at(tables, 1_061.0, "m", path), step)
        go_on(other, is_reload, step)
        shutil.rmtree(path)
    assert step > 10 or stride > 1, "the steps were not counted"


def at(now):
    """Return a clock that stands."""
    clock = FakeClock(1_000)
    clock.now = now
    return clock


def names_at(tables, now, name, path):
    """Load the table, or reload it, as a worker does at a time; return the names of two keys."""
    source = Table()
    source.name = name
    join = tables(source, at(now), cache_path=str(path), **RELOADED)
    found = all_names(join, batch(1, 3))
    while join.lookup._loading is not None:
        found = all_names(join, batch(1, 3))
    join.lookup.disconnect()
    return found


def go_on(other, is_reload, step):
    """Look up in the worker that lives: it has the old table or the new one, and reloads if nobody has."""
    source, clock = other.lookup.source.connector, other.lookup.clock
    source.name, clock.now = "m", 1_061.0
    first = all_names(other, batch(1, 3))
    assert first in ([["n1", None], ["m1", None]] if is_reload else [["m1", None]]), step
    while other.lookup._loading is not None:
        all_names(other, batch(1, 3))
    assert all_names(other, batch(1, 2, 3)) == ["m1", "m2", None], step
    assert other.lookup.counters["host_failures"] == other.lookup.counters["host_dropped_files"] == 0, step
    other.lookup.disconnect()
    again = other.lookup.host._path
    assert not [name for name in os.listdir(again) if name.endswith(".new")], step
