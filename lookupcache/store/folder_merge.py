"""Keeps the number of files in a folder small: merges segments, and removes what has expired."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lookupcache.store.folder_clock import FolderClock, Moment
from lookupcache.store.folder_files import Files, LocalFiles, random_name
from lookupcache.store.folder_format import MICROSECONDS, segment_parts
from lookupcache.store.folder_segments import SEGMENT, Segment, Segments

FEW = 8
"""So many segments of about one size, written one after another, become one."""

_SMALLEST = 64 << 10
_LARGEST = 64 << 20
"""Larger segments are not merged."""
_KEPT_SECONDS = 24 * 3_600.0
"""How long invalidations are kept: longer than a claim may last whose rows they forbid to write."""
_LEFTOVER_SECONDS = 3_600.0
_LOCK_SECONDS = 2.0


def choose_segments(segments: Sequence[Segment]) -> list[str]:
    """Return the names of segments to merge, none if there are few; ``segments`` are ordered by their age.

    They are neighbours in that order, so that what is newer than some of them and older than others keeps its place.
    """
    limit = _SMALLEST
    while limit <= _LARGEST:
        run: list[Segment] = []
        for segment in segments:
            if segment.file.size <= limit:
                run.append(segment)
            elif len(run) >= FEW:
                break
            else:
                run = []
        if len(run) >= FEW:
            return _last_of(run)
        limit *= FEW
    return []


def _last_of(run: list[Segment]) -> list[str]:
    """Return the last of a run, which are the oldest, as many as fit into one segment."""
    size, first = 0, len(run)
    while first and size + run[first - 1].file.size <= 2 * _LARGEST:
        first -= 1
        size += run[first].file.size
    return [segment.name for segment in run[first:]]


def merge_segments(identity: str, files: LocalFiles, clock: FolderClock, names: Sequence[str]) -> bool:
    """Write one segment in place of some; return False if another process merges, or has done so.

    Readers that list the files meanwhile see the old ones, the new one, or both.
    """
    segments = Segments(identity, files)
    try:
        with files.lock_merging() as is_held:
            if not is_held:
                return False
            segments.refresh(clock, only=names)
            if {one.name for one in segments.segments} != set(names):
                return False
            _replace(identity, files, segments, clock.now())
            return True
    finally:
        segments.close()


def _replace(identity: str, files: LocalFiles, segments: Segments, now: Moment) -> None:
    old, new = segments.segments, random_name(SEGMENT)
    entries = segments.entries_of(old, now)
    if len(entries.frames):
        # The time of the newest: the merged segment takes the place of its parts.
        files.write(new, segment_parts(identity, max(one.index.published for one in old), entries))
    try:
        with files.lock(_LOCK_SECONDS):
            for one in old:
                files.remove(one.name)
    except TimeoutError:
        files.remove(new)


def clean_folder(files: Files, segments: Segments, now: Moment) -> None:
    """Remove expired segments, invalidations that concern no entry, and what dead or foreign writers have left."""
    oldest = segments.oldest
    # Those that were removed before stay open elsewhere for a moment; their invalidations are removed the next time.
    limit = min(oldest, int((now.least - _KEPT_SECONDS) * MICROSECONDS))
    old = [name for name, one in segments.invalidations.items() if one.time < limit]
    least = int(now.least * MICROSECONDS)
    old += [one.name for one in list(segments.segments) if one.index.last_end < least]
    for name in old:
        files.remove(name)
    for name in list(segments.unreadable):
        with suppress(OSError):
            if files.modified(name) < now.least - _LEFTOVER_SECONDS:
                files.remove(name)
    files.remove_leftovers(now.least - _LEFTOVER_SECONDS)
