"""Calls on their way, in coroutines and in threads: how many at a time, what ends them, what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from contextvars import ContextVar, copy_context
from types import SimpleNamespace

import pyarrow as pa
import pytest
from time_limit import LIMIT

from lookupcache.connector import Connector
from lookupcache.errors import LookupTimeoutError
from lookupcache.executor import thread_slots
from lookupcache.executor.call_group import CallGroup, event_loop, run_async
from lookupcache.executor.coroutines import Coroutines
from lookupcache.executor.job import Job
from lookupcache.executor.task_slots import TaskSlots
from lookupcache.executor.thread_slots import ThreadSlots
from lookupcache.executor.threads import Threads
from lookupcache.testing.checks import eventually


class Source(Connector):
    """Says how often it is opened and closed; a call of it is whatever the test gives it to run."""

    def __init__(self, counts: Counter | None = None) -> None:
        super().__init__(pa.schema([]), {})
        self.counts = Counter() if counts is None else counts

    def open(self):
        self.counts["opened"] += 1

    def close(self):
        self.counts["closed"] += 1


def threads(capacity=4, timeout=60.0, counts=None) -> Threads:
    counts = Counter() if counts is None else counts

    def opened() -> Source:
        source = Source(counts)
        source.open()
        return source

    return Threads(capacity, lambda source, call: call(), opened, timeout, lambda: LookupTimeoutError("too slow"))


def coroutines(capacity=4, timeout=60.0, counts=None) -> Coroutines:
    source = Source(counts)

    async def ask(call):
        return await call() if asyncio.iscoroutinefunction(call) else call()

    async def opened():
        source.open()

    async def closed():
        source.close()

    return Coroutines(capacity, ask, opened, closed, timeout, lambda: LookupTimeoutError("too slow"))


MAKES = {"threads": threads, "coroutines": coroutines}


@pytest.fixture(params=MAKES)
def make(request):
    made = []

    def one(*args, **more):
        made.append(MAKES[request.param](*args, **more))
        return made[-1]

    yield one
    for executor in made:
        executor.close()


def fails():
    raise ConnectionError("down")


class Own(BaseException):
    """No Exception, and none that Python knows."""


NO_EXCEPTIONS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Own]


def raises(kind, *, later=False):
    """Return a call that raises, or with ``later`` one that does so when the event loop has had a turn."""

    def call():
        raise kind("no use")

    async def call_later():
        await asyncio.sleep(0)
        raise kind("no use")

    return call_later if later else call


@pytest.mark.parametrize("kind", NO_EXCEPTIONS)
@pytest.mark.parametrize("later", [False, True])
def test_any_error_is_the_answer_of_its_call_and_the_next_runs(make, kind, later):
    executor = make(capacity=1)
    later = later and isinstance(executor, Coroutines)
    group = CallGroup([raises(kind, later=later), lambda: 2, raises(kind, later=later), fails])
    executor.start(group)
    assert executor.take_completed(wait=True) == [group]
    assert [type(answer) for answer in group.answers] == [kind, int, kind, ConnectionError]


def test_answers_come_back_in_the_order_of_the_calls(make):
    executor = make()
    group = CallGroup([lambda n=n: n * n for n in range(50)])
    executor.start(group)
    assert executor.take_completed(wait=True) == [group]
    assert group.answers == [n * n for n in range(50)]
    assert executor.in_flight == 0


def test_an_error_is_the_answer_of_its_call_alone(make):
    executor = make()
    group = CallGroup([lambda: 1, fails, lambda: 3])
    executor.start(group)
    executor.take_completed(wait=True)
    assert [group.answers[0], group.answers[2]] == [1, 3]
    assert isinstance(group.answers[1], ConnectionError)


def test_an_all_or_nothing_group_ends_with_its_first_error(make):
    executor, made = make(capacity=1), []
    group = CallGroup([lambda: 1, fails, lambda: made.append(1)], all_or_nothing=True)
    executor.start(group)
    assert executor.take_completed(wait=True) == [group]
    assert [type(answer) for answer in group.answers] == [ConnectionError] * 3
    after = CallGroup([lambda: 2])
    executor.start(after)
    assert (executor.take_completed(wait=True), after.answers, made) == ([after], [2], [])


def test_it_connects_once_when_first_wanted_and_disconnects(make):
    counts = Counter()
    executor = make(capacity=1, counts=counts)
    for _ in range(3):
        executor.start(CallGroup([lambda: 1] * 5))
        executor.take_completed(wait=True)
    assert counts == {"opened": 1}
    executor.close()
    until(lambda: counts["closed"] == 1)


def test_a_group_waits_for_its_time(make):
    executor = make()
    group, later = CallGroup([lambda: 1]), CallGroup([lambda: 2])
    executor.start_later(later, 3600)
    executor.start_later(group, 0.001)
    assert executor.take_completed(wait=True) == [group]
    executor.start(later)
    assert executor.take_completed(wait=True) == [later]


def refuse_threads(patch):
    """Let no thread be started, as where there are too many."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", refuse)


