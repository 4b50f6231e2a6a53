"""The functions that `mapInArrow` runs: they are pickled on the driver and called in the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.cache.keys import KeyBatch
from lookupcache.connector import Connector
from lookupcache.error_text import presentable
from lookupcache.errors import ConnectorError
from lookupcache.metrics import Counters
from lookupcache.plan import LookupPlan
from lookupcache.redaction import hidden
from lookupcache.report import Channel
from lookupcache.worker.dead_letters import DeadLetters
from lookupcache.worker.full_cache import FullCacheLookup
from lookupcache.worker.lookup import PartialCacheLookup, PendingKeys
from lookupcache.worker.runner import Layout, Runner, report_counts, shared_lookup


@dataclass(frozen=True)
class Task:
    """Called in the worker with batches of the left side; yields joined batches.

    The connector is pickled on its own, so that a worker that already has it open does not unpickle it again.
    ``letters`` is the path for dead letters, if the options set one; it may contain a secret, so it is not in the plan.
    """

    plan: LookupPlan
    connector: bytes
    layout: Layout
    channel: Channel
    letters: str | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the join over one partition."""
        return send_errors(self._join(batches))

    def _join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = Counters()
        yield from self.channel.reporting(self.join(batches, counts), counts)

    def join(self, batches: Iterable[pa.RecordBatch], counts: Counters) -> Iterator[pa.RecordBatch]:
        """Yield the joined batches of one partition; when they end, ``counts`` has what was counted."""
        lookup = self.lookup()
        runner = Runner(self.plan, self.layout, lookup, self._dead_letters())
        yield from report_counts(lookup, runner.run(batches), counts)

    def lookup(self) -> PartialCacheLookup:
        """Return this process's lookup for the plan."""
        return shared_lookup(self.plan, partial(unpickled, self.plan, self.connector))

    def _dead_letters(self) -> DeadLetters | None:
        """Return the writer of dead letters; inside the job, left columns have no names, so it gets them here."""
        return None if self.letters is None else DeadLetters(self.letters, self.plan.table, self.plan.left_columns)


@dataclass(frozen=True)
class ChainTask:
    """Called in the worker: the joins of a chain, each over the batches of the one before; no batch leaves Python.

    ``channel`` reports the counts of all of them. ``ahead`` are the numbers of joins whose keys are known from the
    start, each with the positions of its key columns in the first join's batches: all their sources are called when a
    batch arrives, so that the slowest of them determines how long it takes.
    """

    tasks: tuple[Task, ...]
    channel: Channel
    ahead: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the joins over one partition."""
        return send_errors(self._join(batches))

    def _join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = [Counters() for _ in self.tasks]
        prefetching = {number: Prefetching(self.tasks[number].lookup(), keys) for number, keys in self.ahead}
        joined = self._prefetch(batches, list(prefetching.values()))
        try:
            for number, (task, counted) in enumerate(zip(self.tasks, counts, strict=True)):
                if number and self.tasks[number - 1].plan.how != "left":
                    joined = collect_rows(joined)
                if number in prefetching:
                    joined = prefetching[number].pass_on(joined)
                joined = task.join(joined, counted)
            yield from self.channel.reporting_all(joined, counts)
        finally:
            for one in prefetching.values():
                one.end()

    def _prefetch(
        self, batches: Iterable[pa.RecordBatch], prefetching: Sequence[Prefetching]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for one in prefetching:
                one.start(batch)
            yield batch


_FULL_BATCH = 10_000


def collect_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of small batches together: after a join that drops most rows, each call would be for few keys."""
    collected: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if not batch.num_columns:
            yield batch
            continue
        collected.append(batch)
        rows += batch.num_rows
        if rows >= _FULL_BATCH:
            yield _concatenate(collected)
            collected, rows = [], 0
    if rows:
        yield _concatenate(collected)


def _concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


_MOST_PREFETCHED = 64
"""How many batches may be between the first join of a chain and a later one before their keys are not prefetched."""


