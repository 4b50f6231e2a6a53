"""Many processes at once: one request per key, and all of them see right rows."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from host_processes import KINDS, PLAN, SCHEMA, in_processes, keys_of, look_up, new_cache, right, store
from time_limit import LIMIT

from lookupcache.cache.limits import Limits
from lookupcache.config import LookupConfig
from lookupcache.host.folder import Folder
from lookupcache.host.host_cache import HostCache

PROCESSES = 16
KEYS = 600


def request_all(path, number: int, kind: str, requested: str) -> None:
    """Look up all keys in random batches, as a worker does; note in a file which keys were requested."""
    draw = random.Random(number)
    cache = new_cache(path, kind, rows=10_000.0)
    seen: set[int] = set()
    with open(f"{requested}-{number}", "w") as log:
        while len(seen) < KEYS:
            batch = draw.sample(range(KEYS), 60)
            seen.update(fetch(cache, batch, kind, log))
    cache.close()


def fetch(cache: HostCache, batch: list[int], kind: str, log) -> list[int]:
    """Return a batch's keys when all of them are there: found, requested, or requested by another process."""
    wanted, until = batch, time.monotonic() + LIMIT
    while wanted:
        assert time.monotonic() < until
        found = look_up(cache, wanted, kind)
        assert found == right(found)
        wanted = [key for key in wanted if key not in found]
        if not wanted:
            break
        mine = cache.claim(keys_of(wanted, kind), 30)
        claimed = [key for key, own in zip(wanted, mine.tolist(), strict=True) if own]
        if claimed and cache.has_news:
            cache.release(keys_of(claimed, kind))
            continue
        if claimed:
            log.write("".join(f"{key}\n" for key in claimed))
            store(cache, claimed, kind)
            cache.release(keys_of(claimed, kind))
        while not cache.has_news and cache.claim_states(keys_of(wanted, kind)).claimants.all():
            os.sched_yield()
    return batch


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sixteen_processes_request_each_key_once(kind, tmp_path):
    requested = str(tmp_path / "asked")
    in_processes(PROCESSES, lambda number: request_all(tmp_path / "cache", number, kind, requested))
    lines = [line for number in range(PROCESSES) for line in Path(f"{requested}-{number}").read_text().split()]
    counts = Counter(map(int, lines))
    assert counts == dict.fromkeys(range(KEYS), 1)
    after = new_cache(tmp_path / "cache", kind)
    assert look_up(after, range(KEYS), kind) == right(range(KEYS))
    assert len(after._segments.newest) < 40
    after.close()


def churn(path, number: int, limits: dict) -> None:
    """Publish, refresh, invalidate and read at random; what is found must be right."""
    draw = random.Random(number)
    cache = new_cache(path, **limits)
    for _ in range(15):
        batch = draw.sample(range(2_000), 40)
        found = look_up(cache, batch)
        assert found == right(found)
        store(cache, batch)
        if draw.random() < 0.1:
            cache.invalidate(keys_of(batch[:5]))
    assert cache.counters["host_failures"] == cache.counters["host_dropped_files"] == 0, cache.counters
    cache.close()


def bytes_of(path: Path) -> int:
    """Return the bytes of all files of the caches in a folder, also of those that are being written."""
    time.sleep(0.001)  # Those who write them need the time.
    size = 0
    for file in path.glob("*/*"):
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"rows": 500.0}, {"bytes": 600_000.0}, {"write_seconds": 0.05}], ids=str)
def test_concurrent_readers_and_writers_stay_within_the_limits(limits, tmp_path):
    path, sizes = tmp_path / "cache", [0]
    watch = (lambda: sizes.append(bytes_of(path))) if "bytes" in limits else None
    in_processes(PROCESSES, lambda number: churn(path, number, limits), watch)
    assert max(sizes) <= 1.1 * limits.get("bytes", np.inf)
    after = new_cache(path, **limits)
    # A process does not evict while another process does, so the last one may have left entries over the limit.
    store(after, [0])
    found = look_up(after, range(2_000))
    assert found == right(found)
    if "rows" in limits:
        weight = sum(max(len(rows), 1) for rows in found.values())
        assert weight <= 500 * 1.1
    after.close()


class BusyCache(HostCache):
    """A cache that may only fail to get a lock in time, as it must where many processes write on few cores."""

    def _count_failure(self, error: Exception) -> None:
        if not isinstance(error, TimeoutError):
            raise error
        super()._count_failure(error)


def overfill(path: Path, number: int, limit: float) -> None:
    """Publish large batches until three times as much was written as all processes together may store."""
    draw, limits = np.random.default_rng(number), Limits(bytes=limit)
    cache = BusyCache(path, PLAN, KINDS["int"], SCHEMA, limits)
    for _ in range(int(3 * limit / PROCESSES / (8_000 * 250))):
        keys = np.unique(draw.integers(0, 10_000_000, 8_000))
        rows = pa.table({"id": [str(key).ljust(200) for key in keys], "match": keys})
        cache.publish(keys_of(keys), rows, np.ones(len(keys), np.int64), cache.clock(), cache.position)
    cache.close()


@pytest.mark.slow
@pytest.mark.nightly
def test_the_default_limit_of_bytes_holds_at_any_moment(tmp_path):
    """While 16 processes write more than fits, evict, merge, and build the index again."""
    limit = Limits.of(LookupConfig(cache="LRU"), "host").bytes
    path, sizes = tmp_path / "cache", [0]
    in_processes(PROCESSES, lambda number: overfill(path, number, limit), lambda: sizes.append(bytes_of(path)))
    assert 0.8 * limit <= max(sizes) <= 1.1 * limit


def test_threads_that_list_a_folder_at_once_see_all_names(tmp_path):
    path = tmp_path / "folder"
    folder = Folder(path)
    wanted = {f"{number}-{'x' * 200}" for number in range(300)}
    for name in wanted:
        (path / name).touch()
    wrong = []

    def list_often():
        wrong.extend(1 for _ in range(100) if set(folder.names()) != wanted)

    threads = [threading.Thread(target=list_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder.close()
    assert not wrong


def test_a_folder_that_was_removed_has_no_names(tmp_path):
    folder = Folder(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    assert folder.names() == []
    folder.close()
