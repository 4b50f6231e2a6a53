"""The runner on Arrow batches, without a JVM, against a join written as two nested loops."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import math
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scale import scale_up

from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.errors import LookupFailedError, LookupTimeoutError, SourceError
from lookupcache.expr import Call, Column, Literal
from lookupcache.plan import ConstantKey, FieldKey, LookupPlan
from lookupcache.schema import TIMESTAMP, TIMESTAMP_NTZ
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

NAN = float("nan")
ZONE = dt.UTC


class Memory(Connector):
    """A source in memory that knows nothing of keys: it returns its whole table for every call."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table.schema, {})
        self.table = table
        self.requested = Counter()

    def lookup(self, request, keys):
        self.requested.update(map(repr, keys.to_pylist()))
        return self.table.select(list(request.fields))

    def scan(self, request):
        yield from self.table.select(list(request.fields)).to_batches()


# For each key type: values of which some are equal under Spark, and some only nearly.
KEYS: dict[str, tuple[pa.DataType, list]] = {
    "bigint": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63)]),
    "tinyint": (pa.int8(), [0, 1, -128]),
    "boolean": (pa.bool_(), [True, False]),
    "float": (pa.float32(), [0.0, -0.0, 1.5, NAN, math.inf]),
    "double": (pa.float64(), [0.0, -0.0, 0.1, NAN, -math.inf]),
    "decimal": (pa.decimal128(20, 2), [Decimal("1.50"), Decimal("-1.50"), Decimal("123456789012345678.90")]),
    "string": (pa.string(), ["", "a", "a ", "A", "é", "e\u0301", "a\0b", "x" * 9, "x" * 300, "x" * 300 + "y"]),
    "binary": (pa.binary(), [b"", b"a", b"a\0", b"\xff" * 8]),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": (TIMESTAMP, [dt.datetime(1970, 1, 1, tzinfo=ZONE), dt.datetime(2013, 3, 31, 2, 30, tzinfo=ZONE)]),
    "timestamp_ntz": (TIMESTAMP_NTZ, [dt.datetime(1970, 1, 1), dt.datetime(2013, 3, 31, 2, 30)]),
}
CACHES = [
    LookupConfig(),
    LookupConfig(cache="LRU", max_rows=1),
    LookupConfig(cache="LRU", max_rows=4),
    LookupConfig(cache="LRU", max_rows=1_000, missing_key=False),
    LookupConfig(cache="LRU", max_bytes=20_000),
    LookupConfig(cache="TTL", expire_after_write=2, missing_key_expire_after_write=1),
    LookupConfig(cache="TTL", expire_after_access=2),
    LookupConfig(cache="ALL"),
    LookupConfig(cache="ALL", reload_interval=2),
]


SIDES = ["lr", "lr", "lr", "l", "r", ""]
"""The sides whose columns the result has."""


def same(a, b) -> bool:
    """Equality as Spark's ``=`` has it between non-null values."""
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def shown(rows) -> list[str]:
    return [repr(tuple(row)) for row in rows]


def expected(left, right, how: str, keys: int, calc, residual) -> list[tuple]:
    joined = []
    for row in left:
        matches = [
            other
            for other in right
            if calc(other)
            and all(
                a is not None and b is not None and same(a, b) for a, b in zip(row[:keys], other[:keys], strict=True)
            )
            and residual(row, other)
        ]
        if how in ("semi", "anti"):
            joined += [row] if bool(matches) == (how == "semi") else []
        elif matches:
            joined += [(*row, *match) for match in matches]
        elif how == "left":
            joined.append((*row, *(None for _ in right_names(keys))))
    return joined


def right_names(keys: int) -> list[str]:
    return [*(f"k{number}" for number in range(keys)), "v"]


