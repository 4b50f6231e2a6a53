"""What a runner does in a process that was forked after its first batch: no thread of the parent is there."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from forks import reply_of_child

from lookupcache import LookupTable
from lookupcache.config import LookupConfig
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.worker import runner as runners
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner, lookup_of_process
from lookupcache.worker.source import Source

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

KINDS = ["one thread", "threads", "coroutines", "host", "store"]


def squares(n):
    return [(n, n * n)]


async def squares_async(n):
    return squares(n)


@pytest.fixture
def planned(request, tmp_path):
    """Return a function that returns the plan of a kind, and its connector."""

    def plan(kind):
        options = {"cache": "LRU", "async_": True if kind in ("threads", "coroutines") else None}
        options |= {"host": {"scope": "host", "cache_path": str(tmp_path)}}.get(kind, {"scope": "worker"})
        if kind == "store":
            options |= {"store": request.getfixturevalue("redis_server").url, "store_timeout": 10}
        function = squares_async if kind == "coroutines" else squares
        table = LookupTable.from_function("s", "n BIGINT, square BIGINT", key=["n"], function=function)
        key = FieldKey(column="n", sql="l.`n`")
        config = LookupConfig(**{name: value for name, value in options.items() if value is not None})
        plan = LookupPlan(
            table="s", connector="function", source=f"{table.source} {os.getpid()} {kind}", schema=table.schema,
            how="left", keys=(key,), columns=("square",), left_columns=("n",), config=config,
        )  # fmt: skip
        return plan, table.connector

    return plan


def join(runner, *keys):
    batches = [pa.record_batch({"n": pa.array(keys, pa.int64())})]
    return [row for batch in runner.run(batches) for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
def test_a_runner_goes_on_in_a_forked_process_and_in_its_parent(planned, kind):
    plan, connector = planned(kind)
    runner = Runner(plan, Layout(("n",), (0,)), lookup_of(Source(plan, connector)))
    assert join(runner, 1, 2) == [(1, 1), (2, 4)]
    for _ in range(2):
        assert reply_of_child(lambda: join(runner, 2, 3) + join(runner, 3)) == "[(2, 4), (3, 9), (3, 9)]"
    assert join(runner, 1, 4) == [(1, 1), (4, 16)]
    runner.lookup.disconnect()


def test_a_task_in_a_forked_process_has_a_lookup_of_its_own(planned):
    plan, connector = planned("threads")

    def run():
        lookup = lookup_of_process(plan, lambda: connector)
        return lookup, join(Runner(plan, Layout(("n",), (0,)), lookup), 1)

    lookup, joined = run()
    assert joined == [(1, 1)]
    assert reply_of_child(lambda: (run()[0] is lookup, run()[1])) == "(False, [(1, 1)])"
    assert run()[0] is lookup
    runners._lookups.pop(plan.fingerprint).disconnect()
