"""PySpark's log of the errors of an analysis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def _loggers() -> list[Any]:
    """Return PySpark's own loggers: ordinary ones of their names would not take the arguments that PySpark passes.

    PySpark 4 makes each with its first error, which two threads at once may get wrong; an import waits for others.
    """
    try:
        from pyspark.logger import PySparkLogger
    except ModuleNotFoundError:  # PySpark 3.5 logs no errors.
        return []
    return [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]


_LOGGERS = _loggers()


@contextmanager
def muted_error_log(is_muted: bool = True) -> Iterator[None]:
    """Keep PySpark from logging errors: they are expected, or may hold secrets."""
    before = [logger.disabled for logger in _LOGGERS]
    for logger in _LOGGERS if is_muted else ():
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was_disabled in zip(_LOGGERS, before, strict=True):
            logger.disabled = was_disabled
