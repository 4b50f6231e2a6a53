"""`HostCache`: the rows of a plan that all processes of a host share.

find ─► claim ─► (calls to the source) ─► publish ─► release
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lookupcache.cache.age import Age
from lookupcache.cache.hash_index import mix_words
from lookupcache.cache.keys import KeyBatch, Mask, Positions
from lookupcache.cache.limits import Limits
from lookupcache.errors import LookupAdvice
from lookupcache.host.claims import Claims, ClaimStates
from lookupcache.host.clock import host_now, is_available
from lookupcache.host.control import PUBLISH_LOCK, Control
from lookupcache.host.eviction import MOST_MARKS, QUEUE_STEP
from lookupcache.host.folder import LOCK_SECONDS, Folder, HostUnavailableError, settle_pandas
from lookupcache.host.key_index import KeyIndex
from lookupcache.host.maintenance import Maintenance
from lookupcache.host.segment import (
    FORMAT,
    Numbers,
    Segment,
    SegmentData,
    SegmentError,
    SegmentRange,
    Times,
    concatenate,
    use_name,
    write_segment,
)
from lookupcache.host.segments import Part, Segments, message_name, others

WRITE_LOCK = "write.lock"
ABOUT = "about.json"
_MOST_BUCKETS = 1 << 13
_MOST_WEIGHT = 2
"""How many times ``max-rows`` the cache may have for a moment, while another process evicts."""
_MOST_OPENINGS = 3
_LOOK_SECONDS = 0.1
"""How long a process may go on with a control page that was removed."""
QUIET_LOOKUPS = 8
"""After this many lookups without a publication, segments are merged that otherwise wait for more."""


@dataclass(frozen=True)
class Found:
    """Keys that were found: their positions in the batch, and in this order their rows, counts and times.

    ``written`` and ``deadline`` are by the host's clock; a deadline in the past means that the entry may be served
    only if the source fails.
    """

    positions: Positions
    rows: pa.RecordBatch
    counts: Numbers
    written: Times
    deadline: Times


class HostCache:
    """The cache of one plan in a folder, as one process sees it; not safe for several threads at a time.

    Raises HostUnavailableError where the folder cannot be used. All other failures of its files are counted as
    ``host_failures`` and look like keys that are not there. Where the folder or its control page was deleted, a new one
    is used; ``is_lost`` is true where that is not possible.

    The ``path`` has a folder for each plan, by its ``fingerprint`` of 32 hexadecimal digits. ``about`` is what
    `lookupcache cache` shows, such as the name of the table; no secret belongs there. ``clock`` returns seconds that
    are the same in all processes, by default those since boot. A stopped process may hold a lock: after
    ``lock_seconds``, lookups go on without the cache, which counts as a failure.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fingerprint: str,
        key_types: Sequence[pa.DataType],
        schema: pa.Schema,
        limits: Limits,
        *,
        about: Mapping[str, str] | None = None,
        clock: Callable[[], float] | None = None,
        counters: Counter[str] | None = None,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        if not is_available():
            raise HostUnavailableError("this system has no clock that counts from boot in all processes")
        self.limits = limits
        self._age = Age(limits)
        self.clock = host_now if clock is None else clock
        self.counters: Counter[str] = Counter() if counters is None else counters
        self.is_lost = False
        self._about = dict(about or {})
        self._path = os.path.join(path, folder_name(fingerprint))
        self._plan = bytes.fromhex(fingerprint)
        self._key_types = tuple(key_types)
        self._schema = schema.remove_metadata()
        self._lock_seconds = lock_seconds
        self._files = 0
        self._quiet = 0
        self._looked_at = -1
        self._published = 0
        self._next_look = -math.inf
        settle_pandas()
        self._open()
        _open_caches.add(self)

    def _open(self) -> None:
        for _ in range(_MOST_OPENINGS - 1):
            try:
                self._open_once()
            except HostUnavailableError as error:
                if not error.is_missing:
                    raise
                # Perhaps `lookupcache cache clear` has removed the folder meanwhile: the next one is a new one.
            else:
                return
        self._open_once()

    def _open_once(self) -> None:
        folder = Folder(self._path, lock_seconds=self._lock_seconds)
        try:
            self._folder = folder
            self._control = Control(folder, self._plan)
            self.seed = self._control["seed"]
            self._claims = Claims(folder, self._buckets)
            self._segments = Segments(
                folder, self._control, self._plan, self._key_types, self._schema,
                timed=self.limits.expire or self.limits.needs_write_times, counters=self.counters,
            )  # fmt: skip
            self._maintenance = Maintenance(folder, self._control, self._segments, self._claims, self.limits)
            self._segments.refresh()
            # What a process that is stopped keeps from being removed, a later one removes.
            with suppress(TimeoutError):
                self._maintenance.sweep()
            self._describe()
        except OSError as error:
            if hasattr(self, "_claims"):
                self._claims.drop()
            folder.close()
            is_missing = isinstance(error, FileNotFoundError)
            raise HostUnavailableError(f"{self._path}: {error.strerror or error}", is_missing=is_missing) from None
        self._process = os.getpid()

    def _rejoin_if_removed(self, *, at_once: bool = False) -> None:
        """Use the folder anew if the control page was removed or replaced, as where old temporary files are cleaned up.

        Later processes have another page, on which they note what they invalidate. The numbers of the new page are
        higher: a process with a number of the old page finds that anything may have changed since.
        """
        now = time.monotonic()
        if now < self._next_look and not at_once:
            return
        self._next_look = now + _LOOK_SECONDS
        if not self.is_lost and self._control.is_current:
            return
        self.counters["host_failures"] += 1
        self._close_files()
        try:
            self._open()
        except HostUnavailableError:
            self._next_look, self.is_lost = math.inf, True
        else:
            self.is_lost = False

    def _describe(self) -> None:
        if self._about and not self._folder.inode(ABOUT):
            name = f"{self._claims.number}-about.tmp"
            self._folder.remove(name)
            self._folder.write(name, [json.dumps(self._about).encode()])
            self._folder.rename(name, ABOUT)

    @property
    def _buckets(self) -> int:
        """How many buckets the table of claims has: it takes a small part of the bytes."""
        buckets = 16
        while buckets < _MOST_BUCKETS and buckets * 2 * 256 <= self.limits.bytes / 64:
            buckets *= 2
        return buckets

    def close(self) -> None:
        """End this process's claims, and close its files."""
        _open_caches.discard(self)
        self._close_files()
        self._next_look, self.is_lost = math.inf, True

    def _close_files(self) -> None:
        self._maintenance.wait()
        self._claims.close()
        self._control.close()
        self._segments.close()
        self._folder.close()

    # ── finding ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_news(self) -> bool:
        """Whether something has been published since the last look at the folder."""
        self._rejoin_if_removed()
        return not self.is_lost and not (self._segments.is_current and self._is_open)

    @property
    def is_changed(self) -> bool:
        """Whether keys may have been invalidated since the last look at the folder."""
        self._rejoin_if_removed()
        return not self.is_lost and (self._segments.is_changed or not self._is_open)

    def has_news_since(self, position: int) -> bool:
        """Return whether something has been published since `position` had a value, seen or not."""
        return not self.is_lost and self._is_open and self._control["generation"] != position

    @property
    def position(self) -> int:
        """The number of the last publication that this process has seen."""
        return self._segments.generation

    def find(self, keys: KeyBatch, *, after: float = -math.inf, fresh: bool = False) -> Found:
        """Find distinct non-null keys, among the entries that were written after a time.

        With ``fresh``, entries that may be served only if the source fails are not found.
        """
        parts = self.locate(keys, after=after, fresh=fresh)
        self.count_hits(sum(len(positions) for _, positions, _ in parts))
        return self.gather(parts)

    def locate(self, keys: KeyBatch, *, after: float = -math.inf, fresh: bool = False) -> list[Part]:
        """Find non-null keys as `find` does, without reading their rows; hits are counted by the caller."""
        if self._is_ready():
            with self._counting_failures():
                self._merge_if_quiet()
                parts = self._locate(self._hash_keys(keys))
                # Of lookups only: no process waits for reports of use, or for stored rows.
                self._segments.most_parts = max(self._segments.most_parts, len(parts))
                return self._usable(parts, after, fresh)
        return []

    def _merge_if_quiet(self) -> None:
        """Merge segments when nothing has been published for some lookups."""
        generation = self._control["generation"]
        self._quiet = self._quiet + 1 if generation == self._looked_at else 0
        self._looked_at = generation
        if self._quiet and self._quiet % QUIET_LOOKUPS == 0:
            self._segments.refresh()
            self._maintenance.merge_quiet(self.clock())

    def _locate(self, keys: KeyBatch) -> list[Part]:
        """Find keys in the segments that are mapped; read the folder again for those that are not there.

        Publications of others cost a lookup with all of its keys nothing: to read the folder takes as long as to find
        some thousand keys.
        """
        if self._segments.is_changed:
            self._segments.refresh()
        parts = self._segments.locate(keys, live=True)
        if not self._segments.is_current and (rest := others(len(keys), parts)).size:
            self._segments.refresh()
            more = self._segments.locate(keys.take(rest), live=True)
            parts += [(segment, rest.take(positions), entries) for segment, positions, entries in more]
        return parts

    def count_hits(self, count: int) -> None:
        """Count keys that were found."""
        if count and not self.is_lost:
            self.counters["host_hits"] += count
            self._control["hits"] += count

    def share(self) -> tuple[int, int, int]:
        """Return which of the rows, bytes and keys that are stored are this process's: its part of those published.

        So the shares of all processes are together what is stored, whichever of them has evicted how much.
        """
        if not self.is_lost and self._published:
            with self._counting_failures():
                self._segments.refresh()
                part = self._published / max(self._control["published"], self._published)
                stored = (self._control["weight"], self._segments.nbytes, self._segments.live_entries())
                rows, size, keys = (round(part * number) for number in stored)
                return rows, size, keys
        return 0, 0, 0

    def _hash_keys(self, keys: KeyBatch) -> KeyBatch:
        return keys.with_seed(self.seed)

    def _usable(self, parts: list[Part], after: float, fresh: bool) -> list[Part]:
        """Return the parts without entries that are too old; note the use of the others."""
        now, limits = self.clock(), self.limits
        found = []
        for segment, positions, entries in parts:
            good: Mask | None = None
            if limits.expire or limits.needs_write_times or after > -math.inf:
                written = segment.written.take(entries)
                last = segment.deadline.take(entries)
                if not fresh:
                    last = self._age.last(written, last)
                good = (now <= last) & (written <= now) & (written >= after)
            if limits.access_seconds < math.inf:
                is_used = now - segment.used[entries] <= limits.access_seconds
                good = is_used if good is None else good & is_used
            if good is not None and not good.all():
                positions, entries = positions[good], entries[good]
            if entries.size:
                self._note_use(segment, entries, now)
                found.append((segment, positions, entries))
        return found

    def _note_use(self, segment: Segment, entries: Positions, now: float) -> None:
        segment.used[entries] = now
        if self.limits.eviction != "lru":
            marks = segment.hits[entries]
            segment.hits[entries] = marks + ((marks & MOST_MARKS) < MOST_MARKS)

    def is_fresh(self, segment: Segment, entries: Positions) -> Mask:
        """Return which entries are not too old; of the others, and of -1, nothing is known."""
        now = self.clock()
        last = segment.deadline.take(entries, mode="wrap")
        if self.limits.access_seconds < math.inf:
            last = np.minimum(last, segment.used.take(entries, mode="wrap") + self.limits.access_seconds)
        fresh: Mask = now <= last
        return fresh

    def gather(self, parts: list[Part]) -> Found:
        """Return the rows, counts and times of keys that were located."""
        if not parts:
            none = np.empty(0)
            rows = pa.RecordBatch.from_pylist([], self._schema)
            return Found(none.astype(np.int64), rows, none.astype(np.int64), none, none)
        rows = concatenate([segment.gather(entries) for segment, _, entries in parts])
        positions = np.concatenate([positions for _, positions, _ in parts])
        counts, written, deadline = (
            np.concatenate([getattr(segment, column)[entries] for segment, _, entries in parts])
            for column in ("counts", "written", "deadline")
        )
        return Found(positions, rows, counts.astype(np.int64), written, deadline)

    # ── claims ───────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, keys: KeyBatch, seconds: float) -> Mask:
        """Claim keys; return which of them this process is to request: the others are being requested."""
        if self._is_ready():
            with self._counting_failures():
                return self._claims.claim(self._hash_keys(keys).hashes, self.clock(), seconds)
        return np.ones(len(keys), dtype=np.bool_)

    def renew(self, keys: KeyBatch, seconds: float, *, is_queued: bool = False) -> None:
        """Extend this process's claims of keys; ``is_queued`` says that calls wait for more than their source."""
        if self._is_ready():
            with self._counting_failures():
                self._claims.renew(self._hash_keys(keys).hashes, self.clock(), seconds, is_queued=is_queued)

    def release(self, keys: KeyBatch) -> None:
        """End this process's claims of keys: processes that wait for them may request them."""
        if self._is_ready():
            with self._counting_failures():
                self._claims.release(self._hash_keys(keys).hashes)

    def claim_states(self, keys: KeyBatch) -> ClaimStates:
        """Return what is known of the claims of keys."""
        if self._is_ready():
            with self._counting_failures():
                return self._claims.states(self._hash_keys(keys).hashes, self.clock())
        return ClaimStates(np.zeros(len(keys), np.int64), *np.zeros((2, len(keys)), np.bool_))

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────

    def publish(self, keys: KeyBatch, rows: pa.Table, counts: Numbers, written: Times | float, since: int) -> bool:
        """Store rows of distinct keys for all processes; return whether those of all keys are stored.

        None of the keys is null; rows are in their order, and ``counts`` says how many each has. ``written`` is when
        they were fetched, by the host's clock, all or each. Keys that were invalidated after ``since``, the `position`
        when they were requested, are not stored.
        """
        if self._is_ready():
            with self._counting_failures():
                data = self._new_data(self._hash_keys(keys), rows, counts, written)
                if self.limits.bytes == math.inf:
                    return self._publish(data, since)
                is_complete = True
                for piece in self._pieces(data):
                    # One writer at a time, so that each finds the space that it has seen.
                    with self._folder.lock(WRITE_LOCK):
                        is_complete &= self._has_space(piece) and self._publish(piece, since)
                return is_complete
        return False

    def _new_data(self, keys: KeyBatch, rows: pa.Table, counts: Numbers, written: Times | float) -> SegmentData:
        times, used = np.full(len(counts), written), np.full(len(counts), self.clock())
        batch = rows.replace_schema_metadata(None).combine_chunks().to_batches()
        body = batch[0] if batch else pa.RecordBatch.from_pylist([], self._schema)
        hits = np.zeros(len(counts), np.uint8)
        # A moment apart from each other, so that they have an order in the queue.
        queued = used + np.arange(len(counts)) * QUEUE_STEP
        return SegmentData(keys, body, counts, times, self._age.deadline(times, counts), used, queued, hits)

    def _publish(self, data: SegmentData, since: int) -> bool:
        """Write a segment; keys that are invalidated meanwhile are left out of it, and it is written again.

        Returns whether no key was left out.
        """
        wanted = len(data)
        if self._control["weight"] > _MOST_WEIGHT * self.limits.rows:
            # The process that evicts was perhaps stopped while it held the lock: then nothing more is stored.
            self._maintenance.run(self.clock(), wait=True)
        while len(data):
            self._segments.refresh()
            changed, since = self._is_changed_since(data.keys, since), self.position
            if changed.any():
                data = data.take(np.flatnonzero(~changed))
            index = self._control["index"]
            parts = self._segments.locate(data.keys)
            if len(data) and self._publish_unless_changed(_with_history(data, parts), since, parts, index):
                break
        self._maintenance.run(self.clock())
        return len(data) == wanted

    def _publish_unless_changed(self, data: SegmentData, since: int, parts: list[Part], index_number: int) -> bool:
        """Write a segment, unless any of its keys has been invalidated after ``since``; return whether it was.

        ``parts`` are the older entries of its keys at that time, in the index of that number.
        """
        with self._temporary("seg") as name:
            write_segment(self._folder, name, data, self._plan)
            with self._publishing() as number:
                if self._is_changed_since(data.keys, since).any():
                    return False
                index = self._segments.prepare_index(len(data))
                # An index that had to be built again may have entries that the last one did not find.
                is_known = self.position == since and index.number == index_number
                older = parts if is_known else self._segments.locate(data.keys)
                first = self._segments.take_ids(len(data))
                final = str(SegmentRange(number, number, number, first))
                self._folder.rename(use_name(name), use_name(final))
                # Until the index has the new entries: a process that is killed meanwhile leaves it to be built again.
                self._control["is_indexing"] = 1
                try:
                    self._folder.rename(name, final)
                except OSError:
                    self._control["is_indexing"] = 0
                    raise
                if older:
                    # Before the index changes: a process that finds an unknown number there looks at the folder again.
                    self._control["generation"] = number
                    self._control["next"] += 1
                self._index(index, data.keys, first, older)
                self._control["weight"] += data.weight - _supersede(older)
                self._control["is_indexing"] = 0
                self._control["published"] += len(data)
                self._published += len(data)
            return True

    def _index(self, index: KeyIndex, keys: KeyBatch, first: int, older: list[Part]) -> None:
        """Write the entries of keys into the index, over their older ones where they have any."""
        mixed, new = mix_words(keys.hashes), first + np.arange(len(keys))
        is_new = np.ones(len(keys), np.bool_)
        for segment, positions, entries in older:
            old = segment.range.first + entries.astype(np.int64)
            # An entry that is no longer there, since the index was built again without removed ones, is added.
            is_new[positions] = ~index.replace(mixed.take(positions), old, new.take(positions))
        added = np.flatnonzero(is_new)
        index.insert(mixed.take(added), new.take(added))
        self._control["used_slots"] += len(added)

    @contextmanager
    def _temporary(self, kind: str) -> Iterator[str]:
        """Yield the name of a new file; it is removed, with its use file, unless it was renamed."""
        name = f"{self._claims.number}-{self._files}.{kind}.tmp"
        self._files += 1
        try:
            yield name
        finally:
            self._folder.remove(name)
            self._folder.remove(use_name(name))

    @contextmanager
    def _publishing(self, *, changes: bool = False) -> Iterator[int]:
        """Hold the lock for publications, with the present list of segments; yields the number of the new one.

        With ``changes``, older entries are no longer right: each process reads the folder before its next lookup.
        """
        with self._folder.lock(PUBLISH_LOCK):
            self._segments.refresh_locked()
            # Taken before anything is renamed: a number is never used twice, also if a process is killed.
            number = self._control["next"] + 1
            self._control["next"] = number
            self._control["changed"] += changes
            yield number
            self._control["generation"] = self._control["next"]
            self._control["changed"] += changes

    def _is_changed_since(self, keys: KeyBatch, since: int) -> Mask:
        """Return which keys were invalidated after a number: their rows may have been read before the change."""
        messages = self._segments.since(since)
        if messages == []:
            return np.zeros(len(keys), dtype=np.bool_)
        if messages is None or any(one.keys is None for one in messages):
            return np.ones(len(keys), dtype=np.bool_)
        changed = np.zeros(len(keys), dtype=np.bool_)
        for one in messages:
            assert one.keys is not None
            changed |= np.isin(keys.hashes, one.keys.with_seed(self.seed).hashes)
        return changed

    def _pieces(self, data: SegmentData) -> Iterator[SegmentData]:
        """Split data into segments of the largest size."""
        count = math.ceil(_size_of(data) / self._maintenance.most_bytes)
        if count == 1 or len(data) == 1:
            yield data
            return
        for part in np.array_split(np.arange(len(data)), min(count, len(data))):
            yield data.take(part)

    def _has_space(self, data: SegmentData) -> bool:
        """Return whether the files stay within the limit of bytes with this data; make space if they do not."""
        needed = _size_of(data)
        if needed > self._maintenance.most_bytes:
            self.counters["host_unstored"] += len(data)
            return False
        needed += self._segments.index_growth(len(data))
        if self._maintenance.fits(needed):
            return True
        self._maintenance.run(self.clock(), needed)
        if self._maintenance.fits(needed):
            return True
        self.counters["host_unstored"] += len(data)
        return False

    # ── a full table ─────────────────────────────────────────────────────────────────────────────────────

    def publish_table(self, keys: KeyBatch, rows: pa.Table, counts: Numbers, created: float) -> bool:
        """Store all rows of a table in place of everything that is here; return whether that was possible.

        Rows are in the order of the distinct keys, ``counts`` says how many each has; the load began at ``created``, by
        the host's clock.
        """
        if self._is_ready():
            with self._counting_failures():
                data = replace(self._new_data(self._hash_keys(keys), rows, counts, created), created=created)
                with self._temporary("seg") as name:
                    write_segment(self._folder, name, data, self._plan, indexed=True)
                    with self._publishing() as number:
                        final = str(SegmentRange(0, number, number))
                        self._folder.rename(use_name(name), use_name(final))
                        self._folder.rename(name, final)
                self._maintenance.sweep()
                return True
        return False

    def table(self) -> Segment | None:
        """Return the segment with all rows of a table, if there is one."""
        if self._is_ready():
            with self._counting_failures():
                self._segments.refresh()
                return next(iter(self._segments.newest), None)
        return None

    # ── invalidation ─────────────────────────────────────────────────────────────────────────────────────

    def invalidate(self, keys: KeyBatch | None) -> None:
        """Remove keys, or with None all, from the caches of all processes: they have changed in the source."""
        self._rejoin_if_removed(at_once=True)
        if self._is_ready():
            with self._counting_failures():
                hashed = None if keys is None else self._hash_keys(keys)
                try:
                    with self._temporary("inv") as name:
                        has_message = self._succeeds(lambda: self._folder.write(name, self._segments.message(keys)))
                        with self._publishing(changes=True) as number:
                            self._remove_entries(hashed)
                            final = message_name(number)
                            if not (has_message and self._succeeds(lambda: self._folder.rename(name, final))):
                                # Without the keys, all processes empty their own caches.
                                self._control["forgotten"] = number
                    # A process that waits for such a key waits in vain: rows from before the change are not stored.
                    with suppress(TimeoutError):
                        self._claims.remove(None if hashed is None else hashed.hashes)
                except BaseException:
                    # A lock of a process that is stopped, too many open files, an interrupt. Since the change cannot be
                    # noted in the folder, all processes stop using it, and empty their own caches. A process that was
                    # stopped while it publishes may store rows from before the change when it goes on.
                    self._control["closed"] = 1
                    raise
                # A source may report many changes of keys that no worker requests, so that nothing is published.
                self._maintenance.run(self.clock())

    def _succeeds(self, change: Callable[[], object]) -> bool:
        """Change files; return whether there was space for it, and count the failure if there was not."""
        try:
            change()
        except OSError as error:
            self._count_failure(error)
            return False
        return True

    def _remove_entries(self, keys: KeyBatch | None) -> None:
        """Mark the entries of keys as removed, or all with None, or if there is no space for an index to find them."""
        if keys is not None and self._succeeds(self._segments.prepare_index):
            self._control["weight"] -= _supersede(self._segments.locate(keys))
            return
        # Also segments that were merged: the index may still have their entries.
        for segment in self._segments.mapped:
            segment.removed[:] = 1
        self._control["weight"] = 0

    def invalidations_since(self, number: int) -> list[KeyBatch | None]:
        """Return what was invalidated after a publication; None stands for all keys."""
        if self.is_lost:
            return []
        if not self._is_open:
            self.is_lost = True
            return [None]
        with self._counting_failures():
            self._segments.refresh()
            messages = self._segments.since(number)
            return [None] if messages is None else [one.keys for one in messages]
        return [None]

    # ── failures ─────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _counting_failures(self) -> Iterator[None]:
        """Count failures of files instead of raising them; the caller continues as if the cache were empty."""
        try:
            yield
        except (OSError, pa.ArrowException, ValueError, IndexError, SegmentError) as error:
            self._count_failure(error)

    def _count_failure(self, error: Exception) -> None:
        self.counters["host_failures"] += 1
        if not self._control.is_current:
            self._next_look = -math.inf
        self._report(error)

    def _report(self, error: Exception) -> None:
        """Warn of the first failure on this host, and of the first one because the disk is full."""
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        field = "full_disk" if is_full else "failures"
        self._control[field] += 1
        if self._control[field] > 1:
            return
        what = f"Table {self._about.get('table', '')!r}: the cache that all workers of the host share in {self._path}"
        if is_full:
            fact = f"{what} cannot store more rows, because the disk is full; they are requested again."
            hint = "Make space there, limit 'lookup.cache.max-bytes', or set 'lookup.cache.path' to another disk."
        else:
            fact = f"{what} failed: {error or type(error).__name__}. Lookups go on without it where it fails."
            hint = "If its files were deleted, as by a clean-up of temporary files, set 'lookup.cache.path' elsewhere."
        warnings.warn(f"{fact}\n\nHint: {hint}", LookupAdvice, stacklevel=2)

    def _is_ready(self) -> bool:
        """Return whether the folder is in use; a forked process first becomes a separate claimant."""
        if self._process != os.getpid() and not self.is_lost:
            self._process = os.getpid()
            self._claims.drop()
            try:
                self._claims = Claims(self._folder, self._buckets)
                self._maintenance = Maintenance(self._folder, self._control, self._segments, self._claims, self.limits)
            except OSError:
                self.counters["host_failures"] += 1
                self.is_lost = True
        self._rejoin_if_removed()
        return not self.is_lost and self._is_open

    @property
    def _is_open(self) -> bool:
        return not self._control["closed"]


