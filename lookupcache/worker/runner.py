"""The join in a Python worker: Arrow batches in, Arrow batches out; no code handles a single row.

    batch ─► keys ─► open (cache, or calls to the source) ─► read ahead: the next batch, while calls are in flight
    ready ─► entries ─► pairs of left and right rows ─► residual ─► pad ─► batch

The connector and its cache outlive a task: `lookup_of_process` keeps them by the plan's fingerprint.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lookupcache import expr
from lookupcache.arrays import from_numpy, to_numpy
from lookupcache.cache.entry_columns import AnyEntries, Readable
from lookupcache.cache.keys import KeyBatch, Mask
from lookupcache.connector import Connector
from lookupcache.errors import TooManyRowsError
from lookupcache.metrics import Counters, SharedCounters
from lookupcache.plan import LookupPlan, own_name
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.partial_cache import PartialCacheLookup, PendingKeys, count_non_null
from lookupcache.worker.shared import SharedLookup
from lookupcache.worker.source import Source

if TYPE_CHECKING:
    from lookupcache.worker.dead_letters import DeadLetters

Numbers = npt.NDArray[np.int64]

MATCHES = "matches"
"""The column with all right rows of a left row, if Spark evaluates conjuncts over them."""

ERROR = pa.struct([("code", pa.string()), ("message", pa.string())])
"""The type of the error column."""

_MOST_ROWS_OUT = 65_536
_MOST_OPEN_BYTES = 64 << 20
_MOST_LOOKUPS = 64


def too_many_rows(table: str) -> TooManyRowsError:
    """Return the error for a left row that may have one match in a table, but has several."""
    return TooManyRowsError(
        f"The lookup in table {table!r} found more than one row for a left row. "
        "A scalar sub-query and matches='single' allow one.",
        hint="If any of them may be used, add LIMIT 1 to the sub-query, or pass matches='first'.",
    )


@dataclass(frozen=True)
class Layout:
    """The columns of the batches: input is the left columns, then the key columns that are not left columns.

    - ``left``: the names of the left columns, in order; ``keys``: the position of each key column.
    - ``output``: the columns of the joined batches, as positions. The left columns come first, then those of the lookup
      table, the age and the error, if the options name columns for them. By default all, in that order.
    - ``weights``: if rows are distinct keys, the positions of two numbers. They are the left rows that a row stands
      for, and those of them with a key.
    - ``found``: add a last column that says whether a row has a match; a semi or anti join then keeps all rows.
    - ``letters``: rows marked with an error become dead letters later, and are counted as such.
    """

    left: tuple[str, ...]
    keys: tuple[int, ...]
    output: tuple[int, ...] | None = None
    weights: tuple[int, int] | None = None
    found: bool = False
    letters: bool = False


@dataclass
class Origin:
    """Where the batch comes from that the joins of a chain have just yielded or been given.

    ``number`` is that of a batch of the first join; ``is_last`` says whether it is the last part of it. All joins of a
    chain share one: a batch is opened before the next one is requested.
    """

    number: int = 0
    is_last: bool = True


@dataclass(frozen=True)
class Pairs:
    """Pairs of left and right rows: positions in the batch, and row numbers in the cache.

    ``left`` is None for every left row once, in order; ``right`` is -1 for a left row without a match.
    """

    left: Numbers | None
    right: Numbers


class Runner:
    """Joins batches under a plan.

    ``letters`` writes the dead letters, with ``lookup.on-error`` = ``dead-letter``.

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
        self,
        plan: LookupPlan,
        layout: Layout,
        lookup: PartialCacheLookup | SharedLookup,
        letters: DeadLetters | None = None,
    ) -> None:
        self.plan = plan
        self.layout = layout
        self.lookup = lookup
        self.letters = letters
        self._process = os.getpid()
        self.nested = plan.lists_matches
        self.schema = plan.columns_schema

    def run(self, batches: Iterable[pa.RecordBatch], origin: Origin | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the joined batches; a left row's matches are adjacent, and a batch's left rows keep their order.

        So do batches, unless ``lookup.async.output-mode`` allows to yield them as soon as they are ready. While calls
        to the source are in flight, batches are read ahead, as long as more calls may be made. Raises
        LookupRuntimeError if a lookup failed and ``lookup.on-error`` is ``fail``. If the caller stops early, calls are
        cancelled. A process that was forked starts with an empty cache, and connects itself. In a chain, ``origin``
        tells where each batch comes from, and then where each joined one does.
        """
        origin = origin or Origin()
        if self._process != os.getpid():
            self._start_anew()
        window: deque[_OpenBatch] = deque()
        complete = False
        try:
            for batch in batches:
                if batch.num_rows:
                    with self.lookup.counters.timed("lookup_seconds"):
                        window.append(self._open(batch, replace(origin)))
                    yield from self._emit_ready(window, origin)
            self.lookup.hurry()
            while window:
                yield from self._emit_ready(window, origin, last=True)
            complete = True
        finally:
            try:
                # The process may end with the task.
                self.lookup.source.flush()
            finally:
                try:
                    self.lookup.abandon([one.pending for one in window if one.pending is not None])
                finally:
                    if self.letters is not None:
                        self.letters.close(complete)

    def _start_anew(self) -> None:
        """Replace the lookup of the parent process: its threads do not exist here, and may have its locks."""
        _inherited.append(self.lookup)
        self._process = os.getpid()
        self.lookup = lookup_of(self.lookup.source.anew())

    def _emit_ready(self, window: deque[_OpenBatch], origin: Origin, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the batches that are ready; wait if no further batch can be opened."""
        while window:
            self.lookup.poll()
            self._raise_errors(window)
            ready = self._ready(window)
            for one in ready:
                window.remove(one)
                with self.lookup.counters.timed("lookup_seconds"):
                    parts = self._join(one)
                for position, part in enumerate(parts, 1):
                    origin.number = one.origin.number
                    origin.is_last = one.origin.is_last and position == len(parts)
                    yield part
            if not window or not (last or self._is_full(window)):
                return
            # While this generator was suspended, another runner of the same lookup may have completed the calls that
            # this one would wait for. So check again before waiting.
            if not ready:
                with self.lookup.counters.timed("lookup_seconds"):
                    self.lookup.wait(room=not last and not self._is_large(window))

    def _ready(self, window: deque[_OpenBatch]) -> list[_OpenBatch]:
        """Return the batches to emit: all that are ready, or if order matters, those before the first that is not."""
        if self.plan.config.output_mode == "allow-unordered":
            return [one for one in window if one.ready]
        return list(takewhile(lambda one: one.ready, window))

    def _is_full(self, window: deque[_OpenBatch]) -> bool:
        """Return whether to wait instead of reading ahead."""
        return self.lookup.in_flight >= self.lookup.capacity or self._is_large(window)

    def _is_large(self, window: deque[_OpenBatch]) -> bool:
        return sum(one.left.nbytes for one in window) > _MOST_OPEN_BYTES

    def _raise_errors(self, window: Iterable[_OpenBatch]) -> None:
        for one in window:
            if one.pending is not None and one.pending.broken is not None:
                raise one.pending.broken
            if one.pending is not None and one.pending.errors and self.plan.config.on_error == "fail":
                raise one.pending.errors[0]

    def _open(self, batch: pa.RecordBatch, origin: Origin) -> _OpenBatch:
        left = batch.select(list(range(len(self.layout.left))))
        if self.plan.never:
            self.lookup.counters["rows"] += int(self._weights(left)[0].sum())
            return _OpenBatch(left, None, origin)
        columns = [batch.column(position) for position in self.layout.keys]
        keys = KeyBatch.of(columns, self.lookup.source.reader.key_types, self.lookup.source.hash_seed)
        pending = self.lookup.open(keys)
        if self.layout.weights is not None:
            rows, keyed = self._weights(left)
            self.lookup.counters["rows"] += int(rows.sum()) - len(keys)
            self.lookup.counters["hits"] += int(keyed.sum()) - count_non_null(keys)
        return _OpenBatch(left, pending, origin)

    def _weights(self, left: pa.RecordBatch) -> tuple[Numbers, Numbers]:
        """Return for each row how many left rows it stands for, and how many of them have a key."""
        if self.layout.weights is None:
            one = np.ones(left.num_rows, dtype=np.int64)
            return one, one
        rows, keyed = (to_numpy(left.column(position)) for position in self.layout.weights)
        return rows, keyed

    def _join(self, one: _OpenBatch) -> list[pa.RecordBatch]:
        if one.pending is None:
            none = np.full(one.left.num_rows, -1, dtype=np.int32)
            return self._emit_parts(_Rows(one.left, none, self.lookup.cache))
        try:
            stored, entries = one.pending.resolve()
            rows = _Rows(one.left, entries, stored)
            if one.pending.errors:
                rows = self._mark_failed(rows, one.pending)
            return self._emit_parts(rows)
        finally:
            self.lookup.close(one.pending)

    def _mark_failed(self, rows: _Rows, pending: PendingKeys) -> _Rows:
        """Mark the rows whose lookup failed, or write them as dead letters and return the others."""
        assert pending.error_of is not None
        failed = pending.error_of > 0
        kinds = [{"code": error.code, "message": error.fact} for error in pending.errors]
        number = from_numpy(pending.error_of - 1, ~failed)
        errors = pa.array(kinds, ERROR).take(number)
        if self.letters is None:
            name = "dead_letters" if self.layout.letters else "failed_rows"
            self.lookup.counters[name] += int(self._weights(rows.left)[0][failed].sum())
            return replace(rows, errors=errors)
        self.lookup.counters["dead_letters"] += int(np.count_nonzero(failed))
        self.letters.write(rows.left.filter(from_numpy(failed)), errors.filter(from_numpy(failed)))
        return replace(rows, left=rows.left.filter(from_numpy(~failed)), entries=rows.entries[~failed])

    def _emit_parts(self, rows: _Rows) -> list[pa.RecordBatch]:
        return [self._emit(part) for part in self._split(rows)]

    def _split(self, rows: _Rows) -> Iterator[_Rows]:
        """Split a batch whose rows have too many matches for one batch of the result."""
        if rows.stored.unique:
            yield rows
            return
        total = np.cumsum(np.maximum(rows.stored.counts(rows.entries), 1))
        start = 0
        while start < len(rows.entries):
            before = total[start - 1] if start else 0
            end = max(int(np.searchsorted(total, before + _MOST_ROWS_OUT, side="right")), start + 1)
            yield rows.slice(start, end)
            start = end

    def _emit(self, rows: _Rows) -> pa.RecordBatch:
        if self.nested:
            found = self._found_column(lambda: rows.stored.counts(rows.entries) > 0)
            return self._batch(rows.left, [self._matches(rows), *self._marks(rows), *found])
        if self.plan.how in ("semi", "anti"):
            if self.layout.found:
                found = self._found_column(lambda: self._match_residual(rows))
                return self._batch(rows.left, [*self._marks(rows), *found])
            kept = np.flatnonzero((self._match_residual(rows) == (self.plan.how == "semi")) | rows.failed)
            return self._batch(rows.left.take(from_numpy(kept)), self._marks(rows, kept))
        pairs = self._pairs(rows)
        left = rows.left if pairs.left is None else rows.left.take(from_numpy(pairs.left))
        right, found = rows.stored.gather(pairs.right), self._found_column(lambda: pairs.right >= 0)
        return self._batch(left, [*right, *self._marks(rows, pairs.left), *found])

    def _found_column(self, mask: Callable[[], Mask]) -> list[pa.Array]:
        return [from_numpy(mask())] if self.layout.found else []

    def _marks(self, rows: _Rows, taken: Numbers | None = None) -> list[pa.Array]:
        """Return the age and error columns, if the options name them."""
        marks: list[pa.Array] = []
        if self.plan.config.age_column is not None:
            ages = rows.stored.age(rows.entries, self.lookup.clock())
            marks.append(from_numpy(ages, np.isnan(ages)))
        if self.plan.config.error_column is not None:
            marks.append(pa.nulls(len(rows.entries), ERROR) if rows.errors is None else rows.errors)
        return marks if taken is None else [mark.take(from_numpy(taken)) for mark in marks]

    def _batch(self, left: pa.RecordBatch, right: Sequence[pa.Array]) -> pa.RecordBatch:
        """Select the output columns, and name them by number: both sides may have a column of the same name."""
        columns = [*left.columns, *right]
        if self.layout.output is not None:
            columns = [columns[position] for position in self.layout.output]
        if not columns:
            return left.select([])  # Keeps the number of rows, which `from_arrays` without columns would lose.
        return pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])

    # ── pairs ────────────────────────────────────────────────────────────────────────────────────────────

    def _pairs(self, rows: _Rows) -> Pairs:
        if rows.stored.unique and not self.plan.residual and rows.errors is None:
            return self._single(rows.stored.starts(rows.entries))
        owner, right = self._limit(*self._latest(rows.stored, *self._pass_residual(rows)))
        if self.plan.how == "inner":
            return Pairs(owner, right) if rows.errors is None else _pad(owner, right, rows.failed)
        return _pad(owner, right, np.ones(len(rows.entries), dtype=np.bool_))

    def _latest(self, stored: Readable, owner: Numbers, right: Numbers) -> tuple[Numbers, Numbers]:
        """Return of each left row the pairs with its greatest version, if the plan requests those."""
        if self.plan.latest is None or not len(owner):
            return owner, right
        # Workers of other joins do not need the module.
        from lookupcache.worker.versions import greatest_of_each

        versions = stored.gather(right)[self.plan.columns.index(self.plan.latest)]
        latest = greatest_of_each(owner, versions)
        return owner[latest], right[latest]

    def _limit(self, owner: Numbers, right: Numbers) -> tuple[Numbers, Numbers]:
        """Return as many pairs of each left row as the plan allows."""
        if self.plan.matches == "all" or not len(owner):
            return owner, right
        first = np.concatenate([[True], owner[1:] != owner[:-1]])
        if self.plan.matches == "single" and not first.all():
            raise too_many_rows(self.plan.table)
        return owner[first], right[first]

    def _single(self, starts: Numbers) -> Pairs:
        """Pair rows if no key has more than one row: the usual case, in which no left row is repeated."""
        if self.plan.how == "left":
            return Pairs(None, starts)
        found = starts >= 0
        return Pairs(None, starts) if found.all() else Pairs(np.flatnonzero(found), starts[found])

    def _match_residual(self, rows: _Rows) -> Mask:
        if not self.plan.residual:
            return rows.stored.counts(rows.entries) > 0
        owner, _ = self._pass_residual(rows)
        return np.bincount(owner, minlength=len(rows.entries)) > 0

    def _candidates(self, rows: _Rows) -> tuple[Numbers, Numbers]:
        """Return all pairs with equal keys: left positions and right row numbers, in left order."""
        counts = rows.stored.counts(rows.entries)
        owner = np.repeat(np.arange(len(counts)), counts)
        before = np.cumsum(counts) - counts
        right = np.arange(len(owner)) + np.repeat(rows.stored.starts(rows.entries) - before, counts)
        return owner, right

    def _pass_residual(self, rows: _Rows) -> tuple[Numbers, Numbers]:
        """Return the pairs with equal keys for which the residual is true."""
        owner, right = self._candidates(rows)
        for conjunct in self.plan.residual:
            mask = self._true(conjunct, rows, owner, right)
            owner, right = owner[mask], right[mask]
        return owner, right

    def _true(self, conjunct: expr.Expr, rows: _Rows, owner: Numbers, right: Numbers) -> Mask:
        columns = dict(zip(self.plan.columns, rows.stored.gather(right), strict=True))
        index = from_numpy(owner)

        def resolve(column: expr.Column) -> pa.Array:
            if column.side == "right":
                return columns[column.name]
            values = rows.left.column(self.layout.left.index(column.name)).take(index)
            return values if values.type == column.type else values.cast(column.type)

        answer = expr.evaluate(conjunct, resolve)
        if isinstance(answer, pa.Scalar):
            return np.full(len(owner), bool(answer.as_py()))
        return to_numpy(answer.fill_null(False))

    def _matches(self, rows: _Rows) -> pa.Array:
        """Return for each left row the list of its right rows, over which Spark evaluates the rest."""
        owner, right = self._pass_residual(rows)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(rows.entries)))])
        schema, names = self.plan.schema, self.plan.schema.names
        fields = [pa.field(own_name("r", names.index(n), n), schema.field(n).type) for n in self.plan.columns]
        structs = pa.StructArray.from_arrays(rows.stored.gather(right), fields=fields)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)


