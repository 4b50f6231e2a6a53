"""Public jobs of Flink's, which are no part of this project: their sinks get the rows of Spark's own joins.

``LOOKUPCACHE_FLINK_JOBS`` is a folder of files of statements; CONTRIBUTING names some. Only the addresses of databases
are replaced. Tables of other connectors than ``jdbc`` are streams of drawn rows, or, where the job writes them, tables.
"""

from __future__ import annotations

import os
import random
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from databases import MariaTables, PostgresTables, Tables
from sql_world import rows_of, sparks_own

from lookupcache import LookupSession
from lookupcache.planner.clauses import closing_of, split_arguments
from lookupcache.sql.catalog import Catalog
from lookupcache.sql.ddl import CreateTable
from lookupcache.sql.script import statements_of
from lookupcache.sql.text import Statement
from lookupcache.sql.token_reader import insert_target, query_start

pytestmark = pytest.mark.spark

JOBS = sorted(Path(os.environ["LOOKUPCACHE_FLINK_JOBS"]).glob("*.sql"))
ADDRESS = re.compile(r"'url'\s*=\s*'jdbc:(mysql|postgresql)://[^']*'")
LOGIN = re.compile(r"'(username|password)'\s*=\s*'[^']*'")
TYPES = {
    "STRING": pa.string(), "VARCHAR": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("us"),
}  # fmt: skip


def name_of(statement: Statement) -> str:
    words = [token.text for token in statement.tokens]
    return statement.tokens[words.index("(") - 1].name


def columns_of(statement: Statement) -> pa.Schema:
    """Return the columns of CREATE TABLE, without those that Flink computes."""
    found = statement.tokens
    opening = next(n for n, token in enumerate(found) if token.text == "(")
    parts = split_arguments(found[opening + 1 : closing_of(found, opening)])
    plain = [part for part in parts if part[0].text not in ("PRIMARY", "WATERMARK") and part[1].text != "AS"]
    return pa.schema([(part[0].name, TYPES[part[1].text]) for part in plain])


def rows_for(schema: pa.Schema, draw: random.Random) -> pa.Table:
    """Return rows of a few values each, so that many of them have the same keys."""

    def value(type_: pa.DataType) -> Any:
        if draw.random() < 0.1:
            return None
        if pa.types.is_string(type_):
            return draw.choice(["pv", "cart", "fav", "it's"])
        number = draw.randint(1, 5)
        return datetime(2024, 7, 1, number) if pa.types.is_timestamp(type_) else number

    rows = [{field.name: value(field.type) for field in schema} for _ in range(30)]
    return pa.Table.from_pylist(rows, schema)


def unedited_but_for_addresses(text: str, tables: Tables) -> str:
    options = tables.options("unused")
    scheme, _, rest = options["url"].partition("://")
    login, _, place = rest.rpartition("@")
    user, _, password = login.partition(":")
    kind = "postgresql" if scheme.startswith("postgres") else "mysql"
    text = ADDRESS.sub(f"'url' = 'jdbc:{kind}://{place}'", text)
    return LOGIN.sub(lambda found: f"'{found[1]}' = '{user if found[1] == 'username' else password}'", text)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_public_job_gives_the_rows_of_sparks_joins(spark, tmp_path, request, path):
    written = path.read_text()
    is_postgres = "jdbc:postgresql" in written
    server = request.getfixturevalue("postgres_server" if is_postgres else "maria_server")
    tables = PostgresTables(server) if is_postgres else MariaTables(server)
    text = unedited_but_for_addresses(written, tables)
    times = re.findall(r"(\w+)\s+AS\s+PROCTIME\(\)", text, re.IGNORECASE)
    session, own = LookupSession(spark.newSession(), time_columns=times), spark.newSession()
    statements = list(statements_of(text))
    inserts = [one for one in statements if one.tokens[0].text == "INSERT"]
    sinks = {insert_target(one.tokens).plain for one in inserts}
    session.spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "checkpoints"))
    session.spark.sql(f"CREATE DATABASE public_job LOCATION '{tmp_path / 'job'}'")
    session.spark.sql("USE public_job")
    try:
        for one in statements:
            if {"CREATE", "TABLE"} <= {token.text for token in one.tokens[:3]}:
                provide(session, own, one, tables, sinks, tmp_path)
        session.run(text)
        for query in session.spark.streams.active:
            query.processAllAvailable()
        for one in inserts:
            expected = own.sql(sparks_own(one.sql[query_start(one.tokens) :]))
            found = session.spark.table(insert_target(one.tokens).plain)
            assert rows_of(found) == rows_of(expected)
            assert len(rows_of(found)) > 2
    finally:
        for query in session.spark.streams.active:
            query.stop()
        session.spark.sql("USE default")
        session.spark.sql("DROP DATABASE public_job CASCADE")


def provide(
    session: LookupSession,
    own: Any,
    statement: Statement,
    tables: Tables,
    sinks: set[str],
    folder: Path,
) -> None:
    """Make what a CREATE TABLE stands for: a table of the database, a stream, or a table that the job writes."""
    name, schema = name_of(statement), columns_of(statement)
    reader = CreateTable(statement, Catalog())
    stored = reader.option("table-name")
    rows = rows_for(schema, random.Random(stored or name))  # the same where two tables read one of the database
    df = own.createDataFrame(rows)
    df.createOrReplaceTempView(name)
    if name in sinks:
        session.spark.createDataFrame(rows.slice(0, 0)).write.saveAsTable(name)
    elif reader.option("connector") == "jdbc":
        made = tables.of(rows)
        tables.run(f"DROP VIEW IF EXISTS {stored}", f"CREATE VIEW {stored} AS SELECT * FROM {made['table']}")
    else:
        df.coalesce(1).write.parquet(str(folder / "streams" / name))
        stream = session.spark.readStream.schema(df.schema).parquet(str(folder / "streams" / name))
        stream.createOrReplaceTempView(name)
