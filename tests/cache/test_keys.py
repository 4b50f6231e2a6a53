"""Keys under Spark's equality: what is equal hashes and encodes alike, what is not is distinguished."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache.arrays import encode
from lookupcache.cache.keys import KeyBatch, column_of_words, hash_keys, is_exact, match

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


EXACT = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.int16(): [-(2**15), -1, 2**15 - 1],
    pa.int32(): [-(2**31), 5, 2**31 - 1],
    pa.int64(): [-(2**63), 5, 2**63 - 1],
    pa.float32(): [-1.5, 0.0, 3.0],
    pa.float64(): [-1e300, 0.0, 5e-324],
    pa.date32(): [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    pa.timestamp("us"): [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4)],
}


@pytest.mark.parametrize("type_", EXACT, ids=str)
def test_the_word_of_a_single_key_is_its_value(type_):
    values = pa.array(EXACT[type_], type_)
    assert is_exact([type_])
    words = KeyBatch.of([pa.concat_arrays([values, values]).slice(len(values))], [type_]).hashes
    assert column_of_words(words, type_).to_pylist() == EXACT[type_]
    assert encode([values, values]).tolist() == list(range(len(values)))


TEXT = st.text(max_size=40)
COLUMNS = st.lists(st.tuples(st.none() | TEXT, st.none() | st.integers(-5, 5)), max_size=40)


@pytest.mark.extended
@settings(max_examples=examples(300), deadline=None)
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


LENGTHS = st.sampled_from([1, 7, 8, 9, 255, 256, 257, 263, 264, 265, 272, 300, 1_000, 600_000])


def hashes(values: list[bytes]) -> list[int]:
    return KeyBatch.of([pa.array(values, pa.binary())], [pa.binary()]).hashes.tolist()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=5), st.data())
def test_every_byte_of_a_key_counts_and_nothing_else(lengths, data):
    keys = [bytes([65 + number]) * length for number, length in enumerate(lengths)]
    changed = data.draw(st.integers(0, len(keys) - 1))
    length = lengths[changed]
    borders = [
        place for place in (0, 255, 256, 263, 264, length // 2, length - 9, length - 8, length - 1) if place >= 0
    ]
    place = min(data.draw(st.sampled_from(borders) | st.integers(0, length - 1)), length - 1)
    other = bytearray(keys[changed])
    other[place] ^= data.draw(st.integers(1, 255))
    [*words, of_other] = hashes([*keys, bytes(other)])
    assert (of_other in words) == (bytes(other) in keys)
    assert [hashes([key]) for key in keys] == [[word] for word in words]


@pytest.mark.parametrize("before", [0, 250, 256, 300, 5_000])
def test_regular_keys_do_not_collide(before):
    """Two counters that add up to the same, and places that change with each other."""
    keys = [f"{'x' * before}{i:08d}/{j:08d}/{9_999 - i:08d}".encode() for i in range(100) for j in range(100)]
    keys += [f"{'x' * before}{a}{b}{'y' * 16}{b}{a}".encode() for a in "abcdefgh" for b in "ijklmnop"]
    assert len(set(hashes(keys))) == len(keys)


@settings(max_examples=examples(300), deadline=None)
@given(COLUMNS)
def test_encode_numbers_by_first_appearance(rows):
    columns = [pa.array([row[n] for row in rows], type_) for n, type_ in enumerate([pa.string(), pa.int64()])]
    numbers: dict[tuple, int] = {}
    expected = [-1 if None in row else numbers.setdefault(row, len(numbers)) for row in rows]
    assert encode(columns).tolist() == expected


def test_match_finds_the_key_of_each_row():
    assert match([pa.array([5, 7])], [pa.array([7, 6, None, 5, 7])]).tolist() == [1, -1, -1, 0, 1]


RECORDED = {
    "text": [
        7, 17844070137351845456, 13700137557512250483,
        7562008763045632491, 16878122157904945414, 14949026273742831734,
        2653655453600088361, 12396466513958927024, 14745544151631775443,
    ],
    "text and number": [
        9737372946035644086, 3458687072093192479, 18153012130685756514,
        13438000945118706333, 3635468364811113822, 6806925445183198715,
        11320261918844172668, 2270043940336717134, 11416577810664365054,
    ],
    "decimal": [
        6169222557611330991, 14314088702391967435, 6414524829400940662,
        5475528804368737514, 11743184362645645690, 15484151069156790115,
        12328215546015144356, 0, 8062580853397403736,
    ],
}  # fmt: skip


def test_hashes_are_the_same_in_every_process_and_version():
    """A store's names are made of these hashes, so another hash would find none of the entries that are there."""
    texts = pa.array(["", "a", "12345678", "123456789", "x" * 255, "y" * 256, "z" * 257, "long " * 100, "0" * 600_000])
    numbers = pa.array(range(-4, 5), pa.int64())
    decimals = pa.array([Decimal(number) for number in range(9)], pa.decimal128(20, 0))
    assert hash_keys([texts], np.uint64(7)).tolist() == RECORDED["text"]
    assert hash_keys([texts, numbers], np.uint64(7)).tolist() == RECORDED["text and number"]
    assert hash_keys([decimals], np.uint64(7)).tolist() == RECORDED["decimal"]
