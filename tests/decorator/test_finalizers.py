"""The garbage collector may end a coroutine at any moment, in any thread, also in one that holds one of our locks.

Here each lock, once acquired, ends a coroutine that was left suspended in our code, as the collector would.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from types import SimpleNamespace
from typing import ClassVar

import pytest
from time_limit import LIMIT

from lookupcache import cached
from lookupcache.errors import LookupRuntimeError

MODULES = [
    "decorator.arguments", "decorator.async_lookup", "decorator.batching", "decorator.single_flight",
    "executor.call_group", "executor.latch", "executor.nesting", "executor.task_slots", "functions.adapter", "metrics",
    "resilience.breaker",
]  # fmt: skip


class CollectingLock:
    """A lock that closes one of the suspended coroutines whenever it has been acquired."""

    suspended: ClassVar[list] = []
    collected = 0
    deadlocks: ClassVar[list] = []

    def __init__(self, lock):
        self._lock = lock
        self._reentrant = hasattr(lock, "_is_owned")
        self._owners: list[int] = []

    def acquire(self, *args):
        if not self._reentrant and threading.get_ident() in self._owners:
            self.deadlocks.append(self)
            raise RuntimeError("this thread waits for itself")
        acquired = self._lock.acquire(*args)
        if acquired:
            self._owners.append(threading.get_ident())
            self._collect()
        return acquired

    def release(self):
        self._owners.remove(threading.get_ident())
        self._lock.release()

    def locked(self):
        return bool(self._owners)

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()

    @classmethod
    def _collect(cls):
        if cls.suspended:
            coroutine = cls.suspended.pop()
            cls.collected += 1
            coroutine.close()


@pytest.fixture(autouse=True)
def collecting(monkeypatch):
    CollectingLock.suspended, CollectingLock.deadlocks, CollectingLock.collected = [], [], 0
    ours = SimpleNamespace(**vars(threading))
    ours.Lock = lambda: CollectingLock(threading.Lock())
    ours.RLock = lambda: CollectingLock(threading.RLock())
    for name in MODULES:
        module = importlib.import_module(f"lookupcache.{name}")
        if hasattr(module, "threading"):
            monkeypatch.setattr(module, "threading", ours)
        for lock in ("_lock", "_add_lock"):
            if hasattr(module, lock):
                monkeypatch.setattr(module, lock, CollectingLock(getattr(module, lock)))
    return CollectingLock


class Opened:
    """A function's object that is being opened for ever."""

    async def open(self):
        await asyncio.get_running_loop().create_future()

    async def __call__(self, key):
        return key


async def unanswered(key):
    await asyncio.get_running_loop().create_future()


OPTIONS = [
    {"retry_delay": "1 ms"},
    {"max_retries": 1, "breaker_failures": 4, "retry_delay": "1 ms", "rate_limit": 1e6},
    {"async_capacity": 1, "retry_delay": "1 ms"},
    {"retry_delay": "1 ms", "batch": True, "batch_max_size": 2, "batch_max_delay": "1 h"},
]
FUNCTIONS = {"a call": unanswered, "an opening": Opened, "a nested call": None}


def leave_suspended(function, options):
    """Run calls until they wait, then leave their event loop; return their coroutines."""
    loop = asyncio.new_event_loop()
    made = decorate(function, options)

    async def start():
        keys = [[1], [2, 3], [2, 3]] if options.get("batch") else [1, 2, 2]
        callers = [asyncio.ensure_future(made(key)) for key in keys]
        for _ in range(5):
            await asyncio.sleep(0)
        tasks = (asyncio.all_tasks() - {asyncio.current_task()}).union(callers)
        for task in tasks:
            task._log_destroy_pending = False
        return [task.get_coro() for task in tasks], tasks

    coroutines, tasks = loop.run_until_complete(start())
    loop.close()
    return coroutines, (made, tasks)


def decorate(function, options):
    if function is not None:
        return cached(**options)(function)
    inner = cached(unanswered)

    @cached(**options)
    async def outer(key):
        return await inner(str(key))

    return outer


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "default")
def test_a_coroutine_that_is_collected_while_a_lock_is_held_ends(kind, options, collecting):
    stock, alive = [], []
    for _ in range(20):
        coroutines, owners = leave_suspended(FUNCTIONS[kind], options)
        stock += coroutines
        alive.append(owners)
    collecting.suspended = stock

    @cached(**{**options, **({"batch_max_delay": "1 ms"} if "batch" in options else {})})
    async def answer(key):
        if "error" in key:
            raise OSError("away")
        return key

    key = ["a"] if options.get("batch") else "a"
    error = ["error"] if options.get("batch") else "error"

    async def use():
        with pytest.raises((OSError, LookupRuntimeError)):
            await answer(error)
        answers = await asyncio.gather(answer(key), answer(key))
        await answer.close()
        return answers

    answers = asyncio.run(asyncio.wait_for(use(), LIMIT))
    while stock:
        stock.pop().close()
    assert collecting.deadlocks == []
    assert collecting.collected > 5
    assert answers == ([["a"], ["a"]] if "batch" in options else ["a", "a"])
