"""FOR SYSTEM_TIME AS OF a time of the left side, and the tables that declare what that means."""

import datetime
import sqlite3
from contextlib import closing

import pytest
from needs import needs_spark

from lookupcache import LookupSession
from lookupcache.errors import PlanError, SchemaError, StatementError

RATES = [
    ("EUR", 1.1, "2024-01-01 00:00:00", "2024-02-01 00:00:00"), ("EUR", 1.2, "2024-02-01 00:00:00", None),
    ("USD", 2.0, "2024-01-15 00:00:00", None),
]  # fmt: skip
PRICES = [(1, 10.0, 1), (1, 11.0, 5), (1, 12.0, 9), (2, 20.0, 4)]
AT = datetime.datetime(2024, 2, 1)
SALES = """SELECT * FROM VALUES (1, 'EUR', TIMESTAMP '2024-01-10 00:00:00', 1, 3),
    (2, 'EUR', TIMESTAMP '2024-02-01 00:00:00', 1, 9), (3, 'USD', TIMESTAMP '2024-01-10 00:00:00', 2, 4)
    AS s (n, ccy, ts, item, ver)"""
RATE = "rates FOR SYSTEM_TIME AS OF s.ts AS r ON s.ccy = r.ccy"
PRICE = "prices FOR SYSTEM_TIME AS OF s.ver AS p ON p.item = s.item"


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    path = tmp_path_factory.mktemp("as_of") / "shop.db"
    with closing(sqlite3.connect(path)) as shop, shop:
        shop.execute("CREATE TABLE rates (ccy TEXT, rate REAL, since TEXT, until TEXT)")
        shop.executemany("INSERT INTO rates VALUES (?, ?, ?, ?)", RATES)
        shop.execute("CREATE TABLE prices (item INTEGER, price REAL, v INTEGER)")
        shop.executemany("INSERT INTO prices VALUES (?, ?, ?)", PRICES)
        shop.execute("CREATE INDEX by_ccy ON rates (ccy)")
        shop.execute("CREATE INDEX by_item ON prices (item)")
    made = LookupSession(spark)
    source = f"'connector' = 'sql', 'url' = 'sqlite:///{path}'"
    made.sql(f"""CREATE TABLE rates (ccy STRING, rate DOUBLE, since TIMESTAMP, `until` TIMESTAMP,
        PRIMARY KEY (ccy) NOT ENFORCED, PERIOD FOR SYSTEM_TIME (since, `until`)) WITH ({source}, 'table' = 'rates')""")
    made.sql(f"""CREATE TABLE prices (item INT, price DOUBLE, v INT)
        WITH ({source}, 'table' = 'prices', 'lookup.cache' = 'LRU', 'lookup.as-of.version' = 'v')""")
    spark.sql(SALES).createOrReplaceTempView("sales_of_then")
    spark.sql(f"SELECT *, ts AS outer_time FROM ({SALES})").createOrReplaceTempView("outer_sales")
    return made


@pytest.fixture(scope="module")
def nested(spark, session):
    """The session, with times within columns, in session variables and in the configuration."""
    fields = "named_struct('ts', ts, 'm', map('k', ts)) AS x, map('k', ts) AS m, array(ts) AS a"
    spark.sql(f"SELECT *, {fields} FROM sales_of_then").createOrReplaceTempView("nested_sales")
    rows = ", ".join(
        f"('{ccy}', {rate}D, TIMESTAMP '{since}', {(until and f'TIMESTAMP {until!r}') or 'NULL'})"
        for ccy, rate, since, until in RATES
    )
    spark.sql(f"SELECT * FROM VALUES {rows} AS r (ccy, rate, since, `until`)").createOrReplaceTempView("all_rates")
    spark.sql("DECLARE OR REPLACE VARIABLE time_of_test = TIMESTAMP '2024-01-20 00:00:00'")
    spark.sql("DECLARE OR REPLACE VARIABLE times_of_test = named_struct('ts', TIMESTAMP '2024-01-20 00:00:00')")
    spark.conf.set("test.column", "ts")
    spark.conf.set("test.time", "2024-01-20 00:00:00")
    yield session
    for name in ("time_of_test", "times_of_test"):
        spark.sql(f"DROP TEMPORARY VARIABLE {name}")
    for name in ("test.column", "test.time"):
        spark.conf.unset(name)


