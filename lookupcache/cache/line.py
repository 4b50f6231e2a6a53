"""`Line`: a queue of entries in the order of insertion, with a hand that moves along it."""

from __future__ import annotations

import numpy as np

from lookupcache.cache.hash_index import Entries

_LEFT = np.int32(-1)


class Line:
    """A queue of entries in the order of insertion, for the policies SIEVE and S3-FIFO.

    An entry that is removed leaves a gap, because moving all entries behind it would cost too much; gaps are closed
    when the array is full, and after compaction. ``hand`` is a position: `ahead` returns the entries from there on.

    SIEVE and S3-FIFO evict before they insert, but the cache adds the keys of a batch first and evicts afterwards. So
    new entries are only expected at first, and enter the queue with `let_in` after the entries to evict have been
    chosen among the old ones. Otherwise the hand would go on to the new entries wherever all old ones have been hit,
    and evict them, since they cannot have been hit yet.

    ``place`` is a column over entry numbers that the caller owns; the queue writes into it at which position each
    entry is, -1 while it is expected, so that `leave` need not search.

    >>> line, place = Line(), np.zeros(9, np.int32)
    >>> line.expect(np.array([4, 7, 5], np.int32), place)
    >>> line.let_in(place)
    >>> line.leave(np.array([7], np.int32), place)
    >>> line.ahead(3), len(line)
    (array([ 4, -1,  5], dtype=int32), 2)
    """

    def __init__(self) -> None:
        self._slots = np.empty(64, dtype=np.int32)
        self._end = 0
        self._live = 0
        self._coming = np.empty(0, dtype=np.int32)
        self.hand = 0

    def __len__(self) -> int:
        return self._live

    @property
    def nbytes(self) -> int:
        """Bytes used."""
        return self._slots.nbytes + self._coming.nbytes

    @property
    def coming(self) -> int:
        """How many entries are expected."""
        return len(self._coming)

    def go_on(self, places: int) -> None:
        """Move the hand on; where no entry follows, move it back to the start.

        This happens at once rather than with the next use of the hand: entries that are added in the meantime are
        newer than all, and the hand has to visit the old ones at the start before them.
        """
        self.hand += places
        if self._slots[self.hand : self._end].max(initial=_LEFT) < 0:
            self.hand = 0

    def ahead(self, count: int) -> Entries:
        """Return the entries at the next ``count`` positions from the hand on, -1 for gaps."""
        return self._slots[self.hand : min(self.hand + count, self._end)]

    def expect(self, entries: Entries, place: Entries) -> None:
        """Add the entries that were expected before, and expect these."""
        self.let_in(place)
        self._coming = entries.astype(np.int32)
        place[entries] = _LEFT

    def let_in(self, place: Entries) -> None:
        """Add the expected entries at the end."""
        if self._coming.size:
            self.join(self._coming, place)
            self._coming = self._coming[:0].copy()

    def join(self, entries: Entries, place: Entries) -> None:
        """Add entries at the end."""
        if self._end + len(entries) > len(self._slots):
            self._close_gaps(place, len(entries))
        self._slots[self._end : self._end + len(entries)] = entries
        place[entries] = np.arange(self._end, self._end + len(entries), dtype=np.int32)
        self._end += len(entries)
        self._live += len(entries)

    def leave(self, entries: Entries, place: Entries) -> None:
        """Remove entries that are in the queue or expected."""
        positions = place[entries]
        if self._coming.size and (positions < 0).any():
            self._coming = self._coming[~np.isin(self._coming, entries)]
            positions = positions[positions >= 0]
        self._slots[positions] = _LEFT
        self._live -= len(positions)

    def all(self) -> Entries:
        """Return the entries in the queue, in order."""
        slots = self._slots[: self._end]
        return slots[slots >= 0]

    def renumber(self, number: Entries, place: Entries) -> None:
        """Replace each entry by its new ``number``, and close the gaps; ``place`` is by the new numbers."""
        slots = self._slots[: self._end]
        self._slots[: self._end] = np.where(slots >= 0, number[slots], _LEFT)
        self._close_gaps(place, 0)
        self._coming = number[self._coming]
        place[self._coming] = _LEFT

    def _close_gaps(self, place: Entries, more: int) -> None:
        """Move all entries together, the hand with them, and make space for ``more``."""
        slots = self._slots[: self._end]
        self.hand = int(np.count_nonzero(slots[: self.hand] >= 0))
        live = slots[slots >= 0]
        self._slots = np.empty(max((len(live) + more) * 3 // 2, 64), dtype=np.int32)
        self._slots[: len(live)] = live
        self._end = len(live)
        place[live] = np.arange(len(live), dtype=np.int32)
