"""The workers' part of a join with latest values, without Spark: packing, the state's operator, unpacking."""

from __future__ import annotations

import io
import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from latest_model import LoadModel, Model, Rate

from lookupcache import LoadPhase, LookupTable
from lookupcache.errors import LookupRuntimeError, OptionError, SchemaError
from lookupcache.latest import payload
from lookupcache.latest.load import LoadRule
from lookupcache.latest.payload import PayloadBuffer, gather_tables, read_payload, to_payload
from lookupcache.latest.tasks import (
    BUCKET,
    COUNTS,
    BucketJoin,
    LatestPlan,
    LeftPacker,
    RightPacker,
    Unpacker,
    adapt_state,
    rules_of,
)
from lookupcache.latest.values import BucketLayout, fold
from lookupcache.planner import LeftColumn, plan_join
from lookupcache.report import Channel
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ

COLUMNS = pa.schema([("ccy", pa.string()), ("rate", pa.int64()), ("at", pa.int64())])


@dataclass
class Rows:
    """What `LookupTable.from_stream` needs of a DataFrame."""

    schema: pa.Schema


Order = tuple[Any, ...]
"""Id, currency, and when if left rows have an order."""


def latest_plan(
    *,
    key: Sequence[str] = ("ccy",),
    order_by: Sequence[str] = (),
    how: str = "left",
    on: str = "o.ccy = r.ccy",
    ttl: int | None = None,
    buckets: int = 4,
    at: pa.DataType | None = None,
    load: LoadRule | None = None,
    **more: Any,
) -> LatestPlan:
    """Return the workers' part of a join of orders, with an id and a currency, with rates."""
    columns = COLUMNS if at is None else COLUMNS.set(2, pa.field("at", at))
    table = LookupTable.from_stream("r", Rows(columns), key=key, order_by=order_by)
    left = [LeftColumn("id", "bigint"), LeftColumn("ccy", "string")]
    select = ["id"] if how in ("semi", "anti") else ["id", "r.rate"]
    plan = plan_join(left, table, on=on, how=how, select=select, analyst=None)  # type: ignore[arg-type]
    keys = {f"k{n}": COLUMNS.field(name).type for n, name in enumerate(key)} or {"k0": pa.int32()}
    orders = {f"o:{name}": columns.field(name).type for name in order_by}
    values = {f"v:{name}": columns.field(name).type for name in plan.columns}
    layout = BucketLayout("r", keys, values, orders, tuple(key), ttl)
    inputs = {f"v:{name}": columns.field(name).type for name in columns.names}
    return LatestPlan(plan, layout, inputs, buckets, 1, rules_of(plan), load, **more)


