"""The sql connector on real PostgreSQL and MariaDB servers and DuckDB files: what is the databases' own."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import os
import random
import socket
from decimal import Decimal
from urllib.parse import parse_qsl

import pyarrow as pa
import pytest
from databases import (
    DuckEngineTables,
    DuckTables,
    MariaTables,
    PostgresTables,
    PsycopgTables,
    PyMysqlTables,
    PysqliteTables,
    SqliteTables,
    sent_to,
)
from lookupcache_sql import pool
from lookupcache_sql.connector import SqlConnector
from lookupcache_sql.database import UnreachableError
from lookupcache_sql.postgres import PostgresDatabase, _address
from lookupcache_sql.server import DatabaseServer, tls_options
from servers import PASSWORD, MariaServer, PausedRelay, PostgresServer

from lookupcache.connector import LookupRequest, build_connector
from lookupcache.errors import ConnectorError, OptionError, SchemaError, SourceError
from lookupcache.expr import Call, Column, Literal, literal
from lookupcache.schema import parse_ddl, to_ddl
from lookupcache.table import LookupTable
from lookupcache.testing.checks import eventually

NAMES = ("postgres", "maria", "duckdb")
SERVERS = ("postgres", "maria")
DIALECTS = ("psycopg", "pymysql", "duckdb_engine", "pysqlite")
"""The drivers of dialects of SQLAlchemy."""

SERVER_DIALECTS = ("psycopg", "pymysql")


@pytest.fixture(scope="module")
def postgres(postgres_server):
    return PostgresTables(postgres_server)


@pytest.fixture(scope="module")
def maria(maria_server):
    return MariaTables(maria_server)


@pytest.fixture(scope="module")
def duckdb(tmp_path_factory):
    return DuckTables(tmp_path_factory.mktemp("duckdb") / "t.duckdb")


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory):
    return SqliteTables(tmp_path_factory.mktemp("sqlite") / "t.db")


@pytest.fixture(scope="module")
def psycopg(postgres_server):
    return PsycopgTables(postgres_server)


@pytest.fixture(scope="module")
def pymysql(maria_server):
    return PyMysqlTables(maria_server)


@pytest.fixture(scope="module")
def duckdb_engine(tmp_path_factory):
    return DuckEngineTables(tmp_path_factory.mktemp("duckdb") / "t.duckdb")


@pytest.fixture(scope="module")
def pysqlite(tmp_path_factory):
    return PysqliteTables(tmp_path_factory.mktemp("sqlite") / "t.db")


@pytest.fixture
def tables(request):
    """Return the tables of the database that the test names."""
    return request.getfixturevalue(request.param)


def each(*names):
    return pytest.mark.parametrize("tables", names, indirect=True)


def opened(options, schema):
    connector = SqlConnector(parse_ddl(schema), options)
    connector.open()
    return connector


def wanted(keys, columns=(), **rest):
    return LookupRequest(table="t", key_columns=tuple(keys), columns=tuple(columns), **rest)


def found(connector, request, *keys):
    """Look keys up, given as tuples; return the rows, sorted, and close."""
    fields = [connector.schema.field(name) for name in request.key_columns]
    columns = zip(*keys, strict=True) if keys else [()] * len(fields)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
    try:
        answer = connector.lookup(request, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
    finally:
        connector.close()
    return sorted((tuple(row.values()) for row in answer.to_pylist()), key=repr)


def made(tables, columns, *rows):
    """Make a table of the database's own types; return the options of the connector for it."""
    name = f"own{next(_NUMBERS)}"
    tables.run(f"CREATE TABLE {name} ({columns})", *(f"INSERT INTO {name} VALUES ({row})" for row in rows))
    return tables.options(name)


_NUMBERS = itertools.count()


# ── one question a call ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@each(*NAMES)
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize("key", [["i", "s"], ["i"], ["s", "d", "i"]])
def test_ten_thousand_keys_are_one_query(tables, key):
    rows = pa.table(
        {"i": range(10_000), "s": [f"s{i % 100}" for i in range(10_000)], "d": [dt.date(2020, 1, 1)] * 10_000}
    )
    connector = opened(tables.of(rows, key), "i BIGINT, s STRING, d DATE")
    count = sent_to(connector)
    assert (
        len(found(connector, wanted(key), *zip(*(rows.column(name).to_pylist() for name in key), strict=True)))
        == 10_000
    )
    assert count() == 1


