"""`HashIndex`: 64-bit words to entry numbers, open addressing in numpy, a batch at a time."""

from __future__ import annotations

from copy import copy

import numpy as np
import numpy.typing as npt

from lookupcache.cache.keys import Hashes, Positions

Entries = npt.NDArray[np.int32]

_EMPTY = np.int32(-1)
_REMOVED = np.int32(-2)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


def mix_words(words: Hashes) -> Hashes:
    """Return words whose top bits say at which slot the search for a word starts, in a table of any size.

    Fibonacci hashing: a product with an odd constant. The product carries bits only upwards, so the high half of a word
    would reach few of the top bits. So the high half is folded into the low one first: otherwise keys such as
    multiples of a power of two would share a few slots.
    """
    return (words ^ (words >> _HALF)) * _ODD


class HashIndex:
    """Finds the entry that a word belongs to.

    A hash table with linear probing: a slot stores an entry number, and `words` the word of each entry. At most two
    in five slots are used, so most words are found with one probe, however many entries there are. Entries are
    numbered from 0 and numbers may be used again; the entry of an absent word is -1.

    >>> index = HashIndex()
    >>> index.insert(np.array([50, 60], dtype=np.uint64), np.array([0, 1], dtype=np.int32))
    >>> index.find(np.array([60, 70, 50], dtype=np.uint64))
    array([ 1, -1,  0], dtype=int32)
    """

    def __init__(self) -> None:
        self._bits = 10
        self._live = 0
        self._used = 0
        """Slots that are not empty: those of live entries, and those of removed ones."""
        self.slots = np.full(1 << self._bits, _EMPTY)
        # Two elements more than there are entries: -1 (empty) and -2 (removed) must not lead to an entry's word.
        self.words = np.zeros(2, dtype=np.uint64)

    @classmethod
    def of_arrays(cls, slots: Entries, words: Hashes) -> HashIndex:
        """Return a read-only index over the `slots` and `words` of another index, which may lie in a file."""
        index = cls.__new__(cls)
        index._bits = len(slots).bit_length() - 1
        index._live = index._used = len(words) - 2
        index.slots, index.words = slots, words
        return index

    @classmethod
    def of_words(cls, words: Hashes) -> HashIndex:
        """Return an index of distinct words, for the entries 0, 1, 2 …; it is only searched.

        Words are sorted by the slot at which their search starts, and each takes the first free slot after the word
        before it. A running maximum replaces probing, and the table is written in its own order.

        >>> HashIndex.of_words(np.array([50, 60], dtype=np.uint64)).find(np.array([60, 70, 50], dtype=np.uint64))
        array([ 1, -1,  0], dtype=int32)
        """
        index = cls()
        while 5 * len(words) > 2 << index._bits:
            index._bits += 1
        index.words = np.concatenate([words, np.zeros(2, np.uint64)])
        index.slots = np.full(1 << index._bits, _EMPTY)
        index._live = index._used = len(words)
        # Home slot and entry in one word: sorting these is several times faster than sorting an order.
        pairs = index._home(words).view(np.uint64) << _HALF | np.arange(len(words), dtype=np.uint64)
        pairs.sort()
        entries = pairs.astype(np.uint32).view(np.int32)
        numbers = np.arange(len(words))
        # position[i] = max(home[i], position[i - 1] + 1): less i on both sides, that is a running maximum.
        position = np.maximum.accumulate((pairs >> _HALF).view(np.int64) - numbers) + numbers
        # Words that would lie beyond the last slot continue at the first one, where slots are taken: they probe.
        last = int(np.searchsorted(position, len(index.slots)))
        index.slots[position[:last]] = entries[:last]
        index._fill_slots(words[entries[last:]], entries[last:])
        return index

    def __len__(self) -> int:
        return self._live

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes + self.words.nbytes

    def find(self, words: Hashes) -> Entries:
        """Return the entry of each word, -1 for an unknown word.

        The first probe is done for all words, the following ones only for the few whose slot has another word.
        """
        position = self._home(words)
        entries = self.slots.take(position)
        wrong = np.flatnonzero((self.words.take(entries, mode="wrap") != words) & (entries != _EMPTY))
        if wrong.size:
            entries[wrong] = self._probe(words[wrong], position[wrong])
        # A removed slot that passed the comparison above: its spare element of `words` happens to equal the word.
        removed = entries == _REMOVED
        if removed.any():
            entries[removed] = self._probe(words[removed], position[removed])
        return entries

    def reserve(self, entries: Entries) -> None:
        """Make space for entries that are to be inserted."""
        self._reserve_slots(len(entries))
        needed = int(entries.max(initial=-1)) + 3
        if needed > len(self.words):
            missing = max(needed, needed * 5 // 4) - len(self.words)
            self.words = np.concatenate([self.words, np.zeros(missing, np.uint64)])

    def insert(self, words: Hashes, entries: Entries) -> None:
        """Add words that are distinct and not in the index, for entries that are not in use."""
        self.reserve(entries)
        self.words[entries] = words
        self._used += self._fill_slots(words, entries)
        self._live += len(words)

    def remove(self, entries: Entries) -> None:
        """Remove entries that are in the index.

        Their slots are marked rather than emptied: a probe ends at an empty slot. So it would no longer reach words
        that were inserted behind them.
        """
        position = self._home(self.words[entries])
        self._live -= len(entries)
        while entries.size:
            found = self.slots[position] == entries
            self.slots[position[found]] = _REMOVED
            entries, position = entries[~found], (position[~found] + 1) & (len(self.slots) - 1)

    def clear(self) -> None:
        """Remove everything, and give the memory back."""
        self.__init__()  # type: ignore[misc]

    def _home(self, words: Hashes) -> Positions:
        """Return the slot at which the search for each word starts: the top bits of `mix_words`."""
        return (mix_words(words) >> np.uint64(64 - self._bits)).view(np.int64)

    def _probe(self, words: Hashes, position: Positions) -> Entries:
        """Find words whose slot at ``position`` has another word, in the slots that follow."""
        found = np.full(len(words), _EMPTY)
        rest = np.arange(len(words))
        mask = len(self.slots) - 1
        while rest.size:
            position = (position + 1) & mask
            entries = self.slots.take(position)
            same = (self.words.take(entries, mode="wrap") == words[rest]) & (entries >= 0)
            found[rest[same]] = entries[same]
            unfinished = ~same & (entries != _EMPTY)
            rest, position = rest[unfinished], position[unfinished]
        return found

    def _fill_slots(self, words: Hashes, entries: Entries) -> int:
        """Write entries into free slots; return how many of these were empty.

        The slots of removed entries are free too: the words are known to be absent. So none of them can follow later in
        the same run of slots. Several entries may try the same slot. numpy keeps the last write; reading the slot again
        shows which entry that was. The others go on to the next slot.
        """
        position, filled = self._home(words), 0
        while entries.size:
            before = self.slots[position]
            free = before < 0
            self.slots[position[free]] = entries[free]
            written = self.slots[position] == entries
            filled += int(np.count_nonzero(before[written] == _EMPTY))
            entries, position = entries[~written], (position[~written] + 1) & (len(self.slots) - 1)
        return filled

    def _reserve_slots(self, more: int) -> None:
        """Rebuild the table when over two in five slots would be used, larger if the live entries need it.

        Removed slots count as used, since probes pass over them; building again drops them. One in four slots is used
        afterwards at most, so that the next time is far away.
        """
        if 5 * (self._used + more) <= 2 * len(self.slots):
            return
        entries = self.slots[self.slots >= 0]
        larger = copy(self)
        while 1 << larger._bits < 4 * (self._live + more):
            larger._bits += 1
        larger.slots = np.full(1 << larger._bits, _EMPTY)
        used = larger._fill_slots(self.words[entries], entries)
        self._bits, self.slots, self._used = larger._bits, larger.slots, used
