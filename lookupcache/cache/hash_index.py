"""`HashIndex`: 64-bit words to entry numbers, open addressing in numpy, whole batches at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lookupcache.cache.keys import Hashes, Positions

Entries = npt.NDArray[np.int32]

_EMPTY = np.int32(-1)
_REMOVED = np.int32(-2)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class HashIndex:
    """Finds the entry that a word belongs to; grows, and forgets, in place.

    A place in the table holds an entry number, and `words` the word of each entry. At most two in five
    places are used, so a find takes one probe for most rows and stays flat however many entries there are.
    Entries are numbered from 0 and their numbers may be used again; an absent word is answered with -1.

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
        self.words = np.zeros(2, dtype=np.uint64)

    def __len__(self) -> int:
        return self._live

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._places.nbytes + self.words.nbytes

    def find(self, words: Hashes) -> Entries:
        """Return the entry of each word, -1 where there is none."""
        place = self._home(words)
        entries = self._places.take(place)
        wrong = np.flatnonzero((self.words.take(entries, mode="wrap") != words) & (entries != _EMPTY))
        if wrong.size:
            entries[wrong] = self._probe(words[wrong], place[wrong])
        absent = entries == _REMOVED
        if absent.any():
            entries[absent] = self._probe(words[absent], place[absent])
        return entries

    def insert(self, words: Hashes, entries: Entries) -> None:
        """Add words that are distinct and not in the index, for entries that are not in use."""
        self._reserve(len(words))
        most = int(entries.max(initial=-1)) + 3
        if most > len(self.words):
            self.words = np.concatenate([self.words, np.zeros(max(most, most * 5 // 4) - len(self.words), np.uint64)])
        self.words[entries] = words
        self._used += self._place(words, entries)
        self._live += len(words)

    def remove(self, entries: Entries) -> None:
        """Forget entries that are in the index."""
        place = self._home(self.words[entries])
        self._live -= len(entries)
        while entries.size:
            there = self._places[place] == entries
            self._places[place[there]] = _REMOVED
            entries, place = entries[~there], (place[~there] + 1) & (len(self._places) - 1)

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
            same = (self.words.take(entries, mode="wrap") == words[rest]) & (entries >= 0)
            found[rest[same]] = entries[same]
            going = ~same & (entries != _EMPTY)
            rest, place = rest[going], place[going]
        return found

    def _place(self, words: Hashes, entries: Entries) -> int:
        """Put entries on their places; return how many places had never been used."""
        place, fresh = self._home(words), 0
        while entries.size:
            before = self._places[place]
            free = before < 0
            self._places[place[free]] = entries[free]
            won = self._places[place] == entries
            fresh += int(np.count_nonzero(before[won] == _EMPTY))
            entries, place = entries[~won], (place[~won] + 1) & (len(self._places) - 1)
        return fresh

    def _reserve(self, more: int) -> None:
        """Make room, dropping the marks of removed entries, when over two in five places would be used."""
        if 5 * (self._used + more) <= 2 * len(self._places):
            return
        entries = self._places[self._places >= 0]
        while 1 << self._bits < 4 * (self._live + more):
            self._bits += 1
        self._places = np.full(1 << self._bits, _EMPTY)
        self._used = self._place(self.words[entries], entries)
