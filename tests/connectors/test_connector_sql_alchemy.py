"""The sql connector through dialects of SQLAlchemy, on real databases, checked by the suite of every connector."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import itertools
import math
import re
from decimal import Decimal
from typing import ClassVar

import pyarrow as pa
import pytest
from databases import DuckEngineTables, PsycopgTables, PyMysqlTables, PysqliteTables
from drawing import examples
from forks import reply_of_child
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lookupcache_sql import alchemy
from lookupcache_sql.alchemy import AlchemyDatabase
from lookupcache_sql.connector import SqlConnector
from sql_suites import DuckSuite, MariaSuite, PostgresSuite, SqlSuite
from sqlalchemy import make_url
from sqlalchemy import types as sql

from lookupcache import LookupTable
from lookupcache.connector import LookupRequest
from lookupcache.errors import ConnectorError, OptionError, SchemaError, SourceError
from lookupcache.expr import Call, Column, literal
from lookupcache.schema import parse_ddl, to_ddl
from lookupcache.testing.join import LocalJoin, Wanted


class TestPostgres(PostgresSuite):
    tables = PsycopgTables


@pytest.mark.extended
class TestMaria(MariaSuite):
    tables = PyMysqlTables


class TestSqlite(SqlSuite):
    tables = PysqliteTables
    unsupported: ClassVar = {
        "nan": "it has none",
        "negative zero": "it stores 0",
        **dict.fromkeys(("date", "timestamp", "timestamp_ntz", "decimal", "float"), "the driver has texts and doubles"),
    }

    @pytest.fixture
    def load(self, tmp_path):
        return self.tables(tmp_path / "t.db").of


@pytest.mark.extended
class TestDuckDb(DuckSuite):
    tables = DuckEngineTables


# ── what is each database's own ──────────────────────────────────────────────────────────────────────────────

_NUMBERS = itertools.count()


@pytest.fixture
def psycopg(postgres_server):
    return PsycopgTables(postgres_server)


@pytest.fixture
def pymysql(maria_server):
    return PyMysqlTables(maria_server)


@pytest.fixture
def pysqlite(tmp_path):
    return PysqliteTables(tmp_path / "t.db")


@pytest.fixture
def duckdb_engine(tmp_path):
    return DuckEngineTables(tmp_path / "t.duckdb")


@pytest.fixture
def tables(request):
    """Return the tables of the driver that the test names."""
    return request.getfixturevalue(request.param)


def made(tables, columns, *rows):
    """Make a table of the database's own types; return the connector's options for it."""
    name = f"alchemy{next(_NUMBERS)}"
    tables.run(f"CREATE TABLE {name} ({columns})", *(f"INSERT INTO {name} VALUES ({row})" for row in rows))
    return {"connector": "sql", **tables.options(name)}


def found(options, schema, *keys, key=("id",)):
    with LocalJoin(LookupTable("t", schema, options), Wanted(key=key)) as join:
        return sorted(join.rows(keys), key=repr)


OWN = [
    ("psycopg", "real", "0.1", "FLOAT", pa.scalar(0.1, pa.float32()).as_py()),
    ("psycopg", "real", "0.1", "DOUBLE", pa.scalar(0.1, pa.float32()).as_py()),
    ("pymysql", "float", "16777213", "FLOAT", 16777213.0),
    ("pymysql", "float", "0.1", "DOUBLE", pa.scalar(0.1, pa.float32()).as_py()),
    ("psycopg", "char(3)", "'a'", "STRING", "a"),
    ("psycopg", "uuid", "'0e37df36-f698-11e6-8dd4-cb9ced3df976'", "STRING", "0e37df36-f698-11e6-8dd4-cb9ced3df976"),
    ("psycopg", "json", '\'{"b": 1, "a": 1.50}\'', "STRING", '{"b": 1, "a": 1.50}'),
    ("psycopg", "time", "'10:00:00'", "STRING", "10:00:00"),
    ("psycopg", "interval", "'1 day'", "STRING", "1 day"),
    ("psycopg", "int4range", "'[1,3)'", "STRING", "[1,3)"),
    ("psycopg", "inet", "'10.0.0.1'", "STRING", "10.0.0.1/32"),
    ("psycopg", "information_schema.cardinal_number", "7", "INT", 7),
    ("pymysql", "enum('a','B')", "'B'", "STRING", "B"),
    ("pymysql", "time", "'-100:00:00'", "STRING", "-100:00:00"),
    ("pymysql", "bigint unsigned", "18446744073709551615", "DECIMAL(20,0)", Decimal(2**64 - 1)),
    ("pymysql", "timestamp", "'2020-01-01 00:00:00'", "TIMESTAMP", dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    ("psycopg", "numeric(20,0)", "7", "BIGINT", 7),
    ("duckdb_engine", "hugeint", "7", "BIGINT", 7),
    ("pysqlite", "double", "-9e999", "DOUBLE", -math.inf),
]


@pytest.mark.extended(keep_one_in=3)
@pytest.mark.parametrize(("tables", "native", "stored", "type_", "value"), OWN, indirect=["tables"])
def test_a_type_of_the_databases_own_as_value_key_and_constant(tables, native, stored, type_, value):
    options, schema = made(tables, f"id int, v {native}", f"1, {stored}", "2, NULL"), f"id INT, v {type_}"
    assert found(options, schema, (1,), (2,)) == [(1, value), (2, None)]
    assert found(options, schema, (value,), key=("v",)) == [(1, value)]
    with LocalJoin(LookupTable("t", schema, options), Wanted(key=("id",), constants={"v": value})) as join:
        assert join.rows([(1,), (2,)]) == [(1, value)]


MISFITS = [
    ("psycopg", "bigint", "70000", "SMALLINT", "70000"),
    ("psycopg", "numeric(9,3)", "1.005", "DECIMAL(9,2)", "1.005"),
    ("psycopg", "numeric", "'NaN'", "DECIMAL(9,2)", "NaN"),
    ("psycopg", "numeric(9,1)", "1.5", "BIGINT", "1.5"),
    ("psycopg", "timestamp", "'2020-01-01'", "TIMESTAMP", "datetime"),
    ("psycopg", "timestamptz", "'2020-01-01'", "TIMESTAMP_NTZ", "datetime"),
    ("pymysql", "tinyint(1)", "2", "BOOLEAN", "2"),
    ("pysqlite", "integer", "'x'", "BIGINT", "'x'"),
    ("pysqlite", "text", "x'00'", "STRING", "b"),
    ("duckdb_engine", "decimal(9,2)", "1.5", "DOUBLE", "1.50"),
    ("duckdb_engine", "double", "9007199254740992", "BIGINT", "9007199254740992.0"),
    ("duckdb_engine", "int[]", "[1]", "ARRAY<INT>", r"\[1\]"),
]


@pytest.mark.parametrize(("tables", "native", "stored", "type_", "shown"), MISFITS, indirect=["tables"])
def test_a_value_that_does_not_fit_its_type_is_an_error(tables, native, stored, type_, shown):
    options = made(tables, f"id int, v {native}", f"1, {stored}")
    with pytest.raises(SourceError, match=f"column 'v': the database contains .*{shown}"):
        found(options, f"id INT, v {type_}", (1,))


REFUSED = [
    ("psycopg", "inet", "BIGINT"),
    ("psycopg", "int", "STRING"),
    ("psycopg", "double precision", "FLOAT"),
    ("psycopg", "date", "TIMESTAMP"),
    ("pysqlite", "date", "DATE"),
    ("pysqlite", "numeric", "DECIMAL(9,2)"),
]


@pytest.mark.parametrize(("tables", "native", "type_"), REFUSED, indirect=["tables"])
def test_a_type_that_a_column_is_not_read_as(tables, native, type_):
    with pytest.raises(SchemaError, match=r"Column 'v' is .* in the database, and cannot be read as"):
        found(made(tables, f"id int, v {native}"), f"id INT, v {type_}", (1,))


INFERRED = [
    ("psycopg", "a int, b numeric(10,2), c varchar(5), d timestamptz, e jsonb, f real, g bool, h bytea, i smallint, "
     "j timestamp, k date, l uuid, m float8, n bigint, o information_schema.yes_or_no",
     "a INT, b DECIMAL(10,2), c STRING, d TIMESTAMP, e STRING, f FLOAT, g BOOLEAN, h BINARY, i SMALLINT, "
     "j TIMESTAMP_NTZ, k DATE, l STRING, m DOUBLE, n BIGINT, o STRING"),
    ("pymysql", "a int, b decimal(10,2), c varchar(5), e json, f tinyint(1), g int unsigned, h blob, i datetime, "
     "j float, k double, l bigint unsigned, m tinyint, n mediumint, o enum('a')",
     "a INT, b DECIMAL(10,2), c STRING, e STRING, f BOOLEAN, g BIGINT, h BINARY, i TIMESTAMP_NTZ, "
     "j FLOAT, k DOUBLE, l DECIMAL(20,0), m SMALLINT, n INT, o STRING"),
    ("pysqlite", "a integer primary key, b text, c real, d blob, e boolean",
     "a BIGINT, b STRING, c DOUBLE, d BINARY, e BOOLEAN"),
]  # fmt: skip


@pytest.mark.parametrize(("tables", "columns", "schema"), INFERRED, indirect=["tables"])
def test_without_a_schema_the_dialect_describes_the_table(tables, columns, schema):
    assert to_ddl(LookupTable("t", None, made(tables, columns)).schema) == to_ddl(parse_ddl(schema))


def test_a_table_that_no_dialect_describes_needs_a_schema(duckdb_engine, psycopg):
    whole = made(psycopg, "id int")
    query = {**whole, "query": f"SELECT * FROM {whole['table']}"}
    del query["table"]
    for options in (made(duckdb_engine, "id int"), query):
        with pytest.raises(SchemaError, match=r"(?s)'id' is of an unknown type.*Give the table a schema"):
            LookupTable("t", None, options)


@pytest.mark.parametrize("type_", ["char(3)", "xml", "point"])
def test_a_text_in_a_query_is_found_as_it_is_read(psycopg, type_):
    """A padded text is read without blanks, and types that are equal to no text are compared by theirs."""
    whole = made(psycopg, f"id int, v {type_}", f"1, '{'(1,2)' if type_ == 'point' else 'a'}'")
    options = {"connector": "sql", "url": whole["url"], "query": f"SELECT * FROM {whole['table']}"}
    [(_, value)] = found(options, "id INT, v STRING", (1,))
    assert value == value.strip()
    assert found(options, "id INT, v STRING", (value,), (value + " ",), key=("v",)) == [(1, value)]


def test_a_colon_in_a_query_names_no_parameter(psycopg):
    whole = made(psycopg, "id int", "1")
    query = f"SELECT id, ':a' || '%s' || '\\:b' || ('7'::int)::text AS v FROM {whole['table']}"
    assert found({"connector": "sql", "url": whole["url"], "query": query}, "id INT, v STRING", (1,)) == [
        (1, r":a%s\:b7")
    ]


# ── statements ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tables", ["psycopg", "pymysql", "pysqlite", "duckdb_engine"], indirect=True)
def test_keys_of_several_statements_find_each_row_once(tables, monkeypatch):
    """Also a row that the database's collation finds by two keys, one in each statement."""
    ci = {"pymysql": "varchar(9) collate utf8mb4_general_ci", "pysqlite": "text collate nocase",
          "duckdb_engine": "varchar collate nocase"}  # fmt: skip
    text = next((type_ for name, type_ in ci.items() if name in type(tables).options(tables, "")["url"]), "text")
    if isinstance(tables, DuckEngineTables):
        text = ci["duckdb_engine"]
    options = made(tables, f"s {text}, n int", *(f"'{text}', {number}" for number, text in enumerate("aAbBcC")))
    monkeypatch.setattr(alchemy, "_MOST_IN_LIST", dict.fromkeys(alchemy.PROVEN, 2))
    schema, pairs = "s STRING, n INT", list(zip("aAbBcC", range(6), strict=True))
    assert found(options, schema, *((text,) for text, _ in pairs), key=("s",)) == sorted(pairs)
    assert found(options, schema, *pairs, ("a", 1), ("C", 0), key=("s", "n")) == sorted(pairs)