@dataclass
class State:
    """A bucket's state as Spark gives it: what is written counts once the micro-batch is committed."""

    get: tuple[bytes] | None
    rows: list[bytes] = field(default_factory=list)
    changed: list[tuple[bytes] | None] = field(default_factory=list)

    @property
    def exists(self) -> bool:
        return self.get is not None

    def update(self, value: tuple[bytes]) -> None:
        self.changed.append(value)

    def remove(self) -> None:
        self.changed.append(None)

    @property
    def waiting(self) -> State:
        return self

    def append(self, payloads: Iterable[bytes]) -> int:
        self.rows = [*self.rows, *payloads]
        return sum(read_payload(payload).num_rows for payload in self.rows)

    def payloads(self) -> Iterable[bytes]:
        return self.rows

    def clear(self) -> None:
        self.rows = []


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
    waiting: dict[int, list[bytes]] = field(default_factory=dict)
    ages: dict[int, float | None] = field(default_factory=dict)
    session_zone: str = "UTC"

    @property
    def joined_schema(self) -> pa.Schema:
        values = [(name, type_) for name, type_ in self.latest.layout.values.items()]
        return pa.schema([("l0", pa.int64()), *values, ("found", pa.bool_()), ("age", pa.float64())])

    def _typed(self, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
        """Return a column as Spark gives it: timestamps have the session's time zone."""
        is_moment = pa.types.is_timestamp(type_) and type_.tz is not None
        return pa.array(values, pa.timestamp("us", self.session_zone) if is_moment else type_)

    def _commit(self, bucket: int, state: State) -> None:
        self.waiting[bucket] = state.rows
        for value in state.changed:
            self.states[bucket] = value

    def run(
        self,
        now: int,
        rates: Sequence[Sequence[Rate]] = (),
        orders: Sequence[Order] = (),
        *,
        commit: bool = True,
        deletes: bool = False,
    ) -> list[tuple[int, int | None, bool]]:
        """Run a micro-batch; ``rates`` are the rows of each partition of the stream. Return id, rate, found."""
        packed = [batch for number, rows in enumerate(rates) for batch in self._right(rows, number, deletes)]
        packed += LeftPacker(self.latest)([self._left(orders)]) if orders else []
        self.random.shuffle(packed)
        frame = pd.concat([pd.DataFrame(batch.to_pydict()) for batch in packed]) if packed else pd.DataFrame()
        results, written = [], []
        for bucket, group in frame.groupby("bucket") if len(frame) else []:
            state = State(self.states.get(int(bucket)), self.waiting.get(int(bucket), []))
            frames = [part for _, part in group.assign(now=now).groupby(self._cut(group))]
            results += self._operate(int(bucket), frames, state)
            written.append((int(bucket), state))
        for bucket, state in written if commit else []:
            self._commit(bucket, state)
        return sorted(self._unpacked(results))

    def _operate(self, bucket: int, frames: list[pd.DataFrame], state: State) -> list[pd.DataFrame]:
        return list(BucketJoin(self.latest)((bucket,), iter(frames), state))

    def _cut(self, group: pd.DataFrame) -> list[int]:
        return [self.random.randrange(3) for _ in range(len(group))]

    def _bucket(self, key: object) -> int:
        return zlib.crc32(repr(key).encode()) % self.latest.buckets

    def _left(self, orders: Sequence[Order]) -> pa.RecordBatch:
        ids, ccys, *ats = zip(*orders, strict=True)
        keyed = bool(self.latest.layout.key_names)
        keys = pa.array(ccys, pa.string()) if keyed else pa.array([1] * len(ids), pa.int32())
        buckets = [self._bucket(ccy if keyed and ccy is not None else number) for number, ccy, *_ in orders]
        types = list(self.latest.layout.orders.values())
        own = {f"o{n}": self._typed(at, types[n]) for n, at in enumerate(ats)}
        return pa.record_batch({"l0": pa.array(ids), "k0": keys, **own, BUCKET: pa.array(buckets, pa.int32())})

    def _right(self, rows: Sequence[Rate], partition: int, deletes: bool) -> Iterable[pa.RecordBatch]:
        layout, keyed = self.latest.layout, bool(self.latest.layout.key_names)
        rows = [row for row in rows if not keyed or row[0] is not None or self.latest.load is not None]
        if not rows:
            return []
        columns = dict(zip(COLUMNS.names, zip(*rows, strict=True), strict=True))
        batch = {"k0": pa.array(columns["ccy"] if keyed else [1] * len(rows), next(iter(layout.keys.values())))}
        batch |= {name: self._typed(columns[name[2:]], type_) for name, type_ in self.latest.inputs.items()}
        batch |= {name: self._typed(columns[name[2:]], type_) for name, type_ in layout.orders.items()}
        batch["deleted"] = pa.array([deletes and rate is None for rate in columns["rate"]])
        batch["file"] = pa.array([partition] * len(rows), pa.int64())
        if "event" in self.latest.row_names:
            batch["event"] = pa.array(columns["at"], pa.int64())
        buckets = [self._bucket(ccy) if keyed else None for ccy in columns["ccy"]]
        batch[BUCKET] = pa.array(buckets, pa.int32())
        return RightPacker(self.latest)([pa.record_batch(batch)])

    def _unpacked(self, results: Sequence[pd.DataFrame]) -> list[tuple[int, int | None, bool]]:
        channel = Recorder()
        types = {"joined": pa.binary(), **dict.fromkeys(COUNTS, pa.int64())}
        batches = [pa.RecordBatch.from_pandas(one, pa.schema(list(types.items()))) for one in results]
        rows = []
        for batch in Unpacker(channel, self.joined_schema)(batches):
            columns = [column.to_pylist() for column in batch.columns]
            values = columns[1] if len(columns) == 4 else [None] * batch.num_rows
            rows += list(zip(columns[0], values, columns[-2], strict=True))
            self.ages |= dict(zip(columns[0], columns[-1], strict=True))
        self.counts = channel.counts
        return rows


class Recorder(Channel):
    """Keeps the counts of a task, which needs a batch with the columns of the join."""

    def reporting(self, batches: Any, counts: Any) -> Any:
        for batch in batches:
            yield batch
        assert batch.num_columns
        self.counts = dict(counts)


def test_the_seed_s_table_from_t1_to_t5() -> None:
    query = Query(latest_plan(key=[], on="true"))
    assert query.run(1, rates=[[("EUR", 12, 1)]]) == []
    assert query.run(2, orders=[(10, None)]) == [(10, 12, True)]
    assert query.run(3, orders=[(11, None)]) == [(11, 12, True)]
    assert query.run(4, rates=[[("EUR", 13, 2)]]) == []
    assert query.run(5, orders=[(9, None)]) == [(9, 13, True)]


def test_the_operator_for_several_states_gives_the_same_rows() -> None:
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
def test_each_join_type_emits_its_rows(how: str, expected: list[Any]) -> None:
    query = Query(latest_plan(how=how))
    assert query.run(1, [[("EUR", 5, 1)]], [(1, "EUR"), (2, "USD"), (3, None)]) == expected
    assert [query.counts[name] for name in ("rows", "hits", "misses")] == [3, 1, 2]


def test_a_value_that_fails_a_table_filter_replaces_the_last_one() -> None:
    """It matches no left row."""
    query = Query(latest_plan(on="o.ccy = r.ccy AND r.rate > 1"))
    assert query.run(1, [[("EUR", 5, 1)]], [(1, "EUR")]) == [(1, 5, True)]
    assert query.run(2, [[("EUR", 1, 2)]], [(2, "EUR")]) == [(2, None, False)]
    assert query.run(3, [[("EUR", None, 3)]], [(3, "EUR")]) == [(3, None, False)]


def test_columns_of_a_row_that_is_no_value_are_not_stored() -> None:
    query = Query(latest_plan(on="o.ccy = r.ccy AND r.rate > 1", buckets=1))
    query.run(1, [[("EUR", 1, 1), ("USD", 5, 1)]])
    assert query.states[0] is not None
    assert read_payload(query.states[0][0]).to_pylist() == [
        {"k0": "USD", "v:rate": 5, "alive": True, "arrived": 1},
    ], "without an order it need not be remembered at all"
    ordered = Query(latest_plan(on="o.ccy = r.ccy AND r.rate > 1", buckets=1, order_by=["at"]))
    ordered.run(1, [[("EUR", 1, 1)]])
    assert ordered.states[0] is not None
    [row] = read_payload(ordered.states[0][0]).to_pylist()
    assert row == {"k0": "EUR", "v:rate": None, "o:at": 1, "alive": False, "arrived": 1}


def test_the_age_of_a_value_is_the_time_between_micro_batches() -> None:
    query = Query(latest_plan())
    query.run(1_000_000, [[("EUR", 5, 1)]], [(1, "EUR"), (2, "USD")])
    query.run(3_500_000, orders=[(3, "EUR")])
    query.run(4_000_000, [[("EUR", 5, 1)]], [(4, "EUR")])
    assert query.ages == {1: 0.0, 2: None, 3: 2.5, 4: 0.0}


def test_a_null_value_is_a_value() -> None:
    assert Query(latest_plan()).run(1, [[("EUR", 5, 1), ("EUR", None, 2)]], [(1, "EUR")]) == [(1, None, True)]


def test_an_order_keeps_older_values_from_undoing_a_delete() -> None:
    plain, ordered = Query(latest_plan()), Query(latest_plan(order_by=["at"]))
    for query in (plain, ordered):
        query.run(1, [[("EUR", 5, 5)]])
        assert query.run(2, [[("EUR", None, 6)]], [(1, "EUR")], deletes=True) == [(1, None, False)]
    assert [keys for state in plain.states.values() if (keys := stored_keys(state))] == []
    assert plain.run(3, [[("EUR", 4, 4)]], [(2, "EUR")]) == [(2, 4, True)]
    assert ordered.run(3, [[("EUR", 4, 4)]], [(2, "EUR")]) == [(2, None, False)]
    limited = Query(latest_plan(order_by=["at"], ttl=10))
    limited.run(1, [[("EUR", None, 6)]], deletes=True)
    assert limited.run(10, [[("EUR", 4, 4)]], [(1, "EUR")]) == [(1, None, False)]
    assert limited.run(11, [[("EUR", 4, 4)]], [(2, "EUR")]) == [(2, 4, True)], "remembered until the age limit"


def test_expired_values_are_removed_when_their_bucket_is_touched() -> None:
    query = Query(latest_plan(ttl=10, buckets=1))
    query.run(100, [[("EUR", 5, 1), ("USD", 6, 1)]])
    assert query.run(109, orders=[(1, "EUR")]) == [(1, 5, True)]
    assert query.run(110, orders=[(2, "EUR")]) == [(2, None, False)]
    assert stored_keys(query.states[0]) == []


@pytest.mark.extended
def test_two_values_of_a_key_in_two_partitions_need_an_order() -> None:
    rates: list[list[Rate]] = [[("EUR", 5, 1), ("USD", 1, 1)], [("EUR", 6, 1)]]
    with pytest.raises(LookupRuntimeError, match=r"Two values of ccy = 'EUR' reached table 'r'(.|\n)*order_by"):
        Query(latest_plan()).run(1, rates)
    assert Query(latest_plan(order_by=["at"])).run(1, rates, [(1, "EUR")]) == [(1, 6, True)]
    same: list[list[Rate]] = [[("EUR", 5, 1), ("EUR", 6, 1)], [("EUR", 6, 1)]]
    assert Query(latest_plan()).run(1, same, [(1, "EUR")]) == [(1, 6, True)]


@pytest.mark.extended
def test_a_state_that_another_query_has_written_is_refused() -> None:
    query = Query(latest_plan(buckets=1))
    query.run(1, [[("EUR", 5, 1)]])
    with pytest.raises(LookupRuntimeError, match="conditions on its columns"):
        Query(latest_plan(buckets=1, on="o.ccy = r.ccy AND r.rate > 3"), query.states).run(2, orders=[(1, "EUR")])
    with pytest.raises(LookupRuntimeError, match="buckets"):
        Query(latest_plan(buckets=2), {0: query.states[0], 1: query.states[0]}).run(2, orders=[(1, "EUR")])
    with pytest.raises(LookupRuntimeError, match="in 'key'"):
        Query(latest_plan(buckets=1, key=[], on="true"), query.states).run(2, orders=[(1, "EUR")])
    with pytest.raises(LookupRuntimeError, match="in 'load'"):
        Query(latest_plan(buckets=1, load=LoadRule(0, False, None, True)), query.states).run(2, orders=[(1, "EUR")])
    with pytest.raises(LookupRuntimeError, match="column 'at'"):
        Query(latest_plan(buckets=1, on="o.ccy = r.ccy AND r.at + o.id > 3"), query.states).run(2, orders=[(1, "EUR")])
    keyed = latest_plan(buckets=1)
    keyed = replace(keyed, layout=replace(keyed.layout, keys={"k0": pa.binary()}))
    with pytest.raises(LookupRuntimeError, match="column 'ccy'"):
        adapt_state(keyed, read_payload((query.states[0] or (b"",))[0]))
    fewer = Query(latest_plan(buckets=1, how="semi", ttl=5), dict(query.states))
    assert fewer.run(2, orders=[(1, "EUR"), (2, "USD")]) == [(1, None, True)], "fewer columns, and an age limit"
    assert fewer.run(6, orders=[(3, "EUR")]) == []
    ordered = Query(latest_plan(buckets=1, order_by=["at"]), query.states)
    assert ordered.run(2, [[("EUR", 7, None)]], [(1, "EUR")]) == [(1, 7, True)]
    for order_by in ([], ["rate"], ["at", "rate"]):
        with pytest.raises(LookupRuntimeError, match="in 'order_by'"):
            Query(latest_plan(buckets=1, order_by=order_by), ordered.states).run(3, orders=[(1, "EUR")])


def test_many_left_rows_wait_in_a_file_that_is_removed() -> None:
    tables = [pa.table({"a": [number, None]}) for number in range(5)]
    with PayloadBuffer(in_memory=1_000) as buffer:
        for table in tables:
            buffer.append(to_payload(table))
        assert isinstance(buffer._file._file, io.BufferedRandom), "in a file"
        for _ in range(2):  # Read again, as often as wanted.
            assert pa.concat_tables(buffer.tables()).equals(pa.concat_tables(tables))
    assert buffer._file.closed


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=4)
@pytest.mark.parametrize("ccy", ["EUR", "USD", "GBP", None])
def test_a_changed_definition_is_detected_in_any_bucket(ccy: str | None) -> None:
    query = Query(latest_plan(buckets=3))
    query.run(1, [[("EUR", 5, 1)]])
    with pytest.raises(LookupRuntimeError, match="in 'buckets'"):
        Query(latest_plan(buckets=64), query.states).run(2, orders=[(1, ccy)])
    with pytest.raises(LookupRuntimeError, match="in 'buckets'"):
        Query(latest_plan(buckets=64), query.states).run(2, rates=[[(ccy or "x", 1, 1)]])


