"""Counts on their way: a task that ran twice counts once, and a long ledger stays short."""

from __future__ import annotations

import threading

from pyspark.sql import Row

from lookupcache.metrics import Counters, LookupMetrics
from lookupcache.report import LedgerParam, ObserveChannel, entry, report, reports_of, total


def one(stage=0, partition=0, attempt=0, run="r", worker="w", **counts):
    return {"stage": stage, "partition": partition, "attempt": attempt, "run": run, "worker": worker, **counts}


def merged(*reports):
    ledger, param = {}, LedgerParam()
    for made in reports:
        ledger = param.addInPlace(ledger, entry(made))
    return ledger


def metrics(*reports) -> LookupMetrics:
    return total(reports_of(merged(*reports)))


def test_partitions_and_stages_add_up():
    assert metrics(one(0, 0, hits=1), one(0, 1, hits=2), one(1, 0, hits=4)).hits == 7


def test_of_a_task_that_ran_again_the_last_attempt_counts():
    assert metrics(one(attempt=0, run="a", hits=1), one(attempt=1, run="b", hits=5)).hits == 5


def test_the_counts_of_a_connector_are_added_by_name():
    """Of a task that ran again, the last attempt counts."""
    first = [one(0, 0, source_counts={"tokens": 3}), one(0, 1, attempt=0, run="a", source_counts={"tokens": 100})]
    again = one(0, 1, attempt=1, run="b", source_counts={"tokens": 4, "price": 0.5})
    assert metrics(*first, again, one(1, 0)).source_counts == {"tokens": 7, "price": 0.5}


def test_a_task_reports_the_counts_of_its_connector_by_name():
    reported = report(Counters({"calls": 2, "source.tokens": 7}))
    assert (reported["calls"], reported["source_counts"]) == (2, {"tokens": 7})


def test_an_update_that_arrives_twice_counts_once():
    assert metrics(one(run="a", hits=3), one(run="a", hits=3)).hits == 3


def test_two_runs_in_one_task_both_count():
    assert metrics(one(run="a", hits=1), one(run="b", hits=2)).hits == 3


def test_cached_content_counts_once_per_worker():
    reports = [
        one(0, n, worker=worker, cached_rows=rows) for n, (worker, rows) in enumerate([("a", 5), ("a", 7), ("b", 2)])
    ]
    assert metrics(*reports).cached_rows == 9


def test_a_long_ledger_is_folded_and_loses_nothing():
    reports = [
        one(stage, part, run=f"{stage}.{part}", hits=1, cached_rows=stage)
        for stage in range(1_500)
        for part in range(4)
    ]
    ledger = merged(*reports)
    assert len(ledger) < 5_000
    assert total(reports_of(ledger)).hits == 6_000
    assert total(reports_of(ledger)).cached_rows == 1_499


def test_counts_are_read_from_progress_of_classic_and_connect():
    counts = {"rows": 3.0, "hits": 2.0, "lookup_seconds": 0.5, "source.tokens": 7.0}
    of_connect = Row(values=[counts], schema={"fields": [{"name": "lookup"}]})
    for observed in (Row(lookup=counts), of_connect, {"lookup": counts}):
        found = ObserveChannel("j", streaming=True).metrics_in({"observedMetrics": {"j": observed}})
        assert (found.rows, found.hits, found.lookup_seconds, found.source_counts) == (3, 2, 0.5, {"tokens": 7.0})
        assert isinstance(found.rows, int)


def test_counts_are_compared_while_another_thread_adds_names():
    counters = Counters()
    thread = threading.Thread(target=lambda: [counters.add(f"source.{number}") for number in range(50_000)])
    thread.start()
    while thread.is_alive():
        counters.since({})
    thread.join()
    assert len(counters.since({})) == 50_000
