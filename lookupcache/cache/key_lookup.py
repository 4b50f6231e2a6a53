"""`KeyLookup`: keys to entry numbers, a batch at a time, exact also where two keys have the same hash."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.arrays import to_numpy
from lookupcache.cache.appended_rows import AppendedRows
from lookupcache.cache.entry_columns import grow_column, renumber_column
from lookupcache.cache.hash_index import Entries, HashIndex
from lookupcache.cache.keys import Hashes, KeyBatch, Mask, Positions, is_exact

_ODD = np.uint64(0x9E3779B97F4A7C15)


class KeyLookup:
    """Finds the entries of keys.

    A `HashIndex` maps one 64-bit word per key to its entry. For a single key column of numbers the hash is the value
    itself and that is exact. For all other keys (strings, several columns) two keys may have the same hash. So their
    values are stored too, and each find compares them. Of keys with the same hash, only one is listed under it. The
    others are listed under words that follow from the hash in a fixed sequence (`_next_words`), which `find` walks.

    >>> lookup = KeyLookup([pa.string()])
    >>> lookup.grow(2)
    >>> keys = KeyBatch.of([pa.array(["a", "b"])], [pa.string()])
    >>> words = lookup.insert(keys, np.array([0, 1], np.int32))
    >>> lookup.find(KeyBatch.of([pa.array(["b", "c", None])], [pa.string()]))
    array([ 1, -1, -1], dtype=int32)
    """

    def __init__(self, key_types: Sequence[pa.DataType]) -> None:
        self.index = HashIndex()
        schema = pa.schema([(f"key{number}", type_) for number, type_ in enumerate(key_types)])
        self._keys = None if is_exact(key_types) else AppendedRows(schema)
        self._key_row = np.full(1, -1, dtype=np.int32)
        self.max_steps = 0
        """The longest way from a key's hash to the word that it is listed under; nearly always 0."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        return self.index.nbytes + (self._keys.nbytes + self._key_row.nbytes if self._keys is not None else 0)

    def find(self, keys: KeyBatch) -> Entries:
        """Return the entry of each key, -1 if it has none or is null."""
        entries = self.index.find(keys.hashes)
        if keys.valid is not None:
            entries[~keys.valid] = -1
        return entries if self._keys is None else self._verify(entries, keys)

    def insert(self, keys: KeyBatch, entries: Entries) -> Hashes:
        """List entries under distinct keys that are not listed; return the words that stand for the keys."""
        words = self.prepare(keys, entries)
        self.insert_words(words, entries)
        return words

    def prepare(self, keys: KeyBatch, entries: Entries) -> Hashes:
        """Store distinct keys of entries that are to be listed, and make space for them; return their words.

        If this fails, nothing has changed but that stored keys may belong to no entry.
        """
        if self._keys is not None:
            first = self._keys.append(pa.Table.from_arrays(list(keys.columns), schema=self._keys.schema))
            self._key_row[entries] = first + np.arange(len(keys))
        words = self._free_words(keys.hashes)
        self.index.reserve(entries)
        return words

    def insert_words(self, words: Hashes, entries: Entries) -> None:
        """List entries under the words that `prepare` has returned."""
        self.index.insert(words, entries)

    def remove(self, entries: Entries) -> None:
        """Stop finding listed entries; their stored keys stay until `renumbered`."""
        self.index.remove(entries)

    def words(self, entries: Entries) -> Hashes:
        """Return the word that each entry is listed under."""
        return self.index.words[entries]

    def count_dead(self, unlisted: int) -> int:
        """Return how many stored keys belong to no entry; ``unlisted`` entries are not found but still need theirs."""
        return 0 if self._keys is None else len(self._keys) - len(self.index) - unlisted

    def grow(self, size: int) -> None:
        if self._keys is not None:
            self._key_row = grow_column(self._key_row, size, -1)

    def renumbered(self, live: Entries, listed: int) -> KeyLookup:
        """Return a lookup of the entries ``live``, numbered 0, 1, 2 … in this order; the first ``listed`` are found.

        The words are kept as they are: a key listed under a later word of its sequence stays found, because
        `max_steps` never shrinks.
        """
        lookup = self.emptied()
        lookup.index.insert(self.index.words[live[:listed]], np.arange(listed, dtype=np.int32))
        if self._keys is not None:
            lookup._keys = self._keys.kept(self._key_row[live].astype(np.int64))
            lookup._key_row = renumber_column(self._key_row, live)
            lookup._key_row[:-1] = np.arange(len(live))
        return lookup

    def emptied(self) -> KeyLookup:
        """Return a lookup that finds no entry, but stores the keys of all, for those that are used without it."""
        lookup = copy(self)
        lookup.index = HashIndex()
        return lookup

    def _verify(self, entries: Entries, keys: KeyBatch) -> Entries:
        """Drop entries of other keys with the same hash, then look under the words that follow from the hash."""
        entries[self._rows_of_others(entries, keys)] = -1
        if not self.max_steps:
            return entries
        rows = np.flatnonzero((entries < 0) & keys.mask())
        words = keys.hashes[rows]
        # A gap does not end the walk, since keys between may have been removed: hence always `max_steps` steps.
        for _ in range(self.max_steps):
            words = _next_words(words)
            found = self.index.find(words)
            found[self._rows_of_others(found, keys.take(rows))] = -1
            entries[rows] = found
            rows, words = rows[found < 0], words[found < 0]
        return entries

    def _rows_of_others(self, entries: Entries | Positions, keys: KeyBatch) -> Positions:
        """Return the rows whose entry is that of another key."""
        return rows_of_others(self._stored_keys(entries), keys.columns)

    def _stored_keys(self, entries: Entries | Positions) -> list[pa.Array]:
        """Return the key columns of entries, null for -1."""
        assert self._keys is not None
        return self._keys.gather(self._key_row.take(entries, mode="wrap").astype(np.int64))

    def _free_words(self, hashes: Hashes) -> Hashes:
        """Return unused words for new keys: the hash, or if that is in use, the next free one of its sequence."""
        if self._keys is None:
            return hashes
        words, used, steps = hashes, self._is_used(hashes), 0
        while used.any():
            words, steps = np.where(used, _next_words(words), words), steps + 1
            used = self._is_used(words)
        self.max_steps = max(self.max_steps, steps)
        return words

    def _is_used(self, words: Hashes) -> Mask:
        """Return which words are in the index, or repeat an earlier one of the batch."""
        used = self.index.find(words) >= 0
        ordered = np.sort(words)
        # Words repeat hardly ever, and sorting is several times faster than finding the first of each.
        if (ordered[1:] == ordered[:-1]).any():
            repeated = np.ones(len(words), dtype=np.bool_)
            repeated[np.unique(words, return_index=True)[1]] = False
            used |= repeated
        return used


