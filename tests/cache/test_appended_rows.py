"""The row store against a list."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache.cache.appended_rows import AppendedRows
from lookupcache.cache.entry_rows import EntryRows

SCHEMA = pa.schema([("s", pa.string()), ("l", pa.list_(pa.int64()))])


def table(values) -> pa.Table:
    return pa.table(
        {"s": pa.array(values, pa.string()), "l": pa.array([[len(v)] for v in values], SCHEMA.field(1).type)}
    )


RUNS = st.lists(st.lists(st.text(max_size=5), max_size=20), max_size=12)


@pytest.mark.extended
@settings(max_examples=examples(200), deadline=None)
@given(RUNS, st.randoms(use_true_random=False))
def test_behaves_like_a_list(runs, random):
    store, model = AppendedRows(SCHEMA), []
    for run in runs:
        assert store.append(table(run)) == len(model)
        model += run
        numbers = np.array([random.randrange(-1, len(model)) for _ in range(10)], dtype=np.int64)
        strings, lists = store.gather(numbers)
        assert strings.to_pylist() == [model[n] if n >= 0 else None for n in numbers]
        assert lists.to_pylist() == [[len(model[n])] if n >= 0 else None for n in numbers]
    kept = [n for n in range(len(model)) if random.random() < 0.5]
    store = store.kept(np.array(kept, dtype=np.int64))
    assert store.gather(np.arange(len(kept)))[0].to_pylist() == [model[n] for n in kept]


STEPS = st.tuples(st.sampled_from(["append", "append", "keep"]), st.lists(st.text(max_size=5), max_size=4))


@pytest.mark.extended
@settings(max_examples=examples(200), deadline=None)
@given(st.lists(STEPS, max_size=12), st.randoms(use_true_random=False))
def test_row_numbers_stay_right_when_rows_are_added_or_removed(steps, random):
    store, own = AppendedRows(SCHEMA), []
    for step, values in steps:
        if step == "append":
            store.append(table(values))
            own += values
        else:
            kept = [n for n in range(len(own)) if random.random() < 0.3]
            store = store.kept(np.array(kept, dtype=np.int64))
            own = [own[n] for n in kept]
        rows = {-1: None, **dict(enumerate(own))}
        for numbers in (random.choices(list(rows), k=10), list(rows)):
            found = store.gather(np.array(numbers, dtype=np.int64))[0].to_pylist()
            assert found == [rows[n] for n in numbers]


def test_rows_without_columns_are_counted():
    store = AppendedRows(pa.schema([]))
    assert store.append(pa.table({"a": [1, 2, 3]}).select([])) == 0
    assert (len(store), store.gather(np.array([1])), store.nbytes) == (3, [], 0)


def test_a_slice_does_not_keep_the_full_table_alive():
    store = AppendedRows(pa.schema([("n", pa.int64())]))
    store.append(pa.table({"n": range(100_000)}).slice(0, 10))
    assert store.nbytes == 80


def test_gathers_without_appends_merge_the_runs():
    store = AppendedRows(pa.schema([("n", pa.int64())]))
    for size in (1_000, 100, 10):
        store.append(pa.table({"n": range(size)}))
    assert len(store.runs) == 3
    for number in range(1, 10):
        assert store.gather(np.array([0, 1_000, 1_100]))[0].to_pylist() == [0, 0, 0]
        assert len(store.runs) == (3 if number < 8 else 1)


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([2, 1], [3]),
        ([3, 1], [3, 1]),
        ([9, 4, 1], [9, 4, 1]),
        ([9, 4, 1, 1], [15]),
        ([17, 4, 1, 1], [17, 6]),
        ([2, 0], [2]),
    ],
)
def test_a_run_is_merged_with_one_that_is_at_most_twice_as_long(sizes, runs):
    store, first = AppendedRows(pa.schema([("n", pa.int64())])), 0
    for size in sizes:
        assert store.append(pa.table({"n": pa.array(range(first, first + size), pa.int64())})) == first
        first += size
    assert [run.num_rows for run in store.runs] == runs
    assert store.gather(np.arange(first))[0].to_pylist() == [*range(first)]
    assert store.nbytes == 8 * first


@pytest.mark.parametrize(("most", "runs"), [(32, 1), (31, 2)])
def test_runs_are_merged_up_to_the_bytes_that_arrow_can_address(monkeypatch, most, runs):
    monkeypatch.setattr("lookupcache.cache.appended_rows._MOST_BYTES_IN_A_RUN", most)
    store = AppendedRows(pa.schema([("n", pa.int64())]))
    for _ in range(2):
        store.append(pa.table({"n": [5, 6]}))
    for _ in range(9):
        assert store.gather(np.array([0, 1, 2, 3]))[0].to_pylist() == [5, 6, 5, 6]
    assert len(store.runs) == runs


@pytest.mark.parametrize("counts", [[1, 1], [0, 1], [2, 2], [1, 2], [0, 2], [0, 0]])
@pytest.mark.parametrize("how", ["write", "renumber"])
def test_a_join_repeats_no_row_only_if_no_entry_has_several(counts, how):
    rows, entries, counts = EntryRows(pa.schema([("n", pa.int64())])), np.array([0, 1], np.int32), np.array(counts)
    batch = pa.record_batch({"n": pa.array(range(int(counts.sum())), pa.int64())})
    rows.grow(2)
    rows.write(entries, batch, counts)
    if how == "renumber":
        rows = rows.renumbered(entries[::-1])
        counts = counts[::-1]
    assert rows.unique == (counts.max() < 2)
    assert rows.counts(entries).tolist() == counts.tolist()
