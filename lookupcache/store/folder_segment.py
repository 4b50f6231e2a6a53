"""`FolderSegment`: a file of entries in a folder, which never changes once it is written.

    <hex>.seg, <hex>.inv  head │ words │ other words │ since │ ends │ offsets │ frames

A name is 16 bytes, the hash of a key: two words of 64 bits. A file is sorted by the first. Times are microseconds. Head
and index have a checksum; a frame has its own, which is compared when it is used. In an invalidation, no name has a
frame; without names, it invalidates all.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lookupcache.store.folder_files import DamagedFileError, OpenFile

Numbers = npt.NDArray[np.int64]

ENDLESS = 2**62
"""The time at which an entry expires that never does."""

MICROSECONDS = 1_000_000
INDEX_BYTES = 40
"""How much of the index an entry takes."""

_MAGIC = b"LCFSEG\x02\n"
_HEAD = struct.Struct("<8s16sQQqI4x")
"""Magic, identity, number of entries, size of the file, time of writing, checksum of head and index."""
_NAME_BYTES = 16
_GAP_BYTES = 4_096
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredEntries:
    """Entries of one identity: names as rows of two words, frames, since when each was fetched, when it expires."""

    names: Numbers
    frames: Sequence[bytes]
    since: Numbers
    ends: Numbers

    def take(self, kept: Numbers) -> StoredEntries:
        frames = [self.frames[number] for number in kept.tolist()]
        return StoredEntries(self.names[kept], frames, self.since[kept], self.ends[kept])


def invalidation(names: Numbers | None, time: int) -> StoredEntries:
    """Return what says that names, or with None all, are invalid if they were requested until a time."""
    names = np.zeros((0, 2), np.int64) if names is None else names
    times = np.full(len(names), time)
    return StoredEntries(names, [b""] * len(names), times, times)


def names_as_words(digits: bytes) -> Numbers:
    """Return names, written one after another in hexadecimal digits, as rows of two words."""
    return np.frombuffer(bytes.fromhex(digits.decode("ascii")), "<i8").reshape(-1, 2)


def names_as_bytes(names: Numbers) -> list[bytes]:
    raw = names.tobytes()
    return [raw[at : at + _NAME_BYTES] for at in range(0, len(raw), _NAME_BYTES)]


def segment_parts(identity: str, published: int, entries: StoredEntries) -> list[Any]:
    """Return a segment as buffers."""
    order = np.argsort(entries.names[:, 0], kind="stable")
    frames = [entries.frames[number] for number in order.tolist()]
    sizes = np.fromiter(map(len, frames), np.int64, len(frames))
    ends = _HEAD.size + INDEX_BYTES * len(frames) + np.cumsum(sizes)
    columns = [*entries.names[order].T, entries.since[order], entries.ends[order], ends - sizes]
    index = np.stack(columns).astype("<i8").tobytes()
    size = _HEAD.size + len(index) + int(sizes.sum())
    fields = (_MAGIC, _identity_hash(identity), len(frames), size, published)
    return [_HEAD.pack(*fields, _checksum(fields, index)), index, *frames]


def _identity_hash(identity: str) -> bytes:
    return hashlib.sha256(identity.encode()).digest()[:16]


def _checksum(fields: Sequence[Any], index: bytes) -> int:
    return zlib.crc32(index, zlib.crc32(_HEAD.pack(*fields, 0)))


class FolderSegment:
    """A segment that is open, with its index; raises DamagedFileError and OSError."""

    def __init__(self, identity: str, name: str, file: OpenFile) -> None:
        self.name = name
        self.file = file
        head = file.read(0, _HEAD.size)
        if len(head) < _HEAD.size:
            raise DamagedFileError("it is truncated")
        *fields, checksum = _HEAD.unpack(head)
        magic, owner, count, size, self.published = fields
        if magic != _MAGIC or owner != _identity_hash(identity):
            raise DamagedFileError("it is of another version or identity")
        length = INDEX_BYTES * count
        if size != file.size or size < _HEAD.size + length:
            raise DamagedFileError("it is truncated")
        index = file.read(_HEAD.size, length)
        if _checksum(fields, index) != checksum:
            raise DamagedFileError("its checksum is wrong")
        self.words, self._other_words, self.since, self.ends, offsets = np.frombuffer(index, "<i8").reshape(5, -1)
        self.offsets = np.append(offsets, size)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def names(self) -> Numbers:
        return np.stack([self.words, self._other_words], axis=1)

    def search(self, names: Numbers) -> Numbers:
        """Return the number of each name's entry, -1 for a name without one."""
        if not len(self):
            return np.full(len(names), -1)
        at = np.minimum(np.searchsorted(self.words, names[:, 0]), len(self) - 1)
        same = (self.words[at] == names[:, 0]) & (self._other_words[at] == names[:, 1])
        return np.where(same, at, -1)

    def frames(self, entries: Numbers) -> list[bytes]:
        """Return the frames of entries, those that lie close together read at once."""
        starts, ends = self.offsets[entries], self.offsets[entries + 1]
        frames: list[bytes] = [b""] * len(entries)
        order = np.argsort(starts, kind="stable")
        for run in _runs(starts[order], ends[order]):
            numbers = order[run]
            first, last = int(starts[numbers[0]]), int(ends[numbers[-1]])
            data = self.file.read(first, last - first)
            spans = zip(numbers.tolist(), (starts[numbers] - first).tolist(), (ends[numbers] - first).tolist(),
                        strict=True)  # fmt: skip
            for number, start, end in spans:
                frames[number] = data[start:end]
        return frames


def _runs(starts: Numbers, ends: Numbers) -> list[slice]:
    """Divide entries in their order into runs that are read at once."""
    if not len(starts):
        return []
    far = starts[1:] - ends[:-1] > _GAP_BYTES
    pieces = starts[1:] // _READ_BYTES != starts[:-1] // _READ_BYTES
    bounds = [0, *(np.flatnonzero(far | pieces) + 1).tolist(), len(starts)]
    return [slice(first, last) for first, last in pairwise(bounds)]
