"""The http connector on real services, over HTTP and over TLS."""

from __future__ import annotations

import base64
import datetime as dt
import importlib
import itertools
import json
import math
import pickle
import socket
import ssl
import threading
from contextlib import suppress
from decimal import Decimal
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pytest
import trustme
from connector_calls import answered, looked_up
from lookupcache_http.connector import HttpConnector
from servers import ReceivedRequest, Reply
from time_limit import LIMIT

from lookupcache.connector import LookupRequest, build_connector
from lookupcache.errors import (
    ConnectorError,
    LookupFailedError,
    LookupRuntimeError,
    LookupTimeoutError,
    OptionError,
    PlanError,
    SchemaError,
    SourceError,
)  # fmt: skip
from lookupcache.formats.json_path import Path
from lookupcache.formats.json_text import parse_json, plain_text
from lookupcache.formats.json_values import MismatchError, json_array
from lookupcache.http.client import HttpStatusError
from lookupcache.resilience.retry import retry_after_of
from lookupcache.schema import parse_ddl, parse_type
from lookupcache.table import LookupTable
from lookupcache.testing import ConnectorSuite
from lookupcache.testing.join import LocalJoin, Wanted

CUSTOMERS = "id BIGINT, name STRING, country STRING"
PEOPLE = {
    1: {"id": 1, "name": "ann", "country": "NL"},
    2: {"id": 2, "name": "bob", "country": None},
    3: {"id": 3, "name": "cy", "country": "NL"},
}
HOSTILE = [
    "a/b",
    "../2",
    "a/../..",
    "%2F",
    "%",
    "?x=1",
    "#f",
    "a&b=c",
    "é\u0301",
    "😀",
    "\r\nX: y",
    "\0",
    " ",
    "{id}",
    "a,b",
]


@pytest.fixture
def people(serve):
    """A service with people at /people/<id>, and at /people for a POST of ids."""

    def reply(requested):
        if requested.method == "POST":
            return Reply({"people": [PEOPLE[key] for key in requested.body["ids"] if key in PEOPLE]})
        person = PEOPLE.get(int(last_segment(requested)))
        return Reply({"error": "nobody"}, 404) if person is None else Reply(person)

    return serve(reply)


@pytest.fixture
def connect():
    """Return a function that opens a connector, which is closed after the test."""
    opened = []

    def open_(schema=CUSTOMERS, **options):
        connector = HttpConnector(parse_ddl(schema), named(options))
        connector.open()
        opened.append(connector)
        return connector

    yield open_
    for connector in opened:
        connector.close()


def named(options):
    """Return options whose names Python can write: tls_ca for tls.ca, rows__per__key for rows-per-key."""
    return {name.replace("__", "-").replace("_", "."): value for name, value in options.items()}


def last_segment(requested):
    return unquote(urlsplit(requested.path).path.rpartition("/")[2])


def request(keys=("id",), columns=("name", "country"), **rest):
    return LookupRequest(table="t", key_columns=tuple(keys), columns=tuple(columns), **rest)


def always(*replies):
    """Return what replies with these, one after the other, and then with the last for ever."""
    left = list(replies)
    return lambda requested: left.pop(0) if len(left) > 1 else left[0]


# ── requests ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_get_per_key(people, connect):
    customers = connect(url=f"{people.url}/people/{{id}}?fields={{columns}}")
    assert answered(customers, request(), (1,), (7,), (3,)) == [(1, "ann", "NL"), (3, "cy", "NL")]
    assert people.requested[0].path == "/people/1?fields=id,name,country"
    assert people.connections == 1


def test_a_post_per_batch(people, connect):
    customers = connect(url=f"{people.url}/people", body='{"ids": {keys}}', key="id", rows="$.people")
    assert answered(customers, request(), (1,), (7,), (3,)) == [(1, "ann", "NL"), (3, "cy", "NL")]
    [requested] = people.requested
    assert (requested.method, requested.body, requested.headers["Content-Type"]) == (
        "POST",
        {"ids": [1, 7, 3]},
        "application/json",
    )


def test_a_post_per_key_with_a_constant_and_columns(serve, connect):
    server = serve(always(Reply([{"name": "ann"}])))
    body = '{"one": {id}, "in": {country}, "fields": {columns}}'
    customers = connect(url=server.url, body=body, field_name="$.name")
    assert answered(customers, request(constants={"country": 'N"L'}), (1,)) == [(1, "ann", 'N"L')]
    assert server.requested[0].body == {"one": 1, "in": 'N"L', "fields": ["id", "name", "country"]}


def test_only_the_fields_of_requested_columns_are_requested(serve, connect):
    server = serve(always(Reply({"person": {"called": "ann"}})))
    customers = connect(url=server.url + "/{id}?fields={columns}", field_name="$.person.called")
    assert answered(customers, request(columns=["name"]), (1,)) == [(1, "ann")]
    assert server.requested[0].path == "/1?fields=id,person.called"


def test_answers_in_the_order_of_composite_keys(serve, connect):
    answer = [{"v": 1}, None, [{"v": 2}, {"v": 3}], []]
    server = serve(always(Reply({"answers": answer})))
    points = connect(
        "x INT, y STRING, v INT", url=server.url, body="{keys}", key="x, y", rows="$.answers", rows__per__key="true"
    )
    found = answered(points, request(["x", "y"], ["v"]), (1, "a"), (1, "b"), (2, "a"), (2, "b"))
    assert found == [(1, "a", 1), (2, "a", 2), (2, "a", 3)]
    assert server.requested[0].body[1] == {"x": 1, "y": "b"}


def test_keys_that_are_equal_for_the_service_are_requested_once(serve, connect):
    server = serve(lambda requested: Reply([PEOPLE[key] for key in requested.body]))
    customers = connect(url=server.url, body="{keys}", key="id")
    found = answered(customers, request(["id", "name"], ["country"]), (1, "ann"), (1, "bob"), (2, "bob"))
    assert found == [(1, "ann", "NL"), (2, "bob", None)]
    assert server.requested[0].body == [1, 2]


def test_nan_is_one_key_whatever_else_the_join_distinguishes(serve, connect):
    server = serve(lambda requested: Reply([{"name": str(key), "n": 1} for key in requested.body]))
    named = connect(
        "x DOUBLE, n INT, name STRING", url=server.url, body="{keys}", key="x", rows="$", rows__per__key="true"
    )
    keys = [(math.nan, 1), (0.5, 2), (float("nan"), 3)]
    found = answered(named, request(["x", "n"], ["name"]), *keys)
    assert (len(found), len(server.requested[0].body)) == (2, 2)


