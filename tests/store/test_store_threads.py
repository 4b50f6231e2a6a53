"""The threads of a store: they cannot be started, what they run fails, or others wait for them when they are to end."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from folder_stores import MINE, get, name_of, put
from time_limit import LIMIT

from lookupcache.flow.held_claims import HeldClaims
from lookupcache.metrics import Counters
from lookupcache.resilience.policy import Permit
from lookupcache.store.cluster_rate import _complete, _Queue
from lookupcache.store.guard import GuardedStore
from lookupcache.store.timed_store import TimedStore
from lookupcache.store.writer import MOST_BYTES, Writer, flush_names


@pytest.fixture
def no_threads(monkeypatch):
    """Return a context in which no thread can be started, as at exit or where a process has too many."""

    def fail(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        yield patched


def test_the_next_call_starts_a_thread_that_failed_to_start(no_threads, stores):
    renewed = threading.Event()
    claims = HeldClaims(lambda names: renewed.set(), 100, 0.001)
    queue = _Queue(lambda waiting: [_complete(one.future, Permit()) for one in waiting] and None, "queue")
    timed, collected = TimedStore(stores("put"), 60), stores("put")
    claims.add([b"a"], MINE)
    put(collected, [1])
    for call in (lambda: queue.add(60), lambda: timed.get([name_of(1)])):
        with pytest.raises(RuntimeError, match="can't start"):
            call()
    no_threads.undo()
    claims.add([b"b"], MINE)
    assert renewed.wait(LIMIT)
    claims.remove([b"a", b"b"], MINE)
    assert queue.add(60).result(LIMIT).is_granted
    assert timed.get([name_of(1)]).entries == [None]
    put(collected, [2])
    assert collected._background.has_thread
    assert get(collected, 1, 2) == [b"entry 1", b"entry 2"]
    for one in (claims, timed, collected):
        one.close()
    queue.close(60)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_task_of_the_writer_that_fails_harms_no_other(error):
    writer, written = Writer(), []

    def fail():
        raise error

    writer.add([b"a"], 1, fail)
    writer.add([b"a", b"b"], 1, lambda: written.append("in the thread"))
    assert writer.flush(60)
    assert (written, writer.has([b"a", b"b"])) == (["in the thread"], False)


def test_an_immediate_write_fails_quietly():
    Writer().add([b"a"], MOST_BYTES + 1, lambda: 1 / 0)


def test_writers_may_be_made_while_others_are_asked():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            made = threads.submit(lambda: [len([Writer() for _ in range(20)]) for _ in range(100)])
            while not made.done():
                flush_names([b"a"], 60)
    finally:
        sys.setswitchinterval(interval)


def test_a_queue_that_is_closed_serves_those_who_wait():
    grants = threading.Event()

    def serve(waiting):
        for one in waiting if grants.is_set() else ():
            _complete(one.future, Permit())
        return 0.001 if waiting else None

    queue = _Queue(serve, "queue")
    waiting = queue.add(60)
    queue.close(60)
    grants.set()
    assert waiting.result(LIMIT).is_granted
    queue.close(60)
    assert not queue._background.has_thread


def test_at_the_end_of_the_interpreter_the_store_is_left_alone(stores, monkeypatch):
    """As by a coroutine that is dropped then: the thread that it would wait for does not run any more."""
    counters = Counters()
    store = GuardedStore(TimedStore(stores(), 60), counters, "Test", str, 60, 60)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "is_finalizing", lambda: True)
        assert not store.invalidate([name_of(1)])
    assert (store.invalidate([name_of(1)]), counters["store_failures"]) == (True, 0)
    store.close()
