"""`Segments`: the segments and invalidations that a folder has now, the number of its generation, and their index."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.cache.hash_index import mix_words
from lookupcache.cache.key_lookup import rows_of_others
from lookupcache.cache.keys import Hashes, KeyBatch, Mask, Positions, is_exact
from lookupcache.host.clock import clock_identity
from lookupcache.host.control import Control
from lookupcache.host.folder import Folder
from lookupcache.host.key_index import MOST_IDS, MOST_STEPS, Ids, KeyIndex, build_index, index_bytes, index_name
from lookupcache.host.segment import Segment, SegmentError, SegmentRange, use_name

_MESSAGE = struct.Struct("<8s16sI")
_MESSAGE_MAGIC = b"LKCINV1\n"
_MOST_MESSAGES = 64
_MOST_ATTEMPTS = 16
_RANGE_BITS = 12
_UNCLEAR = -2
_NEW_INDEX = "index.new"
_NONE = np.empty(0, np.int64)

Part = tuple[Segment, Positions, Positions]
"""A segment, the positions of the keys in a batch that were found in it, and the numbers of their entries there.

Numbers have 64 bits: numpy indexes by others three times more slowly.
"""


@dataclass(frozen=True)
class Invalidation:
    """Keys that have changed in the source, or None for all, under a sequence number."""

    number: int
    keys: KeyBatch | None


class Segments:
    """The segments of a folder, as of the last `refresh`. ``newest`` are those that count, the newest first; ``mapped``
    are these and the merged ones, as long as they are there.

    ``most_parts`` is in how many segments the keys of one lookup were found at most, since the last merge.

    Files that cannot be used are removed, and counted as ``host_dropped_files``. ``plan`` are the 16 bytes of the
    plan's fingerprint. Where it is ``timed``, entries of an unknown age must not be used.
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
        self.mapped: list[Segment] = []
        self.invalidations: list[Invalidation] = []
        self.generation = -1
        self._changed = -1
        self.most_parts = 0
        self._is_unclear = False
        self._index: KeyIndex | None = None
        self._order_entries([])
        self._folder = folder
        self._control = control
        self.plan = plan
        self.counters = counters
        self._key_types = tuple(key_types)
        self._is_exact = is_exact(key_types)
        self._schema = schema
        self._timed = timed

    def copy(self) -> Segments:
        """Return an empty list for the same folder, for another thread."""
        return Segments(
            self._folder, self._control, self.plan, self._key_types, self._schema, timed=self._timed,
            counters=self.counters,
        )  # fmt: skip

    def close(self) -> None:
        self.newest, self.invalidations, self._index = [], [], None
        self._order_entries([])

    @property
    def is_current(self) -> bool:
        """Whether nothing has been published since the last `refresh`."""
        return self._control["generation"] == self.generation

    @property
    def is_changed(self) -> bool:
        """Whether segments were merged or keys were invalidated since the last `refresh`, or perhaps are just now."""
        changed = self._control["changed"]
        return changed != self._changed or changed % 2 == 1

    @property
    def nbytes(self) -> int:
        """The bytes of all segments with their use files."""
        return sum(segment.nbytes for segment in self.newest)

    def refresh(self) -> bool:
        """Read the folder again if the generation has changed; return whether it has."""
        # Before the generation, which a merge or an invalidation writes first.
        changed = self._control["changed"]
        if self.is_current:
            self._changed = changed
            return False
        for _ in range(_MOST_ATTEMPTS):
            changed, generation = self._control["changed"], self._control["generation"]
            names = self._folder.names()
            segments = self._open_all(names)
            if segments is not None:
                covered = set(names) - set(current_names(names))
                self.newest = [segment for segment in segments if segment.name not in covered]
                self._order_entries([segment for segment in segments if segment.name in covered])
                self._read_messages(names)
                self.generation, self._changed = generation, changed
                return True
        raise OSError("the folder changes too fast to be read")

    def refresh_locked(self) -> None:
        """Read the folder within the lock of publications.

        Also what was renamed there by a process that was killed, or failed, before it could change the generation.
        Raises OSError if the folder now belongs to others.
        """
        if not self._control.is_current:
            raise OSError("the folder was replaced")
        if self._control["generation"] != self._control["next"]:
            self._control["generation"] = self._control["next"]
        self._control["changed"] += self._control["changed"] % 2
        self.refresh()

    def since(self, number: int) -> list[Invalidation] | None:
        """Return the invalidations after a sequence number, or None if some of them cannot be read any more."""
        if self._control["forgotten"] > number:
            return None
        return [one for one in self.invalidations if one.number > number]

    def _open_all(self, names: Sequence[str]) -> list[Segment] | None:
        """Return the segments, or None if one of them has been merged away in the meantime.

        Also merged ones: until the index has been changed, it has their entries.
        """
        opened = {segment.name: segment for segment in self.mapped}
        found = []
        for name in segment_names(names):
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

    # ── the index ────────────────────────────────────────────────────────────────────────────────────────

    def _order_entries(self, merged: Sequence[Segment]) -> None:
        """Order segments by the numbers of their entries; ``merged`` are those that were merged into others."""
        current = sorted((one for one in self.newest if one.range.first), key=_first_entry)
        firsts = np.array([one.range.first for one in current], np.int64)
        ends = firsts + np.array([len(one) for one in current], np.int64)
        # A merge of all their entries has the same numbers: then only that one is needed.
        for one in merged:
            at = int(np.searchsorted(firsts, one.range.first, side="right")) - 1
            if one.range.first and (at < 0 or one.range.first >= ends[at]):
                current.append(one)
        self.mapped = [*self.newest, *merged]
        self._by_entry = sorted(current, key=_first_entry)
        largest = max(self._by_entry, key=len, default=None)
        has_most = largest is not None and 2 * len(largest) > sum(map(len, self._by_entry))
        self._largest = largest if has_most else None
        self._firsts = np.array([one.range.first for one in self._by_entry], np.int64)
        self._ends = self._firsts + np.array([len(one) for one in self._by_entry], np.int64)
        self._index_ranges()

    def locate(self, keys: KeyBatch, *, live: bool = False) -> list[Part]:
        """Return the newest entry of each non-null key, by segment; with ``live``, none that is removed.

        A key that is always there is found, also while other processes publish and merge. They change the generation,
        then write the key into the index over its older entry, and then mark that one as removed.
        """
        rows = np.arange(len(keys)) if keys.valid is None else np.flatnonzero(keys.valid)
        words = keys.hashes if keys.valid is None else keys.hashes[rows]
        for _ in range(_MOST_ATTEMPTS):
            self._is_unclear = False
            parts = self._search_largest(keys, rows, words)
            if live:
                parts = self._live_parts(keys, parts)
            # The index may have had entries of segments that were published meanwhile, some of them merged.
            if not (self._is_unclear and self.refresh()):
                break
        return parts

    def _live_parts(self, keys: KeyBatch, parts: list[Part]) -> list[Part]:
        """Return the parts without removed entries; their keys are searched again, since they may have newer ones."""
        live, removed = _split_removed(parts)
        if removed.size:
            again, removed = _split_removed(self._search(keys, removed, keys.hashes[removed]))
            self._is_unclear |= removed.size > 0
            live += again
        return live

    def _search_largest(self, keys: KeyBatch, rows: Positions, words: Hashes) -> list[Part]:
        """Search where one segment has most entries: the word of an entry there says whether its slot is the right one.

        Keys whose slots lead to other segments are searched as in `_search`.
        """
        segment, index = self._largest, self._current_index()
        if index is None or segment is None:
            return self._search(keys, rows, words)
        position, elsewhere = index.home(mix_words(words)), [_NONE]
        entries, same, rest = self._peek(index, segment, position, words)
        if not same.all():
            entries[~same] = -1
            position, wanted = position.take(rest), words.take(rest)
            for _ in range(MOST_STEPS):
                if not rest.size:
                    break
                is_elsewhere = index.has_tags(position, wanted)
                if is_elsewhere.any():
                    elsewhere.append(rest[is_elsewhere])
                    here = ~is_elsewhere
                    rest, position, wanted = rest[here], position[here], wanted[here]
                position = (position + 1) & (len(index) - 1)
                found, same, left = self._peek(index, segment, position, wanted)
                entries[rest[same]] = found[same]
                rest, position, wanted = rest.take(left), position.take(left), wanted.take(left)
            kept = np.flatnonzero(entries >= 0)
            elsewhere = [rows.take(np.concatenate(elsewhere))]
            rows, entries = rows.take(kept), entries.take(kept)
        if not self._is_exact:
            wanted_keys = keys if len(rows) == len(keys) else keys.take(rows)
            wrong = rows_of_others(segment.key_columns(entries), wanted_keys.columns)
            if wrong.size:
                elsewhere.append(rows[wrong])
                rows, entries = np.delete(rows, wrong), np.delete(entries, wrong)
        parts = [(segment, rows, entries)] if rows.size else []
        left_over = np.concatenate(elsewhere)
        return [*parts, *self._search(keys, left_over, keys.hashes[left_over])] if left_over.size else parts

    def _peek(
        self, index: KeyIndex, segment: Segment, position: Positions, words: Hashes
    ) -> tuple[Ids, Mask, Positions]:
        """Return the entries in slots, which of them have these words, and the others that are not empty."""
        ids = index.peek(position)
        entries = ids - segment.range.first
        # As unsigned numbers, those before the first one are too large as well.
        same = (segment.words.take(entries, mode="clip") == words) & (entries.view(np.uint64) < len(segment))
        return entries, same, _NONE if same.all() else np.flatnonzero(~same & (ids != 0))

    def _search(self, keys: KeyBatch, rows: Positions, words: Hashes) -> list[Part]:
        parts: list[Part] = []
        index = self._current_index()
        if index is None or not self._by_entry:
            return parts
        mixed = mix_words(words)
        position = index.home(mixed)
        for _ in range(MOST_STEPS):
            if not rows.size:
                break
            ids, position = index.search(mixed, position)
            wrong = self._parts_of(keys, rows, words, ids, parts)
            # Slots of other keys, or of entries that this process does not know: the key may be in a later one.
            rows, words, mixed = rows.take(wrong), words.take(wrong), mixed.take(wrong)
            position = (position.take(wrong) + 1) & (len(index) - 1)
        return parts

    def _parts_of(self, keys: KeyBatch, rows: Positions, words: Hashes, ids: Ids, parts: list[Part]) -> Positions:
        """Add the entries of keys to parts; return which of the entries are not those of the keys."""
        at = self._segment_of(ids)
        # By segment, all at once: each step for a single segment would make a lookup slower by segment.
        order = np.argsort(at, kind="stable")
        ends = np.cumsum(np.bincount(at + np.int16(1), minlength=len(self._firsts) + 1)).tolist()
        unknown = order[: ends[0]]
        wrong = unknown[ids.take(unknown) > 0]
        self._is_unclear |= wrong.size > 0
        order = order[ends[0] :]
        entries = ids.take(order) - self._firsts.take(at.take(order))
        found, words, stored = rows.take(order), words.take(order), np.empty(len(order), np.uint64)
        limits = np.subtract(ends, ends[0]).tolist()
        spans = [(one, *span) for one, span in zip(self._by_entry, pairwise(limits), strict=True) if span[0] < span[1]]
        for segment, start, end in spans:
            segment.words.take(entries[start:end], out=stored[start:end], mode="clip")
        is_same = stored == words
        if not self._is_exact and spans:
            pieces = zip(*(segment.key_columns(entries[start:end]) for segment, start, end in spans), strict=True)
            is_same[rows_of_others([pa.concat_arrays(column) for column in pieces], keys.take(found).columns)] = False
        if is_same.all():
            parts += [(segment, found[start:end], entries[start:end]) for segment, start, end in spans]
            return wrong
        for segment, start, end in spans:
            same = np.flatnonzero(is_same[start:end])
            if same.size:
                parts.append((segment, found[start:end].take(same), entries[start:end].take(same)))
        return np.concatenate([wrong, order[~is_same]])

    def _segment_of(self, ids: Ids) -> npt.NDArray[np.int16]:
        """Return in which of `_by_entry` entries are, -1 for none."""
        # A binary search for each takes longer than all else; nearly all ranges of numbers are in one segment.
        at = self._of_range.take((ids - self._firsts[0]) >> self._range_bits, mode="clip")
        unclear = np.flatnonzero(at == _UNCLEAR)
        if unclear.size:
            at[unclear] = np.searchsorted(self._firsts, ids.take(unclear), side="right") - 1
        at[(ids >= self._ends.take(at)) | (ids < self._firsts[0])] = -1
        return at

    def _index_ranges(self) -> None:
        """Note for ranges of numbers of entries the segment that has all of them."""
        span = int(self._firsts[-1] - self._firsts[0]) if len(self._firsts) else 0
        self._range_bits = max(span.bit_length() - _RANGE_BITS, 0)
        starts = (np.arange((span >> self._range_bits) + 2) << self._range_bits) + (self._firsts[0] if span else 0)
        last = np.searchsorted(self._firsts, starts, side="right") - 1
        self._of_range = np.where(last[:-1] == last[1:], last[:-1], _UNCLEAR).astype(np.int16)
        if span:
            self._of_range[-1] = _UNCLEAR  # It stands for all later ones, too.
        else:
            self._of_range[:] = 0

    def _current_index(self) -> KeyIndex | None:
        """Return the index, or None if it cannot be read: then no key is found."""
        while self._index is None or self._index.number != self._control["index"]:
            number, self._index = self._control["index"], None
            try:
                self._index = KeyIndex(self._folder, number, self._control["seed"])
            except (OSError, ValueError):
                # Unless another index has taken its place meanwhile.
                if number == self._control["index"]:
                    break
        return self._index

    def index_growth(self, entries: int) -> int:
        """Return how many bytes a new index needs before this many entries are added, 0 for none."""
        index = self._current_index()
        if index is not None and 2 * (self._control["used_slots"] + entries) <= len(index):
            return 0
        return index_bytes(self.live_entries() + entries)

    def prepare_index(self, entries: int = 0) -> KeyIndex:
        """Return an index of all segments with space for more entries; within the lock of publications."""
        index = self._current_index()
        if index is None or self._control["is_indexing"] or 2 * (self._control["used_slots"] + entries) > len(index):
            index = self._build_index(entries)
        return index

    def take_ids(self, count: int) -> int:
        """Return the first of this many numbers of new entries; within the lock of publications."""
        first = self._control["ids"] + 1
        if first + count >= MOST_IDS:
            raise OSError("the numbers of entries are used up; clear the cache")
        self._control["ids"] += count
        return first

    def _build_index(self, more: int) -> KeyIndex:
        """Write a new index of all entries, and remove the old one."""
        if self._control["is_indexing"]:
            self._remove_older()
        live = [(one, np.flatnonzero(one.removed == 0)) for one in self.newest if one.range.first]
        used = sum(len(entries) for _, entries in live)
        parts = ((segment.words.take(entries), segment.range.first + entries) for segment, entries in live)
        build_index(self._folder, _NEW_INDEX, self._control["seed"], used + more, parts)
        old = self._control["index"]
        self._folder.rename(_NEW_INDEX, index_name(old + 1))
        # In this order: if the process is killed in between, no index is taken for emptier than it is.
        self._control["index"], self._control["used_slots"], self._control["is_indexing"] = old + 1, used, 0
        self._folder.remove(index_name(old))
        index = self._current_index()
        if index is None:
            raise OSError("the index cannot be read")
        return index

    def _remove_older(self) -> None:
        """Mark older entries as removed where a process was killed before it could: those of the same word.

        Different keys rarely have the same word; then one of them is requested again.
        """
        entries = [np.flatnonzero(segment.removed == 0) for segment in self.newest]
        words = np.concatenate([np.empty(0, np.uint64), *(
            segment.words.take(live) for segment, live in zip(self.newest, entries, strict=True)
        )])  # fmt: skip
        is_older = np.ones(len(words), np.bool_)
        is_older[np.unique(words, return_index=True)[1]] = False
        ends = np.cumsum([len(live) for live in entries])
        for segment, live, older in zip(self.newest, entries, np.split(is_older, ends[:-1]), strict=False):
            segment.removed[live[older]] = 1

    def live_entries(self) -> int:
        """Return how many entries are not removed."""
        return sum(len(segment) - int(np.count_nonzero(segment.removed)) for segment in self.newest)

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


