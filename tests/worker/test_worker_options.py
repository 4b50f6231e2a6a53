"""Every two values of options that go together, under every kind of source: rows, counts and errors are right.

The cases come from a pairwise product. The source is a dict, so the rows that a join should have are known; the clock
is the test's own, and moves between batches so that entries expire, are refreshed and are reloaded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from memory_rate import MemoryRate
from memory_store import MemoryStore
from option_pairs import CACHE, CALLS, JOIN, NOT_OF_A_JOIN, SHARED, TABLE, WITHOUT_EFFECT, clash_of, config_of
from pairwise import Covering, covering, named
from servers import until

from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.errors import LookupRuntimeError
from lookupcache.expr import Call, Column
from lookupcache.functions.connector import FunctionConnector
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.store.answer_time import most_seconds
from lookupcache.worker.dead_letters import DeadLetters
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.runner import Layout, Runner
from lookupcache.worker.source import Source

FORMS = ["function", "object", "class"]
FUNCTIONS = [f"{sync} {many} {form}" for sync in ("sync", "async") for many in ("key", "batch") for form in FORMS]
VALUES: dict[str, list[Any]] = {
    **CACHE,
    "cache": [*CACHE["cache"], "ALL"],
    **CALLS,
    **TABLE,
    **SHARED,
    **JOIN,
    **WITHOUT_EFFECT,
    "source": ["sync connector", "async connector", *FUNCTIONS],
    "how": ["left", "inner", "semi", "anti"],
    "key": ["int", "text", "pair"],
    "fault": ["none", "first call", "one key"],
}


def clash(case: dict[str, Any]) -> set[str]:
    found = clash_of(case)
    if case["cache"] == "ALL" and not case["source"].endswith("connector"):
        found |= {"cache", "source"}
    if case["source"].startswith("async") and case["source"] != "async connector" and case["async_"] is False:
        found |= {"async_", "source"}
    return found


@functools.cache
def covered() -> Covering:
    """Return the cases; to find them takes seconds, which the collection of the tests must not."""
    return covering(VALUES, clash)


PARTS = 30


@pytest.mark.extended
def test_the_product_has_every_pair_of_every_option(capsys):
    with capsys.disabled():
        print(f"\nOptions of a join: {covered()}.")
    assert set(LookupConfig.__dataclass_fields__) - set(VALUES) == set(NOT_OF_A_JOIN)
    assert all(NOT_OF_A_JOIN.values())
    # A pair is only left out for a reason: an option that contradicts one of the two.
    assert all(reasons & set(pair) for pair, reasons in covered().excluded)
    assert covered().pairs > 8_000


# ── the source ───────────────────────────────────────────────────────────────────────────────────────────

KEYS = {"int": [0, 1, 2, 3, 4], "text": ["", "a", "é", "d" * 40, "e"]}
KEYS["pair"] = list(zip(KEYS["int"], KEYS["text"], strict=True))
ROWS: list[list[tuple[int | None, ...]]] = [
    [],
    [(0, None, 12, 0)],
    [(0, None, 10, 3), (1, 10, None, None)],
    [(0, 4, None, 7)],
    [(0, None, 12, 2), (1, 6, 20, 9), (2, 6, None, 9)],
]
"""The rows of each key: their number, from when to when they are valid, and their version, in numbers of left rows.

The key at position 3 is the one that fails in the fault ``one key``.
"""


def flattened(row: tuple) -> tuple:
    """Return a row whose key may be a tuple."""
    key, *values = row
    return (*(key if isinstance(key, tuple) else (key,)), *values)


class Table:
    """The rows by key, and the faults of calls for them."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.keys = KEYS[case["key"]]
        self.fault = case["fault"]
        self.rows = {key: [(key, *row) for row in rows] for key, rows in zip(self.keys, ROWS, strict=True)}
        self.calls = 0
        self.lock = threading.Lock()

    def answer(self, keys: list[Any]) -> list[list[tuple]]:
        with self.lock:
            self.calls += 1
        if (self.fault == "first call" and self.calls == 1) or (self.fault == "one key" and self.keys[3] in keys):
            raise ConnectionError("the source is down")
        return [self.rows[key] for key in keys]


class DictConnector(Connector):
    def __init__(self, schema: pa.Schema, table: Table) -> None:
        super().__init__(schema, {})
        self.table = table

    def lookup(self, request, keys):
        requested = list(zip(*(column.to_pylist() for column in keys.columns), strict=True))
        requested = [key[0] for key in requested] if keys.num_columns == 1 else requested
        return self.arrow(rows for rows in self.table.answer(requested))

    def scan(self, request):
        yield from self.arrow(self.table.answer(self.table.keys)).to_batches()

    def arrow(self, answers) -> pa.Table:
        flat = [flattened(row) for rows in answers for row in rows]
        return pa.table(list(zip(*flat, strict=True)) or [[]] * len(self.schema), schema=self.schema)


class DictConnectorLater(DictConnector):
    async def lookup_async(self, request, keys):
        await asyncio.sleep(0)
        return DictConnector.lookup(self, request, keys)


