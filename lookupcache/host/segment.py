"""`Segment`: one immutable file of entries, mapped: keys, rows and times; `KeyIndex` finds the entries of keys.

    header │ words │ slots │ counts │ starts │ written │ deadline │ keys (Arrow IPC) │ rows (Arrow IPC)

Only the full table of ALL has slots, a hash index of its own that is searched as it lies. Alongside it is a `.use`
file, which is written in place. Per entry, it has the time of its last use, its place in the eviction queue, its hits
and whether it was removed.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.arrays import from_numpy
from lookupcache.cache.age import Age
from lookupcache.cache.hash_index import Entries, HashIndex
from lookupcache.cache.key_lookup import KeyLookup
from lookupcache.cache.keys import Hashes, KeyBatch, Mask, Positions, column_of_words, is_exact
from lookupcache.cache.limits import Limits
from lookupcache.host.clock import clock_identity
from lookupcache.host.folder import Folder
from lookupcache.host.joined_rows import ipc_parts
from lookupcache.lazy import cached_property

FORMAT = 7
"""The version of the files; a folder has it in its name, and a file of another version is not read."""

Numbers = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]
Marks = npt.NDArray[np.uint8]

_MAGIC = b"LKCSEG\r\n"
_SECTIONS = ("words", "slots", "counts", "starts", "written", "deadline", "keys", "rows")
_TYPES: dict[str, Any] = {
    "words": "<u8", "slots": "<i4", "counts": "<i4", "starts": "<i4", "written": "<f8", "deadline": "<f8",
}  # fmt: skip
_COPIED = ("counts", "written", "deadline")
_USE_TYPES = {"used": "<f8", "queued": "<f8", "hits": "u1", "removed": "u1"}
"""The columns of a use file, in its order."""
_HEAD = struct.Struct("<8sIIIIQQd16s16s" + "QQ" * len(_SECTIONS))
"""Magic, format, checksum, longest way to a word, flags, entries, rows, creation, plan, clock; then offsets."""
_CHECKSUM_AT = 12
_CHECKSUM_HALF = np.uint64(0xFFFFFFFF << 32)
"""The bits of the checksum in the word that it shares with the format."""
_HEAD_BYTES = 256
_BLOCK_WORDS = 64
_ALIGNED = 64
_USE_BYTES = 18
"""Bytes per entry in a use file."""
_USE_MAGIC = b"LKCUSE\r\n"
_USE_HEAD = struct.Struct("<8s16sQqQQ")
"""Magic, clock, and of the verified segment inode, time of modification and size; then the number of entries."""
_VERIFIED_EACH_TIME = 1 << 18
"""Segments up to this size are verified by every process: it takes less than a millisecond."""


class SegmentError(Exception):
    """A segment that must not be used; the text says why."""


@dataclass(frozen=True)
class SegmentData:
    """Entries to write: keys with the hashes of the folder's seed, rows in their order, how many rows each has.

    ``used`` is the last use of each key; ``queued`` when it entered the queue from which it is evicted, and ``hits``
    its uses since then. A refresh changes none of them.
    """

    keys: KeyBatch
    rows: pa.RecordBatch
    counts: Numbers
    written: Times
    deadline: Times
    used: Times
    queued: Times
    hits: Marks
    created: float = 0.0

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, entries: Numbers) -> SegmentData:
        counts = self.counts[entries]
        starts = (np.cumsum(self.counts) - self.counts)[entries]
        rows = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        body = self.rows.take(pa.array(rows)) if self.rows.num_columns else self.rows
        times = (self.written[entries], self.deadline[entries], self.used[entries], self.queued[entries])
        return SegmentData(self.keys.take(entries), body, counts, *times, self.hits[entries])

    @property
    def weight(self) -> int:
        """What the entries weigh: their rows, and one for a known miss."""
        return int(np.maximum(self.counts, 1).sum())


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class SegmentParts:
    """What a segment is written from: each column in several arrays, which are written one after the other as they lie.

    To join them first would copy all of them into new memory, which takes about as long as writing the file.
    """

    columns: dict[str, list[npt.NDArray[Any]]]
    keys: list[pa.RecordBatch]
    rows: list[pa.RecordBatch]
    entries: int
    max_steps: int = 0
    created: float = 0.0


def write_segment(folder: Folder, name: str, data: SegmentData, plan: bytes, *, indexed: bool = False) -> int:
    """Write a segment under a name, and its use file; return the bytes of both.

    ``indexed`` says whether it has an index of its own, as the full table of ALL has.
    """
    types = [column.type for column in data.keys.columns]
    words, slots, max_steps = data.keys.hashes, np.empty(0, np.int32), 0
    if indexed:
        index, max_steps = _index_of(data.keys, types)
        words, slots = index.words[: len(data)], index.slots
    columns: dict[str, Any] = {"words": words, "slots": slots, "removed": np.zeros(len(data), np.uint8)}
    columns |= {column: getattr(data, column) for column in (*_COPIED, *_USE_TYPES) if column not in columns}
    parts = {column: [values] for column, values in columns.items()}
    keys = [] if is_exact(types) else [_key_batch(data.keys)]
    return write_parts(folder, name, SegmentParts(parts, keys, [data.rows], len(data), max_steps, data.created), plan)


def write_parts(folder: Folder, name: str, parts: SegmentParts, plan: bytes) -> int:
    """Write a segment from its parts as `write_segment` does."""
    use = use_name(name)
    written = folder.write(name, _file_parts(parts, plan), _sealed)
    try:
        head = _USE_HEAD.pack(
            _USE_MAGIC, clock_identity(), written.st_ino, written.st_mtime_ns, written.st_size, parts.entries
        )
        marks = [_of_type(parts.columns[column], type_) for column, type_ in _USE_TYPES.items()]
        size = folder.write(use, [head.ljust(_ALIGNED, b"\0"), *chain.from_iterable(marks)]).st_size
    except BaseException:
        folder.remove(name)
        raise
    return written.st_size + size


def _file_parts(parts: SegmentParts, plan: bytes) -> list[Any]:
    columns = parts.columns | {"starts": _starts_of(parts.columns["counts"])}
    bodies: list[list[Any]] = [_of_type(columns.get(name, []), type_) for name, type_ in _TYPES.items()]
    # The two elements more that a `HashIndex` over them needs.
    bodies[0].append(np.zeros(2, "<u8"))
    bodies += [ipc_parts(parts.keys) if parts.keys else [], ipc_parts(parts.rows)]
    offsets: list[int] = []
    content: list[Any] = []
    end = _HEAD_BYTES
    for body in bodies:
        size = sum(memoryview(part).nbytes for part in body)
        offsets += [end, size]
        content += [*body, bytes(-size % _ALIGNED)]
        end += size + (-size % _ALIGNED)
    head = _HEAD.pack(
        _MAGIC,
        FORMAT,
        0,
        parts.max_steps,
        0,
        parts.entries,
        sum(int(counts.sum()) for counts in columns["counts"]),
        parts.created,
        plan,
        clock_identity(),
        *offsets,
    )
    return [head.ljust(_HEAD_BYTES, b"\0"), *content]


def _starts_of(counts: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Return the number of the first row of each entry."""
    starts, rows = [], 0
    for part in counts:
        ends = np.cumsum(part, dtype=np.int64) + rows
        starts.append(ends - part)
        rows = int(ends[-1]) if len(ends) else rows
    return starts


