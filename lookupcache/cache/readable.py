"""`Readable`: the methods by which a join reads stored rows, from a cache's own columns or from mapped files."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache.cache.entry_columns import Numbers

AnyEntries = npt.NDArray[np.integer]
"""Numbers of entries: 32 bits where they are stored, 64 in mapped files."""


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