@pytest.mark.parametrize("key", [("d",), ("d", "n")])
@pytest.mark.parametrize("tables", ["psycopg", "pymysql", "pysqlite", "duckdb_engine"], indirect=True)
def test_no_database_nests_the_keys_of_a_call_too_deep(tables, key):
    """Databases limit how deep an expression is; among the keys are NaN, which some databases lack."""
    rows = pa.table({"d": pa.array([0.5, 1.5], pa.float64()), "n": pa.array([0, 1], pa.int64())})
    keys = [(number + 0.5, number)[: len(key)] for number in range(9_000)]
    keys += [(math.nan, number)[: len(key)] for number in range(1_000 if len(key) > 1 else 1)]
    found_rows = found({"connector": "sql", **tables.of(rows, key)}, "d DOUBLE, n BIGINT", *keys, key=key)
    assert found_rows == [(0.5, 0), (1.5, 1)]


def test_a_statement_is_not_kept_for_each_number_of_keys(pymysql):
    options = made(pymysql, "s varchar(9) character set latin1, n int", "'a', 1")
    with LocalJoin(LookupTable("t", "s STRING, n INT", options), Wanted(key=("s", "n"))) as join:
        objects = []
        for size in (300, 301, 302, 303):
            assert join.rows([("a", 1), *(("b", number) for number in range(size))]) == [("a", 1)]
            gc.collect()
            objects.append(len(gc.get_objects()))
    assert objects[-1] - objects[1] < 1_000


