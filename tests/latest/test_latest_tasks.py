"""The workers' part of a join with latest values, without Spark: packing, the state's operator, unpacking."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from latest_model import Model, Rate

from lookupcache import LookupTable
from lookupcache.errors import LookupRuntimeError
from lookupcache.latest.payload import read_payload
from lookupcache.latest.tasks import BUCKET, COUNTS, BucketJoin, LatestPlan, LeftPacker, RightPacker, Unpacker, rules_of
from lookupcache.latest.values import Layout, fold
from lookupcache.planner import LeftColumn, plan_join
from lookupcache.report import Channel

COLUMNS = pa.schema([("ccy", pa.string()), ("rate", pa.int64()), ("at", pa.int64())])


@dataclass
class Rows:
    """What `LookupTable.from_stream` needs of a DataFrame."""

    schema: pa.Schema


def latest_plan(
    *,
    key: Sequence[str] = ("ccy",),
    order_by: Sequence[str] = (),
    how: str = "left",
    on: str = "o.ccy = r.ccy",
    ttl: int | None = None,
    buckets: int = 4,
    columns: pa.Schema = COLUMNS,
) -> LatestPlan:
    """Return the workers' part of a join of orders, with an id and a currency, with rates."""
    table = LookupTable.from_stream("r", Rows(columns), key=key, order_by=order_by)
    left = [LeftColumn("id", "bigint"), LeftColumn("ccy", "string")]
    select = ["id"] if how in ("semi", "anti") else ["id", "r.rate"]
    plan = plan_join(left, table, on=on, how=how, select=select, analyst=None)  # type: ignore[arg-type]
    keys = {f"k{n}": COLUMNS.field(name).type for n, name in enumerate(key)} or {"k0": pa.int32()}
    orders = {f"o:{name}": COLUMNS.field(name).type for name in order_by}
    values = {f"v:{name}": COLUMNS.field(name).type for name in plan.columns}
    layout = Layout("r", keys, values, orders, tuple(key), ttl)
    inputs = {f"v:{name}": COLUMNS.field(name).type for name in columns.names}
    return LatestPlan(plan, layout, inputs, buckets, 1, rules_of(plan, key))


@dataclass
class State:
    """A bucket's state as Spark gives it: what is written counts once the micro-batch is committed."""

    get: tuple[bytes] | None
    changed: list[tuple[bytes] | None] = field(default_factory=list)

    @property
    def exists(self) -> bool:
        return self.get is not None

    def update(self, value: tuple[bytes]) -> None:
        self.changed.append(value)

    def remove(self) -> None:
        self.changed.append(None)


def stored_keys(state: tuple[bytes] | None) -> list[Any]:
    """Return the keys that a bucket's state has."""
    return [] if state is None else [*read_payload(state[0]).column("k0").to_pylist()]


