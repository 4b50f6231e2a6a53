"""Asking a connector: `fetched` = calc( check( retry( connector ) ) ), in calls of bounded size.

Everything that is true of any source lives here, so that a connector needs to know none of it: how keys are
split into calls, how a call is made again, what its failure is called, and what is kept of its answer.

    keys ─► split ─► calls ─► Executor (ask, in coroutines or threads) ─► fetched
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from lookupcache.cache.keys import KeyBatch
from lookupcache.connector import Connector, offers
from lookupcache.error_text import is_presentable, rebuilt, shown_as
from lookupcache.errors import (
    LookupAdvice,
    LookupCacheError,
    LookupFailedError,
    LookupRefusedError,
    LookupRuntimeError,
    LookupTimeoutError,
    WrongRows,
    text_of,
)
from lookupcache.executor.call_group import Executor, run_async
from lookupcache.executor.coroutines import Coroutines
from lookupcache.executor.threads import Threads
from lookupcache.functions.connector import FunctionConnector
from lookupcache.metrics import Counters
from lookupcache.plan import LookupPlan
from lookupcache.redaction import hidden
from lookupcache.resilience.policy import AttemptsExhaustedError, ResiliencePolicy
from lookupcache.resilience.rate_limit import RateLimit
from lookupcache.worker.answers import Fetched, Numbers, Reader

Trouble = TypeVar("Trouble", bound=LookupCacheError)


@dataclass(frozen=True)
class Calls:
    """How some distinct keys are asked for: what each call is about, and the number of each key's call."""

    keys: KeyBatch
    arguments: list[Any]
    call_of: Numbers


class _Outcome:
    """How calls ended: the answer of each, and the errors, by the numbers of calls that have failed.

    A key that failed alone counts as a call of its own, with a number above those of the calls.
    """

    def __init__(self, calls: Calls, answers: Sequence[Any]) -> None:
        self.keys = calls.keys
        self.arguments = calls.arguments
        self.answers = list(answers)
        self.call_of = calls.call_of
        self.errors: dict[int, LookupRuntimeError] = {}
        self._next = len(answers)

    def fail_key(self, key: int, error: LookupRuntimeError) -> None:
        """Note that the lookup of one key has failed."""
        if self._next == len(self.answers):
            self.call_of = self.call_of.copy()
        self.call_of[key] = self._next
        self.errors[self._next] = error
        self._next += 1


