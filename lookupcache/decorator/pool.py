"""`DaemonPool`: threads for sync calls that may hang, whose place can be had back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

IDLE_SECONDS = 10.0
"""How long a thread waits for the next job before it ends."""


@dataclass(eq=False)
class Job:
    """Work for a thread; given up, nobody waits for it any more. ``elsewhere``: it has no place in the pool."""

    work: Callable[[], None]
    given_up: bool = False
    begun: bool = False
    ended: bool = False
    elsewhere: bool = False


class DaemonPool:
    """Runs jobs in the order of their coming, at most ``capacity`` at a time; no job may raise.

    A job that hangs can be given up: its thread is left to itself and ends with it, and another takes its
    place. The threads keep no process from ending.

    >>> done = threading.Event()
    >>> job = DaemonPool(capacity=2).start(done.set)
    >>> done.wait(10)
    True
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._jobs: deque[Job] = deque()
        self._threads = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._job_comes = threading.Condition(self._lock)
        self._job_goes = threading.Condition(self._lock)

    def start(self, work: Callable[[], None]) -> Job:
        """Run this when a thread is free."""
        return self.start_job(Job(work))

    def start_job(self, job: Job) -> Job:
        """Run a job when a thread is free, unless it has begun elsewhere or was given up."""
        with self._lock:
            if not (job.begun or job.given_up):
                self._jobs.append(job)
                self._ensure_slots()
        return job

    def run_here(self, job: Job) -> None:
        """Run a job in this thread, started or not, unless it has begun or was given up.

        That is for a thread which is busy with a job that needs the other: all threads may be so, and none be free.
        """
        with self._lock:
            if job.begun or job.given_up:
                return
            if job in self._jobs:
                self._jobs.remove(job)
            job.begun = job.elsewhere = True
        job.work()
        job.ended = True

    def give_up(self, job: Job) -> None:
        """Free the place of a job, begun or not."""
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)
            elif job.begun and not (job.ended or job.given_up or job.elsewhere):
                self._threads -= 1
                self._ensure_slots()
            job.given_up = True
            self._job_goes.notify_all()

    def join(self, timeout: float) -> None:
        """Wait until no job is left, at most so many seconds."""
        with self._lock:
            self._job_goes.wait_for(lambda: not self._jobs and self._threads == self._idle, timeout)

    def _ensure_slots(self) -> None:
        if len(self._jobs) <= self._idle:
            self._job_comes.notify()
        elif self._threads < self.capacity:
            self._threads += 1
            threading.Thread(target=self._run, name="lookupcache-call", daemon=True).start()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            job.work()
            with self._lock:
                job.ended = True
                if job.given_up:
                    return

    def _next(self) -> Job | None:
        with self._lock:
            self._idle += 1
            self._job_goes.notify_all()
            self._job_comes.wait_for(lambda: self._jobs, IDLE_SECONDS)
            self._idle -= 1
            if self._jobs:
                job = self._jobs.popleft()
                job.begun = True
                return job
            self._threads -= 1
            return None
