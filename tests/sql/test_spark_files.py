"""Spark's own files of statements, with lookup tables in place of their relations: the same columns, types and rows.

``LOOKUPCACHE_SPARK_FILES`` is the folder ``sql/core/src/test/resources/sql-tests/inputs`` of Spark's sources, of a
version like the one that is installed; without it there is nothing to run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from spark_files import Found, compare, files

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
