"""`Ghost`: the words of keys that left not long ago."""

from __future__ import annotations

import numpy as np

from lookupcache.cache.hash_index import HashIndex
from lookupcache.cache.keys import Hashes, Mask


class Ghost:
    """The words of the last keys that left, as many as it is told to remember.

    >>> ghost = Ghost()
    >>> ghost.remember(np.array([50, 60, 70], np.uint64), most=2)
    >>> ghost.recall(np.array([50, 70], np.uint64)), ghost.recall(np.array([70], np.uint64))
    (array([False,  True]), array([False]))
    """

    def __init__(self) -> None:
        self._index = HashIndex()
        self._ring = np.empty(0, dtype=np.uint64)
        self._there = np.empty(0, dtype=np.bool_)
        self._next = 0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._index.nbytes + self._ring.nbytes + self._there.nbytes

    def remember(self, words: Hashes, most: int) -> None:
        """Add distinct words that are not here, of which the last ``most`` are remembered."""
        if not len(self._ring) * 3 // 4 <= most <= len(self._ring):
            self._resize(most)
        words = words[-len(self._ring) :] if len(self._ring) else words[:0]
        places = ((self._next + np.arange(len(words))) % max(len(self._ring), 1)).astype(np.int32)
        self._index.remove(places[self._there[places]])
        self._ring[places], self._there[places] = words, True
        self._index.insert(words, places)
        self._next = (self._next + len(words)) % max(len(self._ring), 1)

    def recall(self, words: Hashes) -> Mask:
        """Return which of these distinct words are remembered; from now on they are not."""
        places = self._index.find(words)
        found = places >= 0
        self._index.remove(places[found])
        self._there[places[found]] = False
        return found

    def _resize(self, most: int) -> None:
        order = np.roll(np.arange(len(self._ring)), -self._next)
        words = self._ring[order[self._there[order]]]
        self._index.clear()
        self._ring = np.empty(most, dtype=np.uint64)
        self._there = np.zeros(most, dtype=np.bool_)
        self._next = 0
        kept = words[max(len(words) - most, 0) :]
        self._ring[: len(kept)], self._there[: len(kept)] = kept, True
        self._index.insert(kept, np.arange(len(kept), dtype=np.int32))
        self._next = len(kept) % max(most, 1)
