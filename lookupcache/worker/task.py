"""The functions that `mapInArrow` runs: they are pickled on the driver and called in the workers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc

from lookupcache.connector import Connector
from lookupcache.error_text import clear_locals, presentable
from lookupcache.errors import ConnectorError
from lookupcache.metrics import Counters
from lookupcache.plan import LookupPlan
from lookupcache.redaction import hidden
from lookupcache.report import Channel
from lookupcache.worker.full_cache import FullCacheLookup
from lookupcache.worker.pandas_import import defer_pandas
from lookupcache.worker.partial_cache import PartialCacheLookup
from lookupcache.worker.runner import Layout, Origin, Runner, lookup_of_process, report_counts
from lookupcache.worker.shared import SharedLookup

if TYPE_CHECKING:
    from lookupcache.worker.dead_letters import DeadLetters


@dataclass(frozen=True)
class Task:
    """Called in the worker with batches of the left side; yields joined batches.

    The connector is pickled on its own, so that a worker that already has it open does not unpickle it again.
    ``letters`` is the path for dead letters, if the options set one; it may contain a secret, so it is not in the plan.
    """

    plan: LookupPlan
    connector: bytes = field(repr=False)
    layout: Layout
    channel: Channel
    letters: str | None = field(default=None, repr=False)

    @property
    def __name__(self) -> str:
        return f"lookup_join[{self.plan.table}]"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return send_errors(self._join(batches))

    def _join(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = Counters()
        yield from self.channel.reporting(self.join(batches, counts), counts)

    def join(
        self,
        batches: Iterable[pa.RecordBatch],
        counts: Counters,
        shared: SharedLookup | None = None,
        others: Sequence[SharedLookup] = (),
        origin: Origin | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the joined batches of one partition; when they end, ``counts`` has what was counted.

        In a chain, ``origin`` says where batches come from, and ``shared`` is the lookup if a join before this one has
        the same. For the first of several with one lookup, ``others`` are those of the rest.
        """
        lookup = shared or self.lookup()
        joined = Runner(self.plan, self.layout, lookup, self._dead_letters()).run(batches, origin)
        yield from report_counts(lookup, joined, counts, [other.part for other in others])

    def lookup(self) -> PartialCacheLookup:
        """Return this process's lookup for the plan."""
        return lookup_of_process(self.plan, partial(unpickle_connector, self.plan, self.connector))

    def _dead_letters(self) -> DeadLetters | None:
        """Return the writer of dead letters; inside the job, left columns have no names, so it gets them here."""
        return None if self.letters is None else _dead_letters(self.letters, self.plan.table, self.plan.left_columns)


@dataclass(frozen=True)
class NamedBatches:
    """Called in the worker: runs a task, and yields its batches with the columns that Spark was told of.

    Spark may compare both, by ``spark.sql.execution.arrow.pyspark.validateSchema.enabled``. ``columns`` are names, each
    with whether the column may have nulls.
    """

    task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    columns: Sequence[tuple[str, bool]]

    @property
    def __name__(self) -> str:
        return str(getattr(self.task, "__name__", type(self.task).__name__))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Without columns, `from_arrays` would lose the number of rows.
        return map(self._named, self.task(batches)) if self.columns else self.task(batches)

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = zip(self.columns, batch.columns, strict=True)
        schema = pa.schema([pa.field(name, column.type, nullable) for (name, nullable), column in columns])
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


@dataclass(frozen=True)
class ScanTask:
    """Called in the worker with one row; yields the rows of the full table, after constants and calc.

    The plan caches ALL: the table is loaded, cached and reloaded as for a join, and yielded as it is now. The rows have
    the plan's ``columns``, followed by their age if the options name an age column. With ``counted``, the one row
    contains the number of left rows, and of those with a key.
    """

    plan: LookupPlan
    connector: bytes = field(repr=False)
    channel: Channel
    counted: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return send_errors(self._scan(batches))

    def _scan(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counted = [number for batch in batches for column in batch.columns for number in column.to_pylist()]
        lookup = lookup_of_process(self.plan, partial(unpickle_connector, self.plan, self.connector))
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

    path: str = field(repr=False)
    table: str
    names: Sequence[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return send_errors(self._separate(batches))

    def _separate(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        letters, complete = _dead_letters(self.path, self.table, self.names), False
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


def _dead_letters(path: str, table: str, names: Sequence[str]) -> DeadLetters:
    from lookupcache.worker.dead_letters import DeadLetters  # Imports Parquet and file systems, which few jobs need.

    return DeadLetters(path, table, names)


def send_errors(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches; raise their error as one that Spark can send to the driver.

    Spark's worker encodes the traceback as UTF-8; if that fails, the job waits forever. With local variables, which it
    can show too, the traceback would contain secrets.
    """
    defer_pandas()
    try:
        yield from batches
    except Exception as error:
        clear_locals(error)
        shown = presentable(error, partial(hidden, secrets=()))
        if shown is error:
            raise
        raise shown from None


def unpickle_connector(plan: LookupPlan, connector: bytes) -> Connector:
    """Return the connector; raises ConnectorError if its module is not on this worker."""
    exempt_loaded_modules()
    try:
        found: Connector = cloudpickle.loads(connector)
    except ImportError as error:
        raise ConnectorError(
            f"Connector {plan.connector!r} of table {plan.table!r} is not on this worker: {error}.",
            hint="Ship its module, with spark.addArtifact(…, pyfile=True) or spark.submit.pyFiles, or install it.",
        ) from error
    return found


@cache
def exempt_loaded_modules() -> None:
    """Exempt what this process has loaded by now from garbage collection.

    Importing a connector and its driver creates many objects. The collector would then look through all modules of the
    worker, which takes as long as some of these imports. Only once per process: garbage in a cycle is not freed any
    more.
    """
    gc.freeze()
