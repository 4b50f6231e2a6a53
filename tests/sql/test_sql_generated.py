"""Drawn statements with lookups against the same statements of Spark's over views: columns, types and rows.

``LOOKUPCACHE_UPDATE_GOLDEN=1`` records Spark's answers to the statements of a normal run; where they are recorded,
Spark is asked only if ours is another. They must be recorded again when statements are drawn in another way.
``LOOKUPCACHE_CASES`` or ``LOOKUPCACHE_SCALE`` draws more of them; a statement is drawn from its number, of which
``LOOKUPCACHE_SEED`` is the first, so that one that fails can be repeated.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyspark
import pytest
from drawn_world import Comparison, compare_drawn, make_worlds, record
from scale import SEED, scale_up

pytestmark = pytest.mark.spark

NORMAL = 150
CASES = int(os.environ.get("LOOKUPCACHE_CASES", scale_up(NORMAL)))
AT_ONCE = 250
"""Of so many statements only the counts are kept, so that a long run needs no more memory than a short one."""
RECORD = Path(__file__).parent / "golden" / "drawn_statements.json"


def recorded():
    """Return the recorded digests of Spark's answers by seed; none of another version of Spark."""
    found = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return dict(enumerate(found["answers"])) if found.get("spark") == pyspark.__version__ else {}


@pytest.fixture(scope="module")
def worlds(spark):
    """Return a session with lookup tables, and one of Spark's with views of the same rows."""
    return make_worlds(spark)


def test_drawn_statements_give_what_spark_gives(worlds, capsys):
    if os.environ.get("LOOKUPCACHE_UPDATE_GOLDEN"):
        made = {"spark": pyspark.__version__, "answers": list(record(worlds[1], range(NORMAL)).values())}
        RECORD.write_text(json.dumps(made, indent=0) + "\n")
    found, known = Comparison(), recorded()
    for start in range(SEED, SEED + CASES, AT_ONCE):
        found += compare_drawn(*worlds, range(start, min(start + AT_ONCE, SEED + CASES)), known)
    with capsys.disabled():
        print(f"\n{found.counts()}")
    assert not found.wrong, found.report()
    assert found.by_ours_alone <= 0.03 * CASES, found.refused
    assert found.refused["by both"] < 0.3 * CASES, found.refused
    unknown = len(set(range(SEED, SEED + CASES)) - set(known))
    assert found.by_spark <= unknown + 0.05 * CASES, "Record Spark's answers again: LOOKUPCACHE_UPDATE_GOLDEN=1"