def test_a_join_without_the_required_columns(people, connect):
    for options in ({"url": people.url + "/{id}"}, {"url": people.url, "body": "{keys}", "key": "id"}):
        with pytest.raises(PlanError, match="has no 'id'"):
            answered(connect(**options), request(["name"], ["country"]), ("ann",))


def test_rows_of_other_keys_are_dropped_from_single_requests(serve, connect):
    server = serve(always(Reply(list(PEOPLE.values()))))
    assert answered(connect(url=server.url + "/{id}"), request(), (3,), (1,)) == [(3, "cy", "NL"), (1, "ann", "NL")]


# ── what a key may be ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.parametrize("place", ["/people/{id}", "/people?id={id}", "/people/by-{id}.json", "/v1;id={id}/x"])
@pytest.mark.parametrize("key", HOSTILE)
def test_no_key_leaves_its_place_in_the_url(serve, connect, place, key):
    server = serve(always(Reply([{"name": "ann"}])))
    assert answered(connect("id STRING, name STRING", url=server.url + place), request(columns=["name"]), (key,))
    start, end = place.split("{id}")
    path = server.requested[0].path
    assert path.startswith(start)
    assert path.endswith(end)
    spelled = path[len(start) : len(path) - len(end)]
    assert unquote(spelled) == key
    assert not set(spelled) & set("/?#&=;, \r\n")


@pytest.mark.parametrize("key", ["", ".", ".."])
def test_a_key_that_is_not_a_valid_path_segment_has_no_rows(serve, connect, key):
    server = serve(always(Reply([{"name": "everybody"}])))
    schema, wanted = "id STRING, name STRING", request(columns=["name"])
    assert answered(connect(schema, url=server.url + "/people/{id}"), wanted, (key,)) == []
    assert server.requested == []
    assert answered(connect(schema, url=server.url + "/people?id={id}"), wanted, (key,)) == [(key, "everybody")]


@pytest.mark.extended
@pytest.mark.parametrize("key", ["", ".", "..", '"', "\\", '"}', "\u2028", *HOSTILE])
def test_no_key_leaves_its_place_in_the_body(serve, connect, key):
    server = serve(lambda requested: Reply([{"id": requested.body["a"][0]}]))
    found = answered(connect("id STRING", url=server.url, body='{"a": {keys}}', key="id"), request(columns=[]), (key,))
    assert found == [(key,)]
    assert server.requested[0].body == {"a": [key]}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("type_", "value", "in_url", "in_body"),
    [
        ("BIGINT", -(2**63), "-9223372036854775808", -(2**63)),
        ("DOUBLE", 0.1, "0.1", Decimal("0.1")),
        ("DOUBLE", math.nan, "NaN", "NaN"),
        ("DOUBLE", -math.inf, "-Infinity", "-Infinity"),
        ("DECIMAL(38,2)", Decimal("1.10"), "1.10", Decimal("1.10")),
        ("BOOLEAN", True, "true", True),
        ("DATE", dt.date(2024, 5, 1), "2024-05-01", "2024-05-01"),
        ("TIMESTAMP", dt.datetime(2024, 5, 1, 1, tzinfo=dt.UTC), "2024-05-01T01:00:00Z", "2024-05-01T01:00:00Z"),
        (
            "TIMESTAMP_NTZ",
            dt.datetime(2024, 5, 1, 1, 0, 0, 5),
            "2024-05-01T01:00:00.000005",
            "2024-05-01T01:00:00.000005",
        ),
        ("BINARY", b"\xff\xfe", "//4=", "//4="),
    ],
)
def test_how_keys_are_spelled(serve, connect, type_, value, in_url, in_body):
    server = serve(always(Reply([])))
    wanted = request(["k"], [])
    answered(connect(f"k {type_}", url=server.url + "/{k}"), wanted, (value,))
    answered(connect(f"k {type_}", url=server.url, body="{keys}", key="k"), wanted, (value,))
    assert unquote(server.requested[0].path) == f"/{in_url}"
    assert server.requested[1].body == [in_body]


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────

