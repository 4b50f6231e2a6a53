"""Lookup joins in a declarative pipeline that `spark-pipelines` really runs: views, a chain, a streaming table."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as pads
import pyspark
import pytest
from needs import needs_spark

pytestmark = [needs_spark("4.1", "declarative pipelines came with Spark 4.1"), pytest.mark.extended]

SPEC = """name: lookups
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
TRANSFORMATIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from lookupcache import LookupJoin, LookupSession, LookupTable, lookup_join

spark = SparkSession.active()
names = LookupTable.from_function(
    "n", "id BIGINT, name STRING", key=["id"], function=lambda i: [(i, f"name {i}")] if i else []
)
LEFT = "id BIGINT, customer BIGINT"
SELECTED = ["left.id AS id", "customer", "n.name AS name"]


@dp.materialized_view
def orders():
    return spark.range(6).selectExpr("id", "id % 3 AS customer", "'not needed' AS other")


@dp.materialized_view
def enriched():
    return lookup_join(
        spark.read.table("orders"), names, "customer = n.id", "left", SELECTED, where="left.id < 4", left_schema=LEFT
    )


@dp.materialized_view
def twice():
    first = lookup_join(spark.read.table("orders"), names, "customer = n.id", "left", SELECTED, left_schema=LEFT)
    return lookup_join(first, names.renamed("m"), "left.id = m.id", select=["left.*", "m.name AS own"])


@dp.table
def events():
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).option("numPartitions", 1).load()
    return stream.selectExpr("value AS id", "value % 3 AS customer")


@dp.table
def streamed():
    return lookup_join(
        spark.readStream.table("events"), names, "customer = n.id", "left", SELECTED, left_schema=LEFT
    )


def refused(make=lambda **arguments: lookup_join(spark.read.table("orders"), names, **arguments), **arguments):
    try:
        make(**arguments)
    except Exception as error:
        print("REFUSED", type(error).__name__, " ".join(str(error).split()), flush=True)


@dp.materialized_view
def errors():
    refused(on=["id"])
    refused(on="left.id % 4 + abs(customer) = n.id", left_schema=LEFT)
    refused(on="left.id = n.id", select=["left.id + 1"], left_schema=LEFT)
    refused(on=["id"], options={"lookup.metrics": "observe"}, left_schema=LEFT)
    join = LookupJoin(spark.read.table("orders"), names, "customer = n.id", select=SELECTED, left_schema=LEFT)
    refused(join.metrics)
    refused(join.compile)
    session = LookupSession(spark)
    session.register_table(names)
    refused(lambda: session.sql("SELECT 1 FROM orders JOIN n FOR SYSTEM_TIME AS OF PROCTIME() ON customer = n.id"))
    return spark.read.table("orders")
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run the pipeline; return its folder and what it printed."""
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "transformations").mkdir()
    (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder))
    (folder / "transformations" / "tables.py").write_text(TRANSFORMATIONS)
    conf = {"spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"}
    arguments = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command = [Path(pyspark.__path__[0]) / "bin" / "spark-pipelines", "run"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
    environment.pop("SPARK_TESTING", None)
    answer = subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    return folder, answer.stdout + answer.stderr


def rows(folder, table):
    return sorted(
        map(tuple, (row.values() for row in pads.dataset(folder / "spark-warehouse" / table).to_table().to_pylist()))
    )


def named(number):
    return f"name {number}" if number else None


@pytest.mark.extended
def test_a_materialized_view_is_enriched(ran):
    assert rows(ran[0], "enriched") == [(i, i % 3, named(i % 3)) for i in range(4)]


def test_two_joins_follow_each_other(ran):
    assert rows(ran[0], "twice") == [(i, i % 3, named(i % 3), named(i)) for i in range(1, 6)]


def test_a_streaming_table_is_enriched(ran):
    found = rows(ran[0], "streamed")
    assert found == [(i, i % 3, named(i % 3)) for i in range(len(found))]
    assert found


def test_joins_that_need_a_running_spark_are_refused_with_cures(ran):
    refused = [line for line in ran[1].splitlines() if line.startswith("REFUSED")]
    hints = ["left_schema='id", "Compute it as a column", "Give the expression a name", "Leave the option out"]
    hints += ["Nothing could read them", "outside of the functions of the pipeline", "write the join as lookup_join("]
    assert len(refused) == len(hints), refused
    for line, hint in zip(refused, hints, strict=True):
        assert hint in line
