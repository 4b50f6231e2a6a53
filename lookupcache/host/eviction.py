"""Which entries of a host's cache are evicted, by the policies of `lookupcache.cache`.

A policy's state lies with the entries, in the use files: the time of the last use, the place in the queue, and marks.
LRU needs the first. For S3-FIFO a policy object is made from the others for each eviction, and what it has
changed is written back. Hits in the caches of workers arrive late, so the order is approximately that of one cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Hashes, Mask
from lookupcache.cache.policy_queues import S3Fifo
from lookupcache.host.control import Control
from lookupcache.host.folder import Folder
from lookupcache.host.segment import Segment
from lookupcache.lazy import cached_property

MOST_MARKS = 3
"""The largest number of uses that is noted with an entry; a higher bit says that it is in the long queue."""
QUEUE_STEP = 1e-8
"""Seconds between two entries of a batch in the queue."""

_LONG = np.uint8(128)
_GHOST = "ghost"

Rows = npt.NDArray[Any]


@dataclass(eq=False)
class LiveEntries:
    """The live entries of all segments, numbered in the order of the queue from which they are evicted.

    ``live`` are the entries of each segment that are not removed, ``live_weights`` what these weigh.
    """

    folder: Folder
    control: Control
    segments: Sequence[Segment]
    live: Sequence[Rows]
    live_weights: Sequence[Rows]

    def __post_init__(self) -> None:
        self._weights = np.concatenate(self.live_weights).astype(np.int64)

    def choose(self, eviction: str, weight: float, total: float, now: float) -> list[Mask]:
        """Return for each segment which of its live entries to evict, so that they weigh enough together.

        ``total`` is what all live entries weigh, in rows; a known miss counts as one.
        """
        chosen = np.zeros(len(self._weights), dtype=np.bool_)
        if eviction == "lru":
            chosen[_least_recent(self._column("used"), self._weights, weight)] = True
        else:
            assert eviction == "s3-fifo", f"{eviction!r} needs a branch here"
            chosen[self._order[self._s3_fifo(weight, total, now)]] = True
            self.control.set_time("evicted_at", max(now, float(self._column("queued").max(initial=0))))
        return np.split(chosen, self._ends()[:-1])

    def weights(self, entries: Entries) -> npt.NDArray[np.int64]:
        """Return what each entry weighs; the policy calls it."""
        return self._weights[self._order[entries]]

    def words(self, entries: Entries) -> Hashes:
        """Return the word of each entry's key; the policy calls it."""
        return self._words[self._order[entries]]

    @cached_property
    def _order(self) -> Rows:
        """The entries in the order of the queue; stable, as those of one publication may be queued at the same time."""
        return np.argsort(self._column("queued"), kind="stable")

    @cached_property
    def _words(self) -> Hashes:
        return self._column("words")

    def _s3_fifo(self, weight: float, total: float, now: float) -> Entries:
        policy, queued = S3Fifo(), self._column("queued")[self._order]
        old, new = self._old_and_new(queued)
        marks = self._column("hits")[self._order]
        long = (marks & _LONG) != 0
        policy.grow(len(queued))
        policy._full_before = self.control.time("evicted_at") > 0
        policy._append(policy._short, old[~long[old]])
        policy._append(policy._long, old[long[old]])
        ghost = self._ghost()
        policy._ghost.remember(ghost, max(len(ghost), 1))
        policy.admit(new, self.words(new))
        policy.marks[:-1] = marks & ~_LONG
        victims = policy.victims(weight, total, self)
        self._write(
            "hits", np.maximum(policy.marks[:-1], 0).astype(np.uint8) | np.where(policy._in_long[:-1], _LONG, 0)
        )
        self._requeue(policy, now)
        self._keep_ghost(policy)
        return victims

    def _old_and_new(self, queued: Rows) -> tuple[Entries, Entries]:
        """Return the entries that were there at the last eviction, and those that came since."""
        first = int(np.searchsorted(queued, self.control.time("evicted_at"), side="right"))
        numbers = np.arange(len(queued), dtype=np.int32)
        return numbers[:first], numbers[first:]

    def _requeue(self, policy: S3Fifo, now: float) -> None:
        """Write the order of the queues as times before now, since entries have moved."""
        queued = self._column("queued")[self._order]
        for queue in (policy._short, policy._long):
            entries = queue.all()
            queued[entries] = now - QUEUE_STEP * np.arange(len(entries), 0, -1)
        self._write("queued", queued)

    def _ghost(self) -> Hashes:
        try:
            return np.frombuffer(bytes(self.folder.map(_GHOST)[0]), "<u8")
        except (OSError, ValueError):
            return np.empty(0, np.uint64)

    def _keep_ghost(self, policy: S3Fifo) -> None:
        words = policy._ghost.all()
        self.folder.remove(f"{_GHOST}.new")
        self.folder.write(f"{_GHOST}.new", [np.ascontiguousarray(words, "<u8")])
        self.folder.rename(f"{_GHOST}.new", _GHOST)

    # ── columns over all segments ────────────────────────────────────────────────────────────────────────

    def _column(self, name: str) -> Rows:
        parts = zip(self.segments, self.live, strict=True)
        return np.concatenate([getattr(segment, name)[rows] for segment, rows in parts])

    def _write(self, name: str, values: Rows) -> None:
        """Write a column, which is in the order of the queue."""
        column = np.empty_like(values)
        column[self._order] = values
        for segment, rows, part in zip(self.segments, self.live, np.split(column, self._ends()[:-1]), strict=True):
            getattr(segment, name)[rows] = part

    def _ends(self) -> Rows:
        return np.cumsum([len(rows) for rows in self.live])


def _least_recent(used: Rows, weight: Rows, excess: float) -> Rows:
    """Return the least recently used entries that weigh enough; ties go by position."""
    size = int(min(len(used), max(excess, 1)))
    # Each entry weighs one or more, so as many entries as the excess are enough; only these are sorted.
    oldest = np.argpartition(used, size - 1)[:size] if size < len(used) else np.arange(len(used))
    oldest = oldest[np.argsort(used[oldest], kind="stable")]
    enough = int(np.searchsorted(np.cumsum(weight[oldest]), excess)) + 1
    return oldest[:enough]