STATEMENTS = {
    f"SELECT s.n, r.rate FROM sales_of_then AS s LEFT JOIN {RATE}": [(1, 1.1), (2, 1.2), (3, None)],
    f"SELECT s.n, r.rate FROM sales_of_then AS s, {RATE.replace(' ON ', ' WHERE ')}": [(1, 1.1), (2, 1.2)],
    f"SELECT s.n, rate, price FROM sales_of_then s JOIN {PRICE} AND p.price <> 12 LEFT JOIN {RATE}": [
        (1, 1.1, 10.0), (2, 1.2, 11.0), (3, None, 20.0),
    ],
    f"SELECT s.n, price FROM sales_of_then s JOIN {PRICE} WHERE p.price <> 12": [(1, 10.0), (3, 20.0)],
    "SELECT n, (SELECT price FROM prices FOR SYSTEM_TIME AS OF s.ver AS p WHERE p.item = s.item) FROM sales_of_then s":
        [(1, 10.0), (2, 12.0), (3, 20.0)],
    f"SELECT s.n, rate FROM sales_of_then s JOIN {RATE.replace('s.ts', 's.ts + INTERVAL 30 DAYS')}": [
        (1, 1.2), (2, 1.2), (3, 2.0),
    ],
    f"SELECT s.n, rate FROM sales_of_then s JOIN {RATE.replace('s.ts', 'TIMESTAMP ' + repr('2024-01-20 00:00:00'))}": [
        (1, 1.1), (2, 1.1), (3, 2.0),
    ],
    f"SELECT s.n, rate FROM sales_of_then s JOIN {RATE.replace('s.ts', 'PROCTIME()')}": [
        (1, 1.1), (1, 1.2), (2, 1.1), (2, 1.2), (3, 2.0),
    ],
    "WITH q AS (SELECT item AS i, price * 2 AS twice FROM prices WHERE price <> 12) SELECT s.n, twice FROM "
    "sales_of_then s JOIN q FOR SYSTEM_TIME AS OF s.ver AS p ON p.i = s.item": [(1, 20.0), (2, 22.0), (3, 40.0)],
    "SELECT s.n, r.rate FROM sales_of_then s LEFT JOIN (SELECT ccy, rate FROM rates WHERE rate > 1.15) FOR "
    "SYSTEM_TIME AS OF s.ts AS r ON s.ccy = r.ccy": [(1, None), (2, 1.2), (3, None)],
}  # fmt: skip


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize("sql", STATEMENTS)
def test_rows_are_those_of_the_time(session, sql):
    assert sorted(map(tuple, session.sql(sql).collect()), key=repr) == sorted(STATEMENTS[sql], key=repr)


TIMES = {
    "s.x.ts": None, "x.ts": None, "x['ts']": None, "s.m.k": None, "m['k']": None, "s.a[0]": None, "s.x.m.k": None,
    ":at": {"at": AT}, "?": [AT], "CAST(:at AS TIMESTAMP)": {"at": str(AT)}, "coalesce(s.ts, :at)": {"at": AT},
    "least(x.ts, ?)": [AT], "time_of_test": None, "session.time_of_test": None, "SYSTEM.session.time_of_test": None,
    "coalesce(time_of_test, s.ts)": None, "least(times_of_test.ts, s.ts)": None, "IDENTIFIER('s.ts')": None,
    "(SELECT max(ts) FROM nested_sales)": None, "s.`${test.column}`": None, "TIMESTAMP '${test.time}'": None,
    "variant_get(parse_json('\"2024-01-20\"'), '$', 'timestamp')": None,
}  # fmt: skip
VALID = "(r.since <= ({0}) OR r.since IS NULL) AND (r.`until` > ({0}) OR r.`until` IS NULL)"


