"""Estimates how many keys a left side has, from a few of its rows.

Only a count of all rows would tell. Chao's bound takes the keys that some rows hold once, and those that they hold
twice: where most are there once, many more have not been seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pyspark.sql import functions as F  # noqa: N812

from lookupcache.spark.forms.join_context import JoinContext

SEEN = 10_000
"""How many left rows with a key are looked at."""


def estimate_distinct_keys(context: JoinContext) -> float:
    """Return about how many distinct keys the left side has; runs a Spark job over a few of its rows."""
    left, keys = context.keyed_rows()
    rows = left.where(" AND ".join(f"{key} IS NOT NULL" for key in keys)).select(F.xxhash64(*keys)).limit(SEEN)
    seen = Counter(key for (key,) in rows.collect())
    return len(seen) if seen.total() < SEEN else chao_lower_bound(seen.values())


def chao_lower_bound(counts: Iterable[int]) -> float:
    """Return how many kinds there are at least, from how often each of those in a sample was seen.

    Source: A. Chao, "Nonparametric estimation of the number of classes in a population", 1984, in its form without
    bias.

    >>> chao_lower_bound([3, 2, 4])
    3.0
    >>> chao_lower_bound([1] * 80 + [2] * 19)
    257.0
    """
    often = Counter(counts)
    return often.total() + often[1] * (often[1] - 1) / (2 * (often[2] + 1))