@each("maria")
def test_rows_of_any_length_are_read_whole_and_in_order(tables):
    """The lengths at which the protocol or the buffer of a connection changes, many rows of one key."""
    lengths = [0, 1, 250, 251, 252, *range(8_150, 8_200), 65_535, 65_536, 2**24 - 1, 2**24, *[7] * 1_000]
    random.shuffle(lengths)
    options = made(tables, "id BIGINT, n BIGINT, v LONGTEXT, b LONGBLOB")
    rows = ", ".join(
        f"(1, {n}, repeat('é', {size // 2}), {f'repeat(x{chr(39)}ff{chr(39)}, {size})' if n % 3 else 'NULL'})"
        for n, size in enumerate(lengths)
    )
    tables.run(f"INSERT INTO {options['table']} VALUES {rows}")
    connector = opened(options, "id BIGINT, n BIGINT, v STRING, b BINARY")
    right = [(n, "é" * (size // 2), b"\xff" * size if n % 3 else None) for n, size in enumerate(lengths)]
    request = wanted(["id"], ["n", "v", "b"])
    one_key = connector.lookup(request, pa.record_batch({"id": [1]}))
    for answer in (one_key, pa.Table.from_batches(list(connector.scan(request)))):
        columns = answer.select(["n", "v", "b"]).to_pydict().values()
        assert sorted(zip(*columns, strict=True)) == right
    connector.close()


@pytest.mark.extended
@each(*NAMES, *DIALECTS)
def test_calls_at_the_same_time_share_few_connections(tables):
    connector = opened({**tables.of(pa.table({"i": range(100)}), ["i"]), "pool.size": "2"}, "i BIGINT")
    keys = [pa.record_batch({"i": [number]}) for number in range(100)]

    async def all_at_once():
        return await asyncio.gather(*(connector.lookup_async(wanted(["i"]), key) for key in keys))

    assert [answer.num_rows for answer in asyncio.run(all_at_once())] == [1] * 100
    assert len(connector._pool._free) <= 2
    connector.close()


@pytest.mark.extended(keep_one_in=2)
@each(*SERVERS, *SERVER_DIALECTS)
def test_a_restart_costs_one_retry_for_all_idle_connections(tables):
    connector = opened(tables.of(pa.table({"i": range(100)}), ["i"]), "i BIGINT")
    keys = [pa.record_batch({"i": [number]}) for number in range(100)]

    async def all_at_once():
        await asyncio.gather(*(connector.lookup_async(wanted(["i"]), key) for key in keys))

    asyncio.run(all_at_once())
    assert len(connector._pool._free) > 1
    tables.server.kill()
    tables.server.start()
    with pytest.raises(Exception, match=r"(?i)connection|server") as raised:
        connector.lookup(wanted(["i"]), keys[0])
    assert connector.retryable(raised.value)
    assert connector.lookup(wanted(["i"]), keys[0]).num_rows == 1
    connector.close()


SLOW = {
    "postgres": ("pg_sleep(60)::text", "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"),
    "maria": ("SLEEP(60)", "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%SLEEP(60)%'"
              " AND id <> connection_id()"),
}  # fmt: skip
SLOW |= {"psycopg": SLOW["postgres"], "pymysql": SLOW["maria"]}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("tables", "name"), [(name, name) for name in (*SERVERS, *SERVER_DIALECTS)], indirect=["tables"]
)
def test_an_abandoned_call_is_cancelled_in_the_database(tables, name):
    sleep, running = SLOW[name]
    whole = made(tables, "id int", "1")
    query = f"SELECT id, {sleep} AS s FROM {whole['table']}"
    connector = opened({"url": whole["url"], "query": query}, "id INT, s STRING" if "pg" in sleep else "id INT, s INT")

    async def given_up():
        call = asyncio.create_task(
            connector.lookup_async(wanted(["id"], ["s"]), pa.record_batch({"id": pa.array([1], pa.int32())}))
        )
        assert await asyncio.to_thread(eventually, lambda: tables.server.ask(running) == 1, 30)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    asyncio.run(given_up())
    assert eventually(lambda: tables.server.ask(running) == 0, 30)
    connector.close()


# ── texts as databases compare them ──────────────────────────────────────────────────────────────────────────

COLLATED = [
    ("postgres", "text"),
    ("postgres", "text COLLATE looser"),
    ("postgres", "char(3)"),
    ("postgres", "varchar(3) COLLATE \"C\""),
    ("maria", "varchar(5) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"),
    ("maria", "varchar(5) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
    ("maria", "varchar(5) CHARACTER SET latin1 COLLATE latin1_swedish_ci"),
    ("maria", "char(5) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"),
    ("duckdb", "varchar COLLATE nocase"),
]  # fmt: skip
THROUGH = {"postgres": "psycopg", "maria": "pymysql", "duckdb": "duckdb_engine"}
COLLATED_DIALECTS = [*((THROUGH[name], type_) for name, type_ in COLLATED), ("pysqlite", "text COLLATE nocase")]


@pytest.mark.extended
@pytest.mark.parametrize(("tables", "type_"), [*COLLATED, *COLLATED_DIALECTS], indirect=["tables"])
@pytest.mark.parametrize("key", [["s"], ["s", "n"]])
def test_a_collation_hides_no_row_and_brings_none_twice(tables, type_, key):
    if "looser" in type_:
        tables.run(
            "CREATE COLLATION IF NOT EXISTS looser (provider = icu, locale = 'und-u-ks-level1', deterministic = false)"
        )
    texts = ["a", "A", "é", "e", "E", "ß"]
    options = made(tables, f"s {type_}, n int", *(f"'{text}', 1" for text in texts))
    keys = [*texts, "a ", "😀", "ss"]
    rows = found(opened(options, "s STRING, n INT"), wanted(key), *[(text, 1)[: len(key)] for text in keys])
    assert sorted(row[0] for row in rows) == sorted(texts)


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.parametrize(("tables", "type_"), COLLATED, indirect=["tables"])
@pytest.mark.parametrize("op", ["=", "<", ">=", "<=>"])
def test_a_pushed_comparison_of_texts_is_one_of_bytes(tables, type_, op):
    if "looser" in type_:
        tables.run(
            "CREATE COLLATION IF NOT EXISTS looser (provider = icu, locale = 'und-u-ks-level1', deterministic = false)"
        )
    texts = ["a", "A", "b", "B", "é", "Z"]
    options = made(tables, f"n int, s {type_}", *(f"1, '{text}'" for text in texts))
    test = Call(op, (Column("right", "s", pa.string()), Literal("a", pa.string())))
    connector = opened(options, "n INT, s STRING")
    assert connector.accept([test]) == [test]
    compare = {"=": str.__eq__, "<=>": str.__eq__, "<": str.__lt__, ">=": str.__ge__}[op]
    rows = found(connector, wanted(["n"], ["s"], filters=(test,)), (1,))
    assert [text for _, text in rows] == sorted(text for text in texts if compare(text, "a"))


# ── types of the databases' own ──────────────────────────────────────────────────────────────────────────────

A_UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
NEW_YEAR = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
OWN = [
    ("postgres", "uuid", f"'{A_UUID}'", "STRING", A_UUID, A_UUID.upper()),
    ("postgres", "uuid", f"'{A_UUID}'", "STRING", A_UUID, "no uuid"),
    ("postgres", "inet", "'10.0.0.1/8'", "STRING", "10.0.0.1/8", "10.0.0.1"),
    ("postgres", "mood", "'sad'", "STRING", "sad", "glad"),
    ("postgres", "numeric", "12.5", "DECIMAL(38,18)", Decimal("12.5"), Decimal("12.6")),
    ("postgres", "numeric(20,0)", "12", "BIGINT", 12, 13),
    ("postgres", "smallint", "12", "BIGINT", 12, 2**40),
    ("postgres", "real", "0.1", "DOUBLE", 0.10000000149011612, 0.1),
    ("postgres", "timestamptz", "'2020-01-01 02:00+02'", "TIMESTAMP", NEW_YEAR, NEW_YEAR.replace(hour=2)),
    ("maria", "bigint unsigned", "18446744073709551615", "DECIMAL(20,0)", Decimal(2**64 - 1), Decimal(1)),
    ("maria", "bit(1)", "b'1'", "BOOLEAN", True, False),
    ("maria", "enum('a','B')", "'B'", "STRING", "B", "b"),
    ("maria", "float", "0.1", "DOUBLE", 0.10000000149011612, 0.1),
    ("maria", "timestamp(6)", "'2020-01-01 00:00:00.000001'", "TIMESTAMP", NEW_YEAR.replace(microsecond=1), NEW_YEAR),
    ("maria", "time", "'10:11:12'", "STRING", "10:11:12", "10:11"),
    ("maria", "uuid", f"'{A_UUID}'", "STRING", A_UUID, A_UUID.upper()),
    ("maria", "uuid", f"'{A_UUID}'", "STRING", A_UUID, "no uuid"),
    ("maria", "inet6", "'::1'", "STRING", "::1", "0:0:0:0:0:0:0:1"),
    ("maria", "set('a','B')", "'a,B'", "STRING", "a,B", "a,b"),
    ("maria", "binary(3)", "'a'", "BINARY", b"a\0\0", b"a"),
    ("duckdb", "uuid", f"'{A_UUID}'", "STRING", A_UUID, "no uuid"),
    ("duckdb", "utinyint", "255", "SMALLINT", 255, -1),
    ("duckdb", "hugeint", "12", "DECIMAL(38,0)", Decimal(12), Decimal(10) ** 37),
    ("duckdb", "timestamp_s", "'2020-01-01'", "TIMESTAMP_NTZ", dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2)),
]  # fmt: skip


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize(("tables", "native", "stored", "type_", "value", "other"), OWN, indirect=["tables"])
def test_a_type_of_the_databases_own_as_value_key_and_constant(tables, native, stored, type_, value, other):
    if native == "mood":
        tables.run("DROP TYPE IF EXISTS mood CASCADE", "CREATE TYPE mood AS ENUM ('sad', 'glad')")
    options = made(tables, f"id int, k {native}", f"1, {stored}")
    schema = f"id INT, k {type_}"
    assert found(opened(options, schema), wanted(["id"], ["k"]), (1,)) == [(1, value)]
    assert found(opened(options, schema), wanted(["k"], ["id"]), (value,), (other,)) == [(value, 1)]
    assert found(opened(options, schema), wanted(["id", "k"]), (1, value), (1, other)) == [(1, value)]
    assert found(opened(options, schema), wanted(["id"], ["k"], constants={"k": value}), (1,)) == [(1, value)]
    assert found(opened(options, schema), wanted(["id"], ["k"], constants={"k": other}), (1,)) == []


NESTED = [
    ("postgres", "int[]", "ARRAY[1,NULL]", "ARRAY<INT>", [1, None]),
    ("postgres", "int[]", "ARRAY[ARRAY[1],ARRAY[2]]", "ARRAY<ARRAY<INT>>", [[1], [2]]),
    ("postgres", "jsonb", "'{\"a\": 1.50}'", "MAP<STRING, DECIMAL(4,2)>", [("a", Decimal("1.50"))]),
    ("maria", "json", "'{\"a\": 1.50}'", "STRUCT<a: DECIMAL(4,2)>", {"a": Decimal("1.50")}),
    ("duckdb", "struct(a int, b text[])", "{'a': 1, 'b': ['x']}", "STRUCT<a: INT, b: ARRAY<STRING>>",
     {"a": 1, "b": ["x"]}),
    ("duckdb", "json", "'[1, 2]'", "ARRAY<INT>", [1, 2]),
]  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize(("tables", "native", "stored", "type_", "value"), NESTED, indirect=["tables"])
def test_nested_values(tables, native, stored, type_, value):
    options = made(tables, f"id int, v {native}", f"1, {stored}")
    assert found(opened(options, f"id INT, v {type_}"), wanted(["id"], ["v"]), (1,)) == [(1, value)]


MISFITS = [
    ("postgres", "bigint", "3000000000", "INT", "3000000000"),
    ("postgres", "numeric", "1.555", "DECIMAL(4,2)", "1.555"),
    ("postgres", "numeric", "'NaN'", "DECIMAL(4,2)", "NaN"),
    ("postgres", "date", "'infinity'", "DATE", ""),
    ("postgres", "timestamp", "'-infinity'", "TIMESTAMP_NTZ", ""),
    ("postgres", "jsonb", "'{\"a\": \"x\"}'", "STRUCT<a: INT>", "x"),
    ("maria", "tinyint", "7", "BOOLEAN", "7"),
    ("maria", "decimal(10,3)", "1.555", "DECIMAL(4,2)", "1.555"),
    ("duckdb", "bigint", "3000000000", "INT", "3000000000"),
    ("duckdb", "timestamp_ns", "'2020-01-01 00:00:00.123456789'", "TIMESTAMP_NTZ", ""),
]  # fmt: skip


@pytest.mark.parametrize(("tables", "native", "stored", "type_", "shown"), MISFITS, indirect=["tables"])
def test_a_value_that_does_not_fit_its_type_is_an_error(tables, native, stored, type_, shown):
    options = made(tables, f"id int, v {native}", f"1, {stored}")
    with pytest.raises(SourceError, match=r"Table 't', column 'v'") as raised:
        found(opened(options, f"id INT, v {type_}"), wanted(["id"], ["v"]), (1,))
    assert shown in str(raised.value)


@pytest.mark.parametrize(
    ("tables", "native", "type_", "hint"),
    [
        ("postgres", "integer", "STRING", "Declare it INT"),
        ("postgres", "timestamp", "TIMESTAMP", "Declare it TIMESTAMP_NTZ"),
        ("postgres", "double precision", "FLOAT", "Declare it DOUBLE"),
        ("postgres", "point", "BIGINT", "declare it STRING"),
        ("postgres", "mood_in_lower_case", "BIGINT", "Declare it STRING"),
        ("maria", "varchar(5)", "BIGINT", "Declare it STRING"),
        ("maria", "point", "STRING", "Leave the column out"),
        ("duckdb", "varchar", "DATE", "Declare it STRING"),
    ],
    indirect=["tables"],
)
def test_a_type_that_the_column_is_not_read_as(tables, native, type_, hint):
    if native.startswith("mood"):
        tables.run("CREATE TYPE mood_in_lower_case AS ENUM ('a')")
    options = made(tables, f"id int, v {native}")
    with pytest.raises(SchemaError, match=rf"Column 'v' is (?s:.*){hint}"):
        opened(options, f"id INT, v {type_}")


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────────


@each(*NAMES, *DIALECTS)
def test_views_and_queries_are_tables(tables):
    options = made(tables, "id int, n int", "1, 10", "2, 20")
    tables.run(f"CREATE VIEW v_{options['table']} AS SELECT * FROM {options['table']} WHERE n > 10")
    view = {**options, "table": f"v_{options['table']}"}
    query = {"url": options["url"], "query": f"SELECT id, n + 1 AS n FROM {options['table']} -- all of them\n;"}
    assert found(opened(view, "id INT, n INT"), wanted(["id"], ["n"]), (1,), (2,)) == [(2, 20)]
    assert found(opened(query, "id INT, n BIGINT"), wanted(["id"], ["n"]), (2,)) == [(2, 21)]
    with pytest.raises(ConnectorError, match="Option 'query'"):
        opened({"url": options["url"], "query": "SELECT x FROM nowhere"}, "x INT")


# ── queries as people write them ─────────────────────────────────────────────────────────────────────────────

ALL = ("sqlite", *NAMES)
TEXTS = ["", "it's", ";", ")", "(", "--", "/*", "*/", "#", '"', "`", "$$", "a;b -- c", "');--", "?", "%s", "{0}"]
COMMENTS = ["", " ", "\n", "-- a comment; (of it's own)\n", "/* ; ) ' */", "/* -- */"]
ENDS = ["", ";", " ; ;", "-- the end", "-- it's the end; )", "; -- the end", "/* ) */", ";\n-- a\n;/* b */\n", "\n"]
WRONG = ["; SELECT 1", "; DROP TABLE {0}", ")", "(", "'", '"', "/*", ") UNION ALL (SELECT 7, 'x'",
         ") AS t -- ", "; ; x", "; -- \nx", "-- \n)"]  # fmt: skip


def drawn_query(tables, table, draw):
    """Return a query of one row, and the text in that row."""
    text, blank = "".join(draw.choices(TEXTS, k=2)), lambda: draw.choice(COMMENTS)
    nested = f"SELECT id FROM (SELECT {blank()} id FROM {table}) AS `x;)`".replace("`", tables.mark)
    query = f"{blank()}SELECT {blank()} id, {tables.literal(text, pa.string())} AS v FROM ({nested}) AS y{blank()}"
    return query, text


@pytest.mark.extended
@each(*ALL, *DIALECTS)
def test_a_query_may_end_in_anything_but_another_statement(tables):
    whole = made(tables, "id int", "1")
    for number in range(40):
        draw = random.Random(f"query {number}")
        query, text = drawn_query(tables, whole["table"], draw)
        options = {"url": whole["url"], "query": query + draw.choice(ENDS)}
        assert found(opened(options, "id INT, v STRING"), wanted(["id"], ["v"]), (1,)) == [(1, text)], options["query"]


@pytest.mark.extended(keep_one_in=10)
@each(*ALL, *DIALECTS)
@pytest.mark.parametrize("end", WRONG)
def test_a_query_that_would_not_stay_in_its_brackets_is_refused(tables, end):
    whole = made(tables, "id int", "1")
    query, _ = drawn_query(tables, whole["table"], random.Random(end))
    with pytest.raises(OptionError, match="'query'"):
        opened({"url": whole["url"], "query": query + end.format(whole["table"])}, "id INT, v STRING")


@pytest.mark.extended(keep_one_in=5)
@each(*ALL, *DIALECTS)
@pytest.mark.parametrize("query", ["", ";", "-- x", "DELETE FROM {0}", "SELECT x FROM {0}", "SELECT FROM WHERE",
                                   "WITH d AS (DELETE FROM {0} RETURNING id) SELECT * FROM d"])  # fmt: skip
def test_an_invalid_query_is_rejected_by_name(tables, query):
    whole = made(tables, "id int", "1")
    with pytest.raises((OptionError, ConnectorError), match="'query'"):
        opened({"url": whole["url"], "query": query.format(whole["table"])}, "id INT")


# ── files that others replace ────────────────────────────────────────────────────────────────────────────────


def publish(kind, path, value):
    """Make a database with one row and put it in the place of another, as those do who publish by renaming."""
    new = kind(path.with_suffix(".new"))
    new.run("CREATE TABLE t (id int, v varchar)", f"INSERT INTO t VALUES (1, '{value}')")
    os.replace(new.path, path)


@pytest.mark.parametrize("kind", [SqliteTables, DuckTables])
def test_a_replaced_file_is_opened_again_by_each_connection(tmp_path, kind):
    path = tmp_path / "shop.db"
    publish(kind, path, "first")
    connectors = [opened(kind(path).options("t"), "id INT, v STRING") for _ in range(2)]
    request, key = wanted(["id"], ["v"]), pa.record_batch({"id": pa.array([1], pa.int32())})
    for value in ("first", "second", "third"):
        publish(kind, path, value)
        for connector in connectors:
            assert connector.lookup(request, key).column("v").to_pylist() == [value]
            assert [row["v"] for batch in connector.scan(request) for row in batch.to_pylist()] == [value]
    for connector in connectors:
        connector.close()


@pytest.mark.parametrize("kind", [SqliteTables, DuckTables])
def test_only_new_calls_read_a_file_that_replaces_another(tmp_path, kind):
    """A running scan reads the old file to its end."""
    path = tmp_path / "shop.db"
    publish(kind, path, "first")
    connector = opened({**kind(path).options("t"), "pool.size": "2"}, "id INT, v STRING")
    under_way = connector.scan(wanted(["id"], ["v"]))
    first = next(under_way)
    publish(kind, path, "second")
    with_key = pa.record_batch({"id": pa.array([1], pa.int32())})
    assert connector.lookup(wanted(["id"], ["v"]), with_key).column("v").to_pylist() == ["second"]
    assert [row["v"] for batch in [first, *under_way] for row in batch.to_pylist()] == ["first"]
    assert connector.lookup(wanted(["id"], ["v"]), with_key).column("v").to_pylist() == ["second"]
    connector.close()


@pytest.mark.parametrize("kind", [SqliteTables, DuckTables])
def test_a_removed_file_is_read_until_there_is_another(tmp_path, kind):
    path = tmp_path / "memory.db"
    publish(kind, path, "first")
    connector = opened(kind(path).options("t"), "id INT, v STRING")
    path.unlink()
    with_key = pa.record_batch({"id": pa.array([1], pa.int32())})
    assert connector.lookup(wanted(["id"], ["v"]), with_key).column("v").to_pylist() == ["first"]
    publish(kind, path, "second")
    assert connector.lookup(wanted(["id"], ["v"]), with_key).column("v").to_pylist() == ["second"]
    connector.close()


# ── places, again ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tables", "url"),
    [
        ("postgres", "postgresql://shop:{password}@/postgres?host={folder}&port={port}"),
        ("postgres", "postgresql://shop:{password}@{quoted}:{port}/postgres"),
        ("maria", "mariadb://shop:{password}@/shop?unix_socket={folder}/socket"),
        ("maria", "mysql://shop:{password}@localhost/shop?unix_socket={folder}/socket"),
    ],
    indirect=["tables"],
)
def test_a_server_by_its_unix_socket(tables, url):
    server = tables.server
    if server.external_url:
        pytest.skip("the server given by the environment may be on another machine")
    parts = {"folder": server.folder, "quoted": str(server.folder).replace("/", "%2F"), "port": server.port}
    options = {**made(tables, "id int", "1"), "url": url.format(password=PASSWORD, **parts)}
    assert found(opened(options, "id INT"), wanted(["id"]), (1,)) == [(1,)]
    away = {
        **options,
        "url": options["url"].replace(str(server.folder), "/nowhere").replace(parts["quoted"], "%2Fnowhere"),
    }
    with pytest.raises(UnreachableError, match="on the socket '/nowhere") as raised:
        opened(away, "id INT")
    assert PASSWORD not in str(raised.value)


def test_a_table_of_another_schema(postgres):
    postgres.run("CREATE SCHEMA IF NOT EXISTS \"odd.one\"", "CREATE TABLE \"odd.one\".\"T\" (\"a\"\"b\" int)",
                 "INSERT INTO \"odd.one\".\"T\" VALUES (1)")  # fmt: skip
    options = {**postgres.options("T"), "schema": "odd.one"}
    connector = SqlConnector(pa.schema([('a"b', pa.int32())]), options)
    connector.open()
    assert found(connector, wanted(['a"b']), (1,)) == [(1,)]
    with pytest.raises(ConnectorError, match="'schema' = 'sales' and 'table' = 'orders'"):
        opened(postgres.options("sales.orders"), "id INT")


INFERRED = {
    "postgres": ("a int NOT NULL, b numeric(10,2), c varchar(5), d timestamptz, e jsonb, f int[], g bool, h bytea",
                 "a INT, b DECIMAL(10,2), c STRING, d TIMESTAMP, e STRING, f ARRAY<INT>, g BOOLEAN, h BINARY"),
    "maria": ("a int NOT NULL, b decimal(10,2), c varchar(5), d timestamp NULL, e json, f tinyint(1), g int unsigned, "
              "h blob, i datetime", "a INT, b DECIMAL(10,2), c STRING, d TIMESTAMP, e STRING, f BOOLEAN, g BIGINT, "
              "h BINARY, i TIMESTAMP_NTZ"),
    "duckdb": ("a int, b decimal(10,2), c varchar, d timestamptz, e json, f int[], g bool, h blob, i uinteger",
               "a INT, b DECIMAL(10,2), c STRING, d TIMESTAMP, e STRING, f ARRAY<INT>, g BOOLEAN, h BINARY, i BIGINT"),
}  # fmt: skip


@pytest.mark.parametrize(("tables", "name"), [(name, name) for name in NAMES], indirect=["tables"])
def test_without_a_schema_the_database_describes_it(tables, name):
    columns, schema = INFERRED[name]
    options = {"connector": "sql", **made(tables, columns)}
    assert to_ddl(LookupTable("t", None, options).schema) == to_ddl(parse_ddl(schema))
    query = {"connector": "sql", "url": options["url"], "query": f"SELECT * FROM {options['table']}"}
    inferred = LookupTable("t", None, query).schema
    # What a tinyint or a text means, a query's result does not say.
    assert [field for field in inferred if field.name != "f"] == [
        field for field in parse_ddl(schema) if field.name != "f"
    ]


def test_a_column_without_a_type_of_sparks_is_named(postgres):
    with pytest.raises(SchemaError, match=r"Column 'p' is POINT(?s:.*)declares it STRING"):
        LookupTable("t", None, {"connector": "sql", **made(postgres, "p point")})


ODD_NAMES = [
    ("maria", "enum('a','B')", "ENUM('a','B')", "BIGINT", "BIGINT"),
    ("duckdb", "enum('a','B')[]", "ENUM('a', 'B')[]", "BIGINT", "BIGINT"),
    ("duckdb", 'struct("Town" int)', "STRUCT(Town INTEGER)", "STRUCT<Place: INT>", "STRUCT<`Place`:INT>"),
    ("postgres", "int", "INT4", "STRUCT<Town: INT>", "STRUCT<`Town`:INT>"),
]


@pytest.mark.parametrize(("tables", "native", "shown", "type_", "as_shown"), ODD_NAMES, indirect=["tables"])
def test_an_error_spells_members_as_they_are(tables, native, shown, type_, as_shown):
    with pytest.raises(SchemaError) as raised:
        opened(made(tables, f"id int, v {native}"), f"id INT, v {type_}")
    assert f"is {shown} in the database, and cannot be read as {as_shown}." in str(raised.value)


# ── what is wrong is said ────────────────────────────────────────────────────────────────────────────────────


@each(*NAMES, *SERVER_DIALECTS, "pysqlite")
def test_unknown_tables_and_columns_are_named_with_the_nearest(tables):
    options = made(tables, "id int, salary int")
    tables.run("CREATE TABLE IF NOT EXISTS customers_of_ours (id int)")
    with pytest.raises(ConnectorError, match=r"'table'.*'custmers_of_ours'(?s:.*)'customers_of_ours'"):
        opened({**options, "table": "custmers_of_ours"}, "id INT")
    with pytest.raises(SchemaError, match=r"'salery'(?s:.*)'salary'"):
        opened(options, "id INT, salery INT")


@each(*SERVERS, *SERVER_DIALECTS)
def test_a_wrong_password_or_database_is_refused_at_once(tables):
    url = tables.options("")["url"]
    for wrong in (url.replace(PASSWORD, "wr%ng"), url.replace(PASSWORD, "wrong-one"), url + "_not_there"):
        with pytest.raises(ConnectorError, match=r"Option 'url': database .* refuses") as raised:
            opened({"url": wrong, "table": "t"}, "id INT")
        assert "wr%ng" not in str(raised.value)
        assert "wrong-one" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_a_service_that_no_file_defines_is_refused_at_once(scheme):
    options = {"url": f"{scheme}://u@127.0.0.1:1/d?service=nowhere", "table": "t"}
    with pytest.raises(ConnectorError, match='definition of service "nowhere" not found'):
        opened(options, "id INT")


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_a_parameter_that_libpq_does_not_know_is_refused_at_once(scheme):
    with pytest.raises(ConnectorError, match=r"Option 'url': .*sslmod"):
        opened({"url": f"{scheme}://u@127.0.0.1:1/d?sslmod=require", "table": "t"}, "id INT")


@pytest.mark.parametrize(("url", "fact"), [
    ("postgresql://a:1,b:2/d", "one server"), ("postgresql:///d?host=a,b&port=1,2", "one server"),
    ("postgresql+psycopg://u@/d?host=/a,/b&port=1", "number of hosts and ports"),
])  # fmt: skip
def test_a_url_of_several_servers_is_refused_by_name(url, fact):
    with pytest.raises(OptionError, match=f"Option 'url'.*{fact}"):
        opened({"url": url, "table": "t"}, "id INT")


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "postgresql+psycopg", "mysql+pymysql"])
def test_a_server_that_is_away_is_retried(scheme):
    connector = SqlConnector(parse_ddl("id INT"), {"url": f"{scheme}://u:{PASSWORD}@127.0.0.1:1/d", "table": "t"})
    with pytest.raises(UnreachableError, match=r"'d' on 127\.0\.0\.1:1 cannot be reached") as raised:
        connector.open()
    assert connector.retryable(raised.value)
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize(
    ("password", "text", "shown"),
    [
        ("b", "database of bob: b is wrong", "database of bob: *** is wrong"),
        ("s3cret", "it is xs3crety", "it is x***y"),
        ("a@b", "at a%40b", "at ***"),
        ("", "as it is", "as it is"),
    ],
)
def test_a_password_is_hidden_in_a_drivers_text(password, text, shown):
    assert DatabaseServer("h", 1, "d", "u", password).without_password(text) == shown


