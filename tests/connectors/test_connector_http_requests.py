"""What the http connector sends: every shape of a request, against a service that returns the request."""

from __future__ import annotations

import itertools
import json
import threading
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pytest
from lookupcache_http.connector import HttpConnector
from servers import ReceivedRequest, Reply
from time_limit import LIMIT

from lookupcache.connector import LookupRequest
from lookupcache.errors import OptionError, SourceError
from lookupcache.schema import parse_ddl
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted

SCHEMA = "a STRING, b BIGINT, v STRING"
KEYS = [(a, b) for a in ("AT", "a/b", "p-q", "{b}", " é", "1") for b in (1, 2, -1)]
ROWS = {key: [f"{key[0]}|{key[1]}|{n}" for n in range(number % 3)] for number, key in enumerate(KEYS)}
PLACES = ("path", "query", "body", "keys")


class Service:
    """Answers by what stands in the path, the query and the body, wherever a column is."""

    def __init__(self, repeats: bool, per_key: bool, batched: list[str]) -> None:
        self.repeats = repeats
        self.per_key = per_key
        self.batched = batched

    def __call__(self, requested: ReceivedRequest) -> Reply:
        url = urlsplit(requested.path)
        steps = [unquote(step) for step in url.path.strip("/").split("/")] if url.path != "/" else []
        given = (
            dict(zip(steps[::2], steps[1::2], strict=True)) | dict(parse_qsl(url.query)) | dict(requested.body or {})
        )
        keys = given.pop("keys", [{}])
        each = [self.rows({**given, **(key if isinstance(key, dict) else {self.batched[0]: key})}) for key in keys]
        return Reply(each if self.per_key else [row for rows in each for row in rows])

    def rows(self, key: dict) -> list[dict]:
        own = key if self.repeats else {name: key[name] for name in self.batched if not self.per_key}
        own = {name: int(value) if name == "b" else value for name, value in own.items()}
        return [{**own, "v": v} for v in ROWS[key["a"], int(key["b"])]]


def options_of(url, places, per_key):
    """Return the options that put column a into one place and b into another."""
    at = {place: [name for name, its in zip("ab", places, strict=True) if its == place] for place in PLACES}
    url += "".join(f"/{name}/{{{name}}}" for name in at["path"])
    url += "?" + "&".join(f"{name}={{{name}}}" for name in at["query"]) if at["query"] else ""
    body = {name: f"{{{name}}}" for name in at["body"]} | ({"keys": "{keys}"} if at["keys"] else {})
    own = {"url": url}
    if body:
        own["body"] = json.dumps(body).replace('"{', "{").replace('}"', "}")
    if at["keys"]:
        own["key"] = ",".join(at["keys"])
    return own | ({"rows-per-key": "true"} if per_key else {}), at["keys"]


SHAPES = [
    (places, repeats, per_key)
    for places, repeats, per_key in itertools.product(itertools.product(PLACES, repeat=2), (True, False), (True, False))
    if "keys" in places or not per_key
]


@pytest.mark.extended(keep_one_in=10)
@pytest.mark.parametrize(("places", "repeats", "per_key"), SHAPES, ids=str)
def test_a_batch_is_answered_as_each_key_alone(serve, places, repeats, per_key):
    server = serve(None)
    own, batched = options_of(server.url, places, per_key)
    server.reply = Service(repeats, per_key, batched)
    table = LookupTable("t", SCHEMA, {"connector": "http", "lookup.cache": "LRU", "lookup.max-retries": "0", **own})
    with LocalJoin(table, Wanted(key=("a", "b"))) as join:
        together = join.rows(KEYS)
        again = join.rows(KEYS)
    server.requested.clear()
    with LocalJoin(table, Wanted(key=("a", "b"))) as join:
        alone = [row for key in KEYS for row in join.rows([key])]
    assert sorted(together) == sorted(again) == sorted(alone)
    assert sorted(alone) == sorted((*key, v) for key, values in ROWS.items() for v in values)


