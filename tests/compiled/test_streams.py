"""A stream that runs by its plan goes on from its checkpoint: no row is lost or doubled, whatever the planner is."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from plan_world import ARCHIVE, NOW, comparable, newest, release, update
from sources import SCHEMA, rows_of
from test_format import altered

from lookupcache import CompiledPlan, CompiledPlanError, LookupJoin, LookupSession, LookupTable, PlanReference
from lookupcache.compiled.diff import differences, verdict_of
from lookupcache.compiled.document import read
from lookupcache.planner import passes
from lookupcache.sql.plan_runs import CHECKPOINTS, STAMP

pytestmark = pytest.mark.spark

INSERT = f"""INSERT INTO stream_sink SELECT a.k, p.name FROM arrivals AS a
    LEFT JOIN people {NOW} AS p ON a.k = p.id AND p.salary > 100 AND p.country = 'NL'"""
NAMES = {1: "ann", 2: "rob"}


@pytest.fixture
def session(spark, tmp_path):
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.conf.set("spark.sql.streaming.schemaInference", "false")
    own.conf.set("spark.sql.shuffle.partitions", "1")
    (tmp_path / "in").mkdir()
    session = LookupSession(own)
    session.register_table(LookupTable.from_function("people", SCHEMA, key=["id"], function=rows_of))
    own.sql("DROP TABLE IF EXISTS stream_sink")
    own.sql("CREATE TABLE stream_sink (k BIGINT, name STRING) USING parquet")
    arrivals(own, tmp_path).createOrReplaceTempView("arrivals")
    own.conf.set(CHECKPOINTS, str(tmp_path / "checkpoints"))
    yield session
    for query in own.streams.active:
        query.stop()
    own.sql("DROP TABLE stream_sink")


def arrivals(spark, folder):
    return spark.readStream.schema("k BIGINT").json(str(folder / "in"))


def arrive(folder, name, *keys):
    (folder / name).write_text("".join(f'{{"k": {key}}}\n' for key in keys))
    (folder / name).rename(folder / "in" / name)


def run_until_idle(session, path):
    [(sink, found)] = session.sql(f"EXECUTE PLAN '{path}'").collect()
    assert sink == "`stream_sink`"
    query = session.spark.streams.get(found)
    if query is None:
        session.spark.streams.awaitAnyTermination(1)  # raises the error that ended it
    query.processAllAvailable()
    query.stop()
    return found


def rows(session):
    session.spark.sql("REFRESH TABLE stream_sink")
    return Counter(map(tuple, session.spark.table("stream_sink").collect()))


def expected(*keys):
    return Counter((key, NAMES.get(key)) for key in keys)


def switch_pass_off(monkeypatch):
    """Let the planner do otherwise than before: nothing is applied before the cache."""
    monkeypatch.setattr(passes, "_calc", lambda draft: None)


@pytest.mark.extended
def test_a_stream_continues_its_checkpoint_with_another_planner(session, tmp_path, monkeypatch):
    path = tmp_path / "plans" / "stream.json"
    session.sql(f"COMPILE PLAN '{path}' FOR {INSERT}")
    update("stream", path.read_text())
    assert comparable(path.read_text()) == comparable(newest("stream"))
    arrive(tmp_path, "a.json", 1, 2, 9)
    first = run_until_idle(session, path)
    assert rows(session) == expected(1, 2, 9)
    keep_checkpoint(tmp_path / "checkpoints" / "stream_sink")
    switch_pass_off(monkeypatch)
    assert session.compile_plan_sql(INSERT).as_json_string() != path.read_text()
    arrive(tmp_path, "b.json", 1, 3)
    assert run_until_idle(session, path) == first
    assert rows(session) == expected(1, 2, 9, 1, 3)
    stamp = tmp_path / "checkpoints" / "stream_sink" / STAMP  # as Spark Connect writes it
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "sources": None}))
    again = tmp_path / "plans" / "again.json"
    session.compile_plan_sql(INSERT.replace("a.k = p.id", "p.id = a.k AND p.name <> 'x'")).write_to_file(again)
    arrive(tmp_path, "c.json", 2, 4)
    assert run_until_idle(session, again) == first
    assert rows(session) == expected(1, 2, 9, 1, 3, 2, 4)
    assert json.loads(stamp.read_text())["sources"] == ["k BIGINT"]


def keep_checkpoint(folder):
    """Write the checkpoint to the archive of the current version, if that is requested."""
    target = ARCHIVE / release() / "checkpoint" / "stream_sink"
    if os.environ.get("LOOKUPCACHE_UPDATE_GOLDEN") and not target.exists():
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.crc"))
        for file in target.glob("sources/*/*"):
            lines = [line if "path" not in line else json.dumps({**json.loads(line), "path": "file:///in/a.json"})
                     for line in file.read_text().splitlines()]  # fmt: skip
            file.write_text("\n".join(lines))


@pytest.mark.parametrize("folder", sorted(ARCHIVE.glob("*/checkpoint")), ids=lambda path: path.parent.name)
def test_a_stream_continues_from_an_archived_checkpoint(session, tmp_path, folder):
    shutil.copytree(folder, tmp_path / "checkpoints")
    known = json.loads((folder / "stream_sink" / "metadata").read_text())["id"]
    for file in (tmp_path / "checkpoints").glob("*/sources/*/*"):
        file.write_text(file.read_text().replace("file:///in/", f"file://{tmp_path}/in/"))
    # The sink's log of batch 0, without files: Spark reads no sink whose log begins later.
    warehouse = session.spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")
    log = Path(warehouse) / "stream_sink" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "0").write_text("v1")
    arrive(tmp_path, "a.json", 1, 2, 9)  # which the checkpoint has seen
    arrive(tmp_path, "b.json", 2, 4)
    assert run_until_idle(session, folder.parent / "stream.json") == known
    assert rows(session) == expected(2, 4)
    assert (tmp_path / "checkpoints" / "stream_sink" / STAMP).exists()


@pytest.mark.extended
def test_a_join_of_a_plan_runs_on_a_stream(session, tmp_path):
    table = LookupTable.from_function("people", SCHEMA, key=["id"], function=rows_of)
    batch = session.spark.range(1).withColumnRenamed("id", "k")
    select = ["left.k", "p.name"]
    join = LookupJoin(batch, table.renamed("p"), "k = p.id AND p.salary > 100 AND p.country = 'NL'", "left", select)
    plan = CompiledPlan(read(join.compile().as_json_string()))
    arrive(tmp_path, "a.json", 1, 3)
    df = LookupJoin.from_plan(arrivals(session.spark, tmp_path), plan).df
    query = df.writeStream.toTable("stream_sink", checkpointLocation=str(tmp_path / "own"))
    query.processAllAvailable()
    query.stop()
    assert rows(session) == expected(1, 3)


BOTH = INSERT.replace("FROM arrivals AS a", "FROM (SELECT * FROM arrivals UNION ALL SELECT * FROM others) AS a")
SWAPPED = BOTH.replace("arrivals UNION", "x UNION").replace("others", "arrivals").replace("x UNION", "others UNION")
OTHER_STREAMS = {
    # what differs: the statement, views to change before it is compiled, the parts that the error names
    "text": (BOTH.replace("SELECT * FROM arrivals", "SELECT k + 1 AS k FROM arrivals"), {}, "texts"),
    "order of sources": (SWAPPED, {}, "texts, places"),
    "order of sources in a view": (BOTH, {"arrivals": "more", "others": "in"}, "places"),
    "source": (BOTH, {"others": "elsewhere"}, "places"),
    "columns of a source": (BOTH.replace("SELECT * FROM", "SELECT k FROM"), {"others": "more: k BIGINT, z INT"},
                            "texts, sources"),
    "output columns": (BOTH.replace("p.name FROM", "p.country FROM"), {}, "output"),
}  # fmt: skip


@pytest.mark.extended
def test_another_stream_is_refused_before_it_starts(session, tmp_path):
    """For each part that has to stay, with a checkpoint that a stream has written."""

    def read_view(view, place):
        folder, _, columns = place.partition(": ")
        (tmp_path / folder).mkdir(exist_ok=True)
        df = session.spark.readStream.schema(columns or "k BIGINT").json(str(tmp_path / folder))
        df.createOrReplaceTempView(view)

    def refused(plan):
        with pytest.raises(CompiledPlanError, match="is of another stream than compiled plan") as caught:
            plan.execute()
        return caught.value.fact.partition(": other ")[2].partition(".\n")[0]

    read_view("others", "more")
    base = session.compile_plan_sql(BOTH)
    base.write_to_file(tmp_path / "both.json")
    arrive(tmp_path, "a.json", 1)
    run_until_idle(session, tmp_path / "both.json")
    offsets = sorted((tmp_path / "checkpoints" / "stream_sink").rglob("*"))
    for changed, (statement, views, parts) in OTHER_STREAMS.items():
        for view, place in views.items():
            read_view(view, place)
        plan = session.compile_plan_sql(statement)
        assert refused(plan) == parts, changed
        assert changed != "output columns" or verdict_of(differences(base.document, plan.document)) == "incompatible"
        read_view("arrivals", "in")
        read_view("others", "more")
    session.spark.sql("CREATE TABLE second_sink (k BIGINT, name STRING) USING parquet")
    moved = altered(lambda data: data["nodes"][-1].update(sink=["second_sink"], head="INSERT INTO second_sink "),
                    base.as_json_string())  # fmt: skip
    assert refused(session.load_plan(PlanReference.from_json_string(moved))) == "sink, table"
    assert verdict_of(differences(base.document, read(moved))) == "incompatible"
    session.spark.sql("DROP TABLE second_sink")
    plan.write_to_file(tmp_path / "other.json")
    explained = session.sql(f"EXPLAIN PLAN '{tmp_path}/other.json'").collect()[0].plan
    assert "It would not run in this session: The checkpoint" in explained
    session.spark.sql("CREATE DATABASE IF NOT EXISTS other_schema")
    session.spark.sql("CREATE TABLE other_schema.stream_sink (k BIGINT, name STRING) USING parquet")
    session.spark.sql("USE other_schema")
    try:
        assert refused(session.compile_plan_sql(BOTH)) == "table"
    finally:
        session.spark.sql("USE default")
        session.spark.sql("DROP DATABASE other_schema CASCADE")
    assert not session.spark.streams.active
    assert sorted((tmp_path / "checkpoints" / "stream_sink").rglob("*")) == offsets
    assert rows(session) == expected(1)


def test_a_batch_is_no_stream(session, tmp_path):
    plan = session.compile_plan_sql(INSERT)
    session.spark.range(3).withColumnRenamed("id", "k").createOrReplaceTempView("arrivals")
    with pytest.raises(CompiledPlanError, match="read a stream; here it reads a batch"):
        session.execute_plan(PlanReference.from_json_string(plan.as_json_string()))


def test_a_stream_without_a_checkpoint_says_so(session):
    plan = session.compile_plan_sql(INSERT)
    session.spark.conf.unset(CHECKPOINTS)
    with pytest.raises(CompiledPlanError, match=CHECKPOINTS):
        plan.execute()


def test_a_stream_that_was_never_started_refuses_no_other(session, tmp_path):
    plan = session.compile_plan_sql(INSERT.replace("p.name", "p.country AS name"))
    folder = tmp_path / "checkpoints" / "stream_sink"
    folder.mkdir(parents=True)
    (folder / STAMP).write_text('{"texts": ["another"]}')
    plan.write_to_file(tmp_path / "a.json")
    [[shown]] = session.sql(f"EXPLAIN PLAN '{tmp_path}/a.json'").collect()
    assert shown.endswith("It would run in this session.\n")
    (folder / "offsets").mkdir()
    [[shown]] = session.sql(f"EXPLAIN PLAN '{tmp_path}/a.json'").collect()
    assert "other texts" in shown


def test_a_stream_under_other_settings_is_refused_at_its_start(session):
    plan = session.compile_plan_sql(INSERT)
    session.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    with pytest.raises(CompiledPlanError, match="timeZone: plan 'UTC', here 'Asia/Tokyo'") as caught:
        plan.execute()
    assert "A stream runs in the session itself" in str(caught.value.hint)
    assert not session.spark.streams.active
