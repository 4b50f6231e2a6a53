"""Eviction policies: which entries are removed first when the cache is full (LRU or S3-FIFO).

A policy knows entries by their numbers and stores what it needs in columns indexed by them; keys, rows and ages are
unknown to it. The columnar cache, the host's cache and the prediction of hit rates use them; `key_queues` has the same
policies for single keys.

    policy (contract, LRU) ◄─ policy_queues (S3-FIFO, and each policy by its name)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Protocol, Self

import numpy as np

from lookupcache.cache.entry_columns import NO_ENTRIES, Numbers, grow_column, renumber_column
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Hashes

_NEVER = -1


class EntryInfo(Protocol):
    """Tells a policy about the entries that it chooses from."""

    def weights(self, entries: Entries) -> Numbers:
        """Return the weight of each entry, 1 or more."""

    def words(self, entries: Entries) -> Hashes:
        """Return the word that stands for the key of each entry."""


class Policy(ABC):
    """Lists entries, notes their uses, and chooses which to evict.

    An entry is listed from `admit` until `forget`, or until `victims` returns it. `touch` takes the entries of a
    batch in the order of its rows, -1 for none. The first touch, by the batch that added the entry, is not a hit.
    The entries of a batch are admitted before others are evicted for them: a policy that would choose the newest first
    has to keep those of the last `admit` until the next.
    Columns are as in `EntryColumns`; ``used`` is the time of the last use, counted in rows.
    """

    def __init__(self) -> None:
        self.used = np.full(1, _NEVER, dtype=np.int64)
        self.clock = 0
        """How many rows batches have touched; the time of the next use."""

    @property
    def nbytes(self) -> int:
        return self.used.nbytes

    def grow(self, size: int) -> None:
        self.used = grow_column(self.used, size, _NEVER)

    def admit(self, entries: Entries, words: Hashes) -> None:
        """List new entries, in the order of insertion; ``words`` stand for their keys."""
        self.used[entries] = self.clock

    def touch(self, entries: Entries) -> int:
        """Record that a batch uses entries; return the number of distinct entries.

        If an entry has several rows, numpy keeps the last number that is written for it. So as many rows read
        their own number back as there are different entries; no sorting is needed to count them.
        """
        numbers = np.arange(self.clock, self.clock + len(entries))
        self.clock += len(entries)
        self.used[entries] = numbers
        distinct = np.count_nonzero(self.used.take(entries, mode="wrap") == numbers)
        # Rows without an entry (-1) have written to the last element, which counts as one entry too many.
        return int(distinct) - bool(len(entries) and entries.min() < 0)

    def forget(self, entries: Entries) -> None:
        """Remove entries from the list."""
        self.used[entries] = _NEVER

    @abstractmethod
    def victims(self, weight: float, total: float, info: EntryInfo) -> Entries:
        """Choose entries that weigh at least ``weight`` of ``total``, what all listed ones weigh, and unlist them."""

    def renumbered(self, live: Entries) -> Self:
        """Return this policy with the entries ``live`` numbered 0, 1, 2 … in this order; no others are listed."""
        policy = copy(self)
        policy.used = renumber_column(self.used, live)
        return policy


class Lru(Policy):
    """Evicts the least recently used entries first.

    `victims` needs the entries in the order of ``used``, but sorting all of them for each batch would cost far more
    than the batch itself. So a part of them, the oldest, is sorted into a queue that lasts for several batches.

    >>> policy = Lru()
    >>> policy.grow(8)
    >>> policy.admit(np.array([0, 1, 2]), np.array([70, 71, 72], np.uint64))
    >>> policy.touch(np.array([0, 1, 2])), policy.touch(np.array([0, -1, 0]))
    (3, 1)
    >>> policy.victims(1, 3, OneEach())
    array([1], dtype=int32)
    """

    def __init__(self) -> None:
        super().__init__()
        self._empty_queue()

    def _empty_queue(self) -> None:
        self._oldest, self._oldest_used = NO_ENTRIES, np.empty(0, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._oldest.nbytes + self._oldest_used.nbytes

    def victims(self, weight: float, total: float, info: EntryInfo) -> Entries:
        chosen = [NO_ENTRIES]
        while weight > 0:
            entries = self._next_oldest(weight)
            if not entries.size:
                break
            entries, rest, chosen_weight = split_by_weight(entries, weight, info)
            self._put_back(rest)
            weight -= chosen_weight
            chosen.append(entries)
            self.forget(entries)
        return np.concatenate(chosen)

    def renumbered(self, live: Entries) -> Self:
        policy = super().renumbered(live)
        # It has old numbers; the next eviction fills it.
        policy._empty_queue()
        return policy

    def _next_oldest(self, weight: float) -> Entries:
        """Return some of the least recently used entries, oldest first.

        They come from the queue. An entry that was used, removed or replaced since it was queued has another time of
        use now and is skipped. All entries that are not in the queue were used later than those in it. So the
        first one of the queue that is left is always the least recently used of all.
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
        """Fill the queue with at least an eighth of all entries, so that the pass over all of them is rare."""
        live = np.flatnonzero(self.used[:-1] >= 0).astype(np.int32)
        size = int(min(len(live), max(4 * weight, len(live) // 8, 64)))
        if size < len(live):
            # Selecting the oldest takes linear time; only these are then sorted.
            live = live[np.argpartition(self.used[live], size - 1)[:size]]
        order = np.argsort(self.used[live])
        self._oldest = live[order]
        self._oldest_used = self.used[self._oldest]

    def _put_back(self, entries: Entries) -> None:
        """Return entries that were not needed to the front of the queue."""
        self._oldest = np.concatenate([entries, self._oldest])
        self._oldest_used = np.concatenate([self.used[entries], self._oldest_used])


class OneEach:
    """Tells a policy that all entries weigh one, and that their words are their numbers."""

    def weights(self, entries: Entries) -> Numbers:
        return np.ones(len(entries), dtype=np.int64)

    def words(self, entries: Entries) -> Hashes:
        return entries.astype(np.uint64)


def split_by_weight(entries: Entries, weight: float, info: EntryInfo) -> tuple[Entries, Entries, float]:
    """Split entries into the first ones that weigh enough and the rest; also return the weight of the first ones."""
    sums = np.cumsum(info.weights(entries))
    enough = min(int(np.searchsorted(sums, weight)) + 1, len(entries))
    return entries[:enough], entries[enough:], float(sums[enough - 1]) if enough else 0.0