@pytest.mark.parametrize(
    ("reason", "is_final"),
    [
        ('could not translate host name "db" to address: Temporary failure in name resolution', False),
        ("SSL SYSCALL error: EOF detected", False),
        ("SSL connection has been closed unexpectedly", False),
        ("SSL error: unexpected eof while reading", False),
        ("server does not support SSL, but SSL was required", True),
        ("SSL error: certificate verify failed", True),
        ('password authentication failed for user "u"', True),
        ('FATAL: too many connections for role "u"', False),
    ],
)
def test_an_error_of_a_lost_connection_is_not_final(reason, is_final):
    url = {"url": f"postgresql://u:{PASSWORD}@127.0.0.1:1/d", "table": "t"}
    error = PostgresDatabase(parse_ddl("id INT"), url)._connection_error(Exception(f"Failed to connect: {reason}"))
    assert isinstance(error, ConnectorError) == is_final
    assert ("'pool.size'" in str(error)) == ("too many" in reason)


@pytest.fixture
def silent():
    """Return the port of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_connecting_to_a_silent_server_times_out(scheme, silent):
    options = {"url": f"{scheme}://u:p@127.0.0.1:{silent}/d", "table": "t", "connect.timeout": "1"}
    connector = SqlConnector(parse_ddl("id INT"), options)
    with pytest.raises(UnreachableError, match="cannot be reached") as raised:
        connector.open()
    assert connector.retryable(raised.value)


@each(*SERVERS)
def test_calls_that_a_server_does_not_answer_free_their_threads(tables, monkeypatch):
    monkeypatch.setattr(pool, "SECONDS_TO_END", 0.2)
    relay = PausedRelay(tables.server.port)
    options = made(tables, "id int", "1")
    options["url"] = options["url"].replace(f":{tables.server.port}/", f":{relay.port}/")
    connector = opened({**options, "pool.size": "2", "connect.timeout": "1"}, "id INT")
    key = pa.record_batch({"id": pa.array([1], pa.int32())})

    async def look_up(seconds):
        return (await asyncio.wait_for(connector.lookup_async(wanted(["id"]), key), seconds)).to_pylist()

    async def calls():
        assert await look_up(30) == [{"id": 1}]
        relay.pause()
        for _ in range(4):
            with pytest.raises(TimeoutError):
                await look_up(0.3)
        relay.go_on()
        return await look_up(30)

    assert asyncio.run(calls()) == [{"id": 1}]
    connector.close()
    relay.close()


@pytest.mark.parametrize(
    ("tables", "type_", "outside"),
    [
        ("postgres", "DATE", [-(2**31), 2**31 - 1]), ("maria", "DATE", [-(2**31), -719_529, 2_932_897, 2**31 - 1]),
        ("postgres", "TIMESTAMP", [-(2**63) + 1]), ("maria", "TIMESTAMP_NTZ", [-(2**63) + 1, 253_402_300_800_000_000]),
    ],
    indirect=["tables"],
)  # fmt: skip
def test_a_date_that_the_database_cannot_hold_has_no_rows(tables, type_, outside):
    native = {"DATE": "date", "TIMESTAMP": "timestamptz", "TIMESTAMP_NTZ": "datetime(6)"}[type_]
    options = made(tables, f"k {native}, v int", "'2024-05-01', 1")
    connector = opened(options, f"k {type_}, v INT")
    field = connector.schema.field("k")
    inside = pa.array([dt.datetime(2024, 5, 1, tzinfo=dt.UTC)]).cast(field.type, safe=False)
    keys = pa.concat_arrays([pa.array(outside, pa.int32() if type_ == "DATE" else pa.int64()).view(field.type), inside])
    answer = connector.lookup(wanted(["k"], ["v"]), pa.RecordBatch.from_arrays([keys], schema=pa.schema([field])))
    connector.close()
    assert answer.column("v").to_pylist() == [1]


def test_keys_too_long_for_one_query_are_sent_in_several(maria):
    connector = opened(made(maria, "k longtext, v int", "'a', 1", "'b', 2"), "k STRING, v INT")
    connector._pool._free[0]._most_sent = 5_000
    keys = ["a", *(f"{n}{'x' * 100}" for n in range(200)), "b"]
    count = sent_to(connector)
    answer = connector.lookup(wanted(["k"], ["v"]), pa.record_batch({"k": keys}))
    assert sorted(answer.column("v").to_pylist()) == [1, 2]
    assert count() == 1
    with pytest.raises(SourceError, match=r"a key is too long for one query.*max_allowed_packet"):
        connector.lookup(wanted(["k"], ["v"]), pa.record_batch({"k": ["x" * 6_000]}))
    connector.close()


def test_a_key_of_a_type_that_spark_lacks_is_found_by_its_index(maria):
    made_table = made(maria, "k uuid primary key, v int")
    maria.run(f"INSERT INTO {made_table['table']} SELECT UUID(), seq FROM seq_1_to_2000")
    connector = opened(made_table, "k STRING, v INT")
    database = connector._pool._free[0]
    text = database._text(wanted(["k"], ["v"]), keyed=True).replace("%s", "'[]'")
    with database._connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {text}")
        plan = [dict(zip([column[0] for column in cursor.description], row, strict=True)) for row in cursor.fetchall()]
    connector.close()
    assert [row["key"] for row in plan if row["table"] == "t"] == ["PRIMARY"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"url": "postgresql://host", "table": "t"}, "url"),
        ({"url": "postgresql://h:port/d", "table": "t"}, "url"),
        ({"url": "mysql://h/d", "table": "t", "schema": "s"}, "schema"),
        ({"url": "mysql://h/d"}, "table"),
        ({"url": "mysql://h/d", "table": "t", "query": "SELECT 1"}, "query"),
        ({"url": "postgresql://h/d", "table": "t", "tls": "yes"}, "tls.mode"),
        ({"url": "postgresql://h/d", "table": "t", "statement.timeout": "soon"}, "statement.timeout"),
        ({"url": "postgresql://h/d", "table": "t", "pool.size": "0"}, "pool.size"),
        ({"url": "duckdb:///t", "table": "t", "statement.timeout": "1"}, "statement.timeout"),
        ({"url": "duckdb:///", "table": "t"}, "url"),
        ({"url": "postgersql://h/d", "table": "t"}, "postgresql"),
        ({"url": "postgersql+psycopg://h/d", "table": "t"}, "postgersql.psycopg"),
        ({"url": "postgresql+asyncpg://h/d", "table": "t"}, "postgresql.asyncpg"),
        ({"url": "mysql+pymysql://h:port/d", "table": "t"}, "url"),
        ({"url": "mysql+pymysql://h/d", "table": "t", "tls.mode": "require"}, "tls.mode"),
        ({"url": "sqlite+pysqlite:///t", "table": "t", "statement.timeout": "1"}, "statement.timeout"),
        ({"url": "sqlite+pysqlite:///t", "table": "t", "connect.timeout": "1"}, "connect.timeout"),
    ],
)
def test_bad_options_are_refused_on_the_driver(options, named):
    with pytest.raises(OptionError, match=f"'{named}'"):
        build_connector("sql", parse_ddl("k BIGINT"), options)


def test_a_missing_driver_is_named_on_the_driver(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConnectorError, match=r"adbc_driver_postgresql(?s:.*)pip install 'lookupcache\[postgres\]'"):
        build_connector("sql", parse_ddl("k BIGINT"), {"url": "postgresql://h/d", "table": "t"})


@each(*SERVERS)
def test_the_session_only_reads(tables):
    options = made(tables, "id int", "1")
    connector = opened(options, "id INT")
    with pytest.raises(Exception, match=r"(?i)read.only"):
        list(connector._pool._free[0].stream_columns(f"DELETE FROM {options['table']}"))
    assert found(connector, wanted(["id"]), (1,)) == [(1,)]


@each(*SERVERS, *SERVER_DIALECTS)
def test_a_slow_query_is_cancelled_and_may_be_retried(tables):
    sleep = "pg_sleep(20)::text" if isinstance(tables, PostgresTables) else "SLEEP(20)"
    whole = made(tables, "id int", "1")
    query = f"SELECT id, {sleep} AS s FROM {whole['table']}"
    options = {"url": whole["url"], "query": query, "statement.timeout": "0.2"}
    connector = opened(options, "id INT, s STRING" if "pg" in sleep else "id INT, s INT")
    with pytest.raises(Exception, match=r"(?i)timeout|interrupted|exceeded") as raised:
        found(connector, wanted(["id"], ["s"]), (1,))
    assert connector.retryable(raised.value)


@each(*SERVERS, *SERVER_DIALECTS, "pysqlite")
def test_advice_names_a_key_without_an_index(tables):
    options = made(tables, "id int primary key, n int", "1, 2")
    connector = opened(options, "id INT, n INT")
    advice = {keys: connector.advice(wanted(keys)) for keys in [("id",), ("n",), ("n", "id")]}
    connector.close()
    assert "no index starts with a key column (n)" in advice.pop(("n",))[0]
    assert list(advice.values()) == [[], []]


@each(*SERVERS, *SERVER_DIALECTS)
def test_a_broken_connection_is_replaced(tables):
    connector = opened(made(tables, "id int", "1"), "id INT")
    request = wanted(["id"])
    connector.lookup(request, pa.record_batch({"id": pa.array([1], pa.int32())}))
    tables.server.kill()
    with pytest.raises(Exception) as raised:
        connector.lookup(request, pa.record_batch({"id": pa.array([1], pa.int32())}))
    assert connector.retryable(raised.value)
    tables.server.start()
    assert found(connector, request, (1,)) == [(1,)]


# ── kept private ─────────────────────────────────────────────────────────────────────────────────────────────

ENCRYPTED = {
    "postgres": "SELECT 1 AS id, (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid())::text AS tls",
    "maria": "SELECT 1 AS id, variable_value <> '' AS tls FROM information_schema.session_status "
             "WHERE variable_name = 'Ssl_cipher'",
}  # fmt: skip
KINDS = {"postgres": PostgresServer, "maria": MariaServer}


@pytest.fixture(scope="module", params=SERVERS)
def private(request, authority):
    """Return a server with a certificate of its own, and one with that of another host."""
    servers = [KINDS[request.param](authority / f"{whose}.pem") for whose in ("server", "elsewhere")]
    try:
        yield request.param, *(server.start() for server in servers)
    finally:
        for server in servers:
            server.remove()


def encrypted(name, server, **options):
    """Return whether a connection with these options is encrypted."""
    schema = "id INT, tls STRING" if name == "postgres" else "id INT, tls INT"
    connector = opened({"url": server.url, "query": ENCRYPTED[name], **options}, schema)
    return found(connector, wanted(["id"], ["tls"]), (1,))[0][1] in ("true", 1)


@pytest.mark.extended
def test_tls_is_used_as_the_option_says(private, authority):
    name, server, elsewhere = private
    trust = {"tls.ca": str(authority / "ca.pem")}
    assert not encrypted(name, server, **{"tls.mode": "disable"})
    assert encrypted(name, server, **{"tls.mode": "require"})
    assert encrypted(name, server, **{"tls.mode": "verify-full"}, **trust)
    assert encrypted(name, elsewhere, **{"tls.mode": "verify-ca"}, **trust)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_server_that_is_not_the_one_is_refused(private, authority, trusted):
    name, server, elsewhere = private
    options = {"tls.ca": str(authority / "ca.pem")} if trusted else {}
    with pytest.raises(ConnectorError, match=r"refuses: .*(?i:certificate)"):
        encrypted(name, elsewhere if trusted else server, **{"tls.mode": "verify-full"}, **options)


def test_whoever_names_an_authority_has_it_checked(private, authority):
    name, server, elsewhere = private
    trust = {"tls.ca": str(authority / "ca.pem")}
    assert encrypted(name, server, **trust)
    with pytest.raises(ConnectorError, match=r"refuses: .*(?i:certificate)"):
        encrypted(name, elsewhere, **trust)


@pytest.mark.parametrize(
    ("url", "options", "mode"),
    [
        ("h/d", {}, "verify-full"),
        ("ann@h:1/d", {}, "verify-full"),
        ("localhost.evil.test/d", {}, "verify-full"),
        ("127.evil.test/d", {}, "verify-full"),
        ("ann:sslmode=disable@h/d", {}, "verify-full"),
        ("/d?host=127.0.0.1,h", {}, "verify-full"),
        ("localhost/d?host=h", {}, "verify-full"),
        ("localhost/d?hostaddr=10.0.0.1", {}, "verify-full"),
        ("h/d?hostaddr=127.0.0.1", {}, "verify-full"),
        ("localhost/d?%68ostaddr=10.0.0.1", {}, "verify-full"),
        ("localhost/d#?hostaddr=10.0.0.1", {}, "verify-full"),
        ("LOCALHOST/d", {}, "prefer"),
        ("127.0.0.2:1/d", {}, "prefer"),
        ("[::1]/d", {}, "prefer"),
        ("/d?host=/run/pg", {}, "prefer"),
        ("h/d", {"tls.mode": "prefer"}, "prefer"),
        ("localhost/d", {"tls.ca": "/ca.pem"}, "verify-full"),
        ("h/d", {"tls.ca": "/ca.pem", "tls.mode": "require"}, "require"),
    ],
)
@pytest.mark.parametrize("scheme", ["postgresql", "mariadb"])
def test_other_machines_are_verified_by_default(scheme, url, options, mode):
    settings = {"url": f"{scheme}://{url}", **options}
    assert tls_options(settings).mode == mode
    if scheme == "postgresql":
        sent = dict(parse_qsl(_address(settings).partition("?")[2]))
        assert (sent.get("sslmode", "prefer"), "sslrootcert" in sent) == (mode, mode != "prefer")


@pytest.mark.parametrize(
    ("query", "options", "sent"),
    [
        ("sslmode=require", {}, ("require", None)),
        ("sslmode=require", {"tls.mode": "verify-full"}, ("verify-full", "system")),
        ("sslmode=verify-ca", {"tls.ca": "/ca.pem"}, ("verify-ca", "/ca.pem")),
        ("sslrootcert=/own.pem", {}, ("verify-full", "/own.pem")),
        ("sslrootcert=/own.pem", {"tls.ca": "/ca.pem"}, ("verify-full", "/ca.pem")),
    ],
)
def test_tls_options_override_the_parameters_of_a_postgresql_url(query, options, sent):
    found = dict(parse_qsl(_address({"url": f"postgresql://h/d?{query}", **options}).partition("?")[2]))
    assert (found.get("sslmode"), found.get("sslrootcert")) == sent


@pytest.mark.parametrize("scheme", ["postgresql", "mariadb"])
@pytest.mark.parametrize("mark", "@/#?[:%")
def test_a_password_that_is_not_escaped_is_in_no_error(scheme, mark):
    """PostgreSQL's driver took what follows an '@' for a part of the host, which its error names."""
    url = f"{scheme}://ann:kx7sec{mark}kx8sec@127.0.0.1:1/shop"
    with pytest.raises((OptionError, ConnectorError, UnreachableError), match="'url'") as raised:
        opened({"url": url, "table": "t"}, "id INT")
    assert "sec" not in str(raised.value)
    assert mark != "@" or isinstance(raised.value, UnreachableError)


