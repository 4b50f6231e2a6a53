"""Files of statements: a Flink job's runs as it is, and what cannot run on Spark is named before anything runs."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from sql_world import rows_of

from lookupcache import LookupSession, StatementError
from lookupcache.cli.commands import main

pytestmark = pytest.mark.spark
JOBS = Path(__file__).parent / "jobs"


@pytest.fixture
def folder(tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, country TEXT)")
        shop.executemany("INSERT INTO customers VALUES (?, ?, ?)", [(1, "ann", "AT"), (2, "bob", "BE")])
        shop.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, level TEXT)")
        shop.executemany(
            "INSERT INTO users VALUES (?, ?, ?)", [(1, "ann", "gold"), (2, "bob", "basic"), (7, "g", "gold")]
        )
    return tmp_path


@pytest.fixture
def session(spark, folder):
    """Return a session with a database and settings of its own."""
    own = spark.newSession()
    own.sql(f"CREATE DATABASE job LOCATION '{folder}/job'")
    own.sql("USE job")
    yield LookupSession(own)
    own.sql("USE default")
    own.sql("DROP DATABASE job CASCADE")


def job(name: str, folder: Path) -> str:
    return (JOBS / name).read_text().replace("{folder}", str(folder))


@pytest.mark.parametrize("create", ["CREATE OR REPLACE TABLE", "CREATE OR REPLACE TEMPORARY TABLE"])
def test_a_lookup_table_is_replaced(session, folder, create):
    options = f"'connector' = 'sql', 'url' = 'sqlite:///{folder}/shop.db', 'table' = 'customers'"
    create = f"{create} people (id BIGINT, name STRING) WITH ({options});"
    join = "SELECT c.name FROM VALUES (1L) AS o(n) JOIN people FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.n = c.id;"
    assert rows_of(session.run(create + create + join)[-1]) == {("ann",): 1}


def test_a_streaming_job_of_flinks_runs_as_it_is(session, folder, caplog):
    spark = session.spark
    (folder / "orders").mkdir()
    rows = ('{"order_id": 1, "customer_id": 1}', '{"order_id": 2, "customer_id": 2}', '{"order_id": 3}')
    (folder / "orders" / "1.json").write_text("\n".join(rows))
    schema = "order_id BIGINT, customer_id BIGINT, total DECIMAL(10, 2)"
    spark.readStream.schema(schema).json(f"{folder}/orders").createOrReplaceTempView("orders")
    for sink in ("sink_all", "sink_at", "sink_others"):
        spark.sql(f"CREATE TABLE {sink} (order_id BIGINT, name STRING) USING parquet")
    with caplog.at_level(logging.WARNING, "lookupcache.sql"):
        session.run(job("orders.sql", folder))
    started = spark.streams.active
    try:
        for query in started:
            query.processAllAvailable()
    finally:
        for query in started:
            query.stop()
    assert rows_of(spark.table("sink_all")) == {(1, "ann"): 1, (2, "bob"): 1, (3, None): 1}
    assert rows_of(spark.table("sink_at")) == {(1, "ann"): 1}
    assert rows_of(spark.table("sink_others")) == {(2, "bob"): 1, (3, "none; nobody"): 1}
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    [warning] = [one.getMessage() for one in caplog.records if "no meaning here" in one.getMessage()]
    assert "table.exec.state.ttl" in warning
    assert "parallelism" not in warning


def test_a_batch_job_of_flinks_runs_as_it_is(session, folder):
    found = session.run(job("files.sql", folder))
    assert list(map(tuple, found[-1].collect())) == [("home", "ANN", 1), ("home", "G", 1), ("shop", "ANN", 1)]
    assert session.spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_statements_that_cannot_run_are_named_before_any_runs(session, folder):
    """Each is named with its line."""
    with pytest.raises(StatementError) as raised:
        session.run(job("broken.sql", folder))
    named = [line.strip().partition(":")[0] for line in raised.value.fact.splitlines()[1:]]
    assert named == ["line 2", "line 3", "line 6", "line 8", "line 9"]
    assert raised.value.position.line == 2
    for cure in ("spark.sql.catalog", "createOrReplaceTempView('clicks')", "USING jdbc", "lag and lead"):
        assert cure in raised.value.hint
    assert not session.spark.catalog.tableExists("kept")
    assert list(session._context.catalog.tables) == []


def test_an_error_of_a_statement_has_its_place_in_the_file(session, folder):
    text = f"SELECT 1;\n\n{job('broken.sql', folder).splitlines()[3]}\n  SELECT d.nam FROM range(1) AS o JOIN dims FOR "
    with pytest.raises(StatementError) as raised:
        session.run(f"{text}SYSTEM_TIME AS OF PROCTIME() AS d ON d.id = o.id")
    assert (raised.value.position.line, raised.value.position.marked) == (4, "d.nam")


def test_the_command_runs_a_file(session, folder, monkeypatch):
    monkeypatch.setattr("lookupcache.cli.sql.spark_session", lambda *_: Kept(session.spark))
    (folder / "job.sql").write_text(job("files.sql", folder))
    done = CliRunner().invoke(main, ["sql", str(folder / "job.sql")])
    assert done.exit_code == 0, done.output
    (folder / "broken.sql").write_text(job("broken.sql", folder))
    failed = CliRunner().invoke(main, ["sql", str(folder / "broken.sql")])
    assert failed.exit_code == 1
    assert "line 9" in failed.output


class Kept:
    """A session that a command uses, and does not stop, since other tests need its Spark."""

    def __init__(self, spark):
        self._spark = spark

    def __getattr__(self, name):
        return getattr(self._spark, name)

    def stop(self):
        pass
