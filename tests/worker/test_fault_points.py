"""A fault at every point: a run is counted through once, then repeated with the n-th call to the outside failing.

The calls are those to the clock, for memory, to files and to file systems. After the fault the error has been raised,
nothing is left behind, and what comes next is right: an error never becomes a miss.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any
from unittest import mock

import audit
import pyarrow as pa
import pyarrow.dataset
import pytest
from faulty_memory import Memory
from lookupcache_files import FilesConnector
from scale import scale_up

from lookupcache.cache import appended_rows, entry_rows, expiry, in_flight, key_lookup, policy, policy_queues
from lookupcache.cache.appended_rows import AppendedRows
from lookupcache.cache.keys import KeyBatch
from lookupcache.config import LookupConfig
from lookupcache.connector import Connector
from lookupcache.errors import LookupCacheError
from lookupcache.executor.call_group import Executor
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.resilience.rate_limit import RateLimit
from lookupcache.worker import dead_letters
from lookupcache.worker.dead_letters import DeadLetters
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.source import Source


class Fault(OSError):
    """The fault that is injected."""


class MemoryFault(MemoryError):
    """The same for memory that cannot be allocated."""


class Points:
    """Counts calls, and fails the n-th; ``failed`` names it."""

    def __init__(self, failing: int | None = None, error: Callable[[str], BaseException] = Fault) -> None:
        self.count = 0
        self.failing = failing
        self.error = error
        self.failed = ""
        self.is_over = False

    def wrap(self, name: str, function: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.pass_point(name)
            return function(*args, **kwargs)

        return called

    def pass_point(self, name: str) -> None:
        if self.is_over:
            return
        self.count += 1
        if self.count == self.failing:
            self.failed = name
            raise self.error(f"injected into {name}")

    @contextmanager
    def into(self, *targets: tuple[Any, str]) -> Iterator[Points]:
        with ExitStack() as stack:
            for owner, name in targets:
                stack.enter_context(mock.patch.object(owner, name, self.wrap(name, getattr(owner, name))))
            yield self


def fail_at_each_point(run: Callable[[Points], None], *errors: Callable[[str], BaseException]) -> None:
    """Repeat a run with a fault at each of its points, of each kind of error.

    Where threads work beside it, another run may have a few points less; nearly all of them must be reached.
    """
    points = Points()
    run(points)
    reached = []
    for number, error in itertools.product(range(1, points.count + 1), errors or (Fault,)):
        faulty = Points(number, error)
        run(faulty)
        reached.append(bool(faulty.failed))
    assert sum(reached) >= 0.9 * len(reached) > 0, f"{sum(reached)} of {len(reached)} faults were raised"


# ── the cache of a lookup: clock, memory, threads ────────────────────────────────────────────────────────

ROWS = {number: [(number, match) for match in range(number % 3)] for number in range(12)}
SCHEMA = pa.schema([("key", pa.int64()), ("match", pa.int64())])
TEXTS = pa.schema([("key", pa.string()), ("match", pa.int64())])


class DictConnector(Connector):
    def lookup(self, request, keys):
        found = [row for key in keys.column(0).to_pylist() for row in ROWS[int(key)]]
        return self.table(found)

    def scan(self, request):
        yield from self.table([row for rows in ROWS.values() for row in rows]).to_batches(max_chunksize=3)

    def table(self, rows):
        return pa.table({"key": [key for key, _ in rows], "match": [match for _, match in rows]}).cast(self.schema)


def new_lookup(
    schema: pa.Schema, clock: Callable[[], float], connector: Connector | None = None, **options: Any
) -> Any:
    plan = LookupPlan(
        table="t", connector="dict", source="-", schema=schema, how="left", columns=("match",), left_columns=("key",),
        config=LookupConfig(**{"max_retries": 0, **options}), keys=(FieldKey(column="key", sql=""),),
    )  # fmt: skip
    return lookup_of(Source(plan, connector or DictConnector(schema, {})), clock)


def look_up(lookup: Any, schema: pa.Schema, numbers: list[int]) -> None:
    """Look up keys, and check that each has its rows."""
    keys = KeyBatch.of([pa.array(numbers, pa.int64()).cast(schema.field(0).type)], [schema.field(0).type])
    pending = lookup.find(keys)
    try:
        counts = pending.counts().tolist()
        assert counts == [len(ROWS[number]) for number in numbers]
    finally:
        lookup.close(pending)


GROWING = (entry_rows, expiry, in_flight, key_lookup, policy, policy_queues)
"""The modules whose columns grow with the number of entries."""
BATCHES = [[1, 2, 3], [2, 3, 4, 4], [5, 6, 7], [8, 1, 9, 10], [11, 2, 1], [5, 8, 2]]
OPTIONS = {
    "lru": {"cache": "LRU", "max_rows": 6},
    "s3-fifo": {"cache": "LRU", "max_rows": 6, "eviction": "s3-fifo"},
    "ages": {"cache": "TTL", "expire_after_write": 3, "stale_if_error": 9, "refresh_after_write": 1},
}


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "schema"),
    [("lru", SCHEMA), ("s3-fifo", TEXTS), ("ages", TEXTS)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_faults_of_clock_memory_or_threads_keep_the_cache_sound(options, schema):
    def run(points: Points) -> None:
        now = [0.0]
        lookup = new_lookup(schema, points.wrap("the clock", lambda: now[0]), **OPTIONS[options])
        faults = 0
        memory = [(appended_rows, "_copy_rows"), *((module, "grow_column") for module in GROWING)]
        with points.into((AppendedRows, "append"), (Executor, "start"), *memory):
            for numbers in BATCHES:
                now[0] += 1.5
                try:
                    look_up(lookup, schema, numbers)
                except (Fault, MemoryFault):
                    faults += 1
        points.is_over = True
        assert faults <= 1, points.failed
        while lookup.in_flight:
            lookup.wait()
        lookup.poll()
        assert (lookup._open, lookup._requests, lookup.cache._leases) == ([], {}, []), points.failed
        lookup.cache.enforce_limits(now[0])
        assert audit.audit_columns(lookup.cache) == [], points.failed
        for numbers in BATCHES:
            look_up(lookup, schema, numbers)
        lookup.source.close()

    fail_at_each_point(run, Fault, MemoryFault)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_memory_error_at_any_allocation_keeps_the_lookup_sound(options, lasting):
    def run(memory: Memory, schema: pa.Schema = TEXTS) -> bool:
        now, faults = [0.0], 0
        lookup = new_lookup(schema, lambda: now[0], **OPTIONS[options])
        for numbers in BATCHES:
            now[0] += 1.5
            try:
                with memory.limited():
                    look_up(lookup, schema, numbers)
            except MemoryError:
                faults, memory.failing = faults + 1, math.inf
        while lookup.in_flight:
            with suppress(MemoryError):
                lookup.wait()
        lookup.poll()
        assert (lookup._open, lookup._requests, lookup.cache._leases) == ([], {}, []), faults
        for numbers in BATCHES:
            look_up(lookup, schema, numbers)
        assert audit.audit_columns(lookup.cache) == []
        lookup.source.close()
        return faults > 0

    memory = Memory()
    run(memory)
    step = max(round(memory.count / scale_up(25)), 1)
    reached = [run(Memory(number, lasting)) for number in range(1, memory.count + 1, step)]
    assert sum(reached) >= 0.8 * len(reached) > 0


def test_a_fault_during_a_reload_keeps_the_old_table(tmp_path):
    table = pa.table({"key": range(9), "match": range(9)}, schema=SCHEMA)
    for part in range(3):
        pyarrow.parquet.write_table(table.slice(3 * part, 3), tmp_path / f"{part}.parquet")

    def run(points: Points) -> None:
        now = [0.0]
        connector = FilesConnector(SCHEMA, {"path": str(tmp_path)})
        lookup = new_lookup(SCHEMA, lambda: now[0], connector, cache="ALL", reload_interval=1)
        connector.scan = lambda request: each(points, FilesConnector.scan(connector, request))
        keys = KeyBatch.of([pa.array([0, 4, 8, 9])], [pa.int64()])
        for _ in range(4):
            now[0] += 3
            try:
                pending = lookup.open(keys)
            except Fault:
                continue
            if pending.errors:
                assert lookup.counters["reloads"] == 0, "Only the first load has no old table to fall back on."
            else:
                assert pending.counts().tolist() == [1, 1, 1, 0], points.failed
            lookup.close(pending)
        assert lookup.counters["reload_failures"] <= 1
        assert audit.audit_columns(lookup.cache) == []
        lookup.source.close()

    fail_at_each_point(run)


def each(points: Points, batches: Any) -> Iterator[Any]:
    with closing(batches):
        points.pass_point("the listing")
        for batch in batches:
            points.pass_point("a batch")
            yield batch
        points.pass_point("the end")


# ── dead letters: the file system ────────────────────────────────────────────────────────────────────────


class FaultyFiles:
    """A local file system, each of whose operations is a point."""

    def __init__(self, points: Points, system: Any) -> None:
        self.points, self.system = points, system

    def __getattr__(self, name: str) -> Any:
        return self.points.wrap(name, getattr(self.system, name))


def test_a_fault_during_a_write_leaves_no_partial_dead_letters(tmp_path):
    error = pa.array(
        [{"code": "LOOKUP_FAILED", "message": "down"}], pa.struct([("code", "string"), ("message", "string")])
    )
    real = dead_letters.fs.FileSystem

    def run(points: Points) -> None:
        folder = tmp_path / f"letters {points.failing}"
        system = mock.Mock()
        system.FileSystem.from_uri = lambda path: (FaultyFiles(points, real.from_uri(path)[0]), path)
        writer = mock.Mock(wraps=dead_letters.pq)
        own = dead_letters.pq.ParquetWriter

        class Writer(own):
            def write_batch(self, *args: Any) -> None:
                points.pass_point("write_batch")
                super().write_batch(*args)

            def close(self) -> None:
                points.pass_point("close") if self.is_open else None
                super().close()

        writer.ParquetWriter = Writer
        with mock.patch.object(dead_letters, "fs", system), mock.patch.object(dead_letters, "pq", writer):
            letters = DeadLetters(str(folder), "t")
            try:
                for number in range(3):
                    letters.write(pa.record_batch({"id": [number]}), error)
                letters.close(True)
            except LookupCacheError:
                assert points.failed
                letters.close(False)
        exists = folder.exists() and any(folder.iterdir())
        shown = pyarrow.dataset.dataset(str(folder)).to_table().num_rows if exists else 0
        assert shown == (0 if points.failed else 3), points.failed

    fail_at_each_point(run)


# ── the file of a rate limit ─────────────────────────────────────────────────────────────────────────────


def test_a_fault_in_a_rate_limits_file_leaves_no_lock_or_file(tmp_path):
    path = tmp_path / "limits" / "slot"

    def run(points: Points) -> None:
        path.unlink(missing_ok=True)
        open_files = audit.files()
        limit, waits = RateLimit(10.0, path, clock=points.wrap("the clock", lambda: 5.0)), []
        with points.into((os, "open"), (os, "fstat"), (os, "pread"), (os, "pwrite")):
            for _ in range(3):
                try:
                    waits.append(round(limit.reserve(), 3))
                except Fault:
                    assert points.failed
        assert audit.files() == open_files, points.failed
        if path.exists():
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # No slot is given twice, and none is lost but that of the call that failed.
        assert waits in ([0.0, 0.1, 0.2], [0.0, 0.1]) or (points.failed and waits == [0.0, 0.2]), points.failed

    fail_at_each_point(run)