# ── drawn arrivals ───────────────────────────────────────────────────────────────────────────────────────

CCY = st.sampled_from(["EUR", "USD", "é", "", None])
RATE = st.tuples(CCY, st.none() | st.integers(0, 3), st.none() | st.integers(0, 5))
PARTITIONS = st.lists(st.lists(RATE, max_size=4), max_size=2)
ORDERS = st.lists(CCY, max_size=4)
STEPS = st.lists(st.tuples(st.integers(1, 6), PARTITIONS, ORDERS, st.booleans()), max_size=6)
AT_TYPES = [pa.int64(), TIMESTAMP, TIMESTAMP_NTZ]
ZONES = ["UTC", "Asia/Kathmandu", "America/St_Johns"]


@pytest.mark.extended
@settings(max_examples=examples(60), deadline=None)
@given(
    steps=STEPS,
    keyed=st.booleans(),
    ordered=st.booleans(),
    ttl=st.none() | st.just(4),
    deletes=st.booleans(),
    least=st.none() | st.just(1),
    left_order=st.booleans(),
    at=st.sampled_from(AT_TYPES),
    seed=st.integers(0, 9),
)
def test_each_order_gets_what_the_model_says(
    steps: list[Any],
    keyed: bool,
    ordered: bool,
    ttl: int | None,
    deletes: bool,
    least: int | None,
    left_order: bool,
    at: pa.DataType,
    seed: int,
) -> None:
    left_order = left_order and ordered
    on = " AND ".join([*(["((o.ccy = r.ccy))"] if keyed else ["true"]), *([f"((r.rate > {least}))"] if least else [])])
    key, order_by = ["ccy"] if keyed else [], ["at"] if ordered else []
    plan = latest_plan(key=key, order_by=order_by, on=on, ttl=ttl, buckets=3, has_left_order=left_order, at=at)
    query = Query(plan, random=random.Random(seed))
    model = Model(keyed, ordered, ttl, deletes, least)
    now, number = 0, 0
    for wait, partitions, ccys, fails in steps:
        now += wait
        query.session_zone = query.random.choice(ZONES)
        orders: list[Order] = [(number := number + 1, ccy) for ccy in ccys]
        if left_order:
            orders = [(*order, query.random.choice([None, *range(6)])) for order in orders]
        if not model.fold(now, partitions):
            with pytest.raises(LookupRuntimeError, match="Two values"):
                query.run(now, partitions, orders, deletes=deletes)
            return
        if fails:  # The process is killed before the commit; the same micro-batch runs again.
            query.run(now, partitions, orders, commit=False, deletes=deletes)
        expected = [(n, *(model.rate_at if when else model.rate_of)(ccy, *when)) for n, ccy, *when in orders]
        assert query.run(now, partitions, orders, deletes=deletes) == sorted(expected)


