"""S3-FIFO: entries are in queues, and a hit only increases a mark. Also the table of all policies.

Source: Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), with the sizes and thresholds that
libCacheSim has by default.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Self

import numpy as np

from lookupcache.cache.entry_columns import NO_ENTRIES, grow_column
from lookupcache.cache.hash_index import Entries, HashIndex
from lookupcache.cache.keys import Hashes, Mask
from lookupcache.cache.policy import EntryInfo, Lru, Policy, split_by_weight

_GAP = np.int32(-1)
_NEW = np.int8(-1)
SMALL_PART = 0.1
GHOST_PART = 0.9
PROMOTED = 2
LEAST_AHEAD = 16


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
        if self._deferred.size:
            self.append(self._deferred, positions)
            self._deferred = self._deferred[:0].copy()

    def append(self, entries: Entries, positions: Entries) -> None:
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


class Ghost:
    """The words of the keys that were evicted last, without their rows: the ghost queue of S3-FIFO.

    A ring buffer in order of eviction, in which a new word overwrites the oldest, with a hash index over it.

    >>> ghost = Ghost()
    >>> ghost.remember(np.array([50, 60, 70], np.uint64), most=2)
    >>> ghost.recall(np.array([50, 70], np.uint64)), ghost.recall(np.array([70], np.uint64))
    (array([False,  True]), array([False]))
    """

    def __init__(self) -> None:
        self._index = HashIndex()
        self._ring = np.empty(0, dtype=np.uint64)
        self._is_used = np.empty(0, dtype=np.bool_)
        self._next = 0

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + self._ring.nbytes + self._is_used.nbytes

    def remember(self, words: Hashes, most: int) -> None:
        """Add distinct words that are not here; the last ``most`` are kept, or up to a third more."""
        # Resizing copies the ring, and ``most`` varies a little from batch to batch: it may be somewhat too long.
        if not len(self._ring) * 3 // 4 <= most <= len(self._ring):
            self._resize(most)
        words = words[-len(self._ring) :] if len(self._ring) else words[:0]
        positions = ((self._next + np.arange(len(words))) % max(len(self._ring), 1)).astype(np.int32)
        self._index.remove(positions[self._is_used[positions]])
        self._ring[positions], self._is_used[positions] = words, True
        self._index.insert(words, positions)
        self._next = (self._next + len(words)) % max(len(self._ring), 1)

    def recall(self, words: Hashes) -> Mask:
        """Return which of these distinct words are here, and remove them."""
        positions = self._index.find(words)
        found = positions >= 0
        self._index.remove(positions[found])
        self._is_used[positions[found]] = False
        return found

    def all(self) -> Hashes:
        """Return the words, the oldest first."""
        oldest_first = np.roll(np.arange(len(self._ring)), -self._next)
        return self._ring[oldest_first[self._is_used[oldest_first]]]

    def _resize(self, most: int) -> None:
        words = self.all()
        kept = words[max(len(words) - most, 0) :]
        self._index.clear()
        self._ring = np.empty(most, dtype=np.uint64)
        self._is_used = np.zeros(most, dtype=np.bool_)
        self._ring[: len(kept)], self._is_used[: len(kept)] = kept, True
        self._index.insert(kept, np.arange(len(kept), dtype=np.int32))
        self._next = len(kept) % max(most, 1)


class S3Fifo(Policy):
    """S3-FIFO: a short queue for new keys, and a long one for keys that were hit there or were added again.

    The entry at the head of the short queue (a tenth of all keys) is evicted, unless it was hit in two batches. Then it
    moves to the long queue. There its mark is decreased each time it reaches the head; without a mark, it is evicted. A
    key that was evicted from the short queue and is added again enters the long queue. It does not if evictions since
    then were nine tenths of the cache.

    Each batch that uses an entry increases its mark by one, up to ``most``; the batch that adds it from -1 to 0.

    >>> from lookupcache.cache.policy import OneEach
    >>> policy = S3Fifo()
    >>> policy.grow(8)
    >>> policy.admit(np.array([0, 1], np.int32), np.array([0, 1], np.uint64))
    >>> policy.victims(1, 2, OneEach())
    array([0], dtype=int32)
    >>> policy.admit(np.array([0], np.int32), np.array([0], np.uint64))
    >>> policy.victims(1, 2, OneEach())
    array([1], dtype=int32)
    """

    most = np.int8(3)

    def __init__(self) -> None:
        super().__init__()
        self.marks = np.full(1, _NEW, dtype=np.int8)
        self.positions = np.zeros(1, dtype=np.int32)
        self._short, self._long = EvictionQueue(), EvictionQueue()
        self._ghost = Ghost()
        self._in_long = np.zeros(1, dtype=np.bool_)
        self._full_before = False

    @property
    def nbytes(self) -> int:
        parts = (self.marks, self.positions, self._in_long, self._short, self._long, self._ghost)
        return super().nbytes + sum(part.nbytes for part in parts)

    def grow(self, size: int) -> None:
        super().grow(size)
        self.marks, self.positions = grow_column(self.marks, size, -1), grow_column(self.positions, size, 0)
        self._in_long = grow_column(self._in_long, size, 0)

    def admit(self, entries: Entries, words: Hashes) -> None:
        """Add new entries to the short queue, and those whose keys were evicted recently to the long one."""
        super().admit(entries, words)
        self.marks[entries] = _NEW
        known = self._ghost.recall(words)
        self._in_long[entries] = known
        self._short.defer(entries[~known], self.positions)
        self._long.defer(entries[known], self.positions)

    def touch(self, entries: Entries) -> int:
        """Mark the entries that a batch uses."""
        self.marks[entries] = np.minimum(self.marks.take(entries, mode="wrap") + np.int8(1), self.most)
        return super().touch(entries)

    def forget(self, entries: Entries) -> None:
        super().forget(entries)
        long = self._in_long[entries]
        self._long.remove(entries[long], self.positions)
        self._short.remove(entries[~long], self.positions)

    def victims(self, weight: float, total: float, info: EntryInfo) -> Entries:
        """Evict from the head of the long queue if it is too long, otherwise from the short one."""
        kept = round(self._listed_count * max(1 - weight / total, 0))
        short = max(int(SMALL_PART * kept), 1)
        if not self._full_before:
            self._full_before = True
            self._fill_long(short)
        chosen = [NO_ENTRIES]
        while weight > 0 and self._listed_count:
            if not len(self._short) + len(self._long):
                self._append_deferred()
            over = len(self._long) - (max(kept - short, 0) if len(self._short) else 0)
            if over > 0:
                entries, evicted_weight = self._from_long(weight, over, info)
            else:
                entries, evicted_weight = self._from_short(weight, info)
                self._ghost.remember(info.words(entries), int(GHOST_PART * kept))
            weight -= evicted_weight
            chosen.append(entries)
        self._append_deferred()
        return np.concatenate(chosen)

    def renumbered(self, live: Entries) -> Self:
        policy, numbers, order = super().renumbered(live), numbers_of(live), np.append(live, -1)
        policy.marks, policy.positions = self.marks[order], self.positions[order]
        policy._in_long = self._in_long[order]
        policy._short, policy._long = (
            queue.renumbered(numbers, policy.positions) for queue in (self._short, self._long)
        )
        return policy

    @property
    def _listed_count(self) -> int:
        return len(self._short) + len(self._long) + self._short.deferred_count + self._long.deferred_count

    def _append_deferred(self) -> None:
        self._short.append_deferred(self.positions)
        self._long.append_deferred(self.positions)

    def _fill_long(self, short: int) -> None:
        """Move all but the first entries to the long queue: before the cache was full, all were added to the short."""
        later = self._short.all()[short:]
        self._short.remove(later, self.positions)
        self._append(self._long, later)

    def _from_short(self, weight: float, info: EntryInfo) -> tuple[Entries, float]:
        ahead = self._short.peek(max(int(2 * weight), LEAST_AHEAD))
        idle = ahead[(ahead >= 0) & (self.marks.take(ahead, mode="wrap") < PROMOTED)]
        entries, rest, evicted_weight = split_by_weight(idle, weight, info)
        passed = self._advance(self._short, ahead, rest)
        self.forget(entries)
        # Chosen entries have lower marks, so they are not among those that move.
        hit = passed[self.marks[passed] >= PROMOTED]
        self._short.remove(hit, self.positions)
        self.marks[hit] = 0
        self._append(self._long, hit)
        return entries, evicted_weight

    def _from_long(self, weight: float, over: int, info: EntryInfo) -> tuple[Entries, float]:
        ahead = self._long.peek(max(int(2 * min(weight, over)), LEAST_AHEAD))
        idle = ahead[(ahead >= 0) & (self.marks.take(ahead, mode="wrap") <= 0)]
        entries, rest, evicted_weight = split_by_weight(idle[:over], weight, info)
        # Idle entries after the first ``over`` stay too, so the hand stops at the first that was not chosen.
        rest = idle[len(entries) :]
        passed = self._advance(self._long, ahead, rest)
        self.forget(entries)
        hit = passed[self.marks[passed] > 0]
        self._long.remove(hit, self.positions)
        self.marks[hit] -= 1
        self._append(self._long, hit)
        return entries, evicted_weight

    def _advance(self, queue: EvictionQueue, ahead: Entries, rest: Entries) -> Entries:
        """Move a queue's hand to the first of the rest; return the entries that it passed."""
        step = int(self.positions[rest[0]]) - queue.hand if rest.size else len(ahead)
        # A copy: `peek` returns a view of the queue, in which removed entries become gaps.
        passed = ahead[:step].copy()
        queue.hand += step
        return passed[passed >= 0]

    def _append(self, queue: EvictionQueue, entries: Entries) -> None:
        self._in_long[entries] = queue is self._long
        queue.append(entries, self.positions)


def numbers_of(live: Entries) -> Entries:
    """Return the new number of each old one, -1 for entries that are not live."""
    number = np.full(int(live.max(initial=0)) + 1, -1, dtype=np.int32)
    number[live] = np.arange(len(live), dtype=np.int32)
    return number


_POLICIES: dict[str, Callable[[], Policy]] = {"lru": Lru, "s3-fifo": S3Fifo}


def policy_of(eviction: str) -> Policy:
    """Return a new policy by its name in ``lookup.cache.eviction``.

    >>> type(policy_of("s3-fifo")).__name__
    'S3Fifo'
    """
    return _POLICIES[eviction]()
