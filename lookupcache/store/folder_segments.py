"""`FolderSegments`: the entries of an identity that lie in a folder, as of its last listing."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from lookupcache.cache.keys import Mask
from lookupcache.store.folder_clock import SKEW_SECONDS, FolderClock, Moment, elapsed
from lookupcache.store.folder_files import Files, OpenFile
from lookupcache.store.folder_format import (
    INDEX_BYTES,
    MICROSECONDS,
    DamagedFileError,
    Entries,
    Index,
    InvalidatedNames,
    Numbers,
    Words,
    read_index,
    read_invalidation,
)

SEGMENT = ".seg"
INVALIDATION = ".inv"

_MOST_INDEX_BYTES = 256 << 20
"""The indexes that a process keeps in memory for an identity; segments beyond that are not read, the oldest first."""
_MOST_OPEN = 128
"""The segments that a process keeps open for an identity, the newest. A process may have 1024 files."""
_TOO_MANY = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_FOREIGN = {errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.EFBIG}
_GAP_BYTES = 4_096
_READ_BYTES = 1 << 20
_NEVER = -(2**62)


class FolderSegment:
    """A file of entries that is open, and its index. Raises DamagedFileError and OSError."""

    def __init__(self, identity: str, name: str, file: OpenFile) -> None:
        self.name = name
        self.file = file
        self.index: Index = read_index(identity, file.size, file.read)
        if self.index.published / MICROSECONDS > file.modified + SKEW_SECONDS:
            raise DamagedFileError("it is dated later than its file, so its age is unknown")

    def search(self, names: Words) -> Numbers:
        """Return the number of each name's entry, -1 for a name without one."""
        found = np.full(len(names), -1)
        own = self.index.names
        if not len(own):
            return found
        at = np.minimum(np.searchsorted(own[:, 0], names[:, 0]), len(own) - 1)
        same = (own[at] == names).all(axis=1)
        found[same] = at[same]
        return found

    def frames(self, entries: Numbers) -> list[bytes]:
        """Return the frames of entries, those that lie close together read at once."""
        starts, ends = self.index.offsets[entries], self.index.offsets[entries + 1]
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