def test_a_delayed_group_that_cannot_start_ends_with_the_error(monkeypatch):
    executor, groups = threads(), [CallGroup([lambda: 1, lambda: 2], all_or_nothing=value) for value in (False, True)]
    event_loop()
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        for group in groups:
            executor.start_later(group, 0.001)
            assert executor.take_completed(wait=True, timeout=LIMIT) == [group]
            assert [type(answer) for answer in group.answers] == [RuntimeError] * 2
    assert executor.in_flight == 0
    executor.close()


def test_a_group_with_a_failed_call_ends_if_no_thread_can_start(monkeypatch):
    executor, began, goes_on = threads(capacity=2), threading.Event(), threading.Event()

    def waits_and_fails():
        began.wait(LIMIT)
        goes_on.wait(LIMIT)
        fails()

    def hangs():
        began.set()
        goes_on.wait(LIMIT)
        time.sleep(0.2)

    group = CallGroup([waits_and_fails, hangs], all_or_nothing=True)
    queued = [CallGroup([lambda: 1]), CallGroup([lambda: 2])]
    executor.start(group)
    assert began.wait(LIMIT)
    for one in queued:
        executor.start(one)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        goes_on.set()
        completed = []
        while len(completed) < 3 and (more := executor.take_completed(wait=True, timeout=LIMIT)):
            completed += more
    assert {id(one) for one in completed} == {id(one) for one in (group, *queued)}
    assert [type(answer) for answer in group.answers] == [ConnectionError] * 2
    assert [one.answers for one in queued] == [[1], [2]]
    executor.close()


def test_a_group_that_is_withdrawn_does_not_start(make):
    executor = make()
    delayed, gone = CallGroup([lambda: 1]), CallGroup([lambda: 2])
    executor.start_later(delayed, 3600)
    assert executor.withdraw(delayed)
    executor.start(delayed)
    executor.start(gone)
    assert executor.take_completed(wait=True) == [gone]
    assert not executor.withdraw(gone)


def until(true) -> None:
    """Wait until something that another thread brings about is true."""
    deadline = threading.Event()
    for _ in range(2_000):
        if true():
            return
        deadline.wait(0.005)
    raise AssertionError("It never came true.")


# ── threads ──────────────────────────────────────────────────────────────────────────────────────────────


def test_threads_make_as_many_calls_at_a_time_as_they_may():
    all_or_nothing = threading.Barrier(3)
    executor = threads(capacity=3)
    executor.start(CallGroup([lambda: all_or_nothing.wait(LIMIT)] * 6))
    [group] = executor.take_completed(wait=True)
    assert sorted(group.answers) == [0, 0, 1, 1, 2, 2]
    executor.close()


def test_each_thread_has_its_own_connector():
    all_or_nothing, counts = threading.Barrier(3), Counter()
    executor = threads(capacity=3, counts=counts)
    executor.start(CallGroup([lambda: all_or_nothing.wait(LIMIT)] * 3))
    executor.take_completed(wait=True)
    executor.close()
    until(lambda: counts == {"opened": 3, "closed": 3})


def test_a_hanging_call_times_out_and_frees_its_slot():
    released, counts = threading.Event(), Counter()
    executor = threads(capacity=1, timeout=0.02, counts=counts)
    hung, after = CallGroup([released.wait]), CallGroup([lambda: 2])
    executor.start(hung)
    assert executor.take_completed(wait=True) == [hung]
    assert isinstance(hung.answers[0], LookupTimeoutError)
    executor.start(after)
    assert (executor.take_completed(wait=True), after.answers) == ([after], [2])
    released.set()
    until(lambda: counts == {"opened": 2, "closed": 1})
    assert isinstance(hung.answers[0], LookupTimeoutError)
    executor.close()


