"""Asking a connector: `fetch` = calc( checked( retry( connector ) ) ), in calls of bounded size.

Everything that is true of any source lives here, so that a connector needs to know none of it: how keys are
split into calls, how calls are made again or side by side, how an answer is checked, and what is kept of it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from lookupcache import expr
from lookupcache.cache.keys import KeyBatch, match
from lookupcache.connector import Connector, LookupRequest, hide_userinfo
from lookupcache.errors import LookupCacheError, LookupFailed, LookupTimeout, SourceError, nearest
from lookupcache.metrics import Tally
from lookupcache.plan import LookupPlan
from lookupcache.retry import Retry

T = TypeVar("T")


@dataclass(frozen=True)
class Fetched:
    """Rows of some keys: ``rows`` in the order of the keys, ``counts`` of them per key."""

    rows: pa.Table
    counts: np.ndarray[Any, np.dtype[np.int64]]


def request_of(plan: LookupPlan) -> LookupRequest:
    """Return what the plan asks of its source: what is cached, and what calc needs to see before.

    Constant columns are fetched too, so that a source with a looser equality adds no rows.
    """
    wanted = {*plan.columns, *(c.column for c in plan.constants)}
    wanted |= {column.name for conjunct in plan.calc for column in expr.columns_of(conjunct)}
    return LookupRequest(
        table=plan.table,
        key_columns=plan.key_columns,
        columns=tuple(name for name in plan.schema.names if name in wanted and name not in plan.key_columns),
        constants={c.column: expr.python_value(c.value) for c in plan.constants},
        filters=plan.pushed,
    )


class Source:
    """A connector under a plan, opened on first use.

    `fetch` asks for the rows of keys, `load` for all; both return rows after calc, with the plan's columns.
    Raises LookupFailed when the connector's last attempt failed, SourceError when an answer is not what
    the schema promises.
    """

    def __init__(self, plan: LookupPlan, connector: Connector, tally: Tally | None = None) -> None:
        self.plan = plan
        self.connector = connector
        self.request = request_of(plan)
        self.tally = Tally() if tally is None else tally
        self.retry = Retry(plan.config, connector.retryable, self.tally)
        self.key_types = [plan.schema.field(name).type for name in plan.key_columns]
        self._async = connector.runs_async(plan.config.async_)
        self._open = False

    def fetch(self, keys: KeyBatch) -> Fetched:
        """Return the rows of distinct non-null keys, in their order."""
        parts = list(self._split(keys))
        answers = self._timed(lambda: self._answers([self._batch(part) for part in parts]), keys=len(keys))
        fetched = [self._by_key(part, answer) for part, answer in zip(parts, answers, strict=True)]
        return Fetched(pa.concat_tables([f.rows for f in fetched]), np.concatenate([f.counts for f in fetched]))

    def load(self) -> tuple[KeyBatch, Fetched]:
        """Return every key of the table with its rows."""
        [table] = self._timed(lambda: [self.retry.call(self._scan)], keys=0)
        rows, all_keys = self._calc(table)
        distinct = all_keys.distinct()
        keys = all_keys.take(distinct.first)
        return keys, self._grouped(rows, distinct.code, len(keys))

    def close(self) -> None:
        """Disconnect."""
        if self._open:
            self._open = False
            self._on_its_thread(self.connector.close)

    # ── calling ──────────────────────────────────────────────────────────────────────────────────────────

    def _answers(self, calls: list[pa.RecordBatch]) -> list[pa.Table]:
        """Return the checked answer of each call."""
        if self._async:
            tables = run_async(self._answers_async(calls))
        else:
            tables = [self.retry.call(partial(self._lookup, part)) for part in calls]
        return [self._checked(table) for table in tables]

    async def _answers_async(self, calls: list[pa.RecordBatch]) -> list[pa.Table]:
        places = asyncio.Semaphore(self.plan.config.async_capacity)

        async def one(part: pa.RecordBatch) -> pa.Table:
            async with places:
                return await self.retry.call_async(partial(self._lookup_async, part))

        tasks = [asyncio.ensure_future(one(part)) for part in calls]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def _lookup(self, keys: pa.RecordBatch) -> pa.Table:
        self.tally["calls"] += 1
        return self.connector.lookup(self.request, keys)

    async def _lookup_async(self, keys: pa.RecordBatch) -> pa.Table:
        self.tally["calls"] += 1
        return await self.connector.lookup_async(self.request, keys)

    def _split(self, keys: KeyBatch) -> Iterator[KeyBatch]:
        """Yield as many keys as a call may carry; an answer is matched with the keys of its own call alone."""
        limits = [self.plan.config.batch_max_size, self.connector.batch_max_size, len(keys)]
        size = min(limit for limit in limits if limit is not None)
        for start in range(0, len(keys), size):
            yield keys.take(np.arange(start, min(start + size, len(keys))))

    def _batch(self, keys: KeyBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(keys.columns), names=list(self.plan.key_columns))

    def _scan(self) -> pa.Table:
        self.tally["calls"] += 1
        batches = [self._checked(pa.table(batch)) for batch in self.connector.scan(self.request)]
        return pa.concat_tables(batches) if batches else self._checked_schema().empty_table()

    def _timed(self, ask: Callable[[], list[pa.Table]], keys: int) -> list[pa.Table]:
        before, started = self.tally["retries"], time.perf_counter()
        try:
            self._ensure_open()
            tables = ask()
        except LookupTimeout as error:
            raise LookupTimeout(f"Table {self.plan.table!r}: {error.fact}", hint=error.hint) from error
        except LookupCacheError:
            raise
        except Exception as error:
            raise self._failed(error, keys, self.tally["retries"] - before) from self._safe_cause(error)
        finally:
            self.tally.spend("source_seconds", started)
        self.tally["asked_keys"] += keys
        self.tally["fetched_rows"] += sum(table.num_rows for table in tables)
        self.tally["fetched_bytes"] += sum(table.nbytes for table in tables)
        return tables

    def _ensure_open(self) -> None:
        if not self._open:
            self._on_its_thread(lambda: self.retry.call(self.connector.open))
            self._open = True

    def _on_its_thread(self, function: Callable[[], Any]) -> None:
        """Run where the lookups will run: clients of async connectors want the running loop."""

        async def on_loop() -> None:
            function()

        run_async(on_loop()) if self._async else function()

    # ── errors ───────────────────────────────────────────────────────────────────────────────────────────

    def _failed(self, error: Exception, keys: int, retries: int) -> LookupFailed:
        what = f"the lookup of {keys} keys" if keys else "reading the whole table"
        return LookupFailed(
            f"Table {self.plan.table!r} (connector {self.plan.connector!r}): {what} failed after {retries + 1} "
            f"attempt{'s' if retries else ''}: {type(error).__name__}: {self._hidden(str(error))}",
            hint="Mend the source, or allow more with 'lookup.max-retries' and 'lookup.timeout'.",
        )

    def _hidden(self, text: str) -> str:
        for secret in self.connector.secret_values():
            text = text.replace(secret, "***")
        return hide_userinfo(text)

    def _safe_cause(self, error: Exception) -> Exception | None:
        """Return the cause to chain, or None where its text would show a secret."""
        return error if self._hidden(str(error)) == str(error) else None

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────

    def _checked_schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, self.plan.schema.field(name).type) for name in self.request.fields])

    def _checked(self, answer: Any) -> pa.Table:
        """Return an answer with exactly the wanted columns in the schema's types."""
        if not isinstance(answer, pa.Table):
            raise SourceError(
                f"Table {self.plan.table!r}: the connector returned {type(answer).__name__}, not a pyarrow.Table."
            )
        columns = [self._checked_column(answer, field) for field in self._checked_schema()]
        return pa.Table.from_arrays(columns, schema=self._checked_schema())

    def _checked_column(self, answer: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        found = answer.column_names.count(field.name)
        if found != 1:
            raise SourceError(
                f"Table {self.plan.table!r}: the connector returned "
                f"{'no column' if not found else 'more than one column'} {field.name!r}.",
                hint=nearest(field.name, answer.column_names, what="returned columns"),
            )
        column = answer.column(field.name)
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise SourceError(
                f"Table {self.plan.table!r}, column {field.name!r}: the connector returned {column.type}, "
                f"which does not fit {field.type}: {self._hidden(str(error))}.",
                hint="Correct the table's schema, or the connector.",
            ) from None

    def _calc(self, table: pa.Table) -> tuple[pa.Table, KeyBatch]:
        """Return the rows that pass constants and calc, with the columns to cache, and their keys."""
        constants = [
            expr.Call("=", (expr.Column("right", c.column, c.value.type), c.value)) for c in self.plan.constants
        ]
        kept = expr.keep(table, [*constants, *self.plan.calc]).combine_chunks()
        keys = KeyBatch.of([kept.column(name) for name in self.plan.key_columns], self.key_types)
        return kept.select(list(self.plan.columns)), keys

    def _by_key(self, keys: KeyBatch, table: pa.Table) -> Fetched:
        rows, answered = self._calc(table)
        return self._grouped(rows, match(keys.columns, answered.columns), len(keys))

    def _grouped(self, rows: pa.Table, code: np.ndarray[Any, np.dtype[np.int64]], keys: int) -> Fetched:
        """Sort rows by the number of their key; rows of no key that was asked for go."""
        asked = np.flatnonzero(code >= 0)
        order = asked[np.argsort(code[asked], kind="stable")]
        counts = np.bincount(code[asked], minlength=keys).astype(np.int64)
        return Fetched(rows.take(pa.array(order)), counts)


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the worker's event loop, which runs in a thread of its own as long as the process lives."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="lookupcache-loop", daemon=True).start()
    return loop


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the worker's event loop and wait for it."""
    return asyncio.run_coroutine_threadsafe(work, _event_loop()).result()
