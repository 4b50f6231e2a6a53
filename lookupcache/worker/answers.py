"""What becomes of a source's answers: checked against the schema, calc applied, sorted by key.

answer ─► check ─► constants and calc ─► rows of each key that was asked for
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache import expr
from lookupcache.cache.keys import KeyBatch, match
from lookupcache.connector import request_of
from lookupcache.errors import LookupRuntimeError, SourceError, nearest
from lookupcache.plan import LookupPlan

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fetched:
    """Rows of some keys: ``rows`` in the order of the keys, ``counts`` of them per key.

    ``errors`` gives the trouble of calls that failed by their number, ``call_of`` the number of each key's call;
    a key whose call failed has no rows here, which does not mean that there are none.
    """

    rows: pa.Table
    counts: Numbers
    errors: dict[int, LookupRuntimeError] = field(default_factory=dict)
    call_of: Numbers | None = None

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Which keys have no answer."""
        if not self.errors or self.call_of is None:
            return np.zeros(len(self.counts), dtype=np.bool_)
        return np.isin(self.call_of, list(self.errors))


class Reader:
    """Reads a source's answers under a plan; ``hidden`` takes secrets out of a text.

    Raises SourceError for an answer that is not what the schema promises.
    """

    def __init__(self, plan: LookupPlan, hidden: Callable[[str], str] = str) -> None:
        self.plan = plan
        self.request = request_of(plan)
        self.key_types = [plan.schema.field(name).type for name in plan.key_columns]
        self.schema = pa.schema([pa.field(name, plan.schema.field(name).type) for name in self.request.fields])
        self._hidden = hidden
        constants = (expr.Call("=", (expr.Column("right", c.column, c.value.type), c.value)) for c in plan.constants)
        self._conditions = [*constants, *plan.calc]

    def check(self, answer: Any) -> pa.Table:
        """Return an answer with exactly the wanted columns in the schema's types."""
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
        """Return what checked rows hold for these keys; rows of other keys go."""
        rows, answered = self.calc(table)
        return grouped(rows, match(keys.columns, answered.columns), len(keys))

    def whole(self, table: pa.Table) -> tuple[KeyBatch, Fetched]:
        """Return every key of checked rows, and what they hold for it."""
        rows, all_keys = self.calc(table)
        distinct = all_keys.distinct()
        keys = all_keys.take(distinct.first)
        return keys, grouped(rows, distinct.code, len(keys))

    def only(self, keys: KeyBatch, table: pa.Table) -> pa.Table:
        """Return the checked rows of these keys: a source may answer with others."""
        return table.filter(pa.array(match(keys.columns, self.keys_of(table).columns) >= 0))

    def only_of(self, keys: KeyBatch, call_of: Numbers, table: pa.Table, call: Numbers) -> pa.Table:
        """Return the checked rows of which the call they came from, ``call``, had asked for their key."""
        number = match(keys.columns, self.keys_of(table).columns)
        own = (number >= 0) & (call_of[number] == call)
        return table if own.all() else table.filter(pa.array(own))

    def without_rows(self, keys: KeyBatch, table: pa.Table) -> KeyBatch | None:
        """Return the keys for which checked rows, before calc, hold none; None where there are no such keys."""
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


def grouped(rows: pa.Table, code: Numbers, keys: int) -> Fetched:
    """Sort rows by the number of their key; those with the number -1 go."""
    asked = np.flatnonzero(code >= 0)
    order = asked[np.argsort(code[asked], kind="stable")]
    counts = np.bincount(code[asked], minlength=keys).astype(np.int64)
    return Fetched(rows.take(pa.array(order)), counts)
