"""Splitting distinct keys into calls to a connector, making one call, and reading what the calls returned."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lookupcache.arrays import from_numpy
from lookupcache.cache.keys import KeyBatch
from lookupcache.connector import Connector
from lookupcache.errors import LookupRuntimeError, WrongRowsError
from lookupcache.functions.connector import FunctionConnector, KeyAnswer
from lookupcache.resilience.policy import AttemptsExhaustedError, ResiliencePolicy
from lookupcache.resilience.runtime import ASYNC, SYNC, Runtime, awaitable, run_sync
from lookupcache.worker.answers import Fetched, Numbers, Reader
from lookupcache.worker.error_naming import ErrorNaming


@dataclass(frozen=True)
class Calls:
    """The calls for some distinct keys: the argument of each call, and for each key the number of its call."""

    keys: KeyBatch
    arguments: list[Any]
    call_of: Numbers


class CallOutcomes:
    """How calls ended: the answer of each call, and the errors by the numbers of the calls that failed.

    A key that failed alone counts as a separate call, with a number above those of the calls.
    """

    def __init__(self, calls: Calls, answers: Sequence[Any]) -> None:
        self.keys = calls.keys
        self.arguments = calls.arguments
        self.answers = list(answers)
        self.call_of = calls.call_of
        self.errors: dict[int, LookupRuntimeError] = {}
        self._next = len(answers)

    def fail_key(self, key: int, error: LookupRuntimeError) -> None:
        """Record that the lookup of one key has failed."""
        if self._next == len(self.answers):
            # The numbers belong to the calls, which may not change.
            self.call_of = self.call_of.copy()
        self.call_of[key] = self._next
        self.errors[self._next] = error
        self._next += 1

    def record_errors(self, reader: Reader, errors: ErrorNaming) -> None:
        """Name the errors that calls ended with; of a call with `WrongRowsError`, only some keys fail."""
        # If the error of one call ends all calls of a group, its positions are those of keys of that call alone.
        shared = len(self.answers) > 1 and all(answer is self.answers[0] for answer in self.answers)
        for number, answer in enumerate(self.answers):
            if isinstance(answer, BaseException):
                self._record_error(number, answer, reader, errors, shared)

    def _record_error(
        self, number: int, answer: BaseException, reader: Reader, errors: ErrorNaming, shared: bool
    ) -> None:
        error = answer.error if isinstance(answer, AttemptsExhaustedError) else answer
        keys = np.flatnonzero(self.call_of == number)
        if shared or not isinstance(error, WrongRowsError) or reader.plan.config.on_miss_max_attempts > 0:
            # If keys without rows are requested again, those of a failed call would not be: so all of its keys fail.
            self.errors[number] = errors.name(answer, len(keys))
            return
        self.answers[number] = [reader.check(error.table)]
        for position, cause in error.wrong.items():
            self.fail_key(int(keys[position]), errors.name(cause, 1))


class BatchCalls:
    """Calls of a connector, each with a batch of keys; only rows of a call's own keys count."""

    def __init__(self, connector: Connector, reader: Reader, resilience: ResiliencePolicy) -> None:
        self._connector = connector
        self._reader = reader
        self._resilience = resilience
        self._retries_misses = reader.plan.config.on_miss_max_attempts > 0
        limits = [reader.plan.config.batch_max_size, connector.batch_max_size]
        self.max_keys = min((limit for limit in limits if limit is not None), default=math.inf)

    def split(self, keys: KeyBatch) -> Calls:
        size = int(min(self.max_keys, len(keys)))
        call_of = np.arange(len(keys)) // size
        parts = [keys.take(np.arange(start, min(start + size, len(keys)))) for start in range(0, len(keys), size)]
        return Calls(keys, parts, call_of)

    def make(self, connector: Connector, keys: KeyBatch) -> list[pa.Table]:
        """Make one call, with retries; return its rows, in several parts if keys without rows were requested again."""
        return run_sync(self._make(awaitable(connector.lookup), keys, SYNC))

    async def make_async(self, keys: KeyBatch) -> list[pa.Table]:
        """Do the same as `make` on the event loop."""
        return await self._make(self._connector.lookup_async, keys, ASYNC)

    async def _make(
        self, lookup: Callable[..., Awaitable[pa.Table]], keys: KeyBatch, runtime: Runtime
    ) -> list[pa.Table]:
        async def fetch(part: KeyBatch) -> pa.Table:
            return self._reader.check(await lookup(self._reader.request, self._batch(part)))

        if self._retries_misses:
            found = await self._resilience.until_found(fetch, keys, self._reader.without_rows, runtime)
            return [self._reader.only(part, table) for part, table in found]
        return [await self._resilience.call(lambda: fetch(keys), runtime)]

    def read(self, outcomes: CallOutcomes) -> tuple[list[pa.Table], Fetched]:
        """Return the rows of the calls as they came, and sorted by key with calc applied."""
        none, keys = self._reader.schema.empty_table(), outcomes.keys
        answered = enumerate(outcomes.answers)
        tables = [none if number in outcomes.errors else pa.concat_tables(answer) for number, answer in answered]
        table = pa.concat_tables(tables)
        if len(tables) > 1 or outcomes.errors:
            call = np.repeat(np.arange(len(tables)), [one.num_rows for one in tables])
            table = self._reader.only_of(keys, outcomes.call_of, table, call)
        found = self._reader.by_key(keys, table)
        return tables, Fetched(found.rows, found.counts, outcomes.errors, outcomes.call_of)

    def _batch(self, keys: KeyBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(keys.columns), names=list(self._reader.plan.key_columns))