def test_an_ordered_left_row_finds_the_latest_value_not_after_it() -> None:
    query = Query(latest_plan(order_by=["at"], has_left_order=True))
    rates: list[list[Rate]] = [[("EUR", 2, 20), ("EUR", 1, 10), ("USD", 7, 30)]]
    orders: list[Order] = [
        (1, "EUR", 9),
        (2, "EUR", 10),
        (3, "EUR", 19),
        (4, "EUR", 21),
        (5, "EUR", None),
        (6, None, 9),
    ]
    found = [(1, None, False), (2, 1, True), (3, 1, True), (4, 2, True), (5, None, False), (6, None, False)]
    assert query.run(1, rates, orders) == found
    assert [query.counts[name] for name in ("rows", "hits", "misses", "cached_keys")] == [6, 3, 3, 2]
    before: list[Order] = [(7, "EUR", 1), (8, "USD", 1), (9, "EUR", 25)]
    assert query.run(2, [[("EUR", 3, 25)]], before) == [(7, 2, True), (8, 7, True), (9, 3, True)]


def test_all_values_are_counted_where_that_is_wanted() -> None:
    query = Query(latest_plan(buckets=5, counts_all=True))
    query.run(1, [[(f"{n}", n, 1) for n in range(40)]])
    assert query.counts["cached_keys"] == 40, "without left rows too"
    query.run(2, orders=[(1, "0")])
    assert (query.counts["cached_keys"], query.counts["rows"]) == (40, 1)


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
def test_equal_rows_of_several_partitions_are_no_conflict(type_: pa.DataType, one: object, other: object) -> None:
    layout = BucketLayout("r", {"k0": pa.int64()}, {"v:x": type_}, {}, key_names=("k",))

    def folded(values: list[object], keys: list[int]) -> pa.Table:
        columns = {"k0": keys, "v:x": pa.array(values, type_), "alive": [True] * 4, "origin": [0, 0, 1, 1]}
        return fold(layout, layout.schema.empty_table(), pa.table({**columns, "position": [0, 1, 0, 1]}), 0)

    assert repr(folded([one, other, one, other], [1, 2, 1, 2])["v:x"].to_pylist()) == repr([one, other])
    with pytest.raises(LookupRuntimeError, match="of k = 2 reached"):
        folded([one, one, one, other], [1, 2, 1, 2])


