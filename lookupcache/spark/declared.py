"""A left side whose columns the caller declares, where Spark cannot analyze: in queries of declarative pipelines.

A pipeline's query function builds its plan before the tables exist that it reads, so Spark Connect refuses every
analysis there. PySpark itself asks for the columns before it adds a Python function, so two
classes here know them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from lookupcache.errors import PlanError, SchemaError
from lookupcache.report import is_classic
from lookupcache.schema import as_schema, quote
from lookupcache.versions import ANALYSIS_REFUSED, condition_of, frame_of

_P = ParamSpec("_P")
_R = TypeVar("_R")


def declare(left: DataFrame, schema: str | pa.Schema | T.StructType) -> DataFrame:
    """Return the left side with the columns that the caller declares; nothing is analyzed on Spark Connect.

    A column of another type is an error when the query runs. On classic Spark, which can analyze at any time, raises
    SchemaError where the columns are others.
    """
    columns = T.StructType(
        [T.StructField(f.name, from_arrow_type(f.type, prefer_timestamp_ntz=True)) for f in as_schema(schema)]
    )
    if is_classic(left.sparkSession):
        _compare(columns, left.schema)
        return left
    chosen = left.select(*(quote(name) for name in columns.names))
    checked = chosen.where(" AND ".join(_type_check(field) for field in columns))
    return _with_columns(checked, columns)


def known_names(df: DataFrame, left: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return a selection from a left side; if that is declared, the names are known without an analysis."""
    return _with_class(df, _KnownNames, known=list(names)) if isinstance(left, _Declared) else df


def as_left(result: DataFrame, left: DataFrame, joined: DataFrame) -> DataFrame:
    """Return a result with the columns of ``joined``; if the left side is declared, it can be that of another join."""
    schema = vars(joined).get("_cached_schema") if is_declared(left) else None
    return result if schema is None else _with_columns(result, schema)


def is_declared(left: DataFrame) -> bool:
    """Return whether the caller has declared the columns, so that Spark analyzes nothing."""
    return isinstance(left, _Declared)


def explain_refusal(what: str, hint: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function that needs an analysis: where Spark refuses it, raise a PlanError with this hint."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except PySparkException as error:
                if not refuses_analysis(error):
                    raise
                raise PlanError(f"Spark does not report {what} in a query of a pipeline.", hint=hint) from None

        return call

    return decorate


def refuses_analysis(error: PySparkException) -> bool:
    """Return whether Spark refuses to analyze anything in a query of a pipeline."""
    return condition_of(error) == ANALYSIS_REFUSED


class _Declared:
    """Mixed into the DataFrame class of Spark Connect."""


class _DeclaredColumns(_Declared):
    """A left side with a schema; it may be a stream, which is the safe assumption: no form reads a stream twice."""

    @property
    def isStreaming(self) -> bool:  # noqa: N802 - PySpark's name
        return True


class _KnownNames(_Declared):
    """A selection from a left side: its `columns` are known, but no type is."""

    known: list[str]

    @property
    def columns(self) -> list[str]:
        return self.known


def _with_columns(df: DataFrame, columns: T.StructType) -> DataFrame:
    """Return a DataFrame that knows its schema, by PySpark's name for it, which differs in 3.5."""
    return _with_class(df, _DeclaredColumns, _cached_schema=columns, _schema=columns)


def _with_class(df: DataFrame, mixin: type, **attributes: Any) -> DataFrame:
    """Return the same plan as a DataFrame of a subclass."""
    subclass = type(mixin.__name__, (mixin, type(df)), {})
    result: DataFrame = frame_of(subclass, df._plan, df.sparkSession)
    vars(result).update(attributes)
    return result


def _type_check(column: T.StructField) -> str:
    """Return a condition that fails where the type is not the declared one; otherwise Spark's optimizer removes it."""
    name, type_ = quote(column.name), column.dataType.simpleString()
    text = f"left_schema says that column {column.name} is {type_}; it is ".replace("\\", "\\\\").replace("'", "\\'")
    expected = type_.replace("\\", "\\\\").replace("'", "\\'")
    return f"CASE WHEN typeof({name}) = '{expected}' THEN true ELSE raise_error(concat('{text}', typeof({name}))) END"


def _compare(declared: T.StructType, actual: T.StructType) -> None:
    of_declared, of_actual = ([(f.name, f.dataType.simpleString()) for f in one] for one in (declared, actual))
    if of_declared != of_actual:
        raise SchemaError(
            f"left_schema has the columns {_columns_text(of_declared)}; the left side has {_columns_text(of_actual)}.",
            hint="Leave left_schema out: it is needed in queries of declarative pipelines only.",
        )


def _columns_text(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in columns)
