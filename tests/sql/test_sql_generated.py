"""Drawn statements with lookups against the same statements of Spark's over views: columns, types and rows.

``LOOKUPCACHE_CASES`` or ``LOOKUPCACHE_SCALE`` draws more of them; a statement is drawn from its number, of which
``LOOKUPCACHE_SEED`` is the first, so that one that fails can be repeated.
"""

from __future__ import annotations

import os

import pytest
from drawn_world import Comparison, compare_drawn, make_worlds
from scale import SEED, is_time_left, scale_up

pytestmark = pytest.mark.spark

NORMAL = 40
CASES = int(os.environ.get("LOOKUPCACHE_CASES", max(NORMAL, scale_up(NORMAL))))
"""5,000 in a nightly run, which draws 20 times as much."""
AT_ONCE = 250
"""Only counts of the statements are kept, so that a long run needs no more memory than a short one."""


@pytest.fixture(scope="module")
def worlds(spark):
    """Return a session with lookup tables, and one of Spark's with views of the same rows."""
    return make_worlds(spark)


def test_drawn_statements_give_what_spark_gives(worlds, capsys):
    found = Comparison()
    for start in range(SEED, SEED + CASES, AT_ONCE):
        if found.drawn and not is_time_left():
            break
        found += compare_drawn(*worlds, range(start, min(start + AT_ONCE, SEED + CASES)))
    with capsys.disabled():
        print(f"\n{found.counts()}")
    assert not found.wrong, found.report()
    assert found.by_ours_alone <= 0.03 * found.drawn, found.refused
    assert found.refused["by both"] < 0.3 * found.drawn, found.refused
