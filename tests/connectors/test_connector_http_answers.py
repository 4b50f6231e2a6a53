"""How the http connector reads answers: only JSON becomes rows, in each coding, within limits."""

from __future__ import annotations

import gzip
import itertools
import socket
import threading
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Reply
from test_connector_http_requests import looked_up, request

from lookupcache.errors import LookupFailedError, SourceError
from lookupcache.http import client
from lookupcache.http.client import HttpProtocolError, HttpStatusError
from lookupcache.http.coding import Decoder
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted

PEOPLE = "id BIGINT, name STRING, city STRING"
ONE = [(1,)]


@pytest.fixture
def answering(serve):
    """Return a function that starts a server with one reply to everything, for the test."""

    def start(body, status=200, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return serve(lambda requested: Reply(body, status, named))

    return start


def people(server, columns=("name", "city"), **options):
    own = {name.replace("_", "-"): value for name, value in options.items()}
    return looked_up({"url": server.url + "/{id}", **own}, ONE, request(["id"], columns), PEOPLE)


def joined(url, **options):
    """Return the rows of a join, with retries as by default, but at once."""
    own = {name.replace("__", "."): value for name, value in options.items()}
    own = {"connector": "http", "url": url + "/{id}", "lookup.retry.delay": "1 ms", **own}
    with LocalJoin(LookupTable("t", PEOPLE, own), Wanted(key=("id",))) as join:
        return join.rows(ONE)


# ── what is no row ───────────────────────────────────────────────────────────────────────────────────────────

NO_ROWS = [
    '{"error": "quota exceeded"}', '{"error": {"code": 7}, "status": "failed"}', '"maintenance"', "7", "true", "[1, 2]",
    '["ann"]', "[null]", "[[1]]", "[[[]]]", '[{"id": 1, "name": "ann", "city": "x"}, {"error": "no more"}]',
    '[{"id": 1, "name": "ann", "city": "x"}, null]',
]  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("missing_field", ["fail", "null"])
@pytest.mark.parametrize("columns", [(), ("name",), ("name", "city")], ids=len)
@pytest.mark.parametrize("body", NO_ROWS)
def test_a_value_that_is_not_a_row_is_an_error(answering, body, columns, missing_field):
    with pytest.raises(SourceError, match="has a row without"):
        people(answering(body), columns, missing_field=missing_field)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('{"name": "ann"}', [(1, "ann", None)]), ('{"id": 1}', [(1, None, None)]), ("{}", [(1, None, None)]),
        ('[{"city": "x", "more": 1}, {}]', [(1, None, "x"), (1, None, None)]), ("null", []), ("[]", []),
    ],
)  # fmt: skip
def test_a_row_may_lack_fields_if_the_option_allows_it(answering, body, found):
    assert people(answering(body), missing_field="null") == found


def test_rows_by_position(answering):
    own = {"field.name": "$[0]", "field.city": "$[1]", "missing-field": "null"}
    assert people(answering('[["ann", "x"], ["bob"]]'), **own) == [(1, "ann", "x"), (1, "bob", None)]


def test_a_table_of_nothing_but_its_key_takes_any_object(answering):
    assert looked_up({"url": answering('{"exists": true}').url + "/{id}"}, ONE, request(["id"], []), "id BIGINT") == ONE


def test_an_error_body_is_neither_cached_nor_a_miss(answering):
    server = answering('{"error": "quota exceeded"}')
    with pytest.raises(SourceError, match="quota exceeded"):
        joined(server.url, **{"missing-field": "null", "lookup.cache": "LRU"})
    server.reply = lambda requested: Reply('{"name": "ann", "city": "x"}')
    assert joined(server.url, **{"missing-field": "null", "lookup.cache": "LRU"}) == [(1, "ann", "x")]