@dataclass
class Query:
    """A streaming query over Arrow batches: micro-batches are run, and committed if they do not fail."""

    latest: LatestPlan
    states: dict[int, tuple[bytes] | None] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(7))
    counts: dict[str, Any] = field(default_factory=dict)

    def run(
        self,
        now: int,
        rates: Sequence[Sequence[Rate]] = (),
        orders: Sequence[tuple[int, str | None]] = (),
        *,
        commit: bool = True,
        deletes: bool = False,
    ) -> list[tuple[int, int | None, bool]]:
        """Run a micro-batch; ``rates`` are the rows of each partition of the stream. Return id, rate, found."""
        packed = [batch for number, rows in enumerate(rates) for batch in self._right(rows, number, deletes)]
        packed += LeftPacker(self.latest)([self._left(orders)]) if orders else []
        self.random.shuffle(packed)
        frame = pd.concat([pd.DataFrame(batch.to_pydict()) for batch in packed]) if packed else pd.DataFrame()
        results, written = [], {}
        for bucket, group in frame.groupby("bucket") if len(frame) else []:
            state = State(self.states.get(int(bucket)))
            frames = [part for _, part in group.assign(now=now).groupby(self._cut(group))]
            results += self._operate(int(bucket), frames, state)
            written |= {int(bucket): value for value in state.changed}
        if commit:
            self.states |= written
        return sorted(self._unpacked(results))

    def _operate(self, bucket: int, frames: list[pd.DataFrame], state: State) -> list[pd.DataFrame]:
        return list(BucketJoin(self.latest)((bucket,), iter(frames), state))

    def _cut(self, group: pd.DataFrame) -> list[int]:
        return [self.random.randrange(3) for _ in range(len(group))]

    def _bucket(self, key: object) -> int:
        return zlib.crc32(repr(key).encode()) % self.latest.buckets

    def _left(self, orders: Sequence[tuple[int, str | None]]) -> pa.RecordBatch:
        ids, ccys = zip(*orders, strict=True)
        keyed = bool(self.latest.layout.key_names)
        keys = pa.array(ccys, pa.string()) if keyed else pa.array([1] * len(ids), pa.int32())
        buckets = [self._bucket(ccy if keyed and ccy is not None else number) for number, ccy in orders]
        return pa.record_batch({"l0": pa.array(ids), "k0": keys, BUCKET: pa.array(buckets, pa.int32())})

    def _right(self, rows: Sequence[Rate], partition: int, deletes: bool) -> Iterable[pa.RecordBatch]:
        layout, keyed = self.latest.layout, bool(self.latest.layout.key_names)
        rows = [row for row in rows if not keyed or row[0] is not None]
        if not rows:
            return []
        columns = dict(zip(COLUMNS.names, zip(*rows, strict=True), strict=True))
        batch = {"k0": pa.array(columns["ccy"] if keyed else [1] * len(rows), next(iter(layout.keys.values())))}
        batch |= {name: pa.array(columns[name[2:]], type_) for name, type_ in self.latest.inputs.items()}
        batch |= {name: pa.array(columns[name[2:]], type_) for name, type_ in layout.orders.items()}
        batch["deleted"] = pa.array([deletes and rate is None for rate in columns["rate"]])
        batch["file"] = pa.array([partition] * len(rows), pa.int64())
        buckets = [self._bucket(ccy) if keyed else None for ccy in columns["ccy"]]
        batch[BUCKET] = pa.array(buckets, pa.int32())
        return RightPacker(self.latest)([pa.record_batch(batch)])

    def _unpacked(self, results: Sequence[pd.DataFrame]) -> list[tuple[int, int | None, bool]]:
        channel = Recorder()
        types = {"joined": pa.binary(), **dict.fromkeys(COUNTS, pa.int64())}
        batches = [pa.RecordBatch.from_pandas(one, pa.schema(list(types.items()))) for one in results]
        rows = []
        for batch in Unpacker(channel)(batches):
            columns = [column.to_pylist() for column in batch.columns]
            values = columns[1] if len(columns) == 4 else [None] * batch.num_rows
            rows += list(zip(columns[0], values, columns[-2], strict=True))
        self.counts = channel.counts
        return rows


class Recorder(Channel):
    """Keeps the counts of a task."""

    def reporting(self, batches: Any, counts: Any) -> Any:
        yield from batches
        self.counts = dict(counts)


def test_the_seed_s_table_from_t1_to_t5() -> None:
    query = Query(latest_plan(key=[], on="true"))
    assert query.run(1, rates=[[("EUR", 12, 1)]]) == []
    assert query.run(2, orders=[(10, None)]) == [(10, 12, True)]
    assert query.run(3, orders=[(11, None)]) == [(11, 12, True)]
    assert query.run(4, rates=[[("EUR", 13, 2)]]) == []
    assert query.run(5, orders=[(9, None)]) == [(9, 13, True)]


