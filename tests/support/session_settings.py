"""The session settings of Spark under which the same condition, type or name means something else."""

from __future__ import annotations

ANSI, ZONE = "spark.sql.ansi.enabled", "spark.sql.session.timeZone"

MEANING = {
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.charAsVarchar": "true",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.function.concatBinaryAsString": "true",
    "spark.sql.function.eltOutputAsString": "true",
    "spark.sql.legacy.allowNegativeScaleOfDecimal": "true",
    "spark.sql.legacy.bangEqualsNot": "true",
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.sql.legacy.codingErrorAction": "true",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "true",
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "true",
    "spark.sql.legacy.duplicateBetweenInput": "true",
    "spark.sql.legacy.earlyEvalCurrentTime": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "true",
    "spark.sql.legacy.followThreeValuedLogicInArrayExists": "false",
    "spark.sql.legacy.inSubqueryNullability": "true",
    "spark.sql.legacy.interval.enabled": "true",
    "spark.sql.legacy.javaCharsets": "true",
    "spark.sql.legacy.literal.pickMinimumPrecision": "false",
    "spark.sql.legacy.lpadRpadAlwaysReturnString": "true",
    "spark.sql.legacy.noCharPaddingInPredicate": "true",
    "spark.sql.legacy.nullInEmptyListBehavior": "true",
    "spark.sql.legacy.setopsPrecedence.enabled": "true",
    "spark.sql.legacy.sizeOfNull": "false",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.parser.singleCharacterPipeOperator.enabled": "false",
    "spark.sql.preserveCharVarcharTypeInfo": "true",
    "spark.sql.readSideCharPadding": "false",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.stableDerivedColumnAlias.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.variable.substitute": "false",
}
"""Settings of Spark 4.3 that concern names, literals, types, casts or comparisons, with a value that is not its own."""

OF_STATEMENTS = {
    "spark.sql.groupByAliases": "false",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.orderByOrdinal": "false",
}
"""Settings that concern the clauses of a SELECT, and no condition of a join."""

DRAWN_OTHERWISE = {
    ANSI: "true and false are drawn for each session, with any of the others",
    ZONE: "several zones are drawn, with any of the others",
}
"""Settings of `MEANING` that sessions of drawn joins have in another way, with how."""
DRAWN = {name: value for name, value in MEANING.items() if name not in DRAWN_OTHERWISE}
"""Settings that sessions of drawn joins and statements have, several of them at once."""

NOT_OF_STATEMENTS = {
    "spark.sql.parser.quotedRegexColumnNames": "a statement is refused if it has a name in backticks, as many drawn "
    "ones have, or is rewritten to a text that has one, as with USING",
    "spark.sql.stableDerivedColumnAlias.enabled": "an item without a name that has a sub-query over a lookup table is "
    "named after the rewritten text; and Spark's DataFrame API, with which joins are compared, does not follow it",
}
"""Settings that drawn statements, and drawn joins that are written as SQL, do not have, with the reason."""


def in_parts(settings: dict[str, str], count: int) -> list[tuple[tuple[str, str], ...]]:
    """Return settings in so many parts of about the same size, none of them twice."""
    return [tuple(list(settings.items())[start::count]) for start in range(count)]
