"""What must hold in the files of a host's cache, whatever its processes do; read as by a process that has just started.

`tests/support/audit.py` calls it when a cache is closed, and at the end of each test.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from lookupcache.cache.hash_index import mix_words
from lookupcache.host import HostCache
from lookupcache.host.control import PUBLISH_LOCK
from lookupcache.host.eviction import MOST_MARKS
from lookupcache.host.key_index import _TAG, _tags_of
from lookupcache.host.segment import Segment, SegmentError
from lookupcache.host.segments import Segments

MOST_ENTRIES = 20_000
"""Larger caches are left out, whose audit would take longer than their test."""


class DamagedError(Exception):
    """A file cannot be read: tests damage them on purpose, and then nothing else is promised of the folder."""


class _Reader(Segments):
    """Reads the segments without removing what is damaged."""

    def _drop(self, name: str) -> None:
        raise DamagedError(name)


def audit_host(cache: HostCache) -> list[str]:
    """Return what is wrong with the files of a `HostCache` that is open."""
    if cache.is_lost or cache._process != os.getpid() or not cache._is_open:
        return []
    try:
        # While nobody publishes; whoever changes files of a folder on purpose, or deletes it, is not audited.
        with cache._folder.lock(PUBLISH_LOCK):
            return _audit(cache, _read(cache)) if cache._control.is_current else []
    except (OSError, DamagedError):
        return []


def _read(cache: HostCache) -> _Reader:
    own = cache._segments
    reader = _Reader(
        own._folder, cache._control, own.plan, own._key_types, own._schema, timed=own._timed, counters=Counter()
    )
    reader.refresh()
    return reader


def _audit(cache: HostCache, reader: _Reader) -> list[str]:
    control, segments = cache._control, reader.newest
    if sum(map(len, segments)) > MOST_ENTRIES:
        return []
    live = [np.flatnonzero(segment.removed == 0) for segment in segments]
    found = list(_ranges(segments, control["ids"]))
    for segment in segments:
        found += [f"{text} in {segment.name}" for text in _columns(segment, cache)]
    if found or control["is_indexing"] or control["generation"] != control["next"]:
        # A process was killed while it published, or is at it: the next one that publishes builds the index again.
        return found
    return [*found, *_index(reader, live, control), *_weight(segments, live, cache)]


def _ranges(segments: list[Segment], last: int) -> Iterator[str]:
    """No two segments have the same sequence numbers, or the same numbers of entries."""
    ranges = sorted((one.range.low, one.range.high) for one in segments)
    if any(after[0] <= before[1] for before, after in pairwise(ranges)):
        yield "two segments have entries of the same publication"
    numbers = sorted((one.range.first, one.range.first + len(one)) for one in segments if one.range.first)
    if any(after[0] < before[1] for before, after in pairwise(numbers)):
        yield "two entries have the same number"
    if numbers and numbers[-1][1] - 1 > last:
        yield f"an entry has the number {numbers[-1][1] - 1}, and the last that was taken is {last}"


def _columns(segment: Segment, cache: HostCache) -> Iterator[str]:
    """The rows belong to entries, each to one; no deadline is later than the limits allow."""
    try:
        segment.verify()
    except SegmentError as error:
        yield str(error)
        return
    counts, limits = segment.counts.astype(np.int64), cache.limits
    if not np.array_equal(segment.starts, np.cumsum(counts) - counts) or counts.sum() != segment.rows:
        yield "rows belong to no entry, or to two"
    if (segment.hits & 0x7F).max(initial=0) > MOST_MARKS:
        yield "an entry has more uses than are counted"
    seconds = np.where(counts > 0, limits.write_seconds, limits.miss_seconds)
    if (segment.deadline > segment.written + seconds).any():
        yield "an entry's deadline is later than its age limit allows"


def _index(reader: _Reader, live: list[Any], control: Any) -> Iterator[str]:
    """The index finds each live entry by its key, and no key has two of them."""
    slots, index = np.empty(0, np.uint64), reader._current_index()
    if index is not None:
        slots = index._slots[index._slots != 0]
        if len(slots) != control["used_slots"]:
            yield f"{len(slots)} slots of the index are used, and {control['used_slots']} are counted"
    tags: dict[int, list[int]] = {}
    for slot in slots.tolist():
        tags.setdefault(slot & ~int(_TAG), []).append(slot & int(_TAG))
    if any(len(same) > 1 for same in tags.values()):
        yield "the index has an entry twice"
    for segment, entries in zip(reader.newest, live, strict=True):
        keys = segment.keys(entries)
        if not segment.range.first:
            if not np.array_equal(segment.find(keys), entries):
                yield "the index of a full table does not find its entries by their keys"
            continue
        expected = _tags_of(mix_words(keys.hashes)).tolist()
        numbers = (segment.range.first + entries).tolist()
        if any(tags.get(number) != [tag] for number, tag in zip(numbers, expected, strict=True)):
            yield "an entry is not in the index, or under another key's hash"
        at = {}
        for part, positions, rows in reader.locate(keys):
            at |= {
                position: (part.name, entry) for position, entry in zip(positions.tolist(), rows.tolist(), strict=True)
            }
        if at != {n: (segment.name, entry) for n, entry in enumerate(entries.tolist())}:
            yield "the index does not find an entry by its key"


def _weight(segments: list[Segment], live: list[Any], cache: HostCache) -> Iterator[str]:
    """The live entries weigh what is counted, within the limits."""
    weight = sum(int(np.maximum(one.counts[rows], 1).sum()) for one, rows in zip(segments, live, strict=True))
    if not any(segment.range.first == 0 for segment in segments) and weight != cache._control["weight"]:
        yield f"the entries weigh {weight}, and {cache._control['weight']} is counted"
    used = cache._maintenance._used_bytes()
    # Without entries a folder has a few pages, which may be more than a limit of a test.
    if weight and used > cache.limits.bytes:
        yield f"the files have {used} bytes, and the limit is {cache.limits.bytes:g}"


def audit_claims(number: int, infos: Any) -> list[str]:
    """Return whether a process that has closed its cache has left claims: ``infos`` is the mapped table of claims."""
    left = np.count_nonzero((infos >> np.uint64(48)) == number)
    return [f"a cache was closed, and {left} of its claims are left"] if left else []
