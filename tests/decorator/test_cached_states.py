"""Any order of calls of a `cached` function, errors, waits and removals, compared with what the function answered.

Each answer has a number of its own, so that a value says which call it came from, and when that was.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from option_values import EVICTIONS
from scale import scale_up

from lookupcache import cached

KEYS = st.integers(0, 8)


@st.composite
def options(draw) -> dict[str, Any]:
    write = draw(st.sampled_from([None, 2, 6]))
    found = {
        "max_rows": draw(st.sampled_from([None, 2, 5])),
        "expire_after_write": write,
        "eviction": draw(st.sampled_from(EVICTIONS)),
        "missing_key": draw(st.booleans()),
        "max_retries": draw(st.integers(0, 1)),
        "on_error": draw(st.sampled_from(["fail", "null"])),
        "retry_delay": 0,
    }
    if write:
        found["stale_if_error"] = draw(st.sampled_from([None, 9]))
    return found


class Calls(RuleBasedStateMachine):
    """A function of one key, called by one caller or by several at a time."""

    is_async = False

    @initialize(options=options())
    def start(self, options: dict[str, Any]) -> None:
        self.options, self.now, self.down = options, 0.0, False
        self.made: list[tuple[int, int | None, float]] = []
        self.since: dict[int, int] = {}
        self.requested = self.failures = 0

        def answer(key: int) -> list | None:
            if self.down:
                self.failures += 1
                raise ConnectionError("down")
            self.made.append((key, len(self.made) if key else None, self.now))
            return [self.made[-1][1]] if key else None

        async def later(key: int) -> list | None:
            await asyncio.sleep(0)
            return answer(key)

        self.function = cached(**options, clock=lambda: self.now)(later if self.is_async else answer)
        self.loop = asyncio.new_event_loop() if self.is_async else None

    def teardown(self) -> None:
        if getattr(self, "loop", None) is not None:
            self.loop.run_until_complete(self.function.close())
            self.loop.close()

    def answers(self, keys: list[int]) -> list[Any]:
        """Return the answers to callers that come at the same time, or one after the other; an error is its own."""
        if self.loop is None:
            return [self.one(key) for key in keys]

        async def at_once() -> list[Any]:
            return await asyncio.gather(*map(self.function, keys), return_exceptions=True)

        return self.loop.run_until_complete(at_once())

    def one(self, key: int) -> Any:
        try:
            return self.function(key)
        except ConnectionError as error:
            return error

    @rule(keys=st.lists(KEYS, min_size=1, max_size=5))
    def call(self, keys: list[int]) -> None:
        self.requested += len(keys)
        for together in [keys] if self.is_async else [[key] for key in keys]:
            before = len(self.made)
            for key, found in zip(together, self.answers(together), strict=True):
                self.check(key, found)
            made = [key for key, _, _ in self.made[before:]]
            assert len(made) == len(set(made)), "A key was requested twice by callers that came at the same time."

    def check(self, key: int, found: Any) -> None:
        if isinstance(found, ConnectionError):
            assert self.down
            assert self.options["on_error"] == "fail"
        elif found is None:
            # None is the answer for key 0, and stands in for an error; it is never another key's answer.
            assert key == 0 or (self.down and self.options["on_error"] == "null")
        else:
            self.check_value(key, found[0])

    def check_value(self, key: int, version: int) -> None:
        of, number, at = self.made[version]
        assert (of, number) == (key, version)
        assert version >= self.since.get(key, 0), "A value was found that had been removed."
        later = [call for call in self.made[version + 1 :] if call[0] == key]
        assert not later, "A later answer was there."
        age, longest = self.now - at, self.options["expire_after_write"] or math.inf
        assert age <= longest or (self.down and age <= (self.options.get("stale_if_error") or 0))

    @rule(down=st.booleans())
    def fail(self, down: bool) -> None:
        self.down = down

    @rule(seconds=st.sampled_from([0.5, 1, 3, 9]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(key=KEYS)
    def invalidate(self, key: int) -> None:
        self.function.invalidate(key)
        self.since[key] = len(self.made)

    @rule()
    def clear(self) -> None:
        self.function.clear()
        self.since = dict.fromkeys(range(9), len(self.made))

    @invariant()
    def counts(self) -> None:
        if not hasattr(self, "function"):
            return
        metrics = self.function.metrics()
        assert (metrics.rows, metrics.hits + metrics.misses) == (self.requested, self.requested)
        assert (metrics.calls, metrics.errors) == (len(self.made) + self.failures, self.failures)
        assert metrics.cached_rows <= (self.options["max_rows"] or math.inf)
        assert metrics.retries <= self.failures


class AsyncCalls(Calls):
    is_async = True


@pytest.mark.extended
@pytest.mark.parametrize("states", [Calls, AsyncCalls])
def test_any_order_of_calls(states):
    run_state_machine_as_test(
        states, settings=settings(max_examples=scale_up(25), stateful_step_count=25, deadline=None)
    )
