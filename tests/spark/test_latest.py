"""Joins with the latest values of a stream, on Spark: streams with restarts, and batches against Spark's own join."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from arrivals import Arrivals
from latest_model import Model
from needs import joins_streams
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from scale import SCALE, SEED, scale_up

from lookupcache import LoadPhase, LookupJoin, LookupTable, OptionError, PlanError, SchemaError, lookup_join
from lookupcache.errors import CompiledPlanError
from lookupcache.latest.tasks import BucketJoin
from lookupcache.spark.doctor import examine
from lookupcache.spark.latest import PROVIDER, ROCKSDB, needs_several_states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


@pytest.mark.extended
def test_the_seed_s_table_from_t1_to_t5_with_restarts_in_between(arrivals: Callable[..., Arrivals]) -> None:
    def joined(orders: DataFrame, rates: DataFrame) -> DataFrame:
        return lookup_join(
            orders, LookupTable.from_stream("r", rates, buckets=1), on="true", how="left", select=["amount", "exchange"]
        )

    seed = arrivals(joined)
    seed.arrive("rates", {"exchange": 1.2})
    seed.arrive("orders", {"user": "User1", "amount": 10})
    assert seed.run() == [(10, 1.2)]
    seed.arrive("orders", {"user": "User2", "amount": 11})
    assert seed.run(restart=True) == [(10, 1.2), (11, 1.2)]
    seed.arrive("rates", {"exchange": 1.3})
    assert seed.run() == [(10, 1.2), (11, 1.2)]
    seed.arrive("orders", {"user": "User3", "amount": 9})
    assert seed.run() == [(10, 1.2), (11, 1.2), (9, 1.3)]


@joins_streams
@pytest.mark.extended
def test_by_key_with_all_that_a_join_has(arrivals: Callable[..., Arrivals]) -> None:
    joins: list[LookupJoin] = []

    def joined(orders: DataFrame, rates: DataFrame) -> DataFrame:
        table = LookupTable.from_stream(
            "r", rates, key="ccy", order_by="at", delete_when="deleted", ttl="1 h", buckets=2,
            options={"lookup.age-column": "age", "lookup.metrics": "observe"},
        )  # fmt: skip
        on = "upper(left.ccy) = r.ccy AND r.exchange < 9 AND r.exchange * amount < 100"
        select = ["amount", "r.ccy AS code", "exchange"]
        joins.append(LookupJoin(orders, table, on, "left", select, where="user <> 'x'"))
        return joins[-1].df.selectExpr("amount", "code", "exchange", "age < 3600 AS recent")

    streams = arrivals(joined)
    eur = {"ccy": "EUR", "exchange": 1.5, "at": 5}
    streams.arrive("rates", eur, {**eur, "exchange": 1.4, "at": 4}, {"ccy": None, "exchange": 7, "at": 1})
    order = {"user": "a", "ccy": "eur", "amount": 10}
    streams.arrive("orders", order, {**order, "ccy": None}, {**order, "amount": 90}, {**order, "user": "x"})
    none = (None, None, None)
    expected = [(10, "EUR", 1.5, True), (10, *none), (90, None, None, True)]
    assert streams.run() == sorted(expected, key=repr)
    assert streams.query is not None
    counts = joins[-1].metrics_in(streams.query.lastProgress or {})
    assert (counts.rows, counts.hits, counts.misses, counts.cached_keys) == (3, 2, 1, 1)
    assert 0 < counts.cached_bytes < 1_000
    streams.arrive("rates", {**eur, "exchange": 1.6, "at": 4})
    streams.arrive("orders", {**order, "amount": 1})
    assert (1, "EUR", 1.5, True) in streams.run(restart=True), "a late value does not replace a newer one"
    streams.arrive("rates", {**eur, "at": 6, "deleted": True})
    streams.arrive("orders", {**order, "amount": 2})
    assert (2, *none) in streams.run(restart=True)


CASES = max(int(os.environ.get("LOOKUPCACHE_CASES", "150")) // 150, 1)
IS_SCALED = SCALE > 1 or SEED > 0 or CASES > 1
SEEDS = [1000 * SEED + number for number in range(scale_up(4 * CASES))] if IS_SCALED else [1136]
KEYS = {  # Of orders, of rates: in different types, as Spark compares them.
    "none": ([], "true"),
    "text": (["ccy"], "left.ccy = r.ccy"),
    "numbers": (["long"], "left.number = r.long"),
    "decimals": (["decimal"], "left.number = r.decimal"),
    "two": (["long", "ccy"], "left.ccy = r.ccy AND left.number = r.long"),
}
NUMBERS = "CASE ccy WHEN 'EUR' THEN 1 WHEN 'USD' THEN 2 END"
EPOCH = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
TIMES = {  # SQL for a value of a type, from a number, and for the number again, in any time zone.
    "INT": ("{}", "{}"),
    "DOUBLE": ("double({})", "int({})"),
    "DATE": ("date_from_unix_date({})", "unix_date({})"),
    "TIMESTAMP": ("timestamp_seconds({})", "int(unix_seconds({}))"),
    "TIMESTAMP_NTZ": (f"{EPOCH} + make_dt_interval(0, 0, 0, {{}})", f"int(date_diff(SECOND, {EPOCH}, {{}}))"),
}
ZONES = ["UTC", "Asia/Kathmandu", "America/New_York"]
CONDITIONS: dict[str, Callable[[int], bool]] = {  # Of the left row alone, by its number.
    "TRUE": lambda id: True,
    "FALSE": lambda id: False,
    "left.id % 2 = 0": lambda id: id % 2 == 0,
}


@dataclass(frozen=True)
class Drawn:
    """A join with latest values, by which its orders and rates arrive, and how its result leaves."""

    key: str
    ordered: bool
    left_order: bool
    deletes: bool
    least: int | None
    ttl: str | None
    how: str
    sink: str
    rocksdb: bool
    at: str
    condition: str
    doubled: bool

    @classmethod
    def of(cls, draw: random.Random) -> Drawn:
        ordered = draw.random() < 0.6
        return cls(
            draw.choice([*KEYS]), ordered, ordered and draw.random() < 0.5, draw.random() < 0.5,
            draw.choice([None, 1]), draw.choice([None, "1 ms", "1 h"]), draw.choice(["left", "inner", "semi", "anti"]),
            draw.choice(["foreachBatch", "parquet"]), draw.random() < 0.3, draw.choice([*TIMES]),
            draw.choice([*CONDITIONS, "TRUE", "left.id % 2 = 0"]), draw.random() < 0.5,
        )  # fmt: skip

    def joined(self, orders: DataFrame, rates: DataFrame) -> DataFrame:
        typed, number = TIMES[self.at]
        at = f"{typed.format('at')} AS at"
        orders = orders.selectExpr("amount AS id", "ccy", f"{NUMBERS} AS number", at)
        keys = f"bigint({NUMBERS}) AS long", f"CAST({NUMBERS} AS DECIMAL(9, 2)) AS decimal"
        rates = rates.selectExpr("ccy", "exchange", at, f"{typed.format('int(exchange)')} AS value", *keys)
        key, on = KEYS[self.key]
        table = LookupTable.from_stream(
            "r", rates, key=key, order_by=["at"] if self.ordered else [], buckets=2, ttl=self.ttl,
            left_order_by=["at"] if self.left_order else [], delete_when="exchange IS NULL" if self.deletes else None,
        )  # fmt: skip
        parts = [on, *([] if self.least is None else [f"r.exchange > {self.least}"])]
        parts += [] if self.condition == "TRUE" else [self.condition]
        on = " AND ".join(f"(({part}))" for part in parts) if self.doubled else " AND ".join(parts)
        on = f"({on})" if self.doubled else on
        select = ["id"] if self.how in ("semi", "anti") else ["id", f"{number.format('r.value')} AS rate"]
        return lookup_join(orders, table, on=on, how=self.how, select=select)

    def model(self) -> Model:
        ttl = None if self.ttl is None else 1 if self.ttl == "1 ms" else 1_000
        return Model(self.key != "none", self.ordered, ttl, self.deletes, self.least)

    def row(self, number: int, rate: tuple[int | None, bool]) -> list[tuple[Any, ...]]:
        """Return the rows that leave for an order."""
        rate = rate if CONDITIONS[self.condition](number) else (None, False)
        if {"inner": not rate[1], "semi": not rate[1], "anti": rate[1]}.get(self.how, False):
            return []
        return [(number,) if self.how in ("semi", "anti") else (number, rate[0])]


@joins_streams
@pytest.mark.extended
@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_arrivals_with_restarts_triggers_and_sinks(
    spark: SparkSession, arrivals: Callable[..., Arrivals], seed: int
) -> None:
    draw = random.Random(seed)
    drawn = Drawn.of(draw)
    if drawn.rocksdb:
        spark.conf.set(PROVIDER, ROCKSDB)
    streams, model, expected, number = arrivals(drawn.joined, sink=drawn.sink), drawn.model(), [], 0
    try:
        for now in range(6 if IS_SCALED else 3):
            # What is in the checkpoint was written in another time zone.
            spark.conf.set("spark.sql.session.timeZone", draw.choice(ZONES))
            rates = [
                (draw.choice(CCYS), draw.choice([None, 1, 2, 3]), draw_time(draw)) for _ in range(draw.randrange(4))
            ]
            orders = [(draw.choice(CCYS), draw_time(draw)) for _ in range(draw.randrange(4))]
            if rates:
                rows = [{"ccy": ccy, "exchange": rate, "at": at} for ccy, rate, at in rates]
                streams.arrive("rates", *rows)
            if orders:
                named = [{"amount": number + n, "ccy": ccy, "at": at} for n, (ccy, at) in enumerate(orders)]
                streams.arrive("orders", *named)
            if rates or orders:
                model.fold(now, [rates])
            for ccy, at in orders:
                rate = model.rate_at(ccy, at) if drawn.left_order else model.rate_of(ccy)
                expected += drawn.row(number, rate)
                number += 1
            # A query that is running may take the rates before the orders arrive.
            trigger = draw.choice(["availableNow", "once", *([] if drawn.left_order or drawn.ttl == "1 ms" else [""])])
            assert streams.run(trigger=trigger) == sorted(expected, key=repr), (drawn, now, trigger)
    finally:
        spark.conf.unset(PROVIDER)
        spark.conf.unset("spark.sql.session.timeZone")


def draw_time(draw: random.Random) -> int | None:
    return draw.choice([None, *range(8)])


CCYS = ["EUR", "USD", None]


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Let streams keep their state in RocksDB."""
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    spark.conf.unset(PROVIDER)