def test_a_group_ends_at_its_deadline_before_later_groups(make):
    """A call that began later, and one whose time was over before it could begin, which is then not made."""
    released, made = threading.Event(), []

    async def hang_async():
        await asyncio.Event().wait()

    def hang():
        released.wait(LIMIT)

    executor = make(capacity=3)
    call = hang if isinstance(executor, Threads) else hang_async
    patient = CallGroup([call])
    executor.start(patient)
    groups = [CallGroup([call], deadline=time.monotonic() + 0.02), CallGroup([lambda: made.append(1)], deadline=0.0)]
    for group in groups:
        executor.start(group)
    found = []
    while len(found) < 2:
        found += executor.take_completed(wait=True)
    assert set(map(id, found)) == set(map(id, groups))
    assert [type(group.answers[0]) for group in groups] == [LookupTimeoutError] * 2
    assert made == []
    executor.cancel(patient)
    released.set()


def test_calls_that_wait_for_a_slot_are_not_late(make):
    """Many calls of one group, each in time, take longer than one may: the deadline of the group does not hold."""
    executor = make(capacity=2)
    executor.start(CallGroup([lambda: 1] * 3, deadline=0.0))
    [group] = executor.take_completed(wait=True)
    assert group.answers == [1, 1, 1]
    executor.close()


def test_a_cancelled_group_keeps_no_slot():
    released, began = threading.Event(), threading.Event()

    def hang():
        began.set()
        released.wait()

    executor = threads(capacity=1)
    hung, before, after = CallGroup([hang, fails]), CallGroup([lambda: 1]), CallGroup([lambda: 2])
    executor.start(hung)
    began.wait(LIMIT)
    executor.start(before)
    executor.cancel(hung)
    until(lambda: not before.remaining)
    assert (executor.take_completed(wait=True), before.answers) == ([before], [1])
    executor.start(after)
    assert (executor.take_completed(wait=True), executor.in_flight) == ([after], 0)
    released.set()
    executor.close()


# ── coroutines ───────────────────────────────────────────────────────────────────────────────────────────


def test_coroutines_make_as_many_calls_at_a_time_as_they_may():
    flying, capacity = Counter(), Counter()

    async def call():
        flying["now"] += 1
        capacity["ever"] = max(capacity["ever"], flying["now"])
        await asyncio.sleep(0)
        flying["now"] -= 1

    executor = coroutines(capacity=7)
    executor.start(CallGroup([call] * 40))
    executor.take_completed(wait=True)
    assert (capacity["ever"], flying["now"]) == (7, 0)
    executor.close()


def hanging(counts: Counter):
    async def hang():
        counts["began"] += 1
        try:
            await asyncio.Event().wait()
        finally:
            counts["ended"] += 1

    return hang


def test_a_cancelled_group_has_ended_when_cancel_returns():
    counts: Counter = Counter()
    executor = coroutines(capacity=3)
    hung, after = CallGroup([hanging(counts)] * 5), CallGroup([lambda: 2])
    executor.start(hung)
    until(lambda: counts["began"] == 3)
    executor.cancel(hung)
    assert counts == {"began": 3, "ended": 3}
    executor.start(after)
    assert executor.take_completed(wait=True) == [after]
    executor.close()


def test_cancel_waits_for_calls_that_take_a_moment_to_end():
    counts: Counter = Counter()

    async def hang():
        counts["began"] += 1
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            counts["ended"] += 1

    executor = coroutines(capacity=1)
    hung = CallGroup([hang])
    executor.start(hung)
    until(lambda: counts["began"] == 1)
    executor.cancel(hung)
    assert counts == {"began": 1, "ended": 1}
    executor.close()


def test_an_error_cancels_other_calls_before_its_group_completes():
    counts: Counter = Counter()
    executor = coroutines(capacity=3)
    executor.start(CallGroup([hanging(counts), hanging(counts), fails], all_or_nothing=True))
    executor.take_completed(wait=True)
    assert counts == {"began": 2, "ended": 2}
    executor.close()


def test_overdue_calls_are_cancelled_and_free_their_slots():
    counts: Counter = Counter()
    executor = coroutines(capacity=2, timeout=0.02)
    executor.start(CallGroup([hanging(counts), lambda: 1, hanging(counts), lambda: 2]))
    [group] = executor.take_completed(wait=True)
    assert [type(answer) for answer in group.answers] == [LookupTimeoutError, int, LookupTimeoutError, int]
    assert counts == {"began": 2, "ended": 2}
    executor.close()


