"""Ten thousand hostile texts through every connector, and hostile names of tables and columns.

Each text is the key of one row; a text that is read as something else finds another row, none, or an error. Afterwards
the server has what it had before.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
from contextlib import closing
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from databases import DuckTables, MariaTables, PostgresTables, SqliteTables
from lookupcache_http.template import BodyTemplate, UrlTemplate
from servers import HttpServer, Reply
from yarl import URL

from lookupcache.connector import LookupRequest, build_connector
from lookupcache.errors import SourceError

COUNT = 10_000
PARTS = [
    "'", '"', "`", "\\", ";", "--", "/*", "*/", "#", "' OR '1'='1", '" OR 1=1 --', "'; DROP TABLE t0; --", "$1", "%s",
    "%(a)s", "?", ":id", "{id}", "{{id}}", "{keys}", "${x}", "$$", "$q$", "E'\\''", "\\'", "\\x27", "U&'\\0027'",
    "%27", "%00", "%2e%2e", "..", "../", "/", "//", "\\\\", "@evil.test", "http://evil.test/", ":80", "?a=b", "&a=b",
    "#a", "\r\n", "\r\nX: y", "\n", "\t", " ", "*", "?*[a]", "[", "]", "]}", '"}', '{"a":1}', "\x01", "\x1b[0m",
    "\x7f", "\x85", "\u2028", "\u202e", "\ufeff", "\u200b", "é", "e\u0301", "ß", "İ", "ı", "ſ", "Ａ", "😀",
    "\U0010ffff", "\ue000", "NULL", "null", "NaN", "true", "0", "-0", "1e309", "SELECT", "UNION ALL SELECT",
    "sleep(9)", "*3\r\n$3\r\nSET\r\n", "$-1\r\n", "FLUSHALL", "<!--", "</script>", "&amp;", "&#39;", "<?xml", "x",
    "A", "a", "é" * 40,
]  # fmt: skip


def hostile(count: int, seed: int = 1) -> list[str]:
    """Return different texts of parts that mean something somewhere; each part occurs alone too."""
    draw, found = random.Random(seed), dict.fromkeys(PARTS)
    while len(found) < count:
        found["".join(draw.choices(PARTS, k=draw.randint(2, 6)))[:200]] = None
    return list(found)


TEXTS = hostile(COUNT)
SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])
REQUEST = LookupRequest(table="t", key_columns=("id",), columns=("n",))


def numbers(connector_name, options, texts, size=1_000, schema=SCHEMA):
    """Look texts up, and return the numbers of the rows that each has; a row of another key counts as its own."""
    connector = build_connector(connector_name, schema, options)
    connector.resolve()
    connector.open()
    found = {text: [] for text in texts}
    try:
        for start in range(0, len(texts), size):
            keys = pa.record_batch({"id": pa.array(texts[start : start + size], pa.string())})
            for row in connector.lookup(REQUEST, keys).to_pylist():
                found.setdefault(row["id"], []).append(row["n"])
    finally:
        connector.close()
    return found


def own(texts):
    return {text: [number] for number, text in enumerate(texts)}


def rows(texts):
    return pa.table({"id": pa.array(texts, pa.string()), "n": pa.array(range(len(texts)), pa.int64())})


# ── databases ────────────────────────────────────────────────────────────────────────────────────────────────


class TextTables(SqliteTables):
    """SQLite would store a text such as '0' as a number in a column of the type STRING."""

    native = {"string": "text"}  # noqa: RUF012


@pytest.fixture
def tables(request, tmp_path):
    kind = request.param
    if kind in (DuckTables, TextTables):
        return kind(tmp_path / "t.db")
    return kind(request.getfixturevalue("postgres_server" if kind is PostgresTables else "maria_server"))


every_database = pytest.mark.parametrize("tables", [PostgresTables, MariaTables, DuckTables, TextTables], indirect=True)


@pytest.mark.extended
@every_database
def test_texts_as_keys_of_a_database(tables):
    options = tables.of(rows(TEXTS))
    if isinstance(tables, MariaTables):
        # Otherwise each batch would compare each text with all.
        tables.run(f"CREATE INDEX hostile ON {options['table']} (id(60))")
    assert numbers("sql", options, TEXTS) == own(TEXTS)
    scanned = build_connector("sql", SCHEMA, options)
    scanned.open()
    found = {row["id"]: [row["n"]] for batch in scanned.scan(REQUEST) for row in batch.to_pylist()}
    scanned.close()
    assert found == own(TEXTS)


@every_database
def test_texts_as_constants_of_a_database(tables):
    texts = TEXTS[:: COUNT // 40]
    connector = build_connector("sql", SCHEMA, tables.of(rows(texts)))
    connector.open()
    for number, text in enumerate(texts):
        wanted = LookupRequest(table="t", key_columns=("n",), columns=("id",), constants={"id": text})
        keys = pa.record_batch({"n": pa.array(range(len(texts)), pa.int64())})
        assert [row["n"] for row in connector.lookup(wanted, keys).to_pylist() if row["id"] == text] == [number]
    connector.close()


def identifiers(most_bytes, without=""):
    """Return hostile names, different in any case and as the database cuts them."""
    names = {}
    for part in hostile(120, seed=2):
        name = "".join(letter for letter in f"c{part}" if letter not in without and ord(letter) < 0x10000).strip()
        if len(name.encode()) <= most_bytes and name == name.casefold() and name.isprintable():
            names.setdefault(name, None)
    return list(names)


@every_database
def test_hostile_names_of_tables_and_columns(tables):
    names = identifiers(60, without="\0{}" if isinstance(tables, DuckTables) else "\0")
    assert len(names) > 40
    quoted = [tables.quote(name) for name in names]
    table = names[-1]
    tables.run(
        f"DROP TABLE IF EXISTS {tables.quote(table)}",
        f"CREATE TABLE {tables.quote(table)} ({', '.join(f'{name} bigint' for name in quoted)})",
        f"INSERT INTO {tables.quote(table)} VALUES ({', '.join(map(str, range(len(names))))})",
    )
    schema = pa.schema([(name, pa.int64()) for name in names])
    connector = build_connector("sql", schema, tables.options(table))
    connector.open()
    for key in range(0, len(names), 7):
        wanted = LookupRequest(table="t", key_columns=(names[key],), columns=tuple(names[:key] + names[key + 1 :]))
        keys = pa.record_batch({names[key]: pa.array([key], pa.int64())})
        values = [key, *range(key), *range(key + 1, len(names))]
        assert connector.lookup(wanted, keys).to_pylist() == [dict(zip(wanted.fields, values, strict=True))]
    connector.close()
    tables.run(f"DROP TABLE {tables.quote(table)}")


# ── Redis ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["hash", "string", "json"])
@pytest.mark.parametrize("escape", ["none", "percent"])
def test_texts_as_keys_of_redis(redis_server, kind, escape):
    connector = build_connector(
        "redis", SCHEMA, {"url": redis_server.url, "key": "c:{id}", "escape": escape, "type": kind}
    )
    with redis_server.client() as client:
        client.flushall()
        pipe = client.pipeline(transaction=False)
        for number, name in enumerate(connector.template.names({"id": pa.array(TEXTS)})):
            if kind == "hash":
                pipe.hset(name, "n", number)
            else:
                pipe.set(name, number if kind == "string" else json.dumps({"n": number}))
        pipe.execute()
        client.config_resetstat()
        assert numbers("redis", connector.settings, TEXTS) == own(TEXTS)
        assert client.dbsize() == COUNT
        commands = {name.removeprefix("cmdstat_").partition("|")[0] for name in client.info("commandstats")}
    assert commands <= {
        "hmget",
        "mget",
        "ping",
        "info",
        "select",
        "type",
        "hgetall",
        "client",
        "hello",
        "config",
        "dbsize",
    }


def test_hostile_names_of_fields_of_redis(redis_server):
    names = identifiers(500)
    with redis_server.client() as client:
        client.flushall()
        client.hset("c:1", mapping={name: number for number, name in enumerate(names)})
    schema = pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in names)])
    connector = build_connector("redis", schema, {"url": redis_server.url, "key": "c:{id}"})
    connector.open()
    wanted = LookupRequest(table="t", key_columns=("id",), columns=tuple(names))
    found = connector.lookup(wanted, pa.record_batch({"id": pa.array([1], pa.int64())})).to_pylist()
    connector.close()
    assert found == [{"id": 1, **{name: number for number, name in enumerate(names)}}]


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────────

TEMPLATES = ["http://h:81/a/{id}/b", "http://h:81/a;v={id}", "http://h:81/a?x=1&id={id}&y=2", "http://h:81/x-{id}.json"]


@pytest.mark.extended
@pytest.mark.parametrize("text", TEMPLATES)
def test_no_text_leaves_its_place_in_a_url(text):
    template = UrlTemplate.parse(text)
    before, _, after = text.partition("{id}")
    for value in TEXTS:
        filled = template.fill({"id": value})
        if filled is None:
            assert value in ("", ".", "..")
            continue
        assert (filled[: len(before)], filled[len(filled) - len(after) :]) == (before, after)
        placed = filled[len(before) : len(filled) - len(after)]
        assert unquote(placed) == value
        assert not set(placed) & set("/?#&;=@:\\ \r\n")
        url = URL(filled, encoded=True)
        parts = urlsplit(filled)
        assert (url.host, url.port, parts.hostname, parts.port) == ("h", 81, "h", 81)


def test_no_text_leaves_its_place_in_a_body():
    template = BodyTemplate.parse('{"a": {id}, "b": [{id}], "keys": {keys}, "c": "{id} stays"}')
    for value in TEXTS:
        document = json.loads(template.fill({"id": value, "keys": [value]}))
        assert document == {"a": value, "b": [value], "keys": [value], "c": "{id} stays"}


@pytest.fixture
def echo():
    """A service in which each text has its number, by GET and by POST."""
    place = {text: number for number, text in enumerate(TEXTS)}

    def reply(requested):
        if requested.method == "POST":
            return Reply([{"id": text, "n": place[text]} for text in requested.body["ids"]])
        head, _, name = requested.path.rpartition("/")
        return Reply(
            {"id": unquote(name), "n": place[unquote(name)]} if head == "/v1/by" else {"error": requested.path}
        )

    server = HttpServer(reply).start()
    yield server
    server.kill()


def test_texts_as_keys_of_a_service(echo):
    body = {"url": f"{echo.url}/v1", "body": '{"ids": {keys}}', "key": "id"}
    assert numbers("http", body, TEXTS) == own(TEXTS)
    few = [text for text in TEXTS[: len(PARTS)] if text not in (".", "..")]
    found = numbers("http", {"url": echo.url + "/v1/by/{id}"}, few, 1)
    assert found == {text: [TEXTS.index(text)] for text in few}
    assert {requested.path.rpartition("/")[0] for requested in echo.requested if requested.method == "GET"} == {
        "/v1/by"
    }


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning")
def test_texts_as_keys_of_a_feature_store(tmp_path):
    from features import Repository

    repository = Repository(tmp_path)
    try:
        assert numbers("feast", repository.load(rows(TEXTS), ["id"]), TEXTS) == own(TEXTS)
    finally:
        repository.close()


def test_texts_as_prompts_of_a_model():
    place = {text: number for number, text in enumerate(TEXTS)}

    def reply(requested):
        texts = requested.body["input"]
        return Reply({"data": [{"index": n, "embedding": [place[text]]} for n, text in enumerate(texts)]})

    server = HttpServer(reply).start()
    options = {"url": f"{server.url}/v1", "task": "embeddings", "model": "m", "prompt": "{id}", "batch-size": "2000"}
    schema = pa.schema([("id", pa.string()), ("n", pa.list_(pa.float32()))])
    connector = build_connector("openai", schema, options)

    async def look_up():
        await connector.open()
        try:
            return (await connector.lookup_async(REQUEST, pa.record_batch({"id": pa.array(TEXTS)}))).to_pylist()
        finally:
            await connector.close()

    found = asyncio.run(look_up())
    server.kill()
    assert {row["id"]: row["n"] for row in found} == {text: [number] for text, number in place.items()}
    assert len(found) == COUNT
    assert {requested.path for requested in server.requested} == {"/v1/embeddings"}


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_texts_as_keys_and_names_in_files(tmp_path):
    pq.write_table(rows(TEXTS), tmp_path / "a.parquet")
    assert numbers("files", {"path": str(tmp_path)}, TEXTS) == own(TEXTS)
    names = identifiers(500)
    pq.write_table(pa.table({name: [number] for number, name in enumerate(names)}), tmp_path / "b.parquet")
    schema = pa.schema([(name, pa.int64()) for name in names])
    connector = build_connector("files", schema, {"path": str(tmp_path / "b.parquet")})
    [batch] = connector.scan(LookupRequest(table="t", key_columns=(names[0],), columns=tuple(names[1:])))
    assert batch.to_pylist() == [{name: number for number, name in enumerate(names)}]


def table_file(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ["a"], "n": pa.array([number], pa.int64())}), path)


def scanned(**options):
    connector = build_connector("files", SCHEMA, options)
    return sorted(row["n"] for batch in connector.scan(REQUEST) for row in batch.to_pylist())


@pytest.mark.parametrize("link", ["a file", "a folder", "a link to a link", "a snapshot"])
def test_links_out_of_a_folder_are_refused(tmp_path, link):
    folder, outside = tmp_path / "folder", tmp_path / "folder-outside"
    table_file(folder / "in" / "a.parquet", 1)
    table_file(outside / "b.parquet", 2)
    options = {"path": str(folder)}
    if link == "a file":
        (folder / "b.parquet").symlink_to(outside / "b.parquet")
    elif link == "a folder":
        (folder / "more").symlink_to(outside)
    elif link == "a link to a link":
        (folder / "_hop").symlink_to(outside)
        (folder / "b.parquet").symlink_to(folder / "_hop" / "b.parquet")
    else:
        options["snapshots"] = "true"
        (outside / "_SUCCESS").touch()
        (folder / "z").symlink_to(outside)
    with pytest.raises(SourceError, match="is a link that leads out of the folder"):
        scanned(**options)


LOOPS = {"itself": {"current": "."}, "above": {"a/up": ".."}, "each other": {"a/to_b": "../b", "b/to_a": "../a"},
         "all": {f"{one}/to_{other}": f"../{other}" for one in "abcdefgh" for other in "abcdefgh"},
         "a folder beside it": {"c": "a"}}  # fmt: skip


@pytest.mark.parametrize("links", LOOPS.values(), ids=LOOPS)
def test_a_folder_that_is_repeated_by_a_link_is_refused(tmp_path, links):
    for folder in (tmp_path / "a", tmp_path / "b", tmp_path):
        table_file(folder / "t.parquet", 1)
    for link, to in links.items():
        (tmp_path / link).parent.mkdir(exist_ok=True)
        (tmp_path / link).symlink_to(to)
    with pytest.raises(SourceError, match="are one folder, by a link"):
        scanned(path=f"{tmp_path}/")
    for link in links:
        (tmp_path / link).unlink()
    assert scanned(path=str(tmp_path)) == [1, 1, 1]


def test_links_within_a_folder_and_to_it_are_followed(tmp_path):
    table_file(tmp_path / "real" / "_kept" / "a.parquet", 1)
    (tmp_path / "real" / "b.parquet").symlink_to(tmp_path / "real" / "_kept" / "a.parquet")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "one").symlink_to(tmp_path / "real" / "_kept" / "a.parquet")
    assert scanned(path=str(tmp_path / "link")) == [1]
    assert scanned(path=str(tmp_path / "one")) == [1]


def test_a_delta_table_does_not_lead_out_of_its_folder(tmp_path):
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "t"), rows(["a"]))
    table_file(tmp_path / "outside.parquet", 2)
    (tmp_path / "t" / "link.parquet").symlink_to(tmp_path / "outside.parquet")
    for path in ("../outside.parquet", str(tmp_path / "outside.parquet"), "link.parquet"):
        added = {"path": path, "partitionValues": {}, "size": os.path.getsize(tmp_path / "outside.parquet"),
                 "modificationTime": 0, "dataChange": True}  # fmt: skip
        log = tmp_path / "t" / "_delta_log" / f"{1:020}.json"
        log.write_text(json.dumps({"add": added}) + "\n")
        with pytest.raises((SourceError, OSError)):
            scanned(path=str(tmp_path / "t"), format="delta")


def test_the_tables_are_what_they_were(tmp_path):
    tables = TextTables(tmp_path / "t.db")
    options = tables.of(rows(TEXTS))
    with closing(sqlite3.connect(tables.path)) as database:
        before = list(database.iterdump())
        numbers("sql", options, TEXTS)
        assert list(database.iterdump()) == before
