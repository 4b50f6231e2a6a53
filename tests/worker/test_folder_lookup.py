"""Workers of several hosts with a folder as their store: one request per key, warm starts, and a folder that fails."""

from __future__ import annotations

import os
import random
import shutil
import tarfile
from collections import Counter
from contextlib import suppress

import pytest
from folder_stores import files_of, make_read_only, new_store
from host_processes import in_processes
from memory_store import separate_tokens
from servers import until
from test_host_lookup import Logged
from test_invalidation import ReportsChanges
from test_lookup import Gated, Names, all_names, batch, names, runner
from test_store_lookup import counts, ids

from lookupcache import LookupConfig, cached
from lookupcache.worker.host_lookup import HostCacheLookup
from lookupcache.worker.runner import Runner


@pytest.fixture(autouse=True)
def processes(monkeypatch):
    separate_tokens(monkeypatch)


@pytest.fixture
def worker(tmp_path):
    """Return a function that makes a worker of a host of its own."""
    joins = []

    def new_worker(source, path=tmp_path / "store", **config) -> Runner:
        joins.append(runner(source, **{"store": str(path), "store_timeout": 10, **config}))
        return joins[-1]

    yield new_worker
    for join in joins:
        join.lookup.disconnect()


def test_rows_of_one_host_are_found_by_another(worker, tmp_path):
    source = Names()
    one, two = worker(source), worker(source, f"file://{tmp_path}/store")
    assert all_names(one, batch(1, 2, 2_000, 1)) == ["n1", "n2", None, "n1"]
    assert all_names(two, batch(2, 2_000, 3, None)) == ["n2", None, "n3", None]
    assert source.requested == [[1, 2, 2_000], [3]]
    assert counts(two, "hits", "waits", "failures", "dropped", "unstored") == (2, 0, 0, 0, 0)


def test_two_hosts_that_need_a_key_at_once_both_request_it(worker):
    source = Gated()
    one, two = worker(source, async_capacity=5), worker(source, async_capacity=5)
    pending, others = one.lookup.open(ids(1, 2)), two.lookup.open(ids(2, 3))
    source.open_gates(1, 2, 3)
    for lookup, waiting in ((one.lookup, pending), (two.lookup, others)):
        while not waiting.ready:
            lookup.wait()
        lookup.close(waiting)
    assert sorted(source.requested) == [[1, 2], [2, 3]]
    assert counts(two, "hits", "waits", "unstored") == (0, 0, 0)
    assert all_names(worker(source), batch(1, 2, 3)) == ["n1", "n2", "n3"]
    assert len(source.requested) == 2


@pytest.mark.extended
@pytest.mark.slow
def test_eight_writers_request_each_key_once_per_host_at_most(tmp_path):
    """Each of two hosts has a cache of its own; their files in the folder are compacted meanwhile."""
    store = tmp_path / "store"

    def work(number):
        draw = random.Random(number)
        host = {"scope": "host", "cache_path": str(tmp_path / f"host{number % 2}")}
        join = runner(Logged(tmp_path / "log"), store=str(store), store_timeout=60, max_rows=10_000, **host)
        assert isinstance(join.lookup, HostCacheLookup)
        keys = [draw.sample(range(1_100), 100) for _ in range(10)]
        expected = [[f"n{key}" if key < 1_000 else None for key in part] for part in keys]
        assert [names(one) for one in join.run(batch(*part) for part in keys)] == expected
        assert counts(join, "failures", "dropped", "unstored") == (0, 0, 0)
        join.lookup.disconnect()

    in_processes(8, work)
    requested = Counter((tmp_path / "log").read_text().split())
    assert len(requested) > 900
    assert max(requested.values()) <= 2
    assert files_of(store, ".tmp") == []


def test_a_store_without_write_access_or_claims_is_read(worker, tmp_path, monkeypatch):
    source = Names()
    all_names(worker(source), batch(1, 2))
    make_read_only(monkeypatch)
    other = worker(source)
    assert all_names(other, batch(1, 2, 3)) == ["n1", "n2", "n3"]
    assert source.requested == [[1, 2], [3]]
    assert counts(other, "hits", "failures", "unstored") == (2, 0, 1)


def fault_removed(path, patch):
    # The store may be writing to it.
    until(lambda: shutil.rmtree(path, ignore_errors=True) or not path.exists())


def fault_replaced(path, patch):
    fault_removed(path, patch)
    path.write_text("a file")


def fault_garbage(path, patch):
    for file in path.rglob("*.*"):
        with suppress(FileNotFoundError):
            file.write_bytes(os.urandom(60))