def test_the_operator_of_which_a_query_may_have_several_does_the_same() -> None:
    tws = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="Spark has it since 4.2")
    from lookupcache.latest.processor import BucketProcessor

    class Processed(Query):
        def _operate(self, bucket: int, frames: list[pd.DataFrame], state: State) -> list[pd.DataFrame]:
            return [tester.testInPandas(bucket, pd.concat(frames))]

    query = Processed(latest_plan(buckets=1, ttl=10))
    tester = tws.TwsTester(BucketProcessor(BucketJoin(query.latest)))
    assert query.run(1, [[("EUR", 5, 1)]], [(1, "EUR"), (2, "USD")]) == [(1, 5, True), (2, None, False)]
    assert query.run(2, [[("USD", 6, 2)]], [(3, "EUR"), (4, "USD")]) == [(3, 5, True), (4, 6, True)]
    assert query.run(11, orders=[(5, "EUR"), (6, "USD")]) == [(5, None, False), (6, 6, True)]
    assert query.run(12, orders=[(7, "USD")]) == [(7, None, False)]
    assert stored_keys(tester.peekValueState("table", 0)) == []


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("left", [(1, 5, True), (2, None, False), (3, None, False)]),
        ("inner", [(1, 5, True)]),
        ("semi", [(1, None, True)]),
        ("anti", [(2, None, False), (3, None, False)]),
    ],
)
def test_what_leaves_by_join_type(how: str, expected: list[Any]) -> None:
    query = Query(latest_plan(how=how))
    assert query.run(1, [[("EUR", 5, 1)]], [(1, "EUR"), (2, "USD"), (3, None)]) == expected
    assert [query.counts[name] for name in ("rows", "hits", "misses")] == [3, 1, 2]


def test_a_value_that_fails_a_condition_on_the_table_alone_replaces_the_one_before_and_matches_nothing() -> None:
    query = Query(latest_plan(on="o.ccy = r.ccy AND r.rate > 1"))
    assert query.run(1, [[("EUR", 5, 1)]], [(1, "EUR")]) == [(1, 5, True)]
    assert query.run(2, [[("EUR", 1, 2)]], [(2, "EUR")]) == [(2, None, False)]
    assert query.run(3, [[("EUR", None, 3)]], [(3, "EUR")]) == [(3, None, False)]


def test_a_null_value_is_a_value() -> None:
    assert Query(latest_plan()).run(1, [[("EUR", 5, 1), ("EUR", None, 2)]], [(1, "EUR")]) == [(1, None, True)]


def test_a_deleted_value_is_none_and_with_an_order_older_ones_do_not_come_back() -> None:
    plain, ordered = Query(latest_plan()), Query(latest_plan(order_by=["at"]))
    for query in (plain, ordered):
        query.run(1, [[("EUR", 5, 5)]])
        assert query.run(2, [[("EUR", None, 6)]], [(1, "EUR")], deletes=True) == [(1, None, False)]
    assert [keys for state in plain.states.values() if (keys := stored_keys(state))] == []
    assert plain.run(3, [[("EUR", 4, 4)]], [(2, "EUR")]) == [(2, 4, True)]
    assert ordered.run(3, [[("EUR", 4, 4)]], [(2, "EUR")]) == [(2, None, False)]


def test_values_expire_and_are_removed_when_their_bucket_is_touched() -> None:
    query = Query(latest_plan(ttl=10, buckets=1))
    query.run(100, [[("EUR", 5, 1), ("USD", 6, 1)]])
    assert query.run(109, orders=[(1, "EUR")]) == [(1, 5, True)]
    assert query.run(110, orders=[(2, "EUR")]) == [(2, None, False)]
    assert stored_keys(query.states[0]) == []


def test_two_values_from_different_parts_of_the_source_are_refused_without_an_order() -> None:
    rates: list[list[Rate]] = [[("EUR", 5, 1), ("USD", 1, 1)], [("EUR", 6, 1)]]
    with pytest.raises(LookupRuntimeError, match=r"Two values of ccy = 'EUR' reached table 'r'(.|\n)*order_by"):
        Query(latest_plan()).run(1, rates)
    assert Query(latest_plan(order_by=["at"])).run(1, rates, [(1, "EUR")]) == [(1, 6, True)]
    same: list[list[Rate]] = [[("EUR", 5, 1), ("EUR", 6, 1)], [("EUR", 6, 1)]]
    assert Query(latest_plan()).run(1, same, [(1, "EUR")]) == [(1, 6, True)]