_open_caches: weakref.WeakSet[HostCache] = weakref.WeakSet()


def _drop_inherited() -> None:
    """Close what shows that the parent lives: open in the child, it would outlive the parent."""
    for one in list(_open_caches):
        with suppress(OSError):
            one._claims.drop()


os.register_at_fork(after_in_child=_drop_inherited)


def _with_history(data: SegmentData, parts: list[Part]) -> SegmentData:
    """Return the data with what is known of keys that have entries: a refresh is no new entry."""
    if not parts:
        return data
    used, queued, hits = data.used.copy(), data.queued.copy(), data.hits.copy()
    for segment, positions, entries in parts:
        live = segment.removed[entries] == 0
        positions, entries = positions[live], entries[live]
        used[positions] = np.maximum(segment.used[entries], used[positions])
        queued[positions] = segment.queued[entries]
        hits[positions] = segment.hits[entries]
    return replace(data, used=used, queued=queued, hits=hits)


def _supersede(parts: list[Part]) -> int:
    """Mark entries as removed; return what they weighed."""
    weight = 0
    for segment, _, entries in parts:
        live = entries[segment.removed[entries] == 0]
        segment.removed[live] = 1
        weight += int(np.maximum(segment.counts[live], 1).sum())
    return weight


def _size_of(data: SegmentData) -> int:
    """Return about how many bytes the files of the data take, rather too many."""
    columns = [*data.keys.columns, *data.rows.columns]
    return sum(column.nbytes for column in columns) + 96 * len(data) + 8_192 + 512 * len(columns)


def folder_name(fingerprint: str) -> str:
    """Return the name of a plan's folder."""
    return f"v{FORMAT}-{fingerprint}"
