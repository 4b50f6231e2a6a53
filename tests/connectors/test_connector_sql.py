"""The sql connector on real SQLite files."""

from __future__ import annotations

import datetime as dt
import math
import re
import sqlite3
import struct
import warnings
from contextlib import closing
from decimal import Decimal

import pyarrow as pa
import pytest
from connector_calls import request, rows_for, tuples
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lookupcache_sql.connector import SqlConnector

from lookupcache import expr
from lookupcache.connector import build_connector
from lookupcache.errors import ConnectorError, LookupAdvice, LookupCacheError, OptionError, SchemaError, SourceError
from lookupcache.expr import Call, Column, Literal, literal
from lookupcache.schema import TIMESTAMP, parse_ddl, to_ddl
from lookupcache.table import LookupTable
from lookupcache.testing.join import LocalJoin, Wanted

UTC = dt.UTC
HOSTILE = ["'", '"', "`", "a'; DROP TABLE t; --", 'a" OR 1=1 --', "?", ":a", "%", "\0", "a\0b", "\n", "\uffff", "😀"]


def write(path, *statements):
    """Run statements, each a text or a text with rows for its question marks."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            text, rows = statement if isinstance(statement, tuple) else (statement, None)
            _ = connection.execute(text) if rows is None else connection.executemany(text, rows)


def connect(path, schema, table="t"):
    connector = SqlConnector(parse_ddl(schema), {"url": f"sqlite:///{path}", "table": table})
    connector.open()
    return connector


def connection_of(connector):
    [database] = connector._pool._free
    return database.connection


@pytest.fixture
def shop(tmp_path):
    """A database with customers, their key indexed."""
    path = tmp_path / "shop.db"
    write(
        path,
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, country TEXT, salary REAL)",
        (
            "INSERT INTO customers VALUES (?, ?, ?, ?)",
            [(1, "ann", "NL", 10.5), (2, "bob", None, 20), (3, "cy", "NL", None)],
        ),
        "CREATE VIEW dutch AS SELECT * FROM customers WHERE country = 'NL'",
    )
    return path


CUSTOMERS = "id BIGINT, name STRING, country STRING, salary DOUBLE"


# ── looking up ───────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_of_the_keys_that_are_there(shop):
    customers = connect(shop, CUSTOMERS, "customers")
    found = rows_for(customers, request(["id"], ["name", "salary"]), (1,), (2,), (7,))
    assert found == [(1, "ann", 10.5), (2, "bob", 20.0)]


def test_a_view_is_a_table(shop):
    assert rows_for(connect(shop, CUSTOMERS, "dutch"), request(["id"], ["name"]), (1,), (2,)) == [(1, "ann")]


def test_names_in_another_case(shop):
    customers = connect(shop, "ID BIGINT, Name STRING", "Customers")
    assert rows_for(customers, request(["ID"], ["Name"]), (1,)) == [(1, "ann")]


def test_one_query_takes_ten_thousand_keys_of_five_columns(tmp_path):
    rows = [(i, f"s{i}", i / 2, dt.date(2000, 1, 1) + dt.timedelta(i), bytes([i % 256])) for i in range(10_000)]
    stored = [(i, s, d, day.isoformat(), b) for i, s, d, day, b in rows]
    write(tmp_path / "t.db", "CREATE TABLE t (i, s, d, day, b)", ("INSERT INTO t VALUES (?, ?, ?, ?, ?)", stored * 2))
    table = connect(tmp_path / "t.db", "i BIGINT, s STRING, d DOUBLE, day DATE, b BINARY")
    queries = traced(table)
    assert rows_for(table, request(["i", "s", "d", "day", "b"]), *rows) == sorted(rows * 2, key=repr)
    assert len([query for query in queries if "CROSS JOIN" in query]) == 1


def test_only_the_requested_columns_are_read(shop):
    customers = connect(shop, CUSTOMERS, "customers")
    queries = traced(customers)
    rows_for(customers, request(["id"], ["name"]), (1,))
    assert not any("salary" in query or "country" in query for query in queries)


def test_scan_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("lookupcache_sql.sqlite.SCAN_ROWS", 3)
    write(tmp_path / "t.db", "CREATE TABLE t (n, c)", ("INSERT INTO t VALUES (?, ?)", [(n, n % 2) for n in range(20)]))
    wanted = request(["n"], constants={"c": 0}, filters=(Call(">", (INT, Literal(5, pa.int64()))),))
    batches = list(connect(tmp_path / "t.db", "n BIGINT, c INT").scan(wanted))
    assert [batch.num_rows for batch in batches] == [3, 3, 1]
    assert [n for batch in batches for n in batch.column("n").to_pylist()] == [6, 8, 10, 12, 14, 16, 18]


def test_a_database_in_utf_16_orders_text_as_spark_does(tmp_path):
    texts = [("a",), ("\uffee",), ("😀",), ("é",)]
    write(tmp_path / "t.db", "PRAGMA encoding = 'UTF-16le'", "CREATE TABLE t (s)", ("INSERT INTO t VALUES (?)", texts))
    table = connect(tmp_path / "t.db", "s STRING")
    above = Call(">", (Column("right", "s", pa.string()), Literal("é", pa.string())))
    assert tuples(pa.Table.from_batches(table.scan(request(["s"], filters=(above,))))) == [("\uffee",), ("😀",)]
    assert rows_for(table, request(["s"]), ("😀",)) == [("😀",)]


# ── against the same in Python ───────────────────────────────────────────────────────────────────────────────


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def moment(text):
    return dt.datetime.fromisoformat(text).replace(tzinfo=UTC)


# For each column: its type, the types it may have in SQLite, and its values, each with what may stand for it there.
POOLS = {
    "i": ("BIGINT", ["INTEGER", "", "NUMERIC", "REAL"], [(0, 0), (1, 1), (1, 1.0), (-7, -7), (2**53, 2**53)]),
    "big": ("BIGINT", ["INTEGER", ""], [(2**63 - 1, 2**63 - 1), (2**63 - 2, 2**63 - 2), (-(2**63), -(2**63))]),
    "f": ("FLOAT", ["REAL", ""], [(float32(v), v) for v in (0.1, float32(0.1), 1e-40, -math.inf, 0.0, 16777217.0)]),
    "d": ("DOUBLE", ["REAL", "", "INTEGER"], [(v, v) for v in (0.1, 0.1 + 2**-56, 5e-324, math.inf, 0.0)] + [(3.0, 3)]),
    "b": ("BOOLEAN", ["BOOLEAN", "INTEGER", ""], [(True, 1), (False, 0)]),
    "s": (
        "STRING",
        ["TEXT", "TEXT COLLATE NOCASE", "TEXT COLLATE RTRIM", ""],
        [(s, s) for s in ["a", "A", "a ", "", "7", "07", "é", "e\u0301", *HOSTILE]],
    ),
    "x": ("BINARY", ["BLOB", "", "TEXT"], [(x, x) for x in (b"", b"a", b"a\0", b"\xff")]),
    "m": (
        "DECIMAL(20,2)",
        ["DECIMAL(20,2)", ""],
        [(Decimal("1.50"), m) for m in (1.5, "1.5", "1.50")]
        + [(Decimal("-2.00"), m) for m in (-2, -2.0, "-2", "-2.00")]
        + [(Decimal("0.00"), 0), (Decimal("0.07"), 0.07), (Decimal("12345678901234.57"), 12345678901234.57)],
    ),
    "exact": ("DECIMAL(20,2)", ["TEXT"], [(Decimal(m), m) for m in ("123456789012345678.90", "123456789012345678.91")]),
    "day": ("DATE", ["DATE", "TEXT", ""], [(dt.date.fromisoformat(d), d) for d in ("0001-01-01", "9999-12-31")]),
    "at": (
        "TIMESTAMP",
        ["TIMESTAMP", "TEXT", ""],
        [(moment("2013-01-01 00:00:00"), f"2013-01-01 00:00:00{rest}") for rest in ("", ".000", ".000000")]
        + [(moment("2013-01-01 00:00:00.120000"), f"2013-01-01 00:00:00{rest}") for rest in (".120", ".120000")]
        + [(moment("0001-01-01 00:00:00.000001"), "0001-01-01 00:00:00.000001")],
    ),
}  # fmt: skip
SCHEMA = parse_ddl(", ".join(f"{name} {pool[0]}" for name, pool in POOLS.items()))


def operands(name):
    column = Column("right", name, SCHEMA.field(name).type)
    literals = [literal(value, column.type) for value in [None, *(value for value, _ in POOLS[name][2])]]
    return st.tuples(st.just(column), st.sampled_from([*literals, column]))


def comparison(name, *operators):
    pairs = operands(name).flatmap(st.permutations).map(tuple)
    return st.builds(Call, st.sampled_from(operators), pairs)


ORDERED = ["=", "<", "<=", ">", ">=", "<=>"]
ATOMS = st.one_of(
    *(comparison(name, *ORDERED) for name in ("i", "big", "d", "s")),
    comparison("b", "=", "<=>"),
    st.just(Column("right", "b", pa.bool_())),
    st.sampled_from([Call("is null", (Column("right", f.name, f.type),)) for f in SCHEMA]),
)
FILTERS = st.recursive(
    ATOMS,
    lambda inner: (
        st.builds(Call, st.sampled_from(["and", "or"]), st.tuples(inner, inner))
        | st.builds(Call, st.just("not"), st.tuples(inner))
    ),
    max_leaves=4,
)


@st.composite
def cases(draw):
    stored = [st.sampled_from([(None, None), *pool[2]]) for pool in POOLS.values()]
    names = draw(st.lists(st.sampled_from(list(POOLS)), min_size=1, max_size=4, unique=True))
    values = {name: [value for value, _ in POOLS[name][2]] for name in POOLS}
    keys = draw(st.sets(st.tuples(*(st.sampled_from(values[name]) for name in names)), max_size=12))
    constant = draw(st.none() | st.sampled_from([name for name in POOLS if name not in names]))
    return {
        "declared": [draw(st.sampled_from(pool[1])) for pool in POOLS.values()],
        "rows": draw(st.lists(st.tuples(*stored), max_size=15)),
        "index": draw(st.lists(st.sampled_from(list(POOLS)), max_size=3, unique=True)),
        "names": names,
        "keys": sorted(keys, key=repr),
        "constants": {constant: draw(st.sampled_from(values[constant]))} if constant else {},
        "filters": tuple(draw(st.lists(FILTERS, max_size=2))),
        "columns": draw(st.lists(st.sampled_from(list(POOLS)), unique=True)),
    }  # fmt: skip


@pytest.mark.extended
@settings(max_examples=examples(300), deadline=None)
@given(case=cases())
def test_a_lookup_and_a_scan_do_what_python_does(case, tmp_path_factory):
    folder = tmp_path_factory.mktemp("db", numbered=True)
    table = connect(filled(folder / "t.db", case), ", ".join(f"{n} {p[0]}" for n, p in POOLS.items()))
    assert list(table.accept(case["filters"])) == list(case["filters"])
    wanted = request(
        case["names"], [*case["columns"], *case["constants"]], constants=case["constants"], filters=case["filters"]
    )
    requested = pa.RecordBatch.from_pylist(
        [dict(zip(case["names"], key, strict=True)) for key in case["keys"]], schema_of(case["names"])
    )
    expected = locally(case)
    scanned = pa.concat_tables([schema_of(wanted.fields).empty_table(), *map(pa.table, table.scan(wanted))])
    assert shown(scanned, case) == shown(expected.select(list(wanted.fields)), case)
    expected = expected.filter(expected.column("k")).select(list(wanted.fields))
    assert shown(table.lookup(wanted, requested), case) == shown(expected, case)
    table.close()


def filled(path, case):
    columns = ", ".join(f"{name} {declared}" for name, declared in zip(POOLS, case["declared"], strict=True))
    marks = ", ".join("?" * len(POOLS))
    stored = [tuple(value for _, value in row) for row in case["rows"]]
    index = [f"CREATE INDEX i ON t ({', '.join(case['index'])})"] if case["index"] else []
    write(path, f"CREATE TABLE t ({columns})", *index, (f"INSERT INTO t VALUES ({marks})", stored))
    return path


def locally(case):
    """Return the rows that pass constants and filters; column k says of each whether its key is wanted."""
    rows = [tuple(value for value, _ in row) for row in case["rows"]]
    table = pa.table([pa.array([row[n] for row in rows], f.type) for n, f in enumerate(SCHEMA)], schema=SCHEMA)
    places = [list(POOLS).index(name) for name in case["names"]]
    wanted = [tuple(row[place] for place in places) in case["keys"] for row in rows]
    table = table.append_column("k", pa.array(wanted, pa.bool_()))
    return expr.keep(table, [*constants_of(case), *case["filters"]])


def constants_of(case):
    typed = {name: SCHEMA.field(name).type for name in case["constants"]}
    return [Call("=", (Column("right", n, t), literal(case["constants"][n], t))) for n, t in typed.items()]


def schema_of(names):
    return pa.schema([SCHEMA.field(name) for name in names])


def shown(table, case):
    """Return the rows as text; a looser equality of the source may add rows to a constant, the caller drops them."""
    return sorted(map(repr, tuples(expr.keep(table, constants_of(case)))))


# ── keys and values of every kind ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name", ['a"b', "a b", "select", "é", "a'b", "rowid2", "?", "k", "t", "lookup_keys_1", "a;b--", "k0"]
)
def test_hostile_identifiers(tmp_path, name):
    quoted = '"' + name.replace('"', '""') + '"'
    write(tmp_path / "t.db", f"CREATE TABLE {quoted} ({quoted} INTEGER, other)", f"INSERT INTO {quoted} VALUES (1, 2)")
    schema = pa.schema([(name, pa.int64()), ("other", pa.int64())])
    table = SqlConnector(schema, {"url": f"sqlite:///{tmp_path / 't.db'}", "table": name})
    table.open()
    above = Call(">", (Column("right", name, pa.int64()), Literal(0, pa.int64())))
    assert rows_for(table, request([name], ["other"], filters=(above,)), (1,)) == [(1, 2)]


@pytest.mark.parametrize("name", ["a b.db", "a%20b.db", "a?mode=rwc.db", "a#b.db", "é😀.db", "a&b;c.db", "a'b\".db"])
def test_hostile_file_names(tmp_path, name):
    write(tmp_path / name, "CREATE TABLE t (k)", "INSERT INTO t VALUES (1)")
    assert rows_for(connect(tmp_path / name, "k BIGINT"), request(["k"]), (1,)) == [(1,)]


# ── a collation or an affinity adds no row and hides none ────────────────────────────────────────────────────


@pytest.mark.parametrize("collation", ["NOCASE", "RTRIM"])
def test_keys_that_a_collation_equates_return_a_row_once(tmp_path, collation):
    write(tmp_path / "t.db", f"CREATE TABLE t (k TEXT COLLATE {collation} PRIMARY KEY)", "INSERT INTO t VALUES ('a')")
    table = connect(tmp_path / "t.db", "k STRING")
    assert rows_for(table, request(["k"]), ("a",), ("A",), ("a ",)) == [("a",)]


MISFITS = [
    ("BIGINT", "TEXT", "7", 7),
    ("BIGINT", "", 1.5, 7),
    ("BIGINT", "", 2.0**63, 7),
    ("TINYINT", "", 300, 7),
    ("DOUBLE", "TEXT", "7.0", 7.0),
    ("DOUBLE", "", 2**53 + 1, 7.0),
    ("FLOAT", "", 1e300, 7.0),
    ("STRING", "INTEGER", "07", "07"),
    ("STRING", "", b"a", "a"),
    ("BINARY", "", "a", b"a"),
    ("BOOLEAN", "", 2, True),
    ("BOOLEAN", "", "true", True),
    ("DECIMAL(4,2)", "", 1.555, Decimal("1.50")),
    ("DECIMAL(4,2)", "", 123.5, Decimal("1.50")),
    ("DECIMAL(4,2)", "", "1.500", Decimal("1.50")),
    ("DECIMAL(4,2)", "", "one", Decimal("1.50")),
    ("DECIMAL(4,2)", "", math.inf, Decimal("1.50")),
    ("DATE", "", "2013-1-1", dt.date(2013, 1, 1)),
    ("DATE", "", "2013-02-30", dt.date(2013, 1, 1)),
    ("DATE", "", 15706, dt.date(2013, 1, 1)),
    ("TIMESTAMP", "", "2013-01-01T00:00:00", moment("2013-01-01")),
    ("TIMESTAMP", "", "2013-01-01 00:00:00.1", moment("2013-01-01")),
    ("TIMESTAMP", "", "2013-01-01 25:00:00", moment("2013-01-01")),
    ("TIMESTAMP", "", 1356998400, moment("2013-01-01")),
]


@pytest.mark.parametrize(("type_", "declared", "stored", "key"), MISFITS)
def test_a_value_that_does_not_fit_its_type_is_an_error(tmp_path, type_, declared, stored, key):
    statement = ("INSERT INTO t VALUES (1, ?, ?)", [(stored, stored)])
    write(tmp_path / "t.db", f"CREATE TABLE t (id INTEGER, good, k {declared})", statement)
    table = connect(tmp_path / "t.db", f"id BIGINT, k {type_}")
    for ask in (
        lambda: rows_for(table, request(["id"], ["k"]), (1,)),
        lambda: rows_for(table, request(["k"], ["id"]), (key,)),
        lambda: list(table.scan(request(["id"], ["k"]))),
    ):
        with pytest.raises(SourceError) as raised:
            ask()
        assert "Table 't', column 'k'" in str(raised.value)
        assert type_ in str(raised.value)


@pytest.mark.parametrize("position", [0, 99, 100, 999])
def test_an_odd_value_is_an_error_of_its_row_wherever_it_is(tmp_path, position):
    rows = [(number, number, 2 * number) for number in range(1_000)]
    rows[position] = ("odd", position, "odd")
    statement = ("INSERT INTO t VALUES (?, ?, ?)", rows)
    write(tmp_path / "t.db", "CREATE TABLE t (k INTEGER, id INTEGER PRIMARY KEY, v INTEGER)", statement)
    table = connect(tmp_path / "t.db", "k BIGINT, id BIGINT, v BIGINT")
    assert rows_for(table, request(["k"], ["v"]), (500,), (position,)) == [(500, 1000)]
    assert rows_for(table, request(["id"], ["v"]), (500,)) == [(500, 1000)]
    assert rows_for(table, request(["id"], []), (position,)) == [(position,)]
    with pytest.raises(SourceError, match="column 'v': the database contains 'odd', which is no BIGINT"):
        rows_for(table, request(["id"], ["v"]), (500,), (position,))


def test_a_column_without_a_spark_type_is_omitted_with_a_warning(tmp_path):
    write(
        tmp_path / "t.db", "CREATE TABLE t (id INTEGER, price NUMERIC, d DECIMAL, m MONEY, x)",
        ("INSERT INTO t VALUES (?, ?, ?, ?, ?)", [(1, 19.99, 7, 5, 5)]),
    )  # fmt: skip
    options = {"connector": "sql", "url": f"sqlite:///{tmp_path / 't.db'}", "table": "t"}
    with pytest.warns(LookupAdvice) as warned:
        table = LookupTable("t", None, options)
    assert [re.search(r"Column '(\w)' .* read without it", str(one.message))[1] for one in warned] == ["m", "x"]
    assert to_ddl(table.schema) == "`id` bigint, `price` double, `d` double"
    connector = connect(tmp_path / "t.db", to_ddl(table.schema))
    assert rows_for(connector, request(["id"], ["price", "d"]), (1,)) == [(1, 19.99, 7.0)]
    with pytest.raises(SchemaError, match="Column 'x' has no type"):
        LookupTable("t", None, {**options, "table": "", "query": "SELECT x FROM t"})


def test_the_error_shows_the_value_in_short(tmp_path):
    write(tmp_path / "t.db", "CREATE TABLE t (k)", ("INSERT INTO t VALUES (?)", [("x" * 1000,)]))
    with pytest.raises(SourceError, match=r"contains 'x{30,50}…, which is no BIGINT"):
        list(connect(tmp_path / "t.db", "k BIGINT").scan(request(["k"])))


def test_text_that_is_not_utf_8(tmp_path):
    write(tmp_path / "t.db", "CREATE TABLE t (k, v)", "INSERT INTO t VALUES (1, CAST(x'ff' AS TEXT))")
    table = connect(tmp_path / "t.db", "k BIGINT, v STRING")
    with pytest.raises(SourceError, match="not UTF-8"):
        rows_for(table, request(["k"], ["v"]), (1,))
    with pytest.raises(SourceError, match="not UTF-8"):
        list(table.scan(request(["k"], ["v"])))


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────

INT = Column("right", "n", pa.int64())
NARROW = Column("right", "n8", pa.int8())
REAL = Column("right", "r", pa.float64())
TEXT = Column("right", "s", pa.string())
FLAG = Column("right", "b", pa.bool_())
DAY = Column("right", "day", pa.date32())
LEFT = Column("left", "n", pa.int64())
ONE = Literal(1, pa.int64())
NAN = literal(math.nan, pa.float64())
PUSHED = [
    Call("<", (INT, ONE)),
    Call(">", (NARROW, ONE)),
    Call("=", (INT, Literal(None, pa.int64()))),
    Call("<=>", (REAL, literal(math.inf, pa.float64()))),
    Call("<=>", (TEXT, Literal(None, pa.string()))),
    Call("not", (Call("=", (TEXT, Literal("a", pa.string()))),)),
    Call("or", (FLAG, Call("is null", (DAY,)))),
    Call("=", (FLAG, Literal(True, pa.bool_()))),
]
LOCAL = [
    Call("<", (REAL, NAN)),
    Call("<", (INT, Literal(1.5, pa.float64()))),
    Call("<", (INT, LEFT)),
    Call("is null", (LEFT,)),
    Call("is null", (Call("=", (INT, ONE)),)),
    Call("=", (DAY, literal(dt.date(2013, 1, 1), pa.date32()))),
    Call("=", (Column("right", "at", TIMESTAMP), literal(moment("2013-01-01"), TIMESTAMP))),
    Call("=", (Column("right", "m", pa.decimal128(4, 2)), literal(Decimal("1.50"), pa.decimal128(4, 2)))),
    Call("=", (Column("right", "f", pa.float32()), Literal(0.5, pa.float32()))),
    Call("=", (Column("right", "x", pa.binary()), literal(b"a", pa.binary()))),
    Call("=", (Call("+", (INT, ONE), pa.int64()), ONE)),
    Call("<", (FLAG, Literal(True, pa.bool_()))),
    Call("starts with", (TEXT, Literal("a", pa.string()))),
    Call("=", (Call("cast", (INT,), pa.float64()), Literal(1.0, pa.float64()))),
    Literal(True, pa.bool_()),
    Literal(None, pa.bool_()),
]  # fmt: skip


def test_only_filters_that_agree_with_spark_are_pushed():
    connector = SqlConnector(parse_ddl("n BIGINT"), {"url": "sqlite:///t.db", "table": "t"})
    assert connector.accept([*LOCAL, *PUSHED]) == PUSHED
    for kept in LOCAL:
        assert connector.accept([Call("and", (PUSHED[0], kept)), Call("not", (kept,))]) == []


@pytest.mark.extended(keep_one_in=10)
@pytest.mark.parametrize("stored", ["abc", "7", b"7", 1.5, 2**40])
@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "=", "<=>"])
@pytest.mark.parametrize("type_", [pa.int32(), pa.float64(), pa.string()])
def test_a_pushed_filter_on_an_invalid_value_fails_like_a_read(tmp_path, stored, op, type_):
    write(tmp_path / "t.db", "CREATE TABLE t (id, v)", ("INSERT INTO t VALUES (?, ?)", [(1, stored), (2, None)]))
    schema = {pa.int32(): "id BIGINT, v INT", pa.float64(): "id BIGINT, v DOUBLE", pa.string(): "id BIGINT, v STRING"}
    table = connect(tmp_path / "t.db", schema[type_])
    values = {pa.int32(): 7, pa.float64(): 7.0, pa.string(): "7"}
    pushed = Call(op, (Column("right", "v", type_), Literal(values[type_], type_)))
    try:
        local = expr.keep(pa.Table.from_batches(table.scan(request(["id"], ["v"]))), [pushed]).select(["id"])
    except SourceError as error:
        for ask in (lambda wanted: rows_for(table, wanted, (1,), (2,)), lambda wanted: list(table.scan(wanted))):
            with pytest.raises(SourceError, match=re.escape(str(error))):
                ask(request(["id"], filters=(pushed,)))
    else:
        assert rows_for(table, request(["id"], filters=(pushed,)), (1,), (2,)) == tuples(local)


# ── the index ────────────────────────────────────────────────────────────────────────────────────────────────


def traced(connector):
    """Return the list that the texts of the connector's coming queries are added to."""
    queries = []
    connection_of(connector).set_trace_callback(queries.append)
    return queries