class Source:
    """A connector under a plan, connected on first use.

    `calls` splits keys into calls, which the `executor` makes; `fetched` reads their answers. `scan` is a
    call for all rows, made by the same executor where the plan caches ALL, and read by `loaded`. Calls that
    failed are named by LookupFailedError, LookupTimeoutError, LookupRefusedError or SourceError.
    """

    def __init__(self, plan: LookupPlan, connector: Connector, counters: Counters | None = None) -> None:
        self.plan = plan
        self.connector = connector
        self.counters = Counters() if counters is None else counters
        self.reader = Reader(plan, self._hidden)
        self.resilience = ResiliencePolicy(
            plan.config, retryable=connector.retryable, counters=self.counters, limiter=_limiter(plan)
        )
        self._async = connector.runs_async(plan.config.async_)
        self._unopened = copy.copy(connector)
        self._lending = threading.Lock()
        self._lent = False
        self._users = 0
        self._secrets: set[str] = set()
        self._advised = False
        self._calls: _ByBatch | _ByKey = _ByBatch(self)
        if isinstance(connector, FunctionConnector) and not connector.batch:
            self._calls = _ByKey(self, connector)

    @cached_property
    def executor(self) -> Executor:
        """What makes the calls: coroutines, threads, or one thread."""
        config = self.plan.config
        if config.cache == "ALL":
            return self._threads(1, lambda connector, _: self._scan(connector), math.inf)
        if self._async:
            return Coroutines(
                config.async_capacity, self._calls.ask_async, self._open_async, self._close_async, config.timeout,
                self.resilience.timed_out,
            )  # fmt: skip
        return self._threads(config.async_capacity if config.async_ else 1, self._calls.ask, config.timeout)

    def _threads(self, most: int, ask: Callable[[Connector, Any], Any], timeout: float) -> Threads:
        return Threads(most, ask, self._opened, timeout, self.resilience.timed_out, self._closed)

    @property
    def max_keys(self) -> float:
        """The most keys that a call may carry."""
        return self._calls.max_keys

    def calls(self, keys: KeyBatch) -> Calls:
        """Split distinct non-null keys into calls."""
        return self._calls.split(keys)

    def fetched(self, calls: Calls, answers: Sequence[Any]) -> Fetched:
        """Return the rows of the keys from the answers, or exceptions, that their calls ended with."""
        outcome = _Outcome(calls, answers)
        # Where one call's error ends all calls of a group, the positions in it are those of keys of that call alone.
        shared = len(answers) > 1 and all(answer is answers[0] for answer in answers)
        for number, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                self._note(outcome, number, answer, shared)
        try:
            tables, fetched = self._calls.read(outcome)
        except LookupRuntimeError as error:
            raise self._told(error) from None
        self.counters["asked_keys"] += len(calls.keys)
        self.counters["fetched_rows"] += sum(table.num_rows for table in tables)
        self.counters["fetched_bytes"] += sum(table.nbytes for table in tables)
        return fetched

    def _note(self, outcome: _Outcome, number: int, answer: BaseException, shared: bool) -> None:
        """Note that a call has failed, or only the lookup of some of its keys."""
        error = answer.error if isinstance(answer, AttemptsExhaustedError) else answer
        keys = np.flatnonzero(outcome.call_of == number)
        if shared or not isinstance(error, WrongRows) or self.plan.config.on_miss_max_attempts > 0:
            # Where keys without rows are asked for again, nobody would ask for those of a call that has ended.
            outcome.errors[number] = self.named(answer, len(keys))
            return
        outcome.answers[number] = [self.reader.check(error.table)]
        for place, cause in error.wrong.items():
            outcome.fail_key(int(keys[place]), self.named(cause, 1))

    def loaded(self, answer: Any) -> tuple[KeyBatch, Fetched]:
        """Return every key of the table with its rows from the answer to a scan; raises what it failed with."""
        if isinstance(answer, BaseException):
            raise self.named(answer, 0)
        self.counters["fetched_rows"] += answer.num_rows
        self.counters["fetched_bytes"] += answer.nbytes
        try:
            return self.reader.whole(answer)
        except LookupRuntimeError as error:
            raise self._told(error) from None

    def whole(self) -> pa.Table:
        """Connect, return all rows of the table, and disconnect; raises what that failed with."""
        try:
            connector = self._opened()
            try:
                return self._scan(connector)
            finally:
                self._closed(connector)
        except Exception as error:
            raise self.named(error, 0) from None

    @cached_property
    def tells_changes(self) -> bool:
        """Whether `changed` may be asked."""
        return offers(self.connector, "changed")

    def changed(self) -> KeyBatch | None:
        """Return the keys that the source says have changed since the last call; None where any may have."""
        try:
            batch = self.connector.changed(self.reader.request)
        except Exception as error:
            raise self.named(error, 0, "asking what has changed") from None
        return None if batch is None else self.reader.keys_of(pa.table(batch))

    def close(self) -> None:
        """Disconnect."""
        if "executor" in self.__dict__:
            self.executor.close()

    # ── connecting ───────────────────────────────────────────────────────────────────────────────────────

    def _opened(self) -> Connector:
        """Return a connected connector for a thread: the one that was given, or a copy where that is lent.

        Where threads may share it, the first connects it, while the others wait.
        """
        with self._lending:
            if self.connector.thread_safe:
                if not self._users:
                    self.resilience.connect_sync(lambda: self._open(self.connector))
                    self._advise(self.connector)
                self._users += 1
                return self.connector
            connector = copy.copy(self._unopened) if self._lent else self.connector
            self._lent = True
        self.resilience.connect_sync(lambda: self._open(connector))
        self._advise(connector)
        return connector

    def _closed(self, connector: Connector) -> None:
        """Disconnect a thread's connector; the last thread does where they share it."""
        with self._lending:
            if connector.thread_safe:
                self._users -= 1
                if not self._users:
                    self._close(connector)
                return
        self._close(connector)

    def _open(self, connector: Connector) -> None:
        """Connect; what an async connector opens may want the running loop."""
        if self._async:
            run_async(_awaited(self._opening(connector)))
        else:
            self._opening(connector)()

    def _close(self, connector: Connector) -> None:
        if self._async:
            run_async(_awaited(connector.close))
        else:
            connector.close()

    async def _open_async(self) -> None:
        await self.resilience.connect(lambda: _awaited(self._opening(self.connector)))
        if offers(self.connector, "advice"):
            await asyncio.to_thread(self._advise, self.connector)

    def _advise(self, connector: Connector) -> None:
        """Warn, once, of what makes lookups slow; where the source cannot tell, lookups go on without."""
        if self._advised or self.plan.config.cache == "ALL":
            return
        self._advised = True
        advice: Sequence[str] = ()
        with contextlib.suppress(Exception):
            advice = connector.advice(self.reader.request)
        for sentence in advice:
            warnings.warn(f"Table {self.plan.table!r}: {self._hidden(sentence)}", LookupAdvice, stacklevel=1)

    def _opening(self, connector: Connector) -> Callable[[], Any]:
        """Return what connects, when what the options refer to has been read."""
        connector.resolve()
        self._secrets.update(connector.secret_values())
        return connector.open

    async def _close_async(self) -> None:
        await _awaited(self.connector.close)

    def _scan(self, connector: Connector) -> pa.Table:
        def scan() -> pa.Table:
            batches = [self.reader.check(pa.table(batch)) for batch in connector.scan(self.reader.request)]
            return pa.concat_tables(batches) if batches else self.reader.schema.empty_table()

        return self.resilience.call_sync(scan)

    # ── errors ───────────────────────────────────────────────────────────────────────────────────────────

    def named(self, error: BaseException, keys: int, what: str = "reading the whole table") -> LookupRuntimeError:
        """Name what a call for some keys, or without keys ``what``, failed with, without its secrets."""
        cause, attempts = (error.error, error.attempts) if isinstance(error, AttemptsExhaustedError) else (error, 1)
        if isinstance(cause, WrongRows):
            cause = next(iter(cause.wrong.values()), cause)
        if isinstance(cause, LookupTimeoutError | LookupRefusedError):
            named = rebuilt(cause, f"Table {self.plan.table!r}: {cause.fact}", cause.hint)
            return self._told(_caused(named, cause))
        if isinstance(cause, LookupRuntimeError):
            return self._told(cause)
        if isinstance(cause, LookupCacheError):
            raise self._told(cause)
        what = f"the lookup of {keys} key{'s' if keys > 1 else ''}" if keys else what
        text = self._hidden(text_of(cause))
        failed = LookupFailedError(
            f"Table {self.plan.table!r} (connector {self.plan.connector!r}): {what} failed after {attempts} "
            f"attempt{'s' if attempts > 1 else ''}: {type(cause).__name__}: {text}",
            hint="Mend the source, or allow more with 'lookup.max-retries' and 'lookup.timeout'.",
        )
        return _caused(failed, cause if is_presentable(cause, self._hidden) else None)

    def _told(self, error: Trouble) -> Trouble:
        """Return a connector's own error without secrets: itself, or where it or a cause holds any, one like it."""
        if is_presentable(error, self._hidden):
            return error
        return shown_as(error, self._hidden)

    def _hidden(self, text: str) -> str:
        return hidden(text, {*self._secrets, *self.connector.secret_values()})