# ── queries around the join ──────────────────────────────────────────────────────────────────────────────


def latest(orders: DataFrame, rates: DataFrame, name: str = "exchange", **more: Any) -> DataFrame:
    """Return orders with the last rate of their currency under a name."""
    table = LookupTable.from_stream("r", rates, key="ccy", order_by="at", buckets=2, **more)
    return lookup_join(orders, table, "left.ccy = r.ccy", "left", ["left.*", f"r.exchange AS {name}"])


def deduplicated(orders: DataFrame, rates: DataFrame) -> DataFrame:
    return latest(orders, rates.dropDuplicates(["ccy", "at"])).select("amount", "exchange")


def with_watermarks(orders: DataFrame, rates: DataFrame) -> DataFrame:
    timed = rates.withColumn("time", F.timestamp_seconds("at")).withWatermark("time", "1 second")
    left = orders.withColumn("seen", F.timestamp_seconds("amount")).withWatermark("seen", "5 seconds")
    return latest(left, timed).select("amount", "exchange")


def with_itself(orders: DataFrame, rates: DataFrame) -> DataFrame:
    return latest(rates.selectExpr("at + 9 AS amount", "ccy"), rates).select("amount", "exchange")


def two_in_a_row(orders: DataFrame, rates: DataFrame) -> DataFrame:
    joined = latest(latest(orders, rates, "one"), rates.where("exchange < 2"), "two")
    return joined.selectExpr("amount", "one", "two")


