"""Metrics of joins in a session: of a job that runs, and of streams that are observed."""

from __future__ import annotations

import os
import threading
from urllib.request import urlopen

import pytest
from sources import PEOPLE, SCHEMA, rows_of

from lookupcache import LookupJoin, LookupTable
from lookupcache.monitoring.scrape import samples
from lookupcache.spark.exporter import MetricsExporter
from lookupcache.spark.registry import FailedStages, Registry

pytestmark = pytest.mark.spark


@pytest.fixture
def joins(monkeypatch):
    """Return a registry for the joins of a test: that of the process may have more series than it exports by name."""
    failed = FailedStages()
    failed.found()
    registry = Registry(failed=failed.found)
    monkeypatch.setattr("lookupcache.spark.join.JOINS", registry)
    return registry


def rows_of_table(exporter, table: str) -> dict[str, float]:
    """Return the exported rows of a table, by query."""
    with urlopen(exporter.url) as answer:
        found = samples(answer.read().decode())
    return {one.query: sample["lookupcache_rows_total"] for one, sample in found.items() if one.table == table}


def test_an_ended_task_is_counted_while_its_job_still_runs(spark, joins, tmp_path):
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    opened = os.open(gate, os.O_RDWR)

    def answer(n):
        if n == 1:
            os.read(os.open(gate, os.O_RDONLY), 1)
        return [(n, n)]

    options = {"lookup.form": "worker"}
    table = LookupTable.from_function("gated", "n BIGINT, m BIGINT", key=["n"], function=answer, options=options)
    join = LookupJoin(spark.range(0, 2, 1, 2), table, "id = gated.n", select=["m"])
    found = []
    with MetricsExporter("127.0.0.1", 0, spark, joins) as exporter:
        job = threading.Thread(target=lambda: found.extend(join.df.collect()))
        job.start()
        seen = rows_of_table(exporter, "gated")
        while not seen.get("") and job.is_alive():
            job.join(0.05)
            seen = rows_of_table(exporter, "gated")
        os.write(opened, b"x")
        job.join()
        assert (seen, rows_of_table(exporter, "gated")) == ({"": 1}, {"": 2})
    assert len(found) == 2
    os.close(opened)


def test_a_stream_of_another_session_is_counted_by_its_progress(spark, joins, tmp_path):
    spark.createDataFrame(PEOPLE, SCHEMA).selectExpr("id AS person").coalesce(1).write.parquet(str(tmp_path / "in"))
    options = {"lookup.metrics": "observe", "lookup.cache": "LRU"}
    table = LookupTable.from_function("watched", SCHEMA, key=["id"], function=rows_of, options=options)
    session = spark.newSession()
    with MetricsExporter("127.0.0.1", 0, spark, joins) as exporter:
        stream = session.readStream.schema("person BIGINT").parquet(str(tmp_path / "in"))
        writer = LookupJoin(stream, table, "person = watched.id").df.writeStream.format("noop").queryName("stream")
        writer = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True)
        writer.start().awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        assert rows_of_table(exporter, "watched") == {"stream": len(PEOPLE)}
        assert len(session.streams._jsqm.listListeners()) == 1
    assert len(session.streams._jsqm.listListeners()) == 0


def test_an_observed_batch_is_not_waited_for(spark, joins):
    options = {"lookup.metrics": "observe", "lookup.form": "worker"}
    table = LookupTable.from_function("later", SCHEMA, key=["id"], function=rows_of, options=options)
    join = LookupJoin(spark.range(0, 3, 1, 1), table, "left.id = later.id", select=["name"])
    _ = join.df
    before = {one.table: total.metrics.rows for one, total in joins.totals().items()}
    join.df.collect()
    after = {one.table: total.metrics.rows for one, total in joins.totals().items()}
    assert (before["later"], after["later"]) == (0, 3)


def failed_stages(exporter) -> dict[str, float]:
    """Return the exported number of failed stages, by table."""
    with urlopen(exporter.url) as answer:
        found = samples(answer.read().decode())
    return {one.table: sample["lookupcache_failed_stages_total"] for one, sample in found.items()}


@pytest.mark.parametrize("metrics", ["accumulator", "off"])
def test_a_job_that_a_lookup_has_ended_is_counted_once(spark, joins, metrics):
    def refuse(n):
        raise ConnectionError("the source is away")

    def divide(n):
        return [(n, 1 // n)]

    options = {"lookup.max-retries": "0", "lookup.form": "worker", "lookup.metrics": metrics}
    away, other = (
        LookupTable.from_function(name, "n BIGINT, m BIGINT", key=["n"], function=function, options=options)
        for name, function in (("it's away", refuse), ("other", divide))
    )
    failing = LookupJoin(spark.range(3), away, "id = `it's away`.n", select=["m"])
    working = LookupJoin(spark.range(1, 3), other, "id = other.n", select=["m"])
    with MetricsExporter("127.0.0.1", 0, spark, joins) as exporter:
        before = failed_stages(exporter)
        for _ in range(2):
            with pytest.raises(Exception, match="the source is away"):
                failing.df.collect()
        working.df.collect()
        with pytest.raises(Exception, match="no lookup"):
            spark.range(1).selectExpr("assert_true(id > 5, 'no lookup')").collect()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        after = [failed_stages(exporter) for _ in range(2)]
    assert not any(before.values())
    assert [{table: stages for table, stages in one.items() if stages} for one in after] == [{"it's away": 2}] * 2