class FolderSegments:
    """The content of an identity's files as of their last listing.

    ``damaged`` counts files that could not be read. Damaged or foreign files are ``unreadable``, and tried once; a file
    that cannot be reached is ``unreached``, and tried again with each listing.
    """

    def __init__(self, identity: str, files: Files) -> None:
        self.damaged = 0
        self.listed: list[str] = []
        self.segments: list[FolderSegment] = []
        self.invalidations: dict[str, InvalidatedNames] = {}
        self._identity = identity
        self._files = files
        self.unreadable: set[str] = set()
        self.unreached: set[str] = set()
        self._skipped: set[str] = set()
        self._listed_at = -float("inf")
        self._invalid_names = np.zeros((0, 2), np.uint64)
        self._invalid_times = np.zeros(0, np.int64)
        self._all_invalid = _NEVER

    @property
    def last_invalidation(self) -> int:
        """The time of the latest invalidation."""
        return max((one.time for one in self.invalidations.values()), default=_NEVER)

    @property
    def oldest(self) -> int:
        """The time at which the first of all entries was requested; unknown entries may be of any time."""
        if self._skipped or self.unreadable or self.unreached:
            return _NEVER
        return min((one.index.oldest for one in self.segments), default=-_NEVER)

    def expire(self) -> None:
        """List the files again at the next `refresh`."""
        self._listed_at = -float("inf")

    def refresh(self, clock: FolderClock, *, now: bool = False) -> None:
        """List the files again if it is time, or ``now``, and open those that are new."""
        if not now and elapsed() < self._listed_at + self._files.list_seconds:
            return
        # A file that is listed and gone was compacted meanwhile: another listing has what took its place.
        if not self._list(clock):
            self._list(clock)

    def _list(self, clock: FolderClock) -> bool:
        """List the files, and open those that are new; return False if one was removed meanwhile."""
        listed_at, self.listed = elapsed(), self._files.names()
        self._listed_at = listed_at
        # Invalidations first: entries are only used with all of those that were there when they were listed.
        self._read_invalidations(clock)
        return self._read_segments()

    def find(self, names: Words, now: Moment) -> list[bytes | None]:
        """Return the newest entries of names that are neither expired nor invalid."""
        found: list[bytes | None] = [None] * len(names)
        left, valid_after = np.arange(len(names)), self.valid_after(names)
        for segment in list(self.segments):
            if not left.size:
                break
            entries = segment.search(names[left])
            there = entries >= 0
            there[there] = self._usable(segment, entries[there], valid_after[left[there]], now)
            if not there.any():
                continue
            try:
                frames = segment.frames(entries[there])
            except OSError as error:
                if error.errno in _TOO_MANY:
                    raise
                segment.file.close()
                self.segments.remove(segment)
                continue
            for position, frame in zip(left[there].tolist(), frames, strict=True):
                found[position] = frame
            left = left[~there]
        return found

    def valid_after(self, names: Words) -> Numbers:
        """Return the time after which each name's entry must have been requested."""
        times = np.full(len(names), self._all_invalid)
        if len(self._invalid_names):
            at = np.minimum(np.searchsorted(self._invalid_names[:, 0], names[:, 0]), len(self._invalid_names) - 1)
            # By the first word alone: at worst an entry is fetched again.
            same = self._invalid_names[at, 0] == names[:, 0]
            times[same] = np.maximum(times[same], self._invalid_times[at[same]])
        return times

    def entries_of(self, segments: Sequence[FolderSegment], now: Moment) -> Entries:
        """Return the entries of segments that are neither expired nor invalid, for each name that of the first."""
        kept = self._first_usable(segments, now)
        frames = [frame for segment, entries in zip(segments, kept, strict=True) for frame in segment.frames(entries)]
        names, since, ends = (
            np.concatenate([column[entries] for column, entries in zip(columns, kept, strict=True)])
            for columns in zip(*((one.index.names, one.index.since, one.index.ends) for one in segments), strict=True)
        )
        return Entries(names, frames, since, ends)

    def count(self, now: Moment) -> int:
        """Return how many names have an entry that could be found."""
        return sum(map(len, self._first_usable(self.segments, now))) if self.segments else 0

    def _first_usable(self, segments: Sequence[FolderSegment], now: Moment) -> list[Numbers]:
        """Return for each segment which of its entries are usable, and of names that no segment before it has."""
        names = np.concatenate([one.index.names for one in segments])
        owner = np.repeat(np.arange(len(segments)), [len(one.index) for one in segments])
        number = np.concatenate([np.arange(len(one.index)) for one in segments])
        usable = np.concatenate(
            [self._usable(one, np.arange(len(one.index)), self.valid_after(one.index.names), now) for one in segments]
        )
        names, owner, number = names[usable], owner[usable], number[usable]
        order = np.lexsort((owner, names[:, 1], names[:, 0]))
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (names[order[1:]] != names[order[:-1]]).any(axis=1)
        first = np.sort(order[is_first])
        return [number[first[owner[first] == place]] for place in range(len(segments))]

    def close(self) -> None:
        self._close(self.segments)

    def _usable(self, segment: FolderSegment, entries: Numbers, valid_after: Numbers, now: Moment) -> Mask:
        index = segment.index
        usable: Mask = (index.ends[entries] > int(now.most * MICROSECONDS)) & (index.since[entries] > valid_after)
        return usable

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_segments(self) -> bool:
        there = {name for name in self.listed if name.endswith(SEGMENT)}
        self._close(one for one in self.segments if one.name not in there)
        for names in (self.unreadable, self.unreached, self._skipped):
            names &= there
        new = sorted(there - {one.name for one in self.segments} - self.unreadable - self._skipped)
        opened = [self._open(name) for name in new]
        self.segments.sort(key=lambda one: (one.index.published, one.name), reverse=True)
        sizes = np.cumsum([INDEX_BYTES * len(one.index) for one in self.segments])
        kept = min(int(np.searchsorted(sizes, _MOST_INDEX_BYTES, side="right")), _MOST_OPEN)
        self._skipped.update(one.name for one in self.segments[kept:])
        self._close(self.segments[kept:])
        return all(opened)

    def _open(self, name: str) -> bool:
        """Open a segment, if that is possible; return False if it is gone."""
        file = None
        try:
            file = self._files.open(name)
            self.segments.append(FolderSegment(self._identity, name, file))
            self.unreached.discard(name)
        except FileNotFoundError:
            return False
        except (DamagedFileError, OSError) as error:
            if file is not None:
                file.close()
            if isinstance(error, OSError) and error.errno in _TOO_MANY:
                raise
            self.damaged += name not in self.unreached
            is_foreign = isinstance(error, DamagedFileError) or error.errno in _FOREIGN
            (self.unreadable if is_foreign else self.unreached).add(name)
        return True

    def _close(self, segments: Iterable[FolderSegment]) -> None:
        for segment in list(segments):
            segment.file.close()
            self.segments.remove(segment)

    def _read_invalidations(self, clock: FolderClock) -> None:
        there = {name for name in self.listed if name.endswith(INVALIDATION)}
        read = {name: one for name, one in self.invalidations.items() if name in there}
        for name in sorted(there - read.keys()):
            found = self._read_invalidation(name, clock)
            if found is not None:
                read[name] = found
        if read.keys() == self.invalidations.keys():
            return
        self.invalidations = read
        some = [one for one in read.values() if len(one.names)]
        self._all_invalid = max((one.time for one in read.values() if not len(one.names)), default=_NEVER)
        invalid = np.concatenate([one.names for one in some]) if some else np.zeros((0, 2), np.uint64)
        times = np.concatenate([np.full(len(one.names), one.time) for one in some]) if some else np.zeros(0, np.int64)
        # By name and then from the last time back: a search finds the first of equal names.
        order = np.lexsort((-times, invalid[:, 0]))
        self._invalid_names, self._invalid_times = invalid[order], times[order]

    def _read_invalidation(self, name: str, clock: FolderClock) -> InvalidatedNames | None:
        """Return an invalidation; one that cannot be read stands for all names, until now."""
        try:
            return read_invalidation(self._identity, self._files.read(name))
        except FileNotFoundError:
            return None
        except (DamagedFileError, OSError):
            self.damaged += 1
            return InvalidatedNames(np.zeros((0, 2), np.uint64), int(clock.now().most * MICROSECONDS))
