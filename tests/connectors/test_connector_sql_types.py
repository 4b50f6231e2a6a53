"""Every type of every database, as its catalog lists them: inferred, read as declared, as text, and as a key.

Each is either right, by the database's own text of the value, or a clear error that names the column and a cure.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import warnings
from contextlib import contextmanager, nullcontext
from decimal import Decimal

import pyarrow as pa
import pytest
from databases import DuckTables, MariaTables, PostgresTables
from drawing import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lookupcache_redis.values import MISFITS, read_text
from lookupcache_sql import typed
from lookupcache_sql.connector import SqlConnector

from lookupcache.connector import LookupRequest
from lookupcache.errors import LookupCacheError, SchemaError, SourceError
from lookupcache.schema import parse_ddl, parse_type
from lookupcache.table import LookupTable

DECLARED = ("BOOLEAN", "TINYINT", "BIGINT", "DECIMAL(38,0)", "DECIMAL(6,2)", "DOUBLE", "DATE", "TIMESTAMP",
            "TIMESTAMP_NTZ", "BINARY", "ARRAY<STRING>", "STRUCT<a: BIGINT>", "MAP<STRING, STRING>")  # fmt: skip

DUCKDB = {
    "BIGINT": ["9223372036854775807"], "BIGNUM": ["5", "123456789012345678901234567890123456789012345"],
    "BIT": ["'101'"], "BLOB": ["'\\xFF\\x00a'"], "BOOLEAN": ["true"], "DATE": ["'2024-02-29'", "'infinity'"],
    "DECIMAL(10,2)": ["1.50"], "DECIMAL(38,0)": ["99999999999999999999999999999999999999"],
    "DOUBLE": ["0.1", "'nan'", "'-inf'"], "ENUM('sad', 'Glad')": ["'Glad'"], "FLOAT": ["0.1"], "GEOMETRY": [],
    "HUGEINT": ["7", "170141183460469231731687303715884105727", "-100000000000000000000000000000000000007"],
    "INTEGER": ["-1"], "INTERVAL": ["INTERVAL 14 MONTH"], "SMALLINT": ["300"], "TIME": ["'10:11:12.5'"],
    "TIME WITH TIME ZONE": ["'10:00:00+02'"], "TIMESTAMP": ["'2024-01-01 10:11:12.123456'", "'infinity'"],
    "TIMESTAMP WITH TIME ZONE": ["'2024-01-01 10:00:00+02'", "'-infinity'"],
    "TIMESTAMP_MS": ["'2024-01-01 10:11:12.123'"],
    "TIMESTAMP_NS": ["'2024-01-01 10:11:12.123456'", "'2024-01-01 10:11:12.123456789'"], "TIMESTAMPTZ_NS": [],
    "TIMESTAMP_S": ["'2024-01-01 10:11:12'"], "TIME_NS": ["'10:11:12.123456789'"], "TINYINT": ["-128"],
    "UBIGINT": ["5", "18446744073709551615"], "UINTEGER": ["4294967295"],
    "UHUGEINT": ["7", "340282366920938463463374607431768211455", "170141183460469231731687303715884105728"],
    "UNION(n INTEGER, s VARCHAR)": ["'x'"], "USMALLINT": ["65535"], "UTINYINT": ["255"],
    "UUID": ["'6ba7b810-9dad-11d1-80b4-00c04fd430c8'"], "VARCHAR": ["'it''s'", "''"], "JSON": ["'{\"a\": 1}'"],
    "VARIANT": ["'x'"],
}  # fmt: skip
NO_COLUMNS = {"NULL", "TUPLE", "TYPE", "LIST", "ARRAY", "STRUCT", "MAP"}
"""What no column is declared as, or only around other types, as the test does."""

POSTGRES = {
    "bit": ["'1'"], "bool": ["true"], "box": ["'(1,1),(0,0)'"], "bpchar": ["'ab '"], "bytea": ["'\\xff00'"],
    "\"char\"": ["'c'"], "cid": ["'5'"], "cidr": ["'10.0.0.0/8'"], "circle": ["'<(0,0),1>'"],
    "date": ["'2024-02-29'", "'infinity'", "'0044-03-15 BC'"], "datemultirange": ["'{[2024-01-01,2024-01-02)}'"],
    "daterange": ["'[2024-01-01,)'"], "float4": ["0.1"], "float8": ["0.1", "'NaN'", "'-Infinity'"],
    "inet": ["'10.0.0.1/8'", "'1.2.3.4'"], "int2": ["-1"], "int2vector": ["'1 2'"], "int4": ["2147483647"],
    "int4multirange": ["'{[1,5)}'"], "int4range": ["'[1,5)'", "'empty'"], "int8": ["9223372036854775807"],
    "int8multirange": ["'{}'"], "int8range": ["'(,3)'"], "interval": ["'14 months 3 days'"], "json": ["'{\"a\":  1}'"],
    "jsonb": ["'{\"a\": 1}'"], "jsonpath": ["'$.a'"], "line": ["'{1,2,3}'"], "lseg": ["'[(0,0),(1,1)]'"],
    "macaddr": ["'08:00:2b:01:02:03'"], "macaddr8": ["'08:00:2b:01:02:03:04:05'"], "money": ["'1234.5'"],
    "name": ["'nm'"], "numeric": ["1.5", "'NaN'", "1e30"], "numeric(5,2)": ["1.50"], "nummultirange": ["'{[1.5,2]}'"],
    "numrange": ["'[1.5,2]'"], "oid": ["4294967295", "7"], "oidvector": ["'1 4294967295'"],
    "path": ["'[(0,0),(1,1)]'"], "pg_lsn": ["'16/B374D848'"], "pg_snapshot": ["'10:20:10,14'"], "point": ["'(1,2)'"],
    "polygon": ["'((0,0),(1,1),(1,0))'"], "refcursor": ["'c'"], "text": ["'it''s'", "'a,\"b'"], "tid": ["'(0,1)'"],
    "time": ["'10:11:12.5'"], "timestamp": ["'2024-01-01 10:11:12.123456'", "'infinity'"],
    "timestamptz": ["'2024-01-01 10:00:00+02'", "'-infinity'"], "timetz": ["'10:00:00+02'"], "tsmultirange": ["'{}'"],
    "tsquery": ["'a & b'"], "tsrange": ["'[2024-01-01,)'"], "tstzmultirange": ["'{}'"],
    "tstzrange": ["'[2024-01-01 00:00+00,)'"], "tsvector": ["'a b'"], "txid_snapshot": ["'10:20:10,14'"],
    "uuid": ["'6ba7b810-9dad-11d1-80b4-00c04fd430c8'"], "varbit": ["'101'"], "varchar": ["'v'"], "xid": ["'5'"],
    "xid8": ["'5'"], "xml": ["'<a/>'"], "regclass": ["'pg_class'"], "regtype": ["'int4'"], "mood_of_all": ["'glad'"],
    "pair_of_all": ["'(1,z)'"], "positive_of_all": ["3"],
}  # fmt: skip
INNER = ("pg\\_%", "reg%", "gtsvector", "aclitem")
"""What no user's column is declared as, or all alike; of an aclitem PostgreSQL has no binary form for the driver."""

