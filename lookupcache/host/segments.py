"""`Segments`: the segments and invalidations that a folder has now, and the number of its generation."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lookupcache.cache.keys import KeyBatch
from lookupcache.host.clock import clock_identity
from lookupcache.host.control import Control
from lookupcache.host.folder import Folder
from lookupcache.host.segment import Segment, SegmentError, SegmentRange, use_name

_MESSAGE = struct.Struct("<8s16sI")
_MESSAGE_MAGIC = b"LKCINV1\n"
_MOST_MESSAGES = 64
_MOST_ATTEMPTS = 16


@dataclass(frozen=True)
class Invalidation:
    """Keys that have changed in the source, or None for all, under a sequence number."""

    number: int
    keys: KeyBatch | None


class Segments:
    """What a folder has, as of the last `refresh`: ``newest`` are its segments, the newest first.

    Files that cannot be used are removed, and counted as ``host_dropped_files``.

    Args:
        folder: The folder.
        control: Its page of numbers.
        plan: The 16 bytes of the plan's fingerprint.
        key_types: Types of the key columns.
        schema: Schema of the rows.
        timed: Whether entries of an unknown age must not be used.
        counters: Where dropped files are counted.
    """

    def __init__(
        self,
        folder: Folder,
        control: Control,
        plan: bytes,
        key_types: Sequence[pa.DataType],
        schema: pa.Schema,
        *,
        timed: bool,
        counters: Counter[str],
    ) -> None:
        self.newest: list[Segment] = []
        self.invalidations: list[Invalidation] = []
        self.generation = -1
        self._folder = folder
        self._control = control
        self.plan = plan
        self.counters = counters
        self._key_types = tuple(key_types)
        self._schema = schema
        self._timed = timed

    def copy(self) -> Segments:
        """Return an empty list for the same folder, for another thread."""
        return Segments(
            self._folder, self._control, self.plan, self._key_types, self._schema, timed=self._timed,
            counters=self.counters,
        )  # fmt: skip

    def close(self) -> None:
        """Unmap all segments."""
        self.newest, self.invalidations = [], []

    @property
    def is_current(self) -> bool:
        """Whether nothing has been published since the last `refresh`."""
        return self._control["generation"] == self.generation

    @property
    def nbytes(self) -> int:
        """The bytes of all segments with their use files."""
        return sum(segment.nbytes for segment in self.newest)

    def refresh(self) -> bool:
        """Read the folder again if the generation has changed; return whether it has."""
        if self.is_current:
            return False
        for _ in range(_MOST_ATTEMPTS):
            generation = self._control["generation"]
            names = self._folder.names()
            segments = self._open_all(names)
            if segments is not None:
                self.newest = segments
                self._read_messages(names)
                self.generation = generation
                return True
        raise OSError("the folder changes too fast to be read")

    def since(self, number: int) -> list[Invalidation] | None:
        """Return the invalidations after a sequence number, or None if some of them cannot be read any more."""
        if self._control["forgotten"] > number:
            return None
        return [one for one in self.invalidations if one.number > number]

    def _open_all(self, names: Sequence[str]) -> list[Segment] | None:
        """Return the segments by name, or None if one of them has been merged away in the meantime."""
        opened = {segment.name: segment for segment in self.newest}
        found = []
        for name in current_names(names):
            try:
                found.append(opened.get(name) or self._open(name))
            except FileNotFoundError:
                if self._folder.inode(name):
                    self._drop(name)  # It has no use file.
                    continue
                return None
            except (SegmentError, PermissionError):
                self._drop(name)
        return sorted(found, key=lambda segment: segment.range, reverse=True)

    def _open(self, name: str) -> Segment:
        segment = Segment(self._folder, name, self.plan, self._key_types, self._schema)
        if self._timed and segment.clock != clock_identity():
            raise SegmentError("it was written before the machine started, so its age is unknown")
        return segment

    def _drop(self, name: str) -> None:
        self.counters["host_dropped_files"] += 1
        self._folder.remove(name)
        self._folder.remove(use_name(name))

    # ── invalidations ────────────────────────────────────────────────────────────────────────────────────

    def _read_messages(self, names: Sequence[str]) -> None:
        read = {one.number: one for one in self.invalidations}
        numbers = sorted(int(name[:16], 16) for name in names if name.endswith(".inv"))
        found = [read.get(number) or self._read_message(number) for number in numbers]
        self.invalidations = [one for one in found if one is not None]

    def _read_message(self, number: int) -> Invalidation | None:
        """Return an invalidation; one that cannot be read stands for all keys."""
        try:
            data = bytes(self._folder.map(message_name(number))[0])
        except FileNotFoundError:
            return None  # Removed in the meantime; its number is then below "forgotten".
        except (OSError, ValueError):
            return Invalidation(number, None)
        head, body = data[: _MESSAGE.size], data[_MESSAGE.size :]
        if len(head) < _MESSAGE.size or _MESSAGE.unpack(head) != (_MESSAGE_MAGIC, self.plan, zlib.crc32(body)):
            self.counters["host_dropped_files"] += 1
            return Invalidation(number, None)
        if not body:
            return Invalidation(number, None)
        columns = pa.ipc.open_stream(body).read_next_batch().columns
        return Invalidation(number, KeyBatch.of(columns, self._key_types))

    def message(self, keys: KeyBatch | None) -> list[bytes]:
        """Return the content of an invalidation's file."""
        body = b""
        if keys is not None:
            sink = pa.BufferOutputStream()
            batch = pa.RecordBatch.from_arrays(list(keys.columns), names=[f"key{n}" for n in range(len(keys.columns))])
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            body = sink.getvalue().to_pybytes()
        return [_MESSAGE.pack(_MESSAGE_MAGIC, self.plan, zlib.crc32(body)), body]

    @property
    def has_many_messages(self) -> bool:
        """Whether there are twice as many invalidations as are kept."""
        return len(self.invalidations) >= 2 * _MOST_MESSAGES

    def forget_messages(self) -> None:
        """Remove all but the last invalidations; a process that had not read them empties its own cache."""
        for one in self.invalidations[:-_MOST_MESSAGES]:
            self._control["forgotten"] = max(self._control["forgotten"], one.number)
            self._folder.remove(message_name(one.number))


def message_name(number: int) -> str:
    """Return the name of an invalidation's file."""
    return f"{number:016x}.inv"


def ranges_of(names: Sequence[str]) -> list[SegmentRange]:
    """Return the ranges of the segments among file names."""
    found = []
    for name in names:
        try:
            found.append(SegmentRange.of(name))
        except ValueError:
            continue
    return found


def current_names(names: Sequence[str]) -> list[str]:
    """Return the names of the segments that no other one is a merge of.

    >>> current_names([str(SegmentRange(1, 1, 1)), str(SegmentRange(2, 2, 2)), str(SegmentRange(1, 2, 3)), "control"])
    ['0000000000000001-0000000000000002-0000000000000003.seg']
    """
    ranges = ranges_of(names)
    return [str(one) for one in ranges if not any(other.replaces(one) for other in ranges)]
