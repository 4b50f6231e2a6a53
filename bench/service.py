"""A service with one fixed latency, in a process of its own, and the clients for it: light on both sides.

A request is a number for it, how many keys, and the keys; its answer the same number, how many, and a value per
key. All are little-endian integers, keys and values of 64 bits. Many requests are under way on one Unix
socket; those that arrived together are answered together, exactly ``latency`` seconds after they came.

Run as a program it takes a socket's path and a latency, says when it listens, and serves until its input ends.
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

_TOGETHER = 8
"""How many requests leave in one write: all at once would keep their answers together for ever, with the time
that it takes to work through them added to each round of the latency."""

Row = tuple[int, int]


def value_of(key: int) -> int:
    """Return what the service answers for a key."""
    return key * 7 + 13


class Service:
    """The service's process, from ``with`` to the end of the block; ``path`` is its socket."""

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
    """Asks and waits; each thread has a connection of its own. Its copies are one in each process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._local = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (SyncClient, self.path)

    def one(self, key: int) -> list[Row]:
        """Return the rows of a key."""
        connection = self._connection()
        connection.sendall(ONE.pack(0, 1, key))
        return [(key, ONE.unpack(_received(connection, ONE.size))[2])]

    def many(self, keys: list[int]) -> list[list[Row]]:
        """Return the rows of each key, for one latency in all."""
        connection = self._connection()
        connection.sendall(HEAD.pack(0, len(keys)) + array("q", keys).tobytes())
        values = array("q", bytes(_received(connection, HEAD.size + 8 * len(keys))[HEAD.size :]))
        return [[row] for row in zip(keys, values, strict=True)]

    def _connection(self) -> socket.socket:
        try:
            return self._local.connection
        except AttributeError:
            self._local.connection = connection = socket.socket(socket.AF_UNIX)
            connection.connect(self.path)
            return connection


def _received(connection: socket.socket, size: int) -> bytes:
    answer = connection.recv(size)
    while len(answer) < size:
        more = connection.recv(size - len(answer))
        if not more:
            raise ConnectionError("the service is gone")
        answer += more
    return answer


class AsyncClient:
    """Asks and lets others work meanwhile, over one connection, on the loop of the first request.

    Its copies are one in each process, and another than itself.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._wire: _Wire | None = None
        self._connecting: asyncio.Future[tuple[Any, _Wire]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (AsyncClient, self.path)

    async def one(self, key: int) -> list[Row]:
        """Return the rows of a key."""
        wire = self._wire or await self._connect()
        return [(key, await wire.ask_one(key))]

    async def many(self, keys: list[int]) -> list[list[Row]]:
        """Return the rows of each key, for one latency in all."""
        wire = self._wire or await self._connect()
        return [[row] for row in zip(keys, await wire.ask_many(keys), strict=True)]

    async def _connect(self) -> _Wire:
        if self._connecting is None:
            loop = asyncio.get_running_loop()
            self._connecting = asyncio.ensure_future(loop.create_unix_connection(_Wire, self.path))
        self._wire = (await asyncio.shield(self._connecting))[1]
        return self._wire


@cache
def _copied(kind: type[Any], path: str) -> Any:
    return kind(path)


class _Wire(asyncio.Protocol):
    """The client's end of a connection: who waits for the answer of which number."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._leaving: list[bytes] = []
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def ask_one(self, key: int) -> asyncio.Future[int]:
        """Return what will hold the key's value."""
        number = next(self._numbers) & 0xFFFFFFFF
        return self._ask(number, ONE.pack(number, 1, key))

    def ask_many(self, keys: list[int]) -> asyncio.Future[array[int]]:
        """Return what will hold the keys' values."""
        number = next(self._numbers) & 0xFFFFFFFF
        return self._ask(number, HEAD.pack(number, len(keys) | _MANY) + array("q", keys).tobytes())

    def _ask(self, number: int, request: bytes) -> asyncio.Future[Any]:
        self._waiting[number] = answer = self._loop.create_future()
        leaving = self._leaving
        leaving.append(request)
        if len(leaving) == 1:
            self._loop.call_soon(self._send)
        elif len(leaving) == _TOGETHER:
            self._send()
        return answer

    def _send(self) -> None:
        if self._leaving:
            self._transport.write(b"".join(self._leaving))
            self._leaving.clear()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, end, waiting = 0, len(data), self._waiting
        while at + ONE.size <= end:
            number, count, answer = ONE.unpack_from(data, at)
            after = at + HEAD.size + 8 * (count & ~_MANY)
            if after > end:
                break
            if count & _MANY:
                answer = array("q", data[at + HEAD.size : after])
            future = waiting.pop(number)
            if not future.done():
                future.set_result(answer)
            at = after
        self._rest = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the service is gone"))


_MANY = 1 << 31
"""Marks the number of keys of a request that wants a list, be it of one; the answer bears it too."""


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────


class _Answers(asyncio.Protocol):
    """The service's end of a connection."""

    latency = 0.0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        came = self._loop.time()
        if self._rest:
            data = self._rest + data
        answers, at, end = [], 0, len(data)
        while at + ONE.size <= end:
            number, count, key = ONE.unpack_from(data, at)
            after = at + HEAD.size + 8 * (count & ~_MANY)
            if after > end:
                break
            if count == 1:
                answers.append(ONE.pack(number, 1, value_of(key)))
            else:
                values = array("q", map(value_of, array("q", data[at + HEAD.size : after])))
                answers.append(HEAD.pack(number, count) + values.tobytes())
            at = after
        self._rest = data[at:]
        self._loop.call_at(came + self.latency, self._transport.write, b"".join(answers))


async def _serve(path: str) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_unix_server(lambda: _Answers(loop), path)
    print("listening", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)


def _wake_exactly() -> None:
    """Ask Linux not to let timers of this process run late for the sake of power."""
    set_timer_slack = 29
    ctypes.CDLL(None).prctl(set_timer_slack, 1)


def main() -> None:
    """Serve. The selector is `select`: that of epoll rounds each wait up to whole milliseconds."""
    path, latency = sys.argv[1:]
    _Answers.latency = float(latency)
    _wake_exactly()
    gc.disable()
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(_serve(path))


if __name__ == "__main__":
    main()