MARIA = {
    "tinyint": ["-128"], "tinyint(1)": ["1"], "smallint": ["1"], "mediumint": ["1"], "int unsigned": ["4294967295"],
    "bigint": ["-1"], "bigint unsigned": ["18446744073709551615"], "int(5) zerofill": ["7"], "decimal(10,2)": ["1.50"],
    "decimal(65,30)": ["1.5", "12345678901234567890123456789012345"], "float": ["0.5"], "double": ["0.1"],
    "bit(1)": ["b'1'"], "bit(8)": ["b'111'"], "bit(64)": ["b'1'"], "year": ["2024"], "date": ["'2024-02-29'"],
    "time(6)": ["'-100:11:12.5'"], "datetime(6)": ["'2024-01-01 10:11:12.123456'"],
    "timestamp(3) null": ["'2024-01-01 10:11:12.125'"], "char(5)": ["'ab'"], "varchar(5)": ["'it''s'"],
    "binary(3)": ["'a'"], "varbinary(5)": ["x'ff00'"], "tinytext": ["'x'"], "longblob": ["x'ff'"],
    "enum('a','B')": ["'B'"], "set('a','b')": ["'a,b'"], "json": ["'{\"a\": 1}'"],
    "uuid": ["'6ba7b810-9dad-11d1-80b4-00c04fd430c8'"], "inet4": ["'1.2.3.4'"], "inet6": ["'::1'"],
    "point": ["Point(1,2)"],
}  # fmt: skip


