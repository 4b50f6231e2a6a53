"""The arguments of a join: Columns become SQL text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lookupcache.planner.column import column_sql, named_column_sql
from lookupcache.planner.settings import ESCAPED_STRINGS, Settings
from lookupcache.versions import is_column


class ColumnTexts:
    """Replaces Columns in the arguments of a join by SQL that means the same in the session; the rest stays as it is.

    Args:
        settings: The session's settings.
        left: What qualifies left columns only.
    """

    def __init__(self, settings: Settings, left: str) -> None:
        self._rules: dict[str, Any] = {
            "escapes": not settings.on(ESCAPED_STRINGS), "null_in_nothing": settings.null_in_nothing, "left": left
        }  # fmt: skip

    def expression(self, given: Any) -> Any:
        """Return a condition or a value; of several conditions all must be true, as in Spark's join."""
        if is_column(given):
            return column_sql(given, **self._rules)
        if isinstance(given, Sequence) and given and all(map(is_column, given)):
            return " AND ".join(f"({column_sql(one, **self._rules)})" for one in given)
        return given

    def select(self, given: Any) -> Any:
        """Return a select list, in which Columns keep their aliases."""
        if isinstance(given, str) or not isinstance(given, Sequence):
            return given
        return [named_column_sql(one, **self._rules) if is_column(one) else one for one in given]