# ── the load phase ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@settings(max_examples=examples(40), deadline=None)
@given(
    steps=STEPS,
    keyed=st.booleans(),
    until=st.integers(1, 6),
    idle=st.none() | st.integers(2, 8),
    how=st.sampled_from(["left", "inner", "anti"]),
)
def test_each_order_that_waits_leaves_once_as_the_model_says(
    steps: list[Any], keyed: bool, until: int, idle: int | None, how: str
) -> None:
    rule = LoadRule(until, is_planned=False, idle=idle, has_event_time=True)
    key, on = (["ccy"], "o.ccy = r.ccy") if keyed else ([], "true")
    query = Query(latest_plan(key=key, order_by=["at"], on=on, how=how, buckets=3, load=rule))
    model, phase, waiting = Model(keyed, True, None, False, None), LoadModel(until, idle), []
    now, number = 0, 0
    for wait, partitions, ccys, fails in steps:
        now += wait
        orders = [(number := number + 1, ccy) for ccy in ccys]
        waiting += orders
        if orders or any(partitions):
            phase.advance(now, [row[2] for rows in partitions for row in rows if row[2] is not None])
        model.fold(now, partitions)
        if fails:
            query.run(now, partitions, orders, commit=False)
        found = query.run(now, partitions, orders)
        expected = [(n, *model.rate_of(ccy)) for n, ccy in waiting] if phase.loaded else []
        keeps = {"inner": [True], "anti": [False]}.get(how, [True, False])
        expected = [(n, None if how == "anti" else rate, one) for n, rate, one in expected if one in keeps]
        assert found == sorted(expected)
        waiting = [] if phase.loaded else waiting
        if orders or any(partitions):  # Without rows there is no micro-batch.
            assert query.counts["waiting_rows"] == len(waiting)


