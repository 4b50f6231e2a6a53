"""`FolderEntries`: the entries of an identity in a folder, as of its last listing, and those that are to be written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np

from lookupcache.cache.keys import Mask
from lookupcache.store.folder_files import TEMPORARY, DamagedFileError, Files, random_name
from lookupcache.store.folder_segment import (
    INDEX_BYTES,
    MICROSECONDS,
    FolderSegment,
    Numbers,
    StoredEntries,
    invalidation,
    names_as_bytes,
    segment_parts,
)

SEGMENT = ".seg"
INVALIDATION = ".inv"

FEW = 8
"""The number of small segments from which on they become one."""

SKEW_SECONDS = 60.0
"""How much the clocks of hosts may differ before rows from before an invalidation could seem newer than it."""

_LARGEST = 128 << 20
"""No segment becomes larger by compaction."""
_MOST_INDEX_BYTES = 256 << 20
"""The indexes that a process keeps in memory for an identity; segments beyond that are not read, the oldest first."""
_MOST_OPEN = 128
"""The segments that a process keeps open for an identity, the newest. A process may have 1024 files."""
_KEPT_SECONDS = 24 * 3_600.0
"""How long invalidations are kept: longer than rows may be fetched that they forbid to write."""
_LEFTOVER_SECONDS = 3_600.0
_NEVER = -(2**62)


class FolderEntries:
    """Finds and writes the entries of an identity.

    ``damaged`` counts files that could not be used. There are no locks: a file never changes, and entries are valid by
    their own times. So at worst two processes that compact at the same time write the same entries twice.
    """

    def __init__(self, identity: str, files: Files, clock: Callable[[], float] = time.time) -> None:
        self.identity = identity
        self.segments: list[FolderSegment] = []
        """The newest first."""
        self.damaged = 0
        self.nbytes = 0
        """The size of the collected entries."""
        self.is_to_compact = False
        self.cleaned_at = time.monotonic()
        self._files = files
        self._clock = clock
        self._unusable: set[str] = set()
        self._skipped: set[str] = set()
        self._listed_at = -float("inf")
        self._invalidations: dict[str, tuple[Numbers, int]] = {}
        self._invalid_names = self._invalid_times = np.zeros(0, np.int64)
        self._all_invalid = _NEVER
        self._collected: dict[bytes, tuple[bytes, int, int]] = {}
        self._collecting, self._flushing = threading.Lock(), threading.Lock()
        self._stamp = 0

    @property
    def now(self) -> int:
        """The time in microseconds."""
        return int(self._clock() * MICROSECONDS)

    @property
    def last_invalidation(self) -> int:
        """The time of the latest invalidation."""
        return max((time for _, time in self._invalidations.values()), default=_NEVER)

    @property
    def is_flushed(self) -> bool:
        """Whether no entry is to be written."""
        return not self._collected

    def close(self) -> None:
        """Close the files."""
        self._close(self.segments)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────

    def find(self, names: Numbers) -> list[bytes | None]:
        """Return the newest entries of names that are neither expired nor invalid."""
        # Before the files: an entry that is written meanwhile is in one or the other.
        collected = [self._collected.get(name) for name in names_as_bytes(names)] if self._collected else []
        self.refresh()
        valid_after, now = self.valid_after(names), self.now
        found: list[bytes | None] = [None] * len(names)
        for position, entry in enumerate(collected):
            if entry is not None and entry[1] > valid_after[position] and entry[2] > now:
                found[position] = entry[0]
        left = np.array([position for position, entry in enumerate(found) if entry is None], np.int64)
        for segment in list(self.segments):
            if not left.size:
                break
            entries = segment.search(names[left])
            there = entries >= 0
            there[there] = _usable(segment, entries[there], valid_after[left[there]], now)
            if there.any():
                for position, frame in zip(left[there].tolist(), segment.frames(entries[there]), strict=True):
                    found[position] = frame
                left = left[~there]
        return found

    def valid_after(self, names: Numbers) -> Numbers:
        """Return the time after which each name's entry must have been requested."""
        times = np.full(len(names), self._all_invalid)
        if len(self._invalid_names):
            # By the first word alone: at worst an entry is fetched again.
            at = np.minimum(np.searchsorted(self._invalid_names, names[:, 0]), len(self._invalid_names) - 1)
            same = self._invalid_names[at] == names[:, 0]
            times[same] = np.maximum(times[same], self._invalid_times[at[same]])
        return times

    def count(self) -> int:
        """Return how many names have an entry that could be found."""
        return sum(map(len, self._newest(self.segments)))

    def _newest(self, segments: Sequence[FolderSegment]) -> list[Numbers]:
        """Return for each segment which of its entries are usable, and of names that no segment before it has."""
        if not segments:
            return []
        now = self.now
        kept = [np.flatnonzero(_usable(one, np.arange(len(one)), self.valid_after(one.names), now)) for one in segments]
        owners, numbers = np.repeat(np.arange(len(segments)), list(map(len, kept))), np.concatenate(kept)
        words = np.concatenate([one.words[usable] for one, usable in zip(segments, kept, strict=True)])
        first = np.sort(np.unique(words, return_index=True)[1])
        return [numbers[first[owners[first] == place]] for place in range(len(segments))]

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────

    def refresh(self, *, now: bool = False) -> None:
        """List the files again if it is time, or ``now``, and open those that are new."""
        if not now and time.monotonic() < self._listed_at + self._files.list_seconds:
            return
        # A file that is listed and gone was compacted meanwhile: another listing has what took its place.
        if not self._list():
            self._list()

    def _list(self) -> bool:
        """List the files, and open those that are new; return False if one was removed meanwhile."""
        # Before the listing: files that another thread writes meanwhile must be listed again.
        self._listed_at = time.monotonic()
        try:
            names = self._files.names(self.identity)
            # Invalidations first: entries are only used with all of those that were there when they were listed.
            self._read_invalidations({name for name in names if name.endswith(INVALIDATION)})
            return self._read_segments({name for name in names if name.endswith(SEGMENT)})
        except BaseException:
            self._listed_at = -float("inf")
            raise

    def _read_segments(self, there: set[str]) -> bool:
        self._close(one for one in self.segments if one.name not in there)
        self._unusable &= there
        self._skipped &= there
        new: list[FolderSegment] = []
        is_whole = True
        for name in sorted(there - {one.name for one in self.segments} - self._unusable - self._skipped):
            try:
                new.append(self._open(name))
            except FileNotFoundError:
                is_whole = False
            except DamagedFileError:
                self._unusable.add(name)
        if new:
            self.segments = sorted([*self.segments, *new], key=lambda one: (one.published, one.name), reverse=True)
            sizes = np.cumsum([INDEX_BYTES * len(one) for one in self.segments])
            kept = min(int(np.searchsorted(sizes, _MOST_INDEX_BYTES, side="right")), _MOST_OPEN)
            self._skipped.update(one.name for one in self.segments[kept:])
            self._close(self.segments[kept:])
        return is_whole

    def _open(self, name: str) -> FolderSegment:
        """Open a segment; raises DamagedFileError, counted, and OSError."""
        file = None
        try:
            file = self._files.open(self.identity, name)
            segment = FolderSegment(self.identity, name, file)
            latest = min(file.modified, self._clock()) + SKEW_SECONDS
            if segment.published > latest * MICROSECONDS and name.endswith(SEGMENT):
                raise DamagedFileError("it is dated later than its file or than now, so its age is unknown")
        except BaseException as error:
            if file is not None:
                file.close()
            self.damaged += isinstance(error, DamagedFileError)
            raise
        return segment

    def _close(self, segments: Iterable[FolderSegment]) -> None:
        for segment in list(segments):
            segment.file.close()
            self.segments.remove(segment)

    def _read_invalidations(self, there: set[str]) -> None:
        if there == self._invalidations.keys():
            return
        read = {name: one for name, one in self._invalidations.items() if name in there}
        for name in sorted(there - read.keys()):
            with suppress(FileNotFoundError):
                read[name] = self._read_invalidation(name)
        self._invalidations = read
        self._all_invalid = max((time for names, time in read.values() if not len(names)), default=_NEVER)
        names = np.concatenate([np.zeros(0, np.int64), *(names for names, _ in read.values())])
        times = np.repeat([time for _, time in read.values()], [len(names) for names, _ in read.values()])
        # By name and then from the last time back: a search finds the first of equal names.
        order = np.lexsort((-times, names))
        self._invalid_names, self._invalid_times = names[order], times[order]

    def _read_invalidation(self, name: str) -> tuple[Numbers, int]:
        """Return the names and the time of an invalidation; a damaged one stands for all names, until now."""
        try:
            segment = self._open(name)
        except DamagedFileError:
            return np.zeros(0, np.int64), self.now
        segment.file.close()
        return segment.words, segment.published

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, entries: StoredEntries) -> None:
        """Note entries that are to be written; write them where that is done at once."""
        each = zip(entries.frames, entries.since.tolist(), entries.ends.tolist(), strict=True)
        with self._collecting:
            self._collected.update(zip(names_as_bytes(entries.names), each, strict=True))
            self.nbytes += sum(map(len, entries.frames))
        if self._files.writes_at_once:
            self.flush()

    def flush(self) -> None:
        """Write the collected entries as a file; until then readers find them in memory."""
        with self._flushing:
            with self._collecting:
                collected, self.nbytes = dict(self._collected), 0
            if not collected:
                return
            try:
                frames, since, ends = zip(*collected.values(), strict=True)
                names = np.frombuffer(b"".join(collected), "<i8").reshape(-1, 2)
                # Later than all that are known, which it may replace.
                newest = max((one.published for one in self.segments[:1]), default=0)
                self._stamp = max(self.now, self._stamp + 1, newest + 1)
                self._write(SEGMENT, self._stamp, StoredEntries(names, frames, np.array(since), np.array(ends)))
                self._listed_at = -float("inf")
            finally:
                with self._collecting:
                    # Entries that were put since stay; a new dict, since readers may go through the old one.
                    self._collected = {
                        name: new for name, new in self._collected.items() if collected.get(name) is not new
                    }

    def invalidate(self, names: Numbers | None) -> None:
        """Write a file that says from when on entries of names, or with None of all, may be used."""
        self.refresh(now=True)
        # Above the time of any claim that was made before, see `FolderStore.claim`, also by another host's clock.
        time = max(self.now + int(SKEW_SECONDS * MICROSECONDS), self.last_invalidation + 2)
        self._write(INVALIDATION, time, invalidation(names, time))
        self.refresh(now=True)

    def remove_all(self) -> int:
        """Invalidate all entries, and remove their files; return how many there were."""
        known = self._files.names(self.identity)
        self.refresh(now=True)
        count = self.count()
        # First: entries that another process compacts meanwhile are invalid when they are written.
        self.invalidate(None)
        for name in known:
            if not name.endswith(TEMPORARY):
                self._files.remove(self.identity, name)
        self.refresh(now=True)
        return count

    def _write(self, suffix: str, published: int, entries: StoredEntries) -> None:
        self._files.write(self.identity, random_name(suffix), segment_parts(self.identity, published, entries))

    # ── compaction ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_due(self) -> bool:
        """Whether there is something to compact, or it is time to look for what has expired."""
        is_old = time.monotonic() - self.cleaned_at > self._files.clean_seconds
        return is_old or bool(choose_segments(self.segments))

    def compact(self) -> None:
        """Rewrite small segments as one, and remove files that are of no use any more.

        Readers that list the files meanwhile see the old ones, the new one, or both.
        """
        self.refresh(now=True)
        old = choose_segments(self.segments)
        if old:
            entries = self._merged(old)
            if len(entries.frames):
                # The time of the newest: the new segment takes the place of its parts in the order of segments.
                self._write(SEGMENT, max(one.published for one in old), entries)
            for one in old:
                self._files.remove(self.identity, one.name)
        for name in self._useless():
            self._files.remove(self.identity, name)

    def _merged(self, segments: Sequence[FolderSegment]) -> StoredEntries:
        kept = list(zip(segments, self._newest(segments), strict=True))
        frames = [frame for one, entries in kept for frame in one.frames(entries)]
        names, since, ends = (
            np.concatenate([column[entries] for column, (_, entries) in zip(columns, kept, strict=True)])
            for columns in zip(*((one.names, one.since, one.ends) for one in segments), strict=True)
        )
        return StoredEntries(names, frames, since, ends)

    def _useless(self) -> list[str]:
        """Return expired segments, invalidations that concern no entry, and what dead or foreign writers have left."""
        now = self._clock()
        useless = [one.name for one in self.segments if int(one.ends.max(initial=0)) < now * MICROSECONDS]
        if not self._skipped and not self._unusable:
            # Segments that were removed just now stay open elsewhere for a moment; they go the next time.
            oldest = min((int(one.since.min(initial=-_NEVER)) for one in self.segments), default=-_NEVER)
            limit = min(oldest, int((now - _KEPT_SECONDS) * MICROSECONDS))
            useless += [name for name, (_, time) in self._invalidations.items() if time < limit]
        for name in self._files.names(self.identity):
            if name.endswith(TEMPORARY) or name in self._unusable:
                with suppress(OSError):
                    if self._files.modified(self.identity, name) < now - _LEFTOVER_SECONDS:
                        useless.append(name)
        return useless


def choose_segments(segments: Sequence[FolderSegment]) -> list[FolderSegment]:
    """Return the segments to rewrite as one, none if there are few; ``segments`` begin with the newest.

    These are the newest, with each older one that is no larger than all of them together. So sizes double from segment
    to segment, and an entry is rewritten a logarithmic number of times.
    """
    size = 0
    chosen: list[FolderSegment] = []
    for segment in segments:
        if size + segment.file.size > _LARGEST or (len(chosen) >= FEW and segment.file.size > size):
            break
        size += segment.file.size
        chosen.append(segment)
    return chosen if len(chosen) >= FEW else []


def _usable(segment: FolderSegment, entries: Numbers, valid_after: Numbers, now: int) -> Mask:
    usable: Mask = (segment.ends[entries] > now) & (segment.since[entries] > valid_after)
    return usable