def fault_truncated(path, patch):
    for file in path.rglob("*.*"):
        with suppress(FileNotFoundError):
            os.truncate(file, file.stat().st_size // 2)


def fault_full(path, patch):
    def refuse(folder, name, parts):
        raise OSError(28, "No space left on device")

    patch.setattr("lookupcache.store.folder_files._write", refuse)


def fault_foreign(path, patch):
    (path / "lookupcache-1").chmod(0o777)


FAULTS = [fault_removed, fault_replaced, fault_garbage, fault_truncated, fault_full, fault_foreign]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore:.*lookups go on without 'lookup.cache.store'")
def test_rows_are_right_whatever_happens_to_the_folder(worker, fault, tmp_path, monkeypatch):
    """It happens while the first keys are requested; then to a worker that finds their entries, or does not."""
    path = tmp_path / "store"

    class Faulty(Names):
        done = False

        def lookup(self, request, keys):
            if not self.done:
                self.done = True
                fault(path, monkeypatch)
            return super().lookup(request, keys)

    first = worker(Names(), store_name="mine")
    all_names(first, batch(100, 101))
    first.lookup.source.flush()
    join = worker(Faulty(), store_name="mine")
    assert all_names(join, [batch(1, 2, 100, 2_000), batch(1, 3, 101)]) == [
        "n1", "n2", "n100", None, "n1", "n3", "n101",
    ]  # fmt: skip
    after = worker(Names(), store_name="mine")
    # Key 4 is written in any case: the worker before may have written its keys before the fault had an effect.
    assert all_names(after, batch(1, 2, 3, 4, 100, 2_000)) == ["n1", "n2", "n3", "n4", "n100", None]
    after.lookup.source.flush()  # A write that fails is counted when it was tried.
    failed, dropped, unstored, hits = counts(after, "failures", "dropped", "unstored", "hits")
    assert (failed > 0) == (fault in (fault_replaced, fault_foreign))
    assert unstored or fault is not fault_full
    assert (dropped > 0) == (fault in (fault_garbage, fault_truncated))
    # What is written in the moment in which the folder is removed may be lost with it.
    assert (hits > 0) == (fault not in (fault_replaced, fault_foreign)) or fault is fault_removed


def test_a_changed_key_is_removed_for_all_hosts(worker):
    source = ReportsChanges()
    one = worker(source, store_name="mine")
    assert all_names(one, batch(1, 2)) == ["n1", "n2"]
    source.name, source.changes = "m", (2,)
    assert all_names(one, batch(1, 2)) == ["n1", "m2"]
    other = Names()
    assert all_names(worker(other, store_name="mine"), batch(1, 2)) == ["n1", "m2"]
    assert other.requested == []


def test_a_filled_cache_is_shipped_with_a_job(tmp_path, monkeypatch):
    """The example of docs/sharing.md: it is filled once, packed, and unpacked where the job runs."""
    calls = []

    def geocode(address):
        calls.append(address)
        return {"lat": 52.0, "lon": len(address)}

    filled = cached(LookupConfig(cache="LRU", store=str(tmp_path / "places"), store_name="places-1", store_timeout=10))(
        geocode
    )
    found = [filled(address) for address in ("Dam 1", "Rokin 2")]
    filled.close()
    with tarfile.open(tmp_path / "places.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "places", ".")
    shutil.rmtree(tmp_path / "places")
    unpacked = tmp_path / "job" / "places"
    with tarfile.open(tmp_path / "places.tar.gz") as archive:
        archive.extractall(unpacked, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # Since 3.11.4.
    monkeypatch.setenv("PLACES", str(unpacked))
    job = cached(LookupConfig(cache="LRU", store="env:PLACES", store_name="places-1", store_timeout=10))(geocode)
    assert [job(address) for address in ("Dam 1", "Rokin 2")] == found
    assert calls == ["Dam 1", "Rokin 2"]
    assert job.metrics().store_hits == 2
    job.close()


def test_collected_rows_are_written_when_a_task_ends(worker, monkeypatch, tmp_path):
    """A worker's process may end without any notice."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stores = [new_store("put", tmp_path) for _ in range(2)]
    opened = iter(stores)
    monkeypatch.setattr("lookupcache.store.row_store.open_store", lambda *given: next(opened))
    source = Names()
    one = worker(source)
    [found] = [names(joined) for joined in one.run([batch(1, 2)])]
    assert stores[0].is_flushed
    assert all_names(worker(source), batch(1, 2, 3)) == [*found, "n3"]
    assert source.requested == [[1, 2], [3]]
