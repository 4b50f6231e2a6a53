"""A test that hangs fails alone, with the stacks of its threads, of Java and of Spark's Python workers."""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

DAEMONS = ("lookupcache.daemon", "pyspark.daemon")


@contextmanager
def watched(seconds: float, again: float = 30.0) -> Iterator[None]:
    """Fail a block that takes longer, and show the stacks of this process and of those below it.

    Java prints its stacks at SIGQUIT, and Python at SIGABRT, where PYTHONFAULTHANDLER is set. A task whose worker ends
    fails, and so does a test that waits for its job. Spark may repeat the task, so the workers are ended once more
    after ``again`` seconds. After that, or at once where there are no workers, the block itself raises.
    """
    alarms = 0

    def fail(*_: object) -> None:
        nonlocal alarms
        alarms += 1
        faulthandler.dump_traceback(sys.__stderr__)
        if show_stacks() and alarms <= 2:
            signal.setitimer(signal.ITIMER_REAL, again)
            return
        pytest.fail(f"The test did not end within {seconds:g} seconds. The stacks are in its output.", pytrace=True)

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def show_stacks(pid: int | None = None, seconds_between: float = 3.0) -> bool:
    """Send these signals to the processes below one; return whether there were Python workers.

    Java is first, since its stacks tell which worker it waits for. A daemon is left alone while it has workers, which
    would go on without it.
    """
    for process in _below(pid, lambda words: words[0].endswith("java")):
        process.send_signal(signal.SIGQUIT)
        time.sleep(seconds_between)
    of_python = _below(pid, lambda words: not set(DAEMONS).isdisjoint(words))  # Java has a longer word with the name.
    with_workers = {process.ppid() for process in of_python}
    ended = [process for process in of_python if process.pid not in with_workers]
    for process in ended:
        process.send_signal(signal.SIGABRT)
    return bool(ended)


def _below(pid: int | None, matches: Callable[[list[str]], bool]) -> list[psutil.Process]:
    """Return the processes below one whose command line matches."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if (words := process.cmdline()) and matches(words):
                found.append(process)
    return found
