"""The connection that is opened before the first call: whose error it is, that it is used, and that none is left."""

from __future__ import annotations

import asyncio
import threading

import pytest
from openings import ListedOpenings
from time_limit import LIMIT

from lookupcache.executor.call_group import CallGroup, run_async
from lookupcache.executor.coroutines import Coroutines
from lookupcache.executor.threads import Threads


class Source(ListedOpenings):
    async def answer(self, call):
        return call


def executor_of(kind, source, capacity=1, timeout=20.0):
    late = TimeoutError("late")
    if kind == "threads":
        return Threads(capacity, lambda _, call: call, source.open, timeout, lambda: late, source.close)
    return Coroutines(capacity, source.answer, source.open_async, source.close_async, timeout, lambda: late)


def answers(executor, *calls):
    group = CallGroup(list(calls))
    executor.start(group)
    while not executor.take_completed(wait=True):
        pass
    return group.answers


def wait_until_failed(executor):
    """Wait until the opening has ended: with one slot, an executor's next job or callback runs after it."""
    if isinstance(executor, Coroutines):
        run_async(asyncio.wait([executor._opening]))
    else:
        executor._slots.join(LIMIT)


def let_time_pass(executor, seconds):
    """Make the opening, which is under way or has ended, so much older."""
    if isinstance(executor, Coroutines):
        executor._ahead_deadline -= seconds
        executor._ahead_until -= seconds
    else:
        executor._ahead.deadline -= seconds
        executor._ahead._ended -= seconds


both = pytest.mark.parametrize("kind", ["threads", "coroutines"])


@both
def test_calls_use_the_connection_that_was_opened_ahead(kind):
    source = Source()
    executor = executor_of(kind, source)
    executor.open_ahead()
    assert answers(executor, 1, 2) == [1, 2]
    executor.open_ahead()
    assert answers(executor, 3) == [3]
    executor.close()
    assert source.ended.wait(LIMIT)
    assert (source.opened, source.closed) == (1, 1)


@both
@pytest.mark.parametrize("error", [OSError("refused"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_failed_opening_fails_the_first_call_but_not_the_next(kind, error):
    source = Source(error)
    executor = executor_of(kind, source)
    executor.open_ahead()
    assert source.begun.wait(LIMIT)
    wait_until_failed(executor)
    assert answers(executor, 1) == [error]
    assert answers(executor, 2) == [2]
    assert source.opened == 1
    executor.close()


@both
def test_an_error_that_no_call_met_is_forgotten_by_the_next_task(kind):
    source = Source(OSError("refused"))
    executor = executor_of(kind, source)
    executor.open_ahead()
    assert source.begun.wait(LIMIT)
    wait_until_failed(executor)
    executor.open_ahead()
    assert answers(executor, 1) == [1]
    executor.close()


@both
def test_an_opening_error_older_than_the_timeout_fails_no_call(kind):
    source = Source(OSError("refused"))
    executor = executor_of(kind, source)
    executor.open_ahead()
    assert source.begun.wait(LIMIT)
    wait_until_failed(executor)
    let_time_pass(executor, 50.0)
    assert answers(executor, 1) == [1]
    executor.close()


@both
def test_a_hanging_opening_times_out_the_first_call_not_the_next(kind):
    source = Source("hang")
    executor = executor_of(kind, source, timeout=0.05)
    executor.open_ahead()
    assert source.begun.wait(LIMIT)
    [late] = answers(executor, 1)
    assert isinstance(late, TimeoutError)
    assert answers(executor, 2) == [2]
    source.release.set()
    executor.close()


@both
@pytest.mark.parametrize("next_task", [False, True], ids=["call", "task"])
def test_an_opening_that_hung_long_ago_does_not_delay_calls(kind, next_task):
    source = Source("hang")
    executor = executor_of(kind, source)
    executor.open_ahead()
    assert source.begun.wait(LIMIT)
    let_time_pass(executor, 50.0)
    if next_task:
        executor.open_ahead()
    assert answers(executor, 1) == [1]
    source.release.set()
    executor.close()


def test_a_first_call_on_several_threads_waits_for_the_opening():
    source = Source("hang")
    executor = executor_of("threads", source, capacity=3)
    executor.open_ahead()
    assert source.begun.wait(LIMIT)
    group = CallGroup([1])
    executor.start(group)
    source.release.set()
    assert executor.take_completed(wait=True) == [group]
    assert source.opened == 1
    executor.close()


@both
def test_an_executor_closed_during_opening_leaves_no_connection(kind):
    source = Source("hang")
    executor = executor_of(kind, source)
    executor.open_ahead()
    assert source.begun.wait(LIMIT)
    closing = threading.Thread(target=executor.close)
    closing.start()
    source.release.set()
    closing.join(LIMIT)
    assert source.ended.wait(LIMIT)
    assert source.opened <= source.closed


def test_a_failed_opening_fails_no_call_after_one_has_connected():
    source = Source("hang")
    source.openings = ["hang"]
    executor = executor_of("threads", source, capacity=3)
    executor.open_ahead()
    assert source.begun.wait(LIMIT)
    assert answers(executor, 1, 2) == [1, 2]
    source.release.set()
    executor._slots.join(LIMIT)
    assert answers(executor, 3, 4, 5) == [3, 4, 5]
    executor.close()
