"""`EntryNumbers`: which entry numbers are in use, and which of them a batch or a call has leased."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from lookupcache.cache.entry_columns import NO_ENTRIES
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Mask, Positions

_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(eq=False)
class Lease:
    """The entries that a batch of rows or a call to the source uses, -1 for none.

    They keep their rows until the lease is released, even if they are evicted in the meantime. Compaction may change
    the numbers of entries; it writes the new ones into `entries`, so read them from here each time. ``expired`` and
    ``aging`` are rows of the batch. ``expired`` has one for each entry that must be fetched again before it is used,
    ``aging`` one for each that may be used meanwhile.
    """

    entries: Entries
    expired: Positions = field(default_factory=lambda: _NO_ROWS)
    aging: Positions = field(default_factory=lambda: _NO_ROWS)


class EntryNumbers:
    """Hands out entry numbers, and takes them back when no lease has them any more.

    A number is free, listed (its key can be found), or unlisted. An unlisted one is removed from the cache, but a lease
    may still use it.

    >>> numbers = EntryNumbers()
    >>> numbers.allocate(3)
    array([0, 1, 2], dtype=int32)
    >>> lease = numbers.lease(np.array([1], np.int32))
    >>> numbers.free(np.array([1, 2], np.int32)), numbers.unlisted, numbers.listed_entries()
    (array([2], dtype=int32), array([1], dtype=int32), array([0], dtype=int32))
    """

    def __init__(self) -> None:
        self.size = 0
        self.leases: list[Lease] = []
        self.unlisted = NO_ENTRIES
        self._free = NO_ENTRIES

    @property
    def nbytes(self) -> int:
        return self._free.nbytes

    def allocate(self, count: int) -> Entries:
        """Take free numbers, and new ones from ``size`` on where there are too few."""
        new = max(count - len(self._free), 0)
        numbers = np.arange(self.size, self.size + new, dtype=np.int32)
        entries = np.concatenate([self._free[:count], numbers])
        # A copy, since a slice would keep the memory of the numbers that were just taken.
        self._free, self.size = self._free[count:].copy(), self.size + new
        return entries

    @contextmanager
    def allocating(self, count: int) -> Iterator[Entries]:
        """Allocate numbers for this block; if it fails, they are free again."""
        before = self._free, self.size
        entries = self.allocate(count)
        try:
            yield entries
        except BaseException:
            self._free, self.size = before
            raise

    def lease(self, entries: Entries) -> Lease:
        """Keep entries from being freed until `release`."""
        lease = Lease(entries)
        self.leases.append(lease)
        return lease

    def release(self, lease: Lease) -> None:
        self.leases.remove(lease)

    def unlist(self, entries: Entries) -> None:
        """Note that entries are no longer found; their numbers stay valid until they are passed to `free`."""
        self.unlisted = np.concatenate([self.unlisted, entries])

    def free(self, entries: Entries) -> Entries:
        """Free numbers that are no longer found; return those freed, the leased ones become `unlisted`."""
        return self._free_all(entries, self.unlisted)

    def free_unlisted(self) -> Entries:
        """Free the unlisted numbers that are no longer leased; return them."""
        return self._free_all(self.unlisted, NO_ENTRIES)

    def unlist_all(self) -> None:
        """Note that no entry is found any more, not even those that were being added or removed."""
        used = np.ones(self.size, dtype=np.bool_)
        used[self._free] = False
        self.unlisted = np.flatnonzero(used).astype(np.int32)

    def is_listed(self, entries: Entries) -> Mask:
        """Return which of these entries in use are listed."""
        if not self.unlisted.size:
            return np.ones(len(entries), dtype=np.bool_)
        return ~np.isin(entries, self.unlisted)

    def listed_entries(self) -> Entries:
        listed = np.ones(self.size, dtype=np.bool_)
        listed[self._free] = False
        listed[self.unlisted] = False
        return np.flatnonzero(listed).astype(np.int32)

    def renumber(self, live: Entries) -> None:
        """Number the entries ``live`` 0, 1, 2 … in this order; they are all that are listed or unlisted.

        Leases survive this: an open batch or call knows its entries only by the numbers in its lease, so these are
        rewritten here. The array is replaced rather than changed, because a caller may have sliced the old one.
        """
        # One element more than there are numbers, so that -1 stays -1.
        number = np.full(self.size + 1, -1, dtype=np.int32)
        number[live] = np.arange(len(live))
        leased, unlisted = [number[lease.entries] for lease in self.leases], number[self.unlisted]
        # Nothing from here on needs memory: all leases and parts have the new numbers, or none.
        for lease, entries in zip(self.leases, leased, strict=True):
            lease.entries = entries
        self.unlisted, self.size, self._free = unlisted, len(live), NO_ENTRIES

    def _free_all(self, entries: Entries, unlisted: Entries) -> Entries:
        """Free entries, and return those freed; the leased ones and those that were ``unlisted`` are so after it."""
        leased = self._is_leased(entries)
        if leased.any():
            unlisted = np.concatenate([unlisted, entries[leased]])
            entries = entries[~leased]
        self._free, self.unlisted = np.concatenate([self._free, entries]), unlisted
        return entries

    def _is_leased(self, entries: Entries) -> Mask:
        mask = np.zeros(self.size + 1, dtype=np.bool_)
        for lease in self.leases:
            mask[lease.entries] = True
        return mask[entries]
