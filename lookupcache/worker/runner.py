"""The worker's side of a lookup join: Arrow batches in, Arrow batches out, no row touched on its own.

    batch ─► keys ─► open (cache, or calls to the source) ─► read ahead: the next batch, while calls are under way
    ready ─► entries ─► pairs of left and right rows ─► residual ─► pad ─► batch

What outlives a task, the connector and its cache, lives in this module by the plan's fingerprint.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache import expr
from lookupcache.cache.hash_index import Entries
from lookupcache.cache.keys import KeyBatch, Mask
from lookupcache.connector import Connector
from lookupcache.errors import TooManyRows
from lookupcache.metrics import Tally
from lookupcache.plan import LookupPlan
from lookupcache.worker.lookup import CachedLookup, Clock, Wanted, given, lookup_of
from lookupcache.worker.source import Source

if TYPE_CHECKING:
    from lookupcache.worker.dead_letters import DeadLetters

T = TypeVar("T")
Numbers = npt.NDArray[np.int64]

MATCHES = "matches"
"""The column that holds all right rows of a left row, where Spark must judge them."""

ERROR = pa.struct([("code", pa.string()), ("message", pa.string())])
"""What the error column holds."""

LIMIT = "Add LIMIT 1 where any of them will do."

_MOST_ROWS_OUT = 65_536
_MOST_OPEN_BYTES = 64 << 20
_MOST_LOOKUPS = 64


def too_many_rows(table: str) -> str:
    """Return what is wrong where a row may have one match of a table, and has two."""
    return f"A scalar sub-query over table {table!r} found more than one row."


@dataclass(frozen=True)
class Layout:
    """Where things lie in the batches: input is the left columns, then the key columns that are none of them.

    ``left`` names the left columns in order of their coming; ``keys`` gives the position of each key column.
    ``output`` gives the columns of the joined batches by their positions among the left columns and, behind
    them, those of the lookup table, then the age and the error, where the options want them; by default they are
    all given, in that order.

    Where rows are keys, ``weights`` are the positions of two numbers: of how many left rows, and left rows with a
    key, each tells. ``found`` asks for one more column, the last, that says whether a row has a match; a semi or anti
    join then keeps all rows.
    ``letters`` says that rows marked with an error become dead letters later, and are counted as such.
    """

    left: tuple[str, ...]
    keys: tuple[int, ...]
    output: tuple[int, ...] | None = None
    weights: tuple[int, int] | None = None
    found: bool = False
    letters: bool = False


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

    def __init__(
        self, plan: LookupPlan, layout: Layout, lookup: CachedLookup, letters: DeadLetters | None = None
    ) -> None:
        self.plan = plan
        self.layout = layout
        self.lookup = lookup
        self.letters = letters
        self.nested = bool(plan.spark_residual) and plan.how != "inner"
        self.schema = pa.schema([pa.field(name, plan.schema.field(name).type) for name in plan.columns])

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the joined batches; a left row's matches follow each other, and a batch's left rows keep their order.

        Batches do too, unless ``lookup.async.output-mode`` lets them go as they are ready. While calls to the
        source are under way, batches are read ahead, as long as more calls may be made. Raises SourceTrouble
        where a lookup failed and ``lookup.on-error`` is ``fail``. When the caller stops early, calls are cancelled.
        """
        window: deque[_Open] = deque()
        complete = False
        try:
            for batch in batches:
                if batch.num_rows:
                    window.append(self._timed(self._opened, batch))
                    yield from self._leaving(window)
            self.lookup.hurry()
            while window:
                yield from self._leaving(window, last=True)
            complete = True
        finally:
            self.lookup.abandon(one.wanted for one in window if one.wanted is not None)
            if self.letters is not None:
                self.letters.close(complete)

    def _leaving(self, window: deque[_Open], last: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield what is ready; wait where no more can be opened, since there is no room, or no more to come."""
        while window:
            self.lookup.poll()
            self._refuse_errors(window)
            ready = self._ready(window)
            for one in ready:
                window.remove(one)
                yield from self._timed(self._joined, one)
            if not window or not (last or self._is_full(window)):
                return
            # While we yielded, another runner may have taken in what we would wait for: look again before.
            if not ready:
                self._timed(partial(self.lookup.wait, room=not last and not self._is_large(window)))

    def _ready(self, window: deque[_Open]) -> list[_Open]:
        """Return the batches that may leave: any that are ready, or the first ones."""
        if self.plan.config.output_mode == "allow-unordered":
            return [one for one in window if one.ready]
        return list(takewhile(lambda one: one.ready, window))

    def _is_full(self, window: deque[_Open]) -> bool:
        """Return whether to wait rather than to read on."""
        return self.lookup.in_flight >= self.lookup.capacity or self._is_large(window)

    def _is_large(self, window: deque[_Open]) -> bool:
        return sum(one.left.nbytes for one in window) > _MOST_OPEN_BYTES

    def _refuse_errors(self, window: Iterable[_Open]) -> None:
        for one in window:
            if one.wanted is not None and one.wanted.broken is not None:
                raise one.wanted.broken
            if one.wanted is not None and one.wanted.errors and self.plan.config.on_error == "fail":
                raise one.wanted.errors[0]

    def _timed(self, work: Callable[..., T], *arguments: Any) -> T:
        started = time.perf_counter()
        try:
            return work(*arguments)
        finally:
            self.lookup.tally.spend("lookup_seconds", started)

    def _opened(self, batch: pa.RecordBatch) -> _Open:
        left = batch.select(list(range(len(self.layout.left))))
        if self.plan.never:
            self.lookup.tally["rows"] += int(self._weights(left)[0].sum())
            return _Open(left, None)
        columns = [batch.column(position) for position in self.layout.keys]
        keys = KeyBatch.of(columns, self.lookup.source.reader.key_types)
        wanted = self.lookup.open(keys)
        if self.layout.weights is not None:
            rows, keyed = self._weights(left)
            self.lookup.tally["rows"] += int(rows.sum()) - len(keys)
            self.lookup.tally["hits"] += int(keyed.sum()) - given(keys)
        return _Open(left, wanted)

    def _weights(self, left: pa.RecordBatch) -> tuple[Numbers, Numbers]:
        """Return of how many left rows, and of those with a key, each row tells."""
        if self.layout.weights is None:
            one = np.ones(left.num_rows, dtype=np.int64)
            return one, one
        rows, keyed = (left.column(position).to_numpy() for position in self.layout.weights)
        return rows, keyed

    def _joined(self, one: _Open) -> list[pa.RecordBatch]:
        if one.wanted is None:
            return self._emitted(_Rows(one.left, np.full(one.left.num_rows, -1, dtype=np.int32)))
        try:
            rows = _Rows(one.left, one.wanted.entries)
            if one.wanted.errors:
                rows = self._troubled(rows, one.wanted)
            return self._emitted(rows)
        finally:
            self.lookup.close(one.wanted)

    def _troubled(self, rows: _Rows, wanted: Wanted) -> _Rows:
        """Mark the rows whose lookup failed, or put them away as dead letters."""
        assert wanted.error_of is not None
        failed = wanted.error_of > 0
        kinds = [{"code": error.code, "message": error.fact} for error in wanted.errors]
        number = pa.array(wanted.error_of - 1, mask=~failed)
        errors = pa.array(kinds, ERROR).take(number)
        if self.letters is None:
            name = "dead_letters" if self.layout.letters else "failed_rows"
            self.lookup.tally[name] += int(self._weights(rows.left)[0][failed].sum())
            return _Rows(rows.left, rows.entries, errors)
        self.lookup.tally["dead_letters"] += int(np.count_nonzero(failed))
        self.letters.write(rows.left.filter(pa.array(failed)), errors.filter(pa.array(failed)))
        return _Rows(rows.left.filter(pa.array(~failed)), rows.entries[~failed])

    def _emitted(self, rows: _Rows) -> list[pa.RecordBatch]:
        return [self._emit(part) for part in self._parts(rows)]

    def _parts(self, rows: _Rows) -> Iterator[_Rows]:
        """Cut a batch where its rows have so many matches that the result would not fit one batch."""
        if self.lookup.cache.unique:
            yield rows
            return
        total = np.cumsum(np.maximum(self.lookup.cache.counts(rows.entries), 1))
        start = 0
        while start < len(rows.entries):
            before = total[start - 1] if start else 0
            end = max(int(np.searchsorted(total, before + _MOST_ROWS_OUT, side="right")), start + 1)
            yield rows.slice(start, end)
            start = end

    def _emit(self, rows: _Rows) -> pa.RecordBatch:
        if self.nested:
            found = self._found(lambda: self.lookup.cache.counts(rows.entries) > 0)
            return self._batch(rows.left, [self._matches(rows), *self._marks(rows), *found])
        if self.plan.how in ("semi", "anti"):
            if self.layout.found:
                found = self._found(lambda: self._matched(rows))
                return self._batch(rows.left, [*self._marks(rows), *found])
            kept = np.flatnonzero((self._matched(rows) == (self.plan.how == "semi")) | rows.failed)
            return self._batch(rows.left.take(pa.array(kept)), self._marks(rows, kept))
        pairs = self._pairs(rows)
        left = rows.left if pairs.left is None else rows.left.take(pa.array(pairs.left))
        right, found = self.lookup.cache.gather(pairs.right), self._found(lambda: pairs.right >= 0)
        return self._batch(left, [*right, *self._marks(rows, pairs.left), *found])

    def _found(self, mask: Callable[[], Mask]) -> list[pa.Array]:
        return [pa.array(mask())] if self.layout.found else []

    def _marks(self, rows: _Rows, taken: Numbers | None = None) -> list[pa.Array]:
        """Return the columns for age and error, where they are wanted."""
        marks: list[pa.Array] = []
        if self.plan.config.age_column is not None:
            ages = self.lookup.cache.age(rows.entries, self.lookup.clock())
            marks.append(pa.array(ages, mask=rows.entries < 0))
        if self.plan.config.error_column is not None:
            marks.append(pa.nulls(len(rows.entries), ERROR) if rows.errors is None else rows.errors)
        return marks if taken is None else [mark.take(pa.array(taken)) for mark in marks]

    def _batch(self, left: pa.RecordBatch, right: Sequence[pa.Array]) -> pa.RecordBatch:
        """Put the columns in order, and number them: Spark's reader takes two of one name for one."""
        columns = [*left.columns, *right]
        if self.layout.output is not None:
            columns = [columns[position] for position in self.layout.output]
        if not columns:
            return left.select([])  # It still has its number of rows, which one made of no columns has not.
        return pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])

    # ── pairs ────────────────────────────────────────────────────────────────────────────────────────────

    def _pairs(self, rows: _Rows) -> Pairs:
        if self.lookup.cache.unique and not self.plan.residual and rows.errors is None:
            return self._single(self.lookup.cache.starts(rows.entries))
        owner, right = self._limited(*self._surviving(rows))
        if self.plan.how == "inner":
            return Pairs(owner, right) if rows.errors is None else _padded(owner, right, rows.failed)
        return _padded(owner, right, np.ones(len(rows.entries), dtype=np.bool_))

    def _limited(self, owner: Numbers, right: Numbers) -> tuple[Numbers, Numbers]:
        """Return as many pairs of each left row as the plan wants."""
        if self.plan.matches == "all" or not len(owner):
            return owner, right
        first = np.concatenate([[True], owner[1:] != owner[:-1]])
        if self.plan.matches == "single" and not first.all():
            raise TooManyRows(too_many_rows(self.plan.table), hint=LIMIT)
        return owner[first], right[first]

    def _single(self, starts: Numbers) -> Pairs:
        """Pair rows where no key has more than one: the usual case, and nothing is repeated."""
        if self.plan.how == "left":
            return Pairs(None, starts)
        found = starts >= 0
        return Pairs(None, starts) if found.all() else Pairs(np.flatnonzero(found), starts[found])

    def _matched(self, rows: _Rows) -> Mask:
        if not self.plan.residual:
            return self.lookup.cache.counts(rows.entries) > 0
        owner, _ = self._surviving(rows)
        return np.bincount(owner, minlength=len(rows.entries)) > 0

    def _candidates(self, entries: Entries) -> tuple[Numbers, Numbers]:
        """Return every pair that the keys make: left positions and right row numbers, in left order."""
        counts = self.lookup.cache.counts(entries)
        owner = np.repeat(np.arange(len(entries)), counts)
        before = np.cumsum(counts) - counts
        right = np.arange(len(owner)) + np.repeat(self.lookup.cache.starts(entries) - before, counts)
        return owner, right

    def _surviving(self, rows: _Rows) -> tuple[Numbers, Numbers]:
        """Return the candidates for which the residual is true."""
        owner, right = self._candidates(rows.entries)
        for conjunct in self.plan.residual:
            mask = self._true(conjunct, rows.left, owner, right)
            owner, right = owner[mask], right[mask]
        return owner, right

    def _true(self, conjunct: expr.Expr, left: pa.RecordBatch, owner: Numbers, right: Numbers) -> Mask:
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

    def _matches(self, rows: _Rows) -> pa.Array:
        """Return for each left row the list of its right rows, for Spark to judge."""
        owner, right = self._surviving(rows)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(rows.entries)))])
        fields = [pa.field(name, self.schema.field(name).type) for name in self.plan.columns]
        structs = pa.StructArray.from_arrays(self.lookup.cache.gather(right), fields=fields)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)


