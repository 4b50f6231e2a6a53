"""`Background`: when the thread calls the work, and when it ends."""

from __future__ import annotations

import threading

from time_limit import LIMIT

from lookupcache.background import Background


def test_the_earliest_time_counts_and_an_error_is_not_the_end():
    done = []

    def work():
        done.append(len(done))
        ran.release()
        if len(done) == 1:
            raise SystemExit
        return 0.0 if len(done) < 4 else None

    ran, background = threading.Semaphore(0), Background(work, "lookupcache-test")
    background.wake(3600)
    for _ in range(2):
        background.wake()
        assert ran.acquire(timeout=LIMIT)
    background.close(LIMIT)
    assert (done, background.has_thread) == ([0, 1, 2, 3], False)


def test_closing_drops_due_work_and_waits_for_running_work():
    begun, go_on, ended = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        go_on.wait(LIMIT)
        ended.append(True)
        return 0.0

    background = Background(work, "lookupcache-test")
    background.wake()
    assert begun.wait(LIMIT)
    background.wake()
    background.close(drop=True)
    assert background._is_closing
    go_on.set()
    background.close(LIMIT, drop=True)
    assert (ended, background.has_thread) == ([True], False)
