"""Any order of operations on a cache, compared with a plain dict that knows what was written and when.

An entry that is found must be what was written last, and young enough. One that is not found must be too old, removed,
or one of those that the cache counts as evicted. The audit runs after every step.
"""

from __future__ import annotations

import math
from typing import Any

import audit
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from option_values import EVICTIONS
from scale import scale_up

from lookupcache.cache import ColumnCache, Limits, RowCache
from lookupcache.cache.entry_numbers import Lease
from lookupcache.cache.keys import KeyBatch

KEYS = st.integers(0, 25)
BATCH = st.lists(KEYS, min_size=1, max_size=12)
SECONDS = st.sampled_from([0, 0, 0.5, 1, 3, 9])
COUNTS = st.integers(0, 3)


@st.composite
def limits(draw) -> Limits:
    write = draw(st.sampled_from([math.inf, 2.0, 6.0]))
    stale = draw(st.sampled_from([0.0, 8.0])) if write < math.inf else 0.0
    return Limits(
        rows=draw(st.sampled_from([math.inf, 1, 5, 20])),
        bytes=draw(st.sampled_from([math.inf, math.inf, 12_000])),
        write_seconds=write,
        miss_seconds=draw(st.sampled_from([write, 1.0])),
        access_seconds=draw(st.sampled_from([math.inf, math.inf, 4.0])),
        jitter=draw(st.sampled_from([0.0, 0.0, 0.5])),
        refresh_seconds=draw(st.sampled_from([math.inf, 0.5])) if write > 1 else math.inf,
        stale_seconds=stale,
        misses=draw(st.sampled_from([True, True, False])),
        remembers=draw(st.sampled_from([True, True, True, False])),
        eviction=draw(st.sampled_from(EVICTIONS)),
    )