class Local(FunctionConnector):
    """A function that stays in this process."""

    def __copy__(self):
        return self


def function_of(source: str, table: Table) -> Any:
    """Return a function, an object or a class that answers for one key or many, sync or async."""
    sync, many, form = source.split()

    def one(*key):
        [rows] = table.answer([key[0] if len(key) == 1 else key])
        return [flattened(row) for row in rows]

    def batch(keys):
        return [[flattened(row) for row in rows] for rows in table.answer(keys)]

    answer = one if many == "key" else batch

    async def later(*arguments):
        await asyncio.sleep(0)
        return answer(*arguments)

    function = answer if sync == "sync" else later
    if form == "function":
        return function
    kind = type("Kind", (), {"__call__": staticmethod(function), "open": lambda self: None})
    if sync == "async":

        async def call(self, *arguments):
            return await later(*arguments)

        kind.__call__ = call
    return kind if form == "class" else kind()


# ── a case ───────────────────────────────────────────────────────────────────────────────────────────────

HISTORY = ["match", "since", "till", "version"]
TYPES = {"int": [pa.int64()], "text": [pa.string()], "pair": [pa.int64(), pa.string()]}
BATCHES = [
    (0, [1, 2, 2, None, 0]),
    (0, [3, 1]),
    (0.5, [4, 4, 0, 1]),
    (1.5, []),
    (1.5, [2, 1, 3, 0, None]),
    (0, [0]),
    (2.5, [1, 2, 3, 4, 0]),
    (5, [4, 3, 2, 1, 0, 1]),
    (30, [1, 0]),
]
"""Seconds since the batch before, and the positions of its keys."""


def as_of(config: LookupConfig) -> dict[str, Any]:
    """Return what the planner adds to a plan for an as-of join, by the number of the left row as its time."""
    time = Column("left", "row", pa.int64())
    since, till, version = (Column("right", name, pa.int64()) for name in HISTORY[1:])
    if config.as_of_version is not None:
        return {"residual": (Call("<=", (version, time)),), "columns": ("match", "version"), "latest": "version"}
    if config.as_of_period is None:
        return {"columns": ("match",)}
    bounds = (Call("<=", (since, time)), since), (Call(">", (till, time)), till)
    residual = tuple(Call("or", (bound, Call("is null", (column,)))) for bound, column in bounds)
    return {"residual": residual, "columns": ("match", "since", "till")}


