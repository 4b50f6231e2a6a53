"""A service with a fixed latency, in its own process, and clients for it; both sides use little CPU time.

A request consists of a request number, the number of keys, and the keys; its response of the same number, the number
of keys, and a value per key. All are little-endian integers, keys and values with 64 bits. Requests are pipelined on a
Unix socket; those that arrive together are answered together, exactly ``latency`` seconds later.

As a program, it takes the path of a socket and a latency. It prints when it listens, and serves until its standard
input is closed.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import os
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from array import array
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

SCHEMA = "id BIGINT, value BIGINT"
HEAD = struct.Struct("<II")
ONE = struct.Struct("<IIq")

_REQUESTS_PER_WRITE = 8
"""The number of requests per write. If all were written at once, their responses would always arrive together too, and
the time to process them would be added to the latency of each round."""

Row = tuple[int, int]


def value_of(key: int) -> int:
    """Return the value that the service returns for a key."""
    return key * 7 + 13


class Service:
    """A context manager that runs the service's process; ``path`` is its socket."""

    def __init__(self, latency: float) -> None:
        self.latency = latency

    def __enter__(self) -> Service:
        self._folder = tempfile.TemporaryDirectory()
        self.path = str(Path(self._folder.name) / "service")
        program = [sys.executable, "-I", __file__, self.path, str(self.latency)]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._process.stdout.readline()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
        self._folder.cleanup()


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────


class SyncClient:
    """A blocking client with one connection per thread. Unpickled copies are a single object per process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._local = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared_client, (SyncClient, self.path)

    def one(self, key: int) -> list[Row]:
        """Return the rows of a key."""
        connection = self._connection()
        connection.sendall(ONE.pack(0, 1, key))
        return [(key, ONE.unpack(_receive(connection, ONE.size))[2])]

    def many(self, keys: list[int]) -> list[list[Row]]:
        """Return the rows of each key, with the latency of one call."""
        connection = self._connection()
        connection.sendall(HEAD.pack(0, len(keys)) + array("q", keys).tobytes())
        values = array("q", bytes(_receive(connection, HEAD.size + 8 * len(keys))[HEAD.size :]))
        return [[row] for row in zip(keys, values, strict=True)]

    def _connection(self) -> socket.socket:
        try:
            return self._local.connection
        except AttributeError:
            self._local.connection = connection = socket.socket(socket.AF_UNIX)
            connection.connect(self.path)
            return connection


def _receive(connection: socket.socket, size: int) -> bytes:
    answer = connection.recv(size)
    while len(answer) < size:
        more = connection.recv(size - len(answer))
        if not more:
            raise ConnectionError("the service closed the connection")
        answer += more
    return answer


class AsyncClient:
    """An asynchronous client with one connection, on the loop of the first request.

    Unpickled copies are a single object per process, distinct from the original.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._wire: _Wire | None = None
        self._connecting: asyncio.Future[tuple[Any, _Wire]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared_client, (AsyncClient, self.path)

    async def one(self, key: int) -> list[Row]:
        """Return the rows of a key."""
        wire = self._wire or await self._connect()
        return [(key, await wire.ask_one(key))]

    async def many(self, keys: list[int]) -> list[list[Row]]:
        """Return the rows of each key, with the latency of one call."""
        wire = self._wire or await self._connect()
        return [[row] for row in zip(keys, await wire.ask_many(keys), strict=True)]

    async def _connect(self) -> _Wire:
        if self._connecting is None:
            loop = asyncio.get_running_loop()
            self._connecting = asyncio.ensure_future(loop.create_unix_connection(_Wire, self.path))
        self._wire = (await asyncio.shield(self._connecting))[1]
        return self._wire


@cache
def _shared_client(kind: type[Any], path: str) -> Any:
    return kind(path)


class _Wire(asyncio.Protocol):
    """The client's end of a connection; it maps request numbers to the futures that wait for responses."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._pending: list[bytes] = []
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def ask_one(self, key: int) -> asyncio.Future[int]:
        """Return a future with the key's value."""
        number = next(self._numbers) & 0xFFFFFFFF
        return self._ask(number, ONE.pack(number, 1, key))

    def ask_many(self, keys: list[int]) -> asyncio.Future[array[int]]:
        """Return a future with the keys' values."""
        number = next(self._numbers) & 0xFFFFFFFF
        return self._ask(number, HEAD.pack(number, len(keys) | _IS_LIST) + array("q", keys).tobytes())

    def _ask(self, number: int, request: bytes) -> asyncio.Future[Any]:
        self._waiting[number] = answer = self._loop.create_future()
        pending = self._pending
        pending.append(request)
        if len(pending) == 1:
            self._loop.call_soon(self._send)
        elif len(pending) == _REQUESTS_PER_WRITE:
            self._send()
        return answer

    def _send(self) -> None:
        if self._pending:
            self._transport.write(b"".join(self._pending))
            self._pending.clear()

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        start, end, waiting = 0, len(data), self._waiting
        while start + ONE.size <= end:
            number, count, answer = ONE.unpack_from(data, start)
            after = start + HEAD.size + 8 * (count & ~_IS_LIST)
            if after > end:
                break
            if count & _IS_LIST:
                answer = array("q", data[start + HEAD.size : after])
            future = waiting.pop(number)
            if not future.done():
                future.set_result(answer)
            start = after
        self._buffer = data[start:]

    def connection_lost(self, error: Exception | None) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the service closed the connection"))


_IS_LIST = 1 << 31
"""A flag in the number of keys of a request whose response is a list, even for one key; the response has it too."""


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────


class _Answers(asyncio.Protocol):
    """The service's end of a connection."""

    latency = 0.0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        arrived = self._loop.time()
        if self._buffer:
            data = self._buffer + data
        answers, start, end = [], 0, len(data)
        while start + ONE.size <= end:
            number, count, key = ONE.unpack_from(data, start)
            after = start + HEAD.size + 8 * (count & ~_IS_LIST)
            if after > end:
                break
            if count == 1:
                answers.append(ONE.pack(number, 1, value_of(key)))
            else:
                values = array("q", map(value_of, array("q", data[start + HEAD.size : after])))
                answers.append(HEAD.pack(number, count) + values.tobytes())
            start = after
        self._buffer = data[start:]
        self._loop.call_at(arrived + self.latency, self._transport.write, b"".join(answers))


async def _serve(path: str) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_unix_server(lambda: _Answers(loop), path)
    print("listening", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)


def _disable_timer_slack() -> None:
    """Disable timer slack, by which Linux delays timers of this process to save power."""
    set_timer_slack = 29
    ctypes.CDLL(None).prctl(set_timer_slack, 1)


def main() -> None:
    """Serve, with the selector `select`: that of epoll rounds timeouts up to milliseconds."""
    path, latency = sys.argv[1:]
    _Answers.latency = float(latency)
    _disable_timer_slack()
    gc.disable()
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(_serve(path))


if __name__ == "__main__":
    main()
