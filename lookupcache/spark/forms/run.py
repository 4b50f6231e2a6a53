"""From the name of a form to the join that it makes."""

from __future__ import annotations

from pyspark.sql import DataFrame

from lookupcache.spark.forms.broadcast import by_broadcast
from lookupcache.spark.forms.distinct import by_distinct_keys
from lookupcache.spark.forms.join_context import JoinContext
from lookupcache.spark.forms.worker import by_worker

_WAYS = {"worker": by_worker, "distinct": by_distinct_keys, "broadcast": by_broadcast}


def result_of(context: JoinContext, form: str) -> DataFrame:
    """Return the result of a join in this form, lazy as any DataFrame."""
    return _WAYS[form](context)
