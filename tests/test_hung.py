"""A test that hangs shows the stacks of Java and of Python's workers, and its task fails."""

import os
import signal
import subprocess
import sys

import hung
import pytest
from py4j.protocol import Py4JJavaError

SLEEPS = """
import time
def sleeps():
    print("ready", flush=True)
    time.sleep(600)
sleeps()
"""


def test_a_worker_shows_where_it_stands_and_ends():
    line = [sys.executable, "-c", SLEEPS, "lookupcache.daemon"]
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as worker:
        assert worker.stdout.readline() == "ready\n"
        with hung.watched(0.1):
            _, shown = worker.communicate()
    assert "in sleeps" in shown
    assert worker.returncode == -signal.SIGABRT


def test_a_block_that_ends_in_time_ends_no_process():
    with subprocess.Popen([sys.executable, "-c", "input()", "lookupcache.daemon"], stdin=subprocess.PIPE) as worker:
        with hung.watched(0.2):
            pass
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.4)
        worker.communicate(b"\n")
    assert worker.returncode == 0


def sleeps(batches):
    import time

    next(batches)
    time.sleep(600)
    yield from batches


@pytest.mark.nightly
def test_a_job_whose_worker_hangs_fails(spark):
    with hung.watched(3.0, again=3.0), pytest.raises(Py4JJavaError, match="Python worker exited unexpectedly"):
        spark.range(3).mapInArrow(sleeps, "id BIGINT").collect()
    assert spark.range(3).mapInArrow(lambda batches: batches, "id BIGINT").count() == 3
