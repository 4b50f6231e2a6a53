"""Which versions of Spark, Python and Java lookupcache supports, and what PySpark 3.5 has under other names.

A module of the driver that needs Spark is imported only after `refuse_unsupported`. So the error names a version that
is too old, not a name that it lacks.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa

from lookupcache.errors import UnsupportedVersionError
from lookupcache.java import parse_version, supported_java, usable

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import Column, DataFrame
    from typing_extensions import TypeIs

Version = tuple[int, ...]

OLDEST_SPARK = (3, 5)
NEWEST_PYTHON_OF_SPARK_3 = (3, 12)
"""Spark 3.5 pickles functions with a cloudpickle of its own, which does not know later versions."""

ANALYSIS_REFUSED = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""The error condition of whatever Spark would have to analyze in a query of a declarative pipeline."""

_checked: WeakSet[Any] = WeakSet()


def refuse_unsupported() -> None:
    """Raise UnsupportedVersionError without PySpark or pandas, or where PySpark is too old or not for this Python."""
    try:
        import pyspark
    except ModuleNotFoundError as error:
        raise UnsupportedVersionError(
            f"PySpark cannot be imported: {error}.", hint="pip install 'lookupcache[spark]'"
        ) from error
    _refuse_spark(pyspark.__version__)
    if is_spark_3() and find_spec("distutils") is None:
        raise UnsupportedVersionError(
            f"PySpark {pyspark.__version__} needs distutils, which Python has no more since 3.12.",
            hint="pip install setuptools",
        )
    if find_spec("pandas") is None:
        raise UnsupportedVersionError(
            "pandas is not installed, which PySpark needs on the driver for any Python function of Arrow batches.",
            hint="pip install 'lookupcache[spark]'",
        )


def refuse_unsupported_session(spark: Any) -> None:
    """Raise UnsupportedVersionError where the Spark of a session, or its Java, is not supported; once per session.

    On Spark Connect, the Spark is that of the server, and its Java is not known.
    """
    if spark in _checked:
        return
    version = spark_version(spark)
    _refuse_spark(version)
    if minor(version) < (4, 0) and not is_spark_3():
        raise UnsupportedVersionError(
            f"The server runs Spark {version}, and this client has a PySpark of version 4.",
            hint="Install the server's version: pip install 'pyspark[connect]==3.5.*'",
        )
    if hasattr(spark, "_jsparkSession"):
        _refuse_java(str(spark._jvm.java.lang.System.getProperty("java.version")), version)
    _checked.add(spark)


def spark_version(spark: Any) -> str:
    """Return the version of a session's Spark; in a pipeline, which refuses to tell it, that of the client."""
    from pyspark import __version__
    from pyspark.errors import PySparkException

    try:
        return str(spark.version)
    except PySparkException as error:
        if condition_of(error) != ANALYSIS_REFUSED:
            raise
        return str(__version__)


def minor(version: str) -> Version:
    """Return the first two numbers of a version.

    >>> minor("3.5.9"), minor("4.2.0.dev1"), minor("3.5.0-amzn-1")
    ((3, 5), (4, 2), (3, 5))
    """
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


@cache
def is_spark_3() -> bool:
    """Return whether the PySpark of this process is of version 3; False without PySpark."""
    if find_spec("pyspark") is None:
        return False
    from pyspark import __version__

    return minor(__version__) < (4, 0)


def _refuse_spark(version: str, python: Version = sys.version_info[:2]) -> None:
    """Refuse a version of Spark that is too old, or does not support this Python.

    >>> _refuse_spark("3.4.4")
    Traceback (most recent call last):
    lookupcache.errors.UnsupportedVersionError: lookupcache does not run on Spark 3.4.4.
    <BLANKLINE>
    Hint: It supports Spark 3.5, and Spark 4.0 and later.
    """
    if minor(version) < OLDEST_SPARK:
        raise UnsupportedVersionError(
            f"lookupcache does not run on Spark {version}.", hint="It supports Spark 3.5, and Spark 4.0 and later."
        )
    if minor(version) < (4, 0) and python > NEWEST_PYTHON_OF_SPARK_3:
        raise UnsupportedVersionError(
            f"Spark {version} does not run on Python {python[0]}.{python[1]}.",
            hint="With Spark 3.5, lookupcache supports Python 3.11 and 3.12; Spark 4.0 and later run on this one.",
        )