def _padded(owner: Numbers, right: Numbers, kept: Mask) -> Pairs:
    """Give every left row that is to be kept and has no pair one with nothing, in its place."""
    counts = np.bincount(owner, minlength=len(kept))
    if (counts == 1).all():
        return Pairs(None, right)
    shown = np.where(kept, np.maximum(counts, 1), counts)
    padded = np.full(int(shown.sum()), -1, dtype=np.int64)
    padded[np.repeat(counts > 0, shown)] = right
    return Pairs(np.repeat(np.arange(len(kept)), shown), padded)


@dataclass(frozen=True, eq=False)
class _Open:
    """A batch of left rows on its way; ``wanted`` is None where nothing is looked up."""

    left: pa.RecordBatch
    wanted: Wanted | None

    @property
    def ready(self) -> bool:
        return self.wanted is None or self.wanted.ready


@dataclass(frozen=True, eq=False)
class _Rows:
    """Left rows with their entries; ``errors``, a struct of code and message, for those whose lookup failed."""

    left: pa.RecordBatch
    entries: Entries
    errors: pa.Array | None = None

    @property
    def failed(self) -> Mask:
        if self.errors is None:
            return np.zeros(len(self.entries), dtype=np.bool_)
        return self.errors.is_valid().to_numpy(zero_copy_only=False)

    def slice(self, start: int, end: int) -> _Rows:
        errors = None if self.errors is None else self.errors[start:end]
        return _Rows(self.left.slice(start, end - start), self.entries[start:end], errors)


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
