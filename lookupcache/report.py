"""Transfers counts from tasks to the driver: through an accumulator, or through `DataFrame.observe`.

A task reports once, when it ends. A report contains stage, partition, attempt and worker. So a task that ran twice
counts once, and so does a cache that several tasks used. It also has its time, so that the content of a cache is that
of the worker's last report.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql import types as T  # noqa: N812

from lookupcache.errors import OptionError
from lookupcache.metrics import GAUGES, LookupMetrics, nest_source_counts
from lookupcache.plan import LookupPlan

Report = dict[str, Any]
Ledger = dict[tuple[int, int], dict[int, dict[str, Report]]]

COLUMN = "lookup_report"
"""The column with a task's report, as JSON, in a separate row."""

SEVERAL = "several"
"""Set in a report that is the sum of those of several workers."""

OBSERVED = "lookup"
"""The name of the counts among a query's observed metrics."""

_SUMMED = {field.name for field in dataclasses.fields(LookupMetrics)} - {*GAUGES, "source_counts"}
_WHOLE = {field.name for field in dataclasses.fields(LookupMetrics) if field.type == "int"}
_MOST_TASKS = 4_096
_MERGED = (-1, -1)
_joins = itertools.count(1)
# Spark merges updates in a thread of the driver, while others read the ledger.
_ledger_lock = threading.RLock()


def _reset_after_fork() -> None:
    """Replace a lock that a thread of the parent process may hold."""
    global _ledger_lock
    _ledger_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def report(counts: Mapping[str, float]) -> Report:
    """Return a task's report; called in the task."""
    context = TaskContext.get()
    position = (context.stageId(), context.partitionId(), context.attemptNumber()) if context else (0, 0, 0)
    own: Report = dict(zip(("stage", "partition", "attempt"), position, strict=True))
    own |= {"run": uuid.uuid4().hex, "worker": _worker(), "ended": time.time()}
    return own | nest_source_counts(counts)


def _worker() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def total(reports: Iterable[Report]) -> LookupMetrics:
    """Add up reports; of `GAUGES`, only the last report of each worker counts.

    >>> total([{"worker": "a", "hits": 3, "cached_rows": 5}, {"worker": "a", "hits": 1, "cached_rows": 7}]).cached_rows
    7
    """
    counts, content = add_up(reports)
    return sum((LookupMetrics.of(one) for one in content.values()), counts)


def add_up(reports: Iterable[Report]) -> tuple[LookupMetrics, dict[str, Report]]:
    """Return the counts of reports without `GAUGES`, and for each worker its last report of those."""
    counts: dict[str, Any] = {}
    own: dict[str, float] = {}
    content: dict[str, Report] = {}
    for one in sorted(reports, key=ended):
        for name, value in one.items():
            if value and name in _SUMMED:
                counts[name] = counts.get(name, 0) + value
        for name, value in (one.get("source_counts") or {}).items():
            own[name] = own.get(name, 0) + value
        own_content = {name: one.get(name) or 0 for name in GAUGES}
        content[one["worker"]] = own_content | {"ended": ended(one)}
    return LookupMetrics(**counts, source_counts=own), content


def ended(one: Report) -> float:
    """Return when a report was made, in seconds since 1970; 0 if it does not say."""
    return one.get("ended") or 0.0


class LedgerParam(AccumulatorParam[Ledger]):
    """Collects reports; of each partition of a stage, those of the latest attempt count."""

    def zero(self, value: Ledger) -> Ledger:
        return {}

    def addInPlace(self, value1: Ledger, value2: Ledger) -> Ledger:  # noqa: N802 - Spark's name
        """Merge two ledgers into the first."""
        with _ledger_lock:
            for task, attempts in value2.items():
                for attempt, runs in attempts.items():
                    value1.setdefault(task, {}).setdefault(attempt, {}).update(runs)
            if len(value1) > _MOST_TASKS:
                _merge_old_stages(value1)
        return value1


def entry(one: Report) -> Ledger:
    return {(one["stage"], one["partition"]): {one["attempt"]: {one["run"]: one}}}


def reports_of(ledger: Ledger) -> list[Report]:
    """Return the reports that count: those of the latest attempt of every task."""
    with _ledger_lock:
        return [one for attempts in ledger.values() for one in attempts[max(attempts)].values()]


