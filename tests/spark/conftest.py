"""The sides of the joins on Spark, classic or Connect: the session is that of the test's module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sources import PEOPLE, SCHEMA, rows_of

from lookupcache import LookupTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def people() -> LookupTable:
    options = {"lookup.cache": "LRU", "lookup.retry.delay": "1 ms"}
    return LookupTable.from_function("p", SCHEMA, key=["id"], function=rows_of, options=options)


@pytest.fixture(scope="module")
def right(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(PEOPLE, SCHEMA)


@pytest.fixture(scope="module")
def visits(spark: SparkSession) -> DataFrame:
    rows = [(10, 1, "NL"), (11, 2, "NL"), (12, 2, "DE"), (13, 9, "NL"), (14, None, "NL"), (15, 3, None)]
    return spark.createDataFrame(rows, "visit BIGINT, person BIGINT, land STRING").repartition(2)