def side_by_side(orders: DataFrame, rates: DataFrame) -> DataFrame:
    parts = [
        latest(orders.where(where), rates, operator="transformWithState") for where in ("amount = 1", "amount > 1")
    ]
    return parts[0].unionAll(parts[1]).select("amount", "exchange")


def codes_of(key: str) -> list[tuple[str, str]]:
    """Return the rows of a lookup table."""
    return [(key, key.lower())] if key != "x" else []


def with_lookups_before_between_and_after(orders: DataFrame, rates: DataFrame) -> DataFrame:
    def looked_up(left: DataFrame, name: str) -> DataFrame:
        options = {"lookup.cache": "LRU"}
        codes = LookupTable.from_function("c", "ccy STRING, code STRING", key="ccy", function=codes_of, options=options)
        return lookup_join(left, codes, "left.ccy = c.ccy", "left", ["left.*", f"c.code AS {name}"])

    joined = looked_up(latest(looked_up(orders, "a"), rates, "one"), "b")
    joined = looked_up(latest(joined, looked_up(rates.where("exchange < 2"), "x"), "two"), "c")
    return joined.selectExpr("amount", "concat(a, b, c) AS codes", "one", "two")


@pytest.mark.nightly
@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize(
    ("joined", "first", "second"),
    [
        (deduplicated, [(1, 1.5), (2, None)], [(3, 2.5)]),
        (with_watermarks, [(1, 1.5), (2, None)], [(3, 2.5)]),
        (with_itself, [(10, 1.5)], [(10, 2.5), (14, 2.5)]),  # Right rows are first, all of them.
        (two_in_a_row, [(1, 1.5, 1.5), (2, None, None)], [(3, 2.5, 1.5)]),
        (side_by_side, [(1, 1.5), (2, None)], [(3, 2.5)]),
        (with_lookups_before_between_and_after, [(1, "eureureur", 1.5, 1.5), (2, None, None, None)],
         [(3, "eureureur", 2.5, 1.5)]),
    ],
)  # fmt: skip
def test_queries_around_the_join(
    spark: SparkSession, arrivals: Callable[..., Arrivals], joined: Any, first: list[Any], second: list[Any]
) -> None:
    streams = arrivals(joined)
    eur = {"ccy": "EUR", "exchange": 1.5, "at": 1}
    streams.arrive("rates", eur)
    streams.arrive("orders", {"ccy": "EUR", "amount": 1}, {"ccy": "x", "amount": 2})
    assert streams.run(restart=True) == first
    assert streams.run(restart=True) == first, "nothing has arrived"
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        if joined is not with_itself:
            streams.arrive("orders", {"ccy": "EUR", "amount": 3})
        streams.arrive("rates", eur, {**eur, "exchange": 2.5, "at": 5})
        found = streams.run(restart=True)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert found == sorted([*first, *second], key=repr)


# ── exactly once ─────────────────────────────────────────────────────────────────────────────────────────