class Prefetching:
    """Requests the keys of a later join of a chain when a batch enters the first.

    The keys stay leased until the join has opened them, so that they are in its cache then, however small that is. The
    joins before it keep all rows: for each batch that enters the first, one or more enter the later one.
    """

    def __init__(self, lookup: PartialCacheLookup, keys: Sequence[int]) -> None:
        self._lookup = lookup
        self._keys = keys
        self._entered = 0
        self._opened = 0
        self._pending: dict[int, PendingKeys] = {}

    def start(self, batch: pa.RecordBatch) -> None:
        """Request the keys of a batch of the first join."""
        if not batch.num_rows:
            return
        if len(self._pending) < _MOST_PREFETCHED:
            columns = [batch.column(position) for position in self._keys]
            keys = KeyBatch.of(columns, self._lookup.source.reader.key_types)
            self._pending[self._entered] = self._lookup.prefetch(keys)
        self._entered += 1

    def pass_on(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches for the join; raise what its source failed with, instead of calling it again."""
        for batch in batches:
            self._lookup.poll()
            for pending in self._pending.values():
                if error := pending.broken or next(iter(pending.errors), None):
                    raise error
            yield batch
            # The join has asked for the next batch, so it has opened this one.
            if (opened := self._pending.pop(self._opened, None)) is not None:
                self._lookup.close(opened)
            self._opened += 1

    def end(self) -> None:
        """Abandon what no join will open."""
        self._lookup.abandon(self._pending.values())
        self._pending.clear()


@dataclass(frozen=True)
class ScanTask:
    """Called in the worker with one row; yields the rows of the full table, after constants and calc.

    The plan caches ALL: the table is loaded, cached and reloaded as for a join, and yielded as it is now. The rows have
    the plan's ``columns``, followed by their age if the options name an age column. With ``counted``, the one row
    contains the number of left rows, and of those with a key.
    """

    plan: LookupPlan
    connector: bytes
    channel: Channel
    counted: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the table to one partition."""
        return send_errors(self._scan(batches))

    def _scan(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counted = [number for batch in batches for column in batch.columns for number in column.to_pylist()]
        lookup = shared_lookup(self.plan, partial(unpickled, self.plan, self.connector))
        assert isinstance(lookup, FullCacheLookup)
        counts = Counters()
        yield from self.channel.reporting(report_counts(lookup, self._rows(lookup, counted), counts), counts)

    def _rows(self, lookup: FullCacheLookup, counted: list[int]) -> Iterator[pa.RecordBatch]:
        if self.counted:
            lookup.counters["rows"] += counted[0]
            lookup.counters["hits"] += counted[1]
        yield from lookup.all_rows()


@dataclass(frozen=True)
class LetterTask:
    """Called in the worker with joined rows whose last column is the lookup's error; yields those without error.

    The others are written as dead letters, with their first columns under ``names``.
    """

    path: str
    table: str
    names: Sequence[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Separate the rows of one partition."""
        return send_errors(self._separate(batches))

    def _separate(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        letters, complete = DeadLetters(self.path, self.table, self.names), False
        try:
            for batch in batches:
                yield self._write_failed(batch, letters)
            complete = True
        finally:
            letters.close(complete)

    def _write_failed(self, batch: pa.RecordBatch, letters: DeadLetters) -> pa.RecordBatch:
        """Write the rows with an error as dead letters; return the others."""
        rows, errors = batch.select(range(batch.num_columns - 1)), batch.column(batch.num_columns - 1)
        failed = errors.is_valid()
        left = rows.select(range(len(self.names))).filter(failed)
        letters.write(left, errors.filter(failed))
        return rows.filter(pc.invert(failed))


def send_errors(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches; raise their error as one that Spark can send to the driver.

    Spark's worker encodes the traceback as UTF-8; if that fails, the job waits forever.
    """
    try:
        yield from batches
    except Exception as error:
        shown = presentable(error, partial(hidden, secrets=()))
        if shown is error:
            raise
        raise shown from None


def unpickled(plan: LookupPlan, connector: bytes) -> Connector:
    """Return the connector; raises ConnectorError if its module is not on this worker."""
    try:
        found: Connector = cloudpickle.loads(connector)
    except ImportError as error:
        raise ConnectorError(
            f"Connector {plan.connector!r} of table {plan.table!r} is not on this worker: {error}.",
            hint="Ship its module, with spark.addArtifact(…, pyfile=True) or spark.submit.pyFiles, or install it.",
        ) from error
    return found