def plan_of(connector, wanted, *keys):
    queries = traced(connector)
    rows_for(connector, wanted, *keys)
    query = queries[-1] if "COMMIT" not in queries[-1] else queries[-2]
    connection_of(connector).set_trace_callback(None)
    steps = [step for *_, step in connection_of(connector).execute(f"EXPLAIN QUERY PLAN {query}")]
    return next(step for step in steps if step.startswith(("SEARCH t", "SCAN t")))


def test_a_worker_warns_once_of_a_key_without_an_index(tmp_path):
    write(tmp_path / "s.db", "CREATE TABLE t (i INTEGER PRIMARY KEY, n INTEGER)")
    options = {"connector": "sql", "url": f"sqlite:///{tmp_path / 's.db'}", "table": "t"}
    with warnings.catch_warnings(record=True, action="always") as warned:
        for wanted in (Wanted(key=("n",)), Wanted(key=("i",))):
            # A table each: a thread of the first join may still disconnect its connector.
            with LocalJoin(LookupTable("t", "i BIGINT, n BIGINT", options), wanted) as join:
                assert join.rows([(1,), (2,)]) + join.rows([(3,)]) == []
    [advice] = [str(warning.message) for warning in warned if warning.category is LookupAdvice]
    assert advice.startswith("Table 't': In table 't' no index starts with a key column (n)")


