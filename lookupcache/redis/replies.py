"""Limits of replies while they are read: of their bytes, and of the time that they may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lookupcache.source_options import AnswerLimit


@contextmanager
def limit_bytes(connection: Any, limit: AnswerLimit | None) -> Iterator[None]:
    """Count what is read from a connection: a reply is complete in memory before redis-py returns it."""
    if limit is None:
        yield
        return
    reading = _reader_of(connection)
    source = reading._sock
    reading._sock = _CountedSocket(source, limit)
    try:
        yield
    finally:
        if isinstance(getattr(reading, "_sock", None), _CountedSocket):
            reading._sock = source


def _reader_of(connection: Any) -> Any:
    """Return what reads from the socket of a connection; without hiredis, it is a buffer of the parser."""
    parser = connection._parser
    buffer = getattr(parser, "_buffer", None)
    return buffer if hasattr(buffer, "_sock") else parser


class _CountedSocket:
    """A socket whose bytes a limit counts."""

    def __init__(self, source: Any, limit: AnswerLimit) -> None:
        self._source = source
        self._limit = limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def recv_into(self, buffer: Any) -> int:
        size: int = self._source.recv_into(buffer)
        self._limit.add(size)
        return size

    def recv(self, most: int) -> bytes:
        data: bytes = self._source.recv(most)
        self._limit.add(len(data))
        return data


LEAST_BYTES_PER_SECOND = 4 << 20
"""How fast a request or reply must be that takes longer than the timeout of its client."""

_PIECE_BYTES = 256 << 10


_LEAST_SECONDS = 0.001


def limit_time(connection: Any, seconds: Callable[[], float]) -> None:
    """Let each request, and the replies to it, end with TimeoutError if they take longer than ``seconds`` returns."""
    connection._sock = _Paced(connection._sock, seconds)
    _reader_of(connection)._sock = connection._sock


class _Paced:
    """A socket that raises TimeoutError if a request, or the replies to it, take longer than their bytes may."""

    def __init__(self, source: Any, seconds: Callable[[], float]) -> None:
        self._source = source
        self._seconds = seconds
        self._start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def _start(self) -> None:
        self._until = time.monotonic() + self._seconds()

    def _limit(self) -> None:
        """Let the socket wait as long as there is time; redis-py lets it not wait at all to look for replies."""
        if self._source.gettimeout() != 0:
            self._source.settimeout(max(self._until - time.monotonic(), _LEAST_SECONDS))

    def sendall(self, data: Any) -> None:
        self._start()
        left = memoryview(data)
        while len(left):
            # Not all at once: the time of the socket would be that for all of it.
            self._limit()
            left = left[self._counted(self._source.send(left[:_PIECE_BYTES])) :]
        self._start()

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        self._limit()
        return self._counted(self._source.recv_into(buffer, size, flags))

    def recv(self, most: int, flags: int = 0) -> bytes:
        self._limit()
        data: bytes = self._source.recv(most, flags)
        self._counted(len(data))
        return data

    def _counted(self, size: int) -> int:
        self._until += size / LEAST_BYTES_PER_SECOND
        # No bytes: the server has closed the connection, maybe while it was idle, which the client finds out by itself.
        if size and time.monotonic() > self._until:
            raise TimeoutError("it takes too long")
        return size


def within(limit: AnswerLimit | None, replies: list[Any]) -> list[Any]:
    """Return replies that a limit allows."""
    if limit is not None:
        limit.add(sum(map(_size, replies)))
    return replies


def _size(reply: Any) -> int:
    if isinstance(reply, dict):
        return sum(map(_size, reply)) + sum(map(_size, reply.values()))
    if isinstance(reply, list):
        return sum(map(_size, reply))
    return len(reply) if isinstance(reply, bytes | str) else 1