COMPILED = [
    ("mssql+pymssql", "id = ? AND k = ? OR id = ? AND k = ?", 2_099),
    ("oracle+oracledb", "(id, k) IN ((?, ?), (?, ?))", 1_000),
]


@pytest.mark.parametrize(("scheme", "condition", "most"), COMPILED)
def test_the_statement_for_a_dialect_that_has_no_server_here(scheme, condition, most):
    schema = parse_ddl("id BIGINT, k STRING, n INT")
    database = AlchemyDatabase(schema, {"url": f"{scheme}://h/d", "table": "t"})
    database.read({"id": sql.BigInteger(), "k": sql.String(9), "n": sql.Integer()})
    request = LookupRequest(table="t", key_columns=("id", "k"), columns=("n",))
    dialect = make_url(f"{scheme}://").get_dialect()(paramstyle="qmark")
    [(statement, _)] = database.statements(request, [(1, "a"), (2, "b")])
    compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    shown = " ".join(str(compiled).replace("t.", "").replace("[", "").replace("]", "").split())
    assert shown.endswith(f"WHERE {condition}")
    sizes = [len(rows) for _, rows in database.statements(request, [(number, "a") for number in range(3_000)])]
    assert sum(sizes) == 3_000
    assert max(sizes) * (1 if "IN" in condition else 2) <= most