@pytest.mark.parametrize("coding", ["", "gzip"])
def test_no_more_of_an_error_is_read_than_its_start(answering, monkeypatch, coding):
    """Of a megabyte, which may be a few kilobytes of gzip, 64 KiB are kept."""
    read = []
    monkeypatch.setattr(client, "_text", noting(client._text, read))
    body = b"x" * (1 << 20)
    server = answering("")
    headers = {"Content-Encoding": coding} if coding else {}
    server.reply = lambda requested: Reply(gzip.compress(body) if coding else body, status=500, headers=headers)
    with pytest.raises(LookupFailedError, match="x" * 200):
        joined(server.url, **{"lookup.max-retries": "0"})
    assert [len(text) for text in read] == [64 << 10]


def noting(original, found):
    """Return a coroutine function that notes what the original returns."""

    async def noted(*arguments):
        found.append(await original(*arguments))
        return found[-1]

    return noted


@pytest.mark.extended
@pytest.mark.parametrize("depth", [150, 900, 5_000])
@pytest.mark.parametrize("body", ['{"id": 1, "name": "a", "city": DEEP}', '{"a": DEEP}', "DEEP"])
def test_json_nested_too_deeply_is_an_error_and_not_retried(answering, body, depth):
    server = answering(body.replace("DEEP", "[" * depth + "]" * depth))
    if depth > 150 or "id" not in body:
        with pytest.raises(SourceError):
            joined(server.url, rows="$" if "id" in body else "$.data")
    else:
        assert joined(server.url) == [(1, "a", "[" * depth + "]" * depth)]
    assert len(server.requested) == 1


def test_a_page_that_names_itself(answering):
    server = answering('{"rows": [], "next": "same"}')
    for own in ({}, {"pages.parameter": "cursor"}):
        server.requested.clear()
        with pytest.raises(SourceError, match=r"names itself(?s:.*)'pages\.next'"):
            people(server, rows="$.rows", **{"pages.next": "next", **own})
        assert len(server.requested) == 2


