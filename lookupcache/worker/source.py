"""A connector under a plan: requests become calls, and what the calls return becomes rows by key.

    keys ─► split ─► calls ─► executor: coroutines or threads (make) ─► read_answers

The part that connectors share is here and in three other modules. `calls` splits keys and reads rows,
`connection` opens the connector, `error_naming` names its errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lookupcache.cache.keys import PROCESS_SEED, KeyBatch
from lookupcache.connector import Connector, offers
from lookupcache.errors import LookupRuntimeError
from lookupcache.executor.call_group import Executor
from lookupcache.executor.threads import Threads
from lookupcache.functions.connector import FunctionConnector
from lookupcache.lazy import cached_property
from lookupcache.metrics import Counters
from lookupcache.plan import LookupPlan
from lookupcache.resilience.policy import ClusterRate, ResiliencePolicy
from lookupcache.resilience.rate_limit import RateLimit
from lookupcache.worker.answers import Fetched, Reader
from lookupcache.worker.calls import BatchCalls, CallOutcomes, Calls, KeyCalls
from lookupcache.worker.connection import Connection
from lookupcache.worker.error_naming import ErrorNaming
from lookupcache.worker.pandas_import import report_pandas

if TYPE_CHECKING:
    from lookupcache.worker.source_identity import SourceIdentity


class Source:
    """A connector under a plan, connected on first use.

    `split` divides keys into calls, which the `executor` makes; `read_answers` reads what they returned. If the plan
    caches ALL, the same executor makes one call that scans the table, and `read_table` reads it. Calls that failed
    raise or return LookupFailedError, LookupTimeoutError, LookupRefusedError or SourceError.
    """

    blocked_seconds = 0.0
    """How long to start a call may take, during which the worker does nothing else."""

    def __init__(
        self,
        plan: LookupPlan,
        connector: Connector,
        counters: Counters | None = None,
        cluster: ClusterRate | None = None,
    ) -> None:
        self.plan = plan
        self.connector = connector
        self.counters = Counters() if counters is None else counters
        self.hash_seed = PROCESS_SEED
        """The seed of the hashes with which the lookup of this source finds keys."""
        self.resilience = ResiliencePolicy(
            plan.config, retryable=connector.retryable, counters=self.counters, limiter=_limiter(plan), cluster=cluster
        )
        self._errors = ErrorNaming(plan, connector)
        self.reader = Reader(plan, self._errors.hide)
        self._async = connector.runs_async(plan.config.async_)
        self._connection = Connection(
            plan, connector, self.reader.request, self.resilience, self._errors, is_async=self._async
        )
        self._calls: BatchCalls | KeyCalls = BatchCalls(connector, self.reader, self.resilience)
        if isinstance(connector, FunctionConnector) and not connector.batch:
            self._calls = KeyCalls(connector, self.reader, self.resilience, self._errors)

    @property
    def identity(self) -> SourceIdentity:
        """What other processes must have in common with this one to share its rows."""
        return self._connection.identity

    @property
    def is_outdated(self) -> bool:
        """Whether rows are kept by an identity that the source no longer has, as after a link was changed."""
        return self._connection.is_outdated

    def take_identity(self, other: Source) -> None:
        """Keep rows by the identity that another source of the same connector has had before."""
        self._connection.identity = other.identity

    @cached_property
    def executor(self) -> Executor:
        """What makes the calls: coroutines, threads, or one thread."""
        config = self.plan.config
        if config.cache == "ALL":
            return self._threads(1, lambda connector, _: self._scan(connector), math.inf)
        if self._async:
            from lookupcache.executor.coroutines import Coroutines  # Imports asyncio, which sync sources do without.

            return Coroutines(
                config.async_capacity, self._calls.make_async, self._connection.open_async,
                self._connection.close_async, config.timeout, self.resilience.timeout_error,
            )  # fmt: skip
        return self._threads(config.async_capacity if config.async_ else 1, self._calls.make, config.timeout)

    def _threads(self, most: int, make: Callable[[Connector, Any], Any], timeout: float) -> Threads:
        connection = self._connection
        return Threads(most, make, connection.open, timeout, self.resilience.timeout_error, connection.close)

    @property
    def max_keys(self) -> float:
        """The maximum number of keys in a call."""
        return self._calls.max_keys

    def split(self, keys: KeyBatch) -> Calls:
        """Split distinct non-null keys into calls."""
        return self._calls.split(keys)

    def read_answers(self, calls: Calls, answers: Sequence[Any]) -> Fetched:
        """Return the rows of the keys from the answers, or exceptions, that their calls ended with."""
        report_pandas()  # The values of a function may be of pandas.
        outcomes = CallOutcomes(calls, answers)
        outcomes.record_errors(self.reader, self._errors)
        try:
            tables, fetched = self._calls.read(outcomes)
        except LookupRuntimeError as error:
            raise self._errors.show(error) from None
        self.counters["requested_keys"] += len(calls.keys)
        self.counters["fetched_rows"] += sum(table.num_rows for table in tables)
        self.counters["fetched_bytes"] += sum(table.nbytes for table in tables)
        return fetched

    # ── the full table ───────────────────────────────────────────────────────────────────────────────────

    def read_table(self, answer: Any) -> tuple[KeyBatch, Fetched]:
        """Return every key of the table with its rows from the answer to a scan; raises what the scan failed with."""
        if isinstance(answer, BaseException):
            raise self._errors.name(answer, 0)
        self.counters["fetched_rows"] += answer.num_rows
        self.counters["fetched_bytes"] += answer.nbytes
        try:
            return self.reader.by_every_key(answer)
        except LookupRuntimeError as error:
            raise self._errors.show(error) from None

    def scan(self) -> pa.Table:
        """Connect, return all rows of the table, and disconnect; raises what that failed with."""
        self._connection.skip_advice()
        try:
            connector = self._connection.open()
            try:
                return self._scan(connector)
            finally:
                self._connection.close(connector)
        except Exception as error:
            raise self._errors.name(error, 0) from None

    def _scan(self, connector: Connector) -> pa.Table:
        def scan() -> pa.Table:
            scanned = connector.scan(self.reader.request)
            try:
                batches = [self.reader.check(pa.table(batch)) for batch in scanned]
            finally:
                # After an error, a generator would keep its file or cursor open for as long as the error is kept.
                if isinstance(scanned, Generator):
                    scanned.close()
            return pa.concat_tables(batches) if batches else self.reader.schema.empty_table()

        return self.resilience.call_sync(scan)

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def reports_changes(self) -> bool:
        """Whether `changed` may be called."""
        return self.connector.reports_changes and offers(self.connector, "changed")

    def changed(self) -> KeyBatch | None:
        """Return the keys that the source reports as changed since the last call; None if any key may have."""
        try:
            batch = self.connector.changed(self.reader.request)
        except Exception as error:
            raise self._errors.name(error, 0, "reading the changed keys") from None
        return None if batch is None else self.reader.keys_of(pa.table(batch))

    def flush(self) -> None:
        """Write what a store has only collected, and wait for it; called at the end of a task."""

    def anew(self) -> Source:
        """Return the same source with nothing connected or under way, without a store, and with its own counts."""
        return Source(self.plan, self._connection.unopened(), type(self.counters)())

    def close(self) -> None:
        if "executor" in self.__dict__:
            self.executor.close()
        self.resilience.close()


def _limiter(plan: LookupPlan) -> RateLimit | None:
    rate = plan.config.rate_limit
    if rate is None or plan.config.rate_limit_scope == "cluster":
        return None
    return RateLimit.of_executor(rate, plan.source)