def test_only_what_the_tests_compare_with_spark_is_pushed():
    number, text = Column("right", "n", pa.int64()), Column("right", "s", pa.string())
    pushed = [
        Call(">", (number, literal(1, pa.int64()))),
        Call("not", (Call("or", (Call("is null", (text,)), Call("<=>", (number, number)))),)),
    ]
    local = [
        Call("=", (text, literal("a", pa.string()))),
        Call("=", (number, literal(None, pa.int64()))),
        Call("=", (Column("left", "n", pa.int64()), number)),
        Call("=", (Call("+", (number, number), pa.int64()), number)),
    ]
    accepted = {
        url: SqlConnector(parse_ddl("n BIGINT, s STRING"), {"url": url, "table": "t"}).accept([*pushed, *local])
        for url in (
            "postgresql+psycopg://h/d",
            "mysql+pymysql://h/d",
            "sqlite+pysqlite:///d",
            "duckdb+duckdb_engine:///d",
        )
    }
    assert list(accepted.values()) == [pushed] * 4
    assert not AlchemyDatabase.accepts(pushed[0], {"url": "oracle+oracledb://h/d"})


# ── limits and errors ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tables", ["psycopg", "pymysql", "pysqlite", "duckdb_engine"], indirect=True)
def test_a_too_large_answer_is_an_error_and_the_next_call_works(tables):
    rows = pa.table({"id": pa.array([1] * 5_000 + [2], pa.int64()), "v": ["x" * 100] * 5_001})
    connector = SqlConnector(rows.schema, {**tables.of(rows, ["id"]), "max-bytes": "200000"})
    request = LookupRequest(table="t", key_columns=("id",), columns=("v",))
    connector.open()
    try:
        with pytest.raises(SourceError, match="more than 200,000 bytes"):
            connector.lookup(request, pa.record_batch({"id": pa.array([1], pa.int64())}))
        assert connector.lookup(request, pa.record_batch({"id": pa.array([2], pa.int64())})).num_rows == 1
    finally:
        connector.close()


@pytest.mark.parametrize("tables", ["psycopg", "pymysql", "pysqlite", "duckdb_engine"], indirect=True)
def test_the_calls_of_a_worker_share_the_pool_of_one_engine(tables):
    options = {**tables.of(pa.table({"id": range(40)}), ["id"]), "pool.size": "3"}
    connector = SqlConnector(parse_ddl("id BIGINT"), options)
    connector.open()
    request = LookupRequest(table="t", key_columns=("id",))

    async def all_at_once():
        keys = [pa.record_batch({"id": [number]}) for number in range(40)]
        return await asyncio.gather(*(connector.lookup_async(request, key) for key in keys))

    assert [answer.num_rows for answer in asyncio.run(all_at_once())] == [1] * 40
    [engine] = {one._engine for one in connector._pool._free}
    assert (1 <= engine.pool.checkedin() <= 3, engine.pool.checkedout()) == (True, 0)
    connector.close()
    assert engine.pool.checkedin() == 0