def segment_names(names: Sequence[str]) -> list[str]:
    """Return the names of segments among file names."""
    found = []
    for name in names:
        if name.endswith(".seg"):
            with suppress(ValueError):
                SegmentRange.of(name)
                found.append(name)
    return found


def current_names(names: Sequence[str]) -> list[str]:
    """Return the names of the segments that no other one is a merge of.

    >>> current_names([str(SegmentRange(1, 1, 1)), str(SegmentRange(2, 2, 2)), str(SegmentRange(1, 2, 3)), "control"])
    ['0000000000000001-0000000000000002-0000000000000003-00000000000.seg']
    """
    found: list[str] = []
    wider: list[SegmentRange] = []
    # A range lies within another range or outside of it, and wider ones come first: only those that contain it are
    # compared.
    ranges = ((SegmentRange.of(name), name) for name in segment_names(names))
    for one, name in sorted(ranges, key=lambda pair: (pair[0].low, -pair[0].high, -pair[0].version)):
        while wider and wider[-1].high < one.low:
            wider.pop()
        if not any(other.replaces(one) for other in wider):
            found.append(name)
        wider.append(one)
    return found


def others(count: int, parts: Sequence[Part]) -> Positions:
    """Return the positions below a number that no part has."""
    if sum(len(positions) for _, positions, _ in parts) == count:
        return _NONE
    is_other = np.ones(count, dtype=np.bool_)
    for _, positions, _ in parts:
        is_other[positions] = False
    return np.flatnonzero(is_other)


def _split_removed(parts: list[Part]) -> tuple[list[Part], Positions]:
    """Return parts without removed entries, and the positions of the keys of these."""
    marks = [segment.removed.take(entries) for segment, _, entries in parts]
    live: list[Part] = []
    removed: list[Positions] = [np.empty(0, np.int64)]
    # Nearly always the result is empty: one look at all segments together takes less time than one at each.
    if not parts or not np.concatenate(marks).any():
        return parts, removed[0]
    for (segment, positions, entries), mark in zip(parts, marks, strict=True):
        is_live = mark == 0
        removed.append(positions[~is_live])
        if is_live.any():
            live.append((segment, positions[is_live], entries[is_live]))
    return live, np.concatenate(removed)


def _first_entry(segment: Segment) -> int:
    return segment.range.first