def request(keys=("a", "b"), columns=("v",), **rest):
    return LookupRequest(table="t", key_columns=tuple(keys), columns=tuple(columns), **rest)


def looked_up(options, keys, wanted=None, schema=SCHEMA):
    """Return the rows of one call, as tuples."""
    wanted = wanted or request()
    connector = HttpConnector(parse_ddl(schema), options)
    fields = [connector.schema.field(name) for name in wanted.key_columns]
    columns = [pa.array(values, field.type) for values, field in zip(zip(*keys, strict=True), fields, strict=True)]
    connector.open()
    try:
        found = connector.lookup(wanted, pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))
    finally:
        connector.close()
    return [tuple(row.values()) for row in found.to_pylist()]


def by_country(requested):
    country = requested.path.rpartition("/")[2]
    return Reply([{"a": country, "b": b, "v": f"{country}{b}"} for b in requested.body])


@pytest.mark.parametrize("key", ["b", " `b` "])
def test_one_request_for_each_combination_of_what_has_a_place(serve, key):
    server = serve(by_country)
    own = {"url": server.url + "/{a}", "body": "{keys}", "key": key}
    found = looked_up(own, [("AT", 1), ("BE", 1), ("AT", 2), ("BE", 1)])
    assert sorted(found) == [("AT", 1, "AT1"), ("AT", 2, "AT2"), ("BE", 1, "BE1")]
    assert sorted((requested.path, requested.body) for requested in server.requested) == [("/AT", [1, 2]), ("/BE", [1])]


def test_a_constant_is_no_reason_for_more_requests(serve):
    server = serve(by_country)
    own = {"url": server.url + "/{a}", "body": "{keys}", "key": "b"}
    assert len(looked_up(own, [(1,), (2,)], request(["b"], ["v"], constants={"a": "AT"}))) == 2
    assert len(server.requested) == 1


def test_the_requests_of_a_batch_are_in_flight_together(serve):
    meet = threading.Barrier(5)

    def reply(requested):
        meet.wait(LIMIT)  # breaks, and so fails the request, where they come one by one
        return by_country(requested)

    own = {"url": serve(reply).url + "/{a}", "body": "{keys}", "key": "b"}
    assert len(looked_up(own, [(f"c{n}", n) for n in range(5)])) == 5


def test_ten_requests_of_a_batch_are_in_flight_at_most(serve):
    open_, most, lock = [0], [0], threading.Lock()

    def reply(requested):
        with lock:
            open_[0] += 1
            most[0] = max(most[0], open_[0])
        answer = by_country(requested)
        with lock:
            open_[0] -= 1
        return answer

    own = {"url": serve(reply).url + "/{a}", "body": "{keys}", "key": "b"}
    assert len(looked_up(own, [(f"c{n}", n) for n in range(60)])) == 60
    assert 1 <= most[0] <= 10


def test_one_failed_request_fails_the_batch(serve):
    server = serve(lambda requested: Reply("", 400) if requested.path == "/c3" else by_country(requested))
    own = {"url": server.url + "/{a}", "body": "{keys}", "key": "b"}
    with pytest.raises(Exception, match="answered 400"):
        looked_up(own, [(f"c{n}", n) for n in range(30)])


def test_a_row_counts_only_for_the_values_of_its_request(serve):
    server = serve(lambda requested: Reply([{"a": a, "b": b, "v": a} for a in ("AT", "BE") for b in requested.body]))
    own = {"url": server.url + "/{a}", "body": "{keys}", "key": "b"}
    assert looked_up(own, [("AT", 1), ("BE", 1)]) == [("AT", 1, "AT"), ("BE", 1, "BE")]


def test_nan_is_a_value_like_others(serve):
    server = serve(lambda requested: Reply([{"b": b, "v": requested.path} for b in requested.body]))
    own = {"url": server.url + "/{a}", "body": "{keys}", "key": "b"}
    found = looked_up(own, [(float("nan"), 1), (1.5, 1)], schema="a DOUBLE, b BIGINT, v STRING")
    assert sorted(v for _, _, v in found) == ["/1.5", "/NaN"]