def test_a_forked_process_has_an_engine_of_its_own(psycopg):
    connector, copy = (SqlConnector(parse_ddl("id INT"), made(psycopg, "id int", "1")) for _ in range(2))
    request, keys = LookupRequest(table="t", key_columns=("id",)), pa.record_batch({"id": pa.array([1], pa.int32())})
    connector.open()
    assert connector.lookup(request, keys).num_rows == 1

    def look_up_in_child():
        copy.open()
        return copy.lookup(request, keys).num_rows

    assert reply_of_child(look_up_in_child) == "1"
    assert connector.lookup(request, keys).num_rows == 1
    connector.close()


@pytest.mark.parametrize("tables", ["psycopg", "pymysql", "pysqlite"], indirect=True)
def test_the_session_only_reads(tables):
    connector = SqlConnector(parse_ddl("id INT"), tables.of(pa.table({"id": pa.array([1], pa.int32())}), ["id"]))
    connector.open()
    try:
        with connector._pool._free[0]._connected() as connection, pytest.raises(Exception, match=r"(?i)read.?only"):
            connection.exec_driver_sql(f"DELETE FROM {connector.settings['table']}")
    finally:
        connector.close()


def test_a_missing_file_is_not_created(tmp_path):
    path = tmp_path / "shop.db"
    options = {"connector": "sql", "url": f"sqlite+pysqlite:///{path}", "table": "t"}
    with pytest.raises(ConnectorError, match=r"shop\.db' refuses: there is no such file"):
        found(options, "id INT", (1,))
    assert not path.exists()


def test_an_error_names_neither_keys_nor_the_statement(psycopg):
    options = made(psycopg, "id int, v int", "1, 0")
    query = {"connector": "sql", "url": options["url"], "query": f"SELECT id, 1 / v AS v FROM {options['table']}"}
    with pytest.raises(Exception, match="division by zero") as raised:
        found({**query, "lookup.max-retries": "0"}, "id INT, v INT", (1,))
    assert "SELECT" not in str(raised.value)


@pytest.mark.parametrize("url", ["mssql+pymssql://h/d", "env:SHOP_URL"])
def test_a_driver_that_is_not_installed_is_named(url, monkeypatch):
    monkeypatch.setenv("SHOP_URL", "mssql+pymssql://h/d")
    options = {"connector": "sql", "url": url, "table": "t"}
    with pytest.raises(ConnectorError, match=r"driver 'pymssql' is not installed(?s:.*)pip install pymssql"):
        found(options, "id INT", (1,))


@settings(max_examples=examples(200), deadline=None)
@given(st.text("ab1@/?#:+&= ", min_size=1, max_size=8), st.sampled_from(["ann", "ann@shop"]))
def test_a_password_is_read_as_it_is_written_or_the_url_is_refused(password, user):
    """All that stands between the user and the last @, unless that may be the path or a parameter."""
    assume(not re.match(r"(\d+/|.*@).*\?[\w.-]+=", password))  # As of a server, a database and a parameter.
    try:
        url = alchemy._address({"url": f"mysql+pymysql://{user}:{password}@db:3306/shop"})
    except OptionError:
        assert "@" in password or re.search(r"[/?]", password)
    else:
        assert (url.username, url.host, url.port, url.database) == (user, "db", 3306, "shop")
        assert url.password == password


@pytest.mark.parametrize(("url", "found"), [
    ("mysql+pymysql://db/shop?user=ann&password=a@b", (None, "db", "shop", {"user": "ann", "password": "a@b"})),
    ("mysql+pymysql://ann@db/shop@x", ("ann", "db", "shop@x", {})),
    ("sqlite+pysqlite:////data/a@b/shop.db?timeout=5", (None, None, "/data/a@b/shop.db", {"timeout": "5"})),
])  # fmt: skip
def test_an_at_sign_behind_the_host_belongs_to_what_it_is_in(url, found):
    read = alchemy._address({"url": url})
    assert (read.username, read.host, read.database, dict(read.query)) == found


# ── what is read from outside ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("url", ["postgresql+psycopg://h/d?service=shop", "mysql+pymysql://u@h/d?read_default_file=f",
                                 "duckdb+duckdb_engine:///d"])  # fmt: skip
def test_rows_are_not_shared_if_a_driver_reads_other_settings(url):
    assert SqlConnector(parse_ddl("id INT"), {"url": url, "table": "t"}).environment() is None
