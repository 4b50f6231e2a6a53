"""The simulation of threads itself: its order is the seed's, it ends where nothing can happen, and leaves no thread."""

from __future__ import annotations

import queue
import sys
import threading
import time

import pytest
from simulation import Deadlock
from thread_simulation import simulate_threads

HERE = sys.modules[__name__]
SEEDS = range(60)


def started(*works):
    threads = [threading.Thread(target=work, name="lookupcache-test") for work in works]
    for thread in threads:
        thread.start()
    return threads


def order_of(seed):
    """Return in which order three threads came by twice."""
    seen = []

    def work(number):
        seen.append(number)
        time.sleep(1)
        seen.append(number)

    with simulate_threads(seed, HERE):
        for thread in started(*(lambda number=number: work(number) for number in range(3))):
            thread.join()
    return tuple(seen)


@pytest.mark.extended
def test_a_seed_decides_on_the_order_of_threads():
    orders = [order_of(seed) for seed in SEEDS]
    assert orders == [order_of(seed) for seed in SEEDS]
    assert len(set(orders)) > 10


def test_an_update_without_a_lock_is_lost_in_some_orders():
    def count(seed):
        counted = [0]

        def add(lock):
            with lock:
                before = counted[0]
            with lock:
                counted[0] = before + 1

        with simulate_threads(seed, HERE):
            lock = threading.Lock()
            started(lambda: add(lock), lambda: add(lock))
        return counted[0]

    assert {count(seed) for seed in SEEDS} == {1, 2}


def test_time_passes_only_where_all_wait():
    began = time.monotonic()
    with simulate_threads(1, HERE) as simulation:
        [thread] = started(lambda: time.sleep(3_600))
        assert simulation.now == 1_000.0
        thread.join(10)
        assert (thread.is_alive(), time.monotonic()) == (True, 1_010.0)
    assert simulation.now == 4_600.0
    assert time.monotonic() < began + 60


def test_waits_end_by_their_timeouts():
    with simulate_threads(1, HERE) as simulation:
        lock, condition, event, items = threading.Lock(), threading.Condition(), threading.Event(), queue.SimpleQueue()
        assert lock.acquire()
        assert not lock.acquire(timeout=1)
        with condition:
            assert not condition.wait_for(lambda: False, 1)
        assert not event.wait(1)
        with pytest.raises(queue.Empty):
            items.get(timeout=1)
        assert simulation.now == 1_004.0


def test_threads_that_wait_for_each_other_are_reported_and_end():
    def lock_both(first, second):
        with first, second:
            pass

    def run(seed):
        with simulate_threads(seed, HERE):
            one, other = threading.Lock(), threading.Lock()
            started(lambda: lock_both(one, other), lambda: lock_both(other, one))

    ends = set()
    for seed in SEEDS:
        try:
            ends.add(run(seed))
        except Deadlock as error:
            ends.add(str(error).count("test_thread_simulation.py"))
        assert not [thread for thread in threading.enumerate() if thread.name == "lookupcache-test"]
    assert ends == {None, 2}


def test_an_error_of_a_thread_is_raised_in_the_test():
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), simulate_threads(1, HERE):
        started(fail)
