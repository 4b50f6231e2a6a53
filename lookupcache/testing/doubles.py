"""Stand-ins for tests: a clock that is told the time, and connectors that remember, fail and hang as they are told."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from lookupcache.connector import Connector, LookupRequest, offers
from lookupcache.decorator.latch import Latch
from lookupcache.expr import Expr


class FakeClock:
    """A clock that stands still until it is told to go on; for whatever takes ``clock``.

    Seconds, from ``start`` on. `sleep` and `sleep_async` take the place of those that wait.

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
        """Return the time."""
        return self.now

    def tick(self, seconds: float) -> float:
        """Let so many seconds go by; return the time."""
        self.now += seconds
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let so many seconds go by at once."""
        self.tick(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Do the same for a coroutine."""
        self.tick(seconds)


class _Wrapper(Connector):
    """A connector around another, which offers exactly what that one does."""

    _FORWARDED = ("options", "required", "secrets", "batch_max_size", "prefers_async", "thread_safe")

    def __new__(cls, connector: Connector, *_: Any, **__: Any) -> Self:
        offered = {name: getattr(cls, f"_{name}") for name in _OPTIONAL if offers(connector, name)}
        given = {name: getattr(connector, name) for name in cls._FORWARDED}
        return object.__new__(type(cls.__name__, (cls,), {"__module__": cls.__module__, **given, **offered}))

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector.schema, connector.settings)
        self.connector = connector

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, connector=copy.copy(self.connector))
        return twin

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.connector!r})"

    def resolve(self) -> None:
        self.connector.resolve()

    def open(self) -> Any:
        return self.connector.open()

    def close(self) -> Any:
        return self.connector.close()

    def accept(self, filters: Sequence[Expr]) -> Sequence[Expr]:
        return self.connector.accept(filters)

    def retryable(self, error: Exception) -> bool:
        return self.connector.retryable(error)

    def runs_async(self, wanted: bool | None) -> bool:
        return self.connector.runs_async(wanted)

    def identity(self) -> Any:
        return self.connector.identity()

    def secret_values(self) -> list[str]:
        return self.connector.secret_values()

    def _lookup(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        self._called()
        return self._answered(request, keys, self.connector.lookup(request, keys))

    async def _lookup_async(self, request: LookupRequest, keys: pa.RecordBatch) -> pa.Table:
        await self._called_async()
        return self._answered(request, keys, await self.connector.lookup_async(request, keys))

    def _scan(self, request: LookupRequest) -> Iterator[pa.RecordBatch]:
        self._called()
        for batch in self.connector.scan(request):
            self._answered(request, None, pa.table(batch))
            yield batch

    def _changed(self, request: LookupRequest) -> pa.RecordBatch | None:
        return self.connector.changed(request)

    def _called(self) -> None:
        """Do what is to be done before a call."""

    async def _called_async(self) -> None:
        self._called()

    def _answered(self, request: LookupRequest, keys: pa.RecordBatch | None, answer: pa.Table) -> pa.Table:
        return answer


_OPTIONAL = ("lookup", "lookup_async", "scan", "changed")


@dataclass(frozen=True, eq=False)
class Asked:
    """One call: what was asked for, for which keys (None: a batch of a scan), and the answer."""

    request: LookupRequest
    keys: pa.RecordBatch | None
    answer: pa.Table


class Recorder(_Wrapper):
    """Passes everything on to a connector, and keeps what it was asked and answered, in ``calls``.

    Copies for other threads write to the same list.

    >>> from lookupcache.function import FunctionConnector
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
        self.calls: list[Asked] = []

    def _answered(self, request: LookupRequest, keys: pa.RecordBatch | None, answer: pa.Table) -> pa.Table:
        self.calls.append(Asked(request, keys, answer))
        return answer


@dataclass
class _Failures:
    """What is left to fail; threads take from it."""

    left: float
    error: Exception
    lock: threading.Lock

    def take(self) -> None:
        with self.lock:
            if self.left <= 0:
                return
            self.left -= 1
        raise self.error


class Flaky(_Wrapper):
    """What `flaky` returns; `fail` sets how many of the next calls fail."""

    def __init__(self, connector: Connector, fails: float, error: Exception) -> None:
        super().__init__(connector)
        self._failures = _Failures(fails, error, threading.Lock())

    def fail(self, fails: float) -> None:
        """Let this many calls fail from now on."""
        self._failures.left = fails

    def _called(self) -> None:
        self._failures.take()


def flaky(connector: Connector, fails: float = 1, error: Exception | None = None) -> Flaky:
    """Return a connector of which the next ``fails`` lookups and scans raise ``error``, a ConnectionError by default.

    ``math.inf`` lets it fail until `Flaky.fail` is told otherwise.

    >>> from lookupcache.function import FunctionConnector
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
    """Where calls wait; ``waiting`` have come since it was shut."""

    latch: Latch
    came: threading.Condition
    waiting: int = 0

    def arrive(self) -> Latch:
        with self.came:
            self.waiting += not self.latch.is_open
            self.came.notify_all()
            return self.latch


class Slow(_Wrapper):
    """What `slow` returns: lookups and scans wait until they are let go."""

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector)
        self._gate = _Gate(Latch(), threading.Condition())

    def wait_for_calls(self, count: int = 1, timeout: float = 10) -> bool:
        """Wait until so many calls are being held, at most ``timeout`` seconds; return whether they are."""
        with self._gate.came:
            return self._gate.came.wait_for(lambda: self._gate.waiting >= count, timeout)

    def let_go(self) -> None:
        """Let the calls that are held go on, and those to come."""
        self._gate.latch.open()

    def hold(self) -> None:
        """Hold the calls to come."""
        with self._gate.came:
            self._gate.latch, self._gate.waiting = Latch(), 0

    def _called(self) -> None:
        self._gate.arrive().wait()

    async def _called_async(self) -> None:
        await self._gate.arrive().wait_async()


def slow(connector: Connector) -> Slow:
    """Return a connector whose lookups and scans hang until `Slow.let_go`, so that a test need not sleep.

    >>> from lookupcache.function import FunctionConnector
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