def _of_type(arrays: list[npt.NDArray[Any]], type_: str) -> list[npt.NDArray[Any]]:
    return [np.ascontiguousarray(array, type_) for array in arrays]


def _index_of(keys: KeyBatch, types: Sequence[pa.DataType]) -> tuple[HashIndex, int]:
    """Return an index of distinct keys, and the longest way from a key's hash to the word that it is listed under."""
    # `HashIndex.of_words` sorts, which is fast, but needs distinct words. Equal hashes of different keys are rare: only
    # then keys are inserted, and one whose hash is taken is listed under another word.
    if not has_repeated(keys.hashes):
        return HashIndex.of_words(keys.hashes), 0
    lookup = KeyLookup(types)
    lookup.grow(len(keys))
    lookup.insert(keys, np.arange(len(keys), dtype=np.int32))
    return lookup.index, lookup.max_steps


def has_repeated(words: Hashes) -> bool:
    """Return whether a word occurs twice.

    >>> has_repeated(np.array([3, 5, 3], np.uint64)), has_repeated(np.array([3, 5, 4], np.uint64))
    (True, False)
    """
    # Sorting all takes less time than a table of places, since numpy sorts with vector instructions.
    ordered = np.sort(words)
    return bool((ordered[1:] == ordered[:-1]).any())


def _key_batch(keys: KeyBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(keys.columns), names=[f"key{n}" for n in range(len(keys.columns))])


# ── checksums ────────────────────────────────────────────────────────────────────────────────────────────