# ── URLs that would be those of other values ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("separator", ["-", "_", ".", "~", "x", "--", "%2C", "%2D"])
@pytest.mark.parametrize("where", ["/{a}SEP{c}", "?q={a}SEP{c}"])
def test_texts_that_hold_the_separator_behind_them(serve, separator, where):
    server = serve(lambda requested: Reply([{"v": requested.path}]))
    own, schema = {"url": server.url + where.replace("SEP", separator)}, "a STRING, c STRING, v STRING"
    wanted = request(["a", "c"])
    assert len(looked_up(own, [("p", f"q{unquote(separator)}r")], wanted, schema)) == 1
    with pytest.raises(SourceError, match=r"URL of other values too(?s:.*)'url'"):
        looked_up(own, [(f"p{unquote(separator)}q", "r")], wanted, schema)
    assert len(server.requested) == 1


@pytest.mark.parametrize("separator", ["/", ",", ":", ";", "&c=", "@", "/x/"])
def test_separators_that_no_value_can_hold(serve, separator):
    server = serve(lambda requested: Reply([{"v": "there"}]))
    own, schema = {"url": f"{server.url}/x?a={{a}}{separator}{{c}}"}, "a STRING, c STRING, v STRING"
    keys = [(f"p{separator}q", "r"), ("p", f"q{separator}r")]
    assert len(looked_up(own, keys, request(["a", "c"]), schema)) == 2
    assert len({requested.path for requested in server.requested}) == 2


@pytest.mark.parametrize(
    ("type_", "separator", "refused"),
    [
        ("STRING", "", True), ("BIGINT", "", True), ("BIGINT", "0", True), ("BIGINT", "-", False), ("INT", ".", False),
        ("DOUBLE", ".", True), ("DOUBLE", "-", False), ("DECIMAL(4,2)", "1", True), ("DECIMAL(4,2)", ".", False),
        ("DATE", "", False), ("BOOLEAN", "", False), ("TIMESTAMP", "", False), ("TIMESTAMP_NTZ", ".", True),
        ("STRING", "-", False),
    ],
)  # fmt: skip
def test_a_url_without_a_clear_end_of_a_value_is_refused(type_, separator, refused):
    def make():
        return HttpConnector(parse_ddl(f"a {type_}, c STRING"), {"url": f"http://localhost:1/{{a}}{separator}{{c}}"})

    if refused:
        with pytest.raises(OptionError, match="'url' does not show where the value of 'a' ends"):
            make()
    else:
        assert make().settings


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"header.X-Tenant": "{a}"}, r"'header\.X-Tenant' names column 'a'"),
        ({"query.tenant": "t-{a}"}, r"'query\.tenant' names column 'a'"),
        ({"body": '{"tenant": "{a}", "id": {b}}'}, r"'body' holds \{a\} between quotes"),
        ({"body": '{"ids": "{keys}", "id": {b}}'}, r"'body' holds \{keys\} between quotes"),
    ],
)
def test_places_that_would_be_sent_as_they_are(options, named):
    with pytest.raises(OptionError, match=named):
        HttpConnector(parse_ddl(SCHEMA), {"url": "http://localhost:1/{b}", **options})


def test_braces_within_a_text_of_the_body_are_text(serve):
    server = serve(lambda requested: Reply([{"v": requested.body["query"]}]))
    own = {"url": server.url, "body": '{"query": "{people {a}}", "b": {b}}'}
    assert looked_up(own, [(1,)], request(["b"])) == [(1, "{people {a}}")]


@pytest.mark.parametrize("end", ["", "?", "?x=1", "?x=1&"])
def test_parameters_begin_behind_one_question_mark(serve, end):
    server = serve(lambda requested: Reply([{"v": requested.path}]))
    looked_up({"url": f"{server.url}/{{b}}{end}", "query.apikey": "K"}, [(1,)], request(["b"]))
    assert server.requested[0].path == f"/1?{'x=1&' if 'x' in end else ''}apikey=K"
