"""Windows of Flink's in FROM: each row is in the windows that Flink's rules give, with and without lookups."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from sql_world import make_world, rows_of

from lookupcache import StatementError

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SPELLED = {
    10 * MINUTE: "INTERVAL '10' MINUTES", HOUR: "INTERVAL 1 HOUR", DAY: "INTERVAL '1' DAY",
    7 * DAY: "INTERVAL '7' DAYS",
}  # fmt: skip
CASES = [
    ("TUMBLE", 10 * MINUTE, None, None), ("TUMBLE", DAY, None, None), ("TUMBLE", DAY, None, HOUR),
    ("TUMBLE", 7 * DAY, None, DAY), ("HOP", HOUR, 10 * MINUTE, None), ("HOP", DAY, HOUR, 10 * MINUTE),
]  # fmt: skip


def windows_of(time: datetime, size: timedelta, slide: timedelta, offset: timedelta) -> list[datetime]:
    """Return where the windows begin that have a time, by the wall clock as Flink counts."""
    last = EPOCH + offset + (time - EPOCH - offset) // slide * slide
    return [start for n in range(size // slide) if (start := last - n * slide) + size > time]


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    """Return a session in a time zone with summer time, and a view of times around its changes."""
    made = make_world(spark.newSession(), tmp_path_factory.mktemp("windows"))
    made.spark.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
    draw = random.Random(5)
    days = [datetime(2024, 3, 31), datetime(2024, 10, 27), datetime(2024, 7, 1)]
    times = [draw.choice(days) + timedelta(seconds=draw.randint(4 * 3600, 200_000)) for _ in range(40)]
    rows = [(n, n % 5, time) for n, time in enumerate(times)] + [(99, 1, None)]
    df = made.spark.createDataFrame(rows, "n INT, customer_id BIGINT, wall TIMESTAMP_NTZ")
    df.selectExpr("*", "CAST(wall AS TIMESTAMP) AS ts").createOrReplaceTempView("bids")
    return made


@pytest.mark.parametrize("column", ["wall", "ts"])
@pytest.mark.parametrize(("kind", "size", "slide", "offset"), CASES)
def test_a_row_is_in_the_windows_of_its_time(session, kind, size, slide, offset, column):
    arguments = [SPELLED[one] for one in (slide, size, offset) if one is not None]
    relation = f"TABLE({kind}(TABLE bids, DESCRIPTOR({column}), {', '.join(arguments)}))"
    found = session.sql(f"SELECT n, window_start, window_end, CAST(window_time AS TIMESTAMP_NTZ), wall FROM {relation}")
    expected = Counter(
        (row.n, start, start + size, start + size - timedelta(milliseconds=1), row.wall)
        for row in session.spark.table("bids").collect() if row.wall is not None
        for start in windows_of(row.wall, size, slide or size, offset or timedelta())
    )  # fmt: skip
    assert rows_of(found) == expected
    added = ["window_start", "window_end", "window_time"]
    assert session.sql(f"SELECT * FROM {relation}").columns == ["n", "customer_id", "wall", "ts", *added]


STEPS = [(10 * MINUTE, HOUR, None), (HOUR, DAY, None), (HOUR, DAY, 10 * MINUTE)]


@pytest.mark.parametrize("column", ["wall", "ts"])
@pytest.mark.parametrize(("step", "size", "offset"), STEPS)
def test_a_row_is_in_the_growing_windows_of_its_time(session, step, size, offset, column):
    arguments = ", ".join(SPELLED[one] for one in (step, size, offset) if one is not None)
    relation = f"CUMULATE(TABLE bids, DESCRIPTOR({column}), {arguments})"
    found = session.sql(f"SELECT n, window_start, window_end, CAST(window_time AS TIMESTAMP_NTZ) FROM {relation} AS w")
    assert rows_of(found) == Counter(
        (row.n, start, end, end - timedelta(milliseconds=1))
        for row in session.spark.table("bids").collect() if row.wall is not None
        for start in windows_of(row.wall, size, size, offset or timedelta())
        for end in (start + n * step for n in range(1, size // step + 1)) if end > row.wall
    )  # fmt: skip
    assert session.sql(f"SELECT * FROM {relation}").columns[-3:] == ["window_start", "window_end", "window_time"]


def sessions_of(times: list[datetime], gap: timedelta) -> list[tuple[datetime, datetime, int]]:
    """Return start, end and number of rows of each session: a row that comes just when one ends belongs to it."""
    found: list[tuple[datetime, datetime, int]] = []
    for time in sorted(times):
        if found and time <= found[-1][1]:
            start, _, count = found.pop()
            found.append((start, time + gap, count + 1))
        else:
            found.append((time, time + gap, 1))
    return found


def expected_sessions(rows: list[Any], gap: timedelta) -> Counter[tuple[Any, ...]]:
    by_key: dict[Any, list[datetime]] = {}
    for row in rows:
        by_key.setdefault(row[0], []).append(row[1])
    return Counter((key, *one) for key, times in by_key.items() for one in sessions_of(times, gap))


def events(draw: random.Random) -> list[tuple[int, datetime]]:
    """Return events by key, many of them just as far apart as the gap of their sessions."""
    return [(draw.randint(1, 3), datetime(2024, 7, 1, 8) + draw.randint(0, 40) * MINUTE) for _ in range(25)]


GROUPED = "SELECT k, window_start, e.window_end, count(*) AS n{} FROM {}SESSION(TABLE events PARTITION BY k, "
GROUPED += "DESCRIPTOR(ts), INTERVAL '5' MINUTES){} AS e GROUP BY window_start, e.window_end, k HAVING count(*) > 0"


@pytest.mark.parametrize(("column", "seed"), [("wall", 1), ("ts", 2), ("ts", 3)])
def test_groups_of_sessions_are_those_of_flink(session, column, seed):
    rows = events(random.Random(seed))
    df = session.spark.createDataFrame(rows, "k INT, wall TIMESTAMP_NTZ").selectExpr(
        "k", f"CAST(wall AS {'TIMESTAMP_NTZ' if column == 'wall' else 'TIMESTAMP'}) AS ts"
    )
    df.createOrReplaceTempView("events")
    expected = expected_sessions(rows, 5 * MINUTE)
    assert (
        rows_of(session.sql(GROUPED.format("", "TABLE(", ")")))
        == rows_of(session.sql(GROUPED.format("", "", "")))
        == expected
    )
    grouped = GROUPED.format(", window_time AS t", "", "")
    lookup = "JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON s.k = c.id"
    names = {1: "ann", 2: "bob", 3: "cem"}
    later = session.sql(f"WITH s AS ({grouped}) SELECT s.n, c.name FROM s {lookup}")
    assert rows_of(later) == Counter((n, names[k]) for k, _, _, n in expected.elements())
    alone = (
        "SELECT date_format(window_end, 'HH:mm') AS e FROM SESSION(TABLE events, DESCRIPTOR(ts), INTERVAL '5' MINUTES) "
        "GROUP BY window_start, window_end UNION ALL SELECT 'all' FROM events GROUP BY 1"
    )
    ends = [end for _, end, _ in sessions_of([time for _, time in rows], 5 * MINUTE)]
    assert rows_of(session.sql(alone)) == Counter([*((f"{end:%H:%M}",) for end in ends), ("all",)])


@pytest.mark.parametrize(("kind", "zone"), [("TUMBLE", "Europe/Vienna"), ("HOP", "UTC"), ("SESSION", "Europe/Vienna")])
def test_the_watermark_of_a_stream_ends_its_windows(session, tmp_path, kind, zone):
    spark = session.spark
    spark.conf.set("spark.sql.session.timeZone", zone)
    last = datetime(2024, 7, 2)
    rows = [*events(random.Random(4)), (9, last)]
    df = spark.createDataFrame(rows, "k INT, wall TIMESTAMP_NTZ").selectExpr("k", "CAST(wall AS TIMESTAMP) AS ts")
    df.coalesce(1).write.parquet(str(tmp_path / "events"))
    stream = spark.readStream.schema(df.schema).parquet(str(tmp_path / "events")).withWatermark("ts", "1 minute")
    stream.createOrReplaceTempView("events_stream")
    size = {"TUMBLE": 5 * MINUTE, "HOP": HOUR, "SESSION": 5 * MINUTE}[kind]
    lengths = {"HOP": "INTERVAL '20' MINUTES, INTERVAL '1' HOUR"}.get(kind, "INTERVAL '5' MINUTES")
    keys = " PARTITION BY k" if kind == "SESSION" else ""
    query = (
        session.sql(
            f"SELECT k, window_start, window_end, count(*) FROM TABLE({kind}(TABLE events_stream{keys}, "
            f"DESCRIPTOR(ts), {lengths})) GROUP BY k, window_start, window_end"
        )
        .writeStream.format("memory")
        .queryName(f"closed_{kind}")
        .outputMode("append")
        .start()
    )
    try:
        query.processAllAvailable()
        found = rows_of(spark.table(f"closed_{kind}"))
    finally:
        query.stop()
        spark.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
    closed = [row for row in rows if row[1] < last]
    slide = 20 * MINUTE if kind == "HOP" else size
    windows = Counter(
        (key, start, start + size) for key, time in closed for start in windows_of(time, size, slide, timedelta())
    )
    expected = Counter((*window, n) for window, n in windows.items())
    assert found == (expected_sessions(closed, size) if kind == "SESSION" else Counter(dict.fromkeys(expected, 1)))


def test_a_window_stands_left_of_a_lookup(session):
    named = "TABLE(TUMBLE(DATA => TABLE bids, TIMECOL => DESCRIPTOR(wall), SIZE => INTERVAL '1' DAY))"
    sql = (
        "WITH w AS (SELECT * FROM {0}) SELECT c.country, {1}window_start, count(*) AS n FROM {2} JOIN customers "
        "FOR SYSTEM_TIME AS OF PROCTIME() AS c ON customer_id = c.id GROUP BY c.country, {1}window_start"
    )
    own = "SELECT *, window(wall, '1 day').start AS window_start FROM bids"
    expected = rows_of(session.sql(sql.format(f"({own})", "", f"({own}) AS b")))
    assert len(expected) > 3
    for first, path in ((named, ""), (f"{named} AS b", "b."), ("w", "w.")):
        assert rows_of(session.sql(sql.format(named, path, first))) == expected


def test_a_window_without_a_lookup_over_a_query(session):
    inner = "(SELECT * FROM bids WHERE n < 10)"
    sql = f"SELECT window_start, sum(n) FROM TABLE(TUMBLE({inner}, DESCRIPTOR(wall), INTERVAL '1' DAY)) GROUP BY ALL"
    own = f"SELECT window.start, sum(n) FROM {inner} GROUP BY window(wall, '1 day')"
    assert rows_of(session.sql(sql)) == rows_of(session.spark.sql(own)) != {}


@pytest.mark.parametrize(
    ("relation", "cure"),
    [
        (
            "SESSION(TABLE bids PARTITION BY n, DESCRIPTOR(ts), INTERVAL '1' HOUR)",
            "session_window(`ts`, '1 HOUR'), `n`",
        ),
        ("TABLE(CUMULATE(TABLE bids, DESCRIPTOR(ts), INTERVAL '7' HOURS, INTERVAL '1' DAY))", "step before the size"),
        ("TABLE(CUMULATE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' DAY))", "INTERVAL …, INTERVAL '1' HOUR"),
        ("TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts)))", "INTERVAL '1' HOUR"),
        ("TABLE(HOP(TABLE bids, ts, INTERVAL '1' HOUR, INTERVAL '1' DAY))", "DESCRIPTOR"),
    ],
)
def test_windows_that_spark_has_not_are_refused_with_the_cure(session, relation, cure):
    with pytest.raises(StatementError, match=r"TUMBLE|HOP|session|CUMULATE") as raised:
        session.sql(f"SELECT * FROM {relation}")
    assert cure in raised.value.hint


@pytest.mark.parametrize(
    "rest",
    ["WHERE k > 1 GROUP BY window_start, window_end, k", "GROUP BY window_start, window_end",
     "GROUP BY window_start, k", "AS e JOIN tags ON k = id GROUP BY window_start, window_end, k",
     "GROUP BY window_start, window_end, upper(k)", "GROUP BY window_start, window_end, k WITH ROLLUP",
     "GROUP BY CUBE (window_start, window_end), k"],
)  # fmt: skip
def test_other_groups_of_sessions_are_refused(session, rest):
    session.spark.createDataFrame(events(random.Random(1)), "k INT, ts TIMESTAMP_NTZ").createOrReplaceTempView("events")
    relation = "SESSION(TABLE events PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5' MINUTES)"
    with pytest.raises(StatementError, match="only in the SELECT that groups by it"):
        session.sql(f"SELECT count(*) FROM {relation} {rest}")


def test_windows_in_group_by_have_a_hint(session):
    sql = "SELECT count(*) FROM bids AS b JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON b.customer_id = c.id"
    with pytest.raises(StatementError, match=r"Write GROUP BY window\(ts"):
        session.sql(f"{sql} GROUP BY TUMBLE(ts, INTERVAL '1' HOUR)")
