"""Keys count as they are written: drawn files and tables, compared with counts of the texts."""

from __future__ import annotations

import csv
import gzip
import random
from collections import Counter
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from lookupcache import OptionError, SchemaError, hit_rate
from lookupcache.hitrate.keys import read_requests

ODD = ["7", "07", "007", "+7", "7.0", "7e0", "0x7", " 7", "NA", "null", "nan", "NaN", "true", "TRUE", "2024-05-01",
       "2024-05-01 00:00:00", "18446744073709551615", "9007199254740993", "9007199254740992", "12345678901234567890",
       "12345678901234567891", "1e3", "1000", "a,b", 'a"b', "a\nb", "ß", "inf", "0", "-0", "#N/A"]  # fmt: skip


def counts(requests):
    """Return how often each key is requested, without the keys themselves."""
    return sorted(Counter(requests.ids.tolist()).values())


def expected(keys):
    return sorted(Counter(keys).values())


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from(ODD) | st.text("0123456789+-.eEx ", min_size=1), st.booleans())))
def test_keys_of_a_csv_count_as_they_are_written(tmp_path_factory, drawn):
    path, rows = tmp_path_factory.getbasetemp() / "drawn.csv", [("7", False), *drawn]
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write("id,n\n")
        for text, quoted in rows:
            quoted |= any(character in text for character in ',"\n')
            file.write(f'"{text.replace(chr(34), chr(34) * 2)}",1\n' if quoted else f"{text},1\n")
    with path.open(newline="", encoding="utf-8") as file:
        texts = [row["id"] for row in csv.DictReader(file)]
    assert counts(read_requests(path, ["id"])) == expected(texts)
    assert counts(read_requests(path, ["id", "n"])) == expected(texts)


def test_a_text_after_a_megabyte_of_numbers_is_a_key(tmp_path):
    """An empty field is null."""
    with gzip.open(tmp_path / "keys.csv.gz", "wt") as file:
        file.write("id,at\n" + "1,0\n" * 400_000 + 'x,1\n,2\n"",3.5\n')
    requests = read_requests(tmp_path / "keys.csv.gz", ["id"], "at")
    assert (counts(requests), requests.nulls, requests.seconds) == ([1, 1, 400_000], 1, 3.5)


def test_keys_of_a_csv_in_a_type_that_is_stated(tmp_path):
    (tmp_path / "keys.csv").write_text("id,n\n7,1\n007,2\n8,3\n")
    assert hit_rate(tmp_path / "keys.csv", ["id"]).keys == 3
    assert hit_rate(tmp_path / "keys.csv", ["id"], schema="id BIGINT").keys == 2
    (tmp_path / "keys.csv").write_text("id,n\n7,1\n0x7,2\n")
    for schema, says in (("id BIGINT", "'id' cannot be read as int64: '0x7' is no whole"), ("id DATE", "as date32"),
                         ("idd INT", "'idd', which is no key column")):  # fmt: skip
        with pytest.raises(SchemaError, match=f"{says}(?s:.*)Hint"):
            hit_rate(tmp_path / "keys.csv", ["id"], schema=schema)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (["0", "1.5"], 1.5), (["2024-05-01", "2024-05-02"], 86_400.0),
        (["2024-05-01 00:00:00", "2024-05-01 00:00:01.25"], 1.25),
        (["2024-05-01T00:00:00Z", "2024-05-01T02:00:00+01:00"], 3_600.0),
    ],
)  # fmt: skip
def test_times_of_a_csv(tmp_path, times, seconds):
    (tmp_path / "keys.csv").write_text("id,at\n" + "".join(f"1,{time}\n" for time in times))
    assert read_requests(tmp_path / "keys.csv", ["id"], "at").seconds == seconds
    (tmp_path / "keys.csv").write_text("id,at\n" + "".join(f"1,{time}\n" for time in [*times, "soon"]))
    with pytest.raises(SchemaError, match=r"Column 'at' has a text which is no time(?s:.*)Hint"):
        read_requests(tmp_path / "keys.csv", ["id"], "at")


# ── folders ──────────────────────────────────────────────────────────────────────────────────────────────────


def write_parquet(folder, **columns):
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{len(list(folder.iterdir()))}.parquet")


@pytest.mark.parametrize("narrow", [pa.int8(), pa.int32(), pa.uint16(), pa.decimal128(5, 0)])
@pytest.mark.parametrize("first", [True, False])
def test_parquet_files_whose_types_are_of_one_family(tmp_path, narrow, first):
    columns = [pa.array([1, 2, None], narrow), pa.array([2, 2**40], pa.int64())]
    for column in columns if first else columns[::-1]:
        write_parquet(tmp_path, id=column)
    requests = read_requests(tmp_path)
    assert (counts(requests), requests.nulls) == ([1, 1, 2], 1)


