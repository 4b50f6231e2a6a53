"""Reads the rows of a result from PyMySQL's connection, many at a time: the driver itself takes 4 µs for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from lookupcache.source_options import AnswerLimit

_HEAD = 4
_NULL = 251
_LENGTHS = {252: 2, 253: 3, 254: 8}
"""How many bytes the length of a value has, by the byte before it; other bytes are the length itself."""
_END, _ERROR = 254, 255
"""The packet of a row cannot begin with these bytes, as long as it is smaller than the buffer."""
_READ_BYTES = 48
"""The bytes of memory that Python needs for a read besides its data; the driver makes two reads for a row."""


def read_columns(cursor: Any, limit: AnswerLimit | None, most: float) -> Iterator[list[pa.Array]]:
    """Yield the columns of an unbuffered result, of at least one and about ``most`` rows each time.

    ``limit`` counts the bytes; raises its error. Nobody may use the connection after an error.
    """
    result, connection = cursor._result, cursor.connection
    encodings = [encoding for encoding, _ in result.converters]
    source = connection._rfile
    if limit is not None:
        connection._rfile = _CountedFile(source, limit)
    try:
        is_open = True
        while is_open:
            columns: list[list[bytes | None]] = [[] for _ in encodings]
            while is_open and len(columns[0]) < most:
                _take_buffered(connection, columns)
                is_open = _take_one(cursor, columns)
            yield [_array(values, encoding) for values, encoding in zip(columns, encodings, strict=True)]
    except Exception:
        # Else the driver would read the rest.
        result.unbuffered_active = False
        raise
    finally:
        if connection._rfile is not None:
            connection._rfile = source


class _CountedFile:
    """The file that a connection reads packets from; it counts the bytes."""

    def __init__(self, source: Any, limit: AnswerLimit) -> None:
        self._source = source
        self._limit = limit
        self.close = source.close

    def peek(self) -> bytes:
        data: bytes = self._source.peek()
        return data

    def read(self, count: int) -> bytes:
        self._limit.add(count + _READ_BYTES)
        data: bytes = self._source.read(count)
        return data

    def count_rows(self, rows: int) -> None:
        self._limit.add(2 * _READ_BYTES * rows)


def _take_one(cursor: Any, columns: list[list[bytes | None]]) -> bool:
    """Add the next row as the driver reads it; return whether there was one. Raises the server's error."""
    row = cursor.fetchone()
    for values, value in zip(columns, row or (), strict=False):
        values.append(value.encode() if isinstance(value, str) else value)
    return row is not None


def _take_buffered(connection: Any, columns: list[list[bytes | None]]) -> None:
    """Add the rows that are complete in the connection's buffer; none if it is broken, which the next read says."""
    buffered = b""
    with suppress(OSError):
        buffered = connection._rfile.peek()
    rows, end = _take_rows(buffered, columns)
    if rows:
        connection._rfile.read(end)
        connection._next_seq_id = (connection._next_seq_id + rows) % 256
        if isinstance(connection._rfile, _CountedFile):
            connection._rfile.count_rows(rows)


def _take_rows(data: bytes, columns: list[list[bytes | None]]) -> tuple[int, int]:
    """Add the rows whose packets ``data`` has in full; return how many they are, and where the rest begins."""
    rows = start = 0
    while len(data) >= start + _HEAD:
        at = start + _HEAD
        end = at + int.from_bytes(data[start : start + 3], "little")
        if end > len(data) or end == at or data[at] in (_END, _ERROR):
            break
        for values in columns:
            length = data[at]
            at += 1
            if length == _NULL:
                values.append(None)
                continue
            if length > _NULL:
                size = _LENGTHS[length]
                length = int.from_bytes(data[at : at + size], "little")
                at += size
            values.append(data[at : at + length])
            at += length
        rows, start = rows + 1, end
    return rows, start


def _array(values: list[bytes | None], encoding: str | None) -> pa.Array:
    binary = pa.array(values, pa.binary())
    return binary if encoding is None else binary.cast(pa.string())