def test_a_connection_that_hangs_is_overdue_too():
    hangs = iter([True, False])

    async def opened():
        if next(hangs):
            await asyncio.Event().wait()

    async def ask(call):
        return call

    async def closed():
        pass

    executor = Coroutines(1, ask, opened, closed, 0.02, lambda: LookupTimeoutError("too slow"))
    executor.start(CallGroup([1, 2]))
    [group] = executor.take_completed(wait=True)
    assert [type(answer) for answer in group.answers] == [LookupTimeoutError, int]
    executor.close()


@pytest.mark.parametrize("kind", NO_EXCEPTIONS)
def test_the_next_call_connects_again_after_a_base_exception(kind):
    tries = iter([raises(kind), lambda: None])

    async def opened():
        next(tries)()

    async def ask(call):
        return call

    async def closed():
        pass

    executor = Coroutines(1, ask, opened, closed, 60, LookupTimeoutError)
    executor.start(CallGroup([1, 2]))
    [group] = executor.take_completed(wait=True)
    assert isinstance(group.answers[0], kind)
    assert group.answers[1] == 2
    executor.close()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_task_that_ends_the_loop_ends_no_call(kind):
    async def call():
        with contextlib.suppress(kind):
            await asyncio.create_task(raises(kind, later=True)())
        return 1

    executor = coroutines(capacity=2)
    executor.start(CallGroup([call] * 5))
    [group] = executor.take_completed(wait=True)
    assert group.answers == [1] * 5
    executor.close()


def stubborn(released: asyncio.Event, began: threading.Event):
    """Return a call that goes on when it is cancelled, until it is released."""

    async def call():
        began.set()
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return "at last"

    return call


def test_an_overdue_call_that_ignores_cancellation_is_abandoned(monkeypatch):
    monkeypatch.setattr("lookupcache.executor.task_slots.CANCEL_SECONDS", 0.01)
    released = asyncio.Event()
    executor = coroutines(capacity=1, timeout=0.02)
    executor.start(CallGroup([stubborn(released, threading.Event()), lambda: 2]))
    [group] = executor.take_completed(wait=True)
    assert [type(answer) for answer in group.answers] == [LookupTimeoutError, int]
    event_loop().call_soon_threadsafe(released.set)
    after = CallGroup([lambda: 3])
    executor.start(after)
    assert (executor.take_completed(wait=True), after.answers) == ([after], [3])
    assert isinstance(group.answers[0], LookupTimeoutError)
    executor.close()


def test_a_cancelled_call_that_ignores_it_frees_its_slot(monkeypatch):
    monkeypatch.setattr("lookupcache.executor.task_slots.CANCEL_SECONDS", 0.01)
    released, began = asyncio.Event(), threading.Event()
    executor = coroutines(capacity=1)
    hung, after = CallGroup([stubborn(released, began)]), CallGroup([lambda: 2])
    executor.start(hung)
    assert began.wait(LIMIT)
    executor.cancel(hung)
    executor.start(after)
    assert (executor.take_completed(wait=True), after.answers) == ([after], [2])
    event_loop().call_soon_threadsafe(released.set)
    executor.close()


@pytest.mark.parametrize("kind", [asyncio.CancelledError, ConnectionError])
def test_any_error_of_an_overdue_cancelled_call_is_a_timeout(kind):
    """It reaches no other call."""

    async def turns_it_into_its_own():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise kind("cancelled") from None

    executor = coroutines(capacity=1, timeout=0.02)
    executor.start(CallGroup([turns_it_into_its_own, raises(asyncio.CancelledError), lambda: 3]))
    [group] = executor.take_completed(wait=True)
    assert [type(answer) for answer in group.answers] == [LookupTimeoutError, asyncio.CancelledError, int]
    executor.close()


def test_calls_that_have_ended_are_not_kept_until_their_timeout(make):
    class Call:
        def __call__(self):
            return 1

    executor = make(capacity=2)
    calls = [Call() for _ in range(100)]
    references = [weakref.ref(call) for call in calls]
    executor.start(CallGroup(calls))
    executor.take_completed(wait=True)
    del calls
    until(lambda: not any(reference() for reference in references))