INDEXED = {
    "i": "INTEGER",
    "s": "TEXT",
    "nocase": "TEXT COLLATE NOCASE",
    "f": "REAL",
    "m": "NUMERIC",
    "at": "TEXT",
    "c": "TEXT",
}
TYPES = "i BIGINT, s STRING, nocase STRING, f FLOAT, m DECIMAL(4,2), at TIMESTAMP, c STRING"
KEYS = {"i": 1, "s": "a", "nocase": "a", "f": 1.5, "m": Decimal("1.50"), "at": moment("2013-01-01"), "c": "a"}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("indexes", "keys", "constants", "used"),
    [
        ([["i"]], ["i"], [], "(i=?)"),
        ([["s"]], ["s"], [], "(s=?)"),
        ([["nocase"]], ["nocase"], [], "(nocase=?)"),
        ([["f"]], ["f"], [], "(f>? AND f<?)"),
        ([["m"]], ["m"], [], "(m=?)"),
        ([["at"]], ["at"], [], "(at=?)"),
        ([["i", "s"]], ["s", "i"], [], "(i=? AND s=?)"),
        ([["c", "s"]], ["s"], ["c"], "(c=? AND s=?)"),
        ([["s", "c"]], ["s"], ["c"], "(s=? AND c=?)"),
        ([["c"], ["s"]], ["s"], ["c"], "(s=?)"),
        ([["s"], ["c"]], ["s"], ["c"], "(s=?)"),
    ],
)
def test_the_index_of_the_keys_is_used(tmp_path, indexes, keys, constants, used):
    columns = ", ".join(f"{name} {type_}" for name, type_ in INDEXED.items())
    create = [f"CREATE INDEX i{number} ON t ({', '.join(index)})" for number, index in enumerate(indexes)]
    write(tmp_path / "t.db", f"CREATE TABLE t ({columns})", *create)
    wanted = request(keys, TYPES_NAMES, constants={name: KEYS[name] for name in constants})
    plan = plan_of(connect(tmp_path / "t.db", TYPES), wanted, tuple(KEYS[name] for name in keys))
    assert plan.startswith("SEARCH t USING INDEX")
    assert plan.endswith(used)


