"""One call with everything around it: retries, breaker, rate limit, time, and looks for rows that come late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookupcache.config import LookupConfig
from lookupcache.errors import LookupRefusedError, LookupTimeoutError, SourceError
from lookupcache.resilience.policy import AttemptsExhaustedError, ResiliencePolicy
from lookupcache.resilience.rate_limit import RateLimit
from lookupcache.resilience.runtime import ASYNC, SYNC, Runtime, awaitable


class Down(ConnectionError):
    """The source is down; worth a retry."""


class Wrong(TypeError):
    """The program is wrong; not worth one."""


class World:
    """A source with listed answers, and a clock that only its answers and the waits for it move."""

    def __init__(self, *answers: Any, takes: float = 0.0) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.requested = 0
        self._answers = chain(answers, repeat(answers[-1]))
        self._takes = takes

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def ask(self) -> Any:
        self.requested += 1
        self.now += self._takes
        answer = next(self._answers)
        if isinstance(answer, type | BaseException):
            raise answer
        return answer

    def resilience(self, **options: Any) -> ResiliencePolicy:
        config = LookupConfig(**{"retry_delay": 1, "retry_jitter": 0, **options})
        return ResiliencePolicy(config, clock=self.clock)


def slept(sleep: Callable[[float], None]) -> Runtime:
    return replace(SYNC, sleep=awaitable(sleep))


def now(world: World, resilience: ResiliencePolicy) -> Any:
    return resilience.call_sync(world.ask, slept(world.sleep))


def on_a_loop(world: World, resilience: ResiliencePolicy) -> Any:
    async def ask() -> Any:
        await asyncio.sleep(0)
        return world.ask()

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)
        world.sleep(seconds)

    return asyncio.run(resilience.call(ask, replace(ASYNC, sleep=sleep)))


Call = Callable[[World, ResiliencePolicy], Any]


@pytest.fixture(params=[now, on_a_loop])
def call(request: pytest.FixtureRequest) -> Call:
    """Return one of the two ways to call a source."""
    return request.param


def counts(resilience: ResiliencePolicy) -> dict[str, float]:
    return dict(resilience.counters)


def test_an_answer_is_passed_on(call: Call) -> None:
    world = World(42)
    resilience = world.resilience()
    assert call(world, resilience) == 42
    assert counts(resilience) == {"calls": 1}


def test_a_source_that_is_down_is_called_again(call: Call) -> None:
    world = World(Down, Down, 42)
    resilience = world.resilience()
    assert call(world, resilience) == 42
    assert world.waits == [1, 2]
    assert counts(resilience) == {"calls": 3, "errors": 2, "retries": 2}


def test_the_last_error_ends_it(call: Call) -> None:
    last = Down("last")
    world = World(Down("first"), Down("second"), last)
    with pytest.raises(AttemptsExhaustedError) as end:
        call(world, world.resilience(max_retries=2))
    assert (end.value.error, end.value.attempts, end.value.__cause__) == (last, 3, last)


@pytest.mark.parametrize("answers", [[Wrong, 42], [Down, Wrong, 42]])
def test_a_wrong_request_is_not_repeated(call: Call, answers: list[Any]) -> None:
    world = World(*answers)
    with pytest.raises(AttemptsExhaustedError) as end:
        call(world, world.resilience())
    assert isinstance(end.value.error, Wrong)
    assert end.value.attempts == world.requested == len(answers) - 1


def test_the_connectors_word_decides(call: Call) -> None:
    world = World(Wrong, Down, 42)
    resilience = ResiliencePolicy(
        LookupConfig(retry_delay=1), retryable=lambda error: isinstance(error, Wrong), clock=world.clock
    )
    with pytest.raises(AttemptsExhaustedError) as end:
        call(world, resilience)
    assert isinstance(end.value.error, Down)


def test_a_word_that_fails_is_an_error(call: Call) -> None:
    world = World(Down, 42)
    resilience = ResiliencePolicy(LookupConfig(), retryable=lambda error: error.nothing, clock=world.clock)
    with pytest.raises(AttemptsExhaustedError) as end:
        call(world, resilience)
    assert isinstance(end.value.error, AttributeError)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("failures", [[], [Down]])
def test_an_interruption_passes(interruption: type[BaseException], failures: list[Any]) -> None:
    world = World(*failures, interruption)
    with pytest.raises(interruption):
        now(world, world.resilience())


def test_a_source_that_stops_an_iteration_has_failed(call: Call) -> None:
    world = World(StopIteration(42))
    with pytest.raises(AttemptsExhaustedError):
        call(world, world.resilience(max_retries=1))


def test_a_stop_iteration_is_retried_and_raised_like_any_error() -> None:
    world, requested = World(StopIteration(1), StopIteration(2)), []
    resilience = ResiliencePolicy(
        LookupConfig(max_retries=1), retryable=lambda error: not requested.append(error), clock=world.clock
    )
    with pytest.raises(AttemptsExhaustedError) as end:
        now(world, resilience)
    assert [error.value for error in requested] == [1, 1, 2, 2]
    assert (type(end.value.error), end.value.attempts) == (StopIteration, 2)


# ── waits ────────────────────────────────────────────────────────────────────────────────────────────────


def busy(seconds: float) -> Down:
    error = Down("429")
    error.retry_after = seconds
    return error


def test_a_servers_wish_makes_the_wait_longer_but_not_shorter(call: Call) -> None:
    world = World(busy(30), busy(0.5), 42)
    assert call(world, world.resilience()) == 42
    assert world.waits == [30, 2]


def test_a_wait_that_would_outlast_the_lookup_ends_it_at_once(call: Call) -> None:
    world = World(busy(60))
    resilience = world.resilience(timeout=10)
    with pytest.raises(AttemptsExhaustedError) as end:
        call(world, resilience)
    assert world.waits == []
    assert "a delay of 60 s" in end.value.error.__notes__[0]
    assert "'lookup.timeout' leaves 10 s" in end.value.error.__notes__[0]


def test_an_error_object_that_comes_again_is_noted_once(call: Call) -> None:
    world = World(busy(60))
    resilience = world.resilience(timeout=10)
    for _ in range(3):
        with pytest.raises(AttemptsExhaustedError) as end:
            call(world, resilience)
    assert len(end.value.error.__notes__) == 1


def test_time_spent_in_calls_counts_too(call: Call) -> None:
    world = World(Down, takes=4)
    with pytest.raises(AttemptsExhaustedError) as end:
        call(world, world.resilience(timeout=10, retry_strategy="fixed-delay"))
    assert end.value.attempts == 2


# ── the breaker ──────────────────────────────────────────────────────────────────────────────────────────


def fails(call: Call, world: World, resilience: ResiliencePolicy) -> type[Exception]:
    """Return the kind of error that a call ends with."""
    with pytest.raises((AttemptsExhaustedError, LookupRefusedError)) as end:
        call(world, resilience)
    return end.type


def test_a_dead_source_is_left_alone_then_probed_once(call: Call) -> None:
    world = World(Down, Down, Down, 42)
    resilience = world.resilience(breaker_failures=2, breaker_delay=30, max_retries=0)
    assert [fails(call, world, resilience) for _ in range(4)] == [
        AttemptsExhaustedError,
        AttemptsExhaustedError,
        LookupRefusedError,
        LookupRefusedError,
    ]
    world.now = 30
    assert [fails(call, world, resilience) for _ in range(2)] == [AttemptsExhaustedError, LookupRefusedError]
    world.now = 60
    assert [call(world, resilience), call(world, resilience)] == [42, 42]
    assert counts(resilience) == {"calls": 5, "errors": 3, "refused": 3}


def test_a_retry_that_would_be_refused_is_not_waited_for(call: Call) -> None:
    world = World(Down)
    resilience = world.resilience(breaker_failures=2, breaker_delay=30, max_retries=9)
    with pytest.raises(AttemptsExhaustedError) as end:
        call(world, resilience)
    assert (end.value.attempts, world.waits) == (2, [1])


def test_a_retry_whose_wait_outlasts_the_breakers_is_the_probe(call: Call) -> None:
    world = World(Down, 42)
    assert call(world, world.resilience(breaker_failures=1, breaker_delay=1)) == 42


def test_a_retry_that_is_refused_gives_the_error_it_had() -> None:
    world = World(Down)
    resilience = world.resilience(breaker_failures=1, breaker_delay=1)

    def sleep(seconds: float) -> None:
        world.sleep(seconds)
        resilience.timeout_error()

    with pytest.raises(AttemptsExhaustedError) as end:
        resilience.call_sync(world.ask, slept(sleep))
    assert isinstance(end.value.error, Down)
    assert (world.requested, end.value.attempts, resilience.counters["refused"]) == (1, 1, 1)
    assert "Not retried: The circuit breaker is open" in end.value.error.__notes__[0]


def test_an_error_of_the_program_says_nothing_about_the_source(call: Call) -> None:
    world = World(Wrong, Wrong, Wrong, 42)
    resilience = world.resilience(breaker_failures=1)
    assert [fails(call, world, resilience) for _ in range(3)] == [AttemptsExhaustedError] * 3
    assert call(world, resilience) == 42


@pytest.mark.parametrize("end", [KeyboardInterrupt, Wrong])
def test_a_probe_without_result_gives_its_place_back(call: Call, end: type[BaseException]) -> None:
    world = World(Down, end, 42)
    resilience = world.resilience(breaker_failures=1, breaker_delay=30, max_retries=0)
    fails(call, world, resilience)
    world.now = 30
    with pytest.raises((AttemptsExhaustedError, KeyboardInterrupt)):
        call(world, resilience)
    assert call(world, resilience) == 42


def test_a_cancelled_probe_gives_its_place_back() -> None:
    world = World(Down, 42)
    resilience = world.resilience(breaker_failures=1, breaker_delay=30, max_retries=0)
    fails(now, world, resilience)
    world.now = 30

    async def cancelled_in_flight() -> None:
        requested = asyncio.Event()

        async def hang() -> None:
            requested.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(resilience.call(hang))
        await requested.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled_in_flight())
    assert now(world, resilience) == 42


# ── the rate limit ───────────────────────────────────────────────────────────────────────────────────────


def test_every_attempt_waits_for_its_slot(call: Call) -> None:
    world = World(Down, 42)
    resilience = world.resilience(rate_limit=0.25)
    assert call(world, resilience) == 42
    assert world.waits == [1, 3]
    assert call(world, resilience) == 42
    assert world.waits == [1, 3, 4]
    assert resilience.counters["throttled_seconds"] == 7


def test_a_limit_is_shared_by_the_guards_that_are_given_it(call: Call) -> None:
    world = World(42)
    limiter = RateLimit(0.5, clock=world.clock)
    for _ in range(3):
        call(world, ResiliencePolicy(LookupConfig(), limiter=limiter, clock=world.clock))
    assert world.waits == [2, 2]


def test_a_slot_after_the_timeout_ends_the_lookup_and_stays_free(call: Call) -> None:
    world = World(42)
    resilience = world.resilience(rate_limit=0.1, timeout=5, breaker_failures=1)
    call(world, resilience)
    for _ in range(3):
        with pytest.raises(LookupTimeoutError, match=r"next slot is in 10 s[\s\S]*'lookup\.rate-limit'"):
            call(world, resilience)
    world.now = 10
    assert call(world, resilience) == 42
    assert counts(resilience) == {"calls": 2, "timeouts": 3}


def test_a_retry_without_a_slot_gives_the_error_it_had(call: Call) -> None:
    world = World(Down)
    with pytest.raises(AttemptsExhaustedError) as end:
        call(world, world.resilience(rate_limit=0.1, timeout=5))
    assert isinstance(end.value.error, Down)
    assert "next slot is in" in end.value.error.__notes__[0]


def test_a_probe_without_a_slot_gives_its_place_back(call: Call) -> None:
    world = World(Down, 42)
    resilience = world.resilience(rate_limit=0.1, timeout=5, breaker_failures=1, breaker_delay=2, max_retries=0)
    fails(call, world, resilience)
    world.now = 2
    with pytest.raises(LookupTimeoutError):
        call(world, resilience)
    world.now = 10
    assert call(world, resilience) == 42


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_timeout_is_counted_and_is_a_failure_for_the_breaker() -> None:
    resilience = ResiliencePolicy(LookupConfig(timeout=0, breaker_failures=1))
    with pytest.raises(LookupTimeoutError, match=r"'lookup\.timeout'[\s\S]*'lookup\.batch\.max-size'"):
        raise resilience.timeout_error()
    assert counts(resilience) == {"timeouts": 1}
    with pytest.raises(LookupRefusedError):
        resilience.call_sync(lambda: 42)


def test_a_timeout_of_the_sources_own_is_an_error_like_others(call: Call) -> None:
    world = World(TimeoutError("slow"))
    resilience = world.resilience(max_retries=0)
    with pytest.raises(AttemptsExhaustedError) as end:
        call(world, resilience)
    assert str(end.value.error) == "slow"
    assert resilience.counters["timeouts"] == 0


# ── rows that come late ──────────────────────────────────────────────────────────────────────────────────


class Late(World):
    """A source whose rows come one after the other: key n is there from the call n on."""

    def look(self, keys: list[int]) -> list[int]:
        self.ask()
        return [key for key in keys if key <= self.requested]


def missing(keys: list[int], rows: list[int]) -> list[int] | None:
    return [key for key in keys if key not in rows] or None


def looked_now(world: Late, resilience: ResiliencePolicy, keys: list[int]) -> Any:
    return resilience.until_found_sync(world.look, keys, missing, slept(world.sleep))


def looked_on_a_loop(world: Late, resilience: ResiliencePolicy, keys: list[int]) -> Any:
    async def look(keys: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return world.look(keys)

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)
        world.sleep(seconds)

    return asyncio.run(resilience.until_found(look, keys, missing, replace(ASYNC, sleep=sleep)))


@pytest.fixture(params=[looked_now, looked_on_a_loop])
def looked(request: pytest.FixtureRequest) -> Callable[[Late, ResiliencePolicy, list[int]], Any]:
    """Return one of the two ways to look for rows."""
    return request.param


def test_keys_without_a_row_are_requested_again(looked: Any) -> None:
    world = Late(None)
    resilience = world.resilience(on_miss_max_attempts=5, on_miss_delay=3)
    assert looked(world, resilience, [1, 2, 3]) == [([1, 2, 3], [1]), ([2, 3], [2]), ([3], [3])]
    assert world.waits == [3, 3]
    assert counts(resilience) == {"calls": 3, "miss_retries": 2}


LOOKS = [
    # options, calls
    ({}, 1),
    ({"on_miss_max_attempts": 2}, 3),
    ({"on_miss_max_attempts": 9, "on_miss_delay": 4, "timeout": 10}, 3),
    ({"on_miss_max_attempts": 9, "on_miss_delay": 10, "timeout": 10}, 1),
]


@pytest.mark.parametrize(("options", "calls"), LOOKS)
def test_a_key_that_is_not_found_in_time_is_a_miss(looked: Any, options: dict[str, Any], calls: int) -> None:
    world = Late(None)
    found = looked(world, world.resilience(**options), [99])
    assert found == [([99], [])] * calls


def test_an_error_in_a_later_attempt_fails_the_call(looked: Any) -> None:
    world = Late(None, SourceError("short"))
    with pytest.raises(AttemptsExhaustedError) as end:
        looked(world, world.resilience(on_miss_max_attempts=1), [9])
    assert isinstance(end.value.error, SourceError)


def test_all_looks_and_retries_share_one_timeout(looked: Any) -> None:
    world = Late(None, Down)
    with pytest.raises(AttemptsExhaustedError) as end:
        looked(world, world.resilience(on_miss_max_attempts=1, on_miss_delay=8, timeout=10), [9])
    assert (end.value.attempts, world.now) == (2, 9)


# ── any course ───────────────────────────────────────────────────────────────────────────────────────────

ANSWERS = st.lists(st.sampled_from([42, Down, Wrong, None, "busy"]), min_size=1, max_size=8)
OPTIONS = st.fixed_dictionaries(
    {
        "max_retries": st.integers(0, 5),
        "retry_strategy": st.sampled_from(["exponential", "fixed-delay"]),
        "retry_delay": st.integers(0, 4),
        "retry_max_delay": st.integers(4, 9),
        "timeout": st.integers(1, 40),
    }
)


def expected(answers: Iterable[Any], takes: float, options: dict[str, Any]) -> tuple[Any, list[float]]:
    """Return what a call must come to, an answer or the class of its last error, and the waits on the way."""
    waits: list[float] = []
    spent = 0.0
    for attempt, answer in enumerate(answers, 1):
        spent += takes
        if answer not in (Down, Wrong, "busy"):
            return answer, waits
        grown = min(options["retry_delay"] * 2 ** (attempt - 1), options["retry_max_delay"])
        wait = grown if options["retry_strategy"] == "exponential" else options["retry_delay"]
        wait = max(wait, 6) if answer == "busy" else wait
        if answer is Wrong or attempt > options["max_retries"] or spent + wait >= options["timeout"]:
            break
        waits.append(wait)
        spent += wait
    return (Wrong if answer is Wrong else Down), waits


@pytest.mark.extended
@given(answers=ANSWERS, takes=st.integers(0, 5), options=OPTIONS)
def test_any_course_ends_as_it_must_and_both_ways_alike(answers, takes, options) -> None:
    ends = []
    for way in (now, on_a_loop):
        world = World(*[busy(6) if answer == "busy" else answer for answer in answers], takes=takes)
        resilience = world.resilience(**options)
        try:
            result, attempts = way(world, resilience), world.requested
        except AttemptsExhaustedError as end:
            result, attempts = type(end.error), end.attempts
        assert attempts == world.requested
        assert resilience.counters["calls"] == world.requested == len(world.waits) + 1 <= options["max_retries"] + 1
        ends.append((result, world.waits, counts(resilience)))
    assert ends[0] == ends[1]
    assert ends[0][:2] == expected(chain(answers, repeat(answers[-1])), takes, options)


@given(answers=ANSWERS, lookups=st.integers(1, 20), late=st.integers(0, 20), rate=st.sampled_from([None, 0.1, 5]))
def test_an_error_never_becomes_an_answer(answers, lookups, late, rate) -> None:
    world = World(*[busy(6) if answer == "busy" else answer for answer in answers])
    resilience = world.resilience(max_retries=2, breaker_failures=2, breaker_delay=10, rate_limit=rate, timeout=20)
    good = 0
    for _ in range(lookups):
        try:
            assert now(world, resilience) in (42, None)
            good += 1
        except (AttemptsExhaustedError, LookupRefusedError, LookupTimeoutError):
            world.now += late
    assert good == world.requested - resilience.counters["errors"]
    assert resilience.counters["calls"] == world.requested