def rows_of_others(stored: Sequence[pa.Array], requested: Sequence[pa.Array]) -> Positions:
    """Return the rows whose stored key is not the requested one; a key with a null equals no other.

    >>> rows_of_others([pa.array(["a", "b", None])], [pa.array(["a", "c", "d"])])
    array([1])
    """
    other = np.zeros(len(stored[0]), dtype=np.bool_)
    for column, wanted in zip(stored, requested, strict=True):
        same = pc.equal(_comparable(column), _comparable(wanted))
        # Null where a row has no entry or no key: it is not another's. The usual case, all equal, stays in Arrow.
        if same.null_count < len(same) and not pc.all(same).as_py():
            other |= ~to_numpy(same.fill_null(True))
    return np.flatnonzero(other)


def _next_words(words: Hashes) -> Hashes:
    """Return the word after each one, in a sequence that visits all 2 ** 64 words before it repeats.

    That holds for a factor that is 1 modulo 4 and an odd increment (a full-period linear congruential generator).
    So `KeyLookup` always finds an unused word.
    """
    return words * _ODD + np.uint64(1)


def _comparable(column: pa.Array) -> pa.Array:
    """Return floats as their bits: keys are normalised, and Arrow takes no NaN as equal to another."""
    return column.view(f"int{column.type.bit_width}") if pa.types.is_floating(column.type) else column
