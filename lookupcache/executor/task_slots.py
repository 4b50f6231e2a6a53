"""`TaskSlots`: a bounded number of concurrent coroutines on an event loop; a cancelled one loses its slot.

submit ─► queue ─► a free slot: a task for the next job ─► run ─► end ─► next job
                                                            │ its deadline is over: cancel ─► still running: abandon
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from lookupcache.executor.job import Job

CANCEL_SECONDS = 1.0
"""How long a cancelled job may take to end before it is abandoned."""


class TaskSlots:
    """Runs jobs in the order of submission, at most ``capacity`` at a time, each in a task of its ``context``.

    An object belongs to one event loop, and is used in its thread only. ``own_loop`` means that only this package runs
    tasks there: any exception of a job, even SystemExit, is then that job's answer. On the user's loop, such an
    exception ends the loop as in any task. A task that is cancelled from outside means that the loop is being closed:
    jobs in the queue are dropped, since they would not run any more.
    """

    def __init__(self, capacity: int, timeout: float, *, own_loop: bool) -> None:
        self.capacity = capacity
        self.timeout = timeout
        self._own_loop = own_loop
        self._queue: deque[Job] = deque()
        self._running: dict[Job, asyncio.Task[None]] = {}
        self._deadlines: deque[Job] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, jobs: Iterable[Job]) -> None:
        """Run jobs as soon as there are slots."""
        self._queue.extend(jobs)
        self._start_jobs()

    def run_now(self, job: Job) -> None:
        """Run a job that waits in the queue without a slot: a running job waits for it, and all may do so."""
        if job in self._queue:
            self._queue.remove(job)
            self._start(job)

    def start_timeout(self, job: Job, until: float = math.inf) -> None:
        """Start the ``timeout`` of a running job, after which it is cancelled, or at the time ``until`` before that."""
        # One timer for all: a timer per job costs as much as the rest of a fast call. Nearly all have the same timeout,
        # so the one that began first is overdue first.
        loop = asyncio.get_running_loop()
        job.deadline = min(loop.time() + self.timeout, until)
        if len(self._deadlines) > 4 * self.capacity:
            self._deadlines = deque(job for job in self._deadlines if job in self._running)
        at = len(self._deadlines)
        while at and self._deadlines[at - 1].deadline > job.deadline:
            at -= 1
        self._deadlines.insert(at, job)
        if self._timer is not None and not at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(self._deadlines[0].deadline, self._expire_overdue)

    def jobs(self) -> list[Job]:
        """Return the jobs that are running, and those in the queue."""
        return [*self._running, *self._queue]

    def cancel(self, matches: Callable[[Job], bool]) -> Coroutine[Any, Any, None]:
        """Remove the matching jobs from the queue and cancel those that are running, at once.

        The returned coroutine waits until they have ended, and abandons those that do not end.
        """
        self._queue = deque(job for job in self._queue if not matches(job))
        jobs = [job for job in self._running if matches(job)]
        for job in jobs:
            self._cancel(job)
        return self._wait_ended(jobs)

    async def _wait_ended(self, jobs: list[Job]) -> None:
        tasks = [self._running[job] for job in jobs if job in self._running]
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for job in jobs:
            self._abandon(job)

    def _start_jobs(self) -> None:
        while self._queue and len(self._running) < self.capacity:
            self._start(self._queue.popleft())

    def _start(self, job: Job) -> None:
        task = asyncio.get_running_loop().create_task(self._run(job), context=job.context)
        if not job.started:
            # A task may be cancelled before its first step. With an eager task factory it has taken that already.
            self._running[job] = task
        task.add_done_callback(partial(self._task_done, job))

    async def _run(self, job: Job) -> None:
        task: Any = asyncio.current_task()
        job.started = True
        self._running[job] = task
        following: Job | None = job
        while following is not None:
            job = following
            try:
                answer = await job.run()
            except BaseException as error:
                if not _is_current(task):
                    # Python frees a task of a closed loop, in any thread, which may hold any lock: touch nothing.
                    raise
                if self._is_end_of_loop(job, error):
                    self._drop(job)
                    raise
                answer = error
            # Without a wait: after a GeneratorExit a coroutine must not await. The next job is started here and not
            # when the task is done, because the loop may end between the two.
            self._finish(job, answer)
            following = self._take_over(task, job)
        self._start_jobs()

    def _take_over(self, task: asyncio.Task[None], job: Job) -> Job | None:
        """Return the next job if the task of the last one can run it, which costs less than a new task.

        A task that was cancelled runs no other: a late cancellation would cancel that one. Nor does one whose
        job was abandoned, since it has lost its slot.
        """
        if not self._queue or self._queue[0].context is not job.context or job.cancelled or task.cancelling():
            return None
        if len(self._running) >= self.capacity:
            return None
        following = self._queue.popleft()
        self._running[following] = task
        return following

    def _is_end_of_loop(self, job: Job, error: BaseException) -> bool:
        if self._own_loop:
            return False
        if isinstance(error, asyncio.CancelledError):
            # Not where something that the job awaits was cancelled: that error is the job's answer.
            return bool(self._running[job].cancelling()) and not job.cancelled if job in self._running else False
        return isinstance(error, KeyboardInterrupt | SystemExit)

    def _task_done(self, job: Job, task: asyncio.Task[None]) -> None:
        """End the job of a task that was cancelled before its first step, and so never ran."""
        if job not in self._running:
            return
        if self._own_loop or job.cancelled:
            self._abandon(job)
        else:
            self._drop(job)

    def _finish(self, job: Job, answer: Any) -> None:
        """Pass on a job's answer, unless it was abandoned before."""
        if self._running.pop(job, None) is None:
            return
        if not self._running:
            self._stop_timer()
        if job.expired and isinstance(answer, BaseException):
            answer = job.timeout_error()
        job.end(answer)

    def _expire_overdue(self) -> None:
        """Cancel the jobs that are overdue, and set the timer for the next."""
        loop, deadlines = asyncio.get_running_loop(), self._deadlines
        while deadlines and (deadlines[0] not in self._running or deadlines[0].deadline <= loop.time()):
            job = deadlines.popleft()
            if job in self._running:
                job.expired = True
                self._cancel(job)
                loop.call_later(CANCEL_SECONDS, self._abandon, job)
        self._timer = loop.call_at(deadlines[0].deadline, self._expire_overdue) if deadlines else None

    def _stop_timer(self) -> None:
        """Stop the timer, which would keep alive the event loop and the jobs that have ended."""
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel(self, job: Job) -> None:
        job.cancelled = True
        self._running[job].cancel()

    def _abandon(self, job: Job) -> None:
        """Answer for a job that ignores its cancellation, and give its slot to the next."""
        self._finish(job, asyncio.CancelledError())
        self._start_jobs()

    def _drop(self, job: Job) -> None:
        """Drop a job and the full queue: this event loop is about to be closed."""
        self._running.pop(job, None)
        if not self._running:
            self._stop_timer()
        dropped = [job, *self._queue]
        self._queue.clear()
        for one in dropped:
            one.drop()


def _is_current(task: asyncio.Task[Any] | None) -> bool:
    """Return whether this code runs in a step of that task; not where Python closes the task's coroutine."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs in this thread
        return False