def _pad(owner: Numbers, right: Numbers, kept: Mask) -> Pairs:
    """Add a pair with -1 for every left row to keep that has no pair, at the left row's position."""
    counts = np.bincount(owner, minlength=len(kept))
    if (counts == 1).all():
        return Pairs(None, right)
    shown = np.where(kept, np.maximum(counts, 1), counts)
    padded = np.full(int(shown.sum()), -1, dtype=np.int64)
    padded[np.repeat(counts > 0, shown)] = right
    return Pairs(np.repeat(np.arange(len(kept)), shown), padded)


@dataclass(frozen=True, eq=False)
class _OpenBatch:
    """A batch of left rows that is open; ``pending`` is None if nothing is looked up."""

    left: pa.RecordBatch
    pending: PendingKeys | None
    origin: Origin

    @property
    def ready(self) -> bool:
        return self.pending is None or self.pending.ready


@dataclass(frozen=True, eq=False)
class _Rows:
    """Left rows with their entries in ``stored``; ``errors``: code and message of those whose lookup failed."""

    left: pa.RecordBatch
    entries: AnyEntries
    stored: Readable
    errors: pa.Array | None = None

    @property
    def failed(self) -> Mask:
        if self.errors is None:
            return np.zeros(len(self.entries), dtype=np.bool_)
        return to_numpy(self.errors.is_valid())

    def slice(self, start: int, end: int) -> _Rows:
        errors = None if self.errors is None else self.errors[start:end]
        return _Rows(self.left.slice(start, end - start), self.entries[start:end], self.stored, errors)