@pytest.mark.parametrize("other", [pa.array(["1"]), pa.array([1.5]), pa.array([b"1"])])
def test_parquet_files_whose_types_differ_need_a_stated_type(tmp_path, other):
    for column in (pa.array([2**53, 2**53 + 1]), other):
        write_parquet(tmp_path, id=column)
    with pytest.raises(SchemaError, match=r"Column 'id' is \w+ and \w+ in the files(?s:.*)schema="):
        read_requests(tmp_path)
    if other.type != pa.binary():
        assert hit_rate(tmp_path, schema="id STRING").keys == 3


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_partition_columns_of_a_folder_are_keys(tmp_path, suffix):
    for country in ("AT", "a%20b", "01", "1", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / f"country={country}"
        folder.mkdir()
        if suffix == "csv":
            (folder / "f.csv").write_text("id\n1\n1\n")
        else:
            write_parquet(folder, id=[1, 1])
        (folder / "_SUCCESS").touch()
        (folder / f"_hidden.{suffix}").write_text("nothing that can be read")
    for keys in (["country"], ["id", "country"]):
        requests = read_requests(tmp_path, keys)
        assert (counts(requests), requests.nulls) == ([2, 2, 2, 2], 2)
    assert counts(read_requests(tmp_path, ["id"])) == [10]


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────

BIG = 2**64


@pytest.mark.parametrize(
    "values",
    [
        [BIG, BIG + 1, 1, None, BIG], [2**63, 2**63 + 1, 5], [-BIG, BIG, float("nan")], [10**50, 10**50 + 1],
        [Decimal(10) ** 50, Decimal(10) ** 50 + 1, Decimal(1)], [1, 2.5, 1], ["1", "01", "1.0"], [True, False, None],
        [b"\xff", b"\xfe"],
    ],
)  # fmt: skip
def test_values_of_a_pandas_column_are_distinguished(values):
    requests = read_requests(
        pd.DataFrame({"id": pd.Series(values, dtype=object), "other": [object()] * len(values)}), ["id"]
    )
    there = [value for value in values if value is not None and value == value]
    assert (counts(requests), requests.nulls) == (expected(there), len(values) - len(there))


@pytest.mark.parametrize("values", [[1, "1"], [2**53 + 1, 0.5], [BIG, 0.5], [BIG, "x"], [object()]])
def test_a_pandas_column_of_several_types_is_an_error(values):
    with pytest.raises(SchemaError, match=r"Column 'id' of pandas has values(?s:.*)astype"):
        read_requests(pd.DataFrame({"id": pd.Series(values, dtype=object)}))


TYPES = [
    pa.uint8(), pa.uint64(), pa.decimal32(5, 1), pa.decimal64(12, 2), pa.decimal128(38, 0), pa.decimal256(60, 0),
    pa.string_view(), pa.binary_view(), pa.large_binary(), pa.binary(3), pa.uuid(), pa.time64("us"), pa.duration("s"),
    pa.date64(), pa.timestamp("ns", "Europe/Paris"), pa.dictionary(pa.int8(), pa.large_string()), pa.float32(),
]  # fmt: skip


def value_of(type_, number):
    """Return a value for each number that is another for each."""
    if pa.types.is_dictionary(type_) or pa.types.is_string_view(type_):
        return f"{number:03}"
    if isinstance(type_, pa.UuidType):
        return bytes([number]) * 16
    if pa.types.is_fixed_size_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return f"{number:03}".encode()
    if pa.types.is_decimal(type_):
        return Decimal(number + (10**50 if type_.bit_width == 256 else 0))
    return number * (86_400_000 if type_ == pa.date64() else 1)


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_keys_of_every_arrow_type_are_distinguished(type_):
    draw = random.Random(str(type_))
    numbers = [draw.randrange(100) for _ in range(300)]
    storage = type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_
    raw = (
        pa.int64() if pa.types.is_time(type_) or pa.types.is_duration(type_) or pa.types.is_temporal(type_) else storage
    )
    column = pa.array([value_of(type_, number) for number in numbers], raw)
    column = pa.ExtensionArray.from_storage(type_, column) if storage is not type_ else column.cast(type_)
    assert counts(read_requests(pa.table({"id": column}))) == expected(numbers)


@pytest.mark.parametrize("type_", [pa.month_day_nano_interval(), pa.list_(pa.int8()), pa.float16()])
def test_types_that_cannot_be_keys(type_):
    with pytest.raises(SchemaError, match="cannot be a key"):
        read_requests(pa.table({"id": pa.nulls(1, type_), "n": [1]}), ["id"])


@pytest.mark.spark
def test_a_dataframe_counts_its_keys_by_their_types(spark):
    texts = ["7", "07", "7.0", "18446744073709551615", "18446744073709551614", None]
    df = spark.createDataFrame([(text,) for text in texts], "id STRING")
    assert (hit_rate(df).keys, hit_rate(df.selectExpr("CAST(id AS DECIMAL(20,0)) AS id")).keys) == (5, 3)
    with pytest.raises(OptionError, match="takes no schema"):
        hit_rate(df, schema="id STRING")
    with pytest.raises(SchemaError, match="a name, not Column"):
        hit_rate(df, [df["id"]])
    with pytest.raises(SchemaError, match=r"array<string>, which cannot be a key"):
        hit_rate(df.selectExpr("array(id) AS ids"))
    with pytest.raises(SchemaError, match=r"from a stream(?s:.*)spark\.read"):
        hit_rate(spark.readStream.format("rate").load(), "value")
