"""Slots by themselves: which job runs when, in which task or thread, and what a job that ends in any way leaves."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from contextvars import ContextVar, copy_context

import pytest
from time_limit import LIMIT

from lookupcache.executor.job import Job
from lookupcache.executor.task_slots import TaskSlots
from lookupcache.executor.thread_slots import ThreadSlots
from lookupcache.testing.checks import eventually


class Work(Job):
    """A job that says what became of it; ``work`` is what it does, a coroutine function in `TaskSlots`."""

    def __init__(self, work=lambda: None, context=None):
        self.run, self.context = work, context
        self.answers, self.drops = [], 0

    def end(self, answer):
        self.answers.append(answer)

    def drop(self):
        self.drops += 1


async def nothing():
    return "done"


async def for_ever():
    await asyncio.Event().wait()


async def turns(count=5):
    """Let other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


def kinds(*jobs):
    """Return what each job was answered with: nothing, an answer, or the name of an error."""
    return [[type(a).__name__ if isinstance(a, BaseException) else a for a in job.answers] for job in jobs]


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_slot_runs_one_job_and_then_the_next_in_the_queue():
    began, lets_go = [], []

    async def main():
        slots = TaskSlots(2, 60, own_loop=True)
        lets_go.extend(asyncio.Event() for _ in range(5))

        def work(number):
            async def run():
                began.append(number)
                await lets_go[number].wait()
                return number

            return run

        jobs = [Work(work(number)) for number in range(5)]
        slots.submit(jobs[:1])
        slots.submit(jobs[1:])
        await turns()
        assert (began, slots.jobs()) == ([0, 1], jobs)
        for number, then in [(1, [0, 1, 2]), (0, [0, 1, 2, 3]), (3, [0, 1, 2, 3, 4])]:
            lets_go[number].set()
            await turns()
            assert began == then
        assert slots.jobs() == [jobs[2], jobs[4]]
        lets_go[2].set()
        lets_go[4].set()
        await turns()
        assert kinds(*jobs) == [[0], [1], [2], [3], [4]]
        assert not slots.jobs()

    asyncio.run(main())


def test_a_queued_job_that_a_running_one_waits_for_needs_no_slot():
    async def main():
        slots, inner = TaskSlots(1, 60, own_loop=True), Work(nothing)

        async def run():
            slots.run_now(inner)
            slots.run_now(inner)
            while not inner.answers:
                await asyncio.sleep(0)

        outer, last = Work(run), Work(nothing)
        slots.submit([outer, inner, last])
        await asyncio.wait_for(_until(lambda: last.answers), LIMIT)
        slots.run_now(last)
        await turns()
        assert kinds(outer, inner, last) == [[None], ["done"], ["done"]]

    asyncio.run(main())


async def _until(is_true):
    while not is_true():
        await asyncio.sleep(0.001)


def test_a_cancelled_job_ends_and_those_of_others_go_on():
    async def main():
        slots = TaskSlots(2, 60, own_loop=True)
        mine, others = [Work(for_ever), Work(nothing)], [Work(for_ever), Work(nothing)]
        slots.submit([mine[0], others[0], mine[1], others[1]])
        await turns()
        await slots.cancel(lambda job: job in mine)
        await turns()
        assert kinds(*mine, *others) == [["CancelledError"], [], [], ["done"]]
        assert slots.jobs() == others[:1]
        await slots.cancel(lambda job: True)

    asyncio.run(main())


@pytest.mark.parametrize("own_loop", [True, False])
def test_a_job_cancelled_before_its_first_step_is_answered(own_loop):
    async def main():
        slots, ran = TaskSlots(1, 60, own_loop=own_loop), []

        async def run():
            ran.append(1)

        job, after = Work(run), Work(nothing)
        slots.submit([job, after])
        await slots.cancel(lambda one: one is job)
        await turns()
        assert (kinds(job, after), ran, slots.jobs()) == ([["CancelledError"], ["done"]], [], [])

    asyncio.run(main())


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("own_loop", [True, False])
def test_a_task_cancelled_from_outside_ends_its_job_or_all_jobs(own_loop, steps):
    """The user's loop cancels all tasks when it is closed: what is in the queue would not run any more."""

    async def main():
        slots = TaskSlots(1, 60, own_loop=own_loop)
        before = asyncio.all_tasks()
        job, queued = Work(for_ever), Work(nothing)
        slots.submit([job, queued])
        await turns(steps)
        [task] = asyncio.all_tasks() - before
        task.cancel()
        await turns()
        if own_loop:
            assert kinds(job, queued) == [["CancelledError"], ["done"]]
            assert (job.drops, queued.drops) == (0, 0)
        else:
            assert kinds(job, queued) == [[], []]
            assert (job.drops, queued.drops) == (1, 1)
        assert not slots.jobs()
        after = Work(nothing)
        slots.submit([after])
        await turns()
        assert kinds(after) == [["done"]]

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exception_that_ends_the_users_loop_drops_its_jobs(kind):
    async def ends():
        raise kind

    jobs, loop = [Work(ends), Work(nothing)], asyncio.new_event_loop()

    async def main():
        TaskSlots(1, 60, own_loop=False).submit(jobs)
        await turns()

    with pytest.raises(kind):
        loop.run_until_complete(main())
    loop.run_until_complete(turns())
    for task in asyncio.all_tasks(loop):
        loop.run_until_complete(task)
    loop.close()
    assert (kinds(*jobs), [job.drops for job in jobs]) == ([[], []], [1, 1])


