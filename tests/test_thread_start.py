"""A process that has mapped as much memory as it may: a thread cannot be started, and nothing waits for it for ever."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from time_limit import LIMIT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit of the address space is Linux's")

ROOT = Path(__file__).parent.parent

PROGRAM = """
import resource, sys, threading
from lookupcache import cached
from lookupcache.executor.call_group import run_async
from lookupcache.executor.thread_slots import ThreadSlots

room, start = int(sys.argv[1]), sys.argv[2]
# Its stack is kept for the next thread, as a forked worker keeps those of its daemon.
first = threading.Thread(target=list)
first.start(), first.join()

async def one():
    return "started"

starts = {"slots": lambda: cached(async_=True)(lambda: "started")(), "loop": lambda: run_async(one())}
if start == "loop":
    import asyncio
    asyncio.new_event_loop().close()
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + room * 2**20,) * 2)
try:
    print(starts[start]())
except RuntimeError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["slots", "loop"])
@pytest.mark.parametrize(
    ("room", "printed"), [(-50, "'spark.executor.pyspark.memory'"), (0, "no memory for it"), (64, "started")]
)
def test_without_memory_a_thread_is_an_error(room, printed, start):
    program = [sys.executable, "-c", PROGRAM, str(room), start]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert printed in ended.stdout, ended


DAEMON = """
import os, resource, threading
import pyarrow.dataset, pyspark.worker
from lookupcache import daemon

pyarrow.array(range(100_000)).cast("string")
daemon.limit_own_memory()
limit = int(os.environ["PYSPARK_EXECUTOR_MEMORY_MB"]) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))  # as Spark's worker does
block = bytearray(60 << 20)
thread = threading.Thread(target=list)
thread.start(), thread.join()
try:
    bytearray(200 << 20)
except MemoryError:
    print("limited")
"""


@pytest.mark.slow
def test_a_workers_memory_limit_excludes_memory_of_its_daemon():
    line = [sys.executable, "-c", DAEMON]
    environment = {**os.environ, "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER", "PYSPARK_EXECUTOR_MEMORY_MB": "100"}
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.stdout == "limited\n", ended


def test_no_thread_of_a_worker_is_started_otherwise():
    folders = ("decorator", "executor", "flow", "functions", "host", "latest", "resilience", "store", "worker")
    files = [path for folder in folders for path in (ROOT / "lookupcache" / folder).glob("*.py")]
    files += [ROOT / "lookupcache" / "background.py", *ROOT.glob("connectors/lookupcache_*/*.py")]
    texts = {path.name: path.read_text() for path in files}
    assert sum("start_thread(" in text for text in texts.values()) > 6
    started = {name: re.findall(r"Thread\(.*\)\.start\(\)|thread\.start\(\)", text) for name, text in texts.items()}
    assert {name: found for name, found in started.items() if found} == {}