def _merge_old_stages(ledger: Ledger) -> None:
    """Merge the reports of the older half of the stages, so that the ledger of a long-running query stays small."""
    stages = sorted({stage for stage, _ in ledger})
    old = set(stages[: len(stages) // 2])
    by_worker: dict[str, list[Report]] = {}
    for one in reports_of({task: ledger[task] for task in sorted(ledger) if task[0] in old}):
        by_worker.setdefault(one["worker"], []).append(one)
    rest = {task: attempts for task, attempts in ledger.items() if task[0] not in old}
    ledger.clear()
    ledger[_MERGED] = {0: {name: _merge(name, reports) for name, reports in by_worker.items()}}
    ledger.update(rest)


def _merge(worker: str, reports: list[Report]) -> Report:
    last = max(map(ended, reports))
    return {**dataclasses.asdict(total(reports)), "worker": worker, "run": worker, "ended": last}


# ── channels ─────────────────────────────────────────────────────────────────────────────────────────────


class Channel:
    """Transfers counts to the driver; this class reports none."""

    def fields(self) -> list[T.StructField]:
        """Return the columns that the channel adds to the worker's output."""
        return []

    def observe_reports(self, df: DataFrame) -> DataFrame:
        """Remove those columns on the driver."""
        return df

    def reporting(self, batches: Iterator[pa.RecordBatch], counts: Mapping[str, float]) -> Iterator[pa.RecordBatch]:
        """Yield a task's batches, then report its counts."""
        return self.counting(batches, counts)

    def counting(self, batches: Iterator[pa.RecordBatch], counts: Mapping[str, float]) -> Iterator[pa.RecordBatch]:
        """Yield a task's batches, then report its counts, but not in the columns of `fields`."""
        return batches

    def metrics(self) -> LookupMetrics:
        """Return the counts of the tasks that have ended."""
        raise OptionError("The join's metrics are off.", hint="Set 'lookup.metrics' to 'auto'.")

    def reports(self) -> list[Report]:
        """Return the reports that have arrived, without waiting for any."""
        return []

    def metrics_in(self, progress: Any) -> LookupMetrics:
        """Return the counts in a StreamingQueryProgress."""
        raise OptionError(
            "The join's counts are not in a query's progress.",
            hint="Use metrics(); those of a stream are in its progress with 'lookup.metrics' = 'auto' or 'observe'.",
        )


class AccumulatorChannel(Channel):
    """Reports counts through an accumulator of classic Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self.accumulator = spark.sparkContext.accumulator({}, LedgerParam())

    def counting(self, batches: Iterator[pa.RecordBatch], counts: Mapping[str, float]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        finally:
            self.accumulator.add(entry(report(counts)))

    def metrics(self) -> LookupMetrics:
        return total(self.reports())

    def reports(self) -> list[Report]:
        return reports_of(self.accumulator.value)


class ObserveChannel(Channel):
    """Reports counts as an additional row per task, which Spark observes and which is then removed.

    Each query that contains the join has its own observation, because Spark attaches one only once.
    """

    def __init__(self, name: str, *, streaming: bool) -> None:
        self.name = name
        self.streaming = streaming
        self.observations: list[Observation] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "streaming": self.streaming, "observations": []}

    def fields(self) -> list[T.StructField]:
        return [T.StructField(COLUMN, T.StringType())]

    def observe_reports(self, df: DataFrame) -> DataFrame:
        """Observe the reports, and drop their rows and column."""
        rows = self.observe(df, COLUMN)
        return rows.where(F.col(COLUMN).isNull()).drop(COLUMN)

    def observe(self, df: DataFrame, column: str) -> DataFrame:
        """Observe the reports in a column."""
        if self.streaming:
            return df.observe(self.name, F.expr(_observed_sql(column)).alias(OBSERVED))
        self.observations.append(Observation(self.name))
        # As text: a Spark Connect server of Spark 4.0 fails a query that observes a struct. Added up by the client: two
        # threads of a server evaluate this at once, with the same state, and may fail the query where it takes long.
        return df.observe(
            self.observations[-1], F.expr(f"array_join(collect_list({column}), char(10))").alias(OBSERVED)
        )

    def reporting(self, batches: Iterator[pa.RecordBatch], counts: Mapping[str, float]) -> Iterator[pa.RecordBatch]:
        """Yield batches with an empty report column, then a row that contains only the report."""
        return _with_reports(self.counting(batches, counts), [partial(self.report, counts)])

    def report(self, counts: Mapping[str, float]) -> str:
        """Return the report of counts, as JSON."""
        if self.streaming:
            return _stream_report(counts)
        return json.dumps({name: value for name, value in report(counts).items() if value})

    def metrics(self) -> LookupMetrics:
        """Return the counts of the first action; on classic Spark, waits until there has been one."""
        if self.streaming:
            raise OptionError(
                "The observed metrics of a stream are in its progress.",
                hint="Use metrics_in(query.lastProgress), or 'lookup.metrics' = 'accumulator'.",
            )
        # On Spark Connect an observation is empty until its query has run. Classic Spark has only one here.
        found = [observation.get for observation in self.observations]
        return total(_from_text(next(filter(None, found), found[0])[OBSERVED]))

    def reports(self) -> list[Report]:
        """Return the reports of the first action, if it has ended; a stream's are in its progress."""
        row = next(filter(None, map(_observed_row, self.observations)), None)
        return [] if row is None else _from_text(row[OBSERVED])

    def metrics_in(self, progress: Any) -> LookupMetrics:
        if progress is None:
            raise OptionError("The query has no progress.", hint="Wait until its first micro-batch has ended.")
        observed = progress["observedMetrics"] if isinstance(progress, dict) else progress.observedMetrics
        if not observed:  # Spark reports that the query waits for data: no micro-batch has run.
            return LookupMetrics()
        if self.name not in observed:
            raise OptionError(
                f"The progress has no counts of {self.name!r}.",
                hint="Give the progress of a query with this join's df; a join that is made again has another name.",
            )
        counts = _by_name(observed[self.name])[OBSERVED]
        return LookupMetrics.of({name: int(value) if name in _WHOLE else value for name, value in counts.items()})


class StreamChannel(ObserveChannel):
    """Reports the counts of a stream of classic Spark in its progress, and all of them through an accumulator."""

    def __init__(self, name: str, spark: SparkSession) -> None:
        super().__init__(name, streaming=True)
        self.accumulated = AccumulatorChannel(spark)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"accumulated": self.accumulated}

    def counting(self, batches: Iterator[pa.RecordBatch], counts: Mapping[str, float]) -> Iterator[pa.RecordBatch]:
        return self.accumulated.counting(batches, counts)

    def metrics(self) -> LookupMetrics:
        return self.accumulated.metrics()

    def reports(self) -> list[Report]:
        return self.accumulated.reports()


class ChannelChain(Channel):
    """The channels of the joins of a chain, which run in one stage."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.channels = channels
        self._observing = [channel for channel in channels if isinstance(channel, ObserveChannel)]

    def fields(self) -> list[T.StructField]:
        """Return a column for the reports of each join that is observed."""
        return [T.StructField(f"{COLUMN}{number}", T.StringType()) for number in range(len(self._observing))]

    def observe_reports(self, df: DataFrame) -> DataFrame:
        names = [field.name for field in self.fields()]
        for channel, name in zip(self._observing, names, strict=True):
            df = channel.observe(df, name)
        if names:
            df = df.where(F.coalesce(*map(F.col, names)).isNull()).drop(*names)
        return df

    def reporting_all(
        self, batches: Iterator[pa.RecordBatch], counts: Sequence[Mapping[str, float]]
    ) -> Iterator[pa.RecordBatch]:
        """Pass the batches of the last join on, and report the counts of each through its channel."""
        observed: list[Callable[[], str]] = []
        for channel, counted in zip(self.channels, counts, strict=True):
            batches = channel.counting(batches, counted)
            if isinstance(channel, ObserveChannel):
                observed.append(partial(channel.report, counted))
        return _with_reports(batches, observed) if observed else batches


def chain_channels(channels: Sequence[Channel]) -> Channel:
    """Return the channel of a stage with these joins."""
    return channels[0] if len(channels) == 1 else ChannelChain(channels)


def is_classic(spark: SparkSession) -> bool:
    """Return whether the session has a JVM in this process, unlike Spark Connect."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int | None:
    """Return the maximum number of concurrent tasks; None with Spark Connect, which does not report it."""
    return spark.sparkContext.defaultParallelism if is_classic(spark) else None


def channel_of(plan: LookupPlan, spark: SparkSession, *, streaming: bool) -> Channel:
    """Return the channel that the plan's options name; raises OptionError if the session does not support it."""
    from lookupcache.versions import is_spark_3  # A worker, which imports this module, needs nothing of it.

    wanted, classic = plan.config.metrics, is_classic(spark)
    if wanted == "off":
        return Channel()
    if wanted == "accumulator" and not classic:
        raise OptionError(
            "'lookup.metrics' = 'accumulator' needs classic Spark; this session is Spark Connect.",
            hint="Set it to 'observe' or 'auto'.",
        )
    if not classic and not streaming and is_spark_3():
        if wanted == "observe":
            raise OptionError(
                "'lookup.metrics' = 'observe' of a batch on Spark Connect needs Spark 4.0, which reads observations.",
                hint="Leave the option out; the join is then not counted.",
            )
        return Channel()
    name = f"lookup_{plan.table}_{next(_joins)}"
    if wanted == "observe" or not classic:
        return ObserveChannel(name, streaming=streaming)
    return StreamChannel(name, spark) if streaming and wanted == "auto" else AccumulatorChannel(spark)


def _with_reports(batches: Iterator[pa.RecordBatch], reports: Sequence[Callable[[], str]]) -> Iterator[pa.RecordBatch]:
    """Yield batches with an empty column for each report, then a row that contains only the reports."""
    batch = None
    for batch in batches:
        yield _with(batch, [pa.nulls(batch.num_rows, pa.string()) for _ in reports])
    if batch is not None:
        # No nulls: Spark trusts a column that is NOT NULL.
        row = pa.RecordBatch.from_arrays([_zero(field.type) for field in batch.schema], batch.schema.names)
        yield _with(row, [pa.array([one()], pa.string()) for one in reports])


def _zero(type_: pa.DataType) -> pa.Array:
    """Return one value of a type: zero, or empty."""
    if pa.types.is_null(type_):
        return pa.nulls(1)
    if pa.types.is_struct(type_):
        return pa.StructArray.from_arrays([_zero(field.type) for field in type_], fields=list(type_))
    if pa.types.is_nested(type_):
        return pa.array([[]], type_)
    bytes_ = pa.nulls(1, type_).buffers()[1:]
    return pa.Array.from_buffers(type_, 1, [None, *bytes_])


def _with(batch: pa.RecordBatch, reports: Sequence[pa.Array]) -> pa.RecordBatch:
    names = [f"{COLUMN}{number}" for number in range(len(reports))]
    return pa.RecordBatch.from_arrays([*batch.columns, *reports], [*batch.schema.names, *names])


def _observed_row(observation: Any) -> Any:
    """Return what an observation has, None if its action has not ended; classic Spark would wait for it."""
    jvm = getattr(observation, "_jo", None)
    return None if jvm is not None and not jvm.future().isCompleted() else observation.get


def _from_text(text: str) -> list[Report]:
    return [json.loads(line) for line in text.splitlines()]


def _by_name(row: Any) -> dict[str, Any]:
    """Return a row's values by name; in the progress of a Spark Connect query, values and schema are separate."""
    values: dict[str, Any] = row.asDict() if hasattr(row, "asDict") else row
    if set(values) != {"values", "schema"}:
        return values
    names = [field["name"] for field in values["schema"]["fields"]]
    return dict(zip(names, values["values"], strict=True))


_COUNTS = "MAP<STRING, DOUBLE>"
_NONE = f"CAST(map() AS {_COUNTS})"
_STREAM_REPORT = f"worker STRING, counts {_COUNTS}, content {_COUNTS}"


def _stream_report(counts: Mapping[str, Any]) -> str:
    """Return what a stream's task reports, as JSON in the form of `_STREAM_REPORT`."""
    found = {name: value for name, value in counts.items() if value}
    worker = found.pop("worker", None) or _worker()  # Counts of a stream's table have the partition of their state.
    content = {name: found.pop(name) for name in GAUGES if name in found}
    return json.dumps({"worker": worker, "counts": found, "content": content})


def _observed_sql(column: str) -> str:
    """Return the aggregate that adds up a job's reports in a column: a map of the counts that are not zero.

    Spark analyzes it and sends it to the tasks with each micro-batch, so it is short.
    """
    tasks = f"transform(collect_list({column}), report -> from_json(report, '{_STREAM_REPORT}'))"
    most = f"map_zip_with(coalesce(one, {_NONE}), coalesce(other, {_NONE}), (_, a, b) -> greatest(a, b))"
    workers = f"map_zip_with(found, map(task.worker, task.content), (_, one, other) -> {most})"
    by_worker = f"aggregate(tasks, CAST(map() AS MAP<STRING, {_COUNTS}>), (found, task) -> {workers})"
    parts = f"concat(transform(tasks, task -> task.counts), map_values({by_worker}))"
    both = "map_zip_with(sum, part, (_, a, b) -> coalesce(a, 0D) + coalesce(b, 0D))"
    return f"transform(array({tasks}), tasks -> aggregate({parts}, {_NONE}, (sum, part) -> {both}))[0]"
