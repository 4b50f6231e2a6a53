"""The names that Spark gives to expressions without an alias, where the columns in them have other names now."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import AnalysisException

from lookupcache.schema import quote
from lookupcache.sql.query import Query
from lookupcache.sql.scope import Source


def spark_names(query: Query, sources: Sequence[Source], items: Sequence[str]) -> list[str]:
    """Return Spark's names of items of a select list, from a query over relations of the same columns without rows.

    None are returned where Spark cannot tell, which then says why when it is given the query itself.
    """
    if not items:
        return []
    relations = ", ".join(f"{_stand_in(source)} AS {quote(source.alias)}" for source in sources if source.visible)
    try:
        return query.setting.spark.sql(f"SELECT {', '.join(items)} FROM {relations}").columns
    except AnalysisException:
        return []


def _stand_in(source: Source) -> str:
    columns = ", ".join(f"CAST(NULL AS {type_}) AS {quote(name)}" for name, type_ in source.types.items())
    computed = "".join(f", {sql} AS {quote(name)}" for name, sql in source.computed.items())
    return f"(SELECT *{computed} FROM (SELECT {columns}))"