@st.composite
def cases(draw):
    kinds = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3))
    keys = st.tuples(*(st.none() | st.sampled_from(KEYS[kind][1]) for kind in kinds))
    key = st.sampled_from(draw(st.lists(keys, min_size=1, max_size=6)))
    row = st.builds(lambda key, number: (*key, number), key, st.none() | st.integers(0, 3))
    left = draw(st.lists(row, min_size=draw(st.integers(0, 8)), max_size=25))
    right = draw(st.lists(row, min_size=draw(st.integers(0, 6)), max_size=12))
    config = draw(st.sampled_from(CACHES))
    if draw(st.booleans()):
        config = dataclasses.replace(config, batch_max_size=draw(st.integers(1, 3)))
    return {
        "types": [KEYS[kind][0] for kind in kinds],
        "left": left,
        "right": right,
        "how": draw(st.sampled_from(["inner", "left", "semi", "anti"])),
        "config": config,
        "batch": draw(st.integers(1, 30)),
        "calc": draw(st.booleans()),
        "residual": draw(st.booleans()),
        "constant": draw(st.none() | st.integers(0, 3)),
        "sides": draw(st.sampled_from(SIDES)),
    }


def plan_of(case, key_count: int) -> LookupPlan:
    schema = pa.schema([*(pa.field(f"k{n}", t) for n, t in enumerate(case["types"])), pa.field("v", pa.int64())])
    v = Column("right", "v", pa.int64())
    constant = case["constant"]
    return LookupPlan(
        table="t",
        connector="memory",
        source="-",
        schema=schema,
        how=case["how"],
        keys=tuple(FieldKey(column=f"k{n}", sql="") for n in range(key_count)),
        constants=() if constant is None else (ConstantKey(column="v", value=Literal(constant, pa.int64())),),
        calc=(Call(">", (v, Literal(0, pa.int64()))),) if case["calc"] else (),
        residual=(Call("<=", (Column("left", "w", pa.int64()), v)),) if case["residual"] else (),
        columns=tuple(right_names(key_count)) if "r" in case["sides"] or case["residual"] else (),
        left_columns=(*(f"l{n}" for n in range(key_count)), "w") if "l" in case["sides"] or case["residual"] else (),
        config=case["config"],
    )


def run(case) -> tuple[list[tuple], Runner]:
    keys = len(case["types"])
    types = [*case["types"], pa.int64()]
    plan = plan_of(case, keys)
    source = Memory(pa.Table.from_arrays(columns_of(case["right"], types), names=right_names(keys)))
    ticks = iter(range(10_000))
    lookup = lookup_of(Source(plan, source), clock=lambda: next(ticks) / 4)
    runner = Runner(plan, Layout(plan.left_columns, tuple(range(keys)), output_of(case, plan)), lookup)
    left = pa.RecordBatch.from_arrays(columns_of(case["left"], types), names=[str(n) for n in range(len(types))])
    batches = [left.slice(start, case["batch"]) for start in range(0, len(case["left"]), case["batch"])]
    return [row for batch in runner.run(batches) for row in rows_of(batch)], runner


def output_of(case, plan: LookupPlan) -> tuple[int, ...]:
    """Return the places of the columns that the result has, among those that the worker has."""
    left = len(plan.left_columns)
    right = 0 if case["how"] in ("semi", "anti") else len(plan.columns)
    sides = {"l": range(left), "r": range(left, left + right)}
    return tuple(place for side in case["sides"] for place in sides[side])


def rows_of(batch: pa.RecordBatch) -> list[tuple]:
    return [tuple(row.values()) for row in batch.to_pylist()] if batch.num_columns else [()] * batch.num_rows


def of_sides(case, rows, keys: int) -> list[tuple]:
    """Return the part of joined rows that the result has."""
    return [("l" in case["sides"]) * row[: keys + 1] + ("r" in case["sides"]) * row[keys + 1 :] for row in rows]


def columns_of(rows, types) -> list[pa.Array]:
    return [pa.array([row[n] for row in rows], type_) for n, type_ in enumerate(types)]


def python_rows(rows, types) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in columns_of(rows, types)), strict=True)) if rows else []


