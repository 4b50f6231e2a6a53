"""Whatever a server, a database or a role is set to, a lookup finds the same rows as without, or it fails.

At night with each value of each setting that a session may have; by day with those that have changed rows, or might.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math

import pyarrow as pa
import pytest
from databases import MariaTables, PostgresTables, through
from lookupcache_sql.connector import SqlConnector

from lookupcache.connector import LookupRequest
from lookupcache.expr import Call, Column, Literal
from lookupcache.schema import parse_ddl

SCHEMA = (
    "k STRING, n INT, d DOUBLE, f FLOAT, dec DECIMAL(20,5), day DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, b BINARY, "
    "t BOOLEAN, s STRING"
)
OLD = dt.datetime(1800, 1, 1, 12, 30, 15, 123456)
KEYS = {
    "k": ["é", "É", "plain", "missing", ""],
    "n": [1, 2, 3],
    "d": [0.1 + 0.2, 0.3, math.inf],
    "day": [dt.date(2024, 5, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "ts": [OLD.replace(tzinfo=dt.UTC), OLD.replace(year=2024, tzinfo=dt.UTC)],
    "ntz": [OLD, OLD.replace(microsecond=0)],
    "b": [b"\\'\xff", b"\\'"],
    "s": ["ä\\'ö", "ä'ö", "x\\ny"],
}
TEXT_KEYS = {"took": ["-1 mons +2 days 03:04:00"], "days": ["[2024-05-01,2024-06-01)"]}
MANY = 300
NOT_PLAIN = Call("not", (Call("=", (Column("right", "s", pa.string()), Literal("ö\\", pa.string()))),))


class Lookups:
    """A table with a value of each type, which ends in nested columns, and one with many rows."""

    def __init__(self, options, many, nested="") -> None:
        self.options, self.many, self.schema = options, many, SCHEMA + nested

    def rows(self):
        """Return what is found of both, by keys of each type, by constants and with a filter."""
        with connected(self.options, self.schema) as one:
            keys = KEYS if "took" not in one.schema.names else KEYS | TEXT_KEYS
            by_key = [looked_up(one, key, values) for key, values in keys.items()]
            by_constant = [looked_up(one, "n", [1, 2], constants={key: values[0]}) for key, values in KEYS.items()]
            filtered = looked_up(one, "k", KEYS["k"], filters=tuple(one.accept([NOT_PLAIN])))
        with connected(self.many, "i INT, g INT") as many:
            return by_key, by_constant, filtered, looked_up(many, "g", [1]), looked_up(many, "i", list(range(MANY)))

    def is_refused(self, expected, setting) -> bool:
        """Return whether the database or the connector refuses the lookups; else what is found is as expected."""
        try:
            rows = self.rows()
        except Exception:
            return True
        assert rows == expected, setting
        return False


@contextlib.contextmanager
def connected(options, schema):
    connector = SqlConnector(parse_ddl(schema), options)
    connector.open()
    try:
        yield connector
    finally:
        connector.close()


def looked_up(connector, key, values, constants=None, **request):
    columns = tuple(name for name in connector.schema.names if name not in (key, *(constants or {})))
    if constants and key in constants:
        return []
    wanted = LookupRequest(table="t", key_columns=(key,), columns=columns, constants=constants or {}, **request)
    answer = connector.lookup(wanted, pa.record_batch({key: pa.array(values, connector.schema.field(key).type)}))
    return sorted(repr(tuple(row.values())) for row in answer.to_pylist())


def split(values):
    return [value for value in (values or "").split(",") if value]


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────────────────

SET_BY_DAY = {
    "client_encoding": ["LATIN1", "SQL_ASCII"], "extra_float_digits": ["0", "-15"], "DateStyle": ["German", "SQL,DMY"],
    "TimeZone": ["Europe/Vienna", "Asia/Kathmandu"], "bytea_output": ["escape"], "IntervalStyle": ["sql_standard"],
    "standard_conforming_strings": ["off"], "transform_null_equals": ["on"], "quote_all_identifiers": ["on"],
    "xmlbinary": ["hex"], "array_nulls": ["off"],
}  # fmt: skip
REFUSED_BY_POSTGRES = {"quote_all_identifiers"}
NESTED = ", floats ARRAY<DOUBLE>, moments ARRAY<TIMESTAMP>, texts ARRAY<STRING>, took STRING, days STRING"


@pytest.fixture(scope="module")
def postgres(postgres_server):
    tables = PostgresTables(postgres_server)
    tables.run(
        "CREATE TABLE settings (k text, n int, d float8, f real, dec numeric(20,5), day date, ts timestamptz, "
        "ntz timestamp, b bytea, t bool, s text, floats float8[], moments timestamptz[], texts text[], "
        "took interval, days daterange)",
        "INSERT INTO settings VALUES ('é', 1, 0.1::float8 + 0.2, 0.1, 123456789012345.67891, '2024-05-01', "
        "'1800-01-01 12:30:15.123456+00', '1800-01-01 12:30:15.123456', '\\x5c27ff', true, 'ä\\''ö', "
        "array[0.1::float8 + 0.2], array['1800-01-01 00:00:00+00'::timestamptz], array['é', 'NULL', NULL], "
        "'-1 month 2 days 03:04', '[2024-05-01,2024-06-01)'), "
        "('plain', 2, 'Infinity', 1e-30, NULL, '0001-01-01', '2024-01-01 12:30:15.123456+00', NULL, NULL, false, "
        "'x\\ny', NULL, NULL, NULL, NULL, NULL)",
        f"CREATE TABLE settings_many AS SELECT i::int, 1 AS g FROM generate_series(0, {MANY - 1}) AS i",
        "CREATE ROLE odd LOGIN PASSWORD 'odd'", "GRANT SELECT ON settings, settings_many TO odd",
    )  # fmt: skip
    yield tables
    tables.run("DROP TABLE settings, settings_many", "DROP ROLE odd")


def postgres_values(tables):
    """Return the values of each setting that a role may have for its sessions."""
    with contextlib.closing(tables.server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, vartype, array_to_string(enumvals, ','), min_val, max_val FROM pg_settings "
            "WHERE context = 'user'"
        )
        for name, kind, values, least, most in cursor.fetchall():
            given = {"bool": ["on", "off"], "enum": split(values), "string": []}.get(kind, [least, most])
            yield name, [*SET_BY_DAY.get(name, []), *given]


@pytest.mark.parametrize("scheme", ["postgresql", pytest.param("postgresql+psycopg", marks=pytest.mark.extended)])
@pytest.mark.parametrize("settings", ["some", pytest.param("all", marks=pytest.mark.nightly)])
def test_no_setting_of_a_postgresql_role_changes_the_rows(postgres, settings, scheme):
    odd = through(scheme, {"url": postgres.server.url.replace("shop:s3cret", "odd:odd")})
    nested = NESTED if scheme == "postgresql" else ", took STRING, days STRING"
    lookups = Lookups({**odd, "table": "settings"}, {**odd, "table": "settings_many"}, nested)
    expected = lookups.rows()
    assert [len(rows) for rows in expected[0]] == [2, 2, 2, 2, 2, 1, 1, 2, 1, 1]
    refused = []
    for name, values in SET_BY_DAY.items() if settings == "some" else postgres_values(postgres):
        for value in values:
            try:
                postgres.run(f"ALTER ROLE odd SET {name} = {postgres.literal(value, pa.string())}")
            except Exception:
                continue  # Only for a session or transaction that has begun.
            refused += [(name, value)] * lookups.is_refused(expected, (name, value))
        postgres.run(f"ALTER ROLE odd RESET {name}")
    assert {name for name, _ in refused} <= REFUSED_BY_POSTGRES


# ── MariaDB ──────────────────────────────────────────────────────────────────────────────────────────────────

GLOBAL_BY_DAY = {
    "sql_select_limit": ["100", "0"], "sql_mode": ["", "ANSI", "NO_BACKSLASH_ESCAPES", "PAD_CHAR_TO_FULL_LENGTH"],
    "time_zone": ["+05:30"], "max_allowed_packet": ["1024"], "sql_auto_is_null": ["1"],
    "character_set_server": ["latin1"],
    "character_set_results": ["latin1"], "character_set_client": ["latin1"], "collation_connection": ["latin1_bin"],
    "div_precision_increment": ["0"], "group_concat_max_len": ["4"], "max_sort_length": ["64"],
}  # fmt: skip


REFUSED_BY_MARIADB = {"max_join_size", "max_session_mem_used", "tmp_disk_table_size"}
"""Limits whose least values allow no query."""


@pytest.fixture(scope="module")
def maria(maria_server):
    tables = MariaTables(maria_server)
    tables.run(
        "CREATE TABLE settings (k varchar(20) CHARACTER SET latin1, n int, d double, f float, `dec` decimal(20,5), "
        "day date, ts datetime(6), ntz datetime(6), b varbinary(20), t tinyint(1), s text CHARACTER SET utf8mb4)",
        "INSERT INTO settings VALUES ('é', 1, 0.1e0 + 0.2e0, 0.1, 123456789012345.67891, '2024-05-01', "
        "'1800-01-01 12:30:15.123456', '1800-01-01 12:30:15.123456', x'5c27ff', 1, 'ä\\\\''ö'), "
        "('plain', 2, 0.3e0, 1e-30, NULL, '0001-01-01', '2024-01-01 12:30:15.123456', NULL, NULL, 0, 'x\\\\ny')",
        f"CREATE TABLE settings_many AS SELECT seq AS i, 1 AS g FROM seq_0_to_{MANY - 1}",
    )
    yield tables
    tables.run("DROP TABLE settings, settings_many")


def maria_values(cursor):
    """Return the values of each variable that a session takes from the server."""
    cursor.execute(
        "SELECT lower(variable_name), variable_type, enum_value_list, numeric_min_value FROM "
        "information_schema.system_variables WHERE variable_scope = 'SESSION' AND read_only = 'NO' "
        "AND variable_name <> 'MAX_USER_CONNECTIONS'"
    )
    for name, kind, values, least in cursor.fetchall():
        if kind == "FLAGSET":
            given = [f"{flag}=off" for flag in split(values)] + [f"{flag}=on" for flag in split(values)]
        else:
            given = {"BOOLEAN": ["0", "1"], "ENUM": split(values), "SET": split(values)}.get(kind, [least])
        yield name, [value for value in [*GLOBAL_BY_DAY.get(name, []), *given] if value is not None]


def shown(value):
    text = "DEFAULT" if value is None else str(value)
    return text if text.lstrip("-").replace(".", "", 1).isdigit() or text == "DEFAULT" else repr(text)


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["mariadb", "mariadb+pymysql"])
@pytest.mark.parametrize("settings", ["some", pytest.param("all", marks=pytest.mark.nightly)])
def test_no_variable_of_a_mariadb_server_changes_what_is_found(maria, settings, scheme):
    options = through(scheme, maria.options("settings")), through(scheme, maria.options("settings_many"))
    lookups = Lookups(*options)
    expected = lookups.rows()
    assert [len(rows) for rows in expected[0]] == [2, 2, 2, 2, 2, 1, 1, 2]
    # One connection for all: the session of a second one would have the server's settings.
    with contextlib.closing(maria.server.connect()) as connection, connection.cursor() as cursor:
        refused = []
        for name, values in GLOBAL_BY_DAY.items() if settings == "some" else list(maria_values(cursor)):
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            [before] = cursor.fetchone()
            is_set = False
            for value in values:
                try:
                    cursor.execute(f"SET GLOBAL {name} = {shown(value)}")
                except Exception:
                    continue  # Not every variable has a value for all sessions, and not every value is possible.
                is_set = True
                refused += [(name, value)] * lookups.is_refused(expected, (name, value))
            if is_set:
                cursor.execute(f"SET GLOBAL {name} = {shown(before)}")
    assert {name for name, _ in refused} <= REFUSED_BY_MARIADB
    assert lookups.rows() == expected