def test_close_cancels_what_is_under_way():
    counts: Counter = Counter()
    executor = coroutines(counts=counts)
    executor.start(CallGroup([hanging(counts)]))
    until(lambda: counts["began"] == 1)
    executor.close()
    assert counts == {"opened": 1, "began": 1, "ended": 1, "closed": 1}


def test_a_connection_that_fails_is_tried_again_by_the_next_call():
    tries = iter([ConnectionError("down"), None])

    async def opened():
        if (error := next(tries)) is not None:
            raise error

    async def ask(call):
        return call

    async def closed():
        pass

    executor = Coroutines(1, ask, opened, closed, 60, LookupTimeoutError)
    executor.start(CallGroup([1, 2]))
    [group] = executor.take_completed(wait=True)
    assert isinstance(group.answers[0], ConnectionError)
    assert group.answers[1] == 2
    executor.close()


def test_the_loop_outlives_its_callers():
    async def loop():
        return asyncio.get_running_loop()

    assert run_async(loop()) is run_async(loop()) is event_loop()


EXITS = """
import atexit, threading
from lookupcache.executor.job import Job
from lookupcache.executor.task_slots import TaskSlots
from lookupcache.executor.thread_slots import ThreadSlots

begun, let_go = threading.Event(), threading.Event()

class Busy(Job):
    def run(self):
        begun.set()
        let_go.wait(10)
        print("the job ended", flush=True)

slots = ThreadSlots(2, on_thread_end=lambda: print("so did its thread", flush=True))
slots.submit([Busy()])
begun.wait(10)
slots.close()
atexit.register(let_go.set)
"""


def test_a_process_waits_at_exit_for_busy_threads():
    ended = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=LIMIT)
    assert (ended.stdout.splitlines(), ended.returncode) == (["the job ended", "so did its thread"], 0), ended.stderr


# ── jobs that are run inline ─────────────────────────────────────────────────────────────────────────────────


class Counted(Job):
    def __init__(self):
        self.runs = 0
        self.answers = []

    def run(self):
        self.runs += 1
        return self.runs

    def end(self, answer):
        self.answers.append(answer)


def test_threads_wait_for_a_completed_group_until_the_timeout():
    executor, release = threads(timeout=1.0), threading.Event()
    group = CallGroup([lambda: release.wait(LIMIT)])
    executor.start(group)
    began = time.monotonic()
    assert executor.take_completed(wait=True, timeout=0.02) == []
    assert time.monotonic() - began >= 0.02
    release.set()
    assert executor.take_completed(wait=True, timeout=LIMIT) == [group]
    assert group.answers == [True]
    executor.close()


def test_a_thread_that_ends_frees_its_slot_once():
    slots, release = ThreadSlots(1, idle_seconds=0.0), threading.Event()
    for _ in range(3):
        slots.submit([Counted()])
        assert eventually(lambda: (slots._threads, slots._alive) == (0, 0), 60)
    jobs = [Counted(), Counted()]
    for job in jobs:
        job.run = lambda: release.wait(LIMIT)
    slots.submit(jobs)
    assert eventually(lambda: jobs[0].started, 60)
    assert (slots._threads, slots._alive) == (1, 1)
    slots.abandon(jobs[0])
    assert eventually(lambda: jobs[1].started, 60)
    assert (slots._threads, slots._alive) == (1, 2)
    release.set()
    slots.close()
    assert eventually(lambda: (slots._threads, slots._alive) == (0, 0), 60)


def test_the_wait_at_exit_ignores_idle_threads():
    slots, busy, release, answers = ThreadSlots(2, idle_seconds=60), Counted(), threading.Event(), []
    slots.submit([Counted()])
    slots.join(LIMIT)
    slots.wait_at_exit(60)
    busy.run = lambda: release.wait(LIMIT)
    slots.submit([busy])
    # A job that has not begun is dropped at exit.
    assert eventually(lambda: busy.started, 60)

    def wait():
        slots.wait_at_exit(60)
        answers.extend(busy.answers)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert eventually(lambda: slots._waiting, 10)
    release.set()
    waiting.join()
    assert answers == [True]
    slots.close()