@pytest.fixture(scope="module")
def duckdb(tmp_path_factory):
    return DuckTables(tmp_path_factory.mktemp("duckdb") / "types.duckdb")


@pytest.fixture(scope="module")
def postgres(postgres_server):
    postgres_server.run(
        "CREATE TYPE mood_of_all AS ENUM ('sad', 'glad')", "CREATE TYPE pair_of_all AS (a int, b text)",
        "CREATE DOMAIN positive_of_all AS int CHECK (value > 0)",
    )  # fmt: skip
    yield PostgresTables(postgres_server)
    postgres_server.run("DROP TYPE mood_of_all CASCADE", "DROP TYPE pair_of_all CASCADE",
                        "DROP DOMAIN positive_of_all CASCADE")  # fmt: skip


@pytest.fixture(scope="module")
def maria(maria_server):
    return MariaTables(maria_server)


_NUMBERS = itertools.count()


def place(tables, native, values, cast):
    """Make a table of a type; return the connector's options for it, and the database's own texts, by id."""
    name = f"types{next(_NUMBERS)}"
    rows = ", ".join(f"({n}, {value})" for n, value in enumerate([*values, "NULL"]))
    tables.run(f"CREATE TABLE {name} (id int, v {native})", f"INSERT INTO {name} VALUES {rows}")
    query = {**tables.options(name), "query": f"SELECT id, {cast.format('v')} AS v FROM {name}"}
    del query["table"]
    with opened(query, parse_ddl("id INT, v STRING")) as connector:
        return tables.options(name), {number: value(connector, number) for number in range(len(values) + 1)}


def infer_types(options):
    """Return the inferred schema; raises SchemaError for a column that is left out of it, as the warning says."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schema = LookupTable("t", None, {"connector": "sql", **options}).schema
    for warning in caught:
        fact, _, hint = str(warning.message).partition("\n\nHint: ")
        raise SchemaError(fact, hint=hint)
    return schema


@settings(max_examples=examples(200), deadline=None)
@given(st.decimals(-(10**6), 10**6, places=4), st.integers(0, 60), st.booleans())
def test_a_decimal_is_read_from_its_text_exactly_or_not_at_all(number, zeros, is_short):
    """Arrow's own cast of a text with more than 38 digits returns a wrong number."""
    type_ = parse_type("DECIMAL(8,2)" if is_short else "DECIMAL(38,18)")
    text = format(number, "f") + "0" * zeros
    fits = number == round(number, type_.scale) and abs(number) < 10 ** (type_.precision - type_.scale)
    for read in (lambda: typed.cast(pa.array([text]), type_), lambda: read_text([text.encode()], type_)):
        with nullcontext() if fits else pytest.raises(MISFITS):
            assert read().to_pylist() == [number]


@contextmanager
def opened(options, schema):
    connector = SqlConnector(schema, options)
    connector.open()
    try:
        yield connector
    finally:
        connector.close()