MOMENT, DAY = dt.datetime(2024, 5, 1, 10, 30, 0, 123456), dt.date(2024, 5, 1)
DIGITS = "12345678901234567890.123456789012345678"


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("TINYINT", "-128", -128),
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("BIGINT", '"9223372036854775807"', 2**63 - 1),
        ("INT", "1.0", 1),
        ("INT", "1e3", 1000),
        ("DOUBLE", "0.1", 0.1),
        ("DOUBLE", "-0.0", -0.0),
        ("DOUBLE", "9007199254740993", 9007199254740992.0),
        ("DOUBLE", "NaN", math.nan),
        ("DOUBLE", '"-Infinity"', -math.inf),
        ("DOUBLE", '"1.5"', 1.5),
        ("FLOAT", "0.1", 0.10000000149011612),
        ("DECIMAL(38,18)", "12345678901234567890.123456789012345678", Decimal(DIGITS)),
        ("DECIMAL(10,2)", "1.1", Decimal("1.10")),
        ("DECIMAL(10,2)", '"1.10"', Decimal("1.10")),
        ("DECIMAL(10,2)", "1.1000", Decimal("1.10")),
        ("DECIMAL(10,2)", "3", Decimal("3.00")),
        ("BOOLEAN", "true", True),
        ("STRING", '"\\u00e9\\ud83d\\ude00\\u0000"', "é😀\0"),
        ("STRING", '{"a": [1.10, "x", null, 1234567890123456789012]}', '{"a":[1.10,"x",null,1234567890123456789012]}'),
        ("BINARY", '"//4="', b"\xff\xfe"),
        ("DATE", '"0001-01-01"', dt.date(1, 1, 1)),
        ("TIMESTAMP", '"2024-05-01T12:30:00.123456+02:00"', MOMENT.replace(tzinfo=dt.UTC)),
        ("TIMESTAMP", '"2024-05-01T10:30:00.123456000Z"', MOMENT.replace(tzinfo=dt.UTC)),
        ("TIMESTAMP", '"2024-05-01 10:30:00.123456"', MOMENT.replace(tzinfo=dt.UTC)),
        ("TIMESTAMP", '"2024-05-01 10:30:00.1234569Z"', MOMENT.replace(tzinfo=dt.UTC)),
        ("TIMESTAMP", '"2024-05-01"', dt.datetime(2024, 5, 1, tzinfo=dt.UTC)),
        ("BIGINT", "9007199254740993.0", 2**53 + 1),
        ("TIMESTAMP_NTZ", '"2024-05-01T10:30:00.123456"', MOMENT),
        ("ARRAY<DECIMAL(4,1)>", "[1.5, null, 2]", [Decimal("1.5"), None, Decimal("2.0")]),
        ("STRUCT<a: INT, b: STRUCT<c: DATE>>", '{"b": {"c": "2024-05-01"}, "z": 1}', {"a": None, "b": {"c": DAY}}),
        ("MAP<STRING, ARRAY<INT>>", '{"x": [1], "": null}', [("x", [1]), ("", None)]),
        ("MAP<INT, BOOLEAN>", '{"1": true}', [(1, True)]),
        ("MAP<BOOLEAN, INT>", '{"true": 1}', [(True, 1)]),
        ("INT", "null", None),
        ("MAP<INT, INT>", "null", None),
    ],
)  # fmt: skip
def test_a_value_becomes_what_its_column_says(type_, text, value):
    [found] = json_array([parse_json(text)], parse_type(type_)).to_pylist()
    assert repr(found).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc") == repr(value)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("TINYINT", "128"), ("INT", "1.5"), ("INT", '"1.0x"'), ("INT", "true"), ("INT", '" 1"'), ("INT", "1e999999999"),
        ("BIGINT", "9223372036854775808"), ("INT", "NaN"), ("INT", "[1]"), ("DOUBLE", "1e999"), ("DOUBLE", "true"),
        ("DOUBLE", '"one"'), ("FLOAT", "1e39"), ("DECIMAL(4,1)", "1.25"), ("DECIMAL(4,1)", "1000"),
        ("DECIMAL(4,1)", "1e999999999"), ("DECIMAL(4,1)", "NaN"), ("BOOLEAN", "1"), ("BOOLEAN", '"true"'),
        ("STRING", "5"), ("STRING", "true"), ("STRING", '"\\ud800"'), ("BINARY", '"?"'), ("DATE", '"2024-5-1"'),
        ("DATE", '"2023-02-29"'), ("DATE", '"2024-05-01T00:00:00"'), ("TIMESTAMP", "1714559400"),
        ("TIMESTAMP", '"20240501"'), ("TIMESTAMP", '"2024-W18-3"'), ("TIMESTAMP", '"2024-05-01Z"'),
        ("INT", '"\\u0661\\u0662"'), ("DECIMAL(4,1)", '" 1_0 "'), ("STRING", "[" * 900 + "]" * 900),
        ("TIMESTAMP", '"0001-01-01T00:00:00+02:00"'), ("TIMESTAMP_NTZ", '"2024-05-01T10:30:00Z"'),
        ("ARRAY<INT>", "1"), ("ARRAY<INT>", '["x"]'), ("STRUCT<a: INT>", "[1]"), ("STRUCT<a: INT>", '{"a": "x"}'),
        ("MAP<STRING, INT>", "[]"), ("MAP<INT, INT>", '{"x": 1}'),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_its_columns_type(type_, text):
    with pytest.raises(MismatchError):
        json_array([None, parse_json(text)], parse_type(type_))


def test_an_error_in_a_value_names_column_value_and_type(serve, connect):
    server = serve(always(Reply([{"id": 1, "name": 5, "country": None}])))
    with pytest.raises(SourceError, match=r"holds 5 for column 'name', which is no STRING(?s:.*)'field\.…'"):
        answered(connect(url=server.url + "/{id}"), request(), (1,))


@pytest.mark.parametrize(
    ("row", "named_"),
    [
        (
            {"id": 1, "nmae": "ann", "country": None},
            r"without 'name', which is column 'name'(?s:.*)'nmae'(?s:.*)'field\.name'",
        ),
        ([1, "ann"], "without 'name'"),
        (7, "without 'name'"),
    ],
)
def test_a_row_without_a_columns_field(serve, connect, row, named_):
    server = serve(always(Reply([row])))
    with pytest.raises(SourceError, match=named_):
        answered(connect(url=server.url + "/{id}"), request(), (1,))


def test_optional_fields_and_required_keys(serve, connect):
    server = serve(always(Reply([{"id": 1}, {"id": 1, "name": "ann"}]), Reply([{"id": 1}, {"name": "ann"}])))
    customers = connect(url=server.url + "/{id}", missing__field="null")
    assert answered(customers, request(), (1,)) == [(1, None, None), (1, "ann", None)]
    with pytest.raises(SourceError, match="without 'id'"):
        answered(customers, request(), (1,))


def test_fields_by_path(serve, connect):
    row = {"who": {"first name": "ann"}, "lives": [{"in": "NL"}]}
    server = serve(always(Reply([row])))
    customers = connect(
        url=server.url + "/{id}", field_name="$.who['first name']", field_country="lives[0].in", rows="$[*]"
    )
    assert answered(customers, request(), (1,)) == [(1, "ann", "NL")]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "document", "found"),
    [
        ("$", {"id": 1}, 1), ("$", [], 0), ("$", None, 0), ("$.a", {"a": None}, 0),
        ("$.a.b", {"a": {"b": [{}, {}]}}, 2),
        ("$.a[*].b", {"a": [{"b": [{}]}, {}, {"b": [{}]}]}, 2), ("$.a.*", {"a": {"1": {}, "2": {}}}, 2),
        ("$.a[*]", {"a": []}, 0), ("$[1]", [[{}], [{}, {}]], 2),
    ],
)  # fmt: skip
def test_where_the_rows_are(serve, connect, path, document, found):
    server = serve(always(Reply(json.dumps(document))))
    rows = answered(connect(url=server.url + "/{id}", rows=path, missing__field="null"), request(["id"], []), (1,))
    assert len(rows) == found


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("$.a[*]", {"a": "error"}), ("$.a[*].b", {"a": [{"error": "bad"}]}), ("$.a[*].b", {"a": [{"b": []}, {"c": 1}]}),
        ("$.a[*].b", {"a": ["error"]}), ("$.a[*].b", {"a": [[{"b": {}}]]}), ("$.a[*][0]", {"a": [{"b": 1}]}),
    ],
)  # fmt: skip
def test_an_entry_that_does_not_lead_to_rows_is_an_error(serve, connect, path, document):
    server = serve(always(Reply(json.dumps(document))))
    with pytest.raises(SourceError, match="has an entry that does not lead to rows at"):
        answered(connect(url=server.url + "/{id}", rows=path), request(["id"], []), (1,))


