"""Numpy columns indexed by entry number, in which parts of `EntryTable` and policies store facts; `Readable` rows."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.cache.hash_index import Entries

Numbers = npt.NDArray[np.int64]
AnyEntries = npt.NDArray[np.integer]
"""Numbers of entries: 32 bits where they are stored, 64 in mapped files."""

Scalar = TypeVar("Scalar", bound=np.generic)

NO_ENTRIES = np.empty(0, dtype=np.int32)


class EntryColumns(Protocol):
    """A part of the cache that stores one or more columns indexed by entry number.

    Entry -1 means that a row has no entry. Numpy takes index -1 as the last element. So each column has one more
    element than there are entries. That element is the answer for -1 (no rows, never expired, not in flight). So no
    step has to mask the rows without an entry. For a batch of rows, columns are read with ``take(entries,
    mode="wrap")``, which takes a third of the time of indexing.
    """

    @property
    def nbytes(self) -> int:
        """Bytes used."""

    def grow(self, size: int) -> None:
        """Make space for the entries below ``size``."""

    def renumbered(self, live: Entries) -> Self:
        """Return this part with the entries ``live`` alone, numbered 0, 1, 2 … in this order.

        This one stays as it is: `EntryTable.compact` replaces all parts at once, or none if memory is short.
        """


class Readable(Protocol):
    """Rows of numbered entries; entry -1 has none."""

    @property
    def unique(self) -> bool:
        """Whether no entry has more than one row."""

    def counts(self, entries: AnyEntries) -> Numbers:
        """Return the number of rows of each entry, 0 for -1."""

    def starts(self, entries: AnyEntries) -> Numbers:
        """Return the number of the first row of each entry, -1 if it has none."""

    def gather(self, rows: Numbers) -> list[pa.Array]:
        """Return the columns of rows by their numbers; -1 gives nulls."""

    def age(self, entries: AnyEntries, now: float) -> npt.NDArray[np.float64]:
        """Return how long ago each entry was written, in seconds; NaN for -1."""


def grow_column(column: npt.NDArray[Scalar], size: int, empty: int | float) -> npt.NDArray[Scalar]:
    """Return a column with space for entries below ``size``; the last element, that of entry -1, stays last.

    >>> grow_column(np.array([5, 6, -1]), 4, empty=0)
    array([ 5,  6,  0,  0, -1])
    """
    missing = size + 1 - len(column)
    if missing <= 0:
        return column
    return np.concatenate([column[:-1], np.full(missing, empty, column.dtype), column[-1:]])


def renumber_column(column: npt.NDArray[Scalar], live: Entries) -> npt.NDArray[Scalar]:
    """Return a column of the entries ``live`` alone, in this order; the last element, that of entry -1, stays last.

    >>> renumber_column(np.array([5, 6, 7, -1]), np.array([2, 0], np.int32))
    array([ 7,  5, -1])
    """
    return column[np.append(live, -1)]
