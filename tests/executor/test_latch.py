"""`Latch`: who waits is woken when it opens, in any thread and event loop, and nothing is kept of who has waited."""

from __future__ import annotations

import asyncio
import threading
import time

from time_limit import LIMIT

from lookupcache.executor.latch import Latch
from lookupcache.testing.checks import eventually


def test_a_wait_ends_after_its_timeout():
    latch = Latch()
    for wait in (latch.wait, lambda seconds: asyncio.run(latch.wait_async(seconds))):
        began = time.monotonic()
        assert not wait(0.02)
        assert 0.015 < time.monotonic() - began < 10
        assert not latch._wakers


def test_threads_and_coroutines_of_any_loop_are_woken():
    latch, woken = Latch(), []
    waits = [lambda: latch.wait(), lambda: latch.wait(LIMIT), lambda: asyncio.run(latch.wait_async())]
    waits.append(lambda: asyncio.run(latch.wait_async(60)))
    # Longer than a thread can wait at a time.
    waits.append(lambda: latch.wait(1e12))
    waiting = [threading.Thread(target=lambda wait=wait: woken.append(wait())) for wait in waits]
    for thread in waiting:
        thread.start()
    assert eventually(lambda: len(latch._wakers) == len(waits), 20)

    async def open_it():
        latch.open()

    asyncio.run(open_it())
    for thread in waiting:
        thread.join(LIMIT)
    assert woken == [True] * len(waits)
    assert not latch._wakers
    assert latch.wait()
    assert asyncio.run(latch.wait_async())


def test_a_latch_wakes_a_waiter_that_is_added_while_it_opens():
    class OpenedMeanwhile(Latch):
        """Another thread opens it between the first look and the adding of the waker."""

        __slots__ = ("looked",)

        def _add_waker(self, wake):
            self.is_open = True
            return super()._add_waker(wake)

    latch = OpenedMeanwhile()
    assert latch.wait(LIMIT)
    assert not latch._wakers
    latch = OpenedMeanwhile()
    assert asyncio.run(latch.wait_async(20))
    assert not latch._wakers


def test_a_coroutine_that_is_cancelled_is_woken_no_more():
    async def cancel(before):
        latch = Latch()
        waiting = asyncio.ensure_future(latch.wait_async())
        await asyncio.sleep(0)
        if not before:
            latch.open()
        waiting.cancel()
        if before:
            latch.open()
        latch.open()
        ended = await asyncio.gather(waiting, return_exceptions=True)
        return type(ended[0]), latch._wakers

    assert asyncio.run(cancel(before=True)) == (asyncio.CancelledError, {})
    assert asyncio.run(cancel(before=False)) == (asyncio.CancelledError, {})


def test_a_latch_wakes_other_waiters_if_one_has_a_closed_loop():
    latch, loop = Latch(), asyncio.new_event_loop()
    coroutine = latch.wait_async()
    waiting = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    woken = []
    thread = threading.Thread(target=lambda: woken.append(latch.wait(LIMIT)))
    thread.start()
    assert eventually(lambda: len(latch._wakers) == 2, 20)
    latch.open()
    thread.join(LIMIT)
    assert woken == [True]
    coroutine.close()
    waiting._log_destroy_pending = False
