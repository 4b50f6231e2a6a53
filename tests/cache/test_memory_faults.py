"""Memory that cannot be allocated, at every allocation of every operation of a cache in turn.

The steps of a cache are made once; before each of them, the cache and what is open are copied. Then the step is
repeated on copies, with the n-th allocation failing, and the others after it or not. Afterwards open batches have their
rows, the audit finds nothing, no key is found with other rows than its own, and the next batches are right.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import audit
import numpy as np
import pyarrow as pa
import pytest
from faulty_memory import Memory
from scale import SCALE

from lookupcache.cache import ColumnCache, Limits
from lookupcache.cache.entry_numbers import Lease
from lookupcache.cache.keys import KeyBatch

SCHEMA = pa.schema([("s", pa.string()), ("n", pa.int64())])
ONE_IN = 1 if SCALE > 1 else 193
"""In a normal run, one allocation in this many fails."""


class Batch:
    """An open batch: its keys, its lease, and the entries that are being fetched for it."""

    def __init__(self, numbers: list[int], lease: Lease, versions: dict[int, int]) -> None:
        self.numbers, self.lease, self.versions = numbers, lease, versions
        self.fetched: tuple[list[int], Lease] | None = None
        self.broken = False


class World:
    """A cache, its open batches, and the version of each key's rows in the source."""

    def __init__(self, limits: Limits, type_: pa.DataType) -> None:
        self.type, self.cache = type_, ColumnCache(SCHEMA, [type_], limits)
        self.versions = dict.fromkeys(range(200), 0)
        self.batches: list[Batch] = []
        self.now = 0.0
        self.groups = 0

    def keys(self, numbers: list[int]) -> KeyBatch:
        texts = [f"key {number}" for number in numbers] if self.type == pa.string() else numbers
        return KeyBatch.of([pa.array(texts, self.type)], [self.type])

    def rows_of(self, number: int, version: int) -> list[str]:
        return [f"{number}/{version}/{row}" for row in range(number % 4)]

    def open(self, numbers: list[int]) -> None:
        lease = self.cache.find(self.keys(numbers), self.now)
        batch = Batch(numbers, lease, {n: self.versions[n] for n in numbers})
        self.groups += 1
        try:
            missing = [n for n, entry in zip(numbers, lease.entries.tolist(), strict=True) if entry < 0]
            entries = self.cache.reserve(self.keys(missing), self.groups, self.now)
        except BaseException:
            self.cache.release(lease)
            raise
        self.batches.append(batch)
        batch.fetched = missing, self.cache.lease(entries)
        try:
            rows = [*lease.expired, *lease.aging]
            again = lease.entries[np.array(rows, np.int64)]
            self.cache.request_again(again, self.groups, wait=True)
            batch.fetched[0].extend(numbers[row] for row in rows)
            batch.fetched[1].entries = np.concatenate([entries, again])
            lease.entries[lease.entries < 0] = entries
            self.cache.touch(lease)
        except BaseException:
            self._break(batch)
            raise

    def fill(self, at: int = 0) -> None:
        batch = self.batches[at]
        assert batch.fetched is not None
        numbers, lease = batch.fetched
        self.cache.release(lease)
        rows = [self.rows_of(number, self.versions[number]) for number in numbers]
        texts = [text for one in rows for text in one]
        table = pa.table({"s": texts, "n": range(len(texts))}, SCHEMA)
        batch.fetched = None
        try:
            self.cache.fill(lease.entries, table, np.array(list(map(len, rows)), np.int64), self.now)
        except BaseException:
            batch.broken = True
            self.cache.fail(lease.entries, math.inf)
            raise

    def fail(self) -> None:
        self._break(self.batches[-1])

    def _break(self, batch: Batch) -> None:
        assert batch.fetched is not None
        _, lease = batch.fetched
        self.cache.release(lease)
        batch.fetched, batch.broken = None, True
        self.cache.fail(lease.entries, math.inf)

    def close(self, at: int = 0) -> None:
        self.cache.release(self.batches.pop(at).lease)
        self.cache.enforce_limits(self.now)

    def change(self, numbers: list[int]) -> None:
        keys = self.keys(numbers)
        self.versions |= {number: self.versions[number] + 1 for number in numbers}
        self.cache.invalidate(keys)

    def sweep(self, seconds: float) -> None:
        self.now += seconds
        self.cache.enforce_limits(self.now)

    def compact(self) -> None:
        self.cache._table.compact()

    def merge(self) -> None:
        for _ in range(10):
            self.read(self.batches[0])

    def use(self, numbers: list[int]) -> None:
        self.open(numbers)
        self.fill(-1)
        self.close(-1)

    def read(self, batch: Batch) -> None:
        """Check that a batch has the rows of each of its keys, unless their fetch has failed."""
        if batch.broken:
            return
        fetched = set() if batch.fetched is None else set(batch.fetched[0])
        starts, counts = self.cache.starts(batch.lease.entries), self.cache.counts(batch.lease.entries)
        rows = np.concatenate([start + np.arange(count) for start, count in zip(starts, counts, strict=True)])
        texts, ends = self.cache.gather(rows.astype(np.int64))[0].to_pylist(), np.cumsum(counts)
        for row, number in enumerate(batch.numbers):
            if number not in fetched:
                allowed = {batch.versions[number], self.versions[number]}
                found = texts[ends[row] - counts[row] : ends[row]]
                assert found in [self.rows_of(number, version) for version in allowed]

    def check(self) -> None:
        """Compare everything that is found, and everything that open batches have, with the source."""
        self.cache._table.recover()
        assert audit.audit_columns(self.cache) == []
        for batch in self.batches:
            self.read(batch)
        waiting = {number for batch in self.batches if batch.fetched for number in batch.fetched[0]}
        numbers = [number for number in self.versions if number not in waiting]
        lease = self.cache.find(self.keys(numbers), self.now)
        assert self.cache.waits(lease) == set(), "a key waits for a call that has ended"
        found = Batch(numbers, lease, dict(self.versions))
        found.broken = not (lease.entries >= 0).any()
        found.numbers = [n for n, entry in zip(numbers, lease.entries.tolist(), strict=True) if entry >= 0]
        lease.entries = lease.entries[lease.entries >= 0]
        self.read(found)
        self.cache.release(lease)