KILLED = """
import sys
from lookupcache.java import local_spark_environment
local_spark_environment()
from pyspark.sql import SparkSession
import test_latest

settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "1",
            "spark.sql.codegen.wholeStage": "false", "spark.local.dir": sys.argv[1],
            "spark.sql.streaming.minBatchesToRetain": "10000"}
spark = SparkSession.builder.master(sys.argv[2]).config(map=settings).getOrCreate()
getattr(test_latest, sys.argv[3])(spark, sys.argv[1])
"""


def killed_query(spark: SparkSession, folder: str | Path) -> None:
    """Join all that has arrived in the folder, one file of each side per micro-batch."""
    table = LookupTable.from_stream("r", files_in(spark, folder, "rates"), key=["k"], order_by=["n"], buckets=2)
    orders = files_in(spark, folder, "orders")
    df = lookup_join(orders, table, on="left.k = r.k", how="left", select=["left.n", "r.n AS rate"])
    writer = df.writeStream.format("parquet").option("path", f"{folder}/out")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()


def files_in(spark: SparkSession, folder: str | Path, name: str) -> DataFrame:
    reader = spark.readStream.schema("k INT, n INT").option("maxFilesPerTrigger", "1")
    return reader.json(f"{folder}/{name}")


KILL_KEYS = 3


def write_files(folder: Path, steps: int) -> None:
    """Write a file of orders and one of rates for each step; one key gets no rate in it."""
    for name in ("orders", "rates"):
        (folder / name).mkdir()
        for step in range(steps):
            file = folder / name / f"{step:03}.json"
            keys = [key for key in range(KILL_KEYS) if name == "orders" or key != step % KILL_KEYS]
            file.write_text("".join(json.dumps({"k": key, "n": step * 10 + key}) + "\n" for key in keys))
            os.utime(file, (1_000_000 + step, 1_000_000 + step))


TO_LOAD = LoadPhase("1970-01-01 00:00:10Z", event_time="time")


@pytest.mark.extended
@pytest.mark.parametrize("load", [None, pytest.param(TO_LOAD, marks=pytest.mark.nightly)], ids=["plain", "load"])
def test_rows_are_exactly_once_if_the_query_fails_at_any_point(
    arrivals: Callable[..., Arrivals], request: pytest.FixtureRequest, load: LoadPhase | None
) -> None:
    """Each step is a micro-batch: in a load phase, rows wait, then leave, and then no longer wait."""

    def joined(orders: DataFrame, rates: DataFrame) -> DataFrame:
        rates = rates.withColumn("time", F.timestamp_seconds("at"))
        table = LookupTable.from_stream("r", rates, key="ccy", order_by="at", buckets=2, load=load)
        return lookup_join(orders, table, "left.ccy = r.ccy", "left", select=["amount", "exchange"])

    def fail(rows: DataFrame, number: int) -> None:
        point = faults.pop(0)
        if point == "worker":  # Both attempts of a task lose their worker in the middle of the join's rows.
            rows.mapInArrow(die, rows.schema).collect()
        if point == "after":
            tried.setdefault(number, []).append(sorted((tuple(row) for row in rows.collect()), key=repr))
        if point != "none":
            raise RuntimeError(point)

    if load is not None:
        request.getfixturevalue("rocksdb")
    tried: dict[int, list[list[tuple[Any, ...]]]] = {}
    waiting: list[tuple[int, str | None]] = []
    streams, model, draw, expected = arrivals(joined), Model(True, True, None, False, None), random.Random(SEED), []
    streams.fault = fail
    all_points = ["before", "worker", "after"]
    for step, points in enumerate([["before", "after"], ["worker", "after"]] if load is None else [all_points] * 3):
        points = draw.sample(points, len(points))
        rates = [("EUR", 1, 3 - step), ("USD", step, step), (None, 5, 9 + step)]
        waiting += [(10 * step + n, ccy) for n, ccy in enumerate(["EUR", "USD", None])]
        streams.arrive("rates", *({"ccy": ccy, "exchange": rate, "at": at} for ccy, rate, at in rates))
        streams.arrive("orders", *({"amount": amount, "ccy": ccy} for amount, ccy in waiting[-3:]))
        model.fold(step, [rates])
        if load is None or step:  # The second step's event time ends the load phase.
            expected += [(amount, model.rate_of(ccy)[0]) for amount, ccy in waiting]
            waiting = []
        faults = [*points, "none"]
        for _ in points:
            with pytest.raises(StreamingQueryException):
                streams.run(trigger="availableNow")
        assert streams.run(trigger="availableNow") == sorted(expected, key=repr), points
    assert [tried[number] for number in streams.results] == [
        [sorted(rows, key=repr)] for rows in streams.results.values()
    ], "a micro-batch that ran again found the values that it had found before"


def die(batches: Iterator[Any]) -> Iterator[Any]:
    """Kill the worker that has read a row."""
    yield next(batches)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.nightly
