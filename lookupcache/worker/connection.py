"""Connecting a connector, for one thread, many threads or an event loop, and the advice that it has when connected."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lookupcache.connector import Connector, LookupRequest, changed_while_read, offers
from lookupcache.errors import LookupAdvice, LookupTimeoutError
from lookupcache.executor.call_group import await_call, run_async
from lookupcache.lazy import cached_property
from lookupcache.plan import LookupPlan
from lookupcache.resilience.policy import ResiliencePolicy
from lookupcache.worker.error_naming import ErrorNaming

if TYPE_CHECKING:
    from lookupcache.worker.source_identity import SourceIdentity


@dataclass(frozen=True, eq=False)
class _SharedOpening:
    """A thread connects the connector that all threads share; after ``deadline``, another tries."""

    deadline: float


class Connection:
    """Opens and closes a connector: once if its threads share it, otherwise a copy for each thread.

    Advice is given for ``request``. With ``is_async``, lookups run on an event loop, where `open_async` and
    `close_async` connect.
    """

    def __init__(
        self,
        plan: LookupPlan,
        connector: Connector,
        request: LookupRequest,
        resilience: ResiliencePolicy,
        errors: ErrorNaming,
        *,
        is_async: bool,
    ) -> None:
        self.plan = plan
        self.connector = connector
        self._request = request
        self._resilience = resilience
        self._errors = errors
        self._is_async = is_async
        # A copy is made of the unopened connector: an open one has clients that belong to another thread.
        self._unopened = copy.copy(connector)
        self._lock = threading.Lock()
        self._opening_ended = threading.Condition(self._lock)
        self._opening: _SharedOpening | None = None
        self._is_lent = False
        self._users = 0
        self._is_advised = False

    def unopened(self) -> Connector:
        """Return another connector of the same settings that is not opened."""
        return copy.copy(self._unopened)

    def open(self) -> Connector:
        """Return a connected connector for the calling thread."""
        if self.connector.thread_safe:
            return self._open_shared()
        with self._lock:
            connector = copy.copy(self._unopened) if self._is_lent else self.connector
            self._is_lent = True
        self._resilience.connect_sync(lambda: self._open(connector))
        self._advise(connector)
        return connector

    def _open_shared(self) -> Connector:
        """Connect the shared connector in the first thread; the others wait, but not for a connection that hangs."""
        with self._lock:
            while self._opening is not None and (left := self._opening.deadline - time.monotonic()) > 0:
                self._opening_ended.wait(min(left, threading.TIMEOUT_MAX))
            if self._users:
                self._users += 1
                return self.connector
            opening = self._opening = _SharedOpening(time.monotonic() + self.plan.config.timeout)
        try:
            self._resilience.connect_sync(lambda: self._open(self.connector))
            self._advise(self.connector)
            with self._lock:
                if self._opening not in (opening, None):
                    # Not a ConnectorError, which would end the job: the source was only too slow.
                    raise LookupTimeoutError(
                        f"Connecting took longer than {self.plan.config.timeout:g} s, and another thread has begun "
                        "again.",
                        hint="Raise 'lookup.timeout'.",
                    )
                self._users += 1
            return self.connector
        finally:
            with self._lock:
                if self._opening is opening:
                    self._opening = None
                    self._opening_ended.notify_all()

    def close(self, connector: Connector) -> None:
        """Disconnect the connector of the calling thread; a shared one, if no other thread uses it."""
        with self._lock:
            if connector.thread_safe:
                self._users -= 1
                if not self._users:
                    self._close(connector)
                return
        self._close(connector)

    async def open_async(self) -> None:
        """Connect on the running event loop."""
        await self._resilience.connect(lambda: await_call(self._resolve(self.connector)))
        if offers(self.connector, "advice"):
            import asyncio  # Here, since a sync source does without, and it takes long to import.

            await asyncio.to_thread(self._advise, self.connector)

    async def close_async(self) -> None:
        """Disconnect on the running event loop."""
        await await_call(self.connector.close)

    def _open(self, connector: Connector) -> None:
        opening = self._resolve(connector)
        if self._is_async:
            # `open` may need a running loop.
            run_async(await_call(opening))
        else:
            opening()

    def _close(self, connector: Connector) -> None:
        if self._is_async:
            run_async(await_call(connector.close))
        else:
            connector.close()

    def _resolve(self, connector: Connector) -> Callable[[], Any]:
        """Read the secrets that options refer to, for each attempt to connect; return what connects."""
        connector.resolve()
        self._hold_environment(connector)
        connector.count_with(self._resilience.counters)
        self._errors.add_secrets(connector)
        return connector.open

    @cached_property
    def identity(self) -> SourceIdentity:
        """What other processes must have in common with this one to share its rows."""
        from lookupcache.worker.source_identity import SourceIdentity  # Most workers share with no other application.

        return SourceIdentity.of(self)

    @property
    def is_outdated(self) -> bool:
        """Whether rows are kept by an identity that the source no longer has, as after a link was changed."""
        return self.plan.config.keeps_rows_by_content and self.identity.is_outdated(self)

    def _hold_environment(self, connector: Connector) -> None:
        """Pin the links of a resolved connector; raises ConnectorError if its kept rows are from elsewhere."""
        if not self.plan.config.keeps_rows_by_content:
            return
        connector.pin()
        if self.is_outdated:
            raise changed_while_read()

    def skip_advice(self) -> None:
        """Do not warn of what makes lookups by key slow: the table is only scanned."""
        self._is_advised = True

    def _advise(self, connector: Connector) -> None:
        """Warn once of what makes lookups slow; an error of the source in finding that out is ignored."""
        if self._is_advised or self.plan.config.cache == "ALL":
            return
        self._is_advised = True
        advice: Sequence[str] = ()
        with contextlib.suppress(Exception):
            advice = connector.advice(self._request)
        for sentence in advice:
            warnings.warn(f"Table {self.plan.table!r}: {self._errors.hide(sentence)}", LookupAdvice, stacklevel=1)
