"""Left rows that wait in a file while Spark tests their matches."""

import os

import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache.errors import LookupRuntimeError
from lookupcache.worker.spooled import RegroupTask, SpoolTask

TYPE = pa.list_(pa.struct([("v", pa.int64())]))
LEFT = st.lists(st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=4)), max_size=4)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("local")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(path))
        yield path


def batches_of(lists):
    numbers = iter(range(100))
    for rows in lists:
        matches = pa.array([None if row is None else [{"v": v} for v in row] for row in rows], TYPE)
        yield pa.record_batch({"n": pa.array([next(numbers) for _ in rows], pa.int64()), "matches": matches})


def answers(pairs, size):
    """Answer whether a match is less than 5, in batches of another size than those of the pairs."""
    found = []
    for batch in pairs:
        found += [match["v"] < 5 for match in batch.column(1).to_pylist()]
        while len(found) >= size:
            yield pa.record_batch({"passes": pa.array(found[:size])})
            del found[:size]
    yield pa.record_batch({"passes": pa.array(found, pa.bool_())})


@settings(max_examples=examples(200), deadline=None)
@given(lists=st.lists(LEFT, max_size=5), size=st.integers(1, 7))
def test_each_row_keeps_the_matches_that_pass(folder, lists, size):
    pairs = SpoolTask("a", 1, [0])(batches_of(lists))
    rows = [row for batch in RegroupTask("a", 1)(answers(pairs, size)) for row in batch.to_pylist()]
    flat = [row or [] for part in lists for row in part]
    assert rows == [{"n": n, "matches": [{"v": v} for v in row if v < 5]} for n, row in enumerate(flat)]
    assert os.listdir(folder) == []


def test_only_pairs_are_tested_and_only_with_needed_columns():
    pairs = list(SpoolTask("b", 1, [0])(batches_of([[None, [1, 2], []], [[3]]])))
    assert [batch.column(0).to_pylist() for batch in pairs] == [[1, 1], [3]]
    list(RegroupTask("b", 1)(answers(pairs, 9)))


def test_nothing_is_left_of_a_task_that_stops(folder):
    pairs = SpoolTask("c", 1, [])(batches_of([[[1]], [[2]]]))
    next(pairs)
    pairs.close()
    assert os.listdir(folder) == []


def test_a_file_that_is_not_there_is_an_error_instead_of_no_rows():
    with pytest.raises(LookupRuntimeError, match="cannot be read"):
        list(RegroupTask("d", 1)([]))
