"""Keys under Spark's equality: what is equal hashes and encodes alike, what is not is told apart."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache.cache.keys import KeyBatch, encode, match

NAN = float("nan")
EQUAL = {
    "zeros": (pa.float64(), [0.0, -0.0], 1),
    "NaNs": (pa.float64(), [NAN, -NAN], 1),
    "float zeros": (pa.float32(), [0.0, -0.0], 1),
    "trailing blank": (pa.string(), ["a", "a "], 2),
    "nul": (pa.string(), ["a", "a\0"], 2),
    "empty": (pa.string(), ["", "\0"], 2),
    "long": (pa.string(), ["x" * 256 + "a" + "y" * 20, "x" * 256 + "b" + "y" * 20], 2),
    "decimal": (pa.decimal128(38, 2), [Decimal("1" + "0" * 30), Decimal("1" + "0" * 29 + "1")], 2),
    "booleans": (pa.bool_(), [True, False, True], 2),
}


@pytest.mark.parametrize(("type_", "values", "count"), EQUAL.values(), ids=EQUAL)
def test_distinct_keys_are_sparks(type_, values, count):
    assert len(KeyBatch.of([pa.array(values, type_)], [type_]).distinct().first) == count


TEXT = st.text(max_size=40)
COLUMNS = st.lists(st.tuples(st.none() | TEXT, st.none() | st.integers(-5, 5)), max_size=40)


@settings(max_examples=300, deadline=None)
@given(COLUMNS, st.integers(0, 5))
def test_equal_keys_hash_alike_wherever_they_lie(rows, offset):
    types = [pa.string(), pa.int32()]
    columns = [pa.array([row[n] for row in rows], type_) for n, type_ in enumerate(types)]
    whole = KeyBatch.of(columns, types)
    part = KeyBatch.of([column.slice(offset) for column in columns], types)
    expected = [None not in row for row in rows]
    assert (whole.valid is None and all(expected)) or whole.valid.tolist() == expected
    for row, word, valid in zip(rows[offset:], part.hashes, expected[offset:], strict=True):
        assert not valid or word == whole.hashes[rows.index(row)]


@settings(max_examples=300, deadline=None)
@given(COLUMNS)
def test_encode_numbers_by_first_appearance(rows):
    columns = [pa.array([row[n] for row in rows], type_) for n, type_ in enumerate([pa.string(), pa.int64()])]
    numbers: dict[tuple, int] = {}
    expected = [-1 if None in row else numbers.setdefault(row, len(numbers)) for row in rows]
    assert encode(columns).tolist() == expected


def test_match_finds_the_asked_key_of_each_answer():
    assert match([pa.array([5, 7])], [pa.array([7, 6, None, 5, 7])]).tolist() == [1, -1, -1, 0, 1]
