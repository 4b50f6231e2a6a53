"""`HashIndex`: 64-bit words to entry numbers, open addressing in numpy, whole batches at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lookupcache.keys import Hashes, Positions

Entries = npt.NDArray[np.int32]

_EMPTY = np.int32(-1)
_REMOVED = np.int32(-2)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class HashIndex:
    """Finds the entry that a word belongs to; grows, and forgets, in place.

    At most three in five places are used, so a find takes one probe for most rows and stays flat
    however many entries there are. An absent word is answered with -1.

    >>> index = HashIndex()
    >>> index.insert(np.array([50, 60], dtype=np.uint64), np.array([0, 1], dtype=np.int32))
    >>> index.find(np.array([60, 70, 50], dtype=np.uint64))
    array([ 1, -1,  0], dtype=int32)
    """

    def __init__(self) -> None:
        self._bits = 10
        self._used = 0
        self._live = 0
        self._places = np.full(1 << self._bits, _EMPTY)
        self._words = np.zeros(1 << self._bits, dtype=np.uint64)

    def __len__(self) -> int:
        return self._live

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._places.nbytes + self._words.nbytes

    def find(self, words: Hashes) -> Entries:
        """Return the entry of each word, -1 where there is none."""
        place = self._home(words)
        entries = self._places.take(place)
        wrong = np.flatnonzero((self._words.take(place) != words) & (entries != _EMPTY))
        if wrong.size:
            entries[wrong] = self._probe(words[wrong], place[wrong])
        absent = entries == _REMOVED
        if absent.any():
            entries[absent] = self._probe(words[absent], place[absent])
        return entries

    def insert(self, words: Hashes, entries: Entries) -> None:
        """Add words that are distinct and not in the index."""
        self._reserve(len(words))
        self._used += self._place(words, entries)
        self._live += len(words)

    def remove(self, words: Hashes) -> None:
        """Forget words that are in the index."""
        place = self._home(words)
        rest = np.arange(len(words))
        while rest.size:
            at = place[rest]
            there = (self._words[at] == words[rest]) & (self._places[at] >= 0)
            self._places[at[there]] = _REMOVED
            rest = rest[~there]
            place[rest] = (place[rest] + 1) & (len(self._places) - 1)
        self._live -= len(words)

    def clear(self) -> None:
        """Forget everything, and give the memory back."""
        self.__init__()  # type: ignore[misc]

    def _home(self, words: Hashes) -> Positions:
        return (((words ^ (words >> _HALF)) * _ODD) >> np.uint64(64 - self._bits)).view(np.int64)

    def _probe(self, words: Hashes, place: Positions) -> Entries:
        """Walk on from places that held another word."""
        found = np.full(len(words), _EMPTY)
        rest = np.arange(len(words))
        mask = len(self._places) - 1
        while rest.size:
            place = (place + 1) & mask
            entries = self._places.take(place)
            same = (self._words.take(place) == words[rest]) & (entries >= 0)
            found[rest[same]] = entries[same]
            going = ~same & (entries != _EMPTY)
            rest, place = rest[going], place[going]
        return found

    def _place(self, words: Hashes, entries: Entries) -> int:
        """Put entries on their places; return how many places had never been used."""
        place, fresh = self._home(words), 0
        while words.size:
            before = self._places[place]
            free = np.flatnonzero(before < 0)
            self._places[place[free]] = entries[free]
            won = self._places[place] == entries
            self._words[place[won]] = words[won]
            fresh += int(np.count_nonzero(before[won] == _EMPTY))
            words, entries = words[~won], entries[~won]
            place = (place[~won] + 1) & (len(self._places) - 1)
        return fresh

    def _reserve(self, more: int) -> None:
        """Make room, dropping the marks of removed words, when over three in five places would be used."""
        if 5 * (self._used + more) <= 3 * len(self._places):
            return
        taken = np.flatnonzero(self._places >= 0)
        words, entries = self._words[taken], self._places[taken]
        while 2 << self._bits < 5 * (self._live + more):
            self._bits += 1
        self._places = np.full(1 << self._bits, _EMPTY)
        self._words = np.zeros(1 << self._bits, dtype=np.uint64)
        self._used = self._place(words, entries)