def checksum_of(content: memoryview) -> int:
    """Return the CRC-32 of the sums of all blocks of 512 bytes; the field of the checksum itself is left out.

    A sum takes a quarter of the time of a CRC over everything. Any changed word changes its block's sum. A block in the
    wrong place, such as one that was never written, changes the order of the sums. Words that are exchanged within a
    block do not: it finds damage, not forgery.
    """
    words = np.frombuffer(content, "<u8")
    whole = len(words) - len(words) % _BLOCK_WORDS
    sums = words[:whole].reshape(-1, _BLOCK_WORDS).sum(axis=1)
    at = _CHECKSUM_AT // 8
    # A slice of one element: a scalar would warn of the overflow, which is meant.
    sums[:1] -= words[at : at + 1] & _CHECKSUM_HALF
    return zlib.crc32(words[whole:].tobytes(), zlib.crc32(sums))


def _sealed(content: memoryview) -> tuple[int, bytes]:
    """Return the position and bytes of the checksum of a file that has been written."""
    return _CHECKSUM_AT, struct.pack("<I", checksum_of(content))


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


class _MappedKeys(KeyLookup):
    """Finds the entries of keys over the arrays of a file."""

    def __init__(self, types: Sequence[pa.DataType], index: HashIndex, columns: list[pa.Array], max_steps: int) -> None:
        super().__init__(types)
        self.index = index
        self._columns = columns
        self.max_steps = max_steps

    def _stored_keys(self, entries: Entries | Positions) -> list[pa.Array]:
        missing = entries < 0
        index = from_numpy(entries, missing if missing.any() else None)
        return [column.take(index) for column in self._columns]


