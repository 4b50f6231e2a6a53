"""Drawn statements, compiled, written, and run in another process: the rows are those of Spark's own join, and
the plans are equal byte for byte to those of that process, which has another time zone, locale and order of sets.

``LOOKUPCACHE_CASES`` draws more of them; a statement is drawn from its number, so that one that fails can be repeated.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from drawn_world import make_worlds, with_settings
from pyspark.errors import PySparkException
from sql_statements import SETTINGS, Drawing

from lookupcache import CompiledPlan, CompiledPlanError, LookupCacheError
from lookupcache.sql.compiled import Compiler

pytestmark = pytest.mark.spark

CASES = int(os.environ.get("LOOKUPCACHE_CASES", "8"))

ELSEWHERE = {"TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "7", "PYTHONUTF8": "0",
             "JAVA_TOOL_OPTIONS": "-Duser.timezone=Asia/Kathmandu -Duser.language=de -Duser.country=DE"}  # fmt: skip
"""Another time zone, locale and order of sets: a plan depends on none of them."""


def compile_drawn(session, theirs, drawn):
    """Return the plan of a drawn query; None for one that Spark or lookupcache refuses."""
    try:
        theirs.sql(drawn.plain)
        query = session.query(drawn.lookup)
        if not query.joins:
            return None
        compiler = Compiler(session._context)
        compiler.add_insert(query, None)
    except CompiledPlanError:
        raise
    except (LookupCacheError, PySparkException):
        return None
    return CompiledPlan(compiler.document())


@pytest.mark.extended
@pytest.mark.nightly(keep_one_in=3)
@pytest.mark.parametrize("part", range(3))
def test_drawn_statements_give_the_same_rows_in_a_fresh_process(spark, tmp_path, part):
    session, theirs = make_worlds(spark)
    session.spark.conf.set("spark.sql.session.timeZone", "UTC")
    cases = []
    drawings = (Drawing(seed).statement() for seed in itertools.count(1_000_000 * part))
    # The plan of a statement has the values of its arguments, which this test does not pass.
    for seed, drawn in enumerate(itertools.islice((one for one in drawings if not one.args), CASES)):
        settings = {**dict.fromkeys(SETTINGS), **drawn.settings}
        with_settings(session.spark, theirs, settings)
        plan = compile_drawn(session, theirs, drawn)
        if plan is not None:
            path = tmp_path / f"{seed}.json"
            plan.write_to_file(path)
            cases.append({"plan": str(path), "lookup": drawn.lookup, "plain": drawn.plain, "settings": settings})
    (tmp_path / "cases").write_text(json.dumps(cases))
    child = [sys.executable, str(Path(__file__).parent / "run_plans.py"), str(tmp_path / "cases")]
    done = subprocess.run(child, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **ELSEWHERE})
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "cases.found").read_text())
    assert (found["wrong"], found["unequal"]) == ({}, [])
    assert found["read"] == len(cases) >= CASES // 3
