"""The rate limit: even slots, one row of them for all processes of an executor, and files that do no harm."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lookupcache.resilience.rate_limit import _SLOT, RateLimit
from lookupcache.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["in memory", "in a file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Return where the slots are kept."""
    return tmp_path / "slots" if request.param == "in a file" else None


def test_slots_follow_each_other_evenly(path: Path | None) -> None:
    limit = RateLimit(4.0, path, FakeClock())
    assert [limit.reserve() for _ in range(4)] == [0, 0.25, 0.5, 0.75]


@pytest.mark.extended
@pytest.mark.parametrize("per_second", [1.0, 1 / 7_200, 1 / (3 * 86_400)])
def test_slots_are_as_far_off_as_they_have_to_be(path: Path | None, per_second: float) -> None:
    limit = RateLimit(per_second, path, FakeClock(1e6))
    assert [limit.reserve() for _ in range(4_000)] == pytest.approx([n / per_second for n in range(4_000)])


def test_idle_time_saves_up_no_burst(path: Path | None) -> None:
    clock = FakeClock()
    limit = RateLimit(4.0, path, clock)
    limit.reserve()
    clock.now = 100
    assert [limit.reserve() for _ in range(3)] == [0, 0.25, 0.5]
    clock.now = 100.625
    assert limit.reserve() == 0.125


def test_a_slot_that_comes_too_late_is_left_to_others(path: Path | None) -> None:
    limit = RateLimit(1.0, path, FakeClock())
    assert limit.reserve(within=0) == 0
    assert limit.reserve(within=0.5) > 0.5
    assert limit.reserve(within=1) == 1


def test_threads_get_a_slot_each(path: Path | None) -> None:
    def clock() -> float:
        time.sleep(0)  # another thread's turn
        return 0.0

    limit = RateLimit(4.0, path, clock)
    with ThreadPoolExecutor(8) as threads:
        waits = list(threads.map(lambda _: limit.reserve(), range(200)))
    assert sorted(waits) == [n / 4 for n in range(200)]


RESERVE = """
import sys
from pathlib import Path
from lookupcache.resilience.rate_limit import RateLimit
limit = RateLimit(100.0, Path(sys.argv[1]), clock=lambda: 0.0)
print("ready", flush=True)
input()
print(*[limit.reserve() for _ in range(10)])
"""


def test_processes_get_a_slot_each(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RESERVE, str(tmp_path / "slots")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(4)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 4
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    result = [process.communicate()[0] for process in processes]
    slots = sorted(float(slot) for line in result for slot in line.split())
    assert slots == pytest.approx([n / 100 for n in range(40)])


HELD = {
    "from another start of the machine": _SLOT.pack(60.0, 51.0),
    "no number": _SLOT.pack(math.nan, 0.0),
    "infinite": _SLOT.pack(math.inf, 0.0),
    "of an older make": struct.pack("<d", 60.0),
    "cut short": b"abc",
    "empty": b"",
}


@pytest.mark.parametrize("content", HELD.values(), ids=HELD)
def test_a_file_without_sense_blocks_nobody(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "slots"
    path.write_bytes(content)
    limit = RateLimit(4.0, path, FakeClock(50.0))
    assert [limit.reserve(), limit.reserve()] == [0, 0.25]


def test_a_file_that_is_removed_with_its_directory_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "of_ours"
    folder.mkdir()
    limit = RateLimit(4.0, folder / "slots", FakeClock())
    limit.reserve()
    shutil.rmtree(folder)
    assert [limit.reserve(), limit.reserve()] == [0, 0.25]


def test_a_file_removed_while_a_call_waits_for_it_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = RateLimit(4.0, tmp_path / "slots", FakeClock())
    lock = fcntl.flock

    def removed_before(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        (tmp_path / "slots").unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    assert [limit.reserve(), limit.reserve()] == [0, 0.25]


def test_outside_of_spark_the_limits_of_a_process_share_a_name() -> None:
    one, same, other = (RateLimit.of_executor(1.0, name) for name in ("shared", "shared", "other"))
    assert one.path is None
    assert [round(limit.reserve()) for limit in (one, same, other)] == [0, 1, 0]


@pytest.mark.spark
def test_workers_of_an_executor_share_one(spark: SparkSession) -> None:
    def report(_: Iterator[int]) -> Iterator[tuple[int, str]]:
        yield os.getpid(), str(RateLimit.of_executor(1.0, "a").path)

    result = spark.sparkContext.parallelize([1, 2], 2).barrier().mapPartitions(report).collect()
    assert len({worker for worker, _ in result}) == 2
    assert len({path for _, path in result}) == 1
    assert result[0][1] != str(RateLimit.of_executor(1.0, "a").path)


def test_the_file_is_in_the_executors_directory_and_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/one,{tmp_path}/two")
    limit = RateLimit.of_executor(1.0, "a")
    limit.reserve()
    assert limit.path is not None
    assert limit.path.parent == tmp_path / "one"
    assert limit.path != RateLimit.of_executor(1.0, "b").path
    assert limit.path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "slots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        RateLimit(1.0, tmp_path / "slots").reserve()