class Model:
    """What was written for each key, when, and when it was last used; ``lost`` counts what was found missing."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.written: dict[int, tuple[list, float]] = {}
        self.used: dict[int, float] = {}
        self.lost = 0

    def write(self, key: int, rows: list, now: float) -> None:
        self.remove(key)
        if self.limits.remembers and (rows or self.limits.misses):
            self.written[key], self.used[key] = (rows, now), now

    def remove(self, key: int) -> None:
        self.written.pop(key, None)

    def may_be_old(self, key: int, now: float) -> bool:
        """Return whether an entry may be too old to be found: with jitter, some time before its limit."""
        rows, written = self.written[key]
        longest = self.limits.write_seconds if rows else self.limits.miss_seconds
        idle = now - self.used[key] > self.limits.access_seconds
        return now - written > longest * (1 - self.limits.jitter) or idle

    def check(self, key: int, found: list | None, now: float, *, stale: bool = False) -> None:
        """Compare what was found for a key; ``stale`` where only an error may make use of it."""
        if found is not None:
            assert key in self.written, f"{key} was found, and was never written or was removed"
            rows, written = self.written[key]
            assert found == rows
            longest = self.limits.write_seconds if rows else self.limits.miss_seconds
            assert now - written <= (self.limits.stale_seconds if stale else longest)
            self.used[key] = now
        elif key in self.written:
            self.lost += not self.may_be_old(key, now)
            self.remove(key)


class ColumnStates(RuleBasedStateMachine):
    """A `ColumnCache` as batches use it: leases that stay open, calls that land late or fail."""

    key_type: pa.DataType = pa.int64()

    @initialize(limits=limits())
    def start(self, limits: Limits) -> None:
        self.cache = ColumnCache(pa.schema([("v", pa.int64())]), [self.key_type], limits)
        self.model, self.now, self.groups, self.version = Model(limits), 0.0, 0, 0
        self.leases: list[tuple[Any, dict[int, list]]] = []
        self.calls: dict[int, tuple[list[int], Any]] = {}

    def batch(self, keys: list[int]) -> KeyBatch:
        values = [f"key {key}" for key in keys] if self.key_type == pa.string() else keys
        return KeyBatch.of([pa.array(values, self.key_type)], [self.key_type])

    def rows(self, entry: int) -> list:
        start, count = self.cache.starts(np.array([entry]))[0], self.cache.counts(np.array([entry]))[0]
        return self.cache.gather(np.arange(start, start + count))[0].to_pylist() if count else []

    @rule(keys=BATCH, again=st.booleans())
    def find(self, keys: list[int], again: bool) -> None:
        lease = self.cache.find(self.batch(keys), self.now)
        self.cache.touch(lease)
        flying = {group for group, (_, call) in self.calls.items() if np.isin(lease.entries, call.entries).any()}
        assert self.cache.waits(lease) <= flying
        calls = [call.entries for _, call in self.calls.values()]
        awaited = set(np.concatenate([*calls, [-1]]).tolist()) & set(lease.entries.tolist())
        awaited = {entry for entry in awaited if self.cache.waits(Lease(np.array([entry], np.int32)))}
        stale = set(lease.entries[lease.expired].tolist())
        kept = {}
        for row, key in enumerate(keys):
            entry = int(lease.entries[row])
            if entry in awaited:
                continue  # A batch waits for it: it has no rows yet, or rows that are too old.
            self.model.check(key, self.rows(entry) if entry >= 0 else None, self.now, stale=entry in stale)
            if entry >= 0:
                kept[row] = self.rows(entry)
        self.leases.append((lease, kept))
        for rows, wait in ((lease.expired, True), (lease.aging, False)):
            if again and rows.size:
                self.groups += 1
                entries = lease.entries[rows]
                self.cache.request_again(entries, self.groups, wait=wait)
                self.calls[self.groups] = ([keys[row] for row in rows.tolist()], self.cache.lease(entries))

    @rule(keys=BATCH, data=st.data())
    def call(self, keys: list[int], data: Any) -> None:
        """Fetch what is not cached: reserve its entries, and fill them later."""
        lease = self.cache.find(self.batch(keys), self.now)
        missing = sorted({key for row, key in enumerate(keys) if lease.entries[row] < 0})
        self.cache.release(lease)
        for key in missing:
            if key in self.model.written:
                self.model.check(key, None, self.now)
        if not missing:
            return
        self.groups += 1
        entries = self.cache.reserve(self.batch(missing), self.groups, self.now)
        self.calls[self.groups] = (missing, self.cache.lease(entries))
        if data.draw(st.booleans()):
            self.land(data, self.groups)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def land_late(self, data: Any) -> None:
        self.land(data, data.draw(st.sampled_from(sorted(self.calls))))

    def land(self, data: Any, group: int) -> None:
        keys, lease = self.calls.pop(group)
        # Which of them were removed, or evicted, while they were being fetched: then their rows are not cached.
        still = self.cache._table.numbers.is_listed(lease.entries)
        if data.draw(st.integers(0, 4)) == 0:
            lost = self.cache.fail(lease.entries, self.now)
            for key, removed in zip(keys, (still & lost).tolist(), strict=True):
                if removed:
                    self.model.remove(key)
        else:
            counts = data.draw(st.lists(COUNTS, min_size=len(keys), max_size=len(keys)))
            values = list(range(self.version, self.version + sum(counts)))
            self.version += sum(counts)
            self.cache.fill(lease.entries, pa.table({"v": pa.array(values, pa.int64())}), np.array(counts), self.now)
            first = 0
            for key, count, listed in zip(keys, counts, still.tolist(), strict=True):
                if listed:
                    self.model.write(key, values[first : first + count], self.now)
                first += count
            for reader, kept in self.leases:
                for row in np.flatnonzero(np.isin(reader.entries, lease.entries)).tolist():
                    kept.pop(row, None)  # It reads the new rows from now on.
        self.cache.release(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        lease, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.cache.release(lease)
        self.cache.enforce_limits(self.now)
        assert audit.audit_limits(self.cache) == []

    @rule(keys=BATCH, all_keys=st.sampled_from([False, False, False, True]))
    def invalidate(self, keys: list[int], all_keys: bool) -> None:
        self.cache.invalidate(None if all_keys else self.batch(sorted(set(keys))))
        for key in list(self.model.written) if all_keys else keys:
            self.model.remove(key)

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def enforce(self) -> None:
        self.cache.enforce_limits(self.now)
        assert audit.audit_limits(self.cache) == []
        if not self.model.limits.remembers:
            self.model.written.clear()

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "cache"):
            assert audit.audit_columns(self.cache) == []
            assert self.model.lost <= self.cache.evictions
            for lease, kept in self.leases:
                assert {row: self.rows(int(lease.entries[row])) for row in kept} == kept


class StringStates(ColumnStates):
    key_type = pa.string()


class RowStates(RuleBasedStateMachine):
    """A `RowCache` as `cached` uses it."""

    @initialize(limits=limits())
    def start(self, limits: Limits) -> None:
        self.cache, self.model, self.now, self.version = RowCache(limits), Model(limits), 0.0, 0

    @rule(key=KEYS)
    def get(self, key: int) -> None:
        found = self.cache.get(key, self.now)
        if found is None and key in self.cache.entries:
            # It is too old, and stays because it may stand in for an error.
            assert self.model.may_be_old(key, self.now)
        else:
            self.model.check(key, found, self.now)

    @rule(key=KEYS)
    def stale(self, key: int) -> None:
        found = self.cache.find_stale(key, self.now)
        if found is not None:
            rows, written = self.model.written[key]
            assert found.value == rows
            assert self.now - written <= self.model.limits.stale_seconds

    @rule(key=KEYS, count=COUNTS)
    def put(self, key: int, count: int) -> None:
        rows = list(range(self.version, self.version + count))
        self.version += count
        self.cache.put(key, rows, self.now)
        self.model.write(key, rows, self.now)

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        assert self.cache.remove(key) <= (key in self.model.written)
        self.model.remove(key)

    @rule(parity=st.integers(0, 1))
    def remove_all(self, parity: int) -> None:
        self.cache.remove_all(lambda key: key % 2 == parity)
        for key in [key for key in self.model.written if key % 2 == parity]:
            self.model.remove(key)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.model.written.clear()

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "cache"):
            assert audit.audit_rows(self.cache) == []
            assert self.model.lost <= self.cache.evictions
            assert set(self.cache.entries) <= set(self.model.written)


@pytest.mark.extended
@pytest.mark.parametrize("states", [ColumnStates, StringStates, RowStates])
def test_any_order_of_operations(states):
    run_state_machine_as_test(
        states, settings=settings(max_examples=scale_up(25), stateful_step_count=30, deadline=None)
    )
