"""The connection that the first call opens: whose error it is, and that none is left."""

from __future__ import annotations

import threading

import pytest
from openings import ListedOpenings
from time_limit import LIMIT

from lookupcache.executor.call_group import CallGroup
from lookupcache.executor.coroutines import Coroutines
from lookupcache.executor.threads import Threads


class Source(ListedOpenings):
    async def answer(self, call):
        return call


def executor_of(kind, source, timeout=20.0):
    late = TimeoutError("late")
    if kind == "threads":
        return Threads(1, lambda _, call: call, source.open, timeout, lambda: late, source.close)
    return Coroutines(1, source.answer, source.open_async, source.close_async, timeout, lambda: late)


def answers(executor, *calls):
    group = CallGroup(list(calls))
    executor.start(group)
    while not executor.take_completed(wait=True):
        pass
    return group.answers


both = pytest.mark.parametrize("kind", ["threads", "coroutines"])


@both
def test_calls_use_the_connection_of_the_first(kind):
    source = Source()
    executor = executor_of(kind, source)
    assert answers(executor, 1, 2) == [1, 2]
    assert answers(executor, 3) == [3]
    executor.close()
    assert source.ended.wait(LIMIT)
    assert (source.opened, source.closed) == (1, 1)


@both
@pytest.mark.parametrize("error", [OSError("refused"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_failed_opening_fails_the_first_call_but_not_the_next(kind, error):
    source = Source(error)
    executor = executor_of(kind, source)
    assert answers(executor, 1) == [error]
    assert answers(executor, 2) == [2]
    assert source.opened == 1
    executor.close()


@both
def test_a_hanging_opening_times_out_the_first_call_not_the_next(kind):
    source = Source("hang")
    executor = executor_of(kind, source, timeout=0.05)
    [late] = answers(executor, 1)
    assert isinstance(late, TimeoutError)
    assert answers(executor, 2) == [2]
    source.release.set()
    executor.close()


@both
def test_an_executor_closed_during_opening_leaves_no_connection(kind):
    source = Source("hang")
    executor = executor_of(kind, source)
    executor.start(CallGroup([1]))
    assert source.begun.wait(LIMIT)
    closing = threading.Thread(target=executor.close)
    closing.start()
    source.release.set()
    closing.join(LIMIT)
    assert source.ended.wait(LIMIT)
    assert source.opened <= source.closed