class _ByBatch:
    """Calls of a connector, each with a batch of keys; an answer counts for the keys of its own call alone."""

    def __init__(self, source: Source) -> None:
        self._resilience = source.resilience
        self._reader = source.reader
        self._connector = source.connector
        self._again = source.plan.config.on_miss_max_attempts > 0
        limits = [source.plan.config.batch_max_size, source.connector.batch_max_size]
        self.max_keys = min((limit for limit in limits if limit is not None), default=math.inf)

    def split(self, keys: KeyBatch) -> Calls:
        size = int(min(self.max_keys, len(keys)))
        call_of = np.arange(len(keys)) // size
        parts = [keys.take(np.arange(start, min(start + size, len(keys)))) for start in range(0, len(keys), size)]
        return Calls(keys, parts, call_of)

    def ask(self, connector: Connector, keys: KeyBatch) -> list[pa.Table]:
        def once(part: KeyBatch) -> pa.Table:
            return self._reader.check(connector.lookup(self._reader.request, self._batch(part)))

        if self._again:
            found = self._resilience.until_found_sync(once, keys, self._reader.without_rows)
            return [self._reader.only(part, table) for part, table in found]
        return [self._resilience.call_sync(lambda: once(keys))]

    async def ask_async(self, keys: KeyBatch) -> list[pa.Table]:
        async def once(part: KeyBatch) -> pa.Table:
            return self._reader.check(await self._connector.lookup_async(self._reader.request, self._batch(part)))

        if self._again:
            found = await self._resilience.within(self._resilience.until_found(once, keys, self._reader.without_rows))
            return [self._reader.only(part, table) for part, table in found]
        return [await self._resilience.within(self._resilience.call(lambda: once(keys)))]

    def read(self, outcome: _Outcome) -> tuple[list[pa.Table], Fetched]:
        none, keys = self._reader.schema.empty_table(), outcome.keys
        answered = enumerate(outcome.answers)
        tables = [none if number in outcome.errors else pa.concat_tables(answer) for number, answer in answered]
        table = pa.concat_tables(tables)
        if len(tables) > 1 or outcome.errors:
            call = np.repeat(np.arange(len(tables)), [one.num_rows for one in tables])
            table = self._reader.only_of(keys, outcome.call_of, table, call)
        found = self._reader.by_key(keys, table)
        return tables, Fetched(found.rows, found.counts, outcome.errors, outcome.call_of)

    def _batch(self, keys: KeyBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(keys.columns), names=list(self._reader.plan.key_columns))


