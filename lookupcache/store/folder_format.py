"""The files of a folder as bytes: segments of entries, and invalidations.

    <hex>.seg  head │ words │ other words │ since │ ends │ offsets │ frames
    <hex>.inv  head │ names; without any, it invalidates all

A name is 16 bytes, the hash of a key: two words of 64 bits. A segment is sorted by the first. Times are microseconds by
the clock of the folder. Head and index have a checksum; a frame has its own, which is compared when it is used.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

ENDLESS = 2**62
"""The time at which an entry expires that never does."""

MICROSECONDS = 1_000_000

_SEGMENT = b"LCFSEG\x01\n"
_INVALIDATION = b"LCFINV\x01\n"
_HEAD = struct.Struct("<8s16sQqqqI4x")
"""Magic, identity, number of entries, time of writing, oldest since, last end, checksum of all but the frames."""
_SMALL_HEAD = struct.Struct("<8s16sqqI4x")
"""Magic, identity, time, zero, checksum of head and names."""
INDEX_BYTES = 40
"""How much of the index an entry takes."""
_NAME_BYTES = 16


class DamagedFileError(Exception):
    """A file that must not be used; the text says why."""


@dataclass(frozen=True)
class Entries:
    """Entries of one identity: names as rows of two words, frames, since when each was fetched, when it expires."""

    names: Words
    frames: Sequence[bytes]
    since: Numbers
    ends: Numbers

    def take(self, kept: Numbers) -> Entries:
        frames = [self.frames[number] for number in kept.tolist()]
        return Entries(self.names[kept], frames, self.since[kept], self.ends[kept])


@dataclass(frozen=True)
class Index:
    """The index of a segment: the frame of entry i is at ``offsets[i]`` to ``offsets[i + 1]``."""

    published: int
    oldest: int
    last_end: int
    names: Words
    since: Numbers
    ends: Numbers
    offsets: Numbers

    def __len__(self) -> int:
        return len(self.since)


@dataclass(frozen=True)
class InvalidatedNames:
    """Names, or none for all, whose entries are invalid if they were requested until a time."""

    names: Words
    time: int


def identity_hash(identity: str) -> bytes:
    """Return the 16 bytes that say in a file which identity it belongs to."""
    return hashlib.sha256(identity.encode()).digest()[:16]


def names_as_words(digits: bytes) -> Words:
    """Return names, written one after another in hexadecimal digits, as rows of two words."""
    return np.frombuffer(bytes.fromhex(digits.decode("ascii")), "<u8").reshape(-1, 2)


def names_as_bytes(names: Words) -> list[bytes]:
    raw = names.tobytes()
    return [raw[at : at + _NAME_BYTES] for at in range(0, len(raw), _NAME_BYTES)]


# ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────


def segment_parts(identity: str, published: int, entries: Entries) -> list[Any]:
    """Return a segment as buffers."""
    order = np.argsort(entries.names[:, 0], kind="stable")
    frames = [entries.frames[number] for number in order.tolist()]
    count = len(frames)
    sizes = np.fromiter(map(len, frames), np.int64, count)
    first = _HEAD.size + INDEX_BYTES * count + 8
    offsets = first + np.concatenate([[0], np.cumsum(sizes)])
    columns = [entries.names[order, 0], entries.names[order, 1], entries.since[order], entries.ends[order], offsets]
    index = b"".join(np.ascontiguousarray(column).astype("<i8" if column.dtype.kind == "i" else "<u8").tobytes()
                     for column in columns)  # fmt: skip
    oldest = int(entries.since.min()) if count else 0
    last_end = int(entries.ends.max()) if count else 0
    fields = (_SEGMENT, identity_hash(identity), count, published, oldest, last_end)
    return [_HEAD.pack(*fields, zlib.crc32(index, zlib.crc32(_HEAD.pack(*fields, 0)))), index, *frames]


def read_index(identity: str, size: int, read: Callable[[int, int], bytes]) -> Index:
    """Return the index of a segment; raises DamagedFileError.

    ``read`` takes a position and a size, and returns the bytes there, fewer at the end.
    """
    head = read(0, _HEAD.size)
    if len(head) < _HEAD.size:
        raise DamagedFileError("it is truncated")
    magic, owner, count, published, oldest, last_end, checksum = _HEAD.unpack(head)
    if magic != _SEGMENT:
        raise DamagedFileError("it is no segment of this version")
    if owner != identity_hash(identity):
        raise DamagedFileError("it is of another identity")
    length = INDEX_BYTES * count + 8
    if size < _HEAD.size + length:
        raise DamagedFileError("it is truncated")
    index = read(_HEAD.size, length)
    unsigned = _HEAD.pack(magic, owner, count, published, oldest, last_end, 0)
    if len(index) < length or zlib.crc32(index, zlib.crc32(unsigned)) != checksum:
        raise DamagedFileError("its checksum is wrong")
    columns = np.frombuffer(index, "<u8")
    names = np.stack([columns[:count], columns[count : 2 * count]], axis=1)
    numbers = columns[2 * count :].view("<i8")
    offsets = numbers[2 * count :]
    if int(offsets[-1]) != size or bool((np.diff(offsets) < 0).any()):
        raise DamagedFileError("it is truncated")
    return Index(published, oldest, last_end, names, numbers[:count], numbers[count : 2 * count], offsets)


# ── invalidations ────────────────────────────────────────────────────────────────────────────────────────────


def invalidation(identity: str, names: Words | None, time: int) -> bytes:
    """Return the file that invalidates names, or with None all, that were requested until a time."""
    body = b"" if names is None else np.ascontiguousarray(names).astype("<u8").tobytes()
    fields = (_INVALIDATION, identity_hash(identity), time, 0)
    return _SMALL_HEAD.pack(*fields, zlib.crc32(body, zlib.crc32(_SMALL_HEAD.pack(*fields, 0)))) + body


def read_invalidation(identity: str, data: bytes) -> InvalidatedNames:
    """Return an invalidation; raises DamagedFileError."""
    if len(data) < _SMALL_HEAD.size or (len(data) - _SMALL_HEAD.size) % _NAME_BYTES:
        raise DamagedFileError("it is truncated")
    *fields, checksum = _SMALL_HEAD.unpack_from(data)
    body = data[_SMALL_HEAD.size :]
    if fields[:2] != [_INVALIDATION, identity_hash(identity)]:
        raise DamagedFileError("it is of another version or identity")
    if zlib.crc32(body, zlib.crc32(_SMALL_HEAD.pack(*fields, 0))) != checksum:
        raise DamagedFileError("its checksum is wrong")
    return InvalidatedNames(np.frombuffer(body, "<u8").reshape(-1, 2), fields[2])
