"""`Maintenance`: keeps a folder within its limits and its segments few, while lookups go on.

Two locks keep two processes from the same segments. ``small.lock`` is for evictions and merges that take milliseconds,
``large.lock`` for those that take longer and run in a thread. A large merge notes the highest number that it merges,
and small ones leave these segments alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookupcache.cache.keys import Positions
from lookupcache.cache.limits import Limits
from lookupcache.host.claims import Claims
from lookupcache.host.control import PUBLISH_LOCK, Control
from lookupcache.host.eviction import LiveEntries
from lookupcache.host.folder import Folder
from lookupcache.host.key_index import index_name
from lookupcache.host.merge import merge_segments
from lookupcache.host.segment import Segment, is_too_old, use_name
from lookupcache.host.segments import Segments, current_names, segment_names
from lookupcache.thread_start import start_thread

SMALL_LOCK = "small.lock"
LARGE_LOCK = "large.lock"
_SMALL_ENTRIES = 50_000
_SMALL_BYTES = 8 << 20
_MOST_SEGMENT_BYTES = 1792 << 20
"""Arrow's texts have 2 GB at most."""
_LEAST_RUN = 32
_LEAST_SEARCHED_RUN = 8
_SEARCHED_BYTES = 32 << 20
"""Where lookups find keys in many segments, fewer ones are merged, if that takes only a moment."""
_MOST_SEGMENTS = 96
_ALWAYS_MERGED = 64 << 10
"""Segments below this size merge with any neighbours."""
_REMOVED_PART = 3
_QUIET_SECONDS = 10.0
_QUIET_BYTES_PER_SECOND = 5 << 20
_MOST_QUIET_SECONDS = 600.0
"""More than any such time: a later one was written before the machine started again."""
_STUCK_SECONDS = 60.0
"""How long a large merge may take before others no longer leave large segments to it."""
_SLACK = 64
_SLACK_FROM = 100_000


