"""What `mapInArrow` is given: the one object that travels from the driver to the workers."""

from __future__ import annotations

from collections import deque
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
from lookupcache.worker.runner import Layout, Runner, counting, shared_lookup


@dataclass(frozen=True)
class Task:
    """Called in the worker: batches of the left side in, joined batches out.

    The connector is pickled by itself, so that a worker that has it open need not unpickle it again. ``letters`` is
    where dead letters go, if they are wanted: a plan does not hold what may be secret in it.
    """

    plan: LookupPlan
    connector: bytes
    layout: Layout
    channel: Channel
    letters: str | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the join over one partition."""
        return sendable(self._joined(batches))

    def _joined(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = Counters()
        yield from self.channel.reporting(self.joined(batches, counts), counts)

    def joined(self, batches: Iterable[pa.RecordBatch], counts: Counters) -> Iterator[pa.RecordBatch]:
        """Yield the joined batches of one partition; when they end, ``counts`` has what was counted."""
        lookup = self.lookup()
        runner = Runner(self.plan, self.layout, lookup, self._dead_letters())
        yield from counting(lookup, runner.run(batches), counts)

    def lookup(self) -> PartialCacheLookup:
        """Return this process's lookup for the plan."""
        return shared_lookup(self.plan, partial(unpickled, self.plan, self.connector))

    def _dead_letters(self) -> DeadLetters | None:
        """Return what writes them, with the names that the left columns do not have inside the job."""
        return None if self.letters is None else DeadLetters(self.letters, self.plan.table, self.plan.left_columns)


@dataclass(frozen=True)
class ChainTask:
    """Called in the worker: the joins of a chain, each over the batches of the one before; no batch leaves Python.

    ``channel`` reports the counts of all of them. ``ahead`` are the numbers of joins whose keys are known from the
    start, each with the positions of its key columns in the first join's batches: all their sources are asked when a
    batch comes, so that the slowest of them determines how long it takes.
    """

    tasks: tuple[Task, ...]
    channel: Channel
    ahead: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the joins over one partition."""
        return sendable(self._joined(batches))

    def _joined(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = [Counters() for _ in self.tasks]
        prefetching = {number: Prefetching(self.tasks[number].lookup(), keys) for number, keys in self.ahead}
        joined = self._prefetched(batches, list(prefetching.values()))
        try:
            for number, (task, counted) in enumerate(zip(self.tasks, counts, strict=True)):
                if number in prefetching:
                    joined = prefetching[number].refusing_errors(joined)
                joined = task.joined(joined, counted)
            yield from self.channel.reporting_all(joined, counts)
        finally:
            for one in prefetching.values():
                one.end()

    def _prefetched(
        self, batches: Iterable[pa.RecordBatch], prefetching: Sequence[Prefetching]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for one in prefetching:
                one.start(batch)
            yield batch


_MOST_PREFETCHED = 16
"""How many batches' keys are kept for a later join of a chain: more than are between the first join and that one."""


class Prefetching:
    """Asks for the keys of a later join of a chain when a batch enters the first.

    The keys of the last batches stay leased, so that they are still in a small cache when the join opens them.
    """

    def __init__(self, lookup: PartialCacheLookup, keys: Sequence[int]) -> None:
        self._lookup = lookup
        self._keys = keys
        self._pending: deque[PendingKeys] = deque()

    def start(self, batch: pa.RecordBatch) -> None:
        """Ask for the keys of a batch of the first join."""
        columns = [batch.column(position) for position in self._keys]
        if batch.num_rows:
            self._pending.append(self._lookup.prefetch(KeyBatch.of(columns, self._lookup.source.reader.key_types)))
        if len(self._pending) > _MOST_PREFETCHED:
            self._lookup.close(self._pending.popleft())

    def refusing_errors(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on what comes to the join; raise what its source failed with, rather than ask it again."""
        for batch in batches:
            self._lookup.poll()
            for pending in self._pending:
                if error := pending.broken or next(iter(pending.errors), None):
                    raise error
            yield batch

    def end(self) -> None:
        """Give up what no join will open."""
        self._lookup.abandon(self._pending)
        self._pending.clear()


@dataclass(frozen=True)
class ScanTask:
    """Called in the worker: one row in, the rows of a whole table out, after constants and calc.

    The plan caches ALL: the table is loaded, held and loaded again as for a join, and given as it is now. The rows
    have the plan's ``columns``, and behind them their age where the options want it. With ``counted`` the one row tells
    how many left rows there are, and how many with a key.
    """

    plan: LookupPlan
    connector: bytes
    channel: Channel
    counted: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the table to one partition."""
        return sendable(self._given(batches))

    def _given(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        told = [number for batch in batches for column in batch.columns for number in column.to_pylist()]
        lookup = shared_lookup(self.plan, partial(unpickled, self.plan, self.connector))
        assert isinstance(lookup, FullCacheLookup)
        counts = Counters()
        yield from self.channel.reporting(counting(lookup, self._rows(lookup, told), counts), counts)

    def _rows(self, lookup: FullCacheLookup, told: list[int]) -> Iterator[pa.RecordBatch]:
        if self.counted:
            lookup.counters["rows"] += told[0]
            lookup.counters["hits"] += told[1]
        yield from lookup.whole()


@dataclass(frozen=True)
class LetterTask:
    """Called in the worker: joined rows in, with the error of their lookup as the last column; those without out.

    The others are written as dead letters, their first columns under these names.
    """

    path: str
    table: str
    names: Sequence[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sort the rows of one partition."""
        return sendable(self._kept(batches))

    def _kept(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        letters, complete = DeadLetters(self.path, self.table, self.names), False
        try:
            for batch in batches:
                yield self._sorted(batch, letters)
            complete = True
        finally:
            letters.close(complete)

    def _sorted(self, batch: pa.RecordBatch, letters: DeadLetters) -> pa.RecordBatch:
        rows, errors = batch.select(range(batch.num_columns - 1)), batch.column(batch.num_columns - 1)
        failed = errors.is_valid()
        left = rows.select(range(len(self.names))).filter(failed)
        letters.write(left, errors.filter(failed))
        return rows.filter(pc.invert(failed))


def sendable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass batches on, and what they end with as an error that Spark can send to the driver.

    Spark's worker encodes the traceback as UTF-8; where that is impossible, the job waits for ever.
    """
    try:
        yield from batches
    except Exception as error:
        shown = presentable(error, partial(hidden, secrets=()))
        if shown is error:
            raise
        raise shown from None


def unpickled(plan: LookupPlan, connector: bytes) -> Connector:
    """Return the connector; raises ConnectorError where its module is not on this worker."""
    try:
        found: Connector = cloudpickle.loads(connector)
    except ImportError as error:
        raise ConnectorError(
            f"Connector {plan.connector!r} of table {plan.table!r} is not on this worker: {error}.",
            hint="Ship its module, with spark.addArtifact(…, pyfile=True) or spark.submit.pyFiles, or install it.",
        ) from error
    return found
