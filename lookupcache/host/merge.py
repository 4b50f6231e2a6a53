"""Merging adjacent segments into one, while all processes go on reading, publishing and marking entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookupcache.cache.hash_index import Entries, mix_words
from lookupcache.cache.keys import Mask
from lookupcache.cache.limits import Limits
from lookupcache.host.control import PUBLISH_LOCK, Control
from lookupcache.host.folder import Folder
from lookupcache.host.key_index import KeyIndex
from lookupcache.host.segment import (
    Segment,
    SegmentParts,
    SegmentRange,
    has_repeated,
    is_too_old,
    use_columns,
    use_name,
    write_parts,
)
from lookupcache.host.segments import Segments


@dataclass(frozen=True)
class _KeptEntries:
    """Entries of a segment to keep, which are ``count``; a slice stands for all, which are copied without an index."""

    segment: Segment
    entries: Entries | slice
    count: int

    @classmethod
    def of(cls, segment: Segment, kept: Mask) -> _KeptEntries:
        """Return the entries of a mask."""
        entries = np.flatnonzero(kept).astype(np.int32)
        is_all = len(entries) == len(segment)
        return cls(segment, slice(None) if is_all else entries, len(entries))


def merge_segments(
    folder: Folder,
    control: Control,
    segments: Segments,
    run: Sequence[Segment],
    name: str,
    limits: Limits,
    now: float,
) -> None:
    """Write the entries of adjacent segments as one, and replace these with it.

    The new segment is written as ``name`` before it is renamed. ``run`` begins with the newest; entries older than the
    limits allow are dropped.
    """
    parts = _kept_parts(run, limits, now)
    written = _write_merged(folder, name, parts, segments.plan) if parts else 0
    with folder.lock(PUBLISH_LOCK):
        segments.refresh_locked()
        if not {segment.name for segment in run} <= {segment.name for segment in segments.newest}:
            return  # A merge in a thread has ended since the run was chosen, and replaced some of them.
        if parts:
            index = segments.prepare_index()
            is_same = _have_adjacent_numbers(parts)
            first = parts[0].segment.range.first if is_same else segments.take_ids(sum(part.count for part in parts))
        number = control["next"] + 1
        control["next"] = number
        control["changed"] += 1
        if parts:
            _copy_marks(folder, name, parts)
            final = str(SegmentRange(run[-1].range.low, run[0].range.high, number, first))
            folder.rename(use_name(name), use_name(final))
            # Until the index has their new numbers: a process that is killed meanwhile leaves it to be built again.
            control["is_indexing"] = int(not is_same)
            folder.rename(name, final)
            # Before the index changes: a process that finds an unknown number there looks at the folder again.
            control["generation"] = number
            if not is_same:
                _renumber(index, parts, first)
                control["is_indexing"] = 0
        control["weight"] -= _dropped_weight(run, parts)
        control["merges"] += 1
        control["merged_bytes"] += written
        for segment in run:
            # The segment first: a use file without one is known to be left over.
            folder.remove(segment.name)
            folder.remove(use_name(segment.name))
        if parts and not is_same:
            # Others have mapped the old ones as well meanwhile.
            number = control["next"] = control["next"] + 1
        control["generation"] = number
        control["changed"] += 1
    segments.refresh()


def _have_adjacent_numbers(parts: Sequence[_KeptEntries]) -> bool:
    """Return whether parts have all entries of their segments, and these follow each other in the index."""
    firsts = [part.segment.range.first for part in parts]
    ends = [first + part.count for first, part in zip(firsts, parts, strict=True)]
    return all(isinstance(part.entries, slice) for part in parts) and ends[:-1] == firsts[1:]


def _renumber(index: KeyIndex, parts: Sequence[_KeptEntries], first: int) -> None:
    """Write the numbers that entries have after a merge over those that they had."""
    for part in parts:
        old = np.arange(len(part.segment))[part.entries] + part.segment.range.first
        index.replace(mix_words(part.segment.words[part.entries]), old, first + np.arange(part.count))
        first += part.count


def _kept_parts(run: Sequence[Segment], limits: Limits, now: float) -> list[_KeptEntries]:
    """Return the entries of segments to keep, the oldest first: those that are neither removed nor too old, nor have a
    newer version.

    Older versions are removed when a newer one is published, so keys are compared only where a hash occurs twice.
    """
    masks = [_usable(segment, limits, now) for segment in run]
    parts = [_KeptEntries.of(segment, mask) for segment, mask in zip(run, masks, strict=True)]
    words = np.concatenate([part.segment.words[part.entries] for part in parts])
    if has_repeated(words):
        for at, segment in enumerate(run):
            _drop_older(run[:at], segment, masks[at])
        parts = [_KeptEntries.of(segment, mask) for segment, mask in zip(run, masks, strict=True)]
    return [part for part in reversed(parts) if part.count]


def _usable(segment: Segment, limits: Limits, now: float) -> Mask:
    kept = segment.removed == 0
    if limits.expire:
        kept &= ~is_too_old(segment, limits, now)
    return kept


def _drop_older(newer: Sequence[Segment], segment: Segment, kept: Mask) -> None:
    """Remove from a mask the entries whose keys newer segments have."""
    entries = np.flatnonzero(kept).astype(np.int32)
    if not newer or not entries.size:
        return
    keys = segment.keys(entries)
    for other in newer:
        found = other.find(keys) >= 0
        kept[entries[found]] = False
        absent = np.flatnonzero(~found)
        entries, keys = entries[absent], keys.take(absent)


def _write_merged(folder: Folder, name: str, parts: Sequence[_KeptEntries], plan: bytes) -> int:
    columns = {
        column: [getattr(part.segment, column)[part.entries] for part in parts]
        for column in ("words", "counts", "written", "deadline", "used", "queued", "hits", "removed")
    }
    keys = [batch for part in parts if (batch := part.segment.key_rows(part.entries)) is not None]
    rows = [part.segment.gather(part.entries) for part in parts]
    return write_parts(folder, name, SegmentParts(columns, keys, rows, sum(part.count for part in parts)), plan)


def _copy_marks(folder: Folder, name: str, parts: Sequence[_KeptEntries]) -> None:
    """Copy what was noted of the entries since they were read."""
    use, _ = folder.map(use_name(name), writable=True)
    used, queued, hits, removed = use_columns(use, sum(part.count for part in parts))
    start = 0
    for part in parts:
        at, segment, entries = slice(start, start + part.count), part.segment, part.entries
        used[at], queued[at] = segment.used[entries], segment.queued[entries]
        hits[at], removed[at] = segment.hits[entries], segment.removed[entries]
        start += part.count


def _dropped_weight(run: Sequence[Segment], parts: Sequence[_KeptEntries]) -> int:
    """Return the weight of the entries that were not removed before, and are not in the new segment."""

    def weight(segment: Segment, entries: Entries | slice) -> int:
        live = segment.removed[entries] == 0
        return int((np.maximum(segment.counts[entries], 1) * live).sum())

    before = sum(weight(segment, slice(None)) for segment in run)
    return before - sum(weight(part.segment, part.entries) for part in parts)
