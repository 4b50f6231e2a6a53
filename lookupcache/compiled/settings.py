"""Settings of a session under which the same text means something else: a plan has them, and runs under the same.

A plan of batches that meets other settings runs in a clone of the session that has the plan's. The session itself is
not changed, since other queries of it run at the same time. Streams and joins of the DataFrame API belong to the
session of the user, so for them other settings are an error.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from lookupcache.compiled.document import Document
from lookupcache.errors import CompiledPlanError
from lookupcache.planner import settings
from lookupcache.versions import settings_text

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
"""Besides these, those of `WHERE_SET` and all that begin with `LEGACY`, where a session sets them."""

WHERE_SET = (
    "spark.sql.function.concatBinaryAsString", "spark.sql.function.eltOutputAsString",
    "spark.sql.parser.singleCharacterPipeOperator.enabled", "spark.sql.preserveCharVarcharTypeInfo",
    "spark.sql.stableDerivedColumnAlias.enabled",
)  # fmt: skip

LEGACY = "spark.sql.legacy."
CATALOG, SCHEMA = "current_catalog", "current_schema"
"""Where a table's name without a schema is looked for."""

_SET_NAME = re.compile(rf"(?<![\w.])(?:{re.escape(LEGACY)}[\w.]+|{'|'.join(map(re.escape, WHERE_SET))})(?![\w.])")
# Set by lookupcache for the time of a statement, or by tests of Spark; they do not change what a query means.
_WITHOUT_MEANING = {"spark.sql.legacy.storeAnalyzedPlanForView"}


def settings_of(spark: Any) -> dict[str, str | None]:
    """Return the settings of a session that a plan has; None for one that is not set."""
    return {name: _value(spark, name) for name in (*MEANINGS, *_set_names(spark))} | {
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


def _set_names(spark: Any) -> list[str]:
    """Return which settings of `WHERE_SET` and of `LEGACY` a session sets."""
    return sorted(set(_SET_NAME.findall(settings_text(spark))) - _WITHOUT_MEANING)


def differences(planned: Mapping[str, str | None], here: Mapping[str, str | None]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, with the value in the plan and here."""
    names = sorted({*planned, *here})
    return {name: (planned.get(name), here.get(name)) for name in names if planned.get(name) != here.get(name)}


def refuse_other_settings(document: Document, spark: Any) -> None:
    """Raise CompiledPlanError where a session has other settings than the plan was compiled with."""
    _refuse(document, differences(document.settings, settings_of(spark)))


def _refuse(document: Document, found: Mapping[str, tuple[Any, Any]], hint: str = "Run {cures}") -> None:
    if found:
        rows = "\n".join(f"  {name}: plan {planned!r}, here {here!r}" for name, (planned, here) in found.items())
        cures = "; ".join(_cure(name, planned) for name, (planned, _) in found.items())
        raise CompiledPlanError(
            f"Compiled plan {document.source} means something else under the settings of this session:\n{rows}",
            hint=hint.format(cures=cures),
        )


def session_of(document: Document, spark: Any) -> Any:
    """Return a session with the settings of a plan of statements: a clone, where the session has others.

    The caller closes a clone with `close_clone`. Raises CompiledPlanError where settings differ and cannot be set.
    Those are settings that this Spark lacks, and all for streams, which would belong to the clone.
    """
    found = differences(document.settings, settings_of(spark))
    if not found:
        return spark
    if document.has_streams:
        _refuse(document, found, "A stream runs in the session itself, so its settings have to be those: {cures}")
    clone = _clone(spark)
    if clone is None:
        _refuse(document, found)
    try:
        failed = _not_set(clone, found)
        _refuse(document, failed, "This Spark does not take them: compile the statement again, or run {cures}")
    except BaseException:
        close_clone(clone, spark)
        raise
    return clone


def close_clone(clone: Any, spark: Any) -> None:
    """Release a session that `session_of` cloned; it does nothing for the session itself."""
    # `stop` would end the application, on Connect where its server is local; on classic Spark a clone is garbage like
    # any object.
    if clone is spark or hasattr(clone, "_jsparkSession"):
        return
    with contextlib.suppress(Exception):  # the server releases a session that is not used
        clone.client.release_session()
    clone.client.close()


def _clone(spark: Any) -> Any:
    """Return a session with the same tables, views and functions; None where this Spark cannot clone one."""
    jvm = getattr(spark, "_jsparkSession", None)
    if jvm is not None:
        return type(spark)(spark._sc, jvm.cloneSession())
    return spark.cloneSession() if hasattr(spark, "cloneSession") else None


def _not_set(clone: Any, found: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Give a session the settings of a plan; return those that it does not take, as in ``found``."""
    failed = {}
    for name, (planned, here) in found.items():
        try:
            if name not in (CATALOG, SCHEMA):
                _set(clone, name, planned)
        except Exception:  # Spark's own: a setting that is static, was removed, or has no such value
            failed[name] = planned, here
    try:
        _use(clone, {name: planned for name, (planned, _) in found.items()})
    except Exception:
        failed |= {name: found[name] for name in (CATALOG, SCHEMA) if name in found}
    return failed


def _set(clone: Any, name: str, planned: str | None) -> None:
    if planned is None:
        clone.conf.unset(name)  # the Spark of the plan did not have it, so this one's default is the nearest
        return
    clone.conf.get(name)  # fails for a setting that this Spark does not have, unlike `set`
    clone.conf.set(name, planned)


def _use(clone: Any, planned: Mapping[str, str | None]) -> None:
    schema = planned.get(SCHEMA) or clone.catalog.currentDatabase()
    if catalog := planned.get(CATALOG):
        clone.catalog.setCurrentCatalog(catalog)
    if CATALOG in planned or SCHEMA in planned:
        clone.catalog.setCurrentDatabase(schema)


def _cure(name: str, planned: str | None) -> str:
    if name in (CATALOG, SCHEMA):
        return f"USE {planned}" if name == SCHEMA else f"SET CATALOG {planned}"
    return f"RESET {name}" if planned is None else f"SET {name}={planned}"
