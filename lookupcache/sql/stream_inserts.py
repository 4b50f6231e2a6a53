"""INSERT from a stream: a streaming query whose rows fit the table, as those of Spark's own INSERT do.

INSERT INTO t (y, x) SELECT a, b …   ─►   writeStream of the columns x, y: by position or name, cast, with defaults
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from lookupcache.errors import StatementError
from lookupcache.planner.clauses import Token, string_sql
from lookupcache.planner.coercion import sql_type
from lookupcache.planner.settings import ANSI
from lookupcache.schema import quote, quote_path
from lookupcache.sql.failures import fact_of, refusal_in
from lookupcache.sql.token_reader import TableName

_FILES = ("parquet", "orc", "json", "csv", "text", "avro")
_POLICY = "spark.sql.storeAssignmentPolicy"


@dataclass(frozen=True)
class StreamInsert:
    """What stands between INSERT and its query: the table, the columns that are listed, and whether names decide."""

    table: str
    columns: tuple[str, ...] = ()
    by_name: bool = False

    @classmethod
    def of(cls, sink: TableName, found: Sequence[Token]) -> StreamInsert:
        """Read an INSERT; raises StatementError for one that a stream cannot run.

        >>> from lookupcache.planner.clauses import tokens
        >>> from lookupcache.sql.token_reader import insert_target
        >>> found = list(tokens("INSERT INTO t (y, `x z`) SELECT 1, 2"))
        >>> StreamInsert.of(insert_target(found), found)
        StreamInsert(table='`t`', columns=('y', 'x z'), by_name=False)
        """
        name = quote_path(sink.parts)
        after = [token for token in found if token.start >= sink.end]
        words = [token.text for token in after[:3]]
        if found[1].text == "OVERWRITE" or words[:1] == ["REPLACE"]:
            raise StatementError(
                f"The query reads a stream, which cannot replace rows of {name}.", hint="Write INSERT INTO: it appends."
            )
        if words[:1] == ["PARTITION"]:
            raise StatementError(
                f"The query reads a stream, and PARTITION names a partition of {name}.",
                hint="Leave it out, and select its value as the column of the partition.",
            )
        if words[:2] == ["BY", "NAME"]:
            return cls(name, by_name=True)
        if words[:1] != ["("] or words[2:] not in ([","], [")"]):
            return cls(name)
        closing = next(number for number, token in enumerate(after) if token.text == ")")
        return cls(name, tuple(token.name for token in after[1:closing] if token.text != ","))

    def start(self, rows: DataFrame, query_name: str | None = None) -> Any:
        """Start the streaming query; return it. A table that is not there is created, with the columns of the query."""
        spark = rows.sparkSession
        try:
            fields = spark.table(self.table).schema.fields
        except AnalysisException as error:
            if query_name is None or "TABLE_OR_VIEW_NOT_FOUND" not in str(error):
                raise
            writer = rows.writeStream
        else:
            provider = self._provider(rows)
            writer = self._fitted(rows, fields).writeStream
            writer = writer if provider is None else writer.format(provider)
        writer = writer if query_name is None else writer.queryName(query_name)
        return writer.toTable(self.table)

    def _provider(self, rows: DataFrame) -> str | None:
        """Return the format of the table; raises StatementError for one whose partitions Spark would not find."""
        found = rows.sparkSession.sql(f"DESCRIBE TABLE EXTENDED {self.table}").collect()
        provider = next((row[1] for row in found if row[0] == "Provider"), None)
        is_partitioned = any(row[0] == "# Partition Information" for row in found)
        if is_partitioned and provider is not None and provider.lower() in _FILES:
            raise StatementError(
                f"The query reads a stream, and {self.table} is a table of partitioned {provider} files. Spark's "
                "catalog does not find the partitions that a stream writes.",
                hint="Write to a table without partitions, or write each batch with foreachBatch and insertInto.",
            )
        return None if provider is None else str(provider)

    def _fitted(self, rows: DataFrame, fields: Sequence[T.StructField]) -> DataFrame:
        """Return the rows with the columns of the table; raises Spark's error where they do not fit."""
        self._check(rows)
        places = {name.lower(): number for number, name in enumerate(self._names(rows, fields))}
        plain = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
        return plain.select(
            *(self._value(rows, field, places.get(field.name.lower())).alias(field.name) for field in fields)
        )

    def _names(self, rows: DataFrame, fields: Sequence[T.StructField]) -> Sequence[str]:
        """Return the table's column for each column of the query."""
        return rows.columns if self.by_name else self.columns or [field.name for field in fields]

    def _check(self, rows: DataFrame) -> None:
        """Let Spark check the INSERT with no rows: the number of columns, their names, and what it would not cast."""
        spark, view = rows.sparkSession, f"lookup_rows_{uuid4().hex}"
        empty, count = spark.createDataFrame([], rows.schema), len(rows.columns)
        if not self.by_name and len({name.lower() for name in rows.columns}) < count:  # A view has each name once.
            empty = empty.toDF(*(f"column{number}" for number in range(1, count + 1)))
        listed = f" ({', '.join(map(quote, self.columns))})" if self.columns else ""
        empty.createOrReplaceTempView(view)
        try:
            text = f"EXPLAIN INSERT INTO {self.table}{listed}{' BY NAME' * self.by_name} SELECT * FROM {view}"
            refusal = refusal_in(spark.sql(text))
        except AnalysisException as error:
            refusal = error
        finally:
            spark.catalog.dropTempView(view)
        if refusal is not None:
            raise StatementError(
                f"The rows of the stream do not fit table {self.table}: {fact_of(refusal)}",
                hint="Select a column for each of the table, or list its columns, and cast those of other types.",
            )

    def _value(self, rows: DataFrame, field: T.StructField, place: int | None) -> Any:
        """Return what is written to a column: a column of the query, cast as INSERT casts, or the default."""
        type_ = sql_type(field.dataType.simpleString())
        if place is None:
            return F.expr(f"CAST({field.metadata.get('CURRENT_DEFAULT', 'NULL')} AS {type_})")
        given = rows.schema[place].dataType
        text = str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", "")).upper()
        if sized := re.fullmatch(r"(CHAR|VARCHAR)\((\d+)\)", text):
            return F.expr(_sized_sql(f"CAST(c{place} AS STRING)", sized[1], int(sized[2]), self._misfit(field, text)))
        if given.simpleString() == field.dataType.simpleString():
            return F.col(f"c{place}")
        if self.by_name and list(_nested_names(given)) != list(_nested_names(field.dataType)):
            raise StatementError(
                f"Column {field.name!r} of {self.table} is {type_}, and the query gives other fields or another order.",
                hint="Select a struct with the table's fields in their order, as by named_struct.",
            )
        conf = rows.sparkSession.conf
        if str(conf.get(ANSI, "true")).lower() == "true" or str(conf.get(_POLICY, "ANSI")).upper() != "ANSI":
            return F.expr(f"CAST(c{place} AS {type_})")
        # INSERT fails where a value does not fit, whatever the session's casts do.
        cast, error = f"TRY_CAST(c{place} AS {type_})", self._misfit(field, type_)
        return F.expr(f"CASE WHEN c{place} IS NOT NULL AND {cast} IS NULL THEN {error} ELSE {cast} END")

    def _misfit(self, field: T.StructField, type_: str) -> str:
        return f"raise_error({string_sql(f'A value for column {field.name!r} of {self.table} does not fit {type_}.')})"


def _sized_sql(text: str, kind: str, size: int, error: str) -> str:
    """Return SQL for a text of a length: Spark drops the blanks at its end that are too many, and fills CHAR with them.

    >>> _sized_sql("x", "VARCHAR", 2, "raise_error('')")
    "CASE WHEN length(rtrim(x)) > 2 THEN raise_error('') ELSE left(x, 2) END"
    """
    fitted = f"CASE WHEN length(rtrim({text})) > {size} THEN {error} ELSE left({text}, {size}) END"
    return fitted if kind == "VARCHAR" else f"rpad({fitted}, {size}, ' ')"


def _nested_names(type_: T.DataType) -> Iterator[str]:
    """Yield the names of the fields in a type, in order."""
    if isinstance(type_, T.StructType):
        for field in type_.fields:
            yield field.name.lower()
            yield from _nested_names(field.dataType)
    elif isinstance(type_, T.ArrayType):
        yield from _nested_names(type_.elementType)
    elif isinstance(type_, T.MapType):
        yield from _nested_names(type_.keyType)
        yield from _nested_names(type_.valueType)
