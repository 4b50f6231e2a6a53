"""What a service charges: tokens, their price, and the ledger that keeps a budget and a rate.

request ─► `Ledger.reserve` (its upper bound) ─► call ─► `Ledger.settle` (what the service reported)
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lookupcache.errors import ConnectorError, LookupCacheError, OptionError

try:
    import fcntl
except ImportError:  # no file locks on this system
    fcntl = None  # type: ignore[assignment]

_RECORD = 100
_BYTES_PER_TOKEN = 4


class BudgetError(LookupCacheError):
    """The next request might exceed the budget; it fails the job, whatever ``lookup.on-error`` says."""


@dataclass(frozen=True)
class Tokens:
    """Tokens of a request and its response."""

    prompt: int = 0
    completion: int = 0

    @classmethod
    def reported_in(cls, document: Any) -> Tokens | None:
        """Return what a response reports as its usage; None if it does not, or not in numbers."""
        usage = document.get("usage") if isinstance(document, dict) else None
        if not isinstance(usage, dict):
            return None
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens") or 0
        if not (isinstance(prompt, int) and isinstance(completion, int)):
            return None
        return cls(prompt, completion) if min(prompt, completion) >= 0 else None


@dataclass(frozen=True)
class Prices:
    """Prices per million tokens, in any currency.

    >>> Prices(2.0, 8.0).of(Tokens(prompt=500_000, completion=1_000))
    1.008
    """

    input: float
    output: float

    def of(self, tokens: Tokens) -> float:
        """Return the price of some tokens."""
        return (tokens.prompt * self.input + tokens.completion * self.output) / 1e6


@dataclass(frozen=True)
class Limits:
    """The limits of a ledger; ``prices`` of None means that the budget is in tokens, ``path`` is the shared file."""

    budget: float | None = None
    prices: Prices | None = None
    per_minute: int | None = None
    path: str = ""

    def cost(self, tokens: Tokens) -> float:
        """Return what tokens take from the budget."""
        return tokens.prompt + tokens.completion if self.prices is None else self.prices.of(tokens)


@dataclass
class State:
    """What is spent or reserved, in the unit of the budget, and when the next request may start."""

    spent: float = 0.0
    free: float = 0.0


class Ledger:
    """Keeps the budget and the rate of all requests of this process, or with a file of all processes that use it.

    A request is charged with its upper bound before it is sent, and with what it has cost after it was answered; so
    requests in flight cannot exceed the budget together. `reserve` and `settle` run on one event loop. Requests start
    evenly spaced by the tokens of the ones before, so that none needs to know what happened in the last minute.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        self.limits = limits
        self._clock = clock
        self._own = State()
        self._in_flight = 0
        self._settled = asyncio.Event()

    @classmethod
    def of_process(cls, limits: Limits, source: tuple[str, ...]) -> Ledger:
        """Return the ledger that all connectors of this process share for a source with these limits."""
        if limits.path and fcntl is None:
            raise OptionError("Option 'usage.path' needs file locks, which this system does not have.")
        return _ledgers.setdefault((limits, source), cls(limits))

    async def reserve(self, bound: Tokens, expected: float) -> float:
        """Charge the upper bound of a request; return the seconds until it may start.

        Waits while requests in flight may return a part of what they reserved. Raises BudgetError.
        """
        while (wait := self._try(self.limits.cost(bound), expected)) is None:
            await self._settled.wait()
        self._in_flight += 1
        return wait

    def settle(self, bound: Tokens, expected: float, used: Tokens) -> None:
        """Replace the upper bound of a request by what it used."""
        self._in_flight -= 1
        with self._state() as state:
            state.spent += self.limits.cost(used) - self.limits.cost(bound)
            state.free += self._seconds(used.prompt + used.completion - expected)
        self._settled.set()
        self._settled = asyncio.Event()

    def _try(self, cost: float, tokens: float) -> float | None:
        with self._state() as state:
            budget = self.limits.budget
            if budget is not None and state.spent + cost > budget:
                if self._in_flight:
                    return None
                raise self._over_budget(budget, state.spent, cost)
            now = self._clock()
            start = max(state.free, now)
            state.spent, state.free = state.spent + cost, start + self._seconds(tokens)
        return start - now

    def _seconds(self, tokens: float) -> float:
        return 0.0 if self.limits.per_minute is None else tokens * 60 / self.limits.per_minute

    def _over_budget(self, budget: float, spent: float, cost: float) -> BudgetError:
        unit = " tokens" if self.limits.prices is None else ""
        where = f"all that use {self.limits.path!r}" if self.limits.path else "this worker process"
        return BudgetError(
            f"The budget of {budget:,.10g}{unit} does not cover the next request: {where} spent {spent:,.6g}{unit}, "
            f"and the request may cost up to {cost:,.6g}{unit}.",
            hint="Raise option 'budget', or lower 'max-tokens'; cached keys cost nothing.",
        )

    @contextmanager
    def _state(self) -> Iterator[State]:
        if not self.limits.path:
            yield self._own
            return
        with _locked(Path(self.limits.path)) as file:
            state = _read(file, self.limits.path)
            yield state
            # One write of a fixed length: a process that is killed leaves the old record or the new one.
            os.pwrite(file, json.dumps(asdict(state)).ljust(_RECORD).encode() + b"\n", 0)


_ledgers: dict[tuple[Limits, tuple[str, ...]], Ledger] = {}


def expected_tokens(texts: list[str], completion: int) -> float:
    """Return about how many tokens a request will use, for the rate; corrected when it was answered."""
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


def _read(file: int, path: str) -> State:
    record = os.pread(file, 10 * _RECORD, 0)
    try:
        return State(**{name: float(value) for name, value in json.loads(record).items()}) if record else State()
    except (ValueError, TypeError, AttributeError):
        raise ConnectorError(
            f"Option 'usage.path': {path!r} is not a record of usage.",
            hint="Name another file, or remove this one, to count from zero.",
        ) from None
