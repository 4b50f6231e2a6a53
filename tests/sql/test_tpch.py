"""TPC-H 3, 5, 10 and 12 with their dimension tables in SQLite, against Spark's own answer."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sql_world import sparks_own

from lookupcache import LookupSession

pytestmark = pytest.mark.spark

SCALE = "0.003"
DIMENSIONS = {
    "orders": "o_orderkey BIGINT, o_custkey BIGINT, o_orderdate DATE, o_shippriority INT, o_orderpriority STRING",
    "customer": "c_custkey BIGINT, c_name STRING, c_nationkey BIGINT, c_mktsegment STRING, c_acctbal DECIMAL(15,2), "
    "c_address STRING, c_phone STRING, c_comment STRING",
    "supplier": "s_suppkey BIGINT, s_nationkey BIGINT",
    "nation": "n_nationkey BIGINT, n_name STRING, n_regionkey BIGINT",
    "region": "r_regionkey BIGINT, r_name STRING",
}
ORDERS = "JOIN orders FOR SYSTEM_TIME AS OF PROCTIME() AS o ON o.o_orderkey = l.l_orderkey"
CUSTOMER = "JOIN customer FOR SYSTEM_TIME AS OF PROCTIME() AS c ON c.c_custkey = o.o_custkey"
QUERIES = {
    3: f"""
        SELECT l.l_orderkey, sum(l.l_extendedprice * (1 - l.l_discount)) AS revenue, o.o_orderdate, o.o_shippriority
        FROM lineitem AS l {ORDERS} {CUSTOMER}
        WHERE c.c_mktsegment = 'BUILDING' AND o.o_orderdate < DATE '1995-03-15' AND l.l_shipdate > DATE '1995-03-15'
        GROUP BY l.l_orderkey, o.o_orderdate, o.o_shippriority ORDER BY revenue DESC, o_orderdate LIMIT 10""",
    5: f"""
        SELECT n.n_name, sum(l.l_extendedprice * (1 - l.l_discount)) AS revenue
        FROM lineitem AS l {ORDERS} {CUSTOMER}
        JOIN supplier FOR SYSTEM_TIME AS OF PROCTIME() AS s
          ON s.s_suppkey = l.l_suppkey AND s.s_nationkey = c.c_nationkey
        JOIN nation FOR SYSTEM_TIME AS OF PROCTIME() AS n ON n.n_nationkey = s.s_nationkey
        JOIN region FOR SYSTEM_TIME AS OF PROCTIME() AS r ON r.r_regionkey = n.n_regionkey
        WHERE r.r_name = 'ASIA' AND o.o_orderdate >= DATE '1994-01-01' AND o.o_orderdate < DATE '1995-01-01'
        GROUP BY n.n_name ORDER BY revenue DESC""",
    10: f"""
        SELECT c.c_custkey, c.c_name, sum(l.l_extendedprice * (1 - l.l_discount)) AS revenue, c.c_acctbal, n.n_name,
          c.c_address, c.c_phone, c.c_comment
        FROM lineitem AS l {ORDERS} {CUSTOMER}
        JOIN nation FOR SYSTEM_TIME AS OF PROCTIME() AS n ON c.c_nationkey = n.n_nationkey
        WHERE o.o_orderdate >= DATE '1993-10-01' AND o.o_orderdate < DATE '1994-01-01' AND l.l_returnflag = 'R'
        GROUP BY c.c_custkey, c.c_name, c.c_acctbal, c.c_phone, n.n_name, c.c_address, c.c_comment
        ORDER BY revenue DESC, c_custkey LIMIT 20""",
    12: f"""
        SELECT l.l_shipmode,
          sum(CASE WHEN o.o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS high_line_count,
          sum(CASE WHEN o.o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS low_line_count
        FROM lineitem AS l {ORDERS}
        WHERE l.l_shipmode IN ('MAIL', 'SHIP') AND l.l_commitdate < l.l_receiptdate AND l.l_shipdate < l.l_commitdate
          AND l.l_receiptdate >= DATE '1994-01-01' AND l.l_receiptdate < DATE '1995-01-01'
        GROUP BY l.l_shipmode ORDER BY l.l_shipmode""",
}


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tpch")
    generator = Path(sys.executable).parent / "tpchgen-cli"
    subprocess.run([generator, "parquet", "-s", SCALE, f"--output-dir={folder}"], check=True, capture_output=True)
    session = LookupSession(spark)
    for name in ("lineitem", *DIMENSIONS):
        spark.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(name)
    for name, columns in DIMENSIONS.items():
        fill(folder / "dimensions.db", name, columns, folder)
        session.sql(f"""CREATE TEMPORARY TABLE {name} ({columns}) WITH ('connector' = 'sql', 'table' = '{name}',
                        'url' = 'sqlite:///{folder / "dimensions.db"}', 'lookup.cache' = 'LRU')""")
    yield session
    for name in ("lineitem", *DIMENSIONS):
        spark.catalog.dropTempView(name)


def fill(path: Path, name: str, columns: str, folder: Path) -> None:
    names = [part.split()[0] for part in columns.split(", ")]
    rows = pq.read_table(folder / f"{name}.parquet", columns=names).to_pylist()
    values = [[value if isinstance(value, int | str) else str(value) for value in row.values()] for row in rows]
    with closing(sqlite3.connect(path)) as connection, connection:
        rest = "".join(f", {other}" for other in names[1:])
        connection.execute(f"CREATE TABLE {name} ({names[0]} INTEGER PRIMARY KEY{rest})")
        connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(names))})", values)


@pytest.mark.extended
@pytest.mark.parametrize("number", QUERIES)
def test_the_answer_is_sparks_own(session, spark, number):
    ours, theirs = session.sql(QUERIES[number]), spark.sql(sparks_own(QUERIES[number]))
    rows = theirs.collect()
    assert ours.dtypes == theirs.dtypes
    assert ours.collect() == rows
    assert rows
