"""The redis connector on kinds and versions of servers that do not run here, and all that one may report of changes."""

from __future__ import annotations

import json
import socketserver
import threading

import pyarrow as pa
import pytest
import redis
from connector_calls import request, rows_for, scanned, tuples
from fake_servers import SERVERS, serving
from lookupcache_redis import push
from lookupcache_redis.rows import TYPES
from servers import until

from lookupcache.connector import build_connector
from lookupcache.errors import ConnectorError, SourceError
from lookupcache.schema import parse_ddl

WEATHER = "origin STRING, hour INT, temp INT"


@pytest.fixture(scope="module", params=SERVERS, ids=lambda one: f"{one[0]} {one[1][0]}.{one[1][1]}")
def url(request):
    with serving(*request.param) as url:
        yield url


@pytest.fixture
def data(url):
    with redis.Redis.from_url(url) as client:
        client.flushall()
        yield client


@pytest.fixture
def table(url):
    """Return a function that opens a connector on weather by type; all are closed in the end."""
    opened = []

    def open_one(kind, url=url, **options):
        own = {"url": url, "key": "w[{origin}]{hour}", "type": kind, **options}
        opened.append(build_connector("redis", parse_ddl(WEATHER), own))
        opened[-1].open()
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def store(client, kind, name, temp):
    if kind == "hash":
        client.hset(name, mapping={"": "", **({} if temp is None else {"temp": temp})})
    else:
        client.set(name, temp if kind == "string" else json.dumps({} if temp is None else {"temp": temp}))


@pytest.mark.parametrize("kind", TYPES)
def test_rows_are_looked_up_and_scanned(data, table, kind):
    missing = 3 if kind == "string" else None  # A string that is there has a value.
    rows = {("J*", 5): 1, ("J*", 6): missing, ("JFK", 5): -2}
    for (origin, hour), temp in rows.items():
        store(data, kind, f"w[{origin}]{hour}", temp)
    for other in ("w[JFK]05", "w[JFK]", "w[JFK]5x", "v[JFK]5"):
        store(data, kind, other, 9)
    weather, wanted = table(kind), request(["origin", "hour"], ["temp"])
    expected = sorted(((*key, temp) for key, temp in rows.items()), key=repr)
    assert rows_for(weather, wanted, *rows, ("LGA", 5)) == scanned(weather, wanted) == expected
    assert rows_for(weather, wanted, ("LGA", 5)) == rows_for(weather, wanted) == []
    exists = request(["origin", "hour"])
    assert rows_for(weather, exists, *rows, ("LGA", 5)) == scanned(weather, exists) == sorted(rows, key=repr)
    of_one = request(["hour"], ["origin", "temp"], constants={"origin": "J*"})
    assert rows_for(weather, of_one, (5,), (7,)) == [(5, "J*", 1)]
    assert scanned(weather, of_one) == [(5, "J*", 1), (6, "J*", missing)]


@pytest.mark.extended(keep_one_in=4)
@pytest.mark.parametrize(
    # `fakeredis` closes the connection instead of answering HMGET for a string.
    ("kind", "columns"), [("hash", ()), *((kind, names) for kind in ("string", "json") for names in ((), ("temp",)))]
)  # fmt: skip
def test_a_key_of_another_type_is_an_error(data, table, kind, columns):
    store(data, kind, "w[JFK]5", 1)
    store(data, "string" if kind == "hash" else "hash", "w[JFK]6", 1)
    with pytest.raises(SourceError, match=r"key 'w\[JFK\]6' holds .*, not a (hash|string)\."):
        rows_for(table(kind), request(["origin", "hour"], columns), ("JFK", 5), ("JFK", 6), ("JFK", 7))


