"""Every error of lookupcache, one tree.

LookupCacheError
├── OptionError          an option is unknown, malformed, or contradicts another
├── SchemaError          a column or type is missing, duplicate or unmappable
├── PlanError            a join cannot be planned as written
├── ConnectorError       a connector is missing, incomplete or refuses its options
├── JavaMissing          a Spark is to start on this machine, and there is no Java for it
└── SourceTrouble        the source failed while the job ran
    ├── LookupFailed     … after the last attempt
    ├── LookupTimeout    … because it did not answer in time
    ├── LookupRefused    … so often that it was not asked again
    └── SourceError      … because it answered with the wrong columns, types or values
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LookupCacheError(Exception):
    """Root of all errors raised by lookupcache.

    The text is a fact, and where there is a cure a blank line, ``Hint:`` and the cure.

    >>> print(LookupCacheError("There is no option 'lookup.cash'.", hint="Did you mean 'lookup.cache'?"))
    There is no option 'lookup.cash'.
    <BLANKLINE>
    Hint: Did you mean 'lookup.cache'?
    """

    def __init__(self, fact: str, *, hint: str | None = None) -> None:
        super().__init__(fact if hint is None else f"{fact}\n\nHint: {hint}")
        self.fact = fact
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.fact, self.hint)


def _rebuild(kind: type[LookupCacheError], fact: str, hint: str | None) -> LookupCacheError:
    return kind(fact, hint=hint)


class OptionError(LookupCacheError, ValueError):
    """An option is unknown, malformed, or contradicts another option."""


class SchemaError(LookupCacheError, ValueError):
    """A column or a type is missing, duplicate, or has no counterpart."""


class PlanError(LookupCacheError, ValueError):
    """The join, as written, cannot be planned."""


class ConnectorError(LookupCacheError):
    """A connector cannot be found, imported, pickled, or lacks a method that the options need."""


class LookupAdvice(UserWarning):
    """Lookups work, but slowly, and the source says what would make them faster."""


class JavaMissing(LookupCacheError):
    """A Spark is to start on this machine, and there is no Java that it runs on."""


class SourceTrouble(LookupCacheError):
    """Something went wrong between the worker and the source.

    ``code`` stands for the kind of trouble in a result's error column and in dead letters.
    """

    code = "SOURCE_TROUBLE"


class LookupFailed(SourceTrouble):
    """The source still failed after the last attempt."""

    code = "LOOKUP_FAILED"


class LookupTimeout(SourceTrouble):
    """The source did not answer within ``lookup.timeout``."""

    code = "LOOKUP_TIMEOUT"


class LookupRefused(SourceTrouble):
    """The source was not asked: it failed too often, and ``lookup.breaker.delay`` is not over."""

    code = "LOOKUP_REFUSED"


class SourceError(SourceTrouble):
    """The source answered with columns, types or values that the table's schema does not allow."""

    code = "SOURCE_ERROR"


def nearest(name: str, known: Iterable[str], *, what: str) -> str:
    """Return a hint that names the known name nearest to ``name``, or all of them.

    >>> nearest("urll", ["url", "table"], what="options")
    "Did you mean 'url'?"
    >>> nearest("zzz", ["url", "table"], what="options")
    "Known options: 'table', 'url'."
    """
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1)
    if close:
        match = next(n for n in names if n.lower() == close[0])
        return f"Did you mean {match!r}?"
    return f"Known {what}: {', '.join(repr(n) for n in names)}." if names else f"There are no {what}."
