"""`Ghost`: the words of keys that were evicted recently."""

from __future__ import annotations

import numpy as np

from lookupcache.cache.hash_index import HashIndex
from lookupcache.cache.keys import Hashes, Mask


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
        """Bytes used."""
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
