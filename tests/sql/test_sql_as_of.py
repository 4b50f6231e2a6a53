"""FOR SYSTEM_TIME AS OF a time of the left side, and the tables that declare what that means."""

import sqlite3
from contextlib import closing

import pytest

from lookupcache import LookupSession
from lookupcache.errors import PlanError, SchemaError, StatementError

RATES = [
    ("EUR", 1.1, "2024-01-01 00:00:00", "2024-02-01 00:00:00"), ("EUR", 1.2, "2024-02-01 00:00:00", None),
    ("USD", 2.0, "2024-01-15 00:00:00", None),
]  # fmt: skip
PRICES = [(1, 10.0, 1), (1, 11.0, 5), (1, 12.0, 9), (2, 20.0, 4)]
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
    return made


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


REFUSED = {
    f"SELECT s.n FROM sales_of_then s JOIN {RATE.replace('s.ts', 's.then')}": (SchemaError, "no column 'then'"),
    f"SELECT s.n FROM sales_of_then s JOIN {RATE.replace('s.ts', 'r.since')}": (SchemaError, "no relation 'r' left"),
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