TYPES_NAMES = list(INDEXED)


# ── what is wrong is said ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shop.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://shop.db",
        "nosql://u:pw@h/d",
        "postgresql://u:pw@h",
    ],
)
def test_a_url_that_names_no_file(url):
    with pytest.raises(OptionError, match="'url'") as raised:
        build_connector("sql", parse_ddl("k BIGINT"), {"url": url, "table": "t"})
    assert "pw" not in str(raised.value)


def test_a_missing_file_is_not_made(tmp_path):
    with pytest.raises(ConnectorError, match=r"'url'.*no\.db"):
        connect(tmp_path / "no.db", "k BIGINT")
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_database_file(tmp_path):
    (tmp_path / "t.db").write_text("id,name\n1,ann\n" * 100)
    with pytest.raises(ConnectorError, match=r"'url'.*cannot be read"):
        connect(tmp_path / "t.db", "k BIGINT")
    with pytest.raises(ConnectorError, match=r"'url'.*no database file"):
        connect(tmp_path, "k BIGINT")


def test_unknown_tables_and_columns_are_named_with_the_nearest(shop):
    with pytest.raises(ConnectorError, match=r"'table'.*'custmers'(?s:.*)'customers'"):
        connect(shop, CUSTOMERS, "custmers")
    with pytest.raises(SchemaError, match=r"'customers'.*'salery'(?s:.*)'salary'"):
        connect(shop, "id BIGINT, salery DOUBLE", "customers")


