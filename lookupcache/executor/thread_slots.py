"""`ThreadSlots`: a bounded number of concurrent jobs in threads; a job that hangs is replaced.

submit ─► queue ─► a free thread takes the next job ─► run ─► end
                                                        │ it hangs: abandon ─► another thread replaces this one
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from weakref import WeakSet

from lookupcache.executor.job import Job
from lookupcache.thread_start import start_thread

IDLE_SECONDS = 10.0
"""How long a thread waits for the next job before it ends, by default."""

EXIT_SECONDS = 1.0
"""How long the interpreter waits, when it exits, for jobs that are running."""

_all: WeakSet[ThreadSlots] = WeakSet()


class ThreadSlots:
    """Runs jobs in the order of submission, at most ``capacity`` at a time.

    Threads are started when they are needed, and are daemons. Python cannot stop a thread: one that runs an abandoned
    job continues without a slot and ends with the job. A thread that has waited ``idle_seconds`` for a job ends, and
    calls ``on_thread_end``.

    >>> done = threading.Event()
    >>> class Greeting(Job):
    ...     def run(self):
    ...         return "hello"
    ...     def end(self, answer):
    ...         done.set()
    >>> ThreadSlots(capacity=2).submit([Greeting()])
    >>> done.wait(10)
    True
    """

    def __init__(
        self,
        capacity: int,
        idle_seconds: float = IDLE_SECONDS,
        on_thread_end: Callable[[], None] | None = None,
    ) -> None:
        self.capacity = capacity
        self._idle_seconds = min(idle_seconds, threading.TIMEOUT_MAX)
        self._on_thread_end = on_thread_end
        self._queue: deque[Job] = deque()
        self._running: set[Job] = set()
        self._threads = 0  # that have a slot
        self._alive = 0  # of all threads, also those that run abandoned jobs or are about to end
        self._idle = 0
        self._waiting = 0
        self._closed = False
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._job_queued = threading.Condition(self._lock)
        self._job_ended = threading.Condition(self._lock)
        _all.add(self)

    def submit(self, jobs: Iterable[Job]) -> None:
        """Run jobs when threads are free, except those that were run inline or abandoned before."""
        with self._lock:
            self._closed = False
            added = [job for job in jobs if not (job.started or job.abandoned)]
            self._queue.extend(added)
            try:
                self._start_threads()
            except RuntimeError:
                # No thread can be started: existing threads, if any, will run the jobs.
                if not self._threads:
                    self._queue = deque(job for job in self._queue if job not in added)
                    raise

    def run_inline(self, job: Job) -> None:
        """Run a job in this thread, submitted or not, unless it has been started or abandoned.

        A job that waits for another must run it inline: all threads may be busy with such jobs.
        """
        with self._lock:
            if job.started or job.abandoned:
                return
            if job in self._queue:
                self._queue.remove(job)
            job.started = job.inline = True
            self._running.add(job)
        self._run(job)

    def abandon(self, job: Job) -> None:
        """Free the slot of a job, running or not; its answer will be ignored."""
        with self._lock:
            if job in self._queue:
                self._queue.remove(job)
            self._abandon(job)
            unstarted = self._replace_threads()
        _fail(unstarted)

    def abandon_overdue(self) -> list[Job]:
        """Abandon the running jobs whose deadline is over, and return them."""
        now = time.monotonic()
        with self._lock:
            overdue = [job for job in self._running if job.deadline <= now]
            for job in overdue:
                self._abandon(job)
            unstarted = self._replace_threads()
        _fail(unstarted)
        return overdue

    def cancel(self, matches: Callable[[Job], bool]) -> None:
        """Remove the matching jobs from the queue, and abandon those that are running."""
        with self._lock:
            self._queue = deque(job for job in self._queue if not matches(job))
            for job in list(filter(matches, self._running)):
                self._abandon(job)
            unstarted = self._replace_threads()
        _fail(unstarted)

    def first_deadline(self) -> float:
        """Return when the next running job is overdue."""
        with self._lock:
            return min((job.deadline for job in self._running), default=math.inf)

    def join(self, timeout: float) -> None:
        """Wait until no job is queued or running in a thread, at most ``timeout`` seconds."""
        with self._lock:
            self._wait_until(self._has_no_jobs, timeout)

    def close(self) -> None:
        """Let threads end when the queue is empty; `submit` starts new ones."""
        with self._lock:
            self._closed = True
            self._job_queued.notify_all()

    def wait_at_exit(self, timeout: float) -> None:
        """Drop the queue, and wait until all busy threads have ended, including those of abandoned jobs."""
        with self._lock:
            self._queue.clear()
            self._wait_until(lambda: self._alive == (0 if self._closed else self._idle), timeout)

    def _wait_until(self, predicate: Callable[[], bool], timeout: float) -> None:
        self._waiting += 1
        self._job_ended.wait_for(predicate, min(timeout, threading.TIMEOUT_MAX))
        self._waiting -= 1

    def _has_no_jobs(self) -> bool:
        return not self._queue and all(job.inline for job in self._running)

    def _abandon(self, job: Job) -> None:
        if job in self._running:
            self._running.remove(job)
            if not job.inline:
                self._threads -= 1
        job.abandoned = True
        self._notify_waiting()

    def _notify_waiting(self) -> None:
        if self._waiting:
            self._job_ended.notify_all()

    def _start_threads(self) -> None:
        self._job_queued.notify(len(self._queue))
        for _ in range(min(self.capacity - self._threads, len(self._queue) - self._idle)):
            start_thread(threading.Thread(target=self._run_jobs, name="lookupcache-slot", daemon=True))
            self._threads += 1
            self._alive += 1

    def _replace_threads(self) -> list[tuple[Job, RuntimeError]]:
        """Start threads for the slots that have become free; return the jobs that no thread will run, and why.

        Whoever frees a slot has not submitted these jobs, so the error is not raised here.
        """
        try:
            self._start_threads()
        except RuntimeError as error:
            # No thread can be started: existing threads, if any, will run the jobs.
            if not self._threads:
                unstarted = list(self._queue)
                self._queue.clear()
                for job in unstarted:
                    job.started = True
                return [(job, error) for job in unstarted]
        return []

    def _run_jobs(self) -> None:
        try:
            while self._run_next():
                pass
            if self._on_thread_end is not None:
                self._on_thread_end()
        finally:
            with self._lock:
                self._alive -= 1
                self._notify_waiting()

    def _run_next(self) -> bool:
        """Run the next job; return whether the thread continues. An idle thread keeps no job alive."""
        job = self._next()
        if job is None:
            return False
        try:
            return self._run(job)
        except BaseException:
            # The job's `end` has failed, as where memory is short. This thread ends, and another takes its slot.
            with self._lock:
                self._threads -= 1
                unstarted = self._replace_threads()
            _fail(unstarted)
            raise

    def _run(self, job: Job) -> bool:
        """Run a job; return whether it still had its slot when it ended."""
        try:
            answer = job.run()
        except BaseException as error:
            answer = error
        with self._lock:
            # Under the lock: a job that is abandoned now has an answer already, and must not get another.
            self._running.discard(job)
            abandoned = job.abandoned
            self._notify_waiting()
        if not abandoned:
            job.end(answer)
        return not abandoned

    def _next(self) -> Job | None:
        """Wait for the next job; None where the thread is to end."""
        with self._lock:
            if not self._queue:
                self._idle += 1
                self._notify_waiting()
                self._job_queued.wait_for(lambda: self._queue or self._closed, self._idle_seconds)
                self._idle -= 1
            if not self._queue:
                self._threads -= 1
                return None
            job = self._queue.popleft()
            job.started = True
            self._running.add(job)
            return job


def _fail(unstarted: Iterable[tuple[Job, RuntimeError]]) -> None:
    """End jobs that no thread will run; without the lock, which their `end` may need."""
    for job, error in unstarted:
        job.end(error)


def _wait_at_exit() -> None:
    """Wait briefly for busy threads to end.

    Python does not wait for daemon threads. A daemon thread may return from a driver's C++ code while the interpreter
    shuts down. Python then ends it inside of that code, and C++ aborts the process.
    """
    until = time.monotonic() + EXIT_SECONDS
    for slots in list(_all):
        if slots._process == os.getpid():  # a forked process has none of its parent's threads
            slots.wait_at_exit(max(until - time.monotonic(), 0.0))


atexit.register(_wait_at_exit)
