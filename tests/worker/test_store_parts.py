"""The rows that a store's lookup puts together: those of its own calls, and of keys that other workers gave up."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lookupcache.errors import LookupRuntimeError
from lookupcache.worker.answers import Fetched
from lookupcache.worker.store_source import _merge_parts

KEYS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12)
"""Of each key: its part, whether its call failed, how many rows it has."""


@given(KEYS)
def test_each_key_keeps_its_rows_and_its_error_in_any_part(keys):
    failed = [is_failed for _, is_failed, _ in keys]
    parts, positions = [], []
    for number in range(3):
        at = [key for key, (part, _, _) in enumerate(keys) if part == number]
        if at:
            counts = [0 if failed[key] else keys[key][2] for key in at]
            rows = pa.table({"key": pa.array(np.repeat(at, counts), pa.int64())})
            errors = {call: LookupRuntimeError(f"key {key}") for call, key in enumerate(at) if failed[key]}
            parts.append(Fetched(rows, np.array(counts), errors, np.arange(len(at))))
            positions.append(np.array(at))
    found = _merge_parts(len(keys), pa.table({"key": pa.array([], pa.int64())}), parts, positions, [0.0] * len(parts))
    assert found.failed.tolist() == failed
    counts = [0 if is_failed else count for _, is_failed, count in keys]
    assert found.counts.tolist() == counts
    assert found.rows["key"].to_pylist() == np.repeat(np.arange(len(keys)), counts).tolist()
    for key, is_failed in enumerate(failed):
        if is_failed:
            assert str(found.errors[int(found.call_of[key])]) == f"key {key}"
