"""A join whose rows come from the store: the second run of a job requests nothing."""

from __future__ import annotations

import pytest

from lookupcache import LookupTable, lookup_join

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", ["redis", "folder"])
def test_a_second_run_requests_nothing(spark, tmp_path, kind, request):
    store = request.getfixturevalue("redis_server").url if kind == "redis" else str(tmp_path / "store")
    log = str(tmp_path / "log")

    def rows_of(keys):
        with open(log, "a") as file:
            file.write("".join(f"{key}\n" for key in keys))
        return [[(key, f"n{key}")] if key % 3 else [] for key in keys]

    options = {"lookup.cache": "LRU", "lookup.cache.store": store, "lookup.cache.store.timeout": "10 s"}
    table = LookupTable.from_function(
        "t", "id BIGINT, name STRING", key=["id"], function=rows_of, batch=True, options=options
    )
    left = spark.range(60, numPartitions=2).selectExpr("id AS k")
    for most in (100, 101):
        # Another cache, since its limit is another, but the same entries.
        right = table.with_options({"lookup.cache.max-rows": str(most)})
        joined = lookup_join(left, right, on="k % 20 = t.id", how="left", select=["k", "name"])
        found = {(row["k"], row["name"]) for row in joined.collect()}
        assert found == {(n, f"n{n % 20}" if n % 20 % 3 else None) for n in range(60)}
    with open(log) as file:
        assert sorted(map(int, file)) == list(range(20))
