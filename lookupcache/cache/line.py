"""`Line`: entries in the order of their coming, and a hand that goes along them."""

from __future__ import annotations

import numpy as np

from lookupcache.cache.hash_index import Entries

_LEFT = np.int32(-1)


class Line:
    """Entries in the order of their coming; who leaves leaves a gap, and gaps are closed now and then.

    ``hand`` is a place: `ahead` shows who stands from there on. Who is expected stands in the line only when it is let
    in: room is made for the new among the old. ``place``, of the caller, is a column over entry numbers where the
    line notes who stands where.

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
        """Bytes held."""
        return self._slots.nbytes + self._coming.nbytes

    @property
    def coming(self) -> int:
        """How many are expected."""
        return len(self._coming)

    def go_on(self, places: int) -> None:
        """Move the hand on; where nobody stands further on it goes to the beginning, before anybody else joins."""
        self.hand += places
        if self._slots[self.hand : self._end].max(initial=_LEFT) < 0:
            self.hand = 0

    def ahead(self, count: int) -> Entries:
        """Return who stands on the next ``count`` places from the hand on, -1 for gaps."""
        return self._slots[self.hand : min(self.hand + count, self._end)]

    def expect(self, entries: Entries, place: Entries) -> None:
        """Let those in who were expected before, and expect these."""
        self.let_in(place)
        self._coming = entries.astype(np.int32)
        place[entries] = _LEFT

    def let_in(self, place: Entries) -> None:
        """Let those who are expected stand at the end."""
        if self._coming.size:
            self.join(self._coming, place)
            self._coming = self._coming[:0].copy()

    def join(self, entries: Entries, place: Entries) -> None:
        """Let entries stand at the end."""
        if self._end + len(entries) > len(self._slots):
            self._close_up(place, len(entries))
        self._slots[self._end : self._end + len(entries)] = entries
        place[entries] = np.arange(self._end, self._end + len(entries), dtype=np.int32)
        self._end += len(entries)
        self._live += len(entries)

    def leave(self, entries: Entries, place: Entries) -> None:
        """Let entries that stand here, or are expected, leave."""
        places = place[entries]
        if self._coming.size and (places < 0).any():
            self._coming = self._coming[~np.isin(self._coming, entries)]
            places = places[places >= 0]
        self._slots[places] = _LEFT
        self._live -= len(places)

    def all(self) -> Entries:
        """Return who stands here, in order."""
        slots = self._slots[: self._end]
        return slots[slots >= 0]

    def renumber(self, number: Entries, place: Entries) -> None:
        """Give everyone a new number, and close up; ``place`` is by the new numbers."""
        slots = self._slots[: self._end]
        self._slots[: self._end] = np.where(slots >= 0, number[slots], _LEFT)
        self._close_up(place, 0)
        self._coming = number[self._coming]
        place[self._coming] = _LEFT

    def _close_up(self, place: Entries, room: int) -> None:
        slots = self._slots[: self._end]
        self.hand = int(np.count_nonzero(slots[: self.hand] >= 0))
        live = slots[slots >= 0]
        self._slots = np.empty(max((len(live) + room) * 3 // 2, 64), dtype=np.int32)
        self._slots[: len(live)] = live
        self._end = len(live)
        place[live] = np.arange(len(live), dtype=np.int32)
