"""`KeyIndex`: one mapped hash table from the keys of all segments to their entries, which is changed in place.

It is a hint: a lookup compares the key of an entry with the segment's, which has a checksum. So a slot that is
damaged, outdated or being written is at most a key that is not found. Readers take no lock; writers hold the lock of
publications. A merge of rows changes nothing here, unless it drops entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from lookupcache.cache.hash_index import mix_words
from lookupcache.cache.keys import Hashes, Mask, Positions
from lookupcache.host.folder import Folder

Ids = npt.NDArray[np.int64]
"""Numbers of entries: those of a segment follow each other, and none is ever used again."""

MOST_IDS = 1 << 44
MOST_STEPS = 1 << 12
"""After how many slots a search ends, as in a damaged table without an empty slot: the key is then not found."""
_TAG = np.uint64(((1 << 20) - 1) << 44)
_USED = np.uint64(1 << 63)
"""Set in every used slot, as part of the tag, so that none of them is 0."""
_TAG_ODD = np.uint64(0xC2B2AE3D27D4EB4F)
"""Mixes a word again for its tag: where similar texts share a slot, they would often share other bits of it."""
_HALF = np.uint64(32)
_MAGIC = b"LKCIDX\r\n"
_HEAD = struct.Struct("<8sIIq")
_HEAD_BYTES = 64
_LEAST_BITS = 10
_SPARSE = 3
"""Slots per entry at least, of a new table; it is built again when half of its slots are used."""
_CHUNK = 1 << 17
"""Entries that are inserted at a time: arrays of more need new memory each time, which the kernel clears."""


def slots_for(entries: int) -> int:
    """Return the number of slots of a new table.

    >>> slots_for(1_000), slots_for(10_000)
    (4096, 32768)
    """
    return int(1 << max(_LEAST_BITS, (_SPARSE * entries - 1).bit_length()))


class KeyIndex:
    """A table: open addressing with linear probing; a slot has a tag of 19 bits of the hash, and an entry's number.

    Raises ValueError for a file that is not one of this folder, and OSError if it is not there. Another folder has
    another ``seed``; without ``name``, the file has the name of the table's number.
    """

    def __init__(self, folder: Folder, number: int, seed: int, name: str | None = None) -> None:
        mapped, _ = folder.map(name or index_name(number), writable=True)
        magic, bits, _, found = _HEAD.unpack_from(mapped) if len(mapped) >= _HEAD_BYTES else (b"", 0, 0, 0)
        if magic != _MAGIC or found != seed or len(mapped) != _HEAD_BYTES + (8 << bits):
            raise ValueError("it is not an index of this folder")
        self.number = number
        self._bits = np.uint64(64 - bits)
        self._slots = np.frombuffer(mapped, "<u8", 1 << bits, _HEAD_BYTES)

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self._slots)

    def home(self, mixed: Hashes) -> Positions:
        """Return the slot at which the search for each mixed word starts."""
        return (mixed >> self._bits).view(np.int64)

    def peek(self, position: Positions) -> Ids:
        """Return the number of the entry in each slot, whatever key it has; 0 for an empty slot."""
        return (self._slots.take(position) & ~_TAG).view(np.int64)

    def has_tags(self, position: Positions, words: Hashes) -> Mask:
        """Return which of these slots may be that of the word that is looked for there."""
        matches: Mask = (self._slots.take(position) & _TAG) == _tags_of(mix_words(words))
        return matches

    def search(self, mixed: Hashes, position: Positions) -> tuple[Ids, Positions]:
        """Return the number of an entry that may be that of each word, 0 for none, and the slot it is in.

        The words are mixed by `mix_words`; ``position`` is the slot at which to start for each.
        """
        tags = _tags_of(mixed)
        slots = self._slots.take(position)
        same = (slots & _TAG) == tags
        if not same.all():
            position = position.copy()
            rest = np.flatnonzero(~same & (slots != 0))
            slots[~same] = 0
            self._search_on(tags, position, slots, rest)
        return (slots & ~_TAG).view(np.int64), position

    def _search_on(self, tags: Hashes, position: Positions, found: Hashes, rest: Positions) -> None:
        """Search the slots that follow, and write what is found; ``rest`` are the words that are not found yet."""
        at, wanted, last = position.take(rest), tags.take(rest), len(self._slots) - 1
        for _ in range(MOST_STEPS):
            if not rest.size:
                return
            at = (at + 1) & last
            slots = self._slots.take(at)
            same = (slots & _TAG) == wanted
            hits = np.flatnonzero(same)
            position[rest.take(hits)] = at.take(hits)
            found[rest.take(hits)] = slots.take(hits)
            left = np.flatnonzero(~same & (slots != 0))
            rest, at, wanted = rest.take(left), at.take(left), wanted.take(left)

    def insert(self, mixed: Hashes, ids: Ids) -> None:
        """Add entries of words that are not here; there must be empty slots."""
        self._write(self.home(mixed), np.zeros(len(mixed), np.uint64), _tags_of(mixed) | ids.view(np.uint64))

    def _insert_sorted(self, mixed: Hashes, ids: Ids) -> None:
        """Insert in the order of the slots, which the table's pages are then written in.

        Each takes its first slot, or the one after its predecessor's: a running maximum instead of probing. Where that
        one is used already, it probes; the slots before it are used in any case.
        """
        numbers = np.arange(len(mixed))
        # Home slot and number in one word: sorting these is several times faster than sorting an order.
        pairs = (mixed >> self._bits) << _HALF | numbers.view(np.uint64)
        pairs.sort()
        slots = (_tags_of(mixed) | ids.view(np.uint64)).take(pairs.astype(np.uint32))
        home = (pairs >> _HALF).view(np.int64)
        position = np.maximum.accumulate(home - numbers) + numbers
        last = int(np.searchsorted(position, len(self._slots)))
        is_free = self._slots.take(position[:last]) == 0
        self._slots[position[:last][is_free]] = slots[:last][is_free]
        rest = np.concatenate([np.flatnonzero(~is_free), numbers[last:]])
        self._write(home.take(rest), np.zeros(len(rest), np.uint64), slots.take(rest))

    def replace(self, mixed: Hashes, old: Ids, new: Ids) -> Mask:
        """Write other numbers of entries in place of old ones; return which of these were here."""
        tags = _tags_of(mixed)
        return self._write(self.home(mixed), tags | old.view(np.uint64), tags | new.view(np.uint64))

    def _write(self, position: Positions, old: Hashes, new: Hashes) -> Mask:
        """Write each new slot over the first old one from a position on; return for which there was one.

        Several may try the same slot: numpy keeps the last write, and reading it again shows which one that was.
        """
        written = np.zeros(len(new), np.bool_)
        rest, last = np.arange(len(new)), len(self._slots) - 1
        for _ in range(MOST_STEPS):
            if not rest.size:
                break
            slots = self._slots.take(position)
            fits = slots == old
            self._slots[position[fits]] = new[fits]
            done = self._slots.take(position) == new
            written[rest[done]] = True
            left = np.flatnonzero(~done & ((slots != 0) | (old == 0)))
            rest, old, new = rest.take(left), old.take(left), new.take(left)
            position = (position.take(left) + 1) & last
        return written


def build_index(folder: Folder, name: str, seed: int, entries: int, parts: Iterable[tuple[Hashes, Ids]]) -> None:
    """Write a table under a name.

    It has space for ``entries``, and begins with ``parts``: words and numbers of entries, all different.
    """
    slots = slots_for(entries)
    bits = slots.bit_length() - 1
    folder.remove(name)  # A process that was killed may have left one.
    folder.allocate(name, _HEAD_BYTES + 8 * slots, _HEAD.pack(_MAGIC, bits, 0, seed))
    index = KeyIndex(folder, 0, seed, name)
    for words, ids in _chunks(parts):
        index._insert_sorted(mix_words(words), ids)


def _chunks(parts: Iterable[tuple[Hashes, Ids]]) -> Iterator[tuple[Hashes, Ids]]:
    """Yield parts together or in pieces: a pass over the table should neither add few entries nor take much memory."""
    waiting: list[tuple[Hashes, Ids]] = []
    for words, ids in parts:
        for start in range(0, len(words), _CHUNK):
            waiting.append((words[start : start + _CHUNK], ids[start : start + _CHUNK]))
            if sum(len(one) for one, _ in waiting) >= _CHUNK:
                yield _joined(waiting)
                waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[tuple[Hashes, Ids]]) -> tuple[Hashes, Ids]:
    return np.concatenate([words for words, _ in parts]), np.concatenate([ids for _, ids in parts])


def index_bytes(entries: int) -> int:
    """Return the bytes of a new table for this many entries."""
    return _HEAD_BYTES + 8 * slots_for(entries)


def index_name(number: int) -> str:
    """Return the name of a table's file."""
    return f"index-{number}"


def _tags_of(mixed: Hashes) -> Hashes:
    return (((mixed ^ (mixed >> _HALF)) * _TAG_ODD) & _TAG) | _USED
