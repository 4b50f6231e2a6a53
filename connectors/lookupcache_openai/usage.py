"""What a service charges: tokens, their price, and the ledger that keeps a budget and a rate.

request ─► `Ledger.reserve` (its upper bound) ─► call ─► `Ledger.settle` (what the service reported)
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lookupcache.errors import ConnectorError, LookupCacheError, OptionError

try:
    import fcntl
except ImportError:  # no file locks on this system
    fcntl = None  # type: ignore[assignment]

_RECORD = 200
_BYTES_PER_TOKEN = 4
_MOST_TOKENS = 2**53
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_OF_SILENCE = 60.0
"""After this time without an answer to any process, reservations of others count as spent: they may have been
killed."""


class BudgetError(LookupCacheError):
    """The next request might exceed the budget; it fails the job with every ``lookup.on-error``."""


@dataclass(frozen=True)
class Tokens:
    """Tokens of a request and its response."""

    prompt: int = 0
    completion: int = 0

    @classmethod
    def reported_in(cls, document: Any) -> Tokens | None:
        """Return the usage that a response reports; None if it does not, or not in numbers."""
        usage = document.get("usage") if isinstance(document, dict) else None
        if not isinstance(usage, dict):
            return None
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens") or 0
        if not (isinstance(prompt, int) and isinstance(completion, int)):
            return None
        is_possible = all(0 <= count < _MOST_TOKENS for count in (prompt, completion))
        return cls(prompt, completion) if is_possible else None


@dataclass(frozen=True)
class Prices:
    """Prices per million tokens, in any currency.

    >>> Prices(2.0, 8.0).of(Tokens(prompt=500_000, completion=1_000))
    1.008
    """

    input: float
    output: float

    def of(self, tokens: Tokens) -> float:
        return (tokens.prompt * self.input + tokens.completion * self.output) / 1e6


@dataclass(frozen=True)
class LedgerLimits:
    """The limits of a ledger; ``prices`` of None means that the budget is in tokens, ``path`` is the shared file."""

    budget: float | None = None
    prices: Prices | None = None
    per_minute: int | None = None
    path: str = ""

    def cost(self, tokens: Tokens) -> float:
        """Return the cost of tokens in the budget; nothing without one."""
        if self.budget is None:
            return 0.0
        return tokens.prompt + tokens.completion if self.prices is None else self.prices.of(tokens)

    @property
    def unit(self) -> str:
        """The unit of the budget, for texts; empty for a currency, and without a budget."""
        return " tokens" if self.budget is not None and self.prices is None else ""


@dataclass
class State:
    """The spent part of the budget, in its unit, and when the next request may start.

    ``reserved`` are the upper bounds of the ``open`` requests, which were sent or wait to be. ``changed`` is when the
    last one was added or answered, so a later time than now means that the clock was set back since.
    """

    spent: float = 0.0
    free: float = 0.0
    reserved: float = 0.0
    open: int = 0
    changed: float = 0.0
    unit: str = ""

    def follow(self, now: float) -> None:
        """Move the times with a clock that was set back: the rest of a wait stays as long as it was."""
        back = max(self.changed - now, 0.0)
        self.free -= back
        self.changed -= back

    def add(self, cost: float, count: int, now: float) -> None:
        """Add requests to those that are open, or with negative numbers take them away."""
        self.open = max(self.open + count, 0)
        # Without open requests nothing is reserved: fractions were lost in adding up.
        self.reserved = max(self.reserved + cost, 0.0) if self.open else 0.0
        self.changed = now


class Ledger:
    """Keeps the budget and the rate of all requests of this process, or with a file of all processes that use it.

    A request is charged with its upper bound before it is sent, and with its cost after it was answered. So requests in
    flight cannot exceed the budget together. `reserve` and `settle` run on one event loop. Requests start evenly spaced
    by the tokens of the ones before, so that none needs a record of the last minute. ``clock`` is the time in seconds;
    by default the file's, since hosts may differ, or without a file this process's.
    """

    def __init__(self, limits: LedgerLimits, clock: Callable[[], float] | None = None) -> None:
        self.limits = limits
        self._clock = clock
        self._own = State()
        self._in_flight = 0
        self._settled = asyncio.Event()

    @classmethod
    def of_process(cls, limits: LedgerLimits, source: tuple[str, ...]) -> Ledger:
        """Return the ledger that all connectors of this process share for a source with these limits."""
        if limits.path and fcntl is None:
            raise OptionError("Option 'usage.path' needs file locks, which this system does not have.")
        # A forked process has an event loop of its own, and none of its parent's requests.
        return _ledgers.setdefault((limits, source, os.getpid()), cls(limits))

    async def reserve(self, bound: Tokens, expected: float) -> float:
        """Charge the upper bound of a request; return the seconds until it may start.

        Waits while requests in flight, also those of other processes, may return a part of their reservations. Raises
        BudgetError.
        """
        while (wait := self._try(self.limits.cost(bound), expected)) is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), _SECONDS_BETWEEN_LOOKS if self.limits.path else None)
        self._in_flight += 1
        return wait

    def settle(self, bound: Tokens, expected: float, used: Tokens) -> None:
        """Replace the upper bound of a request by its usage."""
        self._in_flight -= 1
        with self._state() as (state, now):
            state.add(-self.limits.cost(bound), -1, now)
            state.spent += self.limits.cost(used)
            state.free += self._seconds(used.prompt + used.completion - expected)
        self._settled.set()
        self._settled = asyncio.Event()

    def _try(self, cost: float, tokens: float) -> float | None:
        with self._state() as (state, now):
            budget = self.limits.budget
            if budget is not None and state.spent + state.reserved + cost > budget:
                is_answered_soon = self._in_flight or (state.open and now - state.changed < _SECONDS_OF_SILENCE)
                if is_answered_soon and state.spent + cost <= budget:
                    return None
                raise self._over_budget(budget, state, cost)
            start = max(state.free, now)
            state.free = start + self._seconds(tokens)
            state.add(cost, 1, now)
        return start - now

    def _seconds(self, tokens: float) -> float:
        return 0.0 if self.limits.per_minute is None else tokens * 60 / self.limits.per_minute

    def _over_budget(self, budget: float, state: State, cost: float) -> BudgetError:
        unit = self.limits.unit
        where = f"all that use {self.limits.path!r}" if self.limits.path else "this worker process"
        spent = f"spent {state.spent:,.6g}{unit}"
        if state.open:
            spent += f", {state.reserved:,.6g}{unit} are reserved for requests without an answer"
        return BudgetError(
            f"The budget of {budget:,.10g}{unit} does not cover the next request: {where} {spent}, "
            f"and the request may cost up to {cost:,.6g}{unit}.",
            hint="Raise option 'budget', or lower 'max-tokens'; cached keys cost nothing.",
        )

    @contextmanager
    def _state(self) -> Iterator[tuple[State, float]]:
        """Yield the state, and the time."""
        if not self.limits.path:
            yield self._own, (self._clock or time.monotonic)()
            return
        with _locked(Path(self.limits.path)) as file:
            state = self._in_own_unit(_read(file, self.limits.path))
            now = _time_of(file) if self._clock is None else self._clock()
            state.follow(now)
            yield state, now
            # One write of a fixed length: a process that is killed leaves the old record or the new one.
            os.pwrite(file, json.dumps(asdict(state)).ljust(_RECORD).encode() + b"\n", 0)

    def _in_own_unit(self, state: State) -> State:
        """Return the state, which counts in the unit of the budget from now on; raises OptionError for another unit."""
        if self.limits.budget is not None:
            own = "tokens" if self.limits.prices is None else "price"
            if state.unit not in ("", own):
                raise OptionError(
                    f"Option 'usage.path': in {self.limits.path!r}, another table counts its budget by {state.unit}, "
                    f"this one by {own}.",
                    hint="Name another file, or set the options 'price.…' for all tables that share it, or for none.",
                )
            state.unit = own
        return state


_ledgers: dict[tuple[LedgerLimits, tuple[str, ...], int], Ledger] = {}


def expected_tokens(texts: list[str], completion: int) -> float:
    """Return an estimate of a request's tokens, for the rate; the answer corrects it."""
    return sum(len(text.encode()) for text in texts) / _BYTES_PER_TOKEN + completion


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConnectorError(
            f"Option 'usage.path': {str(path)!r} cannot be opened: {error.strerror}.",
            hint="Set it to a file, in a directory that exists on all workers.",
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _time_of(file: int) -> float:
    """Return the time of the system that stores a file, in seconds since 1970."""
    os.utime(file)
    return os.fstat(file).st_mtime


def _read(file: int, path: str) -> State:
    record = os.pread(file, 10 * _RECORD, 0)
    try:
        found = json.loads(record) if record else {}
        kinds = {"open": int, "unit": str}
        return State(**{name: kinds.get(name, float)(value) for name, value in found.items()})
    except (ValueError, TypeError, AttributeError):
        raise ConnectorError(
            f"Option 'usage.path': {path!r} is not a record of usage.",
            hint="Name another file, or remove this one, to count from zero.",
        ) from None
