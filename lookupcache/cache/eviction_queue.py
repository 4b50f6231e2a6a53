"""`EvictionQueue`: entries in the order of insertion, with a hand that moves along them."""

from __future__ import annotations

from copy import copy

import numpy as np

from lookupcache.cache.hash_index import Entries

_GAP = np.int32(-1)


class EvictionQueue:
    """A queue of entries in the order of insertion, for the policy S3-FIFO.

    An entry that is removed leaves a gap, because moving all later entries would cost too much. Gaps are closed
    when the array is full, and after compaction. ``hand`` is a position: `peek` returns the entries from there on.

    S3-FIFO evicts before it inserts, but the cache adds the keys of a batch first and evicts afterwards. So
    `defer` keeps new entries out of the queue until `append_deferred`, after the entries to evict have been chosen
    among the old ones. Otherwise the hand would reach the new entries whenever all old ones have been hit, and evict
    them, since they cannot have been hit yet.

    ``positions`` is a column over entry numbers that the caller owns. The queue writes the position of each entry into
    it, -1 while it is deferred, so that `remove` need not search.

    >>> queue, positions = EvictionQueue(), np.zeros(9, np.int32)
    >>> queue.defer(np.array([4, 7, 5], np.int32), positions)
    >>> queue.append_deferred(positions)
    >>> queue.remove(np.array([7], np.int32), positions)
    >>> queue.peek(3), len(queue)
    (array([ 4, -1,  5], dtype=int32), 2)
    """

    def __init__(self) -> None:
        self._slots = np.empty(64, dtype=np.int32)
        self._end = 0
        self._live = 0
        self._deferred = np.empty(0, dtype=np.int32)
        self.hand = 0

    def __len__(self) -> int:
        return self._live

    @property
    def nbytes(self) -> int:
        """Bytes used."""
        return self._slots.nbytes + self._deferred.nbytes

    @property
    def deferred_count(self) -> int:
        """How many entries are deferred."""
        return len(self._deferred)

    def peek(self, count: int) -> Entries:
        """Return the entries at the next ``count`` positions from the hand on, -1 for gaps."""
        return self._slots[self.hand : min(self.hand + count, self._end)]

    def defer(self, entries: Entries, positions: Entries) -> None:
        """Append the entries that were deferred before, and defer these."""
        self.append_deferred(positions)
        self._deferred = entries.astype(np.int32)
        positions[entries] = _GAP

    def append_deferred(self, positions: Entries) -> None:
        """Append the deferred entries."""
        if self._deferred.size:
            self.append(self._deferred, positions)
            self._deferred = self._deferred[:0].copy()

    def append(self, entries: Entries, positions: Entries) -> None:
        """Append entries."""
        if self._end + len(entries) > len(self._slots):
            self._close_gaps(positions, len(entries))
        self._slots[self._end : self._end + len(entries)] = entries
        positions[entries] = np.arange(self._end, self._end + len(entries), dtype=np.int32)
        self._end += len(entries)
        self._live += len(entries)

    def remove(self, entries: Entries, positions: Entries) -> None:
        """Remove entries that are in the queue or deferred."""
        at = positions[entries]
        if self._deferred.size and (at < 0).any():
            self._deferred = self._deferred[~np.isin(self._deferred, entries)]
            at = at[at >= 0]
        self._slots[at] = _GAP
        self._live -= len(at)

    def all(self) -> Entries:
        """Return the entries in the queue, in order."""
        slots = self._slots[: self._end]
        return slots[slots >= 0]

    def renumbered(self, number: Entries, positions: Entries) -> EvictionQueue:
        """Return a queue with the new ``number`` of each entry, without gaps; ``positions`` is by the new numbers."""
        queue, slots = copy(self), self._slots[: self._end]
        queue._slots = np.where(slots >= 0, number[slots], _GAP)
        queue._close_gaps(positions, 0)
        queue._deferred = number[self._deferred]
        positions[queue._deferred] = _GAP
        return queue

    def _close_gaps(self, positions: Entries, more: int) -> None:
        """Move all entries together, the hand with them, and make space for ``more``."""
        slots = self._slots[: self._end]
        # The hand stays before the same entry: as many entries precede it as before.
        self.hand = int(np.count_nonzero(slots[: self.hand] >= 0))
        live = slots[slots >= 0]
        self._slots = np.empty(max((len(live) + more) * 3 // 2, 64), dtype=np.int32)
        self._slots[: len(live)] = live
        self._end = len(live)
        positions[live] = np.arange(len(live), dtype=np.int32)
