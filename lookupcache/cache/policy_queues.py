"""SIEVE and S3-FIFO: entries stand in lines, and a hit only leaves a mark.

Sources: Zhang et al., "SIEVE is Simpler than LRU" (NSDI 2024); Yang et al., "FIFO queues are all you need for cache
eviction" (SOSP 2023), with the sizes and thresholds that libCacheSim has by default.
"""

from __future__ import annotations

import numpy as np

from lookupcache.cache.ghost import Ghost
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import Hashes
from lookupcache.cache.line import Line
from lookupcache.cache.policy import Holder, Policy, grown, parted

_NO_ENTRIES = np.empty(0, dtype=np.int32)
_NEW = np.int8(-1)
SMALL_PART = 0.1
GHOST_PART = 0.9
PROMOTED = 2
LEAST_AHEAD = 16


class _Marked(Policy):
    """Entries bear a mark that a batch raises by one, up to ``most``; the batch that brought them raises it from -1."""

    most = np.int8(1)

    def __init__(self) -> None:
        super().__init__()
        self.marks = np.full(1, _NEW, dtype=np.int8)
        self.place = np.zeros(1, dtype=np.int32)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.marks.nbytes + self.place.nbytes

    def grow(self, size: int) -> None:
        super().grow(size)
        self.marks, self.place = grown(self.marks, size, -1), grown(self.place, size, 0)

    def admit(self, entries: Entries, words: Hashes) -> None:
        super().admit(entries, words)
        self.marks[entries] = _NEW

    def touch(self, entries: Entries) -> int:
        self.marks[entries] = np.minimum(self.marks.take(entries, mode="wrap") + np.int8(1), self.most)
        return super().touch(entries)

    def renumber(self, live: Entries) -> None:
        super().renumber(live)
        places = np.append(live, -1)
        self.marks, self.place = self.marks[places], self.place[places]


class Sieve(_Marked):
    """SIEVE: a hand goes from old to new, wipes marks off, and takes who has none.

    >>> from lookupcache.cache.policy import OneEach
    >>> policy = Sieve()
    >>> policy.grow(8)
    >>> policy.admit(np.array([0, 1, 2], np.int32), np.array([70, 71, 72], np.uint64))
    >>> policy.touch(np.array([0, 1, 2])), policy.touch(np.array([0]))
    (3, 1)
    >>> policy.victims(1, 3, OneEach()), policy.victims(2, 2, OneEach())
    (array([1], dtype=int32), array([2, 0], dtype=int32))
    """

    def __init__(self) -> None:
        super().__init__()
        self._line = Line()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return super().nbytes + self._line.nbytes

    def admit(self, entries: Entries, words: Hashes) -> None:
        """Let new entries stand at the end of the line."""
        super().admit(entries, words)
        self._line.expect(entries, self.place)

    def forget(self, entries: Entries) -> None:
        """Take entries out of the line."""
        super().forget(entries)
        self._line.leave(entries, self.place)

    def victims(self, weight: float, held: float, holder: Holder) -> Entries:
        """Let the hand go on until enough have been taken."""
        chosen = [_NO_ENTRIES]
        while weight > 0 and len(self._line) + self._line.coming:
            if not len(self._line):
                self._line.let_in(self.place)
            ahead = self._line.ahead(max(int(2 * weight), LEAST_AHEAD))
            idle = ahead[(ahead >= 0) & (self.marks.take(ahead, mode="wrap") <= 0)]
            entries, rest, gone = parted(idle, weight, holder)
            step = int(self.place[rest[0]]) - self._line.hand if rest.size else len(ahead)
            passed = ahead[:step]
            self.marks[passed[passed >= 0]] = np.minimum(self.marks[passed[passed >= 0]], np.int8(0))
            self._line.go_on(step)
            weight -= gone
            chosen.append(entries)
            self.forget(entries)
        self._line.let_in(self.place)
        return np.concatenate(chosen)

    def renumber(self, live: Entries) -> None:
        """Give everyone in the line a new number."""
        super().renumber(live)
        self._line.renumber(numbers_of(live), self.place)


