"""Calls on their way, in coroutines and in threads: how many at a time, what ends them, what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter

import pyarrow as pa
import pytest

from lookupcache.calls.coroutines import Coroutines
from lookupcache.calls.flight import Flight, event_loop, run_async
from lookupcache.calls.threads import Threads
from lookupcache.connector import Connector
from lookupcache.errors import LookupTimeout


class Source(Connector):
    """Says how often it is opened and closed; a call of it is whatever the test gives it to run."""

    def __init__(self, counts: Counter | None = None) -> None:
        super().__init__(pa.schema([]), {})
        self.counts = Counter() if counts is None else counts

    def open(self):
        self.counts["opened"] += 1

    def close(self):
        self.counts["closed"] += 1


def threads(most=4, timeout=60.0, counts=None) -> Threads:
    counts = Counter() if counts is None else counts

    def opened() -> Source:
        source = Source(counts)
        source.open()
        return source

    return Threads(most, lambda source, call: call(), opened, timeout, lambda: LookupTimeout("too slow"))


def coroutines(most=4, timeout=60.0, counts=None) -> Coroutines:
    source = Source(counts)

    async def ask(call):
        return await call() if asyncio.iscoroutinefunction(call) else call()

    async def opened():
        source.open()

    async def closed():
        source.close()

    return Coroutines(most, ask, opened, closed, timeout, lambda: LookupTimeout("too slow"))


MAKES = {"threads": threads, "coroutines": coroutines}


@pytest.fixture(params=MAKES)
def make(request):
    made = []

    def one(*args, **more):
        made.append(MAKES[request.param](*args, **more))
        return made[-1]

    yield one
    for dispatcher in made:
        dispatcher.close()


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
def test_whatever_a_call_raises_is_its_answer_and_the_next_call_is_made(make, kind, later):
    dispatcher = make(most=1)
    later = later and isinstance(dispatcher, Coroutines)
    flight = Flight([raises(kind, later=later), lambda: 2, raises(kind, later=later), fails])
    dispatcher.start(flight)
    assert dispatcher.landed(wait=True) == [flight]
    assert [type(answer) for answer in flight.answers] == [kind, int, kind, ConnectionError]


def test_answers_come_back_in_the_order_of_the_calls(make):
    dispatcher = make()
    flight = Flight([lambda n=n: n * n for n in range(50)])
    dispatcher.start(flight)
    assert dispatcher.landed(wait=True) == [flight]
    assert flight.answers == [n * n for n in range(50)]
    assert dispatcher.in_flight == 0


def test_an_error_is_the_answer_of_its_call_alone(make):
    dispatcher = make()
    flight = Flight([lambda: 1, fails, lambda: 3])
    dispatcher.start(flight)
    dispatcher.landed(wait=True)
    assert [flight.answers[0], flight.answers[2]] == [1, 3]
    assert isinstance(flight.answers[1], ConnectionError)


def test_calls_that_stand_and_fall_together_end_with_the_first_error(make):
    dispatcher, made = make(most=1), []
    flight = Flight([lambda: 1, fails, lambda: made.append(1)], together=True)
    dispatcher.start(flight)
    assert dispatcher.landed(wait=True) == [flight]
    assert [type(answer) for answer in flight.answers] == [ConnectionError] * 3
    after = Flight([lambda: 2])
    dispatcher.start(after)
    assert (dispatcher.landed(wait=True), after.answers, made) == ([after], [2], [])


def test_it_connects_once_when_first_wanted_and_disconnects(make):
    counts = Counter()
    dispatcher = make(most=1, counts=counts)
    for _ in range(3):
        dispatcher.start(Flight([lambda: 1] * 5))
        dispatcher.landed(wait=True)
    assert counts == {"opened": 1}
    dispatcher.close()
    until(lambda: counts["closed"] == 1)


def test_a_flight_waits_for_its_time(make):
    dispatcher = make()
    flight, later = Flight([lambda: 1]), Flight([lambda: 2])
    dispatcher.start_later(later, 3600)
    dispatcher.start_later(flight, 0.001)
    assert dispatcher.landed(wait=True) == [flight]
    dispatcher.start(later)
    assert dispatcher.landed(wait=True) == [later]


def test_a_flight_that_is_withdrawn_does_not_start(make):
    dispatcher = make()
    held, gone = Flight([lambda: 1]), Flight([lambda: 2])
    dispatcher.start_later(held, 3600)
    assert dispatcher.withdraw(held)
    dispatcher.start(held)
    dispatcher.start(gone)
    assert dispatcher.landed(wait=True) == [gone]
    assert not dispatcher.withdraw(gone)


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
    together = threading.Barrier(3)
    dispatcher = threads(most=3)
    dispatcher.start(Flight([lambda: together.wait(10)] * 6))
    [flight] = dispatcher.landed(wait=True)
    assert sorted(flight.answers) == [0, 0, 1, 1, 2, 2]
    dispatcher.close()


def test_each_thread_has_a_connector_of_its_own():
    together, counts = threading.Barrier(3), Counter()
    dispatcher = threads(most=3, counts=counts)
    dispatcher.start(Flight([lambda: together.wait(10)] * 3))
    dispatcher.landed(wait=True)
    dispatcher.close()
    until(lambda: counts == {"opened": 3, "closed": 3})


def test_a_call_that_hangs_is_answered_for_and_its_place_is_free_again():
    released, counts = threading.Event(), Counter()
    dispatcher = threads(most=1, timeout=0.02, counts=counts)
    hung, after = Flight([released.wait]), Flight([lambda: 2])
    dispatcher.start(hung)
    assert dispatcher.landed(wait=True) == [hung]
    assert isinstance(hung.answers[0], LookupTimeout)
    dispatcher.start(after)
    assert (dispatcher.landed(wait=True), after.answers) == ([after], [2])
    released.set()
    until(lambda: counts == {"opened": 2, "closed": 1})
    assert isinstance(hung.answers[0], LookupTimeout)
    dispatcher.close()


def test_a_cancelled_flight_holds_no_thread():
    released, began = threading.Event(), threading.Event()

    def hang():
        began.set()
        released.wait()

    dispatcher = threads(most=1)
    hung, before, after = Flight([hang, fails]), Flight([lambda: 1]), Flight([lambda: 2])
    dispatcher.start(hung)
    began.wait(10)
    dispatcher.start(before)
    dispatcher.cancel(hung)
    until(lambda: not before.remaining)
    assert (dispatcher.landed(wait=True), before.answers) == ([before], [1])
    dispatcher.start(after)
    assert (dispatcher.landed(wait=True), dispatcher.in_flight) == ([after], 0)
    released.set()
    dispatcher.close()


# ── coroutines ───────────────────────────────────────────────────────────────────────────────────────────


def test_coroutines_make_as_many_calls_at_a_time_as_they_may():
    flying, most = Counter(), Counter()

    async def call():
        flying["now"] += 1
        most["ever"] = max(most["ever"], flying["now"])
        await asyncio.sleep(0)
        flying["now"] -= 1

    dispatcher = coroutines(most=7)
    dispatcher.start(Flight([call] * 40))
    dispatcher.landed(wait=True)
    assert (most["ever"], flying["now"]) == (7, 0)
    dispatcher.close()


def hanging(counts: Counter):
    async def hang():
        counts["began"] += 1
        try:
            await asyncio.Event().wait()
        finally:
            counts["ended"] += 1

    return hang


def test_a_cancelled_flight_has_ended_when_cancel_returns():
    counts: Counter = Counter()
    dispatcher = coroutines(most=3)
    hung, after = Flight([hanging(counts)] * 5), Flight([lambda: 2])
    dispatcher.start(hung)
    until(lambda: counts["began"] == 3)
    dispatcher.cancel(hung)
    assert counts == {"began": 3, "ended": 3}
    dispatcher.start(after)
    assert dispatcher.landed(wait=True) == [after]
    dispatcher.close()


def test_an_error_cancels_the_calls_that_fall_with_it_before_the_flight_lands():
    counts: Counter = Counter()
    dispatcher = coroutines(most=3)
    dispatcher.start(Flight([hanging(counts), hanging(counts), fails], together=True))
    dispatcher.landed(wait=True)
    assert counts == {"began": 2, "ended": 2}
    dispatcher.close()


def test_calls_that_hang_are_cancelled_when_they_are_overdue_and_their_places_are_free_again():
    counts: Counter = Counter()
    dispatcher = coroutines(most=2, timeout=0.02)
    dispatcher.start(Flight([hanging(counts), lambda: 1, hanging(counts), lambda: 2]))
    [flight] = dispatcher.landed(wait=True)
    assert [type(answer) for answer in flight.answers] == [LookupTimeout, int, LookupTimeout, int]
    assert counts == {"began": 2, "ended": 2}
    dispatcher.close()


def test_a_connection_that_hangs_is_overdue_too():
    hangs = iter([True, False])

    async def opened():
        if next(hangs):
            await asyncio.Event().wait()

    async def ask(call):
        return call

    async def closed():
        pass

    dispatcher = Coroutines(1, ask, opened, closed, 0.02, lambda: LookupTimeout("too slow"))
    dispatcher.start(Flight([1, 2]))
    [flight] = dispatcher.landed(wait=True)
    assert [type(answer) for answer in flight.answers] == [LookupTimeout, int]
    dispatcher.close()


@pytest.mark.parametrize("kind", NO_EXCEPTIONS)
def test_a_connection_that_raises_no_exception_is_tried_again_by_the_next_call(kind):
    tries = iter([raises(kind), lambda: None])

    async def opened():
        next(tries)()

    async def ask(call):
        return call

    async def closed():
        pass

    dispatcher = Coroutines(1, ask, opened, closed, 60, LookupTimeout)
    dispatcher.start(Flight([1, 2]))
    [flight] = dispatcher.landed(wait=True)
    assert isinstance(flight.answers[0], kind)
    assert flight.answers[1] == 2
    dispatcher.close()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_task_that_ends_the_loop_ends_no_call(kind):
    async def call():
        with contextlib.suppress(kind):
            await asyncio.create_task(raises(kind, later=True)())
        return 1

    dispatcher = coroutines(most=2)
    dispatcher.start(Flight([call] * 5))
    [flight] = dispatcher.landed(wait=True)
    assert flight.answers == [1] * 5
    dispatcher.close()


def stubborn(released: asyncio.Event, began: threading.Event):
    """Return a call that goes on when it is cancelled, until it is released."""

    async def call():
        began.set()
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return "at last"

    return call


def test_a_call_that_does_not_heed_its_cancellation_is_left_when_it_is_overdue(monkeypatch):
    monkeypatch.setattr("lookupcache.calls.coroutines._PATIENCE", 0.01)
    released = asyncio.Event()
    dispatcher = coroutines(most=1, timeout=0.02)
    dispatcher.start(Flight([stubborn(released, threading.Event()), lambda: 2]))
    [flight] = dispatcher.landed(wait=True)
    assert [type(answer) for answer in flight.answers] == [LookupTimeout, int]
    event_loop().call_soon_threadsafe(released.set)
    after = Flight([lambda: 3])
    dispatcher.start(after)
    assert (dispatcher.landed(wait=True), after.answers) == ([after], [3])
    assert isinstance(flight.answers[0], LookupTimeout)
    dispatcher.close()


def test_a_call_that_does_not_heed_its_cancellation_keeps_no_place(monkeypatch):
    monkeypatch.setattr("lookupcache.calls.coroutines._PATIENCE", 0.01)
    released, began = asyncio.Event(), threading.Event()
    dispatcher = coroutines(most=1)
    hung, after = Flight([stubborn(released, began)]), Flight([lambda: 2])
    dispatcher.start(hung)
    assert began.wait(10)
    dispatcher.cancel(hung)
    dispatcher.start(after)
    assert (dispatcher.landed(wait=True), after.answers) == ([after], [2])
    event_loop().call_soon_threadsafe(released.set)
    dispatcher.close()


@pytest.mark.parametrize("kind", [asyncio.CancelledError, ConnectionError])
def test_what_a_call_makes_of_its_cancellation_is_a_timeout_and_hits_no_other_call(kind):
    async def turns_it_into_its_own():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise kind("cancelled") from None

    dispatcher = coroutines(most=1, timeout=0.02)
    dispatcher.start(Flight([turns_it_into_its_own, raises(asyncio.CancelledError), lambda: 3]))
    [flight] = dispatcher.landed(wait=True)
    assert [type(answer) for answer in flight.answers] == [LookupTimeout, asyncio.CancelledError, int]
    dispatcher.close()


def test_calls_that_have_ended_are_not_watched_over():
    dispatcher = coroutines(most=2)
    dispatcher.start(Flight([lambda: 1] * 1_000))
    dispatcher.landed(wait=True)
    assert len(dispatcher._overdue) < 20
    dispatcher.close()


def test_close_cancels_what_is_under_way():
    counts: Counter = Counter()
    dispatcher = coroutines(counts=counts)
    dispatcher.start(Flight([hanging(counts)]))
    until(lambda: counts["began"] == 1)
    dispatcher.close()
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

    dispatcher = Coroutines(1, ask, opened, closed, 60, LookupTimeout)
    dispatcher.start(Flight([1, 2]))
    [flight] = dispatcher.landed(wait=True)
    assert isinstance(flight.answers[0], ConnectionError)
    assert flight.answers[1] == 2
    dispatcher.close()


def test_the_loop_outlives_its_callers():
    async def loop():
        return asyncio.get_running_loop()

    assert run_async(loop()) is run_async(loop()) is event_loop()
