"""The few connections of a worker: taken for a call, given back after it, made anew after an error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
from lookupcache_sql_database import Database

from lookupcache.errors import LookupCacheError

T = TypeVar("T")


class Pool:
    """Connections that ``connect`` makes when one is wanted and none is free.

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
        """Make the first connection."""
        self.run(lambda _: None)

    def run(self, call: Callable[[Database], T]) -> T:
        """Return what a call gets from a connection."""
        with self._lent() as database:
            return call(database)

    def stream(self, call: Callable[[Database], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Yield what a call gets; the connection is the caller's until the end."""
        with self._lent() as database:
            yield from call(database)

    async def run_async(self, call: Callable[[Database], T]) -> T:
        """Return what a call gets from a connection, once one is free; if cancelled, interrupt the call."""
        busy: list[Database] = []

        def work() -> T:
            with self._lent() as database:
                busy.append(database)
                try:
                    return call(database)
                finally:
                    busy.clear()

        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="lookupcache-sql")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            for database in busy:
                database.interrupt()
            raise

    def close(self) -> None:
        """Disconnect; calls under way end first."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        with self._changing:
            self._closed = True
            free, self._free = self._free, []
        for database in free:
            database.close()

    @contextmanager
    def _lent(self) -> Iterator[Database]:
        database = self._taken() or self._connect()
        try:
            yield database
        except LookupCacheError:
            self._given_back(database)
            raise
        except BaseException:
            database.close()
            raise
        self._given_back(database)

    def _taken(self) -> Database | None:
        """Return a free connection; those to a database that was replaced are closed."""
        while True:
            with self._changing:
                database = self._free.pop() if self._free else None
            if database is None or not database.is_stale():
                return database
            database.close()

    def _given_back(self, database: Database) -> None:
        with self._changing:
            if not self._closed:
                self._free.append(database)
                return
        database.close()
