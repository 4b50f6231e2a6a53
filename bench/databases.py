"""Tables in databases, and functions that fetch rows into Arrow with the drivers only, as fast as possible.

A call requests all its keys at once. The functions differ in how they pass the keys: in one parameter, or in one each.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.fetch import MORE, Bare, Fetch
from bench.source import PAYLOAD, rows
from lookupcache.connector import Connector, build_connector
from lookupcache.schema import parse_ddl, to_ddl

SELECT = f"SELECT id, {', '.join(PAYLOAD)} FROM t WHERE id"
COLUMNS = ("id", *PAYLOAD, *MORE)
TYPES = rows(np.arange(1), PAYLOAD).schema
SCHEMA = f"id BIGINT, {to_ddl(TYPES)}, {', '.join(f'{name} STRING' for name in MORE)}"
ROWS_PER_INSERT = 20_000


def connector(url: str) -> Connector:
    """Return the connector of lookupcache."""
    return build_connector("sql", parse_ddl(SCHEMA), {"url": url, "table": "t"})


def table(count: int) -> pa.Table:
    """Return all rows with all columns."""
    more = {name: pa.array(["x" * 16] * count) for name in MORE}
    made = rows(np.arange(count), PAYLOAD)
    return pa.table({"id": pa.array(np.arange(count)), **dict(zip(PAYLOAD, made.columns, strict=True)), **more})


def _parts(count: int) -> Iterator[list[tuple[Any, ...]]]:
    whole = table(count)
    for start in range(0, count, ROWS_PER_INSERT):
        yield list(zip(*(column.to_pylist() for column in whole.slice(start, ROWS_PER_INSERT).columns), strict=True))


def _arrow(answer: Sequence[Sequence[Any]]) -> pa.Table:
    fields = [("id", pa.int64()), *((name, TYPES.field(name).type) for name in PAYLOAD)]
    columns = zip(*answer, strict=True)
    return pa.table({name: pa.array(values, type_) for (name, type_), values in zip(fields, columns, strict=True)})


def _fetch(name: str, url: str, **bare: Bare) -> Fetch:
    return Fetch(name, url, connector, {variant.replace("_", " "): fetch for variant, fetch in bare.items()})


# ── SQLite ───────────────────────────────────────────────────────────────────────────────────────────────────


def sqlite(folder: Path, count: int) -> Fetch:
    """Create a file; return the fetch from it."""
    path = folder / "t.db"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, {', '.join(COLUMNS[1:])})")
        for part in _parts(count):
            made.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(COLUMNS))})", part)
    opened = sqlite3.connect(f"file:{path}?mode=ro", uri=True)

    def as_json(keys: pa.RecordBatch) -> pa.Table:
        sent = json.dumps(keys.column("id").to_pylist())
        return _arrow(opened.execute(f"{SELECT} IN (SELECT value FROM json_each(?))", [sent]).fetchall())

    def one_each(keys: pa.RecordBatch) -> pa.Table:
        sent = keys.column("id").to_pylist()
        return _arrow(opened.execute(f"{SELECT} IN ({', '.join('?' * len(sent))})", sent).fetchall())

    return _fetch("SQLite", f"sqlite:///{path}", sqlite3_JSON=as_json, sqlite3_IN=one_each)


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────────────────


def postgres(url: str, count: int) -> Fetch:
    """Create a table; return the fetch from it."""
    import psycopg
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(url) as made, made.cursor() as cursor:
        cursor.adbc_ingest("t", table(count), mode="replace")
        cursor.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
        cursor.execute("ANALYZE t")
        made.commit()
    adbc = dbapi.connect(url, autocommit=True).cursor()
    other = psycopg.connect(url, autocommit=True).cursor(binary=True)

    def by_adbc(keys: pa.RecordBatch) -> pa.Table:
        lists = pa.ListArray.from_arrays([0, keys.num_rows], keys.column("id"))
        adbc.execute(f"{SELECT} = ANY($1)", pa.record_batch({"ids": lists}))
        return adbc.fetch_arrow_table()

    def by_psycopg(keys: pa.RecordBatch) -> pa.Table:
        return _arrow(other.execute(f"{SELECT} = ANY(%s)", [keys.column("id").to_pylist()], prepare=True).fetchall())

    return _fetch("PostgreSQL", url, ADBC=by_adbc, psycopg=by_psycopg)


# ── MariaDB ──────────────────────────────────────────────────────────────────────────────────────────────────


def maria(url: str, make: Any, count: int) -> Fetch:
    """Create a table, with a connection that ``make`` returns; return the fetch from it."""
    cursor = make().cursor()
    text = ", ".join(f"{name} VARCHAR(16)" for name in ("name", "country"))
    more = ", ".join(f"{name} VARCHAR(16)" for name in MORE)
    cursor.execute(f"CREATE TABLE t (id BIGINT PRIMARY KEY, {text}, salary DOUBLE, age INT, {more})")
    for part in _parts(count):
        cursor.executemany(f"INSERT INTO t VALUES ({', '.join(['%s'] * len(COLUMNS))})", part)

    def one_each(keys: pa.RecordBatch) -> pa.Table:
        cursor.execute(f"{SELECT} IN %s", [keys.column("id").to_pylist()])
        return _arrow(cursor.fetchall())

    return _fetch("MariaDB", url, PyMySQL_IN=one_each)


# ── DuckDB ───────────────────────────────────────────────────────────────────────────────────────────────────


def duckdb(folder: Path, count: int) -> Fetch:
    """Create a file; return the fetch from it."""
    import duckdb

    path = folder / "t.duckdb"
    with duckdb.connect(path) as made:
        made.register("whole", table(count))
        made.execute("CREATE TABLE t AS FROM whole")
    opened = duckdb.connect(path, read_only=True)

    def as_table(keys: pa.RecordBatch) -> pa.Table:
        opened.register("wanted", pa.table(keys.columns, names=["id"]))
        return opened.sql(f"{SELECT} IN (SELECT id FROM wanted)").to_arrow_table()

    return _fetch("DuckDB", f"duckdb:///{path}", duckdb=as_table)
