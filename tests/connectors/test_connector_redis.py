"""The redis connector on real servers: one alone, behind TLS, with a sentinel, in a cluster."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import functools
import itertools
import json
import math
import re
import socket
import threading
import time
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import redis.connection
from connector_calls import keys_of, request, rows_for, scanned, tuples
from drawing import examples
from host_workers import values_of
from hypothesis import given, settings
from hypothesis import strategies as st
from lookupcache_redis.connector import _unique_names
from lookupcache_redis.keys import KeyTemplate
from redis.exceptions import NoPermissionError, RedisClusterException
from servers import RedisCluster, RedisSentinel, RedisServer, TlsRelay, free_port, until

from lookupcache.cache.keys import KeyBatch
from lookupcache.config import LookupConfig
from lookupcache.connector import build_connector
from lookupcache.errors import ConnectorError, LookupCacheError, LookupFailedError, OptionError, PlanError, SourceError
from lookupcache.plan import FieldKey, LookupPlan
from lookupcache.redis.errors import connect_error
from lookupcache.schema import parse_ddl, parse_type, shown_type
from lookupcache.table import LookupTable
from lookupcache.testing import ConnectorSuite
from lookupcache.testing.join import LocalJoin, Wanted
from lookupcache.worker.lookup import lookup_of
from lookupcache.worker.source import Source

UTC = dt.UTC
CUSTOMERS = "id BIGINT, name STRING, country STRING, salary DOUBLE"
HOSTILE = [
    ":",
    "a:b",
    "::",
    "%",
    "%3A",
    "*",
    "[a]",
    "?",
    "\\",
    "{id}",
    "\r\n$1\r\n",
    "\0",
    "é",
    "e\u0301",
    "😀",
    " ",
    "a\n",
]


@pytest.fixture(scope="module")
def server(redis_server):
    return redis_server


@pytest.fixture
def data(server):
    """A client of an empty server."""
    with server.client() as client:
        client.flushall()
        client.config_resetstat()
        yield client


@pytest.fixture
def connect(server):
    """Return a function that opens a connector on the server; all are closed in the end."""
    opened = []

    def connector(schema, **options):
        opened.append(build_connector("redis", parse_ddl(schema), {"url": server.url, **options}))
        opened[-1].open()
        return opened[-1]

    yield connector
    for one in opened:
        one.close()


@pytest.fixture
def shop(data):
    """Three customers; the last is nothing but a country."""
    data.hset("customer:1", mapping={"name": "ann", "country": "NL", "salary": "10.5"})
    data.hset("customer:2", mapping={"name": "bob", "salary": "20"})
    data.hset("customer:3", mapping={"country": "NL"})
    return data


def calls(data):
    """Return how often each command that reads was called."""
    stats = data.info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items() if name[8:] in READS}


READS = ("hmget", "hgetall", "hget", "get", "mget", "type", "exists")


# ── looking up ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hash_without_the_requested_fields_is_a_row_of_nulls(shop, connect):
    customers = connect(CUSTOMERS, key="customer:{id}")
    assert rows_for(customers, request(["id"], ["name", "salary"]), (3,), (4,)) == [(3, None, None)]


def test_only_the_requested_fields_are_fetched_once_per_key(shop, connect):
    customers = connect(CUSTOMERS, key="customer:{id}")
    rows_for(customers, request(["id"], ["name"]), (1,), (2,))
    assert calls(shop) == {"hmget": 2}


def test_the_columns_read_do_not_decide_if_a_hash_is_a_row(shop, connect):
    shop.hset("customer:8", "salary", "7.5")
    customers = connect("id BIGINT, name STRING NOT NULL, salary DOUBLE", key="customer:{id}")
    for columns in ([], ["name"], ["salary"], ["name", "salary"]):
        found = rows_for(customers, request(["id"], columns), (1,), (8,), (9,))
        assert [row[0] for row in found] == [1, 8]


@pytest.mark.parametrize("kind", ["string", "json"])
def test_a_key_of_another_type_is_an_error_in_any_call(data, connect, kind):
    data.set("n:1", '{"square": 1}' if kind == "json" else "1")
    data.hset("n:7", "square", "49")
    squares = connect("n INT, square BIGINT", key="n:{n}", type=kind)
    wanted = request(["n"], ["square"])
    assert rows_for(squares, wanted, (1,), (99,)) == [(1, 1)]
    for keys in ([(7,)], [(1,), (7,)], [(n,) for n in range(1000, 1200)] + [(7,)]):
        with pytest.raises(SourceError, match="key 'n:7' holds a hash, not a string"):
            rows_for(squares, wanted, *keys)


@pytest.mark.extended
def test_connecting_to_a_silent_server_times_out():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"url": f"redis://127.0.0.1:{silent.getsockname()[1]}", "key": "c:{id}", "connect.timeout": "1"}
        connector = build_connector("redis", parse_ddl(CUSTOMERS), options)
        started = time.monotonic()
        with pytest.raises(Exception, match=r"(?i)time") as raised:
            connector.open()
        assert connector.retryable(raised.value)
        assert time.monotonic() - started < 20


def test_a_right_that_a_user_of_a_cluster_lacks_is_named():
    error = RedisClusterException("Cluster mode is not enabled on this node")
    error.__cause__ = NoPermissionError("this user has no permissions to run the 'cluster|slots' command")
    assert "rejects a command: this user has no permissions" in str(connect_error(error, "redis+cluster://h"))
    error.__cause__ = None
    assert "is not part of a cluster" in str(connect_error(error, "redis+cluster://h"))


@pytest.mark.extended
@pytest.mark.parametrize("parser", ["_HiredisParser", "_RESP2Parser"])
def test_a_reply_may_take_longer_than_it_takes_to_connect(data, server, parser, monkeypatch):
    set_parser, wanted = redis.connection.AbstractConnection.set_parser, getattr(redis._parsers, parser)
    monkeypatch.setattr(redis.connection.AbstractConnection, "set_parser", lambda self, _: set_parser(self, wanted))
    data.set("n:1", "1")
    options = {"url": server.url, "key": "n:{n}", "type": "string", "connect.timeout": "0.5"}
    connector = build_connector("redis", parse_ddl("n INT, square BIGINT"), options)
    connector.open()
    try:
        for _ in range(2):
            data.client_pause(1_200)
            assert rows_for(connector, request(["n"], ["square"]), (1,)) == [(1, 1)]
    finally:
        connector.close()


def test_strings_are_fetched_by_one_command(data, connect):
    data.mset({f"n:{n}": n * n for n in range(2_000)})
    squares = connect("n INT, square BIGINT", key="n:{n}", type="string")
    found = rows_for(squares, request(["n"], ["square"]), *((n,) for n in range(2_000)))
    assert found == tuples(pa.table({"n": range(2_000), "square": [n * n for n in range(2_000)]}))
    assert calls(data) == {"mget": 1}


def test_members_of_json_objects(data, connect):
    data.set("c:1", '{"name": "ann", "tags": ["a", null], "at": {"zip": 7, "city": "x"}, "more": 1}')
    data.set("c:2", "{}")
    customers = connect(
        "id INT, name STRING, tags ARRAY<STRING>, at STRUCT<zip: INT, no: INT>", key="c:{id}", type="json"
    )
    found = rows_for(customers, request(["id"], ["name", "tags", "at"]), (1,), (2,), (3,))
    assert found == [(1, "ann", ["a", None], {"zip": 7, "no": None}), (2, None, None, None)]


def test_composite_keys_and_constants_among_them(data, connect):
    for origin, hour in itertools.product(["JFK", "LGA"], [5, 6]):
        data.hset(f"w:{origin}:{hour}:now", "temp", f"{hour}.5")
    weather = connect("hour INT, origin STRING, temp DOUBLE", key="w:{origin}:{hour}:now")
    found = rows_for(weather, request(["origin", "hour"], ["temp"]), ("JFK", 5), ("LGA", 6), ("LGA", 7))
    assert found == [("JFK", 5, 5.5), ("LGA", 6, 6.5)]
    constant = request(["hour"], ["origin", "temp"], constants={"origin": "LGA"})
    assert rows_for(weather, constant, (5,), (9,)) == [(5, "LGA", 5.5)]


def test_a_join_without_all_key_columns(shop, connect):
    weather = connect("origin STRING, hour INT, temp DOUBLE", key="w:{origin}:{hour}")
    with pytest.raises(PlanError, match=r"'t'.*'w:{origin}:{hour}'.*no 'hour'(?s:.*)origin, hour"):
        rows_for(weather, request(["origin"], ["temp"]), ("JFK",))


def test_keys_that_expire(shop, connect):
    customers = connect(CUSTOMERS, key="customer:{id}")
    shop.pexpire("customer:1", 1)
    until(lambda: not shop.exists("customer:1"))
    assert rows_for(customers, request(["id"], ["name"]), (1,), (2,)) == [(2, "bob")]


def test_another_database_by_the_url(server, shop, connect):
    shop.execute_command("SELECT", 3)
    shop.hset("customer:1", "name", "other")
    for url in (f"{server.url}/3", f"{server.url}?db=3"):
        assert rows_for(connect(CUSTOMERS, url=url, key="customer:{id}"), request(["id"], ["name"]), (1,)) == [
            (1, "other")
        ]


# ── the whole table ──────────────────────────────────────────────────────────────────────────────────────────


def test_scan_finds_each_row_and_nothing_else(shop, connect, monkeypatch):
    monkeypatch.setattr("lookupcache_redis.connector.SCAN_KEYS", 2)
    for other in ("customer:07", "customer:1:orders", "customer:x", "customers:1", "customer:", "Customer:1"):
        shop.hset(other, "name", "no")
    shop.set("customer:8", "a string")
    customers = connect(CUSTOMERS, key="customer:{id}")
    assert scanned(customers, request(["id"], ["name"])) == [(1, "ann"), (2, "bob"), (3, None)]
    assert scanned(customers, request(["id"])) == [(1,), (2,), (3,)]


@pytest.mark.extended
def test_scan_of_a_growing_table_has_no_row_twice(data, connect, monkeypatch):
    monkeypatch.setattr("lookupcache_redis.connector.SCAN_KEYS", 10)
    data.mset({f"n:{n}": n for n in range(500)})
    batches = connect("n INT, v INT", key="n:{n}", type="string").scan(request(["n"], ["v"]))
    found = next(batches).column("n").to_pylist()
    data.mset({f"n:{n}": n for n in range(500, 20_000)})
    found += [n for batch in batches for n in batch.column("n").to_pylist()]
    assert len(found) == len(set(found))
    assert set(found) >= set(range(500))


def test_a_name_that_scan_returns_twice():
    assert list(_unique_names([b"a", b"b", b"a"])) == [b"a", b"b"]


def test_scan_asks_only_for_names_with_the_constants(data, connect):
    for origin, hour in itertools.product(["J*", "JFK"], [5, 6]):
        data.set(f"w[{origin}]{hour}", "1")
    weather = connect("origin STRING, hour INT, v INT", key="w[{origin}]{hour}", type="string")
    wanted = request(["hour"], ["origin", "v"], constants={"origin": "J*"})
    assert scanned(weather, wanted) == [(5, "J*", 1), (6, "J*", 1)]
    assert calls(data) == {"mget": 1}


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────


def moment(text):
    return dt.datetime.fromisoformat(text).replace(tzinfo=UTC)


# Type, value, its text in a name.
TEXTS = [
    ("TINYINT", -7, "-7"), ("BIGINT", 2**63 - 1, str(2**63 - 1)), ("BOOLEAN", True, "true"),
    ("STRING", "a b:c", "a b:c"),
    ("STRING", "", ""), ("BINARY", b"\xff\0", b"\xff\0"), ("DATE", dt.date(1, 1, 3), "0001-01-03"),
    ("DECIMAL(4,2)", Decimal("1.50"), "1.50"),
    ("DECIMAL(38,18)", Decimal("0.000000000000000001"), "0.000000000000000001"),
    ("TIMESTAMP", moment("2013-01-01T05:00:00"), "2013-01-01T05:00:00Z"),
    ("TIMESTAMP", moment("2013-01-01T05:00:00.000120"), "2013-01-01T05:00:00.000120Z"),
    ("TIMESTAMP_NTZ", dt.datetime(9999, 12, 31, 23), "9999-12-31T23:00:00"),
    ("DOUBLE", 0.1, "0.1"), ("DOUBLE", 1e300, "1e+300"), ("DOUBLE", math.inf, "inf"),
    ("FLOAT", 16777216.0, "16777216.0"),
    ("FLOAT", 1.5, "1.5"),
]  # fmt: skip


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize(("type_", "value", "text"), TEXTS, ids=lambda part: str(part)[:20])
def test_the_text_of_a_key(data, connect, type_, value, text):
    name = b"k:" + (text if isinstance(text, bytes) else text.encode())
    data.set(name, "found")
    table = connect(f"k {type_}, v STRING", key="k:{k}", type="string")
    assert rows_for(table, request(["k"], ["v"]), (value,)) == [(value, "found")]
    assert scanned(table, request(["k"], ["v"])) == [(value, "found")]


@pytest.mark.parametrize("escape", ["none", "percent"])
def test_hostile_keys_and_values(data, connect, escape):
    table = connect("a STRING, v STRING", key="h*[:{a}:]", escape=escape)
    for text, name in zip(HOSTILE, table.template.names({"a": pa.array(HOSTILE)}), strict=True):
        data.hset(name, "v", text)
    rows = sorted(((text, text) for text in HOSTILE), key=repr)
    assert rows_for(table, request(["a"], ["v"]), *((text,) for text in HOSTILE)) == rows
    assert scanned(table, request(["a"], ["v"])) == rows


TEMPLATES = ["{a}:{b}", "{a}::{b}", "x{a}aba{b}y", "{a}{{{b}}}"]
SEPARATORS = st.text("-._~:/aF0%", min_size=1, max_size=3)
separated = SEPARATORS.map("w{0}{{a}}{0}{{b}}{0}1".format) | st.sampled_from(TEMPLATES)
texts = st.text(alphabet="ab:{}%y-._~F0", max_size=5) | st.sampled_from(HOSTILE)
dates = st.dates(dt.date(1, 1, 1))
KEYS = {
    "STRING": texts, "BINARY": texts.map(str.encode), "BIGINT": st.integers(-200, 200), "DATE": dates,
    "DECIMAL(4,2)": st.decimals(-99, 99, places=2), "BOOLEAN": st.booleans(),
    "DOUBLE": st.floats(-1e300, 1e300).map(lambda value: value + 0.0),
    "TIMESTAMP_NTZ": st.datetimes(dt.datetime(1, 1, 1)),
}  # fmt: skip


@st.composite
def templates(draw):
    """Draw a template that is not refused, and distinct keys of its types."""
    types = draw(st.sampled_from(sorted(KEYS))), draw(st.sampled_from(sorted(KEYS)))
    schema = parse_ddl(f"a {types[0]}, b {types[1]}")
    keys = draw(st.lists(st.tuples(KEYS[types[0]], KEYS[types[1]]), max_size=8, unique_by=repr))
    escaped, text = draw(st.booleans()), draw(separated)
    try:
        return KeyTemplate.parse(text, schema, escaped=escaped), keys
    except OptionError:
        # With escapes, only what escapes themselves are made of cannot separate.
        assert not escaped or re.fullmatch(r"w(?P<s>[%0F]+)\{a\}(?P=s)\{b\}(?P=s)1", text)
        return None, keys


def columns_of(template, keys):
    columns = list(zip(*keys, strict=True)) or [(), ()]
    return {field.name: pa.array(values, field.type) for field, values in zip(template.fields, columns, strict=True)}


@pytest.mark.extended
@settings(max_examples=examples(500), deadline=None)
@given(templates())
def test_names_are_unique_per_key_and_are_read_back_as_keys(drawn):
    template, keys = drawn
    if template is None:
        return
    names = template.names(columns_of(template, keys))
    named = [(key, name) for key, name in zip(keys, names, strict=True) if name is not None]
    assert len({name for _, name in named}) == len(named)
    assert tuples(template.read([name for _, name in named])) == sorted((key for key, _ in named), key=repr)
    assert len(named) == len(keys) or not template.escaped


@pytest.mark.extended
@pytest.mark.parametrize("separator", [*"-._~:/x", "--", "-.", "ab", "0-"])
def test_escaped_values_may_contain_any_separator(data, connect, separator):
    keys = [(f"u{separator}v", 1), (f"{separator}", -2), ("plain", 3), ("%2D", 4), (separator * 2 + "é", 5)]
    table = connect("a STRING, b INT, v STRING", key=f"w{separator}{{a}}{separator}{{b}}", escape="percent")
    for name, key in zip(table.template.names(columns_of(table.template, keys)), keys, strict=True):
        data.hset(name, "v", str(key))
    expected = sorted(((*key, str(key)) for key in keys), key=repr)
    assert rows_for(table, request(["a", "b"], ["v"]), *keys) == scanned(table, request(["a", "b"], ["v"])) == expected


def test_values_are_percent_encoded_only_where_it_is_needed():
    template = KeyTemplate.parse("w-{a}--{b}", parse_ddl("a STRING, b STRING"), escaped=True)
    keys = [("p-q", "r-s"), ("p--q", "r--s"), ("p-", "r:s")]
    assert template.names(columns_of(template, keys)) == [b"w-p-q--r-s", b"w-p%2D%2Dq--r--s", b"w-p%2D--r%3As"]


def test_a_value_with_the_separator_has_rows_only_if_escaped(data, connect):
    data.set("w:a:b:c", "1")
    plain = connect("a STRING, b STRING, v INT", key="w:{a}:{b}", type="string")
    both = [("a", "b:c"), ("a:b", "c")]
    assert rows_for(plain, request(["a", "b"], ["v"]), *both) == [("a", "b:c", 1)]
    escaped = connect("a STRING, b STRING, v INT", key="w:{a}:{b}", type="string", escape="percent")
    data.set("w:a%3Ab:c", "2")
    assert rows_for(escaped, request(["a", "b"], ["v"]), *both) == [("a:b", "c", 2)]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("customer", "names no column"), ("{id}{name}", "'id'.*ends"), ("{id}-{name}", r"'id' \(BIGINT\) ends"),
        ("{at}:{id}", "'at'.*ends"), ("{id}:{id}", "twice"), ("{nme}", "no column 'nme'(?s:.*)'name'"), ("{id", "'}'"),
        ("{id!r}", "more in braces"), ("{}", "more in braces"), ("{id:>5}", "more in braces"),
        ("{tags}", "ARRAY<STRING>"),
    ],
)  # fmt: skip
def test_templates_that_are_refused(key, reason):
    schema = parse_ddl("id BIGINT, name STRING, at TIMESTAMP, tags ARRAY<STRING>, v INT")
    with pytest.raises(OptionError, match=f"'key'.*{reason}"):
        build_connector("redis", schema, {"url": "redis://h", "key": key})


def test_escaped_values_may_precede_separators_that_they_contain(data, connect):
    table = connect("at TIMESTAMP, id INT, v INT", key="{at}:{id}", escape="percent", type="string")
    data.set("2013-01-01T05%3A00%3A00Z:7", "1")
    key = (moment("2013-01-01T05:00:00"), 7)
    assert (
        rows_for(table, request(["at", "id"], ["v"]), key)
        == scanned(table, request(["at", "id"], ["v"]))
        == [(*key, 1)]
    )


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────

# Type, text in a field or a string, JSON, value.
VALUES = [
    ("TINYINT", "-128", -128, -128), ("INT", "007", 7.0, 7), ("BIGINT", str(2**63 - 1), 2**63 - 1, 2**63 - 1),
    ("FLOAT", "0.1", 0.1, 0.10000000149011612), ("DOUBLE", "1e3", 1000, 1000.0), ("DOUBLE", "NaN", "NaN", math.nan),
    ("DOUBLE", "-Infinity", "-Infinity", -math.inf), ("DOUBLE", "-0.0", -0.0, -0.0),
    ("BOOLEAN", "true", True, True), ("BOOLEAN", "0", False, False), ("BOOLEAN", "False", False, False),
    ("STRING", "", "", ""), *(("STRING", text, text, text) for text in HOSTILE),
    ("BINARY", b"\xff\0", "/wA=", b"\xff\0"), ("DECIMAL(4,2)", "1.5", 1.5, Decimal("1.50")),
    ("DECIMAL(20,2)", "123456789012345678.9", "123456789012345678.9", Decimal("123456789012345678.90")),
    ("DATE", "9999-12-31", "9999-12-31", dt.date(9999, 12, 31)),
    ("TIMESTAMP", "2013-01-01 05:00:00", "2013-01-01T05:00:00", moment("2013-01-01T05:00:00")),
    ("TIMESTAMP", "2013-01-01T05:00:00.5-05:00", "2013-01-01T05:00:00.5-05:00", moment("2013-01-01T10:00:00.500000")),
    ("TIMESTAMP_NTZ", "0001-01-01T00:00:00", "0001-01-01T00:00:00", dt.datetime(1, 1, 1)),
    ("ARRAY<DECIMAL(4,2)>", "[1.50, null]", [1.5, None], [Decimal("1.50"), None]),
    ("MAP<INT, STRUCT<d: DATE>>", '{"1": {"d": "2020-01-01"}}', {"1": {"d": "2020-01-01"}},
     [(1, {"d": dt.date(2020, 1, 1)})]),
    ("STRUCT<a: ARRAY<INT>, b: BINARY>", '{"a": [1], "b": "AA=="}', {"a": [1], "b": "AA=="}, {"a": [1], "b": b"\0"}),
]  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize(("type_", "text", "in_json", "value"), VALUES, ids=lambda part: str(part)[:20])
def test_values_of_every_type(data, connect, type_, text, in_json, value):
    data.hset("h:1", "v", text)
    data.set("s:1", text)
    data.set("j:1", json.dumps({"v": in_json}))
    schema, wanted = f"k INT, v {type_}", request(["k"], ["v"])
    for key, kind in (("h:{k}", "hash"), ("s:{k}", "string"), ("j:{k}", "json")):
        table = connect(schema, key=key, type=kind)
        found = table.lookup(wanted, keys_of(table, "k", (1,))).column("v")
        assert found.type == parse_type(type_)
        assert repr(found.to_pylist()) == repr(pa.array([value], found.type).to_pylist())


# Type, a text that is no value of it, JSON that is no value of it.
MISFITS = [
    ("INT", "12.5", 12.5), ("INT", "0x1F", "0x1F"), ("TINYINT", "128", 128), ("INT", "", True),
    ("DOUBLE", "secret", "secret"),
    ("FLOAT", "1e39", 1e39), ("BOOLEAN", "yes", 1), ("STRING", b"\xff", 7), ("DECIMAL(4,2)", "1.555", 1.555),
    ("DATE", "2020-02-30", "2020-02-30"), ("TIMESTAMP", "1357016400", 1357016400), ("BINARY", None, "not base64!"),
    ("TIMESTAMP_NTZ", "2013-01-01T05:00:00Z", "2013-01-01T05:00:00Z"), ("ARRAY<INT>", "[1, \"a\"]", [1, "a"]),
    ("STRUCT<a: INT>", "[]", []), ("MAP<INT, INT>", '{"a": 1}', {"a": 1}), ("ARRAY<INT>", "[" * 100_000, {}),
]  # fmt: skip


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize(("type_", "text", "in_json"), MISFITS, ids=lambda part: str(part)[:20])
def test_values_that_do_not_fit_are_named_but_not_shown(data, connect, type_, text, in_json):
    for n in range(3):
        data.hset(f"h:{n}", "other", "x")
        data.set(f"j:{n}", "{}")
    data.set("j:1", json.dumps({"v": in_json}))
    cases = [("j:{k}", "json", "member 'v'")]
    if text is not None:
        data.hset("h:1", "v", text)
        data.set("s:1", text)
        cases += [("h:{k}", "hash", "field 'v'"), ("s:{k}", "string", "its value")]
    for key, kind, named in cases:
        table = connect(f"k INT, v {type_}", key=key, type=kind)
        with pytest.raises(SourceError) as raised:
            rows_for(table, request(["k"], ["v"]), (0,), (1,), (2,))
        shown = shown_type(parse_type(type_))
        assert raised.value.fact == f"Table 't', key '{key[0]}:1': {named} is no {shown}."
        assert raised.value.__cause__ is None


@pytest.mark.parametrize("text", ["", "[1]", "null", "{", "{'a': 1}", b"\xff", "7", "[" * 100_000])
def test_values_that_are_no_json_objects(data, connect, text):
    data.set("j:1", text)
    with pytest.raises(SourceError, match="key 'j:1': its value is no JSON object"):
        rows_for(connect("k INT, v INT", key="j:{k}", type="json"), request(["k"], ["v"]), (1,))


def test_names_that_may_be_secrets_are_not_shown(data, connect):
    data.hset("session:hunter2", "user", "not a number")
    sessions = connect("token STRING, user BIGINT", key="session:{token}")
    with pytest.raises(SourceError, match=r"a key 'session:{token}': field 'user'") as raised:
        rows_for(sessions, request(["token"], ["user"]), ("hunter2",))
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(("kind", "columns"), [("hash", ["v"]), ("hash", []), ("string", ["v"]), ("json", ["v"])])
def test_keys_of_another_type(data, connect, kind, columns):
    data.rpush("k:1", "a")
    with pytest.raises(SourceError, match=r"key 'k:1' holds .*, not a (hash|string)\.(?s:.*)'type'"):
        rows_for(connect("k INT, v INT", key="k:{k}", type=kind), request(["k"], columns), (1,), (2,))


# ── what is wrong is said ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url",
    ["", "db:6379", "http://h", "redis://", "redis://h:port", "redis://h/name", "redis://h,i/0", "redis+sentinel://h",
     "redis+cluster://h/1", "redis://u:pw@h?ssl_cert_reqs=none", "unix+cluster:///s", "redis://:pw@h/0/1",
     "unix://run/redis.sock", "unix://ann:pw@run/redis.sock", "unix:run/redis.sock"],
)  # fmt: skip
def test_urls_that_are_refused(url):
    with pytest.raises(OptionError, match="'url'") as raised:
        build_connector("redis", parse_ddl(CUSTOMERS), {"url": url, "key": "c:{id}"})
    assert "pw" not in str(raised.value)


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel", "redis+cluster"])
@pytest.mark.parametrize("mark", "/#?[")
def test_a_password_that_is_not_escaped_is_in_no_error(scheme, mark):
    """Python takes its first part for the port, and quotes it."""
    url = f"{scheme}://ann:kx7sec{mark}kx8sec@h:6379/0"
    with pytest.raises(OptionError, match="'url'") as raised:
        build_connector("redis", parse_ddl(CUSTOMERS), {"url": url, "key": "c:{id}"})
    assert "sec" not in str(raised.value)
    assert mark == "[" or "%2F" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"type": "list"}, "'type'"), ({"push": "yes"}, "'push'"), ({"escape": "all"}, "'escape'"),
        ({"tls.ca": "x"}, "'tls.ca'"),
        ({"type": "string"}, "'type' = 'string'"), ({"push": "true", "url": "redis+cluster://h"}, "'push'"),
        ({"url": "rediss://h", "tls.verify": "some"}, "'tls.mode'"), ({"tabel": "x"}, "'tabel'"),
        ({"key": ""}, "'key'"),
    ],
)  # fmt: skip
def test_options_that_are_refused(options, named):
    with pytest.raises(OptionError, match=named):
        build_connector("redis", parse_ddl(CUSTOMERS), {"url": "redis://h", "key": "c:{id}", **options})


def test_a_missing_driver_is_named_on_the_driver(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConnectorError, match=r"pip install 'lookupcache\[redis\]'"):
        build_connector("redis", parse_ddl(CUSTOMERS), {"url": "redis://h", "key": "c:{id}"})


def test_references_are_taken_as_they_are_on_the_driver():
    reference = build_connector("redis", parse_ddl(CUSTOMERS), {"url": "env:SHOP_REDIS", "key": "c:{id}"})
    assert repr(reference) == "RedisConnector({'url': 'env:SHOP_REDIS', 'key': 'c:{id}'})"


def lookup(connector, columns=("name",), **config):
    """Return what a join uses: cache, retries and the connector, without Spark."""
    given = LookupConfig(**{"cache": "LRU", "max_rows": 1_000, "retry_delay": 0.05, "max_retries": 0, **config})
    plan = LookupPlan(
        table="t", connector="redis", source="-", schema=connector.schema, how="left", config=given,
        keys=tuple(FieldKey(column=name, sql="") for name in connector.template.columns), columns=tuple(columns),
        left_columns=connector.template.columns,
    )  # fmt: skip
    return lookup_of(Source(plan, connector))


def found(through, *keys):
    """Return what a lookup by one key column finds for each key."""
    type_ = through.source.reader.key_types[0]
    wanted = through.find(KeyBatch.of([pa.array(keys, type_)], [type_]))
    values = values_of(wanted)
    through.close(wanted)
    return values


def test_a_server_that_is_not_there():
    url = f"redis://u:hunter2@127.0.0.1:{free_port()}"
    through = lookup(build_connector("redis", parse_ddl(CUSTOMERS), {"url": url, "key": "c:{id}"}), max_retries=1)
    with pytest.raises(LookupFailedError, match="after 2 attempts: ConnectionError: Error 111 connecting") as raised:
        found(through, 1)
    assert "hunter2" not in str(raised.value)


@pytest.fixture(scope="module")
def guarded():
    started = RedisServer("--requirepass", "hunter2").start()
    with started.client(password="hunter2") as client:
        client.hset("c:1", "name", "ann")
        client.acl_setuser("reader", enabled=True, passwords=["+s3same"], keys=["c:*"], commands=["+hmget"])
    yield started
    started.close()


@pytest.mark.parametrize("options", [{}, {"password": "wr0ng"}, {"username": "nobody", "password": "hunter2"}])
def test_a_server_that_refuses_us(guarded, options):
    connector = build_connector("redis", parse_ddl(CUSTOMERS), {"url": guarded.url, "key": "c:{id}", **options})
    with pytest.raises(ConnectorError, match=r"rejects the login(?s:.*)'user' and 'password'") as raised:
        found(lookup(connector, max_retries=3), 1)
    assert "wr0ng" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("userinfo", "options"),
    [
        (":hunter2@", {}),
        ("", {"password": "hunter2"}),
        ("reader:s3same@", {}),
        ("", {"username": "reader", "password": "s3same"}),
    ],
)
def test_logging_in(guarded, userinfo, options):
    url = guarded.url.replace("://", f"://{userinfo}")
    connector = build_connector("redis", parse_ddl(CUSTOMERS), {"url": url, "key": "c:{id}", **options})
    assert found(lookup(connector), 1) == ["ann"]
    assert "hunter2" not in repr(connector) + repr(
        LookupTable("t", CUSTOMERS, {"connector": "redis", **connector.settings})
    )
    assert "s3same" not in repr(connector)


def test_missing_permissions_are_not_retried(guarded):
    url = guarded.url.replace("://", "://reader:s3same@")
    through = lookup(build_connector("redis", parse_ddl(CUSTOMERS), {"url": url, "key": "d:{id}"}), max_retries=3)
    with pytest.raises(LookupFailedError, match="after 1 attempt: NoPermissionError"):
        found(through, 1)


def test_a_database_that_the_server_does_not_have(server, connect):
    with pytest.raises(ConnectorError, match=r"'url'.*DB index"):
        connect(CUSTOMERS, url=f"{server.url}/99", key="c:{id}")


def test_a_server_of_another_kind(connect):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        connector = build_connector("redis", parse_ddl(CUSTOMERS), {"url": url, "key": "c:{id}"})

        def greet():
            client, _ = listener.accept()
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            client.close()

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(ConnectorError, match="does not speak the Redis protocol"):
            connector.open()


# ── its life ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_closed_twice_opened_again_and_used_before_open(shop, connect):
    customers = connect(CUSTOMERS, key="customer:{id}")
    customers.close()
    customers.close()
    with pytest.raises(ConnectorError, match="open"):
        rows_for(customers, request(["id"]), (1,))
    customers.open()
    assert rows_for(customers, request(["id"]), (1,)) == [(1,)]


def test_which_errors_pass(server):
    from redis import exceptions as known
    from redis._parsers.base import BaseParser

    connector = build_connector("redis", parse_ddl(CUSTOMERS), {"url": server.url, "key": "c:{id}"})
    said = [
        "LOADING x",
        "READONLY x",
        "MOVED 1 h:1",
        "ASK 1 h:1",
        "TRYAGAIN x",
        "CLUSTERDOWN x",
        "MASTERDOWN x",
        "BUSY x",
    ]
    said += ["ERR max number of clients reached"]
    passing = [known.ConnectionError("x"), known.TimeoutError("x"), OSError("x"), *map(BaseParser.parse_error, said)]
    assert [error for error in passing if not connector.retryable(error)] == []
    said = ["WRONGTYPE x", "NOAUTH x", "WRONGPASS x", "NOPERM x", "ERR unknown command", "NOSCRIPT x"]
    lasting = [known.AuthenticationError("x"), known.DataError("x"), TypeError("x"), LookupCacheError("x")]
    assert [error for error in [*lasting, *map(BaseParser.parse_error, said)] if connector.retryable(error)] == []


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def relay(server, authority):
    started = []

    def start(certificate="server.pem", **how):
        started.append(TlsRelay(server.port, authority / certificate, **how))
        return f"rediss://127.0.0.1:{started[-1].port}"

    yield start
    for one in started:
        one.close()


@pytest.mark.extended
def test_over_tls(shop, relay, authority):
    client = authority / "client.pem"
    url = relay(clients_of=authority / "ca.pem")
    options = {"url": url, "key": "customer:{id}", "push": "true", "tls.ca": str(authority / "ca.pem")}
    options |= {"tls.certificate": str(client), "tls.key": str(client)}
    through = lookup(build_connector("redis", parse_ddl(CUSTOMERS), options))
    assert found(through, 1, 9) == ["ann", None]
    through.source.close()


@pytest.mark.parametrize(("certificate", "trusted"), [("server.pem", False), ("elsewhere.pem", True)])
def test_a_certificate_that_is_not_trusted(shop, relay, authority, certificate, trusted):
    options = {"url": relay(certificate), "key": "customer:{id}"} | (
        {"tls.ca": str(authority / "ca.pem")} if trusted else {}
    )
    with pytest.raises(ConnectorError, match=r"certificate is not trusted(?s:.*)'tls.ca'"):
        found(lookup(build_connector("redis", parse_ddl(CUSTOMERS), options), max_retries=3), 1)
    unchecked = build_connector("redis", parse_ddl(CUSTOMERS), options | {"tls.mode": "require"})
    through = lookup(unchecked)
    assert found(through, 1) == ["ann"]
    through.source.close()


# ── clusters and sentinels ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cluster():
    started = RedisCluster().start()
    yield started
    started.close()


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["hash", "string", "json"])
def test_a_cluster(cluster, kind):
    with cluster.client() as client:
        client.flushall(target_nodes=client.ALL_NODES)
        for n in range(200):
            {
                "hash": lambda n: client.hset(f"k:{n}", mapping={"v": n} if n % 3 else {"other": 1}),
                "string": lambda n: client.set(f"k:{n}", n),
                "json": lambda n: client.set(f"k:{n}", json.dumps({"v": n} if n % 3 else {})),
            }[kind](n)
    table = build_connector("redis", parse_ddl("n INT, v BIGINT"), {"url": cluster.url, "key": "k:{n}", "type": kind})
    table.open()
    rows = sorted(((n, n if n % 3 or kind == "string" else None) for n in range(200)), key=repr)
    assert rows_for(table, request(["n"], ["v"]), *((n,) for n in range(300))) == rows
    assert rows_for(table, request(["n"]), *((n,) for n in range(300))) == sorted(((n,) for n in range(200)), key=repr)
    assert scanned(table, request(["n"], ["v"])) == rows
    table.close()


@pytest.mark.parametrize("async_", [False, True])
def test_a_key_that_moves_to_another_server_of_its_cluster(cluster, async_):
    with cluster.client() as client:
        client.hset("m:1", "v", 7)
        slot = client.keyslot("m:1")
        owner = client.get_node_from_key("m:1").port
    through = lookup(build_connector("redis", parse_ddl("n INT, v INT"), {"url": cluster.url, "key": "m:{n}"}), ["v"],
                     async_=async_, max_retries=3, cache="NONE", max_rows=None)  # fmt: skip
    assert found(through, 1, 2) == [7, None]
    cluster.move(slot, owner, [b"m:1"])
    assert found(through, 1, 2) == [7, None]
    through.source.close()


def test_a_key_of_another_type_in_a_cluster(cluster):
    with cluster.client() as client:
        client.rpush("list:1", "a")
    table = build_connector("redis", parse_ddl("n INT, v BIGINT"), {"url": cluster.url, "key": "list:{n}"})
    with pytest.raises(SourceError, match="'list:1' holds something else"):
        found(lookup(table, ["v"]), 0, 1, 2)


def test_the_wrong_kind_of_url_for_a_cluster_or_a_server(cluster, server, connect):
    single = connect("n INT, v BIGINT", url=cluster.servers[0].url, key="k:{n}")
    with pytest.raises(ConnectorError, match=r"part of a cluster(?s:.*)redis\+cluster://"):
        rows_for(single, request(["n"], ["v"]), *((n,) for n in range(100)))
    with pytest.raises(ConnectorError, match=r"not part of a cluster(?s:.*)redis://"):
        connect("n INT, v BIGINT", url=server.url.replace("redis:", "redis+cluster:"), key="k:{n}")


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=2)
@pytest.mark.parametrize("async_", [False, True])
def test_a_sentinel_names_the_master_before_and_after_a_failover(async_):
    servers = RedisSentinel().start()
    with servers.master.client() as client:
        client.hset("c:1", "name", "ann")
        client.wait(1, 10_000)
    options = {"url": servers.url, "key": "c:{id}", "push": "true"}
    through = lookup(build_connector("redis", parse_ddl(CUSTOMERS), options), async_=async_, max_retries=100)
    assert found(through, 1) == ["ann"]
    servers.master.kill()
    with servers.replica.client() as client:
        until(lambda: client.info("replication")["role"] == "master")
        client.hset("c:1", "name", "bob")
    until(lambda: found(through, 1) == ["bob"])
    until(lambda: is_cached(through, 1))
    through.source.close()
    servers.close()


def is_cached(through, *keys):
    """Return whether the keys are found without a call."""
    before = through.counters["calls"]
    found(through, *keys)
    return through.counters["calls"] == before


@pytest.mark.nightly
def test_a_service_that_the_sentinels_do_not_know():
    servers = RedisSentinel().start()
    options = {"url": servers.url.replace("/main/", "/other/"), "key": "c:{id}"}
    with pytest.raises(LookupFailedError, match="MasterNotFoundError: No master found for 'other'"):
        found(lookup(build_connector("redis", parse_ddl(CUSTOMERS), options)), 1)
    servers.close()


# ── the server tells of changes ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=[False, True], ids=["one thread", "threads"])
def notified(request, server, shop):
    """Return a lookup that holds customers 1 and 9, which do not exist."""
    options = {"url": server.url, "key": "customer:{id}", "push": "true"}
    through = lookup(build_connector("redis", parse_ddl(CUSTOMERS), options), async_=request.param)
    assert found(through, 1, 9) == ["ann", None]
    until(lambda: is_cached(through, 1, 9))
    yield through
    through.source.close()


CHANGES = {
    "a field set": (lambda data: data.hset("customer:1", "name", "eve"), "eve"),
    "a field deleted": (lambda data: data.hdel("customer:1", "name"), None),
    "the key deleted": (lambda data: data.delete("customer:1"), None),
    "the key renamed": (lambda data: data.rename("customer:2", "customer:1"), "bob"),
    "the key expired": (lambda data: data.pexpire("customer:1", 1), None),
    "the database flushed": (lambda data: data.flushdb(), None),
    "all flushed": (lambda data: data.flushall(), None),
}


@pytest.mark.extended
@pytest.mark.parametrize(("change", "name"), CHANGES.values(), ids=CHANGES)
def test_a_changed_key_is_looked_up_again(notified, shop, change, name):
    change(shop)
    until(lambda: found(notified, 1) == [name])
    assert notified.counters["invalidations"] >= 1


def test_a_key_that_appears_later(notified, shop):
    shop.hset("customer:9", "name", "new")
    until(lambda: found(notified, 9) == ["new"])


def test_keys_that_did_not_change_stay(notified, shop):
    shop.hset("customer:2", "name", "x")
    shop.hset("customers:1", "name", "x")
    shop.hset("customer:9", "name", "new")
    until(lambda: found(notified, 9) == ["new"])
    assert is_cached(notified, 1)


def test_the_cache_is_not_used_while_the_connection_is_lost(notified, shop, server):
    listeners = [client["id"] for client in shop.client_list() if "t" in client["flags"]]
    with shop.pipeline(transaction=True) as pipeline:
        for listener in listeners:
            pipeline.client_kill_filter(_id=listener)
        # No word of this can reach us.
        pipeline.hset("customer:1", "name", "eve")
        pipeline.execute()
    until(lambda: found(notified, 1) == ["eve"])
    shop.hset("customer:1", "name", "zoe")
    until(lambda: found(notified, 1) == ["zoe"])


@pytest.mark.extended
def test_a_server_that_hangs_is_noticed():
    server = RedisServer().start()
    with server.client() as client:
        client.hset("c:1", "name", "ann")
    options = {"url": server.url, "key": "c:{id}", "push": "true"}
    connector = build_connector("redis", parse_ddl(CUSTOMERS), options)
    connector.open()
    wanted = request(["id"], ["name"])
    connector.changed(wanted)
    assert connector.changed(wanted).num_rows == 0
    server.stop()
    until(lambda: connector.changed(wanted) is None)
    server.go_on()
    until(lambda: connector.changed(wanted) is not None)
    connector.close()
    server.close()


def test_changed_keys_are_those_of_the_request(data, connect):
    weather = connect("origin STRING, hour INT, temp DOUBLE", key="w:{origin}:{hour}", push="true")
    wanted = {
        "all": request(["origin", "hour"]),
        "constant": request(["hour"], ["origin"], constants={"origin": "JFK"}),
        "more": request(["origin", "hour", "temp"]),
    }

    def notified(name):
        weather.changed(wanted[name])
        for key in ("w:JFK:5", "w:LGA:6", "w:odd", "w:JFK:05"):
            data.hset(key, "temp", "1")
        seen = []
        until(
            lambda: seen.append(weather.changed(wanted[name])) or seen[-1] is None or sum(map(len, seen)) >= least[name]
        )
        return None if seen[-1] is None else tuples(pa.Table.from_batches(seen))

    least = {"all": 2, "constant": 1, "more": 1}
    assert notified("all") == [("JFK", 5), ("LGA", 6)]
    assert notified("constant") == [(5,)]
    assert notified("more") is None


@pytest.mark.parametrize("push", ["false", "true"])
@pytest.mark.parametrize("kind", ["path", "store"])
def test_later_applications_find_rows_unless_changes_are_told(shop, server, tmp_path, kind, push):
    """Changes from before it listened were not reported to it."""
    own = {"connector": "redis", "url": server.url, "key": "customer:{id}", "push": push}
    kept = {"lookup.cache": "LRU", f"lookup.cache.{kind}": str(tmp_path / "kept")}
    wanted, requested = Wanted(key=("id",), columns=("name",)), []
    for _ in range(2):
        with LocalJoin(LookupTable("t", CUSTOMERS, own | kept), wanted) as join:
            assert len(join.rows([(1,)])) == 1
            requested.append(join.source.counters["requested_keys"])
    assert requested == [1, int(push == "true")]


def test_without_push_nothing_has_changed(shop, connect):
    customers = connect(CUSTOMERS, key="customer:{id}")
    shop.hset("customer:1", "name", "eve")
    assert customers.changed(request(["id"])).num_rows == 0


def test_a_server_without_permission_to_report_changes(guarded, connect):
    url = guarded.url.replace("://", "://reader:s3same@")
    with pytest.raises(ConnectorError, match=r"NOPERM|no permissions"):
        connect(CUSTOMERS, url=url, key="c:{id}", push="true")


# ── whatever a join may ask ──────────────────────────────────────────────────────────────────────────────────


def plain(value, type_):
    """Return a value as JSON has it."""
    if value is None or pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_string(type_):
        return value
    if pa.types.is_list(type_):
        return [plain(item, type_.value_type) for item in value]
    if pa.types.is_map(type_):
        return {key: plain(item, type_.item_type) for key, item in value}
    if pa.types.is_struct(type_):
        return {field.name: plain(value[field.name], field.type) for field in type_}
    if pa.types.is_binary(type_):
        return base64.b64encode(value).decode()
    if pa.types.is_floating(type_):
        return value if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return format(value, "f") if pa.types.is_decimal(type_) else value.isoformat()


def text_of(value, type_):
    """Return a value as a field of a hash has it."""
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return value
    said = plain(value, type_)
    return said if isinstance(said, str) else json.dumps(said)


def store(client, rows, template, kind):
    """Write rows, whose keys are no nulls, as the connector is to read them."""
    columns = {name: rows.column(name).combine_chunks() for name in template.columns} if rows.num_rows else {}
    names = template.names(columns) if columns else []
    types = {field.name: field.type for field in rows.schema if field.name not in template.columns}
    with client.pipeline(transaction=False) as pipeline:
        for name, row in zip(names, rows.to_pylist(), strict=True):
            if kind == "json":
                pipeline.set(name, json.dumps({column: plain(row[column], types[column]) for column in types}))
                continue
            there = {column: text_of(row[column], types[column]) for column in types if row[column] is not None}
            # A hash without fields would be no key at all.
            pipeline.hset(name, mapping={"": "", **there})
        pipeline.execute()


@pytest.fixture(scope="module")
def own():
    """A server that may be killed, and what is to be done when it is back."""
    started = RedisServer().start()
    yield started, []
    started.close()


class RedisSuite(ConnectorSuite):
    connector = "redis"
    unique_keys = True
    can_scan = True
    kind_of_key = ""
    notified = "false"

    @pytest.fixture
    def load(self, own):
        server, again = own

        def load(rows, key):
            name = f"t{len(again)}:" + ":".join(f"{{{column}}}" for column in key)
            template = KeyTemplate.parse(name, rows.schema, escaped=True)

            def write():
                with server.client() as client:
                    store(client, rows, template, self.kind_of_key)

            again.append(write)
            write()
            options = {"url": server.url, "key": name, "type": self.kind_of_key}
            return {**options, "escape": "percent", "push": self.notified}

        return load

    @pytest.fixture
    def restart(self, own):
        server, again = own

        def start():
            server.start()
            again[-1]()

        return server.kill, start


class TestHashes(RedisSuite):
    kind_of_key = "hash"


class TestJson(RedisSuite):
    kind_of_key = "json"


class TestHashesThatAreTold(RedisSuite):
    kind_of_key = "hash"
    notified = "true"


# ── whole joins, against Spark's own ─────────────────────────────────────────────────────────────────────────


def in_redis(data, number, case):
    """Return the case over what Redis can hold of its table: a row per key; and the options that find it there.

    A key with one row has no versions, so the case is no as-of join.
    """
    table = case.right.table()
    columns = [name for name, _ in case.right.columns if re.fullmatch(r"[bk]\d", name)]
    key = f"t{number}:" + ":".join(f"{{{name}}}" for name in columns)
    kind = ("hash", "json")[number % 2]
    template = KeyTemplate.parse(key, table.schema, escaped=True)
    table = table.filter(functools.reduce(pc.and_, [table.column(name).is_valid() for name in columns]))
    names = template.names({name: table.column(name).combine_chunks() for name in columns}) if table.num_rows else []
    numbers = {name: row for row, name in enumerate(names)}
    table = table.take(pa.array(list(numbers.values()), pa.int64()))
    store(data, table, template, kind)
    # The name is what tells a key: it knows no -0.0.
    read = template.read(list(numbers)).to_pylist()
    rows = [tuple({**row, **key}.values()) for row, key in zip(table.to_pylist(), read, strict=True)]
    options = {"connector": "redis", "key": key, "type": kind, "escape": "percent", **dict(case.options)}
    right = dataclasses.replace(case.right, rows=tuple(rows))
    return dataclasses.replace(case, right=right, source="redis", options=tuple(options.items()), as_of=None)


@pytest.mark.spark
@pytest.mark.nightly(keep_one_in=4)
@pytest.mark.parametrize("part", range(4))
def test_every_join_is_sparks_own(data, server, spark, tmp_path, part):
    from test_properties import Judge, case_of

    class RedisJudge(Judge):
        def lookup_table(self, case):
            return LookupTable("t", case.right.ddl, {"url": server.url, **dict(case.options)})

    drawn = [in_redis(data, number, case_of(1_000_000 + number)) for number in range(6 * part, 6 * part + 6)]
    verdicts = RedisJudge(spark, tmp_path, every_form=False).check(drawn)
    assert any(verdict.matched for verdict in verdicts)
