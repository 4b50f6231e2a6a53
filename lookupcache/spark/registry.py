"""The lookup joins of this process and their counts, for exporters.

A join without references may still run, as part of a stream. So its channel is kept for a while longer, and at last its
counts alone.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from ast import literal_eval
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from lookupcache.config import LookupConfig
from lookupcache.metrics import GAUGES, LookupMetrics
from lookupcache.monitoring.totals import Series, SeriesLimit, Totals
from lookupcache.plan import LookupPlan
from lookupcache.planner.catalyst_column import elements
from lookupcache.report import SEVERAL, Channel, ObserveChannel, Report, StreamChannel, add_up, ended
from lookupcache.spark.planned import PlannedJoin

_K = TypeVar("_K")
_V = TypeVar("_V")
_MOST_ENDED = 256
_MOST_NAMES = 4_096
_MOST_BATCHES = 1_024
_JOIN_DIGITS = 12


@dataclass(frozen=True, eq=False)
class _Tracked:
    """The record of a join, which refers neither to the join nor to a DataFrame."""

    series: Series
    channel: Channel
    config: LookupConfig


@dataclass
class _Sum:
    """The totals of a series."""

    counts: LookupMetrics = field(default_factory=LookupMetrics)
    content: dict[str, Report] = field(default_factory=dict)
    reported: float = 0.0
    config: LookupConfig = LookupConfig()
    joins: int = 0

    def add(self, counts: LookupMetrics, content: Mapping[str, Report]) -> None:
        """Add counts, and the content of caches, of which each worker's last report counts."""
        self.counts += counts
        for worker, one in content.items():
            self.reported = max(self.reported, ended(one))
            if ended(one) >= ended(self.content.get(worker, {})):
                self.content[worker] = one

    def totals(self) -> Totals:
        """Return the sum; a worker that has no cache reports an empty one."""
        gauges: dict[str, Any] = {name: sum(one.get(name, 0) for one in self.content.values()) for name in GAUGES}
        workers = [
            worker
            for worker, one in self.content.items()
            if not one.get(SEVERAL) and any(one.get(name, 0) for name in GAUGES)
        ]
        hosts = {worker.rpartition(":")[0] for worker in workers}
        rows, size = self.config.size_in()
        return Totals(
            metrics=replace(self.counts, **gauges),
            workers=len(workers),
            caches=len(hosts if self.config.is_host_scope else workers),
            reported=self.reported,
            limit_rows=rows or 0,
            limit_bytes=size or 0,
            joins=self.joins,
        )


