"""The errors of a source: named after its table, without the secrets of its connector."""

from __future__ import annotations

from typing import TypeVar

from lookupcache.connector import Connector
from lookupcache.error_text import is_presentable, line_of, present_error, rebuilt, without_controls
from lookupcache.errors import (
    LookupCacheError,
    LookupFailedError,
    LookupRefusedError,
    LookupRuntimeError,
    LookupTimeoutError,
    WrongRowsError,
    text_of,
)
from lookupcache.functions.connector import FunctionConnector
from lookupcache.plan import LookupPlan
from lookupcache.redaction import hidden
from lookupcache.resilience.policy import AttemptsExhaustedError

AnyError = TypeVar("AnyError", bound=LookupCacheError)


class ErrorNaming:
    """Names what calls to a plan's source failed with.

    Secrets are hidden that the connector has now, and those of `add_secrets`: copies of it, for other threads, resolve
    references on their own.
    """

    def __init__(self, plan: LookupPlan, connector: Connector) -> None:
        self._plan = plan
        self._connector = connector
        self._secrets: set[str] = set()

    def add_secrets(self, connector: Connector) -> None:
        """Hide the secrets of this connector from now on."""
        self._secrets.update(connector.secret_values())

    def hide(self, text: str) -> str:
        """Return a text without secrets."""
        return hidden(text, {*self._secrets, *self._connector.secret_values()})

    def name(self, error: BaseException, keys: int, what: str = "reading the full table") -> LookupRuntimeError:
        """Return the error of a call for some keys, or if ``keys`` is 0, of ``what``, as one to show.

        Raises it if it is an error of lookupcache that fails the job whatever ``lookup.on-error`` says.
        """
        cause, attempts = (error.error, error.attempts) if isinstance(error, AttemptsExhaustedError) else (error, 1)
        if isinstance(cause, WrongRowsError):
            cause = next(iter(cause.wrong.values()), cause)
        if isinstance(cause, LookupTimeoutError | LookupRefusedError):
            named = rebuilt(cause, f"Table {self._plan.table!r}: {cause.fact}", cause.hint)
            return self.show(_with_cause(named, cause))
        if isinstance(cause, LookupRuntimeError):
            return self.show(cause)
        if isinstance(cause, LookupCacheError):
            raise self.show(cause)
        what = f"the lookup of {keys} key{'s' if keys > 1 else ''}" if keys else what
        text = without_controls(self.hide(text_of(cause)))
        failed = LookupFailedError(
            f"Table {self._plan.table!r} ({self._source}): {what} failed after {attempts} "
            f"attempt{'s' if attempts > 1 else ''}: {type(cause).__name__}: {text}{self._line_of(cause)}",
            hint=self._hint,
        )
        return _with_cause(failed, cause if is_presentable(cause, self.hide) else None)

    @property
    def _source(self) -> str:
        if isinstance(self._connector, FunctionConnector):
            return f"function {self._connector.name!r}"
        return f"connector {self._plan.connector!r}"

    @property
    def _hint(self) -> str:
        hint = "Correct the source, or allow more with 'lookup.max-retries' and 'lookup.timeout'."
        if isinstance(self._connector, FunctionConnector):
            hint += " With 'lookup.on-error' = 'dead-letter', the rows whose keys fail are written to a file."
        return hint

    def _line_of(self, error: BaseException) -> str:
        """Return the line of the user's function or connector that raised an error, for its text."""
        is_own = type(self._connector).__module__.startswith("lookupcache")
        if is_own and not isinstance(self._connector, FunctionConnector):
            return ""
        line = line_of(error)
        return "" if line is None else self.hide(f" ({line})")

    def show(self, error: AnyError) -> AnyError:
        """Return an error of lookupcache without secrets: itself, or if it or a cause contains one, a copy without."""
        return error if is_presentable(error, self.hide) else present_error(error, self.hide)


def _with_cause(error: AnyError, cause: BaseException | None) -> AnyError:
    error.__cause__ = cause
    return error
