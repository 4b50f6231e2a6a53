"""Columns that call each of Spark's functions, with arguments that Spark accepts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame

from lookupcache.spark.error_log import muted_error_log

_CHANCE = {"rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle", "monotonically_increasing_id",
           "spark_partition_id", "input_file_name", "reflect", "try_reflect", "java_method"}  # fmt: skip
"""Functions whose value changes from call to call, which a join refuses."""
_NO_CALLS = {"udf", "udtf", "pandas_udf", "arrow_udf", "arrow_udtf", "broadcast", "col", "column", "lit", "expr",
             "call_function", "call_udf", "unwrap_udt", "input_file_block_start",
             "input_file_block_length"}  # fmt: skip


def function_columns(
    functions: Any, df: DataFrame, names: Sequence[str], part: slice = slice(None)
) -> Iterator[tuple[str, Any]]:
    """Yield the functions of a part with a Column that calls each, where Spark accepts it with one of these columns.

    ``functions`` is the module of the session's functions. A Column gives one value per row.
    """
    for name in sorted(set(functions.__all__) - _CHANCE - _NO_CALLS)[part]:
        function = getattr(functions, name)
        if inspect.isfunction(function):
            made = (_called(functions, function, column) for column in names)
            found = next((one for one in made if one is not None and _is_accepted(functions, df, one)), None)
            if found is not None:
                yield name, found


def _called(functions: Any, function: Any, column: str) -> Any:
    arguments = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is inspect.Parameter.empty and parameter.kind != inspect.Parameter.VAR_KEYWORD:
            arguments.append(_argument(functions, str(parameter.annotation), column))
    with suppress(Exception):  # It may take other arguments.
        return function(*arguments)
    return None


def _argument(functions: Any, type_: str, column: str) -> Any:
    if "Callable" in type_:
        return lambda *variables: variables[0]
    if "Column" in type_:
        return functions.col(column)
    return {"int": 1, "<class 'int'>": 1, "str": "day", "<class 'str'>": "day"}.get(type_, functions.col(column))


def _is_accepted(functions: Any, df: DataFrame, column: Any) -> bool:
    """Return whether Spark accepts a Column beside others, and in another: it is no aggregate, and makes no rows."""
    with suppress(Exception), muted_error_log():  # Some of Spark's errors come as those of py4j.
        return len(df.select(df.columns[0], functions.struct(column)).columns) == 2
    return False