def test_rows_waiting_since_another_run_leave_together() -> None:
    """Of one run, Spark says that no id is null, another has order columns; and zones are those of their sessions."""

    @dataclass
    class Zoned(Query):
        zone: str = "UTC"

        def _left(self, orders: Sequence[Order]) -> pa.RecordBatch:
            rows = super()._left(orders)
            moment = pa.array([0] * len(orders), pa.timestamp("us", self.zone))
            columns = {
                "l0": rows["l0"],
                "l1": moment,
                **dict(zip(rows.schema.names[1:], rows.columns[1:], strict=True)),
            }
            nullable = self.zone != "UTC"
            return pa.record_batch(columns, pa.schema([pa.field(n, c.type, nullable) for n, c in columns.items()]))

        def _unpacked(self, results: Sequence[pd.DataFrame]) -> list[tuple[int, int | None, bool]]:
            rows = [read_payload(one).to_pylist() for frame in results for one in frame["joined"] if one is not None]
            return sorted((row["0"], row["2"], row["3"]) for part in rows for row in part)

    rule = LoadRule(5, is_planned=False, idle=None, has_event_time=True)
    plain = replace(latest_plan(order_by=["at"], buckets=1, load=rule), carried=2)
    first = Zoned(plain)
    assert first.run(1, [[("EUR", 1, 1)]], [(1, "EUR")]) == []
    second = Zoned(replace(plain, has_left_order=True), dict(first.states), waiting=dict(first.waiting), zone="+05:30")
    assert second.run(2, [[("EUR", 2, 4)]], [(2, "EUR", 9)]) == []
    assert second.run(3, [[("USD", 3, 5)]], [(3, "USD", 5)]) == [(1, 2, True), (2, 2, True), (3, 3, True)]