def test_a_type_that_sqlite_does_not_hold():
    with pytest.raises(SchemaError, match=r"'tags'.*ARRAY<STRING>"):
        SqlConnector(parse_ddl("tags ARRAY<STRING>"), {"url": "sqlite:///t.db", "table": "t"})


def test_the_options_are_checked():
    for options, named in [
        ({"url": "sqlite:///t.db"}, "table"),
        ({"url": "sqlite:///t", "table": "t", "tabel": ""}, "tabel"),
    ]:
        with pytest.raises(OptionError, match=f"'{named}'"):
            build_connector("sql", parse_ddl("k BIGINT"), options)


def test_the_database_is_opened_for_reading_only(shop):
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection_of(connect(shop, CUSTOMERS, "customers")).execute("DELETE FROM customers")


# ── its life ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_relative_path_starts_where_the_driver_is(shop, monkeypatch, tmp_path):
    monkeypatch.chdir(shop.parent)
    customers = SqlConnector(parse_ddl(CUSTOMERS), {"url": "sqlite:///shop.db", "table": "customers"})
    monkeypatch.chdir("/")
    customers.open()
    assert customers.identity() == {"url": f"sqlite:///{shop}", "table": "customers"}


def test_closed_twice_opened_again_and_used_before_open(shop):
    customers = connect(shop, CUSTOMERS, "customers")
    customers.close()
    customers.close()
    with pytest.raises(ConnectorError, match="open"):
        rows_for(customers, request(["id"]), (1,))
    customers.open()
    assert rows_for(customers, request(["id"]), (1,)) == [(1,)]


