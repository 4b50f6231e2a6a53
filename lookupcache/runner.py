"""The worker's side of a lookup join: Arrow batches in, Arrow batches out, no row touched on its own.

    batch ─► keys ─► entries (cache or source) ─► pairs of left and right rows ─► residual ─► pad ─► batch

What outlives a task, the connector and its cache, lives in this module by the plan's fingerprint.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache import expr
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import KeyBatch
from lookupcache.connector import Connector
from lookupcache.lookup import CachedLookup, Clock, lookup_of
from lookupcache.metrics import Tally
from lookupcache.plan import LookupPlan
from lookupcache.source import Source

Numbers = npt.NDArray[np.int64]

MATCHES = "matches"
"""The column that holds all right rows of a left row, where Spark must judge them."""

_MOST_ROWS_OUT = 65_536
_MOST_LOOKUPS = 64


@dataclass(frozen=True)
class Layout:
    """Where things lie in the batches: input is the left columns, then the key columns that are none of them.

    ``left`` names the left columns in order of their coming; ``keys`` gives the position of each key column.
    ``output`` gives the columns of the joined batches by their positions among the left columns and, behind
    them, those of the lookup table; by default they are all given, in that order.
    """

    left: tuple[str, ...]
    keys: tuple[int, ...]
    output: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Pairs:
    """Left and right rows that belong together: positions in the batch, row numbers in the cache.

    ``left`` is None for every left row once, in order; ``right`` is -1 for a left row without a match.
    """

    left: Numbers | None
    right: Numbers


class Runner:
    """Joins batches under a plan.

    >>> from lookupcache.table import LookupTable
    >>> from lookupcache.plan import FieldKey
    >>> names = {1: "ann", 2: "bob"}
    >>> table = LookupTable.from_function("c", "id BIGINT, name STRING", key=["id"],
    ...     function=lambda i: [(i, names[i])] if i in names else [])
    >>> plan = LookupPlan(table="c", connector="function", source=table.source, schema=table.schema, how="left",
    ...     keys=(FieldKey(column="id", sql="l.`id`"),), columns=("name",), left_columns=("id",))
    >>> runner = Runner(plan, Layout(("id",), (0,)), lookup_of(Source(plan, table.connector)))
    >>> batch = pa.record_batch({"id": pa.array([2, None, 3])})
    >>> [joined.column(1).to_pylist() for joined in runner.run([batch])]
    [['bob', None, None]]
    """

    def __init__(self, plan: LookupPlan, layout: Layout, lookup: CachedLookup) -> None:
        self.plan = plan
        self.layout = layout
        self.lookup = lookup
        self.nested = bool(plan.spark_residual) and plan.how != "inner"
        self.schema = pa.schema([pa.field(name, plan.schema.field(name).type) for name in plan.columns])

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the joined batches; a left row's matches follow each other, left rows keep their order."""
        for batch in batches:
            started = time.perf_counter()
            if batch.num_rows:
                joined = list(self._join(batch))
                self.lookup.tally.spend("lookup_seconds", started)
                yield from joined

    def _join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        left = batch.select(list(range(len(self.layout.left))))
        if self.plan.never:
            self.lookup.tally["rows"] += batch.num_rows
            entries = np.full(batch.num_rows, -1, dtype=np.int32)
        else:
            columns = [batch.column(position) for position in self.layout.keys]
            entries = self.lookup.find(KeyBatch.of(columns, self.lookup.source.key_types))
        try:
            for part, some in self._parts(left, entries):
                yield self._emit(part, some)
        finally:
            self.lookup.settle()

    def _parts(self, left: pa.RecordBatch, entries: Entries) -> Iterator[tuple[pa.RecordBatch, Entries]]:
        """Cut a batch where its rows have so many matches that the result would not fit one batch."""
        if self.lookup.cache.unique:
            yield left, entries
            return
        total = np.cumsum(np.maximum(self.lookup.cache.counts(entries), 1))
        start = 0
        while start < len(entries):
            before = total[start - 1] if start else 0
            end = max(int(np.searchsorted(total, before + _MOST_ROWS_OUT, side="right")), start + 1)
            yield left.slice(start, end - start), entries[start:end]
            start = end

    def _emit(self, left: pa.RecordBatch, entries: Entries) -> pa.RecordBatch:
        if self.nested:
            return self._with_matches(left, entries)
        if self.plan.how in ("semi", "anti"):
            wanted = self.plan.how == "semi"
            return self._batch(left.filter(pa.array(self._matched(left, entries) == wanted)).columns)
        pairs = self._pairs(left, entries)
        rows = left if pairs.left is None else left.take(pa.array(pairs.left))
        return self._batch([*rows.columns, *self.lookup.cache.gather(pairs.right)])

    def _batch(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Put the columns in order, and number them: Spark's reader takes two of one name for one."""
        if self.layout.output is not None:
            columns = [columns[position] for position in self.layout.output]
        return pa.RecordBatch.from_arrays(list(columns), names=[str(number) for number in range(len(columns))])

    # ── pairs ────────────────────────────────────────────────────────────────────────────────────────────

    def _pairs(self, left: pa.RecordBatch, entries: Entries) -> Pairs:
        if self.lookup.cache.unique and not self.plan.residual:
            return self._single(self.lookup.cache.starts(entries))
        owner, right = self._surviving(left, entries)
        if self.plan.how == "inner":
            return Pairs(owner, right)
        return _padded(owner, right, len(entries))

    def _single(self, starts: Numbers) -> Pairs:
        """Pair rows where no key has more than one: the usual case, and nothing is repeated."""
        if self.plan.how == "left":
            return Pairs(None, starts)
        found = starts >= 0
        return Pairs(None, starts) if found.all() else Pairs(np.flatnonzero(found), starts[found])

    def _matched(self, left: pa.RecordBatch, entries: Entries) -> npt.NDArray[np.bool_]:
        if not self.plan.residual:
            return self.lookup.cache.counts(entries) > 0
        owner, _ = self._surviving(left, entries)
        return np.bincount(owner, minlength=len(entries)) > 0

    def _candidates(self, entries: Entries) -> tuple[Numbers, Numbers]:
        """Return every pair that the keys make: left positions and right row numbers, in left order."""
        counts = self.lookup.cache.counts(entries)
        owner = np.repeat(np.arange(len(entries)), counts)
        before = np.cumsum(counts) - counts
        right = np.arange(len(owner)) + np.repeat(self.lookup.cache.starts(entries) - before, counts)
        return owner, right

    def _surviving(self, left: pa.RecordBatch, entries: Entries) -> tuple[Numbers, Numbers]:
        """Return the candidates for which the residual is true."""
        owner, right = self._candidates(entries)
        for conjunct in self.plan.residual:
            mask = self._true(conjunct, left, owner, right)
            owner, right = owner[mask], right[mask]
        return owner, right

    def _true(self, conjunct: expr.Expr, left: pa.RecordBatch, owner: Numbers, right: Numbers) -> npt.NDArray[np.bool_]:
        columns = dict(zip(self.plan.columns, self.lookup.cache.gather(right), strict=True))
        index = pa.array(owner)

        def resolve(column: expr.Column) -> pa.Array:
            if column.side == "right":
                return columns[column.name]
            values = left.column(self.layout.left.index(column.name)).take(index)
            return values if values.type == column.type else values.cast(column.type)

        answer = expr.evaluate(conjunct, resolve)
        if isinstance(answer, pa.Scalar):
            return np.full(len(owner), bool(answer.as_py()))
        return answer.fill_null(False).to_numpy(zero_copy_only=False)

    def _with_matches(self, left: pa.RecordBatch, entries: Entries) -> pa.RecordBatch:
        """Return the left rows with a list of their right rows, for Spark to judge."""
        owner, right = self._surviving(left, entries)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(entries)))])
        fields = [pa.field(name, self.schema.field(name).type) for name in self.plan.columns]
        structs = pa.StructArray.from_arrays(self.lookup.cache.gather(right), fields=fields)
        matches = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)
        return self._batch([*left.columns, matches])