def test_rows_are_exactly_once_if_the_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    steps, draw = 6, random.Random(SEED)
    write_files(tmp_path, steps)
    commits = tmp_path / "checkpoint" / "commits"
    first, last = start(tmp_path), draw.randrange(3)
    while first.poll() is None and not (commits / str(last)).exists():
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.7))  # At whatever point of a later micro-batch.
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert not (commits / str(steps - 1)).exists(), "it was killed in mid-run"
    killed_query(spark, tmp_path)
    latest: dict[int, int] = {}
    expected = []
    for step in range(steps):
        latest |= {key: step * 10 + key for key in range(KILL_KEYS) if key != step % KILL_KEYS}
        expected += [(step * 10 + key, latest.get(key)) for key in range(KILL_KEYS)]
    assert written(spark, tmp_path) == sorted(expected)


@pytest.mark.nightly
def test_waiting_rows_leave_once_if_the_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """It is killed at each step of the load phase."""
    steps, starts = 4, 0
    write_files(tmp_path, steps)
    while not (tmp_path / "checkpoint" / "commits" / str(steps - 1)).exists() and starts < 20:
        start(tmp_path, query="loading_query").wait()
        starts += 1
    assert starts == steps * len(KILL_POINTS) + 1, "it was killed at each point, and ran to its end at last"
    latest: dict[int, int] = {}
    expected: list[list[tuple[int, int | None]]] = []
    waiting: list[int] = []
    for step in range(steps):
        latest |= {key: step * 10 + key for key in range(KILL_KEYS) if key != step % KILL_KEYS}
        waiting += [step * 10 + key for key in range(KILL_KEYS)]
        expected.append([(n, latest[n % 10]) for n in waiting if step > 1])
        waiting = waiting if step < 2 else []
    found = [spark.read.parquet(str(tmp_path / "out" / str(step))).collect() for step in range(steps)]
    assert [sorted(tuple(row) for row in rows) for rows in found] == expected


KILL_POINTS = ("before", "task", "after")


def loading_query(spark: SparkSession, folder: str | Path) -> None:
    """Join what arrives while a table is loaded, until its third file; kill the driver once at each point."""
    spark.conf.set(PROVIDER, ROCKSDB)
    rates = files_in(spark, folder, "rates").withColumn("time", F.timestamp_seconds("n"))
    load = LoadPhase("1970-01-01 00:00:20Z", event_time="time")
    table = LookupTable.from_stream("r", rates, key=["k"], order_by=["n"], buckets=2, load=load)
    orders, group = files_in(spark, folder, "orders"), os.getpgid(0)

    def write(rows: DataFrame, number: int) -> None:
        for point in KILL_POINTS:
            mark = Path(folder, f"{number} {point}")
            is_first = not mark.exists()
            mark.touch()
            if point == "task":  # The state is committed by tasks, before or while the rows are written.
                written = rows.mapInArrow(GroupKiller(group), rows.schema) if is_first else rows
                written.write.mode("overwrite").parquet(f"{folder}/out/{number}")
            elif is_first:
                os.killpg(group, signal.SIGKILL)

    df = lookup_join(orders, table, on="left.k = r.k", how="left", select=["left.n", "r.n AS rate"])
    writer = df.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


