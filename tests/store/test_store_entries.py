"""Entries of a store: rows and Python values as bytes, and bytes that are damaged."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache.cache.keys import KeyBatch
from lookupcache.functions.value_codec import UnsupportedValueError, ValueCodec
from lookupcache.store.frames import HEADER_BYTES, MICROSECONDS
from lookupcache.store.rows import from_frames, to_frames

MOMENTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))
TYPES = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal128(9, 2), st.integers(-(10**8), 10**8).map(lambda n: Decimal(n) / 100)),
    (pa.string(), st.text(max_size=9)),
    (pa.binary(), st.binary(max_size=9)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("us", "UTC"), MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC))),
]


def or_null(values):
    return st.none() | values


def nested(inner):
    type_, values = inner
    name = st.text(max_size=3)
    struct = {"a": or_null(values), "b": or_null(name)}
    return st.sampled_from(
        [
            (pa.list_(type_), st.lists(or_null(values), max_size=3)),
            (pa.map_(pa.string(), type_), st.dictionaries(name, or_null(values), max_size=3).map(dict.items).map(list)),
            (pa.struct([("a", type_), ("b", pa.string())]), st.fixed_dictionaries(struct)),
        ]
    )


COLUMNS = st.recursive(st.sampled_from(TYPES), lambda inner: inner.flatmap(nested), max_leaves=3)
KEYS = [(type_, values) for type_, values in TYPES if not pa.types.is_binary(type_)]
SCHEMA = 77


@st.composite
def batches(draw):
    """Draw the schema, keys, counts and rows of a batch."""
    key_types, key_values = zip(*draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2)), strict=True)
    keys = draw(st.lists(st.tuples(*key_values), max_size=6, unique=True))
    columns = draw(st.lists(COLUMNS, max_size=3))
    schema = pa.schema([(f"c{number}", type_) for number, (type_, _) in enumerate(columns)])
    counts = draw(st.lists(st.integers(0, 3), min_size=len(keys), max_size=len(keys)))
    arrays = [
        pa.array(draw(st.lists(or_null(values), min_size=sum(counts), max_size=sum(counts))), type_)
        for type_, values in columns
    ]
    rows = pa.table(arrays, schema=schema) if arrays else pa.table({"none": pa.nulls(sum(counts))}).select([])
    batch = KeyBatch.of([pa.array([key[n] for key in keys], t) for n, t in enumerate(key_types)], key_types)
    return batch, list(key_types), schema, rows, np.array(counts, np.int64)


def read(values, batch, schema_hash=SCHEMA):
    keys, key_types, schema, _, _ = batch
    return from_frames(values, keys, key_types, schema, schema_hash)


@settings(max_examples=examples(60), deadline=None)
@given(batches(), st.data())
def test_rows_come_back_and_damaged_entries_do_not(batch, data):
    keys, _, schema, rows, counts = batch
    frames = to_frames(keys, rows, counts, 123.5, SCHEMA)
    found = read(frames, batch)
    assert found.positions.tolist() == list(range(len(keys)))
    assert (found.counts.tolist(), found.written.tolist()) == (counts.tolist(), [123.5] * len(keys))
    assert found.rows.equals(rows)
    if not len(keys):
        return
    number = data.draw(st.integers(0, len(keys) - 1))
    frame = bytearray(frames[number])
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    other = frames[number - 1] if len(keys) > 1 else b"LCS\x01"
    for wrong in (bytes(frame), frames[number][:at], b"", frames[number] + bytes(8), other):
        found = read([*frames[:number], wrong, *frames[number + 1 :]], batch)
        assert found.positions.tolist() == [n for n in range(len(keys)) if n != number]
        owner = np.repeat(np.arange(len(keys)), counts)
        assert not schema.names or found.rows.equals(rows.take(pa.array(np.flatnonzero(owner != number))))


def test_entries_of_another_schema_are_damaged():
    keys = KeyBatch.of([pa.array([1, 2])], [pa.int64()])
    rows = pa.table({"a": pa.array([1, 2], pa.int64())})
    batch = keys, [pa.int64()], rows.schema, rows, np.ones(2, np.int64)
    frames = to_frames(keys, rows, np.ones(2, np.int64), 1.0, SCHEMA)
    assert not len(read(frames, batch, schema_hash=78).positions)
    assert read([None, frames[1]], batch).positions.tolist() == [1]


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xed\xa0\x80"])
def test_bytes_that_are_no_text_are_damaged_despite_a_checksum(text):
    """Somebody who writes to the store cannot make a worker fail."""
    keys = KeyBatch.of([pa.array([1])], [pa.int64()])
    binary = pa.table({"a": pa.array([text], pa.binary())})
    frames = to_frames(keys, binary, np.ones(1, np.int64), 1.0, SCHEMA)
    found = from_frames(frames, keys, [pa.int64()], pa.schema([("a", pa.string())]), SCHEMA)
    assert not len(found.positions)


SIMPLE = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5)
    | st.dates() | MOMENTS | MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC))
    | st.decimals(allow_nan=False)
)  # fmt: skip
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def typed(value):
    if isinstance(value, dict):
        return dict, [(typed(key), typed(item)) for key, item in value.items()]
    return (type(value), [typed(item) for item in value]) if isinstance(value, list | tuple) else (type(value), value)


@settings(max_examples=examples(60), deadline=None)
@given(VALUES, st.binary(max_size=30), st.data())
def test_python_values_come_back_with_their_types(value, noise, data):
    codec = ValueCodec()
    encoded = codec.write(value)
    assert typed(codec.read(encoded)) == typed(value)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    for wrong in (cut, noise):
        with contextlib.suppress(ValueError):
            codec.read(wrong)
    with pytest.raises(ValueError, match="Extra data"):
        codec.read(encoded + b" 1")


FIELDS = st.lists(st.sampled_from("xyz"), unique=True)


@settings(max_examples=examples(40), deadline=None)
@given(FIELDS, FIELDS)
def test_an_object_is_read_only_by_the_names_of_its_fields(written, read):
    """Another version of a program may have the fields in another order."""
    old, new = (dataclasses.make_dataclass("Point", [(name, str) for name in names]) for names in (written, read))
    encoded = ValueCodec({"Point": old}).write([old(*written)])
    try:
        [found] = ValueCodec({"Point": new}).read(encoded)
    except ValueError:
        assert set(written) != set(read)
    else:
        assert found == new(*read)


class Text(str):
    """A text with more to it, which would come back without."""


@pytest.mark.parametrize("value", [object(), {1, 2}, Text("a"), [1, range(3)], np.int64(1)])
def test_other_values_are_refused_by_their_type(value):
    with pytest.raises(UnsupportedValueError):
        ValueCodec().write(value)


def test_the_time_of_writing_is_exact_to_a_microsecond():
    keys = KeyBatch.of([pa.array([1])], [pa.int64()])
    written = 1_800_000_000.123456
    frames = to_frames(keys, pa.table({"a": [1]}), np.ones(1, np.int64), written, SCHEMA)
    found = from_frames(frames, keys, [pa.int64()], pa.schema([("a", pa.int64())]), SCHEMA)
    assert abs(found.written[0] - written) <= 1 / MICROSECONDS
    assert len(frames[0]) >= HEADER_BYTES
