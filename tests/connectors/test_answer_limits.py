"""No source fills a worker's memory: what it returns for a call is limited in bytes and in depth, on real servers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pytest
from databases import DuckTables, MariaTables, PostgresTables, SqliteTables
from redis._parsers import _RESP2Parser
from servers import HttpServer, Reply

from lookupcache.connector import LookupRequest, build_connector
from lookupcache.errors import OptionError, SourceError
from lookupcache.redis.address import Address

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
LISTS = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.string()))])
REQUEST = LookupRequest(table="t", key_columns=("id",), columns=("v",))
MOST = 1_000_000
TOO_LARGE = r"Table 't': the source returned more than 1,000,000 bytes(?s:.*)Hint: Raise option 'max-bytes'"
LARGE = 200_000_000
"""An answer that would be seen in the memory of the process."""
IN_MEMORY = 100_000_000


def keys(*ids):
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def look_up(connector, ids, is_async=False):
    if is_async:
        return asyncio.run(opened_and_looked_up(connector, ids))
    return connector.lookup(REQUEST, keys(*ids)).num_rows


async def opened_and_looked_up(connector, ids):
    await (connector.open() or asyncio.sleep(0))
    try:
        return (await connector.lookup_async(REQUEST, keys(*ids))).num_rows
    finally:
        await (connector.close() or asyncio.sleep(0))


def peak_memory(run):
    """Return by how many bytes the memory of this process grew at most while a function ran."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    run()
    return status("VmHWM") - before


def status(name):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


# ── databases ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def tables(request, tmp_path):
    kind = request.param
    if kind in (DuckTables, SqliteTables):
        return kind(tmp_path / "t.db")
    return kind(request.getfixturevalue("postgres_server" if kind is PostgresTables else "maria_server"))


every_database = pytest.mark.parametrize(
    "tables", [PostgresTables, MariaTables, DuckTables, SqliteTables], indirect=True
)
REPEATED = {
    PostgresTables: "SELECT CAST(1 AS BIGINT) AS id, repeat('x', {size}) AS v FROM generate_series(1, {rows})",
    MariaTables: "SELECT CAST(1 AS SIGNED) AS id, repeat('x', {size}) AS v FROM seq_1_to_{rows}",
    DuckTables: "SELECT CAST(1 AS BIGINT) AS id, repeat('x', {size}) AS v FROM range({rows})",
    SqliteTables: "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows}) "
    "SELECT 1 AS id, replace(hex(zeroblob({size} / 2)), '0', 'x') AS v FROM n",
}


@every_database
def test_the_rows_of_a_call_are_limited_in_bytes(tables):
    options = tables.of(pa.table({"id": pa.array(range(200), pa.int64()), "v": ["x" * 9_000] * 200}), ["id"])
    connector = build_connector("sql", SCHEMA, {**options, "max-bytes": str(MOST)})
    connector.open()
    with pytest.raises(SourceError, match=TOO_LARGE):
        look_up(connector, range(200))
    # The rest of that answer is not taken for the next one.
    assert look_up(connector, range(100, 150)) == 50
    assert look_up(connector, [7]) == 1
    assert sum(batch.num_rows for batch in connector.scan(REQUEST)) == 200
    connector.close()
    assert look_up(connector, range(50), is_async=True) == 50
    with pytest.raises(SourceError, match=TOO_LARGE):
        look_up(connector, range(200), is_async=True)


