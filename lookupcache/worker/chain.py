"""Several joins in one Python stage: what `mapInArrow` runs for a chain of lookup joins.

batches ─► prefetch the keys that are known ─► first join ─► filter, compute ─► small batches together ─► second join ─►
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lookupcache.cache.keys import KeyBatch
from lookupcache.expr import Column, Expr, evaluate, keep
from lookupcache.metrics import Counters
from lookupcache.report import ChannelChain
from lookupcache.worker.partial_cache import PartialCacheLookup, PendingKeys
from lookupcache.worker.runner import Origin
from lookupcache.worker.shared import SharedLookup
from lookupcache.worker.task import Task, send_errors


@dataclass(frozen=True)
class Between:
    """What the worker does with the batches between two joins.

    Rows stay for which all ``filters`` are true. ``columns`` are what the next join reads: the position of a column in
    the batches of the join before, or an expression. In expressions such positions are the names of columns.
    """

    filters: tuple[Expr, ...]
    columns: tuple[int | Expr, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the next join's batches."""
        for batch in batches:
            kept = keep(batch, self.filters, _column)
            if kept.num_rows:
                yield self._select(kept)

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(one) if isinstance(one, int) else _compute(one, batch) for one in self.columns]
        return pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])


def _compute(expression: Expr, batch: pa.RecordBatch) -> pa.Array:
    values = evaluate(expression, functools.partial(_column, batch))
    if isinstance(values, pa.Scalar):
        values = pa.repeat(values, batch.num_rows)
    return values if values.type == expression.type else values.cast(expression.type)


def _column(batch: pa.RecordBatch, column: Column) -> pa.Array:
    # Spark sends timestamps in the session's zone.
    values = batch.column(int(column.name))
    return values if values.type == column.type else values.cast(column.type)


@dataclass(frozen=True)
class ChainTask:
    """Called in the worker: the joins of a chain, each over the batches of the one before; no batch leaves Python.

    ``between`` is for each join but the last what follows it, None where the next join takes its batches as they are.
    ``channel`` reports the counts of all of them. ``ahead`` are the joins whose keys are known from the start, by
    number. Each has the positions of its key columns in the first join's batches. All their sources are called when a
    batch arrives, so that the slowest of them determines the time.
    """

    tasks: tuple[Task, ...]
    channel: ChannelChain
    ahead: tuple[tuple[int, tuple[int, ...]], ...] = ()
    between: tuple[Between | None, ...] = ()

    @property
    def __name__(self) -> str:
        return f"lookup_join[{', '.join(task.plan.table for task in self.tasks)}]"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return send_errors(self._join(batches))

    def _join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = [Counters() for _ in self.tasks]
        shared = self._shared_lookups()
        origin = Origin()
        prefetching = {
            number: Prefetching(shared.get(number) or self.tasks[number].lookup(), keys, origin)
            for number, keys in self.ahead
        }
        joined = self._prefetch(batches, list(prefetching.values()), origin)
        try:
            for number, (task, counted) in enumerate(zip(self.tasks, counts, strict=True)):
                if number:
                    joined = self._follow(number - 1, joined)
                if number in prefetching:
                    joined = prefetching[number].pass_on(joined)
                joined = task.join(joined, counted, shared.get(number), self._others(number, shared), origin)
            yield from self.channel.reporting_all(joined, counts)
        finally:
            for one in prefetching.values():
                one.end()

    def _shared_lookups(self) -> dict[int, SharedLookup]:
        """Return the lookups of joins before which another join of the chain has the same."""
        names = [task.plan.fingerprint for task in self.tasks]
        repeated = (number for number, name in enumerate(names) if name in names[:number])
        return {number: SharedLookup(self.tasks[number].lookup()) for number in repeated}

    def _others(self, number: int, shared: Mapping[int, SharedLookup]) -> list[SharedLookup]:
        """Return for the first of several joins with the same lookup what the others have of it."""
        name = self.tasks[number].plan.fingerprint
        alike = [one for other, one in shared.items() if self.tasks[other].plan.fingerprint == name]
        return [] if number in shared else alike

    def _follow(self, number: int, joined: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a join as the next one reads them."""
        between = self.between[number]
        if between is not None:
            joined = between(joined)
        drops = self.tasks[number].plan.how != "left" or (between is not None and between.filters)
        return collect_rows(joined) if drops else joined

    def _prefetch(
        self, batches: Iterable[pa.RecordBatch], prefetching: Sequence[Prefetching], origin: Origin
    ) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            for one in prefetching:
                one.start(batch, number)
            origin.number, origin.is_last = number, True
            yield batch


_FULL_BATCH = 10_000
_FULL_BYTES = 64 << 20
"""How many rows, or bytes of them, small batches are collected to."""


def collect_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of small batches together: after a join that drops most rows, each call would be for few keys."""
    collected: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_columns:
            yield batch
            continue
        collected.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _FULL_BATCH or size >= _FULL_BYTES:
            yield from _concatenate(collected)
            collected, rows, size = [], 0, 0
    if rows:
        yield from _concatenate(collected)


def _concatenate(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return one batch, or several where a column has more text or bytes than one batch can hold."""
    return batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()


_MOST_PREFETCHED = 64
"""How many batches may be between the first join of a chain and a later one before their keys are not prefetched."""


class Prefetching:
    """Requests the keys of a later join of a chain when a batch enters the first.

    The keys stay leased until the join has opened them, so that they are in its cache then, however small that is. The
    joins before it keep all rows, but may yield them in several batches, and in another order. ``origin`` tells from
    which batch of the first join they come.
    """

    def __init__(self, lookup: PartialCacheLookup | SharedLookup, keys: Sequence[int], origin: Origin) -> None:
        self._lookup = lookup
        self._keys = keys
        self._origin = origin
        self._pending: dict[int, PendingKeys] = {}

    def start(self, batch: pa.RecordBatch, number: int) -> None:
        """Request the keys of a batch of the first join."""
        if batch.num_rows and len(self._pending) < _MOST_PREFETCHED:
            columns = [batch.column(position) for position in self._keys]
            keys = KeyBatch.of(columns, self._lookup.source.reader.key_types, self._lookup.source.hash_seed)
            self._pending[number] = self._lookup.prefetch(keys)

    def pass_on(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches for the join; raise what its source failed with, instead of calling it again."""
        for batch in batches:
            number, is_last = self._origin.number, self._origin.is_last
            self._lookup.poll()
            for pending in self._pending.values():
                if error := pending.broken or next(iter(pending.errors), None):
                    raise error
            arriving = self._pending.get(number)
            if arriving is None:
                yield batch
                continue
            with arriving.arriving():
                yield batch
            # The join has requested the next batch, so it has opened this one.
            if is_last:
                self._lookup.close(self._pending.pop(number))

    def end(self) -> None:
        """Abandon what no join will open."""
        self._lookup.abandon(self._pending.values())
        self._pending.clear()
