"""Test doubles: a clock that the test advances, and connectors that record calls, fail or block."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from lookupcache.connector import Connector, LookupRequest, offers
from lookupcache.executor.latch import Latch


class FakeClock:
    """A clock that only advances when the test advances it; for parameters named ``clock``.

    It counts seconds, beginning with ``start``. `sleep` and `sleep_async` replace functions that wait.

    >>> from lookupcache import LookupConfig, cached
    >>> clock = FakeClock()
    >>> @cached(LookupConfig(cache="TTL", expire_after_write="1 min"), clock=clock)
    ... def price(item):
    ...     return [f"price of {item} at {clock():g} s"]
    >>> price(7), clock.tick(59), price(7), clock.tick(2), price(7)
    (['price of 7 at 0 s'], 59.0, ['price of 7 at 0 s'], 61.0, ['price of 7 at 61 s'])
    """

    def __init__(self, start: float = 0.0) -> None:
        self.now = float(start)

    def __call__(self) -> float:
        """Return the current time."""
        return self.now

    def tick(self, seconds: float) -> float:
        """Advance the clock; return the new time."""
        self.now += seconds
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting."""
        self.tick(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Do the same for a coroutine."""
        self.tick(seconds)


def _forwarded(name: str) -> Any:
    """Return a method that calls the one of this name of the wrapped connector."""
    return lambda self, *args: getattr(self.connector, name)(*args)


class _Wrapper(Connector):
    """A connector that wraps another and implements exactly the same optional methods."""

    _FORWARDED = (
        "options", "required", "secrets", "batch_max_size", "prefers_async", "thread_safe", "reports_changes",
    )  # fmt: skip

    def __new__(cls, connector: Connector, *_: Any, **__: Any) -> Self:
        offered = {name: getattr(cls, f"_{name}") for name in _OPTIONAL_METHODS if offers(connector, name)}
        forwarded = {name: getattr(connector, name) for name in cls._FORWARDED}
        return object.__new__(type(cls.__name__, (cls,), {"__module__": cls.__module__, **forwarded, **offered}))

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector.schema, connector.settings)
        self.connector = connector

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, connector=copy.copy(self.connector))
        return twin

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.connector!r})"

    resolve, count_with, open, close = map(_forwarded, ("resolve", "count_with", "open", "close"))
    accept, retryable, runs_async = map(_forwarded, ("accept", "retryable", "runs_async"))
    identity, environment, secret_values = map(_forwarded, ("identity", "environment", "secret_values"))

    def _lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        self._before_call()
        return self._after_call(request, keys, self.connector.lookup(request, keys))

    async def _lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        await self._before_call_async()
        return self._after_call(request, keys, await self.connector.lookup_async(request, keys))

    def _scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        self._before_call()
        for batch in self.connector.scan(request):
            self._after_call(request, None, pa.table(batch))
            yield batch

    def _changed(self, request: LookupRequest) -> pa.RecordBatch | None:
        return self.connector.changed(request)

    def _before_call(self) -> None:
        """Run before each call."""

    async def _before_call_async(self) -> None:
        self._before_call()

    def _after_call(self, request: LookupRequest, keys: pa.RecordBatch | None, answer: pa.Table) -> pa.Table:
        return answer


_OPTIONAL_METHODS = ("lookup", "lookup_async", "scan", "changed")


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """One call: the request, the keys (None for a batch of a scan), and the result."""

    request: LookupRequest
    keys: pa.RecordBatch | None
    answer: pa.Table


class Recorder(_Wrapper):
    """Forwards everything to a connector, and records requests and results in ``calls``.

    Copies for other threads append to the same list.

    >>> from lookupcache.functions.connector import FunctionConnector
    >>> squares = FunctionConnector(pa.schema([("n", pa.int64()), ("square", pa.int64())]), key=("n",),
    ...                             function=lambda n: [(n, n * n)], batch=False)
    >>> recorder = Recorder(squares)
    >>> request = LookupRequest(table="squares", key_columns=("n",), columns=("square",))
    >>> recorder.lookup(request, pa.record_batch({"n": [3]})).to_pylist()
    [{'n': 3, 'square': 9}]
    >>> [(call.keys.to_pylist(), call.answer.num_rows) for call in recorder.calls]
    [([{'n': 3}], 1)]
    """

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector)
        self.calls: list[RecordedCall] = []

    def _after_call(self, request: LookupRequest, keys: pa.RecordBatch | None, answer: pa.Table) -> pa.Table:
        self.calls.append(RecordedCall(request, keys, answer))
        return answer


@dataclass
class _Failures:
    """The number of calls that are still to fail; shared by threads."""

    remaining: float
    error: Exception
    lock: threading.Lock

    def raise_next(self) -> None:
        with self.lock:
            if self.remaining <= 0:
                return
            self.remaining -= 1
        raise self.error


class Flaky(_Wrapper):
    """The connector that `flaky` returns; `fail` sets how many of the next calls fail."""

    def __init__(self, connector: Connector, fails: float, error: Exception) -> None:
        super().__init__(connector)
        self._failures = _Failures(fails, error, threading.Lock())

    def fail(self, fails: float) -> None:
        """Let the next ``fails`` calls fail."""
        self._failures.remaining = fails

    def _before_call(self) -> None:
        self._failures.raise_next()


def flaky(connector: Connector, fails: float = 1, error: Exception | None = None) -> Flaky:
    """Return a connector whose next ``fails`` lookups and scans raise ``error``, by default a ConnectionError.

    With ``math.inf``, all calls fail until `Flaky.fail` is called.

    >>> from lookupcache.functions.connector import FunctionConnector
    >>> echo = FunctionConnector(pa.schema([("n", pa.int64())]), key=("n",), function=lambda n: [(n,)], batch=False)
    >>> request, three = LookupRequest(table="echo", key_columns=("n",)), pa.record_batch({"n": [3]})
    >>> source = flaky(echo, fails=1)
    >>> source.lookup(request, three)
    Traceback (most recent call last):
    ConnectionError: The source is down.
    >>> source.lookup(request, three).to_pylist()
    [{'n': 3}]
    """
    return Flaky(connector, fails, ConnectionError("The source is down.") if error is None else error)


@dataclass
class _Gate:
    """Blocks calls while its latch is closed; ``waiting`` counts the calls since then."""

    latch: Latch
    arrived: threading.Condition
    waiting: int = 0

    def arrive(self) -> Latch:
        with self.arrived:
            self.waiting += not self.latch.is_open
            self.arrived.notify_all()
            return self.latch


class Slow(_Wrapper):
    """The connector that `slow` returns: lookups and scans block until `let_go` is called."""

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector)
        self._gate = _Gate(Latch(), threading.Condition())

    def wait_for_calls(self, count: int = 1, timeout: float = 10) -> bool:
        """Wait until ``count`` calls are blocked, at most ``timeout`` seconds; return whether they are."""
        with self._gate.arrived:
            return self._gate.arrived.wait_for(lambda: self._gate.waiting >= count, timeout)

    def let_go(self) -> None:
        """Unblock waiting and future calls."""
        self._gate.latch.open()

    def hold(self) -> None:
        """Block future calls."""
        with self._gate.arrived:
            self._gate.latch, self._gate.waiting = Latch(), 0

    def _before_call(self) -> None:
        self._gate.arrive().wait()

    async def _before_call_async(self) -> None:
        await self._gate.arrive().wait_async()


def slow(connector: Connector) -> Slow:
    """Return a connector whose lookups and scans block until `Slow.let_go`, so that tests need not sleep.

    >>> from lookupcache.functions.connector import FunctionConnector
    >>> echo = FunctionConnector(pa.schema([("n", pa.int64())]), key=("n",), function=lambda n: [(n,)], batch=False)
    >>> request, three = LookupRequest(table="echo", key_columns=("n",)), pa.record_batch({"n": [3]})
    >>> source, answers = slow(echo), []
    >>> call = threading.Thread(target=lambda: answers.append(source.lookup(request, three).num_rows))
    >>> call.start()
    >>> source.wait_for_calls(), answers
    (True, [])
    >>> source.let_go(), call.join(), answers
    (None, None, [1])
    """
    return Slow(connector)