@settings(max_examples=examples(scale_up(500)), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_joins_as_nested_loops_do(case):
    types = [*case["types"], pa.int64()]
    keys = len(case["types"])

    def calc(other):
        v = other[-1]
        return (not case["calc"] or (v is not None and v > 0)) and case["constant"] in (None, v)

    def residual(row, other):
        return not case["residual"] or (row[-1] is not None and other[-1] is not None and row[-1] <= other[-1])

    rows, runner = run(case)
    wanted = expected(
        python_rows(case["left"], types), python_rows(case["right"], types), case["how"], keys, calc, residual
    )
    assert Counter(shown(rows)) == Counter(shown(of_sides(case, wanted, keys)))
    counters = runner.lookup.counters
    keyed = sum(all(value is not None for value in row[:keys]) for row in case["left"])
    assert counters["rows"] == len(case["left"])
    assert counters["hits"] + counters["misses"] == keyed


def simple(how="left", right=((1, 10), (2, 20)), config=None, **changes):
    case = {"types": [pa.int64()], "how": how, "config": config or LookupConfig(cache="LRU"), "left": [], "batch": 10}
    case |= {"right": list(right), "calc": False, "residual": False, "constant": None, "sides": "lr"}
    return case | changes


def test_left_rows_keep_their_order():
    rows, _ = run(simple(left=[(2, 0), (9, 1), (1, 2), (2, 3)]))
    assert [row[1] for row in rows] == [0, 1, 2, 3]


def test_a_key_is_requested_once_for_many_rows():
    _, runner = run(simple(left=[(1, 0)] * 40 + [(9, 0)] * 40, batch=10))
    assert runner.lookup.source.connector.requested == {"{'k0': 1}": 1, "{'k0': 9}": 1}
    assert (runner.lookup.counters["hits"], runner.lookup.counters["misses"]) == (78, 2)


def test_without_a_cache_each_batch_asks_again():
    _, runner = run(simple(left=[(1, 0)] * 40, batch=10, config=LookupConfig()))
    assert runner.lookup.source.connector.requested == {"{'k0': 1}": 4}


def test_a_null_key_is_not_looked_up():
    rows, runner = run(simple(left=[(None, 0)]))
    assert (rows, runner.lookup.counters["calls"]) == ([(None, 0, None, None)], 0)


def test_many_matches_are_emitted_in_several_batches():
    right = [(1, n) for n in range(1_000)]
    case = simple(left=[(1, n) for n in range(100)], right=right, how="inner", batch=100)
    rows, _ = run(case)
    assert len(rows) == 100_000


def test_the_worker_path_leaves_left_columns_untouched():
    plan = plan_of(simple(), 1)
    nested = pa.array([[{"a": 1}], None], pa.list_(pa.struct([("a", pa.int64())])))
    source = Source(plan, Memory(pa.table({"k0": [1], "v": [10]})))
    runner = Runner(plan, Layout(("id", "nested"), (0,)), lookup_of(source))
    batch = pa.record_batch({"id": pa.array([1, 2]), "nested": nested})
    joined = next(iter(runner.run([batch])))
    assert joined.column(1).equals(nested)


class Broken(Memory):
    fails = 1

    def lookup(self, request, keys):
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no route to db, password=hunter2")
        return super().lookup(request, keys)

    def secret_values(self):
        return ["hunter2"]


def broken_runner(fails: int, retries: int) -> Runner:
    plan = plan_of(simple(config=LookupConfig(cache="LRU", max_retries=retries, retry_delay=0.0001)), 1)
    connector = Broken(pa.table({"k0": [1], "v": [10]}))
    connector.fails = fails
    return Runner(plan, Layout(("l0", "w"), (0,)), lookup_of(Source(plan, connector)))


BATCH = pa.record_batch({"l0": pa.array([1, 2]), "w": pa.array([0, 0])})


def test_an_error_is_never_a_miss_and_never_cached():
    runner = broken_runner(fails=1, retries=0)
    with pytest.raises(LookupFailedError, match="lookup of 2 keys failed after 1 attempt: ConnectionError"):
        list(runner.run([BATCH]))
    assert len(runner.lookup.cache) == 0
    assert next(iter(runner.run([BATCH]))).column(3).to_pylist() == [10, None]


def test_retries_then_succeeds_and_counts():
    runner = broken_runner(fails=2, retries=3)
    assert next(iter(runner.run([BATCH]))).column(3).to_pylist() == [10, None]
    counters = runner.lookup.counters
    assert (counters["calls"], counters["errors"], counters["retries"]) == (3, 2, 2)


def test_an_error_shows_no_secret_and_chains_none():
    with pytest.raises(LookupFailedError) as caught:
        list(broken_runner(fails=9, retries=1).run([BATCH]))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


class Answers(Memory):
    def lookup(self, request, keys):
        return self.answer


ANSWERS = {
    "not a table": ([1, 2], "returned list, not a pyarrow.Table"),
    "a column short": (pa.table({"k0": [1]}), "returned no column 'v'"),
    "a column twice": (
        pa.Table.from_arrays([pa.array([1])] * 3, names=["k0", "v", "v"]),
        "returned more than one column 'v'",
    ),
    "a type that does not fit": (pa.table({"k0": [1], "v": ["x"]}), "column 'v': the connector returned string"),
    "a number too large": (
        pa.table({"k0": [1], "v": pa.array([2**63], pa.uint64())}),
        "column 'v': the connector returned uint64",
    ),
}


@pytest.mark.parametrize(("answer", "message"), ANSWERS.values(), ids=ANSWERS)
def test_a_wrong_answer_has_its_error(answer, message):
    plan = plan_of(simple(), 1)
    connector = Answers(pa.table({"k0": [1], "v": [10]}))
    connector.answer = answer
    with pytest.raises(SourceError, match=message):
        list(Runner(plan, Layout(("l0", "w"), (0,)), lookup_of(Source(plan, connector))).run([BATCH]))


def test_an_answer_in_a_narrower_type_is_widened():
    plan = plan_of(simple(), 1)
    connector = Answers(pa.table({"k0": [1], "v": [10]}))
    connector.answer = pa.table({"v": pa.array([10], pa.int8()), "k0": pa.array([1], pa.int32())})
    runner = Runner(plan, Layout(("l0", "w"), (0,)), lookup_of(Source(plan, connector)))
    assert next(iter(runner.run([BATCH]))).column(3).to_pylist() == [10, None]


def test_a_failed_reload_serves_the_old_rows_and_is_counted():
    config = LookupConfig(cache="ALL", reload_interval=1, max_retries=0)
    plan = plan_of(simple(config=config), 1)
    connector = Memory(pa.table({"k0": [1], "v": [10]}))
    now = [0.0]
    lookup = lookup_of(Source(plan, connector), clock=lambda: now[0])
    runner = Runner(plan, Layout(("l0", "w"), (0,)), lookup)
    list(runner.run([BATCH]))
    connector.table, now[0] = pa.table({"k0": [1]}), 2.0
    assert next(iter(runner.run([BATCH]))).column(3).to_pylist() == [10, None]
    assert (lookup.counters["reloads"], lookup.counters["reload_failures"]) == (1, 1)
    connector.table, now[0] = pa.table({"k0": [2], "v": [20]}), 4.0
    assert next(iter(runner.run([BATCH]))).column(3).to_pylist() == [None, 20]


def test_rows_count_only_for_the_keys_of_their_call():
    config = LookupConfig(cache="LRU", batch_max_size=1)
    rows, runner = run(simple(left=[(1, 0), (2, 1)], config=config))
    assert (rows, runner.lookup.counters["calls"]) == ([(1, 0, 1, 10), (2, 1, 2, 20)], 2)


def test_distinct_keys_are_counted_batch_by_batch():
    _, runner = run(simple(left=[(1, 0), (1, 0), (None, 0), (9, 0), (9, 0), (2, 0), (1, 0)], batch=5))
    assert runner.lookup.counters["keys"] == 2 + 2


class Async(Memory):
    """Answers once as many calls are in flight as it waits for; counts those in flight."""

    all_or_nothing = 1

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table)
        self.in_flight = self.most = 0

    async def lookup_async(self, request, keys):
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            while self.most < self.all_or_nothing:
                await asyncio.sleep(0)
            return super().lookup(request, keys)
        finally:
            self.in_flight -= 1


