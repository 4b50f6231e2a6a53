"""`InFlight`: which entries are being fetched from the source, and by which call group."""

from __future__ import annotations

from copy import copy

import numpy as np

from lookupcache.arrays import distinct
from lookupcache.cache.entry_columns import grow_column, renumber_column
from lookupcache.cache.hash_index import Entries


class InFlight:
    """Marks the entries that are being fetched with the number of their in-flight call group.

    The mark is 0 for an entry that is not being fetched. A positive number is that of a group for which a batch that
    finds the entry has to wait. A negative one means that the fetch runs in the background, and the batch may use the
    cached rows.

    >>> in_flight = InFlight()
    >>> in_flight.grow(4)
    >>> in_flight.start(np.array([1], np.int32), 7)
    >>> in_flight.start(np.array([2], np.int32), -8)
    >>> in_flight.waits(np.array([0, 1, 2, -1], np.int32))
    {7}
    """

    def __init__(self) -> None:
        self.pending = 0
        self._group = np.zeros(1, dtype=np.int32)

    @property
    def nbytes(self) -> int:
        return self._group.nbytes

    def grow(self, size: int) -> None:
        self._group = grow_column(self._group, size, 0)

    def renumbered(self, live: Entries) -> InFlight:
        marks = copy(self)
        marks._group = renumber_column(self._group, live)
        return marks

    def start(self, entries: Entries, group: int) -> None:
        """Mark entries that are now being fetched; ``group`` is negative for a fetch in the background."""
        self._group[entries] = group
        self.pending += len(entries)

    def finish(self, entries: Entries) -> None:
        """Clear the marks of entries whose fetch has succeeded or failed; those that have none stay as they are."""
        ended = int(np.count_nonzero(self._group[entries]))
        self._group[entries] = 0
        self.pending -= ended

    def hand_over(self, entries: Entries, group: int) -> None:
        """Mark entries with another group, whether they were being fetched or not."""
        new = len(entries) - int(np.count_nonzero(self._group[entries]))
        self._group[entries] = group
        self.pending += new

    def recount(self) -> None:
        """Count the entries that are being fetched anew."""
        self.pending = int(np.count_nonzero(self._group[:-1]))

    def of(self, entries: Entries) -> Entries:
        """Return the mark of each entry, 0 for -1."""
        return self._group.take(entries, mode="wrap")

    def require(self, entries: Entries) -> None:
        """Make batches wait for entries that were being fetched in the background.

        An entry may occur several times: numpy reads all marks before it writes any, so each is negated once.
        """
        self._group[entries] *= -1

    def waits(self, entries: Entries) -> set[int]:
        """Return the call groups that a batch with these entries has to wait for."""
        if not self.pending:
            return set()
        groups = self.of(entries)
        return set(distinct(groups[groups > 0]).tolist())
