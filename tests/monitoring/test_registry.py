"""The joins of a process: what stays of their counts, and that nothing else does."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest

from lookupcache.config import LookupConfig
from lookupcache.errors import LookupCacheError, OptionError
from lookupcache.monitoring.scrape import samples
from lookupcache.monitoring.totals import Series
from lookupcache.report import Channel, LedgerParam, ObserveChannel, entry, reports_of
from lookupcache.spark.exporter import JoinCollector, MetricsExporter, export_metrics
from lookupcache.spark.listener import LookupListener
from lookupcache.spark.registry import Registry


class Counted(Channel):
    """A channel with a ledger, as that of an accumulator."""

    def __init__(self) -> None:
        self.ledger, self.param = {}, LedgerParam()

    def reports(self):
        return reports_of(self.ledger)

    def add(self, partition=0, worker="w", stage=0, **counts) -> Counted:
        one = {"stage": stage, "partition": partition, "attempt": 0, "run": f"{stage}.{partition}", "worker": worker}
        self.param.addInPlace(self.ledger, entry({**one, "ended": float(stage + partition), **counts}))
        return self


class Join:
    """What a registry reads of a join."""

    def __init__(self, table="t", fingerprint="f" * 32, spark=None, **options) -> None:
        config = LookupConfig(cache="LRU", max_rows=10, **options)
        self.plan = SimpleNamespace(table=table, fingerprint=fingerprint, config=config)
        self.spark = spark


def rows_by_series(registry: Registry) -> dict[Series, int]:
    return {series: total.metrics.rows for series, total in registry.totals().items()}


def test_joins_of_one_cache_share_a_series_and_its_workers() -> None:
    registry, joins = Registry(), [Join(), Join()]
    for number, join in enumerate(joins):
        registry.track(join, Counted().add(number, rows=5, cached_rows=4 + number))
    [total] = registry.totals().values()
    assert (total.metrics.rows, total.metrics.cached_rows, total.workers, total.joins) == (10, 5, 1, 2)
    assert (total.limit_rows, total.limit_bytes, total.reported) == (10, 0, 1.0)


@pytest.mark.parametrize(("scope", "caches"), [("worker", 3), ("host", 2)])
def test_a_cache_is_that_of_a_worker_or_of_a_host(scope, caches) -> None:
    registry, join, counted = Registry(), Join(scope=scope), Counted()
    for number, worker in enumerate(("one:7", "one:8", "other:7")):
        counted.add(number, worker=worker, cached_rows=4)
    registry.track(join, counted)
    [total] = registry.totals().values()
    assert (total.metrics.cached_rows, total.workers, total.caches, total.limit_rows) == (12, 3, caches, 10)


def test_a_garbage_collected_join_keeps_counting() -> None:
    registry, join, channel = Registry(), Join(), Counted().add(rows=5)
    registry.track(join, channel)
    gone = weakref.ref(join)
    del join
    gc.collect()
    assert gone() is None
    channel.add(1, rows=2)
    [total] = registry.totals().values()
    assert (total.metrics.rows, total.joins) == (7, 0)


@pytest.mark.extended
def test_of_thousands_of_joins_only_counts_are_kept() -> None:
    registry, channels = Registry(most_ended=10), []
    for _ in range(2_000):
        channel = Counted().add(rows=1)
        channels.append(weakref.ref(channel))
        registry.track(Join(), channel)
        del channel
    assert list(rows_by_series(registry).values()) == [2_000]
    gc.collect()
    assert sum(one() is not None for one in channels) <= 10


def test_a_join_that_never_ran_leaves_nothing() -> None:
    registry = Registry()
    registry.track(Join("planned"), Counted())
    gc.collect()
    assert registry.totals() == {}


def test_series_are_bounded_and_none_of_them_decreases() -> None:
    registry, joins, before = Registry(most_series=3), [], {}
    for number in range(24):
        joins.append(Join(f"t{number % 8}", f"{number:012}"))
        registry.track(joins[-1], Counted().add(rows=1))
        now = rows_by_series(registry)
        assert all(now[series] >= rows for series, rows in before.items())
        assert sum(now.values()) == number + 1
        before = now
        if number % 3 == 0:
            joins.pop()
    assert len(before) <= 3 + 3 + 1
    assert Series("other", "other") in before


def test_metrics_that_are_off_are_not_tracked() -> None:
    registry, join = Registry(), Join()
    registry.track(join, Channel())
    assert registry.totals() == {}


def test_a_channel_that_fails_hides_no_other() -> None:
    class Failing(Channel):
        def reports(self):
            raise ConnectionError("the JVM has ended")

    registry, joins = Registry(), [Join("a"), Join("b")]
    registry.track(joins[0], Failing())
    registry.track(joins[1], Counted().add(rows=5))
    assert rows_by_series(registry)[Series("b", "f" * 12)] == 5


def test_totals_never_decrease_while_ledgers_are_merged() -> None:
    registry, join, channel, seen = Registry(), Join(), Counted(), [0]
    registry.track(join, channel)
    writer = threading.Thread(
        target=lambda: [channel.add(part, stage=stage, rows=1) for stage in range(300) for part in range(30)]
    )
    writer.start()
    while writer.is_alive():
        seen.append(sum(one.get("rows", 0) for one in channel.reports()))
        registry.totals()
    writer.join()
    assert seen == sorted(seen)
    assert list(rows_by_series(registry).values()) == [9_000]


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────


def progress(batch: int, name: str = "lookup_p_1", run: str = "r", query: str | None = "enrich", **counts):
    observed = {name: {"lookup": counts}, "mine": {"n": 1}}
    return SimpleNamespace(id="q", runId=run, batchId=batch, name=query, observedMetrics=observed)


def test_a_micro_batch_counts_once_however_many_listeners_see_it() -> None:
    registry = Registry()
    listeners = [LookupListener(registry), LookupListener(registry)]
    for run, batch in [("r", 0), ("r", 1), ("r", 1), ("again", 1)]:
        for listener in listeners:
            listener.onQueryProgress(SimpleNamespace(progress=progress(batch, run=run, rows=5, cached_rows=batch)))
    [(series, total)] = registry.totals().items()
    assert series == Series("p", "", "enrich")
    assert (total.metrics.rows, total.metrics.cached_rows, total.workers) == (15, 1, 0)


def test_a_stream_keeps_the_series_of_its_collected_join() -> None:
    registry, channel = Registry(), ObserveChannel("lookup_p_1", streaming=True)
    registry.track(Join("p"), channel)
    gc.collect()
    registry.add_progress(progress(0, query=None, rows=5))
    [(series, total)] = registry.totals().items()
    assert (series, total.metrics.rows, total.limit_rows) == (Series("p", "f" * 12), 5, 10)


def test_progress_that_cannot_be_read_stops_no_stream(caplog) -> None:
    registry = Registry()
    odd = SimpleNamespace(observedMetrics={"lookup_p_1": {"something": 1}}, id="q", runId="r", batchId=0, name=None)
    LookupListener(registry).onQueryProgress(SimpleNamespace(progress=odd))
    assert "could not be read" in caplog.text
    assert registry.totals() == {}


# ── the exporter ─────────────────────────────────────────────────────────────────────────────────────────


def session() -> SimpleNamespace:
    """Return what is read of a classic session, with listeners in a list."""
    found: list[object] = []
    streams = SimpleNamespace(addListener=found.append, removeListener=found.remove)
    java = SimpleNamespace(equals=lambda other: other is java)
    return SimpleNamespace(
        sparkContext=SimpleNamespace(_jsc="context"), streams=streams, listeners=found, _jsparkSession=java
    )


def test_each_session_with_observed_streams_has_one_listener() -> None:
    """The listener stays until the exporter is closed."""
    registry, sessions = Registry(), [session(), session(), session()]
    joins = [Join(spark=sessions[0])]
    registry.track(joins[0], ObserveChannel("lookup_p_1", streaming=True))
    with MetricsExporter("127.0.0.1", 0, sessions[0], registry):
        for number in (0, 1, 1):
            joins.append(Join(spark=sessions[number]))
            registry.track(joins[-1], ObserveChannel(f"lookup_p_{len(joins)}", streaming=True))
        registry.track(Join(spark=sessions[2]), Counted())
        assert [len(one.listeners) for one in sessions] == [1, 1, 0]
    assert [len(one.listeners) for one in sessions] == [0, 0, 0]


def test_a_session_that_takes_no_listener_still_joins(caplog) -> None:
    def refuse(listener):
        raise ConnectionError("no callback server")

    registry, spark = Registry(), session()
    spark.streams.addListener = refuse
    with MetricsExporter("127.0.0.1", 0, None, registry):
        registry.track(Join(spark=spark), ObserveChannel("lookup_p_1", streaming=True))
    assert "cannot be listened to" in caplog.text


def test_a_port_in_use_is_an_error_that_leaves_nothing() -> None:
    registry = Registry()
    with MetricsExporter("127.0.0.1", 0, None, registry) as exporter:
        port = int(exporter.url.split(":")[2].partition("/")[0])
        with pytest.raises(OptionError, match=rf"cannot be served at port {port} of 127.0.0.1: Address already in use"):
            MetricsExporter("127.0.0.1", port, None, registry)
        assert len(registry._followers) == 1
    assert exporter.is_closed
    assert registry._followers == []


@pytest.mark.parametrize("work", [export_metrics, JoinCollector, lambda: samples("a 1")])
def test_without_prometheus_client_the_cure_is_named(monkeypatch, work) -> None:
    for name in ("prometheus_client", "prometheus_client.parser"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        LookupCacheError, match=r"prometheus_client is not installed[^$]*pip install 'lookupcache\[prom"
    ):
        work()
