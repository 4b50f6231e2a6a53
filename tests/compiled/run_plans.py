"""Runs plans in a process of its own, which has planned nothing, and writes which rows are not those of Spark's join.

Its only argument is a file with a list of cases: the path of a plan, the statement, the statement as Spark alone
understands it, and the settings of both. Then it compiles the statements again, and writes whose plans are not equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(path: Path) -> None:
    """Write the rows that differ, by the number of the case, to a file next to that of the cases."""
    from drawn_world import different, make_worlds, with_settings
    from pyspark.sql import SparkSession

    from lookupcache import LookupSession, PlanReference
    from lookupcache.compiled.document import write
    from lookupcache.planner import passes
    from lookupcache.sql.compiled import Compiler
    from lookupcache.sql.plan_statements import restore

    def plan_again(*_args: object, **_options: object) -> None:
        raise AssertionError("a restored plan was planned again")

    planner, passes.plan_join = passes.plan_join, plan_again  # type: ignore[assignment]
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.sql.session.timeZone": "UTC"}
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    here, theirs = make_worlds(spark)
    ours = LookupSession(here.spark)  # knows no table: the plans have them
    theirs.conf.set("spark.sql.session.timeZone", "UTC")
    ours.spark.conf.set("spark.sql.session.timeZone", "UTC")
    pairs, cases = {}, json.loads(path.read_text())
    for number, case in enumerate(cases):
        with_settings(ours.spark, theirs, case["settings"])
        plan = restore(ours._context, ours.load_plan(PlanReference.from_file(case["plan"])))
        plan.check()
        [(_, insert)] = plan.document.inserts
        pairs[number] = plan.df(insert.input), theirs.sql(case["plain"]), None  # a sink has no order
    with_settings(ours.spark, theirs, dict.fromkeys(case["settings"]))
    wrong = different(pairs)
    passes.plan_join = planner
    unequal = []
    for case in cases:
        with_settings(ours.spark, theirs, case["settings"])
        compiler = Compiler(here._context)
        compiler.add_insert(here.query(case["lookup"]), None)
        if write(compiler.document()) != Path(case["plan"]).read_text():
            unequal.append(case["plan"])
    found = {"read": len(pairs), "wrong": wrong, "unequal": unequal}
    path.with_suffix(".found").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