@pytest.mark.parametrize("own_loop", [True, False])
def test_an_error_of_a_job_or_of_what_it_waits_for_is_its_answer(own_loop):
    async def fails():
        raise OSError

    async def waits_for_what_is_cancelled():
        waits_for = asyncio.ensure_future(for_ever())
        waits_for.cancel()
        await waits_for

    async def main():
        slots = TaskSlots(1, 60, own_loop=own_loop)
        jobs = [Work(fails), Work(waits_for_what_is_cancelled), Work(nothing)]
        slots.submit(jobs)
        await turns(10)
        assert kinds(*jobs) == [["OSError"], ["CancelledError"], ["done"]]
        assert [job.drops for job in jobs] == [0, 0, 0]

    asyncio.run(main())


def test_a_job_that_has_cancelled_its_own_task_cancels_no_other():
    """The cancellation arrives at the next ``await`` in that task, which must not be one of the next job."""

    async def cancels_itself():
        asyncio.current_task().cancel()
        return "done"

    async def waits():
        await asyncio.sleep(0)
        return "done"

    async def main():
        slots, jobs = TaskSlots(1, 60, own_loop=True), [Work(cancels_itself), Work(waits)]
        slots.submit(jobs)
        await turns(10)
        assert kinds(*jobs) == [["done"], ["done"]]

    asyncio.run(main())


def test_each_job_runs_in_its_own_context():
    variable = ContextVar("variable", default=0)
    contexts = [copy_context() for _ in range(2)]
    for number, context in enumerate(contexts, 1):
        context.run(variable.set, number)

    async def found():
        return variable.get()

    async def main():
        slots = TaskSlots(1, 60, own_loop=True)
        jobs = [Work(found, contexts[number]) for number in (0, 0, 1, 0)]
        slots.submit([Work(found), *jobs])
        await turns(20)
        assert kinds(*jobs) == [[1], [1], [2], [1]]

    asyncio.run(main())


def test_a_job_is_cancelled_only_at_its_own_deadline():
    ended = []

    def until(slots, name, seconds):
        async def run():
            slots.start_timeout(jobs[name], asyncio.get_running_loop().time() + seconds)
            try:
                await asyncio.sleep(1)
            finally:
                ended.append(name)

        return run

    async def untimed():
        await asyncio.sleep(0.06)
        return "done"

    async def main():
        slots = TaskSlots(6, 60, own_loop=True)
        times = {"second": 0.03, "third": 0.04, "first": 0.02}
        jobs.update({name: Work(until(slots, name, seconds)) for name, seconds in times.items()})
        # One that ends long before its deadline, and is still in the list when the others are overdue.
        jobs["quick"] = Work(lambda: _start_and_end(slots, jobs["quick"]))
        jobs["untimed"] = Work(untimed)
        slots.submit(jobs.values())
        await asyncio.wait_for(_until(lambda: not slots.jobs()), LIMIT)
        assert (ended, slots._timer) == (["first", "second", "third"], None)
        assert kinds(*jobs.values()) == [["CancelledError"]] * 3 + [["done"]] * 2

    jobs: dict[str, Work] = {}
    asyncio.run(main())


async def _start_and_end(slots, job):
    slots.start_timeout(job, asyncio.get_running_loop().time() + 0.01)
    return "done"


def test_a_job_has_its_timeout_or_less_where_its_group_has():
    async def main():
        slots, job, loop = TaskSlots(1, 30.0, own_loop=True), Work(nothing), asyncio.get_running_loop()
        found = []
        for until in (math.inf, loop.time() + 10, loop.time() + 50):
            slots.start_timeout(job, until)
            found.append(round(job.deadline - loop.time()))
        slots._stop_timer()
        return found

    assert asyncio.run(main()) == [30, 10, 30]


