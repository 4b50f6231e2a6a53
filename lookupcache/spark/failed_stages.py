"""The stages that errors of lookups have ended: the counts of their failed tasks never reach the driver."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from lookupcache.planner.catalyst_column import elements

_ERROR = re.compile(r"""lookupcache\.errors\.\w+: (?:Table ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))?""")


class FailedStages:
    """Finds failed stages in the status that Spark's driver keeps, which it does without its web pages too.

    On Spark Connect there is no such status, and so no failed stage.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[str, int, int]] = set()

    def found(self) -> list[str]:
        """Return for each stage that has failed since the last call, by an error of a lookup, the table or ''."""
        try:
            stages = dict(_failed_stages())
            new = [stage for key, stage in stages.items() if key not in self._seen]
            tables = [table for stage in new for table in _tables_in(stage.failureReason())]
        except Exception:
            # The session has ended, or ends meanwhile.
            return []
        self._seen = set(stages)
        return tables


def _failed_stages() -> Iterator[tuple[tuple[str, int, int], Any]]:
    """Yield Spark's data of each failed stage that it still has, by application, number and attempt."""
    session: Any = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    context = session.sparkContext
    jvm, statuses = context._jvm, context._jvm.java.util.ArrayList()
    statuses.add(jvm.org.apache.spark.status.api.v1.StageStatus.FAILED)
    quantiles = context._gateway.new_array(jvm.double, 0)
    store = context._jsc.sc().statusStore()
    stages = store.stageList(statuses, False, False, quantiles, jvm.java.util.ArrayList())
    for stage in elements(stages):
        yield (context.applicationId, stage.stageId(), stage.attemptId()), stage


def _tables_in(reason: Any) -> list[str]:
    """Return the table that a failure names first, if it is one of a lookup."""
    found = _ERROR.search(reason.get()) if reason.isDefined() else None
    return [] if found is None else [literal_eval(found[1]) if found[1] else ""]