def test_a_state_that_another_query_has_written_is_refused() -> None:
    query = Query(latest_plan(buckets=1))
    query.run(1, [[("EUR", 5, 1)]])
    with pytest.raises(LookupRuntimeError, match="conditions on its columns"):
        Query(latest_plan(buckets=1, on="o.ccy = r.ccy AND r.rate > 3"), query.states).run(2, orders=[(1, "EUR")])
    with pytest.raises(LookupRuntimeError, match="buckets"):
        Query(latest_plan(buckets=2), {0: query.states[0], 1: query.states[0]}).run(2, orders=[(1, "EUR")])
    with pytest.raises(LookupRuntimeError, match="column at"):
        Query(latest_plan(buckets=1, on="o.ccy = r.ccy AND r.at + o.id > 3"), query.states).run(2, orders=[(1, "EUR")])
    ordered = Query(latest_plan(buckets=1, order_by=["at"]), query.states)
    assert ordered.run(2, [[("EUR", 7, None)]], [(1, "EUR")]) == [(1, 7, True)]


# ── drawn arrivals ───────────────────────────────────────────────────────────────────────────────────────

CCY = st.sampled_from(["EUR", "USD", "é", "", None])
RATE = st.tuples(CCY, st.none() | st.integers(0, 3), st.none() | st.integers(0, 5))
PARTITIONS = st.lists(st.lists(RATE, max_size=4), max_size=2)
ORDERS = st.lists(CCY, max_size=4)
STEPS = st.lists(st.tuples(st.integers(1, 6), PARTITIONS, ORDERS, st.booleans()), max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(
    steps=STEPS,
    keyed=st.booleans(),
    ordered=st.booleans(),
    ttl=st.none() | st.just(4),
    deletes=st.booleans(),
    least=st.none() | st.just(1),
    seed=st.integers(0, 9),
)
def test_each_order_gets_what_the_model_says(
    steps: list[Any], keyed: bool, ordered: bool, ttl: int | None, deletes: bool, least: int | None, seed: int
) -> None:
    on = " AND ".join([*(["o.ccy = r.ccy"] if keyed else ["true"]), *([f"r.rate > {least}"] if least else [])])
    plan = latest_plan(key=["ccy"] if keyed else [], order_by=["at"] if ordered else [], on=on, ttl=ttl, buckets=3)
    query = Query(plan, random=random.Random(seed))
    model = Model(keyed, ordered, ttl, deletes, least)
    now, number = 0, 0
    for wait, partitions, ccys, fails in steps:
        now += wait
        orders = [(number := number + 1, ccy) for ccy in ccys]
        if not model.fold(now, partitions):
            with pytest.raises(LookupRuntimeError, match="Two values"):
                query.run(now, partitions, orders, deletes=deletes)
            return
        if fails:  # The process is killed before the commit; the same micro-batch runs again.
            query.run(now, partitions, orders, commit=False, deletes=deletes)
        expected = [(n, *model.rate_of(ccy)) for n, ccy in orders]
        assert query.run(now, partitions, orders, deletes=deletes) == sorted(expected)


@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        (pa.float64(), float("nan"), 1.0),
        (pa.string(), None, ""),
        (pa.list_(pa.float64()), [float("nan"), None], [1.0]),
        (pa.struct([("a", pa.int32())]), None, {"a": None}),
    ],
    ids=str,
)
def test_rows_of_several_partitions_are_no_conflict_where_they_are_equal(
    type_: pa.DataType, one: object, other: object
) -> None:
    layout = Layout("r", {"k0": pa.int64()}, {"v:x": type_}, {}, key_names=("k",))

    def folded(values: list[object], keys: list[int]) -> pa.Table:
        columns = {"k0": keys, "v:x": pa.array(values, type_), "alive": [True] * 4, "origin": [0, 0, 1, 1]}
        return fold(layout, layout.schema.empty_table(), pa.table({**columns, "position": [0, 1, 0, 1]}), 0)

    assert repr(folded([one, other, one, other], [1, 2, 1, 2])["v:x"].to_pylist()) == repr([one, other])
    with pytest.raises(LookupRuntimeError, match="of k = 2 reached"):
        folded([one, one, one, other], [1, 2, 1, 2])
