"""Windows of Flink's in FROM: each row is in the windows that Flink's rules give, with and without lookups."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta

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
        ("TABLE(SESSION(TABLE bids PARTITION BY n, DESCRIPTOR(ts), INTERVAL '1' HOUR))", "session_window"),
        ("TABLE(CUMULATE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '1' DAY))", "sum"),
        ("TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts)))", "INTERVAL '1' HOUR"),
        ("TABLE(HOP(TABLE bids, ts, INTERVAL '1' HOUR, INTERVAL '1' DAY))", "DESCRIPTOR"),
    ],
)
def test_windows_that_spark_has_not_are_refused_with_the_cure(session, relation, cure):
    with pytest.raises(StatementError, match=r"TUMBLE|HOP|SESSION|CUMULATE") as raised:
        session.sql(f"SELECT * FROM {relation}")
    assert cure in raised.value.hint


def test_windows_in_group_by_have_a_hint(session):
    sql = "SELECT count(*) FROM bids AS b JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON b.customer_id = c.id"
    with pytest.raises(StatementError, match=r"Write GROUP BY window\(ts"):
        session.sql(f"{sql} GROUP BY TUMBLE(ts, INTERVAL '1' HOUR)")
