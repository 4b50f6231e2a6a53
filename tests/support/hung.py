"""What a test that hangs waits for: the stacks of Java and of Spark's Python workers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

DAEMONS = ("lookupcache.daemon", "pyspark.daemon")


@contextmanager
def watched(seconds: float, again: float = 30.0) -> Iterator[None]:
    """Show where the processes below this one stand if the block takes longer, and end Spark's Python workers.

    Java prints its stacks at SIGQUIT, and Python at SIGABRT, where PYTHONFAULTHANDLER is set. A task whose worker ends
    fails, and so does the test, whose captured output then has the stacks. Spark may repeat the task, so this is done
    ``again`` after so many seconds.
    """

    def show(*_: object) -> None:
        show_stacks()
        signal.setitimer(signal.ITIMER_REAL, again)

    before = signal.signal(signal.SIGALRM, show)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def show_stacks(pid: int | None = None, seconds_between: float = 3.0) -> None:
    """Send these signals to the processes below one; to Java first, whose stacks tell which worker it waits for.

    A daemon is left alone while it has workers, which would go on without it.
    """
    for process in _below(pid, lambda words: words[0].endswith("java")):
        process.send_signal(signal.SIGQUIT)
        time.sleep(seconds_between)
    of_python = _below(pid, lambda words: any(word.endswith(DAEMONS) for word in words))
    with_workers = {process.ppid() for process in of_python}
    for process in of_python:
        if process.pid not in with_workers:
            process.send_signal(signal.SIGABRT)


def _below(pid: int | None, matches: Callable[[list[str]], bool]) -> list[psutil.Process]:
    """Return the processes below one whose command line matches."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if (words := process.cmdline()) and matches(words):
                found.append(process)
    return found