@dataclass(frozen=True)
class GroupKiller:
    """Kills a driver with its JVM from a task, after the first rows if there are any."""

    group: int

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the first batch."""
        yield from itertools.islice(batches, 1)
        os.killpg(self.group, signal.SIGKILL)


@dataclass(frozen=True)
class DyingJoin(BucketJoin):
    """A join whose worker is killed once at each point for which there is a file in a folder."""

    folder: str = ""

    def __call__(self, key: Any, frames: Any, state: Any) -> Any:
        """Yield what the join yields, with a state that kills its worker."""
        return super().__call__(key, frames, DyingState(state, self.folder))


class DyingState:
    """A bucket's state, or its rows that wait, that kills its worker before or after it is changed."""

    def __init__(self, state: Any, folder: str) -> None:
        self.__dict__ |= {"state": state, "folder": folder}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.state, name)
        if name == "waiting":
            return DyingState(value, self.folder)
        if name not in ("update", "append", "clear"):
            return value

        def changed(*arguments: Any) -> Any:
            self._die(f"before {name}")
            found = value(*arguments)
            self._die(f"after {name}")
            return found

        return changed

    def _die(self, point: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            Path(self.folder, point).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "points",
    [
        ["before update", "after update"],
        ["before append", "after update", "before clear", "after update"],
        ["after append", "after clear", "before update"],
    ],
    ids=["plain", "load", "load, too"],
)
def test_a_worker_killed_while_writing_state_leaves_nothing(
    arrivals: Callable[..., Arrivals],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    points: list[str],
) -> None:
    load = TO_LOAD if len(points) > 2 else None

    def joined(orders: DataFrame, rates: DataFrame) -> DataFrame:
        rates = rates.withColumn("time", F.timestamp_seconds("at"))
        table = LookupTable.from_stream("r", rates, key="ccy", order_by="at", buckets=2, load=load)
        return lookup_join(orders, table, "left.ccy = r.ccy", "left", select=["amount", "exchange"])

    if load is not None:
        request.getfixturevalue("rocksdb")
    monkeypatch.setattr("lookupcache.spark.latest.BucketJoin", functools.partial(DyingJoin, folder=str(tmp_path)))
    streams, expected, waiting = arrivals(joined), [], []
    is_loaded = load is None
    for step, point in enumerate(points):
        is_loaded = is_loaded or point.endswith("clear")
        (tmp_path / point).touch()
        streams.arrive("rates", {"ccy": "EUR", "exchange": step, "at": step + 10 * is_loaded})
        streams.arrive("orders", {"ccy": "EUR", "amount": step}, {"ccy": "x", "amount": 100 + step})
        waiting += [(step, "EUR"), (100 + step, "x")]
        if is_loaded:
            expected += [(amount, float(step) if ccy == "EUR" else None) for amount, ccy in waiting]
            waiting = []
        assert streams.run(trigger="availableNow") == sorted(expected, key=repr), point
        assert not (tmp_path / point).exists(), "a worker was killed"


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["driver", "worker, task again", "worker, query again"])
def test_rows_are_exactly_once_if_a_process_is_killed_any_time(
    spark: SparkSession, tmp_path: Path, victim: str
) -> None:
    steps, most = 12 * CASES, 4 * CASES
    write_files(tmp_path, steps)
    draw, kills, starts = random.Random(len(victim)), 0, 0
    commits = tmp_path / "checkpoint" / "commits"
    while kills < most and starts < 4 * most and not (commits / str(steps - 1)).exists():
        query, starts = start(tmp_path, "local[2, 4]" if "task" in victim else "local[1]"), starts + 1
        before = len(list(commits.glob("[0-9]*")))
        while query.poll() is None:
            has_moved = len(list(commits.glob("[0-9]*"))) > before
            if kills < most and (has_moved or draw.random() < 0.001):
                time.sleep(draw.uniform(0, 1.5))  # The moment is drawn, not waited for.
                kills += kill(query, victim, draw)
                before = len(list(commits.glob("[0-9]*")))
            time.sleep(0.01)
        query.wait()
    assert kills, "something was killed"
    killed_query(spark, tmp_path)
    from bench.latest_soak import micro_batches  # Here, since nightly runs are in the checkout.
    from bench.latest_soak import rows_of as rows_in

    latest: dict[int, int] = {}
    expected = []
    for _, files in micro_batches(tmp_path):
        latest |= {row["k"]: row["n"] for row in sorted(rows_in(files, "rates"), key=lambda row: row["n"])}
        expected += [(row["n"], latest.get(row["k"])) for row in rows_in(files, "orders")]
    assert len(expected) == steps * KILL_KEYS
    assert written(spark, tmp_path) == sorted(expected)
    print(f"{victim}: {kills} kills, {starts} starts, {len(expected)} rows")


def written(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.read.parquet(str(folder / "out")).collect())


def kill(query: subprocess.Popen[bytes], victim: str, draw: random.Random) -> int:
    """Kill a query with all its processes, or one of its Python workers: a task that loses its worker fails."""
    if victim == "driver":
        os.killpg(query.pid, signal.SIGKILL)
        return 1
    workers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_worker(pid, query.pid)]
    if workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(workers), signal.SIGKILL)
    return bool(workers)


def is_worker(pid: int, session: int) -> bool:
    """Return whether a process is a Python worker of a query, or the daemon that starts them.

    The daemon has a process group of its own, but is of the query's session.
    """
    with contextlib.suppress(OSError):
        return os.getsid(pid) == session and b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def start(folder: Path, master: str = "local[1]", query: str = "killed_query") -> subprocess.Popen[bytes]:
    """Start the query as a process with a group of its own, which has Spark's JVM and workers too."""
    script = folder / "query.py"
    script.write_text(KILLED)
    with (folder / "log.txt").open("ab") as log:
        command = [sys.executable, "-W", "ignore", str(script), str(folder), master, query]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────

LAST = (
    "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY at DESC NULLS LAST) AS n FROM r) WHERE n = 1"
)


@pytest.mark.extended
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_a_batch_is_spark_s_join_with_the_last_row_of_each_key(spark: SparkSession, how: str) -> None:
    right = spark.sql(
        "SELECT * FROM VALUES (1D, 10, 1D), (1D, 11, double('NaN')), (1D, 12, double('-Infinity')), (0D, 12, 1D), "
        "(double('NaN'), 13, 4D), (double('NaN'), 14, NULL), (NULL, 15, 9D), (2D, 1, 1D), (3D, NULL, 3D) AS (k, v, at)"
    )
    left = spark.sql(
        "SELECT * FROM VALUES (1, -0D), (2, 1D), (3, double('NaN')), (4, NULL), (5, 2D), (6, 3D) AS (id, k)"
    )
    left.createOrReplaceTempView("l")
    right.createOrReplaceTempView("r")
    table = LookupTable.from_stream("r", right, key=["k"], order_by=["at"])
    select = ["id"] if how in ("semi", "anti") else ["id", "r.v", "r.k AS rk"]
    found = lookup_join(left, table, on="left.k = r.k AND (r.v > 5 OR r.v IS NULL)", how=how, select=select)
    columns = "l.id" if how in ("semi", "anti") else "l.id, r.v, r.k AS rk"
    expected = spark.sql(f"SELECT {columns} FROM l {how} JOIN ({LAST}) AS r ON l.k = r.k AND (r.v > 5 OR r.v IS NULL)")
    assert rows_of(found) == rows_of(expected)


