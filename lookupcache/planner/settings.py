"""What the planner asks of a session: settings that change the meaning of a condition, and Spark's analyzer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, Protocol

from lookupcache.planner.clauses import Token, functions, tokens, with_backquotes
from lookupcache.versions import is_spark_3

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
SUBSTITUTE = "spark.sql.variable.substitute"
TIMESTAMP_TYPE = "spark.sql.timestampType"

_DEFAULTS = {ANSI: "true", MINIMUM_PRECISION: "true", SUBSTITUTE: "true"}
"""All others are off where the session does not say."""


class Settings:
    """The settings of a session, each read only if a text depends on it.

    ``get`` returns the value of a setting, None if the session does not set it. ``user_functions`` returns the names,
    in lower case, of the user's functions that the session finds before its own.

    >>> settings = Settings({"spark.sql.parser.escapedStringLiterals": "true"}.get)
    >>> settings.doubtful("a = 'b'"), settings.doubtful(r"a = 'b\\n'")
    (False, True)
    """

    def __init__(
        self,
        get: Callable[[str], str | None] = lambda _: None,
        user_functions: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._get = get
        self._user_functions = user_functions
        self._known: dict[str, bool] = {}

    def on(self, name: str) -> bool:
        """Return whether a setting is on."""
        if name not in self._known:
            self._known[name] = str(self._get(name) or _DEFAULTS.get(name)).lower() == "true"
        return self._known[name]

    @cached_property
    def null_in_nothing(self) -> bool:
        """Whether NULL IN () is NULL, not false; by default if ANSI mode is off, and always in Spark 3.5."""
        if self._get(NULL_IN_NOTHING) is not None:
            return self.on(NULL_IN_NOTHING)
        return not self.on(ANSI) or is_spark_3()

    @property
    def without_zone(self) -> bool:
        """Whether TIMESTAMP is a type without a time zone, so that a cast to it ignores one."""
        return str(self._get(TIMESTAMP_TYPE)).upper() == "TIMESTAMP_NTZ"

    def readable(self, text: str) -> str:
        """Return a text with names in backquotes, if the session treats double quotes as those of a name."""
        quoted = '"' in text and self.on(DOUBLE_QUOTED) and self.on(ANSI)
        return with_backquotes(text) if quoted else text

    @cached_property
    def _shadowing(self) -> frozenset[str]:
        return frozenset(self._user_functions())

    def calls_user_function(self, names: Collection[str]) -> bool:
        """Return whether any of these names of functions, in lower case, is that of a user's own for the session."""
        return bool(names) and not self._shadowing.isdisjoint(names)

    def doubtful(self, text: str) -> bool:
        """Return whether a literal or function may have another value or type than with Spark's defaults."""
        if "${" in text or self.calls_user_function(functions(text)):  # Spark substitutes variables, in strings too.
            return True
        return any(map(self._is_doubtful, tokens(text)))

    def _is_doubtful(self, token: Token) -> bool:
        if token.kind == "string":
            return ("\\" in token.text or token.text[0] in "rR") and self.on(ESCAPED_STRINGS)
        if token.kind == "word":
            return token.text in ("CHAR", "CHARACTER", "VARCHAR") and self.on(KEPT_LENGTHS)
        return token.kind == "number" and "e" in token.text.lower() and self.on(EXPONENT_AS_DECIMAL)


class Analyst(Protocol):
    """Facts that only Spark knows; the join implements it."""

    def types(self, expressions: Sequence[str]) -> list[str]:
        """Return Spark's type names of expressions over the left side, written as in a plan."""

    def names(self, expressions: Sequence[str]) -> list[list[str]]:
        """Return the names that Spark gives to the columns of each expression over both sides without an alias.

        Left columns are qualified with ``l``, those of the table with ``r``.
        """

    def star(self, qualifier: str) -> list[str] | None:
        """Return the left columns that ``qualifier.*`` stands for; None where Spark does not know the qualifier."""

    def fold(self, expressions: Sequence[str]) -> list[Any]:
        """Return the values of expressions without columns."""