class Registry:
    """The joins of a process, and their counts.

    Joins are referred to weakly. The counts of a join that is collected stay in the totals of its series. ``failed``
    returns the table of each stage that has failed since it was called last.
    """

    def __init__(
        self, most_series: int = 400, most_ended: int = _MOST_ENDED, failed: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self._lock = threading.RLock()
        self._most_ended = most_ended
        self._limit = SeriesLimit(most_series)
        self._live: dict[int, _Tracked] = {}
        self._ended: OrderedDict[int, _Tracked] = OrderedDict()
        # Joins are collected in any thread, even in one that has the lock: a deque needs none.
        self._collected: deque[int] = deque()
        self._folded: dict[Series, _Sum] = {}
        # By the names of observed metrics; None where an accumulator has the same counts.
        self._names: OrderedDict[str, tuple[Series, LookupConfig] | None] = OrderedDict()
        self._batches: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._followers: list[Callable[[Any], None]] = []
        self._streams: weakref.WeakSet[PlannedJoin] = weakref.WeakSet()
        self._next = 0
        self._failed = failed
        self._failed_stages: Counter[Series] = Counter()

    # ── joins ────────────────────────────────────────────────────────────────────────────────────────────

    def track(self, join: PlannedJoin, channel: Channel) -> None:
        """Remember a join whose counts come through a channel."""
        if type(channel) is Channel:
            return
        tracked = _Tracked(_series(join.plan), channel, join.plan.config)
        with self._lock:
            self._next += 1
            number = self._next
            self._live[number] = tracked
            self._retire()
            is_observed = _is_observed(channel)
            if isinstance(channel, ObserveChannel):
                _put(self._names, channel.name, (tracked.series, tracked.config) if is_observed else None, _MOST_NAMES)
            if is_observed:
                self._streams.add(join)
            followers = list(self._followers) if is_observed else []
        weakref.finalize(join, self._collected.append, number).atexit = False
        for follow in followers:
            follow(join.spark)

    def follow(self, follow: Callable[[Any], None]) -> None:
        """Call a function with the session of each observed stream, of those that are there and of later ones."""
        with self._lock:
            self._followers.append(follow)
            sessions = [join.spark for join in self._streams]
        for session in sessions:
            follow(session)

    def unfollow(self, follow: Callable[[Any], None]) -> None:
        """Call the function no more."""
        with self._lock:
            self._followers.remove(follow)

    def _retire(self) -> None:
        """Keep the channels of joins that were collected; of the oldest of them keep the counts alone."""
        while self._collected:
            number = self._collected.popleft()
            self._ended[number] = self._live.pop(number)
        while len(self._ended) > self._most_ended:
            _, tracked = self._ended.popitem(last=False)
            counts, content = _add_up(tracked.channel)
            if counts.keys or counts.rows or content:
                own = self._folded.setdefault(self._limit.apply(tracked.series), _Sum())
                own.add(counts, {})
                own.reported = max([own.reported, *map(ended, content.values())])

    # ── streams ──────────────────────────────────────────────────────────────────────────────────────────

    def add_progress(self, progress: Any) -> None:
        """Add the counts in a StreamingQueryProgress, unless those of its micro-batch were added before."""
        for name, row in (progress.observedMetrics or {}).items():
            if name.startswith("lookup_"):
                self._add_observed(progress, name, row)

    def _add_observed(self, progress: Any, name: str, row: Any) -> None:
        metrics = ObserveChannel(name, streaming=True).metrics_in({"observedMetrics": {name: row}})
        run, batch = (str(progress.id), str(progress.runId), name), int(progress.batchId)
        with self._lock:
            if self._batches.get(run, -1) >= batch:
                return
            _put(self._batches, run, batch, _MOST_BATCHES)
            known = self._names.get(name, (Series(_table_in(name), ""), LookupConfig()))
            if known is None:
                return
            series, config = known
            series = self._limit.apply(replace(series, query=progress.name or ""))
            own = self._folded.setdefault(series, _Sum())
            own.config = config
            gauges: Report = {gauge: getattr(metrics, gauge) for gauge in GAUGES}
            zeros: dict[str, Any] = dict.fromkeys(GAUGES, 0)
            own.add(replace(metrics, **zeros), {name: gauges | {"ended": time.time(), SEVERAL: True}})

    # ── totals ───────────────────────────────────────────────────────────────────────────────────────────

    def totals(self) -> dict[Series, Totals]:
        """Return the counts so far, by series; waits for no job."""
        with self._lock:
            self._retire()
            sums = {series: replace(own, content=dict(own.content), joins=0) for series, own in self._folded.items()}
            for tracked, is_live in self._readable():
                counts, content = _add_up(tracked.channel)
                if not content and (not is_live or _is_observed(tracked.channel)):
                    continue
                own = sums.setdefault(self._limit.apply(tracked.series), _Sum())
                own.add(counts, content)
                own.config = tracked.config
                own.joins += is_live
            self._add_failed_stages(sums)
            found = {series: own.totals() for series, own in sorted(sums.items())}
            return {one: replace(totals, failed_stages=self._failed_stages[one]) for one, totals in found.items()}

    def _add_failed_stages(self, sums: dict[Series, _Sum]) -> None:
        """Count a stage that has failed for the first series of its table: the error does not name the join."""
        for table in self._failed():
            of_table = sorted(series for series in sums if series.table == table)
            self._failed_stages[of_table[0] if of_table else self._limit.apply(Series(table, ""))] += 1
        for series in self._failed_stages:
            sums.setdefault(series, _Sum())

    def _readable(self) -> Iterator[tuple[_Tracked, bool]]:
        yield from ((tracked, False) for tracked in self._ended.values())
        yield from ((tracked, True) for tracked in self._live.values())


# ── failed stages: the counts of their tasks never reach the driver ──────────────────────────────────────


_ERROR = re.compile(r"""lookupcache\.errors\.\w+: (?:Table ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))?""")


class FailedStages:
    """Finds failed stages in the status that Spark's driver keeps, which it does without its web pages too.

    On Spark Connect there is no such status, and so no failed stage.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[str, int, int]] = set()

    def found(self) -> list[str]:
        """Return for each stage that has failed since the last call, by an error of a lookup, the table or ''."""
        try:
            stages = dict(_failed_stages())
            new = [stage for key, stage in stages.items() if key not in self._seen]
            tables = [table for stage in new for table in _tables_in(stage.failureReason())]
        except Exception:
            # The session has ended, or ends meanwhile.
            return []
        self._seen = set(stages)
        return tables


def _failed_stages() -> Iterator[tuple[tuple[str, int, int], Any]]:
    """Yield Spark's data of each failed stage that it still has, by application, number and attempt."""
    session: Any = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    context = session.sparkContext
    jvm, statuses = context._jvm, context._jvm.java.util.ArrayList()
    statuses.add(jvm.org.apache.spark.status.api.v1.StageStatus.FAILED)
    quantiles = context._gateway.new_array(jvm.double, 0)
    store = context._jsc.sc().statusStore()
    stages = store.stageList(statuses, False, False, quantiles, jvm.java.util.ArrayList())
    for stage in elements(stages):
        yield (context.applicationId, stage.stageId(), stage.attemptId()), stage


def _tables_in(reason: Any) -> list[str]:
    """Return the table that a failure names first, if it is one of a lookup."""
    found = _ERROR.search(reason.get()) if reason.isDefined() else None
    return [] if found is None else [literal_eval(found[1]) if found[1] else ""]


JOINS = Registry(failed=FailedStages().found)
"""The joins of this process."""


def _add_up(channel: Channel) -> tuple[LookupMetrics, dict[str, Report]]:
    """Return the counts that have arrived; none where the session is over, which alone could tell."""
    try:
        return add_up(channel.reports())
    except Exception:
        return LookupMetrics(), {}


def _is_observed(channel: Channel) -> bool:
    """Return whether the counts of a channel arrive with a stream's progress alone."""
    return isinstance(channel, ObserveChannel) and channel.streaming and not isinstance(channel, StreamChannel)


def _series(plan: LookupPlan) -> Series:
    return Series(plan.table, plan.fingerprint[:_JOIN_DIGITS])


def _table_in(name: str) -> str:
    """Return the table in the name of a channel.

    >>> _table_in("lookup_my_table_12")
    'my_table'
    """
    return name.removeprefix("lookup_").rpartition("_")[0]


def _put(some: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> None:
    """Set a value, and remove the oldest ones of too many."""
    some[key] = value
    some.move_to_end(key)
    while len(some) > most:
        some.popitem(last=False)
