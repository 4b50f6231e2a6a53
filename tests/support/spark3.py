"""What the tests use of PySpark 4, for runs with PySpark 3.5."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lookupcache.versions import condition_of, to_arrow


def add_names_of_spark_4(folder: Path) -> None:
    """Let PySpark 3.5 make a DataFrame of an Arrow table, by a file in a folder, and name the condition of an error."""
    if not pyspark.__version__.startswith("3."):
        return
    numbers, own = itertools.count(), SparkSession.createDataFrame

    def make(self: SparkSession, data: Any, schema: Any = None, *args: Any, **kwargs: Any) -> DataFrame:
        if not isinstance(data, pa.Table):
            return own(self, data, schema, *args, **kwargs)
        path = folder / f"{next(numbers)}.parquet"
        pq.write_table(data, path)
        reader = self.read if schema is None else self.read.schema(schema)
        return reader.option("datetimeRebaseMode", "CORRECTED").parquet(str(path))

    SparkSession.createDataFrame = make
    DataFrame.toArrow = to_arrow
    PySparkException.getCondition = condition_of