@pytest.mark.parametrize(
    "body",
    [
        '{"id": {id}, "password": "bod-s3cret"}', '{"a": [{"api_key" : "bod-s3cret"}], "id": {id}}',
        r'{"id": {id}, "password": "bod\u002ds3cret"}', r'{"id": {id}, "pass\u0077ord": "bod-s3cret"}',
    ],
)  # fmt: skip
def test_a_secret_in_the_body_is_shown_nowhere(serve, body):
    server = serve(lambda request: Reply(json.dumps(request.body), status=400))
    options = {"connector": "http", "url": server.url, "body": body, "lookup.max-retries": "0"}
    table = LookupTable("t", "id INT, name STRING", options)
    with LocalJoin(table, Wanted(key=("id",))) as join, pytest.raises(LookupRuntimeError) as raised:
        join.rows([(1,)])
    assert "bod-s3cret" in json.dumps(server.requested[0].body)
    assert "bod-s3cret" not in f"{raised.value} {table!r} {table.connector!r}"
    assert '"id": {id}' in repr(table)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("type_", ["DATE", "TIMESTAMP", "TIMESTAMP_NTZ"])
def test_only_a_key_beyond_pythons_years_fails_and_is_not_sent(serve, batch, type_):
    schema = parse_ddl(f"d {type_}, n INT")
    far = {"DATE": [0, 3_000_000, -800_000]}.get(type_, [0, 2**60, -(2**60)])
    number = pa.int32() if type_ == "DATE" else pa.int64()
    keys = pa.RecordBatch.from_arrays([pa.array(far, number).cast(schema.field("d").type)], names=["d"])
    server = serve(always(Reply(json.dumps([{"n": 1}]) if not batch else json.dumps([[{"n": 1}]]))))
    own = {"url": server.url, "body": "{keys}", "key": "d", "rows-per-key": "true"} if batch else {
        "url": server.url + "/{d}"}  # fmt: skip
    lookup = {"lookup.on-error": "null", "lookup.error-column": "why", "lookup.max-retries": "3"}
    table = LookupTable("t", schema, {"connector": "http", **own, **lookup})
    with LocalJoin(table, Wanted(key=("d",))) as join:
        found = join.join(keys)
    assert found.column("n").to_pylist() == [1, None, None]
    assert [why and why["code"] for why in found.column("why").to_pylist()] == [None, "LOOKUP_ERROR", "LOOKUP_ERROR"]
    assert "years 1 to 9999" in found.column("why")[1]["message"].as_py()
    assert len(server.requested) == 1


def test_a_column_that_is_not_sent_may_have_any_date(serve):
    schema = parse_ddl("id INT, d DATE, n INT")
    keys = pa.record_batch(
        {"id": pa.array([1, 1], pa.int32()), "d": pa.array([0, 3_000_000], pa.int32()).cast("date32")}
    )
    server = serve(always(Reply(json.dumps([{"id": 1, "d": "1970-01-01", "n": 7}]))))
    table = LookupTable("t", schema, {"connector": "http", "url": server.url + "/{id}"})
    with LocalJoin(table, Wanted(key=("id", "d"))) as join:
        assert join.join(keys).column("n").to_pylist() == [7]


@pytest.mark.parametrize(
    ("reply", "named_"),
    [
        (Reply({"error": "no"}), r"has nothing at '\$\.a\.b'; it has \{\"error\":\"no\"\}(?s:.*)'rows'"),
        (Reply({"a": None}), r"has nothing at '\$\.a\.b'"),
        (Reply("<html>"), "is not JSON"),
        (Reply(""), "is not JSON"),
        (Reply('{"a": {"b": ['), "is not JSON"),
        (Reply(b"\xff"), "is not JSON"),
        (Reply("[" * 9_999), "is not JSON: it is nested too deeply"),
        (Reply('{"v":1e' + "9" * 22 + "}"), "is not JSON: it has a number whose exponent is too large"),
        (Reply("9" * 9_999), "is not JSON"),
        (Reply(" " * 10_001), "more than 10,000 bytes(?s:.*)'max-bytes'"),
    ],
)
def test_an_invalid_response(serve, connect, reply, named_):
    server = serve(always(reply))
    with pytest.raises(SourceError, match=named_):
        answered(connect(url=server.url + "/{id}", rows="$.a.b", max__bytes="10000"), request(), (1,))


def test_a_compressed_answer_counts_as_what_it_becomes(serve, connect):
    import gzip

    server = serve(always(Reply(gzip.compress(b" " * 1_000_000), headers={"Content-Encoding": "gzip"})))
    with pytest.raises(SourceError, match="more than 1,000 bytes"):
        answered(connect(url=server.url + "/{id}", max__bytes="1000"), request(), (1,))


def test_too_few_entries(serve, connect):
    server = serve(always(Reply([[]])))
    customers = connect(url=server.url, body="{keys}", key="id", rows__per__key="true")
    with pytest.raises(SourceError, match="1 entries for 2 keys"):
        answered(customers, request(), (1,), (2,))


@pytest.mark.parametrize("text", ["a..b", "$.a[", "$[?(@.a)]", "$..a", "$[1:2]", "a b", "$x"])
def test_an_invalid_path(text):
    with pytest.raises(ValueError, match="is no path"):
        Path.parse(text)


# ── statuses ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_which_statuses_are_misses_can_be_said(serve, connect):
    server = serve(lambda requested: Reply("", int(last_segment(requested))))
    customers = connect(url=server.url + "/{id}", miss="403, 410")
    assert answered(customers, request(), (403,), (410,)) == []
    with pytest.raises(HttpStatusError, match="answered 404 Not Found"):
        answered(customers, request(), (404,))


def test_a_batch_that_is_not_found_is_an_error(serve, connect):
    server = serve(always(Reply("", 404)))
    with pytest.raises(HttpStatusError, match="404"):
        answered(connect(url=server.url, body="{keys}", key="id"), request(), (1,))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("status", "again"),
    [(400, False), (401, False), (403, False), (409, False), (422, False), (304, False), (300, False),
     (408, True), (425, True), (429, True), (500, True), (502, True), (503, True), (504, True), (599, True)],
)  # fmt: skip
def test_which_statuses_are_worth_a_retry(serve, connect, status, again):
    customers = connect(url=serve(always(Reply("", status))).url + "/{id}?secret={id}")
    with pytest.raises(
        HttpStatusError, match=rf"GET http://localhost:\d+/{{id}}\?secret=\S+ answered {status}"
    ) as raised:
        answered(customers, request(), (1,))
    assert customers.retryable(raised.value) is again