def test_a_job_runs_inline_once_and_not_if_it_was_abandoned():
    slots, job, abandoned = ThreadSlots(1), Counted(), Counted()
    slots.run_inline(job)
    slots.run_inline(job)
    assert (job.runs, job.answers) == (1, [1])
    slots.abandon(abandoned)
    slots.run_inline(abandoned)
    assert (abandoned.runs, abandoned.answers) == (0, [])


def test_a_queued_job_that_runs_inline_runs_only_once():
    slots, busy, queued, release = ThreadSlots(1), Counted(), Counted(), threading.Event()
    busy.run = lambda: release.wait(LIMIT)
    slots.submit([busy])
    slots.submit([queued])
    slots.run_inline(queued)
    assert queued.answers == [1]
    release.set()
    slots.join(LIMIT)
    assert (queued.runs, busy.answers) == (1, [True])
    slots.close()


def test_the_earliest_deadline_comes_first_in_any_order_of_jobs():
    """Three jobs on their way, whose deadlines are neither in the order of their start nor in the opposite one."""

    async def started():
        loop = asyncio.get_running_loop()
        slots = TaskSlots(4, 60.0, own_loop=False)
        jobs, now = [Job() for _ in range(4)], loop.time()
        for job, seconds in zip(jobs, [10, 30, 20, 5], strict=True):
            slots.start_timeout(job, now + seconds)
        slots._timer.cancel()
        return [jobs.index(job) for job in slots._deadlines], slots._timer.when() - now

    order, first = run_async(started())
    assert order == [3, 0, 2, 1]
    assert first == pytest.approx(5)


def test_close_withdraws_every_group(make):
    executor, hanging = make(capacity=1), threading.Event()
    groups = [CallGroup([hanging.wait]), CallGroup([hanging.wait])]
    for group in groups:
        executor.start(group)
    hanging.set()
    executor.close()
    assert [group.cancelled for group in groups] == [True, True]
    assert executor.in_flight == 0


def test_jobs_that_wait_run_in_the_task_of_the_one_before():
    """A task for each job would cost more than a fast call itself."""
    tasks = []

    class Noted(Job):
        async def run(self):
            tasks.append(asyncio.current_task())

        def end(self, answer):
            assert answer is None

    async def run():
        slots = TaskSlots(1, 60.0, own_loop=True)
        slots.submit([Noted() for _ in range(3)])
        while slots.jobs():
            await asyncio.sleep(0)
        slots._timer = slots._timer and slots._timer.cancel()

    run_async(run())
    assert len(tasks) == 3
    assert len(set(tasks)) == 1


def test_a_finished_wait_for_jobs_is_not_notified_again():
    slots = ThreadSlots(1, idle_seconds=0.0)
    slots.submit([Counted()])
    slots.join(LIMIT)
    slots.wait_at_exit(60)
    assert slots._waiting == 0


def test_all_threads_share_one_limit_of_the_wait_at_exit(monkeypatch):
    now, waited = [10.0], []

    class Busy:
        _process = os.getpid()

        def wait_at_exit(self, timeout):
            waited.append(timeout)
            now[0] += 0.75

    class Forked(Busy):
        _process = -1

    monkeypatch.setattr(thread_slots, "_all", [Busy(), Forked(), Busy(), Busy()])
    monkeypatch.setattr(thread_slots, "time", SimpleNamespace(monotonic=lambda: now[0]))
    thread_slots._wait_at_exit()
    assert waited == [1.0, 0.25, 0.0]


def test_a_call_is_overdue_although_more_time_is_left_to_wait():
    executor, release = threads(capacity=1, timeout=0.02), threading.Event()
    group = CallGroup([lambda: release.wait(LIMIT)])
    executor.start(group)
    began = time.monotonic()
    assert executor.take_completed(wait=True, timeout=LIMIT) == [group]
    assert time.monotonic() - began < 15
    assert [type(answer) for answer in group.answers] == [LookupTimeoutError]
    release.set()
    executor.close()


def test_the_wait_for_a_group_goes_on_after_an_overdue_call():
    executor, release = threads(capacity=1, timeout=0.05), threading.Event()
    group = CallGroup([lambda: release.wait(LIMIT), lambda: time.sleep(0.02)])
    executor.start(group)
    assert executor.take_completed(wait=True) == [group]
    assert isinstance(group.answers[0], LookupTimeoutError)
    release.set()
    executor.close()