def _refuse_java(version: str, spark: str) -> None:
    """Refuse a version of Java on which this Spark fails.

    >>> _refuse_java("21.0.8", "3.5.9")
    Traceback (most recent call last):
    lookupcache.errors.UnsupportedVersionError: Spark 3.5.9 does not run on Java 21.0.8.
    <BLANKLINE>
    Hint: Before Spark starts, set JAVA_HOME to a Java of version 8, 11 or 17.
    """
    if not usable(parse_version(version), minor(spark)):
        raise UnsupportedVersionError(
            f"Spark {spark} does not run on Java {version}.",
            hint=f"Before Spark starts, set JAVA_HOME to a Java of version {supported_java(minor(spark))}.",
        )


# ── PySpark 3.5 ──────────────────────────────────────────────────────────────────────────────────────────


def condition_of(error: PySparkException) -> str | None:
    """Return the error condition of Spark's that an error has, such as ``TABLE_OR_VIEW_NOT_FOUND``."""
    return error.getErrorClass() if is_spark_3() else error.getCondition()


def frame_of(kind: type[Any], plan: Any, spark: Any) -> Any:
    """Return the DataFrame of a class of Spark Connect that a plan makes."""
    if not is_spark_3():
        return kind(plan, spark)
    frame = kind(spark)
    frame._plan = plan
    return frame


def to_arrow(df: Any) -> pa.Table:
    """Return the rows of a DataFrame as an Arrow table."""
    if not is_spark_3():
        return df.toArrow()
    if not hasattr(df, "_jdf"):  # Spark Connect
        client = df.sparkSession.client
        return client.to_table(df._plan.to_proto(client))[0]
    from pyspark.sql.pandas.types import to_arrow_schema

    schema, batches = to_arrow_schema(df.schema), df._collect_as_arrow()
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def query_context(error: PySparkException) -> list[Any]:
    """Return where in a text the error is that Spark has found."""
    if not is_spark_3():
        return list(error.getQueryContext() or [])
    origin = getattr(error, "_origin", None)  # None on Spark Connect
    return [] if origin is None or error.getErrorClass() is None else list(origin.getQueryContext())


def settings_text(spark: Any) -> str:
    """Return all settings that a session sets, as text."""
    # The map as text takes one call to the JVM; reading it from Python takes several for each setting.
    if hasattr(spark, "_jsparkSession"):
        return str(spark.conf._jconf.getAll().toString())
    if is_spark_3():
        return str({row.key: row.value for row in spark.sql("SET").collect()})
    return str(spark.conf.getAll)


def is_column(value: Any) -> TypeIs[Column]:
    """Return whether a value is a Column; in PySpark 3.5, that of Spark Connect is of a class of its own."""
    return _is_of_spark(value, "Column")


def is_dataframe(value: Any) -> TypeIs[DataFrame]:
    """Return whether a value is a DataFrame, classic or of Spark Connect, also in PySpark 3.5."""
    return _is_of_spark(value, "DataFrame")


def _is_of_spark(value: Any, name: str) -> bool:
    return any(kind.__name__ == name and kind.__module__.startswith("pyspark.sql.") for kind in type(value).__mro__)


def package_version(module: str) -> str | None:
    """Return the version of the package that a module is from, whose name may be another; None if it is not known."""
    from importlib import metadata

    top = module.partition(".")[0]
    for name in (*metadata.packages_distributions().get(top, ()), top):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None