def test_ended_jobs_are_removed_from_the_list_of_deadlines():
    async def main():
        slots, longest = TaskSlots(2, 60, own_loop=True), 0

        def timed(number):
            async def run():
                nonlocal longest
                slots.start_timeout(jobs[number])
                longest = max(longest, len(slots._deadlines))
                await asyncio.sleep(0)

            return run

        jobs = [Work(timed(number)) for number in range(200)]
        # One that runs all the time: else the list is emptied when none runs.
        held = Work(for_ever)
        slots.submit([held, *jobs])
        await asyncio.wait_for(_until(lambda: jobs[-1].answers), LIMIT)
        await slots.cancel(lambda job: True)
        return longest

    assert asyncio.run(main()) <= 10


def test_a_coroutine_freed_after_its_loop_answers_no_job():
    job, queued, loop = Work(for_ever), Work(nothing), asyncio.new_event_loop()
    slots = TaskSlots(1, 60, own_loop=True)

    async def main():
        slots.submit([job, queued])
        await turns()

    loop.run_until_complete(main())
    [task] = asyncio.all_tasks(loop)
    loop.close()
    task.get_coro().close()
    assert kinds(job, queued) == [[], []]
    assert slots.jobs() == [job, queued]
    task._log_destroy_pending = False


# ── threads ──────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def thread_slots(capacity, *more):
    """Return slots, and an event until which a job may wait; at the end it is set and the threads end."""
    slots, release = ThreadSlots(capacity, *more), threading.Event()
    try:
        yield slots, release
    finally:
        release.set()
        slots.close()
        slots.wait_at_exit(20)


def test_jobs_begin_in_their_order():
    began: list[int] = []
    with thread_slots(1) as (slots, release):
        first = Work(lambda: release.wait(LIMIT))
        jobs = [Work(lambda number=number: began.append(number)) for number in range(10)]
        slots.submit([first, *jobs[:5]])
        slots.submit(jobs[5:])
        release.set()
        slots.join(LIMIT)
    assert began == list(range(10))
    assert kinds(first, *jobs) == [[True], *[[None]] * 10]


