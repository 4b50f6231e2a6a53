"""A test that hangs or ends its process fails alone, with stacks; all other tests are run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import hung
import pytest
from py4j.protocol import Py4JJavaError

CONFTEST = """
import hung, pytest
from replacing import ReplacingScheduling

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with hung.watched(1.0):
        return (yield)

def pytest_xdist_make_scheduler(config, log):
    return ReplacingScheduling(config, log)
"""
FILES = {
    "test_one.py": "def test_first(): pass\ndef test_bad():\n    {bad}\ndef test_last(): pass",
    "test_two.py": "def test_bad():\n    {bad}",
    "test_three.py": "def test_bad():\n    {bad}\ndef test_last(): pass",
    "test_four.py": "def test_only(): pass",
}
HANGS = {
    "ends its process": ("import os; os._exit(3)", "crashed while running"),
    "waits": ("import threading; threading.Event().wait()", "did not end within"),
    "waits in native code": (
        "from ctypes import PyDLL; lock = PyDLL(None).pthread_mutex_lock; m = bytes(64); lock(m); lock(m)",
        "Timeout",
    ),
}
PROGRAM = """
import time
def sleeps():
    print("ready", flush=True)
    time.sleep(600)
sleeps()
"""


@pytest.mark.extended
@pytest.mark.parametrize(("bad", "shown"), HANGS.values(), ids=HANGS)
def test_other_tests_are_run(tmp_path, bad, shown):
    for name, text in {**FILES, "conftest.py": CONFTEST}.items():
        (tmp_path / name).write_text(text.format(bad=bad) if name in FILES else text)
    limits = ["-o", "faulthandler_timeout=4", "-o", "faulthandler_exit_on_timeout=true"]
    line = [sys.executable, "-m", "pytest", "-n2", "--dist", "loadfile", *limits, "-p", "no:cacheprovider", tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(Path(hung.__file__).parent), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "3 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    assert shown in done.stdout + done.stderr
    assert done.stdout.count("test_bad") >= 3


@pytest.mark.extended
def test_a_worker_shows_its_stack_and_ends():
    line = [sys.executable, "-c", PROGRAM, "lookupcache.daemon"]
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as worker:
        assert worker.stdout.readline() == "ready\n"
        with hung.watched(0.1):
            _, shown = worker.communicate()
    assert "in sleeps" in shown
    assert worker.returncode == -signal.SIGABRT


def sleeps(batches):
    import time

    next(batches)
    time.sleep(600)
    yield from batches


@pytest.mark.extended
def test_a_job_whose_worker_hangs_fails(spark):
    with hung.watched(3.0, again=3.0), pytest.raises(Py4JJavaError, match="Python worker exited unexpectedly"):
        spark.range(3).mapInArrow(sleeps, "id BIGINT").collect()
    assert spark.range(3).mapInArrow(lambda batches: batches, "id BIGINT").count() == 3
