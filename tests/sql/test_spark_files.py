"""Spark's own files of statements, with lookup tables in place of their relations: the same columns, types and rows.

``LOOKUPCACHE_SPARK_FILES`` is the folder ``sql/core/src/test/resources/sql-tests/inputs`` of Spark's sources, of a
version like the one that is installed; without it there is nothing to run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from spark_files import CHANGE, QUERY, Found, compare, files, statements
from sql_world import make_world

from lookupcache import LookupCacheError
from lookupcache.sql.rewrite import read_query
from lookupcache.sql.text import Statement

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

FOLDER = Path(os.environ["LOOKUPCACHE_SPARK_FILES"])
DIFFERENT = 0.01
"""A share of the statements has no order, so that LIMIT may take other rows."""


def test_lookup_tables_stand_for_the_relations_of_sparks_files(spark, capsys):
    found, broken = Found(), {}
    for path in files(FOLDER):
        try:
            compare(spark, path, found)
        except Exception as error:  # so that the other files are compared as well
            broken[path.name] = str(error)
    with capsys.disabled():
        print(f"\n{found.line()}")
        print(*found.different, sep="\n\n")
    compared = sum(found.counts.values())
    assert broken == {}
    assert compared > 500
    assert len(found.different) <= DIFFERENT * compared
    assert found.counts["refused by ours alone"] <= 0.03 * compared, found.refused


BESIDE = "WITH q AS (\n{}\n) SELECT o.order_id, c.name FROM orders AS o JOIN customers {} AS c ON o.customer_id = c.id"
LEFT = "SELECT c.name FROM (\n{}\n) AS o JOIN customers {} AS c ON o.customer_id = c.id"
PERIOD = "FOR SYSTEM_TIME AS OF PROCTIME()"


def parses(spark, text: str) -> bool:
    """Return whether Spark's parser reads a statement."""
    try:
        spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except (PySparkException, Py4JJavaError):
        return False
    return True


def test_queries_that_spark_parses_are_read_beside_a_lookup(spark, tmp_path, capsys):
    """Every query of the files, whatever it is about, stands in a statement with a lookup."""
    context = make_world(spark.newSession(), tmp_path)._context
    read, lost = 0, dict[str, str]()
    for path in sorted(FOLDER.rglob("*.sql")):
        for query in statements(path.read_text()):
            # In parentheses, text that is no statement may be a relation: (select .e3) is the table e3 of select.
            is_query = QUERY.match(query) and not CHANGE.search(query) and parses(spark, query)
            for around in (BESIDE, LEFT) if is_query else ():
                text = Statement.of(around.replace("{}", query, 1).replace("{}", PERIOD))
                if not parses(spark, text.text):
                    continue
                read += 1
                try:
                    read_query(context, text, None)
                except LookupCacheError as error:
                    lost[f"{path.name}: {query}"] = error.fact
    with capsys.disabled():
        print(f"\n{read} statements of Spark's own files read beside a lookup, {len(lost)} lost")
    assert lost == {}