@pytest.mark.parametrize(("header", "seconds"), [("7", 7), ("0.5", 0.5), ("soon", None)])
def test_the_wait_that_a_service_asks_for(serve, connect, header, seconds):
    customers = connect(url=serve(always(Reply("", 503, {"Retry-After": header}))).url + "/{id}")
    with pytest.raises(HttpStatusError) as raised:
        answered(customers, request(), (1,))
    assert retry_after_of(raised.value) == seconds
    assert retry_after_of(pickle.loads(pickle.dumps(raised.value))) == seconds


def test_an_error_shows_what_the_service_said_briefly(serve, connect):
    customers = connect(url=serve(always(Reply({"error": "no\n such  field " + "x" * 900}, 400))).url + "/{id}")
    with pytest.raises(HttpStatusError, match=r'answered 400 Bad Request: {"error": "no.* such field x+…$') as raised:
        answered(customers, request(), (1,))
    assert len(str(raised.value)) < 300


# ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────


def paged(requested):
    """Serve nine rows, four to a page, with every way to tell of the next."""
    url = urlsplit(requested.path)
    page = int(dict(parse_qsl(url.query)).get("page", 1))
    rows = [{"id": 1, "name": f"n{n}", "country": None} for n in range(9)][page * 4 - 4 : page * 4]
    following = f"{url.path}?page={page + 1}" if page < 3 else None
    headers = {"Link": f'<{following}>; rel="next"'} if following else {}
    return Reply({"rows": rows, "next": following, "number": page + 1 if following else ""}, headers=headers)


PAGES = [
    {"pages_next": "link"},
    {"pages_next": "$.next"},
    {"pages_next": "$.number", "pages_parameter": "page"},
    {"pages_parameter": "page"},
]


@pytest.mark.extended
@pytest.mark.parametrize("pages", PAGES, ids=str)
def test_pages(serve, connect, pages):
    server = serve(paged)
    customers = connect(url=server.url + "/{id}", rows="$.rows", **pages)
    assert [name for _, name, _ in answered(customers, request(), (1,))] == [f"n{n}" for n in range(9)]
    assert len(server.requested) == (4 if pages == PAGES[-1] else 3)


@pytest.mark.extended
@pytest.mark.parametrize("pages", PAGES, ids=str)
def test_a_scan_reads_all_pages(serve, connect, pages):
    server = serve(paged)
    options = named(
        {"url": server.url + "/{id}", "scan_url": server.url + "/all?f={columns}", "rows": "$.rows", **pages}
    )
    table = LookupTable("c", CUSTOMERS, {"connector": "http", "lookup.cache": "ALL", **options})
    assert looked_up(table, [1, 2], "name") == [*((1, f"n{n}") for n in range(9)), (2, None)]
    assert server.requested[0].path.startswith("/all?f=id,name")


def test_pages_are_bounded(serve, connect):
    server = serve(lambda requested: Reply({"rows": [{}], "next": requested.path + "a"}))
    customers = connect(
        url=server.url + "/{id}", rows="$.rows", missing__field="null", pages_next="next", pages_max="5"
    )
    with pytest.raises(SourceError, match=r"more than 5 pages(?s:.*)'pages\.max'"):
        answered(customers, request(["id"], []), (1,))
    assert len(server.requested) == 5


def test_the_bytes_of_all_pages_are_bounded(serve, connect):
    page = Reply({"rows": [{"id": 1, "name": "x" * 300, "country": None}], "next": "?page=2"})
    server = serve(always(page, Reply({**page.body, "next": "?page=3"}), Reply({**page.body, "next": None})))
    options = {"url": server.url + "/{id}", "rows": "$.rows", "pages_next": "$.next"}
    assert len(answered(connect(**options, max__bytes="1200"), request(), (1,))) == 3
    server.reply = always(page, Reply({**page.body, "next": "?page=3"}), page)
    with pytest.raises(SourceError, match="more than 1,000 bytes, all pages together"):
        answered(connect(**options, max__bytes="1000"), request(), (1,))


def test_the_next_page_is_never_on_another_host(serve, connect):
    other = serve(always(Reply([])))
    server = serve(always(Reply({"rows": [], "next": other.url})))
    with pytest.raises(SourceError, match="next page on another host"):
        answered(connect(url=server.url + "/{id}", rows="$.rows", pages_next="next"), request(), (1,))
    assert other.requested == []


@pytest.mark.parametrize("rel", ['"next"', "next", '"last NEXT"'])
def test_a_link_may_have_several_relations(serve, connect, rel):
    page = {"id": 1, "name": "ann", "country": None}
    server = serve(
        always(Reply([page], headers={"Link": f"</first>; rel=first, </1?page=2>; rel={rel}"}), Reply([page]))
    )
    assert len(answered(connect(url=server.url + "/{id}", pages_next="link"), request(), (1,))) == 2


@pytest.mark.parametrize("link", ["<http://[1>; rel=prev, </2>; rel=next", "/2; rel=next", '</2; rel="next"'])
def test_rows_behind_a_link_that_cannot_be_read_are_not_lost(serve, connect, link):
    server = serve(always(Reply([{"id": 1, "name": "ann", "country": None}], headers={"Link": link})))
    with pytest.raises(SourceError, match="header 'Link' that cannot be read"):
        answered(connect(url=server.url + "/{id}", pages_next="link"), request(), (1,))
    assert answered(connect(url=server.url + "/{id}"), request(), (1,)) == [(1, "ann", None)]


def test_page_numbers_may_start_at_zero_and_end_with_a_miss(serve, connect):
    server = serve(lambda requested: Reply([PEOPLE[1]]) if requested.path.endswith("page=0") else Reply("", 404))
    customers = connect(url=server.url + "/{id}", pages_parameter="page", pages_first="0")
    assert answered(customers, request(), (1,)) == [(1, "ann", "NL")]
    assert [requested.path for requested in server.requested] == ["/1?page=0", "/1?page=1"]