def _padded(owner: Numbers, right: Numbers, rows: int) -> Pairs:
    """Give every left row without a pair one with nothing, in its place."""
    counts = np.bincount(owner, minlength=rows)
    if (counts == 1).all():
        return Pairs(None, right)
    shown = np.maximum(counts, 1)
    padded = np.full(int(shown.sum()), -1, dtype=np.int64)
    padded[np.repeat(counts > 0, shown)] = right
    return Pairs(np.repeat(np.arange(rows), shown), padded)


# ── what outlives a task ─────────────────────────────────────────────────────────────────────────────────

_lookups: OrderedDict[str, CachedLookup] = OrderedDict()


def shared_lookup(plan: LookupPlan, connector: Callable[[], Connector], clock: Clock = time.monotonic) -> CachedLookup:
    """Return this process's lookup for the plan, made when it is first wanted with what ``connector`` returns.

    Joins whose plans have the same fingerprint share it. The one unused for longest is closed when there
    are more than 64.
    """
    name = plan.fingerprint
    if name not in _lookups:
        _lookups[name] = lookup_of(Source(plan, connector()), clock)
        while len(_lookups) > _MOST_LOOKUPS:
            _lookups.popitem(last=False)[1].source.close()
    _lookups.move_to_end(name)
    return _lookups[name]


def held(lookup: CachedLookup) -> dict[str, Any]:
    """Return what the lookup's cache holds now, by the names of `LookupMetrics`."""
    cache = lookup.cache
    return {"cached_rows": cache.rows, "cached_bytes": cache.nbytes, "cached_keys": len(cache)}


def tallied(lookup: CachedLookup, batches: Iterator[pa.RecordBatch], into: Tally) -> Iterator[pa.RecordBatch]:
    """Pass batches on; when they end, however that be, leave in ``into`` what was counted meanwhile."""
    before = Tally(lookup.tally)
    try:
        yield from batches
    finally:
        into.update(lookup.tally.since(before))
        into.update(held(lookup))
