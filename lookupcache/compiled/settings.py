"""Settings of a session under which the same text means something else: a plan has them, and runs only under the same.

They are compared, not set: a DataFrame is evaluated later, when they would be the session's again, and other queries of
the session run at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lookupcache.compiled.document import Document
from lookupcache.errors import CompiledPlanError
from lookupcache.planner import settings

ZONE = "spark.sql.session.timeZone"
_UTC, _NAMES_OF_UTC = "UTC", ("Etc/UTC", "Etc/UCT", "UCT", "GMT", "Etc/GMT", "Z", "Zulu", "Etc/Zulu", "+00:00")

MEANINGS = (
    ZONE, settings.ANSI, settings.CASE_SENSITIVE, settings.DOUBLE_QUOTED,
    settings.RESERVED_KEYWORDS, settings.ESCAPED_STRINGS, settings.KEPT_LENGTHS, settings.REGEX_COLUMNS,
    "spark.sql.storeAssignmentPolicy", "spark.sql.timestampType", "spark.sql.mapKeyDedupPolicy",
    "spark.sql.decimalOperations.allowPrecisionLoss", "spark.sql.sources.partitionOverwriteMode",
    "spark.sql.groupByAliases", "spark.sql.groupByOrdinal", "spark.sql.orderByOrdinal", "spark.sql.variable.substitute",
    "spark.sql.charAsVarchar", "spark.sql.readSideCharPadding",
)  # fmt: skip
"""Besides these, all that begin with `LEGACY` and are set."""

LEGACY = "spark.sql.legacy."
CATALOG, SCHEMA = "current_catalog", "current_schema"
"""Where a table's name without a schema is looked for."""

_LEGACY_NAME = re.compile(rf"(?<![\w.]){re.escape(LEGACY)}[\w.]+")
# Set by lookupcache for the time of a statement, or by tests of Spark; they do not change what a query means.
_WITHOUT_MEANING = {"spark.sql.legacy.storeAnalyzedPlanForView"}


def settings_of(spark: Any) -> dict[str, str | None]:
    """Return the settings of a session that a plan has; None for one that is not set."""
    return {name: _value(spark, name) for name in (*MEANINGS, *_legacy_names(spark))} | {
        CATALOG: spark.catalog.currentCatalog(),
        SCHEMA: spark.catalog.currentDatabase(),
    }


def _value(spark: Any, name: str) -> str | None:
    """Return a setting's value, Spark's default where the session sets none; None where this Spark has no such one."""
    try:
        # With a default of ours, Spark would not tell its own, which another version of it may change.
        value = str(spark.conf.get(name))
        return _UTC if name == ZONE and value in _NAMES_OF_UTC else value
    except Exception as error:  # Spark's own, whose class is not imported where plans are only read
        if "SQL_CONF_NOT_FOUND" not in str(error):
            raise
        return None


def _legacy_names(spark: Any) -> list[str]:
    """Return which legacy settings a session sets."""
    # The map as text takes one call to the JVM; reading it from Python takes several for each setting.
    jvm = getattr(spark, "_jsparkSession", None)
    text = str(jvm.conf().getAll().toString() if jvm is not None else spark.conf.getAll)
    return sorted(set(_LEGACY_NAME.findall(text)) - _WITHOUT_MEANING)


def differences(planned: Mapping[str, str | None], here: Mapping[str, str | None]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, with the value in the plan and here."""
    names = sorted({*planned, *here})
    return {name: (planned.get(name), here.get(name)) for name in names if planned.get(name) != here.get(name)}


def refuse_other_settings(document: Document, spark: Any) -> None:
    """Raise CompiledPlanError where a session has other settings than the plan was compiled with."""
    found = differences(document.settings, settings_of(spark))
    if found:
        rows = "\n".join(f"  {name}: plan {planned!r}, here {here!r}" for name, (planned, here) in found.items())
        cures = "; ".join(_cure(name, planned) for name, (planned, _) in found.items())
        raise CompiledPlanError(
            f"Compiled plan {document.source} means something else under the settings of this session:\n{rows}",
            hint=f"Run {cures}",
        )


def _cure(name: str, planned: str | None) -> str:
    if name in (CATALOG, SCHEMA):
        return f"USE {planned}" if name == SCHEMA else f"SET CATALOG {planned}"
    return f"RESET {name}" if planned is None else f"SET {name}={planned}"
