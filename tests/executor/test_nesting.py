"""Which call waits for which: a call that would wait for itself is an error, at once, and no other is."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from contextvars import copy_context

import pytest

from lookupcache.executor import nesting
from lookupcache.executor.nesting import (
    NestedCall,
    current_call,
    is_within,
    open_call,
    refuse_close_within,
    run_within,
    set_current_call,
    waiting_for,
)


class Call(NestedCall):
    def __init__(self, name="a", outer=None, maker=None):
        super().__init__()
        self.name, self.outer, self.maker = name, outer, maker

    def describe(self):
        return f"key {self.name}"


def test_code_runs_in_the_innermost_call_until_that_returns():
    outer, inner = Call(), Call()
    assert current_call() is None
    with run_within(outer):
        with contextlib.suppress(OSError), run_within(inner):
            assert current_call() is inner
            raise OSError
        assert current_call() is outer
    assert current_call() is None
    copy_context().run(set_current_call, inner)
    assert current_call() is None


@pytest.mark.parametrize(("ended", "found"), [("", "inner"), ("inner", "middle"), ("inner middle", "outer"),
                                              ("middle", "inner"), ("inner middle outer", None)])  # fmt: skip
def test_a_call_that_has_ended_opens_no_other(ended, found):
    calls = {"outer": Call()}
    calls["middle"] = Call(outer=calls["outer"])
    calls["inner"] = Call(outer=calls["middle"])
    for name in ended.split():
        calls[name].ended.open()
    with run_within(calls["inner"]):
        assert open_call() is calls.get(found)
    assert open_call() is None


def test_code_is_within_each_call_around_it_that_has_not_ended():
    makers = [object() for _ in range(4)]
    outer = Call(maker=makers[0])
    middle = Call(outer=outer, maker=makers[1])
    inner = Call(outer=middle, maker=makers[2])
    middle.ended.open()
    with run_within(inner):
        assert [is_within(maker) for maker in makers] == [True, False, True, False]
        with pytest.raises(RuntimeError, match=r"'close' was called inside a call .*\n\nHint: Call it after the call"):
            refuse_close_within(makers[0])
        refuse_close_within(makers[1])
    assert not is_within(makers[0])


@contextlib.contextmanager
def waits(call, other):
    """Let a call wait for another, in a context of its own."""
    with run_within(call), waiting_for(other):
        yield


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_call_that_waits_for_itself_through_others_is_an_error(length):
    calls = [Call(str(number)) for number in range(length)]
    with contextlib.ExitStack() as stack:
        for call, other in itertools.pairwise(calls):
            stack.enter_context(waits(call, other))
            stack.enter_context(waits(call, Call("another")))
        with run_within(calls[-1]):
            for _ in range(2):
                with pytest.raises(RecursionError, match=r"(?s)call for key 0 waits for itself.*Hint: .*'__wrapped__'"):
                    waiting_for(calls[0]).__enter__()
            assert not calls[-1].waits_for
            with waiting_for(Call("elsewhere")):
                pass
    if length > 1:
        # None waits any more.
        with waits(calls[-1], calls[0]):
            assert calls[-1].waits_for == [calls[0]]


def test_calls_may_wait_for_one_that_others_wait_for_too():
    first, last = Call(), Call()
    with contextlib.ExitStack() as stack:
        before = [first, first]
        # Each of a pair waits for both of the next: a million million ways from the first to the last.
        for _ in range(40):
            after = [Call(), Call()]
            for call in before:
                for other in after:
                    stack.enter_context(waits(call, other))
            before = after
        stack.enter_context(waits(before[0], last))
        with waits(Call(), first):
            pass
        with run_within(last), pytest.raises(RecursionError), waiting_for(first):
            pass


def test_a_wait_outside_of_calls_or_for_no_call_is_not_recorded():
    call = Call()
    with waiting_for(call):
        assert not call.waits_for
    with run_within(call), waiting_for(None):
        assert not call.waits_for


def test_a_wait_that_fails_or_is_cancelled_is_over():
    call, other = Call(), Call()
    for error in (OSError, asyncio.CancelledError, GeneratorExit):
        with contextlib.suppress(error), waits(call, other):
            assert call.waits_for == [other]
            raise error
        assert not call.waits_for


def test_a_forked_process_does_not_inherit_a_held_lock():
    held = nesting._lock
    try:
        nesting._reset_after_fork()
        assert nesting._lock is not held
        assert nesting._lock.acquire(blocking=False)
        nesting._lock.release()
    finally:
        nesting._lock = held