@every_database
@pytest.mark.parametrize(("rows", "size"), [(LARGE // 10_000, 10_000), (1_000_000, 2)], ids=["large", "many"])
def test_the_rows_of_a_key_do_not_fill_the_memory(tables, rows, size):
    existing = tables.of(pa.table({"id": pa.array([1], pa.int64())}))
    options = {name: value for name, value in existing.items() if name != "table"}
    options["query"] = REPEATED[type(tables)].format(rows=rows, size=size)
    connector = build_connector("sql", SCHEMA, {**options, "max-bytes": str(MOST)})
    connector.open()

    def refused():
        with pytest.raises(SourceError, match=TOO_LARGE):
            look_up(connector, [1])

    assert peak_memory(refused) < IN_MEMORY
    connector.close()


@every_database
def test_rows_without_texts_are_limited_too(tables):
    schema = pa.schema([("id", pa.int64()), ("v", pa.int32())])
    options = tables.of(pa.table({"id": pa.array([1] * 3_000, pa.int64()), "v": pa.array(range(3_000), pa.int32())}))
    connector = build_connector("sql", schema, {**options, "max-bytes": "20000"})
    connector.open()
    with pytest.raises(SourceError, match="more than 20,000 bytes"):
        look_up(connector, [1])
    assert look_up(connector, [2]) == 0
    connector.close()


@every_database
def test_a_limit_is_a_whole_number(tables):
    for wrong in ("many", "0", "-1", "1e9", "٣", "9" * 19, "9" * 5_000):
        with pytest.raises(OptionError, match=f"'max-bytes' is '{wrong}'"):
            build_connector("sql", SCHEMA, {**tables.options("t"), "max-bytes": wrong})


@pytest.mark.extended
@every_database
@pytest.mark.parametrize("most", ["9" * 18, str(2**31), str(2**32)])
def test_a_limit_may_be_as_large_as_that_none_is_meant(tables, most):
    options = tables.of(pa.table({"id": pa.array([1, 1], pa.int64()), "v": ["x", None]}), ["id"])
    connector = build_connector("sql", SCHEMA, {**options, "max-bytes": most})
    connector.open()
    assert look_up(connector, [1, 2]) == 2
    connector.close()


@pytest.mark.parametrize("tables", [PostgresTables, MariaTables, DuckTables], indirect=True)
def test_a_value_that_is_nested_too_deeply_in_a_database(tables):
    deep = "[" * 5_000 + "]" * 5_000
    options = tables.of(pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["[]", "[]"]}))
    kind = {PostgresTables: "json", MariaTables: "longtext", DuckTables: "json"}[type(tables)]
    tables.run(
        f"DROP TABLE {options['table']}",
        f"CREATE TABLE {options['table']} (id bigint, v {kind})",
        f"INSERT INTO {options['table']} VALUES (1, '{deep}'), (2, '[]')",
    )
    connector = build_connector("sql", LISTS, options)
    connector.open()
    with pytest.raises(SourceError, match="column 'v'"):
        look_up(connector, [1])
    assert look_up(connector, [2]) == 1
    connector.close()


# ── Redis ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["hiredis", "python"])
def parsers(request, monkeypatch):
    """Both parsers of redis-py: the one in C, if it is installed, and the one without."""
    if request.param == "python":
        original = Address.new_client

        def with_parser(self):
            server = original(self)
            server._client.connection_pool.connection_kwargs["parser_class"] = _RESP2Parser
            return server

        monkeypatch.setattr(Address, "new_client", with_parser)


def store(server, kind, values):
    with server.client() as client:
        client.flushall()
        for number, value in enumerate(values):
            if kind == "hash":
                client.hset(f"c:{number}", "v", value)
            else:
                client.set(f"c:{number}", value if kind == "string" else json.dumps({"v": value}))


@pytest.mark.parametrize("kind", ["hash", "string", "json"])
def test_the_replies_of_redis_are_limited_in_bytes(redis_server, parsers, kind):
    store(redis_server, kind, ["x" * 9_000] * 200)
    options = {"url": redis_server.url, "key": "c:{id}", "type": kind, "max-bytes": str(MOST)}
    connector = build_connector("redis", SCHEMA, options)
    connector.open()
    with pytest.raises(SourceError, match=TOO_LARGE):
        look_up(connector, range(200))
    assert look_up(connector, range(150, 200)) == 50
    assert sum(batch.num_rows for batch in connector.scan(REQUEST)) == 200
    connector.close()


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["hash", "string"])
def test_the_values_of_redis_do_not_fill_the_memory(redis_server, kind):
    store(redis_server, kind, ["x" * (LARGE // 10)] * 10)
    options = {"url": redis_server.url, "key": "c:{id}", "type": kind, "max-bytes": str(MOST)}
    connector = build_connector("redis", SCHEMA, options)
    connector.open()

    def refused():
        with pytest.raises(SourceError, match=TOO_LARGE):
            look_up(connector, range(10))

    assert peak_memory(refused) < IN_MEMORY
    connector.close()
    with redis_server.client() as client:
        client.flushall()


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["hash", "string", "json"])
def test_a_value_that_is_nested_too_deeply_in_redis(redis_server, kind):
    deep = "[" * 100_000 + "]" * 100_000
    with redis_server.client() as client:
        client.flushall()
        if kind == "hash":
            client.hset("c:1", "v", deep)
        else:
            client.set("c:1", deep if kind == "string" else f'{{"v": {deep}}}')
    connector = build_connector("redis", LISTS, {"url": redis_server.url, "key": "c:{id}", "type": kind})
    connector.open()
    with pytest.raises(SourceError, match="c:1"):
        look_up(connector, [1])
    connector.close()


# ── services ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_that_is_nested_too_deeply():
    server = HttpServer(lambda _: Reply("[" * 100_000 + "]" * 100_000)).start()
    connector = build_connector("http", LISTS, {"url": f"{server.url}/{{id}}"})
    connector.open()
    with pytest.raises(SourceError, match="nested too deeply"):
        look_up(connector, [1])
    connector.close()
    server.kill()