@needs_spark("4.0", "it has variants")
@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize("how", ["", "LEFT "])
@pytest.mark.parametrize("time", TIMES)
def test_a_time_is_any_expression_of_the_left_side(nested, time, how):
    sql = "SELECT s.n, r.rate FROM nested_sales AS s {}JOIN {} AS r ON s.ccy = r.ccy{}"
    args = TIMES[time]
    again = args * 2 if isinstance(args, list) else args
    expected = nested.spark.sql(sql.format(how, "all_rates", f" AND {VALID.format(time)}"), args=again)
    found = nested.sql(sql.format(how, f"rates FOR SYSTEM_TIME AS OF {time}", ""), args=args)
    assert sorted(map(tuple, found.collect()), key=repr) == sorted(map(tuple, expected.collect()), key=repr)


def test_a_column_for_the_time_of_the_lookup_may_be_a_field(nested):
    rows = nested.sql("SELECT s.n, r.rate FROM nested_sales AS s JOIN rates FOR SYSTEM_TIME AS OF x.proc_time AS r "
                      "ON s.ccy = r.ccy AND s.n = 1").collect()  # fmt: skip
    assert sorted(map(tuple, rows)) == [(1, 1.1), (1, 1.2)]
    with pytest.raises(SchemaError, match="no relation 'z' left"):
        nested.sql("SELECT s.n FROM nested_sales AS s JOIN rates FOR SYSTEM_TIME AS OF z.proc_time AS r ON s.n = 1")


REFUSED = {
    f"SELECT s.n FROM sales_of_then s JOIN {RATE.replace('s.ts', 's.then')}": (SchemaError, "no column 'then'"),
    f"SELECT s.n FROM sales_of_then s JOIN {RATE.replace('s.ts', 'z.ts')}": (SchemaError, "no column 'z.ts'"),
    f"SELECT s.n FROM sales_of_then s JOIN {RATE.replace('s.ts', ':at + 1')}": (StatementError, "at"),
    f"SELECT (SELECT count(*) FROM sales_of_then s JOIN {RATE.replace('s.ts', 'outer_time')}) FROM outer_sales": (
        PlanError, "FOR SYSTEM_TIME AS OF cannot read",
    ),
    f"SELECT s.n FROM sales_of_then s JOIN {RATE.replace('s.ts', 'r.since')}": (PlanError, "as_of reads r.since"),
    f"SELECT s.n FROM sales_of_then s JOIN {RATE.replace('s.ts', 's.n')}": (PlanError, "r.since is TIMESTAMP"),
    f"SELECT s.n FROM sales_of_then s, {PRICE.replace(' ON ', ' WHERE ')}": (PlanError, "has no key"),
    "CREATE TABLE x (id INT, a DATE, PERIOD FOR SYSTEM_TIME (a)) WITH ('connector' = 'sql', 'url' = 'sqlite:///x')": (
        StatementError, "has two columns",
    ),
    "CREATE TABLE x (id INT, a DATE, PERIOD FOR SYSTEM_TIME (a, b)) WITH ('connector' = 'sql', 'url' = 'sqlite:///x', "
    "'table' = 'x')": (SchemaError, "names a column 'b'"),
    "CREATE TABLE x (id INT, a DATE, b DATE, PERIOD FOR SYSTEM_TIME (a, b)) WITH ('connector' = 'sql', "
    "'url' = 'sqlite:///x', 'lookup.as-of.period' = 'b, a')": (StatementError, "second period"),
    f"SELECT s.n FROM sales_of_then s JOIN {PRICE} AND p.price IN (SELECT s.n FROM sales_of_then s)": (
        PlanError, "A sub-query, or an expression that only Spark reads, is not supported",
    ),
}  # fmt: skip


@pytest.mark.parametrize("sql", REFUSED)
def test_other_times_are_refused_with_the_position(session, sql):
    kind, fact = REFUSED[sql]
    with pytest.raises(kind, match=fact) as error:
        session.sql(sql)
    assert error.value.position is not None
