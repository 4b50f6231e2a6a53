"""Threads that run one at a time, in an order that a seed decides, under a simulated clock.

`simulate_threads` replaces the threads, locks, conditions, events, queues and the clock of the library by those of a
`ThreadSimulation`. Its threads are real ones, of which one runs at a time: wherever it would wait, and sometimes where
it takes or frees a lock, starts a thread or wakes another, the seed decides which one goes on. Time passes only where
none can go on. So a seed replays a run exactly, a minute of waiting takes no time, and if nothing can happen any more,
`Deadlock` is raised. The thread of the test is one of them.
"""

from __future__ import annotations

import functools
import gc
import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import FunctionType
from typing import Any
from unittest import mock

from simulation import Deadlock, library, own_rate_limits, without_chance

from lookupcache.executor import call_group
from lookupcache.resilience.policy import ResiliencePolicy
from lookupcache.store.guard import Guard, GuardedStore

FOREVER = 1_000_000.0
"""Who waits for longer than so many seconds waits for ever; and after so many, the threads only wait in turns."""


class Ended(BaseException):
    """Raised in a thread that still waits when a simulation has failed, so that no thread is left."""


class _Turn:
    """A thread of a simulation: what it waits for, and until when. Without ``is_ready`` it can go on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_ready: Callable[[], bool] | None = None
        self.until = math.inf
        self.ident: int | None = None
        self._baton = threading.Lock()
        self._baton.acquire()

    def can_go_on(self, now: float) -> bool:
        return self.is_ready is None or self.until <= now or self.is_ready()

    def give(self) -> None:
        """Let this thread go on."""
        self._baton.release()

    def take(self) -> None:
        """Wait until this thread may go on."""
        self._baton.acquire()

    def where(self) -> str:
        """Return the line at which this thread waits."""
        frame = sys._current_frames().get(self.ident or 0)
        while frame is not None and frame.f_globals.get("__name__") == __name__:
            frame = frame.f_back
        return f"{self.name} is at " + (f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "its beginning")


class ThreadSimulation:
    """Decides by a seed which thread goes on; ``steps`` counts its decisions.

    The seed also decides how often a thread is interrupted where it need not wait, and how often the threads other than
    the test's are so slow that the next timeout is over before they go on, which is the probability ``slow``.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1_000.0
        self.steps = 0
        self.is_over = False
        self.error: BaseException | None = None
        self._end_of_time = self.now + FOREVER
        self._interrupting = self.random.choice([0.0, 0.02, 0.1, 0.5])
        self.slow = self.random.choice([0.0, 0.0, 0.1])
        self._test = _Turn("the test")
        self._test.ident = threading.get_ident()
        self._turns = [self._test]
        self._threads: list[threading.Thread] = []
        self.running = self._test

    def time(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let so much time pass, and the threads do what is due in it."""
        self.sleep(seconds)

    def sleep(self, seconds: float) -> None:
        """Wait in the running thread."""
        self.wait(lambda: False, seconds)

    def finish(self) -> None:
        """Let all threads end; raises Deadlock if one does not."""
        self.wait(lambda: self._turns == [self._test])

    def pause(self) -> None:
        """Perhaps let another thread go on."""
        if not self.is_over and self.random.random() < self._interrupting:
            self._switch()

    def wait(self, is_ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait in the running thread until something is true, at most so many seconds; return whether it is."""
        if self.is_over:
            # The library may still close what it has made, in the thread of the test.
            if not is_ready() and (self.running is not self._test or seconds is None):
                raise Ended
            self.now += seconds or 0.0
            return is_ready()
        me = self.running
        me.is_ready = is_ready
        me.until = math.inf if seconds is None or seconds > FOREVER else self.now + max(seconds, 0.0)
        self._switch()
        return is_ready()

    def run_thread(self, name: str, work: Callable[[], Any]) -> _Turn:
        """Start a thread, which does the work."""
        if self.is_over:
            raise Ended
        turn = _Turn(name)
        thread = threading.Thread(target=self._run, args=(turn, work), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        self._turns.append(turn)
        self.pause()
        return turn

    def is_alive(self, turn: _Turn) -> bool:
        return turn in self._turns

    def end(self) -> None:
        """End the threads that are left, by an exception where they wait."""
        self.is_over = True
        for turn in self._turns[1:]:
            self.running = turn
            turn.give()
            self._test.take()
        self.running = self._test
        for thread in self._threads:
            thread.join()

    def _run(self, turn: _Turn, work: Callable[[], Any]) -> None:
        turn.ident = threading.get_ident()
        turn.take()
        try:
            if not self.is_over:
                work()
        except Ended:
            pass
        except BaseException as error:
            self.error = self.error or error
        self._turns.remove(turn)
        self.running = self._test if self.is_over else self._next()
        self.running.give()

    def _switch(self) -> None:
        """Let the thread go on that is next, and wait until that is the running one again."""
        me, following = self.running, self._next()
        if following is not me:
            self.running = following
            following.give()
            me.take()
            if self.is_over:
                raise Ended
        me.is_ready, me.until = None, math.inf
        if me is self._test and self.error is not None:
            raise self.error

    def _next(self) -> _Turn:
        """Return the thread that is to go on; that of the test, if there is an error, which is then raised there."""
        self.steps += 1
        ready = self._ready()
        timeout = min(turn.until for turn in self._turns)
        is_slow = timeout < math.inf and self._test not in ready and self.random.random() < self.slow
        if is_slow or not ready:
            self.now = max(self.now, min(timeout, self._end_of_time))
            ready = self._ready()
        if self.now >= self._end_of_time and self.error is None:
            self.error = Deadlock("; ".join(turn.where() for turn in self._turns))
        return self._test if self.error is not None else self.random.choice(ready)

    def _ready(self) -> list[_Turn]:
        return [turn for turn in self._turns if turn.can_go_on(self.now)]


# ── what takes the place of threading, queue and time ────────────────────────────────────────────────────────


class _Thread:
    def __init__(
        self,
        simulation: ThreadSimulation,
        *,
        target: Callable[..., Any],
        name: str = "a thread",
        args: tuple[Any, ...] = (),
        daemon: bool = False,
    ) -> None:
        self._simulation = simulation
        self._work = functools.partial(target, *args)
        self._turn: _Turn | None = None
        self.name = name
        self.daemon = daemon

    def start(self) -> None:
        self._turn = self._simulation.run_thread(self.name, self._work)

    def is_alive(self) -> bool:
        return self._turn is not None and self._simulation.is_alive(self._turn)

    def join(self, timeout: float | None = None) -> None:
        self._simulation.wait(lambda: not self.is_alive(), timeout)


class _Lock:
    is_reentrant = False

    def __init__(self, simulation: ThreadSimulation) -> None:
        self._simulation = simulation
        self._owner: _Turn | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._simulation.pause()
        me = self._simulation.running
        if self._owner is not None and not (self.is_reentrant and self._owner is me) and not self._simulation.is_over:
            seconds = None if timeout < 0 else timeout
            if not blocking or not self._simulation.wait(lambda: self._owner is None, seconds):
                return False
        self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        assert self._owner is self._simulation.running or self._simulation.is_over
        self._count -= 1
        if not self._count:
            self._owner = None
            self._simulation.pause()

    def locked(self) -> bool:
        return self._owner is not None

    def give_up(self) -> int:
        """Release it however often it was acquired, and return how often that was."""
        count, self._count, self._owner = self._count, 0, None
        return count

    def take_back(self, count: int) -> None:
        """Acquire it as often as it was."""
        self._simulation.wait(lambda: self._owner is None)
        self._owner, self._count = self._simulation.running, count

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _RLock(_Lock):
    is_reentrant = True


class _Condition:
    def __init__(self, simulation: ThreadSimulation, lock: _Lock | None = None) -> None:
        self._simulation = simulation
        self._lock = _RLock(simulation) if lock is None else lock
        self._waiting: deque[list[bool]] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        notified: list[bool] = []
        self._waiting.append(notified)
        count = self._lock.give_up()
        self._simulation.wait(lambda: bool(notified), timeout)
        self._waiting = deque(one for one in self._waiting if one is not notified)
        self._lock.take_back(count)
        return bool(notified)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = math.inf if timeout is None else self._simulation.now + timeout
        while not (result := predicate()) and self._simulation.now < until:
            self.wait(until - self._simulation.now)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            self._waiting.popleft().append(True)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class _Event:
    def __init__(self, simulation: ThreadSimulation) -> None:
        self._simulation = simulation
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._simulation.pause()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._simulation.wait(lambda: self._is_set, timeout)


class _Queue:
    def __init__(self, simulation: ThreadSimulation) -> None:
        self._simulation = simulation
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._simulation.pause()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._simulation.wait(lambda: bool(self._items), timeout if block else 0.0):
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class _Timers:
    """What is used of the worker's event loop for calls in threads: it starts work later, here each in a thread."""

    def __init__(self, simulation: ThreadSimulation) -> None:
        self._simulation = simulation

    def call_soon_threadsafe(self, work: Callable[..., Any], *args: Any) -> None:
        work(*args)

    def call_later(self, seconds: float, work: Callable[..., Any], *args: Any) -> None:
        def run() -> None:
            self._simulation.sleep(seconds)
            work(*args)

        self._simulation.run_thread("lookupcache-loop", run)


class _Instead:
    """A module of which some names mean something else."""

    def __init__(self, module: Any, **own: Any) -> None:
        self._module = module
        vars(self).update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextmanager
def simulate_threads(seed: int, *modules: Any) -> Iterator[ThreadSimulation]:
    """Put a simulation's threads and time in the place of those of the library, and of these modules of the tests.

    At the end all threads must have ended, or end by their timeouts.
    """
    simulation = ThreadSimulation(seed)
    # A collection of garbage runs the code of what it frees, at a time that no seed decides.
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        with ExitStack() as patches:
            for patch in [*_patches(simulation, [*library(), *modules]), *without_chance(seed)]:
                patches.enter_context(patch)
            try:
                yield simulation
                simulation.finish()
            finally:
                simulation.end()
    finally:
        if is_enabled:
            gc.enable()


def _patches(simulation: ThreadSimulation, modules: list[Any]) -> list[Any]:
    own = {name: functools.partial(kind, simulation) for name, kind in _KINDS.items()}
    simple_queue = functools.partial(_Queue, simulation)
    clock = {"monotonic": simulation.time, "sleep": simulation.sleep, "perf_counter": simulation.time}
    instead = {
        id(threading): _Instead(threading, **own),
        id(queue): _Instead(queue, SimpleQueue=simple_queue),
        id(time): _Instead(time, **clock),
        id(queue.SimpleQueue): simple_queue,
        id(call_group.event_loop): lambda: _Timers(simulation),
    }
    patches = [
        mock.patch.object(module, name, instead[id(value)])
        for module in modules
        for name, value in vars(module).items()
        if id(value) in instead
    ]
    patches += [
        mock.patch.object(module, name, _RLock(simulation))
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, _REAL_LOCKS)
    ]
    patches.append(own_rate_limits(simulation.time))
    return patches + _default_arguments({getattr(time, name): value for name, value in clock.items()})


_KINDS = {"Thread": _Thread, "Lock": _Lock, "RLock": _RLock, "Condition": _Condition, "Event": _Event}
_REAL_LOCKS = type(threading.Lock()), type(threading.RLock())


def _default_arguments(instead: dict[Any, Any]) -> list[Any]:
    """Return patches of the arguments that are a clock by default."""
    patches = []
    for function in [one for kind in (ResiliencePolicy, Guard, GuardedStore) for one in vars(kind).values()]:
        if isinstance(function, FunctionType):
            by_place = tuple(_replaced(value, instead) for value in function.__defaults__ or ())
            by_name = {name: _replaced(value, instead) for name, value in (function.__kwdefaults__ or {}).items()}
            patches += [
                mock.patch.object(function, "__defaults__", by_place or None),
                mock.patch.object(function, "__kwdefaults__", by_name or None),
            ]
    return patches


def _replaced(value: Any, instead: dict[Any, Any]) -> Any:
    return next((other for original, other in instead.items() if value is original), value)
