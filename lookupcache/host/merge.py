"""Merging adjacent segments into one, while all processes go on reading, publishing and marking entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import KeyBatch
from lookupcache.cache.limits import Limits
from lookupcache.host.control import PUBLISH_LOCK, Control
from lookupcache.host.folder import Folder
from lookupcache.host.segment import (
    Segment,
    SegmentData,
    SegmentRange,
    concatenate,
    is_too_old,
    use_columns,
    use_name,
    write_segment,
)
from lookupcache.host.segments import Segments

_Part = tuple[Segment, Entries]


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

    Args:
        folder: The folder.
        control: Its page of numbers.
        segments: The list of segments, which is read again afterwards.
        run: The segments to merge, the newest first.
        name: The name under which the new segment is written before it is renamed.
        limits: Entries that are older than these allow are dropped.
        now: The time.
    """
    parts = [(segment, _live_entries(run[:at], segment, limits, now)) for at, segment in enumerate(run)]
    parts = [(segment, entries) for segment, entries in reversed(parts) if len(entries)]
    if parts:
        write_segment(folder, name, _merge_parts(parts, control["seed"]), segments.plan)
    with folder.lock(PUBLISH_LOCK):
        number = control["next"] + 1
        control["next"] = number
        if parts:
            _copy_marks(folder, name, parts)
            final = str(SegmentRange(run[-1].range.low, run[0].range.high, number))
            folder.rename(use_name(name), use_name(final))
            folder.rename(name, final)
        control["weight"] -= _dropped_weight(run, parts)
        control["merges"] += 1
        control["generation"] = number
    for segment in run:
        # The segment first: a use file without one is known to be left over.
        folder.remove(segment.name)
        folder.remove(use_name(segment.name))
    segments.refresh()


def _live_entries(newer: Sequence[Segment], segment: Segment, limits: Limits, now: float) -> Entries:
    """Return the entries of a segment that are neither removed nor too old, and have no newer version."""
    kept = segment.gone == 0
    if limits.expire:
        kept &= ~is_too_old(segment, limits, now)
    entries = np.flatnonzero(kept).astype(np.int32)
    if newer and entries.size:
        keys = segment.keys(entries)
        for other in newer:
            entries_there = other.find(keys)
            if (entries_there >= 0).any():
                absent = np.flatnonzero(entries_there < 0)
                entries, keys = entries[absent], keys.take(absent)
    return entries


def _merge_parts(parts: Sequence[_Part], seed: int) -> SegmentData:
    keys = [segment.keys(entries) for segment, entries in parts]
    columns = tuple(pa.concat_arrays(column) for column in zip(*(one.columns for one in keys), strict=True))
    joined = KeyBatch(columns, np.concatenate([one.hashes for one in keys]), None)
    if not all(segment.words_are_hashes for segment, _ in parts):
        joined = joined.with_seed(seed)

    def column(name: str) -> Any:
        return np.concatenate([getattr(segment, name)[entries] for segment, entries in parts])

    return SegmentData(
        joined, _rows(parts), column("counts").astype(np.int64), column("written"), column("deadline"),
        column("used"), column("queued"), column("hits"),
    )  # fmt: skip


def _rows(parts: Sequence[_Part]) -> pa.RecordBatch:
    return concatenate([segment.gather(entries) for segment, entries in parts])


def _copy_marks(folder: Folder, name: str, parts: Sequence[_Part]) -> None:
    """Copy what was noted of the entries since they were read."""
    use, _ = folder.map(use_name(name), writable=True)
    used, queued, hits, gone = use_columns(use, sum(len(entries) for _, entries in parts))
    start = 0
    for segment, entries in parts:
        at = slice(start, start + len(entries))
        used[at], queued[at] = segment.used[entries], segment.queued[entries]
        hits[at], gone[at] = segment.hits[entries], segment.gone[entries]
        start += len(entries)


def _dropped_weight(run: Sequence[Segment], parts: Sequence[_Part]) -> int:
    """Return the weight of the entries that were not removed before, and are not in the new segment."""

    def weight(segment: Segment, live: npt.NDArray[Any]) -> int:
        return int(np.maximum(segment.counts[live], 1).sum())

    before = sum(weight(segment, segment.gone == 0) for segment in run)
    return before - sum(weight(segment, entries[segment.gone[entries] == 0]) for segment, entries in parts)
