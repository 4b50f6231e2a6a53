"""The connections of a worker: each call takes one and returns it; after an error it is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from lookupcache.errors import LookupCacheError
from lookupcache.executor.job import Job
from lookupcache.executor.thread_slots import ThreadSlots
from lookupcache_sql.database import Database

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

SECONDS_TO_END = 5.0
"""How long a call that was cancelled may take to end; then another one gets its thread, and this one is left alone."""

T = TypeVar("T")


class Pool:
    """Connections, which ``connect`` makes if a call needs one and none is free.

    A call runs in the thread that makes it, or, with `run_async`, in one of ``most`` threads. A connection that a
    driver's error came from is closed, as it may be broken; the next call makes a new one. A driver may wait for ever
    for a server that says nothing: a thread that hangs is replaced, and no end of the process waits for it.
    """

    def __init__(self, connect: Callable[[], Database], most: int) -> None:
        self._connect = connect
        self._most = most
        self._free: list[Database] = []
        self._changing = threading.Lock()
        self._slots = ThreadSlots(most)
        self._closed = False

    def warm(self) -> None:
        """Make the first connection, so that errors appear when the connector is opened."""
        self.run(lambda _: None)

    def run(self, call: Callable[[Database], T]) -> T:
        """Call a function with a connection; return its result."""
        with self._borrow() as database:
            return call(database)

    def stream(self, call: Callable[[Database], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Yield the results of a function with a connection, which is in use until the end."""
        with self._borrow() as database:
            yield from call(database)

    async def run_async(self, call: Callable[[Database], T]) -> T:
        """Call a function with a connection once one is free; if cancelled, interrupt the query."""
        busy: list[Database] = []
        ending = threading.Lock()

        def work() -> T:
            with self._borrow() as database:
                busy.append(database)
                try:
                    return call(database)
                finally:
                    # Not while it is interrupted: the next call on this connection would be.
                    with ending:
                        busy.clear()

        def interrupt() -> None:
            with ending:
                for database in busy:
                    database.interrupt()

        # Here, since `run` does without it, and it takes long to import.
        import asyncio

        loop = asyncio.get_running_loop()
        job = _Call(work, loop)
        self._slots.submit([job])
        try:
            return await job.answer
        except asyncio.CancelledError:
            # In a thread, since a database may connect to its server for that, and wait for one that hangs.
            threading.Thread(target=interrupt, daemon=True).start()
            if job.started:
                loop.call_later(SECONDS_TO_END, self._slots.abandon, job)
            else:
                self._slots.abandon(job)
            raise

    def close(self) -> None:
        """Disconnect after the current calls have ended."""
        self._slots.join(SECONDS_TO_END)
        self._slots.close()
        with self._changing:
            self._closed = True
            free, self._free = self._free, []
        for database in free:
            database.close()

    @contextmanager
    def _borrow(self) -> Iterator[Database]:
        database = self._take_free() or self._connect()
        try:
            yield database
        except LookupCacheError:
            self._give_back(database)
            raise
        except BaseException:
            database.close()
            raise
        self._give_back(database)

    def _take_free(self) -> Database | None:
        """Return a free connection; close those to a database that was replaced."""
        while True:
            with self._changing:
                database = self._free.pop() if self._free else None
            if database is None or not database.is_stale():
                return database
            database.close()

    def _give_back(self, database: Database) -> None:
        with self._changing:
            # After an answer that is too large, the rest of it would be read as the next one.
            if not self._closed and not database.limit.is_exceeded:
                self._free.append(database)
                return
        database.close()


class _Call(Job):
    """A call in a thread, whose ``answer`` is awaited on an event loop."""

    def __init__(self, work: Callable[[], Any], loop: AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self.answer = loop.create_future()

    def run(self) -> Any:
        return self._work()

    def end(self, answer: Any) -> None:
        with suppress(RuntimeError):  # The event loop was closed.
            self._loop.call_soon_threadsafe(self._set, answer)

    def _set(self, answer: Any) -> None:
        if self.answer.done():
            return
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)