def test_a_batch_without_a_key_has_one_last_row(spark: SparkSession) -> None:
    rows = spark.sql("SELECT * FROM VALUES (1, 1), (2, 2) AS (v, at)")
    table = LookupTable.from_stream("r", rows, order_by="at")
    gone = LookupTable.from_stream("r", rows, order_by="at", delete_when="v = 2")
    assert rows_of(lookup_join(spark.range(1), gone, on="true", how="left", select=["id", "v"])) == ["(0, None)"]
    assert rows_of(lookup_join(spark.range(2), table, on="true", select=["id", "v"])) == ["(0, 2)", "(1, 2)"]
    assert rows_of(lookup_join(spark.range(2), table, on="id = r.v", how="left", select=["id", "v"])) == [
        "(0, None)",
        "(1, None)",
    ]


@pytest.mark.parametrize(
    "comment", ["-- gone", "-- it's (", "-- \\", "-- a \\\n b", "/* gone */", "/* a /* ' */ ) */", "-- gone\n"]
)
def test_a_condition_of_deletes_may_have_a_comment(spark: SparkSession, comment: str) -> None:
    rows = spark.sql("SELECT * FROM VALUES (1, 1, true), (2, 2, false) AS (v, at, gone)")
    table = LookupTable.from_stream("r", rows, key="v", order_by="at", delete_when=f"gone {comment}")
    join = LookupJoin(spark.range(3), table, "id = r.v", select=["id", "at"])
    assert rows_of(join.result) == ["(2, 2)"]
    assert re.search(r"deleted when +gone$", join.explain(), re.MULTILINE)


def rows_of(df: DataFrame) -> list[str]:
    def shown(row: Row) -> str:
        return str(tuple(row))

    return sorted(map(shown, df.collect()))


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_impossible_latest_join_is_refused_with_the_cure(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    batch = spark.sql("SELECT 1 AS value, current_timestamp() AS timestamp")
    keyed = LookupTable.from_stream("r", rates, key="value")
    nested = rates.selectExpr("struct(timestamp) AS at")
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: lookup_join(rates, keyed, "r.timestamp = left.timestamp", "semi"), PlanError, "with 'value'"),
        (lambda: lookup_join(batch, keyed, ["value"], "semi"), PlanError, "left side is a batch"),
        (lambda: lookup_join(rates, table(batch, "timestamp"), ["value"], "semi"), PlanError, "spark.readStream"),
        (lambda: lookup_join(batch, table(batch), ["value"], "semi"), PlanError, "order_by"),
        (lambda: lookup_join(rates, table(rates.distinct()), ["value"], "semi"), PlanError, "order_by"),
        (lambda: LookupTable.from_stream("r", rates, key="nope"), SchemaError, "'nope'"),
        (lambda: LookupTable.from_stream("r", rates, ttl="soon"), OptionError, "'ttl' is 'soon'"),
        (lambda: LookupTable.from_stream("r", rates, buckets=0), OptionError, "'buckets' is 0"),
        (lambda: LookupTable.from_stream("r", nested, key="at"), SchemaError, "cannot be a key"),
        (lambda: LookupTable.from_stream("r", rates, delete_when="value"), OptionError, "is a BIGINT(.|\n)*BOOLEAN"),
        (lambda: LookupTable.from_stream("r", rates, delete_when="r.gone"), OptionError, "'r.gone'(.|\n)*bare names"),
        (lambda: LookupTable.from_stream("r", rates, delete_when="max(value) > 1"), OptionError, "max(.|\n)*Hint"),
        (lambda: LookupTable.from_stream("r", rates, delete_when="rand() > value"), OptionError, "another value each"),
        (lambda: LookupTable.from_stream("r", rates, delete_when="uuid() > 'a'"), OptionError, "another value each"),
        (lambda: keyed.with_options({"lookup.cache": "LRU"}), OptionError, "'lookup.cache'"),
        (lambda: LookupJoin(rates, keyed, ["value"], "semi").compile(), CompiledPlanError, "compiled plan"),
    ]
    for make, error, text in cases:
        with pytest.raises(error, match=text):
            make()


def table(rows: DataFrame, order_by: str = "") -> LookupTable:
    return LookupTable.from_stream("r", rows, key="value", order_by=order_by or ())