class Segment:
    """A mapped segment.

    Raises SegmentError for a file that is torn, of another version or plan, and OSError if it is not there.
    """

    def __init__(
        self, folder: Folder, name: str, plan: bytes, key_types: Sequence[pa.DataType], schema: pa.Schema
    ) -> None:
        self.name = name
        self.range = SegmentRange.of(name)
        self._key_types = tuple(key_types)
        try:
            self._map, status = folder.map(name)
            use, _ = folder.map(use_name(name), writable=True)
        except ValueError:
            raise SegmentError("it is empty") from None
        self._read_head(plan)
        self._read_use(use, status)
        self.nbytes = status.st_size + len(use)
        self.columns = self._read_rows(schema)

    def __len__(self) -> int:
        return self._entries

    def find(self, keys: KeyBatch) -> Entries:
        """Return the entry of each non-null key, -1 if it has none here; also of removed entries."""
        return self._lookup.find(keys)

    def key_columns(self, entries: Positions) -> list[pa.Array]:
        """Return the key columns of entries, where their words are not the keys."""
        index = from_numpy(entries)
        return [column.take(index) for column in self._key_batch.columns]

    def gather(self, entries: Entries | Positions | slice) -> pa.RecordBatch:
        """Return the rows of these entries, in their order; those of all entries without a copy."""
        if isinstance(entries, slice):
            return self.columns
        counts = self.counts[entries].astype(np.int64)
        rows = np.repeat(self.starts[entries] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        return self.take(rows)

    def take(self, rows: Numbers) -> pa.RecordBatch:
        return self.columns.take(pa.array(rows)) if self.columns.num_columns else self.columns

    def keys(self, entries: Entries | slice) -> KeyBatch:
        """Return the keys of entries, or with a slice of all, with the hashes of the folder's seed."""
        if is_exact(self._key_types):
            words = self._words[:-2][entries]
            return KeyBatch((column_of_words(words, self._key_types[0]),), words, None)
        batch = self.key_rows(entries)
        assert batch is not None
        return KeyBatch(tuple(batch.columns), self._words[:-2][entries], None)

    def key_rows(self, entries: Entries | slice) -> pa.RecordBatch | None:
        """Return the keys of entries as they are stored; None where their words are the keys."""
        if is_exact(self._key_types):
            return None
        return self._key_batch if isinstance(entries, slice) else self._key_batch.take(pa.array(entries))

    def verify(self) -> None:
        """Compare the file with its checksum; raises SegmentError if it differs."""
        view = memoryview(self._map)
        if len(view) % _ALIGNED or checksum_of(view) != self._checksum:
            raise SegmentError("its checksum is wrong")
        # A program with a defect may have written it: numbers beyond the rows could ask for any amount of memory.
        counts, starts = self.counts, self.starts
        if len(counts) != self._entries or len(starts) != self._entries:
            raise SegmentError("it is truncated")
        if self._entries and (
            counts.min() < 0 or starts.min() < 0 or (starts.astype(np.int64) + counts).max() > self.rows
        ):
            raise SegmentError("its entries lie beyond its rows")

    # ── parts of the file ────────────────────────────────────────────────────────────────────────────────

    def _read_head(self, plan: bytes) -> None:
        head, self._offsets = _read_head(self._map)
        checksum, steps, _, entries, rows, created, found, clock = head
        if found != plan:
            raise SegmentError("it belongs to another plan")
        self._checksum, self._entries, self.rows, self.clock, self._max_steps = checksum, entries, rows, clock, steps
        self.created = created
        if any(at + size > len(self._map) for at, size in self._offsets.values()):
            raise SegmentError("it is truncated")

    def _read_use(self, use: mmap, status: os.stat_result) -> None:
        if len(use) != _ALIGNED + _USE_BYTES * self._entries:
            raise SegmentError("its use file is of another size")
        magic, clock, inode, modified, size, entries = _USE_HEAD.unpack_from(use)
        if magic != _USE_MAGIC or entries != self._entries:
            raise SegmentError("its use file is of another version")
        token = (clock_identity(), status.st_ino, status.st_mtime_ns, status.st_size)
        is_noted = (clock, inode, modified, size) == token
        if status.st_size <= _VERIFIED_EACH_TIME or not is_noted:
            self.verify()
        if not is_noted:
            # A copy of bytes: `pack_into` writes zeros first, which another process might read.
            use[8 : _USE_HEAD.size - 8] = _USE_HEAD.pack(magic, *token, entries)[8:-8]
        self.used, self.queued, self.hits, self.removed = use_columns(use, self._entries)

    def _read_rows(self, schema: pa.Schema) -> pa.RecordBatch:
        if not len(schema):
            return pa.RecordBatch.from_arrays([], schema=schema)
        batch = self._read_ipc("rows")
        if not batch.schema.equals(schema) or batch.num_rows != self.rows:
            raise SegmentError("its rows have another schema")
        return batch

    def _read_ipc(self, section: str) -> pa.RecordBatch:
        at, size = self._offsets[section]
        try:
            return pa.ipc.open_stream(pa.py_buffer(memoryview(self._map)[at : at + size])).read_next_batch()
        except (pa.ArrowException, OSError, StopIteration):
            # OSError: that is what Arrow raises for a message that it cannot read, also of memory.
            raise SegmentError(f"its {section} cannot be read") from None

    def _section(self, name: str) -> npt.NDArray[Any]:
        at, size = self._offsets[name]
        type_ = np.dtype(_TYPES[name])
        return np.frombuffer(self._map, type_, size // type_.itemsize, at)

    @cached_property
    def _words(self) -> Hashes:
        return self._section("words")

    @cached_property
    def words(self) -> Hashes:
        """The word under which each entry is listed."""
        words: Hashes = self._words[:-2]
        return words

    @cached_property
    def counts(self) -> npt.NDArray[np.int32]:
        """How many rows each entry has; 0 is a known miss."""
        return self._section("counts")

    @cached_property
    def starts(self) -> npt.NDArray[np.int32]:
        """The number of the first row of each entry."""
        return self._section("starts")

    @cached_property
    def is_one_each(self) -> bool:
        """Whether each entry has one row, which then has the number of its entry."""
        return bool(self.rows == len(self) and (self.counts == 1).all())

    @cached_property
    def is_unique(self) -> bool:
        """Whether no entry has more than one row."""
        return self.is_one_each or not len(self) or bool(self.counts.max() <= 1)

    def rows_of(self, entries: Positions) -> tuple[Numbers | Entries, Entries]:
        """Return the number of the first row of entries, and how many rows they have."""
        if self.is_one_each:
            return entries, np.ones(len(entries), np.int32)
        return self.starts.take(entries), self.counts.take(entries)

    @cached_property
    def written(self) -> Times:
        """When each entry was fetched, by the host's clock."""
        return self._section("written")

    @cached_property
    def deadline(self) -> Times:
        """Until when each entry may be used."""
        return self._section("deadline")

    @cached_property
    def _key_batch(self) -> pa.RecordBatch:
        return self._read_ipc("keys")

    @cached_property
    def _lookup(self) -> _MappedKeys:
        slots, steps = self._section("slots"), self._max_steps
        if slots.size:
            index = HashIndex.of_arrays(slots, self._words)
        else:
            index, steps = _index_of(self.keys(slice(None)), self._key_types)
        columns = [] if is_exact(self._key_types) else list(self._key_batch.columns)
        return _MappedKeys(self._key_types, index, columns, steps)


def _read_head(mapped: mmap) -> tuple[tuple[Any, ...], dict[str, tuple[int, int]]]:
    """Return the fields of a head after its format, and where each section is; raises SegmentError."""
    if len(mapped) < _HEAD_BYTES:
        raise SegmentError("it is truncated")
    magic, version, *fields = _HEAD.unpack_from(mapped)
    if magic != _MAGIC or version != FORMAT:
        raise SegmentError("it is of another version")
    of_sections = fields[-2 * len(_SECTIONS) :]
    places = zip(of_sections[0::2], of_sections[1::2], strict=True)
    return tuple(fields[: -len(of_sections)]), dict(zip(_SECTIONS, places, strict=True))


def is_too_old(segment: Segment, limits: Limits, now: float) -> Mask:
    """Return which entries are too old, also to be served for an error."""
    old: Mask = now > Age(limits).last(segment.written, segment.deadline)
    if limits.access_seconds < math.inf:
        old |= now - segment.used > limits.access_seconds
    return old


def concatenate(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of batches as one batch."""
    if len(batches) == 1 or not batches[0].num_columns:
        return batches[0]
    columns = [pa.concat_arrays(column) for column in zip(*(batch.columns for batch in batches), strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def use_columns(use: mmap, count: int) -> tuple[Times, Times, Marks, Marks]:
    """Return the columns of a mapped use file: last use, entry into the queue, hits, whether it was removed."""
    start = _ALIGNED
    used, queued = (np.frombuffer(use, "<f8", count, start + 8 * number * count) for number in (0, 1))
    hits, removed = (np.frombuffer(use, np.uint8, count, start + (16 + number) * count) for number in (0, 1))
    return used, queued, hits, removed


# ── without a schema ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Summary:
    """What a segment has: entries that are not removed, their rows, bytes of its files, and when they were written.

    ``written`` is empty if the clock that it is of cannot be compared with that of this boot.
    """

    entries: int
    rows: int
    nbytes: int
    written: Times


def summarize(folder: Folder, name: str) -> Summary:
    """Read what a segment has; raises SegmentError, OSError or ValueError if it cannot be read."""
    mapped, status = folder.map(name)
    use, _ = folder.map(use_name(name))
    (_, _, _, entries, _, _, _, clock), columns = _read_head(mapped)
    # Nothing was compared with the checksum, so these numbers may be anything.
    if len(use) != _ALIGNED + _USE_BYTES * entries or any(at > len(mapped) for at, _ in columns.values()):
        raise SegmentError("its sizes are wrong")
    live = use_columns(use, entries)[3] == 0
    counts = np.frombuffer(mapped, "<i4", entries, columns["counts"][0])[live]
    written = np.frombuffer(mapped, "<f8", entries, columns["written"][0])[live]
    if clock != clock_identity():
        written = written[:0]
    return Summary(int(live.sum()), int(counts.sum()), status.st_size + len(use), written.copy())


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, order=True)
class SegmentRange:
    """The sequence numbers low … high that a segment has the entries of, and the number of its version.

    ``first`` is the number of its first entry in the index of all segments; 0 for a segment that is not in it.

    >>> name = str(SegmentRange(1, 255, 256, 7))
    >>> name, SegmentRange.of(name).high
    ('0000000000000001-00000000000000ff-0000000000000100-00000000007.seg', 255)
    """

    low: int
    high: int
    version: int
    first: int = 0

    def __str__(self) -> str:
        return f"{self.low:016x}-{self.high:016x}-{self.version:016x}-{self.first:011x}.seg"

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, name: str) -> SegmentRange:
        """Read the name of a segment; raises ValueError for another name."""
        numbers = name.removesuffix(".seg").split("-")
        if not name.endswith(".seg") or [len(number) for number in numbers] != [16, 16, 16, 11]:
            raise ValueError(name)
        return cls(*(int(number, 16) for number in numbers))

    def replaces(self, other: SegmentRange) -> bool:
        """Return whether it is the result of a merge of another segment."""
        inside = self.low <= other.low and other.high <= self.high
        return inside and (self.version > other.version)


def use_name(name: str) -> str:
    """Return the name of a segment's use file."""
    return name.replace(".seg", ".use")