def test_a_scan_without_its_url(people):
    table = LookupTable("c", CUSTOMERS, {"connector": "http", "url": people.url + "/{id}", "lookup.cache": "ALL"})
    with pytest.raises(ConnectorError, match=r"needs option 'scan\.url'"):
        looked_up(table, [1], "name")


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def files(authority, tmp_path):
    """Paths of the authority's certificate, and of ones it issued to a server, to a server elsewhere, to a client."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("localhost", "elsewhere", "client"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    return tmp_path


@pytest.mark.extended
def test_a_server_of_an_authority_that_is_named(serve, connect, files):
    server = serve(always(Reply(PEOPLE[1])), certificate=files / "localhost.pem")
    for ca in (str(files / "ca.pem"), (files / "ca.pem").read_text()):
        assert answered(connect(url=server.url + "/{id}", tls_ca=ca), request(), (1,)) == [(1, "ann", "NL")]


@pytest.mark.extended
@pytest.mark.parametrize(("certificate", "trusted"), [("localhost", False), ("elsewhere", True)])
def test_a_server_that_is_not_trusted(serve, connect, files, certificate, trusted):
    server = serve(always(Reply(PEOPLE[1])), certificate=files / f"{certificate}.pem")
    customers = connect(url=server.url + "/{id}", **({"tls_ca": str(files / "ca.pem")} if trusted else {}))
    with pytest.raises(OSError, match="certificate verify failed") as raised:
        answered(customers, request(), (1,))
    assert not customers.retryable(raised.value)
    assert server.requested == []


def test_authorities_are_not_loaded_without_tls_options(serve, connect, monkeypatch):
    importlib.import_module("aiohttp")  # It loads them when it is imported.
    server = serve(always(Reply(PEOPLE[1])))
    monkeypatch.setattr(ssl, "create_default_context", None)
    assert answered(connect(url=server.url + "/{id}"), request(), (1,)) == [(1, "ann", "NL")]


@pytest.mark.extended
def test_a_client_certificate(serve, connect, files):
    server = serve(always(Reply(PEOPLE[1])), certificate=files / "localhost.pem", clients_of=files / "ca.pem")
    own = {"url": server.url + "/{id}", "tls_ca": str(files / "ca.pem")}
    assert answered(connect(**own, tls_cert=str(files / "client.pem")), request(), (1,)) == [(1, "ann", "NL")]
    with pytest.raises(Exception, match=r"(?i)certificate required|disconnected|reset|EOF"):
        answered(connect(**own), request(), (1,))


@pytest.mark.parametrize(
    ("option", "text"), [("tls.ca", None), ("tls.ca", "no certificate"), ("tls.certificate", "none")]
)
def test_certificates_that_cannot_be_read(tmp_path, option, text):
    path = tmp_path / "file.pem"
    if text is not None:
        path.write_text(text)
    connector = HttpConnector(parse_ddl(CUSTOMERS), {"url": "https://localhost:1/{id}", option: str(path)})
    with pytest.raises(ConnectorError, match=f"Option '{option}': the certificate cannot be read"):
        connector.open()
    connector.close()


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────

SECRETS = [
    {"token": "hunter2/ü+x"},
    {"user": "ann", "password": "hunter2/ü+x"},
    {"user": "hunter2/ü+x"},
    {"header.X-Thing": "hunter2-thing"},
    {"query.appid": "hunter2/ü+x"},
]


@pytest.mark.extended
@pytest.mark.parametrize("own", SECRETS, ids=lambda own: next(iter(own)))
def test_secrets_are_sent_and_never_shown(serve, own):
    seen = {}

    def echo(requested):
        seen.update(requested.headers, path=requested.path)
        return Reply(f"not for {sorted(requested.headers.items())} at {requested.path}", 400)

    server = serve(echo)
    table = LookupTable("c", CUSTOMERS, {"connector": "http", "url": server.url + "/{id}", **own})
    [secret] = [value for value in own.values() if value != "ann"]
    with pytest.raises(LookupFailedError, match="after 1 attempt") as raised:
        looked_up(table, [1], "name")
    sent = [seen["path"], unquote(seen["path"]), *seen.values()]
    sent += [base64.b64decode(value[6:]).decode() for value in sent if value.startswith("Basic ")]
    assert any(secret.encode("utf-8").decode("latin-1") in value or secret in value for value in sent)
    shown = [str(raised.value), repr(table), repr(table.connector), str(raised.value.__cause__), table.source]
    shown += [line for line in shown for line in [unquote(line)]]
    assert not [text for text in shown if "hunter2" in text or basic_of(own) in text]


def basic_of(own):
    return base64.b64encode(f"{own.get('user', '?')}:{own.get('password', '')}".encode()).decode()


def test_a_parameter_is_sent_with_every_page(serve, connect):
    server = serve(paged)
    customers = connect(url=server.url + "/{id}", rows="$.rows", pages_next="link", query_key="a&b")
    answered(customers, request(), (1,))
    assert [dict(parse_qsl(urlsplit(requested.path).query))["key"] for requested in server.requested] == ["a&b"] * 3


@pytest.mark.parametrize("value", ["hunter2\r\nX-Admin: 1", "hunter2\n", "\0"])
def test_a_header_of_two_lines_is_refused_unseen(value):
    connector = HttpConnector(parse_ddl(CUSTOMERS), {"url": "http://localhost:1/{id}", "header.X-Key": value})
    with pytest.raises(OptionError, match=r"'header\.X-Key'") as raised:
        connector.open()
    assert "hunter2" not in str(raised.value)


def test_no_cookie_is_kept(serve, connect):
    server = serve(always(Reply(PEOPLE[1], headers={"Set-Cookie": "session=1"})))
    answered(connect(url=server.url + "/{id}"), request(), (1,), (1,))
    assert [requested.headers.get("Cookie") for requested in server.requested] == [None, None]


def test_a_reference_is_read_where_the_requests_are_made(serve, monkeypatch, tmp_path):
    server = serve(lambda requested: Reply([PEOPLE[key] for key in requested.body["ids"]]))
    monkeypatch.setenv("API_TOKEN", "hunter2")
    (tmp_path / "body.json").write_text('{"ids": {keys}}\n')
    own = {"url": server.url, "key": "id", "token": "env:API_TOKEN", "body": f"file:{tmp_path}/body.json"}
    table = LookupTable("c", CUSTOMERS, {"connector": "http", **own})
    assert looked_up(table, [1, 3], "name") == [(1, "ann"), (3, "cy")]
    [requested] = server.requested
    assert (requested.headers["Authorization"], requested.body) == ("Bearer hunter2", {"ids": [1, 3]})


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────

URL = "http://localhost:1/{id}"


@pytest.mark.parametrize(
    ("options", "named_"),
    [
        ({}, "needs option 'url'"),
        ({"url": "localhost/{id}"}, "'url' is not a URL"),
        ({"url": "ftp://localhost/{id}"}, "'url' is not a URL"),
        ({"url": "http:///{id}"}, "'url' is not a URL"),
        ({"url": "http://{id}.example/x"}, "'url' has a placeholder in the host"),
        ({"url": "http://localhost:{id}/x"}, "'url' has a placeholder in the host"),
        ({"url": "http://ann:hunter2@localhost/{id}"}, "'url' holds a user or a password"),
        ({"url": URL + "#x"}, "'url' has a '#'"),
        ({"url": "http://localhost/x"}, "Neither 'url' nor 'body' has a placeholder for a key"),
        ({"url": "http://localhost/{idd}"}, "'url' names 'idd'(?s:.*)'id'"),
        ({"url": URL, "body": "{keys"}, "'body' is not JSON"),
        ({"url": URL, "body": '{"a": {nme}}'}, "'body' names 'nme'(?s:.*)'name'"),
        ({"url": URL, "body": "{keys}"}, "option 'key' must name"),
        ({"url": URL, "body": "{keys}", "key": "idd"}, "'key' names 'idd'"),
        ({"url": URL, "key": "id"}, r"'key' is for \{keys\}"),
        ({"url": URL, "rows-per-key": "true"}, r"'rows-per-key' is for \{keys\}"),
        (
            {"url": URL, "body": "{keys}", "key": "id", "rows": "$.a[*].b", "rows-per-key": "true"},
            r"'rows' = '\$.a\[\*\].b' leads to several lists, so that 'rows-per-key' cannot tell",
        ),
        ({"url": URL, "rows": "$..a"}, "'rows' '\\$..a' is no path"),
        ({"url": URL, "field.nam": "a"}, "'field.nam'(?s:.*)'name'"),
        ({"url": URL, "field.name": "a[*]"}, "'field.name' leads to more than one value"),
        ({"url": URL, "missing-field": "no"}, "'missing-field' is 'no'(?s:.*)'fail', 'null'"),
        ({"url": URL, "miss": "404, x"}, "'miss' holds 'x'"),
        ({"url": URL, "miss": "200"}, "'miss' holds '200'"),
        ({"url": URL, "pages.next": "$["}, "'pages.next'"),
        ({"url": URL, "pages.next": "link", "pages.max": "0"}, "'pages.max' is '0'"),
        ({"url": URL, "max-bytes": "many"}, "'max-bytes' is 'many'"),
        ({"url": URL, "tls.ca": "x"}, "'tls.…' are for a 'url' that starts with 'https://'"),
        ({"url": URL, "token": "a", "user": "b"}, "'token' and 'user'"),
        ({"url": URL, "table": "t"}, "no option 'table'"),
        ({"url": URL, "header": "t"}, "no option 'header'(?s:.*)'header"),
        ({"url": URL, "tls.verify": "false"}, "no option 'tls.verify'"),
        ({"url": URL, "scan.url": "http://localhost/{id}"}, "'scan.url' names 'id'"),
    ],
)  # fmt: skip
def test_options_that_are_wrong(options, named_):
    with pytest.raises((OptionError, SchemaError), match=named_) as raised:
        build_connector("http", parse_ddl(CUSTOMERS), options)
    assert "hunter2" not in str(raised.value)


def test_references_are_not_read_on_the_driver():
    connector = build_connector(
        "http", parse_ddl(CUSTOMERS), {"url": "env:URL", "body": "file:/body.json", "key": "id"}
    )
    assert connector.settings["url"] == "env:URL"


def test_without_aiohttp(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConnectorError, match=r"pip install 'lookupcache\[http\]'"):
        build_connector("http", parse_ddl(CUSTOMERS), {"url": URL})


def test_before_open_and_after_close(people):
    customers = HttpConnector(parse_ddl(CUSTOMERS), {"url": people.url + "/people/{id}"})
    customers.close()
    with pytest.raises(ConnectorError, match=r"before open\(\)"):
        answered(customers, request(), (1,))
    customers.open()
    customers.close()
    customers.close()


def test_a_call_is_one_request():
    def most(**own):
        return build_connector("http", parse_ddl(CUSTOMERS), {"url": URL, **own}).batch_max_size

    assert (most(), most(body="{id}"), most(body="{keys}", key="id")) == (1, 1, 1000)


# ── through the core: a service that is slow, fails, hangs, and dies ─────────────────────────────────────────


BOTH = pytest.mark.parametrize("async_", ["true", "false"])


def names_of(service, **options):
    own = {"connector": "http", "url": service.url + "/rows/{id}", "lookup.retry.delay": "1 ms"}
    return LookupTable("c", "id BIGINT, name STRING", {**own, **options})


@pytest.fixture
def names(service):
    """The service, with a name for each of a hundred keys."""
    service.set_rows({key: [{"name": f"n{key}"}] for key in range(100)})
    return service


@pytest.mark.extended
def test_many_requests_are_under_way_at_a_time(names):
    names.hang()
    table = names_of(names, **{"lookup.async.capacity": "20"})
    found = []
    joining = threading.Thread(target=lambda: found.extend(looked_up(table, range(60), "name")))
    joining.start()
    names.wait_open(20)
    names.heal()
    names.release()
    joining.join(LIMIT)
    assert len(found) == 60
    assert names.most_open() == 20


@pytest.mark.extended
@BOTH
@pytest.mark.parametrize(
    "failure",
    [
        lambda names: names.fail(503, times=2),
        lambda names: names.fail(429, retry_after=0, times=1),
        lambda names: names.tear(times=1),
        lambda names: names.slow(0.01),
    ],
    ids=["503", "429", "torn", "slow"],
)
def test_temporary_errors(names, failure, async_):
    failure(names)
    assert looked_up(names_of(names, **{"lookup.async": async_}), [1, 2], "name") == [(1, "n1"), (2, "n2")]


@BOTH
def test_a_wait_that_is_longer_than_the_lookup_may_take(names, async_):
    names.fail(503, retry_after=3600)
    with pytest.raises(LookupFailedError, match="answered 503"):
        looked_up(names_of(names, **{"lookup.async": async_}), [1], "name")
    assert len(names.requests()) == 1


@BOTH
def test_a_service_that_hangs(names, async_):
    names.hang()
    with pytest.raises(LookupTimeoutError):
        looked_up(names_of(names, **{"lookup.async": async_, "lookup.timeout": "200 ms"}), [1], "name")
    names.release()
    names.wait_open(0)


def test_a_fatal_status_is_not_retried_and_may_mark_its_row(names):
    names.fail(400)
    own = {"lookup.on-error": "null", "lookup.error-column": "e"}
    found = looked_up(names_of(names, **own), [1, 2], "name")
    assert [row[:2] for row in found] == [(1, None), (2, None)]
    assert len(names.requests()) == 2


def test_a_batch_by_position(names):
    table = names_of(names, url=names.url + "/rows", body="{keys}", key="id", **{"rows-per-key": "true"})
    assert looked_up(table, [5, 200, 7], "name") == [(5, "n5"), (200, None), (7, "n7")]
    assert [requested.keys for requested in names.requests()] == [[5, 200, 7]]


# ── the whole way, against Spark's own join ──────────────────────────────────────────────────────────────────


class Tables:
    """A service of tables of any types: GET by key columns' values, POST by many keys, or all rows in pages."""

    def __init__(self, serve):
        self.rows, self.keys, self.text = {}, {}, {}
        self.server = serve(self.reply)

    def add(self, table: pa.Table, key: list[str], batch: bool) -> dict[str, str]:
        """Take a table; return the options to look its rows up with."""
        path = f"/{len(self.rows)}"
        self.rows[path] = [json.loads(json.dumps(row, default=spelled)) for row in described(table)]
        self.keys[path] = [
            tuple(map(same, row)) for row in zip(*(table.column(k).to_pylist() for k in key), strict=True)
        ]
        floating = [pa.types.is_floating(table.schema.field(name).type) for name in key]
        self.text[path] = lambda value, n: plain_text(
            float(value) if floating[n] and isinstance(value, Decimal) else value
        )
        url = self.server.url + path
        if batch:
            return {"url": url, "body": "{keys}", "key": ", ".join(key), "scan.url": f"{self.server.url}/all{path}"}
        places = "&".join(f"k{number}={{{name}}}" for number, name in enumerate(key))
        return {"url": f"{url}?{places}", "scan.url": f"{self.server.url}/all{path}"}

    def reply(self, requested: ReceivedRequest) -> Reply:
        url = urlsplit(requested.path)
        path = url.path.removeprefix("/all")
        query, rows = dict(parse_qsl(url.query, keep_blank_values=True)), self.rows[path]
        if "page" in query:
            start = int(query["page"]) * 3 - 3
            return Reply(rows[start : start + 3])
        if path != url.path:
            return Reply(rows)
        keys = [[query[name] for name in sorted(query)]] if requested.body is None else map(values_of, requested.body)
        wanted = {tuple(map(self.text[path], key, range(len(key)))) for key in keys}
        return Reply([row for row, key in zip(rows, self.keys[path], strict=True) if key in wanted])


