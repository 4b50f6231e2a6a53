"""The drawn joins with a stream as left side, in two micro-batches: the same rows as Spark's join of the same rows.

``LOOKUPCACHE_CASES`` says how many, an eighth of it, ``LOOKUPCACHE_FIRST_CASE`` the number of the first.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from test_properties import FIRST, Judge, case_with_sets

pytestmark = pytest.mark.spark

CASES = max(int(os.environ.get("LOOKUPCACHE_CASES", "100")) // 8, 12)


def test_a_stream_joins_as_a_batch_does(spark, tmp_path, capsys):
    judge = Judge(spark, tmp_path, every_form=False, streams=True)
    drawn = {number: case_with_sets(number) for number in range(FIRST, FIRST + CASES)}
    judge.judge(list(drawn.values()))
    verdicts = {number: judge(case) for number, case in drawn.items()}
    words = Counter(verdict.word for verdict in verdicts.values())
    with capsys.disabled():
        print(f"\n{CASES} streams from number {FIRST} on: {dict(words)}")
    if wrong := {number: verdict.reason for number, verdict in verdicts.items() if verdict.word == "wrong"}:
        pytest.fail(f"Cases {list(wrong)} differ:\n" + "\n\n".join(wrong.values()))
    assert words["joined"] > 0.8 * CASES