def on(first: int, last: int, step: int = 1) -> list[int]:
    return list(range(first, last, step))


STEPS: list[tuple[Any, ...]] = [
    ("open", on(0, 30)), ("fill",), ("open", on(20, 70)), ("fill", 1), ("close",), ("merge",), ("change", on(0, 45, 2)),
    ("compact",), ("use", on(40, 140)), ("open", on(0, 160, 7)), ("change", on(0, 160, 14)), ("fill", 1), ("close",),
    ("use", on(100, 170)), ("compact",), ("open", on(0, 200, 3)), ("fail",), ("close",), ("sweep", 4.0),
    ("use", on(0, 90)), ("use", on(60, 150)), ("sweep", 30.0), ("use", on(0, 200, 2)),
]  # fmt: skip
LIMITS = {
    "lru": (Limits(rows=120), pa.int64()),
    "s3-fifo": (Limits(rows=120, eviction="s3-fifo"), pa.string()),
    "bytes": (Limits(bytes=16_000), pa.string()),
    "ages": (
        Limits(write_seconds=3, miss_seconds=2, access_seconds=9, stale_seconds=12, refresh_seconds=1), pa.int64()
    ),
}  # fmt: skip


def make(world: World, step: tuple[Any, ...], memory: Memory) -> bool:
    """Make a step; return whether memory was short."""
    with memory.limited():
        try:
            getattr(world, step[0])(*step[1:])
        except MemoryError:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS)
def test_a_memory_error_at_any_allocation_leaves_the_cache_sound(limits):
    world, failed = World(*LIMITS[limits]), 0
    for number, step in enumerate(STEPS):
        before, memory = copy.deepcopy(world), Memory()
        assert not make(world, step, memory)
        world.check()
        for at in range(1 + number % ONE_IN, memory.count + 1, ONE_IN):
            for lasting in (False, True):
                faulty = copy.deepcopy(before)
                failed += make(faulty, step, Memory(at, lasting))
                try:
                    faulty.check()
                    while faulty.batches:
                        if faulty.batches[0].fetched is not None:
                            faulty.fill()
                        faulty.close()
                    faulty.use(on(0, 200, 5))
                    faulty.check()
                except BaseException as error:
                    error.add_note(f"{step}, allocation {at}, lasting: {lasting}")
                    raise
    assert failed > 2_000 / ONE_IN


@pytest.mark.parametrize("step", ["compact", "merge"])
@pytest.mark.parametrize("limits", LIMITS)
def test_a_memory_error_in_a_compaction_or_merge_changes_nothing(limits, step):
    world = World(*LIMITS[limits])
    for one in STEPS[:7]:
        make(world, one, Memory())
    found = world.cache.find(world.keys(on(0, 200)), 0).entries.tolist()
    world.cache._leases.pop()
    memory = Memory()
    make(copy.deepcopy(world), (step,), memory)
    assert memory.count > 20
    for at in range(1, memory.count + 1, 1 if step == "compact" else 11):
        make(world, (step,), Memory(at, lasting=True))
        assert world.cache.find(world.keys(on(0, 200)), 0).entries.tolist() == found
        world.cache._leases.pop()
        world.check()