def test_the_time_that_a_call_has_had_is_not_waited_for_again():
    executor, began, release = threads(capacity=1, timeout=20.0), threading.Event(), threading.Event()
    group = CallGroup([lambda: began.set() or release.wait(LIMIT)])
    executor.start(group)
    assert began.wait(LIMIT)
    since = time.monotonic()
    time.sleep(0.02)
    waits = executor._seconds_to_deadline()
    assert 15.0 - (time.monotonic() - since) < waits <= 20.0 - 0.02
    release.set()
    executor.take_completed(wait=True)
    executor.close()


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────


def held(executor, release: threading.Event, answer=None):
    """Return a call that ends when it is released."""

    def call():
        release.wait(LIMIT)
        return answer

    async def call_async():
        while not release.is_set():
            await asyncio.sleep(0.001)
        return answer

    return call_async if isinstance(executor, Coroutines) else call


def test_a_wait_for_room_ends_when_any_call_is_answered(make):
    executor, releases = make(capacity=2), [threading.Event(), threading.Event()]
    group, found = CallGroup([held(executor, release) for release in releases]), []
    executor.start(group)
    waiting = threading.Thread(target=lambda: found.append(executor.take_completed(wait=True, room=True)))
    waiting.start()
    waiting.join(0.05)
    assert found == []
    releases[1].set()
    waiting.join(LIMIT)
    assert (found, group.remaining, executor.in_flight) == ([[]], 1, 1)
    assert executor.take_completed(wait=True, room=True) == [], "there is room"
    releases[0].set()
    assert executor.take_completed(wait=True) == [group]


def test_take_completed_without_waiting_returns_finished_groups(make):
    executor, release = make(capacity=2), threading.Event()
    hung, quick = CallGroup([held(executor, release)]), CallGroup([lambda: 1])
    assert executor.take_completed(wait=False) == []
    executor.start(hung)
    executor.start(quick)
    until(lambda: not quick.remaining and not executor._completed.empty())
    assert executor.take_completed(wait=False) == [quick]
    assert executor.take_completed(wait=False) == []
    release.set()
    assert executor.take_completed(wait=True) == [hung]


def test_a_wait_for_a_group_ends_after_its_timeout(make):
    executor, release = make(capacity=1), threading.Event()
    executor.start(CallGroup([held(executor, release)]))
    began = time.monotonic()
    assert executor.take_completed(wait=True, timeout=0.02) == []
    assert 0.015 < time.monotonic() - began < 10
    release.set()


WAITS = """
import time
from lookupcache.executor.call_group import CallGroup
from lookupcache.executor.coroutines import Coroutines
from lookupcache.executor.threads import Threads

until = time.monotonic() + 6
while time.monotonic() < until:
    Coroutines(1, None, None, None, 60.0, TimeoutError).take_completed(wait=True, timeout=2e-6)
    Threads(1, None, None, 60.0, TimeoutError).take_completed(wait=True, timeout=5e-6)
"""


@pytest.mark.extended
def test_a_wait_ends_if_its_process_was_stopped_past_the_timeout():
    with subprocess.Popen([sys.executable, "-c", WAITS]) as process:
        try:
            until = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < until:
                for kind in (signal.SIGSTOP, signal.SIGCONT):
                    process.send_signal(kind)
                time.sleep(0.0005)
            assert process.poll() == 0
        finally:
            process.kill()


def test_a_group_starts_once_and_a_cancelled_group_never(make):
    executor, made = make(capacity=1), []
    group, cancelled, last = (CallGroup([lambda n=n: made.append(n)]) for n in range(3))
    executor.cancel(cancelled)
    for one in (group, group, cancelled, last):
        executor.start(one)
    found = []
    while len(found) < 2:
        found += executor.take_completed(wait=True)
    assert (found, made, executor.in_flight) == ([group, last], [0, 2], 0)
    executor.start(group)
    assert (executor.in_flight, executor.take_completed(wait=False)) == (0, [])


def test_calls_without_an_answer_are_in_flight(make):
    executor, release = make(capacity=3), threading.Event()
    hung, other = CallGroup([lambda: 1, held(executor, release), lambda: 3]), CallGroup([held(executor, release)] * 2)
    executor.start(hung)
    until(lambda: hung.remaining == 1)
    executor.start(other)
    assert executor.in_flight == 3
    executor.cancel(hung)
    executor.cancel(hung)
    assert executor.in_flight == 2
    executor.cancel(CallGroup([lambda: 1]))
    assert executor.in_flight == 2
    release.set()
    assert executor.take_completed(wait=True) == [other]
    assert executor.in_flight == 0
    assert not executor._active