def value(connector, number):
    """Return the value of an id."""
    wanted = LookupRequest(table="t", key_columns=("id",), columns=("v",))
    [row] = connector.lookup(wanted, pa.record_batch({"id": pa.array([number], pa.int32())})).to_pylist()
    return row["v"]


def ids(connector, key):
    """Return the ids of the rows that hold a value."""
    wanted = LookupRequest(table="t", key_columns=("v",), columns=("id",))
    keys = pa.record_batch({"v": pa.array([key], connector.schema.field("v").type)})
    return connector.lookup(wanted, keys).column("id").to_pylist()


def is_right(value, text):
    """Return whether a value is what the database's text of it says."""
    if value is None or text is None:
        return value is text
    if isinstance(value, bool):
        return text.lower() in (("true", "t", "1") if value else ("false", "f", "0"))
    if isinstance(value, int | Decimal):
        return Decimal(text) == value
    if isinstance(value, float):
        return math.isclose(float(text), value, rel_tol=1e-6) or (math.isnan(value) and math.isnan(float(text)))
    if isinstance(value, dt.datetime):
        moment = dt.datetime.fromisoformat(f"{text}:00" if text.endswith("+00") else text)
        return moment.replace(tzinfo=moment.tzinfo or value.tzinfo) == value
    if isinstance(value, dt.date):
        return value.isoformat() == text
    if isinstance(value, bytes):
        printed = "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02X}" for byte in value)
        return text in (value.decode("latin-1"), f"\\x{value.hex()}", printed)
    if isinstance(value, list | dict):
        return all(str(item) in text for item in (value.values() if isinstance(value, dict) else value))
    return value == text


def wrongs(options, schema, texts, unwrap=lambda value: value):
    """Yield what is neither right nor a clear error, each value by itself, as a value and as a key."""
    try:
        with opened(options, schema) as connector:
            for number, text in texts.items():
                yield from (f"{schema}: {wrong}" for wrong in _wrong(connector, number, text, unwrap))
    except SchemaError as error:
        if not _is_clear(error):
            yield f"{schema}: {error}"


def _wrong(connector, number, text, unwrap):
    found = None
    try:
        found = value(connector, number)
        if not is_right(found if found is None else unwrap(found), text):
            yield f"{found!r} for {text!r}"
        elif found is not None and not isinstance(found, list | dict) and number not in ids(connector, found):
            yield f"{found!r} is not found as a key"
    except Exception as error:
        if not isinstance(error, SourceError) or not _is_clear(error):
            yield f"{found!r} for {text!r}: {error!r}"


def _is_clear(error):
    return "column 'v'" in str(error).lower() and error.hint is not None


def some_declared(native):
    """Return STRING and three more types, others for each type of a database."""
    start = len(native) + sum(map(ord, native))
    return ["STRING", *(DECLARED[(start + step) % len(DECLARED)] for step in (0, 4, 9))]


def all_wrongs(options, texts, unwrap=lambda value: value, declared=()):
    """Yield what is wrong with a column of one type, as it is inferred and as it is declared."""
    try:
        yield from wrongs(options, infer_types(options), texts, unwrap)
    except LookupCacheError as error:
        if not _is_clear(error):
            yield f"inferred: {error}"
    for type_ in declared:
        yield from wrongs(options, parse_ddl(f"id INT, v {type_}"), texts)


# ── DuckDB ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_type_of_duckdbs_catalog_is_tested(duckdb):
    import duckdb as driver

    with driver.connect() as connection:
        listed = {name for [name] in connection.execute("SELECT DISTINCT logical_type FROM duckdb_types()").fetchall()}
    assert listed - NO_COLUMNS <= {name.partition("(")[0] for name in DUCKDB}


@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize("native", DUCKDB)
def test_a_type_of_duckdb(duckdb, native):
    values = [f"CAST({value} AS {native})" for value in DUCKDB[native]]
    options, texts = place(duckdb, native, values, "CAST({} AS VARCHAR)")
    assert list(all_wrongs(options, texts, declared=some_declared(native))) == []


