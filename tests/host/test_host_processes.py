"""Many processes at once: one request per key, and all of them see right rows."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from host_processes import KINDS, in_processes, keys_of, look_up, new_cache, right, store

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
    wanted, until = batch, time.monotonic() + 30
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
        while not cache.has_news and cache.claimants(keys_of(wanted, kind)).all():
            os.sched_yield()
    return batch


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


def churn(path, number: int, limits: dict, most_bytes: float) -> None:
    """Publish, refresh, invalidate and read at random; what is found must be right, and the files small enough."""
    draw = random.Random(number)
    cache = new_cache(path, **limits)
    for _ in range(15):
        batch = draw.sample(range(2_000), 40)
        found = look_up(cache, batch)
        assert found == right(found)
        store(cache, batch)
        if draw.random() < 0.1:
            cache.invalidate(keys_of(batch[:5]))
        assert sum(sizes(cache)) <= most_bytes
    assert cache.counters["host_failures"] == cache.counters["host_dropped_files"] == 0, cache.counters
    cache.close()


def sizes(cache) -> list[int]:
    found = []
    for name in os.listdir(cache._path):
        try:
            found.append(os.stat(os.path.join(cache._path, name)).st_size)
        except FileNotFoundError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"rows": 500.0}, {"bytes": 600_000.0}, {"write_seconds": 0.05}], ids=str)
def test_processes_that_write_and_read_at_once_stay_within_the_limits(limits, tmp_path):
    most = 1.1 * limits["bytes"] if "bytes" in limits else np.inf
    in_processes(PROCESSES, lambda number: churn(tmp_path / "cache", number, limits, most))
    after = new_cache(tmp_path / "cache", **limits)
    found = look_up(after, range(2_000))
    assert found == right(found)
    if "rows" in limits:
        weight = sum(max(len(rows), 1) for rows in found.values())
        assert weight <= 500 * 1.1
    after.close()


def test_a_folder_that_threads_list_at_the_same_time_has_all_its_names(tmp_path):
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
