"""Every error of lookupcache, one tree.

LookupCacheError
├── OptionError          an option is unknown, malformed, or contradicts another
├── SchemaError          a column or type is missing, duplicate or unmappable
├── PlanError            a join cannot be planned as written
├── StatementError       a statement in SQL cannot be read, or names something that does not exist
├── CompiledPlanError    a compiled plan cannot be created or read, or cannot run here with the same meaning
├── TooManyRowsError          a lookup found more than one row where one is allowed
├── ConnectorError       a connector is missing or incomplete, or rejects its options
├── JavaMissingError          Spark cannot start on this machine, which has no Java for it
├── UnsupportedVersionError   this version of Spark, Python or Java is not supported
└── LookupRuntimeError        the source failed while the job ran
    ├── LookupFailedError     … after the last attempt
    ├── LookupTimeoutError    … because it did not answer in time
    ├── LookupRefusedError    … so often that the circuit breaker is open
    └── SourceError      … because it returned wrong columns, types or values
        └── WrongRowsError    … for some of the requested keys

and one warning, `LookupAdvice`: lookups are correct, but could be faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Position:
    """The position of an error in a statement: line and column, counted from 1, and ``length`` in characters.

    ``text`` is the line with secrets masked; ``shift`` is how many characters masking moved the position to the left.

    >>> print(Position(1, 8, "SELECT cuntry FROM c", 6))
    Line 1, column 8:
      SELECT cuntry FROM c
             ^^^^^^
    """

    line: int
    column: int
    text: str
    length: int
    shift: int = 0

    @property
    def marked(self) -> str:
        """The text at the position."""
        return self.text[self._start : self._start + self.length]

    @property
    def _start(self) -> int:
        return self.column - 1 - self.shift

    def __str__(self) -> str:
        indent = "".join("\t" if letter == "\t" else " " for letter in self.text[: self._start])
        return f"Line {self.line}, column {self.column}:\n  {self.text}\n  {indent}{'^' * self.length}"


class LookupCacheError(Exception):
    """Root of all errors raised by lookupcache.

    The text is a fact, for an SQL statement with the `Position` of the error. If there is a cure, a blank line,
    ``Hint:`` and the cure follow.

    >>> print(LookupCacheError("There is no option 'lookup.cash'.", hint="Did you mean 'lookup.cache'?"))
    There is no option 'lookup.cash'.
    <BLANKLINE>
    Hint: Did you mean 'lookup.cache'?
    """

    def __init__(self, fact: str, *, hint: str | None = None, position: Position | None = None) -> None:
        super().__init__(
            "\n\n".join([fact, *([str(position)] if position else []), *([f"Hint: {hint}"] if hint else [])])
        )
        self.fact = fact
        self.hint = hint
        self.position = position
        self.about: str | None = None
        self.refusal: Exception | None = None
        """Spark's error, where Spark refuses the statement as the user wrote it."""

    def at(self, position: Position | None) -> LookupCacheError:
        """Return the same error with a position in the statement, unless it has one already."""
        return self if self.position is not None else type(self)(self.fact, hint=self.hint, position=position)

    def rewritten(self, fact: str, hint: str | None, position: Position | None) -> LookupCacheError:
        """Return the same error with other texts."""
        made = type(self)(fact, hint=hint, position=position)
        made.about, made.refusal = self.about, self.refusal
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.fact, self.hint, self.position)


def _rebuild(
    kind: type[LookupCacheError], fact: str, hint: str | None, position: Position | None = None
) -> LookupCacheError:
    return kind(fact, hint=hint, position=position)


@contextmanager
def about(text: str) -> Iterator[None]:
    """Record in lookupcache's errors that are raised inside which part of a condition they are about."""
    try:
        yield
    except LookupCacheError as error:
        error.about = error.about or text
        raise


class OptionError(LookupCacheError, ValueError):
    """An option is unknown, malformed, or contradicts another option."""


class SchemaError(LookupCacheError, ValueError):
    """A column or a type is missing, duplicate, or has no counterpart."""

    unknown: str | None = None
    """The name in a condition that no column has."""


class PlanError(LookupCacheError, ValueError):
    """The join, as written, cannot be planned."""


class StatementError(LookupCacheError, ValueError):
    """A statement in SQL cannot be read or run as written, or names a table or function that does not exist."""


