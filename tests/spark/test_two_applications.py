"""Applications with other environments and one kept cache, which run at the same time: each has its own rows."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys

import pytest
from servers import RedisServer

pytestmark = pytest.mark.spark
USERS = ("ann", "bob")
KEYS = 40
APPLICATION = """
import json, sys
from lookupcache.java import local_spark_environment
local_spark_environment()
from pyspark.sql import SparkSession
from lookupcache import LookupTable, lookup_join

tables, rounds, keys = json.loads(sys.argv[1])
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.sql.shuffle.partitions", "2").getOrCreate())
print("ready", flush=True)
input()
found = {}
for number in range(rounds):
    for name, options in tables.items():
        table = LookupTable(name, "id BIGINT, owner STRING", options)
        left = spark.range(keys).where(f"id % {rounds} <= {number}").repartition(2)
        rows = lookup_join(left, table, on="id", select=["owner"]).collect()
        found.setdefault(name, []).extend(row.owner for row in rows)
spark.stop()
print(json.dumps({name: sorted(set(map(str, values))) for name, values in found.items()}))
"""


@pytest.fixture
def kept(request, tmp_path):
    """Return the options of a cache that applications keep: a path, or a store in Redis."""
    if request.param == "path":
        yield {"lookup.cache.path": str(tmp_path / "kept")}
        return
    server = RedisServer()
    try:
        yield {"lookup.cache.store": server.start().url}
    finally:
        server.close()


@pytest.mark.extended
@pytest.mark.parametrize("kept", ["path", "redis"], indirect=True)
def test_two_applications_at_the_same_time_have_their_own_rows(kept, postgres_server, tmp_path):
    """By PGUSER with a view of the user's rows, and by a relative path behind a reference in two directories."""
    server = postgres_server
    server.run(
        "DROP VIEW IF EXISTS mine", "DROP TABLE IF EXISTS of_all", *(f"DROP ROLE IF EXISTS {user}" for user in USERS),
        *(f"CREATE ROLE {user} LOGIN PASSWORD 'kx7'" for user in USERS),
        "CREATE TABLE of_all (id BIGINT, owner TEXT, PRIMARY KEY (id, owner))",
        f"INSERT INTO of_all SELECT id, owner FROM generate_series(0, {KEYS - 1}) AS id, unnest(ARRAY{list(USERS)}) "
        "AS owner",
        "CREATE VIEW mine AS SELECT * FROM of_all WHERE owner = current_user",
        f"GRANT SELECT ON mine TO {', '.join(USERS)}",
    )  # fmt: skip
    for user in USERS:
        (tmp_path / user).mkdir()
        with contextlib.closing(sqlite3.connect(tmp_path / user / "shop.db")) as shop, shop:
            shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, owner TEXT)")
            shop.executemany("INSERT INTO t VALUES (?, ?)", [(key, user) for key in range(KEYS)])
    place = server.url.rpartition("@")[2]
    shared = {"lookup.cache": "LRU", **kept}
    tables = {
        "by_login": {"connector": "sql", "url": f"postgresql://{place}", "table": "mine", "password": "env:LOGIN"},
        "by_place": {"connector": "sql", "url": "env:SHOP_URL", "table": "t"},
    }
    given = json.dumps([{name: options | shared for name, options in tables.items()}, 4, KEYS])
    variables = {**os.environ, "LOGIN": "kx7", "SHOP_URL": "sqlite:///shop.db"}

    def run():
        with contextlib.ExitStack() as stack:
            started = {
                user: stack.enter_context(subprocess.Popen(
                    [sys.executable, "-c", APPLICATION, given], env={**variables, "PGUSER": user}, cwd=tmp_path / user,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                ))
                for user in USERS
            }  # fmt: skip
            for one in started.values():
                stack.callback(one.kill)
                assert one.stdout.readline() == "ready\n"
            for one in started.values():
                one.stdin.write("go\n")
                one.stdin.flush()
            return {user: json.loads(one.communicate(timeout=300)[0].splitlines()[-1]) for user, one in started.items()}

    own = {user: {"by_login": [user], "by_place": [user]} for user in USERS}
    assert run() == own
    # The kept rows are of both, and each finds its own again: without the sources, there are no others.
    server.run("ALTER VIEW mine RENAME TO gone")
    for user in USERS:
        (tmp_path / user / "shop.db").unlink()
    try:
        assert run() == own
    finally:
        server.run("DROP VIEW gone", "DROP TABLE of_all", *(f"DROP ROLE {user}" for user in USERS))