class KeyCalls:
    """Calls of a function that takes one key; the rows of all calls become Arrow together."""

    max_keys: float = 1

    def __init__(
        self, connector: FunctionConnector, reader: Reader, resilience: ResiliencePolicy, errors: ErrorNaming
    ) -> None:
        self._connector = connector
        self._reader = reader
        self._resilience = resilience
        self._errors = errors
        self._retries_misses = reader.plan.config.on_miss_max_attempts > 0

    def split(self, keys: KeyBatch) -> Calls:
        names = list(self._reader.plan.key_columns)
        batch = pa.RecordBatch.from_arrays(list(keys.columns), names=names)
        return Calls(keys, *self._connector.arguments(self._reader.request, batch))

    def make(self, connector: Connector, key: tuple[Any, ...]) -> KeyAnswer:
        """Make one call, with retries; return the rows of the key."""
        if self._retries_misses:
            return self._resilience.until_found_sync(self._connector.rows, key, _key_without_rows)[-1][1]
        return self._resilience.call_sync(lambda: self._connector.rows(key))

    async def make_async(self, key: tuple[Any, ...]) -> KeyAnswer:
        if self._retries_misses:
            return (await self._resilience.until_found(self._connector.rows_async, key, _key_without_rows))[-1][1]
        return await self._resilience.call(lambda: self._connector.rows_async(key))

    def read(self, outcomes: CallOutcomes) -> tuple[list[pa.Table], Fetched]:
        """Return the rows of the calls as they came, and sorted by key with calc applied."""
        table = self._reader.check(self._table(outcomes))
        found = self._reader.by_key(outcomes.keys, table)
        errors, call_of = outcomes.errors, outcomes.call_of
        if not errors:
            return [table], Fetched(found.rows, found.counts, errors, call_of)
        # A row may have another key than its call; rows of a key whose own call failed do not count.
        failed = Fetched(found.rows, found.counts, errors, call_of).failed
        kept = np.repeat(~failed, found.counts)
        counts = np.where(failed, 0, found.counts)
        return [table], Fetched(found.rows.take(from_numpy(np.flatnonzero(kept))), counts, errors, call_of)

    def _table(self, outcomes: CallOutcomes) -> pa.Table:
        """Return the rows of all calls; record the errors of calls whose rows are wrong."""
        answered = [number for number in range(len(outcomes.answers)) if number not in outcomes.errors]
        keys = [outcomes.arguments[number] for number in answered]
        rows = [outcomes.answers[number] for number in answered]
        try:
            return self._connector.table(self._reader.request, keys, rows)
        except WrongRowsError as error:
            outcomes.errors |= {
                answered[position]: self._errors.name(cause, 1) for position, cause in error.wrong.items()
            }
            return error.table


def _key_without_rows(key: tuple[Any, ...], rows: KeyAnswer) -> tuple[Any, ...] | None:
    return None if rows else key
