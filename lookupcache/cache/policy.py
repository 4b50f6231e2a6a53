"""Which entries go first where there are too many: least recently used, by S3-FIFO, or by SIEVE.

A policy knows entries by their numbers and holds what it must remember of them in columns over those numbers;
keys, rows and ages are not its business. The columnar cache, the cache of single keys and the prediction of hit
rates run the same policies.

    policy (contract, LRU) ◄─ policy_queues (SIEVE, S3-FIFO) ─► line (order of coming) · ghost (keys that left)
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from lookupcache.cache.entry_columns import NO_ENTRIES, Numbers, grown, renumbered
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Hashes

__all__ = ["Holder", "OneEach", "Policy", "grown", "parted"]

_NEVER = -1


class Holder(Protocol):
    """Whose entries a policy chooses from."""

    def weights(self, entries: Entries) -> Numbers:
        """Return what each entry weighs, 1 or more."""

    def words(self, entries: Entries) -> Hashes:
        """Return the word that stands for the key of each entry."""


class Policy:
    """The least recently used go first; also what other policies build on.

    An entry is listed from `admit` until `forget`, or until `victims` returns it. `touch` takes a batch in the
    order of its rows, -1 for none; the touch by the batch that brought an entry is no hit. The last place of every
    column belongs to no entry.

    >>> policy = Policy()
    >>> policy.grow(8)
    >>> policy.admit(np.array([0, 1, 2]), np.array([70, 71, 72], np.uint64))
    >>> policy.touch(np.array([0, 1, 2])), policy.touch(np.array([0, -1, 0]))
    (3, 1)
    >>> policy.victims(1, 3, OneEach())
    array([1], dtype=int32)
    """

    def __init__(self) -> None:
        self.used = np.full(1, _NEVER, dtype=np.int64)
        self._clock = 0
        self._oldest = NO_ENTRIES
        self._oldest_used = np.empty(0, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.used.nbytes + self._oldest.nbytes + self._oldest_used.nbytes

    def grow(self, size: int) -> None:
        """Make room for entries below ``size``."""
        self.used = grown(self.used, size, _NEVER)

    def admit(self, entries: Entries, words: Hashes) -> None:
        """List new entries, in the order of their coming; ``words`` stand for their keys."""
        self.used[entries] = self._clock

    def touch(self, entries: Entries) -> int:
        """Note the use of a batch's entries; return how many different ones there are.

        Of a row's writes to one place numpy lets the last win, so each entry bears the number of one row.
        """
        numbers = np.arange(self._clock, self._clock + len(entries))
        self._clock += len(entries)
        self.used[entries] = numbers
        last = np.count_nonzero(self.used.take(entries, mode="wrap") == numbers)
        return int(last) - bool(len(entries) and entries.min() < 0)

    def forget(self, entries: Entries) -> None:
        """Take entries off the list."""
        self.used[entries] = _NEVER

    def victims(self, weight: float, held: float, holder: Holder) -> Entries:
        """Choose entries that weigh at least ``weight`` together, of all that weigh ``held``; list them no more."""
        chosen = [NO_ENTRIES]
        while weight > 0:
            entries = self._next_oldest(weight)
            if not entries.size:
                break
            entries, rest, gone = parted(entries, weight, holder)
            self._put_back(rest)
            weight -= gone
            chosen.append(entries)
            self.forget(entries)
        return np.concatenate(chosen)

    def renumber(self, live: Entries) -> None:
        """Let the entries ``live`` be 0, 1, 2 …; there are no others."""
        self.used = renumbered(self.used, live)
        self._oldest, self._oldest_used = self._oldest[:0].copy(), self._oldest_used[:0].copy()

    def _next_oldest(self, weight: float) -> Entries:
        """Return some of the least recently used entries, oldest first.

        They come from a queue in order of use. An entry used since it was queued has another time of use
        and is passed over; whatever is not in the queue is more recent than all that is.
        """
        while True:
            if not self._oldest.size:
                self._queue_oldest(weight)
                if not self._oldest.size:
                    return NO_ENTRIES
            size = int(min(len(self._oldest), max(2 * weight, 16)))
            entries, used = self._oldest[:size], self._oldest_used[:size]
            self._oldest, self._oldest_used = self._oldest[size:], self._oldest_used[size:]
            still = self.used[entries] == used
            if still.any():
                return entries[still]

    def _queue_oldest(self, weight: float) -> None:
        live = np.flatnonzero(self.used[:-1] >= 0).astype(np.int32)
        size = int(min(len(live), max(4 * weight, len(live) // 8, 64)))
        if size < len(live):
            live = live[np.argpartition(self.used[live], size - 1)[:size]]
        order = np.argsort(self.used[live])
        self._oldest = live[order]
        self._oldest_used = self.used[self._oldest]

    def _put_back(self, entries: Entries) -> None:
        self._oldest = np.concatenate([entries, self._oldest])
        self._oldest_used = np.concatenate([self.used[entries], self._oldest_used])


class OneEach:
    """A holder of entries that all weigh one, and whose words are their numbers."""

    def weights(self, entries: Entries) -> Numbers:
        """Return ones."""
        return np.ones(len(entries), dtype=np.int64)

    def words(self, entries: Entries) -> Hashes:
        """Return the numbers."""
        return entries.astype(np.uint64)


def parted(entries: Entries, weight: float, holder: Holder) -> tuple[Entries, Entries, float]:
    """Part entries into the first ones that weigh enough and the rest; also return what the first ones weigh."""
    total = np.cumsum(holder.weights(entries))
    enough = min(int(np.searchsorted(total, weight)) + 1, len(entries))
    return entries[:enough], entries[enough:], float(total[enough - 1]) if enough else 0.0
