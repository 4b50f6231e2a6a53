"""Python values as bytes and back, without pickle: for functions that are cached without Spark.

None, bool, int, float, str, bytes, date, datetime, Decimal, and lists, tuples and dicts of these, each with its type:
1, 1.0 and True are different values. A value is a letter for its type, and what follows from that.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from lookupcache.errors import LookupCacheError

_LENGTH = struct.Struct("<I")
_FLOAT = struct.Struct("<d")
_DEEPEST = 100
_TYPES = "None, bool, int, float, str, bytes, date, datetime, Decimal, and lists, tuples and dicts of these"


class UnstorableError(LookupCacheError):
    """A value or a key of a function cannot be written to a store."""


def to_bytes(value: Any, what: str = "A value") -> bytes:
    """Return a value as bytes; raises UnstorableError for a value of another type.

    >>> from_bytes(to_bytes([{"id": 7, "price": Decimal("1.50")}, None, (True, 1.0)]))
    [{'id': 7, 'price': Decimal('1.50')}, None, (True, 1.0)]
    """
    parts: list[bytes] = []
    _write(value, parts, 0, what)
    return b"".join(parts)


def from_bytes(data: bytes) -> Any:
    """Return the value of bytes; raises ValueError for bytes that `to_bytes` has not returned."""
    try:
        value, end = _read(data, 0, 0)
    except (struct.error, IndexError, KeyError, TypeError, ArithmeticError, UnicodeDecodeError) as error:
        raise ValueError(f"damaged value: {type(error).__name__}") from None
    if end != len(data):
        raise ValueError("damaged value: too long")
    return value


def _write(value: Any, parts: list[bytes], depth: int, what: str) -> None:
    kind = type(value)
    if kind not in _WRITERS and kind not in (list, tuple, dict):
        raise UnstorableError(
            f"{what} of type {kind.__module__}.{kind.__qualname__} cannot be written to 'lookup.cache.store'.",
            hint=f"Return {_TYPES}.",
        )
    if depth > _DEEPEST:
        raise UnstorableError(
            f"{what} is nested more than {_DEEPEST} levels deep, which 'lookup.cache.store' does not take.",
            hint="Return a flatter value.",
        )
    if kind in _WRITERS:
        letter, write = _WRITERS[kind]
        body = write(value)
        parts += [letter, _LENGTH.pack(len(body)), body]
        return
    parts += [b"l" if kind is list else b"t" if kind is tuple else b"d", _LENGTH.pack(len(value))]
    items = value if kind is not dict else (part for pair in value.items() for part in pair)
    for item in items:
        _write(item, parts, depth + 1, what)


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _whole(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


_WRITERS: dict[type, tuple[bytes, Callable[[Any], bytes]]] = {
    type(None): (b"N", lambda _: b""),
    bool: (b"B", lambda value: b"\x01" if value else b"\x00"),
    int: (b"I", _whole),
    float: (b"F", _FLOAT.pack),
    str: (b"S", _text),
    bytes: (b"Y", bytes),
    dt.date: (b"D", lambda value: value.isoformat().encode()),
    dt.datetime: (b"M", lambda value: _moment(value)),
    Decimal: (b"C", lambda value: str(value).encode()),
}

_READERS: dict[int, Callable[[bytes], Any]] = {
    ord("N"): lambda _: None,
    ord("B"): lambda body: body == b"\x01",
    ord("I"): lambda body: int.from_bytes(body, "little", signed=True),
    ord("F"): lambda body: _FLOAT.unpack(body)[0],
    ord("S"): lambda body: body.decode("utf-8", "surrogatepass"),
    ord("Y"): bytes,
    ord("D"): lambda body: dt.date.fromisoformat(body.decode()),
    ord("M"): lambda body: dt.datetime.fromisoformat(body.decode()),
    ord("C"): lambda body: Decimal(body.decode()),
}


def _moment(value: dt.datetime) -> bytes:
    # A zone by name comes back as the offset that it had then, which is another value.
    if value.tzinfo is not None and type(value.tzinfo) is not dt.timezone:
        raise UnstorableError(
            "A datetime with a time zone by name cannot be written to 'lookup.cache.store'.",
            hint="Convert it to UTC, as by value.astimezone(datetime.timezone.utc).",
        )
    return value.isoformat().encode()


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST + 1:
        raise ValueError("damaged value: nested too deeply")
    kind, (size,), at = data[at], _LENGTH.unpack_from(data, at + 1), at + 5
    if kind in _READERS:
        if at + size > len(data):
            raise ValueError("damaged value: cut off")
        return _READERS[kind](data[at : at + size]), at + size
    if kind not in b"ltd":
        raise ValueError("damaged value: unknown type")
    items = []
    for _ in range(size * 2 if kind == ord("d") else size):
        item, at = _read(data, at, depth + 1)
        items.append(item)
    if kind == ord("d"):
        return dict(zip(items[::2], items[1::2], strict=True)), at
    return (tuple(items) if kind == ord("t") else items), at