def test_rows_that_are_added_later_are_found(shop):
    customers = connect(shop, CUSTOMERS, "customers")
    assert rows_for(customers, request(["id"]), (9,)) == []
    write(shop, "INSERT INTO customers (id) VALUES (9)")
    assert rows_for(customers, request(["id"]), (9,)) == [(9,)]


def test_a_locked_database_may_be_retried_and_no_lock_remains(shop):
    customers = connect(shop, CUSTOMERS, "customers")
    connection_of(customers).execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(shop, timeout=0)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError) as raised:
            rows_for(customers, request(["id"]), (1,))
        assert customers.retryable(raised.value)
    assert rows_for(customers, request(["id"]), (1,)) == [(1,)]
    write(shop, "DELETE FROM customers")


def test_errors_that_would_recur_are_not_retryable(shop):
    customers = connect(shop, CUSTOMERS, "customers")
    write(shop, "DROP VIEW dutch", "ALTER TABLE customers RENAME COLUMN name TO surname")
    with pytest.raises(sqlite3.OperationalError, match=r"no such column") as raised:
        rows_for(customers, request(["id"], ["name"]), (1,))
    assert not customers.retryable(raised.value)
    assert not customers.retryable(sqlite3.ProgrammingError("closed"))
    assert not customers.retryable(LookupCacheError("ours"))
    assert customers.retryable(OSError("disk"))
