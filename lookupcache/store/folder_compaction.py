"""Keeps the number of files in a folder small, without locks: rewrites segments, and removes what has expired.

Any number of processes may do so at a time. Each writes the entries that it has read before it removes the files, and
entries are valid by their own times. So at worst two processes write the same entries twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lookupcache.store.folder_clock import FolderClock, Moment
from lookupcache.store.folder_files import TEMPORARY, Files, random_name
from lookupcache.store.folder_format import MICROSECONDS, segment_parts
from lookupcache.store.folder_segments import SEGMENT, FolderSegment, FolderSegments

FEW = 8
"""The number of small segments from which on they become one."""

_LARGEST = 128 << 20
"""No segment becomes larger."""
_KEPT_SECONDS = 24 * 3_600.0
"""How long invalidations are kept: longer than rows may be fetched that they forbid to write."""
_LEFTOVER_SECONDS = 3_600.0


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


def compact(identity: str, files: Files, clock: FolderClock) -> None:
    """Rewrite small segments as one, and remove files that are of no use any more.

    Readers that list the files meanwhile see the old ones, the new one, or both.
    """
    segments = FolderSegments(identity, files)
    try:
        segments.refresh(clock, now=True)
        old, now = choose_segments(segments.segments), clock.now()
        if old:
            entries = segments.entries_of(old, now)
            if len(entries.frames):
                # The time of the newest: the new segment takes the place of its parts in the order of segments.
                published = max(one.index.published for one in old)
                files.write(random_name(SEGMENT), segment_parts(identity, published, entries))
            for one in old:
                files.remove(one.name)
        _clean(files, segments, now)
    finally:
        segments.close()


def _clean(files: Files, segments: FolderSegments, now: Moment) -> None:
    """Remove expired segments, invalidations that concern no entry, and what dead or foreign writers have left."""
    # Segments that were removed just now stay open elsewhere for a moment; their invalidations go the next time.
    limit = min(segments.oldest, int((now.least - _KEPT_SECONDS) * MICROSECONDS))
    useless = [name for name, one in segments.invalidations.items() if one.time < limit]
    useless += [one.name for one in segments.segments if one.index.last_end < int(now.least * MICROSECONDS)]
    for name in segments.listed:
        if name.endswith(TEMPORARY) or name in segments.unreadable:
            with suppress(OSError):
                if files.modified(name) < now.least - _LEFTOVER_SECONDS:
                    useless.append(name)
    for name in useless:
        files.remove(name)
