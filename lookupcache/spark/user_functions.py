"""Functions of the user's that take the names of Spark's own."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import SparkSession

from lookupcache.spark.declared import explain_refusal
from lookupcache.versions import minor, spark_version

_ORDER = "spark.sql.functionResolution.sessionOrder"
_PATH = ("spark.sql.path.enabled", "spark.sql.defaultPath")
_OWN_FIRST = (4, 2)
"""From which version on Spark finds its own functions before those of the session, unless a setting says otherwise."""


@explain_refusal(
    "the functions of the session, which Spark before 4.2 finds before its own,",
    "Compute it as a column of the left side, and name that in left_schema.",
)
def shadowing_functions(spark: SparkSession) -> Collection[str]:
    """Return the names of the functions that a session may find before Spark's own of the same name, in lower case."""
    if not _finds_user_functions_first(spark):
        return ()
    # In quotes, since Spark 3.5 may reserve the word.
    return {row.function.lower().rpartition(".")[2] for row in spark.sql("SHOW `USER` FUNCTIONS").collect()}


def _finds_user_functions_first(spark: SparkSession) -> bool:
    if minor(spark_version(spark)) < _OWN_FIRST:
        return True
    if spark.conf.get(_ORDER, "second") == "first":
        return True
    return any(spark.conf.get(name, None) not in (None, "", "false") for name in _PATH)