@pytest.mark.extended(keep_one_in=5)
@pytest.mark.nightly(keep_one_in=7)
@pytest.mark.parametrize("native", DUCKDB)
def test_a_type_of_duckdb_inside_of_another(duckdb, native):
    values = [f"CAST({value} AS {native})" for value in DUCKDB[native]]
    _, texts = place(duckdb, native, values, "CAST({} AS VARCHAR)")
    texts.popitem()
    shapes = {
        f"{native}[]": ("[@]", lambda value: value[0]),
        f'STRUCT("a{{ b" {native})': ("{'a{ b': @}", lambda value: value["a{ b"]),
        f"MAP(VARCHAR, {native}[1])": ("MAP {'k': array_value(@)}", lambda value: value[0][1][0]),
    }
    for shape, (spelled, unwrap) in shapes.items():
        options, whole = place(duckdb, shape, [spelled.replace("@", value) for value in values], "CAST({} AS VARCHAR)")
        assert list(all_wrongs(options, {**whole, **texts}, unwrap)) == []
        assert list(wrongs(options, parse_ddl("id INT, v STRING"), whole)) == []


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────────────────


def test_every_type_of_postgresqls_catalog_is_tested(postgres):
    inner = " AND ".join(f"typname NOT LIKE '{name}'" for name in INNER)
    query = (
        "SELECT 1 AS id, string_agg(typname, ' ') AS v FROM pg_type WHERE typtype IN ('b', 'r', 'm') "
        f"AND typnamespace = 'pg_catalog'::regnamespace AND typelem = 0 AND {inner}"
    )
    options = {"url": postgres.options("")["url"], "query": query}
    with opened(options, parse_ddl("id INT, v STRING")) as connector:
        listed = set(value(connector, 1).split())
    assert listed <= {name.strip('"').partition("(")[0] for name in POSTGRES}


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=7)
@pytest.mark.parametrize("native", POSTGRES)
def test_a_type_of_postgresql(postgres, native):
    options, texts = place(postgres, native, POSTGRES[native], "CAST({} AS text)")
    if native == "bpchar":
        texts = {number: text and text.rstrip() for number, text in texts.items()}
    assert list(all_wrongs(options, texts, declared=some_declared(native))) == []


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=13)
@pytest.mark.parametrize("native", POSTGRES)
def test_a_type_of_postgresql_in_an_array(postgres, native):
    values = [f"ARRAY[CAST({value} AS {native})]" for value in POSTGRES[native]]
    _, texts = place(postgres, native, POSTGRES[native], "CAST({} AS text)")
    texts.popitem()
    options, whole = place(postgres, f"{native}[]", values, "CAST({} AS text)")
    assert list(all_wrongs(options, texts, lambda value: value[0])) == []
    for type_ in ("STRING", "ARRAY<STRING>"):
        unwrap = (lambda value: value[0]) if type_ != "STRING" else str
        expected = texts if type_ != "STRING" else whole
        assert list(wrongs(options, parse_ddl(f"id INT, v {type_}"), expected, unwrap)) == []


# ── MariaDB ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=5)
@pytest.mark.parametrize("native", MARIA)
def test_a_type_of_mariadb(maria, native):
    casts = {"bit": "CAST({} + 0 AS CHAR)", "bin": "CAST({} AS CHAR CHARACTER SET latin1)", "poi": "ST_AsText({})"}
    casts["var"] = casts["lon"] = casts["bin"]
    options, texts = place(maria, native, MARIA[native], casts.get(native[:3], "CAST({} AS CHAR)"))
    assert list(all_wrongs(options, texts, declared=some_declared(native))) == []
    query = {"url": options["url"], "query": f"SELECT * FROM {options['table']}"}
    assert list(all_wrongs(query, texts, declared=["STRING"])) == []