def test_the_deadline_of_a_group_holds_only_if_it_never_queued(make):
    executor, release = make(capacity=2), threading.Event()
    groups = [CallGroup([held(executor, release)] * count, deadline=time.monotonic() + 1_000) for count in (2, 1)]
    deadline = groups[0].deadline
    for group in groups:
        executor.start(group)
    assert [group.is_queued for group in groups] == [False, True]
    assert [group.deadline for group in groups] == [deadline, math.inf]
    release.set()
    found = executor.take_completed(wait=True)
    while len(found) < 2:
        found += executor.take_completed(wait=True)


@pytest.mark.parametrize("count", [1, 3])
def test_the_last_calls_error_fails_an_all_or_nothing_group(make, count):
    executor = make(capacity=1)
    group = CallGroup([*[lambda: 1] * (count - 1), fails], all_or_nothing=True)
    executor.start(group)
    assert executor.take_completed(wait=True) == [group]
    assert [type(answer) for answer in group.answers] == [ConnectionError] * count
    after = CallGroup([lambda: 2], all_or_nothing=True)
    executor.start(after)
    assert (executor.take_completed(wait=True), after.answers, executor.in_flight) == ([after], [2], 0)
    assert executor.take_completed(wait=False) == []


def test_concurrent_calls_run_in_the_context_of_their_group(make):
    variable, executor = ContextVar("variable", default=0), make(capacity=3)
    contexts = [copy_context() for _ in range(2)]
    for number, context in enumerate(contexts, 1):
        context.run(variable.set, number)
    together = threading.Barrier(2)

    def call():
        if isinstance(executor, Threads):
            together.wait(LIMIT)
        return variable.get()

    groups = [CallGroup([call] * 2, context=context) for context in contexts]
    for group in groups:
        executor.start(group)
        assert executor.take_completed(wait=True) == [group]
    assert [group.answers for group in groups] == [[1, 1], [2, 2]]
    assert variable.get() == 0


def test_a_closed_executor_connects_again_for_the_next_call(make):
    counts: Counter = Counter()
    executor = make(capacity=1, counts=counts)
    executor.close()
    assert counts == {}, "there was nothing to close"
    for times in (1, 2):
        executor.start(CallGroup([lambda: 1]))
        executor.take_completed(wait=True)
        executor.close()
        until(lambda times=times: counts == {"opened": times, "closed": times})


def test_a_call_that_is_overdue_before_the_wait_times_out():
    executor, release = threads(capacity=2, timeout=0.01), threading.Event()
    group = CallGroup([lambda: release.wait(LIMIT), lambda: 2])
    executor.start(group)
    until(lambda: group.remaining == 1)
    time.sleep(0.02)
    assert executor.take_completed(wait=True) == [group]
    assert [type(answer) for answer in group.answers] == [LookupTimeoutError, int]
    release.set()
    executor.close()


def test_a_timeout_may_be_longer_than_a_thread_can_wait(make):
    executor = make(capacity=1, timeout=1e12)
    executor.start(CallGroup([lambda: time.sleep(0.01)]))
    [group] = executor.take_completed(wait=True)
    assert group.answers == [None]


def test_an_idle_connection_is_used_before_another_is_opened():
    counts: Counter = Counter()
    executor = threads(capacity=4, counts=counts)
    for _ in range(3):
        executor.start(CallGroup([lambda: 1]))
        executor.take_completed(wait=True)
        until(lambda: executor._slots._idle == 1)
    assert counts == {"opened": 1}
    executor.close()


@pytest.mark.extended
def test_a_run_collected_in_the_loops_thread_does_not_stop_it():
    began, ended = threading.Event(), threading.Event()

    async def hangs():
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    executor, group = coroutines(), CallGroup([hangs])
    executor.start(group)

    def run(itself):
        try:
            yield itself
        finally:
            executor.cancel(group)

    itself = []
    itself.append(run(itself))
    next(itself[0])  # Suspended, and in a cycle: only the collector ends it.
    del itself
    assert began.wait(LIMIT)
    event_loop().call_soon_threadsafe(gc.collect)
    assert ended.wait(LIMIT)
    assert run_async(nothing()) is None
    executor.close()


async def nothing():
    pass
