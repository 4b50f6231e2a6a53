"""The counts of streams: in their progress without an option, and the same through an accumulator."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from needs import joins_streams
from sources import PEOPLE, SCHEMA, options_of, rows_of

from lookupcache import LookupJoin, LookupMetrics, LookupTable, OptionError
from lookupcache.spark.listener import LookupListener
from lookupcache.spark.registry import Registry

pytestmark = pytest.mark.spark

LEFT = [(1, 10), (2, 10), (2, 5), (3, 7), (9, 1), (None, 2)]
SELECT = ["person", "day", "p.name"]


def people(name="p", **options) -> LookupTable:
    return LookupTable.from_function(name, SCHEMA, key=["id"], function=rows_of, options=options)


def full_table() -> LookupTable:
    names = ["id", "name", "country", "salary"]
    rows = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in PEOPLE])
    return LookupTable("p", SCHEMA, {"connector": "sources:Memory", "lookup.cache": "ALL", **options_of(rows)})


def joined(left, table, on="person = p.id"):
    join = LookupJoin(left, table, on, "left", SELECT)
    return join.df, [join]


def in_one_stage(left):
    first = LookupJoin(left, people(), "person = p.id", "left", SELECT)
    second = LookupJoin(first.df, people("q"), "person = q.id", "semi")
    assert "in one Python stage" in second.explain()
    return second.df, [first, second]


def twice_in_a_query(left):
    df, joins = joined(left, people())
    return df.where("day < 8").unionAll(df.where("day >= 8")), joins


KINDS = {
    "no cache": lambda left: joined(left, people()),
    "LRU": lambda left: joined(left, people(**{"lookup.cache": "LRU"})),
    "the full table": lambda left: joined(left, full_table()),
    "partitioned by key": lambda left: joined(left, people(**{"lookup.shuffle": "true"})),
    "a residual that Spark evaluates": lambda left: joined(
        left, people(), "person = p.id AND repeat(name, 1) <> 'bob'"
    ),
    "two joins in one stage": in_one_stage,
    "twice in a query": twice_in_a_query,
}


@pytest.fixture
def stream(spark, tmp_path):
    """Return a stream of two files with the same rows."""
    rows = spark.createDataFrame(LEFT, "person BIGINT, day INT").coalesce(1)
    for mode in ("error", "append"):
        rows.write.mode(mode).parquet(str(tmp_path / "in"))
    return spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))


def run(df, folder):
    """Run a stream to its end; return its rows, and the progress of the micro-batches that had any."""
    query = df.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    running = query.trigger(availableNow=True).start(str(folder / "out"))
    running.awaitTermination()
    found = df.sparkSession.read.parquet(str(folder / "out"))
    return Counter(map(tuple, found.collect())), [one for one in running.recentProgress if one["numInputRows"]]


@pytest.mark.extended(keep_one_in=3)
@pytest.mark.parametrize("kind", KINDS)
def test_the_progress_of_a_stream_has_its_counts(spark, stream, tmp_path, kind):
    df, joins = KINDS[kind](stream)
    rows, progress = run(df, tmp_path)
    theirs, _ = KINDS[kind](spark.createDataFrame(LEFT * 2, stream.schema))
    assert rows == Counter(map(tuple, theirs.collect()))
    for join in joins:
        in_progress = [join.metrics_in(one).rows for one in progress]
        assert in_progress == [len(LEFT) + 2 * (join is not joins[0])] * 2, "the first join finds two rows twice"
        assert join.metrics().rows == sum(in_progress) * (2 if kind == "twice in a query" else 1)


def test_a_progress_without_rows_or_of_another_query_is_empty(spark, stream, tmp_path):
    df, [join] = joined(stream, people())
    with pytest.raises(OptionError, match=r"no progress(?s:.*)first micro-batch"):
        join.metrics_in(None)
    _, [progress, _] = run(df, tmp_path)
    waiting = df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = waiting.trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination()
    assert join.metrics_in(query.lastProgress) == LookupMetrics()
    _, [other] = joined(stream, people())
    with pytest.raises(OptionError, match=r"no counts of 'lookup_p_(?s:.*)another name"):
        other.metrics_in(progress)


@joins_streams
def test_the_progress_has_the_counts_of_a_table_of_latest_values(arrivals):
    joins = []

    def joined(orders, rates):
        table = LookupTable.from_stream("r", rates, key="ccy", buckets=2)
        joins.append(LookupJoin(orders, table, "left.ccy = r.ccy", "left", ["amount", "exchange"]))
        return joins[0].df

    streams = arrivals(joined)
    streams.arrive("rates", {"ccy": "EUR", "exchange": 1.5})
    streams.arrive("orders", {"ccy": "EUR", "amount": 1}, {"ccy": "x", "amount": 2})
    assert streams.run() == [(1, 1.5), (2, None)]
    counts = joins[0].metrics_in(streams.query.lastProgress)
    assert (counts.rows, counts.misses, counts.cached_keys) == (2, 1, 1)


def test_a_listener_does_not_count_what_the_accumulator_counts(spark, stream, tmp_path, monkeypatch):
    registry = Registry()
    monkeypatch.setattr("lookupcache.spark.join.JOINS", registry)
    listener = LookupListener(registry)
    spark.streams.addListener(listener)
    try:
        df, _ = joined(stream, people())
        run(df, tmp_path)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    assert [(one.query, total.metrics.rows) for one, total in registry.totals().items()] == [("", 2 * len(LEFT))]