def test_an_error_for_an_untrusted_certificate_names_the_options(private):
    name, server, _ = private
    # A spelling of 127.0.0.1 that is not taken for this machine.
    elsewhere = server.url.replace("127.0.0.1", "127.1")
    with pytest.raises(ConnectorError, match=r"refuses: (?s:.*)(?i:certificate)(?s:.*)'tls.ca'(?s:.*)'tls.mode'"):
        opened({"url": elsewhere, "query": ENCRYPTED[name]}, "id INT")


@each(*SERVERS)
def test_a_remote_server_without_tls_is_refused_by_default(tables):
    options = {name: value for name, value in made(tables, "id int").items() if name != "tls.mode"}
    options["url"] = options["url"].replace("127.0.0.1", "127.1")
    with pytest.raises(ConnectorError, match=r"refuses: .*SSL(?s:.*)'tls.mode' = 'prefer'"):
        opened(options, "id INT")
    opened({**options, "tls.mode": "prefer"}, "id INT").close()


@each(*SERVERS)
def test_a_server_without_tls_is_refused_where_it_is_required(tables):
    with pytest.raises(ConnectorError, match=r"refuses: .*SSL"):
        opened({**made(tables, "id int"), "tls.mode": "require"}, "id INT")


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────

INT = Column("right", "n", pa.int64())
REAL = Column("right", "r", pa.float64())
TEXT = Column("right", "s", pa.string())
DAY = Column("right", "day", pa.date32())
MANY = Column("right", "many", pa.list_(pa.int32()))
PUSHED = [
    Call("=", (INT, Literal(1, pa.int64()))),
    Call("<", (TEXT, Literal("a'b\\", pa.string()))),
    Call(">=", (DAY, literal(dt.date(2013, 1, 1), pa.date32()))),
    Call("not", (Call("or", (Call("is null", (INT,)), Call("<=>", (REAL, REAL)))),)),
    Call("=", (TEXT, Literal(None, pa.string()))),
]
LOCAL = [
    Call("is null", (MANY,)),
    Call("starts with", (TEXT, Literal("a", pa.string()))),
    Call("=", (Call("+", (INT, INT), pa.int64()), INT)),
    Call("=", (Call("cast", (INT,), pa.float64()), REAL)),
    Call("=", (Column("left", "n", pa.int64()), INT)),
    Call("=", (Literal(1, pa.int64()), Literal(1, pa.int64()))),
    Call("<", (Column("right", "b", pa.bool_()), Literal(True, pa.bool_()))),
]


@pytest.mark.parametrize("url", ["postgresql://h/d", "mariadb://h/d", "duckdb:///d"])
def test_only_filters_that_agree_with_spark_are_pushed(url):
    connector = SqlConnector(parse_ddl("n BIGINT"), {"url": url, "table": "t"})
    assert connector.accept([*LOCAL, *PUSHED]) == PUSHED


def test_values_that_a_database_lacks_are_not_pushed():
    nul = Call("=", (TEXT, Literal("a\0", pa.string())))
    nan = Call("<", (REAL, literal(float("nan"), pa.float64())))
    takes = {url: SqlConnector(parse_ddl("n INT"), {"url": url, "table": "t"}).accept([nul, nan])
             for url in ("postgresql://h/d", "mariadb://h/d", "duckdb:///d")}  # fmt: skip
    assert list(takes.values()) == [[nan], [nul], [nul, nan]]


def test_nothing_is_pushed_while_the_url_is_a_reference():
    connector = SqlConnector(parse_ddl("n BIGINT"), {"url": "env:SHOP", "table": "t"})
    assert connector.accept(PUSHED) == []