class Join:
    """One lookup under a case, run twice: an error that ends the first run leaves nothing wrong for the second."""

    def __init__(self, case: dict[str, Any], folder: Path) -> None:
        self.case, self.now = case, 0.0
        self.config = config_of(case, str(folder))
        self.table = Table(case)
        self.memory, self.rate = MemoryStore(), MemoryRate()
        types = TYPES[case["key"]]
        names = ["key", "other"][: len(types)]
        fields = [pa.field(name, type_) for name, type_ in zip(names, types, strict=True)]
        schema = pa.schema([*fields, *((name, pa.int64()) for name in HISTORY)])
        connector: Connector
        if case["source"].endswith("connector"):
            connector = (DictConnectorLater if case["source"].startswith("async") else DictConnector)(
                schema, self.table
            )
        else:
            function, many = function_of(case["source"], self.table), "batch" in case["source"]
            connector = Local(schema, key=tuple(names), function=function, batch=many)
        self.left = pa.schema([*fields, ("row", pa.int64())])
        self.plan = LookupPlan(
            table="t", connector="dict", source="-", schema=schema, how=case["how"], config=self.config,
            keys=tuple(FieldKey(column=name, sql="") for name in names), left_columns=tuple(self.left.names),
            **as_of(self.config),
        )  # fmt: skip
        if case["how"] in ("semi", "anti"):
            self.plan = dataclasses.replace(self.plan, latest=None)
        self.source = Source(self.plan, connector)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lookupcache.store.row_store.open_store", self.open_store)
            patch.setattr("lookupcache.store.cluster_rate.open_rate", self.rate.open)
            # Where scope `host` without a path has its files, and `auto` shares none.
            directories = str(folder / "spark") if case["scope"] == "host" else ""
            patch.setenv("SPARK_LOCAL_DIRS", directories)
            self.lookup = lookup_of(self.source, lambda: self.now)
        self.layout = Layout(tuple(self.left.names), tuple(range(len(names))))

    def open_store(self, location: str, timeout: float, most: float) -> MemoryStore:
        assert (timeout, most) == (self.config.store_timeout, most_seconds(self.config))
        return self.memory

    def batches(self) -> Iterator[pa.RecordBatch]:
        row = 0
        for seconds, numbers in BATCHES:
            self.now += seconds
            self.memory.clock += seconds
            keys = [None if number is None else self.table.keys[number] for number in numbers]
            parts = [[key if key is None or not isinstance(key, tuple) else key[place] for key in keys]
                     for place in range(len(self.left) - 1)]  # fmt: skip
            yield pa.RecordBatch.from_arrays(
                [pa.array(part, field.type) for part, field in zip(parts, self.left, strict=False)]
                + [pa.array(range(row, row + len(keys)), pa.int64())], schema=self.left,
            )  # fmt: skip
            row += len(keys)

    def run(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the joined rows, and whether the run was complete."""
        path = self.config.dead_letter_path
        letters = None if path is None else DeadLetters(path, "t", self.left.names)
        rows: list[dict[str, Any]] = []
        names = [*self.left.names, *(self.plan.columns if self.case["how"] in ("left", "inner") else [])]
        names += [name for name in (self.config.age_column, self.config.error_column) if name]
        try:
            for batch in Runner(self.plan, self.layout, self.lookup, letters).run(self.batches()):
                rows += batch.rename_columns(names).to_pylist()
        except LookupRuntimeError:
            return rows, False
        return rows, True


def valid(case: dict[str, Any], rows: list[tuple[int | None, ...]], time: int) -> list[int | None]:
    """Return the numbers of the rows that are joined at a time."""
    if case["as_of_version"] is not None:
        versions = {match: version for match, _, _, version in rows if version is not None and version <= time}
        if case["how"] in ("semi", "anti"):
            return list(versions)
        return [match for match, version in versions.items() if version == max(versions.values())]
    if case["as_of_period"] is not None:
        began = [row for row in rows if row[1] is None or row[1] <= time]
        return [match for match, _, till, _ in began if till is None or till > time]
    return [match for match, *_ in rows]


def expected(case: dict[str, Any]) -> dict[int, list[int | None]]:
    """Return the matches of each left row as the join should show them: none, or one element per joined row."""
    shown, row = {}, 0
    for _, numbers in BATCHES:
        for number in numbers:
            matches = [] if number is None else valid(case, ROWS[number], row)
            if case["how"] in ("semi", "anti"):
                shown[row] = [None] if bool(matches) == (case["how"] == "semi") else []
            else:
                shown[row] = matches or ([None] if case["how"] == "left" else [])
            row += 1
    return shown


@pytest.mark.extended
@pytest.mark.parametrize("part", range(PARTS))
def test_rows_counts_and_errors_are_right(part, tmp_path):
    for case, folder in covered().part(part, PARTS, tmp_path):
        with named(case):
            check(case, folder)


def check(case: dict[str, Any], tmp_path: Path) -> None:
    join, letters_folder = Join(case, tmp_path), tmp_path / "letters"
    keys = [number for _, numbers in BATCHES for number in numbers]
    total, letters, complete_runs = Counter(), Counter(), 0
    for _ in range(2):
        before = join.lookup.counters.copy()
        rows, complete = join.run()
        since = Counter(join.lookup.counters) - Counter(before)
        written = read_letters(letters_folder) - letters
        letters += written
        shown: dict[int, list[int | None]] = {}
        failed = {row["row"] for row in rows if row.get(case["error_column"]) is not None}
        for row in rows:
            if row["row"] not in failed:
                shown.setdefault(row["row"], []).append(row.get("match"))
            assert row.get("age") is None or row["age"] >= 0
        right = expected(case)
        put_away = failed | set(written)
        if complete:
            kept = {number: matches for number, matches in right.items() if matches and number not in put_away}
            assert shown == kept, case
        else:
            assert join.config.on_error == "fail", case
            assert all(matches == right[number][: len(matches)] for number, matches in shown.items()), case
        assert case["fault"] != "none" or (complete and not put_away), case
        if complete and case["fault"] == "one key":
            assert put_away >= {number for number, key in enumerate(keys) if key == 3}, case
        assert since["failed_rows"] == len(failed), case
        assert since["dead_letters"] == written.total() or not complete, case
        complete_runs += complete
        total += since
    assert case["fault"] == "one key" or complete_runs, case
    if complete_runs == 2:
        keyed = sum(key is not None for key in keys)
        assert (total["rows"], total["hits"] + total["misses"]) == (2 * len(keys), 2 * keyed)
    while join.lookup.in_flight:
        join.lookup.wait()
    # A call may be cancelled with its group, since another has failed. A coroutine may then never reach the table, but
    # a thread reaches it soon.
    if case["source"].startswith("async"):
        unreached = join.lookup.counters["calls"] - join.table.calls
        assert unreached == 0 or (unreached > 0 and case["fault"] != "none"), case
    else:
        until(lambda: join.lookup.counters["calls"] == join.table.calls)
    join.lookup.disconnect()
    assert not join.memory.claimed, case
    if case["rate_limit_scope"] == "cluster":
        assert join.rate.times >= join.table.calls, case
    is_shared = case["cache"] != "NONE" and (case["scope"] == "host" or case["cache_path"] is not None)
    assert (tmp_path / (case["cache_path"] or "spark")).exists() == is_shared, case
    assert join.lookup.counters["store_failures"] == join.lookup.counters["cluster_limit_failures"] == 0, case


def read_letters(folder: Path) -> Counter[int]:
    """Return the numbers of the rows in all files of dead letters."""
    if not folder.exists() or not any(folder.iterdir()):
        return Counter()
    return Counter(pyarrow.dataset.dataset(str(folder)).to_table(columns=["row"]).column(0).to_pylist())
