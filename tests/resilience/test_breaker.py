"""The circuit breaker: every change of state, calls that end too late, and the race for the probe."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lookupcache.errors import LookupRefusedError
from lookupcache.resilience.breaker import Breaker
from lookupcache.testing import FakeClock

# Two failures open the breaker, for ten seconds. ok, bad, none: a call that succeeds, fails, says nothing.
# late: ten seconds pass. refused: a call is not let through.
COURSES = {
    "it is closed at first": "ok",
    "one failure opens nothing": "bad ok",
    "a success between failures": "bad ok bad ok bad ok",
    "a call that says nothing is no success": "bad none bad refused",
    "two in a row": "bad bad refused refused",
    "the probe succeeds": "bad bad refused late ok bad ok",
    "the failures count from zero after a probe": "bad bad late ok bad bad refused",
    "the probe fails": "bad bad late bad refused late bad refused late ok",
    "the probe says nothing": "bad bad late none none ok ok",
}


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_it_changes_from_state_to_state(course: str) -> None:
    clock = FakeClock()
    breaker = Breaker(2, 10.0, clock)
    end = {"ok": breaker.record_success, "bad": breaker.record_failure, "none": breaker.release}
    for step in course.split():
        if step == "late":
            clock.now += 10
        elif step == "refused":
            with pytest.raises(LookupRefusedError):
                breaker.acquire()
        else:
            end[step](breaker.acquire())


def opened(clock: FakeClock) -> Breaker:
    breaker = Breaker(1, 10.0, clock)
    breaker.record_failure(breaker.acquire())
    return breaker


def test_a_refusal_says_for_how_long_and_by_which_option() -> None:
    clock = FakeClock()
    breaker = opened(clock)
    clock.now = 7.5
    with pytest.raises(LookupRefusedError, match=r"for 2\.5 s more[\s\S]*'lookup\.breaker\.delay'") as refusal:
        breaker.acquire()
    assert breaker.open_for() == 2.5
    assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)


def test_exactly_one_of_many_threads_gets_the_probe() -> None:
    clock = FakeClock()
    breaker = opened(clock)
    together = threading.Barrier(8)

    def race() -> bool:
        together.wait()
        try:
            breaker.acquire()
        except LookupRefusedError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        for _ in range(50):
            clock.now += 10
            races = [threads.submit(race) for _ in range(8)]
            assert sum(race.result() for race in races) == 1
            breaker.record_failure()


def test_while_the_probe_is_out_others_are_refused() -> None:
    clock = FakeClock()
    breaker = opened(clock)
    clock.now = 10
    probe = breaker.acquire()
    with pytest.raises(LookupRefusedError, match="until the trial call in progress has ended"):
        breaker.acquire()
    breaker.record_success(probe)
    breaker.acquire()


@pytest.mark.parametrize("end", ["record_success", "record_failure", "release"])
def test_an_old_call_does_not_change_an_open_or_probing_breaker(end: str) -> None:
    clock = FakeClock()
    breaker = Breaker(1, 10.0, clock)
    early, late = breaker.acquire(), breaker.acquire()
    breaker.record_failure(early)
    getattr(breaker, end)(late)
    assert breaker.open_for() == 10
    clock.now = 10
    breaker.acquire()
    getattr(breaker, end)(late)
    with pytest.raises(LookupRefusedError):
        breaker.acquire()
    assert breaker.open_for() == 0


def test_a_late_answer_of_a_hanging_probe_keeps_the_breaker_open() -> None:
    clock = FakeClock()
    breaker = opened(clock)
    clock.now = 10
    hanging = breaker.acquire()
    breaker.record_failure()
    breaker.record_success(hanging)
    assert breaker.open_for() == 10


def test_without_a_limit_it_never_opens() -> None:
    breaker = Breaker(None, 10.0, FakeClock())
    for _ in range(1000):
        breaker.record_failure(breaker.acquire())
    breaker.record_success(breaker.acquire())
    assert breaker.open_for() == 0