class S3Fifo(_Marked):
    """S3-FIFO: a short line for new keys, a long one for those that were hit there or have come back.

    Who is at the head of the short line (a tenth of all keys) goes, unless it was hit in two batches; then it stands
    in the long one, where it loses a mark each time it comes to the head, and goes when it has none. A key that
    went from the short line and comes again before as many others did as nine tenths of the cache goes to the long one.

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
        self._short, self._long = Line(), Line()
        self._ghost = Ghost()
        self._in_long = np.zeros(1, dtype=np.bool_)
        self._full_before = False

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return super().nbytes + self._short.nbytes + self._long.nbytes + self._ghost.nbytes + self._in_long.nbytes

    def grow(self, size: int) -> None:
        """Make room for entries below ``size``."""
        super().grow(size)
        self._in_long = grown(self._in_long, size, 0)

    def admit(self, entries: Entries, words: Hashes) -> None:
        """Let new entries stand in the short line, and those that have come back in the long one."""
        super().admit(entries, words)
        back = self._ghost.recall(words)
        self._in_long[entries] = back
        self._short.expect(entries[~back], self.place)
        self._long.expect(entries[back], self.place)

    def forget(self, entries: Entries) -> None:
        """Take entries out of their lines."""
        super().forget(entries)
        long = self._in_long[entries]
        self._long.leave(entries[long], self.place)
        self._short.leave(entries[~long], self.place)

    def victims(self, weight: float, held: float, holder: Holder) -> Entries:
        """Take from the head of the long line what it has too many, and else from the short one."""
        kept = round(self._listed * max(1 - weight / held, 0))
        short = max(int(SMALL_PART * kept), 1)
        if not self._full_before:
            self._full_before = True
            self._share_out(short)
        chosen = [_NO_ENTRIES]
        while weight > 0 and self._listed:
            if not len(self._short) + len(self._long):
                self._let_in()
            over = len(self._long) - (max(kept - short, 0) if len(self._short) else 0)
            if over > 0:
                entries, gone = self._from_long(weight, over, holder)
            else:
                entries, gone = self._from_short(weight, holder)
                self._ghost.remember(holder.words(entries), int(GHOST_PART * kept))
            weight -= gone
            chosen.append(entries)
        self._let_in()
        return np.concatenate(chosen)

    def renumber(self, live: Entries) -> None:
        """Give everyone in the lines a new number."""
        super().renumber(live)
        self._in_long = self._in_long[np.append(live, -1)]
        for line in (self._short, self._long):
            line.renumber(numbers_of(live), self.place)

    @property
    def _listed(self) -> int:
        return len(self._short) + len(self._long) + self._short.coming + self._long.coming

    def _let_in(self) -> None:
        self._short.let_in(self.place)
        self._long.let_in(self.place)

    def _share_out(self, short: int) -> None:
        """Let all but the first stand in the long line: until the cache was full for once, nobody had to go."""
        later = self._short.all()[short:]
        self._short.leave(later, self.place)
        self._join(self._long, later)

    def _from_short(self, weight: float, holder: Holder) -> tuple[Entries, float]:
        ahead = self._short.ahead(max(int(2 * weight), LEAST_AHEAD))
        idle = ahead[(ahead >= 0) & (self.marks.take(ahead, mode="wrap") < PROMOTED)]
        entries, rest, gone = parted(idle, weight, holder)
        passed = self._passed(self._short, ahead, rest)
        self.forget(entries)
        hit = passed[self.marks[passed] >= PROMOTED]
        self._short.leave(hit, self.place)
        self.marks[hit] = 0
        self._join(self._long, hit)
        return entries, gone

    def _from_long(self, weight: float, over: int, holder: Holder) -> tuple[Entries, float]:
        ahead = self._long.ahead(max(int(2 * min(weight, over)), LEAST_AHEAD))
        idle = ahead[(ahead >= 0) & (self.marks.take(ahead, mode="wrap") <= 0)]
        entries, rest, gone = parted(idle[:over], weight, holder)
        rest = idle[len(entries) :]
        passed = self._passed(self._long, ahead, rest)
        self.forget(entries)
        hit = passed[self.marks[passed] > 0]
        self._long.leave(hit, self.place)
        self.marks[hit] -= 1
        self._join(self._long, hit)
        return entries, gone

    def _passed(self, line: Line, ahead: Entries, rest: Entries) -> Entries:
        """Let a line's hand go on to the first of the rest; return who stood before it."""
        step = int(self.place[rest[0]]) - line.hand if rest.size else len(ahead)
        passed = ahead[:step].copy()
        line.hand += step
        return passed[passed >= 0]

    def _join(self, line: Line, entries: Entries) -> None:
        self._in_long[entries] = line is self._long
        line.join(entries, self.place)


def numbers_of(live: Entries) -> Entries:
    """Return the new number of each old one, for those who live."""
    number = np.full(int(live.max(initial=0)) + 1, -1, dtype=np.int32)
    number[live] = np.arange(len(live), dtype=np.int32)
    return number