# ── shared by tasks ──────────────────────────────────────────────────────────────────────────────────────

_lookups: OrderedDict[str, PartialCacheLookup] = OrderedDict()

_inherited: list[PartialCacheLookup | SharedLookup] = []
"""Lookups of the parent process. They are kept: to close their connections would end those of the parent."""


def _leave_lookups_of_parent() -> None:
    _inherited.extend(_lookups.values())
    _lookups.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_lookups_of_parent)


def lookup_of_process(plan: LookupPlan, connector: Callable[[], Connector]) -> PartialCacheLookup:
    """Return this process's lookup for the plan; ``connector`` is called for the first task that needs it.

    Joins whose plans have the same fingerprint share it. If there are more than 64, the least recently used is closed,
    as is one whose rows are kept by what the source has read from elsewhere before.
    """
    name = plan.fingerprint
    if name in _lookups and _lookups[name].source.is_outdated:
        _lookups.pop(name).disconnect()
    if name not in _lookups:
        _lookups[name] = lookup_of(Source(plan, connector(), SharedCounters()))
        while len(_lookups) > _MOST_LOOKUPS:
            _lookups.popitem(last=False)[1].disconnect()
    _lookups.move_to_end(name)
    return _lookups[name]


def report_counts(
    lookup: PartialCacheLookup | SharedLookup,
    batches: Iterator[pa.RecordBatch],
    into: Counters,
    parts: Sequence[Counters] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield batches; when they end or fail, write the lookup's counts since the start into ``into``.

    Other joins of the lookup report the counts in ``parts``, which are subtracted.
    """
    before = Counters(lookup.counters)
    try:
        yield from batches
    finally:
        into.update(lookup.counters.since(before))
        if isinstance(lookup, SharedLookup):
            into.update(dict(lookup.part))
        for part in parts:
            into.subtract(dict(part))  # a copy, as above: the calls of another join may still add counts
        into.update(dict(zip(("cached_rows", "cached_bytes", "cached_keys"), lookup.content(), strict=True)))
