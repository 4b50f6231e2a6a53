"""The connections of a worker: each call takes one and returns it; after an error it is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from lookupcache.errors import LookupCacheError
from lookupcache_sql.database import Database

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")


class Pool:
    """Connections, which ``connect`` makes if a call needs one and none is free.

    A call runs in the thread that makes it, or, with `run_async`, in one of ``most`` threads. A connection that a
    driver's error came from is closed, as it may be broken; the next call makes a new one.
    """

    def __init__(self, connect: Callable[[], Database], most: int) -> None:
        self._connect = connect
        self._most = most
        self._free: list[Database] = []
        self._changing = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
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

        def work() -> T:
            with self._borrow() as database:
                busy.append(database)
                try:
                    return call(database)
                finally:
                    busy.clear()

        # Here, since `run` does without both, and they take long to import.
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="lookupcache-sql")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            for database in busy:
                database.interrupt()
            raise

    def close(self) -> None:
        """Disconnect after the current calls have ended."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
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