def test_many_small_payloads_are_read_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    class Batch:
        num_rows = 1

        @property
        def nbytes(self) -> int:
            sizes.append(1)
            return 8

    monkeypatch.setattr(payload, "pa", SimpleNamespace(Table=SimpleNamespace(from_batches=len)))
    assert list(gather_tables(Batch() for _ in range(300))) == [300]  # type: ignore[misc]
    assert len(sizes) == 300, "the size of each was asked for once"


def test_values_age_only_after_the_load_phase() -> None:
    query = Query(latest_plan(ttl=10, load=LoadRule(5, is_planned=False, idle=None, has_event_time=True)))
    assert query.run(1, [[("EUR", 1, 1)]], [(1, "EUR")]) == []
    assert query.run(100, [[("USD", 2, 5)]], [(2, "USD")]) == [(1, 1, True), (2, 2, True)]
    assert query.run(109, orders=[(3, "EUR")]) == [(3, 1, True)]
    assert query.run(110, orders=[(4, "EUR"), (5, "USD")]) == [(4, None, False), (5, None, False)]


def test_the_time_of_planning_is_kept_from_the_first_run() -> None:
    """A time that the user gives may change."""
    first = Query(latest_plan(load=LoadRule(5, is_planned=True, idle=None, has_event_time=True)))
    assert first.run(1, [[("EUR", 1, 4)]], [(1, "EUR")]) == []
    again = latest_plan(load=LoadRule(9, is_planned=True, idle=None, has_event_time=True))
    assert Query(again, dict(first.states), waiting=dict(first.waiting)).run(2, [[("EUR", 2, 5)]]) == [(1, 2, True)]
    said = latest_plan(load=LoadRule(4, is_planned=False, idle=None, has_event_time=True))
    assert Query(said, dict(first.states), waiting=dict(first.waiting)).run(2, orders=[(2, "x")]) == [
        (1, 1, True),
        (2, None, False),
    ]
    other = latest_plan(load=LoadRule(5, is_planned=True, idle=None, has_event_time=True, left="other"))
    with pytest.raises(LookupRuntimeError, match="left side's columns, while rows of it wait"):
        Query(other, dict(first.states)).run(2, orders=[(2, "x")])


def test_a_stream_without_event_time_is_loaded_once_it_is_idle() -> None:
    query = Query(latest_plan(load=LoadRule(99, is_planned=True, idle=10, has_event_time=False)))
    assert query.run(1, [[("EUR", 1, None)]], [(1, "EUR")]) == []
    assert query.run(9, [[("EUR", 2, None)]]) == []
    assert query.run(18, orders=[(2, "EUR")]) == []
    assert query.run(19, orders=[(3, "x")]) == [(1, 2, True), (2, 2, True), (3, None, False)]
    assert query.run(40, [[("USD", 2, None)]]) == []


def test_no_order_and_no_key_may_be_said() -> None:
    stream = LookupTable.from_stream("r", Rows(COLUMNS), key=None, order_by=None, ttl=None, left_order_by=None).stream
    assert stream is not None
    assert (stream.key, stream.order_by, stream.left_order_by, stream.ttl) == ((), (), (), None)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LoadPhase("soon"), "'completed_time' is 'soon'"),
        (lambda: LoadPhase(7), "'completed_time' is 7"),
        (lambda: LoadPhase(idle_timeout="0 s"), "'idle_timeout' is '0 s'"),
        (lambda: LookupTable.from_stream("r", Rows(COLUMNS), load="10 s"), "LoadPhase"),
        (lambda: LookupTable.from_stream("r", Rows(COLUMNS), load=LoadPhase(event_time="nope")), "'nope'"),
        (lambda: LookupTable.from_stream("r", Rows(COLUMNS), load=LoadPhase(event_time="rate")), "is no time"),
    ],
)
def test_a_wrong_load_phase_is_refused(make: Any, text: str) -> None:
    with pytest.raises((OptionError, SchemaError), match=text):
        make()
