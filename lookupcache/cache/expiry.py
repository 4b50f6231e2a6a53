"""`Expiry`: when entries were written, and when they are too old to be used."""

from __future__ import annotations

import math
from copy import copy

import numpy as np
import numpy.typing as npt

from lookupcache.cache.age import Age, Times
from lookupcache.cache.entry_columns import AnyEntries, Numbers, grow_column, renumber_column
from lookupcache.cache.entry_numbers import Lease
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.in_flight import InFlight
from lookupcache.cache.keys import Mask, Positions
from lookupcache.cache.limits import Limits


class Expiry:
    """Write times and deadlines of entries, and the decisions that follow from `Limits`.

    Only the columns that the limits need are stored, and no column where entries never expire. An entry has a deadline
    that counts from its writing (perhaps shorter for a known miss), and an idle deadline from its last use.
    """

    def __init__(self, limits: Limits) -> None:
        self.is_tracked = limits.expire or limits.needs_write_times
        self._limits = limits
        self._age = Age(limits)
        self._expires = limits.expire
        self._has_idle_limit = limits.access_seconds < math.inf
        self._next_sweep = -math.inf
        self._written = np.full(1, math.nan)
        self._deadline = np.full(1, math.inf)
        self._idle_deadline = np.full(1, math.inf)

    @property
    def nbytes(self) -> int:
        times = self._written.nbytes + self._deadline.nbytes if self.is_tracked else 0
        return times + (self._idle_deadline.nbytes if self._has_idle_limit else 0)

    def grow(self, size: int) -> None:
        if self.is_tracked:
            self._written = grow_column(self._written, size, math.nan)
            self._deadline = grow_column(self._deadline, size, math.inf)
        if self._has_idle_limit:
            self._idle_deadline = grow_column(self._idle_deadline, size, math.inf)

    def renumbered(self, live: Entries) -> Expiry:
        times = copy(self)
        if self.is_tracked:
            times._written, times._deadline = (
                renumber_column(self._written, live),
                renumber_column(self._deadline, live),
            )
        if self._has_idle_limit:
            times._idle_deadline = renumber_column(self._idle_deadline, live)
        return times

    def reserve(self, entries: Entries, now: float) -> None:
        """Note new entries that have no rows yet: they are too old to serve if their fetch fails."""
        if self.is_tracked:
            self._deadline[entries] = self._written[entries] = -math.inf
        if self._has_idle_limit:
            self._idle_deadline[entries] = now + self._limits.access_seconds

    def write(
        self, entries: Entries, counts: Numbers | Entries, written: float | Times, deadline: float | Times | None = None
    ) -> None:
        """Note when entries were written, and when they expire.

        Without ``deadline``, they expire by the age limits; ``counts`` are their rows, since known misses have a limit
        of their own.
        """
        if not self.is_tracked:
            return
        self._written[entries] = written
        if self._has_idle_limit:
            # A fetch may take longer than an entry may be unused.
            idle = self._idle_deadline[entries]
            self._idle_deadline[entries] = np.fmax(idle, written + self._limits.access_seconds)
        if deadline is not None:
            self._deadline[entries] = deadline
            return
        self._deadline[entries] = self._age.deadline(written, counts)

    def check(self, lease: Lease, in_flight: InFlight, now: float) -> Mask:
        """Note in a lease which of its entries are to be fetched again; return the rows whose entry is too old."""
        entries, limits = lease.entries, self._limits
        group = in_flight.of(entries)
        if self._has_idle_limit:
            self._use(entries, now)
        written, deadline = (column.take(entries, mode="wrap") for column in (self._written, self._deadline))
        old = now > deadline
        too_old = (now > self._age.last(written, deadline)) & (group == 0)
        if (late := old & (group < 0)).any():
            # Its refresh in the background did not finish before its deadline: from now on a batch waits for it.
            in_flight.require(entries[late])
        # A row that is too old is requested as a new key: listing it here as well would request it twice.
        usable = (group == 0) & ~too_old
        if limits.stale_seconds:
            lease.expired = _first_rows(entries, usable & old)
        if limits.refresh_seconds < math.inf:
            lease.aging = _first_rows(entries, usable & self._age.is_due(written, now) & ~old)
        return too_old

    def is_usable(self, entries: Entries, in_flight: InFlight, now: float) -> Mask:
        """Return which of the entries are being fetched, or have not expired."""
        if not self.is_tracked:
            return np.ones(len(entries), dtype=np.bool_)
        last = self._deadline[entries]
        if self._has_idle_limit:
            last = np.minimum(last, self._idle_deadline[entries])
        return (now <= last) | (in_flight.of(entries) > 0)

    def is_too_stale(self, entries: Entries, now: float) -> Mask:
        """Return which of the entries whose fetch has failed are too old to be served as stale rows."""
        if not self.is_tracked:
            return np.ones(len(entries), dtype=np.bool_)
        too_stale: Mask = now > self._age.last(self._written[entries], self._deadline[entries])
        return too_stale

    def is_sweep_due(self, now: float) -> bool:
        """Return whether it is time for `sweep`: once per shortest lifetime."""
        return self._expires and now >= self._next_sweep

    def sweep(self, listed: Entries, in_flight: InFlight, now: float) -> Entries:
        """Return which entries are too old; without it, keys that are never requested again would stay."""
        limits = self._limits
        last = self._deadline[listed]
        if self._has_idle_limit:
            last = np.minimum(last, self._idle_deadline[listed])
        expired = listed[(now > self._age.last(self._written[listed], last)) & (in_flight.of(listed) == 0)]
        self._next_sweep = now + min(limits.write_seconds, limits.miss_seconds, limits.access_seconds)
        return expired

    def age(self, entries: AnyEntries, now: float) -> npt.NDArray[np.float64]:
        """Return how long ago each entry was written, in seconds; NaN for -1."""
        return np.maximum(now - self._written.take(entries, mode="wrap"), 0.0)

    def count_stale(self, entries: Entries, now: float) -> int:
        """Return how many of these entries are past their deadline."""
        return int(np.count_nonzero(now > self._deadline[entries])) if self.is_tracked else 0

    def _use(self, entries: Entries, now: float) -> None:
        """End the lifetime of entries that were idle for too long, and restart the idle time of the others."""
        idle = now > self._idle_deadline.take(entries, mode="wrap")
        self._deadline[entries[idle]] = -math.inf
        self._idle_deadline[entries] = now + self._limits.access_seconds
        # Rows without an entry (-1) have just written to the last element, which must never expire.
        self._idle_deadline[-1] = math.inf


def _first_rows(entries: Entries, mask: Mask) -> Positions:
    """Return one row for each different entry among the rows of the mask."""
    rows = np.flatnonzero(mask)
    return rows[np.unique(entries[rows], return_index=True)[1]] if rows.size else rows