def async_runner(connector, **options) -> Runner:
    plan = plan_of(simple(config=LookupConfig(cache="LRU", async_=True, batch_max_size=1, **options)), 1)
    return Runner(plan, Layout(("l0", "w"), (0,)), lookup_of(Source(plan, connector)))


def left_batch(keys) -> pa.RecordBatch:
    return pa.record_batch({"l0": pa.array(keys), "w": pa.array([0] * len(keys))})


def test_async_calls_fly_together_as_far_as_capacity_lets_them():
    connector = Async(pa.table({"k0": range(20), "v": range(20)}))
    connector.all_or_nothing = 4
    runner = async_runner(connector, async_capacity=4)
    assert next(iter(runner.run([left_batch(range(20))]))).column(3).to_pylist() == list(range(20))
    assert (connector.most, runner.lookup.counters["calls"]) == (4, 20)


class Hangs(Async):
    """Fails for key 0, and never answers for any other."""

    async def lookup_async(self, request, keys):
        if keys.column(0)[0].as_py() == 0:
            raise ValueError("no such key")
        self.in_flight += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.in_flight -= 1


def test_an_async_lookup_that_hangs_names_its_table():
    connector = Hangs(pa.table({"k0": [1], "v": [1]}))
    with pytest.raises(LookupTimeoutError, match=r"Table 't': The source did not answer within 0\.02 s"):
        list(async_runner(connector, timeout=0.02).run([left_batch([1, 2])]))
    assert connector.in_flight == 0


