"""ALL with scope host: one worker loads the table, and all others map it."""

from __future__ import annotations

import threading

import pytest
from host_workers import host_workers
from test_host_lookup import Ticks
from test_lookup import Names, all_names, batch, runner

from lookupcache.worker.host_table import HostFullCacheLookup


class Table(Names):
    """A table of two rows; counts its scans."""

    scans = 0
    rows = 2

    def scan(self, request):
        self.scans += 1
        self.began.release()
        self.gate.wait(60)
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
    assert source.began.acquire(timeout=60)
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


def test_one_worker_reloads_while_the_others_go_on(tables):
    source, clock = Table(), Ticks()
    one, two = (tables(source, clock, reload_interval=60.0, age_column="age") for _ in range(2))
    all_names(one, batch(1))
    all_names(two, batch(1))
    clock.now += 61
    source.name = "m"
    source.gate.clear()
    source.began.acquire(timeout=60)
    assert all_names(one, batch(1)) == ["n1"]
    assert source.began.acquire(timeout=60)
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