def test_the_doctor_looks_at_the_state_store(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    join = lookup_join(rates, LookupTable.from_stream("r", rates, key="value"), ["value"], "semi")
    found = {finding.name: finding.wanted for finding in examine(spark, join)}
    assert found[PROVIDER] == ROCKSDB
    assert PROVIDER not in {finding.name for finding in examine(spark, rates)}


def test_a_join_after_a_stateful_step_needs_several_states(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    static = rates.join(spark.range(3), rates.value == F.col("id")).drop("id")
    source = LookupTable.from_stream("r", rates, key="value").stream
    assert source is not None
    stateful = [rates, static, rates.distinct(), rates.join(static, "value"), rates.groupBy("value").count()]
    assert [needs_several_states(left, source) for left in stateful] == [False, False, True, True, True]


def test_a_load_phase_without_protobuf_is_refused_with_the_cure(
    spark: SparkSession, rocksdb: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = spark.readStream.format("rate").load()
    table = LookupTable.from_stream("r", rates, key="value", load=LoadPhase(idle_timeout=1))
    assert lookup_join(rates, table, ["value"], "semi").isStreaming
    monkeypatch.setattr("lookupcache.spark.latest.find_spec", lambda name: None)
    with pytest.raises(PlanError, match=r"Hint: Set 'spark.sql.streaming.stateStore(.|\n)*install protobuf"):
        lookup_join(rates, table, ["value"], "semi")


def test_a_watermark_of_the_left_side_does_not_pass(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    left = rates.withWatermark("timestamp", "1 second")
    table = LookupTable.from_stream("r", rates, key="value")
    joined = lookup_join(left, table, ["value"], "semi")
    mark = "spark.watermarkDelayMs"
    assert [mark in df.schema["timestamp"].metadata for df in (left, joined)] == [True, False]
    windows = joined.groupBy(F.window("timestamp", "1 second")).count().writeStream.format("noop")
    with pytest.raises(AnalysisException, match="watermark"):
        windows.start().stop()


def test_explain_names_the_way(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    text = LookupJoin(rates, LookupTable.from_stream("r", rates, key="value", ttl=60), ["value"], "anti").explain()
    assert (
        "values in the query's state, which its checkpoint has, by applyInPandasWithState, in 32 buckets (value)"
        in text
    )
    assert "60 s after it arrived" in text


# ── the load phase ───────────────────────────────────────────────────────────────────────────────────────


@joins_streams
@pytest.mark.usefixtures("rocksdb")
@pytest.mark.nightly
def test_left_rows_wait_until_event_time_ends_the_load_phase(arrivals: Callable[..., Arrivals]) -> None:
    joins: list[LookupJoin] = []

    def joined(orders: DataFrame, rates: DataFrame) -> DataFrame:
        rates = rates.withColumn("at", F.timestamp_seconds("at"))
        load, observed = LoadPhase("1970-01-01 00:00:10+00:00"), {"lookup.metrics": "observe"}
        table = LookupTable.from_stream("r", rates, key="ccy", order_by="at", buckets=2, load=load, options=observed)
        joins.append(LookupJoin(orders, table, "left.ccy = r.ccy", "left", select=["amount", "exchange"]))
        return joins[-1].df

    def counted() -> tuple[int, ...]:
        assert streams.ended is not None
        counts = joins[-1].metrics_in(streams.ended.lastProgress)
        return counts.waiting_rows, counts.cached_keys, counts.rows, counts.hits

    streams = arrivals(joined)
    streams.arrive("orders", {"ccy": "EUR", "amount": 1}, {"ccy": None, "amount": 2}, {"ccy": "x", "amount": 3})
    streams.arrive("rates", {"ccy": "EUR", "exchange": 1.0, "at": 4}, {"ccy": "USD", "exchange": 5.0, "at": 9})
    assert streams.run(restart=True) == []
    assert counted() == (3, 2, 0, 0)
    streams.arrive("orders", {"ccy": "EUR", "amount": 4})
    streams.arrive("rates", {"ccy": None, "exchange": 9.0, "at": 10}, {"ccy": "EUR", "exchange": 2.0, "at": 5})
    expected = [(1, 2.0), (2, None), (3, None), (4, 2.0)]
    assert streams.run(restart=True) == expected, "each row once, with the values at the end of the phase"
    assert counted() == (0, 2, 4, 2)
    streams.arrive("rates", {"ccy": "GBP", "exchange": 3.0, "at": 11})
    assert streams.run(restart=True) == expected
    assert counted() == (0, 3, 0, 0), "though no row leaves"
    streams.arrive("orders", {"ccy": "USD", "amount": 5})
    assert streams.run(restart=True) == [*expected, (5, 5.0)]


@pytest.mark.extended
@pytest.mark.usefixtures("rocksdb")
def test_left_rows_wait_until_the_stream_is_idle(arrivals: Callable[..., Arrivals]) -> None:
    def joined(orders: DataFrame, rates: DataFrame) -> DataFrame:
        table = LookupTable.from_stream("r", rates, key="ccy", buckets=1, load=LoadPhase(idle_timeout="1 ms"))
        return lookup_join(orders, table, "left.ccy = r.ccy", "inner", select=["amount", "exchange"])

    streams = arrivals(joined)
    streams.arrive("orders", {"ccy": "EUR", "amount": 1})
    streams.arrive("rates", {"ccy": "EUR", "exchange": 1.0})
    assert streams.run(restart=True) == []
    streams.arrive("orders", {"ccy": "x", "amount": 2})
    assert streams.run(restart=True) == [(1, 1.0)]