@pytest.mark.extended(keep_one_in=4)
@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [("hash", "warm", "field 'temp' is no INT"), ("string", "warm", "its value is no INT"),
     ("json", "[1]", "its value is no JSON object"), ("json", "{", "its value is no JSON object"),
     ("json", '{"temp": "warm"}', "member 'temp' is no INT")],
)  # fmt: skip
def test_the_key_of_a_wrong_value_is_named_unless_it_may_be_a_secret(data, table, kind, value, wrong):
    for name, kind_, temp in (("w[JFK]5", kind, 1), ("w[JFK]6", "hash" if kind == "hash" else "string", value)):
        store(data, kind_, name, temp)
    keys = [("JFK", 5), ("JFK", 6)]
    with pytest.raises(SourceError, match=rf"key 'w\[JFK\]6': {wrong}"):
        rows_for(table(kind), request(["origin", "hour"], ["temp"]), *keys)
    sessions = build_connector(
        "redis", parse_ddl(WEATHER.replace("origin", "token")),
        {"url": table(kind).settings["url"], "key": "w[{token}]{hour}", "type": kind},
    )  # fmt: skip
    sessions.open()
    with pytest.raises(SourceError, match=rf"a key 'w\[{{token}}\]{{hour}}': {wrong}"):
        rows_for(sessions, request(["token", "hour"], ["temp"]), *keys)
    sessions.close()


def test_a_server_that_does_not_report_changes_is_refused(table):
    """With a cache that no report reaches, rows would be outdated without a word."""
    with pytest.raises(ConnectorError, match=r"'url'.*rejects a command"):
        table("hash", push="true")


# ── reports of changes ───────────────────────────────────────────────────────────────────────────────────────


class Reporting(socketserver.StreamRequestHandler):
    """Agrees to every command, and keeps the connections that are to be told of changes."""

    def handle(self):
        while head := self.rfile.readline():
            words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
            if b"TRACKING" in words:
                self.server.told.append(self.connection)
            self.wfile.write(b"%1\r\n+proto\r\n:3\r\n" if words[0] == b"HELLO" else b"+OK\r\n")


class Reporter(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Reporting)
        self.told = []


@pytest.fixture
def reporter():
    with Reporter() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def message(kind, *names):
    """Return a report of names, without any that all have changed."""
    said = b"*%d\r\n%b" % (len(names), b"".join(b"$%d\r\n%b\r\n" % (len(name), name) for name in names))
    return b">2\r\n$%d\r\n%b\r\n%b" % (len(kind), kind, said if names else b"_\r\n")


KEYS, OF_ONE = request(["origin", "hour"]), request(["hour"], ["origin"], constants={"origin": "JFK"})
NAMED = message(b"invalidate", b"w[JFK]5", b"w[LGA]6", b"w[JFK]05")


@pytest.mark.parametrize(
    ("said", "wanted", "changed"),
    [
        (NAMED, KEYS, [("JFK", 5), ("LGA", 6)]),
        (message(b"other", b"w[LGA]7") + NAMED, KEYS, [("JFK", 5), ("LGA", 6)]),
        (NAMED, OF_ONE, [(5,)]),
        (NAMED, request(["origin", "temp"]), None),
        (message(b"invalidate"), KEYS, None),
        (message(b"invalidate", *(b"w[JFK]%d" % number for number in range(101))), KEYS, None),
    ],
    ids=["names", "another message", "a constant", "a column that no name has", "all", "too many"],
)  # fmt: skip
def test_what_a_server_reports_becomes_the_keys_of_a_join(reporter, monkeypatch, said, wanted, changed):
    monkeypatch.setattr(push, "_MOST_NAMES", 100)
    own = {"url": f"redis://127.0.0.1:{reporter.server_address[1]}", "key": "w[{origin}]{hour}", "push": "true"}
    weather = build_connector("redis", parse_ddl(WEATHER), own)
    weather.open()
    assert weather.changed(wanted) is None, "of the time before nothing is known"
    assert weather.changed(wanted).num_rows == 0
    seen = []
    reporter.told[0].sendall(said)
    until(lambda: seen.append(weather.changed(wanted)) or seen[-1] is None or seen[-1].num_rows)
    assert (None if seen[-1] is None else tuples(pa.Table.from_batches(seen))) == changed
    weather.close()
    assert weather.changed(wanted) is None, "and none is reported any more"
