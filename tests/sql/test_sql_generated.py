"""Drawn statements with lookups against the same statements of Spark's over views: columns, types and rows.

``LOOKUPCACHE_CASES`` draws more of them; a statement is drawn from its number, so that one that fails can be repeated.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from drawn_world import different, make_worlds, with_settings
from pyspark.errors import PySparkException
from sql_statements import SETTINGS, Drawing

from lookupcache import LookupCacheError

pytestmark = pytest.mark.spark

CASES = int(os.environ.get("LOOKUPCACHE_CASES", "150"))


@pytest.fixture(scope="module")
def worlds(spark):
    """Return a session with lookup tables, and one of Spark's with views of the same rows."""
    return make_worlds(spark)


def test_drawn_statements_give_what_spark_gives(worlds):
    session, theirs = worlds
    refused, pairs, wrong = Counter(), {}, {}
    for seed in range(CASES):
        drawn = Drawing(seed).statement()
        with_settings(session.spark, theirs, drawn.settings)
        ours, expected = result_of(session, drawn.lookup, drawn.args), result_of(theirs, drawn.plain, drawn.args)
        both_refuse = isinstance(ours, str) and isinstance(expected, str)
        if both_refuse:
            refused["by both"] += 1
        elif isinstance(ours, str):
            refused[ours.splitlines()[0]] += 1
        elif isinstance(expected, str):
            wrong[seed] = f"Spark refuses: {expected}"
        elif ours.dtypes != expected.dtypes:
            wrong[seed] = f"{ours.dtypes} in place of {expected.dtypes}"
        else:
            pairs[seed] = ours, expected, drawn.ordered_by
    with_settings(session.spark, theirs, dict.fromkeys(SETTINGS))
    wrong |= different(pairs)
    reported = {seed: (why, Drawing(seed).statement()) for seed, why in wrong.items()}
    assert not reported, "\n\n".join(
        f"{seed}: {why}\n{drawn.lookup!r} {drawn.settings}" for seed, (why, drawn) in reported.items()
    )
    ours_alone = sum(refused.values()) - refused["by both"]
    assert ours_alone <= 0.03 * CASES, refused
    assert refused["by both"] < 0.3 * CASES, refused


def result_of(session, text, args):
    """Return a DataFrame, or the text of the error."""
    try:
        return session.sql(text, args)
    except (LookupCacheError, PySparkException) as error:
        return str(error)
