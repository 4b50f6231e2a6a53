"""Checks, filters and groups the rows that a source returns.

answer ─► check against the schema ─► constants and calc ─► rows of each requested key
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache import expr
from lookupcache.arrays import from_numpy
from lookupcache.cache.keys import KeyBatch, match
from lookupcache.connector import request_of
from lookupcache.errors import LookupRuntimeError, SourceError, nearest
from lookupcache.plan import LookupPlan
from lookupcache.schema import nullable_fields

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fetched:
    """Rows of some keys: ``rows`` in the order of the keys, ``counts`` of them per key.

    ``errors`` has the errors of failed calls by their numbers, ``call_of`` the number of each key's call. A key whose
    call failed has no rows here, which does not mean that the source has none. ``written`` is when each key's rows were
    fetched, by the clock of the cache; infinity, and None for all of them, is just now.
    """

    rows: pa.Table
    counts: Numbers
    errors: dict[int, LookupRuntimeError] = field(default_factory=dict)
    call_of: Numbers | None = None
    written: npt.NDArray[np.float64] | None = None

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Which keys' calls failed."""
        if not self.errors or self.call_of is None:
            return np.zeros(len(self.counts), dtype=np.bool_)
        return np.isin(self.call_of, list(self.errors))


class Reader:
    """Reads what a source returned, under a plan; ``hidden`` removes secrets from a text.

    Raises SourceError for a result that does not fit the schema.
    """

    def __init__(self, plan: LookupPlan, hidden: Callable[[str], str] = str) -> None:
        self.plan = plan
        self.request = request_of(plan)
        self.key_types = [plan.schema.field(name).type for name in plan.key_columns]
        self.schema = nullable_fields(plan.schema, self.request.fields)
        self._hidden = hidden
        constants = (expr.Call("=", (expr.Column("right", c.column, c.value.type), c.value)) for c in plan.constants)
        self._conditions = [*constants, *plan.calc]

    def check(self, answer: Any) -> pa.Table:
        """Return a result with exactly the requested columns, in the schema's types."""
        if not isinstance(answer, pa.Table):
            raise SourceError(
                f"Table {self.plan.table!r}: the connector returned {type(answer).__name__}, not a pyarrow.Table."
            )
        return pa.Table.from_arrays([self._column(answer, field) for field in self.schema], schema=self.schema)

    def keys_of(self, table: pa.Table) -> KeyBatch:
        """Return the keys of checked rows."""
        return KeyBatch.of([table.column(name) for name in self.plan.key_columns], self.key_types)

    def calc(self, table: pa.Table) -> tuple[pa.Table, KeyBatch]:
        """Return the checked rows that pass constants and calc, with the columns to cache, and their keys."""
        kept = expr.keep(table, self._conditions).combine_chunks()
        return kept.select(list(self.plan.columns)), self.keys_of(kept)

    def by_key(self, keys: KeyBatch, table: pa.Table) -> Fetched:
        """Return the checked rows of these keys, with calc applied; rows of other keys are dropped."""
        rows, answered = self.calc(table)
        return group_rows(rows, match(keys.columns, answered.columns), len(keys))

    def by_every_key(self, table: pa.Table) -> tuple[KeyBatch, Fetched]:
        """Return every key of checked rows, and its rows with calc applied."""
        rows, all_keys = self.calc(table)
        distinct = all_keys.distinct()
        keys = all_keys.take(distinct.first)
        return keys, group_rows(rows, distinct.code, len(keys))

    def only(self, keys: KeyBatch, table: pa.Table) -> pa.Table:
        """Return the checked rows of these keys: a source may return others too."""
        return table.filter(from_numpy(match(keys.columns, self.keys_of(table).columns) >= 0))

    def only_of(self, keys: KeyBatch, call_of: Numbers, table: pa.Table, call: Numbers) -> pa.Table:
        """Return the checked rows whose key belongs to the call that returned them.

        ``call_of`` is the number of the call of each key, ``call`` that of the call that returned each row.
        """
        number = match(keys.columns, self.keys_of(table).columns)
        own = (number >= 0) & (call_of[number] == call)
        return table if own.all() else table.filter(from_numpy(own))

    def without_rows(self, keys: KeyBatch, table: pa.Table) -> KeyBatch | None:
        """Return the keys without checked rows, before calc; None if every key has rows."""
        found = match(keys.columns, self.keys_of(table).columns)
        missing = np.ones(len(keys), dtype=np.bool_)
        missing[found[found >= 0]] = False
        return keys.take(np.flatnonzero(missing)) if missing.any() else None

    def _column(self, answer: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        found = answer.column_names.count(field.name)
        if found != 1:
            raise SourceError(
                f"Table {self.plan.table!r}: the connector returned "
                f"{'no column' if not found else 'more than one column'} {field.name!r}.",
                hint=nearest(field.name, answer.column_names, what="returned columns"),
            )
        column = answer.column(field.name)
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise SourceError(
                f"Table {self.plan.table!r}, column {field.name!r}: the connector returned {column.type}, "
                f"which does not fit {field.type}: {self._hidden(str(error))}.",
                hint="Correct the table's schema, or the connector.",
            ) from None


def group_rows(rows: pa.Table, code: Numbers, keys: int) -> Fetched:
    """Sort rows by the number of their key; those with the number -1 are dropped."""
    kept = np.flatnonzero(code >= 0)
    # Stable: the rows of a key stay in the order in which the source returned them.
    order = kept[np.argsort(code[kept], kind="stable")]
    counts = np.bincount(code[kept], minlength=keys).astype(np.int64)
    return Fetched(rows.take(from_numpy(order)), counts)
