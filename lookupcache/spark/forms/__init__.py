"""One lookup join, several physical forms: which rows go through Python, and which side joins.

    worker      every left row is sent through a Python worker, which joins it: any join, batch or stream
    distinct    only the distinct keys go there; Spark joins the left side with their rows
    broadcast   a worker sends the full table to Spark (`lookup.cache` = ALL), which joins

join_context  a planned join and both sides inside the job: names, types, SQL over both
filters       residuals and filters that Spark evaluates
between       columns and conditions between the joins of a chain
attributes    where each column of a chain comes from
chain         several joins in one Python stage of the form `worker`
worker · distinct · broadcast    the forms: each a function from `JoinContext` to the result
left_side     Spark's knowledge of the left side before a job runs
cardinality   an estimate of the number of distinct keys
choice        which form, and why
"""

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

from lookupcache.spark.forms.broadcast import by_broadcast
from lookupcache.spark.forms.choice import choose
from lookupcache.spark.forms.distinct import by_distinct_keys
from lookupcache.spark.forms.join_context import JoinContext

FORMS: Mapping[str, Callable[[JoinContext], DataFrame]] = {
    "distinct": by_distinct_keys,
    "broadcast": by_broadcast,
}
"""From the name of a form in which Spark joins to the function that returns the result, lazy as any DataFrame."""

__all__ = ["FORMS", "JoinContext", "choose"]