def test_an_async_call_that_fails_cancels_the_others():
    connector = Hangs(pa.table({"k0": [1], "v": [1]}))
    with pytest.raises(LookupFailedError, match="ValueError: no such key"):
        list(async_runner(connector).run([left_batch([1, 2, 0])]))
    assert connector.in_flight == 0


# ── keys in place of rows ────────────────────────────────────────────────────────────────────────────────


def of_keys(how: str, **options) -> Runner:
    """Return a runner that is given keys, each with how many left rows it stands for and how many of them have it."""
    table = pa.table({"id": pa.array([1, 1, 2], pa.int64()), "name": ["a", "b", "c"]})
    plan = LookupPlan(
        table="t", connector="memory", source="", schema=table.schema, how=how, left_columns=("id", "n", "m"),
        keys=(FieldKey(column="id", sql="id"),), columns=("name",), config=LookupConfig(**options),
    )  # fmt: skip
    output = (0, 3) if how in ("semi", "anti") else (0, 3, 4)
    layout = Layout(plan.left_columns, (0,), output, weights=(1, 2), found=True)
    return Runner(plan, layout, lookup_of(Source(plan, Memory(table))))


KEYS_IN = {"id": [1, 2, 9, None], "n": [5, 1, 2, 3], "m": [5, 1, 2, 0]}
FOUND = {
    "left": [(1, "a", True), (1, "b", True), (2, "c", True), (9, None, False), (None, None, False)],
    "semi": [(1, True), (2, True), (9, False), (None, False)],
    "anti": [(1, True), (2, True), (9, False), (None, False)],
}


@pytest.mark.parametrize("how", FOUND)
def test_each_requested_key_is_reported_as_found_or_not_found(how):
    [batch] = of_keys(how).run([pa.record_batch(KEYS_IN)])
    assert list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) == FOUND[how]


def test_left_rows_are_counted_by_the_numbers_that_keys_tell():
    runner = of_keys("left")
    list(runner.run([pa.record_batch(KEYS_IN)]))
    counts = {name: runner.lookup.counters[name] for name in ("rows", "hits", "misses", "keys")}
    assert counts == {"rows": 11, "hits": 5, "misses": 3, "keys": 3}


def test_a_full_table_is_returned_as_it_is_cached():
    runner = of_keys("left", cache="ALL")
    for _ in range(2):
        assert [batch.to_pydict() for batch in runner.lookup.all_rows()] == [{"0": ["a", "b", "c"]}]
    assert runner.lookup.counters["fetched_rows"] == 3