def values_of(key):
    return list(key.values()) if isinstance(key, dict) else [key]


def described(table):
    """Return rows, their maps as objects."""
    return table.to_pylist(maps_as_pydicts="strict")


def spelled(value):
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else value.isoformat()


def same(value):
    """Return how a key is requested: null never, both zeros alike."""
    return None if value is None else plain_text(value + 0 if isinstance(value, float) else value)


class HttpSuite(ConnectorSuite):
    connector = "http"
    can_scan = True
    batch = False

    @pytest.fixture
    def tables(self, serve):
        return Tables(serve)

    @pytest.fixture
    def load(self, tables):
        return lambda rows, key: tables.add(rows, key, self.batch)

    @pytest.fixture
    def restart(self, tables):
        return tables.server.kill, tables.server.start


class TestHttpByKey(HttpSuite):
    @pytest.mark.nightly
    def test_ten_thousand_keys_in_a_call(self, load):
        """Makes as many requests, which takes half a minute."""
        super().test_ten_thousand_keys_in_a_call(load)


class TestHttpByBatch(HttpSuite):
    batch = True


@pytest.mark.spark
@pytest.mark.nightly(keep_one_in=4)
@pytest.mark.extended(keep_one_in=6)
@pytest.mark.parametrize(("batch", "part"), list(itertools.product([True, False], range(3))))
def test_every_join_is_sparks_own(spark, serve, tmp_path, batch, part):
    from test_properties import Judge, case_of

    tables = Tables(serve)

    class HttpJudge(Judge):
        def lookup_table(self, case):
            own = tables.add(case.right.table(), [case.right.columns[0][0]], batch)
            if dict(case.options).get("lookup.cache") == "ALL":
                own |= {"pages.parameter": "page"}
            return LookupTable("t", case.right.ddl, {"connector": "http", **own, **case.table_options})

    first = 7_000 + 20 * batch + 5 * part
    HttpJudge(spark, tmp_path, every_form=False).check([case_of(number) for number in range(first, first + 5)])