class CompiledPlanError(LookupCacheError, ValueError):
    """A compiled plan cannot be made of a statement, cannot be read, or cannot be run here with the same meaning."""


class ConnectorError(LookupCacheError):
    """A connector cannot be found, imported, pickled, or lacks a method that the options need."""


class LookupAdvice(UserWarning):
    """Lookups work, but the source reports how they could be faster."""


class JavaMissingError(LookupCacheError):
    """Spark cannot start on this machine: there is no Java that it runs on."""


class UnsupportedVersionError(LookupCacheError, ImportError):
    """Spark is missing, or the version of Spark, Python or Java is not supported."""


class TooManyRowsError(LookupCacheError, ValueError):
    """A lookup found more than one row where a scalar sub-query, or ``matches="single"``, allows one."""


class LookupRuntimeError(LookupCacheError):
    """A lookup failed between the worker and the source.

    ``code`` is the kind of failure in a result's error column and in dead letters.
    """

    code = "LOOKUP_ERROR"


class LookupFailedError(LookupRuntimeError):
    """The source still failed after the last attempt."""

    code = "LOOKUP_FAILED"


class LookupTimeoutError(LookupRuntimeError):
    """The source did not answer within ``lookup.timeout``."""

    code = "LOOKUP_TIMEOUT"


class LookupRefusedError(LookupRuntimeError):
    """The circuit breaker is open: the source failed too often, and ``lookup.breaker.delay`` is not over."""

    code = "LOOKUP_REFUSED"


class SourceError(LookupRuntimeError):
    """The source returned columns, types or values that do not fit the table's schema."""

    code = "SOURCE_ERROR"


class WrongRowsError(SourceError):
    """The source returned wrong rows for some of the keys of a call; only those keys have failed.

    ``table`` has the rows of the other keys, ``wrong`` the error of each failed key by its position in the call.

    >>> error = WrongRowsError.of("rows of key 0", {1: SourceError("Its name is no string.")})
    >>> error.fact, error.table, list(error.wrong)
    ('Its name is no string.', 'rows of key 0', [1])
    """

    table: Any = None
    wrong: Mapping[int, BaseException] = {}

    @classmethod
    def of(cls, table: Any, wrong: Mapping[int, BaseException]) -> WrongRowsError:
        """Return the error for a result with wrong rows of some keys; its text is that of the first."""
        first = next(iter(wrong.values()))
        made = cls(first.fact, hint=first.hint) if isinstance(first, LookupCacheError) else cls(text_of(first))
        made.table, made.wrong = table, wrong
        return made


def text_of(error: BaseException) -> str:
    """Return the text of an error, or a replacement if reading it fails.

    >>> class Mute(Exception):
    ...     def __str__(self):
    ...         raise ValueError
    >>> text_of(OSError("down")), text_of(Mute())
    ('down', '(an error whose text cannot be read)')
    """
    try:
        return str(error)
    except Exception:
        return "(an error whose text cannot be read)"


_MOST_NAMED = 25
"""The maximum number of names that a hint lists."""
HIDDEN_COLUMN = "_metadata"
"""A column that Spark has for files, and that a DataFrame does not list."""


def nearest(name: str, known: Iterable[str], *, what: str, most: int = _MOST_NAMED) -> str:
    """Return a hint that names the known name nearest to ``name``, or the others: of more than ``most``, the nearest.

    >>> nearest("urll", ["url", "table"], what="options")
    "Did you mean 'url'?"
    >>> nearest("zzz", ["url", "table"], what="options")
    "Known options: 'table', 'url'."
    """
    if HIDDEN_COLUMN in name.lower().split("."):
        return f"Select the hidden column of files by name before the join, as in left.select('*', '{HIDDEN_COLUMN}')."
    names = sorted(known)
    import difflib  # Here, since it is for an error on the driver.

    by_lower = {one.lower(): one for one in reversed(names)}
    if close := difflib.get_close_matches(name.lower(), by_lower, n=1):
        return f"Did you mean {by_lower[close[0]]!r}?"
    if len(names) > most:
        near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.0)
        return f"Of {len(names)} {what}, the nearest are {', '.join(repr(by_lower[one]) for one in near)}."
    return f"Known {what}: {', '.join(repr(n) for n in names)}." if names else f"There are no {what}."
