"""The connections of a worker: each call takes one and returns it; after an error it is replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from lookupcache.errors import LookupCacheError
from lookupcache.thread_start import start_thread
from lookupcache_sql.database import Database

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Semaphore

SECONDS_TO_END = 5.0
"""How long a cancelled call may take to end; then another call gets its place, and its thread is left alone."""

T = TypeVar("T")


class Pool:
    """Connections, which ``connect`` makes if a call needs one and none is free.

    A call runs in the thread that makes it, or, with `run_async`, in one of ``most`` others. After a driver's error,
    its connection is closed, as it may be broken. After an error that can be retried, all free connections are closed
    too. The next call makes a new one. A driver may wait for ever for a server that says nothing, so nothing waits for
    a call that was cancelled and does not end.
    """

    def __init__(self, connect: Callable[[], Database], most: int) -> None:
        self._connect = connect
        self._most = most
        self._free: list[Database] = []
        self._changing = threading.Lock()
        self._places: tuple[AbstractEventLoop, Semaphore] | None = None
        self._idle: list[SimpleQueue[_Call | None]] = []
        self._running: set[_Call] = set()
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
        # Here, since `run` does without it, and it takes long to import.
        import asyncio

        loop = asyncio.get_running_loop()
        if self._places is None or self._places[0] is not loop:
            self._places = loop, asyncio.Semaphore(self._most)
        _, places = self._places
        await places.acquire()
        one = _Call(self._borrow, call, loop, places)
        try:
            self._start(one)
        except BaseException:
            one.give_back()
            raise
        try:
            answer: T = await one.answer
        except asyncio.CancelledError:
            # In a thread, since a database may connect to its server for that, and wait for one that hangs.
            start_thread(threading.Thread(target=one.interrupt, daemon=True))
            loop.call_later(SECONDS_TO_END, one.give_back)
            raise
        return answer

    def close(self) -> None:
        """Disconnect after the current calls have ended; one that hangs disconnects when it ends."""
        until = time.monotonic() + SECONDS_TO_END
        while self._running and time.monotonic() < until:
            time.sleep(0.005)
        with self._changing:
            self._closed = True
            idle, self._idle = self._idle, []
        for calls in idle:
            calls.put(None)
        self._close_free()

    # ── threads ──────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, one: _Call) -> None:
        """Run a call in an idle thread, or in a new one."""
        with self._changing:
            calls = self._idle.pop() if self._idle else None
        if calls is None:
            calls = SimpleQueue()
            start_thread(threading.Thread(target=self._run, args=[calls], name="lookupcache-sql", daemon=True))
        self._running.add(one)
        calls.put(one)

    def _run(self, calls: SimpleQueue[_Call | None]) -> None:
        """Run the calls of a thread; it ends when the pool is closed, or where there are enough others."""
        is_needed = True
        while is_needed and (one := calls.get()) is not None:
            one.run()
            self._running.discard(one)
            # Before its answer is set: the next call then finds this thread, and needs no other.
            with self._changing:
                is_needed = not self._closed and len(self._idle) < self._most
                if is_needed:
                    self._idle.append(calls)
            one.tell()
            del one  # An idle thread keeps no call alive.

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _borrow(self) -> Iterator[Database]:
        database = self._take_free() or self._connect()
        try:
            yield database
        except LookupCacheError:
            self._give_back(database)
            raise
        except BaseException as error:
            database.close()
            if isinstance(error, Exception) and database.retryable(error):
                self._close_free()  # After a restart of the server, all are lost: each would fail a retry.
            raise
        self._give_back(database)

    def _close_free(self) -> None:
        with self._changing:
            free, self._free = self._free, []
        for database in free:
            database.close()

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


class _Call:
    """A call in a thread, with a connection that ``borrow`` lends; its ``answer`` is awaited on an event loop.

    Of the ``places`` for calls it has one until it has ended.
    """

    def __init__(
        self,
        borrow: Callable[[], AbstractContextManager[Database]],
        call: Callable[[Database], Any],
        loop: AbstractEventLoop,
        places: Semaphore,
    ) -> None:
        self._borrow, self._call, self._loop, self._places = borrow, call, loop, places
        self._busy: Database | None = None
        self._ending = threading.Lock()
        self._has_place, self._is_cancelled = True, False
        self._result: Any = None
        self._error: BaseException | None = None
        self.answer = loop.create_future()

    def run(self) -> None:
        """Make the call, in its thread."""
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def tell(self) -> None:
        """Pass the answer to the event loop."""
        with suppress(RuntimeError):  # The loop was closed.
            self._loop.call_soon_threadsafe(self._end)

    def interrupt(self) -> None:
        """Interrupt its query, or see that it makes none; from another thread."""
        with self._ending:
            self._is_cancelled = True
            if self._busy is not None:
                self._busy.interrupt()

    def give_back(self) -> None:
        """Give its place to another call."""
        if self._has_place:
            self._has_place = False
            self._places.release()

    def _work(self) -> Any:
        with self._borrow() as database:
            with self._ending:
                if self._is_cancelled:
                    return None
                self._busy = database
            try:
                return self._call(database)
            finally:
                # Not while it is interrupted: the next call on this connection would be.
                with self._ending:
                    self._busy = None

    def _end(self) -> None:
        self.give_back()
        result, error, self._result, self._error = self._result, self._error, None, None
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)
