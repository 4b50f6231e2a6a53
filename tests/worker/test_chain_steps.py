"""What the worker does between two joins of a chain, without Spark."""

from __future__ import annotations

import asyncio

import cloudpickle
import pyarrow as pa
import pytest

from lookupcache import LookupTable
from lookupcache.expr import Call, Column, Literal
from lookupcache.planner import LeftColumn, plan_join
from lookupcache.report import Channel, ChannelChain
from lookupcache.worker import chain, runner
from lookupcache.worker.chain import Between, ChainTask, collect_rows
from lookupcache.worker.runner import Layout
from lookupcache.worker.task import Task

NUMBER, TEXT = Column("left", "0", pa.int64()), Column("left", "1", pa.string())
BATCH = pa.RecordBatch.from_pydict({"a": [1, 2, None, 4], "b": ["x", None, "y", "z"]})


def run(between: Between, *batches: pa.RecordBatch) -> list[list[list]]:
    return [[column.to_pylist() for column in batch.columns] for batch in between(batches)]


def test_small_batches_are_collected_up_to_a_limit(monkeypatch):
    batches = [BATCH.slice(n, 1) for n in range(4)]
    assert [batch.num_rows for batch in collect_rows(batches)] == [4]
    monkeypatch.setattr(chain, "_FULL_BYTES", batches[0].nbytes + 1)
    assert [batch.num_rows for batch in collect_rows(batches)] == [2, 2]


def test_rows_are_filtered_before_columns_are_computed():
    largest = pa.RecordBatch.from_pydict({"a": [2**63 - 1, 1], "b": ["no", "yes"]})
    one_more = Call("+", (NUMBER, Literal(1, pa.int64())), pa.int64())
    between = Between((Call("=", (TEXT, Literal("yes", pa.string()))),), (one_more, 1))
    assert run(between, largest) == [[[2], ["yes"]]]


def test_a_row_stays_for_which_all_filters_are_true():
    filters = (Call(">", (NUMBER, Literal(0, pa.int64()))), Call("not", (Call("is null", (TEXT,)),)))
    assert run(Between(filters, (1, 0)), BATCH) == [[["x", "z"], [1, 4]]]
    assert run(Between((Literal(None, pa.bool_()),), (0,)), BATCH) == []
    assert run(Between((Literal(True, pa.bool_()),), (Literal("c", pa.string()),)), BATCH) == [[["c"] * 4]]


class Kept(Channel):
    """Keeps the counts of the last run."""

    def counting(self, batches, counts):
        yield from batches
        self.counts = counts


def of_number(key):
    return [(key, key * 10)] if key < 5 else []


async def of_number_later(key):
    await asyncio.sleep(0)
    return of_number(key)


async def in_disorder(key):
    """Return two rows for small keys, later for even ones; one row for the others."""
    await asyncio.sleep(0.03 * (key % 2 == 0))
    return [(key, key), (key, key + 1)] if key < 20 else [(key, -key)]


@pytest.mark.parametrize("function", [of_number, of_number_later])
@pytest.mark.parametrize("ahead", [(), ((1, (1,)),)], ids=["in turn", "prefetched"])
def test_joins_of_the_same_lookup_share_its_cache_but_no_counts(function, ahead):
    options = {"lookup.cache": "LRU", "lookup.max-retries": "0"}
    table = LookupTable.from_function("t", "k BIGINT, v BIGINT", key=["k"], function=function, options=options)
    left = [LeftColumn(name, "bigint") for name in "ab"]
    plan = plan_join(left, table, on="a = t.k", how="left", select=["a", "b", "t.v"], analyst=None)
    channels, connector = [Kept(), Kept()], cloudpickle.dumps(table.connector)
    tasks = [
        Task(plan, connector, Layout(("a", "b"), (0,), (1, 2)), channels[0]),
        Task(plan, connector, Layout(("b", "v"), (0,), (1, 2)), channels[1]),
    ]
    # A name of its own, so that no other case has filled the cache.
    plan.__dict__["fingerprint"] = f"{function.__name__} {ahead}"
    task = ChainTask(tuple(tasks), ChannelChain(channels), ahead, (None,))
    batch = pa.RecordBatch.from_pydict({"a": [0, 1, 2, 3] * 2, "b": [2, 3, 4, 5] * 2})
    found = [tuple(row.values()) for joined in task([batch]) for row in joined.to_pylist()]
    assert found == [(0, 20), (10, 30), (20, 40), (30, None)] * 2
    names = ("rows", "misses", "requested_keys", "calls", "fetched_rows", "cached_keys")
    counts = [tuple(channel.counts[name] for name in names) for channel in channels]
    first, second = (8, 2, 2, 2, 2, 6), (8, 4, 4, 4, 3, 6)
    assert counts == ([(8, 4, 4, 4, 4, 6), (8, 2, 2, 2, 1, 6)] if not ahead else [first, second]), counts
    assert all(channel.counts["hits"] + channel.counts["misses"] == 8 for channel in channels)


@pytest.mark.parametrize("mode", ["ordered", "allow-unordered"])
@pytest.mark.parametrize("most_rows_out", [1, 65_536])
def test_a_cache_of_one_row_keeps_rows_prefetched_by_read_ahead(mode, most_rows_out, monkeypatch):
    """Whatever order the batches of the first join are in, and in however many parts each of them is."""
    monkeypatch.setattr(runner, "_MOST_ROWS_OUT", most_rows_out)
    options = {
        "lookup.async.output-mode": mode,
        "lookup.cache": "LRU",
        "lookup.max-retries": "0",
        "lookup.cache.scope": "worker",
    }
    left, between = [LeftColumn(name, "bigint") for name in "ab"], [LeftColumn(name, "bigint") for name in "bw"]
    plans, channels = [], [Kept(), Kept()]
    for columns, key, rows in ((left, "a", 1_000), (between, "b", 1)):
        more = {"lookup.cache.max-rows": str(rows)}
        table = LookupTable.from_function(
            "t", "k BIGINT, v BIGINT", key=["k"], function=in_disorder, options=options | more
        )
        names = [column.name for column in columns]
        plan = plan_join(columns, table, on=f"{key} = t.k", how="left", select=[*names, "t.v"], analyst=None)
        plan.__dict__["fingerprint"] = f"read ahead {mode} {most_rows_out} {rows}"
        plans.append((plan, cloudpickle.dumps(table.connector)))
    tasks = (
        Task(*plans[0], Layout(("a", "b"), (0,), (1, 2)), channels[0]),
        Task(*plans[1], Layout(("b", "w"), (0,), (0, 1, 2)), channels[1]),
    )
    task = ChainTask(tasks, ChannelChain(channels), ((1, (1,)),), (None,))
    batches = [
        pa.RecordBatch.from_pydict({"a": [n] * (n + 1), "b": range(100 + 100 * n, 101 + 101 * n)}) for n in range(20)
    ]
    found = sorted(row for joined in task(batches) for row in zip(*joined.to_pydict().values(), strict=True))
    assert found == [(b, w, -b) for n in range(20) for b in range(100 + 100 * n, 101 + 101 * n) for w in (n, n + 1)]
    counts = channels[1].counts
    assert [counts[name] for name in ("rows", "hits", "misses", "requested_keys")] == [420, 210, 210, 210]
