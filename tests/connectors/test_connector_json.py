"""JSON as columns: the http and the redis connector read the same values, and those mean what they mean to Spark."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from lookupcache_http.connector import HttpConnector
from lookupcache_redis.connector import RedisConnector
from lookupcache_redis.values import MISFITS, read_text
from servers import HttpServer, RedisServer, Reply

from lookupcache.connector import LookupRequest
from lookupcache.errors import SourceError
from lookupcache.formats.json_values import json_array
from lookupcache.schema import parse_ddl, parse_type

FLOATS = np.array([1.0, 2.0**24, -(2.0**24), 3.0e38, 1.4e-45, 0.1], np.float32)
HALFWAY = [
    format(Decimal(number), "f") for number in ((FLOATS.astype(float) + np.nextafter(FLOATS, np.float32(0))) / 2)
]
"""The numbers between a FLOAT and the next one."""
NUMBERS = [
    *HALFWAY, *(f"{text}{'' if '.' in text else '.'}0000000000000001" for text in HALFWAY),
    "0", "-0", "7", "-128", "128", "32768", "2147483648", "9223372036854775807", "9223372036854775808", "1.0", "1.5",
    "-0.0", "1e3", "1E-3", "1.239", "1.2300", "9007199254740993", "9007199254740993.0", "9007199254740992.5", "0.1",
    "16777217", "1e39", "1e308", "1e400", "1e999999999", "123456789.12", "99999999.99", "100000000", "NaN", "Infinity",
    "-Infinity",
]  # fmt: skip
WORDS = [
    "", " ", " 7", "7 ", "+7", "007", "1_0", " 1_0 ", "\u0661\u0662", "0x1F", "7L", "1f", "1.5d", ".5", "5.", "1e",
    "e1", "inf", "nan", "true", "True", "t", "yes", "é\0", "AA==", "AA=", "?", "null", "[1]",
]  # fmt: skip
DAYS = ["2024-05-01", "0001-01-01", "9999-12-31", "2023-02-29", "2024-5-1", "20240501", "2024-W18-3", "+2024-05-01"]
TIMES = [
    "", "T10", "T10:30", "T10:30:01", " 10:30:01", "t10:30:01", "T24:00:00", "T23:59:60", "T10:30:01.", "T10:30:01.5",
    "T10:30:01,5", "T10:30:01.123456", "T10:30:01.1234567", "T10:30:01.9999999", "T10:30:01.123456789123", "T1:2:3",
]  # fmt: skip
ZONES = ["", "Z", "z", " Z", "+05", "+0530", "-05:30", "+00:00", "-00:00", "+24:00", "UTC"]
MOMENTS = [f"{day}{time}{zone}" for day in DAYS[:4] for time in TIMES for zone in ZONES] + DAYS
NESTED = [
    "[]",
    "{}",
    "[1, null]",
    f"[{', '.join(HALFWAY)}]",
    '{"a": 1}',
    '[{"a": 1.10}]',
    "true",
    "false",
    "null",
    "[" * 900 + "]" * 900,
]
TYPES = [
    "TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,18)", "BOOLEAN", "STRING", "BINARY",
    "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "ARRAY<INT>", "ARRAY<FLOAT>", "STRUCT<a: INT>", "MAP<STRING, INT>",
    "MAP<TIMESTAMP, INT>",
]  # fmt: skip
DOCUMENTS = [*NUMBERS, *map(json.dumps, [*NUMBERS, *WORDS, *MOMENTS[::7], *DAYS]), *NESTED,
             *(json.dumps({text: 1}) for text in MOMENTS[::31])]  # fmt: skip


@pytest.fixture(scope="module")
def http():
    started = HttpServer(lambda requested: Reply(f'{{"v": {DOCUMENTS[int(requested.path[1:])]}}}')).start()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def redis():
    started = RedisServer().start()
    with started.client() as client:
        client.mset({f"j:{n}": f'{{"v": {document}}}' for n, document in enumerate(DOCUMENTS)})
    yield started
    started.close()


def found(connector, key):
    """Return the value, as a text that tells all values apart, or that there is none."""
    try:
        wanted = LookupRequest(table="t", key_columns=("k",), columns=("v",))
        return repr(
            connector.lookup(wanted, pa.record_batch({"k": pa.array([key], pa.int32())})).column("v").to_pylist()
        )
    except SourceError:
        return "no value"


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize("type_", TYPES)
def test_http_and_redis_read_the_same(http, redis, type_):
    schema = parse_ddl(f"k INT, v {type_}")
    both = [
        HttpConnector(schema, {"url": http.url + "/{k}"}),
        RedisConnector(schema, {"url": redis.url, "key": "j:{k}", "type": "json"}),
    ]
    answers = []
    for connector in both:
        connector.open()
        answers.append([found(connector, key) for key in range(len(DOCUMENTS))])
        connector.close()
    differing = [(document, *its) for document, *its in zip(DOCUMENTS, *answers, strict=True) if its[0] != its[1]]
    assert differing == []
    assert 2 < answers[0].count("no value") < len(DOCUMENTS) - 2


def test_bulk_and_single_values_are_the_same():
    for type_ in map(parse_type, TYPES):
        values = [value for value in map(loaded, DOCUMENTS) if fits(value, type_)]
        alone = [json_array([value], type_).to_pylist()[0] for value in values]
        assert repr(json_array(values, type_).to_pylist()) == repr(alone)


@pytest.mark.parametrize(
    ("type_", "document"),
    [("MAP<INT, INT>", '{"1": 1, "01": 2}'), ("MAP<DOUBLE, INT>", '{"1": 1, "1.0": 2}'),
     ("ARRAY<MAP<BOOLEAN, INT>>", '[{"true": 1, "false": 2}]')],
)  # fmt: skip
def test_two_names_that_are_one_key_of_a_map_are_an_error(type_, document):
    assert fits(loaded(document), parse_type(type_)) == ("BOOLEAN" in type_)


def loaded(document):
    return json.loads(document, parse_float=Decimal)


def fits(value, type_):
    try:
        json_array([value], type_)
    except MISFITS:
        return False
    return True


# ── against Spark ────────────────────────────────────────────────────────────────────────────────────────────

CAST = [
    "TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,18)", "BOOLEAN", "DATE", "TIMESTAMP",
    "TIMESTAMP_NTZ",
]  # fmt: skip
TEXTS = [*NUMBERS, *WORDS, *MOMENTS]
READERS = {
    "json": lambda text, type_: json_array([text], type_),
    "text": lambda text, type_: read_text([text.encode()], type_),
}
ISO_ONLY = re.compile(r".*(,5.*|T10(:30)?(Z|[+-].*))")
"""A comma for a point, and a zone behind hours or minutes: ISO 8601 has them, Spark does not."""


@pytest.fixture(scope="module")
def casts(spark):
    """Return what Spark makes of each text by CAST, by type, in UTC; whole numbers by way of a decimal."""
    from pyspark.sql import functions as F  # noqa: N812

    def cast(type_):
        by = "try_cast(t AS DECIMAL(38,6))" if "INT" in type_ else "t"
        return F.expr(f"try_cast({by} AS {type_})").alias(type_)

    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        texts = spark.createDataFrame([(text,) for text in TEXTS], "t STRING")
        return texts.select("t", *map(cast, CAST)).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("reader", sorted(READERS))
@pytest.mark.parametrize("type_", CAST)
def test_values_are_read_as_spark_reads_them(casts, type_, reader):
    read, ours, differing = READERS[reader], parse_type(type_), []
    for text, theirs in zip(casts["t"].to_pylist(), casts[type_].cast(ours), strict=True):
        try:
            [value] = read(text, ours)
        except MISFITS:
            continue
        if not same(value, theirs) and not (ISO_ONLY.fullmatch(text) and not theirs.is_valid):
            differing.append((text, str(value), str(theirs)))
    assert differing == []


def same(ours, theirs):
    """Return whether two scalars of Arrow are the same; Python has no names for all of their moments."""
    return ours == theirs or (pa.types.is_floating(ours.type) and math.isnan(ours.as_py()) and "nan" in str(theirs))


@pytest.mark.parametrize("reader", sorted(READERS))
@pytest.mark.parametrize(("type_", "text"), [("FLOAT", "-1e39"), ("DOUBLE", "1e400"), ("DOUBLE", "-" + "9" * 310)])
def test_a_number_beyond_the_range_of_its_type_is_an_error(type_, text, reader):
    with pytest.raises(MISFITS):
        READERS[reader](text, parse_type(type_))
    with pytest.raises(MISFITS):
        json_array([[loaded(text)]], parse_type(f"ARRAY<{type_}>"))


@pytest.mark.spark
def test_moments_finer_than_microseconds_are_cut(casts):
    text = "2024-05-01T10:30:01.9999999Z"
    theirs = casts["TIMESTAMP"].cast(parse_type("TIMESTAMP"))[casts["t"].to_pylist().index(text)].as_py()
    assert theirs == dt.datetime(2024, 5, 1, 10, 30, 1, 999999, tzinfo=dt.UTC)
    for read in READERS.values():
        assert read(text, parse_type("TIMESTAMP")).to_pylist() == [theirs]