# ── statuses ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [404, 204, 205])
def test_no_rows(answering, status):
    server = answering("" if status != 404 else "<html>", status)
    own = {"url": server.url + "/{id}"}
    assert looked_up(own, [(1,), (2,)], request(["id"], ["name"]), PEOPLE) == []
    assert (len(server.requested), server.connections) == (2, 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_on_the_same_host_is_followed(serve, status):
    server = serve(
        lambda requested: Reply("", status, {"Location": "/v2/1"}) if requested.path == "/1" else Reply(ANSWER)
    )
    assert people(server, token="t0ps3cret") == [(1, "ann", "x")]
    assert [requested.headers["Authorization"] for requested in server.requested] == ["Bearer t0ps3cret"] * 2


@pytest.mark.parametrize(
    "where", ["{other}/1", "//{host}/1", "https://localhost:{port}/1", "http://u:p@localhost:{port}/"]
)
def test_a_redirect_elsewhere_is_refused(serve, answering, where):
    other = answering(ANSWER)
    server = serve(lambda requested: Reply("", 302, {"Location": target}))
    target = where.format(other=other.url, host=other.url.partition("//")[2], port=server.port)
    with pytest.raises(HttpStatusError, match=r"302 Found: to another host(?s:.*)'url'"):
        people(server, token="t0ps3cret")
    assert other.requested == []


def test_redirects_end(answering):
    server = answering("", 302, Location="/again")
    with pytest.raises(HttpStatusError, match="more than 5 times") as raised:
        people(server)
    assert len(server.requested) == 6
    assert not client.retryable(raised.value)


def test_a_post_is_repeated_only_as_a_post(serve):
    left = [Reply("", 307, {"Location": "/v2"}), Reply(b"[%b]" % ANSWER), Reply("", 302, {"Location": "/v2"})]
    server = serve(lambda requested: left.pop(0))
    own = {"url": server.url, "body": "{keys}", "key": "id"}
    assert looked_up(own, ONE, request(["id"], ["name"]), PEOPLE) == [(1, "ann")]
    assert [requested.body for requested in server.requested] == [[1], [1]]
    with pytest.raises(HttpStatusError, match="would become a GET"):
        looked_up(own, ONE, request(["id"], ["name"]), PEOPLE)


# ── content codings ──────────────────────────────────────────────────────────────────────────────────────────

ANSWER = b'{"id": 1, "name": "ann", "city": "x"}'


def raw_deflate(data):
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def members(data):
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(b"") + gzip.compress(data[half:])


PACKED = {
    "gzip": ("gzip", gzip.compress), "x-gzip": ("X-GZip", gzip.compress), "members": ("gzip", members),
    "deflate": ("deflate", zlib.compress), "raw deflate": ("deflate", raw_deflate),
    "identity": ("identity", bytes), "none": ("", bytes),
}  # fmt: skip
pieces = st.lists(st.integers(1, 50), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.binary(max_size=2_000) | st.integers(0, 50_000).map(bytes), st.sampled_from(sorted(PACKED)), pieces)
def test_a_coding_is_undone_whatever_the_pieces(data, kind, sizes):
    coding, pack = PACKED[kind]
    decoder, found = Decoder(coding), b""
    for piece in cut(pack(data), sizes):
        found += decoder.decode(piece, 1 << 30)
    assert found == data
    assert decoder.complete


@settings(deadline=None)
@given(st.integers(0, 50_000), st.integers(1, 60_000), st.sampled_from(sorted(PACKED)), pieces)
def test_no_more_is_decompressed_than_the_limit(length, most, kind, sizes):
    coding, pack = PACKED[kind]
    decoder, found = Decoder(coding), 0
    for piece in cut(pack(bytes(length)), sizes):
        if found < most:
            found += len(decoder.decode(piece, most - found))
    assert found == min(length, most)


@pytest.mark.extended
def test_empty_members_take_linear_time():
    """Each takes a copy of what follows it in its block; copies of all 8 MiB that follow would take minutes."""
    decoder = Decoder("gzip")
    assert decoder.decode(gzip.compress(b"") * 400_000 + gzip.compress(b"x"), 1 << 20) == b"x"
    assert decoder.complete


@pytest.mark.parametrize("length", [0, 1, 16_000, 16_383, 16_384, 16_385, 100_000])
def test_members_are_undone_wherever_they_end(length):
    data = np.random.default_rng(length).bytes(length)
    packed = gzip.compress(data[: length // 2], 0) + gzip.compress(data[length // 2 :], 0) + gzip.compress(b"end")
    assert Decoder("gzip").decode(packed, 1 << 30) == data + b"end"
    assert Decoder("gzip").decode(packed, length // 3) == data[: length // 3]


def cut(data, sizes):
    """Yield a text in pieces of these sizes, again and again."""
    start = 0
    for size in itertools.cycle(sizes):
        if start >= len(data):
            return
        yield data[start : start + size]
        start += size


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["gzip", "deflate", "raw deflate", "members"])
def test_a_bomb_takes_no_memory(kind):
    coding, pack = PACKED[kind]
    bomb, decoder = pack(bytes(64 << 20)), Decoder(coding)
    tracemalloc.start()
    try:
        assert len(decoder.decode(bomb, 1 << 20)) == 1 << 20
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize("kind", sorted(PACKED))
def test_answers_in_every_coding(answering, kind):
    coding, pack = PACKED[kind]
    server = answering(pack(ANSWER), **({"Content_Encoding": coding} if coding else {}))
    assert people(server) == [(1, "ann", "x")]
    assert server.requested[0].headers["Accept-Encoding"] == "gzip, deflate"


@pytest.mark.parametrize("kind", sorted(PACKED))
def test_the_limit_is_of_what_an_answer_becomes(answering, kind):
    coding, pack = PACKED[kind]
    body = ANSWER + b" " * (10_000 - len(ANSWER))
    server = answering(pack(body), **({"Content_Encoding": coding} if coding else {}))
    assert people(server, max_bytes="10000") == [(1, "ann", "x")]
    with pytest.raises(SourceError, match="more than 9,999 bytes"):
        people(server, max_bytes="9999")


def test_an_answer_that_unpacks_to_nothing_has_an_end(answering):
    server = answering(gzip.compress(b"") * 10_000, Content_Encoding="gzip")
    with pytest.raises(SourceError, match="more than 1,000 bytes"):
        people(server, max_bytes="1000")


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, gzip", "foo"])
def test_a_coding_that_is_not_understood(answering, coding):
    server = answering(ANSWER, Content_Encoding=coding)
    with pytest.raises(SourceError, match=rf"content coding '{coding}'(?s:.*)gzip and deflate"):
        joined(server.url)
    assert len(server.requested) == 1


@pytest.mark.parametrize("kind", ["gzip", "deflate", "raw deflate"])
@pytest.mark.parametrize("harm", [lambda data: data[:-5], lambda data: data[:20], lambda data: b"\x77" + data[1:]])
def test_a_torn_or_corrupt_compressed_response_is_retried(answering, kind, harm):
    coding, pack = PACKED[kind]
    server = answering("")
    left = [Reply(harm(pack(ANSWER)), headers={"Content-Encoding": coding}), Reply(ANSWER)]
    server.reply = lambda requested: left.pop(0)
    assert joined(server.url) == [(1, "ann", "x")]


def test_an_http_error_in_an_unknown_coding_names_its_status(answering):
    with pytest.raises(HttpStatusError, match=r"answered 403 Forbidden\.$"):
        people(answering(b"\x8b\x01", 403, Content_Encoding="br"))
    with pytest.raises(HttpStatusError, match=r"answered 403 Forbidden: go away$"):
        people(answering(gzip.compress(b"go away"), 403, Content_Encoding="gzip"))


def test_a_header_option_replaces_the_default_header(answering):
    server = answering(ANSWER)
    people(server, **{"header.accept-encoding": "identity", "header.ACCEPT": "text/json"})
    sent = {name.lower(): value for name, value in server.requested[0].headers.items()}
    assert (sent["accept-encoding"], sent["accept"]) == ("identity", "text/json")


# ── what is no HTTP ──────────────────────────────────────────────────────────────────────────────────────────

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(ANSWER), ANSWER)
NO_HTTP = [
    b"garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n", b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", b"",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
]  # fmt: skip


@pytest.fixture
def speak():
    """Return a function that starts a server which says these bytes, one after the other; it returns its URL."""
    listeners = []

    def start(*said):
        listeners.append(socket.create_server(("localhost", 0)))

        def answer(listener):
            for text in said:
                client, _ = listener.accept()
                with client:
                    client.recv(65_536)
                    client.sendall(text)

        threading.Thread(target=answer, args=listeners[-1:], daemon=True).start()
        return f"http://localhost:{listeners[-1].getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize("said", NO_HTTP, ids=lambda said: repr(said[:40]))
def test_invalid_http_is_retried(speak, said):
    assert joined(speak(said, GOOD)) == [(1, "ann", "x")]


def test_the_error_for_invalid_http_does_not_contain_the_url(speak):
    url = speak(b"HTTP/1.1 200 OK\r\nX-Key: hunter2-sesame\0\r\n\r\n")
    with pytest.raises(HttpProtocolError, match=r"GET http://localhost:\d+/{id} was not answered in HTTP: .") as raised:
        looked_up({"url": url + "/{id}", "query.k": "hunter2-sesame"}, [(7777777,)], request(["id"], ["name"]), PEOPLE)
    assert "hunter2" not in str(raised.value)
    assert "7777777" not in str(raised.value)


def test_a_connection_that_breaks_each_time_ends_the_lookup(speak):
    # aiohttp itself asks again once, in case that the connection was an old one.
    with pytest.raises(LookupFailedError, match="after 2 attempts"):
        joined(speak(*[b""] * 4), **{"lookup.max-retries": "1"})
