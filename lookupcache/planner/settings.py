"""Session settings that change the meaning of a condition."""

from __future__ import annotations

from collections.abc import Callable

from lookupcache.planner.clauses import Token, tokens, with_backquotes

ANSI = "spark.sql.ansi.enabled"
CASE_SENSITIVE = "spark.sql.caseSensitive"
DOUBLE_QUOTED = "spark.sql.ansi.doubleQuotedIdentifiers"
RESERVED_KEYWORDS = "spark.sql.ansi.enforceReservedKeywords"
ESCAPED_STRINGS = "spark.sql.parser.escapedStringLiterals"
EXPONENT_AS_DECIMAL = "spark.sql.legacy.exponentLiteralAsDecimal.enabled"
MINIMUM_PRECISION = "spark.sql.legacy.literal.pickMinimumPrecision"
MOMENT_AS_STRING = "spark.sql.legacy.typeCoercion.datetimeToString.enabled"
KEPT_LENGTHS = "spark.sql.preserveCharVarcharTypeInfo"
NULL_IN_NOTHING = "spark.sql.legacy.nullInEmptyListBehavior"
REGEX_COLUMNS = "spark.sql.parser.quotedRegexColumnNames"

_DEFAULTS = {ANSI: "true", MINIMUM_PRECISION: "true"}
"""All others are off where the session does not say."""


def _unset(_name: str) -> str | None:
    return None


class Settings:
    """The settings of a session, each read only if a text depends on it.

    ``get`` returns the value of a setting, None if the session does not set it.

    >>> settings = Settings({"spark.sql.parser.escapedStringLiterals": "true"}.get)
    >>> settings.doubtful("a = 'b'"), settings.doubtful(r"a = 'b\\n'")
    (False, True)
    """

    def __init__(self, get: Callable[[str], str | None] = _unset) -> None:
        self._get = get
        self._known: dict[str, bool] = {}

    def on(self, name: str) -> bool:
        """Return whether a setting is on."""
        if name not in self._known:
            self._known[name] = str(self._get(name) or _DEFAULTS.get(name)).lower() == "true"
        return self._known[name]

    @property
    def null_in_nothing(self) -> bool:
        """Whether NULL IN () is NULL, not false; by default if ANSI mode is off."""
        return self.on(NULL_IN_NOTHING) if self._get(NULL_IN_NOTHING) is not None else not self.on(ANSI)

    def readable(self, text: str) -> str:
        """Return a text with names in backquotes, if the session treats double quotes as those of a name."""
        quoted = '"' in text and self.on(DOUBLE_QUOTED) and self.on(ANSI)
        return with_backquotes(text) if quoted else text

    def doubtful(self, text: str) -> bool:
        """Return whether a literal of the text may have another value or type than with Spark's defaults."""
        if "${" in text:  # Spark substitutes variables, in strings too.
            return True
        return any(map(self._is_doubtful, tokens(text)))

    def _is_doubtful(self, token: Token) -> bool:
        if token.kind == "string":
            return ("\\" in token.text or token.text[0] in "rR") and self.on(ESCAPED_STRINGS)
        if token.kind == "word":
            return token.text in ("CHAR", "CHARACTER", "VARCHAR") and self.on(KEPT_LENGTHS)
        return token.kind == "number" and "e" in token.text.lower() and self.on(EXPONENT_AS_DECIMAL)