# ── a server that sends two answers to one request ───────────────────────────────────────────────────────────


class TwiceAnswering:
    """Answers each request with the last segment of its path as the name; `answer_again` repeats the last answer."""

    def __init__(self, twice, certificate=None):
        self.twice = twice
        self.connections = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.tls = None
        if certificate is not None:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(certificate)
        host = "127.0.0.1" if certificate is None else "localhost"
        self.url = f"http{'s' * bool(certificate)}://{host}:{self.listener.getsockname()[1]}/{{id}}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with self.listener:
            while True:
                try:
                    connection, _ = self.listener.accept()
                except OSError:
                    return
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        if self.tls is not None:
            # OpenSSL sends two session tickets after the handshake: data on the socket, and no response.
            connection = self.tls.wrap_socket(connection, server_side=True)
        self.connections.append(connection)
        with suppress(ConnectionError), connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                if line.startswith(b"GET "):
                    body = json.dumps({"name": line.split()[1].decode().strip("/")}).encode()
                    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                elif not line.strip():
                    self.answer = answer
                    connection.sendall(answer * (2 if self.twice else 1))

    def answer_again(self):
        self.connections[-1].sendall(self.answer)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def answering(request, connect, files):
    """Return a function that starts such a server, and returns it with a connector to it."""
    started = []

    def start(twice):
        server = TwiceAnswering(twice, files / "localhost.pem" if request.param else None)
        started.append(server)
        trusted = {"tls_ca": str(files / "ca.pem")} if request.param else {}
        return server, connect("id STRING, name STRING", url=server.url, **trusted)

    yield start
    for server in started:
        server.listener.close()


@pytest.mark.parametrize("twice", [True, False], ids=["at once", "later"])
def test_a_second_answer_is_never_that_of_the_next_key(answering, twice):
    server, connector = answering(twice)
    for key in ("a", "b", "c"):
        assert answered(connector, request(columns=["name"]), (key,)) == [(key, key)]
        if not twice:
            server.answer_again()
    assert len(server.connections) == 3


def test_a_connection_with_one_answer_for_each_request_is_reused(answering):
    server, connector = answering(twice=False)
    for key in ("a", "b", "c"):
        assert answered(connector, request(columns=["name"]), (key,)) == [(key, key)]
    assert len(server.connections) == 1