class _ByKey:
    """Calls of a function that answers one key at a time; their answers become Arrow all together."""

    max_keys = 1

    def __init__(self, source: Source, connector: FunctionConnector) -> None:
        self._resilience = source.resilience
        self._reader = source.reader
        self._connector = connector
        self._name = source.named
        self._again = source.plan.config.on_miss_max_attempts > 0

    def split(self, keys: KeyBatch) -> Calls:
        names = list(self._reader.plan.key_columns)
        batch = pa.RecordBatch.from_arrays(list(keys.columns), names=names)
        return Calls(keys, *self._connector.arguments(self._reader.request, batch))

    def ask(self, connector: Connector, key: tuple[Any, ...]) -> list[Any]:
        if self._again:
            return self._resilience.until_found_sync(lambda key: self._connector.rows(key), key, _missing)[-1][1]
        return self._resilience.call_sync(lambda: self._connector.rows(key))

    async def ask_async(self, key: tuple[Any, ...]) -> list[Any]:
        if self._again:
            return (await self._resilience.until_found(self._connector.rows_async, key, _missing))[-1][1]
        return await self._resilience.call(lambda: self._connector.rows_async(key))

    def read(self, outcome: _Outcome) -> tuple[list[pa.Table], Fetched]:
        table = self._reader.check(self._table(outcome))
        found = self._reader.by_key(outcome.keys, table)
        errors, call_of = outcome.errors, outcome.call_of
        if not errors:
            return [table], Fetched(found.rows, found.counts, errors, call_of)
        # A row may bear another key than the one that its call was about; of a key whose call failed, none counts.
        failed = Fetched(found.rows, found.counts, errors, call_of).failed
        kept = np.repeat(~failed, found.counts)
        counts = np.where(failed, 0, found.counts)
        return [table], Fetched(found.rows.take(pa.array(np.flatnonzero(kept))), counts, errors, call_of)

    def _table(self, outcome: _Outcome) -> pa.Table:
        """Return the rows of all calls; note the errors of those whose rows are wrong."""
        answered = [number for number in range(len(outcome.answers)) if number not in outcome.errors]
        keys, rows = (
            [outcome.arguments[number] for number in answered],
            [outcome.answers[number] for number in answered],
        )
        try:
            return self._connector.table(self._reader.request, keys, rows)
        except WrongRows as error:
            outcome.errors |= {answered[place]: self._name(cause, 1) for place, cause in error.wrong.items()}
            return error.table


def _missing(key: tuple[Any, ...], rows: list[Any]) -> tuple[Any, ...] | None:
    return None if rows else key


async def _awaited(function: Any) -> None:
    """Call a function that may be async."""
    result = function()
    if inspect.isawaitable(result):
        await result


def _caused(error: Trouble, cause: BaseException | None) -> Trouble:
    error.__cause__ = cause
    return error


def _limiter(plan: LookupPlan) -> RateLimit | None:
    rate = plan.config.rate_limit
    return None if rate is None else RateLimit.of_executor(rate, plan.source)