@pytest.mark.parametrize("kind", [OSError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_error_is_a_jobs_answer_and_its_thread_runs_the_next(kind):
    def fails():
        raise kind

    threads: list[int] = []
    with thread_slots(1) as (slots, _):
        jobs = [Work(fails), Work(lambda: threads.append(threading.get_ident()))]
        slots.submit([Work(lambda: threads.append(threading.get_ident())), *jobs])
        slots.join(LIMIT)
    assert kinds(*jobs) == [[kind.__name__], [None]]
    assert len(set(threads)) == 1


def test_an_idle_thread_runs_the_next_job_before_a_new_thread():
    with thread_slots(4, 60) as (slots, release):
        slots.submit([Work()])
        assert eventually(lambda: slots._idle == 1, 20)
        waiting = [Work(lambda: release.wait(LIMIT)) for _ in range(2)]
        slots.submit(waiting[:1])
        assert eventually(lambda: waiting[0].started, 20)
        assert slots._alive == 1
        slots.submit(waiting[1:])
        assert eventually(lambda: waiting[1].started, 20)
        assert slots._alive == 2


def test_as_many_idle_threads_are_woken_as_there_are_jobs():
    together = threading.Barrier(3)
    with thread_slots(3, 60) as (slots, _):
        for _ in range(2):
            jobs = [Work(lambda: together.wait(LIMIT)) for _ in range(3)]
            slots.submit(jobs)
            # Longer than a thread can wait at a time.
            slots.join(1e12)
            assert eventually(lambda: slots._idle == 3, 20)
            assert sorted(job.answers[0] for job in jobs) == [0, 1, 2]
        assert slots._alive == 3


def test_jobs_that_are_overdue_are_abandoned_and_no_others():
    with thread_slots(3) as (slots, release):
        jobs = [Work(lambda: release.wait(LIMIT)) for _ in range(3)]
        queued = Work()
        slots.submit([*jobs, queued])
        assert eventually(lambda: all(job.started for job in jobs), 20)
        now = time.monotonic()
        assert slots.first_deadline() == math.inf
        jobs[0].deadline, jobs[1].deadline = now - 1, now + 1_000
        assert slots.first_deadline() == now - 1
        assert slots.abandon_overdue() == [jobs[0]]
        assert slots.first_deadline() == now + 1_000
        assert slots.abandon_overdue() == []
        # Its slot is free for another thread.
        assert eventually(lambda: queued.answers, 20)
        release.set()
        slots.join(LIMIT)
    assert kinds(*jobs) == [[], [True], [True]]


def test_jobs_that_are_cancelled_do_not_begin_and_get_no_answer():
    with thread_slots(2) as (slots, release):
        mine = [Work(lambda: release.wait(LIMIT)), Work()]
        others = [Work(lambda: release.wait(LIMIT)), Work()]
        slots.submit([mine[0], others[0], mine[1], others[1]])
        assert eventually(lambda: mine[0].started and others[0].started, 20)
        slots.cancel(lambda job: job in mine)
        assert eventually(lambda: others[1].answers, 20)
        release.set()
        slots.join(LIMIT)
    assert kinds(*mine, *others) == [[], [], [True], [None]]
    assert [job.started for job in mine] == [True, False]
    assert [job.abandoned for job in mine] == [True, False]


def test_an_abandoned_job_does_not_begin():
    with thread_slots(1) as (slots, release):
        running, queued, later = Work(lambda: release.wait(LIMIT)), Work(), Work()
        slots.submit([running, queued])
        assert eventually(lambda: running.started, 20)
        slots.abandon(queued)
        slots.abandon(later)
        slots.submit([later])
        release.set()
        slots.join(LIMIT)
    assert kinds(running, queued, later) == [[True], [], []]


def test_a_wait_for_jobs_ends_after_its_timeout():
    with thread_slots(1) as (slots, release):
        job = Work(lambda: release.wait(LIMIT))
        slots.submit([job])
        assert eventually(lambda: job.started, 20)
        for wait in (slots.join, slots.wait_at_exit):
            began = time.monotonic()
            wait(0.02)
            assert 0.015 < time.monotonic() - began < 10


def test_slots_that_were_closed_start_threads_again():
    ended: list[int] = []
    with thread_slots(1, 60, lambda: ended.append(1)) as (slots, _):
        for count in (1, 2):
            job = Work()
            slots.submit([job])
            slots.join(LIMIT)
            slots.close()
            assert eventually(lambda count=count: len(ended) == count, 20)
            assert kinds(job) == [[None]]


def test_where_no_thread_can_be_started_those_that_run_do_all(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with thread_slots(3) as (slots, release):
        first, second, alone = Work(lambda: release.wait(LIMIT)), Work(), Work()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                slots.submit([alone])
        slots.submit([first])
        assert eventually(lambda: first.started, 20)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            slots.submit([second])
        release.set()
        slots.join(LIMIT)
    assert kinds(first, second, alone) == [[True], [None], []]


def test_a_job_that_runs_inline_takes_no_slot():
    with thread_slots(1) as (slots, release):
        inline, queued = Work(lambda: slots.abandon(inline)), Work()
        slots.run_inline(inline)
        running = [Work(lambda: release.wait(LIMIT)) for _ in range(2)]
        slots.submit([running[0], queued, running[1]])
        assert eventually(lambda: running[0].started, 20)
        # It was abandoned while it ran, which frees no slot for another thread.
        assert (slots._threads, slots._alive, running[1].started) == (1, 1, False)
        slots.run_inline(queued)
        assert kinds(inline, queued, *running) == [[], [None], [], []]


def refuse_threads(patch):
    """Let no thread be started, as where there are too many."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("frees", ["abandon", "abandon_overdue", "cancel"])
def test_queued_jobs_fail_if_no_thread_can_replace_a_hung_one(monkeypatch, frees):
    with thread_slots(1) as (slots, release):
        hung, queued = Work(lambda: release.wait(LIMIT)), Work()
        hung.deadline = 0.0
        slots.submit([hung, queued])
        assert eventually(lambda: hung.started, 20)
        with monkeypatch.context() as patch:
            refuse_threads(patch)
            arguments = {"abandon": [hung], "abandon_overdue": [], "cancel": [lambda job: job is hung]}
            getattr(slots, frees)(*arguments[frees])
        assert kinds(hung, queued) == [[], ["RuntimeError"]]
        # Nothing of it is left: the next job has a thread again.
        later = Work()
        slots.submit([queued, later])
        slots.join(LIMIT)
        assert kinds(queued, later) == [["RuntimeError"], [None]]


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_job_whose_end_fails_keeps_no_slot(monkeypatch, is_refused):
    class Fails(Work):
        def end(self, answer):
            raise MemoryError

    with thread_slots(1) as (slots, release):
        first, second = Fails(lambda: release.wait(LIMIT)), Work()
        slots.submit([first, second])
        assert eventually(lambda: first.started, 20)
        with monkeypatch.context() as patch:
            if is_refused:
                refuse_threads(patch)
            release.set()
            assert eventually(lambda: second.answers, 20)
        third = Work()
        slots.submit([third])
        slots.join(LIMIT)
        assert kinds(second, third) == [["RuntimeError" if is_refused else None], [None]]