@dataclass(eq=False)
class Maintenance:
    """Evicts, merges and removes what crashed processes have left."""

    _folder: Folder
    _control: Control
    _segments: Segments
    _claims: Claims
    _limits: Limits
    _thread: threading.Thread | None = None

    @property
    def most_bytes(self) -> float:
        """The largest size of a segment: a merge needs as much space again."""
        return min(_MOST_SEGMENT_BYTES, self._limits.bytes / 20)

    def fits(self, needed: float) -> bool:
        """Return whether this many bytes may be added."""
        return self._used_bytes() + needed <= self._limits.bytes

    def _used_bytes(self) -> int:
        return sum(self._folder.size(name) for name in self._folder.names() if not name.endswith(".lock"))

    def wait(self) -> None:
        """Wait for the thread of a large merge."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def run(self, now: float, needed: float = 0, *, wait: bool = False) -> None:
        """Evict and merge, if that is due and no other process is at it; make space for ``needed`` bytes.

        With ``wait``, wait for the other process; raises TimeoutError if that takes too long.
        """
        if not needed and not self._is_due():
            return
        with self._folder.lock(SMALL_LOCK, wait=wait) as is_locked:
            if not is_locked:
                return
            self._segments.refresh()
            self._end_dead_merge()
            if self._control["weight"] > self._limits.rows or needed:
                self._evict(now, needed)
            self._segments.forget_messages()
            # Segments that a process which was stopped merges would keep the bytes of their removed entries. If it goes
            # on, it finds that they were merged.
            is_blocked = needed > 0 and self._is_stuck(now)
            for _ in range(_MOST_SEGMENTS):
                run = self._choose_run(0 if is_blocked else self._merging, must=needed > 0)
                if not run:
                    break
                if _is_large(run) and not needed and (self._start_large_merge(run, now) or not self._is_stuck(now)):
                    break
                self._merge(self._segments, run, now)
                if needed and self.fits(needed):
                    break

    def merge_quiet(self, now: float) -> None:
        """Merge what lies around when nothing is published any more: a lookup takes longer for each segment.

        The larger the segments, the longer it takes until the next such merge. So one new key now and then does not
        cause a copy of all.
        """
        until = self._control.time("quiet_until")
        if len(self._segments.newest) < 2 or now < until < now + _MOST_QUIET_SECONDS:
            return
        # Before the lock: this is asked again and again, also where no two segments fit into one.
        if len(quiet_run(self._segments.newest, self.most_bytes, self._merging)) < 2:
            return
        with self._folder.lock(SMALL_LOCK, wait=False) as is_locked:
            run = quiet_run(self._segments.newest, self.most_bytes, self._merging) if is_locked else []
            if len(run) < 2 or not self._segments.is_current or not self.fits(_bytes_of(run)):
                return
            self._control.set_time("quiet_until", now + max(_QUIET_SECONDS, _bytes_of(run) / _QUIET_BYTES_PER_SECOND))
            if _is_large(run):
                self._start_large_merge(run, now)
            else:
                self._merge(self._segments, run, now)

    def _is_due(self) -> bool:
        if self._control["weight"] > self._limits.rows or self._segments.has_many_messages:
            return True
        return bool(self._choose_run(self._merging))

    def _choose_run(self, merging: int, *, must: bool = False) -> list[Segment]:
        least = _LEAST_SEARCHED_RUN if self._segments.most_parts > _LEAST_SEARCHED_RUN else _LEAST_RUN
        return choose_run(self._segments.newest, self.most_bytes, merging, least=least, must=must)

    @property
    def _merging(self) -> int:
        """The highest number that a large merge is at work on, 0 for none."""
        return self._control["merging"]

    # ── merging ──────────────────────────────────────────────────────────────────────────────────────────

    def _merge(self, segments: Segments, run: Sequence[Segment], now: float) -> None:
        name = f"{self._claims.number}-{threading.get_ident()}.seg.tmp"
        try:
            self._segments.most_parts = 0
            merge_segments(self._folder, self._control, segments, run, name, self._limits, now)
        finally:
            self._folder.remove(name)
            self._folder.remove(use_name(name))

    def _is_stuck(self, now: float) -> bool:
        """Return whether the process that merges large segments has taken so long that it was perhaps stopped.

        Then another process merges them, or segments and the bytes of removed entries would add up.
        """
        since = self._control.time("merging_since")
        return not self._is_merging and not now - _STUCK_SECONDS < since <= now

    def _end_dead_merge(self) -> None:
        """Give back the segments that a process was merging when it was killed; within the small lock."""
        if self._merging and not self._is_merging and (lock := self._folder.try_lock(LARGE_LOCK)) is not None:
            self._control["merging"] = 0
            self._folder.unlock(lock)

    @property
    def _is_merging(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start_large_merge(self, run: Sequence[Segment], now: float) -> bool:
        """Merge in a thread, unless one is at work here or in another process; return whether it has begun."""
        if self._is_merging:
            return False
        lock = self._folder.try_lock(LARGE_LOCK)
        if lock is None:
            return False
        self._control.set_time("merging_since", now)
        # Within the small lock, so that no small merge has any of them in hand.
        self._control["merging"] = max(segment.range.high for segment in run)
        segments = self._segments.copy()

        def merge() -> None:
            try:
                self._merge(segments, run, now)
            except OSError:
                segments.counters["host_failures"] += 1
            finally:
                self._control["merging"] = 0
                self._folder.unlock(lock)

        self._thread = threading.Thread(target=merge, name="lookupcache-host-merge", daemon=True)
        start_thread(self._thread)
        return True

    # ── evicting ─────────────────────────────────────────────────────────────────────────────────────────

    def _evict(self, now: float, needed: float) -> None:
        """Mark entries as removed: all that are too old, and then by the policy as many as exceed the limits."""
        before = self._control["weight"]
        segments = self._segments.newest
        live = [self._drop_expired(segment, now) for segment in segments]
        weights = [np.maximum(segment.counts[rows], 1) for segment, rows in zip(segments, live, strict=True)]
        total = int(sum(weight.sum() for weight in weights))
        excess = max(self._excess_rows(total), self._excess_bytes(total, needed))
        evicted = 0
        if excess > 0:
            entries = LiveEntries(self._folder, self._control, segments, live, weights)
            victims = entries.choose(self._limits.eviction, excess, total, now)
            for segment, rows, weight, chosen in zip(segments, live, weights, victims, strict=True):
                segment.removed[rows[chosen]] = 1
                evicted += int(weight[chosen].sum())
                count = int(np.count_nonzero(chosen))
                self._control["evictions"] += count
                self._segments.counters["host_evictions"] += count
        self._control["weight"] += total - evicted - before

    def _drop_expired(self, segment: Segment, now: float) -> Positions:
        live = np.flatnonzero(segment.removed == 0)
        if self._limits.expire:
            old = is_too_old(segment, self._limits, now)[live]
            segment.removed[live[old]] = 1
            live = live[~old]
        return live

    def _excess_rows(self, total: int) -> float:
        """Return how much weight is too much; a large cache is brought somewhat below its limit, to do it rarely."""
        most = self._limits.rows
        if total <= most:
            return 0
        return total - most + (most // _SLACK if most >= _SLACK_FROM else 0)

    def _excess_bytes(self, total: int, needed: float) -> float:
        """Return how much weight to remove for these bytes, and a tenth more."""
        if not needed:
            return 0
        used = self._used_bytes()
        over = used + needed - 0.9 * self._limits.bytes
        return math.ceil(total * min(over / max(used, 1), 1)) if over > 0 else 0

    # ── after crashes ────────────────────────────────────────────────────────────────────────────────────

    def sweep(self) -> None:
        """Remove what killed processes have left: files that were not renamed, and segments that were merged."""
        with self._folder.lock(SMALL_LOCK, wait=False) as is_locked:
            if not is_locked:
                return
            lock = self._folder.try_lock(LARGE_LOCK)
            if lock is None:
                return
            try:
                self._control["merging"] = 0
                self._remove_leftovers()
            finally:
                self._folder.unlock(lock)

    def _remove_leftovers(self) -> None:
        names = self._folder.names()
        for name in names:
            if name.endswith(".tmp"):
                number = name.partition("-")[0]
                if not number.isdigit() or int(number) == self._claims.number or not self._claims.lives(int(number)):
                    self._folder.remove(name)
        for merged in set(segment_names(names)) - set(current_names(names)):
            self._folder.remove(merged)
            self._folder.remove(use_name(merged))
        present = set(names)
        for name in names:
            if name.startswith("index"):
                self._remove_index(name)
            if name.endswith(".use") and name.removesuffix(".use") + ".seg" not in present:
                # A use file is renamed before its segment, under the lock of publications.
                self._remove_use_file(name)

    def _remove_index(self, name: str) -> None:
        with self._folder.lock(PUBLISH_LOCK):
            if name != index_name(self._control["index"]):
                self._folder.remove(name)

    def _remove_use_file(self, name: str) -> None:
        with self._folder.lock(PUBLISH_LOCK):
            if not self._folder.inode(name.removesuffix(".use") + ".seg"):
                self._folder.remove(name)


def choose_run(
    newest: Sequence[Segment], most_bytes: float, merging: int, *, least: int = _LEAST_RUN, must: bool = False
) -> list[Segment]:
    """Return adjacent segments to merge, the newest first: similar in size, or with many removed entries.

    ``newest`` are all segments, the newest first; those up to the number ``merging`` are being merged. At least
    ``least`` small ones are merged; with ``must``, any removed entry is reason enough.
    """
    free = [segment for segment in newest if segment.range.low > merging]
    for start in range(len(free)):
        size = largest = chosen = 0
        for end, segment in enumerate(free[start:], start + 1):
            size, largest = size + segment.nbytes, max(largest, segment.nbytes)
            if size > most_bytes:
                break
            fewest = min(least, _LEAST_RUN) if size <= _SEARCHED_BYTES else _LEAST_RUN
            # None is much larger than the others, so that an entry is copied a logarithmic number of times.
            many = end - start >= fewest and largest <= max(2 * size / fewest, _ALWAYS_MERGED)
            # Near the largest size there are never as many that fit into one; the merged segment stays as it is.
            if many or (most_bytes < _MOST_SEGMENT_BYTES and size >= most_bytes / 2 and largest <= size / 2):
                chosen = end  # With those that follow: a small one that is left between large ones stays for good.
            elif chosen:
                break
        if chosen:
            return free[start:chosen]
    removed = [int(np.count_nonzero(segment.removed)) for segment in free]
    for segment, count in zip(free, removed, strict=True):
        if count and (count == len(segment) or _REMOVED_PART * count > len(segment) + 64):
            return [segment]
    if must and any(removed):
        part = [count / len(segment) for segment, count in zip(free, removed, strict=True)]
        return [free[part.index(max(part))]]
    if len(free) > _MOST_SEGMENTS:
        pairs = [free[at : at + 2] for at in range(len(free) - 1)]
        pair = min(pairs, key=_bytes_of)
        return pair if _bytes_of(pair) <= most_bytes else []
    return []


def quiet_run(newest: Sequence[Segment], most_bytes: float, merging: int) -> list[Segment]:
    """Return the newest adjacent segments that fit into one, as many as do; none or one if no two of them fit."""
    run: list[Segment] = []
    for segment in newest:
        if segment.range.low <= merging:
            break
        if _bytes_of(run) + segment.nbytes > most_bytes:
            if len(run) > 1:
                break
            run = []
        run.append(segment)
    return run


def _is_large(run: Sequence[Segment]) -> bool:
    return sum(len(segment) for segment in run) > _SMALL_ENTRIES or _bytes_of(run) > _SMALL_BYTES


def _bytes_of(run: Sequence[Segment]) -> int:
    return sum(segment.nbytes for segment in run)
