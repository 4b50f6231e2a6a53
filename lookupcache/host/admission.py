"""Which keys that are found on the host a worker's own cache admits: those that it has found there before.

A key that is used once would only displace others from the smaller cache, and to add it costs as much as to find it.
"""

from __future__ import annotations

import numpy as np

from lookupcache.arrays import Distinct
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Hashes, Mask

_BITS = 18
_MOST = 1 << 16
_GROUP_BITS = 16
_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class Admission:
    """Remembers about the last 65,536 keys by their hashes, some of them wrongly (the doorkeeper of TinyLFU).

    >>> admission = Admission()
    >>> words = np.array([3, 4], np.uint64)
    >>> admission.remember(words), admission.remember(words)
    (array([False, False]), array([ True,  True]))
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all keys."""
        self._marks = np.zeros(1 << _BITS, dtype=np.bool_)
        self._count = 0

    def remember(self, words: Hashes) -> Mask:
        """Return which keys were passed before, and remember all."""
        # As in `mix_words`. Two keys may share a mark: the second is then admitted at once, which costs a little space
        # and is never wrong.
        position = (((words ^ (words >> _HALF)) * _ODD) >> np.uint64(64 - _BITS)).view(np.int64)
        seen = self._marks.take(position)
        self._count += len(words) - int(np.count_nonzero(seen))
        # About a quarter of the marks are set at most, so that few keys are taken for others. A mark cannot be removed
        # for one key alone, so all are; those of this batch are set again.
        if self._count > _MOST:
            self.clear()
        self._marks[position] = True
        return seen


def distinct_entries(entries: Entries) -> Distinct:
    """Return which positions are the first of their entry, in any order, and for each position which entry it has.

    A table that several entries of a batch share rarely is written and read back: numpy keeps the last write. This
    takes a fifth of the time of sorting.

    >>> distinct_entries(np.array([7, 5, 7], np.int32))
    Distinct(first=array([1, 2]), code=array([1, 0, 1]))
    """
    rows = np.arange(len(entries), dtype=np.int32)
    slot = entries & np.int32((1 << _GROUP_BITS) - 1)
    # Not cleared: only elements that were just written are read.
    table = np.empty(1 << _GROUP_BITS, dtype=np.int32)
    table[slot] = rows
    chosen = table.take(slot)
    other = np.flatnonzero(entries.take(chosen) != entries)
    if other.size:
        _, first, inverse = np.unique(entries[other], return_index=True, return_inverse=True)
        chosen[other] = other[first[inverse]]
    first_rows = np.flatnonzero(chosen == rows)
    code = np.empty(len(entries), dtype=np.int64)
    code[first_rows] = np.arange(len(first_rows))
    return Distinct(first_rows, code.take(chosen))
